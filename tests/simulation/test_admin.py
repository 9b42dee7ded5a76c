"""An administrator at work on whole clusters, while nodes die, freeze and lose each other, and producers go on writing.

Partitions come and go beside those that are written to, leaders are asked for, min.insync.replicas changes.  Whatever
becomes of each request, everything acknowledged is read back once, in its place; and in the end every broker has just
the replicas that the metadata gives it.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from random import Random
from typing import Any
from uuid import UUID

import pytest

from quorumlog.wire.v1 import controller_pb2 as pb
from quorumlog.wire.v1 import metadata_pb2
from simulation import chaos
from simulation.smoke import PARTITIONS, TOPIC
from simulation.world import World

TIMEOUT_MS = 5_000
PASSING = {
    "NOT_CONTROLLER", "OUTCOME_UNKNOWN", "REQUEST_TIMED_OUT", "PAUSED", "INVALID_REPLICATION_FACTOR",
    "PREFERRED_LEADER_NOT_AVAILABLE", "ELECTION_NOT_NEEDED",
}  # fmt: skip
"""What may be the matter while there are faults."""


class Administrator:
    def __init__(self, world: World, random: Random) -> None:
        self._world = world
        self._random = random
        self.words: Counter[tuple[str, str]] = Counter()
        self.ids: set[UUID] = set()

    async def ask(self, method: str, request: Any) -> Any:
        """Through any broker that runs; None if it dies under the request."""
        running = [host for host in self._world.brokers if host.plane is not None and host.process is not None]
        if not running:
            return None
        host = self._random.choice(running)
        assert host.plane is not None
        asked = asyncio.ensure_future(host.plane.service.call(method, request, TIMEOUT_MS))
        await asyncio.wait({asked}, timeout=2 * TIMEOUT_MS / 1000)
        if not asked.done():
            return None  # it was killed, and its tasks stand still for ever
        reply = asked.result()
        words = {reply.result.error}
        for items in ("topics", "resources", "partitions"):
            words.update(each.result.error for each in getattr(reply, items, ()))
        if hasattr(reply, "topic") and reply.result.error == "NONE":
            words.add(reply.topic.result.error)
        self.words.update((method, word) for word in words)
        return reply

    async def resize(self, count: int) -> bool:
        """Whether the topic has so many partitions now; a request may have been overtaken by one that seemed lost."""
        more = pb.NewPartitions(topic=TOPIC, count=count)
        reply = await self.ask("AddPartitions", pb.AddPartitionsRequest(topics=[more]))
        if reply is not None and reply.result.error == "NONE" and reply.topics[0].result.error == "INVALID_PARTITIONS":
            reply = await self.ask("RemovePartitions", pb.RemovePartitionsRequest(topic=TOPIC, count=count))
            return reply is not None and reply.result.error == reply.topic.result.error == "NONE"
        return reply is not None and reply.result.error == "NONE" and reply.topics[0].result.error == "NONE"

    async def set(self, scope: Any, name: str, key: str, value: str) -> None:
        change = pb.ConfigChange(key=key, value=value)
        resource = pb.ConfigChanges(resource=pb.ConfigResource(scope=scope, name=name), changes=[change])
        await self.ask("AlterConfigs", pb.AlterConfigsRequest(resources=[resource]))

    async def work(self, stop: asyncio.Event) -> None:
        await self.set(metadata_pb2.Config.SCOPE_CLUSTER, "", "leader.rebalance.interval.ms", "2000")
        while not stop.is_set():
            match self._random.randrange(4):
                case 0 | 1:
                    await self.resize(self._random.randint(PARTITIONS, PARTITIONS + 6))
                case 2:
                    policy = pb.ElectLeadersRequest.POLICY_PREFERRED
                    await self.ask("ElectLeaders", pb.ElectLeadersRequest(policy=policy))
                case 3:
                    value = self._random.choice(["1", "2", "3"])
                    await self.set(metadata_pb2.Config.SCOPE_TOPIC, TOPIC, "min.insync.replicas", value)
            self.look()
            await asyncio.sleep(self._random.uniform(0.1, 1.5))

    def look(self) -> None:
        for host in self._world.hosts.values():
            topic = None if host.plane is None else host.plane.replay.image.topic(TOPIC)
            if topic is not None:
                self.ids.add(topic.topic_id)

    async def leave_in_order(self) -> None:
        await self.set(metadata_pb2.Config.SCOPE_TOPIC, TOPIC, "min.insync.replicas", "1")
        for _ in range(100):
            if await self.resize(PARTITIONS):
                break
            await asyncio.sleep(0.5)
        await self._world.until(self.replicas_are_as_said, "every broker has just its replicas", chaos.CONVERGE_S)

    def replicas_are_as_said(self) -> bool:
        for host in self._world.brokers:
            if host.broker is None or host.plane is None:
                return False
            image = host.plane.replay.image
            topic = image.topic(TOPIC)
            if topic is None:
                return False
            wanted = {
                (topic.topic_id, each.index) for each in topic.partitions if each and each.replica(host.config.node_id)
            }
            hosted = host.broker.role.replicas.hosted
            if len(topic.partitions) != PARTITIONS or {(key[0], key[1]) for key in hosted} != wanted:
                return False
        return True


@pytest.mark.parametrize("seed", range(6))
def test_partitions_come_and_go_and_nothing_is_lost(seed: int) -> None:
    found: list[Administrator] = []

    async def beside(world: World, random: Random, stop: asyncio.Event) -> None:
        administrator = Administrator(world, random)
        found.append(administrator)
        await administrator.work(stop)
        await administrator.leave_in_order()

    seen, _ = chaos.run(seed, beside)
    assert seen["records"] > 100
    words = found[0].words
    refused = {word for _, word in words} - PASSING - {"NONE", "INVALID_PARTITIONS"}
    assert not refused, words
    assert words["RemovePartitions", "NONE"] > 0, words
    assert words["AddPartitions", "NONE"] > 0, words
    assert len(found[0].ids) > 1
