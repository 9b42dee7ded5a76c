"""Produce, encoded and decoded by hand: received batches are slices of the frame, sent batches are separate buffers.

Versions 3 to 13.  From 9 on the message is flexible; from 13 on it names topics by their ids.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol
from uuid import UUID

from quorumlog.wire.kafka.buffer import (
    REQUEST_ELEMENTS_MAX,
    Reader,
    count,
    nullable_bytes_size,
    nullable_string,
    string,
    uvarint,
)
from quorumlog.wire.record_batch import RecordError

Buffer = bytes | bytearray | memoryview

FIRST_VERSION: Final = 3
LAST_VERSION: Final = 13
_FIRST_FLEXIBLE: Final = 9
_FIRST_WITH_LOG_START: Final = 5
_FIRST_WITH_MESSAGE: Final = 8
_FIRST_WITH_LEADER: Final = 10
_FIRST_WITH_IDS: Final = 13

_ACKS_TIMEOUT: Final = struct.Struct(">hi")
_INDEX: Final = struct.Struct(">i")
_RESULT: Final = struct.Struct(">ihqq")
_INT64: Final = struct.Struct(">q")
_INT32: Final = struct.Struct(">i")
_LEADER_TAG: Final = struct.Struct(">BBiiB")


@dataclass(frozen=True, slots=True)
class ProducePartition:
    """topic: its name, or from version 13 on its id.  records: the client's bytes, unchecked; None if it sent null."""

    topic: str | UUID
    index: int
    records: memoryview | None


class ProduceRequest(NamedTuple):
    transactional_id: str | None
    acks: int
    timeout_ms: int
    partitions: list[ProducePartition]


@dataclass(frozen=True, slots=True)
class ProducedPartition:
    """The part of the answer for one partition that clients use.  topic: as in the request."""

    topic: str | UUID
    index: int
    error_code: int
    base_offset: int
    log_append_time_ms: int
    log_start_offset: int = -1
    error_message: str | None = None
    leader_id: int = -1
    leader_epoch: int = -1
    record_errors: tuple[RecordError, ...] = ()


class NodeEndpoint(NamedTuple):
    node_id: int
    host: str
    port: int
    rack: str | None


class ResultLike(Protocol):
    """The form of `broker.kafka.api.ProduceResult`, which this package may not import."""

    @property
    def error_code(self) -> int: ...
    @property
    def base_offset(self) -> int: ...
    @property
    def log_append_time_ms(self) -> int: ...
    @property
    def log_start_offset(self) -> int: ...
    @property
    def error_message(self) -> str: ...
    @property
    def leader_id(self) -> int: ...
    @property
    def leader_epoch(self) -> int: ...
    @property
    def record_errors(self) -> Sequence[RecordError]: ...


def decode_request(frame: memoryview, position: int, version: int) -> ProduceRequest:
    """Decode a request of any version.  Raises: RemoteProtocolError."""
    reader = Reader(frame, position, REQUEST_ELEMENTS_MAX)
    flexible = version >= _FIRST_FLEXIBLE
    transactional_id = reader.nullable_string(flexible)
    acks, timeout_ms = reader.unpack(_ACKS_TIMEOUT)
    partitions: list[ProducePartition] = []
    for _ in range(reader.count(flexible, 3)):
        topic = reader.uuid() if version >= _FIRST_WITH_IDS else reader.string(flexible)
        for _ in range(reader.count(flexible, 5)):
            index = reader.int32()
            partitions.append(ProducePartition(topic, index, reader.nullable_bytes(flexible)))
            if flexible:
                reader.skip_tags()
        if flexible:
            reader.skip_tags()
    if flexible:
        reader.skip_tags()
    return ProduceRequest(transactional_id, acks, timeout_ms, partitions)


def encode_response(
    version: int, results: Iterable[tuple[str | UUID, int, ResultLike]], endpoints: Sequence[NodeEndpoint] = ()
) -> bytes:
    """Return the response body.

    results: topic as in the request, partition index, result.  Consecutive results of one topic are sent together.

    endpoints: the addresses of the leaders named in the results; only versions that have this field contain them.
    """
    flexible = version >= _FIRST_FLEXIBLE
    topics: list[tuple[str | UUID, list[bytes]]] = []
    for topic, index, result in results:
        if not topics or topics[-1][0] != topic:
            topics.append((topic, []))
        topics[-1][1].append(_encode_result(version, index, result))
    end = b"\0" if flexible else b""
    parts = [count(len(topics), flexible)]
    for topic, encoded in topics:
        parts.append(topic.bytes if isinstance(topic, UUID) else string(topic, flexible))
        parts.append(count(len(encoded), flexible))
        parts.extend(encoded)
        parts.append(end)
    parts.append(b"\0\0\0\0")  # not throttled
    parts.append(encode_endpoints_tag(endpoints) if version >= _FIRST_WITH_LEADER else end)
    return b"".join(parts)


