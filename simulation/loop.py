"""An asyncio event loop in virtual time.

Theory of operation.  The loop is asyncio's own `BaseEventLoop`; only its selector is replaced: where the real one would
sleep until the next timer, ours moves the clock there.  So a minute of a quiet cluster costs nothing, and the order of
callbacks depends on nothing but the program and its seed.

Each simulated process is a `Process` carried by a context variable.  Every callback is guarded: those of a killed
process are dropped, which is what kill -9 means (no `finally` runs, nothing is flushed); those of a paused process wait
until it goes on (SIGSTOP).  A process may have a clock that runs too fast or too slow: what it reads and what it sets
timers by is its own time, the loop's is the true one.  Tasks and futures hash by number, not by address, because
asyncio keeps them in sets.
"""

from __future__ import annotations

import asyncio
import contextlib
from asyncio import base_events
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor
from contextvars import Context, ContextVar, copy_context
from itertools import count
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from simulation.network import Network

_GRAVEYARD_MIN = 10_000

PROCESS: ContextVar[Process | None] = ContextVar("PROCESS", default=None)


class Process:
    """One run of a simulated program on a host: from its start to its kill or end."""

    def __init__(self, loop: SimulatedLoop, host: str) -> None:
        self.loop = loop
        self.host = host
        self.alive = True
        self.paused = False
        self._waiting: list[tuple[Callable[..., object], tuple[Any, ...], Context]] = []
        self._rate = 1.0
        self._skewed = False
        self._set_at = self._clock_at = 0.0  # when the rate was set: true time, and what its clock said

    def start(self, main: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run `main` as this process; everything that it starts belongs to it."""
        context = copy_context()
        context.run(PROCESS.set, self)
        return self.loop.create_task(main, context=context)

    def kill(self) -> None:
        """As SIGKILL: nothing of it runs any more, its connections are reset."""
        self.alive = False
        self._waiting.clear()
        self.loop.network.reset_process(self)

    def pause(self) -> None:
        """As SIGSTOP: timers and arrivals wait."""
        self.paused = True

    def resume(self) -> None:
        """As SIGCONT."""
        self.paused = False
        waiting, self._waiting = self._waiting, []
        for callback, args, context in waiting:
            self.loop.call_soon(callback, *args, context=context)

    def set_clock_rate(self, rate: float) -> None:
        """From now on its clock moves `rate` seconds in each second; it never jumps.  Timers that are set stay."""
        now = self.loop.true_time()
        self._clock_at, self._set_at = self.clock(now), now
        self._rate, self._skewed = rate, True

    def clock(self, now: float) -> float:
        """What its clock says at the true time `now`."""
        return self._clock_at + (now - self._set_at) * self._rate if self._skewed else now

    def true_time_of(self, when: float) -> float:
        """The true time at which its clock will say `when`."""
        return self._set_at + (when - self._clock_at) / self._rate if self._skewed else when

    def run(self, callback: Callable[..., object], *args: Any) -> None:
        """Run a callback of this process, unless it is dead or paused."""
        if not self.alive:
            return
        if self.paused:
            self._waiting.append((callback, args, copy_context()))
            return
        callback(*args)


class _NumberedTask(asyncio.Task[Any]):
    _numbers = count()

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._number = next(self._numbers)
        super().__init__(*args, **kwargs)

    def __hash__(self) -> int:
        return self._number


class _NumberedFuture(asyncio.Future[Any]):
    _numbers = count()

    def __init__(self, *, loop: asyncio.AbstractEventLoop) -> None:
        self._number = next(self._numbers)
        super().__init__(loop=loop)

    def __hash__(self) -> int:
        return self._number


class _Clock:
    """Stands where the selector was: `select` does not wait, it moves the time."""

    def __init__(self) -> None:
        self.now = 0.0

    def select(self, timeout: float | None) -> list[Any]:
        if timeout is None:
            raise RuntimeError("deadlock: nothing is scheduled and nothing can happen any more")
        self.now += max(0.0, timeout)
        return []

    def close(self) -> None:
        pass


class SimulatedLoop(base_events.BaseEventLoop):
    """See the module's docstring.  `events` counts callbacks run; `graveyard` keeps the tasks of killed processes, so
    that the garbage collector does not run their `finally` blocks at a moment of its own choosing."""

    network: Network

    def __init__(self) -> None:
        super().__init__()
        self._selector = _Clock()
        self.events = 0
        self.graveyard: list[asyncio.Task[Any]] = []
        self._prune_at = _GRAVEYARD_MIN
        self._buried = False
        self.set_task_factory(self._new_task)

    def _new_task(self, loop: asyncio.AbstractEventLoop, coro: Any, **kwargs: Any) -> asyncio.Task[Any]:
        task = _NumberedTask(coro, loop=loop, **kwargs)
        self.graveyard.append(task)
        if len(self.graveyard) > self._prune_at:
            self.graveyard = [one for one in self.graveyard if not one.done()]
            self._prune_at = max(_GRAVEYARD_MIN, 2 * len(self.graveyard))
        return task

    def create_future(self) -> asyncio.Future[Any]:
        return _NumberedFuture(loop=self)

    def time(self) -> float:
        """By the clock of the process that asks."""
        process = PROCESS.get()
        return self._selector.now if process is None else process.clock(self._selector.now)

    def true_time(self) -> float:
        return self._selector.now

    def _process_events(self, event_list: list[Any]) -> None:
        assert not event_list

    def _write_to_self(self) -> None:
        """Nothing sleeps, so nothing needs waking."""

    def _guard(
        self, callback: Callable[..., object], args: tuple[Any, ...], context: Context | None
    ) -> tuple[Callable[..., object], tuple[Any, ...]]:
        self.events += 1
        process = PROCESS.get() if context is None else context.get(PROCESS)
        if process is None:
            return callback, args
        return process.run, (callback, *args)

    def call_soon(  # type: ignore[override]
        self, callback: Any, *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        if self._buried:
            return asyncio.Handle(callback, args, self, context)
        callback, args = self._guard(callback, args, context)
        return super().call_soon(callback, *args, context=context)

    def call_at(  # type: ignore[override]
        self, when: float, callback: Any, *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        if self._buried:
            return asyncio.TimerHandle(when, callback, args, self, context)
        if (process := PROCESS.get()) is not None:
            when = process.true_time_of(when)
        callback, args = self._guard(callback, args, context)
        return super().call_at(when, callback, *args, context=context)

    def run_in_executor(  # type: ignore[override]
        self, executor: Executor | None, func: Callable[..., Any], *args: Any
    ) -> asyncio.Future[Any]:
        """Inline, but not at once: the result comes in a later turn of the loop, as from a thread."""
        future = self.create_future()

        def work() -> None:
            if future.cancelled():
                return
            try:
                future.set_result(func(*args))
            except BaseException as error:
                future.set_exception(error)

        self.call_soon(work)
        return future

    async def create_connection(
        self, protocol_factory: Callable[[], Any], host: str | None = None, port: int | None = None, **_: Any
    ) -> tuple[asyncio.Transport, Any]:
        assert host is not None
        assert port is not None
        return await self.network.connect(protocol_factory, host, port)

    async def create_server(
        self, protocol_factory: Callable[[], Any], host: Any = None, port: int | None = None, **_: Any
    ) -> Any:
        return self.network.listen(protocol_factory, host, port or 0)

    def bury(self) -> None:
        """End of the simulation: let go of what is left.  Its `finally` blocks run now, unheard and to no effect."""
        self._buried = True
        self.set_exception_handler(lambda loop, context: None)
        for task in self.graveyard:
            task._log_destroy_pending = False  # type: ignore[attr-defined]
            if not task.done() and (coroutine := task.get_coro()) is not None:
                with contextlib.suppress(BaseException):  # whatever a cut-off process would have said
                    coroutine.close()
        self._ready.clear()  # type: ignore[attr-defined]
        self._scheduled.clear()  # type: ignore[attr-defined]
