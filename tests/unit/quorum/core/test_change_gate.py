"""Before a leader appends a voter change, a majority of the new voter set must fetch from it once more."""

from __future__ import annotations

from uuid import UUID

import pytest
from msgspec.structs import replace

from quorum.core.change_gate import PROBES_MAX
from quorum.core.events import (
    AddVoter,
    CancelTarget,
    ChangeVoters,
    Effect,
    RemoveVoter,
    ReplyReceived,
    RequestFailed,
    SetTarget,
    VoterChange,
    VoterChangeError,
    VoterChangeResult,
    VotersChanged,
)
from quorum.core.messages import ErrorCode, Fetch, FetchReply, FetchSnapshot, Introduce, IntroduceReply
from quorum.core.roles import Leader
from quorum.core.types import LogEnd, VoterSet
from tests.unit.quorum.core.helpers import KNOWN, Bench, key, sender

OLD_MS = 1950
"""Age of a contact that almost exceeds the fetch timeout of 2 s."""


def current_round(bench: Bench) -> int:
    """Return the round in the replies that the leader gives now."""
    assert isinstance(bench.core.role, Leader)
    return bench.core.role.round


def results(effects: list[Effect]) -> list[VoterChangeResult]:
    return [effect.result for effect in effects if isinstance(effect, VotersChanged)]


def fetch(bench: Bench, *node_ids: int) -> list[VoterChangeResult]:
    """Fetch as these nodes, after they have received the leader's latest reply; return the outcomes of changes."""
    effects: list[Effect] = []
    for node_id in node_ids:
        end, last = bench.core.log.end, bench.core.log.last.epoch
        request = Fetch(sender(node_id), 1, bench.core.epoch, end, last, 0, 0, 0, 1 << 20, f"n{node_id}:1")
        effects += bench.do_all([replace(request, round=current_round(bench))])
    return results(effects)


