"""The simulated loop: a broken invariant ends the run, wherever it was raised, and so does a loop that never waits."""

from __future__ import annotations

import asyncio
import inspect
import signal
from functools import partial

import pytest

from simulation.cluster import run as cluster_run
from simulation.cluster import world as cluster_world
from simulation.cluster.draw import draw as draw_cluster
from simulation.cluster.world import ClusterWorld
from simulation.kernel import cpu_limit
from simulation.kernel.cpu_limit import HangError, cpu_limited
from simulation.kernel.loop import _GRAVEYARD_MIN, Process, SimulatedLoop, device_wait
from simulation.kernel.violation import causes_of
from simulation.quorum import run as quorum_run
from simulation.quorum import world as quorum_world
from simulation.quorum.plan import draw as draw_quorum
from simulation.quorum.world import QuorumWorld


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


def test_an_error_of_a_task_without_a_waiter_is_reported(loop: SimulatedLoop) -> None:
    async def fails(error: Exception) -> None:
        raise error

    async def main() -> None:
        errors = (AssertionError("unheard"), AssertionError("heard"), ValueError("unheard as well"))
        tasks = [loop.create_task(fails(error)) for error in errors]
        await asyncio.wait(tasks)
        assert str(tasks[1].exception()) == "heard"

    loop.run_until_complete(main())
    assert [(process, str(one)) for process, one in loop.unheard_errors()] == [
        (None, "unheard"),
        (None, "unheard as well"),
    ]


def test_a_broken_invariant_is_a_violation_in_runs_of_clusters_and_of_quorums() -> None:
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


def test_all_causes_are_found_if_several_tasks_of_a_process_fail_together() -> None:
    full, broken_one = OSError("full"), ValueError("broken")
    assert causes_of(full) == [full]
    assert causes_of(ExceptionGroup("", [full, ExceptionGroup("", [broken_one])])) == [full, broken_one]


def test_a_run_that_uses_too_much_cpu_time_ends_and_names_the_loop(loop: SimulatedLoop) -> None:
    async def never_waits() -> None:
        await asyncio.sleep(2.5)
        while True:
            pass

    message = r"0\.05 s of CPU time at 2\.500 s.* on n1>: .*test_loop\.py:\d+ never_waits <"
    with pytest.raises(HangError, match=message), cpu_limited(loop, 0.05):
        loop.run_until_complete(Process(loop, "n1").start(never_waits()))


def test_a_loop_that_ignores_every_exception_is_interrupted_again(
    loop: SimulatedLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cpu_limit, "AGAIN_S", 0.05)
    ignored = 0

    async def ignores() -> None:
        nonlocal ignored
        while True:
            try:
                while True:
                    pass
            except BaseException:
                ignored += 1
                if ignored == 3:
                    raise

    with pytest.raises(HangError), cpu_limited(loop, 0.05):
        loop.run_until_complete(Process(loop, "n1").start(ignores()))
    assert ignored == 3


@pytest.mark.parametrize("of_clusters", [True, False])
def test_a_hang_is_a_violation_in_runs_of_clusters_and_of_quorums(
    of_clusters: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def hang() -> None:
        while True:
            pass

    monkeypatch.setattr(
        cluster_world if of_clusters else quorum_world, "cpu_limited", partial(cpu_limit.cpu_limited, limit_s=0.2)
    )
    if of_clusters:
        cluster = ClusterWorld(draw_cluster(0))
        cluster.loop.call_soon(hang)
        found = cluster_run.play_in(cluster).violation
    else:
        quorum = QuorumWorld(draw_quorum(0))
        quorum.loop.call_soon(hang)
        found = quorum.play(quorum_run.attack).violation
    assert found is not None
    assert found.startswith(cpu_limit.HANG)
    assert "at 0.000 s of virtual time" in found
    assert " hang < " in found


def test_the_limit_of_cpu_time_ends_with_its_run() -> None:
    before = signal.getsignal(signal.SIGPROF)
    assert quorum_run.play(draw_quorum(0)).violation is None
    assert signal.getsignal(signal.SIGPROF) == before
    assert signal.getitimer(signal.ITIMER_PROF) == (0.0, 0.0)


def test_the_end_of_a_simulation_also_closes_tasks_that_start_while_others_are_closed(loop: SimulatedLoop) -> None:
    async def waits() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            loop.create_task(asyncio.sleep(1))

    count = 2 * _GRAVEYARD_MIN
    for _ in range(count):
        loop.create_task(waits())
    loop.run_until_complete(asyncio.sleep(0.1))
    loop.bury()
    left = [task for task in loop.graveyard if not task.done()]
    assert len(left) == 2 * count
    coroutines = [one for task in left if inspect.iscoroutine(one := task.get_coro())]
    assert {inspect.getcoroutinestate(one) for one in coroutines} == {inspect.CORO_CLOSED}
