"""What `kctl doctor` looks at: every node that can be found, asked at once, none waited for long.

It starts from the addresses that the user has given, and goes on to the nodes that those know, so that one address of a
node that runs is enough.  The cluster's metadata comes from whoever knows the latest, so without a leader, too.  What
may only be on its way (an election, a node that applies, a replica that is being filled) is looked at a second time, a
moment later, and what moved meanwhile is no finding.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Iterable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from quorumlog.client.probe import probe, why_silent
from quorumlog.errors import ClusterError
from quorumlog.kctl.words import quoted
from quorumlog.runtime.addresses import Address
from quorumlog.runtime.clock import Sources
from quorumlog.runtime.logging import rfc3339
from quorumlog.wire.v1 import controller_pb2, node_pb2

ASK_S = 3.0
PROBE_S = 1.0
CONTROLLER_S = 5.0
METADATA_S = 10.0
SECOND_LOOK_S = 2.0
ELECTION_S = 5.0
"""How long a healthy majority may take to find a leader, from when doctor first sees none."""
ELECTION_LOOK_S = 0.5
AT_ONCE_MAX = 32
HOPS_MAX = 3
TOPICS_AT_ONCE = 256
TROUBLED_TOPICS_MAX = 100

NOBODY = -1
NOT_OURS = "what answers there is no quorumlog node"

_T = TypeVar("_T")


@dataclass(slots=True)
class NodeLook:
    """One node.  `silence`: why it does not answer, in words; then there is nothing else of it.

    quorum: DescribeQuorumReply, as this node sees it.  described: DescribeNodeReply.  later: the same, a moment later,
    if that was asked.  clock_ahead_ms: how far its wall clock is ahead of the one here.  replicas: ReplicaDescriptions,
    by (topic, index), of topics that are not as they should be.
    """

    address: str
    node_id: int | None = None
    silence: str | None = None
    quorum: Any = None
    described: Any = None
    later: Any = None
    clock_ahead_ms: int | None = None
    strays: list[Any] = field(default_factory=list)
    replicas: dict[tuple[str, int], Any] = field(default_factory=dict)
    replicas_later: dict[tuple[str, int], Any] = field(default_factory=dict)

    @property
    def answers(self) -> bool:
        return self.silence is None

    @property
    def leads(self) -> bool:
        """By its own word."""
        return self.quorum is not None and _leader_id(self.quorum) == self.quorum.answered_by.node_id


@dataclass(slots=True)
class Look:
    """Everything that was seen.  `quorum`: the description that is to be believed: the leader's, or the latest one.

    metadata: DescribeMetadataReply, None with `metadata_problem`.  heard: what the controller heard of
    brokers, by id; a moment later, if something was pending, heard_later.  doubles: by id, the addresses of several
    nodes that claim it, with different disks.
    """

    given: list[str]
    nodes: list[NodeLook] = field(default_factory=list)
    quorum: Any = None
    metadata: Any = None
    metadata_problem: str = ""
    heard: dict[int, Any] = field(default_factory=dict)
    heard_later: dict[int, Any] = field(default_factory=dict)
    controller_problem: str = ""
    client_ports: dict[int, str | None] = field(default_factory=dict)
    doubles: dict[int, list[str]] = field(default_factory=dict)

    @property
    def leader(self) -> NodeLook | None:
        """The node that leads, by its own word."""
        leaders = [node for node in self.nodes if node.leads]
        return max(leaders, key=lambda node: node.quorum.known.epoch, default=None)

    @property
    def voters(self) -> list[int]:
        """Their ids, as the description that is believed has them."""
        return [] if self.quorum is None else sorted(voter.replica.key.node_id for voter in self.quorum.voters)

    @property
    def replaced_voters(self) -> list[int]:
        """Voters in whose place a node with another disk answers: it does not vote."""
        if self.quorum is None:
            return []
        return [
            key.node_id for key in (status.replica.key for status in self.quorum.voters)
            if (node := self.node(key.node_id)) is not None and node.quorum is not None
            and key.directory_id and (disk := node.quorum.answered_by.directory_id) and disk != key.directory_id
        ]  # fmt: skip

    @property
    def followed(self) -> int | None:
        """Whom a majority of the voters takes for the leader, in one epoch, whether that one answers here or not."""
        views = [
            (node.quorum.known.epoch, leader)
            for node in self.nodes
            if node.quorum is not None and node.node_id in self.voters
            and (leader := _leader_id(node.quorum)) is not None
        ]  # fmt: skip
        found = max(set(views), key=views.count, default=None)
        return found[1] if found is not None and 2 * views.count(found) > len(self.voters) else None

    def node(self, node_id: int) -> NodeLook | None:
        found = [node for node in self.nodes if node.node_id == node_id]
        return next((node for node in found if node.answers), found[0] if found else None)

    def silence_of(self, node_id: int) -> str | None:
        """Why the node does not answer, and how it ended, if it has reported that; None if it does, or nobody knows
        where to ask.

        Of a broker whose control address nobody knows (only a leader does), whether it takes connections of clients.
        """
        node = self.node(node_id)
        silence = self.client_ports.get(node_id) if node is None else node.silence
        end = self.end_of(node_id)
        if silence is None or end is None:
            return silence
        told = f"it ended at {rfc3339(end.at_ms)} with status {end.exit_status}: {quoted(end.cause)}"
        return f"{silence}; node {node_id} reported: {told}"

    def end_of(self, node_id: int) -> Any:
        """The NodeEnd that a node has reported to others before it fell silent, or None."""
        node = self.node(node_id)
        if node is not None and node.answers:
            return None
        reported = [end for each in self.nodes if each.described is not None for end in each.described.ends]
        mine = [end for end in reported if end.node_id == node_id]
        return max(mine, key=lambda end: end.at_ms, default=None)


def _lateness(quorum: Any) -> tuple[int, int, int]:
    return quorum.known.generation, quorum.known.epoch, quorum.high_watermark


def _leader_id(quorum: Any) -> int | None:
    return quorum.known.leader_id if quorum.known.HasField("leader_id") else None


class Doctor:
    """Takes a look.  `client`: a ControllerClient."""

    def __init__(self, client: Any, addresses: Iterable[str], timeout_s: float) -> None:
        self._client = client
        self._wall_ms = Sources.real().wall_ms
        self._free = asyncio.Semaphore(AT_ONCE_MAX)
        self._deadline = asyncio.get_running_loop().time() + timeout_s
        self.look = Look(list(addresses))

    def _limit(self, seconds: float) -> float:
        return max(min(seconds, self._deadline - asyncio.get_running_loop().time()), 0.05)

    async def examine(self) -> Look:
        """Look at everything, twice where that is needed."""
        look = self.look
        await self._meet()
        if not any(node.answers for node in look.nodes):
            return look
        await self._await_leader()
        await asyncio.gather(self._ask_controller(), self._ask_metadata(), self._ask_strays())
        await asyncio.gather(self._ask_replicas("replicas"), self._probe_clients_ports())
        if self._is_second_look_needed():
            await asyncio.sleep(self._limit(SECOND_LOOK_S))  # what is only on its way has moved by then
            await asyncio.gather(self._ask_later(), self._ask_replicas("replicas_later"))
        return look

    # The nodes

    async def _meet(self) -> None:
        """Ask the given nodes, then those that they know, until nobody knows more."""
        asked: dict[str, NodeLook] = {}
        wanted: dict[str, int | None] = dict.fromkeys(self.look.given)
        for _ in range(HOPS_MAX):
            new = {address: node_id for address, node_id in wanted.items() if address not in asked}
            if not new:
                break
            for node in await self._each(self._ask_node(address, node_id) for address, node_id in new.items()):
                asked[node.address] = node
                if node.quorum is not None:
                    wanted.update(_known(node.quorum))
        for address, node in asked.items():
            if node.node_id is None:
                node.node_id = wanted[address]
        self.look.nodes = list(_distinct(asked.values()))
        self.look.doubles = _doubles(asked.values())
        self.look.quorum = self._believed()

    async def _ask_node(self, address: str, node_id: int | None) -> NodeLook:
        node = NodeLook(address, node_id)
        request = node_pb2.DescribeNodeRequest()
        try:
            node.quorum = await self._client.describe_quorum_of(address, self._limit(ASK_S))
            node.node_id = node.quorum.answered_by.node_id
            begun_ms = self._wall_ms()
            node.described = await self._client.ask_node(address, "DescribeNode", request, self._limit(ASK_S))
            if node.described.HasField("wall_ms"):  # as of the middle of the question, which bounds the error
                node.clock_ahead_ms = node.described.wall_ms - (begun_ms + self._wall_ms()) // 2
        except ClusterError as error:
            if error.code == "NOT_A_NODE":
                node.silence = NOT_OURS
            elif node.quorum is None:
                node.silence = (await why_silent(address, self._limit(PROBE_S))).text
            elif error.retriable:
                node.silence = f"it has answered once, then: {error.message}"
        return node

    def _believed(self) -> Any:
        """The leader's description, else the one of the highest epoch, of those the one that knows most."""
        leader = self.look.leader
        if leader is not None:
            return leader.quorum
        seen = [node.quorum for node in self.look.nodes if node.quorum is not None]
        return max(seen, key=_lateness, default=None)

    async def _await_leader(self) -> None:
        """Without a leader, though a majority answers, an election may be under way: give it its time."""
        loop = asyncio.get_running_loop()
        end = loop.time() + self._limit(ELECTION_S)
        while self.look.leader is None and self._has_majority() and loop.time() < end:
            await asyncio.sleep(self._limit(ELECTION_LOOK_S))  # no event tells kctl of an election
            await self._meet()

    def _has_majority(self) -> bool:
        voters = self.look.voters
        answering = [voter for voter in voters if (node := self.look.node(voter)) is not None and node.answers]
        return 2 * len(answering) > len(voters) > 0

    # What the cluster says

    async def _ask_controller(self) -> None:
        leader = self.look.leader
        if (leader is None and self.look.followed is None) or (leader is not None and leader.quorum.paused):
            return  # nobody would answer
        if leader is not None:
            self._client.prefer(leader.address)  # another node may not have heard of it yet
        try:
            self.look.heard = await self._heard()
        except ClusterError as error:
            self.look.controller_problem = error.message

    async def _heard(self) -> dict[int, Any]:
        request = controller_pb2.DescribeBrokersRequest()
        reply = await self._client.call("DescribeBrokers", request, self._limit(CONTROLLER_S))
        return {broker.broker_id: broker for broker in reply.brokers}

    async def _ask_metadata(self) -> None:
        candidates = [node for node in self.look.nodes if node.answers and node.described is not None]
        candidates.sort(key=lambda node: (not node.leads, -node.described.applied_offset))
        for node in candidates[:3]:
            try:
                self.look.metadata = await self._metadata_of(node.address)
            except ClusterError as error:
                self.look.metadata_problem = f"node {node.node_id}: {error.message}"
            else:
                break
        if self.look.metadata is not None and not self.look.metadata.offset and self.look.voters:
            self.look.metadata = None
            self.look.metadata_problem = (
                "those that answer have just started, and only a leader can tell what is committed"
            )

    async def _metadata_of(self, address: str) -> Any:
        """All of it, in pieces when it is too much for one answer."""

        async def ask(**request: Any) -> Any:
            message = node_pb2.DescribeMetadataRequest(at_offset=NOBODY, **request)
            return await self._client.ask_node(address, "DescribeMetadata", message, self._limit(METADATA_S))

        try:
            return await ask()
        except ClusterError as error:
            if error.code != "POLICY_VIOLATION":
                raise
        whole = await ask(without_partitions=True)
        names = [topic.name for topic in whole.topics]
        del whole.topics[:]
        size = TOPICS_AT_ONCE
        while names:
            try:
                part = await ask(topics=names[:size])
            except ClusterError as error:
                if error.code != "POLICY_VIOLATION" or size == 1:
                    raise
                size //= 2
                continue
            whole.topics.extend(topic for topic in part.topics if topic.result.error in ("NONE", ""))
            names = names[size:]
        return whole

    async def _probe_clients_ports(self) -> None:
        """Of brokers that no node could give the control address of."""

        async def look_at(broker: Any) -> None:
            for endpoint in broker.endpoints[:1]:
                address = str(Address(endpoint.host, endpoint.port))
                silence = await probe(address, self._limit(PROBE_S))
                self.look.client_ports[broker.broker_id] = f"{address}: {silence}" if silence else None

        unknown = [] if self.look.metadata is None else self.look.metadata.brokers
        await self._each(look_at(broker) for broker in unknown if self.look.node(broker.broker_id) is None)

    async def _ask_strays(self) -> None:
        request = node_pb2.PurgeStraysRequest(dry_run=True)

        async def ask(node: NodeLook) -> None:
            with contextlib.suppress(ClusterError):
                reply = await self._client.ask_node(node.address, "PurgeStrays", request, self._limit(ASK_S))
                node.strays = list(reply.strays)

        await self._each(ask(node) for node in self._brokers())

    async def _ask_replicas(self, name: str) -> None:
        """Of the topics that are not as they should be: what each broker has of them."""
        topics = sorted(troubled(self.look.metadata))[:TROUBLED_TOPICS_MAX] if self.look.metadata is not None else []
        if not topics:
            return
        request = node_pb2.DescribeReplicasRequest(topics=topics)

        async def ask(node: NodeLook) -> None:
            with contextlib.suppress(ClusterError):
                reply = await self._client.ask_node(node.address, "DescribeReplicas", request, self._limit(ASK_S))
                setattr(node, name, {(replica.topic, replica.index): replica for replica in reply.replicas})

        await self._each(ask(node) for node in self._brokers())

    def _brokers(self) -> list[NodeLook]:
        return [n for n in self.look.nodes if n.answers and n.described is not None and n.described.is_broker]

    # Once more

    def _is_second_look_needed(self) -> bool:
        if self._behind() or self._has_pending():
            return True
        return self.look.metadata is not None and bool(troubled(self.look.metadata))

    def _has_pending(self) -> bool:
        return any(broker.pending_changes > 0 for broker in self.look.heard.values())

    def _behind(self) -> list[NodeLook]:
        end = committed(self.look)
        return [n for n in self.look.nodes if n.described is not None and n.described.applied_offset < end]

    async def _ask_later(self) -> None:
        async def ask(node: NodeLook) -> None:
            with contextlib.suppress(ClusterError):
                request = node_pb2.DescribeNodeRequest()
                node.later = await self._client.ask_node(node.address, "DescribeNode", request, self._limit(ASK_S))

        await self._each(ask(node) for node in self._behind())
        if self._has_pending():
            with contextlib.suppress(ClusterError):
                self.look.heard_later = await self._heard()

    async def _each(self, questions: Iterable[Awaitable[_T]]) -> list[_T]:
        async def one(question: Awaitable[_T]) -> _T:
            async with self._free:
                return await question

        return list(await asyncio.gather(*map(one, questions)))


