"""A follower: the replies that it accepts, its timers, and its search for the leader."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from quorum.core import RaftConfig, RaftCore
from quorum.core.events import (
    AdvanceHighWatermark,
    NodeRefused,
    ReplyReceived,
    RequestFailed,
    SendRequest,
    SnapshotFailed,
    Tick,
    Write,
)
from quorum.core.messages import (
    DescribeQuorum,
    DescribeQuorumReply,
    EndQuorumEpoch,
    ErrorCode,
    Fetch,
    FetchReply,
    Knowledge,
    Vote,
    VoteReply,
)
from quorum.core.replication import EXPIRY_STEP_MS
from quorum.core.roles import Follower
from quorum.core.types import Batch, Election, LogEnd, Role, Voters, VoterSet
from tests.unit.quorum.core.helpers import KNOWN, Bench, key, sender

LED_BY_2 = replace(KNOWN, epoch=1, leader_id=2, leader_address="n2:1")


def following(**settings: Any) -> tuple[Bench, SendRequest]:
    """Node 1 follows node 2 in epoch 1; its first fetch is under way."""
    addresses = tuple((i, f"n{i}:1") for i in (1, 2, 3))
    bench = Bench(3, RaftConfig(1, "n1:1", initial_voters=addresses, **settings))
    bench.follow(2)
    (fetch,) = bench.take(Fetch)
    return bench, fetch


def reply(*batches: Batch, hw: int = 0, known: Knowledge = LED_BY_2, diverging: LogEnd | None = None) -> FetchReply:
    return FetchReply(ErrorCode.NONE, known, hw, batches=batches, diverging=diverging)


def batch(offset: int, epoch: int = 1, count: int = 1, control: Voters | None = None) -> Batch:
    return Batch(offset, epoch, count, 0, b"" if control else b"x", control)


def test_a_follower_appends_batches_that_continue_its_log() -> None:
    bench, fetch = following()
    effects = bench.do(ReplyReceived(fetch.call, reply(batch(1), batch(2, count=3), hw=4)))
    assert bench.core.log.last == LogEnd(1, 5)
    assert [e.offset for e in effects if isinstance(e, AdvanceHighWatermark)] == [1, 4]  # only durable records
    (again,) = bench.take(Fetch)
    assert isinstance(again.request, Fetch)
    assert (again.request.offset, again.request.last_fetched_epoch, again.request.high_watermark) == (5, 1, 4)


@pytest.mark.parametrize(
    "batches",
    [
        (batch(2),),
        (batch(0),),
        (batch(1), batch(3)),
        (batch(1, epoch=2),),
        (batch(1, count=0),),
        (batch(1), batch(2, epoch=0)),
        (batch(1, control=Voters("other", 0, VoterSet(()))),),
        (batch(1, control=Voters("lab", 0, VoterSet(()))),),
    ],
)
def test_a_follower_refuses_batches_that_do_not_continue_its_log(batches: tuple[Batch, ...]) -> None:
    bench, fetch = following()
    bench.do(ReplyReceived(fetch.call, reply(*batches, hw=9)))
    assert (bench.core.log.end, bench.core.high_watermark) == (1, 0)
    assert isinstance(bench.core.role, Follower)
    assert bench.core.role.fetch.failures == 1


def test_a_followers_watermark_never_exceeds_its_log() -> None:
    bench, fetch = following()
    bench.do(ReplyReceived(fetch.call, reply(batch(1), hw=99)))
    assert bench.core.high_watermark == 2


def test_a_follower_fetches_again_only_after_its_append_is_durable() -> None:
    bench, fetch = following()
    bench.slow_disk = True
    effects = bench.do(ReplyReceived(fetch.call, reply(batch(1), hw=2)))
    assert AdvanceHighWatermark(2) not in effects
    assert bench.take(Fetch) == []
    bench.slow_disk = False
    effects = bench.do(Tick())
    assert len(bench.take(Fetch)) == 1
    assert AdvanceHighWatermark(2) in effects


def test_a_late_or_repeated_reply_is_ignored() -> None:
    bench, fetch = following()
    bench.do(ReplyReceived(fetch.call, reply(batch(1))))
    bench.do(ReplyReceived(fetch.call, reply(batch(2))))
    bench.do(RequestFailed(fetch.call, "late"))
    assert bench.core.log.end == 2
    (second,) = bench.take(Fetch)
    bench.follow(3, epoch=2)
    bench.do(ReplyReceived(second.call, reply(batch(2))))
    assert bench.core.log.end == 2
    assert bench.core.leader is not None
    assert bench.core.leader.node_id == 3


def test_a_truncation_below_the_watermark_stops_the_node() -> None:
    bench, fetch = following()
    bench.do(ReplyReceived(fetch.call, reply(batch(1), batch(2), hw=2)))
    (second,) = bench.take(Fetch)
    effects = bench.do(ReplyReceived(second.call, reply(diverging=LogEnd(0, 1))))
    (refused,) = [effect for effect in effects if isinstance(effect, NodeRefused)]
    assert "committed" in refused.message
    assert bench.core.log.end == 3
    assert not any(isinstance(effect, Write) for effect in effects)


def test_a_diverging_epoch_that_ends_earlier_in_the_followers_log_truncates_to_that_end() -> None:
    """The leader's epoch 0 ends at 7, and the follower's at 1: the follower truncates to 1, and fetches again."""
    bench, fetch = following()
    bench.do(ReplyReceived(fetch.call, reply(batch(1), batch(2))))
    bench.follow(3, epoch=4)
    led_by_3 = replace(KNOWN, epoch=4, leader_id=3, leader_address="n3:1")
    fetch = bench.take(Fetch)[-1]
    bench.do(ReplyReceived(fetch.call, reply(diverging=LogEnd(0, 7), known=led_by_3)))
    assert bench.core.log.last == LogEnd(0, 1)


@pytest.mark.parametrize("diverging", [LogEnd(1, 3), LogEnd(5, 9), LogEnd(1, -4), LogEnd(-1, 0)])
def test_a_diverging_epoch_below_the_log_truncates_all_of_it_and_an_impossible_one_is_refused(
    diverging: LogEnd,
) -> None:
    bench, fetch = following()
    bench.do(ReplyReceived(fetch.call, reply(batch(1), batch(2))))
    (second,) = bench.take(Fetch)
    bench.do(ReplyReceived(second.call, reply(diverging=diverging)))
    if diverging == LogEnd(-1, 0):  # no epoch of the log is that low: truncate to the start
        assert bench.core.log.end == 0
    else:
        assert bench.core.log.end == 3
        assert isinstance(bench.core.role, Follower)
        assert bench.core.role.fetch.failures == 1


def test_an_early_empty_reply_delays_the_next_fetch() -> None:
    bench, fetch = following()
    bench.do(ReplyReceived(fetch.call, reply()))
    assert bench.take(Fetch) == []
    bench.until(bench.now_ms + 49)
    assert bench.take(Fetch) == []
    bench.until(bench.now_ms + 1)
    assert len(bench.take(Fetch)) == 1


def test_fetch_timeouts_of_followers_have_a_random_part() -> None:
    """Each deadline has a random part of up to a quarter of the timeout, so that candidates do not appear together."""
    drawn = set()
    for seed in range(40):
        bench = Bench(seed=seed)
        bench.follow(2)
        assert isinstance(bench.core.role, Follower)
        drawn.add(bench.core.role.deadline_ms - bench.now_ms)
    assert min(drawn) >= 2000
    assert max(drawn) < 2500
    assert len(drawn) > 20


@pytest.mark.parametrize("fetch_timeout_ms", [100, 300, 500, 2000])
def test_a_follower_of_an_idle_leader_gets_replies_within_the_fetch_timeout(fetch_timeout_ms: int) -> None:
    """The leader may hold a fetch for the requested time and another `EXPIRY_STEP_MS`."""
    bench, fetch = following(fetch_timeout_ms=fetch_timeout_ms)
    for _ in range(10):
        assert isinstance(fetch.request, Fetch)
        bench.until(bench.now_ms + fetch.request.max_wait_ms + EXPIRY_STEP_MS)
        assert bench.role() is Role.FOLLOWER
        bench.do(ReplyReceived(fetch.call, reply(hw=1)))
        (fetch,) = bench.take(Fetch)


def test_a_follower_that_postpones_a_download_gets_replies_within_the_fetch_timeout() -> None:
    bench, fetch = following(fetch_timeout_ms=300)
    offer = replace(reply(), snapshot=LogEnd(1, 50))
    bench.do(ReplyReceived(fetch.call, offer))
    bench.do(SnapshotFailed(LogEnd(1, 50), "damaged"))
    for _ in range(3):
        bench.until(bench.now_ms + 150)
        (fetch,) = bench.take(Fetch)
        bench.do(ReplyReceived(fetch.call, offer))
        assert bench.role() is Role.FOLLOWER


def test_a_follower_refuses_pre_votes_after_its_leader_has_answered_a_fetch() -> None:
    bench, fetch = following()
    request = bench.vote(3, epoch=1, end=LogEnd(0, 1), pre_vote=True)
    before = bench.ask(request)
    assert isinstance(before, VoteReply)
    assert before.granted  # it has not fetched from this leader yet
    bench.do(ReplyReceived(fetch.call, reply(hw=1)))
    after = bench.ask(request)
    assert isinstance(after, VoteReply)
    assert (after.granted, after.known.leader_id) == (False, 2)
    bench.ask(EndQuorumEpoch(sender(2), bench.core.key, 1, ()))
    ended = bench.ask(request)
    assert isinstance(ended, VoteReply)
    assert (ended.granted, ended.known.leader_id) == (True, None)


@pytest.mark.parametrize(
    ("successors", "delay"),
    [
        ((1,), 0),
        ((3, 1), 500),
        ((3,), 1000),
        ((), 1000),
        ((3, 4, 1), 500),
        ((3, 1, *range(4, 16)), 31),  # even in a large quorum, the first successor has time to win
        ((3, *range(4, 16), 1), 1000),
    ],
)
def test_successors_become_candidates_in_turn(successors: tuple[int, ...], delay: int) -> None:
    bench, _ = following()
    bench.ask(EndQuorumEpoch(sender(2), bench.core.key, 1, tuple(key(i) for i in successors)))
    assert isinstance(bench.core.role, Follower)
    assert bench.core.role.deadline_ms == bench.now_ms + delay
    bench.until(bench.now_ms + delay)
    assert bench.role() is Role.PROSPECTIVE


def test_a_follower_grants_no_vote_in_the_epoch_of_its_leader() -> None:
    bench, _ = following()
    for candidate in (2, 3):
        assert bench.ask(bench.vote(candidate, epoch=1)) == VoteReply(ErrorCode.NONE, LED_BY_2, False)
    assert bench.core.election == Election(1, 2)
    bench.ask(EndQuorumEpoch(sender(2), bench.core.key, 1, ()))
    bench.until(500)
    reply = bench.ask(bench.vote(3, epoch=1))
    assert isinstance(reply, VoteReply)
    assert not reply.granted


@pytest.mark.parametrize("failures", [1, 3])
def test_failed_fetches_alone_are_no_reason_to_grant_a_pre_vote(failures: int) -> None:
    """One link may be down while the leader works: only the fetch timeout shows that contact is lost."""
    bench, fetch = following()
    bench.do(ReplyReceived(fetch.call, reply(batch(1), hw=2)))
    for _ in range(failures):
        bench.until(bench.now_ms + 600)
        (fetch,) = bench.take(Fetch)
        bench.do(RequestFailed(fetch.call, "unreachable"))
    assert isinstance(bench.core.role, Follower)
    ahead = bench.vote(3, epoch=1, end=LogEnd(1, 9), pre_vote=True)
    assert bench.ask(ahead) == VoteReply(ErrorCode.NONE, LED_BY_2, False)
    bench.until(2000 + 500)
    answer = bench.ask(ahead)
    assert isinstance(answer, VoteReply)
    assert answer.granted


def test_a_candidate_with_a_longer_log_of_an_older_epoch_gets_no_vote() -> None:
    bench, fetch = following()
    bench.do(ReplyReceived(fetch.call, reply(batch(1), batch(2))))
    for pre_vote in (True, False):
        behind = bench.ask(bench.vote(3, epoch=2, end=LogEnd(0, 50), pre_vote=pre_vote))
        assert isinstance(behind, VoteReply)
        assert (behind.error, behind.granted) == (ErrorCode.NONE, False)
    ahead = bench.ask(bench.vote(3, epoch=2, end=LogEnd(1, 3)))
    assert isinstance(ahead, VoteReply)
    assert ahead.granted


def test_a_refusal_of_an_earlier_pre_vote_request_is_ignored() -> None:
    """Node 2 refuses, and then asks for pre-votes itself, although it is behind this node.

    So this node asks it again.  Then the old refusal arrives.
    """
    bench, fetch = following()
    bench.do(ReplyReceived(fetch.call, reply(batch(1))))
    bench.until(bench.now_ms + 2500)
    assert bench.role() is Role.PROSPECTIVE
    first, third = bench.take(Vote)
    bench.ask(bench.vote(2, epoch=1, end=LogEnd(0, 1), pre_vote=True))
    (second,) = bench.take(Vote)
    refusal = VoteReply(ErrorCode.NONE, replace(KNOWN, epoch=1), False)
    bench.do(ReplyReceived(third.call, refusal))
    bench.do(ReplyReceived(first.call, refusal))
    assert bench.role() is Role.PROSPECTIVE
    bench.do(ReplyReceived(second.call, replace(refusal, granted=True)))
    assert bench.role() is Role.CANDIDATE


def test_a_follower_asks_other_voters_when_the_leader_does_not_answer() -> None:
    bench, fetch = following(bootstrap=("b1:1", "b2:1"))
    assert bench.take(DescribeQuorum) != []  # sent before the node followed a leader
    bench.do(RequestFailed(fetch.call, "down"))
    asked = set()
    for _ in range(60):
        for ask in bench.take(DescribeQuorum):
            asked.add(ask.to.address)
            bench.do(RequestFailed(ask.call, "down"))
        for ask in bench.take(Fetch) + bench.take(Vote):
            bench.do(RequestFailed(ask.call, "down"))
        bench.until(bench.now_ms + 200)
    assert asked == {"n2:1", "n3:1", "b1:1", "b2:1"}


def test_a_follower_learns_of_a_new_leader() -> None:
    bench, fetch = following()
    bench.do(RequestFailed(fetch.call, "down"))
    ask = bench.take(DescribeQuorum)[-1]
    known = replace(KNOWN, epoch=3, leader_id=3, leader_address="moved:1")
    answer = DescribeQuorumReply(ErrorCode.NONE, known, key(3), 0, 0, False, (), (), None, None, None)
    bench.do(ReplyReceived(ask.call, answer))
    (again,) = bench.take(Fetch)
    assert again.to.address == "moved:1"
    assert bench.core.election == Election(3, 3)
    assert bench.disk.state.election == Election(3, 3)


def test_a_follower_fetches_from_the_new_address_of_its_leader() -> None:
    bench, fetch = following()
    moved = replace(LED_BY_2, leader_address="moved:1")
    answer = DescribeQuorumReply(ErrorCode.NONE, moved, key(3), 0, 0, False, (), (), None, None, None)
    bench.do(RequestFailed(fetch.call, "down"))
    ask = bench.take(DescribeQuorum)[-1]
    bench.do(ReplyReceived(ask.call, answer))
    (again,) = bench.take(Fetch)
    assert again.to.address == "moved:1"


def test_a_newer_generation_stops_the_node() -> None:
    bench, fetch = following()
    rebuilt = replace(LED_BY_2, generation=1)
    effects = bench.do(ReplyReceived(fetch.call, FetchReply(ErrorCode.OLD_GENERATION, rebuilt)))
    (refused,) = [effect for effect in effects if isinstance(effect, NodeRefused)]
    assert "rebuilt" in refused.message
    assert refused.newer_generation == 1


def test_a_reply_from_another_cluster_changes_nothing() -> None:
    bench, fetch = following()
    other = replace(LED_BY_2, cluster_id="other", epoch=9, leader_id=3)
    bench.do(ReplyReceived(fetch.call, FetchReply(ErrorCode.INCONSISTENT_CLUSTER_ID, other)))
    assert bench.core.epoch == 1


def test_k19605_timers_of_a_disconnected_node_never_become_a_busy_loop() -> None:
    """The node is disconnected for ten minutes: none of its timers may become a busy loop."""
    bench, _ = following()
    ticks = 0
    while bench.now_ms < 600_000:
        bench.now_ms = bench.core.deadline_ms
        bench.do(Tick())
        ticks += 1
        for ask in bench.sent:
            bench.do(RequestFailed(ask.call, "down"))
        bench.sent.clear()
    assert ticks < 600 * 25


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"node_id": 2}, "directory belongs to node 1"),
        ({"cluster_id": "other"}, "directory belongs to cluster lab"),
    ],
)
def test_a_directory_of_another_node_or_cluster_is_refused(changes: dict[str, Any], message: str) -> None:
    bench = Bench()
    core = RaftCore(replace(bench.config, **changes), bench.disk.load(), bench.random, 0)
    (refused,) = core.step(Tick(), 0)
    assert isinstance(refused, NodeRefused)
    assert message in refused.message


def test_a_state_that_contradicts_the_log_stops_the_node() -> None:
    bench = Bench()
    stored = bench.disk.load()
    wrong = replace(stored, state=replace(stored.state, voters=VoterSet(stored.state.voters.voters[:2])))
    (refused,) = RaftCore(bench.config, wrong, bench.random, 0).step(Tick(), 0)
    assert isinstance(refused, NodeRefused)
    assert "quorum state" in refused.message


def test_a_node_starts_with_the_epoch_of_a_log_that_is_ahead_of_the_stored_state() -> None:
    bench = Bench()
    stored = bench.disk.load()
    ahead = replace(stored, log_end=2, epochs=((0, 0), (7, 1)), state=replace(stored.state, applied_offset=2))
    core = RaftCore(bench.config, ahead, bench.random, 0)
    core.step(Tick(), 0)
    assert (core.epoch, core.role.role) == (7, Role.UNATTACHED)


def test_a_voter_list_without_this_node_or_with_one_id_twice_is_refused() -> None:
    for listed in (((2, "n2:1"), (3, "n3:1")), ((1, "n1:1"), (1, "n2:1"))):
        config = RaftConfig(1, "n1:1", initial_voters=listed)
        stored = replace(Bench().disk.load(), log_end=0, epochs=(), controls=())
        (refused,) = RaftCore(config, stored, Bench().random, 0).step(Tick(), 0)
        assert isinstance(refused, NodeRefused)
        assert "voter list" in refused.message


def test_votes_are_requested_at_the_address_that_a_voter_reports() -> None:
    """Without a leader, a voter's new address is not in the log.  If it does not answer, the one in the log is used."""
    bench = Bench()
    bench.ask(DescribeQuorum(sender(2), "n22:1"))
    bench.ask(DescribeQuorum(sender(3, disk=9), "n33:1"))  # another disk than the voter's
    bench.until(2000)
    asked = {ask.to.node_id: ask for ask in bench.take(Vote)}
    assert {node_id: ask.to.address for node_id, ask in asked.items()} == {2: "n22:1", 3: "n3:1"}
    bench.do(RequestFailed(asked[2].call, "nobody"))
    bench.until(bench.core.deadline_ms)
    assert [ask.to.address for ask in bench.take(Vote)] == ["n2:1"]
