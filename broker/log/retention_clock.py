"""The wall time that retention uses, saved across restarts among the facts of each directory."""

from __future__ import annotations

from uuid import UUID

from quorumlog.runtime.clock import BELIEVED_AFTER_MS, CautiousClock
from quorumlog.runtime.disk import Disk
from quorumlog.runtime.logging import get_logger

CLOCK = "clock"
SAVED_AGAIN_MS = 3_600_000
"""A saved time is replaced when it is older than this."""

logger = get_logger("log")


class RetentionClock:
    """A clock for retention.  At start, `load` each directory; at each upkeep, `read` the time and `save` it."""

    def __init__(self) -> None:
        self._clock = CautiousClock()
        self._saved_ms: dict[UUID, int] = {}

    def load(self, disk: Disk) -> None:
        """Load the time that an earlier process saved in this directory."""
        if (saved := disk.facts.load(CLOCK).get(CLOCK, b"")).isdigit():
            self._saved_ms[disk.directory_id] = int(saved)
            self._clock = CautiousClock(max(self._saved_ms.values()))

    def read(self, wall_ms: int, now_ms: int) -> int:
        """Return `CautiousClock.read`; log when retention stops following the wall clock, and when it resumes."""
        was_held = self._clock.is_held
        believed_ms = self._clock.read(wall_ms, now_ms)
        if self._clock.is_held and not was_held:
            logger.warning(
                f"wall clock jumped ahead, retention does not follow it for {BELIEVED_AFTER_MS // 3_600_000} h",
                ahead_s=(wall_ms - believed_ms) // 1000,
                next="check the host's clock",
            )
        elif was_held and not self._clock.is_held:
            logger.warning("retention follows the wall clock again")
        return believed_ms

    async def save(self, disk: Disk, believed_ms: int) -> None:
        """Save `believed_ms` if the saved time is at least `SAVED_AGAIN_MS` older, or is later than `believed_ms`.

        Raises:
            DiskError: the directory failed.
        """
        saved_ms = self._saved_ms.get(disk.directory_id)
        if saved_ms is None or not 0 <= believed_ms - saved_ms < SAVED_AGAIN_MS:
            await disk.facts.commit({CLOCK: b"%d" % max(believed_ms, 0)})
            self._saved_ms[disk.directory_id] = believed_ms
