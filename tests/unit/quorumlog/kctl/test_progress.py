"""The output of `--wait` during a change of voters, and the end of the wait."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar, cast

import pytest

from quorumlog.client.controller import ControllerClient
from quorumlog.errors import ClusterError
from quorumlog.kctl.context import Context
from quorumlog.kctl.main import run as kctl
from quorumlog.kctl.progress import Progress
from quorumlog.wire import rpcs
from quorumlog.wire.rpcs import AnyRpc
from quorumlog.wire.v1 import controller_pb2 as pb
from quorumlog.wire.v1 import quorum_pb2
from tests.unit.metadata.fake_node import run

T = TypeVar("T")
OK = pb.Result(error="NONE")


def status(node_id: int, lag: int) -> quorum_pb2.ReplicaStatus:
    key = quorum_pb2.ReplicaKey(node_id=node_id, directory_id=bytes(15) + bytes([node_id]))
    return quorum_pb2.ReplicaStatus(replica=quorum_pb2.Voter(key=key, address=f"n{node_id}:1"), lag=lag)


def described(
    *voters: int,
    target: tuple[int, ...] = (),
    observers: dict[int, int] | None = None,
    end: int = 10,
    target_step: str | None = None,
    target_problem: str | None = None,
) -> quorum_pb2.DescribeQuorumReply:
    reply = quorum_pb2.DescribeQuorumReply(
        known=quorum_pb2.Knowledge(epoch=4, leader_id=1, leader_address="n1:1"),
        answered_by=status(1, 0).replica.key,
        high_watermark=end,
        voters=[status(one, 0) for one in voters],
        observers=[status(one, lag) for one, lag in (observers or {}).items()],
        target_step=target_step,
        target_problem=target_problem,
    )
    if target:
        reply.target_voters.voters.extend(status(one, 0).replica for one in target)
    return reply


class Scripted:
    """A client that describes the quorum according to a script; the last line is repeated."""

    def __init__(self, *script: quorum_pb2.DescribeQuorumReply | ClusterError) -> None:
        self.script = list(script)
        self.changes: list[Any] = []
        self.asked: list[Any] = []

    async def __aenter__(self) -> Scripted:
        return self

    async def __aexit__(self, *_: object) -> None: ...

    async def describe_quorum(self, timeout_s: float) -> quorum_pb2.DescribeQuorumReply:
        now = self.script.pop(0) if len(self.script) > 1 else self.script[0]
        if isinstance(now, ClusterError):
            raise now
        return now

    async def call(self, rpc: AnyRpc, request: Any, timeout_s: float) -> Any:
        self.asked.append(request)
        answer = self.changes.pop(0)
        if isinstance(answer, ClusterError):
            raise answer
        if isinstance(answer, float):
            await asyncio.sleep(answer)
            return await self.call(rpc, request, timeout_s)
        return answer


def follow(client: Scripted, work: Callable[[Progress], Coroutine[Any, Any, T]], timeout_s: float = 60) -> T:
    async def test() -> T:
        return await work(Progress(Context(timeout_s=timeout_s), cast(ControllerClient, client)))

    return run(test())


def lines(capsys: pytest.CaptureFixture[str]) -> list[str]:
    return capsys.readouterr().err.splitlines()


TARGET = (2, 3, 4)


def test_each_step_towards_a_target_is_reported_once(capsys: pytest.CaptureFixture[str]) -> None:
    adding = "add node 4 at n4:1: waiting until the node has caught up"
    client = Scripted(
        described(1, 2, 3, end=5),  # the controller has not committed the target yet
        described(1, 2, 3, target=TARGET, observers={4: 500}, target_step=adding),
        described(1, 2, 3, target=TARGET, observers={4: 0}, target_step=adding),
        described(1, 2, 3, target=TARGET, observers={4: 0}, target_step=adding),
        ClusterError("UNAVAILABLE", "no answer", retriable=True),
        described(1, 2, 3, target=TARGET, target_problem="no node answers at n4:1"),
        described(1, 2, 3, 4, target=TARGET),
        described(2, 3, 4),
    )
    last = follow(client, lambda progress: progress.reached(TARGET, 8))
    assert len(last.voters) == 3
    assert lines(capsys) == [
        "voters 1,2,3",
        f"voters 1,2,3, target 2,3,4: {adding}; node 4 lags by 500 records",
        f"voters 1,2,3, target 2,3,4: {adding}; node 4 is caught up",
        "waiting: no answer",
        "voters 1,2,3, target 2,3,4; blocked: no node answers at n4:1",
        "voters 1,2,3,4, target 2,3,4",
        "voters 2,3,4",
    ]


@pytest.mark.parametrize("later", [described(1, 2, 3), described(1, 2, 3, target=(1, 2, 5))])
def test_waiting_fails_if_the_target_was_cancelled_or_replaced(later: quorum_pb2.DescribeQuorumReply) -> None:
    client = Scripted(described(1, 2, 3, target=TARGET), later)
    with pytest.raises(ClusterError, match=r"target was cancelled|target was replaced by voters 1,2,5") as found:
        follow(client, lambda progress: progress.reached(TARGET, 8))
    assert (found.value.code, found.value.retriable) == ("TARGET_CHANGED", False)


def test_a_wait_ends_at_its_timeout() -> None:
    held = described(1, 2, 3, target=TARGET, target_problem="no node answers at n4:1")
    with pytest.raises(ClusterError, match="blocked: no node answers") as found:
        follow(Scripted(held), lambda progress: progress.reached(TARGET, 8), timeout_s=3)
    assert found.value.code == "TIMED_OUT"
    assert found.value.next_step == "the change continues; to watch it: kctl alter-quorum --wait"


def test_waiting_without_a_given_target_waits_for_the_current_target() -> None:
    client = Scripted(described(1, 2, 3, target=TARGET), described(1, 2, 3, 4, target=TARGET), described(2, 3, 4))
    assert len(follow(client, lambda progress: progress.reached(None, 0)).voters) == 3
    assert len(follow(Scripted(described(1, 2)), lambda progress: progress.reached(None, 0)).voters) == 2


def test_adding_a_voter_is_requested_until_the_controller_accepts_the_request(
    capsys: pytest.CaptureFixture[str],
) -> None:
    client = Scripted(
        described(1, 2, 3),
        described(1, 2, 3, observers={4: 70}),
        described(1, 2, 3, observers={4: 0}),
    )
    done = pb.ChangeVotersReply(result=OK, changed=True)
    client.changes = [ClusterError("UNREACHABLE", "no node answers at n4:1"), 5.0, done]

    async def ask(left: float) -> Any:
        return await client.call(rpcs.CHANGE_VOTERS, None, left)

    assert follow(client, lambda progress: progress.taken(ask, 4)) is done
    assert lines(capsys) == [
        "waiting: no node answers at n4:1",
        "node 4 does not fetch from the controller yet",
        "node 4 lags by 70 records",
        "node 4 is caught up",
    ]
    client.changes = [ClusterError("WRONG_NODE", "node 5 answers there")]
    with pytest.raises(ClusterError, match="node 5"):
        follow(client, lambda progress: progress.taken(ask, 4))
    client.changes = [ClusterError("NOT_CAUGHT_UP", "lags")] * 100
    with pytest.raises(ClusterError, match="node 4 was not added within 6 s: lags") as found:
        follow(client, lambda progress: progress.taken(ask, 4), timeout_s=6)
    assert (found.value.code, found.value.retriable) == ("TIMED_OUT", True)
    client.changes = [ClusterError("NOT_CAUGHT_UP", "lags"), 1000.0]
    with pytest.raises(ClusterError, match="lags"):
        follow(client, lambda progress: progress.taken(ask, 4), timeout_s=2)  # too late for another request
    client.changes = [ClusterError("TARGET_IN_PROGRESS", "5.0", "kctl alter-quorum --cancel")]
    with pytest.raises(ClusterError) as found:
        follow(client, lambda progress: progress.taken(ask, 4), timeout_s=1)
    assert found.value.next_step == "kctl alter-quorum --cancel"
    client.changes = [ClusterError("OUTCOME_UNKNOWN", "who knows", retriable=True)]
    with pytest.raises(ClusterError, match="who knows"):
        follow(client, lambda progress: progress.taken(ask, 4))


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> Scripted:
    scripted = Scripted(described(2, 3, 4))
    monkeypatch.setattr(Context, "client", lambda context: scripted)
    return scripted


def test_add_voter_and_alter_quorum_with_the_wait_option_report_their_result(
    client: Scripted, capsys: pytest.CaptureFixture[str]
) -> None:
    client.changes = [pb.ChangeVotersReply(result=OK, changed=True, offset=8) for _ in range(2)]
    assert kctl(["add-voter", "4@n4:1", "--wait", "-o", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["changed"] is True
    assert client.asked[0].add.address == "n4:1"
    assert kctl(["alter-quorum", "--target", "2@n2:1,3@n3:1,4@n4:1", "--wait"]) == 0
    assert "voters 2,3,4: reached" in capsys.readouterr().out
    assert kctl(["alter-quorum", "--wait", "-o", "json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"changed": False, "offset": None, "voter_ids": [2, 3, 4]}
    assert kctl(["alter-quorum"]) == 2


def test_an_interrupted_wait_reports_that_the_change_continues(
    client: Scripted, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def interrupted(timeout_s: float) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(client, "describe_quorum", interrupted)
    client.changes = [pb.ChangeVotersReply(result=OK, changed=True, offset=8)]
    assert kctl(["alter-quorum", "--target", "2@n2:1", "--wait"]) == 130
    said = capsys.readouterr().err
    assert "continues towards voters 2" in said
    assert "--cancel" in said


def test_quorum_status_shows_the_target_problem_and_how_the_last_leadership_ended(
    client: Scripted, capsys: pytest.CaptureFixture[str]
) -> None:
    held = described(1, 2, 3, target=TARGET, target_problem="no node answers at n4:1", target_step="add node 4")
    held.last_leadership_end.CopyFrom(
        quorum_pb2.LeadershipEnd(leader_id=2, epoch=3, reason="resigned: told to", age_ms=5)
    )
    client.script = [held]
    assert kctl(["quorum", "status", "-o", "json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["target_problem"], document["target_step"]) == ("no node answers at n4:1", "add node 4")
    assert document["last_leadership_end"].pop("at").endswith("Z")
    assert document["last_leadership_end"] == {"leader_id": 2, "leader_epoch": 3, "reason": "resigned: told to"}
    assert kctl(["quorum", "status"]) == 0
    said = capsys.readouterr().out
    assert "no node answers at n4:1" in said
    assert "node 2, epoch 3: resigned: told to" in said
    client.script = [described(1, 2, 3)]
    assert kctl(["quorum", "status", "-o", "json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["target_problem"], document["last_leadership_end"]) == (None, None)
    assert document["preferred_problem"] is None


def test_quorum_status_shows_why_no_preferred_voter_leads(client: Scripted, capsys: pytest.CaptureFixture[str]) -> None:
    held = described(1, 2, 3)
    held.preferred_problem = "the disk of node 3 was slow lately: 600 ms for a write"
    client.script = [held]
    assert kctl(["quorum", "status", "-o", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["preferred_problem"] == held.preferred_problem
    assert kctl(["quorum", "status"]) == 0
    assert held.preferred_problem in capsys.readouterr().out
