"""Check whether a client history is linearizable: one register for each key, and atomic operations.

Theory of operation (Wing and Gong's search with Lowe's memory of states).  Each key has its own history, because
operations on different keys are independent.  An operation is *minimal* if no other unplaced operation had ended before
it began; only a minimal operation can be next.  The search places a minimal operation whose result fits the current
value, and backtracks if there is none.  It never tries the same pair (set of placed operations, value) twice.

An operation with an unknown outcome has no end: it may be placed anywhere after its beginning, with any result, or
never.  Two rules reduce the search.  A minimal operation that fits and changes nothing (a read, or a failed compare and
set) is placed without trying alternatives, because every valid order remains valid if it is moved there.  An operation
with an unknown outcome is placed only if a minimal operation needs the value that it produces, because otherwise it can
be omitted or moved.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import inf

STATES_MAX = 200_000
"""The limit for one key.  A history that needs more is undecided; that is counted, but is not a violation."""


@dataclass(frozen=True, slots=True)
class Operation:
    """One operation of a client.  kind: read, write or cas (compare and set).

    value: the value that a write or cas sets.  expected: the value that a cas expects.  result: the value that a read
    returned; for a cas, whether it succeeded.  `ended` is infinite while the outcome is unknown.
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
        values = {"read": "", "write": f" {self.value}", "cas": f" {self.expected}->{self.value}"}[self.kind]
        found = f" = {self.result}" if self.is_known else " = ?"
        return f"{self.began:.3f}-{self.ended:.3f} {self.kind} {self.key}{values}{found}"


def _value_after(operation: Operation, value: str | None) -> tuple[bool, str | None]:
    """Return whether the operation's result fits `value`, and the value after it."""
    match operation.kind:
        case "read":
            return operation.result == value, value
        case "write":
            return True, operation.value
        case _:
            fits = operation.expected == value
            return not operation.is_known or operation.result == fits, operation.value if fits else value


def check_key(history: list[Operation]) -> bool | None:
    """Return whether the history of one key is linearizable from an unset register; None if undecided."""
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
    """Return the possible next states.  The last one is tried first; it places the operation that ended first."""
    first_end = inf
    found: list[tuple[float, int, str | None]] = []  # fitting operations with a known outcome
    doubtful: list[tuple[int, str | None]] = []
    wanted: set[str | bool | None] = set()  # values that some operation needs
    other_wanted = False  # some operation needs any value except the current one
    index = (~placed & (placed + 1)).bit_length() - 1  # all operations before this one are placed
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
    """bad: the keys whose history is not linearizable.  undecided: the keys whose search exceeded `STATES_MAX`."""

    bad: tuple[str, ...]
    undecided: tuple[str, ...]


def check(history: Iterable[Operation]) -> Verdict:
    """Check a history, key by key."""
    keys: dict[str, list[Operation]] = {}
    for operation in history:
        keys.setdefault(operation.key, []).append(operation)
    verdicts = {key: check_key(operations) for key, operations in sorted(keys.items())}
    return Verdict(
        tuple(key for key, verdict in verdicts.items() if verdict is False),
        tuple(key for key, verdict in verdicts.items() if verdict is None),
    )
