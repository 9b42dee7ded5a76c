"""The requests of one command share its timeout."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import threading
from collections.abc import Callable, Coroutine
from typing import Any, cast

import click
import pytest

from quorumlog.client.probe import Silence
from quorumlog.doctor import examine
from quorumlog.errors import ClusterError
from quorumlog.kctl import (
    brokers,
    cluster,
    configs,
    data,
    doctor,
    group_access,
    metadata,
    partition_counts,
    reassign,
    topics,
    voters,
)
from quorumlog.kctl.context import GRACE_S, Context
from quorumlog.kctl.main import run as kctl
from quorumlog.runtime.addresses import parse_voter
from quorumlog.wire import rpcs
from quorumlog.wire.rpcs import AnyRpc
from quorumlog.wire.v1 import controller_pb2, node_pb2, quorum_pb2
from tests.unit.metadata.fake_node import JumpingLoop, run

GIVEN_S = 4.0
OK = controller_pb2.Result(error="NONE")


class Slow:
    """A client whose nodes answer at the last moment, or never: `silent` names the calls that fail."""

    def __init__(self, *silent: AnyRpc | str) -> None:
        self.silent = silent

    async def __aenter__(self) -> Slow:
        return self

    async def __aexit__(self, *_: object) -> None: ...

    async def _answer(self, rpc: AnyRpc, timeout_s: float) -> Any:
        await asyncio.sleep(timeout_s * (1 if rpc in self.silent else 0.9))
        if rpc in self.silent:
            raise ClusterError("TIMED_OUT", f"no answer to {rpc}", retriable=True)
        match rpc:
            case rpcs.DESCRIBE_BROKERS:
                reply = controller_pb2.DescribeBrokersReply(result=OK)
                reply.brokers.add(broker_id=11, state="unfenced")
                return reply
            case rpcs.DESCRIBE_TOPICS:
                topics = controller_pb2.DescribeTopicsReply(result=OK)
                topics.topics.add(name="t", result=OK).partitions.add(index=0)
                return topics
            case rpcs.REMOVE_PARTITIONS:
                resized = controller_pb2.RemovePartitionsReply(result=OK, offset=9)
                resized.topic.result.CopyFrom(OK)
                resized.topic.changed = True
                return resized
            case rpcs.DESCRIBE_NODE:
                return node_pb2.DescribeNodeReply(result=OK, is_broker=True)
            case rpcs.DESCRIBE_METADATA:
                metadata = node_pb2.DescribeMetadataReply(result=OK)
                metadata.brokers.add(broker_id=11, state="unfenced")
                return metadata
            case rpcs.DESCRIBE_REPLICAS:
                return node_pb2.DescribeReplicasReply(result=OK, is_broker=True)
            case rpcs.PURGE_STRAYS:
                return node_pb2.PurgeStraysReply(result=OK, is_broker=True)
            case rpcs.LIST_REASSIGNMENTS:
                ongoing = controller_pb2.ListReassignmentsReply(result=OK)
                ongoing.partitions.add(topic="t", index=0, leader=11, adding=[12])
                return ongoing
            case rpcs.ALTER_REASSIGNMENTS:
                altered = controller_pb2.AlterReassignmentsReply(result=OK, changed=True, offset=9)
                altered.partitions.add(topic="t", index=0, changed=True)
                return altered
            case rpcs.CHANGE_VOTERS:
                return controller_pb2.ChangeVotersReply(result=OK, changed=True, offset=9)
            case rpcs.CREATE_TOPICS:
                created = controller_pb2.CreateTopicsReply(result=OK)
                created.topics.add(name="t", result=OK)
                return created
            case rpcs.ALTER_CONFIGS:
                configured = controller_pb2.AlterConfigsReply(result=OK, offset=9)
                configured.resources.add(result=OK, changed=True)
                return configured
        return controller_pb2.TransferLeaderReply(result=OK)

    async def call(self, rpc: AnyRpc, request: Any, timeout_s: float) -> Any:
        return await self._answer(rpc, timeout_s)

    addresses = ("h1:1",)

    async def call_node(self, address: str, rpc: AnyRpc, request: Any, timeout_s: float) -> Any:
        return await self._answer(rpc, timeout_s)

    async def ask_any(self, rpc: AnyRpc, request: Any, timeout_s: float) -> Any:
        return await self._answer(rpc, timeout_s)

    async def ask_node(self, address: str, rpc: AnyRpc, request: Any, timeout_s: float) -> Any:
        return await self._answer(rpc, timeout_s)

    async def describe_quorum(self, timeout_s: float) -> Any:
        await self._answer(rpcs.DESCRIBE_QUORUM, timeout_s)
        reply = quorum_pb2.DescribeQuorumReply()
        reply.known.leader_id, reply.known.leader_address = 1, "h1:1"
        reply.answered_by.node_id = 1
        reply.observers.add().replica.key.node_id = 11
        reply.observers[0].replica.address = "h11:1"
        return reply


Body = Callable[..., Coroutine[Any, Any, Any]]


def body(command: click.Command) -> Body:
    """Return the coroutine function of a command, without the event loop that kctl runs it in."""
    return cast(Body, cast(Any, command.callback).__wrapped__)


@pytest.mark.parametrize(
    "silent",
    [
        (),
        (rpcs.DESCRIBE_BROKERS,),
        (rpcs.DESCRIBE_QUORUM,),
        (rpcs.DESCRIBE_NODE, rpcs.DESCRIBE_TOPICS),
        (rpcs.CHANGE_VOTERS,),
    ],
)
@pytest.mark.parametrize(
    ("command", "arguments"),
    [
        (brokers.list_, ()),
        (brokers.describe, (11, False)),
        (brokers.purge_strays, (None, False)),
        (cluster.health, (False, False)),
        (voters.transfer_leader, (2, False)),
        (partition_counts.remove_partitions, ("t", 1, True, False, True)),
        (topics.create, ("t", None, None, None, [], False, True)),
        (configs.set_, ([("a", "1")], "t", None, None, False, False, True)),
        (reassign.generate, (("t",), (11,), None, None, None)),
        (reassign.start, (None, ("t",), (11,), None, None, False, False, True)),
        (reassign.status, (None, (), None)),
        (reassign.cancel, (None, ("t",), (), False, False)),
        (reassign.verify, (None, ("t",), (11,))),
        (cluster.health, (True, True)),
        (voters.add_voter, (parse_voter("2@h2:1"), False, True, False)),
        (voters.add_voter, (parse_voter("2@h2:1"), True, False, False)),
        (voters.alter_quorum, ((parse_voter("2@h2:1"),), False, True, False)),
        (metadata.at, (7, ())),
        (metadata.diff, (7, 9, ())),
    ],
)
def test_all_requests_of_a_command_share_its_timeout(
    monkeypatch: pytest.MonkeyPatch, command: click.Command, arguments: tuple[Any, ...], silent: tuple[str, ...]
) -> None:
    monkeypatch.setattr(Context, "client", lambda context: Slow(*silent))

    async def test() -> float:
        loop = asyncio.get_running_loop()
        began = loop.time()
        with contextlib.suppress(ClusterError):  # the error is reported; only the duration counts
            await body(command)(Context(timeout_s=GIVEN_S), *arguments)
        return loop.time() - began

    assert 0 < run(test()) <= GIVEN_S + 0.3, "virtual seconds"


@pytest.mark.parametrize("timeout_s", [1.0, GIVEN_S])
def test_a_command_that_exceeds_its_timeout_is_ended_after_a_grace_period(timeout_s: float) -> None:
    async def test() -> None:
        loop = asyncio.get_running_loop()
        began = loop.time()
        context = Context(timeout_s=timeout_s)
        with pytest.raises(ClusterError) as late:
            await context.within_limit(asyncio.sleep(1e9))
        assert (late.value.code, late.value.retriable) == ("TIMED_OUT", True)
        assert loop.time() - began == pytest.approx(timeout_s + GRACE_S)

    run(test())


def test_a_timeout_of_one_step_is_not_reported_as_the_timeout_of_the_command() -> None:
    async def step() -> None:
        raise TimeoutError("of a step")

    with pytest.raises(TimeoutError, match="of a step"):
        run(Context(timeout_s=GIVEN_S).within_limit(step()))


def test_the_time_before_the_event_loop_runs_counts_towards_the_timeout() -> None:
    async def test() -> float:
        return Context(timeout_s=GIVEN_S, spent_s=3.0).left_s

    assert run(test()) == GIVEN_S - 3.0


class Hanging(Slow):
    """Two voters without a leader, which answer late and not every request, and a third voter that does not answer."""

    def __init__(self) -> None:
        super().__init__(rpcs.DESCRIBE_METADATA)

    async def describe_quorum_of(self, address: str, timeout_s: float) -> Any:
        if address == "h3:1":
            await asyncio.sleep(timeout_s)
            raise ClusterError("TIMED_OUT", "no answer", retriable=True)
        await asyncio.sleep(timeout_s * 0.9)
        reply = quorum_pb2.DescribeQuorumReply()
        reply.answered_by.node_id = int(address[1])
        for node_id in (1, 2, 3):
            voter = reply.voters.add().replica
            voter.key.node_id, voter.address = node_id, f"h{node_id}:1"
        return reply


@pytest.mark.parametrize("given_s", [4.0, 10.0, 30.0])
@pytest.mark.parametrize("spent_s", [0.0, 2.0])
def test_doctor_reports_its_findings_when_its_timeout_expires(
    given_s: float, spent_s: float, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The report must not be lost because the last requests, or the start of a busy machine, took a second longer."""

    async def why_silent(_address: str, timeout_s: float) -> Silence:
        await asyncio.sleep(2 * timeout_s)
        return Silence("no answer")

    monkeypatch.setattr(Context, "client", lambda context: Hanging())
    monkeypatch.setattr(examine, "why_silent", why_silent)

    async def test() -> float:
        loop = asyncio.get_running_loop()
        began = loop.time()
        context = Context("h1:1", "json", given_s, spent_s=spent_s)
        assert await context.within_limit(body(doctor.command)(context)) == 1
        return loop.time() - began

    took_s = run(test())
    assert took_s < given_s - spent_s + 1.5, "virtual seconds"
    assert json.loads(capsys.readouterr().out)["looked_at"]["nodes_answering"] == 2


