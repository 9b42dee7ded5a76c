"""Changes by admin clients over the Kafka protocol: partitions, configs and leaders, and their refusals."""

from __future__ import annotations

from typing import Any

import pytest

from broker.kafka import configs
from broker.kafka.handlers import HANDLERS
from metadata.control.configs import CHANGES_MAX
from metadata.image import BROKER_CONFIGS, TOPIC_CONFIGS
from metadata.records import METADATA_VERSION, NO_LEADER, BrokerChange, Feature, PartitionChange, Reason
from quorumlog.wire.errors import KafkaCode
from quorumlog.wire.kafka.codec import Api
from quorumlog.wire.v1 import controller_pb2 as pb
from tests.unit.broker.kafka.conftest import Served
from tests.unit.broker.kafka.raw import RawClient

TOPIC, BROKER, LOGGER = 2, 4, 8
SET, DELETE, APPEND = 0, 1, 2


def new_partitions(name: str, count: int, *rows: list[int]) -> dict[str, Any]:
    return {"name": name, "count": count, "assignments": [{"broker_ids": row} for row in rows] or None}


async def create_partitions(client: RawClient, *topics: dict[str, Any], validate_only: bool = False) -> list[int]:
    values = {"topics": topics, "timeout": 5000, "validate_only": validate_only}
    response = await client.ask(Api.CREATE_PARTITIONS, 3, values)
    assert [each.name for each in response.results] == [each["name"] for each in topics]
    assert all((each.error_message is None) == (int(each.error_code) == 0) for each in response.results)
    return [int(each.error_code) for each in response.results]


def partitions(served: Served, name: str) -> int:
    topic = served.replicas.image.topic(name)
    assert topic is not None
    return len(topic.partitions)


async def test_create_partitions_adds_partitions_unless_it_only_validates(served: Served) -> None:
    served.replicas.create("t", 2)
    async with RawClient(served.port) as client:
        assert await create_partitions(client, new_partitions("t", 4), validate_only=True) == [0]
        assert partitions(served, "t") == 2
        assert await create_partitions(client, new_partitions("t", 4)) == [0]
        assert await create_partitions(client, new_partitions("t", 5, [1])) == [0]
        assert partitions(served, "t") == 5
        assert await create_partitions(client) == []


async def test_create_partitions_refuses_invalid_counts_and_assignments(served: Served) -> None:
    served.replicas.create("t", 2)
    async with RawClient(served.port) as client:
        for topic, code in [
            (new_partitions("t", 2), 37),  # the current count: Kafka answers with this error, too
            (new_partitions("t", 1), 37),
            (new_partitions("t", 0), 37),
            (new_partitions("t", -1), 37),
            (new_partitions("t", 2**31 - 1), 37),
            (new_partitions("t", 3, [1, 1]), 39),
            (new_partitions("t", 3, [9]), 39),
            (new_partitions("t", 3, []), 39),
            (new_partitions("nobody", 3), 3),
            (new_partitions("", 3), 3),
        ]:
            assert await create_partitions(client, topic) == [code], topic
            assert await create_partitions(client, topic, validate_only=True) == [code], topic
        assert await create_partitions(client, new_partitions("t", 3), new_partitions("t", 4)) == [42, 42]
        served.controller.failure = pb.Result(error="NOT_CONTROLLER", message="ask again")
        assert await create_partitions(client, new_partitions("t", 3)) == [41]
    assert partitions(served, "t") == 2


async def elect(
    client: RawClient, election_type: int, named: dict[str, list[int]] | None
) -> dict[tuple[str, int], int]:
    asked = None if named is None else [{"topic": name, "partitions": each} for name, each in named.items()]
    values = {"election_type": election_type, "topic_partitions": asked, "timeout": 5000}
    response = await client.ask(Api.ELECT_LEADERS, 2, values)
    assert int(response.error_code) == 0
    return {
        (topic.topic, each.partition_id): int(each.error_code)
        for topic in response.replica_election_results
        for each in topic.partition_result
    }


