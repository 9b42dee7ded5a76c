"""The description of a process for tools: its directories, its settings, and the quorum according to its leader."""

from __future__ import annotations

import asyncio
from functools import partial
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID

from broker.server.kafka_node import KafkaNode
from quorum.core.events import Peer
from quorum.core.messages import DescribeQuorumReply, ErrorCode, Knowledge, ReplicaStatus
from quorum.core.types import ReplicaKey, Voter
from quorum.ports import UnreachableError
from quorumlog.runtime.settings import Setting
from quorumlog.runtime.space import Space
from quorumlog_server.quorum_view import leaders_description

KEYS = {number: ReplicaKey(number, UUID(int=number)) for number in (1, 2, 3)}


def reply(answered_by: int, leader_id: int | None = 1) -> DescribeQuorumReply:
    """The reply of a node; only the leader, 1, knows the others' fetches."""
    address = None if leader_id is None else f"h{leader_id}:9093"
    statuses = [
        ReplicaStatus(Voter(key, f"h{number}:9093"), 100 - number, 0, age, age)
        for number, key, age in ((1, KEYS[1], None), (2, KEYS[2], 30), (3, KEYS[3], None))
    ]
    return DescribeQuorumReply(
        error=ErrorCode.NONE,
        known=Knowledge("c", 0, 7, leader_id, address),
        answered_by=KEYS[answered_by],
        high_watermark=90,
        log_end_offset=99,
        paused=False,
        voters=tuple(statuses[:2]),
        observers=tuple(statuses[2:]),
        target_voters=None,
        last_leader_change_reason=None,
        last_leader_change_ms=None,
    )


SETTINGS = {
    "node.id": Setting(1, "--node-id"),
    "data.dirs": Setting(("/a", "/b"), "environment"),
    "quorum.auto.join": Setting(False, "default"),
    "broker.rack": Setting(None, "default"),
}


class Leader:
    """The transport to the leader."""

    def __init__(self, answer: DescribeQuorumReply | None) -> None:
        self.answer = answer
        self.asked: list[Peer] = []

    async def ask(self, to: Peer, request: Any, timeout_ms: int) -> DescribeQuorumReply:
        self.asked.append(to)
        if self.answer is None:
            raise UnreachableError("nobody")
        return self.answer


def node(own: DescribeQuorumReply, leader: Leader) -> KafkaNode:
    spaces = [Space("/a", 10, 20), Space("/quorum", 1, 2)]
    described = partial(leaders_description, SimpleNamespace(describe=lambda: own), cast(Any, leader))
    plane = SimpleNamespace(describe_quorum=described, space=SimpleNamespace(latest=lambda: spaces))
    logs = SimpleNamespace(failed_disks={UUID(int=2): "broken"})
    paths = {UUID(int=1): "/a", UUID(int=2): "/b"}
    clock = SimpleNamespace(wall_ms=lambda: 5_000)
    return KafkaNode(cast(Any, plane), cast(Any, logs), paths, cast(Any, clock), SETTINGS)


async def test_the_leader_of_the_quorum_describes_it_without_asking_another_node() -> None:
    leader = Leader(None)
    state = await node(reply(1), leader).quorum(1000)
    assert state is not None
    assert (state.leader_id, state.leader_epoch, state.high_watermark) == (1, 7, 90)
    assert [(each.node_id, each.end_offset, each.last_fetch_at_ms) for each in state.voters] == [
        (1, 99, 5_000), (2, 98, 4_970)
    ]  # fmt: skip
    assert [(each.node_id, each.last_caught_up_at_ms) for each in state.observers] == [(3, -1)]
    assert leader.asked == []


async def test_a_node_that_does_not_lead_asks_the_leader_for_the_description_of_the_quorum() -> None:
    leader = Leader(reply(1))
    state = await node(reply(3), leader).quorum(1000)
    assert state is not None
    assert state.voters[1].last_fetch_at_ms == 4_970
    assert leader.asked == [Peer(1, "h1:9093")]


async def test_the_quorum_is_not_described_without_a_reachable_leader() -> None:
    assert await node(reply(3), Leader(None)).quorum(1000) is None
    assert await node(reply(3, leader_id=None), Leader(None)).quorum(1000) is None
    assert await node(reply(3), Leader(reply(1, leader_id=2))).quorum(1000) is None, "it has resigned"


async def test_a_hanging_leader_is_waited_for_only_until_the_timeout() -> None:
    leader = Leader(None)

    async def hang(*_: object) -> Any:
        await asyncio.Event().wait()

    leader.ask = hang  # type: ignore[assignment, method-assign]
    async with asyncio.timeout(10):
        assert await node(reply(3), leader).quorum(1) is None


def test_directories_are_described_with_their_size_and_free_space() -> None:
    described = node(reply(1), Leader(None)).directories()
    assert [(each.path, each.is_failed, each.total_bytes, each.free_bytes) for each in described] == [
        ("/a", False, 20, 10), ("/b", True, -1, -1)
    ]  # fmt: skip


def test_settings_are_described_as_text() -> None:
    found = {each.name: each for each in node(reply(1), Leader(None)).settings()}
    assert {name: (each.value, each.default, each.is_set) for name, each in found.items()} == {
        "node.id": ("1", None, True),
        "data.dirs": ("/a,/b", "", True),
        "quorum.auto.join": ("false", "false", False),
        "broker.rack": (None, None, False),
    }
    types = {name: each.type.value for name, each in found.items()}
    assert types == {"node.id": "integer", "data.dirs": "list", "quorum.auto.join": "boolean", "broker.rack": "text"}
    assert all(each.documentation for each in found.values())