def old_contact(voters: int, *steady: int) -> Bench:
    """Lead voters that fetched `OLD_MS` ago; the `steady` ones fetch continuously."""
    bench = Bench(voters)
    bench.win()
    fetch(bench, *range(2, voters + 1))
    for _ in range(3):
        bench.until(bench.now_ms + OLD_MS // 3)
        fetch(bench, *steady)
    return bench


def wait(bench: Bench, ms: int, *steady: int) -> list[VoterChangeResult]:
    """Let time pass while the `steady` voters fetch; return the outcomes of changes."""
    found: list[VoterChangeResult] = []
    end_ms = bench.now_ms + ms
    while bench.now_ms < end_ms:
        found += results(bench.until(min(bench.now_ms + 100, end_ms)))
        found += fetch(bench, *steady)
    return found


def ask(bench: Bench, change: VoterChange, *, dry_run: bool = False, timeout_ms: int = 10_000) -> list[Effect]:
    return bench.do(ChangeVoters(1, change, dry_run, timeout_ms))


def introduce(bench: Bench, node_id: int, disk: int | None = None, address: str | None = None) -> list[Effect]:
    """Answer the leader's question at the address of this node."""
    (sent,) = [one for one in bench.take(Introduce) if one.to.address == (address or f"n{node_id}:1")]
    known = replace(KNOWN, epoch=bench.core.epoch)
    reply = IntroduceReply(ErrorCode.NONE, known, key(node_id, disk), False, (), None, VoterSet())
    return bench.do(ReplyReceived(sent.call, reply))


def has_voters(bench: Bench, *node_ids: int) -> bool:
    return [voter.key.node_id for voter in bench.core.history.current] == list(node_ids)


def test_a_voter_is_not_removed_if_the_remaining_follower_does_not_fetch_again() -> None:
    bench = old_contact(3, 2)
    end = bench.core.log.end
    assert results(ask(bench, RemoveVoter(2))) == []
    assert wait(bench, 1999, 2) == []
    (result,) = wait(bench, 1, 2)
    assert (result.error, result.changed) == (VoterChangeError.NO_MAJORITY, False)
    assert "only voter 1 fetched lately; unavailable: 3" in result.message
    assert bench.core.log.end == end


def test_a_voter_is_removed_as_soon_as_the_remaining_follower_fetches_again() -> None:
    bench = old_contact(3, 2)
    ask(bench, RemoveVoter(2))
    wait(bench, 1000, 2)
    assert has_voters(bench, 1, 2, 3)
    fetch(bench, 3)
    assert has_voters(bench, 1, 3)


def test_a_fetch_that_was_sent_before_the_request_does_not_confirm_a_removal() -> None:
    """The sender may have lost its disk since then.  The fetch is answered, so that a live voter fetches again."""
    bench = old_contact(3, 2)
    before = current_round(bench)
    ask(bench, RemoveVoter(2))
    reply = bench.fetch(3, bench.core.log.end, round=before)
    assert isinstance(reply, FetchReply)
    assert has_voters(bench, 1, 2, 3)
    fetch(bench, 3)
    assert has_voters(bench, 1, 3)


def test_a_parked_fetch_is_answered_when_a_removal_is_requested() -> None:
    bench = old_contact(3)
    fetch(bench, 2, 3)
    bench.fetch(3, bench.core.log.end, high_watermark=bench.core.high_watermark, round=current_round(bench))
    assert isinstance(bench.core.role, Leader)
    assert key(3) in bench.core.role.parked
    ask(bench, RemoveVoter(2))
    assert key(3) not in bench.core.role.parked


def test_a_snapshot_request_of_a_voter_confirms_a_removal() -> None:
    bench = old_contact(3, 2)
    ask(bench, RemoveVoter(2))
    bench.ask(FetchSnapshot(sender(3), 1, bench.core.epoch, LogEnd(1, 2), 0, 100, current_round(bench)))
    assert has_voters(bench, 1, 3)


def test_a_fetch_from_another_disk_of_a_voter_does_not_confirm_a_removal() -> None:
    bench = old_contact(3, 2)
    ask(bench, RemoveVoter(2))
    bench.fetch(3, 0, 0, sender=sender(3, disk=33), round=0)
    (result,) = wait(bench, 2000, 2)
    assert result.error is VoterChangeError.NO_MAJORITY


def test_a_leader_removes_its_only_follower_without_waiting() -> None:
    bench = old_contact(2)
    ask(bench, RemoveVoter(2))
    assert has_voters(bench, 1)


def test_a_removal_is_refused_immediately_if_the_new_voter_set_has_no_live_majority() -> None:
    bench = old_contact(3, 2)
    wait(bench, 50, 2)
    (result,) = results(ask(bench, RemoveVoter(2)))
    assert result.error is VoterChangeError.NO_MAJORITY


@pytest.mark.parametrize("confirmed", [False, True])
def test_a_dry_run_of_a_removal_waits_for_the_same_confirmation(confirmed: bool) -> None:
    bench = old_contact(3, 2)
    end = bench.core.log.end
    assert results(ask(bench, RemoveVoter(2), dry_run=True)) == []
    (result,) = wait(bench, 2000, 2, *((3,) if confirmed else ()))
    assert result.error is (VoterChangeError.NONE if confirmed else VoterChangeError.NO_MAJORITY)
    assert bench.core.log.end == end


def test_a_removal_without_confirmation_times_out_at_its_deadline() -> None:
    bench = old_contact(3, 2)
    ask(bench, RemoveVoter(2), timeout_ms=500)
    (result,) = wait(bench, 500, 2)
    assert (result.error, result.changed) == (VoterChangeError.TIMED_OUT, False)
    assert has_voters(bench, 1, 2, 3)


def test_a_voter_is_added_as_soon_as_a_current_follower_fetches_again() -> None:
    """The newcomer was measured, so it needs no second confirmation."""
    bench = old_contact(3)
    ask(bench, AddVoter(4, "n4:1"))
    introduce(bench, 4)
    fetch(bench, 4)
    assert has_voters(bench, 1, 2, 3)
    fetch(bench, 3)
    assert has_voters(bench, 1, 2, 3, 4)


def test_no_voter_is_added_if_no_current_follower_fetches_again() -> None:
    bench = old_contact(3)
    end = bench.core.log.end
    ask(bench, AddVoter(4, "n4:1"))
    introduce(bench, 4)
    fetch(bench, 4)
    (result,) = wait(bench, 2000, 4)
    assert (result.error, result.changed) == (VoterChangeError.PAUSED, False)
    assert bench.core.log.end == end


@pytest.mark.parametrize("confirmed", [False, True])
def test_a_disk_is_replaced_only_if_the_remaining_voter_fetches_again(confirmed: bool) -> None:
    """Both disks of node 3 fetch, so that the leader is not paused."""
    bench = old_contact(3, 3)
    end = bench.core.log.end
    ask(bench, AddVoter(3, "n3:1", UUID(int=33 << 120 | 1), replace=True))
    introduce(bench, 3, disk=33)
    bench.fetch(3, end, sender=sender(3, disk=33), round=current_round(bench))
    assert bench.core.history.target is None
    if confirmed:
        fetch(bench, 2)
        target = bench.core.history.target
        assert target is not None
        assert [voter.key for voter in target] == [key(1), key(2), key(3, 33)]
    else:
        (result,) = wait(bench, 2000, 3)
        assert (result.error, result.changed) == (VoterChangeError.NO_MAJORITY, False)
        assert bench.core.log.end == end


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (CancelTarget(), "the target was cancelled before it was reached"),
        (SetTarget(((1, "n1:1"), (2, "n2:1"))), "another target was set before this one was reached"),
    ],
)
def test_a_replacement_that_ends_early_reports_why(change: VoterChange, reason: str) -> None:
    bench = old_contact(3, 3)
    ask(bench, AddVoter(3, "n3:1", UUID(int=33 << 120 | 1), replace=True))
    introduce(bench, 3, disk=33)
    bench.fetch(3, bench.core.log.end, sender=sender(3, disk=33), round=current_round(bench))
    fetch(bench, 2)
    assert bench.core.history.target is not None
    (result,) = results(bench.do(ChangeVoters(2, change, False, 10_000)))
    assert (result.error, result.message) == (VoterChangeError.OUTCOME_UNKNOWN, reason)


