"""One operation of the coordinator of transactions in progress: its records, effects and answers."""

from __future__ import annotations

from broker.core.coordinator.machine import Record
from broker.core.coordinator.scope_records import ScopeValue, write_scope, write_scope_key
from broker.core.coordinator.step_builder import StepBuilder
from broker.core.coordinator.transaction_records import TransactionValue, write_transaction, write_transaction_key


class TransactionStep(StepBuilder):
    """Collects the results of one operation on transactional ids and scopes."""

    __slots__ = ()

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
