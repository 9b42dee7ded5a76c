"""kctl: the operator's tool.  Exit codes, JSON shapes and options are a contract with scripts."""

from __future__ import annotations

import os
import sys
import threading
import time
import traceback
from collections.abc import Sequence

import click

import quorumlog
from quorumlog.errors import ClusterError
from quorumlog.kctl import (
    STARTED_S,
    brokers,
    cluster,
    completion,
    configs,
    data,
    dev,
    doctor,
    elections,
    exits,
    explain,
    features,
    group_explain,
    group_lag,
    group_reset,
    groups,
    metadata,
    partition_counts,
    quorum,
    reassign,
    state_changes,
    streams,
    topics,
    transaction_abort,
    transactions,
    voters,
)
from quorumlog.kctl.context import Context, Root
from quorumlog.kctl.losses import DeclinedError
from quorumlog.kctl.output import Output, OutputClosedError, dumps
from quorumlog.wire.errors import ApiError, ExitCode
from quorumlog.words import listed


@click.group(
    cls=Root,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Operate a quorumlog cluster.\n\nName any nodes of the cluster with --controllers or KCTL_CONTROLLERS.",
)
@click.version_option(quorumlog.__version__, prog_name="kctl")
def cli() -> None:
    """The root of all commands."""


cli.add_command(quorum.group)
cli.add_command(voters.add_voter)
cli.add_command(voters.remove_voter)
cli.add_command(voters.alter_quorum)
cli.add_command(voters.transfer_leader)
cli.add_command(voters.preferred)
cli.add_command(topics.group)
topics.group.add_command(partition_counts.add_partitions)
topics.group.add_command(partition_counts.remove_partitions)
cli.add_command(reassign.group)
cli.add_command(brokers.group)
cli.add_command(configs.group)
cli.add_command(groups.group)
groups.group.add_command(group_explain.explain)
groups.group.add_command(group_lag.lag)
groups.group.add_command(group_reset.reset_offsets)
cli.add_command(transactions.group)
transactions.group.add_command(transaction_abort.abort)
cli.add_command(elections.elect_leaders)
cli.add_command(features.group)
cli.add_command(cluster.group)
cli.add_command(metadata.group)
cli.add_command(doctor.command)
cli.add_command(explain.command)
cli.add_command(state_changes.command)
cli.add_command(dev.group)
cli.add_command(data.produce)
cli.add_command(data.consume)
cli.add_command(completion.command)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run kctl and end the process with its exit code."""
    streams.prepare()
    code = run(sys.argv[1:] if arguments is None else list(arguments), time.monotonic() - STARTED_S)
    if threading.active_count() > 1:  # else the interpreter would wait for a name resolver that hangs
        streams.flush()
        os._exit(code)
    sys.exit(code)


def run(arguments: list[str], spent_s: float = 0.0) -> int:
    """Run kctl, report any error on standard error, and return the exit code.

    spent_s: seconds of the command's time that have already passed.
    """
    context = Context(spent_s=spent_s)
    try:
        result = cli.main(args=arguments, prog_name="kctl", standalone_mode=False, obj=context)
        return result if isinstance(result, int) else ExitCode.DONE
    except click.exceptions.Exit as stop:
        return stop.exit_code
    except click.exceptions.NoArgsIsHelpError as error:  # before its parent class: its message is the whole help
        return _no_command(error, context, arguments)
    except click.ClickException as error:
        _usage(error, context, arguments)
        return ExitCode.USAGE
    except (KeyboardInterrupt, click.Abort):
        context.output.interrupted(context.interrupted)
        return ExitCode.INTERRUPTED
    except DeclinedError:
        context.output.declined()
        return ExitCode.REFUSED
    except OutputClosedError:
        streams.discard(sys.stdout)
        return ExitCode.DONE
    except SystemExit:  # click raises this when the reader of its help closes the pipe
        streams.discard(sys.stdout)
        return ExitCode.DONE
    except UnicodeEncodeError as error:
        if not isinstance(error.object, str) or not any(map(_is_not_text, arguments)):
            return _failed(error, context)
        _usage(click.UsageError("an argument is not valid UTF-8"), context, arguments)
        return ExitCode.USAGE
    except Exception as error:
        return _failed(error, context)


def _is_not_text(argument: str) -> bool:
    """Return whether an argument had bytes that are not UTF-8; Python keeps them as surrogates."""
    return any(0xDC80 <= ord(character) <= 0xDCFF for character in argument)


def _failed(error: Exception, context: Context) -> int:
    if isinstance(error, OSError):
        streams.discard_if_unwritable(sys.stdout)  # else the interpreter retries at exit, and fails
    if context.debug:
        traceback.print_exception(error)
    context.output.error(_to_doctor(error))
    return exits.exit_code(error)


def _to_doctor(error: Exception) -> Exception:
    """Return `error` with `kctl doctor` as its next step if the cause can only be found by asking several nodes."""
    if isinstance(error, ClusterError) and (
        error.code == ApiError.NOT_CONTROLLER
        or (error.code in (ApiError.UNAVAILABLE, ApiError.TIMED_OUT) and not error.next_step)
    ):
        return ClusterError(error.code, error.message, "kctl doctor", retriable=error.retriable)
    return error


def _no_command(error: click.exceptions.NoArgsIsHelpError, context: Context, arguments: list[str]) -> int:
    """Show the help of a group that was called without a command, or an error if JSON was requested."""
    assert error.ctx is not None, error
    if _wants_json(context, arguments):
        _usage(click.UsageError("Missing command.", error.ctx), context, arguments)
    else:
        context.output.message(error.ctx.get_help())
    return ExitCode.USAGE


def _wants_json(context: Context, arguments: list[str]) -> bool:
    """Return whether JSON was requested.  Parsing may have failed before `-o`, so read the arguments directly."""
    return context.output_form == "json" or any(
        (flag in ("-o", "--output") and value == "json") or flag in ("-ojson", "--output=json")
        for flag, value in zip(arguments, [*arguments[1:], ""], strict=False)  # no arguments: no pairs
    )


def _with_longer(error: click.NoSuchOption) -> click.NoSuchOption:
    """Suggest the options that continue an unknown one, such as `--to-latest` for `--to`, not merely similar ones."""
    names = [] if error.ctx is None else [name for each in error.ctx.command.params for name in each.opts]
    longer = [name for name in names if name.startswith(f"{error.option_name}-")]
    if not longer:
        return error
    return click.NoSuchOption(error.option_name, f"{error.message} Did you mean {listed(longer, 'or')}?", ctx=error.ctx)


def _usage(error: click.ClickException, context: Context, arguments: list[str]) -> None:
    if isinstance(error, click.NoSuchOption):
        error = _with_longer(error)
    message = " ".join(error.format_message().split())  # click lists choices on lines of their own
    usage = error.ctx.command_path if isinstance(error, click.UsageError) and error.ctx is not None else "kctl"
    next_step = f"{usage} --help"
    if _wants_json(context, arguments):
        streams.say(dumps({"error": "USAGE", "message": message, "next": next_step, "retriable": False}))
    else:
        Output("table").message(f"kctl: {message} (next: {next_step})")


if __name__ == "__main__":
    main()