@pytest.mark.parametrize("spent_s", [0.0, 2.0])
def test_cluster_health_is_shown_after_a_slow_start(
    spent_s: float, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(Context, "client", lambda context: Slow(rpcs.DESCRIBE_QUORUM))

    async def test() -> None:
        context = Context("h1:1", "json", GIVEN_S, spent_s=spent_s)
        assert await context.within_limit(body(cluster.health)(context, False, False)) == 4

    run(test())
    document = json.loads(capsys.readouterr().out)
    assert (document["healthy"], len(document["problems"])) == (False, 1)


@pytest.mark.parametrize("given_s", [10.0, None])
def test_a_watch_of_the_clusters_health_ends_after_a_given_timeout_with_success(
    given_s: float | None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(Context, "client", lambda context: Slow(rpcs.DESCRIBE_QUORUM))

    async def test() -> None:
        context = Context("h1:1", "json", given_s)
        async with asyncio.timeout(100):
            assert await context.within_limit(body(cluster.health)(context, True, False)) == 0

    if given_s is not None:
        return run(test())
    with pytest.raises(TimeoutError):
        run(test())
    return None


def test_a_following_command_has_no_time_limit() -> None:
    async def test() -> float:
        loop = asyncio.get_running_loop()
        began = loop.time()
        context = Context(timeout_s=1.0)

        async def follow() -> None:
            context.lift_limit()
            await asyncio.sleep(60)

        await context.within_limit(follow())
        return loop.time() - began

    assert run(test()) == 60


def test_the_timeout_starts_over_after_a_prompt() -> None:
    async def test() -> float:
        context = Context(timeout_s=GIVEN_S, spent_s=2.0)

        async def confirmed() -> None:
            loop = asyncio.get_running_loop()
            assert isinstance(loop, JumpingLoop)
            loop.now += 100  # a prompt blocks the loop
            context.start_over()
            await asyncio.sleep(GIVEN_S - 1)

        await context.within_limit(confirmed())
        return context.left_s

    assert run(test()) == pytest.approx(1.0)


def test_start_over_restores_the_full_timeout_of_a_command() -> None:
    async def test() -> None:
        context = Context(timeout_s=GIVEN_S)
        assert context.left_s == GIVEN_S
        await asyncio.sleep(GIVEN_S)
        assert context.left_s < GIVEN_S / 10, "a moment remains to report the reason"
        context.start_over()
        assert context.left_s == GIVEN_S

    run(test())


@pytest.mark.parametrize("arguments", [["groups", "list"], ["consume", "t"]])
def test_a_hanging_name_resolver_does_not_delay_the_end_of_a_command(
    arguments: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A look-up cannot be cancelled, and the end of an event loop waits for the threads of its own executor."""
    released, ended = threading.Event(), threading.Event()
    look_up = socket.getaddrinfo

    def hang(host: str, *rest: Any, **options: Any) -> Any:
        if host != "broker.example":
            return look_up(host, *rest, **options)
        released.wait(20)  # a limit, so that this test fails instead of hanging
        ended.set()
        raise socket.gaierror(socket.EAI_AGAIN, "no answer")

    async def addresses(_reads: Any) -> list[str]:
        return ["broker.example:9092"]

    monkeypatch.setattr(socket, "getaddrinfo", hang)
    monkeypatch.setattr(Context, "client", lambda context: Slow())
    monkeypatch.setattr(data, "broker_addresses", addresses)
    monkeypatch.setattr(group_access, "broker_addresses", addresses)
    try:
        assert kctl([*arguments, "--timeout", "0.5", "-o", "json"]) == 4
        assert not ended.is_set()
    finally:
        released.set()
    assert json.loads(capsys.readouterr().err.splitlines()[-1])["retriable"]


@pytest.mark.parametrize(
    "arguments",
    [
        ["consume", "t"],
        ["metadata", "tail"],
        ["groups", "lag", "--follow"],
        ["groups", "lag", "g", "--follow"],
        ["state-changes", "--follow"],
    ],
)
def test_a_following_command_reports_why_it_could_not_begin(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))  # nothing listens, and no other program gets the port
        address = f"127.0.0.1:{closed.getsockname()[1]}"
        code = kctl(["--controllers", address, *arguments, "--timeout", "1", "-o", "json"])
    captured = capsys.readouterr()
    assert (code, captured.out) == (4, "")
    assert "connection refused" in json.loads(captured.err.splitlines()[-1])["message"]


def test_a_command_reports_a_wait_for_a_node_only_on_a_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("quorumlog.client.controller.NOTICE_S", 0.1)
    monkeypatch.setattr("quorumlog.kctl.context.REFUSED_S", 0.5)

    def said(*arguments: str) -> list[str]:
        with socket.socket() as closed:
            closed.bind(("127.0.0.1", 0))
            address = f"127.0.0.1:{closed.getsockname()[1]}"
            assert kctl(["--controllers", address, "topics", "list", *arguments]) == 4
        return [line for line in capsys.readouterr().err.splitlines() if line.startswith("waiting: no node answers")]

    assert said() == []
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    assert len(said()) == 1
    assert said("-o", "json") == []


@pytest.mark.parametrize(
    "arguments",
    [
        ["topics", "list", "--timeout", "nan"],
        ["groups", "lag", "--follow", "--interval", "nan"],
        ["state-changes", "--follow", "--patience", "nan"],
    ],
)
def test_a_time_that_is_not_a_number_is_wrong_usage(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert kctl([*arguments, "--controllers", "127.0.0.1:1", "-o", "json"]) == 2
    assert json.loads(capsys.readouterr().err)["error"] == "USAGE"


@pytest.mark.parametrize(
    "arguments",
    [
        ["reassign", "verify", "--plan", "-"],
        ["groups", "reset-offsets", "g", "--from-file", "-"],
    ],
)
def test_a_command_does_not_wait_for_its_input_longer_than_its_timeout(
    arguments: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    reader, writer = os.pipe()
    try:
        with os.fdopen(reader) as standard_input:
            monkeypatch.setattr("sys.stdin", standard_input)
            assert kctl([*arguments, "--timeout", "0.2", "-o", "json"]) == 4
    finally:
        os.close(writer)
    assert json.loads(capsys.readouterr().err)["error"] == "TIMED_OUT"
