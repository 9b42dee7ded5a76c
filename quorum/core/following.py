"""The follower's side of replication: fetch from the leader, append, truncate where the logs diverge.

Theory of operation.  A follower fetches from its log's end, naming the epoch of its last batch.  The fetch leaves only
when everything below that end is durable, because the leader counts the fetch as an acknowledgement.  If the logs
diverge, the leader reports where an epoch ends in its own log, and the follower truncates to the last offset at which
both logs can be equal (`replication.py`).

Replies may be late, repeated and reordered.  A reply counts only if it answers the one fetch in flight, and if this
node has followed the same leader since it sent that fetch."""

from __future__ import annotations

from quorum.core.downloads import Downloads
from quorum.core.messages import ErrorCode, Fetch, FetchReply
from quorum.core.roles import Follower, PendingRequest
from quorum.core.state import CoreState, Purpose
from quorum.core.timeouts import Timeouts
from quorum.core.types import LogEnd, Voters


class Following:
    """Fetches the log as a follower."""

    def __init__(self, state: CoreState, timeouts: Timeouts, downloads: Downloads) -> None:
        self._state = state
        self._timeouts = timeouts
        self._downloads = downloads

    def fetch(self, follower: Follower, now_ms: int) -> None:
        """Fetch from the leader, if no fetch is in flight and everything that the fetch acknowledges is durable."""
        state = self._state
        if follower.leader_ended or not follower.fetch.is_due(now_ms) or not state.all_durable:
            return None
        if follower.download is not None:
            return self._downloads.fetch_part(follower, follower.download, now_ms)
        wait_ms = self._voter_wait_ms if state.is_voter else state.config.observer_wait_ms
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

    @property
    def _voter_wait_ms(self) -> int:
        """Return for how long a leader may hold a fetch of this voter, at most a third of the fetch timeout.

        With longer waits, an idle leader could pause, and this voter could begin an election.
        """
        return min(self._state.config.voter_wait_ms, self._state.config.fetch_timeout_ms // 3)

    def on_fetch_reply(self, follower: Follower, request: Fetch, sent_ms: int, reply: FetchReply, now_ms: int) -> None:
        """Process the reply to the fetch in flight.  `Elections.learn` has already adopted a later epoch."""
        state = self._state
        follower.fetch.call = None
        if reply.error is ErrorCode.NOT_LEADER and reply.known.epoch == state.epoch:
            follower.leader_ended = True
            state.seek = PendingRequest(now_ms)
            return None
        usable = reply.error is ErrorCode.NONE and reply.known.epoch == state.epoch
        if not usable or not self._take(follower, request, reply, now_ms):
            return self.fetch_failed(follower, now_ms)
        follower.heard, follower.patient = True, False
        follower.fetch.failures = 0
        follower.deadline_ms = self._timeouts.fetch_deadline(now_ms)
        if follower.download is not None:
            follower.fetch.due_ms = None
            return None
        if reply.snapshot is not None:
            # The download is postponed.  The next fetch must come within the fetch timeout.
            follower.fetch.due_ms = now_ms + min(state.config.retry_backoff_max_ms, self._voter_wait_ms)
            return None
        progressed = reply.batches or reply.diverging is not None or reply.high_watermark > request.high_watermark
        progressed = progressed or reply.round > follower.round
        follower.round = max(follower.round, reply.round)
        # A leader that answers early, with nothing new, may do so repeatedly, so the next fetch is delayed.
        early = now_ms - sent_ms < request.max_wait_ms // 2
        follower.fetch.due_ms = now_ms + state.config.retry_backoff_ms if early and not progressed else now_ms
        return None

    def _take(self, follower: Follower, request: Fetch, reply: FetchReply, now_ms: int) -> bool:
        """Begin a download, truncate, or append and advance, as the reply requires.

        Return False and change nothing if no correct leader could send this reply.
        """
        state = self._state
        if state.log.end != request.offset:
            return False
        if reply.snapshot is not None:
            return self._downloads.take_offer(follower, reply.snapshot, now_ms)
        if reply.diverging is not None:
            return self._cut_back(reply.diverging)
        offset, epoch = request.offset, state.log.last.epoch
        for batch in reply.batches:
            if batch.base_offset != offset or batch.count < 1 or not epoch <= batch.epoch <= state.epoch:
                return False
            if isinstance(batch.control, Voters) and not state.is_ours(batch.control):
                return False
            if offset == 0 and not isinstance(batch.control, Voters):  # every log begins with its founding batch
                return False
            offset, epoch = batch.end_offset, batch.epoch
        for batch in reply.batches:
            state.append(batch)
        state.advance_watermark(reply.high_watermark)
        return True

    def _cut_back(self, diverging: LogEnd) -> bool:
        """Truncate to the last offset at which this log and the leader's can be equal, as `diverging` shows."""
        state = self._state
        own = state.log.end_of_epoch(diverging.epoch)
        to = min(own.offset, diverging.offset) if own.epoch == diverging.epoch else own.offset
        if not state.log.start <= to < state.log.end or state.log.splits_a_batch(to):
            return False
        if to < state.high_watermark:
            state.refuse(
                f"leader {state.election.leader_id} of epoch {state.epoch} would truncate this log to {to}, but "
                f"everything below {state.high_watermark} is committed: the leader's log or this one has lost records"
            )
            return True
        state.truncate(to)
        return True

    def fetch_failed(self, follower: Follower, now_ms: int) -> None:
        follower.fetch.call = None
        follower.fetch.failures += 1
        follower.fetch.due_ms = now_ms + self._timeouts.retry_ms(follower.fetch.failures)