def _encode_result(version: int, index: int, result: ResultLike) -> bytes:
    out = _RESULT.pack(index, result.error_code, result.base_offset, result.log_append_time_ms)
    if version >= _FIRST_WITH_LOG_START:
        out += _INT64.pack(result.log_start_offset)
    flexible = version >= _FIRST_FLEXIBLE
    if version >= _FIRST_WITH_MESSAGE:
        out += _encode_record_errors(result.record_errors, flexible)
        out += nullable_string(result.error_message or None, flexible)
    if not flexible:
        return out
    if version >= _FIRST_WITH_LEADER and result.leader_id != -1:
        return out + b"\x01" + _LEADER_TAG.pack(0, 9, result.leader_id, result.leader_epoch, 0)
    return out + b"\0"


def _encode_record_errors(errors: Sequence[RecordError], flexible: bool) -> bytes:
    out = count(len(errors), flexible)
    for error in errors:
        out += _INT32.pack(error.record) + nullable_string(error.message, flexible)
        if flexible:
            out += b"\0"
    return out


def encode_endpoints_tag(endpoints: Sequence[NodeEndpoint]) -> bytes:
    """Return the tagged fields of a response whose tag 0 is the list of node endpoints (Produce, Fetch)."""
    if not endpoints:
        return b"\0"
    body = count(len(endpoints), True)
    for node in endpoints:
        body += _INT32.pack(node.node_id) + string(node.host, True) + _INT32.pack(node.port)
        body += nullable_string(node.rack, True) + b"\0"
    return b"\x01\x00" + uvarint(len(body)) + body


def encode_request(
    version: int,
    acks: int,
    timeout_ms: int,
    partitions: Iterable[tuple[str | UUID, int, Buffer]],
    transactional_id: str | None = None,
) -> list[Buffer]:
    """Return the request body, for a flexible version.

    partitions: topic (from version 13 on by its id), index, batches.  Consecutive batches of one topic are sent
        together.

    transactional_id: the transaction to which all batches belong; None if there is none.

    The list contains the given batches themselves, not copies.
    """
    assert version >= _FIRST_FLEXIBLE, version
    topics: list[tuple[str | UUID, list[tuple[int, Buffer]]]] = []
    for topic, index, batches in partitions:
        if not topics or topics[-1][0] != topic:
            topics.append((topic, []))
        topics[-1][1].append((index, batches))
    small = bytearray(nullable_string(transactional_id, True))
    small += _ACKS_TIMEOUT.pack(acks, timeout_ms) + count(len(topics), True)
    out: list[Buffer] = []
    for topic, items in topics:
        small += (topic.bytes if isinstance(topic, UUID) else string(topic, True)) + count(len(items), True)
        for index, batches in items:
            small += _INDEX.pack(index) + nullable_bytes_size(len(batches), True)
            out += (small, batches)
            small = bytearray(b"\0")
        small += b"\0"
    small += b"\0"
    out.append(small)
    return out


def decode_response(body: memoryview, version: int) -> list[ProducedPartition]:
    """Decode a response of a flexible version.  Raises: RemoteProtocolError."""
    assert version >= _FIRST_FLEXIBLE, version
    reader = Reader(body)
    out: list[ProducedPartition] = []
    for _ in range(reader.count(True, 3)):
        topic = reader.uuid() if version >= _FIRST_WITH_IDS else reader.string(True)
        for _ in range(reader.count(True, 22)):
            index, error_code, base_offset, append_time_ms = reader.unpack(_RESULT)
            log_start_offset = reader.int64()
            record_errors = []
            for _ in range(reader.count(True, 6)):
                record_errors.append(RecordError(reader.int32(), reader.nullable_string(True) or ""))
                reader.skip_tags()
            message = reader.nullable_string(True)
            leader = Reader(tag) if (tag := reader.tags().get(0)) is not None else None
            leader_id, leader_epoch = (leader.int32(), leader.int32()) if leader is not None else (-1, -1)
            out.append(
                ProducedPartition(
                    topic,
                    index,
                    error_code,
                    base_offset,
                    append_time_ms,
                    log_start_offset,
                    message,
                    leader_id,
                    leader_epoch,
                    tuple(record_errors),
                )
            )
        reader.skip_tags()
    reader.int32()
    reader.skip_tags()
    return out
