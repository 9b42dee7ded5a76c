"""kctl topics: creates, lists, describes and deletes topics.  `partition_counts` adds two more commands."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from quorumlog.kctl.brokers import specific_refusal
from quorumlog.kctl.context import Context, Group, so_on_return, wait_until, with_loop
from quorumlog.kctl.numbers import IntRange, whole
from quorumlog.kctl.output import node_or_none, uuid_text
from quorumlog.kctl.reads import Reads
from quorumlog.kctl.refusals import refusal
from quorumlog.kctl.streams import can_ask
from quorumlog.kctl.topic_reads import describe_all_topics, describe_topics, with_nearest
from quorumlog.wire.errors import ApiError
from quorumlog.words import counted

if TYPE_CHECKING:
    from quorumlog.client.controller import ControllerClient

DEFAULT = -1
NOT_DECIDED = -1


@click.group("topics", cls=Group)
def group() -> None:
    """Create, describe, resize and delete topics."""


def parse_assignment(_context: click.Context, _parameter: click.Parameter, text: str | None) -> list[list[int]] | None:
    """Parse `1:2,2:3`: the brokers of each partition, the preferred leader first."""
    if text is None:
        return None
    try:
        rows = [[whole(broker) for broker in row.split(":")] for row in text.split(",")]
    except ValueError:
        raise click.BadParameter(f"{text!r} is not like 1:2,2:3 (the brokers of each partition)") from None
    if any(broker < 0 or broker > 2**31 - 1 for row in rows for broker in row):
        raise click.BadParameter(f"{text!r} has a broker id out of range 0..{2**31 - 1}")
    return rows


def parse_configs(
    _context: click.Context, _parameter: click.Parameter, texts: tuple[str, ...]
) -> list[tuple[str, str]]:
    """Parse `key=value` texts, without the spaces around key and value.

    Raises:
        click.BadParameter: a text has another form, or a key is given twice.
    """
    pairs = []
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals or not key.strip():
            raise click.BadParameter(f"{text!r} is not key=value")
        pairs.append((key.strip(), value.strip()))
    if len({key for key, _ in pairs}) != len(pairs):
        raise click.BadParameter("a key is given twice")
    return pairs


dry_run_option = click.option(
    "--dry-run", "--validate-only", "dry_run", is_flag=True, help="Check, but change nothing."
)


@group.command("create")
@click.argument("name")
@click.option("--partitions", type=IntRange(1, 1_000_000), help="Number of partitions (default: the cluster's).")
@click.option(
    "--replication-factor", type=IntRange(1, 32_767), help="Replicas of each partition (default: the cluster's)."
)
@click.option(
    "--assignment",
    callback=parse_assignment,
    metavar="1:2,2:3",
    help="Brokers of each partition, instead of the two options above.",
)
@click.option("--config", "configs", multiple=True, callback=parse_configs, metavar="key=value", help="Topic config.")
@dry_run_option
@click.option("--wait", is_flag=True, help="Return once every partition has a leader.")
@with_loop
async def create(
    context: Context,
    name: str,
    partitions: int | None,
    replication_factor: int | None,
    assignment: list[list[int]] | None,
    configs: list[tuple[str, str]],
    dry_run: bool,
    wait: bool,
) -> None:
    """Create a topic.

    Creating an identical topic again succeeds and changes nothing.
    """
    from quorumlog.wire import rpcs
    from quorumlog.wire.v1 import controller_pb2, metadata_pb2

    if assignment is not None and (partitions is not None or replication_factor is not None):
        raise click.UsageError("--assignment determines partitions and replication factor: give one or the other")
    topic = controller_pb2.NewTopic(
        name=name,
        partitions=partitions or DEFAULT,
        replication_factor=replication_factor or DEFAULT,
        assignment=[metadata_pb2.IntList(values=row) for row in assignment or []],
        configs=[controller_pb2.ConfigEntry(key=key, value=value) for key, value in configs],
    )
    header = controller_pb2.RequestHeader(validate_only=dry_run)
    async with context.client() as client:
        request = controller_pb2.CreateTopicsRequest(header=header, topics=[topic])
        (created,) = (await client.call(rpcs.CREATE_TOPICS, request, context.left_s)).topics
        is_new = created.result.error in (ApiError.NONE, "")
        if not is_new and not (created.result.error == ApiError.TOPIC_ALREADY_EXISTS and created.identical):
            brokers = {broker for row in assignment or () for broker in row}
            raise await specific_refusal(refusal(created.result), client, context, brokers)
        if wait and not dry_run:
            await wait_for_leaders(context, client, name)
    changed = is_new and not dry_run
    document = {
        "changed": changed,
        "offset": _offset(created.offset),
        "name": name,
        "topic_id": uuid_text(created.topic_id),
        "partitions": created.partitions,
        "replication_factor": created.replication_factor,
        "created": changed,
    }
    if context.output.is_json:
        context.output.document(document)
        return
    shape = f"{counted(created.partitions, 'partition')}, replication factor {created.replication_factor}"
    if dry_run and is_new:
        context.output.text(f"topic {name} would be created: {shape}")
    elif is_new:
        context.output.text(f"created topic {name}: {shape}")
    else:
        context.output.text(f"topic {name} already exists, and is identical: {shape}")


async def wait_for_leaders(context: Context, client: ControllerClient, name: str) -> None:
    """Wait until every partition of a topic has a leader, at most for the command's time.

    Raises:
        ClusterError: TIMED_OUT; or the error of a request.
    """
    from quorumlog.wire import rpcs
    from quorumlog.wire.v1 import controller_pb2

    async def is_so() -> bool:
        request = controller_pb2.DescribeTopicsRequest(names=[name])
        reply = await client.call(rpcs.DESCRIBE_TOPICS, request, context.left_s)
        return all(
            topic.result.error in (ApiError.NONE, "") and all(partition.leader >= 0 for partition in topic.partitions)
            for topic in reply.topics
        )

    await wait_until(is_so, context.left_s, f"each partition of topic {name} had a leader")


@group.command("list")
@with_loop
async def list_(context: Context) -> None:
    """List all topics."""
    async with context.client() as client:
        reads = Reads(context, client)
        topics = await describe_all_topics(reads, lambda: context.left_s)
    rows = [
        {
            "name": topic.name,
            "topic_id": uuid_text(topic.topic_id),
            "partitions": len(topic.partitions),
            "replication_factor": max((len(partition.replicas) for partition in topic.partitions), default=0),
            "internal": topic.internal,
            **reads.validity,
        }
        for topic in sorted(topics, key=lambda topic: topic.name)
    ]
    if context.output.is_json:
        context.output.document(rows)
    else:
        columns = ("name", "topic_id", "partitions", "replication_factor", "internal")
        context.output.table(columns, [[row[column] for column in columns] for row in rows])
    reads.tell()


@group.command("describe")
@click.argument("name", required=False)
@with_loop
async def describe(context: Context, name: str | None) -> None:
    """Show topics: configs, and each partition's leader, replicas and ISR."""
    async with context.client() as client:
        reads = Reads(context, client)
        if name is None:
            topics = await describe_all_topics(reads, lambda: context.left_s)
        else:
            topics = await describe_topics(reads, [name], lambda: context.left_s)
        for topic in topics:
            if topic.result.error not in (ApiError.NONE, ""):
                raise reads.refused(await with_nearest(reads, refusal(topic.result), topic.name))
    reads.tell()
    documents = [{**topic_document(topic), **reads.validity} for topic in sorted(topics, key=lambda topic: topic.name)]
    if context.output.is_json:
        context.output.document(documents)
        return
    columns = ("partition", "leader", "leader_epoch", "partition_epoch", "replicas", "isr", "elr")
    for document in documents:
        configs = " ".join(f"{config['name']}={config['value']}" for config in document["configs"])
        context.output.table(
            (*columns, "offline"),
            [
                [
                    *(partition[column] for column in columns),
                    [r["id"] for r in partition["replica_states"] if r["state"] != "online"] or None,
                ]
                for partition in document["partitions"]
            ],
            title=f"{document['name']}  {document['topic_id']}  {configs}",
        )


