"""Shared by the tests of the listener: both event loops, waits, and a check that other clients are served."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
import uvloop

from quorumlog.wire.kafka.codec import Api
from tests.unit.broker.kafka.conftest import Served
from tests.unit.broker.kafka.raw import RawClient

ALL: dict[str, Any] = {"topics": None}


@pytest.fixture(params=["asyncio", "uvloop"])
def event_loop_policy(request: pytest.FixtureRequest) -> asyncio.AbstractEventLoopPolicy:
    policy: asyncio.AbstractEventLoopPolicy
    policy = uvloop.EventLoopPolicy() if request.param == "uvloop" else asyncio.DefaultEventLoopPolicy()
    return policy


async def until(condition: Callable[[], bool]) -> None:
    """Let the loop run until a condition holds."""
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.001)


async def is_well(served: Served) -> None:
    """Assert that the broker still serves others."""
    async with RawClient(served.port) as other:
        assert (await other.ask(Api.METADATA, 12, ALL)).cluster_id == "test-cluster"
