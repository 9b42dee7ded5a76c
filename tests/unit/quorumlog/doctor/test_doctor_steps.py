"""Every finding of doctor is in one of two tables: a test runs its next step, or a reason says why no test does."""

from __future__ import annotations

import ast
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import quorumlog.doctor

ROOT = Path(__file__).parents[4]
FOLDER = Path(quorumlog.doctor.__file__).parent
COMMANDS = "tests/integration/cli/test_doctor_commands.py"
FAILURES = "tests/integration/cli/test_doctor.py"

ADVICE_RUNS = f"{COMMANDS}::test_the_commands_that_doctor_prints_as_advice_run_unchanged"
BROKERS_ARE_REPLACED = f"{COMMANDS}::test_the_commands_of_doctor_replace_a_lost_broker"
VOTERS_FAIL = f"{FAILURES}::test_doctor_reports_voters_that_fail_one_after_the_other"

WRONG_ADDRESSES = f"{COMMANDS}::test_doctor_reports_wrong_addresses_and_duplicate_node_ids_until_they_are_corrected"

DISKS = "tests/integration/cli/test_doctor_disks.py"
GROUPS = "tests/integration/cli/test_doctor_groups.py"
LETTERS = "tests/integration/cli/test_dead_letters.py"
TRANSACTIONS = "tests/integration/cli/test_transactions.py"

RUN: dict[str, tuple[str, ...]] = {
    "BELOW_MIN_ISR": (
        f"{COMMANDS}::test_a_partition_below_min_insync_replicas_becomes_writable_by_the_steps_of_doctor",
    ),
    "CORDONED": (ADVICE_RUNS,),
    "DEAD_LETTERS_FAIL": (f"{LETTERS}::test_the_commands_of_doctor_remove_each_cause_of_failing_dead_letters",),
    "DIFFERENT_CLUSTERS": (WRONG_ADDRESSES,),
    "EVEN_VOTERS": (
        f"{COMMANDS}::test_the_commands_of_doctor_add_and_replace_voters",
        f"{COMMANDS}::test_the_command_of_doctor_removes_one_of_four_voters",
    ),
    "FENCED": (
        BROKERS_ARE_REPLACED,
        f"{FAILURES}::test_doctor_reports_single_replicas_killed_brokers_and_hanging_brokers",
    ),
    "HANGING_TRANSACTION": (f"{TRANSACTIONS}::test_a_transaction_that_lost_its_marker_is_found_and_aborted",),
    "LOST_REPLICA": (f"{COMMANDS}::test_the_commands_of_doctor_recreate_lost_replicas",),
    "MIN_ISR_IS_ALL": (ADVICE_RUNS, f"{COMMANDS}::test_doctor_lowers_min_insync_replicas_if_no_other_broker_exists"),
    "NOT_SERVING": (f"{DISKS}::test_the_command_of_doctor_moves_leadership_from_a_voter_whose_reads_hang",),
    "NO_BROKERS": (f"{COMMANDS}::test_the_command_of_doctor_starts_the_first_broker",),
    "NO_CLUSTER": (f"{COMMANDS}::test_doctor_requests_the_start_of_the_remaining_founders",),
    "NO_QUORUM": (VOTERS_FAIL,),
    "OFFSETS_UNDER_REPLICATED": (
        f"{GROUPS}::test_doctor_reports_flapping_groups_growing_lag_and_under_replicated_offsets",
    ),
    "OFFLINE": (
        f"{COMMANDS}::test_the_last_resort_of_doctor_gives_up_the_records_of_a_lost_last_replica",
        f"{COMMANDS}::test_the_commands_of_doctor_recreate_lost_replicas",
        f"{COMMANDS}::test_a_live_replica_is_kept_when_none_is_known_to_hold_all_records",
        BROKERS_ARE_REPLACED,
    ),
    "ONE_VOTER": (f"{COMMANDS}::test_the_commands_of_doctor_add_and_replace_voters",),
    "PAUSED": (VOTERS_FAIL,),
    "REASSIGNMENT_STUCK": (
        ADVICE_RUNS,
        f"{COMMANDS}::test_a_reassignment_to_a_broker_that_is_down_continues_or_is_cancelled",
    ),
    "REPLICATION_FACTOR_1": (ADVICE_RUNS,),
    "SAME_ID": (WRONG_ADDRESSES,),
    "SLOW_DISK": (f"{DISKS}::test_the_command_of_doctor_moves_leadership_from_a_voter_with_a_slow_disk",),
    "STRAYS": (f"{COMMANDS}::test_replicas_that_a_rebuilt_quorum_does_not_know_are_purged",),
    "TARGET_NOT_REACHED": (
        f"{COMMANDS}::test_a_change_of_voters_that_doctor_reports_as_blocked_continues_or_is_cancelled",
    ),
    "UNDER_REPLICATED": (BROKERS_ARE_REPLACED,),
    "UNKNOWN_ADDRESS": (WRONG_ADDRESSES,),
    "UNREACHABLE": (VOTERS_FAIL,),
    "VOTER_DOWN": (f"{COMMANDS}::test_a_voter_that_is_down_is_started_or_replaced",),
    "VOTER_NEW_DISK": (f"{COMMANDS}::test_the_commands_of_doctor_add_and_replace_voters",),
}
"""The tests on real clusters that perform the next step; at least one for each place that makes the finding."""

