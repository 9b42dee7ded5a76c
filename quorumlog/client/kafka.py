"""One connection to one broker, speaking the Kafka protocol.

Theory of operation.  Requests are pipelined: a request does not wait for earlier replies, unless `in_flight_max`
requests are waiting for theirs.  The broker answers in order, so a reply belongs to the oldest waiting request.  If the
reply has another correlation id, no later reply can be trusted, and the connection is closed.  Every request has a
deadline.  A request whose deadline has passed keeps its place in the queue, so that its late reply is dropped and the
connection stays usable.  The caller decides whether to give up a slow broker (`Cluster` closes the connection).

When a connection fails, all waiting requests fail with a retriable `ClusterError`, and it is not used again.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final, cast

import quorumlog.wire.kafka  # noqa: F401  (before kio, so that kio does not import hypothesis)

# isort: split
from kio.schema.errors import ErrorCode

from quorumlog.errors import ClusterError, ConfigError, RemoteProtocolError
from quorumlog.runtime.closing import Closing
from quorumlog.wire.errors import ApiError
from quorumlog.wire.kafka import codec
from quorumlog.wire.kafka.codec import Api
from quorumlog.wire.kafka.framing import FrameProtocol, write_parts

FRAME_MAX_BYTES: Final = 128 << 20
IN_FLIGHT_MAX: Final = 64
CHECK_ADDRESSES: Final = (
    "check that the bootstrap servers are addresses for Kafka clients: not control addresses, and without TLS"
)
"""The next step after a failure of a connection that has never brought an answer."""
_FLUSH_S: Final = 1.0

Buffer = bytes | bytearray | memoryview


def error_word(code: int) -> tuple[str, bool]:
    """Return the name of a broker's error code, and whether the request may be retried, as Kafka defines it."""
    try:
        known = ErrorCode(code)
    except ValueError:
        return f"ERROR_{code}", False
    return known.name.upper(), known.retriable


def _unavailable(peer: str, why: str, next_step: str = "") -> ClusterError:
    return ClusterError(ApiError.BROKER_UNAVAILABLE, f"{peer}: {why}", next_step, retriable=True, refresh_metadata=True)


def _timed_out(peer: str, what: str, timeout_s: float) -> ClusterError:
    return ClusterError(
        ApiError.REQUEST_TIMED_OUT,
        f"{peer}: no answer to {what} within {timeout_s:g} s",
        retriable=True,
        refresh_metadata=True,
    )


class _Line(FrameProtocol):
    """The protocol object: the queue of requests that wait for their replies."""

    def __init__(self, peer: str, frame_max_bytes: int) -> None:
        super().__init__(frame_max_bytes)
        self.peer = peer
        self.failure: str | None = None
        """The reason why the connection can no longer be used; None while it is open."""
        self.next_step = ""
        """The next step after this failure."""
        self._has_replied = False
        self.waiting: deque[tuple[int, int, int, asyncio.Future[memoryview]]] = deque()
        """Api key, version, correlation id and future of each request, oldest first."""
        self.changed = asyncio.Event()
        """Set when a place in the queue, or room in the socket's buffer, may have become free."""
        self.full = False
        self.closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._transport: asyncio.WriteTransport | None = None

    # --- asyncio ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.WriteTransport, transport)

    def connection_lost(self, exc: Exception | None) -> None:
        why = f"connection lost ({exc})" if exc else "connection closed by the broker"
        self.fail(why if self._has_replied else why + self.guess_from_part)
        if not self.closed.done():
            self.closed.set_result(None)

    def pause_writing(self) -> None:
        self.full = True

    def resume_writing(self) -> None:
        self.full = False
        self.changed.set()

    # --- the queue ---

    def write(self, parts: Sequence[Buffer]) -> None:
        assert self._transport is not None
        write_parts(self._transport, parts)

    def reply(self, api_key: int, version: int, correlation_id: int) -> asyncio.Future[memoryview]:
        """Return the future of the encoded response to the request that was just written."""
        future: asyncio.Future[memoryview] = asyncio.get_running_loop().create_future()
        if self.failure is None:
            self.waiting.append((api_key, version, correlation_id, future))
        else:
            future.set_exception(_unavailable(self.peer, self.failure, self.next_step))
        return future

    def fail(self, why: str, flush: bool = False) -> None:
        """Close the connection, and fail all waiting requests; only the first call has an effect.

        flush: first send the bytes that were already written.
        """
        if self.failure is not None:
            return
        self.failure = why
        if not self._has_replied and not flush:
            self.next_step = CHECK_ADDRESSES
        self.refuse_rest()
        while self.waiting:
            future = self.waiting.popleft()[3]
            if not future.done():
                future.set_exception(_unavailable(self.peer, why, self.next_step))
        self.changed.set()
        if self._transport is not None:
            if flush:
                self._transport.close()
            else:
                self._transport.abort()

    def abort(self) -> None:
        assert self._transport is not None
        self._transport.abort()

    def frame_refused(self, error: RemoteProtocolError) -> None:
        self.fail(f"violated the protocol: {error.message}")

    def frame_received(self, frame: memoryview) -> None:
        if not self.waiting:
            return self.fail("violated the protocol: a reply without a request")
        api_key, version, expected, future = self.waiting[0]
        try:
            correlation_id, position = codec.parse_response_header(api_key, version, frame)
        except RemoteProtocolError as error:
            return self.fail(f"violated the protocol: {error.message}")
        if correlation_id != expected:
            return self.fail(f"violated the protocol: reply to request {correlation_id} instead of {expected}")
        self._has_replied = True
        self.waiting.popleft()
        self.changed.set()
        if not future.done():  # else the deadline of the request has passed
            future.set_result(frame[position:])
        return None


