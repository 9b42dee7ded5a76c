"""Mutants of broker/core/coordinator/consumer."""

from __future__ import annotations

from tests.mutants import Mutant

FOLDER = "broker/core/coordinator/consumer"
TESTS = "tests/unit/broker/core/coordinator/consumer"
GROUPS = f"{TESTS}/test_consumer_groups.py"
GROUP_OFFSETS = f"{TESTS}/test_consumer_group_offsets.py"
GROUP_SESSIONS = f"{TESTS}/test_consumer_group_sessions.py"
GROUP_TOPICS = f"{TESTS}/test_consumer_group_topics.py"
MIGRATION = f"{TESTS}/test_migration.py"
INTERVAL = f"{TESTS}/test_assignment_interval.py"
RECORDS = f"{TESTS}/test_consumer_records.py"
ASSIGNORS = f"{TESTS}/test_assignors.py"
LOST = f"{TESTS}/test_lost_tombstones.py"

GROUP_LIMIT_TESTS = "tests/unit/broker/core/coordinator/test_group_limits.py"

MUTANTS = (
    Mutant(
        "the room for targets leaves out the topics of a regular expression",
        f"{FOLDER}/changes.py",
        "names = group.subscribed_topics().union(value.topics, matched)",
        "names = group.subscribed_topics().union(value.topics)",
        (f"{GROUP_TOPICS}::test_a_member_whose_topics_have_too_many_partitions_is_refused",),
    ),
    Mutant(
        "the room for targets leaves out the id of the member that joins",
        f"{FOLDER}/changes.py",
        "id_bytes = len(member_id.encode()) + sum(",
        "id_bytes = sum(",
        (f"{GROUPS}::test_the_size_limit_of_targets_counts_the_id_of_the_joining_member",),
    ),
    Mutant(
        "the room for targets counts characters of member ids",
        f"{FOLDER}/census.py",
        "_count(self.id_sizes, (len(member_id.encode()),), by)",
        "_count(self.id_sizes, (len(member_id),), by)",
        (f"{GROUPS}::test_the_size_limit_of_targets_counts_the_bytes_of_member_ids",),
    ),
    Mutant(
        "a heartbeat may name a group for which no record has room",
        f"{FOLDER}/heartbeat.py",
        "if len(request.group.encode()) > limits.name_max_bytes:",
        "if False:",
        (f"{GROUPS}::test_an_invalid_join_is_refused_and_creates_no_group",),
    ),
    Mutant(
        "a producer cannot commit the offsets of a member of the newer protocol in its transaction",
        f"{FOLDER}/offset_errors.py",
        "if not (member.is_classic or is_transactional or request.knows_epochs):",
        "if not (member.is_classic or request.knows_epochs):",
        (f"{GROUP_OFFSETS}::test_a_transactional_commit_is_accepted_only_for_a_member_and_its_current_epoch",),
    ),
    Mutant(
        "a producer gets an error for a stale epoch that it does not know",
        f"{FOLDER}/offset_errors.py",
        "is_new = not (member.is_classic or is_transactional)",
        "is_new = not member.is_classic",
        (f"{GROUP_OFFSETS}::test_a_transactional_commit_is_accepted_only_for_a_member_and_its_current_epoch",),
    ),
    Mutant(
        "a member that rejoins gets no record of an empty target",
        f"{FOLDER}/heartbeat.py",
        "if old is None and not member.target_order:",
        "if False:",
        (
            "tests/properties/test_consumer_group.py"
            "::test_a_replica_that_lacks_the_tombstone_of_a_target_keeps_a_member_that_has_rejoined",
        ),
    ),
    Mutant(
        "an overridden claim ends the later one as well",
        f"{FOLDER}/group.py",
        "            if self.owners.get(place) == own:\n                del self.owners[place]\n",
        "            self.owners.pop(place, None)\n",
        (f"{LOST}::test_a_member_keeps_a_partition_whose_old_owner_is_still_a_member",),
    ),
    Mutant(
        "a member that has left keeps partitions of another one",
        f"{FOLDER}/group.py",
        "or any(self.owners.get(place) != member.member_id for place in member.places)",
        "or False",
        (f"{LOST}::test_a_departed_member_is_dropped_if_another_member_has_owned_its_partitions_since",),
    ),
    Mutant(
        "a member that has left keeps the target of another one",
        f"{FOLDER}/group.py",
        "or any(targets[place] is not member for place in each(member.target))",
        "or False",
        (f"{LOST}::test_a_departed_member_is_dropped_if_another_member_has_its_target_assignment",),
    ),
    Mutant(
        "a member that has left keeps its instance id",
        f"{FOLDER}/group.py",
        "(instance_id is not None and self.static.get(instance_id) != member.member_id)",
        "False",
        (f"{LOST}::test_a_departed_static_member_is_dropped_if_another_member_has_its_instance_id",),
    ),
    Mutant(
        "a member of a deleted group joins its successor",
        f"{FOLDER}/group.py",
        "member.current.epoch > self.assignment_epoch",
        "False",
        (f"{LOST}::test_a_member_of_a_deleted_group_is_not_a_member_of_a_new_group_of_the_same_name",),
    ),
    Mutant(
        "a deleted group is restored",
        f"{FOLDER}/group.py",
        "        if not self._has_record:\n            stale",
        "        if False:\n            stale",
        (f"{LOST}::test_a_deleted_group_is_not_restored_from_records_of_its_members",),
    ),
    Mutant(
        "a member that has left returns at each load",
        "broker/core/coordinator/group_machine.py",
        "                        step.append(consumer_records.write_key(key), None)\n",
        "                        pass\n",
        (f"{LOST}::test_a_departed_member_is_dropped_if_another_member_has_its_partitions",),
    ),
    Mutant(
        "a deleted share group hides its successor",
        "broker/core/coordinator/group_machine.py",
        "                self._shares.groups.pop(key.group, None)\n",
        "                pass\n",
        (f"{LOST}::test_a_group_of_another_type_replaces_a_deleted_group_of_the_same_name",),
    ),
    Mutant(
        "a consumer has the session of the cluster, not that of its group",
        "broker/core/coordinator/consumer/heartbeat.py",
        "group.renew(member, step.now_ms, step.consumer_limits(group.name).session_timeout_ms)",
        "group.renew(member, step.now_ms, step.limits.consumer.session_timeout_ms)",
        (f"{GROUP_LIMIT_TESTS}::test_a_changed_session_timeout_of_a_group_applies_from_a_consumers_next_heartbeat_on",),
    ),
    Mutant(
        "after a failover, a consumer has the session of the cluster, not that of its group",
        "broker/core/coordinator/group_machine.py",
        "step.consumer_limits(group.name).session_timeout_ms",
        "self._limits.consumer.session_timeout_ms",
        (f"{GROUP_LIMIT_TESTS}::test_a_new_coordinator_gives_each_consumer_the_session_timeout_of_its_group",),
    ),
    Mutant(
        "a group is assigned in the interval of the cluster, not in its own",
        "broker/core/coordinator/consumer/changes.py",
        "step.consumer_limits(group.name).assignment_interval_ms",
        "step.limits.consumer.assignment_interval_ms",
        (f"{GROUP_LIMIT_TESTS}::test_a_group_is_reassigned_at_its_own_assignment_interval",),
    ),
    Mutant(
        "a member of a share group has the session of the cluster, not that of its group",
        "broker/core/coordinator/share/service.py",
        "step.share_limits(group.name).session_timeout_ms",
        "step.limits.share.session_timeout_ms",
        (f"{GROUP_LIMIT_TESTS}::test_changed_timeouts_of_a_share_group_apply_from_a_members_next_heartbeat_on",),
    ),
    Mutant(
        "a refused join deletes the record of an empty classic group",
        f"{FOLDER}/service.py",
        "        if refusal is not None:\n            return refusal\n        if group is not None:\n",
        "        if group is not None:\n",
        (
            "tests/unit/broker/core/coordinator/consumer/test_migration.py::test_a_refused_join_leaves_the_classic_group_as_it_is",
        ),
    ),
    Mutant(
        "a refused join upgrades a live classic group",
        f"{FOLDER}/service.py",
        "return refusal or migration.upgrade(",
        "return migration.upgrade(",
        (
            "tests/unit/broker/core/coordinator/consumer/test_migration.py::test_a_refused_join_leaves_the_classic_group_as_it_is",
        ),
    ),
    Mutant(
        "one tick compares the expressions of all groups",
        "broker/core/coordinator/group_machine.py",
        "(is_matching and matched > MATCHING_GROUPS_PER_TICK_MAX)",
        "(is_matching and matched < 0)",
        (f"{GROUP_TOPICS}::test_one_tick_updates_the_expressions_of_a_bounded_number_of_groups",),
    ),
    Mutant(
        "a member gets partitions that another one has not given up",
        f"{FOLDER}/group.py",
        "return self.owners.get((topic, partition), member_id) == member_id",
        "return True",
        (f"{MIGRATION}::test_a_partition_moves_only_after_its_classic_owner_rejoined_without_the_partition",),
    ),
    Mutant(
        "a member that does not report its partitions has given them up",
        f"{FOLDER}/reconcile.py",
        "return owned is None or any(",
        "return owned is not None and any(",
        (f"{GROUPS}::test_a_partition_moves_only_after_its_owner_gave_it_up",),
    ),
    Mutant(
        "a member takes the new epoch before it gave its partitions up",
        f"{FOLDER}/reconcile.py",
        "return replace(current, state=MemberState.UNREVOKED,",
        "return replace(current, epoch=target_epoch, state=MemberState.UNREVOKED,",
        (f"{GROUPS}::test_a_partition_moves_only_after_its_owner_gave_it_up",),
    ),
    Mutant(
        "the previous epoch is accepted from a member that still uses other partitions",
        f"{FOLDER}/heartbeat.py",
        "return owned is not None and all(",
        "return owned is None or bool(owned) or all(",
        (f"{GROUPS}::test_a_heartbeat_with_the_previous_epoch_is_fenced_if_it_names_other_or_no_partitions",),
    ),
    Mutant(
        "a static member is replaced while its process is in the group",
        f"{FOLDER}/heartbeat.py",
        "and member.current.epoch != AWAY:",
        "and member.current.epoch == AWAY:",
        (f"{GROUP_SESSIONS}::test_a_join_with_an_instance_id_that_is_in_use_is_refused",),
    ),
    Mutant(
        "a commit with an old epoch is accepted",
        f"{FOLDER}/offset_errors.py",
        "if request.generation != member.current.epoch:",
        "if request.generation > member.current.epoch:",
        (f"{GROUP_OFFSETS}::test_a_member_commits_and_fetches_only_with_its_current_epoch",),
    ),
    Mutant(
        "offsets are fetched with an old epoch",
        f"{FOLDER}/offset_errors.py",
        "if request.member_epoch == member.current.epoch else",
        "if request.member_epoch <= member.current.epoch else",
        (f"{GROUP_OFFSETS}::test_a_member_commits_and_fetches_only_with_its_current_epoch",),
    ),
    Mutant(
        "the rebalance timeout begins anew with each heartbeat",
        f"{FOLDER}/group.py",
        "        if member.rejoin_by_ms is None:\n",
        "        if True:\n",
        (f"{GROUP_SESSIONS}::test_a_member_that_does_not_give_up_partitions_within_the_rebalance_timeout_is_removed",),
    ),
    Mutant(
        "a member that gave its partitions up is removed",
        f"{FOLDER}/heartbeat.py",
        "if not member.current.revoking or member.current.revoking != revoking:",
        "if False:",
        (f"{GROUP_SESSIONS}::test_a_member_that_gives_up_partitions_within_the_rebalance_timeout_stays",),
    ),
    Mutant(
        "all revocations of a member share one rebalance timeout",
        f"{FOLDER}/heartbeat.py",
        "if not member.current.revoking or member.current.revoking != revoking:",
        "if not member.current.revoking:",
        (f"{GROUP_SESSIONS}::test_each_revocation_has_a_rebalance_timeout_of_its_own",),
    ),
    Mutant(
        "the record of a regular expression stays without members",
        f"{FOLDER}/changes.py",
        "        put(step, Kind.REGEX, group.name, None, regex)\n",
        "        pass\n",
        (f"{GROUP_TOPICS}::test_the_record_of_a_regular_expression_is_deleted_when_no_member_uses_it_any_more",),
    ),
    Mutant(
        "topics that changed while nobody coordinated are not compared",
        f"{FOLDER}/group.py",
        "        self.outdate(now_ms)\n",
        "        self.is_outdated = False\n",
        (f"{GROUP_TOPICS}::test_a_new_coordinator_applies_changes_of_topics_that_it_missed",),
    ),
    Mutant(
        "a new coordinator waits forever for a member to give partitions up",
        f"{FOLDER}/group.py",
        "            if member.current.revoking:\n                self.expect(member, now_ms)\n",
        "",
        (f"{GROUP_SESSIONS}::test_a_new_coordinator_also_removes_a_member_that_does_not_give_up_its_partitions",),
    ),
    Mutant(
        "a target that does not fit into a batch is stored",
        f"{FOLDER}/changes.py",
        "    if size > targets_max_bytes(step.limits):",
        "    if size < 0:",
        (f"{GROUP_TOPICS}::test_a_target_assignment_that_exceeds_a_batch_leaves_the_previous_one_in_force",),
    ),
    Mutant(
        "each change makes a target at once",
        f"{FOLDER}/changes.py",
        "        if due_ms is None or due_ms <= step.now_ms:",
        "        if True:",
        (f"{INTERVAL}::test_changes_within_an_interval_share_one_target",),
    ),
    Mutant(
        "no timer computes a target that waits",
        f"{FOLDER}/group.py",
        "        if self.assign_at_ms is not None:\n            yield self.assign_at_ms\n",
        "",
        (f"{INTERVAL}::test_changes_of_topics_wait_for_the_next_target",),
    ),
    Mutant(
        "the timer does not wake for a target that waits",
        f"{FOLDER}/group.py",
        "        self.assign_at_ms = until_ms\n        self.wake(until_ms)\n",
        "        self.assign_at_ms = until_ms\n",
        (f"{INTERVAL}::test_the_timer_computes_a_target_without_any_heartbeat",),
    ),
    Mutant(
        "a heartbeat computes a target before it is due",
        f"{FOLDER}/changes.py",
        "group.assign_at_ms is not None and group.assign_at_ms <= step.now_ms:",
        "group.assign_at_ms is not None:",
        (f"{INTERVAL}::test_a_heartbeat_computes_a_target_only_once_it_is_due",),
    ),
    Mutant(
        "the first member of an empty group waits for its partitions",
        f"{FOLDER}/group.py",
        "self.assigned_ms = now_ms if self.members else None",
        "self.assigned_ms = now_ms",
        (f"{INTERVAL}::test_the_first_member_of_an_empty_group_gets_its_partitions_at_once",),
    ),
    Mutant(
        "a group that becomes empty waits for its target",
        f"{FOLDER}/group.py",
        "if self.assigned_ms is None or not self.members:",
        "if self.assigned_ms is None:",
        (f"{INTERVAL}::test_a_group_that_becomes_empty_drops_its_pending_target",),
    ),
    Mutant(
        "a member keeps a topic to which it is no longer subscribed until the next target",
        f"{FOLDER}/changes.py",
        "member.target if group.epoch == group.assignment_epoch else",
        "member.target if group.epoch >= group.assignment_epoch else",
        (f"{INTERVAL}::test_a_member_gives_up_a_topic_at_once_when_it_no_longer_subscribes_to_it",),
    ),
    Mutant(
        "a member that has reached the last target ignores what it must give up",
        f"{FOLDER}/reconcile.py",
        "    if is_stable and (current.assigned == target or not minus(current.assigned, target)):",
        "    if is_stable:",
        (f"{INTERVAL}::test_a_member_gives_up_a_topic_at_once_when_it_no_longer_subscribes_to_it",),
    ),
    Mutant(
        "a classic member joins again and again while a target waits",
        f"{FOLDER}/classic.py",
        "current.epoch < group.assignment_epoch:",
        "current.epoch < group.epoch:",
        (f"{INTERVAL}::test_a_classic_member_is_asked_to_rejoin_only_once_a_new_target_exists",),
    ),
    Mutant(
        "a classic member gets no assignment while a target waits",
        f"{FOLDER}/classic.py",
        "    if group.assignment_epoch > member.current.epoch and",
        "    if group.epoch > member.current.epoch and",
        (f"{INTERVAL}::test_a_classic_member_is_asked_to_rejoin_only_once_a_new_target_exists",),
    ),
    Mutant(
        "a member that joins waits a whole heartbeat interval for its partitions",
        f"{FOLDER}/heartbeat.py",
        "    return min(interval_ms, group.assign_at_ms - step.now_ms)",
        "    return interval_ms",
        (f"{INTERVAL}::test_a_joining_members_heartbeat_interval_ends_when_the_pending_target_is_due",),
    ),
    Mutant(
        "expired members get a target before they are removed",
        f"{FOLDER}/service.py",
        "        expired = heartbeat.expired(step, group)\n        if not expired:",
        "        changes.refresh(step, group, self._topics)\n"
        "        expired = heartbeat.expired(step, group)\n        if not expired:",
        (f"{INTERVAL}::test_expired_members_and_new_members_share_one_target",),
    ),
    Mutant(
        "the members that have reached the target are miscounted after a removal",
        f"{FOLDER}/group.py",
        "        self.census.place(NEW, -1)\n",
        "",
        (f"{INTERVAL}::test_the_partitions_of_a_member_that_left_wait_for_the_next_target",),
    ),
    Mutant(
        "a deleted group leaves records",
        f"{FOLDER}/group.py",
        "        if self._has_target:\n            keys.append(",
        "        if self._has_target and self.members:\n            keys.append(",
        (f"{GROUPS}::test_a_group_is_deleted_only_when_empty_and_leaves_only_tombstones",),
    ),
    Mutant(
        "a partition with two owners in a classic group keeps both",
        f"{FOLDER}/migration.py",
        " if place not in taken]",
        "]",
        (f"{MIGRATION}::test_a_partition_that_a_faulty_assignor_gave_to_two_members_has_one_owner_after_an_upgrade",),
    ),
    Mutant(
        "an upgrade forgets the classic record",
        f"{FOLDER}/migration.py",
        "    if group.stored is not None:\n        step.append(",
        "    if False:\n        step.append(",
        (f"{MIGRATION}::test_a_group_that_changed_its_protocol_leaves_no_record_when_it_is_deleted",),
    ),
    Mutant(
        "a classic member is not asked to join again for partitions that became free",
        f"{FOLDER}/classic.py",
        "    return all(group.is_free(",
        "    return not all(group.is_free(",
        (f"{MIGRATION}::test_a_classic_member_joins_a_consumer_group_at_once",),
    ),
    Mutant(
        "a classic member that owns partitions of a new target is not asked to give them up",
        f"{FOLDER}/classic.py",
        "if current.state is MemberState.UNREVOKED or current.epoch < group.assignment_epoch:",
        "if current.state is MemberState.UNREVOKED:",
        (f"{MIGRATION}::test_a_classic_group_with_members_becomes_a_consumer_group_and_keeps_its_members",),
    ),
    Mutant(
        "uniform gives a member more than its share",
        f"{FOLDER}/assignors.py",
        "        kept[each.member_id] = own[:room]\n",
        "        kept[each.member_id] = own\n",
        (f"{ASSIGNORS}::test_uniform_moves_only_the_partitions_that_a_new_member_needs",),
    ),
    Mutant(
        "a value of a newer version is read",
        "broker/core/coordinator/fields.py",
        "    if found != version:",
        "    if found < version:",
        (f"{RECORDS}::test_a_value_of_another_version_is_refused",),
    ),
    Mutant(
        "a regular expression matches a part of a name",
        "broker/coordinator/topics.py",
        "pattern.fullmatch(name)",
        "pattern.search(name)",
        ("tests/unit/broker/coordinator/test_topics.py::test_a_regular_expression_matches_whole_names",),
    ),
    Mutant(
        "offsets of a group that changes its protocol expire by their commit time",
        "broker/core/coordinator/consumer/service.py",
        "GroupValue(CONSUMER, group.epoch, None, None, group.state_ms, ())",
        "GroupValue(CONSUMER, group.epoch, None, None, -1, ())",
        (
            "tests/unit/broker/core/coordinator/consumer/test_migration.py::test_an_unfinished_classic_join_keeps_the_offsets_of_an_empty_consumer_group",
        ),
    ),
    Mutant(
        "all regular expressions that match a new topic are written in one step",
        "broker/core/coordinator/consumer/changes.py",
        "        if size and size + len(value) > subscription_max_bytes(step.limits):\n",
        "        if False:\n",
        (
            "tests/unit/broker/core/coordinator/consumer/test_consumer_group_topics.py"
            "::test_expressions_that_match_a_new_topic_are_written_in_several_steps",
        ),
    ),
    Mutant(
        "a removal is explained by the reason for a member that was not in the group",
        "broker/core/coordinator/consumer/service.py",
        "reason = reason if gone else asked.reason",
        "reason = request.members[0].reason",
        (
            "tests/unit/broker/core/coordinator/consumer/test_consumer_group_sessions.py"
            "::test_the_cause_of_a_removal_is_the_reason_given_for_the_first_member_that_left",
        ),
    ),
    Mutant(
        "a group uses an assignor that only a minority of its members names",
        f"{FOLDER}/changes.py",
        "max(known, key=lambda name: (votes[name], -known.index(name)))",
        "max(known, key=lambda name: (votes[name] > 0, -known.index(name)))",
        (f"{GROUPS}::test_a_group_uses_the_assignor_that_most_of_its_members_name",),
    ),
)
