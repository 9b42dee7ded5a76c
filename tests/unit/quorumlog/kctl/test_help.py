"""The help of kctl: complete at 80 columns, with examples that parse."""

from __future__ import annotations

import shlex

import click
import pytest

from quorumlog.kctl.examples import EXAMPLES
from quorumlog.kctl.main import cli, run


def groups(command: click.Command = cli, path: str = "kctl") -> list[str]:
    if not isinstance(command, click.Group):
        return []
    return [path, *(each for name in command.commands for each in groups(command.commands[name], f"{path} {name}"))]


def shown(path: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("COLUMNS", "80")
    assert run([*path.split()[1:], "--help"]) == 0
    return capsys.readouterr().out


@pytest.mark.parametrize("path", groups())
def test_the_help_of_a_command_group_is_complete_at_80_columns(
    path: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    text = shown(path, capsys, monkeypatch)
    assert max(map(len, text.splitlines())) <= 80
    assert text.isascii()
    commands = text.split("Commands:")[1].split("Examples:")[0]
    assert "..." not in commands
    command: click.Command = cli
    for name in path.split()[1:]:
        assert isinstance(command, click.Group)
        command = command.commands[name]
    assert isinstance(command, click.Group)
    for name, each in command.commands.items():
        first = (each.help or "").replace("\n", " ").split(".  ")[0].split(". ")[0].split("  ")[0].rstrip(".")
        assert name in commands
        assert first in " ".join(commands.split()), f"{path} {name}: the whole first sentence is shown"


@pytest.mark.parametrize("path", groups())
def test_the_help_of_a_command_group_shows_examples_that_parse(
    path: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    text = shown(path, capsys, monkeypatch)
    for line in EXAMPLES[path]:
        assert f"  {line}\n" in text
        assert line.startswith(path)
        words = shlex.split(line.split(" > ")[0])[1:]
        parse(cli, words, click.Context(cli, info_name="kctl"))


def parse(command: click.Command, words: list[str], parent: click.Context) -> None:
    """Parse the words of a command line.  Raises click.UsageError if no command accepts them."""
    context = click.Context(command, parent=parent)
    rest = command.parse_args(context, [word if word not in ("lines.txt",) else "/dev/null" for word in words])
    if isinstance(command, click.Group):
        _, found, rest = command.resolve_command(context, [*context._protected_args, *context.args])
        assert found is not None
        parse(found, rest, context)


def test_the_help_of_reassign_status_describes_brokers_as_a_filter(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    text = " ".join(shown("kctl reassign status", capsys, monkeypatch).split())
    assert "Only partitions that add or remove a replica on one of these brokers." in text
