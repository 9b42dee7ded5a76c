"""The throttle: replies of any size have the configured rate on average."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from broker.core.throttle import KEPT_S, NONE, Throttle


def test_a_throttle_without_a_rate_never_waits() -> None:
    throttle = Throttle()
    throttle.spend(1 << 30, 0.0)
    assert throttle.wait_s(0.0) == 0.0


def test_the_wait_covers_the_bytes_in_excess_of_the_rate() -> None:
    throttle = Throttle()
    assert throttle.set_rate(1000, 100.0)
    assert not throttle.set_rate(1000, 100.0)
    assert throttle.wait_s(100.0) == 0.0
    throttle.spend(2500, 100.0)
    assert throttle.wait_s(100.0) == 2.5
    assert throttle.wait_s(101.0) == 1.5
    assert throttle.wait_s(102.5) == 0.0


def test_unused_rate_is_kept_for_one_second() -> None:
    throttle = Throttle()
    throttle.set_rate(1000, 0.0)
    throttle.spend(1000, 60.0)
    assert throttle.wait_s(60.0) == 0.0
    throttle.spend(500, 60.0)
    assert throttle.wait_s(60.0) == 0.5


def test_a_changed_rate_applies_at_once() -> None:
    throttle = Throttle()
    throttle.set_rate(1000, 0.0)
    throttle.spend(10_000, 0.0)
    throttle.set_rate(10_000, 0.0)
    assert throttle.wait_s(0.0) == 1.0
    throttle.set_rate(0, 0.0)
    assert throttle.wait_s(1e9) is None
    throttle.set_rate(NONE, 0.0)
    assert throttle.wait_s(0.0) == 0.0
    throttle.set_rate(5, 0.0)
    assert throttle.wait_s(0.0) == 0.0  # bytes that were copied without a throttle do not count


@given(st.integers(1, 10_000), st.lists(st.integers(0, 50_000), min_size=1, max_size=40))
def test_a_caller_that_waits_as_requested_keeps_the_rate(rate: int, sizes: list[int]) -> None:
    throttle = Throttle()
    throttle.set_rate(rate, 0.0)
    now = 0.0
    for size in sizes:
        wait = throttle.wait_s(now)
        assert wait is not None
        now += wait
        throttle.spend(size, now)
    rest = throttle.wait_s(now)
    assert rest is not None
    assert sum(sizes) <= rate * (now + rest + KEPT_S) + 1
