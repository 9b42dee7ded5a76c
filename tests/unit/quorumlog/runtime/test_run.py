"""Running a server: exit statuses, the last line, readiness and systemd's notifications."""

from __future__ import annotations

import asyncio
import errno
import gc
import json
import os
import resource
import signal
import socket
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from structlog.testing import CapturingLogger

from quorumlog.errors import ConfigError, CorruptStoreError, QuorumlogError, StoreRefusedError
from quorumlog.runtime import run as runtime
from quorumlog.runtime.run import Process, exit_status, serve

Body = Callable[[Process], Awaitable[None]]


@pytest.fixture(autouse=True)
def restored_signals() -> Iterator[None]:
    """Restore the handlers of signals.  A closed loop of uvloop leaves its own, which ignores the signal."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def run(body: Body, log_format: str = "text", timeout_ms: int = 5000, environ: dict[str, str] | None = None) -> int:
    return serve("broker", body, log_format=log_format, shutdown_timeout_ms=timeout_ms, environ=environ or {})


def failing(error: BaseException) -> Body:
    async def body(_process: Process) -> None:
        raise error

    return body


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (QuorumlogError("odd"), 1),
        (ConfigError("bad"), 2),
        (StoreRefusedError("in use"), 2),
        (CorruptStoreError("damaged"), 7),
        (OSError(errno.EADDRINUSE, "in use"), 2),
        (OSError(errno.ECONNRESET, "reset"), 1),
        (AssertionError("bug"), 1),
        (ExceptionGroup("both", [ValueError("x"), ExceptionGroup("in", [CorruptStoreError("damaged")])]), 7),
        (ExceptionGroup("both", [ConfigError("bad"), ValueError("x")]), 2),
    ],
)
def test_each_error_determines_the_exit_status(
    error: BaseException, status: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert exit_status(error)[0] == status
    assert run(failing(error)) == status
    assert capsys.readouterr().err.splitlines()[-1].startswith("broker: ")


def test_the_last_log_line_of_a_clean_stop_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    async def body(process: Process) -> None:
        process.stop("SIGTERM")

    monkeypatch.setattr(runtime, "logger", lines := CapturingLogger())
    assert run(body) == 0
    found = [(line.method_name, *line.args, line.kwargs["reason"]) for line in lines.calls]
    assert found == [("info", "stopping", "SIGTERM"), ("info", "stopped", "SIGTERM")]


def test_a_failure_is_not_logged_as_a_stop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtime, "logger", lines := CapturingLogger())
    assert run(failing(QuorumlogError("odd"))) == 1
    assert lines.calls == []


def test_the_last_line_reports_the_problem_and_the_next_step(capsys: pytest.CaptureFixture[str]) -> None:
    error = ConfigError("the port\nis taken", next_step="give another")
    run(failing(error))
    assert capsys.readouterr().err == "broker: the port is taken (next: give another)\n"
    run(failing(error), "json")
    assert json.loads(capsys.readouterr().err) == {
        "error": "ConfigError", "message": "the port\nis taken", "next": "give another", "retriable": False,
    }  # fmt: skip


def test_on_end_gets_the_exit_status_and_the_cause() -> None:
    ends: list[tuple[int, BaseException | None]] = []
    damaged = CorruptStoreError("damaged")

    def ending(error: BaseException | None) -> Body:
        async def body(process: Process) -> None:
            async def on_end(status: int, cause: BaseException | None) -> None:
                ends.append((status, cause))

            process.on_end = on_end
            if error is not None:
                raise error

        return body

    assert run(ending(None)) == 0
    assert run(ending(ExceptionGroup("both", [ValueError("x"), damaged]))) == 7
    assert ends == [(0, None), (7, damaged)]


@pytest.mark.parametrize("fault", ["raises", "hangs"])
def test_a_failure_of_on_end_does_not_change_the_exit_status(
    fault: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runtime, "FAREWELL_S", 0.05)

    async def body(process: Process) -> None:
        async def on_end(status: int, cause: BaseException | None) -> None:
            if fault == "raises":
                raise OSError(errno.ENOSPC, "full")
            await asyncio.Event().wait()

        process.on_end = on_end
        raise CorruptStoreError("damaged")

    assert run(body) == 7
    assert capsys.readouterr().err.splitlines()[-1] == "broker: damaged"


async def some_turns() -> None:
    """Wait long enough for the callbacks of the loop."""
    for _ in range(100):
        await asyncio.sleep(0)


@pytest.mark.parametrize("cleanup", ["ends", "fails", "is swallowed"])
def test_a_broken_invariant_in_a_callback_ends_the_process(cleanup: str, capsys: pytest.CaptureFixture[str]) -> None:
    ends: list[BaseException | None] = []

    def broken() -> None:
        raise AssertionError("offsets go back")

    async def body(process: Process) -> None:
        async def on_end(_status: int, cause: BaseException | None) -> None:
            ends.append(cause)

        process.on_end = on_end
        asyncio.get_running_loop().call_soon(broken)
        try:
            await some_turns()
        except asyncio.CancelledError:
            if cleanup == "fails":
                raise QuorumlogError("nothing can be closed") from None
            if cleanup == "ends":
                raise

    assert run(body) == 1
    assert capsys.readouterr().err.splitlines()[-1] == "broker: AssertionError: offsets go back"
    assert [str(cause) for cause in ends] == ["offsets go back"]


def test_a_broken_invariant_ends_the_process_even_if_tasks_hang(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runtime, "KILL_GRACE_S", 0.01)
    hanging = asyncio.Event()
    statuses: list[int] = []

    def exit_now(status: int) -> None:
        statuses.append(status)
        hanging.set()  # this process continues

    def broken() -> None:
        raise AssertionError("offsets go back")

    async def body(_process: Process) -> None:
        asyncio.get_running_loop().call_soon(broken)
        try:
            await some_turns()
        finally:
            await hanging.wait()

    monkeypatch.setattr("os._exit", exit_now)
    assert run(body) == 1
    assert statuses == [1]
    assert capsys.readouterr().err.splitlines()[-1] == "broker: AssertionError: offsets go back"


def test_any_other_exception_in_a_callback_is_only_logged(caplog: pytest.LogCaptureFixture) -> None:
    def broken(process: Process) -> None:
        process.stop("enough")
        raise ZeroDivisionError

    async def body(process: Process) -> None:
        asyncio.get_running_loop().call_soon(broken, process)
        await process.stopped()

    assert run(body) == 0
    assert [record.name for record in caplog.records if record.exc_info] == ["asyncio"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_a_server_gracefully(number: signal.Signals, capsys: pytest.CaptureFixture[str]) -> None:
    steps: list[str] = []

    async def body(process: Process) -> None:
        process.ready(node_id=3, kafka="127.0.0.1:9092", http=None)
        os.kill(os.getpid(), number)
        await process.stopped()
        steps.append(process.stop_reason)

    assert run(body) == 0
    assert steps == [number.name]
    assert capsys.readouterr().out == "ready node_id=3 kafka=127.0.0.1:9092\n"


def test_objects_loaded_before_a_server_is_ready_are_not_traversed_again() -> None:
    """A full collection would walk all modules while requests wait."""
    loaded: list[list[int]] = [[number] for number in range(1000)]

    async def body(process: Process) -> None:
        process.ready(node_id=1)
        walked = {id(each) for each in gc.get_objects()}
        assert not walked & {id(each) for each in loaded}

    try:
        assert run(body) == 0
    finally:
        gc.unfreeze()


def test_the_ready_line_is_an_object_in_json_format(capsys: pytest.CaptureFixture[str]) -> None:
    async def body(process: Process) -> None:
        process.ready(node_id=3, data_dir=Path("/d"))

    assert run(body, "json") == 0
    assert json.loads(capsys.readouterr().out) == {"event": "ready", "node_id": 3, "data_dir": "/d"}


def test_a_server_that_does_not_stop_in_time_is_cancelled(capsys: pytest.CaptureFixture[str]) -> None:
    async def body(process: Process) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        await process.stopped()
        await asyncio.Event().wait()

    assert run(body, timeout_ms=20) == 1
    assert "before the graceful shutdown was complete" in capsys.readouterr().err


def test_a_second_signal_ends_a_server_at_once() -> None:
    async def body(process: Process) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        await process.stopped()
        os.kill(os.getpid(), signal.SIGINT)
        await asyncio.Event().wait()

    assert run(body, timeout_ms=600_000) == 1


@pytest.mark.parametrize("failure", [None, CorruptStoreError("damaged")])
def test_a_hanging_thread_does_not_block_the_exit(
    monkeypatch: pytest.MonkeyPatch, failure: QuorumlogError | None
) -> None:
    """If a disk hangs, closing the loop would wait forever for the blocked thread."""
    statuses: list[int] = []
    released = threading.Event()

    def exit_now(status: int) -> None:
        statuses.append(status)
        released.set()  # this process continues

    async def body(process: Process) -> None:
        asyncio.get_running_loop().run_in_executor(None, released.wait, 30)
        if failure is not None:
            raise failure
        os.kill(os.getpid(), signal.SIGTERM)
        await process.stopped()

    monkeypatch.setattr("os._exit", exit_now)
    monkeypatch.setattr(runtime, "KILL_GRACE_S", 0.01)
    assert run(body) == (0 if failure is None else 7)
    assert statuses == [0 if failure is None else 7]


@pytest.mark.parametrize("abstract", [False, True])
def test_systemd_is_notified_when_a_server_is_ready_runs_and_stops(tmp_path: Path, abstract: bool) -> None:
    name = f"@quorumlog-test-{os.getpid()}" if abstract else str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.bind("\0" + name[1:] if abstract else name)
        receiver.settimeout(5)
        received: list[str] = []

        async def body(process: Process) -> None:
            process.ready(node_id=1)
            loop = asyncio.get_running_loop()
            while sum("WATCHDOG=1" in text for text in received) < 3:  # the watchdog notification repeats automatically
                received.append(await loop.run_in_executor(None, lambda: receiver.recv(4096).decode()))
            process.stop("enough")
            received.append(receiver.recv(4096).decode())

        environ = {"NOTIFY_SOCKET": name, "WATCHDOG_USEC": "20000", "WATCHDOG_PID": str(os.getpid())}
        assert run(body, environ=environ) == 0
    assert received[0].startswith("READY=1\n")
    assert any(text.startswith("STOPPING=1") for text in received)


def test_the_ready_notification_waits_until_systemd_can_receive_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """systemd may be busy.  If the notification were lost, the unit would never become active."""
    monkeypatch.setattr(runtime, "NOTIFY_AGAIN_S", 0.01)
    name = str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.bind(name)
        receiver.settimeout(5)

        async def body(process: Process) -> None:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as other:
                other.setblocking(False)
                try:
                    while True:
                        other.sendto(b"from another service", name)
                except BlockingIOError:
                    pass
            process.ready(node_id=1)
            loop = asyncio.get_running_loop()
            while (await loop.run_in_executor(None, receiver.recv, 4096)).startswith(b"from another"):
                continue

        assert run(body, environ={"NOTIFY_SOCKET": name}) == 0


def test_a_notify_socket_without_a_receiver_does_not_fail_a_server(tmp_path: Path) -> None:
    async def body(process: Process) -> None:
        process.ready(node_id=1)
        await asyncio.sleep(0.01)  # several intervals of the watchdog

    environ = {"NOTIFY_SOCKET": str(tmp_path / "nobody"), "WATCHDOG_USEC": "1000", "WATCHDOG_PID": str(os.getpid())}
    assert run(body, environ=environ) == 0


def test_the_watchdog_of_another_process_gets_no_notification(tmp_path: Path) -> None:
    async def body(process: Process) -> None:
        process.ready(node_id=1)
        await asyncio.sleep(0.01)  # several intervals of the watchdog

    name = str(tmp_path / "notify")
    received: list[str] = []
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.bind(name)
        receiver.setblocking(False)
        environ = {"NOTIFY_SOCKET": name, "WATCHDOG_USEC": "1000", "WATCHDOG_PID": str(os.getppid())}
        assert run(body, environ=environ) == 0
        with suppress(BlockingIOError):
            while True:
                received.append(receiver.recv(4096).decode())
    assert received[0].startswith("READY=1\n")
    assert not any("WATCHDOG" in text for text in received)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ((1_024, 4_096), (4_096, 4_096)),
        ((1_024, 1_024), (1_024, 1_024)),
        ((1_024, 1_000_000), (65_536, 1_000_000)),
        ((1_024, resource.RLIM_INFINITY), (65_536, resource.RLIM_INFINITY)),
        ((100_000, 1_000_000), (100_000, 1_000_000)),
        ((resource.RLIM_INFINITY, resource.RLIM_INFINITY), (resource.RLIM_INFINITY, resource.RLIM_INFINITY)),
    ],
)
def test_a_server_raises_its_limit_of_open_files(
    before: tuple[int, int], after: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    limits = [before]
    monkeypatch.setattr(resource, "getrlimit", lambda which: limits[-1])
    monkeypatch.setattr(resource, "setrlimit", lambda which, value: limits.append(value))

    async def body(_process: Process) -> None:
        assert limits[-1] == after

    assert run(body) == 0


def test_a_server_runs_with_its_current_limit_if_the_system_refuses_a_higher_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(which: int, value: tuple[int, int]) -> None:
        raise ValueError("not allowed")

    monkeypatch.setattr(resource, "getrlimit", lambda which: (1_024, 4_096))
    monkeypatch.setattr(resource, "setrlimit", refuse)

    async def body(_process: Process) -> None: ...

    assert run(body) == 0
