"""Positions of replicas and clients in the leader's history, and a follower's steps after a reply."""

from __future__ import annotations

import pytest

from broker.core.epochs import EpochCache
from broker.core.partition import (
    AppendRecords,
    DelayFetch,
    Divergence,
    Drop,
    FollowerState,
    RestartAt,
    SentPosition,
    TruncateTo,
    check_leader_epoch,
    check_position,
)
from quorumlog.wire.errors import KafkaCode
from tests.unit.broker.core.partition_driver import history, reply

# -- positions


LEADER_HISTORY = history((1, 0), (3, 10), (5, 20), end=30)


@pytest.mark.parametrize(
    ("offset", "epoch", "verdict"),
    [
        (30, 5, KafkaCode.NONE),
        (25, 5, KafkaCode.NONE),
        (10, 1, KafkaCode.NONE),
        (12, 1, Divergence(1, 10)),
        (15, 2, Divergence(1, 10)),
        (31, 5, Divergence(5, 30)),
        (25, 4, Divergence(3, 20)),
        (25, -1, KafkaCode.NONE),
        (31, -1, KafkaCode.OFFSET_OUT_OF_RANGE),
        (-5, -1, KafkaCode.OFFSET_OUT_OF_RANGE),
    ],
)
def test_a_position_is_compared_with_the_leaders_history(offset: int, epoch: int, verdict: object) -> None:
    assert check_position(offset, epoch, 0, LEADER_HISTORY, is_replica=False) == verdict


@pytest.mark.parametrize(
    ("offset", "epoch", "verdict"),
    [(10, 5, Divergence(4, 12)), (10, 4, KafkaCode.NONE), (14, 4, Divergence(4, 12)), (14, 6, KafkaCode.NONE)],
)
def test_divergence_is_judged_by_epoch_not_by_offset_alone(offset: int, epoch: int, verdict: object) -> None:
    """KIP-279: the leader's epoch 4 ends at 12, where 6 begins; offset 10 alone would fit in any epoch."""
    assert check_position(offset, epoch, 0, history((4, 0), (6, 12), end=20), is_replica=True) == verdict


@pytest.mark.parametrize("is_replica", [True, False])
def test_an_epoch_above_the_leaders_latest_diverges_at_the_leaders_log_end(is_replica: bool) -> None:
    assert check_position(25, 6, 0, LEADER_HISTORY, is_replica=is_replica) == Divergence(5, 30)


def test_a_replicas_position_without_an_epoch_fits_only_where_both_logs_begin() -> None:
    def check(offset: int, log_start: int, epochs: EpochCache) -> object:
        return check_position(offset, -1, log_start, epochs, is_replica=True)

    assert check(0, 0, LEADER_HISTORY) is KafkaCode.NONE
    assert check(25, 0, LEADER_HISTORY) is KafkaCode.OFFSET_OUT_OF_RANGE, (
        "within the leader's log, but of an unknown history"
    )
    assert check(30, 0, LEADER_HISTORY) is KafkaCode.OFFSET_OUT_OF_RANGE
    assert check(12, 12, LEADER_HISTORY) is KafkaCode.OFFSET_OUT_OF_RANGE, (
        "the leader knows which epoch is before its start"
    )
    assert check(12, 12, history((5, 12), end=30)) is KafkaCode.NONE, "neither knows the earlier history"


def test_a_position_below_the_log_start_is_out_of_range() -> None:
    assert check_position(4, 1, 5, LEADER_HISTORY, is_replica=True) is KafkaCode.OFFSET_OUT_OF_RANGE


def test_a_fetch_with_an_older_or_an_unknown_leader_epoch_is_refused() -> None:
    assert check_leader_epoch(-1, 5) is KafkaCode.NONE
    assert check_leader_epoch(5, 5) is KafkaCode.NONE
    assert check_leader_epoch(4, 5) is KafkaCode.FENCED_LEADER_EPOCH
    assert check_leader_epoch(6, 5) is KafkaCode.UNKNOWN_LEADER_EPOCH


# -- the follower


SENT = SentPosition(5, 25, 4)


FOLLOWER_HISTORY = history((1, 0), (4, 12), end=25)


def test_a_reply_to_another_request_is_dropped() -> None:
    follower = FollowerState(1, 5, 10)
    assert follower.on_reply(SENT._replace(leader_epoch=4), reply(), 0, FOLLOWER_HISTORY) == Drop()
    assert follower.on_reply(SENT._replace(offset=24), reply(), 0, FOLLOWER_HISTORY) == Drop()
    unknown = SENT._replace(last_fetched_epoch=-1)  # from before a restart
    assert follower.on_reply(unknown, reply(), 0, FOLLOWER_HISTORY) == Drop()
    older = SENT._replace(last_fetched_epoch=1)  # from before a truncation: the log has grown back to 25 since
    assert follower.on_reply(older, reply(diverging=Divergence(1, 8)), 0, FOLLOWER_HISTORY) == Drop()


def test_a_reply_with_a_divergence_truncates_and_does_not_move_the_watermark() -> None:
    follower = FollowerState(1, 5, 10)
    answer = reply(diverging=Divergence(3, 20), high_watermark=25)
    assert follower.on_reply(SENT, answer, 0, FOLLOWER_HISTORY) == TruncateTo(12), (
        "epoch 3 is unknown here: truncate epoch 4"
    )
    assert follower.high_watermark == 10


