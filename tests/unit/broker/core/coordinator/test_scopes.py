"""Transaction scopes: runs and owners, ends decided by one record, and work that a later coordinator continues."""

from __future__ import annotations

import gc
import weakref
from typing import NamedTuple

import pytest
from msgspec.structs import replace

from broker.core.coordinator.fields import BadRecord
from broker.core.coordinator.machine import Record
from broker.core.coordinator.scope_records import (
    ScopeState,
    ScopeValue,
    read_scope,
    read_scope_key,
    write_scope,
    write_scope_key,
)
from broker.core.coordinator.scope_requests import InitScopeProducer, Winner
from broker.core.coordinator.scopes import EPOCH_MAX
from broker.core.coordinator.transaction_records import (
    Partition,
    TransactionState,
    TransactionValue,
    read_transaction_key,
    write_transaction,
    write_transaction_key,
)
from broker.core.coordinator.transaction_requests import FindOutcome, InitProducer, Outcome
from broker.core.transactions import ProducerKey
from quorumlog.wire.errors import KafkaCode
from quorumlog.wire.scope_names import transactional_id
from tests.unit.broker.core.coordinator.scope_rig import LIMITS, SCOPE, T0, T1, WALL, ScopeRig

A = transactional_id(SCOPE, "a")
B = transactional_id(SCOPE, "b")


@pytest.fixture
def rig() -> ScopeRig:
    return ScopeRig()


def decisions(rig: ScopeRig) -> dict[str, bool]:
    return {effect.transactional_id: effect.is_commit for effect in rig.effects}


def test_a_closed_machine_is_freed_without_garbage_collection(rig: ScopeRig) -> None:
    epoch = rig.open()
    rig.end(epoch, 1, rig.staged(epoch, "a", T0))
    rig.machine.close()
    machine = weakref.ref(rig.machine)
    gc.disable()
    try:
        del rig.machine
        assert machine() is None, "the machine refers to all transactional ids"
    finally:
        gc.enable()


# -- ends


def test_an_end_commits_the_winners_and_aborts_all_others_by_one_record(rig: ScopeRig) -> None:
    epoch = rig.open()
    winner, loser = rig.staged(epoch, "a", T0), rig.staged(epoch, "b", T0, T1)
    before = len(rig.log)
    found = rig.end(epoch, 7, winner)
    assert (found.error, found.changed, found.sequence) == (KafkaCode.NONE, True, 7)
    assert len(rig.log) == before + 1
    assert decisions(rig) == {A: True, B: False}
    assert {effect.transactional_id: effect.partitions for effect in rig.effects} == {A: (T0,), B: (T0, T1)}
    assert (rig.state_of(winner), rig.state_of(loser)) == ("PrepareCommit", "PrepareAbort")
    assert rig.described().state == "Ending"
    rig.mark()
    assert rig.described().state == "Open"
    assert rig.described().sequence == 7
    assert rig.described().producers == ()
    assert rig.states() == {}


def test_an_end_raises_the_epoch_of_each_producer_so_that_late_batches_are_refused(rig: ScopeRig) -> None:
    epoch = rig.open()
    winner, loser = rig.staged(epoch, "a", T0), rig.staged(epoch, "b", T0)
    rig.end(epoch, 0, winner)
    for each, effect in zip((winner, loser), rig.effects, strict=True):
        assert effect.producer == (each.producer.producer_id, each.producer.epoch + 1)
        assert rig.add(each, T1, verify=True) == [KafkaCode.PRODUCER_FENCED]
    rig.mark()
    for each in (winner, loser):
        assert rig.add(each, T1) == [KafkaCode.INVALID_PRODUCER_ID_MAPPING]


def test_an_end_without_producers_stores_its_sequence_at_once(rig: ScopeRig) -> None:
    epoch = rig.open()
    assert rig.end(epoch, 3).changed
    assert (rig.described().state, rig.described().sequence) == ("Open", 3)


