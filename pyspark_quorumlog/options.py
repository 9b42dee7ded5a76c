"""The options of the data source, which are checked before any request to a cluster.

They include the options of Spark's Kafka source, so that a user only changes the name of the format.  Spark passes them
with lower-cased names.  An unknown name is an error, which suggests the most similar known name: if a mistyped
`startingOffsets` were silently ignored, the query would read the wrong data.  Options without effect are accepted with
a warning, because Spark's source accepts them.  Unknown settings of Kafka's clients (`kafka.…`) are among them; Kafka's
clients log a warning as well.  All problems are reported together.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from enum import Enum

from pyspark_quorumlog.reference import BOOTSTRAP, COLUMNS, READING, STREAMS, WRITING, names_of
from pyspark_quorumlog.warn import warn_once
from quorumlog.errors import ConfigError
from quorumlog.runtime.addresses import parse_target
from quorumlog.wire.scope_names import SCOPE_MAX_BYTES, label_problem

EARLIEST = -2
LATEST = -1

TRIGGER_OPTIONS = names_of(STREAMS)
"""Options that only affect a stream."""
READ_OPTIONS = (*BOOTSTRAP, *names_of(READING), *TRIGGER_OPTIONS)
WRITE_OPTIONS = (*BOOTSTRAP, *names_of(WRITING), "kafka.transactional.id")
_IGNORED = ("path",)
_OF_KAFKA = "kafka."
_MISSPELT_FROM = 0.92
"""Similarity, at most 1, from which a setting of Kafka's clients may be a misspelt option of this source.  With a lower
limit, the warning about Kafka's `kafka.fetch.min.bytes` would recommend `kafka.fetch.max.bytes`."""
_OF_SPARK = (
    "checkpointlocation",
    "queryname",
    "asyncprogresstrackingenabled",
    "asyncprogresstrackingcheckpointintervalms",
)
"""Options of Spark's engine, which it passes on to the sink of a stream."""
_OF_TABLE = ("provider", "option.")
"""While Spark creates a table of its catalog, it passes the table's properties as options.  Among them are `provider`,
and each option of the source with the prefix `option.`."""
_DECIDED_BY_SOURCE = (
    *("kafka.auto.offset.reset", "kafka.key.deserializer", "kafka.value.deserializer", "kafka.key.serializer"),
    *("kafka.value.serializer", "kafka.enable.auto.commit", "kafka.interceptor.classes", "kafka.partitioner.class"),
)
_SECURITY = ("kafka.security.", "kafka.sasl.", "kafka.ssl.")
_SECURITY_PROTOCOL = "kafka.security.protocol"
_PLAINTEXT = re.compile("^plaintext://", re.IGNORECASE)
"""A prefix that Kafka's clients accept before HOST:PORT, as brokers are configured with it."""

FETCH_SIZE_BYTES = (1, 64 << 20)
"""Lowest and highest `kafka.fetch.max.bytes`; other values are replaced by the nearest of the two, with a warning."""
BATCH_SIZE_BYTES = (1024, 64 << 20)
"""Lowest and highest `kafka.batch.size`; other values are replaced in the same way."""

SHOWN_MAX = 80
"""Maximum number of characters of a value in an error message."""
_FORM = 'for every partition, like {"a": {"0": 23}}'

_SECONDS = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}

_ESCAPE = re.compile(r"\\.", re.DOTALL)
_ESCAPE_OR_SET = re.compile(r"\\.|\[\^?\]?(?P<contents>(?:\\.|[^\]\\])*)\]", re.DOTALL)
"""Constructs of a regular expression.  contents: those of a set of characters, without a `]` at its start."""

_ISOLATION_LEVELS = {"read_committed": True, "read_uncommitted": False}
COMPRESSIONS = ("none", "gzip", "snappy", "lz4", "zstd")

Partition = tuple[str, int]


class OptionError(ConfigError, ValueError):
    """One or more options of `format("quorumlog")` are invalid; the message names each of them."""

    def __str__(self) -> str:
        """Return the message with the next step, because Spark shows nothing else."""
        return f"{self.message}; {self.next_step}" if self.next_step else self.message


