"""The Kafka listeners of a broker.

`KafkaServer` owns the listening sockets and the connections.  `handlers.py` answers the requests, and `broker/replica`
owns the data.  Everything runs on one event loop.  Only requests that wait, and automatic creations of topics, have
tasks.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from uuid import UUID

import msgspec
from msgspec.structs import replace

from broker.kafka.api import Groups, Node, Replicas, Shares, Transactions
from broker.kafka.connection import Connection, Dispatch
from broker.kafka.groups import NoGroups
from broker.kafka.handlers import Handlers
from broker.kafka.limits import KafkaLimits, MemoryBudget
from broker.kafka.share_groups import NoShares
from broker.kafka.transactions import NoTransactions
from quorumlog.runtime.addresses import NamedAddress, cannot_listen, listen_refused, parse_named
from quorumlog.runtime.clock import Sources
from quorumlog.runtime.descriptors import descriptor_limit
from quorumlog.runtime.logging import LineBudget, get_logger
from quorumlog.wire.rpcs import ControllerCall

EVICTION_LOOKS_MAX = 64
"""Maximum number of connections that are examined to find one to close: of those that have sent no request, and again
of those that are idle.  During a flood, the loop must not examine all of them."""

logger = get_logger("kafka")


class BoundListener(msgspec.Struct, frozen=True):
    """A listener that is bound.  port: the actual port, even if the configuration asks for port 0."""

    name: str
    host: str
    port: int


@dataclass(slots=True)
class ListenerCounters:
    """Counts of connections, for the metrics."""

    connections: int = 0
    connections_refused: int = 0
    connections_evicted: int = 0


class KafkaServer:
    """The Kafka listeners of one broker.  Call `bind` and `start`, each at most once, and `close` at the end.

    A reply names the endpoints of the listener that received the request.

    Args:
        listeners: `[NAME=]HOST:PORT`, parsed or as text.
        controller_call: reaches the active controller.
        wait_for_metadata: returns when the broker's image has reached an offset.  Handlers wait for it, so that a
            client finds the topic that it has just created through this broker.
        groups: the coordinators of groups; None: group requests are refused.
        new_id: draws ids for clients; None: use the system's randomness.
        inter_broker_listener: the name of the listener for other brokers; None: they use the listener of clients.
    """

    def __init__(
        self,
        replicas: Replicas,
        controller_call: ControllerCall,
        listeners: Sequence[NamedAddress | str],
        *,
        node: Node,
        node_id: int,
        cluster_id: str,
        limits: KafkaLimits | None = None,
        wait_for_metadata: Callable[[int], Awaitable[object]] | None = None,
        groups: Groups | None = None,
        new_id: Callable[[], UUID] | None = None,
        transactions: Transactions | None = None,
        shares: Shares | None = None,
        inter_broker_listener: str | None = None,
    ) -> None:
        limits = limits if limits is not None else KafkaLimits()
        self._inter_broker_listener = inter_broker_listener if len(listeners) > 1 else None
        descriptors = descriptor_limit() // 2
        of_brokers = min(limits.inter_broker_connections_max, limits.connections_max // 4, descriptors // 5)
        if self._inter_broker_listener is None:
            of_brokers = 0
        of_clients = max(1, min(limits.connections_max, descriptors - of_brokers))
        self.limits = replace(limits, connections_max=of_clients, inter_broker_connections_max=of_brokers)
        allowance = limits.held_max_bytes // (2 * (of_clients + of_brokers))
        self.budget = MemoryBudget(limits.held_max_bytes, allowance, self._on_crowded)
        self.counters = ListenerCounters()
        self.handlers = Handlers(
            replicas,
            controller_call,
            node=node,
            node_id=node_id,
            cluster_id=cluster_id,
            limits=self.limits,
            wait_for_metadata=wait_for_metadata,
            reply_room=self.budget.room,
            groups=groups if groups is not None else NoGroups(),
            new_id=new_id if new_id is not None else Sources.real().uuid4,
            transactions=transactions if transactions is not None else NoTransactions(),
            shares=shares if shares is not None else NoShares(),
        )
        self._listeners = [parse_named(item) if isinstance(item, str) else item for item in listeners]
        self._connections: dict[Connection, None] = {}
        self._silent: dict[Connection, None] = {}
        """Connections that have not sent a request, oldest first."""
        self._resting: dict[Connection, None] = {}
        """Connections whose requests have all been answered, the longest idle first."""
        self._evicted: set[Connection] = set()
        """Aborted connections whose transports have not reported yet that they are closed."""
        self._servers: list[asyncio.Server] = []
        self._bound: list[BoundListener] = []
        self._sweeper: asyncio.TimerHandle | None = None
        self._crowded: asyncio.TimerHandle | None = None
        self._idle: asyncio.Event = asyncio.Event()
        self._idle.set()
        self._started = False
        self._closing = False
        self._lines: LineBudget | None = None

    # --- for connections ---

    @property
    def lines(self) -> LineBudget:
        assert self._lines is not None, "start() comes first"
        return self._lines

    @property
    def dispatch(self) -> Dispatch:
        return self.handlers.dispatch

    def admit(self, connection: Connection) -> bool:
        if self._closing or not self._started:
            return False
        limit = self.limits.connections_max
        if connection.listener == self._inter_broker_listener:
            limit += self.limits.inter_broker_connections_max
        if len(self._connections) >= limit and not self._evict(limit):
            self.counters.connections_refused += 1
            self.lines.warning("connection refused", peer=connection.peer, limit=limit)
            return False
        self._connections[connection] = self._silent[connection] = None
        self.counters.connections = len(self._connections)
        self._idle.clear()
        return True

    def gone(self, connection: Connection) -> None:
        self.handlers.disconnected(connection.peer)
        self._forget(connection)
        self._evicted.discard(connection)
        if not self._connections and not self._evicted:
            self._idle.set()

    def at_work(self, connection: Connection) -> None:
        """Note that a connection without open requests has sent a request."""
        self._silent.pop(connection, None)
        self._resting.pop(connection, None)

    def at_rest(self, connection: Connection) -> None:
        """Note that all requests of a connection have been answered."""
        if connection in self._connections:
            self._resting[connection] = None

    def _evict(self, limit: int) -> bool:
        """Close one idle connection, because `limit` connections exist.  Return False if a short search finds none.

        Connections that have never sent a request are closed first, so that a flood of them displaces no client.
        """
        candidates = chain(islice(self._silent, EVICTION_LOOKS_MAX), islice(self._resting, EVICTION_LOOKS_MAX))
        victim = next((connection for connection in candidates if connection.is_idle), None)
        if victim is None:
            return False
        self.counters.connections_evicted += 1
        self.lines.warning("idle connection closed for a new one", peer=victim.peer, limit=limit)
        self._forget(victim)
        self._evicted.add(victim)
        victim.abort()
        return True

    def _forget(self, connection: Connection) -> None:
        for kept in (self._connections, self._silent, self._resting):
            kept.pop(connection, None)
        self.counters.connections = len(self._connections)

    # --- life ---

    @property
    def endpoints(self) -> list[BoundListener]:
        """The bound listeners, in the configured order; empty before `bind`."""
        return list(self._bound)

    async def bind(self) -> None:
        """Listen on all addresses, or on none.  Until `start`, every connection is closed immediately.

        Listening early finds a port that is in use: sockets that are merely bound may share a port (SO_REUSEADDR), and
        uvloop does not report the failure of a later listen.

        Raises: ConfigError naming every address that is in use or does not belong to this machine.
        """
        loop = asyncio.get_running_loop()
        self._lines = LineBudget(logger, loop.time)
        problems: list[str] = []
        for listener in self._listeners:
            try:
                server = await loop.create_server(
                    self._factory(listener.name), listener.address.host, listener.address.port
                )
            except OSError as error:
                problems.append(cannot_listen(listener, error))
                continue
            self._servers.append(server)
            port = int(server.sockets[0].getsockname()[1])
            self._bound.append(BoundListener(listener.name, listener.address.host, port))
        if problems:
            await self.close()
            raise listen_refused(*problems)

    async def start(self) -> None:
        """Start to serve.  Binds first if `bind` was not called.

        Raises: ConfigError, as `bind`.
        """
        if not self._bound:
            await self.bind()
        loop = asyncio.get_running_loop()
        self._started = True
        self._sweeper = loop.call_later(self.limits.sweep_ms / 1000, self._sweep)
        for bound in self._bound:
            logger.info("listening", listener=bound.name, host=bound.host, port=bound.port)

    def _factory(self, name: str) -> Callable[[], Connection]:
        return lambda: Connection(self, name)

    def _sweep(self) -> None:
        loop = asyncio.get_running_loop()
        now = loop.time()
        for connection in list(self._connections):
            connection.sweep(now)
        self._sweeper = loop.call_later(self.limits.sweep_ms / 1000, self._sweep)

    def _on_crowded(self) -> None:
        if self._crowded is None and not self._closing:
            loop = asyncio.get_running_loop()
            self._crowded = loop.call_later(self.limits.crowded_stall_ms / 2000, self._make_way)

    def _make_way(self) -> None:
        """Close connections whose frames hardly grow, while others wait for room for their frames."""
        self._crowded = None
        if self.budget.is_crowded:
            now = asyncio.get_running_loop().time()
            for connection in self.budget.growing():
                connection.make_way(now)
            self._on_crowded()

    async def close(self) -> None:
        """Stop listening, cancel long polls, wait `close_ms` for replies, then close all connections.  Idempotent."""
        self._closing = True
        if self._sweeper is not None:
            self._sweeper.cancel()
            self._sweeper = None
        if self._crowded is not None:
            self._crowded.cancel()
            self._crowded = None
        for server in self._servers:
            server.close()
        await self.handlers.close()
        for connection in list(self._connections):
            connection.finish()
            connection.cancel_waits()
        try:
            async with asyncio.timeout(self.limits.close_ms / 1000):
                await self._idle.wait()
        except TimeoutError:
            for connection in list(self._connections):
                connection.abort()
            await self._idle.wait()
        for server in self._servers:
            await server.wait_closed()
        self._servers.clear()
