"""kctl groups: lists, describes and deletes groups and their offsets.  Other modules add lag, reset and explain."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import click

from quorumlog.errors import ClusterError
from quorumlog.kctl.context import Context, Group, so_on_return, with_loop
from quorumlog.kctl.group_access import (
    TopicChoice,
    chosen,
    incomplete,
    open_groups,
    parse_topic,
    partition_refusals,
    refuse_active,
    refuse_share,
)
from quorumlog.kctl.nodes import AT_ONCE_MAX
from quorumlog.kctl.streams import can_ask
from quorumlog.kctl.topics import dry_run_option
from quorumlog.wire.errors import ApiError
from quorumlog.words import about, counted, listed, named

if TYPE_CHECKING:
    from quorumlog.client.group_descriptions import GroupDescription
    from quorumlog.client.groups import GroupClient

STATES = ("Stable", "PreparingRebalance", "CompletingRebalance", "Assigning", "Reconciling", "Empty", "Dead")
UNKNOWN = "unknown"


@click.group("groups", cls=Group)
def group() -> None:
    """Show consumer groups and share groups with their lag; set and delete their offsets."""


@group.command("list")
@click.option(
    "--state",
    "states",
    multiple=True,
    type=click.Choice(STATES, case_sensitive=False),
    help="Only groups in this state.",
)
@with_loop
async def list_(context: Context, states: tuple[str, ...]) -> None:
    """List the groups of all coordinators.

    Every broker is asked.  If a broker does not answer, the command waits until another broker coordinates its groups.
    If that takes too long, the command lists the groups of the other brokers, and fails.
    """
    async with open_groups(context) as (_, client):
        found, missing = await client.list_answered(context.left_s, states)
    columns = ("group", "type", "state", "protocol_type", "coordinator")
    rows = [
        {
            "group": each.group,
            "type": each.group_type,
            "state": each.state,
            "protocol_type": each.protocol_type or None,
            "coordinator": each.coordinator,
        }
        for each in found
    ]
    if context.output.is_json:
        context.output.document(rows)
    else:
        context.output.table(columns, [[row[column] for column in columns] for row in rows])
    if missing is not None:
        raise incomplete(missing)


@group.command("describe")
@click.argument("group_id", metavar="GROUP")
@with_loop
async def describe(context: Context, group_id: str) -> None:
    """Show a group: state, coordinator, and the assignment of each member."""
    async with open_groups(context) as (_, client):
        document = group_document(await client.describe(group_id, context.left_s))
    if context.output.is_json:
        context.output.document(document)
        return
    head = ("type", "state", "protocol_type", "assignor", "coordinator", "epoch")
    shown = [f"{name}={document[name]}" for name in head if document[name] is not None]
    columns = ("member_id", "instance_id", "client_id", "host", "subscription", "assignment")
    context.output.text(f"{document['group']}  {' '.join(shown)}")  # a title would be wrapped at the table's width
    context.output.table(
        columns,
        [
            [*(member[column] for column in columns[:-1]), _assigned(member["assignment"])]
            for member in document["members"]
        ],
    )


def group_document(group: GroupDescription) -> dict[str, Any]:
    """Return the JSON of a group."""
    return {
        "group": group.group,
        "type": group.group_type,
        "state": group.state,
        "protocol_type": group.protocol_type or None,
        "assignor": group.assignor or None,
        "epoch": group.epoch,
        "coordinator": group.coordinator.broker_id,
        "members": [
            {
                "member_id": member.member_id,
                "instance_id": member.instance_id,
                "client_id": member.client_id,
                "host": member.host.lstrip("/"),
                "epoch": member.epoch,
                "subscription": None if member.subscription is None else list(member.subscription),
                "assignment": None
                if member.assignment is None
                else [{"topic": topic, "partitions": list(indexes)} for topic, indexes in member.assignment],
            }
            for member in group.members
        ],
    }


def _assigned(assignment: list[dict[str, Any]] | None) -> str | None:
    if not assignment:
        return None
    return named((each["topic"], index) for each in assignment for index in each["partitions"])


# -- deletions


@group.command("delete")
@click.argument("group_ids", metavar="GROUP...", nargs=-1, required=True)
@click.option("--if-exists", is_flag=True, help="Succeed if a group does not exist.")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@dry_run_option
@so_on_return
@with_loop
async def delete(context: Context, group_ids: tuple[str, ...], if_exists: bool, yes: bool, dry_run: bool) -> None:
    """Delete groups that have no members, and their offsets.

    On a terminal, the command asks for confirmation (unless --yes is given).
    """
    wanted = list(dict.fromkeys(group_ids))
    if can_ask() and not (yes or dry_run):
        from quorumlog.kctl.losses import ask

        context.output.message(f"warning: {counted(len(wanted), 'group')} will be deleted, with all committed offsets")
        ask(context, f"delete {listed(wanted)}?")
    free = asyncio.Semaphore(AT_ONCE_MAX)
    async with open_groups(context) as (_, client):

        async def deleted(each: str) -> ClusterError | None:
            async with free:
                return await _deleted(context, client, each, dry_run)

        # Ask all coordinators at once: a coordinator that hangs uses up the time, and the others must not wait for it.
        outcomes = await asyncio.gather(*map(deleted, wanted))
    results = dict(zip(wanted, outcomes, strict=True))
    failures = [
        error
        for error in results.values()
        if error is not None and not (if_exists and error.code == ApiError.GROUP_ID_NOT_FOUND)
    ]
    is_changed = not dry_run and any(error is None for error in results.values())
    if context.output.is_json:
        items = [
            {
                "group": each,
                "deleted": error is None and not dry_run,
                "error": None if error is None else error.code,
                "message": None if error is None else error.message,
            }
            for each, error in results.items()
        ]
        context.output.document({"changed": is_changed, "offset": None, "groups": items})
    else:
        for each, error in results.items():
            if error is None:
                context.output.text(f"group {each} would be deleted" if dry_run else f"deleted group {each}")
            elif error not in failures:
                context.output.text(f"group {each} does not exist")
    for error in failures[1:]:
        context.output.error(error)
    if failures:
        raise failures[0]


async def _deleted(context: Context, client: GroupClient, group: str, dry_run: bool) -> ClusterError | None:
    """Delete a group, and return the error if it was not deleted.

    The error is returned instead of raised, so that one unavailable coordinator does not hide the other results.
    """
    try:
        described = await client.describe(group, context.left_s)
        refuse_active(described, "it cannot be deleted")
        if not dry_run:
            await client.delete(group, context.left_s)
    except ClusterError as error:
        return error
    return None


@group.command("delete-offsets")
@click.argument("group_id", metavar="GROUP")
@click.argument("topic", metavar="TOPIC[:P,...]", callback=parse_topic)
@click.option("--if-exists", is_flag=True, help="Succeed if the group does not exist.")
@dry_run_option
@so_on_return
@with_loop
async def delete_offsets(context: Context, group_id: str, topic: TopicChoice, if_exists: bool, dry_run: bool) -> None:
    """Delete the offsets that a group has committed in a topic.

    A consumer group may have members if none of them is subscribed to the topic.  A share group must have no members;
    the command deletes the start offsets of all partitions of the topic.
    """
    async with open_groups(context) as (_, client):
        try:
            described = await client.describe(group_id, context.left_s)
        except ClusterError as error:
            if not (if_exists and error.code == ApiError.GROUP_ID_NOT_FOUND):
                raise
            _show_deleted(context, group_id, topic.topic, [], dry_run)
            return
        if described.is_share:
            keys = await _delete_share_offsets(context, client, described, topic, dry_run)
            _show_deleted(context, group_id, topic.topic, [index for _, index in keys], dry_run)
            return
        keys, _ = chosen([topic], await client.committed(group_id, context.left_s))
        subscribed = [m for m in described.members if m.subscription is None or topic.topic in m.subscription]
        if subscribed and keys:
            refuse_active(described._replace(members=tuple(subscribed)), f"offsets of {topic.topic} cannot be deleted")
        if keys and not dry_run:
            refusals = await client.delete_offsets(group_id, keys, context.left_s)
            if refusals:
                raise partition_refusals(group_id, refusals)
    _show_deleted(context, group_id, topic.topic, [index for _, index in keys], dry_run)


async def _delete_share_offsets(
    context: Context, client: GroupClient, group: GroupDescription, topic: TopicChoice, dry_run: bool
) -> list[tuple[str, int]]:
    """Delete the start offsets of a share group in a topic, and return their partitions.  dry_run: only return them.

    Raises:
        ClusterError: UNSUPPORTED_GROUP_TYPE: partitions are named; NON_EMPTY_GROUP; or the refusal of the coordinator.
    """
    if topic.partitions is not None:
        command = about("kctl groups delete-offsets", group.group, topic.topic)
        refuse_share(group, "whose offsets can only be deleted for whole topics", command)
    refuse_active(group, f"offsets of {topic.topic} cannot be deleted")
    keys, _ = chosen([topic], await client.shares.describe(group.group, context.left_s))
    if keys and not dry_run:
        for error in (await client.shares.delete(group.group, [topic.topic], context.left_s)).values():
            raise error
    return keys


def _show_deleted(context: Context, group: str, topic: str, indexes: list[int], dry_run: bool) -> None:
    changed = bool(indexes) and not dry_run
    if context.output.is_json:
        document = {"changed": changed, "offset": None, "group": group, "topic": topic, "partitions": indexes}
        context.output.document(document)
    elif not indexes:
        context.output.text(f"group {group} has no offsets in {topic}")
    else:
        count = counted(len(indexes), "offset")
        what = f"{count} of group {group}: {named((topic, index) for index in indexes)}"
        context.output.text(f"{what} would be deleted" if dry_run else f"deleted {what}")
