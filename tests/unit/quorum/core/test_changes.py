"""The steps from one voter set to another."""

from __future__ import annotations

from itertools import combinations, pairwise

import pytest

from quorum.core.changes import (
    VOTERS_MAX,
    names,
    next_change,
    refuse_without_majority,
    with_voter,
    without_voter,
)
from quorum.core.events import AddVoter, RemoveVoter, UpdateVoter, VoterChangeError
from quorum.core.types import ReplicaKey, Voter, VoterSet
from tests.scenarios.lab import directory


def voter(node_id: int, disk: int | None = None, address: str | None = None) -> Voter:
    return Voter(ReplicaKey(node_id, directory(disk or node_id)), address or f"n{node_id}:1")


def voters(*ids: int) -> VoterSet:
    return VoterSet(tuple(voter(node_id) for node_id in ids))


def apply(current: VoterSet, change: AddVoter | RemoveVoter | UpdateVoter) -> VoterSet:
    match change:
        case AddVoter(node_id, address, directory_id):
            assert directory_id is not None
            assert current.by_id(node_id) is None, f"{change} to {current}"
            return with_voter(current, Voter(ReplicaKey(node_id, directory_id), address))
        case RemoveVoter(node_id, directory_id):
            assert directory_id is not None
            return without_voter(current, ReplicaKey(node_id, directory_id))
        case UpdateVoter(key, address):
            return with_voter(current, Voter(key, address))


def path(current: VoterSet, target: VoterSet, leader: ReplicaKey, live: set[ReplicaKey]) -> list[VoterSet]:
    size, sets = len(current), [current]
    while (change := next_change(sets[-1], target, size, leader, live)) is not None:
        sets.append(apply(sets[-1], change))
        assert len(sets) < 30, f"no end of steps: {sets}"
    return sets


ALL = [ids for size in (1, 2, 3, 4) for ids in combinations(range(1, 6), size)]


@pytest.mark.parametrize("start", ALL, ids=str)
def test_every_change_of_voters_takes_the_fewest_steps_and_ends_at_the_target(start: tuple[int, ...]) -> None:
    for goal in ALL:
        current, target = voters(*start), voters(*goal)
        leader = voter(start[0]).key
        sets = path(current, target, leader, {voter(node_id).key for node_id in start})
        assert sets[-1] == target
        assert len(sets) - 1 == len(set(start) ^ set(goal)), f"a detour: {sets}"
        for before, after in pairwise(sets):
            assert len({v.key for v in before} ^ {v.key for v in after}) == 1
            assert len(after) >= min(len(start), len(goal))
            assert len(after) <= max(len(start), len(goal)) + 1
        led = [leader in entry for entry in sets]
        assert all(led[:-1]), f"the leader was removed before the last step: {sets}"


def test_voters_that_are_down_are_removed_first() -> None:
    change = next_change(voters(1, 2, 3), voters(1), 3, voter(1).key, {voter(1).key, voter(2).key})
    assert change == RemoveVoter(3, directory(3))


def test_a_full_voter_set_removes_a_voter_before_it_adds_one() -> None:
    full, target = voters(*range(1, VOTERS_MAX + 1)), voters(1, 2, 99)
    assert next_change(full, target, VOTERS_MAX, voter(1).key, set()) == RemoveVoter(3, voter(3).key.directory_id)
    after = without_voter(full, voter(3).key)
    assert isinstance(next_change(after, target, VOTERS_MAX, voter(1).key, set()), AddVoter)


def test_a_nodes_old_disk_is_removed_before_its_new_disk_is_added() -> None:
    target = VoterSet((voter(1), voter(2), voter(3, disk=93)))
    sets = path(voters(1, 2, 3), target, voter(1).key, set())
    assert [names(entry) for entry in sets] == ["1,2,3", "1,2", "1,2,3"]
    assert sets[-1] == target


def test_a_change_of_address_is_a_step_of_its_own() -> None:
    target = VoterSet((voter(1), voter(2, address="elsewhere:1")))
    change = next_change(voters(1, 2), target, 2, voter(1).key, set())
    assert change == UpdateVoter(voter(2).key, "elsewhere:1")


def test_the_refusal_of_a_voter_set_without_a_live_majority_names_the_missing_voters() -> None:
    keys = {voter(1).key, voter(2).key}
    assert refuse_without_majority(voters(1, 2, 3), keys) is None
    refusal = refuse_without_majority(voters(1, 2, 3, 4), keys)
    assert refusal is not None
    assert refusal.error is VoterChangeError.NO_MAJORITY
    assert "need 3 of 4" in refusal.message
    assert "only voters 1,2 fetched lately; unavailable: 3,4" in refusal.message
