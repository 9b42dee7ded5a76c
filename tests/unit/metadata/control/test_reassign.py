"""Decisions on reassignments: refusals, completion, cancellation and replacement."""

from __future__ import annotations

from typing import Any

import pytest

from metadata.control.balance import elect_leaders
from metadata.control.election import Policy
from metadata.control.partitions import (
    AlterPartitionAnswer,
    Assignment,
    IsrChange,
    Member,
    alter_partition,
    assign_directories,
)
from metadata.control.reassign import (
    CHANGES_MAX,
    NO_THROTTLE,
    THROTTLE,
    Reassigned,
    Wanted,
    alter_reassignments,
    list_reassignments,
    progress,
)
from metadata.control.topics import delete_topics
from metadata.image import PartitionImage
from metadata.records import NO_LEADER, Config, ConfigScope, PartitionChange, Reason
from quorumlog.wire.errors import ApiError
from tests.unit.metadata.builders import Cluster, check_invariants, directory


class Case:
    """Brokers 1 to 6 and a topic `t` of one partition."""

    def __init__(self, *row: int, configs: tuple[tuple[str, str], ...] = ()) -> None:
        self.cluster = Cluster()
        self.cluster.start(1, 2, 3, 4, 5, 6)
        self.topic = self.cluster.create("t", row or (1, 2, 3), configs=configs)

    @property
    def now(self) -> PartitionImage:
        return self.cluster.partition(self.topic)

    def lists(self) -> tuple[tuple[int, ...], ...]:
        """Return the replicas, those being added, those being removed, and the ISR."""
        return self.now.replica_ids, self.now.adding, self.now.removing, self.now.isr

    def ask(self, *wanted: Wanted, **options: Any) -> Reassigned:
        decision = alter_reassignments(self.cluster.image, wanted, **options)
        self.cluster.apply(decision.records)
        check_invariants(self.cluster.image)
        return decision.reply

    def move(self, *replicas: int, **options: Any) -> Reassigned:
        return self.ask(Wanted("t", 0, replicas), **options)

    def word(self, *replicas: int, **options: Any) -> ApiError:
        """Return the error of a request that is refused and changes nothing."""
        before = self.cluster.image
        answer = self.move(*replicas, **options)
        assert not answer.outcome.ok
        assert not answer.changed
        assert self.cluster.image is before
        return answer.outcome.error

    def isr(self, *members: int) -> AlterPartitionAnswer:
        """Propose an ISR as the leader."""
        now = self.now
        change = IsrChange(
            self.topic,
            0,
            now.leader_epoch,
            now.partition_epoch,
            tuple([Member(each, self.cluster.epoch(each)) for each in members]),
        )
        decision = alter_partition(self.cluster.image, now.leader, self.cluster.epoch(now.leader), [change])
        self.cluster.apply(decision.records)
        check_invariants(self.cluster.image)
        assert decision.reply.items[0].outcome.ok, decision.reply
        return decision.reply

    def fence(self, *broker_ids: int) -> None:
        for broker_id in broker_ids:
            self.cluster.fence(broker_id)
            check_invariants(self.cluster.image)

    def progress(self) -> int:
        done = self.cluster.execute(progress)
        check_invariants(self.cluster.image)
        return done

    @property
    def last(self) -> PartitionChange:
        return [record for record in self.cluster.log if isinstance(record, PartitionChange)][-1]


# From start to end


