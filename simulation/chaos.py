"""A cluster that takes writes while nodes die, freeze and lose each other; then everything is healed and read back.

Promises checked: every record is acknowledged in the end and read exactly once, at the offset that was acknowledged
for it, and all images are equal.  Within the run: at most one leader per epoch, watermarks and epochs never go back.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from random import Random
from typing import Any

from quorum.core.types import Role
from quorumlog.client.cluster import Cluster
from quorumlog.client.producer import Producer
from quorumlog.client.records import NewRecord, build_batch
from simulation.faults import Faults
from simulation.smoke import PARTITIONS, TOPIC, all_ready, create_topic, image_digest, quiet, read_topic
from simulation.world import EPOCH_MS, World

DURATION_S = 40.0
WRITE_GAP_S = 0.05
CONVERGE_S = 120.0


Beside = Callable[[World, Random, asyncio.Event], Coroutine[Any, Any, None]]
"""What goes on beside the writes, until the event is set: an administrator, say."""


class Watch:
    """Invariants over what can be seen from outside, looked at between events."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._leaders: dict[int, int] = {}
        self._epochs: dict[int, int] = {}
        self._watermarks: dict[object, tuple[int, int]] = {}

    async def run(self) -> None:
        while True:
            self.look()
            await asyncio.sleep(0.01)

    def look(self) -> None:
        for node_id, host in self._world.hosts.items():
            if host.plane is None or host.process is None or not hasattr(host.plane, "node"):
                continue
            node = host.plane.node
            if node.role is Role.LEADER:
                led = self._leaders.setdefault(node.epoch, node_id)
                assert led == node_id, f"{led} and {node_id} both lead epoch {node.epoch}"
            assert node.epoch >= self._epochs.get(node_id, 0), f"{node_id} goes back to epoch {node.epoch}"
            self._epochs[node_id] = node.epoch
            run, before = id(host.process), self._watermarks.get(node_id, (0, 0))
            if before[0] == run:
                assert node.high_watermark >= before[1], f"{node_id}: watermark {before[1]} to {node.high_watermark}"
            self._watermarks[node_id] = (run, node.high_watermark)


async def scenario(world: World, random: Random, beside: Beside | None = None) -> dict[str, Any]:
    world.start_all()
    await world.until(all_ready(world), "all brokers are ready")
    await create_topic(world)
    faults, watch = Faults(world, random), Watch(world)
    acknowledged: dict[tuple[int, int], bytes] = {}
    stop = asyncio.Event()
    async with Cluster(world.bootstrap) as cluster, asyncio.TaskGroup() as group:
        watching = group.create_task(watch.run())
        async with Producer(cluster, delivery_timeout_s=DURATION_S + CONVERGE_S) as producer:
            lanes = [group.create_task(_write(producer, index, acknowledged, stop)) for index in range(PARTITIONS)]
            if beside is not None:
                lanes.append(group.create_task(beside(world, random, stop)))
            await faults.run(DURATION_S)
            await faults.heal()
            stop.set()
            await asyncio.gather(*lanes)
        await world.until(all_ready(world), "all brokers are ready again", CONVERGE_S)
        read = await read_topic(cluster)
        await world.until(_same_images(world), "all images are equal", CONVERGE_S)
        watching.cancel()
    missing = {place: value for place, value in acknowledged.items() if read.get(place) != value}
    assert not missing, f"{len(missing)} acknowledged records are lost or changed, such as {min(missing.items())}"
    values = sorted(read.values())
    assert len(set(values)) == len(values), f"{len(values) - len(set(values))} records are there twice"
    assert len(read) == len(acknowledged), f"{len(read)} records read, {len(acknowledged)} acknowledged"
    return {"records": len(read), "faults": dict(sorted(faults.counts.items()))}


def _same_images(world: World) -> Any:
    return lambda: len({image_digest(host) for host in world.hosts.values()}) == 1


async def _write(
    producer: Producer, index: int, acknowledged: dict[tuple[int, int], bytes], stop: asyncio.Event
) -> None:
    number = 0
    while not stop.is_set():
        values = [f"{index}/{number}/{place}".encode() for place in range(3)]
        records = [NewRecord(None, value, EPOCH_MS, ()) for value in values]
        base_offset = await (await producer.send(TOPIC, index, build_batch(records)))
        for place, value in enumerate(values):
            acknowledged[index, base_offset + place] = value
        number += 1
        await asyncio.sleep(WRITE_GAP_S)


def run(seed: int, beside: Beside | None = None) -> tuple[dict[str, Any], World]:
    """One run.  Its result is a function of the seed and the code."""
    quiet()
    world = World(seed)
    seen = world.run(scenario(world, Random(seed), beside))
    return {"seed": seed, **seen, "virtual_s": round(world.loop.time(), 3), "digest": world.trace.digest}, world
