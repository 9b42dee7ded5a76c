"""A follower that downloads a snapshot: the offers and parts that it accepts."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest
from msgspec.structs import replace

from quorum.core.events import (
    LoadSnapshot,
    NodeRefused,
    ReceiveSnapshot,
    ReplyReceived,
    SendRequest,
    SnapshotFailed,
    SnapshotLoaded,
    SnapshotPart,
    StoreSnapshotPart,
    Write,
)
from quorum.core.messages import ErrorCode, Fetch, FetchReply, FetchSnapshot, FetchSnapshotReply
from quorum.core.roles import Follower
from quorum.core.types import LogBase, LogEnd, ReplicaKey, Voter, Voters, VoterSet
from tests.unit.quorum.core.helpers import Bench
from tests.unit.quorum.core.test_following import LED_BY_2, batch, following, reply

END = LogEnd(1, 50)
DATA = b"0123456789"


def offer(snapshot: LogEnd = END) -> FetchReply:
    return FetchReply(ErrorCode.NONE, LED_BY_2, 60, snapshot=snapshot)


def voters(bench: Bench) -> Voters:
    record = bench.core.history.record
    assert record is not None
    return record


def downloading() -> tuple[Bench, SendRequest]:
    """Request the first part of the snapshot."""
    bench, fetch = following()
    (receive,) = [one for one in bench.do(ReplyReceived(fetch.call, offer())) if isinstance(one, ReceiveSnapshot)]
    assert receive.snapshot == END
    bench.do(SnapshotPart(END, 0))
    (part,) = bench.take(FetchSnapshot)
    return bench, part


def part_of(ask: SendRequest, data: bytes = DATA, size: int = 30, **changes: Any) -> ReplyReceived:
    request = ask.request
    assert isinstance(request, FetchSnapshot)
    given = FetchSnapshotReply(ErrorCode.NONE, LED_BY_2, END, size, request.position, data)
    return ReplyReceived(ask.call, replace(given, **changes))


def is_downloading(bench: Bench) -> bool:
    assert isinstance(bench.core.role, Follower)
    return bench.core.role.download is not None


@pytest.mark.parametrize("snapshot", [LogEnd(1, 3), LogEnd(1, 5), LogEnd(2, 50)])
def test_an_impossible_offer_of_a_snapshot_is_refused(snapshot: LogEnd) -> None:
    """The snapshot ends at or below the high watermark, or has an epoch after the leader's."""
    bench, fetch = following()
    bench.do(ReplyReceived(fetch.call, reply(batch(1), batch(2, count=3), hw=5)))
    (fetch,) = bench.take(Fetch)
    effects = bench.do(ReplyReceived(fetch.call, offer(snapshot)))
    assert not any(isinstance(effect, ReceiveSnapshot) for effect in effects)
    assert (is_downloading(bench), bench.core.log.end, bench.core.high_watermark) == (False, 5, 5)


def test_each_part_is_requested_after_the_previous_one_is_stored() -> None:
    bench, ask = downloading()
    for position in (0, 10, 20):
        assert isinstance(ask.request, FetchSnapshot)
        assert ask.request.position == position
        (store,) = [one for one in bench.do(part_of(ask)) if isinstance(one, StoreSnapshotPart)]
        assert (store.position, store.data) == (position, DATA)
        assert bench.take(FetchSnapshot) == []
        effects = bench.do(SnapshotPart(END, position + 10))
        if position < 20:
            (ask,) = bench.take(FetchSnapshot)
    assert [one for one in effects if isinstance(one, LoadSnapshot)] == [LoadSnapshot(END)]
    assert bench.core.log.end == 1, "nothing has changed until it is complete"


@pytest.mark.parametrize(
    "changes",
    [
        {"snapshot": LogEnd(1, 51)},
        {"position": 5},
        {"data": b""},
        {"known": replace(LED_BY_2, epoch=0)},
        {"error": ErrorCode.SNAPSHOT_NOT_FOUND, "data": b""},
        {"error": ErrorCode.FENCED_LEADER_EPOCH, "data": b""},
        {"error": ErrorCode.POSITION_OUT_OF_RANGE, "data": b"", "size": 30},
    ],
)
def test_a_wrong_part_ends_the_download(changes: dict[str, Any]) -> None:
    bench, ask = downloading()
    effects = bench.do(part_of(ask, **changes))
    assert not any(isinstance(effect, StoreSnapshotPart | LoadSnapshot) for effect in effects)
    assert not is_downloading(bench)
    bench.until(bench.now_ms + 200)
    assert len(bench.take(Fetch)) == 1, "it fetches again, to get an offer of the current snapshot"


