"""The hand-written Metadata response against the schema, and its cache."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from broker.kafka.metadata import MetadataResponses, Wanted, is_topic_name, wanted_topics
from metadata.records import (
    BrokerChange,
    Config,
    ConfigScope,
    Endpoint,
    Partition,
    PartitionChange,
    Reason,
    Replica,
    Topic,
)
from quorumlog.wire.kafka import codec
from quorumlog.wire.kafka.codec import Api
from tests.unit.broker.kafka.fake import FakeReplicas

FIRST, SECOND = UUID(int=(7 << 64) + 1), UUID(int=(7 << 64) + 2)


@pytest.fixture
def cluster() -> FakeReplicas:
    """Brokers 1 and 2 unfenced, 3 fenced, 4 on another listener only; topic "a" led by 1, 2, 3, no broker and 4."""
    made = FakeReplicas()
    for node_id in (1, 2, 3):
        made.register(Endpoint("default", f"host{node_id}", 9000 + node_id), node_id=node_id, fenced=node_id == 3)
    made.register(Endpoint("inside", "host4", 9004), node_id=4)
    replicas = tuple(Replica(node_id) for node_id in (1, 2, 3, 4))
    leaders = (1, 2, 3, -1, 4)
    partitions = [Partition(FIRST, index, replicas, (1, 2), leader, 5) for index, leader in enumerate(leaders)]
    made.apply(Topic(FIRST, "a"), *partitions, Topic(SECOND, "b"), Partition(SECOND, 0, replicas[:1], (1,), 1))
    return made


def read(body: bytes, version: int) -> Any:
    return codec.decode(codec.response_schema(Api.METADATA, version), memoryview(body), 0)


@pytest.mark.parametrize("version", range(14))
def test_every_version_of_metadata_has_the_same_content(cluster: FakeReplicas, version: int) -> None:
    responses = MetadataResponses(1, "the-cluster", 1 << 20)
    response = read(responses.response(cluster.image, version, "default", None), version)
    assert [(node.node_id, node.host, node.port) for node in response.brokers] == [
        (1, "host1", 9001),
        (2, "host2", 9002),
    ]
    assert [topic.name for topic in response.topics] == ["a", "b"]
    a = response.topics[0]
    unreachable = 72 if version >= 6 else 5
    assert [(p.partition_index, p.leader_id, int(p.error_code)) for p in a.partitions] == [
        (0, 1, 0),
        (1, 2, 0),
        (2, -1, unreachable),
        (3, -1, 5),
        (4, -1, unreachable),
    ]
    assert a.partitions[0].replica_nodes == (1, 2, 3, 4)
    assert a.partitions[0].isr_nodes == (1, 2)
    if version >= 1:
        assert response.controller_id == 1
        assert response.brokers[0].rack == "r1"
    if version >= 2:
        assert response.cluster_id == "the-cluster"
    if version >= 5:
        assert a.partitions[0].offline_replicas == (3,)
    if version >= 7:
        assert a.partitions[0].leader_epoch == 5
    if version >= 10:
        assert (a.topic_id, response.topics[1].topic_id) == (FIRST, SECOND)


@pytest.mark.parametrize("version", range(14))
def test_metadata_describes_topics_that_are_requested_by_name(cluster: FakeReplicas, version: int) -> None:
    responses = MetadataResponses(1, "c", 1 << 20)
    wanted: Wanted = ((None, "b"), (None, "nope"), (None, "../x"))
    response = read(responses.response(cluster.image, version, "default", wanted), version)
    assert [(topic.name, int(topic.error_code), len(topic.partitions)) for topic in response.topics] == [
        ("b", 0, 1),
        ("nope", 3, 0),
        ("../x", 17, 0),
    ]


@pytest.mark.parametrize("version", range(1, 14))
def test_internal_topics_are_marked(cluster: FakeReplicas, version: int) -> None:
    cluster.create("__consumer_offsets")
    responses = MetadataResponses(1, "c", 1 << 20)
    wanted: Wanted = ((None, "b"), (None, "__consumer_offsets"))
    response = read(responses.response(cluster.image, version, "default", wanted), version)
    assert [(topic.name, topic.is_internal) for topic in response.topics] == [
        ("b", False),
        ("__consumer_offsets", True),
    ]


@pytest.mark.parametrize("version", [10, 11, 12])
def test_metadata_describes_topics_that_are_requested_by_id(cluster: FakeReplicas, version: int) -> None:
    responses = MetadataResponses(1, "c", 1 << 20)
    wanted: Wanted = ((SECOND, None), (UUID(int=9), None))
    response = read(responses.response(cluster.image, version, "default", wanted), version)
    assert [(topic.topic_id, int(topic.error_code)) for topic in response.topics] == [(SECOND, 0), (UUID(int=9), 100)]
    assert response.topics[1].name == (None if version == 12 else "")


@pytest.mark.parametrize("version", [0, 9, 12])
def test_a_topic_that_a_request_repeats_is_described_once(cluster: FakeReplicas, version: int) -> None:
    topics: list[dict[str, Any]] = [{"name": name} for name in ("b", "a", "b", "missing", "missing")]
    if version >= 10:
        topics += [{"name": name, "topic_id": SECOND} for name in (None, "x", "y")]
    wanted = wanted_topics(codec.request(Api.METADATA, version, {"topics": topics}), version)
    response = read(MetadataResponses(1, "c", 1 << 20).response(cluster.image, version, "default", wanted), version)
    by_id = ["b"] if version >= 10 else []
    assert [topic.name for topic in response.topics] == ["b", "a", "missing", *by_id]


def test_a_broker_that_the_response_does_not_list_is_not_named_as_controller(cluster: FakeReplicas) -> None:
    responses = MetadataResponses(3, "c", 1 << 20)
    assert read(responses.response(cluster.image, 12, "default", ()), 12).controller_id == -1


def test_the_metadata_cache_returns_the_same_bytes_until_topics_or_brokers_change(cluster: FakeReplicas) -> None:
    responses = MetadataResponses(1, "c", 1 << 20)
    first = responses.response(cluster.image, 12, "default", None)
    cluster.apply(Config(ConfigScope.CLUSTER, "", "retention.ms", "5"))
    assert responses.response(cluster.image, 12, "default", None) is first, "the change does not affect the response"
    assert responses.response(cluster.image, 12, "inside", None) != first
    offset = cluster.image.end_offset
    cluster.apply(PartitionChange(SECOND, 0, Reason.PREFERRED_ELECTION, offset, 0, leader=-1))
    second = responses.response(cluster.image, 12, "default", None)
    assert read(second, 12).topics[1].partitions[0].leader_id == -1
    cluster.apply(BrokerChange(3, cluster.image.brokers[3].epoch, fenced=False))
    third = responses.response(cluster.image, 12, "default", None)
    assert [node.node_id for node in read(third, 12).brokers] == [1, 2, 3]


def test_the_size_of_the_metadata_cache_is_bounded(cluster: FakeReplicas) -> None:
    responses = MetadataResponses(1, "c", 10_000)
    for number in range(1_000):
        responses.response(cluster.image, 12, "default", ((None, f"name-{number}"),), 50)
        assert responses._cached_bytes <= 10_000
    first = responses.response(cluster.image, 12, "default", None, 65 << 10)
    assert responses.response(cluster.image, 12, "default", None, 65 << 10) is not first, (
        "the request is too large for the cache"
    )


@pytest.mark.parametrize("name", ["a", "A-z_0.9", "..."[:3], "x" * 249])
def test_valid_topic_names_are_accepted(name: str) -> None:
    assert is_topic_name(name)


@pytest.mark.parametrize("name", ["", ".", "..", "a b", "a/b", "é", "a\n", "x" * 250])
def test_invalid_topic_names_are_rejected(name: str) -> None:
    assert not is_topic_name(name)
