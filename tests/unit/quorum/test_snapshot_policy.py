"""The snapshots that the retention policy keeps."""

from __future__ import annotations

import pytest

from quorum.core.types import LogEnd
from quorum.snapshot_file import SnapshotHeader, SnapshotInfo
from quorum.snapshots import SnapshotPolicy
from tests.contract.samples import base

NOW_MS = 1_000_000
POLICY = SnapshotPolicy(log_bytes=100, retain_ms=10_000, retain_bytes=1000)


def taken(*ages_and_sizes: tuple[int, int]) -> tuple[SnapshotInfo, ...]:
    """Snapshots of these ages in ms and sizes in bytes, oldest first."""
    return tuple(
        SnapshotInfo(SnapshotHeader(base(10 * number), NOW_MS - age_ms), size)
        for number, (age_ms, size) in enumerate(ages_and_sizes, 1)
    )


@pytest.mark.parametrize(
    ("snapshots", "oldest"),
    [
        ([(0, 1)], 0),
        ([(99_999_999, 1 << 40)], 0),  # of any age and size: the log continues from it
        ([(9_000, 100), (5_000, 100), (0, 100)], 0),
        ([(20_000, 100), (10_001, 100), (10_000, 100), (0, 100)], 2),  # by age
        ([(3, 100), (2, 500), (1, 200), (0, 100)], 1),  # by size: 100, 300 and 600 more with the log between
        ([(2, 1), (1, 1000), (0, 1)], 2),  # the first gap ends it: the retained part has no gaps
        ([(20_000, 1), (30_000, 1), (0, 1)], 2),
    ],
)
def test_the_newest_snapshot_is_kept_and_older_ones_within_the_limits_of_age_and_size(
    snapshots: list[tuple[int, int]], oldest: int
) -> None:
    assert POLICY.oldest_kept(taken(*snapshots), NOW_MS) == oldest


def test_a_clock_set_back_deletes_no_snapshot() -> None:
    assert POLICY.oldest_kept(taken((-50_000, 1), (-40_000, 1), (0, 1)), NOW_MS) == 0
    assert taken((0, 1))[0].end == LogEnd(1, 10)
