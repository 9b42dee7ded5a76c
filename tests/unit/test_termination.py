"""A command that gets SIGTERM stops the servers that it has started."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

WAIT_S = 30
PROGRAM = """
import asyncio, contextlib, os, signal, sys
from tests.termination import end_in_order_on_sigterm

@contextlib.contextmanager
def server():
    try:
        print("started", flush=True)
        yield
    finally:
        os.kill(os.getpid(), signal.SIGTERM)
        print("stopped", flush=True)

async def wait():
    with server():
        await asyncio.Event().wait()

end_in_order_on_sigterm()
if sys.argv[1] == "asyncio":
    asyncio.run(wait())
else:
    with server():
        signal.pause()
"""


@pytest.mark.parametrize("kind", ["asyncio", "plain"])
def test_servers_are_stopped_even_if_a_second_signal_arrives(kind: str) -> None:
    command = [sys.executable, "-c", PROGRAM, kind]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "started\n"
            process.send_signal(signal.SIGTERM)
            assert process.communicate(timeout=WAIT_S)[0] == "stopped\n"
        finally:
            process.kill()
    assert process.returncode == 128 + signal.SIGTERM
