"""Mutants of broker/replica."""

from __future__ import annotations

from tests.mutants import Mutant

FETCHER = "broker/replica/fetcher.py"
FETCH = "broker/replica/fetch.py"
CLUSTER_VIEW = "broker/replica/cluster_view.py"
IMAGE = "broker/replica/image.py"
OFFSETS = "broker/replica/offsets.py"
PARKED = "broker/replica/parked.py"
PRODUCE = "broker/replica/produce.py"
RECORD_CHECKS = "broker/replica/record_checks.py"
REPLICA = "broker/replica/replica.py"
ISR = "broker/replica/isr.py"
STARTS = "broker/replica/starts.py"
WATERMARKS = "broker/replica/watermarks.py"
DELETIONS = "broker/replica/deletions.py"
NEAREST_TESTS = "tests/unit/broker/replica/test_nearest.py"
CONSUMER_SESSION_TESTS = "tests/unit/broker/replica/test_consumer_sessions.py"
DELETION_TESTS = "tests/unit/broker/replica/test_deletions.py"
GAP_TESTS = "tests/unit/broker/replica/test_gaps.py"
FETCHER_TESTS = "tests/unit/broker/replica/test_fetcher.py"
ISR_TESTS = "tests/unit/broker/replica/test_isr.py"
LEADERSHIP_TESTS = "tests/unit/broker/replica/test_leaderships.py"
POSITION_TESTS = "tests/unit/broker/replica/test_positions.py"
READ_TESTS = "tests/unit/broker/replica/test_awaited_reads.py"
ROLE_TESTS = "tests/unit/broker/replica/test_roles.py"
SESSION_TESTS = "tests/unit/broker/replica/test_sessions.py"
SERVING_TESTS = "tests/unit/broker/replica/test_serving.py"
WATERMARK_TESTS = "tests/unit/broker/replica/test_watermarks.py"
INTERNAL_TESTS = "tests/unit/broker/replica/test_internal_topics.py"

