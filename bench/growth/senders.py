"""Fake brokers in a process of their own: `python -m bench.growth.senders CONTROLLERS COUNT INTERVAL_S`.

So the process that measures latencies is not delayed by a thousand heartbeats a second.  The program prints a line once
all brokers are registered and unfenced.  When its standard input ends, it prints its figures as JSON and ends; thus it
also ends if the bench is killed.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import NamedTuple

from bench.nodes import FIRST_FAKE_ID, TIMEOUT_S, FakeBrokers
from quorumlog.client.controller import ControllerClient
from quorumlog.kctl.dev_cluster import environment


class Sent(NamedTuple):
    """The figures of the program.

    register_s: until all brokers were registered and unfenced.  heartbeats_s: answered heartbeats each second after
    that.  fenced: how many of these answers reported a fenced broker.
    """

    register_s: float
    heartbeats_s: float
    fenced: int


class Senders:
    """The running program."""

    def __init__(self, process: Process) -> None:
        self._process = process

    @property
    def pid(self) -> int:
        return self._process.pid

    async def end(self) -> Sent:
        """Stop the heartbeats, and return the figures."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        return Sent(**json.loads(await self.line()))

    async def line(self) -> bytes:
        """Return the next line that the program prints."""
        assert self._process.stdout is not None
        async with asyncio.timeout(TIMEOUT_S):
            found = await self._process.stdout.readline()
        assert found, "the program with the fake brokers has ended"
        return found


@asynccontextmanager
async def senders(controllers: str, count: int, interval_s: float) -> AsyncIterator[Senders]:
    """Run the program until the block ends.  The brokers have the ids after FIRST_FAKE_ID."""
    command = [sys.executable, "-m", "bench.growth.senders", controllers, str(count), str(interval_s)]
    process = await asyncio.create_subprocess_exec(*command, stdin=PIPE, stdout=PIPE, env=environment())
    running = Senders(process)
    try:
        await running.line()
        yield running
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def _run(controllers: str, count: int, interval_s: float) -> None:
    began = time.monotonic()
    async with (
        ControllerClient(controllers.split(",")) as client,
        FakeBrokers(client, count, first_id=FIRST_FAKE_ID + 1, interval_s=interval_s) as brokers,
    ):
        registered, sent, fenced = time.monotonic(), brokers.sent, brokers.fenced
        print("registered", flush=True)
        await asyncio.to_thread(sys.stdin.read)
        heartbeats_s = (brokers.sent - sent) / (time.monotonic() - registered)
        print(json.dumps(Sent(registered - began, heartbeats_s, brokers.fenced - fenced)._asdict()), flush=True)


if __name__ == "__main__":
    asyncio.run(_run(sys.argv[1], int(sys.argv[2]), float(sys.argv[3])))
