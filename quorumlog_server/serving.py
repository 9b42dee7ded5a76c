"""Runs the node of a server program until it is stopped."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING

from quorumlog.runtime import run as runtime
from quorumlog.runtime.config import NodeConfig
from quorumlog.runtime.run import Process

if TYPE_CHECKING:
    from quorum.ports import OutlivedError
    from quorumlog_server.farewell import Farewell

    RunOnce = Callable[[NodeConfig, Process, Farewell, OutlivedError | None], Awaitable[None]]


def serve(config: NodeConfig, environ: Mapping[str, str], run_once: RunOnce) -> int:
    """Run the node, report an error on standard error, and return the exit status.

    run_once: runs the node until it is stopped.  If it raises OutlivedError because the quorum was rebuilt, the quorum
    directory is set aside and `run_once` is called again with the error, unless an operator must decide.
    """

    async def body(process: Process) -> None:
        from quorumlog.runtime.clock import Sources
        from quorumlog_server.control_plane import quorum_directory
        from quorumlog_server.farewell import Farewell
        from quorumlog_server.generations import through_generations

        farewell = Farewell(config, Sources.real())
        process.on_end = farewell.end
        knows_a_way = bool(config.bootstrap or config.initial_voters)
        await through_generations(
            quorum_directory(config), knows_a_way, lambda before: run_once(config, process, farewell, before)
        )

    return runtime.serve(
        config.role,
        body,
        log_format=config.log_format,
        shutdown_timeout_ms=config.shutdown_timeout_ms,
        environ=environ,
        loop_held_ms=config.log_loop_held_ms,
    )
