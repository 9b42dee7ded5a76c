from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.unit.broker.coordinator.counting import Bench, coordinating
from tests.unit.broker.replica.rig import Rig, running


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[Rig]:
    """Broker 1, registered; see `Rig`."""
    async with running(tmp_path) as rig:
        await rig.register()
        yield rig


@pytest.fixture
async def bench(rig: Rig) -> AsyncIterator[Bench]:
    """Coordinators on broker 1; the internal topic does not exist yet."""
    async with coordinating(rig) as bench:
        yield bench
