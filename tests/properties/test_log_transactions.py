"""The transactions of a log against a slow twin: the list of all batches, from which everything is computed anew.

The log is appended to, truncated, compacted, restarted and killed.  A reader of committed records follows the rule of
Kafka's consumers: it skips the records of a producer from an aborted transaction's first offset up to its marker.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from broker.core.transactions import Marker, ProducerKey
from broker.log import Appended, PartitionLog
from quorumlog.client.records import NewRecord, Record, build_batch, decode_batches, stamp
from quorumlog.wire.control_records import parse_marker
from quorumlog.wire.record_batch import TRANSACTIONAL_FLAG, iter_headers, parse_header, seal
from tests.contract.conftest import run_simulated
from tests.unit.broker.core.test_transactions import confirmed
from tests.unit.broker.log.compaction_rig import SHAPES, CompactionRig

PRODUCERS = (1, 2, 3)


@dataclass
class Entry:
    """One batch.  producer: -1 without a transaction.  ends: the decision in a marker; None for records."""

    offset: int
    end: int
    producer: int
    ends: bool | None = None
    records: list[Record] = field(default_factory=list)


def first_offsets(entries: list[Entry]) -> Iterator[tuple[int, Entry | None, list[Entry]]]:
    """Yield the first offset, the marker and the batches of each transaction."""
    opened: dict[int, list[Entry]] = {}
    for entry in entries:
        if entry.producer < 0:
            continue
        if entry.ends is None:
            opened.setdefault(entry.producer, []).append(entry)
        elif entry.producer in opened:
            batches = opened.pop(entry.producer)
            yield batches[0].offset, entry, batches
    for batches in opened.values():
        yield batches[0].offset, None, batches


class Twin:
    def __init__(self, rig: CompactionRig) -> None:
        self.rig = rig
        self.entries: list[Entry] = []

    @property
    def log(self) -> PartitionLog:
        return self.rig.log

    def write(self, producer: int) -> None:
        random = self.rig.random
        pairs = [(b"key-%d" % random.randrange(6), bytes(random.randrange(40))) for _ in range(random.randint(1, 3))]
        batch = build_batch([NewRecord(key, value, timestamp_ms=1_000) for key, value in pairs])
        token = None
        if producer >= 0:
            known = self.log.producers.get(producer)
            stamp(batch, producer, 0, 0 if known is None else known.last_sequence + 1)
            header = parse_header(batch)
            seal(batch, header._replace(attributes=header.attributes | TRANSACTIONAL_FLAG))
            token = confirmed(self.log.producers, parse_header(batch).producer_id)
        appended = self.log.append_as_leader(batch, self.rig.epoch, 0, token)
        assert isinstance(appended, Appended), appended
        records = list(decode_batches(self.log.read(appended.first_offset, 1, appended.end_offset)))
        self.entries.append(Entry(appended.first_offset, appended.end_offset, producer, None, records))

    def mark(self, producer: int, *, commit: bool) -> None:
        appended = self.log.append_marker(Marker(ProducerKey(producer, 0), commit, 0), 1_000, self.rig.epoch, 0)
        assert isinstance(appended, Appended), appended
        self.entries.append(Entry(appended.first_offset, appended.end_offset, producer, commit))

    def cut(self) -> None:
        self.entries = [one for one in self.entries if one.end <= self.log.end_offset]

    def stable(self) -> int:
        watermark = self.log.high_watermark
        held = [
            first for first, marker, _ in first_offsets(self.entries) if marker is None or marker.offset >= watermark
        ]
        return max(min([watermark, *held]), self.log.start_offset)

    def committed(self, end: int) -> list[Record]:
        hidden = {
            record.offset
            for _, marker, batches in first_offsets(self.entries)
            if marker is None or not marker.ends
            for batch in batches
            for record in batch.records
        }
        records = [record for entry in self.entries if entry.end <= end for record in entry.records]
        return [one for one in records if one.offset not in hidden]

    def read(self, offset: int) -> list[Record]:
        """Return the records that a reader of committed records gets from `offset` on."""
        log, found = self.log, []
        end = log.last_stable_offset
        while offset < end:
            data = log.read(offset, self.rig.random.randint(1, 600), end)
            if not data:  # the watermark lies within the next batch
                break
            queue = sorted(log.aborted_in(data, offset), key=lambda one: one.first_offset)
            skipped = set()
            for position, header in iter_headers(data):
                while queue and queue[0].first_offset <= header.last_offset:
                    skipped.add(queue.pop(0).producer_id)
                if header.is_control:
                    marker = parse_marker(data, header, position)
                    assert marker is not None
                    if not marker.is_commit:
                        skipped.discard(header.producer_id)
                elif not (header.is_transactional and header.producer_id in skipped):
                    batch = data[position : position + header.size]
                    found += list(decode_batches(batch, offset))
                last = header.end_offset
            offset = last
        return found

    def check(self) -> None:
        log = self.log
        stable = self.stable()
        assert log.last_stable_offset == stable
        wanted = self.committed(stable)
        by_offset = {one.offset: one for one in wanted}
        newest = {one.key: one.offset for one in wanted}
        for offset in (log.start_offset, self.rig.random.randint(log.start_offset, max(log.start_offset, stable))):
            found = self.read(offset)
            assert all(by_offset.get(one.offset) == one for one in found), "a record that is not committed"
            kept = {one.offset for one in found}
            assert kept >= {one for one in newest.values() if one >= offset}, "a committed record is missing"
            # Everything above the part that may be compacted is still there.
            assert kept >= {one.offset for one in wanted if one.offset >= max(offset, self.rig.limit)}
        opened = {one[2][0].producer: one[0] for one in first_offsets(self.entries) if one[1] is None}
        assert log.producers.transactions.open == opened


async def live(rig: CompactionRig, steps: int) -> None:
    random = rig.random
    await rig.start()
    twin = Twin(rig)
    for _ in range(steps):
        action = random.random()
        if action < 0.55:
            for _ in range(random.randint(1, 5)):
                if random.random() < 0.35:
                    twin.mark(random.choice(PRODUCERS), commit=random.random() < 0.5)
                else:
                    twin.write(random.choice((-1, *PRODUCERS)))
        elif action < 0.65:
            rig.wall_ms += random.randrange(1_500)
        elif action < 0.72:
            rig.log.roll_aged(rig.wall_ms + 10**10)
        elif action < 0.80:
            await rig.logs.flush_all([rig.log])
            rig.log.advance_high_watermark(random.randint(rig.log.high_watermark, rig.log.end_offset))
            if random.random() < 0.5:
                await rig.logs.checkpoint([rig.log])
        elif action < 0.90:
            await rig.settle()
            await rig.clean()
        elif action < 0.94:
            rig.truncate_to(random.randint(rig.log.high_watermark, rig.log.end_offset))
            await rig.logs.flush_all([rig.log])  # nothing may be appended before the truncation is durable
            twin.cut()
        else:
            await rig.crash(random.choice(["kill", "power cut"]))
            twin.cut()
        twin.check()
    for producer in PRODUCERS:
        twin.mark(producer, commit=True)
    await rig.settle()
    twin.check()
    await rig.logs.close()


@settings(max_examples=80, deadline=None)
@given(steps=st.integers(1, 40), **SHAPES)
def test_a_reader_sees_exactly_the_committed_records(
    seed: int, steps: int, torn: bool, segment_size: int, map_entries: int
) -> None:
    rig = CompactionRig(seed, torn=torn, segment_size=segment_size, map_entries=map_entries)
    run_simulated(lambda: live(rig, steps))
    assert rig.log.last_stable_offset == rig.log.end_offset, "all transactions have ended"


def test_compaction_that_removes_the_marker_of_an_aborted_transaction_also_drops_its_index_entry() -> None:
    """A reader that got the entry would skip later records of the producer, because no marker follows."""
    rig = CompactionRig(1, segment_size=3_000)

    async def scenario() -> None:
        await rig.start()
        twin = Twin(rig)
        twin.write(1)
        twin.mark(1, commit=False)
        for _ in range(6):  # the last batches and the last marker of a producer stay
            twin.write(1)
            twin.mark(1, commit=True)
        for number in range(3):
            rig.log.roll_aged(10**10 * (number + 1))
            twin.write(-1)
            await rig.settle()
            await rig.clean()
            twin.check()
            rig.wall_ms += 5_000
        assert rig.log.producers.transactions.aborted_count == 0
        await rig.crash("kill")
        assert rig.log.producers.transactions.aborted_count == 0
        twin.check()
        await rig.logs.close()

    run_simulated(scenario)
