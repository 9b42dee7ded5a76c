"""kctl groups reset-offsets: sets the committed offsets of a group, or the start offsets of a share group."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from quorumlog.errors import ClusterError
from quorumlog.kctl import inputs
from quorumlog.kctl.context import Command, Context, so_on_return, with_loop
from quorumlog.kctl.group_access import (
    TopicChoice,
    chosen,
    open_groups,
    parse_topic,
    partition_refusals,
    refuse_active,
)
from quorumlog.kctl.group_reset_plan import (
    OFFSET_MAX,
    Kind,
    LogRange,
    Move,
    Target,
    moves,
    parse_datetime,
    parse_duration,
    parse_file,
)
from quorumlog.kctl.numbers import IntRange
from quorumlog.kctl.topics import dry_run_option
from quorumlog.runtime.clock import Sources
from quorumlog.wire.errors import ApiError
from quorumlog.words import about, counted, named

if TYPE_CHECKING:
    from quorumlog.client.cluster import Cluster
    from quorumlog.client.group_descriptions import GroupDescription
    from quorumlog.client.groups import GroupClient

Partition = tuple[str, int]
FILE_MAX_BYTES = 64 << 20

_COLUMNS = ("topic", "partition", "before", "after", "lag_before", "lag_after", "note")


def _parsed(parse: Any) -> Any:
    def callback(_context: click.Context, _parameter: click.Parameter, text: str | None) -> int | None:
        try:
            return None if text is None else int(parse(text))
        except (ValueError, OverflowError) as error:
            raise click.BadParameter(str(error)) from None

    return callback


@click.command("reset-offsets", cls=Command)
@click.argument("group_id", metavar="GROUP")
@click.option(
    "--topic",
    "topics",
    multiple=True,
    callback=parse_topic,
    metavar="T[:P,...]",
    help="A topic, or some of its partitions.",
)
@click.option("--all-topics", is_flag=True, help="All topics in which the group has offsets.")
@click.option("--to-earliest", is_flag=True, help="The log start: read all records again.")
@click.option("--to-latest", is_flag=True, help="The log end: skip all records that exist.")
@click.option("--to-offset", type=IntRange(0, OFFSET_MAX), metavar="N", help="This offset.")
@click.option(
    "--shift-by", type=IntRange(-OFFSET_MAX, OFFSET_MAX), metavar="N", help="N offsets forward; negative: back."
)
@click.option(
    "--to-datetime", callback=_parsed(parse_datetime), metavar="T", help="The first record that is not older than T."
)
@click.option(
    "--by-duration",
    callback=_parsed(parse_duration),
    metavar="D",
    help="The first record that is at most D old, for example 2h.",
)
@click.option(
    "--from-file",
    type=click.Path(exists=True, dir_okay=False, readable=True, allow_dash=True),
    metavar="FILE",
    help="The offsets in a file: CSV of Kafka's tool, or the JSON of `kctl groups lag`.",
)
@click.option("--create", is_flag=True, help="Set the offsets of a group that does not exist yet.")
@click.option("--create-share", is_flag=True, help="Set the start offsets of a share group that does not exist yet.")
@dry_run_option
@so_on_return
@with_loop
async def reset_offsets(
    context: Context,
    group_id: str,
    topics: tuple[TopicChoice, ...],
    all_topics: bool,
    create: bool,
    create_share: bool,
    dry_run: bool,
    to_earliest: bool,
    to_latest: bool,
    to_offset: int | None,
    shift_by: int | None,
    to_datetime: int | None,
    by_duration: int | None,
    from_file: str | None,
) -> None:
    """Set the committed offsets of a group without members, or the start offsets of a share group.

    A share group reads all records from the new start offsets again, including those that it has accepted.
    Offsets outside a log are moved to its start or end, with a note.  All offsets are checked before any is set.
    """
    now_ms = Sources.real().wall_ms()
    target = _only(
        {
            "--to-earliest": Target(Kind.EARLIEST) if to_earliest else None,
            "--to-latest": Target(Kind.LATEST) if to_latest else None,
            "--to-offset": None if to_offset is None else Target(Kind.OFFSET, to_offset),
            "--shift-by": None if shift_by is None else Target(Kind.SHIFT, shift_by),
            "--to-datetime": None if to_datetime is None else Target(Kind.TIME, to_datetime),
            "--by-duration": None if by_duration is None else Target(Kind.TIME, max(now_ms - by_duration, 0)),
            "--from-file": None if from_file is None else Target(Kind.FILE),
        }
    )
    if sum((bool(topics), all_topics)) != 1 and target.kind is not Kind.FILE:
        raise click.UsageError("give --topic (repeatedly, if needed) or --all-topics, and not both")
    if all_topics and target.kind is Kind.FILE:
        raise click.UsageError("--from-file names the partitions: give --topic to use some of them, or neither")
    if create and create_share:
        raise click.UsageError("give --create or --create-share, and not both")
    offsets = {} if from_file is None else await _read(from_file, group_id)
    async with open_groups(context) as (cluster, client):
        described = await _refuse(context, client, group_id, create or create_share)
        is_share = create_share if described is None else described.is_share
        if create_share and not is_share:
            text = f"group {group_id} exists, and is not a share group"
            raise ClusterError(ApiError.UNSUPPORTED_GROUP_TYPE, text, about("kctl groups describe", group_id))
        before = await _before(context, client, group_id, described, is_share)
        keys = await _partitions(context, cluster, group_id, topics, offsets or before.known, bool(offsets))
        ranges = await _ranges(context, cluster, keys, target)
        planned = moves(target, ranges, before.offsets, offsets, before.share_lags)
        changes = [each for each in planned if each.is_change]
        if changes and not dry_run:
            await (_set_starts if is_share else _commit)(context, client, group_id, changes)
    _show(context, group_id, None if described is None else described.state, planned, dry_run)


def _only(targets: Mapping[str, Target | None]) -> Target:
    """Raises: click.UsageError: not exactly one target is given."""
    given = [target for target in targets.values() if target is not None]
    if len(given) != 1:
        raise click.UsageError(f"give exactly one of {', '.join(targets)}")
    return given[0]


async def _read(path: str, group_id: str) -> dict[Partition, int]:
    """Return the offsets in a file.

    Raises:
        click.UsageError: the file is too large, or has none of the supported formats.
    """

    data = await inputs.read(path, "the offsets", FILE_MAX_BYTES)
    if len(data) > FILE_MAX_BYTES:
        raise click.UsageError(f"--from-file {path}: it is larger than {FILE_MAX_BYTES} bytes")
    try:
        return parse_file(inputs.text_of(data, "surrogateescape"), group_id)  # rows of other groups may be anything
    except ValueError as error:
        raise click.UsageError(f"--from-file {path}: {error}") from None


class _Before(NamedTuple):
    """The offsets of a group.  known: its partitions, including those without an offset.  share_lags: see `moves`."""

    offsets: dict[Partition, int]
    known: Collection[Partition]
    share_lags: dict[Partition, int | None] | None


async def _before(
    context: Context, client: GroupClient, group_id: str, described: GroupDescription | None, is_share: bool
) -> _Before:
    is_missing = described is None  # then a request for its offsets could create `__consumer_offsets`
    if not is_share:
        found = {} if is_missing else await client.committed(group_id, context.left_s)
        committed = {key: each.offset for key, each in found.items()}
        return _Before(committed, committed, None)
    shares = {} if is_missing else await client.shares.describe(group_id, context.left_s)
    starts = {key: share.start for key, share in shares.items() if share.start is not None}
    return _Before(starts, shares, {key: share.lag for key, share in shares.items()})


async def _refuse(context: Context, client: GroupClient, group_id: str, create: bool) -> GroupDescription | None:
    """Return the group; None if it does not exist yet.

    Raises:
        ClusterError: NON_EMPTY_GROUP; GROUP_ID_NOT_FOUND, unless `create`.
    """
    try:
        described = await client.describe(group_id, context.left_s)
    except ClusterError as error:
        if error.code != ApiError.GROUP_ID_NOT_FOUND:
            raise
        if not create:
            text = f"{error.message}, so it has no offsets"
            raise ClusterError(
                error.code, text, "kctl groups list, or --create or --create-share to set its first offsets"
            ) from error
        return None
    refuse_active(described, "its offsets cannot be set")
    return described


async def _partitions(
    context: Context,
    cluster: Cluster,
    group_id: str,
    topics: tuple[TopicChoice, ...],
    known: Collection[Partition],
    is_from_file: bool,
) -> list[Partition]:
    """Return the partitions to reset.

    known: the partitions in the file, or the partitions of the group.

    Raises:
        ClusterError: UNKNOWN_TOPIC_OR_PARTITION; OFFSET_NOT_COMMITTED: there is no partition to reset.
    """
    names = {choice.topic for choice in topics} or {topic for topic, _ in known}
    counts = await cluster.partition_counts(names, context.left_s) if names else {}
    existing = {(topic, index) for topic, count in counts.items() for index in range(count)}
    if is_from_file:
        candidates = set(known) if not topics else set(chosen(topics, known)[0])
        missing = sorted(candidates - existing)
        if missing:
            raise _no_such(named(missing))
    else:
        candidates = existing if topics else existing & set(known)
    if not topics:
        keys = sorted(candidates)
    else:
        keys, unused = chosen(topics, candidates)
        wanted = {(each.topic, index) for each in topics for index in each.partitions or ()}
        if unused or wanted - candidates:
            raise _no_such(named(wanted - candidates) or ", ".join(each.topic for each in unused))
    if not keys:
        text = f"group {group_id} has no offsets"
        raise ClusterError(ApiError.OFFSET_NOT_COMMITTED, text, "name the topics with --topic")
    return keys


def _no_such(names: str) -> ClusterError:
    return ClusterError(ApiError.UNKNOWN_TOPIC_OR_PARTITION, f"{names}: there is no such topic or partition")


async def _ranges(
    context: Context, cluster: Cluster, keys: list[Partition], target: Target
) -> dict[Partition, LogRange]:
    """Return the range of each partition's log.

    Raises:
        ClusterError: the leader of a partition does not answer, or reports an error.
    """
    from quorumlog.client.group_lag import log_ranges
    from quorumlog.client.log_offsets import list_offsets

    starts, ends = await log_ranges(cluster, keys, context.left_s)
    times = (
        await list_offsets(cluster, dict.fromkeys(keys, target.value), context.left_s)
        if (target.kind is Kind.TIME)
        else dict.fromkeys(keys, -1)
    )
    ranges = {}
    for key in keys:
        found = []
        for offset in (starts[key], ends[key], times[key]):
            if isinstance(offset, ClusterError):
                text = f"{offset.message}; nothing was changed"
                raise ClusterError(offset.code, text, "kctl doctor", retriable=offset.retriable)
            found.append(offset)
        ranges[key] = LogRange(*found)
    return ranges


async def _commit(context: Context, client: GroupClient, group_id: str, changes: list[Move]) -> None:
    """Commit the offsets.

    Raises:
        ClusterError: members joined meanwhile, or the coordinator refuses an offset or does not answer.
    """
    from quorumlog.client.group_descriptions import CommittedOffset

    offsets = {(each.topic, each.partition): CommittedOffset(each.after) for each in changes}
    refusals = await client.commit(group_id, offsets, context.left_s)
    if refusals:
        raise partition_refusals(group_id, refusals)


async def _set_starts(context: Context, client: GroupClient, group_id: str, changes: list[Move]) -> None:
    """Set the start offsets of a share group.

    Raises:
        ClusterError: members joined meanwhile, or a coordinator refuses an offset or does not answer.
    """
    starts = {(each.topic, each.partition): each.after for each in changes}
    refusals = await client.shares.alter(group_id, starts, context.left_s)
    if refusals:
        raise partition_refusals(group_id, refusals)


def _show(context: Context, group_id: str, state: str | None, planned: list[Move], dry_run: bool) -> None:
    count = sum(each.is_change for each in planned)
    rows = [
        {
            "topic": each.topic,
            "partition": each.partition,
            "before": each.before,
            "after": each.after,
            "log_start_offset": each.log_start,
            "log_end_offset": each.log_end,
            "lag_before": each.lag_before,
            "lag_after": each.lag_after,
            "note": each.note,
        }
        for each in planned
    ]
    if context.output.is_json:
        document = {"changed": count > 0 and not dry_run, "offset": None, "group": group_id, "state": state}
        context.output.document({**document, "dry_run": dry_run, "partitions": rows})
        return
    context.output.table(_COLUMNS, [[row[column] for column in _COLUMNS] for row in rows])
    if not count:
        context.output.text(f"group {group_id} already has these offsets")
    elif dry_run:
        context.output.text(f"{counted(count, 'offset')} of group {group_id} would be set")
    else:
        context.output.text(f"set {counted(count, 'offset')} of group {group_id}")
