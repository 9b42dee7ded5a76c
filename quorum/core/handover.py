"""Leadership that moves on purpose: `transfer-leader`, and preferred controllers (design §4.9).

Theory of operation.  A leader that hands over first takes no more proposals, so that the successor can get the whole
log, and waits for the fetch that shows it, for an election timeout at most; then it resigns, and its farewell
(EndQuorumEpoch) names the successor first, which stands at once.  Everything after that is an ordinary election: if the
successor dies, the next one in the list stands a little later, and if all fail, the old leader itself.

Some voters may be *preferred*.  A leader that is not hands over to one that is caught up and fetches, and to no other,
so a preference never costs the cluster a candidate.  A preferred node that is given leadership and does not take it, or
does not keep it for a minute, is left alone for a while, twice as long at each further failure.  Every node keeps that
account by what it sees of the leaders, so that the next leader does not try again what the last one has given up."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from quorum.core.config import RaftConfig
from quorum.core.election import Elections
from quorum.core.events import Transfer, Transferred, VoterChangeError
from quorum.core.roles import Follower, Handover, Leader, RoleState
from quorum.core.types import ReplicaKey, StoredQuorum


@dataclass(slots=True)
class Transferring:
    """A `Transfer` that is not answered yet.  `epoch` is the one given up, None while it still is led."""

    call: int
    to: int
    deadline_ms: int
    epoch: int | None = None


@dataclass(frozen=True, slots=True)
class EndedReign:
    """A leadership that ended, and why, as far as this node can tell."""

    epoch: int
    leader_id: int
    reason: str
    ended_ms: int


@dataclass(slots=True)
class Unsteady:
    """A node that did not take, or keep, leadership: not preferred before `until_ms`."""

    failures: int
    until_ms: int


class Handovers(Elections):
    """Hands leadership over, asked to or by preference."""

    def __init__(self, config: RaftConfig, stored: StoredQuorum, random: Random, now_ms: int) -> None:
        super().__init__(config, stored, random, now_ms)
        self.preferred: tuple[int, ...] = ()
        self._transfer: Transferring | None = None
        self._given: tuple[int, int] | None = None  # (epoch given up, node id meant to lead next)
        self._reign: tuple[int, int, int] | None = None  # (epoch, leader id, since when it is known here)
        self._unsteady: dict[int, Unsteady] = {}  # by node id: of preferred nodes and of those that led
        self._led: tuple[int, int] | None = None  # (epoch, leader id) while this node leads or follows
        self.last_end: EndedReign | None = None

    # Asked to

    def _on_transfer(self, event: Transfer, now_ms: int) -> None:
        state = self._state
        leader = state.role
        error, message, to = self._choose(event, now_ms)
        if to is None:
            state.effects.append(Transferred(event.call, error, message))
            return
        assert isinstance(leader, Leader)
        deadline = now_ms + max(event.timeout_ms, 1)
        self._transfer = Transferring(event.call, to.node_id, deadline)
        self._begin_handover(leader, to, now_ms, f"hands over to {to.node_id} as told")

    def _choose(self, event: Transfer, now_ms: int) -> tuple[VoterChangeError, str, ReplicaKey | None]:
        """Whom to hand over to; or nobody, and what to answer."""
        state = self._state
        leader = state.role
        if not isinstance(leader, Leader):
            return VoterChangeError.NOT_LEADER, "this node does not lead", None
        self._contacts.update_pause(leader, now_ms)
        if leader.paused:
            return VoterChangeError.PAUSED, "no majority fetches from this leader: it could not be elected", None
        if leader.handover is not None or self._transfer is not None:
            return VoterChangeError.CHANGE_PENDING, "leadership is being handed over already", None
        if event.to == state.key.node_id:
            return VoterChangeError.NONE, f"node {event.to} leads already", None
        if event.to is not None:
            voter = state.history.current.by_id(event.to)
            if voter is None:
                return VoterChangeError.VOTER_NOT_FOUND, f"node {event.to} is no voter", None
            if not self._contacts.is_ready(leader, voter.key, now_ms):
                return VoterChangeError.NOT_CAUGHT_UP, self._contacts.why_not_ready(leader, voter.key, now_ms), None
            return VoterChangeError.NONE, "", voter.key
        if not state.other_voters:
            return VoterChangeError.LAST_VOTER, "there is no other voter", None
        ready = [key for key in state.other_voters if self._contacts.is_ready(leader, key, now_ms)]
        if not ready:
            return VoterChangeError.NOT_CAUGHT_UP, "no other voter is caught up and fetches", None
        return VoterChangeError.NONE, "", max(ready, key=lambda key: (leader.replicas[key].end, -key.node_id))

    # Handing over

    def _begin_handover(self, leader: Leader, to: ReplicaKey, now_ms: int, reason: str) -> None:
        leader.handover = Handover(to, now_ms + self._state.config.election_timeout_ms, reason)

    def _pursue_handover(self, leader: Leader, now_ms: int) -> None:
        """Resign once the successor has the whole log; call it off if it does not get there."""
        state = self._state
        if leader.handover is None:
            self._begin_preferred(leader, now_ms)
        handover = leader.handover
        if handover is None:
            return None
        to = handover.to
        if leader.paused or to not in state.history.current or now_ms >= handover.deadline_ms:
            leader.handover = None
            self._note_failure(to.node_id, now_ms)
            return self._end_transfer(VoterChangeError.NOT_CAUGHT_UP, self._contacts.why_not_ready(leader, to, now_ms))
        if leader.replicas[to].end >= state.log.end:
            self._given = (state.epoch, to.node_id)
            if self._transfer is not None:
                self._transfer.epoch = state.epoch
            self._resign(now_ms, handover.reason, first=to)
        return None

    def _begin_preferred(self, leader: Leader, now_ms: int) -> None:
        state = self._state
        wanted = None if state.key.node_id in self.preferred else self._preferred_successor(leader, now_ms)
        if wanted is not None and state.high_watermark > leader.epoch_start and not leader.paused:
            self._begin_handover(leader, wanted, now_ms, f"hands over to the preferred node {wanted.node_id}")

    def _preferred_successor(self, leader: Leader, now_ms: int) -> ReplicaKey | None:
        for node_id in self.preferred:
            voter = self._state.history.current.by_id(node_id)
            unsteady = self._unsteady.get(node_id)
            if voter is None or (unsteady is not None and now_ms < unsteady.until_ms):
                continue
            if self._contacts.is_ready(leader, voter.key, now_ms):
                return voter.key
        return None

    def _handover_timers(self, leader: Leader, now_ms: int) -> list[int | None]:
        if leader.handover is not None:
            return [leader.handover.deadline_ms]
        if not self.preferred or self._state.key.node_id in self.preferred:
            return []
        waits = [self._unsteady[node_id].until_ms for node_id in self.preferred if node_id in self._unsteady]
        return [until for until in waits if until > now_ms]

    # What became of it

    def _end_transfer(self, error: VoterChangeError, message: str) -> None:
        if self._transfer is not None:
            self._state.effects.append(Transferred(self._transfer.call, error, message))
            self._transfer = None

    def _expire_transfer(self, now_ms: int) -> None:
        state = self._state
        if self._transfer is not None and now_ms >= self._transfer.deadline_ms:
            if isinstance(state.role, Leader):
                state.role.handover = None
            self._end_transfer(
                VoterChangeError.TIMED_OUT, f"no new leader was heard of; node {self._transfer.to} may yet"
            )

    def _become(self, role: RoleState, now_ms: int, reason: str) -> None:
        super()._become(role, now_ms, reason)
        self._note_end(now_ms, reason)
        self._watch_leaders(now_ms)

    def _note_end(self, now_ms: int, reason: str) -> None:
        """Note how the leadership ended that this node took part in; what the leader said of it is worth most."""
        state = self._state
        before, leader_id = self._led, None
        match state.role:
            case Leader():
                leader_id = state.key.node_id
            case Follower() as follower:
                leader_id = follower.leader_id
        self._led = (state.epoch, leader_id) if leader_id is not None else None
        if before is None or before == self._led:
            return
        if self._farewell is not None and self._farewell[0] == before[0] and self._farewell[1]:
            reason = f"resigned: {self._farewell[1]}"
        self.last_end = EndedReign(*before, reason, now_ms)

    def _watch_leaders(self, now_ms: int) -> None:
        """Note who leads since when, who lost it early, and what became of a handover."""
        state = self._state
        epoch, leader_id = state.election.epoch, state.election.leader_id
        if self._reign is not None and epoch > self._reign[0]:
            _, before, since_ms = self._reign
            self._reign = None
            if now_ms - since_ms < state.config.steady_ms:
                self._note_failure(before, now_ms)
            else:
                self._unsteady.pop(before, None)
        if leader_id is None or self._reign is not None:
            return
        self._reign = (epoch, leader_id, now_ms)
        if self._given is not None and epoch > self._given[0]:
            wanted, self._given = self._given[1], None
            if leader_id != wanted:
                self._note_failure(wanted, now_ms)
        transfer = self._transfer
        if transfer is not None and transfer.epoch is not None and epoch > transfer.epoch:
            if leader_id == transfer.to:
                self._end_transfer(VoterChangeError.NONE, f"node {leader_id} leads epoch {epoch}")
            else:
                other = f"node {leader_id} leads epoch {epoch}, not node {transfer.to}"
                self._end_transfer(VoterChangeError.OUTCOME_UNKNOWN, other)
        elif transfer is not None and transfer.epoch is None and not isinstance(state.role, Leader):
            self._end_transfer(VoterChangeError.NOT_LEADER, f"node {leader_id} leads epoch {epoch} meanwhile")

    def _note_failure(self, node_id: int, now_ms: int) -> None:
        """Leave this node alone for a while, however much it is preferred."""
        state = self._state
        found = self._unsteady.get(node_id)
        failures = found.failures + 1 if found is not None else 1
        wait_ms = min(state.config.preference_wait_max_ms, state.config.preference_wait_ms << min(failures - 1, 10))
        self._unsteady[node_id] = Unsteady(failures, now_ms + wait_ms)
