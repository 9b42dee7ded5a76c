"""The listener, request by request: versions, order and replies.  For hostile clients see test_listener_bounds.py."""

from __future__ import annotations

import asyncio
import random
from typing import Any
from uuid import UUID

import pytest

from broker.kafka.api import ListOffsetResult
from broker.kafka.handlers import HANDLERS, OF_SCOPES, Resource
from broker.kafka.limits import KafkaLimits
from broker.kafka.listener import KafkaServer
from metadata.records import Endpoint
from quorumlog.errors import ConfigError
from quorumlog.wire.errors import KafkaCode
from quorumlog.wire.kafka import codec, fetch
from quorumlog.wire.kafka.codec import Api
from quorumlog.wire.rpcs import AnyRpc
from quorumlog.wire.v1 import controller_pb2 as pb
from tests.unit.broker.kafka.conftest import Serve, Served
from tests.unit.broker.kafka.fake import FakeController, FakeNode, FakeReplicas
from tests.unit.broker.kafka.raw import RawClient, batch
from tests.unit.broker.kafka.wellness import ALL, is_well, until
from tests.unit.broker.kafka.wellness import event_loop_policy as event_loop_policy

pytestmark = pytest.mark.filterwarnings('ignore:Overriding the "event_loop_policy"')

ELECTION_NOT_NEEDED = 84
TRANSACTION_REQUESTS = (
    Api.ADD_PARTITIONS_TO_TXN,
    Api.ADD_OFFSETS_TO_TXN,
    Api.END_TXN,
    Api.TXN_OFFSET_COMMIT,
    Api.DESCRIBE_TRANSACTIONS,
    Api.INIT_SCOPE,
    Api.INIT_SCOPE_PRODUCER,
    Api.END_SCOPE,
    Api.ABORT_SCOPE,
    Api.DESCRIBE_SCOPES,
)
GROUP_REQUESTS = [
    api for api, handler in HANDLERS.items() if handler.access and handler.access.resource is Resource.GROUP
]
GROUPS_WITH_TOPICS = [Api.OFFSET_FETCH, Api.DESCRIBE_SHARE_GROUP_OFFSETS]
SHARE_STATE_REQUESTS = [api for api in HANDLERS if "SHARE_GROUP_STATE" in api.name]
SHARE_REQUESTS = [api for api in HANDLERS if "SHARE" in api.name]
ACL_REQUESTS = [Api.DESCRIBE_ACLS, Api.CREATE_ACLS, Api.DELETE_ACLS]
TOKEN_REQUESTS = [api for api in HANDLERS if api.name.endswith("DELEGATION_TOKEN")]


# --- every request in every version ---