@pytest.mark.parametrize("sequence", [7, 6, 0])
def test_an_end_whose_sequence_is_not_greater_succeeds_and_changes_nothing(rig: ScopeRig, sequence: int) -> None:
    epoch = rig.open()
    rig.end(epoch, 7)
    winner = rig.staged(epoch, "a", T0)
    before = len(rig.log)
    found = rig.end(epoch, sequence, winner)
    assert (found.error, found.changed, found.sequence) == (KafkaCode.NONE, False, 7)
    assert (len(rig.log), rig.effects, rig.state_of(winner)) == (before, [], "Ongoing")


def test_a_repeated_end_is_reported_as_unchanged_even_before_the_first_end_is_complete(rig: ScopeRig) -> None:
    epoch = rig.open()
    winner = rig.staged(epoch, "a", T0)
    assert rig.end(epoch, 1, winner).changed
    again = rig.end(epoch, 1, winner)
    assert (again.error, again.changed) == (KafkaCode.NONE, False)
    assert rig.end(epoch, 2).error is KafkaCode.CONCURRENT_TRANSACTIONS
    rig.mark()
    assert rig.end(epoch, 2).changed


def test_a_producer_without_records_may_be_a_winner_or_a_loser_of_an_end(rig: ScopeRig) -> None:
    epoch = rig.open()
    winner = rig.staged(epoch, "a")
    rig.staged(epoch, "b")
    assert rig.end(epoch, 1, winner).changed
    rig.mark()
    assert (rig.described().state, rig.described().producers) == ("Open", ())


def test_a_producer_that_begins_while_the_scope_ends_is_not_affected(rig: ScopeRig) -> None:
    epoch = rig.open()
    winner = rig.staged(epoch, "a", T0)
    rig.end(epoch, 1, winner)
    later = rig.staged(epoch, "c", T1)
    for _ in range(2):
        rig.fail_over()
        assert rig.state_of(later) == "Ongoing"
    rig.mark()
    assert rig.described().state == "Open"
    assert rig.state_of(later) == "Ongoing"
    assert rig.end(epoch, 2, later).changed
    assert decisions(rig)[transactional_id(SCOPE, "c")]


@pytest.mark.parametrize("case", ["unknown", "epoch", "replaced", "aborted", "slash"])
def test_an_end_that_names_an_invalid_winner_is_refused_and_changes_nothing(rig: ScopeRig, case: str) -> None:
    epoch = rig.open()
    good, bad = rig.staged(epoch, "a", T0), rig.staged(epoch, "b", T0)
    match case:
        case "unknown":
            bad = Winner("x", bad.producer)
        case "epoch":
            bad = Winner("b", ProducerKey(bad.producer.producer_id, bad.producer.epoch + 1))
        case "replaced":
            assert rig.begin(epoch, "b").error is KafkaCode.CONCURRENT_TRANSACTIONS
            rig.mark()
            rig.staged(epoch, "b")
        case "aborted":
            assert rig.end_one(bad, commit=False) is KafkaCode.NONE
        case "slash":  # its transactional id is that of a producer of another scope
            other = rig.staged(rig.open(scope=f"{SCOPE}/x"), "a", T0, scope=f"{SCOPE}/x")
            bad = Winner("x/a", other.producer)
    before = len(rig.log)
    found = rig.end(epoch, 1, good, bad)
    assert found.error is KafkaCode.INVALID_TXN_STATE
    assert bad.attempt in found.message
    assert (len(rig.log), rig.state_of(good), rig.described().sequence) == (before, "Ongoing", -1)


def test_an_end_with_invalid_arguments_is_refused(rig: ScopeRig) -> None:
    epoch = rig.open()
    winner = rig.staged(epoch, "a", T0)
    assert rig.end(epoch, -1).error is KafkaCode.INVALID_REQUEST
    assert rig.end(epoch, 1, winner, winner).error is KafkaCode.INVALID_REQUEST
    assert rig.end(epoch + 1, 1, winner).error is KafkaCode.INVALID_PRODUCER_EPOCH
    assert rig.end(epoch, 1, winner, scope="other").error is KafkaCode.RESOURCE_NOT_FOUND
    assert rig.state_of(winner) == "Ongoing"


# -- runs and owners


