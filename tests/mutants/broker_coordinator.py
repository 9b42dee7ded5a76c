"""Mutants of broker/coordinator."""

from __future__ import annotations

from tests.mutants import Mutant

PARTITION = "broker/coordinator/partition.py"
CREATION = "broker/coordinator/creation.py"
TESTS = "tests/unit/broker/coordinator/test_coordinator.py"

GROUPS = "broker/coordinator/groups.py"
TOPICS = "broker/coordinator/topics.py"
GROUP_TESTS = "tests/unit/broker/coordinator/test_groups.py"

LOG_END_TESTS = "tests/unit/broker/coordinator/test_log_ends.py"

SHARE_GROUP_STATES = "broker/coordinator/share_group_states.py"
LED_SHARE = "broker/coordinator/led_share.py"
GROUP_CONFIG_TESTS = "tests/unit/broker/coordinator/test_group_configs.py"

MUTANTS = (
    Mutant(
        "a failed offset commit makes the answer to its repetition void",
        GROUPS,
        "if not (token.is_confirmed or token.waiting):",
        "if not token.is_confirmed:",
        (f"{GROUP_TESTS}::test_a_repeated_offset_commit_succeeds_although_the_first_one_is_cancelled",),
    ),
    Mutant(
        "a coordinator that fails leaves its calls waiting",
        PARTITION,
        "            self._drop(KafkaCode.COORDINATOR_NOT_AVAILABLE)  # calls wait",
        "            # calls wait",
        (f"{TESTS}::test_a_record_that_cannot_be_encoded_fails_the_coordinator_and_refuses_its_calls",),
    ),
    Mutant(
        "many markers that wait for their replicas delay the others of the request",
        "broker/kafka/transactions.py",
        "                    await asyncio.sleep(0)  # the tasks append their markers now\n",
        "                    await asyncio.gather(*writes)\n",
        (
            "tests/unit/broker/kafka/test_transactions.py"
            "::test_many_uncommitted_transaction_markers_do_not_delay_other_markers",
        ),
    ),
    Mutant(
        "the answer of a leader that waited for its replicas comes too late",
        "broker/coordinator/markers.py",
        "(self._limits.marker_timeout_ms + _ANSWER_MS) / 1000",
        "self._limits.marker_timeout_ms / 1000",
        (
            "tests/unit/broker/coordinator/test_markers.py::test_the_timeout_of_a_marker_request_exceeds_the_time_that_the_leader_may_wait",
        ),
    ),
    Mutant(
        "a full queue is offered the same decision without end",
        "broker/coordinator/markers.py",
        "            await asyncio.sleep(backoff.next_s())",
        "            if left:\n                await asyncio.sleep(backoff.next_s())",
        (
            "tests/unit/broker/coordinator/test_markers.py::test_a_decision_without_partitions_is_reported_once_the_coordinator_has_drained_its_queue",
        ),
    ),
    Mutant(
        "groups expire by the wall clock itself",
        GROUPS,
        "return self._logs.cautious_ms(self._sources.wall_ms(), now_ms())",
        "return self._sources.wall_ms()",
        (
            "tests/unit/broker/coordinator/test_expiry_clock.py::test_a_jump_of_the_wall_clock_expires_no_offset_and_no_transactional_id",
        ),
    ),
    Mutant(
        "transactional ids expire by the wall clock itself",
        "broker/coordinator/transactions.py",
        "return self._logs.cautious_ms(self._sources.wall_ms(), now_ms())",
        "return self._sources.wall_ms()",
        (
            "tests/unit/broker/coordinator/test_expiry_clock.py::test_a_jump_of_the_wall_clock_expires_no_offset_and_no_transactional_id",
        ),
    ),
    Mutant(
        "a coordinator that has ended stays in memory with its task",
        PARTITION,
        "            self.task = None\n",
        "            pass\n",
        (f"{TESTS}::test_the_memory_of_a_machine_is_freed_when_its_leadership_ends",),
    ),
    Mutant(
        "a dropped machine stays in memory with the search that it had begun",
        PARTITION,
        "            self.machine.close()\n",
        "            pass\n",
        (f"{TESTS}::test_a_machine_is_closed_when_its_leadership_ends",),
    ),
    Mutant(
        "a load treats all records as records of a transaction",
        PARTITION,
        "producer if header.is_transactional else None)",
        "producer)",
        (f"{TESTS}::test_a_load_replays_transactional_records_with_their_producer",),
    ),
    Mutant(
        "a load replays records before the start of the log",
        PARTITION,
        "self._replica.key.index, first_offset, OFFSET_MAX)",
        "self._replica.key.index, 0, OFFSET_MAX)",
        (f"{TESTS}::test_a_load_begins_at_the_log_start_offset_even_within_a_batch",),
    ),
    Mutant(
        "a change of a group's configs does not reach the share partitions in use",
        "broker/coordinator/shares.py",
        "if old.configs is not new.configs or old.group_configs is not new.group_configs:",
        "if old.configs is not new.configs:",
        (f"{GROUP_CONFIG_TESTS}::test_changed_configs_of_a_group_apply_only_to_its_own_loaded_share_partitions",),
    ),
    Mutant(
        "a share group that begins at an age begins at the end",
        LED_SHARE,
        "return end if found is None else max(found.offset, log.start_offset)",
        "return end",
        (
            f"{GROUP_CONFIG_TESTS}::test_a_share_group_that_resets_by_duration_begins_at_the_first_record_within_that_duration",
        ),
    ),
    Mutant(
        "a group whose session would end before each heartbeat loses its members again and again",
        "broker/coordinator/group_configs.py",
        "return (session_ms, interval_ms) if session_ms > interval_ms else of_cluster",
        "return (session_ms, interval_ms)",
        (
            f"{GROUP_CONFIG_TESTS}::test_a_group_uses_the_clusters_times_if_its_session_would_end_before_its_next_heartbeat",
        ),
    ),
    Mutant(
        "the committed offsets of a removed partition stay",
        GROUPS,
        "isinstance(each, RemovePartition | RenewTopic) for each in records",
        "False for each in records",
        (f"{GROUP_TESTS}::test_the_offsets_of_a_removed_partition_are_deleted",),
    ),
    Mutant(
        "an offset is committed for a topic that the next coordinator may not know",
        TOPICS,
        "return is_applied and is_same and self.has_partition(topic, partition)",
        "return self.has_partition(topic, partition)",
        (f"{GROUP_TESTS}::test_a_commit_is_refused_until_this_broker_has_applied_the_creation_of_its_topic",),
    ),
    Mutant(
        "an offset is committed for a topic that was created again, which the next coordinator may not know",
        TOPICS,
        "return is_applied and is_same and self.has_partition(topic, partition)",
        "return is_applied and self.has_partition(topic, partition)",
        (
            "tests/unit/broker/coordinator/test_topics.py::test_no_offset_is_committed_to_a_recreated_topic_before_this_broker_has_applied_its_creation",
        ),
    ),
    Mutant(
        "a topic that continues under another id loses its committed offsets",
        GROUPS,
        "return now is not None and now.origin == topic.origin",
        "return now is not None and now.topic_id == topic.topic_id",
        (f"{GROUP_TESTS}::test_removing_a_partition_keeps_the_offsets_of_the_remaining_partition",),
    ),
    Mutant(
        "the committed offsets of a deleted topic stay",
        GROUPS,
        "if isinstance(each, RemoveTopic)]",
        "if isinstance(each, RemoveTopic) and records is None]",
        (f"{GROUP_TESTS}::test_the_offsets_of_a_deleted_topic_are_deleted",),
    ),
    Mutant(
        "an answer is sent before its records are committed",
        PARTITION,
        "while self._held_answers and self._held_answers[0].end_offset <= watermark:",
        "while self._held_answers:",
        (f"{TESTS}::test_answers_to_writes_and_reads_wait_for_the_high_watermark",),
    ),
    Mutant(
        "a read shows a state that is not committed",
        PARTITION,
        "self._held_answers.extend(_HeldAnswer(self._end_offset, now, answer) for answer in answers)",
        "self._held_answers.extend(_HeldAnswer(self._end_offset if records else 0, now, answer) for answer in answers)",
        (f"{TESTS}::test_a_call_is_refused_if_its_record_is_not_committed_in_time",),
    ),
    Mutant(
        "a new leader serves before the records of its predecessor are committed",
        PARTITION,
        "while self._leader.high_watermark < end or not self._may_append():",
        "while not self._may_append():",
        (f"{TESTS}::test_a_new_leader_serves_no_call_until_all_records_of_its_log_are_committed",),
    ),
    Mutant(
        "a new leader replays only what is committed already",
        PARTITION,
        "offset, end = partition_log.start_offset, partition_log.end_offset",
        "offset, end = partition_log.start_offset, partition_log.high_watermark",
        (f"{TESTS}::test_a_new_leader_serves_no_call_until_all_records_of_its_log_are_committed",),
    ),
    Mutant(
        "a machine whose append failed goes on",
        PARTITION,
        "                self._reload()\n            return False",
        "                pass\n            return False",
        (f"{TESTS}::test_a_failed_append_drops_the_machine_and_loads_it_anew",),
    ),
    Mutant(
        "a call that may append reaches the machine while too few replicas are in sync",
        PARTITION,
        "may_append = self._may_append()",
        "may_append = True",
        (f"{TESTS}::test_only_reads_are_served_while_too_few_replicas_are_in_sync",),
    ),
    Mutant(
        "a request that nobody waits for any more is applied",
        PARTITION,
        "return call is not None and not call.future.cancelled()",
        "return call is not None",
        (f"{TESTS}::test_a_request_that_was_cancelled_before_its_turn_is_not_applied",),
    ),
    Mutant(
        "a process that may no longer serve answers reads",
        PARTITION,
        "self._refuse_queued(KafkaCode.NOT_COORDINATOR, also_reads=True)",
        "self._refuse_queued(KafkaCode.NOT_COORDINATOR, also_reads=False)",
        (f"{TESTS}::test_a_process_whose_broker_id_another_process_has_registered_refuses_calls",),
    ),
    Mutant(
        "a step of an earlier leadership is appended under a later one",
        "broker/replica/replica.py",
        "found = self.leading(leader_epoch)\n        if isinstance(found, KafkaCode):\n            return Refused(",
        "found = self.leading(-1)\n        if isinstance(found, KafkaCode):\n            return Refused(",
        (f"{TESTS}::test_records_of_an_earlier_leader_epoch_are_not_appended",),
    ),
    Mutant(
        "an operation that waits for replicas keeps the loop busy",
        PARTITION,
        "        return more\n",
        "        return bool(self._inbox)\n",
        (f"{TESTS}::test_an_operation_that_must_wait_does_not_keep_the_loop_busy",),
    ),
    Mutant(
        "each first use asks the controller to create the topic",
        CREATION,
        "if self._running is None and not self._exists:",
        "if not self._exists:",
        (
            "tests/unit/broker/coordinator/test_creation.py::test_a_thousand_concurrent_first_uses_create_the_topic_once",
        ),
    ),
    Mutant(
        "a transaction is ended before all coordinators have answered",
        "broker/coordinator/hanging.py",
        "if set(range(len(topic.partitions))) - outcomes.keys():",
        "if not outcomes:",
        (
            "tests/unit/broker/coordinator/test_hanging.py::test_no_transaction_is_ended_before_all_coordinators_have_answered",
        ),
    ),
    Mutant(
        "an answer about a transaction counts for the next one",
        "broker/coordinator/hanging.py",
        "return (producer.epoch, producer.end_offset) == (self.epoch, self.end_offset)",
        "return True",
        (
            "tests/unit/broker/coordinator/test_hanging.py::test_a_coordinators_answer_is_ignored_if_the_producer_has_written_another_batch_meanwhile",
        ),
    ),
    Mutant(
        "a transaction that its coordinator will end is aborted",
        "broker/coordinator/hanging.py",
        "(Outcome.OPEN, Outcome.COMMITTED)",
        "(Outcome.COMMITTED,)",
        ("tests/unit/broker/coordinator/test_hanging.py::test_a_transaction_that_its_coordinator_will_end_stays_open",),
    ),
    Mutant(
        "transactions that cannot be ended are always checked first",
        "broker/coordinator/hanging.py",
        "key=lambda each: self._checked_ms.get(each.open, since[each.open])",
        "key=lambda each: since[each.open]",
        (
            "tests/unit/broker/coordinator/test_hanging.py::"
            "test_transactions_that_cannot_be_ended_delay_no_others_beyond_the_limit_of_one_search",
        ),
    ),
    Mutant(
        "nobody ends a transaction whose offsets hang",
        "broker/coordinator/hanging.py",
        "if is_internal(replica.topic) and replica.topic != CONSUMER_OFFSETS:",
        "if is_internal(replica.topic):",
        (
            "tests/unit/broker/coordinator/test_hanging.py::"
            "test_a_group_coordinator_ends_a_hanging_transaction_and_its_pending_offsets",
        ),
    ),
    Mutant(
        "a marker is compared with a log that lacks the records of its turn",
        "broker/coordinator/partition.py",
        "if records and self._inbox[0].needs_log:",
        "if False:",
        (
            "tests/unit/broker/coordinator/test_hanging.py::"
            "test_a_transaction_is_not_ended_if_it_commits_offsets_in_the_same_turn",
        ),
    ),
    Mutant(
        "markers follow the end of their transaction",
        "broker/coordinator/markers.py",
        "if machine is not None and not machine.awaits_markers(",
        "if False and not machine.awaits_markers(",
        (
            "tests/unit/broker/coordinator/test_markers.py::test_a_transaction_that_ends_while_its_machine_is_loaded_anew_gets_no_more_markers",
        ),
    ),
    Mutant(
        "markers of a failed coordinator are written without end",
        "broker/coordinator/markers.py",
        "not in (State.ENDED, State.FAILED)",
        "is not State.ENDED",
        (
            "tests/unit/broker/coordinator/test_markers.py::test_markers_are_no_longer_sent_once_their_coordinator_has_ended_or_failed",
        ),
    ),
    Mutant(
        "calls that reconnect at the same time leave a connection open",
        "broker/coordinator/links.py",
        "            if known is waited:\n                break",
        "            break",
        ("tests/unit/broker/coordinator/test_links.py::test_calls_that_reconnect_at_the_same_time_share_a_connection",),
    ),
    Mutant(
        "a connection without answers stays in use",
        "broker/coordinator/links.py",
        "                await self._drop(broker_id, connection)",
        "                pass",
        (
            "tests/unit/broker/coordinator/test_links.py::test_a_leader_that_did_not_answer_is_reminded_on_another_connection",
            "tests/unit/broker/coordinator/test_links.py::test_log_ends_are_requested_on_another_connection_after_a_leader_did_not_answer",
        ),
    ),
    Mutant(
        "a share coordinator is not asked again after its timeout",
        "broker/coordinator/share_states.py",
        "(self._limits.share_state_timeout_ms + _RETRY_MS) / 1000",
        "self._limits.share_state_timeout_ms / 1000",
        (
            "tests/unit/broker/coordinator/test_links.py::test_an_unanswered_request_to_a_share_coordinator_is_repeated_on_another_connection",
        ),
    ),
    Mutant(
        "a leader that hangs leaves the lag of all partitions unknown",
        "broker/coordinator/log_ends.py",
        "        except ClusterError:\n            return {}",
        "        except KeyError:\n            return {}",
        (f"{LOG_END_TESTS}::test_a_leader_that_fails_or_hangs_leaves_out_only_the_log_ends_of_its_own_partitions",),
    ),
    Mutant(
        "the offset of a refusal is a log end",
        "broker/coordinator/log_ends.py",
        "if each.error_code == KafkaCode.NONE",
        "if True",
        (f"{LOG_END_TESTS}::test_a_partition_whose_leader_answers_with_an_error_has_no_log_end_in_the_result",),
    ),
    Mutant(
        "a new leader reports a log end below one that its predecessor has shown",
        "broker/coordinator/log_ends.py",
        " or not leading.leader.latest_known():",
        ":",
        (
            f"{LOG_END_TESTS}::test_a_new_leader_reports_no_log_end_until_its_watermark_reaches_its_log_end_at_the_election",
        ),
    ),
    Mutant(
        "a broker asks itself over the network",
        "broker/coordinator/log_ends.py",
        "if partition.leader != self._cluster.broker_id:",
        "if True:",
        (f"{LOG_END_TESTS}::test_no_other_broker_is_asked_about_partitions_that_this_broker_leads",),
    ),
    Mutant(
        "a share partition without a state is noted, so it never gets one",
        SHARE_GROUP_STATES,
        "strict=True) if response.error is KafkaCode.NONE}\n        partitions = _of(",
        "strict=True)}\n        partitions = _of(",
        (
            "tests/unit/broker/coordinator/test_share_group_states.py::test_the_group_does_not_list_a_share_partition_whose_state_could_not_be_initialized",
        ),
    ),
    Mutant(
        "start offsets of a share group are acknowledged before the group has noted them",
        SHARE_GROUP_STATES,
        "            if noted.error is not KafkaCode.NONE:\n",
        "            if False:\n",
        (
            "tests/unit/broker/coordinator/test_share_group_states.py::test_altering_offsets_fails_if_the_group_coordinator_refuses_to_record_the_states",
        ),
    ),
    Mutant(
        "a share coordinator that does not answer gets the same requests again and again",
        SHARE_GROUP_STATES,
        "if self._group is None or kind in self._asking:",
        "if self._group is None:",
        (
            "tests/unit/broker/coordinator/test_share_group_states.py::test_a_group_does_not_repeat_requests_to_share_coordinators_before_they_are_answered",
        ),
    ),
    Mutant(
        "acknowledgements wait for the states of other share partitions",
        "broker/coordinator/share_fetch.py",
        "key=lambda each: not self._partitions.is_loaded(",
        "key=lambda each: self._partitions.is_loaded(",
        (
            "tests/unit/broker/coordinator/test_share_fetch.py::test_a_state_that_cannot_be_read_does_not_delay_acknowledgements_of_other_partitions",
        ),
    ),
    Mutant(
        "an unknown error of another broker ends this one",
        "broker/coordinator/share_states.py",
        "error = kafka_code(int(result.error_code))",
        "error = KafkaCode(int(result.error_code))",
        (
            "tests/unit/broker/coordinator/test_links.py::test_an_unexpected_code_or_state_from_a_share_coordinator_becomes_unknown_server_error",
        ),
    ),
    Mutant(
        "a delivery state that this release does not know ends the broker",
        "broker/coordinator/share_states.py",
        "        if unknown:\n",
        "        if False:\n",
        (
            "tests/unit/broker/coordinator/test_links.py::test_an_unexpected_code_or_state_from_a_share_coordinator_becomes_unknown_server_error",
        ),
    ),
    Mutant(
        "an outcome that this release does not know ends the broker",
        "broker/coordinator/hanging.py",
        " and each.outcome in _OUTCOMES:",
        ":",
        (
            "tests/unit/broker/coordinator/test_hanging.py::test_no_transaction_is_ended_before_all_coordinators_have_answered",
        ),
    ),
    Mutant(
        "a request is repeated without the fresh id that it needs",
        "broker/coordinator/transactions.py",
        "replace(request, fresh_id=fresh_id)",
        "request",
        ("tests/unit/broker/coordinator/test_fresh_ids.py::test_a_request_that_needs_a_fresh_id_is_repeated_with_it",),
    ),
)
