"""A log that starts above offset 0: epochs and voters before its start."""

from __future__ import annotations

import pytest

from quorum.core.log_index import LogIndex
from quorum.core.types import Batch, LogBase, LogEnd, TargetVoters, Voters, VoterSet
from quorum.core.voters import VoterHistory
from tests.contract.samples import CLUSTER, VOTERS, data

FEWER = VoterSet(VOTERS.voters[:2])


def log(*epochs: int) -> LogIndex:
    """Return a durable log with one record of each of these epochs."""
    index = LogIndex(0, 0, (), 1 << 20)
    for offset, epoch in enumerate(epochs):
        index.append(data(offset, epoch), 1)
    index.written(1)
    return index


@pytest.mark.parametrize("start", range(1, 7))
def test_trimming_does_not_change_the_rest_of_the_log(start: int) -> None:
    epochs = (1, 1, 2, 4, 4, 7)
    whole, index = log(*epochs), log(*epochs)
    index.trim(start)
    assert (index.start, index.end, index.last) == (start, 6, whole.last)
    assert index.base_epoch == epochs[start - 1]
    for offset in range(start, 6):
        assert index.epoch_at(offset) == whole.epoch_at(offset)
        assert index.recent(offset, 1 << 20) == whole.recent(offset, 1 << 20)
    for epoch in range(index.base_epoch, 9):
        assert index.end_of_epoch(epoch) == max(whole.end_of_epoch(epoch), LogEnd(index.base_epoch, start))
    for epoch in range(index.base_epoch):
        assert index.end_of_epoch(epoch) == LogEnd(epoch, start)
    index.append(data(6, 8), 2)
    assert index.last == LogEnd(8, 7)


def test_only_whole_durable_batches_are_trimmed() -> None:
    index = log(1, 1)
    index.append(data(2, 1, count=3), 2)
    with pytest.raises(AssertionError, match="trim to 5"):
        index.trim(5)
    index.written(2)
    with pytest.raises(AssertionError, match="within a batch"):
        index.trim(3)
    index.trim(5)
    with pytest.raises(AssertionError, match="trim to 4"):
        index.trim(4)


def test_a_log_that_restarts_at_a_snapshot_ignores_earlier_pending_writes() -> None:
    index = log(1, 1)
    index.append(data(2, 1), 2)
    index.reset(LogEnd(5, 40))
    assert (index.start, index.end, index.durable_end, index.last) == (40, 40, 40, LogEnd(5, 40))
    assert (index.epoch_at(39), index.recent(40, 100)) == (None, ())
    index.append(data(40, 5), 3)
    index.written(2)
    assert index.durable_end == 40, "the earlier write does not show that the batch at 40 is durable"
    index.written(3)
    assert index.durable_end == 41
    index.truncate(40)
    assert index.last == LogEnd(5, 40)


def record(offset: int, voters: VoterSet) -> Batch:
    return Batch(offset, 1, 1, 0, b"", Voters(CLUSTER, 0, voters))


def test_a_trimmed_log_keeps_the_voters_that_were_in_force_below_its_start() -> None:
    controls = [record(0, VOTERS), record(5, FEWER), Batch(7, 1, 1, 0, b"", TargetVoters(VOTERS)), record(9, VOTERS)]
    whole = VoterHistory(controls)
    for start in (1, 5, 6, 7, 8, 9, 10):
        voters, target = whole.in_force_below(start)
        base = LogBase(LogEnd(1, start), voters, target)
        trimmed = VoterHistory(controls)
        trimmed.trim(base)
        reopened = VoterHistory([batch for batch in controls if batch.base_offset >= start], base)
        for history in (trimmed, reopened):
            assert (history.current, history.target, history.record) == (whole.current, whole.target, whole.record)
            for offset in range(start, 12):
                assert history.below(offset) == whole.below(offset), (start, offset)
            history.truncate(start)
            assert (history.current, history.target) == (voters.voters, target)
