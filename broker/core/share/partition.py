"""A share partition: which record of a partition is available to a share group, acquired by a member, or done.

Theory of operation
-------------------
Offsets from `start_offset` (SPSO) to `end_offset` (SPEO, exclusive) are in flight, and each has a state:

    Available → Acquired       a member fetches the record; its delivery count grows
    Acquired → Acknowledged    the member accepts it
    Acquired → Available       the member releases it, its lock expires, or the member's session ends
    Acquired → Archived        one of these after too many deliveries; or the member rejects it, or reports a gap
    Acquired → Archiving       instead of Archived, if the group has a dead-letter topic (KIP-1191); never for a gap
    Available → Archived       the log has no record for members at this offset
    Archiving → Archived       its dead letter is written

Offsets below the start are done.  Offsets from the end on are available and were never delivered.  Adjacent offsets of
one state are one run, so batches that are acquired and accepted as a whole cost one run each.  `max_in_flight` bounds
the offsets in flight, and thus the runs.

**Durable before it is answered.**  An acknowledgement only notes the next state (`Status.next`).  The record stays
locked until the save that contains the change is durable: then `saved` applies it, and the client is answered.  If the
save fails, the record is acquired as before, and its lock expires.  Saves are written one after the other; changes that
arrive meanwhile wait for the next save (group commit), so the store sees the changes of each record in their order.

**Soft changes.**  A lock that expires and a session that ends release records at once; the next save carries these
changes too, and nobody waits for it.  If the change is lost, the next leader finds the record available, with the count
that was saved last.

**Dead letters.**  A record becomes Archiving only once this change is durable.  This also holds for a lock that expires
or a session that ends, although their other changes are soft.  So no leader delivers a record that may have a letter.
Then the letter is written, and `buried` notes that the record is Archived.  If the leader fails in between, its
successor finds the record Archiving and writes the letter again.  So a record has at least one letter, and may have
more.  An offset that is Archiving is not done, so the start waits for its letter.

**A new leader.**  The state Acquired is never saved.  A record without a saved state is available, so a record that
was acquired when its leader failed is delivered again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from enum import IntEnum
from itertools import groupby
from typing import Final, NamedTuple

import msgspec
from msgspec.structs import replace

from broker.core.share.ranges import RangeMap, Run
from quorumlog.wire.errors import KafkaCode

FIRST_SAVE: Final = 1
NOTHING_TO_SAVE: Final = 0
"""In place of a save's number: the acknowledgement changes nothing durable and can be answered immediately."""


class Delivery(IntEnum):
    """The state of a record, by the number that it has in Kafka's formats.  ACQUIRED is never stored."""

    AVAILABLE = 0
    ACQUIRED = 1
    ACKNOWLEDGED = 2
    ARCHIVING = 3
    ARCHIVED = 4

    @property
    def is_done(self) -> bool:
        """Return whether the delivery is complete.  A record that is Archiving still needs its dead letter."""
        return self in (Delivery.ACKNOWLEDGED, Delivery.ARCHIVED)


class AckType(IntEnum):
    """The type of an acknowledgement.  GAP: there is no record at this offset.  RENEW: the member needs more time."""

    GAP = 0
    ACCEPT = 1
    RELEASE = 2
    REJECT = 3
    RENEW = 4


class ShareLimits(msgspec.Struct, frozen=True):
    """The limits of a share partition.

    lock_ms: time that a member may keep a record before it becomes available to others.
    delivery_count_max: a record that is released after this many deliveries is not delivered again.
    max_in_flight: offsets between start and end; further records are delivered once the start has moved.
    may_renew: whether a member may renew the locks of its records (KIP-1222).
    has_dead_letters: whether a record that is rejected, or delivered too often, gets a dead letter (KIP-1191).
    """

    lock_ms: int = 30_000
    delivery_count_max: int = 5
    max_in_flight: int = 2_000
    may_renew: bool = True
    has_dead_letters: bool = False

    def __post_init__(self) -> None:
        assert self.lock_ms >= 1, self
        assert self.delivery_count_max >= 1, self
        assert self.max_in_flight >= 1, self


