"""Share coordinators remind leaders of missing dead letters, so that these are written even if no member fetches."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest
from msgspec.structs import replace

from broker.coordinator.links import BrokerLinks
from broker.coordinator.share_reminders import ShareReminders
from broker.core.coordinator.machine import Record
from broker.core.coordinator.share.state_machine import ShareStateMachine
from broker.core.coordinator.share.states import (
    InitializeState,
    ShareKey,
    ShareState,
    ShareStateLimits,
    StateRequest,
    StateResponse,
    SummarizeState,
    WriteState,
    write_key,
    write_snapshot,
)
from broker.core.share.partition import Delivery, StateBatch
from metadata.image.internal_topics import SHARE_GROUP_STATE
from quorumlog.errors import ClusterError
from quorumlog.wire.errors import ApiError, KafkaCode
from quorumlog.wire.kafka.codec import Api
from tests.unit.broker.coordinator.dead_letter_rig import LETTERS, LIMITS, NOW_MS, Place, bare, place, serving
from tests.unit.broker.log.batches import make_batch
from tests.unit.broker.replica.rig import Rig

__all__ = ["bare", "place"]  # fixtures


def left_over(offset: int = 0) -> ShareState:
    """Return a state, saved by an earlier leader, in which one dead letter is missing."""
    return ShareState(0, 3, 0, offset, (StateBatch(offset, offset + 1, Delivery.ARCHIVING, 1),))


async def test_a_reminded_leader_writes_dead_letters_although_no_member_fetches(place: Place) -> None:
    await place.create_letters()
    await place.write(make_batch((b"a", b"b")))
    place.state = left_over()
    place.shares.write_dead_letters([place.key])
    await place.settled(1)
    assert place.letters() == [0]
    await place.until(lambda: not len(place.shares.partitions))
    assert await place.fetch() == [(1, 2)]


async def test_a_reminder_loads_no_share_partition_that_is_already_loaded_or_not_led_by_this_broker(
    place: Place,
) -> None:
    await place.write(make_batch((b"a", b"b")))
    led = await place.led()
    strangers = [place.key._replace(partition=7), place.key._replace(topic_id=UUID(int=7))]
    place.shares.write_dead_letters([place.key, *strangers])
    assert place.shares.partitions.known(place.key) is led
    assert len(place.shares.partitions) == 1
    assert await place.fetch() == [(0, 2)]


async def test_a_repeated_reminder_keeps_the_share_partition_whose_dead_letters_cannot_be_written_yet(
    place: Place,
) -> None:
    await place.write(make_batch((b"a",)))
    place.state = left_over()
    place.shares.write_dead_letters([place.key])
    led = place.shares.partitions.known(place.key)
    await place.until(lambda: place.cause)
    place.shares.write_dead_letters([place.key])
    assert place.shares.partitions.known(place.key) is led
    await place.create_letters()
    await place.settled(1)
    assert place.letters() == [0]


async def test_a_reminder_without_a_missing_dead_letter_leaves_no_share_partition_loaded(place: Place) -> None:
    place.shares.write_dead_letters([place.key])
    assert len(place.shares.partitions) == 1
    await place.until(lambda: not len(place.shares.partitions))
    place.state = None
    place.shares.write_dead_letters([place.key])
    await place.until(lambda: not len(place.shares.partitions))


async def test_a_member_that_fetches_while_a_reminder_loads_a_share_partition_uses_that_load(place: Place) -> None:
    await place.write(make_batch((b"a", b"b")))
    place.shares.write_dead_letters([place.key])
    led = place.shares.partitions.known(place.key)
    assert await place.led() is led
    await asyncio.sleep(0.01)
    assert place.shares.partitions.known(place.key) is led


async def test_a_session_that_ends_during_the_load_leaves_no_share_partition_loaded(place: Place) -> None:
    loading = asyncio.create_task(place.led())
    await place.until(lambda: len(place.shares.partitions))
    led = place.shares.partitions.known(place.key)
    assert led is not None
    led.release("m", is_used=False)
    await loading
    await place.until(lambda: not len(place.shares.partitions))


async def test_a_reminder_loads_at_most_the_permitted_number_of_share_partitions(rig: Rig, bare: Place) -> None:
    await bare.shares.close()
    async with serving(rig, limits=replace(LIMITS, share_reminders_max=2)) as place:
        place.shares.write_dead_letters([place.key._replace(group=f"g{number}") for number in range(3)])
        assert len(place.shares.partitions) == 2


async def test_missing_dead_letters_of_an_earlier_leader_are_written_although_no_member_fetches(
    rig: Rig, bare: Place
) -> None:
    """Broker 1 also coordinates the states, with the production code."""
    await bare.give_group(errors_deadletterqueue_topic_name=LETTERS)
    await bare.create_letters()
    await bare.write(make_batch((b"a", b"b")))
    await bare.shares.close()
    async with serving(rig, limits=replace(LIMITS, share_reminder_interval_ms=1)) as place:
        del place.shares.states.ask  # remove the fake: the production code answers
        await place.learn(lambda: rig.cluster.create(SHARE_GROUP_STATE, (1,)))

        async def ask(request: StateRequest) -> StateResponse:
            found = await place.shares.states.ask(request)
            assert found.error is KafkaCode.NONE, found
            return found

        await ask(InitializeState(place.key, 1, 0))
        await ask(WriteState(place.key, 1, -1, 0, (StateBatch(0, 1, Delivery.ARCHIVING, 1),)))
        await place.until(lambda: place.batches)
        assert place.letters() == [0]
        await place.until(lambda: not len(place.shares.partitions))
        state = (await ask(SummarizeState(place.key))).state
        assert state is not None
        assert (state.start_offset, state.batches) == (1, ())


class _Coordinator:
    """A share coordinator with one state of each key."""

    def __init__(self, *keys: ShareKey) -> None:
        self.machine = ShareStateMachine(ShareStateLimits(), lambda: NOW_MS)
        for number, key in enumerate(keys):
            self.machine.replay(Record(write_key(key), write_snapshot(replace(left_over(), snapshot_epoch=number))))


async def test_a_share_coordinator_reminds_the_leaders_on_its_own_and_on_other_brokers(
    rig: Rig, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Broker 1 leads partition 0, broker 2 leads the other topic, and the third topic does not exist."""
    await place.learn(lambda: rig.cluster.create("elsewhere", (2,), (2,)))
    there = rig.cluster.image.topic_ids["elsewhere"]
    keys = [place.key, ShareKey("g", there, 0), ShareKey("g", there, 1), ShareKey("g", UUID(int=9), 0)]
    loading: Any = SimpleNamespace(machine=None)
    shell: Any = [loading, _Coordinator(*keys[:2]), _Coordinator(*keys[2:])]
    own: list[ShareKey] = []
    sent: list[tuple[int, Any]] = []

    async def ask(self: object, broker_id: int, api: Api, version: int, values: Any, timeout_s: float) -> None:
        assert (api, version) == (Api.WRITE_DEAD_LETTERS, 0)
        sent.append((broker_id, values["share_partitions"]))
        raise ClusterError(ApiError.BROKER_UNAVAILABLE, "no answer", retriable=True)

    monkeypatch.setattr(BrokerLinks, "ask", ask)
    limits = replace(LIMITS, share_reminder_interval_ms=1)
    reminders = ShareReminders(shell, rig.role.table.context.cluster, lambda broker_id: None, own.extend, limits)
    await reminders.look()
    assert (own, sent) == ([], [])
    running = asyncio.create_task(reminders.run())
    await place.until(lambda: len(sent) >= 2)
    running.cancel()
    await reminders.close()
    named = [{"group_id": "g", "topic_id": there, "partition": index} for index in range(2)]
    assert (own[:2], sent[:2]) == ([place.key] * 2, [(2, named)] * 2), "a lost reminder is repeated"
