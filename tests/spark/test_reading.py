"""Reading a range as a task does, without Spark around it."""

from __future__ import annotations

import time

from pyspark_quorumlog.options import parse_read
from pyspark_quorumlog.plan import OffsetRange
from pyspark_quorumlog.reading import read_range
from quorumlog.client.records import NewRecord, build_batch
from tests.unit.client.fake_cluster import ThreadedBrokers

NOW = 1_700_000_000_000
POLL_TIMEOUT_S = 0.5


def test_a_task_that_works_on_rows_for_longer_than_the_poll_timeout_reads_on(cluster: ThreadedBrokers) -> None:
    brokers = cluster.brokers
    cluster.run(brokers.create("t", [1]))
    cluster.run(brokers.fill("t", 0, *[build_batch([NewRecord(None, b"%d" % n, NOW)]) for n in range(3)]))
    asked = {
        "bootstrap.servers": brokers.bootstrap,
        "subscribe": "t",
        "kafkaConsumer.pollTimeoutMs": str(round(POLL_TIMEOUT_S * 1000)),
        "kafka.fetch.max.bytes": "1",  # a batch at a time
    }
    rows = read_range(parse_read(asked), OffsetRange("t", 0, 0, 3))
    found = next(rows).column("value").to_pylist()
    time.sleep(2 * POLL_TIMEOUT_S)  # nothing to be awaited: it is the worker that does something else meanwhile
    found += [value for batch in rows for value in batch.column("value").to_pylist()]
    assert found == [b"0", b"1", b"2"]
