"""The hand-written messages against the generated schemas: each reads the messages of the other, in every version."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from uuid import NAMESPACE_URL, UUID, uuid5

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from broker.core.transactions import AbortedTransaction
from quorumlog.errors import RemoteProtocolError
from quorumlog.wire.kafka import codec, fetch, produce
from quorumlog.wire.kafka.buffer import Reader, uvarint
from quorumlog.wire.kafka.codec import Api
from quorumlog.wire.record_batch import RecordError

INT32 = st.integers(-(2**31), 2**31 - 1)
INT64 = st.integers(-(2**63), 2**63 - 1)
OFFSET = st.integers(-1, 2**62)
NAME = st.text(max_size=40)
RECORDS = st.one_of(st.binary(max_size=50), st.integers(4000, 9000).map(lambda size: bytes(range(256)) * (size // 256)))
TOPIC_ID = st.uuids()


@dataclass(frozen=True)
class ProduceResult:
    error_code: int
    base_offset: int
    log_start_offset: int
    log_append_time_ms: int
    error_message: str
    leader_id: int
    leader_epoch: int
    record_errors: tuple[RecordError, ...]


@dataclass(frozen=True)
class FetchResult:
    topic_id: UUID
    topic: str
    index: int
    error_code: int
    high_watermark: int
    last_stable_offset: int
    log_start_offset: int
    records: bytes
    diverging_epoch: int
    diverging_end: int
    leader_id: int
    leader_epoch: int
    aborted: list[AbortedTransaction]
    preferred_replica: int


PRODUCE_RESULT = st.builds(
    ProduceResult,
    error_code=st.sampled_from([0, 2, 3, 6, 7, 10, 19]),
    base_offset=OFFSET,
    log_start_offset=OFFSET,
    log_append_time_ms=st.integers(0, 2**41) | st.just(-1),
    error_message=NAME,
    leader_id=st.integers(-1, 1000),
    leader_epoch=st.integers(-1, 1000),
    record_errors=st.lists(st.builds(RecordError, st.integers(0, 2**31 - 1), NAME), max_size=3).map(tuple),
)
FETCH_RESULT = st.builds(
    FetchResult,
    topic_id=TOPIC_ID,
    topic=NAME,
    index=INT32,
    error_code=st.sampled_from([0, 1, 3, 6, 74, 100]),
    high_watermark=INT64,
    last_stable_offset=INT64,
    log_start_offset=INT64,
    records=RECORDS,
    diverging_epoch=st.integers(-1, 1000),
    diverging_end=OFFSET,
    leader_id=st.integers(-1, 1000),
    leader_epoch=st.integers(-1, 1000),
    aborted=st.lists(st.builds(AbortedTransaction, INT64, INT64, INT64), max_size=3),
    preferred_replica=st.integers(-1, 1000),
)
ENDPOINT = st.builds(produce.NodeEndpoint, st.integers(0, 100), NAME, st.integers(1, 65535), st.none() | NAME)


def topic_of(version: int, name: str) -> str | UUID:
    """Return a topic as a Produce request names it."""
    return uuid5(NAMESPACE_URL, name) if version >= 13 else name


def joined(parts: list[bytes | bytearray | memoryview]) -> memoryview:
    return memoryview(b"".join(parts))


@given(
    version=st.integers(produce.FIRST_VERSION, produce.LAST_VERSION),
    transactional_id=st.none() | NAME,
    acks=st.integers(-5, 5),
    timeout_ms=INT32,
    topics=st.lists(st.tuples(NAME, st.lists(st.tuples(INT32, st.none() | RECORDS), max_size=3)), max_size=3),
)
def test_produce_request_is_read_as_the_schema_writes_it(
    version: int,
    transactional_id: str | None,
    acks: int,
    timeout_ms: int,
    topics: list[tuple[str, list[tuple[int, bytes | None]]]],
) -> None:
    values = {
        "transactional_id": transactional_id,
        "acks": acks,
        "timeout": timeout_ms,
        "topic_data": [
            {
                "name": name,
                "topic_id": topic_of(version, name),
                "partition_data": [{"index": index, "records": records} for index, records in partitions],
            }
            for name, partitions in topics
        ],
    }
    encoded = codec.encode(codec.request(Api.PRODUCE, version, values))
    request = produce.decode_request(memoryview(b"head" + encoded), 4, version)
    assert (request.transactional_id, request.acks, request.timeout_ms) == (transactional_id, acks, timeout_ms)
    expected = [
        (topic_of(version, name), index, records) for name, partitions in topics for index, records in partitions
    ]
    assert [(item.topic, item.index, item.records) for item in request.partitions] == expected


@given(
    version=st.integers(9, produce.LAST_VERSION),
    acks=st.sampled_from([-1, 0, 1]),
    partitions=st.lists(st.tuples(NAME, INT32, RECORDS), max_size=5),
)
def test_an_encoded_produce_request_round_trips_and_fits_the_schema(
    version: int, acks: int, partitions: list[tuple[str, int, bytes]]
) -> None:
    wanted = [(topic_of(version, name), index, records) for name, index, records in partitions]
    body = joined(produce.encode_request(version, acks, 1500, wanted))
    request = produce.decode_request(body, 0, version)
    read = [
        (item.topic, item.index, None if item.records is None else bytes(item.records)) for item in request.partitions
    ]
    assert read == wanted
    assert codec.milliseconds(codec.decode(codec.request_schema(Api.PRODUCE, version), body, 0).timeout) == 1500


@given(
    version=st.integers(produce.FIRST_VERSION, produce.LAST_VERSION),
    results=st.lists(st.tuples(NAME, INT32, PRODUCE_RESULT), max_size=5),
    endpoints=st.lists(ENDPOINT, max_size=2),
)
def test_an_encoded_produce_response_is_read_by_the_schema_and_round_trips(
    version: int, results: list[tuple[str, int, ProduceResult]], endpoints: list[produce.NodeEndpoint]
) -> None:
    sent_results = [(topic_of(version, name), index, result) for name, index, result in results]
    body = memoryview(produce.encode_response(version, sent_results, endpoints))
    read = codec.decode(codec.response_schema(Api.PRODUCE, version), body, 0)
    flat = [
        (topic.topic_id if version >= 13 else topic.name, item.index, item)
        for topic in read.responses
        for item in topic.partition_responses
    ]
    assert [(name, index) for name, index, _ in flat] == [(name, index) for name, index, _ in sent_results]
    for (_, _, got), (_, _, sent) in zip(flat, results, strict=True):
        assert (int(got.error_code), got.base_offset) == (sent.error_code, sent.base_offset)
        if version >= 8:
            assert got.error_message == (sent.error_message or None)
            told = [(error.batch_index, error.batch_index_error_message) for error in got.record_errors]
            assert told == list(sent.record_errors)
        if version >= 10 and sent.leader_id != -1:
            leader = (got.current_leader.leader_id, got.current_leader.leader_epoch)
            assert leader == (sent.leader_id, sent.leader_epoch)
    if version >= 10:
        assert [(node.node_id, node.host, node.port, node.rack) for node in read.node_endpoints] == endpoints
    if version >= 9:
        ours = produce.decode_response(body, version)
        assert [
            (item.topic, item.index, item.error_code, item.base_offset, item.log_start_offset, item.record_errors)
            for item in ours
        ] == [
            (name, index, sent.error_code, sent.base_offset, sent.log_start_offset, sent.record_errors)
            for name, index, sent in sent_results
        ]


@given(
    version=st.integers(fetch.FIRST_VERSION, fetch.LAST_VERSION),
    session_id=INT32,
    results=st.lists(FETCH_RESULT, max_size=5),
    endpoints=st.lists(ENDPOINT, max_size=2),
)
def test_an_encoded_fetch_response_is_read_by_the_schema_and_round_trips(
    version: int, session_id: int, results: list[FetchResult], endpoints: list[produce.NodeEndpoint]
) -> None:
    parts = fetch.encode_response(version, 0, session_id, results, endpoints)
    assert all(any(part is result.records for part in parts) for result in results if len(result.records) >= 4096)
    body = joined(parts)
    read = codec.decode(codec.response_schema(Api.FETCH, version), body, 0)
    flat = [(topic, item) for topic in read.responses for item in topic.partitions]
    assert len(flat) == len(results)
    for (topic, got), sent in zip(flat, results, strict=True):
        if version >= 13:
            assert topic.topic_id == (sent.topic_id if sent.topic_id.int else None)
        else:
            assert topic.topic == sent.topic
        assert (got.partition_index, int(got.error_code)) == (sent.index, sent.error_code)
        assert (got.high_watermark, got.last_stable_offset) == (sent.high_watermark, sent.last_stable_offset)
        assert bytes(got.records) == sent.records
        pairs = [(one.producer_id, one.first_offset) for one in sent.aborted]
        assert [(one.producer_id, one.first_offset) for one in got.aborted_transactions or ()] == pairs
        if version >= 11:
            assert got.preferred_read_replica == sent.preferred_replica
        if version >= 12:
            assert (got.diverging_epoch.epoch, got.diverging_epoch.end_offset) == (
                sent.diverging_epoch,
                sent.diverging_end,
            )
            assert (got.current_leader.leader_id, got.current_leader.leader_epoch) == (
                sent.leader_id,
                sent.leader_epoch,
            )
    if version >= 12:
        ours = fetch.decode_response(body, version)
        assert ours.session_id == session_id
        for mine, sent in zip(ours.partitions, results, strict=True):
            assert (mine.index, mine.high_watermark, mine.log_start_offset, bytes(mine.records)) == (
                sent.index,
                sent.high_watermark,
                sent.log_start_offset,
                sent.records,
            )
            assert (mine.diverging_epoch, mine.diverging_end) == (sent.diverging_epoch, sent.diverging_end)
            assert list(mine.aborted) == [(one.producer_id, one.first_offset) for one in sent.aborted]
            assert mine.preferred_replica == sent.preferred_replica


@given(
    version=st.integers(12, fetch.LAST_VERSION),
    partitions=st.lists(
        st.builds(
            fetch.PartitionToFetch,
            topic=NAME,
            index=INT32,
            fetch_offset=INT64,
            max_bytes=INT32,
            current_leader_epoch=INT32,
            last_fetched_epoch=INT32,
            log_start_offset=INT64,
            topic_id=TOPIC_ID,
        ),
        max_size=5,
    ),
    replica_id=st.integers(-1, 50),
    cluster_id=st.none() | NAME,
    data=st.data(),
)
def test_fetch_request_is_read_by_the_schema(
    version: int,
    partitions: list[fetch.PartitionToFetch],
    replica_id: int,
    cluster_id: str | None,
    data: st.DataObject,
) -> None:
    forgotten = data.draw(st.lists(st.sampled_from(partitions), max_size=3)) if partitions else []
    body = joined(
        fetch.encode_request(
            version,
            partitions,
            max_wait_ms=500,
            min_bytes=1,
            max_bytes=2**31 - 1,
            session_id=7,
            session_epoch=3,
            forgotten=forgotten,
            replica_id=replica_id,
            broker_epoch=99,
            cluster_id=cluster_id,
        )
    )
    read = codec.decode(codec.request_schema(Api.FETCH, version), body, 0)
    flat = [(topic, item) for topic in read.topics for item in topic.partitions]
    for (topic, got), sent in zip(flat, partitions, strict=True):
        if version >= 13:
            assert topic.topic_id == (None if sent.topic_id == UUID(int=0) else sent.topic_id)
        else:
            assert topic.topic == sent.topic
        assert (got.partition, got.fetch_offset, got.partition_max_bytes) == (
            sent.index,
            sent.fetch_offset,
            sent.max_bytes,
        )
        assert (got.current_leader_epoch, got.last_fetched_epoch, got.log_start_offset) == (
            sent.current_leader_epoch,
            sent.last_fetched_epoch,
            sent.log_start_offset,
        )
    assert [index for topic in read.forgotten_topics_data for index in topic.partitions] == [
        gone.index for gone in forgotten
    ]
    assert (read.session_id, read.session_epoch, codec.milliseconds(read.max_wait)) == (7, 3, 500)
    assert read.cluster_id == cluster_id
    if version >= 15:
        assert read.replica_state.replica_id == replica_id
        assert read.replica_state.replica_epoch == (99 if replica_id != -1 else -1)
    else:
        assert read.replica_id == replica_id


@settings(deadline=None)
@given(data=st.data(), version=st.integers(fetch.FIRST_VERSION, fetch.LAST_VERSION))
def test_a_decoded_fetch_request_equals_the_message_of_the_schema(data: st.DataObject, version: int) -> None:
    schema = codec.request_schema(Api.FETCH, version)
    message = data.draw(st.from_type(schema))
    assume(-(2**31) <= codec.milliseconds(message.max_wait) < 2**31)
    body = memoryview(b"head" + codec.encode(message))
    request = fetch.decode_request(body, 4, version, lambda *values: values, lambda *values: values)
    by_id = version >= 13
    expected, gone = [], []
    for topic in message.topics:
        name = (topic.topic_id or UUID(int=0), None) if by_id else (None, topic.topic)
        for item in topic.partitions:
            epochs = [getattr(item, field, -1) for field in ("current_leader_epoch", "last_fetched_epoch")]
            start = getattr(item, "log_start_offset", -1)
            expected.append((*name, item.partition, item.fetch_offset, item.partition_max_bytes, *epochs, start))
    for topic in getattr(message, "forgotten_topics_data", ()):
        name = (topic.topic_id or UUID(int=0), None) if by_id else (None, topic.topic)
        gone += [(*name, index) for index in topic.partitions]
    assert (request.partitions, request.forgotten) == (expected, gone)
    assert request.max_wait_ms == codec.milliseconds(message.max_wait)
    assert (request.min_bytes, request.max_bytes) == (message.min_bytes, message.max_bytes)
    assert request.session_id == getattr(message, "session_id", 0)
    assert request.session_epoch == getattr(message, "session_epoch", -1)
    assert request.cluster_id == getattr(message, "cluster_id", None)
    state = getattr(message, "replica_state", None)
    assert request.replica_id == (state.replica_id if state is not None else message.replica_id)
    assert request.broker_epoch == (state.replica_epoch if state is not None else -1)


@given(data=st.binary(max_size=200), version=st.integers(fetch.FIRST_VERSION, fetch.LAST_VERSION))
def test_any_bytes_as_fetch_request_are_read_or_refused(data: bytes, version: int) -> None:
    with suppress(RemoteProtocolError):
        request = fetch.decode_request(memoryview(data), 0, version, lambda *values: values, lambda *values: values)
        assert len(request.partitions) + len(request.forgotten) <= len(data)


@given(data=st.binary(max_size=200), version=st.integers(produce.FIRST_VERSION, produce.LAST_VERSION))
def test_any_bytes_as_produce_request_are_read_or_refused(data: bytes, version: int) -> None:
    try:
        request = produce.decode_request(memoryview(data), 0, version)
    except RemoteProtocolError:
        return
    assert sum(len(item.records or b"") for item in request.partitions) <= len(data)


@given(data=st.binary(max_size=200), version=st.integers(12, 17))
def test_any_bytes_as_responses_are_read_or_refused(data: bytes, version: int) -> None:
    with suppress(RemoteProtocolError):
        reply = fetch.decode_response(memoryview(data), version)
        assert sum(len(item.records) for item in reply.partitions) <= len(data)
    with suppress(RemoteProtocolError):
        assert len(produce.decode_response(memoryview(data), 10)) <= len(data)


@given(st.integers(0, 2**32 - 1))
def test_uvarint_round_trip(value: int) -> None:
    reader = Reader(memoryview(uvarint(value)))
    assert reader.uvarint() == value
    assert reader.left() == 0


@pytest.mark.parametrize("data", [b"\x80", b"\x80\x80\x80\x80\x80\x01", b"\xff\xff\xff\xff\x7f", b""])
def test_a_bad_varint_is_refused(data: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        Reader(memoryview(data)).uvarint()


def test_an_array_count_that_exceeds_the_message_is_refused() -> None:
    body = b"\xff\xff" + b"\x00\x01" + b"\x00\x00\x00\x05" + b"\x7f\xff\xff\xff" + bytes(20)
    with pytest.raises(RemoteProtocolError, match="array of 2147483647 elements"):
        produce.decode_request(memoryview(body), 0, 3)
