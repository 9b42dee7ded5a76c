"""Writing as a task does, without Spark around it."""

from __future__ import annotations

import asyncio
import re
import socket
import time
from collections.abc import Iterable, Iterator
from itertools import count, pairwise
from typing import Any, NoReturn, cast

import pyarrow as pa
import pytest
from pyspark.sql.types import StringType, StructField, StructType

from pyspark_quorumlog.options import OptionError, parse_write
from pyspark_quorumlog.source import DefaultSource
from pyspark_quorumlog.transactions import Attempt, Staged
from pyspark_quorumlog.warn import warn_once
from pyspark_quorumlog.writing import SPREAD_MAX_MS, abort_batch, open_batch, spread, write_rows
from quorumlog.client.cluster import Cluster
from quorumlog.client.coordinators import CoordinatorCalls
from quorumlog.client.scope_client import OpenScope, StagedProducer, Winner
from quorumlog.errors import ClusterError
from quorumlog.wire.errors import KafkaCode
from tests.unit.broker.kafka import fake
from tests.unit.quorumlog.client.fake_cluster import ThreadedBrokers, threaded_brokers


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
    assert write_rows(options, slow(), 0).record_count == 3
    stamps = [record.timestamp_ms for record in cluster.run(cluster.brokers.records("t", 0))]
    assert stamps == sorted(stamps)
    assert len(set(stamps)) == 3
    assert begun <= stamps[0]


def test_a_topic_that_one_broker_does_not_know_yet_is_written(cluster: ThreadedBrokers) -> None:
    cluster.run(cluster.brokers.hold_back(1))
    cluster.run(cluster.brokers.create("t", [2]))
    options = parse_write({"bootstrap.servers": cluster.brokers.bootstrap, "topic": "t"})
    assert write_rows(options, iter([pa.record_batch({"value": pa.array([b"0"])})]), 0).record_count == 1