def test_a_newer_run_aborts_the_producers_of_the_older_run_and_fences_that_run(rig: ScopeRig) -> None:
    old = rig.open("run-1")
    rig.end(old, 4)
    staged = rig.staged(old, "a", T0)
    new = rig.init("run-2")
    assert (new.error, new.sequence) == (KafkaCode.NONE, 4)
    assert new.epoch > old
    assert decisions(rig) == {A: False}
    assert rig.end(old, 5, staged).error is KafkaCode.PRODUCER_FENCED
    assert rig.end(old, 4).error is KafkaCode.PRODUCER_FENCED  # even if the end would change nothing
    assert rig.begin(old, "b").error is KafkaCode.PRODUCER_FENCED
    assert rig.abort(old) is KafkaCode.PRODUCER_FENCED
    assert rig.add(staged, T1) == [KafkaCode.PRODUCER_FENCED]
    rig.mark()
    assert rig.end(new.epoch, 5, rig.staged(new.epoch, "a", T0)).changed


def test_a_repeated_initialization_of_a_run_gets_the_same_epoch_and_changes_nothing(rig: ScopeRig) -> None:
    epoch = rig.open()
    staged = rig.staged(epoch, "a", T0)
    before = len(rig.log)
    again = rig.init()
    assert (again.error, again.epoch, len(rig.log)) == (KafkaCode.NONE, epoch, before)
    assert rig.state_of(staged) == "Ongoing"


def test_another_owner_is_refused_with_the_name_of_the_current_owner(rig: ScopeRig) -> None:
    epoch = rig.open()
    rig.end(epoch, 9)
    staged = rig.staged(epoch, "a", T0)
    before = len(rig.log)
    found = rig.init("run-2", owner="query-2")
    assert (found.error, found.owner) == (KafkaCode.DUPLICATE_RESOURCE, "query-1")
    assert "query-1" in found.message
    assert (len(rig.log), rig.state_of(staged)) == (before, "Ongoing")
    assert rig.end(epoch, 10, staged).changed


def test_a_reset_gives_a_scope_to_another_owner_and_clears_its_sequence(rig: ScopeRig) -> None:
    epoch = rig.open()
    rig.end(epoch, 9)
    rig.staged(epoch, "a", T0)
    found = rig.init("run-2", owner="query-2", reset=True)
    assert (found.error, found.sequence, found.owner) == (KafkaCode.NONE, -1, "query-2")
    assert decisions(rig) == {A: False}
    assert rig.end(epoch, 10).error is KafkaCode.PRODUCER_FENCED
    rig.mark()
    assert rig.end(found.epoch, 0).changed
    again = rig.init("run-2", owner="query-2", reset=True)  # the answer was lost
    assert again.sequence == 0


@pytest.mark.parametrize("fails_over", [False, True])
@pytest.mark.parametrize("reset", [False, True])
def test_a_late_initialization_of_a_replaced_run_is_refused_and_changes_nothing(
    rig: ScopeRig, reset: bool, fails_over: bool
) -> None:
    """The connection of the first driver was cut, and delivers its request again after the second one has worked."""
    rig.init("run-1", reset=reset)
    epoch = rig.open("run-2")
    rig.end(epoch, 5)
    staged = rig.staged(epoch, "a", T0)
    if fails_over:
        rig.fail_over()
    before = len(rig.log)
    late = rig.init("run-1", reset=reset)
    assert (late.error, late.epoch, late.sequence) == (KafkaCode.PRODUCER_FENCED, epoch, 5)
    assert "run run-2 has replaced run run-1" in late.message
    assert (len(rig.log), rig.state_of(staged), rig.described().run) == (before, "Ongoing", "run-2")
    assert not rig.end(epoch, 5).changed, "the sequence is not forgotten"
    assert rig.end(epoch, 6, staged).changed


def test_a_late_reset_by_a_replaced_owner_does_not_take_the_scope_back(rig: ScopeRig) -> None:
    rig.init("run-1", reset=True)
    assert rig.init("run-1", owner="query-2", reset=True).owner == "query-2"  # another owner has its own names
    assert rig.init("run-1", reset=True).error is KafkaCode.PRODUCER_FENCED
    assert rig.init("run-1").error is KafkaCode.DUPLICATE_RESOURCE
    assert rig.init("run-2", reset=True).owner == "query-1"


