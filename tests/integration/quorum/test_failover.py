"""kill -9 of random voters while clients create, delete and describe topics: the history is linearizable."""

from __future__ import annotations

import asyncio
import os
from dataclasses import dataclass, field
from math import inf
from pathlib import Path
from random import Random

import pytest

from quorumlog.client.controller import ControllerClient
from quorumlog.errors import ClusterError
from quorumlog.kctl.context import wait_until
from quorumlog.kctl.dev_cluster import DevCluster, Node
from quorumlog.wire import rpcs
from quorumlog.wire.v1 import controller_pb2 as pb
from simulation.quorum.linearizability import Operation, check
from tests.integration.quorum.clusters import TIMEOUT_S, everybody, kill, leader_of, node_of, ready, running, spawn
from tests.integration.quorum.load import ATTEMPT_S, create, outcome

KILLS = int(os.environ.get("TEST_KILLS", "4"))
SEED = int(os.environ.get("TEST_SEED", "1"))
CLIENTS = 3
CREATIONS_MAX = 24
"""The limit of topics with one name, because their numbers of partitions distinguish them."""

BETWEEN_KILLS = 30
"""Operations that are answered before the next kill."""

UNKNOWN = {"OUTCOME_UNKNOWN", "TIMED_OUT", "REQUEST_TIMED_OUT"}
NOTHING_DONE = {"NOT_CONTROLLER", "UNAVAILABLE", "INVALID_REPLICATION_FACTOR"}
"""Refusals that change nothing; the last one when the broker has not been heard yet by a new controller."""


@dataclass(slots=True)
class History:
    """The operations of clients on topics, and the names in use."""

    random: Random
    operations: list[Operation] = field(default_factory=list)
    names: list[str] = field(default_factory=lambda: ["k0", "k1"])
    creations: dict[str, int] = field(default_factory=dict)
    answered: int = 0

    def pick(self) -> str:
        place = self.random.randrange(len(self.names))
        if self.creations.get(self.names[place], 0) >= CREATIONS_MAX:
            self.names[place] = f"k{len(self.creations) + len(self.names)}"
        return self.names[place]

    def next_value(self, name: str) -> int:
        self.creations[name] = self.creations.get(name, 0) + 1
        return self.creations[name]

    @property
    def all_names(self) -> set[str]:
        return {operation.key for operation in self.operations}


async def read(client: ControllerClient, history: History, name: str) -> None:
    began = now()
    reply = await outcome(client.call(rpcs.DESCRIBE_TOPICS, pb.DescribeTopicsRequest(names=[name]), ATTEMPT_S))
    if isinstance(reply, ClusterError):
        assert reply.retriable, reply
        return
    (topic,) = reply.topics
    assert topic.result.error in ("NONE", "UNKNOWN_TOPIC_OR_PARTITION"), topic
    found = str(len(topic.partitions)) if topic.partitions else None
    history.operations.append(Operation(name, "read", began, now(), result=found))


async def create_topic(client: ControllerClient, history: History, name: str) -> None:
    began, value = now(), history.next_value(name)
    operation = Operation(name, "cas", began, inf, value=str(value), expected=None)
    code = await _code_of_creation(client, name, value)
    if code in UNKNOWN:
        history.operations.append(operation)
    elif code not in NOTHING_DONE:
        assert code in ("NONE", "TOPIC_ALREADY_EXISTS"), code
        history.operations.append(
            Operation(name, "cas", began, now(), value=str(value), expected=None, result=code == "NONE")
        )


async def _code_of_creation(client: ControllerClient, name: str, value: int) -> str:
    topic = await outcome(create(client, name, value, 1))
    if isinstance(topic, ClusterError):
        return topic.code
    assert not topic.identical, f"{name} with {value} partitions was created twice for one request"
    return str(topic.result.error)


async def delete_topic(client: ControllerClient, history: History, name: str) -> None:
    began = now()
    reply = await outcome(client.call(rpcs.DELETE_TOPICS, pb.DeleteTopicsRequest(names=[name]), ATTEMPT_S))
    code = reply.code if isinstance(reply, ClusterError) else reply.topics[0].result.error
    if code in UNKNOWN:
        history.operations.append(Operation(name, "write", began, inf, value=None))
    elif code == "NONE":
        history.operations.append(Operation(name, "write", began, now(), value=None))
    elif code not in NOTHING_DONE:
        assert code == "UNKNOWN_TOPIC_OR_PARTITION", code
        history.operations.append(Operation(name, "read", began, now(), result=None))


def now() -> float:
    return asyncio.get_running_loop().time()


async def use(cluster: DevCluster, history: History, ending: asyncio.Event) -> None:
    """Run a client that sends one operation after another, each to any node that answers."""
    addresses = everybody(cluster)
    history.random.shuffle(addresses)
    async with ControllerClient(addresses) as client:
        while not ending.is_set():
            act = history.random.choice([read, read, create_topic, delete_topic])
            await act(client, history, history.pick())
            history.answered += 1
            await asyncio.sleep(0.01)  # leaves processor time for the servers


async def kill_some(cluster: DevCluster, history: History) -> None:
    """Kill usually the leader; sometimes two voters, so that none leads until they have restarted."""
    leader = (await leader_of(cluster)).id
    others = history.random.sample([number for number in (1, 2, 3) if number != leader], 2)
    victims = history.random.choice([[leader], [leader], [leader, others[0]], others[:1], others])
    nodes = [node_of(cluster, node_id) for node_id in victims]
    for node in nodes:
        await kill(node)
    if len(nodes) == 1:
        await progress(history, BETWEEN_KILLS)
    for node in nodes:
        await start_again(cluster, node)
    await progress(history, BETWEEN_KILLS)


async def start_again(cluster: DevCluster, node: Node) -> None:
    await spawn(cluster, node)
    await ready(node)


async def progress(history: History, count: int) -> None:
    """Wait until this many more operations were answered."""
    wanted = history.answered + count

    async def enough() -> bool:
        return history.answered >= wanted

    await wait_until(enough, TIMEOUT_S, f"{count} more operations are answered", 0.05)


@pytest.mark.timeout(400 + KILLS * 60)
async def test_the_history_of_clients_is_linearizable_across_kills(tmp_path: Path) -> None:
    history = History(Random(SEED))
    async with running(tmp_path, voters=3, brokers=1) as cluster:
        ending = asyncio.Event()
        async with asyncio.TaskGroup() as clients:
            for _ in range(CLIENTS):
                clients.create_task(use(cluster, history, ending))
            for _ in range(KILLS):
                await kill_some(cluster, history)
            ending.set()
        async with ControllerClient(everybody(cluster)) as client:
            for name in sorted(history.all_names):
                await read(client, history, name)
    unknown = sum(not operation.is_known for operation in history.operations)
    print(f"{KILLS} rounds of kills, {len(history.operations)} operations, {unknown} of unknown outcome, seed {SEED}")
    verdict = check(history.operations)
    shown = "\n".join(str(operation) for operation in history.operations if operation.key in verdict.bad)
    assert not verdict.bad, f"impossible:\n{shown}"
    assert not verdict.undecided, verdict.undecided
    assert len(history.operations) >= KILLS * BETWEEN_KILLS
