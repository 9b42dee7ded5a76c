"""Transactions and share groups of quorumlog beside Apache Kafka: rates, added latency, and the cost of read_committed.

Clusters and topics are set up as in `bench.comparison`.  A transaction writes one record of 1 KB to each partition.

one producer: it runs one transaction after another.  commit: the time of `commit_transaction`.  whole: from
`begin_transaction` to the end of the commit.  added: the median of `whole`, less the median of the time in which an
idempotent producer without transactions writes and flushes the same records.
parallel producers: transactions a second of 8 producers together, with a transactional id each.
read: records of 100 B in transactions of 500, by a consumer of each isolation level, in turns.
share group: records of 100 B that one member gets and accepts.  The member is Kafka's own tool for measurements, which
accepts each poll as a whole, or the asyncio client of quorumlog, which accepts each record and also works with Kafka.

In both modes, quorumlog flushes its decisions about transactions before it answers.  For the mode fsync, Kafka's topics
of transactions and share groups get flush.messages=1, so that its decisions are as durable.
"""

from __future__ import annotations

import asyncio
import subprocess
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from statistics import median
from typing import Any, Final, NamedTuple

from confluent_kafka import Producer

from bench.clusters import CACHED, KAFKA, OURS, SYNCED, Cluster
from bench.confluent import (
    DEADLINE_S,
    RECORDS_A_POLL,
    at,
    consume,
    count_of,
    flush,
    producer,
    send,
    values_of,
    wait_for_reports,
)
from bench.plots import Panel, show
from bench.rounds import Figures, alternate, uses_java
from quorumlog.client import ShareConsumer
from tests.clients.catalog import java
from tests.clients.outcomes import Skipped

PORT_BASE: Final = 27_200
RECORD_BYTES: Final = 1000
READ_BYTES: Final = 100
READ_PARTITIONS: Final = 12
READ_TRANSACTION: Final = 500
SHARE_OF_ASYNCIO: Final = 4
"""The number of records is divided by this for the asyncio client, because it accepts each record separately."""
FORM_PAUSE_S: Final = 0.2
PARALLEL: Final = 8
DECISIONS: Final = ("__transaction_state", "__share_group_state")


class Size(NamedTuple):
    """How much is measured.

    seconds: the duration of each measurement.  shared: records for a share group.
    tool: the command of Kafka's tool for share groups; empty if it is not used.
    """

    rounds: int
    seconds: float
    warm_s: float
    shared: int
    partitions: Sequence[int] = (1, 10, 100)
    modes: Sequence[str] = (CACHED, SYNCED)
    tool: Sequence[str] = ()


FULL: Final = Size(3, 2.0, 10.0, 200_000)
TINY: Final = Size(1, 0.3, 0.0, 2_000, (1, 3), (SYNCED,))


def run(tiny: bool) -> dict[str, Any]:
    size = (TINY if tiny else FULL)._replace(tool=_tool() if uses_java(tiny) else ())
    return alternate(PORT_BASE, size, _round, tiny=tiny, warm=_warm).result()


def _warm(cluster: Cluster, size: Size) -> None:
    """Run all measurements once, in which Java compiles and the internal topics are created."""
    if size.warm_s:
        _round(cluster, "warm", size._replace(seconds=size.warm_s / len(size.partitions) / len(size.modes) / 3))


def _round(cluster: Cluster, number: int | str, size: Size) -> Figures:
    found: Figures = {}
    for mode in size.modes:
        _make_decisions_durable(cluster, mode)
        for partitions in size.partitions:
            figures = _transactions(cluster, number, mode, partitions, size)
            name = f"{count_of(partitions, 'partition')}, {mode}"
            found |= {f"{name}: {figure}": value for figure, value in figures.items()}
    found |= _reads(cluster, f"read-{number}", size)
    return found | _share_group(cluster, f"shared-{number}", size)


def _make_decisions_durable(cluster: Cluster, mode: str) -> None:
    if cluster.name == KAFKA:
        for topic in DECISIONS:
            cluster.configure(topic, {"flush.messages": "1" if mode == SYNCED else str(2**63 - 1)})


