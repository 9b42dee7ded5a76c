"""The last rebalances of a group, as administrators see them.  Soft state."""

from __future__ import annotations

from collections import deque

from msgspec.structs import replace

from broker.core.coordinator.client import Client
from broker.core.coordinator.group_requests import LastJoin, MemberName, Rebalance, RebalanceReason

REBALANCES_KEPT_MAX = 20
"""Rebalances kept for each group.  Beyond this number, the oldest is dropped."""

CAUSE_MAX_CHARS = 500
"""Length of a cause, which contains names and reasons that clients choose.  A longer cause is shortened."""


class History:
    """The last rebalances of a group.  The newest one may be in progress."""

    __slots__ = ("_past", "_started_ms", "last_join")

    def __init__(self) -> None:
        self._past: deque[Rebalance] = deque(maxlen=REBALANCES_KEPT_MAX)
        self._started_ms = 0
        self.last_join: LastJoin | None = None

    def begin(
        self,
        cause: str,
        client: Client | None,
        generation: int,
        wall_ms: int,
        now_ms: int,
        reason: RebalanceReason = RebalanceReason.OTHER,
        member: MemberName | None = None,
    ) -> None:
        """Note that a rebalance began.  A rebalance that was in progress counts as interrupted.

        cause: a clause for people; at most `CAUSE_MAX_CHARS` of it are kept.  reason: the cause in one word.
        client, member: the client and the member that caused the rebalance, if any.
        generation: the generation that the rebalance will make.
        wall_ms: the wall clock; now_ms: the monotonic clock, for the duration.
        """
        self._close(now_ms, interrupted=True)
        self._past.append(
            Rebalance(wall_ms, None, generation, cause[:CAUSE_MAX_CHARS], client, 0, False, reason, member)
        )
        self._started_ms = now_ms

    def joined(self, generation: int, members: int) -> None:
        """Note the number of members in the new generation.  A rebalance must have begun."""
        self._past[-1] = replace(self._past[-1], generation=generation, members=members)

    def end(self, now_ms: int) -> None:
        """Note that the members have their assignments, or that no member is left."""
        self._close(now_ms, interrupted=False)

    def _close(self, now_ms: int, interrupted: bool) -> None:
        if self._past and self._past[-1].duration_ms is None:
            elapsed_ms = now_ms - self._started_ms
            self._past[-1] = replace(self._past[-1], duration_ms=elapsed_ms, interrupted=interrupted)

    def rebalances(self) -> tuple[Rebalance, ...]:
        """Return the rebalances, the oldest first."""
        return tuple(self._past)
