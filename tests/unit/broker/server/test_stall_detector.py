"""A stalled process notices the stall at its next step."""

from __future__ import annotations

import asyncio

from broker.server.stall_detector import StallDetector
from tests.unit.metadata.fake_node import JumpingLoop, run


def pass_unnoticed(seconds: float) -> None:
    """Let time pass while the process does not run."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, JumpingLoop)
    loop.now += seconds


def test_the_first_request_after_a_stall_detects_the_stall() -> None:
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
        assert not detector.is_awake(), "time alone does not end the stall"
        detector.end(1)
        assert detector.is_awake()
        detector.stop()

    run(test())


def test_the_timer_detects_a_stall_without_requests() -> None:
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


def test_an_answer_to_a_request_from_before_a_stall_does_not_end_the_stall() -> None:
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
        assert not detector.is_awake(), "the process has stalled again since then"
        detector.end(detector.current)
        assert detector.is_awake()
        detector.stop()

    run(test())


def test_an_immediate_failure_does_not_end_a_stall() -> None:
    """A controller in the same process was suspended and replaced as well.  It refuses the heartbeat immediately."""

    async def test() -> None:
        detector = StallDetector(3.0)
        detector.start()
        pass_unnoticed(10.0)
        assert not detector.is_awake()
        detector.give_up(detector.current, 2.0)
        assert not detector.is_awake()
        await asyncio.sleep(2.0)
        detector.give_up(detector.current - 1, 2.0)
        assert not detector.is_awake(), "the answer is for an earlier stall"
        detector.give_up(detector.current, 2.0)
        assert detector.is_awake()
        detector.stop()

    run(test())
