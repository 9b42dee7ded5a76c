"""The demo's cluster: three voters and three brokers as real processes, which can be killed and started again."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path

from quorumlog.client.cluster import Cluster
from quorumlog.client.consumer import LATEST, Consumer
from quorumlog.client.controller import ControllerClient
from quorumlog.errors import ClusterError, QuorumlogError
from quorumlog.kctl import dev_cluster, processes
from quorumlog.kctl.dev_cluster import DevCluster, Node
from quorumlog.wire import rpcs
from quorumlog.wire.errors import ApiError
from quorumlog.wire.v1 import controller_pb2

Say = Callable[[str], None]

START_TIMEOUT_S = 60.0
CALL_TIMEOUT_S = 30.0
WATCH_PAUSE_S = 0.05
_PROBE_TIMEOUT_S = 2.0
_PROBE_TOPIC = "demo-probe"
_PORT_BASE, _PORTS_PER_RUN, _RUNS_MAX = 20_000, 20, 400


@dataclass(frozen=True, slots=True)
class Killed:
    """A killed node.  at: the time on the loop's clock at which SIGKILL was sent."""

    node: Node
    at: float


class Servers:
    def __init__(self, cluster: DevCluster, say: Say) -> None:
        self._cluster = cluster
        self._say = say
        self._starting = asyncio.Lock()
        self.bootstrap = cluster.bootstrap
        self.control = ControllerClient([node.control for node in cluster.nodes])
        self.kafka = Cluster(self.bootstrap, client_id="demo")
        self.consumer = Consumer(self.kafka, timeout_s=CALL_TIMEOUT_S)

    async def close(self) -> None:
        await self.control.close()
        await self.kafka.close()

    async def create_topic(self, name: str, partitions: int, replicas: int, min_insync: int) -> None:
        config = controller_pb2.ConfigEntry(key="min.insync.replicas", value=str(min_insync))
        topic = controller_pb2.NewTopic(name=name, partitions=partitions, replication_factor=replicas, configs=[config])
        await _create(self.control, topic, CALL_TIMEOUT_S)
        await self.consumer.list_offsets({(name, index): LATEST for index in range(partitions)})  # each has a leader

    async def active_controller(self) -> Node:
        reply = await self.control.describe_quorum(CALL_TIMEOUT_S)
        return self._node(reply.known.leader_id)

    async def leaders(self, topic: str) -> dict[int, int]:
        """Return the broker id of the leader by partition."""
        request = controller_pb2.DescribeTopicsRequest(names=[topic])
        (described,) = (await self.control.call(rpcs.DESCRIBE_TOPICS, request, CALL_TIMEOUT_S)).topics
        return {partition.index: partition.leader for partition in described.partitions}

    def _node(self, node_id: int) -> Node:
        return next(node for node in self._cluster.nodes if node.id == node_id)

    async def kill(self, node_id: int) -> Killed:
        node = self._node(node_id)
        loop = asyncio.get_running_loop()
        processes.send(node.pid, signal.SIGKILL)
        at = loop.time()
        assert await processes.gone(node.pid, node.mark, CALL_TIMEOUT_S), f"{node.name} survived SIGKILL"
        self._say(f"killed {node.name} (pid {node.pid}) with SIGKILL")
        return Killed(node, at)

    @contextmanager
    def suspended(self, node_id: int) -> Iterator[None]:
        """Suspend the node's process (SIGSTOP): it keeps its connections and answers nothing until the block ends."""
        node = self._node(node_id)
        processes.send(node.pid, signal.SIGSTOP)
        self._say(f"suspended {node.name} (pid {node.pid})")
        try:
            yield
        finally:
            processes.send(node.pid, signal.SIGCONT)
            self._say(f"resumed {node.name}")

    async def restart(self, killed: Killed) -> None:
        """Restart the killed node with its data, and wait until it is ready."""
        async with self._starting:
            self._say(f"starting {killed.node.name} again")
            await dev_cluster.start(self._cluster, START_TIMEOUT_S, lambda _line: None)
            self._say(f"{killed.node.name} has restarted and is caught up")

    async def controller_failover_ms(self, killed: Killed) -> int:
        """Return the time from SIGKILL to the first metadata change that the live nodes acknowledge."""
        loop = asyncio.get_running_loop()
        topic = controller_pb2.NewTopic(name=_PROBE_TOPIC, partitions=1, replication_factor=1)
        others = [node.control for node in self._cluster.nodes if node.id != killed.node.id]
        deadline = loop.time() + START_TIMEOUT_S
        async with ControllerClient(others) as control:
            while True:
                try:
                    await _create(control, topic, _PROBE_TIMEOUT_S)
                except ClusterError as error:
                    if not error.retriable:
                        raise
                    if loop.time() > deadline:
                        raise QuorumlogError(f"no new controller within {START_TIMEOUT_S:g} s: {error}") from error
                    await asyncio.sleep(WATCH_PAUSE_S)
                    continue
                return round((loop.time() - killed.at) * 1000)

    async def partition_failover_ms(
        self, killed: Killed, topic: str, ends: dict[int, int], write: asyncio.Future[None]
    ) -> int:
        """Return the time from SIGKILL to the first row that a new leader acknowledged.

        ends: the acknowledged end of each partition that the killed broker led, directly before the kill.

        The new leader's first answer may come so late that it already includes the rest of a short write.  The result
        is then the time of that answer, which can only be too long.
        """
        loop = asyncio.get_running_loop()

        async def progress(index: int) -> float:
            # the old leader has ended, so even the first answer comes from a new leader, with the acknowledged records
            inherited = (await self.consumer.list_offset(topic, index, LATEST)).offset
            answered_at = loop.time()
            while (await self.consumer.list_offset(topic, index, LATEST)).offset <= inherited:
                if write.done() and inherited > ends[index]:
                    return answered_at
                await asyncio.sleep(WATCH_PAUSE_S)
            return loop.time()

        watches = [asyncio.create_task(progress(index)) for index in ends]
        done, left = await asyncio.wait(watches, timeout=START_TIMEOUT_S, return_when=asyncio.FIRST_COMPLETED)
        for watch in left:
            watch.cancel()
        if not done:
            raise QuorumlogError(f"no partition of {killed.node.name} acknowledged a row within {START_TIMEOUT_S:g} s")
        return round((min(watch.result() for watch in done) - killed.at) * 1000)


