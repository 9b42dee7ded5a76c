"""kctl transactions and kctl doctor on real brokers, with producers of confluent-kafka."""

from __future__ import annotations

import asyncio
import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaException, Producer

from quorumlog.errors import ClusterError
from quorumlog.kctl.context import wait_until
from quorumlog.kctl.dev_cluster import DevCluster
from tests.integration.cli.conftest import Server
from tests.integration.cli.test_doctor import FAST, start
from tests.integration.cli.test_doctor_commands import heal
from tests.integration.kafka.clients import TIMEOUT_S
from tests.integration.kafka.test_scopes import client_of, staged
from tests.integration.kafka.test_transactions import producer_of, read, topic_on
from tests.integration.quorum import clusters
from tests.integration.quorum.clusters import done, kctl, node_of, running

WAIT_S = 60.0
Kctl = Callable[..., subprocess.CompletedProcess[str]]


class Tool:
    """kctl at a standalone broker, with JSON."""

    def __init__(self, call: Kctl) -> None:
        self._call = call

    def __call__(self, *arguments: str) -> Any:
        """Return the document of a command, which must succeed."""
        done = self._call("transactions", *arguments, "-o", "json")
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def refused(self, *arguments: str) -> tuple[int, str, str]:
        """Return the exit code, the error and the next step of a command that must fail."""
        done = self._call("transactions", *arguments, "-o", "json")
        error = json.loads(done.stderr.splitlines()[-1])
        return done.returncode, error["error"], error["next"]


@pytest.fixture
def tool(kctl: Kctl) -> Tool:
    return Tool(kctl)


def open_transaction(bootstrap: str, topic: str, transactional_id: str, *partitions: int) -> Producer:
    """Begin a transaction with one record in each partition."""
    producer = producer_of(bootstrap, transactional_id)
    producer.init_transactions(TIMEOUT_S)
    producer.begin_transaction()
    for partition in partitions:
        producer.produce(topic, b"open", partition=partition)
    producer.flush(TIMEOUT_S)
    return producer


def test_an_open_transaction_is_listed_described_and_aborted_by_its_id(standalone: Server, tool: Tool) -> None:
    bootstrap = standalone.fields["kafka"]
    topic = topic_on(bootstrap, partitions=2)
    producer = open_transaction(bootstrap, topic, "billing-1", 0, 1)
    plain = Producer({"bootstrap.servers": bootstrap})
    for _ in range(3):
        plain.produce(topic, b"plain", partition=1)
    plain.flush(TIMEOUT_S)

    [listed] = tool("list", "--state", "ongoing", "--pattern", "billing-.*")
    assert listed.keys() == {"transactional_id", "state", "producer_id", "coordinator", "scope"}
    assert listed["scope"] is None
    assert (listed["transactional_id"], listed["state"]) == ("billing-1", "Ongoing")
    assert tool("list", "--pattern", "billing") == []  # an id must match as a whole
    assert tool("list", "--longer-than", "1h") == []
    assert tool("list", "--producer-id", str(listed["producer_id"])) == [listed]
    found = tool("describe", "billing-1")
    assert (found["producer_id"], found["coordinator"]) == (listed["producer_id"], listed["coordinator"])
    assert (found["timeout_ms"], found["state"]) == (60_000, "Ongoing")
    assert found["started_at"] is not None
    assert found["open_ms"] < 60_000
    assert [(each["partition"], each["start_offset"], each["last_stable_offset"], each["lag"], each["problem"])
            for each in found["partitions"]] == [(0, 0, 0, 1, None), (1, 0, 0, 4, None)]  # fmt: skip

    assert tool("find-hanging", "--topic", topic) == []
    place = ("--topic", topic, "--partition", "1", "--start-offset", "0")
    code, error, step = tool.refused("abort", *place, "--yes")
    assert (code, error) == (5, "INVALID_TXN_STATE")
    assert step.endswith("kctl transactions abort billing-1")
    assert tool.refused("abort", "billing-1")[:2] == (5, "CONFIRMATION_NEEDED")
    planned = tool("abort", "billing-1", "--dry-run")
    assert planned["changed"] is False
    assert read(bootstrap, topic, 1) == []

    aborted = tool("abort", "billing-1", "--yes")
    assert aborted == {**planned, "changed": True}
    assert aborted["partitions"] == [{"topic": topic, "partition": index} for index in (0, 1)]
    assert read(bootstrap, topic, 1) == [b"plain"] * 3
    assert tool("abort", "billing-1", "--yes")["changed"] is False
    with pytest.raises(KafkaException) as fenced:
        producer.commit_transaction(TIMEOUT_S)
    assert fenced.value.args[0].fatal()


