"""The transactions of a log: the last stable offset, aborted transactions, and batches that a leader accepts."""

from __future__ import annotations

from typing import NamedTuple

import pytest

from broker.core import producer_state
from broker.core.producer_state import (
    SEQUENCE_MAX,
    VERIFICATIONS_MAX,
    Accept,
    Duplicate,
    ProducerState,
    Refuse,
    Verification,
)
from broker.core.transactions import AbortedTransaction, Marker, ProducerKey, Transactions
from quorumlog.wire.errors import KafkaCode
from tests.unit.broker.core.test_producer_state import B, code_of


def confirmed(state: ProducerState, producer_id: int, epoch: int = 0) -> Verification | None:
    """Start a verification that the coordinator confirms."""
    token = state.start_verification(producer_id, epoch, SEQUENCE_MAX)
    if token is not None:
        token.is_confirmed = True
    return token


class Log(NamedTuple):
    """The producers of a log in which each batch has one record."""

    state: ProducerState
    ends: list[int]

    def write(self, producer_id: int, sequence: int = 0, epoch: int = 0) -> int:
        return self._apply(B(sequence, sequence, epoch, producer_id, is_transactional=True))

    def plain(self) -> int:
        return self._apply(B(-1, -1, -1, -1))

    def end(self, producer_id: int, *, commit: bool = True, epoch: int = 0, coordinator: int = 0) -> int:
        batch = B(-1, -1, epoch, producer_id, is_control=True, is_transactional=True)
        return self._apply(batch, Marker(ProducerKey(producer_id, epoch), commit, coordinator))

    def _apply(self, batch: B, marker: Marker | None = None) -> int:
        offset = self.ends[-1]
        self.state.apply(batch, offset, offset + 1, marker)
        self.ends.append(offset + 1)
        return offset

    @property
    def transactions(self) -> Transactions:
        return self.state.transactions

    def stable(self, watermark: int | None = None) -> int:
        return self.transactions.stable_offset(self.ends[-1] if watermark is None else watermark)


@pytest.fixture
def log() -> Log:
    return Log(ProducerState(), [0])


def test_an_open_transaction_holds_the_last_stable_offset(log: Log) -> None:
    log.plain()
    log.write(1)
    log.plain()
    log.write(2)
    assert log.stable() == 1
    log.end(1)
    assert log.stable() == 3
    log.end(2)
    assert log.stable() == 6


def test_a_marker_does_not_move_the_last_stable_offset_before_it_is_committed(log: Log) -> None:
    log.write(1)
    marker = log.end(1, commit=False)
    assert log.stable(marker) == 0
    assert log.stable(marker + 1) == marker + 1


def test_the_last_stable_offset_never_exceeds_the_watermark(log: Log) -> None:
    log.plain()
    log.write(1)
    assert log.stable(0) == 0


def test_readers_get_the_aborted_transactions_that_overlap_their_records(log: Log) -> None:
    log.write(1)  # 0
    log.write(2)  # 1
    log.end(2, commit=False)  # 2
    log.write(2, 1)  # 3
    log.end(1, commit=False)  # 4
    log.end(2)  # 5
    first, second = AbortedTransaction(2, 1, 2), AbortedTransaction(1, 0, 4)
    assert log.transactions.aborted_between(0, 6) == [first, second]
    assert log.transactions.aborted_between(0, 1) == [second]
    assert log.transactions.aborted_between(3, 6) == [second]
    assert log.transactions.aborted_between(5, 6) == []
    assert log.transactions.has_aborted_from(4)
    assert not log.transactions.has_aborted_from(5)


def test_aborted_transactions_are_reported_in_the_order_of_their_markers(log: Log) -> None:
    log.write(1)  # 0
    log.write(2)  # 1
    log.end(2, commit=False)  # 2
    log.write(2, 1)  # 3
    log.end(1, commit=False)  # 4
    assert [one.last_offset for one in log.transactions.aborted_between(2, 3)] == [2, 4]


def test_a_marker_without_a_transaction_adds_no_aborted_transaction(log: Log) -> None:
    log.end(1, commit=False)
    assert log.transactions.aborted_count == 0
    assert log.stable() == 1


