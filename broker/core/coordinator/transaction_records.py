"""Keys and values of `__transaction_state`, in Kafka's format.

Versions 0 and 1 of the values are read.  Version 1 adds tagged fields, for clients of transaction version 2 (KIP-890).
A value is written as version 1 if one of these fields is set, and as version 0 otherwise.  So no field is lost,
regardless of the transaction version that the cluster recommends.
"""

from __future__ import annotations

from enum import Enum
from typing import Final

import msgspec

from broker.core.coordinator.fields import (
    BadRecord,
    Reader,
    compact_string,
    int16,
    int32,
    int64,
    string,
    tagged,
    uvarint,
)
from broker.core.transactions import ProducerKey

NO_TIME = -1
NO_ID = -1

EPOCH_MAX: Final = 32_766
"""The last epoch of a producer.  The next epoch is reserved for the markers of the producer's last transaction."""

EPOCH_RISES: Final = 2
"""For clients of this transaction version and later ones, each end of a transaction raises the epoch."""

_KEY_VERSION = 0
_FLEXIBLE = 1
_PREVIOUS_ID, _NEXT_ID, _CLIENT_VERSION = range(3)  # tags


class TransactionState(Enum):
    """The state of a transactional id: its name and its number, as Kafka has them."""

    EMPTY = ("Empty", 0)
    ONGOING = ("Ongoing", 1)
    PREPARE_COMMIT = ("PrepareCommit", 2)
    PREPARE_ABORT = ("PrepareAbort", 3)
    COMPLETE_COMMIT = ("CompleteCommit", 4)
    COMPLETE_ABORT = ("CompleteAbort", 5)
    DEAD = ("Dead", 6)

    @property
    def label(self) -> str:
        return self.value[0]

    @property
    def number(self) -> int:
        return self.value[1]

    @property
    def is_preparing(self) -> bool:
        """Return whether the transaction is decided, and its markers are being written."""
        return self in (TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT)


_BY_NUMBER = {state.number: state for state in TransactionState}

Partition = tuple[str, int]


class TransactionValue(msgspec.Struct, frozen=True):
    """The stored state of a transactional id.

    partitions: the partitions of the open or decided transaction, sorted.
    updated_ms, started_ms: ms since the epoch.  started_ms is the start of the producer's last transaction; NO_TIME
        before its first.
    client_version: the transaction version of the client that began or ended the transaction.  An abort by
        `InitProducer` sets 0.
    next_id: the producer id with which the client continues, if the epoch was exhausted when the transaction was
        decided.
    previous_id: the producer id before `next_id`; set from the completion of the transaction until the next one begins.
    """

    producer_id: int
    producer_epoch: int
    timeout_ms: int
    state: TransactionState
    partitions: tuple[Partition, ...]
    updated_ms: int
    started_ms: int = NO_TIME
    client_version: int = 0
    next_id: int = NO_ID
    previous_id: int = NO_ID

    @property
    def producer(self) -> ProducerKey:
        return ProducerKey(self.producer_id, self.producer_epoch)


def read_transaction_key(data: bytes) -> str | None:
    """Return the transactional id, or None for a key of a type that this version does not know.  Raises: BadRecord."""
    reader = Reader(data)
    if reader.int16() != _KEY_VERSION:
        return None
    name = reader.string()
    reader.end()
    return name


def write_transaction_key(transactional_id: str) -> bytes:
    """Return the bytes of a key.  Raises: BadRecord: the name is too long."""
    return int16(_KEY_VERSION) + string(transactional_id)


def read_transaction(data: bytes) -> TransactionValue:
    """Return the state of a transactional id.  Raises: BadRecord."""
    reader = Reader(data)
    version = reader.int16()
    if not 0 <= version <= _FLEXIBLE:
        raise BadRecord(f"value version {version} is unknown")
    reader.flexible = version >= _FLEXIBLE
    producer_id, epoch, timeout_ms = reader.int64(), reader.int16(), reader.int32()
    number = reader.int8()
    state = _BY_NUMBER.get(number)
    if state is None:
        raise BadRecord(f"transaction state {number} is unknown")
    partitions: list[Partition] = []
    for _ in range(reader.nullable_count()):
        topic = reader.string()
        partitions += [(topic, reader.int32()) for _ in range(reader.count())]
        reader.skip_tags()
    updated_ms, started_ms = reader.int64(), reader.int64()
    tags = reader.tags() if reader.flexible else {}
    reader.end()
    return TransactionValue(
        producer_id,
        epoch,
        timeout_ms,
        state,
        tuple(sorted(partitions)),
        updated_ms,
        started_ms,
        _tag(tags, _CLIENT_VERSION, 0, size=2),
        _tag(tags, _NEXT_ID, NO_ID, size=8),
        _tag(tags, _PREVIOUS_ID, NO_ID, size=8),
    )


def _tag(tags: dict[int, bytes], tag: int, default: int, size: int) -> int:
    data = tags.get(tag)
    if data is None:
        return default
    if len(data) != size:
        raise BadRecord(f"tag {tag} has {len(data)} bytes instead of {size}")
    return int.from_bytes(data, "big", signed=True)


def write_transaction(value: TransactionValue) -> bytes:
    """Return the bytes of the state of a transactional id.  Raises: BadRecord: a name is too long."""
    tags = {}
    if value.previous_id != NO_ID:
        tags[_PREVIOUS_ID] = int64(value.previous_id)
    if value.next_id != NO_ID:
        tags[_NEXT_ID] = int64(value.next_id)
    if value.client_version:
        tags[_CLIENT_VERSION] = int16(value.client_version)
    flexible = bool(tags)
    version = _FLEXIBLE if flexible else 0
    parts = [int16(version), int64(value.producer_id), int16(value.producer_epoch), int32(value.timeout_ms)]
    parts.append(bytes([value.state.number]))
    by_topic: dict[str, list[int]] = {}
    for topic, index in value.partitions:
        by_topic.setdefault(topic, []).append(index)
    parts.append(_count(len(by_topic) if value.state is not TransactionState.EMPTY else -1, flexible))
    for topic, indexes in by_topic.items():
        parts += [(compact_string if flexible else string)(topic), _count(len(indexes), flexible)]
        parts += map(int32, indexes)
        if flexible:
            parts.append(tagged({}))
    parts += [int64(value.updated_ms), int64(value.started_ms)]
    if flexible:
        parts.append(tagged(tags))
    return b"".join(parts)


def _count(count: int, flexible: bool) -> bytes:
    return uvarint(count + 1) if flexible else int32(count)
