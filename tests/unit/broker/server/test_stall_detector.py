"""A process that was stalled notices it at its next step, whatever that is."""

from __future__ import annotations

import asyncio

from broker.server.stall_detector import StallDetector
from tests.unit.metadata.fake_node import JumpingLoop, run


def pass_unnoticed(seconds: float) -> None:
    """The process stands still while time goes on."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, JumpingLoop)
    loop.now += seconds


def test_the_first_request_notices_it_before_the_pulse_does() -> None:
    async def test() -> None:
        seen: list[float] = []
        detector = StallDetector(3.0)
        detector.stalled.subscribe(seen.append)
        assert detector.is_awake()
        detector.start()
        await asyncio.sleep(100)
        assert (detector.is_awake(), seen) == (True, [])
        pass_unnoticed(3.5)
        assert not detector.is_awake()
        assert not detector.is_awake()
        assert (len(seen), detector.current) == (1, 1)
        await asyncio.sleep(100)
        assert not detector.is_awake(), "time alone does not end it"
        detector.end(1)
        assert detector.is_awake()
        detector.stop()

    run(test())


def test_the_pulse_notices_it_when_nobody_asks() -> None:
    async def test() -> None:
        seen: list[float] = []
        detector = StallDetector(3.0)
        detector.stalled.subscribe(seen.append)
        detector.start()
        pass_unnoticed(10.0)
        await asyncio.sleep(0.01)
        assert (detector.current, len(seen)) == (1, 1)
        detector.stop()

    run(test())


def test_an_answer_to_what_was_asked_before_ends_nothing() -> None:
    async def test() -> None:
        detector = StallDetector(3.0)
        detector.start()
        asked_before = detector.current
        pass_unnoticed(10.0)
        assert not detector.is_awake()
        detector.end(asked_before)
        asked_during_the_first = detector.current
        assert not detector.is_awake()
        pass_unnoticed(10.0)
        assert not detector.is_awake()
        detector.end(asked_during_the_first)
        assert not detector.is_awake(), "it stalled again since"
        detector.end(detector.current)
        assert detector.is_awake()
        detector.stop()

    run(test())
