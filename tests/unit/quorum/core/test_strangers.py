"""Requests that a core refuses: the error, and proof that a refusal changes nothing, in particular no epoch."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from msgspec.structs import replace

from quorum.core.events import NodeRefused, Write
from quorum.core.messages import (
    BeginQuorumEpoch,
    BeginQuorumEpochReply,
    EndQuorumEpoch,
    EndQuorumEpochReply,
    ErrorCode,
    Fetch,
    FetchReply,
    Request,
    Sender,
    Vote,
    VoteReply,
)
from quorum.core.types import LogEnd, ReplicaKey, Role
from tests.unit.quorum.core.helpers import Bench, key, sender

HUGE = 2**31 - 1


def vote(bench: Bench) -> Vote:
    return bench.vote(epoch=9, end=LogEnd(8, 99))


def begin(bench: Bench) -> BeginQuorumEpoch:
    return BeginQuorumEpoch(sender(2), bench.core.key, 9, "n2:1")


def end(bench: Bench) -> EndQuorumEpoch:
    return EndQuorumEpoch(sender(2), bench.core.key, 9, ())


def fetch(bench: Bench) -> Fetch:
    return Fetch(sender(2), 1, 9, 1, 0, 0, 0, 500, 1 << 20, "n2:1")


@pytest.mark.parametrize("make", [vote, begin, end, fetch])
@pytest.mark.parametrize(
    ("who", "error"),
    [
        (sender(2, "other"), ErrorCode.INCONSISTENT_CLUSTER_ID),
        (sender(2, None), ErrorCode.INCONSISTENT_CLUSTER_ID),
        (sender(2, generation=1), ErrorCode.OLD_GENERATION),
        (sender(2, generation=-1), ErrorCode.OLD_GENERATION),
    ],
)
def test_requests_of_other_clusters_and_generations_are_refused(
    make: Callable[[Bench], Vote | BeginQuorumEpoch | EndQuorumEpoch | Fetch], who: Sender, error: ErrorCode
) -> None:
    bench = Bench()
    expect_refusal(bench, replace(make(bench), sender=who), error)


@pytest.mark.parametrize("make", [vote, begin, end])
@pytest.mark.parametrize("target", [key(2), key(1, disk=99), key(7)])
def test_a_request_for_another_disk_is_refused(
    make: Callable[[Bench], Vote | BeginQuorumEpoch | EndQuorumEpoch], target: ReplicaKey
) -> None:
    bench = Bench()
    expect_refusal(bench, replace(make(bench), target=target), ErrorCode.INVALID_VOTER_KEY)


def test_a_fetch_for_another_node_is_refused() -> None:
    bench = Bench()
    expect_refusal(bench, replace(fetch(bench), target_id=2), ErrorCode.INVALID_VOTER_KEY)


@pytest.mark.parametrize("make", [begin, end])
@pytest.mark.parametrize("who", [sender(7), sender(2, disk=99)])
def test_begin_and_end_quorum_epoch_requests_of_non_voters_are_refused(
    make: Callable[[Bench], BeginQuorumEpoch | EndQuorumEpoch], who: Sender
) -> None:
    bench = Bench()
    expect_refusal(bench, replace(make(bench), sender=who), ErrorCode.NOT_VOTER)


@pytest.mark.parametrize("pre_vote", [True, False])
@pytest.mark.parametrize("who", [sender(7), sender(2, disk=99)])
def test_an_unknown_node_whose_log_is_not_ahead_gets_no_vote(who: Sender, pre_vote: bool) -> None:
    bench = Bench()
    request = replace(bench.vote(epoch=HUGE - 2**17, pre_vote=pre_vote), sender=who)
    expect_refusal(bench, request, ErrorCode.NOT_VOTER)


def test_an_unknown_node_whose_log_is_ahead_gets_a_vote() -> None:
    bench = Bench()
    request = replace(bench.vote(epoch=2, end=LogEnd(1, 5)), sender=sender(7))
    reply = bench.ask(request)
    assert isinstance(reply, VoteReply)
    assert (reply.error, reply.granted, bench.core.epoch) == (ErrorCode.NONE, True, 2)


@pytest.mark.parametrize("epoch", [HUGE, -1])
def test_impossible_epochs_are_refused(epoch: int) -> None:
    bench = Bench()
    expect_refusal(bench, bench.vote(epoch=epoch), ErrorCode.INVALID_REQUEST)
    expect_refusal(bench, BeginQuorumEpoch(sender(2), bench.core.key, epoch, "x"), ErrorCode.INVALID_REQUEST)


@pytest.mark.parametrize(
    ("end", "pre_vote"),
    [(LogEnd(1, 5), False), (LogEnd(2, 5), True), (LogEnd(0, -1), False), (LogEnd(-1, 5), True)],
)
def test_vote_requests_that_contradict_themselves_are_refused(end: LogEnd, pre_vote: bool) -> None:
    bench = Bench()
    request = bench.vote(epoch=1, end=end, pre_vote=pre_vote)
    expect_refusal(bench, request, ErrorCode.INVALID_REQUEST)


def test_a_request_from_the_node_itself_is_refused() -> None:
    bench = Bench()
    expect_refusal(bench, replace(vote(bench), sender=sender(1)), ErrorCode.INVALID_REQUEST)


def test_old_epochs_are_fenced() -> None:
    bench = Bench()
    bench.follow(2, epoch=5)
    for request in (bench.vote(3, epoch=4), BeginQuorumEpoch(sender(3), bench.core.key, 4, "n3:1")):
        expect_refusal(bench, request, ErrorCode.FENCED_LEADER_EPOCH)
    expect_refusal(bench, EndQuorumEpoch(sender(2), bench.core.key, 4, ()), ErrorCode.FENCED_LEADER_EPOCH)


def test_a_second_leader_in_one_epoch_is_refused() -> None:
    bench = Bench()
    bench.follow(2, epoch=5)
    expect_refusal(bench, BeginQuorumEpoch(sender(3), bench.core.key, 5, "n3:1"), ErrorCode.INVALID_REQUEST)
    expect_refusal(bench, EndQuorumEpoch(sender(3), bench.core.key, 5, ()), ErrorCode.INVALID_REQUEST)
    assert bench.core.leader is not None
    assert bench.core.leader.node_id == 2


def test_a_leader_refuses_another_leader_in_its_own_epoch() -> None:
    bench = Bench()
    bench.win()
    expect_refusal(bench, BeginQuorumEpoch(sender(2), bench.core.key, 1, "n2:1"), ErrorCode.INVALID_REQUEST)


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"epoch": 0}, ErrorCode.FENCED_LEADER_EPOCH),
        ({"epoch": 2}, ErrorCode.UNKNOWN_LEADER_EPOCH),
        ({"offset": -1}, ErrorCode.INVALID_REQUEST),
        ({"last_fetched_epoch": -1}, ErrorCode.INVALID_REQUEST),
        ({"high_watermark": -1}, ErrorCode.INVALID_REQUEST),
        ({"sender": sender(1)}, ErrorCode.INVALID_REQUEST),
    ],
)
def test_a_leader_refuses_invalid_fetches(changes: dict[str, object], error: ErrorCode) -> None:
    bench = Bench()
    bench.win()
    reply = bench.fetch(2, 1, 0, **changes)
    assert isinstance(reply, FetchReply)
    assert reply.error is error
    assert (bench.core.epoch, bench.role(), bench.core.high_watermark) == (1, Role.LEADER, 0)


def test_only_the_leader_serves_fetches() -> None:
    bench = Bench()
    bench.follow(2)
    reply = bench.ask(replace(fetch(bench), epoch=1, sender=sender(3)))
    assert isinstance(reply, FetchReply)
    assert (reply.error, reply.known.leader_id) == (ErrorCode.NOT_LEADER, 2)


def test_a_node_votes_once_in_an_epoch() -> None:
    bench = Bench()
    assert granted(bench, bench.vote(2)) is True
    assert granted(bench, bench.vote(3)) is False
    assert granted(bench, bench.vote(2)) is True
    assert granted(bench, bench.vote(2, end=LogEnd(0, 0))) is True  # repeated: the same answer
    assert granted(bench, bench.vote(3, epoch=2)) is True


def test_a_candidate_with_a_shorter_log_gets_no_vote() -> None:
    bench = Bench()
    assert granted(bench, bench.vote(2, end=LogEnd(0, 0))) is False
    assert granted(bench, bench.vote(2, pre_vote=True, end=LogEnd(0, 0))) is False
    assert bench.core.election.voted_for is None
    assert bench.core.epoch == 1  # a voter's epoch is adopted nevertheless


def test_a_pre_vote_does_not_bind_the_voter() -> None:
    bench = Bench()
    assert granted(bench, bench.vote(2, epoch=0, pre_vote=True)) is True
    assert granted(bench, bench.vote(3, epoch=0, pre_vote=True)) is True
    assert bench.core.election.voted_for is None


def granted(bench: Bench, request: Request) -> bool:
    reply = bench.ask(request)
    assert isinstance(reply, VoteReply)
    assert reply.error is ErrorCode.NONE
    return reply.granted


def expect_refusal(bench: Bench, request: Request, error: ErrorCode) -> None:
    core = bench.core
    before = (core.election, core.role, core.log.end, core.high_watermark, core.deadline_ms)
    bench.slow_disk = True
    reply = bench.ask(request)
    assert isinstance(reply, VoteReply | BeginQuorumEpochReply | EndQuorumEpochReply | FetchReply)
    assert reply.error is error
    assert before == (core.election, core.role, core.log.end, core.high_watermark, core.deadline_ms)
    assert not bench.disk.pending, f"{request} made the node write"


def test_a_node_that_refused_to_start_reports_the_refusal_once_and_then_does_nothing() -> None:
    bench = Bench(config=replace(Bench().config, cluster_id="mine"))
    assert bench.core.refused is not None
    effects = bench.until(60_000) + bench.do_all([bench.vote(2)])
    assert not any(isinstance(effect, NodeRefused | Write) for effect in effects)
