from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from quorumlog.kctl import group_access
from tests.unit.quorumlog.kctl.group_bench import Bench


@pytest.fixture
def bench(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    bench = Bench(capsys)

    async def addresses(_reads: Any) -> list[str]:
        return bench.threaded.brokers.bootstrap.split(",")

    monkeypatch.setattr(group_access, "broker_addresses", addresses)
    bench.start()
    try:
        yield bench
    finally:
        bench.stop()
