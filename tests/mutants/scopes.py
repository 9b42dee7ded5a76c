"""Mutants of transaction scopes.  The simulator of whole clusters notices about half of them."""

from __future__ import annotations

from tests.mutants import Mutant

SCOPES = "broker/core/coordinator/scopes.py"
MACHINE = "broker/core/coordinator/transaction_machine.py"

SEEDS = ("tests/simulation/test_scopes.py::test_only_the_winners_of_ends_become_visible",)
UNIT = "tests/unit/broker/core/coordinator/test_scopes.py"

MUTANTS = (
    Mutant(
        "a jump of the wall clock deletes the sequences of scopes",
        SCOPES,
        "            if cautious_ms - value.updated_ms > kept_ms:",
        "            if step.wall_ms - value.updated_ms > kept_ms:",
        (f"{UNIT}::test_a_jump_of_the_wall_clock_expires_no_scope",),
    ),
    Mutant(
        "the sequence of the last end counts once more",
        SCOPES,
        "        if request.sequence <= known.sequence:",
        "        if request.sequence < known.sequence:",
        SEEDS,
    ),
    Mutant(
        "any sequence counts",
        SCOPES,
        "        if request.sequence <= known.sequence:",
        "        if request.sequence < 0:",
        SEEDS,
    ),
    Mutant(
        "a fenced run may begin producers and end its scope",
        SCOPES,
        "        if epoch < known.epoch:",
        "        if False:",
        SEEDS,
    ),
    Mutant(
        "the next run of a scope has the epoch of the one before",
        SCOPES,
        "            epoch=self._next_epoch(step),",
        "            epoch=known.epoch,",
        SEEDS,
    ),
    Mutant(
        "a late duplicate of an earlier run fences the current one",
        SCOPES,
        "            self._replaced[before] = None\n",
        "            pass\n",
        (f"{UNIT}::test_a_late_initialization_of_a_replaced_run_is_refused_and_changes_nothing",),
    ),
    Mutant(
        "the epoch of a scope falls with the wall clock after a deletion",
        SCOPES,
        "return max(self._epoch_max + 1, step.wall_ms)",
        "return step.wall_ms",
        (f"{UNIT}::test_the_epoch_of_a_recreated_scope_is_higher_even_if_the_wall_clock_went_back",),
    ),
    Mutant(
        "a stranger may open a scope",
        SCOPES,
        "        if known.owner != request.owner and not request.reset:",
        "        if False:",
        SEEDS,
    ),
    Mutant(
        "a new run of a scope deletes its sequence",
        SCOPES,
        "            sequence=NO_SEQUENCE if request.reset else known.sequence,",
        "            sequence=NO_SEQUENCE,",
        SEEDS,
    ),
    Mutant(
        "an end commits every producer of its scope",
        SCOPES,
        "state=_State.PREPARE_COMMIT if member in winners else _State.PREPARE_ABORT",
        "state=_State.PREPARE_COMMIT if winners else _State.PREPARE_ABORT",
        SEEDS,
    ),
    Mutant(
        "an end does not compare the producers of its winners",
        SCOPES,
        "if found is None or found.producer != producer or found.state.is_preparing:",
        "if found is None or found.state.is_preparing:",
        SEEDS,
    ),
    Mutant(
        "a winner may be aborted already",
        SCOPES,
        "if found is None or found.producer != producer or found.state.is_preparing:",
        "if found is not None and found.producer != producer:",
        SEEDS,
    ),
    Mutant(
        "an end decides producers that were aborted before",
        SCOPES,
        "            if not found.state.is_preparing:\n                self._ids",
        "            if True:\n                self._ids",
        (f"{UNIT}::test_an_end_leaves_a_producer_that_is_being_aborted_as_it_is",),
    ),
    Mutant(
        "a later coordinator does not finish an end whose producers are complete",
        SCOPES,
        "        for name in [name for name, left in self._ending.items() if not left]:",
        "        for name in ():",
        (f"{UNIT}::test_a_later_coordinator_opens_a_scope_whose_producers_were_all_complete",),
    ),
    Mutant(
        "a producer may commit itself",
        MACHINE,
        "            case EndTransaction() if request.is_commit and is_reserved(request.transactional_id):",
        "            case EndTransaction() if False:",
        SEEDS,
    ),
    Mutant(
        "an ordinary request begins a producer of a scope",
        MACHINE,
        "            case InitProducer() if is_reserved(request.transactional_id):",
        "            case InitProducer() if False:",
        SEEDS,
    ),
    Mutant(
        "a producer id is used again with the epoch of its markers",
        SCOPES,
        "            self._free.append(ProducerKey(value.producer_id, value.producer_epoch + 1))",
        "            self._free.append(ProducerKey(value.producer_id, value.producer_epoch))",
        SEEDS,
    ),
    Mutant(
        "a coordinator reuses the ids of producers that it has only loaded",
        SCOPES,
        "        if is_ours and value.producer_epoch < EPOCH_MAX",
        "        if value.producer_epoch < EPOCH_MAX",
        (f"{UNIT}::test_the_id_of_a_deleted_producer_in_a_stale_log_is_not_reused",),
    ),
    Mutant(
        "a producer continues the id of a loaded one that may have had later epochs",
        SCOPES,
        "self._next_producer(known if name in self._begun else None, request.fresh_id)",
        "self._next_producer(known, request.fresh_id)",
        (f"{UNIT}::test_a_producer_that_begins_again_at_a_later_coordinator_gets_another_id",),
    ),
    Mutant(
        "a deleted producer remains although another producer has its id",
        MACHINE,
        "        self._scopes.drop_deleted(step)\n",
        "",
        (f"{UNIT}::test_a_deleted_producer_in_a_stale_log_is_deleted_again_if_another_producer_has_its_id",),
    ),
    Mutant(
        "of two producers with one id, the later one is deleted",
        SCOPES,
        "            if one.producer_epoch < newest[one.producer_id]:",
        "            if one.producer_epoch == newest[one.producer_id]:",
        (f"{UNIT}::test_a_deleted_producer_in_a_stale_log_is_deleted_again_if_another_producer_has_its_id",),
    ),
    Mutant(
        "a decision does not raise the epochs of producers",
        SCOPES,
        "                    producer_epoch=found.producer_epoch + 1,\n                    state=_State",
        "                    producer_epoch=found.producer_epoch,\n                    state=_State",
        (f"{UNIT}::test_an_end_raises_the_epoch_of_each_producer_so_that_late_batches_are_refused",),
    ),
    Mutant(
        "a scope opens again after the first complete producer",
        SCOPES,
        "        if scope in self._ending and not self._ending[scope]:\n            self._finish",
        "        if scope in self._ending:\n            self._finish",
        (f"{UNIT}::test_a_later_coordinator_continues_an_end_after_any_number_of_markers",),
    ),
    Mutant(
        "a run begins while the end of the run before is not complete",
        SCOPES,
        "        if known.state is ScopeState.ENDING:\n            return InitScope",
        "        if False:\n            return InitScope",
        (f"{UNIT}::test_a_new_run_waits_until_the_pending_end_of_the_previous_run_is_complete",),
    ),
    Mutant(
        "a producer that begins again does not abort its predecessor",
        SCOPES,
        "        elif known.state is _State.ONGOING:",
        "        elif False:",
        (f"{UNIT}::test_a_producer_that_begins_again_fences_its_predecessor",),
    ),
    Mutant(
        "an end of which no producer is left does not store its sequence",
        SCOPES,
        "            step.append_scope(name, replace(changed, updated_ms=step.wall_ms))\n            return",
        "            return",
        SEEDS,
    ),
)
