"""Known failures that need real files and sockets, named after their number in docs/known_failures.md."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from quorum.core.events import AddVoter, Peer, VoterChangeError
from quorum.core.messages import TOOL, DescribeQuorum
from quorum.ports import UnreachableError
from quorum.store.directory import DATABASE
from quorum.transport.grpc import GrpcTransport
from quorumlog.errors import CorruptStoreError
from quorumlog.runtime.addresses import Address
from tests.integration.quorum.test_control_plane import brokers, configure, free_ports, plane, ready, register
from tests.integration.quorum.test_recover import recovered, three_nodes


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
