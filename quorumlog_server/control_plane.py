"""`ControlPlane`: the part that every process of a cluster runs, voter or not.

It starts and stops transport, quorum node, metadata replay and controller service in order.  `broker run` adds the
broker role: the role follows `replay`, and reaches the active controller of the cluster through `service.call`.

Stopping is the reverse of starting: a leader hands over first, then requests are no longer answered, then the store is
closed.  `async with` raises the failure of any part: the disk, the state machine, a broken invariant.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from functools import partial
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
from quorum.core.messages import DescribeQuorumReply
from quorum.core.types import Role
from quorum.node import QuorumNode
from quorum.ports import OutlivedError, QuorumStore, Transport
from quorum.snapshots import SnapshotPolicy
from quorum.store import SqliteQuorumStore
from quorum.store.directory import check_unused
from quorum.transport.grpc import GrpcTransport
from quorumlog.runtime.clock import Sources
from quorumlog.runtime.cluster_id import new_cluster_id
from quorumlog.runtime.config import BROKER, NodeConfig
from quorumlog.runtime.data_directory import Claim, claim, lock_directory
from quorumlog.runtime.http import Check
from quorumlog.runtime.logging import get_logger
from quorumlog.runtime.metrics import Metrics
from quorumlog.runtime.server_cli import check_addresses
from quorumlog.runtime.space import SpaceSamples
from quorumlog.wire.rpcs import AnyRpc, Service
from quorumlog_server.generations import log_lost_metadata
from quorumlog_server.quorum_view import leaders_description
from quorumlog_server.search import Search, state_of
from quorumlog_server.standing import FileStanding, MemoryStanding, StandingStore
from quorumlog_server.volunteer import Volunteer

QUORUM_FOLDER = "quorum"
"""Folder of the quorum store, in the first data directory."""
READY_LOOK_S = 0.5
LEAVE_MAX_MS = 4_000
"""The longest time for leaving the voters; at most a third of the time for a graceful stop."""

logger = get_logger("quorum")


def quorum_directory(config: NodeConfig) -> str:
    """Return the path of the quorum store."""
    return os.path.join(config.data_dirs[0], QUORUM_FOLDER)


async def check_start(config: NodeConfig) -> None:
    """Refuse a start that must fail before anything is created: the node runs already, or a port is in use.

    If the same command runs twice, the error names the directory and the process, which helps more than a port.

    Raises:
        ConfigError: the quorum directory is in use or another node's, or an address cannot be bound.
        FatalError: the quorum directory is damaged, or its disk fails.
    """
    check_unused(quorum_directory(config), config.node_id)
    await check_addresses(config)


def claim_directories(config: NodeConfig, directories: Sequence[str]) -> list[Claim]:
    """Lock these data directories, and check that they and the quorum directory belong to this node.

    This writes to no directory that was in use before.  So a refused start changes nothing.

    Raises: as `claim`.
    """
    check_unused(quorum_directory(config), config.node_id)  # first: `claim` may create lock files
    return claim(directories, config.node_id, config.cluster_id)


@contextlib.contextmanager
def locked_directory(config: NodeConfig) -> Iterator[None]:
    """Hold the lock of the data directory of a node without a broker.

    Only the quorum directory must belong to this node.  Files of a broker in the data directory do not matter: a broker
    of an older release left some there when its start was refused.

    Raises: as `check_unused` and `lock_directory`.
    """
    check_unused(quorum_directory(config), config.node_id)  # first: `lock_directory` may create the lock file
    claimed = lock_directory(config.data_dirs[0], config.node_id)
    try:
        yield
    finally:
        claimed.release()


def listed_peers(config: NodeConfig) -> list[str]:
    """Return the control addresses in the configuration; one of them may be this node's."""
    return [*(str(voter.address) for voter in config.initial_voters), *map(str, config.bootstrap)]


def make_store(config: NodeConfig, sources: Sources) -> SqliteQuorumStore:
    """Return the quorum store of a process with this configuration.

    A broker whose metadata log hangs must end: otherwise it would continue to send heartbeats, and no other broker
    would take over its leaderships.  A voter without a broker may wait for its disk: if it led, it has already
    resigned.
    """
    stall_s = config.log_dir_stall_timeout_ms / 1000 if config.role == BROKER else None
    return SqliteQuorumStore(quorum_directory(config), sources, stall_s)


def make_control_plane(config: NodeConfig, sources: Sources) -> ControlPlane:
    """Return a control plane over gRPC and SQLite, for the running loop.  `async with` opens it."""
    transport = GrpcTransport(config.control_listen)
    plane = ControlPlane(config, sources, make_store(config, sources), transport)
    plane.disk_paths = (quorum_directory(config),)
    plane.asks_addresses = True
    transport.is_serving = lambda: plane.is_ready()[0]
    return plane