async def test_elect_leaders_elects_leaders_and_reports_a_code_for_each_partition(served: Served) -> None:
    first, _ = served.replicas.create("t", 2), served.replicas.create("u", 1)
    async with RawClient(served.port) as client:
        assert await elect(client, 0, {"t": [0, 7], "nobody": [0]}) == {("t", 0): 84, ("t", 7): 3, ("nobody", 0): 3}
        assert await elect(client, 0, None) == {}
        assert await elect(client, 0, {}) == {}
        assert await elect(client, 5, {"t": [0]}) == {("t", 0): 42}
        served.replicas.apply(
            PartitionChange(first, 0, Reason.BROKER_FENCED, -1, 0, leader=NO_LEADER),
            PartitionChange(first, 1, Reason.BROKER_FENCED, -1, 0, leader=NO_LEADER, isr=()),
        )
        assert await elect(client, 0, {"t": [0, 1]}) == {("t", 0): 0, ("t", 1): 80}
        assert await elect(client, 1, None) == {("t", 1): 0}
        epoch = served.replicas.image.brokers[1].epoch
        served.replicas.apply(
            BrokerChange(1, epoch, fenced=True),
            PartitionChange(first, 1, Reason.BROKER_FENCED, -1, 0, leader=NO_LEADER),
        )
        assert await elect(client, 1, {"t": [1]}) == {("t", 1): 83}


async def test_an_election_without_a_controller_is_refused(served: Served) -> None:
    served.replicas.create("t", 1)
    served.controller.failure = pb.Result(error="NOT_CONTROLLER")
    values = {"election_type": 0, "topic_partitions": [{"topic": "t", "partitions": [0]}], "timeout": 5000}
    async with RawClient(served.port) as client:
        response = await client.ask(Api.ELECT_LEADERS, 2, values)
    assert int(response.error_code) == 41
    assert int(response.replica_election_results[0].partition_result[0].error_code) == 41


def resource(kind: int, name: str, *configs: tuple[str, str | None] | tuple[str, str | None, int]) -> dict[str, Any]:
    made = [
        {"name": each[0], "value": each[1], "config_operation": each[2] if len(each) == 3 else SET} for each in configs
    ]
    return {"resource_type": kind, "resource_name": name, "configs": made}


async def alter(client: RawClient, *resources: dict[str, Any], api: Api = Api.INCREMENTAL_ALTER_CONFIGS) -> list[int]:
    values = {"resources": resources, "validate_only": False}
    response = await client.ask(api, HANDLERS[api].offered, values)
    assert [(each.resource_type, each.resource_name) for each in response.responses] == [
        (each["resource_type"], each["resource_name"]) for each in resources
    ]
    return [int(each.error_code) for each in response.responses]


async def shown(client: RawClient, kind: int, name: str, *keys: str) -> dict[str, tuple[str, int]]:
    asked = {"resource_type": kind, "resource_name": name, "configuration_keys": keys or None}
    [found] = (await client.ask(Api.DESCRIBE_CONFIGS, 4, {"resources": [asked]})).results
    assert int(found.error_code) == 0, found
    return {each.name: (each.value, int(each.config_source)) for each in found.configs}


async def test_incremental_alter_configs_changes_only_the_named_configs(served: Served) -> None:
    served.replicas.create("t", 1)
    async with RawClient(served.port) as client:
        wanted = [
            resource(TOPIC, "t", ("retention.ms", "5"), ("segment.ms", "7")),
            resource(BROKER, "", ("retention.bytes", "9")),
            resource(BROKER, "1", ("cordoned", "true")),
        ]
        assert await alter(client, *wanted) == [0, 0, 0]
        found = await shown(client, TOPIC, "t")
        assert (found["retention.ms"], found["retention.bytes"]) == (("5", 1), ("9", 3))
        assert await shown(client, BROKER, "1", "cordoned") == {"cordoned": ("true", 2)}
        assert (await shown(client, BROKER, ""))["auto.leader.rebalance.enable"] == ("true", 5)
        assert await alter(client, resource(TOPIC, "t", ("retention.ms", None, DELETE))) == [0]
        assert await shown(client, TOPIC, "t", "retention.ms", "segment.ms") == {
            "retention.ms": ("604800000", 5), "segment.ms": ("7", 1)
        }  # fmt: skip


