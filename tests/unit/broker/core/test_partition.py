"""The leader of one partition: watermark, and answers to clients."""

from __future__ import annotations

import pytest

from broker.core.partition import (
    Assignment,
    LeaderState,
    Limits,
)
from quorumlog.wire.errors import KafkaCode
from tests.unit.broker.core.partition_driver import FakeCluster, Leader

# -- watermark


def test_watermark_is_the_lowest_flushed_end_of_the_isr() -> None:
    leader = Leader()
    leader.write(10)
    leader.fetch(2, 10)
    assert leader.hw == 0
    leader.fetch(3, 4)
    assert leader.hw == 4
    leader.fetch(3, 10)
    assert leader.hw == 10


def test_unflushed_records_of_the_leader_are_not_committed() -> None:
    leader = Leader()
    leader.write(10, flush=False)
    leader.fetch(2, 10)
    leader.fetch(3, 10)
    assert leader.hw == 0
    assert leader.state.on_flushed(6)
    assert leader.hw == 6


def test_the_records_of_a_sole_replica_are_committed_by_its_own_flush() -> None:
    state = LeaderState(
        1,
        Assignment((1,), (1,), 1, 0, 0),
        log_end=3,
        flushed_end=3,
        high_watermark=0,
        cluster=FakeCluster(),
        limits=Limits(10_000, min_isr=2),
        now_ms=0,
    )
    assert state.high_watermark == 3
    state.on_appended(5)
    assert state.verdict(-1, 5) is None
    assert state.on_flushed(5)
    assert state.verdict(-1, 5) is KafkaCode.NONE


def test_committed_records_are_visible_once_the_leader_has_flushed_them() -> None:
    """After an unclean election, the leader may not have flushed all records that were committed before."""
    state = LeaderState(
        1,
        Assignment((1, 2, 3), (1,), 1, leader_epoch=5, partition_epoch=7),
        log_end=9,
        flushed_end=2,
        high_watermark=6,
        cluster=FakeCluster(),
        limits=Limits(10_000, min_isr=2),
        now_ms=0,
    )
    assert state.high_watermark == 2
    assert state.on_flushed(4)
    assert state.high_watermark == 4
    assert state.on_flushed(9)
    assert state.high_watermark == 6
    assert not state.latest_known()


def test_watermark_never_decreases_when_a_follower_truncates() -> None:
    leader = Leader()
    leader.write(10)
    leader.fetch(2, 10)
    leader.fetch(3, 10)
    leader.fetch(3, 2)
    assert leader.hw == 10


def test_watermark_does_not_advance_while_the_isr_is_below_min_isr() -> None:
    leader = Leader(isr=(1,))
    leader.write(10)
    assert leader.hw == 0
    leader.fetch(2, 10)
    assert leader.members() == (1, 2)
    leader.log_shows((1, 2), 8)
    assert leader.hw == 10


def test_a_fetch_of_an_older_incarnation_is_ignored() -> None:
    leader = Leader(isr=(1, 2))
    leader.write(10)
    leader.cluster.epochs[2] = 500
    assert not leader.fetch(2, 10, broker_epoch=102)
    assert leader.hw == 0
    leader.fetch(2, 3, broker_epoch=500)
    assert leader.hw == 3


def test_a_fetch_of_a_broker_without_a_replica_is_ignored() -> None:
    leader = Leader()
    leader.write(10)
    assert not leader.state.on_fetch(9, 900, 10, leader.now_ms, None)
    assert leader.members() is None


# -- answers to clients


@pytest.mark.parametrize(
    ("acks", "code"), [(-1, KafkaCode.NOT_ENOUGH_REPLICAS), (1, KafkaCode.NONE), (0, KafkaCode.NONE)]
)
def test_a_write_is_refused_before_the_append_if_the_isr_is_too_small(acks: int, code: KafkaCode) -> None:
    assert Leader(isr=(1,)).state.admits(acks) is code


@pytest.mark.parametrize("acks", [-2, 2, 7])
def test_unknown_values_of_acks_are_refused(acks: int) -> None:
    assert Leader().state.admits(acks) is KafkaCode.INVALID_REQUIRED_ACKS


def test_replicas_that_are_being_added_do_not_raise_the_effective_min_isr() -> None:
    """Otherwise a reassignment to more replicas would refuse writes until they have caught up."""
    leader = Leader(isr=(1,), min_isr=3)
    assert leader.state.admits(-1) is KafkaCode.NOT_ENOUGH_REPLICAS
    leader.write(4)
    assert leader.state.verdict(-1, 4) is KafkaCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND
    leader.state.on_assignment(Assignment((1, 2, 3), (1,), 1, 5, 8, adding=(2, 3)), leader.now_ms)
    assert leader.state.min_isr == 1
    assert leader.state.admits(-1) is KafkaCode.NONE
    assert leader.state.verdict(-1, 4) is KafkaCode.NONE, "committed immediately: one of one is in sync"


def test_the_effective_min_isr_never_exceeds_the_replication_factor() -> None:
    assert Leader(min_isr=9).state.admits(-1) is KafkaCode.NONE


def test_acks_all_is_answered_once_the_watermark_reaches_the_end_of_the_write() -> None:
    leader = Leader()
    leader.write(10)
    assert leader.state.verdict(-1, 10) is None
    leader.fetch(2, 10)
    leader.fetch(3, 9)
    assert leader.state.verdict(-1, 10) is None
    leader.fetch(3, 10)
    assert leader.state.verdict(-1, 10) is KafkaCode.NONE


def test_acks_all_fails_after_the_append_if_the_isr_has_shrunk() -> None:
    leader = Leader()
    leader.write(10)
    leader.log_shows((1,), 8)
    assert leader.state.verdict(-1, 10) is KafkaCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND
    assert leader.state.verdict(-1, 0) is KafkaCode.NONE


def test_acks_one_waits_for_the_leaders_flush_only() -> None:
    leader = Leader()
    leader.write(10, flush=False)
    assert leader.state.verdict(0, 10) is KafkaCode.NONE
    assert leader.state.verdict(1, 10) is None
    leader.state.on_flushed(10)
    assert leader.state.verdict(1, 10) is KafkaCode.NONE


def test_the_latest_offset_is_unknown_until_the_watermark_reaches_the_log_end_at_the_election() -> None:
    leader = Leader(log_end=10, watermark=4)
    assert not leader.state.latest_known()
    leader.fetch(2, 10)
    leader.fetch(3, 9)
    assert not leader.state.latest_known()
    leader.fetch(3, 10)
    assert leader.state.latest_known()
