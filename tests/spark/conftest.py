from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from bench.spark_rates import local_session
from tests.unit.quorumlog.client.fake_cluster import ThreadedBrokers, threaded_brokers


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    session = local_session("quorumlog-tests", str(tmp_path_factory.mktemp("warehouse")))
    yield session
    session.stop()


@pytest.fixture
def cluster() -> Iterator[ThreadedBrokers]:
    with threaded_brokers(2) as threaded:
        yield threaded
