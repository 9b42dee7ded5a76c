"""Common parts of the command lines of `quorum-node` and `broker`.  Uses argparse, which imports faster than click."""

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
    """Return a parser with `run` and `config`, which accept every flag of this program."""
    parser = argparse.ArgumentParser(prog=program, description=description, allow_abbrev=False)
    parser.add_argument("--version", action="version", version=f"{program}, version {quorumlog.__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, text in (
        ("run", "serve until asked to stop"),
        ("config", "print each setting and its source, as a config file"),
    ):
        command = commands.add_parser(name, help=text, description=text, allow_abbrev=False)
        configuration.add_arguments(command, program)
    return parser, commands


def print_config(program: str, arguments: argparse.Namespace, environ: Mapping[str, str]) -> int:
    """The `config` command: print the settings, and then their problems."""
    settings, _ = configuration.gather(program, arguments, environ)
    lines = [render_toml(key, settings.values[key.name]) for key in configuration.KEYS if program in key.roles]
    try:
        print("\n".join(lines), flush=True)
    except OSError as error:
        discard_output()
        if not isinstance(error, BrokenPipeError):  # it only means that the reader closed the pipe
            return fail(program, QuorumlogError(f"cannot write the settings: {error.strerror}", "check the output"))
    return report_problems(program, ConfigError(*settings.problems)) if settings.problems else 0


def discard_output() -> None:
    """Discard standard output from now on.  Otherwise Python reports an error when it flushes broken output at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def report_problems(program: str, error: ConfigError) -> int:
    """Print each problem of a configuration on its own line."""
    for problem in error.problems:
        print(f"{program}: {problem}", file=sys.stderr)
    if error.next_step:
        print(f"{program}: next: {error.next_step}", file=sys.stderr)
    return error.exit_status


def prepare(program: str, arguments: argparse.Namespace, environ: Mapping[str, str]) -> NodeConfig | int:
    """Load the configuration and set up logging; return an exit status if that fails."""
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
    """Report `error` and return its exit status."""
    report(program, error, "text")
    return error.exit_status


@contextlib.asynccontextmanager
async def observed(config: NodeConfig, checks: Checks, metrics: Metrics) -> AsyncIterator[str]:
    """Serve `/metrics`, `/livez` and `/readyz` while the context is open; yield the address, or `off`.

    Enter it before the server itself.  Then a port in use is refused before anything is written, and the endpoints also
    answer during the recovery of a long log and during the shutdown.

    Raises:
        ConfigError: the address cannot be bound, for example because it is in use.
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
    """End the process even if threads remain.

    If it was stopped during its shutdown, a database may still be open, and the interpreter would wait forever for the
    database's thread.
    """
    if any(thread is not threading.main_thread() and not thread.daemon for thread in threading.enumerate()):
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
    sys.exit(status)
