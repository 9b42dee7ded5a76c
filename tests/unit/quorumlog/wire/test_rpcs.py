"""`quorumlog.wire.rpcs` agrees with the `.proto` files and with docs/protocol.md, and nothing else names an RPC."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from quorumlog.wire import rpcs
from quorumlog.wire.rpcs import RPCS, Rpc, Service
from quorumlog.wire.v1 import controller_pb2, node_pb2, quorum_pb2

ROOT = Path(__file__).resolve().parents[4]
SOURCES = (
    *("broker", "metadata", "pyspark_quorumlog", "quorum", "quorumlog", "quorumlog_server"),
    *("bench", "examples", "simulation", "tests"),
)
TABLE = ROOT / "quorumlog/wire/rpcs.py"
GENERATED = ROOT / "quorumlog/wire/v1"
PROTOCOL = (ROOT / "docs/protocol.md").read_text()


def test_the_table_has_each_rpc_of_the_proto_files_with_its_types() -> None:
    declared = {
        (service.full_name, method.name, method.input_type, method.output_type)
        for file in (controller_pb2, node_pb2, quorum_pb2)
        for service in file.DESCRIPTOR.services_by_name.values()
        for method in service.methods
    }
    assert {(rpc.service.value, rpc.name, rpc.request.DESCRIPTOR, rpc.reply.DESCRIPTOR) for rpc in RPCS} == declared


def test_each_constant_is_named_after_its_rpc() -> None:
    for name, value in vars(rpcs).items():
        if isinstance(value, Rpc):
            assert name == re.sub(r"(?<!^)(?=[A-Z])", "_", value.name).upper()


def strings(source: str) -> Iterator[ast.Constant]:
    """Return all string literals of a file except those in `__all__`, which name classes."""
    tree = ast.parse(source)
    exported = {
        id(node)
        for statement in tree.body
        if isinstance(statement, ast.Assign) and ast.unparse(statement.targets[0]) == "__all__"
        for node in ast.walk(statement.value)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in exported:
            yield node


def test_no_string_literal_names_an_rpc_outside_the_table() -> None:
    names = {rpc.name for rpc in RPCS}
    quoted = re.compile(f"[\"'](?:{'|'.join(names)})[\"']")  # parsing every file would take seconds
    found = [
        f"{path.relative_to(ROOT)}:{literal.lineno}: {literal.value}"
        for folder in SOURCES
        for path in sorted((ROOT / folder).rglob("*.py"))
        if path != TABLE and GENERATED not in path.parents
        if quoted.search(source := path.read_text())
        for literal in strings(source)
        if literal.value in names
    ]
    assert found == []


def test_the_documentation_has_the_same_table_of_rpcs() -> None:
    """docs/protocol.md has a section for each service, and in it a row for each RPC: name, sender, reads, purpose."""
    for service in Service:
        section = PROTOCOL.split(f"\n## {service.name.capitalize()}\n", 1)[1].split("\n## ", 1)[0]
        lines = [line for line in section.splitlines() if line.startswith("| `")]
        rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
        expected = [
            [f"`{rpc.name}`", rpc.sender.value, "yes" if rpc.reads_only else "no"]
            for rpc in RPCS
            if rpc.service is service
        ]
        assert [row[:3] for row in rows] == expected
        assert all(row[3:] and row[3] for row in rows), "an RPC without a purpose"
