"""Elections: accepted epochs, pre-votes, votes, and the end of a leadership.

Theory of operation.  A voter whose leader has not answered for a while first asks the others, in its current epoch,
whether they would vote for it.  As Prospective it persists nothing and increases no epoch.  It becomes a Candidate and
takes the next epoch only if a majority would vote for it.  A follower that hears its leader refuses, so a node that was
cut off cannot end the leadership of a working leader when it rejoins.  If two Prospective nodes ask each other, the one
with the lower (log end, id) agrees and waits.  The other refuses, and asks again immediately, because its pre-vote will
now be granted.  So a split costs one round trip, not another timeout.  A node whose own pre-vote has timed out may be
unable to reach a majority.  So it agrees even to a node with a lower id, if that node's log is at least as up to date
as its own.

Before this node acts on a request, it checks the cluster, the generation and the addressed disk.  Only then may the
epoch of the request be adopted, and only from a node that could be a voter.  Every reply carries the epoch and leader
that its sender knows, so stale nodes learn from replies.

A node that searches for its leader reports its epoch.  If that epoch is later than the leader's, and the node is not a
voter, the node cannot win an election.  If the node still searches after a fetch timeout, the leader becomes a
candidate in a later epoch, without a pre-vote, and its majority elects it again: see `hear_seeker`."""

from __future__ import annotations

from quorum.core.addresses import VoterAddresses
from quorum.core.contacts import Contacts
from quorum.core.events import Peer
from quorum.core.leader_history import Farewell, LeaderHistory
from quorum.core.messages import (
    BeginQuorumEpoch,
    BeginQuorumEpochReply,
    DescribeQuorum,
    EndQuorumEpoch,
    EndQuorumEpochReply,
    ErrorCode,
    Knowledge,
    Sender,
    Vote,
    VoteReply,
)
from quorum.core.roles import (
    Candidate,
    Follower,
    Leader,
    PendingRequest,
    PendingVote,
    Prospective,
    Resigned,
    Unattached,
)
from quorum.core.state import EPOCH_MAX, CoreState, Purpose
from quorum.core.timeouts import Timeouts, is_slow
from quorum.core.transitions import Transitions
from quorum.core.types import Election, LogEnd, ReplicaKey

EPOCH_AHEAD_MAX = 16
"""A leader starts a new epoch for a node that is not a voter only if the node is ahead by at most this many epochs.  A
greater distance is not plausible, because each epoch required a majority of pre-votes."""

DELAYS_MAX = 5
"""Maximum number of times that the delay doubles from one successor to the next.  So the second successor waits for at
least 1/32 of the election timeout."""


