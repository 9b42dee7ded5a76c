"""kctl brokers: who is registered, in what state, and how far behind the metadata log."""

from __future__ import annotations

import asyncio
from typing import Any

import click

from quorumlog.errors import ClusterError
from quorumlog.kctl.context import WAIT_HELP, Context, Group, wait_until_applied, with_loop


@click.group("brokers", cls=Group)
def group() -> None:
    """The data nodes."""


async def fetch(context: Context, client: Any) -> list[dict[str, Any]]:
    """All registered brokers, by id, as `brokers list` shows them."""
    from quorumlog.wire.v1 import controller_pb2

    reply = await client.call("DescribeBrokers", controller_pb2.DescribeBrokersRequest(), context.deadline_s)
    return [document(broker) for broker in sorted(reply.brokers, key=lambda broker: broker.broker_id)]


def document(broker: Any) -> dict[str, Any]:
    """The JSON of one broker."""
    is_heard = broker.metadata_offset >= 0  # else not heard from under this controller
    return {
        "id": broker.broker_id,
        "rack": broker.rack if broker.HasField("rack") else None,
        "endpoints": [
            {"name": e.name, "host": e.host, "port": e.port, "security": e.security} for e in broker.endpoints
        ],
        "state": broker.state,
        "broker_epoch": broker.broker_epoch,
        "leaders": broker.leaders,
        "replicas": broker.replicas,
        "metadata_offset": broker.metadata_offset if is_heard else None,
        "metadata_lag": broker.metadata_lag if is_heard else None,
        "pending_changes": broker.pending_changes if is_heard else None,
    }


def _table(context: Context, documents: list[dict[str, Any]]) -> None:
    columns = ("id", "state", "rack", "broker_epoch", "leaders", "replicas", "metadata_lag", "pending_changes")
    rows = [
        [*(one[column] for column in columns), [f"{e['name']}={e['host']}:{e['port']}" for e in one["endpoints"]]]
        for one in documents
    ]
    context.output.table((*columns, "endpoints"), rows)


@group.command("list")
@with_loop
async def list_(context: Context) -> None:
    """All registered brokers."""
    async with context.client() as client:
        documents = await fetch(context, client)
    if context.output.is_json:
        context.output.document(documents)
    else:
        _table(context, documents)


@group.command("describe")
@click.argument("broker_id", metavar="ID", type=click.IntRange(0, 2**31 - 1))
@with_loop
async def describe(context: Context, broker_id: int) -> None:
    """One broker."""
    async with context.client() as client:
        documents = [one for one in await fetch(context, client) if one["id"] == broker_id]
    if not documents:
        raise ClusterError("BROKER_ID_NOT_REGISTERED", f"no broker {broker_id} is registered", "kctl brokers list")
    if context.output.is_json:
        context.output.document(documents[0])
    else:
        _table(context, documents)


@group.command("unregister")
@click.argument("broker_id", metavar="ID", type=click.IntRange(0, 2**31 - 1))
@click.option("--dry-run", "--validate-only", "dry_run", is_flag=True, help="Check, but change nothing.")
@click.option("--wait", is_flag=True, help=WAIT_HELP)
@with_loop
async def unregister(context: Context, broker_id: int, dry_run: bool, wait: bool) -> None:
    """Forget a broker that is gone for good: one that is fenced and has no replicas left."""
    from quorumlog.wire.v1 import controller_pb2

    header = controller_pb2.RequestHeader(validate_only=dry_run)
    async with context.client() as client:
        request = controller_pb2.UnregisterBrokerRequest(header=header, broker_id=broker_id)
        deadline = asyncio.get_running_loop().time() + context.deadline_s
        reply = await client.call("UnregisterBroker", request, context.deadline_s)
        if wait and reply.changed:
            await wait_until_applied(client, reply.offset, deadline)
    document = {"changed": reply.changed, "offset": reply.offset, "id": broker_id}
    if context.output.is_json:
        context.output.document(document)
    else:
        context.output.text(f"broker {broker_id} {'would be' if dry_run else 'is'} forgotten")


@group.command("purge-strays")
@click.option("--broker", "broker_id", type=click.IntRange(0, 2**31 - 1), help="Only of this broker (default: of all).")
@click.option("--dry-run", "--validate-only", "dry_run", is_flag=True, help="Only show them.")
@with_loop
async def purge_strays(context: Context, broker_id: int | None, dry_run: bool) -> None:
    """Delete the replicas that were set aside because the metadata does not know them.

    After the quorum was rebuilt (docs/recovery.md) they are kept until this is said; look at them first.
    """
    from quorumlog.wire.v1 import node_pb2

    rows: list[dict[str, Any]] = []
    async with context.client() as client:
        nodes = await node_addresses(client, context.deadline_s)
        wanted = [one["id"] for one in await fetch(context, client) if broker_id in (None, one["id"])]
        if not wanted and broker_id is not None:
            raise ClusterError("BROKER_ID_NOT_REGISTERED", f"no broker {broker_id} is registered", "kctl brokers list")
        unreached = []
        for broker in wanted:
            try:
                if broker not in nodes:
                    raise ClusterError("UNAVAILABLE", f"no control address of broker {broker} is known", retriable=True)
                request = node_pb2.PurgeStraysRequest(dry_run=dry_run)
                reply = await client.ask_node(nodes[broker], "PurgeStrays", request, context.deadline_s)
            except ClusterError as error:
                context.output.message(f"broker {broker}: {error.message}")
                unreached.append(broker)
                continue
            rows += [_stray(broker, stray) for stray in reply.strays]
    columns = ("broker", "topic", "partition", "path", "set_aside_at", "kept")
    if context.output.is_json:
        context.output.document({"changed": bool(rows) and not dry_run, "strays": rows})
    elif rows:
        context.output.table(columns, [[row[column] for column in columns] for row in rows])
        context.output.message(f"{len(rows)} strays {'would be' if dry_run else 'were'} deleted")
    else:
        context.output.text("there are no strays")
    if unreached:
        named = ", ".join(map(str, unreached))
        raise ClusterError("UNAVAILABLE", f"nothing was done on: {named}", "say it again when they run", retriable=True)


async def node_addresses(client: Any, timeout_s: float) -> dict[int, str]:
    """Control address of every node that the quorum's leader knows, by node id."""
    reply = await client.describe_quorum(timeout_s)
    replicas = [status.replica for status in (*reply.voters, *reply.observers)]
    return {replica.key.node_id: replica.address for replica in replicas if replica.address}


def _stray(broker_id: int, stray: Any) -> dict[str, Any]:
    from quorumlog.runtime.logging import rfc3339

    return {
        "broker": broker_id,
        "topic": stray.topic,
        "partition": stray.index,
        "path": stray.path,
        "set_aside_at": rfc3339(stray.set_aside_ms),
        "kept": stray.kept,
    }
