"""`RaftCore`: one node of the quorum as a pure state machine, events in, effects out.

Theory of operation.  One task owns the core and calls `step` for everything that happens: a request or reply, a write
that has become durable, a proposal, time.  `step` never waits and never fails: it changes the state, and returns the
effects, in order.

The core consists of parts that share one `CoreState`.  A part may use other parts, but no two parts use each other.
Instead, a part leaves a decision in the state or returns it, and `RaftCore` passes it on.

    part            for                                                          uses, besides the state
    Timeouts        back-offs and deadlines
    Contacts        live replicas, and contact with a majority
    LeaderHistory   past leaders, and those that led only briefly
    Transitions     the roles and the legal transitions between them             Timeouts, LeaderHistory
    VoterAddresses  newer addresses of voters, while no leader can record them
    Elections       adopted epochs, votes, resigning                             VoterAddresses and the four above it
    LeaderSearch    requests to other nodes for the leader                       Timeouts
    Founding        how an empty disk founds or joins a cluster                  Transitions, LeaderSearch, Contacts,
                                                                                 Timeouts
    Snapshots       the log's start, snapshots sent by a leader                  Contacts
    Downloads       snapshots received by a follower                             Timeouts
    Replication     proposals, fetches served, the high watermark                Snapshots, Contacts
    Following       fetches sent by a follower                                   Downloads, Timeouts
    ReadIndex       current reads, confirmed by the voters                       Contacts
    Handovers       transfer of leadership, preferred leaders                    Elections, LeaderHistory, Contacts
    ChangeGate      the outcome of a change of the voters                        Replication, Contacts
    Membership      changes of the voters, one at a time, and towards a target   ChangeGate, Contacts, Timeouts
    Status          the answer to DescribeQuorum                                 LeaderHistory, Contacts, Handovers,
                                                                                 VoterAddresses

Every step ends in the same way: requests that are due are sent, parked fetches are answered if there is something to
send, a higher watermark is reported to the shell, the step's write is put before its other effects, and the invariants
are checked.  A node that cannot take part (`refused`) omits the first two.  An AssertionError is a bug in this package
or its shell; nothing that a peer sends can cause one."""

from __future__ import annotations

from random import Random
from typing import assert_never

from quorum.core.addresses import VoterAddresses
from quorum.core.change_gate import ChangeGate
from quorum.core.changes import Verdict, report_change
from quorum.core.config import RaftConfig
from quorum.core.contacts import Contacts
from quorum.core.downloads import Downloads
from quorum.core.election import Elections
from quorum.core.events import (
    Anomaly,
    ChangeVoters,
    ConfirmRead,
    Effect,
    Event,
    Joined,
    LogRead,
    Peer,
    Prefer,
    ProposalRefused,
    Propose,
    ReadRefused,
    ReplyReceived,
    RequestFailed,
    RequestReceived,
    Resign,
    SnapshotFailed,
    SnapshotLoaded,
    SnapshotPart,
    SnapshotRead,
    SnapshotTaken,
    Tick,
    Transfer,
    Transferred,
    TrimLog,
    VoterChangeError,
    Written,
)
from quorum.core.following import Following
from quorum.core.founding import Founding
from quorum.core.handover import Handovers
from quorum.core.leader_history import LeaderHistory
from quorum.core.log_index import LogIndex
from quorum.core.membership import Membership
from quorum.core.messages import (
    BeginQuorumEpoch,
    BeginQuorumEpochReply,
    DescribeQuorum,
    DescribeQuorumReply,
    EndQuorumEpoch,
    EndQuorumEpochReply,
    ErrorCode,
    Fetch,
    FetchReply,
    FetchSnapshot,
    FetchSnapshotReply,
    Introduce,
    IntroduceReply,
    Knowledge,
    Reply,
    Request,
    Vote,
    VoteReply,
)
from quorum.core.reads import ReadIndex
from quorum.core.replication import Replication
from quorum.core.roles import (
    Candidate,
    Follower,
    Leader,
    Newborn,
    PendingRequest,
    Prospective,
    Resigned,
    RoleState,
    Unattached,
)
from quorum.core.search import LeaderSearch
from quorum.core.snapshots import Snapshots
from quorum.core.state import Call, CoreState, Purpose
from quorum.core.status import Status
from quorum.core.timeouts import Timeouts
from quorum.core.transitions import Transitions
from quorum.core.types import Election, LogEnd, ReplicaKey, StoredQuorum
from quorum.core.voters import VoterHistory

