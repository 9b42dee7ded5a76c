"""Messages of the `Quorum` service: protobuf ⇄ `quorum.core.messages`, with checks of untrusted input.

Required fields must be present, and every field must be in range and of bounded size.  A message that fails a check
raises `RemoteProtocolError` and never reaches the core.  A reply must also match its request: by correlation id, and by
the position of its batches in the log.  It may have at most one of batches, divergence and snapshot.

Unknown fields are ignored in requests and replies, so that nodes of neighbouring versions can communicate during an
upgrade.  They are refused in control records, which must not lose anything.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from google.protobuf.message import Message

from quorum import codec
from quorum.codec import MalformedError, require
from quorum.core import messages as m
from quorum.core.types import UNASSIGNED, LogEnd, ReplicaKey
from quorumlog.errors import RemoteProtocolError
from quorumlog.wire import rpcs
from quorumlog.wire.rpcs import AnyRpc
from quorumlog.wire.v1 import quorum_pb2 as pb

BATCH_MIN_BYTES = 64
"""The minimum size that a batch counts for, see `Batch.size`."""
OBSERVERS_MAX = 10_000
REASON_MAX_CHARS = 1_000
WAIT_MAX_MS = 60_000

_ERRORS = {code: getattr(pb, f"QUORUM_ERROR_{code.value}") for code in m.ErrorCode}
_ERRORS_BACK = {number: code for code, number in _ERRORS.items()}


class Conversion(NamedTuple):
    """How the messages of one RPC are converted: `_to` makes a protobuf message, `_from` checks and reads one."""

    rpc: AnyRpc
    request_type: type[m.Request]
    request_to: Callable[[Any], Message]
    request_from: Callable[[Any], m.Request]
    reply_to: Callable[[Any], Message]
    reply_from: Callable[[Any, Any], m.Reply]


# Fields that all messages share


def _sender_to(sender: m.Sender) -> pb.Sender:
    return pb.Sender(cluster_id=sender.cluster_id, generation=sender.generation, key=codec.key_to(sender.key))


def _sender_from(message: Any) -> m.Sender:
    require(message.HasField("sender"), "no sender")
    sender = message.sender
    require(sender.HasField("key"), "no sender.key")
    key = codec.key_from(sender.key, "sender.key")
    require(key.directory_id != UNASSIGNED, "sender.key has no directory id")
    cluster_id = codec.check_cluster_id(sender.cluster_id, "cluster_id") if sender.HasField("cluster_id") else None
    return m.Sender(cluster_id, codec.check_epoch(sender.generation, "generation"), key)


def _target_from(message: Any) -> ReplicaKey:
    require(message.HasField("target"), "no target")
    return codec.key_from(message.target, "target")


def _knowledge_to(known: m.Knowledge) -> pb.Knowledge:
    return pb.Knowledge(
        cluster_id=known.cluster_id,
        generation=known.generation,
        epoch=known.epoch,
        leader_id=known.leader_id,
        leader_address=known.leader_address,
    )


def _knowledge_from(message: Any) -> m.Knowledge:
    require(message.HasField("known"), "reply without known")
    known = message.known
    return m.Knowledge(
        codec.check_cluster_id(known.cluster_id, "cluster_id") if known.HasField("cluster_id") else None,
        codec.check_epoch(known.generation, "generation"),
        codec.check_epoch(known.epoch, "known.epoch"),
        codec.check_node_id(known.leader_id, "leader_id") if known.HasField("leader_id") else None,
        codec.check_address(known.leader_address, "leader_address") if known.HasField("leader_address") else None,
    )


def _error_from(message: Any) -> m.ErrorCode:
    code = _ERRORS_BACK.get(message.error)
    require(code is not None, f"unknown error code {message.error}")
    assert code is not None
    return code


def _initial_to(voters: Iterable[tuple[int, str]]) -> list[pb.InitialVoter]:
    return [pb.InitialVoter(node_id=node_id, address=address) for node_id, address in voters]


def _initial_from(messages: Any) -> tuple[tuple[int, str], ...]:
    require(len(messages) <= codec.VOTERS_MAX, f"{len(messages)} initial voters")
    voters = tuple(
        (
            codec.check_node_id(voter.node_id, "initial_voters.node_id"),
            codec.check_address(voter.address, "initial_voters.address"),
        )
        for voter in messages
    )
    require(len({node_id for node_id, _ in voters}) == len(voters), "initial_voters names an id twice")
    return voters


# Vote


def _vote_to(request: m.Vote) -> pb.VoteRequest:
    return pb.VoteRequest(
        sender=_sender_to(request.sender),
        target=codec.key_to(request.target),
        epoch=request.epoch,
        log_end=codec.log_end_to(request.log_end),
        pre_vote=request.pre_vote,
        address=request.address,
    )


def _vote_from(message: pb.VoteRequest) -> m.Vote:
    require(message.HasField("log_end"), "no log_end")
    epoch = codec.check_epoch(message.epoch, "epoch")
    return m.Vote(
        _sender_from(message),
        _target_from(message),
        epoch,
        codec.log_end_from(message.log_end, "log_end"),
        message.pre_vote,
        codec.check_address(message.address, "address") if message.address else "",
    )


def _vote_reply_to(reply: m.VoteReply) -> pb.VoteReply:
    return pb.VoteReply(error=_ERRORS[reply.error], known=_knowledge_to(reply.known), granted=reply.granted)


def _vote_reply_from(_: m.Vote, message: pb.VoteReply) -> m.VoteReply:
    error = _error_from(message)
    require(not (message.granted and error is not m.ErrorCode.NONE), f"granted, and refused with {error.value}")
    return m.VoteReply(error, _knowledge_from(message), message.granted)


# BeginQuorumEpoch, EndQuorumEpoch


def _begin_to(request: m.BeginQuorumEpoch) -> pb.BeginQuorumEpochRequest:
    return pb.BeginQuorumEpochRequest(
        sender=_sender_to(request.sender),
        target=codec.key_to(request.target),
        epoch=request.epoch,
        leader_address=request.leader_address,
    )


def _begin_from(message: pb.BeginQuorumEpochRequest) -> m.BeginQuorumEpoch:
    return m.BeginQuorumEpoch(
        _sender_from(message),
        _target_from(message),
        codec.check_epoch(message.epoch, "epoch"),
        codec.check_address(message.leader_address, "leader_address"),
    )


def _begin_reply_to(reply: m.BeginQuorumEpochReply) -> pb.BeginQuorumEpochReply:
    return pb.BeginQuorumEpochReply(error=_ERRORS[reply.error], known=_knowledge_to(reply.known))


def _begin_reply_from(_: m.BeginQuorumEpoch, message: pb.BeginQuorumEpochReply) -> m.BeginQuorumEpochReply:
    return m.BeginQuorumEpochReply(_error_from(message), _knowledge_from(message))


def _end_to(request: m.EndQuorumEpoch) -> pb.EndQuorumEpochRequest:
    return pb.EndQuorumEpochRequest(
        sender=_sender_to(request.sender),
        target=codec.key_to(request.target),
        epoch=request.epoch,
        successors=[codec.key_to(key) for key in request.successors],
        reason=request.reason[:REASON_MAX_CHARS],
    )


def _end_from(message: pb.EndQuorumEpochRequest) -> m.EndQuorumEpoch:
    return m.EndQuorumEpoch(
        _sender_from(message),
        _target_from(message),
        codec.check_epoch(message.epoch, "epoch"),
        codec.keys_from(message.successors, "successors"),
        message.reason[:REASON_MAX_CHARS],
    )


def _end_reply_to(reply: m.EndQuorumEpochReply) -> pb.EndQuorumEpochReply:
    return pb.EndQuorumEpochReply(error=_ERRORS[reply.error], known=_knowledge_to(reply.known))


def _end_reply_from(_: m.EndQuorumEpoch, message: pb.EndQuorumEpochReply) -> m.EndQuorumEpochReply:
    return m.EndQuorumEpochReply(_error_from(message), _knowledge_from(message))


# Fetch


def _fetch_to(request: m.Fetch) -> pb.FetchRequest:
    return pb.FetchRequest(
        sender=_sender_to(request.sender),
        target_id=request.target_id,
        epoch=request.epoch,
        offset=request.offset,
        last_fetched_epoch=request.last_fetched_epoch,
        high_watermark=request.high_watermark,
        round=request.round,
        max_wait_ms=request.max_wait_ms,
        max_bytes=request.max_bytes,
        address=request.address,
        write_ms=request.write_ms,
    )


def _fetch_from(message: pb.FetchRequest) -> m.Fetch:
    require(message.max_wait_ms <= WAIT_MAX_MS, f"max_wait_ms is {message.max_wait_ms}")
    require(message.max_bytes > 0, "max_bytes is 0")
    return m.Fetch(
        sender=_sender_from(message),
        target_id=codec.check_node_id(message.target_id, "target_id") if message.HasField("target_id") else None,
        epoch=codec.check_epoch(message.epoch, "epoch"),
        offset=codec.check_offset(message.offset, "offset"),
        last_fetched_epoch=codec.check_epoch(message.last_fetched_epoch, "last_fetched_epoch"),
        high_watermark=codec.check_offset(message.high_watermark, "high_watermark"),
        round=message.round,
        max_wait_ms=message.max_wait_ms,
        max_bytes=message.max_bytes,
        address=codec.check_address(message.address, "address"),
        write_ms=message.write_ms,
    )


def _fetch_reply_to(reply: m.FetchReply) -> pb.FetchReply:
    return pb.FetchReply(
        error=_ERRORS[reply.error],
        known=_knowledge_to(reply.known),
        high_watermark=reply.high_watermark,
        log_start_offset=reply.log_start_offset,
        round=reply.round,
        diverging=None if reply.diverging is None else codec.log_end_to(reply.diverging),
        snapshot=None if reply.snapshot is None else codec.log_end_to(reply.snapshot),
        batches=[codec.batch_to(batch) for batch in reply.batches],
    )


def _fetch_reply_from(request: m.Fetch, message: pb.FetchReply) -> m.FetchReply:
    error = _error_from(message)
    known = _knowledge_from(message)
    diverging = codec.log_end_from(message.diverging, "diverging") if message.HasField("diverging") else None
    snapshot = codec.log_end_from(message.snapshot, "snapshot") if message.HasField("snapshot") else None
    most = max(1, request.max_bytes // BATCH_MIN_BYTES)
    require(len(message.batches) <= most, f"{len(message.batches)} batches, at most {most} were asked for")
    batches = tuple(codec.batch_from(batch) for batch in message.batches)
    given = [part is not None for part in (diverging, snapshot)] + [bool(batches)]
    require(sum(given) <= 1, "more than one of batches, diverging and snapshot")
    if error is not m.ErrorCode.NONE:
        require(not any(given), f"refused with {error.value}, but it holds an answer")
    if batches:
        first, last = batches[0], batches[-1]
        require(first.base_offset == request.offset, f"asked from {request.offset}, got from {first.base_offset}")
        require(first.epoch >= request.last_fetched_epoch, f"batch of epoch {first.epoch} after a later one")
        require(last.epoch <= known.epoch, f"batch of epoch {last.epoch} from a leader of epoch {known.epoch}")
        codec.check_contiguous(batches)
    if diverging is not None:
        # The leader's end of an older epoch may be above the requested offset; its end of the same epoch must be below.
        mine = LogEnd(request.last_fetched_epoch, request.offset)
        require(diverging < mine, f"diverging at {diverging}, asked from {mine}")
    return m.FetchReply(
        error=error,
        known=known,
        high_watermark=codec.check_offset(message.high_watermark, "high_watermark"),
        log_start_offset=codec.check_offset(message.log_start_offset, "log_start_offset"),
        round=message.round,
        diverging=diverging,
        snapshot=snapshot,
        batches=batches,
    )


# FetchSnapshot


def _fetch_snapshot_to(request: m.FetchSnapshot) -> pb.FetchSnapshotRequest:
    return pb.FetchSnapshotRequest(
        sender=_sender_to(request.sender),
        target_id=request.target_id,
        epoch=request.epoch,
        snapshot=codec.log_end_to(request.snapshot),
        position=request.position,
        max_bytes=request.max_bytes,
        round=request.round,
    )


def _fetch_snapshot_from(message: pb.FetchSnapshotRequest) -> m.FetchSnapshot:
    require(message.HasField("snapshot"), "no snapshot")
    require(message.max_bytes > 0, "max_bytes is 0")
    return m.FetchSnapshot(
        sender=_sender_from(message),
        target_id=codec.check_node_id(message.target_id, "target_id"),
        epoch=codec.check_epoch(message.epoch, "epoch"),
        snapshot=codec.log_end_from(message.snapshot, "snapshot"),
        position=codec.check_offset(message.position, "position"),
        max_bytes=message.max_bytes,
        round=message.round,
    )


def _fetch_snapshot_reply_to(reply: m.FetchSnapshotReply) -> pb.FetchSnapshotReply:
    return pb.FetchSnapshotReply(
        error=_ERRORS[reply.error],
        known=_knowledge_to(reply.known),
        snapshot=codec.log_end_to(reply.snapshot),
        size=reply.size,
        position=reply.position,
        data=reply.data,
        round=reply.round,
    )


def _fetch_snapshot_reply_from(request: m.FetchSnapshot, message: pb.FetchSnapshotReply) -> m.FetchSnapshotReply:
    error = _error_from(message)
    require(message.HasField("snapshot"), "no snapshot")
    snapshot = codec.log_end_from(message.snapshot, "snapshot")
    require(snapshot == request.snapshot, f"asked for snapshot {request.snapshot}, got {snapshot}")
    size, position = codec.check_offset(message.size, "size"), codec.check_offset(message.position, "position")
    data = message.data
    require(len(data) <= request.max_bytes, f"{len(data)} bytes, at most {request.max_bytes} were asked for")
    if error is m.ErrorCode.NONE:
        require(position == request.position, f"asked from {request.position}, got from {position}")
        require(len(data) > 0, "no bytes")
        require(position + len(data) <= size, f"{len(data)} bytes at {position} of {size}")
    else:
        require(not data, f"refused with {error.value}, but it holds bytes")
    return m.FetchSnapshotReply(error, _knowledge_from(message), snapshot, size, position, data, message.round)


# Introduce


def _introduce_to(request: m.Introduce) -> pb.IntroduceRequest:
    return pb.IntroduceRequest(sender=_sender_to(request.sender), initial_voters=_initial_to(request.initial_voters))


def _introduce_from(message: pb.IntroduceRequest) -> m.Introduce:
    return m.Introduce(_sender_from(message), _initial_from(message.initial_voters))


def _introduce_reply_to(reply: m.IntroduceReply) -> pb.IntroduceReply:
    return pb.IntroduceReply(
        error=_ERRORS[reply.error],
        known=_knowledge_to(reply.known),
        key=codec.key_to(reply.key),
        newborn=reply.newborn,
        initial_voters=_initial_to(reply.initial_voters),
        founding=None if reply.founding is None else codec.batch_to(reply.founding),
        voters=codec.voters_to(reply.voters),
    )


def _introduce_reply_from(_: m.Introduce, message: pb.IntroduceReply) -> m.IntroduceReply:
    require(message.HasField("key"), "no key")
    key = codec.key_from(message.key, "key")
    require(key.directory_id != UNASSIGNED, "key has no directory id")  # the key may become a voter's
    founding = codec.batch_from(message.founding) if message.HasField("founding") else None
    if founding is not None:
        require(founding.base_offset == 0, f"founding batch at offset {founding.base_offset}")
        require(founding.control is not None, "founding batch is not a control record")
    require(not (message.newborn and founding is not None), "a newborn with a founding record")
    return m.IntroduceReply(
        error=_error_from(message),
        known=_knowledge_from(message),
        key=key,
        newborn=message.newborn,
        initial_voters=_initial_from(message.initial_voters),
        founding=founding,
        voters=codec.voters_from(message.voters, "voters"),
    )


# DescribeQuorum


def _describe_to(request: m.DescribeQuorum) -> pb.DescribeQuorumRequest:
    if request.sender == m.TOOL:
        return pb.DescribeQuorumRequest()
    return pb.DescribeQuorumRequest(sender=_sender_to(request.sender), address=request.address, epoch=request.epoch)


def _describe_from(message: pb.DescribeQuorumRequest) -> m.DescribeQuorum:
    if not message.HasField("sender") or not message.sender.HasField("key"):
        return m.DescribeQuorum(m.TOOL)
    address = codec.check_address(message.address, "address") if message.address else ""
    return m.DescribeQuorum(_sender_from(message), address, codec.check_epoch(message.epoch, "epoch"))


def _status_to(status: m.ReplicaStatus) -> pb.ReplicaStatus:
    return pb.ReplicaStatus(
        replica=codec.voter_to(status.replica),
        log_end_offset=status.log_end_offset,
        lag=status.lag,
        last_fetch_ms=status.last_fetch_ms,
        last_caught_up_ms=status.last_caught_up_ms,
    )


def _status_from(message: pb.ReplicaStatus) -> m.ReplicaStatus:
    require(message.HasField("replica"), "status without replica")
    require(message.log_end_offset >= -1 and message.lag >= -1, "negative log end or lag")
    return m.ReplicaStatus(
        replica=codec.voter_from(message.replica, "replica"),
        log_end_offset=message.log_end_offset,
        lag=message.lag,
        last_fetch_ms=message.last_fetch_ms if message.HasField("last_fetch_ms") else None,
        last_caught_up_ms=message.last_caught_up_ms if message.HasField("last_caught_up_ms") else None,
    )


def _describe_reply_to(reply: m.DescribeQuorumReply) -> pb.DescribeQuorumReply:
    return pb.DescribeQuorumReply(
        error=_ERRORS[reply.error],
        known=_knowledge_to(reply.known),
        answered_by=codec.key_to(reply.answered_by),
        high_watermark=reply.high_watermark,
        log_end_offset=reply.log_end_offset,
        paused=reply.paused,
        voters=[_status_to(status) for status in reply.voters],
        observers=[_status_to(status) for status in reply.observers[:OBSERVERS_MAX]],
        target_voters=None if reply.target_voters is None else codec.voters_to(reply.target_voters),
        last_leader_change_reason=reply.last_leader_change_reason,
        last_leader_change_ms=reply.last_leader_change_ms,
        target_step=reply.target_step,
        target_problem=reply.target_problem,
        last_leadership_end=None
        if reply.last_leadership_end is None
        else _leadership_end_to(reply.last_leadership_end),
        preferred_problem=None if reply.preferred_problem is None else reply.preferred_problem[:REASON_MAX_CHARS],
    )


def _leadership_end_to(end: m.LeadershipEnd) -> pb.LeadershipEnd:
    return pb.LeadershipEnd(
        leader_id=end.leader_id, epoch=end.epoch, reason=end.reason[:REASON_MAX_CHARS], age_ms=end.age_ms
    )


def _leadership_end_from(end: pb.LeadershipEnd) -> m.LeadershipEnd:
    require(end.age_ms >= 0, f"a leadership that ends in {-end.age_ms} ms")
    return m.LeadershipEnd(
        codec.check_node_id(end.leader_id, "leader_id"),
        codec.check_epoch(end.epoch, "epoch"),
        end.reason[:REASON_MAX_CHARS],
        end.age_ms,
    )


def _words(message: pb.DescribeQuorumReply, field: str) -> str | None:
    """Return a text for people, if the field is set.  It is shortened, because a peer chose its length."""
    text: str = getattr(message, field)
    return text[:REASON_MAX_CHARS] if message.HasField(field) else None


def _describe_reply_from(_: m.DescribeQuorum, message: pb.DescribeQuorumReply) -> m.DescribeQuorumReply:
    require(message.HasField("answered_by"), "no answered_by")
    require(len(message.voters) <= codec.VOTERS_MAX, f"{len(message.voters)} voters")
    require(len(message.observers) <= OBSERVERS_MAX, f"{len(message.observers)} observers")
    return m.DescribeQuorumReply(
        error=_error_from(message),
        known=_knowledge_from(message),
        answered_by=codec.key_from(message.answered_by, "answered_by"),
        high_watermark=codec.check_offset(message.high_watermark, "high_watermark"),
        log_end_offset=codec.check_offset(message.log_end_offset, "log_end_offset"),
        paused=message.paused,
        voters=tuple(_status_from(status) for status in message.voters),
        observers=tuple(_status_from(status) for status in message.observers),
        target_voters=(
            codec.voters_from(message.target_voters, "target_voters") if message.HasField("target_voters") else None
        ),
        last_leader_change_reason=_words(message, "last_leader_change_reason"),
        last_leader_change_ms=message.last_leader_change_ms if message.HasField("last_leader_change_ms") else None,
        target_step=_words(message, "target_step"),
        target_problem=_words(message, "target_problem"),
        last_leadership_end=(
            _leadership_end_from(message.last_leadership_end) if message.HasField("last_leadership_end") else None
        ),
        preferred_problem=_words(message, "preferred_problem"),
    )


CONVERSIONS: dict[AnyRpc, Conversion] = {
    each.rpc: each
    for each in (
        Conversion(rpcs.VOTE, m.Vote, _vote_to, _vote_from, _vote_reply_to, _vote_reply_from),
        Conversion(
            rpcs.BEGIN_QUORUM_EPOCH, m.BeginQuorumEpoch, _begin_to, _begin_from, _begin_reply_to, _begin_reply_from
        ),
        Conversion(rpcs.END_QUORUM_EPOCH, m.EndQuorumEpoch, _end_to, _end_from, _end_reply_to, _end_reply_from),
        Conversion(rpcs.FETCH, m.Fetch, _fetch_to, _fetch_from, _fetch_reply_to, _fetch_reply_from),
        Conversion(
            rpcs.FETCH_SNAPSHOT,
            m.FetchSnapshot,
            _fetch_snapshot_to,
            _fetch_snapshot_from,
            _fetch_snapshot_reply_to,
            _fetch_snapshot_reply_from,
        ),
        Conversion(
            rpcs.INTRODUCE, m.Introduce, _introduce_to, _introduce_from, _introduce_reply_to, _introduce_reply_from
        ),
        Conversion(
            rpcs.DESCRIBE_QUORUM,
            m.DescribeQuorum,
            _describe_to,
            _describe_from,
            _describe_reply_to,
            _describe_reply_from,
        ),
    )
}
"""Every RPC of the `Quorum` service."""

_BY_REQUEST = {each.request_type: each for each in CONVERSIONS.values()}


def rpc_of(request: m.Request) -> AnyRpc:
    """Return the RPC that carries `request`."""
    return _BY_REQUEST[type(request)].rpc


def request_to_wire(request: m.Request, correlation_id: int) -> bytes:
    message: Any = _BY_REQUEST[type(request)].request_to(request)
    message.correlation_id = correlation_id
    data: bytes = message.SerializeToString()
    return data


def request_from_wire(rpc: AnyRpc, wire: bytes) -> tuple[int, m.Request]:
    """Return the correlation id and the request of a call of `rpc`.

    Raises:
        RemoteProtocolError: the request is malformed; the error names the field.
    """
    message = rpc.request()
    try:
        codec.parse(message, wire)
        return message.correlation_id, CONVERSIONS[rpc].request_from(message)
    except MalformedError as error:
        raise RemoteProtocolError(f"{rpc}: {error}") from error


def reply_to_wire(rpc: AnyRpc, reply: m.Reply, correlation_id: int) -> bytes:
    message: Any = CONVERSIONS[rpc].reply_to(reply)
    message.correlation_id = correlation_id
    data: bytes = message.SerializeToString()
    return data


def reply_from_wire(request: m.Request, correlation_id: int, wire: bytes) -> m.Reply:
    """Return the reply to `request`, which was sent with `correlation_id`.

    Raises:
        RemoteProtocolError: the reply is malformed, or answers another request.
    """
    conversion = _BY_REQUEST[type(request)]
    message = conversion.rpc.reply()
    try:
        codec.parse(message, wire)
        answered = message.correlation_id
        require(answered == correlation_id, f"answers call {answered}, not {correlation_id}")
        return conversion.reply_from(request, message)
    except MalformedError as error:
        raise RemoteProtocolError(f"reply to {conversion.rpc}: {error}") from error


__all__ = [
    "CONVERSIONS",
    "Conversion",
    "reply_from_wire",
    "reply_to_wire",
    "request_from_wire",
    "request_to_wire",
]
