"""A topic that was deleted and created again under the same name inherits no committed offset."""

from __future__ import annotations

from uuid import UUID

import pytest
from msgspec.structs import replace

from broker.core.coordinator import group_requests as g
from broker.core.coordinator import records as r
from broker.core.coordinator.sweep import OFFSETS_PER_SLICE_MAX
from broker.core.transactions import Marker, ProducerKey
from tests.unit.broker.core.coordinator.consumer.driver import ConsumerClient
from tests.unit.broker.core.coordinator.consumer.driver import joined as consumers_joined
from tests.unit.broker.core.coordinator.driver import GROUP, LIMITS, WALL_MS, Cluster, Coordinator, Member, topic_id

PRODUCER = ProducerKey(7, 0)


def at(partition: int, offset: int = 42) -> g.OffsetToCommit:
    return g.OffsetToCommit("sales", partition, offset)


def commit_in_transaction(coordinator: Coordinator, offset: g.OffsetToCommit) -> str:
    wanted = g.OffsetCommit(GROUP, "", None, g.NO_GENERATION, (offset,))
    (result,) = coordinator.ask(g.TxnOffsetCommit(wanted, PRODUCER)).results
    return str(result.error.name)


def end_transaction(coordinator: Coordinator) -> None:
    coordinator.ask(g.EndOffsetTransaction(Marker(PRODUCER, True, 0)))


@pytest.fixture
def coordinator() -> Coordinator:
    return Coordinator(cluster=Cluster(sales=4))


# -- while no coordinator is loaded


def test_a_coordinator_that_loads_after_a_topic_was_recreated_has_no_offsets_of_the_deleted_topic(
    coordinator: Coordinator,
) -> None:
    assert coordinator.commit(at(0), at(1), g.OffsetToCommit("other", 0, 9)) == ["NONE"] * 3
    coordinator.cluster.recreate("sales")
    after = coordinator.reload()
    assert after.offsets() == {("other", 0): 9}, "a fetch before the search for missing partitions"
    (fetched,) = after.ask(g.OffsetFetch((g.GroupToFetch(GROUP, (g.TopicPartitions("sales", (0, 1)),)),))).groups
    assert [each.offset for each in fetched.offsets] == [-1, -1]
    after.pass_time(1)
    assert [(record.key, record.value) for record in after.log[len(coordinator.log) :]] == [
        (r.write_key(r.OffsetKey(GROUP, "sales", partition)), None) for partition in (0, 1)
    ]


