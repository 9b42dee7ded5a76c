"""Common parts of the command lines of `quorum-node` and `broker`.  Uses argparse, which imports faster than click."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import difflib
import os
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

import quorumlog
from quorumlog.errors import ConfigError, QuorumlogError
from quorumlog.runtime import config as configuration
from quorumlog.runtime.addresses import NamedAddress, listen_problem, listen_refused
from quorumlog.runtime.clock import Sources
from quorumlog.runtime.config import NodeConfig
from quorumlog.runtime.logging import configure
from quorumlog.runtime.run import report
from quorumlog.runtime.settings import NEAR_MIN, render_toml

if TYPE_CHECKING:
    from quorumlog.runtime.http import Check
    from quorumlog.runtime.metrics import Metrics

Checks = Mapping[str, "Callable[[], Check]"]


class Parser(argparse.ArgumentParser):
    """Refuses arguments as invalid settings are refused: all problems together, each with the nearest valid choice."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**{**options, "allow_abbrev": False, "exit_on_error": False})

    def parse_known_args(  # type: ignore[override]  # the base class has overloads for other types of namespace
        self, args: Sequence[str] | None = None, namespace: Any = None
    ) -> tuple[Any, list[str]]:
        """Parse all arguments; no unknown ones are returned.

        Raises:
            ConfigError: with all problems.  A wrong command or value is the only one: the rest has no clear meaning.
        """
        required = [action for action in self._actions if action.required]
        for action in required:  # argparse would raise an error about them before it reports unknown arguments
            action.required = False
        try:
            parsed, extra = super().parse_known_args(args, namespace)
        except argparse.ArgumentError as error:
            raise self._misuse(self._wrong_value(error)) from None
        finally:
            for action in required:
                action.required = True
        missing = [action for action in required if getattr(parsed, action.dest) is None]
        if problems := [*self._unknown(extra), *(f"{_name(action)} is missing" for action in missing)]:
            raise self._misuse(*problems)
        return parsed, []

    def error(self, message: str) -> NoReturn:
        """Refuse the arguments.

        Raises:
            ConfigError: with this problem.
        """
        raise self._misuse(message)

    def _misuse(self, *problems: str) -> ConfigError:
        commands = self._commands()
        content = f"lists the commands: {', '.join(commands)}" if commands else "lists the flags"
        return ConfigError(*problems, next_step=f"`{self.prog} --help` {content}")

    def _commands(self) -> Mapping[str, argparse.ArgumentParser]:
        tables = [action.choices for action in self._actions if isinstance(action, argparse._SubParsersAction)]
        return tables[0] if tables else {}

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is not None and value not in action.choices:
            raise self._misuse(f"unknown command {value!r}{_did_you_mean(value, action.choices)}")

    def _wrong_value(self, error: argparse.ArgumentError) -> str:
        for action in self._actions:
            if _name(action) == error.argument_name:
                return f"{error.argument_name} {'takes no value' if action.nargs == 0 else 'needs a value'}"
        return str(error)

    def _unknown(self, extra: Sequence[str]) -> list[str]:
        """Return a problem for each argument, except for the value of an unknown flag."""
        problems = []
        value_follows = False
        for text in extra:
            flag, equals, _ = text.partition("=")
            if text.startswith("-") and text != "--":
                problems.append(f"unknown flag {flag}{self._instead(flag)}")
            elif not value_follows:
                problems.append(f"unexpected argument {text!r}")
            value_follows = flag.startswith("-") and flag != "--" and not equals
        return problems

    def _instead(self, flag: str) -> str:
        for name, command in self._commands().items():
            if flag in command._option_string_actions:
                return f"; it follows the command: {self.prog} {name} {flag}"
        name = flag.lstrip("-")  # the dashes would make every flag similar to every other
        if near := _did_you_mean(name, [known.lstrip("-") for known in self._option_string_actions], "--"):
            return near
        if "--set" not in self._option_string_actions:
            return ""
        program = self.prog.split()[0]
        keys = [key.name for key in configuration.KEYS if program in key.roles]
        return _did_you_mean(name.replace("-", "."), keys, "--set ")


