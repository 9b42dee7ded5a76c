"""Mutants of share groups: broker/core/share, broker/core/coordinator/share, and their shell."""

from __future__ import annotations

from tests.mutants import Mutant

PARTITION = "broker/core/share/partition.py"
STATES = "broker/core/coordinator/share/states.py"
MACHINE = "broker/core/coordinator/share/state_machine.py"
SERVICE = "broker/core/coordinator/share/service.py"
SESSIONS = "broker/coordinator/share_sessions.py"
FETCH = "broker/coordinator/share_fetch.py"
GROUP_STATES = "broker/coordinator/share_group_states.py"
LETTERS = "broker/coordinator/dead_letters.py"
LED = "broker/coordinator/led_share.py"
PARTITIONS = "broker/coordinator/share_partitions.py"
REMINDERS = "broker/core/coordinator/share/reminders.py"
REMINDER_TESTS = "tests/unit/broker/core/coordinator/share/test_letter_reminders.py"
REMINDED_TESTS = "tests/unit/broker/coordinator/test_dead_letter_reminders.py"
LETTER_TESTS = "tests/unit/broker/coordinator/test_dead_letters.py"
STATE_TESTS = "tests/unit/broker/core/coordinator/share/test_share_states.py"
GROUP_TESTS = "tests/unit/broker/core/coordinator/share/test_share_groups.py"
SESSION_TESTS = "tests/unit/broker/coordinator/test_share_sessions.py"
FETCH_TESTS = "tests/unit/broker/coordinator/test_share_fetch.py"
GROUP_STATE_TESTS = "tests/unit/broker/coordinator/test_share_group_states.py"
UNIT = "tests/unit/broker/core/share/test_share_partition.py"