def test_offsets_of_the_deleted_topic_are_deleted_in_slices_and_never_seen() -> None:
    coordinator = Coordinator()
    for group in range(OFFSETS_PER_SLICE_MAX // 10 + 1):
        assert coordinator.commit(*map(at, range(10)), group=f"g{group}") == ["NONE"] * 10
    coordinator.cluster.recreate("sales")
    after = coordinator.reload()
    after.pass_time(1)
    assert after.machine._sweeper.is_busy
    while after.machine._sweeper.is_busy:
        assert after.offsets("g0") == after.offsets(f"g{OFFSETS_PER_SLICE_MAX // 10}") == {}
        after.pass_time(1)
    assert after.machine._offsets.count == 0


def test_offsets_of_the_recreated_topic_stay(coordinator: Coordinator) -> None:
    coordinator.commit(at(0), at(1))
    coordinator.cluster.recreate("sales")
    after = coordinator.reload()
    assert after.commit(at(0, 5)) == ["NONE"]
    after.pass_time(1)
    assert after.offsets() == {("sales", 0): 5}
    assert after.reload().offsets() == {("sales", 0): 5}


def test_a_topic_that_continues_under_another_id_keeps_its_offsets(coordinator: Coordinator) -> None:
    coordinator.commit(at(0))
    coordinator.cluster.renew("sales")
    after = coordinator.reload()
    after.pass_time(1)
    assert after.offsets() == {("sales", 0): 42}


def test_offsets_of_earlier_releases_have_no_topic_id_and_stay(coordinator: Coordinator) -> None:
    coordinator.commit(at(0))
    (record,) = coordinator.log
    old = Coordinator(
        LIMITS, [replace(record, value=r.write_offset(r.OffsetValue(42, -1, "", WALL_MS)))], cluster=Cluster(sales=4)
    )
    old.pass_time(1)
    assert old.offsets() == {("sales", 0): 42}


def test_groups_of_both_protocols_have_no_offsets_in_a_recreated_topic(coordinator: Coordinator) -> None:
    classic = Member(coordinator, "a", group="classic")
    coordinator.stable(classic)
    assert classic.commit(42) == "NONE"
    consumer = ConsumerClient(coordinator, "m1", group="consumer")
    consumers_joined(coordinator, consumer)
    assert consumer.commit(42) == "NONE"
    coordinator.cluster.recreate("sales")
    after = coordinator.reload()
    assert after.offsets("classic") == after.offsets("consumer") == {}


# -- transactions


def test_a_pending_offset_of_the_deleted_topic_is_not_committed_to_the_recreated_topic(
    coordinator: Coordinator,
) -> None:
    assert commit_in_transaction(coordinator, at(0)) == "NONE"
    coordinator.cluster.recreate("sales")
    after = coordinator.reload()
    after.pass_time(1)
    end_transaction(after)
    assert after.offsets() == {}
    after.pass_time(1)
    assert after.machine._offsets.count == 0, "the offset is deleted as well"
    assert after.reload().offsets() == {}


def test_an_offset_of_the_recreated_topic_survives_the_end_of_an_older_transaction(coordinator: Coordinator) -> None:
    commit_in_transaction(coordinator, at(0))
    coordinator.cluster.recreate("sales")
    after = coordinator.reload()
    assert after.commit(at(0, 5)) == ["NONE"]
    end_transaction(after)
    after.pass_time(1)
    assert after.offsets() == {("sales", 0): 5}


def test_a_transactional_offset_of_the_recreated_topic_is_committed(coordinator: Coordinator) -> None:
    coordinator.commit(at(0))
    coordinator.cluster.recreate("sales")
    after = coordinator.reload()
    assert commit_in_transaction(after, at(0, 5)) == "NONE"
    end_transaction(after)
    after.pass_time(1)
    assert after.offsets() == {("sales", 0): 5}


def test_the_search_for_old_offsets_does_not_undo_an_open_transaction(coordinator: Coordinator) -> None:
    """The newest record of a key wins, so a tombstone after the offset of the transaction would delete that offset."""
    coordinator.commit(at(0))
    coordinator.cluster.recreate("sales")
    after = coordinator.reload()
    assert commit_in_transaction(after, at(0, 5)) == "NONE"
    after.pass_time(1)
    end_transaction(after)
    after.pass_time(1)
    assert after.offsets() == {("sales", 0): 5}
    assert after.reload().offsets() == {("sales", 0): 5}


def test_an_old_offset_that_an_aborted_transaction_did_not_replace_is_deleted(coordinator: Coordinator) -> None:
    coordinator.commit(at(0))
    coordinator.cluster.recreate("sales")
    after = coordinator.reload()
    commit_in_transaction(after, at(0, 5))
    after.pass_time(1)
    coordinator = after
    coordinator.ask(g.EndOffsetTransaction(Marker(PRODUCER, False, 0)))
    assert coordinator.offsets() == {}
    coordinator.pass_time(1)
    assert coordinator.machine._offsets.count == 0


# -- requests that name the topic by its id


def test_a_commit_by_the_id_of_the_deleted_topic_is_refused(coordinator: Coordinator) -> None:
    """The name was resolved before the topic was deleted, and the request waited for its turn."""
    old, new = topic_id("sales"), coordinator.cluster.recreate("sales")
    by_old_id, by_new_id = (at(0)._replace(topic_id=each) for each in (old, new))
    assert coordinator.commit(by_old_id, by_new_id) == ["UNKNOWN_TOPIC_ID", "NONE"]
    coordinator.cluster.missing.add("sales")
    del coordinator.cluster.partitions["sales"]
    assert coordinator.commit(by_new_id) == ["UNKNOWN_TOPIC_ID"]


def test_a_fetch_by_the_id_of_the_deleted_topic_gets_no_offset_of_the_recreated_one(coordinator: Coordinator) -> None:
    old, new = topic_id("sales"), coordinator.cluster.recreate("sales")
    assert coordinator.commit(at(0)) == ["NONE"]

    def fetched(wanted: UUID) -> g.FetchedOffset:
        asked = g.GroupToFetch(GROUP, (g.TopicPartitions("sales", (0,), wanted),))
        (offset,) = coordinator.ask(g.OffsetFetch((asked,))).groups[0].offsets
        assert isinstance(offset, g.FetchedOffset)
        return offset

    assert fetched(old).error.name == "UNKNOWN_TOPIC_ID"
    assert fetched(old).offset == -1
    assert fetched(new).offset == 42


# -- records


def test_the_topic_id_is_stored_in_kafkas_field_of_an_offset_record() -> None:
    value = r.OffsetValue(42, 3, "", 9, topic_id=UUID(int=5))
    written = r.write_offset(value)
    assert written == b"".join(
        (
            *(b"\0\x04", (42).to_bytes(8, "big"), (3).to_bytes(4, "big"), b"\x01", (9).to_bytes(8, "big")),
            *(b"\x01", b"\0", b"\x10", UUID(int=5).bytes),
        )
    )
    assert r.read_offset(written) == value
    assert r.offset_times(written) == (9, r.NO_TIME)
    assert r.is_of_other_topic(written, UUID(int=6))
    assert not r.is_of_other_topic(written, UUID(int=5))
    with_text = r.write_offset(r.OffsetValue(42, 3, "text", 9, topic_id=UUID(int=5)))
    assert r.is_of_other_topic(with_text, UUID(int=6))
    assert r.offset_times(with_text) == (9, r.NO_TIME)


def test_an_offset_with_its_own_expiry_time_is_stored_without_a_topic_id() -> None:
    written = r.write_offset(r.OffsetValue(42, 3, "", 9, 99, UUID(int=5)))
    assert r.read_offset(written) == r.OffsetValue(42, -1, "", 9, 99)
    assert not r.is_of_other_topic(written, UUID(int=6))


def test_a_later_search_checks_again_whether_a_topic_exists(coordinator: Coordinator) -> None:
    coordinator.commit(at(0))
    after = coordinator.reload()
    after.pass_time(1)
    assert after.offsets() == {("sales", 0): 42}
    after.cluster.missing.add("sales")
    after.take(after.machine.partitions_removed(after.now_ms))
    after.pass_time(1)
    assert after.machine._offsets.count == 0


def test_a_search_asks_about_each_partition_once_in_a_slice(monkeypatch: pytest.MonkeyPatch) -> None:
    coordinator = Coordinator()
    for group in range(OFFSETS_PER_SLICE_MAX // 10):
        assert coordinator.commit(*map(at, range(10)), group=f"g{group}") == ["NONE"] * 10
    after = Coordinator(records=coordinator.log)
    asked: list[tuple[str, int]] = []
    ask = after.cluster.has_partition

    def counted(topic: str, partition: int) -> bool:
        asked.append((topic, partition))
        return ask(topic, partition)

    monkeypatch.setattr(after.cluster, "has_partition", counted)
    after.pass_time(2)
    assert not after.machine._sweeper.is_busy
    assert sorted(asked) == [("sales", partition) for partition in range(10)]
