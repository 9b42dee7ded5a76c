"""Decisions on single partitions: ISR changes in the order of their checks, directories of replicas."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from metadata.control.partitions import Assignment, IsrChange, IsrChanged, Member, alter_partition, assign_directories
from metadata.records import NO_LEADER, BrokerChange, PartitionChange, Reason, Replica
from quorumlog.wire.errors import ApiError
from tests.unit.metadata.builders import Cluster, check_invariants, directory

# ISR changes


class Case:
    """One topic, led by broker 1, with all three brokers in its ISR."""

    def __init__(self) -> None:
        self.cluster = Cluster()
        self.cluster.start(1, 2, 3, 4)
        self.topic = self.cluster.create("t", (1, 2, 3))

    def change(self, *isr: int, **changes: Any) -> IsrChange:
        now = self.cluster.partition(self.topic)
        proposal = IsrChange(
            self.topic,
            0,
            now.leader_epoch,
            now.partition_epoch,
            tuple([Member(broker, self.epoch(broker)) for broker in isr]),
        )
        return IsrChange(**{**_fields(proposal), **changes})

    def epoch(self, broker_id: int) -> int:
        return self.cluster.epoch(broker_id) if broker_id in self.cluster.image.brokers else 0

    def ask(self, *changes: IsrChange, sender: int = 1, epoch: int | None = None) -> tuple[IsrChanged, ...]:
        epoch = self.cluster.epoch(sender) if epoch is None else epoch
        decision = alter_partition(self.cluster.image, sender, epoch, changes)
        assert decision.reply.outcome.ok, decision.reply.outcome
        self.cluster.apply(decision.records)
        check_invariants(self.cluster.image)
        return decision.reply.items

    def word(self, change: IsrChange, sender: int = 1) -> ApiError:
        before = self.cluster.partition(self.topic)
        item = self.ask(change, sender=sender)[0]
        assert self.cluster.partition(self.topic) == before
        return item.outcome.error


def _fields(change: IsrChange) -> dict[str, Any]:
    return {name: getattr(change, name) for name in IsrChange.__struct_fields__}


@pytest.fixture
def case() -> Case:
    return Case()


def test_the_isr_shrinks_and_expands(case: Case) -> None:
    created = case.cluster.partition(case.topic).created
    item = case.ask(case.change(2, 1))[0]
    assert (item.outcome.ok, item.isr, item.partition_epoch, item.leader_epoch, item.leader) == (True, (1, 2), 1, 0, 1)
    change = case.cluster.log[-1]
    assert isinstance(change, PartitionChange)
    assert (change.reason, change.cause_offset, change.previous_offset) == (Reason.ISR_SHRINK, -1, created)
    item = case.ask(case.change(3, 2, 1))[0]
    assert (item.isr, item.partition_epoch) == ((1, 2, 3), 2)
    assert case.cluster.reason() is Reason.ISR_EXPAND
    assert case.cluster.partition(case.topic).leader_epoch == 0


def test_an_unchanged_isr_raises_the_partition_epoch(case: Case) -> None:
    """A leader requests this after an unanswered proposal, so that no copy of the proposal is accepted later."""
    lost = case.change(1, 2)
    item = case.ask(case.change(3, 1, 2))[0]
    assert (item.outcome.ok, item.isr, item.partition_epoch) == (True, (1, 2, 3), 1)
    assert case.word(lost) is ApiError.INVALID_UPDATE_VERSION


def test_isr_changes_are_refused_as_a_whole_for_an_unknown_broker_or_a_wrong_broker_epoch(case: Case) -> None:
    image = case.cluster.image
    for broker, epoch, word in [
        (1, case.cluster.epoch(1) - 1, ApiError.STALE_BROKER_EPOCH),
        (9, 0, ApiError.BROKER_ID_NOT_REGISTERED),
        (1, image.end_offset, ApiError.NOT_CONTROLLER),
    ]:
        decision = alter_partition(image, broker, epoch, [case.change(1)])
        assert decision.reply.outcome.error is word
        assert decision.reply.items == ()
        assert decision.records == ()


def test_isr_changes_of_unknown_topics_and_partitions_are_refused(case: Case) -> None:
    assert case.word(case.change(1, topic_id=UUID(int=5))) is ApiError.UNKNOWN_TOPIC_ID
    assert case.word(case.change(1, index=1)) is ApiError.UNKNOWN_TOPIC_OR_PARTITION
    assert case.word(case.change(1, index=-1)) is ApiError.UNKNOWN_TOPIC_OR_PARTITION


def test_an_isr_change_with_an_epoch_ahead_of_this_controller_gets_not_controller(case: Case) -> None:
    assert case.word(case.change(1, leader_epoch=1)) is ApiError.NOT_CONTROLLER
    assert case.word(case.change(1, partition_epoch=1)) is ApiError.NOT_CONTROLLER


def test_the_leader_epoch_of_an_isr_change_is_checked_first(case: Case) -> None:
    proposal = case.change(1)
    case.cluster.fence(1)
    case.cluster.beat(1)
    assert case.cluster.partition(case.topic).leader == 2
    assert case.word(proposal) is ApiError.FENCED_LEADER_EPOCH


def test_only_the_leader_may_change_the_isr(case: Case) -> None:
    assert case.word(case.change(1, 2), sender=2) is ApiError.INVALID_REQUEST


def test_an_isr_change_with_an_old_partition_epoch_is_refused(case: Case) -> None:
    proposal = case.change(1, 2)
    case.ask(case.change(1, 3))
    assert case.word(proposal) is ApiError.INVALID_UPDATE_VERSION


@pytest.mark.parametrize("isr", [(), (2, 3), (1, 4), (1, 1), (1, 99)])
def test_an_isr_must_contain_the_leader_and_only_replicas(case: Case, isr: tuple[int, ...]) -> None:
    assert case.word(case.change(*isr)) is ApiError.INVALID_REQUEST


def test_a_fenced_broker_is_ineligible_for_the_isr(case: Case) -> None:
    case.cluster.fence(3)
    assert case.word(case.change(1, 2, 3)) is ApiError.INELIGIBLE_REPLICA


def test_a_broker_in_controlled_shutdown_is_ineligible_for_the_isr(case: Case) -> None:
    case.cluster.beat(3, want_shutdown=True, others_applied=-1)
    assert not case.cluster.image.brokers[3].fenced
    assert case.word(case.change(1, 2, 3)) is ApiError.INELIGIBLE_REPLICA


def test_a_restarted_broker_is_ineligible_for_the_isr_under_its_old_broker_epoch(case: Case) -> None:
    old = Member(3, case.cluster.epoch(3))
    case.cluster.register(3, 1)
    case.cluster.beat(3)
    proposal = case.change(1, 2)
    assert case.word(case.change(1, 2, isr=(*proposal.isr, old))) is ApiError.INELIGIBLE_REPLICA
    assert case.ask(case.change(1, 2, 3))[0].outcome.ok


def test_a_replica_in_a_failed_directory_is_ineligible_for_the_isr(case: Case) -> None:
    case.cluster.beat(3, directories_offline=(directory(3),))
    assert case.cluster.partition(case.topic).isr == (1, 2)
    assert case.word(case.change(1, 2, 3)) is ApiError.INELIGIBLE_REPLICA


def test_each_refusal_of_an_isr_change_has_its_own_error_or_message(case: Case) -> None:
    """Compare each refusal by its error, or by its text if several refusals have the same error."""
    cluster = case.cluster
    cluster.apply([PartitionChange(case.topic, 0, Reason.ISR_SHRINK, -1, 0, leader=1)])  # leader epoch 1
    change = case.change
    stale = case.epoch(3)
    told: dict[str, IsrChanged] = {
        "unknown topic": case.ask(change(1, topic_id=UUID(int=9)))[0],
        "unknown partition": case.ask(change(1, index=7))[0],
        "ahead in leader epoch": case.ask(change(1, leader_epoch=5))[0],
        "behind in leader epoch": case.ask(change(1, leader_epoch=0))[0],
        "not the leader": case.ask(change(1), sender=2)[0],
        "behind in partition epoch": case.ask(change(1, partition_epoch=0))[0],
        "without the leader": case.ask(change(2))[0],
        "twice": case.ask(change(1), change(1, 2))[1],
    }
    cluster.register(3, 1)
    told["another incarnation"] = case.ask(change(1, isr=(Member(1, case.epoch(1)), Member(3, stale))))[0]
    told["fenced"] = case.ask(change(1, 3))[0]
    cluster.beat(3)
    cluster.beat(2, want_shutdown=True, others_applied=0)
    told["shutting down"] = case.ask(change(1, 2))[0]
    assert not any(item.outcome.ok for item in told.values())
    said = {what: (item.outcome.error, item.outcome.message) for what, item in told.items()}
    assert len(set(said.values())) == len(said), said
    words = {item.outcome.error for item in told.values()}
    assert words == {
        ApiError.UNKNOWN_TOPIC_ID,
        ApiError.UNKNOWN_TOPIC_OR_PARTITION,
        ApiError.NOT_CONTROLLER,
        ApiError.FENCED_LEADER_EPOCH,
        ApiError.INVALID_REQUEST,
        ApiError.INVALID_UPDATE_VERSION,
        ApiError.INELIGIBLE_REPLICA,
    }


def test_each_isr_change_has_its_own_result_and_repeated_partitions_are_refused(case: Case) -> None:
    other = case.cluster.create("u", (1, 2))
    items = case.ask(
        case.change(1, 2), case.change(1, 4), case.change(1), case.change(1, topic_id=other), case.change(1, index=7)
    )
    assert [item.outcome.error for item in items] == [
        ApiError.NONE,
        ApiError.INVALID_REQUEST,
        ApiError.INVALID_REQUEST,
        ApiError.NONE,
        ApiError.UNKNOWN_TOPIC_OR_PARTITION,
    ]
    assert case.cluster.partition(case.topic).isr == (1, 2)
    assert case.cluster.partition(other).isr == (1,)


def test_more_isr_changes_than_a_batch_holds_are_refused(case: Case) -> None:
    decision = alter_partition(case.cluster.image, 1, case.cluster.epoch(1), [case.change(1)] * 10_001)
    assert decision.reply.outcome.error is ApiError.POLICY_VIOLATION


# Directories


@pytest.fixture
def disks() -> Case:
    made = Case()
    made.cluster.register(5, directory_ids=(directory(5), directory(5, 1)))
    made.cluster.beat(5)
    made.topic = made.cluster.create("d", (5, 1), (1, 5), (1, 2))
    return made


def test_a_broker_assigns_its_replicas_to_its_directories(disks: Case) -> None:
    cluster, topic = disks.cluster, disks.topic
    wanted = [Assignment(topic, 0, directory(5)), Assignment(topic, 1, directory(5, 1))]
    decision = assign_directories(cluster.image, 5, cluster.epoch(5), wanted)
    assert decision.reply.ok
    cluster.apply(decision.records)
    assert cluster.partition(topic, 0).replicas == (Replica(5, directory(5)), Replica(1, directory(1)))
    assert cluster.partition(topic, 1).replicas == (Replica(1, directory(1)), Replica(5, directory(5, 1)))
    assert cluster.reason() is Reason.DIRECTORY_ASSIGNED
    again = assign_directories(cluster.image, 5, cluster.epoch(5), wanted)
    assert again.reply.ok
    assert again.records == ()
    check_invariants(cluster.image)


def test_invalid_assignments_of_directories_are_refused(disks: Case) -> None:
    cluster, topic = disks.cluster, disks.topic
    for wanted in (
        [Assignment(topic, 0, directory(1))],
        [Assignment(topic, 0, UUID(int=0))],
        [Assignment(topic, 2, directory(5))],
        [Assignment(topic, 0, directory(5)), Assignment(topic, 0, directory(5, 1))],
    ):
        decision = assign_directories(cluster.image, 5, cluster.epoch(5), wanted)
        assert decision.reply.error is ApiError.INVALID_REQUEST
        assert decision.records == ()
    stale = assign_directories(cluster.image, 5, cluster.epoch(5) - 1, [])
    assert stale.reply.error is ApiError.STALE_BROKER_EPOCH
    many = assign_directories(cluster.image, 5, cluster.epoch(5), [Assignment(topic, 0, directory(5))] * 10_001)
    assert many.reply.error is ApiError.POLICY_VIOLATION


@pytest.mark.parametrize(("failed", "isr", "leader"), [(True, (1,), 1), (False, (5, 1), 5)])
def test_a_replica_that_is_reported_in_another_directory_leaves_the_isr_if_the_former_one_failed(
    disks: Case, failed: bool, isr: tuple[int, ...], leader: int
) -> None:
    """The replica in the new directory is another copy than the one that the ISR counts."""
    cluster, topic = disks.cluster, disks.topic
    first = assign_directories(cluster.image, 5, cluster.epoch(5), [Assignment(topic, 0, directory(5))])
    cluster.apply(first.records)
    if failed:
        # The failure is recorded, but its effects on partitions are not yet.
        cluster.apply([BrokerChange(5, cluster.epoch(5), directories_offline=(directory(5),))])
    moved = assign_directories(cluster.image, 5, cluster.epoch(5), [Assignment(topic, 0, directory(5, 1))])
    assert moved.reply.ok
    cluster.apply(moved.records)
    partition = cluster.partition(topic, 0)
    assert (partition.isr, partition.leader, partition.elr) == (isr, leader, ())
    assert partition.replica(5) == Replica(5, directory(5, 1))
    check_invariants(cluster.image)


@pytest.mark.parametrize("name", ["alone", "d"])
def test_a_move_that_is_reported_after_the_former_directory_failed_keeps_isr_and_elr(disks: Case, name: str) -> None:
    """The failure of its former directory is decided before the report of its move arrives."""
    cluster = disks.cluster
    topic = disks.topic if name == "d" else cluster.create("alone", (5,))
    first = assign_directories(cluster.image, 5, cluster.epoch(5), [Assignment(topic, 0, directory(5))])
    cluster.apply(first.records)
    cluster.beat(5, directories_offline=(directory(5),))
    before = cluster.partition(topic)
    assert before.leader == (NO_LEADER if name == "alone" else 1)
    report = Assignment(topic, 0, directory(5, 1), moved_from=directory(5))
    cluster.apply(assign_directories(cluster.image, 5, cluster.epoch(5), [report]).records)
    after = cluster.partition(topic)
    assert (after.isr, after.elr) == (before.isr, before.elr)
    assert after.leader == (5 if name == "alone" else 1)
    assert after.leader_epoch == before.leader_epoch + (name == "alone")
    assert after.replica(5) == Replica(5, directory(5, 1))
    check_invariants(cluster.image)


@pytest.mark.parametrize("others", [True, False])
def test_a_move_from_another_than_the_assigned_directory_does_not_keep_a_replica_in_the_isr(
    disks: Case, others: bool
) -> None:
    cluster = disks.cluster
    topic = disks.topic if others else cluster.create("alone", (5,))
    first = assign_directories(cluster.image, 5, cluster.epoch(5), [Assignment(topic, 0, directory(5))])
    cluster.apply(first.records)
    cluster.beat(5, directories_offline=(directory(5),))
    report = Assignment(topic, 0, directory(5, 1), moved_from=directory(5, 1))
    cluster.apply(assign_directories(cluster.image, 5, cluster.epoch(5), [report]).records)
    partition = cluster.partition(topic)
    assert (partition.isr, partition.leader) == (((1,), 1) if others else ((), NO_LEADER))
    check_invariants(cluster.image)


def test_a_replica_on_a_failed_directory_that_was_never_reported_goes_offline(disks: Case) -> None:
    """Otherwise the whole request, with all other replicas in it, would be refused again and again."""
    cluster, topic = disks.cluster, disks.topic
    alone = cluster.create("alone", (5,))
    cluster.beat(5, directories_offline=(directory(5),))
    assert cluster.partition(topic, 0).leader == cluster.partition(alone).leader == 5
    wanted = [
        Assignment(topic, 0, directory(5)),
        Assignment(alone, 0, directory(5)),
        Assignment(topic, 1, directory(5, 1)),
    ]
    decision = assign_directories(cluster.image, 5, cluster.epoch(5), wanted)
    assert decision.reply.ok
    cluster.apply(decision.records)
    assert (cluster.partition(topic, 0).leader, cluster.partition(topic, 0).isr) == (1, (1,))
    assert (cluster.partition(alone).leader, cluster.partition(alone).isr) == (NO_LEADER, (5,))
    assert cluster.partition(topic, 1).isr == (1, 5)
    assert cluster.partition(alone).replicas == (Replica(5, directory(5)),)
    check_invariants(cluster.image)


def test_the_directory_of_a_replica_of_a_deleted_topic_is_ignored(disks: Case) -> None:
    wanted = [Assignment(UUID(int=3), 0, directory(5)), Assignment(disks.topic, 0, directory(5))]
    decision = assign_directories(disks.cluster.image, 5, disks.cluster.epoch(5), wanted)
    assert decision.reply.ok
    assert len(decision.records) == 1
