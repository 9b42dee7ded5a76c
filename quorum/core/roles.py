"""One small class per role, with the fields that only that role has.

A role object is never reused: entering a role makes a new one, so `call.role is core.role` holds only if a reply
belongs to the current stay in a role.  The `..._ms` fields are points in time, as given to `step`; only `write_ms` is a
duration.  `check` asserts the invariants of that role after every step.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec

from quorum.core.events import Peer, VoterChange
from quorum.core.log_index import LogIndex
from quorum.core.messages import Fetch, IntroduceReply
from quorum.core.types import Election, LogEnd, ReplicaKey, Role


@dataclass(slots=True, eq=False)
class PendingRequest:
    """A request to one peer that is in flight, or due at some time.  It is repeated until it is no longer needed."""

    due_ms: int | None  # when to send the next request; None when none is needed
    call: int | None = None  # the call in flight
    failures: int = 0  # consecutive failures

    def is_due(self, now_ms: int) -> bool:
        return self.call is None and self.due_ms is not None and self.due_ms <= now_ms

    @property
    def wakes_ms(self) -> int | None:
        """When to send the next request; None while one is in flight."""
        return self.due_ms if self.call is None else None


@dataclass(slots=True, eq=False)
class Unattached:
    """Knows an epoch and follows no leader."""

    deadline_ms: int | None  # when a voter begins an election; None for observers and newborns
    role = Role.UNATTACHED

    def check(self, key: ReplicaKey, election: Election, log: LogIndex) -> None:
        """Allow any epoch, vote and log."""


@dataclass(slots=True, eq=False)
class Download:
    """A snapshot of the leader that this follower downloads."""

    snapshot: LogEnd
    position: int | None = None  # bytes stored, where to continue; None while the shell looks them up, stores or loads
    size: int = 0  # 0 until it is known
    loading: bool = False


@dataclass(slots=True, eq=False)
class Follower:
    """Fetches from `leader`."""

    leader_id: int
    leader: Peer
    deadline_ms: int  # when to stop waiting for the leader
    fetch: PendingRequest
    heard: bool = False  # has fetched from this leader within the fetch timeout, so it refuses pre-votes
    patient: bool = False  # no longer hears the leader, but lets others become candidates first
    leader_ended: bool = False  # the leader has resigned: it announced this, or answered a fetch with NOT_LEADER
    round: int = 0  # the leader's last round (see `reads.py`)
    download: Download | None = None  # instead of fetching the log
    role = Role.FOLLOWER

    def move(self, address: str, now_ms: int) -> None:
        """Fetch from the same leader at another address, now."""
        self.leader = Peer(self.leader_id, address)
        self.fetch.due_ms = now_ms
        self.fetch.failures = 0

    def check(self, key: ReplicaKey, election: Election, log: LogIndex) -> None:
        assert election.leader_id == self.leader_id != key.node_id, f"follows {self.leader_id}, {election}"


@dataclass(slots=True, eq=False)
class PendingVote(PendingRequest):
    """A request for one voter's vote or pre-vote."""

    granted: bool | None = None  # None until the voter has answered


@dataclass(slots=True, eq=False)
class Prospective:
    """Asks in a pre-vote whether it could win (KIP-996)."""

    deadline_ms: int  # when to give up
    votes: dict[ReplicaKey, PendingVote]
    lost_leader_id: int | None = None  # the leader that it followed before and could not reach
    lost_leader: Peer | None = None
    repeated: bool = False  # its previous pre-vote timed out
    role = Role.PROSPECTIVE

    def check(self, key: ReplicaKey, election: Election, log: LogIndex) -> None:
        assert key not in self.votes, f"{key} asks itself for a vote"


