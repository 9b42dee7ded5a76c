"""Errors of simulated programs that nobody handles.  Each one is a violation, even if the program survives it.

Such errors are exceptions of callbacks, exceptions of tasks that nobody awaits, errors that code passes to the loop's
exception handler, and log lines with a traceback.  A program in production logs them for a person to look at, or ends
because of them.  A broken invariant in a request handler is reported here as well: the connection passes it to the
exception handler, which in production ends the process (`quorumlog/runtime/run.py`).
"""

from __future__ import annotations

import logging
import sys
import traceback
from collections.abc import Callable, Iterator, MutableMapping
from contextlib import contextmanager
from typing import Any, NoReturn

import structlog

from simulation.kernel.loop import Process, SimulatedLoop
from simulation.kernel.violation import Violation


@contextmanager
def reported(loop: SimulatedLoop, report: Callable[[str], None]) -> Iterator[None]:
    """Pass each error that nobody handles to `report`, with the host of its process, while `loop` runs."""

    def tell(process: Process | None, error: BaseException) -> None:
        if not isinstance(error, Violation):  # the check that raised it has already reported it
            host = "the simulator" if process is None else process.host
            report(f"{host} has an error that nobody handles: {described(error)}")

    def on_error(_: object, context: dict[str, Any]) -> None:
        if isinstance(error := context.get("exception"), Exception):
            tell(loop.running, error)

    def on_line(_: object, method: str, event: MutableMapping[str, Any]) -> NoReturn:
        if info := event.get("exc_info"):
            error = info if isinstance(info, BaseException) else sys.exc_info()[1]
            if error is not None:
                tell(loop.running, error)
        raise structlog.DropEvent

    loop.set_exception_handler(on_error)
    structlog.configure(
        processors=[on_line],
        wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR),
        cache_logger_on_first_use=False,
    )
    yield
    for process, error in loop.unheard_errors():
        tell(process, error)


def described(error: BaseException) -> str:
    """Return the error and the place where it was raised."""
    if isinstance(error, BaseExceptionGroup):
        return "; ".join(described(one) for one in error.exceptions)
    at = traceback.extract_tb(error.__traceback__)[-3:]
    where = " < ".join(f"{frame.filename.rpartition('/')[2]}:{frame.lineno} {frame.name}" for frame in reversed(at))
    return f"{type(error).__name__}: {error} ({where})"
