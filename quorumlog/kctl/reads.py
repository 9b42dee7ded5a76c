"""The reads of one command: from the active controller, or from other nodes if there is none."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from quorumlog.errors import ClusterError
from quorumlog.kctl.context import Context

if TYPE_CHECKING:
    from quorumlog.client.controller import ControllerClient
    from quorumlog.wire.rpcs import ReplyT, RequestT, Rpc


class Reads:
    """Answers all reads of a command: from the active controller, or from other nodes.

    The first read waits a moment for an active controller.  If no controller confirms it, later reads do not wait
    again.

    unconfirmed: whether an answer came without an active controller's confirmation.  offset: the lowest offset of the
    metadata log at which an answer is valid; None before the first answer.  Both describe only answers of `ask` and
    `call`.
    """

    def __init__(self, context: Context, client: ControllerClient) -> None:
        self._context = context
        self._client = client
        self.unconfirmed = False
        self.offset: int | None = None

    @property
    def left_s(self) -> float:
        """Return the remaining time of the command, in seconds."""
        return self._context.left_s

    @property
    def validity(self) -> dict[str, Any]:
        """The JSON fields that state the validity of the document."""
        return {"offset": self.offset, "unconfirmed": self.unconfirmed}

    async def ask(self, rpc: Rpc[RequestT, ReplyT], request: RequestT) -> ReplyT:
        """Return the reply to a read.

        Raises:
            ClusterError: refused, or no node answered in time.
        """
        return await self.call(rpc, request, self._context.left_s)

    async def call(self, rpc: Rpc[RequestT, ReplyT], request: RequestT, timeout_s: float) -> ReplyT:
        """Send a read as `ask` does, within `timeout_s`.  This method makes a `Reads` a `Caller`."""
        from quorumlog.client.reads import read, read_anywhere
        from quorumlog.wire.rpcs import result_of

        reply = await (read_anywhere if self.unconfirmed else read)(self._client, rpc, request, timeout_s)
        self.unconfirmed = self.unconfirmed or result_of(reply).unconfirmed
        offset: int = reply.offset  # type: ignore[attr-defined]
        self.offset = offset if self.offset is None else min(self.offset, offset)
        return reply

    async def ask_anywhere(self, rpc: Rpc[RequestT, ReplyT], request: RequestT) -> ReplyT:
        """Return the reply of any node, from the metadata that it has applied; if none answers, call `ask`.

        Raises:
            ClusterError: refused, or no node answered in time.
        """
        from quorumlog.client.reads import read_anywhere

        try:
            return await read_anywhere(self._client, rpc, request, self._context.left_s / 2)
        except ClusterError as error:
            if not error.retriable:
                raise
        return await self.ask(rpc, request)

    async def topic_names(self, timeout_s: float) -> list[str]:
        """Return the names of all topics, from the node with the newest metadata.

        Raises:
            ClusterError: no node answered in time.
        """
        from quorumlog.kctl.nodes import ask_freshest
        from quorumlog.wire import rpcs
        from quorumlog.wire.v1 import node_pb2

        request = node_pb2.DescribeMetadataRequest(at_offset=-1, without_partitions=True)
        reply = await ask_freshest(self._client, rpcs.DESCRIBE_METADATA, request, timeout_s)
        return [topic.name for topic in reply.topics]

    def refused(self, error: ClusterError) -> ClusterError:
        """Return `error`, which the answers cause.  If they are unconfirmed, the message also contains their offset."""
        if not self.unconfirmed:
            return error
        message = f"{error.message} (unconfirmed, as of offset {self.offset}: no active controller confirmed it)"
        return ClusterError(error.code, message, error.next_step, retriable=error.retriable)

    def tell(self) -> None:
        """Print on standard error the offset at which the answer is valid.

        JSON documents have fields for the offset.  So in JSON mode, only an unconfirmed answer is reported, because an
        empty list has no fields.
        """
        if self.offset is None or (self._context.output.is_json and not self.unconfirmed):
            return
        text = f"as of offset {self.offset} of the metadata log"
        if self.unconfirmed:
            text = f"unconfirmed, {text}: no active controller confirmed it, later changes may be missing"
            text += " (next: kctl doctor)"
        self._context.output.message(text)
