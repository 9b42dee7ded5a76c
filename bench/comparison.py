"""quorumlog beside Apache Kafka: throughput, latency, processor time and memory, with one unmodified client.

Each cluster has 3 controllers and 3 brokers; topics have 3 replicas and min.insync.replicas=2.  The client is
confluent-kafka, idempotent, with acks=all.  `bench.rounds` describes how the clusters take turns.  Every acknowledged
record is read and counted.

page cache: a record is acknowledged when all replicas in sync have it in memory.  This is Kafka's default, and
write.caching=true in quorumlog.
fsync: a record is acknowledged when it is durable on all replicas in sync.  This is quorumlog's default, and
flush.messages=1 in Kafka.

Without Java or Maven, only quorumlog is measured; the floors of the machine are printed either way.
"""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Sequence
from multiprocessing.queues import Queue
from multiprocessing.synchronize import Event
from typing import Any, NamedTuple

from confluent_kafka import TopicPartition

from bench.clusters import CACHED, KAFKA, OURS, SYNCED, Cluster
from bench.confluent import DEADLINE_S, Load, at, consume, consumer, flush, produce, producer
from bench.plots import Panel, show
from bench.rounds import Figures, alternate

PORT_BASE = 27_100

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
    """How much is measured.  warm_s: seconds of load before the first round, in which Java compiles."""

    rounds: int
    produce_s: float
    latency_s: float
    warm_s: float
    loads: Sequence[Load] = LOADS
    rates: Sequence[int] = RATES
    modes: Sequence[str] = (CACHED, SYNCED)


FULL = Size(3, 5.0, 6.0, 40.0)
TINY = Size(1, 0.3, 0.5, 0.0, (Load(1000, 1),), (500,), (CACHED,))


def run(tiny: bool) -> dict[str, Any]:
    size = TINY if tiny else FULL
    return alternate(
        PORT_BASE,
        size.rounds,
        lambda cluster, number: _round(cluster, number, size),
        tiny=tiny,
        warm=lambda cluster: _warm(cluster, size),
    ).result()


def _warm(cluster: Cluster, size: Size) -> None:
    if not size.warm_s:
        return
    for mode in size.modes:
        topic = f"warm-{mode.replace(' ', '-')}"
        cluster.create(topic, 12, mode)
        count = produce(cluster, topic, Load(1000, 12), size.warm_s / len(size.modes))[0]
        consume(cluster, topic, 12, count)
        cluster.delete(topic)


def _round(cluster: Cluster, number: int, size: Size) -> Figures:
    found: Figures = {}
    for mode in size.modes:
        for load in size.loads:
            found |= {
                f"{load}, {mode}: {name}": value for name, value in _rates(cluster, number, mode, load, size).items()
            }
        for rate in size.rates:
            figures = _latency(cluster, number, mode, rate, size.latency_s)
            found |= {f"{rate:,} records/s, {mode}: {name}": value for name, value in figures.items()}
    return {**found, "memory after load, MiB": cluster.resident_mib()}


def _rates(cluster: Cluster, number: int, mode: str, load: Load, size: Size) -> Figures:
    topic = f"rates-{mode.replace(' ', '-')}-{load.record_bytes}-{load.partitions}-{load.codec}-{number}"
    cluster.create(topic, load.partitions, mode)
    before = cluster.processor_s()
    count, took = produce(cluster, topic, load, size.produce_s)
    spent = cluster.processor_s() - before
    megabytes = count * load.record_bytes / 1e6
    read = consume(cluster, topic, load.partitions, count)
    cluster.delete(topic)
    return {
        "produced, MB/s": megabytes / took,
        "consumed, MB/s": megabytes / read,
        "servers' processor time, s/GB": spent / megabytes * 1e3,
    }


def _latency(cluster: Cluster, number: int, mode: str, rate: int, seconds: float) -> Figures:
    """Return percentiles of the time from `produce` to the arrival in another process, without the first third."""
    topic = f"latency-{mode.replace(' ', '-')}-{rate}-{number}"
    cluster.create(topic, 1, mode)
    context = multiprocessing.get_context("spawn")
    ready, answers = context.Event(), context.Queue()
    expected = int(rate * seconds)
    reader = context.Process(target=_receive, args=(cluster, topic, expected, ready, answers))
    reader.start()
    sender = producer(cluster, 0)
    sender.produce(topic, b"%020d" % 0)
    flush(sender, topic)
    assert ready.wait(DEADLINE_S), "the reader did not start"
    before, began = cluster.processor_s(), time.monotonic()
    for index in range(expected):
        wait_s = began + index / rate - time.monotonic()
        if wait_s > 0:
            time.sleep(wait_s)  # until the next record is due at this rate
        sender.produce(topic, b"%020d" % time.monotonic_ns() + bytes(LATENCY_BYTES - 20))
        sender.poll(0)
    flush(sender, topic)
    spent, took = cluster.processor_s() - before, time.monotonic() - began
    taken = answers.get(timeout=DEADLINE_S)
    reader.join()
    assert len(taken) == expected, f"{len(taken)} of {expected} records of {topic} arrived within {DEADLINE_S:g} s"
    cluster.delete(topic)
    counted = sorted(taken[expected // 3 :])
    shares = {"p50": 0.5, "p99": 0.99, "p99.9": 0.999}
    return {
        **{f"{name}, ms": at(counted, share) for name, share in shares.items()},
        "servers' processor share, %": 100 * spent / took,
    }


def _receive(cluster: Cluster, topic: str, expected: int, ready: Event, answers: Queue[list[float]]) -> None:
    """Send the milliseconds that each record took.  The first record only shows that this reader reads."""
    reader = consumer(cluster)
    reader.assign([TopicPartition(topic, 0, 0)])
    taken: list[float] = []
    deadline = time.monotonic() + DEADLINE_S
    while len(taken) < expected and time.monotonic() < deadline:
        message = reader.poll(0.5)
        if message is None or message.error() is not None:
            continue
        now, value = time.monotonic_ns(), message.value()
        assert value is not None
        if sent := int(value[:20]):
            taken.append((now - sent) / 1e6)
        else:
            ready.set()
    reader.close()
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