@pytest.mark.parametrize(
    ("api", "version"),
    [(api, version) for api, range_ in HANDLERS.items() for version in range(range_.low, range_.offered + 1)],
    ids=lambda value: str(getattr(value, "name", value)),
)
async def test_every_request_is_answered_in_its_own_version(served: Served, api: Api, version: int) -> None:
    topic_id = served.replicas.create("t", 1)
    partition = {"partition_index": 0, "partition": 0, "index": 0, "timestamp": -1, "partition_max_bytes": 100}
    topic = {"name": "t", "topic": "t", "topic_id": topic_id, "partitions": [partition], "partition_indexes": [0]}
    values: dict[str, Any] = {
        "topics": [topic],
        "topic_data": [{"name": "t", "topic_id": topic_id, "partition_data": [{"index": 0, "records": batch()}]}],
        "acks": 1,
        "replica_id": -1,
        "key": "g",
        "coordinator_keys": ["g"],
        "group_id": "g",
        "group_ids": ["g"],
        "groups": [{"group_id": "g", "topics": None}] if api in GROUPS_WITH_TOPICS else ["g"],
        "groups_names": ["g"],
        "members": [{"member_id": "m"}],
        "resources": [{"resource_type": 2, "resource_name": "t"}],
        "client_software_name": "raw",
        "client_software_version": "1",
        "min_bytes": 0,
        "topic_names": ["t"],
        "creations": [{"resource_name": "t"}],
        "filters": [{}],
        "entries": [{"entity": [{"entity_type": "user", "entity_name": "u"}], "ops": []}],
        "deletions": [{"name": "u", "mechanism": 1}],
        "dirs": [{"path": "/data/a", "topics": [{"name": "t", "partitions": [0]}]}],
        "voter_directory_id": UUID(int=5),
        "listeners": [{"name": "CONTROLLER", "host": "h", "port": 1}],
        "current_leader_epoch": 7,
        "k_raft_version_feature": {"min_supported_version": 0, "max_supported_version": 1},
        "broker_id": 9,
        "transactional_ids": ["x"],
        "v3_and_below_topics": [{"name": "t", "partitions": [0]}],
    }
    if api is Api.UNREGISTER_BROKER:
        served.replicas.register(node_id=9, fenced=True)
    if api in (Api.ADD_PARTITIONS_TO_TXN, Api.WRITE_TXN_MARKERS):
        topics = [{"name": "t", "partitions": [0], "partition_indexes": [0]}]
        values["transactions"] = values["markers"] = [{"transactional_id": "x", "topics": topics}]
    if api is Api.METADATA:
        values["topics"] = [{"name": "t"}]
    if api is Api.DELETE_TOPICS:
        values["topics"] = [{"name": "t"}]
    if api is Api.CREATE_TOPICS:
        values["topics"] = [{"name": "new", "num_partitions": 1, "replication_factor": 1}]
    if api is Api.CREATE_PARTITIONS:
        values["topics"] = [{"name": "t", "count": 2, "assignments": None}]
    if api is Api.ELECT_LEADERS:
        values["topic_partitions"] = [{"topic": "t", "partitions": [0]}]
    if api in (Api.ALTER_CONFIGS, Api.INCREMENTAL_ALTER_CONFIGS):
        config = {"name": "retention.ms", "config_operation": 0, "value": "5"}
        values["resources"] = [{"resource_type": 2, "resource_name": "t", "configs": [config]}]
    if api is Api.ALTER_PARTITION_REASSIGNMENTS:
        values["topics"] = [{"name": "t", "partitions": [{"partition_index": 0, "replicas": [1]}]}]
    if api is Api.DESCRIBE_LOG_DIRS:
        values["topics"] = None
    if api is Api.DESCRIBE_QUORUM:
        values["topics"] = [{"topic_name": "__cluster_metadata", "partitions": [partition]}]
    if api is Api.DESCRIBE_PRODUCERS:
        values["topics"] = [{"name": "t", "partition_indexes": [0]}]
    if api is Api.DESCRIBE_SCOPES:
        values["scopes"] = ["x"]
    if api is Api.DESCRIBE_TOPIC_PARTITIONS:
        values["topics"] = [{"name": "t"}]
    if api is Api.LIST_PARTITION_REASSIGNMENTS:
        values["topics"] = [{"name": "t", "partition_indexes": [0]}]
    if api in SHARE_STATE_REQUESTS:
        values["topics"] = [{"topic_id": UUID(int=5), "partitions": [{"partition": 0}]}]
    async with RawClient(served.port) as client:
        response = await client.ask(api, version, values)
    codes = [int(code) for code in _error_codes(response)]
    elsewhere = {0, int(KafkaCode.NOT_COORDINATOR)}  # `test_groups.py` has a listener with coordinators
    expected = {
        **dict.fromkeys((*GROUP_REQUESTS, *TRANSACTION_REQUESTS, *SHARE_REQUESTS), elsewhere),
        Api.FIND_COORDINATOR: {int(KafkaCode.COORDINATOR_NOT_AVAILABLE)},
        Api.WRITE_TXN_MARKERS: {int(KafkaCode.NOT_LEADER_OR_FOLLOWER)},
        Api.ELECT_LEADERS: {0, ELECTION_NOT_NEEDED},
        Api.DESCRIBE_LOG_DIRS: {0, int(KafkaCode.KAFKA_STORAGE_ERROR)},
        Api.ALTER_REPLICA_LOG_DIRS: {int(KafkaCode.REPLICA_NOT_AVAILABLE)},
        Api.ALTER_USER_SCRAM_CREDENTIALS: {int(KafkaCode.RESOURCE_NOT_FOUND)},
        Api.PUSH_TELEMETRY: {int(KafkaCode.INVALID_REQUEST)},
        **{key: {int(KafkaCode.SECURITY_DISABLED)} for key in ACL_REQUESTS},
        **{key: {int(KafkaCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED)} for key in TOKEN_REQUESTS},
    }
    assert set(codes) <= expected.get(api, {0}), response
    assert codes, "the response contains an error code"


