"""`ControlPlane`: what every process of a cluster runs, voter or not.

Transport, quorum node, metadata replay and controller service, started and stopped in order.  `broker run` adds the
broker role on top: it follows `replay` and reaches the active controller through `service.call`, wherever that is.

Stopping is the reverse of starting: whoever leads hands over first, then nothing is answered any more, then the store
is closed.  A failure of any part (disk, state machine, a broken invariant) is raised by `async with`.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from base64 import urlsafe_b64encode
from collections.abc import Awaitable, Callable, Iterator, Sequence
from types import TracebackType

from google.protobuf.message import Message

from metadata.controller.active import ActiveController, ControllerSettings
from metadata.controller.availability import Availability, register_availability
from metadata.controller.node_service import NodeService, NodeState
from metadata.controller.replay import MetadataReplay
from metadata.controller.service import ControllerService
from metadata.image import ClusterImage
from metadata.records import ConfigScope, Record
from quorum.core.config import RaftConfig
from quorum.core.types import Role
from quorum.node import QuorumNode
from quorum.ports import OutlivedError, QuorumStore, Transport
from quorum.snapshots import SnapshotPolicy
from quorum.store import SqliteQuorumStore
from quorum.transport.grpc import GrpcTransport
from quorumlog.runtime.clock import Sources
from quorumlog.runtime.config import BROKER, NodeConfig
from quorumlog.runtime.http import Check
from quorumlog.runtime.logging import get_logger
from quorumlog.runtime.metrics import Metrics
from quorumlog.runtime.space import SpaceSamples
from quorumlog.wire.rpcs import AnyRpc, Service
from quorumlog_server.generations import through_generations
from quorumlog_server.standing import FileStanding, MemoryStanding, StandingStore
from quorumlog_server.volunteer import Volunteer

QUORUM_FOLDER = "quorum"
"""Folder of the quorum store, in the first data directory."""


READY_LOOK_S = 0.5

LEAVE_MAX_MS = 4_000
"""Of the time for a graceful stop, at most so much, and a third, is for leaving the voters."""

_log = get_logger("quorum")


def new_cluster_id(sources: Sources) -> str:
    """A random cluster id: 22 characters of URL-safe base64."""
    return urlsafe_b64encode(sources.uuid4().bytes).decode().rstrip("=")


def quorum_directory(config: NodeConfig) -> str:
    return os.path.join(config.data_dirs[0], QUORUM_FOLDER)


def make_store(config: NodeConfig, sources: Sources) -> SqliteQuorumStore:
    """The quorum store of a process with this configuration.

    A broker whose metadata does not move must end, so that others lead in its place: its heartbeats would go on.  A
    voter that is no broker may wait for its disk: it has given its leadership up, and harms nobody.
    """
    stall_s = config.log_dir_stall_timeout_ms / 1000 if config.role == BROKER else None
    return SqliteQuorumStore(quorum_directory(config), sources, stall_s)


async def run_again_if_rebuilt(config: NodeConfig, run: Callable[[OutlivedError | None], Awaitable[None]]) -> None:
    """`run` the process; again, with its quorum directory set aside, when the quorum was rebuilt meanwhile.

    Raises:
        OutlivedError: that is not for this node to decide.
    """
    await through_generations(quorum_directory(config), bool(config.bootstrap or config.initial_voters), run)


def make_control_plane(config: NodeConfig, sources: Sources) -> ControlPlane:
    """A control plane over gRPC and SQLite.  On the running loop; nothing is opened before it is entered."""
    transport = GrpcTransport(config.control_listen)
    plane = ControlPlane(config, sources, make_store(config, sources), transport)
    plane.disk_paths = (quorum_directory(config),)
    transport.is_serving = lambda: plane.is_ready()[0]
    return plane


def raft_config(config: NodeConfig, address: str, new_id: str) -> RaftConfig:
    """What the core is told; `address` is the control address that this node advertises."""
    own = config.node_id
    return RaftConfig(
        node_id=own,
        address=address,
        bootstrap=tuple(str(target) for target in config.bootstrap if str(target) != address),
        initial_voters=tuple((voter.node_id, str(voter.address)) for voter in config.initial_voters),
        standalone=config.standalone,
        cluster_id=config.cluster_id,
        new_cluster_id=new_id,
        election_timeout_ms=config.quorum_election_timeout_ms,
        fetch_timeout_ms=config.quorum_fetch_timeout_ms,
        append_linger_ms=config.quorum_append_linger_ms,
        preference_wait_ms=config.quorum_preference_wait_ms,
    )


class ControlPlane:
    """An async context manager.  `replay` is there from the start, so that it can be subscribed to before the first
    batch; `node`, `controller` and `service` once it is entered."""

    node: QuorumNode
    controller: ActiveController
    service: ControllerService
    node_service: NodeService

    def __init__(
        self,
        config: NodeConfig,
        sources: Sources,
        store: QuorumStore,
        transport: Transport,
        snapshots: SnapshotPolicy | None = None,
    ) -> None:
        self.config = config
        self._snapshots = snapshots or SnapshotPolicy(
            log_bytes=config.metadata_snapshot_log_bytes, interval_ms=config.metadata_snapshot_interval_ms
        )
        self.replay = MetadataReplay()
        self._sources = sources
        self._store = store
        self._transport = transport
        self.standing: StandingStore = MemoryStanding()
        if isinstance(store, SqliteQuorumStore):
            self.standing = FileStanding(store.directory)
        self._volunteer: Volunteer | None = None
        self._entered = self._was_entered = False
        self.all_checks = self.checks  # of the whole process; `broker run` adds its own
        self.disk_paths: tuple[str, ...] = ()  # whose room is shown: data directories, the quorum directory
        self.space = SpaceSamples(lambda: self.disk_paths)
        self.before: OutlivedError | None = None  # what was just set aside, to say what the new quorum lacks of it

    async def __aenter__(self) -> ControlPlane:
        """Bind, open the store, serve and take part.

        Raises:
            ConfigError: the port, the directory or the configuration is refused.
            FatalError: the store is damaged or the disk fails.
        """
        bound = self._transport.bind()
        try:
            advertise = self.config.control_advertise
            raft = raft_config(
                self.config, bound if advertise is None else str(advertise), new_cluster_id(self._sources)
            )
            self.node = QuorumNode(raft, self._store, self._transport, self.replay, self._sources, self._snapshots)
            self.replay.subscribe(self._on_batch)
            settings = ControllerSettings(
                session_timeout_ms=self.config.broker_session_timeout_ms,
                heartbeat_interval_ms=self.config.broker_heartbeat_interval_ms,
                fence_on_refusal=self.config.broker_fence_on_refusal,
            )
            self.controller = ActiveController(self.node, self.replay, self._sources.uuid4, settings)
            self.service = ControllerService(self.node, self.controller, self._transport)
            self.node_service = NodeService(self.node, self.replay, self._node_state)
            self._transport.serve_controller(self._handle)
        except BaseException:
            await self._transport.close()
            raise
        await self.node.__aenter__()  # closes the transport if it fails
        self._tell_who_is_waited_for()
        if self.disk_paths:
            self.node.run_beside(self.space.run(), "room on disks")
        self.node.run_beside(self.controller.run(), "active controller")
        self._volunteer = Volunteer(self.node, self.service.call, self.standing, self._sources.random)
        if self.config.quorum_auto_join:
            self.node.run_beside(self._volunteer.run(), "joining the voters")
        self._entered = self._was_entered = True
        if self.before is not None:
            self.node.run_beside(self._tell_what_is_gone(self.before), "comparison with the generation before")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._entered = False
        try:
            if error is None and self.config.quorum_leave_on_shutdown and self._volunteer is not None:
                await self._volunteer.leave(min(self.config.shutdown_timeout_ms // 3, LEAVE_MAX_MS))
        finally:
            await self.node.__aexit__(kind, error, trace)

    def _tell_who_is_waited_for(self) -> None:
        """A node without a cluster waits for others, without end: whoever looks at its log shall see for whom."""
        if self.node.core.newborn is None or self.config.standalone:
            return
        if self.config.initial_voters:
            voters = ",".join(f"{voter.node_id}@{voter.address}" for voter in self.config.initial_voters)
            _log.info("in no cluster yet: waits until every listed voter answers, with the same list", voters=voters)
        else:
            nodes = ",".join(map(str, self.config.bootstrap))
            _log.info("in no cluster yet: waits until one of these nodes answers", nodes=nodes)

    def tell_part(self) -> None:
        """Of a node without a broker, once it is ready: that it does not vote, and what would make it."""
        node = self.node
        if node.core.is_voter or self.config.quorum_auto_join:
            return
        command = f"kctl add-voter {node.node_id}@{node.address}"
        next_step = f"to make it a voter: {command}"
        if node.node_id in node.voter_ids:  # the voter of this id is another disk
            next_step = f"if the disk of that voter is gone for good: {command} --replace"
        _log.info("follows as an observer: it does not vote", node_id=node.node_id, next=next_step)

    async def _tell_what_is_gone(self, before: OutlivedError) -> None:
        await self.ready()
        begins = self.node.core.history.rebuilt_at(before.newer)
        if begins is not None and before.log_end <= begins:
            _log.info("the rebuilt quorum has all that this node had", log_end=before.log_end, rebuilt_at=begins)
            return
        _log.error(
            "metadata records that this node had are gone: they are only in the directory that was set aside",
            from_offset="unknown" if begins is None else begins,
            to_offset=before.log_end,
            generation=before.generation,
        )

    async def _handle(self, rpc: AnyRpc, request: Message) -> Message:
        if rpc.service is Service.NODE:
            return await self.node_service.handle(rpc, request)
        return await self.service.handle(rpc, request)

    def _node_state(self) -> NodeState:
        node = self.node
        fsyncs = sorted(node.recent_fsyncs_s())
        described = node.describe()
        return NodeState(
            role=node.role.value,
            controller_active=self.controller.active,
            leading_ms=described.last_leader_change_ms if node.role is Role.LEADER else None,
            fsync_p99_us=round(fsyncs[len(fsyncs) * 99 // 100] * 1e6) if fsyncs else None,
            checks={name: (check.ok, check.detail) for name, check in _carried_out(self.all_checks())},
            wall_ms=self._sources.wall_ms(),
            spaces=self.space.latest(),
        )

    def _on_batch(
        self,
        old: ClusterImage,
        new: ClusterImage,
        records: Sequence[Record] | None,
        base_offset: int,
        end_offset: int,
        timestamp_ms: int,
    ) -> None:
        if new.preferred_controllers != old.preferred_controllers:
            self.node.prefer(new.preferred_controllers)
        if new.configs is not old.configs:
            cluster = new.config(ConfigScope.CLUSTER, "")
            retain_ms, retain_bytes = cluster.get("metadata.retention.ms"), cluster.get("metadata.retention.bytes")
            self.node.keep_history(
                None if retain_ms is None else int(retain_ms), None if retain_bytes is None else int(retain_bytes)
            )

    @property
    def address(self) -> str:
        """The control address (HOST:PORT) that this node advertises."""
        return self.node.address

    @property
    def cluster_id(self) -> str | None:
        """None while this node does not know it."""
        return self.node.cluster_id if self._was_entered else self.config.cluster_id

    def peers(self) -> list[str]:
        """Control addresses of other nodes: the voters as this node knows them, then those of its configuration."""
        voters = [str(status.replica.address) for status in self.node.describe().voters] if self._was_entered else []
        listed = [str(voter.address) for voter in self.config.initial_voters]
        addresses = [*voters, *listed, *map(str, self.config.bootstrap)]
        own = self.address if self._was_entered else ""
        return [address for address in dict.fromkeys(addresses) if address and address != own]

    # Readiness

    def checks(self) -> dict[str, Callable[[], Check]]:
        """The conditions of readiness, for `/readyz`: in the quorum and caught up, not "port open"."""
        return {"cluster": self._check_cluster, "leader": self._check_leader, "metadata": self._check_metadata}

    def is_ready(self) -> tuple[bool, dict[str, str]]:
        """Whether all checks hold, and of each `ok` or why not."""
        results = {name: check() for name, check in self.checks().items()}
        ready = all(result.ok for result in results.values())
        return ready, {name: "ok" if result.ok else result.detail for name, result in results.items()}

    async def ready(self) -> None:
        """Wait until all checks hold.  The caller sets the deadline."""
        while not self.is_ready()[0]:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(READY_LOOK_S):  # the end of a pause is no event
                    await self.node.changed()

    def _check_cluster(self) -> Check:
        if not self._entered:
            return Check(False, "starting or stopping")
        cluster_id = self.node.cluster_id
        if cluster_id is None or not self.node.core.met:
            asked = [*self.config.bootstrap, *(voter.address for voter in self.config.initial_voters)]
            return Check(False, f"has not met its cluster yet; asks {', '.join(map(str, asked)) or 'nobody'}")
        return Check(True, cluster_id)

    def _check_leader(self) -> Check:
        if not self._entered:
            return Check(False, "starting or stopping")
        leader_id = self.node.leader_id
        if leader_id is None:
            return Check(False, f"knows no leader in epoch {self.node.epoch}")
        if self.node.paused:
            return Check(
                False, f"this node in epoch {self.node.epoch}, paused: no majority of the voters fetches from it"
            )
        return Check(True, f"{leader_id} in epoch {self.node.epoch}")

    def _check_metadata(self) -> Check:
        if not self._entered:
            return Check(False, "starting or stopping")
        applied, watermark = self.node.applied_offset, self.node.high_watermark
        if not self.node.is_caught_up():
            return Check(False, f"behind: applied {applied} of at least {watermark}")
        return Check(True, f"applied {applied}")

    # Metrics

    def register_metrics(self, metrics: Metrics) -> None:
        """Offer this plane's numbers.  Once, after it was entered."""
        node = self.node
        metrics.gauge("quorum_epoch", "Epoch of the metadata quorum.", lambda: node.epoch)
        metrics.gauge("quorum_leader_id", "Node id of the leader; absent when none is known.", lambda: node.leader_id)
        metrics.gauge("quorum_is_leader", "Whether this node leads.", lambda: node.role is Role.LEADER)
        metrics.gauge("quorum_is_paused", "Whether it leads without a majority.", lambda: node.paused)
        metrics.gauge("quorum_high_watermark", "End of what is committed, as known here.", lambda: node.high_watermark)
        metrics.gauge("quorum_log_end_offset", "End of this node's log.", lambda: node.log_end_offset)
        metrics.gauge("quorum_applied_offset", "End of what is applied here.", lambda: node.applied_offset)
        metrics.gauge("quorum_requests_in_progress", "Unanswered.", lambda: node.metrics().requests_in_progress)
        metrics.gauge(
            "controller_is_active", "Whether this node decides.", lambda: self.controller.active and not node.paused
        )
        metrics.counters(
            "controller_brokers_fenced", "Brokers that this node fenced.", "reason", lambda: self.controller.fenced
        )
        metrics.counters(
            "controller_probes",
            "Connections to brokers: whether a silent one's process has ended.",
            "answer",
            lambda: self.controller.probes,
        )
        metrics.counter("quorum_appends", "Batches appended as leader.", lambda: node.metrics().appends)
        metrics.counter("quorum_fsyncs", "Transactions of the quorum store.", lambda: node.metrics().fsyncs)
        metrics.counter("quorum_role_changes", "Changes of role or leader.", lambda: node.metrics().role_changes)
        metrics.counter("quorum_failed_requests", "Requests without an answer.", lambda: node.metrics().failed_requests)
        metrics.gauges(
            "directory_free_bytes",
            "Free on the file system of a data directory or the quorum directory.",
            "directory",
            lambda: {space.path: space.free_bytes for space in self.space.latest()},
        )
        metrics.gauges(
            "directory_total_bytes",
            "Size of the file system of a data directory or the quorum directory.",
            "directory",
            lambda: {space.path: space.total_bytes for space in self.space.latest()},
        )
        metrics.gauges(
            "directory_space_age_seconds",
            "Age of the free and total bytes of a directory.  It grows while a file system hangs.",
            "directory",
            self.space.ages_s,
        )
        availability = Availability(self.replay, lambda: self.controller.active and not node.paused, node.is_caught_up)
        register_availability(metrics, availability)
        node.on_commit = metrics.histogram("quorum_commit_seconds", "From append to commit.").observe
        node.on_fsync = metrics.histogram("quorum_fsync_seconds", "One transaction of the quorum store.").observe


def _carried_out(checks: dict[str, Callable[[], Check]]) -> Iterator[tuple[str, Check]]:
    for name, check in checks.items():
        yield name, check()