def _name(action: argparse.Action) -> str:
    """Return the name of an argument in argparse's errors."""
    return "/".join(action.option_strings) or str(action.metavar)


def _did_you_mean(text: str, known: Iterable[str], prefix: str = "") -> str:
    near = difflib.get_close_matches(text, sorted(known), 1, NEAR_MIN)
    return f"; did you mean {prefix}{near[0]}?" if near else ""


def parse(program: str, parser: argparse.ArgumentParser, arguments: Sequence[str]) -> argparse.Namespace | int:
    """Parse a command line; report wrong arguments and return an exit status if that fails."""
    try:
        return parser.parse_args(arguments)
    except ConfigError as error:
        return _refuse(program, error, is_json=_wants_json(arguments))


def _wants_json(arguments: Sequence[str]) -> bool:
    """Return whether JSON was requested, although the arguments could not be parsed."""
    return any(
        text == "--log-format=json" or (text, value) == ("--log-format", "json")
        for text, value in zip(arguments, [*arguments[1:], ""], strict=False)  # no arguments: no pairs
    )


def make_parser(program: str, description: str) -> tuple[Parser, argparse._SubParsersAction[Parser]]:
    """Return a parser with `run` and `config`, which accept every flag of this program."""
    parser = Parser(prog=program, description=description)
    parser.add_argument("--version", action="version", version=f"{program}, version {quorumlog.__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, text in (
        ("run", "serve until asked to stop"),
        ("config", "print each setting and its source, as a config file"),
    ):
        command = commands.add_parser(name, help=text, description=text)
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


def _refuse(program: str, error: ConfigError, is_json: bool) -> int:
    if not is_json:
        return report_problems(program, error)
    report(program, error, "json")
    return error.exit_status


def prepare(program: str, arguments: argparse.Namespace, environ: Mapping[str, str]) -> NodeConfig | int:
    """Load the configuration and set up logging; return an exit status if that fails."""
    try:
        config = configuration.load(program, arguments, environ)
    except ConfigError as error:
        return _refuse(program, error, is_json="json" in (arguments.__dict__.get("logging.format") or ()))
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
        ConfigError: naming every address of the server, not only of this endpoint, that cannot be bound, for example
            because it is in use.
    """
    from quorumlog.runtime.http import HttpServer, health_routes
    from quorumlog.runtime.metrics import add_process_metrics

    await check_addresses(config)
    if config.http_listen is None:
        yield "off"
        return
    add_process_metrics(metrics)
    async with HttpServer(config.http_listen, health_routes(checks, metrics.render)) as server:
        yield str(server.address)


async def check_addresses(config: NodeConfig) -> None:
    """Check that the server could listen on all of its addresses now.

    Raises:
        ConfigError: naming every address that cannot be bound.
    """
    loop = asyncio.get_running_loop()
    if (refused := await loop.run_in_executor(None, _refused_addresses, config)) is not None:
        raise refused


def _refused_addresses(config: NodeConfig) -> ConfigError | None:
    """Return the error of a server that could not listen on all of its addresses now; None if it could."""
    from quorumlog.runtime.http import INSTEAD

    # gRPC listens on IPv4 as well, asyncio does not.
    problems = [listen_problem(config.control_listen, config.control_listen, ipv6_only=False)]
    for listener in config.kafka_listeners:
        where = NamedAddress(listener.name, listener.listen)
        problems.append(listen_problem(listener.listen, where, ipv6_only=True))
    instead = "another address"
    if (http := config.http_listen) is not None:
        problems.append(listen_problem(http, f"{http} (http.listen)", ipv6_only=True))
        instead = INSTEAD if problems[-1] is not None else instead
    found = [problem for problem in problems if problem is not None]
    return listen_refused(*found, instead=instead) if found else None


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