def test_old_replicas_are_removed_once_all_new_replicas_are_in_sync() -> None:
    case = Case(1, 2, 3)
    answer = case.move(4, 5, 6)
    assert (answer.outcome.ok, answer.changed, answer.partitions[0].changed) == (True, True, True)
    assert case.lists() == ((4, 5, 6, 1, 2, 3), (4, 5, 6), (1, 2, 3), (1, 2, 3))
    assert (case.now.leader, case.now.leader_epoch, case.last.reason) == (1, 0, Reason.REASSIGNMENT)
    added = case.now.replica(4)
    assert added is not None
    assert added.directory_id == directory(4)
    case.isr(1, 2, 3, 4)
    case.isr(1, 2, 3, 4, 5)
    assert case.lists() == ((4, 5, 6, 1, 2, 3), (4, 5, 6), (1, 2, 3), (4, 5, 1, 2, 3))
    item = case.isr(1, 2, 3, 4, 5, 6).items[0]
    assert case.lists() == ((4, 5, 6), (), (), (4, 5, 6))
    assert (case.now.leader, case.now.leader_epoch, case.last.reason) == (4, 1, Reason.REASSIGNMENT_COMPLETED)
    # The old leader has sent the request, and the answer shows that it no longer leads.
    assert (item.leader, item.leader_epoch, item.partition_epoch, item.isr) == (
        4,
        1,
        case.now.partition_epoch,
        (4, 5, 6),
    )
    assert not case.cluster.image.reassigning


def test_a_leader_among_the_old_and_the_new_replicas_stays_leader_in_a_new_epoch() -> None:
    case = Case(1, 2, 3)
    case.move(4, 1, 2)
    case.isr(1, 2, 3, 4)
    assert case.lists() == ((4, 1, 2), (), (), (4, 1, 2))
    assert (case.now.leader, case.now.leader_epoch) == (1, 1)


def test_another_order_of_the_same_replicas_takes_effect_immediately() -> None:
    case = Case(1, 2, 3)
    assert case.move(3, 1, 2).changed
    assert case.lists() == ((3, 1, 2), (), (), (3, 1, 2))
    assert (case.now.leader, case.now.leader_epoch, case.last.reason) == (1, 0, Reason.REASSIGNMENT_COMPLETED)
    assert elect_leaders(case.cluster.image, Policy.PREFERRED, []).reply[0].leader == 3


def test_the_replica_order_of_a_partition_without_a_leader_can_be_changed() -> None:
    case = Case(1, 2)
    case.fence(2, 1)
    assert case.move(2, 1).changed
    assert (case.now.replica_ids, case.now.isr, case.now.leader) == ((2, 1), (1,), NO_LEADER)


def test_a_reassignment_to_fewer_replicas_completes_immediately() -> None:
    case = Case(1, 2, 3)
    case.move(2)
    assert case.lists() == ((2,), (), (), (2,))
    assert (case.now.leader, case.now.leader_epoch) == (2, 1)


def test_a_reassignment_that_only_adds_replicas_completes_without_a_new_leader_epoch() -> None:
    case = Case(1)
    case.move(1, 2, 3)
    assert case.lists() == ((1, 2, 3), (2, 3), (), (1,))
    case.isr(1, 2, 3)
    assert case.lists() == ((1, 2, 3), (), (), (1, 2, 3))
    assert (case.now.leader, case.now.leader_epoch) == (1, 0)


def test_replicas_being_added_do_not_raise_the_effective_min_isr() -> None:
    """A topic with one replica and min.insync.replicas 2 stays writable while replicas are added."""
    case = Case(1)
    case.cluster.apply([Config(ConfigScope.CLUSTER, "", "min.insync.replicas", "2")])
    case.cluster.apply([Config(ConfigScope.TOPIC, case.topic.hex, "min.insync.replicas", None)])
    case.move(2, 3)
    assert case.now.settled_count == 1
    case.fence(2)
    assert (case.now.isr, case.now.elr, case.now.leader) == ((1,), (), 1)


def test_a_reassignment_that_is_already_satisfied_succeeds_without_a_change() -> None:
    case = Case(1, 2, 3)
    before = case.cluster.image
    answer = case.move(1, 2, 3)
    assert (answer.outcome.ok, answer.changed) == (True, False)
    assert "is already there" in answer.partitions[0].outcome.message
    case.move(4, 2, 3)
    again = case.move(4, 2, 3)
    assert (again.outcome.ok, again.changed) == (True, False)
    assert "already being moved there" in again.partitions[0].outcome.message
    assert case.cluster.image.end_offset == before.end_offset + 1


