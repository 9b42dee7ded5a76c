"""Starts nodes as forks of a process that has imported their program already.

Importing the program takes most of the processor time of a short-lived node, and the tests of clusters start many
hundreds.  A node is still a process of its own, with its own arguments (also in /proc), environment, folder, standard
streams, session and exit status.  These differences remain:

- Its parent is the forking process, which reaps it.
- Strings have the same hashes in all nodes that one process forks.  Two such processes therefore take turns.
- It ends after its exit handlers without freeing all objects.

Tests of a node's start and end, of its memory and of unusual environments start it in the usual way.

`python -m tests.integration.warm_nodes DESCRIPTOR PADDING` serves the requests that arrive at this socket, until it is
closed.
"""

from __future__ import annotations

import atexit
import ctypes
import gc
import importlib
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from itertools import count
from pathlib import Path
from typing import IO, cast
from unittest.mock import patch

from quorumlog.kctl import dev_cluster, processes
from tests.integration import forking

ARGUMENTS_MAX = 1 << 14
"""Maximum size of a node's arguments in bytes: they replace those of the forking process."""
PROGRAMS = ("quorumlog_server.quorum_node", "broker.cli")
LOADED = (
    *("broker.server.process", "quorumlog.runtime.clock", "quorumlog.runtime.http", "quorumlog.runtime.metrics"),
    *("quorumlog_server.control_plane", "quorumlog_server.farewell"),
)
"""Modules that the programs import only when they serve."""
FORKING_PROCESSES = 2
"""Number of forking processes of each process that runs tests."""
START_TIMEOUT_S = 120.0
"""Time for the start of a forking process, on a machine that is busy, and for a reply."""
EXPECTED = dev_cluster.environment()
"""The environment of nodes with which the interpreter of a forking process starts."""

READ_LATER = ("QUORUMLOG_", "KCTL_", "PYTEST_", "NO_COLOR", "COLUMNS")
"""How the names of variables begin that make no difference to an interpreter or to a module that is imported."""

_ARG_START_FIELD, _ARG_END_FIELD = 45, 46  # of /proc/PID/stat, counted after the command's closing parenthesis


class Node:
    """A started process; the part of `subprocess.Popen` that the tests use.

    stdout, stderr: the reading ends of its standard output and error, if they are pipes.
    """

    def __init__(
        self, pid: int, status: int | None = None, stdout: IO[str] | None = None, stderr: IO[str] | None = None
    ) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self.stdout = stdout
        self.stderr = stderr
        self._status = status

    def __enter__(self) -> Node:
        return self

    def __exit__(self, *_: object) -> None:
        for stream in (self.stdout, self.stderr):
            if stream is not None:
                stream.close()
        self.wait()

    def poll(self) -> int | None:
        """Return the exit status; None while the process runs."""
        return self._look(0)

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end of the process, and return its exit status.

        Raises:
            subprocess.TimeoutExpired: it still runs.
        """
        if (found := self._look(timeout)) is None:
            raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0)
        return found

    def send_signal(self, number: int) -> None:
        """Send a signal, unless the process is known to have ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def _look(self, timeout: float | None) -> int | None:
        if self.returncode is None:
            assert self._status is not None, "its exit status was not requested"
            if select.select([self._status], [], [], timeout)[0]:
                self.returncode = int(os.read(self._status, 16))
                os.close(self._status)
        return self.returncode


_spawn = processes.spawn
_numbers = count()
_turn = threading.Lock()


def spawn(command: Sequence[str], log: Path, environment: dict[str, str]) -> subprocess.Popen[bytes]:
    """Start a process as `processes.spawn` does, as a fork if that makes no difference.  Its status is not reported."""
    if not _can_fork(command, environment):
        return _spawn(command, log, environment)
    with log.open("ab") as output, open(os.devnull, "r+b", buffering=0) as nothing:
        pid = _fork(command, environment, [nothing.fileno(), output.fileno(), output.fileno()])
    return cast("subprocess.Popen[bytes]", Node(pid))


@contextmanager
def replacing_spawn() -> Iterator[None]:
    """Let `dev_cluster` start nodes with `spawn` during the block."""
    with patch.object(processes, "spawn", spawn):
        yield