def _error_codes(message: Any) -> list[int]:
    found = []
    for name in getattr(message, "__dataclass_fields__", ()):
        value = getattr(message, name)
        if name.endswith("error_code"):
            found.append(value)
        for item in value if isinstance(value, tuple) else ():
            found += _error_codes(item)
    return found


async def test_api_versions_lists_the_served_versions(served: Served) -> None:
    async with RawClient(served.port) as client:
        response = await client.ask(Api.API_VERSIONS, 2, {})
    offered = {key.api_key: (key.min_version, key.max_version) for key in response.api_keys}
    served_versions = {
        int(api): (versions.low, versions.offered)
        for api, versions in HANDLERS.items()
        if versions.is_listed and api not in OF_SCOPES  # this listener has no coordinators of transactions
    }
    del offered[Api.PRODUCE], served_versions[Api.PRODUCE]
    assert offered == served_versions


async def test_produce_is_advertised_from_version_0_so_that_older_librdkafka_compresses(served: Served) -> None:
    """librdkafka 2.0 turns gzip, snappy and lz4 off unless Produce 0 is advertised, and still sends version 7."""
    async with RawClient(served.port) as client:
        response = await client.ask(Api.API_VERSIONS, 2, {})
    (produce,) = (key for key in response.api_keys if key.api_key == Api.PRODUCE)
    assert (produce.min_version, produce.max_version) == (0, HANDLERS[Api.PRODUCE].offered)
    assert HANDLERS[Api.PRODUCE].low == 3, "earlier versions carry records in older formats, which are not served"


async def test_an_unknown_version_of_api_versions_is_answered_in_version_0(served: Served) -> None:
    async with RawClient(served.port) as client:
        client.writer.write((14).to_bytes(4, "big") + b"\x00\x12\x00\x63\x00\x00\x00\x09\x00\x04next")
        correlation_id, response = await client.receive(Api.API_VERSIONS, 0)
        assert (correlation_id, int(response.error_code)) == (9, 35)
        assert Api.API_VERSIONS in {key.api_key for key in response.api_keys}
        again = await client.ask(Api.API_VERSIONS, 2, {})
        assert int(again.error_code) == 0


# --- order ---


async def test_produce_requests_overlap_and_are_answered_in_order(served: Served) -> None:
    served.replicas.create("t", 1)
    served.replicas.acknowledge.clear()
    async with RawClient(served.port) as client:
        sent = [client.send_produce("t", 0, batch((b"%d" % number,))) for number in range(5)]
        sent.append(client.send(Api.METADATA, 12, ALL))
        await until(lambda: len(served.replicas.produced) == 5)
        assert served.server.handlers.requests["metadata"] == 0, (
            "other requests wait until the produce requests are answered"
        )
        served.replicas.acknowledge_all()
        offsets = []
        for expected in sent[:5]:
            correlation_id, response = await client.receive(Api.PRODUCE, 9)
            assert correlation_id == expected
            offsets.append(response.responses[0].partition_responses[0].base_offset)
        assert offsets == [0, 1, 2, 3, 4]
        assert (await client.receive(Api.METADATA, 12))[0] == sent[5]


async def test_a_ready_reply_waits_for_earlier_replies(served: Served) -> None:
    served.replicas.create("t", 1)
    served.replicas.acknowledge.clear()
    async with RawClient(served.port) as client:
        first = client.send_produce("t", 0, batch())
        second = client.send_produce("t", 0, batch())
        refused = client.send_produce("nope", 0, batch())
        await until(lambda: len(served.replicas.produced) == 3)
        served.replicas.acknowledge_one()
        assert (await client.receive(Api.PRODUCE, 9))[0] == first
        served.replicas.acknowledge_one()
        assert [(await client.receive(Api.PRODUCE, 9))[0] for _ in range(2)] == [second, refused]


