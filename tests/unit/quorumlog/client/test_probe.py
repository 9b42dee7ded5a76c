"""The reason why an address does not answer, probed at real sockets."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import NoReturn

import pytest

from quorumlog.client.controller import ControllerClient
from quorumlog.client.probe import HANGS, probe, why_silent
from quorumlog.errors import ClusterError
from quorumlog.runtime.addresses import Address
from quorumlog.runtime.http import HttpServer, health_routes
from quorumlog.wire import rpcs
from quorumlog.wire.v1 import controller_pb2 as pb
from tests.unit.quorumlog.client.fake_cluster import fake_brokers
from tests.unit.quorumlog.client.test_controller_client import dead_address

GIVEN_S = 10.0


@asynccontextmanager
async def mute() -> AsyncIterator[str]:
    """Run a server that accepts connections and never sends anything."""
    server = await asyncio.start_server(lambda reader, writer: None, "127.0.0.1", 0)
    async with server:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"


@asynccontextmanager
async def kafka() -> AsyncIterator[str]:
    async with fake_brokers(1) as brokers:
        yield brokers.bootstrap


async def test_a_port_of_kafka_clients_is_recognised() -> None:
    async with kafka() as address:
        found = await why_silent(address, GIVEN_S)
    assert (found.text, found.is_other_port) == ("that is a port for Kafka clients, not a control address", True)


async def test_an_http_port_is_recognised(http: str) -> None:
    found = await why_silent(http, GIVEN_S)
    assert (found.is_other_port, "HTTP port" in found.text) == (True, True)


async def test_a_port_that_accepts_connections_but_sends_nothing_is_reported_as_hanging() -> None:
    async with mute() as address:
        found = await why_silent(address, 0.2)
    assert (found.text, found.is_other_port) == (HANGS, False)


async def test_a_port_without_a_listener_is_reported_as_connection_refused() -> None:
    address = dead_address()
    found = await why_silent(address, GIVEN_S)
    assert (found.text, found.is_other_port) == ("connection refused: nothing listens there", False)
    assert await probe(address, GIVEN_S) == found.text


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (
            socket.gaierror(socket.EAI_NONAME, "Name or service not known"),
            "the host name h cannot be resolved",
        ),
        (TimeoutError(), "no answer to a connection"),
        (OSError(113, "No route to host"), "cannot be reached: No route to host"),
    ],
)
async def test_the_reason_for_a_failed_connection_is_reported(error: Exception, said: str) -> None:
    async def connect(host: str, port: int) -> NoReturn:
        raise error

    found = await why_silent("h:1", GIVEN_S, connect)
    assert (found.text.startswith(said), found.is_other_port) == (True, False)


@pytest.fixture
async def http() -> AsyncIterator[str]:
    async with HttpServer(Address("127.0.0.1", 0), health_routes({}, lambda: (b"", "text/plain"))) as server:
        yield str(server.address)


async def refused(*addresses: str, timeout_s: float) -> ClusterError:
    async with ControllerClient(addresses) as client:
        with pytest.raises(ClusterError) as caught:
            await client.call(rpcs.DESCRIBE_TOPICS, pb.DescribeTopicsRequest(), timeout_s)
    return caught.value


async def test_a_client_with_only_wrong_ports_fails_at_once(http: str) -> None:
    loop = asyncio.get_running_loop()
    async with kafka() as broker:
        began = loop.time()
        error = await refused(broker, http, timeout_s=600)
        assert loop.time() - began < 300
    assert (error.code, error.retriable) == ("NOT_A_NODE", False)
    assert f"{broker}: that is a port for Kafka clients" in error.message
    assert f"{http}: that is an HTTP port" in error.message
    assert "control address" in error.next_step


async def test_a_client_with_one_wrong_port_keeps_trying_its_other_address() -> None:
    address = dead_address()
    async with kafka() as broker:
        error = await refused(broker, address, timeout_s=2)
    assert (error.code, error.retriable) == ("UNAVAILABLE", True)
    assert f"{broker}: that is a port for Kafka clients" in error.message
    assert f"{address}: connection refused" in error.message
