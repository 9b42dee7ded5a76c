"""Asks for confirmation before records are deleted, and counts these records."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import click

from quorumlog.errors import QuorumlogError
from quorumlog.kctl.context import Context
from quorumlog.kctl.data import open_cluster
from quorumlog.words import printable

COUNT_S = 10.0
"""Time limit for counting the records; after it, their number is unknown."""


async def lost_records(context: Context, name: str, indexes: range) -> int | None:
    """Return the number of offsets in these partitions; None if they could not be counted in time."""
    from quorumlog.client.consumer import EARLIEST, LATEST, Consumer

    try:
        async with (
            asyncio.timeout(min(context.left_s / 2, COUNT_S)),
            open_cluster(context, name) as (cluster, _),
        ):
            consumer = Consumer(cluster)
            first = await consumer.list_offsets({(name, index): EARLIEST for index in indexes})
            end = await consumer.list_offsets({(name, index): LATEST for index in indexes})
    except (QuorumlogError, TimeoutError, OSError):
        return None
    return sum(int(end[key].offset - first[key].offset) for key in first)


class DeclinedError(Exception):
    """The user answered a confirmation with no, so nothing was changed."""


def ask(context: Context, question: str) -> None:
    """Ask for confirmation.  The time limit of the command starts over after the answer.

    Raises:
        DeclinedError: the answer was not yes.
        click.Abort: Ctrl-C, or the end of the input.
    """
    before, context.interrupted = context.interrupted, "nothing was changed"
    with _interruptible():
        is_confirmed = click.confirm(printable(question), err=True)
    if not is_confirmed:
        raise DeclinedError
    context.interrupted = before
    context.start_over()


@contextmanager
def _interruptible() -> Iterator[None]:
    """Let Ctrl-C end the block at once.

    asyncio turns the first Ctrl-C into a cancellation, which does not end a prompt.  A later "y" would still count.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
