"""The state that every part of the core shares, what may be done to it, and the transitions between roles.

Theory of operation.  A step changes state first and speaks last.  Handlers and transitions only note what has to
become durable (`_save_election`, `_append`, `_truncate`); all of it leaves as one `Write`, first among the step's
effects, with the quorum state as it is at the end of the step.  Answers that promise something carry the number of
the write that holds the promise.  Requests are not sent by transitions either: a role owes *errands*, and the end of
every step asks each module to run those that are due.  So there is one place that decides when a request leaves, one
that computes when the next tick is needed, and a transition cannot forget or repeat a message.

What makes this safe across crashes:
- A vote and an epoch leave this node (in a reply, or in the votes that a candidate asks for) only after their write.
- A fetch leaves when everything appended before is durable, so its offset is an acknowledgement.
- A node that led an epoch, or stood in it, never leads it again after a restart: as leader it boots Resigned, and
  a candidacy always takes a new epoch.  Unflushed batches of the lost reign may live on in followers; no other batch
  will ever carry their (epoch, offset).
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field, replace
from enum import Enum
from random import Random

from quorum.core.config import RaftConfig
from quorum.core.events import (
    Answer,
    Ask,
    ControlApplied,
    Effect,
    Peer,
    Refused,
    RoleChanged,
    Write,
)
from quorum.core.latency import WriteLatency
from quorum.core.log_index import LogIndex
from quorum.core.messages import ErrorCode, FetchReply, FetchSnapshot, Knowledge, Reply, Request, Sender
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
from quorum.core.types import (
    Batch,
    ControlRecord,
    Election,
    LeaderChange,
    LogBase,
    QuorumState,
    ReplicaKey,
    StoredQuorum,
    Voters,
    VoterSet,
)
from quorum.core.voters import VoterHistory

EPOCH_MAX = 2**31 - 2**16
"""No peer can drive the epoch above this: it would not fit the wire soon after."""

EPOCH_AHEAD_MAX = 16
"""How far the epoch of a node that is no voter may be ahead and be believed.  Each one took a majority's pre-votes."""


class Purpose(Enum):
    """What a request of ours was for."""

    VOTE = "vote"
    BEGIN = "begin"
    END = "end"
    PROBE = "probe"
    FETCH = "fetch"
    SEEK = "seek"
    INTRODUCE = "introduce"


@dataclass(frozen=True, slots=True)
class Call:
    """A request in flight, as far as the reply's handler needs it."""

    purpose: Purpose
    to: Peer
    role: RoleState
    voter: ReplicaKey | None
    sent_ms: int
    request: Request


@dataclass(slots=True)
class _Draft:
    """The write of the present step."""

    id: int
    truncate_to: int | None = None
    base: LogBase | None = None
    batches: list[Batch] = field(default_factory=list)


