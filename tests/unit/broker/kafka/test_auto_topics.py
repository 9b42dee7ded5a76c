"""Automatic creation of topics that clients name in Metadata requests."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from structlog.testing import capture_logs

from broker.kafka.limits import KafkaLimits
from metadata.records import Config, ConfigScope
from quorumlog.wire import rpcs
from quorumlog.wire.kafka.codec import Api
from quorumlog.wire.v1 import controller_pb2 as pb
from tests.unit.broker.kafka.conftest import Serve, Served
from tests.unit.broker.kafka.raw import RawClient, batch

MISSING, INVALID_NAME = 3, 17


def allow(served: Served, value: str = "true") -> None:
    served.replicas.apply(Config(ConfigScope.CLUSTER, "", "auto.create.topics.enable", value))


@pytest.fixture
async def allowing(served: Served) -> Served:
    allow(served)
    return served


async def metadata(client: RawClient, *names: str, version: int = 12, allowed: bool = True) -> list[tuple[str, int]]:
    topics = [{"topic_id": None, "name": name} for name in names]
    response = await client.ask(Api.METADATA, version, {"topics": topics, "allow_auto_topic_creation": allowed})
    return [(topic.name, int(topic.error_code)) for topic in response.topics]


def asked(served: Served) -> list[list[str]]:
    """Return the topics of each request to the controller."""
    return [[topic.name for topic in request.topics] for rpc, request in served.controller.requests]


async def until(served: Served, name: str) -> None:
    async with asyncio.timeout(10), RawClient(served.port) as client:
        while True:
            if await metadata(client, name) == [(name, 0)]:
                return
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("version", [1, 3, 4, 8, 9, 11, 12])
async def test_a_metadata_request_reports_a_missing_topic_as_unknown_and_creates_it(
    allowing: Served, version: int
) -> None:
    async with RawClient(allowing.port) as client:
        assert await metadata(client, "new", version=version) == [("new", MISSING)]
        await until(allowing, "new")
        assert await metadata(client, "new", version=version) == [("new", 0)]
    assert asked(allowing) == [["new"]]
    (created,) = allowing.controller.requests[0][1].topics
    assert (created.partitions, created.replication_factor) == (-1, -1), "the cluster chooses both counts"


async def test_no_topic_is_created_while_automatic_creation_is_off(served: Served) -> None:
    async with RawClient(served.port) as client:
        assert await metadata(client, "new") == [("new", MISSING)]
        assert (await client.produce("new", 0, batch())).error_code == MISSING
        allow(served, "false")
        assert await metadata(client, "new") == [("new", MISSING)]
    assert asked(served) == []


async def test_no_topic_is_created_if_the_client_forbids_automatic_creation(allowing: Served) -> None:
    async with RawClient(allowing.port) as client:
        assert await metadata(client, "new", allowed=False) == [("new", MISSING)]
        assert asked(allowing) == []
        assert await metadata(client, "new", version=3) == [("new", MISSING)], "version 3 has no flag"
        await until(allowing, "new")


async def test_topics_with_invalid_or_reserved_names_are_not_created(allowing: Served) -> None:
    allowing.replicas.create("exists")
    async with RawClient(allowing.port) as client:
        found = await metadata(client, "exists", "a b", "", "..", "x" * 250, "__consumer_offsets", "__own")
        assert [code for _, code in found] == [
            0, INVALID_NAME, INVALID_NAME, INVALID_NAME, INVALID_NAME, MISSING, MISSING
        ]  # fmt: skip
        await client.ask(Api.METADATA, 12, {"topics": None, "allow_auto_topic_creation": True})
    assert asked(allowing) == []


async def test_a_thousand_requests_for_a_missing_topic_cause_one_creation(allowing: Served) -> None:
    release = asyncio.Event()
    call = allowing.controller.call

    async def slow(rpc: Any, request: Any, timeout_ms: int) -> Any:
        await release.wait()
        return await call(rpc, request, timeout_ms)

    allowing.server.handlers._forwarder._call = slow
    async with RawClient(allowing.port) as client:
        for _ in range(1000):
            assert await metadata(client, "new") == [("new", MISSING)]
        assert await metadata(client, "later") == [("later", MISSING)]
        release.set()
        await until(allowing, "new")
        await until(allowing, "later")
    assert asked(allowing) == [["new"], ["later"]]


async def test_the_number_of_automatic_creations_is_limited_per_request_and_in_total(serve: Serve) -> None:
    limits = KafkaLimits(auto_topics_per_request_max=3, auto_topics_max=5)
    async with serve(limits) as served, RawClient(served.port) as client:
        allow(served)
        blocked = asyncio.Event()

        async def never(rpc: Any, request: Any, timeout_ms: int) -> Any:
            served.controller.requests.append((rpc, request))
            await blocked.wait()

        served.server.handlers._forwarder._call = never
        auto_topics = served.server.handlers._auto_topics
        await metadata(client, *"abcd")
        assert auto_topics.under_way == 3
        await metadata(client, *"abcd")
        assert auto_topics.under_way == 3, "only the first three topics of each request are created"
        await metadata(client, *"efgh")
        assert auto_topics.under_way == 5
        assert asked(served) == [["a", "b", "c"]]


async def test_topics_are_created_in_requests_that_fit_into_one_batch_of_the_controller(allowing: Served) -> None:
    allowing.replicas.apply(Config(ConfigScope.CLUSTER, "", "num.partitions", "2000"))
    async with RawClient(allowing.port) as client:
        await metadata(client, *"abcde")
        await until(allowing, "e")
    assert asked(allowing) == [["a", "b"], ["c", "d"], ["e"]]


async def test_a_refused_creation_is_retried_after_a_pause(serve: Serve) -> None:
    async with serve(KafkaLimits(auto_topics_pause_ms=200)) as served, RawClient(served.port) as client:
        allow(served)
        served.controller.failure = pb.Result(error="INVALID_REPLICATION_FACTOR", message="two brokers")
        async with asyncio.timeout(10):
            while len(asked(served)) < 2:
                assert await metadata(client, "new") == [("new", MISSING)]
                await asyncio.sleep(0.02)
            assert served.server.handlers._auto_topics.under_way == 1, (
                "the creation waits for its pause, and was requested at most once"
            )
        served.controller.failure = None
        await until(served, "new")
        served.controller.failure = pb.Result(error="NOT_CONTROLLER", message="ask again")
        await metadata(client, "other")


async def test_a_topic_that_another_broker_created_meanwhile_is_reported_as_existing(allowing: Served) -> None:
    handlers = allowing.server.handlers
    call = allowing.controller.call

    async def late(rpc: Any, request: Any, timeout_ms: int) -> Any:
        allowing.replicas.create("new")
        return await call(rpc, request, timeout_ms)

    handlers._forwarder._call = late
    async with RawClient(allowing.port) as client:
        await metadata(client, "new")
        await until(allowing, "new")
    assert rpcs.CREATE_TOPICS in [rpc for rpc, _ in allowing.controller.requests]


async def test_a_topic_that_exists_is_not_requested_again_before_its_creation_is_applied(serve: Serve) -> None:
    """Another broker created it.  Until this broker has applied the creation, it reports the topic as missing.

    That is usual in a cluster, so no warning is logged.
    """
    limits = KafkaLimits(auto_topics_pause_ms=60_000)
    async with serve(limits) as served, RawClient(served.port) as client:
        allow(served)
        served.controller.failure = pb.Result(error="TOPIC_ALREADY_EXISTS", message="new exists")
        with capture_logs() as lines:
            await metadata(client, "new")
            task = served.server.handlers._auto_topics._task
            if task is not None:
                await task
        assert "topic not created for a client" not in [line["event"] for line in lines]
        assert await metadata(client, "new") == [("new", MISSING)]
        assert served.server.handlers._auto_topics._task is None
        assert asked(served) == [["new"]]


async def test_a_closing_listener_creates_no_further_topics(allowing: Served) -> None:
    async def never(rpc: Any, request: Any, timeout_ms: int) -> Any:
        allowing.controller.requests.append((rpc, request))
        await asyncio.Event().wait()

    auto_topics = allowing.server.handlers._auto_topics
    allowing.server.handlers._forwarder._call = never
    async with RawClient(allowing.port) as client:
        await metadata(client, "a")
        task = auto_topics._task
        assert task is not None
        # A request may arrive after the task has ended, and before `close` continues.
        task.add_done_callback(lambda _: auto_topics.want(["b"], allowing.replicas.image))
        await auto_topics.close()
        assert auto_topics._task is None
    assert asked(allowing) == [["a"]]
