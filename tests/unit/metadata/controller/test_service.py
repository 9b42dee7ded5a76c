"""The Controller service: the answering node, forwarding, and a named outcome for every call."""

from __future__ import annotations

import asyncio
from typing import Any
from uuid import UUID

import pytest
from google.protobuf.message import Message
from hypothesis import given, settings
from hypothesis import strategies as st

from metadata.codec import registration_to_wire
from metadata.controller.service import IN_PROGRESS_MAX, METHODS, Load
from metadata.records import Endpoint
from quorum.core.events import (
    AddVoter,
    CancelTarget,
    RemoveVoter,
    SetTarget,
    UpdateVoter,
    VoterChangeError,
    VoterChangeResult,
)
from quorum.core.types import ReplicaKey, VoterSet
from quorum.ports import UnreachableError
from quorumlog.errors import RemoteProtocolError
from quorumlog.wire import rpcs
from quorumlog.wire.rpcs import AnyRpc
from quorumlog.wire.v1 import controller_pb2 as pb
from quorumlog.wire.v1 import metadata_pb2, node_pb2
from tests.unit.metadata.builders import registration
from tests.unit.metadata.controller.test_controller import beat, new_topic, register, started
from tests.unit.metadata.fake_node import JumpingLoop, Plane, run, settle

DISK = UUID(int=44)


def follower(address: str | None = "there:1") -> Plane:
    plane = Plane()
    plane.node.lose(2, address)
    return plane


REQUESTS: dict[AnyRpc, Message] = {
    rpcs.REGISTER_BROKER: register(1),
    rpcs.BROKER_HEARTBEAT: pb.BrokerHeartbeatRequest(broker_id=1),
    rpcs.ALTER_PARTITION: pb.AlterPartitionRequest(broker_id=1),
    rpcs.ASSIGN_DIRECTORIES: pb.AssignDirectoriesRequest(broker_id=1),
    rpcs.ALLOCATE_PRODUCER_IDS: pb.AllocateProducerIdsRequest(broker_id=1),
    rpcs.CREATE_TOPICS: new_topic("t"),
    rpcs.DELETE_TOPICS: pb.DeleteTopicsRequest(names=["t"]),
    rpcs.DESCRIBE_TOPICS: pb.DescribeTopicsRequest(),
    rpcs.DESCRIBE_BROKERS: pb.DescribeBrokersRequest(),
    rpcs.ADD_PARTITIONS: pb.AddPartitionsRequest(topics=[pb.NewPartitions(topic="t", count=2)]),
    rpcs.REMOVE_PARTITIONS: pb.RemovePartitionsRequest(topic="t", count=1),
    rpcs.UNREGISTER_BROKER: pb.UnregisterBrokerRequest(broker_id=1),
    rpcs.ALTER_CONFIGS: pb.AlterConfigsRequest(),
    rpcs.DESCRIBE_CONFIGS: pb.DescribeConfigsRequest(),
    rpcs.ELECT_LEADERS: pb.ElectLeadersRequest(policy=pb.ElectLeadersRequest.POLICY_PREFERRED),
    rpcs.ALTER_REASSIGNMENTS: pb.AlterReassignmentsRequest(partitions=[pb.Reassignment(topic="t", replicas=[1])]),
    rpcs.LIST_REASSIGNMENTS: pb.ListReassignmentsRequest(),
    rpcs.CHANGE_VOTERS: pb.ChangeVotersRequest(remove=pb.RemoveVoter(node_id=2)),
    rpcs.TRANSFER_LEADER: pb.TransferLeaderRequest(to=2),
    rpcs.SET_PREFERRED_CONTROLLERS: pb.SetPreferredControllersRequest(node_ids=[2]),
    rpcs.DESCRIBE_PREFERRED_CONTROLLERS: pb.DescribePreferredControllersRequest(),
    rpcs.DESCRIBE_FEATURES: pb.DescribeFeaturesRequest(),
    rpcs.UPGRADE_FEATURE: pb.UpgradeFeatureRequest(name="metadata.version", level=1),
}


