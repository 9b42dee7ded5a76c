"""Options of reads and writes: each refusal names the bad option.  No Spark and no broker is needed."""

from __future__ import annotations

import re

import pytest

from pyspark_quorumlog.options import (
    EARLIEST,
    LATEST,
    OptionError,
    Positions,
    Query,
    TriggerLimits,
    parse_read,
    parse_write,
)
from pyspark_quorumlog.reference import COLUMNS, READING, STREAMS, WRITING, names_of
from pyspark_quorumlog.warn import warn_once

READ = {"kafka.bootstrap.servers": "h:9092", "subscribe": "t"}
WRITE = {"bootstrap.servers": "h:9092", "topic": "t"}
ANY_TEXT = {"subscribe", "subscribePattern", "topic", "transactionScope", "kafka.client.id"}
"""Options of which every text, or every one of a certain form, is valid."""


def test_defaults_are_those_of_sparks_kafka_source() -> None:
    options = parse_read(READ, Query.BATCH)
    assert options.topics == ("t",)
    assert options.bootstrap == ("h:9092",)
    assert (options.starting.everywhere, options.ending.everywhere) == (EARLIEST, LATEST)
    assert (options.fail_on_data_loss, options.columns, options.partitions_min) == (True, COLUMNS[:-1], None)
    written = parse_write(WRITE)
    assert (written.acks, written.compression, written.delivery_timeout_s) == (-1, "none", 120.0)


