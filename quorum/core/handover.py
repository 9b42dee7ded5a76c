"""Moving leadership on purpose: `transfer-leader`, and preferred controllers.

Theory of operation.  A leader that hands over first stops accepting proposals, so that the successor can get the whole
log.  It waits, for at most one election timeout, for a fetch of the successor from the end of the log.  If none arrives
in time, it continues to lead.  Otherwise it resigns.  Its last request (EndQuorumEpoch) lists the successor first, and
the successor immediately becomes a candidate.  Everything after that is an ordinary election: if the successor fails,
the next node in the list becomes a candidate a little later.  If all of them fail, the old leader becomes a candidate.

Some voters may be *preferred*.  A leader that is not preferred hands over to a preferred voter only if that voter
fetches, is caught up and does not have a slow disk (`latency.py`).  So a preference never reduces the number of
possible leaders.  If a preferred node is given leadership and does not take it, or does not keep it for a minute, the
node is not preferred for a while.  This time doubles with each further failure (`leader_history.py`)."""

from __future__ import annotations

from typing import NamedTuple

from quorum.core.contacts import Contacts
from quorum.core.election import Elections
from quorum.core.events import Transfer, Transferred, VoterChangeError
from quorum.core.leader_history import LeaderHistory, PendingTransfer
from quorum.core.roles import Handover, Leader
from quorum.core.state import CoreState
from quorum.core.timeouts import is_slow
from quorum.core.types import ReplicaKey


class Choice(NamedTuple):
    """The successor, or None and the answer to the request."""

    to: ReplicaKey | None
    error: VoterChangeError = VoterChangeError.NONE
    message: str = ""


