"""Everything that kctl prints: data on standard output, messages on standard error.

JSON is one document, or one object per line for streams.  Text for people has escapes instead of control characters,
because any client may choose the name of a group, a member or a transaction.  Tables are drawn with rich, which is
imported only when needed.  Uuids are 22 characters of URL-safe base64; times are RFC 3339 in UTC.
"""

from __future__ import annotations

import base64
import io
import json
import os
import shutil
import sys
import textwrap
from collections.abc import Iterable, Sequence
from typing import Any

from quorumlog.errors import ClusterError, QuorumlogError
from quorumlog.kctl.streams import discard, is_utf8, say
from quorumlog.wire.errors import ApiError
from quorumlog.words import printable

NO_NODE = -1
UNTRUNCATED = 10_000
"""Minimum width of a table, large enough that no cell is wrapped; a narrower terminal wraps the lines itself."""
_CHARACTER_WIDTH_MAX = 2
_MARGINS_MAX = 4
"""Maximum width of the margins and lines between two columns."""
_UNITS = ((86_400, 3600, "d", "h"), (3600, 60, "h", "min"), (60, 1, "min", "s"))
_STYLES = {"bold": "1", "yellow": "33", "red": "31", "cyan": "36", "dim": "2"}


class OutputClosedError(Exception):
    """The reader of standard output closed it (`| head`), so a command without another purpose ends.

    Not an OSError, because click would then exit with 1.
    """


def uuid_text(raw: bytes) -> str | None:
    """Return a 16-byte uuid as 22 characters of base64; None if it is not set."""
    if not any(raw):
        return None
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


def node_or_none(node_id: int) -> int | None:
    """Return None for -1, the wire format's value for "no node"."""
    return None if node_id == NO_NODE else node_id


def bytes_value(raw: bytes | None) -> str | dict[str, str] | None:
    """Return bytes for JSON: text if they are UTF-8, else {"base64": ...}."""
    if raw is None:
        return None
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(raw).decode()}


def has_colours() -> bool:
    """Return whether standard output is a terminal and NO_COLOR is not set."""
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR")


def duration_text(duration_ms: int) -> str:
    """Return a duration in its two largest units: `12 ms`, `3.4 s`, `5 min 2 s`, `3 d 4 h`."""
    if duration_ms < 0:  # clocks differ, or a clock was set back
        return f"-{duration_text(-duration_ms)}"
    if duration_ms < 1000:
        return f"{duration_ms} ms"
    if duration_ms < 60_000:
        return f"{duration_ms // 100 / 10:g} s"
    seconds = duration_ms // 1000
    large, small, unit, unit_below = next(each for each in _UNITS if seconds >= each[0])
    rest = seconds % large // small
    return f"{seconds // large} {unit}" + (f" {rest} {unit_below}" if rest else "")


def dumps(value: Any) -> str:
    """Return one line of JSON.  It is ASCII unless standard output and standard error both support Unicode."""
    return json.dumps(value, ensure_ascii=not _is_unicode(), separators=(",", ":"))


def _is_unicode() -> bool:
    return is_utf8(sys.stdout) and is_utf8(sys.stderr)


class _Drawing(io.StringIO):
    """A buffer that reports standard output's encoding, so that rich uses only characters of this encoding."""

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return sys.stdout.encoding or "utf-8"


