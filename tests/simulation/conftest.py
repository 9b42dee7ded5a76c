from __future__ import annotations

from collections.abc import Iterator

import pytest

from simulation.kernel.loop import SimulatedLoop


@pytest.fixture
def loop() -> Iterator[SimulatedLoop]:
    made = SimulatedLoop()
    yield made
    made.bury()
    made.close()
