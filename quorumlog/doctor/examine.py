"""Examines a cluster: asks every node that can be found, concurrently, each with a short time limit.

The examination starts at the addresses that the user gave, and continues with the nodes that the answers name.  So the
address of one running node is enough.  The metadata comes from the leader if it answers, else from the node that has
applied the most records.

Some states may only be temporary: an election, a node that applies records, a replica that is being copied.  They are
examined again a moment later, so that a conclusion can distinguish progress from a standstill.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from quorumlog.client.probe import HANGS, probe, why_silent
from quorumlog.client.reads import TOPICS_AT_ONCE, in_parts
from quorumlog.doctor.groups import OFFSETS
from quorumlog.doctor.groups_observed import look_at_groups
from quorumlog.doctor.layout import UNFENCED
from quorumlog.doctor.observed import NO_LEADER, ObservedCluster, ObservedNode, troubled_topics
from quorumlog.doctor.transactions import STATE_TOPIC
from quorumlog.doctor.transactions_observed import look_at_transactions
from quorumlog.errors import ClusterError
from quorumlog.runtime.addresses import Address, client_addresses
from quorumlog.runtime.clock import Sources
from quorumlog.wire import rpcs
from quorumlog.wire.errors import ApiError
from quorumlog.wire.v1 import controller_pb2, node_pb2

if TYPE_CHECKING:
    from quorumlog.client.controller import ControllerClient

ASK_S = 3.0
PROBE_S = 1.0
CONTROLLER_S = 5.0
METADATA_S = 10.0
TRANSACTIONS_S = 10.0
GROUPS_S = 20.0
"""Time limit of all questions about groups, including the samples of growing lag."""
SECOND_LOOK_S = 2.0
"""Time between the first and the second examination of a state that may be temporary."""
ELECTION_S = 5.0
"""How long a majority of answering voters may take to elect a leader, from the first observation without a leader."""
ELECTION_LOOK_S = 0.5
AT_ONCE_MAX = 32
"""Maximum number of requests that are in flight at a time; others wait."""
HOPS_MAX = 3
"""Rounds of requests.  The first round asks the given addresses, and each further round the nodes that the previous
round found.  Nodes that no round reaches are not found."""
METADATA_NODES_MAX = 3
"""Maximum number of nodes that are asked for the metadata, one after the other, until one answers."""
TROUBLED_TOPICS_MAX = 100
"""Maximum number of troubled topics whose replicas are requested.  The causes of problems of other topics remain
unknown."""

NOT_A_NODE = "the process at this address is not a quorumlog node"
CURRENT = -1
"""Value of `at_offset` for all metadata that the node has applied."""

_T = TypeVar("_T")


async def examine(client: ControllerClient, addresses: Iterable[str], timeout_s: float) -> ObservedCluster:
    """Ask all nodes that can be found from `addresses`; return their answers within about `timeout_s` seconds.

    A node that does not answer is part of the result, and causes no error.
    """
    examination = _Examination(client, list(addresses), timeout_s)
    await examination.run()
    return examination.cluster


class _Examination:
    """One examination; `cluster` holds its results."""

    def __init__(self, client: ControllerClient, addresses: list[str], timeout_s: float) -> None:
        self._client = client
        self._wall_ms = Sources.real().wall_ms
        self._slots = asyncio.Semaphore(AT_ONCE_MAX)
        self._deadline = asyncio.get_running_loop().time() + timeout_s
        self.cluster = ObservedCluster(addresses)

    def _limit(self, seconds: float) -> float:
        return max(min(seconds, self._deadline - asyncio.get_running_loop().time()), 0.05)

    async def run(self) -> None:
        await self._ask_nodes()
        if not any(node.answers for node in self.cluster.nodes):
            return
        await self._await_leader()
        await self._ask_controller()
        if self.cluster.controller_problem:
            await self._ask_again()
        await asyncio.gather(self._ask_metadata(), self._ask_strays())
        await asyncio.gather(
            self._ask_replicas("replicas"), self._probe_client_ports(), self._ask_groups(), self._ask_transactions()
        )
        if self._needs_second_look():
            await asyncio.sleep(self._limit(SECOND_LOOK_S))
            await asyncio.gather(self._ask_later(), self._ask_replicas("replicas_later"))

    # The nodes

    async def _ask_nodes(self) -> None:
        """Ask the given nodes, then the nodes that they know, in at most `HOPS_MAX` rounds."""
        asked: dict[str, ObservedNode] = {}
        wanted: dict[str, int | None] = dict.fromkeys(self.cluster.addresses)
        for _ in range(HOPS_MAX):
            new = {address: node_id for address, node_id in wanted.items() if address not in asked}
            if not new:
                break
            for node in await self._each(self._ask_node(address, node_id) for address, node_id in new.items()):
                asked[node.address] = node
                if node.quorum is not None:
                    wanted.update(_known_addresses(node.quorum))
        for address, node in asked.items():
            if node.node_id is None:
                node.node_id = wanted[address]
        self.cluster.nodes = list(asked.values())
        self.cluster.quorum = self._latest_quorum()
        self.cluster.nodes = list(_distinct(self.cluster))
        self.cluster.doubles = _doubles(asked.values())

    async def _ask_node(self, address: str, node_id: int | None) -> ObservedNode:
        node = ObservedNode(address, node_id)
        request = node_pb2.DescribeNodeRequest()
        try:
            node.quorum = await self._client.describe_quorum_of(address, self._limit(ASK_S))
            node.node_id = node.quorum.answered_by.node_id
            asked_ms = self._wall_ms()
            described = await self._client.ask_node(address, rpcs.DESCRIBE_NODE, request, self._limit(ASK_S))
            node.described = described
            if described.HasField("wall_ms"):  # compared with the middle of the request, which halves the error
                node.clock_ahead_ms = described.wall_ms - (asked_ms + self._wall_ms()) // 2
        except ClusterError as error:
            if error.code == ApiError.NOT_A_NODE:
                node.silence = NOT_A_NODE
            elif node.quorum is None:
                node.silence = (await why_silent(address, self._limit(PROBE_S))).text
                node.hangs = node.silence == HANGS
            elif error.retriable:
                node.silence = f"it answered once, then: {error.message}"
        return node

    def _latest_quorum(self) -> Any:
        """Return the quorum as the leader describes it; without a leader, as the most advanced node describes it."""
        leader = self.cluster.leader
        if leader is not None:
            return leader.quorum
        seen = [node.quorum for node in self.cluster.nodes if node.quorum is not None]
        return max(seen, key=lambda each: (each.known.generation, each.known.epoch, each.high_watermark), default=None)

    async def _await_leader(self) -> None:
        """If no node leads, but a majority of the voters answers, wait up to `ELECTION_S` for an election."""
        loop = asyncio.get_running_loop()
        end = loop.time() + self._limit(ELECTION_S)
        while self.cluster.leader is None and self._majority_answers() and loop.time() < end:
            await asyncio.sleep(self._limit(ELECTION_LOOK_S))  # no event reports the end of an election
            await self._ask_nodes()

    def _majority_answers(self) -> bool:
        voters = self.cluster.voters
        return 2 * sum(map(self.cluster.answers, voters)) > len(voters) > 0

    # The cluster

    async def _ask_controller(self) -> None:
        leader = self.cluster.leader
        is_paused = leader is not None and leader.quorum is not None and leader.quorum.paused
        if is_paused or (leader is None and self.cluster.followed is None):
            return  # no controller is active
        if leader is not None:
            self._client.prefer(leader.address)  # other nodes may not know it yet
        try:
            self.cluster.heartbeats = await self._heartbeats()
        except ClusterError as error:
            self.cluster.controller_problem = error.message

    async def _ask_again(self) -> None:
        """Ask all nodes again, because the controller did not answer: it may have failed, or lost its majority."""
        cluster, asked = self.cluster, self.cluster.leader
        await self._ask_nodes()
        await self._await_leader()
        leader = cluster.leader
        is_same = (
            leader is not None and asked is not None and (leader.node_id, leader.epoch) == (asked.node_id, asked.epoch)
        )
        if not is_same or (leader is not None and leader.quorum is not None and leader.quorum.paused):
            cluster.controller_problem = ""
            await self._ask_controller()

    async def _heartbeats(self) -> dict[int, Any]:
        request = controller_pb2.DescribeBrokersRequest()
        reply = await self._client.call(rpcs.DESCRIBE_BROKERS, request, self._limit(CONTROLLER_S))
        return {broker.broker_id: broker for broker in reply.brokers}

    async def _ask_metadata(self) -> None:
        cluster = self.cluster
        candidates = [
            (node, node.described) for node in cluster.own_nodes if node.answers and node.described is not None
        ]
        candidates.sort(key=lambda found: (not found[0].leads, -found[1].applied_offset))
        for node, _ in candidates[:METADATA_NODES_MAX]:
            try:
                cluster.metadata = await self._metadata_of(node.address)
            except ClusterError as error:
                cluster.metadata_problem = f"node {node.node_id}: {error.message}"
            else:
                break
        if cluster.metadata is not None and not cluster.metadata.offset and cluster.voters:
            cluster.metadata = None
            cluster.metadata_problem = (
                "the nodes that answer have just started, and only a leader knows which records are committed"
            )

    async def _metadata_of(self, address: str) -> Any:
        """Return all metadata of a node, in several requests if it does not fit into one reply."""

        async def ask(**request: Any) -> Any:
            message = node_pb2.DescribeMetadataRequest(at_offset=CURRENT, **request)
            return await self._client.ask_node(address, rpcs.DESCRIBE_METADATA, message, self._limit(METADATA_S))

        try:
            return await ask()
        except ClusterError as error:
            if error.code != ApiError.POLICY_VIOLATION:
                raise
        whole = await ask(without_partitions=True)
        names = [topic.name for topic in whole.topics]
        del whole.topics[:]

        async def ask_part(part: Sequence[str]) -> Iterable[Any]:
            described: Iterable[Any] = (await ask(topics=part)).topics
            return described

        # A topic that was deleted since the first request comes with an error.
        described = await in_parts(names, TOPICS_AT_ONCE, ask_part)
        whole.topics.extend(topic for topic in described if topic.result.error in (ApiError.NONE, ""))
        return whole

    async def _probe_client_ports(self) -> None:
        """Connect to the client ports of brokers whose control addresses no node knows."""

        async def connect(broker: Any) -> None:
            for endpoint in broker.endpoints[:1]:
                address = str(Address(endpoint.host, endpoint.port))
                silence = await probe(address, self._limit(PROBE_S))
                self.cluster.client_ports[broker.broker_id] = f"{address}: {silence}" if silence else None

        brokers = [] if self.cluster.metadata is None else self.cluster.metadata.brokers
        await self._each(connect(broker) for broker in brokers if self.cluster.node(broker.broker_id) is None)

    async def _ask_groups(self) -> None:
        """Ask the coordinators of groups, if the topic that holds groups exists."""
        if addresses := self._clients_of(OFFSETS):
            self.cluster.groups = await look_at_groups(addresses, self._limit(GROUPS_S))

    async def _ask_transactions(self) -> None:
        """Ask leaders and coordinators about transactions, if the topic that holds transactions exists."""
        metadata = self.cluster.metadata
        if metadata is not None and (addresses := self._clients_of(STATE_TOPIC)):
            led = [
                (topic.name, each.index)
                for topic in metadata.topics
                for each in topic.partitions
                if each.leader != NO_LEADER
            ]
            limit_s = self._limit(TRANSACTIONS_S)
            now_ms = self._wall_ms() + self.cluster.clock_ahead_ms
            self.cluster.transactions = await look_at_transactions(addresses, led, now_ms, limit_s)

    def _clients_of(self, topic: str) -> list[str]:
        """Return the addresses of unfenced brokers for Kafka clients, if this topic exists; else nothing."""
        metadata = self.cluster.metadata
        if metadata is None or all(each.name != topic for each in metadata.topics):
            return []
        return client_addresses(broker.endpoints for broker in metadata.brokers if broker.state == UNFENCED)

    async def _ask_strays(self) -> None:
        request = node_pb2.PurgeStraysRequest(dry_run=True)

        async def ask(node: ObservedNode) -> None:
            with contextlib.suppress(ClusterError):
                reply = await self._client.ask_node(node.address, rpcs.PURGE_STRAYS, request, self._limit(ASK_S))
                node.strays = list(reply.strays)

        await self._each(ask(node) for node in self._brokers())

    async def _ask_replicas(self, field: Literal["replicas", "replicas_later"]) -> None:
        """Ask each broker for its replicas of troubled topics."""
        if self.cluster.metadata is None:
            return
        topics = sorted(troubled_topics(self.cluster.metadata))[:TROUBLED_TOPICS_MAX]
        if not topics:
            return
        request = node_pb2.DescribeReplicasRequest(topics=topics)

        async def ask(node: ObservedNode) -> None:
            with contextlib.suppress(ClusterError):
                reply = await self._client.ask_node(node.address, rpcs.DESCRIBE_REPLICAS, request, self._limit(ASK_S))
                setattr(node, field, {(replica.topic, replica.index): replica for replica in reply.replicas})

        await self._each(ask(node) for node in self._brokers())

    def _brokers(self) -> list[ObservedNode]:
        return [n for n in self.cluster.own_nodes if n.answers and n.described is not None and n.described.is_broker]

    # The second look

    def _needs_second_look(self) -> bool:
        if self._behind() or self._has_pending_changes():
            return True
        return self.cluster.metadata is not None and bool(troubled_topics(self.cluster.metadata))

    def _has_pending_changes(self) -> bool:
        return any(broker.pending_changes > 0 for broker in self.cluster.heartbeats.values())

    def _behind(self) -> list[ObservedNode]:
        end = self.cluster.committed_end
        return [n for n in self.cluster.own_nodes if n.described is not None and n.described.applied_offset < end]

    async def _ask_later(self) -> None:
        async def ask(node: ObservedNode) -> None:
            with contextlib.suppress(ClusterError):
                request = node_pb2.DescribeNodeRequest()
                reply = await self._client.ask_node(node.address, rpcs.DESCRIBE_NODE, request, self._limit(ASK_S))
                node.described_later = reply

        await self._each(ask(node) for node in self._behind())
        if self._has_pending_changes():
            with contextlib.suppress(ClusterError):
                self.cluster.heartbeats_later = await self._heartbeats()

    async def _each(self, questions: Iterable[Awaitable[_T]]) -> list[_T]:
        async def one(question: Awaitable[_T]) -> _T:
            async with self._slots:
                return await question

        return list(await asyncio.gather(*map(one, questions)))


def _known_addresses(quorum: Any) -> dict[str, int | None]:
    """Return the control addresses in a description of the quorum, with the ids of the nodes."""
    found: dict[str, int | None] = {
        status.replica.address: status.replica.key.node_id
        for status in (*quorum.voters, *quorum.observers)
        if status.replica.address
    }
    if quorum.known.HasField("leader_id") and quorum.known.leader_address:
        found[quorum.known.leader_address] = quorum.known.leader_id
    return found


def _distinct(cluster: ObservedCluster) -> Iterable[ObservedNode]:
    """Yield each node once, even if it has several addresses; nodes that answer come first.

    A node that does not answer counts as one of the cluster in `quorum`.
    """
    seen: set[tuple[str | None, int]] = set()
    for node in sorted(cluster.nodes, key=lambda node: not node.answers):
        if node.node_id is None:
            yield node
            continue
        key = (node.cluster_id if cluster.is_foreign(node) else cluster.cluster_id, node.node_id)
        if key not in seen:
            seen.add(key)
            yield node


def _doubles(nodes: Iterable[ObservedNode]) -> dict[int, list[str]]:
    """Return the addresses of nodes of one cluster that have the same id and different disks, by id."""
    disks: dict[tuple[str | None, int], dict[bytes, str]] = {}
    for node in nodes:
        if node.quorum is not None and node.node_id is not None and node.quorum.answered_by.directory_id:
            found = disks.setdefault((node.cluster_id, node.node_id), {})
            found[node.quorum.answered_by.directory_id] = node.address
    return {node_id: sorted(found.values()) for (_, node_id), found in disks.items() if len(found) > 1}
