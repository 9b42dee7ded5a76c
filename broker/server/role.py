"""The broker role of a process: everything between its metadata replay and its Kafka listener.

`BrokerRole` connects the parts and owns their tasks; it decides nothing.  Its phases, in order:

open      recover the logs, read the clean-stop mark
start     register, remove the mark, apply the metadata; followers copy from then on, and leaders serve once the
          controller has unfenced this broker
stop      hand leaderships over (controlled shutdown), within a bound
close     answer everything that is parked, save watermarks, close the logs, write the clean-stop mark
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from typing import Protocol
from uuid import UUID

import msgspec
from msgspec.structs import replace

from broker.coordinator.groups import GroupCoordinators
from broker.coordinator.shares import ShareGroups
from broker.coordinator.transactions import TransactionCoordinators
from broker.log import LogKey, LogManager
from broker.log.cleaner import CleanerLimits, LogCleaner
from broker.log.cleaning.ports import CleanWorker, LocalWorker
from broker.replica.cluster_view import ClusterView
from broker.replica.configs import TopicConfigs
from broker.replica.context import ReplicaContext
from broker.replica.directories import Directories
from broker.replica.fetchers import Fetchers
from broker.replica.image import ImageFollower
from broker.replica.isr import IsrKeeper
from broker.replica.limits import ReplicaLimits
from broker.replica.progress import AppliedBatches, Progress
from broker.replica.service import ReplicaService
from broker.replica.starts import LogStarts
from broker.replica.strays import Strays
from broker.replica.table import ReplicaTable
from broker.replica.watermarks import Watermarks
from broker.server.lifecycle import Identity, LifecycleRunner, offline_all
from broker.server.marks import ProcessMarks
from broker.server.producer_ids import ProducerIdPool
from broker.server.stall_detector import StallDetector
from metadata.controller.replay import Subscriber
from metadata.image import ClusterImage
from metadata.records import LOST, Endpoint
from metadata.records.incarnation import incarnation_id
from quorumlog.errors import CorruptStoreError, FatalError
from quorumlog.runtime.clock import Sources, now_ms
from quorumlog.runtime.disk import Disk, DiskError
from quorumlog.runtime.logging import get_logger
from quorumlog.wire.rpcs import ControllerCall

logger = get_logger("broker")

FINAL_SAVE_TIMEOUT_S = 10.0
SERVING_LOOK_S = 0.25


class Replay(Protocol):
    """The part of `MetadataReplay` that the broker follows."""

    @property
    def image(self) -> ClusterImage: ...
    def subscribe(self, callback: Subscriber) -> Callable[[], None]: ...


class RoleConfig(msgspec.Struct, frozen=True):
    """The settings of a broker's role.

    lag_max_ms, lag_max_bytes: a follower that lags by more leaves the ISR; -1 bytes: no limit.
    shutdown_timeout_ms: the bound of the hand-over in `stop`.
    """

    broker_id: int
    rack: str | None = None
    inter_broker_listener: str = "PLAINTEXT"
    heartbeat_interval_ms: int = 1_000
    session_timeout_ms: int = 6_000
    lag_max_ms: int = 10_000
    lag_max_bytes: int = -1
    shutdown_timeout_ms: int = 30_000


class BrokerRole:
    """The broker role of a process: enter it to open the logs, call `start` to join the cluster, leave it to close."""

    def __init__(
        self,
        config: RoleConfig,
        sources: Sources,
        disks: Sequence[Disk],
        replay: Replay,
        call: ControllerCall,
        limits: ReplicaLimits | None = None,
        generation: Callable[[], int] = lambda: 0,
        clean_worker: CleanWorker | None = None,
        cleaner_limits: CleanerLimits | None = None,
    ) -> None:
        """generation: returns the quorum's generation; not called before the quorum has been joined.

        clean_worker: compacts logs; without one, the event loop does it.
        """
        limits = limits or ReplicaLimits()
        # A follower whose long poll outlasts lag_max_ms would seem to have stopped fetching.
        limits = replace(limits, fetcher_wait_ms=min(limits.fetcher_wait_ms, max(1, config.lag_max_ms // 3)))
        self.config = config
        self.logs = LogManager(disks, limits.log_checkpoint_bytes)
        self.cleaner = LogCleaner(
            self.logs, clean_worker or LocalWorker(), cleaner_limits or CleanerLimits(), sources.wall_ms
        )
        self.progress = Progress()
        self.applied_batches = AppliedBatches(sources.wall_ms)
        self._sources = sources
        self._disks = tuple(disks)
        self._replay = replay
        self._call = call
        self._stall_detector = StallDetector(config.session_timeout_ms / 2000)
        self.context = ReplicaContext(
            config.broker_id,
            self.logs,
            ClusterView(config.broker_id),
            limits,
            self._stall_detector.is_awake,
            sources.wall_ms,
        )
        self._pool = ProducerIdPool(
            config.broker_id,
            lambda: self.context.cluster.own_epoch,
            call,
            low_water=limits.producer_id_low_water,
            timeout_ms=3_000,
        )
        self.table = ReplicaTable(self.context)
        self.replicas = ReplicaService(self.table, sources.random, self._pool)
        self.fetchers = Fetchers(self.context, self._inter_broker_address)
        self.isr = IsrKeeper(self.table, call, config.lag_max_ms)
        self.log_starts = LogStarts(self.table)
        self.watermarks = Watermarks(self._disks, self.table, self.logs.disk_failed)
        self.directories = Directories(self.table, self._directory_ids, self.watermarks, self.replicas.moves, call)
        self.strays = Strays(self.table, self._disks, self.watermarks, generation, sources.wall_ms)
        self.follower = ImageFollower(
            self.table,
            TopicConfigs(limits, config.lag_max_ms, config.lag_max_bytes),
            self.directories,
            self.watermarks,
            self.strays,
            self.fetchers.throttle,
            self.progress,
            self.applied_batches,
            wall_ms=sources.wall_ms,
            on_applied=self._on_applied,
        )
        self.groups = GroupCoordinators(self.table, call, self.wait_applied, sources)
        self.transactions = TransactionCoordinators(
            self.table, self.groups, call, self.wait_applied, self._pool.take, self._inter_broker_address, sources
        )
        self.shares = ShareGroups(
            self.table,
            self.groups,
            call,
            self.wait_applied,
            self._inter_broker_address,
            sources,
            self.replicas.start_produce,
        )
        self.replicas.produces.verify = self.transactions.verify
        self.lifecycle: LifecycleRunner | None = None
        self._closed = False
        self._marks = ProcessMarks(self._disks, self.progress.directories_offline.__contains__, self.logs.disk_failed)
        self._previous_epoch = -1
        self._start_number = 0
        self._group: asyncio.TaskGroup | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._life: asyncio.Task[bool] | None = None
        self._subscriptions: list[Callable[[], None]] = []
        self._applied_waiters: list[tuple[int, asyncio.Future[None]]] = []
        self._all_disks_failed: asyncio.Future[DiskError] | None = None

    @property
    def _directory_ids(self) -> tuple[UUID, ...]:
        return tuple(disk.directory_id for disk in self._disks)

    # -- life

    async def __aenter__(self) -> BrokerRole:
        self._all_disks_failed = asyncio.get_running_loop().create_future()
        self.logs.events.directory_failed.subscribe(self._on_disk_failure)
        self.logs.events.log_failed.subscribe(self._on_log_failure)
        await self.logs.open()
        self.watermarks.load()
        self._previous_epoch = self._marks.clean_epoch()
        self._start_number = await self._marks.count_start()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        await self.close(clean=kind is None)

    def start(self, group: asyncio.TaskGroup, endpoints: Sequence[Endpoint]) -> None:
        """Join the cluster under these endpoints; the tasks of this role belong to `group`."""
        self._group = group
        self.lifecycle = LifecycleRunner(
            Identity(
                self.config.broker_id,
                incarnation_id(self._start_number, self._sources.uuid4()),
                tuple(endpoints),
                self._directory_ids,
                self.config.rack,
                self._previous_epoch,
                self.logs.early_topics,
            ),
            self._call,
            self.progress,
            self._stall_detector,
            heartbeat_interval_ms=self.config.heartbeat_interval_ms,
            on_registered=self._on_registered,
        )
        self.fetchers.start(group)
        self.follower.start_at(self._replay.image)
        self.groups.start(group, self._replay.image)
        self.transactions.start(group, self._replay.image)
        self.shares.start(group, self._replay.image)
        for subscriber in (
            self.follower.on_batch,
            self.groups.on_batch,
            self.transactions.on_batch,
            self.shares.on_batch,
        ):
            self._subscriptions.append(self._replay.subscribe(subscriber))
        limits = self.context.limits
        for name, work in (
            ("image", self.follower.run()),
            ("isr", self.isr.run()),
            ("watermarks", self.watermarks.run(limits.checkpoint_interval_ms)),
            ("log-starts", self.log_starts.run()),
            ("directories", self.directories.run()),
            ("maintenance", self._maintain()),
            ("moves", self.logs.moves.run(self._sources.wall_ms)),
            ("cleaner", self.cleaner.run()),
            ("producer-ids", self._pool.run()),
        ):
            self._tasks.append(group.create_task(work, name=f"broker-{name}"))
        self._life = group.create_task(self.lifecycle.run(), name="broker-life")

    async def stop(self) -> bool:
        """Hand leaderships over; return whether the controller released this broker in time."""
        if self.lifecycle is None or self._life is None:
            return True
        self.lifecycle.stop(self.config.shutdown_timeout_ms)
        return await self._life

    async def close(self, clean: bool = True) -> None:
        """Answer everything that is parked, end all tasks, close the logs.  Idempotent.

        clean: write the clean-stop mark if everything is durable.
        """
        if self._closed:
            return
        self._closed = True
        for unsubscribe in self._subscriptions:
            unsubscribe()
        if self._life is not None and not self._life.done():
            self._tasks.append(self._life)  # type: ignore[arg-type]
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
            self._tasks.clear()
        await self.shares.close()
        await self.transactions.close()
        await self.groups.close()
        await self.fetchers.close()
        self.replicas.close()
        try:
            async with asyncio.timeout(FINAL_SAVE_TIMEOUT_S):
                await self.follower.close()
                await self.cleaner.close()
                await self.watermarks.save()
                await self.logs.close()
                if clean:
                    await self._leave_clean_mark()
        except TimeoutError:
            logger.error("data directories not closed in time", seconds=FINAL_SAVE_TIMEOUT_S)
        except DiskError as error:
            logger.error("data directories not closed", cause=str(error))

    async def wait_serving(self) -> None:
        """Wait until this broker is unfenced and has applied its unfencing.  The caller sets the deadline."""
        assert self.lifecycle is not None, "start() comes first"
        while not self.is_serving:
            await self.lifecycle.wait_unfenced()
            if not self.is_serving:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(SERVING_LOOK_S):  # no record reports the end of a stall
                        await self.wait_applied(self.progress.applied_offset + 1)

    @property
    def is_serving(self) -> bool:
        """Return whether this broker is unfenced, and leads the partitions for which it was elected."""
        if self.lifecycle is None or not self.lifecycle.unfenced or not self.context.is_serving():
            return False
        cluster = self.context.cluster
        own = cluster.applied.brokers.get(self.config.broker_id)
        return own is not None and own.epoch == cluster.own_epoch and not own.fenced

    async def failed(self) -> None:
        """Wait until every data directory has failed.

        Raises:
            FatalError: always.
        """
        assert self._all_disks_failed is not None, "enter comes first"
        last = await asyncio.shield(self._all_disks_failed)
        raise FatalError(
            f"every data directory has failed; the last cause: {last}",
            next_step="make room on the disks or replace them, then start again",
        )

    # -- connections between the parts

    def _inter_broker_address(self, broker_id: int) -> tuple[str, int] | None:
        broker = self.context.cluster.newest.brokers.get(broker_id)
        if broker is None:
            return None
        endpoint = broker.endpoint(self.config.inter_broker_listener)
        if endpoint is None and broker.endpoints:
            endpoint = broker.endpoints[0]
        return None if endpoint is None else (endpoint.host, endpoint.port)

    async def wait_applied(self, offset: int) -> None:
        """Wait until metadata below `offset` is applied.  The caller sets the deadline."""
        if self.progress.applied_offset < offset:
            self._applied_waiters = [each for each in self._applied_waiters if not each[1].done()]
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._applied_waiters.append((offset, future))
            await future

    async def _on_registered(self, broker_epoch: int) -> None:
        await self._marks.begin()
        self.follower.activate(broker_epoch)
        self._pool.refill()

    def _on_applied(self, offset: int) -> None:
        assert self.lifecycle is not None
        self.lifecycle.on_applied(offset)
        if self._applied_waiters:
            for wanted, future in self._applied_waiters:
                if wanted <= offset and not future.done():
                    future.set_result(None)
            self._applied_waiters = [each for each in self._applied_waiters if not each[1].done()]

    def _on_disk_failure(self, directory_id: UUID, error: DiskError) -> None:
        if directory_id in self.progress.directories_offline:
            return
        logger.error("data directory offline", directory_id=directory_id, cause=str(error))
        if self.lifecycle is not None:
            self.lifecycle.on_disk_failure(directory_id)
        else:
            self.progress.directories_offline.append(directory_id)
        for replica in list(self.table):
            if replica.log is not None and replica.log.directory_id == directory_id:
                replica.take_offline(error)
        failed = self._all_disks_failed
        if offline_all(self.progress, self._directory_ids) and failed is not None and not failed.done():
            failed.set_result(error)

    def _on_log_failure(self, key: LogKey, error: CorruptStoreError) -> None:
        """Report a damaged replica of a working directory.

        The controller removes it from the ISR, and elects another leader if this replica led.
        """
        replica = self.table.with_log(key)
        if replica is not None:
            replica.take_offline(error)
            self.directories.report(replica.partition, LOST)

    # -- maintenance and marks

    async def _maintain(self) -> None:
        limits = self.context.limits
        while True:
            await asyncio.sleep(limits.maintenance_interval_ms / 1000)
            try:
                await self.logs.maintain(now_ms, self._sources.wall_ms())
                await self.strays.delete_old(now_ms())
            except DiskError as error:
                logger.error("maintenance failed", cause=str(error))

    async def _leave_clean_mark(self) -> None:
        epoch = self.context.cluster.own_epoch
        if epoch >= 0 and self.logs.clean_stop and not self.progress.directories_offline:
            await self._marks.leave_clean(epoch)
