"""Mutants of quorumlog/client."""

from __future__ import annotations

from tests.mutants import Mutant

ADMIN = "quorumlog/client/admin.py"
ADMIN_PARTITIONS = "quorumlog/client/admin_partitions.py"
ASSIGNORS = "quorumlog/client/assignors.py"
BROKER_CALLS = "quorumlog/client/broker_calls.py"
CLUSTER = "quorumlog/client/cluster.py"
COMMITS = "quorumlog/client/consumer_commits.py"
CONSUMER = "quorumlog/client/record_consumer.py"
CONSUMER_GROUP = "quorumlog/client/consumer_group.py"
CONSUMER_PROGRESS = "quorumlog/client/consumer_progress.py"
CONSUMER_READING = "quorumlog/client/consumer_reading.py"
CONSUMER_TOPICS = "quorumlog/client/consumer_topics.py"
CONTROLLER = "quorumlog/client/controller.py"
COORDINATORS = "quorumlog/client/coordinators.py"
DELIVERY = "quorumlog/client/delivery.py"
FETCHER = "quorumlog/client/fetcher.py"
GROUP_MEMBER = "quorumlog/client/group_member.py"
GROUPS = "quorumlog/client/groups.py"
KAFKA = "quorumlog/client/kafka.py"
LANE_SENDER = "quorumlog/client/lane_sender.py"
LEADER_CALLS = "quorumlog/client/leader_calls.py"
LOGS = "quorumlog/client/transaction_logs.py"
MEMBERSHIP = "quorumlog/client/membership.py"
POSITIONS = "quorumlog/client/positions.py"
PRODUCER = "quorumlog/client/record_producer.py"
PRODUCER_TOPICS = "quorumlog/client/producer_topics.py"
SCOPES = "quorumlog/client/scope_client.py"
SHARE_CONSUMER = "quorumlog/client/share_consumer.py"
STARTING = "quorumlog/client/starting_offsets.py"
TRANSACTION_ADMIN = "quorumlog/client/transaction_admin.py"
TRANSACTIONS = "quorumlog/client/producer_transactions.py"

ADMIN_OF_TRANSACTIONS = "tests/unit/quorumlog/client/test_transaction_admin.py"
ASSIGNOR_TESTS = "tests/properties/test_client_assignors.py"
ADMIN_TESTS = "tests/unit/quorumlog/client/test_admin.py"
CLUSTER_TESTS = "tests/unit/quorumlog/client/test_producer.py"
CONTROLLER_TESTS = "tests/unit/quorumlog/client/test_controller_client.py"
COMMIT_TESTS = "tests/unit/quorumlog/client/test_consumer_commits.py"
CONNECTION_TESTS = "tests/unit/broker/kafka/test_cluster.py"
CONSUMER_TESTS = "tests/unit/quorumlog/client/test_record_consumer.py"
GROUP_TESTS = "tests/unit/quorumlog/client/test_groups.py"
MEMBER_TESTS = "tests/unit/quorumlog/client/test_group_member.py"
MEMBERSHIP_TESTS = "tests/unit/quorumlog/client/test_membership.py"
LEADER_CALLS_TESTS = "tests/unit/quorumlog/client/test_leader_calls.py"
LOG_TESTS = "tests/unit/quorumlog/client/test_transaction_logs.py"
TRANSACTION_TESTS = "tests/unit/quorumlog/client/test_producer_transactions.py"
PRODUCER_TESTS = "tests/unit/quorumlog/client/test_record_producer.py"

SCOPE_TESTS = "tests/unit/quorumlog/client/test_scope_client.py"
SHARE_CONSUMER_TESTS = "tests/unit/quorumlog/client/test_share_consumer.py"
STARTING_TESTS = "tests/unit/quorumlog/client/test_starting_offsets.py"
SHARE_TESTS = "tests/unit/quorumlog/client/test_share_groups.py"