async def test_frames_may_arrive_byte_by_byte_or_all_at_once(served: Served) -> None:
    served.replicas.create("t", 1)
    async with RawClient(served.port) as client:
        body = codec.encode(codec.request(Api.METADATA, 12, ALL))
        frame = codec.request_prefix(Api.METADATA, 12, 7, "raw", len(body)) + body
        for byte in frame:
            client.writer.write(bytes((byte,)))
            await client.writer.drain()
            await asyncio.sleep(0)
        assert (await client.receive(Api.METADATA, 12))[0] == 7
        client.writer.write(frame * 300)
        for _ in range(300):
            assert (await client.receive(Api.METADATA, 12))[0] == 7


@pytest.mark.parametrize("size", [3_000, 5_000, 70_000, 1_000_000, 3_500_000])
async def test_batches_of_any_size_arrive_as_they_were_sent(served: Served, size: int) -> None:
    served.replicas.create("t", 1)
    data = random.Random(size).randbytes(size)
    async with RawClient(served.port) as client:
        answer = await client.produce("t", 0, data)
        assert int(answer.error_code) != 0, "random bytes are not a batch"
        assert (await client.produce("t", 0, batch())).base_offset == 0
    assert served.replicas.produced[0] == ("t", 0, -1, data)


# --- produce ---


async def test_a_produce_with_acks_0_is_not_answered(served: Served) -> None:
    served.replicas.create("t", 1)
    async with RawClient(served.port) as client:
        client.send_produce("t", 0, batch(), acks=0)
        assert (await client.produce("t", 0, batch(), acks=1)).base_offset == 1


async def test_a_failed_produce_with_acks_0_closes_the_connection(served: Served) -> None:
    async with RawClient(served.port) as client:
        client.send_produce("nope", 0, batch(), acks=0)
        assert await client.closed()
    await is_well(served)


def damaged(position: int, value: bytes) -> bytes:
    data = bytearray(batch())
    data[position : position + len(value)] = value
    return bytes(data)


@pytest.mark.parametrize(
    ("records", "code"),
    [
        pytest.param(damaged(-2, b"?"), KafkaCode.CORRUPT_MESSAGE, id="crc"),
        pytest.param(damaged(8, b"\x7f\xff\xff\xff"), KafkaCode.CORRUPT_MESSAGE, id="length 2^31-1"),
        pytest.param(damaged(8, b"\xff\xff\xff\xff"), KafkaCode.CORRUPT_MESSAGE, id="length -1"),
        pytest.param(damaged(8, b"\0\0\0\0"), KafkaCode.CORRUPT_MESSAGE, id="length 0"),
        pytest.param(batch()[:-1], KafkaCode.CORRUPT_MESSAGE, id="cut"),
        pytest.param(damaged(16, b"\x01"), KafkaCode.UNSUPPORTED_FOR_MESSAGE_FORMAT, id="old magic"),
        pytest.param(None, KafkaCode.INVALID_RECORD, id="null"),
        pytest.param(b"", KafkaCode.INVALID_RECORD, id="empty"),
    ],
)
async def test_an_invalid_batch_is_refused_with_its_own_error_code(
    served: Served, records: bytes | None, code: KafkaCode
) -> None:
    served.replicas.create("t", 1)
    async with RawClient(served.port) as client:
        answer = await client.produce("t", 0, records)
        assert (KafkaCode(int(answer.error_code)), answer.base_offset) == (code, -1)
        assert (await client.produce("t", 0, batch())).base_offset == 0, "the refused batch was not appended"


@pytest.mark.parametrize("acks", [2, -2, 32767, -32768])
async def test_acks_out_of_range_are_refused(served: Served, acks: int) -> None:
    served.replicas.create("t", 1)
    async with RawClient(served.port) as client:
        answer = await client.produce("t", 0, batch(), acks=acks)
        assert int(answer.error_code) == KafkaCode.INVALID_REQUIRED_ACKS
    assert served.replicas.produced == []


async def test_a_broker_without_coordinators_refuses_transactional_ids(served: Served) -> None:
    async with RawClient(served.port) as client:
        identity = await client.ask(Api.INIT_PRODUCER_ID, 4, {"transactional_id": "x"})
        assert int(identity.error_code) == KafkaCode.NOT_COORDINATOR


@pytest.mark.parametrize(
    ("topic", "index"), [("nope", 0), ("t", 1), ("t", -1), ("t", 2**31 - 1), ("a/../b", 0), ("", 0)]
)
async def test_produce_to_a_missing_partition_is_refused(served: Served, topic: str, index: int) -> None:
    served.replicas.create("t", 1)
    async with RawClient(served.port) as client:
        assert int((await client.produce(topic, index, batch())).error_code) == KafkaCode.UNKNOWN_TOPIC_OR_PARTITION


