"""The voters in force follow from the log up to its end."""

from __future__ import annotations

import pytest

from quorum.core.types import Batch, LeaderChange, LogBase, LogEnd, ReplicaKey, TargetVoters, Voter, Voters, VoterSet
from quorum.core.voters import VoterHistory
from tests.scenarios.lab import directory


def voter_set(*ids: int) -> VoterSet:
    return VoterSet(tuple(Voter(ReplicaKey(i, directory(i)), f"n{i}:1") for i in ids))


def control(offset: int, record: Voters | TargetVoters | LeaderChange) -> Batch:
    return Batch(offset, 1, 1, 0, control=record)


def history(*batches: Batch) -> VoterHistory:
    return VoterHistory(batches)


ONE = control(0, Voters("c", 0, voter_set(1)))
TWO = control(5, Voters("c", 0, voter_set(1, 2)))
TARGET = control(7, TargetVoters(voter_set(1, 2, 3)))
DONE = control(9, TargetVoters(None))


def test_the_latest_voter_set_and_target_records_are_in_force() -> None:
    found = history(ONE, control(1, LeaderChange(ReplicaKey(1, directory(1)), (), ())), TWO, TARGET)
    assert found.founding is ONE
    assert found.current == voter_set(1, 2)
    assert found.target == voter_set(1, 2, 3)


def test_truncation_restores_the_previous_voters() -> None:
    found = history(ONE, TWO, TARGET, DONE)
    assert found.truncate(9) == [TARGET.control]
    assert found.target == voter_set(1, 2, 3)
    assert found.truncate(6) == [TargetVoters(None)]
    assert found.truncate(6) == []
    assert found.truncate(5) == [ONE.control]
    assert found.current == voter_set(1)
    assert found.target is None


def test_truncation_to_0_removes_all_voters() -> None:
    found = history(ONE)
    assert found.truncate(0) == []
    assert (found.current, found.founding, found.record) == (VoterSet(), None, None)


def test_the_history_returns_the_voters_and_target_in_force_below_an_offset() -> None:
    found = history(ONE, TWO, TARGET, DONE)
    assert found.below(0) == (VoterSet(), None)
    assert found.below(5) == (voter_set(1), None)
    assert found.below(6) == (voter_set(1, 2), None)
    assert found.below(8) == (voter_set(1, 2), voter_set(1, 2, 3))
    assert found.below(10) == (voter_set(1, 2), None)


@pytest.mark.parametrize(("count", "majority"), [(1, 1), (2, 2), (3, 2), (4, 3), (5, 3)])
def test_a_majority_is_more_than_half_of_the_voters(count: int, majority: int) -> None:
    assert voter_set(*range(1, count + 1)).majority == majority


def test_a_voter_is_identified_by_node_id_and_disk() -> None:
    voters = voter_set(1, 2)
    assert ReplicaKey(1, directory(1)) in voters
    assert ReplicaKey(1, directory(2)) not in voters
    found = voters.by_id(1)
    assert found is not None
    assert found.key == ReplicaKey(1, directory(1))
    assert voters.by_id(3) is None


def test_voters_out_of_order_or_listed_twice_fail_an_assertion() -> None:
    with pytest.raises(AssertionError, match="out of order"):
        voter_set(2, 1)
    with pytest.raises(AssertionError, match="twice"):
        voter_set(1, 1)


def test_the_number_of_voters_before_a_target_is_known_while_the_log_contains_the_target() -> None:
    two, three = voter_set(1, 2), voter_set(1, 2, 3)
    found = history(control(0, Voters("c", 0, three)), control(4, TargetVoters(two)))
    assert (found.target_started_size, found.changed_at) == (3, 4)
    found.append(control(5, Voters("c", 0, two)))
    assert (found.target_started_size, found.changed_at) == (3, 5)
    found.trim(LogBase(LogEnd(1, 6), Voters("c", 0, two), two))
    assert (found.target_started_size, found.changed_at) == (2, 5)


def test_former_voters_are_remembered() -> None:
    found = history(control(0, Voters("c", 0, voter_set(1, 2, 3))), control(5, Voters("c", 0, voter_set(1, 2))))
    assert found.was_voter(3, None)
    assert found.was_voter(3, directory(3))
    assert not found.was_voter(3, directory(99))
    assert not found.was_voter(4, None)
