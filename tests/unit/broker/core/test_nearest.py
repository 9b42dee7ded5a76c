"""The choice of the replica from which a consumer reads (KIP-392)."""

from __future__ import annotations

from broker.core.nearest import ReadReplica, nearest_replica
from broker.core.partition import FollowerState
from quorumlog.wire.errors import KafkaCode


def replica(broker_id: int, rack: str | None = "b", start: int = 0, end: int = 10) -> ReadReplica:
    return ReadReplica(broker_id, rack, start, end)


def test_a_replica_in_the_consumers_rack_is_chosen() -> None:
    assert nearest_replica("b", "a", 5, [replica(2, "a"), replica(3, "b"), replica(4, None)]) == 3


def test_the_leader_serves_its_own_rack_and_consumers_without_a_rack() -> None:
    assert nearest_replica("a", "a", 5, [replica(2, "a", end=99)]) is None
    assert nearest_replica("", "a", 5, [replica(2, "")]) is None
    assert nearest_replica("b", None, 5, []) is None


def test_a_replica_is_chosen_only_if_its_log_contains_the_offset_or_ends_there() -> None:
    for start, end, chosen in ((0, 5, 2), (5, 9, 2), (0, 4, None), (6, 9, None), (-1, 9, None), (0, -1, None)):
        assert nearest_replica("b", "a", 5, [replica(2, "b", start, end)]) == chosen, (start, end)


def test_the_longest_log_is_chosen_and_then_the_lowest_id() -> None:
    assert nearest_replica("b", "a", 5, [replica(4, end=9), replica(3), replica(2)]) == 2


def test_an_offset_between_the_followers_end_and_the_watermark_is_not_available_yet() -> None:
    follower = FollowerState(1, 3, high_watermark=4)
    follower.on_leader_watermark(8, log_end=6)
    answers = [follower.missing(offset, log_end=6) for offset in (6, 7, 8, 9)]
    missing, beyond = KafkaCode.OFFSET_NOT_AVAILABLE, KafkaCode.OFFSET_OUT_OF_RANGE
    assert answers == [KafkaCode.NONE, missing, missing, beyond]
