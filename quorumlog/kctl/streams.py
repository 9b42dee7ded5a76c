"""Standard input, output and error, any of which may be closed, full, not a terminal, or not UTF-8.

Output to a closed stream is discarded, as if the stream were /dev/null.  Closed standard input is an error only for
commands that read it.  Characters that an encoding lacks are written as escapes.
"""

from __future__ import annotations

import contextlib
import io
import os
import sys
from typing import TextIO

import click


def prepare() -> None:
    """Make the standard streams usable.  Call this once, before anything opens a descriptor."""
    for descriptor in (0, 1, 2):
        try:
            os.fstat(descriptor)
        except OSError:  # closed: otherwise a socket could get this number, and receive the output of kctl
            opened = os.open(os.devnull, os.O_RDWR)
            if opened != descriptor:
                os.dup2(opened, descriptor)
                os.close(opened)
    for descriptor in (1, 2):
        if not os.get_blocking(descriptor):  # left non-blocking by another program; Python would lose output silently
            os.set_blocking(descriptor, True)
    if sys.stdout is None:
        sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115 - for as long as the process runs
    if sys.stderr is None:
        sys.stderr = open(2, "w", closefd=False)  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def standard_input(what: str) -> TextIO:
    """Return standard input, for a command that reads it.

    what: the data that the command reads, in words.

    Raises:
        click.UsageError: standard input is closed.
    """
    if sys.stdin is None:
        raise click.UsageError(f"standard input is closed, but {what} would be read from it: name a file")
    return sys.stdin


def can_ask() -> bool:
    """Return whether a person can answer a question."""
    return sys.stdin is not None and sys.stdin.isatty()


def is_utf8(stream: TextIO) -> bool:
    """Return whether `stream` uses UTF-8, which can encode every character."""
    return (getattr(stream, "encoding", None) or "utf-8").lower().replace("_", "-") in ("utf-8", "utf8")


def say(text: str) -> None:
    """Write a line to standard error; do nothing if it cannot be written."""
    try:
        print(text, file=sys.stderr, flush=True)
    except OSError:
        discard(sys.stderr)


def flush() -> None:
    """Write buffered output, as the interpreter does at exit."""
    for stream in (sys.stdout, sys.stderr):
        discard_if_unwritable(stream)


def discard_if_unwritable(stream: TextIO) -> None:
    """Flush the stream, and `discard` it if its buffered output cannot be written."""
    try:
        stream.flush()
    except OSError:
        discard(stream)


def discard(stream: TextIO) -> None:
    """Discard everything written to `stream` from now on, including at the interpreter's exit."""
    with contextlib.suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)
