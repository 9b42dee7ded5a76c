"""The checks after all faults of a cluster have ended: liveness within time limits, and reading everything back."""

from __future__ import annotations

import asyncio

from metadata.image.internal_topics import TRANSACTION_STATE
from metadata.records import METADATA_VERSION, METADATA_VERSION_MAX
from quorumlog.client.consumer import EARLIEST, LATEST, Consumer, OffsetOutOfRangeError
from quorumlog.errors import ClusterError
from quorumlog.wire import rpcs
from quorumlog.wire.errors import ApiError
from quorumlog.wire.v1 import controller_pb2 as pb
from simulation.cluster.clients import REQUEST_S, Clients
from simulation.cluster.coordinators import GivenUpError, letters_of_group, quick_groups, topics_of
from simulation.cluster.history import History
from simulation.cluster.metadata import Spot
from simulation.cluster.orders import Orders
from simulation.cluster.places import unsettled
from simulation.cluster.plan import TopicPlan
from simulation.cluster.releases import Releases
from simulation.cluster.rests import admission, missing_letters
from simulation.cluster.world import ClusterWorld
from simulation.kernel.violation import Violation

READY_S = 30.0
REPORTED_S = 10.0
WHOLE_S = 30.0
DRAIN_S = 20.0
READ_S = 20.0
MOVES_S = 30.0
GROUP_S = 30.0
MEMBERS_S = 50.0
"""A member that sends a heartbeat before the broker applies the configs of the run gets a session of 45 s."""
TRANSACTIONS_S = 30.0
QUEUE_S = 40.0
LETTERS_S = 60.0
"""A leader pauses for up to 10 s after letters were refused.  A share coordinator looks for missing letters every 5 s,
and reminds a leader after the second look."""
HANGING_S = 90.0
"""The limit for reading transactions back.  A leader may first have to end a transaction whose marker was lost."""


def not_ready(world: ClusterWorld) -> list[str]:
    """Return the brokers that do not serve, and why."""
    found = []
    for host in world.brokers:
        with world.loop.as_process(host.process):
            if host.broker is None:
                found.append(f"{host.name} is down")
            elif not (ready := host.broker.is_ready())[0]:
                found.append(f"{host.name}: {ready[1]}")
    return found


