"""Searches for offsets to delete: their slices, their batches, and the close of the machine."""

from __future__ import annotations

import gc
import weakref
from random import Random

import pytest
from msgspec.structs import replace

from broker.core.coordinator import group_requests as g
from broker.core.coordinator.group_machine import GroupMachine
from broker.core.coordinator.machine import Record, Step
from broker.core.coordinator.records import OffsetKey, OffsetValue, write_key, write_offset
from broker.core.coordinator.sweep import OFFSETS_AT_ONCE_MAX, OFFSETS_PER_SLICE_MAX
from tests.unit.broker.core.coordinator.driver import LIMITS, WALL_MS, Cluster, Coordinator, topic_id
from tests.unit.broker.core.coordinator.replays import replay_log

RETENTION_MS = 60_000
LONG = "g" * 300
SMALL = replace(LIMITS, batch_max_bytes=10_000)
"""A batch has room for a few tombstones of the group LONG."""
LARGE = 2 * OFFSETS_AT_ONCE_MAX + 1
"""The number of offsets in the group, of which the last one is to be deleted."""


class Wide(Cluster):
    """Each topic has any number of partitions, except the partitions in `gone`."""

    def __init__(self) -> None:
        super().__init__()
        self.gone: set[tuple[str, int]] = set()

    def has_partition(self, topic: str, partition: int) -> bool:
        return topic not in self.missing and (topic, partition) not in self.gone


def offset(group: str, topic: str, partition: int, commit_ms: int = WALL_MS) -> Record:
    value = OffsetValue(1, -1, "", commit_ms, topic_id=topic_id(topic))
    return Record(write_key(OffsetKey(group, topic, partition)), write_offset(value))


def loaded(records: list[Record], limits: g.GroupLimits = LIMITS) -> Coordinator:
    """Return a coordinator that has searched for offsets of missing partitions."""
    coordinator = Coordinator(limits, records, cluster=Wide())
    finish(coordinator)
    return coordinator


def finish(coordinator: Coordinator) -> None:
    while coordinator.machine._sweeper.is_busy:
        coordinator.pass_time(1)


def tick(coordinator: Coordinator) -> Step:
    coordinator.now_ms += 1
    return coordinator.take(coordinator.machine.tick(coordinator.now_ms))


def left(coordinator: Coordinator) -> set[tuple[str, int]]:
    return {(topic, partition) for topic, partition, _ in coordinator.machine._offsets.all_of("g")}


@pytest.mark.parametrize("why", ["missing partition", "deleted topic", "expired"])
def test_a_search_reaches_each_offset_of_a_large_group(why: str) -> None:
    limits = replace(LIMITS, offsets_retention_ms=RETENTION_MS, expiry_interval_ms=1_000)
    last = offset("g", "other", 0, WALL_MS - RETENTION_MS if why == "expired" else WALL_MS)
    coordinator = loaded([*(offset("g", "sales", number) for number in range(LARGE - 1)), last], limits)
    assert len(left(coordinator)) == LARGE
    match why:
        case "missing partition":
            assert isinstance(coordinator.cluster, Wide)
            coordinator.cluster.gone.add(("other", 0))
            coordinator.take(coordinator.machine.partitions_removed(coordinator.now_ms))
        case "deleted topic":
            coordinator.cluster.missing.add("other")
            coordinator.delete_topics(["other"])
        case _:
            coordinator.pass_time(limits.expiry_interval_ms)
    finish(coordinator)
    assert left(coordinator) == {("sales", number) for number in range(LARGE - 1)}


@pytest.mark.parametrize("per_group", [10, OFFSETS_PER_SLICE_MAX])
def test_a_search_that_deletes_no_offset_is_still_split_into_slices(per_group: int) -> None:
    count = 2 * OFFSETS_PER_SLICE_MAX + 2 * OFFSETS_AT_ONCE_MAX
    records = [offset(f"g{number // per_group}", "sales", number % per_group) for number in range(count)]
    coordinator = Coordinator(records=records, cluster=Wide())
    slices = 0
    while coordinator.machine._sweeper.is_busy:
        slices += 1
        tick(coordinator)
    assert slices == 3
    assert coordinator.machine._offsets.count == count


def test_deletions_of_one_group_stay_within_the_batch_size() -> None:
    coordinator = loaded([offset(LONG, "sales", number) for number in range(OFFSETS_AT_ONCE_MAX)], SMALL)
    coordinator.cluster.missing.add("sales")
    steps = [coordinator.delete_topics(["sales"])]
    while coordinator.machine._sweeper.is_busy:
        steps.append(tick(coordinator))
    assert sum(len(step.records) for step in steps) == OFFSETS_AT_ONCE_MAX
    assert max(sum(len(record.key) for record in step.records) for step in steps) <= SMALL.batch_max_bytes


def test_an_offset_that_was_deleted_meanwhile_gets_no_second_tombstone() -> None:
    coordinator = loaded([offset(LONG, "sales", number) for number in range(OFFSETS_AT_ONCE_MAX)], SMALL)
    coordinator.delete_topics(["sales"])
    last = OFFSETS_AT_ONCE_MAX - 1
    assert coordinator.machine._sweeper.is_busy
    assert coordinator.machine._offsets.value(LONG, "sales", last) is not None
    coordinator.ask(g.OffsetDelete(LONG, (g.TopicPartitions("sales", (last,)),)))
    finish(coordinator)
    tombstones = [record.key for record in coordinator.log if record.value is None]
    assert len(set(tombstones)) == len(tombstones) == OFFSETS_AT_ONCE_MAX


@pytest.mark.parametrize("is_searching", [True, False])
def test_the_sweeper_of_a_closed_machine_is_freed_without_garbage_collection(is_searching: bool) -> None:
    machine = GroupMachine(LIMITS, Wide(), Random(0), lambda: WALL_MS)
    replay_log(machine, [offset("g", "sales", number) for number in range(2 * OFFSETS_PER_SLICE_MAX)])
    machine.loaded(1)
    machine.tick(2)
    if not is_searching:
        machine.tick(3)
        machine.tick(4)
    assert machine._sweeper.is_busy == is_searching
    machine.close()
    sweeper = weakref.ref(machine._sweeper)
    gc.disable()
    try:
        del machine
        assert sweeper() is None, "the sweeper refers to all offsets"
    finally:
        gc.enable()