IDLE_TICK_MS = 10_000
"""Maximum time from the last step to the next tick, even if nothing is due."""
STRANGERS_MAX = 100
"""Maximum number of addresses that are reported because another cluster answers there."""


class RaftCore:
    """One node of the quorum.  Its properties are for reading."""

    def __init__(self, config: RaftConfig, stored: StoredQuorum, random: Random, now_ms: int) -> None:
        state = self._state = CoreState(config, stored, now_ms)
        self._timeouts = Timeouts(state, random)
        self._contacts = Contacts(state)
        self._leaders = LeaderHistory(state)
        self._transitions = Transitions(state, self._timeouts, self._leaders)
        self._addresses = VoterAddresses(state)
        self._elections = Elections(
            state, self._timeouts, self._contacts, self._leaders, self._transitions, self._addresses
        )
        self._search = LeaderSearch(state, self._timeouts)
        self._snapshots = Snapshots(state, self._contacts)
        self._downloads = Downloads(state, self._timeouts)
        self._replication = Replication(state, self._contacts, self._snapshots)
        self._following = Following(state, self._timeouts, self._downloads)
        self._reads = ReadIndex(state, self._contacts)
        self._handovers = Handovers(state, self._contacts, self._leaders, self._elections)
        self._gate = ChangeGate(state, self._contacts, self._replication)
        self._membership = Membership(state, self._timeouts, self._contacts, self._gate)
        self._founding = Founding(state, self._timeouts, self._contacts, self._transitions, self._search)
        self._status = Status(state, self._contacts, self._leaders, self._handovers, self._addresses)
        self._strangers: set[str] = set()  # addresses where another cluster answers, already reported
        self._now_ms = now_ms
        self._idle_ms = now_ms
        self._boot(stored, now_ms)

    # Boot

    def _boot(self, stored: StoredQuorum, now_ms: int) -> None:
        """Take the role that the disk's content allows.  An epoch that this node led before is not led again."""
        state = self._state
        refusal = _refuse_stored(state, stored)
        if refusal is not None:
            return state.refuse(refusal)
        if not state.met:
            return self._founding.begin(now_ms)
        assert state.cluster_id is not None
        state.effects.append(Joined(state.cluster_id))
        if state.log.last.epoch > state.epoch:
            state.election = Election(state.log.last.epoch)
            state.save_election()
        leader_id = state.election.leader_id
        leader = state.history.current.by_id(leader_id) if leader_id is not None else None
        if leader_id == state.key.node_id and state.is_voter:
            reason = f"led epoch {state.epoch} before its restart"
            return self._transitions.become_resigned((), self._timeouts.first_deadline(now_ms), now_ms, reason)
        if leader is not None and leader_id != state.key.node_id:
            address = leader.address
            return self._transitions.become_follower(
                state.epoch, leader.key.node_id, address, now_ms, "follows the leader that its disk names"
            )
        return self._transitions.become(Unattached(self._timeouts.first_deadline(now_ms)), now_ms, "started")

    # Steps

    def step(self, event: Event, now_ms: int) -> list[Effect]:
        """Apply one event; return the effects for the shell, in order.

        `now_ms` must come from one monotonic clock.  The first step also returns the effects of the start itself.
        """
        state = self._state
        before_ms, self._now_ms = self._now_ms, max(now_ms, self._now_ms)
        now_ms = self._now_ms
        if now_ms - before_ms >= state.config.fetch_timeout_ms * 3 // 2:
            state.latency.held_up(now_ms)
            if isinstance(state.role, Leader):
                self._contacts.begin_trusted_round(state.role)
                self._membership.restart_checks(state.role)
        self._idle_ms = now_ms + IDLE_TICK_MS
        if state.refused is None:
            self._dispatch(event, now_ms)
            if state.refused is None:
                self._pursue(now_ms)
        else:
            self._refuse_work(event, state.refused)
        self._replication.report_watermark()
        state.close_draft(now_ms)
        state.check()
        assert not isinstance(event, Tick) or self.deadline_ms > now_ms, f"idle tick at {now_ms} as {state.role}"
        effects, state.effects = state.effects, []
        return effects

    def _refuse_work(self, event: Event, reason: str) -> None:
        """Refuse the requests of the shell, because this node cannot take part."""
        state = self._state
        match event:
            case Propose():
                state.effects.append(ProposalRefused(reason, leads=False))
            case ConfirmRead(call):
                state.effects.append(ReadRefused(call, reason))
            case Transfer(call):
                state.effects.append(Transferred(call, VoterChangeError.NOT_LEADER, reason))
            case ChangeVoters(call):
                report_change(self._state, call, Verdict(VoterChangeError.NOT_LEADER, reason))

    def _dispatch(self, event: Event, now_ms: int) -> None:
        state = self._state
        match event:
            case Tick():
                self._on_tick(now_ms)
            case RequestReceived(call, request):
                self._on_request(call, request, now_ms)
            case ReplyReceived(number, reply):
                if (call_ := state.calls.pop(number, None)) is not None:
                    self._on_reply(number, call_, reply, now_ms)
            case RequestFailed(number):
                if (call_ := state.calls.pop(number, None)) is not None:
                    self._on_no_reply(number, call_, now_ms)
            case Written(write_id):
                self._on_written(write_id, now_ms)
            case LogRead():
                self._replication.on_log_read(event)
            case Propose():
                self._replication.on_propose(event, now_ms)
            case Resign(reason):
                self._elections.resign(now_ms, reason)
            case ChangeVoters():
                self._membership.on_change_voters(event, now_ms)
            case Transfer():
                self._handovers.on_transfer(event, now_ms)
            case Prefer(node_ids):
                self._handovers.preferred = node_ids
            case ConfirmRead():
                self._reads.on_confirm_read(event, now_ms)
            case SnapshotTaken():
                self._snapshots.on_snapshot_taken(event)
            case TrimLog():
                self._snapshots.on_trim_log(event)
            case SnapshotRead():
                self._snapshots.on_snapshot_read(event)
            case SnapshotPart():
                self._downloads.on_snapshot_part(event, now_ms)
            case SnapshotLoaded():
                self._downloads.on_snapshot_loaded(event, now_ms)
            case SnapshotFailed():
                self._downloads.on_snapshot_failed(event, now_ms)
            case _:
                assert_never(event)

    def _on_request(self, call: int, request: Request, now_ms: int) -> None:
        state = self._state
        match request:
            case Vote():
                self._elections.on_vote(call, request, now_ms)
            case BeginQuorumEpoch():
                self._elections.on_begin(call, request, now_ms)
            case EndQuorumEpoch():
                self._elections.on_end(call, request, now_ms)
            case Fetch():
                self._replication.on_fetch(call, request, now_ms)
            case FetchSnapshot():
                self._snapshots.on_fetch_snapshot(call, request, now_ms)
            case Introduce():
                self._founding.on_introduce(call, request, now_ms)
            case DescribeQuorum():
                error = state.refuse_stranger(request.sender, None)
                if error is ErrorCode.NONE:
                    self._addresses.given(request.sender.key, request.address)
                    self._elections.hear_seeker(request, now_ms)
                state.answer(call, self.describe(now_ms, error))
            case _:
                assert_never(request)
        if state.newborn is not None and isinstance(request, Vote | BeginQuorumEpoch):
            self._founding.hear_of(state.newborn, request.sender.key, failed_only=False, now_ms=now_ms)

    def _on_written(self, write_id: int, now_ms: int) -> None:
        state = self._state
        state.written(write_id, now_ms)
        newborn = state.newborn
        if newborn is not None and newborn.write is not None and newborn.write <= write_id:
            self._founding.on_settled(newborn, now_ms)
        self._elections.count_votes(now_ms)
        if isinstance(state.role, Leader):
            self._replication.commit(state.role)

    # Replies.  A `PendingRequest` accepts only the reply to its call in flight, and no reply after a change of role.

    def _pending_of(self, call: Call) -> PendingRequest | None:
        state = self._state
        if call.purpose is Purpose.INTRODUCE:
            return self._founding.introduction(state.newborn, call.to.address) if state.newborn is not None else None
        if call.role is not state.role:
            return None
        if call.purpose is Purpose.SEEK:
            return state.seek
        match state.role:
            case Follower() as follower:
                return follower.fetch
            case Prospective() | Candidate() as candidacy:
                return candidacy.votes.get(call.voter) if call.voter is not None else None
            case Leader() as leader:
                return leader.announcements.get(call.voter) if call.voter is not None else None
            case Resigned() as resigned:
                return resigned.farewells.get(call.voter) if call.voter is not None else None
        return None

    def _on_reply(self, number: int, call: Call, reply: Reply, now_ms: int) -> None:
        state = self._state
        self._elections.learn(reply.known, now_ms)
        if reply.error is ErrorCode.INCONSISTENT_CLUSTER_ID and state.met:
            self._note_stranger(call.to.address, reply.known.cluster_id)
        if call.purpose is Purpose.PROBE and state.refused is None:
            return self._membership.on_probe_reply(number, call, reply, now_ms)
        pending = self._pending_of(call)
        if state.refused is not None or pending is None or pending.call != number:
            return None
        role = state.role
        match reply, role:
            case VoteReply(), Prospective() | Candidate() if call.voter is not None:
                self._elections.on_vote_reply(role, call.voter, reply, now_ms)
            case FetchReply(), Follower() if isinstance(call.request, Fetch):
                self._following.on_fetch_reply(role, call.request, call.sent_ms, reply, now_ms)
            case FetchSnapshotReply(), Follower() if isinstance(call.request, FetchSnapshot):
                self._downloads.on_fetch_snapshot_reply(role, call.request, reply, now_ms)
            case BeginQuorumEpochReply(), Leader() if call.voter is not None:
                self._elections.announcement_ended(role, call.voter, call.sent_ms)
            case EndQuorumEpochReply(), Resigned() if call.voter is not None:
                heard = reply.error in (ErrorCode.NONE, ErrorCode.FENCED_LEADER_EPOCH)
                self._elections.farewell_ended(role, call.voter, heard, now_ms)
            case DescribeQuorumReply(), _ if call.purpose is Purpose.SEEK:
                self._addresses.reported(tuple(each.replica for each in reply.voters))
                self._search.ended(call.to, True, now_ms)
            case IntroduceReply(), _ if state.newborn is not None and call.purpose is Purpose.INTRODUCE:
                self._founding.on_introduce_reply(state.newborn, call.to, reply, now_ms)
            case _:
                self._on_no_reply(number, call, now_ms)  # a reply of another type counts as no reply
        return None

    def _note_stranger(self, address: str, cluster_id: str | None) -> None:
        """Report, once for each address, that another cluster answers there.

        An operator must decide to which of the two clusters the address belongs.
        """
        state = self._state
        if address in self._strangers or len(self._strangers) >= STRANGERS_MAX:
            return
        self._strangers.add(address)
        state.effects.append(
            Anomaly(
                f"{address} belongs to cluster {cluster_id}, this node to {state.cluster_id}: "
                "this node follows no leader of that cluster"
            )
        )

    def _on_no_reply(self, number: int, call: Call, now_ms: int) -> None:
        state = self._state
        if call.purpose is Purpose.PROBE:
            return self._membership.on_probe_reply(number, call, None, now_ms)
        pending = self._pending_of(call)
        if pending is None or pending.call != number:
            return None
        role = state.role
        if call.purpose is Purpose.SEEK:
            self._search.ended(call.to, False, now_ms)
        elif call.purpose is Purpose.INTRODUCE and state.newborn is not None:
            self._founding.introduce_failed(state.newborn, call.to, now_ms)
        elif isinstance(role, Follower):
            self._following.fetch_failed(role, now_ms)
        elif call.voter is not None:
            match role:
                case Prospective() | Candidate():
                    self._elections.vote_failed(role, call.voter, now_ms)
                case Leader():
                    self._elections.announcement_ended(role, call.voter, call.sent_ms)
                case Resigned():
                    self._elections.farewell_ended(role, call.voter, False, now_ms)
        return None

    # Time

    def _on_tick(self, now_ms: int) -> None:
        state = self._state
        self._handovers.expire_transfer(now_ms)
        match state.role:
            case Leader() as leader:
                self._contacts.update_pause(leader, now_ms)
                stalled_ms = self._contacts.stalled_ms(leader, now_ms)
                if stalled_ms is not None:
                    self._elections.resign(now_ms, f"the disk has not answered for {stalled_ms} ms")
                else:
                    self._replication.expire_parked(leader, now_ms)
            case Follower() as follower if now_ms >= follower.deadline_ms and self._downloads.waits_for_shell(follower):
                follower.deadline_ms = self._timeouts.fetch_deadline(now_ms)
            case Follower() as follower if now_ms >= follower.deadline_ms:
                end = "has resigned" if follower.leader_ended else "does not answer"
                reason = f"leader {follower.leader_id} {end}"
                if self._elections.waits_for_faster(follower, now_ms):
                    follower.deadline_ms = now_ms + self._timeouts.patience_ms(now_ms)
                elif state.may_be_candidate:
                    self._elections.begin_election(now_ms, reason)
                else:
                    self._transitions.become_unattached(state.epoch, now_ms, reason)
            case Unattached() | Prospective() | Candidate() as candidacy:
                if candidacy.deadline_ms is not None and now_ms >= candidacy.deadline_ms:
                    self._elections.on_election_timeout(candidacy, now_ms)
            case Resigned() as resigned if resigned.deadline_ms is not None and now_ms >= resigned.deadline_ms:
                resigned.deadline_ms = None
                if state.is_sole_voter:
                    self._elections.begin_election(now_ms, "no other voter")
                else:
                    before = state.epoch
                    self._transitions.become_unattached(before + 1, now_ms, "no successor is known")
                    state.note_new_epoch(before)

    @property
    def deadline_ms(self) -> int:
        """Return the time at which the next `Tick` is due.  A `Tick` at that time always moves this deadline."""
        if self._state.refused is not None:
            return self._idle_ms
        times = [time for time in self._timers() if time is not None]
        return min(times, default=self._idle_ms)

    def _timers(self) -> list[int | None]:
        state = self._state
        times: list[int | None] = [self._idle_ms]
        if self._leaders.transfer is not None:
            times.append(self._leaders.transfer.deadline_ms)
        if state.newborn is not None:
            return times + self._founding.timers(state.newborn)
        if self._search.is_on():
            times.append(state.seek.wakes_ms)
        match state.role:
            case Leader() as leader:
                times += [pending.wakes_ms for pending in leader.announcements.values()]
                times += [leader.expiry_ms, leader.owed_ms]
                times += self._membership.timers(leader, self._now_ms)
                times += self._handovers.timers(leader, self._now_ms)
                timeout = state.config.fetch_timeout_ms
                if not leader.paused and (contact := self._contacts.majority_contact_ms(leader)) is not None:
                    times.append(contact + timeout)
                if state.oldest_write_ms is not None:
                    times.append(state.oldest_write_ms + self._contacts.stall_limit_ms(leader, self._now_ms))
            case Follower() as follower:
                times.append(follower.deadline_ms)
                if state.all_durable and not follower.leader_ended:
                    times.append(follower.fetch.wakes_ms)
            case Prospective() | Candidate() as candidacy:
                times.append(candidacy.deadline_ms)
                times += [vote.wakes_ms for vote in candidacy.votes.values()]
            case Resigned() as resigned:
                times.append(resigned.deadline_ms)
                times += [pending.wakes_ms for pending in resigned.farewells.values()]
            case Unattached() as unattached:
                times.append(unattached.deadline_ms)
        return times

    def _pursue(self, now_ms: int) -> None:
        """Send the requests that are due, and answer the parked fetches for which there is something to send."""
        state = self._state
        if state.newborn is not None:
            return self._founding.introduce(state.newborn, now_ms)
        match state.role:
            case Leader() as leader:
                self._contacts.update_pause(leader, now_ms)  # this event may end a long suspension of the process
                self._membership.pursue(leader, now_ms)
                if self._membership.has_left:
                    self._elections.resign(now_ms, "is no longer a voter")
                self._handovers.pursue(leader, now_ms)
                if state.role is not leader:
                    return self._pursue(now_ms)
                self._elections.announce(leader, now_ms)
                self._reads.confirm_reads(leader)
                self._replication.wake_parked(leader, now_ms)
            case Follower() as follower:
                self._following.fetch(follower, now_ms)
            case Prospective() | Candidate() as candidacy:
                self._elections.ask_for_votes(candidacy, now_ms)
            case Resigned() as resigned:
                self._elections.say_farewell(resigned, now_ms)
        if self._search.is_on():
            self._search.ask_next(now_ms)
        return None

    # The state, for reading

    @property
    def config(self) -> RaftConfig:
        return self._state.config

    @property
    def key(self) -> ReplicaKey:
        return self._state.key

    @property
    def log(self) -> LogIndex:
        return self._state.log

    @property
    def history(self) -> VoterHistory:
        return self._state.history

    @property
    def snapshot(self) -> LogEnd | None:
        return self._state.snapshot

    @property
    def cluster_id(self) -> str | None:
        return self._state.cluster_id

    @property
    def generation(self) -> int:
        return self._state.generation

    @property
    def election(self) -> Election:
        return self._state.election

    @property
    def epoch(self) -> int:
        return self._state.epoch

    @property
    def role(self) -> RoleState:
        return self._state.role

    @property
    def leader(self) -> Peer | None:
        return self._state.leader

    @property
    def known(self) -> Knowledge:
        return self._state.known

    @property
    def high_watermark(self) -> int:
        return self._state.high_watermark

    @property
    def met(self) -> bool:
        return self._state.met

    @property
    def newborn(self) -> Newborn | None:
        return self._state.newborn

    @property
    def is_voter(self) -> bool:
        return self._state.is_voter

    @property
    def refused(self) -> str | None:
        return self._state.refused

    @property
    def paused(self) -> bool:
        """Return whether this is a leader from which no majority fetches."""
        state = self._state
        return isinstance(state.role, Leader) and state.role.paused

    @property
    def target_problem(self) -> str | None:
        """Return why this leader's last own step was refused: a step towards the target, or an update of an address.

        None if it was not refused, or if this node does not lead.
        """
        return self._state.role.target_problem if isinstance(self._state.role, Leader) else None

    def address_of(self, node_id: int) -> str | None:
        """Return the address in the latest fetch of node `node_id`; None if this node does not lead, or has received no
        fetch of that node."""
        role = self._state.role
        return role.address_of(node_id) if isinstance(role, Leader) else None

    def describe(self, now_ms: int, error: ErrorCode = ErrorCode.NONE) -> DescribeQuorumReply:
        """Return the state of the quorum that this node knows; ages are relative to `now_ms`.

        With an error, leave out the voters and observers.
        """
        return self._status.describe(now_ms, error)


def _refuse_stored(state: CoreState, stored: StoredQuorum) -> str | None:
    """Return why the disk cannot be used by this node; None if it can."""
    config, disk = state.config, stored.state
    if stored.node_id != config.node_id:
        return f"the directory belongs to node {stored.node_id}, this is node {config.node_id}"
    if None not in (config.cluster_id, disk.cluster_id) and config.cluster_id != disk.cluster_id:
        return f"the directory belongs to cluster {disk.cluster_id}, this node to cluster {config.cluster_id}"
    record = state.history.record
    if state.met and (record is None or record.cluster_id != disk.cluster_id):
        named = record.cluster_id if record is not None else None
        return f"the log is of cluster {named}, the quorum state of cluster {disk.cluster_id}"
    voters, target = state.history.below(disk.applied_offset)
    if state.met and (voters, target) != (disk.voters, disk.target_voters):
        text = f"the log below offset {disk.applied_offset} holds {voters}"
        return f"the quorum state does not match the log: it holds the voters {disk.voters}, but {text}"
    return None
