"""The judge of transaction scopes: the sequences of events that it accepts, and those that it reports."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count

import pytest

from simulation.cluster.evidence import Evidence
from simulation.cluster.history import Mark
from simulation.cluster.ledger import Ledger
from simulation.cluster.metadata import Spot
from simulation.cluster.plan import RESULTS
from simulation.cluster.scope_watch import NO_SEQUENCE, Attempt, ScopeRun, ScopeWatch
from simulation.kernel.violation import Violation

SCOPE, OWNER = "nightly", "query"
SPOT = Spot(RESULTS, 0)


class Judged:
    """A judge, to which tests report the requests of drivers, their answers, and the records that become visible."""

    def __init__(self) -> None:
        evidence = Evidence(frozenset(), {})
        self.ledger = Ledger(evidence, RESULTS, evidence.check)
        self.watch = ScopeWatch(self.ledger, evidence.check)
        self._numbers = count(1)

    def open(self, epoch: int, sequence: int = NO_SEQUENCE, owner: str = OWNER, *, resets: bool = False) -> ScopeRun:
        run = self.watch.asks_to_open(SCOPE, owner, f"run {epoch}", resets=resets)
        self.watch.opened(run, epoch, sequence)
        return run

    def begin(self, run: ScopeRun, *, has_records: bool = True) -> Attempt:
        """Report that a producer has begun and, unless `has_records` is false, that its record was acknowledged."""
        number = next(self._numbers)
        attempt = self.watch.begun(run, f"{number}", (number, 0), was_fenced=False)
        if has_records:
            attempt.transaction.acknowledged[SPOT] = {Mark(number, 0)}
        return attempt

    def decide(self, attempt: Attempt, *, commits: bool) -> None:
        """Report that the marker of the producer is committed."""
        attempt.transaction.ends[SPOT] = commits
        self.ledger.on_end(attempt.transaction, SPOT, commits)

    def show(self, *attempts: Attempt) -> None:
        for attempt in attempts:
            self.decide(attempt, commits=True)

    def hide(self, *attempts: Attempt) -> None:
        for attempt in attempts:
            self.decide(attempt, commits=False)

    def end(self, run: ScopeRun, sequence: int, *winners: Attempt) -> None:
        """Report an end that was requested, and acknowledged as the one that changed the scope."""
        self.watch.ended(self.watch.asks_to_end(run, sequence, winners), changed=True, sequence=sequence)


@pytest.fixture
def judged() -> Judged:
    return Judged()


def violated(rule: str, action: Callable[[], object]) -> None:
    with pytest.raises(Violation, match=f"^{rule}: "):
        action()


# Records that become visible


def test_the_winners_of_an_end_become_visible_and_no_others(judged: Judged) -> None:
    run = judged.open(5)
    first, loser, second = (judged.begin(run) for _ in range(3))
    judged.end(run, 0, first, second)
    judged.show(first)
    judged.hide(loser)
    judged.show(second)
    judged.watch.check_all()


def test_a_losing_producer_must_not_become_visible(judged: Judged) -> None:
    run = judged.open(5)
    winner, loser = judged.begin(run), judged.begin(run)
    judged.end(run, 0, winner)
    violated("I42", lambda: judged.show(loser))


def test_a_winner_must_not_be_aborted_if_another_winner_of_its_end_is_visible(judged: Judged) -> None:
    run = judged.open(5)
    first, second = judged.begin(run), judged.begin(run)
    judged.watch.asks_to_end(run, 0, [first, second])
    judged.show(first)
    violated("I42", lambda: judged.hide(second))


def test_a_winner_of_an_acknowledged_end_must_not_be_aborted(judged: Judged) -> None:
    run = judged.open(5)
    winner = judged.begin(run)
    judged.end(run, 0, winner)
    violated("I42", lambda: judged.hide(winner))


def test_an_end_must_not_be_acknowledged_after_a_winner_was_aborted(judged: Judged) -> None:
    run = judged.open(5)
    winner = judged.begin(run)
    end = judged.watch.asks_to_end(run, 0, [winner])
    judged.hide(winner)
    violated("I34", lambda: judged.watch.ended(end, changed=True, sequence=0))


def test_an_end_that_was_refused_must_not_become_visible(judged: Judged) -> None:
    run = judged.open(5)
    winner = judged.begin(run)
    end = judged.watch.asks_to_end(run, 0, [winner])
    judged.watch.refused(end)
    violated("I42", lambda: judged.show(winner))


def test_an_end_that_is_visible_already_must_not_be_refused(judged: Judged) -> None:
    run = judged.open(5)
    winner = judged.begin(run)
    end = judged.watch.asks_to_end(run, 0, [winner])
    judged.show(winner)
    violated("I42", lambda: judged.watch.refused(end))


def test_the_winners_of_an_end_without_an_answer_may_be_committed_or_aborted(judged: Judged) -> None:
    run = judged.open(5)
    for sequence, decides in enumerate((judged.show, judged.hide)):
        winner = judged.begin(run)
        judged.watch.asks_to_end(run, sequence, [winner])
        decides(winner)
    judged.watch.check_all()


def test_a_decided_end_must_be_visible_as_a_whole(judged: Judged) -> None:
    run = judged.open(5)
    first, second, empty = judged.begin(run), judged.begin(run), judged.begin(run, has_records=False)
    judged.end(run, 0, first, second, empty)
    judged.show(first)
    violated("I42", judged.watch.check_all)
    judged.show(second)
    judged.watch.check_all()


def test_all_winners_must_be_visible_when_an_end_is_reported_as_complete(judged: Judged) -> None:
    run = judged.open(5)
    first, second = judged.begin(run), judged.begin(run)
    end = judged.watch.asks_to_end(run, 0, [first, second])
    judged.watch.ended(end, changed=True, sequence=0)
    judged.show(first)
    violated("I42", lambda: judged.watch.completed(end))
    judged.show(second)
    judged.watch.completed(end)


def test_an_acknowledged_end_must_become_visible(judged: Judged) -> None:
    run = judged.open(5)
    judged.end(run, 0, judged.begin(run))
    violated("I42", judged.watch.check_all)


def test_a_producer_that_was_aborted_must_not_be_committed_by_a_later_end(judged: Judged) -> None:
    run = judged.open(5)
    producer, other = judged.begin(run), judged.begin(run)
    judged.watch.aborted(judged.watch.attempts_of(run))
    violated("I42", lambda: judged.end(run, 0, producer))
    judged.watch.asks_to_end(run, 1, [other])
    violated("I42", lambda: judged.show(other))


# Sequences


def test_only_one_of_two_ends_of_a_sequence_may_be_visible(judged: Judged) -> None:
    run = judged.open(5)
    first, second = judged.begin(run), judged.begin(run)
    judged.watch.asks_to_end(run, 0, [first])
    judged.watch.asks_to_end(run, 0, [second])
    judged.show(second)
    violated("I42", lambda: judged.show(first))


def test_the_acknowledged_end_of_a_sequence_is_the_visible_one(judged: Judged) -> None:
    run = judged.open(5)
    first, second = judged.begin(run), judged.begin(run)
    judged.watch.asks_to_end(run, 0, [first])
    judged.end(run, 0, second)
    violated("I42", lambda: judged.show(first))


def test_two_ends_of_a_sequence_must_not_both_have_changed_the_scope(judged: Judged) -> None:
    run = judged.open(5)
    ends = [judged.watch.asks_to_end(run, 0, [judged.begin(run)]) for _ in range(2)]
    judged.watch.ended(ends[0], changed=True, sequence=0)
    violated("I42", lambda: judged.watch.ended(ends[1], changed=True, sequence=0))


@pytest.mark.parametrize("sequence", [3, 2])
def test_a_sequence_that_is_not_greater_must_change_nothing(judged: Judged, sequence: int) -> None:
    run = judged.open(5)
    first, second, third = (judged.begin(run) for _ in range(3))
    judged.end(run, 3, first)
    judged.show(first)
    end = judged.watch.asks_to_end(run, sequence, [second])
    judged.watch.ended(end, changed=False, sequence=3)
    violated("I43", lambda: judged.show(second))
    violated("I43", lambda: judged.end(run, sequence, third))


def test_an_answer_without_a_change_must_name_a_sequence_that_is_not_lower(judged: Judged) -> None:
    run = judged.open(5)
    end = judged.watch.asks_to_end(run, 3, [])
    violated("I43", lambda: judged.watch.ended(end, changed=False, sequence=2))
    violated("I43", lambda: judged.watch.ended(end, changed=True, sequence=4))


def test_a_later_run_must_not_get_a_lower_sequence_than_the_stored_one(judged: Judged) -> None:
    run = judged.open(5)
    winner = judged.begin(run)
    judged.watch.asks_to_end(run, 3, [winner])
    judged.show(winner)  # its answer was lost
    violated("I43", lambda: judged.open(6, 2))


def test_a_stored_sequence_must_be_one_that_a_driver_requested(judged: Judged) -> None:
    judged.open(5, 7)
    violated("I43", judged.watch.check_all)


def test_a_stored_sequence_without_an_answer_must_be_visible(judged: Judged) -> None:
    run = judged.open(5)
    winner = judged.begin(run)
    judged.watch.asks_to_end(run, 3, [winner])
    judged.open(6, 3)
    violated("I42", judged.watch.check_all)
    judged.show(winner)
    judged.watch.check_all()


# Runs


def test_an_undecided_end_of_a_fenced_run_must_not_become_visible(judged: Judged) -> None:
    run = judged.open(5)
    winner = judged.begin(run)
    judged.watch.asks_to_end(run, 0, [winner])
    judged.open(6)
    violated("I44", lambda: judged.show(winner))


def test_the_next_run_must_know_an_end_that_is_already_visible(judged: Judged) -> None:
    run = judged.open(5)
    winner = judged.begin(run)
    judged.watch.asks_to_end(run, 0, [winner])
    later = judged.watch.asks_to_open(SCOPE, OWNER, "run 6")
    judged.show(winner)
    violated("I42", lambda: judged.watch.opened(later, 6, NO_SEQUENCE))


def test_an_end_that_the_next_run_knows_may_become_visible_later(judged: Judged) -> None:
    run = judged.open(5)
    winner = judged.begin(run)
    judged.watch.asks_to_end(run, 0, [winner])
    judged.open(6, 0)
    judged.show(winner)
    judged.watch.check_all()


def test_a_fenced_run_must_neither_begin_a_producer_nor_end_the_scope(judged: Judged) -> None:
    run = judged.open(5)
    producer = judged.begin(run)
    assert not judged.watch.is_fenced(run)
    judged.open(6)
    assert judged.watch.is_fenced(run)
    violated("I44", lambda: judged.watch.begun(run, "late", (90, 0), was_fenced=True))
    violated("I44", lambda: judged.end(run, 0, producer))


def test_a_fenced_run_may_repeat_an_end_that_was_decided_before(judged: Judged) -> None:
    run = judged.open(5)
    winner = judged.begin(run)
    end = judged.watch.asks_to_end(run, 0, [winner])
    judged.open(6, 0)
    judged.watch.ended(end, changed=False, sequence=0)
    judged.show(winner)


def test_the_epoch_of_a_run_must_be_new_and_above_those_before(judged: Judged) -> None:
    late = judged.watch.asks_to_open(SCOPE, OWNER, "late")
    judged.open(5)
    violated("I44", lambda: judged.open(4))
    violated("I44", lambda: judged.open(5))
    judged.watch.opened(late, 4, NO_SEQUENCE)  # requested before the run of epoch 5 was open
    same = judged.watch.asks_to_open("another scope", OWNER, "run 5")
    judged.watch.opened(same, 5, NO_SEQUENCE)


# Owners


def test_a_stranger_must_not_open_a_scope(judged: Judged) -> None:
    judged.open(5)
    violated("I45", lambda: judged.open(6, owner="stranger"))


def test_a_stranger_must_not_open_a_scope_that_got_an_owner_meanwhile(judged: Judged) -> None:
    stranger = judged.watch.asks_to_open(SCOPE, "stranger", "run 6")
    judged.open(5)
    violated("I45", lambda: judged.watch.opened(stranger, 6, NO_SEQUENCE))


def test_an_owner_that_resets_a_scope_begins_with_new_sequences(judged: Judged) -> None:
    run = judged.open(5)
    winner, undecided = judged.begin(run), judged.begin(run)
    judged.end(run, 3, winner)
    judged.show(winner)
    judged.watch.asks_to_end(run, 4, [undecided])
    other = judged.open(6, owner="other", resets=True)
    again = judged.begin(other)
    judged.end(other, 0, again)
    judged.show(again, undecided)  # the end of `undecided` was decided before the reset
    judged.watch.check_all()


def test_the_earlier_owner_must_not_open_a_scope_after_another_owner_has_reset_it(judged: Judged) -> None:
    judged.open(5)
    judged.open(6, owner="other", resets=True)
    violated("I45", lambda: judged.open(7))


def test_an_owner_whose_reset_got_no_answer_may_open_the_scope(judged: Judged) -> None:
    judged.open(5)
    judged.watch.asks_to_open(SCOPE, "other", "run 6", resets=True)
    judged.open(7, owner="other")


def test_the_first_owner_may_get_its_answer_after_a_reset(judged: Judged) -> None:
    first = judged.watch.asks_to_open(SCOPE, OWNER, "run 5")
    judged.open(6, owner="other", resets=True)
    judged.watch.opened(first, 5, NO_SEQUENCE)


def test_an_ordinary_transaction_request_must_not_affect_a_producer_of_a_scope(judged: Judged) -> None:
    violated("I45", lambda: judged.watch.forbidden("it was committed"))


def test_a_scope_may_be_opened_again_after_its_deletion(judged: Judged) -> None:
    run = judged.open(5)
    winner = judged.begin(run)
    judged.end(run, 1, winner)
    judged.show(winner)
    judged.watch.opened(run, 9, NO_SEQUENCE)
    assert run.epoch == 9
    judged.watch.check_all()
