"""The stored state of share partitions: requests, responses, limits, and records in Kafka's format.

The topic is compacted, so each change is a ShareSnapshot with the whole state of its share partition, and compaction
keeps one record for each share partition.  Kafka deletes old records instead, and also writes ShareUpdate records,
which contain only a change.  This module reads ShareUpdate records, but does not write them.
"""

from __future__ import annotations

from base64 import urlsafe_b64encode
from typing import Final, NamedTuple
from uuid import UUID

import msgspec

from broker.core.coordinator.fields import (
    BadRecord,
    Reader,
    int8,
    int16,
    int32,
    int64,
    open_flexible,
    string,
    tagged,
    uvarint,
)
from broker.core.share.partition import Delivery, StateBatch
from broker.core.share.ranges import RangeMap
from quorumlog.wire.errors import KafkaCode

NO_START: Final = -1
"""The start offset of a share partition whose leader has not yet chosen one."""
NO_EPOCH: Final = -1
INT32_MAX: Final = 2**31 - 1
"""The largest snapshot epoch, and the largest number of complete deliveries, that a record can store."""
OFFSET_MAX: Final = 2**63 - 1
_SNAPSHOT: Final = 0
_UPDATE: Final = 1
_VERSION: Final = 0
_STORABLE: Final = {each.value: each for each in Delivery if each is not Delivery.ACQUIRED}
_BATCH_BYTES: Final = 20


class ShareStateLimits(msgspec.Struct, frozen=True):
    """The limits of a share coordinator.

    states_max: share partitions of one coordinator; further ones get POLICY_VIOLATION.
    batches_max: state batches of one share partition; a write that leads to more gets INVALID_REQUEST.  Leaders have at
        most this many records in flight.
    name_max_bytes: bytes of a group id; a longer id gets INVALID_REQUEST.
    """

    states_max: int = 1_000_000
    batches_max: int = 10_000
    name_max_bytes: int = 1_024


class ShareKey(NamedTuple):
    """One partition in one share group."""

    group: str
    topic_id: UUID
    partition: int

    @property
    def text(self) -> str:
        """Return the key by which Kafka finds the coordinator of the share partition."""
        topic = urlsafe_b64encode(self.topic_id.bytes).decode().rstrip("=")
        return f"{self.group}:{topic}:{self.partition}"


class ShareState(msgspec.Struct, frozen=True):
    """The state of a share partition.

    state_epoch: grows when the state is initialized again.
    leader_epoch: the epoch of the last partition leader that read or wrote the state.
    batches: ascending, from `start_offset` on.  The delivery of a batch that begins at `start_offset` is not complete.
    """

    snapshot_epoch: int
    state_epoch: int
    leader_epoch: int
    start_offset: int
    batches: tuple[StateBatch, ...] = ()
    created_ms: int = NO_EPOCH
    written_ms: int = NO_EPOCH

    @property
    def done_count(self) -> int:
        """Return the number of offsets above the start whose delivery is complete."""
        return sum(each.end - each.first for each in self.batches if each.state.is_done)

    @property
    def is_archiving(self) -> bool:
        """Return whether records wait for their dead letters."""
        return any(each.state is Delivery.ARCHIVING for each in self.batches)


def merged(
    start_offset: int, batches: tuple[StateBatch, ...], new_start: int, changes: tuple[StateBatch, ...]
) -> tuple[int, tuple[StateBatch, ...]]:
    """Apply changes in their order; return the new start offset and the new batches.

    The start never moves back, and moves past offsets whose delivery is complete.  A complete delivery stays complete:
    a change that arrives late, after its sender stopped waiting, cannot make an accepted record available again.  A
    record that is Archiving may have a dead letter already, so it can only become complete.
    """
    start = max(start_offset, new_start)
    runs: RangeMap[tuple[Delivery, int]] = RangeMap()
    for each in (*batches, *changes):
        kept = [run for run in runs.within(each.first, each.end) if _is_kept(run.value[0], each.state)]
        runs.assign(max(each.first, start), each.end, (each.state, each.deliveries))
        for run in kept:
            runs.assign(*run)
    for run in runs:
        if run.first > start or not run.value[0].is_done:
            break
        start = run.end
    runs.cut_below(start)
    return start, tuple(StateBatch(run.first, run.end, *run.value) for run in runs)


def _is_kept(state: Delivery, changed: Delivery) -> bool:
    """Return whether a record keeps its state when a change to another state arrives."""
    return state.is_done or (state is Delivery.ARCHIVING and not changed.is_done)


# -- requests


