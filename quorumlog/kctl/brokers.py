"""kctl brokers: the registered brokers, their state, and their lag behind the metadata log."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import click

from quorumlog.errors import ClusterError
from quorumlog.kctl import broker_look
from quorumlog.kctl.context import WAIT_HELP, Context, Group, so_on_return, wait_until_applied, with_loop
from quorumlog.kctl.nodes import known_addresses
from quorumlog.kctl.numbers import IntRange
from quorumlog.kctl.reads import Reads
from quorumlog.wire.errors import ApiError
from quorumlog.words import counted, rfc3339

if TYPE_CHECKING:
    from quorumlog.client.controller import ControllerClient
    from quorumlog.client.reads import Caller

SHOWN_MAX = 50
"""Maximum number of replicas that the table of `describe` shows without --all."""


@click.group("brokers", cls=Group)
def group() -> None:
    """List, describe and unregister brokers."""


async def fetch(context: Context, client: Caller, timeout_s: float | None = None) -> list[dict[str, Any]]:
    """Return the JSON of all registered brokers, ascending by id.

    client: a `ControllerClient` asks the active controller; `Reads` may ask other nodes.
    timeout_s: None means the remaining time of the command.
    """
    from quorumlog.wire import rpcs
    from quorumlog.wire.v1 import controller_pb2

    limit_s = context.left_s if timeout_s is None else timeout_s
    reply = await client.call(rpcs.DESCRIBE_BROKERS, controller_pb2.DescribeBrokersRequest(), limit_s)
    return [
        broker_look.broker_document(broker) for broker in sorted(reply.brokers, key=lambda broker: broker.broker_id)
    ]


async def specific_refusal(
    refusal: ClusterError, client: ControllerClient, context: Context, wanted: Iterable[int]
) -> ClusterError:
    """Return `refusal` with an error code that distinguishes an unregistered broker from one that is down.

    The controller refuses an assignment to either broker with INVALID_REPLICA_ASSIGNMENT and a next step.  Refusals of
    the form of an assignment have no next step.  wanted: the assigned brokers.
    """
    if refusal.code != ApiError.INVALID_REPLICA_ASSIGNMENT or not refusal.next_step:
        return refusal
    try:
        states = {each["id"]: each["state"] for each in await fetch(context, client)}
    except ClusterError:
        return refusal
    word = refusal.code
    if any(broker not in states for broker in wanted):
        word = ApiError.BROKER_ID_NOT_REGISTERED
    elif any(states[broker] != "unfenced" for broker in wanted):
        word = ApiError.BROKER_NOT_AVAILABLE
    return ClusterError(word, refusal.message, refusal.next_step, retriable=refusal.retriable)


_COLUMNS = (
    "id", "state", "cordoned", "rack", "broker_epoch", "leaders", "replicas", "metadata_lag", "pending_changes",
    "answers",
)  # fmt: skip

_DETAILS = (
    "id", "state", "cordoned", "rack", "broker_epoch", "control", "answers", "problem", "metadata_offset",
    "metadata_lag", "pending_changes", "directories_offline", "leaders", "replicas",
)  # fmt: skip
_REPLICA_COLUMNS = (
    "topic", "partition", "state", "role", "in_sync", "leader", "end_offset", "high_watermark", "bytes", "directory",
    "problem",
)  # fmt: skip


def _table(context: Context, documents: list[dict[str, Any]]) -> None:
    rows = [[*(one[column] for column in _COLUMNS), _endpoints(one)] for one in documents]
    context.output.table((*_COLUMNS, "endpoints"), rows)
    for one in documents:
        if one["problem"] is not None:
            context.output.message(f"broker {one['id']}: {one['problem']}")


def _endpoints(one: dict[str, Any]) -> list[str]:
    return [f"{each['name']}={each['host']}:{each['port']}" for each in one["endpoints"]]


@group.command("list")
@with_loop
async def list_(context: Context) -> None:
    """List the registered brokers: state, metadata lag, pending changes."""
    async with context.client() as client:
        documents = await broker_look.look(context, client)
    if context.output.is_json:
        context.output.document(documents)
    else:
        _table(context, documents)


@group.command("describe")
@click.argument("broker_id", metavar="ID", type=IntRange(0, 2**31 - 1))
@click.option("--all", "show_all", is_flag=True, help=f"Show all replicas, not only {SHOWN_MAX}.")
@with_loop
async def describe(context: Context, broker_id: int, show_all: bool) -> None:
    """Show one broker and the state of each of its replicas.

    Replicas that need attention come first.
    """
    async with context.client() as client:
        (one,) = await broker_look.look(context, client, broker_id)
        replicas = await broker_look.replicas_of(client, context.output, one, context.left_s)
    if context.output.is_json:
        context.output.document({**one, "replica_states": replicas})
        return
    shown = sorted(replicas, key=broker_look.is_fine)
    _describe(context, one, shown if show_all else shown[:SHOWN_MAX], len(replicas))


def _describe(context: Context, one: dict[str, Any], replicas: list[dict[str, Any]], count: int) -> None:
    output = context.output
    rows: list[tuple[str, Any]] = [(name, None if one[name] == [] else one[name]) for name in _DETAILS]
    output.table(("", ""), [*rows, ("endpoints", _endpoints(one))])
    if replicas:
        output.table(_REPLICA_COLUMNS, [[replica[column] for column in _REPLICA_COLUMNS] for replica in replicas])
    if len(replicas) < count:
        output.message(f"and {counted(count - len(replicas), 'more replica')} (--all shows them)")


@group.command("moves")
@click.option("--broker", "broker_id", type=IntRange(0, 2**31 - 1), help="Only this broker (default: all brokers).")
@with_loop
async def moves(context: Context, broker_id: int | None) -> None:
    """Show the replicas that move to another data directory of their broker, and the bytes that remain to copy.

    `kctl reassign start` with a plan that names directories starts such moves.
    """
    from quorumlog.kctl.directories import moves_of, open_log_dirs

    async with context.client() as client:
        reads = Reads(context, client)
        wanted = [one["id"] for one in await fetch(context, reads) if broker_id in (None, one["id"])]
    if not wanted and broker_id is not None:
        raise reads.refused(_not_registered(broker_id))
    reads.tell()
    rows: list[dict[str, Any]] = []
    unreached = []
    async with open_log_dirs(context) as log_dirs:
        limit_s = context.left_s
        asked = (moves_of(log_dirs, broker, limit_s) for broker in wanted)
        for broker, answer in zip(wanted, await asyncio.gather(*asked, return_exceptions=True), strict=True):
            if isinstance(answer, ClusterError):
                context.output.message(f"broker {broker}: {answer.message}")
                unreached.append(broker)
            elif isinstance(answer, BaseException):
                raise answer
            else:
                rows += answer
    columns = ("broker", "topic", "partition", "from", "to", "bytes_left")
    if context.output.is_json:
        context.output.document([{**row, **reads.validity} for row in rows])
    elif rows:
        context.output.table(columns, [[row[column] for column in columns] for row in rows])
    else:
        context.output.text("no replica moves between directories")
    if unreached:
        named = ", ".join(map(str, unreached))
        raise ClusterError(
            ApiError.UNAVAILABLE, f"the moves of brokers {named} are not known", "kctl brokers list", retriable=True
        )


@group.command("unregister")
@click.argument("broker_id", metavar="ID", type=IntRange(0, 2**31 - 1))
@click.option("--dry-run", "--validate-only", "dry_run", is_flag=True, help="Check, but change nothing.")
@click.option("--wait", is_flag=True, help=WAIT_HELP)
@with_loop
async def unregister(context: Context, broker_id: int, dry_run: bool, wait: bool) -> None:
    """Remove a broker permanently; it must be fenced and have no replicas."""
    from quorumlog.wire import rpcs
    from quorumlog.wire.v1 import controller_pb2

    header = controller_pb2.RequestHeader(validate_only=dry_run)
    async with context.client() as client:
        request = controller_pb2.UnregisterBrokerRequest(header=header, broker_id=broker_id)
        reply = await client.call(rpcs.UNREGISTER_BROKER, request, context.left_s)
        if wait and not dry_run:
            await wait_until_applied(context, client, reply.offset)
    document = {"changed": reply.changed, "offset": reply.offset, "id": broker_id}
    if context.output.is_json:
        context.output.document(document)
    else:
        context.output.text(f"broker {broker_id} {'would be' if dry_run else 'is'} unregistered")


@group.command("purge-strays")
@click.option("--broker", "broker_id", type=IntRange(0, 2**31 - 1), help="Only this broker (default: all brokers).")
@click.option("--dry-run", "--validate-only", "dry_run", is_flag=True, help="List the replicas, but delete nothing.")
@so_on_return
@with_loop
async def purge_strays(context: Context, broker_id: int | None, dry_run: bool) -> None:
    """Delete replicas that were set aside because the metadata does not contain them.

    If the quorum was rebuilt (docs/recovery.md), they are kept until you run this command.  Check them with
    --dry-run first.
    """
    from quorumlog.wire import rpcs
    from quorumlog.wire.v1 import node_pb2

    rows: list[dict[str, Any]] = []
    async with context.client() as client:
        nodes = await node_addresses(client, context.left_s)
        wanted = [one["id"] for one in await fetch(context, client) if broker_id in (None, one["id"])]
        if not wanted and broker_id is not None:
            raise _not_registered(broker_id)
        unreached = []

        async def ask(broker: int) -> Any:
            if broker not in nodes:
                text = f"the control address of broker {broker} is not known"
                raise ClusterError(ApiError.UNAVAILABLE, text, retriable=True)
            request = node_pb2.PurgeStraysRequest(dry_run=dry_run)
            return await client.ask_node(nodes[broker], rpcs.PURGE_STRAYS, request, context.left_s)

        # Ask all brokers at once: a broker that hangs uses up the time, and the others must not wait for it.
        for broker, answer in zip(wanted, await asyncio.gather(*map(ask, wanted), return_exceptions=True), strict=True):
            if isinstance(answer, ClusterError):
                context.output.message(f"broker {broker}: {answer.message}")
                unreached.append(broker)
            elif isinstance(answer, BaseException):
                raise answer
            else:
                rows += [_stray(broker, stray) for stray in answer.strays]
    columns = ("broker", "topic", "partition", "path", "set_aside_at", "kept")
    if context.output.is_json:
        context.output.document({"changed": bool(rows) and not dry_run, "offset": None, "strays": rows})
    elif rows:
        context.output.table(columns, [[row[column] for column in columns] for row in rows])
        context.output.message(
            f"{counted(len(rows), 'stray')} {'would be' if dry_run else 'was' if len(rows) == 1 else 'were'} deleted"
        )
    else:
        context.output.text("there are no strays")
    if unreached:
        named = ", ".join(map(str, unreached))
        raise ClusterError(
            ApiError.UNAVAILABLE, f"the command failed on brokers {named}", "retry when they run", retriable=True
        )


def _not_registered(broker_id: int) -> ClusterError:
    text = f"no broker {broker_id} is registered"
    return ClusterError(ApiError.BROKER_ID_NOT_REGISTERED, text, "kctl brokers list")


async def node_addresses(client: ControllerClient, timeout_s: float) -> dict[int, str]:
    """Return control addresses by node id, as the quorum's leader knows them, or another node if no leader answers."""
    return known_addresses(await client.describe_quorum(timeout_s))


def _stray(broker_id: int, stray: Any) -> dict[str, Any]:
    return {
        "broker": broker_id,
        "topic": stray.topic,
        "partition": stray.index,
        "path": stray.path,
        "set_aside_at": rfc3339(stray.set_aside_ms),
        "kept": stray.kept,
    }
