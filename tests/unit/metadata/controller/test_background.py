"""Background work of the active controller continues after a refused append."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from metadata.codec import encode
from metadata.control import topics
from metadata.controller import ControllerSettings
from metadata.controller.background import RETRY_S, TOO_LARGE_RETRY_S, Background, BatchTooLargeError
from metadata.records import NO_LEADER, BrokerChange, PartitionChange, Reason
from quorum.core.types import Batch
from quorum.ports import CannotAppendNowError, NotLeaderError
from quorumlog.wire import rpcs
from quorumlog.wire.v1 import controller_pb2 as pb
from tests.unit.metadata.builders import directory
from tests.unit.metadata.control.test_balance import leader, live_for, set_config, unbalanced
from tests.unit.metadata.controller.test_controller import beat, new_topic, register, started
from tests.unit.metadata.controller.test_reassign_controller import moving, partition
from tests.unit.metadata.controller.test_refusals import heartbeats
from tests.unit.metadata.fake_node import Plane, run, settle


async def refuse_for(plane: Plane, seconds: float, *beating: int) -> None:
    """Let the quorum refuse appends for a while, during which these brokers send heartbeats."""
    plane.node.busy, plane.node.refused = True, 0
    loop = asyncio.get_running_loop()
    end = loop.time() + seconds
    while loop.time() < end:
        for broker_id in beating:
            assert (await plane.call(rpcs.BROKER_HEARTBEAT, beat(plane, broker_id))).result.error == "NONE"
        await asyncio.sleep(0.5)
    assert plane.node.refused, "the background work has tried to append"
    plane.node.busy = False


def test_leader_balance_continues_after_a_refused_append() -> None:
    async def test() -> None:
        plane = await unbalanced(("leader.rebalance.interval.ms", "5000"))
        await refuse_for(plane, 8, 1, 2)
        assert leader(plane) == 2
        await asyncio.sleep(1)
        assert leader(plane) == 1

    run(test())


def test_a_config_change_cancels_a_round_of_leader_balancing_that_waits_after_a_refusal() -> None:
    async def test() -> None:
        plane = await unbalanced(("leader.rebalance.interval.ms", "5000"))
        await refuse_for(plane, 8, 1, 2)
        await plane.controller.execute(set_config("leader.rebalance.interval.ms", "5500"), 1000)
        await live_for(plane, 4)
        assert leader(plane) == 2
        await live_for(plane, 4)
        assert leader(plane) == 1

    run(test())


def test_a_broker_whose_session_ended_while_appends_were_refused_is_fenced_afterwards() -> None:
    async def test() -> None:
        plane = await started(1, 2, 3)
        plane.node.auto_commit = True
        await plane.call(rpcs.CREATE_TOPICS, new_topic("t", 9, 3))
        await refuse_for(plane, 9, 1, 3)
        assert not plane.replay.image.brokers[2].fenced
        await asyncio.sleep(2 * RETRY_S)
        image = plane.replay.image
        assert [image.brokers[broker_id].fenced for broker_id in (1, 2, 3)] == [False, True, False]
        assert image.leader_count(2) == 0

    run(test())


def test_every_broker_gets_a_full_session_after_a_pause_of_the_controller() -> None:
    async def test() -> None:
        plane = await started(1, 2)
        plane.node.auto_commit = True
        await refuse_for(plane, 9)
        plane.node.resumed_at = asyncio.get_running_loop().time()
        await asyncio.sleep(5)
        await plane.call(rpcs.BROKER_HEARTBEAT, beat(plane, 1))
        await asyncio.sleep(2)
        assert [plane.replay.image.brokers[broker_id].fenced for broker_id in (1, 2)] == [False, True]

    run(test())


def test_a_started_fencing_is_finished_despite_a_heartbeat_between_its_batches(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Half of the leaderships have ended by then, and the record with the reason comes last."""

    async def test() -> None:
        plane = await started(1, 2)
        plane.node.auto_commit = True
        for name in ("a", "b"):
            await plane.call(rpcs.CREATE_TOPICS, new_topic(name, 9000, 2))
        append, sizes = plane.node.append, list[int]()

        def appended(epoch: int, payload: bytes, count: int) -> int:
            sizes.append(count)
            for broker_id in (1, 2):
                session = plane.controller.session(broker_id)
                assert session is not None
                session.last_contact = asyncio.get_running_loop().time()
            return append(epoch, payload, count)

        await heartbeats(plane, 4, 2)
        monkeypatch.setattr(plane.node, "append", appended)
        await heartbeats(plane, 3, 2)
        assert sizes == [10_000, 8_001]
        assert plane.replay.image.leader_count(1) == 0
        assert plane.replay.image.brokers[1].fenced

    run(test())


