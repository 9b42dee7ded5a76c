"""Changes of the voters, as requests of the `Controller` service.

This module checks and converts requests and replies; the quorum decides (`quorum.core.membership`).
"""

from __future__ import annotations

import asyncio
from uuid import UUID

from metadata import codec
from metadata.control.errors import OK, Outcome
from metadata.controller import convert
from metadata.controller.active import ActiveController
from quorum.core.events import (
    AddVoter,
    CancelTarget,
    RemoveVoter,
    SetTarget,
    Transferred,
    UpdateVoter,
    VoterChange,
    VoterChangeError,
    VoterChangeResult,
)
from quorum.core.types import ReplicaKey, VoterSet
from quorumlog.errors import RemoteProtocolError
from quorumlog.runtime.addresses import NODE_ID_MAX, parse_target
from quorumlog.wire import rpcs
from quorumlog.wire.errors import ApiError
from quorumlog.wire.rpcs import ReplyT
from quorumlog.wire.v1 import controller_pb2 as pb

TARGET_VOTERS_MAX = 15

_WORDS = {
    VoterChangeError.NONE: ApiError.NONE,
    VoterChangeError.NOT_LEADER: ApiError.NOT_CONTROLLER,
    VoterChangeError.TIMED_OUT: ApiError.REQUEST_TIMED_OUT,
}

_TRANSFER_ADVICE = {
    VoterChangeError.PAUSED: "make sure that a majority of the voters runs (`kctl quorum status`)",
    VoterChangeError.CHANGE_PENDING: "retry in a moment",
    VoterChangeError.VOTER_NOT_FOUND: "see `kctl quorum status` for the voters",
    VoterChangeError.NOT_CAUGHT_UP: "make sure that it runs and fetches (`kctl quorum status`), then retry",
    VoterChangeError.LAST_VOTER: "add a voter first: kctl add-voter",
    VoterChangeError.TIMED_OUT: "see the leader in `kctl quorum status`",
    VoterChangeError.OUTCOME_UNKNOWN: "see the leader in `kctl quorum status`",
}

UNSETTLED = {
    VoterChangeError.NOT_LEADER,
    VoterChangeError.PAUSED,
    VoterChangeError.OUTCOME_UNKNOWN,
    VoterChangeError.TIMED_OUT,
}
"""Errors that reveal nothing about the voters.  A leader may return them without confirming that it still leads."""


async def change_voters(
    controller: ActiveController, request: pb.ChangeVotersRequest, timeout_ms: float
) -> pb.ChangeVotersReply | Outcome:
    deadline = asyncio.get_running_loop().time() + timeout_ms / 1000
    dry_run = request.header.validate_only
    result = await controller.node.change_voters(change_from(request), dry_run=dry_run, timeout_ms=int(timeout_ms))
    if not result.changed and not result.offset and result.error not in UNSETTLED:
        return await _confirmed(controller, changed_reply(result), deadline)
    return changed_reply(result)


async def transfer_leader(
    controller: ActiveController, request: pb.TransferLeaderRequest, timeout_ms: float
) -> pb.TransferLeaderReply | Outcome:
    node, deadline = controller.node, asyncio.get_running_loop().time() + timeout_ms / 1000
    to = request.to if request.HasField("to") else None
    known = to is None or to in node.voter_ids
    if to == node.node_id or (request.header.validate_only and known):
        return await _confirmed(controller, pb.TransferLeaderReply(result=convert.result(OK)), deadline)
    if not known:
        unknown = Outcome(
            ApiError.VOTER_NOT_FOUND, f"node {to} is not a voter", "see `kctl quorum status` for the voters"
        )
        return await _confirmed(controller, rpcs.TRANSFER_LEADER.reply_of(convert.result(unknown)), deadline)
    answer = await node.transfer_leader(to, int(timeout_ms))
    if answer.error is VoterChangeError.NONE or answer.error in UNSETTLED:
        return transferred_reply(answer)
    return await _confirmed(controller, transferred_reply(answer), deadline)


async def _confirmed(controller: ActiveController, reply: ReplyT, deadline: float) -> ReplyT | Outcome:
    """Return `reply` once it is proven that this node still led at the call, else the reason for the missing proof.

    Only for a reply without an append: the commit of an append is itself the proof.
    """
    left_ms = max((deadline - asyncio.get_running_loop().time()) * 1000, 1)
    return await controller.confirm(left_ms) or reply


def change_from(request: pb.ChangeVotersRequest) -> VoterChange:
    """Return the requested change.

    Raises:
        RemoteProtocolError: the request has no change, or an invalid one.
    """
    match request.WhichOneof("change"):
        case "add":
            add = request.add
            return AddVoter(_node_id(add.node_id), _address(add.address), _directory(add), add.replace)
        case "remove":
            return RemoveVoter(_node_id(request.remove.node_id), _directory(request.remove))
        case "update":
            update = request.update
            key = ReplicaKey(_node_id(update.node_id), codec.uuid_from(update.directory_id, "directory id"))
            return UpdateVoter(key, _address(update.address))
        case "set_target":
            return SetTarget(_targets(request.set_target))
        case "cancel_target":
            return CancelTarget()
    raise RemoteProtocolError("the request contains no change of the voters")


def changed_reply(result: VoterChangeResult) -> pb.ChangeVotersReply:
    outcome = _outcome(result.error, result.message, result.next_step)
    return pb.ChangeVotersReply(
        result=convert.result(outcome),
        changed=result.changed,
        offset=result.offset,
        voters=addresses(result.voters),
        target=addresses(result.target or VoterSet()),
    )


def transferred_reply(answer: Transferred) -> pb.TransferLeaderReply:
    advice = _TRANSFER_ADVICE.get(answer.error, "")
    outcome = OK if answer.error is VoterChangeError.NONE else _outcome(answer.error, answer.message, advice)
    return pb.TransferLeaderReply(result=convert.result(outcome))


def _outcome(error: VoterChangeError, message: str, next_step: str) -> Outcome:
    word = _WORDS[error] if error in _WORDS else ApiError[error.name]
    return Outcome(word, message, next_step)


def addresses(voters: VoterSet) -> list[pb.VoterAddress]:
    return [pb.VoterAddress(node_id=voter.key.node_id, address=voter.address) for voter in voters]


def _node_id(number: int) -> int:
    if not 0 <= number <= NODE_ID_MAX:
        raise RemoteProtocolError(f"node id {number} is out of range 0..{NODE_ID_MAX}")
    return number


def _address(text: str) -> str:
    try:
        return str(parse_target(text))
    except ValueError as cause:
        raise RemoteProtocolError(f"control address {text[:100]!a}: {cause}") from cause


def _directory(change: pb.AddVoter | pb.RemoveVoter) -> UUID | None:
    return codec.uuid_from(change.directory_id, "directory id") if change.HasField("directory_id") else None


def _targets(target: pb.SetTargetVoters) -> tuple[tuple[int, str], ...]:
    if not 1 <= len(target.voters) <= TARGET_VOTERS_MAX:
        raise RemoteProtocolError(f"a target of {len(target.voters)} voters; it may have 1 to {TARGET_VOTERS_MAX}")
    wanted = tuple((_node_id(voter.node_id), _address(voter.address)) for voter in target.voters)
    if len({node_id for node_id, _ in wanted}) != len(wanted):
        raise RemoteProtocolError("the target names a node twice")
    return wanted
