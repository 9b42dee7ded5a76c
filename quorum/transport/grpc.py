"""`GrpcTransport`: the `Quorum` and `Controller` services over gRPC, with health and reflection beside them.

Handlers take and return bytes.  A body that is not protobuf is therefore answered with INVALID_ARGUMENT (the library's
own deserializers would answer INTERNAL), and each service has its own size limit.  A handler converts the request,
passes it on and converts the reply.  It decides nothing, because gRPC swallows the exceptions of a handler.

Outgoing calls use one channel per address, at most `CHANNELS_MAX` in total, and every call has a deadline.  Fetches use
the standing stream of their channel (`fetch_stream.py`).  A reply that violates the protocol closes the connection to
its sender.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter, OrderedDict
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, NoReturn

import grpc
import grpc.aio
from google.protobuf.message import DecodeError, Message
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from quorum.core.events import Peer
from quorum.core.messages import Reply, Request
from quorum.ports import ControllerHandler, Handler, UnreachableError
from quorum.transport import convert
from quorum.transport.fetch_stream import FetchStream, UnknownStreamError
from quorumlog.errors import RemoteProtocolError
from quorumlog.runtime.addresses import Address, parse_address
from quorumlog.runtime.grpc import bind, connect, make_channel, make_server
from quorumlog.runtime.logging import LineBudget, get_logger
from quorumlog.wire import rpcs
from quorumlog.wire.rpcs import RPCS, AnyRpc, ReplyT, RequestT, Rpc, Sender, Service

CHANNELS_MAX = 128
"""Maximum number of open channels.  At this limit, a new channel replaces the least recently used one without a call in
progress."""
CALLS_PER_CHANNEL_MAX = 256
"""Maximum number of calls in progress to one address, for each kind of sender.  Further calls fail at once, as if the
address were unreachable.  So requests that this node forwards for clients leave room for fetches, votes and
heartbeats."""
QUORUM_REQUEST_MAX_BYTES = 64 << 10
CONTROLLER_REQUEST_MAX_BYTES = 8 << 20
HANDLING_MAX_S = 60.0
"""An incoming call without a deadline of its own is ended after this time, and an incoming stream after this time
without a further exchange."""
DEADLINE_MAX_S = 660.0
"""An incoming call whose own deadline is later is ended after this time.  The service of the controller answers within
600 s, with a named outcome; the status of a call that ends at this limit says nothing about the outcome."""
STREAM_SLACK_S = 1.0
"""An incoming stream may be ended this much earlier than `HANDLING_MAX_S` after its last exchange."""
STOP_GRACE_S = 0.5
HEALTH_LOOK_S = 0.5
_LOG_EVERY_S = 5.0

logger = get_logger("quorum.transport")


_Context = grpc.aio.ServicerContext[bytes, bytes]
_Serve = Callable[[bytes, _Context], Awaitable[bytes]]


class _Channel:
    """One channel, its calls in progress by kind, and its stream of fetches, which may stay open between calls."""

    def __init__(self, address: str) -> None:
        self.grpc = make_channel(address)
        self.fetches = FetchStream(self.grpc)
        self.calls: Counter[Sender] = Counter()


class _Health(health.aio.HealthServicer):
    """The gRPC health service.  It refreshes its state before each answer, and every `HEALTH_LOOK_S` while watched."""

    def __init__(self, transport: GrpcTransport) -> None:
        super().__init__()
        self._transport = transport
        self._watches = 0
        self._looking: asyncio.Task[None] | None = None

    async def Check(self, request: Any, context: Any) -> Any:
        await self._transport.refresh_health()
        return await super().Check(request, context)

    async def Watch(self, request: Any, context: Any) -> Any:
        self._watches += 1
        if self._looking is None:
            self._looking = asyncio.get_running_loop().create_task(self._look())
        try:
            await super().Watch(request, context)
        finally:
            self._watches -= 1
            if self._watches == 0 and self._looking is not None:
                self._looking.cancel()
                self._looking = None

    async def _look(self) -> None:
        """Refresh the state regularly, since no event reports that readiness has ended for lack of fetches."""
        while True:
            await self._transport.refresh_health()
            await asyncio.sleep(HEALTH_LOOK_S)


class GrpcTransport:
    """Implements `quorum.ports.Transport` over gRPC.  Created and used on one running event loop."""

    def __init__(self, listen: Address | str) -> None:
        self._listen = parse_address(listen) if isinstance(listen, str) else listen
        self._server: grpc.aio.Server | None = None
        self._address: Address | None = None
        self._health = _Health(self)
        self._handler: Handler | None = None
        self._controller_handler: ControllerHandler | None = None
        self._channels: OrderedDict[str, _Channel] = OrderedDict()
        self._correlation_ids = itertools.count(1)
        self._streams: set[asyncio.Task[Any]] = set()  # the handlers of incoming streams, except while they write
        self._closing: list[asyncio.Task[None]] = []  # closings of channels that were replaced, until they end
        self._closed = False
        self._lines = LineBudget(logger, lambda: asyncio.get_running_loop().time(), 1, _LOG_EVERY_S)
        self.is_serving: Callable[[], bool] = lambda: False  # the answer of gRPC health

    # Incoming

    def serve(self, handler: Handler) -> None:
        assert self._handler is None, "serve() called twice"
        self._handler = handler

    def serve_controller(self, handler: ControllerHandler) -> None:
        assert self._controller_handler is None, "serve_controller() called twice"
        self._controller_handler = handler

    def bind(self) -> str:
        """Bind the listening address and return it (HOST:PORT).  No request is answered before `start`.

        Raises:
            ConfigError: the address is in use, or not an address of this machine.
        """
        if self._address is None:
            self._server = make_server()
            port = bind(self._server, self._listen)
            self._address = Address(self._listen.host, port)
        return str(self._address)

    @property
    def address(self) -> str:
        """Return the bound HOST:PORT."""
        assert self._address is not None, "not bound yet"
        return str(self._address)

    async def start(self) -> None:
        """Bind the address, unless `bind` has done so, and serve.

        Raises:
            ConfigError: the address is in use, or not an address of this machine.
        """
        self.bind()
        assert self._server is not None
        assert self._handler is not None, "serve() comes before start()"
        names = [Service.QUORUM.value, health.SERVICE_NAME, reflection.SERVICE_NAME]
        self._server.add_generic_rpc_handlers((self._quorum_handlers(), self._stream_handlers()))
        if self._controller_handler is not None:
            for service in (Service.CONTROLLER, Service.NODE):
                names.append(service.value)
                self._server.add_generic_rpc_handlers((self._controller_handlers(service),))
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        reflection.enable_server_reflection(names, self._server)
        await self.refresh_health()
        await self._server.start()

    async def refresh_health(self) -> None:
        """Update the state of gRPC health, for the process and for each of its services."""
        serving = not self._closed and self.is_serving()
        status = health_pb2.HealthCheckResponse.SERVING if serving else health_pb2.HealthCheckResponse.NOT_SERVING
        for name in (health.OVERALL_HEALTH, *(service.value for service in Service)):
            await self._health.set(name, status)

    def _quorum_handlers(self) -> grpc.GenericRpcHandler:
        def serve(rpc: AnyRpc) -> _Serve:
            async def call(wire: bytes, context: _Context) -> bytes:
                return await self._serve_quorum(rpc, wire, context)

            return call

        return _handlers(Service.QUORUM, serve)

    def _stream_handlers(self) -> grpc.GenericRpcHandler:
        stream = rpcs.FETCH_STREAM
        handler: Any = grpc.stream_stream_rpc_method_handler(self._serve_fetches)
        return grpc.method_handlers_generic_handler(stream.service.value, {stream.name: handler})

    def _controller_handlers(self, service: Service) -> grpc.GenericRpcHandler:
        def serve(rpc: AnyRpc) -> _Serve:
            async def call(wire: bytes, context: _Context) -> bytes:
                return await self._serve_controller(rpc, wire, context)

            return call

        return _handlers(service, serve)

    async def _serve_quorum(self, rpc: AnyRpc, wire: bytes, context: _Context) -> bytes:
        correlation_id, request = await self._request(rpc, wire, context)
        assert self._handler is not None
        reply: Reply = await self._within_deadline(self._handler(request), rpc, context)
        return convert.reply_to_wire(rpc, reply, correlation_id)

    async def _serve_fetches(self, _: object, context: Any) -> None:
        """Answer the fetches of one node, until it ends the stream or sends nothing for `HANDLING_MAX_S`."""
        assert self._handler is not None
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None
        rpc = rpcs.FETCH
        self._streams.add(task)
        try:
            ends_at = loop.time() + HANDLING_MAX_S
            async with asyncio.timeout_at(ends_at) as limit:
                while not self._closed and (wire := await context.read()) is not grpc.aio.EOF:
                    correlation_id, request = await self._request(rpc, wire, context)
                    reply: Reply = await self._handled(self._handler(request), rpc, context)
                    # `close` must not cancel a write: gRPC cannot abort a stream before the write has ended.
                    self._streams.discard(task)
                    await context.write(convert.reply_to_wire(rpc, reply, correlation_id))
                    self._streams.add(task)
                    now = loop.time()
                    # A new timer for each fetch would cost too much.
                    if now + HANDLING_MAX_S - ends_at > STREAM_SLACK_S:
                        ends_at = now + HANDLING_MAX_S
                        limit.reschedule(ends_at)
        except TimeoutError:
            pass
        except asyncio.CancelledError:
            if not self._closed:
                raise
        finally:
            self._streams.discard(task)
        if self._closed:
            await _abort(context, grpc.StatusCode.UNAVAILABLE, "this node is stopping")

    async def _request(self, rpc: AnyRpc, wire: bytes, context: _Context) -> tuple[int, Request]:
        """Return the correlation id and the request of a call, or refuse it."""
        if len(wire) > QUORUM_REQUEST_MAX_BYTES:
            await self._refuse_size(rpc, len(wire), QUORUM_REQUEST_MAX_BYTES, context)
        try:
            return convert.request_from_wire(rpc, wire)
        except RemoteProtocolError as error:
            await self._refuse_malformed(str(error), context)

    async def _serve_controller(self, rpc: AnyRpc, wire: bytes, context: _Context) -> bytes:
        assert self._controller_handler is not None
        if len(wire) > CONTROLLER_REQUEST_MAX_BYTES:
            await self._refuse_size(rpc, len(wire), CONTROLLER_REQUEST_MAX_BYTES, context)
        request: Message = rpc.request()
        try:
            request.ParseFromString(wire)
        except (DecodeError, RecursionError) as error:
            await self._refuse_malformed(f"{rpc}: not a {type(request).__name__}: {error}", context)
        reply: Message = await self._within_deadline(self._controller_handler(rpc, request), rpc, context)
        return reply.SerializeToString()

    async def _within_deadline(self, work: Awaitable[Any], rpc: AnyRpc, context: _Context) -> Any:
        remaining = context.time_remaining()
        allowed_s = HANDLING_MAX_S if remaining is None else min(remaining, DEADLINE_MAX_S)
        try:
            async with asyncio.timeout(allowed_s):
                return await self._handled(work, rpc, context)
        except TimeoutError:
            await _abort(context, grpc.StatusCode.DEADLINE_EXCEEDED, f"{rpc} took longer than {allowed_s:.3f} s")

    async def _handled(self, work: Awaitable[Any], rpc: AnyRpc, context: _Context) -> Any:
        """Return the result of a handler; its error ends the call with a status."""
        try:
            return await work
        except UnreachableError as error:
            await _abort(context, grpc.StatusCode.UNAVAILABLE, str(error))
        except RemoteProtocolError as error:
            await self._refuse_malformed(str(error), context)
        except Exception:
            logger.exception("a handler failed", method=rpc.name)  # gRPC would report it to the caller only
            await _abort(context, grpc.StatusCode.INTERNAL, f"{rpc} failed; see the log of this node")

    async def _refuse_size(self, rpc: AnyRpc, size: int, limit: int, context: _Context) -> NoReturn:
        await _abort(context, grpc.StatusCode.RESOURCE_EXHAUSTED, f"{rpc} of {size} bytes; the limit is {limit}")

    async def _refuse_malformed(self, problem: str, context: _Context) -> NoReturn:
        self._lines.warning("malformed_request", peer=context.peer(), problem=problem)
        await _abort(context, grpc.StatusCode.INVALID_ARGUMENT, problem)

    # Outgoing

    async def ask(self, to: Peer, request: Request, timeout_ms: int) -> Reply:
        correlation_id = next(self._correlation_ids)
        rpc = convert.rpc_of(request)
        wire = convert.request_to_wire(request, correlation_id)
        answer = await self._exchange(to.address, rpc, wire, timeout_ms)
        try:
            return convert.reply_from_wire(request, correlation_id, answer)
        except RemoteProtocolError as error:
            await self._distrust(to.address, str(error))
            raise UnreachableError(f"{to.address}: {error}") from error

    async def call(self, address: str, rpc: Rpc[RequestT, ReplyT], request: RequestT, timeout_ms: int) -> ReplyT:
        reply = rpc.reply()
        wire = await self._exchange(address, rpc, request.SerializeToString(), timeout_ms, connect_first=True)
        try:
            reply.ParseFromString(wire)
        except (DecodeError, RecursionError) as error:
            await self._distrust(address, f"reply to {rpc}: {error}")
            raise UnreachableError(f"{address}: reply to {rpc}: {error}") from error
        return reply

    async def _exchange(
        self, address: str, rpc: AnyRpc, wire: bytes, timeout_ms: int, *, connect_first: bool = False
    ) -> bytes:
        """Send a request and return its reply.

        connect_first: send only over an established connection, so that it is known whether the request was sent.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + max(timeout_ms, 1) / 1000
        if self._closed:
            raise UnreachableError("this node is stopping", was_sent=False)
        channel = self._channel(address)
        kind = Sender.NODE if rpc.service is Service.QUORUM else rpc.sender
        if channel.calls[kind] >= CALLS_PER_CHANNEL_MAX:
            problem = f"{address}: {CALLS_PER_CHANNEL_MAX} requests of this kind are in progress already"
            raise UnreachableError(problem, was_sent=False)
        channel.calls[kind] += 1
        was_sent = False
        try:
            if connect_first and not await connect(channel.grpc, deadline - loop.time()):
                raise UnreachableError(f"{address}: no connection", was_sent=False)
            was_sent = True
            if rpc is rpcs.FETCH and channel.fetches.is_free():
                with suppress(UnknownStreamError):
                    return await channel.fetches.exchange(wire, deadline - loop.time())
            send: Any = channel.grpc.unary_unary(rpc.path)  # bytes in, bytes out
            answer: bytes = await send(wire, timeout=max(deadline - loop.time(), 0.001))
            return answer
        except TimeoutError as error:
            raise UnreachableError(f"{address}: no reply to {rpc} within {timeout_ms} ms") from error
        except grpc.aio.AioRpcError as error:
            raise UnreachableError(f"{address}: {error.code().name}: {error.details()}") from error
        except grpc.aio.UsageError as error:  # the channel was closed before the call began
            raise UnreachableError(f"{address}: the connection was reset", was_sent=was_sent) from error
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            # Closing a channel cancels its calls, which looks as if this task had been cancelled.
            raise UnreachableError(f"{address}: the connection was reset", was_sent=was_sent) from None
        finally:
            channel.calls[kind] -= 1

    def _channel(self, address: str) -> _Channel:
        channel = self._channels.get(address)
        if channel is None:
            self._make_room()
            channel = self._channels[address] = _Channel(address)
        self._channels.move_to_end(address)
        return channel

    def _make_room(self) -> None:
        if len(self._channels) < CHANNELS_MAX:
            return
        idle = next((address for address, channel in self._channels.items() if not channel.calls.total()), None)
        if idle is None:
            raise UnreachableError(f"{CHANNELS_MAX} connections are in use already", was_sent=False)
        self._close_soon(self._channels.pop(idle))

    def _close_soon(self, channel: _Channel) -> None:
        self._closing = [task for task in self._closing if not task.done()]
        self._closing.append(asyncio.get_running_loop().create_task(channel.grpc.close()))

    async def _distrust(self, address: str, problem: str) -> None:
        """Log a protocol violation of a peer, and drop the connection to it."""
        self._lines.warning("malformed_reply", peer=address, problem=problem)
        channel = self._channels.pop(address, None)
        if channel is not None:
            await channel.grpc.close()

    async def reset(self) -> None:
        channels, self._channels = self._channels, OrderedDict()
        for channel in channels.values():
            await channel.grpc.close()

    async def close(self) -> None:
        """Stop serving, with `STOP_GRACE_S` for the calls in progress, then drop every connection."""
        self._closed = True
        if self._server is not None:
            await self._health.enter_graceful_shutdown()
            for stream in self._streams:
                stream.cancel()
            await self._server.stop(STOP_GRACE_S)
        await self.reset()
        await asyncio.gather(*self._closing)


async def _abort(context: _Context, code: grpc.StatusCode, details: str) -> NoReturn:
    """End the call with an error status, without a log line if the caller has already left.

    Raises:
        grpc.aio.AbortError: the exception that gRPC expects from a handler.
        CancelledError: the call has already ended, because its deadline passed or its connection was lost while this
            process was stalled.  No caller waits, so this avoids the three tracebacks that gRPC would log.
    """
    try:
        await context.abort(code, details)
    except grpc.aio.InternalError:
        raise asyncio.CancelledError from None
    raise AssertionError("abort returned")


def _handlers(service: Service, serve: Callable[[AnyRpc], _Serve]) -> grpc.GenericRpcHandler:
    """Return handlers for all RPCs of a service that are not streams; they take and return bytes."""
    unary = [rpc for rpc in RPCS if rpc.service is service and not rpc.is_stream]
    return grpc.method_handlers_generic_handler(
        service.value, {rpc.name: grpc.unary_unary_rpc_method_handler(serve(rpc)) for rpc in unary}
    )
