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

from typing import NamedTuple

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
from quorum.core.types import LogBase, LogEnd, TargetVoters, Voters

SnapshotEvent = SnapshotTaken | TrimLog | SnapshotRead | SnapshotPart | SnapshotLoaded | SnapshotFailed


class _PutOff(NamedTuple):
    """A snapshot that could not be had so often in a row; not downloaded again before `due_ms`."""

    snapshot: LogEnd
    failures: int
    due_ms: int


class Snapshots(Contacts):
    """Both ends of FetchSnapshot, and the log's start."""

    _next_snapshot_read = 1
    _put_off: _PutOff | None = None

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
        offset = event.snapshot.offset
        assert offset <= self.high_watermark, f"snapshot at {offset}, above the high watermark {self.high_watermark}"
        if self.snapshot is None or offset > self.snapshot.offset:
            self.snapshot = event.snapshot

    def _on_trim_log(self, event: TrimLog) -> None:
        """Let the log start at the end of one of our snapshots; nothing happens if it has moved on already."""
        offset = event.snapshot.offset
        if self.snapshot is None or not self.log.start < offset <= min(self.snapshot.offset, self.log.durable_end):
            return
        epoch = self.log.epoch_at(offset - 1)
        if epoch != event.snapshot.epoch or offset > self.high_watermark:
            return
        voters, target = self.history.in_force_below(offset)
        base = LogBase(event.snapshot, voters, target)
        self._open_draft().base = base
        self.log.trim(offset)
        self.history.trim(base)

    # Leader

    def _snapshot_for(self, request: Fetch) -> LogEnd | None:
        """The snapshot to load, for a fetcher that the log alone does not help."""
        if self.snapshot is None:
            return None
        lost = request.offset < self.log.start or request.last_fetched_epoch < self.log.base_epoch
        return self.snapshot if lost or request.offset == 0 else None

    def _on_fetch_snapshot(self, call: int, request: FetchSnapshot, now_ms: int) -> None:
        error = self._refuse_reader(request)
        if error is not ErrorCode.NONE:
            return self._answer(call, FetchSnapshotReply(error, self.known, request.snapshot))
        leader = self.role
        assert isinstance(leader, Leader)
        progress = leader.replicas.get(request.sender.key)
        if progress is not None:
            self._hear(leader, progress, request, now_ms)
        read_id = self._next_snapshot_read
        self._next_snapshot_read += 1
        self._snapshot_reads[read_id] = (call, request)
        max_bytes = max(1, min(request.max_bytes, self.config.fetch_max_bytes))
        self._effects.append(ReadSnapshot(read_id, request.snapshot, request.position, max_bytes))
        return None

    def _refuse_reader(self, request: Fetch | FetchSnapshot) -> ErrorCode:
        """The checks of whoever wants something of the leader's log, up to and including that this node leads."""
        error = self._refuse_stranger(request.sender, None)
        if error is not ErrorCode.NONE:
            return error
        if request.target_id not in (None, self.key.node_id):
            return ErrorCode.INVALID_VOTER_KEY
        if not self.met:
            return ErrorCode.NEWBORN
        if request.epoch < self.epoch:
            return ErrorCode.FENCED_LEADER_EPOCH
        if request.epoch > self.epoch:
            return ErrorCode.UNKNOWN_LEADER_EPOCH
        if not isinstance(self.role, Leader):
            return ErrorCode.NOT_LEADER
        if request.sender.key == self.key or request.round > self.role.round:
            return ErrorCode.INVALID_REQUEST
        return ErrorCode.NONE

    def _on_snapshot_read(self, event: SnapshotRead) -> None:
        call, request = self._snapshot_reads.pop(event.read_id)
        end, position = request.snapshot, request.position
        round_ = self._round_to_tell(self.role) if isinstance(self.role, Leader) else 0
        if event.data is None:
            reply = FetchSnapshotReply(ErrorCode.SNAPSHOT_NOT_FOUND, self.known, end, round=round_)
        elif not event.data:
            missing = ErrorCode.POSITION_OUT_OF_RANGE
            reply = FetchSnapshotReply(missing, self.known, end, event.size, position, round=round_)
        else:
            reply = FetchSnapshotReply(ErrorCode.NONE, self.known, end, event.size, position, event.data, round_)
        self._answer(call, reply)

    # Follower

    def _take_offer(self, follower: Follower, snapshot: LogEnd, now_ms: int) -> bool:
        """Begin to download it, or leave it for now; False if no correct leader could offer it."""
        if not self.high_watermark < snapshot.offset or not self.log.last.epoch <= self.epoch >= snapshot.epoch:
            return False
        put_off = self._put_off
        if put_off is not None and put_off.snapshot == snapshot and now_ms < put_off.due_ms:
            return True
        follower.download = Download(snapshot)
        self._effects.append(ReceiveSnapshot(snapshot))
        return True

    def _fetch_part(self, follower: Follower, download: Download, now_ms: int) -> None:
        """Ask for the next bytes, unless the shell is still busy with the last."""
        if download.position is None:
            follower.fetch.due_ms = None
            return
        request = FetchSnapshot(
            sender=self._sender,
            target_id=follower.leader_id,
            epoch=self.epoch,
            snapshot=download.snapshot,
            position=download.position,
            max_bytes=self.config.fetch_max_bytes,
            round=follower.round,
        )
        self._ask(follower.fetch, Purpose.FETCH, follower.leader, request, now_ms)

    def _on_fetch_snapshot_reply(
        self, follower: Follower, request: FetchSnapshot, reply: FetchSnapshotReply, now_ms: int
    ) -> None:
        follower.fetch.call = None
        if reply.error is ErrorCode.NOT_LEADER and reply.known.epoch == self.epoch:
            follower.gone = True
            self.seek = Errand(now_ms)
            return None
        download = follower.download
        if download is None or download.snapshot != request.snapshot or download.position != request.position:
            return self._download_failed(follower, now_ms)
        if reply.known.epoch != self.epoch:
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
        follower.deadline_ms = self._fetch_deadline(now_ms)
        download.position, download.size = None, reply.size
        self._effects.append(StoreSnapshotPart(download.snapshot, request.position, reply.data))
        return None

    def _on_snapshot_part(self, event: SnapshotPart, now_ms: int) -> None:
        follower = self.role
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
        self._effects.append(LoadSnapshot(download.snapshot))

    def _on_snapshot_failed(self, event: SnapshotFailed, now_ms: int) -> None:
        follower = self.role
        download = follower.download if isinstance(follower, Follower) else None
        if isinstance(follower, Follower) and download is not None and download.snapshot == event.snapshot:
            self._cannot_have(event.snapshot, now_ms)
            self._download_failed(follower, now_ms)

    def _cannot_have(self, snapshot: LogEnd, now_ms: int) -> None:
        before = self._put_off
        failures = 1 if before is None or before.snapshot != snapshot else before.failures + 1
        base, most = self.config.download_backoff_ms, self.config.download_backoff_max_ms
        self._put_off = _PutOff(snapshot, failures, now_ms + min(most, base << min(failures - 1, 10)))

    def _download_failed(self, follower: Follower, now_ms: int) -> None:
        """Fetch again: the leader offers what it has by then."""
        follower.download = None
        follower.fetch.call = None
        follower.fetch.failures += 1
        follower.fetch.due_ms = now_ms + self._backoff_ms(follower.fetch.failures)

    def _waits_for_shell(self, follower: Follower) -> bool:
        """Whether a part is being stored, or the whole being loaded: the leader cannot be heard meanwhile."""
        return follower.download is not None and follower.download.position is None and follower.fetch.call is None

    def _on_snapshot_loaded(self, event: SnapshotLoaded, now_ms: int) -> None:
        """The log is empty at the snapshot's end, if this is still what the follower waits for."""
        follower, base = self.role, event.base
        if not isinstance(follower, Follower) or follower.download is None:
            return None
        if follower.download.snapshot != base.end or not follower.download.loading:
            return None
        follower.download = self._put_off = None
        follower.fetch.due_ms = now_ms
        follower.deadline_ms = self._fetch_deadline(now_ms)
        if not self._is_ours(base.voters):
            return self._refuse(
                f"the leader's snapshot is of cluster {base.voters.cluster_id}, generation {base.voters.generation}; "
                f"this node belongs to cluster {self.cluster_id}, generation {self.generation}"
            )
        assert base.end.offset > self.high_watermark, f"snapshot {base.end}, high watermark {self.high_watermark}"
        draft = self._open_draft()
        assert not draft.batches, f"snapshot loaded after {draft}"
        draft.truncate_to, draft.base = self.log.start, base
        self.log.reset(base.end)
        self.history.reset(base)
        self.snapshot = base.end
        self.high_watermark = base.end.offset
        self._effects += [ControlApplied(base.voters), ControlApplied(TargetVoters(base.target))]
        return None

    def _is_ours(self, record: Voters) -> bool:
        known = (record.cluster_id, record.generation <= self.generation)
        return known == (self.cluster_id, True) and len(record.voters) > 0
