"""Start programs as PySpark starts Java, with work between fork and exec, while gRPC calls are in progress."""

from __future__ import annotations

import asyncio
import subprocess
from contextlib import suppress

from quorumlog.runtime.addresses import Address
from quorumlog.runtime.grpc import bind, make_channel, make_server

PROGRAMS = 60
CALLERS = 4


async def main() -> None:
    import grpc.aio

    server = make_server()
    port = bind(server, Address("127.0.0.1", 0))
    await server.start()
    ended = asyncio.Event()

    async def ask_on() -> None:
        async with make_channel(f"127.0.0.1:{port}") as channel:
            call: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary("/quorumlog.v1.Quorum/Nothing")
            while not ended.is_set():
                with suppress(grpc.aio.AioRpcError):  # the server has no method of this name
                    await call(b"")

    def start_programs() -> list[int]:
        return [subprocess.run(["true"], preexec_fn=lambda: None).returncode for _ in range(PROGRAMS)]

    async with asyncio.TaskGroup() as group:
        for _ in range(CALLERS):
            group.create_task(ask_on())
        codes = await asyncio.get_running_loop().run_in_executor(None, start_programs)
        ended.set()
    assert codes == [0] * PROGRAMS, codes
    await server.stop(None)


asyncio.run(main())
