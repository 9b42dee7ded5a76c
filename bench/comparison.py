"""quorumlog beside Apache Kafka: throughput, latency, processor time and memory, with one unmodified client.

Each cluster has 3 controllers and 3 brokers; topics have 3 replicas and min.insync.replicas=2.  The client is
confluent-kafka, idempotent, with acks=all.  Both clusters run during the whole bench.  While one is measured, the other
one is stopped.  Each round measures both, in alternating order.  Every acknowledged record is read and counted.

page cache: a record is acknowledged when all replicas in sync have it in memory (Kafka's default; write.caching here).
fsync: when it is durable on them (the default here; flush.messages=1 in Kafka).

Without Java or Maven, only quorumlog is measured; the floors of the machine are printed either way.
`others_processor_share` is the share of the machine that neither the measured cluster nor the client took.  If it is
more than a few percent, the round says little.
"""

from __future__ import annotations

import multiprocessing
import os
import random
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from multiprocessing.queues import Queue
from multiprocessing.synchronize import Event
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from confluent_kafka import Consumer, Producer, TopicPartition

from bench.clusters import CACHED, KAFKA, OURS, SYNCED, Cluster, kafka_cluster, quorumlog_cluster
from bench.floors import floors
from bench.plots import Panel, show
from tests.clients.outcomes import Skipped

PORT_BASE = 27_100
DEADLINE_S = 120.0
VALUES = 64


class Load(NamedTuple):
    record_bytes: int
    partitions: int
    codec: str = "none"

    def __str__(self) -> str:
        codec = "" if self.codec == "none" else f", {self.codec}"
        return f"{self.record_bytes:,} B, {self.partitions} partition{'s' if self.partitions > 1 else ''}{codec}"


LOADS = (
    Load(100, 1),
    Load(100, 12),
    Load(1000, 1),
    Load(1000, 12),
    Load(1000, 12, "lz4"),
    Load(10_000, 1),
    Load(10_000, 12),
)
RATES = (500, 5_000)
LATENCY_BYTES = 1000


class Size(NamedTuple):
    """How much is measured.  warm_s: load before the first round, in which Java compiles."""

    rounds: int
    produce_s: float
    latency_s: float
    warm_s: float
    loads: Sequence[Load] = LOADS
    rates: Sequence[int] = RATES
    modes: Sequence[str] = (CACHED, SYNCED)


FULL = Size(3, 5.0, 6.0, 40.0)
TINY = Size(1, 0.3, 0.5, 0.0, (Load(1000, 1),), (500,), (CACHED,))
Figures = dict[str, float]


def run(tiny: bool) -> dict[str, Any]:
    size = TINY if tiny else FULL
    measured: dict[str, list[Figures]] = {}
    with ExitStack() as stack:
        clusters = [stack.enter_context(quorumlog_cluster(PORT_BASE))]
        missing = None
        if not tiny:
            try:
                clusters.append(stack.enter_context(kafka_cluster()))
            except Skipped as reason:
                missing = str(reason)
        idle = {cluster.name: cluster.resident_mib() for cluster in clusters}
        for cluster in clusters:
            if size.warm_s:
                _warm(cluster, size)
            cluster.pause()
        for number in range(size.rounds):
            for cluster in clusters if number % 2 == 0 else reversed(clusters):
                cluster.resume()
                measured.setdefault(cluster.name, []).append(_round(cluster, number, size))
                cluster.pause()
        start = {cluster.name: {"start_s": cluster.start_s, "idle_mib": idle[cluster.name]} for cluster in clusters}
    names = [name for name in measured[OURS][0] if name != "others_processor_share"]
    rows = [_row(name, {each: [one[name] for one in rounds] for each, rounds in measured.items()}) for name in names]
    once = [_row(name, {each: [found[name]] for each, found in start.items()}) for name in ("start_s", "idle_mib")]
    shares = {name: [round(one["others_processor_share"], 2) for one in rounds] for name, rounds in measured.items()}
    return {
        "rounds": size.rounds,
        "floors": floors(),
        "results": rows + once,
        "others_processor_share": shares,
        "missing": missing,
    }


