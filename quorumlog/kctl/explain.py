"""kctl explain: the history of a partition, change by change, with the reason and cause of each."""

from __future__ import annotations

from typing import Any

import click

from quorumlog.kctl.context import Command, Context, with_loop
from quorumlog.kctl.numbers import IntRange
from quorumlog.kctl.output import duration_text
from quorumlog.words import rfc3339

PARTITION_MAX = 2**31 - 1
NO_OFFSET = -1
_INDENT = 10


def parse_partition(_context: click.Context, _parameter: click.Parameter, text: str) -> tuple[str, int]:
    """Parse `orders-0`: a topic, which may contain dashes, and one of its partitions."""
    topic, dash, index = text.rpartition("-")
    if not topic or not dash or not (index.isascii() and index.isdigit()) or _number(index) > PARTITION_MAX:
        raise click.BadParameter(f"{text!r} is not like orders-0 (TOPIC-PARTITION)")
    return topic, _number(index)


def _number(digits: str) -> int:
    """Parse a number of any length.  Twelve significant digits suffice to detect that a number is out of range."""
    return int(digits.lstrip("0")[:12] or "0")


@click.command("explain", cls=Command)
@click.argument("partition", metavar="TOPIC-PARTITION", callback=parse_partition)
@click.option("--last", type=IntRange(1, 1000), metavar="N", help="Only the latest N changes (default: at most 1000).")
@with_loop
async def command(context: Context, partition: tuple[str, int], last: int | None) -> None:
    """Show why a partition is in its state, change by change."""
    from quorumlog.kctl.nodes import ask_freshest
    from quorumlog.wire import rpcs
    from quorumlog.wire.v1 import controller_pb2, node_pb2

    topic, index = partition
    asked = controller_pb2.TopicPartition(topic=topic, index=index)
    request = node_pb2.ExplainPartitionRequest(
        partition=asked
    )  # request all changes, even with --last: their texts contain values that earlier changes set
    async with context.client() as client:
        reply = await ask_freshest(client, rpcs.EXPLAIN_PARTITION, request, context.left_s)
    if is_cut := last is not None and len(reply.chain) > last:
        del reply.chain[: len(reply.chain) - (last or 0)]
        reply.complete = False
    if context.output.is_json:
        context.output.document(document(topic, index, reply))
    else:
        _tell(context, reply, is_cut=is_cut)


def document(topic: str, index: int, reply: Any) -> dict[str, Any]:
    """Return the JSON of an ExplainPartitionReply."""
    return {
        "topic": topic,
        "partition": index,
        "now": reply.now,
        "chain": [
            {
                "offset": change.offset,
                "at": rfc3339(change.timestamp_ms),
                "reason": change.reason,
                "cause_offset": None if change.cause_offset == NO_OFFSET else change.cause_offset,
                "text": change.text,
                "controller_epoch": change.epoch,
            }
            for change in reply.chain
        ],
        "history_begins": reply.history_begins,
        "offset": reply.offset,
        "complete": reply.complete,
    }


def _tell(context: Context, reply: Any, *, is_cut: bool) -> None:
    """Print the current state, then the history, then where the history begins."""
    output = context.output
    state, *problems = reply.now.split(". ")
    output.styled(state, "bold")
    for problem in problems:
        output.styled(f"{problem}.", "yellow")
    before_ms = None
    for change in reply.chain:
        gap = "" if before_ms is None else f"  {duration_text(change.timestamp_ms - before_ms)} later"
        before_ms = change.timestamp_ms
        what, because, why = change.text.rpartition(", because ")
        output.text("")
        output.styled(f"{change.offset:>{_INDENT - 2}}  {rfc3339(change.timestamp_ms)}  {change.reason}{gap}", "cyan")
        for line in (what, f"because {why}") if because else (change.text,):
            output.wrapped(line, _INDENT)
    told = f"as of offset {reply.offset} of the metadata log"
    if is_cut:
        told += "; there are earlier changes (omit --last to see them)"
    elif not reply.complete:
        told += (
            f"; earlier changes are not shown: the node's log begins at offset {reply.history_begins},"
            " and an answer contains at most 1,000 changes"
        )
    output.message(told)
