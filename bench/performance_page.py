"""The page docs/performance.md, made from the stored result of the comparison: `python -m bench.performance_page`.

So each figure on the page comes from a stored result.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from bench.clusters import CACHED, KAFKA, OURS, SYNCED

ROOT: Final = Path(__file__).resolve().parents[1]
STORED: Final = Path(__file__).resolve().parent / "results" / "comparison.json"
PAGE: Final = ROOT / "docs" / "performance.md"
RATE: Final = ", MB/s"
BEHIND_FROM: Final = 0.05
"""A ratio this far on the wrong side of 1 is listed as a row in which quorumlog is behind."""

INTRODUCTION: Final = """\
# Performance

These figures compare quorumlog with Apache Kafka on one machine, in one run. The command

```
python -m bench comparison
```

measures both systems, stores the result in `bench/results/comparison.json` and writes this page. It takes about 16
minutes. It needs Java and Maven; without them it measures quorumlog alone. Measure only on a machine that does nothing
else.

Each cluster has 3 controllers and 3 brokers. The client is confluent-kafka, unmodified, with `acks=all` and
idempotence. Each topic has 3 replicas, of which 2 must be in sync. Both clusters are warmed up first. While one is
measured, the processes of the other one are suspended. The order of the clusters alternates from round to round. Every
acknowledged record is read and counted.

- **Page cache**: a record is acknowledged once all replicas in sync have it in memory. This is Kafka's default, and
  `write.caching=true` in quorumlog.
- **fsync**: a record is acknowledged once it is durable on all replicas in sync. This is quorumlog's default, and
  `flush.messages=1` in Kafka.

A cell shows the figure of quorumlog, the figure of Kafka, and in brackets the first divided by the second. Each figure
is the median of the rounds, except the idle memory and the start, which are measured once. Medians of few rounds are
rough, so the stored result also has the least and the greatest figure of each row. Other machines give other figures,
so measure on yours.

![Rates of both clusters](../bench/results/comparison.png)
"""


class Figure(NamedTuple):
    """One row of the stored result.  kafka, ratio: None if Kafka was not measured."""

    name: str
    ours: float
    kafka: float | None
    ratio: float | None

    @property
    def is_rate(self) -> bool:
        """Whether more is better."""
        return self.name.endswith(RATE)

    @property
    def is_behind(self) -> bool:
        if self.ratio is None:
            return False
        return self.ratio < 1 - BEHIND_FROM if self.is_rate else self.ratio > 1 + BEHIND_FROM

    def cell(self) -> str:
        if self.ratio is None:
            return f"{self.ours:,g}"
        return f"{self.ours:,g} / {self.kafka:,g} ({self.ratio:.2f})"


def page(result: Mapping[str, Any]) -> str:
    """Return the text of the page for a result of the comparison."""
    figures = {}
    for row in result["results"]:
        ratio = row["ratio"] if KAFKA in row else None
        figures[row["figure"]] = Figure(row["figure"], row[OURS], row.get(KAFKA), ratio)
    return "\n".join([INTRODUCTION, *_machine(result), *_body(figures)])


def _machine(result: Mapping[str, Any]) -> Iterator[str]:
    machine, floors = result["machine"], result["floors"]
    shares = [abs(share) for each in result["others_processor_share"].values() for share in each]
    yield (
        f"This run: {machine['cores']} cores, Python {machine['python']}, {result['rounds']} rounds. "
        f"Other processes took at most {max(shares):.0%} of the machine.\n"
        f"The machine's own limits: {floors['fdatasync_4_kib_ms']:g} ms for a write and `fdatasync` of 4 KiB, "
        f"{floors['loopback_round_trip_ms']:g} ms for a round trip\non loopback, "
        f"{floors['memcpy_gb_s']:g} GB/s for copies in memory.\n"
    )
    if result["missing"]:
        yield f"Apache Kafka was not measured: {result['missing']}\n"


def _body(figures: Mapping[str, Figure]) -> Iterator[str]:
    loads = list(dict.fromkeys(name.split(f", {CACHED}: ")[0] for name in figures if f", {CACHED}: produced" in name))
    rates = list(dict.fromkeys(name.split(f", {CACHED}: ")[0] for name in figures if f", {CACHED}: p50" in name))
    for title, what in (
        ("Produced, MB/s", "produced, MB/s"),
        ("Consumed, MB/s", "consumed, MB/s"),
        ("Processor time of the servers while producing, s/GB (less is better)", "servers' processor time, s/GB"),
    ):
        yield from _table(title, ("record, partitions", CACHED, SYNCED), _rows(figures, loads, what))
    for title, what in (
        ("Latency from `produce` to the arrival at a consumer, median, ms", "p50, ms"),
        ("Latency, 99th percentile, ms", "p99, ms"),
        ("Latency, 99.9th percentile, ms", "p99.9, ms"),
        ("Processor share of the servers, % of one core", "servers' processor share, %"),
    ):
        yield from _table(f"{title}; records of 1,000 B", ("rate", CACHED, SYNCED), _rows(figures, rates, what))
    once = {
        "six processes, idle, MiB": "idle_mib",
        "six processes after the load, MiB": "memory after load, MiB",
        "start of the cluster, s": "start_s",
    }
    yield from _table(
        "Memory and start", ("", "figure"), [(title, figures[name].cell()) for title, name in once.items()]
    )
    yield from _behind(figures.values())


def _rows(figures: Mapping[str, Figure], names: Sequence[str], what: str) -> list[tuple[str, ...]]:
    return [(name, *(figures[f"{name}, {mode}: {what}"].cell() for mode in (CACHED, SYNCED))) for name in names]


def _table(title: str, head: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    yield f"## {title}\n"
    yield f"| {' | '.join(head)} |"
    yield f"|{'---|' * len(head)}"
    yield from (f"| {' | '.join(row)} |" for row in rows)
    yield ""


def _behind(figures: Iterable[Figure]) -> Iterator[str]:
    behind = [each for each in figures if each.is_behind]
    if not behind:
        return
    yield f"## Where quorumlog is behind\n\nRows in which it is behind by more than {BEHIND_FROM:.0%}:\n"
    yield from (f"- {each.name}: {each.cell()}" for each in behind)
    yield ""


def write() -> None:
    """Write the page from the stored result."""
    PAGE.write_text(page(json.loads(STORED.read_text())))


if __name__ == "__main__":
    write()