def test_validate_only_reports_a_reassignment_without_starting_it() -> None:
    case = Case(1, 2, 3)
    before = case.cluster.image
    answer = case.move(4, 2, 3, validate_only=True, throttle=1000)
    assert (answer.outcome.ok, answer.changed, answer.partitions[0].changed) == (True, False, True)
    assert case.cluster.image is before


# Refusals


@pytest.mark.parametrize(
    ("replicas", "part"),
    [((4, 4), "twice"), ((1, 2, 9), "not registered"), ((6, 2, 3), "broker 6 is fenced")],
)
def test_invalid_target_replicas_are_refused(replicas: tuple[int, ...], part: str) -> None:
    case = Case(1, 2, 3)
    case.fence(6)
    assert case.word(*replicas) is ApiError.INVALID_REPLICA_ASSIGNMENT
    assert part in case.move(*replicas).outcome.message


def test_a_target_is_accepted_again_although_one_of_its_brokers_has_gone_down() -> None:
    case = Case(1, 2, 3)
    assert case.move(1, 2, 4).changed
    case.fence(4)
    again = case.move(1, 2, 4)
    assert (again.outcome.ok, again.changed) == (True, False)
    assert "already being moved there" in again.partitions[0].outcome.message


def test_a_replica_on_a_fenced_broker_may_stay_unless_the_completion_needs_it_in_sync() -> None:
    case = Case(1, 2, 3)
    case.fence(3)
    assert case.move(4, 2, 3).outcome.ok
    case.isr(1, 2, 4)
    assert case.lists() == ((4, 2, 3), (), (), (4, 2))
    assert (
        case.word(4, 3) is ApiError.INVALID_REPLICA_ASSIGNMENT
    )  # a reassignment to fewer replicas completes once all of them are in sync


def test_a_broker_in_controlled_shutdown_gets_no_new_replica() -> None:
    case = Case(1, 2, 3)
    case.cluster.beat(4, want_shutdown=True, others_applied=0)
    assert case.word(4, 2, 3) is ApiError.INVALID_REPLICA_ASSIGNMENT


def test_reassignments_of_missing_partitions_are_refused() -> None:
    case = Case(1, 2, 3)
    for wanted in (Wanted("other", 0, (1,)), Wanted("t", 1, (1,)), Wanted("t", -1, (1,)), Wanted("", 0)):
        answer = case.ask(wanted)
        assert answer.outcome.error is ApiError.UNKNOWN_TOPIC_OR_PARTITION
        assert not answer.changed


def test_a_change_of_the_replication_factor_is_refused_with_keep_factor() -> None:
    case = Case(1, 2, 3)
    assert case.word(1, 2, keep_factor=True) is ApiError.INVALID_REPLICATION_FACTOR
    assert case.move(4, 5, 6, keep_factor=True).changed
    assert case.move(1, 2, 4, keep_factor=True, replace=True).changed
    assert case.move(keep_factor=True).changed


def test_a_second_reassignment_is_refused_unless_it_replaces_the_first() -> None:
    case = Case(1, 2, 3)
    case.move(4, 2, 3)
    assert case.word(5, 2, 3) is ApiError.REASSIGNMENT_IN_PROGRESS
    assert case.move(5, 2, 3, replace=True).changed
    assert case.lists() == ((5, 2, 3, 1), (5,), (1,), (2, 3, 1))


def test_a_reassignment_request_is_applied_as_a_whole_or_not_at_all() -> None:
    case = Case(1, 2, 3)
    case.cluster.create("u", (1, 2), (2, 3))
    before = case.cluster.image
    answer = case.ask(
        Wanted("u", 0, (3, 4)), Wanted("u", 7, (1, 2)), Wanted("t", 0, (1, 1)), Wanted("u", 1), Wanted("u", 0, (1, 4))
    )
    assert case.cluster.image is before
    words = [each.outcome.error for each in answer.partitions]
    assert words == [
        ApiError.OPERATION_NOT_ATTEMPTED,
        ApiError.UNKNOWN_TOPIC_OR_PARTITION,
        ApiError.INVALID_REPLICA_ASSIGNMENT,
        ApiError.NO_REASSIGNMENT_IN_PROGRESS,
        ApiError.INVALID_REQUEST,
    ]
    assert answer.outcome.error is ApiError.UNKNOWN_TOPIC_OR_PARTITION
    assert "nothing was changed" in answer.outcome.message


