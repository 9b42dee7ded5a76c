"""Decisions on brokers: registration, heartbeats, fencing, controlled shutdown, directories, producer ids."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import msgspec
import pytest

from metadata.control.brokers import (
    Heartbeat,
    allocate_producer_ids,
    elect_leaderless,
    fence,
    heartbeat,
    register,
)
from metadata.control.partitions_count import remove_partitions
from metadata.records import (
    NO_LEADER,
    UNASSIGNED,
    BrokerChange,
    Endpoint,
    Feature,
    PartitionChange,
    Reason,
    RegisterBroker,
    Replica,
)
from metadata.records.incarnation import incarnation_id
from quorumlog.wire.errors import ApiError
from tests.unit.metadata.builders import Cluster, check_invariants, directory, registration


@pytest.fixture
def cluster() -> Cluster:
    made = Cluster()
    made.start(1, 2, 3)
    return made


def fence_all(cluster: Cluster, broker_id: int) -> None:
    cluster.fence(broker_id)


# Registration


def test_a_broker_starts_fenced_and_its_epoch_is_the_offset_of_its_record() -> None:
    cluster = Cluster()
    cluster.start(7)
    end = cluster.image.end_offset
    answer = cluster.register(1, fenced=False)
    assert answer.outcome.ok
    assert answer.broker_epoch == end
    assert cluster.image.brokers[1].epoch == end
    assert cluster.image.brokers[1].fenced


def test_a_retried_registration_changes_nothing(cluster: Cluster) -> None:
    epoch, end = cluster.epoch(1), cluster.image.end_offset
    answer = cluster.register(1, session_live=True)
    assert (answer.outcome.ok, answer.broker_epoch) == (True, epoch)
    assert cluster.image.end_offset == end


def test_the_same_incarnation_may_change_its_endpoints_and_keeps_its_epoch(cluster: Cluster) -> None:
    epoch = cluster.epoch(1)
    answer = cluster.register(1, endpoints=(Endpoint("PLAINTEXT", "elsewhere", 1),), session_live=True)
    assert answer.broker_epoch == epoch == cluster.epoch(1)
    assert cluster.image.brokers[1].endpoints[0].host == "elsewhere"
    assert not cluster.image.brokers[1].fenced


def test_the_same_incarnation_may_not_change_its_directories(cluster: Cluster) -> None:
    answer = cluster.register(1, directory_ids=(directory(1), directory(1, 1)))
    assert answer.outcome.error is ApiError.INVALID_REGISTRATION


def test_a_registration_with_other_directories_is_refused_while_the_session_is_live(cluster: Cluster) -> None:
    end = cluster.image.end_offset
    answer = cluster.register(1, 1, directory_ids=(directory(1, 9),), session_live=True)
    assert answer.outcome.error is ApiError.DUPLICATE_BROKER_REGISTRATION
    assert answer.outcome.error.retriable
    assert cluster.image.end_offset == end


def test_a_broker_that_recovers_its_logs_keeps_its_id(cluster: Cluster) -> None:
    """The broker is fenced, but if another broker took its id, the partition would lose its only in-sync replica."""
    topic = cluster.create("t", (1,))
    cluster.register(1, 1)
    assert cluster.image.brokers[1].fenced
    answer = cluster.register(1, 2, directory_ids=(directory(1, 9),), session_live=True)
    assert answer.outcome.error is ApiError.DUPLICATE_BROKER_REGISTRATION
    assert cluster.partition(topic).isr == (1,)
    assert not cluster.beat(1).fenced
    assert cluster.partition(topic).leader == 1


def test_a_broker_that_begins_to_stop_keeps_its_id(cluster: Cluster) -> None:
    """The broker is not fenced until the other brokers know that it has left."""
    cluster.create("t", (1, 2))
    cluster.beat(1, want_shutdown=True, others_applied=0)
    assert cluster.image.brokers[1].in_controlled_shutdown
    assert not cluster.image.brokers[1].fenced
    answer = cluster.register(1, 1, directory_ids=(directory(1, 9),), session_live=True)
    assert answer.outcome.error is ApiError.DUPLICATE_BROKER_REGISTRATION


def test_a_broker_that_has_stopped_may_register_with_other_directories_immediately(cluster: Cluster) -> None:
    while not cluster.image.brokers[1].fenced:
        cluster.beat(1, want_shutdown=True)
    assert cluster.register(1, 1, directory_ids=(directory(1, 9),), session_live=True).outcome.ok


def test_a_registration_with_another_directory_is_accepted_once_the_session_has_ended(cluster: Cluster) -> None:
    assert cluster.register(1, 1, directory_ids=(directory(1, 9),), session_live=False).outcome.ok


def test_a_restart_with_the_same_directory_is_accepted_immediately(cluster: Cluster) -> None:
    old = cluster.epoch(1)
    answer = cluster.register(1, 1, session_live=True)
    assert answer.outcome.ok
    assert answer.broker_epoch > old
    assert cluster.image.brokers[1].fenced


def test_a_new_incarnation_ends_the_leaderships_of_the_old_one_in_one_batch(cluster: Cluster) -> None:
    led = cluster.create("led", (1, 2, 3))
    followed = cluster.create("followed", (2, 1))
    alone = cluster.create("alone", (1,))
    end = cluster.image.end_offset
    decision = register(cluster.image, registration(1, 1), session_live=False)
    assert isinstance(decision.records[0], RegisterBroker)
    changes = decision.records[1:]
    assert len(changes) == 3
    assert not decision.more
    for change in changes:
        assert isinstance(change, PartitionChange)
        assert change.reason is Reason.NEW_INCARNATION
        assert change.cause_offset == end
    cluster.apply(decision.records)
    check_invariants(cluster.image)
    assert (cluster.partition(led).isr, cluster.partition(led).leader) == ((2, 3), 2)
    assert cluster.partition(led).leader_epoch == 1
    assert (cluster.partition(followed).isr, cluster.partition(followed).leader) == ((2,), 2)
    assert cluster.partition(followed).leader_epoch == 0  # an ISR change is not a new leader
    assert (cluster.partition(alone).isr, cluster.partition(alone).leader) == ((1,), NO_LEADER)


def test_a_new_incarnation_leads_in_epochs_above_its_broker_epoch(cluster: Cluster) -> None:
    alone = cluster.create("alone", (1,))
    cluster.register(1, 1)
    cluster.beat(1)
    partition = cluster.partition(alone)
    assert (partition.leader, partition.leader_epoch) == (1, 2)
    assert partition.last_offset > cluster.epoch(1)
    assert partition.partition_epoch == 2


def test_a_replica_on_a_missing_directory_leaves_the_isr_even_as_its_last_member(cluster: Cluster) -> None:
    alone = cluster.create("alone", (1,))
    kept = cluster.create("kept", (1, 2))
    cluster.register(1, 1, directory_ids=(directory(1, 9),))
    assert (cluster.partition(alone).isr, cluster.partition(alone).leader) == ((), NO_LEADER)
    assert cluster.partition(kept).isr == (2,)
    cluster.beat(1)
    assert cluster.partition(alone).leader == NO_LEADER
    check_invariants(cluster.image)


def test_a_replica_without_a_reported_directory_is_lost_if_any_directory_of_its_broker_is_lost() -> None:
    """The replica may have been in the lost directory, with acknowledged records."""
    cluster = Cluster()
    cluster.start(1, 2)
    cluster.register(3, directory_ids=(directory(3), directory(3, 1)))
    cluster.beat(3)
    alone = cluster.create("alone", (3,))
    assert cluster.partition(alone).replicas == (Replica(3, UNASSIGNED),)
    cluster.register(3, 1, directory_ids=(directory(3), directory(3, 1), directory(3, 2)))
    assert cluster.partition(alone).isr == (3,)
    cluster.register(3, 2, directory_ids=(directory(3, 1), directory(3, 2)))
    assert cluster.partition(alone).isr == ()


@pytest.mark.parametrize(
    ("caching", "clean", "stays"),
    [
        ("true", False, False),
        ("true", True, True),
        ("false", False, True),
        ("false", True, True),
    ],
)
def test_only_an_unclean_stop_with_cached_writes_empties_the_isr(
    cluster: Cluster, caching: str, clean: bool, stays: bool
) -> None:
    topic = cluster.create("t", (1, 2), configs=(("write.caching", caching),))
    fence_all(cluster, 2)
    epoch = cluster.epoch(1)
    cluster.register(1, 1, previous_broker_epoch=epoch if clean else -1)
    assert cluster.partition(topic).isr == ((1,) if stays else ())


@pytest.mark.parametrize(("clean", "stays"), [(False, False), (True, True)])
def test_an_unclean_stop_empties_the_isr_of_a_topic_that_had_write_caching_at_that_time(
    cluster: Cluster, clean: bool, stays: bool
) -> None:
    """write.caching was switched off while the broker was down."""
    topic, other = cluster.create("t", (1, 2)), cluster.create("other", (1, 2))
    fence_all(cluster, 2)
    epoch = cluster.epoch(1)
    early_topics = frozenset({cluster.image.topics[topic].origin})
    cluster.register(1, 1, previous_broker_epoch=epoch if clean else -1, early_topics=early_topics)
    assert cluster.partition(topic).isr == ((1,) if stays else ())
    assert cluster.partition(other).isr == (1,)


def test_a_topic_that_had_write_caching_is_identified_by_its_first_topic_id(cluster: Cluster) -> None:
    """The names of the folders keep this id when the topic gets another one."""
    topic = cluster.create("t", (1, 2), (1, 2))
    origin = cluster.image.topics[topic].origin
    cluster.apply(remove_partitions(cluster.image, "t", 1, cluster.new_id).records)
    renewed = cluster.image.topic("t")
    assert renewed is not None
    assert renewed.topic_id != origin
    fence_all(cluster, 2)
    cluster.register(1, 1, early_topics=frozenset({origin}))
    assert cluster.partition(renewed.topic_id).isr == ()


def test_processes_that_ended_before_they_learned_their_epoch_do_not_make_a_stop_unclean(cluster: Cluster) -> None:
    """The mark of the clean stop is still on the disk, so these processes have written nothing."""
    topic = cluster.create("t", (1, 2), configs=(("write.caching", "true"),))
    fence_all(cluster, 2)
    epoch = cluster.epoch(1)
    for number in (1, 2, 3):
        assert cluster.register(1, number, previous_broker_epoch=epoch).outcome.ok
        assert cluster.partition(topic).isr == (1,)
    cluster.register(1, 4, previous_broker_epoch=epoch - 1)
    assert cluster.partition(topic).isr == (), "this is the mark of an earlier stop"


def test_the_mark_of_a_clean_stop_before_the_last_leadership_is_ignored(cluster: Cluster) -> None:
    """A directory that was restored from a backup has the mark of the clean stop before the backup."""
    topic = cluster.create("t", (1, 2), configs=(("write.caching", "true"),))
    fence_all(cluster, 2)
    epoch = cluster.epoch(1)
    cluster.register(1, 1, previous_broker_epoch=epoch)
    cluster.beat(1)
    assert cluster.partition(topic).leader == 1
    cluster.register(1, 2, previous_broker_epoch=epoch)
    assert cluster.partition(topic).isr == ()


def numbered(start: int) -> UUID:
    return incarnation_id(start, UUID(int=start, version=4))


def test_a_late_registration_of_an_earlier_process_is_refused(cluster: Cluster) -> None:
    """The request waited in a socket while the process was killed and the next one registered."""
    cluster.register(1, incarnation_id=numbered(2))
    epoch, end = cluster.epoch(1), cluster.image.end_offset
    late = cluster.register(1, incarnation_id=numbered(1), session_live=True)
    assert late.outcome.error is ApiError.DUPLICATE_BROKER_REGISTRATION
    assert "a newer process" in late.outcome.message
    assert (cluster.epoch(1), cluster.image.end_offset) == (epoch, end)


def test_a_broker_with_a_directory_from_a_backup_may_register_once_the_session_has_ended(cluster: Cluster) -> None:
    cluster.register(1, incarnation_id=numbered(2))
    assert cluster.register(1, incarnation_id=numbered(1)).outcome.ok


@pytest.mark.parametrize("later", [numbered(3), UUID(int=1 << 80, version=4), UUID(int=1 << 80)])
def test_a_later_process_of_a_broker_registers_immediately(cluster: Cluster, later: UUID) -> None:
    """This also applies to a process of a release that does not number its starts."""
    cluster.register(1, incarnation_id=numbered(2))
    assert cluster.register(1, incarnation_id=later, session_live=True).outcome.ok


def test_a_sole_replica_may_lead_again_after_an_unclean_stop(cluster: Cluster) -> None:
    topic = cluster.create("t", (1,), configs=(("write.caching", "true"),))
    cluster.register(1, 1)
    cluster.beat(1)
    assert cluster.partition(topic).leader == 1


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"broker_id": -1}, "negative"),
        ({"endpoints": ()}, "listener"),
        ({"endpoints": (Endpoint("A", "h", 1), Endpoint("A", "i", 2))}, "same name"),
        ({"endpoints": (Endpoint("A", "0.0.0.0", 1),)}, "wildcard"),
        ({"directory_ids": ()}, "data directory"),
        ({"directory_ids": (UUID(int=0),)}, "reserved"),
        ({"directory_ids": (directory(2),)}, "registered by broker 2"),
    ],
)
def test_invalid_registrations_are_refused(cluster: Cluster, changes: dict[str, Any], word: str) -> None:
    request = registration(**{"broker_id": 9, **changes})
    decision = register(cluster.image, request, session_live=False)
    assert decision.reply.outcome.error is ApiError.INVALID_REGISTRATION
    assert word in decision.reply.outcome.message
    assert decision.records == ()


def test_a_broker_that_does_not_support_the_level_of_metadata_version_is_refused(cluster: Cluster) -> None:
    cluster.apply([Feature("metadata.version", 3)])
    decision = register(cluster.image, registration(9, feature_min=1, feature_max=2), session_live=False)
    assert decision.reply.outcome.error is ApiError.UNSUPPORTED_VERSION


# Heartbeats


def test_heartbeats_of_an_unknown_broker_or_with_an_old_or_future_epoch_are_refused(cluster: Cluster) -> None:
    assert cluster.beat(9).outcome.error is ApiError.BROKER_ID_NOT_REGISTERED
    old = cluster.epoch(1)
    cluster.register(1, 1)
    assert cluster.beat(1, broker_epoch=old).outcome.error is ApiError.STALE_BROKER_EPOCH
    assert cluster.beat(1, broker_epoch=cluster.image.end_offset).outcome.error is ApiError.NOT_CONTROLLER


def test_a_broker_is_unfenced_once_it_has_applied_its_registration() -> None:
    cluster = Cluster()
    cluster.start(2)
    epoch = cluster.register(1).broker_epoch
    behind = cluster.beat(1, applied_offset=epoch)
    assert (behind.fenced, behind.caught_up) == (True, False)
    ahead = cluster.beat(1, applied_offset=epoch + 1)
    assert (ahead.fenced, ahead.caught_up) == (False, True)
    assert cluster.log[-1] == BrokerChange(1, epoch, fenced=False)


def test_a_broker_is_fenced_while_its_heartbeats_request_fencing() -> None:
    cluster = Cluster()
    cluster.register(1)
    assert cluster.beat(1, want_fence=True).fenced
    assert not cluster.beat(1).fenced
    assert cluster.beat(1, want_fence=True).fenced


def test_a_steady_heartbeat_changes_nothing(cluster: Cluster) -> None:
    end = cluster.image.end_offset
    assert cluster.beat(1).outcome.ok
    assert cluster.image.end_offset == end


def test_a_fenced_broker_is_unfenced_only_once_it_has_applied_its_fencing(cluster: Cluster) -> None:
    before = cluster.image.end_offset
    fence_all(cluster, 1)
    assert cluster.beat(1, applied_offset=before).fenced
    assert not cluster.beat(1).fenced


def test_an_unfenced_broker_is_elected_in_partitions_that_only_it_can_lead(cluster: Cluster) -> None:
    alone = cluster.create("alone", (1,), (1,))
    other = cluster.create("other", (2,))
    fence_all(cluster, 1)
    fence_all(cluster, 2)
    end = cluster.image.end_offset
    cluster.beat(1)
    change = cluster.log[-1]
    assert isinstance(change, PartitionChange)
    assert (change.reason, change.cause_offset) == (Reason.BROKER_UNFENCED, end)
    assert [cluster.partition(alone, index).leader for index in (0, 1)] == [1, 1]
    assert cluster.partition(other).leader == NO_LEADER
    check_invariants(cluster.image)


def test_an_unfenced_broker_is_elected_in_more_partitions_than_a_batch_holds() -> None:
    cluster = Cluster()
    cluster.start(1)
    for name in ("a", "b", "c"):
        cluster.create(name, *[(1,)] * 6000)
    fence_all(cluster, 1)
    assert cluster.image.leader_count(NO_LEADER) == 18_000
    cluster.beat(1)
    assert cluster.image.leader_count(1) == 18_000


# Fencing


def test_fencing_moves_leaders_to_the_isr_in_replica_order(cluster: Cluster) -> None:
    topics = [cluster.create(f"t{at}", row) for at, row in enumerate([(1, 2, 3), (2, 3, 1), (3, 1), (1,)])]
    end = cluster.image.end_offset
    decision = fence(cluster.image, 1)
    assert decision.records[0] == BrokerChange(1, cluster.epoch(1), fenced=True)
    cluster.apply(decision.records)
    seen = [(each.leader, each.isr, each.leader_epoch, each.partition_epoch) for each in map(cluster.partition, topics)]
    assert seen == [(2, (2, 3), 1, 1), (2, (2, 3), 0, 1), (3, (3,), 0, 1), (NO_LEADER, (1,), 1, 1)]
    for change in decision.records[1:]:
        assert isinstance(change, PartitionChange)
        assert (change.reason, change.cause_offset) == (Reason.BROKER_FENCED, end)
    check_invariants(cluster.image)


def test_every_partition_change_names_the_offset_of_the_previous_change(cluster: Cluster) -> None:
    topic = cluster.create("t", (1, 2, 3))
    created = cluster.partition(topic).created
    fence_all(cluster, 1)
    first = cluster.log[-1]
    assert isinstance(first, PartitionChange)
    assert first.previous_offset == created
    at = cluster.image.end_offset - 1
    fence_all(cluster, 2)
    second = cluster.log[-1]
    assert isinstance(second, PartitionChange)
    assert second.previous_offset == at == cluster.partition(topic).last_offset - 2


def test_fencing_a_fenced_or_unknown_broker_does_nothing(cluster: Cluster) -> None:
    fence_all(cluster, 1)
    assert fence(cluster.image, 1).records == ()
    assert fence(cluster.image, 99).records == ()


def test_a_leader_is_elected_uncleanly_only_where_the_topic_allows_it(cluster: Cluster) -> None:
    strict = cluster.create("strict", (1, 2))
    loose = cluster.create("loose", (1, 2), configs=(("unclean.leader.election.enable", "true"),))
    fence_all(cluster, 2)
    cluster.beat(2)
    fence_all(cluster, 1)
    assert (cluster.partition(strict).leader, cluster.partition(strict).isr) == (NO_LEADER, (1,))
    assert (cluster.partition(loose).leader, cluster.partition(loose).isr) == (2, (2,))
    change = next(each for each in reversed(cluster.log) if isinstance(each, PartitionChange) and each.leader == 2)
    assert change.reason is Reason.UNCLEAN_ELECTION


def test_fencing_a_broker_with_many_leaderships_takes_several_batches_and_fences_it_last() -> None:
    cluster = Cluster()
    cluster.start(1, 2)
    for name in ("a", "b", "c"):
        cluster.create(name, *[(1, 2)] * 7000)
    sizes = []
    while True:
        decision = fence(cluster.image, 1)
        assert cluster.image.brokers[1].active
        cluster.apply(decision.records)
        assert cluster.image.leader_count(1) + cluster.image.leader_count(2) == 21_000
        sizes.append(len(decision.records))
        if not decision.more:
            break
    assert sizes == [10_000, 10_000, 1001]
    assert isinstance(cluster.log[-1001], BrokerChange)
    assert cluster.image.leader_count(2) == 21_000
    check_invariants(cluster.image)


@pytest.mark.parametrize(("count", "sizes"), [(9999, [10_000]), (10_000, [10_000, 1]), (10_001, [10_000, 2])])
def test_the_fencing_and_its_changes_share_a_batch_as_long_as_they_fit(count: int, sizes: list[int]) -> None:
    cluster = Cluster()
    cluster.start(1, 2)
    cluster.create("a", *[(1, 2)] * 5000)
    cluster.create("b", *[(1, 2)] * (count - 5000))
    for number, size in enumerate(sizes, 1):
        decision = fence(cluster.image, 1)
        cluster.apply(decision.records)
        assert (len(decision.records), decision.more) == (size, number < len(sizes))
    assert cluster.image.leader_count(2) == count


def test_an_activated_controller_elects_the_leaders_that_its_predecessor_did_not_elect(cluster: Cluster) -> None:
    topic = cluster.create("t", (1,))
    fence_all(cluster, 1)
    cluster.apply([BrokerChange(1, cluster.epoch(1), fenced=False)])  # then the controller failed, before the elections
    assert cluster.partition(topic).leader == NO_LEADER
    cluster.execute(elect_leaderless)
    assert cluster.partition(topic).leader == 1
    assert elect_leaderless(cluster.image).records == ()


# Controlled shutdown


def test_a_controlled_shutdown_moves_leaders_leaves_isrs_and_waits_for_the_other_brokers(cluster: Cluster) -> None:
    topics = [cluster.create(f"t{at}", row) for at, row in enumerate([(1, 2, 3), (2, 1), (1,)])]
    before = cluster.image.end_offset
    first = cluster.beat(1, want_shutdown=True, others_applied=before)
    assert (first.should_shutdown, first.leaders_left, first.fenced) == (False, 0, False)
    seen = [(each.leader, each.isr) for each in map(cluster.partition, topics)]
    assert seen == [(2, (2, 3)), (2, (2,)), (NO_LEADER, (1,))]
    end = cluster.image.end_offset
    assert not cluster.beat(1, want_shutdown=True, others_applied=before).should_shutdown
    assert cluster.image.end_offset == end
    last = cluster.beat(1, want_shutdown=True, others_applied=end)
    assert (last.should_shutdown, last.fenced) == (True, True)
    assert cluster.beat(1, want_shutdown=True).should_shutdown
    changes = [each for each in cluster.log if isinstance(each, PartitionChange)]
    assert {each.reason for each in changes} == {Reason.CONTROLLED_SHUTDOWN}
    assert {each.cause_offset for each in changes} == {before}
    check_invariants(cluster.image)


def test_a_leadership_that_is_moved_late_in_a_controlled_shutdown_has_a_cause_and_delays_the_stop(
    cluster: Cluster,
) -> None:
    """Otherwise brokers that still send clients to this broker would not know the new leader when it stops."""
    topic = cluster.create("t", (1, 2))
    assert not cluster.beat(1, want_shutdown=True, others_applied=0).should_shutdown
    cluster.apply([PartitionChange(topic, 0, Reason.UNCLEAN_ELECTION, -1, 0, leader=1, isr=(1, 2))])
    before = cluster.image.end_offset
    answer = cluster.beat(1, want_shutdown=True, others_applied=before)
    assert (answer.should_shutdown, answer.leaders_left) == (False, 0)
    assert isinstance(cluster.log[before], BrokerChange)
    moved = cluster.log[before + 1]
    assert isinstance(moved, PartitionChange)
    assert (moved.reason, moved.leader, moved.cause_offset) == (Reason.CONTROLLED_SHUTDOWN, 2, before)
    assert cluster.beat(1, want_shutdown=True, others_applied=cluster.image.end_offset).should_shutdown
    check_invariants(cluster.image)


def test_the_last_broker_may_shut_down_at_once() -> None:
    cluster = Cluster()
    cluster.start(1)
    topic = cluster.create("t", (1,))
    assert cluster.beat(1, want_shutdown=True).should_shutdown
    assert cluster.partition(topic).isr == (1,)
    cluster.register(1, 1, previous_broker_epoch=cluster.epoch(1))
    cluster.beat(1)
    assert cluster.partition(topic).leader == 1


def test_a_broker_in_controlled_shutdown_is_not_unfenced(cluster: Cluster) -> None:
    cluster.beat(1, want_shutdown=True)
    assert cluster.beat(1).fenced
    assert cluster.beat(1).fenced


# Directories


def test_only_replicas_on_the_failed_directory_leave_the_isr() -> None:
    cluster = Cluster()
    cluster.start(1, 2)
    cluster.register(3, directory_ids=(directory(3), directory(3, 1)))
    cluster.beat(3)
    topics = [cluster.create(f"t{at}", row) for at, row in enumerate([(3, 1), (3, 1), (3,)])]
    changes = list(zip(topics, [directory(3), directory(3, 1), directory(3)], strict=True))
    for topic, place in changes:
        replicas = [Replica(3, place) if each.broker_id == 3 else each for each in cluster.partition(topic).replicas]
        record = PartitionChange(topic, 0, Reason.DIRECTORY_ASSIGNED, -1, -1, replicas=tuple(replicas))
        cluster.apply([record])
    answer = cluster.beat(3, directories_offline=(directory(3),))
    assert answer.outcome.ok
    assert not answer.fenced
    seen = [(each.leader, each.isr) for each in map(cluster.partition, topics)]
    assert seen == [(1, (1,)), (3, (3, 1)), (NO_LEADER, (3,))]
    assert cluster.image.brokers[3].directories_offline == (directory(3),)
    end = cluster.image.end_offset
    cluster.beat(3, directories_offline=(directory(3),))
    assert cluster.image.end_offset == end
    check_invariants(cluster.image)


def test_a_heartbeat_that_reports_an_unknown_directory_as_failed_is_refused(cluster: Cluster) -> None:
    assert cluster.beat(1, directories_offline=(directory(2),)).outcome.error is ApiError.INVALID_REQUEST


def test_refused_heartbeats_make_no_records(cluster: Cluster) -> None:
    request = Heartbeat(1, cluster.epoch(1) - 1, 0, want_shutdown=True, want_fence=True)
    decision = heartbeat(cluster.image, request, others_applied=0)
    assert decision.records == ()
    assert not decision.more


# Producer ids


def test_producer_ids_come_in_blocks_that_never_overlap(cluster: Cluster) -> None:
    for first in (0, 1000, 2000):
        decision = allocate_producer_ids(cluster.image, 1, cluster.epoch(1))
        assert (decision.reply.first_producer_id, decision.reply.count) == (first, 1000)
        cluster.apply(decision.records)
    assert cluster.image.next_producer_id == 3000


def test_only_registered_brokers_get_producer_ids(cluster: Cluster) -> None:
    assert allocate_producer_ids(cluster.image, 9, 0).reply.outcome.error is ApiError.BROKER_ID_NOT_REGISTERED
    old = cluster.epoch(1)
    cluster.register(1, 1)
    assert allocate_producer_ids(cluster.image, 1, old).reply.outcome.error is ApiError.STALE_BROKER_EPOCH


def test_producer_ids_are_refused_once_they_have_run_out() -> None:
    cluster = Cluster()
    cluster.start(1)
    cluster.image = msgspec.structs.replace(cluster.image, next_producer_id=2**63 - 1000)
    decision = allocate_producer_ids(cluster.image, 1, cluster.epoch(1))
    assert decision.reply.outcome.error is ApiError.POLICY_VIOLATION
    assert decision.records == ()
