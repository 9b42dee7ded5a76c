"""kctl groups with the real state machines of groups and real listeners: output, exit codes, and every refusal."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest

from quorumlog.client.group_descriptions import CommittedOffset, ListedGroup
from quorumlog.client.group_lag import lag_sum, partition_lag
from quorumlog.errors import ClusterError
from quorumlog.wire.errors import KafkaCode
from tests.unit.quorumlog.client.fake_groups import OFFSETS, begin_join, commit_offsets
from tests.unit.quorumlog.kctl.group_bench import Bench, G

# -- list, describe


def test_groups_are_listed_with_type_state_and_coordinator(bench: Bench) -> None:
    assert bench.json("list") == []
    bench.commit(1)
    expected = {"group": G, "type": "classic", "state": "Empty", "protocol_type": None, "coordinator": 1}
    assert bench.json("list") == [expected]
    assert bench.json("list", "--state", "empty") == [expected]
    assert bench.json("list", "--state", "Stable") == []
    code, out = bench.say("list")
    assert (code, out.split()) == (0, [*expected, G, "classic", "Empty", "-", "1"])


def test_a_state_that_does_not_exist_is_wrong_usage(bench: Bench) -> None:
    assert bench.refused(2, "list", "--state", "happy")["error"] == "USAGE"


def test_groups_describe_shows_the_state_and_members_of_a_group(bench: Bench) -> None:
    member_id = bench.join()
    document = bench.json("describe", G)
    assert document["members"] == [
        {
            "member_id": member_id,
            "instance_id": None,
            "client_id": "app",
            "host": "10.0.0.7",
            "epoch": None,
            "subscription": ["orders"],
            "assignment": [{"topic": "orders", "partitions": [0]}],
        }
    ]
    del document["members"]
    assert document == {
        "group": G,
        "type": "classic",
        "state": "Stable",
        "protocol_type": "consumer",
        "assignor": "range",
        "epoch": None,
        "coordinator": 1,
    }
    _, out = bench.say("describe", G)
    assert "state=Stable" in out
    assert "orders-0" in out


@pytest.mark.parametrize(
    "arguments",
    [
        ("describe", "c"),
        ("explain", "c"),
        ("lag", "c"),
        ("lag", "c", "--follow"),
        ("delete", "c"),
        ("delete-offsets", "c", "orders"),
        ("reset-offsets", "c", "--topic", "orders", "--to-latest"),
    ],
)
def test_commands_on_a_missing_group_fail_with_group_id_not_found(bench: Bench, arguments: tuple[str, ...]) -> None:
    error = bench.refused(3, *arguments)
    assert (error["error"], error["retriable"]) == ("GROUP_ID_NOT_FOUND", False)
    assert "kctl groups list" in error["next"]


@pytest.mark.parametrize(
    "arguments",
    [
        ("list",),
        ("describe", G),
        ("explain", G),
        ("lag", G),
        ("lag",),
        ("delete", G),
        ("delete-offsets", G, "orders"),
        ("reset-offsets", G, "--all-topics", "--to-latest"),
    ],
)
def test_group_commands_time_out_while_the_coordinator_is_loading(bench: Bench, arguments: tuple[str, ...]) -> None:
    bench.commit(1)
    bench.groups.refusal = KafkaCode.COORDINATOR_LOAD_IN_PROGRESS
    error = bench.refused(4, *arguments, timeout="0.6")
    assert (error["error"], error["retriable"], error["next"]) == ("TIMED_OUT", True, "kctl doctor")
    bench.groups.refusal = None
    assert bench.offsets() == [1]


@pytest.mark.parametrize("command", ["list", "lag"])
def test_a_broker_that_hangs_does_not_hide_the_groups_of_others(bench: Bench, command: str) -> None:
    bench.commit(1, 2)
    bench.do(lambda: bench.groups.hangs.add(2))
    code, out = bench.say(command, "-o", "json", timeout="2")
    assert (code, [row["group"] for row in json.loads(out)]) == (4, [G])
    error = json.loads(bench.errors)
    assert (error["error"], error["retriable"], error["next"]) == ("TIMED_OUT", True, "kctl doctor")
    assert error["message"].startswith("the output lacks groups: ")
    assert "broker 2: " in error["message"]
    code, out = bench.say(command, timeout="2")
    assert (code, G in out) == (4, True)
    assert "broker 2: " in bench.errors


def test_following_lag_shows_known_groups_although_a_broker_hangs(bench: Bench) -> None:
    bench.commit(1, 2)
    bench.do(lambda: bench.groups.hangs.add(2))
    code, out = bench.say("lag", "--follow", "--interval", "0.1", "-o", "json", timeout="3")
    assert (code, json.loads(out.splitlines()[0])["lag"]) == (0, 3)


# -- explain


def test_the_last_rebalances_are_explained(bench: Bench) -> None:
    member_id = bench.join()
    document = bench.json("explain", G)
    (rebalance,) = document["rebalances"]
    assert (rebalance["reason"], rebalance["member_id"], rebalance["members"]) == ("joined", member_id, 1)
    assert (rebalance["client_id"], rebalance["host"], rebalance["duration_ms"]) == ("app", "10.0.0.7", 3_000)
    assert document["last_joined"]["member_id"] == member_id
    assert (document["state"], document["coordinator"], document["awaited"]) == ("Stable", 1, [])
    _, out = bench.say("explain", G)
    assert f"member '{member_id}' joined" in out
    assert f"the last member to join was '{member_id}' ('app' at 10.0.0.7), at 20" in out
    assert "broker 1 has coordinated the group since 20" in out
    assert "and remembers 1 rebalance since then" in out


def test_a_rebalance_in_progress_names_the_members_that_it_waits_for(bench: Bench) -> None:
    member_id = bench.join()
    bench.do(lambda: begin_join(bench.groups, G))
    _, out = bench.say("explain", G)
    assert "in progress" in out
    assert f"it waits for '{member_id}' ('app' at 10.0.0.7)" in out
    assert [each["member_id"] for each in bench.json("explain", G)["awaited"]] == [member_id]


def test_groups_explain_shows_since_when_a_group_is_empty(bench: Bench) -> None:
    bench.commit(1)
    document = bench.json("explain", G)
    assert (document["empty_since_at"][:2], document["last_joined"], document["rebalances"]) == ("20", None, [])
    assert "the group has had no members and no commits since 20" in bench.say("explain", G)[1]


# -- lag


def test_groups_lag_reports_partitions_without_a_committed_offset(bench: Bench) -> None:
    member_id = bench.join()
    rows = bench.json("lag", G)
    assert [(row["partition"], row["lag"], row["member_id"], row["problem"]) for row in rows] == [
        (0, None, member_id, "no offset is committed")
    ]
    code, _ = bench.say("lag", G)
    assert (code, bench.errors) == (0, "orders-0: no offset is committed\n")


def test_groups_lag_shows_the_lag_of_a_group_without_members(bench: Bench) -> None:
    bench.commit(1, 2)
    rows = bench.json("lag", G)
    assert [(row["committed_offset"], row["log_start_offset"], row["log_end_offset"], row["lag"]) for row in rows] == [
        (1, 0, 4, 3),
        (2, 0, 2, 0),
    ]
    _, out = bench.say("lag", G)
    assert out.splitlines()[0] == f"{G}  type=classic state=Empty lag=3"


def test_groups_lag_without_a_group_name_shows_all_groups(bench: Bench) -> None:
    bench.commit(1, 2)
    (row,) = bench.json("lag")
    assert row == {
        "group": G,
        "type": "classic",
        "state": "Empty",
        "partitions": 2,
        "lag": 3,
        "unknown": 0,
        "worst": {"topic": "orders", "partition": 0},
        "worst_lag": 3,
    }
    assert "orders-0" in bench.say("lag")[1]


def test_following_lag_prints_each_sample_until_the_timeout(bench: Bench) -> None:
    bench.commit(1, 2)
    code, out = bench.say("lag", G, "--follow", "--interval", "0.1", "-o", "json", timeout="1")
    samples = [json.loads(line) for line in out.splitlines()]
    assert code == 0
    assert len(samples) >= 2
    assert [(each["lag"], each["change"]) for each in samples[:2]] == [(3, None), (3, 0)]
    assert [row["lag"] for row in samples[0]["partitions"]] == [3, 0]
    code, out = bench.say("lag", "--follow", "--interval", "0.1", timeout="1")
    assert code == 0
    assert f"  {G}  Empty  lag=3  change=+0  worst=orders-0 (3)" in out


def test_following_lag_ends_when_its_output_is_closed(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    bench.commit(1, 2)
    reader, writer = os.pipe()
    os.close(reader)  # as `| head -1` does after the first line
    begun = time.monotonic()
    with os.fdopen(writer, "w") as standard_output:
        monkeypatch.setattr("sys.stdout", standard_output)
        assert bench.say("lag", G, "--follow", "--interval", "0.1", timeout="10")[0] == 0
    assert time.monotonic() - begun < 8


def test_an_interval_without_follow_is_wrong_usage(bench: Bench) -> None:
    assert bench.refused(2, "lag", G, "--interval", "1")["error"] == "USAGE"


def test_lag_reports_partitions_without_a_leader_or_with_offsets_outside_the_log() -> None:
    lost = ClusterError("LEADER_NOT_AVAILABLE", "t-0: no leader", retriable=True)
    offset = CommittedOffset(5)
    assert partition_lag(("t", 0), offset, 0, 9, None).problem is None
    unknown = partition_lag(("t", 0), offset, 0, lost, None)
    assert (unknown.lag, unknown.problem) == (None, "t-0: no leader")
    deleted = partition_lag(("t", 0), offset, 7, 9, None)
    assert (deleted.lag, deleted.problem) == (4, "the records from 5 to 7 (exclusive) are deleted")
    ahead = partition_lag(("t", 0), offset, 0, 3, None)
    assert (ahead.lag, ahead.problem) == (0, "the committed offset is after the log end 3")
    group = ListedGroup("g", "classic", "Empty", "", 1)
    total = lag_sum(group, {("t", 0): offset, ("t", 1): offset}, {("t", 0): 9, ("t", 1): lost})
    assert (total.lag, total.unknown, total.worst, total.worst_lag) == (4, 1, ("t", 0), 4)
    assert lag_sum(group, {("t", 0): offset}, {("t", 0): 5}).worst is None


# -- reset-offsets


def test_offsets_are_reset_and_a_repetition_changes_nothing(bench: Bench) -> None:
    bench.commit(1, 2)
    reset = ("reset-offsets", G, "--all-topics", "--to-earliest")
    planned = bench.json(*reset, "--dry-run")
    assert (planned["changed"], planned["dry_run"], bench.offsets()) == (False, True, [1, 2])
    done = bench.json(*reset)
    assert done == {**planned, "changed": True, "dry_run": False}
    assert [(each["before"], each["after"], each["lag_before"], each["lag_after"]) for each in done["partitions"]] == [
        (1, 0, 3, 4),
        (2, 0, 0, 2),
    ]
    assert bench.offsets() == [0, 0]
    again = bench.json(*reset)
    assert (again["changed"], [each["before"] for each in again["partitions"]]) == (False, [0, 0])
    assert bench.say(*reset)[1].endswith(f"group {G} already has these offsets\n")


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        (("--to-latest",), [4, 2]),
        (("--to-offset", "3"), [3, 2]),
        (("--shift-by", "-1"), [0, 1]),
        (("--to-datetime", "1970-01-01T00:00:02Z"), [2, 2]),
        (("--by-duration", "1h"), [4, 2]),
    ],
)
def test_reset_offsets_supports_each_way_to_choose_the_offsets(
    bench: Bench, where: tuple[str, ...], expected: list[int]
) -> None:
    bench.commit(1, 2)
    bench.json("reset-offsets", G, "--topic", "orders", *where)
    assert bench.offsets() == expected


def test_only_the_named_partitions_are_reset(bench: Bench) -> None:
    bench.commit(1, 2)
    bench.json("reset-offsets", G, "--topic", "orders:1", "--to-earliest")
    assert bench.offsets() == [1, 0]


def test_reset_offsets_restores_offsets_that_groups_lag_printed(bench: Bench, tmp_path: Path) -> None:
    bench.commit(1, 2)
    saved = tmp_path / "offsets.json"
    saved.write_text(json.dumps(bench.json("lag", G)))
    bench.json("reset-offsets", G, "--all-topics", "--to-earliest")
    document = bench.json("reset-offsets", G, "--from-file", str(saved))
    assert (document["changed"], bench.offsets()) == (True, [1, 2])
    bench.json("reset-offsets", G, "--all-topics", "--to-earliest")
    bench.json("reset-offsets", G, "--from-file", str(saved), "--topic", "orders:0")
    assert bench.offsets() == [1, 0]


def test_reset_offsets_refuses_an_active_group_and_names_its_members(bench: Bench) -> None:
    bench.commit(1, 2)
    member_id = bench.join()
    error = bench.refused(5, "reset-offsets", G, "--all-topics", "--to-latest")
    assert error["error"] == "NON_EMPTY_GROUP"
    assert f"'{member_id}' ('app' at 10.0.0.7)" in error["message"]
    assert bench.offsets() == [1, 2]


def test_reset_offsets_creates_a_missing_group_only_with_the_create_option(bench: Bench) -> None:
    reset = ("reset-offsets", G, "--topic", "orders", "--to-latest")
    assert "--create" in bench.refused(3, *reset)["next"]
    assert bench.json(*reset, "--create")["state"] is None
    assert bench.offsets() == [4, 2]


@pytest.mark.parametrize(("name", "next_step"), [("my group", "'my group'"), ("-g", "-- -g")])
def test_the_next_step_of_an_error_is_a_complete_command_for_any_name(bench: Bench, name: str, next_step: str) -> None:
    bench.do(lambda: commit_offsets(bench.groups, name, 1))
    reset = ("reset-offsets", "--topic", "orders", "--to-latest", "--create-share", "-o", "json", "--", name)
    assert bench.say(*reset)[0] == 5
    assert json.loads(bench.errors)["next"] == f"kctl groups describe {next_step}"


@pytest.mark.parametrize("option", ["--create", "--create-share"])
def test_a_dry_run_that_would_create_a_group_does_not_create_the_internal_topic(bench: Bench, option: str) -> None:
    bench.threaded.run(bench.threaded.brokers.delete(OFFSETS))
    planned = bench.json("reset-offsets", G, "--topic", "orders", "--to-latest", option, "--dry-run")
    assert [(each["before"], each["after"]) for each in planned["partitions"]] == [(None, 4), (None, 2)]
    assert (planned["changed"], bench.groups.creations) == (False, 0)


def test_reset_offsets_refuses_missing_partitions_before_it_sets_any_offset(bench: Bench, tmp_path: Path) -> None:
    bench.commit(1, 2)
    file = tmp_path / "offsets"
    file.write_text("orders,0,3\norders,7,3\n")
    for arguments in (
        ("--topic", "orders", "--topic", "bills", "--to-latest"),
        ("--topic", "orders:0,2", "--to-latest"),
        ("--from-file", str(file)),
    ):
        assert bench.refused(3, "reset-offsets", G, *arguments)["error"] == "UNKNOWN_TOPIC_OR_PARTITION"
    assert bench.offsets() == [1, 2]


def test_without_committed_offsets_all_topics_and_shifts_are_refused(bench: Bench) -> None:
    bench.commit(1)
    assert bench.refused(5, "reset-offsets", G, "--topic", "orders", "--shift-by", "1")["error"] == (
        "OFFSET_NOT_COMMITTED"
    )
    error = bench.refused(5, "reset-offsets", "d", "--all-topics", "--to-latest", "--create")
    assert error["error"] == "OFFSET_NOT_COMMITTED"


@pytest.mark.parametrize(
    "arguments",
    [
        (),
        ("--topic", "orders"),
        ("--to-latest",),
        ("--topic", "orders", "--all-topics", "--to-latest"),
        ("--topic", "orders", "--to-latest", "--to-earliest"),
        ("--topic", "orders:", "--to-latest"),
        ("--topic", ":1", "--to-latest"),
        ("--topic", "orders:1,x", "--to-latest"),
        ("--topic", "orders", "--to-offset", "-1"),
        ("--topic", "orders", "--to-datetime", "tomorrow"),
        ("--topic", "orders", "--by-duration", "soon"),
        ("--from-file", "no-such-file"),
        ("--all-topics", "--from-file", "/dev/null"),
        ("--from-file", "/dev/null"),
    ],
)
def test_invalid_options_of_reset_offsets_are_wrong_usage(bench: Bench, arguments: tuple[str, ...]) -> None:
    bench.commit(1, 2)
    assert bench.refused(2, "reset-offsets", G, *arguments)["error"] == "USAGE"
    assert bench.offsets() == [1, 2]


# -- deletions


def test_a_group_is_deleted_and_then_missing(bench: Bench) -> None:
    bench.commit(1, 2)
    planned = bench.json("delete", G, "--dry-run")
    assert (planned["changed"], bench.offsets()) == (False, [1, 2])
    document = bench.json("delete", G, G)
    result = {"group": G, "deleted": True, "error": None, "message": None}
    assert document == {"changed": True, "offset": None, "groups": [result]}
    assert bench.refused(3, "delete", G)["error"] == "GROUP_ID_NOT_FOUND"
    assert bench.json("delete", G, "--if-exists")["changed"] is False


def test_deletion_skips_a_group_with_members_and_deletes_the_others(bench: Bench) -> None:
    bench.join()
    bench.do(lambda: commit_offsets(bench.groups, "d", 1))
    code, out = bench.say("delete", G, "d", "-o", "json")
    document = json.loads(out)
    assert (code, document["changed"]) == (5, True)
    assert [(each["group"], each["deleted"], each["error"]) for each in document["groups"]] == [
        (G, False, "NON_EMPTY_GROUP"),
        ("d", True, None),
    ]
    assert "'app' at 10.0.0.7" in json.loads(bench.errors)["message"]


def test_deletion_reports_deleted_groups_although_another_coordinator_hangs(bench: Bench) -> None:
    bench.commit(1, 2)
    bench.do(lambda: bench.groups.hangs.add(2))
    of_the_other = ("a", "c", "e", "g", "i", "k")
    code, out = bench.say("delete", *of_the_other, G, "-o", "json", timeout="1")
    groups = json.loads(out)["groups"]
    assert (code, [each["group"] for each in groups if each["deleted"]]) == (4, [G])
    assert {each["error"] for each in groups} == {None, "TIMED_OUT"}


def test_offsets_of_a_topic_are_deleted_and_a_repetition_changes_nothing(bench: Bench) -> None:
    bench.commit(1, 2)
    bench.do(lambda: commit_offsets(bench.groups, G, 1, topic="bills"))
    assert bench.json("delete-offsets", G, "orders", "--dry-run")["changed"] is False
    document = bench.json("delete-offsets", G, "orders:1")
    expected = {"changed": True, "offset": None, "group": G, "topic": "orders", "partitions": [1]}
    assert document == expected
    assert bench.json("delete-offsets", G, "orders")["partitions"] == [0]
    again = bench.json("delete-offsets", G, "orders")
    assert (again["changed"], again["partitions"]) == (False, [])
    assert bench.json("delete-offsets", "c", "orders", "--if-exists")["changed"] is False


def test_offsets_of_a_subscribed_topic_are_not_deleted(bench: Bench) -> None:
    bench.commit(1, 2)
    bench.join()
    error = bench.refused(5, "delete-offsets", G, "orders")
    assert (error["error"], "'app' at 10.0.0.7" in error["message"]) == ("NON_EMPTY_GROUP", True)
    assert bench.offsets() == [1, 2]
