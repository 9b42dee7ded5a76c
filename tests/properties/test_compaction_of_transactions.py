"""Compaction of a log with transactions against a slow, obvious twin: the list of all batches and markers."""

from __future__ import annotations

import asyncio
from typing import NamedTuple

from hypothesis import given, settings
from hypothesis import strategies as st

from broker.core.producer_state import ProducerState
from broker.core.transactions import Marker, ProducerKey
from broker.log import Appended
from broker.log.producers import read_marker
from quorumlog.client.records import NewRecord, Record, build_batch, decode_batches, stamp
from quorumlog.wire.record_batch import TRANSACTIONAL_FLAG, BatchHeader, iter_headers, parse_header, seal
from tests.contract.conftest import run_simulated
from tests.unit.broker.core.test_transactions import confirmed
from tests.unit.broker.log.compaction_rig import RETENTION_MS, SHAPES, CompactionRig, read_all


class Entry(NamedTuple):
    """A batch with its records, or a marker."""

    header: BatchHeader
    records: tuple[Record, ...]
    marker: Marker | None


class TransactionRig(CompactionRig):
    """The log and its twin.  entries: everything that was appended and not truncated."""

    def __init__(self, seed: int, *, torn: bool, segment_size: int, map_entries: int) -> None:
        super().__init__(seed, torn=torn, segment_size=segment_size, map_entries=map_entries)
        self.entries: list[Entry] = []

    def append_random(self) -> None:
        """Append a marker, or a batch of no producer, of an idempotent one, or of a transactional one."""
        random, producers = self.random, self.log.producers
        producer_id = random.choice([-1, -1, 1, 2, 3])
        known = producers.get(producer_id)
        is_open = producer_id in producers.transactions.open
        if known is not None and is_open and random.random() < 0.4:
            raised = known.epoch + (random.random() < 0.4)
            marker = Marker(ProducerKey(producer_id, raised), random.random() < 0.5, 0)
            time = random.randrange(1_000, 9_000)
            self._note(self.log.append_marker(marker, time, self.epoch, 0))
            return
        pairs = [
            (b"key-%d" % random.randrange(8), None if random.random() < 0.2 else bytes(random.randrange(60)))
            for _ in range(random.randint(1, 4))
        ]
        times = [random.randrange(1_000, 9_000) for _ in pairs]
        batch = bytearray(build_batch([NewRecord(*pair, time) for pair, time in zip(pairs, times, strict=True)]))
        token = None
        if producer_id >= 0:
            epoch = 0 if known is None else known.epoch
            if known is not None and not is_open and random.random() < 0.2:
                epoch += 1
            stamp(batch, producer_id, epoch, producers.expected_sequence(producer_id, epoch))
            if is_open or random.random() < 0.6:
                header = parse_header(batch)
                seal(batch, header._replace(attributes=header.attributes | TRANSACTIONAL_FLAG))
                token = confirmed(producers, producer_id, epoch)
        self._note(self.log.append_as_leader(bytes(batch), self.epoch, 0, token))

    def _note(self, outcome: object) -> None:
        assert isinstance(outcome, Appended), outcome
        data = self.log.read(outcome.first_offset, 1, outcome.end_offset)
        header = parse_header(data)
        records = () if header.is_control else tuple(decode_batches(data))
        self.entries.append(Entry(header, records, read_marker(data, header) if header.is_control else None))

    def _forget_end(self) -> None:
        end = self.log.end_offset
        self.entries = [one for one in self.entries if one.header.end_offset <= end]

    def check(self) -> None:
        twin = ProducerState()
        for header, _, marker in self.entries:
            twin.apply(header, header.base_offset, header.end_offset, marker)
        alone, kept = ProducerState(), dict[int, Record]()
        batches = read_all(self.log)
        headers = list(iter_headers(batches))
        for position, header in headers:
            batch = batches[position : position + header.size]
            marker = read_marker(batch, header) if header.is_control else None
            alone.apply(header, header.base_offset, header.end_offset, marker)
            if not header.is_control:
                kept.update({one.offset: one for one in decode_batches(batch)})
        memory = self.log.producers
        assert _described(memory) == _described(alone) == _described(twin)
        for _, header in headers:
            if header.record_count and not header.is_control:
                assert _is_aborted(memory, header) == _is_aborted(alone, header) == _is_aborted(twin, header), header
        self._check_records(twin, kept)

    def _check_records(self, twin: ProducerState, kept: dict[int, Record]) -> None:
        stable = twin.transactions.stable_offset(self.log.end_offset)
        latest: dict[bytes | None, Record] = {}
        committed = set[int]()
        for header, records, _ in self.entries:
            for record in records:
                assert record.offset not in kept or kept[record.offset] == record
                assert record.offset in kept or record.offset < self.limit
            if header.base_offset < stable and not _is_aborted(twin, header):
                latest.update({one.key: one for one in records})
                committed.update(one.offset for one in records)
        for key, record in latest.items():
            age = self.wall_ms - self.first_cleaned.get(record.offset, self.wall_ms)
            if record.offset not in kept:
                assert record.value is None, f"{record} is lost"
                assert age >= RETENTION_MS, f"{record} was removed too early"
                assert not [one for one in kept.values() if one.key == key and one.offset in committed]


def _described(state: ProducerState) -> object:
    producers = [(one, each.epoch, each.coordinator_epoch, each.last_marker, [*each.recent]) for one, each in state]
    return producers, state.transactions.open


def _is_aborted(state: ProducerState, header: BatchHeader) -> bool:
    rows = state.transactions.aborted_between(header.base_offset, header.end_offset)
    return header.is_transactional and header.producer_id in [one.producer_id for one in rows]


async def live(rig: TransactionRig, steps: int) -> None:
    random = rig.random
    await rig.start()
    for _ in range(steps):
        for _ in range(random.randint(0, 6)):
            rig.append_random()
        rig.wall_ms += random.choice([0, 500, 2_000])
        if random.random() < 0.3:
            rig.log.roll_aged(rig.wall_ms + 10**10)
        await rig.settle()
        action = random.random()
        if 0.7 <= action < 0.9:  # these are not committed, but the first of them may seal a segment
            for _ in range(random.randint(0, 8)):
                rig.append_random()
        rig.limit = max(rig.limit, rig.log.compaction.dirty(rig.config, rig.wall_ms).limit)
        if action < 0.5:
            await rig.clean()
            assert not rig.cleaner.uncleanable, rig.cleaner.uncleanable
        elif action < 0.7:
            task = asyncio.get_running_loop().create_task(rig.cleaner.clean_next())
            await asyncio.sleep(random.uniform(0, 0.03))
            await rig.crash(random.choice(["kill", "power cut"]), task)
            rig.note_cleaned()
        elif action < 0.9:
            task = asyncio.get_running_loop().create_task(rig.cleaner.clean_next())
            await asyncio.sleep(random.uniform(0, 0.02))
            rig.truncate_to(random.randint(rig.log.truncation_floor, rig.log.end_offset))
            await task
            rig.cleaner.uncleanable.clear()  # a log that has changed is tried again later
            rig.note_cleaned()
        else:
            await rig.stop_and_start()
        rig.check()
    await rig.logs.close()


@settings(max_examples=50, deadline=None)
@given(steps=st.integers(1, 40), **SHAPES)
def test_compaction_keeps_transactions_and_the_latest_committed_value_of_each_key(
    seed: int, steps: int, torn: bool, segment_size: int, map_entries: int
) -> None:
    rig = TransactionRig(seed, torn=torn, segment_size=segment_size, map_entries=map_entries)
    run_simulated(lambda: live(rig, steps))
