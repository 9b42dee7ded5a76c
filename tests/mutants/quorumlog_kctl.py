"""Mutants of quorumlog/kctl."""

from __future__ import annotations

from tests.mutants import Mutant

ADMIN_TESTS = "tests/unit/quorumlog/kctl/test_admin_commands.py"
DATA_TESTS = "tests/unit/quorumlog/kctl/test_data.py"
GROUP_TESTS = "tests/unit/quorumlog/kctl/test_groups.py"
OUTPUT_TESTS = "tests/unit/quorumlog/kctl/test_exits_and_output.py"
REASSIGN_TESTS = "tests/unit/quorumlog/kctl/test_reassign.py"

MUTANTS = (
    Mutant(
        "kctl lets a node wait for a record longer than the request may take",
        "quorumlog/kctl/metadata_history.py",
        "POLL_SHARE = 0.25\n",
        "POLL_SHARE = 2.5\n",
        (
            "tests/unit/quorumlog/kctl/test_metadata.py"
            "::test_tail_of_a_quiet_log_does_not_report_that_a_node_does_not_answer",
        ),
    ),
    Mutant(
        "kctl configs set does not wait for brokers that lack a change of an earlier command",
        "quorumlog/kctl/configs.py",
        "        if wait and not dry_run:\n",
        "        if wait and altered.changed:\n",
        (f"{ADMIN_TESTS}::test_the_wait_option_waits_for_the_brokers_also_if_an_earlier_command_made_the_change",),
    ),
    Mutant(
        "kctl reassign generate forgets the replicas that already leave a drained broker",
        "quorumlog/kctl/reassign.py",
        "        current, planned = [*current, *leaving], [*planned, *leaving]\n",
        "",
        (f"{REASSIGN_TESTS}::test_draining_a_broker_again_waits_for_the_replicas_that_already_leave_it",),
    ),
    Mutant(
        "kctl reassign cancel accepts an empty plan and cancels all reassignments",
        "quorumlog/kctl/reassign_options.py",
        "async def load(path: str | None, *, may_be_empty: bool = False)",
        "async def load(path: str | None, *, may_be_empty: bool = True)",
        (f"{REASSIGN_TESTS}::test_draining_an_empty_broker_succeeds_and_changes_nothing",),
    ),
    Mutant(
        "kctl dev up says after Ctrl-C that it stopped a cluster that runs",
        "quorumlog/kctl/dev.py",
        '        context.interrupted = f"the cluster runs',
        '        _ = f"the cluster runs',
        (
            "tests/unit/quorumlog/kctl/test_dev_cluster.py"
            "::test_an_interrupt_after_the_start_does_not_say_that_the_nodes_were_stopped",
        ),
    ),
    Mutant(
        "kctl makes a change that the user declined",
        "quorumlog/kctl/losses.py",
        "    if not is_confirmed:\n",
        "    if is_confirmed is None:\n",
        (
            "tests/unit/quorumlog/kctl/test_losses.py"
            "::test_a_declined_confirmation_changes_nothing_and_is_not_called_an_interrupt",
        ),
    ),
    Mutant(
        "kctl cluster health reports that no node answers as an unhealthy cluster",
        "quorumlog/kctl/cluster.py",
        "        return document, error\n",
        "        return document, None\n",
        ("tests/unit/quorumlog/kctl/test_commands.py::test_cluster_health_reports_problems",),
    ),
    Mutant(
        "kctl consume stays with a former leader",
        "quorumlog/kctl/data.py",
        "            await cluster.topic_states([topic], LEADERS_AGE_S)\n",
        "            pass\n",
        (f"{DATA_TESTS}::test_consume_leaves_a_former_leader_that_still_answers",),
    ),
    Mutant(
        "kctl waits at its end for a name resolver that hangs",
        "quorumlog/kctl/context.py",
        "super().shutdown(wait=False, ",
        "super().shutdown(wait=wait, ",
        (
            "tests/unit/quorumlog/kctl/test_deadlines.py"
            "::test_a_hanging_name_resolver_does_not_delay_the_end_of_a_command[arguments0]",
        ),
    ),
    Mutant(
        "kctl ignores Ctrl-C at a question and takes the next answer",
        "quorumlog/kctl/losses.py",
        "    with _interruptible():\n        is_confirmed = ",
        "    if question:\n        is_confirmed = ",
        ("tests/unit/quorumlog/kctl/test_losses.py::test_ctrl_c_at_a_confirmation_changes_nothing",),
    ),
    Mutant(
        "kctl produce ends without an error before it has sent all lines if nobody reads the offsets",
        "quorumlog/kctl/context.py",
        "    ends_with_output: bool = False\n",
        "    ends_with_output: bool = True\n",
        (f"{DATA_TESTS}::test_produce_writes_all_records_although_its_output_is_closed",),
    ),
    Mutant(
        "kctl produce sends all lines that arrive together to one partition",
        "quorumlog/kctl/data.py",
        "index = number // BATCH_RECORDS_MAX",
        "index = first_number // BATCH_RECORDS_MAX",
        (f"{DATA_TESTS}::test_each_batch_of_records_without_a_key_goes_to_the_next_partition[20]",),
    ),
    Mutant(
        "kctl metadata dump waits for a reader that SIGKILL does not end",
        "quorumlog/kctl/metadata_dump.py",
        "asyncio.timeout(KILL_S)",
        "asyncio.timeout(None)",
        ("tests/unit/quorumlog_server/test_dump.py::test_kctl_does_not_wait_for_a_reader_that_no_signal_ends",),
    ),
    Mutant(
        "kctl metadata tail gives up records that a restarting node still has",
        "quorumlog/kctl/metadata_history.py",
        "if is_too_old and None not in found:",
        "if is_too_old:",
        (
            "tests/unit/quorumlog/kctl/test_metadata.py"
            "::test_tail_waits_for_a_node_that_restarts_if_the_others_have_deleted_its_next_record",
        ),
    ),
    Mutant(
        "only the ports of the first node are checked before nodes are started",
        "quorumlog/kctl/dev_cluster.py",
        "_refuse_used_ports(stopped)",
        "_refuse_used_ports(stopped[:1])",
        (
            "tests/unit/quorumlog/kctl/test_dev_cluster.py"
            "::test_all_ports_that_other_programs_use_are_named_before_any_node_is_started",
        ),
    ),
    Mutant(
        "Ctrl-C has no effect while a plan is computed",
        "quorumlog/kctl/reassign.py",
        "return await asyncio.get_running_loop().run_in_executor(None, propose, current, racks, factor)",
        "return propose(current, racks, factor)",
        (
            "tests/unit/quorumlog/kctl/test_reassign.py"
            "::test_ctrl_c_and_the_time_limit_end_the_computation_of_a_large_plan",
        ),
    ),
    Mutant(
        "kctl prints control characters of names in lines",
        "quorumlog/kctl/output.py",
        "self._write(printable(line))",
        "self._write(line)",
        (
            "tests/unit/quorumlog/kctl/test_exits_and_output.py"
            "::test_names_with_control_characters_are_shown_with_escapes",
        ),
    ),
    Mutant(
        "kctl prints control characters of names in tables",
        "quorumlog/kctl/output.py",
        "return printable(str(value))",
        "return str(value)",
        (
            "tests/unit/quorumlog/kctl/test_exits_and_output.py"
            "::test_names_with_control_characters_are_shown_with_escapes",
        ),
    ),
    Mutant(
        "kctl consume changes control characters of values",
        "quorumlog/kctl/data.py",
        "context.output.raw(",
        "context.output.text(",
        ("tests/unit/quorumlog/kctl/test_data.py::test_values_are_printed_with_their_control_characters",),
    ),
    Mutant(
        "kctl knows only the first listener of each broker",
        "quorumlog/runtime/addresses.py",
        "rounds = zip_longest(*brokers)",
        "rounds = list(zip_longest(*brokers))[:1]",
        (
            "tests/unit/quorumlog/kctl/test_reads.py"
            "::test_all_listeners_of_brokers_are_tried_because_the_first_one_may_be_in_another_network",
        ),
    ),
    Mutant(
        "kctl groups reset-offsets asks for the offsets of a missing group",
        "quorumlog/kctl/group_reset.py",
        "        found = {} if is_missing else await client.committed(group_id, context.left_s)\n",
        "        found = await client.committed(group_id, context.left_s)\n",
        (f"{GROUP_TESTS}::test_a_dry_run_that_would_create_a_group_does_not_create_the_internal_topic",),
    ),
    Mutant(
        "kctl elect-leaders does not show the elections before a failed request",
        "quorumlog/kctl/elections.py",
        "            if number == 0:\n",
        "            if number >= 0:\n",
        (f"{ADMIN_TESTS}::test_elections_before_a_failed_request_are_reported",),
    ),
    Mutant(
        "refused elections hide that a later request of kctl elect-leaders failed",
        "quorumlog/kctl/elections.py",
        "len(failed) == len(elected) and found.failure is None:",
        "len(failed) == len(elected):",
        (f"{ADMIN_TESTS}::test_refused_elections_do_not_hide_that_a_later_request_failed",),
    ),
    Mutant(
        "kctl elect-leaders names all partitions of a topic in one request",
        "quorumlog/kctl/elections.py",
        "partitions=named[first:][:PARTITIONS_PER_REQUEST])\n",
        "partitions=named)\n",
        (f"{ADMIN_TESTS}::test_elections_of_a_large_topic_are_requested_in_several_pieces",),
    ),
    Mutant(
        "kctl dev up leaves its folder behind if it finds no free ports",
        "quorumlog/kctl/dev.py",
        "                dev_cluster.remove_record(home, made_dir)\n",
        "",
        ("tests/unit/quorumlog/kctl/test_dev_cluster.py::test_dev_up_without_enough_free_ports_leaves_nothing_behind",),
    ),
    Mutant(
        "kctl produce does not wait for its records if the input becomes unreadable",
        "quorumlog/kctl/data.py",
        "        raise UnreadableInputError(parse.count, error) from error\n",
        "        raise\n",
        (f"{DATA_TESTS}::test_produce_waits_for_its_records_if_the_input_becomes_unreadable",),
    ),
    Mutant(
        "kctl reassign start sends the first requests of a large plan before it has checked the others",
        "quorumlog/kctl/reassign_requests.py",
        "    if len(pieces) > 1 and not dry_run:\n",
        "    if len(pieces) > 2 and not dry_run:\n",
        (f"{REASSIGN_TESTS}::test_a_large_plan_is_checked_as_a_whole_and_started_in_several_requests",),
    ),
    Mutant(
        "a dry run of a large plan reports requests that were accepted",
        "quorumlog/kctl/reassign_requests.py",
        "    if dry_run or not replies:\n",
        "    if not replies:\n",
        (f"{REASSIGN_TESTS}::test_a_large_plan_is_checked_as_a_whole_and_started_in_several_requests",),
    ),
    Mutant(
        "kctl reassign cancel sends more partitions than one request may have",
        "quorumlog/kctl/reassign_requests.py",
        "        piece = left[:REQUEST_MAX]\n",
        "        piece = left\n",
        (f"{REASSIGN_TESTS}::test_many_reassignments_are_cancelled_in_several_requests",),
    ),
    Mutant(
        "a dry run of kctl reassign start reports that the throttle is unchanged",
        "quorumlog/kctl/reassign.py",
        "    if has_throttle and dry_run:  #",
        "    if has_throttle and dry_run and moves:  #",
        (f"{REASSIGN_TESTS}::test_a_dry_run_does_not_say_that_the_throttle_stays_as_it_is",),
    ),
    Mutant(
        "kctl metadata dump of a snapshot omits a requested topic that does not exist",
        "quorumlog/kctl/metadata.py",
        '                            raise ClusterError(topic.result.error, text, "omit --topic to see all topics")\n',
        "                            continue\n",
        (
            "tests/unit/quorumlog/kctl/test_metadata.py"
            "::test_dump_of_a_snapshot_reports_a_requested_topic_that_does_not_exist",
        ),
    ),
    Mutant(
        "kctl cluster health counts replicas that are being added as out of sync",
        "quorumlog/kctl/cluster.py",
        "for replica in partition.replicas}.difference(partition.adding)\n",
        "for replica in partition.replicas}\n",
        (
            "tests/unit/quorumlog/kctl/test_commands.py"
            "::test_replicas_that_a_reassignment_adds_do_not_make_a_cluster_unhealthy",
        ),
    ),
    Mutant(
        "kctl omits columns of a table that is wider than 10,000 characters",
        "quorumlog/kctl/output.py",
        "max(UNTRUNCATED, _CHARACTER_WIDTH_MAX * longest + _MARGINS_MAX * len(columns))",
        "UNTRUNCATED",
        (f"{OUTPUT_TESTS}::test_a_table_wider_than_10000_characters_keeps_all_its_columns",),
    ),
    Mutant(
        "kctl folds the title of a table at the width of the table",
        "quorumlog/kctl/output.py",
        '            console.print(Text(line, style="italic"))\n',
        "            table.title = line\n",
        (f"{OUTPUT_TESTS}::test_the_title_of_a_table_is_one_line",),
    ),
)
