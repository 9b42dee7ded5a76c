"""Whether a client history could have come from one register a key, each operation taking effect at one moment.

Theory of operation (Wing and Gong's search with Lowe's memory of states).  Operations of one key concern no other key,
so each key is a history of its own.  An operation is *minimal* if no other one that is still to be placed had ended
before it began: only such a one can be next.  The search places a minimal operation whose result fits the value so
far, and goes back when it gets stuck.  (Set of placed operations, value) never needs to be tried twice.  An operation
with an unknown outcome has no end: it may be placed anywhere after its beginning, with any result, or never.  One that
fits and changes nothing (a read, a compare and set that failed) is placed as soon as it is minimal, with no other
choice tried: in any order that works it can be moved there.  One with an unknown outcome is placed only when a minimal
operation waits for what it makes of the value: in any order that works it can be left out, or moved there.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import inf

STATES_MAX = 200_000
"""Of one key.  A history that takes more is called undecided, which is no violation, but is counted."""


@dataclass(frozen=True, slots=True)
class Operation:
    """What one client did: `kind` is read, write or cas (compare and set).

    value: what a write or cas sets.  expected: what a cas expects.  result: what a read found; for a cas, whether it
    set.  `ended` is infinite while the outcome is unknown.
    """

    key: str
    kind: str
    began: float
    ended: float = inf
    value: str | None = None
    expected: str | None = None
    result: str | bool | None = None

    @property
    def is_known(self) -> bool:
        return self.ended < inf

    def __str__(self) -> str:
        what = {"read": "", "write": f" {self.value}", "cas": f" {self.expected}->{self.value}"}[self.kind]
        found = f" = {self.result}" if self.is_known else " = ?"
        return f"{self.began:.3f}-{self.ended:.3f} {self.kind} {self.key}{what}{found}"


def _value_after(operation: Operation, value: str | None) -> tuple[bool, str | None]:
    """Whether the operation could have had its result on `value`, and the value after it."""
    match operation.kind:
        case "read":
            return operation.result == value, value
        case "write":
            return True, operation.value
        case _:
            fits = operation.expected == value
            return not operation.is_known or operation.result == fits, operation.value if fits else value


def check_key(history: list[Operation]) -> bool | None:
    """Whether the history of one key is linearizable from an unset register; None if it takes too long to tell."""
    operations = sorted(
        (one for one in history if one.is_known or one.kind != "read"), key=lambda one: (one.began, one.ended)
    )
    needed = sum(1 << index for index, one in enumerate(operations) if one.is_known)
    start: tuple[int, str | None] = (0, None)
    seen, stack = {start}, [start]
    while stack:
        placed, value = stack.pop()
        if placed & needed == needed:
            return True
        if len(seen) > STATES_MAX:
            return None
        for state in _next_states(operations, placed, value):
            if state not in seen:
                seen.add(state)
                stack.append(state)
    return False


def _next_states(operations: list[Operation], placed: int, value: str | None) -> list[tuple[int, str | None]]:
    """What may come next; what to try first is last in the list, and that is the operation that ended first."""
    first_end = inf
    found: list[tuple[float, int, str | None]] = []  # what fits and has a known outcome
    doubtful: list[tuple[int, str | None]] = []
    wanted: set[str | bool | None] = set()  # values that an operation waits for
    other_wanted = False  # any value but the present one would do
    index = (~placed & (placed + 1)).bit_length() - 1  # all before are placed
    for place in range(index, len(operations)):
        if placed >> place & 1:
            continue
        one = operations[place]
        if one.began > first_end:
            break
        fits, after = _value_after(one, value)
        if one.ended < first_end:
            first_end = one.ended
        if fits and one.is_known:
            if one.kind == "read" or one.result is False:
                return [(placed | 1 << place, value)]
            found.append((one.ended, place, after))
        elif one.is_known:
            wanted.add(one.result if one.kind == "read" else one.expected)
            other_wanted = other_wanted or one.result is False
        else:
            if one.kind == "cas":
                wanted.add(one.expected)
            if after != value:
                doubtful.append((place, after))
    found.sort(key=lambda one: -one[0])
    states = [
        (placed | 1 << place, after)
        for place, after in doubtful
        if (after in wanted or other_wanted) and operations[place].began <= first_end
    ]
    return states + [(placed | 1 << place, after) for _, place, after in found if operations[place].began <= first_end]


@dataclass(frozen=True, slots=True)
class Verdict:
    """bad: the keys whose history is impossible.  undecided: those that took too long."""

    bad: tuple[str, ...]
    undecided: tuple[str, ...]


def check(history: Iterable[Operation]) -> Verdict:
    """Judge a history, key by key."""
    keys: dict[str, list[Operation]] = {}
    for operation in history:
        keys.setdefault(operation.key, []).append(operation)
    verdicts = {key: check_key(operations) for key, operations in sorted(keys.items())}
    return Verdict(
        tuple(key for key, verdict in verdicts.items() if verdict is False),
        tuple(key for key, verdict in verdicts.items() if verdict is None),
    )
