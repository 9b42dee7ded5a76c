"""Share partitions are loaded for the sessions that use them, each independently of the others.

A share partition stays loaded only while a session uses it, since others may change its state afterwards.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from msgspec import structs

from broker.coordinator.share_sessions import END_SESSION, NEW_SESSION, SessionKey
from broker.core.coordinator.share.states import ReadState, ShareKey, ShareState, StateRequest, StateResponse
from broker.core.share.partition import Acknowledgement, AckType
from broker.core.share.requests import ShareAcknowledgePlan, ShareFetchPlan, SharePlace, ShareReply
from broker.replica.replica import Replica
from quorumlog.wire.errors import KafkaCode
from tests.unit.broker.coordinator.dead_letter_rig import GROUP, LIMITS, WAIT_S, Place, bare, serving
from tests.unit.broker.log.batches import make_batch
from tests.unit.broker.replica.rig import Rig

__all__ = ["bare"]  # a fixture


def here(place: Place) -> SharePlace:
    return place.key.topic_id, place.key.partition


async def ask(
    place: Place,
    epoch: int,
    added: tuple[SharePlace, ...] = (),
    forgotten: tuple[SharePlace, ...] = (),
    acknowledged: tuple[Acknowledgement, ...] = (),
    member: str = "m",
    wait_ms: int = 0,
) -> ShareReply:
    acknowledgements = {here(place): acknowledged} if acknowledged else {}
    limits = (wait_ms, 1, 1 << 20, 1_000)
    plan = ShareFetchPlan(
        GROUP, member, epoch, *limits, False, False, added, forgotten, acknowledgements, f"host:{member}"
    )
    return await place.shares.fetch(plan)


async def dropped(place: Place) -> None:
    """Wait until no share partition is loaded: the last save may still be in progress."""
    await place.until(lambda: len(place.shares.partitions) == 0)


def acquired(reply: ShareReply) -> list[tuple[int, int]]:
    return [(each.first, each.end) for fetched in reply.fetched for each in fetched.acquired]


@pytest.fixture
async def fetched(bare: Place) -> Place:
    """The session of a member has acquired two records."""
    await bare.write(make_batch((b"a", b"b")))
    assert acquired(await ask(bare, NEW_SESSION, (here(bare),))) == [(0, 2)]
    return bare


async def test_the_end_of_a_session_drops_the_state_of_a_partition_that_the_session_forgot(fetched: Place) -> None:
    await ask(fetched, 1, forgotten=(here(fetched),))
    await ask(fetched, END_SESSION)
    await dropped(fetched)
    fetched.state = ShareState(0, 4, 0, 1)  # an administrator has set another start
    assert acquired(await ask(fetched, NEW_SESSION, (here(fetched),))) == [(1, 2)]


async def test_the_records_of_a_forgotten_partition_are_released_when_the_session_ends(fetched: Place) -> None:
    await ask(fetched, NEW_SESSION, (here(fetched),), member="n")
    await ask(fetched, 1, forgotten=(here(fetched),))
    assert acquired(await ask(fetched, 1, member="n")) == []
    await ask(fetched, END_SESSION)
    assert acquired(await ask(fetched, 2, member="n")) == [(0, 2)]


async def test_a_member_may_acknowledge_records_of_a_partition_that_its_session_forgot(fetched: Place) -> None:
    await ask(fetched, NEW_SESSION, (here(fetched),), member="n")
    await ask(fetched, 1, forgotten=(here(fetched),))
    await ask(fetched, END_SESSION, member="n")
    accepted = (Acknowledgement(0, 2, (AckType.ACCEPT,)),)
    (result,) = (await ask(fetched, 2, acknowledged=accepted)).acknowledged
    assert result.error is KafkaCode.NONE
    await ask(fetched, END_SESSION)
    await dropped(fetched)


async def test_a_partition_that_a_session_only_acknowledged_is_dropped_when_the_session_ends(fetched: Place) -> None:
    await ask(fetched, END_SESSION)
    await dropped(fetched)
    await ask(fetched, NEW_SESSION)
    accepted = (Acknowledgement(0, 2, (AckType.ACCEPT,)),)
    (result,) = (await ask(fetched, 1, acknowledged=accepted)).acknowledged
    assert result.error is KafkaCode.INVALID_RECORD_STATE
    await ask(fetched, END_SESSION)
    await dropped(fetched)


async def test_a_session_that_replaces_another_releases_the_partitions_of_both_when_it_ends(fetched: Place) -> None:
    await ask(fetched, NEW_SESSION)
    await ask(fetched, END_SESSION)
    await dropped(fetched)


async def test_a_share_partition_that_could_not_be_loaded_is_dropped_when_the_session_ends(bare: Place) -> None:
    bare.state = None
    (refused,) = (await ask(bare, NEW_SESSION, (here(bare),))).fetched
    assert refused.error is not KafkaCode.NONE
    await ask(bare, END_SESSION)
    await dropped(bare)


async def test_a_save_that_is_refused_after_the_session_ended_leaves_no_share_partition_loaded(fetched: Place) -> None:
    fetched.state = ShareState(0, 4, 0, 1)  # an administrator has set another start
    led = fetched.shares.partitions.known(fetched.key)
    assert led is not None
    refused = led.acknowledge("m", (Acknowledgement(0, 2, (AckType.ACCEPT,)),))
    await ask(fetched, END_SESSION)
    assert not refused.done()
    assert await refused is KafkaCode.NOT_LEADER_OR_FOLLOWER
    await dropped(fetched)


async def test_a_session_remembers_a_forgotten_partition_only_if_it_is_loaded(fetched: Place) -> None:
    fetched.shares.partitions.drop(fetched.key)
    await ask(fetched, 1, forgotten=(here(fetched),))
    session = fetched.shares.fetches._sessions.of(SessionKey(GROUP, "m"))
    assert session is not None
    assert not session.former


@pytest.mark.parametrize("epoch", [NEW_SESSION, END_SESSION])
async def test_a_fetch_whose_session_has_ended_acquires_nothing(bare: Place, epoch: int) -> None:
    """This broker may not notice that the connection is cut.  The client has begun another session, or has left."""
    old = asyncio.create_task(ask(bare, NEW_SESSION, (here(bare),), wait_ms=3_600_000))
    await bare.until(lambda: bare.shares.partitions.is_loaded(bare.key))
    await ask(bare, epoch, (here(bare),) if epoch == NEW_SESSION else ())
    await bare.write(make_batch((b"a",)))
    await bare.until(old.done)
    assert old.result().fetched == ()
    if epoch == NEW_SESSION:
        assert acquired(await ask(bare, 1)) == [(0, 1)]
        await ask(bare, END_SESSION)
    await dropped(bare)


class SlowDisk:
    """A disk whose reads do not end until `let` is set."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.reads = 0
        self.let = asyncio.Event()
        read = Replica.read

        async def wait(replica: Replica, offset: int, max_bytes: int, end: int) -> bytes | memoryview:
            self.reads += 1
            await self.let.wait()
            return await read(replica, offset, max_bytes, end)

        monkeypatch.setattr(Replica, "read", wait)


