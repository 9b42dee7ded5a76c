"""Log lines: their form, and values that cannot forge a line."""

from __future__ import annotations

import contextlib
import errno
import io
import json
import logging
import os
from collections.abc import Iterator
from uuid import UUID

import pytest
import structlog

from quorumlog.kctl.output import uuid_text
from quorumlog.runtime.logging import configure, get_logger

WALL_MS = 1_700_000_000_123


@pytest.fixture(autouse=True)
def _restored() -> Iterator[None]:
    """Restore the logging configuration, which belongs to the whole process."""
    root = logging.getLogger()
    handlers, level, kept = root.handlers[:], root.level, structlog.get_config()
    yield
    root.handlers[:], root.level = handlers, level
    structlog.configure(**kept)


class FullDisk(io.StringIO):
    writes = 0

    def write(self, text: str, /) -> int:
        self.writes += 1
        raise OSError(errno.ENOSPC, "No space left on device")


def lines(log_format: str, level: str = "info") -> io.StringIO:
    out = io.StringIO()
    configure(log_format, level, wall_ms=lambda: WALL_MS, stream=out, node_id=7)
    return out


def test_text_format_writes_key_value_lines() -> None:
    out = lines("text")
    get_logger("quorum").info("elected", epoch=3, leader=None, why="the only voter", ok=True)
    assert out.getvalue() == (
        '2023-11-14T22:13:20.123Z INFO elected room=quorum epoch=3 leader=- why="the only voter" ok=true node_id=7\n'
    )


@pytest.mark.parametrize("log_format", ["text", "json"])
def test_a_uuid_has_the_form_in_which_kctl_shows_it(log_format: str) -> None:
    directory_id = UUID("2c5ff1c1-5d5b-4f0b-8d2e-8b2a2f9d2e01")
    out = lines(log_format)
    get_logger("log").error("data directory failed", directory_id=directory_id, others=[directory_id])
    shown = uuid_text(directory_id.bytes)
    assert shown is not None
    if log_format == "json":
        told = json.loads(out.getvalue())
        assert (told["directory_id"], told["others"]) == (shown, [shown])
    else:
        assert f"directory_id={shown} " in out.getvalue()


def test_json_format_writes_one_object_per_line() -> None:
    out = lines("json")
    get_logger("quorum").warning("odd", peer="a:1")
    assert json.loads(out.getvalue()) == {
        "ts": "2023-11-14T22:13:20.123Z", "level": "warning", "event": "odd", "room": "quorum", "peer": "a:1",
        "node_id": 7,
    }  # fmt: skip


@pytest.mark.usefixtures("capsys")  # the standard library reports its lost lines
def test_a_log_line_that_cannot_be_written_raises_no_error() -> None:
    closed = io.StringIO()
    closed.close()
    reader, writer = os.pipe()
    os.close(reader)
    broken_pipe = os.fdopen(writer, "w")
    full = FullDisk()
    for stream in (full, broken_pipe, closed):
        configure(stream=stream)
        get_logger("quorum").info("elected", epoch=3)
        try:
            raise ZeroDivisionError
        except ZeroDivisionError:
            get_logger("quorum").exception("unexpected")
        logging.getLogger("grpc").warning("a library's line")
    with contextlib.suppress(BrokenPipeError):
        broken_pipe.close()
    assert full.writes == 3


def test_lines_below_the_log_level_are_omitted() -> None:
    out = lines("text", "warning")
    logger = get_logger("x")
    logger.info("quiet")
    logger.warning("loud")
    assert out.getvalue().count("\n") == 1
    assert "loud" in out.getvalue()


@pytest.mark.parametrize("log_format", ["text", "json"])
def test_a_value_cannot_forge_a_line(log_format: str) -> None:
    out = lines(log_format)
    get_logger("x").info("connected", peer='evil"\r\n2023 INFO forged \x1b[31m \u2028 x')
    assert len(out.getvalue().splitlines()) == 1
    assert "\x1b" not in out.getvalue()


def test_each_line_of_a_traceback_is_marked() -> None:
    out = lines("text")
    try:
        raise ValueError("first\nsecond")
    except ValueError:
        get_logger("x").exception("failed")
    head, *rest = out.getvalue().splitlines()
    assert "ERROR failed" in head
    assert rest
    assert all(line.startswith("    | ") for line in rest)
    assert any("second" in line for line in rest)


def test_lines_of_libraries_have_the_same_form() -> None:
    out = lines("json")
    logging.getLogger("somebody").warning("watch %s", "out")
    logged = json.loads(out.getvalue())
    assert (logged["event"], logged["logger"], logged["node_id"]) == ("watch out", "somebody", 7)