class StateBatch(NamedTuple):
    """The stored state of a range of records.  end: exclusive."""

    first: int
    end: int
    state: Delivery
    deliveries: int


class Acquired(NamedTuple):
    """Records that a member has acquired.  end: exclusive.  deliveries: counts this delivery and the earlier ones."""

    first: int
    end: int
    deliveries: int


class DeadRecords(NamedTuple):
    """Records that wait for their dead letters.  end: exclusive.

    is_rejected: a member rejected them under this leader.  Otherwise they were delivered too often, or this leader does
        not know the reason.
    """

    first: int
    end: int
    deliveries: int
    is_rejected: bool


class Acknowledgement(NamedTuple):
    """A range of records, with one type for all records, or one type for each.  end: exclusive."""

    first: int
    end: int
    types: tuple[int, ...]


class Save(NamedTuple):
    """Changes to write to the store, as one unit.

    done_count: the number of offsets at or above `start_offset` whose delivery is complete.
    """

    id: int
    start_offset: int
    done_count: int
    batches: tuple[StateBatch, ...]


class Status(msgspec.Struct, frozen=True):
    """The state of a run.

    member, deadline_ms: the member that has acquired the records, and the time at which its lock expires.
    next, save: the state that the records get once the save with this number is durable.  None and 0 without a save.
    is_rejected: see `DeadRecords`.
    """

    state: Delivery
    count: int = 0
    member: str = ""
    deadline_ms: int = 0
    next: Delivery | None = None
    save: int = 0
    is_rejected: bool = False


_NEW: Final = Status(Delivery.AVAILABLE)
_HIDDEN: Final = Status(Delivery.ARCHIVED)


