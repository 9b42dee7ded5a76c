"""`quorum-node`: formats a data directory, makes a cluster id, runs a node of the quorum, prints the configuration."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import signal
import sys
import threading
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from quorumlog.entry import end_if_shadowed
from quorumlog.errors import ConfigError, QuorumlogError, StoreRefusedError
from quorumlog.runtime import server_cli
from quorumlog.runtime.config import QUORUM_NODE, NodeConfig
from quorumlog.runtime.garbage import made_to_last
from quorumlog.runtime.run import Process
from quorumlog_server.serving import serve

if TYPE_CHECKING:
    from quorum.ports import OutlivedError
    from quorumlog_server.farewell import Farewell


def main() -> None:
    """Run the command line and end the process with its exit status."""
    end_if_shadowed(QUORUM_NODE)
    server_cli.leave(run(sys.argv[1:], os.environ))


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of the whole command line."""
    parser, commands = server_cli.make_parser(QUORUM_NODE, "A node of the metadata quorum: a voter or an observer.")
    commands.add_parser("new-id", help="print a new cluster id")
    command = commands.add_parser(
        "format",
        help="prepare an empty data directory for a node of a given cluster",
        description="Prepare an empty data directory as a separate step. `run` also does this automatically.",
    )
    command.add_argument("--data-dir", required=True, metavar="DIR")
    command.add_argument("--node-id", required=True, metavar="N")
    command.add_argument("--cluster-id", required=True, metavar="ID")
    command = commands.add_parser(
        "recover",
        help="rebuild the quorum from one surviving disk after its majority is lost permanently",
        description="Rebuild the quorum from the best of the surviving data directories, offline: docs/recovery.md.",
    )
    command.add_argument("--data-dir", required=True, action="append", metavar="DIR")
    command.add_argument("--address", metavar="HOST:PORT", help="control address of the surviving node")
    command.add_argument("--yes", action="store_true", help="do not ask for confirmation")
    command = commands.add_parser(
        "set-aside",
        help="set a stopped node's quorum directory aside, so that it starts with an empty one",
        description="Rename the quorum directory of a stopped node, so that the node starts with an empty one. "
        "Nothing is deleted, and the partitions of a broker stay: docs/recovery.md.",
    )
    command.add_argument("--data-dir", required=True, metavar="DIR")
    return parser


def run(arguments: Sequence[str], environ: Mapping[str, str]) -> int:
    """Run one command and return the exit status."""
    parsed = server_cli.parse(QUORUM_NODE, make_parser(), arguments)
    if isinstance(parsed, int):
        return parsed
    match parsed.command:
        case "config":
            return server_cli.print_config(QUORUM_NODE, parsed, environ)
        case "new-id":
            return _new_id()
        case "format":
            return _format(parsed)
        case "recover":
            return _recover(parsed)
        case "set-aside":
            return _set_aside(parsed)
    config = server_cli.prepare(QUORUM_NODE, parsed, environ)
    if isinstance(config, int):
        return config
    return _serve(config, environ)


def _new_id() -> int:
    from quorumlog.runtime.clock import Sources
    from quorumlog.runtime.cluster_id import new_cluster_id

    return _finish(new_cluster_id(Sources.real()))


def _format(parsed: argparse.Namespace) -> int:
    given = {"--data-dir": parsed.data_dir, "--node-id": parsed.node_id, "--cluster-id": parsed.cluster_id}
    arguments = ["run", *(f"{flag}={value}" for flag, value in given.items())]  # a value may begin with a dash
    config = server_cli.prepare(QUORUM_NODE, make_parser().parse_args(arguments), {})  # with the checks of `run`
    if isinstance(config, int):
        return config
    try:
        asyncio.run(_format_store(config))
    except QuorumlogError as error:
        return server_cli.fail(QUORUM_NODE, error)
    return _finish(f"formatted {config.data_dirs[0]} for node {config.node_id} of cluster {config.cluster_id}")


def _recover(parsed: argparse.Namespace) -> int:
    from quorumlog.runtime.addresses import parse_target
    from quorumlog.runtime.clock import Sources
    from quorumlog_server.control_plane import QUORUM_FOLDER
    from quorumlog_server.recover import recover

    try:
        if parsed.address is not None:
            parse_target(parsed.address)
    except ValueError as error:
        return server_cli.report_problems(QUORUM_NODE, ConfigError(f"--address: {error}"))
    given = [os.path.join(folder, QUORUM_FOLDER) for folder in parsed.data_dir]
    # A directory that is given twice would be refused as locked.
    folders = list({os.path.realpath(folder): folder for folder in given}.values())
    confirm = (lambda: True) if parsed.yes else _confirm
    try:
        done = asyncio.run(recover(folders, Sources.real(), address=parsed.address, confirm=confirm, say=_say_step))
    except EOFError:
        return server_cli.report_problems(
            QUORUM_NODE, ConfigError("no terminal for the confirmation", next_step="give --yes")
        )
    except KeyboardInterrupt:
        next_step = 'if "writing" was printed without "done", run it again; before "writing" nothing was changed'
        return server_cli.fail(QUORUM_NODE, QuorumlogError("interrupted", next_step))
    except QuorumlogError as error:
        return server_cli.fail(QUORUM_NODE, error)
    return 0 if done else 1


