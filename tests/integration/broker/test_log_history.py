"""Clients of a cluster whose processes are paused and killed see the history of one log."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from random import Random
from signal import SIGCONT, SIGSTOP
from time import monotonic
from typing import Any

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, Message, Producer, TopicPartition

from quorumlog.client import cluster as client
from quorumlog.client.consumer import LATEST
from quorumlog.client.consumer import Consumer as OurConsumer
from quorumlog.errors import ClusterError
from quorumlog.kctl import processes
from quorumlog.kctl.context import wait_until
from quorumlog.kctl.dev_cluster import BROKER, VOTER, DevCluster, Node
from tests.integration.broker.log_history import UNKNOWN, Acknowledged, History, Latest, Read, Sent, anomalies, shown
from tests.integration.quorum.clusters import TIMEOUT_S, done, kill, node_of, ready, running, spawn

TOPIC = "t"
PARTITIONS = 2
TURN_S = 0.01
PAUSE_S = 3.0
"""Twice the session timeout: a broker that is paused this long has been fenced when it resumes."""
RECORDS = 300
"""Acknowledged between two faults, by all producers together."""

A, B, C = (Sent("p", 0, number) for number in range(3))
GOOD = History(
    {A, B, C},
    [Acknowledged(A, 0, 1.0), Acknowledged(B, 1, 2.0)],
    {"r": [Read(0, 0, A.value), Read(0, 1, B.value)]},
    [Latest(0, 0, 0.5, 3.0), Latest(0, 2, 2.5, 3.0)],
    [Read(0, 0, A.value), Read(0, 1, B.value)],
)


def test_a_history_without_anomalies_is_accepted() -> None:
    assert anomalies(GOOD) == []


def test_an_acknowledgement_without_an_offset_is_no_anomaly() -> None:
    assert anomalies(replace(GOOD, acknowledged=[Acknowledged(A, 0, 1.0), Acknowledged(B, UNKNOWN, 2.0)])) == []


@pytest.mark.parametrize(
    ("what", "change"),
    [
        ("lost: b'p/0/1'", {"final": GOOD.final[:1], "read": {}}),
        ("lost: b'p/0/1'", {"final": GOOD.final[:1], "read": {}, "acknowledged": [Acknowledged(B, UNKNOWN, 2.0)]}),
        ("vanished: b'p/0/1'", {"final": GOOD.final[:1]}),
        ("exists twice", {"final": [*GOOD.final, Read(0, 2, A.value)]}),
        ("exists twice", {"acknowledged": [*GOOD.acknowledged, Acknowledged(C, 5, 3.0)], "final": [
            *GOOD.final, Read(0, 2, C.value)]}),
        ("two records at (0, 1)", {"read": {"r": [Read(0, 0, A.value), Read(0, 1, C.value)]}}),
        ("nobody sent b'x'", {"final": [*GOOD.final, Read(0, 2, b"x")]}),
        ("nobody sent", {"final": [*GOOD.final, Read(1, 0, C.value)]}),
        ("b'p/0/2' comes before b'p/0/1'", {"final": [
            Read(0, 0, A.value), Read(0, 1, C.value), Read(0, 2, B.value)]}),
        ("r reads offset 1 of 0 where 0 is due", {"read": {"r": GOOD.read["r"][1:]}}),
        ("stale: the end of 0 is said to be 1, after somebody knew of 2", {"latest": [Latest(0, 1, 2.5, 3.0)]}),
        ("stale: the end of 0 is said to be 2, after somebody knew of 3", {"latest": [
            Latest(0, 3, 2.5, 3.0), Latest(0, 2, 3.5, 4.0)]}),
    ],
)  # fmt: skip
def test_each_anomaly_is_found(what: str, change: dict[str, Any]) -> None:
    assert any(what in found for found in anomalies(replace(GOOD, **change))), what


def read_of(message: Message[bytes, bytes]) -> Read:
    partition, offset, value = message.partition(), message.offset(), message.value()
    assert partition is not None
    assert offset is not None
    assert value is not None
    return Read(partition, offset, value)


class Clients:
    """librdkafka's producers and consumers in threads, and our own questions for the latest offset."""

    def __init__(self, bootstrap: str) -> None:
        self.history = History()
        self._bootstrap = bootstrap
        self._settings = {
            "bootstrap.servers": bootstrap, "log_level": 0, "reconnect.backoff.max.ms": 500,
            "socket.timeout.ms": 2_000,
        }  # fmt: skip
        self.stop_writing = threading.Event()
        self.stop_reading = threading.Event()

    def write(self, name: str) -> None:
        """Write until stopped; return once everything is acknowledged."""
        producer = Producer(
            {**self._settings, "enable.idempotence": True, "linger.ms": 2, "request.timeout.ms": 2_000,
             "message.timeout.ms": 120_000, "retry.backoff.max.ms": 300}
        )  # fmt: skip
        failures: list[str] = []

        def on_delivery(sent: Sent) -> Callable[..., None]:
            def told(error: KafkaError | None, message: Message[bytes, bytes]) -> None:
                if error is None:
                    # librdkafka reports no offset when a request failed and a later one of the same partition
                    # succeeded: the success proves that the broker has the failed batch too.
                    offset = message.offset()
                    self.history.acknowledged.append(
                        Acknowledged(sent, UNKNOWN if offset is None else offset, monotonic())
                    )
                else:
                    failures.append(str(error))

            return told

        number = 0
        while not self.stop_writing.wait(TURN_S):
            for partition in range(PARTITIONS):
                sent = Sent(name, partition, number)
                self.history.sent.add(sent)
                producer.produce(TOPIC, sent.value, partition=partition, on_delivery=on_delivery(sent))
            number += 1
            producer.poll(0)
        assert producer.flush(TIMEOUT_S) == 0, "not everything was acknowledged after all faults had ended"
        assert failures == []

    def read(self, name: str) -> None:
        """Read from the beginning until stopped."""
        found = self.history.read.setdefault(name, [])
        self._read(found, self.stop_reading.is_set)

    def read_all(self, ends: dict[int, int]) -> None:
        left = dict(ends)

        def is_done() -> bool:
            for read in self.history.final:
                left[read.partition] = ends[read.partition] - read.offset - 1
            return not any(left.values())

        self._read(self.history.final, is_done)

    def _read(self, found: list[Read], is_done: Callable[[], bool]) -> None:
        consumer = Consumer(
            {**self._settings, "group.id": "g", "enable.auto.commit": False, "auto.offset.reset": "error",
             "topic.metadata.refresh.interval.ms": 1_000}
        )  # fmt: skip
        consumer.assign([TopicPartition(TOPIC, index, OFFSET_BEGINNING) for index in range(PARTITIONS)])
        while not is_done():
            for message in consumer.consume(500, 0.1):
                if message.error() is None:
                    found.append(read_of(message))
        consumer.close()

    async def ask_latest(self, ending: asyncio.Event) -> None:
        """Request the end of each partition repeatedly."""
        while not ending.is_set():
            # A new client each time, because a connected client asks the leader that it knows.
            async with client.Cluster(self._bootstrap, request_timeout_s=2.0) as cluster:
                for index in range(PARTITIONS):
                    asked_at = monotonic()
                    try:
                        listed = await OurConsumer(cluster, timeout_s=3.0).list_offset(TOPIC, index, LATEST)
                    except ClusterError:
                        continue  # no broker answered
                    self.history.latest.append(Latest(index, listed.offset, asked_at, monotonic()))
            await asyncio.sleep(TURN_S)


