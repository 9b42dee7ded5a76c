"""kctl features: the levels of record formats that all nodes support and write."""

from __future__ import annotations

import click

from quorumlog.kctl.context import WAIT_HELP, Context, Group, wait_until_applied, with_loop
from quorumlog.kctl.numbers import IntRange
from quorumlog.kctl.reads import Reads
from quorumlog.kctl.topics import dry_run_option

METADATA_VERSION = "metadata.version"


@click.group("features", cls=Group)
def group() -> None:
    """Show and set the levels of features."""


@group.command("describe")
@with_loop
async def describe(context: Context) -> None:
    """Show each feature: level, supported range, brokers that limit it."""
    from quorumlog.wire import rpcs
    from quorumlog.wire.v1 import controller_pb2 as pb

    async with context.client() as client:
        reads = Reads(context, client)
        reply = await reads.ask(rpcs.DESCRIBE_FEATURES, pb.DescribeFeaturesRequest())
    reads.tell()
    columns = ("name", "level", "lowest", "highest", "limited_by")
    if context.output.is_json:
        rows = [(each.name, each.level, each.lowest, each.highest, list(each.limited_by)) for each in reply.features]
        context.output.document([{**dict(zip(columns, row, strict=True)), **reads.validity} for row in rows])
    else:
        context.output.table(
            columns,
            [
                (each.name, each.level, each.lowest, each.highest, ",".join(map(str, each.limited_by)) or "-")
                for each in reply.features
            ],
        )


@group.command("upgrade")
@click.option("--feature", "name", default=METADATA_VERSION, show_default=True, metavar="NAME", help="The feature.")
@click.option(
    "--to",
    "level",
    type=IntRange(0, 2**31 - 1),
    help="The level (default: the highest that all brokers support).",
)
@dry_run_option
@click.option("--wait", is_flag=True, help=WAIT_HELP)
@with_loop
async def upgrade(context: Context, name: str, level: int | None, dry_run: bool, wait: bool) -> None:
    """Set the level of a feature, by default to the highest that all brokers support.

    The level of metadata.version cannot be lowered.  The level of transaction.version can.
    """
    from quorumlog.wire import rpcs
    from quorumlog.wire.v1 import controller_pb2 as pb

    header = pb.RequestHeader(validate_only=dry_run)
    request = pb.UpgradeFeatureRequest(header=header, name=name, level=level)
    async with context.client() as client:
        reply = await client.call(rpcs.UPGRADE_FEATURE, request, context.left_s)
        if wait and not dry_run:
            await wait_until_applied(context, client, reply.offset)
    if context.output.is_json:
        document = {"changed": reply.changed, "offset": reply.offset, "name": name, "level": reply.level}
        context.output.document(document)
    elif dry_run:
        context.output.text(f"{name} would be at level {reply.level}")
    else:
        context.output.text(f"{name} is {'now' if reply.changed else 'already'} at level {reply.level}")
