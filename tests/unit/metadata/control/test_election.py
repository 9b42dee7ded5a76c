"""Elections: the leader, the ISR, the ELR, and the records of a change."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from metadata.control.election import Elected, Policy, change_to, elect
from metadata.control.partitions import Assignment, IsrChange, Member, alter_partition, assign_directories
from metadata.image import PartitionImage
from metadata.records import LOST, NO_LEADER, PartitionChange, Reason, Replica
from tests.unit.metadata.builders import Cluster, check_invariants, directory

NOBODY = NO_LEADER


def partition(leader: int, isr: tuple[int, ...], elr: tuple[int, ...] = ()) -> PartitionImage:
    return PartitionImage(0, 0, (Replica(1), Replica(2), Replica(3)), isr, elr, leader=leader)


@pytest.mark.parametrize(
    ("leader", "isr", "alive", "policy", "elected"),
    [
        (2, (1, 2, 3), {1, 2, 3}, Policy.OFFLINE, Elected(2, (1, 2, 3))),  # an eligible leader keeps the leadership
        (2, (1, 2, 3), {1, 3}, Policy.OFFLINE, Elected(1, (1, 2, 3))),  # the first eligible replica of the assignment
        (2, (3, 2), {1, 3}, Policy.OFFLINE, Elected(3, (2, 3))),  # a leader is elected only from the ISR
        (2, (2,), {1, 3}, Policy.OFFLINE, Elected(NOBODY, (2,))),
        (-1, (2,), {2}, Policy.OFFLINE, Elected(2, (2,))),
        (-1, (), {1, 2}, Policy.OFFLINE, Elected(NOBODY, ())),
        (2, (1, 2, 3), {1, 2, 3}, Policy.REASSIGNED, Elected(2, (1, 2, 3))),
        (2, (1, 2, 3), {1, 3}, Policy.REASSIGNED, Elected(1, (1, 2, 3))),
        (2, (1, 2, 3), {1, 2, 3}, Policy.PREFERRED, Elected(1, (1, 2, 3))),
        (3, (2, 3), {1, 2, 3}, Policy.PREFERRED, Elected(3, (2, 3))),  # the preferred leader is not in sync
        (2, (1, 2, 3), {2, 3}, Policy.PREFERRED, Elected(2, (1, 2, 3))),
        (2, (2,), {1, 3}, Policy.PREFERRED, Elected(NOBODY, (2,))),
        (2, (2, 3), {1, 3}, Policy.UNCLEAN, Elected(3, (2, 3))),  # a clean election comes first
        (2, (2,), {1, 3}, Policy.UNCLEAN, Elected(1, (1,), unclean=True)),
        (2, (2,), set(), Policy.UNCLEAN, Elected(NOBODY, (2,))),
    ],
)
def test_leaders_are_elected_from_the_isr(
    leader: int, isr: tuple[int, ...], alive: set[int], policy: Policy, elected: Elected
) -> None:
    found = elect(partition(leader, isr), isr, lambda replica: replica.broker_id in alive, policy, min_isr=1)
    assert found == elected


def test_replicas_that_are_being_added_do_not_raise_the_effective_min_isr() -> None:
    """With one settled replica, the effective minimum is 1, so a replica that leaves the ISR does not enter the ELR."""
    growing = PartitionImage(0, 0, (Replica(1), Replica(2)), (1, 2), adding=(2,), leader=1)
    assert elect(growing, (1,), lambda replica: True, Policy.OFFLINE, min_isr=2) == Elected(1, (1,), ())


@pytest.mark.parametrize(
    ("now", "isr", "alive", "lost", "policy", "min_isr", "elected"),
    [
        # A replica that leaves the ISR enters the ELR only if the ISR falls below the effective minimum.
        (((1, 2, 3), ()), (1, 2), {1, 2}, (), Policy.OFFLINE, 2, Elected(1, (1, 2), ())),
        (((1, 2), ()), (1,), {1}, (), Policy.OFFLINE, 2, Elected(1, (1,), (2,))),
        (((1, 2, 3), ()), (1, 2), {1, 2}, (), Policy.OFFLINE, 3, Elected(1, (1, 2), (3,))),
        # The last member stays in the ISR.  If a member of the ELR leads, the ISR is that leader alone.
        (((1,), (2,)), (), {3}, (), Policy.OFFLINE, 2, Elected(NOBODY, (1,), (2,))),
        (((1,), (2, 3)), (), {2, 3}, (), Policy.OFFLINE, 2, Elected(2, (2,), (1, 3))),
        (((1,), (3,)), (1,), {1, 3}, (), Policy.OFFLINE, 2, Elected(1, (1,), (3,))),  # the ISR comes first
        (((1,), (2,)), (), {2}, (), Policy.REASSIGNED, 2, Elected(NOBODY, (1,), (2,))),
        (((1,), (2,)), (), {2, 3}, (), Policy.UNCLEAN, 2, Elected(2, (2,), (1,))),  # an election from the ELR is clean
        # A replica that has lost its data is in neither ISR nor ELR, even if it was the last member.
        (((1, 2), ()), (2,), {2}, (1,), Policy.OFFLINE, 2, Elected(2, (2,), ())),
        (((1,), (2,)), (), {3}, (1,), Policy.OFFLINE, 2, Elected(NOBODY, (), (2,))),
        (((1,), (2,)), (), {2, 3}, (1, 2), Policy.OFFLINE, 2, Elected(NOBODY, (), ())),
        (((1,), (2,)), (1,), {1}, (2,), Policy.OFFLINE, 2, Elected(1, (1,), ())),
        # Once the ISR is large enough, and after an unclean election, the ELR is empty.
        (((1,), (2, 3)), (1, 3), {1, 3}, (), Policy.OFFLINE, 2, Elected(1, (1, 3), ())),
        (((1,), (2,)), (), {3}, (), Policy.UNCLEAN, 2, Elected(3, (3,), (), unclean=True)),
        # The effective minimum is never above the number of replicas.
        (((1, 2, 3), ()), (1, 2, 3), {1}, (), Policy.OFFLINE, 7, Elected(1, (1, 2, 3), ())),
    ],
)
def test_an_election_updates_the_eligible_leader_replicas(
    now: tuple[tuple[int, ...], tuple[int, ...]],
    isr: tuple[int, ...],
    alive: set[int],
    lost: tuple[int, ...],
    policy: Policy,
    min_isr: int,
    elected: Elected,
) -> None:
    before = partition(1, *now)
    found = elect(before, isr, lambda replica: replica.broker_id in alive, policy, min_isr=min_isr, lost=lost)
    assert found == elected


def test_an_election_among_target_replicas_follows_their_order_and_number() -> None:
    """A replica that is no longer assigned is in neither ISR nor ELR.

    The order is that of the new assignment, and the effective minimum follows its size.
    """
    before = partition(1, (1, 2), (3,))
    target = (Replica(4), Replica(2))
    found = elect(before, (1, 2, 4), lambda replica: True, Policy.REASSIGNED, min_isr=3, replicas=target)
    assert found == Elected(4, (4, 2), ())
    found = elect(before, (2,), lambda replica: True, Policy.REASSIGNED, min_isr=3, replicas=target)
    assert found == Elected(2, (2,), ())


def test_a_change_contains_only_the_fields_that_differ() -> None:
    before = partition(1, (1, 2))
    same = Elected(1, (1, 2))
    topic_id = UUID(int=7)
    assert change_to(topic_id, before, same, Reason.REASSIGNMENT, 5, replicas=before.replicas, adding=()) is None
    again = change_to(topic_id, before, same, Reason.REASSIGNMENT, 5, new_epoch=True)
    assert again == PartitionChange(topic_id, 0, Reason.REASSIGNMENT, 5, 0, leader=1)
    moved = change_to(topic_id, before, Elected(3, (3,), unclean=True), Reason.BROKER_FENCED, 5)
    assert moved == PartitionChange(topic_id, 0, Reason.UNCLEAN_ELECTION, 5, 0, isr=(3,), leader=3)


# Through the decisions


class Case:
    """One topic with min.insync.replicas 2, led by broker 1, with all three brokers in its ISR."""

    def __init__(self, *configs: tuple[str, str]) -> None:
        self.cluster = Cluster()
        self.cluster.start(1, 2, 3, 4)
        self.topic = self.cluster.create("t", (1, 2, 3), configs=(("min.insync.replicas", "2"), *configs))

    def fence(self, *broker_ids: int) -> None:
        for broker_id in broker_ids:
            self.cluster.fence(broker_id)
            check_invariants(self.cluster.image)

    def back(self, broker_id: int, **changes: Any) -> None:
        """Restart the broker and unfence it.  changes: fields of its registration."""
        number = self.cluster.image.end_offset
        assert self.cluster.register(broker_id, number, **changes).outcome.ok
        assert not self.cluster.beat(broker_id).fenced
        check_invariants(self.cluster.image)

    def join(self, *isr: int) -> None:
        now = self.cluster.partition(self.topic)
        members = tuple([Member(each, self.cluster.epoch(each)) for each in isr])
        change = IsrChange(self.topic, 0, now.leader_epoch, now.partition_epoch, members)
        decision = alter_partition(self.cluster.image, now.leader, self.cluster.epoch(now.leader), [change])
        assert decision.reply.items[0].outcome.ok, decision.reply
        self.cluster.apply(decision.records)
        check_invariants(self.cluster.image)

    def report(self, broker_id: int, directory_id: UUID) -> None:
        items = [Assignment(self.topic, 0, directory_id)]
        decision = assign_directories(self.cluster.image, broker_id, self.cluster.epoch(broker_id), items)
        assert decision.reply.ok, decision.reply
        self.cluster.apply(decision.records)
        check_invariants(self.cluster.image)

    def now(self) -> tuple[int, tuple[int, ...], tuple[int, ...]]:
        """Return the leader, the ISR and the ELR."""
        found = self.cluster.partition(self.topic)
        return found.leader, found.isr, found.elr


def test_after_successive_failures_the_first_eligible_broker_to_return_leads() -> None:
    case = Case()
    case.fence(1)
    assert case.now() == (2, (2, 3), ())
    case.fence(2)
    assert case.now() == (3, (3,), (2,))
    case.fence(3)
    assert case.now() == (NOBODY, (3,), (2,))
    case.back(1)
    assert case.now() == (NOBODY, (3,), (2,))  # 1 left while the ISR was large enough: it may lack later records
    case.back(2)
    assert case.now() == (2, (2,), (3,))
    assert case.cluster.reason() is Reason.BROKER_UNFENCED
    case.join(2, 1)
    assert case.now() == (2, (1, 2), ())


def test_a_shrink_of_the_isr_fills_the_elr_and_an_expansion_empties_it() -> None:
    case = Case()
    case.join(1, 2)
    case.join(1)
    assert case.now() == (1, (1,), (2,))
    case.join(1, 3)
    assert case.now() == (1, (1, 3), ())


def test_a_member_of_the_elr_replaces_the_last_in_sync_replica() -> None:
    case = Case()
    case.join(1, 2)
    case.join(1)
    case.fence(1)
    assert case.now() == (2, (2,), (1,))
    assert case.cluster.reason() is Reason.BROKER_FENCED


def test_a_replica_without_its_disk_is_in_neither_isr_nor_elr() -> None:
    case = Case()
    case.fence(3, 2, 1)
    assert case.now() == (NOBODY, (1,), (2,))
    case.back(2, directory_ids=(directory(2, 9),))
    assert case.now() == (NOBODY, (1,), ())
    case.back(1, directory_ids=(directory(1, 9),))
    assert case.now() == (NOBODY, (), ())
    case.back(3)
    assert case.now() == (NOBODY, (), ())


def test_an_unclean_stop_with_write_caching_removes_a_replica_from_the_elr() -> None:
    case = Case(("write.caching", "true"))
    case.fence(3, 2)
    assert case.now() == (1, (1,), (2,))
    epoch = case.cluster.epoch(2)
    case.back(2, previous_broker_epoch=epoch)
    assert case.now() == (1, (1,), (2,))
    case.back(2)
    assert case.now() == (1, (1,), ())


def test_an_unclean_election_is_recorded_as_unclean() -> None:
    case = Case(("unclean.leader.election.enable", "true"))
    case.fence(3, 2, 1)
    assert case.now() == (NOBODY, (1,), (2,))
    case.back(3)
    assert case.now() == (3, (3,), ())
    assert case.cluster.reason() is Reason.UNCLEAN_ELECTION
    case.back(1)
    assert case.now() == (3, (3,), ())


# Replicas that are lost


def test_a_lost_leader_is_replaced_and_may_rejoin_the_isr() -> None:
    case = Case()
    case.report(1, LOST)
    assert case.now() == (2, (2, 3), ())
    assert case.cluster.reason() is Reason.REPLICA_LOST
    before = case.cluster.image
    case.report(1, LOST)
    assert case.cluster.image is before  # the loss is already known
    case.report(1, directory(1))
    assert case.cluster.reason() is Reason.DIRECTORY_ASSIGNED
    assert case.now() == (2, (2, 3), ())
    case.join(1, 2, 3)
    assert case.now() == (2, (1, 2, 3), ())


def test_a_lost_replica_may_not_join_the_isr_before_it_recovers() -> None:
    case = Case()
    case.report(3, LOST)
    now = case.cluster.partition(case.topic)
    members = tuple([Member(each, case.cluster.epoch(each)) for each in (1, 2, 3)])
    change = IsrChange(case.topic, 0, now.leader_epoch, now.partition_epoch, members)
    item = alter_partition(case.cluster.image, 1, case.cluster.epoch(1), [change]).reply.items[0]
    assert item.outcome.error == "INELIGIBLE_REPLICA"


def test_the_last_replica_is_not_elected_after_it_was_lost_and_recovered() -> None:
    case = Case()
    case.fence(2, 3)
    case.report(1, LOST)
    assert case.now() == (NOBODY, (), (3,))
    case.report(1, directory(1))
    case.back(1)
    assert case.now() == (NOBODY, (), (3,))
    case.back(3)
    assert case.now() == (3, (3,), ())


def test_a_replica_that_starts_over_after_its_directory_failed_is_in_neither_isr_nor_elr() -> None:
    case = Case()
    case.back(1, directory_ids=(directory(1), directory(1, 1)))
    case.join(2, 1, 3)
    case.cluster.beat(1, directories_offline=(directory(1),))
    case.fence(2, 3)
    case.cluster.beat(1)
    left = case.now()
    case.report(1, directory(1, 1))
    assert left[0] == case.now()[0] == NOBODY
    assert 1 not in (*case.now()[1], *case.now()[2])


@pytest.mark.parametrize("reserved", [UUID(int=0), LOST])
def test_a_registration_with_a_reserved_directory_id_is_refused(reserved: UUID) -> None:
    answer = Cluster().register(1, directory_ids=(directory(1), reserved))
    assert answer.outcome.error == "INVALID_REGISTRATION"
    assert "reserved" in answer.outcome.message
