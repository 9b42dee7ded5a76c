"""The regular work on a log: retention, checkpoints, expiry of producers.  `LogManager` decides when to do it."""

from __future__ import annotations

from collections.abc import Iterator
from uuid import UUID

import msgspec

from broker.log.marks import LogMarks
from broker.log.producers import LogProducers
from broker.log.segment import Segment
from broker.log.segments import LogSegments
from broker.log.state import STATE_VERSION, LogState, RecoveryPoint, SegmentState
from broker.log.types import LogConfig


class LogUpkeep:
    """The upkeep of one log.  Methods that read segments may raise CorruptStoreError or DiskError."""

    def __init__(self, marks: LogMarks, segments: LogSegments, producers: LogProducers) -> None:
        self._marks = marks
        self._segments = segments
        self._producers = producers

    # -- retention

    def retained_start(self, config: LogConfig, now_ms: int, wall_ms: int) -> int:
        """Return the start offset according to retention: the end of a segment, or the current start.

        Only committed and durable segments are deleted.

        wall_ms: compared with the timestamps of records.
        """
        marks, segments = self._marks, self._segments
        if not config.deletes:
            return marks.start_offset
        active = segments.active
        deletable_end = min(marks.high_watermark, marks.durable_offset)
        start = marks.start_offset
        excess = segments.size - config.retention_size if config.retention_size >= 0 else -1
        for segment in segments.all:
            if segment.end_offset > deletable_end:
                break
            too_much = segment is not active and excess >= segment.size
            if not too_much and not _is_too_old(segment, config, now_ms, wall_ms):
                break
            excess -= segment.size
            start = max(start, segment.end_offset)
        return start

    def remove_below_start(self) -> None:
        """Delete the segments below the start, except those that the facts still name."""
        marks = self._marks
        # The start may have moved since the facts were made.
        start_offset = min(marks.start_offset, marks.written_start_offset)
        if self._segments.remove_below(start_offset):
            marks.is_changed = True
        self._producers.remove_old_snapshots()

    # -- checkpoints

    def is_checkpoint_due(self, checkpoint_bytes: int) -> bool:
        """Return whether the state must be written.

        It must if the start has moved, or `checkpoint_bytes` were appended, since the last checkpoint, or if the facts
        still name directories that the log has left.
        """
        marks = self._marks
        if marks.start_offset != marks.written_start_offset or marks.is_move_outdated:
            return True
        return marks.appended_since_checkpoint >= checkpoint_bytes

    @property
    def needs_final_checkpoint(self) -> bool:
        """Return whether a clean stop must write the state, or delete segments below the start first.

        A stop may have interrupted the checkpoint that would have deleted them.  The next start reads no folder, so
        nothing would find them again.
        """
        segments = self._segments.all
        return self._marks.is_changed or (bool(segments) and segments[0].end_offset <= self._marks.start_offset)

    def prepare_checkpoint(self) -> None:
        """Write the index and the producers' state, so that a restart need not read the log to compute them.

        The caller flushes them before it calls `take_state`.
        """
        active = self._segments.active
        if active is not None and not self._producers.has_snapshot_at_end:
            self._segments.persist_index(active)
            self._producers.write_snapshot()

    def take_state(self) -> LogState:
        """Return the state to write to the facts now.  Everything below its recovery point is durable already."""
        state = self.state()
        self._marks.state_taken(state.recovery.offset)
        return state

    def state(self) -> LogState:
        """Return the current state.  Only `take_state` notes that the state is written to the facts."""
        marks, start_offset = self._marks, self._marks.writable_start_offset
        recovery = _recovery_point(self._segments, marks)
        return LogState(
            version=STATE_VERSION,
            start_offset=start_offset,
            end_offset=marks.end_offset,
            high_watermark=marks.high_watermark,
            recovery=recovery,
            segments=[
                SegmentState(one.base_offset, one.end_offset, one.size, one.newest_timestamp)
                for one in self._segments.all
                # An empty active segment is left out, because the next append creates it again.
                if one.size and one.end_offset > start_offset
            ],
            epochs=list(marks.epochs.entries),
            producerless_offset=marks.producerless_offset,
            cleaned_offset=marks.cleaned_offset,
            compacted_end=marks.compacted_end,
            moved_from=marks.unknown_moves(),
        )

    def state_after_move(self, source: UUID, target: UUID) -> LogState:
        """Return the current state in the form that the facts of `target` contain after the move of the log."""
        left = [each for each in (*self._marks.moved_from, source) if each != target]
        return msgspec.structs.replace(self.state(), moved_from=left)

    # -- memory

    def expire_producers(self, config: LogConfig, now_ms: int) -> None:
        self._producers.expire(now_ms, config.producer_expiration_ms)

    def free_index(self, segment: Segment) -> None:
        """Free the memory of a sealed segment's index.  It is stored first, if it was computed from the batches."""
        self._segments.persist_index(segment)
        segment.unload_index()

    def loaded_indexes(self) -> Iterator[Segment]:
        """Return the sealed segments whose index is in memory."""
        return (segment for segment in self._segments.sealed if segment.loaded_index_size)


def _is_too_old(segment: Segment, config: LogConfig, now_ms: int, wall_ms: int) -> bool:
    if config.retention_ms < 0:
        return False
    if segment.newest_timestamp >= 0:
        return wall_ms - segment.newest_timestamp > config.retention_ms
    if segment.last_append_ms is None:  # no record has a timestamp: the age counts from now
        segment.last_append_ms = now_ms
    return now_ms - segment.last_append_ms > config.retention_ms


def _recovery_point(log_segments: LogSegments, marks: LogMarks) -> RecoveryPoint:
    """Return the point from which a restart checks the log; everything below it is trusted."""
    offset, start_offset = marks.recovery_offset(), marks.writable_start_offset
    segments = log_segments.all
    if len(segments) > 1 and not segments[-1].size:
        segments = segments[:-1]  # a restart forgets an empty segment, and the log continues in the previous one
    if not segments or segments[-1].end_offset <= start_offset:  # the last segment is about to be deleted
        return RecoveryPoint(offset, offset, 0, -1)
    if offset >= marks.end_offset:
        return _end_of(segments[-1])
    number = log_segments.index_at(offset)
    segment = segments[number]
    position = segment.position_of(offset)
    if position == 0 and number > 0 and segments[number - 1].end_offset > start_offset:
        # After a truncation here, the log continues in the previous segment, which is then no longer sealed.
        return _end_of(segments[number - 1])
    newest = segment.newest_before(position) if position else -1
    return RecoveryPoint(segment.header_at(position).base_offset, segment.base_offset, position, newest)


def _end_of(segment: Segment) -> RecoveryPoint:
    return RecoveryPoint(segment.end_offset, segment.base_offset, segment.size, segment.newest_timestamp)
