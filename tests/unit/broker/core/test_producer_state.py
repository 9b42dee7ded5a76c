from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import pytest

from broker.core.producer_state import (
    Accept,
    CorruptSnapshotError,
    Duplicate,
    ProducerState,
    Refuse,
)
from quorumlog.wire.errors import KafkaCode

LAST = 2**31 - 1
EXPIRATION = 1_000


class B(NamedTuple):
    """A batch as the producer state sees it."""

    base_sequence: int
    last_sequence: int
    producer_epoch: int = 0
    producer_id: int = 5
    is_control: bool = False
    is_transactional: bool = False
    max_timestamp: int = -1


EPOCH_BEGUN = B(-1, -1, producer_epoch=1, is_control=True)
"""A control batch, like the marker that begins this epoch."""


def state_after(*batches: B) -> ProducerState:
    """Return the state after these batches, each of which has ten offsets."""
    state = ProducerState()
    for number, batch in enumerate(batches):
        state.apply(batch, 10 * number, 10 * number + 10)
    return state


def code_of(verdict: object) -> KafkaCode:
    assert isinstance(verdict, Refuse), verdict
    return verdict.code


def test_the_next_sequence_is_accepted() -> None:
    state = state_after(B(0, 9), B(10, 19))
    assert state.check(B(20, 20), 0) == Accept()
    assert code_of(state.check(B(21, 30), 0)) is KafkaCode.OUT_OF_ORDER_SEQUENCE_NUMBER


@pytest.mark.parametrize(
    ("batches", "epoch", "expected"),
    [((), 0, 0), ((B(0, 9),), 0, 10), ((B(0, 9),), 1, 0), ((B(0, LAST),), 0, 0)],
    ids=["unknown", "known", "of a new epoch", "at the last sequence"],
)
def test_the_expected_sequence_is_the_one_that_is_accepted(batches: tuple[B, ...], epoch: int, expected: int) -> None:
    state = state_after(*batches)
    assert state.expected_sequence(5, epoch) == expected
    assert state.check(B(expected, expected, producer_epoch=epoch), 0) == Accept()


@pytest.mark.parametrize(
    ("batches", "epoch", "log_start", "expected"),
    [
        ((), 0, 0, False),
        ((), 0, 1, True),
        ((B(0, 9),), 0, 1, False),
        ((EPOCH_BEGUN,), 1, 1, True),
        ((EPOCH_BEGUN,), 0, 1, False),
        ((EPOCH_BEGUN,), 2, 1, False),
    ],
    ids=["whole log", "unknown", "known", "of a marker's epoch", "of an earlier epoch", "of a new epoch"],
)
def test_any_sequence_is_accepted_only_if_earlier_batches_of_the_epoch_may_have_been_deleted(
    batches: tuple[B, ...], epoch: int, log_start: int, expected: bool
) -> None:
    state = state_after(*batches)
    batch = B(7, 7, producer_epoch=epoch)
    assert state.accepts_any_sequence(batch, log_start) is expected
    assert (state.check(batch, log_start) == Accept()) is expected


def test_duplicates_of_the_last_five_batches_are_recognized() -> None:
    batches = [B(10 * number, 10 * number + 9) for number in range(8)]
    state = state_after(*batches)
    for number in range(3, 8):
        assert state.check(batches[number], 0) == Duplicate(10 * number, 10 * number + 10)
    for number in range(3):
        assert code_of(state.check(batches[number], 0)) is KafkaCode.DUPLICATE_SEQUENCE_NUMBER


def test_a_batch_that_overlaps_without_being_equal_is_out_of_order() -> None:
    state = state_after(B(0, 9), B(10, 19))
    assert code_of(state.check(B(10, 12), 0)) is KafkaCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert code_of(state.check(B(15, 24), 0)) is KafkaCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_sequences_continue_with_0_after_the_last_one() -> None:
    state = state_after(B(LAST - 9, LAST))
    assert state.check(B(0, 4), 0) == Accept()
    across = state_after(B(LAST - 9, LAST - 1), B(LAST, 3))
    assert across.check(B(4, 4), 0) == Accept()
    assert across.check(B(LAST, 3), 0) == Duplicate(10, 20)
    assert code_of(across.check(B(LAST - 20, LAST - 11), 0)) is KafkaCode.DUPLICATE_SEQUENCE_NUMBER
    assert code_of(across.check(B(0, 0), 0)) is KafkaCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_an_older_epoch_is_refused_and_a_newer_one_restarts_the_sequence() -> None:
    state = state_after(B(0, 9, producer_epoch=3))
    assert code_of(state.check(B(10, 10, producer_epoch=2), 0)) is KafkaCode.INVALID_PRODUCER_EPOCH
    assert state.check(B(0, 5, producer_epoch=4), 0) == Accept()
    assert code_of(state.check(B(10, 10, producer_epoch=4), 0)) is KafkaCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    state.apply(B(0, 5, producer_epoch=4), 10, 16)
    assert code_of(state.check(B(10, 10, producer_epoch=3), 0)) is KafkaCode.INVALID_PRODUCER_EPOCH
    assert state.check(B(6, 6, producer_epoch=4), 0) == Accept()