def topic_document(topic: Any) -> dict[str, Any]:
    """Return the JSON of one topic."""
    return {
        "name": topic.name,
        "topic_id": uuid_text(topic.topic_id),
        "configs": [{"name": config.key, "value": config.value} for config in topic.configs],
        "partitions": [
            {
                "partition": partition.index,
                "leader": node_or_none(partition.leader),
                "leader_epoch": partition.leader_epoch,
                "partition_epoch": partition.partition_epoch,
                "replicas": [replica.broker_id for replica in partition.replicas],
                "isr": list(partition.isr),
                "elr": list(partition.elr),
                "adding": list(partition.adding),
                "removing": list(partition.removing),
                "replica_states": [
                    {"id": replica.broker_id, "state": state}
                    for replica, state in zip(partition.replicas, partition.replica_states, strict=True)
                ],
            }
            for partition in topic.partitions
        ],
    }


@group.command("delete")
@click.argument("name")
@click.option("--if-exists", is_flag=True, help="Succeed if the topic does not exist.")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@dry_run_option
@so_on_return
@with_loop
async def delete(context: Context, name: str, if_exists: bool, yes: bool, dry_run: bool) -> None:
    """Delete a topic and all its records.

    On a terminal, the command shows the number of records and asks for confirmation (unless --yes is given).
    """
    from quorumlog.wire import rpcs
    from quorumlog.wire.v1 import controller_pb2

    header = controller_pb2.RequestHeader(validate_only=dry_run)
    async with context.client() as client:
        if can_ask() and not (yes or dry_run):
            await _confirm_deletion(context, client, name)
        request = controller_pb2.DeleteTopicsRequest(header=header, names=[name])
        (deleted,) = (await client.call(rpcs.DELETE_TOPICS, request, context.left_s)).topics
        existed = deleted.result.error in (ApiError.NONE, "")
        if not existed and not (deleted.result.error.startswith("UNKNOWN_TOPIC") and if_exists):
            raise await with_nearest(Reads(context, client), refusal(deleted.result), name)
    document = {
        "changed": existed and not dry_run,
        "offset": _offset(deleted.offset),
        "name": name,
        "topic_id": uuid_text(deleted.topic_id),
    }
    if context.output.is_json:
        context.output.document(document)
    elif not existed:
        context.output.text(f"topic {name} does not exist")
    else:
        context.output.text(f"topic {name} would be deleted" if dry_run else f"deleted topic {name}")


async def _confirm_deletion(context: Context, client: ControllerClient, name: str) -> None:
    """Raises: DeclinedError: the user declined."""
    from quorumlog.kctl.losses import ask, lost_records
    from quorumlog.wire import rpcs
    from quorumlog.wire.v1 import controller_pb2

    reply = await client.call(rpcs.DESCRIBE_TOPICS, controller_pb2.DescribeTopicsRequest(names=[name]), context.left_s)
    (described,) = reply.topics
    if described.result.error not in (ApiError.NONE, ""):
        return  # DeleteTopics reports this error; --if-exists accepts a topic that does not exist
    count = len(described.partitions)
    lost = await lost_records(context, name, range(count))
    records = "all its records (their number is unknown)" if lost is None else counted(lost, "record")
    context.output.message(f"warning: topic {name} will be deleted, with {counted(count, 'partition')} and {records}")
    ask(context, "delete it?")


def _offset(offset: int) -> int | None:
    return None if offset == NOT_DECIDED else offset