class Elections:
    """Votes, epochs, and the beginning and end of a leadership."""

    def __init__(
        self,
        state: CoreState,
        timeouts: Timeouts,
        contacts: Contacts,
        leaders: LeaderHistory,
        transitions: Transitions,
        addresses: VoterAddresses,
    ) -> None:
        self._state = state
        self._timeouts = timeouts
        self._contacts = contacts
        self._leaders = leaders
        self._transitions = transitions
        self._addresses = addresses

    # Adopting epochs

    def _refuse_peer(self, sender: Sender, target: ReplicaKey, epoch: int, log_end: LogEnd | None) -> ErrorCode:
        """Return the error for a Vote, BeginQuorumEpoch or EndQuorumEpoch with a wrong sender or epoch, else NONE."""
        state = self._state
        error = state.refuse_stranger(sender, target)
        if error is not ErrorCode.NONE:
            return error
        if not state.met:
            return ErrorCode.NEWBORN
        if not 0 <= epoch <= EPOCH_MAX or sender.key == state.key:
            return ErrorCode.INVALID_REQUEST
        # A leader that has removed itself leads, and resigns, without being a voter.
        leads = epoch == state.epoch and sender.key.node_id == state.election.leader_id
        # A node whose log is ahead may have been added by a record that this log does not have yet.
        ahead = log_end is not None and log_end > state.log.last
        # A voter that an uncommitted record removes may be the only possible winner: see `CoreState.may_be_candidate`.
        removed = state.history.was_just_removed(sender.key, state.high_watermark)
        if sender.key not in state.history.current and not leads and not ahead and not removed:
            return ErrorCode.NOT_VOTER
        return ErrorCode.FENCED_LEADER_EPOCH if epoch < state.epoch else ErrorCode.NONE

    def learn(self, known: Knowledge, now_ms: int) -> None:
        """Adopt the epoch and leader that the sender of a reply knows, if they are newer."""
        state = self._state
        if not state.met or known.cluster_id != state.cluster_id or known.generation < state.generation:
            return None
        if known.generation > state.generation:
            return state.refuse(
                f"the quorum was rebuilt: it is at generation {known.generation}, this node at {state.generation}",
                known.generation,
            )
        if not state.epoch <= known.epoch <= EPOCH_MAX:
            return None
        leader_id = known.leader_id if known.leader_id != state.key.node_id else None
        if leader_id is not None and known.leader_address is not None:
            self._meet_leader(known.epoch, leader_id, known.leader_address, now_ms, "reported by a reply")
        elif known.epoch > state.epoch:
            self._transitions.become_unattached(known.epoch, now_ms, f"a reply has epoch {known.epoch}")
        return None

    def _meet_leader(self, epoch: int, leader_id: int, address: str, now_ms: int, how: str) -> bool:
        """Follow the leader of `epoch`, which is not below this node's epoch.

        Return False if this node knows another leader of that epoch.
        """
        state = self._state
        if epoch == state.epoch and state.election.leader_id not in (None, leader_id):
            return False
        if epoch == state.epoch:
            if self._leaders.has_resigned(epoch):
                return True  # the sender does not know of the resignation yet
            match state.role:
                case Follower() as follower:
                    moved = follower.leader.address != address and follower.fetch.failures > 0
                    if moved and not follower.leader_ended:
                        follower.move(address, now_ms)
                    return True
                case Prospective(lost_leader=lost) if lost == Peer(leader_id, address):
                    return True  # this node cannot reach that leader, even if others can
        self._transitions.become_follower(
            epoch, leader_id, address, now_ms, f"leader {leader_id} of epoch {epoch}, {how}"
        )
        return True

    # Votes given

    def on_vote(self, call: int, request: Vote, now_ms: int) -> None:
        state = self._state
        error = self._refuse_peer(request.sender, request.target, request.epoch, request.log_end)
        end = request.log_end
        if error is ErrorCode.NONE and (
            min(end) < 0 or end.epoch > request.epoch or (end.epoch == request.epoch and not request.pre_vote)
        ):
            error = ErrorCode.INVALID_REQUEST
        granted = False
        if error is ErrorCode.NONE:
            self._addresses.given(request.sender.key, request.address)
            if request.epoch > state.epoch:
                kind = "pre-vote" if request.pre_vote else "vote"
                self._transitions.become_unattached(
                    request.epoch, now_ms, f"{request.sender.key.node_id} asks for a {kind} in epoch {request.epoch}"
                )
            granted = self._grants_pre_vote(request, now_ms) if request.pre_vote else self._grants_vote(request, now_ms)
        state.answer(call, VoteReply(error, state.known, granted), state.after_election)

    def _grants_pre_vote(self, request: Vote, now_ms: int) -> bool:
        """Return whether this node would vote for the sender.  If so, a Prospective node gives way."""
        state = self._state
        candidate = request.sender.key
        if request.log_end < state.log.last:
            granted = False
        else:
            match state.role:
                case Leader():
                    granted = False
                case Follower() as follower:
                    granted = follower.leader_ended or not follower.heard
                case Prospective() as prospective:
                    is_ahead = (request.log_end, candidate) > (state.log.last, state.key)
                    granted = is_ahead or prospective.repeated
                    if granted:
                        why = "which is ahead in (log end, id)" if is_ahead else "after a pre-vote that timed out"
                        deadline = self._timeouts.election_deadline(now_ms)
                        self._transitions.become(
                            Unattached(deadline), now_ms, f"gives way to {candidate.node_id}, {why}"
                        )
                case _:
                    granted = True
        if not granted and isinstance(state.role, Prospective):
            vote = state.role.votes.get(candidate)
            if vote is not None and not vote.granted:
                # The sender is behind in (log end, id), so it grants this node's next pre-vote.  Ask again now.
                state.role.votes[candidate] = PendingVote(now_ms)
        return granted

    def _grants_vote(self, request: Vote, now_ms: int) -> bool:
        """Vote for the sender if this node may.  Also return True if it has already voted for the sender."""
        state = self._state
        candidate = request.sender.key
        if state.election.voted_for is not None:
            return state.election.voted_for == candidate
        if state.election.leader_id is not None or request.log_end < state.log.last:
            return False
        assert isinstance(state.role, Unattached | Prospective), f"no vote and no leader as {state.role}"
        state.election = Election(state.epoch, None, candidate)
        state.save_election()
        reason = f"voted for {candidate.node_id}"
        self._transitions.become(Unattached(self._timeouts.election_deadline(now_ms)), now_ms, reason)
        return True

    # Votes sought

    def begin_election(self, now_ms: int, reason: str) -> None:
        """Begin an election, unless this disk hangs: its vote would not become durable, so no other voter would get a
        request for a vote."""
        silent_ms = self._disk_silent_ms(now_ms)
        if silent_ms >= self._state.config.fetch_timeout_ms:
            reason = f"starts no election: the disk has not answered for {silent_ms} ms"
            return self._transitions.become(Unattached(self._timeouts.election_deadline(now_ms)), now_ms, reason)
        if self._state.is_sole_voter:
            return self._transitions.become_candidate(now_ms, "the only voter")
        return self._transitions.become_prospective(now_ms, reason)

    def _disk_silent_ms(self, now_ms: int) -> int:
        """Return for how long the oldest write has been waiting for the disk; 0 if no write waits."""
        oldest_ms = self._state.oldest_write_ms
        return 0 if oldest_ms is None else now_ms - oldest_ms

    def _may_still_win(self, candidate: Candidate, now_ms: int) -> bool:
        """Return whether a candidate whose time is over continues to ask for votes in the same epoch.

        It continues unless a voter has refused, or its own disk hangs.  The voters that have not answered would also
        delay a new election, and a voter with a slow disk would also have to write the new epoch.  Meanwhile another
        voter can begin an election, because a candidate still grants pre-votes.
        """
        refused = any(vote.granted is False for vote in candidate.votes.values())
        return not refused and self._disk_silent_ms(now_ms) < self._state.config.fetch_timeout_ms

    def waits_for_faster(self, follower: Follower, now_ms: int) -> bool:
        """Return whether a follower without a leader lets others become candidates first: once, if its disk is slow."""
        if follower.patient or follower.leader_ended or not self._timeouts.patience_ms(now_ms):
            return False
        follower.patient, follower.heard = True, False
        return True

    def ask_for_votes(self, candidacy: Prospective | Candidate, now_ms: int) -> None:
        state = self._state
        pre_vote = isinstance(candidacy, Prospective)
        for voter, vote in candidacy.votes.items():
            if vote.is_due(now_ms):
                request = Vote(state.sender, voter, state.epoch, state.log.last, pre_vote, state.config.address)
                to = self._addresses.where(voter, vote.failures)
                state.ask(vote, Purpose.VOTE, to, request, now_ms, voter=voter, after=state.after_election)

    def on_vote_reply(
        self, candidacy: Prospective | Candidate, voter: ReplicaKey, reply: VoteReply, now_ms: int
    ) -> None:
        vote = candidacy.votes[voter]
        vote.call = None
        if reply.error is not ErrorCode.NONE:
            return self.vote_failed(candidacy, voter, now_ms)
        vote.due_ms, vote.granted = None, reply.granted
        return self.count_votes(now_ms)

    def vote_failed(self, candidacy: Prospective | Candidate, voter: ReplicaKey, now_ms: int) -> None:
        """Ask again later, because a missing answer is neither a grant nor a refusal."""
        vote = candidacy.votes[voter]
        vote.call = None
        vote.failures += 1
        vote.due_ms = now_ms + self._timeouts.retry_ms(vote.failures)

    def count_votes(self, now_ms: int) -> None:
        """End the election of this node, won or lost, if there is one and the votes decide it."""
        state = self._state
        candidacy = state.role
        if not isinstance(candidacy, Prospective | Candidate):
            return
        majority = state.history.current.majority
        granting = [voter for voter, vote in candidacy.votes.items() if vote.granted]
        against = sum(vote.granted is False for vote in candidacy.votes.values())
        own = int(state.is_voter)
        if isinstance(candidacy, Prospective):
            if len(granting) + own >= majority:
                self._transitions.become_candidate(
                    now_ms, f"{len(granting) + own} of {len(candidacy.votes) + own} would vote for it"
                )
            elif len(candidacy.votes) + own - against < majority:
                self._lose_pre_vote(candidacy, now_ms, "a majority would not vote for it")
            return
        if own and state.durable_write >= candidacy.vote_write:
            granting.append(state.key)
        if len(granting) >= majority:
            names = ", ".join(str(voter.node_id) for voter in sorted(granting))
            self._transitions.become_leader(tuple(sorted(granting)), now_ms, f"elected by {names}")

    def _lose_pre_vote(self, prospective: Prospective, now_ms: int, reason: str) -> None:
        """Follow the lost leader again, if there is one; else stay until the timer ends and try again."""
        if prospective.lost_leader is not None and prospective.lost_leader_id is not None:
            leader_id, address = prospective.lost_leader_id, prospective.lost_leader.address
            reason = f"{reason}; back to leader {leader_id}"
            self._transitions.become_follower(self._state.epoch, leader_id, address, now_ms, reason)

    def on_election_timeout(self, candidacy: Unattached | Prospective | Candidate, now_ms: int) -> None:
        match candidacy:
            case Prospective(lost_leader=Peer()):
                self._lose_pre_vote(candidacy, now_ms, "pre-vote timed out")
            case Prospective():
                self.begin_election(now_ms, "pre-vote timed out")
            case Candidate() if self._may_still_win(candidacy, now_ms):
                candidacy.deadline_ms, candidacy.overdue = self._timeouts.candidacy_deadline(now_ms), True
            case Candidate():
                self.begin_election(now_ms, f"not elected in epoch {self._state.epoch}")
            case Unattached():
                self.begin_election(now_ms, "election timeout")

    # A new leader announces itself

    def announce(self, leader: Leader, now_ms: int) -> None:
        state = self._state
        for voter, pending in leader.announcements.items():
            if pending.is_due(now_ms):
                request = BeginQuorumEpoch(state.sender, voter, state.epoch, state.config.address)
                after = state.after_election
                state.ask(pending, Purpose.BEGIN, state.peer(voter), request, now_ms, voter=voter, after=after)

    def announcement_ended(self, leader: Leader, voter: ReplicaKey, sent_ms: int) -> None:
        """Repeat the announcement every half fetch timeout, even if it was answered, until the voter fetches."""
        pending = leader.announcements[voter]
        pending.call = None
        pending.due_ms = max(pending.due_ms or 0, sent_ms + self._state.config.fetch_timeout_ms // 2)

    def on_begin(self, call: int, request: BeginQuorumEpoch, now_ms: int) -> None:
        state = self._state
        error = self._refuse_peer(request.sender, request.target, request.epoch, None)
        if error is ErrorCode.NONE:
            leader_id = request.sender.key.node_id
            foreign = leader_id == state.key.node_id
            if foreign or not self._meet_leader(
                request.epoch, leader_id, request.leader_address, now_ms, "announced by itself"
            ):
                error = ErrorCode.INVALID_REQUEST
        state.answer(call, BeginQuorumEpochReply(error, state.known), state.after_election)

    # A leader gives up

    def resign(self, now_ms: int, reason: str, first: ReplicaKey | None = None) -> None:
        """Give up leadership, if this node leads; `first` heads the list of successors."""
        state = self._state
        if isinstance(state.role, Leader):
            replicas = state.role.replicas
            ends = {voter: replicas[voter].end if voter in replicas else 0 for voter in state.other_voters}
            slow = {voter for voter in ends if voter in replicas and is_slow(replicas[voter].write_ms, state.config)}
            order = sorted(ends, key=lambda voter: (voter != first, voter in slow, -ends[voter], voter))
            successors = tuple(order)
            self._leaders.note_successors(state.epoch, successors)
            self._transitions.become_resigned(successors, self._timeouts.election_deadline(now_ms), now_ms, reason)

    def say_farewell(self, resigned: Resigned, now_ms: int) -> None:
        state = self._state
        for voter, pending in resigned.farewells.items():
            if pending.is_due(now_ms):
                request = EndQuorumEpoch(state.sender, voter, state.epoch, resigned.successors, resigned.reason)
                state.ask(pending, Purpose.END, state.peer(voter), request, now_ms, voter=voter)

    def farewell_ended(self, resigned: Resigned, voter: ReplicaKey, heard: bool, now_ms: int) -> None:
        pending = resigned.farewells[voter]
        pending.call = None
        pending.failures += 1
        pending.due_ms = None if heard else now_ms + self._timeouts.retry_ms(pending.failures)

    def on_end(self, call: int, request: EndQuorumEpoch, now_ms: int) -> None:
        state = self._state
        error = self._refuse_peer(request.sender, request.target, request.epoch, None)
        leader_id = request.sender.key.node_id
        if (
            error is ErrorCode.NONE
            and request.epoch == state.epoch
            and state.election.leader_id not in (None, leader_id)
        ):
            error = ErrorCode.INVALID_REQUEST
        if error is ErrorCode.NONE and leader_id == state.key.node_id:
            error = ErrorCode.INVALID_REQUEST
        if error is ErrorCode.NONE:
            self._leaders.farewell = Farewell(request.epoch, request.reason)
            self._leaders.note_successors(request.epoch, request.successors)
            if request.epoch > state.epoch or state.election.leader_id is None:
                self._enter_ended(request.epoch, leader_id, now_ms)
            self._schedule_election(request.successors, now_ms)
        state.answer(call, EndQuorumEpochReply(error, state.known), state.after_election)

    def _enter_ended(self, epoch: int, leader_id: int, now_ms: int) -> None:
        """Enter an epoch whose leader has resigned before this node learned of the epoch."""
        state = self._state
        if not isinstance(state.role, Unattached) or epoch > state.epoch:
            self._transitions.become_unattached(epoch, now_ms, f"leader {leader_id} of epoch {epoch} has resigned")
        state.enter_epoch(epoch, leader_id)

    def _schedule_election(self, successors: tuple[ReplicaKey, ...], now_ms: int) -> None:
        """Set this voter's election timer by its place among the successors.

        The first successor becomes a candidate immediately.  The delay doubles from each further successor to the next,
        up to a maximum.  Voters that are not listed come last.
        """
        state = self._state
        if isinstance(state.role, Follower):
            if not state.role.leader_ended:
                state.role.leader_ended = True
                state.seek = PendingRequest(now_ms)
        elif isinstance(state.role, Prospective):
            state.role.lost_leader_id = state.role.lost_leader = None
        if not state.may_be_candidate or not isinstance(state.role, Follower | Unattached):
            return
        longest = delay = state.config.election_timeout_ms
        if state.key in successors[1:]:
            place, last = successors.index(state.key), len(successors) - 1
            # Without a limit, more than ten successors would all become candidates at once.
            shortest = longest >> min(last, DELAYS_MAX)
            delay = min(longest, shortest << (place - 1))
        is_first = successors[:1] == (state.key,)
        state.role.deadline_ms = now_ms if is_first else now_ms + delay + self._timeouts.patience_ms(now_ms)

    # A node that is in a later epoch than its leader

    def hear_seeker(self, request: DescribeQuorum, now_ms: int) -> None:
        """Start an election in an epoch after the sender's, if the sender otherwise could not follow this leader.

        A voter that was removed while it was a candidate stays in its later epoch, as do the nodes that learned that
        epoch from it.  They follow no leader of an older epoch, and no voter adopts their epoch, because they are not
        voters.
        """
        state = self._state
        leader, epoch = state.role, request.epoch
        if not isinstance(leader, Leader) or request.sender.key in state.history.current:
            return
        if not state.may_be_candidate:  # this leader has left the voters: the next leader will learn of that node
            return
        if not state.epoch < epoch <= state.epoch + EPOCH_AHEAD_MAX:
            return
        if leader.outrun_ms is None:
            leader.outrun_ms = now_ms
        self._contacts.update_pause(leader, now_ms)
        # During an election observers learn the new epoch first.  If a majority still fetches after a fetch timeout, no
        # election is under way.
        waited = now_ms - leader.outrun_ms >= state.config.fetch_timeout_ms
        if waited and not leader.paused and leader.handover is None and state.high_watermark > leader.epoch_start:
            node_id = request.sender.key.node_id
            self._transitions.become_candidate(
                now_ms, f"starts a new epoch: node {node_id} is in epoch {epoch}", above=epoch
            )
