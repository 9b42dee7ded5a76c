"""A log between power failures at any moment: it is never offline, and equals one of its states since the last flush.

As in `test_log_twin.py`, the twin is a list of batches.  Here the disk may keep any part of what was not durable, power
fails in the middle of flushes, and truncations are prepared as the replica prepares them.
"""

from __future__ import annotations

import asyncio
from random import Random

from hypothesis import example, given, settings
from hypothesis import strategies as st

from broker.log import LogConfig, LogManager, PartitionLog
from simulation.kernel.disk import SimulatedDisk
from tests.contract.conftest import run_simulated
from tests.properties.test_log_twin import KEY, Kept, Twin, read_all
from tests.unit.broker.log.batches import make_batch

FLUSH_S = 0.004
"""Longer than any flush of the simulated disk takes."""


class Plan:
    """Random steps.  uniform: all batches have one record of the same size, so that segments often begin alike."""

    def __init__(self, seed: int, segment_size: int, uniform: bool) -> None:
        self.random = Random(seed)
        self.uniform = uniform
        self.config = LogConfig(segment_size_max=segment_size, index_interval=segment_size // 4)
        self.disk = SimulatedDisk(self.random, torn=True)
        self.twin = Twin()
        self.epoch = 0
        self.states: list[list[Kept]] = [[]]  # of the twin, at and since the last flush
        self.logs: LogManager

    @property
    def log(self) -> PartitionLog:
        return self.logs.logs[KEY]

    async def run(self) -> None:
        await self.start()
        for _ in range(self.random.randint(3, 25)):
            await self.random.choices(
                (self.append, self.truncate, self.flush, self.checkpoint, self.wait, self.fail),
                (50, 20, 15, 5, 5, 5),
            )[0]()
        await self.fail()
        await self.logs.close()

    async def start(self) -> None:
        self.logs = LogManager([self.disk])
        await self.logs.open()
        assert not self.logs.failures, self.logs.failures
        if KEY not in self.logs.logs:
            self.logs.create(KEY, "t", self.disk.directory_id, self.config)
        self.log.config = self.config

    async def append(self) -> None:
        for _ in range(self.random.randint(1, 3)):
            if self.log.durability.is_truncating:
                await self.flush()
            self.epoch += self.random.random() < 0.2
            sizes = [10] if self.uniform else [self.random.randint(0, 60) for _ in range(self.random.randint(1, 3))]
            batch = make_batch([b"%02d" % self.random.randrange(100) + b"v" * size for size in sizes])
            self.twin.append(batch, self.epoch)
            self.log.append_as_leader(batch, self.epoch, 0)
            self.states.append(list(self.twin.batches))

    async def truncate(self) -> None:
        offset = max(self.log.truncation_floor, self.log.high_watermark, self.twin.end - self.random.randint(0, 8))
        await self.logs.prepare_truncation(self.log, offset)
        self.log.truncate_to(offset)
        self.twin.truncate(offset)
        self.epoch += 1  # only another leader causes a truncation
        self.states.append(list(self.twin.batches))

    async def flush(self) -> None:
        await self.logs.flush_all([self.log])
        self.states = [list(self.twin.batches)]
        if self.random.random() < 0.3:
            self.log.advance_high_watermark(self.twin.end - self.random.randint(0, 4))

    async def checkpoint(self) -> None:
        await self.logs.checkpoint([self.log])
        self.states = [list(self.twin.batches)]

    async def wait(self) -> None:
        await asyncio.sleep(self.random.uniform(0, FLUSH_S))

    async def fail(self) -> None:
        """Lose power, or only kill the process; perhaps during a flush."""
        flushing = asyncio.ensure_future(self.logs.flush_all([self.log]))
        if self.random.random() < 0.8:
            await self.wait()
        flushing.cancel()
        for task in self.logs._tasks:
            task.cancel()
        is_power = self.random.random() < 0.8
        if is_power:
            self.disk.crash()
        await self.start()
        found = b"".join(read_all(self.log))
        states = [[one for one in state if one.header.end_offset <= self.log.end_offset] for state in self.states]
        matching = [state for state in states if b"".join(one.data for one in state) == found]
        assert matching, "records of two states that never existed together"
        assert self.log.end_offset >= min(state[-1].header.end_offset if state else 0 for state in self.states)
        self.twin.batches = list(matching[0])
        # After a kill, the page cache still has data that the next power failure may lose.
        self.states = [matching[0], *(() if is_power else self.states)]


@example(seed=59, segment_size=300, uniform=True)
@settings(max_examples=250, deadline=None)
@given(st.integers(0, 2**32), st.sampled_from([150, 300, 600]), st.booleans())
def test_a_power_failure_leaves_one_state_of_the_log(seed: int, segment_size: int, uniform: bool) -> None:
    plan = Plan(seed, segment_size, uniform)
    run_simulated(plan.run)
    assert plan.log.end_offset == plan.twin.end