def test_a_late_initialization_from_before_a_deletion_does_not_fence_the_next_run(rig: ScopeRig) -> None:
    assert rig.abort(rig.open("run-1"), close=True) is KafkaCode.NONE
    epoch = rig.open("run-2")
    assert rig.init("run-1", reset=True).error is KafkaCode.PRODUCER_FENCED
    assert rig.abort(epoch, close=True) is KafkaCode.NONE
    assert rig.open("run-1") > epoch, "a deleted scope may be opened under any run"
    assert rig.init("run-1").error is KafkaCode.NONE


def test_the_number_of_replaced_runs_that_are_known_is_bounded() -> None:
    rig = ScopeRig(replace(LIMITS, scopes=replace(LIMITS.scopes, replaced_runs_max=2)))
    for number in range(4):
        rig.open(f"run-{number}")
    assert [rig.init(f"run-{number}").error for number in (1, 2)] == [KafkaCode.PRODUCER_FENCED] * 2
    assert rig.init("run-0").error is KafkaCode.NONE


def test_the_epoch_of_a_recreated_scope_is_higher_even_if_the_wall_clock_went_back(rig: ScopeRig) -> None:
    old = rig.open("run-1")
    assert rig.abort(old, close=True) is KafkaCode.NONE
    rig.fail_over()
    rig.now = -1_000
    new = rig.open("run-2")
    staged = rig.staged(new, "a", T0)
    assert rig.abort(old, close=True) is KafkaCode.PRODUCER_FENCED  # its first answer was lost
    assert rig.end(new, 0, staged).changed


def test_a_late_duplicate_of_an_abort_makes_the_next_end_fail_as_a_whole(rig: ScopeRig) -> None:
    """As after the timeout of a producer, the end names a winner that was aborted, and is refused as a whole."""
    epoch = rig.open()
    rig.staged(epoch, "a", T0)
    assert rig.abort(epoch) is KafkaCode.NONE
    rig.mark()
    winners = [rig.staged(epoch, attempt, T0) for attempt in "bc"]
    assert rig.abort(epoch) is KafkaCode.NONE  # the duplicate
    rig.mark()
    assert rig.end(epoch, 1, *winners).error is KafkaCode.INVALID_TXN_STATE
    assert rig.end(epoch, 1, rig.staged(epoch, "d", T0)).changed
    assert list(decisions(rig).values()) == [True]
    assert set(rig.decided.values()) == {False, True}


def test_a_late_duplicate_of_a_begin_aborts_the_transaction_of_its_producer(rig: ScopeRig) -> None:
    epoch = rig.open()
    winner = rig.staged(epoch, "a", T0)
    assert rig.begin(epoch, "a").error is KafkaCode.CONCURRENT_TRANSACTIONS  # the duplicate
    assert rig.end(epoch, 1, winner).error is KafkaCode.INVALID_TXN_STATE
    rig.mark()
    assert rig.end(epoch, 1, rig.staged(epoch, "a", T0)).changed


def test_a_deleted_scope_whose_tombstone_was_lost_reports_its_old_sequence(rig: ScopeRig) -> None:
    """The replica was down for longer than delete.retention.ms, so its log still has the scope that was deleted."""
    epoch = rig.open("run-1")
    rig.end(epoch, 7)
    kept = list(rig.log)
    rig.abort(epoch, close=True)
    rig.fail_over(kept)
    assert rig.init("run-2").sequence == 7, "so the driver learns that it must not begin with 0"
    assert rig.init("run-3", reset=True).sequence == -1


def test_a_new_run_waits_until_the_pending_end_of_the_previous_run_is_complete(rig: ScopeRig) -> None:
    epoch = rig.open()
    rig.end(epoch, 1, rig.staged(epoch, "a", T0))
    assert rig.init("run-2").error is KafkaCode.CONCURRENT_TRANSACTIONS
    assert rig.init("run-1").epoch == epoch
    rig.mark()
    assert rig.init("run-2").sequence == 1
    assert rig.decided == {(101, 1): True}