def test_an_unknown_producer_starts_with_sequence_0() -> None:
    state = ProducerState()
    assert state.check(B(0, 9), log_start_offset=0) == Accept()
    assert code_of(state.check(B(10, 19), log_start_offset=0)) is KafkaCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_an_unknown_producer_may_continue_if_its_state_may_have_expired() -> None:
    assert ProducerState().check(B(10, 19), log_start_offset=1) == Accept()
    state = state_after(B(0, 9))
    assert state.expire(0, EXPIRATION, committed_offset=10) == 0
    state.apply(B(0, 3, producer_id=6), 10, 14)
    assert state.expire(EXPIRATION + 1, EXPIRATION, committed_offset=14) == 1
    assert state.get(5) is None
    assert state.get(6) is not None
    assert state.check(B(10, 19), log_start_offset=0) == Accept()
    assert ProducerState.restore(state.snapshot()).check(B(10, 19), log_start_offset=0) == Accept()


def test_a_producer_expires_by_the_time_since_it_was_first_seen_idle() -> None:
    state = state_after(B(0, 9))
    assert state.expire(5 * EXPIRATION, EXPIRATION, committed_offset=10) == 0
    assert state.expire(6 * EXPIRATION, EXPIRATION, committed_offset=10) == 0
    assert state.expire(6 * EXPIRATION + 1, EXPIRATION, committed_offset=10) == 1


def test_a_producer_whose_batch_is_not_committed_does_not_expire() -> None:
    state = state_after(B(0, 9), B(10, 19))
    for day in range(5):
        assert state.expire(day * 2 * EXPIRATION, EXPIRATION, committed_offset=19) == 0
        assert state.check(B(10, 19), 0) == Duplicate(10, 20)
    committed_at = 9 * EXPIRATION  # its reply may be lost, and a retry after that is still recognized
    assert state.expire(committed_at, EXPIRATION, committed_offset=20) == 0
    assert state.expire(committed_at + EXPIRATION, EXPIRATION, committed_offset=20) == 0
    assert state.check(B(10, 19), 0) == Duplicate(10, 20)
    assert state.expire(committed_at + EXPIRATION + 1, EXPIRATION, committed_offset=20) == 1


@pytest.mark.parametrize("end_silence", [lambda state: state.apply(B(10, 19), 10, 20), lambda state: state.renew(5)])
def test_a_batch_or_a_retry_resets_the_idle_time(end_silence: Callable[[ProducerState], None]) -> None:
    state = state_after(B(0, 9))
    assert state.expire(0, EXPIRATION, committed_offset=20) == 0
    end_silence(state)
    assert state.expire(2 * EXPIRATION, EXPIRATION, committed_offset=20) == 0
    assert state.expire(3 * EXPIRATION, EXPIRATION, committed_offset=20) == 0
    assert state.expire(3 * EXPIRATION + 1, EXPIRATION, committed_offset=20) == 1


def test_a_restored_state_starts_without_idle_time() -> None:
    state = state_after(B(0, 9))
    assert state.expire(0, EXPIRATION, committed_offset=10) == 0
    state = ProducerState.restore(state.snapshot())
    assert state.expire(2 * EXPIRATION, EXPIRATION, committed_offset=10) == 0
    assert state.expire(3 * EXPIRATION + 1, EXPIRATION, committed_offset=10) == 1


def test_a_batch_without_a_producer_id_leaves_no_state() -> None:
    state = state_after(B(-1, -1, producer_epoch=-1, producer_id=-1))
    assert len(state) == 0
    assert state.check(B(7, 7, producer_id=-1), 0) == Accept()


def test_a_control_batch_changes_the_epoch_but_no_sequence() -> None:
    state = state_after(B(0, 9), B(-1, -1, producer_epoch=1, is_control=True))
    assert code_of(state.check(B(10, 10), 0)) is KafkaCode.INVALID_PRODUCER_EPOCH
    assert state.check(B(0, 0, producer_epoch=1), 0) == Accept()


def test_a_restored_snapshot_equals_the_state() -> None:
    state = state_after(B(0, 9), B(3, 4, producer_id=1), B(10, 19))
    copy = ProducerState.restore(state.snapshot())
    assert copy.snapshot() == state.snapshot()
    assert copy.check(B(10, 19), 0) == Duplicate(20, 30)
    assert ProducerState.restore(ProducerState().snapshot()).snapshot() == ProducerState().snapshot()


def test_any_damaged_snapshot_is_refused() -> None:
    data = state_after(B(0, 9), B(3, 4, producer_id=1)).snapshot()
    for size in range(len(data)):
        with pytest.raises(CorruptSnapshotError):
            ProducerState.restore(data[:size])
    for wrong in (data + b"\0", b"\xff" + data[1:]):
        with pytest.raises(CorruptSnapshotError):
            ProducerState.restore(wrong)