def test_a_marker_of_a_later_epoch_fences_the_earlier_epoch(log: Log) -> None:
    log.write(1, epoch=3)
    log.end(1, epoch=4)
    late = B(1, 1, 3, 1, is_transactional=True)
    assert code_of(log.state.check(late, 0, confirmed(log.state, 1))) is KafkaCode.INVALID_PRODUCER_EPOCH
    following = B(0, 0, 4, 1, is_transactional=True)
    assert log.state.check(following, 0, confirmed(log.state, 1)) == Accept()
    skipped = B(1, 1, 4, 1, is_transactional=True)
    token = confirmed(log.state, 1)
    assert code_of(log.state.check(skipped, 0, token)) is KafkaCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_a_transaction_begins_only_after_the_coordinator_has_confirmed_it(log: Log) -> None:
    batch = B(0, 0, 0, 1, is_transactional=True)
    assert code_of(log.state.check(batch, 0)) is KafkaCode.INVALID_TXN_STATE
    token = log.state.start_verification(batch.producer_id, 0, 0)
    assert token is not None
    assert code_of(log.state.check(batch, 0, token)) is KafkaCode.INVALID_TXN_STATE
    token.is_confirmed = True
    assert log.state.check(batch, 0, token) == Accept()
    log.write(1)
    assert confirmed(log.state, 1) is None
    assert log.state.check(B(1, 1, 0, 1, is_transactional=True), 0) == Accept()


def test_a_marker_voids_a_confirmation_under_way(log: Log) -> None:
    batch = B(0, 0, 0, 1, is_transactional=True)
    token = confirmed(log.state, batch.producer_id)
    log.end(1)
    assert code_of(log.state.check(batch, 0, token)) is KafkaCode.INVALID_TXN_STATE


def test_a_marker_of_a_later_epoch_voids_a_confirmation(log: Log) -> None:
    log.write(1)
    log.end(1)
    token = confirmed(log.state, 1)
    log.end(1, epoch=1)
    assert not log.state.is_verified(1, 0, token)


def test_a_verification_that_has_ended_confirms_no_batch(log: Log) -> None:
    batch = B(0, 0, 0, 1, is_transactional=True)
    token = confirmed(log.state, batch.producer_id)
    assert token is not None
    log.state.end_verification(1, token)
    assert code_of(log.state.check(batch, 0, token)) is KafkaCode.INVALID_TXN_STATE


def test_a_transaction_begins_with_the_first_batch_that_requested_verification(log: Log) -> None:
    """Otherwise the earlier batch would count as a duplicate when it is sent again, and would be lost."""
    first = log.state.start_verification(1, 0, 10)
    second = log.state.start_verification(1, 0, 12)
    assert first is second
    assert second is not None
    second.is_confirmed = True
    later = log.state.check(B(12, 13, 0, 1, is_transactional=True), 5, second)
    assert code_of(later) is KafkaCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert log.state.check(B(10, 11, 0, 1, is_transactional=True), 5, first) == Accept()


def test_the_number_of_verifications_is_bounded(log: Log) -> None:
    oldest = log.state.start_verification(1, 0, 0)
    for producer_id in range(2, VERIFICATIONS_MAX + 2):
        log.state.start_verification(producer_id, 0, 0)
    assert oldest is not None
    oldest.is_confirmed = True
    assert not log.state.is_verified(1, 0, oldest)


def test_a_fenced_producer_cannot_use_the_confirmation_of_a_later_epoch(log: Log) -> None:
    log.write(1)
    log.end(1)
    late = B(1, 1, 0, 1, is_transactional=True)
    before = log.state.start_verification(1, 0, 0)
    token = confirmed(log.state, 1, epoch=1)
    after = log.state.start_verification(1, 0, 0)
    for stale in (before, after):
        assert stale is not token
        assert code_of(log.state.check(late, 0, stale)) is KafkaCode.INVALID_TXN_STATE
    assert log.state.check(B(0, 0, 1, 1, is_transactional=True), 0, token) == Accept()


