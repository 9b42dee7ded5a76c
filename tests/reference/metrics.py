"""The metrics of a process, as the functions that register them name them.

These functions only keep functions that read the state of a node at each scrape.  So stand-ins take the place of the
node, and nothing reads them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, cast
from unittest.mock import MagicMock

from prometheus_client import CollectorRegistry, Histogram
from prometheus_client.process_collector import ProcessCollector

from broker.kafka.listener import KafkaServer
from broker.server.metrics import register_broker_metrics
from broker.server.role import BrokerRole
from quorumlog.runtime.metrics import PREFIX, Label, Metrics, Read, ReadLabelled
from quorumlog_server.control_plane import ControlPlane
from tests.reference.markdown import sentence, table


class Metric(NamedTuple):
    """One row of the table.  name: as in the answer of `/metrics`."""

    name: str
    kind: str
    labels: tuple[str, ...]
    help: str


class Recorder(Metrics):
    """Collects the metrics that are registered, and reads none of them."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[Metric] = []

    def gauge(self, name: str, description: str, read: Read) -> None:
        self.gauges(name, description, (), lambda: None)

    def counter(self, name: str, description: str, read: Read) -> None:
        self.counters(name, description, (), lambda: None)

    def gauges(self, name: str, description: str, label: Label, read: ReadLabelled) -> None:
        self.found.append(Metric(f"{PREFIX}{name}", "gauge", _labels(label), description))

    def counters(self, name: str, description: str, label: Label, read: ReadLabelled) -> None:
        self.found.append(Metric(f"{PREFIX}{name}_total", "counter", _labels(label), description))

    def histogram(self, name: str, description: str) -> Histogram:
        self.found.append(Metric(f"{PREFIX}{name}", "histogram", (), description))
        return super().histogram(name, description)


def _labels(label: Label) -> tuple[str, ...]:
    return (label,) if isinstance(label, str) else label


def node_metrics() -> list[Metric]:
    """Return the metrics of every process."""
    recorder = Recorder()
    ControlPlane.register_metrics(cast(ControlPlane, MagicMock()), recorder)
    return [*recorder.found, *_process_metrics()]


def broker_metrics() -> list[Metric]:
    """Return the further metrics of a broker."""
    recorder = Recorder()
    register_broker_metrics(recorder, cast(BrokerRole, MagicMock()), cast(KafkaServer, MagicMock()))
    return recorder.found


def _process_metrics() -> Iterator[Metric]:
    """Yield the metrics of the process itself, which `prometheus_client` makes."""
    for family in ProcessCollector(registry=CollectorRegistry()).collect():
        name = f"{family.name}_total" if family.type == "counter" else family.name
        yield Metric(name, family.type, (), family.documentation)


def metrics(rows: list[Metric]) -> str:
    head = ("metric", "kind", "labels", "meaning")
    return table(
        head, [(f"`{each.name}`", each.kind, _listed(each.labels), sentence(each.help)) for each in sorted(rows)]
    )


def _listed(labels: tuple[str, ...]) -> str:
    return ", ".join(f"`{label}`" for label in labels)
