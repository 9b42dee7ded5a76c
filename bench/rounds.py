"""Rounds that measure quorumlog and a peer (Apache Kafka, or etcd) alternately, and the rows of their results.

Both clusters run during the whole bench.  While one is measured, the other one is suspended.  Each round measures both,
in alternating order.  If the peer is not installed, only quorumlog is measured.

`others_processor_share` is the share of the machine that neither the measured cluster nor the client took.  If it is
more than a few percent, the figures of the round are unreliable.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from statistics import median
from typing import Any, Final, Protocol, TypeVar

from bench.clusters import OURS, Cluster, kafka_cluster, quorumlog_cluster
from bench.floors import floors
from bench.processes import Others
from tests.clients.outcomes import Skipped

TINY_WITH_KAFKA: Final = "BENCH_TINY_WITH_KAFKA"
"""If this environment variable is set, tiny runs measure Apache Kafka, too."""
Figures = dict[str, float]


class Suspendable(Protocol):
    """Servers that can be suspended while others are measured."""

    @property
    def name(self) -> str: ...
    def pause(self) -> None: ...
    def resume(self) -> None: ...
    def processor_s(self) -> float: ...


SuspendableT = TypeVar("SuspendableT", bound=Suspendable)


class Sized(Protocol):
    """How much a bench measures."""

    @property
    def rounds(self) -> int: ...


SizedT = TypeVar("SizedT", bound=Sized)


@dataclass(frozen=True)
class Rounds:
    """The figures of all rounds by cluster, and the figures that were taken once, at the start.

    missing: the reason why the peer was not measured, if it was not.
    """

    count: int
    measured: Mapping[str, Sequence[Figures]]
    once: Mapping[str, Figures]
    others: Mapping[str, Sequence[float]]
    missing: str | None = None

    def result(self) -> dict[str, Any]:
        """Return the data that a bench stores: medians of the rounds, their ratios and their ranges."""
        return {
            "rounds": self.count,
            "floors": floors(),
            "results": [*rows(self.measured), *rows({name: [found] for name, found in self.once.items()})],
            "others_processor_share": {name: [round(one, 2) for one in shares] for name, shares in self.others.items()},
            "missing": self.missing,
        }


@dataclass
class Taken:
    """The figures that were taken so far, and the shares of foreign processor time, by cluster."""

    figures: dict[str, list[Figures]] = field(default_factory=dict)
    others: dict[str, list[float]] = field(default_factory=dict)

    def add(self, cluster: Suspendable, found: Figures) -> None:
        self.figures.setdefault(cluster.name, []).append(found)

    @contextmanager
    def watch(self, cluster: Suspendable) -> Iterator[None]:
        """Add the share of foreign processor time in this block, in which only this cluster is measured."""
        others = Others(cluster.processor_s)
        yield
        self.others.setdefault(cluster.name, []).append(others.share())


def turns(clusters: Sequence[SuspendableT], count: int) -> Iterator[tuple[SuspendableT, int]]:
    """Suspend all clusters.  Then yield each one with the number of the round; only that one is running meanwhile.

    The order alternates from round to round.
    """
    for cluster in clusters:
        cluster.pause()
    for number in range(count):
        for cluster in clusters if number % 2 == 0 else reversed(clusters):
            cluster.resume()
            yield cluster, number
            cluster.pause()


def alternate(
    port_base: int,
    size: SizedT,
    measure: Callable[[Cluster, int, SizedT], Figures],
    *,
    tiny: bool,
    warm: Callable[[Cluster, SizedT], None],
) -> Rounds:
    """Start the clusters, warm each one up, and call `measure` with a cluster and the number of the round.

    size: passed on to `measure` and `warm`.

    port_base: the first port of quorumlog's cluster; Kafka's takes free ones.
    """
    taken = Taken()
    with ExitStack() as stack:
        clusters = [stack.enter_context(quorumlog_cluster(port_base))]
        missing = None
        if uses_java(tiny):
            try:
                clusters.append(stack.enter_context(kafka_cluster()))
            except Skipped as reason:
                missing = str(reason)
        once = {each.name: {"start_s": each.start_s, "idle_mib": each.resident_mib()} for each in clusters}
        for cluster in clusters:
            warm(cluster, size)
            cluster.pause()
        for cluster, number in turns(clusters, size.rounds):
            with taken.watch(cluster):
                found = measure(cluster, number, size)
            taken.add(cluster, found)
    return Rounds(size.rounds, taken.figures, once, taken.others, missing)


def uses_java(tiny: bool) -> bool:
    """Return whether a run starts programs of Java, if Java is installed."""
    return not tiny or bool(os.environ.get(TINY_WITH_KAFKA))


def rows(measured: Mapping[str, Sequence[Figures]]) -> list[dict[str, Any]]:
    """Return a row for each figure of quorumlog; none if nothing was measured."""
    if not measured:
        return []
    return [
        _row(name, {cluster: [one[name] for one in taken] for cluster, taken in measured.items()})
        for name in measured[OURS][0]
    ]


def _row(name: str, found: Mapping[str, Sequence[float]]) -> dict[str, Any]:
    """Return the medians of one figure, their ratio, and the least and the greatest of each cluster."""
    row: dict[str, Any] = {"figure": name}
    for cluster, values in found.items():
        row[cluster] = short(median(values))
    peers = [cluster for cluster in found if cluster != OURS]
    row["ratio"] = round(median(found[OURS]) / median(found[peers[0]]), 2) if peers else "-"
    for cluster, values in found.items():
        row[f"{cluster} range"] = range_of(values)
    return row


def range_of(values: Sequence[float]) -> str:
    """Return the least and the greatest of the values as text."""
    return f"{short(min(values)):g} to {short(max(values)):g}"


def short(value: float) -> float:
    return round(value, 1 if value >= 10 else 2)
