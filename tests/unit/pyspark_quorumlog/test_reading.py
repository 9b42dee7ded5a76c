"""Reading a range as a task does, without Spark around it."""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator
from itertools import count

import pyarrow as pa
import pytest

from broker.kafka.api import FetchPartition, FetchResult
from pyspark_quorumlog import lookup
from pyspark_quorumlog.options import Query, ReadOptions, parse_read
from pyspark_quorumlog.plan import DataLossError, OffsetRange
from pyspark_quorumlog.reading import read_range
from quorumlog.client import partitions
from quorumlog.client.cluster import Cluster, TopicState
from quorumlog.client.records import NewRecord, build_batch
from quorumlog.client.sync import runner
from quorumlog.errors import ClusterError
from quorumlog.wire.errors import KafkaCode
from quorumlog.wire.record_batch import Codec
from tests.unit.broker.kafka.fake import FakeLog, FakeReplicas
from tests.unit.quorumlog.client.fake_cluster import ThreadedBrokers
from tests.unit.quorumlog.wire.framing import body_of, record, sealed

NOW = 1_700_000_000_000
POLL_TIMEOUT_S = 1.5


def options_of(cluster: ThreadedBrokers, **options: str) -> ReadOptions:
    asked = {
        "bootstrap.servers": cluster.brokers.bootstrap,
        "subscribe": "t",
        "kafkaConsumer.pollTimeoutMs": str(round(POLL_TIMEOUT_S * 1000)),
        "kafka.fetch.max.bytes": "1",  # a batch at a time
        "fetchOffset.retryIntervalMs": "10",
    }
    return parse_read({**asked, **options}, Query.BATCH)


def read(cluster: ThreadedBrokers, end: int, **options: str) -> Iterator[pa.RecordBatch]:
    return read_range(options_of(cluster, **options), OffsetRange("t", 0, 0, end))


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
    time.sleep(2 * POLL_TIMEOUT_S)  # the worker does other work, so there is no condition to wait for
    assert found + values(batches) == [b"0", b"1", b"2"]


def test_records_deleted_after_planning_are_an_error_or_omitted(filled: ThreadedBrokers) -> None:
    filled.run(filled.brokers.cut_front("t", 0, 2))
    with pytest.raises(DataLossError, match=r"t-0: offset 0 is out of range: the log contains offsets from 2 to 5"):
        values(read(filled, 4))
    assert values(read(filled, 4, failOnDataLoss="false")) == [b"2", b"3"]
    assert values(read(filled, 2, failOnDataLoss="false")) == [], "nothing of the range is left"


@pytest.fixture
def short_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("quorumlog.client.partitions.UNKNOWN_TOPIC_TIMEOUT_S", 0.1)


@pytest.mark.usefixtures("short_unknown")
def test_a_deleted_topic_is_a_loss_or_the_end_of_a_range(filled: ThreadedBrokers) -> None:
    filled.run(filled.brokers.delete("t"))
    with pytest.raises(DataLossError, match="t-0 does not exist"):
        values(read(filled, 4))
    assert values(read(filled, 4, failOnDataLoss="false")) == []


def test_a_topic_counts_as_deleted_if_it_is_unknown_for_half_of_a_short_poll_timeout(filled: ThreadedBrokers) -> None:
    filled.run(filled.brokers.delete("t"))
    timeout_ms = 3000
    assert timeout_ms / 1000 < partitions.UNKNOWN_TOPIC_TIMEOUT_S
    assert values(read(filled, 4, **{"failOnDataLoss": "false", "kafkaConsumer.pollTimeoutMs": str(timeout_ms)})) == []


