"""A consumer group of simulated clients: its members share the partitions of a topic and commit offsets.

I30: An acknowledged commit is never lost, and a commit of an earlier generation is refused once a member has joined a
later one.  I31: a partition has one owner in each generation of the group.  (Both hold unless a partition of the
coordinators has lost records in a permitted unclean election.)  L9: after healing, the members form one stable
generation that owns every partition.

Each commit for a partition has a higher offset than all commits that any member has sent before.  So an offset that a
coordinator returns may be higher than the last acknowledged one, but not lower.  After a commit without an answer, a
member joins again under a new member id: the old commit may still be applied, but not after a later generation has
begun.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any

from metadata.image.internal_topics import CONSUMER_OFFSETS
from quorumlog.client.cluster import Cluster
from quorumlog.client.kafka import KafkaConnection
from quorumlog.errors import ClusterError
from quorumlog.wire.errors import KafkaCode
from quorumlog.wire.kafka.codec import Api
from simulation.cluster.coordinators import CONNECT_S, REQUEST_S
from simulation.cluster.metadata import Check
from simulation.cluster.plan import GROUP_TOPIC
from simulation.cluster.world import ClusterWorld

GROUP = "group"
SESSION_MS = 2_000
REBALANCE_MS = 2_000
ABSENT_S = 3.0
ABSENT_SHARE = 0.03
"""The probability that a member stops for longer than its session, and then commits."""
JOIN_S = 6.0

Versions = {
    Api.FIND_COORDINATOR: 3,
    Api.JOIN_GROUP: 5,
    Api.SYNC_GROUP: 3,
    Api.HEARTBEAT: 3,
    Api.LEAVE_GROUP: 1,
    Api.OFFSET_COMMIT: 7,
    Api.OFFSET_FETCH: 7,
}


class _AgainError(Exception):
    """A member must find its coordinator again, or join again."""


@dataclass
class GroupWatch:
    """I30 and I31.

    acknowledged: the highest acknowledged offset of each partition.  proposed: the highest offset sent for each.
    """

    check: Check
    acknowledged: dict[int, int] = field(default_factory=dict)
    proposed: dict[int, int] = field(default_factory=dict)
    owners: dict[tuple[int, int], str] = field(default_factory=dict)
    newest_generation: int = -1
    commits: int = 0

    def joined(self, member_id: str, generation: int, partitions: list[int]) -> None:
        self.newest_generation = max(self.newest_generation, generation)
        for partition in partitions:
            owner = self.owners.setdefault((generation, partition), member_id)
            self.check(
                owner == member_id,
                lambda: f"I31: partition {partition} belongs to {owner} and {member_id} in generation {generation}",  # noqa: B023
            )

    def fetched(self, partition: int, offset: int, least: int) -> None:
        """Check a committed offset.  least: the highest offset that was acknowledged when the request was sent."""
        self.check(offset >= least, lambda: f"I30: offset {least} of partition {partition} is committed, not {offset}")

    def committed(self, partition: int, offset: int, generation: int, newest: int) -> None:
        """Check an acknowledged commit.  newest: the newest generation that was joined when the request was sent."""
        self.commits += 1
        self.acknowledged[partition] = max(self.acknowledged.get(partition, -1), offset)
        self.check(
            generation >= newest,
            lambda: f"I30: a commit of generation {generation} is acknowledged, although {newest} has begun",
        )


class Group:
    """The members of the group, each on a host of its own."""

    def __init__(self, world: ClusterWorld, new_client: Any) -> None:
        """new_client: returns a new `Cluster`."""
        self.world = world
        self.watch = GroupWatch(self._check)
        self.stop = asyncio.Event()
        self.tasks: list[asyncio.Task[None]] = []
        self.current: dict[str, tuple[int, tuple[int, ...]]] = {}
        """By host: the generation and partitions of a member that is in the group."""
        self._new_client = new_client

    def _check(self, holds: bool, text: Callable[[], str]) -> None:
        """Check a promise, unless a partition of the coordinators lost records in a permitted unclean election."""
        self.world.watch.check(holds or self.world.watch.answers.has_lost(CONSUMER_OFFSETS), text)

    def start(self) -> None:
        for name in self.world.plan.member_hosts:
            member = _Member(self, name, self.world.fresh_random())
            self.tasks.append(self.world.start_client(name, member.run()))

    def unsettled(self) -> list[str]:
        """Return why the members do not form one generation that owns every partition."""
        generations = {generation for generation, _ in self.current.values()}
        owned = sorted(index for _, partitions in self.current.values() for index in partitions)
        wanted = list(range(self.world.plan.group_partitions))
        if len(self.current) == len(self.tasks) and len(generations) == 1 and owned == wanted:
            return []
        return [f"{name}: {state}" for name, state in sorted(self.current.items())] or ["no member is in the group"]

    async def check_committed(self) -> None:
        """Compare all committed offsets with those that were acknowledged."""
        async with self._new_client() as cluster:
            member = _Member(self, "last", Random(0))
            await member.until_answered(cluster, member.fetch_all)


class _Member:
    """One member of the group, as a client.  Its member id is empty until the coordinator has assigned one."""

    def __init__(self, group: Group, name: str, random: Random) -> None:
        self._group = group
        self._watch = group.watch
        self._name = name
        self._random = random
        self._member_id = ""
        self._connection: KafkaConnection | None = None

    async def run(self) -> None:
        async with self._group._new_client() as cluster:
            while not self._group.stop.is_set():
                await self._attempt(cluster, self._be_member)
            await self._attempt(cluster, self._leave)

    async def until_answered(self, cluster: Cluster, work: Any) -> None:
        while not await self._attempt(cluster, work):
            pass

    async def _attempt(self, cluster: Cluster, work: Any) -> bool:
        """Run `work` at the coordinator; return whether it succeeded."""
        try:
            async with await self._find(cluster) as self._connection:
                await work()
            return True
        except (ClusterError, _AgainError):
            self._group.world.watch.seen["group member started over"] += 1
            await asyncio.sleep(self._random.uniform(0.05, 0.2))
            return False
        finally:
            self._group.current.pop(self._name, None)

    async def _find(self, cluster: Cluster) -> KafkaConnection:
        broker = await cluster.any_broker(REQUEST_S)
        found = await broker.ask(Api.FIND_COORDINATOR, Versions[Api.FIND_COORDINATOR], {"key": GROUP}, REQUEST_S)
        if found.error_code:
            raise _AgainError
        connection = KafkaConnection(found.host, found.port)
        await connection.connect(CONNECT_S)
        return connection

    async def _ask(self, api: Api, values: dict[str, Any], timeout_s: float = REQUEST_S) -> Any:
        assert self._connection is not None
        values = {"group_id": GROUP, "member_id": self._member_id, **values}
        return await self._connection.ask(api, Versions[api], values, timeout_s)

    def _judge(self, code: int) -> None:
        """Raise _AgainError unless the request succeeded."""
        if code in (KafkaCode.UNKNOWN_MEMBER_ID, KafkaCode.ILLEGAL_GENERATION):
            self._member_id = ""
        if code:
            raise _AgainError

    async def _be_member(self) -> None:
        """Join and work until the run stops.  After each rebalance, join again."""
        while True:
            generation, partitions = await self._join()
            offsets = await self.fetch(partitions)
            self._group.current[self._name] = (generation, tuple(partitions))
            if not await self._work(generation, offsets):
                return
            self._group.current.pop(self._name, None)

    async def _join(self) -> tuple[int, list[int]]:
        protocols = [{"name": "simple", "metadata": b"all"}]
        timeouts = {"session_timeout": SESSION_MS, "rebalance_timeout": REBALANCE_MS}
        values = {**timeouts, "protocol_type": "consumer", "protocols": protocols}
        joined = await self._ask(Api.JOIN_GROUP, values, JOIN_S)
        if joined.error_code == KafkaCode.MEMBER_ID_REQUIRED:
            self._member_id = joined.member_id
            joined = await self._ask(Api.JOIN_GROUP, values, JOIN_S)
        self._judge(joined.error_code)
        self._member_id = joined.member_id
        assignments = []
        if joined.leader == self._member_id:
            members = sorted(each.member_id for each in joined.members)
            for place, member_id in enumerate(members):
                own = range(place, self._group.world.plan.group_partitions, len(members))
                assignments.append({"member_id": member_id, "assignment": bytes(own)})
        synced = await self._ask(
            Api.SYNC_GROUP, {"generation_id": joined.generation_id, "assignments": assignments}, JOIN_S
        )
        self._judge(synced.error_code)
        partitions = list(synced.assignment)
        self._watch.joined(self._member_id, joined.generation_id, partitions)
        return joined.generation_id, partitions

    async def fetch_all(self) -> None:
        await self.fetch(list(range(self._group.world.plan.group_partitions)))

    async def fetch(self, partitions: list[int]) -> dict[int, int]:
        least = {partition: self._watch.acknowledged.get(partition, -1) for partition in partitions}
        topics = [{"name": GROUP_TOPIC, "partition_indexes": partitions}]
        found = await self._ask(Api.OFFSET_FETCH, {"topics": topics, "require_stable": True})
        self._judge(found.error_code)
        offsets = {}
        for topic in found.topics:
            for row in topic.partitions:
                self._judge(row.error_code)
                self._watch.fetched(row.partition_index, row.committed_offset, least[row.partition_index])
                offsets[row.partition_index] = row.committed_offset
        return offsets

    async def _work(self, generation: int, offsets: dict[int, int]) -> bool:
        """Commit and send heartbeats.  Return False when the run stops, True if the group rebalances."""
        while not self._group.stop.is_set():
            beat = await self._ask(Api.HEARTBEAT, {"generation_id": generation})
            if beat.error_code == KafkaCode.REBALANCE_IN_PROGRESS:
                return True
            self._judge(beat.error_code)
            if self._random.random() < ABSENT_SHARE:
                await asyncio.sleep(ABSENT_S)  # meanwhile, the others may begin a later generation
            if offsets:
                await self._commit(generation, self._random.choice(sorted(offsets)))
            await asyncio.sleep(self._random.uniform(0.05, 0.3))
        return False

    async def _commit(self, generation: int, partition: int) -> None:
        watch = self._watch
        offset = watch.proposed[partition] = watch.proposed.get(partition, -1) + 1
        newest = watch.newest_generation
        row = {"partition_index": partition, "committed_offset": offset, "committed_metadata": ""}
        values = {
            "generation_id_or_member_epoch": generation,
            "topics": [{"name": GROUP_TOPIC, "partitions": [row]}],
        }
        try:
            answer = await self._ask(Api.OFFSET_COMMIT, values)
        except ClusterError:
            self._member_id = ""
            raise
        code = answer.topics[0].partitions[0].error_code
        if not code:
            watch.committed(partition, offset, generation, newest)
            self._group.world.watch.seen["offset committed"] += 1
        elif code != KafkaCode.REBALANCE_IN_PROGRESS:
            self._member_id = ""  # the commit may be applied nevertheless
            raise _AgainError

    async def _leave(self) -> None:
        if self._member_id:
            await self._ask(Api.LEAVE_GROUP, {})
