"""The answer to DescribeQuorum: the state of a node and of the quorum."""

from __future__ import annotations

from quorum.core.addresses import VoterAddresses
from quorum.core.contacts import Contacts
from quorum.core.events import AddVoter, RemoveVoter, UpdateVoter
from quorum.core.handover import Handovers
from quorum.core.leader_history import LeaderHistory
from quorum.core.messages import DescribeQuorumReply, ErrorCode, LeadershipEnd, ReplicaStatus
from quorum.core.roles import Follower, Leader
from quorum.core.state import CoreState
from quorum.core.types import Voter


class Status:
    """Describes this node and, if it leads, its replicas and its changes of the voters."""

    def __init__(
        self,
        state: CoreState,
        contacts: Contacts,
        leaders: LeaderHistory,
        handovers: Handovers,
        addresses: VoterAddresses,
    ) -> None:
        self._state = state
        self._contacts = contacts
        self._leaders = leaders
        self._handovers = handovers
        self._addresses = addresses

    def describe(self, now_ms: int, error: ErrorCode) -> DescribeQuorumReply:
        """Return the state of the quorum that this node knows; ages are relative to `now_ms`.

        With an error, leave out the voters and observers.
        """
        state, role = self._state, self._state.role
        if isinstance(role, Leader):
            self._contacts.update_pause(role, now_ms)
        voters: list[ReplicaStatus] = []
        observers: list[ReplicaStatus] = []
        if state.met and error is ErrorCode.NONE:
            voters += [self._replica(self._at_newest_address(voter), now_ms) for voter in state.history.current]
        if isinstance(role, Leader) and error is ErrorCode.NONE:
            others = sorted(key for key in role.replicas if key not in state.history.current)
            observers += [self._replica(Voter(key, role.replicas[key].address), now_ms) for key in others]
        return DescribeQuorumReply(
            error,
            state.known,
            answered_by=state.key,
            high_watermark=state.high_watermark,
            log_end_offset=state.log.end,
            paused=isinstance(role, Leader) and role.paused,
            voters=tuple(voters),
            observers=tuple(observers),
            target_voters=state.history.target,
            last_leader_change_reason=state.last_change_reason,
            last_leader_change_ms=None if state.last_change_ms is None else now_ms - state.last_change_ms,
            target_step=self._target_step(role) if isinstance(role, Leader) else None,
            target_problem=role.target_problem if isinstance(role, Leader) else None,
            last_leadership_end=self._last_end(now_ms),
            preferred_problem=self._handovers.preferred_problem(now_ms),
        )

    def _at_newest_address(self, voter: Voter) -> Voter:
        """Return a voter with its newest known address.  A leader or follower gives the address in the log."""
        known = self._addresses.newest(voter.key)
        if known is None or isinstance(self._state.role, Leader | Follower):
            return voter
        return Voter(voter.key, known.heard)

    def _replica(self, replica: Voter, now_ms: int) -> ReplicaStatus:
        """Return the log end and ages of a replica.  Only the leader knows them for other nodes."""
        state, role = self._state, self._state.role
        if replica.key == state.key:
            end = state.log.durable_end
            age_ms = 0 if isinstance(role, Leader) else None
            return ReplicaStatus(replica, end, state.log.end - end, age_ms, age_ms)
        progress = role.replicas.get(replica.key) if isinstance(role, Leader) else None
        if progress is None:
            return ReplicaStatus(replica, 0, state.log.end, None, None)
        fetched, caught_up = progress.last_fetch_ms, progress.last_caught_up_ms
        return ReplicaStatus(
            replica,
            progress.end,
            max(0, state.log.end - progress.end),
            None if fetched is None else now_ms - fetched,
            None if caught_up is None else now_ms - caught_up,
        )

    def _target_step(self, leader: Leader) -> str | None:
        """Describe the current step towards the target; return None if no step has begun."""
        step = leader.step
        if step is None or self._state.history.target is None:
            return None
        doing = "committing the change" if step.end is not None else "checking the change"
        match step.change:
            case AddVoter() as change:
                waits = step.measured_from is not None and step.confirmation is None and step.end is None
                doing = "waiting until the node has caught up" if waits else doing
                return f"add node {change.node_id} at {change.address}: {doing}"
            case RemoveVoter() as change:
                return f"remove node {change.node_id}: {doing}"
            case UpdateVoter() as change:
                return f"move node {change.key.node_id} to {change.address}: {doing}"
        return None

    def _last_end(self, now_ms: int) -> LeadershipEnd | None:
        end = self._leaders.last_end
        return None if end is None else LeadershipEnd(end.leader_id, end.epoch, end.reason, now_ms - end.ended_ms)
