"""The table of transitions between roles: the role before, the role after, and the reason.

The simulator prints the rows that no run has reached, because these are not tested.  A transition that is in no row is
a violation.  The reason is derived from the text that the core reports for people.
"""

from __future__ import annotations

import re

from quorum.core.events import RoleChanged
from quorum.core.types import Role

Row = tuple[Role | None, Role, str]
"""(before, after, why); before is None at the start of a process."""

_U, _P, _C, _L, _R, _F = (
    Role.UNATTACHED,
    Role.PROSPECTIVE,
    Role.CANDIDATE,
    Role.LEADER,
    Role.RESIGNED,
    Role.FOLLOWER,
)

_EPOCH = r"a reply has epoch|asks for a (pre-)?vote in epoch"
_LEADER = r"leader \d+ of epoch \d+, "
_ENDED = r"leader \d+ of epoch \d+ has resigned"
_STALLED = "starts no election: the disk"

TABLE: dict[tuple[Role | None, Role], dict[str, str]] = {
    (None, _U): {"started": "^started$", "joins": "joined cluster .* as observer", "founds": "joined .* as voter"},
    (None, _F): {"followed before": "leader that its disk names"},
    (None, _R): {"led before": "before its restart"},
    (_U, _U): {
        "higher epoch": _EPOCH,
        "gives its vote": "voted for",
        "learns of an epoch at its end": _ENDED,
        "disk hangs": _STALLED,
    },
    (_U, _P): {"election timeout": "election timeout"},
    (_U, _C): {"only voter": "the only voter"},
    (_U, _F): {"finds the leader": _LEADER},
    (_P, _P): {"timed out, knows no leader": "pre-vote timed out"},
    (_P, _C): {"a majority would vote for it": "would vote for it"},
    (_P, _F): {
        "finds the leader": _LEADER,
        "refused, back to the leader": "would not vote for it; back to leader",
        "timed out, back to the leader": "pre-vote timed out; back to leader",
    },
    (_P, _U): {
        "higher epoch": _EPOCH,
        "gives its vote": "voted for",
        "gives way": "gives way to",
        "learns of an epoch at its end": _ENDED,
        "disk hangs": _STALLED,
    },
    (_C, _L): {"elected": "elected by"},
    (_C, _P): {"election timeout": "not elected in epoch"},
    (_C, _U): {"higher epoch": _EPOCH, "learns of an epoch at its end": _ENDED, "disk hangs": _STALLED},
    (_C, _F): {"finds the leader": _LEADER},
    (_L, _R): {
        "stops": "this node is stopping",
        "hands over on request": "hands over to .* on request",
        "hands over by preference": "hands over to the preferred node",
        "is no longer a voter": "is no longer a voter",
        "disk hangs": "the disk has not answered",
    },
    (_L, _C): {"a node is ahead": "starts a new epoch: "},
    (_L, _U): {"higher epoch": _EPOCH, "learns of an epoch at its end": _ENDED},
    (_L, _F): {"finds the leader": _LEADER},
    (_R, _U): {
        "no successor": "no successor is known",
        "higher epoch": _EPOCH,
        "learns of an epoch at its end": _ENDED,
        "disk hangs": _STALLED,
    },
    (_R, _F): {"finds the leader": _LEADER},
    (_R, _C): {"only voter": "the only voter"},
    (_F, _F): {"newer leader": _LEADER},
    (_F, _P): {"no reply from the leader": "does not answer", "leader has resigned": "has resigned"},
    (_F, _U): {
        "higher epoch": _EPOCH,
        "learns of an epoch at its end": _ENDED,
        "no reply from the leader, as an observer": "does not answer",
        "leader has resigned, as an observer": "leader \\d+ has resigned",
        "disk hangs": _STALLED,
    },
    (_F, _C): {"only voter": "the only voter"},
}

ROWS: list[Row] = [(*pair, why) for pair, reasons in TABLE.items() for why in reasons]

TRANSITIONS: dict[Role | None, tuple[Role, ...]] = {
    before: tuple(after for one, after in TABLE if one is before) for before in (None, *Role)
}

_compiled = {pair: [(why, re.compile(words)) for why, words in reasons.items()] for pair, reasons in TABLE.items()}


def row_of(before: Role | None, change: RoleChanged) -> Row:
    """Return the row of a transition, or a new row with the reported reason if none fits."""
    for why, words in _compiled.get((before, change.role), ()):
        if words.search(change.reason):
            return before, change.role, why
    return before, change.role, change.reason


def describe(row: Row) -> str:
    before, after, why = row
    return f"{before.value if before else 'start'} > {after.value}: {why}"
