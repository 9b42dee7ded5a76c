"""The outcome of a transaction whose marker a partition has lost."""

from __future__ import annotations

import pytest

from broker.core.coordinator.transaction_records import EPOCH_MAX
from broker.core.coordinator.transaction_requests import FindOutcome, Outcome
from broker.core.transactions import ProducerKey
from tests.unit.broker.core.coordinator.test_transaction_machine import T0, T1
from tests.unit.broker.core.coordinator.test_transaction_version_2 import Newer


@pytest.fixture
def rig() -> Newer:
    return Newer()


def outcome(rig: Newer, producer: ProducerKey) -> Outcome:
    found: Outcome = rig.ask(FindOutcome(producer, T0)).outcome
    return found


def test_a_transaction_is_open_while_its_partition_waits_for_the_marker(rig: Newer) -> None:
    producer = rig.begin()
    rig.add(producer, T0, T1)
    assert outcome(rig, producer) is Outcome.OPEN
    rig.finish(producer)
    assert outcome(rig, producer) is Outcome.OPEN
    rig.mark(T1)
    assert outcome(rig, producer) is Outcome.OPEN


@pytest.mark.parametrize("commit", [True, False])
def test_the_outcome_of_a_newer_clients_last_transaction_is_known_until_the_next_one_begins(
    rig: Newer, commit: bool
) -> None:
    producer = rig.begin()
    rig.add(producer, T0)
    following = rig.ended(producer, commit=commit)
    assert outcome(rig, producer) is (Outcome.COMMITTED if commit else Outcome.ABORTED)
    rig.add(following, T1)
    assert outcome(rig, producer) is Outcome.ABORTED, "the coordinator no longer knows the outcome"


def test_a_transaction_before_the_current_one_is_reported_as_aborted(rig: Newer) -> None:
    producer = rig.begin()
    rig.add(producer, T0)
    following = rig.ended(producer)
    rig.add(following, T0)
    assert outcome(rig, producer) is Outcome.ABORTED
    assert outcome(rig, following) is Outcome.OPEN


def test_a_completed_transaction_of_an_older_client_is_reported_as_aborted(rig: Newer) -> None:
    """The coordinator cannot tell this transaction from a later one, which has the same epoch."""
    producer = rig.begin()
    rig.add(producer, T0)
    rig.finish(producer, version=0)
    rig.mark()
    assert outcome(rig, producer) is Outcome.ABORTED


def test_the_outcome_is_known_although_the_client_continues_with_another_producer_id(rig: Newer) -> None:
    last = rig.at_last_epoch()
    rig.add(last, T0)
    rig.ended(last)
    assert outcome(rig, last) is Outcome.COMMITTED
    assert outcome(rig, ProducerKey(last.producer_id, EPOCH_MAX - 1)) is Outcome.ABORTED


def test_the_outcome_of_a_producer_without_a_transactional_id_is_unknown(rig: Newer) -> None:
    rig.begin()
    assert outcome(rig, ProducerKey(1, 0)) is Outcome.UNKNOWN
