"""kctl topics add-partitions and remove-partitions: change the number of partitions of a topic."""

from __future__ import annotations

from typing import Any

import click

from quorumlog.errors import ClusterError
from quorumlog.kctl.brokers import specific_refusal
from quorumlog.kctl.context import WAIT_HELP, Command, Context, wait_until_applied, with_loop
from quorumlog.kctl.losses import ask, lost_records
from quorumlog.kctl.numbers import IntRange
from quorumlog.kctl.output import uuid_text
from quorumlog.kctl.refusals import refusal
from quorumlog.kctl.streams import can_ask
from quorumlog.kctl.topics import dry_run_option, parse_assignment, wait_for_leaders
from quorumlog.wire.errors import ApiError
from quorumlog.words import counted

PARTITIONS_MAX = 1_000_000


@click.command("add-partitions", cls=Command)
@click.argument("name")
@click.option("--to", "count", type=IntRange(1, PARTITIONS_MAX), required=True, help="The new number of partitions.")
@click.option(
    "--assignment",
    callback=parse_assignment,
    metavar="1:2,2:3",
    help="Brokers of each new partition (default: chosen by the controller).",
)
@dry_run_option
@click.option("--wait", is_flag=True, help="Return once every partition has a leader.")
@with_loop
async def add_partitions(
    context: Context, name: str, count: int, assignment: list[list[int]] | None, dry_run: bool, wait: bool
) -> None:
    """Add partitions to a topic.

    Requesting the current number succeeds and changes nothing.
    """
    from quorumlog.wire import rpcs
    from quorumlog.wire.v1 import controller_pb2, metadata_pb2

    wanted = controller_pb2.NewPartitions(
        topic=name, count=count, assignment=[metadata_pb2.IntList(values=row) for row in assignment or []]
    )
    header = controller_pb2.RequestHeader(validate_only=dry_run)
    async with context.client() as client:
        request = controller_pb2.AddPartitionsRequest(header=header, topics=[wanted])
        reply = await client.call(rpcs.ADD_PARTITIONS, request, context.left_s)
        (topic,) = reply.topics
        if topic.result.error != ApiError.NONE:
            brokers = {broker for row in assignment or () for broker in row}
            raise await specific_refusal(refusal(topic.result), client, context, brokers)
        if wait and not dry_run:
            await wait_for_leaders(context, client, name)
    if context.output.is_json:
        context.output.document(_document(name, topic, reply.offset))
    elif dry_run:
        context.output.text(f"topic {name} would have {counted(topic.partitions, 'partition')}")
    elif topic.changed:
        context.output.text(f"topic {name} has {counted(topic.partitions, 'partition')} now")
    else:
        context.output.text(f"topic {name} already has {counted(topic.partitions, 'partition')}")


@click.command("remove-partitions", cls=Command)
@click.argument("name")
@click.option("--to", "count", type=IntRange(1, PARTITIONS_MAX), required=True, help="The new number of partitions.")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@dry_run_option
@click.option("--wait", is_flag=True, help=WAIT_HELP)
@with_loop
async def remove_partitions(context: Context, name: str, count: int, yes: bool, dry_run: bool, wait: bool) -> None:
    """Remove the highest-numbered partitions of a topic, with all their records.

    The topic gets a new id, so that clients accept the smaller number.  The command shows the number of lost records
    and asks for confirmation (unless --yes is given).
    """
    from quorumlog.wire import rpcs
    from quorumlog.wire.v1 import controller_pb2

    async with context.client() as client:
        request = controller_pb2.RemovePartitionsRequest(
            header=controller_pb2.RequestHeader(validate_only=True), topic=name, count=count
        )
        checked = await client.call(rpcs.REMOVE_PARTITIONS, request, context.left_s)
        if checked.topic.result.error != ApiError.NONE:
            raise refusal(checked.topic.result)
        described = await client.call(
            rpcs.DESCRIBE_TOPICS, controller_pb2.DescribeTopicsRequest(names=[name]), context.left_s
        )
        now = len(described.topics[0].partitions)
        lost = None
        if count < now:
            lost = await lost_records(context, name, range(count, now))
            context.output.message(_warning(name, count, now, lost))
            if not (yes or dry_run):
                if not can_ask():
                    text = f"removing partitions of {name} loses records and is not confirmed"
                    raise ClusterError(ApiError.CONFIRMATION_NEEDED, text, "add --yes")
                ask(context, "remove them?")
        request.header.validate_only = dry_run
        reply = await client.call(rpcs.REMOVE_PARTITIONS, request, context.left_s)
        if reply.topic.result.error != ApiError.NONE:
            raise refusal(reply.topic.result)
        if wait and not dry_run:
            await wait_until_applied(context, client, reply.offset)
    document = {**_document(name, reply.topic, reply.offset), "removed": now - count, "records": lost}
    if context.output.is_json:
        context.output.document(document)
    elif count == now:
        context.output.text(f"topic {name} already has {counted(now, 'partition')}")
    elif dry_run:
        context.output.text(f"topic {name} would keep {count} of {counted(now, 'partition')}")
    else:
        context.output.text(f"topic {name} has {counted(count, 'partition')} now, and a new id: {document['topic_id']}")


def _document(name: str, topic: Any, offset: int) -> dict[str, Any]:
    return {
        "changed": topic.changed,
        "offset": offset,
        "name": name,
        "topic_id": uuid_text(topic.topic_id),
        "partitions": topic.partitions,
    }


def _warning(name: str, count: int, now: int, lost: int | None) -> str:
    partitions = f"{name}-{count}" if now - count == 1 else f"{name}-{count} to {name}-{now - 1}"
    records = "all their records (their number is unknown)" if lost is None else counted(lost, "record")
    return f"warning: {partitions} will be deleted permanently, with {records}"
