"""The table of transitions, and the row of each transition."""

from __future__ import annotations

import pytest

from quorum.core.events import RoleChanged
from quorum.core.types import Role
from simulation.quorum.coverage import ROWS, TRANSITIONS, describe, row_of


def changed(role: Role, reason: str) -> RoleChanged:
    return RoleChanged(role, 3, None, reason)


@pytest.mark.parametrize(
    ("before", "after", "reason", "why"),
    [
        (None, Role.UNATTACHED, "joined cluster c as voter", "founds"),
        (Role.FOLLOWER, Role.PROSPECTIVE, "leader 2 has resigned", "leader has resigned"),
        (Role.FOLLOWER, Role.PROSPECTIVE, "leader 2 does not answer", "no reply from the leader"),
        (Role.FOLLOWER, Role.UNATTACHED, "leader 2 of epoch 4 has resigned", "learns of an epoch at its end"),
        (Role.FOLLOWER, Role.UNATTACHED, "leader 2 has resigned", "leader has resigned, as an observer"),
        (Role.LEADER, Role.RESIGNED, "hands over to 3 on request", "hands over on request"),
        (Role.LEADER, Role.RESIGNED, "hands over to the preferred node 3", "hands over by preference"),
    ],
)
def test_each_transition_is_assigned_to_the_row_of_its_reason(
    before: Role | None, after: Role, reason: str, why: str
) -> None:
    assert row_of(before, changed(after, reason)) == (before, after, why)
    assert (before, after, why) in ROWS


def test_an_unexpected_transition_gets_a_row_of_its_own() -> None:
    row = row_of(Role.LEADER, changed(Role.PROSPECTIVE, "for no good reason"))
    assert row not in ROWS
    assert describe(row) == "leader > prospective: for no good reason"
    assert Role.PROSPECTIVE not in TRANSITIONS[Role.LEADER]


def test_every_role_can_be_entered_and_left() -> None:
    assert set(TRANSITIONS) == {None, *Role}
    assert {after for afters in TRANSITIONS.values() for after in afters} == set(Role)
