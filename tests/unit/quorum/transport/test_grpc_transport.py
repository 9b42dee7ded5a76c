"""The gRPC transport: ports in use, garbage, sizes, deadlines, connections, health, reflection, and fetch streams."""

from __future__ import annotations

import asyncio
import gzip
from collections.abc import AsyncIterator, Callable
from typing import Any

import grpc
import grpc.aio
import pytest
from google.protobuf.message import Message
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2

from metadata.controller.service import TIMEOUT_MAX_MS
from quorum.core.events import Peer
from quorum.core.messages import ErrorCode, Fetch, FetchReply, Reply, Request, Vote, VoteReply
from quorum.core.types import LogEnd
from quorum.ports import UnreachableError
from quorum.transport import convert, fetch_stream
from quorum.transport import grpc as grpc_transport
from quorum.transport.grpc import CONTROLLER_REQUEST_MAX_BYTES, QUORUM_REQUEST_MAX_BYTES, GrpcTransport
from quorumlog.errors import ConfigError
from quorumlog.runtime.addresses import Address
from quorumlog.runtime.grpc import MessageLimits, bind, make_channel, make_server
from quorumlog.wire import rpcs
from quorumlog.wire.rpcs import AnyRpc
from quorumlog.wire.v1 import controller_pb2
from tests.contract.samples import KEYS, KNOWN, SENDER

VOTE = Vote(SENDER, KEYS[1], 3, LogEnd(2, 17), False)
VOTE_PATH = "/quorumlog.v1.Quorum/Vote"
FETCH = Fetch(SENDER, 1, 3, 4, 0, 2, 9, 500, 1 << 20, "127.0.0.1:9001")
FETCHED = FetchReply(ErrorCode.NONE, KNOWN, high_watermark=4)


class Fixture:
    def __init__(self) -> None:
        self.requests: list[Request] = []
        self.transport = GrpcTransport("127.0.0.1:0")
        self.transport.serve(self.handle)
        self.transport.serve_controller(self.control)
        self.channel: grpc.aio.Channel

    async def handle(self, request: Request) -> Reply:
        self.requests.append(request)
        if isinstance(request, Fetch):
            return FETCHED
        return VoteReply(ErrorCode.NONE, KNOWN, True)

    async def control(self, rpc: AnyRpc, request: Any) -> Any:
        return controller_pb2.DescribeBrokersReply(cluster_id=rpc.name)

    async def raw(self, path: str, body: bytes, **options: Any) -> bytes:
        send: Any = self.channel.unary_unary(path)
        answer: bytes = await send(body, timeout=10, **options)
        return answer

    async def refused(self, path: str, body: bytes, **options: Any) -> grpc.StatusCode:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await self.raw(path, body, **options)
        return caught.value.code()


@pytest.fixture
async def client() -> AsyncIterator[GrpcTransport]:
    """A transport that only sends."""
    transport = GrpcTransport("127.0.0.1:0")
    yield transport
    await transport.close()


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not holds():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


@pytest.fixture
async def served() -> AsyncIterator[Fixture]:
    fixture = Fixture()
    await fixture.transport.start()
    fixture.channel = make_channel(fixture.transport.address)
    yield fixture
    await fixture.channel.close()
    await fixture.transport.close()


async def test_the_only_message_about_a_port_in_use_names_its_address(
    served: Fixture, capfd: pytest.CaptureFixture[str]
) -> None:
    address = served.transport.address
    second = GrpcTransport(address)
    second.serve(served.handle)
    with pytest.raises(ConfigError, match=f"cannot listen on {address}: Address already in use"):
        await second.start()
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("host", ["192.0.2.7", "no-such-host.invalid"])
async def test_the_refusal_to_listen_on_an_address_of_another_machine_names_the_address(host: str) -> None:
    with pytest.raises(ConfigError, match=f"cannot listen on {host}:7777: "):
        GrpcTransport(f"{host}:7777").bind()


async def test_port_0_reports_the_port_that_was_bound() -> None:
    transport = GrpcTransport("127.0.0.1:0")
    address = transport.bind()
    assert address == transport.bind() == transport.address
    assert int(address.rpartition(":")[2]) > 0
    await transport.close()


async def test_malformed_requests_get_invalid_argument_and_the_server_continues(served: Fixture) -> None:
    bodies = [b"\xff" * 40, convert.request_to_wire(VOTE, 1)[:-3], b"\x0a\x02\xff\xff", b"\x0b" * 5000, b""]
    for body in bodies:
        assert await served.refused(VOTE_PATH, body) is grpc.StatusCode.INVALID_ARGUMENT
    assert served.requests == []
    assert await served.raw(VOTE_PATH, convert.request_to_wire(VOTE, 1))
    assert served.requests == [VOTE]