def test_late_parts_and_late_events_of_the_shell_are_ignored() -> None:
    bench, ask = downloading()
    bench.do(part_of(ask))
    assert bench.do(part_of(ask)) == []
    assert bench.do(SnapshotPart(LogEnd(1, 40), 7)) == []
    assert bench.do(SnapshotLoaded(LogBase(END, voters(bench)))) == [], "the shell was not asked to load it yet"
    assert bench.do(SnapshotFailed(LogEnd(1, 40), "another")) == []
    bench.follow(3, epoch=2)
    assert not any(isinstance(one, StoreSnapshotPart) for one in bench.do(SnapshotPart(END, 10)))
    assert not any(isinstance(one, Write) for one in bench.do(SnapshotLoaded(LogBase(END, voters(bench)))))
    assert bench.core.log.end == 1


def loading() -> Bench:
    bench, ask = downloading()
    bench.do(part_of(ask, size=10))
    assert LoadSnapshot(END) in bench.do(SnapshotPart(END, 10))
    return bench


def test_a_loaded_snapshot_restarts_the_log_at_its_end_with_its_voters() -> None:
    bench = loading()
    fewer = Voters("lab", 0, VoterSet(voters(bench).voters.voters[:2]))
    bench.disk.snapshots[END] = DATA
    effects = bench.do(SnapshotLoaded(LogBase(END, fewer)))
    (write,) = [one for one in effects if isinstance(one, Write)]
    assert (write.truncate_to, write.base, write.state.voters) == (0, LogBase(END, fewer), fewer.voters)
    assert (bench.core.log.start, bench.core.log.last, bench.core.high_watermark) == (50, END, 50)
    assert bench.core.history.current == fewer.voters
    (fetch,) = bench.take(Fetch)
    assert isinstance(fetch.request, Fetch)
    assert (fetch.request.offset, fetch.request.last_fetched_epoch) == (50, 1)


@pytest.mark.parametrize(
    "record",
    [
        Voters("other", 0, VoterSet((Voter(ReplicaKey(2, UUID(int=2)), "n2:1"),))),
        Voters("lab", 1, VoterSet((Voter(ReplicaKey(2, UUID(int=2)), "n2:1"),))),
        Voters("lab", 0, VoterSet()),
    ],
)
def test_a_snapshot_of_another_cluster_or_generation_stops_the_node(record: Voters) -> None:
    bench = loading()
    effects = bench.do(SnapshotLoaded(LogBase(END, record)))
    (refused,) = [one for one in effects if isinstance(one, NodeRefused)]
    assert "snapshot is of cluster" in refused.message
    assert not any(isinstance(one, Write) for one in effects)


def test_a_damaged_snapshot_ends_the_download() -> None:
    bench = loading()
    bench.do(SnapshotFailed(END, "damaged"))
    assert not is_downloading(bench)
    assert isinstance(bench.core.role, Follower)
    assert bench.core.role.fetch.failures == 1
    assert bench.core.log.end == 1


def test_downloads_of_a_damaged_snapshot_back_off_while_contact_continues() -> None:
    bench, downloads, began = loading(), 0, 0
    bench.do(SnapshotFailed(END, "damaged"))
    while bench.now_ms - began < 300_000:
        bench.until(bench.now_ms + 50)
        for fetch in bench.take(Fetch):
            if any(isinstance(one, ReceiveSnapshot) for one in bench.do(ReplyReceived(fetch.call, offer()))):
                bench.do(SnapshotPart(END, 10))
                for part in bench.take(FetchSnapshot):
                    all_here: dict[str, Any] = {"error": ErrorCode.POSITION_OUT_OF_RANGE, "data": b"", "size": 10}
                    assert LoadSnapshot(END) in bench.do(part_of(part, **all_here))
                bench.do(SnapshotFailed(END, "damaged"))
                downloads += 1
    assert isinstance(bench.core.role, Follower)
    assert (bench.core.epoch, bench.core.role.leader_id) == (1, 2)
    assert 10 <= downloads <= 16, "0.5, 1, 2, 4, 8, 16 s apart, then every 30 s"


def test_another_snapshot_is_downloaded_at_once_after_a_damaged_one() -> None:
    bench = loading()
    bench.do(SnapshotFailed(END, "damaged"))
    bench.until(bench.now_ms + 100)
    (fetch,) = bench.take(Fetch)
    later = LogEnd(1, 55)
    assert ReceiveSnapshot(later) in bench.do(ReplyReceived(fetch.call, offer(later)))


def test_the_fetch_timeout_does_not_expire_while_the_shell_loads_a_snapshot() -> None:
    """Loading a large snapshot takes longer than the fetch timeout, without contact with the leader meanwhile."""
    bench = loading()
    bench.until(bench.now_ms + 30_000)
    assert isinstance(bench.core.role, Follower)
    assert (bench.core.epoch, bench.core.role.leader_id) == (1, 2)