class Output:
    """Prints in the requested format.

    ends_if_closed: raise OutputClosedError if the reader of standard output has closed it.  Otherwise the output is
    discarded, because the command may still have to change something, and its exit code must report the outcome.
    """

    def __init__(self, form: str, *, ends_if_closed: bool = False) -> None:
        self.is_json = form == "json"
        self._ends_if_closed = ends_if_closed

    def document(self, value: Any) -> None:
        """Print the JSON document of a command."""
        self._write(json.dumps(value, ensure_ascii=not _is_unicode(), indent=2))

    def line(self, value: Any) -> None:
        """Print one object of a JSON stream."""
        self._write(dumps(value))

    def raw(self, data: str) -> None:
        """Print data unchanged, and end the line."""
        self._write(data)

    def text(self, line: str) -> None:
        """Print a line of data for people."""
        self._write(printable(line))

    def styled(self, line: str, style: str) -> None:
        """Print a line of data for people in one of `_STYLES`, if colours are enabled."""
        line = printable(line)
        self._write(f"\033[{_STYLES[style]}m{line}\033[0m" if has_colours() else line)

    def hanging(self, head: str, text: str) -> None:
        """Print `head` and, beside it, text that is wrapped on a terminal and a single line elsewhere."""
        self._wrapped(text, f"{head}  ", len(head) + 2)

    def wrapped(self, text: str, indent: int) -> None:
        """Print text as `hanging` does, after nothing but an indent."""
        self._wrapped(text, " " * indent, indent)

    def _wrapped(self, text: str, first: str, indent: int) -> None:
        width = shutil.get_terminal_size().columns if sys.stdout.isatty() else UNTRUNCATED
        for line in textwrap.wrap(
            printable(text, keep="\n"),
            max(width, indent + 20),
            initial_indent=first,
            subsequent_indent=" " * indent,
            break_on_hyphens=False,
        ):
            self._write(line)

    def table(self, columns: Sequence[str], rows: Iterable[Sequence[object]], title: str | None = None) -> None:
        """Print a table for people, with `-` for missing values."""
        from rich import box
        from rich.console import Console
        from rich.table import Table
        from rich.text import Text

        cells = [[_cell(value) for value in row] for row in rows]
        line = None if title is None else printable(title)
        longest = max(sum(max(map(len, each)) for each in zip(columns, *cells, strict=True)), len(line or ""))
        is_terminal = sys.stdout.isatty()
        drawn = _Drawing()  # rich would handle a full disk or a closed pipe in its own way
        console = Console(
            file=drawn,
            force_terminal=is_terminal,
            width=max(UNTRUNCATED, _CHARACTER_WIDTH_MAX * longest + _MARGINS_MAX * len(columns)),
            no_color=bool(os.environ.get("NO_COLOR")) or None,
            highlight=False,
        )
        table = Table(
            box=box.SIMPLE_HEAD if is_terminal else None,
            pad_edge=False,
            show_header=any(columns),
        )
        for column in columns:
            table.add_column(column, no_wrap=True)
        for row in cells:
            table.add_row(*map(Text, row))
        if line is not None:  # as the title of the table, it would be folded at the width of the table
            console.print(Text(line, style="italic"))
        console.print(table)
        self._write("\n".join(line.rstrip() for line in drawn.getvalue().splitlines()))

    def _write(self, text: str) -> None:
        try:
            sys.stdout.write(text + "\n")
            sys.stdout.flush()
        except BrokenPipeError:
            if self._ends_if_closed:
                raise OutputClosedError from None
            discard(sys.stdout)
        except OSError as error:
            discard(sys.stdout)
            text = f"standard output cannot be written: {error.strerror or error}; changes that the command made remain"
            raise ClusterError(ApiError.IO_ERROR, text, "check the destination of standard output") from error

    def message(self, text: str) -> None:
        """Print a message on standard error; it may have several lines."""
        say(printable(text, keep="\n"))

    def interrupted(self, leaves: str) -> None:
        """Report Ctrl-C.  leaves: the state in which the command leaves the cluster; empty: report nothing."""
        if sys.stderr.isatty():
            say("")  # the terminal has echoed ^C
        if leaves and self.is_json:
            say(dumps({"error": "INTERRUPTED", "message": leaves, "next": None, "retriable": False}))
        elif leaves:
            self.message(f"interrupted: {leaves}")

    def declined(self) -> None:
        """Report that the user declined a change."""
        leaves = "nothing was changed"
        if self.is_json:
            say(dumps({"error": "DECLINED", "message": leaves, "next": None, "retriable": False}))
        else:
            self.message(f"declined: {leaves}")

    def error(self, error: BaseException) -> None:
        """Print an error as one line: the problem, its cause, and the next step."""
        say(self.describe(error))

    def describe(self, error: BaseException) -> str:
        """Return the line that `error` prints, in this output's format."""
        message = str(error) or type(error).__name__
        if isinstance(error, OSError) and error.strerror:
            message = error.strerror if error.filename is None else f"{error.filename}: {error.strerror}"
        code, retriable = error_word(error)
        next_step = error.next_step if isinstance(error, QuorumlogError) else ""
        if not next_step and (known := ApiError.named(code)) is not None:
            next_step = known.next_step
        if self.is_json:
            return dumps({"error": code, "message": message, "next": next_step or None, "retriable": retriable})
        return printable(" ".join(f"kctl: {code}: {message}{f' (next: {next_step})' if next_step else ''}".split()))


def error_word(error: BaseException) -> tuple[str, bool]:
    """Return the code of an error, and whether the request may be retried."""
    match error:
        case ClusterError():
            return error.code, error.retriable
        case QuorumlogError():
            return type(error).__name__.removesuffix("Error").upper(), False
        case TimeoutError():
            return ApiError.TIMED_OUT, True
        case OSError():
            return ApiError.IO_ERROR, isinstance(error, ConnectionError)
    return ApiError.FAILED, False


def _cell(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list | tuple):
        return ",".join(_cell(item) for item in value) or "-"
    return printable(str(value))
