"""The share coordinator: the states of the share partitions of one partition of `__share_group_state`.

Theory of operation
-------------------
A leader of a partition reads the state when it first serves a share group, and writes each change before it answers an
acknowledgement.  **Two epochs fence writers.**  The state stores the highest epoch of a leader that has read or
written it, so a former leader gets FENCED_LEADER_EPOCH.  The state epoch changes when the state is initialized anew.  A
reset of offsets raises this epoch.  It may also become lower, because a deleted group that is created again counts from
the beginning.  So a leader with another state epoch, lower or higher, gets FENCED_STATE_EPOCH and reads the state
again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final, assert_never

from msgspec.structs import replace

from broker.core.coordinator.fields import BadRecord
from broker.core.coordinator.machine import Answer, Record, Step, replay_each
from broker.core.coordinator.share.states import (
    INT32_MAX,
    NO_EPOCH,
    NO_START,
    OFFSET_MAX,
    DeleteState,
    InitializeState,
    ReadState,
    ShareKey,
    ShareState,
    ShareStateLimits,
    StateRequest,
    StateResponse,
    SummarizeState,
    WriteState,
    is_update,
    merged,
    read_key,
    read_snapshot,
    read_update,
    write_key,
    write_snapshot,
)
from broker.core.transactions import ProducerKey
from quorumlog.wire.errors import KafkaCode

if TYPE_CHECKING:
    from quorumlog.wire._record_scan import Record as LoggedRecord


class ShareStateMachine:
    """The states of one partition; a `machine.Machine`.  wall_ms: ms since the epoch, for times in records."""

    def __init__(self, limits: ShareStateLimits, wall_ms: Callable[[], int]) -> None:
        self.unknown_records = 0
        self._limits = limits
        self._wall_ms: Final = wall_ms
        self._states: Final[dict[ShareKey, ShareState]] = {}
        self._archiving: Final[dict[ShareKey, ShareState]] = {}

    def __len__(self) -> int:
        """Return the number of share partitions."""
        return len(self._states)

    @property
    def archiving(self) -> Mapping[ShareKey, ShareState]:
        """The states with records that wait for their dead letters.  The view changes with the machine."""
        return self._archiving

    # -- the log

    def replay(self, record: Record) -> None:
        """Apply one record.

        Raises:
            BadRecord: the record is damaged, and nothing was changed.
        """
        if record.marker is not None:
            raise BadRecord("a marker is not permitted in the topic of share groups")
        found = read_key(record.key)
        if found is None:
            self.unknown_records += 1
            return
        kind, key = found
        if is_update(kind):
            before = self._states.get(key)
            if record.value is not None and before is not None:
                self._replace(key, read_update(record.value, before))
        else:
            self._replace(key, None if record.value is None else read_snapshot(record.value))

    def _replace(self, key: ShareKey, state: ShareState | None) -> None:
        if state is None:
            self._states.pop(key, None)
        else:
            self._states[key] = state
        if state is not None and state.is_archiving:
            self._archiving[key] = state
        else:
            self._archiving.pop(key, None)

    def replay_batch(self, records: list[LoggedRecord], producer: ProducerKey | None) -> None:
        """Apply the records of one batch; see `Machine.replay_batch`."""
        replay_each(self.replay, records, producer)

    def loaded(self, now_ms: int) -> Step:
        """Start to serve.  Nothing has a deadline."""
        return Step()

    # -- requests

    def request(self, call: int, request: StateRequest, now_ms: int) -> Step:
        """Apply a request.  A change is one record."""
        known = self._states.get(request.key)
        answer, changed = self._problem(request, known), known
        if answer is None:
            answer = StateResponse(KafkaCode.NONE)
            match request:
                case ReadState():
                    assert known is not None
                    changed = replace(known, leader_epoch=max(known.leader_epoch, request.leader_epoch))
                    answer = StateResponse(KafkaCode.NONE, None, changed)
                case SummarizeState():
                    answer = StateResponse(KafkaCode.NONE, None, known)
                case WriteState():
                    assert known is not None
                    changed = _written(known, request)
                    if len(changed.batches) > self._limits.batches_max:
                        return _refused(call, KafkaCode.INVALID_REQUEST, "the state has too many batches")
                    if changed.done_count > INT32_MAX:
                        return _refused(call, KafkaCode.INVALID_REQUEST, "too many deliveries are complete")
                case InitializeState() if known is not None and _is_repeated(request, known):
                    pass
                case InitializeState():
                    created_ms = self._wall_ms() if known is None else known.created_ms
                    leader_epoch = NO_EPOCH if known is None else known.leader_epoch
                    epoch = NO_EPOCH if known is None else known.snapshot_epoch
                    changed = ShareState(epoch, request.state_epoch, leader_epoch, request.start_offset, (), created_ms)
                case DeleteState():
                    changed = None
                case _:
                    assert_never(request)
        return Step(self._records(request.key, known, changed), (Answer(call, answer),))

    def _records(self, key: ShareKey, known: ShareState | None, changed: ShareState | None) -> tuple[Record, ...]:
        if changed == known:
            return ()
        value = None
        if changed is not None:
            # A busy share partition changes hundreds of times a second, so this epoch can reach its maximum in months.
            snapshot_epoch = 0 if changed.snapshot_epoch == INT32_MAX else changed.snapshot_epoch + 1
            value = write_snapshot(replace(changed, snapshot_epoch=snapshot_epoch, written_ms=self._wall_ms()))
        record = Record(write_key(key), value)
        self.replay(record)
        return (record,)

    def _problem(self, request: StateRequest, known: ShareState | None) -> StateResponse | None:
        """Return the refusal of a request; None if it is permitted."""
        key = request.key
        if key.partition < 0 or not 0 < len(key.group.encode()) <= self._limits.name_max_bytes:
            return StateResponse(KafkaCode.INVALID_REQUEST, "the group id or the partition is invalid")
        match request:
            case ReadState() | WriteState() if known is None:
                return StateResponse(KafkaCode.INVALID_REQUEST, "the share partition is not initialized")
            case WriteState() if request.leader_epoch < _leader_epoch(known):
                return StateResponse(KafkaCode.FENCED_LEADER_EPOCH, "a later leader has read the state")
            case WriteState() if request.state_epoch != _state_epoch(known):
                return StateResponse(KafkaCode.FENCED_STATE_EPOCH, "the state was initialized anew")
            case WriteState() if request.start_offset < NO_START or _first_bad(request.batches):
                return StateResponse(KafkaCode.INVALID_REQUEST, "an offset is invalid")
            case ReadState() if request.leader_epoch < _leader_epoch(known):
                return StateResponse(KafkaCode.FENCED_LEADER_EPOCH, "a later leader has read the state")
            case InitializeState() if request.state_epoch < _state_epoch(known):
                return StateResponse(KafkaCode.FENCED_STATE_EPOCH, "the state was initialized anew")
            case InitializeState() if request.start_offset < NO_START:
                return StateResponse(KafkaCode.INVALID_REQUEST, "the start offset is invalid")
            case InitializeState() if known is None and len(self._states) >= self._limits.states_max:
                return StateResponse(
                    KafkaCode.POLICY_VIOLATION, f"there are {len(self._states)} share partitions already"
                )
            case _:
                return None

    # -- events that need no work

    def forget(self, call: int, now_ms: int) -> Step:
        """Drop a call.  Each call is answered at once, so there is nothing to drop."""
        return Step()

    def tick(self, now_ms: int) -> Step:
        return Step()

    @property
    def deadline_ms(self) -> int | None:
        return None

    def close(self) -> None:
        """End; see `Machine.close`.  No part of the state refers to this object."""

    def configure(self, limits: ShareStateLimits, now_ms: int) -> Step:
        self._limits = limits
        return Step()


def _refused(call: int, error: KafkaCode, message: str) -> Step:
    return Step(answers=(Answer(call, StateResponse(error, message)),))


def _is_repeated(request: InitializeState, known: ShareState) -> bool:
    """Return whether an initialization may be a late repetition, which must not undo later deliveries.

    A reset always has a state epoch of its own.
    """
    return request.start_offset == NO_START or request.state_epoch == known.state_epoch


def _leader_epoch(known: ShareState | None) -> int:
    return NO_EPOCH if known is None else known.leader_epoch


def _state_epoch(known: ShareState | None) -> int:
    return NO_EPOCH if known is None else known.state_epoch


def _first_bad(batches: tuple[tuple[int, int, object, int], ...]) -> bool:
    """Return whether a batch is empty, has a negative number, or leaves no offset for the next record."""
    return any(not 0 <= first < end <= OFFSET_MAX or deliveries < 0 for first, end, _, deliveries in batches)


def _written(known: ShareState, request: WriteState) -> ShareState:
    start, batches = merged(known.start_offset, known.batches, request.start_offset, request.batches)
    return replace(known, leader_epoch=request.leader_epoch, start_offset=start, batches=batches)