def test_leaders_are_elected_although_the_new_controller_is_refused_at_first() -> None:
    async def test() -> None:
        plane = await started(1)
        plane.node.auto_commit = True
        await plane.call(rpcs.CREATE_TOPICS, new_topic("t"))
        await plane.call(rpcs.BROKER_HEARTBEAT, beat(plane, 1, want_fence=True))
        unfence = BrokerChange(1, plane.replay.image.brokers[1].epoch, fenced=False)
        plane.node.lose(2, None)
        plane.node.log.append(Batch(plane.node.log_end_offset, plane.node.epoch, 1, 0, encode([unfence])))
        plane.node.win()
        await refuse_for(plane, 3, 1)
        assert plane.replay.image.leader_count(NO_LEADER) == 1
        await asyncio.sleep(2 * RETRY_S)
        assert plane.replay.image.leader_count(1) == 1

    run(test())


def test_a_reassignment_completes_although_the_new_controller_is_refused_at_first() -> None:
    async def test() -> None:
        plane = await moving()
        topic_id, last = next(iter(plane.replay.image.topics)), partition(plane).last_offset
        caught_up = PartitionChange(topic_id, 0, Reason.ISR_EXPAND, -1, last, isr=(1, 2, 3, 4))
        plane.node.lose(2, None)
        plane.node.log.append(Batch(plane.node.log_end_offset, plane.node.epoch, 1, 0, encode([caught_up])))
        plane.node.win()
        await refuse_for(plane, 3, 1, 2, 3, 4)
        assert partition(plane).reassigning
        await asyncio.sleep(2 * RETRY_S)
        assert partition(plane).replica_ids == (3, 4)

    run(test())


def test_the_names_of_deleted_topics_are_removed_after_a_refused_append() -> None:
    async def test() -> None:
        plane = await started(1, settings=ControllerSettings(session_timeout_ms=10**9, forget_after_ms=80_000))
        plane.node.auto_commit = True
        await plane.call(rpcs.CREATE_TOPICS, new_topic("t"))
        await plane.call(rpcs.DELETE_TOPICS, pb.DeleteTopicsRequest(names=["t"]))
        await refuse_for(plane, 100)
        assert "t" in plane.replay.image.past_epochs
        await asyncio.sleep(2 * RETRY_S)
        assert "t" not in plane.replay.image.past_epochs

    run(test())


