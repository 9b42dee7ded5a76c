"""Mutants of broker/replica: the directories of replicas, and moves between them."""

from __future__ import annotations

from tests.mutants import Mutant

DIRECTORIES = "broker/replica/directories.py"
IMAGE = "broker/replica/image.py"
ISR = "broker/replica/isr.py"
WATERMARKS = "broker/replica/watermarks.py"
ROLE_TESTS = "tests/unit/broker/replica/test_roles.py"
MOVE_TESTS = "tests/unit/broker/replica/test_moves.py"

MUTANTS = (
    Mutant(
        "the new directory of a moved replica is not reported to the controller",
        DIRECTORIES,
        "        self.report(replica.partition, replica.log.directory_id)\n        if replica.log.durable",
        "        if replica.log.durable",
        (f"{MOVE_TESTS}::test_a_leader_keeps_its_role_while_its_log_moves",),
    ),
    Mutant(
        "a replica that moves back reports nothing while its first report is on its way",
        DIRECTORIES,
        "        self.report(replica.partition, replica.log.directory_id)\n        if replica.log.durable",
        "        self.report_changed(replica)\n        if replica.log.durable",
        (f"{MOVE_TESTS}::test_a_replica_that_moves_back_reports_its_directory_again",),
    ),
    Mutant(
        "the watermark of an older copy of a replica counts for the copy that is used",
        WATERMARKS,
        "self._restored.pop(watermark_fact(key), {}).get(directory_id, 0)",
        "max(self._restored.pop(watermark_fact(key), {}).values(), default=0)",
        (f"{ROLE_TESTS}::test_the_stored_high_watermark_of_an_older_copy_is_ignored",),
    ),
    Mutant(
        "a report that arrives late leaves another directory in the metadata",
        IMAGE,
        "        self._directories.report_changed(replica)  # an earlier report",
        "        # an earlier report",
        (f"{MOVE_TESTS}::test_an_outdated_directory_in_the_metadata_is_corrected",),
    ),
    Mutant(
        "a replica is created elsewhere than AlterReplicaLogDirs has chosen",
        DIRECTORIES,
        "        if preferred in working:\n            return preferred\n",
        "",
        (f"{MOVE_TESTS}::test_a_replica_is_created_in_the_directory_that_was_requested_before_its_creation",),
    ),
    Mutant(
        "a damaged replica starts over if an earlier report of its directory arrives late",
        DIRECTORIES,
        "if replica.log is not None or self._context.broker_id not in partition.adding:",
        "if replica.log is not None:",
        (f"{ROLE_TESTS}::test_a_damaged_replica_whose_earlier_report_arrives_late_does_not_start_over",),
    ),
    Mutant(
        "a replica on a failed directory begins anew on another",
        DIRECTORIES,
        "        if assigned in self._directory_ids:\n            return assigned if assigned in working else None\n",
        "        if assigned in working:\n            return assigned\n",
        (f"{ROLE_TESTS}::test_a_replica_on_a_failed_directory_is_not_recreated_in_another_directory",),
    ),
    Mutant(
        "a directory that fails while a replica is created ends the broker",
        DIRECTORIES,
        "            except DiskError as error:\n                logs.disk_failed(directory_id, error)\n",
        "            except ZeroDivisionError as error:\n                logs.disk_failed(directory_id, error)\n",
        ("tests/unit/broker/replica/test_roles.py::test_a_directory_that_fails_while_a_replica_is_created_is_offline",),
    ),
    Mutant(
        "a replica that has moved twice counts as empty if the controller knows neither move",
        DIRECTORIES,
        "(known if known in log.moved_from else log.moved_from[-1])",
        "log.moved_from[-1]",
        (f"{MOVE_TESTS}::test_a_moved_replica_leads_again_although_its_former_directory_has_failed",),
    ),
    Mutant(
        "a restarted broker forgets that a replica has left a directory with all records",
        "broker/log/marks.py",
        "return [] if self._is_move_known else list(self.moved_from)",
        "return []",
        (
            f"{MOVE_TESTS}::test_a_moved_replica_leads_again_if_its_former_directory_fails_at_the_next_start",
            "tests/unit/broker/log/test_moves.py::test_a_crash_at_any_step_of_a_move_loses_no_acknowledged_record",
        ),
    ),
    Mutant(
        "a backup of a directory claims for ever that a replica came there with all records",
        "broker/log/marks.py",
        "            self._is_move_known = True\n",
        "",
        (f"{MOVE_TESTS}::test_a_log_drops_its_former_directory_once_the_controller_knows_the_current_one",),
    ),
    Mutant(
        "an idle log claims until the next clean stop that it has all records of its former directory",
        "broker/log/upkeep.py",
        "if marks.start_offset != marks.written_start_offset or marks.is_move_outdated:",
        "if marks.start_offset != marks.written_start_offset:",
        (
            "tests/unit/broker/log/test_moves.py::test_an_idle_log_stops_naming_its_former_directory_with_the_next_checkpoint",
        ),
    ),
    Mutant(
        "a log forgets its former directory while a report of that directory may still be applied",
        DIRECTORIES,
        "if replica.log is not None and replica.partition not in self._unreported:",
        "if replica.log is not None:",
        (f"{MOVE_TESTS}::test_a_replica_that_moves_back_reports_its_directory_again",),
    ),
    Mutant(
        "a replica whose directory was removed stays offline although it was assigned again",
        DIRECTORIES,
        "if before == LOST or replica.key in logs.failures:",
        "if replica.key in logs.failures:",
        (f"{MOVE_TESTS}::test_a_replica_whose_directory_was_removed_can_be_assigned_again",),
    ),
    Mutant(
        "a replica that moved to a directory that fails at the next start begins anew in its former one",
        DIRECTORIES,
        "            return logs.moved_away(replica.key, assigned)\n",
        "            return None\n",
        (f"{MOVE_TESTS}::test_a_moved_replica_does_not_start_over_in_its_former_directory",),
    ),
    Mutant(
        "a replica that may be in one of several failed directories is reported in the first",
        DIRECTORIES,
        "return LOST if len(failed) > 1 else next(iter(failed), None)",
        "return next(iter(failed), None)",
        (f"{MOVE_TESTS}::test_a_replica_that_may_be_in_several_failed_directories_is_reported_as_lost",),
    ),
    Mutant(
        "an older copy is used while the assigned directory is offline",
        DIRECTORIES,
        "elif assigned in logs.failed_disks and assigned not in found.moved_from:",
        "elif False:",
        (f"{MOVE_TESTS}::test_an_older_copy_is_not_used_while_the_assigned_directory_is_offline",),
    ),
    Mutant(
        "a replica that moved stays offline if its former directory fails",
        DIRECTORIES,
        "elif assigned in logs.failed_disks and assigned not in found.moved_from:",
        "elif assigned in logs.failed_disks:",
        ("tests/unit/broker/replica/test_moves.py",),
    ),
    Mutant(
        "the memory of a move is deleted before the controller knows of the move",
        "broker/replica/strays.py",
        "limits.strays_kept_ms, unreported)",
        "limits.strays_kept_ms)",
        (f"{MOVE_TESTS}::test_a_moved_replica_does_not_start_over_in_its_former_directory",),
    ),
    Mutant(
        "a member of the ISR that may be on a failed directory begins anew",
        DIRECTORIES,
        "self._context.broker_id not in (*partition.isr, *partition.elr):",
        "self._context.broker_id in (*partition.isr, *partition.elr):",
        (f"{ROLE_TESTS}::test_an_isr_member_without_a_directory_is_not_recreated_while_a_directory_has_failed",),
    ),
    Mutant(
        "a replica is used in a directory that failed before the metadata was known",
        DIRECTORIES,
        "        if found is not None and found.directory_id in logs.failed_disks:\n",
        "        if False and found is not None:\n",
        (f"{ROLE_TESTS}::test_a_replica_whose_directory_fails_before_the_metadata_is_known_is_offline",),
    ),
    Mutant(
        "a replica of a directory that failed early stays in the ISR if the controller does not know its directory",
        DIRECTORIES,
        "            if found.directory_id != assigned:  # otherwise",
        "            if False:  # otherwise",
        (f"{ROLE_TESTS}::test_a_replica_whose_directory_fails_before_the_metadata_is_known_is_offline",),
    ),
)
