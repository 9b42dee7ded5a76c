"""Requests of tools: log directories, producers, pages of topics, config resources, the quorum, features."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from broker.kafka.api import HostedLog
from metadata.records import (
    METADATA_VERSION,
    METADATA_VERSION_MAX,
    METADATA_VERSION_MIN,
    TRANSACTION_VERSION,
    Config,
    ConfigScope,
    Endpoint,
    Feature,
)
from quorumlog.wire.kafka.codec import Api
from tests.unit.broker.kafka.conftest import Served
from tests.unit.broker.kafka.raw import RawClient, batch


async def fill(served: Served) -> None:
    served.replicas.create("a", 2)
    served.replicas.create("b", 1)
    async with RawClient(served.port) as client:
        for topic, index in (("a", 0), ("a", 1), ("b", 0)):
            await client.produce(topic, index, batch((b"x",) * (index + 1), producer=(77, 3, 0)))


# -- DescribeLogDirs


async def log_dirs(served: Served, version: int, topics: Any) -> Any:
    async with RawClient(served.port) as client:
        return await client.ask(Api.DESCRIBE_LOG_DIRS, version, {"topics": topics})


@pytest.mark.parametrize("version", [1, 2, 3, 4, 5])
async def test_each_directory_is_described_with_its_logs(served: Served, version: int) -> None:
    await fill(served)
    good, bad, _ = (await log_dirs(served, version, None)).results
    assert (good.log_dir, int(good.error_code), bad.log_dir, int(bad.error_code)) == ("/data/a", 0, "/data/b", 56)
    assert bad.topics == ()
    found = [
        (topic.name, each.partition_index, each.partition_size) for topic in good.topics for each in topic.partitions
    ]
    sizes = {key: len(log.batches[0][3]) for key, log in served.replicas.logs.items()}
    assert found == [("a", 0, sizes["a", 0]), ("a", 1, sizes["a", 1]), ("b", 0, sizes["b", 0])]
    assert not any(each.is_future_key or each.offset_lag for topic in good.topics for each in topic.partitions)
    if version >= 4:
        assert (good.total_bytes, good.usable_bytes, bad.total_bytes) == (1000, 400, -1)


async def test_describe_log_dirs_returns_only_the_requested_partitions(served: Served) -> None:
    await fill(served)
    response = await log_dirs(served, 4, [{"topic": "a", "partitions": [1, 9]}, {"topic": "nobody", "partitions": [0]}])
    good = response.results[0]
    assert [(topic.name, [each.partition_index for each in topic.partitions]) for topic in good.topics] == [("a", [1])]
    assert (await log_dirs(served, 4, [])).results[0].topics == ()


async def test_a_replica_that_moves_is_described_in_both_directories(served: Served) -> None:
    await fill(served)
    served.replicas.futures = [HostedLog(UUID(int=902), "a", 1, 7, 3, is_future=True)]
    response = await log_dirs(served, 4, [{"topic": "a", "partitions": [1]}])
    found = {
        each.log_dir: [
            (one.partition_index, one.offset_lag, one.is_future_key)
            for topic in each.topics
            for one in topic.partitions
        ]
        for each in response.results
    }
    assert found == {"/data/a": [(1, 0, False)], "/data/b": [], "/data/c": [(1, 3, True)]}


# -- DescribeProducers


async def test_the_producers_of_a_partition_are_described(served: Served) -> None:
    await fill(served)
    served.replicas.create("elsewhere", 1, leader=2)
    topics = [{"name": "a", "partition_indexes": [1, 5]}, {"name": "elsewhere", "partition_indexes": [0]}]
    topics.append(
        {"name": "a", "partition_indexes": [5, 1, 1]}
    )  # repeated partitions are answered once, because each may have very many producers
    async with RawClient(served.port) as client:
        response = await client.ask(Api.DESCRIBE_PRODUCERS, 0, {"topics": topics})
    (one, missing), (moved,) = (topic.partitions for topic in response.topics)
    assert [int(each.error_code) for each in (one, missing, moved)] == [0, 3, 6]
    (producer,) = one.active_producers
    assert (producer.producer_id, producer.producer_epoch, producer.last_sequence) == (77, 3, 1)


# -- DescribeTopicPartitions


async def page(served: Served, *names: str, limit: int = 2000, cursor: tuple[str, int] | None = None) -> Any:
    values = {
        "topics": [{"name": name} for name in names],
        "response_partition_limit": limit,
        "cursor": None if cursor is None else {"topic_name": cursor[0], "partition_index": cursor[1]},
    }
    async with RawClient(served.port) as client:
        return await client.ask(Api.DESCRIBE_TOPIC_PARTITIONS, 0, values)


def listed(response: Any) -> list[tuple[str, int, list[int]]]:
    return [
        (topic.name, int(topic.error_code), [each.partition_index for each in topic.partitions])
        for topic in response.topics
    ]


def cursor_of(response: Any) -> tuple[str, int] | None:
    cursor = response.next_cursor
    return None if cursor is None else (cursor.topic_name, cursor.partition_index)


async def test_successive_pages_of_topics_contain_every_partition_exactly_once(served: Served) -> None:
    for name, count in (("c", 1), ("a", 3), ("b", 2)):
        served.replicas.create(name, count)
    everything = [("a", 0), ("a", 1), ("a", 2), ("b", 0), ("b", 1), ("c", 0)]
    for limit in range(1, 8):
        found: list[tuple[str, int]] = []
        cursor: tuple[str, int] | None = None
        pages = 0
        while cursor is not None or not pages:
            response = await page(served, limit=limit, cursor=cursor)
            pages += 1
            new = [(name, index) for name, _, indexes in listed(response) for index in indexes]
            assert len(new) <= limit
            found += new
            cursor = cursor_of(response)
        assert found == everything, limit
        assert pages == -(-6 // limit)


async def test_a_page_contains_the_requested_topics_from_the_cursor_on(served: Served) -> None:
    served.replicas.create("b", 2)
    response = await page(served, "z", "b", "a", "b", "a b")
    assert listed(response) == [("a", 3, []), ("a b", 17, []), ("b", 0, [0, 1]), ("z", 3, [])]
    assert cursor_of(response) is None
    assert listed(await page(served, "z", "b", "a", cursor=("b", 1))) == [("b", 0, [1]), ("z", 3, [])]
    assert listed(await page(served, cursor=("aa", 1))) == [("b", 0, [0, 1])]
    assert listed(await page(served, cursor=("b", 2))) == [("b", 0, [])]
    assert listed(await page(served, cursor=("b", -1))) == [("b", 42, [])]
    assert listed(await page(served, limit=0)) == [("b", 0, [0])], "a page contains at least one partition"


async def test_describe_topic_partitions_reports_leader_replicas_and_isr(served: Served) -> None:
    topic_id = served.replicas.create("t", 1)
    served.replicas.create("u", 1, leader=9)
    first, second = (await page(served)).topics
    assert (first.topic_id, first.is_internal) == (topic_id, False)
    (one,), (other,) = first.partitions, second.partitions
    assert (int(one.error_code), one.leader_id, one.replica_nodes, one.isr_nodes) == (0, 1, (1,), (1,))
    assert (one.eligible_leader_replicas, one.last_known_elr, one.offline_replicas) == ((), (), ())
    assert (int(other.error_code), other.leader_id) == (5, -1)


# -- ListConfigResources


async def test_config_resources_are_listed(served: Served) -> None:
    served.replicas.create("b")
    served.replicas.create("a")

    async def listing(version: int, *types: int) -> tuple[int, list[tuple[str, int]]]:
        async with RawClient(served.port) as client:
            response = await client.ask(Api.LIST_CONFIG_RESOURCES, version, {"resource_types": types})
        found = [(each.resource_name, getattr(each, "resource_type", 16)) for each in response.config_resources]
        return int(response.error_code), found

    assert await listing(1) == (0, [("a", 2), ("b", 2), ("1", 4)])
    assert await listing(1, 4) == (0, [("1", 4)])
    served.replicas.apply(Config(ConfigScope.GROUP, "work", "share.session.timeout.ms", "50000"))
    assert await listing(1) == (0, [("a", 2), ("b", 2), ("1", 4), ("work", 32)])
    assert await listing(1, 32) == (0, [("work", 32)])
    served.replicas.apply(Config(ConfigScope.GROUP, "work", "share.session.timeout.ms", None))
    assert await listing(1, 2, 16, 32) == (0, [("a", 2), ("b", 2)])
    assert await listing(1, 2, 3) == (35, [])
    assert await listing(0) == (0, [])


# -- DescribeQuorum


async def quorum(served: Served, version: int, topic: str = "__cluster_metadata", index: int = 0) -> Any:
    topics = [{"topic_name": topic, "partitions": [{"partition_index": index}]}]
    async with RawClient(served.port) as client:
        return await client.ask(Api.DESCRIBE_QUORUM, version, {"topics": topics})


@pytest.mark.parametrize("version", [0, 1, 2])
async def test_the_quorum_is_described(served: Served, version: int) -> None:
    response = await quorum(served, version)
    (partition,) = response.topics[0].partitions
    assert (int(response.error_code), int(partition.error_code)) == (0, 0)
    assert (partition.leader_id, partition.leader_epoch, partition.high_watermark) == (1, 7, 90)
    assert [(each.replica_id, each.log_end_offset) for each in partition.current_voters] == [(1, 100), (2, 95)]
    assert [each.replica_id for each in partition.observers] == [3]
    if version >= 1:
        assert [each.last_fetch_timestamp for each in partition.current_voters] == [5_000, 4_990]
        assert partition.observers[0].last_caught_up_timestamp == -1
    if version >= 2:
        assert partition.current_voters[1].replica_directory_id == UUID(int=12)
        nodes = [(node.node_id, each.name, each.host, each.port) for node in response.nodes for each in node.listeners]
        assert nodes == [(1, "CONTROLLER", "127.0.0.1", 9093), (2, "CONTROLLER", "::1", 9094)]


async def test_describe_quorum_refuses_partitions_other_than_the_metadata_log(served: Served) -> None:
    for topic, index in (("t", 0), ("__cluster_metadata", 1)):
        (partition,) = (await quorum(served, 2, topic, index)).topics[0].partitions
        assert int(partition.error_code) == 3


async def test_describe_quorum_times_out_if_the_leader_does_not_answer(served: Served) -> None:
    served.node.state = None
    assert int((await quorum(served, 2)).error_code) == 7


# -- ApiVersions


async def versions(served: Served, version: int = 4, **software: str) -> Any:
    values = {"client_software_name": "a-client", "client_software_version": "1.0", **software}
    async with RawClient(served.port) as client:
        return await client.ask(Api.API_VERSIONS, version, values)


async def test_api_versions_reports_features(served: Served) -> None:
    response = await versions(served, 4)
    assert [(each.name, each.min_version, each.max_version) for each in response.supported_features] == [
        ("group.version", 0, 1),
        (METADATA_VERSION, METADATA_VERSION_MIN, METADATA_VERSION_MAX),
        ("share.version", 0, 2),
        (TRANSACTION_VERSION, 0, 2),
    ]
    assert [(each.name, each.max_version_level) for each in response.finalized_features] == [
        ("group.version", 1),
        (METADATA_VERSION, 1),
        ("share.version", 2),
        (TRANSACTION_VERSION, 2),
    ]
    old = await versions(served, 3)
    assert len(old.finalized_features) == len(response.finalized_features)
    assert [each.name for each in old.supported_features] == [METADATA_VERSION]
    assert response.finalized_features_epoch == served.replicas.image.end_offset
    served.replicas.apply(Feature(METADATA_VERSION, 1))
    assert (await versions(served, 3)).finalized_features_epoch == response.finalized_features_epoch + 1
    for level, shown in ((1, [1]), (0, [])):
        served.replicas.apply(Feature(TRANSACTION_VERSION, level))
        finalized = (await versions(served, 3)).finalized_features
        assert [each.max_version_level for each in finalized if each.name == TRANSACTION_VERSION] == shown


@pytest.mark.parametrize("bad", ["", "-a", "a-", "a b", "a/b", "a_b", "é", "a\n"])
async def test_a_clients_software_must_have_a_valid_name_and_version(served: Served, bad: str) -> None:
    for software in ({"client_software_name": bad}, {"client_software_version": bad}):
        response = await versions(served, 3, **software)
        assert (int(response.error_code), response.api_keys) == (42, ())
    assert int((await versions(served, 3, client_software_version="v1.2-rc.3")).error_code) == 0
    async with RawClient(served.port) as client:
        assert int((await client.ask(Api.API_VERSIONS, 2, {})).error_code) == 0


# -- the configs in CreateTopics


async def created(served: Served, validate_only: bool, version: int = 7) -> Any:
    configs = [{"name": "retention.ms", "value": "5"}]
    topic = {"name": "new", "num_partitions": 1, "replication_factor": 1, "configs": configs}
    values = {"topics": [topic], "timeout": 5000, "validate_only": validate_only}
    async with RawClient(served.port) as client:
        return (await client.ask(Api.CREATE_TOPICS, version, values)).topics[0]


@pytest.mark.parametrize("version", [5, 6, 7])
async def test_the_create_topics_response_contains_the_effective_configs(served: Served, version: int) -> None:
    served.replicas.apply(Config(ConfigScope.CLUSTER, "", "segment.ms", "900"))
    configs = {each.name: (each.value, each.config_source) for each in (await created(served, True, version)).configs}
    assert configs["retention.ms"] == ("5", 1)
    assert configs["min.insync.replicas"] == ("1", 1), "the creation stores this value as a config of the topic"
    assert configs["segment.ms"] == ("900", 3)
    assert configs["max.message.bytes"] == ("1048588", 5)
    assert list(configs) == sorted(configs)


# -- DescribeCluster


async def cluster(served: Served, version: int = 2, **fields: Any) -> Any:
    async with RawClient(served.port) as client:
        return await client.ask(Api.DESCRIBE_CLUSTER, version, {"endpoint_type": 1, **fields})


async def test_fenced_brokers_are_described_on_request(served: Served) -> None:
    (own,) = served.replicas.image.brokers[1].endpoints
    served.replicas.register(Endpoint(own.name, "h", 1), node_id=7, fenced=True)
    served.replicas.register(Endpoint("elsewhere", "h", 1), node_id=8)
    for version in (0, 1, 2):
        assert [each.broker_id for each in (await cluster(served, version)).brokers] == [1]
    brokers = (await cluster(served, include_fenced_brokers=True)).brokers
    assert [(each.broker_id, each.is_fenced) for each in brokers] == [(1, False), (7, True)]


async def test_a_broker_describes_no_controllers(served: Served) -> None:
    codes = [int((await cluster(served, endpoint_type=kind)).error_code) for kind in (1, 2, 3)]
    assert codes == [0, 114, 115]


# -- ListOffsets


async def offset(served: Served, version: int, timestamp: int) -> tuple[int, int]:
    partition = {"partition_index": 0, "timestamp": timestamp, "current_leader_epoch": -1}
    values = {"replica_id": -1, "topics": [{"name": "a", "partitions": [partition]}]}
    async with RawClient(served.port) as client:
        (found,) = (await client.ask(Api.LIST_OFFSETS, version, values)).topics[0].partitions
    return int(found.error_code), found.offset


@pytest.mark.parametrize("version", range(1, 12))
async def test_list_offsets_answers_each_special_timestamp_from_the_version_that_introduced_it(
    served: Served, version: int
) -> None:
    await fill(served)
    for timestamp, first, there in ((-1, 1, 1), (-2, 1, 0), (-3, 7, 0), (-4, 8, 0), (-5, 9, -1), (-6, 11, -1)):
        expected = (0, there) if version >= first else (35, -1)
        assert await offset(served, version, timestamp) == expected, timestamp
    assert await offset(served, version, -7) == (35, -1)
    assert await offset(served, version, -(2**63)) == (35, -1)


async def test_list_offsets_refuses_a_partition_that_is_named_twice(served: Served) -> None:
    await fill(served)
    partitions = [{"partition_index": index, "timestamp": -1, "current_leader_epoch": -1} for index in (0, 1, 0)]
    async with RawClient(served.port) as client:
        values = {"replica_id": -1, "topics": [{"name": "a", "partitions": partitions}]}
        found = (await client.ask(Api.LIST_OFFSETS, 11, values)).topics[0].partitions
    assert [int(each.error_code) for each in found] == [42, 0, 42]
