"""The follower's side of FetchSnapshot: download a leader's snapshot to this disk.

Theory of operation.  A leader that does not have the requested records offers its newest snapshot (`snapshots.py`).
The follower continues where an earlier download ended.  It requests one part at a time, after the previous part is
stored.  When the shell has checked the whole snapshot and made it durable (`SnapshotLoaded`), the log restarts empty at
the snapshot's end, with the snapshot's voters in force.  A request without a reply is repeated.  After any other
failure the follower fetches records again, and the leader offers its newest snapshot.

A snapshot that is damaged, or that the leader no longer has, is not downloaded again immediately: the leader's file
may be damaged, and each download transfers the whole snapshot.  The follower continues to fetch, which keeps contact
with the leader.  It downloads the same snapshot again after a pause, which doubles with each failure.  It downloads a
different snapshot immediately.

Only a follower loads a snapshot, only from the leader of its epoch, and only past its own high watermark.  Its records
above the watermark were either committed and are in the snapshot, or they were not in the leader's log.
"""

from __future__ import annotations

from typing import NamedTuple

from quorum.core.events import (
    ControlApplied,
    LoadSnapshot,
    ReceiveSnapshot,
    SnapshotFailed,
    SnapshotLoaded,
    SnapshotPart,
    StoreSnapshotPart,
)
from quorum.core.messages import ErrorCode, FetchSnapshot, FetchSnapshotReply
from quorum.core.roles import Download, Follower, PendingRequest
from quorum.core.state import CoreState, Purpose
from quorum.core.timeouts import Timeouts, backoff_ms
from quorum.core.types import LogEnd, TargetVoters


class PostponedSnapshot(NamedTuple):
    """A snapshot whose download failed `failures` times in a row.  It is not downloaded again before `due_ms`."""

    snapshot: LogEnd
    failures: int
    due_ms: int


class Downloads:
    """Downloads snapshots as a follower."""

    def __init__(self, state: CoreState, timeouts: Timeouts) -> None:
        self._state = state
        self._timeouts = timeouts
        self._postponed: PostponedSnapshot | None = None

    def take_offer(self, follower: Follower, snapshot: LogEnd, now_ms: int) -> bool:
        """Begin or postpone the download of the snapshot.  Return False if no correct leader could offer it."""
        state = self._state
        if not state.high_watermark < snapshot.offset or not state.log.last.epoch <= state.epoch >= snapshot.epoch:
            return False
        postponed = self._postponed
        if postponed is not None and postponed.snapshot == snapshot and now_ms < postponed.due_ms:
            return True
        follower.download = Download(snapshot)
        state.effects.append(ReceiveSnapshot(snapshot))
        return True

    def fetch_part(self, follower: Follower, download: Download, now_ms: int) -> None:
        """Ask for the next bytes, unless the shell is still storing the previous ones."""
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

    def on_fetch_snapshot_reply(
        self, follower: Follower, request: FetchSnapshot, reply: FetchSnapshotReply, now_ms: int
    ) -> None:
        state = self._state
        follower.fetch.call = None
        if reply.error is ErrorCode.NOT_LEADER and reply.known.epoch == state.epoch:
            follower.leader_ended = True
            state.seek = PendingRequest(now_ms)
            return None
        download = follower.download
        if download is None or download.snapshot != request.snapshot or download.position != request.position:
            return self._download_failed(follower, now_ms)
        if reply.known.epoch != state.epoch:
            return self._download_failed(follower, now_ms)
        follower.round = max(follower.round, reply.round)
        if reply.error is ErrorCode.POSITION_OUT_OF_RANGE and 0 < reply.size <= request.position:
            # All bytes are stored.  There may even be extra bytes, if another leader's snapshot of the same end was
            # larger.  The load checks the bytes.  If they are not valid, the next download begins at the first byte.
            download.size = reply.size
            return self._load(follower, download)
        placed = (reply.snapshot, reply.position) == (request.snapshot, request.position)
        if reply.error is ErrorCode.SNAPSHOT_NOT_FOUND:
            self._postpone(request.snapshot, now_ms)
        if reply.error is not ErrorCode.NONE or not placed or not reply.data:
            return self._download_failed(follower, now_ms)
        follower.heard, follower.patient = True, False
        follower.fetch.failures = 0
        follower.fetch.due_ms = None
        follower.deadline_ms = self._timeouts.fetch_deadline(now_ms)
        download.position, download.size = None, reply.size
        state.effects.append(StoreSnapshotPart(download.snapshot, request.position, reply.data))
        return None

    def on_snapshot_part(self, event: SnapshotPart, now_ms: int) -> None:
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

    def on_snapshot_failed(self, event: SnapshotFailed, now_ms: int) -> None:
        follower = self._state.role
        download = follower.download if isinstance(follower, Follower) else None
        if isinstance(follower, Follower) and download is not None and download.snapshot == event.snapshot:
            self._postpone(event.snapshot, now_ms)
            self._download_failed(follower, now_ms)

    def _postpone(self, snapshot: LogEnd, now_ms: int) -> None:
        state = self._state
        before = self._postponed
        failures = 1 if before is None or before.snapshot != snapshot else before.failures + 1
        wait_ms = backoff_ms(state.config.download_backoff_ms, state.config.download_backoff_max_ms, failures)
        self._postponed = PostponedSnapshot(snapshot, failures, now_ms + wait_ms)

    def _download_failed(self, follower: Follower, now_ms: int) -> None:
        """Fetch the log again later; the leader then offers its newest snapshot."""
        follower.download = None
        follower.fetch.call = None
        follower.fetch.failures += 1
        follower.fetch.due_ms = now_ms + self._timeouts.retry_ms(follower.fetch.failures)

    def waits_for_shell(self, follower: Follower) -> bool:
        """Return whether the shell is storing a part or loading the snapshot.

        Meanwhile the follower sends no request.
        """
        return follower.download is not None and follower.download.position is None and follower.fetch.call is None

    def on_snapshot_loaded(self, event: SnapshotLoaded, now_ms: int) -> None:
        """Start an empty log at the snapshot's end, if the follower still waits for this snapshot."""
        state = self._state
        follower, base = state.role, event.base
        if not isinstance(follower, Follower) or follower.download is None:
            return None
        if follower.download.snapshot != base.end or not follower.download.loading:
            return None
        follower.download = self._postponed = None
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