async def test_a_fetch_whose_session_is_replaced_while_it_reads_acquires_nothing(
    bare: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    await bare.write(make_batch((b"a",)))
    disk = SlowDisk(monkeypatch)
    old = asyncio.create_task(ask(bare, NEW_SESSION, (here(bare),)))
    await bare.until(lambda: disk.reads)
    await ask(bare, NEW_SESSION)
    disk.let.set()
    assert (await old).fetched == ()
    assert acquired(await ask(bare, 1, (here(bare),))) == [(0, 1)]


async def test_a_fetch_whose_session_ends_while_it_reads_loads_nothing(
    wide: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No session would drop a state that the fetch loads."""
    await wide.led()
    await wide.write(make_batch((b"a",)))
    disk = SlowDisk(monkeypatch)
    old = asyncio.create_task(ask(wide, NEW_SESSION, places(wide, 0, 1)))
    await wide.until(lambda: disk.reads)
    await ask(wide, END_SESSION)
    disk.let.set()
    assert (await old).fetched == ()
    await dropped(wide)


async def test_an_acknowledgement_whose_session_ends_while_it_waits_leaves_no_share_partition_loaded(
    wide: Place,
) -> None:
    """The end of the session has released the records of the member."""
    slow = Slow(wide)
    await ask(wide, NEW_SESSION)
    accepted = (Acknowledgement(0, 1, (AckType.ACCEPT,)),)
    plan = ShareAcknowledgePlan(GROUP, "m", 1, False, {each: accepted for each in places(wide, 1, 2)}, "host:m")
    old = asyncio.create_task(wide.shares.acknowledge(plan))
    await wide.until(lambda: slow.asked)
    await ask(wide, END_SESSION)
    slow.let()
    assert [each.error for each in (await old).acknowledged][1] is KafkaCode.INVALID_RECORD_STATE
    await dropped(wide)


async def test_a_state_that_cannot_be_read_does_not_delay_acknowledgements_of_other_partitions(wide: Place) -> None:
    """The locks of the acknowledged records would expire meanwhile."""
    slow = Slow(wide)
    await wide.led()
    await wide.write(make_batch((b"a",)))
    assert acquired(await ask(wide, NEW_SESSION, places(wide, 0))) == [(0, 1)]
    accepted = (Acknowledgement(0, 1, (AckType.ACCEPT,)),)
    plan = ShareAcknowledgePlan(GROUP, "m", 1, False, {each: accepted for each in places(wide, 1, 0)}, "host:m")
    acknowledging = asyncio.create_task(wide.shares.acknowledge(plan))
    await wide.until(lambda: wide.state is not None and wide.state.start_offset == 1)
    assert not acknowledging.done()
    slow.let()
    (first, _) = (await acknowledging).acknowledged
    assert (first.place, first.error) == (*places(wide, 0), KafkaCode.NONE)


async def test_an_acknowledgement_waits_for_all_its_loads_together_for_a_bounded_time(rig: Rig) -> None:
    await rig.create(*[(1,)] * 70)
    async with serving(rig, limits=structs.replace(LIMITS, share_load_wait_ms=20)) as place:
        slow = Slow(place)
        await ask(place, NEW_SESSION)
        accepted = (Acknowledgement(0, 1, (AckType.ACCEPT,)),)
        wanted = places(place, *range(1, 60))
        plan = ShareAcknowledgePlan(GROUP, "m", 1, False, dict.fromkeys(wanted, accepted), "host:m")
        async with asyncio.timeout(WAIT_S):
            reply = await place.shares.acknowledge(plan)
        assert {each.error for each in reply.acknowledged} == {KafkaCode.REPLICA_NOT_AVAILABLE}
        assert len(reply.acknowledged) == len(wanted)
        assert slow.asked == [1], "no state is read after the deadline"
        slow.let()


class Slow:
    """A share coordinator that answers requests about partition 1 and above only after `let` was called.

    asked: the partitions whose states were read.  code: the error in the delayed answers, or NONE.
    """

    def __init__(self, place: Place) -> None:
        self.asked: list[int] = []
        self.code = KafkaCode.NONE
        self._answer = place.shares.states.ask
        self._go = asyncio.Event()
        place.shares.states.ask = self._ask  # type: ignore[method-assign]

    def let(self, code: KafkaCode = KafkaCode.NONE) -> None:
        self.code = code
        self._go.set()

    def hold(self) -> None:
        """Delay answers from now on, as at the beginning."""
        self.asked.clear()
        self._go.clear()

    async def _ask(self, request: StateRequest) -> StateResponse:
        if isinstance(request, ReadState):
            self.asked.append(request.key.partition)
        if request.key.partition >= 1:
            await self._go.wait()
            if self.code is not KafkaCode.NONE:
                return StateResponse(self.code)
        return await self._answer(request)


@pytest.fixture
async def wide(rig: Rig) -> AsyncIterator[Place]:
    """A topic with many partitions.  A fetch that waits for the first state waits longer than a test."""
    await rig.create(*[(1,)] * 70)
    async with serving(rig, limits=structs.replace(LIMITS, share_load_wait_ms=3_600_000)) as place:
        yield place


def places(place: Place, *indexes: int) -> tuple[SharePlace, ...]:
    return tuple([(place.key.topic_id, index) for index in indexes])


async def test_a_state_that_cannot_be_read_does_not_delay_other_partitions(wide: Place) -> None:
    """Otherwise one share coordinator that is down delays all records of a member by seconds."""
    slow = Slow(wide)
    await wide.led()
    await wide.write(make_batch((b"a",)))
    assert acquired(await ask(wide, NEW_SESSION, places(wide, 1, 2, 0), wait_ms=60_000)) == [(0, 1)]
    await wide.until(lambda: slow.asked == [0, 1, 2])  # all states are read at the same time


async def test_a_fetch_with_a_wait_time_of_zero_still_waits_for_its_first_state(wide: Place) -> None:
    slow = Slow(wide)
    fetch = asyncio.create_task(ask(wide, NEW_SESSION, places(wide, 1)))
    await wide.until(lambda: slow.asked)
    assert not fetch.done()
    slow.let()
    assert (await fetch).fetched == ()


@pytest.mark.parametrize("loads", [1, LIMITS.share_loads_per_fetch])
async def test_a_fetch_with_a_loaded_partition_does_not_wait_for_the_loads_of_other_partitions(
    wide: Place, loads: int
) -> None:
    """Acknowledgements wait behind the fetch, because a connection answers in order."""
    Slow(wide)
    await wide.led()
    fetch = asyncio.create_task(ask(wide, NEW_SESSION, places(wide, *range(1, 1 + loads), 0)))
    await wide.until(fetch.done)
    assert fetch.result().fetched == ()


@pytest.mark.parametrize(
    ("code", "reported"),
    [
        (KafkaCode.COORDINATOR_NOT_AVAILABLE, KafkaCode.REPLICA_NOT_AVAILABLE),
        (KafkaCode.INVALID_REQUEST, KafkaCode.REPLICA_NOT_AVAILABLE),  # the state is missing
        (KafkaCode.FENCED_LEADER_EPOCH, KafkaCode.NOT_LEADER_OR_FOLLOWER),
        (KafkaCode.FENCED_STATE_EPOCH, KafkaCode.NOT_LEADER_OR_FOLLOWER),
    ],
)
async def test_a_fetch_reports_a_state_that_it_could_not_read(
    wide: Place, code: KafkaCode, reported: KafkaCode
) -> None:
    """A Java client fails at any error in a fetch that it does not expect there."""
    slow = Slow(wide)
    fetch = asyncio.create_task(ask(wide, NEW_SESSION, places(wide, 1), wait_ms=60_000))
    await wide.until(lambda: slow.asked)
    slow.let(code)
    (refused,) = (await fetch).fetched
    assert refused.error is reported


async def test_an_acknowledgement_of_records_that_were_acquired_before_a_reset_is_refused(fetched: Place) -> None:
    fetched.state = ShareState(0, 4, 0, 1)
    accepted = (Acknowledgement(0, 2, (AckType.ACCEPT,)),)
    (result,) = (await ask(fetched, 1, acknowledged=accepted)).acknowledged
    assert result.error is KafkaCode.NOT_LEADER_OR_FOLLOWER


async def test_one_fetch_loads_a_bounded_number_of_states_at_a_time(wide: Place) -> None:
    slow = Slow(wide)
    fetch = asyncio.create_task(ask(wide, NEW_SESSION, places(wide, *range(1, 70)), wait_ms=60_000))
    limit = LIMITS.share_loads_per_fetch
    await wide.until(lambda: len(slow.asked) >= limit)
    assert slow.asked == list(range(1, 1 + limit))
    slow.let()
    await wide.until(lambda: len(slow.asked) == 69)
    fetch.cancel()


async def test_one_fetch_loads_a_bounded_number_of_states_again_after_they_failed(wide: Place) -> None:
    """Otherwise each fetch asks a share coordinator that is down for all states at once."""
    slow = Slow(wide)
    limit = LIMITS.share_loads_per_fetch
    fetch = asyncio.create_task(ask(wide, NEW_SESSION, places(wide, *range(1, 61))))
    await wide.until(lambda: len(slow.asked) == limit)
    slow.let(KafkaCode.COORDINATOR_NOT_AVAILABLE)
    await wide.until(fetch.done)
    assert len(fetch.result().fetched) == limit
    slow.hold()
    fetch = asyncio.create_task(ask(wide, 1))
    await wide.until(lambda: len(slow.asked) >= limit)
    assert set(range(51, 61)) < set(slow.asked)
    assert (len(slow.asked), fetch.done()) == (limit, False)
    fetch.cancel()


async def test_a_fetch_reports_loads_that_end_with_the_leadership(wide: Place) -> None:
    """Otherwise they would count as loads in progress, and no other state would be loaded."""
    slow = Slow(wide)
    limit = LIMITS.share_loads_per_fetch
    fetch = asyncio.create_task(ask(wide, NEW_SESSION, places(wide, *range(1, 70)), wait_ms=60_000))
    await wide.until(lambda: len(slow.asked) == limit)
    for place in places(wide, *range(1, 1 + limit)):
        wide.shares.partitions.drop(ShareKey(GROUP, *place))
    await wide.until(fetch.done)
    assert {each.error for each in fetch.result().fetched} == {KafkaCode.NOT_LEADER_OR_FOLLOWER}
    await wide.until(lambda: len(slow.asked) == 69)