@dataclass(frozen=True, slots=True)
class Positions:
    """The start or end position in each partition.

    everywhere: one offset (or EARLIEST, LATEST) or time for all partitions; None: `by_partition` has one for each.
    by_time: the numbers are ms since 1970; each time names the first record that is not older.
    or_latest: True: a time later than all records means the end.  False: such a time is an error.
    option: the name of the option, for messages.
    """

    everywhere: int | None
    by_partition: Mapping[Partition, int] = field(default_factory=dict)
    by_time: bool = False
    or_latest: bool = False
    option: str = field(default="", compare=False)

    @property
    def may_move(self) -> bool:
        """Return whether another look-up may give a later position, although no record was deleted."""
        return self.or_latest if self.by_time else LATEST in (self.everywhere, *self.by_partition.values())


@dataclass(frozen=True, slots=True)
class TriggerLimits:
    """Limits of a stream's batches.  offsets_min: a batch waits for this many offsets, for at most `delay_max_s`."""

    offsets_max: int | None = None
    offsets_min: int | None = None
    delay_max_s: float = 900.0


class Query(Enum):
    """The purpose of a read, as a phrase for messages.

    ANY: Spark asks for the schema, in the same way for a batch and for a stream.
    """

    ANY = "reading"
    BATCH = "reading a batch"
    STREAM = "reading a stream"


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """The data to read.  Exactly one of `topics`, `pattern`, `assigned` is set."""

    bootstrap: tuple[str, ...]
    topics: tuple[str, ...]
    pattern: str | None
    assigned: tuple[Partition, ...]
    starting: Positions
    ending: Positions
    fail_on_data_loss: bool
    columns: tuple[str, ...]
    """Some of COLUMNS, in the same order."""
    partitions_min: int | None
    records_per_partition_max: int | None
    poll_timeout_s: float
    fetch_size_max_bytes: int
    request_timeout_s: float
    client_id: str
    trigger: TriggerLimits
    lookup_retries: int
    lookup_pause_s: float
    read_committed: bool | None
    """None: true if the brokers are those of quorumlog (`lookup.is_committed_only`)."""


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """The settings of a write.  topic: applies to every row and overrides the column."""

    bootstrap: tuple[str, ...]
    topic: str | None
    acks: int
    compression: str
    batch_size_max_bytes: int
    delivery_timeout_s: float
    request_timeout_s: float
    records_per_second_max: int | None
    client_id: str
    atomic: bool | None
    """None: the write is atomic if the brokers have transaction scopes, as brokers of quorumlog do."""
    scope: str | None
    reset_scope: bool
    transaction_timeout_ms: int


def parse_read(options: Mapping[str, str], query: Query) -> ReadOptions:
    """Return the options of a read.

    Raises:
        OptionError: with all problems; for `Query.ANY`, only with the problems that batches and streams share.
    """
    reader = _Reader(options, READ_OPTIONS, query.value)
    for name in TRIGGER_OPTIONS:
        if query is Query.BATCH:
            reader.without_effect(name, f"when {query.value}")
    for name in ("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp"):
        if query is Query.STREAM and reader.text(name) is not None:
            reader.problem(name, "cannot be used in a stream, which has no end")
    topics, pattern, assigned = _subscription(reader)
    parsed = ReadOptions(
        bootstrap=_bootstrap(reader),
        topics=topics,
        pattern=pattern,
        assigned=assigned,
        starting=_positions(
            reader,
            "starting",
            LATEST if query is Query.STREAM else EARLIEST,
            refused=LATEST if query is Query.BATCH else None,
        ),
        ending=_positions(reader, "ending", LATEST, refused=EARLIEST),
        fail_on_data_loss=reader.flag("failOnDataLoss", True),
        columns=_columns(reader),
        partitions_min=reader.number("minPartitions", None, 1),
        records_per_partition_max=reader.number("maxRecordsPerPartition", None, 1),
        poll_timeout_s=reader.required_number("kafkaConsumer.pollTimeoutMs", 120_000, 1) / 1000,
        fetch_size_max_bytes=reader.clipped_number("kafka.fetch.max.bytes", 8 << 20, FETCH_SIZE_BYTES),
        request_timeout_s=reader.required_number("kafka.request.timeout.ms", 30_000, 100) / 1000,
        client_id=reader.text("kafka.client.id") or "quorumlog-spark",
        trigger=_trigger_limits(reader),
        lookup_retries=reader.required_number("fetchOffset.numRetries", 3, 0),
        lookup_pause_s=reader.required_number("fetchOffset.retryIntervalMs", 1000, 0) / 1000,
        read_committed=_read_committed(reader),
    )
    if not parsed.starting.by_time:
        reader.without_effect("startingOffsetsByTimestampStrategy", "without a starting time")
    if query is Query.STREAM and parsed.trigger.offsets_min is None:
        reader.without_effect("maxTriggerDelay", "without minOffsetsPerTrigger")
    reader.finish(warns=query is not Query.ANY)
    return parsed


