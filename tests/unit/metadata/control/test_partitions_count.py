"""Adding and removing partitions: refusals, records, and the resulting topic."""

from __future__ import annotations

from collections import Counter
from uuid import UUID

import pytest

from metadata.control.partitions_count import NewPartitions, Resized, add_partitions, remove_partitions
from metadata.image import delta
from metadata.records import PartitionChange, Reason, RemovePartition, RenewTopic
from tests.unit.metadata.builders import Cluster, check_invariants


@pytest.fixture
def cluster() -> Cluster:
    """Topic t: two partitions of two replicas on brokers 1 to 3; 4 is fenced."""
    cluster = Cluster()
    cluster.start(1, 2, 3)
    cluster.register(4)
    cluster.create("t", (1, 2), (2, 3), configs=(("retention.ms", "5"),))
    return cluster


def add(cluster: Cluster, *wanted: NewPartitions, validate_only: bool = False) -> list[Resized]:
    before = cluster.image
    decision = add_partitions(before, wanted, validate_only=validate_only)
    assert bool(decision.records) == any(each.changed for each in decision.reply)
    cluster.apply(decision.records)
    check_invariants(cluster.image)
    return list(decision.reply)


def remove(cluster: Cluster, name: str, count: int, *, validate_only: bool = False) -> Resized:
    decision = remove_partitions(cluster.image, name, count, cluster.new_id, validate_only=validate_only)
    assert bool(decision.records) == decision.reply.changed
    cluster.apply(decision.records)
    check_invariants(cluster.image)
    return decision.reply


def topic_id(cluster: Cluster, name: str = "t") -> UUID:
    return cluster.image.topic_ids[name]


# Adding partitions


def test_partitions_are_added_after_the_existing_partitions(cluster: Cluster) -> None:
    before = cluster.image.topics[topic_id(cluster)].partitions
    [answer] = add(cluster, NewPartitions("t", 6))
    assert (answer.outcome.ok, answer.partitions, answer.changed) == (True, 6, True)
    partitions = cluster.image.topics[topic_id(cluster)].partitions
    assert partitions[:2] == before
    assert len(partitions) == 6
    assert Counter(each.leader for each in partitions if each) == {1: 2, 2: 2, 3: 2}
    assert {len(each.replicas) for each in partitions if each} == {2}
    assert all(each.isr == each.replica_ids for each in partitions if each)


def test_adding_partitions_up_to_the_current_count_changes_nothing(cluster: Cluster) -> None:
    [answer] = add(cluster, NewPartitions("t", 2))
    assert (answer.outcome.ok, answer.changed, answer.partitions) == (True, False, 2)


def test_an_explicit_assignment_of_new_partitions_is_used_unchanged(cluster: Cluster) -> None:
    [answer] = add(cluster, NewPartitions("t", 4, ((3, 1), (4, 2))), validate_only=True)
    assert (answer.outcome.ok, answer.changed, answer.partitions) == (True, False, 4)
    assert len(cluster.image.topics[topic_id(cluster)].partitions) == 2
    add(cluster, NewPartitions("t", 4, ((3, 1), (4, 2))))
    assert cluster.partition(topic_id(cluster), 2).replica_ids == (3, 1)
    last = cluster.partition(topic_id(cluster), 3)
    assert (last.replica_ids, last.isr, last.leader) == ((4, 2), (2,), 2)


def test_a_repeated_addition_of_partitions_succeeds_and_changes_nothing(cluster: Cluster) -> None:
    again = NewPartitions("t", 4, ((3, 1), (4, 2)))
    add(cluster, again)
    [answer] = add(cluster, again)
    assert (answer.outcome.ok, answer.changed, answer.partitions) == (True, False, 4)
    for others in (((4, 2), (3, 1)), ((4, 2), (3, 1), (4, 2)), ((3, 1),), ((1, 2),) * 5):
        [answer] = add(cluster, NewPartitions("t", 4, others))
        assert answer.outcome.error == "INVALID_REPLICA_ASSIGNMENT"


@pytest.mark.parametrize(
    ("name", "count", "assignment", "word"),
    [
        ("", 3, (), "UNKNOWN_TOPIC_OR_PARTITION"),
        ("no\nsuch", 3, (), "UNKNOWN_TOPIC_OR_PARTITION"),
        ("t", 0, (), "INVALID_PARTITIONS"),
        ("t", -1, (), "INVALID_PARTITIONS"),
        ("t", 1, (), "INVALID_PARTITIONS"),
        ("t", 1_000_001, (), "INVALID_PARTITIONS"),
        ("t", 2**31 - 1, (), "INVALID_PARTITIONS"),
        ("t", 10_003, (), "POLICY_VIOLATION"),
        ("t", 2, ((1, 2),), "INVALID_REPLICA_ASSIGNMENT"),
        ("t", 4, ((1, 2),), "INVALID_REPLICA_ASSIGNMENT"),
        ("t", 3, ((),), "INVALID_REPLICA_ASSIGNMENT"),
        ("t", 3, ((1,),), "INVALID_REPLICA_ASSIGNMENT"),
        ("t", 3, ((1, 2, 3),), "INVALID_REPLICA_ASSIGNMENT"),
        ("t", 3, ((1, 1),), "INVALID_REPLICA_ASSIGNMENT"),
        ("t", 3, ((1, -1),), "INVALID_REPLICA_ASSIGNMENT"),
        ("t", 3, ((1, 99),), "INVALID_REPLICA_ASSIGNMENT"),
    ],
)
def test_invalid_additions_of_partitions_are_refused(
    cluster: Cluster, name: str, count: int, assignment: tuple[tuple[int, ...], ...], word: str
) -> None:
    [answer] = add(cluster, NewPartitions(name, count, assignment))
    assert answer.outcome.error == word
    assert "\n" not in answer.outcome.message
    assert not answer.changed


