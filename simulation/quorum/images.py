"""The replay of the committed log, with which the snapshots and images of all nodes are compared (I13, I16).

The replay of the nodes is not trusted.  Therefore this module itself decodes the batches that the watch reports as
committed.  It replays them when the first comparison needs them, and keeps the image after each batch.  This costs
little, because each image shares almost everything with the previous one.
"""

from __future__ import annotations

from collections import deque

from metadata.codec import decode
from metadata.image import ClusterImage
from metadata.snapshot import chunks
from quorum.core.types import Batch, LogEnd, TargetVoters, Voters, VoterSet
from quorum.snapshot_file import SnapshotParser

_State = tuple[ClusterImage, Voters | None, VoterSet | None]
"""The image, the voters, the target."""


class CommittedImages:
    """The images of the committed log.  Pass each batch to `commit`, in order."""

    def __init__(self) -> None:
        self._waiting: deque[Batch] = deque()
        self._last: _State = (ClusterImage(), None, None)
        self._by_end: dict[int, _State] = {0: self._last}

    def commit(self, batch: Batch) -> None:
        self._waiting.append(batch)

    def _at(self, end: int) -> _State | None:
        while self._waiting and self._waiting[0].end_offset <= end:
            batch = self._waiting.popleft()
            image, voters, target = self._last
            if batch.control is None:
                image = image.apply(batch.base_offset, decode(batch.payload, batch.base_offset), batch.epoch)
            else:
                image = image.advance(batch.end_offset, batch.epoch)
            if isinstance(batch.control, Voters):
                voters = batch.control
            elif isinstance(batch.control, TargetVoters):
                target = batch.control.target
            self._last = self._by_end[batch.end_offset] = (image, voters, target)
        return self._by_end.get(end)

    def digest(self, end: int) -> str | None:
        """Return the digest of the image at `end`, or None if no committed batch ends there."""
        found = self._at(end)
        return None if found is None else found[0].digest()

    def snapshot_problem(self, end: LogEnd, data: bytes) -> str | None:
        """Return how this snapshot differs from the replay of the committed log up to `end`, or None."""
        found = self._at(end.offset)
        if found is None:
            return "no committed batch ends there"
        image, voters, target = found
        parser = SnapshotParser()
        held = list(parser.feed(data))
        base = parser.finish().base
        if base.end != end:
            return f"its header has the end {base.end}"
        if (base.voters, base.target) != (voters, target):
            return f"it holds the voters {base.voters} and target {base.target}, the log {voters} and {target}"
        if held != [chunk for chunk in chunks(image) if chunk]:
            return "its image differs from the replay of the log"
        return None
