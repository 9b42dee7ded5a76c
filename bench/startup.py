"""The time from the start of `broker run --standalone` on an empty directory to its ready line."""

from __future__ import annotations

import time
from statistics import median
from typing import Any

from quorumlog.testing import standalone


def run(tiny: bool) -> dict[str, Any]:
    times = []
    for _ in range(1 if tiny else 7):
        started = time.monotonic()
        with standalone():
            times.append(time.monotonic() - started)
    return {"runs": len(times), "ready_s_median": round(median(times), 3), "ready_s_max": round(max(times), 3)}