MUTANTS = (
    Mutant(
        "a connection to a leader may take longer than the whole call",
        LEADER_CALLS,
        "leader = await cluster.connection(address, min(left_s(), HURRY_S))",
        "leader = await cluster.connection(address, 60.0)",
        (f"{LEADER_CALLS_TESTS}::test_leaders_that_hang_delay_neither_the_other_leaders_nor_the_end_of_a_call",),
    ),
    Mutant(
        "a request to a leader may take longer than the whole call",
        LEADER_CALLS,
        "found = await ask(leader, keys, min(left_s(), HURRY_S))",
        "found = await ask(leader, keys, HURRY_S)",
        (f"{LEADER_CALLS_TESTS}::test_leaders_that_hang_delay_neither_the_other_leaders_nor_the_end_of_a_call",),
    ),
    Mutant(
        "an incomplete list names the brokers that are missing in another one",
        COORDINATORS,
        "missing in this list: {lacking.message}",
        "missing in this list: {error.message}",
        (f"{GROUP_TESTS}::test_an_incomplete_list_names_the_brokers_that_are_missing_in_it",),
    ),
    Mutant(
        "a member that cannot look up its topics reports this a minute late",
        CONSUMER_GROUP,
        "            topics_s = min(CALL_TIMEOUT_S, settings.failure_timeout_s)",
        "            topics_s = CALL_TIMEOUT_S",
        (f"{ADMIN_TESTS}::test_a_control_address_as_bootstrap_server_is_named",),
    ),
    Mutant(
        "a read of Admin that gets no answer advises to look for a change",
        ADMIN,
        "            if changes:\n                changed_perhaps(error)\n",
        "            changed_perhaps(error)\n",
        (f"{ADMIN_TESTS}::test_a_call_ends_at_its_deadline_if_all_brokers_hang",),
    ),
    Mutant(
        "a broker that stops after an answer is treated as another kind of address",
        KAFKA,
        "        self._has_replied = True\n",
        "",
        (f"{CONNECTION_TESTS}::test_a_broker_that_stops_after_an_answer_is_an_address_for_kafka_clients",),
    ),
    Mutant(
        "a control address as bootstrap server is not named",
        KAFKA,
        "why if self._has_replied else why + self.guess_from_part",
        "why",
        (f"{CONNECTION_TESTS}::test_an_address_that_is_not_for_kafka_clients_is_named",),
    ),
    Mutant(
        "a consumer without topics and partitions waits for records",
        CONSUMER,
        "        if not self._settings.is_subscribed and not self._reading.positions:\n",
        "        if False:\n",
        (f"{CONSUMER_TESTS}::test_a_consumer_without_topics_and_partitions_is_refused_records_at_once",),
    ),
    Mutant(
        "a consumer warns of a topic that the first broker does not know yet",
        CONSUMER_TOPICS,
        "        states |= await cluster.topic_states(topics, timeout_s)\n",
        "",
        (f"{CONSUMER_TESTS}::test_a_topic_that_the_first_broker_does_not_know_yet_causes_no_warning",),
    ),
    Mutant(
        "a client gives up while the nodes that it knows restart",
        CONTROLLER,
        "        if client._refused_s is None or client._has_answered:\n",
        "        if client._refused_s is None:\n",
        (f"{CONTROLLER_TESTS}::test_a_call_waits_for_a_restart_of_nodes_that_have_answered_before",),
    ),
    Mutant(
        "a client gives up although one address is only slow",
        CONTROLLER,
        "        if not client._is_refused:\n",
        "        if not client._silences:\n",
        (f"{CONTROLLER_TESTS}::test_a_call_waits_until_its_deadline_if_one_address_is_only_slow",),
    ),
    Mutant(
        "a sticky assignor misses a move that became possible when another member gave a partition away",
        ASSIGNORS,
        "                    again |= self._holders[each]\n",
        "                    pass\n",
        (f"{ASSIGNOR_TESTS}::test_a_larger_group_with_unequal_subscriptions_gets_what_a_simple_assignor_gives_it",),
    ),
    Mutant(
        "a sticky assignor moves a partition that its owner had before a new one",
        ASSIGNORS,
        "(partition in self._kept[rank], self._given, partition)",
        "(False, self._given, partition)",
        (f"{ASSIGNOR_TESTS}::test_a_larger_group_with_unequal_subscriptions_gets_what_a_simple_assignor_gives_it",),
    ),
    Mutant(
        "a producer keeps all deleted topics of a series of commits",
        PRODUCER,
        "            if transactions.is_renewing or self._topics.needs_identity:\n",
        "            if transactions.is_renewing:\n",
        (f"{TRANSACTION_TESTS}::test_a_series_of_transactions_keeps_a_limited_number_of_deleted_topics",),
    ),
    Mutant(
        "a producer keeps all deleted topics of a series of aborts",
        PRODUCER,
        "        keeps_epoch = is_clean and not self._topics.needs_identity\n",
        "        keeps_epoch = is_clean\n",
        (f"{TRANSACTION_TESTS}::test_a_series_of_transactions_keeps_a_limited_number_of_deleted_topics",),
    ),
    Mutant(
        "a transaction begins with an epoch that the coordinator may have raised",
        TRANSACTIONS,
        "        self._state = _State.FAILED\n        self._failure = ClusterError(ApiError.OUTCOME_UNKNOWN, ",
        "        self._failure = ClusterError(ApiError.OUTCOME_UNKNOWN, ",
        (f"{TRANSACTION_TESTS}::test_the_next_transaction_waits_for_an_epoch_that_got_no_answer",),
    ),
    Mutant(
        "a commit that is repeated after its decision is refused",
        TRANSACTIONS,
        "        self._abort_runs = self.is_aborting = self.is_renewing = True\n",
        "        self._abort_runs = self.is_aborting = True\n",
        (f"{TRANSACTION_TESTS}::test_a_commit_that_is_cancelled_after_its_decision_is_repeated_without_a_request",),
    ),
    Mutant(
        "a consumer keeps its position in a partition that was removed",
        CONSUMER_TOPICS,
        "        self._reading.remove(lost - existing)\n",
        "        pass\n",
        (f"{CONSUMER_TESTS}::test_a_partition_that_was_removed_and_added_again_is_read_from_its_start",),
    ),
    Mutant(
        "a consumer keeps its position in a partition that was created again between two looks",
        CONSUMER_TOPICS,
        "        self._reading.restart(lost & existing)\n",
        "        pass\n",
        (f"{CONSUMER_TESTS}::test_a_topic_that_was_created_again_is_read_from_its_start",),
    ),
    Mutant(
        "one broker that is behind lets a consumer lose its position",
        CONSUMER_TOPICS,
        "        if lost:  # the first broker may be behind\n",
        "        if False:\n",
        (f"{CONSUMER_TESTS}::test_a_broker_that_is_behind_removes_no_partition_of_a_consumer",),
    ),
    Mutant(
        "an election before the removal of a partition moves a consumer in the remaining ones",
        CONSUMER_TOPICS,
        "                kept = max(kept, index + 1)\n",
        "                pass\n",
        (f"{CONSUMER_TESTS}::test_elections_in_all_remaining_partitions_do_not_move_a_consumer",),
    ),
    Mutant(
        "a consumer keeps its position in a partition that was created again",
        CONSUMER_TOPICS,
        "            if end > 0:\n",
        "            if end >= 0:\n",
        (f"{CONSUMER_TESTS}::test_a_partition_that_was_removed_and_added_again_is_read_from_its_start",),
    ),
    Mutant(
        "deletions of records at a leader that hangs take the turns of those at other leaders",
        ADMIN_PARTITIONS,
        "slots[self._cluster.known_leader(*key) or key], left_s)",
        "next(iter(slots.values())), left_s)",
        (f"{ADMIN_TESTS}::test_a_leader_that_hangs_does_not_hide_the_deletions_of_other_leaders",),
    ),
    Mutant(
        "a deletion of records that gets its turn when the time is up ends after the whole call",
        ADMIN_PARTITIONS,
        "            async with asyncio.timeout(left_s()):\n                await slots.acquire()\n",
        "            await slots.acquire()\n            left_s = (lambda limit_s: lambda: limit_s)(2.0)\n",
        (f"{ADMIN_TESTS}::test_a_leader_that_hangs_does_not_hide_the_deletions_of_other_leaders",),
    ),
    Mutant(
        "an invalid topic name fails the metadata request of all callers",
        CLUSTER,
        '        check_texts("topic", topics or ())  # an invalid name would fail the shared request\n',
        "        pass\n",
        (f"{CLUSTER_TESTS}::test_an_invalid_topic_name_does_not_fail_the_metadata_request_of_other_callers",),
    ),
    Mutant(
        "invalid offsets for a transaction are refused after the consumer has handed its own over",
        PRODUCER,
        "        check_partitions(offsets or ())\n",
        "        pass\n",
        (f"{TRANSACTION_TESTS}::test_invalid_offsets_are_refused_and_change_nothing",),
    ),
    Mutant(
        "a new batch with the numbers of an earlier one counts as delivered",
        DELIVERY,
        "            case KafkaCode.DUPLICATE_SEQUENCE_NUMBER if sequence.attempts > 1:",
        "            case KafkaCode.DUPLICATE_SEQUENCE_NUMBER if sequence.attempts > 0:",
        (f"{PRODUCER_TESTS}::test_only_a_batch_that_was_sent_before_can_be_a_duplicate",),
    ),
    Mutant(
        "a producer repeats sequence numbers in a topic that goes on under another id",
        LANE_SENDER,
        "            lane.sequence.identity = None\n",
        "            pass\n",
        (f"{PRODUCER_TESTS}::test_records_are_not_treated_as_duplicates_after_the_topic_id_changed",),
    ),
    Mutant(
        "a producer repeats the numbers of a transaction in a topic that goes on under another id",
        LANE_SENDER,
        "            lane.sequence = former.sequence\n",
        "            pass\n",
        (f"{TRANSACTION_TESTS}::test_records_are_not_treated_as_duplicates_after_the_topic_id_changed",),
    ),
    Mutant(
        "records overtake those of a topic that goes on under another id",
        LANE_SENDER,
        "        await former.ended.wait()\n",
        "        pass\n",
        (f"{PRODUCER_TESTS}::test_records_keep_their_order_while_the_topic_id_changes",),
    ),
    Mutant(
        "a truncation of records that were fetched ahead resets the position",
        STARTING,
        "            elif position.next_offset is not None and start <= position.next_offset <= end:\n",
        "            elif position.next_offset is None:\n",
        (f"{CONSUMER_TESTS}::test_a_truncation_after_the_position_loses_and_repeats_no_record",),
    ),
    Mutant(
        "a consumer hands out the rest of a batch that was truncated",
        STARTING,
        "                self._in_progress.drop({position.partition})\n",
        "                pass\n",
        (f"{CONSUMER_TESTS}::test_a_truncation_after_the_position_loses_and_repeats_no_record",),
    ),
    Mutant(
        "a truncated batch moves a position forward that was just reset",
        STARTING,
        "                    self._in_progress.release({position.partition})\n",
        "                    pass\n",
        (f"{CONSUMER_TESTS}::test_new_records_at_the_offsets_of_truncated_ones_are_read",),
    ),
    Mutant(
        "a former leader resets the position of a consumer",
        STARTING,
        "            self._cluster.doubt_leader(topic, index)\n",
        "            pass\n",
        (f"{CONSUMER_TESTS}::test_a_former_leader_does_not_decide_that_a_position_is_out_of_range",),
    ),
    Mutant(
        "a share consumer never looks known leaders up again",
        SHARE_CONSUMER,
        "            if loop.time() >= look_at:",
        "            if False:",
        ("tests/unit/quorumlog/client/test_share_consumer.py",),
    ),
    Mutant(
        "a former leader is asked for its successor",
        CLUSTER,
        "            if each != self._last_good and self._failed.get(each, 0) <= self._failures_rotated\n",
        "            if each != self._last_good\n",
        (f"{CLUSTER_TESTS}::test_a_former_leader_is_not_asked_for_its_successor",),
    ),
    Mutant(
        "a leader that is cut off stays the source of metadata",
        CLUSTER,
        "            self._last_good = others[0]\n",
        "",
        (f"{CLUSTER_TESTS}::test_the_client_stops_asking_a_broker_whose_metadata_is_stale",),
    ),
    Mutant(
        "a former leader decides that an offset is out of range",
        "quorumlog/client/consumer.py",
        "if fetched.error_code:",
        "if False:",
        (
            "tests/unit/pyspark_quorumlog/test_reading.py"
            "::test_a_range_is_read_from_the_current_leader_although_a_former_one_answers",
        ),
    ),
    Mutant(
        "a consumer with assigned partitions never looks their leaders up again",
        "quorumlog/client/record_consumer.py",
        "self._tasks.begin(self._watch_leaders())",
        "pass",
        (f"{CONSUMER_TESTS}::test_the_consumer_leaves_a_former_leader_that_still_answers",),
    ),
    Mutant(
        "a topic that Apache Kafka created again seems old",
        CLUSTER,
        "elif self._is_of_quorumlog and before.is_ahead_of(told):",
        "elif before.is_ahead_of(told):",
        (f"{CLUSTER_TESTS}::test_a_topic_that_apache_kafka_created_again_with_lower_epochs_is_used",),
    ),
    Mutant(
        "a batch that is divided is reordered",
        "quorumlog/client/producer.py",
        "for part in (records[:middle], records[middle:])",
        "for part in (records[middle:], records[:middle])",
        (f"{CLUSTER_TESTS}::test_a_batch_that_is_too_large_is_divided",),
    ),
    Mutant(
        "committed offsets are returned although an open transaction may replace them",
        COMMITS,
        "found = await self._groups.committed(self._group, timeout_s, partitions, stable=self._committed_only)",
        "found = await self._groups.committed(self._group, timeout_s, partitions)",
        (f"{COMMIT_TESTS}::test_committed_times_out_if_a_transaction_with_offsets_stays_open",),
    ),
    Mutant(
        "a reader of uncommitted records waits for transactions",
        COMMITS,
        "found = await self._groups.committed(self._group, timeout_s, partitions, stable=self._committed_only)",
        "found = await self._groups.committed(self._group, timeout_s, partitions, stable=True)",
        (f"{COMMIT_TESTS}::test_committed_with_read_uncommitted_returns_the_offset_before_the_transaction",),
    ),
    Mutant(
        "offsets of records whose partition was lost are left out silently",
        CONSUMER_GROUP,
        "        self._reading.unsent.taken_away(mine)\n",
        "",
        (f"{COMMIT_TESTS}::test_offsets_to_send_refuses_offsets_of_a_lost_partition_once",),
    ),
    Mutant(
        "offsets of records whose partition was revoked are left out silently",
        CONSUMER_GROUP,
        "            self._reading.unsent.taken_away(partitions)\n",
        "",
        (f"{COMMIT_TESTS}::test_offsets_to_send_refuses_offsets_of_a_revoked_partition",),
    ),
    Mutant(
        "a partition without records in the transaction ends it when it is lost",
        CONSUMER_PROGRESS,
        "        self._taken |= partitions & self._unsent\n",
        "        self._taken |= partitions\n",
        (f"{COMMIT_TESTS}::test_offsets_to_send_ignores_a_lost_partition_without_records_in_the_transaction",),
    ),
    Mutant(
        "a partition that was lost once ends all later transactions",
        CONSUMER_PROGRESS,
        "        self._taken.clear()\n",
        "",
        (f"{COMMIT_TESTS}::test_offsets_to_send_refuses_offsets_of_a_lost_partition_once",),
    ),
    Mutant(
        "the records of the last transaction belong to the next one as well",
        CONSUMER_PROGRESS,
        "        self._unsent.clear()\n",
        "",
        (f"{COMMIT_TESTS}::test_a_partition_may_be_lost_after_its_offsets_were_sent",),
    ),
    Mutant(
        "records before a seek belong to the next transaction",
        CONSUMER_READING,
        "        self.unsent.sought(position.partition)\n",
        "",
        (f"{COMMIT_TESTS}::test_records_before_a_seek_do_not_belong_to_the_next_transaction",),
    ),
    Mutant(
        "the abort of a transaction of a scope fails once the transaction is deleted",
        TRANSACTION_ADMIN,
        "                if error.code == ApiError.TRANSACTIONAL_ID_NOT_FOUND:\n                    return  # the",
        "                if False:\n                    return  # the",
        (f"{ADMIN_OF_TRANSACTIONS}::test_a_transaction_whose_id_no_longer_exists_has_ended",),
    ),
    Mutant(
        "a coordinator that does not answer has aborted the transaction",
        TRANSACTION_ADMIN,
        "                if error.code == ApiError.TRANSACTIONAL_ID_NOT_FOUND:\n                    return  # the",
        "                if True:\n                    return  # the",
        (f"{ADMIN_OF_TRANSACTIONS}::test_an_error_of_the_coordinator_does_not_count_as_the_end_of_a_transaction",),
    ),
    Mutant(
        "an abort waits for the next transaction of the id",
        TRANSACTION_ADMIN,
        "if not now.is_open or (now.producer_id, now.started_ms) != (found.producer_id, found.started_ms):",
        "if not now.is_open:",
        (f"{ADMIN_OF_TRANSACTIONS}::test_a_later_transaction_shows_that_the_aborted_one_has_ended",),
    ),
    Mutant(
        "a transaction that its coordinator did not know once hangs, although it has ended",
        LOGS,
        "strangers &= set(",
        "strangers |= set(",
        (f"{LOG_TESTS}::test_a_transaction_that_ends_while_the_coordinator_is_asked_does_not_hang",),
    ),
    Mutant(
        "a coordinator knows each transaction of a producer that has an open one",
        LOGS,
        "return description is not None and description.is_open and transaction.key in description.partitions",
        "return description is not None and description.is_open",
        (f"{LOG_TESTS}::test_a_transaction_that_its_coordinator_does_not_know_hangs",),
    ),
    Mutant(
        "a transaction that has ended is known by its coordinator",
        LOGS,
        "return description is not None and description.is_open and transaction.key in description.partitions",
        "return description is not None",
        (f"{LOG_TESTS}::test_a_transaction_that_its_coordinator_does_not_know_hangs",),
    ),
    Mutant(
        "a transaction beside one that hangs counts as hanging",
        LOGS,
        "        if overdue or each in strangers:\n",
        "        if overdue or each.key in {other.key for other in strangers}:\n",
        (f"{LOG_TESTS}::test_a_known_transaction_in_the_same_log_as_a_hanging_one_does_not_hang",),
    ),
    Mutant(
        "a transaction of a coordinator that does not answer counts as hanging",
        LOGS,
        "    if missing is not None:\n        unjudged",
        "    if False:\n        unjudged",
        (f"{LOG_TESTS}::test_a_transaction_is_not_reported_as_hanging_while_a_coordinator_does_not_answer",),
    ),
    Mutant(
        "a transaction that is decided counts as ended",
        "quorumlog/client/transaction_admin.py",
        "return self.state == ONGOING or self.is_decided",
        "return self.state == ONGOING",
        (f"{LOG_TESTS}::test_a_transaction_that_its_coordinator_knows_does_not_hang",),
    ),
    Mutant(
        "a call stays at the coordinator that refused it",
        COORDINATORS,
        "                    self.forget(key)\n",
        "                    pass\n",
        (f"{GROUP_TESTS}::test_a_call_follows_a_coordinator_that_moves",),
    ),
    Mutant(
        "a list of all brokers leaves out those that do not answer",
        COORDINATORS,
        "            if failure is not None:\n                raise failure\n",
        "",
        (f"{GROUP_TESTS}::test_list_groups_fails_and_names_a_broker_that_does_not_answer",),
    ),
    Mutant(
        "a broker that hangs hides the groups of all others",
        COORDINATORS,
        "            if not error.retriable or not parts:\n",
        "            if True:\n",
        (f"{GROUP_TESTS}::test_list_answered_returns_the_groups_of_the_brokers_that_answered",),
    ),
    Mutant(
        "a deletion of a group whose answer was lost fails",
        GROUPS,
        "repeats, may_be_done = may_be_done, True",
        "repeats, may_be_done = may_be_done, False",
        (f"{GROUP_TESTS}::test_a_deletion_whose_answer_is_lost_succeeds_when_repeated",),
    ),
    Mutant(
        "a seek keeps the answer of a fetch that was sent before",
        POSITIONS,
        "        self.chunks.clear()\n        self.buffered_bytes = 0\n        self.version += 1\n",
        "        self.buffered_bytes = 0\n",
        (f"{CONSUMER_TESTS}::test_seeks_discard_records_that_were_fetched_ahead",),
    ),
    Mutant(
        "a partition is fetched ahead without a bound",
        FETCHER,
        "elif position.buffered_bytes >= limits.partition_size_max:",
        "elif False:",
        (f"{CONSUMER_TESTS}::test_a_slow_user_stops_fetches_when_the_buffer_of_a_partition_is_full",),
    ),
    Mutant(
        "the records of paused partitions fill the buffer",
        FETCHER,
        "            position.move(position.next_offset)\n        return True\n",
        "            return False\n        return True\n",
        (f"{CONSUMER_TESTS}::test_the_records_of_paused_partitions_do_not_stop_other_partitions",),
    ),
    Mutant(
        "records of paused partitions are dropped although this makes no room",
        FETCHER,
        "if size - sum(each.buffered_bytes for each in paused) >= self._limits.buffer_size_max:",
        "if not paused and size >= self._limits.buffer_size_max:",
        (f"{CONSUMER_TESTS}::test_paused_partitions_keep_their_records_while_others_fill_the_buffer",),
    ),
    Mutant(
        "a failure before a pause is reported again and again",
        CONSUMER_READING,
        "for position in self.positions.values() if not position.is_paused)",
        "for position in self.positions.values())",
        (f"{CONSUMER_TESTS}::test_a_partition_that_was_paused_while_its_leader_failed_causes_no_error",),
    ),
    Mutant(
        "the time of a pause counts as a failure",
        POSITIONS,
        "            self.failing_since += now - max(self.paused_at, self.failing_since)\n",
        "            pass\n",
        (f"{CONSUMER_TESTS}::test_the_time_of_a_failure_does_not_include_pauses",),
    ),
    Mutant(
        "a backlog of the first topic delays the other topics of its broker",
        FETCHER,
        "(position.served, position.partition.topic)",
        "(position.partition.topic, position.served)",
        (f"{CONSUMER_TESTS}::test_a_backlog_of_one_topic_does_not_delay_another_topic_of_the_same_broker",),
    ),
    Mutant(
        "a broker that is behind decides that a topic has no configs",
        BROKER_CALLS,
        "        was_missing = False\n",
        "        was_missing = True\n",
        (f"{ADMIN_TESTS}::test_get_configs_asks_a_second_broker_before_it_reports_a_missing_topic",),
    ),
    Mutant(
        "a full buffer takes one more record",
        PRODUCER,
        "if buffer.size + size > buffer.size_max:",
        "if buffer.size > buffer.size_max:",
        (f"{PRODUCER_TESTS}::test_a_full_buffer_makes_send_wait_for_a_limited_time",),
    ),
    Mutant(
        "a topic that was created again keeps its lanes",
        PRODUCER_TOPICS,
        "return state is None or state.topic_id != topic.topic_id",
        "return state is None",
        (f"{PRODUCER_TESTS}::test_the_producer_notices_a_recreated_topic_and_sends_records_to_it",),
    ),
    Mutant(
        "the creation of a topic whose answer was lost is certain",
        "quorumlog/client/broker_calls.py",
        "                changes.unsure.update(pending)\n",
        "",
        (f"{ADMIN_TESTS}::test_a_deletion_whose_answer_was_lost_succeeds",),
    ),
    Mutant(
        "a transaction that failed is committed",
        TRANSACTIONS,
        "self._fenced is not None or (commit and self._state is _State.FAILED):",
        "self._fenced is not None:",
        (f"{TRANSACTION_TESTS}::test_a_failed_transaction_is_not_committed_but_aborted_with_the_next_epoch",),
    ),
    Mutant(
        "a transaction begins with the epoch of one that failed",
        TRANSACTIONS,
        "        if self._state is not _State.FAILED:\n            self._done()",
        "        self._done()",
        (f"{TRANSACTION_TESTS}::test_no_transaction_begins_before_the_abort_of_a_failed_one_got_a_new_epoch",),
    ),
    Mutant(
        "a commit without an answer is aborted",
        TRANSACTIONS,
        "if not commit and self._state is _State.ENDING:",
        "if False:",
        (f"{TRANSACTION_TESTS}::test_a_commit_without_an_answer_may_only_be_repeated",),
    ),
    Mutant(
        "the partitions of the last transaction belong to the next one",
        TRANSACTIONS,
        "        self._enlisted.clear()\n",
        "",
        (f"{TRANSACTION_TESTS}::test_a_partition_is_added_once_in_each_transaction",),
    ),
    Mutant(
        "a fenced producer continues",
        TRANSACTIONS,
        "if self._state is not _State.NONE or self._fenced is not None:",
        "if False:",
        (f"{TRANSACTION_TESTS}::test_a_fenced_producer_can_neither_commit_nor_abort_nor_begin_again",),
    ),
    Mutant(
        "the names of topics are looked up once",
        SHARE_CONSUMER,
        "        if self._nameless():\n            await self._learn_names(timeout_s)\n",
        "        if reply.assignment is not None:\n            await self._learn_names(timeout_s)\n",
        (f"{SHARE_CONSUMER_TESTS}::test_a_topic_that_a_broker_does_not_know_yet_is_looked_up_again",),
    ),
    Mutant(
        "the records after a damaged batch are rejected",
        SHARE_CONSUMER,
        "return _REJECT if damage.end_offset is None or offset < damage.end_offset else _RELEASE",
        "return _REJECT",
        (f"{SHARE_CONSUMER_TESTS}::test_a_damaged_batch_is_rejected_and_reported",),
    ),
    Mutant(
        "offsets without a record wait for one",
        SHARE_CONSUMER,
        "            if session.acks and all(owner is not session for owner, _ in self._records):",
        "            if False:",
        (f"{SHARE_CONSUMER_TESTS}::test_offsets_without_records_are_automatically_acknowledged_as_gaps",),
    ),
    Mutant(
        "a record is accepted at the former leader of its partition",
        SHARE_CONSUMER,
        "session = max(sessions, key=",
        "session = min(sessions, key=",
        (f"{SHARE_CONSUMER_TESTS}::test_a_record_is_accepted_at_the_new_leader_that_delivered_it",),
    ),
    Mutant(
        "a share session without partitions ends before its records are settled",
        SHARE_CONSUMER,
        "elif not (session.is_fetching or session.is_flushing or session.locks):",
        "elif not (session.is_fetching or session.is_flushing):",
        (f"{SHARE_CONSUMER_TESTS}::test_a_session_without_partitions_stays_until_its_records_are_acknowledged",),
    ),
    Mutant(
        "acknowledgements in a request that was cut off wait forever",
        SHARE_CONSUMER,
        "        finally:\n            for ack in acks:\n                _settle(ack, _lost())\n",
        "        finally:\n            pass\n",
        (f"{SHARE_CONSUMER_TESTS}::test_waiting_acceptances_fail_when_the_consumer_is_closed",),
    ),
    Mutant(
        "a topic that is found while a member joins is never read",
        MEMBERSHIP,
        "self._assigned_with = (self._joined_topics, self._counts)",
        "self._assigned_with = (self._topics, self._counts)",
        (f"{MEMBERSHIP_TESTS}::test_a_topic_that_is_found_while_the_member_joins_causes_another_rebalance",),
    ),
    Mutant(
        "a connection without answers keeps the heartbeats",
        GROUP_MEMBER,
        "return await self._groups.calls.ask(connection, api, values, timeout_s)",
        "return (await self._groups.calls.ask_slowly(connection, api, values, timeout_s, timeout_s))[1]",
        (f"{MEMBER_TESTS}::test_a_heartbeat_without_an_answer_is_not_repeated_on_the_same_connection",),
    ),
    Mutant(
        "a commit that waited uses a later membership",
        COMMITS,
        "self._commit_as(member, *identity, values",
        "self._commit_as(member, member.core.member_id, member.core.generation, values",
        (f"{COMMIT_TESTS}::test_a_waiting_commit_uses_the_generation_at_the_time_of_its_call",),
    ),
    Mutant(
        "a listener that raises CancelledError ends the rebalances of its member",
        CONSUMER_GROUP,
        "isinstance(error, asyncio.CancelledError) and task.cancelling() > cancels",
        "isinstance(error, asyncio.CancelledError)",
        (f"{COMMIT_TESTS}::test_a_listener_that_awaits_a_cancelled_task_does_not_stop_the_group",),
    ),
    Mutant(
        "an error of a listener that is cancelled ends the rebalances of its member",
        CONSUMER_GROUP,
        "isinstance(error, asyncio.CancelledError) and task.cancelling() > cancels",
        "task.cancelling() > cancels",
        (f"{COMMIT_TESTS}::test_an_error_of_a_cancelled_listener_does_not_stop_the_group",),
    ),
    Mutant(
        "two calls abort a transaction at the same time",
        TRANSACTIONS,
        "        if self._abort_runs:\n",
        "        if False:\n",
        (f"{TRANSACTION_TESTS}::test_two_calls_do_not_abort_at_the_same_time",),
    ),
    Mutant(
        "a part of a batch that may be in the log is sent under new numbers",
        LANE_SENDER,
        "if was_resent and lane.sequence is not numbers:",
        "if False:",
        (f"{PRODUCER_TESTS}::test_a_batch_that_may_be_in_the_log_is_not_sent_again_under_new_sequence_numbers",),
    ),
    Mutant(
        "listeners run beside each other",
        CONSUMER_GROUP,
        "async with self._calling, asyncio.timeout(self._poll_interval_s):",
        "async with asyncio.timeout(self._poll_interval_s):",
        (f"{COMMIT_TESTS}::test_listeners_run_one_after_the_other",),
    ),
    Mutant(
        "two calls send the commit of a transaction at the same time",
        TRANSACTIONS,
        "        if self._commit_runs:",
        "        if self._state is _State.COMMITTING:",
        (f"{TRANSACTION_TESTS}::test_two_calls_do_not_send_the_commit_at_the_same_time",),
    ),
    Mutant(
        "a record is added while its transaction commits",
        TRANSACTIONS,
        "            self._state = _State.COMMITTING\n",
        "            pass\n",
        (f"{TRANSACTION_TESTS}::test_no_record_is_added_while_the_transaction_commits",),
    ),
    Mutant(
        "a client trusts a broker that learns nothing",
        CLUSTER,
        "                self._doubt_answer(lost)\n",
        "                pass\n",
        (f"{CLUSTER_TESTS}::test_the_client_does_not_ask_only_a_broker_whose_metadata_is_stale",),
    ),
    Mutant(
        "the leader does not watch the topics of other members",
        MEMBERSHIP,
        "for topic in topics | self._topics | (self._others & self.others_topics())",
        "for topic in topics | self._topics",
        (f"{MEMBERSHIP_TESTS}::test_the_leader_asks_for_a_rebalance_when_a_topic_of_another_member_gets_partitions",),
    ),
    Mutant(
        "the leader rebalances until it looks its topics up again",
        MEMBERSHIP,
        "        self._counts = {**unchanged, **event.counts}  # newer than the counts of `Subscribe`\n",
        "",
        (f"{MEMBERSHIP_TESTS}::test_partitions_that_the_leader_counts_itself_cause_no_further_rebalance",),
    ),
    Mutant(
        "an error that is raised for each caller keeps their frames",
        PRODUCER,
        "            raise buffer.closed.again()\n",
        "            raise buffer.closed\n",
        (f"{PRODUCER_TESTS}::test_the_traceback_of_an_error_that_is_raised_again_does_not_grow",),
    ),
    Mutant(
        "a producer repeats sequence numbers in a topic that it dropped before many others",
        PRODUCER_TOPICS,
        "                self.identity = None  # a later lane",
        "                pass  # a later lane",
        (f"{PRODUCER_TESTS}::test_sequence_numbers_do_not_begin_again_after_more_topics_were_dropped_than_are_kept",),
    ),
    Mutant(
        "lower leader epochs of another topic id never count",
        CLUSTER,
        "other.answered_at - self.answered_at < EPOCHS_GO_ON_S and any(",
        "any(",
        (f"{CLUSTER_TESTS}::test_lower_epochs_of_another_topic_id_count_only_after_a_day",),
    ),
    Mutant(
        "a topic that was created again keeps its leader",
        CLUSTER,
        "self.leaders[index].epoch > leader.epoch",
        "self.leaders[index].epoch != leader.epoch",
        (f"{CLUSTER_TESTS}::test_the_leader_of_a_topic_that_was_created_again_is_found",),
    ),
    Mutant(
        "the end of a staged producer discards its records",
        PRODUCER,
        "            if flush and self._buffer.closed is None:",
        "            if False:",
        (f"{SCOPE_TESTS}::test_a_staged_producer_that_closes_without_a_failure_may_be_the_winner",),
    ),
    Mutant(
        "a broker that is behind decides that a partition does not exist",
        "quorumlog/client/admin_partitions.py",
        "        if any(index >= len(topics[name].partitions) for name, index in pairs):",
        "        if False:",
        (f"{ADMIN_TESTS}::test_records_of_a_new_partition_are_deleted_although_the_first_broker_is_behind",),
    ),
    Mutant(
        "a topic that one broker does not know is forgotten",
        PRODUCER_TOPICS,
        "        if gone:\n",
        "        if False:\n",
        (f"{PRODUCER_TESTS}::test_a_topic_that_one_broker_does_not_know_is_not_treated_as_deleted",),
    ),
    Mutant(
        "a topic that is added during a look-up is forgotten",
        PRODUCER_TOPICS,
        "            for name, topic in topics.items():\n",
        "            for name, topic in list(self.known.items()):\n",
        (f"{PRODUCER_TESTS}::test_a_topic_that_is_added_during_a_look_up_is_not_treated_as_deleted",),
    ),
    Mutant(
        "an unknown lag of a share group is the number -1",
        "quorumlog/client/share_groups.py",
        "lag if lag >= 0 else None",
        "lag",
        (f"{SHARE_TESTS}::test_unknown_start_offsets_and_lags_are_none",),
    ),
    Mutant(
        "a share partition that nobody has read starts at -1",
        "quorumlog/client/share_groups.py",
        "if answer.start_offset < 0:",
        "if False:",
        (f"{SHARE_TESTS}::test_describe_returns_the_start_offsets_and_lags_of_share_partitions",),
    ),
    Mutant(
        "the repeated deletion of a share group's offsets is refused",
        "quorumlog/client/share_groups.py",
        "if code not in (KafkaCode.NONE, KafkaCode.UNKNOWN_TOPIC_OR_PARTITION)",
        "if code != KafkaCode.NONE",
        (f"{SHARE_TESTS}::test_a_repeated_deletion_of_offsets_succeeds",),
    ),
    Mutant(
        "a share group that is deleted between list and lag fails the lag of all groups",
        "quorumlog/client/group_lag.py",
        "if error.code != ApiError.GROUP_ID_NOT_FOUND:",
        "if True:",
        (f"{SHARE_TESTS}::test_a_share_group_that_was_deleted_since_it_was_listed_has_no_lag",),
    ),
    Mutant(
        "a share group whose coordinator loads has no lag",
        "quorumlog/client/group_lag.py",
        "if error.code != ApiError.GROUP_ID_NOT_FOUND:",
        "if False:",
        (f"{SHARE_TESTS}::test_a_share_group_whose_coordinator_loads_is_not_treated_as_deleted",),
    ),
    Mutant(
        "a share partition whose state cannot be read is left out of the sum",
        "quorumlog/client/group_lag.py",
        "return share.start is not None or share.problem is not None",
        "return share.start is not None",
        (
            "tests/unit/quorumlog/kctl/test_share_groups.py"
            "::test_the_lag_sum_of_a_share_group_counts_unknown_and_skips_unread_partitions",
        ),
    ),
    Mutant(
        "a start that a busy coordinator refuses is not set again",
        "quorumlog/client/share_groups.py",
        "        if error.retriable:\n            raise error\n    return refusals",
        "        pass\n    return refusals",
        (f"{SHARE_TESTS}::test_start_offsets_that_an_unavailable_coordinator_refuses_are_set_again",),
    ),
    Mutant(
        "records that a share group has accepted after its start are not available again",
        "quorumlog/kctl/group_reset_plan.py",
        "return (self.before, self.lag_before) != (self.after, self.lag_after)",
        "return self.before != self.after",
        (
            "tests/unit/quorumlog/kctl/test_share_groups.py"
            "::test_an_unchanged_start_offset_is_set_if_later_records_were_acknowledged",
        ),
    ),
    Mutant(
        "a partition whose log lost records refuses all later ones",
        LANE_SENDER,
        "elif numbers.attempts > 1 or error.code not in _NOT_APPENDED:",
        "elif numbers.attempts > 1:",
        (f"{PRODUCER_TESTS}::test_a_partition_whose_log_lost_records_fails_one_batch_and_continues",),
    ),
    Mutant(
        "a batch is divided only if it is refused at once",
        LANE_SENDER,
        "if error.code in _TOO_LARGE and end - start > 1:",
        "if error.code in _TOO_LARGE and numbers.attempts == 1 and end - start > 1:",
        (f"{PRODUCER_TESTS}::test_a_batch_is_divided_although_a_former_leader_refused_it_first",),
    ),
    Mutant(
        "a producer of a scope may win although it has discarded records",
        PRODUCER,
        "if self._transaction is not None and not self._buffer.is_empty:",
        "if False:",
        (f"{SCOPE_TESTS}::test_a_staged_producer_whose_records_were_discarded_cannot_be_the_winner",),
    ),
    Mutant(
        "a producer of a scope may win although a record failed",
        SCOPES,
        """        if self._failure is not None:
            raise self._failure.again()
        return self._winner""",
        "        return self._winner",
        (f"{SCOPE_TESTS}::test_a_staged_producer_that_has_failed_cannot_be_the_winner",),
    ),
    Mutant(
        "a send waits after it has added its record",
        PRODUCER,
        "        return delivery or await",
        "        await asyncio.sleep(0)\n        return delivery or await",
        (f"{PRODUCER_TESTS}::test_a_cancelled_send_adds_no_record",),
    ),
    Mutant(
        "a cancelled request leaves the transaction committable",
        TRANSACTIONS,
        "        except asyncio.CancelledError:\n            text",
        "        except ZeroDivisionError:\n            text",
        (f"{TRANSACTION_TESTS}::test_offsets_whose_request_was_cancelled_do_not_join_the_next_transaction",),
    ),
    Mutant(
        "a transaction commits before its offsets are sent",
        PRODUCER,
        "                await transactions.offsets_sent()\n                await transactions.end",
        "                await transactions.end",
        (f"{TRANSACTION_TESTS}::test_the_end_of_a_transaction_waits_for_offsets_that_another_task_sends",),
    ),
    Mutant(
        "a position whose pause has just ended is forgotten",
        STARTING,
        "if self._is_wanted(each)]",
        "if each.retry_at > loop.time()]",
        (f"{STARTING_TESTS}::test_a_position_whose_retry_pause_ends_during_another_look_up_is_set",),
    ),
    Mutant(
        "a failed look-up stops a partition that the user has set",
        STARTING,
        "            self._failed([each for each in positions if each.version == versions[each]], error)\n\n",
        "            self._failed(positions, error)\n\n",
        (f"{STARTING_TESTS}::test_a_failed_look_up_does_not_fail_a_position_that_was_set_meanwhile",),
    ),
    Mutant(
        "a deletion that a coordinator at its end refuses counts as not done",
        GROUPS,
        "            if code == KafkaCode.COORDINATOR_LOAD_IN_PROGRESS:\n",
        "            if code in (KafkaCode.COORDINATOR_LOAD_IN_PROGRESS, KafkaCode.NOT_COORDINATOR):\n",
        (f"{GROUP_TESTS}::test_a_deletion_whose_answer_is_lost_succeeds_when_repeated",),
    ),
    Mutant(
        "the deletion of a missing group succeeds after its coordinator has loaded",
        GROUPS,
        "                may_be_done = repeats\n",
        "                pass\n",
        (f"{GROUP_TESTS}::test_a_missing_group_is_reported_although_its_coordinator_was_still_loading",),
    ),
    Mutant(
        "a record is handed out after its lock has expired",
        SHARE_CONSUMER,
        "            if lock is not None and lock.until_s > now_s:",
        "            if lock is not None:",
        (f"{SHARE_CONSUMER_TESTS}::test_a_record_whose_lock_expired_in_the_buffer_is_not_returned",),
    ),
    Mutant(
        "an abort that was interrupted early counts as not begun",
        TRANSACTIONS,
        "        self._abort_runs = self.is_aborting = True\n",
        "        self._abort_runs = True\n",
        (f"{TRANSACTION_TESTS}::test_the_next_transaction_block_completes_an_abort_that_was_cancelled",),
    ),
    Mutant(
        "a later acknowledgement replaces an acceptance",
        SHARE_CONSUMER,
        " or settled.get(ack.key, ack.kind) != ack.kind:",
        ":",
        (f"{SHARE_CONSUMER_TESTS}::test_an_acceptance_is_not_replaced_by_a_later_call_for_the_record",),
    ),
    Mutant(
        "a lock that was released fails all acceptances of its partition",
        SHARE_CONSUMER,
        "                if code == KafkaCode.INVALID_RECORD_STATE and len(offsets[ack.place]) > 1:",
        "                if False:",
        (f"{SHARE_CONSUMER_TESTS}::test_an_acceptance_with_a_released_lock_does_not_fail_other_acceptances",),
    ),
    Mutant(
        "the offset of a commit without an answer counts as not committed",
        COMMITS,
        "        self.may_have_changed(wanted)  # the",
        "        pass  # the",
        (f"{COMMIT_TESTS}::test_the_former_offset_is_committed_again_after_a_commit_without_an_answer",),
    ),
    Mutant(
        "a sticky member reports no partitions",
        MEMBERSHIP,
        "encode_subscription(subscription, name, self._last)",
        "encode_subscription(subscription, name)",
        (f"{MEMBERSHIP_TESTS}::test_a_sticky_member_reports_its_revoked_partitions_when_it_joins",),
    ),
    Mutant(
        "an internal error of a fetch stays unknown",
        FETCHER,
        "            self._bug = self._bug or task.exception()\n",
        "            task.exception()\n",
        (f"{CONSUMER_TESTS}::test_an_internal_error_of_a_fetch_is_reported",),
    ),
    Mutant(
        "a list of all groups is complete without any broker",
        CLUSTER,
        "        if not self._view.names_brokers:  # a caller",
        "        if False:  # a caller",
        (f"{GROUP_TESTS}::test_list_groups_waits_until_a_broker_is_unfenced",),
    ),
    Mutant(
        "a list is complete although no broker serves any more",
        CLUSTER,
        "        if not self._view.names_brokers:  # a caller",
        "        if not self._view.brokers:  # a caller",
        (f"{GROUP_TESTS}::test_list_groups_waits_until_a_broker_is_unfenced",),
    ),
    Mutant(
        "a list asks only the broker that is starting",
        CLUSTER,
        "            self.ask_another_broker()\n            raise ClusterError(ApiError.BROKER_NOT_AVAILABLE",
        "            raise ClusterError(ApiError.BROKER_NOT_AVAILABLE",
        (f"{GROUP_TESTS}::test_list_groups_does_not_wait_for_a_single_broker_that_is_starting",),
    ),
    Mutant(
        "a topic that is refused hides the offsets of the others",
        LEADER_CALLS,
        "        await cluster.look_up({",
        "        await cluster.topic_states({",
        (f"{GROUP_TESTS}::test_a_refused_topic_does_not_hide_the_offsets_of_others",),
    ),
    Mutant(
        "a part of a transaction waits without a limit for an earlier one",
        TRANSACTIONS,
        "            async with asyncio.timeout_at(deadline):\n",
        "            async with asyncio.timeout(None):\n",
        (f"{TRANSACTION_TESTS}::test_adding_a_partition_or_offsets_times_out_while_an_earlier_request_hangs",),
    ),
    Mutant(
        "an addition to a transaction has the full time after its wait",
        TRANSACTIONS,
        "self._add(wanted, max(deadline - now(), 0.0))",
        "self._add(wanted, timeout_s)",
        (f"{TRANSACTION_TESTS}::test_adding_a_partition_has_only_the_time_that_an_earlier_request_leaves",),
    ),
    Mutant(
        "a partition that the user drops is not committed",
        CONSUMER_GROUP,
        "            self._given_up |= self._reading.uncommitted()\n",
        "            pass\n",
        (f"{COMMIT_TESTS}::test_processed_records_of_a_partition_that_is_no_longer_assigned_are_committed",),
    ),
    Mutant(
        "a broker that lags takes partitions away",
        CLUSTER,
        "                    if new is None or new.epoch < old.epoch:",
        "                    if new is not None and new.epoch < old.epoch:",
        (f"{CLUSTER_TESTS}::test_metadata_of_a_lagging_broker_does_not_reduce_the_partition_count",),
    ),
    Mutant(
        "a consumer drops fetched records when they are deleted from the log",
        STARTING,
        "                if position.fetch_offset > end:",
        "                if True:",
        (f"{STARTING_TESTS}::test_only_a_truncation_drops_the_records_that_the_user_has_not_got_yet",),
    ),
    Mutant(
        "a look-up of a missing group creates the topic that holds groups",
        COORDINATORS,
        "if without_topic is not None and key not in self._coordinators",
        "if without_topic is not None and key in self._coordinators",
        (
            "tests/unit/quorumlog/client/test_groups.py"
            "::test_calls_about_a_missing_group_do_not_create_the_topic_that_holds_groups",
        ),
    ),
    Mutant(
        "a topic counts as missing if the metadata of one broker lacks it",
        COORDINATORS,
        "_TOPIC_LOOKS: Final = 2",
        "_TOPIC_LOOKS: Final = 1",
        (
            "tests/unit/quorumlog/client/test_groups.py"
            "::test_a_group_is_found_although_the_metadata_of_one_broker_lacks_the_new_topic",
        ),
    ),
)