def test_a_request_with_more_reassignments_than_a_batch_holds_is_refused() -> None:
    case = Case()
    wanted = [Wanted("t", index, (1, 2, 4)) for index in range(CHANGES_MAX + 1)]
    answer = case.ask(*wanted)
    assert answer.outcome.error is ApiError.POLICY_VIOLATION
    assert not answer.partitions


def test_a_full_batch_of_reassignments_starts_and_completes_in_one_batch() -> None:
    case = Case()
    topics = {name: case.cluster.create(name, *[(1,)] * count) for name, count in (("a", 5_000), ("b", 4_999))}
    everything = [(name, index) for name in topics for index in range(5_000 if name == "a" else 4_999)]
    assert len(everything) == CHANGES_MAX
    assert case.ask(*[Wanted(*each, (2,)) for each in everything], throttle=10_000).changed
    assert case.cluster.image.reassigning_count == CHANGES_MAX
    members = (Member(1, case.cluster.epoch(1)), Member(2, case.cluster.epoch(2)))
    changes = [IsrChange(topics[name], index, 0, 1, members) for name, index in everything]
    decision = alter_partition(case.cluster.image, 1, case.cluster.epoch(1), changes)
    case.cluster.apply(decision.records)
    assert case.cluster.image.reassigning_count == 0
    assert case.cluster.image.leader_count(2) == CHANGES_MAX
    assert case.cluster.image.cluster_config(THROTTLE) == "-1"


# Completion


def test_k15665_a_fenced_target_replica_that_is_not_new_does_not_block_the_completion() -> None:
    case = Case(1, 2, 3)
    case.fence(3)
    case.move(2, 3, 4)
    case.isr(1, 2, 4)
    assert case.lists() == ((2, 3, 4), (), (), (2, 4))


def test_k19975_a_reassignment_to_fewer_replicas_waits_until_all_of_them_are_in_sync() -> None:
    case = Case(1, 2, 3, 4, 5)
    case.move(3, 4, 5, 6)
    case.fence(3, 4, 5)
    case.isr(1, 2, 6)
    assert case.now.reassigning
    case.cluster.beat(3)
    case.cluster.beat(4)
    case.isr(1, 2, 6, 3, 4)
    assert case.now.reassigning
    case.cluster.beat(5)
    case.isr(1, 2, 6, 3, 4, 5)
    assert case.lists() == ((3, 4, 5, 6), (), (), (3, 4, 5, 6))


def test_a_reassignment_waits_while_it_would_end_below_min_isr() -> None:
    case = Case(1, 2, 3)
    assert case.cluster.image.topic_config(case.topic, "min.insync.replicas") == "2"
    case.move(4, 2, 3)
    case.fence(2, 3)
    case.isr(1, 4)
    assert case.lists() == ((4, 2, 3, 1), (4,), (1,), (4, 1))
    case.cluster.beat(2)
    case.isr(1, 4, 2)
    assert case.lists() == ((4, 2, 3), (), (), (4, 2))


def test_a_lower_min_isr_completes_a_reassignment() -> None:
    case = Case(1, 2, 3)
    case.move(4, 2, 3)
    case.fence(2, 3)
    case.isr(1, 4)
    assert case.progress() == 0
    case.cluster.apply([Config(ConfigScope.TOPIC, case.topic.hex, "min.insync.replicas", "1")])
    assert case.progress() == 1
    assert case.lists() == ((4, 2, 3), (), (), (4,))
    assert case.now.leader == 4


