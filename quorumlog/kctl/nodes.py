"""Requests to nodes about their own state: to the node with the newest metadata, or to several nodes concurrently.

kctl is most needed when some nodes do not answer.  So each request has its own time limit, and a node that does not
answer leaves only its own part of the result empty.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from quorumlog.errors import ClusterError
from quorumlog.wire.errors import ApiError

if TYPE_CHECKING:
    from quorumlog.client.controller import ControllerClient
    from quorumlog.wire.rpcs import ReplyT, RequestT, Rpc

EACH_TIMEOUT_S = 2.0
"""Time limit for each node; all are asked at the same time."""
AT_ONCE_MAX = 32
LEADER_TIMEOUT_S = 5.0


def known_addresses(described: Any) -> dict[int, str]:
    """Return the control address of every node in a description of the quorum, by node id."""
    replicas = [status.replica for status in (*described.voters, *described.observers)]
    return {replica.key.node_id: replica.address for replica in replicas if replica.address}


def is_leaders(described: Any) -> bool:
    """Return whether the leader itself sent this description of the quorum."""
    known = described.known
    return bool(known.HasField("leader_id")) and known.leader_id == described.answered_by.node_id


async def ask_freshest(
    client: ControllerClient, rpc: Rpc[RequestT, ReplyT], request: RequestT, timeout_s: float
) -> ReplyT:
    """Ask the quorum's leader, whose metadata is the newest, or any node if the leader does not answer.

    Raises:
        ClusterError: refused, or no node answered.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout_s
    described = await client.describe_quorum(timeout_s)
    address = described.known.leader_address
    if is_leaders(described) and address:
        try:
            limit = min(max(deadline - loop.time(), 0.001), LEADER_TIMEOUT_S)
            return await client.ask_node(address, rpc, request, limit)
        except ClusterError as error:
            if not error.retriable:
                raise
    return await client.ask_any(rpc, request, max(deadline - loop.time(), 0.001))


async def ask_each(
    client: ControllerClient,
    node_ids: Iterable[int],
    addresses: dict[int, str],
    rpc: Rpc[RequestT, ReplyT],
    request: RequestT,
    timeout_s: float,
) -> dict[int, ReplyT | ClusterError]:
    """Ask several nodes concurrently; return each node's reply, or the ClusterError that explains why it is missing."""
    free = asyncio.Semaphore(AT_ONCE_MAX)
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout_s

    async def ask(node_id: int) -> ReplyT | ClusterError:
        if node_id not in addresses:
            text = "its control address is unknown: it does not fetch from the quorum's leader, or there is no leader"
            return ClusterError(ApiError.UNAVAILABLE, text, retriable=True)
        async with free:
            limit = min(max(deadline - loop.time(), 0.001), EACH_TIMEOUT_S)
            try:
                return await client.ask_node(addresses[node_id], rpc, request, limit)
            except ClusterError as error:
                return error

    asked = sorted(set(node_ids))
    return dict(zip(asked, await asyncio.gather(*(ask(node_id) for node_id in asked)), strict=True))
