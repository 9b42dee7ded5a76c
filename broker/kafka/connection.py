"""One client connection: reads requests and answers them in order.

Theory of operation.  Requests begin in the order in which they arrived, and are answered in that order.  As every Kafka
client expects, a request begins only after all earlier requests have been answered.  Consecutive Produce requests are
the one exception: they begin immediately, because `start_produce` appends a producer's batches in the order of its
calls.  Only their acknowledgements are awaited together.  Each request that has begun has a slot in a line.  Its reply
is sent once it is ready and the slot is at the head of the line.

The input is bounded.  The connection stops reading while too many requests wait, while the server holds too many bytes,
or while the peer does not read its replies.  A protocol error closes this connection once earlier requests have been
answered.  It affects no other connection.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, Protocol, cast

import msgspec

from broker.kafka.limits import KafkaLimits, MemoryBudget
from quorumlog.errors import RemoteProtocolError
from quorumlog.runtime.logging import LineBudget, get_logger
from quorumlog.wire.kafka import codec
from quorumlog.wire.kafka.codec import Api, RequestHeader
from quorumlog.wire.kafka.framing import FrameProtocol, write_parts

logger = get_logger("kafka")

Buffer = bytes | bytearray | memoryview
Reply = Sequence[Buffer] | None
"""The encoded response without its header.  None: no reply is sent."""


class HangUp(Exception):
    """A refusal for which the protocol has no answer except to close the connection."""


class Pending(msgspec.Struct, frozen=True):
    """A reply that `finish` makes once all futures are done.

    is_owned: whether the futures are cancelled if the connection is lost first, or the server closes.  If not, they
        continue, and their results are dropped.
    """

    futures: Sequence[asyncio.Future[Any]]
    finish: Callable[[], Reply]
    is_owned: bool = False

    def cancel(self) -> None:
        if self.is_owned:
            for future in self.futures:
                future.cancel()


class Caller(msgspec.Struct, frozen=True):
    """The sender of a request.

    hold: counts bytes as held from now on, until the request is answered.  A handler calls it once a large reply
        exists, because further replies may be made before this one is sent.
    principal: always ANONYMOUS until listeners authenticate.
    """

    listener: str
    peer: str
    header: RequestHeader
    hold: Callable[[int], None]
    principal: str = "User:ANONYMOUS"


Dispatch = Callable[[Caller, memoryview], Reply | Pending | Awaitable[Reply]]


class Host(Protocol):
    """The part of the server that a connection uses."""

    @property
    def limits(self) -> KafkaLimits: ...
    @property
    def budget(self) -> MemoryBudget: ...
    @property
    def lines(self) -> LineBudget: ...
    @property
    def dispatch(self) -> Dispatch: ...
    def admit(self, connection: Connection) -> bool:
        """Return whether a new connection may be served."""
        ...

    def at_work(self, connection: Connection) -> None:
        """Note that a connection without open requests has sent a request."""
        ...

    def at_rest(self, connection: Connection) -> None:
        """Note that all requests of a connection have been answered."""
        ...

    def gone(self, connection: Connection) -> None:
        """Note that a connection has ended, whether it was admitted or not."""
        ...


class _Slot:
    """A request that has begun.

    size: bytes of its frame, and of a large reply, which count as held until the request is answered.
    failed: the request expects a reply and gets none.
    """

    __slots__ = ("done", "failed", "header", "left", "pending", "reply", "size", "task")

    def __init__(self, header: RequestHeader, size: int) -> None:
        self.header = header
        self.size = size
        self.done = False
        self.failed = False
        self.reply: Reply = None
        self.left = 0
        self.pending: Pending | None = None
        self.task: asyncio.Task[Reply] | None = None

    def cancel(self) -> None:
        if self.task is not None:
            self.task.cancel()
        if self.pending is not None:
            self.pending.cancel()


class Connection(FrameProtocol):
    """One client connection, owned by `host`.  It ends with `connection_lost`."""

    def __init__(self, host: Host, listener: str) -> None:
        super().__init__(host.limits.frame_max_bytes)
        self._host = host
        self._limits = host.limits
        self.listener = listener
        self.peer = "?"
        self._transport: asyncio.Transport | None = None
        self._queue: deque[memoryview] = deque()
        self._queued_bytes = 0
        self._line: deque[_Slot] = deque()
        self._advancing = False
        self._closing = False
        self._lost = False
        self._full = False
        self._held_by_budget = False
        self._reading = True
        self._unsent_bytes = 0
        self._written_bytes = 0
        self._at_rest = True
        # used by `sweep` and `make_way`
        self._requests = 0
        self._seen = (-1, False)
        self._seen_at = 0.0
        self._frame_began: float | None = None
        self._frame_expected = 0
        self._progress_mark: tuple[float, int] | None = None
        self._unsent_mark: tuple[float, int] | None = None

    # --- asyncio ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        address = transport.get_extra_info("peername")
        self.peer = f"{address[0]}:{address[1]}" if address else "?"
        if not self._host.admit(self):
            self._closing = True
            self.refuse_rest()
            self._transport.abort()
            return
        self._transport.set_write_buffer_limits(high=self._limits.write_buffer_bytes)

    def connection_lost(self, exc: Exception | None) -> None:
        self._lost = self._closing = True
        self.refuse_rest()
        self._queue.clear()
        self._drop_line()
        self._queued_bytes = self._unsent_bytes = 0
        self._host.budget.forget(self)
        self._host.gone(self)

    @property
    def is_idle(self) -> bool:
        """Return whether this connection can be closed without losing a request or a reply.

        The beginning of a small frame may be lost.
        """
        assert self._transport is not None
        busy = self._queue or self._line or self._frame_began is not None
        return not busy and self._transport.get_write_buffer_size() == 0

    def eof_received(self) -> bool:
        return False

    def pause_writing(self) -> None:
        assert self._transport is not None
        self._full = True
        self._unsent_bytes = self._transport.get_write_buffer_size()
        self._host.budget.take(self, self._unsent_bytes)
        self._throttle()

    def resume_writing(self) -> None:
        self._full = False
        self._unsent_mark = None
        unsent, self._unsent_bytes = self._unsent_bytes, 0
        self._host.budget.give(self, unsent)
        self._advance()

    # --- reading ---

    def frame_growing(self, size: int, expected: int) -> None:
        if self._frame_began is None:
            self._frame_began = asyncio.get_running_loop().time()
            self._frame_expected = expected
        self._host.budget.grow(self, size)

    def frame_received(self, frame: memoryview) -> None:
        self._requests += 1
        if self._at_rest:
            self._at_rest = False
            self._host.at_work(self)
        if self._frame_began is not None:
            self._frame_began = self._progress_mark = None
            self._host.budget.grown(self)
        if self._closing:
            return
        self._queue.append(frame)
        self._queued_bytes += len(frame)
        self._host.budget.take(self, len(frame))
        self._advance()

    def frame_refused(self, error: RemoteProtocolError) -> None:
        self._break_off(error.message)

    def hold_reading(self) -> None:
        self._held_by_budget = True
        self._throttle()

    def go_on_reading(self) -> None:
        self._held_by_budget = False
        self._throttle()

    def _throttle(self) -> None:
        """Pause or resume reading, according to all bounds together."""
        waiting = len(self._queue) + len(self._line)
        wanted = (
            not self._closing
            and not self._full
            and not self._held_by_budget
            and waiting < self._limits.requests_per_connection_max
        )
        if wanted == self._reading or self._lost or self._transport is None:
            return
        self._reading = wanted
        if wanted:
            if self._frame_began is not None:  # this broker caused the wait, so the peer gets its full time again
                self._frame_began = asyncio.get_running_loop().time()
                self._progress_mark = None
            self._transport.resume_reading()
        else:
            self._transport.pause_reading()

    # --- requests and replies ---

    def _advance(self) -> None:
        """Begin requests and send replies until neither is possible."""
        if self._advancing or self._lost:
            return
        self._advancing = True
        try:
            while self._begin_next() or self._send_ready():
                pass
        finally:
            self._advancing = False
        if self._closing and not self._line and not self._lost:
            assert self._transport is not None
            self._transport.close()
        self._throttle()

    def _begin_next(self) -> bool:
        """Begin the oldest waiting request if earlier requests permit that.  Return whether it left the queue."""
        if not self._queue or self._closing or self._full:
            return False
        frame = self._queue[0]
        is_produce = bytes(frame[:2]) == b"\0\0"
        if self._line and not (is_produce and self._line[-1].header.api_key == Api.PRODUCE):
            return False
        self._queue.popleft()
        self._queued_bytes -= len(frame)
        try:
            self._begin(frame, is_produce)
        except RemoteProtocolError as error:
            self._host.budget.give(self, len(frame))
            self._break_off(error.message)
        return True

    def _begin(self, frame: memoryview, is_produce: bool) -> None:
        """Begin one request.

        Raises: RemoteProtocolError, before the request has a slot.
        """
        if not is_produce and len(frame) > self._limits.small_request_max_bytes:
            raise RemoteProtocolError(f"a request of {len(frame)} bytes is too large; only Produce may have this size")
        header = codec.parse_request_header(frame)
        slot = _Slot(header, len(frame))
        try:
            outcome = self._host.dispatch(Caller(self.listener, self.peer, header, partial(self._hold, slot)), frame)
        except HangUp as reason:
            self._line.append(slot)
            slot.done = True
            self._break_off(str(reason))
            return
        except RemoteProtocolError:
            raise
        except Exception as error:
            self._line.append(slot)
            self._failed(slot, error)
            return
        self._line.append(slot)
        if isinstance(outcome, Pending):
            self._await_futures(slot, outcome)
        elif outcome is None or isinstance(outcome, (list, tuple)):
            slot.reply, slot.done = outcome, True
        else:
            slot.task = asyncio.ensure_future(cast(Awaitable[Reply], outcome))
            slot.task.add_done_callback(lambda _: self._resolve(slot))

    def _hold(self, slot: _Slot, size: int) -> None:
        if not self._lost:
            slot.size += size
            self._host.budget.take(self, size)

    def _await_futures(self, slot: _Slot, pending: Pending) -> None:
        slot.pending = pending
        waiting = [future for future in pending.futures if not future.done()]
        if not waiting:
            self._resolve(slot)
            return
        slot.left = len(waiting)

        def one(_: object) -> None:
            slot.left -= 1
            if slot.left == 0:
                self._resolve(slot)

        for future in waiting:
            future.add_done_callback(one)

    def _resolve(self, slot: _Slot) -> None:
        """Complete a slot whose task or futures are done."""
        if self._lost:
            if slot.task is not None and not slot.task.cancelled() and (error := slot.task.exception()) is not None:
                logger.error("a request failed after its connection had closed", peer=self.peer, error=repr(error))
                _report_if_broken(error)
            return
        try:
            if slot.task is not None:
                slot.reply = slot.task.result()
            elif slot.pending is not None:
                slot.reply = slot.pending.finish()
            slot.done = True
        except HangUp as reason:
            slot.done = True
            self._break_off(str(reason))
        except RemoteProtocolError as error:
            slot.done = slot.failed = True
            self._break_off(error.message)
        except (Exception, asyncio.CancelledError) as error:
            self._failed(slot, error)
        self._advance()

    def _failed(self, slot: _Slot, error: BaseException) -> None:
        """Complete a slot whose request failed: send no reply to it or to later requests, and close the connection.

        The cause is a bug of this broker, or the server is closing.  A broken invariant ends the process.
        """
        slot.done = slot.failed = True
        if not _report_if_broken(error) and not self._closing:
            header = slot.header
            logger.exception("request failed", peer=self.peer, api_key=header.api_key, api_version=header.api_version)
        self._closing = True
        self.refuse_rest()

    def _send_ready(self) -> bool:
        """Write all ready replies at the head of the line.  Return whether a slot was done.

        Nothing is sent after a failed request, because clients match replies to their requests by the order.
        """
        line = self._line
        if not line or not line[0].done:
            return False
        parts: list[Buffer] = []
        freed = 0
        while line and line[0].done:
            slot = line.popleft()
            freed += slot.size
            if slot.failed:
                freed += self._drop_line()
            elif slot.reply is not None:
                header = slot.header
                size = sum(len(part) for part in slot.reply)
                flexible = codec.response_header_is_flexible(header.api_key, header.api_version)
                parts.append(codec.response_prefix(header.correlation_id, size, flexible))
                parts.extend(slot.reply)
        if parts:
            assert self._transport is not None
            self._written_bytes += sum(map(len, parts))
            write_parts(self._transport, parts)
        self._host.budget.give(self, freed)
        if not line and not self._queue:
            self._at_rest = True
            self._host.at_rest(self)
        return True

    def _drop_line(self) -> int:
        """Drop all requests that have begun, and return the bytes that they held."""
        size = sum(slot.size for slot in self._line)
        for slot in self._line:
            slot.cancel()
        self._line.clear()
        return size

    # --- ending ---

    def _break_off(self, why: str) -> None:
        """Log the reason, and close the connection once earlier requests have been answered."""
        if not self._closing:
            self._host.lines.warning("connection closed", peer=self.peer, listener=self.listener, reason=why)
        self.finish()

    def finish(self) -> None:
        """Stop reading, answer the requests that have begun, then close the connection."""
        self._closing = True
        self.refuse_rest()
        dropped, self._queued_bytes = self._queued_bytes, 0
        self._queue.clear()
        self._host.budget.give(self, dropped)
        self._advance()

    def cancel_waits(self) -> None:
        """Cancel parked requests (long polls).  The server calls it when it closes."""
        for slot in list(self._line):
            slot.cancel()

    def abort(self) -> None:
        if self._transport is not None and not self._lost:
            self._transport.abort()

    def sweep(self, now: float) -> None:
        """Close the connection if it is idle, or if either direction has stalled."""
        seen = (self._requests, self.mid_frame)  # a new frame has its full time, even after a long pause
        if seen != self._seen or self._line or not self._reading:  # nothing arrives while this broker does not read
            self._seen, self._seen_at = seen, now
        limits = self._limits
        if self._frame_began is not None:
            if self._reading:
                allowed = limits.frame_stall_ms / 1000 + self._frame_expected / (1 << 20)
                if now - self._frame_began > allowed:
                    self._stalled("its frame has not arrived in time")
        elif now - self._seen_at > (limits.frame_stall_ms if self.mid_frame else limits.idle_ms) / 1000:
            self._stalled("its frame has not arrived in time" if self.mid_frame else "idle")
        assert self._transport is not None
        unsent = self._transport.get_write_buffer_size()
        sent = self._written_bytes - unsent  # the unsent bytes alone show no progress: replies may have been added
        if unsent == 0:
            self._unsent_mark = None
        elif self._unsent_mark is None or sent - self._unsent_mark[1] >= limits.write_stall_bytes:
            self._unsent_mark = (now, sent)
        elif now - self._unsent_mark[0] > limits.write_stall_ms / 1000:
            self._stalled("the client does not read its replies")

    def make_way(self, now: float) -> None:
        """Close the connection if its frame hardly grows, because others wait for the memory that the frame takes."""
        received = self.frame_filled
        limits = self._limits
        if self._progress_mark is None or received - self._progress_mark[1] >= limits.crowded_progress_bytes:
            self._progress_mark = (now, received)
        elif now - self._progress_mark[0] >= limits.crowded_stall_ms / 1000:
            self._stalled("its frame grows too slowly while other connections wait for memory")

    def _stalled(self, why: str) -> None:
        if why != "idle":
            self._host.lines.warning("connection closed", peer=self.peer, listener=self.listener, reason=why)
        self.abort()


def _report_if_broken(error: BaseException) -> bool:
    """Return whether `error` is a broken invariant.  If so, report it to the loop's handler, which ends the process."""
    if not isinstance(error, AssertionError):
        return False
    context = {"message": "invariant broken in a Kafka request", "exception": error}
    asyncio.get_running_loop().call_exception_handler(context)
    return True
