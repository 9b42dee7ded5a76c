"""Preparing a Python worker: its modules are not walked by the garbage collection after each task."""

from __future__ import annotations

import gc
import subprocess
import sys
from collections.abc import Iterator

import pyarrow as pa
import pytest

from pyspark_quorumlog.options import Query, parse_read, parse_write
from pyspark_quorumlog.plan import OffsetRange
from pyspark_quorumlog.reading import read_range
from pyspark_quorumlog.worker import prepare_worker
from pyspark_quorumlog.writing import write_rows
from tests.unit.quorumlog.client.fake_cluster import ThreadedBrokers

IMPORTED = "import gc, weakref, pyspark_quorumlog.reading; from pyspark_quorumlog.worker import prepare_worker"


@pytest.fixture
def fresh() -> Iterator[None]:
    """Make this process a worker that has not run a task yet."""
    prepare_worker.cache_clear()
    gc.unfreeze()
    yield
    gc.unfreeze()


def test_a_garbage_collection_in_a_prepared_worker_does_not_walk_the_modules() -> None:
    counted = f"{IMPORTED}; prepare_worker(); gc.collect(); print(gc.get_freeze_count(), len(gc.get_objects()))"
    done = subprocess.run([sys.executable, "-c", counted], stdout=subprocess.PIPE, text=True, check=True)
    frozen, walked = map(int, done.stdout.split())
    assert walked < 1_000 < 30_000 < frozen


def test_preparing_a_worker_frees_earlier_garbage() -> None:
    garbage = "one = type('Cycle', (), {})(); one.me = one; alive = weakref.ref(one); del one"
    code = f"{IMPORTED}; {garbage}; prepare_worker(); assert alive() is None"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


@pytest.mark.usefixtures("fresh")
def test_a_task_that_reads_prepares_its_worker(cluster: ThreadedBrokers) -> None:
    cluster.run(cluster.brokers.create("t", [1]))
    options = parse_read({"bootstrap.servers": cluster.brokers.bootstrap, "subscribe": "t"}, Query.BATCH)
    assert list(read_range(options, OffsetRange("t", 0, 0, 0))) == []
    assert gc.get_freeze_count() > 0


@pytest.mark.usefixtures("fresh")
def test_a_task_that_writes_prepares_its_worker(cluster: ThreadedBrokers) -> None:
    cluster.run(cluster.brokers.create("t", [1]))
    options = parse_write({"bootstrap.servers": cluster.brokers.bootstrap, "topic": "t", "atomic": "false"})
    assert write_rows(options, iter([pa.record_batch({"value": pa.array([b"0"])})]), 0).record_count == 1
    assert gc.get_freeze_count() > 0