def test_truncation_ends_where_both_logs_agree() -> None:
    follower = FollowerState(1, 5, 10)
    assert follower.on_reply(SENT, reply(diverging=Divergence(4, 18)), 0, FOLLOWER_HISTORY) == TruncateTo(18)
    assert follower.on_reply(SENT, reply(diverging=Divergence(1, 40)), 0, FOLLOWER_HISTORY) == TruncateTo(12)
    follower.on_truncated(8)
    assert follower.high_watermark == 8


def test_batches_must_start_where_the_log_ends() -> None:
    follower = FollowerState(1, 5, 10)
    assert follower.on_reply(SENT, reply(first_offset=25), 0, FOLLOWER_HISTORY) == AppendRecords(20)
    assert follower.on_reply(SENT, reply(first_offset=24), 0, FOLLOWER_HISTORY) == DelayFetch(KafkaCode.CORRUPT_MESSAGE)


def test_a_follower_restarts_at_the_leaders_log_start_if_all_its_records_lie_below_it() -> None:
    """The leader's first batch begins at 25, and a client deleted its first record."""
    follower = FollowerState(1, 5, 10)
    batch = reply(first_offset=25, log_start=26)
    assert follower.on_reply(SENT, batch, 24, FOLLOWER_HISTORY) == RestartAt(26)
    assert not follower.agrees
    assert follower.on_reply(SENT, batch, 25, FOLLOWER_HISTORY) == AppendRecords(20), "nothing to drop"
    assert follower.on_reply(SENT, batch._replace(log_start=25), 24, FOLLOWER_HISTORY) == AppendRecords(20)


def test_a_follower_out_of_range_restarts_only_at_a_later_log_start_of_the_leader() -> None:
    follower = FollowerState(1, 5, 10)
    gone = reply(code=KafkaCode.OFFSET_OUT_OF_RANGE, log_start=100)
    assert follower.on_reply(SENT, gone, 0, FOLLOWER_HISTORY) == RestartAt(100)
    odd = reply(code=KafkaCode.OFFSET_OUT_OF_RANGE, log_start=3)
    assert follower.on_reply(SENT, odd, 0, FOLLOWER_HISTORY) == DelayFetch(KafkaCode.OFFSET_OUT_OF_RANGE)


def test_an_empty_log_of_an_unknown_epoch_restarts_at_the_leaders_log_start() -> None:
    follower = FollowerState(1, 5, 10)
    empty = EpochCache((), 25)
    sent = SentPosition(5, 25, -1)
    refused = reply(code=KafkaCode.OFFSET_OUT_OF_RANGE, log_start=3)
    assert follower.on_reply(sent, refused, 25, empty) == RestartAt(3)
    assert follower.on_reply(sent, refused._replace(diverging=Divergence(4, 3)), 25, empty) == RestartAt(3, epoch=4)
    silent = reply(code=KafkaCode.OFFSET_OUT_OF_RANGE, log_start=-1)
    assert follower.on_reply(sent, silent, 25, empty) == DelayFetch(KafkaCode.OFFSET_OUT_OF_RANGE)


def test_a_log_that_diverges_below_its_own_start_restarts_at_the_leaders_log_start() -> None:
    """After an unclean election: records that the leader lacks are truncated, and no common record remains."""
    follower = FollowerState(1, 5, 10)
    emptied = history((4, 12), end=25)
    sent = SentPosition(5, 25, 4)
    assert follower.on_reply(sent, reply(diverging=Divergence(4, 20), log_start=3), 25, emptied) == RestartAt(3)
    assert follower.on_reply(sent, reply(diverging=Divergence(3, 18), log_start=3), 13, emptied) == RestartAt(3)
    assert follower.on_reply(sent, reply(diverging=Divergence(4, 20), log_start=3), 20, emptied) == TruncateTo(20)
    silent = reply(diverging=Divergence(4, 20), log_start=-1)
    assert follower.on_reply(sent, silent, 25, emptied) == DelayFetch(KafkaCode.CORRUPT_MESSAGE)


@pytest.mark.parametrize(
    ("diverging", "step"),
    [
        (Divergence(3, 20), TruncateTo(12)),
        (Divergence(3, 30), TruncateTo(12)),
        (Divergence(4, 20), TruncateTo(20)),
        (Divergence(0, 7), RestartAt(1)),
        (Divergence(5, 20), DelayFetch(KafkaCode.CORRUPT_MESSAGE)),
    ],
)
def test_a_divergence_in_an_unknown_epoch_truncates_to_the_end_of_the_epoch_before(
    diverging: Divergence, step: object
) -> None:
    """The leader's end of such an epoch does not show where the histories diverge."""
    follower = FollowerState(1, 5, 10)
    assert follower.on_reply(SENT, reply(diverging=diverging, log_start=1), 8, FOLLOWER_HISTORY) == step


def test_the_followers_watermark_stays_within_its_log_and_never_decreases() -> None:
    follower = FollowerState(1, 5, 10)
    assert follower.on_leader_watermark(40, 25)
    assert follower.high_watermark == 25
    assert not follower.on_leader_watermark(3, 25)
    assert follower.high_watermark == 25
