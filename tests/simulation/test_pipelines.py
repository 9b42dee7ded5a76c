"""The producer with several batches in flight, against a scripted leader, and the judge of its batches."""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from itertools import count
from random import Random
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID

import pytest

from broker.kafka.api import ProduceResult
from broker.log import LogKey
from quorumlog.client.cluster import Cluster
from quorumlog.errors import ClusterError
from quorumlog.wire.errors import ApiError, KafkaCode
from quorumlog.wire.kafka import produce
from quorumlog.wire.record_batch import parse_header
from simulation.cluster.draw import draw
from simulation.cluster.evidence import Evidence
from simulation.cluster.history import Committed, History, Mark, marks_in
from simulation.cluster.metadata import Spot
from simulation.cluster.pipelines import Lane, Pipelines, Producer
from simulation.cluster.plan import TopicPlan
from simulation.cluster.world import ClusterWorld
from simulation.kernel.violation import Violation

SPOT = Spot("safe", 0)
WRITER = 1
IN_FLIGHT = 3

Answer = int | ClusterError

NO_ANSWER = ClusterError(ApiError.BROKER_UNAVAILABLE, "the connection is broken", retriable=True)
NOT_LEADER = KafkaCode.NOT_LEADER_OR_FOLLOWER
OUT_OF_ORDER = KafkaCode.OUT_OF_ORDER_SEQUENCE_NUMBER


@dataclass
class Leader:
    """A cluster with one leader, and the connection to it.  It answers each batch after 10 ms.

    script: the answers, in the order of the requests; after the last one, every batch is acknowledged.
    received: the number of the first record of each batch.  lost: how often a request was reported as failed.
    unanswered: the greatest number of unanswered batches at a time.
    """

    script: deque[Answer]
    received: list[int] = field(default_factory=list)
    lost: int = 0
    unanswered: int = 0
    _waiting: int = 0

    async def leader(self, topic: str, index: int, timeout_s: float) -> Leader:
        return self

    async def leader_lost(self, topic: str, index: int, connection: Leader) -> None:
        self.lost += 1

    def forget_leader(self, topic: str, index: int) -> None:
        pass

    def judged(self) -> AbstractContextManager[None]:
        return nullcontext()

    async def call(self, api: int, version: int, body: Sequence[bytes], timeout_s: float) -> memoryview:
        (partition,) = produce.decode_request(memoryview(b"".join(body)), 0, version).partitions
        assert partition.records is not None
        number = marks_in(partition.records)[0].number
        assert parse_header(partition.records).base_sequence == number
        self.received.append(number)
        answer = self.script.popleft() if self.script else KafkaCode.NONE
        self._waiting += 1
        self.unanswered = max(self.unanswered, self._waiting)
        await asyncio.sleep(0.01)
        self._waiting -= 1
        if isinstance(answer, ClusterError):
            raise answer
        result = ProduceResult(int(answer), 100 + number)
        return memoryview(produce.encode_response(version, [(*SPOT, result)]))


@dataclass
class Run:
    """The producer of five batches, with one record each, and the checks of its answers."""

    leader: Leader
    producer: Producer
    seen: Counter[str]
    acknowledged: list[int]
    without_offset: list[int]


def a_run(monkeypatch: pytest.MonkeyPatch, *script: Answer) -> Run:
    monkeypatch.setattr("simulation.cluster.writers.BATCH_RECORDS", 1)
    evidence = Evidence(frozenset(), {})
    history = History(LogKey(UUID(int=1), 0, 5), SPOT)
    monkeypatch.setattr(evidence, "current", lambda spot: history)
    leader = Leader(deque(script))
    acknowledged: list[int] = []
    without_offset: list[int] = []
    answers = SimpleNamespace(
        acknowledged=lambda spot, offset, marks: acknowledged.append(offset - 100),
        acknowledged_somewhere=lambda spot, marks: without_offset.append(marks[0].number),
    )
    plan = SimpleNamespace(in_flight=IN_FLIGHT, gap_s=0.0, rebuilds=False, forgets_producers_s=86_400.0)
    watch = SimpleNamespace(evidence=evidence, seen=evidence.seen, answers=answers)
    world = SimpleNamespace(plan=plan, watch=watch, wall_ms=lambda: 0, written=0, acknowledged=0)

    def no_client() -> Cluster:
        raise AssertionError("the lane has a client")

    pipelines = Pipelines(cast(ClusterWorld, world), no_client, count(WRITER), asyncio.Event())
    lane = Lane(pipelines, cast(Cluster, leader), TopicPlan("safe", 1, 3, 2), SPOT, Random(1))
    producer = Producer(lane, (7, 0), 5)
    return Run(leader, producer, evidence.seen, acknowledged, without_offset)


