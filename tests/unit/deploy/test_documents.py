"""The commands in README and docs exist and parse."""

from __future__ import annotations

import re
import shlex
from argparse import ArgumentParser
from collections.abc import Callable
from pathlib import Path

import click
import pytest

import quorumlog
from broker.cli import make_parser as broker_parser
from quorumlog.kctl.main import cli
from quorumlog.runtime import config as configuration
from quorumlog_server.quorum_node import make_parser as node_parser

ROOT = Path(__file__).resolve().parents[3]
README = (ROOT / "README.md").read_text()
DOCS = "".join(path.read_text() for path in sorted(ROOT.glob("docs/*.md")))
BLOCK = re.compile(r"^ *```(\w*)\n(.*?)^ *```", re.MULTILINE | re.DOTALL)


def commands(program: str) -> list[list[str]]:
    """Return the commands of blocks that start with `program` (after `$ ` in docs) and have no placeholders."""
    found = []
    for document, prompt in ((README, ""), (DOCS, "$ ")):
        text = "".join(body for language, body in BLOCK.findall(document) if not language).replace("\\\n", " ")
        lines = [line.strip().partition(" > ")[0] for line in text.splitlines()]
        found += [line.removeprefix(prompt) for line in lines if line.startswith(f"{prompt}{program} ")]
    return [shlex.split(line, comments=True)[1:] for line in found if not re.search(r"[|…[]|\b[A-Z]{2,}\b", line)]


@pytest.mark.parametrize(("program", "parser"), [("broker", broker_parser), ("quorum-node", node_parser)])
def test_server_commands_in_the_documentation_parse_and_load(
    program: str, parser: Callable[[], ArgumentParser]
) -> None:
    lines = commands(program)
    assert lines
    for line in lines:
        config = configuration.load(program, parser().parse_args(line), {"HOME": "/h"})
        assert config.node_id > 0


def test_kctl_commands_in_the_documentation_parse() -> None:
    lines = commands("kctl")
    assert len(lines) >= 40
    for line in lines:
        command: click.Command = cli
        context = click.Context(cli)
        rest = line
        while isinstance(command, click.Group):
            _, found, rest = command.resolve_command(context, rest)
            assert found is not None, line
            command = found
        command.make_context("kctl", list(rest), parent=context)


def test_linked_files_and_sections_exist() -> None:
    documents = [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")]
    assert len(documents) > 8
    for document in documents:
        for target, section in re.findall(r"\]\(([^)#:]*)(#[^):]+)?\)", document.read_text()):
            linked = document.parent / target if target else document
            assert linked.exists(), f"{document} links to {target}"
            if section:
                assert section.removeprefix("#") in sections(linked.read_text()), (
                    f"{document} links to {target}{section}"
                )


def sections(text: str) -> set[str]:
    """Return the anchors of all headings in a text."""
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_the_package_and_pyproject_have_the_same_version() -> None:
    assert f'version = "{quorumlog.__version__}"' in (ROOT / "pyproject.toml").read_text()


def test_locked_requirements_have_hashes_and_no_index() -> None:
    for lock in ("requirements.lock", "proto/requirements.lock"):
        text = (ROOT / lock).read_text()
        assert "://" not in text
        assert "index" not in text
        pins = re.findall(r"^[a-z0-9.-]+==\S+.*\\\n    --hash=sha256:[0-9a-f]{64}", text, re.MULTILINE)
        assert len(pins) == len(re.findall(r"^\S.*$", text, re.MULTILINE)) > 3