class Handovers:
    """Hands leadership over, on request or by preference."""

    def __init__(self, state: CoreState, contacts: Contacts, leaders: LeaderHistory, elections: Elections) -> None:
        self._state = state
        self._contacts = contacts
        self._leaders = leaders
        self._elections = elections
        self.preferred: tuple[int, ...] = ()

    def on_transfer(self, event: Transfer, now_ms: int) -> None:
        state = self._state
        leader = state.role
        to, error, message = self._choose(event, now_ms)
        if to is None:
            state.effects.append(Transferred(event.call, error, message))
            return
        assert isinstance(leader, Leader)
        deadline = now_ms + max(event.timeout_ms, 1)
        self._leaders.transfer = PendingTransfer(event.call, to.node_id, deadline)
        self._begin_handover(leader, to, now_ms, f"hands over to {to.node_id} on request")

    def _choose(self, event: Transfer, now_ms: int) -> Choice:
        state = self._state
        leader = state.role
        if not isinstance(leader, Leader):
            return Choice(None, VoterChangeError.NOT_LEADER, "this node does not lead")
        self._contacts.update_pause(leader, now_ms)
        if leader.paused:
            return Choice(
                None, VoterChangeError.PAUSED, "no majority fetches from this leader, so none would elect a successor"
            )
        if leader.handover is not None or self._leaders.transfer is not None:
            return Choice(None, VoterChangeError.CHANGE_PENDING, "leadership is being handed over already")
        if event.to == state.key.node_id:
            return Choice(None, VoterChangeError.NONE, f"node {event.to} leads already")
        if event.to is not None:
            voter = state.history.current.by_id(event.to)
            if voter is None:
                return Choice(None, VoterChangeError.VOTER_NOT_FOUND, f"node {event.to} is not a voter")
            if not self._contacts.is_ready(leader, voter.key, now_ms):
                return Choice(
                    None, VoterChangeError.NOT_CAUGHT_UP, self._contacts.why_not_ready(leader, voter.key, now_ms)
                )
            return Choice(voter.key)
        if not state.other_voters:
            return Choice(None, VoterChangeError.LAST_VOTER, "there is no other voter")
        ready = [key for key in state.other_voters if self._contacts.is_ready(leader, key, now_ms)]
        if not ready:
            return Choice(None, VoterChangeError.NOT_CAUGHT_UP, "no other voter is caught up and fetches")
        # As in `Elections.resign`: a voter with a slow disk leads only if no other can.
        slow = {key for key in ready if self._has_slow_disk(leader, key)}
        return Choice(max(ready, key=lambda key: (key not in slow, leader.replicas[key].end, -key.node_id)))

    def _has_slow_disk(self, leader: Leader, fetcher: ReplicaKey) -> bool:
        return is_slow(leader.replicas[fetcher].write_ms, self._state.config)

    # Handing over

    def _begin_handover(self, leader: Leader, to: ReplicaKey, now_ms: int, reason: str) -> None:
        leader.handover = Handover(to, now_ms + self._state.config.election_timeout_ms, reason)

    def pursue(self, leader: Leader, now_ms: int) -> None:
        """Resign once the successor has the whole log; cancel the handover if the successor does not get it in time."""
        state = self._state
        if leader.handover is None:
            self._begin_preferred(leader, now_ms)
        handover = leader.handover
        if handover is None:
            return None
        to = handover.to
        if leader.paused or to not in state.history.current or now_ms >= handover.deadline_ms:
            leader.handover = None
            self._leaders.note_failure(to.node_id, now_ms)
            return self._leaders.end_transfer(
                VoterChangeError.NOT_CAUGHT_UP, self._contacts.why_not_ready(leader, to, now_ms)
            )
        if leader.replicas[to].end >= state.log.end:
            if self._leaders.transfer is not None:
                self._leaders.transfer.epoch = state.epoch
            self._elections.resign(now_ms, handover.reason, first=to)
        return None

    def _begin_preferred(self, leader: Leader, now_ms: int) -> None:
        state = self._state
        wanted = None if state.key.node_id in self.preferred else self._preferred_successor(leader, now_ms)
        if wanted is not None and state.high_watermark > leader.epoch_start and not leader.paused:
            self._begin_handover(leader, wanted, now_ms, f"hands over to the preferred node {wanted.node_id}")

    def _preferred_successor(self, leader: Leader, now_ms: int) -> ReplicaKey | None:
        for node_id in self.preferred:
            found = self._preferred_key(leader, node_id, now_ms)
            if isinstance(found, ReplicaKey):
                return found
        return None

    def _preferred_key(self, leader: Leader, node_id: int, now_ms: int) -> ReplicaKey | str:
        """Return the voter that may get leadership by preference; otherwise the reason why not, for people."""
        voter = self._state.history.current.by_id(node_id)
        if voter is None:
            return f"node {node_id} is not a voter"
        until_ms = self._leaders.unsteady_until(node_id)
        if until_ms is not None and now_ms < until_ms:
            return f"node {node_id} did not keep leadership and waits for {until_ms - now_ms} ms"
        if not self._contacts.is_ready(leader, voter.key, now_ms):
            return self._contacts.why_not_ready(leader, voter.key, now_ms)
        if self._has_slow_disk(leader, voter.key):
            return f"the disk of node {node_id} was slow lately: {leader.replicas[voter.key].write_ms} ms for a write"
        return voter.key

    def preferred_problem(self, now_ms: int) -> str | None:
        """Return why no preferred node leads, for people.

        None if one leads or will soon, if none is preferred, or if this node does not lead.
        """
        leader = self._state.role
        if not isinstance(leader, Leader) or not self.preferred or self._state.key.node_id in self.preferred:
            return None
        found = [self._preferred_key(leader, node_id, now_ms) for node_id in self.preferred]
        problems = [each for each in found if isinstance(each, str)]
        return "; ".join(problems) if len(problems) == len(found) else None

    def expire_transfer(self, now_ms: int) -> None:
        state = self._state
        if self._leaders.transfer is not None and now_ms >= self._leaders.transfer.deadline_ms:
            if isinstance(state.role, Leader):
                state.role.handover = None
            self._leaders.end_transfer(
                VoterChangeError.TIMED_OUT,
                f"no new leader is known; node {self._leaders.transfer.to} may still be elected",
            )

    def timers(self, leader: Leader, now_ms: int) -> list[int | None]:
        if leader.handover is not None:
            return [leader.handover.deadline_ms]
        if not self.preferred or self._state.key.node_id in self.preferred:
            return []
        waits = [self._leaders.unsteady_until(node_id) for node_id in self.preferred]
        return [until_ms for until_ms in waits if until_ms is not None and until_ms > now_ms]
