"""A share partition stays loaded while a session uses it, and no longer: others may change its state afterwards."""

from __future__ import annotations

import pytest

from broker.coordinator.share_sessions import END_SESSION, NEW_SESSION
from broker.core.coordinator.share.states import ShareState
from broker.core.share.partition import Acknowledgement, AckType
from broker.core.share.requests import ShareFetchPlan, SharePlace, ShareReply
from quorumlog.wire.errors import KafkaCode
from tests.unit.broker.coordinator.dead_letter_rig import GROUP, Place, bare
from tests.unit.broker.log.batches import make_batch

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
) -> ShareReply:
    acknowledgements = {here(place): acknowledged} if acknowledged else {}
    limits = (0, 1, 1 << 20, 1_000)
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


async def test_a_session_that_forgot_a_partition_does_not_keep_its_state_after_its_end(fetched: Place) -> None:
    await ask(fetched, 1, forgotten=(here(fetched),))
    await ask(fetched, END_SESSION)
    await dropped(fetched)
    fetched.state = ShareState(0, 4, 0, 1)  # an administrator has set another start
    assert acquired(await ask(fetched, NEW_SESSION, (here(fetched),))) == [(1, 2)]


async def test_the_records_of_a_forgotten_partition_are_released_with_the_session(fetched: Place) -> None:
    await ask(fetched, NEW_SESSION, (here(fetched),), member="n")
    await ask(fetched, 1, forgotten=(here(fetched),))
    assert acquired(await ask(fetched, 1, member="n")) == []
    await ask(fetched, END_SESSION)
    assert acquired(await ask(fetched, 2, member="n")) == [(0, 2)]


async def test_a_member_acknowledges_records_of_a_partition_that_it_has_forgotten(fetched: Place) -> None:
    await ask(fetched, NEW_SESSION, (here(fetched),), member="n")
    await ask(fetched, 1, forgotten=(here(fetched),))
    await ask(fetched, END_SESSION, member="n")
    accepted = (Acknowledgement(0, 2, (AckType.ACCEPT,)),)
    (result,) = (await ask(fetched, 2, acknowledged=accepted)).acknowledged
    assert result.error is KafkaCode.NONE
    await ask(fetched, END_SESSION)
    await dropped(fetched)


async def test_a_partition_that_was_only_acknowledged_is_dropped_with_the_session(fetched: Place) -> None:
    await ask(fetched, END_SESSION)
    await dropped(fetched)
    await ask(fetched, NEW_SESSION)
    accepted = (Acknowledgement(0, 2, (AckType.ACCEPT,)),)
    (result,) = (await ask(fetched, 1, acknowledged=accepted)).acknowledged
    assert result.error is KafkaCode.INVALID_RECORD_STATE
    await ask(fetched, END_SESSION)
    await dropped(fetched)


async def test_a_session_that_begins_again_releases_all_its_partitions_at_the_end(fetched: Place) -> None:
    await ask(fetched, NEW_SESSION)
    await ask(fetched, END_SESSION)
    await dropped(fetched)


async def test_a_share_partition_that_could_not_be_loaded_is_dropped_with_the_session(bare: Place) -> None:
    bare.state = None
    (refused,) = (await ask(bare, NEW_SESSION, (here(bare),))).fetched
    assert refused.error is not KafkaCode.NONE
    await ask(bare, END_SESSION)
    await dropped(bare)


async def test_the_forgotten_partitions_of_a_session_are_bounded_by_those_that_are_loaded(fetched: Place) -> None:
    fetched.shares.partitions.drop(fetched.key)
    await ask(fetched, 1, forgotten=(here(fetched),))
    (session,) = fetched.shares.sessions._sessions.values()
    assert not session.former
