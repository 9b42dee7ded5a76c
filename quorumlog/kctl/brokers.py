"""kctl brokers: who is registered, in what state, and how far behind the metadata log."""

from __future__ import annotations

from typing import Any

import click

from quorumlog.errors import ClusterError
from quorumlog.kctl.context import Context, Group, with_loop


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
