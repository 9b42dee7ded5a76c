from __future__ import annotations

from random import Random

from quorumlog.runtime.backoff import Backoff


def test_pauses_double_up_to_the_maximum_and_begin_again_after_a_reset() -> None:
    backoff = Backoff(0.5, 3.0)
    assert [backoff.next_s() for _ in range(5)] == [0.5, 1.0, 2.0, 3.0, 3.0]
    backoff.reset()
    assert backoff.next_s() == 0.5


def test_the_maximum_also_limits_the_first_pause() -> None:
    assert Backoff(0.5, 0.1).next_s() == 0.1


def test_jitter_draws_each_pause_from_its_upper_half() -> None:
    one, other = Backoff(1.0, 8.0, Random(1)), Backoff(1.0, 8.0, Random(2))
    for full_s in (1.0, 2.0, 4.0, 8.0, 8.0):
        drawn = (one.next_s(), other.next_s())
        assert all(full_s / 2 <= pause_s <= full_s for pause_s in drawn)
        assert drawn[0] != drawn[1], "clients that failed together do not retry together"