def test_names_are_case_insensitive_and_lists_are_split() -> None:
    options = parse_read(
        {"BOOTSTRAP.SERVERS": " a:1 , b:2", "SUBSCRIBE": "y, x,y", "includeheaders": "TRUE"}, Query.BATCH
    )
    assert (options.bootstrap, options.topics, options.columns) == (("a:1", "b:2"), ("x", "y"), COLUMNS)
    with_protocol = {**READ, "kafka.bootstrap.servers": "PLAINTEXT://a:1,[::1]:2"}
    assert parse_read(with_protocol, Query.BATCH).bootstrap == ("a:1", "[::1]:2"), "Kafka's clients accept it as well"
    by_json = {"bootstrap.servers": "a:1", "assign": '{"t":[1,0]}', "startingOffsets": '{"t":{"0":5,"1":-2}}'}
    assigned = parse_read(by_json, Query.BATCH)
    assert assigned.assigned == (("t", 0), ("t", 1))
    assert assigned.starting == Positions(None, {("t", 0): 5, ("t", 1): EARLIEST})


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"subscribe": "t"}, "option bootstrap.servers is required"),
        ({**READ, "bootstrap.servers": "other:1"}, "option bootstrap.servers and kafka.bootstrap.servers differ"),
        (
            {**READ, "kafka.bootstrap.servers": "h"},
            "option bootstrap.servers contains an invalid address: 'h' is not HOST:PORT",
        ),
        ({**READ, "kafka.bootstrap.servers": "h:99999"}, "'h:99999': the port must be 0..65535"),
        ({**READ, "kafka.bootstrap.servers": "h:1,::1:2"}, "'::1:2': an IPv6 address needs brackets, [::1]:2"),
        ({**READ, "kafka.bootstrap.servers": "h:1;g:2"}, "option bootstrap.servers contains an invalid address"),
        ({**READ, "kafka.bootstrap.servers": "SSL://h:1"}, "an invalid address: 'SSL://h:1' is not HOST:PORT"),
        ({"bootstrap.servers": "h:1"}, "none is given"),
        ({**READ, "assign": '{"t":[0]}'}, "assign and subscribe are given"),
        (
            {"bootstrap.servers": "h:1", "assign": '{"t":0}'},
            "topic t has no list of partitions; expected partitions by topic",
        ),
        ({"bootstrap.servers": "h:1", "assign": '{"t":[-1]}'}, "-1 is not a whole number"),
        ({**READ, "columns": " , "}, "option columns names no column"),
        ({**READ, "columns": "value,kee"}, "option columns contains 'kee', which is not a column; did you mean key?"),
        (
            {**READ, "columns": "value,x"},
            "option columns contains 'x', which is not a column; expected some of key,value,",
        ),
        (
            {**READ, "columns": "value", "includeHeaders": "true"},
            "option columns and includeHeaders=true contradict each other about headers",
        ),
        (
            {**READ, "columns": "headers", "includeHeaders": "false"},
            "option columns and includeHeaders=false contradict each other about headers",
        ),
        (
            {"bootstrap.servers": "h:1", "assign": '{"t"'},
            """option assign is '{"t"': this is not JSON at character 5; exp""",
        ),
        ({"bootstrap.servers": "h:1", "subscribe": " , "}, "option subscribe names no topic"),
        ({"bootstrap.servers": "h:1", "subscribePattern": "("}, "option subscribePattern is not a regular"),
        ({"bootstrap.servers": "h:1", "subscribePattern": " "}, "option subscribePattern is empty; to read all topics"),
        ({**READ, "startingOffsets": "latest"}, "option startingOffsets cannot be latest"),
        (
            {**READ, "startingOffsets": "soon"},
            "option startingOffsets is 'soon': this is not JSON at character 1; expected earliest, or offsets for "
            'every partition, like {"a": {"0": 23}} (-2: earliest)',
        ),
        ({**READ, "startingOffsets": ""}, "option startingOffsets is '': it is empty; expected earliest, or"),
        ({**READ, "startingOffsets": "23"}, "option startingOffsets is '23': this names no topic; expected earliest"),
        (
            {**READ, "startingOffsets": "9" * 5000},
            "999…': this JSON is nested too deeply, or a number is too long; expected earliest",
        ),
        (
            {**READ, "endingOffsets": '{"t":{"0":"x"}}'},
            """option endingOffsets is '{"t":{"0":"x"}}': t-0: 'x' is not a whole number from -2; expected latest, """
            'or offsets for every partition, like {"a": {"0": 23}} (-1: latest)',
        ),
        (
            {**READ, "endingOffsets": "[1"},
            "option endingOffsets is '[1': this is not JSON at character 3; expected latest",
        ),
        (
            {**READ, "endingOffsetsByTimestamp": "{}x"},
            "option endingOffsetsByTimestamp is '{}x': this is not JSON at character 3; expected times in ms for every",
        ),
        ({**READ, "startingOffsets": '{"t":{"0":-1}}'}, "option startingOffsets cannot be -1 (latest) for t-0"),
        ({**READ, "startingOffsets": '{"t":{"x":1}}'}, "'x' is not a partition"),
        ({**READ, "startingOffsets": '{"t":[1]}'}, "topic t has no offsets by partition; expected"),
        (
            {**READ, "startingOffsets": "[" * 100_000},
            "[[…': this JSON is nested too deeply, or a number is too long; expected earliest",
        ),
        ({**READ, "endingOffsets": "earliest"}, "option endingOffsets cannot be earliest"),
        ({**READ, "endingOffsets": '{"t":{"0":-2}}'}, "option endingOffsets cannot be -2 (earliest) for t-0"),
        ({**READ, "startingTimestamp": "now"}, "option startingTimestamp is 'now'"),
        ({**READ, "startingOffsetsByTimestampStrategy": "guess"}, "is 'guess'; expected: error or latest"),
        ({**READ, "minPartitions": "0"}, "option minPartitions is '0'; expected: a whole number from 1"),
        ({**READ, "maxRecordsPerPartition": "many"}, "option maxRecordsPerPartition is 'many'"),
        ({**READ, "failOnDataLoss": "perhaps"}, "option failOnDataLoss is 'perhaps'; expected: true or false"),
        ({**READ, "startingOffset": "earliest"}, "did you mean startingOffsets?"),
        ({**READ, "includeTimestamp": "true"}, "option includetimestamp is unknown"),
        (
            {**READ, "endingOffsetsByTimestampStrategy": "latest"},
            "option endingoffsetsbytimestampstrategy is unknown; did you mean startingOffsetsByTimestampStrategy?",
        ),
        ({**READ, "kafka.auto.offset.reset": "latest"}, "is set by the data source"),
        ({**READ, "kafka.sasl.mechanism": "PLAIN"}, "requests security"),
        ({**READ, "kafka.security.protocol": "SSL"}, "requests security"),
        (
            {**READ, "kafka.isolation.level": "serializable"},
            "option kafka.isolation.level is 'serializable'; expected: read_committed or read_uncommitted",
        ),
        ({**READ, "kafka.fetch.max.bytes": "-1"}, "option kafka.fetch.max.bytes is '-1'; expected: a whole number"),
        ({**READ, "kafka.fetch.max.bytes": "1MB"}, "option kafka.fetch.max.bytes is '1MB'; expected: a whole number"),
    ],
)
def test_the_refusal_of_a_bad_read_option_names_the_option(options: dict[str, str], complaint: str) -> None:
    with pytest.raises(OptionError, match=re.escape(complaint)):
        parse_read({name.lower(): value for name, value in options.items()}, Query.BATCH)


