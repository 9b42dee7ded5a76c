"""Markers are sent until every partition has one, and only while their coordinator serves."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest

from broker.coordinator.limits import CoordinatorLimits
from broker.coordinator.markers import MarkerSender, MarkerWriter
from broker.coordinator.partition import State
from broker.coordinator.shell import CoordinatorShell
from broker.core.coordinator.transaction_machine import TransactionMachine
from broker.core.coordinator.transaction_records import Partition
from broker.core.coordinator.transaction_requests import (
    AddPartitions,
    DescribeTransactions,
    EndTransaction,
    InitProducer,
    TransactionLimits,
    WriteMarkers,
)
from broker.core.transactions import Marker, ProducerKey
from metadata.image.internal_topics import TRANSACTION_STATE
from quorumlog.wire.errors import KafkaCode
from quorumlog.wire.kafka.codec import Api
from tests.unit.broker.coordinator.counting import WAIT_S, WALL_MS, until
from tests.unit.broker.replica.rig import Rig

T0, T1 = ("t", 0), ("t", 1)
EFFECT = WriteMarkers("x", ProducerKey(7, 1), True, (T0, T1), 2)
LIMITS = CoordinatorLimits(marker_retry_min_ms=1, marker_retry_max_ms=2)


class Place:
    """Broker 1, which leads all partitions, their coordinator, and the writer of markers."""

    broker_id = 1

    def __init__(self, group: asyncio.TaskGroup) -> None:
        self.codes: dict[Partition, KafkaCode] = {}
        self.written: list[tuple[Partition, bool]] = []
        self.reported: list[Any] = []
        self.is_decided = True
        self.is_full = False
        self.refused = 0
        machine = SimpleNamespace(awaits_markers=lambda *_: self.is_decided)
        self.coordinator: Any = SimpleNamespace(state=State.SERVING, leader_epoch=4, tell=self._tell, machine=machine)
        table: Any = SimpleNamespace(context=SimpleNamespace(cluster=self))
        writer: Any = self
        links: Any = None
        self.sender = MarkerSender(table, writer, links, LIMITS)
        self.sender.start(group)

    def partition(self, topic: str, index: int) -> Any:
        return SimpleNamespace(leader=1)

    async def write(self, topic: str, index: int, marker: Marker) -> int:
        assert marker == Marker(EFFECT.producer, True, 4, marker.raises_epoch)
        self.written.append(((topic, index), marker.raises_epoch))
        return int(self.codes.get((topic, index), KafkaCode.NONE))

    def _tell(self, report: Any) -> bool:
        if self.is_full:
            self.refused += 1
            assert self.refused < 1_000, "the sender never lets the coordinator run"
            return False
        machine = SimpleNamespace(markers_written=lambda written, _: self.reported.append(written.partitions))
        report(machine, 0)
        return True

    async def done(self) -> None:
        await until(lambda: len(self.sender) == 0)


@pytest.fixture
async def place() -> AsyncIterator[Place]:
    async with asyncio.timeout(WAIT_S), asyncio.TaskGroup() as group:
        place = Place(group)
        yield place
        await place.sender.close()


async def test_a_marker_is_written_again_until_it_is_committed(place: Place) -> None:
    place.codes[T1] = KafkaCode.NOT_ENOUGH_REPLICAS
    place.sender.order(place.coordinator, EFFECT)
    await until(lambda: place.written.count((T1, True)) > 2)
    assert place.written.count((T0, True)) == 1
    place.codes.clear()
    await place.done()
    assert place.reported == [(T0,), (T1,)]


async def test_a_partition_that_knows_a_later_producer_epoch_needs_no_marker(place: Place) -> None:
    place.codes[T0] = KafkaCode.INVALID_PRODUCER_EPOCH
    place.sender.order(place.coordinator, EFFECT)
    await place.done()
    assert place.reported == [(T0, T1)]


async def test_the_timeout_of_a_marker_request_exceeds_the_time_that_the_leader_may_wait(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So the leader can still report the other partitions if one partition waited for the full `marker_timeout_ms`."""
    timeouts: list[float] = []

    async def ask(broker_id: int, api: Api, version: int, values: Any, timeout_s: float) -> Any:
        timeouts.append(timeout_s)
        (marker,) = values["markers"]
        partitions = [
            SimpleNamespace(partition_index=index, error_code=int(KafkaCode.NONE))
            for index in marker["topics"][0]["partition_indexes"]
        ]
        topics = [SimpleNamespace(name="t", partitions=partitions)]
        return SimpleNamespace(markers=[SimpleNamespace(topics=topics)])

    monkeypatch.setattr(place, "partition", lambda topic, index: SimpleNamespace(leader=2))
    monkeypatch.setattr(place.sender, "_links", SimpleNamespace(ask=ask))
    place.sender.order(place.coordinator, EFFECT)
    await place.done()
    assert place.reported == [(T0, T1)]
    assert min(timeouts) > LIMITS.marker_timeout_ms / 1000


