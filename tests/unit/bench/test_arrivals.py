"""Windows of latencies: exact percentiles of every window, with the times of one window in memory."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

import pytest

from bench.arrivals import Stream, reduced


def test_each_window_is_reduced_to_the_percentiles_of_its_own_records() -> None:
    first, second = list(range(1, 1001)), list(range(2001, 2101))
    Random(1).shuffle(first)
    Random(2).shuffle(second)
    found = list(reduced(iter([float(each) for each in first + second]), (1000, 100)))
    assert found == [
        {"p50, ms": 501.0, "p99, ms": 991.0, "p99.9, ms": 1000.0, "max, ms": 1000.0},
        {"p50, ms": 2051.0, "p99, ms": 2100.0, "p99.9, ms": 2100.0, "max, ms": 2100.0},
    ]


def test_a_window_is_reduced_before_the_first_record_of_the_next_one_arrives() -> None:
    taken: list[int] = []

    def times() -> Iterator[float]:
        for number in range(4):
            taken.append(number)
            yield float(number)

    windows = reduced(times(), (2, 2))
    assert next(windows)["max, ms"] == 1.0
    assert taken == [0, 1]


def test_a_window_without_all_of_its_records_fails_the_measurement() -> None:
    with pytest.raises(AssertionError, match="1 of 2 records of a window arrived"):
        list(reduced(iter([1.0, 2.0, 3.0]), (2, 2)))


def test_the_keys_of_a_stream_repeat_and_a_stream_without_keys_has_none() -> None:
    assert [Stream("t", 1, (), keys=3).key(number) for number in range(4)] == [b"0", b"1", b"2", b"0"]
    assert Stream("t", 1, ()).key(5) is None
