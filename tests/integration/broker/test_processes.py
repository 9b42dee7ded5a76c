"""Whole brokers: a standalone one, and three voters with three brokers."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

from broker.server.process import BrokerProcess, make_broker_process
from quorumlog.errors import ConfigError
from quorumlog.runtime.addresses import Address
from quorumlog.runtime.clock import Sources
from quorumlog.runtime.config import KafkaListener, NodeConfig
from quorumlog.wire import rpcs
from quorumlog.wire.errors import KafkaCode
from tests.integration.broker.harness import batch
from tests.integration.broker.processes import ANY_PORT, WAIT_S, WholeCluster, free_ports


def standalone(root: Path, kafka: Address = ANY_PORT) -> NodeConfig:
    return NodeConfig(
        role="broker",
        node_id=1,
        data_dirs=(str(root),),
        standalone=True,
        control_listen=ANY_PORT,
        kafka_listeners=(KafkaListener("default", kafka),),
    )


def produce(bootstrap: str, topic: str, count: int, first: int = 0, partitions: int = 1) -> list[str]:
    """Values `first` to `first + count`, idempotent, acks=all; return the failed ones."""
    failures: list[str] = []
    producer = Producer(
        {"bootstrap.servers": bootstrap, "enable.idempotence": True, "linger.ms": 1, "message.timeout.ms": 60_000}
    )
    for number in range(first, first + count):
        producer.produce(
            topic,
            str(number).encode(),
            partition=number % partitions,
            on_delivery=lambda error, _: failures.append(str(error)) if error else None,
        )
        producer.poll(0)
    left = producer.flush(60)
    return failures + [f"{left} not delivered"] * bool(left)


def consume(bootstrap: str, topic: str, count: int, partitions: int = 1) -> list[int]:
    """Return all records, once `count` have arrived or no more arrive."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "test", "enable.auto.commit": False})
    consumer.assign([TopicPartition(topic, index, 0) for index in range(partitions)])
    found: list[int] = []
    silent = 0
    while len(found) < count and silent < 20:
        messages = consumer.consume(1_000, 1.0)
        silent = 0 if messages else silent + 1
        for message in messages:
            error = message.error()
            if error is not None:
                raise KafkaException(error)
            value = message.value()
            assert value is not None
            found.append(int(value))
    consumer.close()
    return found


async def create(process: BrokerProcess, topic: str) -> None:
    from quorumlog.wire.v1 import controller_pb2 as pb

    request = pb.CreateTopicsRequest()
    request.topics.add(name=topic, partitions=1, replication_factor=1)
    reply = await process.plane.service.call(rpcs.CREATE_TOPICS, request, 10_000)
    assert reply.topics[0].result.error == "NONE", reply
    await process.role.wait_applied(reply.topics[0].offset)


async def test_a_standalone_broker_keeps_its_data_through_restarts(tmp_path: Path) -> None:
    for round_ in range(3):
        async with make_broker_process(standalone(tmp_path), Sources.real()) as process:
            async with asyncio.timeout(WAIT_S):
                await process.ready()
            assert process.is_ready()[0]
            if round_ == 0:
                await create(process, "t")
            bootstrap = f"127.0.0.1:{process.kafka_endpoints[0].port}"
            assert await asyncio.to_thread(produce, bootstrap, "t", 1_000, 1_000 * round_) == []
            found = await asyncio.to_thread(consume, bootstrap, "t", 1_000 * (round_ + 1))
            assert found == list(range(1_000 * (round_ + 1)))
        assert not process.is_ready()[0]


