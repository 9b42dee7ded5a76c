"""Offsets that are committed in transactions: pending until the marker, then visible or dropped."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from broker.core.coordinator import group_requests as g
from broker.core.transactions import Marker, ProducerKey
from tests.unit.broker.core.coordinator.driver import DELAY_MS, GROUP, LIMITS, Coordinator, Member
from tests.unit.broker.core.coordinator.test_group_offsets import coordinator, member

__all__ = ["coordinator", "member"]  # fixtures

PRODUCER = ProducerKey(7, 3)


def commit(coordinator: Coordinator, offset: int, *, producer: ProducerKey = PRODUCER, **options: int) -> str:
    wanted = g.OffsetCommit(GROUP, "", None, options.get("generation", -1), (g.OffsetToCommit("sales", 0, offset),))
    (result,) = coordinator.ask(g.TxnOffsetCommit(wanted, producer)).results
    return str(result.error.name)


def end(coordinator: Coordinator, *, is_commit: bool = True, producer: ProducerKey = PRODUCER) -> None:
    assert coordinator.ask(g.EndOffsetTransaction(Marker(producer, is_commit, 0))) is None


def fetched(coordinator: Coordinator, *, stable: bool = False) -> tuple[int, str]:
    topics = (g.TopicPartitions("sales", (0,)),)
    (group,) = coordinator.ask(g.OffsetFetch((g.GroupToFetch(GROUP, topics),), require_stable=stable)).groups
    return group.offsets[0].offset, group.offsets[0].error.name


def test_an_offset_becomes_visible_with_the_marker(coordinator: Coordinator) -> None:
    assert commit(coordinator, 5) == "NONE"
    assert fetched(coordinator) == (g.NO_OFFSET, "NONE")
    assert fetched(coordinator, stable=True) == (g.NO_OFFSET, "UNSTABLE_OFFSET_COMMIT")
    end(coordinator)
    assert fetched(coordinator, stable=True) == (5, "NONE")


def test_an_aborted_offset_is_dropped(coordinator: Coordinator) -> None:
    coordinator.commit(g.OffsetToCommit("sales", 0, 2))
    commit(coordinator, 5)
    end(coordinator, is_commit=False)
    assert fetched(coordinator, stable=True) == (2, "NONE")


def test_the_marker_of_one_producer_does_not_complete_pending_offsets_of_another(coordinator: Coordinator) -> None:
    commit(coordinator, 5)
    commit(coordinator, 6, producer=ProducerKey(8, 0))
    end(coordinator, producer=ProducerKey(8, 0))
    assert fetched(coordinator) == (6, "NONE")
    assert fetched(coordinator, stable=True)[1] == "UNSTABLE_OFFSET_COMMIT"
    end(coordinator)
    assert fetched(coordinator, stable=True) == (6, "NONE"), "the newer offset stays"


def test_pending_offsets_are_bounded_with_and_without_a_member_id() -> None:
    coordinator = Coordinator(replace(LIMITS, offsets_max=2))
    named = Member(coordinator, "a")
    coordinator.stable(named)
    for producer_id, error in ((7, "NONE"), (8, "NONE"), (9, "POLICY_VIOLATION")):
        offsets = (g.OffsetToCommit("sales", 0, 5),)
        wanted = g.OffsetCommit(GROUP, named.member_id, None, named.generation, offsets)
        (result,) = coordinator.ask(g.TxnOffsetCommit(wanted, ProducerKey(producer_id, 0))).results
        assert result.error.name == error, producer_id
    assert commit(coordinator, 5, producer=ProducerKey(9, 0)) == "POLICY_VIOLATION"


def test_a_load_keeps_the_order_of_a_pending_offset_and_a_later_commit(coordinator: Coordinator) -> None:
    commit(coordinator, 5)
    coordinator.commit(g.OffsetToCommit("sales", 0, 6))
    after = coordinator.reload()
    end(after)
    assert fetched(after, stable=True) == (6, "NONE")


def test_pending_offsets_are_logged_with_their_producer_and_end_with_a_marker(coordinator: Coordinator) -> None:
    commit(coordinator, 5)
    assert [record.producer for record in coordinator.log] == [PRODUCER]
    end(coordinator)
    markers = [record.marker for record in coordinator.log]
    assert markers == [None, Marker(PRODUCER, True, 0)]


@pytest.mark.parametrize("is_commit", [True, False])
def test_a_later_coordinator_continues_with_pending_offsets(coordinator: Coordinator, is_commit: bool) -> None:
    commit(coordinator, 5)
    second = coordinator.reload()
    assert fetched(second, stable=True)[1] == "UNSTABLE_OFFSET_COMMIT"
    end(second, is_commit=is_commit)
    third = second.reload()
    assert fetched(third, stable=True) == (5 if is_commit else g.NO_OFFSET, "NONE")


def test_a_transactional_commit_with_a_generation_but_no_member_id_is_refused(member: Member) -> None:
    assert commit(member.coordinator, 5, generation=99) == "UNKNOWN_MEMBER_ID"
    assert commit(member.coordinator, 5) == "NONE"  # older producers do not name their member


def test_a_producer_commits_for_a_member_that_waits_for_its_assignment(coordinator: Coordinator) -> None:
    """A producer would fail permanently after REBALANCE_IN_PROGRESS."""
    member = Member(coordinator, "a")
    call = member.send_join()
    coordinator.pass_time(DELAY_MS)
    member.take_join(call)
    assert coordinator.state() == "CompletingRebalance"
    offsets = (g.OffsetToCommit("sales", 0, 5),)
    wanted = g.OffsetCommit(GROUP, member.member_id, None, member.generation, offsets)
    (result,) = coordinator.ask(g.TxnOffsetCommit(wanted, PRODUCER)).results
    assert result.error.name == "NONE"
    assert member.commit(5) == "REBALANCE_IN_PROGRESS"


def test_a_group_with_pending_offsets_is_not_deleted(coordinator: Coordinator) -> None:
    commit(coordinator, 5)
    (deleted,) = coordinator.ask(g.DeleteGroups((GROUP,))).groups
    assert deleted.error.name == "NON_EMPTY_GROUP"


def test_a_group_that_is_being_deleted_takes_no_pending_offsets() -> None:
    coordinator = Coordinator(replace(LIMITS, batch_max_bytes=10_000))
    for topic in range(60):
        coordinator.commit(*(g.OffsetToCommit(f"topic-{topic}", partition, 1) for partition in range(10)))
    call = coordinator.send(g.DeleteGroups((GROUP,)))
    assert coordinator.waits(call)
    assert commit(coordinator, 5) == "COORDINATOR_NOT_AVAILABLE"


def test_an_offset_does_not_expire_while_a_transaction_replaces_it(coordinator: Coordinator) -> None:
    coordinator.commit(g.OffsetToCommit("sales", 0, 2))
    coordinator.pass_time(LIMITS.offsets_retention_ms - 1)
    assert commit(coordinator, 5) == "NONE"
    coordinator.pass_time(LIMITS.expiry_interval_ms + 1)
    end(coordinator)
    assert fetched(coordinator, stable=True) == (5, "NONE")
    coordinator.pass_time(LIMITS.offsets_retention_ms + LIMITS.expiry_interval_ms)
    assert fetched(coordinator, stable=True) == (g.NO_OFFSET, "NONE")


def test_an_offset_that_was_committed_later_is_not_overwritten_by_the_marker(coordinator: Coordinator) -> None:
    commit(coordinator, 5)
    coordinator.commit(g.OffsetToCommit("sales", 0, 9))
    end(coordinator)
    assert fetched(coordinator, stable=True) == (9, "NONE")


@pytest.mark.parametrize("first", [0, 1])
def test_the_newest_of_two_transactional_offsets_wins_in_any_order_of_the_markers(
    coordinator: Coordinator, first: int
) -> None:
    producers = [PRODUCER, ProducerKey(8, 0)]
    for offset, producer in zip((5, 6), producers, strict=True):
        commit(coordinator, offset, producer=producer)
    end(coordinator, producer=producers[first])
    assert fetched(coordinator, stable=True)[1] == "UNSTABLE_OFFSET_COMMIT"
    end(coordinator, producer=producers[1 - first])
    assert fetched(coordinator, stable=True) == (6, "NONE")


def test_an_older_transactional_offset_counts_if_the_newer_one_is_aborted(coordinator: Coordinator) -> None:
    commit(coordinator, 5)
    commit(coordinator, 6, producer=ProducerKey(8, 0))
    end(coordinator, producer=ProducerKey(8, 0), is_commit=False)
    end(coordinator)
    assert fetched(coordinator, stable=True) == (5, "NONE")
