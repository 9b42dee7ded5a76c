"""kctl brokers moves, and kctl reassign with plans that name data directories."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import pytest

from quorumlog.client.log_dirs import DataDirectory, HeldReplica
from quorumlog.errors import ClusterError
from quorumlog.kctl import directories, inputs, reassign
from quorumlog.kctl.main import run
from quorumlog.wire import rpcs
from quorumlog.wire.errors import KafkaCode
from tests.unit.quorumlog.kctl.test_commands import FakeClient, client
from tests.unit.quorumlog.kctl.test_reassign import altered, brokers, described, going_on

__all__ = ["client"]

KEY = ("t", 0)


class FakeLogDirs:
    """Brokers 11 and 12 with the directories /a and /b; t-0 is in /a.  finishes: a description completes all moves."""

    def __init__(self) -> None:
        self.where: dict[int, str | None] = {11: "/a", 12: "/a"}
        self.moving: dict[int, str] = {}
        self.failed: set[str] = set()
        self.silent: set[int] = set()
        self.requests: list[tuple[int, dict[tuple[str, int], str]]] = []
        self.refusal: KafkaCode | None = None
        self.finishes = False
        self.missing = KafkaCode.REPLICA_NOT_AVAILABLE

    async def describe(self, broker_id: int, timeout_s: float) -> list[DataDirectory]:
        if broker_id in self.silent:
            raise ClusterError("BROKER_UNAVAILABLE", "no answer", retriable=True)
        if self.finishes and broker_id in self.moving:
            self.where[broker_id] = self.moving.pop(broker_id)
        return [
            DataDirectory(
                path,
                path in self.failed,
                tuple(
                    HeldReplica(*KEY, size, 0, is_future)
                    for where, size, is_future in (
                        (self.where[broker_id], 100, False),
                        (self.moving.get(broker_id), 30, True),
                    )
                    if where == path
                ),
            )
            for path in ("/a", "/b")
        ]

    async def move(
        self, broker_id: int, wanted: Mapping[tuple[str, int], str], timeout_s: float
    ) -> dict[tuple[str, int], KafkaCode]:
        self.requests.append((broker_id, dict(wanted)))
        if self.refusal is not None:
            return dict.fromkeys(wanted, self.refusal)
        if self.where[broker_id] is None:
            return dict.fromkeys(wanted, self.missing)
        if (path := wanted[KEY]) != self.where[broker_id]:
            self.moving[broker_id] = path
        return dict.fromkeys(wanted, KafkaCode.NONE)


@pytest.fixture
def log_dirs(client: FakeClient, monkeypatch: pytest.MonkeyPatch) -> FakeLogDirs:
    """t-0 is on brokers 11 and 12, and no reassignment is in progress."""
    found = FakeLogDirs()

    @asynccontextmanager
    async def opened(_context: Any) -> AsyncIterator[FakeLogDirs]:
        yield found

    monkeypatch.setattr(directories, "open_log_dirs", opened)
    monkeypatch.setattr(reassign, "open_log_dirs", opened)
    client.replies |= {
        rpcs.DESCRIBE_BROKERS: brokers(b11=False, b12=False),
        rpcs.DESCRIBE_TOPICS: described((11, 12)),
        rpcs.LIST_REASSIGNMENTS: going_on(),
        rpcs.ALTER_REASSIGNMENTS: altered((0, False, "t-0 is on these brokers already")),
    }
    return found


def said(capsys: pytest.CaptureFixture[str], code: int, *arguments: str) -> tuple[str, str]:
    assert run([*arguments]) == code
    captured = capsys.readouterr()
    return captured.out, captured.err


def planned(monkeypatch: pytest.MonkeyPatch, *paths: str) -> None:
    row = {"topic": "t", "partition": 0, "replicas": [11, 12], "log_dirs": list(paths)}

    async def read(*_: object) -> bytes:
        return json.dumps({"version": 1, "partitions": [row]}).encode()

    monkeypatch.setattr(inputs, "read", read)


START = ("reassign", "start", "--plan", "-")
VERIFY = ("reassign", "verify", "--plan", "-")


def test_brokers_moves_shows_how_many_bytes_each_move_still_has_to_copy(
    log_dirs: FakeLogDirs, capsys: pytest.CaptureFixture[str]
) -> None:
    assert said(capsys, 0, "brokers", "moves")[0] == "no replica moves between directories\n"
    log_dirs.moving[12] = "/b"
    out, _ = said(capsys, 0, "brokers", "moves", "-o", "json")
    (row,) = json.loads(out)
    assert (row.pop("offset"), row.pop("unconfirmed")) == (0, False)
    assert row == {"broker": 12, "topic": "t", "partition": 0, "from": "/a", "to": "/b", "bytes_left": 70}
    out, _ = said(capsys, 0, "brokers", "moves")
    assert out.split()[-6:] == ["12", "t", "0", "/a", "/b", "70"]
    assert json.loads(said(capsys, 0, "brokers", "moves", "--broker", "11", "-o", "json")[0]) == []


def test_brokers_moves_shows_other_brokers_although_one_does_not_answer(
    log_dirs: FakeLogDirs, capsys: pytest.CaptureFixture[str]
) -> None:
    log_dirs.moving[12] = "/b"
    log_dirs.silent.add(11)
    out, err = said(capsys, 4, "brokers", "moves", "-o", "json")
    assert [row["broker"] for row in json.loads(out)] == [12]
    assert "the moves of brokers 11 are not known" in err
    assert "no broker 13 is registered" in said(capsys, 3, "brokers", "moves", "--broker", "13")[1]


def test_a_plan_moves_replicas_to_the_directories_that_it_names(
    log_dirs: FakeLogDirs, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    planned(monkeypatch, "any", "/b/")
    out, _ = said(capsys, 0, *START, "-o", "json")
    document = json.loads(out)
    row = {"broker": 12, "topic": "t", "partition": 0, "directory": "/b", "changed": True}
    assert (document["changed"], document["directories"]) == (True, [row])
    assert log_dirs.requests == [(12, {KEY: "/b"})]
    assert "still being moved: t-0" in said(capsys, 4, *VERIFY)[1]
    log_dirs.finishes = True
    said(capsys, 0, *START, "--wait")
    said(capsys, 0, *VERIFY)
    log_dirs.where[12] = "/a"
    assert "not as planned: t-0" in said(capsys, 1, *VERIFY)[1]


def test_a_dry_run_of_a_plan_moves_no_replica(
    log_dirs: FakeLogDirs, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    planned(monkeypatch, "any", "/b")
    assert "1 replica would move to the planned directory" in said(capsys, 0, *START, "--dry-run")[1]
    assert not log_dirs.requests


def test_a_planned_directory_is_requested_before_its_replica_exists(
    log_dirs: FakeLogDirs, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    log_dirs.where[12] = None
    planned(monkeypatch, "any", "/b")
    for log_dirs.missing in (KafkaCode.REPLICA_NOT_AVAILABLE, KafkaCode.UNKNOWN_TOPIC_OR_PARTITION):
        log_dirs.requests.clear()
        assert "1 replica moves to the planned directory" in said(capsys, 0, *START)[1]
        assert log_dirs.requests == [(12, {KEY: "/b"})]


def test_a_plan_with_an_unusable_directory_or_a_refused_reassignment_moves_nothing(
    log_dirs: FakeLogDirs, client: FakeClient, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    planned(monkeypatch, "/b", "/c")
    assert "broker 12 has no data directory '/c' (next: name one of /a, /b, or any)" in said(capsys, 3, *START)[1]
    planned(monkeypatch, "/b", "/b")
    log_dirs.failed.add("/b")
    assert "the data directory '/b' of broker 11 is offline" in said(capsys, 5, *START)[1]
    log_dirs.failed.clear()
    client.replies[rpcs.ALTER_REASSIGNMENTS] = ClusterError("REASSIGNMENT_IN_PROGRESS", "t-0 is being reassigned")
    assert "t-0 is being reassigned" in said(capsys, 5, *START)[1]
    assert not log_dirs.requests


def test_the_error_of_a_refused_directory_names_the_replica(
    log_dirs: FakeLogDirs, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    planned(monkeypatch, "any", "/b")
    for log_dirs.refusal in (KafkaCode.KAFKA_STORAGE_ERROR, KafkaCode.REPLICA_NOT_AVAILABLE):
        text = f"t-0: broker 12 refuses the directory: {log_dirs.refusal.name}"
        assert text in said(capsys, 4, *START)[1]


def test_a_cancelled_move_between_directories_is_reported(
    log_dirs: FakeLogDirs, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    planned(monkeypatch, "any", "/b")
    move = log_dirs.move

    async def cancelled(*arguments: Any) -> Any:
        codes = await move(*arguments)
        log_dirs.moving.clear()
        return codes

    monkeypatch.setattr(log_dirs, "move", cancelled)
    assert "a move was cancelled or given up" in said(capsys, 1, *START, "--wait")[1]


def test_verify_shows_the_directories_that_differ_and_the_command_that_shows_the_move(
    log_dirs: FakeLogDirs, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    planned(monkeypatch, "/a", "/b")
    _, err = said(capsys, 1, *VERIFY)
    assert "t-0: broker 12 has it in /a, not in /b" in err.splitlines()
    (row,) = json.loads(said(capsys, 1, *VERIFY, "-o", "json")[0])
    assert row["directories"] == [
        {"broker": 12, "directory": "/a", "moving_to": None, "wanted": "/b", "state": "different"}
    ]
    log_dirs.moving[12] = "/b"
    _, err = said(capsys, 4, *VERIFY)
    assert "t-0: broker 12 moves it from /a to /b" in err.splitlines()
    assert "(next: kctl brokers moves)" in err
    planned(monkeypatch, "/a", "/a")
    assert "t-0: broker 12 moves it from /a to /b, not to /a" in said(capsys, 1, *VERIFY)[1]


def test_start_does_not_report_a_replica_as_already_there_whose_directory_changes(
    log_dirs: FakeLogDirs, client: FakeClient, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    planned(monkeypatch, "any", "/b")
    said_already = "t-0 is on these brokers already"
    assert said_already not in said(capsys, 0, *START)[1]
    assert said_already in said(capsys, 0, *START)[1]  # it moves now, so this request changes nothing


def test_cancel_of_a_move_between_directories_says_how_to_cancel_it(
    log_dirs: FakeLogDirs, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    planned(monkeypatch, "any", "/b")
    err = said(capsys, 5, "reassign", "cancel", "--plan", "-")[1]
    assert "(next: to cancel a move between directories, start a plan that names the current directory)" in err
