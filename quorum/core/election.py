"""Who leads: strangers, epochs, pre-votes, votes, and giving leadership up.

Theory of operation.  A voter that has not heard its leader for a while first asks, in the epoch it has, whether the
others would vote for it (Prospective: nothing is persisted, no epoch is disturbed), and only with a majority behind
it takes the next epoch and stands (Candidate).  A follower that hears its leader says no, so a node that was cut off
cannot unseat a working leader by coming back.  Of two Prospective nodes that ask each other, the one with the lower
(log end, id) agrees and waits; the other, refusing, asks again at once, because now it will be granted.  So a split
costs one round trip, not one more timeout.

A request is checked before any of it is believed: cluster, generation, and that it is meant for this very disk; only
then may its epoch be adopted, and only from a node that could be a voter.  Every reply says which epoch and leader
the other node knows, and that is how stale nodes learn.

Who cannot find the leader asks around (`seek`): one DescribeQuorum at a time, to a voter or bootstrap address drawn
at random.  Every node answers it from what it knows.

So does a leader that is *paused*, because no majority fetches: it may have been followed by another, or taken out of
the voters, while it was cut off, and any node may be the one that can tell it.  It asks voters and others in turn,
observers too, since a link to a broker may be whole when those to the voters are not.  When it has tried all other
voters and reached none, it has its connections dropped and goes back to the bootstrap addresses.  Until it hears of a
newer epoch it stays leader, so that a healed link needs no election.

Who asks around says in which epoch it is.  A leader that hears of a later one than its own, from a node that no vote
would be believed of, stands again above it at once, with its own log and its majority behind it: see `_hear_seeker`."""

from __future__ import annotations

from random import Random
from typing import NamedTuple

from quorum.core.config import RaftConfig
from quorum.core.events import Peer, ResetConnections
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
    Ballot,
    Candidate,
    Errand,
    Follower,
    Leader,
    Prospective,
    Resigned,
    Unattached,
)
from quorum.core.state import EPOCH_MAX, Purpose
from quorum.core.timeouts import is_slow
from quorum.core.transitions import Transitions
from quorum.core.types import Election, LogEnd, ReplicaKey, StoredQuorum

EPOCH_AHEAD_MAX = 16
"""How far the epoch of a node that is no voter may be ahead and be believed.  Each one took a majority's pre-votes."""


class VoterAddress(NamedTuple):
    """Where a voter is, by its own requests, while the log says something else."""

    by_log: str  # what the log said when the voter was heard: with another address there, this is outdated
    heard: str


