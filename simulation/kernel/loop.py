"""An asyncio event loop in virtual time.

Theory of operation.  The loop is asyncio's own `BaseEventLoop` with a different inner step: instead of sleeping until
the next timer, it moves the clock there.  So a minute of a quiet cluster costs nothing, and the order of callbacks
depends only on the program and its seed.

Each simulated process is a `Process`, which a context variable holds.  Every callback belongs to a process.  Callbacks
of a killed process are dropped, as with kill -9: no `finally` runs, nothing is flushed.  Callbacks of a paused process
wait until it is resumed, as with SIGSTOP.  The clock of a process may run too fast or too slow.  The process reads time
and sets timers by its own clock; the loop's clock is the true one.  Tasks and futures hash by number, not by address,
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

_GRAVEYARD_MIN = 100
_TIMERS_MIN = 500
"""Below these sizes, ended tasks and cancelled timers are kept.  Both are small, because the memory of these objects is
then reused while it is in the cache, and the collection after a run has less to traverse."""
_THROWS_MAX = 100

PROCESS: ContextVar[Process | None] = ContextVar("PROCESS", default=None)


class Connector(Protocol):
    """The part of the network that the loop uses."""

    async def connect(self, factory: Callable[[], Any], host: str, port: int) -> tuple[Any, Any]: ...

    def listen(self, factory: Callable[[], Any], host: Any, port: int) -> Any: ...

    def reset_process(self, process: Process, *, power: bool = False) -> None: ...


class Process:
    """One run of a simulated program on a host: from its start to its kill or end."""

    def __init__(self, loop: SimulatedLoop, host: str) -> None:
        self.loop = loop
        self.host = host
        self.alive = True
        self.paused = False
        self._waiting: list[_Handle] = []
        self._rate = 1.0
        self.skewed = False  # whether its clock has ever had another rate than true time
        self._set_at = self._clock_at = 0.0  # true time and own clock when the rate was set

    def __repr__(self) -> str:
        return f"<process on {self.host}>"

    def start(self, main: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run `main` as this process, which then owns everything that `main` starts."""
        context = copy_context()
        context.run(PROCESS.set, self)
        return self.loop.create_task(main, context=context)

    def kill(self, *, power: bool = False) -> None:
        """End the process as SIGKILL does: none of its callbacks runs any more, and its connections are reset.

        power: its host loses power, so its peers receive no reset.
        """
        self.alive = False
        self._waiting.clear()
        self.loop.network.reset_process(self, power=power)

    def pause(self) -> None:
        """Stop the process as SIGSTOP does: timers and arriving messages wait."""
        self.paused = True

    def resume(self) -> None:
        """Continue the process, as SIGCONT does."""
        self.paused = False
        waiting, self._waiting = self._waiting, []
        for handle in waiting:
            self.loop.release(handle)

    def hold(self, handle: _Handle) -> None:
        """Keep a callback that is due until the process is resumed."""
        self._waiting.append(handle)

    def set_clock_rate(self, rate: float) -> None:
        """From now on, advance the clock of this process by `rate` seconds per second of true time.

        The clock never jumps.  Timers that are already set keep their true times.
        """
        now = self.loop.true_time()
        self._clock_at, self._set_at = self.clock(now), now
        self._rate, self.skewed = rate, True

    def clock(self, now: float) -> float:
        """Return the time of its clock at the true time `now`."""
        return self._clock_at + (now - self._set_at) * self._rate if self.skewed else now

    def true_time_of(self, when: float) -> float:
        """Return the true time at which its clock will have reached `when`.

        The result is rounded up, because a callback that runs then must not find a time before `when`.
        """
        if not self.skewed:
            return when
        true_when = self._set_at + (when - self._clock_at) / self._rate
        while self.clock(true_when) < when:
            true_when = nextafter(true_when, inf)
        return true_when


class BusyError(RuntimeError):
    """More events occurred than a run may have."""


class _NumberedTask(asyncio.Task[Any]):
    process: Process | None
    _numbers = count()
    _number: int | None = None

    def __hash__(self) -> int:
        number = self._number
        if number is None:
            number = self._number = next(self._numbers)
        return number


class _NumberedFuture(asyncio.Future[Any]):
    _numbers = count()
    _number: int | None = None

    def __hash__(self) -> int:
        number = self._number
        if number is None:
            number = self._number = next(self._numbers)
        return number


class _Handle(list[Any]):
    """A callback to run: [callback, or None when cancelled; its arguments; its context; its process].

    It replaces `asyncio.TimerHandle`.  Every event needs one, so it is a list, which C code creates in one step.
    """

    __slots__ = ()

    def __hash__(self) -> int:  # type: ignore[override]
        raise TypeError("handles have no hash, because the order of a set of them would differ between processes")

    def cancel(self) -> None:
        self[0] = None

    def cancelled(self) -> bool:
        return self[0] is None


