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
def test_scope_and_attempt_are_read_back_from_a_transactional_id(scope: str, attempt: str) -> None:
    made = transactional_id(scope, attempt)
    assert (scope_of(made), attempt_of(made), placement_key(made)) == (scope, attempt, scope)
    assert placement_key(coordinator_key(scope)) == scope


@given(st.text().filter(lambda text: not is_reserved(text)))
def test_the_placement_key_of_an_ordinary_transactional_id_is_the_whole_id(ordinary: str) -> None:
    assert placement_key(ordinary) == ordinary
    assert scope_of(ordinary) is None


@pytest.mark.parametrize("ordinary", ["a/b", "scope/a/b", "_scope/a/b", "/__scope/a/b", "__scope"])
def test_a_transactional_id_with_slashes_but_without_the_scope_prefix_is_ordinary(ordinary: str) -> None:
    assert not is_reserved(ordinary)
    assert placement_key(ordinary) == ordinary


@pytest.mark.parametrize("odd", ["__scope/", "__scope/a", "__scope//a", "__scope/a/"])
def test_a_reserved_id_without_scope_or_attempt_belongs_to_no_scope(odd: str) -> None:
    assert is_reserved(odd)
    assert scope_of(odd) is None


@pytest.mark.parametrize(
    ("text", "word"),
    [("", "0 bytes"), ("x" * 250, "250 bytes"), ("ü" * 125, "250 bytes"), ("a\n", "control"), ("\ud800", "control")],
)
def test_label_problem_explains_an_invalid_label(text: str, word: str) -> None:
    assert word in label_problem("owner", text)


def test_an_attempt_with_more_than_64_bytes_or_a_slash_is_refused() -> None:
    assert attempt_problem("x" * scope_names.ATTEMPT_MAX_BYTES) == ""
    assert "65 bytes" in attempt_problem("x" * 65)
    assert "slash" in attempt_problem("a/b")
