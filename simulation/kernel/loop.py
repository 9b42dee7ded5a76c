"""An asyncio event loop in virtual time.

Theory of operation.  The loop is asyncio's own `BaseEventLoop` with another heart: where the real one would sleep until
the next timer, ours moves the clock there.  So a minute of a quiet cluster costs nothing, and the order of callbacks
depends on nothing but the program and its seed.

Each simulated process is a `Process` carried by a context variable.  Every callback knows whose it is: those of a
killed process are dropped, which is what kill -9 means (no `finally` runs, nothing is flushed); those of a paused
process wait until it goes on (SIGSTOP).  A process may have a clock that runs too fast or too slow: what it reads and
what it sets timers by is its own time, the loop's is the true one.  Tasks and futures hash by number, not by address,
because asyncio keeps them in sets.
"""

from __future__ import annotations

import asyncio
from asyncio import base_events
from collections import deque
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Executor
from contextlib import contextmanager
from contextvars import Context, ContextVar, copy_context
from heapq import heapify, heappop, heappush
from itertools import count
from math import inf, nextafter
from typing import Any, Protocol

EPOCH_MS = 1_700_000_000_000
"""Wall clock at virtual time 0."""

_GRAVEYARD_MIN = 10_000
_TIMERS_MIN = 10_000
_THROWS_MAX = 100

PROCESS: ContextVar[Process | None] = ContextVar("PROCESS", default=None)


class Connector(Protocol):
    """The network, as far as the loop uses it."""

    async def connect(self, factory: Callable[[], Any], host: str, port: int) -> tuple[Any, Any]: ...

    def listen(self, factory: Callable[[], Any], host: Any, port: int) -> Any: ...

    def reset_process(self, process: Process) -> None: ...


class Process:
    """One run of a simulated program on a host: from its start to its kill or end."""

    def __init__(self, loop: SimulatedLoop, host: str) -> None:
        self.loop = loop
        self.host = host
        self.alive = True
        self.paused = False
        self._waiting: list[_Handle] = []
        self._rate = 1.0
        self._skewed = False
        self._set_at = self._clock_at = 0.0  # when the rate was set: true time, and what its clock said

    def __repr__(self) -> str:
        return f"<process on {self.host}>"

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
        for handle in waiting:
            self.loop.go_on(handle)

    def hold(self, handle: _Handle) -> None:
        """What would run now waits until the process goes on."""
        self._waiting.append(handle)

    def set_clock_rate(self, rate: float) -> None:
        """From now on its clock moves `rate` seconds in each second; it never jumps.  Timers that are set stay."""
        now = self.loop.true_time()
        self._clock_at, self._set_at = self.clock(now), now
        self._rate, self._skewed = rate, True

    def clock(self, now: float) -> float:
        """What its clock says at the true time `now`."""
        return self._clock_at + (now - self._set_at) * self._rate if self._skewed else now

    def true_time_of(self, when: float) -> float:
        """The true time at which its clock will say `when`, or a hair later: who is woken must find that it is time."""
        if not self._skewed:
            return when
        true_when = self._set_at + (when - self._clock_at) / self._rate
        while self.clock(true_when) < when:
            true_when = nextafter(true_when, inf)
        return true_when


class BusyError(RuntimeError):
    """There were more events than a run can have."""


class _NumberedTask(asyncio.Task[Any]):
    _numbers = count()
    _number: int

    def __hash__(self) -> int:
        try:
            return self._number
        except AttributeError:
            self._number = next(self._numbers)
            return self._number


class _NumberedFuture(asyncio.Future[Any]):
    _numbers = count()
    _number: int

    def __hash__(self) -> int:
        try:
            return self._number
        except AttributeError:
            self._number = next(self._numbers)
            return self._number


class _Handle(list[Any]):
    """A callback to run: [callback, or None when cancelled; its arguments; its context; the process it belongs to].

    Stands for an `asyncio.TimerHandle`.  One is made for every event, so it is a list, which is made at once in C.
    """

    __slots__ = ()

    def __hash__(self) -> int:  # type: ignore[override]
        raise TypeError("a set of handles would have an order of its own")

    def cancel(self) -> None:
        self[0] = None

    def cancelled(self) -> bool:
        return self[0] is None


