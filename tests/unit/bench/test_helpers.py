"""Functions in other processes: their answers, and failures that the parent sees at once."""

from __future__ import annotations

import os

import pytest

from bench.helpers import Link, helper

TIMEOUT_S = 60.0


def _add(link: Link, first: int, second: int) -> None:
    link.ready.set()
    link.go.wait(TIMEOUT_S)
    link.answers.put(first + second)
    link.answers.put(os.getpid())


def _fail(link: Link) -> None:
    raise ValueError("no such topic")


def _end(link: Link) -> None:
    pass


def _hang(link: Link) -> None:
    link.ready.set()
    link.go.wait()


def test_a_helper_answers_from_a_process_of_its_own_after_it_was_started() -> None:
    with helper(_add, 2, 3) as process:
        process.wait_ready(TIMEOUT_S)
        assert not process.has_answered
        process.go()
        assert process.answer(TIMEOUT_S) == 5
        assert process.answer(TIMEOUT_S) == process.pid != os.getpid()


def test_a_failure_of_a_helper_reaches_a_parent_that_waits_for_its_answer() -> None:
    with helper(_fail) as process, pytest.raises(RuntimeError, match=r"_fail failed: ValueError\('no such topic'\)"):
        process.answer(TIMEOUT_S)


def test_a_failure_of_a_helper_reaches_a_parent_that_waits_until_it_is_ready() -> None:
    with helper(_fail) as process, pytest.raises(RuntimeError, match="no such topic"):
        process.wait_ready(TIMEOUT_S)


def test_a_helper_that_ends_without_an_answer_does_not_let_its_parent_wait() -> None:
    with helper(_end) as process, pytest.raises(RuntimeError, match="_end ended without an answer"):
        process.answer(TIMEOUT_S)


def test_a_helper_is_killed_if_its_parent_fails() -> None:
    found: list[int] = []

    def parent() -> None:
        with helper(_hang) as process:
            process.wait_ready(TIMEOUT_S)
            found.append(process.pid)
            raise KeyError

    with pytest.raises(KeyError):
        parent()
    with pytest.raises(ProcessLookupError):
        os.kill(found[0], 0)