async def test_the_refusal_of_a_port_in_use_names_the_port_and_leaves_nothing_open(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    async with make_broker_process(standalone(tmp_path / "1", Address("127.0.0.1", port)), Sources.real()):
        with pytest.raises(ConfigError, match=str(port)):
            async with make_broker_process(standalone(tmp_path / "2", Address("127.0.0.1", port)), Sources.real()):
                raise AssertionError("it was entered")
    async with make_broker_process(standalone(tmp_path / "2", Address("127.0.0.1", port)), Sources.real()) as again:
        async with asyncio.timeout(WAIT_S):
            await again.ready()


async def test_a_directory_in_use_is_refused(tmp_path: Path) -> None:
    async with make_broker_process(standalone(tmp_path), Sources.real()):
        with pytest.raises(ConfigError, match="in use"):
            make_broker_process(standalone(tmp_path), Sources.real())


async def test_a_broker_without_a_cluster_can_be_stopped(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    config = NodeConfig(
        role="broker",
        node_id=7,
        data_dirs=(str(tmp_path),),
        bootstrap=(Address("127.0.0.1", port),),
        control_listen=ANY_PORT,
        kafka_listeners=(KafkaListener("default", ANY_PORT),),
    )
    async with asyncio.timeout(WAIT_S):
        async with make_broker_process(config, Sources.real()) as process:
            ready, reasons = process.is_ready()
            assert not ready
            assert reasons["broker"] == "not registered yet"


async def test_writes_survive_a_kill_of_a_partition_leader_and_of_the_active_controller(tmp_path: Path) -> None:
    async with WholeCluster(tmp_path) as cluster:
        await cluster.create("t", partitions=3)
        assert await asyncio.to_thread(produce, cluster.bootstrap, "t", 3_000, 0, 3) == []

        # The broker that leads partition 0 is killed while a producer writes.
        writing = asyncio.create_task(asyncio.to_thread(produce, cluster.bootstrap, "t", 6_000, 3_000, 3))
        gone = cluster.leader("t")
        await cluster.nodes[gone].stop(graceful=False)
        assert await writing == []

        # The active controller is killed as well.
        writing = asyncio.create_task(asyncio.to_thread(produce, cluster.bootstrap, "t", 3_000, 9_000, 3))
        await cluster.nodes[cluster.active_controller()].stop(graceful=False)
        assert await writing == []

        await cluster.nodes[gone].start()
        await cluster.ready(gone)
        assert await asyncio.to_thread(produce, cluster.bootstrap, "t", 3_000, 12_000, 3) == []
        found = await asyncio.to_thread(consume, cluster.bootstrap, "t", 15_000, 3)
        assert sorted(found) == list(range(15_000))


async def test_a_replaced_disk_is_filled_again(tmp_path: Path) -> None:
    async with WholeCluster(tmp_path) as cluster:
        await cluster.create("t", partitions=3)
        assert await asyncio.to_thread(produce, cluster.bootstrap, "t", 3_000, 0, 3) == []
        replaced = cluster.leader("t")
        await cluster.nodes[replaced].stop(graceful=False)
        shutil.rmtree(tmp_path / str(replaced))
        await cluster.nodes[replaced].start()
        await cluster.ready(replaced)
        async with asyncio.timeout(WAIT_S):
            while any(len(cluster.isr("t", index)) < 3 for index in range(3)):  # noqa: ASYNC110
                await asyncio.sleep(0.05)  # another process, which sends no event: poll
        for other in {11, 12, 13} - {replaced}:
            await cluster.nodes[other].stop()
        assert sorted(await asyncio.to_thread(consume, cluster.bootstrap, "t", 3_000, 3)) == list(range(3_000))


async def test_a_graceful_stop_moves_the_leaderships_first(tmp_path: Path) -> None:
    async with WholeCluster(tmp_path) as cluster:
        await cluster.create("t", partitions=3)
        leaving = cluster.leader("t")
        await cluster.nodes[leaving].stop()
        assert leaving not in {cluster.leader("t", index) for index in range(3)}
        new = cluster.broker(cluster.leader("t"))
        result = await new.role.replicas.produce("t", 0, memoryview(batch(b"a")), -1, 10_000)
        assert result.error_code == KafkaCode.NONE


async def test_records_survive_a_restart_of_the_whole_cluster(tmp_path: Path) -> None:
    cluster = WholeCluster(tmp_path)
    async with cluster:
        await cluster.create("t", partitions=3)
        assert await asyncio.to_thread(produce, cluster.bootstrap, "t", 3_000, 0, 3) == []
    async with cluster:
        assert await asyncio.to_thread(produce, cluster.bootstrap, "t", 3_000, 3_000, 3) == []
        assert sorted(await asyncio.to_thread(consume, cluster.bootstrap, "t", 6_000, 3)) == list(range(6_000))
