"""A leader that was stopped and resumes after others took over acknowledges and serves nothing."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from signal import SIGCONT, SIGSTOP

import confluent_kafka
import pytest

from quorumlog.client import cluster as client
from quorumlog.client.consumer import Consumer
from quorumlog.client.kafka import KafkaConnection
from quorumlog.client.producer import Producer
from quorumlog.client.records import NewRecord, build_batch, decode_batches
from quorumlog.kctl import processes
from quorumlog.kctl.context import wait_until
from quorumlog.kctl.dev_cluster import DevCluster
from quorumlog.wire.errors import KafkaCode
from quorumlog.wire.kafka import produce
from quorumlog.wire.kafka.codec import Api
from tests.integration.broker.harness import Broker, Cluster, values_of
from tests.integration.broker.test_replication import ALL, LEADER, fetch, leading, write, written
from tests.integration.quorum.clusters import (
    TIMEOUT_S,
    done,
    named,
    node_of,
    quorum_is,
    ready,
    running,
    stop,
)

TOPIC = "t"
VERSION = 9
EPOCH_S = 1_700_000_000_000


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with Cluster(tmp_path) as cluster:
        yield cluster


def stall(broker: Broker) -> None:
    """Make the broker behave as if its process had been stopped for long until now."""
    assert broker.role.lifecycle is not None
    broker.role.lifecycle.stall_detector._seen_at -= 3_600


async def refused_everything(broker: Broker) -> None:
    for acks in (ALL, LEADER):
        assert (await write(broker, "t", b"x", acks=acks)).error_code == KafkaCode.NOT_LEADER_OR_FOLLOWER
    assert (await broker.replicas.list_offset("t", 0, -1)).error_code == KafkaCode.NOT_LEADER_OR_FOLLOWER
    assert (await fetch(broker, "t", 0)).error_code == KafkaCode.NOT_LEADER_OR_FOLLOWER


async def test_a_resumed_leader_serves_again_once_the_controller_has_answered(cluster: Cluster) -> None:
    cluster.controller.create("t", (1, 2, 3))
    leader = await leading(cluster, 1, "t")
    await written(leader, "t", b"a")
    stall(leader)
    await refused_everything(leader)
    await cluster.until(leader.context.is_serving, "answered")
    await written(leader, "t", b"b")
    assert values_of(leader.hosted("t")) == [b"a", b"b"]


async def test_a_resumed_leader_acknowledges_nothing_before_it_learns_of_the_new_one(cluster: Cluster) -> None:
    """This also holds for acks=1: it would truncate the records that it would append now."""
    cluster.controller.create("t", (1, 2, 3))
    old = await leading(cluster, 1, "t")
    await written(old, "t", b"a")
    cluster.controller.held.add(1)
    cluster.controller.fence(1)
    new = await leading(cluster, 2, "t", epoch=1)
    stall(old)
    await refused_everything(old)
    await written(new, "t", b"b")
    await refused_everything(old)
    cluster.controller.release(1)
    await cluster.until(lambda: values_of(old.hosted("t")) == [b"a", b"b"], "it follows")
    assert old.context.counters.truncations == 0


async def test_a_resumed_leader_serves_again_after_one_heartbeat_that_no_controller_answers(cluster: Cluster) -> None:
    cluster.controller.create("t", (1, 2, 3))
    leader = await leading(cluster, 1, "t")
    cluster.controller.cut.add(1)
    stall(leader)
    await refused_everything(leader)
    await cluster.until(leader.context.is_serving, "given up")
    await written(leader, "t", b"a")
    assert values_of(leader.hosted("t")) == [b"a"]


async def test_a_broker_that_is_stalled_while_it_starts_is_ready_without_a_change_of_the_metadata(
    cluster: Cluster,
) -> None:
    cluster.controller.create("t", (1, 2, 3))
    leader = await leading(cluster, 1, "t")
    stall(leader)
    await refused_everything(leader)
    async with asyncio.timeout(TIMEOUT_S):
        await leader.role.wait_serving()
    await written(leader, "t", b"a")
    assert values_of(leader.hosted("t")) == [b"a"]


async def test_librdkafka_keeps_its_epoch_when_a_leader_refuses_some_of_its_requests(cluster: Cluster) -> None:
    """A new epoch would send again, unrecognised, batches that are in the log and whose answers were lost."""
    values = [b"%d" % number for number in range(600)]
    cluster.controller.create("t", (1, 2, 3))
    leader = await leading(cluster, 1, "t")
    draws, answers = random.Random(1), list[bool]()

    def is_awake_mostly() -> bool:
        answers.append(draws.random() > 0.05)
        return answers[-1]

    is_awake = leader.context.is_awake
    leader.context.is_awake = is_awake_mostly
    sending = asyncio.create_task(asyncio.to_thread(send_with_librdkafka, leader.server.endpoints[0].port, values))
    await cluster.until(lambda: sending.done() or answers.count(False) >= 50, "many requests were refused")
    leader.context.is_awake = is_awake
    assert await sending == []
    assert values_of(leader.hosted("t")) == values
    assert [producer.epoch for _, producer in leader.log("t").producers] == [0]


def send_with_librdkafka(port: int, values: list[bytes]) -> list[str]:
    """Write each value in a request of its own, with five requests in flight; return the errors."""
    errors: list[str] = []
    settings = {"enable.idempotence": True, "batch.num.messages": 1, "retry.backoff.ms": 1, "retry.backoff.max.ms": 20}
    producer = confluent_kafka.Producer({"bootstrap.servers": f"127.0.0.1:{port}", "linger.ms": 0, **settings})

    def delivered(error: confluent_kafka.KafkaError | None, _: confluent_kafka.Message) -> None:
        if error is not None:
            errors.append(str(error))

    for value in values:
        producer.produce("t", value, partition=0, on_delivery=delivered)
    assert producer.flush(TIMEOUT_S) == 0
    return errors


async def test_a_resumed_process_refuses_requests_that_waited_in_its_sockets(tmp_path: Path) -> None:
    settings = {"broker_session_timeout_ms": 1_500, "broker_heartbeat_interval_ms": 300}
    async with running(tmp_path, voters=1, brokers=3, **settings) as cluster:
        await done(cluster, "topics", "create", TOPIC, "--partitions", "1", "--replication-factor", "3")
        node = node_of(cluster, await leader_is(cluster, lambda leader: leader > 0))
        assert node.listen is not None
        host, port = node.listen.rsplit(":", 1)
        async with client.Cluster(cluster.bootstrap) as clients, KafkaConnection(host, int(port)) as line:
            await line.connect(TIMEOUT_S)
            async with Producer(clients) as producer:
                await (await producer.send(TOPIC, 0, record(b"before")))
                processes.send(node.pid, SIGSTOP)
                asked = [asyncio.create_task(ask(line, acks, b"acks=%d" % acks)) for acks in (ALL, LEADER)]
                await leader_is(cluster, lambda leader: leader not in (-1, node.id))
                await (await producer.send(TOPIC, 0, record(b"after")))
                processes.send(node.pid, SIGCONT)
                assert await asyncio.gather(*asked) == [KafkaCode.NOT_LEADER_OR_FOLLOWER] * 2
            await ready(node)
            fetched = await Consumer(clients).fetch(TOPIC, 0, 0)
            assert [each.value for each in decode_batches(fetched.records)] == [b"before", b"after"]
        said = Path(node.log).read_text()  # noqa: ASYNC240
        assert "this process was stalled: it leads nothing until the controller has answered" in said
        assert "log truncated" not in said


async def test_a_resumed_process_does_not_treat_its_own_deposed_controller_as_the_active_one(tmp_path: Path) -> None:
    """The broker asks it first, because it is in the same process."""
    settings = {"broker_session_timeout_ms": 1_500, "broker_heartbeat_interval_ms": 300}
    brokers = (11, 12, 13)
    async with running(tmp_path, voters=1, brokers=3, **settings) as cluster:
        for broker_id in brokers:
            await done(cluster, "add-voter", named(cluster, broker_id))
        await done(cluster, "remove-voter", "1")
        await stop(node_of(cluster, 1))
        described = await quorum_is(cluster, "a broker leads it", lambda it: it.known.leader_id in brokers)
        node = node_of(cluster, described.known.leader_id)
        others = [broker_id for broker_id in brokers if broker_id != node.id]
        replicas = ":".join(map(str, (node.id, *others)))
        await done(cluster, "topics", "create", TOPIC, "--assignment", replicas, "--wait")
        assert await leader_is(cluster, lambda leader: leader > 0) == node.id
        assert node.listen is not None
        host, port = node.listen.rsplit(":", 1)
        bootstrap = [listen for each in others if (listen := node_of(cluster, each).listen) is not None]
        async with (
            client.Cluster(bootstrap) as clients,
            Producer(clients) as producer,
            KafkaConnection(host, int(port)) as line,
        ):
            await line.connect(TIMEOUT_S)
            await (await producer.send(TOPIC, 0, record(b"before")))
            processes.send(node.pid, SIGSTOP)
            await leader_is(cluster, lambda leader: leader in others)
            await (await producer.send(TOPIC, 0, record(b"after")))
            processes.send(node.pid, SIGCONT)
            asked = []
            for _ in range(200):  # some of them while the process learns what has happened
                asked.append(asyncio.create_task(ask(line, LEADER, b"lost")))
                await asyncio.sleep(0.002)
            assert set(await asyncio.gather(*asked)) == {KafkaCode.NOT_LEADER_OR_FOLLOWER}
            await ready(node)
        assert "log truncated" not in Path(node.log).read_text()  # noqa: ASYNC240


def record(value: bytes) -> bytearray:
    return build_batch([NewRecord(None, value, EPOCH_S)])


async def ask(line: KafkaConnection, acks: int, value: bytes) -> int:
    """Write to this broker itself; return the code of its answer."""
    body = produce.encode_request(VERSION, acks, 30_000, [(TOPIC, 0, record(value))])
    (result,) = produce.decode_response(await line.call(Api.PRODUCE, VERSION, body, TIMEOUT_S), VERSION)
    return result.error_code


async def leader_is(cluster: DevCluster, condition: Callable[[int], bool]) -> int:
    found: list[int] = []

    async def is_so() -> bool:
        (topic,) = await done(cluster, "topics", "describe", TOPIC)
        leader = topic["partitions"][0]["leader"]
        found[:] = [-1 if leader is None else leader]
        return condition(found[0])

    await wait_until(is_so, TIMEOUT_S, "the expected broker leads")
    return found[0]
