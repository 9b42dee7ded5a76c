"""The coordinator of transactions: producers, decisions, timeouts, and work that a later coordinator continues."""

from __future__ import annotations

from typing import Any

import pytest

from broker.core.coordinator.machine import Record, Step
from broker.core.coordinator.transaction_machine import TransactionMachine
from broker.core.coordinator.transaction_records import EPOCH_MAX, Partition
from broker.core.coordinator.transaction_requests import (
    AddPartitions,
    DescribedTransaction,
    DescribeTransactions,
    EndTransaction,
    InitProducer,
    InitProducerResponse,
    ListTransactions,
    MarkersWritten,
    TransactionLimits,
    WriteMarkers,
)
from broker.core.transactions import NO_PRODUCER, ProducerKey
from quorumlog.wire.errors import KafkaCode
from tests.unit.broker.core.coordinator.replays import replay_log

ID = "orders"
T0, T1 = ("t", 0), ("t", 1)
LIMITS = TransactionLimits(timeout_max_ms=60_000, expiration_ms=1_000_000, sweep_interval_ms=10_000)
WALL = 1_000_000_000


class Rig:
    """A machine with its log.  Each operation takes place at `now`; the wall clock runs with it.

    jump: the error of the wall clock, which expiry does not follow.
    """

    def __init__(self, limits: TransactionLimits = LIMITS) -> None:
        self.limits = limits
        self.now = 0
        self.jump = 0
        self.missing: set[Partition] = set()
        self.log: list[Record] = []
        self.effects: list[WriteMarkers] = []
        self.next_id = 100
        self.machine = self._make()
        self._calls = 0
        self.take(self.machine.loaded(0))

    def _make(self) -> TransactionMachine:
        wall = lambda: WALL + self.now + self.jump  # noqa: E731
        return TransactionMachine(self.limits, self, wall, lambda: WALL + self.now)

    def has_partition(self, topic: str, partition: int) -> bool:
        return (topic, partition) not in self.missing

    def may_commit(self, topic: str, partition: int) -> bool:
        return self.has_partition(topic, partition)

    def take(self, step: Step) -> list[Any]:
        self.log += step.records
        self.effects += step.effects
        return [answer.response for answer in step.answers]

    def ask(self, request: Any) -> Any:
        self._calls += 1
        (answer,) = self.take(self.machine.request(self._calls, request, self.now))
        return answer

    def fail_over(self) -> None:
        """Continue with a machine that has replayed the log."""
        self.machine, self.effects = self._make(), []
        replay_log(self.machine, self.log)
        self.take(self.machine.loaded(self.now))

    def init(self, timeout_ms: int = 10_000, producer: ProducerKey = NO_PRODUCER) -> InitProducerResponse:
        found: InitProducerResponse = self.ask(InitProducer(ID, timeout_ms, producer))
        if found.needs_id:
            self.next_id += 1
            found = self.ask(InitProducer(ID, timeout_ms, producer, self.next_id))
        return found

    def begin(self) -> ProducerKey:
        found = self.init()
        assert found.error is KafkaCode.NONE
        return found.producer

    def add(self, producer: ProducerKey, *partitions: Partition, verify: bool = False) -> list[KafkaCode]:
        return list(self.ask(AddPartitions(ID, producer, partitions, verify)).errors)

    def end(self, producer: ProducerKey, *, commit: bool = True) -> KafkaCode:
        error: KafkaCode = self.ask(EndTransaction(ID, producer, commit)).error
        return error

    def mark(self, *partitions: Partition) -> None:
        """Report the markers of the last decision."""
        effect = self.effects[-1]
        done = partitions or effect.partitions
        self.take(self.machine.markers_written(MarkersWritten(ID, effect.producer, done), self.now))

    def described(self) -> DescribedTransaction:
        found: DescribedTransaction = self.ask(DescribeTransactions((ID,))).groups[0]
        return found

    @property
    def state(self) -> str:
        return self.described().state

    def pass_time(self, ms: int) -> None:
        end = self.now + ms
        while self.machine.deadline_ms is not None and self.machine.deadline_ms <= end:
            self.now = self.machine.deadline_ms
            self.take(self.machine.tick(self.now))
        self.now = end


