"""The judge of a queue: the deliveries that it accepts, and the deliveries that it reports."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import pytest

from broker.coordinator.led_share import LedShare
from quorumlog.client.kafka import KafkaConnection
from simulation.cluster.workers import NEWEST_EPOCH, RESET_S, Completion, Lock, QueueWatch

RECORD = (0, 7)


class Connection:
    def __init__(self) -> None:
        self.is_open = True


class Judged:
    """A `QueueWatch` and the violations that it reports.  share: the share partition that gives the locks."""

    def __init__(self) -> None:
        self.violations: list[str] = []
        self.watch = QueueWatch(self._check)
        self.share = object()
        self.connections = {"a": Connection(), "b": Connection()}

    def _check(self, holds: bool, text: Callable[[], str]) -> None:
        if not holds:
            self.violations.append(text())

    def delivered(self, member: str, asked_s: float, received_s: float, leader_epoch: int = 4) -> None:
        connection = cast(KafkaConnection, self.connections[member])
        lock = Lock(member, received_s, asked_s + 0.5, self.share, leader_epoch, connection)
        self.watch.delivered(RECORD, lock, asked_s)


@pytest.fixture
def judged() -> Judged:
    return Judged()


def test_a_locked_record_must_not_reach_another_member(judged: Judged) -> None:
    judged.delivered("a", 1.0, 1.1)
    judged.delivered("b", 1.2, 1.3)
    judged.watch.judge(1.3)
    assert not judged.violations, "the connection of a may have broken"
    judged.watch.judge(1.4 + RESET_S)
    assert judged.violations == ["I40: b gets (0, 7) at 1.300, but a holds it"]


def test_a_broken_connection_releases_its_locks(judged: Judged) -> None:
    judged.delivered("a", 1.0, 1.1)
    judged.delivered("b", 1.2, 1.3)
    judged.connections["a"].is_open = False
    judged.watch.judge(1.4 + RESET_S)
    assert not judged.violations


def test_a_delivery_is_accepted_if_the_earlier_holder_of_the_record_closes_its_connection(judged: Judged) -> None:
    judged.delivered("a", 1.0, 1.1)
    judged.delivered("b", 1.2, 1.3)
    judged.watch.judge(1.4, cast(KafkaConnection, judged.connections["a"]))
    judged.watch.judge(1.4 + RESET_S)
    assert not judged.violations


@pytest.mark.parametrize(("asked_s", "received_s"), [(1.05, 1.2), (1.45, 1.6)], ids=["asked before", "lock expired"])
def test_a_delivery_outside_of_the_certain_time_of_a_lock_is_accepted(
    judged: Judged, asked_s: float, received_s: float
) -> None:
    judged.delivered("a", 1.0, 1.1)
    judged.delivered("b", asked_s, received_s)
    judged.watch.judge(9.0)
    assert not judged.violations


def test_a_new_leader_may_deliver_a_locked_record(judged: Judged) -> None:
    judged.delivered("a", 1.0, 1.1)
    judged.share = object()
    judged.delivered("b", 1.2, 1.3)
    judged.watch.judge(9.0)
    assert not judged.violations


def test_a_member_may_get_its_own_record_again(judged: Judged) -> None:
    judged.delivered("a", 1.0, 1.1)
    judged.delivered("a", 1.2, 1.3)
    judged.watch.judge(9.0)
    assert not judged.violations


def test_a_record_that_its_holder_gave_up_may_be_delivered_to_another_member(judged: Judged) -> None:
    judged.delivered("a", 1.0, 1.1)
    judged.watch.given_up("b", [RECORD])  # b does not hold the record
    assert RECORD in judged.watch.locks
    judged.watch.given_up("a", [RECORD])
    judged.delivered("b", 1.2, 1.3)
    judged.watch.judge(9.0)
    assert not judged.violations


def test_a_completed_record_must_not_be_delivered(judged: Judged) -> None:
    judged.watch.completed[RECORD] = Completion(2.0, leader_epoch=4)
    judged.delivered("a", 1.9, 2.1)  # requested before the completion
    assert not judged.violations
    judged.delivered("a", 2.1, 2.2)
    assert judged.violations == ["I41: a gets (0, 7) at 2.200, it was completed at 2.000"]


def test_a_deposed_leader_may_deliver_a_record_that_its_successor_has_completed(judged: Judged) -> None:
    judged.watch.completed[RECORD] = Completion(2.0, leader_epoch=4)
    judged.delivered("a", 2.1, 2.2, leader_epoch=3)
    assert not judged.violations
    judged.delivered("a", 2.1, 2.2, NEWEST_EPOCH)
    assert judged.violations, "by an unknown leader"


def test_a_record_with_a_dead_letter_must_not_be_delivered_except_by_a_deposed_leader(judged: Judged) -> None:
    judged.watch.wrote_letter(RECORD, Completion(1.0, 4))
    judged.delivered("a", 0.9, 1.1)
    judged.delivered("b", 1.2, 1.3, leader_epoch=3)
    assert not judged.violations
    judged.delivered("b", 1.4, 1.5)
    assert judged.violations == ["I46: b gets (0, 7) at 1.500, its letter is of 1.000"]


def test_an_accepted_record_must_not_get_a_dead_letter(judged: Judged) -> None:
    judged.watch.completes(RECORD, Completion(1.0, 4), None)
    judged.watch.wrote_letter(RECORD, Completion(2.0, 4))
    assert judged.violations == ["I46: (0, 7) gets a dead letter, although its acceptance was acknowledged"]


def test_a_rejected_record_lacks_its_letter_until_it_is_written(judged: Judged) -> None:
    judged.watch.completes(RECORD, Completion(1.0, 4, is_rejection=True), None)
    assert judged.watch.lacks_letter(RECORD)
    judged.watch.wrote_letter(RECORD, Completion(2.0, 4))
    judged.watch.wrote_letter(RECORD, Completion(3.0, 4))
    assert not judged.watch.lacks_letter(RECORD)
    assert not judged.violations


def test_an_acceptance_after_the_letter_is_wrong_only_while_its_lock_holds(judged: Judged) -> None:
    """Without a certain lock, the broker ignores an acceptance below the start of the share partition."""
    share = LedShare.__new__(LedShare)
    share.has_ended = False
    lock = Lock("a", 0.5, 1.5, share, 4, cast(KafkaConnection, judged.connections["a"]))
    judged.watch.wrote_letter(RECORD, Completion(1.0, 4))
    judged.watch.completes(RECORD, Completion(2.0, 4), lock)
    judged.watch.completes(RECORD, Completion(1.2, 4), None)
    assert not judged.violations
    judged.watch.completes(RECORD, Completion(1.2, 4), lock)
    assert judged.violations == ["I46: the acceptance of (0, 7) is acknowledged, but it has a dead letter"]