async def partition_leader(cluster: DevCluster, index: int) -> Node:
    found: list[int] = []

    async def is_led() -> bool:
        (topic,) = await done(cluster, "topics", "describe", TOPIC)
        found[:] = [topic["partitions"][index]["leader"] or -1]
        return found[0] > 0

    await wait_until(is_led, TIMEOUT_S, "it is led")
    return node_of(cluster, found[0])


async def pause(node: Node) -> None:
    processes.send(node.pid, SIGSTOP)
    await asyncio.sleep(PAUSE_S)  # this is the fault, not a wait for a condition
    processes.send(node.pid, SIGCONT)


async def attack(cluster: DevCluster, random: Random, is_enough: Callable[[], Awaitable[bool]]) -> None:
    """Pause leaders, and meanwhile kill another broker, then a voter, then the one that is paused."""
    for index, whom in enumerate((BROKER, VOTER, "itself")):
        await wait_until(is_enough, TIMEOUT_S, "writes are acknowledged")
        leader = await partition_leader(cluster, index % PARTITIONS)
        pausing = asyncio.create_task(pause(leader))
        await asyncio.sleep(random.uniform(0, PAUSE_S))  # somewhere within it
        others = [node for node in cluster.nodes if node.role == whom and node is not leader]
        victim = random.choice(others or [leader])
        await kill(victim)
        if victim is leader:
            pausing.cancel()
        else:
            await pausing
        await spawn(cluster, victim)
        await ready(victim)


async def test_k38_clients_see_one_log_under_pauses_and_kills(tmp_path: Path) -> None:
    settings = {"broker_session_timeout_ms": 1_500, "broker_heartbeat_interval_ms": 300}
    loop = asyncio.get_running_loop()
    async with running(tmp_path, voters=3, brokers=3, **settings) as cluster:
        count = ("--partitions", str(PARTITIONS), "--replication-factor", "3")
        await done(cluster, "topics", "create", TOPIC, *count)
        clients = Clients(cluster.bootstrap)
        history = clients.history
        ending = asyncio.Event()
        with ThreadPoolExecutor(8) as pool:
            writing = [loop.run_in_executor(pool, clients.write, name) for name in ("p1", "p2")]
            reading = [loop.run_in_executor(pool, clients.read, name) for name in ("r1", "r2")]
            asking = asyncio.create_task(clients.ask_latest(ending))
            seen = 0

            async def is_enough() -> bool:
                nonlocal seen
                enough = len(history.acknowledged) >= seen + RECORDS
                seen += RECORDS * enough
                return enough

            try:
                await attack(cluster, Random(7), is_enough)
                await wait_until(is_enough, TIMEOUT_S, "writes continue")
            finally:
                clients.stop_writing.set()
                ending.set()
                outcomes = await asyncio.gather(asking, *writing, return_exceptions=True)
                clients.stop_reading.set()
                outcomes += await asyncio.gather(*reading, return_exceptions=True)
            assert [each for each in outcomes if each is not None] == []
            ends = {index: 0 for index in range(PARTITIONS)}
            for one in history.acknowledged:
                ends[one.sent.partition] = max(ends[one.sent.partition], one.offset + 1)
            await loop.run_in_executor(pool, clients.read_all, ends)
    found = anomalies(history)
    assert found == [], shown(found)
    assert len(history.sent) == len(history.acknowledged)
    assert all(history.read.values())
    assert len(history.latest) > 10
