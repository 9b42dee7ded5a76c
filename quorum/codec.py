"""Converts batches, control records, voter sets and quorum state to protobuf and back, with checks.

The store and the transport share this module.  Input may be damaged or hostile.  This module checks every field, so the
core receives only values that a correct peer could have sent.  The functions `check_…` and `…_from` raise
MalformedError; their argument `name` names the field in its message.

In the store and on the wire, a batch carries a CRC-32C of its header and its content bytes.  Each writer and sender
computes it, and each reader checks it, so damage on a disk or in transit cannot spread.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from functools import lru_cache
from uuid import UUID

from crc32c import crc32c
from google.protobuf.message import DecodeError, Message

from quorum.core.types import (
    UNASSIGNED,
    Batch,
    ControlRecord,
    Election,
    LeaderChange,
    LogEnd,
    QuorumState,
    ReplicaKey,
    TargetVoters,
    Voter,
    Voters,
    VoterSet,
)
from quorumlog.runtime.addresses import parse_target
from quorumlog.wire.v1 import quorum_pb2 as pb

STATE_VERSION = 1
VOTERS_MAX = 64
CLUSTER_ID_MAX_CHARS = 64
ADDRESS_MAX_CHARS = 262
BATCH_RECORDS_MAX = 10_000
BATCH_PAYLOAD_MAX_BYTES = 16 << 20

_INT32_MAX = 2**31 - 1
_INT64_MAX = 2**63 - 1
_HEADER = struct.Struct(">qiiqB")  # base offset, epoch, count, timestamp, kind

DATA = 0
CONTROL = 1


class MalformedError(ValueError):
    """Data that no correct peer sends and no undamaged store holds.  The message names the field and the reason."""


class NewerRecordError(MalformedError):
    """A control record of the store that a newer version wrote."""


def require(condition: bool, message: str) -> None:
    """Raise MalformedError unless `condition` holds."""
    if not condition:
        raise MalformedError(message)


def parse(message: Message, wire: bytes) -> None:
    """Fill `message` from bytes.

    Raises:
        MalformedError: `wire` is not protobuf, or encodes another message.
    """
    try:
        message.ParseFromString(wire)
    except (DecodeError, RecursionError) as error:
        raise MalformedError(f"not a {type(message).__name__}: {error}") from error


# Plain fields


def check_epoch(value: int, name: str) -> int:
    require(0 <= value <= _INT32_MAX, f"{name} is {value}")
    return value


def check_offset(value: int, name: str) -> int:
    require(0 <= value <= _INT64_MAX, f"{name} is {value}")
    return value


def check_node_id(value: int, name: str) -> int:
    require(0 <= value <= _INT32_MAX, f"{name} is {value}")
    return value


def check_address(text: str, name: str) -> str:
    require(len(text) <= ADDRESS_MAX_CHARS, f"{name} has {len(text)} characters")
    if (problem := _address_problem(text)) is not None:
        raise MalformedError(f"{name}: {problem}")
    return text


@lru_cache(maxsize=1024)
def _address_problem(text: str) -> str | None:
    """Return the reason why `text` is not an address, or None.

    Cached: every reply names the leader's address, so the same few addresses are checked repeatedly.
    """
    try:
        parse_target(text)
    except ValueError as error:
        return str(error)
    return None


def check_cluster_id(text: str, name: str) -> str:
    require(0 < len(text) <= CLUSTER_ID_MAX_CHARS and text.isascii() and text.isprintable(), f"{name} is {text!r}")
    return text


def uuid_from(data: bytes, name: str) -> UUID:
    require(len(data) == 16, f"{name} has {len(data)} bytes, not 16")
    return UUID(bytes=data)


# Keys, voters, log ends


def key_to(key: ReplicaKey) -> pb.ReplicaKey:
    return pb.ReplicaKey(node_id=key.node_id, directory_id=key.directory_id.bytes)


def key_from(message: pb.ReplicaKey, name: str) -> ReplicaKey:
    return _key(message.node_id, message.directory_id, name)


@lru_cache(maxsize=1024)
def _key(node_id: int, directory_id: bytes, name: str) -> ReplicaKey:
    """Return the key with these fields.  Cached: every request and reply names the same few replicas."""
    return ReplicaKey(check_node_id(node_id, f"{name}.node_id"), uuid_from(directory_id, f"{name}.directory_id"))


def keys_from(messages: Iterable[pb.ReplicaKey], name: str) -> tuple[ReplicaKey, ...]:
    keys = tuple(key_from(message, name) for message in messages)
    require(len(keys) <= VOTERS_MAX, f"{name} has {len(keys)} entries")
    require(len(set(keys)) == len(keys), f"{name} names a replica twice")
    return keys


def voter_to(voter: Voter) -> pb.Voter:
    return pb.Voter(key=key_to(voter.key), address=voter.address)


def voter_from(message: pb.Voter, name: str) -> Voter:
    require(message.HasField("key"), f"{name} has no key")
    return Voter(key_from(message.key, name), check_address(message.address, f"{name}.address"))


def voters_to(voters: VoterSet) -> pb.VoterSet:
    return pb.VoterSet(voters=[voter_to(voter) for voter in voters])


def voters_from(message: pb.VoterSet, name: str) -> VoterSet:
    require(len(message.voters) <= VOTERS_MAX, f"{name} has {len(message.voters)} voters")
    voters = tuple(voter_from(voter, name) for voter in message.voters)
    ids = [voter.key.node_id for voter in voters]
    require(ids == sorted(set(ids)), f"{name}: ids out of order or twice: {ids}")
    require(all(voter.key.directory_id != UNASSIGNED for voter in voters), f"{name}: a voter without a directory id")
    return VoterSet(voters)


def log_end_to(end: LogEnd) -> pb.LogEnd:
    return pb.LogEnd(epoch=end.epoch, offset=end.offset)


def log_end_from(message: pb.LogEnd, name: str) -> LogEnd:
    return LogEnd(check_epoch(message.epoch, f"{name}.epoch"), check_offset(message.offset, f"{name}.offset"))


# Control records and batches


def control_to(record: ControlRecord) -> pb.ControlRecord:
    match record:
        case LeaderChange(leader, voters, granting):
            change = pb.LeaderChange(
                leader=key_to(leader), voters=map(key_to, voters), granting_voters=map(key_to, granting)
            )
            return pb.ControlRecord(leader_change=change)
        case Voters(cluster_id, generation, voter_set):
            return pb.ControlRecord(
                voters=pb.Voters(cluster_id=cluster_id, generation=generation, voters=voters_to(voter_set))
            )
        case TargetVoters(target):
            wanted = None if target is None else voters_to(target)
            return pb.ControlRecord(target_voters=pb.TargetVoters(target=wanted))


def control_from(message: pb.ControlRecord) -> ControlRecord:
    match message.WhichOneof("record"):
        case "leader_change":
            change = message.leader_change
            require(change.HasField("leader"), "leader_change has no leader")
            return LeaderChange(
                key_from(change.leader, "leader_change.leader"),
                keys_from(change.voters, "leader_change.voters"),
                keys_from(change.granting_voters, "leader_change.granting_voters"),
            )
        case "voters":
            voters = message.voters
            cluster_id = check_cluster_id(voters.cluster_id, "voters.cluster_id")
            voter_set = voters_from(voters.voters, "voters.voters")
            require(len(voter_set) > 0, "voters is empty")
            return Voters(cluster_id, check_epoch(voters.generation, "voters.generation"), voter_set)
        case "target_voters":
            target = message.target_voters
            if not target.HasField("target"):
                return TargetVoters(None)
            wanted = voters_from(target.target, "target_voters.target")
            require(len(wanted) > 0, "target_voters is empty")
            return TargetVoters(wanted)
        case other:
            raise MalformedError(f"control record of an unknown kind ({other})")


def batch_content(batch: Batch) -> tuple[int, bytes]:
    """Return (kind, content bytes) as they are stored.  The checksum covers the header and the content."""
    if batch.control is None:
        return DATA, batch.payload
    return CONTROL, control_to(batch.control).SerializeToString(deterministic=True)


def batch_crc(batch: Batch, kind: int, content: bytes) -> int:
    """Return the CRC-32C of header and content.

    For a control record on the wire, `content` is this version's own encoding of the decoded record.  A field that this
    version does not know therefore fails the check instead of being skipped.
    """
    header = _HEADER.pack(batch.base_offset, batch.epoch, batch.count, batch.timestamp_ms, kind)
    return crc32c(content, crc32c(header))


def check_batch(batch: Batch, kind: int, content: bytes, crc: int) -> None:
    """Check the fields of a batch and its checksum.

    Raises:
        MalformedError: a field is out of range, or the checksum does not match.
    """
    check_offset(batch.base_offset, "batch.base_offset")
    check_epoch(batch.epoch, "batch.epoch")
    check_offset(batch.timestamp_ms, "batch.timestamp_ms")
    require(1 <= batch.count <= BATCH_RECORDS_MAX, f"batch.count is {batch.count}")
    require(batch.base_offset <= _INT64_MAX - batch.count, f"batch.base_offset is {batch.base_offset}")
    require(len(content) <= BATCH_PAYLOAD_MAX_BYTES, f"batch holds {len(content)} bytes")
    require(batch.control is None or batch.count == 1, f"control batch of {batch.count} records")
    actual = batch_crc(batch, kind, content)
    require(actual == crc, f"batch at offset {batch.base_offset}: checksum is {actual:#010x}, expected {crc:#010x}")


def batch_to(batch: Batch) -> pb.Batch:
    kind, content = batch_content(batch)
    message = pb.Batch(
        base_offset=batch.base_offset,
        epoch=batch.epoch,
        count=batch.count,
        timestamp_ms=batch.timestamp_ms,
        crc=batch_crc(batch, kind, content),
    )
    if batch.control is None:
        message.payload = content
    else:
        message.control.CopyFrom(control_to(batch.control))
    return message


def batch_from(message: pb.Batch) -> Batch:
    match message.WhichOneof("content"):
        case "payload":
            control, payload = None, message.payload
        case "control":
            control, payload = control_from(message.control), b""
        case _:
            raise MalformedError(f"batch at offset {message.base_offset} holds nothing")
    batch = Batch(message.base_offset, message.epoch, message.count, message.timestamp_ms, payload, control)
    kind, content = batch_content(batch)
    check_batch(batch, kind, content, message.crc)
    return batch


def stored_batch(
    base_offset: int, epoch: int, count: int, timestamp_ms: int, kind: int, content: bytes, crc: int
) -> Batch:
    """Return the batch that the store's columns describe.

    Raises:
        NewerRecordError: a control record has fields that this version does not know.
        MalformedError: the row is damaged.
    """
    require(kind in (DATA, CONTROL), f"batch at offset {base_offset}: unknown kind {kind}")
    control = None
    if kind == CONTROL:
        message = pb.ControlRecord()
        parse(message, content)
        control = control_from(message)
    batch = Batch(base_offset, epoch, count, timestamp_ms, content if kind == DATA else b"", control)
    check_batch(batch, kind, content, crc)
    # Otherwise this version would drop the fields, and send the record with a valid checksum.
    if batch_content(batch) != (kind, content):
        raise NewerRecordError(f"the control record at offset {base_offset} has fields that this version does not know")
    return batch


def check_contiguous(batches: Iterable[Batch]) -> None:
    """Check that batches follow each other.

    Raises:
        MalformedError: there is a gap or an overlap, or an epoch is lower than the epoch before it.
    """
    previous: Batch | None = None
    for batch in batches:
        if previous is not None:
            require(
                batch.base_offset == previous.end_offset,
                f"batch at offset {batch.base_offset} follows one that ends at {previous.end_offset}",
            )
            require(
                batch.epoch >= previous.epoch,
                f"batch at offset {batch.base_offset} has epoch {batch.epoch} after epoch {previous.epoch}",
            )
        previous = batch


# Quorum state


def state_to(state: QuorumState) -> pb.QuorumStateMessage:
    election, voted = state.election, state.election.voted_for
    return pb.QuorumStateMessage(
        version=STATE_VERSION,
        cluster_id=state.cluster_id,
        generation=state.generation,
        leader_id=election.leader_id,
        leader_epoch=election.epoch,
        voted=None if voted is None else key_to(voted),
        applied_offset=state.applied_offset,
        current_voters=voters_to(state.voters),
        target_voters=None if state.target_voters is None else voters_to(state.target_voters),
    )


def state_from(message: pb.QuorumStateMessage) -> QuorumState:
    """Return the quorum state that a stored message encodes.

    Raises:
        MalformedError: the message is damaged, or of a version that this program does not know.
    """
    require(message.version == STATE_VERSION, f"quorum state of version {message.version}, not {STATE_VERSION}")
    leader_id = check_node_id(message.leader_id, "leader_id") if message.HasField("leader_id") else None
    voted_for = key_from(message.voted, "voted") if message.HasField("voted") else None
    return QuorumState(
        cluster_id=check_cluster_id(message.cluster_id, "cluster_id") if message.HasField("cluster_id") else None,
        generation=check_epoch(message.generation, "generation"),
        election=Election(check_epoch(message.leader_epoch, "leader_epoch"), leader_id, voted_for),
        applied_offset=check_offset(message.applied_offset, "applied_offset"),
        voters=voters_from(message.current_voters, "current_voters"),
        target_voters=voters_from(message.target_voters, "target_voters")
        if message.HasField("target_voters")
        else None,
    )
