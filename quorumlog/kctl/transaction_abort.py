"""kctl transactions abort: aborts a transaction, named by its transactional id or by its place in a log."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from quorumlog.errors import ClusterError
from quorumlog.kctl.context import Command, Context, so_on_return, with_loop
from quorumlog.kctl.losses import ask
from quorumlog.kctl.numbers import IntRange
from quorumlog.kctl.streams import can_ask
from quorumlog.kctl.topics import dry_run_option
from quorumlog.kctl.transactions import open_transactions
from quorumlog.wire.errors import ApiError
from quorumlog.words import about, counted, named

if TYPE_CHECKING:
    from quorumlog.client.cluster import Cluster
    from quorumlog.client.transaction_admin import TransactionClient, TransactionDescription
    from quorumlog.client.transaction_logs import OpenTransaction


@click.command("abort", cls=Command)
@click.argument("transactional_id", metavar="[ID]", required=False)
@click.option("--topic", metavar="TOPIC", help="Instead of ID: the topic in which the transaction is open.")
@click.option("--partition", type=IntRange(min=0), metavar="P", help="The partition in which the transaction is open.")
@click.option("--start-offset", type=IntRange(min=0), metavar="OFFSET", help="The offset of its first record.")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@dry_run_option
@so_on_return
@with_loop
async def abort(
    context: Context,
    transactional_id: str | None,
    topic: str | None,
    partition: int | None,
    start_offset: int | None,
    yes: bool,
    dry_run: bool,
) -> None:
    """Abort a transaction and fence its producer.

    With ID, the coordinator aborts the open transaction in all partitions.  Without ID, the leader of one partition
    aborts a transaction that no coordinator knows; `kctl transactions find-hanging` prints the three options.

    On a terminal, the command asks for confirmation.  Elsewhere it needs --yes.
    """
    place = (topic, partition, start_offset)
    if (transactional_id is None) == (place == (None, None, None)):
        raise click.UsageError("name either an ID, or --topic, --partition and --start-offset")
    if transactional_id is None and None in place:
        raise click.UsageError("--topic, --partition and --start-offset belong together")
    async with open_transactions(context) as (cluster, client):
        if transactional_id is not None:
            document = await _abort_id(context, client, transactional_id, yes, dry_run)
        else:
            assert topic is not None, place
            assert partition is not None, place
            assert start_offset is not None, place
            document = await _abort_in_log(context, cluster, client, (topic, partition), start_offset, yes, dry_run)
    if context.output.is_json:
        context.output.document(document)


def _confirm(context: Context, what: str, yes: bool, dry_run: bool) -> None:
    """Ask for confirmation, unless --yes or --dry-run is given.

    Raises:
        ClusterError: CONFIRMATION_NEEDED: standard input is not a terminal.
        DeclinedError: the answer was not yes.
    """
    if yes or dry_run:
        return
    if not can_ask():
        raise ClusterError(ApiError.CONFIRMATION_NEEDED, f"{what} was not confirmed; nothing was changed", "add --yes")
    ask(context, f"confirm {what}?")


# -- by its id


async def _abort_id(context: Context, client: TransactionClient, name: str, yes: bool, dry_run: bool) -> dict[str, Any]:
    found = await client.describe(name, context.left_s)
    if found.is_decided:
        raise ClusterError(
            ApiError.INVALID_TXN_STATE,
            f"transactional id {name} is {found.state}: its transaction is decided, and ends once each of its "
            "partitions has a marker",
            f"to see which partitions have no leader: {about('kctl transactions describe', name)}",
        )
    is_open = found.is_open
    if is_open:
        where = named(found.partitions)
        _confirm(context, f"the abort of the transaction of {name} in {where}", yes, dry_run)
        if not dry_run:
            await client.abort(found, context.left_s)
    _say_id(context, found, is_open, dry_run)
    return {
        "changed": is_open and not dry_run,
        "offset": None,
        "transactional_id": name,
        "producer_id": found.producer_id,
        "producer_epoch": found.producer_epoch,
        "partitions": [{"topic": topic, "partition": index} for topic, index in found.partitions] if is_open else [],
    }


def _say_id(context: Context, found: TransactionDescription, is_open: bool, dry_run: bool) -> None:
    if context.output.is_json:
        return
    if not is_open:
        context.output.text(f"transactional id {found.transactional_id} is {found.state}: it has no open transaction")
        return
    what = f"the transaction of {found.transactional_id} in {named(found.partitions)}"
    context.output.text(f"{what} would be aborted" if dry_run else f"aborted {what}, and fenced its producer")


# -- in one log


async def _abort_in_log(
    context: Context,
    cluster: Cluster,
    client: TransactionClient,
    key: tuple[str, int],
    start_offset: int,
    yes: bool,
    dry_run: bool,
) -> dict[str, Any]:
    from quorumlog.client.transaction_logs import abort_in_log

    opened = await _open_at(context, cluster, key, start_offset)
    await _refuse_known(context, client, opened)
    what = f"the transaction of producer {opened.producer_id} at offset {start_offset} of {key[0]}-{key[1]}"
    _confirm(context, f"the abort of {what}", yes, dry_run)
    if not dry_run:
        await abort_in_log(cluster, opened, context.left_s)
    if not context.output.is_json:
        context.output.text(f"{what} would be aborted" if dry_run else f"aborted {what}")
    return {
        "changed": not dry_run,
        "offset": None,
        "transactional_id": None,
        "producer_id": opened.producer_id,
        "producer_epoch": opened.producer_epoch,
        "partitions": [{"topic": key[0], "partition": key[1]}],
    }


async def _open_at(context: Context, cluster: Cluster, key: tuple[str, int], start_offset: int) -> OpenTransaction:
    """Return the open transaction of partition `key` that begins at `start_offset`.

    Raises:
        ClusterError: TRANSACTION_NOT_FOUND, UNKNOWN_TOPIC_OR_PARTITION, or the error of the leader.
    """
    from quorumlog.client.transaction_logs import open_transactions as look_for

    count = (await cluster.partition_counts([key[0]], context.left_s)).get(key[0], 0)
    if key[1] >= count:
        which = f"{key[0]} has {counted(count, 'partition')}" if count else f"{key[0]} does not exist"
        raise ClusterError(ApiError.UNKNOWN_TOPIC_OR_PARTITION, f"topic {which}", "kctl topics list")
    found = (await look_for(cluster, [key], context.left_s))[key]
    if isinstance(found, ClusterError):
        raise found
    for each in found:
        if each.start_offset == start_offset:
            return each
    offsets = ", ".join(str(each.start_offset) for each in found[:5])
    others = f"; the open transactions there begin at {offsets}" if found else ""
    text = f"no open transaction of {key[0]}-{key[1]} begins at offset {start_offset}{others}"
    raise ClusterError(ApiError.TRANSACTION_NOT_FOUND, text, f"kctl transactions find-hanging --topic {key[0]}")


async def _refuse_known(context: Context, client: TransactionClient, opened: OpenTransaction) -> None:
    """Raise an error if a coordinator knows the transaction and may still commit it in other partitions.

    Raises:
        ClusterError: INVALID_TXN_STATE; TIMED_OUT: a coordinator that may know it does not answer.
    """
    from quorumlog.client.transaction_logs import is_known, producers_known

    known, missing = await producers_known(client, [opened.producer_id], context.left_s / 2)
    if missing is not None and opened.producer_id not in known:
        raise missing
    if is_known(opened, known):
        name = known[opened.producer_id].transactional_id
        raise ClusterError(
            ApiError.INVALID_TXN_STATE,
            f"this transaction does not hang: it belongs to transactional id {name}, which may still commit it",
            f"abort it in all of its partitions: {about('kctl transactions abort', name)}",
        )
