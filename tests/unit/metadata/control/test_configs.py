"""Configs as records: the values of each resource, refusals, and changes that follow from a config."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from metadata.control.configs import Altered, Changes, Described, Resource, alter_configs, describe_configs
from metadata.control.errors import OK, Outcome
from metadata.control.topics import NewTopic, create_topics
from metadata.image import KAFKA_RATES, topic_configs
from metadata.records import ConfigScope, PartitionChange, Reason
from tests.unit.metadata.builders import Cluster, check_invariants, directory

TOPIC = Resource(ConfigScope.TOPIC, "t")
BROKER = Resource(ConfigScope.BROKER, "1")
CLUSTER = Resource(ConfigScope.CLUSTER, "")
MIN_ISR = "min.insync.replicas"


@pytest.fixture
def cluster() -> Cluster:
    """Topic t on brokers 1 to 3, of which at least 2 must be in sync."""
    cluster = Cluster()
    cluster.start(1, 2, 3)
    cluster.create("t", (1, 2, 3), configs=((MIN_ISR, "2"),))
    return cluster


def alter(cluster: Cluster, *wanted: Changes, validate_only: bool = False) -> list[Altered]:
    reply = cluster.execute(lambda image: alter_configs(image, wanted, validate_only=validate_only))
    check_invariants(cluster.image)
    return list(reply)


def word(cluster: Cluster, resource: Resource, *values: tuple[str, str | None]) -> str:
    before = cluster.image
    [answer] = alter(cluster, Changes(resource, values))
    assert cluster.image is before
    assert "\n" not in answer.outcome.message
    return answer.outcome.error


def look(cluster: Cluster, resource: Resource) -> dict[str, Described]:
    found = describe_configs(cluster.image, resource)
    assert not isinstance(found, Outcome), found
    return {each.key: each for each in found}


def test_a_described_config_has_its_effective_value_and_its_source(cluster: Cluster) -> None:
    key = "retention.ms"
    assert (look(cluster, TOPIC)[key].value, look(cluster, TOPIC)[key].source) == ("604800000", "default")
    alter(cluster, Changes(CLUSTER, ((key, "5000"),)))
    assert (look(cluster, TOPIC)[key].value, look(cluster, TOPIC)[key].source) == ("5000", "cluster")
    assert (look(cluster, CLUSTER)[key].value, look(cluster, CLUSTER)[key].source) == ("5000", "cluster")
    [answer] = alter(cluster, Changes(TOPIC, ((key, "7000"),)))
    assert (answer.outcome.ok, answer.changed) == (True, True)
    assert (look(cluster, TOPIC)[key].value, look(cluster, TOPIC)[key].source) == ("7000", "topic")
    alter(cluster, Changes(TOPIC, ((key, None),)))
    assert look(cluster, TOPIC)[key].source == "cluster"
    assert list(look(cluster, CLUSTER)) == sorted(look(cluster, CLUSTER))
    assert "a whole number" in look(cluster, TOPIC)[key].allowed


def test_a_config_that_is_already_set_changes_nothing(cluster: Cluster) -> None:
    alter(cluster, Changes(BROKER, (("cordoned", "true"),)))
    before = cluster.image
    answers = alter(cluster, Changes(BROKER, (("cordoned", "true"),)), Changes(TOPIC, (("segment.ms", None),)))
    assert [(each.outcome.ok, each.changed) for each in answers] == [(True, False), (True, False)]
    assert cluster.image is before


def test_validate_only_changes_no_config(cluster: Cluster) -> None:
    before = cluster.image
    [answer] = alter(cluster, Changes(TOPIC, (("retention.ms", "1"),)), validate_only=True)
    assert (answer.outcome.ok, answer.changed) == (True, False)
    assert cluster.image is before


@pytest.mark.parametrize(
    ("resource", "values", "code"),
    [
        (Resource(None, ""), (), "INVALID_REQUEST"),
        (Resource(ConfigScope.CLUSTER, "x"), (), "INVALID_REQUEST"),
        (Resource(ConfigScope.TOPIC, ""), (), "UNKNOWN_TOPIC_OR_PARTITION"),
        (Resource(ConfigScope.TOPIC, "no\nsuch"), (), "UNKNOWN_TOPIC_OR_PARTITION"),
        (Resource(ConfigScope.BROKER, ""), (), "INVALID_REQUEST"),
        (Resource(ConfigScope.BROKER, "-1"), (), "INVALID_REQUEST"),
        (Resource(ConfigScope.BROKER, "01"), (), "INVALID_REQUEST"),
        (Resource(ConfigScope.BROKER, "\uff19"), (), "INVALID_REQUEST"),
        (Resource(ConfigScope.BROKER, "9" * 5000), (), "INVALID_REQUEST"),
        (Resource(ConfigScope.BROKER, "99"), (), "BROKER_ID_NOT_REGISTERED"),
        (TOPIC, (("", "1"),), "INVALID_CONFIG"),
        (TOPIC, (("x" * 100_000, "1"),), "INVALID_CONFIG"),
        (TOPIC, (("retention.ms", ""),), "INVALID_CONFIG"),
        (TOPIC, (("retention.ms", "-2"),), "INVALID_CONFIG"),
        (TOPIC, (("retention.ms", "1.5"),), "INVALID_CONFIG"),
        (TOPIC, (("retention.ms", "9" * 400),), "INVALID_CONFIG"),
        (TOPIC, (("write.caching", "yes\n"),), "INVALID_CONFIG"),
        (TOPIC, ((MIN_ISR, "0"),), "INVALID_CONFIG"),
        (TOPIC, ((MIN_ISR, "4"),), "INVALID_CONFIG"),
        (TOPIC, (("retention.ms", "1"), ("retention.ms", "1")), "INVALID_CONFIG"),
        (TOPIC, (("retention.ms", "1"), ("retention.ms", None)), "INVALID_CONFIG"),
        (TOPIC, (("retention.ms", "1"), ("segment.ms", "x")), "INVALID_CONFIG"),  # all or nothing
        (TOPIC, (("cordoned", "true"),), "INVALID_CONFIG"),
        (TOPIC, (("num.partitions", "2"),), "INVALID_CONFIG"),
        (BROKER, (("retention.ms", "1"),), "INVALID_CONFIG"),
        (BROKER, (("leader.replication.throttled.rate", "-1"),), "INVALID_CONFIG"),
        (TOPIC, (("leader.replication.throttled.rate", None),), "INVALID_CONFIG"),
        (CLUSTER, (("cordoned", "true"),), "INVALID_CONFIG"),
        (CLUSTER, (("leader.rebalance.interval.ms", "1"),), "INVALID_CONFIG"),
        (TOPIC, tuple([(f"key{number}", "1") for number in range(10_001)]), "POLICY_VIOLATION"),
    ],
)
def test_invalid_config_changes_are_refused_with_an_error_code(
    cluster: Cluster, resource: Resource, values: tuple[tuple[str, str | None], ...], code: str
) -> None:
    assert word(cluster, resource, *values) == code
    if not values:
        found = describe_configs(cluster.image, resource)
        assert isinstance(found, Outcome)
        assert found.error == code


@pytest.mark.parametrize("resource", [BROKER, CLUSTER])
def test_removing_a_throttle_rate_of_kafka_succeeds_without_a_change(cluster: Cluster, resource: Resource) -> None:
    removed = tuple([(key, None) for key in sorted(KAFKA_RATES)])
    before = cluster.image
    for values in (removed, (*removed, ("cordoned" if resource is BROKER else "retention.ms", None))):
        assert alter(cluster, Changes(resource, values)) == [Altered(resource, OK)]
    assert cluster.image is before


def test_the_throttle_rates_of_kafka_reassign_partitions_limit_the_copy_rate_of_a_broker(cluster: Cluster) -> None:
    rates = ("follower.replication.throttled.rate", "leader.replication.throttled.rate")
    [answer] = alter(cluster, Changes(BROKER, tuple([(rate, "1000") for rate in rates])))
    assert answer.outcome == OK
    assert [cluster.image.copy_rate(broker) for broker in (1, 2)] == [1000, -1]
    for of_cluster, in_force in ((500, 500), (2000, 1000), (-1, 1000)):
        alter(cluster, Changes(CLUSTER, (("reassignment.throttle.bytes.per.second", str(of_cluster)),)))
        assert cluster.image.copy_rate(1) == in_force
    alter(cluster, Changes(BROKER, tuple([(rate, None) for rate in rates])))
    assert cluster.image.copy_rate(1) == -1


def test_a_rate_limits_the_moves_between_the_directories_of_a_broker(cluster: Cluster) -> None:
    rate = "replica.alter.log.dirs.io.max.bytes.per.second"
    assert cluster.image.move_rate(1) == -1
    [answer] = alter(cluster, Changes(BROKER, ((rate, "1000"),)))
    assert answer.outcome == OK
    assert [cluster.image.move_rate(broker) for broker in (1, 2)] == [1000, -1]
    alter(cluster, Changes(BROKER, ((rate, None),)))
    assert cluster.image.move_rate(1) == -1


def test_the_refusal_of_an_unknown_key_suggests_the_most_similar_key(cluster: Cluster) -> None:
    [answer] = alter(cluster, Changes(TOPIC, (("retention_ms", "1"),)))
    assert "did you mean retention.ms?" in answer.outcome.message
    [answer] = alter(cluster, Changes(BROKER, (("qqqqq", "1"),)))
    assert "there are cordoned" in answer.outcome.message


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("log.retention.hours", "retention.ms"),
        ("log.retention.ms", "retention.ms"),
        ("log.retention.bytes", "retention.bytes"),
        ("log.cleanup.policy", "cleanup.policy"),
        ("message.max.bytes", "max.message.bytes"),
        ("local.retention", "retention.ms"),  # not local.retention.ms, which has no effect
    ],
)
def test_the_refusal_of_a_kafka_config_name_suggests_the_corresponding_config(
    cluster: Cluster, name: str, near: str
) -> None:
    for resource in (TOPIC, CLUSTER):
        (answer,) = alter(cluster, Changes(resource, ((name, "7"),)))
        assert answer.outcome.message.endswith(f"did you mean {near}?")


def test_an_unknown_key_of_many_topics_is_compared_with_the_known_keys_once(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One request may name thousands of topics, and the controller does nothing else meanwhile."""
    asked: list[str] = []

    def matches(key: str, known: Sequence[str], count: int) -> list[str]:
        asked.append(key)
        return []

    monkeypatch.setattr(topic_configs, "get_close_matches", matches)
    for number in range(5):
        cluster.create(f"t{number}", (1, 2, 3))
    wanted = [Changes(Resource(ConfigScope.TOPIC, f"t{number}"), (("compared.once", "1"),)) for number in range(5)]
    assert {each.outcome.error for each in alter(cluster, *wanted)} == {"INVALID_CONFIG"}
    assert asked == ["compared.once"]