def _say_step(line: str) -> None:
    """Print a step of `recover`."""
    _say(line, 'check where the output goes; unless "done" is this line or an earlier one, run it again')


def _finish(line: str) -> int:
    """Print the result of a command that is complete, and return the exit status."""
    try:
        _say(line, "check where the output goes; the command itself succeeded")
    except QuorumlogError as error:
        return server_cli.fail(QUORUM_NODE, error)
    return 0


def _say(line: str, next_step: str) -> None:
    """Print at once, even to a pipe or a file: if the process is killed, the output must show whether writing began."""
    try:
        print(line, flush=True)
    except OSError as error:  # a closed pipe, or a full disk
        server_cli.discard_output()
        text = f"the output cannot be written: {error.strerror or error}; the line was: {line}"
        raise QuorumlogError(text, next_step) from error


def _confirm() -> bool:
    """Ask for confirmation, and return the answer; Ctrl-C means no."""
    if threading.current_thread() is not threading.main_thread():
        return _said_yes()
    # asyncio turns the first Ctrl-C into a cancellation, which `input` ignores.  So a later "yes" would begin to write.
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        return _said_yes()
    except KeyboardInterrupt:
        print()  # ends the line of the question
        return False
    finally:
        signal.signal(signal.SIGINT, handler)


def _said_yes() -> bool:
    return input("continue? Type yes: ").strip() == "yes"


def _set_aside(parsed: argparse.Namespace) -> int:
    from quorum.store.directory import move_away
    from quorumlog_server.control_plane import QUORUM_FOLDER

    try:
        kept = move_away(os.path.join(parsed.data_dir, QUORUM_FOLDER), "set-aside")
    except QuorumlogError as error:
        return server_cli.fail(QUORUM_NODE, error)
    return _finish(
        f"the quorum directory is now {kept}; at its next start the node is an observer with an empty directory"
    )


async def _format_store(config: NodeConfig) -> None:
    from quorumlog.runtime.clock import Sources
    from quorumlog_server.control_plane import locked_directory, make_store

    if _is_formatted(config):
        raise StoreRefusedError(
            f"{config.data_dirs[0]} is already formatted", next_step="give an empty --data-dir, or just run the node"
        )
    with locked_directory(config):
        store = make_store(config, Sources.real())
        await store.open(config.node_id, config.cluster_id)
        await store.close()


def _is_formatted(config: NodeConfig) -> bool:
    from quorum.store.directory import mark_path
    from quorumlog_server.control_plane import quorum_directory

    folder = quorum_directory(config)
    try:
        return os.path.exists(mark_path(folder)) or bool(os.listdir(folder))
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:  # it may exist; opening it reports the error
        return True


def _serve(config: NodeConfig, environ: Mapping[str, str]) -> int:
    names_a_cluster = config.standalone or config.initial_voters or config.bootstrap
    if not names_a_cluster and not _is_formatted(config):
        return server_cli.report_problems(
            QUORUM_NODE,
            ConfigError(
                f"{config.data_dirs[0]} is not formatted, and no flag names a cluster to found or join",
                next_step="give --standalone, --initial-voters ID@HOST:PORT,… or --join HOST:PORT,…",
            ),
        )
    return serve(config, environ, _run_once)


async def _run_once(config: NodeConfig, process: Process, farewell: Farewell, before: OutlivedError | None) -> None:
    with made_to_last():  # otherwise each garbage collection would walk the new modules
        from quorumlog.runtime.clock import Sources
        from quorumlog.runtime.metrics import Metrics
        from quorumlog_server.control_plane import check_start, locked_directory, make_control_plane

    metrics = Metrics()
    plane = make_control_plane(config, Sources.real())
    plane.before = before
    farewell.plane = plane
    await check_start(config)
    async with contextlib.AsyncExitStack() as exits:
        http = await exits.enter_async_context(server_cli.observed(config, plane.checks(), metrics))
        exits.enter_context(locked_directory(config))
        plane.on_open = farewell.begin
        await exits.enter_async_context(plane)
        plane.register_metrics(metrics)
        if await process.reaches(plane.ready()):
            process.ready(
                node_id=config.node_id,
                control=plane.address,
                http=http,
                data_dir=config.data_dirs[0],
            )
            plane.log_observer()
            await farewell.ready()
            await process.stopped()


if __name__ == "__main__":
    main()
