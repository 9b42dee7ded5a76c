"""The transitions between roles: the only place that assigns `role`.

Each transition leaves the epoch as given, and never lowers it.
"""

from __future__ import annotations

from random import Random

from quorum.core.config import RaftConfig
from quorum.core.contacts import Contacts
from quorum.core.downloads import Downloads
from quorum.core.events import Peer, RoleChanged
from quorum.core.following import Following
from quorum.core.messages import ErrorCode, FetchReply
from quorum.core.reads import Reads, refuse_reads
from quorum.core.replication import Replication
from quorum.core.roles import (
    Ballot,
    Candidate,
    Errand,
    Follower,
    Leader,
    Prospective,
    Resigned,
    RoleState,
    Unattached,
)
from quorum.core.snapshots import Snapshots
from quorum.core.state import CoreState
from quorum.core.timeouts import Timeouts
from quorum.core.types import Batch, Election, LeaderChange, ReplicaKey, StoredQuorum


class Transitions:
    """Moves this node from role to role.  Not used by itself: see `RaftCore`."""

    def __init__(self, config: RaftConfig, stored: StoredQuorum, random: Random, now_ms: int) -> None:
        state = self._state = CoreState(config, stored, now_ms)
        self._timeouts = Timeouts(state, random)
        self._contacts = Contacts(state)
        self._snapshots = Snapshots(state, self._contacts)
        self._downloads = Downloads(state, self._timeouts)
        self._replication = Replication(state, self._contacts, self._snapshots)
        self._following = Following(state, self._timeouts, self._downloads)
        self._reads = Reads(state, self._contacts)

    def _become(self, role: RoleState, now_ms: int, reason: str) -> None:
        state = self._state
        leader_before = state.leader
        before, state.role = state.role, role
        state.seek = Errand(now_ms)
        leader = state.leader
        if leader != leader_before:
            state.last_change_reason, state.last_change_ms = reason, now_ms
        if isinstance(before, Leader):
            for parked in before.parked.values():
                state.answer(parked.call, FetchReply(ErrorCode.NOT_LEADER, state.known))
        state.effects.append(
            RoleChanged(
                role.role,
                state.epoch,
                leader.node_id if leader is not None else None,
                leader.address if leader is not None else None,
                reason,
            )
        )
        if isinstance(before, Leader):
            refuse_reads(state, before, f"leads no more: {reason}")

    def _become_unattached(self, epoch: int, now_ms: int, reason: str) -> None:
        """In `epoch`, with no leader.  A running election timer runs on: being bumped must not starve a voter."""
        state = self._state
        state.enter_epoch(epoch)
        deadline: int | None = None
        if state.may_stand:
            match state.role:
                case Unattached() | Prospective() | Candidate() | Resigned():
                    deadline = state.role.deadline_ms
        if deadline is None:
            deadline = self._timeouts.election_deadline(now_ms)
        self._become(Unattached(deadline), now_ms, reason)

    def _become_follower(self, epoch: int, leader_id: int, address: str, now_ms: int, reason: str) -> None:
        state = self._state
        assert leader_id != state.key.node_id, f"following itself in epoch {epoch}"
        state.enter_epoch(epoch, leader_id)
        leader = Peer(leader_id, address)
        self._become(
            Follower(leader_id, leader, self._timeouts.fetch_deadline(now_ms), Errand(now_ms)),
            now_ms,
            reason,
        )

    def _become_prospective(self, now_ms: int, reason: str) -> None:
        """Ask the others, in the present epoch, whether they would vote for this node."""
        state = self._state
        assert state.may_stand, f"{state.key} stands without being a voter"
        lost_id: int | None = None
        lost: Peer | None = None
        if isinstance(state.role, Follower) and not state.role.gone:
            lost_id, lost = state.role.leader_id, state.role.leader
        ballots = {voter: Ballot(now_ms) for voter in state.other_voters}
        self._become(Prospective(self._timeouts.standing_deadline(now_ms), ballots, lost_id, lost), now_ms, reason)

    def _become_candidate(self, now_ms: int, reason: str, above: int = 0) -> None:
        """Take the next epoch, and one past `above`, vote for itself in it, and ask the others once that is durable."""
        state = self._state
        assert state.may_stand, f"{state.key} stands without being a voter"
        before = state.epoch
        state.election = Election(max(before, above) + 1, None, state.key)
        state.save_election()
        state.note_new_epoch(before)
        ballots = {voter: Ballot(now_ms) for voter in state.other_voters}
        self._become(Candidate(self._timeouts.standing_deadline(now_ms), ballots, state.election_write), now_ms, reason)

    def _become_leader(self, granting: tuple[ReplicaKey, ...], now_ms: int, reason: str) -> None:
        """Lead the epoch that was voted for; its first record is the LeaderChange."""
        state = self._state
        assert isinstance(state.role, Candidate), f"leader without candidacy: {state.role}"
        assert state.election.voted_for == state.key, f"leader of {state.election} did not vote for itself"
        state.enter_epoch(state.epoch, state.key.node_id)
        leader = Leader(epoch_start=state.log.end, since_ms=now_ms)
        leader.announcements = {voter: Errand(now_ms) for voter in state.other_voters}
        self._become(leader, now_ms, reason)
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

    def _become_resigned(
        self, successors: tuple[ReplicaKey, ...], deadline_ms: int | None, now_ms: int, reason: str
    ) -> None:
        """Lead no more, in the same epoch; until `deadline_ms`, tell the others."""
        state = self._state
        assert state.election.leader_id == state.key.node_id, f"resigns from {state.election}"
        farewells = {voter: Errand(now_ms) for voter in state.other_voters}
        self._become(Resigned(deadline_ms, farewells, successors, reason), now_ms, reason)
