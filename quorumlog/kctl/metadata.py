"""kctl metadata: the records of the metadata log as they arrive, and the cluster as of any offset.

An offset refers to the records below it: `at 7` shows the result of records 0 to 6, `diff 7 9` the changes by 7 and 8.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from quorumlog.errors import ClusterError
from quorumlog.kctl import metadata_diff
from quorumlog.kctl.broker_look import broker_document
from quorumlog.kctl.context import Context, Group, with_loop
from quorumlog.kctl.numbers import IntRange
from quorumlog.kctl.refusals import refusal
from quorumlog.kctl.topics import topic_document
from quorumlog.wire.errors import ApiError
from quorumlog.words import rfc3339

if TYPE_CHECKING:
    from quorumlog.kctl.metadata_history import History

NOW = -1
_OFFSET_DIGITS_MAX = 18


BEGINNING = -2


def _offset_or(**words: int) -> Callable[[click.Context, click.Parameter, str], int]:
    """Return a parser for an offset, or for a word that represents one."""

    def parse(_context: click.Context, _parameter: click.Parameter, text: str) -> int:
        if text in words:
            return words[text]
        if text.isascii() and text.isdigit() and len(text) <= _OFFSET_DIGITS_MAX:
            return int(text)
        raise click.BadParameter(f"{text!r} is not an offset (a whole number, or {' or '.join(words)})")

    return parse


@click.group("metadata", cls=Group)
def group() -> None:
    """Read the metadata log, and the cluster at earlier offsets."""


@group.command("tail")
@click.option(
    "--from", "start", default="end", callback=_offset_or(beginning=BEGINNING, end=NOW),
    metavar="beginning|end|OFFSET", help="Where to begin (default end).",
)  # fmt: skip
@click.option("--max-records", type=IntRange(1), help="Stop after this many records.")
@click.option("--exit-at-end", is_flag=True, help="Stop after the last record that exists when the command starts.")
@with_loop
async def tail(context: Context, start: int, max_records: int | None, exit_at_end: bool) -> None:
    """Print committed metadata records as they arrive.

    --timeout, if given, limits the whole command; its default limits only each request.  If a node stops, the command
    continues with the others and omits no record.
    """
    from quorumlog.kctl.metadata_history import History

    context.interrupted, context.ends_with_output = "", True
    context.lift_limit()
    try:
        async with asyncio.timeout(context.follow_s), context.client() as client:
            begin = History(client, lambda: context.left_s)
            history = History(client, lambda: context.deadline_s)
            await _tail(context, begin, history, start, max_records, exit_at_end)
    except TimeoutError:
        raise ClusterError(
            ApiError.TIMED_OUT, f"the requested records did not arrive within {context.deadline_s:g} s", retriable=True
        ) from None


async def _tail(
    context: Context, begin: History, history: History, start: int, max_records: int | None, exit_at_end: bool
) -> None:
    """Print records.

    begin: sends the first requests, which must end within the command's time, so that their error is reported.
    history: sends all later requests, each of which may take as long as the whole command.
    """
    from quorumlog.kctl.metadata_records import Names, lines

    await begin.learn_nodes()
    first = await begin.read(NOW, wait=False)
    end = first.high_watermark
    offset = {BEGINNING: first.log_start, NOW: end}.get(start, start)
    described = await begin.describe(offset, without_partitions=True)
    names = Names((topic.topic_id, topic.name) for topic in described.topics)
    shown = 0
    while not exit_at_end or offset < end:
        reply = await (history.read_known(offset) if exit_at_end else history.follow(offset))
        for batch in reply.batches:
            for line in lines(batch, names):
                if line.offset < offset or (exit_at_end and line.offset >= end):
                    continue
                _show_line(context, line)
                shown += 1
                if shown == max_records:
                    return
        offset = max(offset, reply.next_offset)


def _topics_option(function: Any) -> Any:
    return click.option(
        "--topic", "topics", metavar="T", multiple=True, help="Only this topic (may be given more than once)."
    )(function)


@group.command("at")
@click.argument("offset", callback=_offset_or(end=NOW))
@_topics_option
@with_loop
async def at(context: Context, offset: int, topics: tuple[str, ...]) -> None:
    """Show the cluster as of an offset; `end` is the current end of the log."""
    from quorumlog.kctl.metadata_history import History

    async with context.client() as client:
        reply = await History(client, lambda: context.left_s).describe(offset, topics)
    document = state_document(reply)
    _tell_if_inside(context, offset, document)
    for topic in reply.topics:
        if topic.result.error not in (ApiError.NONE, ""):
            raise refusal(topic.result)
    if context.output.is_json:
        context.output.document(document)
    else:
        show_state(context, document)


@group.command("diff")
@click.argument("before", metavar="A", callback=_offset_or(end=NOW))
@click.argument("after", metavar="B", default="end", callback=_offset_or(end=NOW))
@_topics_option
@with_loop
async def diff(context: Context, before: int, after: int, topics: tuple[str, ...]) -> None:
    """Show the changes between offset A and offset B (default: the end)."""
    from quorumlog.kctl.metadata_history import History

    async with context.client() as client:
        history = History(client, lambda: context.left_s)
        old, new = [state_document(await history.describe(offset, topics)) for offset in (before, after)]
    known = {topic["name"] for document in (old, new) for topic in document["topics"]}
    for name in dict.fromkeys(topics):
        if name not in known:
            context.output.message(f"topic {name!a} exists at neither offset")
    for offset, document in ((before, old), (after, new)):
        _tell_if_inside(context, offset, document)
    changes = metadata_diff.diff(old, new)
    if context.output.is_json:
        ends = {"from": old["offset"], "to": new["offset"], "from_at": old["at"], "to_at": new["at"]}
        context.output.document({**ends, "changes": [change._asdict() for change in changes]})
        return
    context.output.message(f"from {_when(old)} to {_when(new)}")
    for line in metadata_diff.words(changes):
        context.output.text(line)
    if not changes:
        context.output.message("no differences")


@group.command("dump")
@click.argument("file", type=click.Path())
@click.option(
    "--from", "start", default="beginning", callback=_offset_or(beginning=0), metavar="beginning|OFFSET",
    help="For a log: where to begin (default beginning).",
)  # fmt: skip
@click.option("--topic", "topics", metavar="T", multiple=True, help="For a snapshot: only this topic.")
@with_loop
async def dump(context: Context, file: str, start: int, topics: tuple[str, ...]) -> None:
    """Read the metadata of a stopped node from its disk.

    FILE is a data directory or a .snapshot file; it is not changed.  A log is printed as by `tail`, but its last
    records may never have been committed.  A snapshot is printed as by `at`.
    """
    from quorumlog.kctl.metadata_dump import Dump
    from quorumlog.kctl.metadata_records import Names, lines

    context.interrupted, context.ends_with_output = "nothing was changed", True
    names = Names()
    async with Dump(file, topics) as reader:
        async for found in reader:
            match found.kind:
                case "about":
                    context.output.message(found.content)
                case "names":
                    names = Names((topic.topic_id, topic.name) for topic in found.content.topics)
                case "batch":
                    for line in lines(found.content, names):
                        if line.offset >= start:
                            _show_line(context, line)
                case "state":
                    for topic in found.content.topics:
                        if topic.result.error not in (ApiError.NONE, ""):
                            text = f"{file}: {topic.result.message}"
                            raise ClusterError(topic.result.error, text, "omit --topic to see all topics")
                    document = state_document(found.content)
                    if context.output.is_json:
                        context.output.document(document)
                    else:
                        show_state(context, document)


def _show_line(context: Context, line: Any) -> None:
    if context.output.is_json:
        context.output.line(line.document())
    else:
        context.output.text(str(line))


def _tell_if_inside(context: Context, offset: int, document: dict[str, Any]) -> None:
    if offset not in (NOW, document["offset"]):
        context.output.message(
            f"offset {offset} is inside a batch, and batches are atomic: this is the cluster at {document['offset']}"
        )


def _when(document: dict[str, Any]) -> str:
    return f"offset {document['offset']}" + (f" ({document['at']})" if document["at"] else "")


def state_document(reply: Any) -> dict[str, Any]:
    """Return the JSON of a DescribeMetadataReply."""
    return {
        "offset": reply.offset,
        "at": rfc3339(reply.timestamp_ms) if reply.timestamp_ms else None,
        "history_begins": reply.history_begins,
        "voters": [_voter(voter) for voter in reply.voters],
        "target_voters": [_voter(voter) for voter in reply.target_voters] or None,
        "brokers": [_broker(broker) for broker in reply.brokers],
        "topics": [topic_document(topic) for topic in reply.topics if topic.result.error in (ApiError.NONE, "")],
        "configs": [_config(config) for config in reply.configs],
        "preferred_controllers": list(reply.preferred_controllers),
        "features": [{"name": feature.name, "level": feature.level} for feature in reply.features],
    }


_ONLY_HEARTBEATS_TELL = ("metadata_offset", "metadata_lag", "pending_changes")


def _broker(broker: Any) -> dict[str, Any]:
    document = broker_document(broker)
    return {name: value for name, value in document.items() if name not in _ONLY_HEARTBEATS_TELL}


def _voter(voter: Any) -> dict[str, Any]:
    return {"id": voter.node_id, "address": voter.address}


def _config(config: Any) -> dict[str, Any]:
    from quorumlog.wire.v1 import metadata_pb2

    scope = metadata_pb2.Config.Scope.Name(config.scope).removeprefix("SCOPE_").lower()
    return {"scope": scope, "resource": config.resource or None, "name": config.key, "value": config.value}


def show_state(context: Context, document: dict[str, Any]) -> None:
    """Print the whole cluster, for people."""
    output = context.output
    output.message(f"the cluster at {_when(document)}; history begins at {document['history_begins']}")
    for what in ("voters", "target_voters"):
        if document[what]:
            listed = ", ".join(f"{voter['id']}@{voter['address']}" for voter in document[what])
            output.text(f"{what.replace('_', ' ')}: {listed}")
    columns = ("id", "state", "rack", "broker_epoch", "leaders", "replicas")
    if document["brokers"]:
        output.table(
            (*columns, "endpoints"),
            [
                [
                    *(one[column] for column in columns),
                    [f"{e['name']}={e['host']}:{e['port']}" for e in one["endpoints"]],
                ]
                for one in document["brokers"]
            ],
            title="brokers",
        )
    fields = ("partition", "leader", "leader_epoch", "partition_epoch", "replicas", "isr", "elr", "adding", "removing")
    for topic in document["topics"]:
        configs = " ".join(f"{config['name']}={config['value']}" for config in topic["configs"])
        output.table(
            fields,
            [[_none(partition[field]) for field in fields] for partition in topic["partitions"]],
            title=f"{topic['name']}  {topic['topic_id']}  {configs}",
        )
    for config in document["configs"]:
        of = "the cluster" if config["scope"] == "cluster" else f"{config['scope']} {config['resource']}"
        output.text(f"config of {of}: {config['name']}={config['value']}")
    if document["preferred_controllers"]:
        output.text(f"preferred controllers: {','.join(map(str, document['preferred_controllers']))}")
    for feature in document["features"]:
        output.text(f"feature {feature['name']}: level {feature['level']}")


def _none(value: Any) -> Any:
    """Return None for an empty list, so that a table shows `-`."""
    return None if value == [] else value