class ReadState(msgspec.Struct, frozen=True):
    """Read the state as the leader of the partition.  Earlier leaders can no longer write it."""

    key: ShareKey
    leader_epoch: int


class WriteState(msgspec.Struct, frozen=True):
    """Change the state.  start_offset: NO_START leaves it unchanged."""

    key: ShareKey
    state_epoch: int
    leader_epoch: int
    start_offset: int
    batches: tuple[StateBatch, ...]


class InitializeState(msgspec.Struct, frozen=True):
    """Initialize the state at `start_offset`.

    With NO_START, the leader of the partition chooses the offset.  In this case an existing state is kept, because the
    request may be a late repetition.  A state that already has this state epoch is also kept.
    """

    key: ShareKey
    state_epoch: int
    start_offset: int


class DeleteState(msgspec.Struct, frozen=True):
    key: ShareKey


class SummarizeState(msgspec.Struct, frozen=True):
    """Read the state for an administrator: no writer is fenced, and a missing state is not an error."""

    key: ShareKey
    leader_epoch: int = NO_EPOCH


StateRequest = ReadState | WriteState | InitializeState | DeleteState | SummarizeState


class StateResponse(msgspec.Struct, frozen=True):
    """The response to any of the requests.  state: set for ReadState and SummarizeState."""

    error: KafkaCode
    message: str | None = None
    state: ShareState | None = None


# -- records


def read_key(data: bytes) -> tuple[int, ShareKey] | None:
    """Return the type and the key; None for a type that this version does not know.  Raises: BadRecord."""
    reader = Reader(data)
    kind = reader.int16()
    if kind not in (_SNAPSHOT, _UPDATE):
        return None
    key = ShareKey(reader.string(), reader.uuid(), reader.int32())
    reader.end()
    return kind, key


def write_key(key: ShareKey) -> bytes:
    """Return the bytes of the key of a snapshot.  Raises: BadRecord: the group id is too long."""
    return int16(_SNAPSHOT) + string(key.group) + key.topic_id.bytes + int32(key.partition)


def is_update(kind: int) -> bool:
    return kind == _UPDATE


def read_snapshot(data: bytes) -> ShareState:
    """Return the state in a ShareSnapshot.  Raises: BadRecord."""
    reader = open_flexible(data, _VERSION)
    snapshot_epoch, state_epoch, leader_epoch = reader.int32(), reader.int32(), reader.int32()
    start_offset, created_ms, written_ms = reader.int64(), reader.int64(), reader.int64()
    batches = _read_batches(reader)
    start, kept = (start_offset, batches) if start_offset < 0 else merged(start_offset, (), start_offset, batches)
    return ShareState(snapshot_epoch, state_epoch, leader_epoch, start, kept, created_ms, written_ms)


def write_snapshot(state: ShareState) -> bytes:
    parts = [int16(_VERSION), int32(state.snapshot_epoch), int32(state.state_epoch), int32(state.leader_epoch)]
    parts += [int64(state.start_offset), int64(state.created_ms), int64(state.written_ms)]
    parts.append(uvarint(len(state.batches) + 1))
    for each in state.batches:
        parts += [int64(each.first), int64(each.end - 1), int8(each.state), int16(each.deliveries), tagged({})]
    return b"".join(parts) + tagged({0: int32(state.done_count)})


def read_update(data: bytes, before: ShareState) -> ShareState:
    """Return the state after a ShareUpdate, which only Kafka writes.  Raises: BadRecord."""
    reader = open_flexible(data, _VERSION)
    snapshot_epoch, leader_epoch, start_offset = reader.int32(), reader.int32(), reader.int64()
    start, batches = merged(before.start_offset, before.batches, start_offset, _read_batches(reader))
    return ShareState(
        snapshot_epoch,
        before.state_epoch,
        leader_epoch,
        start,
        batches,
        before.created_ms,
        before.written_ms,
    )


def _read_batches(reader: Reader) -> tuple[StateBatch, ...]:
    batches = []
    for _ in range(reader.count()):
        first, last, state, deliveries = reader.int64(), reader.int64(), reader.int8(), reader.int16()
        if state not in _STORABLE or not 0 <= first <= last or deliveries < 0:
            raise BadRecord(f"the state batch {first} to {last} with state {state} is invalid")
        batches.append(StateBatch(first, last + 1, _STORABLE[state], deliveries))
        reader.skip_tags()
    reader.tags()
    reader.end()
    return tuple(batches)


def size_of(request: StateRequest) -> int:
    """Return the bytes that a request occupies, for the limits of a coordinator."""
    batches = len(request.batches) if isinstance(request, WriteState) else 0
    return len(request.key.group) + _BATCH_BYTES * (batches + 2)
