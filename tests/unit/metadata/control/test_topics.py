"""Decisions on topics: names, counts, assignments, configs, placement, deletion and recreation."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from uuid import UUID

import pytest

from metadata.control.configs import Changes, Resource, alter_configs
from metadata.control.reassign import Wanted, alter_reassignments
from metadata.control.topics import CreatedTopic, NewTopic, create_topics, delete_topics, forget_topics, gone_names
from metadata.image import TOPIC_CONFIGS
from metadata.records import Config, ConfigScope, ForgetTopics, Partition, RemoveTopic, Replica, Topic
from quorumlog.wire.errors import ApiError
from tests.unit.metadata.builders import Cluster, check_invariants, directory


@pytest.fixture
def cluster() -> Cluster:
    made = Cluster()
    made.start(1, 2, 3)
    return made


def ask(cluster: Cluster, *topics: NewTopic, validate_only: bool = False) -> tuple[CreatedTopic, ...]:
    decision = create_topics(cluster.image, topics, cluster.new_id, validate_only=validate_only)
    cluster.apply(decision.records)
    return decision.reply


def refused(cluster: Cluster, topic: NewTopic) -> ApiError:
    end = cluster.image.end_offset
    answer = ask(cluster, topic)[0]
    assert not answer.outcome.ok
    assert answer.outcome.message
    assert cluster.image.end_offset == end
    return answer.outcome.error


# Refusals


@pytest.mark.parametrize(
    "name",
    ["", ".", "..", "x" * 250, "a b", "a\0b", "a\nb", "caf\u00e9", "\U0001f600", "../../etc/x", "a/b", "/etc", "a\\b",
     "__cluster_metadata", "__consumer_offsets2", "__mine"],
)  # fmt: skip
def test_invalid_topic_names_are_refused(cluster: Cluster, name: str) -> None:
    assert refused(cluster, NewTopic(name, 1, 1)) is ApiError.INVALID_TOPIC_EXCEPTION


def test_the_refusal_of_a_name_with_a_line_break_is_a_single_line(cluster: Cluster) -> None:
    assert "\n" not in ask(cluster, NewTopic("a\nb", 1, 1))[0].outcome.message


@pytest.mark.parametrize("name", ["a", "x" * 249, "a.b", "a_b", "A-1", "...", "_x"])
def test_valid_topic_names_are_accepted(cluster: Cluster, name: str) -> None:
    assert ask(cluster, NewTopic(name, 1, 1))[0].outcome.ok


def test_dots_and_underscores_make_different_topics(cluster: Cluster) -> None:
    dots, underscores = ask(cluster, NewTopic("a.b", 1, 1), NewTopic("a_b", 1, 1))
    assert dots.outcome.ok
    assert underscores.outcome.ok
    assert dots.topic_id != underscores.topic_id


@pytest.mark.parametrize("partitions", [0, -2, 10_001, 10_000_000, 2**31 - 1])
def test_invalid_partition_counts_are_refused(cluster: Cluster, partitions: int) -> None:
    assert refused(cluster, NewTopic("t", partitions, 1)) is ApiError.INVALID_PARTITIONS


@pytest.mark.parametrize("factor", [0, -2, 4, 32_768])
def test_invalid_replication_factors_are_refused(cluster: Cluster, factor: int) -> None:
    assert refused(cluster, NewTopic("t", 1, factor)) is ApiError.INVALID_REPLICATION_FACTOR


def test_only_unfenced_brokers_count_towards_the_replication_factor(cluster: Cluster) -> None:
    cluster.fence(3)
    assert refused(cluster, NewTopic("t", 1, 3)) is ApiError.INVALID_REPLICATION_FACTOR
    assert ask(cluster, NewTopic("t", 1, 2))[0].outcome.ok


def test_no_topic_can_be_created_without_brokers() -> None:
    assert refused(Cluster(), NewTopic("t")) is ApiError.INVALID_REPLICATION_FACTOR


@pytest.mark.parametrize(
    "rows",
    [((1, 1),), ((1, 9),), ((1, 2), (1,)), ((),), ((1, 2), ()), ((-1,),)],
)
def test_invalid_assignments_are_refused(cluster: Cluster, rows: tuple[tuple[int, ...], ...]) -> None:
    assert refused(cluster, NewTopic("t", assignment=rows)) is ApiError.INVALID_REPLICA_ASSIGNMENT


def test_only_an_assignment_to_an_unavailable_broker_has_a_next_step(cluster: Cluster) -> None:
    shape, unknown = (
        ask(cluster, NewTopic("t", assignment=rows))[0].outcome for rows in (((1, 2), (99,)), ((1, 2), (1, 99)))
    )
    assert (shape.message, shape.next_step) == ("partition 1 has 1 replica; partition 0 has 2", "")
    assert (unknown.message, unknown.next_step) == ("partition 1: broker 99 is not registered", "kctl brokers list")


def test_an_assignment_to_fenced_brokers_alone_is_refused(cluster: Cluster) -> None:
    cluster.fence(1)
    assert refused(cluster, NewTopic("t", assignment=((1,),))) is ApiError.INVALID_REPLICA_ASSIGNMENT
    topic = cluster.create("t", (1, 2))
    assert (cluster.partition(topic).leader, cluster.partition(topic).isr) == (2, (2,))


def test_an_assignment_together_with_counts_is_refused(cluster: Cluster) -> None:
    assert refused(cluster, NewTopic("t", 3, -1, assignment=((1,),))) is ApiError.INVALID_REQUEST
    assert refused(cluster, NewTopic("t", -1, 2, assignment=((1,),))) is ApiError.INVALID_REQUEST


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("retention.mss", "1"),
        ("retention.ms", "soon"),
        ("retention.ms", "-2"),
        ("retention.ms", "1.5"),
        ("retention.ms", "9" * 30),
        ("retention.ms", "٣"),
        ("retention.bytes", "-5"),
        ("segment.bytes", "1"),
        ("max.message.bytes", "0"),
        ("write.caching", "yes"),
        ("write.caching", "TRUE"),
        ("cleanup.policy", ""),
        ("cleanup.policy", "compact,"),
        ("cleanup.policy", "compact,compact"),
        ("cleanup.policy", "compact, delete"),
        ("cleanup.policy", "purge"),
        ("min.cleanable.dirty.ratio", "1.1"),
        ("min.cleanable.dirty.ratio", "-0.1"),
        ("min.cleanable.dirty.ratio", "nan"),
        ("min.cleanable.dirty.ratio", "."),
        ("compression.type", "brotli"),
        ("compression.type", "none"),
        ("compression.gzip.level", "0"),
        ("compression.gzip.level", "-2"),
        ("compression.gzip.level", "10"),
        ("compression.lz4.level", "0"),
        ("compression.lz4.level", "18"),
        ("compression.zstd.level", "-131073"),
        ("compression.zstd.level", "23"),
        ("message.timestamp.before.max.ms", "-1"),
        ("message.timestamp.after.max.ms", "9223372036854775808"),
        ("remote.storage.enable", "true"),
        ("flush.messages", "0"),
        ("preallocate", "yes"),
        ("leader.replication.throttled.replicas", "all"),
        ("leader.replication.throttled.replicas", "0:1,"),
        ("leader.replication.throttled.replicas", "0:1\n"),
        ("leader.replication.throttled.replicas", "0:1," * 5000 + "0:1"),
        ("message.timestamp.type", "logappendtime"),
        ("message.timestamp.difference.max.ms", "1000"),
        ("unclean.leader.election.enable", ""),
        ("min.insync.replicas", "0"),
        ("min.insync.replicas", "4"),
    ],
)
def test_the_refusal_of_a_config_names_the_key_and_the_permitted_values(cluster: Cluster, key: str, value: str) -> None:
    answer = ask(cluster, NewTopic("t", 1, 3, configs=((key, value),)))[0]
    assert answer.outcome.error is ApiError.INVALID_CONFIG
    assert key in answer.outcome.message
    if key in TOPIC_CONFIGS and key != "min.insync.replicas":
        assert TOPIC_CONFIGS[key].allowed.partition("; no effect")[0] in answer.outcome.message


def test_min_insync_replicas_above_the_replication_factor_is_refused(cluster: Cluster) -> None:
    assert refused(cluster, NewTopic("t", 1, 2, configs=(("min.insync.replicas", "3"),))) is ApiError.INVALID_CONFIG


def test_a_config_given_twice_is_refused(cluster: Cluster) -> None:
    twice = (("retention.ms", "1"), ("retention.ms", "2"))
    assert refused(cluster, NewTopic("t", 1, 1, configs=twice)) is ApiError.INVALID_CONFIG


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("file.delete.delay.ms", "0"),
        ("flush.messages", "1"),
        ("flush.ms", "0"),
        ("follower.replication.throttled.replicas", "*"),
        ("index.interval.bytes", "0"),
        ("leader.replication.throttled.replicas", "0:1,0:2,11:3"),
        ("local.retention.bytes", "-2"),
        ("local.retention.ms", "5"),
        ("preallocate", "true"),
        ("segment.index.bytes", "4"),
    ],
)
def test_a_config_without_effect_is_accepted_and_documented_as_such(cluster: Cluster, key: str, value: str) -> None:
    assert ask(cluster, NewTopic("t", 1, 3, configs=((key, value),)))[0].outcome.ok
    assert "no effect: " in TOPIC_CONFIGS[key].allowed


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("cleanup.policy", "delete"),
        ("cleanup.policy", "compact"),
        ("cleanup.policy", "compact,delete"),
        ("cleanup.policy", "delete,compact"),
        ("delete.retention.ms", "0"),
        ("max.compaction.lag.ms", "1"),
        ("min.compaction.lag.ms", "1"),
        ("min.cleanable.dirty.ratio", "0"),
        ("min.cleanable.dirty.ratio", "0.25"),
        ("min.cleanable.dirty.ratio", ".5"),
        ("min.cleanable.dirty.ratio", "1.0"),
        ("compression.type", "uncompressed"),
        ("compression.type", "zstd"),
        ("compression.gzip.level", "-1"),
        ("compression.gzip.level", "1"),
        ("compression.gzip.level", "9"),
        ("compression.lz4.level", "17"),
        ("compression.zstd.level", "-131072"),
        ("compression.zstd.level", "22"),
    ],
)
def test_configs_of_compaction_and_compression_are_accepted_and_have_an_effect(
    cluster: Cluster, key: str, value: str
) -> None:
    assert ask(cluster, NewTopic("t", 1, 3, configs=((key, value),)))[0].outcome.ok
    assert not TOPIC_CONFIGS[key].no_effect


def test_a_codec_whose_library_is_missing_is_refused_and_named(cluster: Cluster) -> None:
    missing = {"zstd": "its library is missing"}
    topics = [NewTopic(codec, 1, 1, configs=(("compression.type", codec),)) for codec in ("gzip", "zstd")]
    decision = create_topics(cluster.image, topics, cluster.new_id, unavailable=missing)
    assert [each.outcome.error for each in decision.reply] == [ApiError.NONE, ApiError.INVALID_CONFIG]
    assert decision.reply[1].outcome.message == "compression.type cannot be zstd: its library is missing"
    cluster.create("t", (1,))
    topic = Resource(ConfigScope.TOPIC, "t")
    for codec, error in (("zstd", ApiError.INVALID_CONFIG), ("lz4", ApiError.NONE), (None, ApiError.NONE)):
        changes = Changes(topic, (("compression.type", codec),))
        [altered] = alter_configs(cluster.image, [changes], unavailable=missing).reply
        assert altered.outcome.error is error


def test_every_default_of_a_topic_config_is_valid() -> None:
    for config in TOPIC_CONFIGS.values():
        assert config.problem(config.default) is None
    assert list(TOPIC_CONFIGS) == sorted(TOPIC_CONFIGS)


# Created topics


def test_a_topic_consists_of_its_record_its_partitions_and_its_configs(cluster: Cluster) -> None:
    topics = [NewTopic("t", 2, 3, configs=(("retention.ms", "60000"),))]
    decision = create_topics(cluster.image, topics, cluster.new_id)
    topic, *partitions, min_isr, retention = decision.records
    assert isinstance(topic, Topic)
    for index, partition in enumerate(partitions):
        assert isinstance(partition, Partition)
        assert (partition.index, partition.leader_epoch, partition.partition_epoch) == (index, 0, 0)
        assert partition.isr == tuple(replica.broker_id for replica in partition.replicas)
        assert partition.leader == partition.isr[0]
    resource = topic.topic_id.hex
    assert min_isr == Config(ConfigScope.TOPIC, resource, "min.insync.replicas", "2")
    assert retention == Config(ConfigScope.TOPIC, resource, "retention.ms", "60000")
    answer = decision.reply[0]
    assert (answer.partitions, answer.replication_factor, answer.topic_id) == (2, 3, topic.topic_id)


@pytest.mark.parametrize(("factor", "value"), [(1, "1"), (2, "1"), (3, "2")])
def test_min_insync_replicas_is_resolved_at_creation(cluster: Cluster, factor: int, value: str) -> None:
    topic_id = ask(cluster, NewTopic("t", 1, factor))[0].topic_id
    assert topic_id is not None
    assert cluster.image.topic_config(topic_id, "min.insync.replicas") == value


def test_min_insync_replicas_of_the_cluster_overrides_the_default(cluster: Cluster) -> None:
    cluster.apply([Config(ConfigScope.CLUSTER, "", "min.insync.replicas", "3")])
    three, one = ask(cluster, NewTopic("three", 1, 3), NewTopic("one", 1, 1))
    assert three.topic_id is not None
    assert one.topic_id is not None
    assert cluster.image.topic_config(three.topic_id, "min.insync.replicas") == "3"
    assert cluster.image.topic_config(one.topic_id, "min.insync.replicas") == "1"


def test_the_default_replication_factor_depends_on_the_number_of_brokers() -> None:
    cluster = Cluster()
    cluster.start(1)
    answer = ask(cluster, NewTopic("alone"))[0]
    assert (answer.partitions, answer.replication_factor) == (1, 1)
    cluster.start(2, 3, 4)
    answer = ask(cluster, NewTopic("many"))[0]
    assert (answer.partitions, answer.replication_factor) == (1, 3)


def test_a_replica_is_assigned_to_a_directory_only_if_its_broker_has_just_one() -> None:
    cluster = Cluster()
    cluster.start(1)
    cluster.register(2, directory_ids=(directory(2), directory(2, 1)))
    cluster.beat(2)
    topic = cluster.create("t", (1, 2))
    assert cluster.partition(topic).replicas == (Replica(1, directory(1)), Replica(2))


def test_validating_a_creation_makes_no_records(cluster: Cluster) -> None:
    end = cluster.image.end_offset
    good, bad = ask(cluster, NewTopic("good", 2, 2), NewTopic("bad", 0, 1), validate_only=True)
    assert (good.outcome.ok, good.topic_id, good.partitions) == (True, None, 2)
    assert bad.outcome.error is ApiError.INVALID_PARTITIONS
    assert cluster.image.end_offset == end


def test_a_topic_id_that_exists_or_is_reserved_is_drawn_again(cluster: Cluster) -> None:
    taken = cluster.create("taken", (1,))
    drawn = iter([UUID(int=0), taken, UUID(int=77)])
    decision = create_topics(cluster.image, [NewTopic("t", 1, 1)], lambda: next(drawn))
    assert decision.reply[0].topic_id == UUID(int=77)


# Several topics in one request


def test_each_topic_of_a_creation_request_has_its_own_outcome(cluster: Cluster) -> None:
    answers = ask(cluster, NewTopic("good", 1, 1), NewTopic("b d", 1, 1), NewTopic("also", 1, 1))
    assert [answer.outcome.error for answer in answers] == [
        ApiError.NONE,
        ApiError.INVALID_TOPIC_EXCEPTION,
        ApiError.NONE,
    ]
    assert sorted(cluster.image.topic_ids) == ["also", "good"]


def test_a_topic_name_that_a_request_repeats_is_not_created(cluster: Cluster) -> None:
    answers = ask(cluster, NewTopic("t", 1, 1), NewTopic("t", 2, 1), NewTopic("u", 1, 1))
    assert [answer.outcome.error for answer in answers] == [
        ApiError.INVALID_REQUEST,
        ApiError.INVALID_REQUEST,
        ApiError.NONE,
    ]


def test_a_request_that_exceeds_one_batch_creates_no_topic(cluster: Cluster) -> None:
    end = cluster.image.end_offset
    answers = ask(cluster, NewTopic("a", 6000, 1), NewTopic("b", 6000, 1), NewTopic("", 1, 1))
    assert [answer.outcome.error for answer in answers] == [
        ApiError.POLICY_VIOLATION, ApiError.POLICY_VIOLATION, ApiError.INVALID_TOPIC_EXCEPTION,
    ]  # fmt: skip
    assert cluster.image.end_offset == end


def test_the_largest_topic_fills_one_batch(cluster: Cluster) -> None:
    assert ask(cluster, NewTopic("t", 9998, 1))[0].outcome.ok
    assert ask(cluster, NewTopic("u", 9999, 1))[0].outcome.error is ApiError.POLICY_VIOLATION


def test_a_hundred_thousand_topics_get_a_hundred_thousand_answers(cluster: Cluster) -> None:
    answers = ask(cluster, *[NewTopic(f"t{number}", 1, 1) for number in range(100_000)])
    assert len(answers) == 100_000
    assert {answer.outcome.error for answer in answers} == {ApiError.POLICY_VIOLATION}


# Existing topics


def test_a_retried_creation_never_makes_a_second_topic(cluster: Cluster) -> None:
    first = ask(cluster, NewTopic("t", 2, 3, configs=(("retention.ms", "5"),)))[0]
    again = ask(cluster, NewTopic("t", 2, 3, configs=(("retention.ms", "5"),)))[0]
    assert again.outcome.error is ApiError.TOPIC_ALREADY_EXISTS
    assert (again.identical, again.topic_id) == (True, first.topic_id)
    assert (again.partitions, again.replication_factor) == (2, 3)


@pytest.mark.parametrize(
    ("topic", "word"),
    [
        (NewTopic("t", 3, 3), "partitions 2, not 3"),
        (NewTopic("t", 2, 1), "replication factor 3, not 1"),
        (NewTopic("t", 2, 3, configs=(("retention.ms", "5"),)), "retention.ms"),
        (NewTopic("t", 2, 3, configs=(("strange", "5"),)), "strange"),
        (NewTopic("t", assignment=((1, 2, 3), (3, 1, 2))), "assignment"),
    ],
)
def test_creating_a_different_topic_names_the_differences(cluster: Cluster, topic: NewTopic, word: str) -> None:
    cluster.create("t", (1, 2, 3), (2, 3, 1))
    answer = ask(cluster, topic)[0]
    assert answer.outcome.error is ApiError.TOPIC_ALREADY_EXISTS
    assert not answer.identical
    assert word in answer.outcome.message


def test_a_retried_creation_of_a_topic_that_is_being_reassigned_compares_the_new_replicas(cluster: Cluster) -> None:
    cluster.create("t", (1, 2))
    moved = alter_reassignments(cluster.image, [Wanted("t", 0, (3, 2))])
    cluster.apply(moved.records)
    answer = ask(cluster, NewTopic("t", 1, 2))[0]
    assert (answer.identical, answer.replication_factor) == (True, 2)
    assert ask(cluster, NewTopic("t", assignment=((3, 2),)))[0].identical
    assert not ask(cluster, NewTopic("t", assignment=((1, 2),)))[0].identical


def test_a_retried_creation_with_default_values_is_identical(cluster: Cluster) -> None:
    cluster.create("t", (1, 2, 3), (2, 3, 1))
    assert ask(cluster, NewTopic("t"))[0].identical
    assert ask(cluster, NewTopic("t", assignment=((1, 2, 3), (2, 3, 1))))[0].identical


# Deletion


def test_a_topic_is_deleted_by_name_or_id_with_its_configs(cluster: Cluster) -> None:
    first, second = cluster.create("first", (1, 2)), cluster.create("second", (1,))
    decision = delete_topics(cluster.image, ["first"], [second])
    assert decision.records == (RemoveTopic(first), RemoveTopic(second))
    assert [answer.name for answer in decision.reply] == ["first", "second"]
    cluster.apply(decision.records)
    assert not cluster.image.topics
    assert not cluster.image.configs
    assert cluster.image.replica_count(1) == 0
    check_invariants(cluster.image)


def test_deleting_a_missing_topic_is_refused(cluster: Cluster) -> None:
    topic = cluster.create("t", (1,))
    decision = delete_topics(cluster.image, ["none", "t"], [UUID(int=99), topic])
    assert [answer.outcome.error for answer in decision.reply] == [
        ApiError.UNKNOWN_TOPIC_OR_PARTITION, ApiError.NONE, ApiError.UNKNOWN_TOPIC_ID, ApiError.INVALID_REQUEST,
    ]  # fmt: skip
    assert decision.records == (RemoveTopic(topic),)


def test_validating_a_deletion_makes_no_records(cluster: Cluster) -> None:
    cluster.create("t", (1,))
    decision = delete_topics(cluster.image, ["t"], [], validate_only=True)
    assert decision.reply[0].outcome.ok
    assert decision.records == ()


def test_a_recreated_topic_has_another_id_and_continues_its_leader_epochs(cluster: Cluster) -> None:
    first = cluster.create("t", (1, 2), (2, 1))
    cluster.fence(1)
    cluster.beat(1)
    assert cluster.partition(first, 0).leader_epoch == 1
    cluster.apply(delete_topics(cluster.image, ["t"], []).records)
    second = cluster.create("t", (1, 2), (2, 1), (1, 2))
    assert second != first
    assert [cluster.partition(second, index).leader_epoch for index in range(3)] == [2, 1, 0]
    cluster.apply(delete_topics(cluster.image, ["t"], []).records)
    third = cluster.create("t", (2,))
    assert cluster.partition(third, 0).leader_epoch == 3
    assert cluster.image.first_leader_epoch("t", 2) == 1


def test_the_leader_epochs_of_a_deleted_topic_are_removed_unless_its_name_exists_again(cluster: Cluster) -> None:
    for name in ("gone", "back"):
        cluster.create(name, (1,))
    cluster.apply(delete_topics(cluster.image, ["gone", "back"], []).records)
    assert gone_names(cluster.image) == ["back", "gone"]
    cluster.create("back", (1,))
    decision = forget_topics(cluster.image, ["gone", "back", "never"])
    assert decision.records == (ForgetTopics(("gone",)),)
    cluster.apply(decision.records)
    assert cluster.image.first_leader_epoch("gone", 0) == 0
    assert cluster.image.first_leader_epoch("back", 0) == 1
    assert gone_names(cluster.image) == []
    assert forget_topics(cluster.image, ["gone"]).records == ()


# Placement


def spread(cluster: Cluster, name: str, partitions: int, factor: int) -> list[tuple[int, ...]]:
    answer = ask(cluster, NewTopic(name, partitions, factor))[0]
    assert answer.outcome.ok
    assert answer.topic_id is not None
    return [cluster.partition(answer.topic_id, index).replica_ids for index in range(partitions)]


@pytest.mark.parametrize(("brokers", "partitions", "factor"), [(3, 6, 3), (5, 12, 3), (6, 100, 2), (7, 49, 4)])
def test_leaders_and_replicas_of_a_topic_are_spread_evenly(brokers: int, partitions: int, factor: int) -> None:
    cluster = Cluster()
    cluster.start(*range(1, brokers + 1))
    rows = spread(cluster, "t", partitions, factor)
    leaders = Counter({broker: 0 for broker in range(1, brokers + 1)})
    leaders.update(row[0] for row in rows)
    replicas = Counter({broker: 0 for broker in range(1, brokers + 1)})
    replicas.update(broker for row in rows for broker in row)
    assert max(leaders.values()) - min(leaders.values()) <= 1
    assert max(replicas.values()) - min(replicas.values()) <= 1
    assert all(len(set(row)) == factor for row in rows)


def test_a_large_topic_is_spread_evenly() -> None:
    cluster = Cluster()
    cluster.start(*range(1, 8))
    rows = spread(cluster, "t", 2000, 3)
    assert {cluster.image.leader_count(broker) for broker in range(1, 8)} == {285, 286}
    counts = [cluster.image.replica_count(broker) for broker in range(1, 8)]
    assert max(counts) - min(counts) <= 1
    assert len({row[:2] for row in rows}) == 7 * 6  # each ordered pair of brokers occurs as leader and second replica


def test_a_request_for_too_many_replicas_creates_no_topic() -> None:
    cluster = Cluster()
    cluster.start(*range(1, 21))
    assert refused(cluster, NewTopic("t", 9000, 20)) is ApiError.POLICY_VIOLATION
    assert refused(cluster, NewTopic("t", assignment=(tuple(range(1, 21)),) * 5001)) is ApiError.POLICY_VIOLATION


def test_many_small_topics_are_spread_evenly() -> None:
    cluster = Cluster()
    cluster.start(*range(1, 7))
    for number in range(60):
        spread(cluster, f"t{number}", 1, 3)
    assert {cluster.image.leader_count(broker) for broker in range(1, 7)} == {10}
    assert {cluster.image.replica_count(broker) for broker in range(1, 7)} == {30}


def test_the_leaderships_of_a_fenced_broker_spread_over_the_others() -> None:
    cluster = Cluster()
    cluster.start(*range(1, 6))
    spread(cluster, "t", 40, 3)
    cluster.fence(2)
    taken = [cluster.image.leader_count(broker) for broker in (1, 3, 4, 5)]
    assert sum(taken) == 40
    assert max(taken) - min(taken) <= 2


def test_replicas_are_spread_over_all_racks_before_a_rack_gets_a_second_replica() -> None:
    cluster = Cluster()
    for broker in range(1, 10):
        cluster.start(broker, rack=f"r{broker % 3}")
    for row in spread(cluster, "t", 30, 3):
        assert {broker % 3 for broker in row} == {0, 1, 2}
    for row in spread(cluster, "u", 30, 4):
        assert sorted(Counter(broker % 3 for broker in row).values()) == [1, 1, 2]


def test_each_of_two_uneven_racks_gets_a_replica_of_each_partition() -> None:
    cluster = Cluster()
    cluster.start(1, 2, 3, rack="large")
    cluster.start(4, rack="small")
    rows = spread(cluster, "t", 12, 2)
    assert all(4 in row for row in rows)
    assert max(Counter(row[0] for row in rows).values()) == 3


def test_a_new_broker_does_not_get_a_whole_topic() -> None:
    cluster = Cluster()
    cluster.start(1, 2, 3)
    spread(cluster, "old", 300, 3)
    cluster.start(4)
    rows = spread(cluster, "new", 8, 1)
    assert Counter(row[0] for row in rows) == {1: 2, 2: 2, 3: 2, 4: 2}
    assert spread(cluster, "one", 1, 1) == [(4,)]


def test_placement_is_deterministic(cluster: Cluster) -> None:
    topics = [NewTopic("a", 7, 2), NewTopic("b", 3, 3)]

    def place() -> list[tuple[Replica, ...]]:
        ids = iter([UUID(int=1), UUID(int=2)])
        records = create_topics(cluster.image, topics, lambda: next(ids)).records
        return [record.replicas for record in records if isinstance(record, Partition)]

    assert place() == place()
    assert any(first != second for first, second in pairwise(place()))