@pytest.mark.parametrize("bad", ["", "x" * 250, "a\nb"])
def test_invalid_names_of_scope_owner_and_run_are_refused(rig: ScopeRig, bad: str) -> None:
    for found in (rig.init(scope=bad), rig.init(owner=bad), rig.init(run=bad)):
        assert found.error is KafkaCode.INVALID_REQUEST
    assert rig.log == []


# -- producers


def test_ordinary_requests_neither_begin_nor_commit_a_producer_of_a_scope(rig: ScopeRig) -> None:
    epoch = rig.open()
    staged = rig.staged(epoch, "a", T0)
    for name in (A, "__scope/x", "__scope/"):
        assert rig.ask(InitProducer(name, 10_000, fresh_id=1)).error is KafkaCode.INVALID_REQUEST
    assert rig.end_one(staged, commit=True) is KafkaCode.INVALID_TXN_STATE
    assert rig.state_of(staged) == "Ongoing"
    assert rig.effects == []


def test_an_ordinary_transactional_id_with_a_slash_does_not_belong_to_a_scope(rig: ScopeRig) -> None:
    assert rig.ask(InitProducer("job/a", 10_000, fresh_id=1)).error is KafkaCode.NONE
    epoch = rig.open()
    rig.staged(epoch, "a", T0)
    assert rig.abort(epoch) is KafkaCode.NONE
    assert rig.states()["job/a"] == "Empty"


def test_a_producer_of_a_scope_may_abort_its_transaction_and_is_then_deleted(rig: ScopeRig) -> None:
    epoch = rig.open()
    staged = rig.staged(epoch, "a", T0)
    assert rig.end_one(staged, commit=False) is KafkaCode.NONE
    rig.mark()
    assert rig.described().producers == ()
    assert rig.end(epoch, 1).changed


def test_an_end_leaves_a_producer_that_is_being_aborted_as_it_is(rig: ScopeRig) -> None:
    """Otherwise its markers would no longer be those of its producer, and the scope would never open again."""
    epoch = rig.open()
    winner, aborted = rig.staged(epoch, "a", T0), rig.staged(epoch, "b", T1)
    rig.end_one(aborted, commit=False)
    before = [each.producer for each in rig.described().producers if each.attempt == "b"]
    assert rig.end(epoch, 1, winner).changed
    assert [each.producer for each in rig.described().producers if each.attempt == "b"] == before
    rig.mark()
    assert rig.described().producers == ()
    assert rig.described().state == "Open"


def test_a_producer_that_begins_again_fences_its_predecessor(rig: ScopeRig) -> None:
    epoch = rig.open()
    old = rig.staged(epoch, "a")
    new = rig.staged(epoch, "a", T0)
    assert new.producer == (old.producer.producer_id, old.producer.epoch + 1)
    assert rig.add(old, T0) == [KafkaCode.PRODUCER_FENCED]
    assert rig.begin(epoch, "a").error is KafkaCode.CONCURRENT_TRANSACTIONS
    assert decisions(rig) == {A: False}
    rig.mark()
    assert rig.begin(epoch, "a").error is KafkaCode.NONE


def test_a_reused_producer_id_starts_above_the_epoch_of_its_last_markers(rig: ScopeRig) -> None:
    epoch = rig.open()
    first = rig.staged(epoch, "a", T0)
    rig.end(epoch, 1, first)
    marker = rig.effects[0].producer
    rig.mark()
    second = rig.staged(epoch, "b", T0)
    assert second.producer == (first.producer.producer_id, marker[1] + 1)
    assert rig.next_id == 101
    rig.fail_over()
    assert rig.state_of(second) == "Ongoing"
    assert rig.staged(epoch, "c").producer == (102, 0)  # the later coordinator knows no free ids


