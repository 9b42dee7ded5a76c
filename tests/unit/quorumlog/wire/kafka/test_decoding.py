"""Our schema reader against that of kio, which is fast but trusts its input."""

from __future__ import annotations

import dataclasses
from datetime import timedelta
from functools import cache
from types import UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kio.serial import entity_reader as trusting_reader
from kio.static.primitive import Records

from broker.kafka.handlers import HANDLERS
from quorumlog.errors import RemoteProtocolError
from quorumlog.wire.kafka import codec
from quorumlog.wire.kafka.buffer import REQUEST_ELEMENTS_MAX, uvarint
from quorumlog.wire.kafka.codec import Api

st.register_type_strategy(Records, st.binary(max_size=50))

SCHEMAS = [
    schema(api, version)
    for api, versions in HANDLERS.items()
    for version in sorted({versions.low, versions.offered})
    for schema in (codec.request_schema, codec.response_schema)
]

LIST_MAX = 3
"""Lists are nested.  In longer lists, nearly all time would go into more elements of the same kind."""


@cache
def messages(kind: Any) -> st.SearchStrategy[Any]:
    """Return a strategy for values of this type: an entity, a list of entities, or a field."""
    arguments = get_args(kind)
    match get_origin(kind):
        case origin if origin is tuple:
            return st.lists(messages(arguments[0]), max_size=LIST_MAX).map(tuple)
        case origin if origin in (Union, UnionType):
            return st.one_of(*map(messages, arguments))
    if not isinstance(kind, type) or not dataclasses.is_dataclass(kind):
        return st.from_type(kind)
    types = get_type_hints(kind)
    return st.builds(kind, **{field.name: messages(types[field.name]) for field in dataclasses.fields(kind)})


@pytest.mark.parametrize("schema", SCHEMAS, ids=lambda schema: f"{schema.__name__}-{schema.__version__}")
@settings(max_examples=20, deadline=None)
@given(data=st.data())
def test_the_schema_reader_agrees_with_the_reader_of_kio(schema: Any, data: st.DataObject) -> None:
    message = data.draw(messages(schema))
    encoded = codec.encode(message)
    try:
        theirs, size = trusting_reader(schema)(encoded, 0)
    except (ValueError, OverflowError):  # kio writes durations that it cannot read
        codec.decode(schema, memoryview(encoded), 0)
        return
    assert size == len(encoded)
    assert codec.decode(schema, memoryview(encoded), 0) == theirs


ABSURD = [
    pytest.param(Api.METADATA, 12, b"\xff\xff\xff\xff\x0f", id="compact array of 2^32-2"),
    pytest.param(Api.METADATA, 1, b"\x7f\xff\xff\xff", id="array of 2^31-1"),
    pytest.param(Api.METADATA, 1, b"\xff\xff\xff\xfe", id="array of -2"),
    pytest.param(Api.METADATA, 12, b"\x01\x00\x00\xff\xff\xff\xff\x0f", id="2^32-1 tagged fields"),
    pytest.param(Api.METADATA, 12, b"\x01\x00\x00\x01\x09\xff\xff\xff\xff\x0f", id="tagged field of 2^32-1 bytes"),
    pytest.param(Api.API_VERSIONS, 3, b"\xff\xff\xff\xff\x0f", id="text of 2^32-2"),
    pytest.param(Api.API_VERSIONS, 3, b"\x00", id="null where text is required"),
    pytest.param(Api.CREATE_TOPICS, 7, b"\x00", id="null where an array is required"),
]


@pytest.mark.parametrize(("api", "version", "body"), ABSURD)
def test_an_impossible_length_is_refused_as_malformed(api: Api, version: int, body: bytes) -> None:
    with pytest.raises(RemoteProtocolError, match="malformed"):
        codec.decode(codec.request_schema(api, version), memoryview(body + bytes(20)), 0)


def test_a_duration_that_is_too_long_is_read_as_the_longest_duration() -> None:
    schema = codec.request_schema(Api.EXPIRE_DELEGATION_TOKEN, 1)
    longest = timedelta(days=timedelta.max.days)
    for value, expected in ((2**63 - 1, longest), (-(2**63), -longest)):
        message = codec.decode(schema, memoryview(b"\0\0\0\0" + value.to_bytes(8, "big", signed=True)), 0)
        assert message.expiry_time_period == expected


def test_a_message_with_too_many_elements_is_refused() -> None:
    schema = codec.request_schema(Api.METADATA, 1)
    body = memoryview((50_000).to_bytes(4, "big") + b"\x00\x01x" * 50_000)
    assert len(codec.decode(schema, body, 0, elements_max=50_000).topics) == 50_000
    with pytest.raises(RemoteProtocolError, match="too many elements"):
        codec.decode(schema, body, 0, elements_max=49_999)


def test_too_many_tagged_fields_of_a_header_are_refused() -> None:
    """A broker does nothing else while it skips tagged fields.  Two million in a frame of 4 MB took over a second."""

    def frame(fields: int) -> memoryview:
        return memoryview(b"\0\x03\0\x0c\0\0\0\1\xff\xff" + uvarint(fields) + b"\1\0" * fields)

    most = frame(REQUEST_ELEMENTS_MAX)
    assert codec.parse_request_header(most).body == len(most)
    with pytest.raises(RemoteProtocolError, match="too many elements"):
        codec.parse_request_header(frame(REQUEST_ELEMENTS_MAX + 1))
