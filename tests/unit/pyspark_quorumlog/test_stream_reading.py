"""The driver of a stream against brokers, without Spark: each `batch` makes the calls that Spark makes for one."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from itertools import count

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit

from broker.kafka import handlers
from pyspark_quorumlog import lookup
from pyspark_quorumlog.lookup import Found, look_up
from pyspark_quorumlog.options import OptionError, ReadOptions
from pyspark_quorumlog.plan import DataLossError
from pyspark_quorumlog.reference import COLUMNS
from pyspark_quorumlog.source import DefaultSource, RefusedStream, StreamReader, read_schema
from pyspark_quorumlog.stream_plan import JsonOffsets
from pyspark_quorumlog.warn import warn_once
from quorumlog.client.records import NewRecord, build_batch
from tests.unit.quorumlog.client.fake_cluster import ThreadedBrokers

NOW = 1_700_000_000_000


@dataclass
class Stream:
    """A query with its checkpoint: the offsets of its last batch."""

    cluster: ThreadedBrokers
    options: dict[str, str]
    position: JsonOffsets | None = None

    def __post_init__(self) -> None:
        self.restart()

    def restart(self, **options: str) -> None:
        fixed = {"kafka.bootstrap.servers": self.cluster.brokers.bootstrap, "fetchOffset.retryIntervalMs": "10"}
        self.options |= options
        source = DefaultSource({name.lower(): value for name, value in (fixed | self.options).items()})
        reader = source.streamReader(read_schema(COLUMNS[:-1]))
        assert isinstance(reader, StreamReader)
        self.worker: StreamReader = pickle.loads(pickle.dumps(reader))
        self.reader = reader

    def begin(self) -> JsonOffsets:
        """Run the first batch of a new query, which is empty."""
        start = self.reader.initialOffset()
        assert self.reader.latestOffset(start, self.reader.getDefaultReadLimit()) == start
        assert self.rows(start, start) == []
        self.position = start
        return start

    def batch(self, limit: ReadLimit | None = None) -> list[int]:
        """Run a batch; of a new query the second one, after `begin`."""
        start = self.begin() if self.position is None else self.position
        return self.batch_from(start, limit or self.reader.getDefaultReadLimit())

    def batch_from(self, start: JsonOffsets, limit: ReadLimit) -> list[int]:
        end = self.reader.latestOffset(start, limit)
        found = self.rows(start, end)
        self.position = end
        return found

    def rows(self, start: JsonOffsets, end: JsonOffsets) -> list[int]:
        tasks = self.reader.partitions(start, end)
        read = [batch for task in tasks for batch in self.worker.read(task)]
        return [int(value) for batch in read for value in batch.column("value").to_pylist()]


def fill(cluster: ThreadedBrokers, topic: str, index: int, *values: int) -> None:
    batches = [build_batch([NewRecord(None, b"%d" % value, NOW + value)]) for value in values]
    cluster.run(cluster.brokers.fill(topic, index, *batches))


@pytest.fixture
def topic(cluster: ThreadedBrokers) -> ThreadedBrokers:
    """t-0 has the records 0 to 4, and t-1 has 10 and 11."""
    cluster.run(cluster.brokers.create("t", [1, 2]))
    fill(cluster, "t", 0, *range(5))
    fill(cluster, "t", 1, 10, 11)
    return cluster


def test_a_new_query_begins_at_the_latest_offsets(topic: ThreadedBrokers) -> None:
    stream = Stream(topic, {"subscribe": "t"})
    assert stream.reader.initialOffset() == {"t": {"0": 5, "1": 2}}
    fill(topic, "t", 0, 5)
    assert stream.reader.initialOffset() == {"t": {"0": 5, "1": 2}}, "Spark asks twice and needs the same answer"
    assert stream.batch() == [5]
    assert stream.batch() == []


def log_first_batch(stream: Stream, limit: ReadLimit | None = None) -> tuple[JsonOffsets, JsonOffsets]:
    """Plan the first batch, and restart the query before the batch finished.  Return its start before and its end."""
    start = stream.reader.initialOffset()
    fill(stream.cluster, "t", 0, 5)
    end = stream.reader.latestOffset(start, limit or stream.reader.getDefaultReadLimit())
    stream.restart()
    return start, end


@pytest.mark.parametrize("limit", [None, ReadAllAvailable()])
def test_a_first_batch_that_is_repeated_after_a_restart_loses_nothing(
    topic: ThreadedBrokers, limit: ReadLimit | None
) -> None:
    stream = Stream(topic, {"subscribe": "t"})
    start, end = log_first_batch(stream, limit)
    assert end == start, "the first batch is empty"
    assert stream.rows(stream.reader.initialOffset(), end) == []
    assert stream.batch_from(end, limit or stream.reader.getDefaultReadLimit()) == [5]


@pytest.mark.parametrize("limit", [None, ReadAllAvailable()])
def test_a_first_batch_that_is_repeated_reads_nothing_of_a_topic_that_a_broker_does_not_know_yet(
    topic: ThreadedBrokers, limit: ReadLimit | None
) -> None:
    topic.run(topic.brokers.hold_back(2))
    topic.run(topic.brokers.create("u", [1]))
    fill(topic, "u", 0, 30, 31)
    stream = Stream(topic, {"subscribePattern": "[tu]"})
    _, end = log_first_batch(stream, limit)
    assert end == {"t": {"0": 5, "1": 2}, "u": {"0": 2}}
    lookup.cluster_of(stream.reader.options).ask_another_broker()
    start = stream.reader.initialOffset()
    assert start == {"t": {"0": 6, "1": 2}}
    assert stream.rows(start, end) == [], "the query begins after the records of u"
    fill(topic, "u", 0, 32)
    assert sorted(stream.batch_from(end, limit or stream.reader.getDefaultReadLimit())) == [5, 32]


@pytest.mark.parametrize("starting", ["earliest", '{"t":{"0":0,"1":-2}}', str(NOW)])
def test_records_that_are_deleted_while_a_first_batch_is_repeated_are_a_loss(
    topic: ThreadedBrokers, starting: str
) -> None:
    option = "startingTimestamp" if starting.isdecimal() else "startingOffsets"
    stream = Stream(topic, {"subscribe": "t", option: starting})
    _, end = log_first_batch(stream)
    topic.run(topic.brokers.cut_front("t", 0, 2))
    assert stream.rows(stream.reader.initialOffset(), end) == []
    stream.position = end
    with pytest.raises(DataLossError, match="t-0: start offset 0 was deleted; the log contains offsets from 2 to 6"):
        stream.batch()


def test_the_batch_after_a_first_batch_that_was_repeated_has_records(topic: ThreadedBrokers) -> None:
    stream = Stream(topic, {"subscribe": "t", "startingOffsets": "earliest"})
    _, end = log_first_batch(stream)
    assert stream.rows(stream.reader.initialOffset(), end) == []
    stream.position = end
    assert stream.batch() == [0, 1, 2, 3, 4, 5, 10, 11], "Trigger.AvailableNow would end at an empty batch"


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"startingOffsets": "earliest"}, [0, 1, 2, 3, 4, 10, 11]),
        ({"startingOffsets": '{"t":{"0":3,"1":-2}}'}, [3, 4, 10, 11]),
        ({"startingTimestamp": str(NOW + 3)}, [3, 4, 10, 11]),
        ({"startingOffsetsByTimestamp": f'{{"t":{{"0":{NOW},"1":{NOW + 11}}}}}'}, [0, 1, 2, 3, 4, 11]),
        ({"startingOffsets": "earliest", "assign": '{"t":[1]}'}, [10, 11]),
        ({"startingOffsets": "earliest", "subscribePattern": "[s-u]"}, [0, 1, 2, 3, 4, 10, 11]),
        ({"startingOffsets": "earliest", "minPartitions": "5"}, [0, 1, 2, 3, 4, 10, 11]),
    ],
)
def test_a_new_query_begins_where_its_options_say(
    topic: ThreadedBrokers, options: dict[str, str], expected: list[int]
) -> None:
    subscription = {} if {"assign", "subscribePattern"} & options.keys() else {"subscribe": "t"}
    assert Stream(topic, subscription | options).batch() == expected


def test_a_start_time_after_the_last_record_means_the_latest_offset_only_with_that_strategy(
    topic: ThreadedBrokers,
) -> None:
    late = {"subscribe": "t", "startingTimestamp": str(NOW + 99)}
    with pytest.raises(OptionError, match="t-0 has no record as new as"):
        Stream(topic, late).reader.initialOffset()
    stream = Stream(topic, {**late, "startingOffsetsByTimestampStrategy": "latest"})
    assert stream.reader.initialOffset() == {"t": {"0": 5, "1": 2}}
    fill(topic, "t", 1, 12)
    assert stream.batch() == [12]


def test_a_restarted_query_repeats_its_unfinished_batch_and_then_continues_without_a_gap(
    topic: ThreadedBrokers,
) -> None:
    stream = Stream(topic, {"subscribe": "t", "startingOffsets": "earliest", "maxOffsetsPerTrigger": "4"})
    found = stream.batch()
    assert len(found) == 3, "4 in proportion to 5 and 2, rounded down"
    start, end = stream.position, stream.reader.latestOffset(stream.position or {}, stream.reader.getDefaultReadLimit())
    rows = stream.rows(start or {}, end)
    stream.restart()
    assert stream.rows(start or {}, end) == rows, "a batch that did not finish is repeated"
    stream.position = end
    stream.restart(maxOffsetsPerTrigger="100")
    assert sorted(found + rows + stream.batch()) == [0, 1, 2, 3, 4, 10, 11]
    assert stream.batch(ReadAllAvailable()) == []


def test_a_batch_of_all_records_ignores_the_limit_and_is_not_empty(topic: ThreadedBrokers) -> None:
    stream = Stream(topic, {"subscribe": "t", "startingOffsets": "earliest", "maxOffsetsPerTrigger": "1"})
    assert stream.batch_from(stream.reader.initialOffset(), ReadAllAvailable()) == [0, 1, 2, 3, 4, 10, 11]


def test_the_latest_offsets_are_reported(topic: ThreadedBrokers) -> None:
    stream = Stream(topic, {"subscribe": "t", "startingOffsets": "earliest", "maxOffsetsPerTrigger": "2"})
    assert stream.reader.reportLatestOffset() is None
    stream.batch()
    assert stream.position == {"t": {"0": 1, "1": 1}}
    assert stream.reader.reportLatestOffset() == {"t": {"0": 5, "1": 2}}


def test_a_query_with_trigger_available_now_ends_at_the_offsets_of_its_start(topic: ThreadedBrokers) -> None:
    stream = Stream(topic, {"subscribe": "t", "startingOffsets": "earliest", "maxOffsetsPerTrigger": "3"})
    stream.reader.prepareForTriggerAvailableNow()
    found = stream.batch()
    fill(topic, "t", 0, 5)
    topic.run(topic.brokers.add_partition("t", 1))
    while rows := stream.batch():
        found += rows
    assert sorted(found) == [0, 1, 2, 3, 4, 10, 11]
    stream.restart()
    assert stream.batch() == [5]
    assert stream.position == {"t": {"0": 6, "1": 2, "2": 0}}


def test_new_partitions_and_new_topics_are_read_from_their_start(topic: ThreadedBrokers) -> None:
    stream = Stream(topic, {"subscribePattern": "^t"})
    stream.begin()
    topic.run(topic.brokers.add_partition("t", 2))
    fill(topic, "t", 2, 20, 21)
    topic.run(topic.brokers.create("t2", [1]))
    topic.run(topic.brokers.create("other", [1]))
    fill(topic, "t2", 0, 30)
    fill(topic, "other", 0, 99)
    start = stream.position
    assert stream.batch() == [20, 21, 30]
    assert stream.position == {"t": {"0": 5, "1": 2, "2": 2}, "t2": {"0": 1}}
    stream.restart()
    assert stream.rows(start or {}, stream.position) == [20, 21, 30], "also if the batch is repeated"


def test_a_deleted_topic_is_a_loss(topic: ThreadedBrokers, caplog: pytest.LogCaptureFixture) -> None:
    warn_once.cache_clear()
    topic.run(topic.brokers.create("u", [1]))
    fill(topic, "u", 0, 30)
    stream = Stream(topic, {"subscribe": "t,u", "startingOffsets": "earliest"})
    stream.batch()
    topic.run(topic.brokers.delete("u"))
    fill(topic, "t", 0, 5)
    loss = "u-0 does not exist any more; it was read up to 1"
    with pytest.raises(DataLossError, match=f"{loss}. To read the remaining records, set the option failOnDataLoss"):
        stream.batch()
    stream.restart(failOnDataLoss="false")
    assert stream.batch() == [5]
    assert stream.position == {"t": {"0": 6, "1": 2}, "u": {"0": 1}}, "the batch that notices it keeps its position"
    assert stream.batch() == []
    assert stream.position == {"t": {"0": 6, "1": 2}}
    assert stream.batch() == []
    assert caplog.messages == [loss, "topic u does not exist"], "a loss is reported once"
    topic.run(topic.brokers.create("u", [2]))
    fill(topic, "u", 0, 40, 41, 42)
    stream.restart()
    assert stream.batch() == [40, 41, 42], "the topic exists again and is read from its start"


def test_a_batch_of_a_deleted_topic_can_be_repeated(topic: ThreadedBrokers) -> None:
    stream = Stream(topic, {"subscribePattern": "[tu]", "startingOffsets": "earliest"})
    topic.run(topic.brokers.create("u", [1]))
    fill(topic, "u", 0, 40)
    end = stream.reader.latestOffset({}, ReadAllAvailable())
    topic.run(topic.brokers.delete("u"))
    stream.restart()
    with pytest.raises(DataLossError, match="u-0 does not exist any more; the batch ends at its offset 1"):
        stream.rows({}, end)
    stream.restart(failOnDataLoss="false")
    assert stream.rows({}, end) == [0, 1, 2, 3, 4, 10, 11]


def test_records_that_were_deleted_unread_are_a_loss(topic: ThreadedBrokers) -> None:
    stream = Stream(topic, {"assign": '{"t":[0]}', "startingOffsets": "earliest"})
    stream.batch()
    fill(topic, "t", 0, 5)
    fill(topic, "t", 0, 6)
    topic.run(topic.brokers.cut_front("t", 0, 6))
    with pytest.raises(DataLossError, match="t-0: start offset 5 was deleted; the log contains offsets from 6 to 7"):
        stream.batch()
    stream.restart(failOnDataLoss="false")
    assert stream.batch() == [6]


def test_a_shorter_topic_that_was_created_again_is_a_loss_and_is_read_from_its_start(topic: ThreadedBrokers) -> None:
    stream = Stream(topic, {"assign": '{"t":[0]}', "startingOffsets": "earliest"})
    stream.batch()
    topic.run(topic.brokers.delete("t"))
    topic.run(topic.brokers.create("t", [1]))
    fill(topic, "t", 0, 50, 51)
    stream.restart()
    with pytest.raises(DataLossError, match="t-0: start offset 5 is beyond the end 2 of the log"):
        stream.batch()
    stream.restart(failOnDataLoss="false")
    assert stream.batch() == []
    assert stream.position == {"t": {"0": 0}}
    assert stream.batch() == [50, 51]


@pytest.mark.parametrize("limit", [None, "2"])
def test_a_topic_that_was_created_again_and_outgrew_the_position_is_a_loss(
    topic: ThreadedBrokers, limit: str | None
) -> None:
    stream = Stream(topic, {"subscribe": "t", "startingOffsets": "earliest", "failOnDataLoss": "false"})
    if limit is not None:
        stream.options["maxOffsetsPerTrigger"] = limit
    stream.begin()
    while stream.batch():
        pass
    topic.run(topic.brokers.delete("t"))
    topic.run(topic.brokers.create("t", [1, 2]))
    fill(topic, "t", 0, *range(50, 60))
    assert stream.batch() == []
    assert stream.position == {"t": {"0": 0, "1": 0}}
    batches = [stream.batch() for _ in range(1 if limit is None else 5)]
    assert [value for rows in batches for value in rows] == list(range(50, 60))
    assert stream.batch() == []


def test_a_topic_that_was_created_again_ends_a_query(topic: ThreadedBrokers) -> None:
    stream = Stream(topic, {"subscribe": "t", "startingOffsets": "earliest"})
    stream.batch()
    topic.run(topic.brokers.delete("t"))
    topic.run(topic.brokers.create("t", [1, 2]))
    fill(topic, "t", 0, *range(50, 60))
    message = "topic t was deleted and created again after t-0 was read up to 5; a restart cannot notice this, so read"
    with pytest.raises(DataLossError, match=message):
        stream.batch()
    with pytest.raises(DataLossError, match=message):
        stream.batch()


def test_a_waiting_batch_still_notices_a_topic_that_was_created_again(topic: ThreadedBrokers) -> None:
    topic.run(topic.brokers.create("u", [1]))
    fill(topic, "u", 0, 30)
    options = {"subscribe": "t,u", "startingOffsets": "earliest", "failOnDataLoss": "false"}
    stream = Stream(topic, options | {"minOffsetsPerTrigger": "10"})
    assert len(stream.batch()) == 8, "the first batch with records does not wait"
    topic.run(topic.brokers.delete("u"))
    topic.run(topic.brokers.create("u", [1]))
    fill(topic, "u", 0, 40, 41, 42)
    fill(topic, "t", 0, 5)
    assert stream.batch() == []
    fill(topic, "t", 0, *range(6, 15))
    found = stream.batch()
    while rows := stream.batch():
        found += rows
    assert 40 not in found, "three records wait for more"
    fill(topic, "u", 0, *range(43, 50))
    assert stream.batch() == list(range(40, 50))


def test_a_topic_that_is_created_again_after_its_deletion_was_noticed_is_read_from_its_start(
    topic: ThreadedBrokers,
) -> None:
    topic.run(topic.brokers.create("u", [1]))
    fill(topic, "u", 0, 30)
    options = {"subscribe": "t,u", "startingOffsets": "earliest", "failOnDataLoss": "false"}
    stream = Stream(topic, options)
    stream.batch()
    topic.run(topic.brokers.delete("u"))
    assert stream.batch() == []
    assert stream.position == {"t": {"0": 5, "1": 2}, "u": {"0": 1}}
    topic.run(topic.brokers.create("u", [1]))
    fill(topic, "u", 0, 40, 41, 42)
    assert stream.batch() + stream.batch() == [40, 41, 42]


def test_a_topic_that_was_created_again_before_it_was_read_is_no_loss(topic: ThreadedBrokers) -> None:
    topic.run(topic.brokers.create("u", [1]))
    stream = Stream(topic, {"subscribe": "u", "startingOffsets": "earliest"})
    stream.begin()
    topic.run(topic.brokers.delete("u"))
    topic.run(topic.brokers.create("u", [1]))
    assert stream.batch() == []
    fill(topic, "u", 0, 7)
    assert stream.batch() == [7]
    assert stream.batch() == []


def test_a_topic_that_lost_a_partition_and_got_another_id_is_read_on_from_its_position(topic: ThreadedBrokers) -> None:
    stream = Stream(topic, {"subscribe": "t", "startingOffsets": "earliest", "failOnDataLoss": "false"})
    stream.batch()
    topic.run(topic.brokers.remove_last_partition("t"))
    fill(topic, "t", 0, 5)
    assert stream.batch() == [5]


@pytest.mark.parametrize("noticed", [False, True])
def test_a_topic_that_apache_kafka_creates_again_with_fewer_partitions_is_read_from_its_start(
    topic: ThreadedBrokers, monkeypatch: pytest.MonkeyPatch, noticed: bool
) -> None:
    """Its leader epochs begin at 0 again, and partitions of an existing topic cannot be removed there."""
    monkeypatch.setattr(handlers, "HANDLERS", {api: each for api, each in handlers.HANDLERS.items() if api < 10_000})
    stream = Stream(topic, {"subscribe": "t", "startingOffsets": "earliest", "failOnDataLoss": "false"})
    stream.batch()
    topic.run(topic.brokers.delete("t"))
    if noticed:
        assert stream.batch() == []
    topic.run(topic.brokers.create("t", [1], first_epoch=0))
    fill(topic, "t", 0, *range(50, 60))
    assert stream.batch() + stream.batch() == list(range(50, 60))


def test_a_leader_that_is_killed_delays_a_batch(topic: ThreadedBrokers) -> None:
    stream = Stream(topic, {"subscribe": "t", "startingOffsets": "earliest"})
    stream.batch()
    topic.run(topic.brokers.kill(1))
    moving = asyncio.run_coroutine_threadsafe(move_later(topic), topic.loop)
    fill(topic, "t", 1, 12)
    assert stream.batch() == [12]
    moving.result(60)


async def move_later(cluster: ThreadedBrokers) -> None:
    await asyncio.sleep(0.5)  # meanwhile, the stream finds no leader
    await cluster.brokers.move("t", 0, 2)


def test_a_cluster_without_brokers_fails_after_the_poll_timeout(topic: ThreadedBrokers) -> None:
    stream = Stream(topic, {"subscribe": "t", "kafkaConsumer.pollTimeoutMs": "300"})
    stream.batch()
    topic.run(topic.brokers.kill(1))
    topic.run(topic.brokers.kill(2))
    with pytest.raises(Exception, match=r"given up after 0\.3 s"):
        stream.batch()


def test_a_query_continues_from_an_offset_of_sparks_own_source(topic: ThreadedBrokers) -> None:
    stream = Stream(topic, {"subscribe": "t"}, position={"t": {"1": 1, "0": 4}})  # it does not order partitions
    assert stream.batch() == [4, 11]
    assert stream.position == {"t": {"0": 5, "1": 2}}


def test_a_batch_without_records_asks_no_broker(topic: ThreadedBrokers) -> None:
    stream = Stream(topic, {"subscribe": "t"})
    topic.run(topic.brokers.kill(1))
    topic.run(topic.brokers.kill(2))
    assert stream.reader.partitions({"t": {"0": 5}}, {"t": {"0": 5}}) == []


def test_unknown_topics_and_partitions_are_refused(topic: ThreadedBrokers) -> None:
    with pytest.raises(OptionError, match="topic nope does not exist"):
        Stream(topic, {"subscribe": "t,nope"}).batch()
    with pytest.raises(OptionError, match="option assign names t-7, but the topic has 2 partitions"):
        Stream(topic, {"assign": '{"t":[7]}'}).batch()
    with pytest.raises(OptionError, match="option startingOffsets lacks t-1"):
        Stream(topic, {"subscribe": "t", "startingOffsets": '{"t":{"0":1}}'}).batch()


def test_a_newly_assigned_partition_of_a_deleted_topic_is_an_error_or_a_warning(
    topic: ThreadedBrokers, caplog: pytest.LogCaptureFixture
) -> None:
    warn_once.cache_clear()
    stream = Stream(topic, {"assign": '{"t":[0]}'})
    stream.batch()
    topic.run(topic.brokers.delete("t"))
    stream.restart(assign='{"t":[0,1]}')
    refusal = "option assign names t-1, but the topic has 0 partitions"
    with pytest.raises(OptionError, match=refusal):
        stream.batch()
    stream.restart(failOnDataLoss="false")
    assert stream.batch() == []
    assert caplog.messages == [refusal, "t-0 does not exist any more; it was read up to 5"]


@pytest.fixture
def refused() -> RefusedStream:
    options = {"bootstrap.servers": "h:1", "subscribe": "t", "endingoffsets": "latest"}
    reader = DefaultSource(options).streamReader(read_schema(COLUMNS[:-1]))
    assert isinstance(reader, RefusedStream)
    found: RefusedStream = pickle.loads(pickle.dumps(reader))
    return found


def test_each_method_of_a_stream_reader_refuses_bad_options(refused: RefusedStream) -> None:
    message = "option endingOffsets cannot be used in a stream, which has no end"
    for hook in (
        refused.initialOffset,
        refused.latestOffset,
        lambda: refused.partitions(None, None),
        lambda: refused.read(None),  # type: ignore[arg-type]
    ):
        with pytest.raises(OptionError, match=f"^{message}$"):
            hook()
    refused.stop()


@pytest.fixture
def behind(topic: ThreadedBrokers) -> ThreadedBrokers:
    """Broker 1 does not know the topic u with the records 30 and 31, and is asked first."""
    topic.run(topic.brokers.hold_back(1))
    topic.run(topic.brokers.create("u", [2]))
    fill(topic, "u", 0, 30, 31)
    return topic


def test_a_topic_that_one_broker_does_not_know_is_not_treated_as_deleted(behind: ThreadedBrokers) -> None:
    stream = Stream(behind, {"subscribe": "t,u", "startingOffsets": "earliest"})
    assert sorted(stream.batch()) == [0, 1, 2, 3, 4, 10, 11, 30, 31]
    for _ in range(4):
        assert stream.batch() == [], "each metadata request may be answered by any broker"


def test_a_batch_is_repeated_whole_although_one_broker_does_not_know_its_topic(behind: ThreadedBrokers) -> None:
    stream = Stream(behind, {"subscribe": "t,u", "failOnDataLoss": "false"})
    assert stream.rows({"u": {"0": 0}}, {"u": {"0": 2}}) == [30, 31]


def slow_look(monkeypatch: pytest.MonkeyPatch, number: int) -> Iterator[int]:
    """Let the brokers take longer for one answer about topics than a partition must be missing to count as deleted.

    number: the number of the answer, from 1; 0: none.  Return the iterator that numbers the answers.
    """
    numbers = count(1)

    async def look(options: ReadOptions, others: Collection[str] = ()) -> Found:
        if next(numbers) == number:
            await asyncio.sleep(2 * lookup.DELETED_AFTER_S)
        return await look_up(options, others)

    monkeypatch.setattr("pyspark_quorumlog.stream_reading.look_up", look)
    return numbers


def test_one_late_answer_does_not_prove_that_a_topic_was_deleted(
    behind: ThreadedBrokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No broker answered for a while, and the first one that restarts does not know the topic yet."""
    slow_look(monkeypatch, 1)
    stream = Stream(behind, {"subscribe": "t,u", "failOnDataLoss": "false"})
    assert stream.rows({"u": {"0": 0}}, {"u": {"0": 2}}) == [30, 31]


