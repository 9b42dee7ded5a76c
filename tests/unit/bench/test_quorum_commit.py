"""The aim of a commit is 1.5 times etcd's median in the same run."""

from __future__ import annotations

from bench.clusters import OURS
from bench.etcd import ETCD
from bench.quorum_commit import P50, aim_ms
from bench.rounds import rows


def test_the_aim_is_one_and_a_half_times_the_median_of_etcd() -> None:
    taken = {OURS: [{P50: 3.0, "x": 9.0}], ETCD: [{P50: 1.0, "x": 7.0}, {P50: 5.0, "x": 7.0}, {P50: 1.2, "x": 7.0}]}
    assert aim_ms({"results": rows(taken)}) == 1.8


def test_without_etcd_there_is_no_aim() -> None:
    assert aim_ms({"results": rows({OURS: [{P50: 3.0}]})}) is None
