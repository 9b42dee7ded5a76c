"""Writing as a task does, without Spark around it."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pyarrow as pa
import pytest

from pyspark_quorumlog.options import parse_write
from pyspark_quorumlog.writing import SPREAD_MAX_MS, spread, write_rows
from quorumlog.errors import ClusterError
from tests.unit.quorumlog.client.fake_cluster import ThreadedBrokers


@pytest.mark.parametrize(
    ("asked", "arrived", "count", "expected"),
    [
        (1000, 1010, 5, [1002, 1004, 1006, 1008, 1010]),
        (1000, 1002, 4, [1001, 1001, 1002, 1002]),
        (1000, 1000, 3, [1000, 1000, 1000]),
        (1000, 1050, 1, [1050]),
        (1000, 900, 2, [900, 900]),
        (0, 9000, 2, [9000 - SPREAD_MAX_MS // 2, 9000]),
    ],
)
def test_timestamps_lie_between_the_request_for_rows_and_their_arrival(
    asked: int, arrived: int, count: int, expected: list[int]
) -> None:
    assert spread(asked, arrived, count).tolist() == expected


def test_rows_of_different_arrow_batches_have_their_own_timestamps(cluster: ThreadedBrokers) -> None:
    cluster.run(cluster.brokers.create("t", [1]))
    options = parse_write({"bootstrap.servers": cluster.brokers.bootstrap, "topic": "t"})

    def slow() -> Iterator[pa.RecordBatch]:
        for number in range(3):
            asked = time.time()  # after the arrival of the batch before
            while number and time.time() < asked + 0.02:  # the clock moves on between two batches
                time.sleep(0.001)
            yield pa.record_batch({"value": pa.array([b"%d" % number])})

    begun = round(time.time() * 1000)
    assert write_rows(options, slow(), 0) == 3
    stamps = [record.timestamp_ms for record in cluster.run(cluster.brokers.records("t", 0))]
    assert stamps == sorted(stamps)
    assert len(set(stamps)) == 3
    assert begun <= stamps[0]


def test_a_topic_that_one_broker_does_not_know_yet_is_written(cluster: ThreadedBrokers) -> None:
    cluster.run(cluster.brokers.hold_back(1))
    cluster.run(cluster.brokers.create("t", [2]))
    options = parse_write({"bootstrap.servers": cluster.brokers.bootstrap, "topic": "t"})
    assert write_rows(options, iter([pa.record_batch({"value": pa.array([b"0"])})]), 0) == 1


@pytest.mark.parametrize("delivery_timeout_ms", ["300", "120000"])
def test_a_topic_that_no_broker_knows_is_an_error(
    cluster: ThreadedBrokers, monkeypatch: pytest.MonkeyPatch, delivery_timeout_ms: str
) -> None:
    if delivery_timeout_ms != "300":
        monkeypatch.setattr("pyspark_quorumlog.writing.UNKNOWN_TOPIC_TIMEOUT_S", 0.3)
    given = {"topic": "nope", "kafka.delivery.timeout.ms": delivery_timeout_ms}
    options = parse_write({"bootstrap.servers": cluster.brokers.bootstrap} | given)
    with pytest.raises(ClusterError, match="topic nope does not exist"):
        write_rows(options, iter(()), 0)
