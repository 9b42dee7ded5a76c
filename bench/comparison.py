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

from collections.abc import Sequence
from typing import Any, NamedTuple

from bench import arrivals
from bench.clusters import CACHED, KAFKA, OURS, SYNCED, Cluster
from bench.confluent import Load, rates, warm_up
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
    return alternate(PORT_BASE, size, _round, tiny=tiny, warm=warm_up).result()


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
    found = rates(cluster, topic, mode, load, size.produce_s)
    return {
        "produced, MB/s": found.produced,
        "consumed, MB/s": found.consumed,
        "servers' processor time, s/GB": found.produce_s_per_gb,
    }


def _latency(cluster: Cluster, number: int, mode: str, rate: int, seconds: float) -> Figures:
    """Return percentiles of the time from `produce` to the arrival in another process, without the first third."""
    topic = f"latency-{mode.replace(' ', '-')}-{rate}-{number}"
    cluster.create(topic, 1, mode)
    figures = arrivals.after_first_third(cluster, topic, rate, seconds)
    cluster.delete(topic)
    return figures


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
