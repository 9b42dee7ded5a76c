"""Share partitions against a slow twin that stores the state of each record separately."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from broker.core.share.partition import (
    Acknowledgement,
    AckType,
    Delivery,
    Save,
    ShareLimits,
    SharePartition,
    StateBatch,
)
from broker.core.share.ranges import RangeMap
from quorumlog.wire.errors import KafkaCode

END = 40
LIMITS = ShareLimits(lock_ms=10, delivery_count_max=3, max_in_flight=25)
WITH_LETTERS = replace(LIMITS, has_dead_letters=True)
MEMBERS = ("a", "b", "c")


@dataclass
class Record:
    """The twin's state of one record.  next: the state that a save gives it, with the number of the save."""

    state: Delivery = Delivery.AVAILABLE
    count: int = 0
    member: str = ""
    deadline_ms: int = 0
    next: tuple[Delivery, int] | None = None


@dataclass
class Twin:
    """One object for each record.

    stored: what the durable saves contain.  accepted: answered with success.  letters: the records of which a dead
    letter was written, at least once.  gaps: those of which a member reported that they do not exist.
    """

    limits: ShareLimits = LIMITS
    letters: set[int] = field(default_factory=set)
    gaps: set[int] = field(default_factory=set)
    records: dict[int, Record] = field(default_factory=lambda: {offset: Record() for offset in range(END)})
    delivered: set[int] = field(default_factory=set)
    accepted: set[int] = field(default_factory=set)
    stored: dict[int, tuple[Delivery, int]] = field(default_factory=dict)

    def acquire(self, member: str, first: int, end: int, count: int, now_ms: int) -> None:
        for offset in range(first, end):
            record = self.records[offset]
            assert record.state is Delivery.AVAILABLE, f"{offset} is delivered while it is {record.state}"
            assert offset not in self.accepted, f"{offset} is delivered after its acceptance"
            assert offset not in self.letters, f"{offset} is delivered after its dead letter"
            assert count == record.count + 1 <= LIMITS.delivery_count_max
            self.records[offset] = Record(Delivery.ACQUIRED, count, member, now_ms + LIMITS.lock_ms)
            self.delivered.add(offset)

    def acknowledge(self, member: str, first: int, end: int, kind: AckType, save: int, now_ms: int) -> None:
        for offset in range(first, end):
            record = self.records[offset]
            assert (record.state, record.member, record.next) == (Delivery.ACQUIRED, member, None)
            if kind is AckType.RENEW:
                record.deadline_ms = now_ms + LIMITS.lock_ms
            else:
                record.next = (self.after(kind, record.count), save)
                if kind is AckType.GAP:
                    self.gaps.add(offset)

    def after(self, kind: AckType, count: int) -> Delivery:
        if kind is AckType.ACCEPT:
            return Delivery.ACKNOWLEDGED
        if kind is AckType.RELEASE and count < LIMITS.delivery_count_max:
            return Delivery.AVAILABLE
        return Delivery.ARCHIVING if self.limits.has_dead_letters and kind is not AckType.GAP else Delivery.ARCHIVED

    def bury(self, first: int, end: int, save: int) -> None:
        for offset in range(first, end):
            record = self.records[offset]
            assert (record.state, record.next) == (Delivery.ARCHIVING, None)
            assert self.stored[offset][0] is Delivery.ARCHIVING, "a letter is written only once that is durable"
            assert offset not in self.accepted
            self.letters.add(offset)
            record.next = (Delivery.ARCHIVED, save)

    def release(self, member: str | None, now_ms: int, save: int) -> None:
        for record in self.records.values():
            is_meant = record.deadline_ms <= now_ms if member is None else record.member == member
            if record.state is Delivery.ACQUIRED and record.next is None and is_meant:
                record.count -= member is not None
                after = self.after(AckType.RELEASE, record.count)
                if after is Delivery.ARCHIVING:
                    record.next = (after, save)
                else:
                    record.state, record.member = after, ""

    def saved(self, save: Save, is_durable: bool, next_save: int) -> None:
        for offset, record in self.records.items():
            if record.next is not None and record.next[1] == save.id:
                if is_durable:
                    record.state, record.member = record.next[0], ""
                    if record.state is Delivery.ACKNOWLEDGED:
                        self.accepted.add(offset)
                is_repeated = not is_durable and record.next[0] is Delivery.ARCHIVED and offset in self.letters
                record.next = (Delivery.ARCHIVED, next_save) if is_repeated else None
        if is_durable:
            for batch in save.batches:
                self.stored.update(dict.fromkeys(range(batch.first, batch.end), (batch.state, batch.deliveries)))

    def compare(self, share: SharePartition) -> None:
        for run in share.runs():
            for offset in range(run.first, run.end):
                record, status = self.records[offset], run.value
                assert (record.state, record.count, record.member) == (status.state, status.count, status.member)
                assert (None if record.next is None else record.next[0]) == status.next
        done = [record.state.is_done for record in self.records.values()]
        assert all(done[: share.start_offset])
        assert all(self.records[offset] == Record() for offset in range(share.end_offset, END))
        assert share.start_offset == share.end_offset or not done[share.start_offset]


steps = st.lists(
    st.one_of(
        st.tuples(st.just("fetch"), st.sampled_from(MEMBERS), st.integers(1, 9), st.booleans()),
        st.tuples(st.just("ack"), st.sampled_from(MEMBERS), st.sampled_from(list(AckType)), st.integers(0, 8)),
        st.tuples(st.just("wild"), st.sampled_from(MEMBERS), st.integers(0, END), st.integers(1, 9)),
        st.tuples(st.just("save")),
        st.tuples(st.just("saved"), st.booleans()),
        st.tuples(st.just("pass"), st.integers(0, 12)),
        st.tuples(st.just("leave"), st.sampled_from(MEMBERS)),
        st.tuples(st.just("letter"), st.integers(1, 3), st.integers(1, 9)),
        st.tuples(st.just("failover")),
    ),
    max_size=60,
)