def test_every_method_of_the_controller_service_exists() -> None:
    assert {rpc for rpc in rpcs.RPCS if rpc.service is rpcs.Service.CONTROLLER} == set(METHODS) == set(REQUESTS)


# Who answers


def test_another_clusters_request_is_refused_before_anything_else() -> None:
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


def test_a_follower_forwards_once_and_passes_the_answer_on() -> None:
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
def test_a_leader_that_was_never_reached_has_done_nothing(rpc: AnyRpc) -> None:
    async def test() -> None:
        plane = follower()
        plane.transport.answer = UnreachableError("nobody listens", was_sent=False)
        reply = await plane.call(rpc, REQUESTS[rpc])
        assert (reply.result.error, reply.result.retriable) == ("NOT_CONTROLLER", True)

    run(test())


@pytest.mark.parametrize("rpc", REQUESTS, ids=str)
def test_a_leader_that_was_never_reached_is_forgotten_for_its_successor(rpc: AnyRpc) -> None:
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


def test_no_request_waits_for_a_hanging_leader_once_another_leads() -> None:
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
def test_a_confirmed_read_is_not_marked(rpc: AnyRpc) -> None:
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


def test_a_refusal_of_a_paused_leader_gives_the_reason() -> None:
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


def test_without_a_leader_a_call_waits_for_one_within_its_deadline() -> None:
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


def test_a_request_waits_for_the_address_of_a_new_leader() -> None:
    async def test() -> None:
        plane = follower(None)
        assert (
            await plane.call(rpcs.DESCRIBE_BROKERS, pb.DescribeBrokersRequest(), 1000)
        ).result.error == "NOT_CONTROLLER"
        assert plane.transport.calls == []

    run(test())


def test_call_fills_in_the_header() -> None:
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


def test_requests_in_progress_are_limited_separately_for_brokers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(IN_PROGRESS_MAX, Load.ADMINISTRATION, 3)

    async def test() -> None:
        plane = await started(1)
        waiting = [plane.start(rpcs.CREATE_TOPICS, new_topic(f"t{number}")) for number in range(3)]
        await settle()
        refused = await plane.call(rpcs.CREATE_TOPICS, new_topic("more"))
        assert (refused.result.error, refused.result.retriable) == ("OVERLOADED", True)
        assert (await plane.call(rpcs.BROKER_HEARTBEAT, beat(plane, 1))).result.error == "NONE"
        epoch = plane.replay.image.brokers[1].epoch
        ids = plane.start(rpcs.ALLOCATE_PRODUCER_IDS, pb.AllocateProducerIdsRequest(broker_id=1, broker_epoch=epoch))
        await settle()
        plane.node.commit()
        assert (await ids).result.error == "NONE", "brokers have room of their own, too"
        await asyncio.gather(*waiting)
        plane.node.auto_commit = True
        assert (await plane.call(rpcs.CREATE_TOPICS, new_topic("more"))).result.error == "NONE"

    run(test())


def test_isr_changes_overtake_earlier_administrative_requests() -> None:
    async def test() -> None:
        plane = await started(1, 2)
        plane.node.auto_commit = True
        await plane.call(rpcs.CREATE_TOPICS, new_topic("t", 1, 2))
        image = plane.replay.image
        topic = image.topic("t")
        assert topic is not None
        partition = topic.partitions[0]
        assert partition is not None
        item = pb.AlterPartitionItem(
            topic_id=topic.topic_id.bytes, index=0, leader_epoch=0, partition_epoch=0,
            isr=[pb.IsrMember(broker_id=partition.leader, broker_epoch=image.brokers[partition.leader].epoch)],
        )  # fmt: skip
        change = pb.AlterPartitionRequest(
            broker_id=partition.leader, broker_epoch=image.brokers[partition.leader].epoch, items=[item]
        )
        before = plane.node.log_end_offset
        bulk = [plane.start(rpcs.CREATE_TOPICS, new_topic(f"bulk{number}", 50)) for number in range(100)]
        reply = await plane.call(rpcs.ALTER_PARTITION, change)
        assert reply.items[0].result.error == "NONE"
        done = plane.replay.image.topic("t")
        assert done is not None
        assert done.partitions[0] is not None
        assert len(done.partitions[0].isr) == 1
        assert plane.node.log_end_offset - before < 10 * 51, "most of the bulk is still to be decided"
        assert {task_reply.result.error for task_reply in await asyncio.gather(*bulk)} == {"NONE"}

    run(test())


