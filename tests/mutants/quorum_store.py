"""Mutants of quorum/store and of the facts that share its way to end."""

from __future__ import annotations

from tests.mutants import Mutant

DIRECTORY = "quorum/store/directory.py"
FACTS = "quorumlog/runtime/sqlite_facts.py"
SNAPSHOTS = "quorum/store/snapshots.py"
STORE = "quorum/store/sqlite.py"
WAL = "quorum/store/wal.py"

CONTRACT_TESTS = "tests/contract/test_store.py"
FACTS_TESTS = "tests/unit/quorumlog/runtime/test_sqlite_facts.py"
FAILURE_TESTS = "tests/unit/quorum/store/test_store_failures.py"
FORMAT_TESTS = "tests/unit/quorum/store/test_store_formats.py"
SNAPSHOT_CONTRACT_TESTS = "tests/contract/test_store_snapshots.py"
SNAPSHOT_TESTS = "tests/unit/quorum/store/test_snapshots.py"
STORE_TESTS = "tests/unit/quorum/store/test_sqlite_store.py"
TRIMMING_TESTS = "tests/unit/quorum/store/test_store_trimming.py"

MUTANTS = (
    Mutant(
        "a quorum directory that cannot be set aside can never be opened again",
        DIRECTORY,
        "if error.errno not in _DISK_ERRNOS and os.path.exists(directory):",
        "if error.errno is None:",
        (f"{STORE_TESTS}::test_a_quorum_directory_that_is_a_mount_point_stays_usable",),
    ),
    Mutant(
        "a snapshot that is taken again overwrites the durable one",
        SNAPSHOTS,
        "_remove(self._part(end))  # a download may",
        'open(self._part(end), "wb").close()  # a download may',
        (f"{SNAPSHOT_TESTS}::test_a_durable_snapshot_stays_whole_while_another_one_with_its_end_is_taken",),
    ),
    Mutant(
        "control records with unknown fields are accepted from the store",
        "quorum/codec.py",
        "    if batch_content(batch) != (kind, content):",
        "    if False:",
        (f"{FORMAT_TESTS}::test_a_control_record_with_an_unknown_field_is_refused_at_the_start",),
    ),
    Mutant(
        "commits of the quorum's log are not synced",
        STORE,
        '"synchronous=FULL", "wal_auto',
        '"synchronous=NORMAL", "wal_auto',
        (f"{FAILURE_TESTS}::test_a_write_is_synced_before_it_returns",),
    ),
    Mutant(
        "a store that has failed is closed",
        STORE,
        "await self._release(leave_files=not is_clean)",
        "await self._release(leave_files=leave_files)",
        (f"{FAILURE_TESTS}::test_no_file_of_the_directory_changes_after_a_failed_sync",),
    ),
    Mutant(
        "a store that has failed is marked clean",
        STORE,
        "if not leave_files and self._failure is None:",
        "if not leave_files:",
        (f"{FAILURE_TESTS}::test_a_failed_write_of_a_snapshot_leaves_the_directory_unchanged",),
    ),
    Mutant(
        "a store that fails while it closes is marked clean",
        STORE,
        "if self._failure is not None:  # a write before the checkpoint",
        "if False:  # a write before the checkpoint",
        (f"{FAILURE_TESTS}::test_a_close_during_which_a_write_fails_is_not_recorded_as_a_clean_stop",),
    ),
    Mutant(
        "the stop is marked clean before the log is folded",
        STORE,
        "            await self._run(_fold)\n            if self._failure",
        "            if self._failure",
        (f"{FAILURE_TESTS}::test_a_close_whose_sync_fails_is_not_recorded_as_a_clean_stop",),
    ),
    Mutant(
        "a failed opening closes the database",
        STORE,
        "await self._release(leave_files=not is_refused)",
        "await self._release(leave_files=False)",
        (f"{FAILURE_TESTS}::test_a_failed_sync_while_opening_leaves_the_files_unchanged",),
    ),
    Mutant(
        "damage that is found by reading is forgotten",
        STORE,
        "        except CorruptStoreError as error:\n            self._failure = error\n            raise",
        "        except CorruptStoreError:\n            raise",
        (f"{FAILURE_TESTS}::test_damage_found_by_a_read_leaves_the_directory_unchanged",),
    ),
    Mutant(
        "a directory without its identity gets another one",
        STORE,
        " or was_opened(self._directory):",
        ":",
        (f"{STORE_TESTS}::test_a_missing_identity_file_is_refused_although_the_formatting_mark_is_also_missing",),
    ),
    Mutant(
        "an opened directory is not marked as open",
        STORE,
        "run_in_executor(None, self._lock.mark_open)",
        "run_in_executor(None, self._lock.mark_closed)",
        (f"{STORE_TESTS}::test_k17_no_missing_file_is_recreated_after_a_crash",),
    ),
    Mutant(
        "an empty write-ahead log is a good one after a crash",
        WAL,
        "if in_use and size < _HEADER.size + _FRAME.size:",
        "if False:",
        (f"{STORE_TESTS}::test_k17_a_wal_without_a_complete_frame_header_is_refused_after_a_crash",),
    ),
    Mutant(
        "a damaged frame in the middle of the write-ahead log is a torn tail",
        WAL,
        "if later is not None:",
        "if False:",
        (FORMAT_TESTS,),
    ),
    Mutant(
        "the checksum of the quorum state is not checked",
        STORE,
        "if not isinstance(data, bytes) or crc32c(data) != crc:\n            raise self._corrupt(\"the quorum state's",
        "if not isinstance(data, bytes):\n            raise self._corrupt(\"the quorum state's",
        (f"{STORE_TESTS}::test_a_changed_byte_in_a_batch_or_the_state_is_noticed",),
    ),
    Mutant(
        "a gap in the log is not noticed",
        STORE,
        "if base_offset != end or count < 1:",
        "if count < 1:",
        (f"{STORE_TESTS}::test_a_database_that_contradicts_itself_is_refused",),
    ),
    Mutant(
        "a log whose beginning no snapshot holds is opened",
        STORE,
        "if stored.log_start > 0 and not ends:",
        "if False:",
        (SNAPSHOT_CONTRACT_TESTS,),
    ),
    Mutant(
        "records below the log's start are still read",
        STORE,
        "(max(start if first is None else first, self._log_start), end),",
        "(start if first is None else first, end),",
        (f"{TRIMMING_TESTS}::test_trimmed_records_are_deleted_in_pieces_between_other_writes",),
    ),
    Mutant(
        "a snapshot gets its name before it is synced",
        SNAPSHOTS,
        "                os.fsync(file.fileno())\n        except",
        "        except",
        (f"{FAILURE_TESTS}::test_a_snapshot_is_synced_before_it_gets_its_name",),
    ),
    Mutant(
        "a directory that is in use is opened twice",
        DIRECTORY,
        "            _lock_exclusively(self._descriptor)\n",
        "            pass\n",
        (f"{STORE_TESTS}::test_the_refusal_of_a_directory_in_use_names_the_process",),
    ),
    Mutant(
        "a recovered directory's mark keeps the previous identity",
        DIRECTORY,
        "_save_mark(directory, {**_read_mark(directory), **asdict(identity)})",
        "pass",
        (f"{STORE_TESTS}::test_the_formatting_mark_is_updated_when_a_directory_gets_another_identity",),
    ),
    Mutant(
        "facts whose commit failed are closed",
        FACTS,
        "                if self._is_whole:\n",
        "                if True:\n",
        (f"{FACTS_TESTS}::test_facts_and_wal_stay_unchanged_after_a_failed_sync",),
    ),
    Mutant(
        "facts on a failed disk are closed",
        FACTS,
        "if not leave_files and self._connection_lock",
        "if self._connection_lock",
        (f"{FACTS_TESTS}::test_facts_stay_unchanged_when_another_file_fails",),
    ),
    Mutant(
        "a download removes a snapshot that is being finished",
        SNAPSHOTS,
        "if other != end and other not in self._taking:",
        "if other != end:",
        (f"{SNAPSHOT_TESTS}::test_a_new_download_does_not_remove_a_snapshot_that_is_being_finished",),
    ),
    Mutant(
        "a snapshot that is deleted during a listing fails the store",
        SNAPSHOTS,
        "except FileNotFoundError:  # another thread has",
        "except FileExistsError:  # another thread has",
        (f"{SNAPSHOT_TESTS}::test_a_snapshot_that_retention_deletes_during_a_listing_is_left_out",),
    ),
    Mutant(
        "a closing that is cancelled closes the database",
        STORE,
        "await self._release(leave_files=not is_clean)",
        "await self._release(leave_files=leave_files or self._failure is not None)",
        (f"{FAILURE_TESTS}::test_a_cancelled_close_leaves_the_files_unchanged",),
    ),
)