def parse_write(options: Mapping[str, str]) -> WriteOptions:
    """Return the options of a write.

    Raises:
        OptionError: with all problems.
    """
    reader = _Reader(options, WRITE_OPTIONS, "writing")
    acks = reader.text("kafka.acks") or "all"
    if acks not in ("all", "-1", "1"):
        reader.problem("kafka.acks", f"is {acks!r}; expected: all or 1 (0 would hide lost records)")
    compression = reader.text("kafka.compression.type") or "none"
    if compression not in COMPRESSIONS:
        reader.problem("kafka.compression.type", f"is {compression!r}; expected: one of {', '.join(COMPRESSIONS)}")
    if reader.text("kafka.transactional.id") is not None:
        reader.problem("kafka.transactional.id", "cannot be set: transactionScope names the transactions of a stream")
    topic = reader.text("topic")
    if topic == "":
        reader.problem("topic", "is empty")
    parsed = WriteOptions(
        bootstrap=_bootstrap(reader),
        topic=topic,
        acks=1 if acks == "1" else -1,
        compression=compression,
        batch_size_max_bytes=reader.clipped_number("kafka.batch.size", 1_000_000, BATCH_SIZE_BYTES),
        delivery_timeout_s=reader.required_number("kafka.delivery.timeout.ms", 120_000, 1) / 1000,
        request_timeout_s=reader.required_number("kafka.request.timeout.ms", 30_000, 100) / 1000,
        records_per_second_max=reader.number("maxRecordsPerSecond", None, 1),
        client_id=reader.text("kafka.client.id") or "quorumlog-spark",
        atomic=_atomic(reader, acks),
        scope=_scope(reader),
        reset_scope=reader.flag("resetTransactionScope", False),
        transaction_timeout_ms=reader.required_number("kafka.transaction.timeout.ms", 900_000, 1000),
    )
    if parsed.reset_scope and parsed.scope is None:
        reader.problem("resetTransactionScope", "needs the option transactionScope")
    if parsed.atomic is False:
        for name in ("transactionScope", "kafka.transaction.timeout.ms"):
            reader.without_effect(name, "with atomic=false or kafka.acks=1")
    reader.finish()
    return parsed


