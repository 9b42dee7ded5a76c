"""Decides which leaders a share coordinator reminds of dead letters (KIP-1191) that nobody writes.

The leader of a partition writes the dead letters of the share partitions whose states it has loaded.  It loads a state
for the first member that fetches.  So after a change of leaders, letters would wait for a member.  Only the share
coordinator knows which states have records that wait for their letters.  So it reminds the leader, which then loads
exactly these states.

A leader that has loaded a state changes it: it stores its leader epoch, and soon afterwards it stores which letters are
written.  So if a state stays unchanged between two searches, the leader has not loaded the state, or cannot write the
letters.  A leader that has loaded the state ignores the reminder.  Later searches repeat a reminder that was lost.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from broker.core.coordinator.share.states import ShareKey, ShareState

NO_LEADER: Final = -1


class LetterReminders:
    """Remembers the share partitions that lacked letters at the last search, and finds those that have not changed.

    batch_max: maximum number of share partitions of which one search reminds one leader.  The others come first in the
        next search.
    """

    def __init__(self, batch_max: int) -> None:
        assert batch_max >= 1, batch_max
        self._batch_max: Final = batch_max
        self._seen: dict[ShareKey, int] = {}
        """The snapshot epochs of the states.  Share partitions of which a leader was reminded come last."""

    def look(
        self, archiving: Mapping[ShareKey, ShareState], leader_of: Callable[[ShareKey], int]
    ) -> dict[int, list[ShareKey]]:
        """Search once.  Return the share partitions of which to remind each leader, by the leader's broker id.

        archiving: the states with missing letters.  leader_of: returns a broker, or NO_LEADER.
        """
        due: dict[int, list[ShareKey]] = {}
        kept: dict[ShareKey, int] = {}
        reminded: dict[ShareKey, int] = {}
        for key, epoch in self._seen.items():
            state = archiving.get(key)
            if state is None:
                continue
            leader = leader_of(key) if state.snapshot_epoch == epoch else NO_LEADER
            if leader == NO_LEADER or len(due.get(leader, ())) >= self._batch_max:
                kept[key] = state.snapshot_epoch
            else:
                due.setdefault(leader, []).append(key)
                reminded[key] = epoch
        found = {key: state.snapshot_epoch for key, state in archiving.items() if key not in self._seen}
        self._seen = {**kept, **found, **reminded}
        return due