def test_a_non_transactional_batch_is_refused_within_a_transaction(log: Log) -> None:
    log.write(1)
    assert code_of(log.state.check(B(1, 1, 0, 1), 0)) is KafkaCode.INVALID_TXN_STATE


def test_markers_of_old_producers_and_coordinators_are_refused(log: Log) -> None:
    log.write(1, epoch=2)
    log.end(1, epoch=2, coordinator=5)
    check = log.state.check_marker
    assert check(Marker(ProducerKey(1, 2), True, 5)) == Accept()
    old = check(Marker(ProducerKey(1, 1), True, 5))
    assert isinstance(old, Refuse)
    assert old.code is KafkaCode.INVALID_PRODUCER_EPOCH
    stranger = check(Marker(ProducerKey(1, 3), True, 4))
    assert isinstance(stranger, Refuse)
    assert stranger.code is KafkaCode.TRANSACTION_COORDINATOR_FENCED
    assert check(Marker(ProducerKey(9, 0), False, 0)) == Accept()


def test_a_batch_of_the_next_epoch_waits_for_the_marker_of_the_previous_transaction(log: Log) -> None:
    """The client gets its next epoch with the decision, before the marker is in this log."""
    log.write(1)
    following = B(0, 0, 1, 1, is_transactional=True)
    token = log.state.start_verification(1, 1, 0)
    assert token is not None
    assert code_of(log.state.check(following, 0, token)) is KafkaCode.INVALID_TXN_STATE
    token.is_confirmed = True  # although the marker is missing: an unclean election has lost it
    assert code_of(log.state.check(following, 0, token)) is KafkaCode.NOT_ENOUGH_REPLICAS
    log.end(1, epoch=1)
    assert log.state.check(following, 0, token) == Accept(), "the marker did not end this transaction"
    log.end(1, epoch=1)
    assert code_of(log.state.check(following, 0, token)) is KafkaCode.INVALID_TXN_STATE


def test_a_late_copy_of_a_marker_does_not_end_the_next_transaction(log: Log) -> None:
    log.write(1)
    marker = Marker(ProducerKey(1, 1), True, 0, raises_epoch=True)
    assert log.state.check_marker(marker) == Accept()
    offset = log.end(1, epoch=1)
    assert log.state.check_marker(marker) == Duplicate(offset, offset + 1)
    log.write(1, epoch=1)
    late = log.state.check_marker(marker)
    assert isinstance(late, Refuse)
    assert late.code is KafkaCode.INVALID_PRODUCER_EPOCH
    assert log.state.check_marker(Marker(ProducerKey(1, 2), True, 0, raises_epoch=True)) == Accept()


def test_a_new_transaction_is_refused_while_too_many_aborted_ones_are_stored(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(producer_state, "ABORTED_MAX", 1)
    log.write(1)
    log.end(1, commit=False)
    batch = B(1, 1, 0, 1, is_transactional=True)
    token = confirmed(log.state, batch.producer_id)
    assert code_of(log.state.check(batch, 0, token)) is KafkaCode.POLICY_VIOLATION
    log.transactions.drop_before(2)
    assert log.state.check(batch, 0, token) == Accept()


def test_a_producer_with_an_open_transaction_does_not_expire(log: Log) -> None:
    log.write(1)
    for now_ms in (0, 10_000):
        assert log.state.expire(now_ms, 1_000, 10) == 0
    log.end(1)
    log.state.expire(10_000, 1_000, 10)
    assert log.state.expire(20_000, 1_000, 10) == 1


def test_a_snapshot_holds_the_transactions(log: Log) -> None:
    log.write(1)
    log.write(2)
    log.write(3)
    log.end(2, commit=False, coordinator=4)
    log.end(3, epoch=1, coordinator=5)
    copy = ProducerState.restore(log.state.snapshot())
    assert copy.snapshot() == log.state.snapshot()
    assert copy.transactions.open == {1: 0}
    assert copy.transactions.stable_offset(3) == 0
    assert copy.transactions.aborted_between(0, 9) == [AbortedTransaction(2, 1, 3)]
    producer = copy.get(3)
    assert producer is not None
    assert (producer.epoch, producer.coordinator_epoch, producer.last_marker) == (1, 5, 4)