def _row(name: str, found: Mapping[str, Sequence[float]]) -> dict[str, Any]:
    """Return the medians of one figure, their ratio, and the least and the greatest of each cluster."""
    row: dict[str, Any] = {"figure": name}
    for cluster, values in found.items():
        row[cluster] = _short(median(values))
    row["ratio"] = round(median(found[OURS]) / median(found[KAFKA]), 2) if KAFKA in found else "-"
    for cluster, values in found.items():
        row[f"{cluster} range"] = f"{_short(min(values)):g} to {_short(max(values)):g}"
    return row


def _short(value: float) -> float:
    return round(value, 1 if value >= 10 else 2)


def _warm(cluster: Cluster, size: Size) -> None:
    for mode in size.modes:
        topic = f"warm-{mode.replace(' ', '-')}"
        cluster.create(topic, 12, mode)
        count = _produce(cluster, topic, Load(1000, 12), size.warm_s / len(size.modes))[0]
        _consume(cluster, topic, 12, count)
        cluster.delete(topic)


def _round(cluster: Cluster, number: int, size: Size) -> Figures:
    began, before = time.monotonic(), _foreign_s(cluster)
    found: Figures = {}
    for mode in size.modes:
        for load in size.loads:
            found |= {
                f"{load}, {mode}: {name}": value for name, value in _rates(cluster, number, mode, load, size).items()
            }
        for rate in size.rates:
            figures = _latency(cluster, number, mode, rate, size.latency_s)
            found |= {f"{rate:,} records/s, {mode}: {name}": value for name, value in figures.items()}
    found["memory after load, MiB"] = cluster.resident_mib()
    share = (_foreign_s(cluster) - before) / (time.monotonic() - began) / (os.cpu_count() or 1)
    return {**found, "others_processor_share": share}


def _foreign_s(cluster: Cluster) -> float:
    """Return the processor time that this machine has spent on anything but the cluster, this client and waiting."""
    fields = Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]
    busy = sum(int(value) for index, value in enumerate(fields) if index not in (3, 4)) / os.sysconf("SC_CLK_TCK")
    return busy - cluster.processor_s() - sum(os.times()[:4])


def _rates(cluster: Cluster, number: int, mode: str, load: Load, size: Size) -> Figures:
    topic = f"rates-{mode.replace(' ', '-')}-{load.record_bytes}-{load.partitions}-{load.codec}-{number}"
    cluster.create(topic, load.partitions, mode)
    before = cluster.processor_s()
    count, took = _produce(cluster, topic, load, size.produce_s)
    spent = cluster.processor_s() - before
    megabytes = count * load.record_bytes / 1e6
    read = _consume(cluster, topic, load.partitions, count)
    cluster.delete(topic)
    return {
        "produced, MB/s": megabytes / took,
        "consumed, MB/s": megabytes / read,
        "servers' processor time, s/GB": spent / megabytes * 1e3,
    }


def _producer(cluster: Cluster, linger_ms: int, codec: str = "none") -> Producer:
    settings = {
        "bootstrap.servers": cluster.bootstrap,
        "acks": "all",
        "enable.idempotence": True,
        "linger.ms": linger_ms,
        "compression.type": codec,
        "queue.buffering.max.messages": 500_000,
        "queue.buffering.max.kbytes": 65_536,
        "log_level": 0,
    }
    return Producer(settings)


def _consumer(cluster: Cluster) -> Consumer:
    settings = {
        "bootstrap.servers": cluster.bootstrap,
        "group.id": "bench",
        "enable.auto.commit": False,
        "auto.offset.reset": "earliest",
        "fetch.queue.backoff.ms": 1,  # by default the client sleeps for 1 s whenever its own queue is full
        "log_level": 0,
    }
    return Consumer(settings)


def _produce(cluster: Cluster, topic: str, load: Load, seconds: float) -> tuple[int, float]:
    """Produce for some seconds; return the number of records, and the seconds until the last acknowledgement."""
    producer = _producer(cluster, 5, load.codec)
    values = [bytes(random.Random(seed).choices(b"abcdefghijklmnop", k=load.record_bytes)) for seed in range(VALUES)]
    count, began = 0, time.monotonic()
    while time.monotonic() < began + seconds:
        for _ in range(200):
            while True:
                try:
                    producer.produce(topic, values[count % VALUES])
                    break
                except BufferError:
                    producer.poll(0.002)
            count += 1
        producer.poll(0)
    left = producer.flush(DEADLINE_S)
    assert left == 0, f"{left} of {count} records of {topic} were not acknowledged within {DEADLINE_S:g} s"
    return count, time.monotonic() - began


