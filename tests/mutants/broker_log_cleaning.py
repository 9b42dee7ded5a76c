"""Mutants of compaction, in broker/log and broker/log/cleaning."""

from __future__ import annotations

from tests.mutants import Mutant

CHECKPOINTS = "broker/log/checkpoints.py"
MARKS = "broker/log/marks.py"
UPKEEP = "broker/log/upkeep.py"
CLEAN_FILTER = "broker/log/cleaning/filter.py"
CLEAN_JOB = "broker/log/cleaning/job.py"
CLEAN_PROCESS = "broker/log/cleaning/process.py"
CLEAN_RECORDS = "broker/log/cleaning/records.py"
CLEAN_SWAP = "broker/log/cleaning/swap.py"
READER = "broker/log/reader.py"
WRITER = "broker/log/writer.py"
UNIT = "tests/unit/broker/log"
COMPACTION = f"{UNIT}/test_compaction.py"
FILTER = f"{UNIT}/cleaning/test_filter.py"
CLEANER_PROCESS = "tests/integration/broker/test_cleaner_process.py"
COMPACTION_PROPERTY = "tests/properties/test_compaction.py"

MUTANTS = (
    Mutant(
        "the worker has the priority of the broker's session",
        CLEAN_PROCESS,
        ", start_new_session=True",
        "",
        (f"{CLEANER_PROCESS}::test_the_process_compacts_a_log_and_a_restart_keeps_the_result",),
    ),
    Mutant(
        "a worker that has ended is given another job",
        CLEAN_PROCESS,
        "(self._is_killed or self._child.process.poll() is not None)",
        "self._is_killed",
        (f"{CLEANER_PROCESS}::test_a_worker_that_has_ended_is_replaced",),
    ),
    Mutant(
        "a replacement may lack the last marker of a producer",
        CLEAN_SWAP,
        "        if missing_markers:\n",
        "        if False:\n",
        (f"{COMPACTION}::test_a_replacement_without_the_last_marker_of_a_producer_is_refused",),
    ),
    Mutant(
        "a replacement may have a marker of another producer",
        CLEAN_SWAP,
        "            if header.producer_id != producer_id:\n",
        "            if False:\n",
        (f"{COMPACTION}::test_a_replacement_without_the_last_marker_of_a_producer_is_refused",),
    ),
    Mutant(
        "compaction removes the latest record of a key",
        CLEAN_FILTER,
        "self._latest.survivors(body, header, self._clean_end",
        "self._latest.survivors(body, header._replace(base_offset=header.base_offset - 1), self._clean_end",
        (f"{FILTER}::test_a_batch_keeps_its_offsets_codec_and_producer_when_records_are_removed",),
    ),
    Mutant(
        "compaction changes records above its limit",
        CLEAN_FILTER,
        "self._latest.survivors(body, header, self._clean_end",
        "self._latest.survivors(body, header, self._clean_end + 100",
        (f"{FILTER}::test_records_at_or_above_the_clean_end_are_unchanged",),
    ),
    Mutant(
        "compaction removes a tombstone at once",
        CLEAN_FILTER,
        "is_past = has_horizon and",
        "is_past = not has_horizon or",
        (f"{FILTER}::test_a_tombstone_gets_a_delete_horizon_and_is_removed_after_it",),
    ),
    Mutant(
        "compaction forgets the last batches of producers",
        CLEAN_FILTER,
        "        if header.base_offset in self._protected:\n            return True\n",
        "",
        (f"{FILTER}::test_the_last_batch_of_a_producer_is_kept_without_its_records",),
    ),
    Mutant(
        "a filler covers batches of several epochs",
        CLEAN_FILTER,
        "adjacent = epoch == header.leader_epoch and",
        "adjacent =",
        (f"{FILTER}::test_adjacent_removed_batches_of_one_epoch_become_one_filler_batch",),
    ),
    Mutant(
        "a full offset map loses the keys that do not fit",
        CLEAN_JOB,
        "            if full_at is not None:\n",
        "            if False:\n",
        (COMPACTION_PROPERTY,),
    ),
    Mutant(
        "an empty batch keeps the codec of its records",
        CLEAN_RECORDS,
        "attributes=header.attributes & ~(CODEC_MASK | DELETE_HORIZON_FLAG)",
        "attributes=header.attributes & ~DELETE_HORIZON_FLAG",
        (f"{FILTER}::test_the_last_batch_of_a_producer_is_kept_without_its_records",),
    ),
    Mutant(
        "a start deletes a replacement that the facts name",
        CLEAN_SWAP,
        "    for base_offset in state.swapping:\n",
        "    for base_offset in ():\n",
        (f"{COMPACTION}::test_a_crash_at_any_step_of_a_swap_loses_no_record",),
    ),
    Mutant(
        "a swap leaves the segments that were merged into another one",
        CLEAN_SWAP,
        "stem.isdigit() and base_offset < int(stem) < end_offset",
        "stem.isdigit() and base_offset < int(stem) < base_offset",
        (f"{COMPACTION}::test_a_crash_at_any_step_of_a_swap_loses_no_record",),
    ),
    Mutant(
        "a swap is decided before the replacement is durable",
        CHECKPOINTS,
        "                await disk.flush([file])\n",
        "",
        (f"{COMPACTION}::test_a_crash_at_any_step_of_a_swap_loses_no_record",),
    ),
    Mutant(
        "the log continues in a segment whose replacement is swapped in",
        WRITER,
        " or active.is_frozen",
        "",
        (f"{COMPACTION}::test_a_truncation_during_a_swap_loses_no_later_append",),
    ),
    Mutant(
        "a truncated log still counts as clean",
        MARKS,
        "        self.cleaned_offset = min(self.cleaned_offset, offset)  # other",
        "        # other",
        (f"{COMPACTION}::test_a_log_that_was_truncated_below_its_clean_part_is_dirty_again",),
    ),
    Mutant(
        "a follower whose log ends within a filler cannot continue",
        READER,
        "if header.base_offset >= offset or not",
        "if True or not",
        (f"{COMPACTION}::test_a_follower_whose_log_ends_within_a_filler_batch_continues_with_the_leaders_log",),
    ),
    Mutant(
        "retention deletes records of a topic that is only compacted",
        UPKEEP,
        "        if not config.deletes:\n            return marks.start_offset\n",
        "",
        (f"{COMPACTION}::test_retention_deletes_nothing_unless_the_policy_contains_delete",),
    ),
    Mutant(
        "compaction treats an aborted record as the latest of its key",
        "broker/log/cleaning/job.py",
        " or aborted.contains(header):",
        ":",
        ("tests/properties/test_log_transactions.py",),
    ),
    Mutant(
        "compaction keeps aborted records",
        "broker/log/cleaning/filter.py",
        "        if self._endings.aborted.contains(header):\n",
        "        if False:\n",
        (
            "tests/unit/broker/log/cleaning/test_filter.py::test_an_aborted_record_is_removed_although_it_is_the_latest_of_its_key",
        ),
    ),
    Mutant(
        "compaction removes the marker of records that stay",
        "broker/log/cleaning/filter.py",
        "        if has_records or self._must_stay(header):",
        "        if self._must_stay(header):",
        (
            "tests/unit/broker/log/cleaning/test_filter.py::test_a_transaction_marker_is_kept_while_a_batch_of_its_transaction_is_kept",
        ),
    ),
    Mutant(
        "a compaction continues although its log was removed",
        "broker/log/cleaner.py",
        "if not await asyncio.shield(self._swap) or self._logs.get(log.key) is not log:",
        "if not await asyncio.shield(self._swap):",
        ("tests/unit/broker/log/test_compaction_of_a_removed_log.py",),
    ),
)