@pytest.fixture
def rig() -> Rig:
    return Rig()


def test_a_transaction_commits_once_every_partition_has_its_marker(rig: Rig) -> None:
    producer = rig.begin()
    assert rig.add(producer, T0, T1) == [KafkaCode.NONE, KafkaCode.NONE]
    assert rig.end(producer) is KafkaCode.NONE
    assert rig.effects == [WriteMarkers(ID, producer, True, (T0, T1))]
    rig.mark(T0)
    assert rig.state == "PrepareCommit"
    rig.mark(T1)
    assert rig.state == "CompleteCommit"
    assert rig.described().partitions == ()


def test_an_aborted_transaction_orders_abort_markers(rig: Rig) -> None:
    producer = rig.begin()
    rig.add(producer, T0)
    assert rig.end(producer, commit=False) is KafkaCode.NONE
    assert rig.effects == [WriteMarkers(ID, producer, False, (T0,))]
    rig.mark()
    assert rig.state == "CompleteAbort"


@pytest.mark.parametrize("commit", [True, False])
def test_a_later_coordinator_orders_the_markers_of_a_decision_again(rig: Rig, commit: bool) -> None:
    producer = rig.begin()
    rig.add(producer, T0, T1)
    rig.end(producer, commit=commit)
    rig.mark(T0)
    rig.fail_over()
    assert rig.effects == [WriteMarkers(ID, producer, commit, (T0, T1))]
    rig.mark()
    assert rig.state == ("CompleteCommit" if commit else "CompleteAbort")


def test_markers_are_awaited_from_the_decision_until_the_last_report(rig: Rig) -> None:
    producer = rig.begin()
    rig.add(producer, T0, T1)
    assert not rig.machine.awaits_markers(ID, producer)
    rig.end(producer)
    rig.mark(T0)
    assert rig.machine.awaits_markers(ID, producer)
    assert not rig.machine.awaits_markers(ID, ProducerKey(producer.producer_id, producer.epoch - 1))
    rig.mark(T1)
    assert not rig.machine.awaits_markers(ID, producer)


def test_a_repeated_end_is_answered_like_the_first(rig: Rig) -> None:
    producer = rig.begin()
    rig.add(producer, T0)
    rig.end(producer)
    assert rig.end(producer) is KafkaCode.CONCURRENT_TRANSACTIONS
    assert rig.end(producer, commit=False) is KafkaCode.INVALID_TXN_STATE
    rig.mark()
    assert rig.end(producer) is KafkaCode.NONE
    assert rig.end(producer, commit=False) is KafkaCode.INVALID_TXN_STATE
    assert len(rig.effects) == 1


def test_a_transaction_without_partitions_cannot_be_ended(rig: Rig) -> None:
    assert rig.end(rig.begin()) is KafkaCode.INVALID_TXN_STATE


def test_a_new_producer_aborts_the_open_transaction_and_fences_the_old_one(rig: Rig) -> None:
    old = rig.begin()
    rig.add(old, T0)
    assert rig.init().error is KafkaCode.CONCURRENT_TRANSACTIONS
    assert rig.effects == [WriteMarkers(ID, ProducerKey(old.producer_id, old.epoch + 1), False, (T0,))]
    assert rig.end(old) is KafkaCode.PRODUCER_FENCED
    assert rig.init().error is KafkaCode.CONCURRENT_TRANSACTIONS
    rig.mark()
    new = rig.begin()
    assert new == (old.producer_id, old.epoch + 2)
    for refused in (rig.end(old), *rig.add(old, T0), *rig.add(old, T0, verify=True)):
        assert refused is KafkaCode.PRODUCER_FENCED


