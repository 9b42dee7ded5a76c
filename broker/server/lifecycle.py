"""The shell of `broker.core.lifecycle`: registers this broker, sends heartbeats, and hands over at the end."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from uuid import UUID

import msgspec

from broker.core.lifecycle import Beat, End, Lifecycle, Register, Stage, Wait
from broker.replica.progress import Progress
from broker.server.stall_detector import StallDetector
from metadata.records import METADATA_VERSION_MAX, METADATA_VERSION_MIN, Endpoint
from quorumlog.errors import ConfigError
from quorumlog.runtime.clock import now_ms
from quorumlog.runtime.logging import get_logger
from quorumlog.wire import rpcs
from quorumlog.wire.errors import ApiError
from quorumlog.wire.rpcs import ControllerCall
from quorumlog.wire.v1 import controller_pb2 as pb
from quorumlog.wire.v1 import metadata_pb2

logger = get_logger("broker")

_STALE = frozenset({ApiError.STALE_BROKER_EPOCH, ApiError.BROKER_ID_NOT_REGISTERED})
_FINAL = frozenset({ApiError.INVALID_REGISTRATION, ApiError.UNSUPPORTED_VERSION, ApiError.INCONSISTENT_CLUSTER_ID})
"""Refusals of a registration that a retry cannot change."""
_REQUEST_TIMEOUT_MAX_MS = 3_000


class Identity(msgspec.Struct, frozen=True):
    """The content of this process's registration.

    previous_epoch: broker epoch under which these directories were stopped cleanly; -1 if they were not.
    early_topics: see `LogManager.early_topics`.
    """

    broker_id: int
    incarnation_id: UUID
    endpoints: tuple[Endpoint, ...]
    directory_ids: tuple[UUID, ...]
    rack: str | None = None
    previous_epoch: int = -1
    early_topics: frozenset[UUID] = frozenset()


class LifecycleRunner:
    """Runs the life cycle until the controlled shutdown ends.

    on_registered: awaited with each new broker epoch, before any request under that epoch.
    """

    def __init__(
        self,
        identity: Identity,
        call: ControllerCall,
        progress: Progress,
        stall_detector: StallDetector,
        *,
        heartbeat_interval_ms: int,
        on_registered: Callable[[int], Awaitable[None]],
    ) -> None:
        self.identity = identity
        self.stall_detector = stall_detector
        stall_detector.stalled.subscribe(self._on_stalled)
        self.core = Lifecycle(heartbeat_interval_ms, now_ms())
        self._call = call
        self._progress = progress
        self._timeout_ms = min(_REQUEST_TIMEOUT_MAX_MS, 2 * heartbeat_interval_ms)
        self._on_registered = on_registered
        self._news = asyncio.Event()
        self._unfenced = asyncio.Event()
        self._duplicate_seen = False

    @property
    def unfenced(self) -> bool:
        return self._unfenced.is_set()

    async def wait_unfenced(self) -> None:
        """Wait until the controller has unfenced this broker.  The caller sets the deadline."""
        await self._unfenced.wait()

    def on_applied(self, offset: int) -> None:
        """Record that metadata below `offset` has been applied, and report it with the next heartbeat."""
        self._progress.applied_offset = offset
        self.core.on_applied(offset, now_ms())
        self._news.set()

    def on_disk_failure(self, directory_id: UUID) -> None:
        """Record that a directory has failed, and report it with a heartbeat without delay."""
        if directory_id not in self._progress.directories_offline:
            self._progress.directories_offline.append(directory_id)
            self.core.on_urgent(now_ms())
            self._news.set()

    def _on_stalled(self, late_s: float) -> None:
        logger.warning(
            "this process was stalled: it leads nothing until the controller has answered", late_ms=round(late_s * 1000)
        )
        self.core.on_urgent(now_ms())
        self._news.set()

    def stop(self, timeout_ms: int) -> None:
        """Begin the controlled shutdown.  `run` returns at its end, at the latest after `timeout_ms`."""
        now = now_ms()
        self.core.stop(now + timeout_ms, now)
        self._news.set()

    async def run(self) -> bool:
        """Run until `stop` is complete; return whether the controller released this broker.

        Raises:
            ConfigError: the registration is refused, and a retry cannot change that.
        """
        self.stall_detector.start()
        try:
            return await self._live()
        finally:
            self.stall_detector.stop()

    async def _live(self) -> bool:
        while True:
            action = self.core.next_action(now_ms())
            match action:
                case Register():
                    await self._register()
                case Beat(want_shutdown):
                    await self._beat(want_shutdown)
                case Wait(until_ms):
                    await self._wait(until_ms)
                case End(released):
                    logger.info("broker released" if released else "broker not released in time")
                    return released

    async def _wait(self, until_ms: int) -> None:
        self._news.clear()
        if self.core.next_action(now_ms()) != Wait(until_ms):
            return
        try:
            async with asyncio.timeout((until_ms - now_ms()) / 1000 + 0.001):
                await self._news.wait()
        except TimeoutError:
            pass

    async def _register(self) -> None:
        identity = self.identity
        request = pb.RegisterBrokerRequest(
            registration=metadata_pb2.RegisterBroker(
                broker_id=identity.broker_id,
                incarnation_id=identity.incarnation_id.bytes,
                endpoints=[
                    metadata_pb2.Endpoint(name=each.name, host=each.host, port=each.port, security=each.security)
                    for each in identity.endpoints
                ],
                rack=identity.rack,
                directory_ids=[each.bytes for each in identity.directory_ids],
                previous_broker_epoch=identity.previous_epoch,
                feature_min=METADATA_VERSION_MIN,
                feature_max=METADATA_VERSION_MAX,
                fenced=True,
            ),
            early_topic_ids=[each.bytes for each in sorted(identity.early_topics)],
        )
        reply = await self._call(rpcs.REGISTER_BROKER, request, self._timeout_ms)
        error = reply.result.error
        if error == ApiError.NONE:
            logger.info("registered", broker_epoch=reply.broker_epoch)
            self._duplicate_seen = False
            self._unfenced.clear()
            await self._on_registered(reply.broker_epoch)
            self.core.on_registered(reply.broker_epoch, now_ms())
            return
        if error in _FINAL:
            raise ConfigError(f"the cluster refuses this broker: {reply.result.message}", next_step=reply.result.next)
        if error == ApiError.DUPLICATE_BROKER_REGISTRATION and not self._duplicate_seen:
            self._duplicate_seen = True
            logger.warning("broker id in use", cause=reply.result.message, next=reply.result.next)
        self.core.on_no_reply(now_ms())

    async def _beat(self, want_shutdown: bool) -> None:
        stall = self.stall_detector.current
        if stall and not await self._is_controller_confirmed():
            self._on_no_reply(stall)
            return
        progress = self._progress
        request = pb.BrokerHeartbeatRequest(
            broker_id=self.identity.broker_id,
            broker_epoch=self.core.epoch,
            applied_offset=progress.applied_offset,
            received_offset=progress.received_offset,
            pending_changes=progress.pending_changes,
            want_shutdown=want_shutdown,
            directories_offline=[each.bytes for each in progress.directories_offline],
        )
        sent_offset = progress.applied_offset
        reply: pb.BrokerHeartbeatReply = await self._call(rpcs.BROKER_HEARTBEAT, request, self._timeout_ms)
        error = reply.result.error
        now = now_ms()
        if error == ApiError.NONE:
            was = self.core.stage
            self.core.on_beat(reply.fenced, reply.should_shutdown, reply.leaders_left, now)
            if reply.fenced and progress.applied_offset > sent_offset:
                self.core.on_urgent(now)  # the controller may wait for metadata that was applied meanwhile
            if not reply.fenced:
                self.stall_detector.end(stall)
            self._show(was)
        elif error in _STALE:
            logger.warning("registration lost", broker_epoch=self.core.epoch, cause=reply.result.message)
            self._unfenced.clear()
            self.core.on_stale(now)
        else:
            logger.debug("heartbeat failed", error=error)
            self._on_no_reply(stall)

    async def _is_controller_confirmed(self) -> bool:
        """Return whether a majority of the voters confirms the controller that answers this broker.

        The reply to a heartbeat does not wait for such a confirmation.  A controller in the same process, or on the
        same machine, may have been suspended together with this broker.  Until that controller learns that it was
        replaced, it would report that the broker is unfenced.
        """
        request = pb.AssignDirectoriesRequest(broker_id=self.identity.broker_id, broker_epoch=self.core.epoch)
        reply = await self._call(rpcs.ASSIGN_DIRECTORIES, request, self._timeout_ms)  # no items: no change
        return reply.result.error == ApiError.NONE or reply.result.error in _STALE

    def _on_no_reply(self, stall: int) -> None:
        self.stall_detector.give_up(stall, self._timeout_ms / 1000)  # brokers also serve without a controller
        self.core.on_no_reply(now_ms())

    def _show(self, was: Stage) -> None:
        stage = self.core.stage
        if stage is Stage.RUNNING:
            self._unfenced.set()
        elif stage is Stage.FENCED:
            self._unfenced.clear()
        if stage is not was and stage is not Stage.STOPPED:
            logger.info("broker " + stage.name.lower(), broker_epoch=self.core.epoch)


def offline_all(progress: Progress, directory_ids: Sequence[UUID]) -> bool:
    """Return whether every directory is offline."""
    return set(directory_ids) <= set(progress.directories_offline)