def committed(look: Look) -> int:
    """End of what is certainly committed, as of the first look."""
    return int(look.quorum.high_watermark) if look.quorum is not None else 0


def _known(quorum: Any) -> dict[str, int | None]:
    """Control addresses of the nodes in a description."""
    found: dict[str, int | None] = {
        status.replica.address: status.replica.key.node_id
        for status in (*quorum.voters, *quorum.observers)
        if status.replica.address
    }
    if quorum.known.HasField("leader_id") and quorum.known.leader_address:
        found[quorum.known.leader_address] = quorum.known.leader_id
    return found


def _distinct(nodes: Iterable[NodeLook]) -> Iterable[NodeLook]:
    """Each node once, though it has several addresses; those that answer first."""
    seen: set[int] = set()
    for node in sorted(nodes, key=lambda node: not node.answers):
        if node.node_id is None or node.node_id not in seen:
            yield node
        if node.node_id is not None:
            seen.add(node.node_id)


def _doubles(nodes: Iterable[NodeLook]) -> dict[int, list[str]]:
    disks: dict[int, dict[bytes, str]] = {}
    for node in nodes:
        if node.quorum is not None and node.node_id is not None and node.quorum.answered_by.directory_id:
            disks.setdefault(node.node_id, {})[node.quorum.answered_by.directory_id] = node.address
    return {node_id: sorted(found.values()) for node_id, found in disks.items() if len(found) > 1}


def troubled(metadata: Any) -> set[str]:
    """Topics with a partition that has no leader, is not all in sync, or is being moved."""
    return {
        topic.name
        for topic in metadata.topics
        for partition in topic.partitions
        if partition.leader == NOBODY
        or len(partition.isr) < len(partition.replicas)
        or partition.adding
        or partition.removing
    }