def test_one_late_answer_does_not_prove_that_a_topic_is_missing(
    cluster: ThreadedBrokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No broker answered for a while, and the first one that restarts does not know the topic yet."""
    monkeypatch.setattr("pyspark_quorumlog.writing.UNKNOWN_TOPIC_TIMEOUT_S", 0.3)
    cluster.run(cluster.brokers.hold_back(1))
    cluster.run(cluster.brokers.create("t", [2]))
    asked = Cluster.partition_counts
    numbers = count()

    async def late(cluster: Cluster, topics: Iterable[str] | None, timeout_s: float) -> dict[str, int]:
        if next(numbers) == 0:
            await asyncio.sleep(0.4)
        return await asked(cluster, topics, timeout_s)

    monkeypatch.setattr(Cluster, "partition_counts", late)
    options = parse_write({"bootstrap.servers": cluster.brokers.bootstrap, "topic": "t"})
    assert write_rows(options, iter([pa.record_batch({"value": pa.array([b"0"])})]), 0).record_count == 1


def test_a_write_to_brokers_without_scopes_uses_no_transaction_and_fails_if_one_is_required(
    cluster: ThreadedBrokers,
) -> None:
    cluster.run(cluster.brokers.create("t", [1]))
    given = {"bootstrap.servers": cluster.brokers.bootstrap, "topic": "t"}
    attempt = Attempt("scope", "query", "run", 1, "0.0")

    def rows() -> Iterator[pa.RecordBatch]:
        return iter([pa.record_batch({"value": pa.array([b"0"])})])

    assert write_rows(parse_write(given), rows(), 0, attempt) == (1, Staged())
    with pytest.raises(OptionError, match="option atomic is true, but these brokers have no transaction scopes"):
        write_rows(parse_write(given | {"atomic": "true"}), rows(), 0, attempt)
    assert len(cluster.run(cluster.brokers.records("t", 0))) == 1
    assert open_batch(parse_write(given), "scope") is None
    with pytest.raises(OptionError, match="option atomic is true, but these brokers have no transaction scopes"):
        open_batch(parse_write(given | {"atomic": "true"}), "scope")


def not_utf_8(*texts: bytes) -> pa.Array:
    """Return text that Spark permits: a cast from binary to string checks nothing."""
    return pa.array(texts, pa.binary()).view(pa.string())


def test_a_row_whose_topic_is_not_utf_8_is_named(cluster: ThreadedBrokers) -> None:
    rows = pa.record_batch({"value": pa.array([b"0", b"1"]), "topic": not_utf_8(b"t", b"caf\xe9")})
    said = r"a row names the topic b'caf\xe9', which is not UTF-8; correct the column topic, or set the option topic"
    with pytest.raises(ClusterError, match=re.escape(said)):
        write_rows(parse_write({"bootstrap.servers": cluster.brokers.bootstrap}), iter([rows]), 0)


def test_a_header_without_a_key_is_named_although_another_key_is_not_utf_8(cluster: ThreadedBrokers) -> None:
    cluster.run(cluster.brokers.create("t", [1]))
    names = pa.concat_arrays([not_utf_8(b"caf\xe9"), pa.array(["h", None], pa.string())])
    entries = pa.StructArray.from_arrays([names, pa.array([b"1", b"2", b"3"])], ["key", "value"])
    lists = pa.ListArray.from_arrays(pa.array([0, 2, 2, 3]), entries)
    rows = pa.record_batch({"key": ["a", "b", "c"], "value": ["0", "1", "2"], "headers": lists})
    options = parse_write({"bootstrap.servers": cluster.brokers.bootstrap, "topic": "t"})
    with pytest.raises(ClusterError, match="a header of a row with the key b'c' has no key"):
        write_rows(options, iter([rows]), 0)
    assert write_rows(options, iter([rows.slice(0, 2)]), 0).record_count == 2


def test_a_batch_write_warns_that_it_does_not_use_the_scope_of_a_stream(
    cluster: ThreadedBrokers, caplog: pytest.LogCaptureFixture
) -> None:
    """A user of foreachBatch could believe that a repeated micro-batch writes nothing."""
    warn_once.cache_clear()
    given = {"bootstrap.servers": cluster.brokers.bootstrap, "topic": "t", "transactionscope": "s"}
    schema = StructType([StructField("value", StringType())])
    assert DefaultSource(given).writer(schema, overwrite=False).scope is None
    (message,) = caplog.messages
    assert message.startswith("option transactionScope has no effect when writing a batch, also in foreachBatch: ")
    DefaultSource(given).streamWriter(schema, overwrite=False)
    assert len(caplog.messages) == 1


def test_an_abort_that_no_broker_answers_is_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    with socket.socket() as unused:  # bound, and not listening
        unused.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{unused.getsockname()[1]}"
        given = {"bootstrap.servers": address, "topic": "t", "kafka.delivery.timeout.ms": "300"}
        abort_batch(parse_write(given), OpenScope("s", 1, -1))
    (message,) = caplog.messages
    assert message.startswith("the transactions of a failed write were not aborted; their timeout ends them: ")


def test_a_task_whose_transaction_was_aborted_names_the_timeout(
    cluster: ThreadedBrokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.run(cluster.brokers.create("t", [1]))

    async def refuse(*_: Any) -> NoReturn:
        raise ClusterError(KafkaCode.INVALID_PRODUCER_EPOCH.name, "t-0: a batch was refused")

    async def begun(*_: Any) -> StagedProducer:
        return StagedProducer(cast(CoordinatorCalls, None), "scope", "__scope/scope/0.0", Winner("0.0", 7, 0))

    monkeypatch.setattr("pyspark_quorumlog.writing._Write._write_all", refuse)
    monkeypatch.setattr("pyspark_quorumlog.transactions.begun", begun)
    attempt = Attempt("scope", "scope", "scope", 1, "0.0", ready=OpenScope("scope", 1, -1))
    options = parse_write({"bootstrap.servers": cluster.brokers.bootstrap, "topic": "t"})
    with pytest.raises(ClusterError, match=r"t-0: a batch was refused; .* longer than kafka.transaction.timeout"):
        write_rows(options, iter([pa.record_batch({"value": pa.array([b"0"])})]), 0, attempt)


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


def test_a_partition_that_the_topic_does_not_have_is_an_error_with_a_remedy(cluster: ThreadedBrokers) -> None:
    cluster.run(cluster.brokers.create("t", [1]))
    rows = pa.record_batch({"value": pa.array([b"0"]), "partition": pa.array([1], pa.int32())})
    options = parse_write({"bootstrap.servers": cluster.brokers.bootstrap, "topic": "t"})
    with pytest.raises(ClusterError, match="names partition 1 of topic t, which has 1 partitions; drop the column"):
        write_rows(options, iter([rows]), 0)


def test_a_partition_that_one_broker_does_not_know_yet_is_written(cluster: ThreadedBrokers) -> None:
    cluster.run(cluster.brokers.create("t", [1]))
    cluster.run(cluster.brokers.hold_back(1))
    cluster.run(cluster.brokers.add_partition("t", 2))
    rows = pa.record_batch({"value": pa.array([b"0", b"1"]), "partition": pa.array([0, 1], pa.int32())})
    options = parse_write({"bootstrap.servers": cluster.brokers.bootstrap, "topic": "t"})
    assert write_rows(options, iter([rows]), 0).record_count == 2
    assert [record.value for record in cluster.run(cluster.brokers.records("t", 1))] == [b"1"]


def test_partitions_that_are_added_while_a_task_writes_are_written(cluster: ThreadedBrokers) -> None:
    cluster.run(cluster.brokers.create("t", [1]))

    def rows() -> Iterator[pa.RecordBatch]:
        for index in range(3):
            if index:
                cluster.run(cluster.brokers.add_partition("t", 2))
            yield pa.record_batch({"value": pa.array([bytes(300_000)]), "partition": pa.array([index], pa.int32())})

    options = parse_write({"bootstrap.servers": cluster.brokers.bootstrap, "topic": "t"})
    assert write_rows(options, rows(), 0).record_count == 3


def test_a_partition_that_two_brokers_do_not_know_yet_is_written() -> None:
    with threaded_brokers(3) as cluster:
        cluster.run(cluster.brokers.create("t", [3]))
        for node_id in (1, 2):
            cluster.run(cluster.brokers.hold_back(node_id))
        cluster.run(cluster.brokers.add_partition("t", 3))
        rows = pa.record_batch({"value": pa.array([b"1"]), "partition": pa.array([1], pa.int32())})
        options = parse_write({"bootstrap.servers": cluster.brokers.bootstrap, "topic": "t"})
        assert write_rows(options, iter([rows]), 0).record_count == 1


def test_the_error_about_an_invalid_topic_name_describes_valid_names(cluster: ThreadedBrokers) -> None:
    options = parse_write({"bootstrap.servers": cluster.brokers.bootstrap, "topic": "my topic"})
    with pytest.raises(ClusterError, match="topic my topic: INVALID_TOPIC_EXCEPTION; use 1 to 249 letters, digits"):
        write_rows(options, iter(()), 0)


def test_the_error_about_a_header_without_a_key_names_its_row_also_if_rows_are_written_in_slices(
    cluster: ThreadedBrokers,
) -> None:
    cluster.run(cluster.brokers.create("t", [1]))
    given = {"bootstrap.servers": cluster.brokers.bootstrap, "topic": "t", "maxRecordsPerSecond": "10"}
    headers = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    columns = {
        "key": pa.array([b"k0", b"k1", b"k2"]),
        "value": pa.array([b"0", b"1", b"2"]),
        "headers": pa.array([[("a", b"1")], None, [(None, b"1")]], headers),
    }
    with pytest.raises(ClusterError, match=r"a header of a row with the key b'k2' has no key"):
        write_rows(parse_write(given), iter([pa.record_batch(columns)]), 0)
    assert [record.key for record in cluster.run(cluster.brokers.records("t", 0))] == [b"k0", b"k1"]


@pytest.mark.parametrize("first", [0, 1, 2])
def test_rows_without_a_key_go_to_partitions_that_have_a_leader(cluster: ThreadedBrokers, first: int) -> None:
    cluster.run(cluster.brokers.create("t", [1, 2, 2]))
    cluster.run(cluster.brokers.move("t", 0, -1))
    cluster.run(cluster.brokers.move("t", 1, -1))
    given = {"bootstrap.servers": cluster.brokers.bootstrap, "topic": "t", "kafka.delivery.timeout.ms": "5000"}
    assert write_rows(parse_write(given), iter([pa.record_batch({"value": pa.array([b"0"])})]), first) == (1, Staged())
    assert len(cluster.run(cluster.brokers.records("t", 2))) == 1


def test_rows_without_a_key_are_spread_evenly_over_the_partitions_that_have_a_leader(cluster: ThreadedBrokers) -> None:
    cluster.run(cluster.brokers.create("t", [1, 1, 2, 2]))
    for index in range(2):
        cluster.run(cluster.brokers.move("t", index, -1))
    options = parse_write({"bootstrap.servers": cluster.brokers.bootstrap, "topic": "t"})
    for task_index in range(4):
        write_rows(options, iter([pa.record_batch({"value": pa.array([b"0"])})]), task_index)
    assert [len(cluster.run(cluster.brokers.records("t", index))) for index in range(4)] == [0, 0, 2, 2]


def test_batches_shrink_to_the_maximum_batch_size_of_the_topic(
    cluster: ThreadedBrokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark's Kafka sink has batches of 16 KiB by default, and this one has batches of 1 MB."""
    monkeypatch.setattr(fake, "MESSAGE_MAX_BYTES", 20_000)
    cluster.run(cluster.brokers.create("t", [1]))
    values = [b"%06d" % number * 10 for number in range(20_000)]
    batches = [pa.record_batch({"value": pa.array(values[start : start + 5_000])}) for start in range(0, 20_000, 5_000)]
    options = parse_write({"bootstrap.servers": cluster.brokers.bootstrap, "topic": "t"})
    assert write_rows(options, iter(batches), 0).record_count == 20_000
    assert [record.value for record in cluster.run(cluster.brokers.records("t", 0))] == values
    refused = len(cluster.brokers.replicas[1].produced) - len(cluster.brokers.shared.logs["t", 0].batches)
    assert refused == 5, "other batches of a refused size are not sent"


def test_a_pause_in_the_input_does_not_raise_the_limited_rate_afterwards(
    cluster: ThreadedBrokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pyspark_quorumlog.writing._LATE_MAX_S", 0.0)
    cluster.run(cluster.brokers.create("t", [1]))
    given = {"bootstrap.servers": cluster.brokers.bootstrap, "topic": "t", "maxRecordsPerSecond": "100"}

    def rows() -> Iterator[pa.RecordBatch]:
        yield pa.record_batch({"value": pa.array([b"0"])})
        time.sleep(1.0)  # the rate would permit a hundred rows meanwhile
        yield pa.record_batch({"value": pa.array([b"%d" % number for number in range(50)])})

    assert write_rows(parse_write(given), rows(), 0).record_count == 51
    stamps = [record.timestamp_ms for record in cluster.run(cluster.brokers.records("t", 0))]
    assert min(later - earlier for earlier, later in pairwise(stamps[1::10])) >= 90, "ten rows in a tenth of a second"


def test_rows_that_arrive_a_little_late_do_not_lower_the_limited_rate(cluster: ThreadedBrokers) -> None:
    cluster.run(cluster.brokers.create("t", [1]))
    given = {"bootstrap.servers": cluster.brokers.bootstrap, "topic": "t", "maxRecordsPerSecond": "20"}

    def rows() -> Iterator[pa.RecordBatch]:
        yield pa.record_batch({"value": pa.array([b"0"])})
        time.sleep(0.9)  # the rate permits 18 rows meanwhile
        yield pa.record_batch({"value": pa.array([b"%d" % number for number in range(18)])})

    assert write_rows(parse_write(given), rows(), 0).record_count == 19
    stamps = [record.timestamp_ms for record in cluster.run(cluster.brokers.records("t", 0))]
    assert stamps[-1] - stamps[1] < 700, "later rows do not wait for the time of 18 rows again"
