"""kctl elect-leaders: return to preferred leaders, or elect any live replica if no in-sync replica is available."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import click

from quorumlog.errors import ClusterError
from quorumlog.kctl.context import WAIT_HELP, Command, Context, wait_until_applied, with_loop
from quorumlog.kctl.numbers import IntRange
from quorumlog.kctl.output import node_or_none
from quorumlog.kctl.refusals import refusal
from quorumlog.kctl.topics import dry_run_option
from quorumlog.wire.errors import ApiError
from quorumlog.words import counted

if TYPE_CHECKING:
    from quorumlog.client.controller import ControllerClient

PARTITIONS_PER_REQUEST = 10_000
"""The controller refuses a request with more elections."""
ROUNDS_MAX = 200
"""Limit of requests in an election for all partitions; each request elects leaders for one batch of partitions."""


@click.command("elect-leaders", cls=Command)
@click.option("--preferred", is_flag=True, help="Elect the first replica of each partition if it is in sync.")
@click.option("--unclean", is_flag=True, help="If a partition has no leader, elect any live replica; may lose records.")
@click.option("--topic", metavar="T", help="Only this topic (default: all partitions that need it).")
@click.option("--partition", metavar="P", type=IntRange(0, 2**31 - 1), help="Only this partition of the topic.")
@dry_run_option
@click.option("--wait", is_flag=True, help=WAIT_HELP)
@with_loop
async def elect_leaders(
    context: Context,
    preferred: bool,
    unclean: bool,
    topic: str | None,
    partition: int | None,
    dry_run: bool,
    wait: bool,
) -> None:
    """Elect preferred leaders, or unclean leaders.

    A partition that needs no election counts as a success.  --unclean discards acknowledged records that only
    unavailable replicas hold; `kctl explain` still shows which replicas were in sync.
    """
    from quorumlog.wire.v1 import controller_pb2 as pb

    if preferred == unclean:
        raise click.UsageError("give one of --preferred and --unclean")
    if partition is not None and topic is None:
        raise click.UsageError("--partition needs --topic")
    policy = pb.ElectLeadersRequest.POLICY_UNCLEAN if unclean else pb.ElectLeadersRequest.POLICY_PREFERRED
    header = pb.RequestHeader(validate_only=dry_run)
    async with context.client() as client:
        if topic is None:
            requests = [pb.ElectLeadersRequest(header=header, policy=policy)] * ROUNDS_MAX
        else:
            indexes = [partition] if partition is not None else await _partitions(context, client, topic)
            named = [pb.TopicPartition(topic=topic, index=index) for index in indexes]
            requests = [
                pb.ElectLeadersRequest(header=header, policy=policy, partitions=named[first:][:PARTITIONS_PER_REQUEST])
                for first in range(0, len(named), PARTITIONS_PER_REQUEST)
            ]
        if unclean and not dry_run:
            context.output.message("warning: records that only unavailable replicas hold will be lost")
        found = await _elect(context, client, requests)
        if wait and not dry_run and found.failure is None:
            await wait_until_applied(context, client, found.offset)
    _report(context, found, dry_run, named=topic is not None)


async def _partitions(context: Context, client: ControllerClient, topic: str) -> list[int]:
    from quorumlog.wire import rpcs
    from quorumlog.wire.v1 import controller_pb2 as pb

    reply = await client.call(rpcs.DESCRIBE_TOPICS, pb.DescribeTopicsRequest(names=[topic]), context.left_s)
    (described,) = reply.topics
    if described.result.error != ApiError.NONE:
        raise refusal(described.result)
    return [each.index for each in described.partitions]


class _Elections(NamedTuple):
    """The outcome of all requests.  failure: the error of a request after the first one; no other request followed."""

    changed: bool
    offset: int
    partitions: list[Any]
    failure: ClusterError | None = None


async def _elect(context: Context, client: ControllerClient, requests: list[Any]) -> _Elections:
    """Send the requests in order.  A request that names no partitions is the last one if it changes nothing.

    Raises:
        ClusterError: the first request failed.
    """
    from quorumlog.wire import rpcs

    found = _Elections(False, 0, [])
    for number, request in enumerate(requests):
        try:
            reply = await client.call(rpcs.ELECT_LEADERS, request, context.left_s)
        except ClusterError as error:
            if number == 0:
                raise
            return found._replace(failure=error)
        partitions = [*found.partitions, *reply.partitions]
        found = _Elections(found.changed or reply.changed, reply.offset, partitions)
        if not request.partitions and not reply.changed:
            break
    return found


def _report(context: Context, found: _Elections, dry_run: bool, *, named: bool) -> None:
    elected = found.partitions
    failed = [each for each in elected if each.result.error not in (ApiError.NONE, ApiError.ELECTION_NOT_NEEDED)]
    if named and failed and len(failed) == len(elected) and found.failure is None:
        raise refusal(failed[0].result)
    if context.output.is_json:
        partitions = [
            {
                "topic": each.topic,
                "partition": each.index,
                "leader": node_or_none(each.leader),
                "leader_epoch": each.leader_epoch,
                "unclean": each.unclean,
                "error": None if each.result.error == ApiError.NONE else each.result.error,
            }
            for each in elected
        ]
        context.output.document({"changed": found.changed, "offset": found.offset, "partitions": partitions})
    else:
        would = "would be led" if dry_run else "is led"
        for each in elected:
            text = f"{each.topic}-{each.index} {would} by {each.leader}{' (unclean)' if each.unclean else ''}"
            context.output.text(
                text
                if each.result.error == ApiError.NONE
                else f"not needed: {each.result.message}"
                if each.result.error == ApiError.ELECTION_NOT_NEEDED
                else f"refused: {each.result.message}"
            )
        if not elected:
            context.output.text("no partition needs an election")
    if found.failure is not None:  # the refusals are printed, but only this error shows that requests are missing
        raise found.failure
    if failed:
        first = failed[0].result
        raise ClusterError(
            first.error,
            f"{len(failed)} of {counted(len(elected), 'partition')}: {first.message}",
            first.next,
            retriable=first.retriable,
        )
