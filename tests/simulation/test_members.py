"""The judge of groups of the newer protocol: the sequences of events that it accepts, and those that it reports."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from simulation.cluster.members import MemberWatch


class Judged:
    """A `MemberWatch` and the violations that it reports."""

    def __init__(self) -> None:
        self.violations: list[str] = []
        self.watch = MemberWatch(self._check)

    def _check(self, holds: bool, text: Callable[[], str]) -> None:
        if not holds:
            self.violations.append(text())


@pytest.fixture
def judged() -> Judged:
    return Judged()


def test_a_partition_may_move_to_another_member_in_a_later_epoch(judged: Judged) -> None:
    judged.watch.owns("a", 1, frozenset({0, 1}))
    judged.watch.owns("a", 2, frozenset({0}))
    judged.watch.owns("b", 2, frozenset({1}))
    assert not judged.violations


def test_a_partition_must_not_have_two_owners_in_an_epoch(judged: Judged) -> None:
    judged.watch.owns("a", 1, frozenset({0}))
    judged.watch.owns("b", 1, frozenset({0}))
    assert judged.violations == ["I38: partition 0 belongs to a and b in epoch 1"]


def test_an_acknowledged_offset_must_not_be_lost(judged: Judged) -> None:
    judged.watch.committed(0, 5, None)
    judged.watch.fetched(0, 5, least=5)
    assert not judged.violations
    judged.watch.fetched(0, 4, least=judged.watch.acknowledged[0])
    assert judged.violations == ["I39: offset 5 of partition 0 is committed, not 4"]


def test_a_former_owner_must_not_commit(judged: Judged) -> None:
    judged.watch.owns("a", 1, frozenset({0}))
    assert judged.watch.successor(0, "a", 1) is None
    judged.watch.owns("b", 2, frozenset({0}))
    assert judged.watch.successor(0, "b", 2) is None
    judged.watch.committed(0, 7, judged.watch.successor(0, "a", 1))
    assert judged.violations == ["I39: offset 7 of partition 0 is accepted, b owns it"]
