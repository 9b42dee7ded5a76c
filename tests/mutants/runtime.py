"""Mutants of quorumlog/runtime."""

from __future__ import annotations

from tests.mutants import Mutant

FILE_DISK = "quorumlog/runtime/file_disk.py"
DATA_DIRECTORY = "quorumlog/runtime/data_directory.py"
SQLITE_FACTS = "quorumlog/runtime/sqlite_facts.py"
SYNCS = "quorumlog/runtime/syncs.py"
LOOP_WATCH = "quorumlog/runtime/loop_watch.py"
LOGGING = "quorumlog/runtime/logging.py"
SERVER_CLI = "quorumlog/runtime/server_cli.py"
UNIT = "tests/unit/quorumlog/runtime"

MUTANTS = (
    Mutant(
        "a failed sync counts as successful",
        SYNCS,
        "        if error := error or self._missed:\n",
        "        if (error := error or self._missed) and False:\n",
        (f"{UNIT}/test_syncs.py::test_each_batch_gets_its_own_result",),
    ),
    Mutant(
        "the failure of a sync is lost if its caller is cancelled in the same turn",
        SYNCS,
        "self._missed = future.result() or self._missed",
        "pass",
        (f"{UNIT}/test_syncs.py::test_a_failure_that_arrives_together_with_the_cancel_is_raised_by_later_batches",),
    ),
    Mutant(
        "the failure of a sync is lost if its caller is cancelled",
        SYNCS,
        "                self._missed = error\n",
        "                pass\n",
        (f"{UNIT}/test_syncs.py::test_the_failure_of_a_cancelled_batch_is_raised_by_later_batches",),
    ),
    Mutant(
        "the directory closes while a sync hangs, and its flush waits for ever",
        SYNCS,
        "                future.set_result(errno.ECANCELED)\n",
        "                pass\n",
        (f"{UNIT}/test_syncs.py::test_a_hanging_sync_delays_neither_other_syncs_nor_the_end_of_the_process",),
    ),
    Mutant(
        "a sync that hides lost writes is used",
        SYNCS,
        ">= (5, 8)",
        ">= (5, 7)",
        (f"{UNIT}/test_syncs.py::test_kernels_before_5_8_are_treated_as_hiding_lost_writes",),
    ),
    Mutant(
        "facts wait for threads that directories which hang may occupy",
        FILE_DISK,
        "self._set_failure, stall_s, self._threads)",
        "self._set_failure, stall_s)",
        (f"{UNIT}/test_file_disk.py::test_hanging_directories_do_not_delay_commits_reads_and_writes_of_another_one",),
    ),
    Mutant(
        "facts overtake the transaction of a cancelled commit",
        SQLITE_FACTS,
        "if self._running is not None and not self._running.done():",
        "if False:",
        (f"{UNIT}/test_file_disk.py::test_facts_have_the_newest_value_after_an_earlier_commit_was_cancelled",),
    ),
    Mutant(
        "a cancelled commit of facts that has not begun is dropped",
        SQLITE_FACTS,
        "await asyncio.shield(self._running)",
        "await self._running",
        (f"{UNIT}/test_file_disk.py::test_a_cancelled_commit_of_facts_that_waits_for_a_thread_is_executed",),
    ),
    Mutant(
        "facts whose keys have become blobs are not found, without a word",
        SQLITE_FACTS,
        "typeof(key) <> 'text' OR ",
        "",
        (f"{UNIT}/test_sqlite_facts.py::test_facts_with_damaged_texts_or_types_are_reported_as_damaged",),
    ),
    Mutant(
        "nobody notes that a cancelled commit of facts has failed",
        SQLITE_FACTS,
        "isinstance(error, sqlite3.Error | OSError) and not self._is_closed",
        "False",
        (f"{UNIT}/test_sqlite_facts.py::test_a_transaction_whose_caller_was_cancelled_fails_the_directory",),
    ),
    Mutant(
        "a full disk counts as damage",
        SQLITE_FACTS,
        'if name.startswith(("SQLITE_CORRUPT", "SQLITE_NOTADB")) or is_foreign:',
        "if name:",
        (f"{UNIT}/test_sqlite_facts.py::test_a_full_disk_is_not_reported_as_damage",),
    ),
    Mutant(
        "a file that cannot be examined counts as missing",
        FILE_DISK,
        "except (FileNotFoundError, NotADirectoryError):\n            return False",
        "except OSError:\n            return False",
        (f"{UNIT}/test_file_disk.py::test_a_file_that_cannot_be_examined_does_not_count_as_missing",),
    ),
    Mutant(
        "a flush of many files needs a descriptor for each",
        FILE_DISK,
        "SYNC_JOBS_MAX = 64 ",
        "SYNC_JOBS_MAX = 6400 ",
        (f"{UNIT}/test_file_disk_flushes.py::test_a_flush_of_many_files_needs_few_descriptors",),
    ),
    Mutant(
        "only the first ones of many files are synced one by one",
        FILE_DISK,
        "for start in range(0, len(dirty) + len(folders), SYNC_JOBS_MAX):",
        "for start in (0,):",
        (f"{UNIT}/test_file_disk_flushes.py::test_each_file_and_folder_is_synced_if_the_file_system_has_no_full_sync",),
    ),
    Mutant(
        "the folders of new files are not synced",
        FILE_DISK,
        "jobs.append(SyncJob(Sync.ALL, self._new_fd(partial(open_folder, self._locate(folder)))))",
        "self._locate(folder)",
        (f"{UNIT}/test_file_disk_flushes.py::test_a_few_files_and_folders_are_synced_one_by_one",),
    ),
    Mutant(
        "many files are flushed by the sync of a single one",
        FILE_DISK,
        "[SyncJob(Sync.SYSTEM, self._new_fd(",
        "[SyncJob(Sync.DATA, self._new_fd(",
        (f"{UNIT}/test_file_disk_flushes.py::test_a_failed_sync_is_not_retried",),
    ),
    Mutant(
        "files on another file system are flushed by the sync of the directory's own one",
        FILE_DISK,
        "if status.st_dev != self._device:",
        "if False:",
        (f"{UNIT}/test_file_disk_flushes.py::test_files_on_another_file_system_are_synced_one_by_one",),
    ),
    Mutant(
        "folders on another file system are flushed by the sync of the directory's own one",
        FILE_DISK,
        "if entry.stat().st_dev != device:",
        "if False:",
        (f"{UNIT}/test_file_disk_flushes.py::test_folders_on_another_file_system_are_synced_one_by_one",),
    ),
    Mutant(
        "a file whose sync has not begun counts as clean",
        FILE_DISK,
        "            await self._run(jobs)\n",
        "            [self._set_dirty(file, False) for file in dirty]\n            await self._run(jobs)\n",
        (f"{UNIT}/test_file_disk_flushes.py::test_each_part_of_a_large_flush_has_its_own_timeout",),
    ),
    Mutant(
        "a file system that hides lost writes is synced as a whole",
        SYNCS,
        "mounts) in FULLY_SYNCED",
        "mounts) is not None",
        (f"{UNIT}/test_syncs.py::test_is_fully_synced_is_false_for_an_overlay_file_system",),
    ),
    Mutant(
        "a log file on a full disk fails the work that is logged",
        LOGGING,
        "with contextlib.suppress(OSError, ValueError):",
        "with contextlib.suppress(ValueError):",
        (f"{UNIT}/test_logging.py::test_a_log_line_that_cannot_be_written_raises_no_error",),
    ),
    Mutant(
        "a missing flag hides an unknown one that was meant to be it",
        SERVER_CLI,
        "            action.required = False\n",
        "            pass\n",
        (f"{UNIT}/test_server_cli.py::test_an_unknown_flag_is_reported_together_with_the_missing_ones",),
    ),
    Mutant(
        "the value of an unknown flag is reported as a second problem",
        SERVER_CLI,
        'value_follows = flag.startswith("-")',
        'value_follows = flag == "-"',
        (f"{UNIT}/test_server_cli.py::test_wrong_arguments_are_named_with_the_nearest_valid_ones",),
    ),
    Mutant(
        "wrong arguments are reported as text although JSON was requested",
        SERVER_CLI,
        'text == "--log-format=json"',
        'text == "--log-format=JSON"',
        (f"{UNIT}/test_server_cli.py::test_wrong_arguments_are_reported_as_json_if_the_log_is_json",),
    ),
    Mutant(
        "addresses of Kafka listeners are not checked together with the others",
        SERVER_CLI,
        "for listener in config.kafka_listeners:",
        "for listener in config.kafka_listeners[:0]:",
        (f"{UNIT}/test_server_cli.py::test_all_addresses_in_use_are_reported_in_one_error",),
    ),
    Mutant(
        "log lines show ids in another form than kctl",
        LOGGING,
        "return uuid_text(value) if isinstance(value, UUID) else str(value)",
        "return str(value)",
        (f"{UNIT}/test_logging.py::test_a_uuid_has_the_form_in_which_kctl_shows_it",),
    ),
    Mutant(
        "JSON lines show ids in another form than kctl",
        LOGGING,
        "JSONRenderer(default=_plain)",
        "JSONRenderer(default=str)",
        (f"{UNIT}/test_logging.py::test_a_uuid_has_the_form_in_which_kctl_shows_it",),
    ),
    Mutant(
        "a disk that became read-only is reported as a mistake in the path",
        DATA_DIRECTORY,
        "if error.errno == errno.EROFS:",
        "if error.errno == errno.EACCES:",
        (f"{UNIT}/test_file_disk.py::test_a_read_only_file_system_is_refused_with_the_disk_as_a_possible_cause",),
    ),
    Mutant(
        "a refused start creates a lock file in a new directory, because a later directory is locked afterwards",
        DATA_DIRECTORY,
        "for create in (False, True):",
        "for create in (True,):",
        ("tests/unit/quorumlog_server/test_refused_starts.py::test_broker_with_a_later_directory_in_use",),
    ),
    Mutant(
        "a failed process ends with the line of a clean stop",
        "quorumlog/runtime/run.py",
        "    if status == EXIT_OK:  # otherwise the last line is the error\n",
        "    if True:\n",
        (f"{UNIT}/test_run.py::test_a_failure_is_not_logged_as_a_stop",),
    ),
    Mutant(
        "the watch of the loop logs the line of a hold without its stack",
        LOOP_WATCH,
        "                    self._stack = stack\n",
        "                    pass\n",
        (f"{UNIT}/test_loop_watch.py::test_a_hold_is_logged_with_the_calls_that_hold_the_loop",),
    ),
    Mutant(
        "the watch of the loop counts the garbage collections of earlier holds",
        LOOP_WATCH,
        "self._stack, self._collected_s = None, 0.0",
        "self._stack = None",
        (f"{UNIT}/test_loop_watch.py::test_a_line_gives_the_share_of_the_garbage_collector_in_its_own_hold",),
    ),
    Mutant(
        "the watch of the loop logs every turn",
        LOOP_WATCH,
        "if held_s >= self._limit_s:",
        "if held_s >= 0:",
        (f"{UNIT}/test_loop_watch.py::test_a_loop_that_is_held_for_less_than_the_limit_logs_nothing",),
    ),
    Mutant(
        "the watch of the loop leaves its thread",
        LOOP_WATCH,
        "        self._ended.set()\n        self._looking.join()\n",
        "",
        (f"{UNIT}/test_loop_watch.py::test_the_watch_leaves_no_thread_no_timer_and_no_callback_of_the_collector",),
    ),
    Mutant(
        "a server ignores the setting of the watch of its loop",
        "quorumlog/runtime/run.py",
        "with watched_loop(loop_held_ms / 1000):",
        "with watched_loop(0):",
        (f"{UNIT}/test_loop_watch.py::test_a_server_watches_its_loop",),
    ),
    Mutant(
        "the watch of the loop shows the calls of the import system",
        LOOP_WATCH,
        ' if not call.filename.startswith("<frozen importlib")',
        "",
        (f"{UNIT}/test_loop_watch.py::test_the_calls_of_the_import_system_are_left_out",),
    ),
)
