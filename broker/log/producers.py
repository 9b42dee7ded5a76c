"""The producers of a log: their state in memory, and its snapshots beside the segments.

`<offset>.producers` is the state after all batches below `offset`; the batch headers after a snapshot give the rest.  A
damaged snapshot loses nothing: an older snapshot and more headers, or all headers, give the same state.
"""

from __future__ import annotations

import struct

from crc32c import crc32c

from broker.core.producer_state import CorruptSnapshotError, ProducerState
from broker.log.durability import Durability
from broker.log.marks import LogMarks
from broker.log.segment import segment_path
from broker.log.segments import LogSegments
from quorumlog.runtime.disk import Disk
from quorumlog.runtime.logging import get_logger

KEPT = 3
_CRC = struct.Struct(">I")

logger = get_logger("log")


class LogProducers:
    """The producers of one log.  Their state is loaded when it is first needed.

    producerless_offset: an offset of the log at which the state was empty; -1 if none is known.
    """

    def __init__(
        self,
        disk: Disk,
        folder: str,
        marks: LogMarks,
        segments: LogSegments,
        durability: Durability,
        producerless_offset: int,
    ) -> None:
        self.producerless_offset = producerless_offset
        self._disk = disk
        self._folder = folder
        self._marks = marks
        self._segments = segments
        self._durability = durability
        self._state: ProducerState | None = None

    @property
    def state(self) -> ProducerState:
        """The state at the end of the log.

        Raises: CorruptStoreError, DiskError.
        """
        if self._state is None:
            self._state = self._load()
        return self._state

    def _load(self) -> ProducerState:
        producers, offset = self._newest_snapshot()
        for segment in self._segments.all:
            if segment.end_offset <= offset:
                continue
            for _, header in segment.walk(segment.position_of(max(offset, segment.base_offset))):
                producers.apply(header, header.base_offset, header.end_offset)
        return producers

    def expire(self, now_ms: int, expiration_ms: int) -> None:
        """Drop the producers that have been silent for `expiration_ms`, if their last batch is committed."""
        if self._state is not None and self._state.expire(now_ms, expiration_ms, self._marks.high_watermark):
            self._marks.is_changed = True

    def truncated(self, end_offset: int) -> None:
        """Go back to the state at the new end of the log."""
        self._state = None
        if self.producerless_offset > end_offset:
            self.producerless_offset = -1 if self._marks.start_offset > 0 else 0
        self._remove_snapshots(above=end_offset)

    def restarted(self, offset: int) -> None:
        """Drop all producers; the log is empty and continues at `offset`."""
        self._remove_snapshots(above=-1)
        self._state, self.producerless_offset = None, offset

    def recovered(self) -> None:
        """Drop what a crash has left of a state above the end of the log."""
        self.producerless_offset = min(self.producerless_offset, self._marks.truncation_floor)
        self._remove_snapshots(above=self._marks.end_offset)

    # -- snapshots

    def write_snapshot(self) -> None:
        """Write the state at the end of the log, if the log has or had any producer."""
        end_offset, state = self._marks.end_offset, self.state
        if not len(state) and not state.has_expired:
            self.producerless_offset = end_offset
            return
        data = state.snapshot()
        path = segment_path(self._folder, end_offset, "producers")
        self._disk.remove(path)
        file = self._disk.open(path, create=True)
        file.append(_CRC.pack(crc32c(data)) + data)
        self._durability.add_last(file)

    def remove_old_snapshots(self) -> None:
        """Delete all snapshots except the last `KEPT`."""
        for offset in self._snapshot_offsets()[:-KEPT]:
            self._disk.remove(segment_path(self._folder, offset, "producers"))

    def _remove_snapshots(self, above: int) -> None:
        """Delete the snapshots of offsets above `above`, which the log no longer reaches."""
        for offset in self._snapshot_offsets():
            if offset > above:
                self._disk.remove(segment_path(self._folder, offset, "producers"))

    def _snapshot_offsets(self) -> list[int]:
        """Return the offsets of the snapshots, ascending."""
        names = (name.partition(".") for name in self._disk.list(self._folder))
        return sorted(int(stem) for stem, _, kind in names if kind == "producers" and stem.isdigit())

    def _newest_snapshot(self) -> tuple[ProducerState, int]:
        """Return the last known state at or below the end of the log, and its offset."""
        end_offset = self._marks.end_offset
        for offset in reversed(self._snapshot_offsets()):
            if not self.producerless_offset < offset <= end_offset:
                continue
            path = segment_path(self._folder, offset, "producers")
            file = self._disk.open(path)
            data = file.pread(0, file.size)
            file.close()
            try:
                if len(data) < _CRC.size or crc32c(data[_CRC.size :]) != _CRC.unpack_from(data)[0]:
                    raise CorruptSnapshotError("checksum does not match")
                return ProducerState.restore(data[_CRC.size :]), offset
            except CorruptSnapshotError as error:
                logger.warning("producer snapshot ignored", file=path, reason=str(error))
        return ProducerState(), self.producerless_offset if self.producerless_offset <= end_offset else -1
