"""A leader: parked fetches, the pause, the high watermark, descriptions, and limits."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from quorum.core import RaftConfig
from quorum.core.change_gate import PROBES_MAX
from quorum.core.events import (
    AddVoter,
    ChangeVoters,
    ConfirmRead,
    Effect,
    LogRead,
    ProposalAppended,
    ProposalRefused,
    Propose,
    ReadConfirmed,
    ReadLog,
    ReadRefused,
    RemoveVoter,
    ReplyReceived,
    RequestFailed,
    RequestReceived,
    ResetConnections,
    Resign,
    SendReply,
    SetTarget,
    Tick,
    Transfer,
    Transferred,
    VoterChangeError,
    VotersChanged,
    Written,
)
from quorum.core.messages import (
    BeginQuorumEpoch,
    BeginQuorumEpochReply,
    DescribeQuorum,
    DescribeQuorumReply,
    EndQuorumEpoch,
    ErrorCode,
    Fetch,
    FetchReply,
    Introduce,
    IntroduceReply,
    Vote,
    VoteReply,
)
from quorum.core.roles import Leader
from quorum.core.types import LogEnd, Role, VoterSet
from tests.unit.quorum.core.helpers import KNOWN, Bench, key, sender


def leading(voters: int = 3, **settings: Any) -> Bench:
    addresses = tuple((i, f"n{i}:1") for i in range(1, voters + 1))
    bench = Bench(voters, RaftConfig(1, "n1:1", initial_voters=addresses, **settings))
    bench.win()
    return bench


def propose(bench: Bench, payload: bytes = b"x", count: int = 1) -> ProposalAppended | ProposalRefused:
    effects = bench.do(Propose(bench.core.epoch, payload, count, 0))
    found = [effect for effect in effects if isinstance(effect, ProposalAppended | ProposalRefused)]
    assert len(found) == 1
    return found[0]


def replies(effects: list[Effect]) -> list[FetchReply]:
    return [e.reply for e in effects if isinstance(e, SendReply) and isinstance(e.reply, FetchReply)]


def test_records_are_committed_once_a_majority_has_fetched_them() -> None:
    bench = leading(5)
    end = bench.core.log.end
    bench.fetch(2, end)
    assert bench.core.high_watermark == 0
    bench.fetch(3, end)
    assert bench.core.high_watermark == end


def test_k12_the_high_watermark_never_decreases() -> None:
    """A voter that lost the end of its log, and a late fetch, ask for offsets that were acknowledged before."""
    bench = leading()
    assert propose(bench) == ProposalAppended(2, 3)
    bench.fetch(2, 3)
    assert bench.core.high_watermark == 3
    bench.fetch(2, 1, 0)
    bench.fetch(2, 0, 0)
    assert bench.core.high_watermark == 3


def test_a_diverging_fetch_acknowledges_nothing() -> None:
    bench = leading()
    reply = bench.fetch(2, 9, 1)
    assert isinstance(reply, FetchReply)
    assert reply.diverging == LogEnd(1, 2)
    assert bench.core.high_watermark == 0
    reply = bench.fetch(2, 2, 0)
    assert isinstance(reply, FetchReply)
    assert reply.diverging == LogEnd(0, 1)
    assert bench.core.high_watermark == 0


def test_a_fetch_whose_last_epoch_is_missing_in_the_leaders_log_diverges() -> None:
    """The offset is within the log, but the batch there has another epoch."""
    bench = leading()
    propose(bench)
    propose(bench)
    bench.do(Resign("test"))
    bench.win()
    assert bench.core.epoch == 3
    reply = bench.fetch(2, 3, 2)
    assert isinstance(reply, FetchReply)
    assert reply.diverging == LogEnd(1, 4)


def test_the_first_epoch_of_a_quorum_does_not_leave_the_node_before_it_is_durable() -> None:
    """The epoch before it is 0, which is an epoch like any other."""
    bench = Bench()
    assert bench.core.epoch == 0
    while bench.core.epoch == 0:
        bench.slow_disk = True
        bench.until(bench.core.deadline_ms)
        for ask in bench.take(Vote):
            bench.do(ReplyReceived(ask.call, VoteReply(ErrorCode.NONE, KNOWN, True)))
    bench.take(DescribeQuorum)
    for _ in range(20):
        bench.until(bench.now_ms + 500)
    questions = [ask.request for ask in bench.take(DescribeQuorum)]
    assert {ask.epoch for ask in questions if isinstance(ask, DescribeQuorum)} == {0}


def test_a_sole_voter_leads_only_after_its_own_vote_is_durable() -> None:
    """The completion of an older write does not make the vote durable."""
    bench = leading(1)
    bench.slow_disk = True
    propose(bench)
    bench.do(Resign("test"))
    bench.until(bench.core.deadline_ms)
    assert bench.role() is Role.CANDIDATE
    bench.do(Written(bench.disk.settle().id))
    assert bench.role() is Role.CANDIDATE
    bench.do(Written(bench.disk.settle().id))
    assert bench.role() is Role.LEADER


@pytest.mark.parametrize("who", [sender(4), sender(2, disk=99)])
def test_fetches_of_observers_and_of_other_disks_do_not_count_towards_commits(who: object) -> None:
    bench = leading()
    bench.fetch(2, bench.core.log.end, sender=who)
    assert bench.core.high_watermark == 0


def test_k9_a_parked_fetch_is_answered_in_time_even_without_records() -> None:
    bench = leading()
    end = bench.core.log.end
    bench.fetch(2, end)
    watermark = bench.core.high_watermark
    assert bench.fetch(2, end, high_watermark=watermark) is None
    assert replies(bench.until(bench.now_ms + 499)) == []
    (reply,) = replies(bench.until(bench.now_ms + 1))
    assert (reply.error, reply.batches, reply.high_watermark) == (ErrorCode.NONE, (), watermark)


def test_parked_fetches_of_many_observers_are_answered_in_few_steps_and_at_most_50_ms_late() -> None:
    """Each check of the parked fetches costs in proportion to their number."""
    bench = leading()
    end, watermark = bench.core.log.end, bench.core.high_watermark
    parked: dict[int, int] = {}
    for observer in range(100, 250):
        assert bench.fetch(observer, end, high_watermark=watermark, max_wait_ms=1000) is None
        parked[bench.calls] = bench.now_ms + 1000
        bench.until(bench.now_ms + 1)
    looks = 0
    while parked:
        bench.now_ms = bench.core.deadline_ms
        answered = [one.call for one in bench.do(Tick()) if isinstance(one, SendReply) and one.call in parked]
        looks += bool(answered)
        for call in answered:
            assert 0 <= bench.now_ms - parked.pop(call) <= 50
    assert looks <= 4, "150 ms, and 50 ms between two"


def test_a_newer_fetch_replaces_the_parked_one() -> None:
    bench = leading()
    bench.fetch(2, bench.core.log.end)
    assert bench.fetch(2, 2, high_watermark=2) is None
    first = bench.calls
    effects = bench.do(RequestReceived(first + 1, Fetch(sender(2), 1, 1, 2, 1, 2, 0, 500, 1 << 20, "n2:1")))
    assert [effect.call for effect in effects if isinstance(effect, SendReply)] == [first]
    assert isinstance(bench.core.role, Leader)
    assert [parked.call for parked in bench.core.role.parked.values()] == [first + 1]


def test_a_fetch_without_a_wait_is_answered_at_once() -> None:
    bench = leading()
    bench.fetch(2, 2)
    reply = bench.fetch(2, 2, high_watermark=2, max_wait_ms=0)
    assert isinstance(reply, FetchReply)
    assert (reply.batches, reply.error) == ((), ErrorCode.NONE)


def test_the_number_of_waiting_observers_is_limited() -> None:
    bench = leading(parked_fetches_max=2, watermark_wait_ms=0)
    bench.fetch(2, 2)
    for node_id in (11, 12):
        assert bench.fetch(node_id, 2, high_watermark=2, sender=sender(node_id)) is None
    assert bench.fetch(13, 2, high_watermark=2, sender=sender(13)) is not None
    assert bench.fetch(3, 2, high_watermark=2) is None  # the fetch of a voter is always parked


def test_the_number_of_remembered_observers_is_limited() -> None:
    bench = leading(observers_max=5)
    for node_id in range(20, 40):
        bench.until(bench.now_ms + 1)
        bench.fetch(node_id, 2, max_wait_ms=0, sender=sender(node_id))
    assert isinstance(bench.core.role, Leader)
    assert sorted(k.node_id for k in bench.core.role.replicas) == [35, 36, 37, 38, 39]


def test_k11_a_late_read_of_the_log_sends_no_reply() -> None:
    """The leader has resigned, or the fetch was overtaken, when the disk answers."""
    bench = leading(recent_max_bytes=1, watermark_wait_ms=0)
    for _ in range(3):
        propose(bench)
    assert bench.fetch(2, 1, 0) is None
    assert isinstance(bench.core.role, Leader)
    read_ids = list(bench.core.role.reads)
    assert len(read_ids) == 1
    reply = bench.fetch(2, bench.core.log.end)
    assert isinstance(reply, FetchReply)
    assert replies(bench.do(LogRead(read_ids[0], ()))) == []
    bench.do(Resign("test"))
    assert replies(bench.do(LogRead(read_ids[0], ()))) == []


def test_a_read_of_the_log_that_returns_nothing_is_answered_with_an_error() -> None:
    bench = leading(recent_max_bytes=1)
    for _ in range(3):
        propose(bench)
    bench.fetch(2, 1, 0)
    assert isinstance(bench.core.role, Leader)
    (read_id,) = bench.core.role.reads
    (reply,) = replies(bench.do(LogRead(read_id, ())))
    assert reply.error is ErrorCode.INVALID_REQUEST


def test_a_read_of_the_disk_ends_where_the_batches_in_memory_begin() -> None:
    bench = leading(recent_max_bytes=100)
    for _ in range(5):
        propose(bench)
    effects = bench.do(RequestReceived(99, Fetch(sender(2), 1, 1, 1, 0, 0, 0, 500, 1 << 20, "n2:1")))
    (read,) = [effect for effect in effects if isinstance(effect, ReadLog)]
    assert (read.start, read.end) == (1, bench.core.log.recent_start)
    assert 1 < read.end <= bench.core.log.end


def test_a_leader_is_paused_while_no_majority_fetches() -> None:
    bench = leading(5)
    start = bench.now_ms
    bench.until(start + 1500)
    bench.fetch(2, 2, max_wait_ms=0)
    bench.until(start + 1999)
    assert isinstance(propose(bench), ProposalAppended)
    assert not bench.core.paused
    bench.until(start + 2000)  # one of the other voters has fetched, two are needed
    assert bench.core.paused
    refusal = propose(bench)
    assert isinstance(refusal, ProposalRefused)
    assert refusal.leads, "it may be accepted later in this epoch"
    bench.fetch(3, 2, max_wait_ms=0)
    assert not bench.core.paused
    assert isinstance(propose(bench), ProposalAppended)
    assert bench.role() is Role.LEADER


def test_k1_a_leader_that_was_suspended_is_paused_before_its_first_tick() -> None:
    """A process that was suspended accepts no proposal before its first tick."""
    bench = leading()
    bench.now_ms += 60_000
    assert isinstance(propose(bench), ProposalRefused)


def test_a_write_that_ends_late_confirms_no_read_while_no_majority_fetches() -> None:
    """The leader was suspended, and its first event afterwards is the completion of its write."""
    bench = Bench(2)
    bench.now_ms = bench.core.deadline_ms
    bench.do(Tick())
    for _ in ("pre-vote", "vote"):
        (ask,) = bench.take(Vote)
        bench.slow_disk = bench.role() is Role.CANDIDATE  # so the record of its leadership is not durable yet
        bench.do(ReplyReceived(ask.call, VoteReply(ErrorCode.NONE, replace(KNOWN, epoch=bench.core.epoch), True)))
    assert bench.role() is Role.LEADER
    bench.do(ConfirmRead(1))
    bench.fetch(2, bench.core.log.end, round=1)
    bench.now_ms += bench.config.fetch_timeout_ms
    bench.slow_disk = False
    effects = [effect for _ in list(bench.disk.pending) for effect in bench.do(Written(bench.disk.settle().id))]
    assert bench.core.high_watermark == bench.core.log.end
    assert [effect for effect in effects if isinstance(effect, ReadConfirmed | ReadRefused)] == [
        ReadRefused(1, f"paused: no majority has fetched within {bench.config.fetch_timeout_ms} ms")
    ]


def test_observers_do_not_end_a_pause() -> None:
    bench = leading()
    bench.until(bench.now_ms + 2000)
    bench.fetch(2, 2, sender=sender(2, disk=99))
    assert bench.core.paused


def test_a_paused_leader_still_answers_and_does_not_spin() -> None:
    bench = leading()
    bench.until(bench.now_ms + 100_000)
    assert bench.core.paused
    reply = bench.ask(DescribeQuorum(sender(2)))
    assert isinstance(reply, DescribeQuorumReply)
    assert (reply.paused, reply.known.leader_id) == (True, 1)


def test_k16144_a_sole_voter_is_never_paused() -> None:
    bench = leading(1)
    bench.until(bench.now_ms + 100_000)
    assert not bench.core.paused
    assert isinstance(propose(bench), ProposalAppended)


def test_proposals_are_refused_when_too_much_waits_for_the_disk() -> None:
    bench = leading(unwritten_max_bytes=1000)
    bench.slow_disk = True
    assert isinstance(propose(bench, bytes(2000)), ProposalAppended)
    refusal = propose(bench)
    assert isinstance(refusal, ProposalRefused)
    assert refusal.leads


def test_proposals_of_another_epoch_are_refused() -> None:
    bench = leading()
    for epoch in (bench.core.epoch - 1, bench.core.epoch + 1):
        (refusal,) = bench.do(Propose(epoch, b"x", 1, 0))
        assert isinstance(refusal, ProposalRefused)
        assert not refusal.leads, "it is never accepted"


def test_a_leader_announces_itself_every_half_fetch_timeout() -> None:
    """It repeats this to voters that do not fetch, whether they answered or not."""
    bench = leading(3, request_timeout_ms=500)
    sent = []
    start = bench.now_ms
    while bench.now_ms < start + 10_000:
        bench.until(bench.now_ms + 100)
        bench.fetch(2, 2, max_wait_ms=0)
        for ask in bench.take(BeginQuorumEpoch):
            sent.append((bench.now_ms - start, ask.to.node_id))
            known = replace(KNOWN, epoch=bench.core.epoch)
            bench.do(ReplyReceived(ask.call, BeginQuorumEpochReply(ErrorCode.NONE, known)))
    assert {node_id for _, node_id in sent} == {3}
    assert 9 <= len(sent) <= 10


def test_successors_are_ordered_by_their_log_ends() -> None:
    bench = leading(4)
    propose(bench)
    propose(bench)
    bench.fetch(2, 2)
    bench.fetch(3, 4)
    bench.do(Resign("test"))
    (first, *_) = bench.take(EndQuorumEpoch)
    assert isinstance(first.request, EndQuorumEpoch)
    assert first.request.successors == (key(3), key(2), key(4))


def test_a_leader_describes_log_ends_and_fetch_times_of_voters_and_observers() -> None:
    bench = leading()
    propose(bench)
    bench.fetch(2, 3)
    bench.until(bench.now_ms + 100)
    bench.fetch(4, 1, 0, sender=sender(4), address="n4:1")
    bench.until(bench.now_ms + 50)
    found = bench.core.describe(bench.now_ms)
    own, second, third = found.voters
    assert (own.replica.key, own.log_end_offset, own.lag, own.last_fetch_ms) == (key(1), 3, 0, 0)
    assert (second.log_end_offset, second.lag, second.last_fetch_ms, second.last_caught_up_ms) == (3, 0, 150, 150)
    assert (third.log_end_offset, third.lag, third.last_fetch_ms) == (0, 3, None)
    (observer,) = found.observers
    assert (observer.replica.key, observer.replica.address) == (key(4), "n4:1")
    assert (observer.log_end_offset, observer.lag, observer.last_fetch_ms) == (1, 2, 50)
    assert observer.last_caught_up_ms is None
    assert (found.high_watermark, found.log_end_offset, found.paused) == (3, 3, False)
    assert found.last_leader_change_reason is not None
    assert found.last_leader_change_reason.startswith("elected by")


@pytest.mark.parametrize(("said", "reason"), [("told to", "resigned: told to"), (None, "leader 2 does not answer")])
def test_the_end_of_the_last_leadership_is_described(said: str | None, reason: str) -> None:
    bench = Bench()
    assert bench.core.describe(0).last_leadership_end is None
    bench.follow(2, epoch=1)
    if said is not None:
        bench.ask(EndQuorumEpoch(sender(2), bench.core.key, 1, (key(1),), said))
    bench.win()
    bench.until(bench.now_ms + 10)
    end = bench.core.describe(bench.now_ms).last_leadership_end
    assert end is not None
    assert (end.leader_id, end.epoch, end.reason) == (2, 1, reason)
    assert end.age_ms >= 10
    bench.do(Resign("test"))
    own = bench.core.describe(bench.now_ms).last_leadership_end
    assert own is not None
    assert (own.leader_id, own.reason, own.age_ms) == (1, "test", 0)
    (farewell, *_) = bench.take(EndQuorumEpoch)
    assert isinstance(farewell.request, EndQuorumEpoch)
    assert farewell.request.reason == "test"


def test_the_problem_of_a_voters_new_address_ends_when_the_voter_advertises_its_known_address_again() -> None:
    bench = leading()
    bench.fetch(2, 2)
    bench.fetch(2, 2, address="elsewhere:1")
    for _ in range(PROBES_MAX):
        for ask in bench.take(Introduce):
            bench.do(RequestFailed(ask.call, "nobody there"))
        bench.until(bench.now_ms + 500)
        bench.fetch(2, 2, address="elsewhere:1")
    assert bench.core.target_problem == "no node answers at elsewhere:1"
    for _ in range(30):
        bench.fetch(2, 2)
        bench.until(bench.now_ms + 500)
    assert bench.core.target_problem is None


def test_a_leader_describes_the_step_and_the_problem_of_a_target() -> None:
    bench = leading()
    bench.fetch(2, 2)

    def answer(*silent: int) -> None:
        for ask in bench.take(Introduce):
            node_id = int(ask.to.address[1])
            if node_id in silent:
                bench.do(RequestFailed(ask.call, "nobody there"))
            else:
                known = replace(KNOWN, epoch=bench.core.epoch)
                reply = IntroduceReply(ErrorCode.NONE, known, key(node_id), False, (), None, VoterSet())
                bench.do(ReplyReceived(ask.call, reply))

    bench.do(ChangeVoters(1, SetTarget(tuple((i, f"n{i}:1") for i in (1, 2, 3, 4))), False, 10_000))
    bench.until(bench.now_ms + 1)
    answer()
    bench.fetch(2, 3)
    found = bench.core.describe(bench.now_ms)
    assert (found.target_step, found.target_problem) == ("add node 4 at n4:1: checking the change", None)
    for _ in range(PROBES_MAX):
        answer(4)
        bench.fetch(2, 3)
        bench.until(bench.now_ms + 500)
    found = bench.core.describe(bench.now_ms)
    assert (found.target_step, found.target_problem) == (None, "no node answers at n4:1")
    bench.do(Resign("test"))
    assert bench.core.describe(bench.now_ms).target_problem is None, "only the leader reports it"


def remove(bench: Bench, node_id: int) -> VoterChangeError:
    """Ask for a dry run of the removal; node 3 confirms it if the leader waits for that."""
    effects = bench.do(ChangeVoters(9, RemoveVoter(node_id), True, 10_000))
    leader = bench.core.role
    assert isinstance(leader, Leader)
    if leader.change is not None:
        request = Fetch(sender(3), 1, bench.core.epoch, 2, 1, 0, leader.round, 0, 1 << 20, "n3:1")
        effects += bench.do_all([request])
    (told,) = [effect for effect in effects if isinstance(effect, VotersChanged)]
    return told.result.error


def test_a_voter_that_restarted_with_another_disk_does_not_count_towards_a_live_majority() -> None:
    """Voter 3 fetched a moment ago, but its node has restarted with another disk, so {1, 3} has no live majority."""
    bench = leading()
    bench.fetch(2, 2)
    bench.fetch(3, 2)
    bench.until(bench.now_ms + 100)
    assert remove(bench, 2) is VoterChangeError.NONE
    bench.fetch(3, 0, 0, sender=sender(3, disk=33), address="n3:9")
    assert remove(bench, 2) is VoterChangeError.NONE, "a node with the same id elsewhere proves nothing"
    bench.until(bench.now_ms + 100)
    bench.fetch(3, 0, 0, sender=sender(3, disk=33))
    assert remove(bench, 2) is VoterChangeError.NO_MAJORITY
    assert bench.core.describe(bench.now_ms).voters[2].last_fetch_ms == 100
    transferred = [effect for effect in bench.do(Transfer(5, 3)) if isinstance(effect, Transferred)]
    assert [(one.error, "another disk" in one.message) for one in transferred] == [
        (VoterChangeError.NOT_CAUGHT_UP, True)
    ]
    bench.until(bench.now_ms + 1)
    bench.fetch(3, 2)
    assert remove(bench, 2) is VoterChangeError.NONE, "the voter's disk exists after all"


def test_a_voter_does_not_count_towards_a_live_majority_after_a_probe_found_another_disk() -> None:
    bench = leading()
    bench.fetch(2, 2)
    bench.fetch(3, 2)
    bench.take(Introduce)
    bench.do(ChangeVoters(1, AddVoter(3, "n3:1"), True, 10_000))
    (ask,) = bench.take(Introduce)
    known = replace(KNOWN, epoch=bench.core.epoch)
    reply = IntroduceReply(ErrorCode.NONE, known, key(3, 33), False, (), None, VoterSet())
    effects = bench.do(ReplyReceived(ask.call, reply))
    (told,) = [effect for effect in effects if isinstance(effect, VotersChanged)]
    assert told.result.error is VoterChangeError.DUPLICATE_VOTER
    assert remove(bench, 2) is VoterChangeError.NO_MAJORITY


def test_a_node_of_another_cluster_learns_nothing_from_a_refusal() -> None:
    bench = leading()
    reply = bench.ask(DescribeQuorum(sender(2, "other")))
    assert isinstance(reply, DescribeQuorumReply)
    assert (reply.error, reply.voters, reply.observers) == (ErrorCode.INCONSISTENT_CLUSTER_ID, (), ())


@pytest.mark.parametrize("answers", [True, False])
def test_a_paused_leader_resets_its_connections_only_if_no_voter_answers(answers: bool) -> None:
    bench = leading()
    known = replace(KNOWN, epoch=bench.core.epoch, leader_id=1, leader_address="n1:1")
    reply = replace(bench.core.describe(bench.now_ms), known=known)
    effects: list[object] = []
    while bench.now_ms < 30_000:
        effects += bench.until(bench.now_ms + 50)
        for ask in bench.take(DescribeQuorum):
            effects += bench.do(ReplyReceived(ask.call, reply) if answers else RequestFailed(ask.call, "nobody there"))
    assert bench.core.paused
    assert any(isinstance(effect, ResetConnections) for effect in effects) is not answers
