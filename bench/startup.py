"""How long `broker run --standalone` takes from its start, on an empty directory, to its ready line."""

from __future__ import annotations

from statistics import median
from typing import Any

from bench.processes import standalone


def run(tiny: bool) -> dict[str, Any]:
    times = []
    for _ in range(1 if tiny else 7):
        with standalone() as broker:
            times.append(broker.ready_s)
    return {"runs": len(times), "ready_s_median": round(median(times), 3), "ready_s_max": round(max(times), 3)}