@dataclass(slots=True, eq=False)
class Candidate:
    """Asks for votes in its own epoch."""

    deadline_ms: int  # when to give up
    votes: dict[ReplicaKey, PendingVote]
    vote_write: int  # its own vote counts once this write is durable
    overdue: bool = False  # its time was over once, and no voter had refused; it searches for a leader as well
    role = Role.CANDIDATE

    def check(self, key: ReplicaKey, election: Election, log: LogIndex) -> None:
        assert election.voted_for == key, f"is a candidate, but {election}"
        assert election.leader_id is None, f"is a candidate, but {election}"


@dataclass(slots=True, eq=False)
class ReplicaProgress:
    """The progress of one fetching replica, voter or observer, as its leader sees it."""

    address: str
    end: int = 0  # end of its durable log, according to its last valid fetch
    write_ms: int = 0  # duration of its recent writes, according to its last valid fetch
    fell_back: bool = False  # it has fetched from below its acknowledged end
    last_fetch_ms: int | None = None
    last_caught_up_ms: int | None = None
    log_end_at_fetch: int = 0  # log end of the leader at the last fetch
    round: int = 0  # the last round that it has fetched in (see `reads.py`)
    fetches: int = 0  # number of valid fetches
    caught_up_fetch: int = 0  # number of the last fetch that showed it as caught up


@dataclass(slots=True, eq=False)
class Parked:
    """A parked fetch."""

    call: int
    request: Fetch
    deadline_ms: int
    read_id: int | None = None  # set while the fetch waits for a read of the log


class Served(NamedTuple):
    """The leader's log end, watermark and round when it last served the parked fetches."""

    log_end: int = 0
    high_watermark: int = 0
    round: int = 0


class WaitingRead(msgspec.Struct, frozen=True):
    """A read that is confirmed once a majority has fetched in `round` and `offset` is committed."""

    call: int
    round: int
    offset: int


class Handover(msgspec.Struct, frozen=True):
    """The leader accepts no more proposals, and resigns in favour of `to` once that node has the whole log."""

    to: ReplicaKey
    deadline_ms: int
    reason: str


@dataclass(slots=True, eq=False)
class Probe(PendingRequest):
    """An Introduce sent to the address of a voter or newcomer."""

    reply: IntroduceReply | None = None


class Measured(NamedTuple):
    """The point at which measuring a newcomer began: only later fetches count."""

    since_ms: int
    fetches: int  # number of valid fetches that the leader had received from the newcomer by then


class Confirmation(NamedTuple):
    """The point at which the voters were asked to confirm a change: only requests of this round or later count."""

    since_ms: int
    round: int


@dataclass(slots=True, eq=False)
class PendingChange:
    """A change of the voters that this leader works on (see `membership.py`)."""

    call: int | None  # the `ChangeVoters` to answer; None for the leader's own steps
    change: VoterChange
    dry_run: bool
    deadline_ms: int
    probes: dict[str, Probe] = field(default_factory=dict)  # by address
    measured_from: Measured | None = None
    confirmation: Confirmation | None = None
    expiry_ms: int | None = None  # when to give up measuring or waiting for voters
    end: int | None = None  # end offset of the record, once appended
    sets_target: bool = False  # the leader turned the change into a target; reaching the target completes the change

    def restart(self) -> None:
        """Measure the newcomer and ask the voters again, because their earlier fetches and answers are too old."""
        self.measured_from = self.confirmation = self.expiry_ms = None


