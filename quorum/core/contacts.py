"""Contact of a leader with its replicas: which are live, and whether a majority still follows.

Theory of operation.  A replica shows that it is live by a request to the leader: a Fetch, or a FetchSnapshot while it
downloads.  Both go through `hear`, the only place that counts contact.  Everything that needs a
live replica relies on this: the pause of a leader without a majority, changes of the voters, handovers.

A request shows that its sender was alive at the time of sending, not when the leader reads it.  Normally these are
the same moment.  After the leader was stalled (suspended, swapped out), requests of any age wait in its sockets, and
their senders may have lost their disks since then.  So the leader begins a new round (see `reads.py`).  From then on
only requests of that round count as contact: a sender learns the round from a reply that the leader gave after the
stall.  Requests of an older round are answered immediately, so that a live sender needs only one more exchange."""

from __future__ import annotations

from quorum.core.latency import STALL_TIMEOUTS_MAX
from quorum.core.messages import Fetch, FetchSnapshot
from quorum.core.roles import Leader, PendingRequest, ReplicaProgress
from quorum.core.state import CoreState
from quorum.core.types import ReplicaKey, VoterSet


class Contacts:
    """Tracks for a leader which replicas are live and caught up."""

    def __init__(self, state: CoreState) -> None:
        self._state = state

    def hear(self, leader: Leader, progress: ReplicaProgress, request: Fetch | FetchSnapshot, now_ms: int) -> bool:
        """Count a valid request of a replica as contact.  Return False if the request may be older than a stall."""
        is_current = request.round >= leader.trusted_round
        if is_current:
            progress.last_fetch_ms = now_ms
        progress.round = max(progress.round, request.round)
        announcement = leader.announcements.get(request.sender.key)
        if announcement is not None:
            announcement.due_ms = now_ms + self._state.config.fetch_timeout_ms // 2
        self.update_pause(leader, now_ms)
        return is_current

    def begin_trusted_round(self, leader: Leader) -> None:
        """Count only requests that are sent from now on as contact, because this node was stalled."""
        leader.round += 1
        leader.trusted_round = leader.round

    def begin_round(self, leader: Leader) -> int:
        """Return a round that no reply has carried yet: requests of this round are sent from now on."""
        if leader.round <= leader.reported_round:
            leader.round += 1
        return leader.round

    def round_to_report(self, leader: Leader) -> int:
        """Return the round for a reply.  A read or check that begins later needs a later round."""
        leader.reported_round = leader.round
        return leader.round

    def round_of(self, leader: Leader, key: ReplicaKey) -> int:
        """Return the last round of this leader in which the replica has sent a request."""
        progress = leader.replicas.get(key)
        return progress.round if progress is not None else 0

    # Replicas

    def progress_of(self, leader: Leader, key: ReplicaKey, address: str) -> ReplicaProgress:
        """Return the progress of a replica that fetches.

        At the limit, a new replica displaces the observer with the oldest fetch among those without a parked fetch.
        """
        progress = leader.replicas.get(key)
        if progress is None:
            self._forget_silent_observers(leader)
            progress = leader.replicas[key] = ReplicaProgress(address)
        progress.address = address
        return progress

    def _forget_silent_observers(self, leader: Leader) -> None:
        state = self._state
        if len(leader.replicas) < state.config.observers_max:
            return
        voters = state.history.current
        observers = [key for key in leader.replicas if key not in voters and key not in leader.parked]
        if observers:
            del leader.replicas[min(observers, key=lambda key: (leader.replicas[key].last_fetch_ms or 0, key))]

    def note_disk(self, leader: Leader, key: ReplicaKey, address: str, now_ms: int) -> None:
        """Note a disk that runs at the address of a voter with another disk: that voter is not live."""
        voter = self._state.history.current.by_id(key.node_id)
        if voter is not None and voter.key != key and voter.address == address:
            leader.displaced[voter.key] = now_ms

    def is_live(self, leader: Leader, key: ReplicaKey, now_ms: int) -> bool:
        """Return whether the replica has sent a request within the fetch timeout.

        A replica is not live if another disk was seen at its address since then.  The leader itself is live.
        """
        state = self._state
        if key == state.key:
            return True
        progress = leader.replicas.get(key)
        if progress is None or progress.last_fetch_ms is None:
            return False
        displaced_ms = leader.displaced.get(key)
        if displaced_ms is not None and displaced_ms >= progress.last_fetch_ms:
            return False
        return now_ms - progress.last_fetch_ms < state.config.fetch_timeout_ms

    def live_voters(self, leader: Leader, voters: VoterSet, now_ms: int) -> set[ReplicaKey]:
        return {voter.key for voter in voters if self.is_live(leader, voter.key, now_ms)}

    def is_ready(self, leader: Leader, key: ReplicaKey, now_ms: int) -> bool:
        """Return whether this voter fetches and has recently been caught up."""
        if not self.is_live(leader, key, now_ms):
            return False
        caught_up_ms = leader.replicas[key].last_caught_up_ms
        return caught_up_ms is not None and now_ms - caught_up_ms < self._state.config.fetch_timeout_ms

    def why_not_ready(self, leader: Leader, key: ReplicaKey, now_ms: int) -> str:
        """Return the reason why the replica does not count as caught up, for people."""
        progress = leader.replicas.get(key)
        if progress is None or progress.last_fetch_ms is None:
            return f"node {key.node_id} does not fetch from this leader"
        displaced_ms = leader.displaced.get(key)
        if displaced_ms is not None and displaced_ms >= progress.last_fetch_ms:
            return f"node {key.node_id} now has another disk than {key}"
        lag = max(0, self._state.log.end - progress.end)
        return f"node {key.node_id} lags by {lag} records and last fetched {now_ms - progress.last_fetch_ms} ms ago"

    # The disk

    def stall_limit_ms(self, leader: Leader, now_ms: int) -> int:
        """Return for how long a write of the leader may wait; see `latency.py`."""
        state = self._state
        timeout = state.config.fetch_timeout_ms
        others = [leader.replicas[key].write_ms for key in state.other_voters if self.is_live(leader, key, now_ms)]
        most = STALL_TIMEOUTS_MAX * timeout
        return max(timeout, min(4 * min(others), most)) if others else most

    def stalled_ms(self, leader: Leader, now_ms: int) -> int | None:
        """Return for how long a write has waited for the leader's disk, if that is too long; else None."""
        oldest_ms = self._state.oldest_write_ms
        if oldest_ms is None or now_ms - oldest_ms < self.stall_limit_ms(leader, now_ms):
            return None
        return now_ms - oldest_ms

    # The majority

    def majority_contact_ms(self, leader: Leader) -> int | None:
        """Return the time of the last contact with a majority; None when this node alone is a majority."""
        state = self._state
        needed = state.history.current.majority - (1 if state.is_voter else 0)
        if needed == 0:
            return None
        contacts = []
        for voter in state.other_voters:
            progress = leader.replicas.get(voter)
            last = progress.last_fetch_ms if progress is not None else None
            contacts.append(leader.since_ms if last is None else last)
        contacts.sort(reverse=True)
        return contacts[needed - 1]

    def update_pause(self, leader: Leader, now_ms: int) -> None:
        """Pause the leader if it has had no contact with a majority within the fetch timeout; else end its pause."""
        state = self._state
        contact = self.majority_contact_ms(leader)
        before, leader.paused = leader.paused, contact is not None and now_ms - contact >= state.config.fetch_timeout_ms
        if before != leader.paused:
            state.seek = PendingRequest(now_ms)  # a paused leader immediately searches for a leader of a later epoch
            leader.unreached.clear()