def _consume(cluster: Cluster, topic: str, partitions: int, count: int) -> float:
    """Return the seconds from the assignment to the last of `count` records."""
    consumer = _consumer(cluster)
    seen, began = 0, time.monotonic()
    consumer.assign([TopicPartition(topic, partition, 0) for partition in range(partitions)])
    while seen < count:
        assert time.monotonic() < began + DEADLINE_S, f"{seen} of {count} records of {topic} in {DEADLINE_S:g} s"
        for message in consumer.consume(10_000, timeout=1.0):
            assert message.error() is None, message.error()
            seen += 1
    took = time.monotonic() - began
    consumer.close()
    assert seen == count, f"{topic}: {seen} records read, {count} acknowledged"
    return took


def _latency(cluster: Cluster, number: int, mode: str, rate: int, seconds: float) -> Figures:
    """Return percentiles of the time from `produce` to the arrival in another process, without the first third."""
    topic = f"latency-{mode.replace(' ', '-')}-{rate}-{number}"
    cluster.create(topic, 1, mode)
    context = multiprocessing.get_context("spawn")
    ready, answers = context.Event(), context.Queue()
    expected = int(rate * seconds)
    reader = context.Process(target=_receive, args=(cluster, topic, expected, ready, answers))
    reader.start()
    producer = _producer(cluster, 0)
    producer.produce(topic, b"%020d" % 0)
    producer.flush(DEADLINE_S)
    assert ready.wait(DEADLINE_S), "the reader did not start"
    before, began = cluster.processor_s(), time.monotonic()
    for index in range(expected):
        wait_s = began + index / rate - time.monotonic()
        if wait_s > 0:
            time.sleep(wait_s)
        producer.produce(topic, b"%020d" % time.monotonic_ns() + bytes(LATENCY_BYTES - 20))
        producer.poll(0)
    left = producer.flush(DEADLINE_S)
    assert left == 0, f"{left} records were not acknowledged"
    spent, took = cluster.processor_s() - before, time.monotonic() - began
    taken = answers.get(timeout=DEADLINE_S)
    reader.join()
    cluster.delete(topic)
    counted = sorted(taken[expected // 3 :])
    shares = {"p50": 0.5, "p99": 0.99, "p99.9": 0.999}
    return {
        **{f"{name}, ms": counted[int(len(counted) * share)] for name, share in shares.items()},
        "servers' processor share, %": 100 * spent / took,
    }


def _receive(cluster: Cluster, topic: str, expected: int, ready: Event, answers: Queue[list[float]]) -> None:
    """Send the milliseconds that each record took.  The first record only shows that this reader reads."""
    consumer = _consumer(cluster)
    consumer.assign([TopicPartition(topic, 0, 0)])
    taken: list[float] = []
    deadline = time.monotonic() + DEADLINE_S
    while len(taken) < expected and time.monotonic() < deadline:
        message = consumer.poll(0.5)
        if message is None or message.error() is not None:
            continue
        now, value = time.monotonic_ns(), message.value()
        assert value is not None
        if sent := int(value[:20]):
            taken.append((now - sent) / 1e6)
        else:
            ready.set()
    consumer.close()
    answers.put(taken)


def present(result: dict[str, Any]) -> list[Panel]:
    """Print all figures as a table; return charts of the rates."""
    show("quorumlog beside Apache Kafka (medians; ratio = ours / Kafka's)", result["results"])
    show("Floors of this machine", [result["floors"]])
    if result["missing"]:
        show("Not measured", [{"cluster": KAFKA, "reason": result["missing"]}])
    panels = []
    for mode in (CACHED, SYNCED):
        for verb in ("produced", "consumed"):
            rows = [row for row in result["results"] if row["figure"].endswith(f"{mode}: {verb}, MB/s")]
            if rows:
                names = [row["figure"].split(f", {mode}")[0].replace(", ", "\n") for row in rows]
                lines = {name: [row[name] for row in rows] for name in (OURS, KAFKA) if name in rows[0]}
                panels.append(Panel(f"{verb}, {mode}", "", "MB/s", range(len(rows)), lines, x_names=names))
    return panels