@settings(max_examples=150)
@given(steps=steps, size=st.integers(1, 6), limits=st.sampled_from([LIMITS, WITH_LETTERS]))
def test_no_record_is_lost_or_acquired_twice_at_a_time_or_delivered_after_its_acceptance(
    steps: list[tuple],  # type: ignore[type-arg]  # hypothesis draws tuples of several shapes
    size: int,
    limits: ShareLimits,
) -> None:
    share, twin, now_ms = SharePartition(limits, 0), Twin(limits), 0
    batches = [(first, min(first + size, END)) for first in range(0, END, size)]
    begun: Save | None = None
    for name, *values in steps:
        if name == "fetch":
            member, most, is_exact = values
            readable = [each for each in batches if each[1] > share.next_fetch_offset]
            for first, end, count in share.acquire(member, readable, most, now_ms, is_exact=is_exact):
                twin.acquire(member, first, end, count, now_ms)
        elif name == "ack":
            member, kind, most = values
            held = [run for run in share.runs() if run.value.member == member and not run.value.save]
            for run in held[:1]:
                end = min(run.end, run.first + most + 1)
                save = share.acknowledge(member, [Acknowledgement(run.first, end, (kind,))], now_ms)
                assert not isinstance(save, KafkaCode)
                twin.acknowledge(member, run.first, end, kind, save, now_ms)
        elif name == "wild":
            member, first, length = values
            may = all(
                offset < share.start_offset
                or (twin.records[offset].member == member and twin.records[offset].next is None)
                for offset in range(first, min(first + length, END))
            )
            if not (may and first + length <= share.end_offset):
                refusal = share.acknowledge(member, [Acknowledgement(first, first + length, (1,))], now_ms)
                assert isinstance(refusal, KafkaCode)
        elif name == "save" and begun is None:
            begun = share.begin_save()
        elif name == "saved" and begun is not None:
            share.saved(begun.id, is_durable=values[0])
            twin.saved(begun, values[0], share._next_save)
            begun = None
        elif name == "pass":
            now_ms += values[0]
            share.expire(now_ms)
            twin.release(None, now_ms, share._next_save)
        elif name == "leave":
            share.release(values[0])
            twin.release(values[0], now_ms, share._next_save)
        elif name == "letter":
            skipped, most = values
            for first, end, *_ in share.letters()[skipped - 1 : skipped]:
                end = min(end, first + most)
                twin.bury(first, end, share._next_save)
                share.buried(first, end)
        elif name == "failover":
            stored = [StateBatch(offset, offset + 1, *state) for offset, state in sorted(twin.stored.items())]
            share, begun = SharePartition(limits, 0, stored), None
            for offset in range(END):
                state, count = twin.stored.get(offset, (Delivery.AVAILABLE, 0))
                twin.records[offset] = Record(state, count)
        share.check()
        twin.compare(share)
    # Heal: everything that is left is fetched and accepted.
    if begun is not None:
        share.saved(begun.id, is_durable=True)
        twin.saved(begun, True, share._next_save)
    for _ in range(3 * END):
        now_ms += LIMITS.lock_ms
        for first, end, *_ in share.letters():
            twin.bury(first, end, share._next_save)
            share.buried(first, end)
        share.expire(now_ms)
        twin.release(None, now_ms, share._next_save)
        for first, end, count in share.acquire("a", batches, END, now_ms):
            twin.acquire("a", first, end, count, now_ms)
            save = share.acknowledge("a", [Acknowledgement(first, end, (AckType.ACCEPT,))], now_ms)
            assert not isinstance(save, KafkaCode)
            twin.acknowledge("a", first, end, AckType.ACCEPT, save, now_ms)
        begun = share.begin_save()
        if begun is not None:
            share.saved(begun.id, is_durable=True)
            twin.saved(begun, True, share._next_save)
    assert share.start_offset == END
    assert twin.delivered == set(range(END)), "every record is delivered at least once"
    assert not share.has_letters
    assert bool(twin.letters) <= limits.has_dead_letters
    archived = {offset for offset, record in twin.records.items() if record.state is Delivery.ARCHIVED}
    if limits.has_dead_letters:
        assert archived - twin.gaps <= twin.letters, "every record that is archived has a dead letter"
    assert not twin.letters & twin.accepted


@given(
    st.lists(
        st.one_of(
            st.tuples(st.integers(0, 30), st.integers(0, 12), st.integers(0, 2)),
            st.tuples(st.integers(0, 30)),
        )
    )
)
def test_a_range_map_equals_a_dict(changes: list[tuple[int, ...]]) -> None:
    fast: RangeMap[int] = RangeMap()
    slow: dict[int, int] = {}
    for change in changes:
        if len(change) == 1:
            fast.cut_below(change[0])
            slow = {offset: value for offset, value in slow.items() if offset >= change[0]}
        else:
            first, length, value = change
            fast.assign(first, first + length, value)
            slow.update(dict.fromkeys(range(first, first + length), value))
        assert {at: run.value for run in fast for at in range(run.first, run.end)} == slow
        runs = list(fast)
        assert all(one.end < two.first or one.value != two.value for one, two in pairwise(runs))
        within = {at: run.value for run in fast.within(5, 15) for at in range(run.first, run.end)}
        assert within == {at: value for at, value in slow.items() if 5 <= at < 15}
