"""One operation of a coordinator in progress: its time, its limits, its records and its answers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from broker.core.coordinator.consumer.requests import ConsumerLimits
from broker.core.coordinator.group_requests import GroupConfigs, GroupLimits
from broker.core.coordinator.machine import Answer, Record, Step
from broker.core.coordinator.share.requests import ShareGroupLimits
from broker.core.transactions import Marker


class Clocks(msgspec.Struct, frozen=True):
    """now_ms: never goes back; for deadlines.  wall_ms: since the epoch; for times that records store."""

    now_ms: int
    wall_ms: int


class Turn:
    """Collects the records, answers and notes of one operation.

    apply: changes the state according to a record.  `append` calls it for each record.
    limits: the limits of all groups.  configs: returns the limits of single groups.
    parked: the calls that wait, each with its group and member id.  `park` and `unpark` update this map.
    """

    __slots__ = (
        "_answers",
        "_apply",
        "_configs",
        "_effects",
        "_notes",
        "_records",
        "_size_bytes",
        "limits",
        "now_ms",
        "parked",
        "wall_ms",
    )

    def __init__(
        self,
        clocks: Clocks,
        limits: GroupLimits,
        apply: Callable[[Record], None],
        parked: dict[int, tuple[str, str]],
        configs: GroupConfigs,
    ) -> None:
        self.now_ms = clocks.now_ms
        self.wall_ms = clocks.wall_ms
        self.limits = limits
        self.parked = parked
        self._size_bytes = 0
        self._apply = apply
        self._configs = configs
        self._records: list[Record] = []
        self._answers: list[Answer] = []
        self._notes: list[str] = []
        self._effects: list[Any] = []

    def consumer_limits(self, group: str) -> ConsumerLimits:
        """Return the limits of a group of the newer protocol, which may have configs of its own."""
        return self._configs.consumer(group, self.limits.consumer)

    def share_limits(self, group: str) -> ShareGroupLimits:
        """Return the limits of a share group, which may have configs of its own."""
        return self._configs.share(group, self.limits.share)

    def append(
        self,
        key: bytes,
        value: bytes | None,
        producer: tuple[int, int] | None = None,
        marker: Marker | None = None,
    ) -> None:
        """Append a record, and apply it.  producer, marker: see `Record`."""
        record = Record(key, value, producer, marker)
        self._apply(record)
        self._records.append(record)
        self._size_bytes += len(key) + len(value or b"")

    def answer(self, call: int, response: Any) -> None:
        self._answers.append(Answer(call, response))

    def park(self, call: int, group: str, member_id: str) -> None:
        """Let a call of a member wait."""
        self.parked[call] = (group, member_id)

    def unpark(self, call: int, response: Any) -> None:
        """Answer a call that waits."""
        del self.parked[call]
        self.answer(call, response)

    def note(self, line: str) -> None:
        """Add a change of state for the log of the process, as one line."""
        self._notes.append(line)

    def order(self, effect: Any) -> None:
        """Order an effect, which the shell's owner performs once the records are committed."""
        self._effects.append(effect)

    @property
    def is_full(self) -> bool:
        """Return whether a step that makes many small changes must not begin another change.

        Half a batch stays free, so that the change that was begun last still fits.
        """
        return 2 * self._size_bytes >= self.limits.batch_max_bytes

    def step(self) -> Step:
        return Step(tuple(self._records), tuple(self._answers), tuple(self._notes), tuple(self._effects))


def others(count: int) -> str:
    """Return "1 other", "2 others", and so on, for the text of a note."""
    return "1 other" if count == 1 else f"{count} others"
