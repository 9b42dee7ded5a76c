"""Finds out why a node without a cluster does not find one.

A node waits for the addresses in its configuration as long as it takes, because the other nodes may start later.  A
wrong address would otherwise look the same: nothing happens.  So the node asks each address again and again, and
reports the causes in its log and in `/readyz`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from quorum.ports import Transport, UnreachableError
from quorumlog.client.probe import why_silent
from quorumlog.runtime.logging import get_logger
from quorumlog.wire import rpcs
from quorumlog.wire.v1 import node_pb2 as pb

FIRST_S = 5.0
"""Time until the addresses are asked first; nodes of a new cluster are started within seconds of each other."""
AGAIN_S = 30.0
"""Time until they are asked, and a warning is logged, again."""
ASK_TIMEOUT_MS = 2_000
ADDRESSES_MAX = 16
"""Maximum number of addresses that are asked: the first ones of the configuration."""

Ask = Callable[[str], Awaitable[str]]

logger = get_logger("quorum")


class Search:
    """Asks addresses for the cluster.  `causes` has the last result for each address; it is empty before the first.

    ask: returns the state of an address in words.
    """

    def __init__(self, addresses: Sequence[str], ask: Ask, next_step: str) -> None:
        self._addresses = addresses[:ADDRESSES_MAX]
        self._ask = ask
        self._next_step = next_step
        self.causes: dict[str, str] = {}

    async def run(self, is_over: Callable[[], bool]) -> None:
        """Ask until `is_over` returns True, which is examined before and after each round."""
        wait_s = FIRST_S
        while True:
            await asyncio.sleep(wait_s)
            wait_s = AGAIN_S
            if is_over():
                return
            found = await asyncio.gather(*map(self._ask, self._addresses))
            if is_over():
                return
            self.causes = dict(zip(self._addresses, found, strict=True))
            logger.warning("still in no cluster", causes=self.text(), next=self._next_step)

    def text(self) -> str:
        """Return the addresses with their causes."""
        return "; ".join(f"{address}: {cause}" for address, cause in self.causes.items())


async def state_of(address: str, transport: Transport) -> str:
    """Return the state of the node at an address, or the reason why none answers there."""
    try:
        reply = await transport.call(address, rpcs.DESCRIBE_NODE, pb.DescribeNodeRequest(), ASK_TIMEOUT_MS)
    except UnreachableError:
        return (await why_silent(address, ASK_TIMEOUT_MS / 1000)).text
    cluster = next((check for check in reply.checks if check.name == "cluster"), None)
    if cluster is None or not cluster.ok:
        return f"node {reply.node_id} answers, but is in no cluster yet"
    return f"node {reply.node_id} answers, and is in cluster {cluster.detail}"
