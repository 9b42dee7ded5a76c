"""Transactions of clients of version 2 (KIP-890): each end raises the epoch, and leaders add the partitions."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from broker.core.coordinator.machine import Record
from broker.core.coordinator.transaction_records import (
    EPOCH_MAX,
    EPOCH_RISES,
    Partition,
    read_transaction,
    write_transaction,
)
from broker.core.coordinator.transaction_requests import (
    AddPartitions,
    EndTransaction,
    EndTransactionResponse,
    WriteMarkers,
)
from broker.core.transactions import ProducerKey
from quorumlog.wire.errors import KafkaCode
from tests.unit.broker.core.coordinator.test_transaction_machine import ID, LIMITS, T0, T1, Rig


class Newer(Rig):
    """A rig whose client has version 2."""

    def add(self, producer: ProducerKey, *partitions: Partition, verify: bool = False) -> list[KafkaCode]:
        return list(self.ask(AddPartitions(ID, producer, partitions, verify, EPOCH_RISES)).errors)

    def finish(
        self, producer: ProducerKey, *, commit: bool = True, version: int = EPOCH_RISES
    ) -> EndTransactionResponse:
        """End a transaction as the shell does: with a fresh producer id if one is needed."""
        found: EndTransactionResponse = self.ask(EndTransaction(ID, producer, commit, version))
        if found.needs_id:
            self.next_id += 1
            found = self.ask(EndTransaction(ID, producer, commit, version, self.next_id))
        return found

    def ended(self, producer: ProducerKey, *, commit: bool = True) -> ProducerKey:
        """End a transaction with its markers; return the producer that continues."""
        found = self.finish(producer, commit=commit)
        assert found.error is KafkaCode.NONE
        self.mark()
        return found.producer

    def at_last_epoch(self) -> ProducerKey:
        """Return a producer whose epoch is the last one."""
        producer = self.begin()
        while producer.epoch < EPOCH_MAX:
            producer = self.begin()
        return producer


def bumped(producer: ProducerKey) -> ProducerKey:
    return ProducerKey(producer.producer_id, producer.epoch + 1)


@pytest.fixture
def rig() -> Newer:
    return Newer()


@pytest.mark.parametrize("commit", [True, False])
def test_an_end_raises_the_epoch_of_client_and_markers(rig: Newer, commit: bool) -> None:
    producer = rig.begin()
    rig.add(producer, T0)
    assert rig.finish(producer, commit=commit) == EndTransactionResponse(KafkaCode.NONE, bumped(producer))
    assert rig.effects == [WriteMarkers(ID, bumped(producer), commit, (T0,), EPOCH_RISES)]
    assert rig.add(producer, T1) == [KafkaCode.PRODUCER_FENCED]
    assert rig.add(bumped(producer), T1) == [KafkaCode.CONCURRENT_TRANSACTIONS]
    rig.mark()
    assert rig.add(bumped(producer), T1) == [KafkaCode.NONE]
    assert rig.described().producer == bumped(producer)


@pytest.mark.parametrize("commit", [True, False])
@pytest.mark.parametrize("fails_over", [True, False])
def test_a_repeated_end_gets_the_answer_of_the_first(rig: Newer, commit: bool, fails_over: bool) -> None:
    producer = rig.begin()
    rig.add(producer, T0)
    rig.finish(producer, commit=commit)
    if fails_over:
        rig.fail_over()
    assert rig.finish(producer, commit=commit).error is KafkaCode.CONCURRENT_TRANSACTIONS
    assert rig.finish(producer, commit=not commit).error is KafkaCode.INVALID_TXN_STATE
    rig.mark()
    if fails_over:
        rig.fail_over()
    size = len(rig.log)
    assert rig.finish(producer, commit=commit) == EndTransactionResponse(KafkaCode.NONE, bumped(producer))
    assert rig.finish(producer, commit=not commit).error is KafkaCode.INVALID_TXN_STATE
    assert len(rig.log) == size


def test_a_former_epoch_cannot_end_the_next_transaction(rig: Newer) -> None:
    producer = rig.begin()
    rig.add(producer, T0)
    following = rig.ended(producer)
    rig.add(following, T0)
    assert rig.finish(producer).error is KafkaCode.PRODUCER_FENCED
    assert rig.state == "Ongoing"
    rig.ended(following)
    assert rig.finish(producer).error is KafkaCode.PRODUCER_FENCED


def test_a_former_epoch_is_fenced_by_a_new_producer(rig: Newer) -> None:
    producer = rig.begin()
    rig.add(producer, T0)
    rig.ended(producer)
    new = rig.begin()
    assert new.epoch == producer.epoch + 2
    for old in (producer, bumped(producer)):
        assert rig.finish(old, commit=False).error is KafkaCode.PRODUCER_FENCED


def test_an_abort_is_possible_before_the_first_partition_is_added(rig: Newer) -> None:
    """A batch may already be on its way to a leader, and the next epoch fences it."""
    producer = rig.begin()
    assert rig.finish(producer).error is KafkaCode.INVALID_TXN_STATE
    found = rig.finish(producer, commit=False)
    assert found.producer == bumped(producer)
    assert rig.effects[-1].partitions == ()
    rig.mark()
    assert rig.state == "CompleteAbort"
    again = rig.ended(bumped(producer), commit=False)
    assert again == bumped(bumped(producer))
    assert rig.finish(again).error is KafkaCode.INVALID_TXN_STATE


def test_an_exhausted_epoch_continues_with_another_producer_id(rig: Newer) -> None:
    last = rig.at_last_epoch()
    rig.add(last, T0)
    found = rig.finish(last)
    assert found.producer == (rig.next_id, 0)
    assert rig.effects[-1].producer == (last.producer_id, EPOCH_MAX + 1)
    rig.fail_over()
    assert rig.finish(last).error is KafkaCode.CONCURRENT_TRANSACTIONS
    rig.mark()
    rig.fail_over()
    assert rig.finish(last) == EndTransactionResponse(KafkaCode.NONE, found.producer)
    assert rig.described().producer == found.producer
    rig.add(found.producer, T0)
    assert rig.finish(last).error is KafkaCode.INVALID_PRODUCER_ID_MAPPING
    assert rig.ended(found.producer) == (rig.next_id, 1)


def test_the_next_producer_id_waits_for_the_markers_of_the_previous_one(rig: Newer) -> None:
    """A client may begin its next transaction as soon as it knows its next producer, before the markers are written."""
    last = rig.at_last_epoch()
    rig.add(last, T0)
    following = rig.finish(last).producer
    assert rig.add(following, T1) == [KafkaCode.CONCURRENT_TRANSACTIONS]
    assert rig.finish(following, commit=False).error is KafkaCode.CONCURRENT_TRANSACTIONS
    rig.fail_over()
    assert rig.add(following, T1) == [KafkaCode.CONCURRENT_TRANSACTIONS]
    rig.mark()
    assert rig.add(following, T1) == [KafkaCode.NONE]


def test_a_transaction_is_not_decided_before_the_next_producer_id_is_available(rig: Newer) -> None:
    last = rig.at_last_epoch()
    rig.add(last, T0)
    size = len(rig.log)
    assert rig.ask(EndTransaction(ID, last, True, EPOCH_RISES)).needs_id
    assert (len(rig.log), rig.state) == (size, "Ongoing")


def test_a_producer_continues_after_a_timeout_by_aborting_its_transaction(rig: Newer) -> None:
    producer = rig.begin()
    rig.add(producer, T0)
    rig.pass_time(10_000)
    assert rig.effects == [WriteMarkers(ID, bumped(producer), False, (T0,), EPOCH_RISES)]
    rig.mark()
    assert rig.finish(producer).error is KafkaCode.INVALID_TXN_STATE
    assert rig.finish(producer, commit=False) == EndTransactionResponse(KafkaCode.NONE, bumped(producer))


def test_a_producer_at_the_last_epoch_is_fenced_after_its_timeout(rig: Newer) -> None:
    last = rig.at_last_epoch()
    rig.add(last, T0)
    rig.pass_time(LIMITS.timeout_max_ms)
    rig.mark()
    assert rig.described().producer == (last.producer_id, EPOCH_MAX + 1)
    assert rig.finish(last, commit=False).error is KafkaCode.PRODUCER_FENCED
    assert rig.begin() == (rig.next_id, 0)


def test_a_producer_that_was_fenced_by_a_new_one_cannot_continue_by_aborting(rig: Newer) -> None:
    producer = rig.begin()
    rig.add(producer, T0)
    assert rig.init().error is KafkaCode.CONCURRENT_TRANSACTIONS
    assert rig.finish(producer, commit=False).error is KafkaCode.PRODUCER_FENCED
    rig.mark()
    assert rig.finish(producer, commit=False).error is KafkaCode.PRODUCER_FENCED


def test_clients_of_both_versions_can_alternate_on_one_transactional_id(rig: Newer) -> None:
    """An upgrade or a downgrade of the client, or of the cluster, leaves every transaction decidable."""
    producer = rig.begin()
    old = Rig.add(rig, producer, T0)
    assert old == [KafkaCode.NONE]
    following = rig.ended(producer)
    assert following == bumped(producer)
    rig.add(following, T1)
    assert rig.finish(following, version=0).error is KafkaCode.NONE
    assert rig.effects[-1] == WriteMarkers(ID, following, True, (T1,), 0)
    rig.mark()
    assert rig.finish(following, version=0).error is KafkaCode.NONE  # its answer was lost
    assert rig.finish(bumped(following), version=0).error is KafkaCode.PRODUCER_FENCED
    rig.add(following, T0)
    assert rig.ended(following, commit=False) == bumped(following)


@pytest.mark.parametrize("version", [0, EPOCH_RISES])
def test_a_client_with_the_epoch_after_the_last_one_is_fenced(rig: Newer, version: int) -> None:
    """Only markers have this epoch, never a client's batches.  Another rise of the epoch would exceed its 16 bits."""
    producer = rig.at_last_epoch()
    rig.add(producer, T0)
    rig.pass_time(LIMITS.timeout_max_ms)
    rig.mark()
    exhausted = rig.described().producer
    assert exhausted == bumped(producer)
    assert rig.add(exhausted, T0) == [KafkaCode.PRODUCER_FENCED]
    assert rig.finish(exhausted, commit=False, version=version).error is KafkaCode.PRODUCER_FENCED
    assert rig.state == "CompleteAbort"
    assert rig.begin() == (rig.next_id, 0)


def test_a_transaction_that_has_the_epoch_after_the_last_one_is_aborted(rig: Newer) -> None:
    """An earlier version accepted this epoch from a client.  No record can store the next epoch."""
    rig.add(rig.at_last_epoch(), T0)
    last = rig.log[-1]
    assert last.value is not None
    value = read_transaction(last.value)
    exhausted = replace(value, producer_epoch=EPOCH_MAX + 1)
    rig.log.append(Record(last.key, write_transaction(exhausted)))
    rig.fail_over()
    rig.pass_time(LIMITS.timeout_max_ms)
    assert rig.effects == [WriteMarkers(ID, exhausted.producer, False, (T0,), 0)], "the abort has not raised the epoch"
    rig.mark()
    assert rig.begin() == (rig.next_id, 0)