def test_a_removal_that_waited_for_another_change_needs_new_confirmations() -> None:
    """The leader appends the new address of voter 4 while it waits for fetches that confirm the removal."""
    bench = old_contact(4, 2, 3, 4)
    bench.fetch(4, bench.core.log.end, address="n44:1", round=current_round(bench))
    ask(bench, RemoveVoter(2))
    introduce(bench, 4, address="n44:1")
    end = bench.core.log.end
    assert bench.core.history.current.voters[3].address == "n44:1"
    bench.fetch(4, end, address="n44:1", round=current_round(bench))
    fetch(bench, 3)
    assert bench.core.high_watermark == end
    assert has_voters(bench, 1, 2, 3, 4)
    fetch(bench, 3)
    assert has_voters(bench, 1, 3, 4)


@pytest.mark.parametrize("confirmed", [False, True])
def test_a_target_with_a_voter_that_does_not_answer_is_accepted_only_if_that_voter_fetches_again(
    confirmed: bool,
) -> None:
    """Node 3 fetches, but no node answers at its address."""
    bench = old_contact(3, 2, 3)
    end = bench.core.log.end
    ask(bench, SetTarget(((1, "n1:1"), (3, "n3:1"))), timeout_ms=60_000)
    failures = 0
    while failures < PROBES_MAX:
        wait(bench, 100, 2, 3)
        for sent in bench.take(Introduce):
            failures += 1
            bench.do(RequestFailed(sent.call, "unreachable"))
    assert bench.core.history.target is None
    if confirmed:
        fetch(bench, 3)
        target = bench.core.history.target
        assert target is not None
        assert [voter.key for voter in target] == [key(1), key(3)]
    else:
        (result,) = wait(bench, 2000, 2)
        assert (result.error, result.changed) == (VoterChangeError.NO_MAJORITY, False)
        assert bench.core.log.end == end
