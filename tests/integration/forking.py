"""Forks programs from a process that has imported them: the parts that `warm_kctl` and `warm_nodes` share.

A request arrives at a socket, with open files beside it.  Its fork gets these files, and the folder and environment
that the request names.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
from collections.abc import Mapping, Sequence
from typing import Any

REQUEST_MAX = 1 << 17
"""Maximum size of a request in bytes."""
FILES_MAX = 4
"""Maximum number of files of a request: the standard streams, and one for the exit status."""


def send(
    requests: socket.socket,
    arguments: Sequence[str],
    environment: Mapping[str, str],
    files: Sequence[int],
    timeout_s: int = 0,
) -> None:
    """Send a request.  timeout_s: see `report_end`."""
    request = {
        "arguments": [*arguments],
        "environment": dict(environment),
        "folder": os.getcwd(),
        "timeout_s": timeout_s,
    }
    socket.send_fds(requests, [json.dumps(request).encode()], files)


def receive(requests: socket.socket) -> tuple[dict[str, Any], list[int]]:
    """Return the next request and its files.  End this process once the socket is closed."""
    message, files, _, _ = socket.recv_fds(requests, REQUEST_MAX, FILES_MAX)
    if not message:
        sys.exit()
    return json.loads(message), files


def take_streams(streams: Sequence[int]) -> None:
    """Make these files the standard streams."""
    for number, file in enumerate(streams):
        os.dup2(file, number)
        os.close(file)


def enter(request: Mapping[str, Any]) -> None:
    """Take on the folder and the environment of a request."""
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["environment"])


def report_end(program: int, status: int, timeout_s: int = 0) -> None:
    """Wait for the end of a child, write its exit status to the file `status`, and end this process.

    timeout_s: seconds until the child is killed; 0: never.
    """
    for stream in range(3):
        os.close(stream)  # so that its output ends when the child does
    signal.signal(signal.SIGALRM, lambda *_: os.kill(program, signal.SIGKILL))
    signal.alarm(timeout_s)
    _, ended = os.waitpid(program, 0)
    os.write(status, b"%d" % os.waitstatus_to_exitcode(ended))
    os._exit(0)
