"""kctl produce and consume: lines, records, batches and errors."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import socket
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quorumlog.client import cluster as cluster_module
from quorumlog.client.cluster import Cluster
from quorumlog.client.consumer import Fetched
from quorumlog.client.partitioner import partition_of
from quorumlog.client.records import NewRecord, Record, build_batch
from quorumlog.errors import ClusterError, RemoteProtocolError
from quorumlog.kctl import data, inputs
from quorumlog.kctl.context import Context
from quorumlog.kctl.data import MalformedLineError, _LineParser, _lines, _next, _pairs, _split, _Target
from quorumlog.kctl.exits import exit_code
from quorumlog.kctl.main import run
from quorumlog.wire import record_batch
from quorumlog.wire.errors import ApiError
from quorumlog.wire.record_batch import patch
from tests.unit.broker.kafka.fake import FakeLog
from tests.unit.quorumlog.client.fake_cluster import client_of, fake_brokers
from tests.unit.quorumlog.wire.framing import body_of, record, sealed

T = TypeVar("T")


def test_lines_have_a_key_of_their_own_or_share_one_key() -> None:
    assert _LineParser(None, None)(b"a:b") == (None, b"a:b")
    assert _LineParser(b"k", None)(b"v") == (b"k", b"v")
    assert _LineParser(None, b":")(b"k:v:w") == (b"k", b"v:w")
    parse = _LineParser(None, b":")
    parse(b"k:v")
    with pytest.raises(MalformedLineError, match=r"line 2 has no ':'"):
        parse(b"nothing")


def test_a_separator_that_is_not_text_is_named_in_the_error() -> None:
    with pytest.raises(MalformedLineError, match=r"line 1 has no '\\\\xff'"):
        _LineParser(None, b"\xff")(b"nothing")


@given(
    st.lists(st.tuples(st.one_of(st.none(), st.binary(max_size=4)), st.binary(max_size=8)), max_size=60),
    st.integers(1, 5),
    st.one_of(st.none(), st.just(0)),
)
def test_no_record_is_lost_and_each_partition_keeps_its_order(
    pairs: list[tuple[bytes | None, bytes]], count: int, partition: int | None
) -> None:
    batches = _split(_Target("t", partition, count), pairs, 0)
    seen: dict[int, list[tuple[bytes | None, bytes | None]]] = {}
    for index, records in batches:
        assert records
        seen.setdefault(index, []).extend((record.key, record.value) for record in records)
    expected: dict[int, list[tuple[bytes | None, bytes | None]]] = {}
    for key, value in pairs:
        index = partition if partition is not None else 0 if key is None else partition_of(key, count)
        expected.setdefault(index, []).append((key, value))
    assert seen == expected


def test_batches_are_limited_in_records_and_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data, "BATCH_RECORDS_MAX", 3)
    batches = _split(_Target("t", 0, 1), [(None, b"x")] * 8, 0)
    assert [len(records) for _, records in batches] == [3, 3, 2]
    monkeypatch.setattr(data, "BATCH_BYTES_MAX", 100)
    batches = _split(_Target("t", 0, 1), [(None, b"x" * 90)] * 3, 0)
    assert [len(records) for _, records in batches] == [1, 1, 1]


@pytest.mark.parametrize("lines", [1, 3, 7, 20])
def test_each_batch_of_records_without_a_key_goes_to_the_next_partition(
    lines: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """lines: the number of lines that arrive together."""
    monkeypatch.setattr(data, "BATCH_RECORDS_MAX", 3)
    values = [b"%d" % number for number in range(20)]
    partitions: dict[bytes | None, int] = {}
    for first in range(0, len(values), lines):
        pairs: list[data.Pair] = [(None, value) for value in values[first : first + lines]]
        for index, records in _split(_Target("t", None, 4), pairs, first):
            partitions |= dict.fromkeys((record.value for record in records), index)
    assert [partitions[value] for value in values] == [0] * 3 + [1] * 3 + [2] * 3 + [3] * 3 + [0] * 3 + [1] * 3 + [
        2
    ] * 2


@pytest.mark.parametrize("text", [b"", b"\n", b"a\nb\n", b"a\nb", b"\n\na", b"x" * 300 + b"\n" + b"y"])
async def test_lines_of_a_file_are_read_across_chunks(
    text: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inputs, "CHUNK_BYTES", 7)
    file = tmp_path / "lines"
    file.write_bytes(text)
    lines = [line async for some in _lines(str(file)) for line in some]
    whole = text.split(b"\n")
    assert lines == (whole if whole[-1] else whole[:-1])


async def test_lines_of_a_named_pipe_are_returned_as_they_arrive(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    lines = _lines(str(pipe))
    writer = os.open(pipe, os.O_RDWR)  # does not wait for the reader
    try:
        os.write(writer, b"a\nb\n")
        assert await anext(lines) == [b"a", b"b"]
        os.write(writer, b"c\nd")
        assert await anext(lines) == [b"c"]
    finally:
        os.close(writer)
    assert [line async for some in lines for line in some] == [b"d"]


async def test_reading_lines_from_a_terminal_does_not_make_it_non_blocking(monkeypatch: pytest.MonkeyPatch) -> None:
    keyboard, terminal = os.openpty()  # the output of the command has the same open file description
    with os.fdopen(keyboard, "wb", buffering=0) as typed, os.fdopen(terminal) as standard_input:
        monkeypatch.setattr("sys.stdin", standard_input)
        lines = _lines(None)
        typed.write(b"a\n")
        assert await anext(lines) == [b"a"]
        assert os.get_blocking(terminal)
        typed.write(b"b\n\x04")
        assert [line async for some in lines for line in some] == [b"b"]


async def test_reading_lines_from_a_socket_does_not_make_it_non_blocking(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = socket.socketpair()  # sshd gives a command one socket for both standard input and output
    with ours, os.fdopen(theirs.detach()) as standard_input:
        monkeypatch.setattr("sys.stdin", standard_input)
        lines = _lines(None)
        ours.sendall(b"a\n")
        assert await anext(lines) == [b"a"]
        assert os.get_blocking(standard_input.fileno())
        reading = asyncio.ensure_future(_next(lines))
        await asyncio.sleep(0)
        assert os.get_blocking(standard_input.fileno())
        ours.sendall(b"b\nc")
        ours.shutdown(socket.SHUT_WR)
        assert await reading == [b"b"]
        assert [line async for some in lines for line in some] == [b"c"]


async def test_the_wait_for_a_line_from_a_socket_can_time_out(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = socket.socketpair()
    with ours, os.fdopen(theirs.detach()) as standard_input:
        monkeypatch.setattr("sys.stdin", standard_input)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await anext(_lines(None))


async def test_reading_a_named_pipe_without_a_writer_can_be_cancelled(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    found: list[bytes] = []
    reading = asyncio.ensure_future(_collect(_lines(str(pipe)), found))
    await asyncio.wait({reading}, timeout=0.1)  # long enough to open the pipe
    assert not reading.done()
    reading.cancel()
    await asyncio.wait({reading})
    await asyncio.get_running_loop().shutdown_default_executor()  # as at the end of every command


async def test_a_line_that_is_too_long_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inputs, "CHUNK_BYTES", 7)
    monkeypatch.setattr(data, "LINE_MAX_BYTES", 20)
    file = tmp_path / "lines"
    file.write_bytes(b"a\nb\n" + b"x" * 100)
    found: list[bytes] = []
    with pytest.raises(MalformedLineError, match="line 3 is longer than 20 bytes"):
        await _collect(_lines(str(file)), found)
    assert found == [b"a", b"b"]


async def test_records_before_a_malformed_line_are_returned(tmp_path: Path) -> None:
    file = tmp_path / "lines"
    file.write_bytes(b"a:1\nb:2\nno separator\nc:3\n")
    found: list[tuple[bytes | None, bytes]] = []
    with pytest.raises(MalformedLineError, match="line 3") as caught:
        await _collect(_pairs(str(file), _LineParser(None, b":")), found)
    assert found == [(b"a", b"1"), (b"b", b"2")]
    assert exit_code(caught.value) == 2


async def _collect(source: AsyncIterator[list[T]], found: list[T]) -> None:
    async for some in source:
        found += some


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (
            RemoteProtocolError("damaged record batch at byte 0: length"),
            "REMOTEPROTOCOL: damaged record batch at byte 0",
        ),
        (OSError(errno.ENOSPC, "No space left on device"), "IO_ERROR: No space left on device"),
        (ClusterError("INVALID_CONFIG", "no"), "INVALID_CONFIG: no"),
    ],
)
def test_consume_reports_the_error_of_a_reader_task(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], error: Exception, said: str
) -> None:
    async def fail() -> None:
        raise error

    async def consume(*_: object) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(fail())

    monkeypatch.setattr(data, "_consume", consume)
    assert run(["consume", "t"]) == exit_code(error)
    assert capsys.readouterr().err.startswith(f"kctl: {said}")


async def test_consume_leaves_a_former_leader_that_still_answers(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The former leader is disconnected from the other brokers, but not from kctl, and has no new records."""
    monkeypatch.setattr(data, "LEADERS_AGE_S", 0.1)
    monkeypatch.setattr(cluster_module, "ROTATE_S", 0.05)
    async with fake_brokers(2) as brokers, client_of(brokers) as cluster:

        @asynccontextmanager
        async def opened(*_: object) -> AsyncIterator[tuple[Cluster, int]]:
            yield cluster, 1

        async def shown(text: str) -> None:
            while text not in capsys.readouterr().out:  # noqa: ASYNC110  # no event reports the output
                await asyncio.sleep(0.01)

        monkeypatch.setattr(data, "open_cluster", opened)
        await brokers.create("t", [1])
        await brokers.fill("t", 0, build_batch([NewRecord(None, b"before", 0)]))
        reading = asyncio.ensure_future(data._consume(Context(), "t", None, "beginning", None, False))
        async with asyncio.timeout(10):
            await shown("before")
            log = brokers.shared.logs["t", 0]
            brokers.replicas[1].logs = defaultdict(FakeLog, {("t", 0): FakeLog(list(log.batches))})
            await brokers.hold_back(1)
            await brokers.move("t", 0, 2)
            await brokers.fill("t", 0, build_batch([NewRecord(None, b"after", 0)]))
            await shown("after")
        reading.cancel()
        await asyncio.wait({reading})