def test_partitions_are_not_added_with_fewer_unfenced_brokers_than_the_replication_factor(cluster: Cluster) -> None:
    cluster.beat(2, want_fence=True)
    cluster.beat(3, want_fence=True)
    [answer] = add(cluster, NewPartitions("t", 3))
    assert answer.outcome.error == "INVALID_REPLICATION_FACTOR"
    [answer] = add(cluster, NewPartitions("t", 2))
    assert answer.outcome.ok


def test_each_topic_has_its_own_result_and_repeated_topics_are_refused(cluster: Cluster) -> None:
    cluster.create("u", (1,))
    answers = add(
        cluster, NewPartitions("t", 3), NewPartitions("nobody", 3), NewPartitions("u", 2), NewPartitions("u", 3)
    )
    words = [each.outcome.error for each in answers]
    assert words == ["NONE", "UNKNOWN_TOPIC_OR_PARTITION", "INVALID_REQUEST", "INVALID_REQUEST"]
    assert len(cluster.image.topics[topic_id(cluster, "u")].partitions) == 1


# Removing partitions


def test_the_highest_partitions_are_removed_and_the_topic_gets_another_id(cluster: Cluster) -> None:
    add(cluster, NewPartitions("t", 4))
    old_id = topic_id(cluster)
    before = cluster.image
    answer = remove(cluster, "t", 1)
    assert (answer.outcome.ok, answer.partitions, answer.changed) == (True, 1, True)
    assert answer.topic_id == topic_id(cluster) != old_id
    assert cluster.log[-4:] == [
        *[RemovePartition(old_id, index) for index in (3, 2, 1)], RenewTopic(old_id, topic_id(cluster))
    ]  # fmt: skip
    assert old_id not in cluster.image.topics
    topic = cluster.image.topics[topic_id(cluster)]
    assert topic.partitions == before.topics[old_id].partitions[:1]
    assert topic.origin == old_id
    assert cluster.image.topic_config(topic_id(cluster), "retention.ms") == "5"
    found = delta(before, cluster.image, cluster.log[-4:])
    assert dict(found.topics_renewed) == {old_id: topic_id(cluster)}
    assert found.topics_removed == ()
    assert found.partitions == {topic_id(cluster): (1, 2, 3)}


def test_partitions_added_again_continue_their_leader_epochs(cluster: Cluster) -> None:
    for _ in range(3):
        change = PartitionChange(topic_id(cluster), 1, Reason.ISR_SHRINK, -1, 0, leader=2)
        cluster.apply([change])
    remove(cluster, "t", 1)
    first_created = cluster.partition(topic_id(cluster)).created
    add(cluster, NewPartitions("t", 2))
    again = cluster.partition(topic_id(cluster), 1)
    assert again.leader_epoch == 4
    assert again.created > first_created
    remove(cluster, "t", 1)
    assert remove(cluster, "t", 1).outcome.ok
    assert cluster.partition(topic_id(cluster)).created == first_created


def test_removing_no_partition_keeps_the_topic_id(cluster: Cluster) -> None:
    old_id = topic_id(cluster)
    answer = remove(cluster, "t", 2)
    assert (answer.outcome.ok, answer.changed, answer.topic_id) == (True, False, old_id)


def test_validate_only_removes_no_partitions(cluster: Cluster) -> None:
    before = cluster.image
    answer = remove(cluster, "t", 1, validate_only=True)
    assert (answer.outcome.ok, answer.changed, answer.partitions) == (True, False, 1)
    assert cluster.image is before


@pytest.mark.parametrize(
    ("name", "count", "word"),
    [
        ("", 1, "UNKNOWN_TOPIC_OR_PARTITION"),
        ("x" * 10_000, 1, "UNKNOWN_TOPIC_OR_PARTITION"),
        ("t", 0, "INVALID_PARTITIONS"),
        ("t", -5, "INVALID_PARTITIONS"),
        ("t", 3, "INVALID_PARTITIONS"),
        ("t", 2**31 - 1, "INVALID_PARTITIONS"),
    ],
)
def test_invalid_removals_of_partitions_are_refused(cluster: Cluster, name: str, count: int, word: str) -> None:
    answer = remove(cluster, name, count)
    assert answer.outcome.error == word
    assert len(answer.outcome.message) < 200
    if word == "INVALID_PARTITIONS":
        assert "kctl topics" in answer.outcome.next_step


def test_a_partition_that_is_being_reassigned_is_not_removed(cluster: Cluster) -> None:
    change = PartitionChange(topic_id(cluster), 1, Reason.REASSIGNMENT, -1, 0, removing=(3,))
    cluster.apply([change])
    answer = remove(cluster, "t", 1)
    assert answer.outcome.error == "REASSIGNMENT_IN_PROGRESS"


def test_a_removal_of_more_partitions_than_a_batch_holds_is_refused(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("metadata.control.partitions_count.RECORDS_PER_BATCH_MAX", 3)
    cluster.create("u", *[(1,)] * 5)
    assert remove(cluster, "u", 1).outcome.error == "POLICY_VIOLATION"
    assert remove(cluster, "u", 3).outcome.ok
    assert remove(cluster, "u", 1).outcome.ok