MUTANTS = (
    Mutant(
        "a queue passes over the records before a range without records",
        PARTITION,
        "if first <= self.start_offset == self.end_offset < end:",
        "if self.start_offset == self.end_offset < end:",
        (f"{UNIT}::test_hiding_a_distant_range_without_records_skips_no_records_before_it",),
    ),
    Mutant(
        "a leader moves the start of a new group to that of a deleted one",
        MACHINE,
        "case WriteState() if request.state_epoch != _state_epoch(known):",
        "case WriteState() if request.state_epoch < _state_epoch(known):",
        (f"{STATE_TESTS}::test_a_leader_with_the_state_of_a_deleted_group_is_fenced",),
    ),
    Mutant(
        "a deleted share group is restored",
        "broker/core/coordinator/share/groups.py",
        "has_record = Kind.GROUP in self._kinds",
        "has_record = True",
        (f"{GROUP_TESTS}::test_a_deleted_group_is_not_restored_from_a_log_without_most_of_its_tombstones",),
    ),
    Mutant(
        "a member of a deleted share group joins its successor",
        "broker/core/coordinator/share/groups.py",
        "or member.value is None or member.epoch > self.assignment_epoch",
        "or member.value is None",
        (f"{GROUP_TESTS}::test_a_member_of_a_deleted_group_is_not_a_member_of_a_new_group_of_the_same_name",),
    ),
    Mutant(
        "a lock is renewed although the group does not permit it",
        PARTITION,
        "if kind is AckType.RENEW and not self.limits.may_renew:",
        "if not self.limits.may_renew and len(batches) > 1:",
        (f"{UNIT}::test_a_renewal_is_refused_where_the_group_does_not_permit_it",),
    ),
    Mutant(
        "a member may acknowledge records of another member",
        PARTITION,
        "return status.state is Delivery.ACQUIRED and not status.save and status.member == member",
        "return status.state is Delivery.ACQUIRED and not status.save",
        (f"{UNIT}::test_acknowledgements_of_records_that_the_member_does_not_hold_are_refused",),
    ),
    Mutant(
        "a record is done although its acceptance could not be saved",
        PARTITION,
        "            if is_durable:\n",
        "            if True:\n",
        (f"{UNIT}::test_a_record_whose_acceptance_could_not_be_saved_is_delivered_again_after_its_lock",),
    ),
    Mutant(
        "a lock expires while the acknowledgement is being saved",
        PARTITION,
        "if run.value.state is Delivery.ACQUIRED and not run.value.save and is_meant(run.value)",
        "if run.value.state is Delivery.ACQUIRED and is_meant(run.value)",
        (f"{UNIT}::test_a_lock_does_not_expire_while_the_acknowledgement_is_being_saved",),
    ),
    Mutant(
        "a record is released without end",
        PARTITION,
        "if kind is AckType.RELEASE and count < self.limits.delivery_count_max:",
        "if kind is AckType.RELEASE:",
        (f"{UNIT}::test_a_record_that_was_delivered_too_often_is_archived",),
    ),
    Mutant(
        "records in flight are not bounded",
        PARTITION,
        "            end = min(end, room_end)\n",
        "            end = end + 0\n",
        (f"{UNIT}::test_records_in_flight_are_bounded",),
    ),
    Mutant(
        "the start passes an acknowledgement that is not durable",
        PARTITION,
        "            if run.value.state.is_done:\n                self.start_offset",
        "            if (run.value.next or run.value.state).is_done:\n                self.start_offset",
        (f"{UNIT}::test_changes_during_a_save_wait_for_the_next_one",),
    ),
    Mutant(
        "two saves are in progress at one time",
        PARTITION,
        "if self._in_progress is not None or not self._changes:",
        "if not self._changes:",
        (f"{UNIT}::test_changes_during_a_save_wait_for_the_next_one",),
    ),
    Mutant(
        "a record that expired waits for its dead letter before that is durable",
        PARTITION,
        "            if state is Delivery.ARCHIVING:\n",
        "            if False:\n",
        (f"{UNIT}::test_a_record_that_expired_too_often_stays_locked_until_archiving_is_durable",),
    ),
    Mutant(
        "a gap gets a dead letter",
        PARTITION,
        "if kind is AckType.GAP or not self.limits.has_dead_letters:",
        "if not self.limits.has_dead_letters:",
        (f"{UNIT}::test_a_gap_has_no_dead_letter",),
    ),
    Mutant(
        "a dead letter is written again because its save has failed",
        PARTITION,
        "            elif status.state is Delivery.ARCHIVING:\n",
        "            elif False:\n",
        (f"{UNIT}::test_a_dead_letter_is_not_written_again_if_its_save_fails",),
    ),
    Mutant(
        "a dead letter that was not written counts as written",
        LETTERS,
        "                if problem:\n                    return Attempt(problem=problem)\n",
        "",
        (f"{LETTER_TESTS}::test_a_failed_write_of_a_dead_letter_is_repeated",),
    ),
    Mutant(
        "a dead letter that is too large is dropped",
        LETTERS,
        "_without(dead, built.end, built.too_large)",
        "_without(dead, built.end, [])",
        (f"{LETTER_TESTS}::test_a_dead_letter_that_is_too_large_does_not_delay_other_dead_letters",),
    ),
    Mutant(
        "dead records behind the last letter of a batch are archived without letters",
        LETTERS,
        "                end = offset\n                break\n",
        "                break\n",
        (f"{LETTER_TESTS}::test_batches_of_dead_letters_stay_within_max_message_bytes_of_their_topic",),
    ),
    Mutant(
        "a topic that does not admit dead letters gets them",
        LETTERS,
        'if image.topic_config(topic.topic_id, DEAD_LETTERS_ADMITTED) != "true":',
        'if image.topic_config(topic.topic_id, DEAD_LETTERS_ADMITTED) == "":',
        (f"{LETTER_TESTS}::test_dead_letters_wait_until_their_topic_exists_and_admits_them",),
    ),
    Mutant(
        "a share partition is dropped while dead letters are missing",
        LED,
        "is_working = self._saving is not None or self._letter_task is not None",
        "is_working = self._saving is not None",
        (f"{LETTER_TESTS}::test_a_share_partition_without_sessions_stays_loaded_until_its_dead_letters_are_written",),
    ),
    Mutant(
        "a state that cannot be read delays the other partitions of a member",
        FETCH,
        "            elif (code := led.loaded) is None:",
        "            elif (code := await led.ready()) is None:",
        (f"{FETCH_TESTS}::test_one_fetch_loads_a_bounded_number_of_states_at_a_time",),
    ),
    Mutant(
        "one fetch loads all states at once",
        FETCH,
        "if len(loading) >= self._limits.share_loads_per_fetch and",
        "if False and",
        (f"{FETCH_TESTS}::test_one_fetch_loads_a_bounded_number_of_states_at_a_time",),
    ),
    Mutant(
        "one fetch loads all states at once that could not be loaded before",
        FETCH,
        "and not self._partitions.is_loaded(key):",
        "and self._partitions.known(key) is None:",
        (f"{FETCH_TESTS}::test_one_fetch_loads_a_bounded_number_of_states_again_after_they_failed",),
    ),
    Mutant(
        "a partition that a session forgot stays loaded after the end of the session",
        FETCH,
        "for place in (*session.places, *session.former):",
        "for place in session.places:",
        (f"{FETCH_TESTS}::test_the_end_of_a_session_drops_the_state_of_a_partition_that_the_session_forgot",),
    ),
    Mutant(
        "a share partition is dropped while a member may still acknowledge its records",
        SESSIONS,
        "place in each.places or place in each.former",
        "place in each.places",
        (f"{FETCH_TESTS}::test_a_member_may_acknowledge_records_of_a_partition_that_its_session_forgot",),
    ),
    Mutant(
        "a session uses a state that was reset while dead letters were missing",
        PARTITIONS,
        " or led.leader is not found.leader or led.lingers:",
        " or led.leader is not found.leader:",
        (f"{LETTER_TESTS}::test_a_session_that_begins_after_a_reset_reads_the_new_state_despite_missing_dead_letters",),
    ),
    Mutant(
        "a leader is not reminded of letters that another leader left",
        REMINDERS,
        "            if leader == NO_LEADER or len(due.get(leader, ())) >= self._batch_max:\n",
        "            if leader >= NO_LEADER:\n",
        (f"{REMINDER_TESTS}::test_a_leader_is_reminded_of_a_state_that_did_not_change_between_two_looks",),
    ),
    Mutant(
        "a leader is reminded of states that it changes",
        REMINDERS,
        "leader_of(key) if state.snapshot_epoch == epoch else NO_LEADER",
        "leader_of(key)",
        (f"{REMINDER_TESTS}::test_a_leader_that_changes_the_state_is_not_reminded",),
    ),
    Mutant(
        "the same share partitions are always reminded first",
        REMINDERS,
        "{**kept, **found, **reminded}",
        "{**reminded, **kept, **found}",
        (f"{REMINDER_TESTS}::test_reminders_above_the_batch_limit_rotate_through_all_share_partitions",),
    ),
    Mutant(
        "a share partition with very many changes ends the broker",
        MACHINE,
        "0 if changed.snapshot_epoch == INT32_MAX else changed.snapshot_epoch + 1",
        "changed.snapshot_epoch + 1",
        (f"{STATE_TESTS}::test_the_snapshot_epoch_wraps_to_zero_after_its_maximum",),
    ),
    Mutant(
        "a write of very many complete deliveries ends the broker",
        MACHINE,
        "if changed.done_count > INT32_MAX:",
        "if changed.done_count > OFFSET_MAX:",
        (f"{STATE_TESTS}::test_invalid_requests_change_nothing",),
    ),
    Mutant(
        "a fetch on a connection that was cut waits on after the end of its session",
        FETCH,
        "            while self._sessions.is_current(session):\n",
        "            while True:\n",
        (f"{FETCH_TESTS}::test_a_fetch_whose_session_has_ended_acquires_nothing",),
    ),
    Mutant(
        "a fetch acquires what it has read for a session that was replaced meanwhile",
        LED,
        "            if not is_wanted():\n",
        "            if False:\n",
        (f"{FETCH_TESTS}::test_a_fetch_whose_session_is_replaced_while_it_reads_acquires_nothing",),
    ),
    Mutant(
        "a fetch loads share partitions for a session that ended while it read",
        FETCH,
        "            if not self._sessions.is_current(session):\n                return (), is_any_loaded",
        "            if False:\n                return (), is_any_loaded",
        (f"{FETCH_TESTS}::test_a_fetch_whose_session_ends_while_it_reads_loads_nothing",),
    ),
    Mutant(
        "acknowledgements load share partitions after the end of their session",
        FETCH,
        "self._sessions.of(session.key)  # a newer",
        "self._sessions.of(session.key) or session  # a newer",
        (f"{FETCH_TESTS}::test_an_acknowledgement_whose_session_ends_while_it_waits_leaves_no_share_partition_loaded",),
    ),
    Mutant(
        "a share partition whose state is no longer its own stays loaded",
        LED,
        "                    self.end()  # another leader owns the state, or the state was initialized again\n"
        "                    self._report_idle()\n",
        "                    self.end()  # another leader owns the state, or the state was initialized again\n",
        (f"{FETCH_TESTS}::test_a_save_that_is_refused_after_the_session_ended_leaves_no_share_partition_loaded",),
    ),
    Mutant(
        "a share partition without a state stays loaded for its letters",
        LED,
        "                    self._letter_task = None\n                    self.end()\n"
        "                    self._report_idle()\n",
        "                    self._letter_task = None\n                    self.end()\n",
        (f"{LETTER_TESTS}::test_a_deleted_group_with_missing_dead_letters_leaves_no_share_partition_loaded",),
    ),
    Mutant(
        "new partitions wait after states were verified",
        SERVICE,
        "        elif group.initializing_until_ms:\n",
        "        elif False:\n",
        (f"{GROUP_TESTS}::test_new_partitions_are_initialized_at_once_after_existing_states_were_verified",),
    ),
    Mutant(
        "a lock that ended with the leadership counts as an invalid request",
        PARTITION,
        "                if first >= self.end_offset:\n",
        "                if first < 0:\n",
        (f"{UNIT}::test_acknowledging_records_that_an_earlier_leader_delivered_is_an_invalid_record_state",),
    ),
    Mutant(
        "the deletion of states of a deleted topic is not repeated",
        SERVICE,
        "or group.initializing_until_ms or group.deleting_until_ms:",
        "or group.initializing_until_ms:",
        (f"{GROUP_TESTS}::test_the_states_of_a_deleted_topic_are_deleted",),
    ),
    Mutant(
        "a group forgets states that were not deleted",
        GROUP_STATES,
        "        if deleted := _of(effect.group, effect.partitions, done):\n",
        "        if deleted := effect.partitions:\n",
        (f"{GROUP_STATE_TESTS}::test_the_group_lists_a_state_of_a_deleted_topic_until_its_deletion_succeeds",),
    ),
    Mutant(
        "the deletion of the offsets of a topic deletes those of a former topic instead",
        GROUP_STATES,
        "self._forget(group, tuple(known[topic]))",
        "self._forget(group, tuple(known[topic][-1:]))",
        (
            f"{GROUP_STATE_TESTS}::test_deleting_the_offsets_of_a_topic_also_deletes_those_of_deleted_topics_of_that_name",
        ),
    ),
    Mutant(
        "the offsets of a former topic hide those of a topic",
        GROUP_STATES,
        "        topics = known if wanted is None",
        "        topics = list(listed.partitions) if wanted is None",
        (f"{GROUP_STATE_TESTS}::test_describing_offsets_shows_the_existing_topic_not_deleted_topics_of_that_name",),
    ),
    Mutant(
        "a share group remembers all topics that it ever had",
        SERVICE,
        "                group.verified.pop(topic_id, None)\n",
        "                pass\n",
        (f"{GROUP_TESTS}::test_the_states_of_a_deleted_topic_are_deleted",),
    ),
    Mutant(
        "states of an interrupted deletion stay missing",
        SERVICE,
        "            known = noted & group.verified.get(topic.topic_id, frozenset())\n",
        "            known = noted\n",
        (f"{GROUP_TESTS}::test_the_first_member_initializes_states_again_after_an_interrupted_deletion",),
    ),
    Mutant(
        "a late report hides that states were deleted",
        SERVICE,
        "            group.verified.clear()  # a late report",
        "            pass  # a late report",
        (f"{GROUP_TESTS}::test_a_late_report_of_an_initialization_does_not_hide_the_deletion_of_the_states",),
    ),
    Mutant(
        "a failover initializes all states again",
        "broker/core/coordinator/share/groups.py",
        "        if self.members:\n            self.verified =",
        "        if False:\n            self.verified =",
        (f"{GROUP_TESTS}::test_a_failover_with_members_initializes_no_state_again",),
    ),
    Mutant(
        "a missing state ends Java clients",
        LED,
        "return code if code in _OF_LOADS else KafkaCode.REPLICA_NOT_AVAILABLE",
        "return KafkaCode.REPLICA_NOT_AVAILABLE if code in UNAVAILABLE else code",
        (f"{FETCH_TESTS}::test_a_fetch_reports_a_state_that_it_could_not_read",),
    ),
    Mutant(
        "a share coordinator does not know which letters are missing",
        MACHINE,
        "            self._archiving[key] = state\n",
        "            pass\n",
        (f"{STATE_TESTS}::test_states_with_missing_dead_letters_are_known_before_and_after_a_failover",),
    ),
    Mutant(
        "a share coordinator sends no reminders",
        "broker/coordinator/shares.py",
        '        self._reminding = group.create_task(self._reminders.run(), name="share-reminders")\n',
        "",
        (f"{REMINDED_TESTS}::test_missing_dead_letters_of_an_earlier_leader_are_written_although_no_member_fetches",),
    ),
    Mutant(
        "a share partition that was loaded for its letters stays loaded",
        LED,
        "        self._on_available()\n        self._report_idle()\n",
        "        self._on_available()\n",
        (f"{REMINDED_TESTS}::test_a_reminder_without_a_missing_dead_letter_leaves_no_share_partition_loaded",),
    ),
    Mutant(
        "a reminder replaces the share partition that members use",
        PARTITIONS,
        "        if led is None or led.has_ended or led.leader is not found.leader:\n",
        "        if True:\n",
        (
            f"{REMINDED_TESTS}::test_a_reminder_loads_no_share_partition_that_is_already_loaded_or_not_led_by_this_broker",
        ),
    ),
    Mutant(
        "a late release makes a record available that has a dead letter",
        STATES,
        "return state.is_done or (state is Delivery.ARCHIVING and not changed.is_done)",
        "return state.is_done",
        (f"{STATE_TESTS}::test_a_release_that_arrives_late_does_not_undo_a_dead_letter",),
    ),
    Mutant(
        "a late release makes an accepted record available again",
        STATES,
        "            runs.assign(*run)\n",
        "            pass\n",
        (f"{STATE_TESTS}::test_a_release_that_arrives_late_does_not_undo_an_acceptance",),
    ),
    Mutant(
        "the stored start moves back",
        STATES,
        "    start = max(start_offset, new_start)\n",
        "    start = start_offset if new_start < 0 else new_start\n",
        (f"{STATE_TESTS}::test_merging_keeps_a_durable_save_whose_answer_was_lost",),
    ),
    Mutant(
        "a deposed leader writes the state",
        MACHINE,
        "case WriteState() if request.leader_epoch < _leader_epoch(known):",
        "case WriteState() if request.leader_epoch < -1:",
        (f"{STATE_TESTS}::test_a_deposed_leader_can_neither_read_nor_write",),
    ),
    Mutant(
        "a repeated initialization deletes the state",
        MACHINE,
        "case InitializeState() if known is not None and _is_repeated(request, known):",
        "case InitializeState() if request.start_offset < NO_START:",
        (f"{STATE_TESTS}::test_a_repeated_initialization_keeps_the_state",),
    ),
    Mutant(
        "a reset of offsets that arrives late undoes deliveries",
        MACHINE,
        "request.start_offset == NO_START or request.state_epoch == known.state_epoch",
        "request.start_offset == NO_START",
        (f"{STATE_TESTS}::test_a_reset_that_arrives_again_does_not_undo_deliveries",),
    ),
    Mutant(
        "a share group is deleted while its states exist",
        SERVICE,
        "return KafkaCode.COORDINATOR_NOT_AVAILABLE if group.initialized else KafkaCode.NONE",
        "return KafkaCode.NONE",
        (f"{GROUP_TESTS}::test_a_group_is_deleted_only_when_it_has_neither_members_nor_states",),
    ),
    Mutant(
        "a repeated request of a share session is applied",
        SESSIONS,
        "            if epoch != session.next_epoch:\n",
        "            if epoch > session.next_epoch:\n",
        (f"{SESSION_TESTS}::test_a_request_whose_session_epoch_is_not_the_next_one_is_refused",),
    ),
    Mutant(
        "a change of offsets takes the name of a consumer group",
        SERVICE,
        "        if is_taken:\n            return ListShareStatesResponse",
        "        if False:\n            return ListShareStatesResponse",
        (f"{GROUP_TESTS}::test_a_reset_creates_no_group_of_a_bad_or_taken_name",),
    ),
    Mutant(
        "a change of no offsets creates a share group",
        SERVICE,
        "        if not request.partitions:\n",
        "        if False:\n",
        (f"{GROUP_TESTS}::test_a_reset_without_partitions_creates_no_group",),
    ),
    Mutant(
        "changes of offsets create any number of share groups",
        SERVICE,
        "            return ListShareStatesResponse(*self._too_many())\n",
        "            pass\n",
        (f"{GROUP_TESTS}::test_a_reset_creates_no_group_above_the_limit",),
    ),
    Mutant(
        "a range without records is passed over while records before it are in flight",
        "broker/core/share/partition.py",
        "if first <= self.start_offset == self.end_offset < end:",
        "if first <= self.end_offset < end:",
        (f"{UNIT}::test_a_long_range_without_records_waits_for_the_records_before_it",),
    ),
)
