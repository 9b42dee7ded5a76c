"""I20, I21: the answers to clients, compared with the histories."""

from __future__ import annotations

from collections.abc import Sequence

from simulation.cluster.evidence import Evidence
from simulation.cluster.history import Committed, Mark
from simulation.cluster.metadata import Spot


class AnswerWatch:
    def __init__(self, evidence: Evidence) -> None:
        self._evidence = evidence
        self._latest: dict[tuple[str, Spot], int] = {}
        """By client and partition: the lowest offset that ListOffsets(latest) may return to the client."""

    def acknowledged(self, spot: Spot, offset: int, marks: Sequence[Mark]) -> None:
        """Check an acknowledgement of an acks=all producer."""
        self._evidence.check(
            self._is_committed(spot, offset, marks),
            lambda: f"I20: {marks} of {spot} are acknowledged at {offset}, which is not committed",
        )

    def acknowledged_somewhere(self, spot: Spot, marks: Sequence[Mark]) -> None:
        """Check an acknowledgement without an offset, of an acks=all producer."""
        named = self._evidence.named(spot)
        self._evidence.check(
            any(one.unclean_epoch >= 0 or all(mark in one.places for mark in marks) for one in named),
            lambda: f"I20: {marks} of {spot} are acknowledged without an offset, and are not committed",
        )

    def is_keyed(self, spot: Spot) -> bool:
        """Return whether the partition is compacted."""
        return any(history.is_keyed for history in self._evidence.named(spot))

    def consumed(self, client: str, spot: Spot, offset: int, marks: Sequence[Mark | None]) -> None:
        """Check the records that a consumer has received.  The first one is at `offset`."""
        self._evidence.check(
            bool(marks) and self._is_committed(spot, offset, marks),
            lambda: f"I21: a consumer sees {marks} of {spot} at {offset}, which is not committed",
        )
        self._raise_latest(client, spot, offset + len(marks))

    def consumed_batch(self, client: str, spot: Spot, batch: Committed) -> None:
        """Check a batch that a consumer has received, including its checksum, leader epoch and number of records."""
        self._evidence.check(
            any(history.has(batch) or history.unclean_epoch >= 0 for history in self._evidence.named(spot)),
            lambda: f"I21: {client} receives {batch} of {spot}, which is not committed",
        )
        self._raise_latest(client, spot, batch.end_offset)

    def skipped(self, client: str, spot: Spot, batch: Committed, now_s: float, wall_ms: int) -> None:
        """I32: check the records that are missing in a batch that a consumer has received."""
        if not self._may_lose(spot):
            problem = self._evidence.named(spot)[0].lost(batch, now_s, wall_ms)
            self._evidence.check(problem is None, lambda: f"I32: a consumer of {spot} receives {batch}: {problem}")

    def listed_latest(self, client: str, spot: Spot, offset: int) -> None:
        """Check an answer to ListOffsets(latest), which is never above the end of the committed records.

        A deposed leader that does not know its successor yet may report a lower offset than the successor.  Therefore
        each client is checked separately.  The offset that it gets must not decrease, since a client never returns to a
        leader of an older epoch.
        """
        if not self._may_lose(spot):
            least, end = self._latest.get((client, spot), 0), self._evidence.named(spot)[0].end
            self._evidence.check(
                offset >= least, lambda: f"I21: the latest offset of {spot} is {offset} for {client}, was {least}"
            )
            self._evidence.check(
                offset <= end, lambda: f"I21: the latest offset of {spot} is {offset} for {client}, committed is {end}"
            )
        self._raise_latest(client, spot, offset)

    def listed_earliest(self, client: str, spot: Spot, offset: int) -> None:
        """Check an answer to ListOffsets(earliest): only records that retention has deleted may be below it."""
        self._check_deleted(client, spot, offset)

    def refused(self, client: str, spot: Spot, offset: int) -> None:
        """Check the answer OFFSET_OUT_OF_RANGE to a fetch from an offset at which the client expected records."""
        self._evidence.seen["consumer out of range"] += 1
        self._check_deleted(client, spot, offset + 1)

    def forget(self, spot: Spot) -> None:
        """Permit lower latest offsets, because the partition has lost records in an unclean election."""
        self._latest = {asked: least for asked, least in self._latest.items() if asked[1] != spot}

    def has_lost(self, topic: str) -> bool:
        """Return whether any topic of this name has lost records in an unclean election."""
        return any(one.unclean_epoch >= 0 for one in self._evidence.histories.values() if one.spot.topic == topic)

    def _is_committed(self, spot: Spot, offset: int, marks: Sequence[Mark | None]) -> bool:
        """Return whether the records are committed.

        After an unclean election, every answer is accepted, because a deposed leader learns of its successor later.
        """
        return any(history.holds(offset, marks) or history.unclean_epoch >= 0 for history in self._evidence.named(spot))

    def _check_deleted(self, client: str, spot: Spot, below: int) -> None:
        """I21: check that retention has deleted all records below this offset."""
        if not self._may_lose(spot):
            start = self._evidence.named(spot)[0].start
            self._evidence.check(
                below <= start,
                lambda: f"I21: the answer to {client} says that {spot} begins at {below}, but it begins at {start}",
            )

    def _raise_latest(self, client: str, spot: Spot, offset: int) -> None:
        if not self._may_lose(spot):
            self._latest[client, spot] = max(self._latest.get((client, spot), 0), offset)

    def _may_lose(self, spot: Spot) -> bool:
        """Return whether several partitions had this name, or an unclean election lost records of the partition."""
        histories = self._evidence.named(spot)
        return len(histories) != 1 or histories[0].unclean_epoch >= 0
