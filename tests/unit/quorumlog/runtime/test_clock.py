from __future__ import annotations

import pytest

from quorumlog.runtime.clock import CautiousClock

MINUTE = 60_000
HOUR = 60 * MINUTE
DAY = 24 * HOUR
NOW = 20_000 * DAY


def test_the_clock_follows_a_correct_wall_clock() -> None:
    clock = CautiousClock()
    assert clock.read(NOW, 5) == NOW
    assert clock.read(NOW + HOUR, 5 + HOUR) == NOW + HOUR
    assert clock.read(NOW + 2 * HOUR + 3_000, 5 + 2 * HOUR) == NOW + 2 * HOUR + 3_000
    assert not clock.is_held


@pytest.mark.parametrize("jump", [11 * MINUTE, DAY, 3_650 * DAY])
def test_a_jump_ahead_is_accepted_after_a_day(jump: int) -> None:
    clock = CautiousClock()
    clock.read(NOW, 0)
    for hours in range(1, 25):
        assert clock.read(NOW + jump + hours * HOUR, hours * HOUR) == NOW + hours * HOUR
        assert clock.is_held
    assert clock.read(NOW + jump + 25 * HOUR, 25 * HOUR) == NOW + jump + 25 * HOUR
    assert not clock.is_held
    assert clock.read(NOW + jump + 26 * HOUR, 26 * HOUR) == NOW + jump + 26 * HOUR


def test_every_jump_ahead_must_last_for_a_day() -> None:
    clock = CautiousClock()
    clock.read(NOW, 0)
    clock.read(NOW + DAY, HOUR)
    assert clock.read(NOW + 2 * HOUR, 2 * HOUR) == NOW + 2 * HOUR  # the wall clock was corrected
    assert clock.read(NOW + DAY, 3 * HOUR) == NOW + 3 * HOUR
    assert clock.read(NOW + 2 * DAY, 26 * HOUR) == NOW + 26 * HOUR  # 25 hours after the first jump
    assert clock.is_held


@pytest.mark.parametrize("jump", [-MINUTE, -DAY, -3_650 * DAY])
def test_a_step_back_is_accepted_at_once(jump: int) -> None:
    clock = CautiousClock()
    clock.read(NOW, 0)
    assert clock.read(NOW + jump, MINUTE) == NOW + jump
    assert not clock.is_held


def test_a_restart_treats_up_to_a_day_as_downtime_and_more_as_a_jump() -> None:
    assert CautiousClock(NOW).read(NOW + DAY, 7) == NOW + DAY
    clock = CautiousClock(NOW)
    assert clock.read(NOW + DAY + 1, 7) == NOW
    assert clock.read(NOW + 2 * DAY + 1, DAY + 6) == NOW + DAY - 1
    assert clock.read(NOW + 2 * DAY + 1, DAY + 7) == NOW + 2 * DAY + 1
