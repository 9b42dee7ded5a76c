"""kctl add-voter, remove-voter, alter-quorum, transfer-leader, preferred-controllers: change voters and leader.

Other nodes forward these requests to the quorum's leader.  It transfers leadership even before it is the active
controller; for all other requests, it must be the active controller.  Repeating a request that is already satisfied
succeeds and reports that nothing changed.  A refusal names its reason and the next step.
"""

from __future__ import annotations

from typing import Any

import click

from quorumlog.kctl.context import Command, Context, Group, so_on_return, with_loop
from quorumlog.kctl.numbers import IntRange, whole
from quorumlog.kctl.progress import Progress, ids, join
from quorumlog.kctl.reads import Reads
from quorumlog.runtime.addresses import NODE_ID_MAX, InitialVoter, parse_list, parse_voter

_dry_run = click.option("--dry-run", "--validate-only", "dry_run", is_flag=True, help="Check, but change nothing.")
_NODE_ID = IntRange(0, NODE_ID_MAX)


def _voter(_context: click.Context, _parameter: click.Parameter, text: str) -> InitialVoter:
    try:
        return parse_voter(text)
    except ValueError as error:
        raise click.BadParameter(_expected(error, "ID@HOST:PORT")) from None


def _voters(_context: click.Context, _parameter: click.Parameter, text: str | None) -> tuple[InitialVoter, ...] | None:
    try:
        return None if text is None else tuple(parse_list(parse_voter, [text]))
    except ValueError as error:
        raise click.BadParameter(_expected(error, "ID@HOST:PORT,...")) from None


def _expected(error: ValueError, form: str) -> str:
    """Return the error's text, with the expected form if the text does not name it."""
    text = str(error)
    return text if "ID@HOST:PORT" in text else f"{text}; expected: {form}"


@click.command("add-voter", cls=Command)
@click.argument("voter", metavar="ID@HOST:PORT", callback=_voter)
@click.option("--replace", is_flag=True, help="Replace a voter of this id that lost its disk.")
@click.option("--wait", is_flag=True, help="Wait until the node is caught up and added; show progress.")
@_dry_run
@with_loop
async def add_voter(context: Context, voter: InitialVoter, replace: bool, wait: bool, dry_run: bool) -> None:
    """Make a running node a voter.

    The node must answer at the given control address.
    """
    from quorumlog.wire import rpcs
    from quorumlog.wire.v1 import controller_pb2 as pb

    change = pb.AddVoter(node_id=voter.node_id, address=str(voter.address), replace=replace)
    request = pb.ChangeVotersRequest(add=change)
    if wait and not dry_run:
        async with context.client() as client:
            progress = Progress(context, client)
            reply = await progress.taken(lambda left: client.call(rpcs.CHANGE_VOTERS, request, left), voter.node_id)
    else:
        reply = await _change(context, request, dry_run)
    _report(
        context,
        reply,
        {"id": voter.node_id, "address": str(voter.address)},
        dry_run,
        done=f"node {voter.node_id} is a voter now",
        planned=f"node {voter.node_id} would become a voter",
        already=f"node {voter.node_id} is already a voter",
    )


@click.command("remove-voter", cls=Command)
@click.argument("node_id", metavar="ID", type=_NODE_ID)
@_dry_run
@so_on_return
@with_loop
async def remove_voter(context: Context, node_id: int, dry_run: bool) -> None:
    """Remove a voter; its node continues as an observer.

    The active controller can be removed like any other voter: it commits its own removal, then hands over.
    """
    from quorumlog.wire.v1 import controller_pb2 as pb

    reply = await _change(context, pb.ChangeVotersRequest(remove=pb.RemoveVoter(node_id=node_id)), dry_run)
    _report(
        context,
        reply,
        {"id": node_id},
        dry_run,
        done=f"node {node_id} is no longer a voter",
        planned=f"node {node_id} would be removed",
        already=f"node {node_id} is not a voter",
    )


