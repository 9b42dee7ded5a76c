"""The active controller: activation, replies, a lost leadership, sessions and fencing."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from itertools import count
from typing import Any

import pytest
from google.protobuf.message import Message

from metadata.codec import encode, registration_to_wire
from metadata.control.decision import Decision
from metadata.control.errors import Outcome
from metadata.controller import ControllerSettings, MetadataReplay
from metadata.image import ClusterImage
from metadata.records import NO_LEADER, BrokerChange, NoOp, Record
from quorum.core.events import VoterChangeError, VoterChangeResult
from quorum.core.types import Batch, VoterSet
from quorumlog.errors import CorruptStoreError
from quorumlog.wire import rpcs
from quorumlog.wire.errors import ApiError
from quorumlog.wire.rpcs import AnyRpc
from quorumlog.wire.v1 import controller_pb2 as pb
from tests.unit.metadata.builders import check_invariants, directory, registration
from tests.unit.metadata.fake_node import JumpingLoop, Plane, run, settle


def new_topic(name: str, partitions: int = 1, factor: int = 1) -> pb.CreateTopicsRequest:
    topic = pb.NewTopic(name=name, partitions=partitions, replication_factor=factor)
    return pb.CreateTopicsRequest(topics=[topic])


def beat(plane: Plane, broker_id: int, **changes: Any) -> pb.BrokerHeartbeatRequest:
    """A heartbeat of a broker that has applied all that is committed."""
    known = plane.replay.image.brokers.get(broker_id)
    fields = {
        "broker_id": broker_id,
        "broker_epoch": known.epoch if known else 0,
        "applied_offset": plane.replay.image.end_offset,
        "received_offset": plane.replay.image.end_offset,
    }
    return pb.BrokerHeartbeatRequest(**{**fields, **changes})


def register(broker_id: int, number: int = 0, **changes: Any) -> pb.RegisterBrokerRequest:
    return pb.RegisterBrokerRequest(registration=registration_to_wire(registration(broker_id, number, **changes)))


async def started(*broker_ids: int, settings: ControllerSettings | None = None) -> Plane:
    """An active controller with these brokers unfenced, everything committed."""
    plane = Plane(settings)
    plane.node.auto_commit = True
    plane.node.win()
    for broker_id in broker_ids:
        assert (await plane.call(rpcs.REGISTER_BROKER, register(broker_id))).result.error == "NONE"
        assert not (await plane.call(rpcs.BROKER_HEARTBEAT, beat(plane, broker_id))).fenced
    plane.node.auto_commit = False
    return plane


# Activation


def test_a_controller_is_active_once_the_leader_change_of_its_epoch_is_applied() -> None:
    async def test() -> None:
        plane = Plane()
        plane.node.win(commit=False)
        assert not plane.controller.active
        asked = plane.start(rpcs.CREATE_TOPICS, new_topic("t"))
        await settle()
        assert not asked.done()
        assert len(plane.node.log) == 1
        plane.node.commit()
        assert plane.controller.active
        assert plane.controller.pending is not None
        assert plane.controller.pending.digest() == plane.replay.image.digest()
        reply = await asked
        assert reply.topics[0].result.error == "INVALID_REPLICATION_FACTOR"  # there are no brokers

    run(test())


def test_a_leader_change_of_another_epoch_activates_no_controller() -> None:
    async def test() -> None:
        plane = Plane()
        plane.node.win(commit=False)
        plane.node.lose(2, "there:1")
        plane.node.commit()
        assert not plane.controller.active
        plane.node.win(commit=False)
        assert not plane.controller.active
        plane.node.commit()
        assert plane.controller.epoch == 3

    run(test())


def test_the_pending_image_of_a_new_controller_contains_the_whole_log_of_earlier_leaders() -> None:
    async def test() -> None:
        first = await started(1, 2)
        asked = first.start(rpcs.CREATE_TOPICS, new_topic("t"))
        await settle()
        second = Plane()
        second.node.log = list(first.node.log)  # the second node holds it, but no node knows that it is committed
        second.node.epoch = first.node.epoch
        second.node.win(commit=False)
        assert not second.controller.active
        second.node.commit()
        assert second.controller.pending is not None
        assert "t" in second.controller.pending.topic_ids
        asked.cancel()

    run(test())


# Replies


def test_a_reply_waits_for_the_commit_of_its_records() -> None:
    async def test() -> None:
        plane = await started(1)
        asked = plane.start(rpcs.CREATE_TOPICS, new_topic("t"))
        await settle()
        assert not asked.done()
        assert "t" not in plane.replay.image.topic_ids
        assert plane.controller.pending is not None
        assert "t" in plane.controller.pending.topic_ids
        plane.node.commit()
        reply = await asked
        assert reply.topics[0].result.error == "NONE"
        assert reply.topics[0].offset == plane.node.log_end_offset

    run(test())


def test_refusals_and_no_ops_wait_for_the_records_that_they_depend_on() -> None:
    async def test() -> None:
        plane = await started(1)
        first = plane.start(rpcs.CREATE_TOPICS, new_topic("t"))
        again = plane.start(rpcs.CREATE_TOPICS, new_topic("t"))
        wrong = plane.start(rpcs.CREATE_TOPICS, new_topic("bad name"))
        same = plane.start(rpcs.REGISTER_BROKER, register(1))
        await settle()
        assert not any(task.done() for task in (first, again, wrong, same))
        plane.node.commit()
        assert (await first).topics[0].result.error == "NONE"
        assert (await again).topics[0].result.error == "TOPIC_ALREADY_EXISTS"
        assert (await again).topics[0].identical
        assert (await wrong).topics[0].result.error == "INVALID_TOPIC_EXCEPTION"
        assert (await same).broker_epoch == plane.replay.image.brokers[1].epoch

    run(test())


def test_a_refusal_that_depends_only_on_committed_state_is_sent_immediately() -> None:
    async def test() -> None:
        plane = await started(1)
        reply = await plane.call(rpcs.CREATE_TOPICS, new_topic(".."))
        assert reply.topics[0].result.error == "INVALID_TOPIC_EXCEPTION"
        assert reply.topics[0].offset == plane.node.high_watermark

    run(test())


def test_a_request_without_records_is_answered_once_the_leader_is_confirmed() -> None:
    async def test() -> None:
        plane = await started(1)
        plane.node.confirm, plane.node.rounds = asyncio.Event(), 0
        read = plane.start(rpcs.DESCRIBE_TOPICS, pb.DescribeTopicsRequest())
        wrong = plane.start(rpcs.CREATE_TOPICS, new_topic(".."))
        stale = plane.start(rpcs.BROKER_HEARTBEAT, beat(plane, 1, broker_epoch=0))
        waiting = (read, wrong, stale)
        await settle()
        assert not any(task.done() for task in waiting)
        beating = await plane.call(rpcs.BROKER_HEARTBEAT, beat(plane, 1))
        assert not beating.fenced, "a request without changes is answered immediately"
        created = plane.start(rpcs.CREATE_TOPICS, new_topic("t"))
        await settle()
        plane.node.commit()
        assert (await created).topics[0].result.error == "NONE", "the commit confirms the leader"
        assert plane.node.rounds == len(waiting)
        assert not any(task.done() for task in waiting)
        plane.node.confirm.set()
        assert (await wrong).topics[0].result.error == "INVALID_TOPIC_EXCEPTION"
        assert (await stale).result.error == "STALE_BROKER_EPOCH"
        assert [topic.name for topic in (await read).topics] == ["t"]

    run(test())


def test_an_unconfirmed_leader_serves_no_requests() -> None:
    async def test() -> None:
        plane = await started(1)
        plane.node.confirm = asyncio.Event()
        asked: list[tuple[AnyRpc, Message]] = [
            (rpcs.DESCRIBE_TOPICS, pb.DescribeTopicsRequest()),
            (rpcs.CREATE_TOPICS, new_topic("..")),
            (rpcs.TRANSFER_LEADER, pb.TransferLeaderRequest(to=1)),
            (rpcs.CHANGE_VOTERS, pb.ChangeVotersRequest(cancel_target=pb.CancelTargetVoters())),
        ]
        plane.node.changed = VoterChangeResult(VoterChangeError.NONE, "so already", "", False, 0, VoterSet(), None)
        late = [plane.start(*one, timeout_ms=1000) for one in asked]
        assert {(await task).result.error for task in late} == {"REQUEST_TIMED_OUT"}
        early = [plane.start(*one) for one in asked]
        await settle()
        plane.node.leading = False
        plane.node.confirm.set()
        assert {(await task).result.error for task in early} == {"NOT_CONTROLLER"}

    run(test())


def test_an_unknown_outcome_of_a_change_is_reported_as_unknown() -> None:
    async def test() -> None:
        plane = await started(1)
        plane.node.confirm = asyncio.Event()
        doubt = VoterChangeResult(VoterChangeError.OUTCOME_UNKNOWN, "who knows", "", False, 0, VoterSet(), None)
        plane.node.changed = doubt
        reply = await plane.call(rpcs.CHANGE_VOTERS, pb.ChangeVotersRequest(cancel_target=pb.CancelTargetVoters()))
        assert reply.result.error == "OUTCOME_UNKNOWN"

    run(test())


def test_control_records_between_metadata_records_take_offsets() -> None:
    async def test() -> None:
        plane = await started(1)
        plane.node.append_control()
        plane.node.append_control()
        asked = plane.start(rpcs.CREATE_TOPICS, new_topic("t"))
        await settle()
        plane.node.append_control()
        late = plane.start(rpcs.CREATE_TOPICS, new_topic("t"))
        await settle()
        plane.node.commit()
        assert (await asked).topics[0].result.error == "NONE"
        assert (await late).topics[0].offset == plane.node.log_end_offset
        assert plane.controller.pending is not None
        assert plane.controller.pending.digest() == plane.replay.image.digest()
        partition = plane.replay.image.topics[plane.replay.image.topic_ids["t"]].partitions[0]
        assert partition is not None
        assert plane.node.log[-2].base_offset < partition.created < plane.node.log[-1].base_offset

    run(test())


def test_a_change_that_times_out_has_an_unknown_outcome_only_if_it_was_appended() -> None:
    async def test() -> None:
        plane = await started(1)
        changed = plane.start(rpcs.CREATE_TOPICS, new_topic("t"), 1000)
        nothing = plane.start(rpcs.CREATE_TOPICS, new_topic(".."), 1000)
        read = plane.start(rpcs.DESCRIBE_TOPICS, pb.DescribeTopicsRequest(), 1000)
        assert (await changed).result.error == "OUTCOME_UNKNOWN"
        assert (await nothing).result.error == "REQUEST_TIMED_OUT"
        assert (await read).result.error == "REQUEST_TIMED_OUT"
        assert (await read).result.retriable
        assert asyncio.get_running_loop().time() < 1002.5

    run(test())


# When leadership ends


def test_a_lost_leadership_leaves_appended_changes_unknown_and_refuses_other_requests() -> None:
    async def test() -> None:
        plane = await started(1)
        appended = plane.start(rpcs.CREATE_TOPICS, new_topic("t"))
        refused = plane.start(rpcs.CREATE_TOPICS, new_topic("t"))
        read = plane.start(rpcs.DESCRIBE_TOPICS, pb.DescribeTopicsRequest())
        await settle()
        plane.node.lose(2, None, truncate=True)
        assert (await appended).result.error == "OUTCOME_UNKNOWN"
        assert (await appended).result.retriable
        assert (await refused).result.error == "NOT_CONTROLLER"
        assert (await read).result.error == "NOT_CONTROLLER"
        assert plane.controller.pending is None
        plane.node.auto_commit = True
        plane.node.win()
        assert plane.controller.pending is not None
        assert "t" not in plane.controller.pending.topic_ids
        assert (await plane.call(rpcs.CREATE_TOPICS, new_topic("t"))).topics[0].result.error == "NONE"
        assert plane.controller.pending.digest() != ""

    run(test())


def test_an_appended_change_may_be_committed_by_the_next_leader() -> None:
    async def test() -> None:
        plane = await started(1)
        appended = plane.start(rpcs.CREATE_TOPICS, new_topic("t"))
        await settle()
        plane.node.lose(2, None)
        assert (await appended).result.error == "OUTCOME_UNKNOWN"
        plane.node.commit()  # the new leader commits the batch, so the batch is decoded, and no prepared result is used
        assert "t" in plane.replay.image.topic_ids

    run(test())


def test_an_append_that_the_node_refuses_changes_nothing() -> None:
    async def test() -> None:
        plane = await started(1)
        plane.node.leading = False  # only the node knows this yet, not the controller
        reply = await plane.call(rpcs.CREATE_TOPICS, new_topic("t"))
        assert reply.result.error == "NOT_CONTROLLER"
        assert plane.controller.pending is not None
        assert "t" not in plane.controller.pending.topic_ids
        assert (
            await plane.call(rpcs.BROKER_HEARTBEAT, beat(plane, 1, want_fence=True))
        ).result.error == "NOT_CONTROLLER"

    run(test())


# Replay


def test_reused_and_decoded_batches_give_the_same_image() -> None:
    async def test() -> None:
        plane = await started(1, 2, 3)
        plane.node.auto_commit = True
        await plane.call(rpcs.CREATE_TOPICS, new_topic("t", 50, 3))
        await plane.call(rpcs.DELETE_TOPICS, pb.DeleteTopicsRequest(names=["t"]))
        await plane.call(rpcs.CREATE_TOPICS, new_topic("t", 20, 2))
        standby = MetadataReplay()
        for batch in plane.node.log:
            standby.apply(batch)
        assert standby.image.digest() == plane.replay.image.digest()
        assert standby.image == plane.replay.image

    run(test())


def test_subscribers_see_every_batch_in_order() -> None:
    async def test() -> None:
        plane = Plane()
        seen: list[tuple[int, int, int]] = []
        at: list[int] = []

        def callback(old: ClusterImage, new: ClusterImage, records: Sequence[Record] | None) -> None:
            assert records is not None
            assert plane.replay.image is new
            seen.append((old.end_offset, new.end_offset, len(records)))
            at.append(plane.replay.timestamp_ms)

        stop = plane.replay.subscribe(callback)
        plane.node.auto_commit = True
        plane.node.win()
        await plane.call(rpcs.REGISTER_BROKER, register(1))
        assert seen == [(0, 1, 0), (1, 2, 1)]
        assert at == [1_700_000_000_000, 1_700_000_000_001]
        stop()
        await plane.call(rpcs.REGISTER_BROKER, register(2))
        assert len(seen) == 2

    run(test())


def test_a_wait_for_an_offset_ends_once_the_offset_is_applied() -> None:
    async def test() -> None:
        plane = await started(1)
        end = plane.node.log_end_offset
        await plane.replay.wait_for(end)
        waits = [asyncio.ensure_future(plane.replay.wait_for(end + number)) for number in (1, 2, 3)]
        waits[0].cancel()
        plane.node.append_control()
        plane.node.append_control()
        await settle()
        plane.node.commit()
        await waits[1]
        assert not waits[2].done()
        waits[2].cancel()

    run(test())


def test_the_replay_fails_at_a_batch_that_cannot_be_decoded() -> None:
    replay = MetadataReplay()
    with pytest.raises(CorruptStoreError, match="offset 0"):
        replay.apply(Batch(0, 1, 1, 0, b"\xff\xff"))
    assert replay.image == ClusterImage()


# Heartbeats and sessions


def test_a_heartbeat_that_unfences_a_broker_is_answered_from_the_committed_image() -> None:
    async def test() -> None:
        plane = await started(1)
        asked = plane.start(rpcs.REGISTER_BROKER, register(2))
        await settle()
        plane.node.commit()
        epoch = (await asked).broker_epoch
        behind = await plane.call(rpcs.BROKER_HEARTBEAT, beat(plane, 2, applied_offset=epoch))
        assert (behind.fenced, behind.caught_up) == (True, False)
        unfencing = plane.start(rpcs.BROKER_HEARTBEAT, beat(plane, 2))
        await settle()
        assert not unfencing.done()
        second = await plane.call(rpcs.BROKER_HEARTBEAT, beat(plane, 2))  # no change: answered at once
        assert second.fenced
        plane.node.commit()
        assert not (await unfencing).fenced
        assert not (await plane.call(rpcs.BROKER_HEARTBEAT, beat(plane, 2))).fenced

    run(test())


def test_a_steady_heartbeat_does_not_wait_behind_bulk_work() -> None:
    async def test() -> None:
        plane = await started(1)
        bulk = plane.start(rpcs.CREATE_TOPICS, new_topic("t", 9000))
        await settle()
        reply = await plane.call(rpcs.BROKER_HEARTBEAT, beat(plane, 1))
        assert (reply.result.error, reply.fenced) == ("NONE", False)
        assert not bulk.done()
        bulk.cancel()

    run(test())


def test_only_a_broker_without_heartbeats_is_fenced() -> None:
    async def test() -> None:
        plane = await started(1, 2, 3)
        plane.node.auto_commit = True
        await plane.call(rpcs.CREATE_TOPICS, new_topic("t", 9, 3))
        for _ in range(12):
            await asyncio.sleep(1)
            for broker_id in (1, 3):
                await plane.call(rpcs.BROKER_HEARTBEAT, beat(plane, broker_id))
        image = plane.replay.image
        assert [image.brokers[broker_id].fenced for broker_id in (1, 2, 3)] == [False, True, False]
        assert image.leader_count(2) == 0
        assert image.leader_count(1) + image.leader_count(3) == 9
        check_invariants(image)
        await plane.call(rpcs.BROKER_HEARTBEAT, beat(plane, 2))
        assert not plane.replay.image.brokers[2].fenced

    run(test())


def test_brokers_whose_heartbeats_stop_together_are_all_fenced() -> None:
    async def test() -> None:
        plane = await started(1, 2, 3)
        plane.node.auto_commit = True
        await plane.call(rpcs.CREATE_TOPICS, new_topic("t", 9, 3))
        await asyncio.sleep(7)
        image = plane.replay.image
        assert all(broker.fenced for broker in image.brokers.values())
        assert image.leader_count(NO_LEADER) == 9
        check_invariants(image)
        fenced = [batch for batch in plane.node.log[-3:] if batch.control is None]
        assert len(fenced) == 3  # one batch for each broker

    run(test())


def test_the_session_timeout_follows_the_settings() -> None:
    async def test() -> None:
        plane = await started(1, settings=ControllerSettings(session_timeout_ms=500))
        plane.node.auto_commit = True
        await asyncio.sleep(0.45)
        assert not plane.replay.image.brokers[1].fenced
        await asyncio.sleep(0.1)
        assert plane.replay.image.brokers[1].fenced

    run(test())


def test_a_pause_of_the_controller_fences_no_broker() -> None:
    async def test() -> None:
        plane = await started(1, 2)
        plane.node.auto_commit = True
        loop = asyncio.get_running_loop()
        assert isinstance(loop, JumpingLoop)
        loop.now += 60  # the process was suspended
        await settle()
        assert not any(broker.fenced for broker in plane.replay.image.brokers.values())
        await asyncio.sleep(7)
        assert all(broker.fenced for broker in plane.replay.image.brokers.values())

    run(test())


def test_a_new_controller_gives_every_broker_a_fresh_session() -> None:
    async def test() -> None:
        plane = await started(1, 2)
        plane.node.auto_commit = True
        await asyncio.sleep(5)
        plane.node.lose(None, None)
        plane.node.win()
        await asyncio.sleep(5)
        assert not any(broker.fenced for broker in plane.replay.image.brokers.values())
        await asyncio.sleep(2)
        assert all(broker.fenced for broker in plane.replay.image.brokers.values())

    run(test())


def test_a_controller_that_is_not_active_fences_no_broker() -> None:
    async def test() -> None:
        plane = await started(1)
        plane.node.auto_commit = True
        plane.node.lose(2, "there:1")
        await asyncio.sleep(60)
        assert not plane.replay.image.brokers[1].fenced

    run(test())


def test_a_broker_id_in_use_is_refused_until_its_session_ends() -> None:
    async def test() -> None:
        plane = await started(1, 2)
        plane.node.auto_commit = True
        other = register(1, 1, directory_ids=(directory(1, 5),))
        refused = await plane.call(rpcs.REGISTER_BROKER, other)
        assert refused.result.error == "DUPLICATE_BROKER_REGISTRATION"
        assert refused.result.retriable
        await asyncio.sleep(7)
        accepted = await plane.call(rpcs.REGISTER_BROKER, other)
        assert accepted.result.error == "NONE"

    run(test())


def test_a_heartbeat_of_an_old_incarnation_does_not_extend_the_session() -> None:
    async def test() -> None:
        plane = await started(1)
        plane.node.auto_commit = True
        old = plane.replay.image.brokers[1].epoch
        await plane.call(rpcs.REGISTER_BROKER, register(1, 1))
        session = plane.controller.session(1)
        assert session is not None
        contact = session.last_contact
        for _ in range(3):
            await asyncio.sleep(0.5)
            reply = await plane.call(rpcs.BROKER_HEARTBEAT, beat(plane, 1, broker_epoch=old))
            assert reply.result.error == "STALE_BROKER_EPOCH"
        assert plane.controller.session(1) is session
        assert session.last_contact == contact

    run(test())


def test_a_controlled_shutdown_waits_until_the_other_brokers_have_applied_it() -> None:
    async def test() -> None:
        plane = await started(1, 2)
        plane.node.auto_commit = True
        await plane.call(rpcs.CREATE_TOPICS, new_topic("t", 4, 2))
        behind = plane.replay.image.end_offset
        leaving = await plane.call(rpcs.BROKER_HEARTBEAT, beat(plane, 1, want_shutdown=True))
        assert (leaving.should_shutdown, leaving.leaders_left) == (False, 0)
        assert plane.replay.image.leader_count(2) == 4
        await plane.call(rpcs.BROKER_HEARTBEAT, beat(plane, 2, applied_offset=behind))
        assert not (await plane.call(rpcs.BROKER_HEARTBEAT, beat(plane, 1, want_shutdown=True))).should_shutdown
        await plane.call(rpcs.BROKER_HEARTBEAT, beat(plane, 2))
        assert (await plane.call(rpcs.BROKER_HEARTBEAT, beat(plane, 1, want_shutdown=True))).should_shutdown
        assert plane.replay.image.brokers[1].fenced

    run(test())


def test_the_permission_to_shut_down_waits_for_its_commit() -> None:
    async def test() -> None:
        plane = await started(1)
        first = plane.start(rpcs.BROKER_HEARTBEAT, beat(plane, 1, want_shutdown=True))
        await settle()
        second = plane.start(rpcs.BROKER_HEARTBEAT, beat(plane, 1, want_shutdown=True))
        await settle()
        assert not first.done()
        assert not second.done()
        plane.node.commit()
        assert (await first).should_shutdown
        assert (await second).should_shutdown

    run(test())


def test_k21_heartbeats_are_answered_between_the_batches_of_a_large_failure() -> None:
    async def test() -> None:
        plane = await started(1, 2)
        plane.node.auto_commit = True
        for name in ("a", "b", "c"):
            await plane.call(rpcs.CREATE_TOPICS, new_topic(name, 9000, 2))
        between: list[str] = []

        async def others() -> None:
            while not plane.replay.image.brokers[1].fenced:
                assert (await plane.call(rpcs.BROKER_HEARTBEAT, beat(plane, 2))).result.error == "NONE"
                between.append("heartbeat")
                await asyncio.sleep(0.5)

        before = len(plane.node.log)
        await others()
        sizes = [batch.count for batch in plane.node.log[before:]]
        assert sizes == [10_000, 10_000, 7001]
        assert plane.replay.image.leader_count(2) == 27_000
        check_invariants(plane.replay.image)
        assert between

    run(test())


def test_leaderless_partitions_get_leaders_at_activation() -> None:
    async def test() -> None:
        plane = await started(1)
        plane.node.auto_commit = True
        await plane.call(rpcs.CREATE_TOPICS, new_topic("t"))
        await plane.call(rpcs.BROKER_HEARTBEAT, beat(plane, 1, want_fence=True))
        image = plane.replay.image
        unfence = BrokerChange(1, image.brokers[1].epoch, fenced=False)
        plane.node.lose(2, None)
        plane.node.log.append(Batch(plane.node.log_end_offset, plane.node.epoch, 1, 0, encode([unfence])))
        plane.node.win()
        await settle()
        assert plane.replay.image.leader_count(1) == 1
        assert plane.replay.image.leader_count(NO_LEADER) == 0

    run(test())


def test_the_leader_epochs_of_a_topic_are_removed_a_day_after_its_deletion() -> None:
    async def test() -> None:
        plane = await started(1, settings=ControllerSettings(session_timeout_ms=10**9))
        plane.node.auto_commit = True
        await plane.call(rpcs.CREATE_TOPICS, new_topic("t"))
        await plane.call(rpcs.DELETE_TOPICS, pb.DeleteTopicsRequest(names=["t"]))
        await asyncio.sleep(23 * 3600)
        assert "t" in plane.replay.image.past_epochs
        await asyncio.sleep(5 * 3600)
        assert "t" not in plane.replay.image.past_epochs
        assert plane.controller.pending is not None
        assert plane.controller.pending.digest() == plane.replay.image.digest()

    run(test())


# Broken invariants


def test_a_failed_assertion_in_a_decision_ends_the_process() -> None:
    async def test() -> None:
        plane = await started(1)
        running = asyncio.ensure_future(plane.controller.run())
        await settle()

        def broken(image: ClusterImage) -> Any:
            raise AssertionError("this cannot be")

        with pytest.raises(AssertionError):
            await plane.controller.execute(broken, 1000)
        with pytest.raises(AssertionError, match="this cannot be"):
            await running
        assert not plane.controller.active

    run(test())


def test_records_that_the_image_cannot_apply_are_never_appended() -> None:
    async def test() -> None:
        plane = await started(1)
        end = plane.node.log_end_offset
        wrong = Decision(None, (BrokerChange(99, 0, fenced=True),))
        with pytest.raises(AssertionError):
            await plane.controller.execute(lambda image: wrong, 1000)
        assert plane.node.log_end_offset == end
        with pytest.raises(AssertionError):
            await plane.controller.run()

    run(test())


def test_k21_a_batch_of_too_many_bytes_is_refused_before_it_is_appended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("metadata.controller.active.BATCH_MAX_BYTES", 1000)

    async def test() -> None:
        plane = await started(1)
        end = plane.node.log_end_offset
        reply = await plane.call(rpcs.CREATE_TOPICS, new_topic("t", 100))
        assert reply.result.error == "POLICY_VIOLATION"
        assert "nothing was changed" in reply.result.message
        assert plane.node.log_end_offset == end
        assert plane.controller.active
        plane.node.auto_commit = True
        assert (await plane.call(rpcs.CREATE_TOPICS, new_topic("t", 3))).topics[0].result.error == "NONE"

    run(test())


def test_a_heartbeat_whose_batch_has_too_many_bytes_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        plane = await started(1)
        end = plane.node.log_end_offset
        monkeypatch.setattr("metadata.controller.active.BATCH_MAX_BYTES", 1)
        reply = await plane.call(rpcs.BROKER_HEARTBEAT, beat(plane, 1, want_fence=True))
        assert reply.result.error == "POLICY_VIOLATION"
        assert (plane.node.log_end_offset, plane.controller.active) == (end, True)

    run(test())


def test_the_refusal_of_a_too_large_second_batch_reports_that_the_first_was_appended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def test() -> None:
        plane = await started(1)
        end = plane.node.log_end_offset

        calls = count()

        def decide(image: ClusterImage) -> Decision[None]:
            if next(calls) > 0:
                monkeypatch.setattr("metadata.controller.active.BATCH_MAX_BYTES", 1)
            return Decision(None, (NoOp(),), more=True)

        outcome = await plane.controller.execute(decide, 1000)
        assert isinstance(outcome, Outcome)
        assert outcome.error is ApiError.POLICY_VIOLATION
        assert "earlier batches were appended" in outcome.message
        assert plane.node.log_end_offset == end + 1

    run(test())