def test_a_coordinator_remembers_only_producers_that_exist(rig: ScopeRig) -> None:
    epoch = rig.open()
    for attempt in ("a", "b", "c"):
        rig.staged(epoch, attempt, T0)
    rig.abort(epoch)
    rig.mark()
    rig.staged(epoch, "d")
    assert rig.machine._scopes._begun == {transactional_id(SCOPE, "d")}


class Outage(NamedTuple):
    """A producer was deleted, and another one has begun with its id.

    epoch: the epoch of the scope.
    log: the log of a replica that was down for longer than delete.retention.ms, so that it lacks the deletion.
    """

    epoch: int
    log: list[Record]
    deleted: Winner
    current: Winner


@pytest.fixture(params=[(), (T0,)], ids=["without records", "with records"])
def outage(rig: ScopeRig, request: pytest.FixtureRequest) -> Outage:
    partitions: tuple[Partition, ...] = request.param
    epoch = rig.open()
    deleted = rig.staged(epoch, "a", *partitions)
    missed = len(rig.log)
    rig.abort(epoch)
    rig.mark()
    fetched = len(rig.log)
    current = rig.staged(epoch, "b", T0)
    assert current.producer.producer_id == deleted.producer.producer_id
    return Outage(epoch, rig.log[:missed] + rig.log[fetched:], deleted, current)


def test_a_deleted_producer_in_a_stale_log_is_deleted_again_if_another_producer_has_its_id(
    rig: ScopeRig, outage: Outage
) -> None:
    """It needs no markers.  The leader of T0 must learn that the other producer's transaction is still open."""
    epoch, log, deleted, current = outage
    rig.fail_over(log)
    assert [each.producer for each in rig.described().producers] == [current.producer]
    assert rig.effects == []
    assert rig.add(deleted, T0, verify=True) == [KafkaCode.INVALID_PRODUCER_ID_MAPPING]
    assert rig.ask(FindOutcome(current.producer, T0)).outcome is Outcome.OPEN
    rig.fail_over([*log, rig.log[-1]])
    assert rig.end(epoch, 1, current).changed


def test_a_scope_completes_its_end_although_a_stale_log_shows_a_deleted_producer(rig: ScopeRig, outage: Outage) -> None:
    rig.end(outage.epoch, 1, outage.current)
    rig.fail_over([*outage.log, rig.log[-1]])
    assert decisions(rig) == {B: True}
    rig.mark()
    assert rig.described().state == "Open"


def test_the_id_of_a_deleted_producer_in_a_stale_log_is_not_reused(rig: ScopeRig, outage: Outage) -> None:
    """Compaction has removed all records of the other producer with this id."""
    epoch, log, deleted, current = outage
    rig.fail_over([record for record in log if read_transaction_key(record.key) != B])
    assert [each.producer for each in rig.described().producers] == [deleted.producer]
    rig.abort(epoch)
    rig.mark()
    assert rig.described().producers == ()
    later = {rig.staged(epoch, attempt).producer for attempt in ("a", "b", "c")}
    assert later == {(102, 0), (103, 0), (104, 0)}
    assert current.producer not in later


def test_a_producer_that_begins_again_at_a_later_coordinator_gets_another_id(rig: ScopeRig) -> None:
    """The log may lack later records of the former producer, so its next epoch may already be in use."""
    epoch = rig.open()
    old = rig.staged(epoch, "a")
    rig.fail_over(list(rig.log))
    new = rig.staged(epoch, "a", T0)
    assert new.producer == (102, 0)
    assert rig.add(old, T0) == [KafkaCode.INVALID_PRODUCER_ID_MAPPING]
    assert rig.end(epoch, 1, old).error is KafkaCode.INVALID_TXN_STATE
    assert rig.end(epoch, 1, new).changed
    rig.mark()
    assert rig.staged(epoch, "b").producer == (102, 2), "this coordinator drew the id itself"


def test_an_id_whose_epochs_are_used_up_is_not_used_again(rig: ScopeRig) -> None:
    epoch = rig.open()
    rig.staged(epoch, "a", T0)
    last = TransactionValue(101, EPOCH_MAX, 10_000, TransactionState.ONGOING, (T0,), WALL, WALL)
    rig.machine.replay(Record(write_transaction_key(A), write_transaction(last)))
    assert rig.end(epoch, 1, Winner("a", ProducerKey(101, EPOCH_MAX))).changed
    assert rig.effects[0].producer == (101, EPOCH_MAX + 1)
    rig.mark()
    assert rig.staged(epoch, "b").producer == (102, 0)


