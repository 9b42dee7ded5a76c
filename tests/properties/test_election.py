"""Elections against a slow, obvious twin, and histories: a cleanly elected leader has all committed records."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from metadata.control.configs import Changes, Resource, alter_configs
from metadata.control.election import Elected, Policy, elect
from metadata.control.partitions import Assignment, IsrChange, Member, alter_partition, assign_directories
from metadata.image import PartitionImage
from metadata.records import LOST, NO_LEADER, ConfigScope, PartitionChange, Reason, Replica
from tests.unit.metadata.builders import Cluster, check_invariants, directory

ids = st.integers(1, 5)
id_lists = st.lists(ids, min_size=1, max_size=5, unique=True)


def twin(
    now: PartitionImage, order: list[int], isr: set[int], alive: set[int], lost: set[int], policy: Policy, min_isr: int
) -> Elected:
    """The rules one by one, as sets."""

    def ordered(members: set[int]) -> tuple[int, ...]:
        return tuple(each for each in order if each in members)

    sound = set(order) - lost
    staying = isr & sound
    if not staying:
        staying = set(now.isr) & sound
    once_in_sync = (set(now.isr) | set(now.elr)) & sound
    leader, new_isr, unclean = NO_LEADER, staying, False
    in_sync_and_alive = ordered(staying & alive)
    eligible_and_alive = ordered(once_in_sync & alive)
    any_alive = ordered(alive)
    if in_sync_and_alive:
        leader = in_sync_and_alive[0]
        if now.leader in in_sync_and_alive:
            leader = now.leader
        if policy is Policy.PREFERRED and order[0] in in_sync_and_alive:
            leader = order[0]
    elif eligible_and_alive and policy is not Policy.REASSIGNED:
        leader = eligible_and_alive[0]
        new_isr = {leader}
    elif any_alive and policy is Policy.UNCLEAN:
        leader = any_alive[0]
        new_isr, unclean = {leader}, True
    enough = len(new_isr) >= min(min_isr, len(order))
    elr = set() if enough or unclean else once_in_sync - new_isr
    return Elected(leader, ordered(new_isr), ordered(elr), unclean)


@settings(max_examples=2000, deadline=None)
@given(
    id_lists, id_lists, st.sets(ids), st.sets(ids), st.sets(ids), st.sampled_from(Policy), st.integers(1, 4), st.data()
)
def test_an_election_has_the_same_outcome_as_a_slow_implementation_of_its_rules(
    before: list[int], order: list[int], isr: set[int], alive: set[int], lost: set[int], policy: Policy, min_isr: int,
    data: st.DataObject,
) -> None:  # fmt: skip
    old_isr = data.draw(st.lists(st.sampled_from(before), unique=True))
    rest = [each for each in before if each not in old_isr]
    old_elr = data.draw(st.lists(st.sampled_from(rest), unique=True)) if rest else []
    leader = data.draw(st.sampled_from([NO_LEADER, *old_isr]))
    now = PartitionImage(0, 0, tuple([Replica(each) for each in before]), tuple(old_isr), tuple(old_elr), leader=leader)
    target = None if data.draw(st.booleans()) else tuple([Replica(each) for each in order])
    in_force = before if target is None else order
    found = elect(
        now, isr, lambda replica: replica.broker_id in alive, policy, min_isr=min_isr, replicas=target, lost=lost
    )
    assert found == twin(now, in_force, isr, alive, lost, policy, min_isr)
    assert found.leader == NO_LEADER or found.leader in found.isr
    assert found.leader == NO_LEADER or found.leader in alive
    assert set(found.isr) <= set(in_force)
    assert set(found.elr) <= set(in_force)
    assert not set(found.elr) & set(found.isr)
    known = {*isr, *old_isr, *old_elr} - lost
    assert found.unclean or found.leader == NO_LEADER or found.leader in known
    assert not found.unclean or policy is Policy.UNCLEAN


class World:
    """One partition and the records on the disk of each replica: their ids, in order.

    `committed` is the longest row of records that an ISR of the size in force ever held.
    """

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.cluster = Cluster()
        self.brokers = [1, 2, 3, 4][: self.random.randint(2, 4)]
        self.cluster.start(*self.brokers)
        self.min_isr = self.random.randint(1, len(self.brokers))
        self.caching = self.random.random() < 0.3
        configs = (
            ("min.insync.replicas", str(self.min_isr)),
            ("unclean.leader.election.enable", self.random.choice(["true", "false", "false"])),
            ("write.caching", "true" if self.caching else "false"),
        )
        self.topic = self.cluster.create("t", tuple(self.brokers), configs=configs)
        self.logs: dict[int, list[int]] = {each: [] for each in self.brokers}
        self.committed: list[int] = []
        self.numbers = 0
        self.disks = dict.fromkeys(self.brokers, 0)
        self.leader = self.now.leader
        self.unclean = 0
        self.seen = len(self.cluster.log)

    @property
    def now(self) -> PartitionImage:
        return self.cluster.partition(self.topic)

    def lives(self, broker_id: int) -> bool:
        return self.cluster.image.brokers[broker_id].active

    def step(self) -> None:
        broker_id = self.random.choice(self.brokers)
        actions: list[Any] = [self.append] * 3 + [self.fetch] * 5 + [self.shrink, self.expand, self.expand]
        actions += [self.fail, self.back, self.back, self.lose, self.shut_down]
        self.random.choice(actions)(broker_id)
        self.look()

    def append(self, broker_id: int) -> None:
        if self.now.leader != NO_LEADER:
            self.numbers += 1
            self.logs[self.now.leader].append(self.numbers)

    def fetch(self, broker_id: int) -> None:
        """Truncate to the common records, then copy some of the leader."""
        leader = self.now.leader
        if leader in (NO_LEADER, broker_id) or not self.lives(broker_id) or self.is_lost(broker_id):
            return
        source, mine = self.logs[leader], self.logs[broker_id]
        common = shared(source, mine)
        self.logs[broker_id] = source[: self.random.randint(common, len(source))]

    def is_lost(self, broker_id: int) -> bool:
        replica = self.now.replica(broker_id)
        return replica is not None and replica.directory_id == LOST

    def propose(self, isr: set[int]) -> None:
        now = self.now
        members = tuple([Member(each, self.cluster.epoch(each)) for each in sorted(isr)])
        change = IsrChange(self.topic, 0, now.leader_epoch, now.partition_epoch, members)
        self.cluster.apply(
            alter_partition(self.cluster.image, now.leader, self.cluster.epoch(now.leader), [change]).records
        )

    def shrink(self, broker_id: int) -> None:
        if broker_id in self.now.isr and broker_id != self.now.leader != NO_LEADER:
            self.propose(set(self.now.isr) - {broker_id})

    def expand(self, broker_id: int) -> None:
        leader = self.now.leader
        if leader == NO_LEADER or broker_id in self.now.isr:
            return
        mine = self.logs[broker_id]
        if shared(self.logs[leader], mine) == len(mine) >= len(self.committed):
            self.propose({*self.now.isr, broker_id})

    def fail(self, broker_id: int) -> None:
        if self.random.random() < 0.5:
            self.cluster.fence(broker_id)

    def shut_down(self, broker_id: int) -> None:
        if self.lives(broker_id):
            self.cluster.beat(broker_id, want_shutdown=True)

    def back(self, broker_id: int) -> None:
        """Start a new process of the broker, sometimes with an empty disk, sometimes without unflushed records."""
        clean = self.random.random() < 0.5
        changes: dict[str, Any] = {}
        if self.random.random() < 0.15:
            self.disks[broker_id] += 1
            self.logs[broker_id] = []
        elif clean:
            changes["previous_broker_epoch"] = self.cluster.epoch(broker_id)
        elif self.caching and len(self.brokers) > 1:
            mine = self.logs[broker_id]
            self.logs[broker_id] = mine[: self.random.randint(0, len(mine))]
        self.restart(broker_id, **changes)
        self.look()
        if self.random.random() < 0.9:
            self.cluster.beat(broker_id)
            self.report(broker_id, directory(broker_id, self.disks[broker_id]))

    def restart(self, broker_id: int, **changes: Any) -> None:
        disk = directory(broker_id, self.disks[broker_id])
        self.cluster.register(broker_id, self.cluster.image.end_offset, directory_ids=(disk,), **changes)

    def lose(self, broker_id: int) -> None:
        """Damage its data; the broker reports that and starts over, perhaps immediately."""
        if self.random.random() < 0.3 and self.lives(broker_id):
            self.report(broker_id, LOST)
            self.logs[broker_id] = []
            self.look()
            if self.random.random() < 0.7:
                self.report(broker_id, directory(broker_id, self.disks[broker_id]))

    def report(self, broker_id: int, directory_id: Any) -> None:
        items = [Assignment(self.topic, 0, directory_id)]
        self.cluster.apply(
            assign_directories(self.cluster.image, broker_id, self.cluster.epoch(broker_id), items).records
        )

    def look(self) -> None:
        """The current leader has all committed records, unless its election was recorded as unclean."""
        check_invariants(self.cluster.image)
        now = self.now
        new, self.seen = self.cluster.log[self.seen :], len(self.cluster.log)
        unclean = any(
            isinstance(record, PartitionChange) and record.reason is Reason.UNCLEAN_ELECTION for record in new
        )
        if now.leader == NO_LEADER:
            return
        mine = self.logs[now.leader]
        if unclean:
            self.unclean += 1
            self.committed = self.committed[: shared(self.committed, mine)]
        assert mine[: len(self.committed)] == self.committed, (now, self.logs, self.committed)
        if len(now.isr) >= min(self.min_isr, len(now.replicas)):
            held = min(shared(mine, self.logs[member]) for member in now.isr)
            self.committed = mine[: max(held, len(self.committed))]


def shared(one: list[int], other: list[int]) -> int:
    """Return how many records they have in common at their beginning."""
    count = 0
    for mine, yours in zip(one, other, strict=False):
        if mine != yours:
            break
        count += 1
    return count


@pytest.mark.parametrize("first", range(0, 300, 50))
def test_a_cleanly_elected_leader_has_all_committed_records(first: int) -> None:
    elr = leaderless = committed = unclean = 0
    for seed in range(first, first + 50):
        world = World(seed)
        for _ in range(150):
            world.step()
            elr += bool(world.now.elr)
            leaderless += world.now.leader == NO_LEADER
        committed += len(world.committed)
        unclean += world.unclean
    assert min(elr, leaderless, committed, unclean) > 20, (elr, leaderless, committed, unclean)


class SoundWorld(World):
    """No replica is ever damaged."""

    def lose(self, broker_id: int) -> None:
        self.fetch(broker_id)


def test_a_leader_is_elected_once_all_brokers_return_with_their_disks() -> None:
    for seed in range(100):
        world = SoundWorld(seed)
        for _ in range(100):
            disks = dict(world.disks)
            world.step()
            if disks != world.disks:
                break
        else:
            for broker_id in world.brokers:
                world.restart(broker_id, previous_broker_epoch=world.cluster.epoch(broker_id))
                world.cluster.beat(broker_id)
            assert world.caching or world.now.leader != NO_LEADER, seed


class TunedWorld(World):
    """An operator changes min.insync.replicas."""

    kept = 0  # changes that kept the ELR of a partition without any ISR

    def step(self) -> None:
        if self.random.random() > 0.08:
            return super().step()
        before, value = self.now, self.random.randint(1, len(self.brokers))
        wanted = Changes(Resource(ConfigScope.TOPIC, "t"), (("min.insync.replicas", str(value)),))
        self.cluster.execute(lambda image: alter_configs(image, [wanted]))
        self.min_isr = value
        self.kept += bool(before.elr and not before.isr and self.now.elr)
        return self.look()


def test_a_leader_has_all_committed_records_although_min_insync_replicas_changes() -> None:
    kept = 0
    for seed in range(100):
        world = TunedWorld(seed)
        for _ in range(150):
            world.step()
        kept += world.kept
    assert kept > 5
