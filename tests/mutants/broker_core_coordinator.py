"""Mutants of broker/core/coordinator."""

from __future__ import annotations

from tests.mutants import Mutant

FIELDS = "broker/core/coordinator/fields.py"
GROUP = "broker/core/coordinator/group.py"
MACHINE = "broker/core/coordinator/group_machine.py"
MEMBERSHIP = "broker/core/coordinator/membership.py"
OFFSETS = "broker/core/coordinator/offsets.py"
OFFSET_REQUESTS = "broker/core/coordinator/offset_requests.py"
REBALANCE = "broker/core/coordinator/rebalance.py"
RECORDS = "broker/core/coordinator/records.py"
SUBSCRIPTION = "broker/core/coordinator/subscription.py"
SWEEP = "broker/core/coordinator/sweep.py"

MACHINE_TESTS = "tests/unit/broker/core/coordinator/test_group_machine.py"
OFFSET_TESTS = "tests/unit/broker/core/coordinator/test_group_offsets.py"
REBALANCE_TESTS = "tests/unit/broker/core/coordinator/test_rebalance.py"
EXPLANATIONS = "broker/core/coordinator/explanations.py"
EXPLANATION_TESTS = "tests/unit/broker/core/coordinator/test_explanations.py"
STATIC_TESTS = "tests/unit/broker/core/coordinator/test_static_members.py"
RECORD_TESTS = "tests/unit/broker/core/coordinator/test_records.py"
TRANSACTIONAL = "tests/unit/broker/core/coordinator/test_transactional_offsets.py"
OFFSET_BATCHES = "tests/properties/test_offset_batches.py"
SWEEPS = "tests/unit/broker/core/coordinator/test_sweep.py"
RECREATED = "tests/unit/broker/core/coordinator/test_recreated_topics.py"

