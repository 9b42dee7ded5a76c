"""Headers and schemas: round trips of every supported version, and arbitrary bytes."""

from __future__ import annotations

from contextlib import suppress
from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quorumlog.errors import RemoteProtocolError
from quorumlog.wire.kafka import codec
from quorumlog.wire.kafka.codec import Api

EVERY = [(api, version) for api in Api for version in range(20) if codec.has_schema(api, version)]


@pytest.mark.parametrize(("api", "version"), EVERY, ids=lambda value: str(getattr(value, "name", value)))
def test_messages_with_default_values_round_trip(api: Api, version: int) -> None:
    for schema in (codec.request_schema(api, version), codec.response_schema(api, version)):
        message = codec.make(schema, {})
        assert codec.decode(schema, memoryview(codec.encode(message)), 0) == message


@pytest.mark.parametrize(("api", "version"), EVERY, ids=lambda value: str(getattr(value, "name", value)))
def test_a_request_frame_is_read_back(api: Api, version: int) -> None:
    request = codec.request(api, version, {})
    body = codec.encode(request)
    frame = codec.request_prefix(api, version, 77, "me", len(body)) + body
    assert codec.FRAME_SIZE.unpack_from(frame)[0] == len(frame) - 4
    header = codec.parse_request_header(memoryview(frame)[4:])
    assert (header.api_key, header.api_version, header.correlation_id, header.client_id) == (api, version, 77, "me")
    assert codec.decode_request(header, memoryview(frame)[4:]) == request


@pytest.mark.parametrize(("api", "version"), EVERY, ids=lambda value: str(getattr(value, "name", value)))
def test_a_response_frame_is_read_back(api: Api, version: int) -> None:
    body = codec.encode_response_body(api, version, {})
    prefix = codec.response_prefix(5, len(body), codec.response_header_is_flexible(api, version))
    frame = memoryview(prefix + body)
    assert codec.FRAME_SIZE.unpack_from(frame)[0] == len(frame) - 4
    correlation_id, position = codec.parse_response_header(api, version, frame[4:])
    assert correlation_id == 5
    assert bytes(frame[4:][position:]) == body


def test_the_response_header_of_api_versions_is_never_flexible() -> None:
    assert codec.request_is_flexible(Api.API_VERSIONS, 3)
    assert not any(codec.response_header_is_flexible(Api.API_VERSIONS, version) for version in range(5))


def test_nested_values_codes_and_times_are_converted() -> None:
    values = {
        "throttle_time": 1500,
        "cluster_id": "c",
        "topics": [{"name": "t", "error_code": 3, "topic_id": UUID(int=5), "partitions": [{"isr_nodes": [1, 2]}]}],
        "a field of another version": 1,
    }
    message = codec.make(codec.response_schema(Api.METADATA, 12), values)
    read = codec.decode(type(message), memoryview(codec.encode(message)), 0)
    assert read.topics[0].topic_id == UUID(int=5)
    assert (int(read.topics[0].error_code), read.topics[0].partitions[0].isr_nodes) == (3, (1, 2))
    assert codec.milliseconds(read.throttle_time) == 1500


@given(st.integers(0, 2**45))
def test_milliseconds_are_exact(value: int) -> None:
    assert codec.milliseconds(timedelta(milliseconds=value)) == value
    assert codec.milliseconds(datetime.fromtimestamp(0, UTC) + timedelta(milliseconds=value)) == value
    assert codec.milliseconds(None) == -1


@given(st.binary(max_size=64))
def test_any_bytes_as_a_request_header_are_read_or_refused(data: bytes) -> None:
    with suppress(RemoteProtocolError):
        header = codec.parse_request_header(memoryview(data))
        assert 10 <= header.body <= len(data)


@given(st.sampled_from(EVERY), st.binary(max_size=120))
def test_any_bytes_as_a_message_are_read_or_refused(which: tuple[Api, int], data: bytes) -> None:
    for schema in (codec.request_schema(*which), codec.response_schema(*which)):
        with suppress(RemoteProtocolError):
            assert isinstance(codec.decode(schema, memoryview(data), 0), schema)


@given(st.sampled_from(EVERY), st.data())
def test_a_truncated_or_extended_message_is_refused(which: tuple[Api, int], data: st.DataObject) -> None:
    schema = codec.request_schema(*which)
    encoded = codec.encode(codec.make(schema, {}))
    if encoded:
        cut = encoded[: data.draw(st.integers(0, len(encoded) - 1))]
        with pytest.raises(RemoteProtocolError):
            codec.decode(schema, memoryview(cut), 0)
    with pytest.raises(RemoteProtocolError, match="after its end"):
        codec.decode(schema, memoryview(encoded + b"x"), 0)


@pytest.mark.parametrize("count", [b"\x7f\xff\xff\xff", b"\xff\xff\xff\xfe", b"\x80\x00\x00\x00"])
def test_an_impossible_array_length_is_refused(count: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        codec.decode(codec.request_schema(Api.METADATA, 1), memoryview(count), 0)


def test_a_message_in_a_writable_buffer_is_decoded() -> None:
    message = codec.request(Api.METADATA, 12, {"topics": [{"name": "t"}]})
    assert codec.decode(type(message), memoryview(bytearray(codec.encode(message))), 0) == message