def test_the_number_of_producers_and_scopes_is_bounded(rig: ScopeRig) -> None:
    epoch = rig.open()
    for attempt in "abcd":
        rig.staged(epoch, attempt)
    refused = rig.begin(epoch, "e")
    assert (refused.error, "4 producers" in refused.message) == (KafkaCode.POLICY_VIOLATION, True)
    assert rig.begin(epoch, "d").error is KafkaCode.NONE
    rig.open(scope="x")
    rig.open(scope="y")
    assert rig.init(scope="z").error is KafkaCode.POLICY_VIOLATION
    assert rig.init("run-2", scope="y").error is KafkaCode.NONE


@pytest.mark.parametrize(
    ("attempt", "timeout_ms", "error"),
    [
        ("", 1, KafkaCode.INVALID_REQUEST),
        ("a/b", 1, KafkaCode.INVALID_REQUEST),
        ("x" * 65, 1, KafkaCode.INVALID_REQUEST),
        ("a", 0, KafkaCode.INVALID_TRANSACTION_TIMEOUT),
        ("a", 60_001, KafkaCode.INVALID_TRANSACTION_TIMEOUT),
    ],
)
def test_a_begin_with_invalid_arguments_is_refused_and_writes_no_record(
    rig: ScopeRig, attempt: str, timeout_ms: int, error: KafkaCode
) -> None:
    epoch = rig.open()
    before = len(rig.log)
    assert rig.begin(epoch, attempt, timeout_ms).error is error
    assert len(rig.log) == before


def test_a_begin_without_an_existing_scope_or_with_a_wrong_epoch_is_refused(rig: ScopeRig) -> None:
    assert rig.ask(InitScopeProducer(SCOPE, 0, "a", 1_000)).error is KafkaCode.RESOURCE_NOT_FOUND
    epoch = rig.open()
    assert rig.begin(epoch + 1, "a").error is KafkaCode.INVALID_PRODUCER_EPOCH


# -- aborts and time


def test_an_abort_keeps_the_sequence(rig: ScopeRig) -> None:
    epoch = rig.open()
    rig.end(epoch, 5)
    rig.staged(epoch, "a", T0)
    assert rig.abort(epoch) is KafkaCode.NONE
    assert decisions(rig) == {A: False}
    assert rig.abort(epoch) is KafkaCode.CONCURRENT_TRANSACTIONS
    rig.mark()
    before = len(rig.log)
    assert rig.abort(epoch) is KafkaCode.NONE
    assert len(rig.log) == before
    assert rig.described().sequence == 5


def test_a_closed_scope_is_deleted_once_its_producers_are_complete(rig: ScopeRig) -> None:
    epoch = rig.open()
    rig.staged(epoch, "a", T0)
    assert rig.abort(epoch, close=True) is KafkaCode.NONE
    assert rig.abort(epoch, close=True) is KafkaCode.NONE
    assert rig.begin(epoch, "b").error is KafkaCode.RESOURCE_NOT_FOUND
    assert rig.end(epoch, 1).error is KafkaCode.RESOURCE_NOT_FOUND
    assert rig.init("run-2").error is KafkaCode.CONCURRENT_TRANSACTIONS
    rig.mark()
    assert rig.described().error is KafkaCode.RESOURCE_NOT_FOUND
    rig.pass_time(1)
    assert rig.open() > epoch  # a driver of the deleted scope stays fenced
    assert rig.end(epoch, 1).error is KafkaCode.PRODUCER_FENCED


def test_a_producer_of_a_scope_is_aborted_at_its_timeout(rig: ScopeRig) -> None:
    epoch = rig.open()
    staged = rig.staged(epoch, "a", T0)
    rig.pass_time(9_999)
    assert rig.effects == []
    rig.pass_time(1)
    assert decisions(rig) == {A: False}
    assert rig.end(epoch, 1, staged).error is KafkaCode.INVALID_TXN_STATE
    rig.mark()
    assert rig.described().producers == ()
    assert rig.end(epoch, 1, staged).error is KafkaCode.INVALID_TXN_STATE