def test_a_reassignment_waits_for_a_target_broker_that_was_fenced() -> None:
    case = Case(1, 2, 3)
    case.move(4, 5, 6)
    case.isr(1, 2, 3, 4, 5)
    case.fence(4)
    case.isr(1, 2, 3, 5, 6)
    assert case.now.reassigning
    assert case.progress() == 0
    case.cluster.beat(4)
    case.isr(1, 2, 3, 4, 5, 6)
    assert case.lists() == ((4, 5, 6), (), (), (4, 5, 6))


def test_a_reassignment_completes_under_a_new_leader() -> None:
    case = Case(1, 2, 3)
    case.move(4, 5, 6)
    case.isr(1, 2, 3, 4)
    case.fence(1)
    assert case.now.leader in (2, 3, 4)
    case.isr(2, 3, 4, 5, 6)
    assert case.lists() == ((4, 5, 6), (), (), (4, 5, 6))


def test_a_replica_being_added_is_elected_uncleanly_only_on_request_of_an_operator() -> None:
    case = Case(1, 2, configs=(("unclean.leader.election.enable", "true"), ("min.insync.replicas", "1")))
    case.move(4, 5)
    case.fence(2, 1)
    assert case.now.leader == NO_LEADER  # although unclean elections are permitted: 4 may have no records
    decision = elect_leaders(case.cluster.image, Policy.UNCLEAN, [("t", 0)])
    case.cluster.apply(decision.records)
    assert (case.now.leader, decision.reply[0].unclean) == (4, True)
    check_invariants(case.cluster.image)
    other = Case(1, 2, 3, configs=(("unclean.leader.election.enable", "true"), ("min.insync.replicas", "1")))
    other.fence(3, 2)
    other.move(4, 5, 3, 2)
    other.cluster.beat(2)
    other.fence(1)
    assert other.now.leader == 2


def test_a_new_controller_completes_finished_reassignments() -> None:
    """The decision needs only the image, so it is also made after a crash between any two records."""
    case = Case(1, 2, 3)
    case.move(4, 2, 3, throttle=5)
    change = replace_isr(case)
    case.cluster.apply([change])
    assert case.now.reassigning
    assert case.progress() == 1
    assert case.lists() == ((4, 2, 3), (), (), (4, 2, 3))
    assert case.cluster.image.cluster_config(THROTTLE) == "-1"
    assert case.progress() == 0


def replace_isr(case: Case) -> PartitionChange:
    """Return an ISR change that was not checked for the completion of a reassignment."""
    now = case.now
    return PartitionChange(case.topic, 0, Reason.ISR_EXPAND, -1, now.last_offset, isr=now.replica_ids)


def test_another_order_of_the_replicas_chooses_the_leader_of_an_unclean_election() -> None:
    """The broker of the last ISR member returns with an empty disk, and would be elected first: docs/partitions.md."""
    case = Case(1, 2)
    case.fence(2)
    case.cluster.beat(2)
    disk = directory(1, 9)
    case.cluster.register(1, 1, directory_ids=(disk,))
    case.cluster.beat(1)
    items = [Assignment(case.topic, 0, disk)]
    case.cluster.apply(assign_directories(case.cluster.image, 1, case.cluster.epoch(1), items).records)
    assert (case.now.leader, case.now.isr, case.now.elr) == (NO_LEADER, (), ())
    asked = elect_leaders(case.cluster.image, Policy.UNCLEAN, [("t", 0)]).reply[0]
    assert (asked.leader, asked.unclean) == (1, True)
    assert case.move(2, 1).changed
    assert case.lists() == ((2, 1), (), (), ())
    asked = elect_leaders(case.cluster.image, Policy.UNCLEAN, [("t", 0)]).reply[0]
    assert (asked.leader, asked.unclean) == (2, True)


# Cancel


