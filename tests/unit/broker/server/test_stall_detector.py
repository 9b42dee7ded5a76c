"""A process that was held up finds out at its next step, whatever that is."""

from __future__ import annotations

import asyncio

from broker.server.stall_detector import Vigil
from tests.unit.metadata.fake_node import JumpingLoop, run


def pass_unnoticed(seconds: float) -> None:
    """The process stands still while time goes on."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, JumpingLoop)
    loop.now += seconds


def test_the_first_request_notices_it_before_the_pulse_does() -> None:
    async def test() -> None:
        seen: list[float] = []
        vigil = Vigil(3.0, seen.append)
        assert vigil.is_awake()
        vigil.start()
        await asyncio.sleep(100)
        assert (vigil.is_awake(), seen) == (True, [])
        pass_unnoticed(3.5)
        assert not vigil.is_awake()
        assert not vigil.is_awake()
        assert (len(seen), vigil.held_up) == (1, 1)
        await asyncio.sleep(100)
        assert not vigil.is_awake(), "time alone does not end it"
        vigil.is_over(1)
        assert vigil.is_awake()
        vigil.stop()

    run(test())


def test_the_pulse_notices_it_when_nobody_asks() -> None:
    async def test() -> None:
        seen: list[float] = []
        vigil = Vigil(3.0, seen.append)
        vigil.start()
        pass_unnoticed(10.0)
        await asyncio.sleep(0.01)
        assert (vigil.held_up, len(seen)) == (1, 1)
        vigil.stop()

    run(test())


def test_an_answer_to_what_was_asked_before_ends_nothing() -> None:
    async def test() -> None:
        vigil = Vigil(3.0, lambda late_s: None)
        vigil.start()
        asked_before = vigil.held_up
        pass_unnoticed(10.0)
        assert not vigil.is_awake()
        vigil.is_over(asked_before)
        asked_during_the_first = vigil.held_up
        assert not vigil.is_awake()
        pass_unnoticed(10.0)
        assert not vigil.is_awake()
        vigil.is_over(asked_during_the_first)
        assert not vigil.is_awake(), "it was held up again since"
        vigil.is_over(vigil.held_up)
        assert vigil.is_awake()
        vigil.stop()

    run(test())