def test_a_broker_without_heartbeats_is_fenced_under_constant_administration() -> None:
    async def test() -> None:
        plane = await started(1, 2)
        plane.node.auto_commit = True
        await plane.call(rpcs.CREATE_TOPICS, new_topic("t", 1, 2))
        loop = asyncio.get_running_loop()
        assert isinstance(loop, JumpingLoop)
        bulk = [plane.start(rpcs.CREATE_TOPICS, new_topic(f"bulk{number}", 5), 600_000) for number in range(500)]
        await asyncio.sleep(0)
        loop.now += 6.1  # a session ends while all of them wait
        before = plane.node.log_end_offset
        turns = 0
        while not any(broker.fenced for broker in plane.replay.image.brokers.values()):
            turns += 1
            await asyncio.sleep(0)
        assert plane.node.log_end_offset - before < 100 * 6
        assert turns < 100
        await asyncio.gather(*bulk)

    run(test())


def test_queueing_counts_against_the_deadline() -> None:
    async def test() -> None:
        plane = await started(1)
        loop = asyncio.get_running_loop()
        assert isinstance(loop, JumpingLoop)
        first = plane.start(rpcs.CREATE_TOPICS, new_topic("a"), 2000)
        second = plane.start(rpcs.CREATE_TOPICS, new_topic("b"), 2000)
        await asyncio.sleep(0)
        begin, loop.now = loop.now, loop.now + 1.9  # so long the first one was decided
        plane.node.auto_commit = True
        end = plane.node.log_end_offset
        assert (await second).result.error == "REQUEST_TIMED_OUT"
        assert loop.now == begin + 1.9
        assert plane.node.log_end_offset == end, "nothing was done for it any more"
        await first

    run(test())


# Malformed


def test_malformed_requests_are_refused_by_name() -> None:
    async def test() -> None:
        plane = await started(1)
        end = plane.node.log_end_offset
        wire = registration_to_wire(registration(2))
        wire.incarnation_id = b"short"
        port = registration_to_wire(registration(2, endpoints=(Endpoint("A", "h", 70_000),)))
        negative = registration_to_wire(registration(2))
        negative.broker_id = -1
        cases: list[tuple[AnyRpc, Any, str]] = [
            (rpcs.REGISTER_BROKER, pb.RegisterBrokerRequest(registration=wire), "INVALID_REGISTRATION"),
            (rpcs.REGISTER_BROKER, pb.RegisterBrokerRequest(registration=port), "INVALID_REGISTRATION"),
            (rpcs.REGISTER_BROKER, pb.RegisterBrokerRequest(registration=negative), "INVALID_REGISTRATION"),
            (rpcs.REGISTER_BROKER, pb.RegisterBrokerRequest(), "INVALID_REGISTRATION"),
            (rpcs.DELETE_TOPICS, pb.DeleteTopicsRequest(topic_ids=[b"x"]), "INVALID_REQUEST"),
            (rpcs.ALTER_PARTITION, pb.AlterPartitionRequest(items=[pb.AlterPartitionItem()]), "INVALID_REQUEST"),
            (
                rpcs.ASSIGN_DIRECTORIES,
                pb.AssignDirectoriesRequest(items=[pb.AssignDirectoriesRequest.Item(topic_id=bytes(16))]),
                "INVALID_REQUEST",
            ),
            (rpcs.BROKER_HEARTBEAT, pb.BrokerHeartbeatRequest(directories_offline=[b""]), "INVALID_REQUEST"),
            (rpcs.CREATE_TOPICS, pb.CreateTopicsRequest(topics=[pb.NewTopic()] * 100_001), "INVALID_REQUEST"),
            (
                rpcs.CREATE_TOPICS,
                pb.CreateTopicsRequest(topics=[pb.NewTopic(assignment=[metadata_pb2.IntList()] * 100_001)]),
                "INVALID_REQUEST",
            ),
        ]
        for rpc, request, word in cases:
            reply = await plane.call(rpc, request)
            assert (reply.result.error, reply.result.retriable) == (word, False), rpc
            assert reply.result.message
        assert plane.node.log_end_offset == end

    run(test())


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(list(REQUESTS)), st.binary(max_size=80), st.integers(0, 40), st.integers(0, 255))
def test_any_request_gets_a_reply_and_the_image_stays_sound(rpc: AnyRpc, tail: bytes, at: int, byte: int) -> None:
    """A valid request with one byte changed and bytes added: refused or answered, never an exception."""
    wire = bytearray(REQUESTS[rpc].SerializeToString() + tail)
    if wire:
        wire[at % len(wire)] = byte
    request = type(REQUESTS[rpc])()
    try:
        request.ParseFromString(bytes(wire))
    except Exception:  # the transport refuses invalid messages
        return

    async def test() -> None:
        plane = await started(1)
        plane.node.auto_commit = True
        reply = await plane.call(rpc, request, 1000)
        assert reply.result.error
        assert plane.controller.pending is not None
        assert plane.controller.pending.digest() == plane.replay.image.digest()

    run(test())