MUTANTS = (
    Mutant(
        "a broker keeps the settings of every topic that was ever deleted",
        IMAGE,
        "self._touched_configs.update(change.topics_removed, change.topics_renewed)",
        "self._touched_configs.update(change.topics_renewed)",
        (f"{ROLE_TESTS}::test_the_configs_of_deleted_topics_and_of_former_topic_ids_are_dropped",),
    ),
    Mutant(
        "a gap that this leader made is reported as a loss, and librdkafka writes batches twice",
        REPLICA,
        "        if cause is None:\n            return refused\n",
        "        if cause is None or cause is KafkaCode.NOT_LEADER_OR_FOLLOWER:\n            return refused\n",
        (f"{GAP_TESTS}::test_a_gap_that_a_stalled_leader_made_is_not_reported_as_a_loss",),
    ),
    Mutant(
        "a producer begins with its second batch if the first one was refused, and loses the first one",
        REPLICA,
        "        return None if earlier is None else _must_wait(*earlier)\n",
        "        return None\n",
        (f"{GAP_TESTS}::test_no_batch_of_a_producer_is_appended_before_its_first_batch_that_was_refused",),
    ),
    Mutant(
        "a refusal holds up a producer although its batch was appended",
        REPLICA,
        "        self._context.refused_batches.appended(self.topic, self.key.index, batches.headers[0])\n",
        "",
        (f"{GAP_TESTS}::test_an_earlier_refusal_does_not_block_a_producer_that_has_expired",),
    ),
    Mutant(
        "a stalled leader does not remember the batches that it refuses",
        PRODUCE,
        "            self._context.refused_batches.note(topic, index, first, result.error_code, now_ms())\n",
        "            pass\n",
        (GAP_TESTS,),
    ),
    Mutant(
        "a leader with too few replicas does not remember the batches that it refuses",
        PRODUCE,
        "            self._note_refusal(produce)\n        return future",
        "        return future",
        (f"{GAP_TESTS}::test_later_batches_get_the_same_error_as_a_batch_refused_for_too_few_replicas",),
    ),
    Mutant(
        "a batch that was not checked in time is not remembered",
        RECORD_CHECKS,
        "            self._timed_out(produce)\n",
        "",
        (f"{GAP_TESTS}::test_later_batches_get_the_same_error_as_a_batch_that_was_not_checked_in_time",),
    ),
    Mutant(
        "a follower serves records before its leader agrees to them",
        REPLICA,
        "if follower is None or not follower.agrees or",
        "if follower is None or",
        (f"{NEAREST_TESTS}::test_a_follower_serves_consumers_once_its_leader_agrees_to_its_log",),
    ),
    Mutant(
        "a follower outside the ISR serves consumers",
        REPLICA,
        "is_in_sync = context.broker_id in self.image.isr and",
        "is_in_sync =",
        (f"{NEAREST_TESTS}::test_a_follower_outside_the_isr_serves_no_consumers",),
    ),
    Mutant(
        "a consumer is sent to a follower outside the ISR",
        FETCH,
        "if id_ in leader.isr",
        "if True",
        (f"{NEAREST_TESTS}::test_the_leader_serves_a_consumer_if_no_replica_in_its_rack_can",),
    ),
    Mutant(
        "a follower that serves consumers learns of a watermark at its next records",
        REPLICA,
        "followers=self._context.reads_from_followers)",
        "followers=False)",
        (f"{NEAREST_TESTS}::test_a_new_high_watermark_answers_the_parked_fetch_of_a_follower_that_serves_consumers",),
    ),
    Mutant(
        "a session does not watch a partition that was created after it was named",
        FETCH,
        "            replica.sessions[session] = entry.key",
        "            pass",
        (f"{CONSUMER_SESSION_TESTS}::test_a_session_learns_of_a_partition_that_is_created_later",),
    ),
    Mutant(
        "a session stays open though its client never learned of it",
        FETCH,
        "            elif session.full:\n",
        "            elif False:\n",
        (
            f"{CONSUMER_SESSION_TESTS}::test_a_client_that_disconnects_before_the_reply_of_its_first_fetch_leaves_no_session",
        ),
    ),
    Mutant(
        "a replica starts over within a batch",
        FETCH,
        "start = _first_position(found.log)",
        "start = found.log.start_offset",
        (POSITION_TESTS,),
    ),
    Mutant(
        "a replica may not fetch the batch with the log start",
        FETCH,
        "start = _first_position(partition_log)\n",
        "pass\n",
        (POSITION_TESTS,),
    ),
    Mutant(
        "a consumer may fetch below the log start",
        FETCH,
        "if is_replica and entry.fetch_offset < start:",
        "if entry.fetch_offset < start:",
        (POSITION_TESTS,),
    ),
    Mutant(
        "a client appends to an internal topic",
        "broker/replica/produce.py",
        "if is_internal(topic):",
        "if is_internal(topic) and replica is None:",
        (INTERNAL_TESTS,),
    ),
    Mutant(
        "retention deletes a coordinator's state",
        "broker/replica/configs.py",
        "keeps_all = is_internal(image.topics[topic_id].name)",
        "keeps_all = False",
        (INTERNAL_TESTS,),
    ),
    Mutant(
        "a directory that hangs delays the deletion of records in the others",
        STARTS,
        "                if replica.log.directory_id in self._writing:\n",
        "                if self._writing:\n",
        (f"{DELETION_TESTS}::test_a_hanging_directory_does_not_delay_deletions_in_another_directory",),
    ),
    Mutant(
        "a directory that hangs while a replica is removed stops the application of the metadata",
        IMAGE,
        "await asyncio.wait([removal], timeout=REMOVAL_WAIT_S)",
        "await asyncio.wait([removal])",
        (f"{ROLE_TESTS}::test_a_hanging_directory_delays_only_replicas_whose_folders_it_holds",),
    ),
    Mutant(
        "a replica is never opened that was assigned again while its former folder was set aside",
        IMAGE,
        "            self._touched.update(self._put_off)\n",
        "",
        (f"{ROLE_TESTS}::test_a_hanging_directory_delays_only_replicas_whose_folders_it_holds",),
    ),
    Mutant(
        "a damaged replica that is assigned again in one pass stays offline",
        IMAGE,
        "            or self._directories.was_assigned_again(replica, partition)\n",
        "",
        (f"{ROLE_TESTS}::test_damaged_replica_that_is_assigned_again_in_one_pass_starts_over",),
    ),
    Mutant(
        "a fetch position is acknowledged without checking it",
        FETCH,
        "if self._check(entry, plan.replica_id, found) is not KafkaCode.NONE:\n            return\n        contact",
        "if False:\n            return\n        contact",
        (f"{POSITION_TESTS}::test_a_fetch_position_in_another_history_acknowledges_nothing",),
    ),
    Mutant(
        "a replica's position is checked as a consumer's",
        FETCH,
        "start, partition_log.epochs, is_replica=is_replica",
        "start, partition_log.epochs, is_replica=False",
        (f"{POSITION_TESTS}::test_a_fetch_position_in_another_history_acknowledges_nothing",),
    ),
    Mutant(
        "a replica need not name its leader epoch",
        FETCH,
        "if replica_id != CONSUMER and entry.current_leader_epoch < 0:",
        "if False:",
        (f"{POSITION_TESTS}::test_a_fetch_under_another_leader_epoch_acknowledges_nothing",),
    ),
    Mutant(
        "a follower names no epoch when its log is empty",
        FETCHER,
        "        epoch = partition_log.epochs.last_epoch\n",
        "        epoch = partition_log.epochs.last_epoch if end > partition_log.start_offset else -1\n",
        (
            f"{POSITION_TESTS}::test_a_follower_names_the_epoch_of_its_last_record_even_after_retention_deleted_it",
            "tests/simulation/test_emptied_follower.py",
        ),
    ),
    Mutant(
        "a replica that starts over does not learn the epoch before its start",
        FETCHER,
        "self._context.logs.reset_to(partition_log, start, epoch, is_wanted)",
        "self._context.logs.reset_to(partition_log, start, -1, is_wanted)",
        (f"{POSITION_TESTS}::test_a_follower_that_diverges_below_its_start_starts_over",),
    ),
    Mutant(
        "a log starts over although the replica has another leader, which is asked from the old position permanently",
        FETCHER,
        "        if await self._context.logs.reset_to(partition_log, start, epoch, is_wanted):\n",
        "        if await self._context.logs.reset_to(partition_log, start, epoch):\n",
        (f"{FETCHER_TESTS}::test_a_replica_that_starts_over_while_its_leader_changes_reports_its_position",),
    ),
    Mutant(
        "a truncation for a former leader lowers the watermark of the log, but not that of the replica",
        FETCHER,
        "lower_truncation_floor(partition_log, end, is_wanted)",
        "lower_truncation_floor(partition_log, end)",
        (f"{FETCHER_TESTS}::test_a_truncation_for_a_former_leader_does_not_lower_the_high_watermark",),
    ),
    Mutant(
        "a truncation is not prepared",
        FETCHER,
        "        await self._context.logs.prepare_truncation(partition_log, end)\n",
        "",
        (f"{FETCHER_TESTS}::test_a_truncation_across_segments_is_prepared",),
    ),
    Mutant(
        "a fetcher keeps no account of refused positions",
        FETCHER,
        "        self._session.refused(key)\n",
        "        self._session.drop(key)\n",
        (f"{FETCHER_TESTS}::test_a_refused_replica_reports_its_position_again",),
    ),
    Mutant(
        "a fetcher continues its session under another registration",
        FETCHER,
        "            await self._renew_session()\n",
        "",
        (f"{FETCHER_TESTS}::test_a_broker_that_registers_again_reports_all_its_positions_again",),
    ),
    Mutant(
        "nobody reads the error of a reply after the fetcher was cancelled",
        FETCHER,
        "            reply.exception()  # read it: nobody",
        "            pass  # read it: nobody",
        (f"{FETCHER_TESTS}::test_a_reply_that_fails_after_the_fetcher_was_cancelled_is_not_reported",),
    ),
    Mutant(
        "a watermark counts as sent with a divergence",
        FETCH,
        "if is_news or (is_follower and entry.is_named_again):",
        "if is_news:",
        (f"{SESSION_TESTS}::test_a_follower_whose_log_diverged_gets_the_high_watermark_and_the_log_start",),
    ),
    Mutant(
        "a position that is named again is answered at once",
        FETCH,
        "urgent = urgent or (is_follower and self._is_awaited(entry, result))",
        "urgent = urgent or is_follower",
        (f"{SESSION_TESTS}::test_a_fetch_that_repeats_its_position_is_answered_at_the_end_of_its_wait",),
    ),
    Mutant(
        "parked produces outlive a leadership",
        REPLICA,
        "        self._refuse_parked(KafkaCode.NOT_LEADER_OR_FOLLOWER)\n        self._touch(",
        "        self._touch(",
        (f"{ROLE_TESTS}::test_parked_produces_are_refused_when_the_leadership_ends",),
    ),
    Mutant(
        "parked produces outlive their replica",
        REPLICA,
        "        self._refuse_parked(code)\n",
        "",
        (f"{ROLE_TESTS}::test_parked_produces_are_refused_when_the_leadership_ends",),
    ),
    Mutant(
        "a broker takes up a leadership that is older than its registration",
        IMAGE,
        "elif partition.last_offset > self._cluster.own_epoch:",
        "else:",
        (f"{ROLE_TESTS}::test_a_leadership_older_than_the_registration_is_ignored",),
    ),
    Mutant(
        "a leader serves by a record that is older than its registration",
        REPLICA,
        "return self.leader if self.image.last_offset > self._context.cluster.own_epoch else None",
        "return self.leader",
        (f"{ROLE_TESTS}::test_a_leader_stops_serving_once_it_is_registered_again",),
    ),
    Mutant(
        "a fenced leader serves",
        CLUSTER_VIEW,
        "own.epoch == self.own_epoch and not own.fenced",
        "own.epoch == self.own_epoch",
        (f"{ROLE_TESTS}::test_a_leader_refuses_produces_while_its_broker_is_fenced",),
    ),
    Mutant(
        "the sessions of a fenced broker continue",
        IMAGE,
        "events.broker_left(broker_id)",
        "pass",
        (f"{SESSION_TESTS}::test_the_sessions_of_a_fenced_or_unregistered_broker_end",),
    ),
    Mutant(
        "a leader still copies from the leader before",
        REPLICA,
        "        self._context.events.role_changed(self)\n        if self.leader",
        "        if self.leader",
        (f"{FETCHER_TESTS}::test_a_replica_that_becomes_leader_leaves_its_fetcher",),
    ),
    Mutant(
        "an append does not wake the followers' fetches",
        REPLICA,
        "self._touch(consumers=False, followers=True)\n            self.report_when_flushed()",
        "self._touch(consumers=False, followers=False)\n            self.report_when_flushed()",
        (f"{SESSION_TESTS}::test_a_parked_fetch_of_a_follower_is_answered_by_an_append",),
    ),
    Mutant(
        "the end of a leadership does not wake a parked fetch",
        REPLICA,
        "self._refuse_parked(KafkaCode.NOT_LEADER_OR_FOLLOWER)\n        self._touch(consumers=True, followers=True)\n",
        "self._refuse_parked(KafkaCode.NOT_LEADER_OR_FOLLOWER)\n",
        (f"{SESSION_TESTS}::test_a_parked_fetch_is_answered_when_the_leadership_ends",),
    ),
    Mutant(
        "a log does not get its replica's watermark",
        REPLICA,
        "            self.log.advance_high_watermark(role.high_watermark)\n",
        "            pass\n",
        (f"{SERVING_TESTS}::test_a_new_leader_keeps_the_high_watermark_that_it_had_as_a_follower",),
    ),
    Mutant(
        "a new leader begins from no watermark",
        REPLICA,
        "            high_watermark=watermark,\n",
        "            high_watermark=0,\n",
        (f"{SERVING_TESTS}::test_a_new_leader_keeps_the_high_watermark_that_it_had_as_a_follower",),
    ),
    Mutant(
        "a leader epoch begins only with its first record",
        REPLICA,
        "        partition_log.begin_epoch(image.leader_epoch)\n",
        "",
        (f"{SERVING_TESTS}::test_a_leader_epoch_begins_before_its_first_record",),
    ),
    Mutant(
        "a consumer receives uncommitted records",
        FETCH,
        "return found.log.last_stable_offset if plan.read_committed else found.role.high_watermark",
        "return found.log.last_stable_offset if plan.read_committed else found.log.end_offset",
        (f"{SERVING_TESTS}::test_a_consumer_reads_up_to_the_high_watermark_and_a_follower_to_the_log_end",),
    ),
    Mutant(
        "the latest offset is reported before it is known",
        OFFSETS,
        "            if not leader.latest_known():\n                return",
        "            if False:\n                return",
        (f"{SERVING_TESTS}::test_the_latest_offset_is_unavailable_until_a_new_leader_has_committed_its_log",),
    ),
    Mutant(
        "a follower's unflushed records are fetched past",
        FETCHER,
        "if not partition_log.is_settled:\n            self._session.drop(key)",
        "if False:\n            self._session.drop(key)",
        (f"{FETCHER_TESTS}::test_a_follower_fetches_only_from_its_durable_end",),
    ),
    Mutant(
        "a truncation keeps the follower's watermark",
        FETCHER,
        "        replica.on_truncated()\n        self._context",
        "        self._context",
        (f"{FETCHER_TESTS}::test_a_truncation_lowers_the_high_watermark",),
    ),
    Mutant(
        "a follower's log starts above its watermark",
        FETCHER,
        "                replica.advance_start(part.log_start_offset)\n",
        "                replica.advance_start(part.log_start_offset + 1)\n",
        (f"{FETCHER_TESTS}::test_a_follower_advances_its_log_start_with_its_leader_but_keeps_uncommitted_records",),
    ),
    Mutant(
        "an ISR proposal that was not answered counts as refused",
        ISR,
        "return Answer.OVERTAKEN if word in _OVERTAKEN else Answer.UNKNOWN",
        "return Answer.OVERTAKEN if word in _OVERTAKEN else Answer.REFUSED",
        (f"{ISR_TESTS}::test_each_error_code_determines_the_outcome_of_an_isr_proposal",),
    ),
    Mutant(
        "an ISR proposal that was not answered before a stall holds the watermark permanently",
        ISR,
        "if leader.has_pending_isr or leader.wanted_isr(now_ms()) != leader.isr:",
        "if leader.wanted_isr(now_ms()) != leader.isr:",
        (f"{ISR_TESTS}::test_an_unanswered_isr_proposal_is_replaced_after_a_stall",),
    ),
    Mutant(
        "parked produces of acks=1 wait for the watermark",
        PARKED,
        "        heap = self._by_commit if produce.acks == ACKS_ALL else self._by_flush\n        heapq.heappush",
        "        heap = self._by_commit\n        heapq.heappush",
        (f"{SERVING_TESTS}::test_a_parked_produce_is_answered_once_the_condition_of_its_acks_is_met",),
    ),
    Mutant(
        "a produce whose time is up counts as answered twice, so the number of waiting ones is not bounded",
        PARKED,
        "                if produce.timer is None:\n",
        "                if False:\n",
        (f"{SERVING_TESTS}::test_each_parked_produce_is_counted_until_it_is_answered",),
    ),
    Mutant(
        "a deleted replica's watermark stays among the facts",
        WATERMARKS,
        "            self._forgotten[directory_id].add(name)\n",
        "            pass\n",
        (f"{WATERMARK_TESTS}::test_the_stored_high_watermark_of_a_deleted_replica_is_removed",),
    ),
    Mutant(
        "a leadership that ends is not reported",
        REPLICA,
        "        if led is not None:\n",
        "        if False:\n",
        (f"{LEADERSHIP_TESTS}::test_the_end_of_a_leadership_is_reported",),
    ),
    Mutant(
        "a leadership is reported before the replica leads",
        REPLICA,
        "        assignment = _assignment(image)\n",
        "        assignment = _assignment(image)\n"
        "        self._context.events.elected(self.partition, image.leader_epoch)\n",
        (f"{LEADERSHIP_TESTS}::test_an_election_is_reported_once_the_replica_leads",),
    ),
    Mutant(
        "records that were read by a leader that resigned meanwhile are sent",
        FETCH,
        "return self.replica.leader is not self.role",
        "return False",
        (f"{READ_TESTS}::test_records_are_not_sent_by_a_leader_that_resigned_during_the_read",),
    ),
    Mutant(
        "a fetch answers although a newer one took over during its read",
        FETCH,
        "                    if session.next_epoch != epoch:\n                        break\n",
        "",
        (f"{READ_TESTS}::test_a_fetch_that_arrives_during_a_read_replaces_the_earlier_fetch",),
    ),
    Mutant(
        "a deletion is answered before its start is durable",
        DELETIONS,
        "low_watermark(replica.log.durable_start_offset)",
        "low_watermark(replica.log.start_offset)",
        (f"{DELETION_TESTS}::test_a_deletion_is_answered_once_the_new_log_start_is_durable",),
    ),
    Mutant(
        "records above the watermark are deleted",
        DELETIONS,
        "if not 0 <= offset <= leader.high_watermark:",
        "if not 0 <= offset <= log.end_offset:",
        (f"{DELETION_TESTS}::test_a_deletion_up_to_an_uncommitted_offset_is_refused_as_out_of_range",),
    ),
    Mutant(
        "a follower reports a log start that is not durable",
        FETCHER,
        "end, epoch, partition_log.durable_start_offset, size_max)",
        "end, epoch, partition_log.start_offset, size_max)",
        (f"{DELETION_TESTS}::test_a_follower_reports_a_log_start_once_it_is_durable",),
    ),
    Mutant(
        "a follower never takes a start above its old watermark",
        FETCHER,
        """                replica.follow_watermark(watermark)  # first, because the start never exceeds the watermark
                replica.advance_start(part.log_start_offset)
""",
        """                replica.advance_start(part.log_start_offset)
                replica.follow_watermark(watermark)
""",
        (f"{DELETION_TESTS}::test_a_follower_applies_a_log_start_that_arrives_together_with_its_high_watermark",),
    ),
    Mutant(
        "a deletion counts the start of another incarnation",
        "broker/core/partition.py",
        "if follower is None or follower.broker_epoch != broker_epoch or follower.log_start == log_start:",
        "if follower is None or follower.log_start == log_start:",
        (f"{DELETION_TESTS}::test_a_deletion_ignores_fetches_of_an_earlier_incarnation_of_a_follower",),
    ),
    Mutant(
        "a follower fetches beside a truncation that is not durable",
        FETCHER,
        "if not partition_log.is_settled:",
        "if partition_log.flushed_offset < partition_log.end_offset:",
        (f"{FETCHER_TESTS}::test_a_follower_fetches_again_once_its_truncation_is_durable",),
    ),
    Mutant(
        "a leader appends beside a truncation that is not durable",
        REPLICA,
        "elif self.log.durability.is_truncating:",
        "elif False:",
        (f"{FETCHER_TESTS}::test_a_new_leader_refuses_produces_until_its_truncation_is_durable",),
    ),
    Mutant(
        "a coordinator appends beside a truncation that is not durable",
        REPLICA,
        "if found.log.durability.is_truncating:",
        "if False:",
        (
            "tests/unit/broker/coordinator/test_coordinator.py"
            "::test_no_record_is_appended_until_the_last_truncation_is_durable",
        ),
    ),
    Mutant(
        "a truncation ignores that the floor has risen while it was prepared",
        FETCHER,
        "if end < max(partition_log.truncation_floor, partition_log.start_offset):",
        "if False:",
        (f"{FETCHER_TESTS}::test_a_truncation_is_postponed_to_the_next_reply_if_the_truncation_floor_rises",),
    ),
    Mutant(
        "an accepted batch does not end the back-off of refused ones",
        FETCHER,
        "                self._refusals.pop(key, None)\n                if partition_log.end_offset < watermark",
        "                if partition_log.end_offset < watermark",
        (f"{FETCHER_TESTS}::test_repeated_refusals_of_batches_share_one_back_off",),
    ),
    Mutant(
        "a refused batch ends the back-off of refused ones",
        FETCHER,
        "                if len(records):\n",
        "                self._refusals.pop(key, None)\n                if len(records):\n",
        (f"{FETCHER_TESTS}::test_repeated_refusals_of_batches_share_one_back_off",),
    ),
    Mutant(
        "a deletion waits forever for a start that retention moved",
        REPLICA,
        "if self.log.durable_start_offset < self.log.start_offset:",
        "if before < self.log.start_offset:",
        (f"{DELETION_TESTS}::test_a_deletion_makes_a_log_start_durable_that_retention_has_just_advanced",),
    ),
    Mutant(
        "a fetcher asks for a replica that has got another leader during a flush",
        FETCHER,
        "        if self._replicas.get(key) is not replica:\n            return  # the replica was removed",
        "        if False:\n            return  # the replica was removed",
        (f"{FETCHER_TESTS}::test_a_replica_that_gets_another_leader_while_its_log_is_flushed_leaves_its_fetcher",),
    ),
    Mutant(
        "a directory that fails in a flush takes the replica offline whose move is being decided in another one",
        FETCHER,
        "        for key, replica, partition_log in appended:\n            if replica.log is partition_log:\n",
        "        for key, replica, partition_log in appended:\n"
        "            if self._context.logs.failed_disks and partition_log.flushed_offset < partition_log.end_offset:\n"
        "                replica.take_offline(next(iter(self._context.logs.failed_disks.values())))\n"
        "            if replica.log is partition_log:\n",
        (f"{FETCHER_TESTS}::test_a_directory_that_fails_in_a_flush_takes_no_other_directory_offline",),
    ),
    Mutant(
        "a fetch whose session ends is not answered before its time is up",
        "broker/core/fetch_session.py",
        "        session.session_id = NO_SESSION  # a fetch",
        "        # a fetch",
        (f"{CONSUMER_SESSION_TESTS}::test_a_session_that_ends_while_its_fetch_waits_is_removed_from_its_replicas",),
    ),
    Mutant(
        "a directory that fails keeps the strays of the others",
        "broker/replica/strays.py",
        "                continue\n            self.are_known = True\n",
        "                return\n            self.are_known = True\n",
        ("tests/unit/broker/replica/test_strays.py",),
    ),
    Mutant(
        "a truncation in a directory that hangs delays the replicas in the others",
        FETCHER,
        "            await asyncio.wait([truncation], timeout=FLUSH_WAIT_S)\n",
        "            await asyncio.wait([truncation])\n",
        (f"{FETCHER_TESTS}::test_a_truncation_in_a_hanging_directory_does_not_delay_replicas_in_other_directories",),
    ),
    Mutant(
        "a follower that could not truncate its log waits until somebody writes",
        FETCHER,
        "            self._session.refused(key)  # if the log",
        "            # if the log",
        (f"{FETCHER_TESTS}::test_a_follower_reports_its_position_again_if_it_did_not_truncate_its_log",),
    ),
    Mutant(
        "a fetch waits because whole batches are smaller than the bytes that are available",
        FETCH,
        "if enough or look.has_enough or last_chance:",
        "if enough or last_chance:",
        (f"{CONSUMER_SESSION_TESTS}::test_a_fetch_is_answered_once_its_partitions_have_enough_bytes",),
    ),
    Mutant(
        "a fetch whose session has just ended misses records",
        FETCH,
        "        session.ready.update(dict.fromkeys(session.entries))  # until",
        "        # until",
        (f"{CONSUMER_SESSION_TESTS}::test_a_fetch_whose_session_has_just_ended_does_not_miss_records",),
    ),
    Mutant(
        "a leader that resigned during a look-up by time answers it",
        OFFSETS,
        "        if replica.leader is not leader:\n",
        "        if False:\n",
        (f"{READ_TESTS}::test_a_look_up_by_timestamp_is_refused_if_the_leader_resigned_meanwhile",),
    ),
    Mutant(
        "a clean stop leaves the folders of removed replicas with outdated facts",
        IMAGE,
        "                await asyncio.wait(self._removals, timeout=REMOVAL_WAIT_S)\n",
        "                pass\n",
        (f"{ROLE_TESTS}::test_a_stop_sets_the_folders_of_removed_replicas_aside",),
    ),
    Mutant(
        "an error that was sent before hides a new error of another partition",
        FETCH,
        "has_other_news = has_other_news or verdict != entry.sent_code",
        "has_other_news = verdict != entry.sent_code",
        (f"{CONSUMER_SESSION_TESTS}::test_a_new_error_answers_a_parked_fetch_beside_an_error_that_was_sent",),
    ),
    Mutant(
        "a follower without a session fetches without a pause",
        FETCHER,
        "wait_ms = 0 if request.is_full and not self._refused_session else",
        "wait_ms = 0 if request.is_full else",
        ("tests/integration/broker/test_fetching.py::test_followers_copy_without_a_free_session",),
    ),
)
