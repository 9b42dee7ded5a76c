"""Configs of single groups, from the metadata to their effect on the leaders and coordinators of this broker."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from random import Random
from typing import Any, cast

import pytest

from broker.coordinator.group_configs import ImageGroupConfigs
from broker.coordinator.groups import GroupCoordinators
from broker.coordinator.led_share import Fetched, LedShare
from broker.coordinator.shares import ShareGroups
from broker.core.coordinator.consumer.requests import ConsumerLimits
from broker.core.coordinator.group_requests import GroupLimits
from broker.core.coordinator.share.requests import ShareGroupLimits
from broker.core.coordinator.share.states import (
    NO_START,
    ReadState,
    ShareKey,
    ShareState,
    StateRequest,
    StateResponse,
    WriteState,
)
from broker.core.share.partition import Acquired
from metadata.control.configs import Changes, Resource, alter_configs
from metadata.control.features import upgrade_feature
from metadata.records import METADATA_VERSION, ConfigScope
from quorumlog.runtime.clock import Sources
from quorumlog.runtime.disk import DiskError
from quorumlog.wire.errors import KafkaCode
from tests.unit.broker.log.batches import make_batch
from tests.unit.broker.replica.rig import TOPIC, Rig

NOW_MS = 1_700_000_000_000
MINUTE_MS = 60_000
WAIT_S = 60
CLUSTER = ""


class Place:
    """Share groups on broker 1, which leads partition 0 of the topic.  starts: the start offset of each group."""

    def __init__(self, rig: Rig) -> None:
        self.rig = rig
        sources = Sources(lambda: NOW_MS, Random(1))
        nothing = cast(Any, None)
        groups = cast(GroupCoordinators, cast(Any, _Groups()))
        self.shares = ShareGroups(rig.role.table, groups, nothing, nothing, nothing, sources, nothing)
        self.shares.states.ask = self._ask  # type: ignore[method-assign]
        self.configs = ImageGroupConfigs(rig.context.cluster)
        self.starts: dict[str, int] = {}

    async def _ask(self, request: StateRequest) -> StateResponse:
        if isinstance(request, WriteState):
            self.starts[request.key.group] = request.start_offset
            return StateResponse(KafkaCode.NONE)
        assert isinstance(request, ReadState)
        start = self.starts.get(request.key.group, NO_START)
        return StateResponse(KafkaCode.NONE, state=ShareState(0, 0, request.leader_epoch, start))

    async def give(self, group: str, **values: str | None) -> None:
        """Set configs of a group, or (CLUSTER) of the cluster; the names have `_` in place of `.`."""
        old = self.rig.cluster.image
        scope = ConfigScope.GROUP if group else ConfigScope.CLUSTER
        named = tuple((key.replace("_", "."), value) for key, value in values.items())
        changes = [Changes(Resource(scope, group), named)]
        [answer] = self.rig.cluster.execute(lambda image: alter_configs(image, changes))
        assert answer.outcome.ok, answer.outcome.message
        new = self.rig.cluster.image
        self.shares.on_batch(old, new, None)
        await self.rig.learn()

    async def write(self, *ages_ms: int) -> None:
        """Append one record for each age, in a batch of its own, with a timestamp of that age."""
        for age_ms in ages_ms:
            batch = memoryview(make_batch((b"v",), timestamps=[NOW_MS - age_ms]))
            self.rig.replicas.start_produce(TOPIC, 0, batch, -1, 60_000)
        await self.rig.role.logs.flush_all([self.rig.log])

    async def led(self, group: str) -> LedShare:
        found = await self._get(group)
        assert isinstance(found, LedShare), found
        return found

    async def _get(self, group: str) -> LedShare | KafkaCode:
        async with asyncio.timeout(WAIT_S):
            return await self.shares.partitions.get(ShareKey(group, self.rig.hosted().topic_id, 0))

    async def start_of(self, group: str) -> int | KafkaCode:
        """Return the offset at which a group begins, or an error."""
        found = await self._get(group)
        return found if isinstance(found, KafkaCode) else self.starts[group]

    async def acquired(self, group: str) -> list[Acquired]:
        found = await (await self.led(group)).fetch("m", 1 << 20, 1_000, is_exact=False)
        assert isinstance(found, Fetched), found
        return found.acquired


class _Groups:
    on_share_effect: Any = None


@asynccontextmanager
async def serving(rig: Rig) -> AsyncIterator[Place]:
    place = Place(rig)
    async with asyncio.TaskGroup() as tasks:
        place.shares.start(tasks, rig.cluster.image)
        try:
            yield place
        finally:
            await place.shares.close()


@pytest.fixture
async def place(rig: Rig) -> AsyncIterator[Place]:
    upgrade = lambda image: upgrade_feature(image, METADATA_VERSION, None, validate_only=False)  # noqa: E731
    assert rig.cluster.execute(upgrade).outcome.ok
    await rig.create((1,))
    async with serving(rig) as place:
        yield place


# -- the start offset of a new share group


async def test_a_new_share_group_begins_at_the_offset_reset_of_its_own_config_or_of_the_cluster(place: Place) -> None:
    await place.write(0, 0, 0)
    await place.give("old", share_auto_offset_reset="earliest")
    assert await place.start_of("old") == 0
    assert await place.start_of("new") == 3
    await place.give(CLUSTER, share_auto_offset_reset="earliest")
    await place.give("late", share_auto_offset_reset="latest")
    assert await place.start_of("another") == 0
    assert await place.start_of("late") == 3


@pytest.mark.parametrize(
    ("duration", "start"),
    [
        ("PT0S", 4),
        ("PT30S", 4),
        ("PT1M", 3),
        ("PT10M", 2),
        ("PT59M59.999S", 2),
        ("PT1H", 1),
        ("P1D", 0),
        ("P99999D", 0),
    ],
)
async def test_a_share_group_that_resets_by_duration_begins_at_the_first_record_within_that_duration(
    place: Place, duration: str, start: int
) -> None:
    """The records are 2 h, 1 h, 10 min and 1 min old.  A group begins at the end if all are older."""
    await place.write(120 * MINUTE_MS, 60 * MINUTE_MS, 10 * MINUTE_MS, MINUTE_MS)
    await place.give("aged", share_auto_offset_reset=f"by_duration:{duration}")
    assert await place.start_of("aged") == start


async def test_a_changed_offset_reset_does_not_move_a_start_offset_that_is_already_stored(place: Place) -> None:
    await place.write(0, 0)
    assert await place.start_of("work") == 2
    await place.give("work", share_auto_offset_reset="earliest")
    place.shares.partitions.drop(ShareKey("work", place.rig.hosted().topic_id, 0))
    assert await place.start_of("work") == 2


async def test_a_disk_that_fails_during_the_search_by_age_takes_the_log_offline(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fails(timestamp_ms: int, up_to_offset: int) -> None:
        raise DiskError("a bad sector")

    await place.write(0)
    await place.give("aged", share_auto_offset_reset="by_duration:PT1H")
    monkeypatch.setattr(place.rig.log, "offset_for_timestamp", fails)
    assert await place.start_of("aged") is KafkaCode.NOT_LEADER_OR_FOLLOWER, "the member asks the next leader"
    assert place.rig.hosted().offline
    assert not place.starts


# -- share partitions that are in use


async def test_changed_configs_of_a_group_apply_only_to_its_own_loaded_share_partitions(place: Place) -> None:
    await place.give("work", share_auto_offset_reset="earliest")
    await place.give("rest", share_auto_offset_reset="earliest")
    work, rest = await place.led("work"), await place.led("rest")
    assert work.core is not None
    assert rest.core is not None
    before = rest.core.limits
    assert (before.lock_ms, before.delivery_count_max, before.max_in_flight) == (30_000, 5, 2_000)
    await place.give(
        "work",
        share_record_lock_duration_ms="15000",
        share_delivery_count_limit="2",
        share_partition_max_record_locks="100",
        share_renew_acknowledge_enable="false",
    )
    now = work.core.limits
    assert (before.may_renew, now.may_renew) == (True, False)
    assert (now.lock_ms, now.delivery_count_max, now.max_in_flight) == (15_000, 2, 100)
    assert rest.core.limits == before
    assert (place.shares.lock_ms("work"), place.shares.lock_ms("rest")) == (15_000, 30_000)
    await place.give("work", share_record_lock_duration_ms=None)
    await place.give(CLUSTER, group_share_record_lock_duration_ms="20000")
    assert (place.shares.lock_ms("work"), rest.core.limits.lock_ms) == (20_000, 20_000)


async def test_a_group_locks_at_most_its_configured_number_of_records(place: Place) -> None:
    await place.give("work", share_auto_offset_reset="earliest", share_partition_max_record_locks="100")
    await place.give("rest", share_auto_offset_reset="earliest")
    await place.write(*[0] * 150)
    assert await place.acquired("work") == [Acquired(0, 100, 1)]
    assert await place.acquired("work") == []
    assert await place.acquired("rest") == [Acquired(0, 150, 1)]
    await place.give("work", share_partition_max_record_locks="130")
    assert await place.acquired("work") == [Acquired(100, 130, 1)]


async def test_a_changed_isolation_level_of_a_group_applies_to_its_loaded_share_partition(place: Place) -> None:
    await place.give("work", share_auto_offset_reset="earliest", share_isolation_level="read_committed")
    work, rest = await place.led("work"), await place.led("rest")
    assert (work.config.read_committed, rest.config.read_committed) == (True, False)
    await place.give("work", share_isolation_level=None)
    assert not work.config.read_committed


# -- the coordinator's limits


CONSUMER, SHARE = ConsumerLimits(), ShareGroupLimits()


async def test_a_group_without_configs_has_the_limits_of_the_cluster(place: Place) -> None:
    await place.give("others", share_session_timeout_ms="50000")
    assert place.configs.consumer("g", CONSUMER) is CONSUMER
    assert place.configs.share("g", SHARE) is SHARE


async def test_a_group_uses_its_own_timeouts_and_the_clusters_values_for_the_rest(place: Place) -> None:
    await place.give(
        "g",
        consumer_session_timeout_ms="50000",
        consumer_heartbeat_interval_ms="6000",
        consumer_assignment_interval_ms="0",
        share_session_timeout_ms="51000",
    )
    consumer, share = place.configs.consumer("g", CONSUMER), place.configs.share("g", SHARE)
    assert (consumer.session_timeout_ms, consumer.heartbeat_interval_ms) == (50_000, 6_000)
    assert consumer.assignment_interval_ms == 0
    assert (share.session_timeout_ms, share.heartbeat_interval_ms) == (51_000, 5_000)
    assert (consumer.members_max, share.members_max) == (CONSUMER.members_max, SHARE.members_max)


async def test_a_group_uses_the_clusters_times_if_its_session_would_end_before_its_next_heartbeat(place: Place) -> None:
    """The cluster's ranges may change after a group has set its times."""
    await place.give("g", share_heartbeat_interval_ms="15000", share_session_timeout_ms="45000")
    await place.give(CLUSTER, group_share_max_session_timeout_ms="9000", group_share_min_session_timeout_ms="8000")
    found = place.configs.share("g", SHARE)
    assert (found.session_timeout_ms, found.heartbeat_interval_ms) == (45_000, 5_000)


async def test_a_group_coordinator_applies_the_configs_of_each_group(place: Place) -> None:
    groups = GroupCoordinators(place.rig.role.table, cast(Any, None), cast(Any, None), Sources.real())
    await place.give("g", share_session_timeout_ms="51000")
    step = groups._machine()._new_step(0)
    assert step.share_limits("g").session_timeout_ms == 51_000
    assert step.share_limits("h") == GroupLimits().share
