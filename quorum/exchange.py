"""What a quorum node sends and is asked: its core's messages on their way, each with a number and a deadline.

Each request of ours is a short task; requests of others are futures that the core answers some time later.  A message
with `after` is held until that write is durable: a vote must never be counted, nor a fetch acknowledge, before the disk
has what it says.  Both kinds are bounded in number, and what is turned away looks as if nobody could be reached.
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
"""Requests of others in progress; a further one is turned away as if this node could not be reached."""
ASKS_MAX = 1024
"""Requests of ours in progress; a further one fails at once."""
REQUEST_MAX_S = 30.0
"""A request of another node that the core has not answered by then is given up."""

Spawn = Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]]

_log = get_logger("quorum")


class Exchange:
    """Of one node.  post: takes an event to the core.  spawn: starts a task that lives no longer than the node.
    heard: called with each good fetch reply, before the core sees it."""

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
        self._asks: dict[int, asyncio.Task[None]] = {}
        self._farewells = 0
        self._farewells_ended = asyncio.Event()
        self.failed_requests = 0

    @property
    def requests_in_progress(self) -> int:
        """Of other nodes."""
        return len(self._requests)

    # Out

    def submit(self, effect: SendRequest | SendReply) -> None:
        """Send it, as soon as the write that it waits for is durable."""
        if effect.after is not None and effect.after > self._durable_write:
            self._held.setdefault(effect.after, []).append(effect)
        else:
            self._send(effect)

    def release(self, write_id: int) -> None:
        """Write `write_id` and all before it are durable: what waited for them leaves."""
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
            _log.debug("no answer", request=type(ask.request).__name__, reason=str(error))
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

    # Farewells, which a leader that stops waits for

    def begin_farewells(self) -> None:
        """Those that are sent from now on count."""
        self._farewells_ended.clear()

    def end_farewells(self) -> None:
        """They are not needed any more: there is another role, or epoch."""
        self._farewells_ended.set()

    async def farewells_ended(self) -> None:
        """Wait until each is answered, or all are needless.  The caller sets the deadline."""
        if self._farewells > 0:
            await self._farewells_ended.wait()

    # In

    async def handle(self, request: Request) -> Reply:
        """Have the core answer another node.

        Raises:
            UnreachableError: too much is in progress, or there is no answer in time.
        """
        if len(self._requests) >= REQUESTS_MAX:
            raise UnreachableError(f"{REQUESTS_MAX} requests are in progress here")
        call = next(self._call_numbers)
        future: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        self._requests[call] = future
        self._post(RequestReceived(call, request))
        try:
            async with asyncio.timeout(REQUEST_MAX_S):
                return await future
        except TimeoutError:
            raise UnreachableError(f"no answer to {type(request).__name__} within {REQUEST_MAX_S} s") from None
        finally:
            self._requests.pop(call, None)

    # The end

    def stop(self) -> None:
        """Cancel what was asked, and tell those who ask that nobody will answer."""
        for task in list(self._asks.values()):
            task.cancel()
        requests, self._requests = self._requests, {}
        for future in requests.values():
            if not future.done():
                future.set_exception(UnreachableError("this node is stopping"))
