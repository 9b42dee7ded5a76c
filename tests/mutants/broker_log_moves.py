"""Mutants of broker/log: moves of a log to another directory."""

from __future__ import annotations

from tests.mutants import Mutant

CHECKPOINTS = "broker/log/checkpoints.py"
DURABILITY = "broker/log/durability.py"
MANAGER = "broker/log/manager.py"
COPYING = "broker/log/copying.py"
MOVE_FACTS = "broker/log/move_facts.py"
MOVE = "broker/log/move.py"
MOVES = "broker/log/moves.py"
STRAYS = "broker/log/strays.py"
UNIT = "tests/unit/broker/log"
MOVE_TESTS = f"{UNIT}/test_moves.py"
UNDONE_TESTS = f"{UNIT}/test_undone_moves.py"
MOVE_CRASHES = f"{MOVE_TESTS}::test_a_crash_at_any_step_of_a_move_loses_no_acknowledged_record"

MUTANTS = (
    Mutant(
        "a move that waits for a failed directory ends without being counted",
        MOVES,
        "            self.failed += log is not None  # else the log was deleted, or taken offline by its own move\n",
        "",
        (f"{MOVE_TESTS}::test_moves_that_wait_for_a_failed_directory_count_as_failed",),
    ),
    Mutant(
        "a move whose directory fails is counted twice",
        MOVES,
        "        if (is_decided or has_failed) and self._targets.get(log.key) == target.id:\n",
        "        if False:\n",
        (f"{MOVE_TESTS}::test_moves_that_wait_for_a_failed_directory_count_as_failed",),
    ),
    Mutant(
        "an unfinished move replaces a replica that was created after its decision",
        MOVE_FACTS,
        "if has_log or state_fact(folder) in target.facts.load(state_fact(folder)):",
        "if False:",
        (f"{MOVE_TESTS}::test_a_replica_that_was_created_while_the_source_was_offline_is_not_replaced",),
    ),
    Mutant(
        "an unfinished move replaces a replica without records that was created after its decision",
        MOVE_FACTS,
        "if has_log or state_fact(folder) in target.facts.load(state_fact(folder)):",
        "if has_log:",
        (f"{MOVE_TESTS}::test_a_replica_that_was_created_while_the_source_was_offline_is_not_replaced",),
    ),
    Mutant(
        "a replica is lost because it was once in a directory that was removed, although it has left that",
        MANAGER,
        "(target := self._moved_to.get((key, directory_id)))",
        "(target := next((to for (each, _), to in self._moved_to.items() if each == key), None))",
        (
            "tests/unit/broker/replica/test_moves.py::test_a_replica_that_moved_twice_is_expected_only_in_its_last_directory",
        ),
    ),
    Mutant(
        "only the first of several moves that were not reported counts",
        MANAGER,
        "            directory_id = target\n        return None",
        "            return None\n        return None",
        (
            "tests/unit/broker/replica/test_moves.py::test_a_replica_that_moved_twice_is_expected_only_in_its_last_directory",
        ),
    ),
    Mutant(
        "a replica that moved to a directory that was removed begins anew, empty, in its former one",
        MANAGER,
        "if (found := self._directories.get(target)) is None or found.failure is not None:",
        "if (found := self._directories.get(target)) is not None and found.failure is not None:",
        (
            "tests/unit/broker/replica/test_moves.py"
            "::test_a_moved_replica_does_not_start_over_if_its_new_directory_was_removed",
        ),
    ),
    Mutant(
        "a move keeps the copy of an index that an append has discarded",
        "broker/log/copying.py",
        "        if is_discarded:\n",
        "        if False:\n",
        (f"{MOVE_TESTS}::test_a_stale_index_that_an_append_discards_during_the_decision_is_not_used",),
    ),
    Mutant(
        "a flush is acknowledged while the move of the log is decided",
        DURABILITY,
        "        if self._is_held:\n            self._held_end = max(",
        "        if False:\n            self._held_end = max(",
        (MOVE_CRASHES,),
    ),
    Mutant(
        "the copy of a moving log is not flushed before the decision",
        MOVE,
        "                await copy.copy_state()\n                await copy.flush()\n                with self",
        "                await copy.copy_state()\n                with self",
        (MOVE_CRASHES,),
    ),
    Mutant(
        "a start discards a future whose move was decided",
        MOVE_FACTS,
        "return move.is_decided and move.target == target.directory_id",
        "return False",
        (MOVE_CRASHES,),
    ),
    Mutant(
        "a start finishes a move that was not decided",
        MOVE_FACTS,
        "return move.is_decided and move.target == target.directory_id",
        "return move.target == target.directory_id",
        (MOVE_CRASHES,),
    ),
    Mutant(
        "a start forgets the decision of a move when it moves the source's folder to the strays",
        STRAYS,
        "            changes[DAMAGED + stray.folder] = None\n            if",
        "            changes[DAMAGED + stray.folder] = changes[moving_fact(stray.folder)] = None\n            if",
        (MOVE_CRASHES,),
    ),
    Mutant(
        "a copy keeps the records that a truncation has removed",
        "broker/log/segment.py",
        "        self.truncations += 1\n",
        "",
        (f"{MOVE_TESTS}::test_a_truncation_while_a_log_is_copied_is_applied_to_the_copy",),
    ),
    Mutant(
        "a copy keeps the segments that a cleaning has replaced",
        COPYING,
        "            if present.get(id(copied.segment)) != copied.truncations:\n",
        "            if False:\n",
        (f"{MOVE_TESTS}::test_a_cleaning_while_a_log_is_copied_is_applied_to_the_copy",),
    ),
    Mutant(
        "a move whose target fails after the decision is not taken back",
        MOVE,
        "            await self._take_back(prepared.undone)\n",
        "",
        (f"{MOVE_TESTS}::test_a_target_that_fails_leaves_the_source_unharmed",),
    ),
    Mutant(
        "a truncation that has waited for a move changes the facts of the former directory",
        CHECKPOINTS,
        "                if log.directory_id == directory.id:\n                    yield directory",
        "                if True:\n                    yield directory",
        (f"{MOVE_TESTS}::test_a_truncation_that_waited_for_the_decision_happens_in_the_new_directory",),
    ),
    Mutant(
        "a log that has moved while it was to be deleted stays",
        MANAGER,
        "            rest = [key for key in rest if key in self._logs]",
        "            rest = []",
        (f"{MOVE_TESTS}::test_a_log_that_is_deleted_during_its_move_is_deleted_in_both_directories",),
    ),
    Mutant(
        "a move fills the file system of its target",
        MOVE,
        "has_room = await self.target.disk.free_bytes() >= self.copy.missing + SPARE_BYTES",
        "has_room = True",
        (f"{MOVE_TESTS}::test_a_log_stays_in_its_directory_if_the_target_is_full_and_the_target_stays_usable",),
    ),
    Mutant(
        "strays are kept in the middle of a decision",
        STRAYS,
        "        async with self._deleting, changing:  #",
        "        async with self._deleting:  #",
        (f"{UNDONE_TESTS}::test_keeping_strays_does_not_disturb_a_move",),
    ),
    Mutant(
        "the copy of an undone move stays in its target",
        MANAGER,
        "            if is_copy_of(disk, move):\n",
        "            if False:\n",
        (f"{UNDONE_TESTS}::test_an_interrupted_start_sets_the_copy_of_an_undone_move_aside",),
    ),
    Mutant(
        "an undone move is forgotten at once",
        MOVE,
        "        facts[undone_fact(undone.move)] = encode_fact(undone)",
        "        facts[undone_fact(undone.move)] = None",
        (f"{UNDONE_TESTS}::test_an_interrupted_start_sets_the_copy_of_an_undone_move_aside",),
    ),
    Mutant(
        "an undone move is forgotten while its target is offline",
        MOVES,
        "            if target is not None and target.failure is None:  # its copy has been set aside",
        "            if True:",
        (f"{UNDONE_TESTS}::test_an_undone_move_is_remembered_while_its_target_is_offline_and_after_a_cancellation",),
    ),
    Mutant(
        "an undone move sets aside a replica that was created later in its target",
        MOVE_FACTS,
        "    return facts.get(copied_fact(folder)) == undone.move.encode()",
        "    return True",
        (f"{UNDONE_TESTS}::test_a_replica_that_was_created_in_the_target_of_an_undone_move_is_kept",),
    ),
    Mutant(
        "a decided move counts as finished although its source has failed",
        MOVE,
        "        return self.log.directory_id == self.target.id\n",
        "        return self.may_be_decided\n",
        (f"{MOVE_TESTS}::test_a_move_whose_source_fails_after_the_decision_has_failed",),
    ),
    Mutant(
        "the copy of an undone move is set aside although a start has used it",
        MANAGER,
        "        notes: dict[str, bytes | None] = dict.fromkeys(disk.facts.load(COPIED))",
        "        notes: dict[str, bytes | None] = {}",
        (f"{UNDONE_TESTS}::test_a_copy_that_a_start_without_the_source_has_used_is_not_set_aside",),
    ),
    Mutant(
        "keeping strays delays all changes of a directory until a purge ends",
        STRAYS,
        "        async with self._deleting, changing:  #",
        "        async with changing, self._deleting:  #",
        (f"{UNIT}/test_strays.py::test_keeping_strays_during_a_purge_delays_no_other_change_of_the_directory",),
    ),
)