def test_each_resource_has_its_own_result_and_repeated_resources_are_refused(cluster: Cluster) -> None:
    good = Changes(CLUSTER, (("retention.ms", "9"),))
    answers = alter(cluster, Changes(TOPIC, (("segment.ms", "9"),)), good, Changes(TOPIC, (("retention.ms", "9"),)))
    assert [each.outcome.error for each in answers] == ["INVALID_REQUEST", "NONE", "INVALID_REQUEST"]
    assert look(cluster, TOPIC)["segment.ms"].source == "default"
    assert look(cluster, CLUSTER)["retention.ms"].value == "9"


def test_replacing_all_configs_resets_the_others(cluster: Cluster) -> None:
    alter(cluster, Changes(TOPIC, (("retention.ms", "1"), ("segment.ms", "2"))))
    alter(cluster, Changes(TOPIC, (("segment.ms", "3"),), replace_all=True))
    found = look(cluster, TOPIC)
    assert (found["retention.ms"].source, found["segment.ms"].value) == ("default", "3")
    assert found[MIN_ISR].value == "2"  # as for a new topic of three replicas


def test_removing_min_isr_restores_the_value_of_a_new_topic(cluster: Cluster) -> None:
    alter(cluster, Changes(TOPIC, ((MIN_ISR, "3"),)))
    alter(cluster, Changes(TOPIC, ((MIN_ISR, None),)))
    assert look(cluster, TOPIC)[MIN_ISR].value == "2"
    alter(cluster, Changes(CLUSTER, ((MIN_ISR, "1"),)))
    alter(cluster, Changes(TOPIC, ((MIN_ISR, None),)))
    assert look(cluster, TOPIC)[MIN_ISR].value == "1"


