"""Snapshots, as far as Raft is concerned: where the log may start, and how a node that is behind that comes back.

Theory of operation.  A snapshot stands for everything below its end, which is committed and on a batch boundary; the
shell takes it, keeps its bytes, and says so (`SnapshotTaken`).  Later it says that the log may start at the end of one
(`TrimLog`): what lies below is dropped, and what Raft must still know of it (its last epoch, the voters in force) is
kept as the log's *base*, written together with the drop.  The log never starts past the newest snapshot.

A leader that is asked for what it has no more, or by a log that left its own somewhere below its start, offers its
newest snapshot instead of records.  So it does to a node that has nothing.  The follower then fetches the snapshot's
bytes, one request at a time and each once the one before is stored, from where an earlier try ended; asking counts as
contact, as a fetch does.  When the shell has checked the whole and made it durable (`SnapshotLoaded`), the log is empty
at the snapshot's end, with its voters in force.  Whatever goes wrong on the way, the follower fetches again and is
offered what there is by then.

A snapshot that was damaged when it was here, or that the leader does not have after all, is not asked for again at
once: the leader's file may be rotten, and each download costs all of it.  The follower goes on fetching, so that the
leader is heard, and downloads it after a pause that doubles; another snapshot it takes at once.

Only a follower loads a snapshot, only from the leader of its epoch, and only past its own high watermark: what it held
there was either committed, and is in the snapshot, or was not the leader's.
"""

from __future__ import annotations

from random import Random
from typing import NamedTuple

from quorum.core.config import RaftConfig
from quorum.core.contacts import Contacts
from quorum.core.events import (
    ControlApplied,
    LoadSnapshot,
    ReadSnapshot,
    ReceiveSnapshot,
    SnapshotFailed,
    SnapshotLoaded,
    SnapshotPart,
    SnapshotRead,
    SnapshotTaken,
    StoreSnapshotPart,
    TrimLog,
)
from quorum.core.messages import ErrorCode, Fetch, FetchSnapshot, FetchSnapshotReply
from quorum.core.roles import Download, Errand, Follower, Leader
from quorum.core.state import Purpose
from quorum.core.types import LogBase, LogEnd, StoredQuorum, TargetVoters

SnapshotEvent = SnapshotTaken | TrimLog | SnapshotRead | SnapshotPart | SnapshotLoaded | SnapshotFailed


class _PutOff(NamedTuple):
    """A snapshot that could not be had so often in a row; not downloaded again before `due_ms`."""

    snapshot: LogEnd
    failures: int
    due_ms: int


class SnapshotRequest(NamedTuple):
    """A FetchSnapshot that waits for the shell to read the bytes."""

    call: int
    request: FetchSnapshot


