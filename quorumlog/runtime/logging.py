"""Log lines on standard error: one event each, as key=value text or JSON.

A module defines `logger = get_logger("room")` and logs events with keys: `logger.info("elected", epoch=3)`.
Before `configure` is called (tests, libraries) only warnings and errors appear.  Log records of other libraries get the
same form.  Control characters are escaped, so a value can never forge a second line.  UUIDs have the form that
`kctl` shows, so that an id can be searched for in both.  A line that cannot be written is lost.
"""

from __future__ import annotations

import contextlib
import logging
import sys
from collections.abc import Callable
from typing import Any, Protocol, TextIO, cast
from uuid import UUID

from quorumlog.words import printable, rfc3339, uuid_text

_blocked = "rich" not in sys.modules
if _blocked:  # structlog.dev, unused here, would import rich if installed: 50 ms of each start
    sys.modules["rich"] = None  # type: ignore[assignment]
try:
    import structlog
finally:
    if _blocked:
        del sys.modules["rich"]

LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}

_EventDict = structlog.typing.EventDict


class Logger(Protocol):
    """A logger as packages see it."""

    def debug(self, event: str, **keys: Any) -> Any: ...
    def info(self, event: str, **keys: Any) -> Any: ...
    def warning(self, event: str, **keys: Any) -> Any: ...
    def error(self, event: str, **keys: Any) -> Any: ...
    def exception(self, event: str, **keys: Any) -> Any:
        """Log an error with the traceback of the exception being handled."""
        ...

    def bind(self, **keys: Any) -> Logger:
        """Return a logger that adds `keys` to each line."""
        ...


class LineBudget:
    """Limits warnings that remote clients can cause.

    Logs at most `lines` of them in each window of `interval_s`, and counts the others.  A window begins with the first
    warning after the end of the previous window.
    """

    def __init__(self, logger: Logger, now: Callable[[], float], lines: int = 20, interval_s: float = 10.0) -> None:
        self._logger = logger
        self._now = now
        self._lines = lines
        self._interval_s = interval_s
        self._begin = float("-inf")
        self._used = 0
        self.suppressed = 0

    def warning(self, event: str, **keys: object) -> None:
        now = self._now()
        if now - self._begin >= self._interval_s:
            self._begin, self._used = now, 0
        if self._used >= self._lines:
            self.suppressed += 1
            return
        self._used += 1
        if self.suppressed:
            keys["lines_suppressed"], self.suppressed = self.suppressed, 0
        self._logger.warning(event, **keys)


class _Lines(structlog.PrintLogger):
    """Writes lines to a stream.  If the disk is full or the pipe is closed, lines are lost."""

    def msg(self, message: str) -> None:
        with contextlib.suppress(OSError, ValueError):  # ValueError: the stream is closed
            super().msg(message)

    log = debug = info = warn = warning = msg
    fatal = failure = err = error = critical = exception = msg


def _lines_to(stream: TextIO) -> Callable[..., _Lines]:
    """Return a factory of loggers."""
    return lambda *_: _Lines(stream)


def get_logger(room: str) -> Logger:
    """Return a logger whose lines name the package; a later `configure` also applies to it."""
    return cast(Logger, structlog.get_logger(room=room))


def _no_time(_logger: Any, _method: str, event: _EventDict) -> _EventDict:
    return event


def _stamper(wall_ms: Callable[[], int]) -> structlog.typing.Processor:
    def stamp(_logger: Any, _method: str, event: _EventDict) -> _EventDict:
        event["ts"] = rfc3339(wall_ms())
        return event

    return stamp


_PLAIN = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._:/@,+-[]{}()<>|*%#~^&;!?$'")


def _word(value: Any) -> str:
    """Return a value as one word of a line: quoted unless all characters are plain, with control characters escaped."""
    if value is None:
        return "-"
    if value is True or value is False:
        return "true" if value else "false"
    text = _plain(value)
    if text and all(character in _PLAIN for character in text):
        return text
    shown = printable(text.replace("\\", "\\\\").replace('"', '\\"'))
    return f'"{shown}"'


def _plain(value: Any) -> str:
    """Return a value as text, also where JSON has no type for it."""
    return uuid_text(value) if isinstance(value, UUID) else str(value)


def render_text(_logger: Any, _method: str, event: _EventDict) -> str:
    """Return `TIME LEVEL event key=value …`, then the traceback.

    Each line of the traceback is marked, so that it does not look like an event.
    """
    traceback = event.pop("exception", None)
    head = [str(event.pop("ts", "")), str(event.pop("level", "")).upper(), _word(event.pop("event", ""))]
    line = " ".join(part for part in head if part)
    line += "".join(f" {key}={_word(value)}" for key, value in event.items())
    if traceback:
        line += "".join(f"\n    | {row}" for row in str(traceback).splitlines())
    return line


def configure(
    log_format: str = "text",
    level: str = "info",
    *,
    wall_ms: Callable[[], int] | None = None,
    stream: TextIO | None = None,
    **keys: Any,
) -> None:
    """Configure logging of the whole process.  keys: added to every line (node_id, …).  wall_ms: None for no time."""
    bound = dict(keys)

    def add_keys(_logger: Any, _method: str, event: _EventDict) -> _EventDict:
        for key, value in bound.items():
            event.setdefault(key, value)
        return event

    shared: list[structlog.typing.Processor] = [
        structlog.processors.add_log_level,
        _stamper(wall_ms) if wall_ms is not None else _no_time,
        add_keys,
        structlog.processors.format_exc_info,
    ]
    renderer: structlog.typing.Processor = (
        structlog.processors.JSONRenderer(default=_plain) if log_format == "json" else render_text
    )
    out = stream if stream is not None else sys.stderr
    structlog.configure(
        processors=[*shared, renderer],
        wrapper_class=structlog.make_filtering_bound_logger(LEVELS[level]),
        logger_factory=_lines_to(out),
        cache_logger_on_first_use=False,
    )
    handler = logging.StreamHandler(out)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[structlog.stdlib.add_logger_name, *shared],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, renderer],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(max(LEVELS[level], logging.INFO))


structlog.configure(
    processors=[structlog.processors.add_log_level, structlog.processors.format_exc_info, render_text],
    wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING),
    logger_factory=_lines_to(sys.stderr),
    cache_logger_on_first_use=False,
)