@dataclass(slots=True, eq=False)
class Leader:
    """Leads an epoch, whose first record is at `epoch_start`."""

    epoch_start: int
    since_ms: int  # when it won
    replicas: dict[ReplicaKey, ReplicaProgress] = field(default_factory=dict)
    displaced: dict[ReplicaKey, int] = field(default_factory=dict)  # by voter: when another disk was at its address
    announcements: dict[ReplicaKey, PendingRequest] = field(default_factory=dict)  # BeginQuorumEpoch, by voter
    parked: dict[ReplicaKey, Parked] = field(default_factory=dict)
    reads: dict[int, ReplicaKey] = field(default_factory=dict)  # log reads for parked fetches: the fetcher, by read id
    served: Served = field(default_factory=Served)
    expiry_ms: int | None = None  # when to search for expired parked fetches
    owed_ms: int | None = None  # when to report a new watermark to voters if no record is sent before
    paused: bool = False  # no majority fetches
    unreached: set[int] = field(default_factory=set)  # ids of voters that did not answer a paused leader
    reset: bool = False  # the connections were reset: ask a bootstrap address next
    reset_due_ms: int = 0  # earliest time of the next reset
    round: int = 0  # raised by current reads (`reads.py`) and by changes of the voters (`change_gate.py`)
    reported_round: int = 0  # the highest round that a reply has carried
    trusted_round: int = 0  # a request of an older round does not show that its sender is alive (`contacts.py`)
    outrun_ms: int | None = None  # since when a node that is not a voter is known to be in a later epoch
    waiting_reads: list[WaitingRead] = field(default_factory=list)
    handover: Handover | None = None
    change: PendingChange | None = None  # the change that a request asked for
    step: PendingChange | None = None  # a change of the leader's own: towards the target, or a voter's new address
    step_failures: int = 0
    step_due_ms: int | None = None  # earliest time of the leader's next own step
    target_problem: str | None = None  # why the leader's last own step was refused; None if it was not
    role = Role.LEADER

    def address_of(self, node_id: int) -> str | None:
        """Return the address that this node named in its latest fetch; None if it has not fetched."""
        fetching = [
            (progress.last_fetch_ms, progress.address)
            for key, progress in self.replicas.items()
            if key.node_id == node_id and progress.last_fetch_ms is not None
        ]
        return max(fetching)[1] if fetching else None

    def check(self, key: ReplicaKey, election: Election, log: LogIndex) -> None:
        assert election.leader_id == key.node_id, f"leads, but {election}"
        assert election.voted_for == key, f"leads without its own vote: {election}"
        assert self.epoch_start < log.end, f"no LeaderChange at {self.epoch_start}, the log ends at {log.end}"
        first = log.epoch_at(max(self.epoch_start, log.start))
        assert first in (election.epoch, None), f"no LeaderChange at {self.epoch_start}"
        assert self.reported_round <= self.round, f"round {self.reported_round} reported before {self.round}"
        assert self.trusted_round <= self.round, f"round {self.trusted_round} trusted before {self.round}"
        assert self.handover is None or self.handover.to != key, f"hands over to itself: {self.handover}"
        assert self.change is None or self.change.call is not None, f"nobody requested {self.change}"
        assert self.step is None or self.step.call is None, f"somebody requested {self.step}"
        if self.expiry_ms is None:
            assert all(parked.read_id is not None for parked in self.parked.values()), "a parked fetch never expires"


@dataclass(slots=True, eq=False)
class Resigned:
    """Led this epoch before, and announces its end to the voters until they answer.

    The node cannot vote or lead in this epoch.
    """

    deadline_ms: int | None
    farewells: dict[ReplicaKey, PendingRequest]
    successors: tuple[ReplicaKey, ...]
    reason: str
    role = Role.RESIGNED

    def check(self, key: ReplicaKey, election: Election, log: LogIndex) -> None:
        assert election.leader_id == key.node_id, f"resigned, but {election}"


@dataclass(slots=True, eq=False)
class Newborn:
    """State of a newborn, beside its role Unattached (see `founding.py`)."""

    introductions: dict[str, PendingRequest]  # by founder's address
    answers: dict[str, IntroduceReply] = field(default_factory=dict)  # of founders that are newborn as well
    write: int | None = None  # the write that makes its membership durable; after it the node takes part
    founded: bool = False
    replaced: ReplicaKey | None = None  # the listed voter whose disk this disk replaces


RoleState = Unattached | Follower | Prospective | Candidate | Leader | Resigned
