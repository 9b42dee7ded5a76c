"""One small class per role, with the fields that only that role has.

A role object is never reused: entering a role makes a new one, so `call.role is core.role` tells whether a reply
belongs to the present stay in a role.  All `..._ms` fields are points in time, as given to `step`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from quorum.core.events import Peer, VoterChange
from quorum.core.log_index import LogIndex
from quorum.core.messages import Fetch, IntroduceReply
from quorum.core.types import Election, LogEnd, ReplicaKey, Role


@dataclass(slots=True, eq=False)
class Errand:
    """Requests owed to one peer: at most one in flight, the next one due at `due_ms` (None: nothing more is owed)."""

    due_ms: int | None
    call: int | None = None
    failures: int = 0  # in a row

    def is_due(self, now_ms: int) -> bool:
        return self.call is None and self.due_ms is not None and self.due_ms <= now_ms

    @property
    def wakes_ms(self) -> int | None:
        """When a tick is needed for it."""
        return self.due_ms if self.call is None else None


@dataclass(slots=True, eq=False)
class Unattached:
    """Knows an epoch, follows nobody.  `deadline_ms`: when a voter stands; None for observers and newborns."""

    deadline_ms: int | None
    role = Role.UNATTACHED

    def check(self, key: ReplicaKey, election: Election, log: LogIndex) -> None:
        """Assert nothing: any epoch, vote and log will do."""


@dataclass(slots=True, eq=False)
class Download:
    """A snapshot of the leader's on its way here.

    position: bytes stored, from where to go on; None while the shell stores or loads.  size: 0 until it is known.
    """

    snapshot: LogEnd
    position: int | None = None
    size: int = 0
    loading: bool = False


@dataclass(slots=True, eq=False)
class Follower:
    """Fetches from `leader`.

    deadline_ms: when it gives the leader up.  heard: it has fetched from this leader within the fetch timeout, so it
    refuses pre-votes.  patient: it hears the leader no more, but lets others stand first.  gone: the leader has said
    that it leads no more.
    """

    leader_id: int
    leader: Peer
    deadline_ms: int
    fetch: Errand
    heard: bool = False
    patient: bool = False
    gone: bool = False
    round: int = 0
    download: Download | None = None  # instead of fetching the log
    role = Role.FOLLOWER

    def move(self, address: str, now_ms: int) -> None:
        """Fetch from the same leader at another address, at once."""
        self.leader = Peer(self.leader_id, address)
        self.fetch.due_ms = now_ms
        self.fetch.failures = 0

    def check(self, key: ReplicaKey, election: Election, log: LogIndex) -> None:
        assert election.leader_id == self.leader_id != key.node_id, f"follows {self.leader_id}, {election}"


@dataclass(slots=True, eq=False)
class Ballot(Errand):
    """One voter's answer in a pre-vote or vote; `granted` is None until it has answered."""

    granted: bool | None = None


@dataclass(slots=True, eq=False)
class Prospective:
    """Asks whether it could win (KIP-996).  `lost_leader` is whom it followed before and could not reach."""

    deadline_ms: int
    ballots: dict[ReplicaKey, Ballot]
    lost_leader_id: int | None = None
    lost_leader: Peer | None = None
    role = Role.PROSPECTIVE

    def check(self, key: ReplicaKey, election: Election, log: LogIndex) -> None:
        assert key not in self.ballots, f"{key} asks itself for a vote"


@dataclass(slots=True, eq=False)
class Candidate:
    """Asks for votes in its own epoch.  Its own vote counts once `vote_write` is durable."""

    deadline_ms: int
    ballots: dict[ReplicaKey, Ballot]
    vote_write: int
    role = Role.CANDIDATE

    def check(self, key: ReplicaKey, election: Election, log: LogIndex) -> None:
        assert election.voted_for == key, f"stands, but {election}"
        assert election.leader_id is None, f"stands, but {election}"


@dataclass(slots=True, eq=False)
class Progress:
    """What a leader knows of one fetching replica, voter or observer."""

    address: str
    end: int = 0  # durable there, by its last valid fetch
    write_ms: int = 0  # how long its writes took lately, by its last valid fetch
    fell_back: bool = False  # it has fetched from below what it had acknowledged
    last_fetch_ms: int | None = None
    last_caught_up_ms: int | None = None
    log_end_at_fetch: int = 0  # the leader's, at that last fetch
    round: int = 0  # the last round that it has fetched in (see `reads.py`)
    fetches: int = 0  # valid ones
    caught_up_fetch: int = 0  # number of the last one by which it was caught up


