"""ARCHITECTURE.md agrees with the code: its files, names, imports, records and dependencies."""

from __future__ import annotations

import ast
import re
import tomllib
from functools import cache
from pathlib import Path
from typing import get_args

import pytest

from metadata.records import Record

ROOT = Path(__file__).resolve().parents[3]
PAGE = (ROOT / "ARCHITECTURE.md").read_text()
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
SERVERS = ("quorum", "metadata", "broker", "quorumlog_server")
PACKAGES = (*SERVERS, "quorumlog", "pyspark_quorumlog")
SHARED = {"quorumlog", "quorumlog/wire", "quorumlog/runtime"}


def section(title: str) -> str:
    """Return the text below a heading, up to the next heading of any level."""
    found = re.search(rf"^#+ {title}\n(.*?)(?=^#+ |\Z)", PAGE, re.MULTILINE | re.DOTALL)
    assert found, title
    return found[1]


def rows(text: str) -> list[list[str]]:
    """Return the cells of a table, without its head."""
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in re.findall(r"^\|.*\|$", text, re.M)][2:]


def quoted(text: str) -> list[str]:
    return re.findall(r"`([^`\n]+)`", text)


ROOMS = {quoted(room)[0]: (kind, set(quoted(imports))) for room, kind, imports in rows(section("The rooms"))}


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


@cache
def defined(path: Path) -> set[str]:
    """Return the names that a module defines: classes, functions, constants, and `Class.name` for names in a class."""
    names: set[str] = set()

    def visit(body: list[ast.stmt], prefix: str) -> None:
        for node in body:
            match node:
                case ast.ClassDef():
                    names.add(prefix + node.name)
                    visit(node.body, f"{node.name}.")
                case ast.FunctionDef() | ast.AsyncFunctionDef():
                    names.add(prefix + node.name)
                case ast.AnnAssign(target=ast.Name(id=name)):
                    names.add(prefix + name)
                case ast.Assign():
                    names.update(prefix + target.id for target in node.targets if isinstance(target, ast.Name))

    visit(parsed(path).body, "")
    return names


def modules(*packages: str) -> list[Path]:
    return [path for package in packages for path in sorted((ROOT / package).rglob("*.py"))]


def room_of(module: str) -> str | None:
    """Return the room with the longest name that holds this dotted name."""
    path = module.replace(".", "/")
    return max((room for room in ROOMS if f"{path}/".startswith(f"{room}/")), key=len, default=None)


def imported(path: Path) -> set[str]:
    """Return the dotted names that a module imports when it runs."""
    found: set[str] = set()
    rest: list[ast.AST] = [parsed(path)]
    while rest:
        match node := rest.pop():
            case ast.If(test=ast.Name(id="TYPE_CHECKING")):
                rest += node.orelse
            case ast.Import():
                found.update(name.name for name in node.names)
            case ast.ImportFrom(module=str(module), level=0):
                found.update(f"{module}.{name.name}" for name in node.names)
            case _:
                rest += ast.iter_child_nodes(node)
    return found


def test_the_rooms_are_exactly_the_packages_with_code() -> None:
    found = {path.parent.relative_to(ROOT) for path in modules(*PACKAGES)}
    folders = {folder.as_posix() for folder in found if len(folder.parts) <= 2}
    assert set(ROOMS) == folders


def test_a_room_imports_the_rooms_in_its_row() -> None:
    found: dict[str, set[str]] = {room: set() for room in ROOMS}
    for path in modules(*PACKAGES):
        own = room_of(path.relative_to(ROOT).with_suffix("").as_posix().removesuffix("/__init__"))
        assert own is not None, path
        found[own].update(room for name in imported(path) if (room := room_of(name)) not in (None, own))
    for room, (contents, imports) in ROOMS.items():
        permitted = set() if contents.startswith("pure:") else SHARED
        assert found[room] - permitted == imports, room


def test_files_named_in_the_page_exist() -> None:
    paths = [name for name in quoted(PAGE) if re.fullmatch(r"[\w./-]+", name) and "/" in name]
    assert len(paths) > 80
    for path in paths:
        assert (ROOT / path).exists(), path


def test_classes_and_functions_named_in_the_page_exist() -> None:
    everything = set().union(*(defined(path) for path in modules(*PACKAGES)))
    names = {name for name in quoted(PAGE) if re.fullmatch(r"[A-Z]\w*(\.\w+)?|\w*_\w+", name)} - set(PACKAGES)
    assert len(names) > 50
    everything |= {name.rpartition(".")[2] for name in everything}
    assert names <= everything, names - everything


@pytest.mark.parametrize("walk", ["A Produce", "A Fetch", "A vote", "The creation of a topic"])
def test_each_step_of_a_walk_names_definitions_of_its_file(walk: str) -> None:
    steps = re.findall(r"^- `([\w/.]+\.py)`: (.*?)(?=^- |^$|\Z)", section(walk), re.MULTILINE | re.DOTALL)
    assert len(steps) >= 4
    assert section(walk).count("- Reply: ") == 1
    for path, text in steps:
        names = [name for name in quoted(text) if "/" not in name]
        own = {name for name in names if re.fullmatch(r"[A-Z]\w*\.\w+", name)} | set(names[:1])
        assert own <= defined(ROOT / path), f"{path} does not define {own - defined(ROOT / path)}"


def test_every_record_appears_in_the_files_that_a_new_record_changes() -> None:
    files = re.findall(r"^- `([\w/.]+)`$", section("Where a change goes"), re.MULTILINE)
    assert len(files) > 5
    for path in files:
        text = (ROOT / path).read_text()
        for record in get_args(Record):
            snake = re.sub(r"(?<!^)(?=[A-Z])", "_", record.__name__).lower()
            assert re.search(rf"\b({record.__name__}|{snake})\b", text), f"{path} does not mention {record.__name__}"


def test_every_dependency_has_a_reason() -> None:
    extras = PROJECT["project"]["optional-dependencies"]
    wanted = PROJECT["project"]["dependencies"] + [name for extra in extras.values() for name in extra]
    names = {re.findall(r"^[\w.-]+", name)[0] for name in wanted}
    text = section("Dependencies")
    reasons = {quoted(name)[0] for name, reason in rows(text) if reason}
    reasons.update(name for line in re.findall(r"^- .*?(?=^- |\Z)", text, re.M | re.S) for name in quoted(line))
    assert reasons - set(extras) == names
