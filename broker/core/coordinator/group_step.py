"""One operation of a coordinator of groups in progress: its records and answers, and the limits of groups."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from broker.core.coordinator.consumer.requests import ConsumerLimits
from broker.core.coordinator.group_requests import GroupConfigs, GroupLimits
from broker.core.coordinator.machine import Record
from broker.core.coordinator.share.requests import ShareGroupLimits
from broker.core.coordinator.step_builder import StepBuilder
from broker.core.transactions import Marker, ProducerKey


class GroupStep(StepBuilder):
    """Collects the results of one operation on groups.

    limits: the limits of all groups.  configs: returns the limits of single groups.
    parked: the calls that wait, each with its group and member id.  `park` and `unpark` update this map.
    """

    __slots__ = ("_configs", "limits", "parked")

    def __init__(
        self,
        now_ms: int,
        wall_ms: int,
        apply: Callable[[Record], None],
        limits: GroupLimits,
        configs: GroupConfigs,
        parked: dict[int, tuple[str, str]],
    ) -> None:
        super().__init__(now_ms, wall_ms, apply)
        self.limits = limits
        self.parked = parked
        self._configs = configs

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
        producer: ProducerKey | None = None,
        marker: Marker | None = None,
    ) -> None:
        """Append a record, and apply it.  producer, marker: see `Record`."""
        record = Record(key, value, producer, marker)
        self._apply(record)
        self._records.append(record)
        self.size_bytes += len(key) + len(value or b"")

    def park(self, call: int, group: str, member_id: str) -> None:
        """Let a call of a member wait."""
        self.parked[call] = (group, member_id)

    def unpark(self, call: int, response: Any) -> None:
        """Answer a call that waits."""
        del self.parked[call]
        self.answer(call, response)

    @property
    def is_full(self) -> bool:
        """Return whether a step that makes many small changes must not begin another change.

        Half a batch stays free, so that the change that was begun last still fits.
        """
        return 2 * self.size_bytes >= self.limits.batch_max_bytes


def others(count: int) -> str:
    """Return "1 other", "2 others", and so on, for the text of a note."""
    return "1 other" if count == 1 else f"{count} others"
