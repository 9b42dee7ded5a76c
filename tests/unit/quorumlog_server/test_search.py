"""A node without a cluster reports why it does not find one."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from structlog.testing import capture_logs

from quorum.ports import Transport, UnreachableError
from quorumlog.runtime.addresses import Address
from quorumlog.runtime.clock import Sources
from quorumlog.runtime.config import QUORUM_NODE, NodeConfig
from quorumlog.wire.v1 import node_pb2 as pb
from quorumlog_server import search
from quorumlog_server.control_plane import make_control_plane
from quorumlog_server.search import Search, state_of


def answering(*checks: pb.CheckResult) -> Transport:
    async def call(*_: object) -> pb.DescribeNodeReply:
        return pb.DescribeNodeReply(node_id=3, checks=checks)

    return cast(Transport, SimpleNamespace(call=call))


async def unreachable(*_: object) -> Any:
    raise UnreachableError("h:1: no connection")


SILENT = cast(Transport, SimpleNamespace(call=unreachable))


def test_the_state_of_a_node_in_words() -> None:
    with_cluster = pb.CheckResult(name="cluster", ok=True, detail="abc")
    without = pb.CheckResult(name="cluster", ok=False, detail="has not met its cluster yet")
    assert asyncio.run(state_of("h:1", answering(without))) == "node 3 answers, but is in no cluster yet"
    assert asyncio.run(state_of("h:1", answering(with_cluster))) == "node 3 answers, and is in cluster abc"


def test_a_port_for_kafka_clients_is_recognised() -> None:
    async def work() -> str:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            with contextlib.suppress(asyncio.IncompleteReadError):
                hello = await reader.readexactly(14)
                writer.write(b"\x00\x00\x00\x0a" + hello[8:12] + b"\x00\x00\x00\x00\x00\x00")
            writer.close()

        async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
            return await state_of(f"127.0.0.1:{port}", SILENT)

    assert asyncio.run(work()) == "that is a port for Kafka clients, not a control address"


def test_the_causes_are_logged_again_and_again_until_the_node_has_met_its_cluster(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pauses: list[float] = []

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)

    monkeypatch.setattr(asyncio, "sleep", sleep)

    async def ask(address: str) -> str:
        return f"cause {len(pauses)}"

    searching = Search(["h:1", "h:2"], ask, "start a node there")
    with capture_logs() as lines:
        asyncio.run(searching.run(lambda: len(pauses) > 3))
    assert pauses == [search.FIRST_S, search.AGAIN_S, search.AGAIN_S, search.AGAIN_S]
    assert [(line["log_level"], line["causes"]) for line in lines] == [
        ("warning", f"h:1: cause {number}; h:2: cause {number}") for number in (1, 2, 3)
    ]


def test_readyz_names_the_cause_for_each_address(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search, "FIRST_S", 0.01)

    async def work() -> None:
        nowhere = Address("127.0.0.1", 1)
        here = Address("127.0.0.1", 0)
        config = NodeConfig(QUORUM_NODE, 2, (str(tmp_path),), bootstrap=(nowhere,), control_listen=here)
        plane = make_control_plane(config, Sources.real())
        async with plane, asyncio.timeout(20):
            while "nothing listens there" not in (detail := plane.is_ready()[1]["cluster"]):  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        assert detail == "has not met its cluster yet; asks 127.0.0.1:1: connection refused: nothing listens there"

    asyncio.run(work())