MUTANTS = (
    Mutant(
        "a member without a name replaces the one with an empty name",
        GROUP,
        "member_id = None if instance_id is None else self.static.get(instance_id)",
        'member_id = self.static.get(instance_id or "")',
        (f"{STATIC_TESTS}::test_a_member_without_an_instance_id_never_replaces_one_with_an_empty_instance_id",),
    ),
    Mutant(
        "a producer that names its member adds pending offsets without end",
        MACHINE,
        "if error is KafkaCode.NONE and producer is not None and is_full:",
        "if error is KafkaCode.NONE and producer is not None and is_anonymous and is_full:",
        (f"{TRANSACTIONAL}::test_pending_offsets_are_bounded_with_and_without_a_member_id",),
    ),
    Mutant(
        "a jump of the wall clock expires committed offsets",
        MACHINE,
        "cautious_ms or wall_ms",
        "wall_ms",
        (f"{OFFSET_TESTS}::test_a_jump_of_the_wall_clock_expires_no_offset",),
    ),
    Mutant(
        "a rebalance ends a producer that commits for a member",
        OFFSET_REQUESTS,
        "GroupState.COMPLETING_REBALANCE and not is_transactional:",
        "GroupState.COMPLETING_REBALANCE:",
        (f"{TRANSACTIONAL}::test_a_producer_commits_for_a_member_that_waits_for_its_assignment",),
    ),
    Mutant(
        "a load ignores that a later offset supersedes one that is pending",
        MACHINE,
        "        if self._pending_offsets.count:  # a batch",
        "        if False:  # a batch",
        (f"{TRANSACTIONAL}::test_a_load_keeps_the_order_of_a_pending_offset_and_a_later_commit",),
    ),
    Mutant(
        "offsets that a load leaves to Python are not counted",
        OFFSETS,
        "        added = apply_offsets(records, self._groups, other)\n        self.count += added",
        "        count = self.count\n        self.count = count + apply_offsets(records, self._groups, other)",
        (f"{OFFSET_BATCHES}::test_compiled_replay_of_batches_gives_the_same_state_as_replay_of_single_records",),
    ),
    Mutant(
        "a search reuses the answers of an earlier slice about topics",
        SWEEP,
        "        self._endings.clear()  # topics may change before the next slice\n",
        "",
        (f"{RECREATED}::test_a_later_search_checks_again_whether_a_topic_exists",),
    ),
    Mutant(
        "a search passes over the offsets of partitions that do not exist",
        SWEEP,
        "            return ()\n",
        '            return b""\n',
        (f"{RECREATED}::test_a_later_search_checks_again_whether_a_topic_exists",),
    ),
    Mutant(
        "a search misses the end of a large group",
        SWEEP,
        "        for first in range(0, len(places), OFFSETS_AT_ONCE_MAX):",
        "        for first in range(0, min(1, len(places))):",
        (f"{SWEEPS}::test_a_search_reaches_each_offset_of_a_large_group",),
    ),
    Mutant(
        "a slice of a search has no limit",
        SWEEP,
        "            left -= self._advance()",
        "            self._advance()",
        (f"{SWEEPS}::test_a_search_that_deletes_no_offset_is_still_split_into_slices",),
    ),
    Mutant(
        "a step of a search deletes more than fits into a batch",
        SWEEP,
        "                    self._append(key_of(name, place))\n                yield 1\n            yield max",
        "                    self._append(key_of(name, place))\n            yield max",
        (f"{SWEEPS}::test_deletions_of_one_group_stay_within_the_batch_size",),
    ),
    Mutant(
        "a search deletes an offset that was deleted since it was found",
        SWEEP,
        "of_topics, self._offsets.has)",
        "of_topics, lambda name, place: True)",
        (f"{SWEEPS}::test_an_offset_that_was_deleted_meanwhile_gets_no_second_tombstone",),
    ),
    Mutant(
        "a search in progress keeps a dropped machine in memory",
        SWEEP,
        "self._deleting_missing = self._expiring = None\n\n    def _advance",
        "self._expiring = None\n\n    def _advance",
        (f"{SWEEPS}::test_the_sweeper_of_a_closed_machine_is_freed_without_garbage_collection",),
    ),
    Mutant(
        "an offset expires one search too late",
        SWEEP,
        "if commit_ms <= newest_ms or",
        "if commit_ms < newest_ms or",
        (f"{OFFSET_TESTS}::test_an_offset_expires_at_the_end_of_its_retention",),
    ),
    Mutant(
        "an offset expires while a transaction replaces it, which then commits in vain",
        SWEEP,
        "        if value is None or self._pending.has(name, place):\n            return False\n        group",
        "        if value is None:\n            return False\n        group",
        (f"{TRANSACTIONAL}::test_an_offset_does_not_expire_while_a_transaction_replaces_it",),
    ),
    Mutant(
        "the search for offsets of deleted topics undoes an open transaction",
        SWEEP,
        "        if value is None or self._pending.has(name, place):\n            return False\n        topic",
        "        if value is None:\n            return False\n        topic",
        (f"{RECREATED}::test_the_search_for_old_offsets_does_not_undo_an_open_transaction",),
    ),
    Mutant(
        "a group that is being deleted takes offsets of transactions",
        MACHINE,
        "            is_dead = group is not None and group.state is GroupState.DEAD\n",
        "            is_dead = False\n",
        (f"{TRANSACTIONAL}::test_a_group_that_is_being_deleted_takes_no_pending_offsets",),
    ),
    Mutant(
        "a fetch returns the offset of a deleted topic of the same name",
        OFFSET_REQUESTS,
        "return origin is not None and value.topic_id not in (None, origin)",
        "return False",
        (
            f"{RECREATED}::test_a_coordinator_that_loads_after_a_topic_was_recreated_has_no_offsets_of_the_deleted_topic",
        ),
    ),
    Mutant(
        "the offsets of a deleted topic stay if there is another one of its name",
        SWEEP,
        "return not exists or is_of_other_topic(value, self._image.origin(topic))",
        "return not exists",
        (
            f"{RECREATED}::test_a_coordinator_that_loads_after_a_topic_was_recreated_has_no_offsets_of_the_deleted_topic",
        ),
    ),
    Mutant(
        "an offset without a topic id counts as one of another topic",
        OFFSET_REQUESTS,
        "return origin is not None and value.topic_id not in (None, origin)",
        "return origin is not None and value.topic_id != origin",
        (f"{RECREATED}::test_offsets_of_earlier_releases_have_no_topic_id_and_stay",),
    ),
    Mutant(
        "an offset is stored without the id of its topic",
        RECORDS,
        "    if value.expire_ms == NO_TIME and value.topic_id is not None:",
        "    if value.expire_ms == NO_TIME and value.topic_id is None:",
        (f"{RECREATED}::test_the_topic_id_is_stored_in_kafkas_field_of_an_offset_record",),
    ),
    Mutant(
        "the offset of a transaction stays although its topic was deleted meanwhile",
        MACHINE,
        "                self._sweeper.transaction_ended(places)\n",
        "",
        (f"{RECREATED}::test_a_pending_offset_of_the_deleted_topic_is_not_committed_to_the_recreated_topic",),
    ),
    Mutant(
        "a commit by the id of a deleted topic counts for the next one of its name",
        OFFSET_REQUESTS,
        "    if _is_other_topic(offset.topic, offset.topic_id, topics):",
        "    if False:",
        (f"{RECREATED}::test_a_commit_by_the_id_of_the_deleted_topic_is_refused",),
    ),
    Mutant(
        "a fetch by the id of a deleted topic gets the offset of the next one of its name",
        OFFSET_REQUESTS,
        "        if _is_other_topic(each.topic, each.topic_id, topics):",
        "        if False:",
        (f"{RECREATED}::test_a_fetch_by_the_id_of_the_deleted_topic_gets_no_offset_of_the_recreated_one",),
    ),
    Mutant(
        "an explanation awaits the members that have joined",
        EXPLANATIONS,
        "if member.join_call is None]",
        "if member.join_call is not None]",
        (f"{EXPLANATION_TESTS}::test_a_new_member_is_reported_as_the_reason_of_the_rebalance_and_as_the_last_to_join",),
    ),
    Mutant(
        "a commit to an empty group does not count as its use",
        EXPLANATIONS,
        "for at_ms in (group.state_ms, last_commit_ms)",
        "for at_ms in (group.state_ms,)",
        (
            f"{EXPLANATION_TESTS}::test_an_empty_group_reports_when_its_last_member_left_or_its_last_offset_was_committed",
        ),
    ),
    Mutant(
        "the leader of a group that joins again counts as a follower",
        MEMBERSHIP,
        "is_leader = member.member_id == group.leader and not changed",
        "is_leader = False",
        (f"{EXPLANATION_TESTS}::test_each_reason_of_a_rebalance_names_the_member_that_caused_it",),
    ),
    Mutant(
        "a replaced static member makes the record of its group too large",
        MEMBERSHIP,
        " and rebalance.fits(step, group, _assigned_bytes(group)):",
        ":",
        (f"{STATIC_TESTS}::test_a_replacement_whose_metadata_exceeds_the_group_record_begins_a_rebalance",),
    ),
    Mutant(
        "a coordinator keeps the offsets of topics that were deleted before it was loaded",
        MACHINE,
        "        self._sweeper.delete_missing()\n        return step.build()\n",
        "        return step.build()\n",
        (
            f"{OFFSET_TESTS}::test_a_new_coordinator_deletes_in_slices_the_offsets_of_topics_deleted_before_its_load",
            f"{OFFSET_TESTS}::test_a_new_coordinator_completes_the_deletion_of_offsets_that_its_predecessor_began",
        ),
    ),
    Mutant(
        "bytes after the last field are accepted",
        FIELDS,
        "if self._at != len(self._data):",
        "if self._at > len(self._data):",
        (f"{RECORD_TESTS}::test_a_truncated_or_overlong_group_record_is_refused",),
    ),
    Mutant(
        "a value of a newer version is read as the last known one",
        RECORDS,
        "if not 0 <= version <= _FLEXIBLE:",
        "if not 0 <= version:",
        (f"{RECORD_TESTS}::test_an_offset_record_of_an_unknown_version_is_refused",),
    ),
    Mutant(
        "a record key of an unknown type is refused",
        RECORDS,
        "    else:\n        return None",
        '    else:\n        raise BadRecord("key")',
        (f"{RECORD_TESTS}::test_a_key_of_an_unknown_type_is_not_decoded",),
    ),
    Mutant(
        "an own expiry time is not written",
        RECORDS,
        "if value.expire_ms == NO_TIME:",
        "if value.expire_ms >= NO_TIME:",
        (f"{RECORD_TESTS}::test_values_are_written_in_kafkas_format",),
    ),
    Mutant(
        "a request of an old generation is accepted",
        MEMBERSHIP,
        "    if request.generation != group.generation:\n        return",
        "    if request.generation > group.generation:\n        return",
        (f"{REBALANCE_TESTS}::test_requests_with_a_wrong_generation_member_or_group_are_refused",),
    ),
    Mutant(
        "a commit of an old generation is accepted",
        OFFSET_REQUESTS,
        "request.generation != group.generation:",
        "request.generation > group.generation:",
        (f"{REBALANCE_TESTS}::test_requests_with_a_wrong_generation_member_or_group_are_refused",),
    ),
    Mutant(
        "a group becomes Stable before its record exists",
        REBALANCE,
        "    group.become(GroupState.STABLE)\n    store(step, group)\n",
        "    group.become(GroupState.STABLE)\n",
        (f"{REBALANCE_TESTS}::test_each_member_gets_the_assignment_that_the_leader_sent_for_it",),
    ),
    Mutant(
        "a group that becomes empty is not stored",
        REBALANCE,
        "    group.become(GroupState.EMPTY)\n    store(step, group)\n",
        "    group.become(GroupState.EMPTY)\n",
        (f"{REBALANCE_TESTS}::test_a_group_whose_last_member_left_is_logged_as_empty",),
    ),
    Mutant(
        "a replacement of a static member is not stored",
        MEMBERSHIP,
        "        rebalance.store(step, group)\n        step.answer(call, _replaced",
        "        step.answer(call, _replaced",
        (f"{STATIC_TESTS}::test_a_replacement_survives_a_change_of_the_coordinator",),
    ),
    Mutant(
        "the stored generation keeps the fenced process of a static member",
        MEMBERSHIP,
        "    rebalance.store_instance(step, group, old.instance_id, member.member_id)\n",
        "",
        (f"{STATIC_TESTS}::test_a_change_of_the_coordinator_during_a_rebalance_does_not_fence_the_latest_process",),
    ),
    Mutant(
        "an old process of a static member is not fenced",
        GROUP,
        "if current is not None and current != member_id:",
        "if current is None and current != member_id:",
        (f"{STATIC_TESTS}::test_the_process_that_was_replaced_is_fenced",),
    ),
    Mutant(
        "a rebalance does not wait for a member id that was just given out",
        REBALANCE,
        "        and not group.pending\n",
        "",
        (f"{REBALANCE_TESTS}::test_a_rebalance_waits_for_a_member_id_that_was_just_given_out",),
    ),
    Mutant(
        "a call that waits lets the session of its member end",
        REBALANCE,
        "    if member.knows_id:\n        member.expires_ms = None\n",
        "    if member.knows_id:\n        group.wake(step.now_ms)\n",
        (f"{REBALANCE_TESTS}::test_a_member_that_waits_in_join_does_not_expire",),
    ),
    Mutant(
        "a repeated join leaves the earlier call without an answer",
        REBALANCE,
        "    _answer_join(step, group, member, again)\n",
        "    group.waiting -= member.join_call is not None\n",
        (f"{REBALANCE_TESTS}::test_a_repeated_join_answers_the_earlier_join_with_rebalance_in_progress",),
    ),
    Mutant(
        "members without SyncGroup stay forever",
        REBALANCE,
        "    group.wake(group.sync_deadline_ms)\n    for member",
        "    group.sync_deadline_ms += 10**9\n    for member",
        (f"{REBALANCE_TESTS}::test_members_that_never_send_sync_are_removed",),
    ),
    Mutant(
        "a protocol that one member lacks is chosen",
        GROUP,
        "if self.supported[name] == len(self.members))",
        "if self.supported[name] >= 1)",
        (f"{REBALANCE_TESTS}::test_the_commonly_supported_protocol_with_the_most_votes_is_used",),
    ),
    Mutant(
        "an unchanged follower causes a rebalance",
        MEMBERSHIP,
        "and not changed and member.member_id != group.leader:",
        "and not changed and member.member_id == group.leader:",
        (f"{REBALANCE_TESTS}::test_an_unchanged_follower_that_joins_again_causes_no_rebalance",),
    ),
    Mutant(
        "a heartbeat does not renew the session",
        MEMBERSHIP,
        "        group.renew(group.members[request.member_id], step.now_ms)\n        if group",
        "        if group",
        (f"{REBALANCE_TESTS}::test_a_member_whose_session_ends_is_removed",),
    ),
    Mutant(
        "a tick forgets the deadlines of a group that was queued again",
        MACHINE,
        "                group.wake_ms = group.next_deadline()\n",
        "                group.wake_ms = None\n",
        (f"{REBALANCE_TESTS}::test_a_member_whose_session_ends_is_removed",),
    ),
    Mutant(
        "a full tick goes on",
        MACHINE,
        "            if not step.is_full and not (is_matching",
        "            if (not step.is_full or group.members) and not (is_matching",
        (f"{MACHINE_TESTS}::test_a_tick_stops_when_its_batch_is_full_and_later_ticks_continue",),
    ),
    Mutant(
        "offsets expire during a rebalance",
        SWEEP,
        "if group.state is not GroupState.STABLE or group.protocol_type",
        "if group.protocol_type",
        (f"{OFFSET_TESTS}::test_no_offset_expires_during_a_rebalance",),
    ),
    Mutant(
        "offsets of a subscribed topic expire",
        SWEEP,
        "offset_place(place)[0] not in subscribed",
        "offset_place(place)[0] is not None",
        (f"{OFFSET_TESTS}::test_offsets_of_a_subscribed_topic_do_not_expire_while_the_group_has_members",),
    ),
    Mutant(
        "offsets expire by their commit although the group emptied later",
        SWEEP,
        "            due_ms = max(due_ms, group.state_ms",
        "            due_ms = min(due_ms, group.state_ms",
        (f"{OFFSET_TESTS}::test_the_time_since_a_group_is_empty_survives_a_change_of_the_coordinator",),
    ),
    Mutant(
        "a commit for a topic whose offsets are being deleted is accepted",
        SWEEP,
        "return topic in self._topics or topic in self._topics_later",
        "return topic in self._topics_later",
        (f"{OFFSET_TESTS}::test_offsets_of_a_deleted_topic_are_deleted_in_slices",),
    ),
    Mutant(
        "a commit that does not fit into a batch is appended",
        OFFSET_REQUESTS,
        "if size_bytes > step.limits.batch_max_bytes:",
        "if size_bytes > 8 * step.limits.batch_max_bytes:",
        (f"{OFFSET_TESTS}::test_a_commit_that_does_not_fit_into_a_batch_changes_nothing",),
    ),
    Mutant(
        "metadata that is not a subscription protects no offset",
        OFFSET_REQUESTS,
        "if subscribed is None or topic in subscribed:",
        "if subscribed is not None and topic in subscribed:",
        (f"{OFFSET_TESTS}::test_member_metadata_that_is_not_a_subscription_protects_all_offsets_from_deletion",),
    ),
    Mutant(
        "a damaged offset is kept",
        OFFSETS,
        "        check_offset(value)\n        if offsets is None:",
        "        if offsets is None:",
        (f"{OFFSET_TESTS}::test_damaged_records_are_refused_and_change_nothing",),
    ),
    Mutant(
        "damaged metadata of a member raises",
        SUBSCRIPTION,
        "frozenset(_read_names(reader))\n    except BadRecord:",
        "frozenset(_read_names(reader))\n    except KeyError:",
        (f"{OFFSET_TESTS}::test_the_topics_of_a_subscription_are_read_unless_it_is_damaged",),
    ),
    Mutant(
        "offsets of a group that is being deleted are reported",
        OFFSET_REQUESTS,
        "    if group is not None and group.state is GroupState.DEAD:\n        # Some",
        "    if group is not None and group.state is GroupState.STABLE:\n        # Some",
        (f"{OFFSET_TESTS}::test_a_large_group_is_deleted_in_slices_and_refuses_requests_meanwhile",),
    ),
    Mutant(
        "a deletion does not stop at a full batch",
        SWEEP,
        "self.is_busy and not step.is_full:",
        "self.is_busy:",
        (f"{OFFSET_TESTS}::test_a_large_group_is_deleted_in_slices_and_refuses_requests_meanwhile",),
    ),
    Mutant(
        "a call whose client disconnected is answered",
        MACHINE,
        "rebalance.hang_up(step, group, group.members[member_id])",
        "rebalance.answer_sync(step, group, group.members[member_id], SyncGroupResponse(KafkaCode.NONE))",
        (f"{REBALANCE_TESTS}::test_a_client_that_disconnected_in_sync_keeps_its_session",),
    ),
    Mutant(
        "assignments do not count for the size of a group's record",
        REBALANCE,
        "return group.record_bytes + assigned_bytes <= step",
        "return group.record_bytes <= step",
        (f"{REBALANCE_TESTS}::test_assignments_that_do_not_fit_into_a_record_are_refused",),
    ),
    Mutant(
        "a static member that missed a rebalance must send SyncGroup in time",
        REBALANCE,
        "group.unsynced.update(each.member_id for each in group.members.values() if each.join_call is not None)",
        "group.unsynced.update(group.members)",
        (f"{STATIC_TESTS}::test_a_static_member_stays_through_a_rebalance_that_it_misses",),
    ),
    Mutant(
        "the topics of a group are not computed again after a member changed",
        GROUP,
        "        self._topics = None\n        for name in member.protocol_names",
        "        for name in member.protocol_names",
        (f"{OFFSET_TESTS}::test_the_changed_subscription_of_a_restarted_static_member_protects_its_new_topics",),
    ),
    Mutant(
        "a member whose client disconnected counts as joined",
        REBALANCE,
        "    group.waiting -= member.join_call is not None\n    member.join_call = member.sync_call = None",
        "    member.join_call = member.sync_call = None",
        (f"{REBALANCE_TESTS}::test_a_client_that_disconnected_in_join_counts_as_not_joined",),
    ),
    Mutant(
        "a retention beyond all times ends the process",
        OFFSET_REQUESTS,
        "min(step.wall_ms + request.retention_ms, _TIME_MAX_MS)",
        "step.wall_ms + request.retention_ms",
        (f"{OFFSET_TESTS}::test_an_offset_with_the_largest_retention_time_does_not_expire",),
    ),
    Mutant(
        "a closed coordinator of transactions is in a reference cycle",
        "broker/core/coordinator/transaction_machine.py",
        "Scopes(self._ids, self._order_markers, limits)",
        "Scopes(self._ids, lambda *all_: self._order_markers(*all_), limits)",
        (
            "tests/unit/broker/core/coordinator/test_scopes.py::test_a_closed_machine_is_freed_without_garbage_collection",
        ),
    ),
    Mutant(
        "a later coordinator forgets the markers of a decision",
        "broker/core/coordinator/transaction_machine.py",
        "            if value.state.is_preparing:\n                self._order_markers(step, name, value)\n",
        "            if False:\n                self._order_markers(step, name, value)\n",
        (
            "tests/unit/broker/core/coordinator/test_transaction_machine.py::test_a_later_coordinator_orders_the_markers_of_a_decision_again",
        ),
    ),
    Mutant(
        "a transaction completes with its first marker",
        "broker/core/coordinator/transaction_machine.py",
        "        if pending:\n            return\n",
        "",
        (
            "tests/unit/broker/core/coordinator/test_transaction_machine.py::test_a_transaction_commits_once_every_partition_has_its_marker",
        ),
    ),
    Mutant(
        "a late report completes the next transaction",
        "broker/core/coordinator/transaction_machine.py",
        "        if request.producer != value.producer:\n            return\n",
        "",
        (
            "tests/unit/broker/core/coordinator/test_transaction_machine.py::test_a_late_report_of_markers_does_not_complete_the_next_transaction",
        ),
    ),
    Mutant(
        "an aborted producer is not fenced",
        "broker/core/coordinator/transaction_machine.py",
        "            producer_epoch=epoch,\n            state=_State.PREPARE_ABORT,",
        "            state=_State.PREPARE_ABORT,",
        (
            "tests/unit/broker/core/coordinator/test_transaction_machine.py::test_a_new_producer_aborts_the_open_transaction_and_fences_the_old_one",
        ),
    ),
    Mutant(
        "a verification adds the partition",
        "broker/core/coordinator/transaction_machine.py",
        "        if request.verify_only:\n",
        "        if False:\n",
        (
            "tests/unit/broker/core/coordinator/test_transaction_machine.py::test_only_partitions_of_the_open_transaction_are_confirmed",
        ),
    ),
    Mutant(
        "a client continues with the epoch that only markers have",
        "broker/core/coordinator/transaction_machine.py",
        "if value.producer_epoch > EPOCH_MAX:\n",
        "if value.producer_epoch > EPOCH_MAX + 1:\n",
        (
            "tests/unit/broker/core/coordinator/test_transaction_version_2.py::test_a_client_with_the_epoch_after_the_last_one_is_fenced",
        ),
    ),
    Mutant(
        "an open transaction with the epoch that only markers have ends the broker",
        "broker/core/coordinator/transaction_machine.py",
        "        if epoch > EPOCH_MAX + 1:  # an earlier",
        "        if epoch > EPOCH_MAX + 2:  # an earlier",
        (
            "tests/unit/broker/core/coordinator/test_transaction_version_2.py::test_a_transaction_that_has_the_epoch_after_the_last_one_is_aborted",
        ),
    ),
    Mutant(
        "an epoch runs past its last value",
        "broker/core/coordinator/transaction_machine.py",
        "if value.producer_epoch >= EPOCH_MAX:",
        "if False:",
        (
            "tests/unit/broker/core/coordinator/test_transaction_machine.py::test_an_exhausted_epoch_is_followed_by_another_producer_id",
        ),
    ),
    Mutant(
        "the time of a transaction begins anew with a partition",
        "broker/core/coordinator/transaction_machine.py",
        "started_ms=step.wall_ms if is_new else value.started_ms",
        "started_ms=step.wall_ms",
        (
            "tests/unit/broker/core/coordinator/test_transaction_machine.py::test_a_transaction_is_aborted_when_its_time_is_up",
        ),
    ),
    Mutant(
        "an open transaction expires",
        "broker/core/coordinator/transaction_machine.py",
        "if value is None or value.state is _State.ONGOING or value.state.is_preparing:",
        "if value is None:",
        (
            "tests/unit/broker/core/coordinator/test_transaction_machine.py::test_a_transactional_id_with_an_open_transaction_does_not_expire",
        ),
    ),
    Mutant(
        "readers of stable offsets do not learn of pending offsets",
        "broker/core/coordinator/group_machine.py",
        "self._pending_offsets.places(request.group) if require_stable else frozenset()",
        "frozenset()",
        (
            "tests/unit/broker/core/coordinator/test_transactional_offsets.py::test_an_offset_becomes_visible_with_the_marker",
        ),
    ),
    Mutant(
        "aborted offsets become visible",
        "broker/core/coordinator/transactional_offsets.py",
        "            if is_commit and not pending.is_superseded:\n",
        "            if not pending.is_superseded:\n",
        ("tests/unit/broker/core/coordinator/test_transactional_offsets.py::test_an_aborted_offset_is_dropped",),
    ),
    Mutant(
        "a marker overwrites an offset that was committed later",
        "broker/core/coordinator/transactional_offsets.py",
        "            if is_commit and not pending.is_superseded:\n",
        "            if is_commit:\n",
        (
            "tests/unit/broker/core/coordinator/test_transactional_offsets.py"
            "::test_an_offset_that_was_committed_later_is_not_overwritten_by_the_marker",
        ),
    ),
    Mutant(
        "a later batch begins a transaction before the first one",
        "broker/core/producer_state.py",
        "batch.base_sequence > verification.lowest_sequence",
        "batch.base_sequence < 0",
        (
            "tests/unit/broker/core/test_transactions.py::test_a_transaction_begins_with_the_first_batch_that_requested_verification",
        ),
    ),
    Mutant(
        "an end does not raise the epoch",
        "broker/core/coordinator/transaction_machine.py",
        "epoch + 1 if rises else epoch",
        "epoch",
        (
            "tests/unit/broker/core/coordinator/test_transaction_version_2.py::test_an_end_raises_the_epoch_of_client_and_markers",
        ),
    ),
    Mutant(
        "a former epoch ends the next transaction",
        "broker/core/coordinator/transaction_machine.py",
        "value.state in (_State.EMPTY, _State.ONGOING)",
        "value.state in (_State.EMPTY,)",
        (
            "tests/unit/broker/core/coordinator/test_transaction_version_2.py::test_a_former_epoch_cannot_end_the_next_transaction",
        ),
    ),
    Mutant(
        "an exhausted epoch continues with the same producer id",
        "broker/core/coordinator/transaction_machine.py",
        "        if rises and epoch >= EPOCH_MAX:",
        "        if rises and epoch > EPOCH_MAX:",
        (
            "tests/unit/broker/core/coordinator/test_transaction_version_2.py::test_an_exhausted_epoch_continues_with_another_producer_id",
        ),
    ),
    Mutant(
        "a client continues with the epoch beyond the last one",
        "broker/core/coordinator/transaction_machine.py",
        "    if value.producer_epoch > EPOCH_MAX and not",
        "    if False and not",
        (
            "tests/unit/broker/core/coordinator/test_transaction_version_2.py::test_a_producer_at_the_last_epoch_is_fenced_after_its_timeout",
        ),
    ),
    Mutant(
        "a fenced producer continues by an abort",
        "broker/core/coordinator/transaction_machine.py",
        '"a new producer", 0)',
        '"a new producer", value.client_version)',
        (
            "tests/unit/broker/core/coordinator/test_transaction_version_2.py::test_a_producer_that_was_fenced_by_a_new_one_cannot_continue_by_aborting",
        ),
    ),
    Mutant(
        "a fenced producer gets the epoch of its successor",
        "broker/core/coordinator/transaction_machine.py",
        "        self._continued.pop(request.transactional_id, None)\n"
        "        if request.producer != NO_PRODUCER:\n"
        "            self._continued[request.transactional_id] = request.producer",
        "        self._continued[request.transactional_id] = (producer_id, epoch - 1)",
        (
            "tests/unit/broker/core/coordinator/test_transaction_machine.py::test_a_producer_does_not_get_the_epoch_of_the_producer_that_fenced_it",
        ),
    ),
    Mutant(
        "a coordinator forgets the producer id with which a client continues",
        "broker/core/coordinator/transaction_records.py",
        "    if value.next_id != NO_ID:\n        tags[_NEXT_ID] = int64(value.next_id)\n",
        "",
        (
            "tests/unit/broker/core/coordinator/test_transaction_version_2.py::test_an_exhausted_epoch_continues_with_another_producer_id",
        ),
    ),
    Mutant(
        "a client's next producer id is unknown until the markers of the previous one are written",
        "broker/core/coordinator/transaction_machine.py",
        "value.next_id != NO_ID and producer == ProducerKey(value.next_id, 0)",
        "value.next_id != NO_ID and producer == ProducerKey(value.next_id, 1)",
        (
            "tests/unit/broker/core/coordinator/test_transaction_version_2.py::test_the_next_producer_id_waits_for_the_markers_of_the_previous_one",
        ),
    ),
    Mutant(
        "the next transaction ends the one before",
        "broker/core/coordinator/transaction_outcomes.py",
        " and value.producer_epoch == epoch\n",
        "\n",
        (
            "tests/unit/broker/core/coordinator/test_transaction_outcomes.py::test_a_transaction_before_the_current_one_is_reported_as_aborted",
        ),
    ),
    Mutant(
        "a later coordinator loses pending offsets",
        MACHINE,
        "            replay_each(self.replay, records, producer)\n",
        "            pass\n",
        (f"{TRANSACTIONAL}::test_a_later_coordinator_continues_with_pending_offsets",),
    ),
    Mutant(
        "a coordinator reports the current time as that of its load",
        MACHINE,
        "Times(self._loaded_wall_ms, wall_ms)",
        "Times(wall_ms, wall_ms)",
        (f"{EXPLANATION_TESTS}::test_a_new_coordinator_reports_the_time_of_its_load_and_no_earlier_rebalances",),
    ),
    Mutant(
        "a heartbeat before the assignments does not renew the session",
        MEMBERSHIP,
        "        group.renew(group.members[request.member_id], step.now_ms)\n        if group",
        "        if group.state is GroupState.STABLE:\n"
        "            group.renew(group.members[request.member_id], step.now_ms)\n        if group",
        (f"{REBALANCE_TESTS}::test_heartbeats_before_the_assignments_renew_the_session",),
    ),
)