# Describe


def test_topics_are_described_as_they_are_committed() -> None:
    async def test() -> None:
        plane = await started(1, 2, 3)
        created = plane.start(rpcs.CREATE_TOPICS, new_topic("t", 2, 3))
        described = plane.start(rpcs.DESCRIBE_TOPICS, pb.DescribeTopicsRequest())
        await settle()
        assert not described.done()
        plane.node.commit()
        await created
        reply = await described
        assert reply.offset == plane.replay.image.end_offset
        [topic] = reply.topics
        assert (topic.name, topic.internal, len(topic.partitions)) == ("t", False, 2)
        assert [(entry.key, entry.value) for entry in topic.configs] == [("min.insync.replicas", "2")]
        first = topic.partitions[0]
        assert sorted(first.isr) == [1, 2, 3]
        assert first.replicas[0].broker_id == first.leader
        one = await plane.call(rpcs.DESCRIBE_TOPICS, pb.DescribeTopicsRequest(names=["t", "none", "t"]))
        assert [(each.name, each.result.error) for each in one.topics] == [
            ("none", "UNKNOWN_TOPIC_OR_PARTITION"),
            ("t", "NONE"),
        ]

    run(test())


def test_too_large_a_description_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("metadata.controller.describe.PARTITIONS_IN_REPLY_MAX", 3)

    async def test() -> None:
        plane = await started(1)
        plane.node.auto_commit = True
        await plane.call(rpcs.CREATE_TOPICS, new_topic("a", 2))
        await plane.call(rpcs.CREATE_TOPICS, new_topic("b", 2))
        assert (await plane.call(rpcs.DESCRIBE_TOPICS, pb.DescribeTopicsRequest())).result.error == "POLICY_VIOLATION"
        assert len((await plane.call(rpcs.DESCRIBE_TOPICS, pb.DescribeTopicsRequest(names=["b"]))).topics) == 1

    run(test())


def test_brokers_are_described_with_their_applied_offsets() -> None:
    async def test() -> None:
        plane = await started(1, 2)
        plane.node.auto_commit = True
        await plane.call(rpcs.CREATE_TOPICS, new_topic("t", 4, 2))
        await plane.call(rpcs.BROKER_HEARTBEAT, beat(plane, 1, pending_changes=7))
        await plane.call(rpcs.BROKER_HEARTBEAT, beat(plane, 2, want_fence=True))
        reply = await plane.call(rpcs.DESCRIBE_BROKERS, pb.DescribeBrokersRequest())
        assert reply.cluster_id == "cluster"
        first, second = reply.brokers
        assert (first.broker_id, first.state, first.leaders, first.replicas) == (1, "unfenced", 4, 4)
        assert (first.pending_changes, first.metadata_offset + first.metadata_lag) == (7, reply.offset)
        assert (second.state, second.leaders, second.replicas) == ("fenced", 0, 4)
        assert first.endpoints[0].host == "host1"
        plane.node.lose(None, None)
        plane.node.win()
        reply = await plane.call(rpcs.DESCRIBE_BROKERS, pb.DescribeBrokersRequest())
        assert [broker.metadata_offset for broker in reply.brokers] == [-1, -1]

    run(test())