async def test_an_open_transaction_of_a_scope_names_its_scope_and_does_not_hang(standalone: Server, tool: Tool) -> None:
    bootstrap = standalone.fields["kafka"]
    topic = await asyncio.to_thread(topic_on, bootstrap)
    async with client_of(bootstrap) as (cluster, client):
        scope = await client.open("reports/daily", "query-1", "run-1", WAIT_S)
        attempt = await staged(cluster, client, scope, "0-0", topic, b"staged", 1)
        name = attempt.transactional_id

        [listed] = await asyncio.to_thread(tool, "list", "--producer-id", str(attempt.winner.producer_id))
        assert (listed["transactional_id"], listed["state"], listed["scope"]) == (name, "Ongoing", "reports/daily")
        found = await asyncio.to_thread(tool, "describe", name)
        described = found["scope"]
        assert (described["name"], described["attempt"], described["state"]) == ("reports/daily", "0-0", "Open")
        assert (described["owner"], described["run"], described["last_sequence"]) == ("query-1", "run-1", -1)
        assert [(each["start_offset"], each["lag"]) for each in found["partitions"]] == [(0, 1)]
        assert await asyncio.to_thread(tool, "find-hanging", "--topic", topic) == []

        aborted = await asyncio.to_thread(tool, "abort", name, "--yes")
        assert (aborted["changed"], aborted["transactional_id"]) == (True, name)
        with pytest.raises(ClusterError) as refused:
            await client.end(scope, 0, [attempt.winner], WAIT_S)
        assert refused.value.code == "INVALID_TXN_STATE"
        assert await asyncio.to_thread(read, bootstrap, topic) == []
        assert (await client.end(scope, 0, [], WAIT_S)).changed


def test_missing_objects_and_invalid_options_are_refused(standalone: Server, tool: Tool) -> None:
    topic = topic_on(standalone.fields["kafka"])
    place = ("--topic", topic, "--partition", "0", "--start-offset")
    assert tool.refused("describe", "nobody") == (3, "TRANSACTIONAL_ID_NOT_FOUND", "kctl transactions list")
    assert tool.refused("abort", "nobody", "--yes")[:2] == (3, "TRANSACTIONAL_ID_NOT_FOUND")
    assert tool.refused("abort", *place, "7", "--yes") == (
        3, "TRANSACTION_NOT_FOUND", f"kctl transactions find-hanging --topic {topic}",
    )  # fmt: skip
    assert tool.refused("find-hanging", "--topic", "nothing")[:2] == (3, "UNKNOWN_TOPIC_OR_PARTITION")
    assert tool.refused("find-hanging", "--topic", f"{topic}:5")[:2] == (3, "UNKNOWN_TOPIC_OR_PARTITION")
    assert tool.refused("find-hanging", "--broker", "99")[:2] == (3, "BROKER_ID_NOT_REGISTERED")
    assert tool.refused("abort")[:2] == (2, "USAGE")
    assert tool.refused("abort", "x", *place, "0")[:2] == (2, "USAGE")
    assert tool.refused("abort", "--topic", topic, "--partition", "0")[:2] == (2, "USAGE")
    assert tool.refused("list", "--longer-than", "soon")[:2] == (2, "USAGE")
    assert tool.refused("list", "--pattern", "(")[:2] == (2, "USAGE")


async def in_sync_is(cluster: DevCluster, topic: str, *brokers: int) -> None:
    async def is_so() -> bool:
        [described] = await done(cluster, "topics", "describe", topic)
        return bool(described["partitions"][0]["isr"] == list(brokers))

    await wait_until(is_so, WAIT_S, f"{topic}-0 has the ISR {brokers}")


async def lose_a_marker(cluster: DevCluster, topic: str) -> None:
    """Commit a transaction whose marker only the leader has, then elect the other replica."""
    producer = await asyncio.to_thread(open_transaction, cluster.bootstrap, topic, "lost", 0)
    await clusters.kill(node_of(cluster, 13))
    await in_sync_is(cluster, topic, 12)
    await asyncio.to_thread(producer.commit_transaction, TIMEOUT_S)

    async def is_complete() -> bool:
        return bool((await done(cluster, "transactions", "describe", "lost"))["state"] == "CompleteCommit")

    await wait_until(is_complete, WAIT_S, "the leader has the marker")
    await clusters.kill(node_of(cluster, 12))
    await start(cluster, node_of(cluster, 13))

    async def is_led() -> bool:
        await kctl(cluster, "elect-leaders", "--unclean", "--topic", topic)
        [described] = await done(cluster, "topics", "describe", topic)
        return bool(described["partitions"][0]["leader"] == 13)

    await wait_until(is_led, WAIT_S, f"13 leads {topic}-0")


async def test_a_transaction_that_lost_its_marker_is_found_and_aborted(tmp_path: Path) -> None:
    async with running(tmp_path, voters=1, brokers=3, **FAST) as cluster:
        await done(cluster, "configs", "set", "--cluster", "transaction.state.log.num.partitions=2")
        patient = node_of(cluster, 13)
        module = patient.command.index("broker.cli")
        patient.command[module] = "tests.patient_broker"  # takes effect when it starts again
        topic = "ledger"
        place = ("--assignment", "12:13", "--config", "min.insync.replicas=1", "--wait")
        await done(cluster, "topics", "create", topic, *place)
        await lose_a_marker(cluster, topic)

        plain = Producer({"bootstrap.servers": cluster.bootstrap})
        plain.produce(topic, b"later", partition=0)
        await asyncio.to_thread(plain.flush, TIMEOUT_S)
        [found] = await done(cluster, "transactions", "find-hanging", "--topic", topic, "--broker", "13")
        assert (found["partition"], found["start_offset"], found["transactional_id"]) == (0, 0, "lost")
        assert (found["coordinator_state"], found["lag"]) == ("CompleteCommit", 2)
        finding = await heal(cluster, "HANGING_TRANSACTION")
        assert finding["commands"] == [found["next"]]
        assert await done(cluster, "transactions", "find-hanging") == []
        assert await asyncio.to_thread(read, cluster.bootstrap, topic) == [b"later"]
