"""A compacted log on a simulated disk, beside a slow and obvious twin: the list of all records ever appended."""

from __future__ import annotations

import asyncio
from random import Random
from uuid import UUID

from hypothesis import strategies as st

from broker.core.cleaning import CleaningPolicy
from broker.core.producer_state import ProducerState
from broker.log import Appended, LogConfig, LogKey, LogManager, PartitionLog
from broker.log.cleaner import CleanerLimits, LogCleaner
from broker.log.cleaning.offset_map import ENTRY_SIZE
from broker.log.cleaning.ports import CleanWorker, LocalWorker
from quorumlog.client.records import NewRecord, Record, build_batch, decode_batches, stamp
from quorumlog.runtime.disk import Disk
from quorumlog.wire.record_batch import DELETE_HORIZON_FLAG, BatchHeader, Codec, iter_headers, parse_header, patch
from simulation.kernel.disk import DiskImage, SimulatedDisk

KEY = LogKey(UUID(int=9), 0, 3)
FOLLOWER = LogKey(UUID(int=9), 1, 4)
RETENTION_MS = 1_000
Pair = tuple[bytes | None, bytes | None]


def compacted(segment_size: int = 600) -> LogConfig:
    return LogConfig(
        segment_size_max=segment_size,
        index_interval=150,
        deletes=False,
        compacts=True,
        delete_retention_ms=RETENTION_MS,
        compaction=CleaningPolicy(min_dirty_ratio=0.0),
    )


def batch_at(offset: int, *pairs: Pair, codec: Codec = Codec.NONE, epoch: int = 0, producer: int = -1) -> bytes:
    batch = build_batch(
        [NewRecord(key, value, timestamp_ms=1_000 + at) for at, (key, value) in enumerate(pairs)], codec
    )
    if producer >= 0:
        stamp(batch, producer, 0, 0)
    patch(batch, offset, epoch)
    return bytes(batch)


def read_all(log: PartitionLog, offset: int | None = None) -> bytes:
    data = b""
    offset = log.start_offset if offset is None else offset
    while offset < log.end_offset:
        piece = log.read(offset, 300, log.end_offset)
        assert piece, offset
        data += piece
        offset = [header.end_offset for _, header in iter_headers(piece)][-1]
    return data


def records_of(log: PartitionLog) -> list[Record]:
    return list(decode_batches(read_all(log)))


SHAPES = {
    "seed": st.integers(0, 2**32),
    "torn": st.booleans(),
    "segment_size": st.sampled_from([250, 600, 3_000]),
    "map_entries": st.sampled_from([1, 3, 1_000]),
}
"""The arguments of a rig, for `given`."""


