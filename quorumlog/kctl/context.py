"""The environment of every kctl command: global options, a client, the output, and an event loop."""

from __future__ import annotations

import asyncio
import functools
import sys
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar, cast

import click

from quorumlog.errors import ClusterError
from quorumlog.kctl.examples import EXAMPLES
from quorumlog.kctl.numbers import FloatRange
from quorumlog.kctl.output import Output
from quorumlog.runtime.addresses import parse_list, parse_target
from quorumlog.wire.errors import ApiError

if TYPE_CHECKING:
    from quorumlog.client.controller import ControllerClient

DEFAULT_CONTROLLERS = "127.0.0.1:9093"
DEFAULT_TIMEOUT_S = 30.0
REFUSED_S = 5.0
"""Time after which a command without --timeout gives up if nothing listens at any address.  It is longer than the 2 to
3 s in which a node restarts."""
TIMEOUT_MAX_S = 86_400.0
SENTENCE_MAX = 1_000
"""Maximum length of a command's first sentence in the list of commands; large enough that none is truncated."""
LEFT_MIN_S = 0.1
GRACE_S = 0.5
"""Time after the deadline in which a command may still report its outcome."""

P = ParamSpec("P")
R = TypeVar("R")


@dataclass(slots=True)
class Context:
    """The global options.  An option after the command's name overrides the same option before it."""

    controllers: str | None = None
    output_form: str = "table"
    timeout_s: float | None = None
    debug: bool = False
    interrupted: str = "changes that were already requested continue; nothing was cancelled"
    """The message after Ctrl-C; a command may replace it.  Empty: Ctrl-C is the normal end."""
    ends_with_output: bool = False
    """Whether the command only shows something, and therefore ends, with success, once nobody reads its output."""
    spent_s: float = 0.0
    """Seconds of the command's time that had passed when its event loop started."""
    _end: float | None = None
    _limit: asyncio.Timeout | None = None

    @property
    def output(self) -> Output:
        return Output(self.output_form, ends_if_closed=self.ends_with_output)

    @property
    def deadline_s(self) -> float:
        """Seconds that the command may take."""
        return DEFAULT_TIMEOUT_S if self.timeout_s is None else self.timeout_s

    @property
    def left_s(self) -> float:
        """Seconds that remain for all further requests; at least LEFT_MIN_S, so that a request can report its error."""
        now = asyncio.get_running_loop().time()
        if self._end is None:
            self._end = now + self.deadline_s - self.spent_s
        return max(self._end - now, LEFT_MIN_S)

    @property
    def follow_s(self) -> float | None:
        """Seconds for which a command may still follow something; None unless the user gave --timeout.

        This is GRACE_S longer than the command's time, so that a request that times out is still reported with its
        cause.
        """
        return None if self.timeout_s is None else self.left_s + GRACE_S

    def start_over(self) -> None:
        """Restart the command's time, so that the time that a person took for an answer does not count."""
        self._end, self.spent_s = None, 0.0
        if self._limit is not None and self._limit.when() is not None:
            self._limit.reschedule(asyncio.get_running_loop().time() + self.left_s + GRACE_S)

    def lift_limit(self) -> None:
        """Remove the time limit, for commands that follow something or limit each step themselves."""
        if self._limit is not None:
            self._limit.reschedule(None)

    async def within_limit(self, work: Awaitable[R]) -> R:
        """Await `work`, and cancel it shortly after the command's time is up.

        Requests have timeouts within the command's time, and report their own errors.  This limit is for everything
        else: a connection that does not close, or an event loop that is late.

        Raises:
            ClusterError: TIMED_OUT.
        """
        try:
            async with asyncio.timeout(self.left_s + GRACE_S) as self._limit:
                return await work
        except TimeoutError:
            if self._limit is None or not self._limit.expired():
                raise
            text = f"not done within {self.deadline_s:g} s; the command may still take effect"
            raise ClusterError(
                ApiError.TIMED_OUT, text, "check whether the change took effect before you retry", retriable=True
            ) from None

    @property
    def addresses(self) -> list[str]:
        """Control addresses to call.

        Raises:
            click.UsageError: an address is malformed.
        """
        given = DEFAULT_CONTROLLERS if self.controllers is None else self.controllers
        if not given.strip():
            raise click.UsageError(f"--controllers is empty: name a node, or leave it out for {DEFAULT_CONTROLLERS}")
        try:
            return [str(address) for address in parse_list(parse_target, [given])]
        except ValueError as error:
            raise click.UsageError(f"--controllers: {error}") from None

    def client(self) -> ControllerClient:
        """Return a client of the control plane; use it in `async with`, which closes it.

        Raises:
            click.UsageError: --controllers is malformed.
        """
        from quorumlog.client.controller import (
            ControllerClient,
        )  # imports gRPC, which takes 0.2 s; `--help` does not need it

        return ControllerClient(
            self.addresses, refused_s=REFUSED_S if self.timeout_s is None else None, on_wait=self._report_wait
        )

    def _report_wait(self, why: str) -> None:
        """Report to a person at a terminal that the command waits for a node."""
        if sys.stderr.isatty() and not self.output.is_json:
            self.output.message(f"waiting: {why}")


