"""kctl groups explain: the reason, the causing member and the duration of a group's last rebalances."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from quorumlog.errors import ClusterError
from quorumlog.kctl.context import Command, Context, with_loop
from quorumlog.kctl.group_access import member_text, open_groups, refuse_share
from quorumlog.kctl.output import duration_text
from quorumlog.wire.errors import ApiError
from quorumlog.words import about, counted, rfc3339

if TYPE_CHECKING:
    from quorumlog.client.group_descriptions import GroupExplanation, GroupMember

_COLUMNS = ("started_at", "took", "generation", "members", "reason", "client_id", "host", "text")


@click.command("explain", cls=Command)
@click.argument("group_id", metavar="GROUP")
@with_loop
async def explain(context: Context, group_id: str) -> None:
    """Show the reason, the causing member and the duration of a group's last rebalances.

    The coordinator answers from its memory, which contains no rebalances from before it became the coordinator.
    """
    async with open_groups(context) as (_, client):
        try:
            found = await client.explain(group_id, context.left_s)
        except ClusterError as error:
            if error.code == ApiError.GROUP_ID_NOT_FOUND:
                described = await client.describe(group_id, context.left_s)
                refuse_share(described, "whose rebalances are not recorded", about("kctl groups describe", group_id))
            raise
    document = explanation_document(found)
    if context.output.is_json:
        context.output.document(document)
        return
    head = f"type={found.group_type} state={found.state} generation={found.generation} members={found.members}"
    rows = [[_cell(each, column) for column in _COLUMNS] for each in document["rebalances"]]
    context.output.text(f"{found.group}  {head}")
    context.output.table(_COLUMNS, rows)
    for line in _lines(found):
        context.output.text(line)


def explanation_document(found: GroupExplanation) -> dict[str, Any]:
    """Return the JSON of an explanation."""
    joined = found.last_joined
    return {
        "group": found.group,
        "type": found.group_type,
        "state": found.state,
        "generation": found.generation if found.generation >= 0 else None,
        "members": found.members,
        "coordinator": found.coordinator.broker_id,
        "empty_since_at": None if found.empty_since_ms is None else rfc3339(found.empty_since_ms),
        "last_joined": None if joined is None else {**_member(joined[0]), "at": rfc3339(joined[1])},
        "awaited": [_member(each) for each in found.awaited],
        "rebalances": [
            {
                "started_at": rfc3339(each.started_ms),
                "duration_ms": each.duration_ms,
                "generation": each.generation,
                "members": each.members,
                "interrupted": each.interrupted,
                "reason": each.reason,
                **_member(each.caused_by),
                "text": each.cause,
            }
            for each in found.rebalances
        ],
        "history_begins_at": rfc3339(found.loaded_ms),
    }


def _member(member: GroupMember | None) -> dict[str, Any]:
    return {
        "member_id": None if member is None else member.member_id,
        "instance_id": None if member is None else member.instance_id,
        "client_id": None if member is None else member.client_id,
        "host": None if member is None else member.host.lstrip("/"),
    }


def _cell(rebalance: dict[str, Any], column: str) -> object:
    if column != "took":
        return rebalance[column]
    if rebalance["duration_ms"] is None:
        return "in progress"
    return duration_text(rebalance["duration_ms"]) + (", interrupted" if rebalance["interrupted"] else "")


def _lines(found: GroupExplanation) -> list[str]:
    """Return the facts that the table does not contain."""
    lines = []
    if found.rebalances and found.rebalances[-1].duration_ms is None:
        age = duration_text(max(found.now_ms - found.rebalances[-1].started_ms, 0))
        late = ", ".join(map(member_text, found.awaited)) or "no member"
        lines.append(f"a rebalance has been in progress for {age}; it waits for {late}")
    if found.last_joined is not None:
        member, at_ms = found.last_joined
        lines.append(f"the last member to join was {member_text(member)}, at {rfc3339(at_ms)}")
    if found.empty_since_ms is not None:
        lines.append(f"the group has had no members and no commits since {rfc3339(found.empty_since_ms)}")
    count = counted(len(found.rebalances), "rebalance") if found.rebalances else "no rebalance"
    lines.append(
        f"broker {found.coordinator.broker_id} has coordinated the group since {rfc3339(found.loaded_ms)}, "
        f"and remembers {count} since then"
    )
    return lines
