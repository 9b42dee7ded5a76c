"""Mutants of quorumlog/doctor."""

from __future__ import annotations

from tests.mutants import Mutant

BROKERS = "quorumlog/doctor/brokers.py"
NODES = "quorumlog/doctor/nodes.py"
STEPS = "quorumlog/doctor/steps.py"
GROUP_TESTS = "tests/unit/quorumlog/doctor/test_doctor_groups.py"
PARTITION_TESTS = "tests/unit/quorumlog/doctor/test_doctor_partitions.py"
QUORUM_TESTS = "tests/unit/quorumlog/doctor/test_doctor_quorum.py"
TRANSACTION_TESTS = "tests/unit/quorumlog/doctor/test_doctor_transactions.py"

MUTANTS = (
    Mutant(
        "doctor judges the age of transactions by the clock of its own machine",
        "quorumlog/doctor/examine.py",
        "self._wall_ms() + self.cluster.clock_ahead_ms",
        "self._wall_ms()",
        (
            "tests/unit/quorumlog/doctor/test_doctor_transactions.py"
            "::test_transactions_are_judged_by_the_clocks_of_the_nodes",
        ),
    ),
    Mutant(
        "doctor asks for more replicas of committed offsets than the brokers that are not cordoned",
        "quorumlog/doctor/groups.py",
        "min(FACTOR, len(layout.open_brokers()))",
        "min(FACTOR, len(layout.brokers))",
        (f"{GROUP_TESTS}::test_doctor_asks_for_no_more_replicas_of_offsets_than_brokers_may_get",),
    ),
    Mutant(
        "doctor treats a node of another cluster as the voter with the same id",
        "quorumlog/doctor/observed.py",
        "and (not self.is_foreign(node) or node.address in places)",
        "",
        (f"{QUORUM_TESTS}::test_doctor_does_not_confuse_nodes_of_two_clusters_that_have_the_same_ids",),
    ),
    Mutant(
        "doctor gives scripts the commands that give up records of a broker that is down",
        "quorumlog/doctor/partitions.py",
        "            nodes=eligible,\n            partitions=texts(keys),\n            last_resort=commands,\n",
        "            nodes=eligible,\n            partitions=texts(keys),\n            commands=commands,\n",
        (f"{PARTITION_TESTS}::test_each_consequence_of_a_fenced_broker_is_one_finding",),
    ),
    Mutant(
        "doctor asks to start a broker that is up with a failed directory",
        "quorumlog/doctor/partitions.py",
        "    down = [each for each in eligible if not layout.is_up(each)]\n",
        "    down = list(eligible)\n",
        (f"{PARTITION_TESTS}::test_doctor_suggests_repairing_the_disk_of_a_sole_replica",),
    ),
    Mutant(
        "doctor gives up records of partitions that wait for another broker",
        STEPS,
        "if topic in others else [command]",
        "if topic in () else [command]",
        (f"{PARTITION_TESTS}::test_commands_of_last_resort_spare_records_that_another_broker_holds",),
    ),
    Mutant(
        "doctor cancels reassignments that make progress",
        STEPS,
        "for topic in topics if topic not in others)",
        "for topic in topics)",
        (f"{PARTITION_TESTS}::test_doctor_cancels_only_the_stuck_reassignments_of_a_topic",),
    ),
    Mutant(
        "doctor gives topics with lost replicas the replication factor of others",
        BROKERS,
        "layout.factor_of([topic], drain=broker_id)",
        "layout.factor(keys)",
        (f"{PARTITION_TESTS}::test_topics_keep_their_replication_factors_when_lost_replicas_are_copied_again",),
    ),
    Mutant(
        "doctor proposes to drop a lost replica although too few brokers are up to copy it again",
        BROKERS,
        "        elif len(open_brokers) < factor:  #",
        "        elif broker_id not in open_brokers:  #",
        (f"{PARTITION_TESTS}::test_doctor_does_not_drop_a_lost_replica_while_another_broker_is_down",),
    ),
    Mutant(
        "doctor asks to start 0 voters of a leader that pauses early",
        "quorumlog/doctor/quorum.py",
        "max(needed - (total - len(silent)), 1)",
        "needed - (total - len(silent))",
        (f"{QUORUM_TESTS}::test_doctor_asks_for_a_voter_if_the_leader_pauses_before_the_others_count_as_silent",),
    ),
    Mutant(
        "doctor hands leadership to a voter with a slower disk",
        NODES,
        "faster_than_us == math.inf or fastest_us < faster_than_us",
        "faster_than_us > 0",
        ("tests/unit/quorumlog/doctor/test_doctor.py::test_doctor_suggests_no_leader_with_a_slower_disk",),
    ),
    Mutant(
        "doctor hands leadership to a voter that is not caught up",
        NODES,
        'if status.HasField("last_caught_up_ms") and status.last_caught_up_ms <= CAUGHT_UP_MS\n',
        "",
        (f"{QUORUM_TESTS}::test_doctor_suggests_moving_leadership_only_to_a_voter_that_is_caught_up",),
    ),
    Mutant(
        "doctor waits for the coordinator of each group as long as for all groups",
        "quorumlog/doctor/groups_observed.py",
        "max(end - loop.time(), LEFT_MIN_S)",
        "LIST_S",
        (
            "tests/unit/quorumlog/doctor/test_doctor_groups.py"
            "::test_doctor_waits_for_silent_coordinators_of_many_groups_only_once[20.0-3.5]",
        ),
    ),
    Mutant(
        "doctor counts the disks of another cluster in its summary",
        "quorumlog/doctor/diagnosis.py",
        "for node in cluster.own_nodes if",
        "for node in cluster.nodes if",
        (f"{QUORUM_TESTS}::test_the_slowest_disk_of_the_summary_belongs_to_the_examined_cluster",),
    ),
    Mutant(
        "doctor lowers the replication factor of partitions that have more replicas than the others of their topic",
        "quorumlog/doctor/layout.py",
        "setdefault(max(factor, self.factor_of([topic])), [])",
        "setdefault(factor, [])",
        (f"{PARTITION_TESTS}::test_advice_to_add_replicas_removes_none_of_other_partitions",),
    ),
    Mutant(
        "doctor counts the replicas of only one partition of a topic that it moves",
        "quorumlog/doctor/layout.py",
        "self.lack_of_brokers(self.factor_of(topics))",
        "self.lack_of_brokers(self.factor([self.by_topic[topics[0]][0]]))",
        (f"{PARTITION_TESTS}::test_commands_that_move_whole_topics_need_brokers_for_all_their_partitions",),
    ),
    Mutant(
        "doctor drops a lost replica although the command changes the replication factor of other partitions",
        "quorumlog/doctor/brokers.py",
        "[topic for topic in topics if layout.factors(topic) == {factor}]",
        "topics",
        (f"{PARTITION_TESTS}::test_a_lost_replica_is_not_dropped_if_other_partitions_have_another_replication_factor",),
    ),
    Mutant(
        "doctor proposes commands that are refused because a reassignment is in progress",
        "quorumlog/doctor/layout.py",
        "return move(names, drain=drain, factor=factor, replaces=replaces)",
        "return move(names, drain=drain, factor=factor)",
        (f"{PARTITION_TESTS}::test_the_commands_that_replace_a_lost_broker_also_replace_reassignments_to_it",),
    ),
    Mutant(
        "doctor proposes to reassign topics that are being reassigned",
        "quorumlog/doctor/partitions.py",
        "        if key[0] in moving:\n",
        "        if key in moving:\n",
        (f"{PARTITION_TESTS}::test_topics_that_are_being_reassigned_get_no_advice_to_reassign_them",),
    ),
    Mutant(
        "doctor proposes to reassign the topic of committed offsets while it is being reassigned",
        "quorumlog/doctor/groups.py",
        "    if few and not is_moving:  #",
        "    if few:  #",
        (f"{GROUP_TESTS}::test_the_offsets_topic_gets_no_advice_that_would_be_refused_or_remove_replicas",),
    ),
    Mutant(
        "doctor proposes commands that read a name with a leading dash as an option",
        "quorumlog/words.py",
        '    if any(name.startswith("-") for name in names):\n',
        "    if not names:\n",
        (f"{TRANSACTION_TESTS}::test_the_commands_of_doctor_accept_names_that_begin_with_a_dash",),
    ),
    Mutant(
        "doctor omits registered brokers that no node knows from the number of nodes",
        "quorumlog/doctor/diagnosis.py",
        "len(cluster.nodes) + _unknown_brokers(cluster)",
        "len(cluster.nodes)",
        (
            "tests/unit/quorumlog/doctor/test_doctor.py"
            "::test_a_registered_broker_counts_as_a_node_even_if_no_node_knows_its_address",
        ),
    ),
)
