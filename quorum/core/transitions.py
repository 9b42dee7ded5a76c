"""The roles of a node and the legal transitions between them: the only place that assigns `role`.

No transition lowers the epoch.  A leader that loses its role answers all waiting requests: parked fetches, reads to be
confirmed, a change of the voters."""

from __future__ import annotations

from typing import NamedTuple

from quorum.core.changes import fail_change
from quorum.core.events import Peer, RoleChanged
from quorum.core.leader_history import LeaderHistory
from quorum.core.messages import ErrorCode, FetchReply
from quorum.core.reads import refuse_reads
from quorum.core.roles import (
    Candidate,
    Follower,
    Leader,
    PendingRequest,
    PendingVote,
    Prospective,
    Resigned,
    RoleState,
    Unattached,
)
from quorum.core.state import CoreState
from quorum.core.timeouts import Timeouts
from quorum.core.types import Batch, Election, LeaderChange, ReplicaKey, Role


class Transition(NamedTuple):
    """A legal step from role to role.  before: None at the start of a process."""

    before: Role | None
    after: Role
    when: str


TRANSITIONS = (
    Transition(None, Role.UNATTACHED, "starts without a leader, or has joined its cluster"),
    Transition(None, Role.FOLLOWER, "starts in an epoch whose leader it knows"),
    Transition(None, Role.RESIGNED, "starts in an epoch that it led before"),
    Transition(Role.UNATTACHED, Role.UNATTACHED, "later epoch, votes, or disk hangs"),
    Transition(Role.UNATTACHED, Role.FOLLOWER, "finds the leader"),
    Transition(Role.UNATTACHED, Role.PROSPECTIVE, "election timeout"),
    Transition(Role.UNATTACHED, Role.CANDIDATE, "election timeout of the only voter"),
    Transition(Role.FOLLOWER, Role.UNATTACHED, "later epoch, disk hangs, or an observer loses its leader"),
    Transition(Role.FOLLOWER, Role.FOLLOWER, "leader of a later epoch"),
    Transition(Role.FOLLOWER, Role.PROSPECTIVE, "loses its leader"),
    Transition(Role.FOLLOWER, Role.CANDIDATE, "the only voter loses its leader"),
    Transition(Role.PROSPECTIVE, Role.UNATTACHED, "later epoch, votes, gives way to another node, or disk hangs"),
    Transition(Role.PROSPECTIVE, Role.FOLLOWER, "finds the leader, or returns to the previous one"),
    Transition(Role.PROSPECTIVE, Role.PROSPECTIVE, "pre-vote times out"),
    Transition(Role.PROSPECTIVE, Role.CANDIDATE, "a majority would vote for it"),
    Transition(Role.CANDIDATE, Role.UNATTACHED, "later epoch, or disk hangs"),
    Transition(Role.CANDIDATE, Role.FOLLOWER, "finds the leader"),
    Transition(Role.CANDIDATE, Role.PROSPECTIVE, "not elected in time, and a voter has refused"),
    Transition(Role.CANDIDATE, Role.LEADER, "a majority votes for it"),
    Transition(Role.LEADER, Role.UNATTACHED, "later epoch"),
    Transition(Role.LEADER, Role.FOLLOWER, "leader of a later epoch"),
    Transition(Role.LEADER, Role.CANDIDATE, "a node that is not a voter has a later epoch"),
    Transition(Role.LEADER, Role.RESIGNED, "stops, hands over, leaves the voters, or disk hangs"),
    Transition(Role.RESIGNED, Role.UNATTACHED, "later epoch, no successor, or disk hangs"),
    Transition(Role.RESIGNED, Role.FOLLOWER, "finds the leader of a later epoch"),
    Transition(Role.RESIGNED, Role.CANDIDATE, "the only voter becomes a candidate again"),
)
"""All legal transitions.  ARCHITECTURE.md draws them."""

_LEGAL = {(transition.before, transition.after) for transition in TRANSITIONS}


