"""Fetch, encoded and decoded by hand: large batches are not copied, and a request may name many partitions.

Versions 4 to 17: flexible from 12 on, topics by id instead of by name from 13 on, followers in `replica_state` from 15
on.  Our own clients send 12; our followers send 17.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, Protocol
from uuid import UUID

from quorumlog.wire.kafka.buffer import REQUEST_ELEMENTS_MAX, Reader, count, nullable_bytes_size, string, uvarint
from quorumlog.wire.kafka.produce import NodeEndpoint, encode_endpoints_tag

Buffer = bytes | bytearray | memoryview

FIRST_VERSION: Final = 4
LAST_VERSION: Final = 17
CLIENT_VERSION: Final = 12
"""The version that our clients send; it names topics by name."""
FOLLOWER_VERSION: Final = 17
FIRST_WITH_TOPIC_ID: Final = 13
READ_UNCOMMITTED: Final = 0
READ_COMMITTED: Final = 1
"""The isolation level of a fetch that ends at the last stable offset."""

_FIRST_WITH_LOG_START: Final = 5
_FIRST_WITH_SESSION: Final = 7
_FIRST_WITH_LEADER_EPOCH: Final = 9
_FIRST_WITH_RACK: Final = 11
_FIRST_WITH_PREFERRED_REPLICA: Final = 11
_FIRST_FLEXIBLE: Final = 12
_FIRST_WITH_REPLICA_STATE: Final = 15
_FIRST_WITH_ENDPOINTS: Final = 16

_COPY_BELOW: Final = 4096
"""Records of fewer bytes are copied into the piece before them, which is cheaper than another buffer to send."""

_RESULT: Final = struct.Struct(">ihqq")
_INT64: Final = struct.Struct(">q")
_INT32: Final = struct.Struct(">i")
_SESSION: Final = struct.Struct(">hi")
_DIVERGING: Final = struct.Struct(">BBiqB")
_LEADER: Final = struct.Struct(">BBiiB")
_PLAN: Final = struct.Struct(">iiibii")
_LIMITS: Final = struct.Struct(">iiib")
_TWO_INT32: Final = struct.Struct(">ii")
_PARTITION_4: Final = struct.Struct(">iqi")
_PARTITION_5: Final = struct.Struct(">iqqi")
_PARTITION_9: Final = struct.Struct(">iiqqi")
_PARTITION_12: Final = struct.Struct(">iiqiqi")
_PARTITION: Final = struct.Struct(">iiqiqiB")
_ABORTED: Final = struct.Struct(">qq")
_REPLICA_STATE: Final = struct.Struct(">BBiqB")


class PartitionLike(Protocol):
    """The form of `broker.kafka.api.FetchPartition`, which this package may not import."""

    @property
    def topic_id(self) -> UUID | None: ...
    @property
    def topic(self) -> str | None: ...
    @property
    def index(self) -> int: ...
    @property
    def fetch_offset(self) -> int: ...
    @property
    def max_bytes(self) -> int: ...
    @property
    def current_leader_epoch(self) -> int: ...
    @property
    def last_fetched_epoch(self) -> int: ...
    @property
    def log_start_offset(self) -> int: ...


class ForgottenLike(Protocol):
    @property
    def topic_id(self) -> UUID | None: ...
    @property
    def topic(self) -> str | None: ...
    @property
    def index(self) -> int: ...


class AbortedLike(Protocol):
    """The form of `broker.core.transactions.AbortedTransaction`."""

    @property
    def producer_id(self) -> int: ...
    @property
    def first_offset(self) -> int: ...


class ResultLike(Protocol):
    """The form of `broker.kafka.api.FetchResult`."""

    @property
    def topic_id(self) -> UUID | None: ...
    @property
    def topic(self) -> str | None: ...
    @property
    def index(self) -> int: ...
    @property
    def error_code(self) -> int: ...
    @property
    def high_watermark(self) -> int: ...
    @property
    def last_stable_offset(self) -> int: ...
    @property
    def log_start_offset(self) -> int: ...
    @property
    def records(self) -> bytes | memoryview: ...
    @property
    def aborted(self) -> Sequence[AbortedLike]: ...
    @property
    def diverging_epoch(self) -> int: ...
    @property
    def diverging_end(self) -> int: ...
    @property
    def leader_id(self) -> int: ...
    @property
    def leader_epoch(self) -> int: ...
    @property
    def preferred_replica(self) -> int: ...


@dataclass(frozen=True, slots=True)
class PartitionToFetch:
    """A `PartitionLike` for clients."""

    topic: str | None
    index: int
    fetch_offset: int
    max_bytes: int
    current_leader_epoch: int = -1
    last_fetched_epoch: int = -1
    log_start_offset: int = -1
    topic_id: UUID | None = None


@dataclass(frozen=True, slots=True)
class FetchedPartition:
    """The part of the answer for one partition that clients and followers use; -1: not given.

    records: whole batches, but the last one may be incomplete; a slice of the frame.
    aborted: the aborted transactions in the records, each as producer id and first offset.
    preferred_replica: the broker from which the consumer should read instead; -1: this broker.
    """

    topic_id: UUID | None
    topic: str | None
    index: int
    error_code: int
    high_watermark: int
    last_stable_offset: int
    log_start_offset: int
    records: memoryview
    diverging_epoch: int
    diverging_end: int
    leader_id: int
    leader_epoch: int
    aborted: tuple[tuple[int, int], ...] = ()
    preferred_replica: int = -1


class FetchedReply(NamedTuple):
    error_code: int
    session_id: int
    partitions: list[FetchedPartition]


class FetchRequest(NamedTuple):
    """A decoded request.  replica_id, broker_epoch: -1 for consumers.

    partitions, forgotten: the objects that the caller's functions returned.

    isolation_level: READ_COMMITTED, or anything else for read_uncommitted.
    """

    replica_id: int
    broker_epoch: int
    max_wait_ms: int
    min_bytes: int
    max_bytes: int
    session_id: int
    session_epoch: int
    partitions: list[Any]
    forgotten: list[Any]
    cluster_id: str | None
    isolation_level: int = 0
    rack: str = ""


# --- server --------------------------------------------------------------------------------------------------------


def decode_request(
    frame: memoryview,
    position: int,
    version: int,
    partition: Callable[[UUID | None, str | None, int, int, int, int, int, int], Any],
    forgotten: Callable[[UUID | None, str | None, int], Any],
) -> FetchRequest:
    """Decode a request of any version.

    Args:
        partition: called with topic id, topic, index, fetch offset, max bytes, leader epoch, last fetched epoch and log
            start offset for each partition; fields that a version does not have are None or -1.
        forgotten: called with topic id, topic and index for each forgotten partition.

    Raises: RemoteProtocolError.
    """
    reader = Reader(frame, position, REQUEST_ELEMENTS_MAX)
    flexible, by_id = version >= _FIRST_FLEXIBLE, version >= FIRST_WITH_TOPIC_ID
    replica_id = reader.int32() if version < _FIRST_WITH_REPLICA_STATE else -1
    max_wait_ms, min_bytes, max_bytes, isolation_level = reader.unpack(_LIMITS)
    session_id, session_epoch = reader.unpack(_TWO_INT32) if version >= _FIRST_WITH_SESSION else (0, -1)
    partitions: list[Any] = []
    read_partition = _partition_reader(version)
    for _ in range(reader.count(flexible, 3)):
        topic_id = reader.uuid() if by_id else None
        topic = None if by_id else reader.string(flexible)
        for _ in range(reader.count(flexible, 16)):
            index, epoch, offset, last_epoch, log_start, size = read_partition(reader)
            partitions.append(partition(topic_id, topic, index, offset, size, epoch, last_epoch, log_start))
            if flexible:
                reader.skip_tags()
        if flexible:
            reader.skip_tags()
    gone: list[Any] = []
    for _ in range(reader.count(flexible, 3) if version >= _FIRST_WITH_SESSION else 0):
        topic_id = reader.uuid() if by_id else None
        topic = None if by_id else reader.string(flexible)
        gone += [forgotten(topic_id, topic, reader.int32()) for _ in range(reader.count(flexible, 4))]
        if flexible:
            reader.skip_tags()
    rack = ""
    if version >= _FIRST_WITH_RACK:
        rack = reader.string(flexible)
    cluster_id, broker_epoch = None, -1
    for tag, data in (reader.tags() if flexible else {}).items():
        if tag == 0:
            cluster_id = Reader(data).nullable_string(True)
        elif tag == 1 and version >= _FIRST_WITH_REPLICA_STATE:
            state = Reader(data)
            replica_id, broker_epoch = state.int32(), state.int64()
    return FetchRequest(
        replica_id,
        broker_epoch,
        max_wait_ms,
        min_bytes,
        max_bytes,
        session_id,
        session_epoch,
        partitions,
        gone,
        cluster_id,
        isolation_level,
        rack,
    )


def _partition_reader(version: int) -> Callable[[Reader], tuple[int, ...]]:
    """Return a function that reads index, leader epoch, fetch offset, last fetched epoch, log start and max bytes."""
    if version >= _FIRST_FLEXIBLE:
        return lambda reader: reader.unpack(_PARTITION_12)
    if version >= _FIRST_WITH_LEADER_EPOCH:

        def read_9(reader: Reader) -> tuple[int, ...]:
            index, epoch, offset, log_start, size = reader.unpack(_PARTITION_9)
            return index, epoch, offset, -1, log_start, size

        return read_9
    layout = _PARTITION_5 if version >= _FIRST_WITH_LOG_START else _PARTITION_4

    def read(reader: Reader) -> tuple[int, ...]:
        index, offset, *log_start, size = reader.unpack(layout)
        return index, -1, offset, -1, log_start[0] if log_start else -1, size

    return read


def encode_response(
    version: int,
    error_code: int,
    session_id: int,
    results: Iterable[ResultLike],
    endpoints: Sequence[NodeEndpoint] = (),
) -> list[Buffer]:
    """Return the response body in pieces; long records are pieces of their own, not copied.

    Consecutive partitions of one topic are encoded together; the order is kept.
    """
    flexible = version >= _FIRST_FLEXIBLE
    topics: list[tuple[bytes, list[ResultLike]]] = []
    for result in results:
        if version >= FIRST_WITH_TOPIC_ID:
            name = result.topic_id.bytes if result.topic_id is not None else bytes(16)
        else:
            name = string(result.topic or "", flexible)
        if not topics or topics[-1][0] != name:
            topics.append((name, []))
        topics[-1][1].append(result)
    piece = bytearray(b"\0\0\0\0")  # not throttled
    if version >= _FIRST_WITH_SESSION:
        piece += _SESSION.pack(error_code, session_id)
    piece += count(len(topics), flexible)
    out: list[Buffer] = []
    for name, members in topics:
        piece += name
        piece += count(len(members), flexible)
        for result in members:
            _encode_result(piece, version, result)
            if len(result.records) < _COPY_BELOW:
                piece += result.records
            else:
                out += (piece, result.records)
                piece = bytearray()
            if flexible:
                piece += _result_tags(result)
        if flexible:
            piece += b"\0"
    if version >= _FIRST_WITH_ENDPOINTS:
        piece += encode_endpoints_tag(endpoints)
    elif flexible:
        piece += b"\0"
    out.append(piece)
    return out


def _encode_result(piece: bytearray, version: int, result: ResultLike) -> None:
    """Append a result to `piece`, without its records and tagged fields."""
    flexible = version >= _FIRST_FLEXIBLE
    piece += _RESULT.pack(result.index, result.error_code, result.high_watermark, result.last_stable_offset)
    if version >= _FIRST_WITH_LOG_START:
        piece += _INT64.pack(result.log_start_offset)
    if result.aborted:
        piece += count(len(result.aborted), flexible)
        end = b"\0" if flexible else b""
        for aborted in result.aborted:
            piece += _ABORTED.pack(aborted.producer_id, aborted.first_offset) + end
    else:
        piece += count(0, flexible)
    if version >= _FIRST_WITH_PREFERRED_REPLICA:
        piece += _INT32.pack(result.preferred_replica)
    piece += nullable_bytes_size(len(result.records), flexible)


def _result_tags(result: ResultLike) -> bytes:
    tags = b""
    number = 0
    if result.diverging_epoch != -1 or result.diverging_end != -1:
        tags += _DIVERGING.pack(0, 13, result.diverging_epoch, result.diverging_end, 0)
        number += 1
    if result.leader_id != -1 or result.leader_epoch != -1:
        tags += _LEADER.pack(1, 9, result.leader_id, result.leader_epoch, 0)
        number += 1
    return uvarint(number) + tags


# --- clients and followers -----------------------------------------------------------------------------------------


def encode_request(
    version: int,
    partitions: Iterable[PartitionLike],
    *,
    max_wait_ms: int,
    min_bytes: int,
    max_bytes: int,
    session_id: int = 0,
    session_epoch: int = -1,
    forgotten: Iterable[ForgottenLike] = (),
    replica_id: int = -1,
    broker_epoch: int = -1,
    cluster_id: str | None = None,
    isolation_level: int = 0,
    rack: str = "",
) -> list[Buffer]:
    """Return the request body, for a flexible version; consecutive partitions of one topic are encoded together."""
    assert version >= _FIRST_FLEXIBLE, version
    by_id = version >= FIRST_WITH_TOPIC_ID
    with_state = version >= _FIRST_WITH_REPLICA_STATE
    out = bytearray() if with_state else bytearray(_INT32.pack(replica_id))
    out += _PLAN.pack(max_wait_ms, min_bytes, max_bytes, isolation_level, session_id, session_epoch)
    topics: list[tuple[bytes, list[bytes]]] = []
    for item in partitions:
        name = _name(item, by_id)
        if not topics or topics[-1][0] != name:
            topics.append((name, []))
        encoded = _PARTITION.pack(
            item.index,
            item.current_leader_epoch,
            item.fetch_offset,
            item.last_fetched_epoch,
            item.log_start_offset,
            item.max_bytes,
            0,
        )
        topics[-1][1].append(encoded)
    _join_topics(out, topics)
    topics = []
    for gone in forgotten:
        name = _name(gone, by_id)
        if not topics or topics[-1][0] != name:
            topics.append((name, []))
        topics[-1][1].append(_INT32.pack(gone.index))
    _join_topics(out, topics)
    out += string(rack, True)
    tags = b""
    if cluster_id is not None:
        text = string(cluster_id, True)
        tags += b"\0" + uvarint(len(text)) + text
    if with_state and replica_id != -1:
        tags += _REPLICA_STATE.pack(1, 13, replica_id, broker_epoch, 0)
    out += uvarint((cluster_id is not None) + (with_state and replica_id != -1)) + tags
    return [out]


def _name(item: PartitionLike | ForgottenLike, by_id: bool) -> bytes:
    if by_id:
        assert item.topic_id is not None, item
        return item.topic_id.bytes
    assert item.topic is not None, item
    return string(item.topic, True)


def _join_topics(out: bytearray, topics: list[tuple[bytes, list[bytes]]]) -> None:
    out += count(len(topics), True)
    for name, items in topics:
        out += name
        out += count(len(items), True)
        out += b"".join(items)
        out += b"\0"


def decode_response(body: memoryview, version: int) -> FetchedReply:
    """Decode a response of a flexible version; records are slices of `body`.  Raises: RemoteProtocolError."""
    assert version >= _FIRST_FLEXIBLE, version
    by_id = version >= FIRST_WITH_TOPIC_ID
    reader = Reader(body)
    reader.int32()
    error_code, session_id = reader.unpack(_SESSION)
    partitions: list[FetchedPartition] = []
    for _ in range(reader.count(True, 3)):
        topic_id = reader.uuid() if by_id else None
        topic = None if by_id else reader.string(True)
        for _ in range(reader.count(True, 35)):
            partitions.append(_decode_partition(reader, topic_id, topic))
        reader.skip_tags()
    reader.skip_tags()
    return FetchedReply(error_code, session_id, partitions)


def _decode_partition(reader: Reader, topic_id: UUID | None, topic: str | None) -> FetchedPartition:
    index, error_code, high_watermark, last_stable_offset = reader.unpack(_RESULT)
    log_start_offset = reader.int64()
    aborted = []
    for _ in range(reader.count(True, 17)):
        producer_id, first_offset = reader.unpack(_ABORTED)
        aborted.append((producer_id, first_offset))
        reader.skip_tags()
    preferred_replica = reader.int32()
    records = reader.nullable_bytes(True)
    diverging_epoch = diverging_end = leader_id = leader_epoch = -1
    for tag, value in reader.tags().items():
        if tag == 0:
            inner = Reader(value)
            diverging_epoch, diverging_end = inner.int32(), inner.int64()
        elif tag == 1:
            inner = Reader(value)
            leader_id, leader_epoch = inner.int32(), inner.int32()
    return FetchedPartition(
        topic_id,
        topic,
        index,
        error_code,
        high_watermark,
        last_stable_offset,
        log_start_offset,
        records if records is not None else memoryview(b""),
        diverging_epoch,
        diverging_end,
        leader_id,
        leader_epoch,
        tuple(aborted),
        preferred_replica,
    )