LOOK_AGAIN = "the step is to run doctor again, which every test on a real cluster does"
LOOK_AT_THE_NODE = "the step is to look at a log, a disk, the load or the network; what it shows decides"

SHOWN = "tests/integration/cli/test_doctor_groups.py runs the command that shows more"

NO_COMMAND: dict[str, str] = {
    "BROKER_UNREACHABLE": LOOK_AGAIN,
    "CHANGES_PENDING": LOOK_AT_THE_NODE,
    "CLOCKS": "the step is to set the clock of a machine",
    "COMPACTION_BEHIND": "found after an hour of waiting; the step is to raise a limit and restart",
    "CONTROLLER_SILENT": LOOK_AT_THE_NODE,
    "DIRECTORY_OFFLINE": "the step is to repair or replace a disk",
    "GROUPS_UNKNOWN": LOOK_AT_THE_NODE,
    "GROUP_FLAPS": f"the step is to look at members, which are clients; {SHOWN}",
    "GROUP_STUCK": f"the step is to look at members, which are clients; {SHOWN}",
    "GROUP_UNUSED": "found after three days without members; only the owner of the group knows whether its offsets are "
    "needed; other tests run `kctl groups delete`",
    "LAGGING": LOOK_AT_THE_NODE,
    "LAG_GROWS": f"the step is to start members, which are clients; {SHOWN}",
    "LEADER_UNREACHABLE": "the step is to make an address reachable, or to use another machine",
    "LONG_TRANSACTION": f"the step is to change its producer, a client; {TRANSACTIONS} runs both commands",
    "LOW_SPACE": "the step is to free space on a file system",
    "MARKERS_MISSING": LOOK_AT_THE_NODE,
    "METADATA_UNREADABLE": LOOK_AT_THE_NODE,
    "NOT_READY": LOOK_AT_THE_NODE,
    "NOT_REGISTERED": LOOK_AT_THE_NODE,
    "NO_COORDINATOR": "the step is that of OFFLINE, which is found with it",
    "NO_TRANSACTION_COORDINATOR": "the step is that of OFFLINE, which is found with it",
    "NO_LEADER": LOOK_AT_THE_NODE,
    "OLD_GENERATION": "the step is a chapter of docs/recovery.md; tests/integration/quorum/test_disaster.py follows it",
    "SHUTTING_DOWN": "found only while a broker stops; the step is to start it afterwards",
    "TARGET_IN_PROGRESS": "nothing has to be done: the change ends by itself",
    "TRANSACTIONS_UNKNOWN": LOOK_AT_THE_NODE,
    "UNCLEANABLE": "the step is to remove the cause that the finding names",
    "VOTER_CUT_OFF": LOOK_AT_THE_NODE,
    "VOTER_LAGGING": LOOK_AT_THE_NODE,
    "VOTER_UNREACHABLE": LOOK_AGAIN,
}
"""Findings without a command that repairs them, and what their step is instead."""


class Site(NamedTuple):
    """A place that makes a finding."""

    finding: str
    has_commands: bool


def sites() -> list[Site]:
    """Return every `Finding(severity, "WORD", …)` in doctor's source."""
    found = []
    for path in sorted(FOLDER.glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Finding"):
                continue
            words = {keyword.arg: keyword.value for keyword in node.keywords}
            word = node.args[1] if len(node.args) > 1 else words.get("finding")
            where = f"{path.name}:{node.lineno}"
            assert isinstance(word, ast.Constant), f"{where}: the word of a finding must be written there"
            assert isinstance(word.value, str), where
            found.append(Site(word.value, bool({"commands", "last_resort"} & words.keys()) or len(node.args) > 7))
    return found


def body_of(test: str) -> str:
    """Return the source of a test; empty if it does not exist."""
    path, name = test.split("::")
    source = (ROOT / path).read_text()
    for node in ast.parse(source).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name == name:
            return ast.get_source_segment(source, node) or ""
    return ""


def test_every_finding_is_in_exactly_one_table() -> None:
    known = Counter(word for table in (RUN, NO_COMMAND) for word in table)
    assert known == Counter({site.finding for site in sites()})


def test_the_commands_of_every_finding_are_run_by_a_test() -> None:
    with_commands = {site.finding for site in sites() if site.has_commands}
    assert with_commands <= RUN.keys()


def test_each_place_that_makes_a_finding_has_a_test() -> None:
    places = Counter(site.finding for site in sites())
    assert {word: len(tests) for word, tests in RUN.items() if len(tests) < places[word]} == {}


def test_the_listed_tests_exist_and_contain_their_finding() -> None:
    missing = [(word, test) for word, tests in RUN.items() for test in tests if f'"{word}"' not in body_of(test)]
    assert missing == []


def test_every_finding_without_a_command_has_a_reason() -> None:
    assert all(reason.strip() for reason in NO_COMMAND.values())