@click.command("alter-quorum", cls=Command)
@click.option("--target", callback=_voters, metavar="ID@HOST:PORT,...", help="The target set of voters.")
@click.option("--cancel", is_flag=True, help="Cancel the target; completed steps remain.")
@click.option(
    "--wait",
    is_flag=True,
    help="Wait until the target is reached, and show each step.  Without --target: the target in progress.",
)
@_dry_run
@with_loop
async def alter_quorum(
    context: Context, target: tuple[InitialVoter, ...] | None, cancel: bool, wait: bool, dry_run: bool
) -> None:
    """Change the voters to a target set, step by step.

    The change continues if another controller becomes active.
    """
    from quorumlog.wire.v1 import controller_pb2 as pb

    if target is None and not cancel and wait and not dry_run:
        return await _follow(context)
    if (target is None) == (not cancel):
        raise click.UsageError("give one of --target and --cancel, or --wait alone")
    if target is None:
        request = pb.ChangeVotersRequest(cancel_target=pb.CancelTargetVoters())
    else:
        voters = [pb.VoterAddress(node_id=one.node_id, address=str(one.address)) for one in target]
        request = pb.ChangeVotersRequest(set_target=pb.SetTargetVoters(voters=voters))
    reply = await _change(context, request, dry_run)
    names = join([one.node_id for one in target or ()])
    if wait and target is not None and not dry_run:
        described = await _reached(context, [one.node_id for one in target], reply.offset)
        now = [
            pb.VoterAddress(node_id=one.replica.key.node_id, address=one.replica.address) for one in described.voters
        ]
        reply = pb.ChangeVotersReply(result=reply.result, changed=reply.changed, offset=reply.offset, voters=now)
    return _report(
        context,
        reply,
        {},
        dry_run,
        done="the target is cancelled" if cancel else f"voters {names}: {'reached' if wait else 'in progress'}",
        planned="the target would be cancelled" if cancel else f"voters {names} would become the target",
        already="there was no target" if cancel else f"voters {names}: already reached or in progress",
    )


@click.command("transfer-leader", cls=Command)
@click.option("--to", "node_id", type=_NODE_ID, required=True, metavar="ID", help="The new leader.")
@_dry_run
@so_on_return
@with_loop
async def transfer_leader(context: Context, node_id: int, dry_run: bool) -> None:
    """Make another voter the active controller."""
    from quorumlog.wire import rpcs
    from quorumlog.wire.v1 import controller_pb2 as pb

    header = pb.RequestHeader(validate_only=dry_run)
    async with context.client() as client:
        before = (await client.describe_quorum(context.left_s)).known
        was = before.leader_id if before.HasField("leader_id") else None
        await client.call(rpcs.TRANSFER_LEADER, pb.TransferLeaderRequest(header=header, to=node_id), context.left_s)
    changed = not dry_run and was != node_id
    if context.output.is_json:
        context.output.document({"changed": changed, "offset": None, "leader_id": was if dry_run else node_id})
    elif dry_run:
        context.output.text(f"node {node_id} would lead")
    else:
        context.output.text(f"node {node_id} leads" + ("" if changed else " already"))


@click.group("preferred-controllers", cls=Group)
def preferred() -> None:
    """Choose the voters that should lead if possible."""


@preferred.command("show")
@with_loop
async def show_preferred(context: Context) -> None:
    """Show the preferred controllers, the most preferred first."""
    from quorumlog.wire import rpcs
    from quorumlog.wire.v1 import controller_pb2 as pb

    async with context.client() as client:
        request = pb.DescribePreferredControllersRequest()
        reads = Reads(context, client)
        reply = await reads.ask(rpcs.DESCRIBE_PREFERRED_CONTROLLERS, request)
    reads.tell()
    if context.output.is_json:
        context.output.document({"preferred": list(reply.node_ids), **reads.validity})
    else:
        context.output.text(",".join(map(str, reply.node_ids)) or "no preference")


