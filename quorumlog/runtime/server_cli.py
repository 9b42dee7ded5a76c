"""What the command lines of `quorum-node` and `broker` share.  argparse, not click: it is the quicker to import."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import threading
from collections.abc import AsyncIterator, Callable, Mapping
from typing import TYPE_CHECKING, NoReturn

import quorumlog
from quorumlog.errors import ConfigError, QuorumlogError
from quorumlog.runtime import config as configuration
from quorumlog.runtime.clock import Sources
from quorumlog.runtime.config import NodeConfig
from quorumlog.runtime.logging import configure
from quorumlog.runtime.run import report
from quorumlog.runtime.settings import render_toml

if TYPE_CHECKING:
    from quorumlog.runtime.http import Check
    from quorumlog.runtime.metrics import Metrics

Checks = Mapping[str, "Callable[[], Check]"]


def make_parser(
    program: str, description: str
) -> tuple[argparse.ArgumentParser, argparse._SubParsersAction[argparse.ArgumentParser]]:
    """A parser with `run` and `config`, which take every flag of this program."""
    parser = argparse.ArgumentParser(prog=program, description=description, allow_abbrev=False)
    parser.add_argument("--version", action="version", version=f"{program}, version {quorumlog.__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, text in (
        ("run", "serve until asked to stop"),
        ("config", "print each setting and where it came from, as a config file"),
    ):
        command = commands.add_parser(name, help=text, description=text, allow_abbrev=False)
        configuration.add_arguments(command, program)
    return parser, commands


def print_config(program: str, arguments: argparse.Namespace, environ: Mapping[str, str]) -> int:
    """The `config` command: prints what was understood, and then what is wrong with it."""
    settings, _ = configuration.gather(program, arguments, environ)
    lines = [render_toml(key, settings.values[key.name]) for key in configuration.KEYS if program in key.roles]
    try:
        print("\n".join(lines), flush=True)
    except BrokenPipeError:  # `| head` has seen enough; nor may Python complain when it flushes at its end
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return report_problems(program, ConfigError(*settings.problems)) if settings.problems else 0


def report_problems(program: str, error: ConfigError) -> int:
    """Each problem of a configuration on its own line."""
    for problem in error.problems:
        print(f"{program}: {problem}", file=sys.stderr)
    if error.next_step:
        print(f"{program}: next: {error.next_step}", file=sys.stderr)
    return error.exit_status


def prepare(program: str, arguments: argparse.Namespace, environ: Mapping[str, str]) -> NodeConfig | int:
    """Load the configuration and set up logging; an exit status if it cannot be."""
    try:
        config = configuration.load(program, arguments, environ)
    except ConfigError as error:
        if "json" in (arguments.__dict__.get("logging.format") or ()):
            report(program, error, "json")
            return error.exit_status
        return report_problems(program, error)
    configure(config.log_format, config.log_level, wall_ms=Sources.real().wall_ms, node_id=config.node_id)
    return config


def fail(program: str, error: QuorumlogError) -> int:
    """Report `error` and give its exit status."""
    report(program, error, "text")
    return error.exit_status


@contextlib.asynccontextmanager
async def observed(config: NodeConfig, checks: Checks, metrics: Metrics) -> AsyncIterator[str]:
    """Serve `/metrics`, `/livez` and `/readyz` meanwhile; gives the address, or `off`.

    To be entered before the server itself: a port that is taken is then refused before anything is written, and who
    looks while a long log is being recovered, or at the end handed over, finds out that this is going on.

    Raises:
        ConfigError: the address is taken, or not one of this machine.
    """
    from quorumlog.runtime.http import HttpServer, health_routes
    from quorumlog.runtime.metrics import add_process_metrics

    if config.http_listen is None:
        yield "off"
        return
    add_process_metrics(metrics)
    async with HttpServer(config.http_listen, health_routes(checks, metrics.render)) as server:
        yield str(server.address)


def leave(status: int) -> NoReturn:
    """End the process, also when threads are left: stopped in the middle of stopping, a database may still be open, and
    the interpreter would wait for its thread for ever."""
    if any(thread is not threading.main_thread() and not thread.daemon for thread in threading.enumerate()):
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
    sys.exit(status)
