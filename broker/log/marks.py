"""The marks of a log: its offsets, its epochs, and the part of them that the facts (see `state`) hold.  Pure.

`durable_offset`: the log is durable up to here.  `high_watermark`: the log is committed up to here, as the caller
reports.  `truncation_floor`: the recovery point or watermark that the facts hold, or that is being written to them.  A
restart trusts everything below the recovery point without reading it, and refuses a log that ends below the watermark.
So the floor must be lowered, by `LogManager.lower_truncation_floor`, before a truncation below it.  The floor never
exceeds the watermark, and committed records are truncated only after an unclean election.
"""

from __future__ import annotations

from uuid import UUID

from broker.core.epochs import EpochCache
from broker.log.state import LogState, epochs_before


class LogMarks:
    """The marks of one log.  All parts of the log read them; a part that changes the log updates them.

    epochs: the leader epochs, which also contain the end offset.
    is_changed: the log has changed since its state was last written to the facts.
    written_start_offset: the start offset in the facts, or the one that is being written to them.
    durable_start_offset: the lowest start offset that a restart may find; never above `start_offset`.
    producerless_offset: an offset of the log at which it had no state of any producer; -1 if none is known.
    snapshot_offset: the newest offset for which this process has made a snapshot of the producers durable; -1 if none.
    appended_since_checkpoint: bytes.
    cleaned_offset: end of the part that was compacted; never above the watermark.
    compacted_end: end of the last segment that compaction has replaced; markers below it may have been removed.
    watermarks_taken: number of times that the watermark was taken, to be written to the facts.
    moved_from: the directories that this log has left with all records, oldest first: the ones that its facts named
        at the start, then later ones.  If the log returns to a directory, that directory is removed from the list.
    """

    __slots__ = (
        "_is_move_known",
        "_is_move_written",
        "_written_watermark",
        "appended_since_checkpoint",
        "cleaned_offset",
        "compacted_end",
        "durable_offset",
        "durable_start_offset",
        "epochs",
        "high_watermark",
        "is_changed",
        "moved_from",
        "producerless_offset",
        "snapshot_offset",
        "start_offset",
        "truncation_floor",
        "watermarks_taken",
        "written_start_offset",
    )

    def __init__(self, state: LogState) -> None:
        self.epochs = EpochCache(state.epochs, state.end_offset)
        self.start_offset = state.start_offset
        self.high_watermark = state.high_watermark
        self.durable_offset = state.end_offset
        self.truncation_floor = state.recovery.offset
        self.is_changed = False
        self.written_start_offset = self.durable_start_offset = state.start_offset
        self.producerless_offset = state.producerless_offset
        self.snapshot_offset = -1  # an earlier process may have left a snapshot in the page cache
        self.appended_since_checkpoint = 0
        self.cleaned_offset = state.cleaned_offset
        self.compacted_end = state.compacted_end
        self.watermarks_taken = 0
        self._written_watermark = 0  # in the facts
        self.moved_from = tuple(state.moved_from)
        self._is_move_known = not state.moved_from  # by the controller
        self._is_move_written = bool(state.moved_from)  # the facts name former directories

    @property
    def end_offset(self) -> int:
        return self.epochs.end_offset

    def advance_high_watermark(self, offset: int) -> None:
        """Raise the watermark to `offset`, but not above the end of the log.  A lower `offset` changes nothing."""
        offset = min(offset, self.epochs.end_offset)
        if offset > self.high_watermark:
            self.high_watermark = offset
            self.is_changed = True

    def advance_start_offset(self, offset: int) -> None:
        """Raise the start to `offset`, but not above the watermark."""
        offset = min(offset, self.high_watermark)
        if offset > self.start_offset:
            self.start_offset = offset
            self.epochs.drop_before(offset)
            self.is_changed = True

    def truncate_to(self, end_offset: int) -> None:
        """Lower the marks that are above the new end of the log.  A batch begins there."""
        self.epochs.truncate_to(end_offset)
        self.durable_offset = min(self.durable_offset, end_offset)
        self.high_watermark = min(self.high_watermark, end_offset)
        self.cleaned_offset = min(self.cleaned_offset, end_offset)
        self.compacted_end = min(self.compacted_end, end_offset)
        self.start_offset = min(self.start_offset, end_offset)  # the start may lie within the removed batch
        self.durable_start_offset = min(self.durable_start_offset, self.start_offset)
        if self.producerless_offset > end_offset:
            self.producerless_offset = -1 if self.start_offset > 0 else 0
        if self.snapshot_offset > end_offset:
            self.snapshot_offset = -1

    def restart_at(self, offset: int, epoch: int) -> None:
        """Set the marks of an empty log at `offset`.  epoch: of the record before `offset`; -1 if it is unknown."""
        self.epochs = EpochCache(epochs_before(offset, epoch), offset)
        self.start_offset = self.high_watermark = self.durable_offset = self.truncation_floor = offset
        self.cleaned_offset = offset
        self.compacted_end = 0
        self.durable_start_offset = self.producerless_offset = offset
        self.snapshot_offset = -1
        self._written_watermark = 0

    def recovered(self, durable_offset: int) -> None:
        """Note that recovery has read the log; data above `durable_offset` may be only in the page cache."""
        self.durable_offset = durable_offset
        self.high_watermark = min(self.high_watermark, self.truncation_floor)  # higher records may have been replaced
        self.producerless_offset = min(self.producerless_offset, self.truncation_floor)
        self.is_changed = True

    # -- the facts

    @property
    def writable_start_offset(self) -> int:
        """The start offset to write to the facts now.

        A restart trusts everything below it.  With write caching, the start may be above the durable end.  The rest is
        written once it is durable.  Nor does a restart find the batches below it.  So the state of the producers at
        this offset, or later, must be durable.
        """
        with_producers = max(self.snapshot_offset, self.producerless_offset)
        return min(self.start_offset, max(min(self.durable_offset, with_producers), self.durable_start_offset))

    def recovery_offset(self) -> int:
        """Return the end of the records that a restart may trust: they are durable and committed."""
        return max(min(self.durable_offset, self.high_watermark), self.writable_start_offset)

    def state_taken(self, recovery_offset: int) -> None:
        """Note that the state of the log is being written to the facts."""
        self.written_start_offset = self.writable_start_offset
        self.is_changed = self.written_start_offset != self.start_offset
        self.appended_since_checkpoint = 0
        self.truncation_floor = max(recovery_offset, self._written_watermark)
        self._is_move_written = bool(self.unknown_moves())

    def state_written(self) -> None:
        """Note that the state that was taken last is durable in the facts."""
        self.durable_start_offset = min(self.written_start_offset, self.start_offset)

    def moved(self, state: LogState, watermark: int) -> None:
        """Note the marks that the facts of the new directory hold."""
        self.written_start_offset = self.durable_start_offset = state.start_offset
        self.snapshot_offset = -1
        self._written_watermark = watermark
        self.truncation_floor = max(state.recovery.offset, watermark)
        self.is_changed = True
        self.moved_from = tuple(state.moved_from)
        self._is_move_known = False
        self._is_move_written = bool(state.moved_from)

    def move_known(self) -> None:
        """Note that the controller's metadata names the directory of this log.

        The next state that is written drops the former directories; a checkpoint is due for this.  Otherwise backups of
        this directory, and a copy that it keeps while it is offline, would claim permanently that the log left those
        directories with all records.
        """
        if not self._is_move_known:
            self._is_move_known = True
            self.is_changed = True

    @property
    def is_move_outdated(self) -> bool:
        """Return whether the facts name former directories although the controller knows the current one."""
        return self._is_move_written and self._is_move_known

    def unknown_moves(self) -> list[UUID]:
        """Return the part of `moved_from` that the facts must hold."""
        return [] if self._is_move_known else list(self.moved_from)

    def take_watermark(self) -> int:
        """Return the watermark to write to the facts now; everything below it is durable."""
        self.watermarks_taken += 1
        self._written_watermark = min(self.high_watermark, self.durable_offset)
        self.truncation_floor = max(self.truncation_floor, self._written_watermark)
        return self._written_watermark

    def lower_watermark(self, offset: int) -> None:
        """Lower the watermark to `offset`, where a batch begins.  The caller removes it from the facts."""
        self.high_watermark = min(self.high_watermark, offset)
        self.cleaned_offset = min(self.cleaned_offset, offset)  # other records may take the place of the truncated ones
        self._written_watermark = 0

    def restore_watermark(self, offset: int) -> None:
        """Restore the watermark from the facts, after recovery has found that the log reaches `offset`."""
        self.advance_high_watermark(offset)
        self._written_watermark = offset
        self.truncation_floor = max(self.truncation_floor, offset)