def _global_options() -> list[click.Option]:
    def keep(name: str) -> Callable[[click.Context, click.Parameter, Any], Any]:
        def callback(context: click.Context, _parameter: click.Parameter, value: Any) -> Any:
            if value is not None and value is not False:
                setattr(context.ensure_object(Context), name, value)
            return value

        return callback

    return [
        click.Option(
            ["--controllers"], metavar="HOST:PORT,...", expose_value=False, callback=keep("controllers"),
            help=f"Control addresses of one or more nodes (default {DEFAULT_CONTROLLERS}).",
        ),
        click.Option(
            ["-o", "--output"], type=click.Choice(["table", "json"]), expose_value=False,
            callback=keep("output_form"), help="Format of the output (default table).",
        ),
        click.Option(
            ["--timeout"], type=FloatRange(0.001, TIMEOUT_MAX_S), metavar="SECONDS", expose_value=False,
            callback=keep("timeout_s"),
            help=f"Give up after this long (default {DEFAULT_TIMEOUT_S:g}; {REFUSED_S:g} if nothing listens at any "
            "of the control addresses).",
        ),
        click.Option(
            ["--debug"], is_flag=True, expose_value=False, callback=keep("debug"),
            help="Show the traceback of an error.",
        ),
    ]  # fmt: skip


class Command(click.Command):
    """A command that also accepts the global options after its own name."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.params.extend(_global_options())


class Group(click.Group):
    """A group of commands.  Of the groups, only `Root` accepts the global options."""

    command_class = Command
    group_class = type

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands with the complete first sentence of their help."""
        commands = [(name, command) for name in self.list_commands(ctx) if (command := self.get_command(ctx, name))]
        with formatter.section("Commands"):
            formatter.write_dl([(name, command.get_short_help_str(SENTENCE_MAX)) for name, command in commands])

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Show example command lines."""
        with formatter.section("Examples"):
            for line in EXAMPLES[ctx.command_path]:
                formatter.write(f"{'':>{formatter.current_indent}}{line}\n")


class Root(Group):
    """`kctl` itself: it accepts the global options, and reads `KCTL_CONTROLLERS`."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        options = _global_options()
        options[0].envvar = "KCTL_CONTROLLERS"
        self.params.extend(options)


def with_loop(
    function: Callable[Concatenate[Context, P], Coroutine[Any, Any, R]],
) -> Callable[P, R]:
    """Run an async command on its own event loop, within the time that the user allows."""

    @functools.wraps(function)
    def command(*args: P.args, **kwargs: P.kwargs) -> R:
        context = click.get_current_context().ensure_object(Context)
        try:
            return asyncio.run(_without_waiting_for_threads(context.within_limit(function(context, *args, **kwargs))))
        except BrokenPipeError as error:  # from a connection; click would treat it as closed output
            raise ClusterError(ApiError.IO_ERROR, f"a connection broke: {error}", "retry", retriable=True) from error
        except KeyboardInterrupt:  # click would print an empty line, also into files
            raise click.Abort from None

    return cast(Callable[P, R], command)


class _Threads(ThreadPoolExecutor):
    """Threads that do not delay the end of the loop: one may hang in a name resolver or on a disk (see `main`)."""

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        super().shutdown(wait=False, cancel_futures=cancel_futures)


async def _without_waiting_for_threads(work: Awaitable[R]) -> R:
    asyncio.get_running_loop().set_default_executor(_Threads(thread_name_prefix="kctl"))
    return await work


async def wait_until(
    condition: Callable[[], Awaitable[bool]], timeout_s: float, what: str, interval_s: float = 0.2
) -> None:
    """Poll until `condition` is true, because servers do not notify kctl.

    what: the condition, as a clause that follows "before", such as "the topic had a leader".

    Raises:
        ClusterError: TIMED_OUT, with `what` in its message; or an error that `condition` raises.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout_s
    while not await condition():
        left = deadline - loop.time()
        if left <= 0:
            raise ClusterError(
                ApiError.TIMED_OUT,
                f"timed out after {timeout_s:g} s before {what}",
                "check again later",
                retriable=True,
            )
        await asyncio.sleep(min(interval_s, left))


WAIT_HELP = "Return once every unfenced broker has applied the change, also if an earlier command made it."

so_on_return = click.option(
    "--wait", is_flag=True, expose_value=False, help="Accepted for consistency: the command always waits."
)
"""The `--wait` option of commands whose change is already complete when it is acknowledged.  With it, scripts can pass
`--wait` to every command that changes something."""


async def wait_until_applied(context: Context, client: ControllerClient, offset: int) -> None:
    """Wait until every unfenced broker has applied the metadata below `offset`, at most for the command's time.

    Call this even if the request changed nothing: an earlier command may have made the change, and then timed out.

    Raises:
        ClusterError: TIMED_OUT; or the error of a request.
    """
    from quorumlog.wire import rpcs
    from quorumlog.wire.v1 import controller_pb2

    async def is_so() -> bool:
        reply = await client.call(rpcs.DESCRIBE_BROKERS, controller_pb2.DescribeBrokersRequest(), context.left_s)
        return all(broker.metadata_offset >= offset for broker in reply.brokers if broker.state != "fenced")

    await wait_until(is_so, context.left_s, "every unfenced broker had applied the change")