def test_all_names_of_deleted_topics_that_are_due_are_removed_together(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        plane = await started(1, settings=ControllerSettings(session_timeout_ms=10**9, forget_after_ms=80_000))
        plane.node.auto_commit = True
        names = [f"t{number}" for number in range(7)]
        for name in names:
            await plane.call(rpcs.CREATE_TOPICS, new_topic(name))
        await plane.call(rpcs.DELETE_TOPICS, pb.DeleteTopicsRequest(names=names))
        monkeypatch.setattr(topics, "RECORDS_PER_BATCH_MAX", 3)
        await asyncio.sleep(80)
        assert len(plane.replay.image.past_epochs) == 7
        await asyncio.sleep(11)
        assert not plane.replay.image.past_epochs

    run(test())


def test_a_refused_registration_keeps_the_session_of_the_earlier_incarnation() -> None:
    """Otherwise that broker would never be fenced, if its successor sends no further request."""

    async def test() -> None:
        plane = await started(1)
        plane.node.auto_commit = plane.node.busy = True
        assert (await plane.call(rpcs.REGISTER_BROKER, register(1, 1))).result.error == "NOT_CONTROLLER"
        plane.node.busy = False
        assert plane.controller.session(1) is not None
        await asyncio.sleep(7)
        assert plane.replay.image.brokers[1].fenced

    run(test())


@pytest.mark.parametrize("is_cancelled", [False, True])
def test_partitions_get_leaders_although_the_heartbeat_that_elects_them_is_interrupted(
    monkeypatch: pytest.MonkeyPatch, is_cancelled: bool
) -> None:
    """The elections need three batches.  The next heartbeat finds the broker unfenced, and decides nothing."""

    async def test() -> None:
        plane = await started(1)
        plane.node.auto_commit = True
        for name in ("a", "b", "c"):
            await plane.call(rpcs.CREATE_TOPICS, new_topic(name, 9000))
        await plane.call(rpcs.BROKER_HEARTBEAT, beat(plane, 1, want_fence=True))
        assert plane.replay.image.leader_count(NO_LEADER) == 27_000
        append = plane.node.append

        def append_first(epoch: int, payload: bytes, count: int) -> int:
            monkeypatch.setattr(plane.node, "append", append)
            base_offset = append(epoch, payload, count)
            if is_cancelled:
                asyncio.get_running_loop().call_soon(heartbeat.cancel)
            else:
                plane.node.busy = True
            return base_offset

        monkeypatch.setattr(plane.node, "append", append_first)
        heartbeat = plane.start(rpcs.BROKER_HEARTBEAT, beat(plane, 1))
        await asyncio.wait({heartbeat})
        assert heartbeat.cancelled() if is_cancelled else heartbeat.result().result.error == "OUTCOME_UNKNOWN"
        plane.node.busy = False
        assert not (await plane.call(rpcs.BROKER_HEARTBEAT, beat(plane, 1))).fenced
        await asyncio.sleep(2 * RETRY_S)
        assert plane.replay.image.leader_count(NO_LEADER) == 0

    run(test())


def test_a_new_incarnation_begins_a_session_and_a_repeated_registration_does_not() -> None:
    async def test() -> None:
        plane = await started(1)
        plane.node.auto_commit = True
        session = plane.controller.session(1)
        moved = register(1, endpoints=())
        moved.registration.endpoints.add(name="default", host="elsewhere", port=9092, security="PLAINTEXT")
        assert (await plane.call(rpcs.REGISTER_BROKER, moved)).result.error == "NONE"
        assert plane.controller.session(1) is session is not None
        reply = await plane.call(rpcs.REGISTER_BROKER, register(1, 1, directory_ids=(directory(1),)))
        begun = plane.controller.session(1)
        assert begun is not None
        assert begun is not session
        assert begun.broker_epoch == reply.broker_epoch

    run(test())


# The runner


class Work:
    """A step that executes one given action each time, and records when it ran."""

    def __init__(self, *outcomes: float | Exception | None) -> None:
        self.background = Background()
        self.job = self.background.job("test", self.step)
        self.ran_at: list[float] = []
        self.late_s: list[float] = []
        self._outcomes = list(outcomes)
        self._start = asyncio.get_running_loop().time()

    def step(self) -> float | None:
        self.ran_at.append(round(asyncio.get_running_loop().time() - self._start, 6))
        self.late_s.append(self.job.late_s)
        outcome = self._outcomes.pop(0) if self._outcomes else None
        if isinstance(outcome, Exception):
            raise outcome
        return outcome


def test_a_step_returns_the_time_of_its_next_run() -> None:
    async def test() -> None:
        work = Work(0.0, 5.0, None)
        assert not work.job.is_set
        work.job.wake(1.0)
        assert work.job.is_set
        await asyncio.sleep(20)
        assert work.ran_at == [1.0, 1.0, 6.0]
        assert not work.job.is_set
        work.job.wake()
        await settle()
        assert work.ran_at == [1.0, 1.0, 6.0, 20.0]

    run(test())


@pytest.mark.parametrize(
    ("error", "then"),
    [
        (CannotAppendNowError("paused"), [0.0, RETRY_S]),
        (BatchTooLargeError(), [0.0, TOO_LARGE_RETRY_S]),
        (NotLeaderError(), [0.0]),
    ],
)
def test_a_step_whose_append_is_refused_runs_again_after_a_pause_unless_leadership_is_lost(
    error: Exception, then: list[float]
) -> None:
    async def test() -> None:
        work = Work(error)
        work.job.wake()
        await asyncio.sleep(100)
        assert work.ran_at == then

    run(test())


def test_only_a_reset_moves_a_step_to_a_later_time() -> None:
    async def test() -> None:
        work = Work()
        work.job.wake(5.0)
        work.job.wake(10.0)
        work.job.wake(2.0)
        await asyncio.sleep(20)
        assert work.ran_at == [2.0]
        work.job.wake(1.0)
        work.job.reset(3.0)
        await asyncio.sleep(20)
        assert work.ran_at == [2.0, 23.0]

    run(test())


def test_a_step_that_runs_late_gets_its_delay() -> None:
    async def test() -> None:
        work = Work(CannotAppendNowError("paused"))
        work.job.wake(1.0)
        loop: Any = asyncio.get_running_loop()
        loop.now += 31.0  # the process was suspended
        await asyncio.sleep(2)
        assert work.late_s == [30.0, 0.0], "a refusal does not count as delay"

    run(test())


def test_no_background_step_runs_after_the_leadership_has_ended() -> None:
    async def test() -> None:
        work = Work()
        work.job.wake(1.0)
        work.background.stop()
        work.job.wake()
        await asyncio.sleep(10)
        assert work.ran_at == []

    run(test())