async def test_several_batches_are_in_flight_and_no_more_than_the_plan_permits(monkeypatch: pytest.MonkeyPatch) -> None:
    run = a_run(monkeypatch)
    await run.producer.write()
    assert run.leader.received == [0, 1, 2, 3, 4]
    assert run.leader.unanswered == IN_FLIGHT
    assert run.acknowledged == [0, 1, 2, 3, 4]


async def test_a_refused_batch_and_those_behind_it_are_sent_again_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    run = a_run(monkeypatch, KafkaCode.NONE, NOT_LEADER, NOT_LEADER, NOT_LEADER)
    await run.producer.write()
    assert run.leader.received == [0, 1, 2, 3, 1, 2, 3, 4]
    assert run.acknowledged == [0, 1, 2, 3, 4]
    assert run.leader.lost == 0


async def test_a_batch_that_was_acknowledged_behind_a_refused_one_is_not_sent_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run = a_run(monkeypatch, KafkaCode.REQUEST_TIMED_OUT, KafkaCode.NONE, KafkaCode.REQUEST_TIMED_OUT)
    await run.producer.write()
    assert run.leader.received == [0, 1, 2, 0, 2, 3, 4]
    assert run.acknowledged == [1, 0, 2, 3, 4]
    assert run.seen["acknowledged before an earlier batch"] == 1


async def test_batches_without_an_answer_are_sent_again(monkeypatch: pytest.MonkeyPatch) -> None:
    run = a_run(monkeypatch, NO_ANSWER, NO_ANSWER, NO_ANSWER)
    await run.producer.write()
    assert run.leader.received == [0, 1, 2, 0, 1, 2, 3, 4]
    assert run.leader.lost == 3


async def test_a_duplicate_counts_as_acknowledged_without_an_offset(monkeypatch: pytest.MonkeyPatch) -> None:
    run = a_run(monkeypatch, NOT_LEADER, KafkaCode.NONE, KafkaCode.NONE, KafkaCode.DUPLICATE_SEQUENCE_NUMBER)
    await run.producer.write()
    assert run.leader.received == [0, 1, 2, 0, 3, 4]
    assert run.without_offset == [0]


async def test_an_out_of_order_error_behind_a_refused_batch_is_a_violation(monkeypatch: pytest.MonkeyPatch) -> None:
    run = a_run(monkeypatch, KafkaCode.REQUEST_TIMED_OUT, NOT_LEADER, OUT_OF_ORDER)
    with pytest.raises(Violation, match=r"^I47: .*number=2.*REQUEST_TIMED_OUT.*NOT_LEADER_OR_FOLLOWER"):
        await run.producer.write()


async def test_an_out_of_order_error_behind_acknowledged_batches_ends_the_producer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run = a_run(monkeypatch, KafkaCode.NONE, OUT_OF_ORDER)
    with pytest.raises(ClusterError, match="OUT_OF_ORDER"):
        await run.producer.write()
    assert run.seen["gap reported to a producer"] == 0


def committing(monkeypatch: pytest.MonkeyPatch) -> tuple[History, Callable[..., None]]:
    """Return a history, and a function that commits records of the writer with these numbers in one batch."""
    run = a_run(monkeypatch)
    evidence: Any = run.producer.lane.pipelines.world.watch.evidence
    history = evidence.current(SPOT)

    def commit(*numbers: int, writer: int = WRITER) -> None:
        marks = tuple([Mark(writer, number) for number in numbers])
        for watch in evidence.on_committed:
            watch(history, Committed(history.end, history.end + len(marks), 0, 0, marks))

    return history, commit


async def test_a_gap_among_committed_records_is_a_violation(monkeypatch: pytest.MonkeyPatch) -> None:
    _, commit = committing(monkeypatch)
    commit(0, 1)
    commit(2)
    with pytest.raises(Violation, match=r"^I47: .*number=4.* without .*number=3"):
        commit(4)


async def test_a_producer_must_begin_with_its_first_record(monkeypatch: pytest.MonkeyPatch) -> None:
    _, commit = committing(monkeypatch)
    with pytest.raises(Violation, match=r"^I47: "):
        commit(1)


async def test_a_gap_of_a_writer_without_a_pipeline_is_permitted(monkeypatch: pytest.MonkeyPatch) -> None:
    _, commit = committing(monkeypatch)
    commit(7, writer=WRITER + 1)


async def test_a_gap_after_an_unclean_election_is_permitted(monkeypatch: pytest.MonkeyPatch) -> None:
    history, commit = committing(monkeypatch)
    history.unclean_epoch = 3
    commit(7)


def test_seeds_draw_one_to_five_batches_in_flight() -> None:
    drawn = Counter(draw(seed).in_flight for seed in range(100))
    assert set(drawn) == {0, 1, 2, 3, 5}
