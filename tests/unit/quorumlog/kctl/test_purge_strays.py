"""`kctl brokers purge-strays`: asks each broker, and names brokers that do not answer."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from quorumlog.errors import ClusterError
from quorumlog.kctl.context import Context
from quorumlog.kctl.main import run
from quorumlog.wire import rpcs
from quorumlog.wire.rpcs import AnyRpc
from quorumlog.wire.v1 import controller_pb2 as pb
from quorumlog.wire.v1 import node_pb2, quorum_pb2

OK = pb.Result(error="NONE")
UNREACHABLE = ClusterError("UNAVAILABLE", "no answer from h:12", retriable=True)
WAITS = object()
"""The answer of a broker that waits until all brokers were asked."""


class Brokers:
    """Brokers 11 and up, each with its answer; the control address of broker N is h:N."""

    def __init__(self, *answers: Any) -> None:
        self.answers = dict(enumerate(answers, 11))
        self.asked: list[tuple[str, bool]] = []
        self.all_asked = asyncio.Event()

    async def __aenter__(self) -> Brokers:
        return self

    async def __aexit__(self, *_: object) -> None: ...

    async def call(self, rpc: AnyRpc, request: Any, timeout_s: float) -> Any:
        assert rpc == rpcs.DESCRIBE_BROKERS
        return pb.DescribeBrokersReply(
            result=OK, brokers=[pb.BrokerDescription(broker_id=broker_id) for broker_id in self.answers]
        )

    async def describe_quorum(self, timeout_s: float) -> Any:
        reply = quorum_pb2.DescribeQuorumReply()
        for broker_id in self.answers:
            replica = reply.observers.add().replica
            replica.key.node_id, replica.address = broker_id, f"h:{broker_id}"
        return reply

    async def ask_node(self, address: str, rpc: AnyRpc, request: Any, timeout_s: float) -> Any:
        assert rpc == rpcs.PURGE_STRAYS
        self.asked.append((address, request.dry_run))
        if len(self.asked) == len(self.answers):
            self.all_asked.set()
        answer = self.answers[int(address.removeprefix("h:"))]
        if answer is WAITS:
            async with asyncio.timeout(timeout_s):
                await self.all_asked.wait()
            answer = []
        if isinstance(answer, BaseException):
            raise answer
        strays = [node_pb2.Stray(topic=topic, index=0, path=f"/d/{topic}", kept=True) for topic in answer]
        return node_pb2.PurgeStraysReply(result=OK, is_broker=True, strays=strays)


@pytest.fixture
def use(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.delenv("KCTL_CONTROLLERS", raising=False)
    return lambda brokers: monkeypatch.setattr(Context, "client", lambda _context: brokers)


def purge(*more: str) -> int:
    return run(["-o", "json", "brokers", "purge-strays", *more])


def test_purge_strays_asks_all_brokers_and_lists_the_deleted_replicas(
    use: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    brokers = Brokers(["a", "b"], [], ["c"])
    use(brokers)
    assert purge() == 0
    document = json.loads(capsys.readouterr().out)
    assert document["changed"] is True
    assert [(each["broker"], each["topic"], each["path"]) for each in document["strays"]] == [
        (11, "a", "/d/a"),
        (11, "b", "/d/b"),
        (13, "c", "/d/c"),
    ]
    assert brokers.asked == [("h:11", False), ("h:12", False), ("h:13", False)]


def test_a_dry_run_of_purge_strays_only_lists_replicas(use: Any, capsys: pytest.CaptureFixture[str]) -> None:
    brokers = Brokers(["a"], ["b"])
    use(brokers)
    assert purge("--dry-run", "--broker", "12") == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["changed"], [each["topic"] for each in document["strays"]]) == (False, ["b"])
    assert brokers.asked == [("h:12", True)]


def test_purge_strays_asks_the_other_brokers_and_names_one_that_does_not_answer(
    use: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    use(Brokers(["a"], UNREACHABLE, ["c"]))
    assert purge() == 4
    captured = capsys.readouterr()
    assert [each["topic"] for each in json.loads(captured.out)["strays"]] == ["a", "c"]
    assert json.loads(captured.err.splitlines()[-1])["message"] == "the command failed on brokers 12"


def test_purge_strays_asks_all_brokers_at_the_same_time(use: Any, capsys: pytest.CaptureFixture[str]) -> None:
    use(Brokers(WAITS, ["b"]))
    assert purge("--timeout", "20") == 0
    assert [each["topic"] for each in json.loads(capsys.readouterr().out)["strays"]] == ["b"]


def test_purge_strays_refuses_an_unknown_broker(use: Any, capsys: pytest.CaptureFixture[str]) -> None:
    brokers = Brokers(["a"])
    use(brokers)
    assert purge("--broker", "99") == 3
    assert (brokers.asked, capsys.readouterr().out) == ([], "")


def test_purge_strays_reports_that_there_are_no_strays(use: Any, capsys: pytest.CaptureFixture[str]) -> None:
    use(Brokers([], []))
    assert purge() == 0
    assert json.loads(capsys.readouterr().out) == {"changed": False, "offset": None, "strays": []}
    assert run(["brokers", "purge-strays"]) == 0
    assert capsys.readouterr().out == "there are no strays\n"