def test_a_producer_id_block_and_a_directory_through_the_service() -> None:
    async def test() -> None:
        plane = await started(1)
        plane.node.auto_commit = True
        epoch = plane.replay.image.brokers[1].epoch
        request = pb.AllocateProducerIdsRequest(broker_id=1, broker_epoch=epoch)
        blocks = [await plane.call(rpcs.ALLOCATE_PRODUCER_IDS, request) for _ in range(2)]
        assert [(block.first_producer_id, block.count) for block in blocks] == [(0, 1000), (1000, 1000)]
        created = await plane.call(rpcs.CREATE_TOPICS, new_topic("t"))
        item = pb.AssignDirectoriesRequest.Item(
            topic_id=created.topics[0].topic_id, index=0, directory_id=registration(1).directory_ids[0].bytes
        )
        assigned = await plane.call(
            rpcs.ASSIGN_DIRECTORIES, pb.AssignDirectoriesRequest(broker_id=1, broker_epoch=epoch, items=[item])
        )
        assert assigned.result.error == "NONE"

    run(test())


def test_an_isr_change_through_the_service() -> None:
    async def test() -> None:
        plane = await started(1, 2)
        plane.node.auto_commit = True
        topic = pb.NewTopic(name="t", partitions=-1, replication_factor=-1, assignment=[{"values": [1, 2]}])
        created = await plane.call(rpcs.CREATE_TOPICS, pb.CreateTopicsRequest(topics=[topic]))
        image = plane.replay.image
        item = pb.AlterPartitionItem(
            topic_id=created.topics[0].topic_id, isr=[pb.IsrMember(broker_id=1, broker_epoch=image.brokers[1].epoch)]
        )
        request = pb.AlterPartitionRequest(broker_id=1, broker_epoch=image.brokers[1].epoch, items=[item])
        reply = await plane.call(rpcs.ALTER_PARTITION, request)
        assert reply.items[0].result.error == "NONE"
        assert (list(reply.items[0].isr), reply.items[0].partition_epoch) == ([1], 1)
        again = await plane.call(rpcs.ALTER_PARTITION, request)
        assert again.items[0].result.error == "INVALID_UPDATE_VERSION"

    run(test())


def test_topics_are_deleted_and_validated_through_the_service() -> None:
    async def test() -> None:
        plane = await started(1)
        plane.node.auto_commit = True
        topic_id = (await plane.call(rpcs.CREATE_TOPICS, new_topic("t"))).topics[0].topic_id
        end = plane.node.log_end_offset
        validate = pb.DeleteTopicsRequest(names=["t"])
        validate.header.validate_only = True
        assert (await plane.call(rpcs.DELETE_TOPICS, validate)).topics[0].result.error == "NONE"
        create = new_topic("u")
        create.header.validate_only = True
        assert (await plane.call(rpcs.CREATE_TOPICS, create)).topics[0].topic_id == b""
        assert plane.node.log_end_offset == end
        deleted = await plane.call(rpcs.DELETE_TOPICS, pb.DeleteTopicsRequest(topic_ids=[topic_id], names=["none"]))
        assert [(each.name, each.result.error) for each in deleted.topics] == [
            ("none", "UNKNOWN_TOPIC_OR_PARTITION"),
            ("t", "NONE"),
        ]
        assert deleted.topics[1].offset == plane.node.log_end_offset

    run(test())


# Voters


