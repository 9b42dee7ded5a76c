"""The table of legal transitions: drawn in ARCHITECTURE.md, asserted by the core, equal to the simulator's.

`REWRITE=1` draws the diagram again.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from random import Random
from uuid import UUID

import pytest

from quorum.core.config import RaftConfig
from quorum.core.leader_history import LeaderHistory
from quorum.core.roles import Leader, Resigned, Unattached
from quorum.core.state import CoreState
from quorum.core.timeouts import Timeouts
from quorum.core.transitions import TRANSITIONS, Transitions
from quorum.core.types import QuorumState, Role, StoredQuorum
from simulation.quorum import coverage

PAGE = Path(__file__).parents[4] / "ARCHITECTURE.md"
DIAGRAM = re.compile(r"```mermaid\nstateDiagram-v2\n.*?```\n", re.DOTALL)


def drawn() -> str:
    lines = ["```mermaid", "stateDiagram-v2"]
    for before, after, when in TRANSITIONS:
        lines.append(f"    {before.value if before is not None else '[*]'} --> {after.value}: {when}")
    return "\n".join([*lines, "```", ""])


def transitions() -> Transitions:
    stored = StoredQuorum(1, UUID(int=1), QuorumState(), 0, 0, (), ())
    state = CoreState(RaftConfig(1, "n1:1"), stored, now_ms=0)
    return Transitions(state, Timeouts(state, Random(1)), LeaderHistory(state))


def test_the_diagram_shows_the_legal_transitions() -> None:
    page = PAGE.read_text()
    if os.environ.get("REWRITE"):
        page = DIAGRAM.sub(lambda _: drawn(), page)
        PAGE.write_text(page)
    assert DIAGRAM.findall(page) == [drawn()], "draw it again with REWRITE=1"


def test_the_simulator_expects_the_same_transitions() -> None:
    assert set(coverage.TABLE) == {(before, after) for before, after, _ in TRANSITIONS}


def test_no_transition_is_listed_twice() -> None:
    assert len({(before, after) for before, after, _ in TRANSITIONS}) == len(TRANSITIONS)


def test_a_node_cannot_lead_without_being_a_candidate() -> None:
    roles = transitions()
    roles.become(Unattached(None), 0, "started")
    with pytest.raises(AssertionError, match="not a legal transition: won"):
        roles.become(Leader(epoch_start=0, since_ms=0), 0, "won")


def test_only_a_leader_or_a_starting_node_becomes_resigned() -> None:
    assert {before for before, after, _ in TRANSITIONS if after is Role.RESIGNED} == {None, Role.LEADER}
    roles = transitions()
    roles.become(Resigned(None, {}, (), "led before"), 0, "led before")
    with pytest.raises(AssertionError, match="not a legal transition: again"):
        roles.become(Resigned(None, {}, (), "led before"), 1, "again")
