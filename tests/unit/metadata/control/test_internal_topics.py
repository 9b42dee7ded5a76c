"""Decisions on internal topics: creation with default values, and refusals of changes that would lose their state."""

from __future__ import annotations

from uuid import UUID

import pytest

from metadata.control.configs import Changes, Resource, alter_configs
from metadata.control.partitions_count import NewPartitions, add_partitions, remove_partitions
from metadata.control.topics import CreatedTopic, NewTopic, create_topics, delete_topics
from metadata.image.internal_topics import CONSUMER_OFFSETS
from metadata.records import Config, ConfigScope
from quorumlog.wire.errors import ApiError
from tests.unit.metadata.builders import Cluster

OFFSETS = Resource(ConfigScope.TOPIC, CONSUMER_OFFSETS)


@pytest.fixture
def cluster() -> Cluster:
    made = Cluster()
    made.start(1, 2, 3)
    return made


def ask(cluster: Cluster, topic: NewTopic, *, has_one_voter: bool = False) -> CreatedTopic:
    decision = create_topics(cluster.image, [topic], cluster.new_id, has_one_voter=has_one_voter)
    cluster.apply(decision.records)
    return decision.reply[0]


def created(cluster: Cluster) -> UUID:
    answer = ask(cluster, NewTopic(CONSUMER_OFFSETS))
    assert answer.outcome.ok
    assert answer.topic_id is not None
    return answer.topic_id


def test_an_internal_topic_is_created_with_default_values(cluster: Cluster) -> None:
    answer = ask(cluster, NewTopic(CONSUMER_OFFSETS))
    assert (answer.partitions, answer.replication_factor) == (50, 3)
    assert answer.topic_id is not None
    configs = cluster.image.config(ConfigScope.TOPIC, answer.topic_id.hex)
    assert dict(configs) == {"cleanup.policy": "compact", "min.insync.replicas": "2", "segment.bytes": "104857600"}


def test_configs_set_the_number_of_partitions_and_replicas_of_an_internal_topic(cluster: Cluster) -> None:
    cluster.apply(
        [
            Config(ConfigScope.CLUSTER, "", "offsets.topic.num.partitions", "7"),
            Config(ConfigScope.CLUSTER, "", "default.replication.factor", "2"),
            Config(ConfigScope.CLUSTER, "", "num.partitions", "9"),
        ]
    )
    answer = ask(cluster, NewTopic(CONSUMER_OFFSETS))
    assert (answer.partitions, answer.replication_factor) == (7, 2)


def test_an_internal_topic_is_not_created_with_too_few_active_brokers() -> None:
    cluster = Cluster()
    cluster.start(1, 2)
    answer = ask(cluster, NewTopic(CONSUMER_OFFSETS))
    assert answer.outcome.error is ApiError.INVALID_REPLICATION_FACTOR
    assert CONSUMER_OFFSETS not in cluster.image.topic_ids


def test_a_cluster_with_one_voter_lowers_the_replication_factor_to_its_number_of_brokers() -> None:
    cluster = Cluster()
    cluster.start(1, 2)
    answer = ask(cluster, NewTopic(CONSUMER_OFFSETS), has_one_voter=True)
    assert (answer.outcome.ok, answer.replication_factor) == (True, 2)


def test_an_operator_may_create_an_internal_topic_with_explicit_counts() -> None:
    cluster = Cluster()
    cluster.start(1, 2)
    answer = ask(cluster, NewTopic(CONSUMER_OFFSETS, 5, 2, configs=(("cleanup.policy", "compact"),)))
    assert (answer.outcome.ok, answer.partitions, answer.replication_factor) == (True, 5, 2)


def test_an_internal_topic_cannot_be_created_with_cleanup_policy_delete(cluster: Cluster) -> None:
    answer = ask(cluster, NewTopic(CONSUMER_OFFSETS, configs=(("cleanup.policy", "delete"),)))
    assert answer.outcome.error is ApiError.INVALID_CONFIG


def test_an_internal_topic_cannot_be_deleted_by_name_or_id(cluster: Cluster) -> None:
    topic_id = created(cluster)
    decision = delete_topics(cluster.image, [CONSUMER_OFFSETS], [topic_id])
    assert [each.outcome.error for each in decision.reply] == [ApiError.POLICY_VIOLATION] * 2
    assert decision.records == ()


def test_the_number_of_partitions_of_an_internal_topic_cannot_be_changed(cluster: Cluster) -> None:
    created(cluster)
    more = add_partitions(cluster.image, [NewPartitions(CONSUMER_OFFSETS, 51)])
    assert (more.reply[0].outcome.error, more.records) == (ApiError.POLICY_VIOLATION, ())
    same = add_partitions(cluster.image, [NewPartitions(CONSUMER_OFFSETS, 50)])
    assert (same.reply[0].outcome.ok, same.reply[0].changed) == (True, False)
    as_few = remove_partitions(cluster.image, CONSUMER_OFFSETS, 50, cluster.new_id)
    assert (as_few.reply.outcome.ok, as_few.reply.changed, as_few.records) == (True, False, ())
    fewer = remove_partitions(cluster.image, CONSUMER_OFFSETS, 49, cluster.new_id)
    assert (fewer.reply.outcome.error, fewer.records) == (ApiError.POLICY_VIOLATION, ())


def test_the_cleanup_policy_of_an_internal_topic_stays_compact(cluster: Cluster) -> None:
    topic_id = created(cluster)

    def policy() -> str:
        return cluster.image.topic_config(topic_id, "cleanup.policy")

    for values, replace_all, error in (
        ((("cleanup.policy", "delete"),), False, ApiError.INVALID_CONFIG),
        ((("cleanup.policy", None),), False, ApiError.NONE),
        ((("cleanup.policy", "compact"),), False, ApiError.NONE),
        ((("segment.bytes", "1048576"),), True, ApiError.NONE),
    ):
        decision = alter_configs(cluster.image, [Changes(OFFSETS, values, replace_all)])
        cluster.apply(decision.records)
        assert decision.reply[0].outcome.error is error, values
        assert policy() == "compact", values
    assert cluster.image.topic_config(topic_id, "segment.bytes") == "1048576"