@pytest.mark.parametrize("name", sorted({*names_of(READING), *names_of(STREAMS)} - ANY_TEXT))
def test_a_value_of_the_wrong_type_is_refused_by_each_option_of_a_read(name: str) -> None:
    others = {"bootstrap.servers": "h:1"} if name == "assign" else READ
    query = Query.BATCH if name.startswith("ending") else Query.STREAM
    with pytest.raises(OptionError, match=rf"option {re.escape(name)} (is|contains) '\?!'"):
        parse_read({**others, name: "?!"}, query)


@pytest.mark.parametrize("name", sorted({*names_of(WRITING)} - ANY_TEXT))
def test_a_value_of_the_wrong_type_is_refused_by_each_option_of_a_write(name: str) -> None:
    with pytest.raises(OptionError, match=rf"option {re.escape(name)} is '\?!'"):
        parse_write({**WRITE, name: "?!"})


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({**WRITE, "kafka.acks": "0"}, "option kafka.acks is '0'"),
        ({**WRITE, "kafka.compression.type": "rar"}, "option kafka.compression.type is 'rar'"),
        ({**WRITE, "topic": ""}, "option topic is empty"),
        ({**WRITE, "kafka.batch.size": "small"}, "option kafka.batch.size is 'small'; expected: a whole number"),
        ({**WRITE, "kafka.transactional.id": "me"}, "option kafka.transactional.id cannot be set: transactionScope"),
        ({**WRITE, "atomic": "maybe"}, "option atomic is 'maybe'; expected: true or false"),
        ({**WRITE, "atomic": "true", "kafka.acks": "1"}, "option atomic is true, which needs kafka.acks=all"),
        ({**WRITE, "transactionScope": ""}, "option transactionScope is '': the name has 0 bytes, not 1 to 249"),
        ({**WRITE, "transactionScope": "x" * 250}, "the name has 250 bytes, not 1 to 249"),
        ({**WRITE, "resetTransactionScope": "true"}, "resetTransactionScope needs the option transactionScope"),
        ({**WRITE, "kafka.transaction.timeout.ms": "10"}, "option kafka.transaction.timeout.ms is '10'"),
        ({**WRITE, "kafka.security.protocol": "SASL_PLAINTEXT"}, "requests security"),
        ({**WRITE, "maxRecordsPerSecond": "-5"}, "option maxRecordsPerSecond is '-5'"),
    ],
)
def test_the_refusal_of_a_bad_write_option_names_the_option(options: dict[str, str], complaint: str) -> None:
    with pytest.raises(OptionError, match=re.escape(complaint)):
        parse_write({name.lower(): value for name, value in options.items()})


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"maxOffsetsPerTrigger": "10"}, "option maxOffsetsPerTrigger has no effect when reading a batch"),
        ({"minoffsetspertrigger": "10"}, "option minOffsetsPerTrigger has no effect when reading a batch"),
        ({"maxTriggerDelay": "1m"}, "option maxTriggerDelay has no effect when reading a batch"),
        ({"kafka.acks": "all"}, "option kafka.acks has no effect when reading a batch"),
        (
            {"kafka.fetch.max.bytes": "0"},
            "option kafka.fetch.max.bytes is 0, outside of 1 to 67108864: 1 is used",
        ),
        (
            {"kafka.fetch.max.bytes": "2147483647"},
            "option kafka.fetch.max.bytes is 2147483647, outside of 1 to 67108864: 67108864 is used",
        ),
        ({"kafka.security.protocol": "plaintext"}, None),
        ({"kafka.isolation.level": "read_uncommitted"}, None),
        ({"kafka.group.id": "mine"}, "option kafka.group.id has no effect"),
        ({"kafka.fetch.min.bytes": "1"}, "option kafka.fetch.min.bytes has no effect"),
        ({"groupIdPrefix": "mine"}, "option groupidprefix has no effect"),
        (
            {"kafka.isolation.levle": "read_uncommitted"},
            "option kafka.isolation.levle has no effect; did you mean kafka.isolation.level?",
        ),
        (
            {"startingOffsetsByTimestampStrategy": "latest"},
            "option startingOffsetsByTimestampStrategy has no effect without a starting time",
        ),
        ({"startingOffsetsByTimestampStrategy": "latest", "startingTimestamp": "7"}, None),
    ],
)
def test_a_read_option_without_effect_is_accepted_with_a_warning(
    options: dict[str, str], expected: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    warn_once.cache_clear()
    for _ in range(2):  # Spark parses the options several times
        parse_read({**READ, **options}, Query.BATCH)
    assert caplog.messages == ([expected] if expected else [])


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"subscribe": "t"}, "option subscribe has no effect when writing"),
        ({"startingOffsets": "soon"}, "option startingOffsets has no effect when writing"),
        ({"kafka.isolation.level": "read_committed"}, "option kafka.isolation.level has no effect when writing"),
        ({"kafka.batch.size": "1"}, "option kafka.batch.size is 1, outside of 1024 to 67108864: 1024 is used"),
        (
            {"kafka.batch.size": "100000000"},
            "option kafka.batch.size is 100000000, outside of 1024 to 67108864: 67108864 is used",
        ),
        ({"kafka.security.protocol": "PLAINTEXT"}, None),
        ({"kafka.linger.ms": "5"}, "option kafka.linger.ms has no effect"),
        ({"kafka.ack": "1"}, "option kafka.ack has no effect; did you mean kafka.acks?"),
        (
            {"transactionScope": "s", "atomic": "false"},
            "option transactionScope has no effect with atomic=false or kafka.acks=1",
        ),
        (
            {"kafka.transaction.timeout.ms": "60000", "kafka.acks": "1"},
            "option kafka.transaction.timeout.ms has no effect with atomic=false or kafka.acks=1",
        ),
        ({"transactionScope": "s"}, None),
    ],
)
def test_a_write_option_without_effect_is_accepted_with_a_warning(
    options: dict[str, str], expected: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    warn_once.cache_clear()
    for _ in range(2):
        parse_write({**WRITE, **options})
    assert caplog.messages == ([expected] if expected else [])


def test_a_stream_starts_at_the_latest_offsets_by_default_and_accepts_limits_of_its_batches() -> None:
    assert parse_read(READ, Query.STREAM).starting.everywhere == LATEST
    assert parse_read(READ, Query.STREAM).trigger == TriggerLimits(None, None, 900.0)
    limits = {"maxOffsetsPerTrigger": "20", "minOffsetsPerTrigger": "10", "maxTriggerDelay": "30s"}
    assert parse_read({**READ, **limits}, Query.STREAM).trigger == TriggerLimits(20, 10, 30.0)
    for text, seconds in {"500": 0.5, "500ms": 0.5, "2 min": 120, "2m": 120, "1H": 3600, "1d": 86400}.items():
        assert parse_read({**READ, "maxTriggerDelay": text}, Query.STREAM).trigger.delay_max_s == seconds
    assert parse_read({**READ, "startingOffsets": "latest"}, Query.STREAM).starting.everywhere == LATEST
    by_partition = parse_read({**READ, "startingOffsets": '{"t":{"0":-1}}'}, Query.STREAM).starting
    assert by_partition.by_partition == {("t", 0): LATEST}


def test_a_delay_without_a_lower_limit_of_a_batch_is_accepted_with_a_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    warn_once.cache_clear()
    parse_read({**READ, "maxTriggerDelay": "1m"}, Query.STREAM)
    assert caplog.messages == ["option maxTriggerDelay has no effect without minOffsetsPerTrigger"]
    parse_read({**READ, "maxTriggerDelay": "2m", "minOffsetsPerTrigger": "9"}, Query.STREAM)
    assert len(caplog.messages) == 1


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"endingOffsets": "latest"}, "option endingOffsets cannot be used in a stream, which has no end"),
        ({"endingTimestamp": "7"}, "option endingTimestamp cannot be used in a stream, which has no end"),
        ({"endingOffsetsByTimestamp": "{}"}, "option endingOffsetsByTimestamp cannot be used in a stream"),
        ({"maxOffsetsPerTrigger": "0"}, "option maxOffsetsPerTrigger is '0'; expected: a whole number from 1"),
        ({"minOffsetsPerTrigger": "few"}, "option minOffsetsPerTrigger is 'few'; expected: a whole number from 1"),
        (
            {"minOffsetsPerTrigger": "9", "maxOffsetsPerTrigger": "8"},
            "option minOffsetsPerTrigger is 9, above maxOffsetsPerTrigger 8",
        ),
        ({"maxTriggerDelay": "soon"}, "option maxTriggerDelay is 'soon'; expected: a time like 500ms, 30s, 15m"),
        ({"maxTriggerDelay": "3 weeks"}, "option maxTriggerDelay is '3 weeks'; expected: a time like"),
        ({"maxOffsetPerTrigger": "9"}, "did you mean maxOffsetsPerTrigger?"),
    ],
)
def test_the_refusal_of_a_bad_stream_option_names_the_option(options: dict[str, str], complaint: str) -> None:
    with pytest.raises(OptionError, match=re.escape(complaint)):
        parse_read({**READ, **options}, Query.STREAM)


