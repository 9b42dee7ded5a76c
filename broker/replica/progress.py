"""The progress of this broker through the metadata log, and the times of receiving and applying each batch."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from uuid import UUID

from quorumlog.wire.v1 import node_pb2 as pb

BATCHES_KEPT = 10_000
"""Number of the latest batches of the metadata log whose times are remembered."""


@dataclass(slots=True)
class Progress:
    """The offsets of the received and applied metadata, and the failed directories, as heartbeats report them."""

    received_offset: int = 0
    applied_offset: int = 0
    pending_changes: int = 0
    directories_offline: list[UUID] = field(default_factory=list)


class AppliedBatches:
    """The times at which each batch was received and applied, in ms of the wall clock.

    kept_from: the times of batches that end at or below this offset may be missing from `since`.
    """

    def __init__(self, wall_ms: Callable[[], int]) -> None:
        self._wall_ms = wall_ms
        self._completed: deque[tuple[int, int, int]] = deque(maxlen=BATCHES_KEPT)  # end, received, completed
        self._waiting: deque[tuple[int, int]] = deque(maxlen=BATCHES_KEPT)  # end, received
        self.kept_from = 0

    def begin(self, end_offset: int) -> None:
        """Begin at this offset: earlier batches were received by an earlier process, or as a snapshot."""
        self.kept_from = max(self.kept_from, end_offset)

    def received(self, end_offset: int) -> None:
        """Note that the batch that ends at `end_offset` has been received."""
        if len(self._waiting) == BATCHES_KEPT:
            self.kept_from = max(self.kept_from, self._waiting[0][0])
        self._waiting.append((end_offset, self._wall_ms()))

    def completed(self, end_offset: int) -> None:
        """Note that everything below `end_offset` has been applied."""
        now = self._wall_ms()
        while self._waiting and self._waiting[0][0] <= end_offset:
            end, received = self._waiting.popleft()
            if len(self._completed) == BATCHES_KEPT:
                self.kept_from = max(self.kept_from, self._completed[0][0])
            self._completed.append((end, received, now))

    def since(self, from_offset: int) -> list[pb.AppliedBatch]:
        """Return the batches that end above `from_offset`, ascending, including those that are not applied yet."""
        done = [
            pb.AppliedBatch(end_offset=end, received_ms=received, completed_ms=completed)
            for end, received, completed in self._completed
            if end > from_offset
        ]
        return done + [
            pb.AppliedBatch(end_offset=end, received_ms=received)
            for end, received in self._waiting
            if end > from_offset
        ]
