"""kctl groups lag: the lag of one group by partition, or of all groups, once or continuously."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

import click

from quorumlog.errors import ClusterError
from quorumlog.kctl.context import Command, Context, with_loop
from quorumlog.kctl.group_access import incomplete, open_groups
from quorumlog.kctl.numbers import FloatRange
from quorumlog.runtime.clock import Sources, WallClock
from quorumlog.words import rfc3339

if TYPE_CHECKING:
    from quorumlog.client.cluster import Cluster
    from quorumlog.client.group_lag import GroupLag, LagSum, PartitionLag
    from quorumlog.client.groups import GroupClient

INTERVAL_S = 2.0
SAMPLE_S = 5.0
"""The least time limit of each sample after the first one, with --follow.  When this time has passed, the error is
shown, and the next sample begins."""

_COLUMNS = ("topic", "partition", "committed_offset", "log_end_offset", "lag", "member_id", "client_id", "host")
_SHARE_COLUMNS = ("topic", "partition", "start_offset", "log_end_offset", "lag")
_SUMS = ("group", "type", "state", "partitions", "lag", "unknown", "worst", "worst_lag")


@click.command("lag", cls=Command)
@click.argument("group_id", metavar="[GROUP]", required=False)
@click.option("--follow", is_flag=True, help="Continue, with one line for each group and sample.")
@click.option(
    "--interval",
    "interval_s",
    type=FloatRange(0.1, 3600),
    metavar="SECONDS",
    help=f"With --follow, the time between two samples (default {INTERVAL_S:g}).",
)
@with_loop
async def lag(context: Context, group_id: str | None, follow: bool, interval_s: float | None) -> None:
    """Show how far a group, or each group, is behind the ends of the logs.

    The lag of a share group is the number of records that are neither accepted nor archived.

    If a broker does not answer in time, the lags of the other groups are shown, and the command fails.

    With --follow, the command shows samples until Ctrl-C, and waits while a coordinator or leader fails over.
    --timeout, if given, then limits the whole command.
    """
    if interval_s is not None and not follow:
        raise click.UsageError("--interval is for --follow")
    if follow:
        context.interrupted, context.ends_with_output = "", True
        context.lift_limit()
        try:
            async with asyncio.timeout(context.follow_s), open_groups(context) as (cluster, client):
                await _follow(context, cluster, client, group_id, interval_s or INTERVAL_S)
        except TimeoutError:
            return  # a success: the user chose this time, and a failure of the first sample would have raised before
    async with open_groups(context) as (cluster, client):
        if group_id is None:
            await _show_all(context, cluster, client)
        else:
            await _show(context, cluster, client, group_id)


async def _show(context: Context, cluster: Cluster, client: GroupClient, group_id: str) -> None:
    from quorumlog.client.group_lag import lag_of

    found = await lag_of(client, cluster, group_id, context.left_s)
    rows = [_row(found, each) for each in found.partitions]
    if context.output.is_json:
        context.output.document(rows)
        return
    description = found.description
    total, unknown = _total(found)
    count = f", {unknown} unknown" if unknown else ""
    head = f"{description.group}  type={description.group_type} state={description.state} lag={total}{count}"
    context.output.text(head)
    columns = _SHARE_COLUMNS if description.is_share else _COLUMNS
    context.output.table(columns, [[row[column] for column in columns] for row in rows])
    for row in rows:
        if row["problem"] is not None:
            context.output.message(f"{row['topic']}-{row['partition']}: {row['problem']}")


async def _show_all(context: Context, cluster: Cluster, client: GroupClient) -> None:
    sums, missing = await _sums(cluster, client, context.left_s)
    rows = [_sum_row(each) for each in sums]
    if context.output.is_json:
        context.output.document(rows)
    else:
        context.output.table(_SUMS, [[_sum_cell(row, column) for column in _SUMS] for row in rows])
    if missing is not None:
        raise missing


async def _sums(cluster: Cluster, client: GroupClient, timeout_s: float) -> tuple[list[LagSum], ClusterError | None]:
    """Return the lags of all groups, and the error if some are missing.

    A broker or coordinator that does not answer must not hide the lags of other groups.  So the list of groups may take
    half of the time.  Coordinators may then take half of the rest, and leaders the remaining time.

    Raises:
        ClusterError: TIMED_OUT: no broker answers.
    """
    from quorumlog.client.group_lag import known_lags

    loop = asyncio.get_running_loop()
    end_s = loop.time() + timeout_s
    listed, missing = await client.list_answered(timeout_s / 2)
    sums, unknown = await known_lags(client, cluster, listed, max(end_s - loop.time(), 0) / 2)
    failures = [*([] if missing is None else [missing]), *unknown.values()]
    return sums, incomplete(failures[0]) if failures else None


def _row(found: GroupLag, each: PartitionLag) -> dict[str, Any]:
    member = each.member
    return {
        "group": found.description.group,
        "topic": each.topic,
        "partition": each.partition,
        "committed_offset": None if each.committed is None else each.committed.offset,
        "start_offset": None if each.share is None else each.share.start,
        "log_start_offset": each.log_start,
        "log_end_offset": each.log_end,
        "lag": each.lag,
        "metadata": None if each.committed is None else each.committed.metadata or None,
        "member_id": None if member is None else member.member_id,
        "instance_id": None if member is None else member.instance_id,
        "client_id": None if member is None else member.client_id,
        "host": None if member is None else member.host.lstrip("/"),
        "problem": each.problem,
    }


def _sum_row(each: LagSum) -> dict[str, Any]:
    return {
        "group": each.group.group,
        "type": each.group.group_type,
        "state": each.group.state,
        "partitions": each.partitions,
        "lag": each.lag,
        "unknown": each.unknown,
        "worst": None if each.worst is None else {"topic": each.worst[0], "partition": each.worst[1]},
        "worst_lag": each.worst_lag,
    }


def _sum_cell(row: dict[str, Any], column: str) -> object:
    worst = row["worst"]
    return f"{worst['topic']}-{worst['partition']}" if column == "worst" and worst is not None else row[column]


def _total(found: GroupLag) -> tuple[int, int]:
    """Return the sum of the known lags, and the number of partitions whose lag is unknown."""
    lags = [each.lag for each in found.partitions if each.has_lag]
    return sum(each for each in lags if each is not None), sum(each is None for each in lags)


# -- following


async def _follow(
    context: Context, cluster: Cluster, client: GroupClient, group_id: str | None, interval_s: float
) -> None:
    """Raises: ClusterError: the first sample failed, or a later sample failed with an error that is not retriable."""
    wall_ms = Sources.real().wall_ms
    before: dict[str, int] = {}
    async for at_ms, rows in _samples(context, cluster, client, group_id, interval_s, wall_ms):
        for row in rows:
            change = row["lag"] - before[row["group"]] if row["group"] in before else None
            sample = {"at": rfc3339(at_ms), **row, "change": change}
            if context.output.is_json:
                context.output.line(sample)
            else:
                context.output.text(_line(sample))
        before = {row["group"]: row["lag"] for row in rows}


async def _samples(
    context: Context,
    cluster: Cluster,
    client: GroupClient,
    group_id: str | None,
    interval_s: float,
    wall_ms: WallClock,
) -> AsyncIterator[tuple[int, list[dict[str, Any]]]]:
    """Yield the time of each sample, in ms since 1970, with its rows.  A failed sample is only reported as an error.

    Raises:
        ClusterError: the first sample failed, or an error is not retriable.
    """
    loop = asyncio.get_running_loop()
    is_first = True
    while True:
        begun = loop.time()
        limit_s = context.left_s if is_first else max(SAMPLE_S, interval_s)
        try:
            rows, missing = await _sample(cluster, client, group_id, limit_s)
            yield wall_ms(), rows
            if missing is not None:
                context.output.error(missing)
        except ClusterError as error:
            if is_first or not error.retriable:
                raise
            context.output.error(error)
        is_first = False
        await asyncio.sleep(max(begun + interval_s - loop.time(), 0))


async def _sample(
    cluster: Cluster, client: GroupClient, group_id: str | None, limit_s: float
) -> tuple[list[dict[str, Any]], ClusterError | None]:
    """Return the rows of a sample, and the error if some are missing."""
    from quorumlog.client.group_lag import lag_of

    if group_id is None:
        sums, missing = await _sums(cluster, client, limit_s)
        return [_sum_row(each) for each in sums], missing
    found = await lag_of(client, cluster, group_id, limit_s)
    total, unknown = _total(found)
    lags = [each for each in found.partitions if each.lag]
    worst = max(lags, key=lambda each: each.lag or 0, default=None)
    rows = [_row(found, each) for each in found.partitions]
    return [
        {
            "group": found.description.group,
            "type": found.description.group_type,
            "state": found.description.state,
            "partitions": [{name: value for name, value in row.items() if name != "group"} for row in rows],
            "lag": total,
            "unknown": unknown,
            "worst": None if worst is None else {"topic": worst.topic, "partition": worst.partition},
            "worst_lag": 0 if worst is None else worst.lag,
        }
    ], None


def _line(sample: dict[str, Any]) -> str:
    """Return a sample for people."""
    parts = [sample["at"], sample["group"], sample["state"], f"lag={sample['lag']}"]
    if sample["change"] is not None:
        parts.append(f"change={sample['change']:+}")
    if sample["unknown"]:
        parts.append(f"unknown={sample['unknown']}")
    if sample["worst"] is not None:
        parts.append(f"worst={_sum_cell(sample, 'worst')} ({sample['worst_lag']})")
    return "  ".join(parts)
