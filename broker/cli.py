"""`broker`: run a data node, alone or in a cluster, and print its configuration."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from quorumlog.entry import end_if_shadowed
from quorumlog.runtime import server_cli
from quorumlog.runtime.config import BROKER, NodeConfig
from quorumlog.runtime.garbage import made_to_last
from quorumlog.runtime.run import Process
from quorumlog_server.serving import serve

if TYPE_CHECKING:
    from quorum.ports import OutlivedError
    from quorumlog_server.farewell import Farewell


def main() -> None:
    """Run the command line and end the process with its exit status."""
    end_if_shadowed(BROKER)
    server_cli.leave(run(sys.argv[1:], os.environ))


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of the whole command line."""
    return server_cli.make_parser(BROKER, "A data node: replicas of partitions, served over the Kafka protocol.")[0]


def run(arguments: Sequence[str], environ: Mapping[str, str]) -> int:
    """Run one command and return the exit status."""
    parsed = server_cli.parse(BROKER, make_parser(), arguments)
    if isinstance(parsed, int):
        return parsed
    if parsed.command == "config":
        return server_cli.print_config(BROKER, parsed, environ)
    config = server_cli.prepare(BROKER, parsed, environ)
    if isinstance(config, int):
        return config
    return serve(config, environ, _run_once)


async def _run_once(config: NodeConfig, process: Process, farewell: Farewell, before: OutlivedError | None) -> None:
    with made_to_last():  # otherwise each garbage collection would walk the new modules
        from broker.server.process import make_broker_process
        from quorumlog.runtime.clock import Sources
        from quorumlog.runtime.metrics import Metrics
        from quorumlog_server.control_plane import check_start

    await check_start(config)
    metrics = Metrics()
    broker = make_broker_process(config, Sources.real())
    broker.plane.before = before
    farewell.plane = broker.plane
    farewell.begin()
    async with server_cli.observed(config, broker.checks(), metrics) as http, broker:
        broker.register_metrics(metrics)
        if await process.reaches(broker.ready()):
            process.ready(
                node_id=config.node_id,
                kafka=",".join(f"{e.host}:{e.port}" for e in broker.advertised()),
                control=broker.address,
                http=http,
                data_dir=",".join(config.data_dirs),
            )
            await farewell.ready()
            await process.stopped()


if __name__ == "__main__":
    main()
