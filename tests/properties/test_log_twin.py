"""The log against a slow, obvious twin: a list of batches.

Each step is applied to both, and then every property is compared.  Restarts are clean stops, kills (the page cache
survives) and power cuts (only flushed data survive, on the simulated disk).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from random import Random
from typing import NamedTuple
from uuid import UUID

from hypothesis import example, given, settings
from hypothesis import strategies as st

from broker.core.epochs import UNKNOWN_EPOCH
from broker.core.producer_state import ProducerState
from broker.log import Appended, LogConfig, LogKey, LogManager, PartitionLog
from quorumlog.wire.record_batch import BatchHeader, parse_header, patch
from simulation.kernel.disk import SimulatedDisk
from tests.contract.conftest import run_simulated
from tests.unit.broker.log.batches import make_batch

KEY = LogKey(UUID(int=1), 0, 5)


class Kept(NamedTuple):
    header: BatchHeader
    data: bytes


class Twin:
    """The state of a log."""

    def __init__(self) -> None:
        self.batches: list[Kept] = []
        self.start = 0
        self.high_watermark = 0

    @property
    def end(self) -> int:
        return self.batches[-1].header.end_offset if self.batches else 0

    def append(self, data: bytes, epoch: int) -> None:
        placed = bytearray(data)
        patch(placed, self.end, epoch)
        self.batches.append(Kept(parse_header(placed), bytes(placed)))

    def truncate(self, offset: int) -> None:
        self.batches = [one for one in self.batches if one.header.end_offset <= offset]
        self.high_watermark = min(self.high_watermark, self.end)
        self.start = min(self.start, self.end)

    def commit(self, offset: int) -> None:
        """Whole batches, as replicas have them."""
        ends = [one.header.end_offset for one in self.batches if one.header.end_offset <= offset]
        self.high_watermark = max(self.high_watermark, *ends, 0)

    def read(self, offset: int, max_bytes: int, up_to: int) -> bytes:
        data = b""
        for one in self.batches:
            if one.header.end_offset <= offset:
                continue
            if one.header.end_offset > up_to or (data and len(data) + len(one.data) > max_bytes):
                break
            data += one.data
        return data

    def end_of(self, epoch: int) -> tuple[int, int]:
        epochs = [one.header.leader_epoch for one in self.batches]
        if epoch < 0 or not epochs or epoch > epochs[-1]:
            return UNKNOWN_EPOCH
        known = [one for one in epochs if one <= epoch]
        if not known:
            return epoch, 0
        return known[-1], max(one.header.end_offset for one in self.batches if one.header.leader_epoch == known[-1])

    def producers(self) -> ProducerState:
        state = ProducerState()
        for one in self.batches:
            state.apply(one.header, one.header.base_offset, one.header.end_offset)
        return state


@dataclass(frozen=True)
class Append:
    sizes: tuple[int, ...]
    new_epoch: bool
    producer: int
    as_follower: bool


class Truncate(NamedTuple):
    back: int


class Flush(NamedTuple):
    commit: int


class Checkpoint(NamedTuple):
    pass


class Restart(NamedTuple):
    how: str


class MoveStart(NamedTuple):
    back: int


steps = st.lists(
    st.one_of(
        st.builds(
            Append,
            sizes=st.lists(st.integers(0, 120), min_size=1, max_size=4).map(tuple),
            new_epoch=st.booleans(),
            producer=st.integers(-1, 2),
            as_follower=st.booleans(),
        ),
        st.builds(
            Append,
            sizes=st.lists(st.integers(0, 20), min_size=1, max_size=2).map(tuple),
            new_epoch=st.just(False),
            producer=st.integers(-1, 2),
            as_follower=st.just(False),
        ),
        st.builds(Truncate, st.integers(0, 12)),
        st.builds(Flush, st.integers(0, 8)),
        st.builds(Checkpoint),
        st.builds(Restart, st.sampled_from(["clean", "kill", "power cut"])),
        st.builds(MoveStart, st.integers(0, 10)),
    ),
    max_size=60,
)


class Pair:
    """The log and its twin."""

    def __init__(self, seed: int, segment_size: int) -> None:
        self.random = Random(seed)
        self.config = LogConfig(segment_size_max=segment_size, index_interval=segment_size // 4)
        self.disk = SimulatedDisk(self.random)
        self.twin = Twin()
        self.epoch = 0
        self.since_flush: list[list[Kept]] = [[]]  # the states of the twin at and since the last flush
        self.logs: LogManager

    @property
    def log(self) -> PartitionLog:
        return self.logs.logs[KEY]

    async def start(self) -> None:
        self.logs = LogManager([self.disk])
        await self.logs.open()
        assert not self.logs.failures, self.logs.failures
        if KEY not in self.logs.logs:
            self.logs.create(KEY, "t", self.disk.directory_id, self.config)
        self.log.config = self.config

    async def do(self, step: object) -> None:
        log, twin = self.log, self.twin
        match step:
            case Append():
                self.append(step)
            case Truncate(back):
                offset = max(log.truncation_floor, log.start_offset, twin.high_watermark, twin.end - back)
                log.truncate_to(offset)
                if offset < twin.end:
                    twin.truncate(offset)
                self.epoch += 1  # only another leader causes a truncation
            case Flush(commit):
                await self.logs.flush_all([log])
                assert log.flushed_offset == log.end_offset
                flush = self.logs._directories[self.disk.directory_id].flush
                await flush.flush_all([log.durability])  # the truncation is durable as well
                self.since_flush.clear()
                twin.commit(twin.end - commit)
                log.advance_high_watermark(twin.high_watermark)
            case Checkpoint():
                await self.logs.checkpoint([log])
            case MoveStart(back):
                log.advance_start_offset(twin.high_watermark - back)
                twin.start = max(twin.start, twin.high_watermark - back)
            case Restart(how):
                await self.restart(how)
        self.since_flush.append(list(twin.batches))
        self.compare()

    def append(self, step: Append) -> None:
        self.epoch += step.new_epoch
        values = [b"v" * size for size in step.sizes]
        known = self.twin.producers().get(step.producer)
        sequence = 0 if known is None else known.last_sequence + 1
        producer = (step.producer, 0, sequence) if step.producer >= 0 else (-1, -1, -1)
        batch = make_batch(values, producer=producer, timestamps=[self.random.randrange(1_000) for _ in values])
        self.twin.append(batch, self.epoch)
        kept = self.twin.batches[-1]
        if step.as_follower:
            outcome = self.log.append_as_follower(kept.data, self.epoch, 0)
        else:
            outcome = self.log.append_as_leader(batch, self.epoch, 0)
        assert outcome == Appended(kept.header.base_offset, kept.header.end_offset)
        if step.producer >= 0 and not step.as_follower:
            again = self.log.append_as_leader(batch, self.epoch, 0)
            assert again == Appended(kept.header.base_offset, kept.header.end_offset, duplicate=True)

    async def restart(self, how: str) -> None:
        floor = self.log.truncation_floor
        if how == "clean":
            await self.logs.close()
        else:
            for task in self.logs._tasks:
                task.cancel()
        if how == "power cut":
            self.disk.crash()
        await self.start()
        log, twin = self.log, self.twin
        assert self.logs.clean_start == (how == "clean")
        assert log.high_watermark <= twin.high_watermark
        assert log.truncation_floor == floor or how == "clean"
        if how == "power cut":
            self.after_power_cut()
        assert log.start_offset <= twin.start  # a move that was not written yet is undone
        twin.start, twin.high_watermark = log.start_offset, log.high_watermark

    def after_power_cut(self) -> None:
        """The log equals one of its states since the last flush, perhaps truncated."""
        found = b"".join(read_all(self.log))
        assert self.log.end_offset >= min(state[-1].header.end_offset if state else 0 for state in self.since_flush)
        for state in self.since_flush:
            kept = [one for one in state if one.header.end_offset <= self.log.end_offset]
            if b"".join(one.data for one in kept if one.header.end_offset > self.log.start_offset) == found:
                self.twin.batches = kept
                return
        raise AssertionError("not a prefix at a batch boundary")

    def compare(self) -> None:
        log, twin = self.log, self.twin
        assert log.end_offset == twin.end
        assert log.start_offset == twin.start
        assert log.flushed_offset <= log.end_offset
        assert log.truncation_floor <= max(log.high_watermark, log.start_offset)
        for epoch in range(self.epoch + 2):
            ours, theirs = log.epochs.end_of(epoch), twin.end_of(epoch)
            assert ours == theirs or (theirs[1] <= log.start_offset and epoch < self.epoch), epoch
        for _ in range(4):
            self.compare_read()

    def compare_read(self) -> None:
        log, twin = self.log, self.twin
        offset = self.random.randint(log.start_offset, log.end_offset)
        up_to = self.random.choice([log.end_offset, self.random.randint(offset, log.end_offset)])
        max_bytes = self.random.choice([0, 1, 100, 250, 1_000, 1 << 20])
        data = log.read(offset, max_bytes, up_to)
        wanted = twin.read(offset, max_bytes, up_to)
        assert wanted.startswith(data)  # a read ends with a segment
        assert bool(data) == bool(wanted)


def run_pair(what: Callable[[Pair], Awaitable[None]], seed: int, segment_size: int) -> None:
    async def scenario() -> None:
        pair = Pair(seed, segment_size)
        await pair.start()
        await what(pair)
        await pair.logs.close()

    run_simulated(scenario)


def found(*plan: object, seed: int, segment_size: int) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """A plan that was wrong once."""
    return example(list(plan), seed, segment_size)


def plain(*sizes: int, producer: int = -1, new_epoch: bool = False, as_follower: bool = False) -> Append:
    return Append(sizes, new_epoch, producer, as_follower)


@found(  # the recovery point was at the start of a segment; after a truncation there, the previous segment grew
    plain(87, 16, 51, 64),
    plain(96, 12, new_epoch=True),
    plain(88, 90, 21, new_epoch=True),
    Flush(4),
    Checkpoint(),
    Truncate(12),
    plain(17),
    plain(20, 19, 62, new_epoch=True),
    Restart("kill"),
    seed=1102,
    segment_size=400,
)
@found(  # the folder itself was only in the page cache when the process was killed
    plain(113, 24, 118, 62),
    Truncate(1),
    Restart("kill"),
    plain(30),
    plain(15, 82, 32, 102, producer=1),
    Flush(4),
    Restart("power cut"),
    seed=790,
    segment_size=2_000,
)
@found(  # "no producers up to here" was recorded for records that were truncated later
    plain(73, 55, 101, 5),
    Checkpoint(),
    Truncate(9),
    plain(28, 18, producer=1, new_epoch=True),
    plain(44, 34, 28, new_epoch=True, as_follower=True),
    Flush(0),
    Restart("power cut"),
    plain(8, 21, 99, 112, producer=1),
    seed=407,
    segment_size=150,
)
@found(  # the truncation was not durable when the process was killed, but the later records were
    plain(47, 71),
    Flush(0),
    Checkpoint(),
    plain(21, 28, 47),
    Flush(3),
    Truncate(12),
    plain(59, 106, as_follower=True),
    Restart("kill"),
    Checkpoint(),
    Restart("power cut"),
    seed=1988,
    segment_size=400,
)
@settings(max_examples=100, deadline=None)
@given(steps, st.integers(0, 2**32), st.sampled_from([150, 400, 2_000]))
def test_the_log_behaves_like_a_list_of_batches(plan: list[object], seed: int, segment_size: int) -> None:
    async def play(pair: Pair) -> None:
        for step in plan:
            await pair.do(step)
        await pair.do(Restart("clean"))
        assert [data for data in read_all(pair.log)] == [
            one.data for one in pair.twin.batches if one.header.end_offset > pair.log.start_offset
        ]
        if pair.log.start_offset == 0:
            ours = {producer_id: list(one.recent) for producer_id, one in pair.log.producers}
            assert ours == {producer_id: list(one.recent) for producer_id, one in pair.twin.producers()}

    run_pair(play, seed, segment_size)


def read_all(log: PartitionLog) -> list[bytes]:
    batches, offset = [], log.start_offset
    while offset < log.end_offset:
        data = bytes(log.read(offset, 1, log.end_offset))
        batches.append(data)
        offset = parse_header(data).end_offset
    return batches
