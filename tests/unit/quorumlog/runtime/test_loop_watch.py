"""The watch over the event loop: a line for each long hold, and no trace once it has ended."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Callable
from typing import Any

import pytest
from structlog.testing import capture_logs

from quorumlog.runtime import loop_watch
from quorumlog.runtime.loop_watch import watched_loop
from quorumlog.runtime.run import Process, serve

LIMIT_S = 0.02


@pytest.fixture
def looked_at(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Return an event that is set once the watch has noted a stack."""
    looked, stack_of = threading.Event(), loop_watch._stack_of

    def stack_and_tell(thread_id: int) -> str | None:
        try:
            return stack_of(thread_id)
        finally:
            looked.set()

    monkeypatch.setattr(loop_watch, "_stack_of", stack_and_tell)
    return looked


async def lines_about(looked_at: threading.Event, hold: Callable[[], None], count: int = 1) -> list[Any]:
    """Hold the watched loop with `hold` until this many lines name it; return these lines.

    A busy machine may hold the loop as well, so other lines are possible.
    """
    with capture_logs() as lines, watched_loop(LIMIT_S):
        for _ in range(100 * count):
            looked_at.clear()
            hold()
            await asyncio.sleep(LIMIT_S)  # until the timer is due
            found = [line for line in lines if f" {hold.__name__} > " in (line["stack"] or "")]
            if len(found) >= count:
                return found
    raise AssertionError(f"{len(found)} of {count} lines name {hold.__name__}: {lines}")


async def test_a_hold_is_logged_with_the_calls_that_hold_the_loop(looked_at: threading.Event) -> None:
    def wait_for_a_disk() -> None:
        looked_at.wait(1)  # not set if the watch had looked before this call, because the machine is busy

    (line,) = await lines_about(looked_at, wait_for_a_disk)
    assert (line["log_level"], line["event"]) == ("warning", "the event loop was held")
    assert line["held_ms"] >= LIMIT_S * 1000
    assert line["processor_ms"] < line["held_ms"]
    assert "runtime/test_loop_watch.py" in line["stack"]


async def test_a_line_gives_the_share_of_the_garbage_collector_in_its_own_hold(looked_at: threading.Event) -> None:
    def hold() -> None:
        looked_at.wait(1)
        if not collections:
            gc.unfreeze()
            gc.collect()
        collections.append(1)

    collections: list[int] = []
    first, second = await lines_about(looked_at, hold, 2)
    assert first["collected_ms"] > second["collected_ms"]


async def test_the_calls_of_the_import_system_are_left_out(looked_at: threading.Event) -> None:
    """An import has more of them than a line shows, and none names the module."""
    importing = compile("looked_at.wait(1)", "<frozen importlib._bootstrap>", "exec")

    def load_a_module() -> None:
        exec(importing, {"looked_at": looked_at})

    (line,) = await lines_about(looked_at, load_a_module)
    assert "importlib" not in line["stack"]


async def test_a_loop_that_is_held_for_less_than_the_limit_logs_nothing() -> None:
    with capture_logs() as lines, watched_loop(4.0):
        threading.Event().wait(0.05)
        await asyncio.sleep(1.1)  # until the timer has been due once
    assert lines == []


async def test_the_watch_leaves_no_thread_no_timer_and_no_callback_of_the_collector() -> None:
    threads, callbacks = threading.active_count(), list(gc.callbacks)
    with watched_loop(LIMIT_S):
        assert threading.active_count() == threads + 1
        assert len(gc.callbacks) == len(callbacks) + 1
    assert threading.active_count() == threads
    assert gc.callbacks == callbacks


async def test_without_a_limit_nothing_is_watched() -> None:
    threads = threading.active_count()
    with watched_loop(0):
        assert threading.active_count() == threads


def test_a_server_watches_its_loop(looked_at: threading.Event) -> None:
    async def body(process: Process) -> None:
        looked_at.wait(1)
        await asyncio.sleep(2 * LIMIT_S)

    with capture_logs() as lines:
        serve("broker", body, log_format="text", shutdown_timeout_ms=5000, environ={}, loop_held_ms=20)
    assert "the event loop was held" in [line["event"] for line in lines]