async def test_a_broker_that_is_not_the_leader_refuses_a_produce_and_names_the_leader(served: Served) -> None:
    served.replicas.register(Endpoint("default", "leader.example", 9), node_id=2)
    served.replicas.create("t", 1, leader=2)
    async with RawClient(served.port) as client:
        client.send_produce("t", 0, batch(), version=10)
        response = (await client.receive(Api.PRODUCE, 10))[1]
    answer = response.responses[0].partition_responses[0]
    assert (int(answer.error_code), answer.current_leader.leader_id) == (KafkaCode.NOT_LEADER_OR_FOLLOWER, 2)
    assert [(node.node_id, node.host, node.port) for node in response.node_endpoints] == [(2, "leader.example", 9)]


@pytest.mark.parametrize("api", [Api.PRODUCE, Api.FETCH, Api.LIST_OFFSETS])
async def test_old_versions_get_error_codes_that_they_know(
    served: Served, api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = {Api.PRODUCE: 4, Api.FETCH: 6, Api.LIST_OFFSETS: 5}[api]
    old, new = KafkaCode.NOT_LEADER_OR_FOLLOWER, KafkaCode.KAFKA_STORAGE_ERROR
    served.replicas.create("t", 1)
    monkeypatch.setattr(served.replicas, "_refusal", lambda topic, index: KafkaCode.KAFKA_STORAGE_ERROR)
    if api is Api.LIST_OFFSETS:
        old, new = KafkaCode.LEADER_NOT_AVAILABLE, KafkaCode.OFFSET_NOT_AVAILABLE

        async def not_known(*_: object, **__: object) -> ListOffsetResult:
            return ListOffsetResult(int(KafkaCode.OFFSET_NOT_AVAILABLE))

        monkeypatch.setattr(served.replicas, "list_offset", not_known)
    partition = {"partition_index": 0, "partition": 0, "index": 0, "records": batch(), "timestamp": -1}
    topics = [{"name": "t", "topic": "t", "partitions": [partition], "partition_data": [partition]}]
    values = {"topics": topics, "topic_data": topics, "acks": 1, "replica_id": -1, "min_bytes": 0}
    async with RawClient(served.port) as client:
        for version, code in ((first - 1, old), (first, new)):
            assert set(_error_codes(await client.ask(api, version, values))) - {0} == {code}


# --- fetch ---


def fetch_values(offset: int = 0, **more: Any) -> dict[str, Any]:
    partition = {"partition": 0, "fetch_offset": offset, "partition_max_bytes": 1 << 20}
    values = {"replica_id": -1, "max_wait": 0, "min_bytes": 1, "max_bytes": 1 << 20}
    return {**values, "topics": [{"topic": "t", "partitions": [partition]}], **more}


async def test_the_fetch_session_of_a_consumer_is_passed_on(served: Served) -> None:
    served.replicas.create("t", 1)
    async with RawClient(served.port) as client:
        await client.ask(Api.FETCH, 12, fetch_values(session_id=5, session_epoch=1))
        await client.ask(Api.FETCH, 6, fetch_values())
    plans = served.replicas.plans
    assert [(each.session_id, each.session_epoch) for each in plans] == [(5, 1), (0, -1)], "version 6 has no sessions"
    assert not any(each.by_id for each in plans)


async def test_the_fetch_of_a_follower_is_passed_on_with_its_session_and_epochs(served: Served) -> None:
    topic_id = served.replicas.create("t", 1)
    body = b"".join(
        fetch.encode_request(
            fetch.FOLLOWER_VERSION,
            [fetch.PartitionToFetch(None, 0, 0, 500, 3, 2, 0, topic_id)],
            max_wait_ms=7,
            min_bytes=0,
            max_bytes=900,
            session_id=11,
            session_epoch=4,
            forgotten=[fetch.PartitionToFetch(None, 5, 0, 0, topic_id=topic_id)],
            replica_id=2,
            broker_epoch=33,
            cluster_id="c",
        )
    )
    async with RawClient(served.port) as client:
        client.send_body(Api.FETCH, fetch.FOLLOWER_VERSION, body)
        await client.receive(Api.FETCH, fetch.FOLLOWER_VERSION)
    plan = served.replicas.plans[0]
    assert (plan.replica_id, plan.broker_epoch, plan.session_id, plan.session_epoch) == (2, 33, 11, 4)
    assert (plan.max_wait_ms, plan.max_bytes) == (7, 900)
    assert [(gone.topic_id, gone.index) for gone in plan.forgotten] == [(topic_id, 5)]
    one = plan.partitions[0]
    assert (one.topic_id, one.topic, one.current_leader_epoch, one.last_fetched_epoch) == (topic_id, None, 3, 2)


async def test_a_client_that_claims_to_be_a_broker_is_refused(served: Served) -> None:
    served.replicas.create("t", 1)
    async with RawClient(served.port) as client:
        response = await client.ask(Api.FETCH, 11, fetch_values(replica_id=2))
        assert int(response.error_code) == KafkaCode.CLUSTER_AUTHORIZATION_FAILED
        old = await client.ask(Api.FETCH, 4, fetch_values(replica_id=2))
        assert int(old.responses[0].partitions[0].error_code) == KafkaCode.CLUSTER_AUTHORIZATION_FAILED
    assert served.replicas.plans == []


@pytest.mark.parametrize("offset", [-5, 2**63 - 1, 2])
async def test_a_fetch_at_an_offset_out_of_range_is_refused(served: Served, offset: int) -> None:
    served.replicas.create("t", 1)
    async with RawClient(served.port) as client:
        await client.produce("t", 0, batch())
        response = await client.ask(Api.FETCH, 12, fetch_values(offset))
    one = response.responses[0].partitions[0]
    assert (int(one.error_code), one.log_start_offset, one.high_watermark) == (KafkaCode.OFFSET_OUT_OF_RANGE, 0, 1)


@pytest.mark.parametrize("max_bytes", [0, -1, 2**31 - 1, -(2**31)])
async def test_a_fetch_with_extreme_size_limits_returns_a_batch(served: Served, max_bytes: int) -> None:
    served.replicas.create("t", 1)
    sent = batch((b"hello",))
    async with RawClient(served.port) as client:
        await client.produce("t", 0, sent)
        values = fetch_values(max_bytes=max_bytes)
        values["topics"][0]["partitions"][0]["partition_max_bytes"] = max_bytes
        response = await client.ask(Api.FETCH, 12, values)
    assert bytes(response.responses[0].partitions[0].records)[16:] == sent[16:], (
        "only the offset and the epoch may differ"
    )


async def test_a_long_poll_ends_with_its_connection(served: Served) -> None:
    served.replicas.create("t", 1)
    async with RawClient(served.port) as client:
        client.send(Api.FETCH, 12, fetch_values(max_wait=30_000))
        await until(lambda: served.replicas.fetches_parked == 1)
    await until(lambda: served.replicas.fetches_parked == 0)
    await until(lambda: served.server.counters.connections == 0)


# --- metadata and listeners ---


async def test_a_client_is_answered_with_the_endpoints_of_its_listener(serve: Serve) -> None:
    async with serve(listeners=("inside=127.0.0.1:0", "outside=127.0.0.1:0")) as served:
        inside, outside = served.server.endpoints
        served.replicas.register(Endpoint("inside", "only.inside", 5), node_id=2)
        served.replicas.create("t", 1)
        served.replicas.create("far", 1, leader=2)
        for bound, nodes in ((inside, {1: inside.port, 2: 5}), (outside, {1: outside.port})):
            async with RawClient(bound.port) as client:
                response = await client.ask(Api.METADATA, 12, ALL)
                assert {broker.node_id: broker.port for broker in response.brokers} == nodes
                assert response.controller_id == 1
                leaders = {topic.name: topic.partitions[0] for topic in response.topics}
                assert leaders["t"].leader_id == 1
                reachable = 2 in nodes
                assert leaders["far"].leader_id == (2 if reachable else -1)
                assert int(leaders["far"].error_code) == (0 if reachable else 72)
                described = await client.ask(Api.DESCRIBE_CLUSTER, 1, {})
                assert {broker.broker_id: broker.port for broker in described.brokers} == nodes


async def test_metadata_responses_reflect_created_and_deleted_topics(served: Served) -> None:
    async with RawClient(served.port) as client:
        wanted = {"topics": [{"name": "t"}, {"name": "a b"}]}
        response = await client.ask(Api.METADATA, 12, wanted)
        assert [int(topic.error_code) for topic in response.topics] == [KafkaCode.UNKNOWN_TOPIC_OR_PARTITION, 17]
        topic_id = served.replicas.create("t", 2)
        response = await client.ask(Api.METADATA, 12, wanted)
        assert (response.topics[0].topic_id, len(response.topics[0].partitions)) == (topic_id, 2)
        by_id = await client.ask(Api.METADATA, 12, {"topics": [{"topic_id": topic_id, "name": None}]})
        assert by_id.topics[0].name == "t"
        served.replicas.delete("t")
        response = await client.ask(Api.METADATA, 12, wanted)
        assert int(response.topics[0].error_code) == KafkaCode.UNKNOWN_TOPIC_OR_PARTITION
        by_id = await client.ask(Api.METADATA, 12, {"topics": [{"topic_id": topic_id, "name": None}]})
        assert int(by_id.topics[0].error_code) == KafkaCode.UNKNOWN_TOPIC_ID
        assert (await client.ask(Api.METADATA, 1, {"topics": ()})).topics == ()


# --- administration ---


async def test_a_topic_is_created_and_deleted_through_the_controller(served: Served) -> None:
    new = {"name": "t", "num_partitions": 3, "replication_factor": 1, "configs": [{"name": "k", "value": "v"}]}
    placed = {
        "name": "placed",
        "num_partitions": -1,
        "replication_factor": -1,
        "assignments": [{"partition_index": 1, "broker_ids": [2, 1]}, {"partition_index": 0, "broker_ids": [1]}],
    }
    async with RawClient(served.port) as client:
        response = await client.ask(Api.CREATE_TOPICS, 7, {"topics": [new, placed], "timeout": 4000})
        assert [(topic.name, int(topic.error_code)) for topic in response.topics] == [("t", 0), ("placed", 0)]
        request = served.controller.requests[0][1]
        assert 3000 < request.header.timeout_ms <= 4000, "the rest of the timeout of the client"
        assert [(config.key, config.value) for config in request.topics[0].configs] == [("k", "v")]
        assert [list(item.values) for item in request.topics[1].assignment] == [[1], [2, 1]]
        again = await client.ask(Api.CREATE_TOPICS, 7, {"topics": [new], "timeout": 4000})
        assert (int(again.topics[0].error_code), again.topics[0].error_message) == (36, "topic t exists")
        gone = await client.ask(Api.DELETE_TOPICS, 6, {"topics": [{"name": "t"}, {"name": "t2"}], "timeout": 4000})
        assert [(topic.name, int(topic.error_code)) for topic in gone.responses] == [("t", 0), ("t2", 3)]


async def test_invalid_new_topics_are_refused_and_the_others_are_created(served: Served) -> None:
    twice = {"name": "twice", "num_partitions": 1, "replication_factor": 1}
    holes = {"name": "holes", "assignments": [{"partition_index": 1, "broker_ids": [1]}]}
    vague = {"name": "vague", "num_partitions": 1, "configs": [{"name": "retention.ms", "value": None}]}
    fine = {"name": "fine", "num_partitions": 1, "replication_factor": 1}
    async with RawClient(served.port) as client:
        topics = [twice, holes, twice, vague, fine]
        response = await client.ask(Api.CREATE_TOPICS, 7, {"topics": topics, "timeout": 4000})
    codes = {topic.name: int(topic.error_code) for topic in response.topics}
    assert codes == {"twice": 42, "holes": 39, "vague": 40, "fine": 0}


@pytest.mark.parametrize(
    ("failure", "code"),
    [("NOT_CONTROLLER", 41), ("OUTCOME_UNKNOWN", 7), ("SOMETHING_OF_OURS", -1), ("REQUEST_TIMED_OUT", 7)],
)
async def test_a_refusal_by_the_controller_is_passed_on(served: Served, failure: str, code: int) -> None:
    served.controller.failure = pb.Result(error=failure, message="why", next="what now")
    async with RawClient(served.port) as client:
        response = await client.ask(Api.CREATE_TOPICS, 7, {"topics": [{"name": "t"}], "timeout": 100})
    assert int(response.topics[0].error_code) == code
    assert response.topics[0].error_message == "why; what now"


async def test_a_request_times_out_if_the_controller_does_not_answer() -> None:
    replicas = FakeReplicas()

    async def silence(rpc: AnyRpc, request: Any, timeout_ms: int) -> Any:
        await asyncio.Event().wait()

    server = KafkaServer(replicas, silence, ["127.0.0.1:0"], node=FakeNode(), node_id=1, cluster_id="c")
    await server.start()
    try:
        async with RawClient(server.endpoints[0].port) as client:
            response = await client.ask(Api.CREATE_TOPICS, 7, {"topics": [{"name": "t"}], "timeout": 20})
            assert int(response.topics[0].error_code) == KafkaCode.REQUEST_TIMED_OUT
    finally:
        await server.close()


async def test_create_topics_is_answered_once_the_broker_has_applied_the_topic(serve: Serve) -> None:
    replicas = FakeReplicas()
    waited: list[int] = []

    async def wait_for(offset: int) -> None:
        waited.append(offset)

    controller = FakeController(replicas)
    server = KafkaServer(
        replicas,
        controller.call,
        ["127.0.0.1:0"],
        node=FakeNode(),
        node_id=1,
        cluster_id="c",
        wait_for_metadata=wait_for,
    )
    await server.start()
    try:
        async with RawClient(server.endpoints[0].port) as client:
            await client.ask(Api.CREATE_TOPICS, 7, {"topics": [{"name": "t", "num_partitions": 1}], "timeout": 1000})
        assert waited == [replicas.image.end_offset]
    finally:
        await server.close()


# --- starting and closing ---


async def test_a_start_with_a_port_in_use_names_the_listener_and_closes_the_others(serve: Serve) -> None:
    async with serve() as served:
        listeners = ["a=127.0.0.1:0", f"b=127.0.0.1:{served.port}"]
        server = KafkaServer(
            FakeReplicas(), served.controller.call, listeners, node=FakeNode(), node_id=1, cluster_id="c"
        )
        with pytest.raises(ConfigError, match=f"b=127.0.0.1:{served.port}"):
            await server.start()
        free = server.endpoints[0].port
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("127.0.0.1", free)


async def test_a_closing_listener_answers_running_requests_and_ends_long_polls(serve: Serve) -> None:
    async with serve() as served:
        served.replicas.create("t", 1)
        served.replicas.acknowledge.clear()
        async with RawClient(served.port) as client, RawClient(served.port) as poller:
            sent = client.send_produce("t", 0, batch())
            poller.send(Api.FETCH, 12, fetch_values(max_wait=30_000, topics=[]))
            await until(lambda: len(served.replicas.produced) == 1 and served.replicas.fetches_parked == 1)
            closing = asyncio.ensure_future(served.server.close())
            assert await poller.closed()
            served.replicas.acknowledge_all()
            assert (await client.receive(Api.PRODUCE, 9))[0] == sent
            await closing
            assert await client.closed()


async def test_closing_waits_only_for_a_limited_time_for_running_requests(serve: Serve) -> None:
    async with serve(KafkaLimits(close_ms=20)) as served:
        served.replicas.create("t", 1)
        served.replicas.acknowledge.clear()
        async with RawClient(served.port) as client:
            client.send_produce("t", 0, batch())
            await until(lambda: len(served.replicas.produced) == 1)
            await served.server.close()
            assert await client.closed()


async def test_produce_13_names_topics_by_their_ids(served: Served) -> None:
    topic_id = served.replicas.create("t", 1)
    unknown = UUID(int=77)
    data = [{"topic_id": each, "partition_data": [{"index": 0, "records": batch()}]} for each in (unknown, topic_id)]
    async with RawClient(served.port) as client:
        response = await client.ask(Api.PRODUCE, 13, {"acks": -1, "timeout": 5000, "topic_data": data})
    found = [(each.topic_id, int(each.partition_responses[0].error_code)) for each in response.responses]
    assert found == [(unknown, KafkaCode.UNKNOWN_TOPIC_ID), (topic_id, 0)]
    assert [(topic, index) for topic, index, *_ in served.replicas.produced] == [("t", 0)]