def raft_config(config: NodeConfig, address: str, new_id: str) -> RaftConfig:
    """Return the core's configuration; `address` is the control address that this node advertises."""
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
    """The control plane of one process: an async context manager that starts and stops its parts.

    `replay` exists from the start, so others can subscribe before the first batch.  `node`, `controller`, `service` and
    `node_service` exist inside `async with`.
    """

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
        self._search: Search | None = None
        self.asks_addresses = False  # a node without a cluster reports why its addresses do not answer; assignable
        self._entered = self._was_entered = False
        self.all_checks = self.checks  # the checks of the whole process; `broker run` adds its own
        self.disk_paths: tuple[str, ...] = ()  # data directories and quorum directory, for figures of free space
        self.space = SpaceSamples(lambda: self.disk_paths)
        self.before: OutlivedError | None = None  # describes the quorum directory that was just set aside
        self.on_open: Callable[[], None] = lambda: None
        """Called once the store is open, and with it all directories of this process are locked.  Assignable."""

    async def __aenter__(self) -> ControlPlane:
        """Bind the port, open the store, and start all parts of the control plane.

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
        self.on_open()
        self._log_wait()
        if self.asks_addresses and self._waits_for_cluster:
            self._search = self._make_search()
            self.node.run_beside(self._search.run(lambda: self.node.core.met), "search for the cluster")
        if self.disk_paths:
            self.node.run_beside(self.space.run(), "room on disks")
        self.node.run_beside(self.controller.run(), "active controller")
        self._volunteer = Volunteer(self.node, self.service.call, self.standing, self._sources.random)
        if self.config.quorum_auto_join:
            self.node.run_beside(self._volunteer.run(), "joining the voters")
        self._entered = self._was_entered = True
        if self.before is not None:
            self.node.run_beside(self._log_lost_metadata(self.before), "comparison with the generation before")
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

    @property
    def _waits_for_cluster(self) -> bool:
        return self.node.core.newborn is not None and not self.config.standalone

    def _make_search(self) -> Search:
        next_step = "start a node there, or give the control address (its port is 9093 by default) of one that runs"
        if self.config.initial_voters:
            next_step = "start every listed voter, with the same list"
        return Search(self.peers(), partial(state_of, transport=self._transport), next_step)

    def _log_wait(self) -> None:
        """Log the nodes for which a node without a cluster waits, because it waits indefinitely."""
        if not self._waits_for_cluster:
            return
        if self.config.initial_voters:
            voters = ",".join(f"{voter.node_id}@{voter.address}" for voter in self.config.initial_voters)
            logger.info("in no cluster yet: waits until every listed voter answers, with the same list", voters=voters)
        else:
            nodes = ",".join(map(str, self.config.bootstrap))
            logger.info("in no cluster yet: waits until one of these nodes answers", nodes=nodes)

    def log_observer(self) -> None:
        """If this node does not vote, log this fact and the command that makes the node a voter.

        Nodes without a broker call this once they are ready.
        """
        node = self.node
        if node.core.is_voter or self.config.quorum_auto_join:
            return
        command = f"kctl add-voter {node.node_id}@{node.address}"
        next_step = f"to make it a voter: {command}"
        if node.node_id in node.voter_ids:  # the voter with this id has another disk
            next_step = f"if the disk of that voter is lost permanently: {command} --replace"
        logger.info("follows as an observer: it does not vote", node_id=node.node_id, next=next_step)

    async def _log_lost_metadata(self, before: OutlivedError) -> None:
        await self.ready()
        log_lost_metadata(before, self.node.core.history)

    async def _handle(self, rpc: AnyRpc, request: Message) -> Message:
        if rpc.service is Service.NODE:
            return await self.node_service.handle(rpc, request)
        return await self.service.handle(rpc, request)

    def _node_state(self) -> NodeState:
        node = self.node
        fsyncs = sorted(node.meter.recent_fsyncs_s())
        described = node.describe()
        return NodeState(
            role=node.role.value,
            controller_active=self.controller.active,
            leading_ms=described.last_leader_change_ms if node.role is Role.LEADER else None,
            fsync_p99_us=round(fsyncs[len(fsyncs) * 99 // 100] * 1e6) if fsyncs else None,
            checks={name: (check.ok, check.detail) for name, check in _results(self.all_checks())},
            wall_ms=self._sources.wall_ms(),
            spaces=self.space.latest(),
        )

    def _on_batch(self, old: ClusterImage, new: ClusterImage, records: Sequence[Record] | None) -> None:
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
        """The cluster id; None if this node does not know it yet."""
        return self.node.cluster_id if self._was_entered else self.config.cluster_id

    def peers(self) -> list[str]:
        """Return control addresses of other nodes: of known voters, then those in the configuration."""
        voters = [str(status.replica.address) for status in self.node.describe().voters] if self._was_entered else []
        addresses = [*voters, *listed_peers(self.config)]
        own = self.address if self._was_entered else ""
        return [address for address in dict.fromkeys(addresses) if address and address != own]

    # Readiness

    async def describe_quorum(self, timeout_ms: int) -> DescribeQuorumReply | None:
        """Return the description of the quorum by its leader; None if no leader answers in time."""
        return await leaders_description(self.node, self._transport, timeout_ms)

    def checks(self) -> dict[str, Callable[[], Check]]:
        """Return the conditions of readiness for `/readyz`: in the cluster, with a leader, caught up."""
        return {"cluster": self._check_cluster, "leader": self._check_leader, "metadata": self._check_metadata}

    def is_ready(self) -> tuple[bool, dict[str, str]]:
        """Return whether all checks hold, and for each check `ok` or the reason."""
        return readiness(self.checks())

    async def ready(self) -> None:
        """Wait until all checks hold.  The caller sets the deadline."""
        while not self.is_ready()[0]:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(READY_LOOK_S):  # no event reports the end of a pause
                    await self.node.changed()

    def _check_cluster(self) -> Check:
        if not self._entered:
            return Check(False, "starting or stopping")
        cluster_id = self.node.cluster_id
        if cluster_id is None or not self.node.core.met:
            asked = [*self.config.bootstrap, *(voter.address for voter in self.config.initial_voters)]
            found = "" if self._search is None else self._search.text()
            return Check(False, f"has not met its cluster yet; asks {found or ', '.join(map(str, asked)) or 'nobody'}")
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
        """Register this plane's metrics.  Call it once, inside `async with`."""
        node, meter = self.node, self.node.meter
        metrics.gauge("quorum_epoch", "Epoch of the metadata quorum.", lambda: node.epoch)
        metrics.gauge("quorum_leader_id", "Node id of the leader; absent when none is known.", lambda: node.leader_id)
        metrics.gauge("quorum_is_leader", "Whether this node leads.", lambda: node.role is Role.LEADER)
        metrics.gauge(
            "quorum_is_paused", "Whether this node leads without fetches from a majority.", lambda: node.paused
        )
        metrics.gauge("quorum_high_watermark", "End of the known committed records.", lambda: node.high_watermark)
        metrics.gauge("quorum_log_end_offset", "End of this node's log.", lambda: node.log_end_offset)
        metrics.gauge("quorum_applied_offset", "End of the records applied on this node.", lambda: node.applied_offset)
        metrics.gauge(
            "quorum_requests_in_progress",
            "Requests to this node that are not answered yet.",
            lambda: node.requests_in_progress,
        )
        metrics.gauge(
            "controller_is_active",
            "Whether this node is the active controller and is not paused.",
            lambda: self.controller.active and not node.paused,
        )
        metrics.counters(
            "controller_brokers_fenced", "Brokers that this node fenced.", "reason", lambda: self.controller.fenced
        )
        metrics.counters(
            "controller_probes",
            "Attempts to connect to brokers, to learn whether their processes have ended, by answer.",
            "answer",
            lambda: self.controller.probes,
        )
        metrics.counter("quorum_appends", "Batches appended as leader.", lambda: meter.appends)
        metrics.counter("quorum_fsyncs", "Transactions of the quorum store.", lambda: meter.fsyncs)
        metrics.counter("quorum_role_changes", "Changes of role or leader.", lambda: meter.role_changes)
        metrics.counter("quorum_failed_requests", "Requests without an answer.", lambda: node.failed_requests)
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
        meter.on_commit = metrics.histogram("quorum_commit_seconds", "From append to commit.").observe
        meter.on_fsync = metrics.histogram("quorum_fsync_seconds", "One transaction of the quorum store.").observe


def readiness(checks: dict[str, Callable[[], Check]]) -> tuple[bool, dict[str, str]]:
    """Return whether all checks hold, and for each check `ok` or the reason."""
    results = dict(_results(checks))
    ready = all(result.ok for result in results.values())
    return ready, {name: "ok" if result.ok else result.detail for name, result in results.items()}


def _results(checks: dict[str, Callable[[], Check]]) -> Iterator[tuple[str, Check]]:
    for name, check in checks.items():
        yield name, check()