def popen(command: Sequence[str], environment: dict[str, str], errors: IO[str] | None = None) -> subprocess.Popen[str]:
    """Start a process as `subprocess.Popen` does, as a fork if that makes no difference.

    Its standard output is a pipe.  Its standard error goes to the file `errors`, or to another pipe.
    """
    if not _can_fork(command, environment):
        target = errors or subprocess.PIPE
        return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=target, text=True)
    pipes = [os.pipe() for _ in range(2 if errors else 3)]
    (status, *said), theirs = zip(*pipes, strict=True)
    try:
        pid = _fork(command, environment, [0, *theirs[1:], *([errors.fileno()] if errors else []), theirs[0]])
    finally:
        for file in theirs:
            os.close(file)
    return cast("subprocess.Popen[str]", Node(pid, status, *(open(file) for file in said)))


def _can_fork(command: Sequence[str], environment: Mapping[str, str]) -> bool:
    """Return whether these are a node's program and an environment that the interpreter would not treat otherwise."""
    return (
        sys.platform == "linux"
        and list(command[:3]) == [sys.executable, "-P", "-m"]
        and command[3] in PROGRAMS
        and _of_the_interpreter(environment) == _of_the_interpreter(EXPECTED)
    )


def _of_the_interpreter(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables without those that only running programs read."""
    return {name: value for name, value in environment.items() if not name.startswith(READ_LATER)}


def _fork(command: Sequence[str], environment: Mapping[str, str], files: Sequence[int]) -> int:
    """Start a node and return its pid, once it shows its arguments.

    files: its standard streams, and a file for its exit status.  Without the latter it gets a session of its own.
    """
    with _turn:
        requests, _ = _forking_process(next(_numbers) % FORKING_PROCESSES)
        try:
            forking.send(requests, command, environment, files)
            return int(requests.recv(16))
        except BaseException:
            _forking_process.cache_clear()  # a late reply would be treated as that to the next request
            raise


@cache
def _forking_process(number: int) -> tuple[socket.socket, subprocess.Popen[bytes]]:
    """Start a process that forks.  It ends when this process does, which closes the socket."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "tests.integration.warm_nodes", str(theirs.fileno()), "-" * ARGUMENTS_MAX],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,  # not a terminal, to which Python would write each line at once
            env=EXPECTED,
            pass_fds=[theirs.fileno()],
        )
    ours.settimeout(START_TIMEOUT_S)
    return ours, process


def serve(requests: socket.socket) -> list[str]:
    """Fork for each request.  Return only in a fork: the arguments of its node."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the system reaps the forks
    on_interrupt = signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C ends the process that sends requests
    while True:
        request, files = forking.receive(requests)
        if os.fork() == 0:
            break
        for file in files:
            os.close(file)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    streams, status = files[:3], files[3:]
    forking.take_streams(streams)
    if not status:
        os.setsid()
    elif node := os.fork():
        requests.close()
        forking.report_end(node, status[0])
    else:
        os.close(status[0])
    signal.signal(signal.SIGINT, on_interrupt)
    forking.enter(request)
    arguments: list[str] = request["arguments"]
    _show(arguments)
    requests.send(b"%d" % os.getpid())
    requests.close()
    return arguments


def _show(arguments: list[str]) -> None:
    """Let /proc show these arguments for this process, followed by empty ones."""
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    start, end = int(fields[_ARG_START_FIELD]), int(fields[_ARG_END_FIELD])
    shown = b"".join(os.fsencode(argument) + b"\0" for argument in arguments)
    assert len(shown) <= end - start, len(shown)
    ctypes.memmove(start, shown.ljust(end - start, b"\0"), end - start)


def main() -> None:
    programs = {name: importlib.import_module(name) for name in PROGRAMS}
    for name in LOADED:
        importlib.import_module(name)
    assert os.listdir("/proc/self/task") == [str(os.getpid())], "a fork would lack the other threads"
    gc.freeze()  # a collection in a fork would touch, and so copy, all memory
    arguments = serve(socket.socket(fileno=int(sys.argv[1])))
    program = programs[arguments[3]]
    sys.orig_argv[:] = arguments
    sys.argv[:] = [str(program.__file__), *arguments[4:]]
    try:
        program.main()
    except SystemExit as end:
        if isinstance(end.code, int):
            atexit._run_exitfuncs()
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(end.code)  # as the interpreter, without freeing all objects
        raise


if __name__ == "__main__":
    main()