def test_a_scope_without_an_end_expires_like_a_transactional_id_and_other_scopes_much_later(rig: ScopeRig) -> None:
    rig.open()
    rig.end(rig.open(scope="ended"), 1, scope="ended")
    rig.pass_time(1_020_000)
    assert rig.described().error is KafkaCode.RESOURCE_NOT_FOUND
    assert rig.described("ended").sequence == 1
    rig.pass_time(5_020_000)
    assert rig.described("ended").error is KafkaCode.RESOURCE_NOT_FOUND


def test_a_jump_of_the_wall_clock_expires_no_scope(rig: ScopeRig) -> None:
    """Without its sequence, the next end would repeat work that is complete."""
    rig.end(rig.open(), 1)
    rig.jump = 100_000_000
    rig.pass_time(1_020_000)
    assert rig.described().sequence == 1


# -- a later coordinator


@pytest.mark.parametrize("written", range(4))
@pytest.mark.parametrize("compacted", [False, True])
def test_a_later_coordinator_continues_an_end_after_any_number_of_markers(
    rig: ScopeRig, written: int, compacted: bool
) -> None:
    epoch = rig.open()
    winner = rig.staged(epoch, "a", T0)
    rig.staged(epoch, "b", T1)
    rig.staged(epoch, "c")
    rig.end(epoch, 1, winner)
    rig.mark(count=written)
    rig.fail_over(rig.compact() if compacted else None)
    assert decisions(rig) == {name: name == A for name in [A, B, transactional_id(SCOPE, "c")][written:]}
    rig.mark()
    rig.fail_over(rig.compact() if compacted else None)
    assert rig.effects == []
    assert (rig.described().state, rig.described().sequence) == ("Open", 1)
    assert rig.states() == {}


def test_a_later_coordinator_opens_a_scope_whose_producers_were_all_complete(rig: ScopeRig) -> None:
    epoch = rig.open()
    rig.end(epoch, 1, rig.staged(epoch, "a", T0))
    rig.mark()
    assert rig.log.pop().key == write_scope_key(SCOPE)  # it was lost with the coordinator
    rig.fail_over()
    assert rig.described().state == "Open"
    rig.fail_over()
    assert rig.described().state == "Open"


def test_a_later_coordinator_deletes_a_closed_scope(rig: ScopeRig) -> None:
    epoch = rig.open()
    rig.staged(epoch, "a", T0)
    rig.abort(epoch, close=True)
    rig.fail_over()
    rig.mark()
    assert rig.described().error is KafkaCode.RESOURCE_NOT_FOUND
    rig.fail_over()
    assert rig.described().error is KafkaCode.RESOURCE_NOT_FOUND


# -- records


def test_records_of_scopes_have_a_key_version_that_readers_of_transactions_skip() -> None:
    key = write_scope_key("job")
    assert read_transaction_key(key) is None
    assert read_scope_key(key) == "job"
    assert read_scope_key(b"\0\0\0\x01x") is None
    assert key == bytes.fromhex("2710 0003") + b"job"


def test_a_scope_is_read_as_it_was_written() -> None:
    value = ScopeValue("owner", "run", 1 << 40, 5, ScopeState.ENDING, ("a", "ü"), 17)
    assert read_scope(write_scope(value)) == value


@pytest.mark.parametrize("damage", ["cut", "longer", "version", "state"])
def test_a_damaged_scope_is_refused(damage: str) -> None:
    data = write_scope(ScopeValue("o", "r", 0, -1, ScopeState.OPEN, (), 17))
    match damage:
        case "cut":
            data = data[:-1]
        case "longer":
            data += b"\0"
        case "version":
            data = b"\0\1" + data[2:]
        case "state":
            data = data[:24] + b"\x07" + data[25:]
    with pytest.raises(BadRecord):
        read_scope(data)