class CompactionRig:
    """The log, its twin, and checks that a cleaning keeps what it must.

    records: the twin.  limit: end of everything that a cleaning was allowed to change.
    others: further directories, to which the log may move.
    """

    def __init__(self, seed: int, *, torn: bool = False, segment_size: int = 600, map_entries: int = 1_000) -> None:
        self.random = Random(seed)
        self.disk = SimulatedDisk(self.random, torn=torn)
        self.others: list[Disk] = []
        self.config = compacted(segment_size)
        self.limits = CleanerLimits(map_memory=map_entries * ENTRY_SIZE)
        self.worker: CleanWorker = LocalWorker()
        self.records: list[Record] = []
        self.headers: list[BatchHeader] = []
        self.epoch = 0
        self.wall_ms = 10_000
        self.limit = 0
        self.first_cleaned: dict[int, int] = {}
        self.logs: LogManager
        self.cleaner: LogCleaner

    @property
    def log(self) -> PartitionLog:
        return self.logs.logs[KEY]

    async def start(self) -> None:
        self.logs = LogManager([self.disk, *self.others])
        await self.logs.open()
        assert not self.logs.failures, self.logs.failures
        if KEY not in self.logs.logs:
            self.logs.create(KEY, "t", self.disk.directory_id, self.config)
        self.log.config = self.config
        self.logs.cautious_ms = lambda wall_ms, now_ms: wall_ms  # type: ignore[method-assign]
        self.cleaner = LogCleaner(self.logs, self.worker, self.limits, lambda: self.wall_ms)

    # -- changes

    def append(self, *pairs: tuple[bytes | None, bytes | None], codec: Codec = Codec.NONE, producer: int = -1) -> None:
        """Append one batch of these keys and values."""
        records = [NewRecord(key, value, timestamp_ms=self.random.randrange(1_000, 9_000)) for key, value in pairs]
        batch = build_batch(records, codec)
        if producer >= 0:
            known = self.producers().get(producer)
            stamp(batch, producer, 0, 0 if known is None else known.last_sequence + 1)
        outcome = self.log.append_as_leader(batch, self.epoch, 0)
        assert isinstance(outcome, Appended), outcome
        data = self.log.read(outcome.first_offset, 1, outcome.end_offset)
        self.headers.append(parse_header(data))
        self.records += decode_batches(data)

    def append_random(self) -> None:
        random = self.random
        pairs: list[tuple[bytes | None, bytes | None]] = []
        for _ in range(random.randint(1, 4)):
            value = None if random.random() < 0.2 else bytes(random.randrange(60))
            pairs.append((b"key-%d" % random.randrange(12), value))
        codec = random.choice([Codec.NONE, Codec.NONE, Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD])
        self.epoch += random.random() < 0.05
        self.append(*pairs, codec=codec, producer=random.choice([-1, -1, 1, 2, 3]))

    async def settle(self) -> None:
        """Make everything durable and committed."""
        await self.logs.flush_all([self.log])
        self.log.advance_high_watermark(self.log.end_offset)
        await self.logs.checkpoint([self.log])

    async def clean(self) -> bool:
        log = self.log
        self.limit = max(self.limit, log.compaction.dirty(log.config, self.wall_ms).limit)
        did = await self.cleaner.clean_next()
        self.note_cleaned()
        return did

    def note_cleaned(self) -> None:
        """Note when each tombstone was first compacted.  A cleaning that was interrupted later counts as well."""
        for _, header in iter_headers(read_all(self.log)):
            if header.attributes & DELETE_HORIZON_FLAG:
                for offset in range(header.base_offset, header.end_offset):
                    self.first_cleaned.setdefault(offset, header.base_timestamp - RETENTION_MS)

    def truncate_to(self, offset: int) -> None:
        """Truncate records that are not committed; a later leader appends others."""
        self.log.truncate_to(max(offset, self.log.high_watermark))
        self._forget_end()
        self.epoch += 1

    # -- ends of the process

    async def end(self, image: DiskImage, *tasks: asyncio.Task[bool]) -> None:
        """End the process so abruptly that it leaves the disk as in `image`, and start another one."""
        for task in (*tasks, *self.logs._tasks):
            task.cancel()
        await asyncio.gather(*tasks, *self.logs._tasks, return_exceptions=True)
        if self.cleaner._swap is not None:
            self.cleaner._swap.cancel()
            await asyncio.gather(self.cleaner._swap, return_exceptions=True)
        self.disk.restore(image)
        self.disk.repaired()
        await self.start()
        self.after_start()

    async def crash(self, how: str, *tasks: asyncio.Task[bool]) -> None:
        if how == "power cut":
            self.disk.crash()
        else:
            self.disk.process_ends()
        await self.end(self.disk.image(), *tasks)

    async def stop_and_start(self) -> None:
        await self.logs.close()
        await self.start()
        assert self.logs.clean_start
        self.after_start()

    def after_start(self) -> None:
        """Drop the expected records that a crash has removed from the end of the log."""
        self._forget_end()
        self.log.advance_high_watermark(self.log.end_offset)

    def _forget_end(self) -> None:
        end = self.log.end_offset
        self.records = [one for one in self.records if one.offset < end]
        self.headers = [one for one in self.headers if one.end_offset <= end]

    # -- checks

    def producers(self) -> ProducerState:
        state = ProducerState()
        for header in self.headers:
            state.apply(header, header.base_offset, header.end_offset)
        return state

    def check(self) -> None:
        log = self.log
        found = records_of(log)
        by_offset = {one.offset: one for one in self.records}
        assert log.end_offset == (self.headers[-1].end_offset if self.headers else 0)
        assert [one.offset for one in found] == sorted({one.offset for one in found})
        for record in found:
            assert record == by_offset[record.offset]
        kept = {one.offset for one in found}
        assert kept >= {one.offset for one in self.records if one.offset >= self.limit}
        for record in {one.key: one for one in self.records}.values():
            age = self.wall_ms - self.first_cleaned.get(record.offset, self.wall_ms)
            if record.value is None and age >= RETENTION_MS:
                assert record.offset in kept or all(one.key != record.key for one in found), record
            else:
                assert record.offset in kept, record
        self.check_state()

    def check_state(self) -> None:
        """Check that producers and epochs are the same, in memory and computed from the log alone."""
        log = self.log
        wanted = self.producers().snapshot()
        assert log.producers.snapshot() == wanted
        state = ProducerState()
        for _, header in iter_headers(read_all(log)):
            state.apply(header, header.base_offset, header.end_offset)
            assert log.epochs.epoch_of(header.last_offset) == header.leader_epoch
        assert state.snapshot() == wanted
        for header in self.headers:
            assert log.epochs.epoch_of(header.base_offset) == header.leader_epoch

    def check_clean(self) -> None:
        """Check that each key has one record in the clean part."""
        keys = [one.key for one in records_of(self.log) if one.offset < self.log.marks.cleaned_offset]
        assert len(keys) == len(set(keys))

    async def check_times(self) -> None:
        found = records_of(self.log)
        for _ in range(3):
            time = self.random.randrange(9_500)
            place = await self.log.offset_for_timestamp(time, self.log.end_offset)
            wanted = next((one for one in found if one.timestamp_ms >= time), None)
            assert (place and place.offset) == (wanted and wanted.offset)
        newest = await self.log.max_timestamp_offset(self.log.end_offset)
        assert (newest and newest.timestamp) == max((one.timestamp_ms for one in found), default=None)

    def check_follower(self, before: bytes) -> None:
        """Check that a follower that copied some batches of `before` continues with this log."""
        follower = self.logs.get(FOLLOWER)
        if follower is None:
            follower = self.logs.create(FOLLOWER, "t", self.disk.directory_id, self.config)
        headers = list(iter_headers(before))
        count = self.random.randint(0, len(headers))
        end = len(before) if count == len(headers) else headers[count][0]
        if end:
            assert isinstance(follower.append_as_follower(before[:end], self.epoch, 0), Appended)
        while follower.end_offset < self.log.end_offset:
            batches = self.log.read(follower.end_offset, 200, self.log.end_offset)
            outcome = follower.append_as_follower(batches, self.epoch, 0)
            assert isinstance(outcome, Appended), outcome
        latest = {one.key: one for one in records_of(self.log)}
        copied = {one.key: one for one in records_of(follower)}
        assert {key: copied[key] for key in latest} == latest
        for key in copied.keys() - latest.keys():  # removed by a tombstone after the follower had copied it
            assert any(one.key == key and one.value is None for one in self.records)
        follower.truncate_to(0)
