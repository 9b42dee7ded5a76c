"""One operation of a machine in progress: its time, its records, its answers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from broker.core.coordinator.machine import Answer, Record, Step


class StepBuilder:
    """Collects the records, answers, notes and effects of one operation.

    now_ms: never goes back; for deadlines.  wall_ms: since the epoch; for times that records store.
    size_bytes: bytes of the records.
    apply: changes the state according to a record.  Subclasses call it for each record that they append.
    """

    __slots__ = ("_answers", "_apply", "_effects", "_notes", "_records", "now_ms", "size_bytes", "wall_ms")

    def __init__(self, now_ms: int, wall_ms: int, apply: Callable[[Record], None]) -> None:
        self.now_ms = now_ms
        self.wall_ms = wall_ms
        self.size_bytes = 0
        self._apply = apply
        self._records: list[Record] = []
        self._answers: list[Answer] = []
        self._notes: list[str] = []
        self._effects: list[Any] = []

    def answer(self, call: int, response: Any) -> None:
        self._answers.append(Answer(call, response))

    def note(self, line: str) -> None:
        """Add a change of state for the log of the process, as one line."""
        self._notes.append(line)

    def order(self, effect: Any) -> None:
        """Order an effect, which the shell's owner performs once the records are committed."""
        self._effects.append(effect)

    def build(self) -> Step:
        """Return the step with everything that was collected."""
        return Step(tuple(self._records), tuple(self._answers), tuple(self._notes), tuple(self._effects))