def test_a_transaction_is_aborted_when_its_time_is_up(rig: Rig) -> None:
    producer = rig.begin()
    rig.pass_time(5_000)
    rig.add(producer, T0)
    rig.pass_time(9_000)
    rig.add(producer, T1)
    assert rig.effects == []
    rig.pass_time(1_000)
    assert rig.effects == [WriteMarkers(ID, ProducerKey(producer.producer_id, producer.epoch + 1), False, (T0, T1))]
    assert rig.end(producer) is KafkaCode.PRODUCER_FENCED


def test_the_timeout_of_a_transaction_continues_at_a_later_coordinator(rig: Rig) -> None:
    rig.add(rig.begin(), T0)
    rig.pass_time(6_000)
    rig.fail_over()
    rig.pass_time(3_999)
    assert rig.effects == []
    rig.pass_time(1)
    assert len(rig.effects) == 1


def test_a_shorter_timeout_of_a_new_producer_replaces_a_longer_one(rig: Rig) -> None:
    producer = rig.init(timeout_ms=50_000).producer
    rig.add(producer, T0)
    rig.end(producer)
    rig.mark()
    rig.add(rig.init(timeout_ms=1_000).producer, T0)
    rig.pass_time(1_000)
    assert rig.state == "PrepareAbort"


def test_a_late_report_of_markers_does_not_complete_the_next_transaction(rig: Rig) -> None:
    producer = rig.begin()
    rig.add(producer, T0)
    rig.end(producer)
    rig.mark()
    first = rig.effects[-1]
    second = rig.begin()
    rig.add(second, T0)
    rig.end(second)
    rig.take(rig.machine.markers_written(MarkersWritten(ID, first.producer, (T0,)), rig.now))
    assert rig.state == "PrepareCommit"


def test_only_partitions_of_the_open_transaction_are_confirmed(rig: Rig) -> None:
    producer = rig.begin()
    assert rig.add(producer, T0, verify=True) == [KafkaCode.TRANSACTION_ABORTABLE]
    rig.add(producer, T0)
    assert rig.add(producer, T0, T1, verify=True) == [KafkaCode.NONE, KafkaCode.TRANSACTION_ABORTABLE]
    rig.end(producer)
    assert rig.add(producer, T0, verify=True) == [KafkaCode.CONCURRENT_TRANSACTIONS]
    rig.mark()
    assert rig.add(producer, T0, verify=True) == [KafkaCode.TRANSACTION_ABORTABLE]


def test_adding_partitions_is_refused_as_a_whole_if_one_of_them_is_unknown(rig: Rig) -> None:
    producer = rig.begin()
    rig.missing = {T1}
    refused = [KafkaCode.OPERATION_NOT_ATTEMPTED, KafkaCode.UNKNOWN_TOPIC_OR_PARTITION]
    assert rig.add(producer, T0, T1) == refused
    assert rig.state == "Empty"


def test_adding_the_same_partitions_again_writes_nothing(rig: Rig) -> None:
    producer = rig.begin()
    rig.add(producer, T0)
    size = len(rig.log)
    assert rig.add(producer, T0) == [KafkaCode.NONE]
    assert len(rig.log) == size


def test_requests_with_a_wrong_producer_or_timeout_are_refused_and_write_no_record(rig: Rig) -> None:
    producer = rig.begin()
    size = len(rig.log)
    assert rig.add(ProducerKey(producer.producer_id + 1, 0), T0) == [KafkaCode.INVALID_PRODUCER_ID_MAPPING]
    assert rig.add(ProducerKey(producer.producer_id, producer.epoch + 1), T0) == [KafkaCode.PRODUCER_FENCED]
    assert rig.init(timeout_ms=60_001).error is KafkaCode.INVALID_TRANSACTION_TIMEOUT
    assert rig.init(timeout_ms=0).error is KafkaCode.INVALID_TRANSACTION_TIMEOUT
    assert rig.init(producer=ProducerKey(producer.producer_id, producer.epoch + 5)).error is KafkaCode.PRODUCER_FENCED
    assert rig.ask(InitProducer("", 1_000)).error is KafkaCode.INVALID_REQUEST
    assert rig.ask(EndTransaction("other", producer, True)).error is KafkaCode.INVALID_PRODUCER_ID_MAPPING
    assert len(rig.log) == size