def _transactions(cluster: Cluster, number: int | str, mode: str, partitions: int, size: Size) -> Figures:
    topic = f"transactions-{mode.replace(' ', '-')}-{partitions}-{number}"
    cluster.create(topic, partitions, mode)
    value = values_of(RECORD_BYTES)[0]
    plain = _plain(cluster, topic, partitions, value, size.seconds / 2)
    commits, wholes = _one_producer(_transactional(cluster, topic), topic, partitions, value, size.seconds)
    producers = [_transactional(cluster, f"{topic}-{each}") for each in range(PARALLEL)]
    before, began = cluster.processor_s(), time.monotonic()
    with ThreadPoolExecutor(PARALLEL) as threads:
        runs = [threads.submit(_one_producer, each, topic, partitions, value, size.seconds) for each in producers]
        count = sum(len(each.result()[0]) for each in runs)
    took, spent = time.monotonic() - began, cluster.processor_s() - before
    cluster.delete(topic)
    return {
        f"{PARALLEL} producers, transactions/s": count / took,
        f"{PARALLEL} producers, servers' processor time, ms/transaction": 1e3 * spent / count,
        "one producer, transactions/s": len(wholes) / (sum(wholes) / 1e3),
        "commit p50, ms": at(commits, 0.5),
        "commit p99, ms": at(commits, 0.99),
        "whole p50, ms": at(wholes, 0.5),
        "whole p99, ms": at(wholes, 0.99),
        "without a transaction p50, ms": plain,
        "added p50, ms": max(at(wholes, 0.5) - plain, 0.01),
    }


def _plain(cluster: Cluster, topic: str, partitions: int, value: bytes, seconds: float) -> float:
    """Return the median milliseconds in which records for all partitions are acknowledged."""
    sender = producer(cluster, 0, delivery_report_only_error=False)
    taken: list[float] = []
    _to_all(sender, topic, partitions, value)
    wait_for_reports(sender, topic)
    until = time.monotonic() + seconds
    while not taken or time.monotonic() < until:
        began = time.monotonic()
        _to_all(sender, topic, partitions, value)
        wait_for_reports(sender, topic)
        taken.append(1e3 * (time.monotonic() - began))
    return median(taken)


def _transactional(cluster: Cluster, transactional_id: str) -> Producer:
    made = producer(cluster, 0, transactional_id=transactional_id)
    made.init_transactions(DEADLINE_S)
    return made


def _one_producer(
    sender: Producer, topic: str, partitions: int, value: bytes, seconds: float
) -> tuple[list[float], list[float]]:
    """Return the sorted milliseconds of all commits and of all transactions after the first one."""
    commits: list[float] = []
    wholes: list[float] = []
    until, is_first = time.monotonic() + seconds, True
    while is_first or not wholes or time.monotonic() < until:
        began = time.monotonic()
        sender.begin_transaction()
        _to_all(sender, topic, partitions, value)
        produced = time.monotonic()
        sender.commit_transaction(DEADLINE_S)
        ended = time.monotonic()
        if not is_first:
            commits.append(1e3 * (ended - produced))
            wholes.append(1e3 * (ended - began))
        is_first = False
    return sorted(commits), sorted(wholes)


def _to_all(sender: Producer, topic: str, partitions: int, value: bytes) -> None:
    for partition in range(partitions):
        sender.produce(topic, value, partition=partition)
    sender.poll(0)


def _reads(cluster: Cluster, topic: str, size: Size) -> Figures:
    """Compare consumers of both isolation levels."""
    cluster.create(topic, READ_PARTITIONS, SYNCED)
    sender, values, count = _transactional(cluster, topic), values_of(READ_BYTES), 0
    until = time.monotonic() + size.seconds
    while time.monotonic() < until or count == 0:
        sender.begin_transaction()
        send(sender, topic, values, range(count, count + READ_TRANSACTION))
        sender.commit_transaction(DEADLINE_S)
        count += READ_TRANSACTION
    taken: dict[str, list[float]] = {"read_uncommitted": [], "read_committed": []}
    for _ in range(3):
        for level, seconds in taken.items():
            seconds.append(consume(cluster, topic, READ_PARTITIONS, count, isolation_level=level))
    cluster.delete(topic)
    return {f"{level}, records/s": count / median(seconds) for level, seconds in taken.items()}