async def _create(control: ControllerClient, topic: controller_pb2.NewTopic, timeout_s: float) -> None:
    """Create the topic.  An identical topic is a success, because the answer to an earlier call may have been lost."""
    request = controller_pb2.CreateTopicsRequest(topics=[topic])
    (created,) = (await control.call(rpcs.CREATE_TOPICS, request, timeout_s)).topics
    result = created.result
    if result.error not in ("", ApiError.NONE) and not (
        result.error == ApiError.TOPIC_ALREADY_EXISTS and created.identical
    ):
        raise ClusterError(result.error, result.message, retriable=result.retriable)


class Progress:
    """The number of acknowledged rows of a topic, as a client sees it: the sum of its watermarks.

    When the transactions of the write have ended, it also counts their markers.
    """

    def __init__(self, servers: Servers, topic: str, partitions: int) -> None:
        self._servers = servers
        self._topic = topic
        self.ends = dict.fromkeys(range(partitions), 0)
        self._moved = asyncio.Event()

    @property
    def acknowledged(self) -> int:
        return sum(self.ends.values())

    async def reached(self, count: int) -> int:
        """Wait for `count` rows; return the number of rows at that time."""
        while self.acknowledged < count:
            self._moved.clear()
            await self._moved.wait()
        return self.acknowledged

    async def look(self) -> None:
        """Ask once."""
        asked = {(self._topic, index): LATEST for index in self.ends}
        for (_, index), listed in (await self._servers.consumer.list_offsets(asked)).items():
            self.ends[index] = listed.offset

    async def watch(self) -> None:
        """Request watermarks until cancelled, separately for each partition, because one may have no leader."""
        async with asyncio.TaskGroup() as tasks:
            for index in self.ends:
                tasks.create_task(self._watch(index))

    async def _watch(self, index: int) -> None:
        while True:
            listed = await self._servers.consumer.list_offset(self._topic, index, LATEST)
            if listed.offset > self.ends[index]:  # a new leader may know a lower watermark for a moment
                self.ends[index] = listed.offset
                self._moved.set()
            await asyncio.sleep(WATCH_PAUSE_S)


@asynccontextmanager
async def started(directory: Path, say: Say, logs_to: Path | None = None) -> AsyncIterator[Servers]:
    """Run three voters and three brokers in `directory`; at the end, stop them and delete their files.

    logs_to: the folder to which the logs are copied before they are deleted; None: the logs are not copied.
    """
    directory.mkdir()  # noqa: ASYNC240
    # A run of the demo must not take the ports of another run whose node was just killed.
    first_port = _PORT_BASE + os.getpid() % _RUNS_MAX * _PORTS_PER_RUN
    cluster = dev_cluster.plan(directory, voters=3, brokers=3, port_base=first_port, made_dir=True)
    cluster.save()
    try:
        await dev_cluster.start(cluster, START_TIMEOUT_S, say)
        servers = Servers(cluster, say)
        try:
            yield servers
        finally:
            await servers.close()
    finally:
        await dev_cluster.stop_nodes(cluster.nodes, lambda _line: None)
        if logs_to is not None:
            for node in cluster.nodes:
                shutil.copy(node.log, logs_to / f"{node.name}.log")
        dev_cluster.remove(cluster)
        say("the cluster has stopped")
