from __future__ import annotations

import pytest

from broker.core.epochs import UNKNOWN_EPOCH, EpochCache


def test_an_empty_history_has_no_epochs() -> None:
    epochs = EpochCache()
    assert epochs.latest == -1
    assert epochs.end_of(0) == UNKNOWN_EPOCH
    assert epochs.epoch_of(0) == -1


def test_the_end_of_an_epoch_is_the_start_of_the_next() -> None:
    epochs = EpochCache([(2, 10), (5, 20), (6, 30)], end_offset=35)
    assert epochs.end_of(1) == (1, 10)
    assert epochs.end_of(2) == (2, 20)
    assert epochs.end_of(4) == (2, 20)
    assert epochs.end_of(5) == (5, 30)
    assert epochs.end_of(6) == (6, 35)
    assert epochs.end_of(7) == UNKNOWN_EPOCH
    assert epochs.end_of(-1) == UNKNOWN_EPOCH


def test_the_epoch_of_an_offset_is_found() -> None:
    epochs = EpochCache([(2, 10), (5, 20)], end_offset=35)
    assert [epochs.epoch_of(offset) for offset in (9, 10, 19, 20, 34)] == [-1, 2, 2, 5, 5]


def test_an_epoch_without_records_is_replaced() -> None:
    epochs = EpochCache([(1, 0)], end_offset=4)
    epochs.assign(2, 4)
    epochs.assign(3, 4)
    assert epochs.entries == ((1, 0), (3, 4))
    epochs.advance(3, 4, 6)
    assert epochs.end_of(2) == (1, 4)


def test_assigned_epochs_never_decrease() -> None:
    epochs = EpochCache([(4, 0)], end_offset=4)
    with pytest.raises(AssertionError, match="epoch 3 after 4"):
        epochs.assign(3, 4)


def test_truncation_forgets_later_epochs() -> None:
    epochs = EpochCache([(2, 10), (5, 20), (6, 30)], end_offset=35)
    epochs.truncate_to(30)
    assert epochs.entries == ((2, 10), (5, 20))
    assert epochs.end_of(5) == (5, 30)
    epochs.truncate_to(10)
    assert epochs.latest == -1


def test_a_later_log_start_keeps_the_epoch_at_that_offset() -> None:
    epochs = EpochCache([(2, 10), (5, 20), (6, 30)], end_offset=35)
    epochs.drop_before(25)
    assert list(epochs.entries) == [(5, 20), (6, 30)]
    epochs.drop_before(35)
    assert list(epochs.entries) == [(6, 30)]
    assert epochs.end_of(6) == (6, 35)


def test_the_epoch_of_the_last_record_stays_known_after_the_record_is_deleted() -> None:
    epochs = EpochCache([(2, 10), (5, 20)], end_offset=35)
    epochs.drop_before(35)
    assert (epochs.last_epoch, epochs.entries) == (5, ((5, 20),))
    epochs.assign(8, 35)
    epochs.drop_before(35)
    assert (epochs.last_epoch, epochs.latest) == (5, 8), "epoch 8 has no record yet"
    epochs.advance(8, 35, 40)
    epochs.drop_before(35)
    assert (epochs.epoch_of(34), epochs.last_epoch) == (5, 8), "the log begins where epoch 8 does"
    epochs.truncate_to(35)
    assert epochs.last_epoch == 5
