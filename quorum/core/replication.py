"""The leader's side of replication: proposals, fetches of the replicas, and the high watermark.

Theory of operation.  A replica fetches from its log's end, naming the epoch of its last batch (`following.py`).  The
leader looks that epoch up.  If the epoch is shorter in the leader's log, or does not exist there, the logs diverge.
The leader then answers with the end of its largest epoch that is not above that epoch.  The fetcher truncates to the
last offset at which both logs can be equal, and fetches again.  Each round trip settles at least one epoch, regardless
of the number of records.  A position that matches is an acknowledgement: everything below it is durable at the fetcher,
because a fetch leaves only when nothing is unwritten.

The high watermark is the offset that a majority of the voters in force has acknowledged.  For itself the leader counts
the records that its own disk has confirmed.  The leader raises the watermark only to offsets above the first record of
its own epoch (Raft §5.4.2): older records are committed because they are below that record.

A fetch for which the leader has nothing new is parked.  A parked fetch of a voter is answered on new records, which the
voter must acknowledge.  A new high watermark is sent with them, or alone if none come within `watermark_wait_ms`: no
commit waits for it, and an immediate separate reply would cost a second exchange with each voter for each commit.  A
parked fetch of an observer is answered only on a new high watermark, and immediately, so that a commit wakes thousands
of brokers once, not twice.

If a replica fetches while an earlier fetch of it is parked, the earlier fetch is answered with an empty reply."""

from __future__ import annotations

from quorum.core.contacts import Contacts
from quorum.core.events import (
    AdvanceHighWatermark,
    Anomaly,
    LogRead,
    ProposalAppended,
    ProposalRefused,
    Propose,
    ReadLog,
)
from quorum.core.messages import ErrorCode, Fetch, FetchReply
from quorum.core.roles import Leader, Parked, ReplicaProgress, Served
from quorum.core.snapshots import Snapshots
from quorum.core.state import CoreState
from quorum.core.types import Batch, LogEnd, ReplicaKey

EXPIRY_STEP_MS = 50
"""Pause between two searches for expired fetches: a parked fetch may be answered this much later than it requested."""


