"""Known failures that need real files and sockets, named after their number in docs/known_failures.md."""

from __future__ import annotations

import asyncio
import socket
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest

from quorum.core.events import AddVoter, Peer, VoterChangeError
from quorum.core.messages import TOOL, DescribeQuorum, ErrorCode, Reply, Request, Vote, VoteReply
from quorum.core.types import LogEnd
from quorum.ports import UnreachableError
from quorum.store.directory import DATABASE
from quorum.transport.grpc import GrpcTransport
from quorumlog.errors import CorruptStoreError
from quorumlog.runtime.addresses import Address
from tests.contract.samples import KEYS, KNOWN, SENDER
from tests.integration.quorum.test_control_plane import brokers, configure, free_ports, plane, ready, register
from tests.integration.quorum.test_recover import recovered, three_nodes

VOTE = Vote(SENDER, KEYS[1], 3, LogEnd(2, 17), False)
VOTED = VoteReply(ErrorCode.NONE, KNOWN, True)


async def test_k39_recovery_with_a_new_address_needs_no_quorum(tmp_path: Path) -> None:
    """strimzi proposal 203: after a move every voter has another name.

    The log holds the old names, so no leader can be elected that could write the new ones.  `recover --address` needs
    no quorum.
    """
    configs = await three_nodes(tmp_path)
    port = free_ports(1)[0]
    address = f"127.0.0.1:{port}"
    assert await asyncio.to_thread(recovered, tmp_path / "1", "--address", address, "--yes") == 0
    moved = replace(configs[0], control_listen=Address("127.0.0.1", port), initial_voters=())
    async with plane(moved) as one:
        await ready(one)
        assert [(voter.key.node_id, voter.address) for voter in one.node.core.history.current] == [(1, address)]
        assert await brokers(one) == [11]
        await register(one, 12)


async def test_k39_each_call_to_a_name_that_does_not_resolve_fails_as_unreachable() -> None:
    """Each call ends within its deadline; the cost is one refused call."""
    transport = GrpcTransport("127.0.0.1:0")
    try:
        for _ in range(3):
            with pytest.raises(UnreachableError, match=r"nowhere\.invalid"):
                await transport.ask(Peer(None, "nowhere.invalid:9093"), DescribeQuorum(TOOL), 300)
            await transport.reset()
    finally:
        await transport.close()


class NameServer(asyncio.DatagramProtocol):
    """Resolves every name to `address`, for no time; without an address, no name exists."""

    def __init__(self) -> None:
        self.address: str | None = None
        self.transport: asyncio.DatagramTransport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.DatagramTransport, transport)

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        question = data[12 : data.index(b"\0", 12) + 5]
        is_known = self.address is not None and question[-4:-2] == b"\0\1"  # asks for an IPv4 address
        flags = b"\x81\x83" if self.address is None else b"\x81\x80"
        answer = b"\xc0\x0c\0\1\0\1" + bytes(4) + b"\0\4" + socket.inet_aton(self.address or "0.0.0.0")
        counts = bytes([0, 1, 0, int(is_known), 0, 0, 0, 0])
        self.transport.sendto(data[:2] + flags + counts + question + (answer if is_known else b""), addr)


async def test_k39_after_a_reset_a_name_is_resolved_again_at_once() -> None:
    """The name is unknown first, then it resolves, and then the node moves to another address."""
    loop = asyncio.get_running_loop()
    endpoint, names = await loop.create_datagram_endpoint(NameServer, local_addr=("127.0.0.1", 0))
    name = f"dns://127.0.0.1:{endpoint.get_extra_info('sockname')[1]}/voter.test:{free_ports(1)[0]}"
    client = GrpcTransport("127.0.0.1:0")
    asked: list[str] = []

    async def ask() -> Reply:
        return await client.ask(Peer(None, name), VOTE, 10_000)

    try:
        for address in ("127.0.0.1", "127.0.0.2"):
            with pytest.raises(UnreachableError):
                await ask()
            server = GrpcTransport(f"{address}:{name.rpartition(':')[2]}")

            async def answer(_: Request, address: str = address) -> Reply:
                asked.append(address)
                return VOTED

            server.serve(answer)
            await server.start()
            names.address = address
            await client.reset()
            assert await ask() == VOTED
            await server.close()
        assert asked == ["127.0.0.1", "127.0.0.2"]
    finally:
        await client.close()
        endpoint.close()


async def test_k28_a_database_deleted_under_a_running_node_is_reported_at_its_start(tmp_path: Path) -> None:
    """It continues with the open file.  The next start reports the missing file, and creates no empty voter."""
    config = configure(tmp_path, 1, free_ports(1)[0], standalone=True)
    async with plane(config) as one:
        await ready(one)
        (database,) = (tmp_path / "1").rglob(DATABASE)
        database.unlink()
        await register(one, 11)
        assert await brokers(one) == [11]
    with pytest.raises(CorruptStoreError, match="missing"):
        async with plane(config):
            pass
    assert not database.exists()


async def test_k23_the_address_of_an_added_voter_is_described_by_every_node(tmp_path: Path) -> None:
    """KAFKA-16927."""
    first = configure(tmp_path, 1, free_ports(1)[0], standalone=True)
    async with plane(first) as one:
        await ready(one)
        joining = Address("127.0.0.1", one.config.control_listen.port)
        async with plane(configure(tmp_path, 2, free_ports(1)[0], bootstrap=(joining,))) as two:
            await ready(two)
            result = await one.node.change_voters(AddVoter(2, two.address), dry_run=False, timeout_ms=20_000)
            assert result.error is VoterChangeError.NONE, result
            async with asyncio.timeout(30):
                await two.node.applied(result.offset)
            for node in (one.node, two.node):
                described = [(voter.replica.key.node_id, voter.replica.address) for voter in node.describe().voters]
                assert described == [(1, one.address), (2, two.address)]
