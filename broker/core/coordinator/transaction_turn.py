"""One operation of the coordinator of transactions in progress: its time, records, effects and answers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from broker.core.coordinator.machine import Answer, Record, Step
from broker.core.coordinator.scope_records import ScopeValue, write_scope, write_scope_key
from broker.core.coordinator.transaction_records import TransactionValue, write_transaction, write_transaction_key


class TransactionTurn:
    """Collects the results of one operation.  apply: changes the state according to a record that is appended."""

    def __init__(self, now_ms: int, wall_ms: int, apply: Callable[[Record], None]) -> None:
        self.now_ms = now_ms
        self.wall_ms = wall_ms
        self.size_bytes = 0
        self._apply = apply
        self._records: list[Record] = []
        self._answers: list[Answer] = []
        self._notes: list[str] = []
        self._effects: list[Any] = []

    def append(self, name: str, value: TransactionValue | None) -> None:
        """Append the state of a transactional id."""
        self._append(Record(write_transaction_key(name), None if value is None else write_transaction(value)))

    def append_scope(self, name: str, value: ScopeValue | None) -> None:
        """Append the state of a scope."""
        self._append(Record(write_scope_key(name), None if value is None else write_scope(value)))

    def _append(self, record: Record) -> None:
        self._apply(record)
        self._records.append(record)
        self.size_bytes += len(record.key) + len(record.value or b"")

    def answer(self, call: int, response: Any) -> None:
        self._answers.append(Answer(call, response))

    def note(self, line: str) -> None:
        self._notes.append(line)

    def order(self, effect: Any) -> None:
        self._effects.append(effect)

    def step(self) -> Step:
        return Step(tuple(self._records), tuple(self._answers), tuple(self._notes), tuple(self._effects))