def test_a_deleted_topic_does_not_hide_a_topic_that_one_broker_does_not_know(
    behind: ThreadedBrokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow_look(monkeypatch, 3)  # of the broker that does not know u
    stream = Stream(behind, {"subscribe": "t,u", "failOnDataLoss": "false"})
    assert stream.rows({"u": {"0": 0}, "v": {"0": 0}}, {"u": {"0": 2}, "v": {"0": 5}}) == [30, 31]


@pytest.mark.parametrize("poll_timeout_ms", ["700", "30000"])
def test_a_batch_is_repeated_whole_although_no_broker_knows_its_topic_for_some_time(
    behind: ThreadedBrokers, monkeypatch: pytest.MonkeyPatch, poll_timeout_ms: str
) -> None:
    monkeypatch.setattr("pyspark_quorumlog.stream_reading.DELETED_AFTER_S", 20.0)
    current = behind.brokers.shared.image
    for replicas in behind.brokers.replicas.values():
        replicas.behind = behind.brokers.replicas[1].behind

    async def catch_up() -> None:
        await asyncio.sleep(1.5)  # meanwhile, no broker knows the topic; the test has no way to await a question
        assert behind.brokers.shared.image is current
        for replicas in behind.brokers.replicas.values():
            replicas.behind = None

    catching_up = asyncio.run_coroutine_threadsafe(catch_up(), behind.loop)
    options = {"subscribe": "t,u", "failOnDataLoss": "false", "kafkaConsumer.pollTimeoutMs": poll_timeout_ms}
    stream = Stream(behind, options)
    assert stream.rows({"u": {"0": 0}}, {"u": {"0": 2}}) == [30, 31]
    catching_up.result(60)


def test_a_batch_is_repeated_whole_although_a_topic_left_the_subscription(topic: ThreadedBrokers) -> None:
    topic.run(topic.brokers.create("u", [1]))
    fill(topic, "u", 0, 30)
    stream = Stream(topic, {"subscribe": "t,u", "startingOffsets": "earliest"})
    start = stream.begin()
    end = stream.reader.latestOffset(start, ReadAllAvailable())
    stream.restart(subscribe="t")
    assert stream.rows(start, end) == [0, 1, 2, 3, 4, 10, 11, 30]
    stream.position = end
    with pytest.raises(DataLossError, match="u-0 is not part of the query any more; it was read up to 1"):
        stream.batch()
    stream.restart(failOnDataLoss="false")
    for _ in range(3):
        assert stream.batch() == []
    assert stream.position == {"t": {"0": 5, "1": 2}, "u": {"0": 1}}
    stream.restart(subscribe="t,u")
    fill(topic, "u", 0, 31)
    assert stream.batch() == [31], "the topic belongs to the query again, and was read up to its position"


def test_a_topic_that_left_the_subscription_may_be_offline(topic: ThreadedBrokers) -> None:
    """Perhaps it was removed from the options for this reason."""
    topic.run(topic.brokers.create("u", [1]))
    fill(topic, "u", 0, 30)
    stream = Stream(topic, {"subscribe": "t,u", "startingOffsets": "earliest"})
    stream.batch()
    topic.run(topic.brokers.move("u", 0, -1))
    stream.restart(subscribe="t", failOnDataLoss="false", **{"kafkaConsumer.pollTimeoutMs": "5000"})
    fill(topic, "t", 0, 5)
    assert stream.batch() == [5]
    assert stream.position == {"t": {"0": 6, "1": 2}, "u": {"0": 1}}


def test_a_topic_that_left_the_subscription_and_was_created_again_delays_no_batch(
    topic: ThreadedBrokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic.run(topic.brokers.create("u", [1]))
    fill(topic, "u", 0, 30)
    stream = Stream(topic, {"subscribe": "t,u", "startingOffsets": "earliest"})
    stream.batch()
    topic.run(topic.brokers.delete("u"))
    topic.run(topic.brokers.create("u", [1]))
    stream.restart(subscribe="t", failOnDataLoss="false")
    looks = slow_look(monkeypatch, 0)
    for _ in range(3):
        assert stream.batch() == []
    assert next(looks) == 4, "the end of u is below its position, but nothing is read from it"


def test_a_pattern_does_not_match_internal_topics(topic: ThreadedBrokers) -> None:
    topic.run(topic.brokers.create("__consumer_offsets", [1]))
    stream = Stream(topic, {"subscribePattern": ".*", "startingOffsets": "earliest"})
    assert stream.begin() == {"t": {"0": 0, "1": 0}}
    assert list(Stream(topic, {"subscribe": "__consumer_offsets"}).begin()) == ["__consumer_offsets"]


@pytest.mark.parametrize(("pattern", "expected"), [("x", ["ax", "x", "xa"]), ("^x$", ["x"]), ("^x", ["x", "xa"])])
def test_a_pattern_matches_any_part_of_a_name(topic: ThreadedBrokers, pattern: str, expected: list[str]) -> None:
    for name in ("ax", "x", "xa"):
        topic.run(topic.brokers.create(name, [1]))
    assert list(Stream(topic, {"subscribePattern": pattern}).begin()) == expected


def test_a_topic_that_is_deleted_while_a_batch_is_planned_is_a_loss(
    topic: ThreadedBrokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("quorumlog.client.partitions.UNKNOWN_TOPIC_TIMEOUT_S", 0.1)
    topic.run(topic.brokers.create("u", [1]))
    fill(topic, "u", 0, 30)
    stream = Stream(topic, {"subscribe": "t,u", "startingOffsets": "earliest", "kafkaConsumer.pollTimeoutMs": "4000"})
    start = stream.begin()
    end = stream.reader.latestOffset(start, ReadAllAvailable())
    topic.run(topic.brokers.delete("u"))
    with pytest.raises(DataLossError, match="u-0 does not exist any more; the batch ends at its offset 1"):
        stream.rows(start, end)
    stream.restart(failOnDataLoss="false")
    assert stream.rows(start, end) == [0, 1, 2, 3, 4, 10, 11]


def test_a_short_poll_timeout_notices_a_deleted_topic_as_well(topic: ThreadedBrokers) -> None:
    topic.run(topic.brokers.create("u", [1]))
    fill(topic, "u", 0, 30)
    options = {"subscribe": "t,u", "startingOffsets": "earliest", "failOnDataLoss": "false"}
    stream = Stream(topic, options | {"kafkaConsumer.pollTimeoutMs": "400"})
    start = stream.begin()
    end = stream.reader.latestOffset(start, ReadAllAvailable())
    topic.run(topic.brokers.delete("u"))
    assert stream.rows(start, end) == [0, 1, 2, 3, 4, 10, 11]


def test_a_limited_stream_skips_deleted_offsets_at_once(topic: ThreadedBrokers) -> None:
    options = {"subscribe": "t", "startingOffsets": "earliest", "maxOffsetsPerTrigger": "4", "failOnDataLoss": "false"}
    stream = Stream(topic, options)
    stream.begin()
    for value in range(5, 100):
        fill(topic, "t", 0, value)
    topic.run(topic.brokers.cut_front("t", 0, 96))
    assert stream.batch() == [96, 97, 10]
    assert stream.position == {"t": {"0": 98, "1": 1}}
    assert stream.batch() == [98, 99, 11]
