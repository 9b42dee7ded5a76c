"""A share partition: acquisition, locks, acknowledgements, saves, and dead letters of records."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from broker.core.share.partition import (
    NOTHING_TO_SAVE,
    Acknowledgement,
    AckType,
    Acquired,
    DeadRecords,
    Delivery,
    Save,
    ShareLimits,
    SharePartition,
    StateBatch,
    problem_of,
)
from quorumlog.wire.errors import KafkaCode

LIMITS = ShareLimits(lock_ms=1_000, delivery_count_max=2, max_in_flight=100)
NOW = 5_000
MANY = 1_000


def partition(start: int = 0, *batches: StateBatch) -> SharePartition:
    return SharePartition(LIMITS, start, batches)


def ack(share: SharePartition, member: str, first: int, last: int, *kinds: AckType, now_ms: int = NOW) -> int:
    """Acknowledge [first, last] and return the number of the save."""
    save = share.acknowledge(member, [Acknowledgement(first, last + 1, kinds)], now_ms)
    assert not isinstance(save, KafkaCode), save
    share.check()
    return save


def refused(share: SharePartition, member: str, first: int, last: int, *kinds: AckType) -> KafkaCode:
    before = share.runs()
    code = share.acknowledge(member, [Acknowledgement(first, last + 1, kinds)], NOW)
    assert isinstance(code, KafkaCode), code
    assert share.runs() == before, "a refusal changes nothing"
    return code


def save(share: SharePartition, *, is_durable: bool = True) -> Save:
    begun = share.begin_save()
    assert begun is not None
    share.saved(begun.id, is_durable=is_durable)
    share.check()
    return begun


def test_each_record_is_acquired_by_one_member() -> None:
    share = partition()
    assert share.acquire("a", [(0, 10)], 5, NOW) == [Acquired(0, 10, 1)]
    assert share.acquire("b", [(0, 10), (10, 20)], MANY, NOW) == [Acquired(10, 20, 1)]
    assert share.next_fetch_offset == 20
    share.check()


def test_a_member_acquires_a_whole_batch_beyond_the_record_limit_unless_the_limit_is_exact() -> None:
    assert partition().acquire("a", [(0, 10), (10, 20)], 3, NOW) == [Acquired(0, 10, 1)]
    share = partition()
    assert share.acquire("a", [(0, 10), (10, 20)], 3, NOW, is_exact=True) == [Acquired(0, 3, 1)]
    assert share.next_fetch_offset == 3


def test_the_start_offset_passes_an_accepted_record_once_its_save_is_durable() -> None:
    share = partition()
    share.acquire("a", [(0, 10)], MANY, NOW)
    ack(share, "a", 0, 4, AckType.ACCEPT)
    assert share.start_offset == 0
    assert save(share) == Save(1, 0, 5, (StateBatch(0, 5, Delivery.ACKNOWLEDGED, 1),))
    assert share.start_offset == 5


def test_a_record_whose_acceptance_could_not_be_saved_is_delivered_again_after_its_lock() -> None:
    share = partition()
    share.acquire("a", [(0, 10)], MANY, NOW)
    ack(share, "a", 0, 9, AckType.ACCEPT)
    save(share, is_durable=False)
    assert share.start_offset == 0
    assert share.acquire("b", [(0, 10)], MANY, NOW) == []
    assert share.expire(NOW + 1_000)
    assert share.acquire("b", [(0, 10)], MANY, NOW + 1_000) == [Acquired(0, 10, 2)]


def test_a_lock_does_not_expire_while_the_acknowledgement_is_being_saved() -> None:
    share = partition()
    share.acquire("a", [(0, 10)], MANY, NOW)
    ack(share, "a", 0, 9, AckType.ACCEPT)
    assert not share.expire(NOW + 10_000)
    save(share)
    assert share.acquire("b", [(0, 10)], MANY, NOW + 10_000) == []


def test_a_released_record_is_available_once_the_save_is_durable() -> None:
    share = partition()
    share.acquire("a", [(0, 2)], MANY, NOW)
    ack(share, "a", 1, 1, AckType.RELEASE)
    assert share.acquire("b", [(0, 2)], MANY, NOW) == []
    save(share)
    assert share.next_fetch_offset == 1
    assert share.acquire("b", [(0, 2)], MANY, NOW) == [Acquired(1, 2, 2)]


def test_a_record_that_was_delivered_too_often_is_archived() -> None:
    share = partition()
    for count in (1, 2):
        assert share.acquire("a", [(0, 1)], MANY, NOW) == [Acquired(0, 1, count)]
        ack(share, "a", 0, 0, AckType.RELEASE)
        save(share)
    assert share.acquire("a", [(0, 1)], MANY, NOW) == []
    assert share.start_offset == 1


def test_an_expired_lock_counts_as_a_delivery_and_an_ended_session_does_not() -> None:
    share = partition()
    share.acquire("a", [(0, 1), (1, 2)], 1, NOW)
    share.acquire("b", [(1, 2)], 1, NOW)
    assert share.deadline_ms == NOW + 1_000
    assert share.release("b")
    assert share.expire(NOW + 1_000)
    assert share.deadline_ms is None
    assert [(run.first, run.value.count) for run in share.runs()] == [(0, 1), (1, 0)]
    assert save(share).batches == (
        StateBatch(0, 1, Delivery.AVAILABLE, 1),
        StateBatch(1, 2, Delivery.AVAILABLE, 0),
    )


def test_a_renewal_extends_the_lock_and_needs_no_save() -> None:
    share = partition()
    share.acquire("a", [(0, 1)], MANY, NOW)
    assert ack(share, "a", 0, 0, AckType.RENEW, now_ms=NOW + 900) == NOTHING_TO_SAVE
    assert not share.expire(NOW + 1_000)
    assert share.deadline_ms == NOW + 1_900


def test_a_renewal_is_refused_where_the_group_does_not_permit_it() -> None:
    share = partition()
    share.limits = replace(share.limits, may_renew=False)
    share.acquire("a", [(0, 4)], MANY, NOW)
    kinds = (AckType.ACCEPT, AckType.RENEW, AckType.ACCEPT, AckType.ACCEPT)
    assert refused(share, "a", 0, 3, *kinds) is KafkaCode.INVALID_RECORD_STATE
    assert not share.has_changes
    assert share.deadline_ms == NOW + 1_000


def test_each_record_of_a_batch_may_have_its_own_acknowledgement_type() -> None:
    share = partition()
    share.acquire("a", [(0, 4)], MANY, NOW)
    ack(share, "a", 0, 3, AckType.ACCEPT, AckType.REJECT, AckType.RELEASE, AckType.GAP)
    assert save(share).batches == (
        StateBatch(0, 1, Delivery.ACKNOWLEDGED, 1),
        StateBatch(1, 2, Delivery.ARCHIVED, 1),
        StateBatch(2, 3, Delivery.AVAILABLE, 1),
        StateBatch(3, 4, Delivery.ARCHIVED, 1),
    )
    assert share.start_offset == 2


def test_acknowledgements_of_records_that_the_member_does_not_hold_are_refused() -> None:
    share = partition()
    share.acquire("a", [(0, 10)], MANY, NOW)
    assert refused(share, "b", 0, 0, AckType.ACCEPT) is KafkaCode.INVALID_RECORD_STATE
    assert refused(share, "a", 5, 10, AckType.ACCEPT) is KafkaCode.INVALID_REQUEST
    ack(share, "a", 0, 0, AckType.ACCEPT)
    assert refused(share, "a", 0, 0, AckType.ACCEPT) is KafkaCode.INVALID_RECORD_STATE
    share.expire(NOW + 1_000)
    assert refused(share, "a", 5, 5, AckType.ACCEPT) is KafkaCode.INVALID_RECORD_STATE


def test_acknowledging_records_that_an_earlier_leader_delivered_is_an_invalid_record_state() -> None:
    """The client's request is not invalid: its locks have ended with the leadership."""
    share = partition()
    assert refused(share, "a", 0, 9, AckType.ACCEPT) is KafkaCode.INVALID_RECORD_STATE
    share.acquire("b", [(0, 5)], MANY, NOW)
    assert refused(share, "a", 5, 9, AckType.ACCEPT) is KafkaCode.INVALID_RECORD_STATE