@pytest.mark.usefixtures("short_unknown")
def test_a_leader_that_does_not_know_its_partition_yet_delays_a_range(
    filled: ThreadedBrokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = FakeReplicas._refusal
    refusals = count()

    def refuses(replicas: FakeReplicas, topic: str, index: int) -> KafkaCode | None:
        if next(refusals) < 8:
            return KafkaCode.UNKNOWN_TOPIC_OR_PARTITION
        return known(replicas, topic, index)

    monkeypatch.setattr(FakeReplicas, "_refusal", refuses)
    batches = read(filled, 2, **{"failOnDataLoss": "false", "kafkaConsumer.pollTimeoutMs": "30000"})
    assert values(batches) == [b"0", b"1"]


def test_one_late_answer_does_not_prove_that_the_partition_of_a_range_was_deleted(
    filled: ThreadedBrokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No broker answered for a while, and the first one that restarts does not know the topic yet."""
    numbers = count()

    class Restarting(Cluster):
        async def topic_states(self, topics: Iterable[str] | None, timeout_s: float) -> dict[str, TopicState]:
            if next(numbers) == 0:
                await asyncio.sleep(2 * lookup.DELETED_AFTER_S)
                return {}
            return await super().topic_states(topics, timeout_s)

    cluster = Restarting(filled.brokers.bootstrap)
    monkeypatch.setattr("pyspark_quorumlog.lookup.cluster_of", lambda options: cluster)
    options = options_of(filled)
    assert not runner().run(lookup.is_deleted(options, ("t", 0)))
    assert runner().run(lookup.is_deleted(options, ("t", 9)))
    runner().run(cluster.close())


def test_a_range_whose_read_times_out_is_an_error_and_not_a_loss_if_its_records_exist(
    filled: ThreadedBrokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A former leader refuses the offset, and the current one has it."""

    def refuses(replicas: FakeReplicas, item: FetchPartition, max_bytes: int) -> FetchResult:
        return FetchResult(item.topic_id, item.topic, item.index, int(KafkaCode.OFFSET_OUT_OF_RANGE))

    monkeypatch.setattr(FakeReplicas, "_read", refuses)
    with pytest.raises(ClusterError, match="although the log contains offsets from 0 to 5") as caught:
        values(read(filled, 4, failOnDataLoss="false"))
    assert caught.value.code == "TIMED_OUT"


@pytest.mark.parametrize("first", [4, 5, 7])
def test_a_range_is_read_from_the_current_leader_although_a_former_one_answers(
    filled: ThreadedBrokers, first: int
) -> None:
    """The former leader is cut off from the other brokers, but not from this worker, which has asked it before."""
    options = options_of(filled, **{"kafkaConsumer.pollTimeoutMs": "20000"})
    assert len(values(read_range(options, OffsetRange("t", 0, 0, 5)))) == 5
    brokers = filled.brokers
    log = brokers.shared.logs["t", 0]
    brokers.replicas[1].logs = defaultdict(FakeLog, {("t", 0): FakeLog(list(log.batches))})
    filled.run(brokers.hold_back(1))
    filled.run(brokers.move("t", 0, 2))
    filled.run(brokers.fill("t", 0, *[build_batch([NewRecord(None, b"%d" % n, NOW)]) for n in range(5, 9)]))
    batches = read_range(options, OffsetRange("t", 0, first, 9))
    assert values(batches) == [b"%d" % number for number in range(first, 9)]


def test_a_range_that_waits_for_records_looks_its_leader_up_at_intervals(
    filled: ThreadedBrokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A look-up for each fetch would load the brokers as long as a transaction is not decided."""
    monkeypatch.setattr("pyspark_quorumlog.reading.LEADER_LOOK_S", 60.0)
    monkeypatch.setattr("quorumlog.client.consumer.FETCH_WAIT_MS", 10)
    forget_leader, forgotten = Cluster.forget_leader, list[str]()

    def forget(cluster: Cluster, topic: str, index: int) -> None:
        forgotten.append(f"{topic}-{index}")
        forget_leader(cluster, topic, index)

    monkeypatch.setattr(Cluster, "forget_leader", forget)
    with pytest.raises(ClusterError, match="no records at offset 5"):
        values(read(filled, 9))
    assert forgotten == ["t-0"]


def test_a_leader_whose_high_watermark_lags_for_a_while_delays_a_range(
    filled: ThreadedBrokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pyspark_quorumlog.reading.DELETED_AFTER_S", 20.0)
    log = filled.brokers.shared.logs["t", 0]
    held_back = log.batches[2:]
    del log.batches[2:]

    async def catch_up() -> None:
        await asyncio.sleep(0.5)  # meanwhile, offset 4 is beyond the end
        log.batches.extend(held_back)

    catching_up = asyncio.run_coroutine_threadsafe(catch_up(), filled.loop)
    options = options_of(filled, failOnDataLoss="false", **{"kafkaConsumer.pollTimeoutMs": "30000"})
    assert values(read_range(options, OffsetRange("t", 0, 4, 5))) == [b"4"]
    catching_up.result(60)


def test_a_range_beyond_the_end_of_the_log_is_a_loss(filled: ThreadedBrokers) -> None:
    with pytest.raises(DataLossError, match="t-0: offset 7 is out of range"):
        values(read_range(options_of(filled), OffsetRange("t", 0, 7, 9)))
    assert values(read_range(options_of(filled, failOnDataLoss="false"), OffsetRange("t", 0, 7, 9))) == []


def test_the_error_about_a_log_that_ends_before_the_range_names_its_partition_and_offsets(
    filled: ThreadedBrokers,
) -> None:
    batches = read(filled, 6)
    with pytest.raises(
        ClusterError, match=r"t-0: no records at offset 5 within 1.5 s; the range ends at 6, the high watermark"
    ):
        values(batches)


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.GZIP])
def test_the_error_about_an_unreadable_batch_names_its_offsets_and_a_next_step(
    cluster: ThreadedBrokers, codec: Codec
) -> None:
    cluster.run(cluster.brokers.create("t", [1]))
    good, bad = sealed(body_of(record(0), record(1)), 2), sealed(body_of(record(5), record(9)), 2, codec)
    cluster.run(cluster.brokers.fill("t", 0, good, bad, good))
    batches = read(cluster, 6)
    assert next(batches).num_rows == 2
    said = (
        r"t-0: the batch of offsets 2 to 3 cannot be read: malformed record at byte 0 of the records; to read without "
        r"it, read a batch up to offset 2 \(endingOffsets\), and begin again at offset 4 \(startingOffsets; a stream "
        r"also needs a new checkpointLocation\)"
    )
    with pytest.raises(ClusterError, match=said):
        values(batches)