class Transitions:
    """Moves this node from role to role."""

    def __init__(self, state: CoreState, timeouts: Timeouts, leaders: LeaderHistory) -> None:
        self._state = state
        self._timeouts = timeouts
        self._leaders = leaders
        self._has_begun = False

    def become(self, role: RoleState, now_ms: int, reason: str) -> None:
        """Enter `role`, report it to the shell, and answer the requests that waited for the former role."""
        state = self._state
        leader_before = state.leader
        step = (state.role.role if self._has_begun else None, role.role)
        assert step in _LEGAL, f"{step} is not a legal transition: {reason}"
        self._has_begun = True
        before, state.role = state.role, role
        state.seek = PendingRequest(now_ms)
        leader = state.leader
        if leader != leader_before:
            state.last_change_reason, state.last_change_ms = reason, now_ms
        if isinstance(before, Leader):
            for parked in before.parked.values():
                state.answer(parked.call, FetchReply(ErrorCode.NOT_LEADER, state.known))
        leader_id = leader.node_id if leader is not None else None
        state.effects.append(RoleChanged(role.role, state.epoch, leader_id, reason))
        if isinstance(before, Leader):
            refuse_reads(state, before, f"no longer leads: {reason}")
        self._leaders.observe(now_ms, reason)
        if isinstance(before, Leader):
            fail_change(state, before, reason)

    def become_unattached(self, epoch: int, now_ms: int, reason: str) -> None:
        """Enter `epoch` without a leader.  A running election timer continues, so later epochs do not delay it."""
        state = self._state
        state.enter_epoch(epoch)
        deadline: int | None = None
        if state.may_be_candidate:
            match state.role:
                case Unattached() | Prospective() | Candidate() | Resigned():
                    deadline = state.role.deadline_ms
        if deadline is None:
            deadline = self._timeouts.election_deadline(now_ms)
        self.become(Unattached(deadline), now_ms, reason)

    def become_follower(self, epoch: int, leader_id: int, address: str, now_ms: int, reason: str) -> None:
        state = self._state
        assert leader_id != state.key.node_id, f"following itself in epoch {epoch}"
        state.enter_epoch(epoch, leader_id)
        leader = Peer(leader_id, address)
        self.become(
            Follower(leader_id, leader, self._timeouts.fetch_deadline(now_ms), PendingRequest(now_ms)),
            now_ms,
            reason,
        )

    def become_prospective(self, now_ms: int, reason: str) -> None:
        """Ask the others, in the current epoch, whether they would vote for this node."""
        state = self._state
        assert state.may_be_candidate, f"{state.key} is a candidate without being a voter"
        lost_id: int | None = None
        lost: Peer | None = None
        if isinstance(state.role, Follower) and not state.role.leader_ended:
            lost_id, lost = state.role.leader_id, state.role.leader
        votes = {voter: PendingVote(now_ms) for voter in state.other_voters}
        repeated = isinstance(state.role, Prospective)
        deadline = self._timeouts.candidacy_deadline(now_ms)
        self.become(Prospective(deadline, votes, lost_id, lost, repeated), now_ms, reason)

    def become_candidate(self, now_ms: int, reason: str, above: int = 0) -> None:
        """Enter a new epoch, above the current one and above `above`, and vote for this node.

        The other voters are asked once the vote is durable.
        """
        state = self._state
        assert state.may_be_candidate, f"{state.key} is a candidate without being a voter"
        before = state.epoch
        state.election = Election(max(before, above) + 1, None, state.key)
        state.save_election()
        state.note_new_epoch(before)
        votes = {voter: PendingVote(now_ms) for voter in state.other_voters}
        self.become(Candidate(self._timeouts.candidacy_deadline(now_ms), votes, state.election_write), now_ms, reason)

    def become_leader(self, granting: tuple[ReplicaKey, ...], now_ms: int, reason: str) -> None:
        """Lead the epoch that was voted for; its first record is the LeaderChange."""
        state = self._state
        assert isinstance(state.role, Candidate), f"leader without candidacy: {state.role}"
        assert state.election.voted_for == state.key, f"leader of {state.election} did not vote for itself"
        state.enter_epoch(state.epoch, state.key.node_id)
        leader = Leader(epoch_start=state.log.end, since_ms=now_ms)
        leader.announcements = {voter: PendingRequest(now_ms) for voter in state.other_voters}
        self.become(leader, now_ms, reason)
        voters = tuple(voter.key for voter in state.history.current)
        state.append(
            Batch(
                base_offset=state.log.end,
                epoch=state.epoch,
                count=1,
                timestamp_ms=now_ms + state.config.wall_offset_ms,
                control=LeaderChange(state.key, voters, granting),
            )
        )

    def become_resigned(
        self, successors: tuple[ReplicaKey, ...], deadline_ms: int | None, now_ms: int, reason: str
    ) -> None:
        """Stop leading, in the same epoch, and announce this to each other voter until it has answered.

        deadline_ms: when to leave this role if no successor is known; None: never.
        """
        state = self._state
        assert state.election.leader_id == state.key.node_id, f"resigns from {state.election}"
        farewells = {voter: PendingRequest(now_ms) for voter in state.other_voters}
        self.become(Resigned(deadline_ms, farewells, successors, reason), now_ms, reason)