def test_an_acknowledgement_below_the_start_is_ignored() -> None:
    share = partition()
    share.acquire("a", [(0, 10)], MANY, NOW)
    share.follow_log_start(5)
    assert ack(share, "a", 0, 4, AckType.ACCEPT) == NOTHING_TO_SAVE
    assert ack(share, "a", 0, 9, AckType.ACCEPT) == 1
    assert save(share).batches == (StateBatch(5, 10, Delivery.ACKNOWLEDGED, 1),)


def test_changes_during_a_save_wait_for_the_next_one() -> None:
    share = partition()
    share.acquire("a", [(0, 10)], MANY, NOW)
    assert ack(share, "a", 0, 0, AckType.ACCEPT) == 1
    begun = share.begin_save()
    assert begun is not None
    assert ack(share, "a", 1, 1, AckType.ACCEPT) == 2
    assert share.begin_save() is None
    share.saved(1, is_durable=True)
    assert share.start_offset == 1, "the second acknowledgement is not durable"
    assert save(share) == Save(2, 1, 1, (StateBatch(1, 2, Delivery.ACKNOWLEDGED, 1),))


def test_records_in_flight_are_bounded() -> None:
    share = partition()
    assert share.acquire("a", [(0, 90), (90, 500)], MANY, NOW) == [Acquired(0, 100, 1)]
    assert not share.may_acquire
    ack(share, "a", 0, 9, AckType.ACCEPT)
    save(share)
    assert share.may_acquire
    assert share.acquire("a", [(90, 500)], MANY, NOW) == [Acquired(100, 110, 1)]


