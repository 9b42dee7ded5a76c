"""A quorum under attack: whole `QuorumNode`s with the active controller on them, no brokers, in virtual time.

Theory of operation.  Each node is a process on its own host that runs the production code over a simulated store and
transport: core, driver, metadata replay, active controller.  Three clients read, write and compare-and-set registers
(cluster configs, decided by the active controller like any other request).  Each client has its own host, so faults
affect its requests too.  `run.py` plays a plan: `nemesis.py` executes its faults, and `invariants.py` checks every
step.  Then all faults end.  Within a bounded time there must be a leader, a new write, and equal images everywhere; the
nodes must be quiet; and the clients' history must be linearizable.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine
from contextlib import nullcontext
from contextvars import Context
from dataclasses import dataclass, field
from itertools import count
from random import Random
from typing import Any
from uuid import UUID

from msgspec.structs import replace

from metadata.control.decision import Decision
from metadata.control.errors import Outcome
from metadata.controller.active import ActiveController
from metadata.controller.replay import MetadataReplay
from metadata.controller.service import ControllerService
from metadata.image import ClusterImage
from metadata.records import Config, ConfigScope
from quorum.core.config import RaftConfig
from quorum.core.events import Effect, Event
from quorum.core.types import Batch, Role, VoterSet
from quorum.node import QuorumNode
from quorum.ports import NotLeaderError, OutlivedError, UnreachableError
from quorum.snapshots import SnapshotPolicy
from quorumlog.errors import CorruptStoreError, FatalError
from quorumlog.runtime.clock import Sources, now_ms
from quorumlog.wire.errors import ApiError
from quorumlog_server.volunteer import Volunteer
from simulation.kernel.cpu_limit import HangError, cpu_limited
from simulation.kernel.loop import EPOCH_MS, Process, SimulatedLoop
from simulation.kernel.mishaps import reported
from simulation.kernel.network import CONTROL_PORT, Network, SimulatedTransport
from simulation.kernel.real_store import Folders
from simulation.kernel.store import Latency, QuorumDisk
from simulation.kernel.trace import Trace
from simulation.kernel.violation import Violation, causes_of
from simulation.quorum.coverage import Row
from simulation.quorum.invariants import Run, Watch
from simulation.quorum.linearizability import Operation
from simulation.quorum.plan import FIRST_OBSERVER, Plan

CLIENTS = 3
READER = "c3"
"""A client that only reads, so a leader that can no longer commit does not block it."""
KEYS = ("x", "y", "z")
TWIN = " again"
"""The suffix of a key that is written together with another."""
REQUEST_MS = 1500
LEAVE_MS = 1000
SHORT = SnapshotPolicy(log_bytes=3000, interval_ms=1000, retain_ms=0, retain_bytes=1)
STEP_BACKOFF_MAX_MS = 2000
STEADY_MS = 2000
PREFERENCE_WAIT_MAX_MS = 4000
FETCH_TIMEOUT_MS = 2000


@dataclass(eq=False)
class Host:
    """A machine: its config and disk, which outlive its processes, and the current process if there is one."""

    node_id: int
    address: str
    config: RaftConfig
    disk: QuorumDisk
    down: int = 0  # number of faults that prevent its start
    process: Process | None = None
    stop: asyncio.Event = field(default_factory=asyncio.Event)
    again: bool = False  # to be restarted with another disk
    outlived: bool = False  # its disk was refused, because the quorum was rebuilt
    run: Run | None = None
    node: QuorumNode | None = None
    replay: MetadataReplay | None = None
    controller: ActiveController | None = None

    @property
    def name(self) -> str:
        return f"n{self.node_id}"

    @property
    def ready(self) -> QuorumNode | None:
        """The node, if it is open and runs."""
        return self.node if self.process is not None else None


@dataclass(frozen=True, slots=True)
class ClientRequest:
    """A request of a client; `number` is also the value that it writes."""

    number: int
    kind: str
    key: str
    expected: str | None = None

    @property
    def value(self) -> str:
        return f"<{self.number}>"


@dataclass
class Result:
    """The result of a run.  violation: the broken invariant, or None."""

    plan: Plan
    violation: str | None = None
    events: int = 0
    steps: int = 0
    operations: int = 0
    acknowledged: int = 0
    undecided: int = 0
    virtual_s: float = 0.0
    faults: Counter[str] = field(default_factory=Counter)
    seen: Counter[str] = field(default_factory=Counter)
    transitions: Counter[Row] = field(default_factory=Counter)
    digest: str = ""
    lines: list[str] = field(default_factory=list)


class Replay(MetadataReplay):
    """The production replay, which passes every batch to the watch first."""

    watch: Watch
    run: Run

    def apply(self, batch: Batch) -> None:
        self.watch.applied(self.run, batch)
        super().apply(batch)
        if batch.control is None:
            configs = self.image.config(ConfigScope.CLUSTER, "")
            self.watch.is_whole(self.run, [(configs.get(key), configs.get(key + TWIN)) for key in KEYS])


class QuorumWorld:
    """One run of one plan.  Call `play` once."""

    def __init__(self, plan: Plan, traced: bool = False) -> None:
        self.plan = plan
        self.loop = SimulatedLoop()
        self.random = Random(plan.seed)
        self.trace = Trace(1_000_000 if traced else 0)
        self.traced = traced
        self.network = Network(self.loop, Random(self.random.getrandbits(64)), self.note)
        self.network.converts = Random(f"converts {plan.seed}").random() < 0.3
        self.broken = asyncio.Event()
        self.on_candidate: Callable[[Host], None] | None = None  # called with each new candidate
        self.faults: Counter[str] = Counter()
        self.history: list[Operation] = []
        self.unknown: list[tuple[int, Operation]] = []
        self.acknowledged = self.operations = 0
        self._serve_numbers = count()
        self._serving: dict[int, tuple[Process | None, float]] = {}
        self.watch = Watch(FETCH_TIMEOUT_MS // 3 if plan.quick else FETCH_TIMEOUT_MS, self.loop.true_time)
        self.watch.on_violation = self._break
        self._folders = Folders() if plan.real_store else None
        self.watch.seen["run with a real store"] += plan.real_store
        self.hosts: dict[int, Host] = {}
        self._add_hosts()
        self.violation: str | None = None
        network = self.network
        network.watch_request = lambda name, request: self.watch.leaves(_id_of(name), request)
        network.watch_reply = lambda name, request, reply: self.watch.answers(_id_of(name), request, reply)
        network.watch_arrival = self._arrives

    def _add_hosts(self) -> None:
        plan = self.plan
        listed = tuple((node_id, f"n{node_id}:{CONTROL_PORT}") for node_id in range(1, plan.voters + 1))
        for node_id in plan.node_ids:
            address = f"n{node_id}:{CONTROL_PORT}"
            observer = node_id >= FIRST_OBSERVER
            config = RaftConfig(
                node_id=node_id,
                address=address,
                bootstrap=tuple(at for _, at in listed) if observer else (),
                initial_voters=() if observer else listed,
                new_cluster_id="simulated",
                election_timeout_ms=300 if plan.quick else 1000,
                fetch_timeout_ms=self.watch.fetch_timeout_ms,
                request_timeout_ms=300 if plan.quick else 1000,
                voter_wait_ms=200 if plan.quick else 500,
                watermark_wait_ms=plan.watermark_wait_ms,
                fetch_max_bytes=300 if plan.small_fetches else 1 << 20,
                recent_max_bytes=0 if plan.small_fetches else 4 << 20,
                step_timeout_ms=3000,
                step_backoff_ms=100 if plan.quick else 300,
                step_backoff_max_ms=STEP_BACKOFF_MAX_MS,
                steady_ms=STEADY_MS,
                preference_wait_ms=1000,
                preference_wait_max_ms=PREFERENCE_WAIT_MAX_MS,
                reset_interval_ms=1000,
            )
            self.hosts[node_id] = Host(node_id, address, config, self.new_disk(node_id))

    def new_disk(self, node_id: int) -> QuorumDisk:
        """Return an empty disk for a node."""
        random = Random(self.random.getrandbits(64))
        disk = QuorumDisk(random) if self._folders is None else self._folders.disk(random)
        if node_id in self.plan.slow_disks:
            timeout_ms = self.watch.fetch_timeout_ms
            disk.usual = Latency(self.plan.slow_p50 * timeout_ms, self.plan.slow_p99 * timeout_ms)

        def durable(write: Any) -> None:
            assert disk.directory_id is not None
            self.watch.durable(node_id, disk.directory_id, write)

        disk.watch = durable
        disk.torn = self.watch.seen
        disk.watch_snapshot = lambda end, data: self.watch.snapshot(node_id, end, data)
        return disk

    def move(self, host: Host) -> None:
        """Give the node another address, and configure it on all nodes that start from now on."""
        name, _, port = host.address.rpartition(":")
        host.address = f"{name}:{int(port) + 1}"
        host.config = replace(host.config, address=host.address)
        for one in self.hosts.values():
            listed = tuple((node_id, self.hosts[node_id].address) for node_id, _ in one.config.initial_voters)
            known = tuple(self.hosts[node_id].address for node_id in range(1, self.plan.voters + 1))
            observer = one.node_id >= FIRST_OBSERVER
            one.config = replace(one.config, initial_voters=listed, bootstrap=known if observer else ())

    def note(self, line: str) -> None:
        self.trace.add(f"{self.loop.true_time():.6f} {line}")

    def _break(self, message: str) -> None:
        if self.violation is None and not self.watch.closed:
            self.violation = message
            self.note(f"VIOLATION {message}")
            self.broken.set()

    def _arrives(self, name: str, request: Any) -> None:
        run = self.hosts[_id_of(name)].run
        if run is not None:
            self.watch.arrives(run, request, now_ms())

    # Processes

    def start(self, node_id: int) -> None:
        """Start the node's process, unless it runs or a fault keeps it down."""
        host = self.hosts[node_id]
        if host.process is not None or host.down > 0:
            return
        self.note(f"start {host.name}")
        host.process = Process(self.loop, host.name)
        host.stop = asyncio.Event()
        host.process.start(self._main(host, host.process))

    def kill(self, node_id: int) -> None:
        """End the process as SIGKILL and a power failure would: data that was not durable is lost."""
        host = self.hosts[node_id]
        if host.process is None:
            return
        self.note(f"kill {host.name}")
        host.process.kill()
        host.disk.lose_power()
        self._ended(host)

    def _ended(self, host: Host) -> None:
        host.disk.crash()
        host.process = host.run = host.node = host.replay = host.controller = None

    async def _main(self, host: Host, process: Process) -> None:
        """Run the parts that `quorumlog_server/control_plane.py` wires together, except the node service."""
        sources = Sources.seeded(self.random.getrandbits(64), self._wall_ms)
        transport = SimulatedTransport(self.network, host.address)
        replay = Replay()
        replay.watch = self.watch
        replay.subscribe(lambda old, new, _: self._prefer(node, old, new))
        policy = SHORT if self.plan.snapshots else None
        node = QuorumNode(host.config, host.disk.store(), transport, replay, sources, policy)
        controller = ActiveController(node, replay, sources.uuid4)
        service = ControllerService(node, controller, transport)
        transport.serve_controller(service.handle)
        volunteer = Volunteer(node, service.call, host.disk.standing, sources.random)
        try:
            async with node:
                node.run_beside(controller.run(), "active controller")
                host.run = replay.run = self._watched(node, host.disk)
                replay.run.applied = node.applied_offset  # the end of the loaded snapshot
                host.node, host.replay, host.controller = node, replay, controller
                if self.plan.auto_join:
                    node.run_beside(volunteer.run(), "joining the voters")
                await host.stop.wait()
                if self.plan.auto_join and host.process is process:
                    await volunteer.leave(LEAVE_MS)
        except OutlivedError as failure:
            self._outlive(host, failure)
        except Exception as failure:
            if host.disk.has_failed and all(_is_of_a_disk(cause) for cause in causes_of(failure)):
                self.note(f"{host.name} ends: {failure}")
            else:
                self._break(f"{host.name} fails: {type(failure).__name__}: {failure}")
        if host.process is process:
            process.kill()
            self._ended(host)
        if host.again:
            host.again = False
            host.disk = self.new_disk(host.node_id)
            self.loop.call_soon(self.start, host.node_id, context=Context())

    def _outlive(self, host: Host, failure: OutlivedError) -> None:
        """Restart an observer with an empty disk, and refuse a voter, as `quorumlog_server/generations.py` does."""
        self.note(f"{host.name} ends: {failure}")
        self.watch.seen["old generation refused"] += 1
        host.outlived = True
        if not failure.was_voter:
            host.again = True

    @staticmethod
    def _prefer(node: QuorumNode, old: ClusterImage, new: ClusterImage) -> None:
        if old.preferred_controllers != new.preferred_controllers:
            node.prefer(new.preferred_controllers)

    def _watched(self, node: QuorumNode, disk: QuorumDisk) -> Run:
        core, watch = node.core, self.watch
        run = watch.started(core, disk.batches, disk.base)
        step = core.step

        def watched(event: Event, now: int) -> list[Effect]:
            stale = watch.before(run, event)
            effects = step(event, now)
            watch.stepped(run, event, effects, now, stale)
            if self.on_candidate is not None and core.role.role is Role.CANDIDATE:
                self.on_candidate(self.hosts[run.node_id])
            if self.traced:
                for effect in effects:
                    self.trace.show(f"{self.loop.true_time():.6f}   n{run.node_id} {effect}")
            return effects

        core.step = watched  # type: ignore[method-assign,assignment]
        return run

    def _wall_ms(self) -> int:
        return EPOCH_MS + int(self.loop.time() * 1000)

    # Clients

    async def serve(self, host: Host, request: ClientRequest) -> tuple[str, Any]:
        """Execute a client's request at the node, like any request for a change.

        A request that does not end in time is a violation of L6.
        """
        process = host.process
        number = next(self._serve_numbers)
        self._serving[number] = (process, self.loop.true_time())
        try:
            return await self._decided(host, request)
        finally:
            self._serving.pop(number, None)

    def unanswered(self) -> tuple[str, float] | None:
        """Return a running node and the time at which one of its calls began that is overdue by a request timeout.

        Return None if there is no such call.
        """
        for process, began in self._serving.values():
            if process is not None and process.alive and self.loop.true_time() - began > 2 * REQUEST_MS / 1000:
                return process.host, began
        return None

    async def _decided(self, host: Host, request: ClientRequest) -> tuple[str, Any]:
        controller, node = host.controller, host.node
        if controller is None or node is None:
            return "refused", None
        if request.kind == "current":
            return await self._serve_current(host, request)
        answer = await controller.execute(lambda image: _decide(image, request), REQUEST_MS)
        if isinstance(answer, Outcome):
            return ("unknown" if answer.error is ApiError.OUTCOME_UNKNOWN else "refused"), node.leader_id
        self.watch.acknowledged(request.number)
        return "done", answer[0]

    async def _serve_current(self, host: Host, request: ClientRequest) -> tuple[str, Any]:
        """Serve a read that the voters confirm, without appending a record."""
        node, replay = host.node, host.replay
        assert node is not None
        assert replay is not None
        try:
            offset = await node.confirm_read(REQUEST_MS)
            async with asyncio.timeout(REQUEST_MS / 1000):
                await replay.wait_for(offset)
        except (NotLeaderError, TimeoutError):
            return "refused", node.leader_id
        return "done", replay.image.config(ConfigScope.CLUSTER, "").get(request.key)

    async def _client(self, name: str, random: Random, stop: asyncio.Event) -> None:
        transport = SimulatedTransport(self.network, f"{name}:1")
        known: dict[str, str | None] = {}
        target = 1
        while not stop.is_set():
            await asyncio.sleep(random.uniform(0, 2 * self.plan.op_gap_s))
            key = random.choice(KEYS)
            kind = "current" if name == READER else random.choice(("read", "current", "write", "write", "cas"))
            self.operations += 1
            request = ClientRequest(self.operations, kind, key, known.get(key))
            target = await self._execute(transport, request, target, known, random)

    def burst(self, host: Host, count: int) -> None:
        """Start `count` writes at the host itself, and do not wait for them, so that a fault can lose them."""
        if host.process is None:
            return
        for _ in range(count):
            self.operations += 1
            request = ClientRequest(self.operations, "write", KEYS[self.operations % len(KEYS)])
            began = self.loop.true_time()
            self.unknown.append((request.number, Operation(request.key, "write", began, value=request.value)))
            host.process.start(self._serve_unheard(host, request))

    async def _serve_unheard(self, host: Host, request: ClientRequest) -> None:
        await self.serve(host, request)

    async def _execute(
        self,
        transport: SimulatedTransport,
        request: ClientRequest,
        target: int,
        known: dict[str, str | None],
        random: Random,
    ) -> int:
        """Execute one operation of a client.  Return the node for the next one."""
        began = self.loop.true_time()
        host = self.hosts[target]
        try:
            how, found = await transport.exchange(
                host.address,
                lambda _: self.serve(host, request),
                REQUEST_MS,
                f"{request.kind} {request.key} {request.value}",
            )
        except UnreachableError:
            how, found = "unknown", None
        if how == "refused":
            return found or random.choice(self.plan.node_ids)
        kind = "read" if request.kind == "current" else request.kind
        written = request.value if kind != "read" else None
        ended = self.loop.true_time()
        if how == "unknown":
            self.unknown.append(
                (request.number, Operation(request.key, kind, began, value=written, expected=request.expected))
            )
            return random.choice(self.plan.node_ids)
        self.note(f"{request.kind} {request.key} {request.expected} {written} = {found}")
        self.acknowledged += 1
        self.history.append(Operation(request.key, kind, began, ended, written, request.expected, found))
        if kind == "read":
            known[request.key] = found
        elif kind == "write" or found:
            known[request.key] = request.value
        return target

    # The course of a run

    def leader(self) -> Host | None:
        """Return the host of the active controller, or None."""
        found = [host for host in self.hosts.values() if host.controller is not None and host.controller.active]
        return max(found, key=lambda host: host.node.epoch if host.node else 0) if found else None

    async def until(self, condition: Callable[[], bool], text: str, timeout_s: float) -> None:
        """Wait until the condition holds, in virtual time.

        Raises:
            Violation: it does not hold in time, or an invariant was violated meanwhile.
        """
        began = self.loop.true_time()
        while not condition():
            if self.broken.is_set():
                raise Violation(self.violation)
            if self.loop.true_time() - began >= timeout_s:
                raise Violation(f"{text}: not within {timeout_s} s after the faults ended: {self._ends()}")
            await asyncio.sleep(0.02)  # of virtual time: the condition may be about any node

    def _ends(self) -> dict[str, str]:
        return {host.name: "down" if (node := host.ready) is None else _state(node) for host in self.hosts.values()}

    def converged(self) -> bool:
        """Return whether a leader exists, and every node runs and has applied the leader's whole log."""
        leader = self.leader()
        if leader is None or leader.node is None:
            return False
        end = leader.node.log_end_offset
        nodes = [host.ready for host in self.hosts.values()]
        return all(node is not None and node.applied_offset == end for node in nodes)

    def start_clients(self) -> asyncio.Event:
        """Start the clients.  They stop when the returned event is set."""
        stop = asyncio.Event()
        for number in range(1, CLIENTS + 1):
            name = f"c{number}"
            seed = Random(self.random.getrandbits(64))
            Process(self.loop, name).start(self._client(name, seed, stop))
        return stop

    def may_move(self, host: Host) -> bool:
        """Return whether every disk has the current addresses of all other voters."""
        return not any(self.misplaced(one.disk.state.voters) - {host.node_id} for one in self.hosts.values())

    def misplaced(self, voters: VoterSet) -> set[int]:
        """Return the voters that still have their disks and whose address differs from the one in the set."""
        present = self.present_disks()
        return {
            voter.key.node_id
            for voter in voters
            if (voter.key.node_id, voter.key.directory_id) in present
            and voter.address != self.hosts[voter.key.node_id].address
        }

    def majority_is_left(self) -> bool:
        """Return whether a majority of the current voters still have their disks; voters may have been removed."""
        voters = self.watch.voters()
        left = [one for one in voters if (one.node_id, one.directory_id) in self.present_disks()]
        return not voters or len(left) > len(voters) // 2

    def present_disks(self) -> set[tuple[int, UUID | None]]:
        return {(host.node_id, host.disk.directory_id) for host in self.hosts.values()}

    undecided = 0

    def play(self, course: Course) -> Result:
        """Run the plan to its end, or to the first violation."""
        try:
            with (
                reported(self.loop, self._break),
                nullcontext() if self._folders is None else self._folders.in_use(),
                cpu_limited(self.loop),
            ):
                self.loop.run_until_complete(Process(self.loop, "world").start(self._guarded(course)))
        except HangError as hang:
            self._break(f"{hang}")
        except AssertionError as error:
            self._break(f"{type(error).__name__}: {error}")
        finally:
            self.watch.closed = True
            self.loop.bury()
            self.loop.close()
            if self._folders is not None:
                self._folders.remove()
        return Result(
            self.plan,
            self.violation,
            self.loop.events,
            self.watch.steps,
            self.operations,
            self.acknowledged,
            self.undecided,
            self.loop.true_time(),
            self.faults,
            self.watch.seen,
            self.watch.transitions,
            self.trace.digest,
            self.trace.lines,
        )

    async def _guarded(self, course: Course) -> None:
        play = asyncio.get_running_loop().create_task(course(self))
        broken = asyncio.get_running_loop().create_task(self._wait_broken())
        await asyncio.wait({play, broken}, return_when=asyncio.FIRST_COMPLETED)
        if play.done() and (error := play.exception()) is not None:
            self._break(f"{error}" if isinstance(error, Violation) else f"{type(error).__name__}: {error}")

    async def _wait_broken(self) -> None:
        await self.broken.wait()


def _decide(image: ClusterImage, request: ClientRequest) -> Decision[tuple[Any]]:
    """Execute an operation on a register.  A read also appends a record, which makes it current under any leader."""
    value = image.config(ConfigScope.CLUSTER, "").get(request.key)
    sets = request.kind == "write" or (request.kind == "cas" and value == request.expected)
    keys = (request.key, request.key + TWIN) if sets else ("mark",)
    found: Any = value if request.kind == "read" else sets
    return Decision((found,), tuple(Config(ConfigScope.CLUSTER, "", key, request.value) for key in keys))


def _is_of_a_disk(cause: BaseException) -> bool:
    return isinstance(cause, FatalError) and not isinstance(cause, CorruptStoreError)


def _state(node: QuorumNode) -> str:
    applied = f"applied {node.applied_offset} of {node.log_end_offset}"
    return f"{node.role.value} in epoch {node.epoch} of {node.leader_id}, {applied}"


def _id_of(name: str) -> int:
    return int(name[1:])


Course = Callable[[QuorumWorld], Coroutine[Any, Any, None]]
"""The steps of a run, from its first process to its last check."""
