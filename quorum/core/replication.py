"""The log: appended by the leader, pulled by everyone else, committed by the majority.

Theory of operation.  A node fetches from its log's end, naming the epoch of its last batch.  The leader looks that
epoch up: if its own part of the epoch is shorter, or it has no such epoch, the logs differ there, and it answers
where its largest epoch not above ends; the fetcher cuts its log there and asks again.  Each round trip settles at
least one epoch, whatever the number of records.  A position that matches is an acknowledgement: everything below it
is durable at the fetcher, because a fetch leaves only when nothing is unwritten.

The high watermark is the offset that a majority of the voters in force has acknowledged, the leader counting by what
its own disk has confirmed.  It moves only past the first record of the leader's own epoch (Raft 5.4.2): older records
are committed by being below it.

A fetch that brings nothing new is parked.  A voter's is answered on new records, which it must acknowledge; a new high
watermark comes with them, or alone when none came for `watermark_wait_ms`: no commit waits for it, and told at once it
would cost a second exchange with each voter a commit.  An observer's is answered only on a new high watermark, at once,
so that a commit wakes thousands of brokers once, not twice.

Replies come late, twice and out of order.  A fetch reply counts only if it answers the one fetch in flight, in the
same stay as follower of the same leader; a fetch that overtakes another of the same replica takes its place."""

from __future__ import annotations

from quorum.core.events import (
    AdvanceHighWatermark,
    Appended,
    LogRead,
    NotAppended,
    Odd,
    Peer,
    Propose,
    ReadLog,
)
from quorum.core.messages import (
    ErrorCode,
    Fetch,
    FetchReply,
)
from quorum.core.roles import Errand, Follower, Leader, Parked, Progress
from quorum.core.snapshots import Snapshots
from quorum.core.state import Purpose
from quorum.core.types import Batch, LogEnd, ReplicaKey, Voters

EXPIRY_STEP_MS = 50
"""Parked fetches are looked through for expiry at most so often: one may be answered so much later."""


