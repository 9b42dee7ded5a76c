"""The history checker accepts the possible histories of a register and refuses all others."""

from __future__ import annotations

from itertools import permutations
from math import inf
from random import Random

import pytest

from simulation.quorum.linearizability import Operation, check, check_key


def read(began: float, ended: float, result: str | None) -> Operation:
    return Operation("x", "read", began, ended, result=result)


def write(began: float, ended: float, value: str) -> Operation:
    return Operation("x", "write", began, ended, value=value)


def cas(began: float, ended: float, expected: str | None, value: str, result: bool) -> Operation:
    return Operation("x", "cas", began, ended, value=value, expected=expected, result=result)


POSSIBLE = {
    "nothing": [],
    "in order": [write(0, 1, "a"), read(2, 3, "a"), write(4, 5, "b"), read(6, 7, "b")],
    "unset at first": [read(0, 1, None), write(2, 3, "a")],
    "a read beside the write sees it or not": [write(0, 10, "a"), read(1, 2, None), read(3, 4, "a")],
    "two concurrent writes, in either order": [write(0, 5, "a"), write(1, 4, "b"), read(6, 7, "a")],
    "an unknown write that took effect late": [write(0, inf, "a"), read(1, 2, None), read(8, 9, "a")],
    "an unknown write that never took effect": [write(0, inf, "a"), read(1, 2, None)],
    "cas": [write(0, 1, "a"), cas(2, 3, "a", "b", True), cas(4, 5, "a", "c", False), read(6, 7, "b")],
    "an unknown cas explains a value": [
        write(0, 1, "a"),
        Operation("x", "cas", 2, inf, value="b", expected="a"),
        read(5, 6, "b"),
    ],
}

IMPOSSIBLE = {
    "a stale read": [write(0, 1, "a"), write(2, 3, "b"), read(4, 5, "a")],
    "a lost write": [write(0, 1, "a"), read(2, 3, None)],
    "a value that no client wrote": [read(0, 1, "a")],
    "a read from the future": [read(0, 1, "a"), write(2, 3, "a")],
    "reads that go back": [write(0, 10, "a"), read(1, 2, "a"), read(3, 4, None)],
    "reads that disagree on an order": [
        write(0, 1, "a"),
        write(0, 1, "b"),
        read(2, 3, "a"),
        read(4, 5, "b"),
        read(6, 7, "a"),
    ],
    "a cas that set a value without a match": [write(0, 1, "a"), cas(2, 3, "b", "c", True)],
    "a cas that should have set": [write(0, 1, "a"), cas(2, 3, "a", "c", False)],
    "two cas of one value": [write(0, 1, "a"), cas(2, 9, "a", "b", True), cas(2, 9, "a", "c", True)],
    "an unknown write seen before it began": [read(0, 1, "a"), write(2, inf, "a")],
}


@pytest.mark.parametrize("name", POSSIBLE)
def test_possible_histories_are_accepted(name: str) -> None:
    assert check_key(POSSIBLE[name]) is True


@pytest.mark.parametrize("name", IMPOSSIBLE)
def test_impossible_histories_are_refused(name: str) -> None:
    assert check_key(IMPOSSIBLE[name]) is False


def test_each_key_is_checked_independently_of_the_others() -> None:
    other = [Operation("y", "write", 0, 1, value="a"), Operation("y", "read", 2, 3, result=None)]
    verdict = check([*POSSIBLE["in order"], *other])
    assert (verdict.bad, verdict.undecided) == (("y",), ())


def brute_force(history: list[Operation]) -> bool:
    """Try every order of every choice of the unknown operations."""
    known = [one for one in history if one.is_known]
    unknown = [one for one in history if not one.is_known]
    for chosen in range(1 << len(unknown)):
        some = known + [one for index, one in enumerate(unknown) if chosen >> index & 1]
        if any(_fits(order) for order in permutations(some)):
            return True
    return False


def _fits(order: tuple[Operation, ...]) -> bool:
    value: str | None = None
    for index, one in enumerate(order):
        if any(later.ended < one.began for later in order[index + 1 :]):
            return False
        match one.kind:
            case "read":
                if one.is_known and one.result != value:
                    return False
            case "write":
                value = one.value
            case _:
                if one.is_known and one.result != (value == one.expected):
                    return False
                value = one.value if value == one.expected else value
    return True


def test_the_checker_agrees_with_a_search_through_all_orders() -> None:
    """Random small histories, about half of them impossible."""
    random, counts = Random(3), {True: 0, False: 0}
    for _ in range(600):
        history = []
        for _ in range(random.randint(2, 6)):
            began = random.randrange(10)
            ended = inf if random.random() < 0.2 else began + random.randrange(1, 6)
            value = random.choice("ab")
            match random.choice(("read", "read", "write", "cas")):
                case "read":
                    history.append(read(began, ended, random.choice(("a", "b", None))))
                case "write":
                    history.append(write(began, ended, value))
                case _:
                    history.append(cas(began, ended, random.choice(("a", "b", None)), value, random.random() < 0.5))
        verdict = check_key(history)
        assert verdict == brute_force(history), [str(one) for one in history]
        counts[verdict is True] += 1
    assert min(counts.values()) > 100, counts


def test_a_history_with_many_writes_of_unknown_outcome_is_decided() -> None:
    """A leader was lost with many writes in progress: any of them may have taken effect, and few were seen."""
    unknown = [write(1, inf, f"u{number}") for number in range(40)]
    history = [write(0, 0.5, "a"), *unknown, read(2, 3, "u17"), read(4, 5, "u39"), cas(6, 7, "u39", "b", True)]
    assert check_key(history) is True
    assert check_key([*history, read(8, 9, "a")]) is False