class SharePartition:
    """The delivery state of one partition in one share group, at the leader of the partition."""

    def __init__(self, limits: ShareLimits, start_offset: int, batches: Sequence[StateBatch] = ()) -> None:
        """start_offset, batches: as stored.  Offsets between the stored batches have no state, and are available."""
        assert start_offset >= 0, start_offset
        self.limits = limits
        self.start_offset = start_offset
        self.end_offset = max([start_offset, *(each.end for each in batches)])
        self._runs: RangeMap[Status] = RangeMap()
        self._runs.assign(start_offset, self.end_offset, _NEW)
        for each in batches:
            self._runs.assign(max(each.first, start_offset), each.end, Status(each.state, each.deliveries))
        self._changes: list[StateBatch] = []
        """The changes of the next save, in their order."""
        self._next_save = FIRST_SAVE
        self._in_progress: int | None = None
        self._may_have_letters = any(each.state is Delivery.ARCHIVING for each in batches)
        """False: no record waits for its dead letter.  So groups without dead letters do not search for any."""
        self._advance_start()

    # -- fetching

    @property
    def next_fetch_offset(self) -> int:
        """Return the first offset that can be acquired."""
        for run in self._runs:
            if run.value.state is Delivery.AVAILABLE:
                return run.first
        return self.end_offset

    @property
    def may_acquire(self) -> bool:
        """Return whether the next fetch offset lies within the records that may be in flight."""
        return self.next_fetch_offset < self.start_offset + self.limits.max_in_flight

    def acquire(
        self, member: str, batches: Iterable[tuple[int, int]], max_records: int, now_ms: int, *, is_exact: bool = False
    ) -> list[Acquired]:
        """Lock available records for a member, and return them, ascending.

        batches: the ranges of the record batches that were read, ascending, each as first offset and exclusive end.
        max_records: once this many records are acquired, no further batch is begun.  is_exact: acquire no more than
            `max_records`, even if that divides a batch.
        """
        room_end = self.start_offset + self.limits.max_in_flight
        deadline_ms = now_ms + self.limits.lock_ms
        acquired: list[Acquired] = []
        count = 0
        for first, end in batches:
            if count >= max_records:
                break
            end = min(end, room_end)
            if end <= self.start_offset or first >= end:
                continue
            self._extend(first, end)
            for run in self._runs.within(max(first, self.start_offset), end):
                if run.value.state is not Delivery.AVAILABLE or (is_exact and count >= max_records):
                    continue
                run_end = min(run.end, run.first + max_records - count) if is_exact else run.end
                status = Status(Delivery.ACQUIRED, run.value.count + 1, member, deadline_ms)
                self._runs.assign(run.first, run_end, status)
                acquired.append(Acquired(run.first, run_end, status.count))
                count += run_end - run.first
        return _joined(acquired)

    def hide(self, first: int, end: int) -> None:
        """Archive available offsets that have no records for members: control batches and aborted transactions.

        `first` and `end` may be 2^31 offsets apart, because one empty batch may replace that many offsets.
        """
        room_end = min(end, self.start_offset + self.limits.max_in_flight)
        begin = max(first, self.start_offset)
        if begin < room_end:
            self._extend(min(begin, self.end_offset), room_end)
            for run in self._runs.within(begin, room_end):
                if run.value.state is Delivery.AVAILABLE:
                    self._change(run, _HIDDEN)
            self._advance_start()
        if first <= self.start_offset == self.end_offset < end:
            # Nothing is in flight, so `max_in_flight` has no effect.  The changes above are saved with this start.
            self.start_offset = self.end_offset = end

    def _extend(self, first: int, end: int) -> None:
        """Let offsets up to `end` be in flight.  Offsets before `first` that the log no longer has are archived."""
        if first > self.end_offset:
            self._runs.assign(self.end_offset, first, _HIDDEN)
            self.end_offset = first
        if end > self.end_offset:
            self._runs.assign(self.end_offset, end, _NEW)
            self.end_offset = end

    # -- acknowledgements

    def acknowledge(self, member: str, batches: Sequence[Acknowledgement], now_ms: int) -> int | KafkaCode:
        """Note acknowledgements of a member, all or none.  `problem_of` must accept them.

        Return the number of the save that makes them durable, NOTHING_TO_SAVE, or an error that has changed nothing.
        Offsets below the start are done already and are ignored.
        """
        planned: list[tuple[Run[Status], AckType]] = []
        for batch in batches:
            for first, end, kind in _by_type(batch):
                first = max(first, self.start_offset)
                if first >= end:
                    continue
                if first >= self.end_offset:
                    return KafkaCode.INVALID_RECORD_STATE  # an earlier leader may have delivered these records
                if end > self.end_offset:
                    return KafkaCode.INVALID_REQUEST  # nobody has fetched all of these records
                found = self._runs.within(first, end)
                if kind is AckType.RENEW and not self.limits.may_renew:
                    return KafkaCode.INVALID_RECORD_STATE
                if not all(_is_held(run.value, member) for run in found):
                    return KafkaCode.INVALID_RECORD_STATE
                planned += [(run, kind) for run in found]
        save = NOTHING_TO_SAVE
        for run, kind in planned:
            status = run.value
            if kind is AckType.RENEW:
                self._runs.assign(run.first, run.end, replace(status, deadline_ms=now_ms + self.limits.lock_ms))
            else:
                save = self._next_save
                self._note(run, self._next_state(kind, status.count), is_rejected=kind is AckType.REJECT)
        return save

    def _note(self, run: Run[Status], state: Delivery, *, is_rejected: bool) -> None:
        """Let the next save change the state of a run.  Until it is durable, the run keeps its state."""
        is_rejected = is_rejected and state is Delivery.ARCHIVING
        status = replace(run.value, next=state, save=self._next_save, is_rejected=is_rejected)
        self._runs.assign(run.first, run.end, status)
        self._changes.append(StateBatch(run.first, run.end, state, status.count))

    def _next_state(self, kind: AckType, count: int) -> Delivery:
        if kind is AckType.ACCEPT:
            return Delivery.ACKNOWLEDGED
        if kind is AckType.RELEASE and count < self.limits.delivery_count_max:
            return Delivery.AVAILABLE
        if kind is AckType.GAP or not self.limits.has_dead_letters:
            return Delivery.ARCHIVED
        return Delivery.ARCHIVING

    # -- releases that no member asks for

    def expire(self, now_ms: int) -> bool:
        """Release the records whose locks have expired.  Return whether there were any."""
        return self._release(lambda status: status.deadline_ms <= now_ms, given_back=0)

    def release(self, member: str) -> bool:
        """Release the records of a member whose session has ended.  Return whether there were any.

        The delivery does not count: the member has not necessarily seen the records.
        """
        return self._release(lambda status: status.member == member, given_back=1)

    def _release(self, is_meant: Callable[[Status], bool], given_back: int) -> bool:
        meant = [
            run
            for run in self._runs
            if run.value.state is Delivery.ACQUIRED and not run.value.save and is_meant(run.value)
        ]
        for run in meant:
            count = run.value.count - given_back
            state = self._next_state(AckType.RELEASE, count)
            if state is Delivery.ARCHIVING:
                self._note(run._replace(value=replace(run.value, count=count)), state, is_rejected=False)
            else:
                self._change(run, Status(state, count))
        self._advance_start()
        return bool(meant)

    @property
    def deadline_ms(self) -> int | None:
        """Return when the next lock expires; None if no lock can expire.

        A lock does not expire while its record waits for a save.
        """
        locked = (run.value for run in self._runs if run.value.state is Delivery.ACQUIRED and not run.value.save)
        return min((each.deadline_ms for each in locked), default=None)

    # -- dead letters

    @property
    def has_letters(self) -> bool:
        """Return whether records wait for their dead letters."""
        if self._may_have_letters:
            self._may_have_letters = any(_waits_for_letter(run.value) for run in self._runs)
        return self._may_have_letters

    def letters(self, first: int = 0) -> list[DeadRecords]:
        """Return the records from an offset on that wait for their dead letters, ascending."""
        if not self._may_have_letters:
            return []
        return [
            DeadRecords(max(run.first, first), run.end, run.value.count, run.value.is_rejected)
            for run in self._runs
            if run.end > first and _waits_for_letter(run.value)
        ]

    def buried(self, first: int, end: int) -> None:
        """Note that the dead letters for the records of a range were written, or are not needed.

        If the save fails, the next one contains this change again: the letters are not written again.
        """
        for run in self._runs.within(first, end):
            if _waits_for_letter(run.value):
                self._note(run, Delivery.ARCHIVED, is_rejected=False)

    # -- the start of the log

    def follow_log_start(self, log_start: int) -> None:
        """Drop the records that the log no longer has."""
        if log_start > self.start_offset:
            self.start_offset = log_start
            self.end_offset = max(self.end_offset, log_start)
            self._advance_start()

    # -- saves

    @property
    def has_changes(self) -> bool:
        return bool(self._changes)

    def begin_save(self) -> Save | None:
        """Return the changes to write; None if there are none, or while a save is in progress."""
        if self._in_progress is not None or not self._changes:
            return None
        changes: RangeMap[tuple[Delivery, int]] = RangeMap()
        for first, end, state, count in self._changes:
            changes.assign(max(first, self.start_offset), end, (state, count))
        self._changes.clear()
        self._in_progress = self._next_save
        self._next_save += 1
        batches = tuple(StateBatch(run.first, run.end, *run.value) for run in changes)
        return Save(self._in_progress, self.start_offset, self._done_count(), batches)

    def saved(self, save: int, *, is_durable: bool) -> None:
        """End a save.  If it failed, its records are acquired as before, until their locks expire.

        After a failure, records whose dead letters were written become part of the next save instead.
        """
        assert self._in_progress == save, (self._in_progress, save)
        self._in_progress = None
        for run in [each for each in self._runs if each.value.save == save]:
            status = run.value
            assert status.next is not None, run
            if is_durable:
                self._may_have_letters = self._may_have_letters or status.next is Delivery.ARCHIVING
                after = Status(status.next, status.count, is_rejected=status.is_rejected)
                self._runs.assign(run.first, run.end, after)
            elif status.state is Delivery.ARCHIVING:
                self._note(run, status.next, is_rejected=False)
            else:
                self._runs.assign(run.first, run.end, replace(status, next=None, save=0, is_rejected=False))
        self._advance_start()

    def _done_count(self) -> int:
        return sum(run.end - run.first for run in self._runs if (run.value.next or run.value.state).is_done)

    def _change(self, run: Run[Status], status: Status) -> None:
        self._runs.assign(run.first, run.end, status)
        self._changes.append(StateBatch(run.first, run.end, status.state, status.count))

    def _advance_start(self) -> None:
        """Move the start past records that are done, and drop the runs below it."""
        for run in self._runs:
            if run.first > self.start_offset:
                break
            if run.value.state.is_done:
                self.start_offset = max(self.start_offset, run.end)
            elif run.end > self.start_offset:
                break
        self._runs.cut_below(self.start_offset)

    # -- for people and tests

    def runs(self) -> list[Run[Status]]:
        """Return the runs in flight, ascending."""
        return list(self._runs)

    def check(self) -> None:
        """Assert the invariants.  This visits each run, so only tests call it."""
        at = self.start_offset
        for run in self._runs:
            status = run.value
            assert run.first == at < run.end, (run, at)
            assert bool(status.member) == (status.state is Delivery.ACQUIRED), run
            assert (status.next is None) == (status.save == 0), run
            assert not status.save or status.state in (Delivery.ACQUIRED, Delivery.ARCHIVING), run
            at = run.end
        assert at == self.end_offset, (at, self.end_offset)
        assert self.end_offset - self.start_offset <= max(self.limits.max_in_flight, 0), self.start_offset
        first = next(iter(self._runs), None)
        assert first is None or not first.value.state.is_done, first