def test_configs_set_the_partition_count_and_replication_factor_of_new_topics(cluster: Cluster) -> None:
    values = (("num.partitions", "4"), ("default.replication.factor", "2"))
    alter(cluster, Changes(CLUSTER, values))
    [created] = create_topics(cluster.image, [NewTopic("u")], cluster.new_id).reply
    assert (created.partitions, created.replication_factor) == (4, 2)
    alter(cluster, Changes(CLUSTER, (("default.replication.factor", "9"),)))
    [created] = create_topics(cluster.image, [NewTopic("u")], cluster.new_id).reply
    assert created.outcome.error == "INVALID_REPLICATION_FACTOR"


def test_a_cordoned_broker_gets_no_new_replicas(cluster: Cluster) -> None:
    alter(cluster, Changes(BROKER, (("cordoned", "true"),)))
    decision = create_topics(cluster.image, [NewTopic("u", 10, 2)], cluster.new_id)
    cluster.apply(decision.records)
    assert cluster.image.replica_count(1) == 1
    cluster.create("named", (1, 2))
    assert cluster.image.replica_count(1) == 2


# Side effects of min.insync.replicas


def degraded(cluster: Cluster) -> None:
    cluster.fence(3, 2)
    assert cluster.partition(cluster.image.topic_ids["t"]).elr == (2,)


