"""Latency over an hour at a fixed rate, minute by minute.

One producer sends 1,000 records of 1 KB a second to a topic with one partition and three replicas; each record is
acknowledged when it is durable on all replicas in sync.  The latency is the time from `produce` to the arrival in
another process (`bench.arrivals`).  Each minute is a window: the percentiles of its 60,000 records, the memory of all
servers at its end, and the processor shares of the servers and of other processes during it.  A share of other
processes of more than a few percent makes a window unreliable.  Every record is read and counted.

The run includes the work that servers do from time to time.  The topic has small segments, is compacted, and retains
records for ten minutes.  The reader commits its offsets.  One config of the topic changes each minute, and metadata
snapshots are taken every ten minutes.  Compaction begins a minute after a segment's records were written, so the reader
always sees them first.  `deleted` is the number of offsets below the start of the log at the end.

The environment variable BENCH_STABILITY_WITH_KAFKA adds an hour in which Apache Kafka is measured in the same way.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager
from pathlib import Path
from statistics import median
from typing import Any, Final, NamedTuple

from confluent_kafka import TopicPartition

from bench import arrivals
from bench.clusters import KAFKA, OURS, SYNCED, Cluster, kafka_cluster, quorumlog_cluster
from bench.confluent import DEADLINE_S, consumer
from bench.floors import floors
from bench.plots import Panel, show
from bench.processes import Others
from bench.rounds import Figures, short
from tests.clients.outcomes import Skipped

PORT_BASE: Final = 27_600
WITH_KAFKA: Final = "BENCH_STABILITY_WITH_KAFKA"
TOPIC: Final = "stability"
RECORD_BYTES: Final = 1000
KEYS: Final = 10_000
RETENTION_MS: Final = 600_000
CONFIGS: Final = {
    "cleanup.policy": "compact,delete",
    "segment.bytes": str(16 << 20),
    "retention.ms": str(RETENTION_MS),
    "min.compaction.lag.ms": "60000",
}
SETTINGS: Final[Mapping[str, Mapping[str, str]]] = {
    OURS: {"metadata.snapshot.interval.ms": "600000"},
    KAFKA: {"metadata.log.max.snapshot.interval.ms": "600000", "log.retention.check.interval.ms": "60000"},
}
"""Configs of all nodes.  Kafka applies retention every minute, as quorumlog always does."""
EVENTS: Final = {"snapshots": "snapshot taken", "compactions": "log compacted"}
"""Texts by which lines in the logs of quorumlog are counted.  The logs of Kafka are not searched."""
LATENCIES: Final = ("p50, ms", "p99, ms", "p99.9, ms")
MEMORY: Final = "memory, MiB"


class Size(NamedTuple):
    rate: int
    windows: int
    window_s: float


FULL: Final = Size(1_000, 60, 60.0)
TINY: Final = Size(200, 3, 1.0)


def run(tiny: bool) -> dict[str, Any]:
    size = TINY if tiny else FULL
    starts: dict[str, Callable[[], AbstractContextManager[Cluster]]] = {
        OURS: lambda: quorumlog_cluster(PORT_BASE, SETTINGS[OURS])
    }
    if os.environ.get(WITH_KAFKA):
        starts[KAFKA] = lambda: kafka_cluster(SETTINGS[KAFKA])
    result: dict[str, Any] = {
        "records_a_second": size.rate,
        "record_bytes": RECORD_BYTES,
        "window_s": size.window_s,
        "floors": floors(),
        "summary": [],
        "results": [],
        "missing": None,
    }
    for name, start in starts.items():
        try:
            with start() as cluster:
                windows = _windows(cluster, size)
                summary = {"cluster": name, **summarized(windows), **_upkeep(cluster)}
        except (Skipped, RuntimeError) as reason:
            if name == OURS:
                raise
            result["missing"] = str(reason)  # and keep the hour of quorumlog
            continue
        result["summary"].append(summary)
        result["results"] += [
            {"cluster": name, "window": number, **{figure: short(value) for figure, value in window.items()}}
            for number, window in enumerate(windows, 1)
        ]
    return result


def _windows(cluster: Cluster, size: Size) -> list[Figures]:
    """Return the figures of each window."""
    cluster.create(TOPIC, 1, SYNCED, CONFIGS)
    counts = [int(size.rate * size.window_s)] * size.windows
    stream = arrivals.Stream(TOPIC, size.rate, counts, RECORD_BYTES, KEYS)
    with ThreadPoolExecutor(1) as changes:
        watch = _Watch(cluster, changes)
        measured = arrivals.measure(cluster, stream, watch.at_edge, enable_auto_commit=True)
    for change in watch.changes:
        change.result()
    return [{**times, **servers} for times, servers in zip(measured.windows, watch.servers, strict=True)]


class _Watch:
    """Looks at the servers at the end of each window.

    servers: the figures of each window so far.  changes: the changes of metadata, one for each window.
    """

    def __init__(self, cluster: Cluster, executor: ThreadPoolExecutor) -> None:
        self.servers: list[Figures] = []
        self.changes: list[Future[None]] = []
        self._cluster = cluster
        self._executor = executor
        self._others = Others(cluster.processor_s)
        self._since, self._used_s = time.monotonic(), cluster.processor_s()

    def at_edge(self, number: int) -> None:
        """Note the figures of window `number`, which has ended; at 0, begin."""
        now, used_s = time.monotonic(), self._cluster.processor_s()
        figures = {
            MEMORY: self._cluster.resident_mib(),
            "servers' processor share, %": 100 * (used_s - self._used_s) / (now - self._since),
            "others' processor share, %": 100 * self._others.share(),
        }
        self._since, self._used_s = now, used_s
        if number == 0:
            return
        self.servers.append(figures)
        config = {"retention.ms": str(RETENTION_MS + number)}
        self.changes.append(self._executor.submit(self._cluster.configure, TOPIC, config))
        text = ", ".join(f"{name}: {value:.1f}" for name, value in figures.items())
        print(f"{self._cluster.name}, window {number}: {text}", file=sys.stderr, flush=True)


def summarized(windows: Sequence[Figures]) -> Figures:
    """Return medians and greatest values over all windows, and the memory at the ends of the first and the last one."""
    found: Figures = {}
    for name in LATENCIES:
        values = [window[name] for window in windows]
        found |= {f"median of {name}": short(median(values)), f"greatest {name}": short(max(values))}
    return {
        **found,
        "max, ms": short(max(window["max, ms"] for window in windows)),
        "first memory, MiB": short(windows[0][MEMORY]),
        "last memory, MiB": short(windows[-1][MEMORY]),
        "greatest memory, MiB": short(max(window[MEMORY] for window in windows)),
    }


def _upkeep(cluster: Cluster) -> dict[str, int | str]:
    """Return how often the servers did the work that is part of this measurement."""
    reader = consumer(cluster)
    offsets = reader.get_watermark_offsets(TopicPartition(TOPIC, 0), timeout=DEADLINE_S)
    reader.close()
    assert offsets is not None, f"the start of {TOPIC} is not known after {DEADLINE_S:g} s"
    counts = counted(cluster.logs, EVENTS) if cluster.name == OURS else dict.fromkeys(EVENTS, "-")
    return {"deleted": offsets[0], **counts}


def counted(logs: Sequence[Path], texts: Mapping[str, str]) -> dict[str, int | str]:
    """Return the number of lines in all logs that contain each text, by the names of the texts."""
    found = dict.fromkeys(texts, 0)
    for log in logs:
        with log.open(errors="replace") as lines:
            for line in lines:
                for name, text in texts.items():
                    found[name] += text in line
    return {**found}


def present(result: dict[str, Any]) -> list[Panel]:
    """Print the summary and all windows; return a chart of the latencies of each cluster, and one of their memory."""
    rows = result["results"]
    show(f"stability at {result['records_a_second']:,} records/s", result["summary"])
    show(f"windows of {result['window_s']:g} s", rows)
    if result["missing"]:
        show("Not measured", [{"cluster": KAFKA, "reason": result["missing"]}])
    by_cluster: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        by_cluster.setdefault(row["cluster"], []).append(row)
    label = "minute" if result["window_s"] == FULL.window_s else "window"
    panels = []
    for name, windows in by_cluster.items():
        lines = {each.removesuffix(", ms"): [row[each] for row in windows] for each in LATENCIES}
        x = [row["window"] for row in windows]
        panels.append(Panel(f"Latency, {name}", label, "ms", x, lines, log_y=True))
    memory = {name: [row[MEMORY] for row in windows] for name, windows in by_cluster.items()}
    return [*panels, Panel("Memory of all servers", label, "MiB", x, memory)]
