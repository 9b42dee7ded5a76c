"""Runs a server process: event loop, signals, readiness, exit status and last line.

`serve(body)` runs `body(process)` until it returns.  `body` builds the server, calls `process.ready(…)`, awaits
`process.stopped()`, and shuts down gracefully.  SIGTERM or SIGINT requests the stop.  After `shutdown_timeout_ms` the
body is cancelled, and `KILL_GRACE_S` later the process ends even if something hangs.  A thread may still be in a system
call when the body ends, for example on a disk that hangs.  It delays the end of the process by at most `KILL_GRACE_S`.

An AssertionError in a callback of the loop is a broken invariant that no task can raise.  It cancels the body, and is
the cause with which the process ends.  Any other exception in a callback is only logged.

`serve` first raises the limit of open files as far as the system permits (`quorumlog.runtime.descriptors`).

Exit status: 0 asked to stop · 1 failed, a restart may help · 2 configuration, data directory or port · 7 disk or
corruption.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import os
import signal
import socket
import sys
from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import Any

from quorumlog.errors import ConfigError, FatalError, QuorumlogError
from quorumlog.runtime.descriptors import raise_descriptor_limit
from quorumlog.runtime.garbage import keep_loaded, short_pauses
from quorumlog.runtime.logging import get_logger
from quorumlog.runtime.loop_watch import watched_loop

logger = get_logger("run")

EXIT_OK = 0
EXIT_FAILED = 1
EXIT_CONFIG = 2

KILL_GRACE_S = 5.0
"""Seconds until the forced end of the process: after a late shutdown or a broken invariant has cancelled the body, and
after the body's end."""

FAREWELL_S = 2.0
"""Seconds for saving and reporting why the process ends."""

NOTIFY_AGAIN_S = 0.5
"""Time until a notification is sent again if the receiver had no room for it."""

_CONFIG_ERRNOS = (errno.EADDRINUSE, errno.EADDRNOTAVAIL, errno.EACCES, errno.EPERM)


OnEnd = Callable[[int, BaseException | None], Awaitable[None]]
"""Called with the exit status and its cause, which is None with status 0."""


class Process:
    """A server body's interface to its process.

    on_end: called once the body has ended; it has `FAREWELL_S`, and its exceptions are only logged.  Assignable.
    """

    def __init__(self, log_format: str, environ: Mapping[str, str]) -> None:
        self._log_format = log_format
        self._stop = asyncio.Event()
        self._notifier = Notifier(environ)
        self.stop_reason = ""
        self.on_end: OnEnd | None = None

    def stop(self, reason: str) -> None:
        """Ask the body to stop; only the first reason counts."""
        if not self._stop.is_set():
            self.stop_reason = reason
            logger.info("stopping", reason=reason)
            self._notifier.send("STOPPING=1", f"STATUS=stopping: {reason}")
            self._stop.set()

    @property
    def is_stopping(self) -> bool:
        """Return whether this process was asked to stop."""
        return self._stop.is_set()

    async def reaches(self, condition: Awaitable[None]) -> bool:
        """Wait for `condition`; if this process is asked to stop first, cancel it and return False.

        Raises: the exceptions of `condition`.
        """
        reached = asyncio.ensure_future(condition)
        stopped = asyncio.ensure_future(self._stop.wait())
        try:
            await asyncio.wait([reached, stopped], return_when=asyncio.FIRST_COMPLETED)
            if reached.done():
                reached.result()
                return True
            return False
        finally:
            for future in (reached, stopped):
                future.cancel()
            await asyncio.wait([reached, stopped])

    async def stopped(self) -> None:
        """Wait until this process is asked to stop."""
        await self._stop.wait()

    def ready(self, **fields: object) -> None:
        """Report on standard output and to systemd that this process serves."""
        shown = {name: value for name, value in fields.items() if value is not None}
        if self._log_format == "json":
            line = json.dumps({"event": "ready", **{name: _plain(value) for name, value in shown.items()}})
        else:
            line = " ".join(["ready", *(f"{name}={value}" for name, value in shown.items())])
        with contextlib.suppress(OSError):  # standard output may be closed
            print(line, flush=True)
        keep_loaded()
        loop = asyncio.get_running_loop()
        self._notifier.send_surely(loop, "READY=1", f"STATUS={line}")
        self._notifier.start_watchdog(loop)


