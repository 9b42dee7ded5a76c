"""Runs kctl in processes that are forked from one that has loaded the program already.

Loading takes most of the processor time of a command, and the tests of clusters run hundreds of commands.  Each command
is still a process of its own, with its own arguments, environment, standard streams and exit status.  Tests of kctl's
start, of signals and of unusual streams start it in the usual way.

`python -m tests.integration.warm_kctl DESCRIPTOR` serves the requests that arrive at this socket, until it is closed.
"""

from __future__ import annotations

import gc
import importlib
import os
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import cache
from pathlib import Path

from tests.integration import forking

ROOT = Path(__file__).parents[2]
LOADED = (
    *("quorumlog.client.cluster", "quorumlog.client.controller", "quorumlog.client.group_descriptions"),
    *("quorumlog.client.group_lag", "quorumlog.client.groups", "quorumlog.client.producer"),
    *("quorumlog.client.transaction_logs", "quorumlog.doctor.diagnosis", "quorumlog.doctor.examine"),
    *("quorumlog.kctl.metadata_history", "rich.box", "rich.console", "rich.table", "rich.text"),
)
"""Modules that kctl imports when a command needs them."""


def run(
    arguments: Sequence[str], environment: Mapping[str, str], timeout_s: int, stdin: str = ""
) -> subprocess.CompletedProcess[str]:
    """Run kctl to its end, or kill it after `timeout_s`."""
    given, out, err, status = (os.pipe() for _ in range(4))
    theirs = [given[0], out[1], err[1], status[1]]
    try:
        forking.send(_server()[0], arguments, environment, theirs, timeout_s)
    finally:
        for file in theirs:
            os.close(file)
    with ThreadPoolExecutor(4) as pool:
        pool.submit(_write, given[1], stdin.encode())
        said = [text.decode() for text in pool.map(_read, (out[0], err[0], status[0]))]
    return subprocess.CompletedProcess(["kctl", *arguments], int(said[2]), said[0], said[1])


def _write(file: int, data: bytes) -> None:
    with suppress(BrokenPipeError), open(file, "wb") as stream:
        stream.write(data)


def _read(file: int) -> bytes:
    with open(file, "rb") as stream:
        return stream.read()


@cache
def _server() -> tuple[socket.socket, subprocess.Popen[bytes]]:
    """Start the process that forks.  It ends when this process does, which closes the socket."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "tests.integration.warm_kctl", str(theirs.fileno())],
            stdin=subprocess.PIPE,  # pipes, as those of each kctl: Python remembers whether a stream can seek
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            pass_fds=[theirs.fileno()],
        )
    return ours, process


def serve(requests: socket.socket) -> list[str]:
    """Fork for each request.  Return only in a fork: the arguments of its kctl."""
    while True:
        request, files = forking.receive(requests)
        with suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:  # earlier forks that have ended
                pass
        if os.fork() == 0:
            break
        for file in files:
            os.close(file)
    requests.close()
    *streams, status = files
    forking.take_streams(streams)
    if kctl := os.fork():
        forking.report_end(kctl, status, request["timeout_s"])
    os.close(status)
    forking.enter(request)
    arguments: list[str] = request["arguments"]
    return arguments


def main() -> None:
    from quorumlog.kctl import main as program
    from quorumlog.kctl import streams

    for name in LOADED:
        importlib.import_module(name)
    gc.freeze()  # a collection in a fork would touch, and so copy, all memory
    arguments = serve(socket.socket(fileno=int(sys.argv[1])))
    program.STARTED_S = time.monotonic()  # type: ignore[attr-defined]  # --timeout counts from here
    try:
        program.main(arguments)
    except SystemExit as end:
        streams.flush()
        os._exit(end.code if isinstance(end.code, int) else 1)  # as the interpreter, without freeing all objects


if __name__ == "__main__":
    main()
