"""Mutants of broker/log: retention, durable marks, truncation, producers, recovery, clocks."""

from __future__ import annotations

from tests.mutants import Mutant

LOG = "broker/log/partition_log.py"
MANAGER = "broker/log/manager.py"
RECOVERY = "broker/log/recovery.py"
UNIT = "tests/unit/broker/log"
DURABILITY = f"{UNIT}/test_durability.py"

MUTANTS = (
    Mutant(
        "retention deletes records that are not committed",
        LOG,
        "deletable_end = min(self.high_watermark, self._flushed_offset)",
        "deletable_end = self._flushed_offset",
        (f"{DURABILITY}::test_retention_deletes_whole_segments_of_committed_records_only",),
    ),
    Mutant(
        "retention deletes records that are not durable",
        LOG,
        "deletable_end = min(self.high_watermark, self._flushed_offset)",
        "deletable_end = self.high_watermark",
        (f"{DURABILITY}::test_retention_deletes_nothing_that_is_not_durable",),
    ),
    Mutant(
        "the start of a log passes its watermark",
        LOG,
        "        offset = min(offset, self.high_watermark)\n",
        "",
        (f"{DURABILITY}::test_the_start_never_passes_the_watermark",),
    ),
    Mutant(
        "a segment is deleted before the facts have forgotten it",
        LOG,
        "start_offset = min(self.start_offset, self.written_start_offset)",
        "start_offset = self.start_offset",
        (f"{DURABILITY}::test_a_segment_goes_only_after_the_facts_have_forgotten_it",),
    ),
    Mutant(
        "a watermark is written down before it is durable",
        LOG,
        "self._written_watermark = min(self.high_watermark, self._flushed_offset)",
        "self._written_watermark = self.high_watermark",
        (f"{DURABILITY}::test_a_power_cut_between_the_watermark_and_the_flush_takes_no_log_offline",),
    ),
    Mutant(
        "a written watermark may be cut without the facts forgetting it",
        LOG,
        "        self.truncation_floor = max(self.truncation_floor, self._written_watermark)\n        return",
        "        return",
        (f"{DURABILITY}::test_a_watermark_is_written_only_as_far_as_the_log_is_durable",),
    ),
    Mutant(
        "a recovery point is not durable",
        LOG,
        "offset = min(self._flushed_offset, self.high_watermark)",
        "offset = self.high_watermark",
        (f"{DURABILITY}::test_a_recovery_point_is_durable_and_committed",),
    ),
    Mutant(
        "a recovery point is not committed",
        LOG,
        "offset = min(self._flushed_offset, self.high_watermark)",
        "offset = self._flushed_offset",
        (f"{DURABILITY}::test_a_recovery_point_is_durable_and_committed",),
    ),
    Mutant(
        "everything that a crash has left counts as committed",
        LOG,
        "self.high_watermark = min(self.high_watermark, self.truncation_floor)",
        "self.high_watermark = self.end_offset",
        (f"{DURABILITY}::test_after_a_crash_only_what_is_written_down_counts_as_committed",),
    ),
    Mutant(
        "producer snapshots above a truncation are kept",
        LOG,
        "        remove_snapshots(self._disk, self.folder, above=end_offset)\n",
        "",
        (f"{DURABILITY}::test_no_producer_snapshot_outlives_a_truncation",),
    ),
    Mutant(
        "producer snapshots above a torn tail are kept",
        LOG,
        "        remove_snapshots(self._disk, self.folder, above=self.end_offset)\n",
        "",
        (f"{DURABILITY}::test_no_producer_snapshot_outlives_a_tail_that_a_crash_tore",),
    ),
    Mutant(
        "producer snapshots are kept when a log restarts at its leader's start",
        LOG,
        "        remove_snapshots(self._disk, self.folder, above=-1)\n",
        "",
        (f"{DURABILITY}::test_no_producer_snapshot_outlives_a_restart_at_the_leaders_start",),
    ),
    Mutant(
        "the flush of records that were cut off vouches for others at their offsets",
        LOG,
        "        if ticket.generation != self.generation:\n            return\n",
        "",
        (f"{DURABILITY}::test_the_flush_of_another_generation_does_not_count",),
    ),
    Mutant(
        "a truncation leaves the flushed offset above the end",
        LOG,
        "        self._flushed_offset = min(self._flushed_offset, end_offset)\n",
        "",
        (f"{DURABILITY}::test_a_truncation_lowers_every_mark",),
    ),
    Mutant(
        "a truncation leaves the watermark above the end",
        LOG,
        "        self.high_watermark = min(self.high_watermark, end_offset)\n",
        "",
        (f"{DURABILITY}::test_a_truncation_lowers_every_mark",),
    ),
    Mutant(
        "a producer whose batch is not committed expires",
        LOG,
        "self._producers.expire(now_ms, self.config.producer_expiration_ms, self.high_watermark)",
        "self._producers.expire(now_ms, self.config.producer_expiration_ms, self.end_offset)",
        (f"{UNIT}/test_manager.py::test_a_retry_of_a_batch_that_is_not_committed_is_recognised_however_long_it_waits",),
    ),
    Mutant(
        "a retry does not show that its producer is alive",
        LOG,
        "                self.producers.renew(headers[0].producer_id)\n",
        "",
        (f"{UNIT}/test_manager.py::test_a_retry_shows_that_its_producer_is_alive",),
    ),
    Mutant(
        "retention follows a wall clock that has just jumped ahead",
        MANAGER,
        "wall_ms = self._clock.read(wall_ms, now_ms)",
        "self._clock.read(wall_ms, now_ms)",
        (f"{UNIT}/test_manager.py::test_a_wall_clock_that_jumps_ahead_deletes_nothing_for_a_day",),
    ),
    Mutant(
        "a start believes whatever wall clock it finds",
        MANAGER,
        "self._clock.load(disk)",
        "pass",
        (f"{UNIT}/test_manager.py::test_a_wall_clock_that_is_ahead_at_the_start_deletes_nothing_for_a_day",),
    ),
    Mutant(
        "an unclean election cuts what the facts still call committed",
        MANAGER,
        "[log], {watermark_fact(log.key): None})",
        "[log])",
        (f"{UNIT}/test_recovery.py::test_what_an_unclean_election_cut_is_not_missed",),
    ),
    Mutant(
        "a damaged batch that was committed is taken for a torn tail",
        RECOVERY,
        "if walked.end_offset < start.committed:",
        "if False:",
        (f"{UNIT}/test_recovery.py::test_a_flipped_bit_in_the_last_batch_is_damage_if_it_was_committed",),
    ),
    Mutant(
        "a tear is cut although good batches follow it",
        RECOVERY,
        "        if good is not None:\n",
        "        if False:\n",
        (f"{UNIT}/test_recovery.py::test_a_tear_before_another_segment_is_damage",),
    ),
    Mutant(
        "the checksum of a checkpoint is not compared",
        "broker/log/state.py",
        "!= int(match[1], 16):",
        "== -1:",
        (f"{UNIT}/test_recovery.py::test_every_flipped_byte_of_a_checkpoint_is_found",),
    ),
    Mutant(
        "with write.caching, a tear is damage when a good batch follows it",
        RECOVERY,
        "for one, position in () if start.unsynced else",
        "for one, position in",
        (f"{UNIT}/test_recovery.py::test_with_write_caching_a_tear_before_another_segment_ends_the_log",),
    ),
    Mutant(
        "a log stays without order when its write.caching ends",
        "broker/log/partition_log.py",
        "wanted != self.folder_fact",
        "self.folder_fact is None",
        (f"{UNIT}/test_recovery.py::test_a_log_without_write_caching_again_is_synced_in_order",),
    ),
    Mutant(
        "the leader epoch of a stored batch is not checked",
        "broker/log/segment.py",
        "elif epoch_of(header.base_offset) not in (-1, header.leader_epoch):",
        "elif False:",
        (f"{UNIT}/test_recovery.py::test_every_flipped_byte_is_found_when_it_is_read_after_a_clean_stop",),
    ),
    Mutant(
        "the offset of a stored batch is not checked",
        "broker/log/segment.py",
        "if header.end_offset != offset:",
        "if False:",
        (f"{UNIT}/test_recovery.py::test_every_flipped_byte_is_found_when_it_is_read_after_a_clean_stop",),
    ),
)
