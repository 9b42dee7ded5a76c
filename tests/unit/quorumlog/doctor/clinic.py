"""A cluster that answers `kctl doctor` from tables; healthy until a test changes it."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from typing import Any, cast

import click
import pytest

from quorumlog.client import probe as probing
from quorumlog.client.controller import ControllerClient
from quorumlog.doctor import examine as examination
from quorumlog.doctor.layout import LOST_DIRECTORY
from quorumlog.errors import ClusterError
from quorumlog.kctl.context import Context
from quorumlog.kctl.main import cli
from quorumlog.wire import rpcs
from quorumlog.wire.rpcs import AnyRpc
from quorumlog.wire.v1 import controller_pb2, metadata_pb2, node_pb2, quorum_pb2

OK = controller_pb2.Result(error="NONE")
VOTERS, BROKERS = (1, 2, 3), (11, 12, 13)
EPOCH = 5
END = 100
SILENT = "connection refused: nothing listens there"

DISK = b"\1" * 16

Diagnose = Callable[..., Any]
"""The type of the fixture `diagnose`: it returns findings by their word, and the exit code."""


def address(node_id: int) -> str:
    return f"h{node_id}:9093"


def voter(node_id: int) -> quorum_pb2.Voter:
    return quorum_pb2.Voter(key=quorum_pb2.ReplicaKey(node_id=node_id, directory_id=DISK), address=address(node_id))


class Clinic:
    """A client.  `silent`: nodes that do not answer, and why.  Tests write other problems into the messages."""

    def __init__(self, voters: tuple[int, ...] = VOTERS, brokers: tuple[int, ...] = BROKERS) -> None:
        self.leader: int | None = voters[0]
        self.silent: dict[int, str] = {}
        self.statuses = {
            node_id: quorum_pb2.ReplicaStatus(
                replica=voter(node_id), log_end_offset=END, last_fetch_ms=100, last_caught_up_ms=100
            )
            for node_id in (*voters, *brokers)
        }
        self.voters, self.brokers = list(voters), list(brokers)
        self.paused = False
        self.target: quorum_pb2.DescribeQuorumReply | None = None
        self.views: dict[int, int | None] = {}
        self.described = {node_id: self._node(node_id) for node_id in (*voters, *brokers)}
        self.later: dict[int, Any] = {}
        self.metadata = node_pb2.DescribeMetadataReply(result=OK, offset=END, timestamp_ms=1_700_000_000_000)
        for node_id in brokers:
            endpoint = metadata_pb2.Endpoint(name="default", host=f"h{node_id}", port=9092)
            self.metadata.brokers.add(broker_id=node_id, state="unfenced", replicas=4, endpoints=[endpoint])
        self.heard = [{broker: 0 for broker in brokers}]
        self.strays: dict[int, list[node_pb2.Stray]] = {}
        self.replicas: dict[int, list[node_pb2.ReplicaDescription]] = {}
        self.partitions_max = 10**9
        self.asked: list[tuple[int, AnyRpc]] = []
        self.controller_error: ClusterError | None = None
        self.preferred = ""
        self.claims: dict[int, int] = {}
        self.clusters: dict[int, str] = {}
        self.generations: dict[int, int] = {}
        self.disks: dict[int, bytes] = {}

    @property
    def client(self) -> ControllerClient:
        """Return itself: it has the methods of the client that the examination calls."""
        return cast(ControllerClient, self)

    def _node(self, node_id: int) -> node_pb2.DescribeNodeReply:
        checks = [node_pb2.CheckResult(name=name, ok=True, detail="ok") for name in ("cluster", "leader", "metadata")]
        return node_pb2.DescribeNodeReply(
            result=OK, node_id=node_id, role="leader" if node_id == self.leader else "follower", epoch=EPOCH,
            controller_active=node_id == self.leader, applied_offset=END, high_watermark=END, checks=checks,
            fsync_p99_us=2000, is_broker=node_id in self.brokers,
            leading_ms=60_000 if node_id == self.leader else None,
        )  # fmt: skip

    # Problems

    def topic(self, name: str, *rows: tuple[int, ...], **configs: str) -> list[Any]:
        """Create a topic with one row of replicas for each partition, all in sync; return its partitions."""
        topic = self.metadata.topics.add(name=name, topic_id=name.encode().ljust(16, b"."), result=OK)
        for key, value in configs.items():
            topic.configs.add(key=key.replace("_", "."), value=value)
        for index, row in enumerate(rows):
            replicas = [metadata_pb2.Replica(broker_id=broker, directory_id=b"\2" * 16) for broker in row]
            topic.partitions.add(
                index=index, leader=row[0], replicas=replicas, isr=row, replica_states=["online"] * len(row)
            )
        return list(topic.partitions)

    def fence(self, broker_id: int, why: str | None = SILENT) -> None:
        """Fence the broker, with all consequences.  why: the reason if it does not answer."""
        for broker in self.metadata.brokers:
            if broker.broker_id == broker_id:
                broker.state = "fenced"
        for topic in self.metadata.topics:
            for partition in topic.partitions:
                rest = [each for each in partition.isr if each != broker_id]
                if rest:
                    partition.isr[:] = rest
                if partition.leader == broker_id:
                    partition.leader = rest[0] if rest else -1
        if why is not None:
            self.silent[broker_id] = why

    def lose(self, partition: Any, broker_id: int) -> None:
        for replica in partition.replicas:
            if replica.broker_id == broker_id:
                replica.directory_id = LOST_DIRECTORY
        partition.isr[:] = [each for each in partition.isr if each != broker_id]

    def replica(self, broker_id: int, topic: str, index: int, end: int, later: int | None = None, **more: Any) -> None:
        """The report of a broker on its replica, and the report a moment later."""
        for number, offset in enumerate([end, end if later is None else later]):
            self.replicas.setdefault(broker_id + number * 1000, []).append(
                node_pb2.ReplicaDescription(topic=topic, index=index, end_offset=offset, **more)
            )

    def silence_voter(self, node_id: int, *, for_ms: int = 5000) -> None:
        self.silent[node_id] = SILENT
        self.statuses[node_id].last_fetch_ms = for_ms

    # The client

    async def __aenter__(self) -> Clinic:
        return self

    async def __aexit__(self, *_: object) -> None: ...

    def _answering(self, where: str) -> int:
        node_id = next((each for each in self.statuses if address(each) == where), None)
        if node_id is None or node_id in self.silent:
            raise ClusterError("UNAVAILABLE", f"no answer from {where}", retriable=True)
        return node_id

    async def describe_quorum_of(self, where: str, timeout_s: float) -> Any:
        node_id = self._answering(where)
        leads = node_id == self.leader
        view = self.views.get(node_id, self.leader)
        reply = quorum_pb2.DescribeQuorumReply(
            answered_by=quorum_pb2.ReplicaKey(
                node_id=self.claims.get(node_id, node_id), directory_id=self.disks.get(node_id, DISK)),
            high_watermark=END, paused=leads and self.paused,
            voters=[self._status(each, leads) for each in self.voters],
            observers=[self._status(each, leads) for each in self.brokers] if leads else [],
        )  # fmt: skip
        reply.known.cluster_id = self.clusters.get(node_id, "C")
        reply.known.generation = self.generations.get(node_id, 0)
        reply.known.epoch = EPOCH
        if view is not None:
            reply.known.leader_id, reply.known.leader_address = view, address(view)
        if leads and self.target is not None:
            reply.MergeFrom(self.target)
        return reply

    def _status(self, node_id: int, known: bool) -> Any:
        if known:
            return self.statuses[node_id]
        return quorum_pb2.ReplicaStatus(replica=voter(node_id))

    async def ask_node(self, where: str, rpc: AnyRpc, request: Any, timeout_s: float) -> Any:
        node_id = self._answering(where)
        again = (node_id, rpc) in self.asked
        self.asked.append((node_id, rpc))
        match rpc:
            case rpcs.DESCRIBE_NODE:
                return self.later.get(node_id, self.described[node_id]) if again else self.described[node_id]
            case rpcs.DESCRIBE_METADATA:
                return self._metadata(request)
            case rpcs.PURGE_STRAYS:
                assert request.dry_run, "nothing is deleted"
                return node_pb2.PurgeStraysReply(result=OK, is_broker=True, strays=self.strays.get(node_id, []))
            case rpcs.DESCRIBE_REPLICAS:
                assert request.topics, "only of partitions with a problem"
                found = self.replicas.get(node_id + 1000 if again else node_id, [])
                wanted = [replica for replica in found if replica.topic in request.topics]
                return node_pb2.DescribeReplicasReply(result=OK, is_broker=True, replicas=wanted)
        raise AssertionError(rpc)

    def _metadata(self, request: Any) -> Any:
        reply = node_pb2.DescribeMetadataReply()
        reply.CopyFrom(self.metadata)
        del reply.topics[:]
        for topic in self.metadata.topics:
            if request.topics and topic.name not in request.topics:
                continue
            shown = reply.topics.add()
            shown.CopyFrom(topic)
            if request.without_partitions:
                del shown.partitions[:]
        if sum(len(topic.partitions) for topic in reply.topics) > self.partitions_max:
            raise ClusterError("POLICY_VIOLATION", "too many")
        return reply

    def prefer(self, where: str) -> None:
        self.preferred = where

    async def call(self, rpc: AnyRpc, request: Any, timeout_s: float) -> Any:
        assert rpc == rpcs.DESCRIBE_BROKERS
        if self.controller_error is not None:
            raise self.controller_error
        pending = self.heard.pop(0) if len(self.heard) > 1 else self.heard[0]
        reply = controller_pb2.DescribeBrokersReply(result=OK)
        for broker_id, count in pending.items():
            reply.brokers.add(broker_id=broker_id, state="unfenced", pending_changes=count)
        return reply

    async def probe(self, where: str, timeout_s: float, *_: Any) -> str | None:
        """In place of `examine.probe`: addresses are made up."""
        for node_id, why in self.silent.items():
            if where in (address(node_id), f"h{node_id}:9092"):
                return None if why == probing.HANGS else why
        return (
            None if any(where == f"h{node_id}:9092" for node_id in self.brokers) else "cannot be reached: no such host"
        )

    async def why_silent(self, where: str, timeout_s: float) -> probing.Silence:
        """In place of `examine.why_silent`."""
        return probing.Silence(await self.probe(where, timeout_s) or probing.HANGS)


def use(clinic: Clinic, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Context, "client", lambda context: clinic)
    monkeypatch.setattr(examination, "probe", clinic.probe)
    monkeypatch.setattr(examination, "why_silent", clinic.why_silent)
    for name in ("SECOND_LOOK_S", "ELECTION_S", "ELECTION_LOOK_S"):
        monkeypatch.setattr(examination, name, 0.06)
    monkeypatch.setenv("KCTL_CONTROLLERS", ",".join(map(address, clinic.voters)))


def check_commands(finding: dict[str, Any]) -> None:
    """Assert that `kctl` accepts every command exactly as doctor prints it."""
    text = f"{finding['cause']}; {finding['next']}"
    for line in (*finding["commands"], *finding["last_resort"]):
        assert line in finding["next"], line
        text = text.replace(line, "")
        for part in line.split(" | "):
            command, words = _found(part)
            command.make_context(command.name, words)  # raises click.UsageError where one is missing or wrong
    for line in re.findall(r"kctl (?!dev`)[^;>():,`]+", text):  # commands that change nothing
        command, words = _found(line)
        known = {option for parameter in command.params for option in (*parameter.opts, "--help")}
        assert {word for word in words if word.startswith("--")} <= known, line
        assert not re.search(r"…|\b[A-Z]{2,}\b", line), f"a placeholder: {line}"


def _found(line: str) -> tuple[click.Command, list[str]]:
    """Return the command that the words name, and its arguments."""
    command: click.Command = cli
    words = shlex.split(line)
    assert words.pop(0) == "kctl", line
    while isinstance(command, click.Group):
        found = command.get_command(click.Context(command), words.pop(0))
        assert found is not None, line
        command = found
    return command, words
