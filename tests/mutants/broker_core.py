"""Mutants of broker/core."""

from __future__ import annotations

from tests.mutants import Mutant

EPOCHS = "broker/core/epochs.py"
LIFECYCLE = "broker/core/lifecycle.py"
PARTITION = "broker/core/partition.py"
SESSION = "broker/core/fetch_session.py"

EPOCH_TESTS = "tests/unit/broker/core/test_epochs.py"
LIFECYCLE_TESTS = "tests/unit/broker/core/test_lifecycle.py"
PARTITION_TESTS = "tests/unit/broker/core/test_partition.py"
PARTITION_ISR_TESTS = "tests/unit/broker/core/test_partition_isr.py"
PARTITION_POSITION_TESTS = "tests/unit/broker/core/test_partition_positions.py"
SESSION_TESTS = "tests/unit/broker/core/test_fetch_session.py"

MUTANTS = (
    Mutant(
        "a replica joins the ISR without a deletion that was answered while it was away",
        PARTITION,
        "            and max(follower.log_start, 0) >= self._deleted_below\n",
        "",
        (f"{PARTITION_ISR_TESTS}::test_a_replica_that_missed_a_deletion_joins_once_its_log_start_is_durable",),
    ),
    Mutant(
        "a new leader admits replicas that missed the deletions of the leader before it",
        PARTITION,
        "self._deleted_below = log_start",
        "self._deleted_below = 0",
        (f"{PARTITION_ISR_TESTS}::test_a_replica_that_missed_a_deletion_by_an_earlier_leader_does_not_join",),
    ),
    Mutant(
        "a deletion does not wait for a replica that a proposal may still admit",
        PARTITION,
        "if id_ in members or self.cluster.may_join(id_)",
        "if self.cluster.may_join(id_)",
        (f"{PARTITION_ISR_TESTS}::test_a_deletion_waits_for_a_replica_that_a_proposal_may_still_admit",),
    ),
    Mutant(
        "a session does not repeat the state of a partition whose error ended",
        SESSION,
        "is_error = code != KafkaCode.NONE",
        "is_error = False",
        (
            "tests/unit/broker/replica/test_consumer_sessions.py::test_incremental_fetches_return_the_same_records_and_states_as_full_fetches",
        ),
    ),
    Mutant(
        "a reply in the former session resets a full fetch, and its partitions are never copied again",
        SESSION,
        "elif session_id != self._session_id and not self._opening:",
        "elif session_id != self._session_id:",
        (f"{SESSION_TESTS}::test_the_reply_to_a_request_of_the_former_session_changes_nothing_during_a_full_fetch",),
    ),
    Mutant(
        "a reply in the former session confirms the position of a full fetch",
        SESSION,
        "chosen, (), dict.fromkeys(self._sent))",
        "chosen, (), {})",
        ("tests/unit/broker/replica/test_fetcher.py::test_a_reply_of_the_former_session_does_not_answer_a_full_fetch",),
    ),
    Mutant(
        "a session keeps its view when the isolation level changes",
        SESSION,
        "        if stance != self.stance:\n",
        "        if self.stance is None:\n",
        (f"{SESSION_TESTS}::test_all_partitions_become_ready_again_when_the_isolation_level_changes",),
    ),
    Mutant(
        "a consumer's session replaces one that has just begun",
        SESSION,
        "(len(session.entries) < size and now_ms - session.opened_ms >= self._idle_ms)",
        "(len(session.entries) < size)",
        (f"{SESSION_TESTS}::test_a_consumer_replaces_the_smallest_older_session_that_lists_fewer_partitions",),
    ),
    Mutant(
        "a refused partition is named again only if its target has changed",
        SESSION,
        "if target == sent and key not in self._refused:",
        "if target == sent:",
        (
            f"{SESSION_TESTS}::test_a_refused_partition_is_named_again_with_an_unchanged_target",
            "tests/unit/broker/replica/test_fetcher.py::test_a_refused_replica_reports_its_position_again",
        ),
    ),
    Mutant(
        "acks=all is answered for records at the watermark",
        PARTITION,
        "if self.high_watermark >= end:\n                return KafkaCode.NONE",
        "if self.high_watermark >= end - 1:\n                return KafkaCode.NONE",
        (f"{PARTITION_TESTS}::test_acks_all_is_answered_once_the_watermark_reaches_the_end_of_the_write",),
    ),
    Mutant(
        "a leader counts records that it has not flushed",
        PARTITION,
        "        end = self.flushed_end\n        for broker_id in self.isr:",
        "        end = self.log_end\n        for broker_id in self.isr:",
        (f"{PARTITION_TESTS}::test_unflushed_records_of_the_leader_are_not_committed",),
    ),
    Mutant(
        "min.insync.replicas counts replicas that are being added",
        PARTITION,
        "min(self.limits.min_isr, len(self.replicas) - len(self.adding))",
        "min(self.limits.min_isr, len(self.replicas))",
        (f"{PARTITION_TESTS}::test_replicas_that_are_being_added_do_not_raise_the_effective_min_isr",),
    ),
    Mutant(
        "divergence is judged by offset alone",
        PARTITION,
        "if epoch < last_fetched_epoch or end < fetch_offset:",
        "if end < fetch_offset:",
        (f"{PARTITION_POSITION_TESTS}::test_divergence_is_judged_by_epoch_not_by_offset_alone",),
    ),
    Mutant(
        "a replica's position without an epoch fits anywhere in the leader's log",
        PARTITION,
        "fits = fetch_offset == log_start and epochs.epoch_of(log_start - 1) < 0",
        "fits = fetch_offset <= epochs.end_offset",
        (f"{PARTITION_POSITION_TESTS}::test_a_replicas_position_without_an_epoch_fits_only_where_both_logs_begin",),
    ),
    Mutant(
        "an epoch that the leader does not know fits",
        PARTITION,
        "epoch, end = epochs.end_of(min(last_fetched_epoch, epochs.latest))\n",
        "epoch, end = epochs.end_of(last_fetched_epoch)\n    if epoch < 0:\n        return KafkaCode.NONE\n",
        (f"{PARTITION_POSITION_TESTS}::test_an_epoch_above_the_leaders_latest_diverges_at_the_leaders_log_end",),
    ),
    Mutant(
        "a follower cuts at the leader's end of an epoch that it does not know",
        PARTITION,
        "shared = min(end, diverging.end) if epoch == diverging.epoch else end",
        "shared = min(end, diverging.end) if epoch == diverging.epoch else diverging.end",
        (
            f"{PARTITION_POSITION_TESTS}::test_a_divergence_in_an_unknown_epoch_truncates_to_the_end_of_the_epoch_before",
        ),
    ),
    Mutant(
        "a log that diverges below its start keeps its records",
        PARTITION,
        "return TruncateTo(end) if end >= log_start else RestartAt(leaders_start)",
        "return TruncateTo(max(end, log_start))",
        (
            f"{PARTITION_POSITION_TESTS}::test_a_log_that_diverges_below_its_own_start_restarts_at_the_leaders_log_start",
            "tests/simulation/test_emptied_follower.py",
        ),
    ),
    Mutant(
        "an empty log below the leader's start starts over",
        PARTITION,
        "if log_start < log_end < reply.log_start:",
        "if log_end < reply.log_start:",
        (
            f"{PARTITION_POSITION_TESTS}::test_a_follower_restarts_at_the_leaders_log_start_if_all_its_records_lie_below_it",
        ),
    ),
    Mutant(
        "a log keeps records that all lie below the leader's start",
        PARTITION,
        "if log_start < log_end < reply.log_start:",
        "if log_end < log_start < reply.log_start:",
        (
            f"{PARTITION_POSITION_TESTS}::test_a_follower_restarts_at_the_leaders_log_start_if_all_its_records_lie_below_it",
        ),
    ),
    Mutant(
        "a reply to another last epoch is accepted",
        PARTITION,
        "if sent != (self.leader_epoch, log_end, epochs.last_epoch):",
        "if sent[:2] != (self.leader_epoch, log_end):",
        (f"{PARTITION_POSITION_TESTS}::test_a_reply_to_another_request_is_dropped",),
    ),
    Mutant(
        "a follower joins below where its leader began",
        PARTITION,
        "            and follower.end >= self.epoch_start\n",
        "",
        (f"{PARTITION_ISR_TESTS}::test_a_replica_below_the_watermark_or_the_log_end_at_the_election_does_not_join",),
    ),
    Mutant(
        "a definite refusal leaves its additions in force forever",
        PARTITION,
        "                    pending.additions.clear()\n",
        "",
        (f"{PARTITION_ISR_TESTS}::test_a_refused_addition_no_longer_holds_the_watermark_back",),
    ),
    Mutant(
        "an older incarnation's fetch counts",
        PARTITION,
        "broker_epoch < max(follower.broker_epoch, self.cluster.broker_epoch(broker_id)):",
        "broker_epoch < follower.broker_epoch:",
        (f"{PARTITION_TESTS}::test_a_fetch_of_an_older_incarnation_is_ignored",),
    ),
    Mutant(
        "the epoch of the last record is forgotten when another begins at the log's start",
        EPOCHS,
        "index = bisect_left(self._starts, start_offset) - 1",
        "index = bisect_right(self._starts, start_offset) - 1",
        (f"{EPOCH_TESTS}::test_the_epoch_of_the_last_record_stays_known_after_the_record_is_deleted",),
    ),
    Mutant(
        "a truncation keeps an epoch that begins at the new end",
        EPOCHS,
        "while self._starts and self._starts[-1] >= end_offset:",
        "while self._starts and self._starts[-1] > end_offset:",
        (f"{EPOCH_TESTS}::test_truncation_forgets_later_epochs",),
    ),
    Mutant(
        "another broker's fetch session is served",
        SESSION,
        "if found is None or found.replica_id != replica_id:\n            return",
        "if found is None:\n            return",
        (f"{SESSION_TESTS}::test_a_fetcher_can_neither_use_nor_close_the_session_of_another_fetcher",),
    ),
    Mutant(
        "a session forgets that a partition has records when it is touched",
        SESSION,
        "        if key in self.entries:\n            self.ready[key] = None",
        "        if key in self.ready:\n            self.ready[key] = None",
        (f"{SESSION_TESTS}::test_only_touched_partitions_are_ready",),
    ),
    Mutant(
        "a second order to stop moves the deadline",
        LIFECYCLE,
        "        if self._deadline_ms is None:\n            self._deadline_ms = deadline_ms",
        "        if True:\n            self._deadline_ms = deadline_ms",
        (f"{LIFECYCLE_TESTS}::test_a_second_stop_does_not_move_the_deadline",),
    ),
    Mutant(
        "a marker that is not committed already decides for readers",
        "broker/core/transactions.py",
        "            stable = min(stable, decided.first_offset)\n",
        "            pass\n",
        (
            "tests/unit/broker/core/test_transactions.py::test_a_marker_does_not_move_the_last_stable_offset_before_it_is_committed",
        ),
    ),
    Mutant(
        "an aborted transaction is not reported to its last records",
        "broker/core/transactions.py",
        "            self._stable.append(next(iter(self.open.values()), marker_offset + 1))",
        "            self._stable.append(marker_offset + 1)",
        (
            "tests/unit/broker/core/test_transactions.py::test_aborted_transactions_are_reported_in_the_order_of_their_markers",
        ),
    ),
    Mutant(
        "a marker does not void a confirmation under way",
        "broker/core/producer_state.py",
        "                del self._verifying[producer_id]\n\n    def renew",
        "                pass\n\n    def renew",
        ("tests/unit/broker/core/test_transactions.py::test_a_marker_voids_a_confirmation_under_way",),
    ),
    Mutant(
        "a batch that was confirmed before its transaction was aborted is appended after its marker",
        "broker/replica/replica.py",
        "            if self.log is not None and not marker.raises_epoch:\n",
        "            if False:\n",
        (
            "tests/unit/broker/replica/test_transactional.py::"
            "test_a_confirmed_batch_is_verified_again_after_a_marker_that_did_not_raise_its_epoch",
        ),
    ),
    Mutant(
        "offsets that were confirmed before their transaction was aborted are committed after its marker",
        "broker/coordinator/groups.py",
        "            if producers is not None and not marker.raises_epoch:\n",
        "            if False:\n",
        (
            "tests/unit/broker/coordinator/test_hanging.py::"
            "test_a_marker_voids_a_confirmation_unless_the_decision_has_raised_the_epoch",
        ),
    ),
    Mutant(
        "the marker before a transaction voids its confirmation",
        "broker/core/producer_state.py",
        "if token is not None and not (is_raised and token.producer_epoch == batch.producer_epoch):",
        "if token is not None:",
        (
            "tests/unit/broker/core/test_transactions.py::test_a_batch_of_the_next_epoch_waits_for_the_marker_of_the_previous_transaction",
        ),
    ),
    Mutant(
        "a transaction begins without its coordinator",
        "broker/core/producer_state.py",
        "        if not self.is_verified(batch.producer_id, batch.producer_epoch, verification):",
        "        if False:",
        (
            "tests/unit/broker/core/test_transactions.py::test_a_transaction_begins_only_after_the_coordinator_has_confirmed_it",
        ),
    ),
    Mutant(
        "a producer with an open transaction expires",
        "broker/core/producer_state.py",
        " or producer_id in self.transactions.open:\n                producer.silent",
        ":\n                producer.silent",
        ("tests/unit/broker/core/test_transactions.py::test_a_producer_with_an_open_transaction_does_not_expire",),
    ),
    Mutant(
        "an old coordinator ends a transaction",
        "broker/core/producer_state.py",
        "marker.coordinator_epoch < producer.coordinator_epoch",
        "False",
        ("tests/unit/broker/core/test_transactions.py::test_markers_of_old_producers_and_coordinators_are_refused",),
    ),
    Mutant(
        "the next epoch joins the transaction of the one before",
        "broker/core/producer_state.py",
        " and producer is not None and producer.epoch >= producer_epoch\n",
        " and producer is not None\n",
        (
            "tests/unit/broker/core/test_transactions.py::test_a_batch_of_the_next_epoch_waits_for_the_marker_of_the_previous_transaction",
        ),
    ),
    Mutant(
        "a late copy of a marker ends the next transaction",
        "broker/core/producer_state.py",
        "if marker.raises_epoch and producer is not None",
        "if False and producer is not None",
        (
            "tests/unit/broker/core/test_transactions.py::test_a_late_copy_of_a_marker_does_not_end_the_next_transaction",
        ),
    ),
    Mutant(
        "a follower that has not fetched yet leaves the ISR of a new leader",
        PARTITION,
        "most >= 0 and UNKNOWN_END < end < self.log_end",
        "most >= 0 and end < self.log_end",
        (f"{PARTITION_ISR_TESTS}::test_a_follower_that_lags_by_too_many_bytes_leaves_the_isr_at_once",),
    ),
)
