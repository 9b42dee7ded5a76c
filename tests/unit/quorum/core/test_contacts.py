"""Contact with voters after a stall, and the reaction of a leader to a node that is ahead."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from quorum.core.events import AddVoter, ChangeVoters, Prefer, ReplyReceived, Tick, VoterChangeError, VotersChanged
from quorum.core.messages import DescribeQuorum, ErrorCode, FetchReply, Introduce, IntroduceReply
from quorum.core.types import Role, VoterSet
from tests.unit.quorum.core.helpers import KNOWN, Bench, key, sender

HELD_UP_MS = 3000


def leading(voters: int = 3) -> Bench:
    bench = Bench(voters)
    bench.win()
    for node_id in range(2, voters + 1):
        bench.fetch(node_id, bench.core.log.end)
    return bench


@pytest.mark.parametrize(("gap_ms", "hears"), [(HELD_UP_MS - 1, True), (HELD_UP_MS, False)])
def test_after_a_stall_only_fetches_of_the_new_round_count_as_contact(gap_ms: int, hears: bool) -> None:
    bench = leading()
    bench.now_ms += gap_ms
    bench.fetch(2, bench.core.log.end, round=0)
    assert bench.core.paused is not hears
    bench.fetch(2, bench.core.log.end, round=0 if hears else 1)
    assert not bench.core.paused


def add_voter(bench: Bench) -> list[VotersChanged]:
    """Ask for node 4 and answer the leader's question at its address; return the leader's immediate answer."""
    effects = bench.do(ChangeVoters(1, AddVoter(4, "n4:1")))
    (ask,) = bench.take(Introduce)
    known = replace(KNOWN, epoch=bench.core.epoch)
    effects += bench.do(
        ReplyReceived(ask.call, IntroduceReply(ErrorCode.NONE, known, key(4), False, (), None, VoterSet()))
    )
    return [effect for effect in effects if isinstance(effect, VotersChanged)]


def test_after_a_stall_only_fetches_of_the_new_round_count_as_progress_of_a_new_voter() -> None:
    bench = leading()
    bench.fetch(4, bench.core.log.end)
    bench.now_ms += HELD_UP_MS
    bench.do(Tick())
    for node_id in (2, 3):
        bench.fetch(node_id, bench.core.log.end, round=1)
    assert add_voter(bench) == []
    reply = bench.fetch(4, bench.core.log.end, round=0)
    assert isinstance(reply, FetchReply)
    assert reply.round == 1
    for node_id in (2, 3):  # they would confirm the change, if the late fetch had begun it
        bench.fetch(node_id, bench.core.log.end, round=2)
    assert 4 not in {voter.key.node_id for voter in bench.core.history.current}
    bench.fetch(4, bench.core.log.end, round=1)
    bench.fetch(2, bench.core.log.end, round=2)
    assert 4 in {voter.key.node_id for voter in bench.core.history.current}


def test_a_late_introduction_from_before_a_stall_adds_no_voter() -> None:
    bench = leading()
    bench.do(ChangeVoters(1, AddVoter(4, "n4:1")))
    (ask,) = bench.take(Introduce)
    bench.now_ms += HELD_UP_MS
    for node_id in (2, 3):
        bench.fetch(node_id, bench.core.log.end, round=1)
    known = replace(KNOWN, epoch=bench.core.epoch)
    late = IntroduceReply(ErrorCode.NONE, known, key(4), False, (), None, VoterSet())
    bench.do(ReplyReceived(ask.call, late))
    bench.fetch(4, bench.core.log.end, round=1)
    assert 4 not in {voter.key.node_id for voter in bench.core.history.current}


def hears_of_a_later_epoch(bench: Bench) -> None:
    bench.ask(DescribeQuorum(sender(4), "n4:1", bench.core.epoch + 1))


def test_a_leader_that_learns_of_a_later_epoch_starts_an_election_only_if_it_is_not_paused() -> None:
    bench = leading()
    hears_of_a_later_epoch(bench)
    bench.until(bench.now_ms + 2000)
    assert bench.core.paused
    hears_of_a_later_epoch(bench)
    assert bench.role() is Role.LEADER
    bench.fetch(2, bench.core.log.end)
    hears_of_a_later_epoch(bench)
    assert bench.role() is Role.CANDIDATE


def test_a_leader_hands_over_to_a_preferred_voter_only_after_a_commit_in_its_own_epoch() -> None:
    bench = Bench(5)
    bench.win()
    bench.do(Prefer((3,)))
    bench.fetch(3, bench.core.log.end)
    bench.do(Tick())
    assert bench.role() is Role.LEADER
    bench.fetch(2, bench.core.log.end)
    bench.fetch(3, bench.core.log.end)
    bench.do(Tick())
    assert bench.role() is Role.RESIGNED


def test_no_voter_is_added_while_a_stall_pauses_the_leader() -> None:
    bench = leading()
    bench.now_ms += HELD_UP_MS
    (told,) = [one for one in bench.do(ChangeVoters(1, AddVoter(4, "n4:1"))) if isinstance(one, VotersChanged)]
    assert told.result.error is VoterChangeError.PAUSED