def _share_group(cluster: Cluster, topic: str, size: Size) -> Figures:
    """Measure two groups, which are formed before the records are produced: a new group begins with new records."""
    cluster.create(topic, 1, SYNCED)
    by_tool, by_asyncio = f"{topic}-tool", f"{topic}-asyncio"
    sender, values = producer(cluster, 5), values_of(READ_BYTES)
    for group in (by_tool, by_asyncio) if size.tool else (by_asyncio,):
        asyncio.run(_form(cluster, sender, topic, group))
    for number in range(0, size.shared, RECORDS_A_POLL):
        send(sender, topic, values, range(number, number + RECORDS_A_POLL))
    flush(sender, topic)
    found: Figures = {}
    if size.tool:
        found["share group, Java client, records/s"] = _by_tool(size.tool, cluster, topic, by_tool, size.shared)
    few = size.shared // SHARE_OF_ASYNCIO
    found["share group, asyncio client, records/s"] = asyncio.run(_by_asyncio(cluster, topic, by_asyncio, few))
    cluster.delete(topic)
    return found


async def _form(cluster: Cluster, sender: Producer, topic: str, group: str) -> None:
    """Return once the group has accepted a record, so that it gets all later ones."""
    async with (
        asyncio.timeout(DEADLINE_S),
        ShareConsumer(cluster.bootstrap.split(","), group, topics=[topic]) as consumer,
    ):
        while True:
            sender.produce(topic, b"")
            sender.poll(0)
            if (record := await consumer.get(FORM_PAUSE_S)) is not None:
                return await consumer.accept(record)


def _tool() -> list[str]:
    """Return the beginning of the command of Kafka's tool; nothing without Java or Maven."""
    try:
        return [*java(), "org.apache.kafka.tools.ShareConsumerPerformance"]
    except Skipped:
        return []


def _by_tool(tool: Sequence[str], cluster: Cluster, topic: str, group: str, count: int) -> float:
    """Return the records a second that Kafka's tool reports."""
    command = [*tool, "--bootstrap-server", cluster.bootstrap]
    command += ["--topic", topic, "--group", group, "--num-records", str(count), "--hide-header", "--timeout", "30000"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S, check=True)
    fields = [line.split(", ") for line in done.stdout.splitlines() if line.count(", ") >= 6][-1]
    assert float(fields[5]) >= count, f"{fields[5]} of {count} records of {topic}: {done.stdout}"
    return float(fields[4])


async def _by_asyncio(cluster: Cluster, topic: str, group: str, count: int) -> float:
    async with (
        asyncio.timeout(DEADLINE_S),
        ShareConsumer(cluster.bootstrap.split(","), group, topics=[topic], max_records=500) as consumer,
    ):
        first = await consumer.get()
        assert first is not None
        accepting = [asyncio.ensure_future(consumer.accept(first))]
        began = time.monotonic()
        for _ in range(count):
            record = await consumer.get()
            assert record is not None
            accepting.append(asyncio.ensure_future(consumer.accept(record)))
        await asyncio.gather(*accepting)
        return count / (time.monotonic() - began)


def present(result: dict[str, Any]) -> list[Panel]:
    """Print all figures as a table; return charts of the rates and the commits over the number of partitions."""
    show("transactions and share groups (medians; ratio = ours / Kafka's)", result["results"])
    panels = []
    for mode in (CACHED, SYNCED):
        for title, figure, unit in (
            (f"transactions a second, {PARALLEL} producers", f"{PARALLEL} producers, transactions/s", "transactions/s"),
            ("commit, 99th percentile", "commit p99, ms", "ms"),
        ):
            rows = [row for row in result["results"] if row["figure"].endswith(f", {mode}: {figure}")]
            if rows:
                x = [int(row["figure"].split()[0]) for row in rows]
                lines = {name: [row[name] for row in rows] for name in (OURS, KAFKA) if name in rows[0]}
                panels.append(Panel(f"{title}, {mode}", "partitions", unit, x, lines, log_x=True))
    return panels
