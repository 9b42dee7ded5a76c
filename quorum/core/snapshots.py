"""Snapshots of this node: where the log may start, and the snapshots that a leader sends to replicas behind that point.

Theory of operation.  A snapshot replaces all records below its end, which is committed and on a batch boundary.  The
shell takes the snapshot, keeps its bytes, and reports it (`SnapshotTaken`).  Later the shell reports that the log may
start at the end of a snapshot (`TrimLog`).  The core then drops the records below that end.  It keeps the facts that
Raft still needs (the last epoch, the voters in force) as the log's *base*, which is written in the same transaction.
The log never starts past the newest snapshot.

A leader answers a fetch with an offer of its newest snapshot instead of records in three cases: the fetch asks for
records that the log no longer holds; the follower's log diverged somewhere below the start of the leader's log; or the
follower's log is empty.  The follower then downloads the snapshot (`downloads.py`).  Each FetchSnapshot counts as
contact, as a Fetch does.
"""

from __future__ import annotations

from typing import NamedTuple

from quorum.core.contacts import Contacts
from quorum.core.events import ReadSnapshot, SnapshotRead, SnapshotTaken, TrimLog
from quorum.core.messages import ErrorCode, Fetch, FetchSnapshot, FetchSnapshotReply
from quorum.core.roles import Leader
from quorum.core.state import CoreState
from quorum.core.types import LogBase, LogEnd


class WaitingDownload(NamedTuple):
    """A FetchSnapshot that waits for the shell to read the bytes."""

    call: int
    request: FetchSnapshot


class Snapshots:
    """The log's start, and the leader's side of FetchSnapshot."""

    def __init__(self, state: CoreState, contacts: Contacts) -> None:
        self._state = state
        self._contacts = contacts
        self._waiting: dict[int, WaitingDownload] = {}  # by read id
        self._next_read = 1

    def on_snapshot_taken(self, event: SnapshotTaken) -> None:
        """Note a snapshot on this disk, unless a newer snapshot is known.  Its end is not above the high watermark."""
        state = self._state
        offset = event.snapshot.offset
        assert offset <= state.high_watermark, f"snapshot at {offset}, above the high watermark {state.high_watermark}"
        if state.snapshot is None or offset > state.snapshot.offset:
            state.snapshot = event.snapshot

    def on_trim_log(self, event: TrimLog) -> None:
        """Let the log start at the end of a snapshot on this disk.

        Do nothing if the log starts there or later already, or if that end is above the newest snapshot, the durable
        end or the high watermark.  Also do nothing if the record before that end has another epoch.
        """
        state = self._state
        offset = event.snapshot.offset
        if state.snapshot is None or not state.log.start < offset <= min(state.snapshot.offset, state.log.durable_end):
            return
        epoch = state.log.epoch_at(offset - 1)
        if epoch != event.snapshot.epoch or offset > state.high_watermark:
            return
        voters, target = state.history.in_force_below(offset)
        base = LogBase(event.snapshot, voters, target)
        state.open_draft().base = base
        state.log.trim(offset)
        state.history.trim(base)

    # Leader

    def snapshot_for(self, request: Fetch) -> LogEnd | None:
        """Return the end of the snapshot to offer if the log alone does not suffice for the sender; else None."""
        state = self._state
        if state.snapshot is None:
            return None
        lost = request.offset < state.log.start or request.last_fetched_epoch < state.log.base_epoch
        return state.snapshot if lost or request.offset == 0 else None

    def refuse_reader(self, request: Fetch | FetchSnapshot) -> ErrorCode:
        """Return the error if this node refuses a Fetch or FetchSnapshot; NONE if it leads the sender's epoch."""
        state = self._state
        error = state.refuse_stranger(request.sender, None)
        if error is not ErrorCode.NONE:
            return error
        if request.target_id not in (None, state.key.node_id):
            return ErrorCode.INVALID_VOTER_KEY
        if not state.met:
            return ErrorCode.NEWBORN
        if request.epoch < state.epoch:
            return ErrorCode.FENCED_LEADER_EPOCH
        if request.epoch > state.epoch:
            return ErrorCode.UNKNOWN_LEADER_EPOCH
        if not isinstance(state.role, Leader):
            return ErrorCode.NOT_LEADER
        if request.sender.key == state.key or request.round > state.role.round:
            return ErrorCode.INVALID_REQUEST
        return ErrorCode.NONE

    def on_fetch_snapshot(self, call: int, request: FetchSnapshot, now_ms: int) -> None:
        """Refuse a request, or have the shell read the bytes; `on_snapshot_read` then answers the call."""
        state = self._state
        error = self.refuse_reader(request)
        if error is not ErrorCode.NONE:
            return state.answer(call, FetchSnapshotReply(error, state.known, request.snapshot))
        leader = state.role
        assert isinstance(leader, Leader)
        progress = leader.replicas.get(request.sender.key)
        if progress is not None:
            self._contacts.hear(leader, progress, request, now_ms)
        read_id = self._next_read
        self._next_read += 1
        self._waiting[read_id] = WaitingDownload(call, request)
        max_bytes = max(1, min(request.max_bytes, state.config.fetch_max_bytes))
        state.effects.append(ReadSnapshot(read_id, request.snapshot, request.position, max_bytes))
        return None

    def on_snapshot_read(self, event: SnapshotRead) -> None:
        """Answer the FetchSnapshot that waited for this read."""
        state = self._state
        call, request = self._waiting.pop(event.read_id)
        end, position = request.snapshot, request.position
        round_ = self._contacts.round_to_report(state.role) if isinstance(state.role, Leader) else 0
        if event.data is None:
            reply = FetchSnapshotReply(ErrorCode.SNAPSHOT_NOT_FOUND, state.known, end, round=round_)
        elif not event.data:
            missing = ErrorCode.POSITION_OUT_OF_RANGE
            reply = FetchSnapshotReply(missing, state.known, end, event.size, position, round=round_)
        else:
            reply = FetchSnapshotReply(ErrorCode.NONE, state.known, end, event.size, position, event.data, round_)
        state.answer(call, reply)
