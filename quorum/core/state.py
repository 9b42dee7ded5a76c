"""The state that every part of the core shares, and the operations on it.

Theory of operation.  A step changes the state first and produces its effects last.  The parts only note the changes
that must become durable (`save_election`, `append`, `truncate`).  The step emits them as one `Write`, the first of its
effects, with the quorum state as it is at the end of the step.  A reply that depends on a write, such as a granted
vote, carries the number of that write.  Transitions do not send requests: a role holds `PendingRequest`s, and at the
end of every step each part sends the requests that are due.  So one place decides when a request is sent, one place
computes when the next tick is needed, and a transition cannot forget or repeat a message.

Three rules make this safe across crashes:
- A vote, and an epoch that this node began, leave this node (in a reply or a request) only after they are durable.
- A fetch leaves only when everything appended before is durable, so its offset is an acknowledgement.
- A node that led an epoch, or was a candidate in it, never leads it again after a restart: a former leader starts as
  Resigned, and every candidacy takes a new epoch.  Followers may have batches of that epoch that this disk has lost.
  So no other batch ever gets the same (epoch, offset).
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from quorum.core.config import RaftConfig
from quorum.core.events import ControlApplied, Effect, NodeRefused, Peer, SendReply, SendRequest, Write
from quorum.core.latency import WriteLatency
from quorum.core.log_index import LogIndex
from quorum.core.messages import ErrorCode, Knowledge, Reply, Request, Sender
from quorum.core.roles import Candidate, Follower, Leader, Newborn, PendingRequest, Prospective, RoleState, Unattached
from quorum.core.types import (
    Batch,
    ControlRecord,
    Election,
    LogBase,
    QuorumState,
    ReplicaKey,
    StoredQuorum,
    Voters,
    VoterSet,
)
from quorum.core.voters import VoterHistory

EPOCH_MAX = 2**31 - 2**16
"""Requests with a higher epoch are refused: soon afterwards the epoch would no longer fit into 31 bits."""


class Purpose(Enum):
    """Why this node sent a request."""

    VOTE = "vote"
    BEGIN = "begin"
    END = "end"
    PROBE = "probe"
    FETCH = "fetch"
    SEEK = "seek"
    INTRODUCE = "introduce"


class Call(msgspec.Struct, frozen=True):
    """A request in flight, with the values that the handler of the reply needs."""

    purpose: Purpose
    to: Peer
    role: RoleState
    voter: ReplicaKey | None
    sent_ms: int
    request: Request


class SubmittedWrite(NamedTuple):
    """A write that is not durable yet."""

    id: int
    submitted_ms: int


class Checked(NamedTuple):
    """The values at the last check of the invariants.  Neither the epoch nor the watermark may decrease."""

    election: Election
    high_watermark: int


class NewEpoch(NamedTuple):
    """The last epoch that this node began: not reported to others before `write_id` is durable."""

    write_id: int
    previous: int  # the epoch to report until then


@dataclass(slots=True)
class Draft:
    """The write of the current step."""

    id: int
    truncate_to: int | None = None
    base: LogBase | None = None
    batches: list[Batch] = field(default_factory=list)


class CoreState:
    """The knowledge of a node of the quorum, its pending writes, and its requests in flight.

    It belongs to one `RaftCore`, whose parts share it.  Only `RaftCore` and its parts write to it.
    """

    def __init__(self, config: RaftConfig, stored: StoredQuorum, now_ms: int) -> None:
        self.config = config
        self.key = ReplicaKey(stored.node_id, stored.directory_id)
        base_epoch = 0 if stored.base is None else stored.base.end.epoch
        self.log = LogIndex(stored.log_start, stored.log_end, stored.epochs, config.recent_max_bytes, base_epoch)
        self.history = VoterHistory(stored.controls, stored.base)
        self.snapshot = stored.snapshots[-1] if stored.snapshots else None  # the newest on this disk
        self.cluster_id = stored.state.cluster_id
        self.generation = stored.state.generation
        self.election = stored.state.election
        self.met = stored.log_end > 0  # this node has been in a cluster; false for a newborn
        self.newborn: Newborn | None = None
        # A snapshot holds committed records only.
        self.high_watermark = 0 if self.snapshot is None else self.snapshot.offset
        self.refused: str | None = None  # why this node cannot take part
        self.last_change_reason: str | None = None  # why the known leader last changed
        self.last_change_ms: int | None = None
        self.role: RoleState = Unattached(None)
        self.seek = PendingRequest(now_ms)  # the search for the leader
        self.effects: list[Effect] = []  # of the current step
        self.calls: dict[int, Call] = {}
        self.latency = WriteLatency(now_ms)
        self.durable_write = 0
        self.election_write = 0  # the last write that changed the election
        self.last_write = 0
        self.checked = Checked(self.election, self.high_watermark)
        self._last_call = 0
        self._new_epoch: NewEpoch | None = None
        self._writes: deque[SubmittedWrite] = deque()
        self._draft: Draft | None = None
        self._cached_voters: VoterSet | None = None  # the set from which the next two values were computed
        self._is_listed = False
        self._other_voters: list[ReplicaKey] = []

    # Knowledge

    @property
    def epoch(self) -> int:
        return self.election.epoch

    @property
    def is_voter(self) -> bool:
        """Return whether this disk is in the voter set in force."""
        if self.history.current is not self._cached_voters:
            self._cache_voters()
        return self.met and self._is_listed

    @property
    def may_be_candidate(self) -> bool:
        """Return whether this disk may be a candidate: a voter, or a disk that an uncommitted record removes.

        In the second case it may be the only disk that has the record, and every voter that lacks the record still
        needs this disk's log (Raft thesis §4.2.2).  Such a candidate does not count its own vote.
        """
        return self.is_voter or (self.met and self.history.was_just_removed(self.key, self.high_watermark))

    @property
    def is_sole_voter(self) -> bool:
        return self.is_voter and len(self.history.current) == 1

    @property
    def other_voters(self) -> list[ReplicaKey]:
        """The voters except this node, ascending by node id."""
        if self.history.current is not self._cached_voters:
            self._cache_voters()
        return self._other_voters

    def _cache_voters(self) -> None:
        """Compute the values of the voter set that every step needs, once per voter set."""
        voters = self._cached_voters = self.history.current
        self._is_listed = self.key in voters
        self._other_voters = [voter.key for voter in voters if voter.key != self.key]

    def peer(self, voter: ReplicaKey) -> Peer:
        """Return the address of this voter according to the log."""
        found = self.history.current.by_id(voter.node_id)
        assert found is not None, f"{voter} is not a voter of {self.history.current}"
        return Peer(voter.node_id, found.address)

    @property
    def leader(self) -> Peer | None:
        """The leader that this node follows or is; None if it knows none, or if that leader has resigned."""
        match self.role:
            case Leader():
                return Peer(self.key.node_id, self.config.address)
            case Follower(leader_ended=False) as follower:
                return follower.leader
        return None

    @property
    def known(self) -> Knowledge:
        """The quorum as this node knows it; in every reply."""
        leader = self.leader
        return Knowledge(
            cluster_id=self.expected_cluster_id,
            generation=self.generation,
            epoch=self.epoch,
            leader_id=leader.node_id if leader is not None else None,
            leader_address=leader.address if leader is not None else None,
        )

    @property
    def sender(self) -> Sender:
        """The identity of this node; in every request."""
        return Sender(self.expected_cluster_id, self.generation, self.key)

    @property
    def expected_cluster_id(self) -> str | None:
        return self.cluster_id or self.config.cluster_id

    def refuse_stranger(self, sender: Sender, target: ReplicaKey | None) -> ErrorCode:
        """Return the error for another cluster, generation or disk, else NONE.  The epoch does not matter."""
        own = self.expected_cluster_id
        if sender.cluster_id is None or own is None or sender.cluster_id != own:
            return ErrorCode.NEWBORN if own is None else ErrorCode.INCONSISTENT_CLUSTER_ID
        if self.met and sender.generation != self.generation:
            return ErrorCode.OLD_GENERATION
        if target is not None and target != self.key:
            return ErrorCode.INVALID_VOTER_KEY
        return ErrorCode.NONE

    def is_ours(self, record: Voters) -> bool:
        """Return whether this record can be in the log of this node's cluster."""
        is_known = record.cluster_id == self.cluster_id and record.generation <= self.generation
        return is_known and len(record.voters) > 0

    def refuse(self, message: str, newer_generation: int | None = None) -> None:
        """Report once that this node cannot take part.  The core then does nothing more."""
        if self.refused is None:
            self.refused = message
            self.effects.append(NodeRefused(message, newer_generation))

    def enter_epoch(self, epoch: int, leader_id: int | None = None) -> None:
        """Adopt `epoch` and its leader, if it is known.  A known leader of an epoch never changes."""
        assert epoch >= self.epoch, f"epoch {epoch} after {self.epoch}"
        if epoch > self.epoch:
            self.election = Election(epoch, leader_id)
            self.save_election()
        elif leader_id is not None and self.election.leader_id is None:
            self.election = Election(epoch, leader_id, self.election.voted_for)
            self.save_election()
        assert leader_id in (None, self.election.leader_id), f"leader {leader_id} of {self.election}"

    def advance_watermark(self, offset: int) -> None:
        """Raise the high watermark to `offset`, or to the log's end if that is lower.  Never lower it."""
        self.high_watermark = max(self.high_watermark, min(offset, self.log.end))

    # Durability

    def open_draft(self) -> Draft:
        """Return the write of this step.  The first call begins the write."""
        if self._draft is None:
            self.last_write += 1
            self._draft = Draft(self.last_write)
        return self._draft

    def save_election(self) -> None:
        """Write the quorum state, which holds the election, at the end of this step."""
        self.election_write = self.open_draft().id

    def append(self, batch: Batch) -> None:
        """Append a batch at the log's end, as part of this step's write.  A control record is in force at once."""
        draft = self.open_draft()
        self.log.append(batch, draft.id)
        draft.batches.append(batch)
        if batch.control is not None:
            self.history.append(batch)
            if isinstance(batch.control, Voters):
                self.cluster_id = batch.control.cluster_id
                self.generation = max(self.generation, batch.control.generation)
            self.effects.append(ControlApplied(batch.control))

    def truncate(self, to: int) -> None:
        """Truncate the log to offset `to`, a batch boundary that is not below the high watermark.

        This must come before any append of the same step.
        """
        draft = self.open_draft()
        assert not draft.batches, f"truncate to {to} after {draft}"
        assert draft.truncate_to is None, f"truncate to {to} after {draft}"
        assert to >= self.high_watermark, f"truncate to {to} below the high watermark {self.high_watermark}"
        draft.truncate_to = to
        self.log.truncate(to)
        restored: list[ControlRecord] = self.history.truncate(to)
        self.effects += [ControlApplied(record) for record in restored]

    def close_draft(self, now_ms: int) -> None:
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
        self._writes.append(SubmittedWrite(draft.id, now_ms))
        self.effects.insert(0, Write(draft.id, state, draft.truncate_to, tuple(draft.batches), draft.base))

    def written(self, write_id: int, now_ms: int) -> None:
        """Note that this write, and all before it, are durable."""
        assert write_id <= self.last_write, f"write {write_id} was never requested"
        self.durable_write = max(self.durable_write, write_id)
        while self._writes and self._writes[0].id <= write_id:
            self.latency.note(self._writes.popleft().submitted_ms, now_ms)
        self.log.written(write_id)

    @property
    def all_durable(self) -> bool:
        return not self._writes and self._draft is None

    @property
    def oldest_write_ms(self) -> int | None:
        """When the oldest write that is not durable was submitted; None when all are durable."""
        return self._writes[0].submitted_ms if self._writes else None

    def write_ms(self, now_ms: int) -> int:
        """Return how long this disk's writes took lately; see `latency.py`."""
        return self.latency.peak_ms(self.oldest_write_ms, now_ms)

    @property
    def after_election(self) -> int | None:
        """The write that must be durable before this node may report its epoch and vote."""
        return self.election_write if self.election_write > self.durable_write else None

    def note_new_epoch(self, before: int) -> None:
        """Note that this node began the current epoch, which it must not report before the epoch is durable.

        No other disk has stored this epoch.  If this disk lost it in a crash, another node that had learned the epoch
        would wait for a leader of that epoch.  An observer would wait until its leader begins a later epoch for it (see
        `Elections.hear_seeker`), because no voter adopts the epoch of an observer.
        """
        pending = self.epoch_to_report
        self._new_epoch = NewEpoch(self.election_write, before if pending is None else pending)

    @property
    def epoch_to_report(self) -> int | None:
        """The epoch to report instead of the current one; None when the current one may be reported."""
        if self._new_epoch is None or self._new_epoch.write_id <= self.durable_write:
            return None
        return self._new_epoch.previous

    # Invariants

    def check(self) -> None:
        """Assert the invariants, after every step."""
        (before, watermark), now = self.checked, self.election
        self.checked = Checked(now, self.high_watermark)
        assert now.epoch >= before.epoch, f"epoch went from {before.epoch} back to {now.epoch}"
        if now.epoch == before.epoch:
            assert before.voted_for in (None, now.voted_for), f"vote of epoch {now.epoch} changed: {before} -> {now}"
            assert before.leader_id in (None, now.leader_id), f"leader of epoch {now.epoch} changed: {before} -> {now}"
        log = self.log
        assert self.high_watermark >= watermark, f"high watermark {watermark} -> {self.high_watermark}"
        assert self.high_watermark <= log.end, f"high watermark {self.high_watermark} above log end {log.end}"
        assert log.start <= log.durable_end <= log.end, f"durable {log.durable_end} of {log.start}..{log.end}"
        assert log.last.epoch <= now.epoch or self.refused, f"log epoch {log.last.epoch} above {now.epoch}"
        if isinstance(self.role, Prospective | Candidate):
            assert self.may_be_candidate, f"{self.key} is a candidate without being a voter: {self.role}"
        self.role.check(self.key, now, log)
        if self.newborn is not None:
            assert isinstance(self.role, Unattached), f"newborn as {self.role}"
            # A node with an empty log may have voted before it restarted.
            assert now.voted_for == before.voted_for, f"newborn votes: {before} -> {now}"

    # Requests

    def ask(
        self,
        pending: PendingRequest,
        purpose: Purpose,
        to: Peer,
        request: Request,
        now_ms: int,
        *,
        voter: ReplicaKey | None = None,
        timeout_ms: int | None = None,
        after: int | None = None,
    ) -> None:
        """Send the next request of `pending`, after write `after` if there is one."""
        self._last_call += 1
        call = pending.call = self._last_call
        self.calls[call] = Call(purpose, to, self.role, voter, now_ms, request)
        self.effects.append(SendRequest(call, to, request, timeout_ms or self.config.request_timeout_ms, after))

    def answer(self, call: int, reply: Reply, after: int | None = None) -> None:
        """Send the reply to a peer's request, after write `after` if there is one."""
        if after is None and (before := self.epoch_to_report) is not None:
            reply = replace(reply, known=replace(reply.known, epoch=before, leader_id=None, leader_address=None))
        self.effects.append(SendReply(call, reply, after))
