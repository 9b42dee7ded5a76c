"""Brokers with groups, and kctl in the test's own process."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, TypeVar

import pytest

from quorumlog.client.records import NewRecord, build_batch
from quorumlog.kctl.main import run
from tests.unit.quorumlog.client.fake_cluster import FakeBrokers, ThreadedBrokers
from tests.unit.quorumlog.client.fake_groups import OFFSETS, GroupsOfCluster, commit_offsets, join_member
from tests.unit.quorumlog.client.fake_shares import FakeShares

T = TypeVar("T")
G = "b"
"""A group that broker 1 coordinates."""


class Bench:
    """Brokers 1 and 2 on a thread, topic orders with 4 and 2 records, and kctl."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self.groups = GroupsOfCluster()
        self.threaded = ThreadedBrokers()
        self.threaded.brokers = FakeBrokers(self.groups.of_broker)
        self.shares = FakeShares(self.threaded.brokers, self.groups)
        self._capsys = capsys
        self.errors = ""

    def start(self) -> None:
        self.threaded._thread.start()
        brokers = self.threaded.brokers
        for node_id in (1, 2):
            self.threaded.run(brokers.start(node_id))
        self.threaded.run(brokers.create(OFFSETS, [1, 2]))
        self.threaded.run(brokers.create("orders", [1, 2]))
        for index, count in enumerate((4, 2)):
            batches = [build_batch([NewRecord(None, b"x", 1_000 * n)]) for n in range(count)]
            self.threaded.run(brokers.fill("orders", index, *batches))

    def stop(self) -> None:
        self.threaded.run(self.threaded.brokers.close())
        self.threaded.loop.call_soon_threadsafe(self.threaded.loop.stop)
        self.threaded._thread.join(10)
        self.threaded.loop.close()

    def say(self, *arguments: str, timeout: str = "5") -> tuple[int, str]:
        """Return the exit code and the output of a command."""
        self._capsys.readouterr()
        code = run(["--timeout", timeout, "groups", *arguments])
        out, self.errors = self._capsys.readouterr()
        return code, out

    def json(self, *arguments: str) -> Any:
        code, out = self.say(*arguments, "-o", "json")
        assert code == 0, self.errors
        return json.loads(out)

    def refused(self, code: int, *arguments: str, timeout: str = "5") -> dict[str, Any]:
        """Return the error of a command that must fail with this exit code."""
        found, _ = self.say(*arguments, "-o", "json", timeout=timeout)
        assert found == code, self.errors
        error = json.loads(self.errors.splitlines()[-1])
        assert isinstance(error, dict)
        return error

    def do(self, work: Callable[[], T]) -> T:
        """Return the result of `work`, which runs on the brokers' loop."""

        async def on_loop() -> T:
            return work()

        return self.threaded.run(on_loop())

    def commit(self, *offsets: int) -> None:
        """Commit offsets of the partitions of orders, from 0 on, as a client that is not a member."""
        self.do(lambda: commit_offsets(self.groups, G, *offsets))

    def join(self) -> str:
        return self.do(lambda: join_member(self.groups, G))

    def offsets(self) -> list[int | None]:
        return [row["committed_offset"] for row in self.json("lag", G)]
