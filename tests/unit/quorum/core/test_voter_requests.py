"""Changes of voters that do not exist, limits of the voter set, and replayed requests."""

from __future__ import annotations

from uuid import UUID

import pytest
from msgspec.structs import replace

from quorum import codec
from quorum.core.changes import VOTERS_MAX
from quorum.core.events import (
    AddVoter,
    ChangeVoters,
    RemoveVoter,
    ReplyReceived,
    UpdateVoter,
    VoterChange,
    VoterChangeError,
    VotersChanged,
)
from quorum.core.messages import (
    BeginQuorumEpoch,
    EndQuorumEpoch,
    ErrorCode,
    Fetch,
    FetchSnapshot,
    Introduce,
    IntroduceReply,
    Request,
)
from quorum.core.types import LogEnd, VoterSet
from tests.unit.quorum.core.helpers import KNOWN, Bench, key, sender

OTHER = UUID(int=77)


def leading() -> Bench:
    bench = Bench()
    bench.win()
    bench.fetch(2, bench.core.log.end)
    bench.fetch(3, bench.core.log.end)
    return bench


@pytest.mark.parametrize(
    ("change", "error", "said"),
    [
        (RemoveVoter(9), VoterChangeError.VOTER_NOT_FOUND, "node 9"),
        (RemoveVoter(2, OTHER), VoterChangeError.VOTER_NOT_FOUND, "node 2 with directory id"),
        (UpdateVoter(key(9), "n9:1"), VoterChangeError.VOTER_NOT_FOUND, "9:"),
        (UpdateVoter(key(2, disk=99), "n2:2"), VoterChangeError.VOTER_NOT_FOUND, "2:"),
    ],
)
def test_changes_of_unknown_voters_are_refused(change: VoterChange, error: VoterChangeError, said: str) -> None:
    bench = leading()
    end = bench.core.log.end
    (told,) = [one for one in bench.do(ChangeVoters(1, change)) if isinstance(one, VotersChanged)]
    assert (told.result.error, told.result.changed, bench.core.log.end) == (error, False, end)
    assert said in told.result.message


def test_only_one_of_several_concurrent_voter_changes_is_accepted() -> None:
    """The others are refused with CHANGE_PENDING, and change nothing."""
    bench = leading()
    bench.do(ChangeVoters(1, RemoveVoter(3)))
    end = bench.core.log.end
    told = bench.do(ChangeVoters(2, RemoveVoter(2))) + bench.do(ChangeVoters(3, AddVoter(4, "n4:1")))
    refused = [one.result.error for one in told if isinstance(one, VotersChanged)]
    assert refused == [VoterChangeError.CHANGE_PENDING, VoterChangeError.CHANGE_PENDING]
    assert bench.core.log.end == end


@pytest.mark.parametrize("there", [VOTERS_MAX - 1, VOTERS_MAX])
def test_the_number_of_voters_is_limited(there: int) -> None:
    """A record with one more voter could not be read by other nodes, or by this one after a restart."""
    bench, newcomer = Bench(there), there + 1
    bench.win()
    for node_id in range(2, there + 1):
        bench.fetch(node_id, bench.core.log.end)
    bench.fetch(newcomer, bench.core.log.end)
    end = bench.core.log.end
    effects = bench.do(ChangeVoters(1, AddVoter(newcomer, f"n{newcomer}:1")))
    for ask in bench.take(Introduce):
        known = replace(KNOWN, epoch=bench.core.epoch)
        reply = IntroduceReply(ErrorCode.NONE, known, key(newcomer), False, (), None, VoterSet())
        effects += bench.do(ReplyReceived(ask.call, reply))
    bench.fetch(newcomer, end)
    for node_id in range(2, there + 1):
        bench.fetch(node_id, end, round=1)
    told = [one.result for one in effects if isinstance(one, VotersChanged)]
    added = [batch for batch in bench.disk.batches if batch.base_offset >= end]
    if there < VOTERS_MAX:
        (batch,) = added
        assert codec.batch_from(codec.batch_to(batch)) == batch
        assert not told, "it is not committed yet"
    else:
        assert not added
        assert [(result.error, result.changed) for result in told] == [(VoterChangeError.INVALID_REQUEST, False)]
        assert "at most 64" in told[0].message


def captured(bench: Bench) -> list[Request]:
    """Return requests of epoch 1, to be replayed."""
    target = bench.core.key
    return [
        bench.vote(2, epoch=1),
        bench.vote(3, epoch=1, pre_vote=True),
        BeginQuorumEpoch(sender(2), target, 1, "n2:1"),
        EndQuorumEpoch(sender(2), target, 1, ()),
        Fetch(sender(2), 1, 1, 2, 1, 2, 0, 500, 1 << 20, "n2:1"),
        FetchSnapshot(sender(2), 1, 1, LogEnd(1, 2), 0, 100),
    ]


def test_replayed_requests_of_an_older_epoch_are_fenced() -> None:
    bench = leading()
    bench.follow(2, epoch=4)
    before = (bench.core.election, bench.core.log.end, bench.core.high_watermark, bench.core.role)
    for request in captured(bench):
        reply = bench.ask(request)
        assert reply is not None
        assert reply.error is ErrorCode.FENCED_LEADER_EPOCH, request
        assert reply.known.epoch == 4
    assert before == (bench.core.election, bench.core.log.end, bench.core.high_watermark, bench.core.role)


def test_replayed_fetches_of_the_current_epoch_change_nothing() -> None:
    bench = leading()
    request = Fetch(sender(2), 1, 1, 2, 1, 2, 0, 0, 1 << 20, "n2:1")
    for _ in range(3):
        bench.ask(request)
        bench.ask(replace(request, offset=1, last_fetched_epoch=0, high_watermark=0))
    assert (bench.core.high_watermark, bench.core.epoch, bench.core.log.end) == (2, 1, 2)
