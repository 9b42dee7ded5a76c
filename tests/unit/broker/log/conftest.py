from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.unit.broker.log.rig import Rig


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[Rig]:
    """A log manager on a real directory."""
    rig = Rig(tmp_path / "disk")
    await rig.start()
    yield rig
    await rig.kill()