async def test_a_decision_without_partitions_is_reported_once_the_coordinator_has_drained_its_queue(
    place: Place,
) -> None:
    """The sender and the coordinator share the event loop, so the sender must sleep after each refusal."""
    place.is_full = True
    place.sender.order(place.coordinator, WriteMarkers("x", ProducerKey(7, 1), False, (), 2))
    await until(lambda: place.refused > 1)
    place.is_full = False
    await place.done()
    assert (place.written, place.reported) == ([], [()])


async def test_a_decision_that_is_ordered_again_is_written_to_all_its_partitions(place: Place) -> None:
    """The coordinator has loaded its machine anew, and the new machine lacks the reports to the dropped one."""
    place.codes[T1] = KafkaCode.NOT_ENOUGH_REPLICAS
    place.sender.order(place.coordinator, EFFECT)
    await until(lambda: (T0,) in place.reported)
    place.coordinator.machine = None  # until it is loaded, the markers of the decision are still written
    await until(lambda: len(place.written) > 4)
    place.reported.clear()
    place.codes.clear()
    place.sender.order(place.coordinator, EFFECT)
    await place.done()
    assert sorted(each for report in place.reported for each in report) == [T0, T1]


@pytest.mark.parametrize("state", [State.ENDED, State.FAILED])
async def test_markers_are_no_longer_sent_once_their_coordinator_has_ended_or_failed(
    place: Place, state: State
) -> None:
    place.codes[T1] = KafkaCode.NOT_ENOUGH_REPLICAS
    place.sender.order(place.coordinator, EFFECT)
    await until(lambda: len(place.written) > 2)
    place.coordinator.state = state
    await place.done()
    assert place.reported == [(T0,)]


async def test_no_marker_is_sent_after_its_transaction_has_ended(place: Place) -> None:
    """With transactions of version 1, a late marker would end the producer's next transaction."""
    place.codes[T1] = KafkaCode.NOT_ENOUGH_REPLICAS
    place.sender.order(place.coordinator, EFFECT)
    await until(lambda: len(place.written) > 2)
    place.is_decided = False  # an earlier order has reported the same partition meanwhile
    await place.done()
    assert place.reported == [(T0,)]


async def test_a_transaction_that_ends_while_its_machine_is_loaded_anew_gets_no_more_markers(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The load orders the markers, and the next operation is the last report of an earlier order."""
    written: list[Partition] = []
    is_committed = asyncio.Event()

    async def write(topic: str, index: int, *_: object, **__: object) -> int:
        written.append((topic, index))
        await is_committed.wait()
        return int(KafkaCode.NONE)

    links: Any = None
    writer: Any = SimpleNamespace(write=write)
    sender = MarkerSender(rig.role.table, writer, links, LIMITS)
    limits = CoordinatorLimits(retry_ms=10)
    topics: Any = SimpleNamespace(may_commit=lambda *_: True)
    shell = CoordinatorShell(
        TRANSACTION_STATE,
        rig.role.table,
        lambda: TransactionMachine(TransactionLimits(), topics, lambda: WALL_MS),
        lambda: WALL_MS,
        limits,
        sender.order,
    )

    async def ask(request: Any) -> Any:
        return await shell.call(0, lambda machine, call, now: machine.request(call, request, now), 0, is_read=False)

    async with asyncio.timeout(WAIT_S), asyncio.TaskGroup() as group:
        sender.start(group)
        shell.start(group)
        rig.cluster.create("t", (1,))
        rig.cluster.create(TRANSACTION_STATE, (1,))
        await rig.learn()
        await until(lambda: shell.count(State.SERVING) == 1)
        producer = ProducerKey(7, 0)
        await ask(InitProducer("x", 60_000, fresh_id=7))
        await ask(AddPartitions("x", producer, (T0,)))
        await ask(EndTransaction("x", producer, is_commit=True))
        await until(lambda: written == [T0])
        (coordinator,) = shell
        with monkeypatch.context() as patch:
            patch.setattr(coordinator, "_may_append", lambda: False)
            coordinator._reload()
            is_committed.set()
            await until(lambda: len(sender) == 0)  # the report waits for the end of the load
        await until(lambda: coordinator.state is State.SERVING)
        found = await ask(DescribeTransactions(("x",)))
        assert found.groups[0].state == "CompleteCommit"
        await until(lambda: len(sender) == 0)
        assert written == [T0]
        await sender.close()
        await shell.close()


async def test_a_marker_to_the_topic_of_transactions_is_refused() -> None:
    """The coordinator of the partition could not load a marker, and would stop."""
    nothing: Any = None
    writer = MarkerWriter(nothing, nothing, lambda: 0, 1_000)
    code = await writer.write(TRANSACTION_STATE, 0, Marker(ProducerKey(1, 0), True, 0))
    assert code == KafkaCode.INVALID_TOPIC_EXCEPTION
