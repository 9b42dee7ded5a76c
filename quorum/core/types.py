"""The vocabulary of the Raft core: replica keys, log ends, control records, batches and quorum state.

Everything here is an immutable value.  The core knows epochs and offsets; a data batch's `payload` is opaque to it,
and only control records (the ones Raft itself acts on) are typed.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from enum import Enum
from typing import NamedTuple
from uuid import UUID

import msgspec

UNASSIGNED = UUID(int=0)
"""Directory id of a replica that has not reported its disk.  Never a voter's."""

FOUNDING_EPOCH = 0
"""Epoch of the founding batch at offset 0; the first leader's epoch is 1."""


class ReplicaKey(NamedTuple):
    """A replica is a disk, not a host: the same node id with another directory id is another replica (KIP-853)."""

    node_id: int
    directory_id: UUID

    def __str__(self) -> str:
        return f"{self.node_id}:{self.directory_id.hex[:8]}"


class LogEnd(NamedTuple):
    """The end of a log.  Tuple order is Raft's "at least as up to date" order (Raft §5.4.1)."""

    epoch: int  # epoch of the last batch; 0 for an empty log
    offset: int  # offset that the next record will take


class Voter(msgspec.Struct, frozen=True):
    """A member of the voter set and the control address (HOST:PORT) that it advertises."""

    key: ReplicaKey
    address: str


class VoterSet(msgspec.Struct, frozen=True):
    """Voters in ascending order of node id, each id once.  An empty set means that a node knows of no cluster."""

    voters: tuple[Voter, ...] = ()

    def __post_init__(self) -> None:
        ids = [voter.key.node_id for voter in self.voters]
        assert ids == sorted(set(ids)), f"voters out of order or twice: {ids}"

    def __len__(self) -> int:
        return len(self.voters)

    def __iter__(self) -> Iterator[Voter]:
        return iter(self.voters)

    def __contains__(self, key: object) -> bool:
        return key in [voter.key for voter in self.voters]

    def by_id(self, node_id: int) -> Voter | None:
        """Return the voter with this node id, with any directory id."""
        return next((voter for voter in self.voters if voter.key.node_id == node_id), None)

    @property
    def majority(self) -> int:
        """The number of voters that is a majority."""
        return len(self.voters) // 2 + 1


# Control records: the part of the log that Raft itself acts on.


class LeaderChange(msgspec.Struct, frozen=True):
    """First record of each leader's epoch.  Committing it commits all earlier epochs' records (Raft §5.4.2)."""

    leader: ReplicaKey
    voters: tuple[ReplicaKey, ...]
    granting_voters: tuple[ReplicaKey, ...]


class Voters(msgspec.Struct, frozen=True):
    """The voter set, in force from the moment it is appended.  The record at offset 0 founds the cluster."""

    cluster_id: str
    generation: int  # counts how often the quorum was rebuilt by hand; 0 for a founded quorum
    voters: VoterSet


class TargetVoters(msgspec.Struct, frozen=True):
    """The voter set that the leader works towards, one step at a time; None ends the work."""

    target: VoterSet | None


ControlRecord = LeaderChange | Voters | TargetVoters


class Batch(msgspec.Struct, frozen=True):
    """The unit of append: all or nothing.  `control` is set (and `count` is 1), or `payload` holds data records."""

    base_offset: int
    epoch: int
    count: int  # records in the batch, at least 1
    timestamp_ms: int  # wall clock of the leader that appended it; for people, never for a decision
    payload: bytes = b""
    control: ControlRecord | None = None

    @property
    def end_offset(self) -> int:
        """Offset after the last record (exclusive)."""
        return self.base_offset + self.count

    @property
    def size(self) -> int:
        """Bytes that this batch counts for in fetch limits and caches."""
        return len(self.payload) + 64


class Election(msgspec.Struct, frozen=True):
    """The durable facts of an epoch: whom this disk voted for, and who leads."""

    epoch: int
    leader_id: int | None = None
    voted_for: ReplicaKey | None = None


class QuorumState(msgspec.Struct, frozen=True):
    """Everything that a node stores of the quorum besides the log (`QuorumStateMessage` on disk).

    `voters` and `target_voters` cache the control records below `applied_offset`.  They are written in the same
    transaction as those records.  A start computes them from the log again and compares.
    """

    cluster_id: str | None = None  # None: newborn, or an observer that has not reached its cluster yet
    generation: int = 0
    election: Election = Election(0)
    applied_offset: int = 0
    voters: VoterSet = VoterSet()
    target_voters: VoterSet | None = None


class LogBase(msgspec.Struct, frozen=True):
    """The part of a log that a snapshot replaces, reduced to its end and to the voters and target in force there."""

    end: LogEnd
    voters: Voters
    target: VoterSet | None = None


class StoredQuorum(msgspec.Struct, frozen=True):
    """The content of a store when it is opened.

    epochs: (epoch, start offset) of each epoch in the log, ascending.
    controls: each control batch in the log, ascending; the core rebuilds the voter history from them.
    formatted_for: the cluster that `format` named; None if the node may join any cluster.
    base: the part before the log's start; None if the log starts at 0.
    snapshots: the ends of the snapshots that the log continues, ascending.  They contain only committed records.
    """

    node_id: int
    directory_id: UUID
    state: QuorumState
    log_start: int
    log_end: int
    epochs: tuple[tuple[int, int], ...]
    controls: tuple[Batch, ...]
    formatted_for: str | None = None
    base: LogBase | None = None
    snapshots: tuple[LogEnd, ...] = ()

    def goes_on_from(self, snapshot: LogEnd) -> bool:
        """Return whether the log reaches the end of this snapshot with the same history, or begins there.

        It does neither if the node received the snapshot, and stopped before it restarted its log at the end.
        Then the log ends earlier, or its batch there has another epoch.  Equal offset and epoch mean equal logs.
        """
        if self.base is not None and snapshot.offset <= self.log_start:
            return snapshot == self.base.end
        if not self.log_start < snapshot.offset <= self.log_end:
            return False
        last = bisect_left(self.epochs, snapshot.offset, key=lambda entry: entry[1]) - 1
        return self.epochs[last][0] == snapshot.epoch


class Role(Enum):
    """The roles of a node.  A node that was never a voter is always UNATTACHED or FOLLOWER."""

    UNATTACHED = "unattached"
    FOLLOWER = "follower"
    PROSPECTIVE = "prospective"
    CANDIDATE = "candidate"
    LEADER = "leader"
    RESIGNED = "resigned"