async def test_a_request_with_more_config_changes_than_the_limit_is_refused_before_any_lookup(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each change of a list looks up the current value of the list, which would take seconds for many changes."""
    served.replicas.create("t", 1)
    looked_up: list[object] = []

    def look_up(image: object, asked: object, config: object) -> str:
        looked_up.append(asked)
        return ""

    monkeypatch.setattr(configs, "_present", look_up)
    added = resource(TOPIC, "t", *[("cleanup.policy", "compact", APPEND)] * (CHANGES_MAX + 1))
    async with RawClient(served.port) as client:
        assert await alter(client, added, resource(BROKER, "", ("retention.bytes", "9"))) == [44, 44]
        assert (await shown(client, BROKER, ""))["retention.bytes"] == ("-1", 5)
        assert looked_up == []
        most = resource(TOPIC, "t", *[("cleanup.policy", "compact", APPEND)] * CHANGES_MAX)
        await alter(client, most)
    assert looked_up


async def test_a_config_without_effect_is_documented_as_such(served: Served) -> None:
    served.replicas.create("t", 1)
    key = "leader.replication.throttled.replicas"
    async with RawClient(served.port) as client:
        assert await alter(client, resource(TOPIC, "t", (key, "0:1"))) == [0]
        asked = {"resource_type": TOPIC, "resource_name": "t", "configuration_keys": [key]}
        values = {"resources": [asked], "include_documentation": True}
        [found] = (await client.ask(Api.DESCRIBE_CONFIGS, 4, values)).results
        [config] = found.configs
        assert (config.value, int(config.config_type)) == ("0:1", 7)
        assert "no effect: reassignment.throttle.bytes.per.second" in str(config.documentation)
        assert await alter(client, resource(BROKER, "1", ("leader.replication.throttled.rate", None, DELETE))) == [0]


async def test_describe_configs_answers_a_repeated_resource_with_the_same_keys_once(served: Served) -> None:
    served.replicas.create("t", 1)
    key = "retention.ms"
    keys = [None, [key], [], [key], None, [key, "segment.ms"]]
    asked = [{"resource_type": TOPIC, "resource_name": "t", "configuration_keys": each} for each in keys]
    async with RawClient(served.port) as client:
        found = (await client.ask(Api.DESCRIBE_CONFIGS, 4, {"resources": [*asked, asked[0]]})).results
    assert [len(each.configs) for each in found] == [len(TOPIC_CONFIGS), 1, 2]


async def test_synonyms_list_every_value_of_a_config_with_the_effective_value_first(served: Served) -> None:
    served.replicas.create("t", 1)
    key = "retention.ms"
    async with RawClient(served.port) as client:
        wanted = [resource(TOPIC, "t", (key, "5")), resource(BROKER, "", (key, "9"))]
        assert await alter(client, *wanted) == [0, 0]
        default = ("604800000", 5)
        for kind, name, expected in [
            (TOPIC, "t", [("5", 1), ("9", 3), default]),
            (BROKER, "", [("9", 3), default]),
        ]:
            asked = {"resource_type": kind, "resource_name": name, "configuration_keys": [key]}
            for include in (True, False):
                values = {"resources": [asked], "include_synonyms": include}
                [found] = (await client.ask(Api.DESCRIBE_CONFIGS, 4, values)).results
                [config] = found.configs
                shown_synonyms = [(each.value, int(each.source)) for each in config.synonyms]
                assert shown_synonyms == (expected if include else [])
                assert all(each.name == key for each in config.synonyms)


async def test_alter_configs_resets_the_configs_that_it_does_not_name(served: Served) -> None:
    served.replicas.create("t", 1)
    async with RawClient(served.port) as client:
        assert await alter(client, resource(TOPIC, "t", ("retention.ms", "5"), ("segment.ms", "7"))) == [0]
        assert await alter(client, resource(TOPIC, "t", ("segment.ms", "8")), api=Api.ALTER_CONFIGS) == [0]
        found = await shown(client, TOPIC, "t", "retention.ms", "segment.ms")
        assert found == {"retention.ms": ("604800000", 5), "segment.ms": ("8", 1)}


async def test_invalid_config_changes_are_refused(served: Served) -> None:
    served.replicas.create("t", 1)
    async with RawClient(served.port) as client:
        before = served.replicas.image
        for wanted, code in [
            (resource(TOPIC, "nobody", ("retention.ms", "5")), 3),
            (resource(BROKER, "99", ("cordoned", "true")), 102),
            (resource(BROKER, "x", ("cordoned", "true")), 42),
            (resource(LOGGER, "1"), 42),
            (resource(-1, "1"), 42),
            (resource(TOPIC, "t", ("retention.ms", "x")), 40),
            (resource(TOPIC, "t", ("retention.ms", "5"), ("no.such", "5")), 40),
            (resource(TOPIC, "t", ("retention.ms", None)), 40),
            (resource(TOPIC, "t", ("retention.ms", "5", APPEND)), 40),
            (resource(TOPIC, "t", ("cleanup.policy", "x", APPEND)), 40),
            (resource(TOPIC, "t", ("retention.ms", "5", 99)), 40),
        ]:
            assert await alter(client, wanted) == [code], wanted
        assert served.replicas.image == before
        good = resource(BROKER, "", ("retention.ms", "5"))
        assert await alter(client, resource(LOGGER, "1"), good, resource(TOPIC, "nobody")) == [42, 0, 3]
        served.controller.failure = pb.Result(error="OUTCOME_UNKNOWN")
        assert await alter(client, good) == [7]
        assert await alter(client) == []


GROUP = 32


async def test_configs_of_groups_are_altered_described_and_listed(served: Served) -> None:
    session, limit = "share.session.timeout.ms", "share.delivery.count.limit"

    async def listed(client: RawClient) -> list[tuple[str, int]]:
        response = await client.ask(Api.LIST_CONFIG_RESOURCES, 1, {"resource_types": (GROUP,)})
        return [(each.resource_name, each.resource_type) for each in response.config_resources]

    async with RawClient(served.port) as client:
        values = {"resources": [resource(GROUP, "work", (session, "50000"))], "validate_only": False}
        [refusal] = (await client.ask(Api.INCREMENTAL_ALTER_CONFIGS, 1, values)).responses
        assert int(refusal.error_code) == 35, "the level of metadata.version is too low"
        assert "metadata.version" in refusal.error_message
        assert "kctl features upgrade" in refusal.error_message
        assert (await shown(client, GROUP, "work"))[session] == ("45000", 5)

        served.replicas.apply(Feature(METADATA_VERSION, 2))
        wanted = [
            resource(GROUP, "work", (session, "50000"), (limit, "3")),
            resource(GROUP, "rest", ("share.isolation.level", "read_committed")),
            resource(BROKER, "", ("group.share.delivery.count.limit", "7")),
        ]
        assert await alter(client, *wanted) == [0, 0, 0]
        assert await listed(client) == [("rest", GROUP), ("work", GROUP)]
        assert await shown(client, GROUP, "work", session, limit) == {session: ("50000", 8), limit: ("3", 8)}
        assert await shown(client, GROUP, "never seen", session, limit) == {session: ("45000", 5), limit: ("7", 3)}
        found = (await described(client, GROUP, "work", limit))[limit]
        assert [(each.name, each.value, int(each.source)) for each in found.synonyms] == [
            (limit, "3", 8), (f"group.{limit}", "7", 3), (f"group.{limit}", "5", 5)
        ]  # fmt: skip
        assert "from 2 to 10" in found.documentation
        assert [int(each.config_type) for each in (await described(client, GROUP, "work")).values()] == [
            5, 5, 5, 1, 2, 2, 5, 5, 2, 5, 5, 1, 5
        ]  # fmt: skip
        renew = "share.renew.acknowledge.enable"
        own = (await described(client, GROUP, "work", renew))[renew]
        assert [(each.name, each.value, int(each.source)) for each in own.synonyms] == [(renew, "true", 5)]

        for bad in ((session, "5"), ("retention.ms", "5"), ("share.isolation.level", "read_committed", APPEND)):
            assert await alter(client, resource(GROUP, "work", bad)) == [40], bad
        assert await alter(client, resource(GROUP, "", (session, "50000"))) == [42]
        assert await alter(client, resource(GROUP, "work", (session, None, DELETE))) == [0]
        assert await shown(client, GROUP, "work", session) == {session: ("45000", 5)}
        assert await alter(client, resource(GROUP, "work"), api=Api.ALTER_CONFIGS) == [0]
        assert await listed(client) == [("rest", GROUP)]


SUBTRACT = 3


async def described(client: RawClient, kind: int, name: str, *keys: str) -> dict[str, Any]:
    asked = {"resource_type": kind, "resource_name": name, "configuration_keys": keys or None}
    values = {"resources": [asked], "include_synonyms": True, "include_documentation": True}
    [found] = (await client.ask(Api.DESCRIBE_CONFIGS, 4, values)).results
    assert int(found.error_code) == 0, found
    return {each.name: each for each in found.configs}


async def test_a_broker_describes_its_configs_and_the_settings_of_its_node(served: Served) -> None:
    async with RawClient(served.port) as client:
        assert await alter(client, resource(BROKER, "", ("retention.ms", "9"))) == [0]
        found = await described(client, BROKER, "1")
        assert not found["cordoned"].read_only
        fixed = {name: each for name, each in found.items() if name not in BROKER_CONFIGS}
        assert all(each.read_only and each.documentation for each in fixed.values())
        expected = {
            "node.id": ("1", 4, 5, [("1", 4)]),
            "broker.id": ("1", 4, 5, [("1", 4)]),
            "broker.rack": (None, 5, 2, []),
            "quorum.auto.join": ("true", 4, 1, [("true", 4), ("false", 5)]),
            "retention.ms": ("9", 3, 5, [("9", 3), ("604800000", 5)]),
            "num.partitions": ("1", 5, 5, [("1", 5)]),
        }
        for name, wanted in expected.items():
            each = fixed[name]
            synonyms = [(one.value, int(one.source)) for one in each.synonyms]
            assert (each.value, int(each.config_source), int(each.config_type), synonyms) == wanted, name
        assert list(await described(client, BROKER, "1", "node.id", "nothing")) == ["node.id"]


async def test_the_description_of_another_broker_has_only_configs_from_the_metadata(served: Served) -> None:
    served.replicas.register(node_id=2)
    async with RawClient(served.port) as client:
        assert list(await described(client, BROKER, "2")) == list(BROKER_CONFIGS)


async def test_values_can_be_appended_to_and_subtracted_from_a_list_config(served: Served) -> None:
    served.replicas.create("t", 1)
    key = "cleanup.policy"
    async with RawClient(served.port) as client:
        for operation, change, expected in [
            (APPEND, "compact", "delete,compact"),
            (APPEND, "compact, delete", "delete,compact"),
            (SUBTRACT, "delete", "compact"),
        ]:
            assert await alter(client, resource(TOPIC, "t", (key, change, operation))) == [0]
            assert (await shown(client, TOPIC, "t", key))[key] == (expected, 1)
        assert await alter(client, resource(TOPIC, "t", (key, "compact", SUBTRACT))) == [KafkaCode.INVALID_CONFIG]
        assert await alter(client, resource(TOPIC, "t", ("retention.ms", "1", APPEND))) == [KafkaCode.INVALID_CONFIG]
        assert await alter(client, resource(TOPIC, "t", (key, "x", 9))) == [KafkaCode.INVALID_CONFIG]


async def test_an_invalid_broker_config_is_refused_with_invalid_request_as_in_kafka(served: Served) -> None:
    served.replicas.create("t", 1)
    async with RawClient(served.port) as client:
        for scope, key in (("1", "leader.replication.throttled.rate"), ("", "retention.ms")):
            for name, value in ((key, "abc"), (key, None), ("log.dirs", "/nowhere")):
                assert await alter(client, resource(BROKER, scope, (name, value))) == [KafkaCode.INVALID_REQUEST]
        assert await alter(client, resource(TOPIC, "t", ("retention.ms", "abc"))) == [KafkaCode.INVALID_CONFIG]


async def test_the_removal_of_a_config_that_is_not_set_succeeds(served: Served) -> None:
    served.replicas.create("t", 1)
    async with RawClient(served.port) as client:
        for name in ("retention.ms", "confluent.value.schema.validation"):
            assert await alter(client, resource(TOPIC, "t", (name, None, DELETE))) == [0]
        assert await alter(client, resource(BROKER, "1", ("log.cleaner.threads", None, DELETE))) == [0]
        assert await alter(client, resource(TOPIC, "missing", ("retention.ms", None, DELETE))) != [0]
