"""Fetches ahead for all partitions of a consumer: one request at a time to each broker, for all partitions it leads.

Theory of operation.  `_plan` groups, by leader, the partitions that may be fetched, and starts a task for each leader
that has no request in flight.  It does not wait.  One more task looks up leaders that are not known.  `_plan` runs
again after the end of each task, and after each change of the positions (`wake`).

A broker answers the requests of a connection in order, and a fetch may wait at the broker.  So fetches have connections
of their own, on which they do not delay commits, heartbeats and look-ups.

Bounds: a partition is not fetched while `partition_size_max` bytes of it are buffered.  No partition is fetched while
`buffer_size_max` bytes of all partitions are buffered.  The answers in flight, one for each broker, may exceed these
bounds.  The user takes no records of paused partitions.  If these records fill the buffer while another partition
could be fetched, some of them are dropped.  They are fetched again after `resume`.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

from quorumlog.client.cluster import CONNECT_TIMEOUT_S, Cluster
from quorumlog.client.kafka import KafkaConnection
from quorumlog.client.messages import TopicPartition
from quorumlog.client.partitions import PAUSE_MAX_S, PAUSE_MIN_S, answer_of_leader, refusal
from quorumlog.client.positions import Position
from quorumlog.errors import ClusterError, RemoteProtocolError
from quorumlog.runtime.addresses import Address
from quorumlog.wire.errors import ApiError, KafkaCode
from quorumlog.wire.kafka import fetch
from quorumlog.wire.kafka.codec import Api

LOOK_UP_TIMEOUT_S: Final = 10.0
BUSY_WAIT_MS: Final = 100
"""How long a fetch waits for records while the buffer of another partition of the same broker is full.  When the user
has emptied this buffer, its partition can be fetched only after the answer to that fetch.  So a longer wait would delay
its records."""


@dataclass(frozen=True, slots=True)
class FetchLimits:
    """The limits of fetches.

    wait_ms: how long a broker may wait until `size_min` bytes have arrived.
    size_max: the maximum size of one answer in bytes.  partition_size_max, buffer_size_max: see the module.
    request_timeout_s: how long one request may take, in addition to its wait.
    """

    wait_ms: int = 500
    size_min: int = 1
    size_max: int = 16 << 20
    partition_size_max: int = 1 << 20
    buffer_size_max: int = 64 << 20
    request_timeout_s: float = 30.0


class Fetcher:
    """Adds records to positions, and calls `on_change` after each request, even if it failed.

    positions: the positions by partition.  The consumer changes them, and calls `wake` after each change.
    committed_only: leave out the records of aborted transactions, and end before the first open one.
    """

    def __init__(
        self,
        cluster: Cluster,
        positions: Mapping[TopicPartition, Position],
        limits: FetchLimits,
        on_change: Callable[[], None],
        *,
        committed_only: bool = False,
    ) -> None:
        self._cluster = cluster
        self._positions = positions
        self._limits = limits
        self._on_change = on_change
        self._isolation_level = fetch.READ_COMMITTED if committed_only else fetch.READ_UNCOMMITTED
        self._connections: dict[Address, KafkaConnection] = {}
        self._in_flight: dict[Address, asyncio.Task[None]] = {}
        self._look_up: asyncio.Task[None] | None = None
        self._closing: set[asyncio.Task[None]] = set()
        self._answers = 0
        self._bug: BaseException | None = None
        """The error of a task that failed: `run` raises it, so that the consumer reports it."""
        self._wake = asyncio.Event()

    def wake(self) -> None:
        """Plan again: positions or buffers have changed."""
        self._wake.set()

    async def run(self) -> None:
        """Fetch until cancelled; then close all connections."""
        loop = asyncio.get_running_loop()
        try:
            while True:
                self._wake.clear()
                if self._bug is not None:
                    raise self._bug
                retry_at = self._plan(loop.time())
                with suppress(TimeoutError):
                    async with asyncio.timeout_at(retry_at):
                        await self._wake.wait()
        finally:
            await self._close()

    async def _close(self) -> None:
        tasks = [*self._in_flight.values(), *([self._look_up] if self._look_up is not None else [])]
        for task in tasks:
            task.cancel()
        for connection in list(self._connections.values()):
            self._drop(connection)
        waiting = [*tasks, *self._closing]
        if waiting:
            await asyncio.wait(waiting)

    # --- planning ---

    def _plan(self, now: float) -> float | None:
        """Start the requests that are possible now.

        Return the loop time at which to plan again even without a change; None: only after a change.
        """
        limits = self._limits
        by_leader: dict[Address, list[Position]] = defaultdict(list)
        is_full: set[Address] = set()
        unknown: list[Position] = []
        retry_at: float | None = None
        for position in self._positions.values():
            if position.next_offset is None or position.is_paused or position.is_in_flight or position.was_out_of_range:
                continue
            if position.error is not None:
                continue
            if position.retry_at > now:
                retry_at = position.retry_at if retry_at is None else min(retry_at, position.retry_at)
                continue
            leader = self._cluster.known_leader(*position.partition)
            if leader is None:
                unknown.append(position)
            elif position.buffered_bytes >= limits.partition_size_max:
                is_full.add(leader)
            else:
                by_leader[leader].append(position)
        if by_leader and not self._make_room():
            by_leader.clear()
        for address, positions in by_leader.items():
            if address not in self._in_flight:
                wait_ms = min(limits.wait_ms, BUSY_WAIT_MS) if address in is_full else limits.wait_ms
                # A broker fills its answer in the order of the request, so the least recently served partitions come
                # first, whatever their topic is.  A request may name a topic several times.
                positions.sort(key=lambda position: (position.served, position.partition.topic))
                self._start(address, self._fetch(address, positions, wait_ms))
        if unknown and self._look_up is None:
            self._look_up = asyncio.ensure_future(self._find_leaders(unknown))
            self._look_up.add_done_callback(self._looked_up)
        return retry_at

    def _make_room(self) -> bool:
        """Return whether the buffer has room.  Drop records of paused partitions only if nothing else fills it.

        The partitions with the most bytes come first, so that few partitions are fetched again.
        """
        size = sum(each.buffered_bytes for each in self._positions.values())
        paused = [each for each in self._positions.values() if each.is_paused and each.buffered_bytes]
        if size - sum(each.buffered_bytes for each in paused) >= self._limits.buffer_size_max:
            return False
        for position in sorted(paused, key=lambda each: -each.buffered_bytes):
            if size < self._limits.buffer_size_max:
                break
            size -= position.buffered_bytes
            position.move(position.next_offset)
        return True

    def _start(self, address: Address, work: Coroutine[Any, Any, None]) -> None:
        task = self._in_flight[address] = asyncio.ensure_future(work)
        task.add_done_callback(lambda done: self._ended(address, done))

    def _ended(self, address: Address, task: asyncio.Task[None]) -> None:
        del self._in_flight[address]
        self._finish(task)

    def _looked_up(self, task: asyncio.Task[None]) -> None:
        self._look_up = None
        self._finish(task)

    def _finish(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled():
            self._bug = self._bug or task.exception()
        self._wake.set()
        self._on_change()

    async def _find_leaders(self, positions: list[Position]) -> None:
        """Look up leaders; one Metadata request serves all partitions that need it."""

        async def find(position: Position) -> None:
            try:
                await self._cluster.find_leader(*position.partition, LOOK_UP_TIMEOUT_S)
            except ClusterError as error:
                self._failed(position, error)

        await asyncio.gather(*map(find, positions))

    # --- requests ---

    async def _fetch(self, address: Address, positions: list[Position], wait_ms: int) -> None:
        sent = {position.partition: (position, position.version) for position in positions}
        asked = [
            fetch.PartitionToFetch(*position.partition, position.fetch_offset, self._limits.partition_size_max)
            for position in positions
        ]
        for position in positions:
            position.is_in_flight = True
        connection: KafkaConnection | None = None
        try:
            connection = await self._connection(address)
            request = asyncio.ensure_future(self._ask(connection, asked, wait_ms))
            first = positions[0].partition
            reply = await answer_of_leader(self._cluster, *first, connection, request, wait_ms / 1000)
        except ClusterError as error:
            if connection is not None and (not connection.is_open or connection.has_timed_out):
                self._drop(connection)
            for position in positions:
                await self._lost(position, connection, error)
            return
        finally:
            for position in positions:
                position.is_in_flight = False
        self._answers += 1
        number = self._answers
        for result in reply.partitions:
            key = TopicPartition(result.topic or "", result.index)
            position, version = sent.pop(key)
            if self._positions.get(key) is position and position.version == version:
                await self._take(position, connection, result, number)
        for position, _ in sent.values():
            message = f"{position.partition}: not in the answer"
            self._failed(position, ClusterError(ApiError.UNKNOWN_SERVER_ERROR, message, retriable=True))

    async def _ask(
        self, connection: KafkaConnection, asked: list[fetch.PartitionToFetch], wait_ms: int
    ) -> fetch.FetchedReply:
        limits = self._limits
        body = fetch.encode_request(
            fetch.CLIENT_VERSION,
            asked,
            max_wait_ms=wait_ms,
            min_bytes=limits.size_min,
            max_bytes=limits.size_max,
            isolation_level=self._isolation_level,
        )
        timeout_s = wait_ms / 1000 + limits.request_timeout_s
        reply = await connection.call(Api.FETCH, fetch.CLIENT_VERSION, body, timeout_s)
        with connection.judged():
            decoded = fetch.decode_response(reply, fetch.CLIENT_VERSION)
            wanted = {(each.topic, each.index) for each in asked}
            answered = [(each.topic, each.index) for each in decoded.partitions]
            if len(answered) != len(set(answered)) or not wanted.issuperset(answered):
                raise RemoteProtocolError("the answer to Fetch contains other partitions than the request")
        if decoded.error_code:
            raise refusal(decoded.error_code, asked[0].topic or "", asked[0].index, "a fetch")
        return decoded

    async def _take(
        self, position: Position, connection: KafkaConnection, result: fetch.FetchedPartition, number: int
    ) -> None:
        """Add the answer for one partition.  number: the number of the whole answer."""
        code = result.error_code
        if code == KafkaCode.NONE:
            if position.add(result.records, result.high_watermark, result.aborted):
                position.served = number
        elif code == KafkaCode.OFFSET_OUT_OF_RANGE:
            position.was_out_of_range = True  # the consumer decides where to continue
        else:
            error = refusal(code, *position.partition, f"a fetch at offset {position.fetch_offset}")
            if error.retriable:
                await self._lost(position, connection, error)
            else:
                position.error = error

    async def _lost(self, position: Position, connection: KafkaConnection | None, error: ClusterError) -> None:
        if connection is not None:
            await self._cluster.leader_lost(*position.partition, connection)
        else:
            self._cluster.forget_leader(*position.partition)
        self._failed(position, error)

    def _failed(self, position: Position, error: ClusterError) -> None:
        now = asyncio.get_running_loop().time()
        since = now if position.failing_since is None else position.failing_since
        pause_s = min(max(now - since, PAUSE_MIN_S), PAUSE_MAX_S)  # the time since the first failure, so pauses double
        position.failed(error, now, self._cluster.random.uniform(pause_s / 2, pause_s))

    # --- connections ---

    async def _connection(self, address: Address) -> KafkaConnection:
        found = self._connections.get(address)
        if found is not None and found.is_open:
            return found
        if found is not None:
            self._drop(found)
        connection = KafkaConnection(address.host, address.port, client_id=self._cluster.client_id)
        await connection.connect(CONNECT_TIMEOUT_S)
        self._connections[address] = connection
        return connection

    def _drop(self, connection: KafkaConnection) -> None:
        for address, kept in list(self._connections.items()):
            if kept is connection:
                del self._connections[address]
        task = asyncio.ensure_future(connection.close())
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)
