"""kctl quorum: the state of the metadata quorum, from its leader if it answers."""

from __future__ import annotations

from typing import Any

import click

from quorumlog.kctl.context import Context, Group, with_loop
from quorumlog.kctl.nodes import is_leaders
from quorumlog.kctl.output import uuid_text
from quorumlog.words import rfc3339


@click.group("quorum", cls=Group)
def group() -> None:
    """Show the voters and observers of the metadata log."""


@group.command("status")
@with_loop
async def status(context: Context) -> None:
    """Show the leader, its epoch, the high watermark and the lag of each node."""
    async with context.client() as client:
        reply = await client.describe_quorum(context.left_s)
    document = status_document(reply)
    output = context.output
    if output.is_json:
        output.document(document)
        return
    names = ("cluster_id", "generation", "leader_id", "leader_epoch", "high_watermark", "paused")
    change = document["last_leader_change"]
    rows = [(name, document[name]) for name in names]
    if document["leader_answers"] is False:
        rows[names.index("leader_id")] = ("leader_id", f"{document['leader_id']} (does not answer)")
    rows.append(("last_leader_change", f"{change['at']}: {change['reason']}" if change else None))
    ended = document["last_leadership_end"]
    told = ended and f"{ended['at']}: node {ended['leader_id']}, epoch {ended['leader_epoch']}: {ended['reason']}"
    rows.append(("last_leadership_end", told))
    rows.append(("target_voters", document["target_voters"] and [v["id"] for v in document["target_voters"]]))
    rows += [
        (name, document[name]) for name in ("target_step", "target_problem", "preferred_problem") if document[name]
    ]
    output.table(("", ""), rows)
    _table(context, document)


@group.command("replication")
@with_loop
async def replication(context: Context) -> None:
    """Show each voter and observer with its role and lag."""
    async with context.client() as client:
        reply = await client.describe_quorum(context.left_s)
    document = status_document(reply)
    if context.output.is_json:
        context.output.document(_replicas(document))
        return
    _table(context, document)


def _second_hand(document: dict[str, Any]) -> str:
    """Return the message for an answer that did not come from the leader."""
    leader = document["leader_id"]
    whose = "knows no leader" if leader is None else f"names node {leader} as the leader, which does not answer"
    return f"answered by node {document['answered_by']}, which {whose}: lags and observers are not known (kctl doctor)"


_COLUMNS = ("id", "role", "directory_id", "address", "log_end_offset", "lag", "last_fetch_ms", "last_caught_up_ms")


def _table(context: Context, document: dict[str, Any]) -> None:
    replicas = _replicas(document)
    for replica in replicas:
        if replica["role"] == "leader" and not document["leader_answers"]:
            replica["role"] = "leader (does not answer)"
    context.output.table(_COLUMNS, [[replica[column] for column in _COLUMNS] for replica in replicas])
    if not document["leader_answers"]:
        context.output.message(_second_hand(document))


def _replicas(document: dict[str, Any]) -> list[dict[str, Any]]:
    leader = document["leader_id"]
    voters = [{**v, "role": "leader" if v["id"] == leader else "follower"} for v in document["voters"]]
    return voters + [{**o, "role": "observer"} for o in document["observers"]]


def status_document(reply: Any) -> dict[str, Any]:
    """Return the JSON of `quorum status` for a DescribeQuorumReply."""
    known = reply.known
    leader = known.leader_id if known.HasField("leader_id") else None
    return {
        "cluster_id": known.cluster_id if known.HasField("cluster_id") else None,
        "generation": known.generation,
        "leader_id": leader,
        "leader_answers": is_leaders(reply) if leader is not None else None,
        "leader_epoch": known.epoch,
        "high_watermark": reply.high_watermark,
        "paused": reply.paused,
        "answered_by": reply.answered_by.node_id,
        "voters": [_replica(reply, replica) for replica in reply.voters],
        "observers": [_replica(reply, replica) for replica in reply.observers],
        "target_voters": [_voter(v) for v in reply.target_voters.voters] if reply.HasField("target_voters") else None,
        "target_step": reply.target_step if reply.HasField("target_step") else None,
        "target_problem": reply.target_problem if reply.HasField("target_problem") else None,
        "preferred_problem": reply.preferred_problem if reply.HasField("preferred_problem") else None,
        "last_leader_change": _last_change(reply),
        "last_leadership_end": _last_end(reply),
    }


def _voter(voter: Any) -> dict[str, Any]:
    return {
        "id": voter.key.node_id,
        "directory_id": uuid_text(voter.key.directory_id),
        "address": voter.address or None,
    }


def _replica(reply: Any, status: Any) -> dict[str, Any]:
    """Return the JSON of a replica.  The leader knows the lag of every node; other nodes know only their own lag."""
    is_known = is_leaders(reply) or status.replica.key == reply.answered_by
    return {
        **_voter(status.replica),
        "log_end_offset": status.log_end_offset if is_known and status.log_end_offset >= 0 else None,
        "lag": status.lag if is_known and status.lag >= 0 else None,
        "last_fetch_ms": status.last_fetch_ms if status.HasField("last_fetch_ms") else None,
        "last_caught_up_ms": status.last_caught_up_ms if status.HasField("last_caught_up_ms") else None,
    }


def _last_change(reply: Any) -> dict[str, Any] | None:
    if not reply.HasField("last_leader_change_ms"):
        return None
    reason = reply.last_leader_change_reason if reply.HasField("last_leader_change_reason") else None
    return {"at": _before(reply.last_leader_change_ms), "reason": reason}


def _last_end(reply: Any) -> dict[str, Any] | None:
    """Return the end of the previous leadership and its reason, according to the answering node."""
    if not reply.HasField("last_leadership_end"):
        return None
    end = reply.last_leadership_end
    return {"at": _before(end.age_ms), "leader_id": end.leader_id, "leader_epoch": end.epoch, "reason": end.reason}


def _before(age_ms: int) -> str:
    from quorumlog.runtime.clock import Sources

    return rfc3339(Sources.real().wall_ms() - age_ms)