class Replication:
    """Appends, serves fetches and commits as leader."""

    def __init__(self, state: CoreState, contacts: Contacts, snapshots: Snapshots) -> None:
        self._state = state
        self._contacts = contacts
        self._snapshots = snapshots
        self._next_read = 1
        self._announced = 0  # the high watermark that the shell knows

    # Proposals

    def on_propose(self, event: Propose, now_ms: int) -> None:
        state = self._state
        refusal = self._refuse_proposal(event, now_ms)
        if refusal is not None:
            state.effects.append(refusal)
            return
        batch = Batch(state.log.end, event.epoch, event.count, event.timestamp_ms, event.payload)
        state.append(batch)
        state.effects.append(ProposalAppended(batch.base_offset, batch.end_offset))

    def _refuse_proposal(self, event: Propose, now_ms: int) -> ProposalRefused | None:
        state = self._state
        if not isinstance(state.role, Leader) or event.epoch != state.epoch:
            return ProposalRefused(f"not leader of epoch {event.epoch}", leads=False)
        self._contacts.update_pause(state.role, now_ms)
        if state.role.paused:
            reason = f"paused: no majority has fetched within {state.config.fetch_timeout_ms} ms"
            return ProposalRefused(reason, leads=True)
        if state.role.handover is not None:
            reason = f"leadership is being handed over to node {state.role.handover.to.node_id}"
            return ProposalRefused(reason, leads=True)
        if state.log.unwritten_bytes >= state.config.unwritten_max_bytes:
            return ProposalRefused(f"{state.log.unwritten_bytes} bytes wait for the disk", leads=True)
        assert event.count >= 1, f"proposal of {event.count} records"
        return None

    # Fetches

    def on_fetch(self, call: int, request: Fetch, now_ms: int) -> None:
        state = self._state
        error = self._refuse_fetch(request)
        if error is not ErrorCode.NONE:
            return state.answer(call, FetchReply(error, state.known))
        leader = state.role
        assert isinstance(leader, Leader)
        key = request.sender.key
        progress = self._contacts.progress_of(leader, key, request.address)
        previous_ms = progress.last_fetch_ms
        self._contacts.note_disk(leader, key, request.address, now_ms)
        is_current = self._contacts.hear(leader, progress, request, now_ms)
        snapshot = self._snapshots.snapshot_for(request)
        if snapshot is not None:
            return state.answer(call, self._reply(leader, snapshot=snapshot))
        diverging = self._divergence(request)
        if diverging is not None:
            return state.answer(call, self._reply(leader, diverging=diverging))
        if request.offset < progress.end and key in state.history.current:
            self._note_fall(progress, key, request.offset)
        progress.end = request.offset
        progress.write_ms = request.write_ms
        if is_current:
            self._note_lag(progress, previous_ms, now_ms)
        self.commit(leader)
        overtaken = leader.parked.pop(key, None)
        if overtaken is not None:
            state.answer(overtaken.call, self._reply(leader))
        wait_ms = min(max(request.max_wait_ms, 0), state.config.observer_wait_ms)
        if len(leader.parked) >= state.config.parked_fetches_max and key not in state.history.current:
            wait_ms = 0
        parked = Parked(call, request, now_ms + wait_ms)
        leader.parked[key] = parked
        if leader.expiry_ms is None or parked.deadline_ms < leader.expiry_ms:
            leader.expiry_ms = parked.deadline_ms
        self._serve(leader, key, parked, now_ms)
        if wait_ms == 0 and parked.read_id is None and leader.parked.get(key) is parked:
            del leader.parked[key]
            state.answer(call, self._reply(leader))
        return None

    def _refuse_fetch(self, request: Fetch) -> ErrorCode:
        error = self._snapshots.refuse_reader(request)
        if error is not ErrorCode.NONE:
            return error
        numbers = (request.offset, request.last_fetched_epoch, request.high_watermark)
        return ErrorCode.INVALID_REQUEST if min(numbers) < 0 else ErrorCode.NONE

    def _divergence(self, request: Fetch) -> LogEnd | None:
        """Return the epoch end to report to a fetcher whose log diverges; None if its position is in this log."""
        if request.offset == 0:
            return None
        end = self._state.log.end_of_epoch(request.last_fetched_epoch)
        if end.epoch == request.last_fetched_epoch and end.offset >= request.offset:
            return None
        return end

    def _note_lag(self, progress: ReplicaProgress, previous_ms: int | None, now_ms: int) -> None:
        """Note when the replica was last caught up.  previous_ms: the time of the fetch before this one."""
        state = self._state
        if progress.end >= state.log.end:
            progress.last_caught_up_ms = now_ms
            progress.caught_up_fetch = progress.fetches + 1
        elif previous_ms is not None and progress.end >= progress.log_end_at_fetch:
            progress.last_caught_up_ms = max(progress.last_caught_up_ms or previous_ms, previous_ms)
            progress.caught_up_fetch = max(progress.caught_up_fetch, progress.fetches)
        progress.fetches += 1
        progress.log_end_at_fetch = state.log.end

    def _note_fall(self, progress: ReplicaProgress, key: ReplicaKey, offset: int) -> None:
        """Report once that a voter fetches from below its acknowledged end; a late fetch looks the same."""
        if not progress.fell_back:
            progress.fell_back = True
            self._state.effects.append(
                Anomaly(
                    f"voter {key} fetches from {offset}, but has acknowledged {progress.end}: either the fetch is "
                    f"late, or its disk was restored to an earlier state.  Such a disk may vote twice: replace it"
                )
            )

    def commit(self, leader: Leader) -> None:
        """Advance the high watermark to the end that a majority of the voters in force has on disk."""
        state = self._state
        voters = state.history.current
        ends = sorted(
            (
                state.log.durable_end
                if voter.key == state.key
                else (leader.replicas[voter.key].end if voter.key in leader.replicas else 0)
                for voter in voters
            ),
            reverse=True,
        )
        offset = ends[voters.majority - 1]
        if offset > leader.epoch_start:
            state.advance_watermark(offset)

    # Parked fetches

    def _serve(self, leader: Leader, key: ReplicaKey, parked: Parked, now_ms: int) -> None:
        """Answer a parked fetch if there is something to send.  Read batches that are not in memory from disk first."""
        state = self._state
        if parked.read_id is not None or not self._has_news(leader, key, parked.request, now_ms):
            return
        request = parked.request
        max_bytes = max(1, min(request.max_bytes, state.config.fetch_max_bytes))
        batches = state.log.recent(request.offset, max_bytes)
        if batches is None:
            parked.read_id = self._next_read
            self._next_read += 1
            leader.reads[parked.read_id] = key
            state.effects.append(ReadLog(parked.read_id, request.offset, state.log.recent_start, max_bytes))
            return
        del leader.parked[key]
        misplaced = not batches and request.offset < state.log.end
        error = ErrorCode.INVALID_REQUEST if misplaced else ErrorCode.NONE
        state.answer(parked.call, self._reply(leader, error=error, batches=batches))

    def _has_news(self, leader: Leader, key: ReplicaKey, request: Fetch, now_ms: int) -> bool:
        """Return whether to answer now.  If only the watermark is new, set the time at which voters must get it."""
        state = self._state
        watermark_moved = state.high_watermark > request.high_watermark
        if request.round < leader.trusted_round:  # only the next fetch shows that the replica is live
            return True
        if key not in state.history.current:
            return watermark_moved or request.offset < state.high_watermark
        if request.offset < state.log.end or request.round < leader.round:
            return True
        if not watermark_moved or state.config.watermark_wait_ms == 0:
            return watermark_moved
        if leader.owed_ms is None:
            leader.owed_ms = now_ms + state.config.watermark_wait_ms
        return now_ms >= leader.owed_ms

    def on_log_read(self, event: LogRead) -> None:
        """Answer the fetch for which the batches were read, if it is still parked and still asks for them.

        A leader never truncates its own log, so the batches remain valid while it leads.
        """
        state = self._state
        leader = state.role
        if not isinstance(leader, Leader) or (key := leader.reads.pop(event.read_id, None)) is None:
            return
        parked = leader.parked.get(key)
        if parked is None or parked.read_id != event.read_id:
            return
        del leader.parked[key]
        placed = bool(event.batches) and event.batches[0].base_offset == parked.request.offset
        if placed:
            state.answer(parked.call, self._reply(leader, batches=event.batches))
        else:
            state.answer(parked.call, self._reply(leader, error=ErrorCode.INVALID_REQUEST))

    def wake_parked(self, leader: Leader, now_ms: int) -> None:
        """Serve the parked fetches if there may be something to send; an append or a round concerns only voters."""
        state = self._state
        end, watermark, round_ = leader.served
        leader.served = Served(state.log.end, state.high_watermark, leader.round)
        if state.log.end > end:
            leader.owed_ms = None  # the reply with the records carries the watermark
        is_owed = leader.owed_ms is not None and now_ms >= leader.owed_ms
        if state.high_watermark > watermark:
            for key, parked in list(leader.parked.items()):
                self._serve(leader, key, parked, now_ms)
        elif state.log.end > end or leader.round > round_ or is_owed:
            for key in state.other_voters:
                if (waiting := leader.parked.get(key)) is not None:
                    self._serve(leader, key, waiting, now_ms)
        if is_owed:
            leader.owed_ms = None

    def expire_parked(self, leader: Leader, now_ms: int) -> None:
        """Answer the fetches that have waited long enough with an empty reply, except those that wait for a read.

        The search costs time for each parked fetch, perhaps of thousands of brokers.  So fetches that expire within
        `EXPIRY_STEP_MS` are answered together.
        """
        if leader.expiry_ms is None or now_ms < leader.expiry_ms:
            return
        for key, parked in list(leader.parked.items()):
            if parked.deadline_ms <= now_ms and parked.read_id is None:
                del leader.parked[key]
                self._state.answer(parked.call, self._reply(leader))
        waiting = [parked.deadline_ms for parked in leader.parked.values() if parked.read_id is None]
        leader.expiry_ms = max(min(waiting), now_ms + EXPIRY_STEP_MS) if waiting else None

    def answer_parked(self, leader: Leader, key: ReplicaKey) -> None:
        """Make this replica fetch again: answer its parked fetch with an empty reply, unless a read is in progress."""
        parked = leader.parked.get(key)
        if parked is not None and parked.read_id is None:
            del leader.parked[key]
            self._state.answer(parked.call, self._reply(leader))

    def _reply(
        self,
        leader: Leader,
        *,
        error: ErrorCode = ErrorCode.NONE,
        diverging: LogEnd | None = None,
        snapshot: LogEnd | None = None,
        batches: tuple[Batch, ...] = (),
    ) -> FetchReply:
        state = self._state
        return FetchReply(
            error,
            state.known,
            high_watermark=state.high_watermark,
            log_start_offset=state.log.start,
            round=self._contacts.round_to_report(leader),
            diverging=diverging,
            snapshot=snapshot,
            batches=batches,
        )

    # Every node

    def report_watermark(self) -> None:
        """Report to the shell how far records are committed and durable on this disk, so that it can read them."""
        state = self._state
        offset = min(state.high_watermark, state.log.durable_end)
        if offset > self._announced:
            self._announced = offset
            state.effects.append(AdvanceHighWatermark(offset))
