"""Mutants of quorumlog_server."""

from __future__ import annotations

from tests.mutants import Mutant

COMMANDS = "quorumlog_server/quorum_node.py"
GENERATIONS = "quorumlog_server/generations.py"
VOLUNTEER = "quorumlog_server/volunteer.py"

DUMP_TESTS = "tests/unit/quorumlog_server/test_dump.py"
GENERATION_TESTS = "tests/unit/quorumlog_server/test_generations.py"
RECOVER_TESTS = "tests/unit/quorumlog_server/test_recover.py"
VOLUNTEER_TESTS = "tests/unit/quorumlog_server/test_volunteer.py"

MUTANTS = (
    Mutant(
        "kctl metadata dump blames the disk of the node if the disk of the copy is full",
        "quorumlog_server/dump.py",
        "if error.errno not in (errno.ENOSPC, errno.EDQUOT):",
        "if error.errno:",
        (f"{DUMP_TESTS}::test_a_full_disk_of_the_copy_is_not_reported_as_the_disk_of_the_node",),
    ),
    Mutant(
        "a voter whose log is empty after a snapshot does not leave",
        VOLUNTEER,
        "if not core.met or end == 0:",
        "if not core.met or end <= core.log.start:",
        (f"{VOLUNTEER_TESTS}::test_a_voter_whose_log_is_empty_after_a_snapshot_leaves",),
    ),
    Mutant(
        "a node that leaves removes the disk that replaced it",
        VOLUNTEER,
        "pb.RemoveVoter(node_id=node.node_id, directory_id=node.directory_id.bytes)",
        "pb.RemoveVoter(node_id=node.node_id)",
        (f"{VOLUNTEER_TESTS}::test_a_node_that_left_on_its_own_request_rejoins",),
    ),
    Mutant(
        "a voter that an operator removed rejoins because it wanted to leave",
        VOLUNTEER,
        "if is_removed and was_voter and not had_left:",
        "if is_removed and not was_voter and not had_left:",
        (f"{VOLUNTEER_TESTS}::test_a_voter_that_an_operator_removed_before_it_could_leave_does_not_rejoin",),
    ),
    Mutant(
        "a node that left counts as a voter again because of its snapshot",
        VOLUNTEER,
        "is_voter = self.is_voter and self._node.is_caught_up()",
        "is_voter = self.is_voter",
        (f"{VOLUNTEER_TESTS}::test_a_node_that_left_rejoins_although_it_is_a_voter_in_its_snapshot",),
    ),
    Mutant(
        "recover sets snapshots aside before it is confirmed",
        "quorumlog_server/recover.py",
        "restore(found.stored, read_only=True)",
        "restore(found.stored)",
        ("tests/unit/quorumlog_server/test_recover.py::test_a_refused_confirmation_leaves_damaged_snapshots_in_place",),
    ),
    Mutant(
        "a node that leaves waits for a disk that hangs",
        "quorumlog_server/volunteer.py",
        "async with asyncio.timeout_at(end):",
        "async with asyncio.timeout_at(None):",
        (f"{VOLUNTEER_TESTS}::test_a_hanging_disk_does_not_delay_the_stop_of_a_voter",),
    ),
    Mutant(
        "requests to leave use the time for storing their outcome",
        "quorumlog_server/volunteer.py",
        "deadline = end - timeout_ms / 1000 * SAVE_SHARE",
        "deadline = end",
        (f"{VOLUNTEER_TESTS}::test_the_outcome_of_a_leave_is_stored_although_its_request_took_its_whole_time_limit",),
    ),
    Mutant(
        "a node that leaves twice counts as removed by an operator",
        VOLUNTEER,
        "if is_removed and was_voter and not had_left:",
        "if is_removed and was_voter:",
        (f"{VOLUNTEER_TESTS}::test_a_node_that_left_and_stops_before_it_has_caught_up_rejoins_later",),
    ),
    Mutant(
        "a node that was added while it stops does not count as a voter",
        VOLUNTEER,
        "was_voter = joined is True or self.is_voter",
        "was_voter = self.is_voter",
        (f"{VOLUNTEER_TESTS}::test_a_node_that_was_added_while_it_stops_counts_as_a_voter",),
    ),
    Mutant(
        "a node that was refused to leave again counts as a voter",
        VOLUNTEER,
        "is_voter = was_voter and not had_left",
        "is_voter = was_voter",
        (f"{VOLUNTEER_TESTS}::test_a_refused_second_request_to_leave_does_not_undo_the_first",),
    ),
    Mutant(
        "a node that was never a voter counts as removed",
        VOLUNTEER,
        "is_voter = was_voter and not had_left",
        "is_voter = not had_left",
        (f"{VOLUNTEER_TESTS}::test_a_new_node_that_stops_before_its_first_answer_asks_to_join_again_later",),
    ),
    Mutant(
        "only the last of several rebuilds counts",
        GENERATIONS,
        "history.rebuilt_at(before.generation + 1)",
        "history.rebuilt_at(before.newer)",
        (f"{GENERATION_TESTS}::test_records_after_the_first_of_two_rebuilds_are_reported_as_lost",),
    ),
    Mutant(
        "a recovery ignores an interrupt at its question",
        COMMANDS,
        "handler = signal.signal(signal.SIGINT, signal.default_int_handler)",
        "handler = signal.getsignal(signal.SIGINT)",
        (f"{RECOVER_TESTS}::test_an_interrupt_at_the_confirmation_changes_nothing",),
    ),
    Mutant(
        "a broker formats the data directory of a voter before the quorum directory is examined",
        "quorumlog_server/control_plane.py",
        "    check_unused(quorum_directory(config), config.node_id)  # first: `claim` may create lock files\n",
        "",
        (
            "tests/unit/quorumlog_server/test_refused_starts.py"
            "::test_broker_on_the_directory_of_a_stopped_voter_with_another_id",
        ),
    ),
    Mutant(
        "an identity that cannot be read counts as a directory in use",
        "quorum/store/directory.py",
        "        raise refusal(directory, error) from error\n    if identity is not None:\n",
        "        raise _in_use(directory, 'unknown') from error\n    if identity is not None:\n",
        (
            "tests/unit/quorumlog_server/test_refused_starts.py"
            "::test_identity_of_a_quorum_directory_that_cannot_be_read",
        ),
    ),
    Mutant(
        "an end before the quorum directory is open is reported to nobody",
        "quorumlog_server/farewell.py",
        "listed_peers(self._config) if plane is None else plane.peers()",
        "[] if plane is None else plane.peers()",
        (
            "tests/unit/quorumlog_server/test_farewell.py"
            "::test_an_end_before_the_quorum_directory_is_open_is_reported_to_the_configured_nodes",
        ),
    ),
    Mutant(
        "a voter does not lock its data directory",
        "quorumlog/runtime/data_directory.py",
        "    fd = _lock(path, create=True)\n",
        "    _make_folder(path)\n    fd: int | None = os.open(path / 'lock', os.O_RDWR | os.O_CREAT)\n",
        ("tests/unit/quorumlog_server/test_refused_starts.py::test_second_voter_on_the_same_directory",),
    ),
    Mutant(
        "a node without a cluster names the cause only once",
        "quorumlog_server/search.py",
        'logger.warning("still in no cluster", causes=self.text(), next=self._next_step)\n',
        'return logger.warning("still in no cluster", causes=self.text(), next=self._next_step)\n',
        (
            "tests/unit/quorumlog_server/test_search.py"
            "::test_the_causes_are_logged_again_and_again_until_the_node_has_met_its_cluster",
        ),
    ),
    Mutant(
        "a broker whose port is in use formats its data directory",
        "quorumlog_server/control_plane.py",
        "    await check_addresses(config)\n",
        "",
        (
            "tests/integration/cli/test_servers.py"
            "::test_a_broker_whose_port_is_in_use_exits_with_2_and_names_the_address",
        ),
    ),
    Mutant(
        "a broker records that it runs only once its store is open",
        "broker/cli.py",
        "    farewell.begin()\n",
        "    broker.plane.on_open = farewell.begin\n",
        ("tests/unit/quorumlog_server/test_farewell.py::test_a_broker_records_that_it_runs_before_it_opens_its_store",),
    ),
    Mutant(
        "a damaged quorum directory of a voter is reported to nobody",
        "quorumlog_server/quorum_node.py",
        "    farewell.plane = plane\n    await check_start(config)\n",
        "    await check_start(config)\n    farewell.plane = plane\n",
        (
            "tests/unit/quorumlog_server/test_farewell.py"
            "::test_a_damaged_quorum_directory_is_reported_to_the_other_nodes",
        ),
    ),
    Mutant(
        "quorum-node ends with a traceback if the output of a command that succeeded cannot be written",
        "quorumlog_server/quorum_node.py",
        '        _say(line, "check where the output goes; the command itself succeeded")\n',
        "        print(line, flush=True)\n",
        (
            "tests/unit/quorumlog_server/test_quorum_node.py"
            "::test_commands_that_succeeded_report_a_full_disk_of_their_output_without_a_traceback",
        ),
    ),
)
