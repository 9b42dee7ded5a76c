"""Mutants of broker/server."""

from __future__ import annotations

from tests.mutants import Mutant

ROLE = "broker/server/role.py"
STALL_DETECTOR = "broker/server/stall_detector.py"

MARK_TESTS = "tests/unit/broker/server/test_clean_mark.py"
STALL_TESTS = "tests/unit/broker/server/test_stall_detector.py"
LIFECYCLE = "broker/server/lifecycle.py"
LIFECYCLE_TESTS = "tests/unit/broker/server/test_lifecycle.py"

MUTANTS = (
    Mutant(
        "the mark of a clean stop is removed before the registration",
        ROLE,
        "        self._previous_epoch = self._marks.clean_epoch()\n",
        "        self._previous_epoch = self._marks.clean_epoch()\n        await self._marks.begin()\n",
        (f"{MARK_TESTS}::test_a_crash_before_the_registration_keeps_the_mark_of_the_clean_stop",),
    ),
    Mutant(
        "the mark of a clean stop outlives the next registration",
        ROLE,
        "        await self._marks.begin()\n",
        "",
        (f"{MARK_TESTS}::test_a_crash_after_the_registration_counts_as_an_unclean_stop",),
    ),
    Mutant(
        "records may be written while the mark of a clean stop is still there",
        ROLE,
        "        await self._marks.begin()",
        "        self.follower.activate(broker_epoch)\n        await self._marks.begin()",
        (f"{MARK_TESTS}::test_the_mark_of_the_clean_stop_is_removed_before_the_first_record_can_be_written",),
    ),
    Mutant(
        "replicas are created in a directory that could not store a mark",
        ROLE,
        "self.progress.directories_offline.__contains__, self.logs.disk_failed)",
        "self.progress.directories_offline.__contains__, self._on_disk_failure)",
        (f"{MARK_TESTS}::test_a_directory_that_cannot_remove_its_mark_goes_offline_with_its_logs",),
    ),
    Mutant(
        "another registration reads facts, and waits for a disk that hangs",
        "broker/server/marks.py",
        "        self._has_begun = True\n",
        "",
        (f"{MARK_TESTS}::test_another_registration_does_not_wait_for_a_disk_that_hangs",),
    ),
    Mutant(
        "the stop counts as clean if one of the directories was stopped cleanly",
        "broker/server/marks.py",
        "marks.pop() if len(marks) == 1 else",
        "max(marks) if marks else",
        (f"{MARK_TESTS}::test_directories_with_different_marks_count_as_an_unclean_stop",),
    ),
    Mutant(
        "a directory that fails at the start makes the others unclean",
        "broker/server/marks.py",
        "        mark = marks.pop() if len(marks) == 1 else",
        "        mark = marks.pop() if len(marks) == 1 and len(self._working()) == len(self._disks) else",
        (f"{MARK_TESTS}::test_a_directory_that_fails_at_the_start_does_not_make_the_last_stop_unclean",),
    ),
    Mutant(
        "a new directory makes the others unclean",
        "broker/server/marks.py",
        "if not self._is_new(disk)]",
        "]",
        (f"{MARK_TESTS}::test_a_new_directory_does_not_make_the_last_stop_unclean",),
    ),
    Mutant(
        "a registration removes the mark of one directory only",
        "broker/server/marks.py",
        "            for disk in self._working():\n                await self._commit(disk, {CLEAN_EPOCH: None})",
        "            for disk in self._working()[:1]:\n                await self._commit(disk, {CLEAN_EPOCH: None})",
        (f"{MARK_TESTS}::test_a_registration_removes_the_mark_of_the_clean_stop_in_every_directory",),
    ),
    Mutant(
        "a new directory gets no mark of the clean stop",
        "broker/server/marks.py",
        "is_marked = epoch >= 0 and self._is_new(disk)",
        "is_marked = False",
        (f"{MARK_TESTS}::test_a_new_directory_does_not_make_the_last_stop_unclean",),
    ),
    Mutant(
        "a directory without a mark counts as new",
        "broker/server/marks.py",
        "return not disk.facts.load(STARTS) and not disk.facts.load(CLEAN_EPOCH)",
        "return not disk.facts.load(CLEAN_EPOCH)",
        (f"{MARK_TESTS}::test_a_directory_with_an_unclean_stop_is_not_treated_as_new",),
    ),
    Mutant(
        "a directory from a backup lowers the number of the start",
        "broker/server/marks.py",
        "start = max((",
        "start = min((",
        (f"{MARK_TESTS}::test_starts_are_numbered_across_directories",),
    ),
    Mutant(
        "a stop counts as clean although a directory could not be marked",
        "broker/log/manager.py",
        "self.clean_stop = marked == len(self._directories)",
        "self.clean_stop = True",
        ("tests/unit/broker/log/test_manager.py::test_two_copies_stay_after_a_stop_until_they_are_set_aside",),
    ),
    Mutant(
        "a start truncates records of a clean stop, and registers as stopped cleanly",
        "broker/log/directory_facts.py",
        "self._is_as_stopped = CLEAN_EPOCH in facts.load(CLEAN_EPOCH)",
        "self._is_as_stopped = False",
        (f"{MARK_TESTS}::test_no_start_before_a_registration_truncates_records_of_the_clean_stop",),
    ),
    Mutant(
        "an answer from before a stall ends it",
        STALL_DETECTOR,
        "if stall == self.current:",
        "if stall <= self.current:",
        (f"{STALL_TESTS}::test_an_answer_to_a_request_from_before_a_stall_does_not_end_the_stall",),
    ),
    Mutant(
        "a suspended broker believes a controller that was suspended with it, and acknowledges records that are lost",
        LIFECYCLE,
        "        if stall and not await self._is_controller_confirmed():\n",
        "        if False:\n",
        (f"{LIFECYCLE_TESTS}::test_a_stalled_broker_waits_for_a_controller_that_a_majority_confirms",),
    ),
    Mutant(
        "a controller that refuses at once ends the stall of a broker",
        LIFECYCLE,
        "self.stall_detector.give_up(stall, self._timeout_ms / 1000)",
        "self.stall_detector.give_up(stall, 0)",
        (LIFECYCLE_TESTS,),
    ),
    Mutant(
        "a broker that is fenced while it starts blocks its process",
        "broker/server/process.py",
        "                    await self.plane.node.changed()\n",
        "                    await self.plane.ready()\n",
        ("tests/unit/broker/server/test_process.py",),
    ),
    Mutant(
        "a registration does not name the topics that had write.caching",
        LIFECYCLE,
        "for each in sorted(identity.early_topics)]",
        "for each in ()]",
        (f"{LIFECYCLE_TESTS}::test_a_registration_names_the_topics_that_had_write_caching",),
    ),
    Mutant(
        "the logs' report about write.caching does not reach the registration",
        ROLE,
        "                self.logs.early_topics,\n",
        "                frozenset(),\n",
        ("tests/simulation/test_write_caching.py",),
    ),
)