def _ids(_context: click.Context, _parameter: click.Parameter, text: str | None) -> list[int] | None:
    if text is None:
        return None
    try:
        ids = [whole(one) for one in text.split(",")]
    except ValueError:
        raise click.BadParameter(f"{text!r} is not like 1,2 (node ids)") from None
    if any(not 0 <= one <= NODE_ID_MAX for one in ids):
        raise click.BadParameter(f"{text!r} has a node id out of range 0..{NODE_ID_MAX}")
    return ids


@preferred.command("set")
@click.argument("ids", required=False, callback=_ids, metavar="[IDS]")
@click.option("--auto", is_flag=True, help="Prefer the voter whose broker leads the fewest partitions.")
@_dry_run
@so_on_return
@with_loop
async def set_preferred(context: Context, ids: list[int] | None, auto: bool, dry_run: bool) -> None:
    """Prefer these voters as controllers, the most preferred first."""
    if (ids is None) == (not auto):
        raise click.UsageError("give one of IDS and --auto")
    await _prefer(context, ids or [], auto, dry_run)


@preferred.command("clear")
@_dry_run
@so_on_return
@with_loop
async def clear_preferred(context: Context, dry_run: bool) -> None:
    """Remove the preference."""
    await _prefer(context, [], False, dry_run)


async def _prefer(context: Context, ids: list[int], auto: bool, dry_run: bool) -> None:
    from quorumlog.wire import rpcs
    from quorumlog.wire.v1 import controller_pb2 as pb

    header = pb.RequestHeader(validate_only=dry_run)
    request = pb.SetPreferredControllersRequest(header=header, node_ids=ids, auto=auto)
    async with context.client() as client:
        reply = await client.call(rpcs.SET_PREFERRED_CONTROLLERS, request, context.left_s)
    names = ",".join(map(str, reply.node_ids)) or "none"
    if context.output.is_json:
        document = {"changed": reply.changed, "offset": reply.offset, "preferred": list(reply.node_ids)}
        context.output.document(document)
    elif dry_run:
        context.output.text(f"{names} would be preferred")
    else:
        context.output.text(f"preferred: {names}" + ("" if reply.changed else " (unchanged)"))


# Shared by the commands that change voters


async def _change(context: Context, request: Any, dry_run: bool) -> Any:
    from quorumlog.wire import rpcs

    request.header.validate_only = dry_run
    async with context.client() as client:
        return await client.call(rpcs.CHANGE_VOTERS, request, context.left_s)


def _report(
    context: Context, reply: Any, named: dict[str, Any], dry_run: bool, *, done: str, planned: str, already: str
) -> None:
    if context.output.is_json:
        document = {
            "changed": reply.changed,
            "offset": reply.offset or None,
            **named,
            "voters": [_document(voter) for voter in reply.voters],
            "target_voters": [_document(voter) for voter in reply.target] or None,
        }
        context.output.document(document)
        return
    said = done if reply.changed else reply.result.message or (planned if dry_run else already)
    context.output.text(said)
    listed = ",".join(f"{voter.node_id}@{voter.address}" for voter in reply.voters)
    context.output.message(f"voters: {listed} ({_arithmetic(len(reply.voters))})")


def _arithmetic(count: int) -> str:
    """Return a text: the number of voters in a set of `count` that must be up, and the number that may fail."""
    majority = count // 2 + 1
    return f"{majority} of {count} must be up, {count - majority or 'none'} may fail"


def _document(voter: Any) -> dict[str, Any]:
    return {"id": voter.node_id, "address": voter.address}


async def _follow(context: Context) -> None:
    """`alter-quorum --wait`: follow the progress towards the current target."""
    voters = ids(await _reached(context, None, 0))
    if context.output.is_json:
        context.output.document({"changed": False, "offset": None, "voter_ids": voters})
    else:
        context.output.text(f"voters {join(voters)}: no target is in progress")


async def _reached(context: Context, wanted: list[int] | None, offset: int) -> Any:
    goal = "its target" if wanted is None else f"voters {join(wanted)}"
    context.interrupted = f"the quorum continues towards {goal} (to stop it: kctl alter-quorum --cancel)"
    async with context.client() as client:
        return await Progress(context, client).reached(wanted, offset)
