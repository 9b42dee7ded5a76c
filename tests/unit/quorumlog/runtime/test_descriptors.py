"""The limit of open files, as the system reports it."""

from __future__ import annotations

import resource
from unittest.mock import Mock

import pytest

from quorumlog.runtime.descriptors import DESCRIPTORS_WANTED, descriptor_limit, raise_descriptor_limit

UNLIMITED = resource.RLIM_INFINITY


@pytest.mark.parametrize(("soft", "limit"), [(1_024, 1_024), (UNLIMITED, DESCRIPTORS_WANTED)])
def test_an_unlimited_number_of_open_files_counts_as_a_large_limit(
    soft: int, limit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The system reports no limit as -1, and a share of -1 would permit no files."""
    monkeypatch.setattr(resource, "getrlimit", lambda _: (soft, UNLIMITED))
    assert descriptor_limit() == limit


@pytest.mark.parametrize(
    ("soft", "hard", "raised"),
    [
        (1_024, 4_096, 4_096),
        (1_024, UNLIMITED, DESCRIPTORS_WANTED),
        (1_024, 1_048_576, DESCRIPTORS_WANTED),
        (DESCRIPTORS_WANTED, UNLIMITED, None),
        (UNLIMITED, UNLIMITED, None),
    ],
)
def test_the_soft_limit_is_raised_as_far_as_needed_and_permitted(
    soft: int, hard: int, raised: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    setrlimit = Mock()
    monkeypatch.setattr(resource, "getrlimit", lambda _: (soft, hard))
    monkeypatch.setattr(resource, "setrlimit", setrlimit)
    raise_descriptor_limit()
    assert [call.args for call in setrlimit.call_args_list] == (
        [] if raised is None else [(resource.RLIMIT_NOFILE, (raised, hard))]
    )