async def test_malformed_requests_to_the_controller_get_invalid_argument(served: Fixture) -> None:
    path = "/quorumlog.v1.Controller/DescribeBrokers"
    assert await served.refused(path, b"\xff\xff\xff\xff") is grpc.StatusCode.INVALID_ARGUMENT
    reply = controller_pb2.DescribeBrokersReply.FromString(await served.raw(path, b""))
    assert reply.cluster_id == rpcs.DESCRIBE_BROKERS.name


async def test_the_size_of_requests_is_limited_for_each_service(served: Fixture) -> None:
    exhausted = grpc.StatusCode.RESOURCE_EXHAUSTED
    assert await served.refused(VOTE_PATH, bytes(QUORUM_REQUEST_MAX_BYTES + 1)) is exhausted
    path = "/quorumlog.v1.Controller/DescribeBrokers"
    assert await served.refused(path, bytes(CONTROLLER_REQUEST_MAX_BYTES + 1)) is exhausted
    assert await served.raw(VOTE_PATH, convert.request_to_wire(VOTE, 1))


async def test_a_compressed_bomb_is_refused(served: Fixture) -> None:
    bomb = bytes(100 << 20)
    assert len(gzip.compress(bomb)) < 1 << 20
    channel = make_channel(
        served.transport.address, limits=MessageLimits(receive_max_bytes=1 << 30, send_max_bytes=1 << 30)
    )
    send: Any = channel.unary_unary(VOTE_PATH)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await send(bomb, timeout=30, compression=grpc.Compression.Gzip)
    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    await channel.close()


async def test_a_huge_header_is_refused(served: Fixture) -> None:
    status = await served.refused(VOTE_PATH, b"", metadata=(("x-padding", "p" * 20_000),))
    assert status is grpc.StatusCode.RESOURCE_EXHAUSTED


@pytest.mark.parametrize("path", ["/quorumlog.v1.Quorum/Nothing", "/quorumlog.v1.Nothing/Vote"])
async def test_an_unknown_method_is_unimplemented(served: Fixture, path: str) -> None:
    assert await served.refused(path, b"") is grpc.StatusCode.UNIMPLEMENTED


async def test_a_call_without_a_deadline_is_ended(served: Fixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grpc_transport, "HANDLING_MAX_S", 0.05)

    async def never(request: Request) -> Reply:
        await asyncio.Event().wait()
        raise AssertionError("the event is never set")

    served.transport._handler = never
    send: Any = served.channel.unary_unary(VOTE_PATH)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await send(convert.request_to_wire(VOTE, 1))
    assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED


async def test_a_call_may_take_as_long_as_its_own_deadline(
    served: Fixture, client: GrpcTransport, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise a request with a long time limit would end without a named outcome while the controller works on it."""
    monkeypatch.setattr(grpc_transport, "HANDLING_MAX_S", 0.05)

    async def slow(rpc: AnyRpc, request: Message) -> Message:
        await asyncio.sleep(0.2)
        return controller_pb2.DescribeBrokersReply(cluster_id="late")

    served.transport._controller_handler = slow
    address, request = served.transport.address, controller_pb2.DescribeBrokersRequest()
    assert (await client.call(address, rpcs.DESCRIBE_BROKERS, request, 5000)).cluster_id == "late"
    assert grpc_transport.DEADLINE_MAX_S * 1000 > TIMEOUT_MAX_MS, "the controller's service answers first"
    monkeypatch.setattr(grpc_transport, "DEADLINE_MAX_S", 0.05)
    with pytest.raises(UnreachableError, match="DEADLINE_EXCEEDED"):
        await client.call(address, rpcs.DESCRIBE_BROKERS, request, 5000)


class EndedCall:
    """The context of a call whose client has disconnected: gRPC reports this when the call ends with a status."""

    def time_remaining(self) -> float:
        return 0.01

    async def abort(self, code: grpc.StatusCode, details: str) -> None:
        raise grpc.aio.InternalError("Failed execute_batch")


@pytest.mark.parametrize("failure", [None, UnreachableError("gone"), RuntimeError("broken")])
async def test_a_call_that_ended_while_this_process_was_stalled_is_dropped(
    served: Fixture, failure: Exception | None
) -> None:
    async def work() -> None:
        if failure is not None:
            raise failure
        await asyncio.Event().wait()

    ended: Any = EndedCall()
    with pytest.raises(asyncio.CancelledError) as caught:
        await served.transport._within_deadline(work(), rpcs.VOTE, ended)
    assert caught.value.__cause__ is None


async def test_a_malformed_reply_is_reported_as_unreachable() -> None:
    async def nonsense(body: bytes, context: Any) -> bytes:
        return b"\xff\xff"

    server = make_server(
        [
            grpc.method_handlers_generic_handler(
                rpcs.VOTE.service.value, {rpcs.VOTE.name: grpc.unary_unary_rpc_method_handler(nonsense)}
            )
        ]
    )
    port = bind(server, Address("127.0.0.1", 0))
    await server.start()
    client = GrpcTransport("127.0.0.1:0")
    for _ in range(2):
        with pytest.raises(UnreachableError, match="reply to Vote: not a VoteReply"):
            await client.ask(Peer(1, f"127.0.0.1:{port}"), VOTE, 5000)
    await client.close()
    await server.stop(None)


async def test_a_reset_ends_calls_in_progress_as_unreachable(served: Fixture) -> None:
    arrived = asyncio.Event()

    async def never(request: Request) -> Reply:
        arrived.set()
        await asyncio.Event().wait()
        raise AssertionError("the event is never set")

    served.transport._handler = never
    client = GrpcTransport("127.0.0.1:0")
    asking = asyncio.ensure_future(client.ask(Peer(1, served.transport.address), VOTE, 60_000))
    await arrived.wait()
    await client.reset()
    with pytest.raises(UnreachableError, match="reset"):
        await asking
    await client.close()


async def test_channels_are_limited_and_the_least_recently_used_idle_one_is_closed(
    served: Fixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(grpc_transport, "CHANNELS_MAX", 2)
    port = served.transport.address.rpartition(":")[2]
    client = GrpcTransport("127.0.0.1:0")
    for host in ("127.0.0.1", "localhost", "127.0.0.1"):
        await client.ask(Peer(1, f"{host}:{port}"), VOTE, 5000)
    with pytest.raises(UnreachableError):
        await client.ask(Peer(1, "127.0.0.1:1"), VOTE, 5000)
    assert list(client._channels) == [f"127.0.0.1:{port}", "127.0.0.1:1"]
    await client.close()


async def test_a_connection_with_a_request_in_progress_is_not_closed_for_another(
    served: Fixture, client: GrpcTransport, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(grpc_transport, "CHANNELS_MAX", 1)
    arrived, committed = asyncio.Event(), asyncio.Event()

    async def control(rpc: AnyRpc, request: Message) -> Message:
        arrived.set()
        await committed.wait()
        reply: Message = rpc.reply_of(controller_pb2.Result())
        return reply

    monkeypatch.setattr(served.transport, "_controller_handler", control)
    request = controller_pb2.CreateTopicsRequest()
    creation = asyncio.ensure_future(client.call(served.transport.address, rpcs.CREATE_TOPICS, request, 10_000))
    await arrived.wait()
    with pytest.raises(UnreachableError, match="1 connections are in use already"):
        await client.ask(Peer(1, "127.0.0.1:1"), VOTE, 5000)
    committed.set()
    await creation


async def test_requests_of_clients_never_block_requests_of_brokers_or_the_quorum(
    served: Fixture, client: GrpcTransport, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A commit that all these clients wait for may need the next fetch."""
    monkeypatch.setattr(grpc_transport, "CALLS_PER_CHANNEL_MAX", 2)
    waiting, committed = 0, asyncio.Event()

    async def control(rpc: AnyRpc, request: Message) -> Message:
        nonlocal waiting
        if rpc is rpcs.CREATE_TOPICS:
            waiting += 1
            await committed.wait()
        reply: Message = rpc.reply_of(controller_pb2.Result())
        return reply

    monkeypatch.setattr(served.transport, "_controller_handler", control)
    address = served.transport.address
    request = controller_pb2.CreateTopicsRequest()
    calls = [asyncio.ensure_future(client.call(address, rpcs.CREATE_TOPICS, request, 10_000)) for _ in range(2)]
    await until(lambda: waiting == 2)
    with pytest.raises(UnreachableError, match="2 requests of this kind are in progress already") as refused:
        await client.call(address, rpcs.CREATE_TOPICS, request, 10_000)
    assert not refused.value.was_sent
    assert await client.ask(Peer(1, address), FETCH, 10_000) == FETCHED
    assert await client.call(address, rpcs.BROKER_HEARTBEAT, controller_pb2.BrokerHeartbeatRequest(), 10_000)
    committed.set()
    await asyncio.gather(*calls)


async def test_requests_that_have_ended_make_room_for_others(
    served: Fixture, client: GrpcTransport, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(grpc_transport, "CALLS_PER_CHANNEL_MAX", 1)
    leader = Peer(1, served.transport.address)
    for _ in range(3):
        await client.ask(leader, VOTE, 10_000)
        assert await client.ask(leader, FETCH, 10_000) == FETCHED


async def test_health_follows_readiness(served: Fixture) -> None:
    async def status(service: str) -> int:
        body = health_pb2.HealthCheckRequest(service=service).SerializeToString()
        return health_pb2.HealthCheckResponse.FromString(await served.raw("/grpc.health.v1.Health/Check", body)).status

    names = ("", "quorumlog.v1.Quorum", "quorumlog.v1.Controller")
    assert [await status(name) for name in names] == [health_pb2.HealthCheckResponse.NOT_SERVING] * 3
    served.transport.is_serving = lambda: True
    assert [await status(name) for name in names] == [health_pb2.HealthCheckResponse.SERVING] * 3


async def test_a_health_watch_reports_changes(served: Fixture) -> None:
    def states() -> Any:
        watch: Any = served.channel.unary_stream("/grpc.health.v1.Health/Watch")
        return watch(health_pb2.HealthCheckRequest(service="").SerializeToString(), timeout=20)

    async def hear(call: Any) -> int:
        return health_pb2.HealthCheckResponse.FromString(await call.read()).status

    one, other = states(), states()
    assert await hear(one) == await hear(other) == health_pb2.HealthCheckResponse.NOT_SERVING
    served.transport.is_serving = lambda: True
    assert await hear(one) == await hear(other) == health_pb2.HealthCheckResponse.SERVING
    one.cancel()
    served.transport.is_serving = lambda: False
    assert await hear(other) == health_pb2.HealthCheckResponse.NOT_SERVING
    other.cancel()
    async with asyncio.timeout(10):
        while served.transport._health._looking is not None:  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def test_a_failing_handler_causes_an_internal_error(served: Fixture) -> None:
    async def broken(request: Request) -> Reply:
        raise ValueError("a bug")

    served.transport._handler = broken
    assert await served.refused(VOTE_PATH, convert.request_to_wire(VOTE, 1)) is grpc.StatusCode.INTERNAL


async def test_reflection_lists_the_services(served: Fixture) -> None:
    async def questions() -> AsyncIterator[bytes]:
        yield reflection_pb2.ServerReflectionRequest(list_services="").SerializeToString()

    path = "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"
    call: Any = served.channel.stream_stream(path)
    async for answer in call(questions(), timeout=10):
        found = reflection_pb2.ServerReflectionResponse.FromString(answer).list_services_response.service
        assert {service.name for service in found} >= {"quorumlog.v1.Quorum", "quorumlog.v1.Controller"}
        break
    else:
        pytest.fail("no answer")


# The stream of fetches


async def test_the_fetches_of_a_node_share_one_stream(served: Fixture, client: GrpcTransport) -> None:
    peer = Peer(1, served.transport.address)
    assert [await client.ask(peer, FETCH, 5000) for _ in range(3)] == [FETCHED] * 3
    (stream,) = served.transport._streams
    await client.ask(peer, VOTE, 5000)
    await client.ask(peer, FETCH, 5000)
    assert served.transport._streams == {stream}
    await client.reset()
    await until(lambda: not served.transport._streams)
    assert await client.ask(peer, FETCH, 5000) == FETCHED
    assert len(served.transport._streams) == 1


async def test_a_stream_that_is_idle_is_ended_and_opened_again(
    served: Fixture, client: GrpcTransport, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(grpc_transport, "HANDLING_MAX_S", 0.05)
    peer = Peer(1, served.transport.address)
    for _ in range(2):
        assert await client.ask(peer, FETCH, 5000) == FETCHED
        await until(lambda: not served.transport._streams)
        await until(lambda: client._channels[served.transport.address].fetches._call.done())


async def test_a_stream_in_use_outlives_the_limit_for_idle_ones(
    served: Fixture, client: GrpcTransport, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(grpc_transport, "HANDLING_MAX_S", 1.0)
    monkeypatch.setattr(grpc_transport, "STREAM_SLACK_S", 0.0)
    loop = asyncio.get_running_loop()
    began = loop.time()
    await client.ask(Peer(1, served.transport.address), FETCH, 5000)
    (stream,) = served.transport._streams
    while loop.time() < began + 2.0:
        await client.ask(Peer(1, served.transport.address), FETCH, 5000)
        await asyncio.sleep(0.02)
    assert served.transport._streams == {stream}


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"\xff" * 40, grpc.StatusCode.INVALID_ARGUMENT),
        (bytes(QUORUM_REQUEST_MAX_BYTES + 1), grpc.StatusCode.RESOURCE_EXHAUSTED),
    ],
)
async def test_a_malformed_request_on_a_stream_ends_only_this_stream(
    served: Fixture, client: GrpcTransport, body: bytes, status: grpc.StatusCode
) -> None:
    await client.ask(Peer(1, served.transport.address), FETCH, 5000)
    open_call: Any = served.channel.stream_stream(rpcs.FETCH_STREAM.path)
    stranger = open_call(timeout=10)
    await stranger.write(convert.request_to_wire(FETCH, 7))
    assert convert.reply_from_wire(FETCH, 7, await stranger.read()) == FETCHED
    await stranger.write(body)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await stranger.read()
    assert caught.value.code() is status
    assert await client.ask(Peer(1, served.transport.address), FETCH, 5000) == FETCHED
    assert served.requests == [FETCH] * 3


async def test_a_handler_that_refuses_ends_the_stream(served: Fixture, client: GrpcTransport) -> None:
    async def refuses(request: Request) -> Reply:
        raise UnreachableError("too many requests")

    peer = Peer(1, served.transport.address)
    served.transport._handler = refuses
    with pytest.raises(UnreachableError, match="UNAVAILABLE: too many requests"):
        await client.ask(peer, FETCH, 5000)
    served.transport._handler = served.handle
    assert await client.ask(peer, FETCH, 5000) == FETCHED


async def test_a_node_that_stops_ends_its_streams_at_once(
    served: Fixture, client: GrpcTransport, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(grpc_transport, "STOP_GRACE_S", 60.0)
    handling = asyncio.Event()

    async def never(request: Request) -> Reply:
        handling.set()
        await asyncio.Event().wait()
        raise AssertionError("the event is never set")

    peer = Peer(1, served.transport.address)
    await client.ask(peer, FETCH, 5000)
    idle = GrpcTransport("127.0.0.1:0")
    await idle.ask(peer, FETCH, 5000)
    served.transport._handler = never
    asking = asyncio.ensure_future(client.ask(peer, FETCH, 60_000))
    await handling.wait()
    await until(lambda: len(served.transport._streams) == 2)
    async with asyncio.timeout(30):  # half of the grace period
        await served.transport.close()
    with pytest.raises(UnreachableError, match="UNAVAILABLE: this node is stopping"):
        await asking
    await idle.close()


async def test_a_node_that_stops_does_not_cancel_a_reply_that_is_being_written(served: Fixture) -> None:
    """gRPC cannot abort a stream during a write, so the stream would last until the end of the grace period."""
    is_writing, may_end = asyncio.Event(), asyncio.Event()

    class Context:
        aborted: grpc.StatusCode | None = None
        written = 0

        async def read(self) -> bytes:
            return convert.request_to_wire(FETCH, 1)

        async def write(self, wire: bytes) -> None:
            is_writing.set()
            await may_end.wait()
            self.written += 1

        async def abort(self, code: grpc.StatusCode, details: str) -> None:
            self.aborted = code
            raise grpc.aio.AbortError

    context = Context()
    stream = asyncio.ensure_future(served.transport._serve_fetches(None, context))
    async with asyncio.timeout(20):
        await is_writing.wait()
        await served.transport.close()
        may_end.set()
        with pytest.raises(grpc.aio.AbortError):
            await stream
    assert (context.written, context.aborted) == (1, grpc.StatusCode.UNAVAILABLE)


async def test_a_node_of_an_older_release_gets_each_fetch_as_a_separate_call(
    client: GrpcTransport, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []

    async def fetch(body: bytes, context: Any) -> bytes:
        calls.append(body)
        number, _ = convert.request_from_wire(rpcs.FETCH, body)
        return convert.reply_to_wire(rpcs.FETCH, FETCHED, number)

    handlers: Any = {rpcs.FETCH.name: grpc.unary_unary_rpc_method_handler(fetch)}
    server = make_server([grpc.method_handlers_generic_handler(rpcs.FETCH.service.value, handlers)])
    address = f"127.0.0.1:{bind(server, Address('127.0.0.1', 0))}"
    await server.start()
    for _ in range(3):
        assert await client.ask(Peer(1, address), FETCH, 5000) == FETCHED
    assert len(calls) == 3
    stream = client._channels[address].fetches
    assert not stream.is_free(), "a stream is not tried again with each fetch"
    monkeypatch.setattr(fetch_stream, "UNKNOWN_S", 0.0)
    stream._unknown_until = 0.0
    for _ in range(2):
        assert await client.ask(Peer(1, address), FETCH, 5000) == FETCHED
        assert stream.is_free(), "the node may have been upgraded"
    await server.stop(None)