class SimulatedLoop(base_events.BaseEventLoop):
    """The event loop in virtual time.

    events: counts the callbacks that ran.  graveyard: keeps all tasks that have not ended, also those of killed
    processes.  Otherwise the garbage collector would run their `finally` blocks at an arbitrary moment.
    """

    network: Connector

    def __init__(self) -> None:
        super().__init__()
        self._now = 0.0
        self._current: Process | None = None  # the process whose callback runs
        self._runnable: deque[_Handle] = deque()
        self._timers: list[tuple[float, int, _Handle]] = []
        self._timers_set = 0
        self._prune_timers_at = _TIMERS_MIN
        self.events = 0
        self.events_max: float = inf
        """The run fails after this number of events, because the program probably loops forever."""
        self.graveyard: list[_NumberedTask] = []
        self._prune_at = _GRAVEYARD_MIN
        self._buried = False

    def create_task(self, coro: Any, *, name: object = None, context: Context | None = None) -> asyncio.Task[Any]:
        task = _NumberedTask(coro, loop=self, name="" if name is None else str(name), context=context)
        task.process = PROCESS.get() if context is None else context.get(PROCESS)
        self.graveyard.append(task)
        if len(self.graveyard) > self._prune_at and not self._buried:  # `bury` closes the tasks that it causes as well
            self.graveyard = [one for one in self.graveyard if not one.done() or _is_unheard(one)]
            self._prune_at = max(_GRAVEYARD_MIN, 2 * len(self.graveyard))
        return task

    def unheard_errors(self) -> list[tuple[Process | None, Exception]]:
        """Return the errors that ended tasks and were never retrieved, each with the process of its task."""
        ended = [(task.process, task.exception()) for task in self.graveyard if _is_unheard(task)]
        return [(process, error) for process, error in ended if isinstance(error, Exception)]

    def create_future(self) -> asyncio.Future[Any]:
        return _NumberedFuture(loop=self)

    def time(self) -> float:
        """Return the time by the clock of the calling process."""
        process = self._current
        return self._now if process is None or not process.skewed else process.clock(self._now)

    def true_time(self) -> float:
        return self._now

    @property
    def running(self) -> Process | None:
        """The process whose callback runs."""
        return self._current

    @contextmanager
    def as_process(self, process: Process | None) -> Iterator[None]:
        """Use the clock of `process` inside the context.

        Code that does not run in the process needs this to call objects of the process.
        """
        before, self._current = self._current, process
        try:
            yield
        finally:
            self._current = before

    def _run_once(self) -> None:
        """Run ready callbacks, and move the clock to the next timer when none is ready, until the loop is stopped.

        A timer that is due runs after the callbacks that already wait, and before callbacks that are added later.
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
            except BaseException as error:  # as asyncio's own loop does
                self.call_exception_handler({"message": f"exception in {callback}", "exception": error})
        self._current = None

    def _move_clock(self) -> None:
        timers = self._timers
        while timers and timers[0][2][0] is None:  # it was cancelled
            heappop(timers)
        if not timers:
            raise RuntimeError("deadlock: no callback is scheduled")
        self._now = timers[0][0]

    def _prune_timers(self) -> None:
        """Drop timers that were cancelled long before they were due."""
        self._timers[:] = [one for one in self._timers if one[2][0] is not None]
        heapify(self._timers)
        self._prune_timers_at = max(_TIMERS_MIN, 2 * len(self._timers))

    def release(self, handle: _Handle) -> None:
        """Run a callback that was kept while its process was paused."""
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
        """Run a callback at a true time, unlike `call_at`, which uses the clock of the process."""
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
        """Run the function on the loop itself, but in a later turn, as if a thread returned the result."""
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
        """End the simulation: close all remaining tasks.  Their `finally` blocks run now, without any effect."""
        self._buried = True
        self.set_exception_handler(lambda loop, context: None)
        for task in self.graveyard:
            task._log_destroy_pending = False  # type: ignore[attr-defined]
            if not task.done() and (coroutine := task.get_coro()) is not None:
                _close(coroutine)
        self._runnable.clear()
        self._timers.clear()


async def device_wait(seconds: float) -> None:
    """Wait for `seconds` of true time, as for a device.  The clock of the calling process does not matter."""
    loop = asyncio.get_running_loop()
    if not isinstance(loop, SimulatedLoop):
        await asyncio.sleep(seconds)
        return
    is_over = loop.create_future()
    loop.call_at_true_time(loop.true_time() + seconds, _end, is_over)
    await is_over


def _end(wait: asyncio.Future[None]) -> None:
    if not wait.done():  # as after a cancellation
        wait.set_result(None)


def _is_unheard(task: asyncio.Task[Any]) -> bool:
    """Return whether the task has failed and its exception has not been retrieved."""
    return task.done() and bool(task._log_traceback)


def _whose(callback: Any) -> str:
    """Return the task that a callback belongs to, and the place where it waits."""
    task = getattr(callback, "__self__", None)
    if not isinstance(task, asyncio.Task):
        return repr(callback)
    where = [f"{frame.f_code.co_filename}:{frame.f_lineno}" for frame in task.get_stack()]
    return f"{task.get_name()} {task.get_coro()} at {' < '.join(reversed(where))}"


class _BuriedError(BaseException):
    """Ends a coroutine.  GeneratorExit would reach only the innermost coroutine, which could then wait again."""


def _close(coroutine: Any) -> None:
    """Close a coroutine and ignore its errors.

    If it waits again in a `finally`, that wait is also ended.  `coroutine.close` alone would leave such a coroutine
    unfinished, and its garbage collection would cause warnings.
    """
    for _ in range(_THROWS_MAX):
        try:
            coroutine.throw(_BuriedError())
        except BaseException:  # it has ended; the errors of a killed process do not matter
            return
    coroutine.close()
