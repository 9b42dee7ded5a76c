"""`quorumlog.wire.errors` agrees with Kafka and with docs/protocol.md, and the product names errors only through it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from kio.schema.errors import ErrorCode

from quorumlog.wire.errors import ApiError, KafkaCode

ROOT = Path(__file__).resolve().parents[4]
PRODUCT = ("broker", "metadata", "pyspark_quorumlog", "quorumlog", "quorumlog_server")
TABLE = ROOT / "quorumlog/wire/errors.py"
FINDINGS = ROOT / "quorumlog/doctor"
"""A finding has a code of its own, which may be the name of an error."""
PROTOCOL = (ROOT / "docs/protocol.md").read_text()
INSTEAD = {
    ApiError.OUTCOME_UNKNOWN: KafkaCode.REQUEST_TIMED_OUT,
    ApiError.OVERLOADED: KafkaCode.REQUEST_TIMED_OUT,
    ApiError.BROKER_IN_USE: KafkaCode.POLICY_VIOLATION,
}
"""The answers to Kafka clients in place of errors that Kafka does not have."""


def test_the_name_value_and_text_of_each_error_are_equal() -> None:
    for name, error in ApiError.__members__.items():
        assert (error.name, error.value, str(error), f"{error}") == (name,) * 4


def test_error_numbers_equal_those_of_kafka() -> None:
    for code in KafkaCode:
        assert ErrorCode[code.name.lower()].value == code.value
    for error in ApiError:
        known = ErrorCode.__members__.get(error.name.lower())
        assert error.kafka == (INSTEAD.get(error, -1) if known is None else known), error


def test_the_meaning_of_each_error_is_one_sentence() -> None:
    assert [error for error in ApiError if not error.sentence.endswith(".") or error.sentence.count(". ")] == []


def literals(source: str) -> Iterator[tuple[int, str]]:
    """Yield the line and the text of each string literal."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.lineno, node.value


def test_the_product_has_no_string_literal_that_is_the_name_of_an_error() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{line}: {text}"
        for folder in PRODUCT
        for path in sorted((ROOT / folder).rglob("*.py"))
        if path != TABLE and FINDINGS not in path.parents
        for line, text in literals(path.read_text())
        if text in ApiError.__members__
    ]
    assert found == []


def test_the_documentation_has_the_same_table_of_errors() -> None:
    """docs/protocol.md, section Errors: name, Kafka's number, retriable, exit code of kctl, and meaning."""
    section = PROTOCOL.split("\n## Errors\n", 1)[1].split("\n## ", 1)[0]
    assert [line for line in section.splitlines() if line.startswith("| `")] == [row(error) for error in ApiError]


def row(error: ApiError) -> str:
    if error.name in KafkaCode.__members__:
        number = str(int(error.kafka))
    else:
        number = "none" if error.kafka is KafkaCode.UNKNOWN_SERVER_ERROR else f"as {error.kafka.name}"
    exit_code = "4 or 5" if error.exit_code is None else str(int(error.exit_code))
    return f"| `{error}` | {number} | {'yes' if error.retriable else 'no'} | {exit_code} | {error.sentence} |"
