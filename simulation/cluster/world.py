"""A whole cluster under attack: voters and brokers that run the production processes, clients, an administrator.

Theory of operation.  `World` (`nodes.py`) runs the nodes as in production, but with shorter timeouts: work that takes a
cluster half a minute takes two seconds of virtual time.  `run.py` plays a plan on them: `faults.py` executes faults and
the administrator's requests, and `invariants.py` checks every process.  Then all faults end.  `aftermath.py` checks
that the cluster recovers in time, and reads back every acknowledged record.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager, nullcontext, suppress
from contextvars import Context
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import Any
from unittest.mock import patch
from uuid import UUID

from msgspec.structs import replace

from broker.log.state import CLEAN_EPOCH
from broker.replica.limits import ReplicaLimits
from broker.server.process import BrokerProcess
from metadata.controller.fencing import Fencing
from metadata.controller.sessions import Session
from metadata.image import PartitionImage
from quorum.ports import OutlivedError
from quorumlog.errors import CorruptStoreError, FatalError, QuorumlogError
from quorumlog_server.control_plane import ControlPlane
from simulation.cluster.history import Mark
from simulation.cluster.invariants import ClusterWatch
from simulation.cluster.metadata import Spot
from simulation.cluster.nodes import Host, World
from simulation.cluster.plan import LEDGER, LETTERS, QUEUE, RESULTS, STATE_TOPICS, ClusterPlan
from simulation.cluster.retention import Kept, Retention, StrayWatch
from simulation.kernel import real_store
from simulation.kernel.cpu_limit import HangError, cpu_limited
from simulation.kernel.loop import BusyError, Process
from simulation.kernel.mishaps import described, reported
from simulation.kernel.real_disk import Folders
from simulation.kernel.store import QuorumDisk
from simulation.kernel.trace import Trace
from simulation.kernel.violation import Violation, causes_of

QUICK: dict[str, Any] = {
    "quorum_election_timeout_ms": 300,
    "quorum_fetch_timeout_ms": 700,
    "broker_heartbeat_interval_ms": 300,
    "broker_session_timeout_ms": 1500,
    "replica_lag_time_max_ms": 1500,
    "shutdown_timeout_ms": 4000,
    "quorum_preference_wait_ms": 1000,
}
LIMITS = ReplicaLimits(
    fetcher_wait_ms=500,
    fetcher_timeout_ms=1000,
    fetcher_backoff_min_ms=30,
    fetcher_backoff_max_ms=300,
    checkpoint_interval_ms=700,
)
SMALL_FETCH_BYTES = 200
READY_S = 30.0
EVENTS_MAX = 1_500_000
"""Far above the 25,000 to 40,000 events of an average run.  A run that waits for the session timeout of vanished
members, while workers of a queue continue, has had 1,026,052 (seed 730041226)."""
CLOCK_RATE_MAX = 2.0
"""The highest rate of a clock, and the inverse of the lowest; see the fault `skew`."""


@dataclass
class ClusterResult:
    """The result of a run.  violation: the broken invariant, or None."""

    plan: ClusterPlan
    violation: str | None = None
    events: int = 0
    checks: int = 0
    written: int = 0
    acknowledged: int = 0
    consumed: int = 0
    virtual_s: float = 0.0
    faults: Counter[str] = field(default_factory=Counter)
    seen: Counter[str] = field(default_factory=Counter)
    digest: str = ""
    lines: list[str] = field(default_factory=list)


class ClusterWorld(World):
    """One run of one plan.  Call `play` once."""

    def __init__(self, plan: ClusterPlan, traced: bool = False) -> None:
        settings = {**QUICK, "replica_lag_max_bytes": plan.lag_max_bytes}
        if plan.snapshots:
            settings |= {"metadata_snapshot_log_bytes": 2000, "metadata_snapshot_interval_ms": 1000}
        if plan.upkeep is not None:
            settings |= {
                "log_cleaner_backoff_ms": plan.upkeep.cleaner_ms,
                "log_cleaner_memory": plan.upkeep.map_memory,
            }
        limits = limits_of(plan)
        self._stores = real_store.Folders() if plan.real_store else None
        super().__init__(
            plan.seed,
            plan.voters,
            plan.brokers,
            spares=plan.spares,
            directories=plan.directories,
            settings=settings,
            limits=limits,
            torn=True,
            traced=traced,
        )
        self.plan = plan
        self.network.converts = plan.converts
        self.loop.events_max = EVENTS_MAX
        self.trace = Trace(1_000_000 if traced else 0)
        self.faults: Counter[str] = Counter()
        self.watch = watch_of(plan, self.loop.true_time)
        self.watch.evidence.on_violation = self._report_violation
        self.watch.evidence.note = self.show if traced else None
        self.healed = False
        self.late_batch: Callable[[str, str, Spot], float | None] = lambda producer, transactional_id, spot: None
        """Returns a transactional producer's timeout for its next batch; None if that batch is not late.  See
        `late_batches.py`."""
        self.violation: str | None = None
        self.broken = asyncio.Event()
        self.written = self.acknowledged = self.consumed = 0
        self.by_leader_only: list[tuple[Spot, int, tuple[Mark, ...]]] = []
        self.promised_offset = 0
        """The highest end of the metadata log that was reported to an administrator."""
        self.promised_topics: set[UUID] = set()
        """The topics whose creation was acknowledged to the administrator."""
        strays_s = limits.strays_kept_ms / 1000
        self._strays = StrayWatch(self.watch.check, self.loop.true_time, strays_s / CLOCK_RATE_MAX)
        self._folders = Folders() if plan.real_files else None
        for host in self.hosts.values():
            if self._folders is not None:
                host.disks = tuple([self._folders.disk(self.fresh_random(), host.config.node_id) for _ in host.disks])
            self.at_usual_speed(host)
            for disk in host.disks:
                self._strays.attach(disk)
        self.generation = 0
        """The number of times that the quorum was rebuilt."""
        self.refused: set[str] = set()
        """Hosts that were refused because their disk belongs to a voter of an earlier generation."""
        self.is_expected: Callable[[Host, QuorumlogError], bool] = lambda host, failure: False
        """Returns whether a process is expected to fail in this way.  `Releases` sets it."""

    def _report_violation(self, message: str) -> None:
        if self.violation is None and not self.watch.evidence.closed:
            self.violation = message
            self.note(f"VIOLATION {message}")
            self.broken.set()

    def new_quorum_disk(self) -> QuorumDisk:
        return super().new_quorum_disk() if self._stores is None else self._stores.disk(self.fresh_random())

    # Processes

    def opening(self, host: Host, plane: ControlPlane, broker: BrokerProcess | None) -> None:
        disk = host.quorum_disk
        generation = disk.state.generation if disk.log_end > 0 else None
        self.watch.opening(host.config.node_id, plane, broker, generation)
        if broker is not None:
            broker.role.logs.events.directory_failed.subscribe(lambda where, error: self._gave_up(host, where, error))

    def _gave_up(self, host: Host, directory_id: UUID, error: object) -> None:
        """L7: a broker gives up only a disk that has failed."""
        has_failed = any(disk.is_broken for disk in host.disks if disk.directory_id == directory_id)
        self.watch.check(has_failed, lambda: f"L7: {host.name} gives up {directory_id}, whose disk works: {error}")

    def bring_up(self, node_id: int) -> None:
        """Start the node's process, unless it runs or a fault keeps it down."""
        host = self.hosts[node_id]
        if host.process is not None or host.down > 0:
            return
        for disk in host.disks:
            disk.repaired()
        self.start(node_id)

    def bring_down(self, node_id: int, *, power: bool = False) -> None:
        """End the process as SIGKILL does; with `power`, as a power failure does."""
        host = self.hosts[node_id]
        if host.process is None:
            return
        self.note(f"{'power of' if power else 'kill'} {host.name}")
        host.process.kill(power=power)
        self._ended(host, power=power)

    def _ended(self, host: Host, *, power: bool) -> None:
        clean = self._folders is None and all(disk.facts.load(CLEAN_EPOCH) for disk in host.disks)
        self.watch.ended(host.config.node_id, clean=clean, power=power)
        host.process = host.plane = host.broker = None
        host.quorum_disk.crash()
        for disk in host.disks:
            if power:
                disk.crash()
            else:
                disk.process_ends()

    def at_usual_speed(self, host: Host) -> None:
        """Reset the speed of the host's disks to their speed without faults in this run.

        At the end all disks are fast.  A follower that syncs more slowly than producers write never has all committed
        records, so it could not return to the ISR before the producers pause.
        """
        slow = {} if self.healed else dict(self.plan.slow_disks)
        sync_ms = (0.2, float(slow.get(host.config.node_id, 2)))
        host.quorum_disk.fsync_ms = sync_ms
        for disk in host.disks:
            disk.sync_ms = sync_ms

    def wipe(self, host: Host, *, all_of_them: bool) -> None:
        """Replace one disk, or all disks, of a broker that is down by empty ones."""
        lost = host.disks if all_of_them else host.disks[:1]
        kept = [disk for disk in host.disks if disk not in lost]
        for disk in lost:
            self.watch.disks.wiped(host.config.node_id, disk.directory_id)
        host.disks = tuple([self.new_disk() if disk in lost else disk for disk in host.disks])
        for disk in host.disks:
            if disk not in kept:
                self._strays.attach(disk)
        if all_of_them:
            host.quorum_disk = self.new_quorum_disk()
        self.at_usual_speed(host)

    async def _main(self, host: Host) -> None:
        process = host.process
        await super()._main(host)
        failure, host.failure = host.failure, None
        causes = [] if failure is None else causes_of(failure)
        has_bad_disk = host.quorum_disk.has_failed or any(disk.is_broken for disk in host.disks)
        foreseen = all(
            isinstance(cause, Violation)
            or (has_bad_disk and isinstance(cause, FatalError) and not isinstance(cause, CorruptStoreError))
            for cause in causes
        )
        is_known = isinstance(failure, QuorumlogError) and self.is_expected(host, failure)
        is_outlived = self._is_outlived(host, failure)
        if failure is not None and not (is_known or is_outlived or foreseen):
            self._report_violation(f"{host.name} fails: {described(failure)}")
        if process is not None and host.process is process:
            process.kill()
            self._ended(host, power=False)
            if self.healed or (is_outlived and host.name not in self.refused):  # the fault has just ended
                self.loop.call_soon(self.bring_up, host.config.node_id, context=Context())

    def _is_outlived(self, host: Host, failure: BaseException | None) -> bool:
        """Return whether the node ended because the quorum was rebuilt.

        A broker then restarts with an empty metadata log, as `through_generations` does.
        """
        if not isinstance(failure, OutlivedError) or self.generation == 0:
            return False
        outcome = "voter of an earlier generation refused" if failure.was_voter else "followed the rebuilt quorum"
        self.watch.seen[outcome] += 1
        if failure.was_voter:
            self.refused.add(host.name)
        else:
            host.quorum_disk = self.new_quorum_disk()
            self.at_usual_speed(host)
        return True

    def start_client(self, name: str, main: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run a client on its own host.  An exception of the client is a violation."""
        return self.start_process(name, main)[1]

    def start_process(self, name: str, main: Coroutine[Any, Any, None]) -> tuple[Process, asyncio.Task[None]]:
        """Run a client; return its process and its task.  If the caller kills the process, the task never ends."""

        async def guarded() -> None:
            try:
                await main
            except Violation:
                pass  # the watch has already reported it
            except Exception as error:
                self._report_violation(f"client {name} fails: {described(error)}")

        process = Process(self.loop, name)
        return process, process.start(guarded())

    def fresh_random(self) -> Random:
        return Random(self.random.getrandbits(64))

    # Queries

    def present_disks(self) -> set[tuple[int, UUID | None]]:
        """Return the quorum's disks, by node and directory."""
        return {(host.config.node_id, host.quorum_disk.directory_id) for host in self.hosts.values()}

    @property
    def host_names(self) -> list[str]:
        """The hosts of nodes and clients."""
        return [*(host.name for host in self.hosts.values()), *self.plan.client_hosts]

    def partition_at(self, amount: float) -> PartitionImage | None:
        """Return one of the plan's partitions, chosen by `amount`."""
        image = self.watch.metadata.image
        partitions = [
            one for topic in self.plan.topics if (found := image.topic(topic.name)) for one in found.partitions
        ]
        return partitions[int(amount % 1 * len(partitions))] if partitions else None

    def holder(self, leads: bool, amount: float) -> int:
        """Return a broker that leads, or follows, a partition that is chosen by `amount`.

        About half of the amounts choose a partition of a topic of coordinators, of transactions or of the queue, if one
        exists.
        """
        partition = self.partition_at(amount)
        found = map(self.watch.metadata.image.topic, (*STATE_TOPICS, LEDGER, RESULTS, QUEUE, LETTERS))
        others = [one for topic in found if topic is not None for one in topic.partitions]
        if others and int(amount * 100) % 2:
            partition = others[int(amount * 1000) % len(others)]
        fallback = self.plan.broker_ids[int(amount % 1 * self.plan.brokers)]
        if partition is None or (leads and partition.leader < 0):
            return fallback
        if leads:
            return partition.leader
        return next((each for each in partition.replica_ids if each != partition.leader), fallback)

    async def wait(self, condition: Callable[[], bool], text: str, timeout_s: float, why: Callable[[], Any]) -> None:
        """Wait until the condition holds.

        Raises:
            Violation: it does not hold in time.
        """
        began = self.loop.true_time()
        while not condition():
            if self.broken.is_set():
                raise Violation(self.violation)
            if self.loop.true_time() - began >= timeout_s:
                raise Violation(f"{text}: not within {timeout_s} s: {why()}")
            await asyncio.sleep(0.02)  # of virtual time: the condition may be about any node
        self.note(f"reached: {text}")

    # The course of a run

    def play(self, course: Course) -> ClusterResult:
        """Run the plan to its end, or to the first violation."""
        silenced = logging.root.manager.disable
        logging.disable()
        try:
            with (
                reported(self.loop, self._report_violation),
                early_fencing_watched(self),
                nullcontext() if self._stores is None else self._stores.in_use(),
                cpu_limited(self.loop),
            ):
                self.loop.run_until_complete(Process(self.loop, "admin").start(self._guarded(course)))
        except BusyError as error:
            self._report_violation(f"L6: {error}")
        except HangError as hang:
            self._report_violation(f"{hang}")
        except AssertionError as error:
            self._report_violation(described(error))
        finally:
            logging.disable(silenced)
            self.watch.evidence.closed = True
            self.loop.bury()
            self.loop.close()
            if self._folders is not None:
                self._folders.remove()
            if self._stores is not None:
                self._stores.remove()
        return ClusterResult(
            self.plan,
            self.violation,
            self.loop.events,
            self.watch.evidence.checks,
            self.written,
            self.acknowledged,
            self.consumed,
            self.loop.true_time(),
            self.faults,
            self.watch.seen,
            self.trace.digest,
            self.trace.lines,
        )

    async def _guarded(self, course: Course) -> None:
        play = asyncio.get_running_loop().create_task(course(self))
        broken = asyncio.get_running_loop().create_task(self.broken.wait())
        await asyncio.wait({play, broken}, return_when=asyncio.FIRST_COMPLETED)
        if play.done() and (error := play.exception()) is not None:
            self._report_violation(f"{error}" if isinstance(error, Violation) else described(error))
        with suppress(asyncio.CancelledError):
            broken.cancel()


def limits_of(plan: ClusterPlan) -> ReplicaLimits:
    """Return the limits of the brokers of a run: those of production, but for shorter intervals."""
    limits = replace(LIMITS, fetch_partition_bytes=SMALL_FETCH_BYTES) if plan.small_fetches else LIMITS
    if plan.parked_produces:
        limits = replace(limits, parked_produces=plan.parked_produces)
    if (upkeep := plan.upkeep) is None:
        return limits
    return replace(
        limits,
        maintenance_interval_ms=round(upkeep.interval_s * 1000),
        strays_kept_ms=upkeep.strays_ms,
        log_checkpoint_bytes=upkeep.checkpoint_bytes,
        segment_size_max=upkeep.segment_bytes,
        segment_age_max_ms=upkeep.segment_ms,
        index_interval_bytes=upkeep.index_bytes,
        producer_expiration_ms=upkeep.producers_ms,
    )


def watch_of(plan: ClusterPlan, true_time: Callable[[], float]) -> ClusterWatch:
    """Return the checks of a run.  They have already counted the kinds of runs to which this one belongs."""
    retention = {
        topic.name: Kept(topic.retention_ms, topic.retention_bytes)
        for topic in plan.topics
        if topic.compaction is None or topic.compaction.deletes
    }
    exact_clocks = all(fault.kind not in ("jump", "skew") for fault in plan.faults)
    watch = ClusterWatch(
        frozenset(topic.name for topic in plan.topics if topic.unclean),
        true_time,
        plan.forgets_producers_s / CLOCK_RATE_MAX,
        Retention(retention, exact_clocks),
        {name: partial(one.records, exact_clocks, CLOCK_RATE_MAX) for name, one in plan.compacted.items()},
    )
    watch.metadata.caching = frozenset(topic.name for topic in plan.topics if topic.caching)
    recompressed = any(topic.compression not in ("producer", topic.codec.name.lower()) for topic in plan.topics)
    watch.seen["run with write.caching"] += bool(watch.metadata.caching)
    watch.seen["run with a compacted topic"] += any(topic.compaction for topic in plan.topics)
    watch.seen["run with recompression"] += recompressed
    watch.seen["run with a real quorum store"] += plan.real_store
    watch.seen["run with an older release"] += bool(plan.older_releases)
    return watch


@contextmanager
def early_fencing_watched(world: ClusterWorld) -> Iterator[None]:
    """Check that the process of a broker has ended when the broker is fenced for that reason."""

    original = Fencing.process_ended

    def process_ended(self: Fencing, broker_id: int, session: Session, heard_at: float) -> None:
        broker = world.hosts[broker_id].broker
        lives = broker is not None and broker._is_open and broker.role.context.cluster.own_epoch == session.broker_epoch
        world.watch.seen["process found to have ended"] += 1
        world.watch.check(not lives, lambda: f"broker {broker_id} serves, but its process is treated as ended")
        original(self, broker_id, session, heard_at)

    with patch.object(Fencing, "process_ended", process_ended):
        yield


Course = Callable[[ClusterWorld], Coroutine[Any, Any, None]]
"""The steps of a run, from its first process to its last check."""
