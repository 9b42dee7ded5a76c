"""Conversion of quorum messages: exact for correct messages, a named refusal for all others."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quorum import codec
from quorum.core import messages as m
from quorum.core.types import (
    UNASSIGNED,
    Batch,
    LeaderChange,
    LogEnd,
    ReplicaKey,
    TargetVoters,
    Voter,
    Voters,
    VoterSet,
)
from quorum.transport import convert
from quorum.transport.convert import CONVERSIONS, reply_from_wire, reply_to_wire, request_from_wire, request_to_wire
from quorumlog.errors import RemoteProtocolError
from quorumlog.wire import rpcs
from quorumlog.wire.rpcs import AnyRpc
from quorumlog.wire.v1 import quorum_pb2 as pb
from tests.contract.samples import CLUSTER, KEYS, KNOWN, SENDER, VOTERS, data, founding, leader_change, state

QUICK = settings(max_examples=60, deadline=None)

epochs = st.integers(0, 2**31 - 1)
offsets = st.integers(0, 2**62)
node_ids = st.integers(0, 2**31 - 1)
uuids = st.integers(1, 2**128 - 1).map(lambda number: UUID(int=number))
keys = st.builds(ReplicaKey, node_ids, uuids)
addresses = st.builds(
    lambda host, port: f"{host}:{port}", st.sampled_from(["a", "10.0.0.1", "[::1]"]), st.integers(1, 65535)
)
cluster_ids = st.text("abcXYZ019_-", min_size=1, max_size=64)
voters = st.builds(Voter, keys, addresses)
voter_sets = st.lists(voters, max_size=5, unique_by=lambda voter: voter.key.node_id).map(
    lambda found: VoterSet(tuple(sorted(found, key=lambda voter: voter.key.node_id)))
)
some_voters = voter_sets.filter(len)
senders = st.builds(m.Sender, st.none() | cluster_ids, epochs, keys)
knowns = st.builds(m.Knowledge, st.none() | cluster_ids, epochs, epochs, st.none() | node_ids, st.none() | addresses)
key_tuples = st.lists(keys, max_size=4, unique=True).map(tuple)
controls = (
    st.builds(LeaderChange, keys, key_tuples, key_tuples)
    | st.builds(Voters, cluster_ids, epochs, some_voters)
    | st.builds(TargetVoters, st.none() | some_voters)
)
data_batches = st.builds(Batch, offsets, epochs, st.integers(1, 10_000), offsets, st.binary(max_size=200))
control_batches = st.builds(Batch, offsets, epochs, st.just(1), offsets, st.just(b""), controls)
log_ends = st.builds(LogEnd, epochs, offsets)
initial = st.lists(st.tuples(node_ids, addresses), max_size=5, unique_by=lambda item: item[0]).map(tuple)
ages = st.none() | offsets
statuses = st.builds(m.ReplicaStatus, voters, offsets, offsets, ages, ages)
errors = st.sampled_from(m.ErrorCode)
foundings = st.builds(Voters, cluster_ids, epochs, some_voters).map(lambda record: Batch(0, 0, 1, 7, control=record))

requests = st.one_of(
    st.builds(m.Vote, senders, keys, epochs, log_ends, st.booleans(), addresses | st.just("")),
    st.builds(m.BeginQuorumEpoch, senders, keys, epochs, addresses),
    st.builds(m.EndQuorumEpoch, senders, keys, epochs, key_tuples, st.sampled_from(["", "told to"])),
    st.builds(
        m.Fetch,
        senders,
        st.none() | node_ids,
        epochs,
        offsets,
        epochs,
        offsets,
        offsets,
        st.integers(0, 60_000),
        st.integers(1, 2**31),
        addresses,
        st.integers(0, 2**32 - 1),
    ),
    st.builds(m.FetchSnapshot, senders, node_ids, epochs, log_ends, offsets, st.integers(1, 2**31), offsets),
    st.builds(m.Introduce, senders, initial),
    st.builds(m.DescribeQuorum, senders, addresses | st.just(""), epochs),
)


@QUICK
@given(requests, st.integers(0, 2**64 - 1))
def test_requests_round_trip_through_their_messages(request: m.Request, correlation_id: int) -> None:
    rpc = convert.rpc_of(request)
    assert request_from_wire(rpc, request_to_wire(request, correlation_id)) == (correlation_id, request)


def sample(kind: type[Any]) -> Any:
    """Return a request of a kind, to compare a reply with."""
    requests: dict[type, Any] = {
        m.Vote: m.Vote(SENDER, KEYS[1], 3, LogEnd(0, 0), False),
        m.BeginQuorumEpoch: m.BeginQuorumEpoch(SENDER, KEYS[1], 3, "a:1"),
        m.EndQuorumEpoch: m.EndQuorumEpoch(SENDER, KEYS[1], 3, (), "told to"),
        m.Introduce: m.Introduce(SENDER, ()),
        m.DescribeQuorum: m.DescribeQuorum(SENDER),
        m.Fetch: fetch(),
        m.FetchSnapshot: m.FetchSnapshot(SENDER, 1, 3, LogEnd(2, 40), 100, 1000, 9),
    }
    return requests[kind]


def fetch(offset: int = 5, last_fetched_epoch: int = 2) -> m.Fetch:
    return m.Fetch(SENDER, 1, 3, offset, last_fetched_epoch, 0, 0, 500, 1 << 20, "a:1")


replies = st.one_of(
    st.tuples(
        st.just(m.Vote),
        st.builds(m.VoteReply, errors, knowns)
        | st.builds(m.VoteReply, st.just(m.ErrorCode.NONE), knowns, st.booleans()),
    ),
    st.tuples(st.just(m.BeginQuorumEpoch), st.builds(m.BeginQuorumEpochReply, errors, knowns)),
    st.tuples(st.just(m.EndQuorumEpoch), st.builds(m.EndQuorumEpochReply, errors, knowns)),
    st.tuples(
        st.just(m.FetchSnapshot),
        st.binary(min_size=1, max_size=100).flatmap(
            lambda data: st.builds(
                m.FetchSnapshotReply,
                st.just(m.ErrorCode.NONE),
                knowns,
                st.just(LogEnd(2, 40)),
                st.integers(100 + len(data), 2**40),
                st.just(100),
                st.just(data),
                st.integers(0, 2**40),
            )
        ),
    ),
    st.tuples(
        st.just(m.Introduce),
        st.builds(m.IntroduceReply, errors, knowns, keys, st.booleans(), initial, st.none(), voter_sets)
        | st.builds(m.IntroduceReply, errors, knowns, keys, st.just(False), initial, foundings, voter_sets),
    ),
    st.tuples(
        st.just(m.DescribeQuorum),
        st.builds(
            m.DescribeQuorumReply,
            errors,
            knowns,
            keys,
            offsets,
            offsets,
            st.booleans(),
            st.lists(statuses, max_size=3).map(tuple),
            st.lists(statuses, max_size=3).map(tuple),
            st.none() | voter_sets,
            st.none() | st.text(max_size=50),
            ages,
            st.none() | st.text(max_size=50),
            st.none() | st.text(max_size=50),
            st.none() | st.builds(m.LeadershipEnd, st.integers(0, 9), st.integers(0, 9), st.text(), st.integers(0, 9)),
            st.none() | st.text(max_size=50),
        ),
    ),
    st.tuples(st.just(m.Fetch), st.builds(m.FetchReply, errors, knowns, offsets, offsets, offsets)),
    st.tuples(
        st.just(m.Fetch),
        st.builds(
            m.FetchReply, st.just(m.ErrorCode.NONE), knowns, offsets, offsets, offsets, st.none(), log_ends, st.just(())
        ),
    ),
)


@QUICK
@given(replies, st.integers(0, 2**64 - 1))
def test_replies_round_trip_through_their_messages(
    exchange: tuple[type[m.Request], m.Reply], correlation_id: int
) -> None:
    kind, reply = exchange
    request = sample(kind)
    wire = reply_to_wire(convert.rpc_of(request), reply, correlation_id)
    assert reply_from_wire(request, correlation_id, wire) == reply


@QUICK
@given(data_batches | control_batches)
def test_batches_round_trip_through_their_messages(batch: Batch) -> None:
    message = pb.Batch()
    codec.parse(message, codec.batch_to(batch).SerializeToString())
    assert codec.batch_from(message) == batch


@QUICK
@given(data_batches | control_batches, st.data())
def test_a_batch_with_a_flipped_bit_is_refused_or_has_the_same_values(batch: Batch, chosen: st.DataObject) -> None:
    wire = bytearray(codec.batch_to(batch).SerializeToString())
    position = chosen.draw(st.integers(0, len(wire) - 1))
    wire[position] ^= 1 << chosen.draw(st.integers(0, 7))
    message = pb.Batch()
    try:
        codec.parse(message, bytes(wire))
        # A damaged tag can turn a default field into an unknown one.  No sent value has changed then.
        assert codec.batch_from(message) == batch
    except codec.MalformedError:
        pass


@QUICK
@given(st.sampled_from(list(CONVERSIONS)), st.binary(max_size=300))
def test_arbitrary_bytes_are_a_valid_request_or_are_refused_with_the_name_of_the_rpc(rpc: AnyRpc, wire: bytes) -> None:
    try:
        result: object = request_from_wire(rpc, wire)[1]
    except RemoteProtocolError as error:
        result = error.message
    assert isinstance(result, CONVERSIONS[rpc].request_type) or str(result).startswith(f"{rpc}: ")


@QUICK
@given(requests, st.data())
def test_damaged_requests_never_make_a_value_out_of_range(request: m.Request, chosen: st.DataObject) -> None:
    rpc = convert.rpc_of(request)
    wire = bytearray(request_to_wire(request, 1))
    for _ in range(3):
        wire[chosen.draw(st.integers(0, len(wire) - 1))] = chosen.draw(st.integers(0, 255))
    try:
        _, got = request_from_wire(rpc, bytes(wire))
    except RemoteProtocolError:
        return
    for field in ("epoch", "offset", "high_watermark", "last_fetched_epoch"):
        assert getattr(got, field, 0) >= 0


def vote(**changes: Any) -> bytes:
    message = CONVERSIONS[rpcs.VOTE].request_to(sample(m.Vote))
    for name, value in changes.items():
        if value is None:
            message.ClearField(name)
        elif hasattr(value, "SerializeToString"):
            getattr(message, name).CopyFrom(value)
        else:
            setattr(message, name, value)
    return message.SerializeToString()


def key(**changes: Any) -> pb.ReplicaKey:
    return pb.ReplicaKey(**{"node_id": 1, "directory_id": b"d" * 16, **changes})


@pytest.mark.parametrize(
    ("wire", "problem"),
    [
        (b"\xff\xff\xff", "not a VoteRequest"),
        (b"", "no "),
        (vote(sender=None), "no sender"),
        (vote(sender=pb.Sender()), "no sender.key"),
        (vote(sender=pb.Sender(key=key(node_id=-1))), "sender.key.node_id is -1"),
        (vote(sender=pb.Sender(key=key(directory_id=b"short"))), "has 5 bytes, not 16"),
        (vote(sender=pb.Sender(key=key(directory_id=bytes(16)))), "no directory id"),
        (vote(sender=pb.Sender(key=key(), cluster_id="")), "cluster_id is ''"),
        (vote(sender=pb.Sender(key=key(), cluster_id="x" * 65)), "cluster_id is"),
        (vote(sender=pb.Sender(key=key(), generation=-1)), "generation is -1"),
        (vote(target=None), "no target"),
        (vote(epoch=-1), "epoch is -1"),
        (vote(log_end=None), "no log_end"),
        (vote(log_end=pb.LogEnd(offset=-5)), "log_end.offset is -5"),
        (vote(log_end=pb.LogEnd(epoch=-5)), "log_end.epoch is -5"),
    ],
)
def test_the_refusal_of_a_malformed_vote_request_names_the_field(wire: bytes, problem: str) -> None:
    with pytest.raises(RemoteProtocolError, match=problem):
        request_from_wire(rpcs.VOTE, wire)


def test_a_reply_to_another_request_is_refused() -> None:
    wire = reply_to_wire(rpcs.VOTE, m.VoteReply(m.ErrorCode.NONE, KNOWN), 7)
    with pytest.raises(RemoteProtocolError, match="answers call 7, not 8"):
        reply_from_wire(sample(m.Vote), 8, wire)


def fetched(**fields: Any) -> m.FetchReply:
    return m.FetchReply(m.ErrorCode.NONE, KNOWN, **fields)


@pytest.mark.parametrize(
    ("reply", "problem"),
    [
        (fetched(batches=(data(6, 3),)), "asked from 5, got from 6"),
        (fetched(batches=(data(5, 3), data(7, 3))), "offset 7 follows one that ends at 6"),
        (fetched(batches=(data(5, 3), data(6, 2))), "epoch 2 after epoch 3"),
        (fetched(batches=(data(5, 1),)), "epoch 1 after a later one"),
        (fetched(batches=(data(5, 4),)), "epoch 4 from a leader of epoch 3"),
        (fetched(batches=(data(5, 3),), snapshot=LogEnd(1, 1)), "more than one of"),
        (fetched(diverging=LogEnd(1, 1), snapshot=LogEnd(1, 1)), "more than one of"),
        (fetched(diverging=LogEnd(3, 1)), "diverging"),
        (fetched(diverging=LogEnd(2, 5)), "diverging"),
        (fetched(batches=tuple(data(5 + n, 3) for n in range((1 << 14) + 1))), "16384 were asked for"),
        (fetched(high_watermark=-1), "high_watermark is -1"),
        (fetched(log_start_offset=-1), "log_start_offset is -1"),
        (m.FetchReply(m.ErrorCode.NOT_LEADER, KNOWN, batches=(data(5, 3),)), "refused with NOT_LEADER"),
    ],
)
def test_a_fetch_reply_that_does_not_match_its_request_is_refused(reply: m.FetchReply, problem: str) -> None:
    with pytest.raises(RemoteProtocolError, match=problem):
        reply_from_wire(fetch(), 1, reply_to_wire(rpcs.FETCH, reply, 1))


def test_a_divergence_in_an_older_epoch_may_be_above_the_fetch_offset() -> None:
    reply = fetched(diverging=LogEnd(1, 9))
    assert reply_from_wire(fetch(), 1, reply_to_wire(rpcs.FETCH, reply, 1)) == reply


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"snapshot": LogEnd(2, 41)}, "asked for snapshot"),
        ({"position": 99}, "asked from 100, got from 99"),
        ({"data": b""}, "no bytes"),
        ({"data": bytes(1001)}, "at most 1000 were asked for"),
        ({"size": 101}, "2 bytes at 100 of 101"),
        ({"error": m.ErrorCode.SNAPSHOT_NOT_FOUND}, "but it holds bytes"),
    ],
)
def test_a_snapshot_part_that_does_not_match_its_request_is_refused(fields: dict[str, Any], problem: str) -> None:
    whole = {"error": m.ErrorCode.NONE, "snapshot": LogEnd(2, 40), "size": 500, "position": 100, "data": b"ab"}
    reply = m.FetchSnapshotReply(known=KNOWN, **{**whole, **fields})
    with pytest.raises(RemoteProtocolError, match=problem):
        reply_from_wire(sample(m.FetchSnapshot), 1, reply_to_wire(rpcs.FETCH_SNAPSHOT, reply, 1))


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"founding": leader_change(1)}, "founding batch at offset 1"),
        ({"founding": data(0)}, "not a control record"),
        ({"newborn": True}, "a newborn with a founding record"),
        ({"key": ReplicaKey(1, UNASSIGNED)}, "no directory id"),
    ],
)
def test_an_introduction_that_contradicts_itself_is_refused(change: dict[str, Any], problem: str) -> None:
    fields = {"key": KEYS[0], "newborn": False, "founding": founding(), **change}
    reply = m.IntroduceReply(m.ErrorCode.NONE, KNOWN, initial_voters=(), voters=VOTERS, **fields)
    with pytest.raises(RemoteProtocolError, match=problem):
        reply_from_wire(sample(m.Introduce), 1, reply_to_wire(rpcs.INTRODUCE, reply, 1))


def test_voter_sets_out_of_order_or_too_large_are_refused() -> None:
    swapped = pb.VoterSet(voters=[codec.voter_to(voter) for voter in reversed(VOTERS.voters)])
    with pytest.raises(codec.MalformedError, match="out of order"):
        codec.voters_from(swapped, "voters")
    many = pb.VoterSet(
        voters=[codec.voter_to(Voter(ReplicaKey(node_id, UUID(int=node_id + 1)), "a:1")) for node_id in range(65)]
    )
    with pytest.raises(codec.MalformedError, match="65 voters"):
        codec.voters_from(many, "voters")


def test_a_control_batch_whose_checksum_covers_an_unknown_field_is_refused() -> None:
    message = codec.batch_to(founding())
    changed = message.control.voters.SerializeToString() + b"\xa2\x06\x03new"  # field 100, as of a later version
    message.control.voters.ParseFromString(changed)
    assert codec.batch_from(codec.batch_to(founding())) == founding()
    again = pb.Batch()
    again.ParseFromString(message.SerializeToString())
    assert codec.batch_from(again) == founding(), "the part that the sender's checksum covers is unchanged"
    kind, content = codec.batch_content(founding())
    header = Batch(0, 0, 1, founding().timestamp_ms, b"", founding().control)
    message.crc = codec.batch_crc(header, kind, content + b"\xa2\x06\x03new")
    with pytest.raises(codec.MalformedError, match="checksum"):
        codec.batch_from(message)


def test_a_tool_may_describe_the_quorum_without_a_replica_key() -> None:
    assert request_from_wire(rpcs.DESCRIBE_QUORUM, b"") == (0, m.DescribeQuorum(m.TOOL))
    assert request_from_wire(rpcs.DESCRIBE_QUORUM, request_to_wire(m.DescribeQuorum(m.TOOL), 4))[0] == 4


def test_quorum_state_round_trips_and_another_version_is_refused() -> None:
    written = state(8, epoch=4, voted_for=KEYS[2])
    message = codec.state_to(written)
    assert codec.state_from(message) == written
    message.version = 2
    with pytest.raises(codec.MalformedError, match="version 2"):
        codec.state_from(message)
    assert written.cluster_id == CLUSTER
