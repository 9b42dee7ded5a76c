"""kctl groups with share groups: output, resets, deletions and refusals."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from quorumlog.client.group_descriptions import ListedGroup
from quorumlog.client.group_lag import share_partition_lag, share_sum
from quorumlog.client.share_groups import ShareOffset
from quorumlog.errors import ClusterError
from quorumlog.wire.errors import KafkaCode
from tests.unit.quorumlog.client.fake_shares import FakeShares
from tests.unit.quorumlog.kctl.group_bench import Bench, G


@pytest.fixture
def shares(bench: Bench) -> FakeShares:
    """A share group with one member, which has read from orders-0 but not yet from orders-1."""
    bench.do(lambda: bench.shares.join(G))
    bench.shares.starts[0] = 1
    return bench.shares


def leave(bench: Bench) -> None:
    bench.do(lambda: bench.shares.leave(G))


# -- list, describe


def test_a_share_group_is_listed_and_described(bench: Bench, shares: FakeShares) -> None:
    (listed,) = bench.json("list")
    assert (listed["group"], listed["type"], listed["state"]) == (G, "share", "Stable")
    document = bench.json("describe", G)
    assert (document["type"], document["assignor"], document["epoch"]) == ("share", "simple", 2)
    assert document["members"] == [
        {
            "member_id": "m-1",
            "instance_id": None,
            "client_id": "app",
            "host": "10.0.0.7",
            "epoch": 2,
            "subscription": ["orders"],
            "assignment": [{"topic": "orders", "partitions": [0, 1]}],
        }
    ]


# -- lag


def test_groups_lag_shows_the_lag_of_each_share_partition(bench: Bench, shares: FakeShares) -> None:
    rows = bench.json("lag", G)
    assert [(row["partition"], row["start_offset"], row["log_end_offset"], row["lag"]) for row in rows] == [
        (0, 1, 4, 3),
        (1, None, 2, None),
    ]
    assert [row["problem"] for row in rows] == [None, "no member has read it yet"]
    assert {row["committed_offset"] for row in rows} == {None}
    _, out = bench.say("lag", G)
    assert out.splitlines()[0] == f"{G}  type=share state=Stable lag=3", "an unread partition has no lag"
    assert out.splitlines()[1].split() == ["topic", "partition", "start_offset", "log_end_offset", "lag"]


def test_groups_lag_shows_a_lag_that_the_coordinator_does_not_know_as_unknown(bench: Bench, shares: FakeShares) -> None:
    shares.starts = {0: 1, 1: KafkaCode.COORDINATOR_NOT_AVAILABLE}
    shares.unknown.add(0)
    first, second = bench.json("lag", G)
    assert first["lag"] is None
    assert first["problem"] == "the coordinator reports no lag; the leader of the partition may not answer it"
    assert second["lag"] is None
    assert second["problem"].startswith("the offset of orders-1: ")
    assert bench.say("lag", G)[1].splitlines()[0] == f"{G}  type=share state=Stable lag=0, 2 unknown"


def test_the_lags_of_all_groups_include_share_groups(bench: Bench, shares: FakeShares) -> None:
    (row,) = bench.json("lag")
    assert (row["group"], row["type"], row["partitions"], row["lag"], row["unknown"]) == (G, "share", 1, 3, 0)
    assert row["worst"] == {"topic": "orders", "partition": 0}


def test_the_lag_of_a_share_group_is_followed(bench: Bench, shares: FakeShares) -> None:
    code, out = bench.say("lag", G, "--follow", "--interval", "0.1", "-o", "json", timeout="1")
    samples = [json.loads(line) for line in out.splitlines()]
    assert code == 0
    assert [(each["lag"], each["change"]) for each in samples[:2]] == [(3, None), (3, 0)]


def test_share_lag_reports_why_a_lag_is_unknown_or_records_are_deleted() -> None:
    lost = ClusterError("LEADER_NOT_AVAILABLE", "t-0: no leader", retriable=True)
    key = ("t", 0)
    complete = share_partition_lag(key, ShareOffset(5, 2), 0, 9)
    assert (complete.lag, complete.has_lag, complete.problem, complete.log_end) == (2, True, None, 9)
    headless = share_partition_lag(key, ShareOffset(5, None), 0, lost)
    assert (headless.lag, headless.has_lag, headless.problem) == (None, True, "t-0: no leader")
    unreadable = share_partition_lag(key, ShareOffset(None, None, "its state is lost"), 0, lost)
    assert (unreadable.lag, unreadable.has_lag, unreadable.problem) == (None, True, "its state is lost")
    deleted = share_partition_lag(key, ShareOffset(5, 4), 7, 9)
    assert (deleted.lag, deleted.problem) == (4, "the records from 5 to 7 (exclusive) are deleted")
    assert share_partition_lag(key, ShareOffset(7, 2), 7, 9).problem is None
    for unread in (None, ShareOffset(None, None)):
        found = share_partition_lag(key, unread, 0, 9)
        assert (found.lag, found.has_lag, found.problem) == (None, False, "no member has read it yet")


def test_the_lag_sum_of_a_share_group_counts_unknown_and_skips_unread_partitions() -> None:
    group = ListedGroup("g", "share", "Stable", "share", 1)
    shares = {
        ("t", 0): ShareOffset(5, 2),
        ("t", 1): ShareOffset(5, 7),
        ("t", 2): ShareOffset(5, None),
        ("t", 3): ShareOffset(None, None, "its state is lost"),
        ("t", 4): ShareOffset(None, None),
    }
    total = share_sum(group, shares)
    assert (total.partitions, total.lag, total.unknown, total.worst, total.worst_lag) == (4, 9, 2, ("t", 1), 7)
    assert share_sum(group, {("t", 4): ShareOffset(None, None)}).partitions == 0


# -- reset-offsets


RESET = ("reset-offsets", G, "--all-topics")


def starts(bench: Bench) -> list[int | None]:
    return [row["start_offset"] for row in bench.json("lag", G)]


def test_start_offsets_are_set_and_a_repetition_changes_nothing(bench: Bench, shares: FakeShares) -> None:
    leave(bench)
    planned = bench.json(*RESET, "--to-latest", "--dry-run")
    assert (planned["changed"], starts(bench)) == (False, [1, None])
    document = bench.json(*RESET, "--to-latest")
    assert document == {**planned, "changed": True, "dry_run": False}
    assert [
        (each["before"], each["after"], each["lag_before"], each["lag_after"]) for each in document["partitions"]
    ] == [
        (1, 4, 3, 0),
        (None, 2, None, 0),
    ]
    assert starts(bench) == [4, 2]
    assert bench.json(*RESET, "--to-latest")["changed"] is False


def test_an_unchanged_start_offset_is_set_if_later_records_were_acknowledged(bench: Bench, shares: FakeShares) -> None:
    leave(bench)
    shares.starts[1], shares.done[0] = 2, 2
    reset = ("reset-offsets", G, "--topic", "orders:0", "--to-offset", "1")
    (row,) = bench.json(*reset)["partitions"]
    assert (row["before"], row["after"], row["lag_before"], row["lag_after"]) == (1, 1, 1, 3)
    assert shares.done == {}
    assert bench.json(*reset)["changed"] is False


def test_reset_offsets_restores_start_offsets_that_groups_lag_printed(
    bench: Bench, shares: FakeShares, tmp_path: Path
) -> None:
    leave(bench)
    saved = tmp_path / "offsets.json"
    saved.write_text(json.dumps(bench.json("lag", G)))
    bench.json(*RESET, "--to-latest")
    assert bench.json("reset-offsets", G, "--from-file", str(saved))["changed"] is True
    assert starts(bench) == [1, 2], "the partition without a start is not in the file"


def test_reset_offsets_creates_a_share_group_only_with_the_create_share_option(bench: Bench) -> None:
    reset = ("reset-offsets", G, "--topic", "orders", "--to-earliest")
    assert "--create-share" in bench.refused(3, *reset)["next"]
    assert bench.json(*reset, "--create-share")["state"] is None
    assert (bench.json("describe", G)["type"], starts(bench)) == ("share", [0, 0])
    assert bench.json(*reset, "--create-share")["changed"] is False
    assert bench.refused(2, *reset, "--create-share", "--create")["error"] == "USAGE"


def test_a_group_of_another_type_is_not_changed_as_a_share_group(bench: Bench) -> None:
    bench.commit(1, 2)
    error = bench.refused(5, *RESET, "--to-latest", "--create-share")
    assert error["error"] == "UNSUPPORTED_GROUP_TYPE"
    assert bench.offsets() == [1, 2]


def test_start_offsets_of_a_group_with_members_are_not_set(bench: Bench, shares: FakeShares) -> None:
    error = bench.refused(5, *RESET, "--to-latest")
    assert (error["error"], "'m-1' ('app' at 10.0.0.7)" in error["message"]) == ("NON_EMPTY_GROUP", True)
    assert starts(bench) == [1, None]


def test_a_start_offset_that_the_coordinator_refuses_is_an_error(bench: Bench, shares: FakeShares) -> None:
    leave(bench)
    shares.refusals[1] = KafkaCode.POLICY_VIOLATION
    error = bench.refused(5, *RESET, "--to-latest")
    assert error["error"] == "POLICY_VIOLATION"
    assert error["message"].startswith(f"group {G}: the start of orders-1: ")


# -- deletions


def test_a_share_group_with_members_is_not_deleted_nor_are_its_offsets(bench: Bench, shares: FakeShares) -> None:
    for command in (("delete", G), ("delete-offsets", G, "orders")):
        error = bench.refused(5, *command)
        assert (error["error"], "'m-1' ('app' at 10.0.0.7)" in error["message"]) == ("NON_EMPTY_GROUP", True)
    assert len(bench.json("lag", G)) == 2


def test_an_empty_share_group_is_deleted(bench: Bench, shares: FakeShares) -> None:
    leave(bench)
    assert bench.json("delete", G, "--dry-run")["changed"] is False
    assert bench.json("delete", G)["changed"] is True
    assert bench.json("list") == []
    assert bench.refused(3, "lag", G)["error"] == "GROUP_ID_NOT_FOUND"


def test_the_offsets_of_an_empty_share_group_are_deleted_by_topic(bench: Bench, shares: FakeShares) -> None:
    leave(bench)
    planned = bench.json("delete-offsets", G, "orders", "--dry-run")
    assert (planned["changed"], planned["partitions"]) == (False, [0, 1])
    assert len(bench.json("lag", G)) == 2, "a dry run changes nothing"
    assert bench.json("delete-offsets", G, "orders") == {**planned, "changed": True}
    assert bench.json("lag", G) == []
    again = bench.json("delete-offsets", G, "orders")
    assert (again["changed"], again["partitions"]) == (False, [])


# -- refusals


@pytest.mark.parametrize(
    ("command", "reason", "next_step"),
    [
        (("explain", G), "whose rebalances are not recorded", f"kctl groups describe {G}"),
        (
            ("delete-offsets", G, "orders:1"),
            "whose offsets can only be deleted for whole topics",
            f"kctl groups delete-offsets {G} orders",
        ),
    ],
)
def test_commands_that_do_not_support_share_groups_refuse_them_with_a_next_step(
    bench: Bench, shares: FakeShares, command: tuple[str, ...], reason: str, next_step: str
) -> None:
    leave(bench)
    error = bench.refused(5, *command)
    assert (error["error"], error["retriable"]) == ("UNSUPPORTED_GROUP_TYPE", False)
    assert error["message"] == f"group {G} is a share group, {reason}"
    assert error["next"] == next_step
    assert len(bench.json("lag", G)) == 2
