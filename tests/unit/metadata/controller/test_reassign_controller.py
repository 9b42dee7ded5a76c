"""Reassignments at the active controller: the service, and continuation by another controller."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from metadata.codec import encode
from metadata.control.brokers import fence
from metadata.image import PartitionImage
from metadata.records import NO_LEADER, PartitionChange, Reason
from quorumlog.wire import rpcs
from quorumlog.wire.v1 import controller_pb2 as pb
from quorumlog.wire.v1 import metadata_pb2
from tests.unit.metadata.builders import check_invariants
from tests.unit.metadata.controller.test_controller import beat, started
from tests.unit.metadata.fake_node import Plane, run, settle


async def moving(*, commit: bool = True) -> Plane:
    """Create `t` on brokers 1, 2; brokers 1 to 4 run.  commit: also begin to move it to 3, 4, and commit everything."""
    plane = await started(1, 2, 3, 4)
    plane.node.auto_commit = True
    row = metadata_pb2.IntList(values=[1, 2])
    topic = pb.NewTopic(name="t", partitions=-1, replication_factor=-1, assignment=[row])
    await plane.call(rpcs.CREATE_TOPICS, pb.CreateTopicsRequest(topics=[topic]))
    plane.node.auto_commit = commit
    if commit:
        reply = await plane.call(rpcs.ALTER_REASSIGNMENTS, wanted(3, 4, throttle=1000))
        assert (reply.result.error, reply.changed, reply.offset) == ("NONE", True, plane.replay.image.end_offset)
    return plane


def wanted(*replicas: int, index: int = 0, **options: Any) -> pb.AlterReassignmentsRequest:
    one = pb.Reassignment(topic="t", index=index, replicas=replicas)
    return pb.AlterReassignmentsRequest(partitions=[one], **options)


def partition(plane: Plane) -> PartitionImage:
    image = plane.replay.image
    check_invariants(image)
    topic = image.topic("t")
    found = None if topic is None else topic.partition(0)
    assert found is not None
    return found


async def propose(plane: Plane, *isr: int) -> Any:
    now, image = partition(plane), plane.replay.image
    item = pb.AlterPartitionItem(
        topic_id=image.topic_ids["t"].bytes,
        index=0,
        leader_epoch=now.leader_epoch,
        partition_epoch=now.partition_epoch,
        isr=[pb.IsrMember(broker_id=each, broker_epoch=image.brokers[each].epoch) for each in isr],
    )
    request = pb.AlterPartitionRequest(broker_id=now.leader, broker_epoch=image.brokers[now.leader].epoch, items=[item])
    return await plane.call(rpcs.ALTER_PARTITION, request)


def test_a_reassignment_is_requested_listed_and_completed() -> None:
    async def test() -> None:
        plane = await moving()
        listed = await plane.call(rpcs.LIST_REASSIGNMENTS, pb.ListReassignmentsRequest())
        assert (listed.throttle, listed.offset) == (1000, plane.replay.image.end_offset)
        (found,) = listed.partitions
        assert (found.topic, found.index, list(found.replicas)) == ("t", 0, [3, 4, 1, 2])
        assert (list(found.adding), list(found.removing), list(found.isr)) == ([3, 4], [1, 2], [1, 2])
        assert found.leader == 1
        again = await plane.call(rpcs.ALTER_REASSIGNMENTS, wanted(3, 4))
        assert (again.result.error, again.changed) == ("NONE", False)
        assert "already" in again.partitions[0].result.message
        reply = await propose(plane, 1, 2, 3, 4)
        assert (reply.items[0].result.error, reply.items[0].leader, list(reply.items[0].isr)) == ("NONE", 3, [3, 4])
        assert not (await plane.call(rpcs.LIST_REASSIGNMENTS, pb.ListReassignmentsRequest())).partitions

    run(test())


def test_a_dry_run_and_refused_reassignments_append_nothing() -> None:
    async def test() -> None:
        plane = await moving()
        end = plane.node.log_end_offset
        dry = wanted(1, 4, replace=True, throttle=-1)
        dry.header.validate_only = True
        reply = await plane.service.handle(rpcs.ALTER_REASSIGNMENTS, dry)
        assert isinstance(reply, pb.AlterReassignmentsReply)
        assert reply.result.error == "NONE"
        assert not reply.changed
        assert reply.partitions[0].changed
        for request, word in (
            (wanted(1, 4), "REASSIGNMENT_IN_PROGRESS"),
            (wanted(9), "INVALID_REPLICA_ASSIGNMENT"),
            (wanted(-1), "INVALID_REPLICA_ASSIGNMENT"),
            (wanted(1, index=-1), "UNKNOWN_TOPIC_OR_PARTITION"),
            (wanted(1, index=2**31 - 1), "UNKNOWN_TOPIC_OR_PARTITION"),
            (wanted(3, throttle=0), "INVALID_REQUEST"),
            (wanted(3, throttle=-(2**63)), "INVALID_REQUEST"),
            (pb.AlterReassignmentsRequest(), "INVALID_REQUEST"),
            (pb.AlterReassignmentsRequest(partitions=[pb.Reassignment()]), "UNKNOWN_TOPIC_OR_PARTITION"),
            (pb.AlterReassignmentsRequest(partitions=[pb.Reassignment()] * 10_000), "POLICY_VIOLATION"),
            (pb.AlterReassignmentsRequest(partitions=[pb.Reassignment()] * 100_001), "INVALID_REQUEST"),
        ):
            refused = await plane.call(rpcs.ALTER_REASSIGNMENTS, request)
            assert refused.result.error == word, refused.result
            assert not refused.changed
        assert plane.node.log_end_offset == end

    run(test())


def test_a_new_controller_completes_an_earlier_reassignment() -> None:
    async def test() -> None:
        plane = await moving()
        now = partition(plane)
        change = PartitionChange(
            plane.replay.image.topic_ids["t"], 0, Reason.ISR_EXPAND, -1, now.last_offset, isr=now.replica_ids
        )
        plane.node.append(plane.node.epoch, encode((change,)), 1)  # by a controller without further searches
        plane.node.commit()
        plane.node.lose(2)
        assert partition(plane).reassigning
        plane.node.win()
        await settle()
        assert (partition(plane).replica_ids, partition(plane).isr, partition(plane).leader) == ((3, 4), (3, 4), 3)
        assert plane.replay.image.cluster_config("reassignment.throttle.bytes.per.second") == "-1"

    run(test())


def test_a_controller_continues_reassignments_that_are_in_its_log() -> None:
    """The reassignment continues, although its request was answered with OUTCOME_UNKNOWN."""

    async def test() -> None:
        plane = await moving(commit=False)
        asked = plane.start(rpcs.ALTER_REASSIGNMENTS, wanted(3, 4))
        await settle()
        assert not asked.done()
        plane.node.lose(2)
        assert (await asked).result.error == "OUTCOME_UNKNOWN"
        plane.node.auto_commit = True
        plane.node.win()
        await settle()
        assert partition(plane).adding == (3, 4)
        assert (await plane.call(rpcs.ALTER_REASSIGNMENTS, wanted(3, 4))).result.error == "NONE"

    run(test())


def test_a_reassignment_completes_once_min_isr_no_longer_blocks_it() -> None:
    async def test() -> None:
        plane = await moving()
        await plane.call(rpcs.ALTER_REASSIGNMENTS, wanted(3, 2, replace=True))
        await minimum(plane, 2)
        await plane.call(rpcs.BROKER_HEARTBEAT, beat(plane, 2, want_fence=True))
        await propose(plane, 1, 3)
        await settle()
        assert partition(plane).reassigning  # 3 alone would be fewer than min.insync.replicas
        await minimum(plane, 1)
        await settle()
        assert (partition(plane).replica_ids, partition(plane).isr, partition(plane).leader) == ((3, 2), (3,), 3)

    run(test())


def test_a_reassignment_completes_when_the_eligible_broker_returns() -> None:
    async def test() -> None:
        plane = await moving()
        await plane.call(rpcs.ALTER_REASSIGNMENTS, wanted(3, 2, replace=True))
        await minimum(plane, 2)
        await plane.call(rpcs.BROKER_HEARTBEAT, beat(plane, 2, want_fence=True))
        await propose(plane, 1, 3)
        for broker_id in (1, 3):
            await plane.call(rpcs.BROKER_HEARTBEAT, beat(plane, broker_id, want_fence=True))
        await minimum(plane, 1)
        await settle()
        assert partition(plane).reassigning
        assert partition(plane).leader == NO_LEADER
        await plane.call(rpcs.BROKER_HEARTBEAT, beat(plane, 3))
        await settle()
        assert (partition(plane).replica_ids, partition(plane).leader) == ((3, 2), 3)

    run(test())


async def minimum(plane: Plane, value: int) -> None:
    change = pb.ConfigChanges(
        resource=pb.ConfigResource(scope=metadata_pb2.Config.SCOPE_TOPIC, name="t"),
        changes=[pb.ConfigChange(key="min.insync.replicas", value=str(value))],
    )
    assert (await plane.call(rpcs.ALTER_CONFIGS, pb.AlterConfigsRequest(resources=[change]))).result.error == "NONE"


def test_a_reassignment_completes_after_its_new_broker_was_unfenced() -> None:
    async def test() -> None:
        plane = await moving()
        await propose(plane, 1, 2, 3)
        for broker_id in (1, 2, 3, 4):
            await plane.call(rpcs.BROKER_HEARTBEAT, beat(plane, broker_id, want_fence=broker_id == 4))
        assert partition(plane).reassigning
        await plane.call(rpcs.BROKER_HEARTBEAT, beat(plane, 4))
        await propose(plane, 1, 2, 3, 4)
        assert partition(plane).replica_ids == (3, 4)

    run(test())


@pytest.mark.parametrize("is_cancelled", [False, True])
def test_an_unclean_election_completes_a_reassignment_without_old_replicas(is_cancelled: bool) -> None:
    async def test() -> None:
        plane = await started(1, 2)
        plane.node.auto_commit = True
        topic = pb.NewTopic(
            name="t", partitions=-1, replication_factor=-1, assignment=[metadata_pb2.IntList(values=[1])]
        )
        await plane.call(rpcs.CREATE_TOPICS, pb.CreateTopicsRequest(topics=[topic]))
        await plane.controller.execute(lambda image: fence(image, 1), 1_000)
        assert (await plane.call(rpcs.ALTER_REASSIGNMENTS, wanted(2))).result.error == "NONE"
        assert partition(plane).leader == NO_LEADER
        election = pb.ElectLeadersRequest(policy=pb.ElectLeadersRequest.POLICY_UNCLEAN)
        election.partitions.add(topic="t", index=0)
        runner = asyncio.ensure_future(plane.controller.run())
        if is_cancelled:
            plane.node.auto_commit = False
            asked = plane.start(rpcs.ELECT_LEADERS, election)
            await settle()
            asked.cancel()
            plane.node.auto_commit = True
            plane.node.commit()
        else:
            assert (await plane.call(rpcs.ELECT_LEADERS, election)).partitions[0].leader == 2
        for _ in range(100):
            await settle()
        assert (partition(plane).replica_ids, partition(plane).adding, partition(plane).removing) == ((2,), (), ())
        runner.cancel()

    run(test())
