"""The errors: `quorumlog.wire.errors`."""

from __future__ import annotations

from kio.schema.errors import ErrorCode

from quorumlog.wire.errors import ApiError, KafkaCode
from tests.reference.markdown import table


def errors() -> str:
    """Return the errors that messages, logs and JSON name."""
    rows = [
        (f"`{error}`", _number(error), _yes(error.retriable), _exit_code(error), error.sentence)
        for error in sorted(ApiError)
    ]
    return table(("error", "number", "retriable", "exit code", "meaning"), rows)


def further_codes() -> str:
    """Return the numbers that only answers of brokers contain."""
    rows = [
        (f"`{each.name}`", str(int(each)), _yes(ErrorCode[each.name.lower()].retriable))
        for each in sorted(KafkaCode, key=lambda code: code.name)
        if each.name not in ApiError.__members__
    ]
    return table(("error", "number", "Kafka's clients retry"), rows)


def _number(error: ApiError) -> str:
    if error.name in KafkaCode.__members__:
        return str(int(error.kafka))
    return "none" if error.kafka is KafkaCode.UNKNOWN_SERVER_ERROR else f"{int(error.kafka)} ({error.kafka.name})"


def _exit_code(error: ApiError) -> str:
    return "4 or 5" if error.exit_code is None else str(int(error.exit_code))


def _yes(value: bool) -> str:
    return "yes" if value else "no"
