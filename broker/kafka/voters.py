"""AddRaftVoter, RemoveRaftVoter and UpdateRaftVoter: forwarded to the active controller (KIP-853).

They lead to the same changes and the same refusals as the commands of kctl.  A change that is already in force
succeeds, so a client may repeat a request whose answer was lost.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, Final

from broker.kafka.admin import Forwarder, outcome
from broker.kafka.api import Node, QuorumState
from broker.kafka.quorum import CONTROLLER_LISTENER, split_address
from quorumlog.wire import rpcs
from quorumlog.wire.errors import ApiError, KafkaCode
from quorumlog.wire.kafka.codec import milliseconds
from quorumlog.wire.v1 import controller_pb2 as pb

_VOTER_SETS: Final = 1
"""The level of Kafka's feature kraft.version from which on voters can be changed."""

_CODES: Final[Mapping[str, KafkaCode]] = {
    # Kafka's leader refuses a change in these situations with this error, too; a client may retry immediately.
    ApiError.CHANGE_PENDING: KafkaCode.REQUEST_TIMED_OUT,
    ApiError.NOT_COMMITTED_YET: KafkaCode.REQUEST_TIMED_OUT,
    ApiError.NOT_CAUGHT_UP: KafkaCode.REQUEST_TIMED_OUT,
    ApiError.UNREACHABLE: KafkaCode.REQUEST_TIMED_OUT,
    ApiError.PAUSED: KafkaCode.REQUEST_TIMED_OUT,
    ApiError.TARGET_IN_PROGRESS: KafkaCode.REQUEST_TIMED_OUT,
    ApiError.WRONG_CLUSTER: KafkaCode.INCONSISTENT_CLUSTER_ID,
    # Kafka does not have these refusals; a VOTER_NOT_FOUND for the last voter would look like success.
    ApiError.WRONG_NODE: KafkaCode.INVALID_REQUEST,
    ApiError.LAST_VOTER: KafkaCode.INVALID_REQUEST,
    ApiError.NO_MAJORITY: KafkaCode.INVALID_REQUEST,
}


async def add_voter(forwarder: Forwarder, request: Any, cluster_id: str) -> dict[str, Any]:
    """Return the values of an AddRaftVoter response, after the new voter set is committed."""
    refusal = _refusal(request, cluster_id)
    address = refusal or _address(request.listeners)
    if isinstance(address, pb.Result):
        return outcome(address)
    directory_id = request.voter_directory_id.bytes
    change = pb.AddVoter(node_id=request.voter_id, address=address, directory_id=directory_id)
    return await _changed(forwarder, pb.ChangeVotersRequest(add=change), milliseconds(request.timeout))


async def remove_voter(forwarder: Forwarder, request: Any, cluster_id: str, timeout_ms: int) -> dict[str, Any]:
    """Return the values of a RemoveRaftVoter response, after the new voter set is committed."""
    refusal = _refusal(request, cluster_id)
    if refusal is not None:
        return outcome(refusal)
    change = pb.RemoveVoter(node_id=request.voter_id, directory_id=request.voter_directory_id.bytes)
    return await _changed(forwarder, pb.ChangeVotersRequest(remove=change), timeout_ms)


async def update_voter(
    forwarder: Forwarder, request: Any, cluster_id: str, node: Node, timeout_ms: int
) -> dict[str, Any]:
    """Return the values of an UpdateRaftVoter response, which names the leader.

    The request must name the epoch in which the leader leads.
    """
    deadline = asyncio.get_running_loop().time() + timeout_ms / 1000
    state = await node.quorum(timeout_ms)
    if state is None:
        return {"error_code": KafkaCode.REQUEST_TIMED_OUT}
    leader = {"current_leader": _leader(state)}
    if request.current_leader_epoch != state.leader_epoch:
        is_old = request.current_leader_epoch < state.leader_epoch
        code = KafkaCode.FENCED_LEADER_EPOCH if is_old else KafkaCode.UNKNOWN_LEADER_EPOCH
        return {**leader, "error_code": code}
    refusal = _refusal(request, cluster_id)
    levels = request.k_raft_version_feature
    if not levels.min_supported_version <= _VOTER_SETS <= levels.max_supported_version:
        refusal = refusal or _invalid(f"the voter does not support level {_VOTER_SETS} of kraft.version")
    address = refusal or _address(request.listeners)
    if isinstance(address, pb.Result):
        return {**leader, **outcome(address)}
    directory_id = request.voter_directory_id.bytes
    change = pb.UpdateVoter(node_id=request.voter_id, directory_id=directory_id, address=address)
    left_ms = int((deadline - asyncio.get_running_loop().time()) * 1000)
    return {**leader, **await _changed(forwarder, pb.ChangeVotersRequest(update=change), left_ms)}


def _refusal(request: Any, cluster_id: str) -> pb.Result | None:
    if request.cluster_id not in (None, cluster_id):
        text = f"this is cluster {cluster_id}; the request is for {request.cluster_id[:60]!a}"
        return pb.Result(error=ApiError.INCONSISTENT_CLUSTER_ID, message=text)
    if request.voter_directory_id is None:
        return _invalid("the request does not name the directory id of the voter")
    return None


def _address(listeners: Any) -> str | pb.Result:
    """Return the control address of a voter: the address of its listener CONTROLLER, or of its only listener."""
    named = [each for each in listeners if each.name == CONTROLLER_LISTENER] or list(listeners)
    if len(named) != 1:
        return _invalid(f"the voter has {len(listeners)} listeners; exactly one must be named {CONTROLLER_LISTENER}")
    host = f"[{named[0].host}]" if ":" in named[0].host else named[0].host
    return f"{host}:{named[0].port}"


def _invalid(message: str) -> pb.Result:
    return pb.Result(error=ApiError.INVALID_REQUEST, message=message)


async def _changed(forwarder: Forwarder, message: pb.ChangeVotersRequest, timeout_ms: int) -> dict[str, Any]:
    reply = await forwarder.forward(rpcs.CHANGE_VOTERS, message, forwarder.deadline(timeout_ms))
    return outcome(reply.result, _CODES.get(reply.result.error))


def _leader(state: QuorumState) -> dict[str, Any]:
    addresses = {each.node_id: each.address for each in state.voters}
    host, port = split_address(addresses[state.leader_id]) if state.leader_id in addresses else ("", -1)
    return {"leader_id": state.leader_id, "leader_epoch": state.leader_epoch, "host": host, "port": port}
