"""The requests that start and cancel reassignments.  A large plan takes several of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from quorumlog.errors import ClusterError
from quorumlog.kctl.context import Context
from quorumlog.kctl.reassign_plan import Move
from quorumlog.kctl.reassign_progress import list_ongoing
from quorumlog.wire.errors import ApiError
from quorumlog.words import Key, counted

if TYPE_CHECKING:
    from quorumlog.client.controller import ControllerClient

REQUEST_MAX = 9_999
"""Maximum number of partitions in one request; the controller refuses more.  A larger plan takes several requests."""


async def alter(
    client: ControllerClient, context: Context, moves: Sequence[Move], dry_run: bool, **options: Any
) -> Any:
    """Request reassignments, in several requests if there are more than REQUEST_MAX, and return one reply.

    Raises:
        ClusterError: the refusal of a request.  Nothing was changed if it was the first one.
    """
    pieces = [moves[first : first + REQUEST_MAX] for first in range(0, len(moves), REQUEST_MAX)] or [moves]
    if len(pieces) > 1 and not dry_run:
        for piece in pieces:
            await _request(client, context, piece, True, **options)
    replies: list[Any] = []
    for piece in pieces:
        try:
            replies.append(await _request(client, context, piece, dry_run, **options))
        except ClusterError as error:
            raise _after(replies, error, dry_run) from error
    return _combined(replies)


async def cancelled(
    client: ControllerClient, context: Context, planned: set[Key], topics: Sequence[str], dry_run: bool
) -> tuple[Any, list[Move]]:
    """Cancel the reassignments of the planned partitions, of these topics, or of all partitions.

    The controller cancels all partitions of a request or none.  If a reassignment ends after the reassignments were
    listed, the request is refused.  Then the list and the request are repeated, so that the others are cancelled.
    """
    replies: list[Any] = []
    done: list[Move] = []
    while True:
        ongoing, _ = await list_ongoing(client, planned, context.left_s)
        known = {(move.topic, move.partition) for move in done}
        left = [
            Move(each.topic, each.index, ())
            for each in ongoing
            if (not topics or each.topic in topics) and (each.topic, each.index) not in known
        ]
        if not left:
            break
        piece = left[:REQUEST_MAX]
        try:
            replies.append(await _request(client, context, piece, dry_run))
        except ClusterError as error:
            if error.code != ApiError.NO_REASSIGNMENT_IN_PROGRESS:
                raise _after(replies, error, dry_run) from error
            continue
        done += piece
        if piece == left:
            break
    if not done:
        text = "no reassignment is in progress"
        raise ClusterError(ApiError.NO_REASSIGNMENT_IN_PROGRESS, text, "kctl reassign status")
    return _combined(replies), done


async def _request(
    client: ControllerClient, context: Context, moves: Sequence[Move], dry_run: bool, **options: Any
) -> Any:
    from quorumlog.wire import rpcs
    from quorumlog.wire.v1 import controller_pb2 as pb

    request = pb.AlterReassignmentsRequest(header=pb.RequestHeader(validate_only=dry_run), **options)
    for move in moves:
        request.partitions.add(topic=move.topic, index=move.partition, replicas=move.replicas)
    return await client.call(rpcs.ALTER_REASSIGNMENTS, request, context.left_s)


def _after(replies: Sequence[Any], error: ClusterError, dry_run: bool) -> ClusterError:
    """Return the error of a request; its message contains the number of partitions of earlier requests."""
    if dry_run or not replies:
        return error
    count = counted(sum(len(each.partitions) for each in replies), "partition")
    text = f"{error.message}; requests for {count} were accepted before, and the command can be repeated"
    return ClusterError(error.code, text, error.next_step, retriable=error.retriable)


def _combined(replies: Sequence[Any]) -> Any:
    """Return the replies to the requests of one plan as one reply."""
    whole, *others = replies
    for each in others:
        whole.changed = whole.changed or each.changed
        whole.offset = max(whole.offset, each.offset)
        whole.partitions.extend(each.partitions)
    return whole
