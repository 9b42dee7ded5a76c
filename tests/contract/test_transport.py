"""The contract of `Transport`."""

from __future__ import annotations

import asyncio

import pytest
from google.protobuf.message import Message
from msgspec.structs import replace

from quorum.core.events import Peer
from quorum.core.messages import (
    ErrorCode,
    Fetch,
    FetchReply,
    Reply,
    Request,
    Vote,
    VoteReply,
)
from quorum.core.types import LogEnd
from quorum.ports import UnreachableError
from quorumlog.wire import rpcs
from quorumlog.wire.rpcs import AnyRpc
from quorumlog.wire.v1 import controller_pb2
from tests.contract.conftest import TransportKind
from tests.contract.samples import KEYS, KNOWN, SENDER, data, leader_change

VOTE = Vote(SENDER, KEYS[1], 3, LogEnd(2, 17), False)
FETCH = Fetch(SENDER, 1, 3, 4, 0, 2, 9, 500, 1 << 20, "127.0.0.1:9001")


async def refuse(request: Request) -> Reply:
    return VoteReply(ErrorCode.NOT_VOTER, KNOWN)


def test_requests_and_replies_arrive_unchanged(transports: TransportKind) -> None:
    batches = (leader_change(4, epoch=2), data(5, epoch=2, count=3), data(8, epoch=3, payload=bytes(range(256))))
    fetched = FetchReply(ErrorCode.NONE, KNOWN, high_watermark=5, round=10, batches=batches)
    seen: list[Request] = []

    async def handle(request: Request) -> Reply:
        seen.append(request)
        return fetched if isinstance(request, Fetch) else VoteReply(ErrorCode.NONE, KNOWN, True)

    async def scenario() -> None:
        _, address = await transports.serve(handle)
        client, _ = await transports.serve(refuse)
        assert await client.ask(Peer(1, address), VOTE, 5000) == VoteReply(ErrorCode.NONE, KNOWN, True)
        assert await client.ask(Peer(None, address), FETCH, 5000) == fetched
        assert seen == [VOTE, FETCH]

    transports.run(scenario)


def test_replies_in_another_order_answer_their_own_requests(transports: TransportKind) -> None:
    async def scenario() -> None:
        gates = {epoch: asyncio.Event() for epoch in range(1, 21)}

        async def handle(request: Request) -> Reply:
            assert isinstance(request, Vote)
            await gates[request.epoch].wait()
            if request.epoch > 1:
                gates[request.epoch - 1].set()  # so they are answered in the opposite order
            return VoteReply(ErrorCode.NONE, KNOWN, granted=request.epoch % 2 == 0)

        _, address = await transports.serve(handle)
        client, _ = await transports.serve(refuse)
        gates[20].set()
        asks = [
            client.ask(Peer(1, address), Vote(SENDER, KEYS[1], epoch, LogEnd(0, 0), False), 5000) for epoch in gates
        ]
        replies = await asyncio.gather(*asks)
        assert [isinstance(reply, VoteReply) and reply.granted for reply in replies] == [
            epoch % 2 == 0 for epoch in gates
        ]

    transports.run(scenario)


def test_each_of_many_fetches_gets_its_own_reply(transports: TransportKind) -> None:
    """One after the other, and several at once, as after a change of leaders."""

    async def scenario() -> None:
        async def handle(request: Request) -> Reply:
            assert isinstance(request, Fetch)
            await asyncio.sleep(0.001 * (request.offset % 3))  # so their answers come in another order
            return FetchReply(ErrorCode.NONE, KNOWN, high_watermark=request.offset)

        _, address = await transports.serve(handle)
        client, _ = await transports.serve(refuse)

        async def watermark(offset: int) -> int:
            reply = await client.ask(Peer(1, address), replace(FETCH, offset=offset), 5000)
            assert isinstance(reply, FetchReply)
            return reply.high_watermark

        assert [await watermark(offset) for offset in range(20)] == list(range(20))
        assert await asyncio.gather(*map(watermark, range(20))) == list(range(20))

    transports.run(scenario)


def test_a_fetch_that_was_not_answered_does_not_disturb_the_next_one(transports: TransportKind) -> None:
    async def scenario() -> None:
        async def handle(request: Request) -> Reply:
            assert isinstance(request, Fetch)
            if request.offset == 1:
                await asyncio.Event().wait()
            return FetchReply(ErrorCode.NONE, KNOWN, high_watermark=request.offset)

        _, address = await transports.serve(handle)
        client, _ = await transports.serve(refuse)
        for offset, timeout_ms in ((0, 5000), (1, 100), (2, 5000)):
            asking = client.ask(Peer(1, address), replace(FETCH, offset=offset), timeout_ms)
            if offset == 1:
                with pytest.raises(UnreachableError):
                    await asking
            else:
                assert await asking == FetchReply(ErrorCode.NONE, KNOWN, high_watermark=offset)

    transports.run(scenario)


