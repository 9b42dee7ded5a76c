"""Reads with and without an active controller, in virtual time."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from quorumlog.client import reads
from quorumlog.client.reads import CONFIRM_S, GRACE_S, read, read_anywhere
from quorumlog.errors import ClusterError
from quorumlog.wire import rpcs
from quorumlog.wire.rpcs import AnyRpc
from quorumlog.wire.v1 import controller_pb2 as pb
from tests.unit.metadata.fake_node import run

REQUEST = pb.DescribeTopicsRequest(names=["t"])
NOBODY = ClusterError("NOT_CONTROLLER", "no controller", retriable=True)
SILENT = ClusterError("UNAVAILABLE", "no answer", retriable=True)
NEVER = 1e9


def answer(offset: int, unconfirmed: bool = True, generation: int = 0) -> Any:
    result = pb.Result(error="NONE", unconfirmed=unconfirmed, generation=generation)
    return pb.DescribeTopicsReply(result=result, offset=offset)


class Nodes:
    """`controller`: (seconds, answer or error) of the active controller. nodes: the same for each node's own answer."""

    def __init__(self, controller: tuple[float, Any], **nodes: tuple[float, Any]) -> None:
        self.controller = controller
        self.nodes = nodes
        self.asked: list[str] = []
        self.cancelled: list[str] = []

    @property
    def addresses(self) -> list[str]:
        return list(self.nodes)

    async def _answer(self, name: str, script: tuple[float, Any], timeout_s: float) -> Any:
        self.asked.append(name)
        after_s, what = script
        try:
            await asyncio.sleep(min(after_s, timeout_s))
        except asyncio.CancelledError:
            self.cancelled.append(name)
            raise
        if after_s > timeout_s:
            raise SILENT
        if isinstance(what, Exception):
            raise what
        return what

    async def call(self, rpc: AnyRpc, request: Any, timeout_s: float) -> Any:
        assert not request.header.unconfirmed
        return await self._answer("controller", self.controller, timeout_s)

    async def call_node(self, address: str, rpc: AnyRpc, request: Any, timeout_s: float) -> Any:
        assert request.header.unconfirmed
        return await self._answer(address, self.nodes[address], timeout_s)


def timed(nodes: Nodes, timeout_s: float = 30.0, ask: Any = read) -> tuple[Any, float]:
    """Return the reply or the error, and the seconds until then."""

    async def test() -> tuple[Any, float]:
        loop = asyncio.get_running_loop()
        began = loop.time()
        try:
            found = await ask(nodes, rpcs.DESCRIBE_TOPICS, REQUEST, timeout_s)
        except ClusterError as error:
            found = error
        return found, loop.time() - began

    return run(test())


def test_read_asks_no_node_if_the_controller_answers() -> None:
    nodes = Nodes((0.1, answer(9, unconfirmed=False)), a=(0, answer(5)))
    found, _ = timed(nodes)
    assert (found.offset, found.result.unconfirmed, nodes.asked) == (9, False, ["controller"])


@pytest.mark.parametrize("controller", [(NEVER, None), (0, NOBODY)])
def test_without_a_controller_read_soon_returns_the_answer_with_the_highest_offset(
    controller: tuple[float, Any],
) -> None:
    nodes = Nodes(controller, a=(0.1, answer(5)), b=(0.2, answer(7)), c=(0, SILENT))
    found, seconds = timed(nodes)
    assert (found.offset, found.result.unconfirmed) == (7, True)
    assert seconds < 3


@pytest.mark.parametrize("ask", [read, read_anywhere])
@pytest.mark.parametrize("first", ["old", "new"])
def test_an_answer_of_a_newer_generation_is_preferred_to_a_higher_offset(ask: Any, first: str) -> None:
    """A voter of the earlier generation still runs after `quorum-node recover`, and has applied more."""
    answers = {"old": (0, answer(9000, generation=1)), "new": (0.1, answer(5000, generation=2))}
    nodes = Nodes((NEVER, None), **dict(sorted(answers.items(), key=lambda item: item[0] != first)))
    found, _ = timed(nodes, ask=ask)
    assert (found.offset, found.result.generation) == (5000, 2)


def test_within_a_generation_the_highest_offset_wins() -> None:
    nodes = Nodes((NEVER, None), a=(0, answer(7, generation=2)), b=(0, answer(8, generation=2)))
    assert timed(nodes, ask=read_anywhere)[0].offset == 8


def test_the_controllers_answer_is_used_if_a_node_answers_at_the_same_time(monkeypatch: pytest.MonkeyPatch) -> None:
    async def anywhere(*_: Any) -> Any:
        await asyncio.sleep(0.1)
        return answer(10)

    monkeypatch.setattr(reads, "read_anywhere", anywhere)
    found, _ = timed(Nodes((CONFIRM_S + 0.1, answer(9, unconfirmed=False))))
    assert (found.offset, found.result.unconfirmed) == (9, False)


def test_a_hanging_node_delays_the_answers_of_others_only_by_the_grace_period() -> None:
    nodes = Nodes((NEVER, None), a=(NEVER, None), b=(0, answer(7)))
    found, seconds = timed(nodes)
    assert found.offset == 7
    assert seconds == pytest.approx(CONFIRM_S + GRACE_S)
    assert sorted(nodes.cancelled) == ["a", "controller"]


def test_a_controller_that_answers_before_any_node_is_used() -> None:
    nodes = Nodes((10, answer(9, unconfirmed=False)), a=(0, SILENT))
    found, seconds = timed(nodes)
    assert (found.offset, seconds) == (9, 10)


def test_read_raises_a_final_refusal_at_once() -> None:
    refusal = ClusterError("POLICY_VIOLATION", "too much")
    found, seconds = timed(Nodes((0.1, refusal), a=(0, answer(5))))
    assert found is refusal
    assert seconds == pytest.approx(0.1)
    found, _ = timed(Nodes((NEVER, None), a=(0, SILENT), b=(0, refusal)))
    assert found is refusal


@pytest.mark.parametrize("timeout_s", [0.5, 2.0, 30.0])
def test_a_read_without_answers_ends_at_its_timeout(timeout_s: float) -> None:
    found, seconds = timed(Nodes((NEVER, None), a=(NEVER, None)), timeout_s)
    assert found.code == "UNAVAILABLE"
    assert seconds == pytest.approx(timeout_s)


def test_a_limited_number_of_nodes_is_asked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reads, "NODES_MAX", 2)
    nodes = Nodes((NEVER, None), a=(1, answer(5)), b=(1, answer(6)), c=(0, answer(7)))
    found, seconds = timed(nodes, ask=read_anywhere)
    assert (found.offset, seconds, nodes.asked) == (6, 1, ["a", "b"])


def test_a_confirmed_answer_is_preferred_to_a_higher_offset() -> None:
    """A node of an older release asks the controller although the request permits an unconfirmed read."""
    nodes = Nodes((NEVER, None), a=(0, answer(5, unconfirmed=False)), b=(0, answer(7, generation=2)))
    assert timed(nodes, ask=read_anywhere)[0].offset == 5
