"""Gets the leader's description of the quorum, so that any process can report it."""

from __future__ import annotations

import asyncio
from typing import Protocol

from quorum.core.events import Peer
from quorum.core.messages import TOOL, DescribeQuorum, DescribeQuorumReply
from quorum.ports import Transport, UnreachableError


class Describing(Protocol):
    """The part of `QuorumNode` that this module needs."""

    def describe(self) -> DescribeQuorumReply: ...


async def leaders_description(node: Describing, transport: Transport, timeout_ms: int) -> DescribeQuorumReply | None:
    """Return the leader's description of the quorum.  The leader is this node, or the node that it follows.

    None if no leader is known, if the leader does not answer in time, or if the node that answers does not lead (any
    more).  Only a leader knows the log ends of the other nodes.
    """
    reply = node.describe()
    known = reply.known
    if known.leader_id is not None and known.leader_id != reply.answered_by.node_id and known.leader_address:
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                peer = Peer(known.leader_id, known.leader_address)
                answer = await transport.ask(peer, DescribeQuorum(TOOL), timeout_ms)
        except (UnreachableError, TimeoutError):
            return None
        assert isinstance(answer, DescribeQuorumReply), answer
        reply = answer
    is_leaders = reply.known.leader_id is not None and reply.known.leader_id == reply.answered_by.node_id
    return reply if is_leaders else None
