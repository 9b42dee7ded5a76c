"""The requests of an administrator to any node of a simulated cluster, while faults occur.

Each request is repeated, at nodes chosen at random, until it has a definite answer or its time is up.  `metadata.py`
checks the resulting metadata, so the answer alone is never trusted.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from random import Random
from typing import Any
from uuid import UUID

from metadata.image import PartitionImage
from quorum.ports import UnreachableError
from quorumlog.wire import rpcs
from quorumlog.wire.errors import ApiError
from quorumlog.wire.rpcs import AnyRpc
from quorumlog.wire.v1 import controller_pb2 as pb
from quorumlog.wire.v1 import metadata_pb2
from simulation.cluster.plan import WRITE_CACHING, TopicPlan
from simulation.cluster.world import ClusterWorld
from simulation.kernel.faults import Action, Fault
from simulation.kernel.network import SimulatedTransport

EXPECTED = frozenset(
    {
        ApiError.NONE,
        ApiError.BROKER_ID_NOT_REGISTERED,
        ApiError.BROKER_IN_USE,
        ApiError.ELECTION_NOT_NEEDED,
        ApiError.ELIGIBLE_LEADERS_NOT_AVAILABLE,
        ApiError.INVALID_CONFIG,
        ApiError.INVALID_PARTITIONS,
        ApiError.INVALID_REPLICA_ASSIGNMENT,
        ApiError.INVALID_REPLICATION_FACTOR,
        ApiError.LAST_VOTER,
        ApiError.NO_MAJORITY,
        ApiError.NO_REASSIGNMENT_IN_PROGRESS,
        ApiError.OPERATION_NOT_ATTEMPTED,
        ApiError.PREFERRED_LEADER_NOT_AVAILABLE,
        ApiError.REASSIGNMENT_IN_PROGRESS,
        ApiError.TOPIC_ALREADY_EXISTS,
        ApiError.UNKNOWN_TOPIC_OR_PARTITION,
        ApiError.NOT_CAUGHT_UP,
        ApiError.NOT_CONTROLLER,
        ApiError.OUTCOME_UNKNOWN,
        ApiError.REQUEST_TIMED_OUT,
        ApiError.PAUSED,
    }
)
"""The errors that any request may return.  Any other error is a violation, unless `EXPECTED_OF` permits it."""
EXPECTED_OF: dict[AnyRpc, frozenset[str]] = {
    rpcs.CHANGE_VOTERS: frozenset(
        {
            ApiError.DUPLICATE_VOTER,
            ApiError.TARGET_IN_PROGRESS,
            ApiError.UNREACHABLE,
            ApiError.VOTER_NOT_FOUND,
            ApiError.WRONG_NODE,
        }
    ),
    rpcs.UPGRADE_FEATURE: frozenset({ApiError.INVALID_REQUEST, ApiError.UNSUPPORTED_VERSION}),
}
"""Errors that only requests of this kind may return."""
TIMEOUT_MS = 1500
PAUSE_S = 0.1
MORE_PARTITIONS = 3
FENCED_AFTER_S = 2.5
THROTTLE = 20_000
FACTOR_MAX = 3
"""The highest replication factor of a new topic.  If there are more brokers than this, all replicas can be moved away
from a broker."""
EMPTY_S = 3.0
"""Maximum time for moving all replicas away from a broker that will be unregistered."""
CANCEL_S = 0.03
"""The longest time from the start of a reassignment to its cancellation."""


class Orders:
    """The `actions` of requests.  The random choices of a request follow from the seed and the request's number."""

    def __init__(self, world: ClusterWorld) -> None:
        self.world = world
        self._transport: SimulatedTransport | None = None
        self.actions: dict[str, Action] = {
            "create": self._create,
            "delete": self._delete,
            "recreate": self._recreate,
            "add partitions": self._resize,
            "remove partitions": self._resize,
            "min isr": self._min_isr,
            WRITE_CACHING: self._write_caching,
            "prefer": self._prefer,
            "unclean": self._unclean,
            "reassign": self._reassign,
            "replace": self._reassign,
            "cancel": self._cancel,
            "throttle": self._reassign,
            "unregister": self._unregister,
            "transfer": self._transfer,
        }

    # Asking

    async def ask(self, rpc: AnyRpc, request: Any, length_s: float, random: Random) -> Any:
        """Return the first answer that is not retriable, or None if there was none within about `length_s`."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + length_s
        if self._transport is None:
            self._transport = SimulatedTransport(self.world.network, "admin:1")
        while True:
            host = random.choice(list(self.world.hosts.values()))
            request.header.timeout_ms = TIMEOUT_MS
            promised, generation = self.world.promised_offset, self.world.generation
            try:
                reply = await self._transport.call(str(host.config.control_listen), rpc, request, TIMEOUT_MS + 500)
            except UnreachableError:
                reply = None
            if reply is not None and not reply.result.retriable:
                if generation == self.world.generation:
                    self._answered(rpc, reply, promised)
                return reply
            if loop.time() >= deadline:
                return None
            await asyncio.sleep(PAUSE_S)

    def _answered(self, rpc: AnyRpc, reply: Any, promised: int) -> None:
        """Check an answer.  promised: the highest end of the log that was reported before the request was sent."""
        world = self.world
        parts = [each for items in ("topics", "resources", "partitions") for each in getattr(reply, items, ())]
        words = {reply.result.error, *(each.result.error for each in parts)}
        if reply.result.error == ApiError.NONE and hasattr(reply, "topic"):
            words = {reply.topic.result.error}
        expected = EXPECTED | EXPECTED_OF.get(rpc, frozenset())
        for word in sorted(words):
            world.watch.seen[f"{rpc} {word}"] += 1
            world.watch.check(word in expected, lambda word=word: f"L2: {rpc} is answered with {word}: {reply}")  # type: ignore[misc]
        for offset in _offsets_in(reply, parts):
            world.watch.check(
                offset >= promised,
                lambda offset=offset: f"I14: {rpc} is decided at {offset}, {promised} was reported before: {reply}",  # type: ignore[misc]
            )
            world.promised_offset = max(world.promised_offset, offset)
        if rpc is rpcs.CREATE_TOPICS:
            world.promised_topics.update(
                UUID(bytes=each.topic_id) for each in parts if each.result.error == ApiError.NONE
            )
        world.note(f"ORDER {rpc}: {', '.join(sorted(words))}")

    def _random(self, fault: Fault) -> Random:
        return Random(f"{self.world.plan.seed} {fault.number}")

    # Topics

    def _new_topic(self, name: str, random: Random, topic: TopicPlan | None = None) -> pb.CreateTopicsRequest:
        factor = random.randint(min(2, self.world.plan.brokers), min(3, self.world.plan.brokers))
        new = pb.NewTopic(name=name, partitions=random.randint(1, 3), replication_factor=factor)
        if topic is not None:
            new.partitions, new.replication_factor = topic.partitions, topic.factor
            for key, value in topic.configs.items():
                new.configs.add(key=key, value=value)
        return pb.CreateTopicsRequest(topics=[new])

    async def _create(self, fault: Fault) -> None:
        random = self._random(fault)
        request = self._new_topic(f"extra{random.randrange(3)}", random)
        await self.ask(rpcs.CREATE_TOPICS, request, fault.length_s, random)

    async def _delete(self, fault: Fault) -> None:
        random = self._random(fault)
        request = pb.DeleteTopicsRequest(names=[f"extra{random.randrange(3)}"])
        await self.ask(rpcs.DELETE_TOPICS, request, fault.length_s, random)

    async def _recreate(self, fault: Fault) -> None:
        """Recreate a topic under its name immediately, while brokers that have its old replicas may be down."""
        random = self._random(fault)
        passing = [topic for topic in self.world.plan.topics if topic.passing]
        name = passing[0].name if passing else f"extra{random.randrange(3)}"
        if await self.ask(rpcs.DELETE_TOPICS, pb.DeleteTopicsRequest(names=[name]), fault.length_s, random) is None:
            return
        again = self._new_topic(name, random, passing[0] if passing else None)
        await self.ask(rpcs.CREATE_TOPICS, again, fault.length_s, random)

    async def _resize(self, fault: Fault) -> None:
        random = self._random(fault)
        topic = random.choice(self.world.plan.topics)
        if fault.kind == "add partitions":
            count = topic.partitions + random.randint(1, MORE_PARTITIONS)
            more = pb.NewPartitions(topic=topic.name, count=count)
            await self.ask(rpcs.ADD_PARTITIONS, pb.AddPartitionsRequest(topics=[more]), fault.length_s, random)
        else:
            count = topic.partitions + random.randrange(2)
            fewer = pb.RemovePartitionsRequest(topic=topic.name, count=count)
            await self.ask(rpcs.REMOVE_PARTITIONS, fewer, fault.length_s, random)

    async def _min_isr(self, fault: Fault) -> None:
        """Change min.insync.replicas, but not if a disk is lost, because the change empties the ELR."""
        random = self._random(fault)
        plan = self.world.plan
        if plan.wipes:
            return
        topic = random.choice(plan.topics)
        await self._set(topic, "min.insync.replicas", str(random.randint(1, topic.factor)), fault, random)

    async def _write_caching(self, fault: Fault) -> None:
        """Switch write.caching of a topic that had it at its creation off, and in most cases on again later."""
        random = self._random(fault)
        topic = random.choice([one for one in self.world.plan.topics if one.caching])
        await self._set(topic, "write.caching", "false", fault, random)
        if random.random() < 0.7:
            await asyncio.sleep(random.uniform(0, 2 * fault.length_s))
            await self._set(topic, "write.caching", "true", fault, random)

    async def _set(self, topic: TopicPlan, key: str, value: str, fault: Fault, random: Random) -> None:
        change = pb.ConfigChange(key=key, value=value)
        where = pb.ConfigResource(scope=metadata_pb2.Config.SCOPE_TOPIC, name=topic.name)
        request = pb.AlterConfigsRequest(resources=[pb.ConfigChanges(resource=where, changes=[change])])
        await self.ask(rpcs.ALTER_CONFIGS, request, fault.length_s, random)

    # Leaders

    async def _prefer(self, fault: Fault) -> None:
        random = self._random(fault)
        request = pb.ElectLeadersRequest(policy=pb.ElectLeadersRequest.POLICY_PREFERRED)
        await self.ask(rpcs.ELECT_LEADERS, request, fault.length_s, random)

    async def _unclean(self, fault: Fault) -> None:
        """Request an unclean election of topics that permit it."""
        random = self._random(fault)
        places = [
            pb.TopicPartition(topic=topic.name, index=index)
            for topic in self.world.plan.topics
            if topic.unclean
            for index in range(topic.partitions)
        ]
        if places:
            policy = pb.ElectLeadersRequest.POLICY_UNCLEAN
            await self.ask(rpcs.ELECT_LEADERS, pb.ElectLeadersRequest(policy=policy, partitions=places), 1.0, random)

    # Replicas

    async def _reassign(self, fault: Fault) -> None:
        random = self._random(fault)
        plan = self.world.plan
        request = pb.AlterReassignmentsRequest(replace=fault.kind == "replace")
        if fault.kind == "throttle":
            request.throttle = THROTTLE
        for topic in random.sample(plan.topics, random.randint(1, len(plan.topics))):
            least = min(2, plan.brokers) if plan.wipes or topic.factor > 1 else 1
            count = random.randint(least, min(4, plan.brokers))
            index = random.randrange(topic.partitions)
            request.partitions.add(topic=topic.name, index=index, replicas=random.sample(plan.broker_ids, count))
        await self.ask(rpcs.ALTER_REASSIGNMENTS, request, fault.length_s, random)

    async def _cancel(self, fault: Fault) -> None:
        """Cancel all reassignments that are in progress.

        Most reassignments complete soon.  So start some first if none is in progress.
        """
        random = self._random(fault)
        if not self._reassigning():
            await self._reassign(fault)
            await asyncio.sleep(random.uniform(0, CANCEL_S))
        request = pb.AlterReassignmentsRequest()
        for name, partition in self._reassigning():
            request.partitions.add(topic=name, index=partition.index)
        if request.partitions:
            await self.ask(rpcs.ALTER_REASSIGNMENTS, request, fault.length_s, random)

    def _reassigning(self) -> list[tuple[str, PartitionImage]]:
        return [(name, one) for name, one in self._partitions() if one.reassigning]

    def _partitions(self) -> list[tuple[str, PartitionImage]]:
        """Return all partitions, each with the name of its topic."""
        topics = self.world.watch.metadata.image.topics.values()
        return [(topic.name, one) for topic in topics for one in topic.partitions if one is not None]

    async def _empty(self, node_id: int, random: Random) -> None:
        """Move all replicas of a broker to other brokers, including those that it gets meanwhile, for up to EMPTY_S."""
        loop = asyncio.get_running_loop()
        end = loop.time() + EMPTY_S
        while loop.time() < end and any(node_id in one.replica_ids for _, one in self._partitions()):
            request = pb.AlterReassignmentsRequest()
            for name, partition in self._partitions():
                ids = partition.replica_ids
                others = [one for one in self.world.plan.broker_ids if one not in ids]
                if node_id in ids and others and not partition.reassigning:
                    replicas = [random.choice(others) if one == node_id else one for one in ids]
                    request.partitions.add(topic=name, index=partition.index, replicas=replicas)
            if request.partitions:
                await self.ask(rpcs.ALTER_REASSIGNMENTS, request, PAUSE_S, random)
            await asyncio.sleep(PAUSE_S)

    # Nodes

    async def _unregister(self, fault: Fault) -> None:
        """Stop a broker, unregister it if it has no replicas, and start it again.

        Its replicas are moved away before, if there are enough brokers and no disk loses its data.
        """
        random = self._random(fault)
        world, node_id = self.world, fault.nodes[0]
        if world.plan.brokers > FACTOR_MAX and not world.plan.wipes:
            await self._empty(node_id, random)
        host = world.hosts[node_id]
        host.down += 1
        world.bring_down(node_id)
        await asyncio.sleep(FENCED_AFTER_S)
        request = pb.UnregisterBrokerRequest(broker_id=node_id)
        await self.ask(rpcs.UNREGISTER_BROKER, request, fault.length_s, random)
        host.down -= 1
        world.bring_up(node_id)

    async def _transfer(self, fault: Fault) -> None:
        random = self._random(fault)
        await self.ask(rpcs.TRANSFER_LEADER, pb.TransferLeaderRequest(), fault.length_s, random)


def _offsets_in(reply: Any, parts: list[Any]) -> Iterator[int]:
    """Yield the log ends at which the reply was decided.  The reply may have none if the whole request failed."""
    if isinstance(reply, pb.ChangeVotersReply) and not reply.offset:
        return  # no record was appended
    for answer in (reply, *parts):
        if reply.result.error == ApiError.NONE and hasattr(answer, "offset"):
            yield answer.offset
