"""The Controller service: which node answers, forwarding, and an error code for every failed call."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from metadata.controller.service import METHODS
from quorum.ports import UnreachableError
from quorumlog.errors import RemoteProtocolError
from quorumlog.wire import rpcs
from quorumlog.wire.rpcs import AnyRpc
from quorumlog.wire.v1 import controller_pb2 as pb
from quorumlog.wire.v1 import node_pb2
from tests.unit.metadata.controller.service_requests import REQUESTS, follower
from tests.unit.metadata.controller.test_controller import new_topic, started
from tests.unit.metadata.fake_node import Plane, run, settle


def test_the_request_of_another_cluster_is_refused_before_it_is_forwarded() -> None:
    async def test() -> None:
        for plane in (await started(1), follower()):
            for rpc, request in REQUESTS.items():
                copy = type(request)()
                copy.CopyFrom(request)
                rpcs.header_of(copy).cluster_id = "strange\ncluster"
                result = rpcs.result_of(await plane.service.handle(rpc, copy))
                assert result.error == "INCONSISTENT_CLUSTER_ID"
                assert "\n" not in result.message
            assert plane.transport.calls == []

    run(test())


def test_a_node_that_does_not_lead_forwards_a_request_once_and_returns_the_reply() -> None:
    async def test() -> None:
        plane = follower()
        plane.transport.answer = pb.CreateTopicsReply(topics=[pb.CreatedTopic(name="t")])
        request = new_topic("t")
        request.header.principal = "somebody"
        request.header.timeout_ms = 5000
        reply = await plane.service.handle(rpcs.CREATE_TOPICS, request)
        assert reply is plane.transport.answer
        [(address, rpc, sent, timeout_ms)] = plane.transport.calls
        assert (address, rpc) == ("there:1", rpcs.CREATE_TOPICS)
        assert (sent.header.forwarded, sent.header.principal) == (True, "somebody")
        assert sent.topics[0].name == "t"
        assert sent.header.timeout_ms == timeout_ms == 4500
        assert not request.header.forwarded

    run(test())


def test_a_forwarded_request_is_not_forwarded_again() -> None:
    async def test() -> None:
        plane = follower()
        request = new_topic("t")
        request.header.forwarded = True
        reply: Any = await plane.service.handle(rpcs.CREATE_TOPICS, request)
        assert reply.result.error == "NOT_CONTROLLER"
        assert reply.result.retriable
        assert plane.transport.calls == []

    run(test())


@pytest.mark.parametrize("rpc", REQUESTS, ids=str)
def test_a_leader_that_does_not_answer_makes_the_outcome_unknown(rpc: AnyRpc) -> None:
    async def test() -> None:
        plane = follower()
        plane.transport.answer = UnreachableError("gone")
        reply = await plane.call(rpc, REQUESTS[rpc])
        assert reply.result.error == ("NOT_CONTROLLER" if rpc.reads_only else "OUTCOME_UNKNOWN")
        assert reply.result.retriable

    run(test())


@pytest.mark.parametrize("rpc", REQUESTS, ids=str)
def test_a_request_that_never_reached_the_leader_is_refused_as_not_controller(rpc: AnyRpc) -> None:
    async def test() -> None:
        plane = follower()
        plane.transport.answer = UnreachableError("nobody listens", was_sent=False)
        reply = await plane.call(rpc, REQUESTS[rpc])
        assert (reply.result.error, reply.result.retriable) == ("NOT_CONTROLLER", True)

    run(test())


@pytest.mark.parametrize("rpc", REQUESTS, ids=str)
def test_a_request_that_never_reached_the_leader_is_sent_to_its_successor(rpc: AnyRpc) -> None:
    async def test() -> None:
        plane = follower()
        plane.transport.hanging.add("there:1")
        asked = plane.start(rpc, REQUESTS[rpc])
        await settle()
        plane.transport.fails("there:1", UnreachableError("nobody listens", was_sent=False))
        plane.transport.answer = rpc.reply(result=pb.Result(error="NONE"))
        plane.node.lose(3, "elsewhere:1")
        assert (await asked).result.error == "NONE"
        assert [address for address, *_ in plane.transport.calls] == ["there:1", "elsewhere:1"]

    run(test())


def test_no_request_waits_for_a_hanging_leader_once_another_node_leads() -> None:
    async def test() -> None:
        plane = follower()
        plane.transport.hanging.add("there:1")
        plane.transport.answer = pb.DescribeBrokersReply(cluster_id="cluster")
        change = plane.start(rpcs.CREATE_TOPICS, new_topic("t"))
        read = plane.start(rpcs.DESCRIBE_BROKERS, pb.DescribeBrokersRequest())
        await settle()
        plane.node.lose()
        plane.node.lose(2, "there:1")  # no leader, then the same one again: it may still answer
        await asyncio.sleep(1)
        assert (change.done(), read.done()) == (False, False)
        plane.node.lose(3, "elsewhere:1")
        assert (await change).result.error == "OUTCOME_UNKNOWN", "the old leader may have executed it"
        assert (await read).cluster_id == "cluster", "a read may be sent again"
        assert [address for address, *_ in plane.transport.calls] == ["there:1", "there:1", "elsewhere:1"]

    run(test())


READS = [rpc for rpc in METHODS if rpc.reads_only]


def unconfirmed(rpc: AnyRpc, cluster_id: str = "") -> Any:
    request = rpc.request()
    request.header.unconfirmed, request.header.cluster_id = True, cluster_id
    return request


@pytest.mark.parametrize("rpc", READS, ids=str)
@pytest.mark.parametrize("leader", ["none", "unreachable", "paused"])
def test_an_unconfirmed_read_is_answered_without_a_controller(rpc: AnyRpc, leader: str) -> None:
    async def test() -> None:
        plane = await started()
        end = plane.replay.image.end_offset
        plane.node.lose(None if leader == "none" else 2, None if leader == "none" else "there:1")
        plane.node.paused = leader == "paused"
        plane.node.generation, plane.node.epoch = 3, 17
        before = asyncio.get_running_loop().time()
        reply: Any = await plane.service.handle(rpc, unconfirmed(rpc))
        assert (reply.result.error, reply.result.unconfirmed, reply.offset) == ("NONE", True, end)
        assert (reply.result.generation, reply.result.epoch) == (3, 17)
        assert asyncio.get_running_loop().time() == before, "without waiting"
        assert not plane.transport.calls, "without asking another node"

    run(test())


@pytest.mark.parametrize("rpc", READS, ids=str)
def test_a_confirmed_read_is_not_marked_as_unconfirmed(rpc: AnyRpc) -> None:
    async def test() -> None:
        plane = await started()
        request = rpc.request()
        reply: Any = await plane.service.handle(rpc, request)
        assert (reply.result.error, reply.result.unconfirmed) == ("NONE", False)

    run(test())


def test_a_node_that_has_applied_nothing_does_not_answer_an_unconfirmed_read() -> None:
    async def test() -> None:
        reply: Any = await follower().service.handle(rpcs.DESCRIBE_TOPICS, unconfirmed(rpcs.DESCRIBE_TOPICS))
        assert (reply.result.error, reply.result.retriable) == ("NOT_CONTROLLER", True)

    run(test())


def test_an_unconfirmed_read_of_another_cluster_is_refused() -> None:
    async def test() -> None:
        plane = await started()
        reply: Any = await plane.service.handle(rpcs.DESCRIBE_TOPICS, unconfirmed(rpcs.DESCRIBE_TOPICS, "other"))
        assert reply.result.error == "INCONSISTENT_CLUSTER_ID"

    run(test())


def test_a_change_is_never_answered_unconfirmed() -> None:
    async def test() -> None:
        plane = await started()
        plane.node.lose(None, None)
        request = new_topic("t")
        request.header.unconfirmed, request.header.timeout_ms = True, 1000
        reply: Any = await plane.service.handle(rpcs.CREATE_TOPICS, request)
        assert reply.result.error == "NOT_CONTROLLER"

    run(test())


def test_a_refusal_by_a_paused_leader_gives_the_reason() -> None:
    async def test() -> None:
        plane = await started(1)
        plane.node.confirm = asyncio.Event()
        asked = plane.start(rpcs.DESCRIBE_BROKERS, pb.DescribeBrokersRequest())
        await settle()
        plane.node.paused, plane.node.leading = True, False
        plane.node.confirm.set()
        reply = await asked
        assert (reply.result.error, reply.result.retriable) == ("NOT_CONTROLLER", True)
        assert "no majority of the voters" in reply.result.message
        assert "kctl quorum status" in reply.result.next

    run(test())


def test_a_call_waits_for_a_leader_until_its_deadline() -> None:
    async def test() -> None:
        plane = Plane()
        begin = asyncio.get_running_loop().time()
        reply = await plane.call(rpcs.CREATE_TOPICS, new_topic("t"), 2000)
        assert reply.result.error == "NOT_CONTROLLER"
        assert asyncio.get_running_loop().time() - begin == pytest.approx(1.8)
        asked = plane.start(rpcs.DESCRIBE_BROKERS, pb.DescribeBrokersRequest())
        await settle()
        plane.transport.answer = pb.DescribeBrokersReply(cluster_id="cluster")
        plane.node.lose(2, "there:1")
        assert (await asked).cluster_id == "cluster"
        asked = plane.start(rpcs.DESCRIBE_BROKERS, pb.DescribeBrokersRequest())
        assert (await asked).cluster_id == "cluster"

    run(test())


def test_a_forwarded_request_waits_for_the_activation_of_the_node_that_won() -> None:
    async def test() -> None:
        plane = Plane()
        plane.node.win(commit=False)
        request = pb.DescribeBrokersRequest()
        request.header.forwarded = True
        asked = asyncio.ensure_future(plane.service.handle(rpcs.DESCRIBE_BROKERS, request))
        await settle()
        assert not asked.done()
        plane.node.commit()
        reply: Any = await asked
        assert reply.result.error == "NONE"

    run(test())


def test_a_request_is_refused_at_its_deadline_while_the_address_of_the_leader_is_unknown() -> None:
    async def test() -> None:
        plane = follower(None)
        assert (
            await plane.call(rpcs.DESCRIBE_BROKERS, pb.DescribeBrokersRequest(), 1000)
        ).result.error == "NOT_CONTROLLER"
        assert plane.transport.calls == []

    run(test())


def test_a_call_sets_cluster_id_and_timeout_in_the_request_header() -> None:
    async def test() -> None:
        plane = follower()
        plane.transport.answer = pb.DescribeBrokersReply()
        await plane.call(rpcs.DESCRIBE_BROKERS, pb.DescribeBrokersRequest(), 3000)
        sent = plane.transport.calls[0][2]
        assert (sent.header.cluster_id, sent.header.timeout_ms) == ("cluster", 2700)
        plane.node.cluster_id = None
        await plane.call(rpcs.DESCRIBE_BROKERS, pb.DescribeBrokersRequest(), 3000)
        assert plane.transport.calls[1][2].header.cluster_id == ""

    run(test())


def test_an_rpc_of_another_service_and_another_rpcs_request_are_protocol_errors() -> None:
    async def test() -> None:
        plane = follower()
        with pytest.raises(RemoteProtocolError):
            await plane.service.handle(rpcs.CREATE_TOPICS, pb.DeleteTopicsRequest())
        with pytest.raises(RemoteProtocolError):
            await plane.service.handle(rpcs.DESCRIBE_NODE, node_pb2.DescribeNodeRequest())

    run(test())