def _plain(value: object) -> object:
    return value if isinstance(value, int | float) else str(value)


class Notifier:
    """systemd's notification protocol: datagrams to $NOTIFY_SOCKET, and a heartbeat if $WATCHDOG_USEC requests it."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._path = environ.get("NOTIFY_SOCKET", "")
        microseconds = environ.get("WATCHDOG_USEC", "")
        wanted = environ.get("WATCHDOG_PID", str(os.getpid())) == str(os.getpid())
        self._interval_s = int(microseconds) / 2e6 if microseconds.isdigit() and wanted else 0.0

    def send(self, *lines: str) -> bool:
        """Send state lines; return False if the receiver has no room.  Without a socket or a receiver, do nothing."""
        if not self._path.startswith(("/", "@")):
            return True
        address = "\0" + self._path[1:] if self._path.startswith("@") else self._path
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
                sender.setblocking(False)
                sender.sendto("\n".join(lines).encode(), address)
        except BlockingIOError:
            return False
        except OSError:
            return True
        return True

    def send_surely(self, loop: asyncio.AbstractEventLoop, *lines: str) -> None:
        """Send state lines for which the receiver waits.  If it has no room, send them again later."""
        if not self.send(*lines):
            loop.call_later(NOTIFY_AGAIN_S, self.send_surely, loop, *lines)

    def start_watchdog(self, loop: asyncio.AbstractEventLoop) -> None:
        """Start to report that the loop runs, at twice the requested rate."""
        if self._interval_s > 0:
            self.send("WATCHDOG=1")
            loop.call_later(self._interval_s, self.start_watchdog, loop)


Body = Callable[[Process], Awaitable[None]]


def serve(
    program: str,
    body: Body,
    *,
    log_format: str,
    shutdown_timeout_ms: int,
    environ: Mapping[str, str],
    loop_held_ms: int = 0,
) -> int:
    """Run a server to its end, report an error on standard error, and return the exit status.

    loop_held_ms: log what holds the event loop for at least this long; 0: log nothing (see `loop_watch`).
    """
    raise_descriptor_limit()
    try:
        with asyncio.Runner(loop_factory=_loop_factory()) as runner, short_pauses():
            return runner.run(_watched(_main(program, body, log_format, shutdown_timeout_ms, environ), loop_held_ms))
    except KeyboardInterrupt:
        return EXIT_OK


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop


async def _watched(main: Awaitable[int], loop_held_ms: int) -> int:
    with watched_loop(loop_held_ms / 1000):
        return await main


async def _main(program: str, body: Body, log_format: str, shutdown_timeout_ms: int, environ: Mapping[str, str]) -> int:
    loop = asyncio.get_running_loop()
    process = Process(log_format, environ)
    task = asyncio.ensure_future(_call(body, process))

    def on_signal(name: str) -> None:
        if process.is_stopping:  # a second signal stops immediately
            task.cancel()
            return
        process.stop(name)
        loop.call_later(shutdown_timeout_ms / 1000, _give_up, loop, task, log_format, program)

    for name in ("SIGTERM", "SIGINT"):
        loop.add_signal_handler(getattr(signal, name), on_signal, name)
    broken = _broken_invariants(loop, task, log_format, program)
    status, cause = await _ended(program, task, log_format, broken)
    if process.on_end is not None:
        await _note_end(process.on_end, status, cause)
    if status == EXIT_OK:  # otherwise the last line is the error
        logger.info("stopped", reason=process.stop_reason)
    loop.call_later(KILL_GRACE_S, _end_without_threads, status)  # closing the loop waits for its threads
    return status


def _broken_invariants(
    loop: asyncio.AbstractEventLoop, task: asyncio.Future[None], log_format: str, program: str
) -> list[AssertionError]:
    """Return the broken invariants that loop callbacks raise from now on; the first one cancels `task`."""
    broken: list[AssertionError] = []

    def end_with(error: AssertionError) -> None:
        broken.append(error)
        logger.error("broken invariant, ending the process", exc_info=error)
        if len(broken) == 1:
            task.cancel()
            loop.call_later(KILL_GRACE_S, _end_now, task, program, log_format, error)

    def on_exception(_: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if isinstance(error, AssertionError) and not task.done():
            loop.call_soon_threadsafe(end_with, error)  # the garbage collector reports lost futures from any thread
        else:
            loop.default_exception_handler(context)

    loop.set_exception_handler(on_exception)
    return broken


async def _ended(
    program: str, task: asyncio.Future[None], log_format: str, broken: list[AssertionError]
) -> tuple[int, BaseException | None]:
    """Wait for the body to end, report an error, and return the exit status and its cause."""
    failures: list[BaseException] = []
    try:
        await task
    except asyncio.CancelledError:
        if not broken:
            failures.append(QuorumlogError("stopped before the graceful shutdown was complete"))
    except BaseException as error:
        failures.append(error)
    failures[:0] = broken
    if not failures:
        return EXIT_OK, None
    status, cause = exit_status(BaseExceptionGroup("the body and its callbacks", failures))
    if not isinstance(cause, QuorumlogError | OSError) and cause not in broken:
        logger.error("unexpected failure", exc_info=failures[-1])
    report(program, cause, log_format)
    return status, cause


async def _note_end(on_end: OnEnd, status: int, cause: BaseException | None) -> None:
    """Run the callback; a failure is logged and does not change the exit status."""
    try:
        async with asyncio.timeout(FAREWELL_S):
            await on_end(status, cause)
    except Exception as error:
        logger.debug("the cause was not saved everywhere", cause=repr(error))  # the last line names the cause anyway


async def _call(body: Body, process: Process) -> None:
    await body(process)


def _give_up(loop: asyncio.AbstractEventLoop, task: asyncio.Future[None], log_format: str, program: str) -> None:
    if task.done():
        return
    logger.error("graceful stop took too long, cancelling")
    task.cancel()
    late = QuorumlogError("still not stopped after being cancelled, ending the process")
    loop.call_later(KILL_GRACE_S, _end_now, task, program, log_format, late)


def _end_now(task: asyncio.Future[None], program: str, log_format: str, cause: BaseException) -> None:
    if task.done():
        return  # only threads remain: `_end_without_threads`
    report(program, cause, log_format)
    os._exit(EXIT_FAILED)


def _end_without_threads(status: int) -> None:
    logger.warning("a thread hangs: ending the process without it")
    os._exit(status)


def exit_status(error: BaseException) -> tuple[int, BaseException]:
    """Return the exit status for a failure, and the most severe of its causes, which determines the status."""
    graded = [(_grade(leaf), position, leaf) for position, leaf in enumerate(_leaves(error))]
    status, _, cause = max(graded, key=lambda entry: (entry[0], -entry[1]))
    return status, cause


def _leaves(error: BaseException) -> Iterator[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            yield from _leaves(inner)
    else:
        yield error


def _grade(error: BaseException) -> int:
    if isinstance(error, QuorumlogError):
        return error.exit_status
    if isinstance(error, OSError) and error.errno in _CONFIG_ERRNOS:
        return EXIT_CONFIG
    return EXIT_FAILED


def in_words(error: BaseException) -> tuple[str, str]:
    """Return the problem with its cause, and the next step, which may be empty."""
    message = str(error) or type(error).__name__
    if isinstance(error, QuorumlogError):
        return message, error.next_step
    return f"{type(error).__name__}: {message}", ""


def report(program: str, error: BaseException, log_format: str) -> None:
    """Print an error as one line on standard error, or as one JSON object."""
    message, next_step = in_words(error)
    if log_format == "json":
        name = type(error).__name__
        retriable = not isinstance(error, ConfigError | FatalError)
        line = json.dumps({"error": name, "message": message, "next": next_step, "retriable": retriable})
    else:
        line = f"{program}: {message}" + (f" (next: {next_step})" if next_step else "")
    with contextlib.suppress(OSError):
        print(" ".join(line.splitlines()), file=sys.stderr, flush=True)
