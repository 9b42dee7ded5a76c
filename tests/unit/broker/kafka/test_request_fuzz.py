"""A short fuzz run of requests; `python -m tests.fuzz.requests` runs longer."""

from __future__ import annotations

from random import Random

import pytest

from broker.kafka import data
from tests.fuzz.requests import RequestFailed, damaged, run


async def test_damaged_requests_are_answered_or_close_their_connection() -> None:
    found = await run(1.0, seed=3)
    assert found["closed"] > 0


async def test_the_fuzz_run_reports_a_handler_that_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(*_: object) -> None:
        raise ValueError("a bug")

    monkeypatch.setattr(data, "_plan", failing)
    with pytest.raises(RequestFailed, match="FETCH"):
        await run(60.0, seed=3, wanted="fetch")


def test_the_same_seed_damages_a_request_in_the_same_way() -> None:
    assert damaged(bytes(50), Random(1)) == damaged(bytes(50), Random(1)) != bytes(50)
