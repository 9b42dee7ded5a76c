"""Jobs over the transactions of other clients: committed, aborted and open ones, at both isolation levels.

Letters in the values show what a record belongs to: a committed (c), aborted (a) or open (o) transaction, or none (n).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pyspark.sql import DataFrame

from tests.differential.harness import KAFKA, NOW_MS, OURS, Job, Outcome, Record, Side, Stream, Transaction
from tests.differential.jobs import EARLIEST

COMMITTED = {"kafka.isolation.level": "read_committed"}
UNCOMMITTED = {"kafka.isolation.level": "read_uncommitted"}
LEVELS: Mapping[str, Mapping[str, str]] = {"committed": COMMITTED, "uncommitted": UNCOMMITTED}
HASTY = {"kafkaConsumer.pollTimeoutMs": "3000"}
"""For tasks that wait for records in vain."""


def records(partition: int, *values: str) -> list[Record]:
    """Records whose timestamps are as many milliseconds after NOW_MS as the number in the value says."""
    return [Record(value.encode(), partition=partition, after_ms=int(value[1:])) for value in values]


def transactions(side: Side) -> Transaction:
    """Create t, and return its open transaction.  M is a marker; numbers in values are offsets.

    t-0: c0 c1 M, a3 a4 M, n6, c7 a8 c9 M M: two transactions overlap.
    t-1: a0 a1 M: no committed record.
    t-2: c0 M, o2 o3, n4: the last stable offset is 2, the high watermark 5.
    """
    side.create("t", 3)
    side.commit("t", *records(0, "c0", "c1"), *records(2, "c0"))
    side.abort("t", *records(0, "a3", "a4"), *records(1, "a0", "a1"))
    side.produce("t", *records(0, "n6"))
    committed = side.begin("t", *records(0, "c7"))
    aborted = side.begin("t", *records(0, "a8"))
    committed.add(*records(0, "c9"))
    committed.commit()
    aborted.abort()
    undecided = side.begin("t", *records(2, "o2", "o3"))
    side.produce("t", *records(2, "n4"))
    return undecided


def found(side: Side, frame: DataFrame) -> list[Any]:
    """Return place and value of the rows."""
    rows = side.rows(frame.select("topic", "partition", "offset", "value"))
    return [[row["partition"], row["offset"], row["value"]] for row in rows]


def offsets(*by_partition: int) -> str:
    return '{"@t":{' + ",".join(f'"{index}":{offset}' for index, offset in enumerate(by_partition)) + "}}"


def batch_rows(side: Side) -> Outcome:
    """Compare all columns; the level is also left to the connector."""
    transactions(side)
    levels = {"default": {}, **LEVELS}
    return {
        name: side.rows(side.read(subscribe="@t", includeHeaders="true", **level)) for name, level in levels.items()
    }


def batch_ranges(side: Side) -> Outcome:
    """Compare ranges that begin, end or consist of markers and aborted records."""
    undecided = transactions(side)
    ranges = {
        "from markers": {"startingOffsets": offsets(2, 2, 1)},
        "up to markers": {"endingOffsets": offsets(2, 2, 1)},
        "up to the end of markers": {"endingOffsets": offsets(3, 3, 2)},
        "only markers": {"startingOffsets": offsets(2, 2, 1), "endingOffsets": offsets(3, 3, 2)},
        "only aborted": {"startingOffsets": offsets(3, 0, 1), "endingOffsets": offsets(5, 2, 2)},
        "inside transactions": {"startingOffsets": offsets(4, 1, 0), "endingOffsets": offsets(9, 2, 1)},
        "only the last marker": {"startingOffsets": offsets(11, 2, 1)},
        "small tasks": {"minPartitions": "20"},
        "up to an open record": {"endingOffsets": offsets(12, 3, 3), **HASTY},
        "up to an open record, losses permitted": {
            "endingOffsets": offsets(12, 3, 3),
            "failOnDataLoss": "false",
            **HASTY,
        },
        "from an open record": {"startingOffsets": offsets(12, 3, 3), **HASTY},
        "from the high watermark": {"startingOffsets": offsets(12, 3, 5), **HASTY},
        "since an aborted record": {"startingTimestamp": str(NOW_MS + 1), "assign": '{"@t":[0,1]}'},
        "since an open record": {"startingTimestamp": str(NOW_MS + 3), "assign": '{"@t":[2]}'},
        "until an open record": {"endingTimestamp": str(NOW_MS + 3)},
    }

    def read(options: Mapping[str, str]) -> list[Any]:
        subscription = {} if "assign" in options else {"subscribe": "@t"}
        return found(side, side.read(**subscription, **options))

    def look(when: str, *cases: str) -> Outcome:
        asked = {
            f"{case}, {name}, {when}": {**ranges[case], **level} for name, level in LEVELS.items() for case in cases
        }
        return side.attempt_each(asked, read)

    before = look("open", *ranges)
    undecided.abort()
    return before | look("aborted", "up to an open record", "from an open record", "since an open record")


def batch_over_deleted_records(side: Side) -> Outcome:
    """The log begins inside an aborted transaction, then between two transactions that overlap."""
    transactions(side)
    outcome: Outcome = {}
    for before in (4, 8, 10, 12):
        side.delete_records("t", 0, before)
        for name, level in LEVELS.items():
            outcome[f"from {before}, {name}"] = found(side, side.read(subscribe="@t", **level))
    return outcome


def stream_of(level: str, trigger: Mapping[str, Any]) -> Job:
    """A stream while a transaction is open, after its end, and after more transactions."""

    def run(side: Side) -> Outcome:
        undecided = transactions(side)
        stream = Stream(side, subscribe="@t", maxOffsetsPerTrigger="5", minPartitions="4", **EARLIEST, **LEVELS[level])
        runs, positions, latest = [], [], []

        def go() -> None:
            runs.append(stream.run(**trigger))
            positions.append(stream.position)
            latest.append(stream.latest)

        go()
        undecided.commit()
        go()
        side.abort("t", *records(1, "a3"))
        go()
        side.commit("t", *records(1, "c5"))
        go()
        return {"runs": runs, "batches": stream.batches(), "positions": positions, "latest": latest}

    return Job(f"a stream over transactions, {level}, {next(iter(trigger), 'availableNow')}", run)


def stream_from_the_latest_offsets(side: Side) -> Outcome:
    """A query that begins while a transaction is open."""
    outcome: Outcome = {}
    undecided = transactions(side)
    streams = {name: Stream(side, subscribe="@t", **level) for name, level in LEVELS.items()}
    for name, stream in streams.items():
        stream.checkpoint = side.folder / name
        outcome[f"{name}, before"] = [stream.run(), stream.position]
    undecided.commit()
    side.produce("t", *records(2, "n6"))
    for name, stream in streams.items():
        outcome[name] = [stream.run(), stream.batches()]
    return outcome


def stream_with_a_minimum(side: Side) -> Outcome:
    """Count the offsets of markers, aborted records and open transactions."""
    transactions(side)
    outcome: Outcome = {}
    for name, level in LEVELS.items():
        stream = Stream(side, subscribe="@t", minOffsetsPerTrigger="3", maxTriggerDelay="1h", **EARLIEST, **level)
        stream.checkpoint = side.folder / name
        outcome[name] = [stream.run(once=True), stream.run(once=True), stream.batches()]
    return outcome


def stream_that_is_repeated(side: Side) -> Outcome:
    """Batches that did not finish are run again after a restart, although a transaction has ended since."""
    undecided = transactions(side)
    outcome: Outcome = {}
    streams = {name: Stream(side, subscribe="@t", **EARLIEST, **level) for name, level in LEVELS.items()}
    for name, stream in streams.items():
        stream.checkpoint = side.folder / name
        stream.run()
        stream.uncommit(max(stream.rows))
        stream.rows.clear()
    undecided.abort()
    for name, stream in streams.items():
        outcome[name] = [stream.run(), stream.batches()]
    return outcome


def stream_over_deleted_records(side: Side) -> Outcome:
    """The log begins inside an aborted transaction at a position that was not read yet."""
    transactions(side)
    outcome: Outcome = {}
    streams = {
        name: Stream(side, subscribe="@t", startingOffsets=offsets(3, 0, 0), **level) for name, level in LEVELS.items()
    }
    side.delete_records("t", 0, 4)
    for name, stream in streams.items():
        stream.checkpoint = side.folder / name
        runs = [stream.run()]
        stream.options["failOnDataLoss"] = "false"
        outcome[name] = [*runs, stream.run(), stream.values(), stream.position]
    return outcome


def handed_over(first: str, second: str, level: str) -> Job:
    """A query that begins with one connector while a transaction is open, and continues with the other one."""

    def run(side: Side) -> Outcome:
        undecided = transactions(side)
        stream = Stream(side, subscribe="@t", maxOffsetsPerTrigger="4", **EARLIEST, **LEVELS[level])
        runs = []

        def go(connector: str) -> None:
            stream.connector = connector if side.connector == OURS else KAFKA
            runs.append(stream.run())

        go(first)
        side.abort("t", *records(1, "a3"))
        go(second)
        undecided.commit()
        go(first)
        side.commit("t", *records(1, "c5"), *records(0, "c12"))
        go(second)
        return {"runs": runs, "position": stream.position, "values": stream.values()}

    return Job(f"a checkpoint of {first} that {second} continues over transactions, {level}", run)


def stream_that_becomes_committed(side: Side) -> Outcome:
    """A query read uncommitted records, so its position is beyond the last stable offset of the other level."""
    undecided = transactions(side)
    stream = Stream(side, subscribe="@t", **EARLIEST, **UNCOMMITTED)
    stream.run()
    stream.options |= COMMITTED
    outcome: Outcome = {"open": [stream.run(), stream.position]}
    undecided.commit()
    side.commit("t", *records(2, "c6"))
    outcome["decided"] = [stream.run(), stream.position, stream.values()]
    return outcome


TRANSACTION_JOBS: tuple[Job, ...] = (
    Job("transactions in a batch", batch_rows, {"default": "reads the records of all transactions"}),
    Job(
        "ranges over transactions",
        batch_ranges,
        {
            "from an open record, committed, open": "refuses a batch that starts above the last stable offset",
            "from the high watermark, committed, open": "refuses a batch that starts above the last stable offset",
            "up to an open record, losses permitted, committed, open": "leaves out records of open transactions",
        },
    ),
    Job("a batch over transactions with deleted records", batch_over_deleted_records),
    *(stream_of(level, trigger) for level in LEVELS for trigger in ({}, {"once": True})),
    Job("a stream from the latest offsets beside an open transaction", stream_from_the_latest_offsets),
    Job("a stream with a minimum over transactions", stream_with_a_minimum),
    Job("a stream over transactions whose batch is repeated", stream_that_is_repeated),
    Job("a stream over transactions with deleted records", stream_over_deleted_records),
    *(handed_over(*pair, level) for pair in ((KAFKA, OURS), (OURS, KAFKA)) for level in LEVELS),
    Job(
        "a stream over transactions that becomes committed",
        stream_that_becomes_committed,
        dict.fromkeys(("open", "decided"), "continues with `read_committed` above the last stable offset"),
    ),
)
