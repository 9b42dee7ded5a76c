"""The coordinators of a simulated cluster as clients use them, and the topics in which they keep their state."""

from __future__ import annotations

import asyncio
from random import Random
from typing import Any

from metadata.image.internal_topics import CONSUMER_OFFSETS, SHARE_GROUP_STATE, TRANSACTION_STATE
from quorumlog.client.cluster import Cluster
from quorumlog.client.kafka import KafkaConnection
from quorumlog.errors import ClusterError
from quorumlog.wire.errors import KafkaCode
from quorumlog.wire.kafka.codec import Api
from quorumlog.wire.v1 import controller_pb2 as pb
from quorumlog.wire.v1 import metadata_pb2
from simulation.cluster.plan import GROUP_TOPIC, LEDGER, LETTERS, MEMBER_TOPIC, QUEUE, RESULTS, ClusterPlan

REQUEST_S = 1.0
CONNECT_S = 0.5
COORDINATOR_PARTITIONS = 2
GROUP_KEY = 0
TRANSACTION_KEY = 1
_FIND_VERSION = 3
_MOVED = (
    KafkaCode.NOT_COORDINATOR,
    KafkaCode.COORDINATOR_NOT_AVAILABLE,
    KafkaCode.COORDINATOR_LOAD_IN_PROGRESS,
)


def topics_of(plan: ClusterPlan) -> list[pb.NewTopic]:
    """Return the topics of all clients of coordinators, with the factor and min ISR of the first topic."""
    wanted: list[tuple[str, int, dict[str, str]]] = []
    if plan.group_members:
        wanted.append((GROUP_TOPIC, plan.group_partitions, {}))
    if plan.new_members:
        wanted.append((MEMBER_TOPIC, plan.new_member_partitions, {}))
    if plan.workers:
        wanted.append((QUEUE, plan.queue_partitions, {}))
        if plan.letter_partitions:
            wanted.append((LETTERS, plan.letter_partitions, {"errors.deadletterqueue.group.enable": "true"}))
        wanted.append((SHARE_GROUP_STATE, COORDINATOR_PARTITIONS, state_configs(plan)))
    if plan.group_members or plan.transactional or plan.new_members or plan.workers:
        wanted.append((CONSUMER_OFFSETS, COORDINATOR_PARTITIONS, state_configs(plan)))
    if plan.transactional or plan.drivers:
        wanted.append((TRANSACTION_STATE, COORDINATOR_PARTITIONS, state_configs(plan)))
    if plan.transactional:
        wanted.append((LEDGER, plan.ledger_partitions, {}))
    if plan.drivers:
        wanted.append((RESULTS, plan.results_partitions, {}))
    safe = plan.topics[0]
    made = []
    for name, partitions, configs in wanted:
        new = pb.NewTopic(name=name, partitions=partitions, replication_factor=safe.factor)
        for key, value in {"min.insync.replicas": str(safe.min_isr), **configs}.items():
            new.configs.add(key=key, value=value)
        made.append(new)
    return made


def state_configs(plan: ClusterPlan) -> dict[str, str]:
    """Return the configs of a topic with the state of coordinators, including the `segment.ms` of the other topics."""
    segments = {} if plan.upkeep is None else {"segment.ms": str(plan.upkeep.segment_ms)}
    return {**plan.offsets.configs, **segments}


QUICK = {"group.initial.rebalance.delay.ms": "200", "group.min.session.timeout.ms": "500"}
QUICK_NEW = {
    "group.consumer.min.session.timeout.ms": "500",
    "group.consumer.session.timeout.ms": "2000",
    "group.consumer.min.heartbeat.interval.ms": "100",
    "group.consumer.heartbeat.interval.ms": "300",
    "group.consumer.assignment.interval.ms": "400",
}
"""The times of the newer group protocol."""
LOCK_MS = 1_000
"""How long a worker may keep a record."""
QUICK_SHARE = {
    "group.share.record.lock.duration.ms": str(LOCK_MS),
    "group.share.session.timeout.ms": "2000",
    "group.share.heartbeat.interval.ms": "300",
    "group.share.delivery.count.limit": "25",
    "share.auto.offset.reset": "earliest",
}
"""The times of share groups.  No record reaches the limit of deliveries in a run, unless FEW_DELIVERIES replaces it."""
WORKERS = "workers"
"""The share group."""
FEW_DELIVERIES = {"group.share.delivery.count.limit": "3"}
"""The limit of deliveries in runs with dead letters.  Some records reach it."""


