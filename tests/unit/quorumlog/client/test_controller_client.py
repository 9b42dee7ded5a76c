"""The control client against servers that refuse, hang, fail and give wrong answers."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, suppress
from typing import Any

import grpc
import grpc.aio
import pytest
from google.protobuf import message_factory
from google.protobuf.message import Message

from quorumlog.client import controller
from quorumlog.client.controller import ControllerClient
from quorumlog.errors import ClusterError
from quorumlog.runtime.addresses import Address
from quorumlog.runtime.grpc import bind, make_server
from quorumlog.wire import rpcs
from quorumlog.wire.rpcs import AnyRpc
from quorumlog.wire.v1 import controller_pb2 as pb
from quorumlog.wire.v1 import node_pb2, quorum_pb2

Answer = Message | grpc.StatusCode | asyncio.Event
"""A reply, a status to end the call with, or an event to set before the call hangs."""
CREATE = pb.CreateTopicsRequest(topics=[pb.NewTopic(name="t")])


class FakeNode:
    """Answers from a script: one entry for each call, and the last one for all further calls."""

    def __init__(self, *script: Answer) -> None:
        self.script = list(script)
        self.requests: list[Any] = []
        self.looks = 0  # requests for the quorum
        self.quorum: Any = quorum_pb2.DescribeQuorumReply()
        self.address = ""

    async def CreateTopics(self, request: Any, context: Any) -> Any:
        return await self._next(request, context)

    async def DescribeTopics(self, request: Any, context: Any) -> Any:
        return await self._next(request, context)

    async def ReadMetadata(self, request: Any, context: Any) -> Any:
        return await self._next(request, context)

    async def DescribeQuorum(self, request: Any, context: Any) -> Any:
        self.looks += 1
        if isinstance(self.quorum, grpc.StatusCode):
            await context.abort(self.quorum, "scripted")
        if isinstance(self.quorum, asyncio.Event):
            self.quorum.set()
            await asyncio.Event().wait()
        return self.quorum

    async def _next(self, request: Any, context: Any) -> Any:
        self.requests.append(request)
        answer = self.script.pop(0) if len(self.script) > 1 else self.script[0]
        if isinstance(answer, grpc.StatusCode):
            await context.abort(answer, "scripted")
        if isinstance(answer, asyncio.Event):
            answer.set()
            await asyncio.Event().wait()
        return answer


def handlers(node: FakeNode, file: Any) -> grpc.GenericRpcHandler:
    """Return the methods of `node` that belong to the one service in a proto file."""
    (service,) = file.DESCRIPTOR.services_by_name.values()
    methods = {
        method.name: grpc.unary_unary_rpc_method_handler(
            getattr(node, method.name),
            request_deserializer=message_factory.GetMessageClass(method.input_type).FromString,
            response_serializer=message_factory.GetMessageClass(method.output_type).SerializeToString,
        )
        for method in service.methods
        if hasattr(node, method.name)
    }
    return grpc.method_handlers_generic_handler(service.full_name, methods)


Start = Callable[[FakeNode], Awaitable[FakeNode]]


@pytest.fixture
async def start() -> AsyncIterator[Start]:
    async with AsyncExitStack() as stack:

        async def run(node: FakeNode) -> FakeNode:
            server = make_server([handlers(node, file) for file in (pb, node_pb2, quorum_pb2)])
            node.address = f"127.0.0.1:{bind(server, Address('127.0.0.1', 0))}"
            await server.start()
            stack.push_async_callback(server.stop, None)
            return node

        yield run


def created(error: str = "NONE", retriable: bool = False, next_step: str = "") -> pb.CreateTopicsReply:
    return pb.CreateTopicsReply(result=pb.Result(error=error, message="m", next=next_step, retriable=retriable))


def described(error: str = "NONE", retriable: bool = False) -> pb.DescribeTopicsReply:
    return pb.DescribeTopicsReply(result=pb.Result(error=error, retriable=retriable), offset=7)


def dead_address() -> str:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{free.getsockname()[1]}"


async def test_a_change_succeeds_although_one_of_the_given_nodes_is_down(start: Start) -> None:
    node = await start(FakeNode(created()))
    async with ControllerClient([dead_address(), node.address]) as client:
        reply = await client.call(rpcs.CREATE_TOPICS, CREATE, 10)
    assert reply.result.error == "NONE"
    (request,) = node.requests
    assert request.topics[0].name == "t"
    assert 0 < request.header.timeout_ms <= 10_000
    assert CREATE.header.timeout_ms == 0  # the caller's own request is unchanged


async def test_an_unconfirmed_read_asks_one_node_once(start: Start) -> None:
    first = await start(FakeNode(described()))
    second = await start(FakeNode(described("NOT_CONTROLLER", retriable=True)))
    request = pb.DescribeTopicsRequest(header=pb.RequestHeader(unconfirmed=True))
    async with ControllerClient([dead_address(), first.address]) as client:
        assert len(client.addresses) == 2
        assert (await client.call_node(first.address, rpcs.DESCRIBE_TOPICS, request, 10)).offset == 7
        with pytest.raises(ClusterError) as refused:
            await client.call_node(second.address, rpcs.DESCRIBE_TOPICS, request, 10)
        assert (refused.value.code, refused.value.retriable) == ("NOT_CONTROLLER", True)
    assert [node.requests[0].header.unconfirmed for node in (first, second)] == [True, True]
    assert len(second.requests) == 1


async def test_a_retriable_refusal_is_retried_at_another_node(start: Start) -> None:
    first = await start(FakeNode(created("NOT_CONTROLLER", retriable=True)))
    second = await start(FakeNode(created("NOT_CONTROLLER", retriable=True), created()))
    async with ControllerClient([first.address, second.address]) as client:
        await client.call(rpcs.CREATE_TOPICS, CREATE, 30)
    assert (len(first.requests), len(second.requests)) == (1, 2)  # the node that answered last is asked first


async def test_a_missing_controller_is_reported_with_the_time_of_the_search(start: Start) -> None:
    node = await start(FakeNode(created("NOT_CONTROLLER", retriable=True, next_step="ask again")))
    async with ControllerClient([node.address]) as client:
        with pytest.raises(ClusterError) as caught:
            await client.call(rpcs.CREATE_TOPICS, CREATE, 0.2)
    error = caught.value
    assert str(error) == f"no active controller answered within 0.2 s; {node.address}: m"
    assert (error.code, error.next_step, error.retriable) == ("NOT_CONTROLLER", "ask again", True)


async def test_a_final_refusal_is_raised_unchanged(start: Start) -> None:
    node = await start(FakeNode(created("POLICY_VIOLATION", next_step="fewer")))
    async with ControllerClient([node.address]) as client:
        with pytest.raises(ClusterError) as caught:
            await client.call(rpcs.CREATE_TOPICS, CREATE, 30)
    error = caught.value
    assert (error.code, error.message, error.next_step, error.retriable) == ("POLICY_VIOLATION", "m", "fewer", False)
    assert len(node.requests) == 1


@pytest.mark.parametrize("answer", [grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.INTERNAL])
async def test_a_change_with_an_unknown_outcome_is_not_repeated(start: Start, answer: Any) -> None:
    node = await start(FakeNode(answer, created()))
    async with ControllerClient([node.address]) as client:
        with pytest.raises(ClusterError) as caught:
            await client.call(rpcs.CREATE_TOPICS, CREATE, 30)
    assert (caught.value.code, caught.value.retriable) == ("OUTCOME_UNKNOWN", True)
    assert len(node.requests) == 1


async def test_a_change_is_not_repeated_after_the_server_reports_an_unknown_outcome(start: Start) -> None:
    node = await start(FakeNode(created("OUTCOME_UNKNOWN", retriable=True), created()))
    async with ControllerClient([node.address]) as client:
        with pytest.raises(ClusterError, match="m") as caught:
            await client.call(rpcs.CREATE_TOPICS, CREATE, 30)
    assert caught.value.code == "OUTCOME_UNKNOWN"
    assert len(node.requests) == 1


async def test_a_read_is_repeated_after_retriable_failures(start: Start) -> None:
    node = await start(FakeNode(grpc.StatusCode.UNAVAILABLE, described("NOT_CONTROLLER", retriable=True), described()))
    async with ControllerClient([node.address]) as client:
        reply = await client.call(rpcs.DESCRIBE_TOPICS, pb.DescribeTopicsRequest(), 30)
    assert reply.offset == 7
    assert len(node.requests) == 3


async def test_a_change_at_a_hanging_node_ends_at_the_deadline(start: Start) -> None:
    asked = asyncio.Event()
    node = await start(FakeNode(asked))
    async with ControllerClient([node.address]) as client:
        with pytest.raises(ClusterError) as caught:
            await client.call(rpcs.CREATE_TOPICS, CREATE, 0.3)
    assert asked.is_set()
    assert caught.value.code == "OUTCOME_UNKNOWN"


async def test_unavailable_nodes_are_reported() -> None:
    async with ControllerClient([dead_address()]) as client:
        with pytest.raises(ClusterError) as caught:
            await client.call(rpcs.CREATE_TOPICS, CREATE, 0.3)
        assert (caught.value.code, caught.value.retriable) == ("UNAVAILABLE", True)
        assert "control address" in caught.value.next_step
        with pytest.raises(ClusterError, match="no node answers: 127"):
            await client.describe_quorum(0.3)


async def test_a_request_that_a_node_does_not_support_fails_with_unsupported_version(start: Start) -> None:
    node = await start(FakeNode(grpc.StatusCode.UNIMPLEMENTED))
    async with ControllerClient([node.address]) as client:
        with pytest.raises(ClusterError) as caught:
            await client.call(rpcs.CREATE_TOPICS, CREATE, 30)
    assert (caught.value.code, caught.value.retriable) == ("UNSUPPORTED_VERSION", False)
    assert caught.value.message == f"{node.address} does not support this request"


@asynccontextmanager
async def web_server() -> AsyncIterator[str]:
    """Answers every request over HTTP/2 with "not found" (`:status 404` is entry 13 of HPACK's static table)."""

    def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
        return len(payload).to_bytes(3) + bytes([kind, flags]) + stream.to_bytes(4) + payload

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(24)  # the preface
        writer.write(frame(4, 0, 0))
        with suppress(asyncio.IncompleteReadError):
            while head := await reader.readexactly(9):
                await reader.readexactly(int.from_bytes(head[:3]))
                if head[3] == 4 and not head[4]:
                    writer.write(frame(4, 1, 0))
                if head[3] == 1:
                    writer.write(frame(1, 5, int.from_bytes(head[5:]), b"\x8d"))
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"


@asynccontextmanager
async def other_grpc_server() -> AsyncIterator[str]:
    server = make_server()
    port = bind(server, Address("127.0.0.1", 0))
    await server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        await server.stop(None)


@pytest.mark.parametrize(("make", "why"), [(web_server, "404"), (other_grpc_server, "Method not found!")])
async def test_an_address_of_another_program_is_reported_as_not_a_node(
    make: Callable[[], AbstractAsyncContextManager[str]], why: str
) -> None:
    async with make() as address, ControllerClient([address]) as client:
        for asked in (
            client.call(rpcs.CREATE_TOPICS, CREATE, 30),
            client.call(rpcs.DESCRIBE_TOPICS, pb.DescribeTopicsRequest(), 30),
            client.ask_node(address, rpcs.DESCRIBE_NODE, node_pb2.DescribeNodeRequest(), 30),
            client.describe_quorum(30),
            client.describe_quorum_of(address, 30),
        ):
            with pytest.raises(ClusterError) as caught:
                await asked
            assert (caught.value.code, caught.value.retriable) == ("NOT_A_NODE", False)
            assert caught.value.message.startswith(f"{address} is not the address of a quorumlog node (")
            assert why in caught.value.message


def quorum(answered_by: int, leader_id: int, leader_address: str, epoch: int = 3) -> quorum_pb2.DescribeQuorumReply:
    return quorum_pb2.DescribeQuorumReply(
        known=quorum_pb2.Knowledge(epoch=epoch, leader_id=leader_id, leader_address=leader_address),
        answered_by=quorum_pb2.ReplicaKey(node_id=answered_by),
    )


async def test_the_quorum_is_described_by_its_leader(start: Start) -> None:
    leader, follower = await start(FakeNode(created())), await start(FakeNode(created()))
    leader.quorum = quorum(1, 1, leader.address)
    follower.quorum = quorum(2, 1, leader.address)
    async with ControllerClient([follower.address]) as client:
        assert (await client.describe_quorum(10)).answered_by.node_id == 1


async def test_any_node_describes_the_quorum_if_the_leader_does_not_answer(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(controller, "CONNECT_TIMEOUT_S", 0.2)
    follower = await start(FakeNode(created()))
    follower.quorum = quorum(2, 1, dead_address())
    async with ControllerClient([follower.address]) as client:
        assert (await client.describe_quorum(10)).answered_by.node_id == 2


async def test_the_answer_of_a_stale_leader_is_ignored(start: Start) -> None:
    stale, follower = await start(FakeNode(created())), await start(FakeNode(created()))
    stale.quorum = quorum(1, 1, stale.address, epoch=2)
    follower.quorum = quorum(2, 1, stale.address, epoch=3)
    async with ControllerClient([follower.address]) as client:
        assert (await client.describe_quorum(10)).answered_by.node_id == 2


async def test_answers_of_a_leader_and_of_a_newer_generation_are_preferred(start: Start) -> None:
    lost, rebuilt, stale = [await start(FakeNode(created())) for _ in range(3)]
    lost.quorum = quorum(3, 1, dead_address(), epoch=1)
    lost.quorum.known.ClearField("leader_id")
    rebuilt.quorum = quorum(12, 12, rebuilt.address, epoch=1002)
    rebuilt.quorum.known.generation = 1
    stale.quorum = quorum(2, 2, stale.address, epoch=1)
    everybody = [lost.address, dead_address(), stale.address, rebuilt.address]
    async with ControllerClient(everybody) as client:
        assert (await client.describe_quorum(10)).answered_by.node_id == 12
        lost.looks = 0
        assert (await client.describe_quorum(10)).answered_by.node_id == 12
        assert lost.looks == 0, "the leader is asked first from now on"
    async with ControllerClient([lost.address, dead_address()]) as client:
        assert (await client.describe_quorum(10)).answered_by.node_id == 3
    async with ControllerClient([lost.address, stale.address]) as client:
        assert (await client.describe_quorum(10)).answered_by.node_id == 2


# Nodes that hang while their connections stay open


def hung(*script: Answer) -> FakeNode:
    """Return a node whose connections stay open, but which answers nothing."""
    node = FakeNode(*script or (asyncio.Event(),))
    node.quorum = asyncio.Event()
    return node


@pytest.fixture
def quick_look(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(controller, "LOOK_TIMEOUT_S", 0.2)


async def test_no_change_is_sent_to_a_node_that_hangs(start: Start, quick_look: None) -> None:
    stuck, sound = await start(hung()), await start(FakeNode(created()))
    async with ControllerClient([stuck.address, sound.address]) as client:
        for _ in range(5):
            await client.call(rpcs.CREATE_TOPICS, CREATE, 30)
    assert (stuck.requests, stuck.looks, len(sound.requests)) == ([], 1, 5)


def following(leader_id: int) -> quorum_pb2.DescribeQuorumReply:
    return quorum_pb2.DescribeQuorumReply(known=quorum_pb2.Knowledge(leader_id=leader_id))


async def test_a_change_is_not_sent_to_a_node_without_a_leader_if_another_node_has_one(start: Start) -> None:
    """A node that is disconnected from the quorum would hold the request until its deadline, waiting for a leader."""
    cut_off, other = await start(FakeNode(asyncio.Event())), await start(FakeNode(created()))
    other.quorum = following(3)
    async with ControllerClient([cut_off.address, other.address]) as client:
        await client.call(rpcs.CREATE_TOPICS, CREATE, 5)
    assert (cut_off.looks, cut_off.requests) == (1, [])


async def test_a_change_is_sent_to_a_node_without_a_leader_if_no_other_node_has_one(start: Start) -> None:
    """A leader is being elected, and the node waits for it."""
    first, second = await start(FakeNode(created())), await start(FakeNode(created()))
    async with ControllerClient([first.address, "127.0.0.1:1", second.address]) as client:
        await client.call(rpcs.CREATE_TOPICS, CREATE, 5)
    assert (len(first.requests), len(second.requests), second.looks) == (1, 0, 1)


async def test_a_node_that_hangs_during_a_change_is_avoided_by_the_next_change(start: Start) -> None:
    stuck, sound = await start(FakeNode(created(), asyncio.Event())), await start(FakeNode(created()))
    async with ControllerClient([stuck.address, sound.address]) as client:
        await client.call(rpcs.CREATE_TOPICS, CREATE, 30)
        with pytest.raises(ClusterError) as caught:
            await client.call(rpcs.CREATE_TOPICS, CREATE, 0.3)
        assert caught.value.code == "OUTCOME_UNKNOWN", "the request was sent, and may have been executed"
        await client.call(rpcs.CREATE_TOPICS, CREATE, 30)
    assert (len(stuck.requests), len(sound.requests)) == (2, 1)


@pytest.mark.parametrize(
    ("rpc", "message", "reply"),
    [(rpcs.CREATE_TOPICS, CREATE, created), (rpcs.DESCRIBE_TOPICS, pb.DescribeTopicsRequest(), described)],
)
async def test_an_avoided_node_is_not_asked_while_another_node_answers(
    start: Start, rpc: AnyRpc, message: Message, reply: Callable[..., Message]
) -> None:
    """This also holds if the other node must be asked again during an election."""
    nobody, yes = reply("NOT_CONTROLLER", retriable=True), reply()
    stuck, sound = await start(hung()), await start(FakeNode(nobody, nobody, nobody, yes))
    async with ControllerClient([stuck.address, sound.address]) as client:
        client._avoid(stuck.address)
        await client.call(rpc, message, 30)
    assert (stuck.requests, stuck.looks, len(sound.requests)) == ([], 0, 4)


async def test_an_avoided_node_is_asked_when_no_other_node_answers(start: Start) -> None:
    node = await start(FakeNode(created()))
    async with ControllerClient([node.address, dead_address()]) as client:
        client._avoid(node.address)
        await client.call(rpcs.CREATE_TOPICS, CREATE, 30)
        assert not client._is_avoided(node.address), "the node has answered"
    assert len(node.requests) == 1


async def test_a_node_is_avoided_only_for_a_limited_time(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(controller, "AVOID_S", 0.0)
    node, other = await start(FakeNode(created())), await start(FakeNode(created("NOT_CONTROLLER", retriable=True)))
    async with ControllerClient([node.address, other.address]) as client:
        client._avoid(node.address)
        await client.call(rpcs.CREATE_TOPICS, CREATE, 30)
    assert (len(node.requests), len(other.requests)) == (1, 1)


async def test_a_node_that_answers_late_gets_more_time_in_each_round(
    start: Start, quick_look: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A busy node is slow, and may be the only one."""
    node = FakeNode(created())
    limits_s: list[float] = []

    async def late(request: Any, context: Any) -> Any:
        node.looks += 1
        limits_s.append(context.time_remaining())
        if node.looks < 3:
            await asyncio.Event().wait()
        return node.quorum

    monkeypatch.setattr(node, rpcs.DESCRIBE_QUORUM.name, late)
    node = await start(node)
    async with ControllerClient([node.address]) as client:
        await client.call(rpcs.CREATE_TOPICS, CREATE, 30)
        await client.call(rpcs.CREATE_TOPICS, CREATE, 30)
    assert (node.looks, len(node.requests)) == (3, 2), (
        "a node that has just answered is not asked again before a change"
    )
    assert limits_s[0] < limits_s[1] < limits_s[2]


async def test_a_change_times_out_without_being_sent_if_every_node_hangs(start: Start, quick_look: None) -> None:
    nodes = [await start(hung()) for _ in range(2)]
    async with ControllerClient([node.address for node in nodes]) as client:
        with pytest.raises(ClusterError) as caught:
            await client.call(rpcs.CREATE_TOPICS, CREATE, 1.0)
    assert (caught.value.code, caught.value.retriable) == ("TIMED_OUT", True)
    assert [node.requests for node in nodes] == [[], []]


async def test_describe_quorum_asks_a_hanging_node_only_once(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(controller, "READ_ATTEMPT_TIMEOUT_S", 0.2)
    stuck, sound = await start(hung()), await start(FakeNode(created()))
    sound.quorum = quorum(1, 1, sound.address)
    async with ControllerClient([stuck.address, sound.address]) as client:
        for _ in range(3):
            await client.describe_quorum(10)
    assert (stuck.looks, sound.looks) == (1, 3)


# Reports of a node about itself


def read(error: str = "NONE", retriable: bool = False) -> Any:
    return node_pb2.ReadMetadataReply(result=pb.Result(error=error, message="m", retriable=retriable), high_watermark=7)


async def test_ask_any_asks_a_hanging_node_only_once(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(controller, "ASK_TIMEOUT_MIN_S", 0.2)
    asked = asyncio.Event()
    hanging = await start(FakeNode(asked))
    sound = await start(FakeNode(read()))
    async with ControllerClient([hanging.address, sound.address]) as client:
        for _ in range(3):
            reply = await client.ask_any(rpcs.READ_METADATA, node_pb2.ReadMetadataRequest(), 4)
            assert reply.high_watermark == 7
    assert (len(hanging.requests), len(sound.requests)) == (1, 3)


async def test_ask_any_times_out_if_every_node_hangs(start: Start) -> None:
    nodes = [await start(FakeNode(asyncio.Event())) for _ in range(2)]
    async with ControllerClient([node.address for node in nodes]) as client:
        with pytest.raises(ClusterError) as caught:
            await client.ask_any(rpcs.READ_METADATA, node_pb2.ReadMetadataRequest(), 0.5)
    assert (caught.value.code, caught.value.retriable) == ("TIMED_OUT", True)


async def test_ask_any_asks_no_other_node_after_a_final_refusal(start: Start) -> None:
    first = await start(FakeNode(read("OFFSET_OUT_OF_RANGE")))
    second = await start(FakeNode(read()))
    async with ControllerClient([first.address, second.address]) as client:
        with pytest.raises(ClusterError) as caught:
            await client.ask_any(rpcs.READ_METADATA, node_pb2.ReadMetadataRequest(), 10)
    assert caught.value.code == "OFFSET_OUT_OF_RANGE"
    assert second.requests == []


async def test_ask_node_sends_one_request_to_the_given_node(start: Start) -> None:
    node = await start(FakeNode(read(), read("OVERLOADED", retriable=True)))
    async with ControllerClient([dead_address()]) as client:
        assert (await client.ask_node(node.address, rpcs.READ_METADATA, node_pb2.ReadMetadataRequest(), 5)).result.error
        for address, code in ((node.address, "OVERLOADED"), (dead_address(), "UNAVAILABLE")):
            with pytest.raises(ClusterError) as caught:
                await client.ask_node(address, rpcs.READ_METADATA, node_pb2.ReadMetadataRequest(), 5)
            assert (caught.value.code, caught.value.retriable) == (code, True)
    assert len(node.requests) == 2


async def test_describe_quorum_of_asks_only_the_given_node(start: Start) -> None:
    leader, other = await start(FakeNode()), await start(FakeNode())
    other.quorum.known.leader_id, other.quorum.known.leader_address = 1, leader.address
    other.quorum.answered_by.node_id = 2
    async with ControllerClient([leader.address]) as client:
        reply = await client.describe_quorum_of(other.address, 10)
        assert reply.answered_by.node_id == 2
        assert leader.looks == 0, "the leader is not asked"
        with pytest.raises(ClusterError) as caught:
            await client.describe_quorum_of(dead_address(), 10)
    assert (caught.value.code, caught.value.retriable) == ("UNAVAILABLE", True)


async def test_learned_nodes_are_asked_when_the_given_nodes_do_not_answer(start: Start) -> None:
    reply = node_pb2.ReadMetadataReply(result=pb.Result(error="NONE"), high_watermark=7)
    node = await start(FakeNode(reply))
    async with ControllerClient([dead_address()]) as client:
        client.learn([node.address, node.address])
        assert (await client.ask_any(rpcs.READ_METADATA, node_pb2.ReadMetadataRequest(), 10)).high_watermark == 7
    assert len(node.requests) == 1


async def test_the_node_that_described_the_quorum_is_asked_first(start: Start) -> None:
    first = await start(FakeNode(read()))
    second = await start(FakeNode(read()))
    first.quorum = grpc.StatusCode.UNAVAILABLE
    async with ControllerClient([first.address, second.address]) as client:
        await client.describe_quorum(10)
        await client.ask_any(rpcs.READ_METADATA, node_pb2.ReadMetadataRequest(), 10)
    assert [(node.looks, len(node.requests)) for node in (first, second)] == [(1, 0), (1, 1)]


async def test_a_read_in_progress_fails_when_the_client_is_closed(start: Start) -> None:
    asked = asyncio.Event()
    node = await start(FakeNode(asked, described()))
    client = ControllerClient([node.address])
    reading = asyncio.ensure_future(client.call(rpcs.DESCRIBE_TOPICS, pb.DescribeTopicsRequest(), 10))
    await asked.wait()
    await client.close()
    with pytest.raises(ClusterError) as failure:
        await reading
    assert failure.value.code == "CLIENT_CLOSED"
    assert not client._channels, "no task would close new channels"


@asynccontextmanager
async def unused_address() -> AsyncIterator[str]:
    """The address of a port that refuses connections; no other program gets it meanwhile."""
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{closed.getsockname()[1]}"


async def test_a_call_ends_early_if_nothing_listens_at_any_address() -> None:
    async with (
        unused_address() as first,
        unused_address() as second,
        ControllerClient([first, second], refused_s=0.2) as client,
        asyncio.timeout(30),
    ):
        with pytest.raises(ClusterError) as failed:
            await client.call(rpcs.DESCRIBE_TOPICS, pb.DescribeTopicsRequest(), 3600)
        with pytest.raises(ClusterError):
            await client.describe_quorum(3600)
    error = failed.value
    assert (error.code, error.retriable) == ("UNAVAILABLE", True)
    assert error.message.count("connection refused") == 2
    assert "--controllers or KCTL_CONTROLLERS" in error.next_step


async def test_a_call_waits_until_its_deadline_if_one_address_is_only_slow() -> None:
    async def hang(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(30)
        writer.close()

    slow = await asyncio.start_server(hang, "127.0.0.1", 0)
    port = slow.sockets[0].getsockname()[1]
    loop = asyncio.get_running_loop()
    began = loop.time()
    try:
        async with (
            unused_address() as refusing,
            ControllerClient([refusing, f"127.0.0.1:{port}"], refused_s=0.01) as client,
        ):
            with pytest.raises(ClusterError):
                await client.call(rpcs.DESCRIBE_TOPICS, pb.DescribeTopicsRequest(), 6.0)
    finally:
        slow.close()
    assert loop.time() - began >= 6.0


async def test_a_call_waits_for_a_restart_of_nodes_that_have_answered_before(start: Start) -> None:
    node = await start(FakeNode(described()))
    loop = asyncio.get_running_loop()
    async with unused_address() as refusing, ControllerClient([node.address], refused_s=0.01) as client:
        await client.call(rpcs.DESCRIBE_TOPICS, pb.DescribeTopicsRequest(), 30)
        client._addresses = [refusing]
        began = loop.time()
        with pytest.raises(ClusterError):
            await client.call(rpcs.DESCRIBE_TOPICS, pb.DescribeTopicsRequest(), 1.0)
    assert loop.time() - began >= 1.0


async def test_a_long_wait_for_the_first_answer_is_reported_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(controller, "NOTICE_S", 0.1)
    reported: list[str] = []
    async with unused_address() as address, ControllerClient([address], on_wait=reported.append) as client:
        for _ in range(2):
            with pytest.raises(ClusterError):
                await client.call(rpcs.DESCRIBE_TOPICS, pb.DescribeTopicsRequest(), 0.5)
    assert reported == [f"no node answers: {address}: connection refused: nothing listens there"]