def test_hidden_offsets_are_never_acquired() -> None:
    share = partition()
    share.hide(3, 5)
    assert share.acquire("a", [(0, 10)], MANY, NOW) == [Acquired(0, 3, 1), Acquired(5, 10, 1)]


def test_a_long_range_without_records_is_passed_over_at_once() -> None:
    """Compaction leaves one empty batch for millions of offsets."""
    share = partition()
    share.hide(0, 1_000_000)
    assert (share.start_offset, share.next_fetch_offset) == (1_000_000, 1_000_000)
    assert save(share) == Save(1, 1_000_000, 0, ())
    assert share.acquire("a", [(1_000_000, 1_000_005)], MANY, NOW) == [Acquired(1_000_000, 1_000_005, 1)]


def test_a_long_range_without_records_waits_for_the_records_before_it() -> None:
    share = partition()
    share.acquire("a", [(0, 10)], MANY, NOW)
    share.hide(10, 1_000_000)
    assert share.acquire("a", [(1_000_000, 1_000_005)], MANY, NOW) == []
    assert not share.may_acquire
    ack(share, "a", 0, 9, AckType.ACCEPT)
    save(share)
    assert share.may_acquire
    share.hide(10, 1_000_000)
    assert share.start_offset == 1_000_000
    share.check()


def test_hiding_a_distant_range_without_records_skips_no_records_before_it() -> None:
    """The range begins after all offsets that may be in flight."""
    share = partition()
    share.hide(500_000, 1_000_000)
    assert (share.start_offset, share.next_fetch_offset, share.has_changes) == (0, 0, False)
    assert share.acquire("a", [(0, 5)], MANY, NOW) == [Acquired(0, 5, 1)]


def test_a_long_range_without_records_is_skipped_even_if_it_has_a_stored_state() -> None:
    share = partition(0, StateBatch(0, 5, Delivery.AVAILABLE, 1), StateBatch(5, 7, Delivery.ACKNOWLEDGED, 1))
    share.hide(0, 1_000_000)
    assert share.start_offset == 1_000_000
    share.check()


def test_offsets_that_the_log_no_longer_has_are_passed_over() -> None:
    share = partition()
    assert share.acquire("a", [(7, 9)], MANY, NOW) == [Acquired(7, 9, 1)]
    share.follow_log_start(7)
    assert share.start_offset == 7
    share.check()


def test_a_new_leader_continues_from_the_stored_state() -> None:
    share = partition(
        3,
        StateBatch(0, 5, Delivery.ACKNOWLEDGED, 1),
        StateBatch(6, 7, Delivery.ARCHIVED, 2),
        StateBatch(8, 9, Delivery.AVAILABLE, 1),
    )
    share.check()
    assert (share.start_offset, share.end_offset) == (5, 9)
    assert share.acquire("a", [(0, 20)], MANY, NOW) == [
        Acquired(5, 6, 1),
        Acquired(7, 8, 1),
        Acquired(8, 9, 2),
        Acquired(9, 20, 1),
    ]


@pytest.mark.parametrize(
    ("batch", "words"),
    [
        (Acknowledgement(5, 5, (1,)), "below the first"),
        (Acknowledgement(0, 2, (1,)), "twice"),
        (Acknowledgement(3, 5, ()), "no acknowledge types"),
        (Acknowledgement(3, 5, (1, 1, 1)), "3 acknowledge types"),
        (Acknowledgement(3, 5, (9,)), "unknown"),
        (Acknowledgement(3, 5, (-1,)), "unknown"),
        (Acknowledgement(3, 5, (4,)), "unknown"),
    ],
)
def test_malformed_acknowledgements_are_refused(batch: Acknowledgement, words: str) -> None:
    good = Acknowledgement(1, 3, (1,))
    assert problem_of([good], may_renew=False) is None
    assert words in str(problem_of([good, batch], may_renew=False))


def test_a_renewal_is_permitted_where_the_request_announces_it() -> None:
    assert problem_of([Acknowledgement(3, 5, (4,))], may_renew=True) is None


# -- dead letters


def with_letters(start: int = 0, *batches: StateBatch) -> SharePartition:
    return SharePartition(replace(LIMITS, has_dead_letters=True), start, batches)


def acquired(share: SharePartition, first: int, end: int) -> SharePartition:
    assert share.acquire("a", [(first, end)], MANY, NOW) == [Acquired(first, end, 1)]
    return share