def quick_groups(plan: ClusterPlan) -> pb.AlterConfigsRequest:
    """Return the request that shortens the times of the groups of a run."""
    changes = pb.ConfigChanges(resource={"scope": metadata_pb2.Config.SCOPE_CLUSTER})
    newer = QUICK_NEW if plan.new_members else {}
    shares = {**QUICK_SHARE, **(FEW_DELIVERIES if plan.letter_partitions else {})} if plan.workers else {}
    for key, value in {**QUICK, **newer, **shares}.items():
        changes.changes.add(key=key, value=value)
    return pb.AlterConfigsRequest(resources=[changes])


def letters_of_group(plan: ClusterPlan) -> pb.AlterConfigsRequest:
    """Return the request that gives the share group its dead-letter topic."""
    changes = pb.ConfigChanges(resource={"scope": metadata_pb2.Config.SCOPE_GROUP, "name": WORKERS})
    changes.changes.add(key="errors.deadletterqueue.topic.name", value=LETTERS)
    if plan.letter_copies:
        changes.changes.add(key="errors.deadletterqueue.copy.record.enable", value="true")
    return pb.AlterConfigsRequest(resources=[changes])


class GivenUpError(Exception):
    """A request had no definite answer in time."""


class CoordinatorLink:
    """Asks the coordinators of one client's keys.  Each key has a connection, which is kept until it fails.

    is_in_doubt: a request failed without an answer, so a broker may still execute it.
    """

    def __init__(self, cluster: Cluster, random: Random) -> None:
        self._cluster = cluster
        self._random = random
        self._connections: dict[tuple[int, str], KafkaConnection] = {}
        self.is_in_doubt = False

    async def close(self) -> None:
        while self._connections:
            await self._connections.popitem()[1].close()

    async def ask(
        self,
        key: tuple[int, str],
        api: Api,
        version: int,
        values: dict[str, Any],
        code_of: Any,
        retried: tuple[KafkaCode, ...],
        time_s: float,
    ) -> Any:
        """Return the first answer whose code is not one of the retried ones.  code_of: returns the code of an answer.

        Raises:
            GivenUpError: no such answer arrived within `time_s`.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + time_s
        while True:
            try:
                connection = await self.coordinator(key)
                reply = await connection.ask(api, version, values, REQUEST_S)
                code = code_of(reply)
                if code not in _MOVED and code not in retried:
                    return reply
            except ClusterError:
                code = KafkaCode.NOT_COORDINATOR
                self.is_in_doubt = True
            if code in _MOVED and (old := self._connections.pop(key, None)) is not None:
                await old.close()
            if loop.time() >= deadline:
                raise GivenUpError(f"{api.name} for {key[1]}")
            await asyncio.sleep(self._random.uniform(0.05, 0.2))

    async def coordinator(self, key: tuple[int, str]) -> KafkaConnection:
        """Return the connection to the coordinator of a key.

        Raises:
            ClusterError: it cannot be found or reached now.
        """
        if (known := self._connections.get(key)) is not None:
            return known
        broker = await self._cluster.any_broker(REQUEST_S)
        values = {"key_type": key[0], "key": key[1]}
        found = await broker.ask(Api.FIND_COORDINATOR, _FIND_VERSION, values, REQUEST_S)
        if found.error_code:
            raise ClusterError("COORDINATOR_NOT_AVAILABLE", f"{key[1]} has no coordinator", retriable=True)
        connection = KafkaConnection(found.host, found.port)
        await connection.connect(CONNECT_S)
        self._connections[key] = connection
        return connection
