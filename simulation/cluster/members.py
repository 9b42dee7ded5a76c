"""A group of the newer protocol (KIP-848): its members share the partitions of a topic and commit offsets.

I38: A partition has one owner in each epoch of the group.  I39: An acknowledged commit is never lost, and a commit of a
member is refused once another member owns the partition in a later epoch.  (Both hold unless a partition of the
coordinators has lost records in a permitted unclean election.)  L11: After the faults have ended, all members reach the
same epoch and own every partition together.

Each commit for a partition has a higher offset than all commits that were sent before.  After a commit without an
answer, a member continues under another member id: the old commit may still arrive, but the partition gets another
owner only after the old member has left the group.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any
from uuid import UUID

from metadata.image.internal_topics import CONSUMER_OFFSETS
from quorumlog.client.cluster import Cluster
from quorumlog.errors import ClusterError
from quorumlog.wire.errors import KafkaCode
from quorumlog.wire.kafka.codec import Api
from simulation.cluster.coordinators import GROUP_KEY, CoordinatorLink, GivenUpError
from simulation.cluster.metadata import Check
from simulation.cluster.plan import MEMBER_TOPIC
from simulation.cluster.world import ClusterWorld

GROUP = "consumers"
REBALANCE_MS = 2_000
ABSENT_S = 3.0
ABSENT_SHARE = 0.03
"""The probability that a member stops for longer than its session, and then commits."""
LEAVE_SHARE = 0.03
PATIENCE_S = 3.0
FRESH_S = 0.4
"""For this long after a heartbeat, in true time, no other member can own the same partitions, even with fast clocks."""
JOINING, LEAVING = 0, -1

Versions = {Api.CONSUMER_GROUP_HEARTBEAT: 1, Api.OFFSET_COMMIT: 9, Api.OFFSET_FETCH: 7}


class _AgainError(Exception):
    """The member must join again."""


@dataclass
class MemberWatch:
    """I38 and I39.  acknowledged: the highest committed offset by partition.  proposed: the highest that was sent.

    owners: the owner of each partition, by epoch and partition.
    last: by partition, the latest epoch in which a member owned it, and that member.
    """

    check: Check
    acknowledged: dict[int, int] = field(default_factory=dict)
    proposed: dict[int, int] = field(default_factory=dict)
    owners: dict[tuple[int, int], str] = field(default_factory=dict)
    last: dict[int, tuple[int, str]] = field(default_factory=dict)

    def owns(self, member_id: str, epoch: int, partitions: frozenset[int]) -> None:
        for partition in sorted(partitions):
            owner = self.owners.setdefault((epoch, partition), member_id)
            self.check(
                owner == member_id,
                lambda partition=partition, owner=owner: (  # type: ignore[misc]
                    f"I38: partition {partition} belongs to {owner} and {member_id} in epoch {epoch}"
                ),
            )
            self.last[partition] = max(self.last.get(partition, (-1, "")), (epoch, member_id))

    def fetched(self, partition: int, offset: int, least: int) -> None:
        """Check a committed offset.  least: the highest offset that was acknowledged when the request was sent."""
        self.check(offset >= least, lambda: f"I39: offset {least} of partition {partition} is committed, not {offset}")

    def successor(self, partition: int, member_id: str, epoch: int) -> str | None:
        """Return another member that owns the partition in a later epoch, or None."""
        later, owner = self.last.get(partition, (-1, ""))
        return owner if later > epoch and owner != member_id else None

    def committed(self, partition: int, offset: int, successor: str | None) -> None:
        """Check an acknowledged commit.  successor: the result of `successor` when the request was sent."""
        self.acknowledged[partition] = max(self.acknowledged.get(partition, -1), offset)
        self.check(
            successor is None, lambda: f"I39: offset {offset} of partition {partition} is accepted, {successor} owns it"
        )


class Members:
    """The members of the group, each on a host of its own.  new_client: returns a new `Cluster`."""

    def __init__(self, world: ClusterWorld, new_client: Callable[[], Cluster]) -> None:
        self.world = world
        self.watch = MemberWatch(self._check)
        self.stop = asyncio.Event()
        self.tasks: list[asyncio.Task[None]] = []
        self.current: dict[str, tuple[int, frozenset[int]]] = {}
        """By host: the epoch and partitions of a member that is in the group."""
        self.new_client = new_client

    def _check(self, holds: bool, text: Callable[[], str]) -> None:
        """Check a promise, unless a partition of the coordinators lost records in a permitted unclean election."""
        self.world.watch.check(holds or self.world.watch.answers.has_lost(CONSUMER_OFFSETS), text)

    def start(self) -> None:
        for name in self.world.plan.new_member_hosts:
            member = _Member(self, name, Random(f"{self.world.plan.seed} {name}"))
            self.tasks.append(self.world.start_client(name, member.run()))

    def unsettled(self) -> list[str]:
        """Return why the members do not own every partition together in one epoch."""
        epochs = {epoch for epoch, _ in self.current.values()}
        owned = sorted(index for _, partitions in self.current.values() for index in partitions)
        if len(self.current) == len(self.tasks) and len(epochs) == 1 and owned == self.partitions:
            return []
        return [f"{name}: {state}" for name, state in sorted(self.current.items())] or ["no member is in the group"]

    @property
    def partitions(self) -> list[int]:
        return list(range(self.world.plan.new_member_partitions))

    async def check_committed(self) -> None:
        """Compare all committed offsets with those that were acknowledged."""
        async with self.new_client() as cluster:
            link = CoordinatorLink(cluster, Random(0))
            await self.fetch(link, self.partitions)
            await link.close()

    async def fetch(self, link: CoordinatorLink, partitions: list[int], since_s: float | None = None) -> None:
        """Fetch committed offsets.

        since_s: the time of the heartbeat that assigned the partitions.  Late answers are ignored.
        """
        least = {partition: self.watch.acknowledged.get(partition, -1) for partition in partitions}
        topics = [{"name": MEMBER_TOPIC, "partition_indexes": partitions}]
        found = await link.ask(
            (GROUP_KEY, GROUP),
            Api.OFFSET_FETCH,
            Versions[Api.OFFSET_FETCH],
            {"group_id": GROUP, "topics": topics, "require_stable": True},
            lambda reply: reply.error_code,
            (),
            PATIENCE_S,
        )
        if since_s is None or self.world.loop.true_time() - since_s < FRESH_S:
            for row in found.topics[0].partitions if not found.error_code else ():
                self.watch.fetched(row.partition_index, row.committed_offset, least[row.partition_index])


class _Member:
    def __init__(self, group: Members, name: str, random: Random) -> None:
        self._group = group
        self._watch = group.watch
        self._name = name
        self._random = random
        self._lives = 0
        self._member_id = f"{name}-0"
        self._epoch = JOINING
        self._owned: frozenset[int] = frozenset()
        self._topic_id = UUID(int=0)
        self._is_full = True

    async def run(self) -> None:
        async with self._group.new_client() as cluster:
            while not self._group.stop.is_set():
                link = self._link = CoordinatorLink(cluster, self._random)
                try:
                    await self._be_member(cluster)
                except (ClusterError, GivenUpError, _AgainError):
                    self._group.world.watch.seen["member of the newer protocol started over"] += 1
                    await asyncio.sleep(self._random.uniform(0.05, 0.2))
                finally:
                    self._lose_all()
                    await link.close()

    def _lose_all(self) -> None:
        self._epoch, self._owned, self._is_full = JOINING, frozenset(), True
        self._group.current.pop(self._name, None)

    def _renew(self) -> None:
        """Continue under another member id."""
        self._lives += 1
        self._member_id = f"{self._name}-{self._lives}"

    async def _be_member(self, cluster: Cluster) -> None:
        states = await cluster.topic_states([MEMBER_TOPIC], PATIENCE_S)
        topic_id = states[MEMBER_TOPIC].topic_id if MEMBER_TOPIC in states else None
        if topic_id is None:  # the broker does not know the topic yet
            raise _AgainError
        self._topic_id = topic_id
        while not self._group.stop.is_set():
            await self._beat()
            if self._random.random() < ABSENT_SHARE:
                await asyncio.sleep(ABSENT_S)  # others may get its partitions without its knowledge
            if self._owned:
                await self._commit(self._random.choice(sorted(self._owned)))
            await asyncio.sleep(self._random.uniform(0.05, 0.3))
            if self._random.random() < LEAVE_SHARE:
                break
        self._epoch = LEAVING
        await self._ask_to_stay()
        self._renew()

    async def _beat(self) -> None:
        """Send a heartbeat, and take over the partitions in its answer."""
        reply = await self._ask_to_stay()
        self._epoch = int(reply.member_epoch)
        self._is_full = self._link.is_in_doubt or self._random.random() < 0.3
        self._link.is_in_doubt = False
        if reply.assignment is not None:
            rows = reply.assignment.topic_partitions
            given = frozenset(index for row in rows if row.topic_id == self._topic_id for index in row.partitions)
            more = given - self._owned
            self._is_full = self._is_full or given != self._owned
            self._owned = given
            if more:
                await self._group.fetch(self._link, sorted(more), self._group.world.loop.true_time())
        self._watch.owns(self._member_id, self._epoch, self._owned)
        self._group.current[self._name] = (self._epoch, self._owned)
        self._group.world.watch.seen["heartbeat of the newer protocol"] += 1

    async def _ask_to_stay(self) -> Any:
        values: dict[str, Any] = {
            "group_id": GROUP,
            "member_id": self._member_id,
            "member_epoch": self._epoch,
            "rebalance_timeout": -1,
            "subscribed_topic_names": None,
            "topic_partitions": None,
        }
        if self._is_full or self._epoch == JOINING:
            owned = [{"topic_id": self._topic_id, "partitions": sorted(self._owned)}] if self._owned else []
            values |= {
                "rebalance_timeout": REBALANCE_MS,
                "subscribed_topic_names": [MEMBER_TOPIC],
                "topic_partitions": owned,
            }
        api = Api.CONSUMER_GROUP_HEARTBEAT
        reply = await self._link.ask(
            (GROUP_KEY, GROUP), api, Versions[api], values, lambda reply: reply.error_code, (), PATIENCE_S
        )
        if reply.error_code:
            raise _AgainError
        return reply

    async def _commit(self, partition: int) -> None:
        watch = self._watch
        offset = watch.proposed[partition] = watch.proposed.get(partition, -1) + 1
        successor = watch.successor(partition, self._member_id, self._epoch)
        row = {"partition_index": partition, "committed_offset": offset, "committed_metadata": ""}
        values = {
            "group_id": GROUP,
            "member_id": self._member_id,
            "generation_id_or_member_epoch": self._epoch,
            "topics": [{"name": MEMBER_TOPIC, "partitions": [row]}],
        }
        connection = await self._link.coordinator((GROUP_KEY, GROUP))
        try:
            answer = await connection.ask(Api.OFFSET_COMMIT, Versions[Api.OFFSET_COMMIT], values, 1.0)
        except ClusterError:
            self._renew()
            raise
        code = answer.topics[0].partitions[0].error_code
        if not code:
            watch.committed(partition, offset, successor)
            self._group.world.watch.seen["offset committed with the newer protocol"] += 1
        elif code != KafkaCode.STALE_MEMBER_EPOCH:
            self._renew()  # the commit may be applied nevertheless
            raise _AgainError
