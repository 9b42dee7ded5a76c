"""Counts over the members of a consumer group, so that a join costs the same in a small group and in a large one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Final, TypeVar

from broker.core.coordinator.consumer.records import CurrentValue, MemberState, MemberValue

K = TypeVar("K")


class Census:
    """The number of members with each property.  A property without members has no entry.

    topics, regexes: members that name the topic or the regular expression.
    assignors: members that prefer the assignor; None: without a preference.
    id_sizes: members whose id has this many bytes.
    reconciled: by epoch, members that have reached the target of this epoch.
    classic: members that use the classic protocol.
    """

    __slots__ = ("assignors", "classic", "id_sizes", "reconciled", "regexes", "topics")

    def __init__(self) -> None:
        self.topics: Final[Counter[str]] = Counter()
        self.regexes: Final[Counter[str]] = Counter()
        self.assignors: Final[Counter[str | None]] = Counter()
        self.id_sizes: Final[Counter[int]] = Counter()
        self.reconciled: Final[Counter[int]] = Counter()
        self.classic = 0

    def describe(self, member_id: str, value: MemberValue | None, by: int) -> None:
        """Add (by = 1) or remove (by = -1) the description of a member."""
        if value is None:
            return
        _count(self.topics, value.topics, by)
        _count(self.regexes, (value.regex,) if value.regex else (), by)
        _count(self.assignors, (value.assignor,), by)
        _count(self.id_sizes, (len(member_id.encode()),), by)
        self.classic += by if value.classic is not None else 0

    def place(self, current: CurrentValue, by: int) -> None:
        """Add (by = 1) or remove (by = -1) the current assignment of a member."""
        if current.state is MemberState.STABLE:
            _count(self.reconciled, (current.epoch,), by)


def _count(counter: Counter[K], keys: Iterable[K], by: int) -> None:
    for key in keys:
        counter[key] += by
        if not counter[key]:
            del counter[key]
