"""kctl transactions: lists and describes transactions, and finds those that hang.  Another module aborts them."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any

import click

from quorumlog.errors import ClusterError
from quorumlog.kctl.context import Context, Group, with_loop
from quorumlog.kctl.data import broker_addresses
from quorumlog.kctl.group_access import TopicChoice, incomplete, parse_topic
from quorumlog.kctl.group_reset_plan import parse_duration
from quorumlog.kctl.numbers import IntRange
from quorumlog.kctl.output import duration_text
from quorumlog.kctl.reads import Reads
from quorumlog.runtime.clock import Sources
from quorumlog.wire.errors import ApiError, KafkaCode
from quorumlog.wire.scope_names import attempt_of, scope_of
from quorumlog.words import counted, rfc3339

if TYPE_CHECKING:
    from quorumlog.client.cluster import Cluster
    from quorumlog.client.scope_client import ScopeDescription
    from quorumlog.client.transaction_admin import TransactionClient, TransactionDescription
    from quorumlog.client.transaction_logs import Hanging, OpenTransaction, StableRange

STATES = ("Empty", "Ongoing", "PrepareCommit", "PrepareAbort", "CompleteCommit", "CompleteAbort", "Dead")
CLOCK_S = 1.0
"""Time limit for the answer of a node about its clock."""
CLOCKS_MAX = 3
"""Maximum number of nodes that are asked about their clocks, one after the other, until one answers."""
LOGS_S = 10.0
"""Time limit for the answers of leaders and coordinators.  A partition without an answer is reported with a problem."""

_LISTED = ("transactional_id", "state", "producer_id", "coordinator", "scope")
_PARTITIONS = ("topic", "partition", "start_offset", "last_stable_offset", "high_watermark", "lag")
_HANGING = ("topic", "partition", "start_offset", "producer_id", "producer_epoch", "transactional_id", "lag", "reason")


@click.group("transactions", cls=Group)
def group() -> None:
    """Show transactions, find those that hang, and abort them."""


@asynccontextmanager
async def open_transactions(context: Context) -> AsyncIterator[tuple[Cluster, TransactionClient]]:
    """Yield clients for the brokers, and close them afterwards.

    Any node may report the brokers, so no active controller is needed.

    Raises:
        ClusterError: no node answers, or no broker is registered.
    """
    from quorumlog.client.cluster import Cluster
    from quorumlog.client.transaction_admin import TransactionClient

    async with context.client() as client:
        addresses = await broker_addresses(Reads(context, client))
    async with Cluster(addresses, client_id="kctl") as cluster:
        yield cluster, TransactionClient(cluster)


def _duration(_context: click.Context, _parameter: click.Parameter, text: str | None) -> int | None:
    try:
        return None if text is None else parse_duration(text)
    except (ValueError, OverflowError) as error:
        raise click.BadParameter(str(error)) from None


def _pattern(_context: click.Context, _parameter: click.Parameter, text: str | None) -> re.Pattern[str] | None:
    try:
        return None if text is None else re.compile(text)
    except re.error as error:
        raise click.BadParameter(f"{text!r} is not a regular expression: {error}") from None


# -- list


@group.command("list")
@click.option(
    "--state",
    "states",
    multiple=True,
    type=click.Choice(STATES, case_sensitive=False),
    help="Only in this state (may be repeated).",
)
@click.option(
    "--producer-id",
    "producer_ids",
    multiple=True,
    type=IntRange(min=0),
    metavar="ID",
    help="Only of this producer (may be repeated).",
)
@click.option(
    "--longer-than",
    "longer_than_ms",
    callback=_duration,
    metavar="DURATION",
    help="Only transactions that are open for longer, for example 90s or 1h.",
)
@click.option(
    "--pattern", callback=_pattern, metavar="REGEX", help="Only ids that this regular expression matches as a whole."
)
@with_loop
async def list_(
    context: Context,
    states: tuple[str, ...],
    producer_ids: tuple[int, ...],
    longer_than_ms: int | None,
    pattern: re.Pattern[str] | None,
) -> None:
    """List the transactional ids of all coordinators.

    Every broker is asked.  If a broker does not answer, the command waits until another broker coordinates its ids.
    If that takes too long, the command lists the ids of the other brokers, and fails.
    """
    async with open_transactions(context) as (_, client):
        found, missing = await client.list_answered(
            context.left_s, states=states, producer_ids=producer_ids, longer_than_ms=longer_than_ms
        )
    rows = [
        each._asdict() | {"scope": scope_of(each.transactional_id)}
        for each in found
        if pattern is None or pattern.fullmatch(each.transactional_id)
    ]
    if context.output.is_json:
        context.output.document(rows)
    else:
        context.output.table(_LISTED, [[row[column] for column in _LISTED] for row in rows])
    if missing is not None:
        raise incomplete(missing, "transactional ids")


# -- describe


@group.command("describe")
@click.argument("transactional_id", metavar="ID")
@with_loop
async def describe(context: Context, transactional_id: str) -> None:
    """Show a transactional id, and the offsets that its open transaction hides from readers of committed records."""
    from quorumlog.client.transaction_logs import open_transactions as look_for
    from quorumlog.client.transaction_logs import stable_ranges

    async with open_transactions(context) as (cluster, client):
        found = await client.describe(transactional_id, context.left_s)
        limit_s = min(context.left_s / 3, LOGS_S)  # a leader that hangs uses up this time twice
        opened = await look_for(cluster, found.partitions, limit_s)
        stable = await stable_ranges(cluster, found.partitions, limit_s)
        described = await _scope_of(cluster, transactional_id, context.left_s)
    document = description_document(found, opened, stable, described, Sources.real().wall_ms())
    if context.output.is_json:
        context.output.document(document)
        return
    head = ("state", "producer_id", "producer_epoch", "coordinator", "timeout_ms", "started_at")
    shown = [f"{name}={document[name]}" for name in head if document[name] is not None]
    if document["open_ms"] is not None:
        shown.append(f"open_for={duration_text(document['open_ms'])}")
    context.output.text(f"{transactional_id}  {' '.join(shown)}")
    if described is not None:
        context.output.text(_scope_text(transactional_id, described))
    if document["partitions"]:
        context.output.table(_PARTITIONS, [[row[column] for column in _PARTITIONS] for row in document["partitions"]])
    for row in document["partitions"]:
        if row["problem"] is not None:
            context.output.message(f"{row['topic']}-{row['partition']}: {row['problem']}")


async def _scope_of(cluster: Cluster, transactional_id: str, timeout_s: float) -> ScopeDescription | None:
    """Return the scope that a transactional id belongs to; None if it belongs to none, or the scope was deleted.

    The scope of a batch write is deleted as soon as the write is complete.  A producer may outlive its scope if the
    coordinator's log lacks the record that deletes the producer (docs/scopes.md).
    """
    from quorumlog.client.scope_client import ScopeClient

    name = scope_of(transactional_id)
    if name is None:
        return None
    try:
        return await ScopeClient(cluster).describe(name, timeout_s)
    except ClusterError as error:
        if error.code != KafkaCode.RESOURCE_NOT_FOUND.name:
            raise
        return None


def description_document(
    found: TransactionDescription,
    opened: dict[tuple[str, int], tuple[OpenTransaction, ...] | ClusterError],
    stable: dict[tuple[str, int], StableRange],
    scope: ScopeDescription | None,
    now_ms: int,
) -> dict[str, Any]:
    """Return the JSON of a transactional id.

    opened, stable: the open transactions and the stable range of each partition of `found`.
    lag: the number of offsets from the transaction's first record to the high watermark.
    """
    partitions = []
    for key in found.partitions:
        in_log, ends = opened[key], stable[key]
        start, problem = None, ends.problem
        if isinstance(in_log, ClusterError):
            problem = in_log.message
        else:
            start = next((each.start_offset for each in in_log if each.producer_id == found.producer_id), None)
        has_lag = start is not None and ends.high_watermark is not None
        partitions.append(
            {
                "topic": key[0],
                "partition": key[1],
                "start_offset": start,
                "last_stable_offset": ends.last_stable_offset,
                "high_watermark": ends.high_watermark,
                "lag": max((ends.high_watermark or 0) - (start or 0), 0) if has_lag else None,
                "problem": problem,
            }
        )
    return {
        "transactional_id": found.transactional_id,
        "state": found.state,
        "producer_id": found.producer_id,
        "producer_epoch": found.producer_epoch,
        "coordinator": found.coordinator,
        "timeout_ms": found.timeout_ms,
        "started_at": None if found.started_ms is None else rfc3339(found.started_ms),
        "open_ms": None if found.started_ms is None else max(now_ms - found.started_ms, 0),
        "scope": None if scope is None else _scope_document(found.transactional_id, scope),
        "partitions": partitions,
    }


def _scope_document(transactional_id: str, scope: ScopeDescription) -> dict[str, Any]:
    """Return the JSON of the scope that a transactional id belongs to."""
    return {
        "name": scope.name,
        "attempt": attempt_of(transactional_id),
        "owner": scope.owner,
        "run": scope.run,
        "epoch": scope.epoch,
        "state": scope.state,
        "last_sequence": scope.last_sequence,
        "updated_at": rfc3339(scope.updated_ms),
    }


def _scope_text(transactional_id: str, scope: ScopeDescription) -> str:
    shown = {each: value for each, value in _scope_document(transactional_id, scope).items() if each != "name"}
    return f"scope {scope.name}  {' '.join(f'{each}={value}' for each, value in shown.items())}"


# -- find-hanging


@group.command("find-hanging")
@click.option(
    "--topic", "topics", multiple=True, metavar="TOPIC[:P,...]", callback=parse_topic, help="Only in this topic."
)
@click.option(
    "--broker", "broker_id", type=IntRange(min=0), metavar="ID", help="Only partitions that this broker leads."
)
@with_loop
async def find_hanging(context: Context, topics: tuple[TopicChoice, ...], broker_id: int | None) -> None:
    """Find transactions that nothing will end.

    Such a transaction is open in a log, but no coordinator knows it, or it exceeds its timeout by more than a minute.
    Exit code 4: some partitions could not be examined, because their leader, or a coordinator that may know their
    transactions, does not answer.
    """
    from quorumlog.client.transaction_logs import look_at_logs

    now_ms = await _clusters_time_ms(context)
    async with open_transactions(context) as (cluster, client):
        wanted = await _examined(context, cluster, topics, broker_id)
        found = await look_at_logs(client, cluster, wanted, now_ms, min(context.left_s / 3, LOGS_S))
    rows = [hanging_row(each) for each in found.hanging]
    if context.output.is_json:
        context.output.document(rows)
    elif rows:
        context.output.table(_HANGING, [[row[column] for column in _HANGING] for row in rows])
        for row in rows:
            context.output.message(f"next: {row['next']}")
    else:
        context.output.text(f"no transaction hangs in {counted(len(wanted) - len(found.problems), 'partition')}")
    if found.problems:
        (topic, index), why = next(iter(sorted(found.problems.items())))
        text = f"{counted(len(found.problems), 'partition')} could not be examined; {topic}-{index}: {why}"
        raise ClusterError(ApiError.TIMED_OUT, text, "kctl doctor", retriable=True)


async def _clusters_time_ms(context: Context) -> int:
    """Return the time in ms since 1970 by the clock of a node; by this machine's clock if no node answers.

    Coordinators note when transactions begin.  With a clock that is ahead of theirs, every transaction would seem to
    exceed its timeout.
    """
    from quorumlog.wire import rpcs
    from quorumlog.wire.v1 import node_pb2

    request = node_pb2.DescribeNodeRequest()
    async with context.client() as client:
        for address in client.addresses[:CLOCKS_MAX]:
            limit_s = min(context.left_s / (2 * CLOCKS_MAX), CLOCK_S)
            with suppress(ClusterError):  # each is asked only once: without its clock, the command still works
                reply = await client.ask_node(address, rpcs.DESCRIBE_NODE, request, limit_s)
                if reply.HasField("wall_ms"):  # nodes of older releases do not report it
                    return int(reply.wall_ms)
    return Sources.real().wall_ms()


async def _examined(
    context: Context, cluster: Cluster, topics: Iterable[TopicChoice], broker_id: int | None
) -> list[tuple[str, int]]:
    """Return the partitions that the options choose, ascending.

    Raises:
        ClusterError: UNKNOWN_TOPIC_OR_PARTITION; BROKER_ID_NOT_REGISTERED: the broker is not registered, or is fenced.
    """
    choices = list(topics)
    names = {each.topic for each in choices} or None
    counts = await cluster.partition_counts(names, context.left_s)
    for choice in choices:
        count = counts.get(choice.topic, 0)
        if not count or any(index >= count for index in choice.partitions or ()):
            which = f"{choice.topic} has {counted(count, 'partition')}" if count else f"{choice.topic} does not exist"
            raise ClusterError(ApiError.UNKNOWN_TOPIC_OR_PARTITION, f"topic {which}", "kctl topics list")
    found = {(name, index) for name, count in counts.items() for index in range(count)}
    if choices:
        found = {
            key
            for key in found
            if any(key[0] == each.topic and (each.partitions is None or key[1] in each.partitions) for each in choices)
        }
    if broker_id is not None:
        address = (await cluster.brokers(context.left_s)).get(broker_id)
        if address is None:
            text = f"broker {broker_id} is not registered, or is fenced"
            raise ClusterError(ApiError.BROKER_ID_NOT_REGISTERED, text, "kctl brokers list")
        found = {key for key in found if cluster.known_leader(*key) == address}
    return sorted(found)


def hanging_row(each: Hanging) -> dict[str, Any]:
    """Return the JSON of a transaction that hangs."""
    from quorumlog.doctor.transaction_steps import abort_step, why_hanging

    opened, known = each.transaction, each.known
    return {
        "topic": opened.topic,
        "partition": opened.partition,
        "start_offset": opened.start_offset,
        "producer_id": opened.producer_id,
        "producer_epoch": opened.producer_epoch,
        "transactional_id": None if known is None else known.transactional_id,
        "coordinator_state": None if known is None else known.state,
        "last_stable_offset": each.stable.last_stable_offset,
        "high_watermark": each.stable.high_watermark,
        "lag": each.stable.lag,
        "reason": why_hanging(each),
        "next": abort_step(each),
    }
