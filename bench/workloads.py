"""Workloads of many connections, many partitions, late readers and waiting producers, beside Apache Kafka.

Clusters, topics, clients and modes are those of `bench.comparison`, and `bench.rounds` describes how the clusters take
turns.  Every acknowledged record is read and counted.

connections: 2,000 connections of another process (`bench.crowd`) are open to the three brokers, while a producer sends
500 records of 1 KB a second.  Latency, processor share and memory of the servers, with these connections and without
any.  Servers may keep the memory of closed connections, so the rows without connections are lowest in the first round.
The client's processor share shows how much of the machine the process with the connections takes from the servers.

partitions: records of 1 KB with keys, for 500 partitions, as fast as one client can produce them, and then consume
them.  Each batch holds records of one partition, so the number of requests bounds these rates.

catch-up reads: a producer at full rate, first alone.  Then two readers read all records so far from the beginning,
while the producer goes on.  Each figure is in MB/s.  The old records usually are in the page cache, so the processors
bound these rates, which servers and clients share.

synchronous producers: each waits for the acknowledgement of a record of 100 B before it sends the next one.  One
producer shows the time of a single acknowledgement.  Many of them show how well a cluster does several at once; with
64, the client takes a large part of two cores.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any, Final, NamedTuple

from confluent_kafka import Producer, TopicPartition

from bench import arrivals
from bench.clusters import CACHED, KAFKA, OURS, SYNCED, Cluster
from bench.confluent import (
    DEADLINE_S,
    Load,
    at,
    consume,
    consumer,
    count_of,
    produce,
    produce_while,
    producer,
    rates,
    values_of,
    wait_for_reports,
    warm_up,
)
from bench.crowd import crowd
from bench.helpers import Link, helper
from bench.plots import Panel, show
from bench.rounds import Figures, alternate

PORT_BASE: Final = 27_500
RATE: Final = 500
PARTITIONS: Final = 12
READERS: Final = 2
CATCH_UP: Final = Load(1000, PARTITIONS)
SYNCHRONOUS_BYTES: Final = 100
LOOK_RECORDS: Final = 1_000
LOOK_S: Final = 0.02
"""A reader that catches up looks at the clock after this number of records, or this time."""


class Size(NamedTuple):
    """How much is measured.

    latency_s: the duration of each measurement at the fixed rate.  produce_s: of each other measurement of producers.
    catch_up_s: the longest time in which readers may catch up.  warm_s: as in `bench.comparison`.
    """

    rounds: int
    warm_s: float
    connections: int
    latency_s: float
    partitions: int
    produce_s: float
    catch_up_s: float
    producers: Sequence[int]
    modes: Sequence[str] = (CACHED, SYNCED)


FULL: Final = Size(3, 40.0, 2_000, 5.0, 500, 4.0, 10.0, (1, 8, 64))
TINY: Final = Size(1, 0.0, 20, 0.5, 20, 0.3, 5.0, (1, 4), (CACHED,))


def run(tiny: bool) -> dict[str, Any]:
    size = TINY if tiny else FULL
    return alternate(PORT_BASE, size, _round, tiny=tiny, warm=warm_up).result()


def _round(cluster: Cluster, number: int, size: Size) -> Figures:
    found = _connections(cluster, number, size)
    for mode in size.modes:
        suffix = f"{mode.replace(' ', '-')}-{number}"
        found |= _named(f"{size.partitions} partitions, {mode}", _partitions(cluster, suffix, mode, size))
        found |= _named(f"catch-up reads, {mode}", _catch_up(cluster, suffix, mode, size))
        for producers in size.producers:
            figures = _synchronous(cluster, suffix, mode, producers, size.produce_s)
            found |= _named(f"{count_of(producers, 'synchronous producer')}, {mode}", figures)
    return found


def _named(workload: str, figures: Mapping[str, float]) -> Figures:
    return {f"{workload}: {name}": value for name, value in figures.items()}


# --- connections ---


def _connections(cluster: Cluster, number: int, size: Size) -> Figures:
    title, idle_topic = f"{size.connections:,} connections", f"crowd-{number}"
    found = _at_fixed_rate(cluster, "without connections", f"without-{number}", size)
    cluster.create(idle_topic, PARTITIONS, CACHED)
    with crowd(cluster, idle_topic, size.connections) as process:
        found |= _at_fixed_rate(cluster, title, f"with-{number}", size)
        process.go()
        held = process.answer(DEADLINE_S)
    cluster.delete(idle_topic)
    assert held.requests > 0, "the connections sent no requests"
    return found | {
        f"{title}: opened in, s": held.opened_s,
        f"{title}: client's processor share, %": 100 * held.processor_share,
    }


def _at_fixed_rate(cluster: Cluster, title: str, suffix: str, size: Size) -> Figures:
    """Return latencies in each mode; then the memory."""
    found: Figures = {}
    for mode in size.modes:
        topic = f"{mode.replace(' ', '-')}-{suffix}"
        cluster.create(topic, 1, mode)
        figures = arrivals.after_first_third(cluster, topic, RATE, size.latency_s, ("p50, ms", "p99, ms"))
        found |= _named(f"{title}, {mode}", figures)
        cluster.delete(topic)
    return {**found, f"{title}: memory, MiB": cluster.resident_mib()}


# --- partitions ---


def _partitions(cluster: Cluster, suffix: str, mode: str, size: Size) -> Figures:
    load = Load(1000, size.partitions, has_keys=True)
    found = rates(cluster, f"partitions-{suffix}", mode, load, size.produce_s)
    return {
        "produced, MB/s": found.produced,
        "consumed, MB/s": found.consumed,
        "servers' processor time while producing, s/GB": found.produce_s_per_gb,
        "servers' processor time while consuming, s/GB": found.consume_s_per_gb,
    }


# --- catch-up reads ---


def _catch_up(cluster: Cluster, suffix: str, mode: str, size: Size) -> Figures:
    topic = f"catch-up-{suffix}"
    cluster.create(topic, PARTITIONS, mode)
    old, alone_s = produce(cluster, topic, CATCH_UP, size.produce_s)
    ends = _ends(cluster, topic)
    assert sum(ends) == old, f"{topic} has {sum(ends)} records instead of {old}"
    with ExitStack() as stack:
        readers = [
            stack.enter_context(helper(_read_old, cluster, topic, ends, size.catch_up_s)) for _ in range(READERS)
        ]
        for reader in readers:
            reader.wait_ready(DEADLINE_S)
        for reader in readers:
            reader.go()
        new, beside_s = produce_while(
            cluster,
            topic,
            CATCH_UP,
            lambda elapsed_s: elapsed_s < size.catch_up_s and not all(reader.has_answered for reader in readers),
        )
        answers = [reader.answer(DEADLINE_S) for reader in readers]
    consume(cluster, topic, PARTITIONS, old + new)
    cluster.delete(topic)
    megabyte = 1e6 / CATCH_UP.record_bytes
    return {
        "producer without readers, MB/s": old / megabyte / alone_s,
        "producer beside readers, MB/s": new / megabyte / beside_s,
        f"{READERS} readers, MB/s": sum(count for count, _ in answers) / megabyte / max(took for _, took in answers),
    }


def _ends(cluster: Cluster, topic: str) -> list[int]:
    """Return the end offset of each partition."""
    reader = consumer(cluster)
    found = []
    for partition in range(PARTITIONS):
        offsets = reader.get_watermark_offsets(TopicPartition(topic, partition), timeout=DEADLINE_S)
        assert offsets is not None, f"the end of {topic}, partition {partition}, is not known after {DEADLINE_S:g} s"
        found.append(offsets[1])
    reader.close()
    return found


def _read_old(link: Link, cluster: Cluster, topic: str, ends: Sequence[int], seconds: float) -> None:
    """Read the records below the ends; answer their number, and the seconds until the last of them was read.

    seconds: the longest time.  After it, only the records so far count.
    """
    reader = consumer(cluster)
    link.ready.set()
    assert link.go.wait(DEADLINE_S), "the readers were not started"
    seen, wanted, took, began = 0, sum(ends), 0.0, time.monotonic()
    reader.assign([TopicPartition(topic, partition, 0) for partition in range(len(ends))])
    while seen < wanted and took < seconds:
        finished = []
        for message in reader.consume(LOOK_RECORDS, timeout=LOOK_S):
            assert message.error() is None, message.error()
            partition, offset = message.partition(), message.offset()
            assert partition is not None
            assert offset is not None
            seen += offset < ends[partition]
            if offset == ends[partition] - 1:
                finished.append(TopicPartition(topic, partition))
        if finished:
            reader.pause(finished)  # so that the new records of this partition are not read
        took = time.monotonic() - began
    link.answers.put((seen, took))
    reader.close()


# --- synchronous producers ---


def _synchronous(cluster: Cluster, suffix: str, mode: str, producers: int, seconds: float) -> Figures:
    topic = f"synchronous-{producers}-{suffix}"
    cluster.create(topic, PARTITIONS, mode)
    senders = [producer(cluster, 0, delivery_report_only_error=False) for _ in range(producers)]
    with ThreadPoolExecutor(producers) as threads:
        connected = sum(threads.map(lambda each: len(_one_by_one(each[1], topic, each[0], 0.0)), enumerate(senders)))
        before, used, began = cluster.processor_s(), time.process_time(), time.monotonic()
        taken = list(threads.map(lambda each: _one_by_one(each[1], topic, each[0], seconds), enumerate(senders)))
        took = time.monotonic() - began
        spent, client = max(cluster.processor_s() - before, 0.01), time.process_time() - used  # 0.01 is its unit
    every = sorted(each for of_one in taken for each in of_one)
    consume(cluster, topic, PARTITIONS, connected + len(every))
    cluster.delete(topic)
    return {
        "records/s": len(every) / took,
        "p50, ms": at(every, 0.5),
        "p99, ms": at(every, 0.99),
        "servers' processor time, ms/record": 1e3 * spent / len(every),
        "client's processor share, %": 100 * client / took,
    }


def _one_by_one(sender: Producer, topic: str, number: int, seconds: float) -> list[float]:
    """Send at least one record; return the milliseconds from each `produce` to its acknowledgement."""
    value = values_of(SYNCHRONOUS_BYTES)[0]
    taken: list[float] = []
    until = time.monotonic() + seconds
    while not taken or time.monotonic() < until:
        began = time.monotonic()
        sender.produce(topic, value, partition=number % PARTITIONS)
        wait_for_reports(sender, topic)
        taken.append(1e3 * (time.monotonic() - began))
    return taken


def present(result: dict[str, Any]) -> list[Panel]:
    """Print all figures as a table; return charts of the synchronous producers over their number."""
    show("workloads of quorumlog beside Apache Kafka (medians; ratio = ours / Kafka's)", result["results"])
    show("Floors of this machine", [result["floors"]])
    if result["missing"]:
        show("Not measured", [{"cluster": KAFKA, "reason": result["missing"]}])
    panels = []
    for mode in (CACHED, SYNCED):
        for figure in ("records/s", "p99, ms"):
            ending = (f"synchronous producer, {mode}: {figure}", f"synchronous producers, {mode}: {figure}")
            rows = [row for row in result["results"] if row["figure"].endswith(ending)]
            if rows:
                x = [int(row["figure"].split()[0]) for row in rows]
                lines = {name: [row[name] for row in rows] for name in (OURS, KAFKA) if name in rows[0]}
                panels.append(Panel(f"synchronous producers, {mode}", "producers", figure, x, lines, log_x=True))
    return panels
