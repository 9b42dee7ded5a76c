"""The admin client: controllers that move, answers that are lost, deadlines, cancels, wrong arguments.

`tests/integration/kafka/test_own_admin.py` has every call against a real broker.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import datetime
from math import inf
from typing import Any

import grpc
import pytest

from quorumlog.client import (
    Admin,
    ClusterError,
    ConfigError,
    Consumer,
    NewTopic,
    Producer,
    RefusalsError,
    ShareOffset,
)
from quorumlog.client.admin_values import refused
from quorumlog.client.coordinators import AT_ONCE_MAX
from quorumlog.client.group_descriptions import CommittedOffset
from quorumlog.client.kafka import CHECK_ADDRESSES
from quorumlog.client.messages import TopicPartition
from quorumlog.wire.errors import KafkaCode
from quorumlog.wire.kafka.codec import Api
from tests.unit.broker.kafka.wellness import until
from tests.unit.quorumlog.client.fake_cluster import fake_brokers
from tests.unit.quorumlog.client.fake_groups import group_brokers, join_member
from tests.unit.quorumlog.client.fake_kafka import FakeKafka, fake_kafka
from tests.unit.quorumlog.client.fake_shares import share_brokers

TIMEOUT_S = 10.0
ON_2 = "a"
"""A group whose coordinator is broker 2; the cluster has two brokers."""


@asynccontextmanager
async def setting(timeout_s: float = TIMEOUT_S) -> AsyncIterator[tuple[FakeKafka, Admin]]:
    async with fake_kafka() as kafka, Admin(kafka.bootstrap, timeout_s=timeout_s) as admin:
        yield kafka, admin


async def refusal_of(call: Awaitable[object]) -> ClusterError:
    with pytest.raises(ClusterError) as refusal:
        await call
    assert refusal.value.next_step, "each refusal has a next step"
    return refusal.value


# -- the controller


@pytest.mark.parametrize("controller", [1, 2])
async def test_topic_changes_are_sent_to_the_controller(controller: int) -> None:
    async with setting() as (kafka, admin):
        kafka.controller = controller
        assert (await admin.cluster()).controller == controller
        await admin.create_topic("orders", 2)
        await admin.add_partitions("orders", 3)
        assert kafka.topics == {"orders": 3}
        await admin.delete_topic("orders")
        assert kafka.topics == {}
        changes = [each for each in kafka.asked if each[1] != Api.METADATA]
        assert {node_id for node_id, _ in changes} == {controller}


async def test_a_change_follows_the_controller_when_it_moves() -> None:
    async with setting() as (kafka, admin):
        kafka.believed = {1: 1, 2: 1}
        kafka.controller = 2
        creation = asyncio.ensure_future(admin.create_topic("orders"))
        await until(lambda: len(kafka.changed_by(Api.CREATE_TOPICS)) >= 2)
        assert not creation.done()
        kafka.believed = {}
        assert (await creation).name == "orders"
        assert set(kafka.changed_by(Api.CREATE_TOPICS)[:-1]) == {1}
        assert kafka.changed_by(Api.CREATE_TOPICS)[-1] == 2


async def test_another_broker_is_asked_for_the_controller_if_the_first_broker_is_behind() -> None:
    async with setting() as (kafka, admin):
        await admin.cluster()
        behind = next(node_id for node_id, _ in kafka.asked)  # this broker would be asked again
        other = 3 - behind
        kafka.controller, kafka.believed = other, {behind: behind}
        await admin.create_topic("orders")
        assert kafka.changed_by(Api.CREATE_TOPICS) == [behind, other]


async def test_a_change_waits_for_a_controller_until_the_deadline() -> None:
    async with setting(timeout_s=0.5) as (kafka, admin):
        kafka.controller = -1
        error = await refusal_of(admin.create_topic("orders"))
        assert (error.code, error.retriable) == ("TIMED_OUT", True)
        assert "topic orders" in error.message
        assert "no controller" in error.message
        assert (await admin.cluster()).controller is None


async def test_config_changes_of_a_broker_are_sent_to_that_broker() -> None:
    async with setting() as (kafka, admin):
        await admin.set_configs({"a": "b"}, broker=2)
        await admin.unset_configs(["a"], broker=1)
        assert kafka.changed_by(Api.INCREMENTAL_ALTER_CONFIGS) == [2, 1]
        error = await refusal_of(admin.set_configs({"a": "b"}, broker=7))
        assert error.code == "BROKER_ID_NOT_REGISTERED"
        assert "broker 7" in error.message
        assert "1, 2" in error.message


async def test_a_retriable_refusal_of_configs_is_retried() -> None:
    async with setting() as (kafka, admin):
        kafka.refusal = KafkaCode.NOT_CONTROLLER
        change = asyncio.ensure_future(admin.set_configs({"a": "b"}, topic="orders"))
        await until(lambda: len(kafka.changed_by(Api.INCREMENTAL_ALTER_CONFIGS)) >= 2)
        kafka.refusal = None
        await change


# -- wrong addresses


@asynccontextmanager
async def control_address() -> AsyncIterator[str]:
    server = grpc.aio.server()
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        await server.stop(0)


async def test_a_control_address_as_bootstrap_server_is_named() -> None:
    async with control_address() as address:
        async with Admin(address, timeout_s=0.5) as admin:
            error = await refusal_of(admin.topics())
            assert "seems to speak HTTP/2, as gRPC does: this is a control address" in error.message
            assert error.next_step == CHECK_ADDRESSES
        for client in (
            Consumer(address, topics=["t"], failure_timeout_s=0.5),
            Producer(address, max_block_s=0.5, delivery_timeout_s=0.5),
        ):
            with pytest.raises(ClusterError, match="gRPC") as failure:
                await use(client)
            assert failure.value.next_step == CHECK_ADDRESSES
        with pytest.raises(ClusterError, match="gRPC") as failure:
            await use(Consumer(address, topics=["t"], group="g", failure_timeout_s=0.5))
        assert failure.value.next_step == CHECK_ADDRESSES


async def use(client: Consumer | Producer) -> None:
    async with client:
        if isinstance(client, Producer):
            await client.send_and_wait("t", b"x")
        else:
            await client.get(timeout_s=10)


# -- lost answers


async def test_create_topic_reports_that_a_request_without_an_answer_may_have_created_the_topic() -> None:
    async with setting() as (kafka, admin):
        kafka.lost = 1
        error = await refusal_of(admin.create_topic("orders"))
        assert error.code == "TOPIC_ALREADY_EXISTS"
        assert "got no answer, and may have created it" in error.message
        error = await refusal_of(admin.create_topic("orders"))
        assert "no answer" not in error.message


async def test_a_deletion_whose_answer_was_lost_succeeds() -> None:
    async with setting() as (kafka, admin):
        await admin.create_topic("orders")
        kafka.lost = 1
        await admin.delete_topic("orders")
        assert len(kafka.changed_by(Api.DELETE_TOPICS)) == 2
        assert (await refusal_of(admin.delete_topic("orders"))).code == "UNKNOWN_TOPIC_OR_PARTITION"


async def test_add_partitions_succeeds_after_a_lost_answer_if_the_topic_has_the_requested_number() -> None:
    async with setting() as (kafka, admin):
        await admin.create_topic("orders", 1)
        kafka.lost = 1
        await admin.add_partitions("orders", 3)
        assert kafka.topics == {"orders": 3}
        kafka.lost = 1
        fewer = await refusal_of(admin.add_partitions("orders", 2))
        assert (fewer.code, "add_partitions() can only raise" in fewer.next_step) == ("INVALID_PARTITIONS", True)
        assert (await refusal_of(admin.add_partitions("orders", 3))).code == "INVALID_PARTITIONS"


# -- refusals


def test_the_refusal_of_an_unsupported_request_names_the_command_that_permits_configs_of_groups() -> None:
    error = refused(KafkaCode.UNSUPPORTED_VERSION, "configs of group g")
    assert error.code == "UNSUPPORTED_VERSION"
    assert error.next_step.endswith("kctl features upgrade")


async def test_create_topics_tries_all_topics_and_reports_all_refusals() -> None:
    async with setting() as (kafka, admin):
        kafka.topics = {"b": 1, "c": 1}
        error = await refusal_of(admin.create_topics([NewTopic("a"), NewTopic("b"), NewTopic("c")]))
        assert isinstance(error, RefusalsError)
        assert (error.code, error.retriable) == ("TOPIC_ALREADY_EXISTS", False)
        assert error.message.startswith("2 of 3 refused: topic b: ")
        assert list(error.refusals) == ["b", "c"]
        assert [topic.name for topic in error.done.values()] == ["a"]
        assert "a" in kafka.topics


@pytest.mark.parametrize("behind", [1, 2])
async def test_add_partitions_succeeds_after_a_lost_answer_although_one_broker_is_behind(behind: int) -> None:
    async with setting() as (kafka, admin):
        kafka.topics["orders"] = 1
        kafka.behind[behind] = {"orders": 1}
        kafka.lost = 1
        await admin.add_partitions("orders", 3)
        assert kafka.topics == {"orders": 3}


async def test_records_of_a_new_partition_are_deleted_although_the_first_broker_is_behind() -> None:
    async with fake_brokers() as brokers, Admin(brokers.bootstrap, timeout_s=TIMEOUT_S) as admin:
        await brokers.create("orders", [2])
        await brokers.hold_back(1)  # the broker that is asked first
        await brokers.add_partition("orders", 2)
        new = TopicPartition("orders", 1)
        assert await admin.delete_records({new: "latest"}) == {new: 0}
        error = await refusal_of(admin.delete_records({("orders", 2): "latest"}))
        assert (error.code, error.retriable) == ("UNKNOWN_TOPIC_OR_PARTITION", False)


async def test_a_leader_that_hangs_does_not_hide_the_deletions_of_other_leaders() -> None:
    async with setting(timeout_s=2) as (kafka, admin):
        kafka.topics = {"orders": AT_ONCE_MAX + 30}
        healthy = range(AT_ONCE_MAX + 10, AT_ONCE_MAX + 30)  # the last ones
        kafka.leaders = {("orders", index): 2 for index in healthy}
        kafka.hangs = {1}
        deletion = asyncio.ensure_future(admin.delete_records({("orders", n): 5 for n in range(AT_ONCE_MAX + 30)}))
        await until(lambda: len(kafka.deleted) == len(healthy))
        assert not deletion.done(), "the deletions do not wait for those of the other leader"
        error = await refusal_of(deletion)
        assert isinstance(error, RefusalsError)
        assert error.code == "TIMED_OUT"
        assert error.done == {("orders", index): 5 for index in healthy}
        assert {key.partition for key in error.refusals} == set(range(AT_ONCE_MAX + 10))
        assert all(each.next_step for each in error.refusals.values())
        assert sum("nothing was deleted" in each.message for each in error.refusals.values()) == 10
    assert sorted(kafka.deleted) == [("orders", index) for index in healthy]


async def test_describe_topic_asks_a_second_broker_before_it_reports_a_missing_topic() -> None:
    async with setting() as (kafka, admin):
        error = await refusal_of(admin.describe_topic("orders"))
        assert (error.code, error.retriable) == ("UNKNOWN_TOPIC_OR_PARTITION", False)
        assert "topic orders" in error.message
        assert {node_id for node_id, api in kafka.asked if api == Api.METADATA} == {1, 2}


async def test_get_configs_asks_a_second_broker_before_it_reports_a_missing_topic() -> None:
    async with fake_brokers() as brokers, Admin(brokers.bootstrap, timeout_s=TIMEOUT_S) as admin:
        await brokers.hold_back(1)  # the broker that is asked first
        await brokers.create("orders", [2])
        assert "retention.ms" in await admin.get_configs(topic="orders")
        error = await refusal_of(admin.get_configs(topic="missing"))
        assert (error.code, error.retriable) == ("UNKNOWN_TOPIC_OR_PARTITION", False)


async def test_a_group_is_managed_through_its_coordinator() -> None:
    async with group_brokers() as (brokers, groups), Admin(brokers.bootstrap, timeout_s=TIMEOUT_S) as admin:
        await brokers.create("orders", [1, 2])
        await admin.set_group_offsets(ON_2, {("orders", 0): 0})
        assert await admin.group_offsets(ON_2) == {TopicPartition("orders", 0): CommittedOffset(0)}
        assert [(each.group, each.coordinator) for each in await admin.list_groups()] == [(ON_2, 2)]
        assert [each.group for each in await admin.list_groups("Empty")] == [ON_2]
        join_member(groups, ON_2)
        assert len((await admin.describe_group(ON_2)).members) == 1
        for call in (
            admin.set_group_offsets(ON_2, {("orders", 0): 0}),
            admin.reset_group_offsets(ON_2, "latest"),
            admin.delete_group(ON_2),
            admin.delete_group_offsets(ON_2, [("orders", 0)]),
        ):
            error = await refusal_of(call)
            assert "stop the members" in error.next_step
            assert "member" in error.message, "the message states the reason"
        assert (await admin.group_offsets(ON_2))[TopicPartition("orders", 0)] == CommittedOffset(0)


async def test_the_offsets_of_a_share_group_are_set_shown_and_deleted() -> None:
    first, second = TopicPartition("orders", 0), TopicPartition("orders", 1)
    async with share_brokers() as (brokers, _, shares), Admin(brokers.bootstrap, timeout_s=TIMEOUT_S) as admin:
        await admin.set_share_group_offsets("b", {("orders", 0): 1, ("orders", 1): 3})
        assert await admin.share_group_offsets("b") == {first: ShareOffset(1, 2), second: ShareOffset(3, 0)}
        error = await refusal_of(admin.set_share_group_offsets("b", {("orders", 0): 2, ("orders", 1): 4}))
        assert (error.code, shares.starts) == ("OFFSET_OUT_OF_RANGE", {0: 1, 1: 3})
        shares.refusals = {1: KafkaCode.POLICY_VIOLATION}
        error = await refusal_of(admin.set_share_group_offsets("b", {("orders", 0): 2, ("orders", 1): 0}))
        assert isinstance(error, RefusalsError)
        assert list(error.refusals) == [second]
        shares.join("b")
        for call in (
            admin.set_share_group_offsets("b", {("orders", 0): 0}),
            admin.delete_share_group_offsets("b", ["orders"]),
        ):
            assert (await refusal_of(call)).code == "NON_EMPTY_GROUP"
        shares.leave("b")
        await admin.delete_share_group_offsets("b", ["orders"])
        assert await admin.share_group_offsets("b") == {}
        for name in ("missing", ""):
            assert (await refusal_of(admin.share_group_offsets(name))).code in (
                "GROUP_ID_NOT_FOUND",
                "INVALID_GROUP_ID",
            )


# -- deadlines and cancels


@pytest.mark.parametrize(
    ("changes", "call"),
    [
        (True, lambda admin: admin.create_topic("orders", timeout_s=0.4)),
        (False, lambda admin: admin.create_topic("orders", validate_only=True, timeout_s=0.4)),
        (True, lambda admin: admin.delete_topic("orders", timeout_s=0.4)),
        (True, lambda admin: admin.set_configs({"a": "b"}, topic="orders", timeout_s=0.4)),
        (False, lambda admin: admin.get_configs(topic="orders", timeout_s=0.4)),
        (False, lambda admin: admin.offsets("kept", timeout_s=0.4)),
        (False, lambda admin: admin.offsets("two", timeout_s=0.4)),
        (True, lambda admin: admin.delete_records({("kept", 0): 1}, timeout_s=0.4)),
        (True, lambda admin: admin.delete_records({("two", 0): 1, ("two", 1): 1}, timeout_s=0.4)),
        (False, lambda admin: admin.describe_group("g", timeout_s=0.4)),
        (False, lambda admin: admin.list_groups(timeout_s=0.4)),
        (False, lambda admin: admin.group_offsets("g", timeout_s=0.4)),
        (False, lambda admin: admin.reset_group_offsets("g", "earliest", dry_run=True, timeout_s=0.4)),
        (True, lambda admin: admin.reset_group_offsets("g", "earliest", timeout_s=0.4)),
        (True, lambda admin: admin.delete_group("g", timeout_s=0.4)),
    ],
)
async def test_a_call_ends_at_its_deadline_if_all_brokers_hang(
    changes: bool, call: Callable[[Admin], Awaitable[object]]
) -> None:
    """Only the errors of calls that change something advise to look for the change."""
    async with setting() as (kafka, admin):
        kafka.topics |= {"kept": 1, "two": 2, "__consumer_offsets": 1}
        kafka.hangs = {1, 2}
        began = asyncio.get_running_loop().time()
        error = await refusal_of(call(admin))
        assert error.retriable
        assert error.code in ("TIMED_OUT", "REQUEST_TIMED_OUT")
        for each in (error, *(error.refusals.values() if isinstance(error, RefusalsError) else ())):
            assert ("a change may have been made" in each.next_step) == changes
        assert asyncio.get_running_loop().time() - began < 5


async def test_a_call_ends_at_its_deadline_although_one_of_its_steps_exceeds_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with setting() as (_, admin):
        monkeypatch.setattr(admin._brokers, "metadata", lambda topics, timeout_s: asyncio.sleep(60))
        error = await refusal_of(admin.topics(timeout_s=0.1))
        assert (error.code, error.message) == ("TIMED_OUT", "the topics: no answer within 0.1 s")
        assert error.next_step == "check that the brokers run, then retry"


async def test_a_call_to_an_unreachable_cluster_ends_at_its_deadline() -> None:
    async with Admin("127.0.0.1:1", timeout_s=0.4) as admin:
        assert (await refusal_of(admin.topics())).code == "TIMED_OUT"


@pytest.mark.parametrize("call", ["create_topic", "get_configs", "offsets", "delete_records", "describe_group"])
async def test_a_closed_client_leaves_no_task_and_no_connection_of_a_cancelled_call(call: str) -> None:
    calls: dict[str, Callable[[Admin], Any]] = {
        "create_topic": lambda admin: admin.create_topic("orders"),
        "get_configs": lambda admin: admin.get_configs(topic="orders"),
        "offsets": lambda admin: admin.offsets("kept"),
        "delete_records": lambda admin: admin.delete_records({("kept", 0): 1}),
        "describe_group": lambda admin: admin.describe_group("g"),
    }
    async with fake_kafka() as kafka:
        kafka.topics |= {"kept": 1, "__consumer_offsets": 1}
        kafka.hangs = {1, 2}
        before = asyncio.all_tasks()
        async with Admin(kafka.bootstrap, timeout_s=TIMEOUT_S) as admin:
            asked = asyncio.ensure_future(calls[call](admin))
            await until(lambda: any(api != Api.METADATA for _, api in kafka.asked))
            asked.cancel()
            with pytest.raises(asyncio.CancelledError):
                await asked
        await until(lambda: not kafka.open and asyncio.all_tasks() == before)


async def test_closing_an_admin_leaves_a_given_cluster_open() -> None:
    async with setting() as (_, admin):
        async with Admin(admin._cluster) as second:
            await second.create_topic("orders")
        assert await admin.topics() == ["orders"]
    assert (await refusal_of(admin.topics())).code == "CLIENT_CLOSED"


# -- arguments


@pytest.mark.parametrize(
    ("call", "problem"),
    [
        (lambda admin: admin.create_topics([]), "topics is empty"),
        (lambda admin: admin.create_topics([NewTopic("a"), NewTopic("a")]), "topics has a twice"),
        (lambda admin: admin.create_topics([NewTopic("a", 1, assignment=[[1]])]), "topic a: an assignment excludes"),
        (lambda admin: admin.create_topic("a", 2**31), "topic a: partitions is 2147483648"),
        (lambda admin: admin.create_topic("a", 1, 2**15), "topic a: replication_factor is 32768"),
        (lambda admin: admin.create_topics([NewTopic("a", assignment=[[1, 2**31]])]), "a broker id is 2147483648"),
        (lambda admin: admin.add_partitions("a", 2**31), "total is 2147483648"),
        (lambda admin: admin.add_partitions("a", -(2**31) - 1), "total is -2147483649"),
        (lambda admin: admin.get_configs(), "name one of topic, broker and group"),
        (lambda admin: admin.get_configs(topic="a", broker=1), "name one of topic, broker and group"),
        (lambda admin: admin.set_configs({"a": "1"}, topic="a", group="g"), "name one of topic, broker and group"),
        (lambda admin: admin.get_configs(broker="one"), "'one'"),
        (lambda admin: admin.set_configs({}, topic="a"), "configs is empty"),
        (lambda admin: admin.unset_configs(["x", "x"], topic="a"), "configs has x twice"),
        (lambda admin: admin.delete_records({("a", 0): -1}), "a-0: offset -1 is below 0"),
        (lambda admin: admin.delete_records({("a", 0): 2**63}), "a-0: offset 9223372036854775808 is above"),
        (lambda admin: admin.delete_records({("a", 0): "earliest"}), "a-0: offset 'earliest' is not an int"),
        (lambda admin: admin.delete_records({}), "partitions is empty"),
        (lambda admin: admin.offsets([]), "partitions is empty"),
        (lambda admin: admin.offsets("a", at="end"), "'end' is not one of earliest, latest"),
        (lambda admin: admin.offsets_at("a", -1), "not in ms since 1970"),
        (lambda admin: admin.offsets_at("a", 1_700_000_000_000.5), "is not an int"),
        (lambda admin: admin.reset_group_offsets("g", 1.5), "is not an int"),
        (lambda admin: admin.set_group_offsets("g", {("a", 0): 5.0}), "a-0: offset 5.0 is not an int"),
        (lambda admin: admin.set_share_group_offsets("g", {("a", 0): -1}), "a-0: offset -1 is below 0"),
        (lambda admin: admin.offsets_at("a", datetime(2026, 5, 1)), "has no time zone"),
        (lambda admin: admin.delete_group_offsets("g", []), "partitions is empty"),
        (lambda admin: admin.topics(timeout_s=0), "timeout_s is 0"),
        (lambda admin: admin.topics(timeout_s=inf), "timeout_s is inf"),
    ],
)
async def test_an_invalid_argument_is_reported_before_any_request_is_sent(
    call: Callable[[Any], Awaitable[object]], problem: str
) -> None:
    async with setting() as (kafka, admin):
        with pytest.raises(ConfigError, match=problem):
            await call(admin)
        assert kafka.asked == []


@pytest.mark.parametrize(
    ("call", "what"),
    [
        (lambda admin, text: admin.describe_topic(text), "topic"),
        (lambda admin, text: admin.create_topic(text), "topic"),
        (lambda admin, text: admin.create_topic("a", configs={text: "1"}), "topic a: config"),
        (lambda admin, text: admin.create_topic("a", configs={"x": text}), "topic a: config x"),
        (lambda admin, text: admin.delete_topic(text), "topic"),
        (lambda admin, text: admin.add_partitions(text, 2), "topic"),
        (lambda admin, text: admin.get_configs(topic=text), "topic"),
        (lambda admin, text: admin.get_configs(group=text), "group"),
        (lambda admin, text: admin.set_configs({text: "1"}, topic="a"), "config"),
        (lambda admin, text: admin.set_configs({"x": text}, broker=1), "config x"),
        (lambda admin, text: admin.unset_configs(["x", text], group="g"), "config"),
        (lambda admin, text: admin.delete_records({("a", 0): 5, (text, 0): 5}), "topic"),
        (lambda admin, text: admin.delete_records({(text, 0): "latest"}), "topic"),
        (lambda admin, text: admin.offsets(text), "topic"),
        (lambda admin, text: admin.offsets(["a", (text, 0)]), "topic"),
        (lambda admin, text: admin.offsets_at([("a", 0), text], 0), "topic"),
        (lambda admin, text: admin.list_groups([text]), "state"),
        (lambda admin, text: admin.describe_group(text), "group"),
        (lambda admin, text: admin.delete_group(text), "group"),
        (lambda admin, text: admin.group_offsets(text), "group"),
        (lambda admin, text: admin.set_group_offsets(text, {("a", 0): 5}), "group"),
        (lambda admin, text: admin.set_group_offsets("g", {(text, 0): 5}), "topic"),
        (lambda admin, text: admin.reset_group_offsets(text, "latest"), "group"),
        (lambda admin, text: admin.reset_group_offsets("g", "latest", partitions=[text]), "topic"),
        (lambda admin, text: admin.delete_group_offsets(text, [("a", 0)]), "group"),
        (lambda admin, text: admin.delete_group_offsets("g", [(text, 0)]), "topic"),
        (lambda admin, text: admin.share_group_offsets(text), "group"),
        (lambda admin, text: admin.set_share_group_offsets(text, {("a", 0): 5}), "group"),
        (lambda admin, text: admin.set_share_group_offsets("g", {(text, 0): 5}), "topic"),
        (lambda admin, text: admin.delete_share_group_offsets(text, ["a"]), "group"),
        (lambda admin, text: admin.delete_share_group_offsets("g", [text]), "topic"),
    ],
)
async def test_text_that_a_request_cannot_contain_is_reported_before_any_request_is_sent(
    call: Callable[[Any, str], Awaitable[object]], what: str
) -> None:
    async with setting() as (kafka, admin):
        with pytest.raises(ConfigError) as failure:
            await call(admin, "caf\udce9")
        assert failure.value.problems == (f"{what} is not valid text: 'caf\\udce9'",)
        assert kafka.asked == []


def test_the_client_package_imports_a_module_when_its_name_is_first_used() -> None:
    code = "import sys, quorumlog.client as c; assert 'quorumlog.client.admin' not in sys.modules; c.Admin"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
