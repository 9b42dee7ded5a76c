"""Reading a range as a task does, without Spark around it."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pyarrow as pa
import pytest

from pyspark_quorumlog.options import parse_read
from pyspark_quorumlog.plan import DataLossError, OffsetRange
from pyspark_quorumlog.reading import read_range
from quorumlog.client.records import NewRecord, build_batch
from quorumlog.errors import ClusterError
from quorumlog.wire.record_batch import Codec
from tests.unit.quorumlog.client.fake_cluster import ThreadedBrokers
from tests.unit.quorumlog.wire.framing import body_of, record, sealed

NOW = 1_700_000_000_000
POLL_TIMEOUT_S = 0.5


def read(cluster: ThreadedBrokers, end: int, **options: str) -> Iterator[pa.RecordBatch]:
    asked = {
        "bootstrap.servers": cluster.brokers.bootstrap,
        "subscribe": "t",
        "kafkaConsumer.pollTimeoutMs": str(round(POLL_TIMEOUT_S * 1000)),
        "kafka.fetch.max.bytes": "1",  # a batch at a time
    }
    return read_range(parse_read({**asked, **options}), OffsetRange("t", 0, 0, end))


def values(batches: Iterator[pa.RecordBatch]) -> list[bytes]:
    return [value for batch in batches for value in batch.column("value").to_pylist()]


@pytest.fixture
def filled(cluster: ThreadedBrokers) -> ThreadedBrokers:
    """Five batches of one record."""
    cluster.run(cluster.brokers.create("t", [1]))
    cluster.run(cluster.brokers.fill("t", 0, *[build_batch([NewRecord(None, b"%d" % n, NOW)]) for n in range(5)]))
    return cluster


def test_a_task_that_works_on_rows_for_longer_than_the_poll_timeout_reads_on(filled: ThreadedBrokers) -> None:
    batches = read(filled, 3)
    found = next(batches).column("value").to_pylist()
    time.sleep(2 * POLL_TIMEOUT_S)  # nothing to be awaited: it is the worker that does something else meanwhile
    assert found + values(batches) == [b"0", b"1", b"2"]


def test_what_was_deleted_after_planning_is_an_error_or_left_out(filled: ThreadedBrokers) -> None:
    filled.run(filled.brokers.cut_front("t", 0, 2))
    with pytest.raises(DataLossError, match=r"t-0: offset 0 is out of range: the log contains offsets from 2 to 5"):
        values(read(filled, 4))
    assert values(read(filled, 4, failOnDataLoss="false")) == [b"2", b"3"]
    assert values(read(filled, 2, failOnDataLoss="false")) == [], "nothing of the range is left"


def test_a_log_that_does_not_reach_the_end_of_the_range_is_named(filled: ThreadedBrokers) -> None:
    batches = read(filled, 6)
    with pytest.raises(
        ClusterError, match=r"t-0: no records at offset 5 within 0.5 s; the range ends at 6, the high watermark"
    ):
        values(batches)


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.GZIP])
def test_a_batch_that_cannot_be_read_is_named_with_the_way_around_it(cluster: ThreadedBrokers, codec: Codec) -> None:
    cluster.run(cluster.brokers.create("t", [1]))
    good, bad = sealed(body_of(record(0), record(1)), 2), sealed(body_of(record(5), record(9)), 2, codec)
    cluster.run(cluster.brokers.fill("t", 0, good, bad, good))
    batches = read(cluster, 6)
    assert next(batches).num_rows == 2
    said = (
        r"t-0: the batch of offsets 2 to 3 cannot be read: malformed record at byte 0 of the records; to read without "
        r"it, read up to offset 2 \(endingOffsets\) and from offset 4 on \(startingOffsets\)"
    )
    with pytest.raises(ClusterError, match=said):
        values(batches)
