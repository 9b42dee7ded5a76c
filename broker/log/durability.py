"""The part of a log that is not durable yet, and how flushes make it durable.

An append goes to the page cache and is readable immediately.  The group flush (`flush.py`) then makes it durable.  A
*ticket* names the data of one log in one flush.  It counts only in the *generation* of the log in which it was taken.
Every truncation begins a new generation.  So a flush of truncated records never counts as a flush of later records at
the same offsets.

Until a truncation is durable, nothing should be appended (`is_truncating`).  Otherwise a power failure could keep new
records beside old ones, and a later segment may happen to continue exactly where an old segment ends.  No check of
recovery could distinguish such a log from a good one.  The replica waits, as a follower and as a leader.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from broker.log.marks import LogMarks
from broker.log.segment import Segment
from broker.log.state import UNSYNCED, flushed_segment
from broker.log.types import LOGS
from quorumlog.runtime.disk import DiskFile


class FlushTicket(NamedTuple):
    """The data of one log that one flush makes durable, and the end offset up to which the log is durable then.

    folders_first: files were deleted, and the deletions must be durable before later appends.
    close: complete files, to be closed after the flush.
    snapshot_offset: offset of the newest snapshot of the producers among the files; -1: there is none.
    folder_fact: the folder's fact to write; None: it is up to date.
    switch_count: how often write caching had been switched on or off.
    """

    durability: Durability
    generation: int
    end_offset: int
    files: tuple[DiskFile, ...]
    folders: tuple[str, ...]
    folders_first: bool
    close: tuple[DiskFile, ...]
    snapshot_offset: int
    folder_fact: bytes | None
    switch_count: int


class Durability:
    """Collects the unflushed writes of one log, until a flush takes them as a ticket.

    is_truncating: records were removed, and their removal is not durable yet.
    folder_fact: the value of the folder's fact (see `state`), or a new value that is being written; None: no fact.
    mark_dirty: called when a caller or a restart depends on the next flush; set by the manager.
    on_flushed: called after a flush, if `flushed_offset` may have grown or a truncation is durable now.
    """

    def __init__(
        self, marks: LogMarks, segments: Sequence[Segment], folder: str, *, has_folder: bool, write_caching: bool
    ) -> None:
        """segments: the list that `LogSegments` changes."""
        self.folder = folder
        self.folder_fact: bytes | None = None
        self.has_folder = has_folder
        self.generation = 0
        self.is_closed = False
        self.is_truncating = False
        self._is_fact_changing = False
        self._is_fact_pending = False
        self._waiting_ticket: FlushTicket | None = None
        self._held_end = self._held_snapshot_offset = -1
        self._held_switch_count = 0
        self.mark_dirty: Callable[[Durability], None] = _ignore
        self.on_flushed: Callable[[], None] | None = None
        self._write_caching = write_caching
        self._switch_count = 0
        self._marks = marks
        self._segments = segments
        self._files: dict[str, DiskFile] = {}
        self._close: dict[str, DiskFile] = {}
        self._snapshot_offset = -1
        self._folder_changed = False
        self._parent_changed = False
        self._folders_first = False

    @property
    def flushed_offset(self) -> int:
        """End of the records that may be acknowledged: all of them if `acknowledges_early`, else the durable ones."""
        return self._marks.epochs.end_offset if self.acknowledges_early else self._marks.durable_offset

    @property
    def acknowledges_early(self) -> bool:
        """Return whether appends may be acknowledged before they are flushed.

        With write caching, this begins once `UNSYNCED` is durable as the folder's fact.  So a start after a crash can
        detect that the log may lack acknowledged records, even if the topic has another config by then.
        """
        # The first condition decides for most logs.
        if not self._write_caching or self.folder_fact != UNSYNCED:
            return False
        # The copy that may soon replace this log has the fact that was right when `hold` was called.
        if self._is_held and self._held_switch_count != self._switch_count:
            return False
        return not self._is_fact_pending and not self._is_fact_changing

    @property
    def is_dirty(self) -> bool:
        """Return whether something waits for a flush.  A new folder needs no check: a file is created with it."""
        is_changed = bool(self._files) or self._folder_changed or self.is_truncating
        # The fact also changes for a log that is not appended to any more.
        is_fact_outdated = self.has_folder and (self.folder_fact == UNSYNCED) != self._write_caching
        return is_changed or is_fact_outdated or self._marks.durable_offset < self._marks.end_offset

    def set_write_caching(self, write_caching: bool) -> None:
        """Set whether records may be acknowledged before they are flushed."""
        self._switch_count += write_caching != self._write_caching
        self._write_caching = write_caching
        if self.is_dirty:
            self.request_flush()

    # -- contents that are written

    def note_change(self) -> None:
        """Request a flush, and have the next checkpoint write the state of the log."""
        self._marks.is_changed = True
        self.request_flush()

    def request_flush(self) -> None:
        """Request a flush of the log, if a write may wait for it."""
        if self.is_truncating or not self.acknowledges_early:
            self.mark_dirty(self)

    def flush_cached(self) -> None:
        """Have the log flushed soon if it has write caching.  Call it at intervals.

        Without this, the end of a log that grows slowly would not become durable before the next clean stop.  Retention
        and compaction would not touch it, because they concern only durable records.
        """
        if self._write_caching and self.is_dirty:
            self.mark_dirty(self)

    def add(self, file: DiskFile) -> None:
        """Add a file that was written or truncated."""
        self._files[file.path] = file

    def add_last(self, file: DiskFile) -> None:
        """Add a file that is complete.  It is closed after the flush."""
        self._files[file.path] = self._close[file.path] = file
        self._folder_changed = True
        self.note_change()

    def add_snapshot(self, file: DiskFile, offset: int) -> None:
        """Add a snapshot of the producers at `offset`, as in `add_last`."""
        self.add_last(file)
        self._snapshot_offset = offset

    def remove(self, *paths: str) -> None:
        """Remove deleted files."""
        for path in paths:
            self._files.pop(path, None)
            self._close.pop(path, None)
        self._folder_changed = True

    def folder_created(self) -> None:
        self.has_folder = True
        self._parent_changed = True

    def folder_changed(self) -> None:
        """Note that files were created, deleted or truncated in the log's folder."""
        self._folder_changed = True

    def begin_generation(self) -> None:
        """Begin a new generation, in which no earlier ticket counts.  Deletions become durable before later appends."""
        self.generation += 1
        self._snapshot_offset = -1  # it may have been removed
        if self.has_folder:
            self._folders_first = self.is_truncating = True

    def recovered(self, unflushed: Iterable[DiskFile]) -> None:
        """Note that recovery has changed or read data that may be only in the page cache."""
        if self.has_folder:  # names and deletions may also not be durable
            self._parent_changed = self._folder_changed = self._folders_first = self.is_truncating = True
        for file in unflushed:
            self.add(file)

    def fact_before_truncation(self, offset: int) -> bytes | None:
        """Return the folder's fact without the segments that a truncation to `offset` deletes; None: it stays as it is.

        offset: the start of a batch.
        """
        if self.folder_fact is None:
            return None
        if self.folder_fact == UNSYNCED:
            # The flush that writes this fact may still be under way.  The caller's commit then waits for the flush's.
            return UNSYNCED if self._is_fact_pending else None
        if not self._segments or self._segments[-1].base_offset < offset:
            return None
        kept = [segment.base_offset for segment in self._segments if segment.base_offset < offset]
        # The segments that stay may be new ones that were never flushed.
        return b"%d" % min(flushed_segment(self.folder_fact), kept[-1] if kept else offset)

    @contextmanager
    def changing_fact(self) -> Iterator[None]:
        """Let no flush write the folder's fact during the body, in which a truncation or a reset writes it.

        Otherwise the flush would overwrite the new value.  A flush that ends during the body is noted afterwards: while
        the facts describe the log after a reset, a crash loses even flushed records.
        """
        self._is_fact_changing = True
        try:
            yield
        finally:
            self._is_fact_changing = False
            ticket, self._waiting_ticket = self._waiting_ticket, None
            if ticket is not None:
                self._note_flushed(ticket)

    # -- moving to another directory

    def hold(self) -> None:
        """Hold flushes back, because the copy in the other directory may soon replace this one.

        Until `release` or `moved`, flushes do not raise the durable end.  In the same turn of the event loop, the
        caller takes `wanted_fact` for the copy.
        """
        assert not self.is_truncating, f"{self.folder}: a truncation is not durable yet"
        assert not self._is_held, f"{self.folder} is held"
        self._held_end = self._marks.durable_offset
        self._held_switch_count = self._switch_count

    def release(self) -> None:
        """Note the flushes that were held back, because the log stays in its directory."""
        end_offset, snapshot_offset = self._held_end, self._held_snapshot_offset
        self._held_end = self._held_snapshot_offset = -1
        if not self.is_closed:
            self._marks.snapshot_offset = max(self._marks.snapshot_offset, snapshot_offset)
            self._note_durable(end_offset)
            self.request_flush()  # also for the folder's fact, which was held back

    def moved(self, durable_offset: int, folder_fact: bytes, unflushed: Iterable[DiskFile]) -> None:
        """Continue in the new directory, where the log is durable up to `durable_offset`."""
        assert self._is_held, f"{self.folder} was not held"
        for file in self._close.values():
            file.close()
        self._files, self._close = {file.path: file for file in unflushed}, {}
        self._snapshot_offset = -1
        self.generation += 1
        self._held_end = self._held_snapshot_offset = -1
        self.has_folder = self._folder_changed = True
        self._parent_changed = self._folders_first = False
        self.folder_fact = folder_fact
        self._is_fact_pending = False
        self.mark_dirty(self)
        self._note_durable(durable_offset)

    @property
    def _is_held(self) -> bool:
        return self._held_end >= 0

    # -- flushing

    def wanted_fact(self) -> bytes:
        """Return the value for the folder's fact once everything that was appended so far is durable."""
        newest_segment = self._segments[-1].base_offset if self._segments else self._marks.end_offset
        return UNSYNCED if self._write_caching else b"%d" % newest_segment

    def take_ticket(self) -> FlushTicket:
        """Return everything that is not durable, and hand it over to the flush."""
        wanted = self.wanted_fact()
        folders = [LOGS] if self._parent_changed else []
        if self._folder_changed:
            folders.append(self.folder)
        ticket = FlushTicket(
            durability=self,
            generation=self.generation,
            end_offset=self._marks.end_offset,
            files=tuple(self._files.values()),
            folders=tuple(folders),
            folders_first=self._folders_first,
            close=tuple(self._close.values()),
            snapshot_offset=self._snapshot_offset,
            folder_fact=wanted if self.has_folder and (wanted != self.folder_fact or self._is_fact_pending) else None,
            switch_count=self._switch_count,
        )
        self._files, self._close = {}, {}
        self._snapshot_offset = -1
        self._folder_changed = self._parent_changed = self._folders_first = False
        return ticket

    def accepts_fact(self, ticket: FlushTicket) -> bool:
        """Return whether a flush may write the fact in `ticket`: no truncation, reset, move or close began since.

        Also, write caching was not switched since.  Otherwise records that this flush does not contain may have been
        acknowledged early.
        """
        if ticket.switch_count != self._switch_count:
            return False
        is_current = ticket.generation == self.generation and not self.is_closed
        return is_current and not self._is_fact_changing and not self._is_held

    def fact_begins(self, value: bytes) -> None:
        """Note that a flush begins to write this folder's fact."""
        self.folder_fact = value  # already, because a truncation that begins meanwhile must lower this value
        self._is_fact_pending = True

    def fact_written(self, ticket: FlushTicket) -> None:
        """Note that the fact in `ticket` is durable.  In another generation, the next flush writes the fact again."""
        if ticket.generation == self.generation:
            self._is_fact_pending = False

    def flush_done(self, ticket: FlushTicket) -> None:
        """Note that the data of `ticket` is durable.  A ticket of another generation proves nothing."""
        for file in ticket.close:
            if file.path not in self._files:
                file.close()
        if self._is_fact_changing:
            self._waiting_ticket = _merged(self._waiting_ticket, ticket)
        else:
            self._note_flushed(ticket)

    def _note_flushed(self, ticket: FlushTicket) -> None:
        if ticket.generation != self.generation:
            return
        if self._is_held:
            self._held_end = max(self._held_end, ticket.end_offset)
            self._held_snapshot_offset = max(self._held_snapshot_offset, ticket.snapshot_offset)
            return
        self._marks.snapshot_offset = max(self._marks.snapshot_offset, ticket.snapshot_offset)
        was_truncating = self.is_truncating and ticket.folders_first
        if ticket.folders_first:
            self.is_truncating = False
        # The fact UNSYNCED lets records be acknowledged that were appended after the ticket was taken.
        self._note_durable(ticket.end_offset, is_news=was_truncating or ticket.folder_fact == UNSYNCED)

    def _note_durable(self, end_offset: int, *, is_news: bool = False) -> None:
        marks = self._marks
        assert marks.durable_offset <= end_offset <= marks.end_offset, (marks.durable_offset, end_offset)
        is_news = is_news or end_offset > marks.durable_offset
        marks.durable_offset = end_offset
        if is_news and self.on_flushed is not None:
            self.on_flushed()

    def close(self) -> None:
        """Close the files that wait for a flush; nothing is flushed, and no ticket counts any more."""
        self.is_closed = True
        self.generation += 1
        for file in self.take_ticket().close:
            file.close()


def _merged(first: FlushTicket | None, second: FlushTicket) -> FlushTicket:
    """Return a ticket for the data of two consecutive tickets, of which only the newest generation can count."""
    if first is None or first.generation != second.generation:
        return second
    return second._replace(
        folders_first=first.folders_first or second.folders_first,
        snapshot_offset=max(first.snapshot_offset, second.snapshot_offset),
        folder_fact=first.folder_fact if second.folder_fact is None else second.folder_fact,
    )


def _ignore(durability: Durability) -> None:
    """Do nothing: the manager has not set `mark_dirty` yet."""
