"""Reads the metadata by offset from any node.

Each node answers from its own log, and these logs contain different ranges of offsets.  If a node does not have an
offset, all nodes are asked for their ranges before the offset is reported as out of range.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from quorumlog.errors import ClusterError
from quorumlog.kctl.brokers import node_addresses
from quorumlog.wire import rpcs
from quorumlog.wire.errors import ApiError
from quorumlog.wire.v1 import node_pb2

if TYPE_CHECKING:
    from quorumlog.client.controller import ControllerClient
    from quorumlog.wire.rpcs import ReplyT, RequestT, Rpc

OUT_OF_RANGE = ApiError.OFFSET_OUT_OF_RANGE
POLL_MS = 5_000
POLL_SHARE = 0.25
"""The most that a wait of a node may take of the time limit of its request."""
ASK_S = 5.0
AGAIN_S = 0.1

NOW = -1


class Range(NamedTuple):
    """The offsets that one node can show: from `begins` to `end`, both included."""

    address: str
    begins: int
    end: int


class History:
    """Reads the metadata at any offset that some node still has.

    limit_s: returns the time limit of the next request, in seconds.
    """

    def __init__(self, client: ControllerClient, limit_s: Callable[[], float]) -> None:
        self._client = client
        self._limit_s = limit_s

    async def learn_nodes(self) -> None:
        """Make the client use all nodes of the cluster, not only those that the user named."""
        with contextlib.suppress(ClusterError):
            self._client.learn((await node_addresses(self._client, self._limit_s())).values())

    async def describe(self, offset: int, topics: tuple[str, ...] = (), *, without_partitions: bool = False) -> Any:
        """Return the cluster as of `offset`: the result of all records below it.  NOW: the current end.

        Raises:
            ClusterError: OFFSET_OUT_OF_RANGE, with the available range; or no node answers.
        """
        request = node_pb2.DescribeMetadataRequest(
            at_offset=offset, topics=topics, without_partitions=without_partitions
        )
        return await self._ask(rpcs.DESCRIBE_METADATA, request, offset)

    async def read(self, offset: int, *, wait: bool) -> Any:
        """Return batches, beginning with the batch that contains `offset`.

        wait: if there are no batches yet, let the node wait for up to POLL_MS before it answers.

        Raises:
            ClusterError: as `describe`.
        """
        # The node must answer before the request times out, or a quiet log would look like a node that hangs.
        poll_ms = min(POLL_MS, int(self._limit_s() * 1000 * POLL_SHARE))
        request = node_pb2.ReadMetadataRequest(from_offset=offset, wait_ms=poll_ms if wait else 0)
        return await self._ask(rpcs.READ_METADATA, request, offset)

    async def read_known(self, offset: int) -> Any:
        """Return at least one batch, beginning with the batch that contains `offset`, which must be committed.

        Raises:
            ClusterError: as `describe`; TIMED_OUT: the nodes that answer are behind `offset`.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._limit_s()
        while not (reply := await self.follow(offset, wait=False)).batches:
            if loop.time() >= deadline:
                text = f"the nodes that answer have not reached offset {offset}, although it is committed"
                raise ClusterError(ApiError.TIMED_OUT, text, "kctl doctor", retriable=True)
            for one in await self.ranges():
                if one.begins <= offset < one.end:
                    self._client.prefer(one.address)
            await asyncio.sleep(AGAIN_S)  # no event signals that a node has caught up
        return reply

    async def follow(self, offset: int, *, wait: bool = True) -> Any:
        """Read as `read` does.  If the nodes that answer have not reached `offset` yet, wait until one of them has.

        If other nodes have deleted the offset by retention, also wait for nodes that do not answer.

        Raises:
            ClusterError: OFFSET_OUT_OF_RANGE: retention has deleted the offset, or no node had it in time; or another
                error of a request.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._limit_s()
        while True:
            try:
                return await self.read(offset, wait=wait)
            except ClusterError as error:
                if error.code != OUT_OF_RANGE or loop.time() >= deadline:
                    raise
                found = await self._ask_ranges()
                is_too_old = any(each is not None and offset < each.begins for each in found)
                if is_too_old and None not in found:  # a node that restarts may still have the records
                    raise
            await asyncio.sleep(AGAIN_S)  # no event signals that a node has caught up

    async def ranges(self) -> list[Range]:
        """Return the range of offsets of each node that answers."""
        return [each for each in await self._ask_ranges() if each is not None]

    async def _ask_ranges(self) -> list[Range | None]:
        """Return the range of offsets of each node, None for a node that does not answer."""
        try:
            addresses = sorted(set((await node_addresses(self._client, self._limit_s())).values()))
        except ClusterError:
            return []
        return await asyncio.gather(*(self._range(address) for address in addresses))

    async def _range(self, address: str) -> Range | None:
        request = node_pb2.ReadMetadataRequest(from_offset=NOW, max_bytes=1)
        try:
            reply = await self._client.ask_node(address, rpcs.READ_METADATA, request, min(self._limit_s(), ASK_S))
        except ClusterError:
            return None
        return Range(address, reply.log_start, reply.high_watermark)

    async def _ask(self, rpc: Rpc[RequestT, ReplyT], request: RequestT, offset: int) -> ReplyT:
        try:
            return await self._client.ask_any(rpc, request, self._limit_s())
        except ClusterError as error:
            if error.code != OUT_OF_RANGE:
                raise
        ranges = await self.ranges()
        for one in ranges:
            if one.begins <= offset <= one.end:
                with contextlib.suppress(ClusterError):  # the node stopped, or it deleted the offset: ask the next one
                    return await self._client.ask_node(one.address, rpc, request, self._limit_s())
        raise out_of_range(offset, ranges)


def out_of_range(offset: int, ranges: list[Range]) -> ClusterError:
    """Return the error for an offset that no node has; its message contains the range of offsets that exist."""
    if not ranges:
        return ClusterError(OUT_OF_RANGE, f"the node does not have offset {offset}", "kctl doctor")
    begins, end = min(each.begins for each in ranges), max(each.end for each in ranges)
    text = f"offset {offset} is not available: the metadata history contains offsets {begins} to {end}"
    if offset < begins:
        text += "; older changes are kept only as a snapshot"
    return ClusterError(OUT_OF_RANGE, text, f"give an offset from {begins} to {end}")
