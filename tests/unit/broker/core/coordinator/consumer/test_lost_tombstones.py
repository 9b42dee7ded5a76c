"""Logs that lack records of departed members, because the replica was behind while other replicas compacted.

Such a replica has the records from before its gap.  It lacks every record of the gap, even a tombstone, that compaction
has removed meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import permutations

import pytest

from broker.core.coordinator.client import Client
from broker.core.coordinator.consumer.records import ConsumerKey, Kind, read_key
from broker.core.coordinator.group_requests import ListGroups
from broker.core.coordinator.share.requests import ShareHeartbeat
from tests.unit.broker.core.coordinator.consumer.driver import (
    SESSION_MS,
    ConsumerClient,
    coordinator,
    described,
    go_on,
    group_of,
    joined,
)
from tests.unit.broker.core.coordinator.driver import GROUP, Coordinator, Member


def after_a_gap(home: Coordinator, begin: int, *, end: int | None = None, tombstones: bool = False) -> Coordinator:
    """Return a coordinator with the log of a replica whose gap begins and ends at these positions of the log.

    tombstones: whether the log still has the tombstones of the gap.
    """
    end = len(home.log) if end is None else end
    last = {record.key: position for position, record in enumerate(home.log)}
    kept = [
        record
        for position, record in enumerate(home.log)
        if not begin <= position < end or (last[record.key] == position and (record.value is not None or tombstones))
    ]
    return Coordinator(records=kept, cluster=home.cluster)


def records_of(home: Coordinator, member_id: str) -> dict[Kind, bytes | None]:
    """Return the value of the last record of each kind of a member."""
    keys = [(read_key(record.key), record.value) for record in home.log]
    return {key.kind: value for key, value in keys if isinstance(key, ConsumerKey) and key.name == member_id}


def member_and_newcomer(sales: int) -> tuple[Coordinator, ConsumerClient, ConsumerClient]:
    """Return a coordinator, the only member of its group, and a client that has not joined yet."""
    home = coordinator(sales=sales)
    first, second = ConsumerClient(home, "m1"), ConsumerClient(home, "m2")
    joined(home, first)
    return home, first, second


def test_a_departed_member_is_dropped_if_another_member_has_its_partitions() -> None:
    home, first, second = member_and_newcomer(sales=4)
    begin = len(home.log)
    first.leave()
    joined(home, second)
    after = after_a_gap(home, begin)
    assert described(after) == described(home)
    assert set(records_of(after, "m1").values()) == {None}, "the next load does not find the member again"
    second.coordinator = after
    assert second.beat() == "NONE"
    assert second.has == {("sales", index) for index in range(4)}


def test_a_member_keeps_a_partition_whose_old_owner_is_still_a_member() -> None:
    """The log lacks only the record with which the old owner gave the partition up; a later record replaced it."""
    home, first, second = member_and_newcomer(sales=2)
    begin = len(home.log)
    second.join()
    first.silent_beat()
    first.beat()
    end = len(home.log)
    second.beat()
    assert second.has == {("sales", 1)}
    home.change_topics(other=1)
    second.subscribe("sales", "other")
    go_on(second, first)
    after = after_a_gap(home, begin, end=end)
    assert described(after) == described(home)
    assert described(after).state == "Stable"


def test_a_departed_member_is_dropped_if_another_member_has_owned_its_partitions_since() -> None:
    home = coordinator(sales=4)
    first, second = ConsumerClient(home, "m1"), ConsumerClient(home, "m2", ("sales", "other"))
    joined(home, first)
    begin = len(home.log)
    first.leave()
    joined(home, second)
    end = len(home.log)
    second.subscribe("other")
    joined(home, second)
    assert described(after_a_gap(home, begin, end=end)) == described(home)


def test_a_departed_static_member_is_dropped_if_another_member_has_its_instance_id() -> None:
    home = coordinator()
    first, second = (ConsumerClient(home, member_id, instance_id="i") for member_id in ("m1", "m2"))
    joined(home, first)
    assert not first.has, "the topic does not exist"
    begin = len(home.log)
    first.leave()
    second.join()
    after = after_a_gap(home, begin)
    assert described(after) == described(home)
    assert group_of(after).static == {"i": "m2"}


def test_a_departed_member_is_dropped_if_another_member_has_its_target_assignment() -> None:
    """The dropped member had a target, but never got its partitions."""
    home, first, second = member_and_newcomer(sales=4)
    second.join()
    assert second.has == set()
    begin = len(home.log)
    second.leave()
    joined(home, first)
    after = after_a_gap(home, begin)
    assert described(after) == described(home)


def test_a_deleted_group_is_not_restored_from_records_of_its_members() -> None:
    """The log has records of its members, but not the record of the group, whose tombstone was written last."""
    home = coordinator(sales=4)
    client = ConsumerClient(home, "m1", (), regex="sal.*")
    joined(home, client)
    begin = len(home.log)
    client.leave()
    home.delete(GROUP)
    after = Coordinator(records=[*home.log[:begin], home.log[-1]], cluster=home.cluster)
    assert listed(after) == []
    last = {record.key: record.value for record in after.log}
    assert set(last.values()) == {None}, "the next load does not find it again"


def test_a_member_of_a_deleted_group_is_not_a_member_of_a_new_group_of_the_same_name() -> None:
    home = coordinator()
    first, second = ConsumerClient(home, "m1"), ConsumerClient(home, "m2")
    joined(home, first, second)
    begin = len(home.log)
    first.leave()
    second.leave()
    home.delete(GROUP)
    joined(home, first)
    after = after_a_gap(home, begin)
    assert described(after) == described(home)
    assert described(after).epoch == 1


def test_a_departed_member_that_no_other_has_replaced_is_removed_at_its_session_timeout() -> None:
    home = coordinator(sales=4)
    client = ConsumerClient(home, "m1")
    joined(home, client)
    begin = len(home.log)
    client.leave()
    after = after_a_gap(home, begin)
    assert group_of(after).members.keys() == {"m1"}
    after.pass_time(SESSION_MS)
    assert described(after).state == "Empty"


def consumer_group() -> Coordinator:
    home = coordinator(sales=4)
    joined(home, ConsumerClient(home, "m1"))
    return home


def classic_group() -> Coordinator:
    home = coordinator(sales=4)
    home.stable(Member(home, "m1"))
    return home


def share_group() -> Coordinator:
    home = coordinator(sales=4)
    answer = home.ask(ShareHeartbeat(GROUP, "m1", 0, Client("m1", "/h"), None, ("sales",)))
    assert answer.error.name == "NONE"
    return home


KINDS: dict[str, Callable[[], Coordinator]] = {
    "consumer": consumer_group,
    "classic": classic_group,
    "share": share_group,
}


def listed(home: Coordinator) -> list[tuple[str, str]]:
    return [(each.group, each.group_type) for each in home.ask(ListGroups()).groups]


@pytest.mark.parametrize(("old", "new"), list(permutations(KINDS, 2)))
def test_a_group_of_another_type_replaces_a_deleted_group_of_the_same_name(old: str, new: str) -> None:
    """The log lacks the tombstones of the deleted group."""
    first, second = KINDS[old](), KINDS[new]()
    after = Coordinator(records=[*first.log, *second.log], cluster=second.cluster)
    assert listed(first) == [(GROUP, old)]
    assert listed(after) == listed(second) == [(GROUP, new)]
