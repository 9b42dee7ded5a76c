"""The refusal of a batch explains the gap that follows in a producer's sequence; few refusals are remembered."""

from __future__ import annotations

from typing import NamedTuple

import pytest

from broker.core.producer_state import SEQUENCE_MAX
from broker.core.refused_batches import PASSING, REMEMBERED_MAX, REMEMBERED_MS, SEQUENCES_MAX, RefusedBatches
from quorumlog.wire.errors import KafkaCode

NOT_LEADER = KafkaCode.NOT_LEADER_OR_FOLLOWER


class B(NamedTuple):
    base_sequence: int
    producer_id: int = 7
    producer_epoch: int = 0
    last_sequence: int = 0
    is_control: bool = False
    is_transactional: bool = False
    max_timestamp: int = 0


def noted(batch: B, code: int = NOT_LEADER, now_ms: int = 1_000) -> RefusedBatches:
    refused = RefusedBatches()
    refused.note("t", 0, batch, code, now_ms)
    return refused


@pytest.mark.parametrize("code", sorted(PASSING))
def test_a_batch_after_a_gap_gets_the_error_of_the_refused_batch(code: KafkaCode) -> None:
    refused = noted(B(13), code)
    assert refused.cause("t", 0, B(14), 13, 1_000) is code
    assert refused.cause("t", 0, B(15), 13, 1_000) is code


@pytest.mark.parametrize(
    ("topic", "index", "batch", "missing"),
    [
        ("other", 0, B(14), 13),
        ("t", 1, B(14), 13),
        ("t", 0, B(14, producer_id=8), 13),
        ("t", 0, B(14, producer_epoch=1), 13),
        ("t", 0, B(14), 12),
    ],
)
def test_the_refusal_of_an_unrelated_batch_does_not_explain_a_gap(
    topic: str, index: int, batch: B, missing: int
) -> None:
    assert noted(B(13)).cause(topic, index, batch, missing, 1_000) is None


@pytest.mark.parametrize(
    "code", [KafkaCode.NONE, KafkaCode.CORRUPT_MESSAGE, KafkaCode.MESSAGE_TOO_LARGE, KafkaCode.INVALID_PRODUCER_EPOCH]
)
def test_a_refusal_with_an_error_that_a_retry_does_not_change_is_not_remembered(code: KafkaCode) -> None:
    assert len(noted(B(13), code)) == 0


def test_batches_without_a_producer_id_are_not_remembered() -> None:
    assert len(noted(B(-1, producer_id=-1))) == 0


def test_a_refusal_is_forgotten_after_a_request_timeout() -> None:
    refused = noted(B(13))
    assert refused.cause("t", 0, B(14), 13, 1_000 + REMEMBERED_MS) is NOT_LEADER
    assert refused.cause("t", 0, B(14), 13, 1_001 + REMEMBERED_MS) is None


@pytest.mark.parametrize(("sequence", "left"), [(12, {13, 14}), (13, {14}), (14, set()), (15, set())])
def test_a_refusal_is_forgotten_once_the_batch_or_a_later_one_is_appended(sequence: int, left: set[int]) -> None:
    refused = noted(B(13))
    refused.note("t", 0, B(14), NOT_LEADER, 1_000)
    refused.note("t", 1, B(14), NOT_LEADER, 1_000)
    refused.appended("t", 0, B(sequence))
    assert {number for number in (13, 14) if refused.cause("t", 0, B(15), number, 1_000)} == left
    assert len(refused) == len(left) + 1, "the refusal in another partition remains"


def test_a_later_refusal_of_the_same_batch_replaces_the_earlier_one() -> None:
    refused = noted(B(13))
    refused.note("t", 0, B(13), KafkaCode.NOT_ENOUGH_REPLICAS, 5_000)
    assert len(refused) == 1
    assert refused.cause("t", 0, B(14), 13, 5_000 + REMEMBERED_MS) is KafkaCode.NOT_ENOUGH_REPLICAS


def test_the_oldest_refusal_of_a_producer_is_forgotten_above_the_limit() -> None:
    refused = noted(B(0))
    refused.note("t", 0, B(1), NOT_LEADER, 1_000)
    refused.note("t", 0, B(0), NOT_LEADER, 1_000)  # so the refusal of batch 1 is the oldest
    for number in range(2, SEQUENCES_MAX + 1):
        refused.note("t", 0, B(number), NOT_LEADER, 1_000)
    assert len(refused) == SEQUENCES_MAX
    assert refused.cause("t", 0, B(9), 1, 1_000) is None
    assert refused.cause("t", 0, B(9), 0, 1_000) is NOT_LEADER


def test_the_least_recently_refused_producer_is_forgotten_above_the_limit() -> None:
    refused = noted(B(0, producer_id=0))
    refused.note("t", 0, B(0, producer_id=1), NOT_LEADER, 1_000)
    refused.note("t", 0, B(1, producer_id=0), NOT_LEADER, 1_000)  # so the refusal of producer 1 is the oldest
    for number in range(2, REMEMBERED_MAX + 1):
        refused.note("t", 0, B(0, producer_id=number), NOT_LEADER, 1_000)
    assert len(refused) == REMEMBERED_MAX + 1
    assert refused.cause("t", 0, B(9, producer_id=1), 0, 1_000) is None
    assert refused.cause("t", 0, B(9, producer_id=0), 0, 1_000) is NOT_LEADER


def test_a_producer_without_batches_in_the_log_gets_the_refusal_of_any_earlier_batch() -> None:
    refused = noted(B(13), KafkaCode.NOT_ENOUGH_REPLICAS)
    assert refused.earlier("t", 0, B(14), 1_000) == (13, KafkaCode.NOT_ENOUGH_REPLICAS)
    assert refused.earlier("t", 0, B(20), 1_000) == (13, KafkaCode.NOT_ENOUGH_REPLICAS)


@pytest.mark.parametrize("sequence", [13, 12, 0])
def test_the_refusal_of_a_batch_does_not_affect_the_same_or_an_earlier_batch(sequence: int) -> None:
    assert noted(B(13)).earlier("t", 0, B(sequence), 1_000) is None


def test_a_refusal_at_the_last_sequence_precedes_a_batch_at_sequence_0() -> None:
    assert noted(B(SEQUENCE_MAX)).earlier("t", 0, B(0), 1_000) == (SEQUENCE_MAX, NOT_LEADER)


def test_the_refusal_of_an_earlier_batch_is_forgotten_after_a_request_timeout() -> None:
    refused = noted(B(13))
    assert refused.earlier("t", 0, B(14), 1_000 + REMEMBERED_MS) == (13, NOT_LEADER)
    assert refused.earlier("t", 0, B(14), 1_001 + REMEMBERED_MS) is None
