"""One whole-cluster run in virtual time: elect, create a topic, write, kill the controller and a leader, read.

`python -m simulation.smoke [--seed N] [--trace]` prints one JSON object.  Equal seeds give equal trace digests in
every process and with every PYTHONHASHSEED, so the seed of a failure reproduces it.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import sys
from collections.abc import Callable
from typing import Any

import structlog

from quorumlog.client.cluster import Cluster
from quorumlog.client.consumer import LATEST, Consumer
from quorumlog.client.producer import Producer
from quorumlog.client.records import NewRecord, build_batch, decode_batches
from quorumlog.wire import rpcs
from quorumlog.wire.errors import ApiError
from quorumlog.wire.v1 import controller_pb2 as pb
from simulation.cluster.nodes import Host, World
from simulation.kernel.loop import EPOCH_MS

TOPIC = "smoke"
PARTITIONS = 2
BATCHES = 60
BATCH_RECORDS = 5


async def scenario(world: World) -> dict[str, Any]:
    """Run a small cluster through failures, and return its measurements.

    Raises:
        AssertionError: an invariant does not hold.
    """
    world.start_all()
    elected_s = await world.until(lambda: world.active() is not None, "a controller is active")
    await world.until(all_ready(world), "all brokers are ready")
    await create_topic(world)
    async with Cluster(world.bootstrap, random=world.random) as cluster:
        acknowledged: dict[tuple[int, int], bytes] = {}
        async with Producer(cluster) as producer:
            await _write(world, producer, range(BATCHES // 3), acknowledged)
            failover_s = await _kill_controller(world)
            await _write(world, producer, range(BATCHES // 3, 2 * BATCHES // 3), acknowledged)
            killed = _leader_of(world, 0)
            world.kill(killed)
            await _write(world, producer, range(2 * BATCHES // 3, BATCHES), acknowledged)
        world.start(killed)
        for host in world.voters:
            if host.process is None:
                world.start(host.config.node_id)
        await world.until(all_ready(world), "all brokers are ready again")
        read = await read_topic(cluster)
    expected = sorted(_value(number, place) for number in range(BATCHES) for place in range(BATCH_RECORDS))
    assert sorted(acknowledged.values()) == expected, "some records were not acknowledged"
    assert read == acknowledged, f"read {len(read)} records, {len(acknowledged)} were acknowledged"
    await world.until(lambda: len({image_digest(host) for host in world.hosts.values()}) == 1, "all images are equal")
    return {
        "elected_ms": round(elected_s * 1000),
        "controller_failover_ms": round(failover_s * 1000),
        "records": len(read),
        "image": image_digest(world.voters[0]),
    }


def all_ready(world: World) -> Callable[[], bool]:
    return lambda: all(host.broker is not None and host.broker.is_ready()[0] for host in world.brokers)


def image_digest(host: Host) -> str:
    """Return the digest of the host's committed image; empty while no process runs on it."""
    return host.plane.replay.image.digest() if host.plane is not None else ""


async def create_topic(world: World) -> None:
    host = world.brokers[0]
    assert host.plane is not None
    request = pb.CreateTopicsRequest(topics=[pb.NewTopic(name=TOPIC, partitions=PARTITIONS, replication_factor=3)])
    reply = await host.plane.service.call(rpcs.CREATE_TOPICS, request, 10_000)
    assert isinstance(reply, pb.CreateTopicsReply)
    assert [topic.result.error for topic in reply.topics] == [ApiError.NONE], reply


def _value(number: int, place: int) -> bytes:
    return f"{number}/{place}".encode()


async def _write(world: World, producer: Producer, numbers: range, acknowledged: dict[tuple[int, int], bytes]) -> None:
    for number in numbers:
        records = [NewRecord(None, _value(number, place), EPOCH_MS, ()) for place in range(BATCH_RECORDS)]
        index = number % PARTITIONS
        base_offset = await (await producer.send(TOPIC, index, build_batch(records)))
        for place in range(BATCH_RECORDS):
            acknowledged[index, base_offset + place] = _value(number, place)
        await asyncio.sleep(0.01)  # of virtual time: spreads the writes over the faults


async def _kill_controller(world: World) -> float:
    """Kill the active controller, and return the seconds until another is active."""
    active = world.active()
    assert active is not None
    world.kill(active.config.node_id)
    return await world.until(lambda: world.active() is not None, "another controller is active")


def _leader_of(world: World, index: int) -> int:
    plane = world.brokers[0].plane
    assert plane is not None
    topic = plane.replay.image.topic(TOPIC)
    assert topic is not None
    partition = topic.partition(index)
    assert partition is not None
    return partition.leader


async def read_topic(cluster: Cluster) -> dict[tuple[int, int], bytes]:
    """Return every record of the topic, by (partition, offset)."""
    consumer = Consumer(cluster)
    found: dict[tuple[int, int], bytes] = {}
    for index in range(PARTITIONS):
        end = (await consumer.list_offset(TOPIC, index, LATEST)).offset  # a new leader's watermark may still be lower
        offset = 0
        while offset < end:
            fetched = await consumer.fetch(TOPIC, index, offset)
            for record in decode_batches(fetched.records, first_offset=offset):
                found[index, record.offset] = record.value or b""
                offset = record.offset + 1
    return found


def quiet() -> None:
    """Suppress the log lines of the nodes."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))


def run(seed: int) -> tuple[dict[str, Any], World]:
    """Run one seed.  The result is a function of the seed and the code."""
    quiet()
    world = World(seed)
    seen = world.run(scenario(world))
    return {
        "seed": seed,
        **seen,
        "virtual_s": round(world.loop.time(), 3),
        "events": world.loop.events,
        "messages": world.trace.count,
        "digest": world.trace.digest,
    }, world


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m simulation.smoke", description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--trace", action="store_true", help="print the last messages to standard error")
    options = parser.parse_args()
    result, world = run(options.seed)
    if options.trace:
        print("\n".join(world.trace.lines), file=sys.stderr)
    print(json.dumps(result))
    return 0


if __name__ == "__main__":
    sys.exit(main())