class OneFetch:
    """A consumer whose fetches all return the same bytes."""

    def __init__(self, records: bytes) -> None:
        self.records = memoryview(records)

    async def fetch(self, *_: object, **__: object) -> Fetched:
        return Fetched(self.records, 6, 0)


async def test_records_before_an_unreadable_batch_are_returned_before_its_error() -> None:
    fetched = bytearray(sealed(body_of(record(0), record(1)), 2) + sealed(body_of(record(5), record(9)), 2))
    patch(fetched, 2, 0, position=len(fetched) // 2)
    pieces: asyncio.Queue[Any] = asyncio.Queue()
    await data._read(OneFetch(bytes(fetched)), "t", 3, 0, None, pieces)
    index, records = pieces.get_nowait()
    assert (index, [one.offset for one in records]) == (3, [0, 1])
    error = pieces.get_nowait()
    assert isinstance(error, ClusterError)
    assert (exit_code(error), error.code) == (1, "CORRUPT_MESSAGE")
    assert error.message.startswith("t-3: the batch of offsets 2 to 3 cannot be read")
    assert error.next_step == "kctl consume t --partition 3 --from 4"
    assert pieces.empty()


async def test_an_unreadable_batch_without_an_end_offers_no_offset_to_continue() -> None:
    pieces: asyncio.Queue[Any] = asyncio.Queue()
    await data._read(OneFetch(b"\0" * 70), "t", 0, 0, None, pieces)
    assert pieces.get_nowait() == (0, [])
    assert pieces.get_nowait().next_step == "kctl explain t-0"


class ScriptedProducer:
    """A producer whose batches have these outcomes, `after_s` seconds later: the base offset of each, or its error."""

    def __init__(self, *outcomes: int | ClusterError, after_s: float) -> None:
        self._outcomes = list(outcomes)
        self._after_s = after_s

    def __call__(self, *_: object, **__: object) -> ScriptedProducer:
        return self

    async def __aenter__(self) -> ScriptedProducer:
        return self

    async def __aexit__(self, *_: object) -> None: ...

    async def send(self, *_: object) -> asyncio.Future[int]:
        loop = asyncio.get_running_loop()
        delivered: asyncio.Future[int] = loop.create_future()
        outcome = self._outcomes.pop(0)
        if isinstance(outcome, int):
            loop.call_later(self._after_s, delivered.set_result, outcome)
        else:
            loop.call_later(self._after_s, delivered.set_exception, outcome)
        return delivered


def produce(
    monkeypatch: pytest.MonkeyPatch,
    source: AsyncIterator[list[data.Pair]] | None,
    *outcomes: int | ClusterError,
    after_s: float = 0.0,
) -> int:
    """Run `kctl produce` on lines from `source`, to a producer whose batches have these outcomes.

    source: None means the chunks of `data.chunks`.
    """

    @asynccontextmanager
    async def opened(*_: object) -> AsyncIterator[tuple[None, int]]:
        yield None, 1

    monkeypatch.setattr(data, "open_cluster", opened)
    if source is not None:
        monkeypatch.setattr(data, "_pairs", lambda *_: source)
    monkeypatch.setattr("quorumlog.client.producer.Producer", ScriptedProducer(*outcomes, after_s=after_s))
    return run(["produce", "t", "-o", "json"])


async def no_line_arrives_for_a_while() -> None:
    for _ in range(100):
        await asyncio.sleep(0)


def test_produce_prints_an_acknowledged_offset_without_waiting_for_the_next_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    printed: list[str] = []

    async def lines() -> AsyncIterator[list[data.Pair]]:
        yield [(None, b"a")]
        await no_line_arrives_for_a_while()
        printed.append(capsys.readouterr().out)

    assert produce(monkeypatch, lines(), 7) == 0
    assert json.loads(printed[0]) == {"topic": "t", "partition": 0, "offset": 7}


def test_produce_reports_a_failed_delivery_without_waiting_for_the_next_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def lines() -> AsyncIterator[list[data.Pair]]:
        yield [(None, b"a")]
        await no_line_arrives_for_a_while()
        raise AssertionError("the command still waits for the next line")

    error = ClusterError(ApiError.UNKNOWN_TOPIC_OR_PARTITION, "t-0 is deleted")
    assert produce(monkeypatch, lines(), error) == 3
    assert json.loads(capsys.readouterr().err)["message"] == "t-0 is deleted"


def test_produce_prints_acknowledged_offsets_although_an_earlier_batch_fails(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(data, "BATCH_RECORDS_MAX", 1)

    async def lines() -> AsyncIterator[list[data.Pair]]:
        yield [(None, b"a"), (None, b"b")]

    error = ClusterError(ApiError.TIMED_OUT, "t-0: not delivered", retriable=True)
    assert produce(monkeypatch, lines(), error, 5) == 4
    captured = capsys.readouterr()
    assert json.loads(captured.out)["offset"] == 5
    assert json.loads(captured.err)["error"] == "TIMED_OUT"


@pytest.mark.parametrize(
    ("text", "offsets", "message", "next_step"),
    [
        (b"a\nb\nc", [7, 8], "the input cannot be read after line 2: {}; the lines up to it were written", "line 3"),
        (b"c", [], "the input cannot be read at line 1: {}", "line 1"),
    ],
)
def test_produce_waits_for_its_records_if_the_input_becomes_unreadable(
    text: bytes,
    offsets: list[int],
    message: str,
    next_step: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    async def chunks(*_: object) -> AsyncIterator[bytes]:
        yield text
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(data, "chunks", chunks)
    assert produce(monkeypatch, None, 7, after_s=0.1) == 1
    captured = capsys.readouterr()
    assert [json.loads(line)["offset"] for line in captured.out.splitlines()] == offsets
    error = json.loads(captured.err)
    assert (error["error"], error["message"]) == ("IO_ERROR", message.format("Input/output error"))
    assert error["next"] == f"check the input, and continue from {next_step}"


@pytest.mark.parametrize(("last", "code"), [(6, 0), (ClusterError(ApiError.UNKNOWN_TOPIC_OR_PARTITION, "deleted"), 3)])
def test_produce_writes_all_records_although_its_output_is_closed(
    last: int | ClusterError, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader, writer = os.pipe()
    os.close(reader)  # as `| head -1` does after the first line
    left = [b"a", b"b", b"c"]

    async def lines() -> AsyncIterator[list[data.Pair]]:
        while left:
            yield [(None, left.pop(0))]
            await no_line_arrives_for_a_while()

    with os.fdopen(writer, "w") as standard_output:
        monkeypatch.setattr("sys.stdout", standard_output)
        assert produce(monkeypatch, lines(), 4, 5, last) == code
    assert left == []


def test_a_record_without_a_timestamp_has_a_null_timestamp_in_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert data.NO_TIMESTAMP == record_batch.NO_TIMESTAMP
    for timestamp_ms, shown in ((1_000, 1_000), (-1, None)):
        one = Record(5, timestamp_ms, False, None, b"v", ())
        data._print_record(Context(output_form="json"), "t", 0, one)
        assert json.loads(capsys.readouterr().out)["timestamp"] == shown


def test_interrupted_produce_reports_which_records_may_be_missing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def lines() -> AsyncIterator[list[data.Pair]]:
        yield [(None, b"a")]
        raise KeyboardInterrupt

    assert produce(monkeypatch, lines(), 7) == 130
    error = json.loads(capsys.readouterr().err)
    assert error["message"] == "records whose offsets were not shown may not have been written"


async def test_read_stops_at_the_chunk_that_exceeds_the_maximum_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inputs, "CHUNK_BYTES", 7)
    (tmp_path / "endless").write_bytes(bytes(10_000))
    assert len(await inputs.read(str(tmp_path / "endless"), "the plan", 10)) == 14


async def test_produce_stops_reading_its_input_after_a_batch_has_failed() -> None:
    sent, reading = data._Sent(Context(), "t"), asyncio.Event()
    failed: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    failed.set_exception(ClusterError(ApiError.TIMED_OUT, "no answer"))
    sent.add(0, 1, failed)
    task: asyncio.Task[Any] | None = None

    async def next_line() -> None:
        nonlocal task
        task = asyncio.current_task()
        await reading.wait()

    with pytest.raises(ClusterError, match="no answer"):
        await sent.until(next_line())
    assert task is not None
    await asyncio.wait([task])
    assert task.cancelled()


def test_values_are_printed_with_their_control_characters(capsys: pytest.CaptureFixture[str]) -> None:
    value = "a\tb\r\n\033[1mc"
    data._print_record(Context(), "t", 0, Record(0, 1, False, None, value.encode(), ()))
    assert capsys.readouterr().out == f"{value}\n"
