"""Errors of simulated programs that nobody handles: each one is a violation, even if the program survives it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import count
from typing import Any
from unittest.mock import patch

import pytest

from broker.replica.image import ImageFollower
from broker.replica.service import ReplicaService
from metadata.controller.active import ActiveController
from quorumlog.errors import FatalError
from quorumlog.runtime.disk import DiskError
from quorumlog.runtime.logging import get_logger
from simulation.__main__ import attack_cluster_seed
from simulation.kernel.disk import SimulatedDisk
from simulation.kernel.loop import Process, SimulatedLoop
from simulation.kernel.mishaps import reported
from simulation.kernel.violation import Violation
from simulation.quorum.mutants import attack_quorum

SEED = 1


@pytest.mark.parametrize("error", [AssertionError("planted"), LookupError("planted")], ids=repr)
def test_a_request_handler_of_a_broker_that_fails_is_a_violation(error: Exception) -> None:
    """The connection closes, so clients see only an error after which they retry."""

    async def fails(*_: object, **__: object) -> None:
        raise error

    with patch.object(ReplicaService, "list_offset", fails):
        assert f"has an error that nobody handles: {type(error).__name__}: planted" in str(attack_cluster_seed(SEED))


@pytest.mark.parametrize("attack", [attack_cluster_seed, attack_quorum])
def test_a_controller_that_sometimes_fails_is_a_violation(attack: Callable[[int], str | None]) -> None:
    execute, calls = ActiveController.execute, count()

    async def fails(*arguments: Any, **options: Any) -> Any:
        if next(calls) % 20 == 19:
            raise LookupError("planted")
        return await execute(*arguments, **options)

    with patch.object(ActiveController, "execute", fails):
        assert "LookupError: planted" in str(attack(SEED))


def test_a_process_that_ends_without_a_failed_disk_is_a_violation() -> None:
    async def fails(*_: object, **__: object) -> None:
        raise FatalError("planted")

    with patch.object(ImageFollower, "_refresh_configs", fails):
        assert "fails: FatalError: planted" in str(attack_cluster_seed(SEED))


def test_a_broker_that_gives_up_a_disk_that_works_is_a_violation() -> None:
    async def fails(*_: object, **__: object) -> None:
        raise DiskError("planted")

    with patch.object(SimulatedDisk, "flush", fails):
        found = str(attack_cluster_seed(SEED))
    assert "L7: b" in found
    assert "whose disk works: planted" in found


def test_each_kind_of_error_is_reported_with_its_host(loop: SimulatedLoop) -> None:
    logger = get_logger("test")

    def fails(error: Exception) -> None:
        raise error

    async def unheard() -> None:
        raise LookupError("of a task")

    async def main() -> None:
        loop.call_soon(fails, LookupError("of a callback"))
        loop.call_soon(fails, TypeError("of another one"))
        await asyncio.wait({loop.create_task(unheard())})
        heard = loop.create_task(unheard())
        await asyncio.wait({heard})
        heard.exception()
        try:
            raise LookupError("of a line")
        except LookupError:
            logger.exception("it goes on")
        logger.error("replica offline", cause="a disk failed")  # foreseen: it has no traceback

    found: list[str] = []
    with reported(loop, found.append):
        loop.run_until_complete(Process(loop, "b11").start(main()))
    assert [text.partition(" (")[0] for text in found] == [
        "b11 has an error that nobody handles: LookupError: of a callback",
        "b11 has an error that nobody handles: TypeError: of another one",
        "b11 has an error that nobody handles: LookupError: of a line",
        "b11 has an error that nobody handles: LookupError: of a task",
    ]


def test_a_violation_is_not_reported_twice(loop: SimulatedLoop) -> None:
    async def fails() -> None:
        raise Violation("I1: it is known")

    async def main() -> None:
        await asyncio.wait({loop.create_task(fails())})

    found: list[str] = []
    with reported(loop, found.append):
        loop.run_until_complete(Process(loop, "n1").start(main()))
    assert found == []