def test_changes_of_voters_are_passed_to_the_quorum() -> None:
    voters = [pb.VoterAddress(node_id=1, address="a:1"), pb.VoterAddress(node_id=2, address="b:2")]
    asked = [
        (
            pb.ChangeVotersRequest(add=pb.AddVoter(node_id=4, address="d:4", replace=True)),
            AddVoter(4, "d:4", None, True),
        ),
        (
            pb.ChangeVotersRequest(add=pb.AddVoter(node_id=4, address="d:4", directory_id=DISK.bytes)),
            AddVoter(4, "d:4", DISK),
        ),
        (pb.ChangeVotersRequest(remove=pb.RemoveVoter(node_id=2)), RemoveVoter(2)),
        (
            pb.ChangeVotersRequest(remove=pb.RemoveVoter(node_id=2, directory_id=DISK.bytes)),
            RemoveVoter(2, DISK),
        ),
        (
            pb.ChangeVotersRequest(update=pb.UpdateVoter(node_id=2, directory_id=DISK.bytes, address="d:5")),
            UpdateVoter(ReplicaKey(2, DISK), "d:5"),
        ),
        (pb.ChangeVotersRequest(set_target=pb.SetTargetVoters(voters=voters)), SetTarget(((1, "a:1"), (2, "b:2")))),
        (pb.ChangeVotersRequest(cancel_target=pb.CancelTargetVoters()), CancelTarget()),
    ]

    async def test() -> None:
        plane = await started(1)
        for request, change in asked:
            request.header.validate_only = True
            reply = await plane.call(rpcs.CHANGE_VOTERS, request)
            assert (reply.result.error, reply.changed, reply.offset) == ("NONE", True, 7)
            assert plane.node.asked[-1] == (change, True)

    run(test())


@pytest.mark.parametrize("error", [error for error in VoterChangeError if error is not VoterChangeError.NONE])
def test_every_refusal_of_the_quorum_has_an_error_name(error: VoterChangeError) -> None:
    async def test() -> None:
        plane = await started(1)
        plane.node.changed = VoterChangeResult(error, "why", "what to do", False, 0, VoterSet(), None)
        reply = await plane.call(rpcs.CHANGE_VOTERS, pb.ChangeVotersRequest(remove=pb.RemoveVoter(node_id=2)))
        assert reply.result.error not in ("", "NONE")
        assert (reply.result.message, reply.result.next, reply.changed) == ("why", "what to do", False)

    run(test())


@pytest.mark.parametrize(
    "request_",
    [
        pb.ChangeVotersRequest(),
        pb.ChangeVotersRequest(add=pb.AddVoter(node_id=-1, address="a:1")),
        pb.ChangeVotersRequest(add=pb.AddVoter(node_id=1, address="")),
        pb.ChangeVotersRequest(add=pb.AddVoter(node_id=1, address="a:1", directory_id=b"short")),
        pb.ChangeVotersRequest(remove=pb.RemoveVoter(node_id=1, directory_id=b"")),
        pb.ChangeVotersRequest(update=pb.UpdateVoter(node_id=1, address="a:1")),
        pb.ChangeVotersRequest(add=pb.AddVoter(node_id=1, address="a:70000")),
        pb.ChangeVotersRequest(set_target=pb.SetTargetVoters()),
        pb.ChangeVotersRequest(set_target=pb.SetTargetVoters(voters=[pb.VoterAddress(node_id=1, address="a:1")] * 2)),
        pb.ChangeVotersRequest(set_target=pb.SetTargetVoters(voters=[pb.VoterAddress(node_id=1, address="a:1")] * 99)),
    ],
)
def test_impossible_changes_of_voters_are_refused(request_: pb.ChangeVotersRequest) -> None:
    async def test() -> None:
        plane = await started(1)
        reply = await plane.call(rpcs.CHANGE_VOTERS, request_)
        assert reply.result.error == "INVALID_REQUEST"
        assert plane.node.asked == []

    run(test())


def test_a_transfer_to_the_present_leader_succeeds() -> None:
    async def test() -> None:
        plane = await started(1)
        assert (await plane.call(rpcs.TRANSFER_LEADER, pb.TransferLeaderRequest(to=1))).result.error == "NONE"
        assert plane.node.asked == []
        assert (await plane.call(rpcs.TRANSFER_LEADER, pb.TransferLeaderRequest(to=2))).result.error == "NONE"
        assert plane.node.asked == [(2, False)]

    run(test())
