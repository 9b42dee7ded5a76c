"""tests/unit mirrors the source: the tests of a package are in the folder of the same path.  Modules log in one way."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

UNIT = Path(__file__).resolve().parent
ROOT = UNIT.parents[1]
PACKAGES = ("quorum", "metadata", "broker", "quorumlog_server", "quorumlog", "pyspark_quorumlog")
LIBRARIES = {"logging", "structlog"}
STANDARD_LOGGING = {
    "quorumlog/runtime/logging.py",
    "quorumlog/client/consumer_topics.py",
    "pyspark_quorumlog/warn.py",
}
"""Modules that import logging libraries: the one that configures them, and those that run in the user's process."""


def statements() -> Iterator[tuple[str, ast.AST]]:
    """Yield each statement and expression of the product, with the path of its module."""
    for package in PACKAGES:
        for file in sorted((ROOT / package).rglob("*.py")):
            for node in ast.walk(ast.parse(file.read_text())):
                yield str(file.relative_to(ROOT)), node


def test_each_folder_of_unit_tests_has_its_folder_in_the_source() -> None:
    folders = {file.parent.relative_to(UNIT) for file in UNIT.rglob("*.py")}
    assert {str(folder) for folder in folders if not (ROOT / folder).is_dir()} == set()


def test_modules_log_only_through_the_loggers_of_one_module() -> None:
    """The product logs only by the loggers of one module, under one name."""
    modules, names = set(), set()
    for module, node in statements():
        match node:
            case ast.Import(names=imported) if {one.name.partition(".")[0] for one in imported} & LIBRARIES:
                modules.add(module)
            case ast.ImportFrom(module=source, names=imported):
                assert "logger" not in [one.name for one in imported], f"{module} uses another module's logger"
                if str(source).partition(".")[0] in LIBRARIES:
                    modules.add(module)
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.Call(func=called)):
                if ast.unparse(called).rpartition(".")[2] in ("get_logger", "getLogger"):
                    names.add(name)
    assert modules == STANDARD_LOGGING
    assert names == {"logger", "root"}, "root: the standard module's, where logging is configured"