@pytest.mark.parametrize("value", ["1", "3"])
def test_a_change_of_min_isr_clears_the_eligible_leader_replicas(cluster: Cluster, value: str) -> None:
    degraded(cluster)
    offset = cluster.image.end_offset
    alter(cluster, Changes(TOPIC, (("retention.ms", "1"), (MIN_ISR, value))))
    assert cluster.partition(cluster.image.topic_ids["t"]).elr == ()
    change = cluster.log[-1]
    assert isinstance(change, PartitionChange)
    assert (change.reason, change.cause_offset) == (
        Reason.CONFIG_CHANGED,
        offset,
    )  # the cause is the record of min.insync.replicas, which comes first
    assert change.previous_offset < offset


@pytest.mark.parametrize("value", ["1", "3"])
def test_a_change_of_min_isr_keeps_the_eligible_leader_replicas_if_no_other_replica_may_lead(
    cluster: Cluster, value: str
) -> None:
    """The disk of the last replica in sync was replaced."""
    degraded(cluster)
    cluster.register(1, 1, directory_ids=(directory(1, 9),))
    topic_id = cluster.image.topic_ids["t"]
    assert (cluster.partition(topic_id).isr, cluster.partition(topic_id).elr) == ((), (2,))
    alter(cluster, Changes(TOPIC, ((MIN_ISR, value),)))
    check_invariants(cluster.image)
    cluster.beat(2)
    assert cluster.partition(topic_id).leader == 2
    assert cluster.reason() is Reason.BROKER_UNFENCED
    check_invariants(cluster.image)


def test_the_min_isr_of_the_cluster_does_not_affect_topics_with_their_own_value(cluster: Cluster) -> None:
    degraded(cluster)
    alter(cluster, Changes(CLUSTER, ((MIN_ISR, "3"),)))
    assert cluster.partition(cluster.image.topic_ids["t"]).elr == (2,)


def test_a_change_of_min_isr_clears_the_elr_of_more_partitions_than_a_batch_holds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster = Cluster()
    cluster.start(1, 2)
    cluster.create("t", *[(1, 2)] * 7, configs=((MIN_ISR, "2"),))
    cluster.fence(2)
    monkeypatch.setattr("metadata.control.configs.RECORDS_PER_BATCH_MAX", 3)
    before = len(cluster.log)
    [answer] = alter(cluster, Changes(TOPIC, ((MIN_ISR, "1"),)))
    assert answer.changed
    assert len(cluster.log) == before + 8
    assert all(
        partition and partition.elr == () for partition in cluster.image.topics[cluster.image.topic_ids["t"]].partitions
    )
    assert look(cluster, TOPIC)[MIN_ISR].value == "1"
