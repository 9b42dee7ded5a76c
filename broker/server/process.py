"""`BrokerProcess`: a whole broker, from its control plane to its Kafka listeners.

It starts in this order.  Directories and ports come first, so that configuration errors are reported early.  The
logs are opened.  The broker joins the cluster, binds its data directories to it, registers and applies the metadata.
Its listeners begin to serve.  The controller unfences it, and `ready` returns.

It stops in this order.  It hands leaderships over while everything still serves.  It closes the client connections,
then the logs, then the control plane.  Every step is bounded.

A failure that ends the process (the last disk, the quorum's store, a broken invariant) cancels the body of the
`async with`, which then raises the failure.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from types import TracebackType
from uuid import UUID

from broker.kafka.listener import BoundListener, KafkaServer
from broker.log.cleaner import CleanerLimits
from broker.log.cleaning.ports import CleanWorker
from broker.log.cleaning.process import ProcessWorker
from broker.replica.limits import ReplicaLimits
from broker.server.kafka_node import KafkaNode
from broker.server.metrics import register_broker_metrics
from broker.server.node_view import NodeView
from broker.server.role import BrokerRole, RoleConfig
from broker.server.standalone import set_defaults
from metadata.records import Endpoint
from quorum.ports import QuorumStore, Transport
from quorum.transport.grpc import GrpcTransport
from quorumlog.runtime.addresses import NamedAddress
from quorumlog.runtime.clock import Sources
from quorumlog.runtime.config import NodeConfig
from quorumlog.runtime.disk import Disk
from quorumlog.runtime.file_disk import FileDisk
from quorumlog.runtime.http import Check
from quorumlog.runtime.logging import get_logger
from quorumlog.runtime.metrics import Metrics
from quorumlog.wire.rpcs import ReplyT, RequestT, Rpc
from quorumlog_server.control_plane import ControlPlane, claim_directories, make_store, quorum_directory, readiness

logger = get_logger("broker")

READY_LOOK_S = 0.25
SHUTDOWN_RESERVE_MS = 5_000
"""Time of a graceful stop that is reserved for closing after the hand-over; at most half of the whole time."""


def make_disks(config: NodeConfig, sources: Sources) -> list[FileDisk]:
    """Lock and check the data directories of this configuration, then open them and format new ones.

    Raises:
        ConfigError: a directory belongs to another node or cluster, is in use, has a newer format, is not writable, or
            is a copy of another one.  No directory stays locked, and none was formatted or changed.
        CorruptStoreError: a directory is damaged.
    """
    disks: list[FileDisk] = []
    formatted: list[UUID] = []
    stall_s = config.log_dir_stall_timeout_ms / 1000

    def new_directory_id() -> UUID:
        formatted.append(sources.uuid4())
        return formatted[-1]

    claims = claim_directories(config, config.data_dirs)
    try:
        while claims:
            disks.append(
                FileDisk.open_claimed(
                    claims.pop(0),
                    config.node_id,
                    config.cluster_id,
                    new_directory_id,
                    stall_s,
                    directories=len(config.data_dirs),
                )
            )
    except BaseException:
        for claimed in claims:
            claimed.release()
        for disk in disks:
            disk.close()
        raise
    if len(formatted) < len(disks):
        for disk in [one for one in disks if one.directory_id in formatted]:
            logger.warning(
                "data directory is new, but others are in use",
                directory=str(disk.root),
                next="if its disk is not mounted: stop the broker, and mount the disk",
            )
    return disks


def make_broker_process(config: NodeConfig, sources: Sources) -> BrokerProcess:
    """Return a broker with a gRPC transport, a SQLite store and real directories.  The broker closes them.

    Raises: as `make_disks`.
    """
    disks = make_disks(config, sources)
    transport = GrpcTransport(config.control_listen)
    worker = ProcessWorker(config.log_cleaner_bytes_per_second)
    process = BrokerProcess(config, sources, disks, make_store(config, sources), transport, clean_worker=worker)
    process.plane.asks_addresses = True
    process.plane.disk_paths = (*config.data_dirs, quorum_directory(config))
    transport.is_serving = lambda: process.is_ready()[0]
    return process


class BrokerProcess:
    """A whole broker, as an async context manager.  `kafka_endpoints` is available after entering.

    disks: owned by this object from now on; it closes each `FileDisk` at the end.
    """

    def __init__(
        self,
        config: NodeConfig,
        sources: Sources,
        disks: Sequence[Disk],
        store: QuorumStore,
        transport: Transport,
        limits: ReplicaLimits | None = None,
        clean_worker: CleanWorker | None = None,
    ) -> None:
        self.config = config
        self.plane = ControlPlane(config, sources, store, transport)
        self.role = BrokerRole(
            RoleConfig(
                broker_id=config.node_id,
                rack=config.rack,
                inter_broker_listener=config.inter_broker_listener,
                heartbeat_interval_ms=config.broker_heartbeat_interval_ms,
                session_timeout_ms=config.broker_session_timeout_ms,
                lag_max_ms=config.replica_lag_time_max_ms,
                lag_max_bytes=config.replica_lag_max_bytes,
                shutdown_timeout_ms=max(
                    config.shutdown_timeout_ms // 2, config.shutdown_timeout_ms - SHUTDOWN_RESERVE_MS
                ),
            ),
            sources,
            disks,
            self.plane.replay,
            self._call,
            limits,
            generation=lambda: self.plane.node.core.generation,
            clean_worker=clean_worker,
            cleaner_limits=CleanerLimits(
                interval_ms=config.log_cleaner_backoff_ms, map_memory=config.log_cleaner_memory
            ),
        )
        paths = {disk.directory_id: path for disk, path in zip(disks, config.data_dirs, strict=False)}
        self.kafka = KafkaServer(
            self.role.replicas,
            self._call,
            [NamedAddress(listener.name, listener.listen) for listener in config.kafka_listeners],
            node=KafkaNode(self.plane, self.role.logs, paths, sources, config.settings),
            node_id=config.node_id,
            cluster_id="",
            wait_for_metadata=self.role.wait_applied,
            groups=self.role.groups,
            new_id=sources.uuid4,
            transactions=self.role.transactions,
            shares=self.role.shares,
            inter_broker_listener=config.inter_broker_listener,
        )
        self._disks = tuple(disks)
        self._paths = paths
        self.plane.all_checks = self.checks
        self._group: asyncio.TaskGroup | None = None
        self._joining: asyncio.Task[None] | None = None
        self._watching: asyncio.Task[None] | None = None
        self._exits = contextlib.AsyncExitStack()
        self._is_open = False

    # -- life

    async def __aenter__(self) -> BrokerProcess:
        """Bind the ports, open the stores, and begin to join the cluster.  `ready` waits for the cluster.

        Raises:
            ConfigError: a port, directory or setting is refused.
            FatalError: a store is damaged or a disk fails.
        """
        async with contextlib.AsyncExitStack() as exits:
            exits.callback(self._close_disks)
            exits.push_async_callback(self.kafka.close)
            await self.kafka.bind()
            await exits.enter_async_context(self.plane)
            role = self.role
            self.plane.node_service.broker = NodeView(
                role.table,
                self._paths,
                role.applied_batches,
                role.progress,
                role.cleaner,
                role.shares.letters.failing,
            )
            exits.push_async_exit(self._close_role)
            await self.role.__aenter__()
            self._group = asyncio.TaskGroup()
            await self._group.__aenter__()
            exits.push_async_exit(self._leave_group)
            self._exits = exits.pop_all()
        self._is_open = True
        self._watching = self._group.create_task(self.role.failed(), name="broker-disks")
        self._joining = self._group.create_task(self._join(self._group), name="broker-join")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        try:
            if kind is None:
                await self._hand_over()
            await self._end_tasks(clean=kind is None)
        except (Exception, asyncio.CancelledError) as failure:  # another failed part may have cancelled this stop
            try:
                await self._end_tasks(clean=False)
            finally:
                await self._exits.__aexit__(type(failure), failure, failure.__traceback__)
            raise
        return await self._exits.__aexit__(kind, error, trace)

    async def _join(self, group: asyncio.TaskGroup) -> None:
        cluster_id = await self.plane.node.joined()
        for disk in self._disks:
            if isinstance(disk, FileDisk):
                disk.bind_cluster(cluster_id)
        self.kafka.handlers.joined(cluster_id)
        self.role.start(group, self.advertised())
        # The first image that is applied includes this broker's registration.  Until then the broker is fenced, and no
        # client is referred to it.
        await self.role.wait_applied(1)
        if self.config.standalone:
            await set_defaults(self.config.node_id, self.role.replicas.image, self._call, self.role.wait_applied)
        await self.kafka.start()

    async def _hand_over(self) -> None:
        """Hand leaderships over while everything still serves, then close the client connections."""
        self._is_open = False
        await _cancelled(self._joining)
        await self.role.stop()
        await self.kafka.close()

    async def _end_tasks(self, clean: bool) -> None:
        """End every task of this process, so that the group can be left."""
        self._is_open = False
        await _cancelled(self._joining)
        await _cancelled(self._watching)
        await self.kafka.close()
        await self.role.close(clean)

    async def _leave_group(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Wait for every task.  The failure of a task takes precedence over an error of the body, and is not wrapped.

        Raises: the first failure of a task.
        """
        assert self._group is not None
        # Only a cancellation is passed to the group, which may have caused it.  The group would wrap any other error.
        told = (kind, error, trace) if kind is asyncio.CancelledError else (None, None, None)
        try:
            await self._group.__aexit__(*told)
        except BaseExceptionGroup as failures:
            raise failures.exceptions[0] from None

    async def _close_role(self, kind: type[BaseException] | None, *_: object) -> None:
        await self.role.close(clean=kind is None)

    def _close_disks(self) -> None:
        for disk in self._disks:
            if isinstance(disk, FileDisk):
                disk.close()

    # -- the controller

    async def _call(self, rpc: Rpc[RequestT, ReplyT], request: RequestT, timeout_ms: int) -> ReplyT:
        return await self.plane.service.call(rpc, request, timeout_ms)

    # -- addresses

    @property
    def address(self) -> str:
        """The control address that this node advertises."""
        return self.plane.address

    @property
    def kafka_endpoints(self) -> list[BoundListener]:
        """The bound listeners."""
        return self.kafka.endpoints

    def advertised(self) -> list[Endpoint]:
        """Return the endpoints that clients and other brokers use, one for each listener."""
        endpoints = []
        for listener, bound in zip(self.config.kafka_listeners, self.kafka.endpoints, strict=True):
            told = listener.advertise
            host, port = (bound.host, bound.port) if told is None else (told.host, told.port)
            endpoints.append(Endpoint(listener.name, host, port))
        return endpoints

    # -- readiness

    def checks(self) -> dict[str, Callable[[], Check]]:
        """Return the conditions of readiness, by name, for `/readyz`."""
        return {**self.plane.checks(), "broker": self._check_broker}

    def is_ready(self) -> tuple[bool, dict[str, str]]:
        """Return whether all checks hold, and for each check `ok` or the reason."""
        return readiness(self.checks())

    async def ready(self) -> None:
        """Wait until all checks hold.  The caller sets the deadline."""
        assert self._joining is not None, "enter comes first"
        await asyncio.shield(self._joining)
        await self.role.wait_serving()
        while not self.is_ready()[0]:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(READY_LOOK_S):  # some conditions change without an event
                    await self.plane.node.changed()

    def _check_broker(self) -> Check:
        lifecycle = self.role.lifecycle
        if not self._is_open:
            return Check(False, "starting or stopping")
        if lifecycle is None or not lifecycle.core.registered:
            return Check(False, "not registered yet")
        if not self.role.is_serving:
            return Check(False, f"fenced, broker epoch {lifecycle.core.epoch}")
        return Check(True, f"unfenced, broker epoch {lifecycle.core.epoch}")

    # -- metrics

    def register_metrics(self, metrics: Metrics) -> None:
        """Register the metrics of this process.  Call it once, after entering."""
        self.plane.register_metrics(metrics)
        register_broker_metrics(metrics, self.role, self.kafka)


async def _cancelled(task: asyncio.Task[None] | None) -> None:
    """Cancel a task and wait for its end.  Its group receives its failure."""
    if task is not None and not task.done():
        task.cancel()
        await asyncio.wait({task})
