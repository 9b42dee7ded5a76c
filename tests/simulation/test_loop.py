"""The simulated loop: a broken invariant ends the run, wherever it was raised."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from simulation.cluster import run as cluster_run
from simulation.cluster.draw import draw as draw_cluster
from simulation.cluster.world import ClusterWorld
from simulation.kernel.loop import Process, SimulatedLoop, device_wait
from simulation.kernel.violation import causes_of
from simulation.quorum import run as quorum_run
from simulation.quorum.plan import draw as draw_quorum
from simulation.quorum.world import QuorumWorld


@pytest.fixture
def loop() -> Iterator[SimulatedLoop]:
    made = SimulatedLoop()
    yield made
    made.bury()
    made.close()


def broken() -> None:
    raise AssertionError("an invariant is broken")


def test_an_assertion_in_a_callback_ends_the_run(loop: SimulatedLoop) -> None:
    loop.call_later(1.0, broken)
    with pytest.raises(AssertionError, match="an invariant is broken"):
        loop.run_until_complete(asyncio.sleep(2.0))


def test_other_exceptions_in_a_callback_are_only_reported(loop: SimulatedLoop) -> None:
    seen: list[dict[str, object]] = []
    loop.set_exception_handler(lambda _, context: seen.append(context))
    loop.call_soon(lambda: 1 // 0)
    loop.run_until_complete(asyncio.sleep(1.0))
    assert len(seen) == 1


def test_an_assertion_in_a_task_without_a_waiter_is_reported(loop: SimulatedLoop) -> None:
    async def fails(error: Exception) -> None:
        raise error

    async def main() -> None:
        errors = (AssertionError("unheard"), AssertionError("heard"), ValueError("no invariant"))
        tasks = [loop.create_task(fails(error)) for error in errors]
        await asyncio.wait(tasks)
        assert str(tasks[1].exception()) == "heard"

    loop.run_until_complete(main())
    assert [str(one) for one in loop.broken_invariants()] == ["unheard"]


def test_a_broken_invariant_is_a_violation_of_either_kind_of_run() -> None:
    cluster = ClusterWorld(draw_cluster(0))
    cluster.loop.call_later(1.0, broken)
    assert "an invariant is broken" in str(cluster_run.play_in(cluster).violation)
    quorum = QuorumWorld(draw_quorum(0))
    quorum.loop.call_later(1.0, broken)
    assert "an invariant is broken" in str(quorum.play(quorum_run.attack).violation)


def test_a_slow_clock_of_a_process_slows_no_disk(loop: SimulatedLoop) -> None:
    process = Process(loop, "n1")
    took: list[float] = []

    async def sync_and_sleep() -> None:
        process.set_clock_rate(0.1)
        for wait in (device_wait, asyncio.sleep):
            began = loop.true_time()
            await wait(1.5)
            took.append(loop.true_time() - began)

    loop.run_until_complete(process.start(sync_and_sleep()))
    assert took == pytest.approx([1.5, 15.0])


def test_a_process_whose_tasks_fail_together_ends_for_all_their_reasons() -> None:
    full, broken_one = OSError("full"), ValueError("broken")
    assert causes_of(full) == [full]
    assert causes_of(ExceptionGroup("", [full, ExceptionGroup("", [broken_one])])) == [full, broken_one]