class Elections(Transitions):
    """Votes, epochs, the end of a reign, and the search for a leader."""

    def __init__(self, config: RaftConfig, stored: StoredQuorum, random: Random, now_ms: int) -> None:
        super().__init__(config, stored, random, now_ms)
        self._addresses_heard: dict[ReplicaKey, VoterAddress] = {}

    _farewell: tuple[int, str] | None = None
    """(epoch, why it was given up) of the last farewell that was heard."""

    # What to believe

    def _refuse_peer(self, sender: Sender, target: ReplicaKey, epoch: int, log_end: LogEnd | None) -> ErrorCode:
        """The checks of Vote, BeginQuorumEpoch and EndQuorumEpoch, up to and including the epoch's plausibility.

        A node could be a voter if this log says so; or if its log is ahead of this one, since it may have been added
        by a record that has not come here yet.  A leader that removes itself leads, and says goodbye, as no voter.
        """
        state = self._state
        error = state.refuse_stranger(sender, target)
        if error is not ErrorCode.NONE:
            return error
        if not state.met:
            return ErrorCode.NEWBORN
        if not 0 <= epoch <= EPOCH_MAX or sender.key == state.key:
            return ErrorCode.INVALID_REQUEST
        leads = epoch == state.epoch and sender.key.node_id == state.election.leader_id
        ahead = log_end is not None and log_end > state.log.last
        if sender.key not in state.history.current and not leads and not ahead:
            return ErrorCode.NOT_VOTER
        return ErrorCode.FENCED_LEADER_EPOCH if epoch < state.epoch else ErrorCode.NONE

    def _learn(self, known: Knowledge, now_ms: int) -> None:
        """Take from a reply which epoch and leader its sender knows of."""
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
            self._meet_leader(known.epoch, leader_id, known.leader_address, now_ms, "told by a reply")
        elif known.epoch > state.epoch:
            self._become_unattached(known.epoch, now_ms, f"a reply has epoch {known.epoch}")
        return None

    def _meet_leader(self, epoch: int, leader_id: int, address: str, now_ms: int, how: str) -> bool:
        """Follow the leader of `epoch`, which is not below this node's; False if that contradicts what is known."""
        state = self._state
        if epoch == state.epoch and state.election.leader_id not in (None, leader_id):
            return False
        if epoch == state.epoch:
            if self._farewell is not None and self._farewell[0] == epoch:
                return True  # it has resigned; who says otherwise has not heard it yet
            match state.role:
                case Follower() as follower:
                    moved = follower.leader.address != address and follower.fetch.failures > 0
                    if moved and not follower.gone:
                        follower.move(address, now_ms)
                    return True
                case Prospective(lost_leader=lost) if lost == Peer(leader_id, address):
                    return True  # known, and out of reach: what others hear does not help
        self._become_follower(epoch, leader_id, address, now_ms, f"leader {leader_id} of epoch {epoch}, {how}")
        return True

    # Votes given

    def _on_vote(self, call: int, request: Vote, now_ms: int) -> None:
        state = self._state
        error = self._refuse_peer(request.sender, request.target, request.epoch, request.log_end)
        end = request.log_end
        if error is ErrorCode.NONE and (
            min(end) < 0 or end.epoch > request.epoch or (end.epoch == request.epoch and not request.pre_vote)
        ):
            error = ErrorCode.INVALID_REQUEST
        granted = False
        if error is ErrorCode.NONE:
            self._note_address(request.sender.key, request.address)
            if request.epoch > state.epoch:
                kind = "pre-vote" if request.pre_vote else "vote"
                self._become_unattached(
                    request.epoch, now_ms, f"{request.sender.key.node_id} asks for a {kind} in epoch {request.epoch}"
                )
            granted = self._grants_pre_vote(request, now_ms) if request.pre_vote else self._grants_vote(request, now_ms)
        state.answer(call, VoteReply(error, state.known, granted), state.after_election)

    def _grants_pre_vote(self, request: Vote, now_ms: int) -> bool:
        state = self._state
        candidate = request.sender.key
        if request.log_end < state.log.last:
            granted = False
        else:
            match state.role:
                case Leader():
                    granted = False
                case Follower() as follower:
                    granted = follower.gone or not follower.heard
                case Prospective():
                    granted = (request.log_end, candidate) > (state.log.last, state.key)
                    if granted:
                        deadline = self._timeouts.election_deadline(now_ms)
                        reason = f"gives way to {candidate.node_id}, which is ahead in (log end, id)"
                        self._become(Unattached(deadline), now_ms, reason)
                case _:
                    granted = True
        if not granted and isinstance(state.role, Prospective):
            ballot = state.role.ballots.get(candidate)
            if ballot is not None and not ballot.granted:
                state.role.ballots[candidate] = Ballot(now_ms)  # it stands, too, and is behind: now it will agree
        return granted

    def _grants_vote(self, request: Vote, now_ms: int) -> bool:
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
        self._become(Unattached(self._timeouts.election_deadline(now_ms)), now_ms, reason)
        return True

    def _note_address(self, key: ReplicaKey, address: str) -> None:
        """A voter that was started at another address can tell no leader when there is none: it tells whom it asks."""
        voter = self._state.history.current.by_id(key.node_id)
        if voter is not None and voter.key == key and address:
            self._addresses_heard[key] = VoterAddress(voter.address, address)

    def _where(self, voter: ReplicaKey, failures: int) -> Peer:
        """Where to ask for its vote: at the address that it gave since the log's was written, at the log's in turn."""
        by_log = self._state.peer(voter)
        known = self._addresses_heard.get(voter)
        if known is None or known.by_log != by_log.address or failures % 2:
            return by_log
        return Peer(voter.node_id, known.heard)

    # Votes sought

    def _stand(self, now_ms: int, reason: str) -> None:
        """Begin an election, unless the disk hangs: then a leader would be of no use."""
        state = self._state
        oldest_ms = state.oldest_write_ms
        if oldest_ms is not None and now_ms - oldest_ms >= state.config.fetch_timeout_ms:
            reason = f"does not stand: the disk has not answered for {now_ms - oldest_ms} ms"
            return self._become(Unattached(self._timeouts.election_deadline(now_ms)), now_ms, reason)
        if state.is_sole_voter:
            return self._become_candidate(now_ms, "the only voter")
        return self._become_prospective(now_ms, reason)

    def _waits_for_faster(self, follower: Follower, now_ms: int) -> bool:
        """Whether a follower that has lost its leader lets others stand first: once, if its disk is slow."""
        if follower.patient or follower.gone or not self._timeouts.patience_ms(now_ms):
            return False
        follower.patient, follower.heard = True, False
        return True

    def _ask_for_votes(self, standing: Prospective | Candidate, now_ms: int) -> None:
        state = self._state
        pre_vote = isinstance(standing, Prospective)
        for voter, ballot in standing.ballots.items():
            if ballot.is_due(now_ms):
                request = Vote(state.sender, voter, state.epoch, state.log.last, pre_vote, state.config.address)
                to = self._where(voter, ballot.failures)
                state.ask(ballot, Purpose.VOTE, to, request, now_ms, voter=voter, after=state.after_election)

    def _on_vote_reply(
        self, standing: Prospective | Candidate, voter: ReplicaKey, reply: VoteReply, now_ms: int
    ) -> None:
        ballot = standing.ballots[voter]
        ballot.call = None
        if reply.error is not ErrorCode.NONE:
            return self._vote_failed(standing, voter, now_ms)
        ballot.due_ms, ballot.granted = None, reply.granted
        return self._count_votes(now_ms)

    def _vote_failed(self, standing: Prospective | Candidate, voter: ReplicaKey, now_ms: int) -> None:
        """No answer says nothing: ask again while the election lasts."""
        ballot = standing.ballots[voter]
        ballot.call = None
        ballot.failures += 1
        ballot.due_ms = now_ms + self._timeouts.backoff_ms(ballot.failures)

    def _count_votes(self, now_ms: int) -> None:
        state = self._state
        standing = state.role
        if not isinstance(standing, Prospective | Candidate):
            return
        majority = state.history.current.majority
        granting = [voter for voter, ballot in standing.ballots.items() if ballot.granted]
        against = sum(ballot.granted is False for ballot in standing.ballots.values())
        own = int(state.is_voter)
        if isinstance(standing, Prospective):
            if len(granting) + own >= majority:
                self._become_candidate(
                    now_ms, f"{len(granting) + own} of {len(standing.ballots) + own} would vote for it"
                )
            elif len(standing.ballots) + own - against < majority:
                self._lose_pre_vote(standing, now_ms, "a majority would not vote for it")
            return
        if own and state.durable_write >= standing.vote_write:
            granting.append(state.key)
        if len(granting) >= majority:
            names = ", ".join(str(voter.node_id) for voter in sorted(granting))
            self._become_leader(tuple(sorted(granting)), now_ms, f"elected by {names}")

    def _lose_pre_vote(self, prospective: Prospective, now_ms: int, reason: str) -> None:
        """Go back to the leader that was lost, if there is one; else wait out the timer and try again."""
        if prospective.lost_leader is not None and prospective.lost_leader_id is not None:
            leader_id, address = prospective.lost_leader_id, prospective.lost_leader.address
            reason = f"{reason}; back to leader {leader_id}"
            self._become_follower(self._state.epoch, leader_id, address, now_ms, reason)

    def _on_election_timeout(self, standing: Unattached | Prospective | Candidate, now_ms: int) -> None:
        match standing:
            case Prospective(lost_leader=Peer()):
                self._lose_pre_vote(standing, now_ms, "pre-vote timed out")
            case Prospective():
                self._stand(now_ms, "pre-vote timed out")
            case Candidate():
                self._stand(now_ms, f"not elected in epoch {self._state.epoch}")
            case Unattached():
                self._stand(now_ms, "election timeout")

    # A new leader announces itself

    def _announce(self, leader: Leader, now_ms: int) -> None:
        state = self._state
        for voter, errand in leader.announcements.items():
            if errand.is_due(now_ms):
                request = BeginQuorumEpoch(state.sender, voter, state.epoch, state.config.address)
                after = state.after_election
                state.ask(errand, Purpose.BEGIN, state.peer(voter), request, now_ms, voter=voter, after=after)

    def _announcement_ended(self, leader: Leader, voter: ReplicaKey, sent_ms: int) -> None:
        """Answered or not, say it again every half fetch timeout, unless the voter fetches meanwhile."""
        errand = leader.announcements[voter]
        errand.call = None
        errand.due_ms = max(errand.due_ms or 0, sent_ms + self._state.config.fetch_timeout_ms // 2)

    def _on_begin(self, call: int, request: BeginQuorumEpoch, now_ms: int) -> None:
        state = self._state
        error = self._refuse_peer(request.sender, request.target, request.epoch, None)
        if error is ErrorCode.NONE:
            leader_id = request.sender.key.node_id
            foreign = leader_id == state.key.node_id
            if foreign or not self._meet_leader(
                request.epoch, leader_id, request.leader_address, now_ms, "by its own word"
            ):
                error = ErrorCode.INVALID_REQUEST
        state.answer(call, BeginQuorumEpochReply(error, state.known), state.after_election)

    # A leader gives up

    def _resign(self, now_ms: int, reason: str, first: ReplicaKey | None = None) -> None:
        """Only a leader can; to anyone else there is nothing to give up.  `first` is to stand before the others."""
        state = self._state
        if isinstance(state.role, Leader):
            replicas = state.role.replicas
            ends = {voter: replicas[voter].end if voter in replicas else 0 for voter in state.other_voters}
            slow = {voter for voter in ends if voter in replicas and is_slow(replicas[voter].write_ms, state.config)}
            order = sorted(ends, key=lambda voter: (voter != first, voter in slow, -ends[voter], voter))
            successors = tuple(order)
            self._become_resigned(successors, self._timeouts.election_deadline(now_ms), now_ms, reason)

    def _say_farewell(self, resigned: Resigned, now_ms: int) -> None:
        state = self._state
        for voter, errand in resigned.farewells.items():
            if errand.is_due(now_ms):
                request = EndQuorumEpoch(state.sender, voter, state.epoch, resigned.successors, resigned.reason)
                state.ask(errand, Purpose.END, state.peer(voter), request, now_ms, voter=voter)

    def _farewell_ended(self, resigned: Resigned, voter: ReplicaKey, heard: bool, now_ms: int) -> None:
        errand = resigned.farewells[voter]
        errand.call = None
        errand.failures += 1
        errand.due_ms = None if heard else now_ms + self._timeouts.backoff_ms(errand.failures)

    def _on_end(self, call: int, request: EndQuorumEpoch, now_ms: int) -> None:
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
            self._farewell = (request.epoch, request.reason)
            if request.epoch > state.epoch or state.election.leader_id is None:
                self._enter_ended(request.epoch, leader_id, now_ms)
            self._stand_in_turn(request.successors, now_ms)
        state.answer(call, EndQuorumEpochReply(error, state.known), state.after_election)

    def _enter_ended(self, epoch: int, leader_id: int, now_ms: int) -> None:
        """An epoch that this node hears of only now, at its end."""
        state = self._state
        if not isinstance(state.role, Unattached) or epoch > state.epoch:
            self._become_unattached(epoch, now_ms, f"leader {leader_id} of epoch {epoch} has resigned")
        state.enter_epoch(epoch, leader_id)

    def _stand_in_turn(self, successors: tuple[ReplicaKey, ...], now_ms: int) -> None:
        """The first successor stands at once, each further one twice as late, the unlisted last."""
        state = self._state
        if isinstance(state.role, Follower):
            if not state.role.gone:
                state.role.gone = True
                state.seek = Errand(now_ms)
        elif isinstance(state.role, Prospective):
            state.role.lost_leader_id = state.role.lost_leader = None
        if not state.may_stand or not isinstance(state.role, Follower | Unattached):
            return
        longest = delay = state.config.election_timeout_ms
        if state.key in successors[1:]:
            place, last = successors.index(state.key), len(successors) - 1
            delay = min(longest, (longest >> last) << (place - 1))
        is_first = successors[:1] == (state.key,)
        state.role.deadline_ms = now_ms if is_first else now_ms + delay + self._timeouts.patience_ms(now_ms)

    # A node that is in a later epoch than its leader

    def _hear_seeker(self, request: DescribeQuorum, now_ms: int) -> None:
        """Lead anew, above the epoch of a node that can follow this leader in no other way.

        A voter that was taken out while it stood, and who heard of its epoch, believe no older one again, and nobody
        believes them, because they are no voters.  To tell that from an election under way, in which observers hear of
        the epoch first, the leader waits for a fetch timeout; if a majority fetches then, it is in no later epoch.
        """
        state = self._state
        leader, epoch = state.role, request.epoch
        if not isinstance(leader, Leader) or request.sender.key in state.history.current:
            return
        if not state.may_stand:  # it has left the voters: the next leader will hear of it
            return
        if not state.epoch < epoch <= state.epoch + EPOCH_AHEAD_MAX:
            return
        if leader.outrun_ms is None:
            leader.outrun_ms = now_ms
        self._contacts.update_pause(leader, now_ms)
        waited = now_ms - leader.outrun_ms >= state.config.fetch_timeout_ms
        if waited and not leader.paused and leader.handover is None and state.high_watermark > leader.epoch_start:
            node_id = request.sender.key.node_id
            self._become_candidate(now_ms, f"leads anew: node {node_id} is in epoch {epoch}", above=epoch)

    # Looking for the leader

    def _look_around(self, now_ms: int) -> None:
        """Ask one random node which leader it knows, if this node does not hear one."""
        state = self._state
        if not state.seek.is_due(now_ms):
            return
        peers = self._zombies_peers(state.role) if isinstance(state.role, Leader) else self._addresses()
        if not peers:
            state.seek.due_ms = None
            return
        to = peers[self._timeouts.draw(len(peers))]
        epoch = 0 if isinstance(state.role, Leader) else state.epoch_to_report or state.epoch
        state.ask(state.seek, Purpose.SEEK, to, DescribeQuorum(state.sender, state.config.address, epoch), now_ms)

    def _zombies_peers(self, leader: Leader) -> list[Peer]:
        """Whom a paused leader asks now: voters and others in turn; after a reset, a bootstrap address."""
        state = self._state
        known = self._addresses()
        if leader.reset:
            leader.reset = False
            named = {*state.config.bootstrap, *(address for _, address in state.config.founders)}
            bootstrap = [peer for peer in known if peer.address in named]
            return bootstrap or known
        voters = [peer for peer in known if self._is_voter_id(peer.node_id)]
        others = [peer for peer in known if not self._is_voter_id(peer.node_id)]
        for key in sorted(leader.replicas):
            if key not in state.history.current:
                others.append(Peer(key.node_id, leader.replicas[key].address))
        voters = [peer for peer in voters if peer.node_id not in leader.unreached] or voters
        first, second = (voters, others) if state.seek.failures % 2 == 0 else (others, voters)
        return first or second

    def _is_voter_id(self, node_id: int | None) -> bool:
        return node_id is not None and self._state.history.current.by_id(node_id) is not None

    def _note_contact(self, leader: Leader, to: Peer, answered: bool, now_ms: int) -> None:
        """Have the connections dropped once no other voter could be reached, at most every few seconds."""
        state = self._state
        if to.node_id is None or not self._is_voter_id(to.node_id):
            return
        if answered:
            leader.unreached.clear()
            return
        leader.unreached.add(to.node_id)
        others = {key.node_id for key in state.other_voters}
        if others <= leader.unreached and now_ms >= leader.reset_due_ms:
            leader.unreached.clear()
            leader.reset_due_ms = now_ms + state.config.reset_interval_ms
            leader.reset = True
            state.effects.append(ResetConnections())

    def _addresses(self) -> list[Peer]:
        """Where other nodes may be, in a fixed order: voters, then the bootstrap and founders' addresses."""
        state = self._state
        found = {voter.address: voter.key.node_id for voter in state.history.current if voter.key != state.key}
        peers = [Peer(node_id, address) for address, node_id in found.items()]
        named = sorted({*state.config.bootstrap, *(address for _, address in state.config.founders)})
        peers += [Peer(None, address) for address in named if address not in found and address != state.config.address]
        return peers

    def _seek_ended(self, to: Peer, answered: bool, now_ms: int) -> None:
        state = self._state
        state.seek.call = None
        if isinstance(state.role, Leader):
            self._note_contact(state.role, to, answered, now_ms)
        state.seek.failures += 1
        state.seek.due_ms = now_ms + self._timeouts.backoff_ms(state.seek.failures)

    def _is_seeking(self) -> bool:
        state = self._state
        match state.role:
            case Unattached() | Prospective() | Resigned():
                return state.met
            case Follower() as follower:
                return follower.gone or follower.fetch.failures > 0
            case Leader() as leader:
                return leader.paused
        return False