def test_k36_a_reassignment_is_cancelled_midway_and_a_second_cancellation_is_refused() -> None:
    case = Case(1, 2, 3)
    case.move(4, 5, 3)
    case.isr(1, 2, 3, 4)
    assert case.move().changed
    assert case.lists() == ((3, 1, 2), (), (), (3, 1, 2))
    assert (case.now.leader, case.now.leader_epoch, case.last.reason) == (1, 1, Reason.REASSIGNMENT_CANCELLED)
    assert case.word() is ApiError.NO_REASSIGNMENT_IN_PROGRESS


def test_k36_a_reassignment_can_be_cancelled_after_a_new_replica_became_leader() -> None:
    case = Case(1, 2, 3)
    case.move(4, 5, 3)
    case.isr(1, 2, 3, 4)
    elections = elect_leaders(case.cluster.image, Policy.PREFERRED, [("t", 0)])
    case.cluster.apply(elections.records)
    assert case.now.leader == 4
    assert case.move().changed
    assert (case.now.replica_ids, case.now.leader, case.now.leader_epoch) == ((3, 1, 2), 3, 2)


def test_a_cancellation_is_refused_while_only_new_replicas_are_in_sync() -> None:
    case = Case(1)
    case.move(4, 5)
    case.isr(1, 4)
    case.fence(1)
    assert (case.now.leader, case.now.isr) == (4, (4,))
    assert case.word() is ApiError.ELIGIBLE_LEADERS_NOT_AVAILABLE
    case.cluster.beat(1)
    case.isr(4, 1)
    assert case.move().changed
    assert (case.now.replica_ids, case.now.isr, case.now.leader) == ((1,), (1,), 1)


def test_a_cancellation_makes_no_unclean_election_even_if_the_topic_permits_it() -> None:
    case = Case(1, configs=(("unclean.leader.election.enable", "true"),))
    case.move(4, 5)
    case.isr(1, 4)
    case.fence(1)
    case.cluster.beat(1)
    assert (case.now.leader, case.now.isr) == (4, (4,)), "1 may lack records that 4 has acknowledged"
    assert case.word() is ApiError.ELIGIBLE_LEADERS_NOT_AVAILABLE
    case.isr(4, 1)
    assert case.move().changed
    assert (case.now.replica_ids, case.now.leader) == ((1,), 1)


def test_a_reassignment_without_a_leader_can_be_cancelled() -> None:
    case = Case(1)
    case.move(4)
    case.fence(1)
    assert case.now.leader == NO_LEADER
    assert case.move().changed
    assert (case.now.replica_ids, case.now.isr, case.now.leader) == ((1,), (1,), NO_LEADER)
    case.cluster.beat(1)
    assert case.now.leader == 1


# Replace


def test_the_replacement_of_a_reassignment_keeps_isr_members_until_it_completes() -> None:
    case = Case(1, 2, 3)
    case.move(4, 5, 3)
    case.isr(1, 2, 3, 4)
    case.move(6, 2, 3, replace=True)
    assert case.lists() == ((6, 2, 3, 1, 4), (6, 4), (1, 4), (2, 3, 1, 4))
    assert case.now.leader_epoch == 1  # because 5 has left
    case.isr(1, 2, 3, 4, 6)
    assert case.lists() == ((6, 2, 3), (), (), (6, 2, 3))


def test_cancelling_a_replaced_reassignment_restores_the_original_replicas() -> None:
    case = Case(1, 2, 3)
    case.move(4, 5, 3)
    case.isr(1, 2, 3, 4)
    case.move(6, 2, 3, replace=True)
    case.move()
    assert set(case.now.replica_ids) == {1, 2, 3}
    assert case.lists()[1:3] == ((), ())


def test_a_replacement_by_the_original_replicas_completes_immediately() -> None:
    case = Case(1, 2, 3)
    case.move(4, 5, 3, throttle=7)
    case.isr(1, 2, 3, 4)
    case.move(1, 2, 3, replace=True)
    assert case.lists() == ((1, 2, 3), (), (), (1, 2, 3))
    assert case.cluster.image.cluster_config(THROTTLE) == "-1"


# Throttle


