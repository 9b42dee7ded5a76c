"""FetchSnapshot at the leader: parts, and refusals that change nothing."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from quorum.core.events import (
    ConfirmRead,
    ReadConfirmed,
    ReadSnapshot,
    RequestReceived,
    Resign,
    SendReply,
    SnapshotRead,
    SnapshotTaken,
    TrimLog,
)
from quorum.core.messages import ErrorCode, FetchReply, FetchSnapshot, FetchSnapshotReply
from quorum.core.roles import Leader
from quorum.core.types import LogEnd
from tests.unit.quorum.core.helpers import Bench, sender

TAKEN = LogEnd(1, 2)
REQUEST = FetchSnapshot(sender(2), 1, 1, TAKEN, 0, 100)


def leading() -> Bench:
    """Return the leader of epoch 1, with everything committed and a snapshot of it."""
    bench = Bench()
    bench.win()
    bench.fetch(2, bench.core.log.end)
    assert bench.core.high_watermark == TAKEN.offset
    bench.disk.snapshots[TAKEN] = b"state"
    bench.do(SnapshotTaken(TAKEN))
    return bench


def reply_to(bench: Bench, request: FetchSnapshot, size: int, data: bytes | None) -> FetchSnapshotReply:
    """Return the leader's answer when its disk reports this size and these bytes."""
    effects = bench.do(RequestReceived(900, request))
    (read,) = [effect for effect in effects if isinstance(effect, ReadSnapshot)]
    assert (read.snapshot, read.position) == (request.snapshot, request.position)
    (answer,) = [one for one in bench.do(SnapshotRead(read.read_id, size, data)) if isinstance(one, SendReply)]
    assert answer.call == 900
    assert isinstance(answer.reply, FetchSnapshotReply)
    return answer.reply


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"sender": sender(2, "other")}, ErrorCode.INCONSISTENT_CLUSTER_ID),
        ({"sender": sender(2, None)}, ErrorCode.INCONSISTENT_CLUSTER_ID),
        ({"sender": sender(2, generation=1)}, ErrorCode.OLD_GENERATION),
        ({"target_id": 3}, ErrorCode.INVALID_VOTER_KEY),
        ({"epoch": 0}, ErrorCode.FENCED_LEADER_EPOCH),
        ({"epoch": 2}, ErrorCode.UNKNOWN_LEADER_EPOCH),
        ({"sender": sender(1)}, ErrorCode.INVALID_REQUEST),
        ({"round": 1}, ErrorCode.INVALID_REQUEST),
    ],
)
def test_a_refused_snapshot_request_changes_and_reads_nothing(changes: dict[str, Any], error: ErrorCode) -> None:
    bench = leading()
    before = (bench.core.election, bench.core.role, bench.core.log.end, bench.core.high_watermark)
    reply = bench.ask(replace(REQUEST, **changes))
    assert isinstance(reply, FetchSnapshotReply)
    assert (reply.error, reply.data) == (error, b"")
    assert before == (bench.core.election, bench.core.role, bench.core.log.end, bench.core.high_watermark)


def test_only_the_leader_serves_snapshots() -> None:
    bench = Bench()
    bench.follow(2)
    reply = bench.ask(replace(REQUEST, sender=sender(3)))
    assert isinstance(reply, FetchSnapshotReply)
    assert (reply.error, reply.known.leader_id) == (ErrorCode.NOT_LEADER, 2)


def test_a_snapshot_that_does_not_exist_is_refused() -> None:
    reply = reply_to(leading(), replace(REQUEST, snapshot=LogEnd(1, 1)), 0, None)
    assert (reply.error, reply.data) == (ErrorCode.SNAPSHOT_NOT_FOUND, b"")


@pytest.mark.parametrize("position", [50, 51, 2**62])
def test_a_position_at_or_past_the_end_is_refused(position: int) -> None:
    reply = reply_to(leading(), replace(REQUEST, position=position), 50, b"")
    assert (reply.error, reply.size, reply.position) == (ErrorCode.POSITION_OUT_OF_RANGE, 50, position)


def test_a_part_of_a_snapshot_is_read_and_sent() -> None:
    reply = reply_to(leading(), replace(REQUEST, position=10), 50, b"bytes")
    assert (reply.error, reply.snapshot, reply.size, reply.position) == (ErrorCode.NONE, TAKEN, 50, 10)
    assert reply.data == b"bytes"


def test_a_request_for_a_snapshot_counts_as_contact() -> None:
    """Fetching snapshots counts as contact with a majority, but it acknowledges nothing."""
    bench = leading()
    acknowledged = replicas(bench)
    bench.until(bench.now_ms + 1900)
    reply_to(bench, REQUEST, 50, b"bytes")
    bench.until(bench.now_ms + 1900)
    assert not bench.core.paused
    assert replicas(bench) == acknowledged
    bench.until(bench.now_ms + 100)
    assert bench.core.paused


def test_a_snapshot_request_that_repeats_the_leaders_round_confirms_a_read() -> None:
    """A part carries the round of the leader, and the next request repeats it."""
    bench = leading()
    bench.do(ConfirmRead(1))
    part = reply_to(bench, REQUEST, 50, b"bytes")
    assert part.round == 1
    effects = bench.do(RequestReceived(901, replace(REQUEST, position=5, round=part.round)))
    assert ReadConfirmed(1, TAKEN.offset) in effects


def test_a_read_that_began_after_a_snapshot_part_was_sent_is_not_confirmed_by_the_round_of_that_part() -> None:
    bench = leading()
    bench.do(ConfirmRead(1))
    reply_to(bench, REQUEST, 50, b"bytes")
    bench.do(ConfirmRead(2))
    effects = bench.do(RequestReceived(901, replace(REQUEST, position=5, round=1)))
    assert [effect.call for effect in effects if isinstance(effect, ReadConfirmed)] == [1]


def replicas(bench: Bench) -> dict[int, int]:
    assert isinstance(bench.core.role, Leader)
    return {key.node_id: progress.end for key, progress in bench.core.role.replicas.items()}


def test_a_snapshot_request_is_answered_even_if_the_leader_resigned_during_its_disk_read() -> None:
    """The answer is harmless, because the records of a snapshot are committed under any leader."""
    bench = leading()
    effects = bench.do(RequestReceived(900, REQUEST))
    (read,) = [effect for effect in effects if isinstance(effect, ReadSnapshot)]
    bench.do(Resign("test"))
    answers = [one for one in bench.do(SnapshotRead(read.read_id, 50, b"x")) if isinstance(one, SendReply)]
    assert [answer.call for answer in answers] == [900]


@pytest.mark.parametrize(
    ("offset", "epoch", "offered"),
    [
        (0, 0, True),  # an empty log
        (1, 0, True),  # below the log's start
        (2, 1, False),  # at the log's start, of the right epoch
        (2, 0, True),  # at the log's start, of an epoch before the one that ends there
        (3, 1, False),
        (9, 1, False),  # past the end: a divergence
    ],
)
def test_a_fetch_below_the_log_start_is_offered_the_snapshot(offset: int, epoch: int, offered: bool) -> None:
    bench = leading()
    bench.do(TrimLog(TAKEN))
    assert bench.core.log.start == TAKEN.offset
    reply = bench.fetch(3, offset, epoch, max_wait_ms=0)
    assert isinstance(reply, FetchReply)
    assert reply.error is ErrorCode.NONE
    assert (reply.snapshot == TAKEN) is offered
    assert (reply.snapshot, reply.diverging, reply.batches).count(None) >= 1