class _Reader:
    """Reads options by their proper names and collects their problems.

    purpose: for messages, like "writing".
    """

    def __init__(self, options: Mapping[str, str], known: Iterable[str], purpose: str) -> None:
        self._options = {name.lower(): value for name, value in options.items()}
        self._problems: list[str] = []
        self._warnings: list[str] = []
        self._refuse_unknown({name.lower(): name for name in known}, purpose)

    def _refuse_unknown(self, known: Mapping[str, str], purpose: str) -> None:
        without_effect = {name.lower(): name for name in (*READ_OPTIONS, *WRITE_OPTIONS)}
        provider, prefix = _OF_TABLE
        if provider in self._options and any(name.startswith(prefix) for name in self._options):
            self._problems.append(
                "a table of Spark's catalog cannot use quorumlog, because Spark does not pass the options of the table "
                "to a source in Python when the table is read; use CREATE TEMPORARY VIEW instead"
            )
            return
        for name in sorted(self._options):
            if name in known or name in _IGNORED or name in _OF_SPARK:
                continue
            if name in _DECIDED_BY_SOURCE:
                self.problem(name, "is set by the data source and cannot be changed")
            elif name == _SECURITY_PROTOCOL and self._options[name].strip().upper() == "PLAINTEXT":
                continue
            elif name.startswith(_SECURITY):
                self.problem(name, "requests security, which this version does not support; nothing was sent")
            elif name in without_effect:
                self.warning(without_effect[name], f"has no effect when {purpose}")
            elif name == "groupidprefix" or name.startswith(_OF_KAFKA):
                near = get_close_matches(name, known, 1, _MISSPELT_FROM)
                self.warning(name, "has no effect" + (f"; did you mean {known[near[0]]}?" if near else ""))
            else:
                near = get_close_matches(name, known, 1)
                self.problem(name, "is unknown" + (f"; did you mean {known[near[0]]}?" if near else ""))

    def problem(self, name: str, what: str) -> None:
        self._problems.append(f"option {name} {what}")

    def without_effect(self, name: str, when: str) -> None:
        """Warn about an option if it is set.  when: the reason for which it has no effect."""
        if self.text(name) is not None:
            self.warning(name, f"has no effect {when}")

    def warning(self, name: str, what: str) -> None:
        self._warnings.append(f"option {name} {what}")

    def finish(self, warns: bool = True) -> None:
        """Raise the problems, or log the warnings that this process has not logged before."""
        if self._problems:
            raise OptionError(*self._problems)
        if warns:
            for text in self._warnings:
                warn_once(text)

    def text(self, name: str) -> str | None:
        value = self._options.get(name.lower())
        return None if value is None else value.strip()

    def flag(self, name: str, default: bool) -> bool:
        value = self.text(name)
        if value is not None and value.lower() not in ("true", "false"):
            self.problem(name, f"is {value!r}; expected: true or false")
        return default if value is None else value.lower() == "true"

    def number(self, name: str, default: int | None, lowest: int, highest: int = 2**63 - 1) -> int | None:
        value = self.text(name)
        if value is None:
            return default
        if not re.fullmatch(r"-?\d{1,19}", value) or not lowest <= int(value) <= highest:
            allowed = f"from {lowest}" if highest == 2**63 - 1 else f"from {lowest} to {highest}"
            self.problem(name, f"is {value!r}; expected: a whole number {allowed}")
            return default
        return int(value)

    def required_number(self, name: str, default: int, lowest: int, highest: int = 2**31 - 1) -> int:
        value = self.number(name, default, lowest, highest)
        assert value is not None
        return value

    def duration_s(self, name: str, default: float) -> float:
        """Return a time like 15m in seconds; a number without a unit is milliseconds, as in Spark."""
        value = self.text(name)
        if value is None:
            return default
        match = re.fullmatch(r"(\d{1,15})\s*([a-z]*)", value.lower())
        if match is None or (match[2] or "ms") not in _SECONDS:
            self.problem(name, f"is {value!r}; expected: a time like 500ms, 30s, 15m, 1h or 1d")
            return default
        return int(match[1]) * _SECONDS[match[2] or "ms"]

    def clipped_number(self, name: str, default: int, bounds: tuple[int, int]) -> int:
        """Return the number, or the nearest of `bounds` with a warning."""
        value = self.required_number(name, default, 0)
        clipped = min(max(value, bounds[0]), bounds[1])
        if clipped != value:
            self.warning(name, f"is {value}, outside of {bounds[0]} to {bounds[1]}: {clipped} is used")
        return clipped

    def parsed_json(
        self, name: str, convert: Callable[[object], dict[Partition, int]], expected: str
    ) -> dict[Partition, int]:
        """Convert JSON; a ValueError of `convert` becomes a problem with option, value and `expected`."""
        text = self.text(name) or ""
        shown = repr(text if len(text) <= SHOWN_MAX else text[:SHOWN_MAX] + "…")
        try:
            value = json.loads(text)
        except json.JSONDecodeError as error:
            where = "it is empty" if not text else f"this is not JSON at character {error.pos + 1}"
            self.problem(name, f"is {shown}: {where}; expected {expected}")
            return {}
        except (ValueError, RecursionError):  # a number of 5,000 digits; ten thousand brackets
            self.problem(
                name, f"is {shown}: this JSON is nested too deeply, or a number is too long; expected {expected}"
            )
            return {}
        try:
            return convert(value)
        except ValueError as error:
            self.problem(name, f"is {shown}: {error}; expected {expected}")
            return {}