def test_a_producer_that_repeats_its_initialization_gets_the_same_epoch(rig: Rig) -> None:
    producer = rig.begin()
    bumped = rig.init(producer=producer)
    assert bumped.producer == (producer.producer_id, producer.epoch + 1)
    assert rig.init(producer=producer).producer == bumped.producer


def test_a_producer_does_not_get_the_epoch_of_the_producer_that_fenced_it(rig: Rig) -> None:
    """Both would write with the same epoch, and neither would be fenced."""
    old = rig.begin()
    rig.begin()
    assert rig.init(producer=old).error is KafkaCode.PRODUCER_FENCED


def test_an_exhausted_epoch_is_followed_by_another_producer_id(rig: Rig) -> None:
    producer = rig.begin()
    for _ in range(EPOCH_MAX):
        producer = rig.begin()
    assert producer.epoch == EPOCH_MAX
    rig.add(producer, T0)
    assert rig.init().error is KafkaCode.CONCURRENT_TRANSACTIONS
    rig.mark()
    following = rig.begin()
    assert following.producer_id != producer.producer_id
    assert following.epoch == 0


def test_unused_transactional_ids_expire(rig: Rig) -> None:
    rig.begin()
    rig.pass_time(LIMITS.expiration_ms)
    assert rig.state == "Empty"
    rig.pass_time(2 * LIMITS.sweep_interval_ms)
    assert rig.described().error is KafkaCode.TRANSACTIONAL_ID_NOT_FOUND
    assert rig.log[-1].value is None


def test_a_jump_of_the_wall_clock_expires_no_transactional_id(rig: Rig) -> None:
    rig.begin()
    rig.jump = 10 * LIMITS.expiration_ms
    rig.pass_time(2 * LIMITS.sweep_interval_ms)
    assert rig.state == "Empty"


def test_a_transactional_id_with_an_open_transaction_does_not_expire() -> None:
    rig = Rig(TransactionLimits(timeout_max_ms=10**9, expiration_ms=1_000, sweep_interval_ms=1_000))
    rig.add(rig.init(timeout_ms=10**9).producer, T0)
    rig.pass_time(10_000)
    assert rig.state == "Ongoing"


def test_too_many_transactional_ids_or_partitions_are_refused() -> None:
    rig = Rig(TransactionLimits(ids_max=1, partitions_max=1))
    producer = rig.begin()
    assert rig.ask(InitProducer("other", 1_000, fresh_id=5)).error is KafkaCode.POLICY_VIOLATION
    assert rig.add(producer, T0, T1) == [KafkaCode.INVALID_REQUEST] * 2


def test_transactions_are_listed_by_state_producer_and_duration(rig: Rig) -> None:
    producer = rig.begin()
    rig.add(producer, T0)
    rig.pass_time(2_000)

    def listed(**filters: Any) -> list[str]:
        return [each.transactional_id for each in rig.ask(ListTransactions(**filters)).transactions]

    assert listed() == [ID]
    assert listed(states=frozenset({"Ongoing"}), producer_ids=frozenset({producer.producer_id})) == [ID]
    assert listed(states=frozenset({"Empty"})) == []
    assert listed(longer_than_ms=1_999) == [ID]
    assert listed(longer_than_ms=2_000) == []
    found = rig.described()
    assert (found.started_ms, found.partitions, found.timeout_ms) == (WALL, (T0,), 10_000)
