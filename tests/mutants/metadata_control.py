"""Mutants of metadata/control."""

from __future__ import annotations

from tests.mutants import Mutant

BROKERS = "metadata/control/brokers.py"
ELECTION = "metadata/control/election.py"
PARTITIONS = "metadata/control/partitions.py"
CONFIG_TESTS = "tests/unit/metadata/control/test_configs.py"
BROKER_TESTS = "tests/unit/metadata/control/test_brokers.py"
ELECTION_TESTS = "tests/unit/metadata/control/test_election.py"
PARTITION_TESTS = "tests/unit/metadata/control/test_partitions.py"
FENCING_TEST = (
    "tests/unit/metadata/controller/test_background.py"
    "::test_a_started_fencing_is_finished_despite_a_heartbeat_between_its_batches"
)
FEATURE_TESTS = "tests/unit/metadata/control/test_features.py"
REASSIGN_TESTS = "tests/unit/metadata/control/test_reassign.py"

INTERNAL_TESTS = "tests/unit/metadata/control/test_internal_topics.py"
TOPICS = "metadata/control/topics.py"

GROUP_CONFIGS = "metadata/image/group_configs.py"
CONFIGS = "metadata/control/configs.py"
GROUP_CONFIG_TESTS = "tests/unit/metadata/control/test_group_configs.py"