@dataclass(slots=True, eq=False)
class Parked:
    """A fetch that waits for news, or for the disk (`read_id`)."""

    call: int
    request: Fetch
    deadline_ms: int
    read_id: int | None = None


class Served(NamedTuple):
    """Where the leader was when it last looked for news for the parked fetches."""

    log_end: int = 0
    high_watermark: int = 0
    round: int = 0


@dataclass(frozen=True, slots=True)
class WaitingRead:
    """A read that is confirmed once a majority has fetched in `round` and `offset` is committed."""

    call: int
    round: int
    offset: int


@dataclass(frozen=True, slots=True)
class Handover:
    """The leader takes no proposals any more, and resigns in favour of `to` once that has the whole log."""

    to: ReplicaKey
    deadline_ms: int
    reason: str


@dataclass(slots=True, eq=False)
class Probe(Errand):
    """Introduce, asked of a voter's or newcomer's address: `reply` is its answer."""

    reply: IntroduceReply | None = None


@dataclass(slots=True, eq=False)
class Change:
    """A change of the voters that this leader works on (see `membership.py`).

    call: whom to tell; None for the leader's own steps.  probes: by address.  measured_from: when, and at which of its
    fetches, measuring a newcomer began.  expiry_ms: when to give up measuring.  end: end offset of the record, once
    appended.  sets_target: the record is a target, and the change is done when that is reached.
    """

    call: int | None
    change: VoterChange
    dry_run: bool
    deadline_ms: int
    probes: dict[str, Probe] = field(default_factory=dict)
    measured_from: tuple[int, int] | None = None
    expiry_ms: int | None = None
    end: int | None = None
    sets_target: bool = False


@dataclass(slots=True, eq=False)
class Leader:
    """Leads `epoch`, whose first record is at `epoch_start`.

    since_ms: when it won.  expiry_ms: no parked fetch expires before.  owed_ms: when voters are told of a new watermark
    if no record comes before.  paused: no majority fetches (design §4.6).
    round: raised by reads that want to be current; reported_round: the highest that a reply has carried (`reads.py`).
    trusted_round: a request of an older one does not show that its sender is alive (`contacts.py`).
    """

    epoch_start: int
    since_ms: int
    replicas: dict[ReplicaKey, Progress] = field(default_factory=dict)
    displaced: dict[ReplicaKey, int] = field(default_factory=dict)  # since when another disk runs at a voter's address
    announcements: dict[ReplicaKey, Errand] = field(default_factory=dict)  # BeginQuorumEpoch, by voter
    parked: dict[ReplicaKey, Parked] = field(default_factory=dict)
    reads: dict[int, ReplicaKey] = field(default_factory=dict)
    served: Served = field(default_factory=Served)
    expiry_ms: int | None = None
    owed_ms: int | None = None
    paused: bool = False
    unreached: set[int] = field(default_factory=set)  # ids of voters that a paused leader has asked in vain
    reset: bool = False  # the connections were reset: ask a bootstrap address next
    reset_due_ms: int = 0  # no further reset before
    round: int = 0
    reported_round: int = 0
    trusted_round: int = 0
    outrun_ms: int | None = None  # since when a node that is no voter is known to be in a later epoch
    waiting_reads: list[WaitingRead] = field(default_factory=list)
    handover: Handover | None = None
    change: Change | None = None  # asked for
    step: Change | None = None  # of the leader's own: towards the target, or to a new address
    step_failures: int = 0
    step_due_ms: int | None = None  # no own step before
    target_problem: str | None = None  # why the last step towards the target was not taken; None when it was
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
    """Led this epoch and does no more; tells the other voters until they know.  It can neither vote nor lead here."""

    deadline_ms: int | None
    farewells: dict[ReplicaKey, Errand]
    successors: tuple[ReplicaKey, ...]
    reason: str
    role = Role.RESIGNED

    def check(self, key: ReplicaKey, election: Election, log: LogIndex) -> None:
        assert election.leader_id == key.node_id, f"resigned, but {election}"


@dataclass(slots=True, eq=False)
class Newborn:
    """Beside the role Unattached: the way of an empty disk into its cluster (see `founding.py`).

    errands: Introduce, by founder's address.  answers: the newborn founders' replies.  write: what makes its place
    durable; with it done, the node takes part, and says so with `replaced`.
    """

    errands: dict[str, Errand]
    answers: dict[str, IntroduceReply] = field(default_factory=dict)
    write: int | None = None
    founded: bool = False
    replaced: ReplicaKey | None = None


RoleState = Unattached | Follower | Prospective | Candidate | Leader | Resigned
