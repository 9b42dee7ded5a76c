"""The time for which partitions are unavailable after kill -9 of one of three brokers, during writes with acks=all.

There are three voters and three brokers, as real processes on one machine.  A topic has 6 partitions with three
replicas each, and min.insync.replicas 2.  Each partition has a writer, which sends one record at a time and waits for
its acknowledgement.  The killed broker leads two of the partitions and follows the others.  Each kill measures:

    follower_stall_s  the longest wait of a writer to a partition that the killed broker followed
    leader_stall_s    the longest wait of a writer to a partition that the killed broker led

Each is measured with `broker.fence.on.refusal` and without; without it, most of the wait is the session timeout (6 s).
"""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from bench.nodes import LOOK_S, NO_ERROR, TIMEOUT_S, kill, one_record, until
from quorumlog.client.cluster import Cluster
from quorumlog.client.controller import ControllerClient
from quorumlog.client.producer import Producer
from quorumlog.kctl import dev_cluster
from quorumlog.kctl.dev_cluster import BROKER, DevCluster
from quorumlog.wire import rpcs
from quorumlog.wire.v1 import controller_pb2 as pb

TOPIC = "killed"
PARTITIONS = 6
KILLS = 7
PAUSE_S = 0.02
SETTLE_S = 2.0
PORT_BASE = 29_600
AIM_S = 2.0
"""Aim for both measurements, with `broker.fence.on.refusal`."""


def run(tiny: bool) -> dict[str, Any]:
    return asyncio.run(_run(1 if tiny else KILLS))


async def _run(kills: int) -> dict[str, Any]:
    rows = []
    for enabled in (True, False):
        async with _cluster(enabled) as stage:
            await stage.create_topic()
            killed = [await stage.one_kill(number) for number in range(kills)]
        row: dict[str, Any] = {"fence_on_refusal": enabled, "kills": kills}
        for name in ("follower_stall_s", "leader_stall_s"):
            values = [each[name] for each in killed]
            row[name], row[f"{name}_max"] = round(median(values), 2), round(max(values), 2)
        rows.append(row)
    return {"voters": 3, "brokers": 3, "partitions": PARTITIONS, "aim_s": AIM_S, "results": rows}


@dataclass
class _Stage:
    cluster: DevCluster
    client: ControllerClient
    waits_s: dict[int, float] = field(default_factory=dict)
    """The longest wait since the kill, by partition."""

    async def create_topic(self) -> None:
        new = pb.NewTopic(name=TOPIC, partitions=PARTITIONS, replication_factor=3)
        reply = await self.client.call(rpcs.CREATE_TOPICS, pb.CreateTopicsRequest(topics=[new]), TIMEOUT_S)
        assert reply.topics[0].result.error == NO_ERROR, reply

    async def leaders(self) -> list[int] | None:
        """Return the leaders by partition; None unless all replicas are in sync and the preferred ones lead."""
        reply = await self.client.call(rpcs.DESCRIBE_TOPICS, pb.DescribeTopicsRequest(names=[TOPIC]), TIMEOUT_S)
        partitions = reply.topics[0].partitions
        if any(len(each.isr) < 3 or each.leader != each.replicas[0].broker_id for each in partitions):
            return None
        return [each.leader for each in partitions]

    async def one_kill(self, number: int) -> dict[str, float]:
        await until(self._is_whole)
        leaders = await self.leaders()
        assert leaders is not None
        brokers = [node for node in self.cluster.nodes if node.role == BROKER]
        victim = brokers[number % len(brokers)]
        bootstrap = [node.listen for node in brokers if node.listen is not None]
        async with (
            Cluster(bootstrap) as cluster,
            Producer(cluster, retry_pause_max_s=0.1) as producer,
            asyncio.TaskGroup() as group,
        ):
            writers = [group.create_task(self._write(producer, index)) for index in range(PARTITIONS)]
            await asyncio.sleep(SETTLE_S + number * 0.13)  # vary the time between two heartbeats
            self.waits_s.clear()
            await kill(victim)
            await until(self._all_have_waited)
            for writer in writers:
                writer.cancel()
        await dev_cluster.start(self.cluster, TIMEOUT_S, lambda line: None)
        led = [index for index, leader in enumerate(leaders) if leader == victim.id]
        return {
            "leader_stall_s": max(self.waits_s[index] for index in led),
            "follower_stall_s": max(self.waits_s[index] for index in range(PARTITIONS) if index not in led),
        }

    async def _write(self, producer: Producer, index: int) -> None:
        while True:
            began = time.monotonic()
            await (await producer.send(TOPIC, index, one_record()))
            self.waits_s[index] = max(self.waits_s.get(index, 0.0), time.monotonic() - began)
            await asyncio.sleep(PAUSE_S)

    async def _all_have_waited(self) -> bool:
        """Return whether every writer has continued after a wait that was longer than a normal write."""
        return len(self.waits_s) == PARTITIONS and min(self.waits_s.values()) > LOOK_S

    async def _is_whole(self) -> bool:
        if await self.leaders() is not None:
            return True
        request = pb.ElectLeadersRequest(policy=pb.ElectLeadersRequest.POLICY_PREFERRED)
        await self.client.call(rpcs.ELECT_LEADERS, request, TIMEOUT_S)
        return False


@contextlib.asynccontextmanager
async def _cluster(fence_on_refusal: bool) -> AsyncIterator[_Stage]:
    with tempfile.TemporaryDirectory(prefix="quorumlog-bench-") as folder:
        cluster = dev_cluster.plan(Path(folder) / "cluster", 3, 3, PORT_BASE, made_dir=True)
        for node in cluster.nodes:
            node.command += ["--set", f"broker.fence.on.refusal={str(fence_on_refusal).lower()}"]
        await dev_cluster.start(cluster, TIMEOUT_S, lambda line: None)
        try:
            async with ControllerClient([cluster.controllers.split(",")[0]]) as client:
                yield _Stage(cluster, client)
        finally:
            for node in cluster.nodes:  # no broker has to hand over
                if node.is_running:
                    await kill(node)
