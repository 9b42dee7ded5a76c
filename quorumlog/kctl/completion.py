"""kctl completion: prints the script with which a shell completes kctl's commands and options."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from quorumlog.kctl.context import Command


@click.command("completion", cls=Command)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def command(context: click.Context, shell: str) -> None:
    """Print a completion script for a shell."""
    made = get_completion_class(shell)
    assert made is not None, shell
    click.echo(made(context.find_root().command, {}, "kctl", "_KCTL_COMPLETE").source())
