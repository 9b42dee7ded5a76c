"""The simulated network: the quorum's requests (`SimulatedTransport`) and the brokers' TCP streams.

Hosts are names.  A message takes `latency()` seconds, drawn from the seed.  `cut(a, b)` drops messages from a to b (one
direction), and `cut_replies(a, b)` only the replies of a to b.  Data of a stream across a cut is delayed, as by TCP,
and delivered after the cut heals.  A host that loses power sends no reset.  The other end of a stream receives a reset
only in answer to its next data, once the host is up again.  The same applies if a process is killed while the link to
the other end is cut.  Requests and replies can also be lost or delayed by chance (`loss`, `late`), and requests of the
quorum can arrive twice (`duplicates`).  Overlapping cuts are counted, so a link works again when all cuts have healed.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Callable
from contextvars import Context, copy_context
from random import Random
from typing import Any
from zlib import crc32

from google.protobuf.message import Message

from quorum.core.events import Peer
from quorum.core.messages import Reply, Request
from quorum.ports import ControllerHandler, Handler, UnreachableError
from quorum.transport import convert
from quorumlog.errors import ConfigError, RemoteProtocolError
from quorumlog.wire.rpcs import ReplyT, RequestT, Rpc
from simulation.kernel.loop import PROCESS, Process, SimulatedLoop

CONTROL_PORT = 9093

RESEND_S = 0.2
JOINED, CUT = 0.5, 0.2
"""The chance that arriving data is joined with data that waits, and the chance that it is cut in two."""

_FIRST_PORT = 30_000


def current_process() -> Process:
    process = PROCESS.get()
    assert process is not None, "only a simulated process has a network"
    return process


class Network:
    """All links of one simulation.  trace: called with a line for each delivered message, unless it is None."""

    def __init__(self, loop: SimulatedLoop, random: Random, trace: Callable[[str], None] | None) -> None:
        self.loop = loop
        self.random = random
        self.trace = trace
        self.pieces = Random(0)  # a separate source, so that cutting data changes no other random choice of a run
        self.delay_ms = (0.1, 2.0)  # uniform
        self.loss = self.duplicates = 0.0  # chance that a request or reply is lost; that a quorum request arrives twice
        self.late = (0.0, 0.0)  # chance that a request or reply is delayed, and the longest delay in seconds
        self.converts = False  # whether quorum messages are converted to the wire format of production and back
        self.watch_request: Callable[[str, Request], None] = _ignore
        self.watch_reply: Callable[[str, Request, Reply], None] = _ignore
        self.watch_arrival: Callable[[str, Request], None] = _ignore
        self._cuts: Counter[tuple[str, str]] = Counter()
        self._reply_cuts: Counter[tuple[str, str]] = Counter()
        self._listeners: dict[tuple[str, int], Listener] = {}
        self._transports: dict[tuple[str, int], SimulatedTransport] = {}
        self._streams: list[Stream] = []
        self._next_port = _FIRST_PORT
        loop.network = self

    def latency(self) -> float:
        """Return the seconds that the next message takes."""
        low, high = self.delay_ms
        return self.random.uniform(low, high) / 1000

    def request_latency(self) -> float:
        """Return the seconds that the next request or reply takes; some are delayed."""
        chance, longest_s = self.late
        extra = self.random.uniform(0, longest_s) if chance and self.random.random() < chance else 0.0
        return self.latency() + extra

    def cut(self, source: str, target: str) -> None:
        self._cuts[source, target] += 1

    def heal(self, source: str, target: str) -> None:
        self._cuts[source, target] = max(0, self._cuts[source, target] - 1)
        for stream in self._streams:
            stream.pump()

    def cut_replies(self, source: str, target: str) -> None:
        self._reply_cuts[source, target] += 1

    def heal_replies(self, source: str, target: str) -> None:
        self._reply_cuts[source, target] = max(0, self._reply_cuts[source, target] - 1)

    def is_cut(self, source: str, target: str) -> bool:
        return self._cuts.get((source, target), 0) > 0  # a missing key of a `Counter` costs a call

    def loses(self, source: str, target: str, *, reply: bool = False) -> bool:
        """Return whether a request or reply that is sent or arrives now is lost."""
        if self.is_cut(source, target) or (reply and self._reply_cuts.get((source, target), 0) > 0):
            return True
        return self.loss > 0 and self.random.random() < self.loss

    def free_port(self) -> int:
        self._next_port += 1
        return self._next_port

    # Streams

    def listen(self, factory: Callable[[], Any], host: Any, port: int) -> Listener:
        process = current_process()
        name = process.host if host in (None, "", "0.0.0.0") else str(host)
        port = port or self.free_port()
        if (name, port) in self._listeners:
            raise OSError(98, f"address in use: {name}:{port}")
        listener = Listener(self, process, copy_context(), factory, name, port)
        self._listeners[name, port] = listener
        return listener

    def unlisten(self, listener: Listener) -> None:
        if self._listeners.get((listener.host, listener.port)) is listener:
            del self._listeners[listener.host, listener.port]

    async def connect(self, factory: Callable[[], Any], host: str, port: int) -> tuple[Stream, Any]:
        process = current_process()
        await asyncio.sleep(self.latency())
        while self.is_cut(process.host, host) or self.is_cut(host, process.host):  # noqa: ASYNC110
            await asyncio.sleep(RESEND_S)  # send the SYN again, as TCP does
        listener = self._listeners.get((host, port)) or self._door((host, port))
        if listener is None or not listener.process.alive:
            raise ConnectionRefusedError(111, f"nobody listens at {host}:{port}")
        ours = Stream(self, process, copy_context(), (process.host, self.free_port()))
        theirs = Stream(self, listener.process, listener.context, (host, port))
        ours.peer, theirs.peer = theirs, ours
        self._streams += [ours, theirs]
        protocol = ours.open(factory)
        self.loop.call_later(self.latency(), theirs.open, listener.factory, context=listener.context.copy())
        if self.trace is not None:
            self.trace(f"connect {process.host} -> {host}:{port}")
        return ours, protocol

    def _door(self, address: tuple[str, int]) -> Listener | None:
        """Return a listener for a transport that serves; it accepts connections and ignores their data."""
        transport = self._transports.get(address)
        if transport is None or not transport.is_serving:
            return None
        return Listener(self, transport.process, transport.context, asyncio.Protocol, *address)

    def forget(self, stream: Stream) -> None:
        if stream in self._streams:
            self._streams.remove(stream)

    def reset_process(self, process: Process, *, power: bool = False) -> None:
        """Remove the listeners and transports of a process that has ended.

        Each peer sees a reset.  After a loss of power, or behind a cut, a peer sees it only when it sends data.
        """
        for listener in [one for one in self._listeners.values() if one.process is process]:
            self.unlisten(listener)
        for address in [at for at, one in self._transports.items() if one.process is process]:
            del self._transports[address]
        for stream in [one for one in self._streams if one.process is process]:
            self.forget(stream)
            if stream.peer is None:
                continue
            error = ConnectionResetError(104, f"the process on {process.host} has ended")
            if power or self.is_cut(process.host, stream.peer.name[0]):
                stream.peer.orphan(error, is_host_down=power)
            else:
                stream.peer.lose_later(error)

    def is_up(self, host: str) -> bool:
        """Return whether a process on the host listens, so that the host answers."""
        processes = [
            *(one.process for one in self._listeners.values()),
            *(one.process for one in self._transports.values()),
        ]
        return any(one.host == host and one.alive for one in processes)

    def reset_host(self, host: str) -> None:
        """Break every stream from the host or to it, at both ends."""
        for stream in [one for one in self._streams if one.process.host == host and one.peer is not None]:
            assert stream.peer is not None
            for end in (stream, stream.peer):
                self.forget(end)
                end.lose_later(ConnectionResetError(104, f"reset at {host}"))

    # Requests

    def bind(self, transport: SimulatedTransport, address: tuple[str, int]) -> None:
        if address in self._transports:
            raise ConfigError(f"{address[0]}:{address[1]} is in use")
        self._transports[address] = transport

    def unbind(self, transport: SimulatedTransport) -> None:
        for address in [at for at, one in self._transports.items() if one is transport]:
            del self._transports[address]

    def transport_at(self, address: str) -> SimulatedTransport | None:
        host, _, port = address.rpartition(":")
        return self._transports.get((host, int(port)))


class Listener:
    """A listening address; `loop.create_server` returns it."""

    def __init__(
        self, network: Network, process: Process, context: Context, factory: Callable[[], Any], host: str, port: int
    ) -> None:
        self.network = network
        self.process = process
        self.context = context
        self.factory = factory
        self.host = host
        self.port = port
        self.sockets = [_Socket(host, port)]

    def close(self) -> None:
        self.network.unlisten(self)

    def is_serving(self) -> bool:
        return True

    async def start_serving(self) -> None:
        pass

    async def wait_closed(self) -> None:
        pass


class _Socket:
    """The part of a socket that returns its name and accepts options."""

    def __init__(self, host: str, port: int) -> None:
        self._name = (host, port)

    def getsockname(self) -> tuple[str, int]:
        return self._name

    def setsockopt(self, *_: Any) -> None:
        pass

    def fileno(self) -> int:
        return -1


class Stream(asyncio.Transport):
    """One end of a TCP connection."""

    peer: Stream | None = None

    def __init__(self, network: Network, process: Process, context: Context, name: tuple[str, int]) -> None:
        super().__init__()
        self.network = network
        self.process = process
        self.context = context
        self.name = name
        self.label = f"{name[0]}:{name[1]}"
        self._protocol: Any = None
        self._outgoing: deque[tuple[float, bytes | None]] = deque()  # None is the end of the stream
        self._incoming: deque[bytes | None] = deque()
        self._reading = True
        self._closing = False
        self._lost = False
        self._reset: Exception | None = None  # the error that ended the connection before it was accepted
        self._orphaned: Exception | None = None  # the error of the next write, if the other end no longer exists
        self._is_peer_down = False
        self._pumping = False

    def open(self, factory: Callable[[], Any]) -> Any:
        """Connect the stream to a protocol.

        If the stream was reset before, it is lost directly afterwards, as if the first read had failed.
        """
        self._protocol = factory()
        self._protocol.connection_made(self)
        if self._reset is not None:
            self.network.loop.call_soon(self._lose, self._reset)
        self._drain()
        return self._protocol

    # The interface of `asyncio.Transport`

    def write(self, data: Any) -> None:
        if self._closing or self._lost or not data:
            return
        self._outgoing.append((self.network.loop.true_time() + self.network.latency(), bytes(data)))
        self.pump()

    def writelines(self, list_of_data: Any) -> None:
        self.write(b"".join(bytes(data) for data in list_of_data))

    def write_eof(self) -> None:
        self.close()

    def can_write_eof(self) -> bool:
        return False

    def get_write_buffer_size(self) -> int:
        return sum(len(data) for _, data in self._outgoing if data)

    def get_write_buffer_limits(self) -> tuple[int, int]:
        return 0, 1 << 30

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def pause_reading(self) -> None:
        self._reading = False

    def resume_reading(self) -> None:
        self._reading = True
        self.network.loop.call_soon(self._drain)

    def is_reading(self) -> bool:
        return self._reading

    def is_closing(self) -> bool:
        return self._closing or self._lost

    def close(self) -> None:
        if self._closing or self._lost:
            return
        self._closing = True
        self._outgoing.append((self.network.loop.true_time() + self.network.latency(), None))
        self.pump()
        self.network.loop.call_soon(self._lose, None)

    def abort(self) -> None:
        self.close()

    def set_protocol(self, protocol: Any) -> None:
        self._protocol = protocol

    def get_protocol(self) -> Any:
        return self._protocol

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        match name:
            case "peername":
                return self.peer.name if self.peer is not None else default
            case "sockname":
                return self.name
            case "socket":
                return _Socket(*self.name)
        return default

    # The wire

    def pump(self) -> None:
        """Deliver, in order, the data whose travel time has passed; nothing while the link is cut."""
        if self._pumping or not self._outgoing or self.peer is None:
            return
        if self.network.is_cut(self.name[0], self.peer.name[0]):
            return
        self._pumping = True
        due = max(self._outgoing[0][0], self.network.loop.true_time())
        self.network.loop.call_at_true_time(due, self._deliver, context=Context())

    def _deliver(self) -> None:
        self._pumping = False
        network, peer, outgoing = self.network, self.peer, self._outgoing
        if peer is None or network.is_cut(self.name[0], peer.name[0]):
            return
        if self._orphaned is not None:
            self._send_to_nobody(peer.name[0], self._orphaned)
            return
        now = network.loop.true_time()
        while outgoing and outgoing[0][0] <= now:
            data = outgoing.popleft()[1]
            if network.trace is not None:
                what = "end" if data is None else f"{len(data)} bytes {crc32(data):08x}"
                network.trace(f"{what} {self.label} -> {peer.label}")
            if not peer._lost:
                peer._arrives(data)
        network.loop.call_soon(peer._drain, context=peer.context.copy())
        self.pump()

    def _arrives(self, data: bytes | None) -> None:
        """Queue data for the protocol.  As in TCP, data of two writes may be joined, and data may be cut anywhere."""
        random, waiting = self.network.pieces, self._incoming
        if data is None:
            waiting.append(None)
            return
        last = waiting[-1] if waiting else None
        if last is not None and random.random() < JOINED:
            waiting.pop()
            data = last + data
        if len(data) > 1 and random.random() < CUT:
            place = random.randrange(1, len(data))
            waiting.append(data[:place])
            data = data[place:]
        waiting.append(data)

    def orphan(self, error: Exception, *, is_host_down: bool) -> None:
        """Record that the other end has ended without a reset; `error` will answer the next data."""
        self._orphaned, self._is_peer_down = error, is_host_down
        self.pump()

    def _send_to_nobody(self, host: str, error: Exception) -> None:
        """Send data again until the host of the other end answers with a reset, as TCP does."""
        if self._is_peer_down and not self.network.is_up(host):
            self.network.loop.call_later(RESEND_S, self.pump, context=Context())
            return
        self._outgoing.clear()
        self.network.forget(self)
        self.lose_later(error)

    def _drain(self) -> None:
        incoming = self._incoming
        while incoming and self._reading and not self._lost and self._protocol is not None:
            data = incoming.popleft()
            if data is None:
                self._lose(None)
            elif isinstance(self._protocol, asyncio.BufferedProtocol):
                self._fill(data)
            else:
                self._protocol.data_received(data)

    def _fill(self, data: bytes) -> None:
        view = memoryview(data)
        while view and not self._lost:
            buffer = memoryview(self._protocol.get_buffer(len(view)))
            size = min(len(buffer), len(view))
            buffer[:size] = view[:size]
            self._protocol.buffer_updated(size)
            view = view[size:]

    def lose_later(self, error: Exception | None) -> None:
        delay = self.network.latency()
        self.network.loop.call_later(delay, self._lose, error, context=self.context.copy())

    def _lose(self, error: Exception | None) -> None:
        if self._lost:
            return
        if self._protocol is None:
            self._reset = error
            return
        self._lost = True
        if not self._outgoing:
            self.network.forget(self)
        if self._protocol is not None:
            self._protocol.connection_lost(error)


class SimulatedTransport:
    """`quorum.ports.Transport` over the simulated network."""

    def __init__(self, network: Network, address: str) -> None:
        host, _, port = address.rpartition(":")
        self.network = network
        self.address = (host, int(port))
        self.process = current_process()
        self._name = address
        self._serving = False
        self._handler: Handler | None = None
        self._controller_handler: ControllerHandler | None = None
        self.context = copy_context()

    @property
    def is_serving(self) -> bool:
        return self._serving

    def serve(self, handler: Handler) -> None:
        self._handler = handler

    def serve_controller(self, handler: ControllerHandler) -> None:
        self._controller_handler = handler

    def bind(self) -> str:
        if self.network.transport_at(self._name) is not self:
            self.network.bind(self, self.address)
        return self._name

    async def start(self) -> None:
        self.bind()
        self._serving = True

    async def ask(self, to: Peer, request: Request, timeout_ms: int) -> Reply:
        network = self.network
        if network.converts:
            request = _converted_request(request)
        network.watch_request(self.process.host, request)

        async def handle(target: SimulatedTransport) -> Reply:
            if target._handler is None:
                raise UnreachableError(f"{to.address} does not serve the quorum")
            network.watch_arrival(target.process.host, request)
            reply = await target._handler(request)
            network.watch_reply(target.process.host, request, reply)
            return reply

        reply: Reply = await self.exchange(to.address, handle, timeout_ms, type(request).__name__, may_repeat=True)
        return _converted_reply(request, reply) if network.converts else reply

    async def call(self, address: str, rpc: Rpc[RequestT, ReplyT], request: RequestT, timeout_ms: int) -> ReplyT:
        wire = request.SerializeToString(deterministic=True)

        async def handle(target: SimulatedTransport) -> Message:
            if target._controller_handler is None:
                raise UnreachableError(f"{address} does not serve the controller")
            copy = type(request)()
            copy.ParseFromString(wire)
            return await target._controller_handler(rpc, copy)

        label = f"{rpc} {crc32(wire):08x}"
        reply: ReplyT = await self.exchange(address, handle, timeout_ms, rpc.name, label)
        return reply

    async def exchange(
        self, address: str, handle: Any, timeout_ms: int, name: str, label: str = "", *, may_repeat: bool = False
    ) -> Any:
        """Send a request and return its reply, each with its own delay and chance to be lost.

        `handle(transport)` runs at the other end, by chance twice if the request `may_repeat`.
        label: for the trace, in place of `name`.

        Raises:
            UnreachableError: nobody serves at the address, or no reply arrived in time.
        """
        loop, network = self.network.loop, self.network
        answer = loop.create_future()
        ours = copy_context()
        source = self.process.host

        def deliver(result: Any, error: Exception | None) -> None:
            if answer.done():
                return
            if error is not None:
                was_sent = not isinstance(error, ConnectionRefusedError)
                answer.set_exception(UnreachableError(str(error), was_sent=was_sent))
            else:
                answer.set_result(result)

        async def at_target(target: SimulatedTransport) -> None:
            try:
                result, error = await handle(target), None
            except UnreachableError as problem:
                result, error = None, problem
            if not network.loses(target.process.host, source, reply=True):
                if network.trace is not None:
                    network.trace(f"{label or name} reply {target.process.host} -> {source}")
                loop.call_later(network.request_latency(), deliver, result, error, context=ours.copy())

        def arrive() -> None:
            target = network.transport_at(address)
            if target is None or not target._serving:
                loop.call_later(network.latency(), deliver, None, ConnectionRefusedError(address), context=ours.copy())
                return
            if network.loses(source, target.process.host):
                return
            if network.trace is not None:
                network.trace(f"{label or name} {source} -> {target.process.host}")
            loop.create_task(at_target(target), context=target.context.copy())

        def give_up() -> None:
            if not answer.done():
                problem = f"{address} did not answer {name} within {timeout_ms} ms"
                answer.set_exception(UnreachableError(problem))

        loop.call_later(network.request_latency(), arrive, context=Context())
        if may_repeat and network.duplicates and network.random.random() < network.duplicates:
            loop.call_later(network.request_latency() + network.latency(), arrive, context=Context())
        deadline = loop.call_later(timeout_ms / 1000, give_up)
        try:
            return await answer
        finally:
            deadline.cancel()

    async def reset(self) -> None:
        """Do nothing, because there are no connections to drop."""

    async def close(self) -> None:
        self._serving = False
        self.network.unbind(self)


_CORRELATION_ID = 7


def _converted_request(request: Request) -> Request:
    """Return the request as the other end decodes it, and assert that it equals the request that was sent."""
    rpc = convert.rpc_of(request)
    try:
        _, converted = convert.request_from_wire(rpc, convert.request_to_wire(request, _CORRELATION_ID))
    except RemoteProtocolError as error:
        raise AssertionError(f"{request} does not pass its own check: {error}") from error
    assert converted == request, f"{request} arrives as {converted}"
    return converted


def _converted_reply(request: Request, reply: Reply) -> Reply:
    rpc = convert.rpc_of(request)
    try:
        wire = convert.reply_to_wire(rpc, reply, _CORRELATION_ID)
        converted = convert.reply_from_wire(request, _CORRELATION_ID, wire)
    except RemoteProtocolError as error:
        raise AssertionError(f"{reply} does not pass its own check: {error}") from error
    assert converted == reply, f"{reply} arrives as {converted}"
    return converted


def _ignore(*_: Any) -> None:
    pass