MUTANTS = (
    Mutant(
        "a reassignment in progress is refused when it is requested again and its target is down",
        "metadata/control/reassign.py",
        "refusal = None if is_satisfied else _refuse_target",
        "refusal = _refuse_target",
        (f"{REASSIGN_TESTS}::test_a_target_is_accepted_again_although_one_of_its_brokers_has_gone_down",),
    ),
    Mutant(
        "the cancellation of a reassignment deposes a leader in favour of a replica that lacks records",
        "metadata/control/reassign.py",
        "policy_of(image, topic.topic_id) if partition.leader == NO_LEADER else Policy.OFFLINE",
        "policy_of(image, topic.topic_id)",
        (f"{REASSIGN_TESTS}::test_a_cancellation_makes_no_unclean_election_even_if_the_topic_permits_it",),
    ),
    Mutant(
        "a full batch of deletions keeps the throttle of the reassignments that it ends",
        TOPICS,
        "most = RECORDS_PER_BATCH_MAX - len(further)",
        "most = RECORDS_PER_BATCH_MAX",
        (f"{REASSIGN_TESTS}::test_a_full_batch_of_deletions_that_ends_the_last_reassignment_is_refused",),
    ),
    Mutant(
        "an internal topic refuses the number of partitions that it has",
        "metadata/control/partitions_count.py",
        "    if count == now:\n        return None  #",
        "    if count < 0:\n        return None  #",
        (f"{INTERNAL_TESTS}::test_the_number_of_partitions_of_an_internal_topic_cannot_be_changed",),
    ),
    Mutant(
        "leaderships that are moved late in a controlled shutdown have no head",
        BROKERS,
        "return Decision(_answer(image, broker, request), batch_with_head(head, changes)[0], more=True)\n"
        "    if image.leader_count",
        "head_due = not broker.in_controlled_shutdown\n"
        "        batch = batch_with_head(head, changes)[0] if head_due else tuple(changes)\n"
        "        return Decision(_answer(image, broker, request), batch, more=True)\n"
        "    if image.leader_count",
        (
            f"{BROKER_TESTS}"
            "::test_a_leadership_that_is_moved_late_in_a_controlled_shutdown_has_a_cause_and_delays_the_stop",
        ),
    ),
    Mutant(
        "a feature gets a level that no node can read",
        "metadata/control/features.py",
        "if wanted < lowest:",
        "if wanted < lowest and feature.name not in LOWERABLE:",
        (f"{FEATURE_TESTS}::test_a_level_below_the_lowest_level_of_a_feature_is_refused",),
    ),
    Mutant(
        "configs of groups are written before every node can read them",
        CONFIGS,
        "if level < GROUP_CONFIGS_LEVEL:",
        "if level < METADATA_VERSION_MIN:",
        (f"{GROUP_CONFIG_TESTS}::test_configs_of_groups_are_refused_below_level_2_of_metadata_version",),
    ),
    Mutant(
        "any number of groups can have configs",
        CONFIGS,
        "groups += 1",
        "groups += 0",
        (f"{GROUP_CONFIG_TESTS}::test_the_number_of_groups_with_configs_is_limited",),
    ),
    Mutant(
        "the session of a group may end before the next heartbeat",
        CONFIGS,
        "if session_ms <= interval_ms and",
        "if session_ms < interval_ms and",
        (f"{GROUP_CONFIG_TESTS}::test_a_session_timeout_must_exceed_the_heartbeat_interval",),
    ),
    Mutant(
        "a value of a group that a later range excludes stays in force",
        GROUP_CONFIGS,
        "return own if known.kind is not Kind.INT else str(max(known.low, min(int(own), known.high)))",
        "return own",
        (f"{GROUP_CONFIG_TESTS}::test_configs_of_the_cluster_set_the_ranges_and_values_outside_are_adjusted_to_them",),
    ),
    Mutant(
        "a group without configs has the built-in defaults, not the values of the cluster",
        GROUP_CONFIGS,
        "    default = image.cluster_config(origin.default)\n",
        "    default = known.default\n",
        (f"{GROUP_CONFIG_TESTS}::test_a_group_has_the_values_of_the_cluster_until_it_gets_its_own_values",),
    ),
    Mutant(
        "the rate of a broker does not limit its copies while the cluster has a rate",
        "metadata/image/cluster.py",
        "else min(of_cluster, of_broker)",
        "else of_cluster",
        (f"{CONFIG_TESTS}::test_the_throttle_rates_of_kafka_reassign_partitions_limit_the_copy_rate_of_a_broker",),
    ),
    Mutant(
        "an internal topic created while a cluster starts keeps too few replicas",
        TOPICS,
        "is_flexible=has_one_voter or not is_internal(topic.name)",
        "is_flexible=True",
        (INTERNAL_TESTS,),
    ),
    Mutant(
        "an internal topic can be deleted",
        TOPICS,
        "elif is_internal(topic.name):",
        "elif is_internal(name):",
        (INTERNAL_TESTS,),
    ),
    Mutant(
        "a replaced set of configs removes an internal topic's cleanup.policy",
        "metadata/control/configs.py",
        "if CLEANUP_POLICY in target and _is_internal(wanted.resource):",
        "if CLEANUP_POLICY not in target and _is_internal(wanted.resource):",
        (INTERNAL_TESTS,),
    ),
    Mutant(
        "a fenced broker is unfenced before it has applied its fencing",
        BROKERS,
        "request.applied_offset > broker.last_offset:",
        "request.applied_offset > broker.epoch:",
        (BROKER_TESTS,),
    ),
    Mutant(
        "a broker epoch above this log's end is treated as another incarnation's",
        BROKERS,
        "if broker_epoch >= image.end_offset:",
        "if broker_epoch > image.end_offset:",
        (BROKER_TESTS,),
    ),
    Mutant(
        "a new incarnation is unfenced immediately",
        BROKERS,
        "head = msgspec.structs.replace(request, fenced=True)",
        "head = msgspec.structs.replace(request, fenced=False)",
        (BROKER_TESTS,),
    ),
    Mutant(
        "an unclean stop costs a sole replica its place",
        BROKERS,
        "if clean or len(partition.replicas) == 1:",
        "if clean:",
        (BROKER_TESTS,),
    ),
    Mutant(
        "cached writes that an unclean stop may have lost are counted",
        BROKERS,
        "clean = request.previous_broker_epoch in {old.epoch, old.clean_epoch} - {NO_OFFSET}",
        "clean = request.previous_broker_epoch <= old.epoch",
        (BROKER_TESTS,),
    ),
    Mutant(
        "an unclean stop after an unclean stop is clean",
        BROKERS,
        "{old.epoch, old.clean_epoch} - {NO_OFFSET}",
        "{old.epoch, old.clean_epoch}",
        (BROKER_TESTS,),
    ),
    Mutant(
        "a process that ended before it learned its epoch makes the stop before it unclean",
        BROKERS,
        "{old.epoch, old.clean_epoch} - {NO_OFFSET}",
        "{old.epoch} - {NO_OFFSET}",
        (BROKER_TESTS,),
    ),
    Mutant(
        "the mark of a clean stop counts after a later leadership",
        "metadata/image/editor.py",
        "clean_epoch=NO_OFFSET if record.fenced is False else old.clean_epoch,",
        "clean_epoch=old.clean_epoch,",
        (BROKER_TESTS,),
    ),
    Mutant(
        "another min.insync.replicas drops the only replicas that hold all acknowledged records",
        CONFIGS,
        "if partition is not None and partition.elr and partition.isr:",
        "if partition is not None and partition.elr:",
        (CONFIG_TESTS,),
    ),
    Mutant(
        "another broker takes the id of one that recovers its logs",
        BROKERS,
        "has_stopped = old.fenced and old.in_controlled_shutdown",
        "has_stopped = old.fenced",
        (f"{BROKER_TESTS}::test_a_broker_that_recovers_its_logs_keeps_its_id",),
    ),
    Mutant(
        "a late registration of an earlier process is accepted",
        BROKERS,
        "if session_live and common and is_earlier(request.incarnation_id, old.incarnation_id):",
        "if session_live and common and is_earlier(old.incarnation_id, request.incarnation_id):",
        (BROKER_TESTS,),
    ),
    Mutant(
        "a registration is not contact",
        "metadata/controller/sessions.py",
        "Session(after.brokers[record.broker_id].epoch, now)",
        "Session(-1, now)",
        ("tests/unit/metadata/controller/test_background.py",),
    ),
    Mutant(
        "a broker stops before the others know who leads instead",
        BROKERS,
        "others_applied > broker.last_offset:",
        "others_applied >= broker.last_offset:",
        (BROKER_TESTS,),
    ),
    Mutant(
        "a broker that still has replicas is unregistered",
        BROKERS,
        "elif image.replica_count(broker_id):",
        "elif image.leader_count(broker_id):",
        (BROKER_TESTS, "tests/unit/metadata/controller/test_admin_service.py"),
    ),
    Mutant(
        "a block of producer ids is given twice",
        BROKERS,
        "record = ProducerIds(broker_id, broker_epoch, first + PRODUCER_ID_BLOCK)",
        "record = ProducerIds(broker_id, broker_epoch, first + PRODUCER_ID_BLOCK - 1)",
        (BROKER_TESTS,),
    ),
    Mutant(
        "a fencing of several batches ends with its first",
        BROKERS,
        "records, more = batch_with_head(head, departures(image, broker_id, Reason.BROKER_FENCED))\n"
        "    return Decision(None, records, more)",
        "records, more = batch_with_head(head, departures(image, broker_id, Reason.BROKER_FENCED))\n"
        "    return Decision(None, records)",
        (FENCING_TEST,),
    ),
    Mutant(
        "min.insync counts replicas that are being added",
        ELECTION,
        "wanted = min(min_isr, len(order) - len(newcomers))",
        "wanted = min(min_isr, len(order))",
        (f"{ELECTION_TESTS}::test_replicas_that_are_being_added_do_not_raise_the_effective_min_isr",),
    ),
    Mutant(
        "a replica that is being added is elected uncleanly",
        ELECTION,
        "if replica.broker_id not in newcomers and eligible(replica):",
        "if eligible(replica):",
        (ELECTION_TESTS, REASSIGN_TESTS),
    ),
    Mutant(
        "a broker that is not eligible is elected",
        ELECTION,
        "for each in order if each.broker_id in in_sync and eligible(each)]",
        "for each in order if each.broker_id in in_sync]",
        (ELECTION_TESTS,),
    ),
    Mutant(
        "an unclean election keeps the eligible leader replicas",
        ELECTION,
        "return Elected(replica.broker_id, (replica.broker_id,), unclean=True)",
        "return Elected(replica.broker_id, (replica.broker_id,), tuple(former), unclean=True)",
        (ELECTION_TESTS,),
    ),
    Mutant(
        "a reassigned partition is led from the ELR",
        ELECTION,
        "if policy is not Policy.REASSIGNED:",
        "if policy is not Policy.PREFERRED:",
        (ELECTION_TESTS, REASSIGN_TESTS),
    ),
    Mutant(
        "a member of an earlier incarnation joins the ISR",
        PARTITIONS,
        "elif member.broker_epoch != broker.epoch:",
        "elif member.broker_epoch > broker.epoch:",
        (f"{PARTITION_TESTS}::test_a_restarted_broker_is_ineligible_for_the_isr_under_its_old_broker_epoch",),
    ),
    Mutant(
        "a broker that is shutting down joins the ISR",
        PARTITIONS,
        "elif broker.in_controlled_shutdown:",
        "elif broker.in_controlled_shutdown and broker.fenced:",
        (f"{PARTITION_TESTS}::test_a_broker_in_controlled_shutdown_is_ineligible_for_the_isr",),
    ),
    Mutant(
        "an ISR change of the leader epoch before is accepted",
        PARTITIONS,
        "if change.leader_epoch < partition.leader_epoch:",
        "if change.leader_epoch < partition.leader_epoch - 1:",
        (PARTITION_TESTS,),
    ),
    Mutant(
        "an ISR change decided on an older partition epoch is accepted",
        PARTITIONS,
        "if change.partition_epoch < partition.partition_epoch:",
        "if change.partition_epoch < partition.partition_epoch - 1:",
        (PARTITION_TESTS,),
    ),
    Mutant(
        "a replica that is moved off a failed directory stays in the ISR",
        PARTITIONS,
        "stays = has_left or replica.directory_id == UNASSIGNED or broker.directory_online(replica.directory_id)",
        "stays = True",
        (
            f"{PARTITION_TESTS}::test_a_replica_that_is_reported_in_another_directory_leaves_the_isr_if_the_former_one_failed",
        ),
    ),
    Mutant(
        "a replica that has left any directory counts as the one of the assigned directory",
        PARTITIONS,
        "has_left = assignment.moved_from == replica.directory_id",
        "has_left = assignment.moved_from is not None",
        (
            f"{PARTITION_TESTS}::test_a_move_from_another_than_the_assigned_directory_does_not_keep_a_replica_in_the_isr",
        ),
    ),
    Mutant(
        "a replica that has left a failed directory does not lead again",
        PARTITIONS,
        "if not has_left or partition.leader != NO_LEADER:",
        "if True:",
        (f"{PARTITION_TESTS}::test_a_move_that_is_reported_after_the_former_directory_failed_keeps_isr_and_elr",),
    ),
    Mutant(
        "a damaged replica stays eligible",
        PARTITIONS,
        "lost = (replica.broker_id,) if works or assignment.directory_id == LOST or not stays else ()",
        "lost = (replica.broker_id,) if works else ()",
        (ELECTION_TESTS,),
    ),
    Mutant(
        "write.caching is judged by the config at the registration alone",
        BROKERS,
        "return topic.origin in early_topics or image.topic_config",
        "return image.topic_config",
        (f"{BROKER_TESTS}::test_an_unclean_stop_empties_the_isr_of_a_topic_that_had_write_caching_at_that_time",),
    ),
    Mutant(
        "a renewed topic that had write.caching is not recognised",
        BROKERS,
        "return topic.origin in early_topics",
        "return topic.topic_id in early_topics",
        (f"{BROKER_TESTS}::test_a_topic_that_had_write_caching_is_identified_by_its_first_topic_id",),
    ),
)