class Replication(Snapshots):
    """Both ends of Fetch, proposals, and the high watermark."""

    _next_read = 1
    _announced = 0  # the high watermark that the shell was told

    # Leader: proposals

    def _on_propose(self, event: Propose, now_ms: int) -> None:
        state = self._state
        refusal = self._refuse_proposal(event, now_ms)
        if refusal is not None:
            state.effects.append(refusal)
            return
        batch = Batch(state.log.end, event.epoch, event.count, event.timestamp_ms, event.payload)
        state.append(batch)
        state.effects.append(Appended(batch.base_offset, batch.end_offset))

    def _refuse_proposal(self, event: Propose, now_ms: int) -> NotAppended | None:
        state = self._state
        if not isinstance(state.role, Leader) or event.epoch != state.epoch:
            return NotAppended(f"not leader of epoch {event.epoch}", leads=False)
        self._update_pause(state.role, now_ms)
        if state.role.paused:
            reason = f"paused: no majority has fetched within {state.config.fetch_timeout_ms} ms"
            return NotAppended(reason, leads=True)
        if state.role.handover is not None:
            reason = f"leadership is being handed over to node {state.role.handover.to.node_id}"
            return NotAppended(reason, leads=True)
        if state.log.unwritten_bytes >= state.config.unwritten_max_bytes:
            return NotAppended(f"{state.log.unwritten_bytes} bytes wait for the disk", leads=True)
        assert event.count >= 1, f"proposal of {event.count} records"
        return None

    # Leader: fetches

    def _on_fetch(self, call: int, request: Fetch, now_ms: int) -> None:
        state = self._state
        error = self._refuse_fetch(request)
        if error is not ErrorCode.NONE:
            return state.answer(call, FetchReply(error, state.known))
        leader = state.role
        assert isinstance(leader, Leader)
        key = request.sender.key
        progress = self._progress_of(leader, key, request.address)
        previous_ms = progress.last_fetch_ms
        self._note_disk(leader, key, request.address, now_ms)
        is_current = self._hear(leader, progress, request, now_ms)
        snapshot = self._snapshot_for(request)
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
        self._commit(leader)
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
        error = self._refuse_reader(request)
        if error is not ErrorCode.NONE:
            return error
        numbers = (request.offset, request.last_fetched_epoch, request.high_watermark)
        return ErrorCode.INVALID_REQUEST if min(numbers) < 0 else ErrorCode.NONE

    def _divergence(self, request: Fetch) -> LogEnd | None:
        """Where this log's largest epoch not above the fetcher's ends, unless the fetcher's position is in this log."""
        if request.offset == 0:
            return None
        end = self._state.log.end_of_epoch(request.last_fetched_epoch)
        if end.epoch == request.last_fetched_epoch and end.offset >= request.offset:
            return None
        return end

    def _note_lag(self, progress: Progress, previous_ms: int | None, now_ms: int) -> None:
        """Note by a valid fetch, and the one at `previous_ms` before it, when the replica was caught up last."""
        state = self._state
        if progress.end >= state.log.end:
            progress.last_caught_up_ms = now_ms
            progress.caught_up_fetch = progress.fetches + 1
        elif previous_ms is not None and progress.end >= progress.log_end_at_fetch:
            progress.last_caught_up_ms = max(progress.last_caught_up_ms or previous_ms, previous_ms)
            progress.caught_up_fetch = max(progress.caught_up_fetch, progress.fetches)
        progress.fetches += 1
        progress.log_end_at_fetch = state.log.end

    def _note_fall(self, progress: Progress, key: ReplicaKey, offset: int) -> None:
        """A voter fetches from below what it has acknowledged.  Said once; a late fetch looks the same."""
        if not progress.fell_back:
            progress.fell_back = True
            self._state.effects.append(
                Odd(
                    f"voter {key} fetches from {offset}, but has acknowledged {progress.end}: a fetch that came late, "
                    f"or its disk was put back to an earlier state.  Such a disk may vote twice: replace it"
                )
            )

    def _commit(self, leader: Leader) -> None:
        """Advance the high watermark to what a majority of the voters in force holds durably."""
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

    def _serve(self, leader: Leader, key: ReplicaKey, parked: Parked, now_ms: int) -> None:
        """Answer a parked fetch if there is news for it, or start reading the news from the log."""
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
        """Whether to answer now; notes from when on voters are owed a watermark that no record has brought."""
        state = self._state
        watermark_moved = state.high_watermark > request.high_watermark
        if request.round < leader.trusted_round:  # the next fetch shows that the replica is alive
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

    def _on_log_read(self, event: LogRead) -> None:
        """Answer the fetch that the read was for, if it still waits and the batches are still what it asked for.

        A leader never truncates its own log, so within one stay as leader what was read stays true.
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

    def _wake_parked(self, leader: Leader, now_ms: int) -> None:
        """Look through the parked fetches if there may be news for them; an append or a round concerns voters only."""
        state = self._state
        end, watermark, round_ = leader.told
        leader.told = (state.log.end, state.high_watermark, leader.round)
        if state.log.end > end:
            leader.owed_ms = None  # the records tell it
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

    def _expire_parked(self, leader: Leader, now_ms: int) -> None:
        """Answer, with nothing, what has waited long enough.  Reads of the log are waited for.

        A look costs all that is parked, thousands of brokers perhaps, so what ends within a moment ends together.
        """
        if leader.expiry_ms is None or now_ms < leader.expiry_ms:
            return
        for key, parked in list(leader.parked.items()):
            if parked.deadline_ms <= now_ms and parked.read_id is None:
                del leader.parked[key]
                self._state.answer(parked.call, self._reply(leader))
        waiting = [parked.deadline_ms for parked in leader.parked.values() if parked.read_id is None]
        leader.expiry_ms = max(min(waiting), now_ms + EXPIRY_STEP_MS) if waiting else None

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
            round=self._round_to_tell(leader),
            diverging=diverging,
            snapshot=snapshot,
            batches=batches,
        )

    # Follower

    def _fetch(self, follower: Follower, now_ms: int) -> None:
        """Ask the leader for more, if nothing is in flight and everything that this acknowledges is durable."""
        state = self._state
        if follower.gone or not follower.fetch.is_due(now_ms) or not state.all_durable:
            return None
        if follower.download is not None:
            return self._fetch_part(follower, follower.download, now_ms)
        wait_ms = state.config.voter_wait_ms if state.is_voter else state.config.observer_wait_ms
        request = Fetch(
            sender=state.sender,
            target_id=follower.leader_id,
            epoch=state.epoch,
            offset=state.log.end,
            last_fetched_epoch=state.log.last.epoch,
            high_watermark=state.high_watermark,
            round=follower.round,
            max_wait_ms=wait_ms,
            max_bytes=state.config.fetch_max_bytes,
            address=state.config.address,
            write_ms=state.write_ms(now_ms),
        )
        timeout_ms = wait_ms + state.config.request_timeout_ms
        state.ask(follower.fetch, Purpose.FETCH, follower.leader, request, now_ms, timeout_ms=timeout_ms)
        return None

    def _on_fetch_reply(self, follower: Follower, request: Fetch, sent_ms: int, reply: FetchReply, now_ms: int) -> None:
        """Take the answer to the one fetch in flight.  `_learn` has seen its epoch: it is not above this node's."""
        state = self._state
        follower.fetch.call = None
        if reply.error is ErrorCode.NOT_LEADER and reply.known.epoch == state.epoch:
            follower.gone = True
            state.seek = Errand(now_ms)
            return None
        usable = reply.error is ErrorCode.NONE and reply.known.epoch == state.epoch
        if not usable or not self._take(follower, request, reply, now_ms):
            return self._fetch_failed(follower, now_ms)
        follower.heard, follower.patient = True, False
        follower.fetch.failures = 0
        follower.deadline_ms = self._timeouts.fetch_deadline(now_ms)
        if follower.download is not None:
            follower.fetch.due_ms = None
            return None
        if reply.snapshot is not None:
            follower.fetch.due_ms = now_ms + state.config.retry_backoff_max_ms  # not taken now
            return None
        progressed = reply.batches or reply.diverging is not None or reply.high_watermark > request.high_watermark
        progressed = progressed or reply.round > follower.round
        follower.round = max(follower.round, reply.round)
        early = now_ms - sent_ms < request.max_wait_ms // 2
        follower.fetch.due_ms = now_ms + state.config.retry_backoff_ms if early and not progressed else now_ms
        return None

    def _take(self, follower: Follower, request: Fetch, reply: FetchReply, now_ms: int) -> bool:
        """Truncate, or append and advance; False, changing nothing, if the reply is not what a leader could send."""
        state = self._state
        if state.log.end != request.offset:
            return False
        if reply.snapshot is not None:
            return self._take_offer(follower, reply.snapshot, now_ms)
        if reply.diverging is not None:
            return self._cut_back(reply.diverging)
        offset, epoch = request.offset, state.log.last.epoch
        for batch in reply.batches:
            if batch.base_offset != offset or batch.count < 1 or not epoch <= batch.epoch <= state.epoch:
                return False
            if isinstance(batch.control, Voters) and not state.is_ours(batch.control):
                return False
            if offset == 0 and not isinstance(batch.control, Voters):  # every log begins with its founding
                return False
            offset, epoch = batch.end_offset, batch.epoch
        for batch in reply.batches:
            state.append(batch)
        state.advance_watermark(reply.high_watermark)
        return True

    def _cut_back(self, diverging: LogEnd) -> bool:
        """Truncate to the last place where this log can agree with the leader's, which ends `diverging.epoch` there."""
        state = self._state
        own = state.log.end_of_epoch(diverging.epoch)
        to = min(own.offset, diverging.offset) if own.epoch == diverging.epoch else own.offset
        if not state.log.start <= to < state.log.end or state.log.splits_a_batch(to):
            return False
        if to < state.high_watermark:
            state.refuse(
                f"leader {state.election.leader_id} of epoch {state.epoch} would cut this log back to {to}, but all "
                f"below {state.high_watermark} is committed: the leader's log, or this one, has lost records"
            )
            return True
        state.truncate(to)
        return True

    def _fetch_failed(self, follower: Follower, now_ms: int) -> None:
        follower.fetch.call = None
        follower.fetch.failures += 1
        follower.fetch.due_ms = now_ms + self._timeouts.backoff_ms(follower.fetch.failures)

    def _follow_moved(self, follower: Follower, address: str, now_ms: int) -> None:
        """The same leader at another address, told while it does not answer at the one known."""
        follower.leader = Peer(follower.leader_id, address)
        follower.fetch.due_ms = now_ms
        follower.fetch.failures = 0

    # Everyone

    def _announce_watermark(self) -> None:
        """Tell the shell what is committed and, here, durable: it can read it back."""
        state = self._state
        offset = min(state.high_watermark, state.log.durable_end)
        if offset > self._announced:
            self._announced = offset
            state.effects.append(AdvanceHighWatermark(offset))
