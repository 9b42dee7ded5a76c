"""Commands that ask every broker show the other answers while one broker accepts connections but does not answer."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from quorumlog.client.records import NewRecord, build_batch
from quorumlog.client.transaction_admin import TransactionClient, TransactionDescription
from quorumlog.kctl import directories, transactions
from quorumlog.kctl.main import run
from quorumlog.wire import rpcs
from quorumlog.wire.v1 import node_pb2
from tests.unit.quorumlog.client.fake_cluster import ThreadedBrokers, threaded_brokers
from tests.unit.quorumlog.client.fake_transactions import FakeTransactions, ongoing
from tests.unit.quorumlog.kctl.test_commands import FakeClient, client
from tests.unit.quorumlog.kctl.test_reassign import brokers

__all__ = ["client"]


class Tool:
    """kctl, and brokers 1 and 2.  Each coordinates one transaction, and leads one of the two partitions of orders."""

    def __init__(self, threaded: ThreadedBrokers, capsys: pytest.CaptureFixture[str]) -> None:
        self.cluster = threaded.brokers
        self._threaded = threaded
        self._capsys = capsys

    def mute(self, *node_ids: int) -> None:
        for node_id in node_ids:
            self._threaded.run(self.cluster.mute(node_id))

    def run(self, *arguments: str) -> tuple[int, str, str]:
        """Return the exit code, standard output and standard error."""
        self._capsys.readouterr()
        code = run(["--timeout", "4", "-o", "json", *arguments])
        return code, *self._capsys.readouterr()

    def say(self, *arguments: str) -> tuple[int, list[dict[str, Any]], str]:
        """Return the exit code, the rows on standard output (none if it is empty), and the error's message."""
        code, out, errors = self.run(*arguments)
        error = json.loads(errors.splitlines()[-1]) if errors else {"message": ""}
        return code, json.loads(out) if out else [], error["message"]


@pytest.fixture
def tool(client: FakeClient, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Iterator[Tool]:
    client.replies[rpcs.DESCRIBE_BROKERS] = brokers(b1=False, b2=False)
    client.replies[rpcs.DESCRIBE_NODE] = node_pb2.DescribeNodeReply()
    with threaded_brokers(0) as threaded:
        cluster = threaded.brokers

        async def addresses(_reads: Any) -> list[str]:
            return cluster.bootstrap.split(",")

        for module in (directories, transactions):
            monkeypatch.setattr(module, "broker_addresses", addresses)
        cluster.transactions = {
            1: FakeTransactions(ongoing("billing", 7, ("orders", 0)), ongoing("idle", 8)),
            2: FakeTransactions(ongoing("shop", 9, ("orders", 0))),
        }
        for node_id in (1, 2):
            threaded.run(cluster.start(node_id))
        threaded.run(cluster.create("orders", [1, 2]))
        for index in (0, 1):
            for _ in range(4):
                threaded.run(cluster.fill("orders", index, build_batch([NewRecord(None, b"x", 1_000)])))
        yield Tool(threaded, capsys)


def test_transactions_of_the_brokers_that_answer_are_listed(tool: Tool) -> None:
    code, rows, message = tool.say("transactions", "list")
    assert (code, [row["transactional_id"] for row in rows], message) == (0, ["billing", "idle", "shop"], "")
    tool.mute(2)
    code, rows, message = tool.say("transactions", "list")
    assert (code, [row["transactional_id"] for row in rows]) == (4, ["billing", "idle"])
    assert message.startswith("the output lacks transactional ids: ")
    assert "broker 2: " in message


def test_transactions_list_fails_if_no_broker_answers(tool: Tool) -> None:
    tool.mute(1, 2)
    code, rows, _ = tool.say("transactions", "list")
    assert (code, rows) == (4, [])


def test_a_hanging_transaction_is_found_while_another_coordinator_does_not_answer(tool: Tool) -> None:
    for start, producer_id in enumerate((7, 8, 9)):
        tool.cluster.open_transaction("orders", 0, start, producer_id)
    code, rows, message = tool.say("transactions", "find-hanging")
    assert (code, [row["producer_id"] for row in rows], message) == (0, [8], "")
    tool.mute(2)
    code, rows, message = tool.say("transactions", "find-hanging")
    assert (code, [row["producer_id"] for row in rows]) == (4, [8])
    assert message.startswith("2 partitions could not be examined; orders-0: another coordinator may know producer 9: ")
    assert "broker 2: " in message


def test_abort_by_offset_is_refused_while_a_coordinator_does_not_answer(tool: Tool) -> None:
    tool.cluster.open_transaction("orders", 0, 1, 9)
    tool.mute(2)
    place = ("--topic", "orders", "--partition", "0", "--start-offset", "1")
    code, _, message = tool.say("transactions", "abort", *place, "--yes")
    assert code == 4
    assert "broker 2: " in message


def test_brokers_moves_reports_the_brokers_whose_moves_are_unknown(tool: Tool) -> None:
    assert tool.say("brokers", "moves") == (0, [], "")
    tool.mute(2)
    assert tool.say("brokers", "moves") == (4, [], "the moves of brokers 2 are not known")


def test_a_transaction_is_described_while_the_leader_of_one_partition_does_not_answer(
    tool: Tool, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def describe(*_: object) -> TransactionDescription:
        partitions = (("orders", 0), ("orders", 1))
        return TransactionDescription("wide", "Ongoing", 11, 0, 60_000, 1_000, partitions, 1)

    monkeypatch.setattr(TransactionClient, "describe", describe)
    tool.cluster.open_transaction("orders", 0, 1, 11)
    tool.mute(2)
    code, out, _ = tool.run("transactions", "describe", "wide")
    first, second = json.loads(out)["partitions"]
    assert (code, first["start_offset"], first["problem"]) == (0, 1, None)
    assert (second["start_offset"], second["last_stable_offset"]) == (None, None)
    assert second["problem"]