def test_the_throttle_is_removed_with_the_last_reassignment() -> None:
    case = Case(1, 2, 3)
    case.cluster.create("u", (1, 2, 3))
    case.ask(Wanted("t", 0, (4, 2, 3)), Wanted("u", 0, (4, 2, 3)), throttle=1_000_000)
    image = case.cluster.image
    assert (image.cluster_config(THROTTLE), image.reassigning_count) == ("1000000", 2)
    case.isr(1, 2, 3, 4)
    assert case.cluster.image.cluster_config(THROTTLE) == "1000000"
    case.ask(throttle=2_000_000)
    assert case.cluster.image.cluster_config(THROTTLE) == "2000000"
    case.ask(Wanted("u", 0))
    assert THROTTLE not in case.cluster.image.config(ConfigScope.CLUSTER, "")


def test_the_throttle_can_be_changed_alone_only_while_a_reassignment_is_in_progress() -> None:
    case = Case(1, 2, 3)
    assert case.ask(throttle=5).outcome.error is ApiError.NO_REASSIGNMENT_IN_PROGRESS
    none = case.ask(throttle=NO_THROTTLE)
    assert (none.outcome.ok, none.changed) == (True, False), "there is no throttle to remove"
    assert case.ask().outcome.error is ApiError.INVALID_REQUEST
    case.move(4, 2, 3, throttle=5)
    for bad in (0, -2, 2**63):
        assert case.ask(throttle=bad).outcome.error is ApiError.INVALID_REQUEST
    assert case.ask(throttle=NO_THROTTLE).changed
    assert THROTTLE not in case.cluster.image.config(ConfigScope.CLUSTER, "")


def test_an_earlier_throttle_stays_after_a_reassignment_that_changes_nothing() -> None:
    case = Case(1, 2, 3)
    case.cluster.apply([Config(ConfigScope.CLUSTER, "", THROTTLE, "9")])
    case.move(1, 2, 3)
    assert case.cluster.image.cluster_config(THROTTLE) == "9"


# Reassignments in progress


def test_reassignments_in_progress_are_listed_for_all_or_for_named_partitions() -> None:
    case = Case(1, 2, 3)
    case.cluster.create("a", (1, 2), (2, 3))
    case.ask(Wanted("t", 0, (4, 2, 3)), Wanted("a", 1, (2, 4)))
    image = case.cluster.image
    assert [(each.topic, each.partition.index) for each in list_reassignments(image, [])] == [("a", 1), ("t", 0)]
    named = [("t", 0), ("a", 0), ("none", 3), ("t", 5)]
    assert [(each.topic, each.partition.index) for each in list_reassignments(image, named)] == [("t", 0)]


def test_the_deletion_of_a_topic_ends_its_reassignment() -> None:
    case = Case(1, 2, 3)
    case.move(4, 2, 3, throttle=7)
    case.cluster.apply(delete_topics(case.cluster.image, ["t"], []).records)
    check_invariants(case.cluster.image)
    assert case.cluster.image.cluster_config(THROTTLE) == "-1"
    assert case.cluster.image.reassigning_count == 0
    assert case.progress() == 0


def test_a_full_batch_of_deletions_that_ends_the_last_reassignment_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The batch has no room for the record that removes the throttle, which would slow the next reassignment."""
    case = Case(1, 2, 3)
    for name in ("u", "v"):
        case.cluster.create(name, (1, 2, 3))
    case.move(4, 2, 3, throttle=7)
    monkeypatch.setattr("metadata.control.topics.RECORDS_PER_BATCH_MAX", 2)
    refused = delete_topics(case.cluster.image, ["t", "u"], [])
    assert {each.outcome.error for each in refused.reply} == {ApiError.POLICY_VIOLATION}
    assert (refused.reply[0].outcome.message, refused.records) == (
        "2 topics: one request can delete at most 1 of these",
        (),
    )
    case.cluster.apply(delete_topics(case.cluster.image, ["t"], []).records)
    assert case.cluster.image.cluster_config(THROTTLE) == "-1"
    assert len(delete_topics(case.cluster.image, ["u", "v"], []).records) == 2
