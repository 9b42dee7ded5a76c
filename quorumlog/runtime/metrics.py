"""Metrics of one process: mostly functions that read state at a scrape, and a few histograms of awaited time.

Packages do not depend on the registry.  They keep the numbers that they need, and the code that wires the process
registers functions that read them (`gauge`, `counter`).  Names: `quorumlog_`, package, subject, unit.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from prometheus_client import CollectorRegistry, Histogram, disable_created_metrics
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import Collector

from quorumlog.runtime.logging import get_logger

logger = get_logger("metrics")

disable_created_metrics()  # type: ignore[no-untyped-call]  # a second time series for each, which is not used

PREFIX = "quorumlog_"

LATENCY_BUCKETS = (
    0.0001,
    0.00025,
    0.0005,
    0.001,
    0.0025,
    0.005,
    0.01,
    0.025,
    0.05,
    0.1,
    0.25,
    0.5,
    1.0,
    2.5,
    5.0,
    10.0,
)
"""Bucket limits in seconds: from a quick fsync to a lost leader."""

Read = Callable[[], float | int | bool | None]
Label = str | tuple[str, ...]
"""One label, or several; a value then has one string per label."""
ReadLabelled = Callable[[], Mapping[Any, float | int] | None]
"""Returns numbers by the value of the label (a string), or by a tuple of values; None omits all of them."""


@dataclass(frozen=True, slots=True)
class _Source:
    name: str
    help: str
    is_counter: bool
    labels: tuple[str, ...]
    read: Callable[[], Mapping[Any, float | int] | float | int | bool | None]


class Metrics(Collector):
    """A separate registry, so that several nodes in one process (tests) do not share metrics."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry(auto_describe=False)
        self._sources: dict[str, _Source] = {}
        self._registry.register(self)

    def gauge(self, name: str, description: str, read: Read) -> None:
        """Add a number that is read at each scrape; None omits it."""
        self._add(_Source(PREFIX + name, description, False, (), read))

    def counter(self, name: str, description: str, read: Read) -> None:
        """Add a number that only grows and is read at each scrape.  `name` without `_total`."""
        self._add(_Source(PREFIX + name, description, True, (), read))

    def gauges(self, name: str, description: str, label: Label, read: ReadLabelled) -> None:
        """Add numbers by the values of labels, read at each scrape; the number of values must be bounded."""
        self._add(_Source(PREFIX + name, description, False, _tuple(label), read))

    def counters(self, name: str, description: str, label: Label, read: ReadLabelled) -> None:
        """Add growing numbers by the values of labels.  `name` without `_total`."""
        self._add(_Source(PREFIX + name, description, True, _tuple(label), read))

    def histogram(self, name: str, description: str) -> Histogram:
        """Add a histogram of seconds; `name` ends in `_seconds`."""
        return Histogram(PREFIX + name, description, registry=self._registry, buckets=LATENCY_BUCKETS)

    def render(self) -> tuple[bytes, str]:
        """Return all metrics in the text format, and the content type."""
        return generate_latest(self._registry), CONTENT_TYPE_LATEST

    def describe(self) -> Iterable[Metric]:
        return ()

    def collect(self) -> Iterator[Metric]:
        for source in self._sources.values():
            try:
                value = source.read()
            except Exception:  # one broken reader must not hide all other metrics
                logger.exception("metric not readable", metric=source.name)
                continue
            if value is None:
                continue
            kind = CounterMetricFamily if source.is_counter else GaugeMetricFamily
            if not source.labels:
                assert not isinstance(value, Mapping), source.name
                yield kind(source.name, source.help, value=float(value))
                continue
            assert isinstance(value, Mapping), source.name
            family = kind(source.name, source.help, labels=source.labels)
            for values, number in sorted((_tuple(label), number) for label, number in value.items()):
                assert len(values) == len(source.labels), (source.name, values)
                family.add_metric(values, float(number))
            yield family

    def _add(self, source: _Source) -> None:
        assert source.name not in self._sources, f"metric {source.name} registered twice"
        self._sources[source.name] = source


def _tuple(label: Label) -> tuple[str, ...]:
    return (label,) if isinstance(label, str) else label


def add_process_metrics(metrics: Metrics) -> None:
    """Add memory, CPU and open files of this process, from /proc if it exists."""
    from prometheus_client.process_collector import ProcessCollector

    with contextlib.suppress(ValueError):
        ProcessCollector(registry=metrics._registry)