def _waits_for_letter(status: Status) -> bool:
    return status.state is Delivery.ARCHIVING and not status.save


def _is_held(status: Status, member: str) -> bool:
    return status.state is Delivery.ACQUIRED and not status.save and status.member == member


def _by_type(batch: Acknowledgement) -> Iterable[tuple[int, int, AckType]]:
    """Yield the ranges of one type in an acknowledgement, each with its exclusive end."""
    if len(batch.types) == 1:
        yield batch.first, batch.end, AckType(batch.types[0])
        return
    first = batch.first
    for kind, group in groupby(batch.types):
        end = first + sum(1 for _ in group)
        yield first, end, AckType(kind)
        first = end


def _joined(acquired: list[Acquired]) -> list[Acquired]:
    """Join adjacent ranges of one delivery count."""
    joined: list[Acquired] = []
    for each in acquired:
        if joined and joined[-1].end == each.first and joined[-1].deliveries == each.deliveries:
            joined[-1] = joined[-1]._replace(end=each.end)
        else:
            joined.append(each)
    return joined


def problem_of(batches: Sequence[Acknowledgement], *, may_renew: bool) -> str | None:
    """Return the problem that makes acknowledgements invalid for every share partition; None if they may be valid."""
    highest = AckType.RENEW if may_renew else AckType.REJECT
    end = 0
    for batch in batches:
        if batch.first >= batch.end:
            return f"the last offset {batch.end - 1} is below the first, {batch.first}"
        if batch.first < end:
            return f"offset {batch.first} is acknowledged twice, or the batches are not in order"
        if not batch.types:
            return f"the batch at offset {batch.first} has no acknowledge types"
        if len(batch.types) not in (1, batch.end - batch.first):
            return f"the batch at offset {batch.first} has {len(batch.types)} acknowledge types"
        if not all(AckType.GAP <= kind <= highest for kind in batch.types):
            return f"the batch at offset {batch.first} has an unknown acknowledge type"
        end = batch.end
    return None