class Aftermath:
    """The final checks of one run."""

    def __init__(self, world: ClusterWorld, clients: Clients, releases: Releases) -> None:
        self.world = world
        self.clients = clients
        self.releases = releases

    async def create_topics(self) -> None:
        """Create the topics of the plan."""
        orders, random = Orders(self.world), self.world.fresh_random()
        wanted = []
        for topic in self.world.plan.topics:
            new = pb.NewTopic(name=topic.name, partitions=topic.partitions, replication_factor=topic.factor)
            for key, value in topic.configs.items():
                new.configs.add(key=key, value=value)
            wanted.append(new)
        for new in (*wanted, *topics_of(self.world.plan)):
            reply = await orders.ask(rpcs.CREATE_TOPICS, pb.CreateTopicsRequest(topics=[new]), READY_S, random)
            words = [] if reply is None else [each.result.error for each in reply.topics]
            if words not in ([ApiError.NONE], [ApiError.TOPIC_ALREADY_EXISTS]):
                raise Violation(f"L2: {new.name} cannot be created: {reply}")
        if self.world.plan.group_members or self.world.plan.new_members or self.world.plan.workers:
            await orders.ask(rpcs.ALTER_CONFIGS, quick_groups(self.world.plan), READY_S, random)
        if self.world.plan.letter_partitions:
            level = pb.UpgradeFeatureRequest(name=METADATA_VERSION, level=METADATA_VERSION_MAX)
            await orders.ask(rpcs.UPGRADE_FEATURE, level, READY_S, random)
            altered = await orders.ask(rpcs.ALTER_CONFIGS, letters_of_group(self.world.plan), READY_S, random)
            if altered is None or [each.result.error for each in altered.resources] != [ApiError.NONE]:
                raise Violation(f"L2: the share group gets no dead-letter topic: {altered}")
        if self.world.plan.rest is not None and self.world.plan.rest.refuses:
            await self._admit_letters(admits=False)

    async def _admit_letters(self, *, admits: bool) -> None:
        random = self.world.fresh_random()
        altered = await Orders(self.world).ask(rpcs.ALTER_CONFIGS, admission(admits=admits), READY_S, random)
        if altered is None or [each.result.error for each in altered.resources] != [ApiError.NONE]:
            raise Violation(f"L2: the config of the dead-letter topic cannot be changed: {altered}")

    async def check(self) -> None:
        """Check that the cluster recovers.

        Raises:
            Violation: it does not.
        """
        world = self.world
        await world.wait(
            lambda: not self._unreported(), "L7: failed disks are known to the cluster", REPORTED_S, self._unreported
        )
        for host in world.brokers:
            if host.process is not None and any(disk.is_broken for disk in host.disks):
                world.bring_down(host.config.node_id)
                world.bring_up(host.config.node_id)
        await world.wait(lambda: not not_ready(world), "L1: all brokers are ready", READY_S, lambda: not_ready(world))
        await self._wait_until_whole()
        await world.wait(lambda: not self._moving(), "L14: all moves have ended", MOVES_S, self._moving)
        group = self.clients.group
        if group.tasks:
            await world.wait(lambda: not group.unsettled(), "L9: the group is stable", GROUP_S, group.unsettled)
        if self.clients.members.tasks:
            await self._settle_members()
        if self.clients.transactions.tasks:
            await self._end_transactions()
        if self.clients.scopes.tasks:
            await self._end_scopes()
        await self._drain()
        if self.world.plan.rest is not None:
            await self._write_letters(refused=self.world.plan.rest.refuses)
        if self.clients.workers.tasks:
            await self._finish_queue()
        await world.wait(lambda: not self._not_quiet(), "L4: all replicas are equal", WHOLE_S, self._not_quiet)
        try:
            async with asyncio.timeout(READ_S):
                await self._read_all()
        except TimeoutError:
            raise Violation(f"L5: reading all records took more than {READ_S} s") from None
        self._last_checks()

    async def _settle_members(self) -> None:
        """L11: wait until the members of the newer protocol own every partition, compare offsets, and stop them."""
        members = self.clients.members
        await self.world.wait(lambda: not members.unsettled(), "L11: members settle", MEMBERS_S, members.unsettled)
        try:
            async with asyncio.timeout(DRAIN_S):
                await members.check_committed()
        except (TimeoutError, GivenUpError):
            raise Violation(f"L11: the committed offsets cannot be read within {DRAIN_S} s") from None
        members.stop.set()
        _, late = await asyncio.wait(members.tasks, timeout=DRAIN_S)
        self._check_finished(late, "L11: members have not left")

    async def _end_transactions(self) -> None:
        """L10: wait until every transactional id has committed again and no transaction is open, then read all back."""
        transactions = self.clients.transactions
        transactions.stop.set()
        _, late = await asyncio.wait(transactions.tasks, timeout=TRANSACTIONS_S)
        self._check_finished(late, "L10: transactional producers have not finished", TRANSACTIONS_S)
        if self._coordinators_have_lost():
            return
        unsettled = transactions.ledger.unsettled
        await self.world.wait(lambda: not unsettled(), "L10: all transactions have ended", TRANSACTIONS_S, unsettled)
        try:
            async with asyncio.timeout(HANGING_S):
                await transactions.check_all()
        except (TimeoutError, GivenUpError) as error:
            raise Violation(f"L10: transactions cannot be read in {HANGING_S} s: {error}") from None

    async def _end_scopes(self) -> None:
        """L13: wait until every scope has ended once more and no transaction is open, then read all records."""
        scopes = self.clients.scopes
        scopes.stop.set()
        _, late = await asyncio.wait(scopes.tasks, timeout=TRANSACTIONS_S)
        self._check_finished(late, "L13: drivers of scopes have not finished", TRANSACTIONS_S)
        scopes.end_producers()
        if self._coordinators_have_lost():
            return
        unsettled = scopes.ledger.unsettled
        await self.world.wait(lambda: not unsettled(), "L13: all producers of scopes end", TRANSACTIONS_S, unsettled)
        try:
            async with asyncio.timeout(HANGING_S):
                await scopes.check_all()
        except (TimeoutError, ClusterError) as error:
            raise Violation(f"L13: results cannot be read in {HANGING_S} s: {error}") from None

    def _coordinators_have_lost(self) -> bool:
        """Return whether coordinators lost transactions because a disk was restored from a backup.

        Such transactions hang until an operator aborts them, so their records cannot be read back.
        """
        return self.world.watch.answers.has_lost(TRANSACTION_STATE)

    async def _write_letters(self, *, refused: bool) -> None:
        """L15: wait until no dead letter is missing while no worker fetches, then let the workers continue."""
        world, workers = self.world, self.clients.workers
        await world.wait(lambda: not workers.at_work, "L15: workers rest", DRAIN_S, lambda: workers.at_work)
        if refused:
            world.watch.seen["dead letters refused during the run"] += len(missing_letters(workers))
            await self._admit_letters(admits=True)
        await world.wait(
            lambda: not missing_letters(workers),
            "L15: all dead letters are written",
            LETTERS_S,
            lambda: missing_letters(workers),
        )
        workers.working.set()

    async def _finish_queue(self) -> None:
        """L12: wait until the workers have completed every record, then stop the workers."""
        workers = self.clients.workers
        workers.are_diligent = True
        await self.world.wait(
            lambda: not workers.unfinished(), "L12: all records are complete", QUEUE_S, workers.unfinished
        )
        workers.stop.set()
        _, late = await asyncio.wait(workers.tasks, timeout=DRAIN_S)
        self._check_finished(late, "L12: workers have not left")
        workers.watch.judge(self.world.loop.true_time())

    def _unreported(self) -> list[str]:
        """Return the failed directories of running brokers that the metadata treats as working."""
        image = self.world.watch.metadata.image
        found = []
        for host in self.world.brokers:
            known = image.brokers.get(host.config.node_id)
            if host.broker is None or known is None:
                continue
            for directory_id in host.broker.role.logs.failed_disks:
                if directory_id not in known.directories_offline and len(host.disks) > 1:
                    found.append(f"{host.name}: {directory_id}")
        return found

    def _not_whole(self) -> list[str]:
        """Return the partitions without a leader, with replicas out of sync or being reassigned, and nodes that lag."""
        image = self.world.watch.metadata.image
        found = []
        for topic in image.topics.values():
            for partition in topic.partitions:
                assert partition is not None
                if not partition.isr and self.world.plan.wipes and topic.name.startswith("extra"):
                    continue  # only one replica was in sync, and its disk was lost
                if partition.leader < 0 or set(partition.isr) != set(partition.replica_ids) or partition.reassigning:
                    found.append(f"{topic.name}: {partition}")
        behind = [
            f"{host.name} is at {end} of {image.end_offset}"
            for host in self.world.hosts.values()
            if (end := -1 if host.plane is None else host.plane.replay.image.end_offset) < image.end_offset
        ]
        return found + behind

    def _moving(self) -> list[str]:
        """Return the unfinished moves between directories, the remains of finished ones, and misplaced replicas."""
        world = self.world
        runs = world.watch.evidence.runs
        found = [
            f"{host.name}: {problem}"
            for host in world.brokers
            if host.config.node_id in runs
            for problem in unsettled(runs[host.config.node_id], host.disks)
        ]
        return found + self._misplaced()

    def _misplaced(self) -> list[str]:
        """Return the replicas that are not in the directory that the metadata names."""
        found = []
        for host in self.world.brokers:
            for replica in () if host.broker is None else host.broker.role.table:
                topic = self.world.watch.metadata.image.topics.get(replica.topic_id)
                partition = None if topic is None else topic.partition(replica.key.index)
                known = None if partition is None else partition.replica(host.config.node_id)
                if replica.log is not None and known is not None and known.directory_id != replica.log.directory_id:
                    found.append(f"{host.name}: {replica} is in {replica.log.directory_id}, the metadata names {known}")
        return found

    async def _wait_until_whole(self) -> None:
        await self.world.wait(lambda: not self._not_whole(), "L3: everything is in sync", WHOLE_S, self._not_whole)

    async def _drain(self) -> None:
        clients = self.clients
        clients.stop_writing.set()
        _, late = await asyncio.wait(clients.writing, timeout=DRAIN_S)
        self._check_finished(late, "L4: producers have not finished")
        clients.stop_reading.set()
        _, late = await asyncio.wait(clients.reading, timeout=DRAIN_S)
        self._check_finished(late, "L4: consumers have not finished")
        group = clients.group
        if group.tasks:
            try:
                async with asyncio.timeout(DRAIN_S):
                    await group.check_committed()
            except TimeoutError:
                raise Violation(f"L9: the committed offsets cannot be read within {DRAIN_S} s") from None
            group.stop.set()
            _, late = await asyncio.wait(group.tasks, timeout=DRAIN_S)
            self._check_finished(late, "L9: members have not left")

    def _check_finished(self, late: set[asyncio.Task[None]], problem: str, time_s: float = DRAIN_S) -> None:
        if self.world.violation is not None:
            raise Violation(self.world.violation)
        if late:
            raise Violation(f"{problem} within {time_s} s: {len(late)}")

    def _not_quiet(self) -> list[str]:
        """Return the results of `_not_whole`, and the replicas that differ from the metadata or the committed log."""
        world = self.world
        image = world.watch.metadata.image
        found = self._not_whole()
        for host in world.brokers:
            if host.broker is None:
                return [f"{host.name} is down"]
            node_id, table = host.config.node_id, host.broker.role.table
            wanted = {
                (topic.topic_id, one.index)
                for topic in image.topics.values()
                for one in topic.partitions
                if one is not None and one.replica(node_id) is not None
            }
            hosted = {tuple(one.partition) for one in table}
            if hosted != wanted:
                found.append(f"{host.name} has {sorted(hosted)}, it should have {sorted(wanted)}")
            for one in table:
                if one.log is None:
                    found.append(f"{host.name}: {one}: {one.offline}")
                    continue
                history = world.watch.history(one.key)
                end = None if history is None else history.end
                state = (one.log.end_offset, one.log.flushed_offset)
                if state != (end, end):
                    found.append(f"{host.name}: {one} ends at {state}, the committed end is {end}")
        return found

    # Reading back

    async def _read_all(self) -> None:
        async with self.clients.cluster() as cluster:
            consumer = Consumer(cluster, timeout_s=READ_S, request_timeout_s=REQUEST_S)
            for topic in self.world.plan.topics:
                for index in range(topic.partitions):
                    await self._read(consumer, topic, Spot(topic.name, index))

    async def _read(self, consumer: Consumer, topic: TopicPlan, spot: Spot) -> None:
        watch = self.world.watch
        history = watch.current(spot)
        if history is None:
            if topic.passing:
                return
            raise Violation(f"I20: {spot} does not exist")
        end = (await consumer.list_offset(spot.topic, spot.index, LATEST)).offset
        watch.check(end == history.end, lambda: f"I21: the latest offset of {spot} is {end}, committed {history.end}")
        offset = (await consumer.list_offset(spot.topic, spot.index, EARLIEST)).offset
        watch.answers.listed_earliest("last", spot, offset)
        while offset < end:
            before = offset
            try:
                offset = await self.clients.read("last", consumer, spot, offset)
            except OffsetOutOfRangeError as error:  # retention continues to delete records
                watch.answers.refused("last", spot, error.offset)
                offset = error.start
            if offset == before and self._not_whole():
                # This read has found damage.  The next leader cannot advance its watermark while fewer than
                # min.insync.replicas are in sync, so the last records become readable only after the operator has
                # replaced the damaged replica.
                await self._wait_until_whole()
                continue
            watch.check(offset > before, lambda offset=offset: f"I21: {spot} returns no records at {offset} of {end}")  # type: ignore[misc]

    def _last_checks(self) -> None:
        world = self.world
        watch, image = world.watch, world.watch.metadata.image
        watch.read_damaged()
        watch.read_compacted()
        watch.check(
            image.end_offset >= world.promised_offset,
            lambda: f"I14: metadata up to {world.promised_offset} was promised, the log ends at {image.end_offset}",
        )
        if (problem := self.releases.problem()) is not None:
            raise Violation(problem)
        lost = world.promised_topics - watch.metadata.topic_ids
        watch.check(not lost, lambda: f"I14: the log never contained these created topics: {lost}")
        for topic in world.plan.topics:
            if topic.keeps_all:
                for index in range(topic.partitions):
                    count = len(watch.named(Spot(topic.name, index)))
                    watch.check(
                        count == 1,
                        lambda topic=topic, index=index, count=count: (
                            f"I20: {topic.name}-{index} was created {count} times"
                        ),  # type: ignore[misc]
                    )
        for spot, offset, marks in world.by_leader_only:
            kept = any(_has(history, offset, marks) for history in watch.named(spot))
            watch.seen["acks=1 kept" if kept else "acks=1 lost"] += 1


def _has(history: History, offset: int, marks: tuple[object, ...]) -> bool:
    return all(history.mark_at(offset + place) == mark for place, mark in enumerate(marks))
