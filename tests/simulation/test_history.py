"""The judge of committed records: the histories that it accepts, and its reports."""

from __future__ import annotations

from uuid import UUID

from broker.log import LogKey
from simulation.cluster.history import Committed, History, Mark
from simulation.cluster.metadata import Spot

FORGETS_S = 60.0


def a_history() -> History:
    return History(LogKey(UUID(int=1), 0, 5), Spot("safe", 0))


def a_batch(offset: int, *marks: Mark) -> Committed:
    return Committed(offset, offset + len(marks), 0, 0, marks)


def test_record_that_is_committed_twice_is_reported() -> None:
    history = a_history()
    assert history.add(a_batch(0, Mark(7, 0), Mark(8, 0)), 0.0, FORGETS_S) is None
    problem = history.add(a_batch(2, Mark(7, 0)), 1.0, FORGETS_S)
    assert problem is not None
    assert problem.startswith("I22")


def test_record_below_the_offset_at_which_a_replica_started_over_may_be_repeated() -> None:
    history = a_history()
    assert history.add(a_batch(0, Mark(7, 0), Mark(8, 0)), 0.0, FORGETS_S) is None
    history.rebuilt_at = 2
    assert history.add(a_batch(2, Mark(7, 0)), 1.0, FORGETS_S) is None


def test_repeated_record_of_a_writer_that_the_rebuilt_replica_still_knows_is_reported() -> None:
    history = a_history()
    assert history.add(a_batch(0, Mark(7, 0), Mark(7, 1)), 0.0, FORGETS_S) is None
    history.rebuilt_at = 1
    problem = history.add(a_batch(2, Mark(7, 0)), 1.0, FORGETS_S)
    assert problem is not None
    assert problem.startswith("I22")


def test_each_batch_of_a_writer_that_paused_may_be_repeated_once() -> None:
    """The producer had two batches in flight when it stopped sending, and later sends both again."""
    history = a_history()
    assert history.add(a_batch(0, Mark(7, 0)), 0.0, FORGETS_S) is None
    assert history.add(a_batch(1, Mark(7, 1)), 0.0, FORGETS_S) is None
    assert history.add(a_batch(2, Mark(7, 0)), FORGETS_S, FORGETS_S) is None
    assert history.add(a_batch(3, Mark(7, 1)), FORGETS_S, FORGETS_S) is None
    problem = history.add(a_batch(4, Mark(7, 1)), FORGETS_S + 1.0, FORGETS_S)
    assert problem is not None
    assert problem.startswith("I22")


def test_repeated_records_can_be_removed_by_an_unclean_election() -> None:
    history = a_history()
    assert history.add(a_batch(0, Mark(7, 0)), 0.0, FORGETS_S) is None
    assert history.add(a_batch(1, Mark(7, 0)), FORGETS_S, FORGETS_S) is None
    assert history.cut_to(0) == 2
