"""Three voters and three brokers for the torture run, each on a host of its own network if the machine permits that."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from examples.demo.servers import START_TIMEOUT_S, Servers
from quorumlog.kctl import dev_cluster
from quorumlog.kctl.dev_cluster import DevCluster, Node
from tests.integration.quorum.lan import Lan

Say = Callable[[str], None]

VOTERS = 3
BROKERS = 3


class Hosts:
    """The servers, and the network between them and their clients.  lan: None without a network of its own."""

    def __init__(self, cluster: DevCluster, servers: Servers, lan: Lan | None, say: Say) -> None:
        self.servers = servers
        self._cluster = cluster
        self._lan = lan
        self._say = say

    @property
    def can_cut(self) -> bool:
        return self._lan is not None

    @property
    def controllers(self) -> str:
        """For KCTL_CONTROLLERS."""
        return self._cluster.controllers

    @asynccontextmanager
    async def cut(self, node_id: int) -> AsyncIterator[None]:
        """Disconnect a node from all others and from the clients, until the block ends."""
        assert self._lan is not None
        position = next(number for number, node in enumerate(self._cluster.nodes, 1) if node.id == node_id)
        await self._lan.cut(position)
        self._say(f"cut off node {node_id}")
        try:
            yield
        finally:
            await self._lan.heal(position)
            self._say(f"connected node {node_id} again")


def _move_to_hosts(nodes: list[Node], lan: Lan) -> None:
    """Give each node the address of its host, in all commands, and have it started there."""
    moved = {}
    for host, node in enumerate(nodes, 1):
        for address in (node.control, node.http, node.listen):
            if address is not None:
                moved[address] = f"{lan.address(host)}:{address.rpartition(':')[2]}"
    for host, node in enumerate(nodes, 1):
        node.control, node.http = moved[node.control], moved[node.http]
        node.listen = None if node.listen is None else moved[node.listen]
        command = node.command
        for old, new in moved.items():
            command = [each.replace(old, new) for each in command]
        node.command = [*lan.inside(host), *command]


@asynccontextmanager
async def started(folder: Path, say: Say, logs_to: Path | None, first_port: int, has_lan: bool) -> AsyncIterator[Hosts]:
    """Start the servers in a new folder.  Leaving the context ends them, and copies their logs to `logs_to`."""
    folder.mkdir()  # noqa: ASYNC240
    async with AsyncExitStack() as stack:
        cluster = dev_cluster.plan(folder, voters=VOTERS, brokers=BROKERS, port_base=first_port, made_dir=True)
        lan = await stack.enter_async_context(Lan(VOTERS + BROKERS)) if has_lan else None
        if lan is not None:
            _move_to_hosts(cluster.nodes, lan)
        try:
            await dev_cluster.start(cluster, START_TIMEOUT_S, say)
            servers = Servers(cluster, say)
            stack.push_async_callback(servers.close)
            yield Hosts(cluster, servers, lan, say)
        finally:
            await dev_cluster.stop_nodes(cluster.nodes, lambda _line: None)
            if logs_to is not None:
                for node in cluster.nodes:
                    shutil.copy(node.log, logs_to / f"{node.name}.log")
            dev_cluster.remove(cluster)