class CoreState:
    """Fields, durability, requests and transitions.  Not used by itself: see `RaftCore`."""

    def __init__(self, config: RaftConfig, stored: StoredQuorum, random: Random, now_ms: int) -> None:
        self.config = config
        self.key = ReplicaKey(stored.node_id, stored.directory_id)
        base_epoch = 0 if stored.base is None else stored.base.end.epoch
        self.log = LogIndex(stored.log_start, stored.log_end, stored.epochs, config.recent_max_bytes, base_epoch)
        self.history = VoterHistory(stored.controls, stored.base)
        self.snapshot = stored.snapshots[-1] if stored.snapshots else None  # the newest of ours
        self.cluster_id = stored.state.cluster_id
        self.generation = stored.state.generation
        self.election = stored.state.election
        self.met = stored.log_end > 0  # knows its cluster and its place in it; false for a newborn
        self.high_watermark = 0 if self.snapshot is None else self.snapshot.offset  # snapshots hold what is committed
        self.refused: str | None = None
        self.last_change_reason: str | None = None
        self.last_change_ms: int | None = None
        self.role: RoleState = Unattached(None)
        self.seek = Errand(now_ms)
        self._random = random
        self._looked_up: VoterSet | None = None
        self._is_listed = False
        self._other_voters: list[ReplicaKey] = []
        self._heard_at: dict[ReplicaKey, tuple[str, str]] = {}  # of voters: (by the log, by their own word)
        self._strangers: set[str] = set()  # addresses where another cluster answers, of which the shell was told
        self._announced = 0  # the high watermark that the shell was told
        self._calls: dict[int, Call] = {}
        self._snapshot_reads: dict[int, tuple[int, FetchSnapshot]] = {}  # by read id: (call, request)
        self._next_call = 1
        self._next_write = 1
        self._durable_write = 0
        self._election_write = 0  # the last write that changed the election
        self._raised: tuple[int, int] | None = None  # (write, epoch before) of the last epoch that this node began
        self._writes: deque[tuple[int, int]] = deque()  # (write id, when submitted), not durable yet
        self._latency = WriteLatency(now_ms)
        self._draft: _Draft | None = None
        self._effects: list[Effect] = []

    # What it knows

    @property
    def epoch(self) -> int:
        return self.election.epoch

    @property
    def is_voter(self) -> bool:
        """Whether this disk is in the voter set in force."""
        self._look_up_voters()
        return self.met and self._is_listed

    @property
    def may_stand(self) -> bool:
        """Whether this disk may stand for election: a voter, or one that a record removes which may not be committed.

        It may be the only disk that has the record, and every voter that lacks it still needs this one's log (Raft
        thesis §4.2.2).  It does not count itself.
        """
        return self.is_voter or (self.met and self.history.was_just_removed(self.key, self.high_watermark))

    @property
    def is_sole_voter(self) -> bool:
        return self.is_voter and len(self.history.current) == 1

    @property
    def other_voters(self) -> list[ReplicaKey]:
        """Ascending by node id."""
        self._look_up_voters()
        return self._other_voters

    def _look_up_voters(self) -> None:
        """What every step asks of the voter set, kept as long as it is the same one."""
        voters = self.history.current
        if voters is not self._looked_up:
            self._looked_up = voters
            self._is_listed = self.key in voters
            self._other_voters = [voter.key for voter in voters if voter.key != self.key]

    @property
    def leader(self) -> Peer | None:
        """The leader that this node follows or is; None while it hears none."""
        match self.role:
            case Leader():
                return Peer(self.key.node_id, self.config.address)
            case Follower(gone=False) as follower:
                return follower.leader
        return None

    @property
    def known(self) -> Knowledge:
        leader = self.leader
        return Knowledge(
            cluster_id=self.cluster_id or self.config.cluster_id,
            generation=self.generation,
            epoch=self.epoch,
            leader_id=leader.node_id if leader is not None else None,
            leader_address=leader.address if leader is not None else None,
        )

    @property
    def _sender(self) -> Sender:
        return Sender(self.cluster_id or self.config.cluster_id, self.generation, self.key)

    def _refuse_stranger(self, sender: Sender, target: ReplicaKey | None) -> ErrorCode:
        """Refuse other clusters, other generations, and what is meant for another disk; looks at no epoch."""
        own = self.cluster_id or self.config.cluster_id
        if sender.cluster_id is None or own is None or sender.cluster_id != own:
            return ErrorCode.NEWBORN if own is None else ErrorCode.INCONSISTENT_CLUSTER_ID
        if self.met and sender.generation != self.generation:
            return ErrorCode.OLD_GENERATION
        if target is not None and target != self.key:
            return ErrorCode.INVALID_VOTER_KEY
        return ErrorCode.NONE

    # Durability

    def _open_draft(self) -> _Draft:
        if self._draft is None:
            self._draft = _Draft(self._next_write)
            self._next_write += 1
        return self._draft

    def _save_election(self) -> None:
        self._election_write = self._open_draft().id

    def _append(self, batch: Batch) -> None:
        draft = self._open_draft()
        self.log.append(batch, draft.id)
        draft.batches.append(batch)
        if batch.control is not None:
            self.history.append(batch)
            if isinstance(batch.control, Voters):
                self.cluster_id = batch.control.cluster_id
                self.generation = max(self.generation, batch.control.generation)
            self._effects.append(ControlApplied(batch.control))

    def _truncate(self, to: int) -> None:
        draft = self._open_draft()
        assert not draft.batches, f"truncate to {to} after {draft}"
        assert draft.truncate_to is None, f"truncate to {to} after {draft}"
        assert to >= self.high_watermark, f"truncate to {to} below the high watermark {self.high_watermark}"
        draft.truncate_to = to
        self.log.truncate(to)
        restored: list[ControlRecord] = self.history.truncate(to)
        self._effects += [ControlApplied(record) for record in restored]

    def _close_draft(self, now_ms: int) -> None:
        """Put the step's write, if there is one, before its other effects."""
        if self._draft is None:
            return
        draft, self._draft = self._draft, None
        state = QuorumState(
            cluster_id=self.cluster_id,
            generation=self.generation,
            election=self.election,
            applied_offset=self.log.end,
            voters=self.history.current,
            target_voters=self.history.target,
        )
        self._writes.append((draft.id, now_ms))
        self._effects.insert(0, Write(draft.id, state, draft.truncate_to, tuple(draft.batches), draft.base))

    @property
    def _all_durable(self) -> bool:
        return not self._writes and self._draft is None

    @property
    def _after_election(self) -> int | None:
        """The write that must be durable before this node may tell its epoch and vote."""
        return self._election_write if self._election_write > self._durable_write else None

    def _note_raised(self, before: int) -> None:
        """An epoch that this node began, and that no other disk has, is told to nobody before it is durable.

        Else a crash would take it back, and who had heard of it would wait for it: an observer for ever, since no
        leader believes it.
        """
        pending = self._epoch_to_tell
        self._raised = (self._election_write, before if pending is None else pending)

    @property
    def _epoch_to_tell(self) -> int | None:
        """The epoch to tell others instead of the present one; None when that may be told."""
        if self._raised is None or self._raised[0] <= self._durable_write:
            return None
        return self._raised[1]

    def _disk_stalled(self, now_ms: int) -> bool:
        """Whether the disk has kept a write waiting for too long to take on a leader's duty."""
        return bool(self._writes) and now_ms - self._writes[0][1] >= self.config.fetch_timeout_ms

    def _write_ms(self, now_ms: int) -> int:
        """How long this disk's writes took lately; see `latency.py`."""
        return self._latency.peak_ms(self._writes[0][1] if self._writes else None, now_ms)

    def _is_slow(self, write_ms: int) -> bool:
        return write_ms * 4 >= self.config.election_timeout_ms

    def _patience_ms(self, now_ms: int) -> int:
        """How long this voter lets others with faster disks stand first: until each has tried twice."""
        timeout = self.config.fetch_timeout_ms
        return timeout + timeout // 4 if self._is_slow(self._write_ms(now_ms)) else 0

    def _advance_watermark(self, offset: int) -> None:
        self.high_watermark = max(self.high_watermark, min(offset, self.log.end))

    # Requests

    def _ask(
        self,
        errand: Errand,
        purpose: Purpose,
        to: Peer,
        request: Request,
        now_ms: int,
        *,
        voter: ReplicaKey | None = None,
        timeout_ms: int | None = None,
        after: int | None = None,
    ) -> None:
        call = self._next_call
        self._next_call += 1
        errand.call = call
        self._calls[call] = Call(purpose, to, self.role, voter, now_ms, request)
        self._effects.append(Ask(call, to, request, timeout_ms or self.config.request_timeout_ms, after))

    def _answer(self, call: int, reply: Reply, after: int | None = None) -> None:
        if after is None and (before := self._epoch_to_tell) is not None:
            reply = replace(reply, known=replace(reply.known, epoch=before, leader_id=None, leader_address=None))
        self._effects.append(Answer(call, reply, after))

    def _peer(self, voter: ReplicaKey) -> Peer:
        found = self.history.current.by_id(voter.node_id)
        assert found is not None, f"{voter} is not a voter of {self.history.current}"
        return Peer(voter.node_id, found.address)

    def _backoff_ms(self, failures: int) -> int:
        """How long to wait after so many failures in a row."""
        base = self.config.retry_backoff_ms
        return min(self.config.retry_backoff_max_ms, base << min(max(failures - 1, 0), 6)) + self._draw(base)

    def _draw(self, below_ms: int) -> int:
        """Uniform over 0..below_ms - 1."""
        return int(self._random.random() * below_ms)

    def _election_deadline(self, now_ms: int) -> int | None:
        """When to stand next; None for an observer, which never does."""
        if not self.may_stand:
            return None
        timeout = self.config.election_timeout_ms
        return now_ms + timeout + self._draw(timeout) + self._patience_ms(now_ms)

    def _standing_deadline(self, now_ms: int) -> int:
        """When to give an election of this node's own up.  Its vote, and then those of others, must become durable."""
        timeout, write_ms = self.config.election_timeout_ms, self._write_ms(now_ms)
        longer = min(2 * write_ms, 2 * self.config.fetch_timeout_ms) if self._is_slow(write_ms) else 0
        return now_ms + timeout + self._draw(timeout) + longer

    def _first_deadline(self, now_ms: int) -> int | None:
        """The same at the start: a sole voter need not wait for anyone."""
        return now_ms if self.is_sole_voter else self._election_deadline(now_ms)

    def _fetch_deadline(self, now_ms: int) -> int:
        """When to give the leader up, drawn anew at each re-arming: followers must not all stand in one millisecond."""
        timeout = self.config.fetch_timeout_ms
        idle = 0 if self.is_voter else self.config.observer_wait_ms
        return now_ms + idle + timeout + self._draw(timeout // 4)

    # Transitions.  Each leaves the epoch as given, and never lowers it.

    def _refuse(self, message: str, newer_generation: int | None = None) -> None:
        """This node cannot take part: say so once, then do nothing more."""
        if self.refused is None:
            self.refused = message
            self._effects.append(Refused(message, newer_generation))

    def _enter_epoch(self, epoch: int, leader_id: int | None = None) -> None:
        """Adopt `epoch` and, if it is known, its leader, once and for all."""
        assert epoch >= self.epoch, f"epoch {epoch} after {self.epoch}"
        if epoch > self.epoch:
            self.election = Election(epoch, leader_id)
            self._save_election()
        elif leader_id is not None and self.election.leader_id is None:
            self.election = Election(epoch, leader_id, self.election.voted_for)
            self._save_election()
        assert leader_id in (None, self.election.leader_id), f"leader {leader_id} of {self.election}"

    def _become(self, role: RoleState, now_ms: int, reason: str) -> None:
        leader_before = self.leader
        before, self.role = self.role, role
        self.seek = Errand(now_ms)
        leader = self.leader
        if leader != leader_before:
            self.last_change_reason, self.last_change_ms = reason, now_ms
        if isinstance(before, Leader):
            for parked in before.parked.values():
                self._answer(parked.call, FetchReply(ErrorCode.NOT_LEADER, self.known))
        self._effects.append(
            RoleChanged(
                role.role,
                self.epoch,
                leader.node_id if leader is not None else None,
                leader.address if leader is not None else None,
                reason,
            )
        )

    def _become_unattached(self, epoch: int, now_ms: int, reason: str) -> None:
        """In `epoch`, with no leader.  A running election timer runs on: being bumped must not starve a voter."""
        self._enter_epoch(epoch)
        deadline: int | None = None
        if self.may_stand:
            match self.role:
                case Unattached() | Prospective() | Candidate() | Resigned():
                    deadline = self.role.deadline_ms
        if deadline is None:
            deadline = self._election_deadline(now_ms)
        self._become(Unattached(deadline), now_ms, reason)

    def _become_follower(self, epoch: int, leader_id: int, address: str, now_ms: int, reason: str) -> None:
        assert leader_id != self.key.node_id, f"following itself in epoch {epoch}"
        self._enter_epoch(epoch, leader_id)
        leader = Peer(leader_id, address)
        self._become(
            Follower(leader_id, leader, self._fetch_deadline(now_ms), Errand(now_ms)),
            now_ms,
            reason,
        )

    def _become_prospective(self, now_ms: int, reason: str) -> None:
        """Ask the others, in the present epoch, whether they would vote for this node."""
        assert self.may_stand, f"{self.key} stands without being a voter"
        lost_id: int | None = None
        lost: Peer | None = None
        if isinstance(self.role, Follower) and not self.role.gone:
            lost_id, lost = self.role.leader_id, self.role.leader
        ballots = {voter: Ballot(now_ms) for voter in self.other_voters}
        self._become(Prospective(self._standing_deadline(now_ms), ballots, lost_id, lost), now_ms, reason)

    def _become_candidate(self, now_ms: int, reason: str, above: int = 0) -> None:
        """Take the next epoch, and one past `above`, vote for itself in it, and ask the others once that is durable."""
        assert self.may_stand, f"{self.key} stands without being a voter"
        before = self.epoch
        self.election = Election(max(before, above) + 1, None, self.key)
        self._save_election()
        self._note_raised(before)
        ballots = {voter: Ballot(now_ms) for voter in self.other_voters}
        self._become(Candidate(self._standing_deadline(now_ms), ballots, self._election_write), now_ms, reason)

    def _become_leader(self, granting: tuple[ReplicaKey, ...], now_ms: int, reason: str) -> None:
        """Lead the epoch that was voted for; its first record is the LeaderChange."""
        assert isinstance(self.role, Candidate), f"leader without candidacy: {self.role}"
        assert self.election.voted_for == self.key, f"leader of {self.election} did not vote for itself"
        self._enter_epoch(self.epoch, self.key.node_id)
        leader = Leader(epoch_start=self.log.end, since_ms=now_ms)
        leader.announcements = {voter: Errand(now_ms) for voter in self.other_voters}
        self._become(leader, now_ms, reason)
        voters = tuple(voter.key for voter in self.history.current)
        self._append(
            Batch(
                base_offset=self.log.end,
                epoch=self.epoch,
                count=1,
                timestamp_ms=now_ms + self.config.wall_offset_ms,
                control=LeaderChange(self.key, voters, granting),
            )
        )

    def _become_resigned(
        self, successors: tuple[ReplicaKey, ...], deadline_ms: int | None, now_ms: int, reason: str
    ) -> None:
        """Lead no more, in the same epoch; until `deadline_ms`, tell the others."""
        assert self.election.leader_id == self.key.node_id, f"resigns from {self.election}"
        farewells = {voter: Errand(now_ms) for voter in self.other_voters}
        self._become(Resigned(deadline_ms, farewells, successors, reason), now_ms, reason)
