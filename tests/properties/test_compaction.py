"""Compaction against a slow, obvious twin: random appends, cleanings, kills and power cuts."""

from __future__ import annotations

import asyncio

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.contract.conftest import run_simulated
from tests.unit.broker.log.compaction_rig import SHAPES, CompactionRig, read_all


async def live(rig: CompactionRig, steps: int) -> None:
    random = rig.random
    await rig.start()
    for _ in range(steps):
        action = random.random()
        if action < 0.5:
            for _ in range(random.randint(1, 6)):
                rig.append_random()
        elif action < 0.6:
            rig.wall_ms += random.randrange(1_500)
        elif action < 0.7:
            rig.log.roll_aged(rig.wall_ms + 10**10)
        elif action < 0.9:
            await rig.settle()
            before = read_all(rig.log)
            await rig.clean()
            rig.check_follower(before)
        elif action < 0.94:
            await rig.settle()
            rig.limit = max(rig.limit, rig.log.compaction.dirty(rig.config, rig.wall_ms).limit)
            task = asyncio.get_running_loop().create_task(rig.cleaner.clean_next())
            await asyncio.sleep(random.uniform(0, 0.03))
            await rig.crash(random.choice(["kill", "power cut"]), task)
            rig.note_cleaned()
        elif action < 0.98:
            await truncated_meanwhile(rig)
        else:
            await rig.settle()
            await rig.stop_and_start()
        rig.check()
        await rig.check_times()
    await rig.settle()
    while rig.log.compaction.dirty(rig.config, rig.wall_ms).dirty_size:
        assert await rig.clean(), rig.cleaner.uncleanable
        rig.check()
    rig.check_clean()
    await rig.logs.close()


async def truncated_meanwhile(rig: CompactionRig) -> None:
    """Truncate records that are not committed, and append others, during a cleaning."""
    random = rig.random
    await rig.settle()
    if random.random() < 0.5:
        rig.log.roll_aged(rig.wall_ms + 10**10)
    for _ in range(random.randint(0, 12)):
        rig.append_random()
    if random.random() < 0.5:
        await rig.logs.flush_all([rig.log])
    rig.limit = max(rig.limit, rig.log.compaction.dirty(rig.config, rig.wall_ms).limit)
    task = asyncio.get_running_loop().create_task(rig.cleaner.clean_next())
    await asyncio.sleep(random.uniform(0, 0.02))
    rig.truncate_to(random.randint(rig.log.truncation_floor, rig.log.end_offset))
    for _ in range(random.randint(0, 3)):
        rig.append_random()
    await task
    rig.cleaner.uncleanable.clear()  # a log that has changed is tried again later
    rig.note_cleaned()


@settings(max_examples=60, deadline=None)
@given(steps=st.integers(1, 25), **SHAPES)
def test_a_compacted_log_keeps_the_latest_value_of_each_key(
    seed: int, steps: int, torn: bool, segment_size: int, map_entries: int
) -> None:
    rig = CompactionRig(seed, torn=torn, segment_size=segment_size, map_entries=map_entries)
    run_simulated(lambda: live(rig, steps))
    assert rig.log.compaction.dirty(rig.config, rig.wall_ms).dirty_size == 0