@pytest.mark.parametrize(
    ("pattern", "position"), [("[a-z&&[^b]].*", 0), ("x[a[bc]]", 1), (r"\[[^]&&a]", 2), ("[[:alpha:]]+", 0), ("[[]", 0)]
)
def test_a_pattern_that_java_reads_differently_is_refused(pattern: str, position: int) -> None:
    said = f"option subscribePattern has [ or && in the set of characters at position {position}, which Java and"
    with pytest.raises(OptionError, match=re.escape(said)):
        parse_read({"bootstrap.servers": "h:1", "subscribePattern": pattern}, Query.STREAM)


@pytest.mark.parametrize(
    "pattern", ["[a-z]+[&]&&", r"[\[\&&]x", "[^]a]b", r"\[a\[", "[]a]", "a[b]c[d&e]", "(a|[|][|])b?"]
)
def test_a_pattern_that_java_and_python_read_alike_is_accepted(pattern: str) -> None:
    assert parse_read({"bootstrap.servers": "h:1", "subscribePattern": pattern}, Query.STREAM).pattern == pattern


def test_a_query_for_the_schema_accepts_options_that_only_batches_or_only_streams_refuse() -> None:
    for options in ({"startingOffsets": "latest"}, {"endingOffsets": "latest"}, {"maxOffsetsPerTrigger": "1"}):
        assert parse_read({**READ, **options}, Query.ANY).topics == ("t",)
    with pytest.raises(OptionError, match="option nonsense is unknown"):
        parse_read({**READ, "nonsense": "1"}, Query.ANY)


