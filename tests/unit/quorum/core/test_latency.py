"""The reported latency of a disk, and the effects of a slow disk."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from quorum.core.events import Prefer, Propose, ReplyReceived, SnapshotPart, Tick, Transfer, Written
from quorum.core.latency import HALVING_MS, STALL_TIMEOUTS_MAX, WriteLatency
from quorum.core.messages import (
    EndQuorumEpoch,
    ErrorCode,
    Fetch,
    FetchReply,
    FetchSnapshot,
    FetchSnapshotReply,
    Vote,
    VoteReply,
)
from quorum.core.roles import Candidate, Follower, Unattached
from quorum.core.types import LogEnd, Role
from tests.unit.quorum.core.helpers import KNOWN, Bench, key
from tests.unit.quorum.core.test_following import LED_BY_2

TIMEOUT_MS = 2000


def test_the_reported_latency_is_that_of_the_longest_write_and_halves_over_time() -> None:
    latency = WriteLatency(0)
    latency.note(0, 800)
    latency.note(900, 910)
    assert latency.peak_ms(None, 1000) == 800
    assert latency.peak_ms(None, 800 + HALVING_MS) == 400
    latency.note(800 + HALVING_MS, 1300 + HALVING_MS)
    assert latency.peak_ms(None, 1300 + HALVING_MS) == 500


def test_a_write_under_way_counts_with_its_age() -> None:
    latency = WriteLatency(0)
    latency.note(0, 100)
    assert latency.peak_ms(1000, 1050) == 100
    assert latency.peak_ms(1000, 1700) == 700


def test_a_stall_of_the_process_does_not_count_as_latency_of_the_disk() -> None:
    latency = WriteLatency(0)
    latency.held_up(5000)
    assert latency.peak_ms(0, 5010) == 10
    latency.note(0, 5020)
    assert latency.peak_ms(None, 5020) == 20


def leading_with_a_write_under_way(*write_ms: int) -> Bench:
    """Return a leader whose disk hangs; voters 2, 3… report these write times."""
    bench = Bench(voters=len(write_ms) + 1)
    bench.win()
    bench.slow_disk = True
    bench.do(Propose(bench.core.epoch, b"x", 1, 0))
    keep_fetching(bench, 0, write_ms)
    return bench


def keep_fetching(bench: Bench, for_ms: int, write_ms: tuple[int, ...]) -> None:
    end_ms = bench.now_ms + for_ms
    while True:
        for place, taken_ms in enumerate(write_ms):
            bench.fetch(place + 2, bench.core.log.end, write_ms=taken_ms)
        if bench.now_ms >= end_ms:
            return
        bench.until(min(end_ms, bench.now_ms + 500))


@pytest.mark.parametrize(
    ("write_ms", "limit_ms"),
    [
        ((0, 0), TIMEOUT_MS),  # an older release, which reports no write time
        ((5, 3000), TIMEOUT_MS),  # one other disk is fast
        ((700, 3000), 2800),
        ((3000, 3000), STALL_TIMEOUTS_MAX * TIMEOUT_MS),
        ((2**31, 2**31), STALL_TIMEOUTS_MAX * TIMEOUT_MS),
    ],
)
def test_a_leader_tolerates_a_stalled_disk_for_longer_while_all_other_disks_are_slow(
    write_ms: tuple[int, int], limit_ms: int
) -> None:
    bench = leading_with_a_write_under_way(*write_ms)
    keep_fetching(bench, limit_ms - 1, write_ms)
    assert bench.role() is Role.LEADER
    bench.until(bench.now_ms + 1)
    assert bench.role() is Role.RESIGNED


def test_a_leader_with_a_stalled_disk_resigns_early_only_if_a_voter_with_a_fast_disk_still_fetches() -> None:
    bench = leading_with_a_write_under_way(3000, 3000)
    keep_fetching(bench, 4000, (3000, 3000))
    bench.fetch(3, bench.core.log.end, write_ms=0)
    bench.until(bench.now_ms)
    assert bench.role() is Role.RESIGNED
    silent = leading_with_a_write_under_way(3000, 0)
    silent.fetch(2, silent.core.log.end, write_ms=3000)
    for _ in range(3):
        silent.now_ms += 600
        silent.fetch(2, silent.core.log.end, write_ms=3000)
    silent.now_ms += 300
    silent.do(Tick())
    assert silent.core.role.role is Role.LEADER


def test_a_fetch_reports_how_long_writes_took() -> None:
    bench = Bench()
    bench.slow_disk = True
    bench.follow(2)
    bench.now_ms += 300
    bench.do(Written(bench.disk.settle().id))
    (ask,) = bench.take(Fetch)
    assert isinstance(ask.request, Fetch)
    assert ask.request.write_ms == 300


@pytest.mark.parametrize("own_ms", [0, 3000])
@pytest.mark.parametrize(
    ("write_ms", "role"),
    [
        (0, Role.RESIGNED),  # an older release, which reports no write time
        (249, Role.RESIGNED),
        (250, Role.LEADER),
    ],
)
def test_a_leader_does_not_hand_over_to_a_preferred_voter_with_a_slow_disk(
    own_ms: int, write_ms: int, role: Role
) -> None:
    bench = Bench()
    bench.win()
    bench.core._state.latency.note(bench.now_ms - own_ms, bench.now_ms)
    keep_fetching(bench, 0, (own_ms, write_ms))
    bench.do(Prefer((3,)))
    keep_fetching(bench, 0, (own_ms, write_ms))
    bench.do(Tick())
    assert bench.core.role.role is role


def test_a_leader_hands_over_to_the_next_preferred_voter_if_the_disk_of_the_first_is_slow() -> None:
    bench = Bench()
    bench.win()
    keep_fetching(bench, 0, (0, 600))
    bench.do(Prefer((3, 2)))
    keep_fetching(bench, 0, (0, 600))
    bench.do(Tick())
    farewell = bench.take(EndQuorumEpoch)[0].request
    assert isinstance(farewell, EndQuorumEpoch)
    assert farewell.successors == (key(2), key(3))


def test_a_leader_reports_why_no_preferred_voter_leads() -> None:
    bench = Bench()
    bench.win()
    keep_fetching(bench, 0, (0, 600))

    def problem() -> str | None:
        return bench.core.describe(bench.now_ms).preferred_problem

    assert problem() is None, "none is preferred"
    bench.do(Prefer((3, 9)))
    assert problem() == "the disk of node 3 was slow lately: 600 ms for a write; node 9 is not a voter"
    bench.do(Prefer((3, 1)))
    assert problem() is None, "the leader itself is preferred, too"
    bench.do(Prefer((3, 2)))
    assert problem() is None, "node 2 leads soon"


def test_a_transfer_to_any_voter_selects_one_with_a_fast_disk() -> None:
    bench = Bench()
    bench.win()
    keep_fetching(bench, 0, (600, 0))
    bench.do(Transfer(5, None))
    bench.do(Tick())
    farewell = bench.take(EndQuorumEpoch)[0].request
    assert isinstance(farewell, EndQuorumEpoch)
    assert farewell.successors == (key(3), key(2))


def slow_follower(write_ms: int) -> Bench:
    """Return a follower of node 2 whose disk needs this time for a write.  It gets no messages from now on."""
    bench = Bench()
    bench.slow_disk = True
    bench.follow(2)
    bench.now_ms += write_ms
    bench.do(Written(bench.disk.settle().id))
    return bench


@pytest.mark.parametrize(("write_ms", "waits"), [(249, False), (250, True)])
def test_a_follower_with_a_slow_disk_becomes_a_candidate_later_than_others(write_ms: int, waits: bool) -> None:
    bench = slow_follower(write_ms)
    bench.until(TIMEOUT_MS * 5 // 4)
    assert (bench.role() is Role.FOLLOWER) is waits
    reply = bench.ask(bench.vote(3, epoch=1, end=bench.core.log.last, pre_vote=True))
    assert isinstance(reply, VoteReply)
    assert reply.granted
    bench.until(TIMEOUT_MS * 5 // 2)
    assert bench.role() is not Role.FOLLOWER


def give_up_hope(bench: Bench) -> None:
    """Let the follower lose its leader for the first time: it waits for other candidates."""
    role = bench.core.role
    assert isinstance(role, Follower)
    bench.until(role.deadline_ms)
    assert bench.core.role is role
    assert not role.heard


def test_a_follower_with_a_slow_disk_defers_to_other_candidates_again_after_it_regained_contact() -> None:
    bench = slow_follower(300)
    (ask,) = bench.take(Fetch)
    give_up_hope(bench)
    bench.do(ReplyReceived(ask.call, FetchReply(ErrorCode.NONE, LED_BY_2, 0)))
    assert not ask_for_a_pre_vote(bench)
    give_up_hope(bench)
    assert ask_for_a_pre_vote(bench)


def test_a_part_of_a_snapshot_counts_as_contact_with_the_leader() -> None:
    bench = slow_follower(300)
    (ask,) = bench.take(Fetch)
    snapshot = LogEnd(1, 50)
    bench.do(ReplyReceived(ask.call, FetchReply(ErrorCode.NONE, LED_BY_2, 60, snapshot=snapshot)))
    bench.do(SnapshotPart(snapshot, 0))
    (ask,) = bench.take(FetchSnapshot)
    give_up_hope(bench)
    bench.do(ReplyReceived(ask.call, FetchSnapshotReply(ErrorCode.NONE, LED_BY_2, snapshot, 30, 0, b"part")))
    assert not ask_for_a_pre_vote(bench)


def ask_for_a_pre_vote(bench: Bench) -> bool:
    reply = bench.ask(bench.vote(3, epoch=1, end=bench.core.log.last, pre_vote=True))
    assert isinstance(reply, VoteReply)
    return reply.granted


def test_a_fetch_after_a_stall_of_the_process_does_not_report_a_slow_disk() -> None:
    bench = Bench()
    bench.slow_disk = True
    bench.follow(2)
    bench.now_ms += 5000
    bench.do(Tick())
    bench.do(Written(bench.disk.settle().id))
    bench.until(bench.now_ms + 600)
    bench.follow(3, epoch=2)
    while bench.disk.pending:
        bench.do(Written(bench.disk.settle().id))
    latest = bench.take(Fetch)[-1].request
    assert isinstance(latest, Fetch)
    assert latest.write_ms < 100


def with_latency(write_ms: int, seed: int) -> Bench:
    """Return a node whose disk took this long for a write."""
    bench = Bench(seed=seed)
    bench.core._state.latency.note(0, write_ms)
    bench.now_ms = write_ms
    return bench


@pytest.mark.parametrize(("write_ms", "longest_ms"), [(0, 2000), (600, 3200), (9000, 2000 + 2 * TIMEOUT_MS)])
def test_an_election_timeout_includes_the_time_of_the_candidates_writes(write_ms: int, longest_ms: int) -> None:
    """The drawn timeout is extended by twice the time of a write, by at most two fetch timeouts."""
    waits = set()
    for seed in range(20):
        bench = with_latency(write_ms, seed)
        while bench.role() is not Role.CANDIDATE:
            bench.until(max(bench.now_ms, bench.core.deadline_ms))
            for ask in bench.take(Vote):
                bench.do(
                    ReplyReceived(ask.call, VoteReply(ErrorCode.NONE, replace(KNOWN, epoch=bench.core.epoch), True))
                )
        assert isinstance(bench.core.role, Candidate)
        waits.add(bench.core.role.deadline_ms - bench.now_ms)
    assert longest_ms - 1000 - write_ms // 20 <= min(waits)
    assert longest_ms - 300 - write_ms // 20 <= max(waits) <= longest_ms


def test_a_voter_with_a_slow_disk_and_without_a_leader_becomes_a_candidate_later() -> None:
    fast, slow = with_latency(0, seed=1), with_latency(600, seed=1)
    for bench in (fast, slow):
        bench.ask(bench.vote(3, epoch=2))
    assert isinstance(fast.core.role, Unattached)
    assert isinstance(slow.core.role, Unattached)
    assert fast.core.role.deadline_ms is not None
    assert slow.core.role.deadline_ms is not None
    assert slow.core.role.deadline_ms - slow.now_ms == fast.core.role.deadline_ms - fast.now_ms + TIMEOUT_MS * 5 // 4
