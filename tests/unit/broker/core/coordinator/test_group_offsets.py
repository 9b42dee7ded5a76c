"""Committed offsets: commits, fetches, deletions, expiry."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from broker.core.coordinator import group_requests as g
from broker.core.coordinator import records as r
from broker.core.coordinator.client import Client
from broker.core.coordinator.fields import BadRecord
from broker.core.coordinator.machine import Record
from broker.core.coordinator.offsets import Offsets
from broker.core.coordinator.subscription import subscribed_topics
from tests.unit.broker.core.coordinator.driver import (
    DELAY_MS,
    GROUP,
    LIMITS,
    SESSION_MS,
    WALL_MS,
    Coordinator,
    Member,
    subscription,
    topic_id,
)

RETENTION_MS = LIMITS.offsets_retention_ms
INTERVAL_MS = LIMITS.expiry_interval_ms


@pytest.fixture
def coordinator() -> Coordinator:
    return Coordinator()


@pytest.fixture
def member(coordinator: Coordinator) -> Member:
    """The only member of a stable group, subscribed to `sales`."""
    member = Member(coordinator, "a")
    coordinator.stable(member)
    return member


def live(member: Member, elapsed_ms: int) -> None:
    """Let time pass while the member sends heartbeats."""
    for _ in range(elapsed_ms // (SESSION_MS // 2)):
        member.coordinator.pass_time(SESSION_MS // 2)
        assert member.heartbeat() == "NONE"


# -- commit and fetch


def test_a_simple_consumer_commits_without_a_group(coordinator: Coordinator) -> None:
    offset = g.OffsetToCommit("sales", 3, 42, leader_epoch=5, metadata="note")
    assert coordinator.commit(offset) == ["NONE"]
    (fetched,) = coordinator.ask(
        g.OffsetFetch((g.GroupToFetch(GROUP, (g.TopicPartitions("sales", (3, 4)),)),), require_stable=True)
    ).groups
    assert fetched.offsets == (
        g.FetchedOffset("sales", 3, 42, 5, "note"),
        g.FetchedOffset("sales", 4, g.NO_OFFSET, -1, ""),
    )
    assert coordinator.state() == "Empty"
    assert r.read_offset(coordinator.log[0].value or b"") == r.OffsetValue(
        42, 5, "note", WALL_MS, topic_id=topic_id("sales")
    )


def test_a_member_commits_in_its_generation_and_renews_its_session(member: Member) -> None:
    coordinator = member.coordinator
    coordinator.pass_time(SESSION_MS - 1)
    assert member.commit(7) == "NONE"
    coordinator.pass_time(SESSION_MS - 1)
    assert member.heartbeat() == "NONE"
    assert coordinator.offsets() == {("sales", 0): 7}


def test_a_member_may_commit_while_the_others_join(member: Member) -> None:
    Member(member.coordinator, "b").send_join()
    assert member.commit(7) == "NONE"


def test_a_member_may_not_commit_before_its_assignment(member: Member) -> None:
    assert member.join().generation == 2
    assert member.commit(7) == "REBALANCE_IN_PROGRESS"
    assert member.coordinator.offsets() == {}


def test_a_simple_consumer_may_not_commit_for_a_group_with_members(member: Member) -> None:
    assert member.coordinator.commit(g.OffsetToCommit("sales", 0, 1)) == ["UNKNOWN_MEMBER_ID"]


def test_a_simple_consumer_may_commit_for_an_emptied_group(member: Member) -> None:
    member.leave()
    assert member.coordinator.commit(g.OffsetToCommit("sales", 0, 1)) == ["NONE"]
    assert member.commit(7) == "UNKNOWN_MEMBER_ID"


def test_a_refused_offset_does_not_affect_the_others(coordinator: Coordinator) -> None:
    errors = coordinator.commit(
        g.OffsetToCommit("sales", 0, 1),
        g.OffsetToCommit("sales", 1, 1, metadata="ä" * (LIMITS.offset_metadata_max_bytes // 2 + 1)),
        g.OffsetToCommit("sales", 99, 1),
        g.OffsetToCommit("sales", 2, -1),
        g.OffsetToCommit("sales", 3, 0, metadata="x" * LIMITS.offset_metadata_max_bytes),
    )
    assert errors == ["NONE", "OFFSET_METADATA_TOO_LARGE", "UNKNOWN_TOPIC_OR_PARTITION", "OFFSET_OUT_OF_RANGE", "NONE"]
    assert coordinator.offsets() == {("sales", 0): 1, ("sales", 3): 0}


def test_a_commit_that_does_not_fit_into_a_batch_changes_nothing() -> None:
    coordinator = Coordinator(replace(LIMITS, batch_max_bytes=10_000))
    offsets = [g.OffsetToCommit("sales", index, 1, metadata="x" * 1_000) for index in range(10)]
    assert coordinator.commit(*offsets) == ["INVALID_COMMIT_OFFSET_SIZE"] * 10
    assert coordinator.log == []
    assert coordinator.commit(*offsets[:9]) == ["NONE"] * 9


def test_the_numbers_of_offsets_and_of_groups_are_limited() -> None:
    coordinator = Coordinator(replace(LIMITS, offsets_max=2, groups_max=2))
    one, other = g.OffsetToCommit("sales", 0, 1), g.OffsetToCommit("sales", 1, 1)
    assert coordinator.commit(one, other, g.OffsetToCommit("sales", 2, 1)) == ["POLICY_VIOLATION"] * 3
    assert coordinator.commit(one, group="a") == ["NONE"]
    assert coordinator.commit(one, group="b") == ["NONE"]
    assert coordinator.commit(one, group="c") == ["POLICY_VIOLATION"]
    assert coordinator.commit(other, group="a") == ["POLICY_VIOLATION"]
    assert coordinator.commit(one, group="a") == ["NONE"], "an offset that exists may be moved"


def test_a_fetch_of_all_offsets_returns_them_sorted_and_none_for_a_missing_group(coordinator: Coordinator) -> None:
    places = [("b", 1), ("a", 9), ("b", 0), ("a", 2)]
    coordinator.commit(*(g.OffsetToCommit(topic, partition, 1) for topic, partition in places))
    assert list(coordinator.offsets()) == sorted(places)
    assert coordinator.offsets("nobody") == {}


def test_a_topic_name_too_long_for_a_record_has_no_offset(coordinator: Coordinator) -> None:
    coordinator.commit(g.OffsetToCommit("sales", 0, 1))
    topics = (g.TopicPartitions("t" * 40_000, (0,)),)
    (fetched,) = coordinator.ask(g.OffsetFetch((g.GroupToFetch(GROUP, topics),))).groups
    assert fetched.offsets[0].offset == g.NO_OFFSET
    assert coordinator.commit(g.OffsetToCommit("t" * 40_000, 0, 1)) == ["UNKNOWN_TOPIC_OR_PARTITION"]
    coordinator.cluster.missing.add("t" * 40_000)
    (deleted,) = coordinator.ask(g.OffsetDelete(GROUP, topics)).results
    assert deleted.error.name == "UNKNOWN_TOPIC_OR_PARTITION"


def test_a_group_id_that_is_too_long_is_refused(coordinator: Coordinator) -> None:
    name = "g" * (LIMITS.name_max_bytes + 1)
    assert coordinator.commit(g.OffsetToCommit("sales", 0, 1), group=name) == ["INVALID_GROUP_ID"]
    assert coordinator.commit(g.OffsetToCommit("sales", 0, 1), group="") == ["NONE"]


# -- deletion


def test_offsets_of_a_subscribed_topic_are_not_deleted(member: Member) -> None:
    coordinator = member.coordinator
    member.commit(1)
    member.commit(2, topic="other")
    topics = (g.TopicPartitions("sales", (0,)), g.TopicPartitions("other", (0, 1, 50)))
    answer = coordinator.ask(g.OffsetDelete(GROUP, topics))
    errors = ["GROUP_SUBSCRIBED_TO_TOPIC", "NONE", "NONE", "UNKNOWN_TOPIC_OR_PARTITION"]
    assert [each.error.name for each in answer.results] == errors
    assert coordinator.offsets() == {("sales", 0): 1}
    assert coordinator.reload().offsets() == {("sales", 0): 1}


def test_member_metadata_that_is_not_a_subscription_protects_all_offsets_from_deletion(
    coordinator: Coordinator,
) -> None:
    member = Member(coordinator, "a")
    member.protocols = (g.MemberProtocol("range", b"\0\0\x7f\xff\xff\xff"),)
    coordinator.stable(member)
    member.commit(1)
    answer = coordinator.ask(g.OffsetDelete(GROUP, (g.TopicPartitions("sales", (0,)),)))
    assert answer.results[0].error.name == "GROUP_SUBSCRIBED_TO_TOPIC"


def test_offsets_of_a_group_with_members_of_another_protocol_type_are_not_deleted(coordinator: Coordinator) -> None:
    worker = Member(coordinator, "w")
    worker.protocol_type = "connect"
    coordinator.stable(worker)
    answer = coordinator.ask(g.OffsetDelete(GROUP, (g.TopicPartitions("sales", (0,)),)))
    assert (answer.error.name, answer.results) == ("NON_EMPTY_GROUP", ())
    missing = coordinator.ask(g.OffsetDelete("nobody", (g.TopicPartitions("sales", (0,)),)))
    assert missing.error.name == "GROUP_ID_NOT_FOUND"


def test_only_a_group_without_members_is_deleted(member: Member) -> None:
    coordinator = member.coordinator
    member.commit(1)
    assert coordinator.delete(GROUP, "nobody") == ["NON_EMPTY_GROUP", "GROUP_ID_NOT_FOUND"]
    member.leave()
    assert coordinator.delete(GROUP) == ["NONE"]
    for each in (coordinator, coordinator.reload()):
        assert each.state() == "Dead"
        assert each.offsets() == {}


def test_a_large_group_is_deleted_in_slices_and_refuses_requests_meanwhile() -> None:
    coordinator = Coordinator(replace(LIMITS, batch_max_bytes=10_000))
    for topic in range(60):
        names = [g.OffsetToCommit(f"topic-{topic}", partition, 1) for partition in range(10)]
        coordinator.commit(*names)
    written = len(coordinator.log)
    call = coordinator.send(g.DeleteGroups((GROUP, "nobody")))
    assert coordinator.waits(call)
    assert coordinator.commit(g.OffsetToCommit("topic-0", 0, 2)) == ["COORDINATOR_NOT_AVAILABLE"]
    assert Member(coordinator, "a").join_error() == "COORDINATOR_NOT_AVAILABLE"
    assert coordinator.delete(GROUP) == ["GROUP_ID_NOT_FOUND"]
    (fetched,) = coordinator.ask(g.OffsetFetch((g.GroupToFetch(GROUP, None),))).groups
    assert (fetched.error.name, fetched.offsets) == ("COORDINATOR_LOAD_IN_PROGRESS", ())
    coordinator.pass_time(100)
    assert [each.error.name for each in coordinator.answers[call].groups] == ["NONE", "GROUP_ID_NOT_FOUND"]
    assert len(coordinator.log) == written + 600
    assert coordinator.state() == "Dead"
    assert coordinator.commit(g.OffsetToCommit("topic-0", 0, 2)) == ["NONE"]


def test_the_deletion_of_a_group_continues_when_its_client_disconnects() -> None:
    coordinator = Coordinator(replace(LIMITS, batch_max_bytes=10_000))
    for topic in range(60):
        coordinator.commit(*(g.OffsetToCommit(f"topic-{topic}", partition, 1) for partition in range(10)))
    call = coordinator.send(g.DeleteGroups((GROUP,)))
    coordinator.hang_up(call)
    coordinator.pass_time(100)
    assert coordinator.waits(call)
    assert coordinator.state() == "Dead"


def test_offsets_of_a_deleted_topic_are_deleted_in_slices() -> None:
    coordinator = Coordinator(replace(LIMITS, batch_max_bytes=10_000))
    for group in range(100):
        offsets = [g.OffsetToCommit(topic, index, 1) for topic in ("sales", "other") for index in range(10)]
        coordinator.commit(*offsets, group=f"group-{group}")
    assert 0 < len(coordinator.delete_topics(["sales"]).records) < 1_000
    refused = coordinator.commit(g.OffsetToCommit("sales", 0, 9), group="group-99")
    assert refused == ["COORDINATOR_LOAD_IN_PROGRESS"], "the topic may have been created again"
    coordinator.delete_topics(["third"])
    coordinator.pass_time(1_000)
    assert coordinator.commit(g.OffsetToCommit("sales", 0, 9), group="group-99") == ["NONE"]
    for each in (coordinator, coordinator.reload()):
        assert {topic for topic, _ in each.offsets("group-50")} == {"other"}
        assert each.offsets("group-99")["sales", 0] == 9


def test_a_new_coordinator_deletes_in_slices_the_offsets_of_topics_deleted_before_its_load() -> None:
    coordinator = Coordinator()
    for group in range(100):
        offsets = [g.OffsetToCommit(topic, index, 1) for topic in ("sales", "other") for index in range(10)]
        coordinator.commit(*offsets, group=f"group-{group}")
    coordinator.cluster.missing.add("sales")
    after = coordinator.reload(replace(LIMITS, batch_max_bytes=10_000))
    step = after.take(after.machine.tick(after.now_ms))
    assert 0 < len(step.records) < 1_000
    after.pass_time(1_000)
    after.cluster.missing.clear()
    for each in (after, after.reload()):
        left = {topic for group in range(100) for topic, _ in each.offsets(f"group-{group}")}
        assert left == {"other"}


def test_a_new_coordinator_completes_the_deletion_of_offsets_that_its_predecessor_began() -> None:
    coordinator = Coordinator(replace(LIMITS, batch_max_bytes=10_000))
    for group in range(100):
        coordinator.commit(*(g.OffsetToCommit("sales", index, 1) for index in range(10)), group=f"group-{group}")
    coordinator.cluster.missing.add("sales")
    assert 0 < len(coordinator.delete_topics(["sales"]).records) < 1_000
    after = coordinator.reload()
    assert after.offsets("group-99")
    after.pass_time(100)
    assert after.offsets("group-99") == {}


def test_the_search_for_missing_topics_keeps_a_commit_to_a_topic_that_was_created_meanwhile() -> None:
    coordinator = Coordinator()
    coordinator.commit(g.OffsetToCommit("sales", 0, 1), g.OffsetToCommit("other", 0, 1))
    coordinator.cluster.missing.update(("sales", "other"))
    after = coordinator.reload()
    after.cluster.missing.remove("sales")
    after.commit(g.OffsetToCommit("sales", 0, 9))
    after.pass_time(100)
    assert after.offsets() == {("sales", 0): 9}


# -- expiry


def test_offsets_of_a_subscribed_topic_do_not_expire_while_the_group_has_members(member: Member) -> None:
    member.coordinator.machine.configure(replace(LIMITS, offsets_retention_ms=60_000), member.coordinator.now_ms)
    member.commit(1)
    live(member, 2 * INTERVAL_MS)
    assert member.coordinator.offsets() == {("sales", 0): 1}


def test_offsets_of_a_group_with_members_expire_when_no_member_subscribes_to_the_topic(member: Member) -> None:
    member.coordinator.machine.configure(replace(LIMITS, offsets_retention_ms=60_000), member.coordinator.now_ms)
    member.commit(1, topic="other")
    member.commit(2)
    live(member, INTERVAL_MS + SESSION_MS)
    assert member.coordinator.offsets() == {("sales", 0): 2}


def test_offsets_expire_when_their_group_has_been_empty_for_the_retention(member: Member) -> None:
    coordinator = member.coordinator
    member.commit(1)
    live(member, RETENTION_MS // 1_000)
    member.leave()
    coordinator.pass_time(RETENTION_MS - INTERVAL_MS)
    assert coordinator.offsets() == {("sales", 0): 1}
    coordinator.pass_time(2 * INTERVAL_MS)
    for each in (coordinator, coordinator.reload()):
        assert each.offsets() == {}
        assert each.state() == "Dead"


def test_the_time_since_a_group_is_empty_survives_a_change_of_the_coordinator(member: Member) -> None:
    coordinator = member.coordinator
    member.commit(1)
    coordinator.wall_ms += RETENTION_MS
    member.leave()
    after = coordinator.reload()
    after.pass_time(2 * INTERVAL_MS)
    assert after.offsets() == {("sales", 0): 1}
    after.wall_ms += RETENTION_MS
    after.pass_time(2 * INTERVAL_MS)
    assert after.offsets() == {}


def test_an_offset_set_for_a_long_empty_group_has_the_whole_retention(member: Member) -> None:
    coordinator = member.coordinator
    member.leave()
    coordinator.wall_ms += 2 * RETENTION_MS
    coordinator.commit(g.OffsetToCommit("sales", 0, 1))
    coordinator.pass_time(2 * INTERVAL_MS)
    assert coordinator.offsets() == {("sales", 0): 1}


def test_offsets_of_simple_consumers_expire_after_their_commit(coordinator: Coordinator) -> None:
    coordinator.commit(g.OffsetToCommit("sales", 0, 1))
    coordinator.pass_time(RETENTION_MS // 2)
    coordinator.commit(g.OffsetToCommit("sales", 1, 1))
    coordinator.pass_time(RETENTION_MS // 2 + INTERVAL_MS)
    assert coordinator.offsets() == {("sales", 1): 1}
    coordinator.pass_time(RETENTION_MS)
    assert coordinator.state() == "Dead"


def test_a_jump_of_the_wall_clock_expires_no_offset(coordinator: Coordinator, member: Member) -> None:
    coordinator.commit(g.OffsetToCommit("sales", 1, 5), group="simple")
    member.commit(7)
    member.leave()
    coordinator.jump_ms = 10 * RETENTION_MS
    coordinator.pass_time(2 * INTERVAL_MS)
    assert coordinator.offsets("simple") == {("sales", 1): 5}
    assert coordinator.offsets() == {("sales", 0): 7}


def test_an_offset_expires_at_the_end_of_its_retention(coordinator: Coordinator) -> None:
    assert RETENTION_MS % INTERVAL_MS == 0, "a search takes place at the very end"
    coordinator.commit(g.OffsetToCommit("sales", 0, 1))
    coordinator.pass_time(RETENTION_MS - 1)
    assert coordinator.offsets() == {("sales", 0): 1}
    coordinator.pass_time(1)
    assert coordinator.machine._offsets.count == 0


def test_an_offset_with_its_own_retention_time_expires_after_that_time(coordinator: Coordinator) -> None:
    coordinator.commit(g.OffsetToCommit("sales", 0, 1), retention_ms=INTERVAL_MS)
    coordinator.commit(g.OffsetToCommit("sales", 1, 1), retention_ms=2 * RETENTION_MS)
    coordinator.pass_time(2 * INTERVAL_MS)
    assert coordinator.offsets() == {("sales", 1): 1}
    coordinator.pass_time(RETENTION_MS + INTERVAL_MS)
    assert coordinator.offsets() == {("sales", 1): 1}
    coordinator.pass_time(RETENTION_MS)
    assert coordinator.offsets() == {}


def test_an_offset_with_the_largest_retention_time_does_not_expire(coordinator: Coordinator) -> None:
    assert coordinator.commit(g.OffsetToCommit("sales", 0, 1), retention_ms=2**63 - 1) == ["NONE"]
    coordinator.pass_time(2 * RETENTION_MS)
    assert coordinator.offsets() == {("sales", 0): 1}


def may_delete(coordinator: Coordinator, topic: str) -> bool:
    answer = coordinator.ask(g.OffsetDelete(GROUP, (g.TopicPartitions(topic, (0,)),)))
    return bool(answer.results[0].error.name == "NONE")


def test_a_changed_subscription_protects_the_offsets_of_the_new_topics_from_deletion(member: Member) -> None:
    coordinator = member.coordinator
    assert (may_delete(coordinator, "sales"), may_delete(coordinator, "other")) == (False, True)
    member.protocols = (g.MemberProtocol("range", subscription("other")),)
    member.join()
    assert (may_delete(coordinator, "sales"), may_delete(coordinator, "other")) == (True, False)


def test_the_changed_subscription_of_a_restarted_static_member_protects_its_new_topics(
    coordinator: Coordinator,
) -> None:
    coordinator.stable(Member(coordinator, "a", instance_id="one"))
    assert (may_delete(coordinator, "sales"), may_delete(coordinator, "other")) == (False, True)
    assert Member(coordinator, "a", ("other",), instance_id="one").join_error() == "NONE"
    assert (may_delete(coordinator, "sales"), may_delete(coordinator, "other")) == (True, False)


def test_the_chosen_protocol_decides_which_offsets_are_protected(coordinator: Coordinator) -> None:
    first, second = Member(coordinator, "a"), Member(coordinator, "b")
    sticky, ranged = g.MemberProtocol("sticky", subscription("sales")), g.MemberProtocol("range", subscription("other"))
    first.protocols, second.protocols = (sticky, ranged), (ranged,)
    coordinator.stable(first, second)
    assert first.joined.protocol == "range"
    assert (may_delete(coordinator, "sales"), may_delete(coordinator, "other")) == (True, False)
    second.leave()
    assert (may_delete(coordinator, "sales"), may_delete(coordinator, "other")) == (False, False)
    first.join()
    assert first.joined.protocol == "sticky"
    assert (may_delete(coordinator, "sales"), may_delete(coordinator, "other")) == (False, True)


def test_the_topics_of_all_protocols_are_protected_until_one_protocol_is_chosen(coordinator: Coordinator) -> None:
    member = Member(coordinator, "a")
    member.protocols = (g.MemberProtocol("sticky", subscription("sales")), g.MemberProtocol("x", subscription("other")))
    member.send_join()
    assert (may_delete(coordinator, "sales"), may_delete(coordinator, "other")) == (False, False)
    coordinator.pass_time(DELAY_MS)
    assert (may_delete(coordinator, "sales"), may_delete(coordinator, "other")) == (False, True)


def test_no_offset_expires_during_a_rebalance(member: Member) -> None:
    coordinator = member.coordinator
    coordinator.machine.configure(replace(LIMITS, offsets_retention_ms=1, expiry_interval_ms=1_000), coordinator.now_ms)
    member.commit(1, topic="other")
    Member(coordinator, "b").send_join()
    coordinator.pass_time(5_000)
    assert coordinator.state() == "PreparingRebalance"
    assert coordinator.offsets() == {("other", 0): 1}


def test_an_empty_group_stays_while_a_member_is_about_to_join(member: Member) -> None:
    coordinator = member.coordinator
    member.leave()
    coordinator.machine.configure(replace(LIMITS, expiry_interval_ms=1), coordinator.now_ms)
    client = Client("b", "/h")
    request = g.JoinGroup(GROUP, "", None, client, "consumer", member.protocols, SESSION_MS, 1_000)
    given = coordinator.ask(request).member_id
    coordinator.pass_time(1_000)
    call = coordinator.send(replace(request, member_id=given))
    coordinator.pass_time(DELAY_MS)
    assert coordinator.answers[call].generation == 3


# -- records


def test_damaged_records_are_refused_and_change_nothing() -> None:
    offsets = Offsets()
    place = r.offset_rest("t", 1)
    value = r.write_offset(r.OffsetValue(1, 1, "ok", 1))
    damaged = [(b"g", place, value[:-1]), (b"\xff", place, value), (b"g", b"\0\1\xff\0\0\0\1", value)]
    damaged.append((b"g", place, value[:16] + b"\xff\xff" + value[18:]))
    for each in damaged:
        with pytest.raises(BadRecord):
            offsets.apply(*each)
    assert (offsets.count, offsets.group_count, offsets.groups()) == (0, 0, [])
    offsets.apply(b"g", place, value)
    with pytest.raises(BadRecord):
        offsets.apply(b"g", b"\0\1\xff\0\0\0\1", value)
    assert offsets.count == 1


def test_a_damaged_key_is_refused() -> None:
    key = r.write_key(r.OffsetKey("g", "t", 1))
    assert r.split_offset_key(key) == (b"g", r.offset_rest("t", 1))
    assert r.offset_key(b"g", r.offset_rest("t", 1)) == key
    assert r.split_offset_key(r.write_key(r.GroupKey("a long name of a group"))) is None
    for bad in (*(key[:size] for size in range(len(key))), key + b"\0", b"\0\1\xff\xff" + key[4:]):
        with pytest.raises(BadRecord):
            r.split_offset_key(bad)


def test_a_record_of_an_unknown_type_is_counted() -> None:
    coordinator = Coordinator(records=[Record(b"\0\x12\0\1g", b"\0\0"), Record(b"\0\x11a long key of some type", None)])
    assert coordinator.machine.unknown_records == 2


def test_the_times_of_an_offset_are_read_with_and_without_an_expiry_time() -> None:
    assert r.offset_times(r.write_offset(r.OffsetValue(1, 1, "m", 77))) == (77, r.NO_TIME)
    assert r.offset_times(r.write_offset(r.OffsetValue(1, 1, "m", 77, 99))) == (77, 99)


@pytest.mark.parametrize(
    ("metadata", "topics"),
    [
        (subscription(), frozenset()),
        (subscription("a", "b"), {"a", "b"}),
        (subscription("a") + b"fields of later versions", {"a"}),
        (b"\0\x07" + subscription("a")[2:], {"a"}),
        (b"\xff\xff" + subscription("a")[2:], None),
        (subscription("a")[:8], None),
        (b"", None),
        (b"\0\0\x7f\xff\xff\xff\0\1a", None),
        (b"\0\0\0\0\0\1\0\2\xff\xff", None),
    ],
)
def test_the_topics_of_a_subscription_are_read_unless_it_is_damaged(metadata: bytes, topics: set[str] | None) -> None:
    assert subscribed_topics(metadata) == topics