def test_a_request_to_an_address_without_a_listener_fails_as_unreachable(transports: TransportKind) -> None:
    async def scenario() -> None:
        client, _ = await transports.serve(refuse)
        address = transports.nobody()
        with pytest.raises(UnreachableError):
            await client.ask(Peer(1, address), VOTE, 2000)
        with pytest.raises(UnreachableError) as refused:
            await client.call(address, rpcs.DESCRIBE_BROKERS, controller_pb2.DescribeBrokersRequest(), 2000)
        assert not refused.value.was_sent

    transports.run(scenario)


def test_a_request_without_an_answer_fails_as_unreachable(transports: TransportKind) -> None:
    async def scenario() -> None:
        async def never(request: Request) -> Reply:
            await asyncio.Event().wait()
            raise AssertionError("the event is never set")

        _, address = await transports.serve(never)
        client, _ = await transports.serve(refuse)
        with pytest.raises(UnreachableError):
            await client.ask(Peer(1, address), VOTE, 100)

    transports.run(scenario)


def test_a_call_without_an_answer_may_have_been_executed(transports: TransportKind) -> None:
    async def scenario() -> None:
        arrived = asyncio.Event()

        async def never(rpc: AnyRpc, request: Message) -> Message:
            arrived.set()
            await asyncio.Event().wait()
            raise AssertionError("the event is never set")

        _, address = await transports.serve(refuse, never)
        client, _ = await transports.serve(refuse)
        with pytest.raises(UnreachableError) as silent:
            await client.call(address, rpcs.DELETE_TOPICS, controller_pb2.DeleteTopicsRequest(), 500)
        assert silent.value.was_sent
        assert arrived.is_set()

    transports.run(scenario)


def test_a_node_reaches_itself(transports: TransportKind) -> None:
    async def scenario() -> None:
        transport, address = await transports.serve(refuse)
        assert await transport.ask(Peer(1, address), VOTE, 5000) == VoteReply(ErrorCode.NOT_VOTER, KNOWN)

    transports.run(scenario)


def test_calls_of_the_controller_service_are_answered(transports: TransportKind) -> None:
    async def scenario() -> None:
        async def control(rpc: AnyRpc, request: Message) -> Message:
            assert isinstance(request, controller_pb2.DeleteTopicsRequest)
            topics = [controller_pb2.DeletedTopic(name=f"{rpc} {name}") for name in request.names]
            return controller_pb2.DeleteTopicsReply(topics=topics)

        _, address = await transports.serve(refuse, control)
        client, _ = await transports.serve(refuse)
        request = controller_pb2.DeleteTopicsRequest(names=["a", "b"])
        reply = await client.call(address, rpcs.DELETE_TOPICS, request, 5000)
        assert isinstance(reply, controller_pb2.DeleteTopicsReply)
        assert [topic.name for topic in reply.topics] == ["DeleteTopics a", "DeleteTopics b"]

    transports.run(scenario)


def test_a_node_without_a_controller_service_refuses_its_calls(transports: TransportKind) -> None:
    async def scenario() -> None:
        _, address = await transports.serve(refuse)
        client, _ = await transports.serve(refuse)
        with pytest.raises(UnreachableError):
            await client.call(address, rpcs.DESCRIBE_BROKERS, controller_pb2.DescribeBrokersRequest(), 2000)

    transports.run(scenario)


def test_a_closed_transport_answers_no_request(transports: TransportKind) -> None:
    async def scenario() -> None:
        server, address = await transports.serve(refuse)
        client, _ = await transports.serve(refuse)
        assert await client.ask(Peer(1, address), VOTE, 5000) == VoteReply(ErrorCode.NOT_VOTER, KNOWN)
        await server.close()
        with pytest.raises(UnreachableError):
            await client.ask(Peer(1, address), VOTE, 2000)

    transports.run(scenario)


def test_after_a_reset_new_requests_work(transports: TransportKind) -> None:
    async def scenario() -> None:
        _, address = await transports.serve(refuse)
        client, _ = await transports.serve(refuse)
        for _ in range(3):
            reply = await client.ask(Peer(1, address), VOTE, 5000)
            assert isinstance(reply, VoteReply)
            await client.reset()

    transports.run(scenario)
