"""The Controller service: malformed requests, and requests that reach the controller."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from metadata.codec import registration_to_wire
from metadata.controller.service import METHODS
from metadata.records import Endpoint
from quorumlog.wire import rpcs
from quorumlog.wire.rpcs import AnyRpc
from quorumlog.wire.v1 import controller_pb2 as pb
from quorumlog.wire.v1 import metadata_pb2
from tests.unit.metadata.builders import registration
from tests.unit.metadata.controller.service_requests import REQUESTS
from tests.unit.metadata.controller.test_controller import beat, new_topic, started
from tests.unit.metadata.fake_node import run, settle


def test_every_method_of_the_controller_service_exists() -> None:
    assert {rpc for rpc in rpcs.RPCS if rpc.service is rpcs.Service.CONTROLLER} == set(METHODS) == set(REQUESTS)


# Malformed


def test_malformed_requests_are_refused_with_an_error_code() -> None:
    async def test() -> None:
        plane = await started(1)
        end = plane.node.log_end_offset
        wire = registration_to_wire(registration(2))
        wire.incarnation_id = b"short"
        port = registration_to_wire(registration(2, endpoints=(Endpoint("A", "h", 70_000),)))
        negative = registration_to_wire(registration(2))
        negative.broker_id = -1
        sound = registration_to_wire(registration(2))
        cases: list[tuple[AnyRpc, Any, str]] = [
            (rpcs.REGISTER_BROKER, pb.RegisterBrokerRequest(registration=wire), "INVALID_REGISTRATION"),
            (rpcs.REGISTER_BROKER, pb.RegisterBrokerRequest(registration=port), "INVALID_REGISTRATION"),
            (rpcs.REGISTER_BROKER, pb.RegisterBrokerRequest(registration=negative), "INVALID_REGISTRATION"),
            (rpcs.REGISTER_BROKER, pb.RegisterBrokerRequest(), "INVALID_REGISTRATION"),
            (
                rpcs.REGISTER_BROKER,
                pb.RegisterBrokerRequest(registration=sound, early_topic_ids=[b"short"]),
                "INVALID_REGISTRATION",
            ),
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
def test_any_request_gets_a_reply_and_the_image_stays_consistent(rpc: AnyRpc, tail: bytes, at: int, byte: int) -> None:
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


def test_topics_are_described_once_they_are_committed() -> None:
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


def test_a_description_of_too_many_partitions_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_the_service_allocates_producer_ids_and_assigns_directories() -> None:
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


def test_the_service_changes_the_isr_and_refuses_a_repeated_change() -> None:
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


def test_the_service_deletes_topics_and_validates_creations_and_deletions() -> None:
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
