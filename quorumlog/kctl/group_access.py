"""Shared parts of the commands about groups: a client for the brokers, the parsing of topics, and refusals."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from quorumlog.errors import ClusterError
from quorumlog.kctl.context import Context
from quorumlog.kctl.data import broker_addresses
from quorumlog.kctl.reads import Reads
from quorumlog.wire.errors import ApiError
from quorumlog.words import about, counted

if TYPE_CHECKING:
    from quorumlog.client.cluster import Cluster
    from quorumlog.client.group_descriptions import GroupDescription, GroupMember
    from quorumlog.client.groups import GroupClient

MEMBERS_SHOWN_MAX = 5
"""Maximum number of members that an error names.  The others are only counted."""

_PARTITIONS = re.compile(r"\d{1,9}(,\d{1,9})*", re.ASCII)


@asynccontextmanager
async def open_groups(context: Context) -> AsyncIterator[tuple[Cluster, GroupClient]]:
    """Yield clients for the brokers, and close them afterwards.

    Any node may report the brokers, so no active controller is needed.

    Raises:
        ClusterError: no node answers, or no broker is registered.
    """
    from quorumlog.client.cluster import Cluster
    from quorumlog.client.groups import GroupClient

    async with context.client() as client:
        addresses = await broker_addresses(Reads(context, client))
    async with Cluster(addresses, client_id="kctl") as cluster:
        yield cluster, GroupClient(cluster)


def incomplete(missing: ClusterError, what: str = "groups") -> ClusterError:
    """Return the error for a command whose output lacks the items of one broker, because of `missing`.

    what: the items, in the plural.
    """
    return ClusterError(
        missing.code, f"the output lacks {what}: {missing.message}", missing.next_step, retriable=missing.retriable
    )


class TopicChoice(NamedTuple):
    """A topic, and some of its partitions.  partitions: None means all to which the command applies."""

    topic: str
    partitions: tuple[int, ...] | None


def parse_topic(_context: click.Context, parameter: click.Parameter, value: Any) -> Any:
    """Parse `T` or `T:P,…`, or a tuple of such texts.  A topic name contains no colon.

    Raises:
        click.BadParameter: a text has another form.
    """
    if isinstance(value, tuple):
        return tuple(parse_topic(_context, parameter, each) for each in value)
    topic, colon, rest = value.partition(":")
    if not topic or (colon and not _PARTITIONS.fullmatch(rest)):
        raise click.BadParameter(f"{value!r} is not like orders or orders:0,1 (a topic, and some of its partitions)")
    return TopicChoice(topic, tuple(sorted({int(each) for each in rest.split(",")})) if colon else None)


def member_text(member: GroupMember) -> str:
    """Return a member for people: its id, client id, host and instance id, since a person may know any of them."""
    instance = "" if member.instance_id is None else f", static as {member.instance_id!r}"
    return f"{member.member_id!r} ({member.client_id!r} at {member.host.lstrip('/')}{instance})"


def refuse_active(group: GroupDescription, what: str) -> None:
    """Raise an error that names the members, unless the group has none and is Empty or Dead.

    what: the refusal, such as "it cannot be deleted".

    Raises:
        ClusterError: NON_EMPTY_GROUP.
    """
    if not group.members and group.state in ("Empty", "Dead"):
        return
    shown = ", ".join(map(member_text, group.members[:MEMBERS_SHOWN_MAX]))
    rest = len(group.members) - MEMBERS_SHOWN_MAX
    members = f"{counted(len(group.members), 'member')}: {shown}{f' and {rest} more' if rest > 0 else ''}"
    raise ClusterError(
        ApiError.NON_EMPTY_GROUP,
        f"group {group.group} is {group.state} and has {members}; {what} while it has members",
        "stop its members, then retry; a member that was killed is removed when its session ends",
    )


def refuse_share(group: GroupDescription, what: str, next_step: str) -> None:
    """Raise an error if the group is a share group.  what: the reason, as a clause that follows "a share group,".

    Raises:
        ClusterError: UNSUPPORTED_GROUP_TYPE.
    """
    if group.is_share:
        raise ClusterError(ApiError.UNSUPPORTED_GROUP_TYPE, f"group {group.group} is a share group, {what}", next_step)


def partition_refusals(group: str, refusals: dict[tuple[str, int], ClusterError]) -> ClusterError:
    """Return one error for the partitions that a coordinator refused."""
    first = next(iter(refusals.values()))
    more = f" (and {len(refusals) - 1} more partitions)" if len(refusals) > 1 else ""
    if first.code == "UNKNOWN_MEMBER_ID":
        text = f"group {group}: members joined it meanwhile; nothing was changed"
        return ClusterError(ApiError.NON_EMPTY_GROUP, text, about("kctl groups describe", group))
    return ClusterError(first.code, f"{first.message}{more}", first.next_step, retriable=first.retriable)


def chosen(
    choices: Iterable[TopicChoice], candidates: Iterable[tuple[str, int]]
) -> tuple[list[tuple[str, int]], list[TopicChoice]]:
    """Return the candidates that at least one choice contains, ascending, and the choices that contain no candidate."""
    wanted = list(choices)
    found = set()
    used = set()
    for topic, index in candidates:
        for choice in wanted:
            if choice.topic == topic and (choice.partitions is None or index in choice.partitions):
                found.add((topic, index))
                used.add(choice)
    return sorted(found), [choice for choice in wanted if choice not in used]
