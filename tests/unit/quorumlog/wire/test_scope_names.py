"""Names of transaction scopes, and which transactional ids belong to them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quorumlog.wire import scope_names
from quorumlog.wire.scope_names import (
    attempt_of,
    attempt_problem,
    coordinator_key,
    is_reserved,
    label_problem,
    placement_key,
    scope_of,
    transactional_id,
)

NAMES = st.text(min_size=1).filter(lambda text: not label_problem("scope", text))
ATTEMPTS = st.text(min_size=1, max_size=20).filter(lambda text: not attempt_problem(text))


@given(NAMES, ATTEMPTS)
def test_an_id_names_its_scope_and_attempt(scope: str, attempt: str) -> None:
    made = transactional_id(scope, attempt)
    assert (scope_of(made), attempt_of(made), placement_key(made)) == (scope, attempt, scope)
    assert placement_key(coordinator_key(scope)) == scope


@given(st.text().filter(lambda text: not is_reserved(text)))
def test_an_ordinary_id_is_placed_by_the_whole_of_it(ordinary: str) -> None:
    assert placement_key(ordinary) == ordinary
    assert scope_of(ordinary) is None


@pytest.mark.parametrize("ordinary", ["a/b", "scope/a/b", "_scope/a/b", "/__scope/a/b", "__scope"])
def test_slashes_alone_do_not_make_an_id_one_of_a_scope(ordinary: str) -> None:
    assert not is_reserved(ordinary)
    assert placement_key(ordinary) == ordinary


@pytest.mark.parametrize("odd", ["__scope/", "__scope/a", "__scope//a", "__scope/a/"])
def test_a_reserved_id_without_scope_or_attempt_belongs_to_no_producer(odd: str) -> None:
    assert is_reserved(odd)
    assert scope_of(odd) is None


@pytest.mark.parametrize(
    ("text", "word"),
    [("", "0 bytes"), ("x" * 250, "250 bytes"), ("ü" * 125, "250 bytes"), ("a\n", "control"), ("\ud800", "control")],
)
def test_bad_labels_are_named(text: str, word: str) -> None:
    assert word in label_problem("owner", text)


def test_an_attempt_is_short_and_has_no_slash() -> None:
    assert attempt_problem("x" * scope_names.ATTEMPT_MAX_BYTES) == ""
    assert "65 bytes" in attempt_problem("x" * 65)
    assert "slash" in attempt_problem("a/b")
