"""Carries the requests and replies of a quorum node's core, each with a number and a deadline.

Each request of this node is a short task.  Each request of another node is a future that the core completes later.  A
message with `after` is held until that write is durable: a vote must not be counted, and a fetch must not acknowledge
records, before the disk holds them.  The number of requests is limited in both directions; a request above the limit
fails as if the peer could not be reached.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from itertools import count
from typing import Any

from quorum.core.events import Event, ReplyReceived, RequestFailed, RequestReceived, SendReply, SendRequest
from quorum.core.messages import EndQuorumEpoch, ErrorCode, FetchReply, Reply, Request
from quorum.ports import Transport, UnreachableError
from quorumlog.runtime.logging import get_logger

REQUESTS_MAX = 8192
"""Maximum number of other nodes' requests in progress.  A further request fails as if this node were unreachable."""
ASKS_MAX = 1024
"""Maximum number of this node's requests in progress.  A further request fails immediately."""
REQUEST_MAX_S = 30.0
"""Time limit of another node's request.  The request fails after one to two times this limit, if the core has not
answered it."""

Spawn = Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]]

logger = get_logger("quorum")


class Exchange:
    """The requests in progress of one node, in both directions.

    post: queues an event for the core.  spawn: starts a task that ends with the node at the latest.
    heard: called with each fetch reply without an error, before the core sees it.
    """

    def __init__(
        self, transport: Transport, post: Callable[[Event], None], spawn: Spawn, heard: Callable[[FetchReply], None]
    ) -> None:
        self._transport = transport
        self._post = post
        self._spawn = spawn
        self._heard = heard
        self._durable_write = 0
        self._held: dict[int, list[SendRequest | SendReply]] = {}
        self._call_numbers = count(1)
        self._requests: dict[int, asyncio.Future[Reply]] = {}
        """The requests of other nodes, the oldest first."""
        self._expiry: asyncio.TimerHandle | None = None
        self._expiring = 0
        self._asks: dict[int, asyncio.Task[None]] = {}
        self._farewells = 0
        self._farewells_ended = asyncio.Event()
        self.failed_requests = 0

    @property
    def requests_in_progress(self) -> int:
        """Return how many requests of other nodes are in progress."""
        return len(self._requests)

    # Out

    def submit(self, effect: SendRequest | SendReply) -> None:
        """Send a message as soon as the write that it waits for is durable."""
        if effect.after is not None and effect.after > self._durable_write:
            self._held.setdefault(effect.after, []).append(effect)
        else:
            self._send(effect)

    def release(self, write_id: int) -> None:
        """Send the messages that waited for write `write_id` or an earlier write, because these are durable now."""
        self._durable_write = write_id
        for after in sorted(after for after in self._held if after <= write_id):
            for effect in self._held.pop(after):
                self._send(effect)

    def _send(self, effect: SendRequest | SendReply) -> None:
        if isinstance(effect, SendReply):
            future = self._requests.pop(effect.call, None)
            if future is not None and not future.done():
                future.set_result(effect.reply)
            return
        if len(self._asks) >= ASKS_MAX:
            self.failed_requests += 1
            self._post(RequestFailed(effect.call, f"{ASKS_MAX} requests are in progress"))
            return
        self._farewells += isinstance(effect.request, EndQuorumEpoch)
        self._asks[effect.call] = self._spawn(self._ask(effect))

    async def _ask(self, ask: SendRequest) -> None:
        try:
            reply = await self._transport.ask(ask.to, ask.request, ask.timeout_ms)
        except UnreachableError as error:
            self.failed_requests += 1
            logger.debug("no answer", request=type(ask.request).__name__, reason=str(error))
            self._post(RequestFailed(ask.call, str(error)))
        else:
            if isinstance(reply, FetchReply) and reply.error is ErrorCode.NONE:
                self._heard(reply)
            self._post(ReplyReceived(ask.call, reply))
        finally:
            del self._asks[ask.call]
            if isinstance(ask.request, EndQuorumEpoch):
                self._farewells -= 1
                if self._farewells == 0:
                    self._farewells_ended.set()

    # Farewells: the EndQuorumEpoch requests that a resigning leader waits for

    def begin_farewells(self) -> None:
        """Make `farewells_ended` wait for the farewells that are sent from now on."""
        self._farewells_ended.clear()

    def end_farewells(self) -> None:
        """End the wait for farewells, because a new role or epoch makes them unnecessary."""
        self._farewells_ended.set()

    async def farewells_ended(self) -> None:
        """Wait until every farewell is answered or has failed, or `end_farewells` is called.

        The caller sets the deadline.
        """
        if self._farewells > 0:
            await self._farewells_ended.wait()

    # In

    async def handle(self, request: Request) -> Reply:
        """Return the core's reply to a request of another node.

        Raises:
            UnreachableError: too many requests are in progress, or the core did not answer in time.
        """
        if len(self._requests) >= REQUESTS_MAX:
            raise UnreachableError(f"{REQUESTS_MAX} requests are in progress on this node")
        call = next(self._call_numbers)
        future: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        self._requests[call] = future
        if self._expiry is None:
            self._watch(call)
        self._post(RequestReceived(call, request))
        try:
            return await future
        finally:
            self._requests.pop(call, None)

    def _watch(self, newest: int) -> None:
        """Fail the requests up to `newest` if they are still in progress after `REQUEST_MAX_S`.

        One timer serves all requests.  A request that begins while the timer runs waits for the next timer, and so
        fails after at most twice this time.
        """
        self._expiring = newest
        self._expiry = asyncio.get_running_loop().call_later(REQUEST_MAX_S, self._expire)

    def _expire(self) -> None:
        self._expiry = None
        for call, future in self._requests.items():
            if call <= self._expiring and not future.done():
                future.set_exception(UnreachableError(f"no answer within {REQUEST_MAX_S} s"))
        if self._requests:
            self._watch(next(reversed(self._requests)))

    # The end

    def stop(self) -> None:
        """Cancel the requests of this node, and fail the requests of other nodes."""
        if self._expiry is not None:
            self._expiry.cancel()
        for task in list(self._asks.values()):
            task.cancel()
        requests, self._requests = self._requests, {}
        for future in requests.values():
            if not future.done():
                future.set_exception(UnreachableError("this node is stopping"))
