"""Values that the contract tests share."""

from __future__ import annotations

from uuid import UUID

from quorum.core.messages import Knowledge, Sender
from quorum.core.types import (
    Batch,
    Election,
    LeaderChange,
    LogBase,
    LogEnd,
    QuorumState,
    ReplicaKey,
    Voter,
    Voters,
    VoterSet,
)
from quorum.snapshot_file import SnapshotHeader, SnapshotWriter

KEYS = tuple(ReplicaKey(node_id, UUID(int=1000 + node_id)) for node_id in (1, 2, 3))
VOTERS = VoterSet(tuple(Voter(key, f"127.0.0.1:{9000 + key.node_id}") for key in KEYS))
CLUSTER = "q-cluster"
SENDER = Sender(CLUSTER, 0, KEYS[0])
KNOWN = Knowledge(CLUSTER, 0, 3, 1, "127.0.0.1:9001")


def data(base_offset: int, epoch: int = 1, count: int = 1, payload: bytes = b"payload") -> Batch:
    return Batch(base_offset, epoch, count, 1_700_000_000_000, payload)


def founding() -> Batch:
    return Batch(0, 0, 1, 1_700_000_000_000, b"", Voters(CLUSTER, 0, VOTERS))


def leader_change(base_offset: int, epoch: int = 1) -> Batch:
    return Batch(base_offset, epoch, 1, 1_700_000_000_000, b"", LeaderChange(KEYS[0], KEYS, KEYS[:2]))


def state(applied_offset: int, epoch: int = 1, voted_for: ReplicaKey | None = None) -> QuorumState:
    return QuorumState(CLUSTER, 0, Election(epoch, 1, voted_for), applied_offset, VOTERS)


def base(offset: int, epoch: int = 1) -> LogBase:
    return LogBase(LogEnd(epoch, offset), Voters(CLUSTER, 0, VOTERS))


def snapshot_bytes(offset: int, *chunks: bytes, epoch: int = 1) -> bytes:
    writer = SnapshotWriter()
    pieces = [writer.header(SnapshotHeader(base(offset, epoch), 1_700_000_000_000))]
    pieces += [writer.chunk(chunk) for chunk in chunks]
    return b"".join([*pieces, writer.footer()])
