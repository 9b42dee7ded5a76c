"""Resident memory of an idle standalone broker (Linux)."""

from __future__ import annotations

import time
from typing import Any

from bench.processes import resident_mib
from quorumlog.testing import standalone


def run(tiny: bool) -> dict[str, Any]:
    with standalone() as broker:
        time.sleep(0.5 if tiny else 10)  # the broker counts as idle after this time
        return {"standalone_rss_mib": round(resident_mib(broker.pid), 1)}