@pytest.mark.parametrize(
    ("positions", "may_move"),
    [
        (Positions(EARLIEST), False),
        (Positions(LATEST), True),
        (Positions(None, {("t", 0): 5, ("t", 1): EARLIEST}), False),
        (Positions(None, {("t", 0): 5, ("t", 1): LATEST}), True),
        (Positions(5, by_time=True), False),
        (Positions(5, by_time=True, or_latest=True), True),
    ],
)
def test_only_positions_at_latest_offsets_are_marked_as_changing(positions: Positions, may_move: bool) -> None:
    assert positions.may_move is may_move


@pytest.mark.parametrize(("text", "or_latest"), [("LATEST", True), ("Latest", True), ("ERROR", False)])
def test_the_strategy_for_late_times_is_case_insensitive_as_in_sparks_source(text: str, or_latest: bool) -> None:
    given = {"startingTimestamp": "5", "startingOffsetsByTimestampStrategy": text}
    assert parse_read({**READ, **given}, Query.STREAM).starting.or_latest is or_latest


def test_the_refusal_of_a_catalog_table_recommends_a_temporary_view() -> None:
    """Spark passes these options for CREATE TABLE t USING quorumlog OPTIONS(...), and none when the table is read."""
    properties = {"provider": "quorumlog", "owner": "me", "comment": "x", "team": "a"}
    given = {**READ, **{f"option.{name}": value for name, value in READ.items()}, **properties}
    with pytest.raises(OptionError, match="use CREATE TEMPORARY VIEW instead") as refusal:
        parse_read(given, Query.ANY)
    assert len(refusal.value.problems) == 1


def test_the_text_of_an_error_includes_its_next_step_because_spark_shows_only_the_text() -> None:
    assert str(OptionError("topic t does not exist", next_step="kctl topics list")) == (
        "topic t does not exist; kctl topics list"
    )
    assert str(OptionError("a is wrong", "b is wrong")) == "a is wrong; b is wrong"


def test_all_problems_of_the_options_are_reported_together() -> None:
    with pytest.raises(OptionError) as caught:
        parse_read({"subscribe": "t", "minpartitions": "x", "nonsense": "1"}, Query.BATCH)
    assert len(caught.value.problems) == 3


def test_timestamps_override_offsets() -> None:
    options = parse_read(
        {
            **READ,
            "startingTimestamp": "5",
            "startingOffsetsByTimestamp": '{"t":{"0":6}}',
            "startingOffsets": "earliest",
            "endingOffsetsByTimestamp": '{"t":{"0":7}}',
        },
        Query.BATCH,
    )
    assert options.starting == Positions(5, by_time=True, or_latest=False)
    assert options.ending == Positions(None, {("t", 0): 7}, by_time=True, or_latest=True)


@pytest.mark.parametrize(
    ("options", "expected"),
    [({}, None), ({"atomic": "true"}, True), ({"atomic": "false"}, False), ({"kafka.acks": "1"}, False)],
)
def test_a_write_is_atomic_if_the_brokers_support_this_unless_only_the_leader_acknowledges(
    options: dict[str, str], expected: bool | None
) -> None:
    assert parse_write(WRITE | options).atomic is expected