class SimulatedLoop(base_events.BaseEventLoop):
    """See the module's docstring.  `events` counts callbacks run; `graveyard` keeps the tasks of killed processes, so
    that the garbage collector does not run their `finally` blocks at a moment of its own choosing."""

    network: Connector

    def __init__(self) -> None:
        super().__init__()
        self._now = 0.0
        self._current: Process | None = None  # whose callback runs
        self._runnable: deque[_Handle] = deque()
        self._timers: list[tuple[float, int, _Handle]] = []
        self._timers_set = 0
        self._prune_timers_at = _TIMERS_MIN
        self.events = 0
        self.events_max: float = inf
        """More of them: something goes round without an end."""
        self.graveyard: list[asyncio.Task[Any]] = []
        self._prune_at = _GRAVEYARD_MIN
        self._buried = False

    def create_task(self, coro: Any, *, name: object = None, context: Context | None = None) -> asyncio.Task[Any]:
        task = _NumberedTask(coro, loop=self, name="" if name is None else str(name), context=context)
        self.graveyard.append(task)
        if len(self.graveyard) > self._prune_at:
            self.graveyard = [one for one in self.graveyard if not one.done() or _is_unheard(one)]
            self._prune_at = max(_GRAVEYARD_MIN, 2 * len(self.graveyard))
        return task

    def broken_invariants(self) -> list[AssertionError]:
        """Return the AssertionErrors that ended tasks and that nobody has looked at.  Production ends on those, too."""
        failures = [task.exception() for task in self.graveyard if _is_unheard(task)]
        return [one for one in failures if isinstance(one, AssertionError)]

    def create_future(self) -> asyncio.Future[Any]:
        return _NumberedFuture(loop=self)

    def time(self) -> float:
        """By the clock of the process that asks."""
        process = self._current
        return self._now if process is None else process.clock(self._now)

    def true_time(self) -> float:
        return self._now

    @contextmanager
    def as_process(self, process: Process | None) -> Iterator[None]:
        """What is done meanwhile is done by the clock of `process`: for who asks its objects something from outside."""
        before, self._current = self._current, process
        try:
            yield
        finally:
            self._current = before

    def _run_once(self) -> None:
        """Run what can be run, and when nothing can, move the clock to the next timer; until somebody stops the loop.

        A timer that has come due goes behind what waits already, before what is called for after it.
        """
        ready, timers = self._runnable, self._timers
        while not self._stopping:  # type: ignore[attr-defined]
            if not ready:
                self._move_clock()
            while timers and timers[0][0] <= self._now:
                ready.append(heappop(timers)[2])
            handle = ready.popleft()
            callback, args, context, process = handle
            if callback is None:
                continue
            if process is not None:
                if not process.alive:
                    continue
                if process.paused:
                    process.hold(handle)
                    continue
            self.events += 1
            if self.events > self.events_max:
                raise BusyError(f"{self.events} events, {self._now:.3f} s: {_whose(callback)} of {process}")
            self._current = process
            try:
                context.run(callback, *args)
            except (SystemExit, KeyboardInterrupt, AssertionError):  # a broken invariant ends the run
                raise
            except BaseException as error:  # as asyncio's own
                self.call_exception_handler({"message": f"exception in {callback}", "exception": error})
        self._current = None

    def _move_clock(self) -> None:
        timers = self._timers
        while timers and timers[0][2].cancelled():
            heappop(timers)
        if not timers:
            raise RuntimeError("deadlock: nothing is scheduled and nothing can happen any more")
        self._now = timers[0][0]

    def _prune_timers(self) -> None:
        """Let go of those that were cancelled long before they were due."""
        self._timers[:] = [one for one in self._timers if not one[2].cancelled()]
        heapify(self._timers)
        self._prune_timers_at = max(_TIMERS_MIN, 2 * len(self._timers))

    def go_on(self, handle: _Handle) -> None:
        """Run a callback that a process held back while it was paused."""
        self._runnable.append(handle)

    def call_soon(  # type: ignore[override]
        self, callback: Any, *args: Any, context: Context | None = None
    ) -> _Handle:
        if context is None:
            context = copy_context()
        handle = _Handle((callback, args, context, context.get(PROCESS)))
        if not self._buried:
            self._runnable.append(handle)
        return handle

    call_soon_threadsafe = call_soon  # type: ignore[assignment]

    def call_at(  # type: ignore[override]
        self, when: float, callback: Any, *args: Any, context: Context | None = None
    ) -> _Handle:
        true_when = when if self._current is None else self._current.true_time_of(when)
        return self._set_timer(true_when, callback, args, context)

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Any, *args: Any, context: Context | None = None
    ) -> _Handle:
        process = self._current
        true_when = self._now + delay if process is None else process.true_time_of(process.clock(self._now) + delay)
        return self._set_timer(true_when, callback, args, context)

    def call_at_true_time(self, true_when: float, callback: Any, *args: Any, context: Context | None = None) -> _Handle:
        """`call_at`, by no process's clock."""
        return self._set_timer(true_when, callback, args, context)

    def _set_timer(self, true_when: float, callback: Any, args: tuple[Any, ...], context: Context | None) -> _Handle:
        if context is None:
            context = copy_context()
        handle = _Handle((callback, args, context, context.get(PROCESS)))
        if not self._buried:
            self._timers_set += 1
            heappush(self._timers, (true_when, self._timers_set, handle))
            if len(self._timers) > self._prune_timers_at:
                self._prune_timers()
        return handle

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
                _close(coroutine)
        self._runnable.clear()
        self._timers.clear()


def _is_unheard(task: asyncio.Task[Any]) -> bool:
    """Return whether the task has failed and nobody has asked how it ended."""
    return task.done() and bool(task._log_traceback)


def _whose(callback: Any) -> str:
    """The task that a callback belongs to, and where it is."""
    task = getattr(callback, "__self__", None)
    if not isinstance(task, asyncio.Task):
        return repr(callback)
    where = [f"{frame.f_code.co_filename}:{frame.f_lineno}" for frame in task.get_stack()]
    return f"{task.get_name()} {task.get_coro()} at {' < '.join(reversed(where))}"


class _BuriedError(BaseException):
    """Not GeneratorExit: that one would only be told to the innermost coroutine, and leave it where it waits next."""


def _close(coroutine: Any) -> None:
    """Let go of a coroutine, whatever it says.  One that waits again in its `finally` is thrown out of that, too: what
    `close` would leave behind complains when it is collected."""
    for _ in range(_THROWS_MAX):
        try:
            coroutine.throw(_BuriedError())
        except BaseException:  # it has ended, with whatever a cut-off process would have said
            return
    coroutine.close()