class KafkaConnection(Closing):
    """A connection, bound to the loop on which it was connected; an async context manager that closes it.

    Args:
        frame_max_bytes: a larger reply closes the connection.
        in_flight_max: maximum number of requests that wait for replies; further requests wait for their turn, within
            their deadlines.
    """

    def __init__(
        self,
        host: str,
        port: int,
        *,
        client_id: str = "quorumlog",
        frame_max_bytes: int = FRAME_MAX_BYTES,
        in_flight_max: int = IN_FLIGHT_MAX,
    ) -> None:
        self.host = host
        self.port = port
        self.peer = f"{host}:{port}"
        self._client_id = client_id
        self._frame_max_bytes = frame_max_bytes
        self._in_flight_max = in_flight_max
        self._line: _Line | None = None
        self._next_correlation_id = 0
        self._flush_until: float | None = None
        self.has_timed_out = False
        """Whether a request has timed out.  If so, the broker may hang."""

    @property
    def is_open(self) -> bool:
        return self._line is not None and self._line.failure is None

    async def connect(self, timeout_s: float) -> None:
        """Connect.  Raises: ClusterError, retriable: the connection fails, or takes longer than `timeout_s`."""
        assert self._line is None, "connect() is called only once"
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(timeout_s):
                _, line = await loop.create_connection(
                    lambda: _Line(self.peer, self._frame_max_bytes), self.host, self.port
                )
        except TimeoutError as cause:
            raise _unavailable(self.peer, f"no connection within {timeout_s:g} s") from cause
        except OSError as cause:
            raise _unavailable(self.peer, f"cannot connect: {cause}") from cause
        self._line = line

    def begin_close(self) -> None:
        """Fail waiting requests; still send bytes already written, for up to a second.  `close` waits for this."""
        if self._line is not None and self._flush_until is None:
            self._flush_until = asyncio.get_running_loop().time() + _FLUSH_S
            self._line.fail("closed", flush=True)

    async def close(self) -> None:
        """Fail waiting requests, and disconnect once bytes already written are sent, or after a second.  Idempotent."""
        self.begin_close()
        if self._line is not None:
            try:
                async with asyncio.timeout_at(self._flush_until):
                    await asyncio.shield(self._line.closed)
            except TimeoutError:
                self._line.abort()
                await self._line.closed

    async def send(self, request: Any, timeout_s: float) -> Any:
        """Send a `kio` request object (which has its api key and version) and return the `kio` response.

        Raises:
            ClusterError: always retriable: BROKER_UNAVAILABLE or, after `timeout_s` seconds, REQUEST_TIMED_OUT.
            ConfigError: the request has a text that is not valid; nothing was sent.
        """
        api_key, version = int(request.__api_key__), int(request.__version__)
        try:
            encoded = codec.encode(request)
        except UnicodeEncodeError as cause:
            raise ConfigError(f"{Api(api_key).name}: not valid text: {cause.object!r}") from cause
        body = await self.call(api_key, version, (encoded,), timeout_s)
        with self.judged():
            return codec.decode(codec.response_schema(api_key, version), body, 0)

    async def ask(self, api_key: Api, version: int, values: Mapping[str, Any], timeout_s: float) -> Any:
        """Send a request that is given as nested mappings (see `codec.make`), as `send` does."""
        return await self.send(codec.request(api_key, version, values), timeout_s)

    async def call(self, api_key: int, version: int, body: Sequence[Buffer], timeout_s: float) -> memoryview:
        """Send an encoded request and return the encoded response, both without headers.

        `body` is not copied: its buffers must not change before the reply arrives.  Raises: as `send`.
        """
        what = Api(api_key).name
        try:
            async with asyncio.timeout(timeout_s):
                line = await self._turn()
                correlation_id = self._write(line, api_key, version, body)
                reply: memoryview = await line.reply(api_key, version, correlation_id)
                return reply
        except TimeoutError as cause:
            self.has_timed_out = True
            raise _timed_out(self.peer, what, timeout_s) from cause

    async def post(self, api_key: int, version: int, body: Sequence[Buffer], timeout_s: float) -> None:
        """Send a request without a response (Produce with acks=0).  Raises: as `send`."""
        try:
            async with asyncio.timeout(timeout_s):
                line = await self._turn()
        except TimeoutError as cause:
            self.has_timed_out = True
            raise _timed_out(self.peer, Api(api_key).name, timeout_s) from cause
        self._write(line, api_key, version, body)

    @contextmanager
    def judged(self) -> Iterator[None]:
        """Decode a reply in this block; if it is malformed, close the connection and raise a retriable ClusterError."""
        try:
            yield
        except RemoteProtocolError as error:
            failure = _unavailable(self.peer, f"violated the protocol: {error.message}")
            if self._line is not None:
                self._line.fail(failure.message)
            raise failure from error

    async def _turn(self) -> _Line:
        """Wait until the queue has room."""
        line = self._line
        assert line is not None, "call connect() first"
        while line.failure is None and (line.full or len(line.waiting) >= self._in_flight_max):
            line.changed.clear()
            await line.changed.wait()
        if line.failure is not None:
            raise _unavailable(self.peer, line.failure, line.next_step)
        return line

    def _write(self, line: _Line, api_key: int, version: int, body: Sequence[Buffer]) -> int:
        self._next_correlation_id = correlation_id = (self._next_correlation_id + 1) & 0x7FFF_FFFF
        size = sum(len(part) for part in body)
        line.write((codec.request_prefix(api_key, version, correlation_id, self._client_id, size), *body))
        return correlation_id