def test_a_rejected_record_waits_for_its_dead_letter() -> None:
    share = acquired(with_letters(), 0, 10)
    ack(share, "a", 0, 1, AckType.REJECT)
    ack(share, "a", 2, 9, AckType.ACCEPT)
    assert not share.has_letters, "the archiving state is not durable yet"
    assert save(share).batches == (
        StateBatch(0, 2, Delivery.ARCHIVING, 1),
        StateBatch(2, 10, Delivery.ACKNOWLEDGED, 1),
    )
    assert share.letters() == [DeadRecords(0, 2, 1, True)]
    assert share.start_offset == 0
    assert share.acquire("b", [(0, 10)], MANY, NOW) == []
    share.buried(0, 1)
    assert share.letters() == [DeadRecords(1, 2, 1, True)]
    assert share.start_offset == 0, "the start waits until Archived is durable"
    assert save(share) == Save(2, 0, 9, (StateBatch(0, 1, Delivery.ARCHIVED, 1),))
    assert share.start_offset == 1
    share.buried(0, 100)
    save(share)
    assert (share.start_offset, share.has_letters) == (10, False)


def test_a_record_that_was_delivered_too_often_waits_for_its_dead_letter() -> None:
    share = with_letters()
    for count in (1, 2):
        assert share.acquire("a", [(0, 1)], MANY, NOW) == [Acquired(0, 1, count)]
        assert share.expire(NOW + 1_000)
        save(share)
    assert share.letters() == [DeadRecords(0, 1, 2, False)]


def test_a_record_that_expired_too_often_stays_locked_until_archiving_is_durable() -> None:
    """Otherwise the next leader could deliver a record of which there is a dead letter."""
    share = with_letters(0, StateBatch(0, 1, Delivery.AVAILABLE, 1))
    assert share.acquire("a", [(0, 1)], MANY, NOW) == [Acquired(0, 1, 2)]
    assert share.expire(NOW + 1_000)
    assert not share.has_letters
    assert share.deadline_ms is None
    save(share, is_durable=False)
    assert not share.has_letters
    assert share.deadline_ms == NOW + 1_000, "the lock expires once more"
    assert share.expire(NOW + 1_000)
    save(share)
    assert share.letters() == [DeadRecords(0, 1, 2, False)]


def test_a_gap_has_no_dead_letter() -> None:
    share = acquired(with_letters(), 0, 2)
    ack(share, "a", 0, 0, AckType.GAP)
    ack(share, "a", 1, 1, AckType.REJECT)
    assert save(share).batches[0] == StateBatch(0, 1, Delivery.ARCHIVED, 1)
    assert share.letters() == [DeadRecords(1, 2, 1, True)]


def test_hidden_offsets_have_no_dead_letter() -> None:
    share = with_letters()
    share.hide(0, 3)
    assert (share.start_offset, share.letters()) == (3, [])


def test_a_group_without_a_dead_letter_topic_archives_at_once() -> None:
    share = acquired(partition(), 0, 1)
    ack(share, "a", 0, 0, AckType.REJECT)
    assert save(share).batches == (StateBatch(0, 1, Delivery.ARCHIVED, 1),)


def test_a_new_leader_knows_which_records_wait_for_dead_letters() -> None:
    share = with_letters(3, StateBatch(3, 5, Delivery.ARCHIVING, 2), StateBatch(5, 6, Delivery.AVAILABLE, 1))
    assert share.letters() == [DeadRecords(3, 5, 2, False)]
    assert share.letters(4) == [DeadRecords(4, 5, 2, False)]
    assert share.letters(5) == []
    assert share.next_fetch_offset == 5


def test_a_dead_letter_is_not_written_again_if_its_save_fails() -> None:
    share = with_letters(0, StateBatch(0, 2, Delivery.ARCHIVING, 1))
    share.buried(0, 2)
    save(share, is_durable=False)
    assert (share.letters(), share.start_offset) == ([], 0)
    assert save(share).batches == (StateBatch(0, 2, Delivery.ARCHIVED, 1),)
    assert share.start_offset == 2


def test_records_that_wait_for_dead_letters_are_in_flight() -> None:
    share = SharePartition(replace(LIMITS, has_dead_letters=True, max_in_flight=4), 0)
    share.acquire("a", [(0, 4)], MANY, NOW)
    ack(share, "a", 0, 0, AckType.REJECT)
    ack(share, "a", 1, 3, AckType.ACCEPT)
    save(share)
    assert not share.may_acquire
    share.buried(0, 1)
    save(share)
    assert share.may_acquire


def test_records_below_the_log_start_no_longer_wait_for_dead_letters() -> None:
    share = with_letters(0, StateBatch(0, 5, Delivery.ARCHIVING, 1))
    share.follow_log_start(3)
    assert share.letters() == [DeadRecords(3, 5, 1, False)]
    share.follow_log_start(9)
    assert not share.has_letters