def _bootstrap(reader: _Reader) -> tuple[str, ...]:
    given = {reader.text(name) for name in ("bootstrap.servers", "kafka.bootstrap.servers")} - {None}
    if len(given) != 1:
        what = "and kafka.bootstrap.servers differ" if given else "is required: HOST:PORT, or several with commas"
        reader.problem("bootstrap.servers", what)
        return ()
    parts = (part.strip() for part in str(given.pop()).split(","))
    servers = tuple(_PLAINTEXT.sub("", part) for part in parts if part)
    for server in servers:
        try:
            if "://" in server:
                raise ValueError(f"{server!r} is not HOST:PORT")
            parse_target(server)
        except ValueError as error:
            reader.problem("bootstrap.servers", f"contains an invalid address: {error}")
    if not servers:
        reader.problem("bootstrap.servers", "is empty")
    return servers


def _subscription(reader: _Reader) -> tuple[tuple[str, ...], str | None, tuple[Partition, ...]]:
    ways = ("assign", "subscribe", "subscribePattern")
    given = [name for name in ways if reader.text(name) is not None]
    if len(given) != 1:
        found = f"{' and '.join(given)} are given" if given else "none is given"
        reader.problem(", ".join(ways), f"exclude one another, and one is required: {found}")
        return (), None, ()
    text = reader.text(given[0]) or ""
    if given[0] == "subscribe":
        topics = tuple(sorted({name.strip() for name in text.split(",") if name.strip()}))
        if not topics:
            reader.problem("subscribe", "names no topic")
        return topics, None, ()
    if given[0] == "subscribePattern":
        if not text:  # it would match every topic
            reader.problem("subscribePattern", "is empty; to read all topics, set it to .*")
        if (problem := _pattern_problem(text)) is not None:
            reader.problem("subscribePattern", problem)
        return (), text, ()
    assigned = reader.parsed_json("assign", _assignment, 'partitions by topic, like {"a": [0, 1]}')
    return (), None, tuple(sorted(assigned))


def _pattern_problem(pattern: str) -> str | None:
    """Return the reason for which the pattern is refused, or None.

    The patterns of Spark's Kafka source are those of Java.  Python refuses nearly all constructs that it does not have.
    But it accepts a set inside of a set, and `&&` in a set, and then matches other topics than Java.
    """
    for found in _ESCAPE_OR_SET.finditer(pattern):
        if re.search(r"\[|&&", _ESCAPE.sub("", found["contents"] or "")):
            where = f"the set of characters at position {found.start()}"
            return f"has [ or && in {where}, which Java and Python's `re` read differently: write the set without them"
    try:
        re.compile(pattern)
    except re.error as error:
        return f"is not a regular expression of Python's `re`: {error}"
    return None


def _assignment(value: object) -> dict[Partition, int]:
    """Convert {"topic": [0, 1]}."""
    if not isinstance(value, dict) or not value:
        raise ValueError("this names no topic")
    found: dict[Partition, int] = {}
    for topic, partitions in value.items():
        if not isinstance(partitions, list) or not partitions:
            raise ValueError(f"topic {topic} has no list of partitions")
        for partition in partitions:
            found[topic, _whole(partition, f"topic {topic}", 0, 2**31 - 1)] = 0
    return found


def _columns(reader: _Reader) -> tuple[str, ...]:
    with_headers = reader.flag("includeHeaders", False)
    text = reader.text("columns")
    if text is None:
        return COLUMNS if with_headers else COLUMNS[:-1]
    names = {name.lower(): name for name in COLUMNS}
    asked = [name.strip() for name in text.split(",") if name.strip()]
    for name in asked:
        if name.lower() not in names:
            near = get_close_matches(name.lower(), names, 1)
            hint = f"; did you mean {names[near[0]]}?" if near else f"; expected some of {','.join(COLUMNS)}"
            reader.problem("columns", f"contains {name!r}, which is not a column{hint}")
    if not asked:
        reader.problem("columns", "names no column")
    found = {name.lower() for name in asked}
    given = reader.text("includeHeaders") is not None
    if given and with_headers != ("headers" in found):
        reader.problem("columns", f"and includeHeaders={str(with_headers).lower()} contradict each other about headers")
    return tuple(name for name in COLUMNS if name.lower() in found)


def _atomic(reader: _Reader, acks: str) -> bool | None:
    asked = reader.flag("atomic", True) if reader.text("atomic") is not None else None
    if acks != "1":
        return asked
    if asked:
        reader.problem("atomic", "is true, which needs kafka.acks=all")
    return False