class Snapshots(Contacts):
    """Both ends of FetchSnapshot, and the log's start."""

    _put_off: _PutOff | None = None

    def __init__(self, config: RaftConfig, stored: StoredQuorum, random: Random, now_ms: int) -> None:
        super().__init__(config, stored, random, now_ms)
        self._next_snapshot_read = 1
        self._snapshot_reads: dict[int, SnapshotRequest] = {}  # by read id

    def _on_snapshot_event(self, event: SnapshotEvent, now_ms: int) -> None:
        match event:
            case SnapshotTaken():
                self._on_snapshot_taken(event)
            case TrimLog():
                self._on_trim_log(event)
            case SnapshotRead():
                self._on_snapshot_read(event)
            case SnapshotPart():
                self._on_snapshot_part(event, now_ms)
            case SnapshotLoaded():
                self._on_snapshot_loaded(event, now_ms)
            case SnapshotFailed():
                self._on_snapshot_failed(event, now_ms)

    # Ours

    def _on_snapshot_taken(self, event: SnapshotTaken) -> None:
        state = self._state
        offset = event.snapshot.offset
        assert offset <= state.high_watermark, f"snapshot at {offset}, above the high watermark {state.high_watermark}"
        if state.snapshot is None or offset > state.snapshot.offset:
            state.snapshot = event.snapshot

    def _on_trim_log(self, event: TrimLog) -> None:
        """Let the log start at the end of one of our snapshots; nothing happens if it has moved on already."""
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

    def _snapshot_for(self, request: Fetch) -> LogEnd | None:
        """The snapshot to load, for a fetcher that the log alone does not help."""
        state = self._state
        if state.snapshot is None:
            return None
        lost = request.offset < state.log.start or request.last_fetched_epoch < state.log.base_epoch
        return state.snapshot if lost or request.offset == 0 else None

    def _on_fetch_snapshot(self, call: int, request: FetchSnapshot, now_ms: int) -> None:
        state = self._state
        error = self._refuse_reader(request)
        if error is not ErrorCode.NONE:
            return state.answer(call, FetchSnapshotReply(error, state.known, request.snapshot))
        leader = state.role
        assert isinstance(leader, Leader)
        progress = leader.replicas.get(request.sender.key)
        if progress is not None:
            self._hear(leader, progress, request, now_ms)
        read_id = self._next_snapshot_read
        self._next_snapshot_read += 1
        self._snapshot_reads[read_id] = SnapshotRequest(call, request)
        max_bytes = max(1, min(request.max_bytes, state.config.fetch_max_bytes))
        state.effects.append(ReadSnapshot(read_id, request.snapshot, request.position, max_bytes))
        return None

    def _refuse_reader(self, request: Fetch | FetchSnapshot) -> ErrorCode:
        """The checks of whoever wants something of the leader's log, up to and including that this node leads."""
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

    def _on_snapshot_read(self, event: SnapshotRead) -> None:
        state = self._state
        call, request = self._snapshot_reads.pop(event.read_id)
        end, position = request.snapshot, request.position
        round_ = self._round_to_tell(state.role) if isinstance(state.role, Leader) else 0
        if event.data is None:
            reply = FetchSnapshotReply(ErrorCode.SNAPSHOT_NOT_FOUND, state.known, end, round=round_)
        elif not event.data:
            missing = ErrorCode.POSITION_OUT_OF_RANGE
            reply = FetchSnapshotReply(missing, state.known, end, event.size, position, round=round_)
        else:
            reply = FetchSnapshotReply(ErrorCode.NONE, state.known, end, event.size, position, event.data, round_)
        state.answer(call, reply)

    # Follower

    def _take_offer(self, follower: Follower, snapshot: LogEnd, now_ms: int) -> bool:
        """Begin to download it, or leave it for now; False if no correct leader could offer it."""
        state = self._state
        if not state.high_watermark < snapshot.offset or not state.log.last.epoch <= state.epoch >= snapshot.epoch:
            return False
        put_off = self._put_off
        if put_off is not None and put_off.snapshot == snapshot and now_ms < put_off.due_ms:
            return True
        follower.download = Download(snapshot)
        state.effects.append(ReceiveSnapshot(snapshot))
        return True

    def _fetch_part(self, follower: Follower, download: Download, now_ms: int) -> None:
        """Ask for the next bytes, unless the shell is still busy with the last."""
        state = self._state
        if download.position is None:
            follower.fetch.due_ms = None
            return
        request = FetchSnapshot(
            sender=state.sender,
            target_id=follower.leader_id,
            epoch=state.epoch,
            snapshot=download.snapshot,
            position=download.position,
            max_bytes=state.config.fetch_max_bytes,
            round=follower.round,
        )
        state.ask(follower.fetch, Purpose.FETCH, follower.leader, request, now_ms)

    def _on_fetch_snapshot_reply(
        self, follower: Follower, request: FetchSnapshot, reply: FetchSnapshotReply, now_ms: int
    ) -> None:
        state = self._state
        follower.fetch.call = None
        if reply.error is ErrorCode.NOT_LEADER and reply.known.epoch == state.epoch:
            follower.gone = True
            state.seek = Errand(now_ms)
            return None
        download = follower.download
        if download is None or download.snapshot != request.snapshot or download.position != request.position:
            return self._download_failed(follower, now_ms)
        if reply.known.epoch != state.epoch:
            return self._download_failed(follower, now_ms)
        follower.round = max(follower.round, reply.round)
        if reply.error is ErrorCode.POSITION_OUT_OF_RANGE and 0 < reply.size <= request.position:
            # All is here; or more than all, from a leader whose snapshot of the same end has another size.  Then it is
            # whole as it is, or it fails, and the next download begins at its first byte.
            download.size = reply.size
            return self._load(follower, download)
        placed = (reply.snapshot, reply.position) == (request.snapshot, request.position)
        if reply.error is ErrorCode.SNAPSHOT_NOT_FOUND:
            self._cannot_have(request.snapshot, now_ms)
        if reply.error is not ErrorCode.NONE or not placed or not reply.data:
            return self._download_failed(follower, now_ms)
        follower.heard, follower.patient = True, False
        follower.fetch.failures = 0
        follower.fetch.due_ms = None
        follower.deadline_ms = self._timeouts.fetch_deadline(now_ms)
        download.position, download.size = None, reply.size
        state.effects.append(StoreSnapshotPart(download.snapshot, request.position, reply.data))
        return None

    def _on_snapshot_part(self, event: SnapshotPart, now_ms: int) -> None:
        follower = self._state.role
        if not isinstance(follower, Follower) or follower.download is None:
            return None
        download = follower.download
        if download.snapshot != event.snapshot or download.position is not None or download.loading:
            return None
        if 0 < download.size == event.position:
            return self._load(follower, download)
        download.position = event.position
        follower.fetch.due_ms = now_ms
        return None

    def _load(self, follower: Follower, download: Download) -> None:
        download.position, download.loading = None, True
        follower.fetch.due_ms = None
        self._state.effects.append(LoadSnapshot(download.snapshot))

    def _on_snapshot_failed(self, event: SnapshotFailed, now_ms: int) -> None:
        follower = self._state.role
        download = follower.download if isinstance(follower, Follower) else None
        if isinstance(follower, Follower) and download is not None and download.snapshot == event.snapshot:
            self._cannot_have(event.snapshot, now_ms)
            self._download_failed(follower, now_ms)

    def _cannot_have(self, snapshot: LogEnd, now_ms: int) -> None:
        state = self._state
        before = self._put_off
        failures = 1 if before is None or before.snapshot != snapshot else before.failures + 1
        base, most = state.config.download_backoff_ms, state.config.download_backoff_max_ms
        self._put_off = _PutOff(snapshot, failures, now_ms + min(most, base << min(failures - 1, 10)))

    def _download_failed(self, follower: Follower, now_ms: int) -> None:
        """Fetch again: the leader offers what it has by then."""
        follower.download = None
        follower.fetch.call = None
        follower.fetch.failures += 1
        follower.fetch.due_ms = now_ms + self._timeouts.backoff_ms(follower.fetch.failures)

    def _waits_for_shell(self, follower: Follower) -> bool:
        """Whether a part is being stored, or the whole being loaded: the leader cannot be heard meanwhile."""
        return follower.download is not None and follower.download.position is None and follower.fetch.call is None

    def _on_snapshot_loaded(self, event: SnapshotLoaded, now_ms: int) -> None:
        """The log is empty at the snapshot's end, if this is still what the follower waits for."""
        state = self._state
        follower, base = state.role, event.base
        if not isinstance(follower, Follower) or follower.download is None:
            return None
        if follower.download.snapshot != base.end or not follower.download.loading:
            return None
        follower.download = self._put_off = None
        follower.fetch.due_ms = now_ms
        follower.deadline_ms = self._timeouts.fetch_deadline(now_ms)
        if not state.is_ours(base.voters):
            return state.refuse(
                f"the leader's snapshot is of cluster {base.voters.cluster_id}, generation {base.voters.generation}; "
                f"this node belongs to cluster {state.cluster_id}, generation {state.generation}"
            )
        assert base.end.offset > state.high_watermark, f"snapshot {base.end}, high watermark {state.high_watermark}"
        draft = state.open_draft()
        assert not draft.batches, f"snapshot loaded after {draft}"
        draft.truncate_to, draft.base = state.log.start, base
        state.log.reset(base.end)
        state.history.reset(base)
        state.snapshot = base.end
        state.high_watermark = base.end.offset
        state.effects += [ControlApplied(base.voters), ControlApplied(TargetVoters(base.target))]
        return None
