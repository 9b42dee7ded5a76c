"""The options of the data source: their names, values and defaults, and the tables of docs/spark.md made from them.

`REWRITE=1 ./dev test tests/unit/pyspark_quorumlog/test_docs.py` writes the tables into the page, between its markers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple


class Option(NamedTuple):
    """One row of a table.  names: alternatives that exclude each other, or settings that are explained together.

    value: the meaning, as Markdown.  defaults: by name, as a user would write them; other names have no default.
    shown: the default in words, if `defaults` does not show it.
    """

    names: tuple[str, ...]
    value: str
    defaults: Mapping[str, str] = {}
    shown: str | None = None

    @property
    def shown_default(self) -> str:
        return ", ".join(self.defaults.values()) if self.shown is None else self.shown


BOOTSTRAP = ("bootstrap.servers", "kafka.bootstrap.servers")
COLUMNS = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType", "headers")
"""The columns of a read, in their order."""

_CONNECTION = Option(
    ("kafka.request.timeout.ms", "kafka.client.id"),
    "how long one request may take before it is sent again; the name of the client in the logs of brokers",
    {"kafka.request.timeout.ms": "30000", "kafka.client.id": "quorumlog-spark"},
)

READING: Sequence[Option] = (
    Option(
        ("subscribe", "assign", "subscribePattern"),
        "`a,b` / `{\"a\":[0,1]}` / a regular expression of Python's `re`, which may match any part of a topic's name "
        "(`^` and `$` are its start and end); exactly one of the three. A pattern matches no internal topics, like "
        "`__consumer_offsets`",
    ),
    Option(
        ("startingOffsets",),
        '`earliest`, in a stream also `latest`, or `{"a":{"0":23,"1":-2}}` for every partition (-2: earliest; in a '
        "stream also -1: latest)",
        {"startingOffsets": "earliest"},
        shown="earliest; in a stream latest",
    ),
    Option(
        ("endingOffsets",),
        '`latest`, or `{"a":{"0":40,"1":-1}}` for every partition (-1: latest); exclusive, and not below the start',
        {"endingOffsets": "latest"},
    ),
    Option(("startingTimestamp", "endingTimestamp"), "ms since 1970; take precedence over all other positions"),
    Option(
        ("startingOffsetsByTimestamp", "endingOffsetsByTimestamp"),
        '`{"a":{"0":1700000000000}}`, ms since 1970 for every partition; take precedence over offsets',
    ),
    Option(
        ("startingOffsetsByTimestampStrategy",),
        "if all records are older than the timestamp: `error`: fail; `latest`: start at the end of the log",
        {"startingOffsetsByTimestampStrategy": "error"},
    ),
    Option(
        ("failOnDataLoss",),
        "true: fail if requested records are missing; false: warn and read the remaining ones",
        {"failOnDataLoss": "true"},
    ),
    Option(
        ("minPartitions", "maxRecordsPerPartition"),
        "more tasks than partitions: `maxRecordsPerPartition` limits the offsets of each task; if that gives fewer "
        "tasks than `minPartitions`, the largest tasks are split further",
        shown="one task for each partition",
    ),
    Option(("includeHeaders",), "adds the column `headers`", {"includeHeaders": "false"}),
    Option(
        ("columns",),
        "the columns to read, like `value,offset`. The others are not part of the rows, and are never decoded. "
        "Spark does not report to sources in Python which columns a query uses, so this option saves time if the query "
        "does not use all columns",
        {"columns": ",".join(COLUMNS[:-1])},
        shown="all; `headers` only with `includeHeaders`",
    ),
    Option(
        ("kafkaConsumer.pollTimeoutMs",),
        "the time limit of two waits. A task or the driver repeats a request until a leader answers it. A task also "
        "repeats a fetch that returns no records although its range must have more, for example until a transaction "
        "is decided. The second wait begins with the first empty answer, so a task may wait for about twice this time",
        {"kafkaConsumer.pollTimeoutMs": "120000"},
    ),
    Option(("kafka.fetch.max.bytes",), "size of a fetch, up to 64 MiB", {"kafka.fetch.max.bytes": "8388608"}, "8 MiB"),
    _CONNECTION,
    Option(
        ("kafka.isolation.level",),
        "`read_committed`: leave out the records of aborted transactions, and end before the first transaction that is "
        "not decided yet; `read_uncommitted`: read all records",
        shown="`read_committed` from brokers of quorumlog, `read_uncommitted` from others",
    ),
    Option(
        ("fetchOffset.numRetries", "fetchOffset.retryIntervalMs"),
        "how often, and at which interval (at least 50 ms), the driver asks again before it treats a topic or "
        "partition in the options as missing, or a log as shorter than before. It asks another broker each time. A "
        "partition that the query has already read counts as deleted after no broker has known it for 10 seconds",
        {"fetchOffset.numRetries": "3", "fetchOffset.retryIntervalMs": "1000"},
    ),
)
STREAMS: Sequence[Option] = (
    Option(
        ("maxOffsetsPerTrigger",),
        "the largest number of offsets in a batch. Each partition gets a share in proportion to its unread records, "
        "but at least one offset if it has any",
        shown="none",
    ),
    Option(("minOffsetsPerTrigger",), "a batch waits until this many records are available", shown="none"),
    Option(
        ("maxTriggerDelay",),
        "the longest such wait, like `30s`, `15m` or `1h`, counted from the last batch with records",
        {"maxTriggerDelay": "15m"},
    ),
)
WRITING: Sequence[Option] = (
    Option(("topic",), "the topic of all rows", shown="the column"),
    Option(("kafka.acks",), "`all`, or `1`: the leader alone", {"kafka.acks": "all"}),
    Option(("kafka.compression.type",), "none, gzip, snappy, lz4, zstd", {"kafka.compression.type": "none"}),
    Option(
        ("kafka.batch.size",),
        "bytes of a batch before compression, from 1024 to 64 MiB",
        {"kafka.batch.size": "1000000"},
    ),
    Option(("kafka.delivery.timeout.ms",), "how long a batch is retried", {"kafka.delivery.timeout.ms": "120000"}),
    _CONNECTION,
    Option(("maxRecordsPerSecond",), "limits the rate of each task", shown="none"),
    Option(
        ("atomic",),
        "true: all rows of a batch become visible together, and exactly once; false: each row becomes visible as soon "
        "as it is written, and a repeated task writes its rows again",
        shown="true; false for brokers that are not of quorumlog, and with `kafka.acks=1`",
    ),
    Option(
        ("transactionScope",),
        "a stream with `atomic`: the name under which the brokers store the number of its last batch, up to 249 bytes",
        shown="the id of the query, which its checkpoint holds",
    ),
    Option(
        ("resetTransactionScope",),
        "true: take `transactionScope` over from another query, and delete the number of its last batch; it has no "
        "effect on a scope that this query already owns",
        {"resetTransactionScope": "false"},
    ),
    Option(
        ("kafka.transaction.timeout.ms",),
        "with `atomic`: the time from a task's first row within which the batch must be committed; at most "
        "`transaction.max.timeout.ms` of the cluster",
        {"kafka.transaction.timeout.ms": "900000"},
    ),
)
_TABLES: Mapping[str, Sequence[Option]] = {"reading": READING, "streams": STREAMS, "writing": WRITING}


def names_of(options: Sequence[Option]) -> tuple[str, ...]:
    return tuple(name for option in options for name in option.names)


def table(options: Sequence[Option]) -> str:
    """Return the options as a table in Markdown."""
    lines = ["| option | value | default |", "|---|---|---|"]
    for option in options:
        separator = " / " if option.names[0] == "subscribe" else ", "  # alternatives
        names = separator.join(f"`{name}`" for name in option.names)
        lines.append(f"| {names} | {option.value} | {option.shown_default} |")
    return "\n".join(lines) + "\n"


def filled(page: str) -> str:
    """Return the page with the tables of this version between its markers."""
    for name, options in _TABLES.items():
        begin, end = f"<!-- options: {name} -->\n", "<!-- end -->\n"
        before, found, rest = page.partition(begin)
        _, closed, after = rest.partition(end)
        assert found, f"the page needs {begin.strip()}"
        assert closed, f"the page needs {end.strip()} after {begin.strip()}"
        page = f"{before}{begin}{table(options)}{end}{after}"
    return page