def _scope(reader: _Reader) -> str | None:
    name = reader.text("transactionScope")
    if name is not None and (problem := label_problem("name", name, SCOPE_MAX_BYTES)):
        reader.problem("transactionScope", f"is {name[:SHOWN_MAX]!r}: {problem}")
    return name


def _read_committed(reader: _Reader) -> bool | None:
    level = reader.text("kafka.isolation.level")
    if level is not None and level.lower() not in _ISOLATION_LEVELS:
        reader.problem("kafka.isolation.level", f"is {level!r}; expected: read_committed or read_uncommitted")
    return None if level is None else _ISOLATION_LEVELS.get(level.lower())


def _trigger_limits(reader: _Reader) -> TriggerLimits:
    limits = TriggerLimits(
        offsets_max=reader.number("maxOffsetsPerTrigger", None, 1),
        offsets_min=reader.number("minOffsetsPerTrigger", None, 1),
        delay_max_s=reader.duration_s("maxTriggerDelay", TriggerLimits().delay_max_s),
    )
    if (limits.offsets_min or 0) > (limits.offsets_max or 2**63):
        reader.problem(
            "minOffsetsPerTrigger", f"is {limits.offsets_min}, above maxOffsetsPerTrigger {limits.offsets_max}"
        )
    return limits


def _positions(reader: _Reader, which: str, default: int, refused: int | None) -> Positions:
    """Return the positions.

    `…Timestamp` has priority over `…OffsetsByTimestamp`, which has priority over `…Offsets`.
    """
    strategy = reader.text("startingOffsetsByTimestampStrategy") or "error"
    if which == "starting" and strategy.lower() not in ("error", "latest"):
        reader.problem("startingOffsetsByTimestampStrategy", f"is {strategy!r}; expected: error or latest")
    or_latest = which == "ending" or strategy.lower() == "latest"
    name = f"{which}Timestamp"
    if reader.text(name) is not None:
        return Positions(reader.number(name, 0, 0), by_time=True, or_latest=or_latest, option=name)
    name = f"{which}OffsetsByTimestamp"
    if reader.text(name) is not None:
        times = reader.parsed_json(name, lambda value: _by_partition(value, 0, "times"), f"times in ms {_FORM}")
        return Positions(None, times, by_time=True, or_latest=or_latest, option=name)
    name = f"{which}Offsets"
    text = reader.text(name)
    words = {"earliest": EARLIEST, "latest": LATEST}
    refused_word = "latest" if refused == LATEST else "earliest"
    if text is None:
        return Positions(default, option=name)
    if text.lower() in words:
        if words[text.lower()] == refused:
            reader.problem(name, f"cannot be {refused_word} in a batch read")
        return Positions(words[text.lower()], option=name)
    word, other = ("earliest", f"{EARLIEST}: earliest") if which == "starting" else ("latest", f"{LATEST}: latest")
    offsets = reader.parsed_json(
        name, lambda value: _by_partition(value, EARLIEST, "offsets"), f"{word}, or offsets {_FORM} ({other})"
    )
    for (topic, partition), offset in sorted(offsets.items()):
        if offset == refused:
            reader.problem(name, f"cannot be {refused} ({refused_word}) for {topic}-{partition} in a batch read")
    return Positions(None, offsets, option=name)


def _by_partition(value: object, lowest: int, what: str) -> dict[Partition, int]:
    """Convert {"topic": {"0": 23}}."""
    if not isinstance(value, dict):
        raise ValueError("this names no topic")
    found: dict[Partition, int] = {}
    for topic, partitions in value.items():
        if not isinstance(partitions, dict):
            raise ValueError(f"topic {topic} has no {what} by partition")
        for partition, number in partitions.items():
            if not re.fullmatch(r"\d{1,10}", partition) or int(partition) >= 2**31:
                raise ValueError(f"topic {topic}: {partition!r} is not a partition")
            found[topic, int(partition)] = _whole(number, f"{topic}-{partition}", lowest, 2**63 - 1)
    return found


def _whole(value: object, where: str, lowest: int, highest: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not lowest <= value <= highest:
        raise ValueError(f"{where}: {value!r} is not a whole number from {lowest}")
    return value
