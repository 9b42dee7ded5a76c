from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.unit.quorumlog.client.fake_cluster import ThreadedBrokers, threaded_brokers


@pytest.fixture
def cluster() -> Iterator[ThreadedBrokers]:
    with threaded_brokers(2) as threaded:
        yield threaded


@pytest.fixture(autouse=True)
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Treat topics and partitions that no broker knows as deleted after a fraction of a second."""
    for module in ("lookup", "reading", "stream_reading"):
        monkeypatch.setattr(f"pyspark_quorumlog.{module}.DELETED_AFTER_S", 0.2)
