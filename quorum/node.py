"""`QuorumNode`: runs the Raft core of this process.

Theory of operation.  One task owns the core.  It takes each event that has arrived (request, reply, durable write, log
read), steps the core with it, and executes the effects in the given order.  When no event waits and the core's deadline
has passed, it steps a tick.  Executing an effect never waits.  Work that waits has tasks of its own:

- writing and reading the log (`log_disk.py`): many writes share an fsync, and `Written` is an event;
- requests of this node and of other nodes (`exchange.py`): a message with `after` is held until that write is durable;
- questions to the core (`questions.py`), snapshots (`snapshots.py`);
- applying committed batches to the state machine (`applier.py`).

`node_properties.py` has the properties that only read configuration and core, and `node_metrics.py` the measurements
for metrics.

`append` steps the core immediately, in the caller's turn of the event loop.  No other task can run in between, so facts
that the caller has checked stay true.  `append` must not be called while the core is stepped or a batch is applied.

A failure in any of these tasks, or in a step, ends the node: `async with` raises it.  After a failed write the durable
state is unknown, so the node does not continue.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Coroutine, Sequence
from types import TracebackType
from typing import Any, NamedTuple, assert_never

from msgspec.structs import replace

from quorum.applier import Applier, StateMachine
from quorum.core.config import RaftConfig
from quorum.core.core import RaftCore
from quorum.core.events import (
    AdvanceHighWatermark,
    Anomaly,
    ControlApplied,
    Effect,
    Event,
    Joined,
    LoadSnapshot,
    NodeRefused,
    Prefer,
    ProposalAppended,
    ProposalRefused,
    Propose,
    ReadConfirmed,
    ReadLog,
    ReadRefused,
    ReadSnapshot,
    ReceiveSnapshot,
    ResetConnections,
    Resign,
    RoleChanged,
    SendReply,
    SendRequest,
    StoreSnapshotPart,
    Tick,
    Transferred,
    VoterChange,
    VoterChangeResult,
    VotersChanged,
    Write,
    Written,
)
from quorum.core.messages import TOOL, DescribeQuorum, FetchReply, Reply, Request
from quorum.core.roles import Leader
from quorum.core.types import Batch, Role
from quorum.exchange import Exchange
from quorum.log_disk import LogDisk
from quorum.node_metrics import NodeMeter
from quorum.node_properties import NodeProperties
from quorum.ports import (
    CannotAppendNowError,
    LeadershipLostError,
    NotLeaderError,
    OutlivedError,
    QuorumStore,
    Transport,
    UnreachableError,
)
from quorum.questions import Inquirer
from quorum.snapshots import SnapshotPolicy, Snapshotter
from quorum.waiters import ChangeSignal, OffsetWaiters
from quorumlog.errors import ConfigError, FatalError
from quorumlog.runtime.clock import Sources, now_ms
from quorumlog.runtime.logging import get_logger

APPEND_MAX_BYTES = 8 << 20
STALL_MS = 200
"""A tick that is later than this means that the process was stalled.  Messages that have arrived go first."""

logger = get_logger("quorum")


class _Opened(NamedTuple):
    """The parts of a node that exist only once the store is open."""

    core: RaftCore
    disk: LogDisk
    applier: Applier


class QuorumNode(NodeProperties):
    """One node of the quorum, as an async context manager.

    Entering opens the store, serves and takes part in the quorum; leaving stops everything in order.
    meter: measures commits and transactions, for metrics.
    """

    def __init__(
        self,
        config: RaftConfig,
        store: QuorumStore,
        transport: Transport,
        machine: StateMachine,
        sources: Sources,
        snapshots: SnapshotPolicy | None = None,
    ) -> None:
        super().__init__(config)
        self._store = store
        self._transport = transport
        self._machine = machine
        self._sources = sources
        self._snapshots = Snapshotter(store, machine, sources, self._post, snapshots or SnapshotPolicy())
        self._opened: _Opened | None = None
        self._group = asyncio.TaskGroup()
        self._main: list[asyncio.Task[None]] = []
        self._stopping = False
        self._failure: BaseException | None = None

        self._events: deque[Event] = deque()
        self._wake = asyncio.Event()
        self._stepping = False
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ms = 0
        self._outcome: ProposalAppended | ProposalRefused | None = None

        self._exchange = Exchange(transport, self._post, self._group.create_task, self._heard)
        self._reset: asyncio.Task[None] | None = None
        self._inquirer = Inquirer(self._post, lambda: self._is_ending, lambda: self.core.history)

        self._high_watermark = 0
        self._commit_waiters = OffsetWaiters()
        self._joined = asyncio.Event()
        self._was_paused = False
        self._resumed_at = 0.0

        self._changed = ChangeSignal()
        self._leader_watermark: tuple[int, int] | None = None  # (epoch, the leader's high watermark), as last received
        self._caught_up_at: float | None = None

        self.meter = NodeMeter()

    # Life

    async def __aenter__(self) -> QuorumNode:
        """Open the store, build the core from it, and serve.

        Raises:
            ConfigError: the directory, the port or the configuration cannot be used.
            FatalError: the store is damaged or the disk fails.
        """
        try:
            stored = await self._store.open(self._config.node_id, self._config.cluster_id)
        except BaseException:
            await self._transport.close()
            raise
        try:
            stored = await self._snapshots.restore(stored)
            wall_offset_ms = self._sources.wall_ms() - now_ms()
            cluster_id = self._config.cluster_id or stored.formatted_for
            config = replace(self._config, cluster_id=cluster_id, wall_offset_ms=wall_offset_ms)
            core = RaftCore(config, stored, self._sources.random, now_ms())
            if not (core.met or config.founders or config.bootstrap):
                raise ConfigError(
                    f"node {config.node_id} has never joined its cluster, and no node of the cluster is configured",
                    next_step="give --join HOST:PORT of any node, --initial-voters, or --standalone",
                )
            disk = LogDisk(self._store, stored.log_end, self._post, self._linger_ms, self.meter.fsynced)
            applier = Applier(core, disk, self._machine, self._snapshots, self._changed.notify)
            self._opened = _Opened(core, disk, applier)
            self._transport.serve(self.handle)
            await self._transport.start()
        except BaseException:
            await self._close()
            raise
        await self._group.__aenter__()
        self._main = [
            self._group.create_task(work(), name=f"quorum {work.__qualname__}")
            for work in (self._run_core, disk.run_writer, disk.run_reader, applier.run)
        ]
        self._main += [
            self._group.create_task(work, name=name) for name, work in self._snapshots.tasks(applier.snapshot_base)
        ]
        self._post(Tick())  # the first step also returns the effects that the start needs
        return self

    def run_beside(self, work: Coroutine[None, None, None], name: str) -> None:
        """Run `work` until the node stops, which cancels it.  If it fails, the node fails."""
        self._main.append(self._group.create_task(work, name=name))

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Give up leadership if the body ended without an error, then stop everything.

        Raises the error that made the node fail.
        """
        try:
            if error is None and self._failure is None:
                await self.resign("this node is stopping")
        except asyncio.CancelledError as cancelled:
            kind, error, trace = type(cancelled), cancelled, cancelled.__traceback__
        self._stopping = True
        for task in self._main:
            task.cancel()
        self._exchange.stop()
        self._inquirer.fail(NotLeaderError("this node is stopping"))
        leave_files = False
        try:
            await self._group.__aexit__(kind, error, trace)
        except BaseExceptionGroup as failures:
            leave_files = failures.subgroup(FatalError) is not None
            if len(failures.exceptions) == 1:
                raise failures.exceptions[0] from None
            raise
        finally:
            if self._timer is not None:
                self._timer.cancel()
            stopping = LeadershipLostError("this node is stopping")
            self._commit_waiters.fail(stopping)
            self._applier.fail(stopping)
            await self._close(leave_files)

    async def _close(self, leave_files: bool = False) -> None:
        try:
            await self._transport.close()
        finally:
            await self._store.close(leave_files=leave_files)

    # The core's task

    def _post(self, event: Event) -> None:
        self._events.append(event)
        self._wake.set()

    async def _run_core(self) -> None:
        core = self.core
        while True:
            await self._wake.wait()
            self._wake.clear()
            if self._failure is not None:
                raise self._failure
            for _ in range(len(self._events)):
                event = self._events.popleft()
                if isinstance(event, Written):
                    self._release(event.write_id)
                self._step(event)
            deadline = core.deadline_ms
            if now_ms() >= deadline and not self._events:
                self._step(Tick())
                deadline = core.deadline_ms
            if self._events:
                self._wake.set()
                await asyncio.sleep(0)
                deadline = core.deadline_ms
            self._arm(deadline)

    def _step(self, event: Event) -> None:
        assert not self._stepping, f"stepped with {event} while being stepped"
        self._stepping = True
        try:
            for effect in self.core.step(event, now_ms()):
                self._execute(effect)
            self._note_pause()
        except BaseException as failure:
            self._fail(failure)
            raise
        finally:
            self._stepping = False

    def _note_pause(self) -> None:
        """Log when a pause begins and ends, since no effect reports it, and remember when it ended."""
        if self.paused == self._was_paused:
            return
        self._was_paused = self.paused
        if self.paused:
            logger.warning(
                "paused: no majority of the voters fetches from this leader, so it decides nothing",
                epoch=self.epoch,
                next="make sure that a majority of the voters runs and reaches this node",
            )
            return
        self._resumed_at = asyncio.get_running_loop().time()
        if self.role is Role.LEADER:
            logger.info("the pause is over: a majority of the voters fetches again", epoch=self.epoch)

    def _fail(self, failure: BaseException) -> None:
        """Remember the first failure of any task, so that the core's task raises it."""
        if self._failure is None:
            self._failure = failure
            self._wake.set()

    def _arm(self, deadline: int) -> None:
        """Wake the core's task at the core's deadline.  An earlier timer stays: when it fires, it sets a new timer."""
        if self._timer is not None:
            if self._timer_ms <= deadline:
                return
            self._timer.cancel()
        self._timer_ms = deadline
        self._timer = asyncio.get_running_loop().call_at((deadline + 1) / 1000, self._on_timer, deadline)

    def _on_timer(self, due_ms: int) -> None:
        self._timer = None
        late = now_ms() - due_ms
        if late > STALL_MS and self.core.deadline_ms <= now_ms():
            # The process was stalled.  Its sockets are full of messages that must precede the tick, and gRPC needs a
            # moment to deliver them.
            logger.warning("the process was stalled", late_ms=late)
            resume = asyncio.get_running_loop().time() + STALL_MS / 4000
            self._timer_ms = int(resume * 1000)
            self._timer = asyncio.get_running_loop().call_at(resume, self._on_timer, self._timer_ms)
            return
        self._wake.set()

    def _execute(self, effect: Effect) -> None:
        match effect:
            case Write() | ReadLog():
                self._disk.submit(effect)
            case SendRequest() | SendReply():
                self._exchange.submit(effect)
            case ProposalAppended() | ProposalRefused():
                self._outcome = effect
            case AdvanceHighWatermark(offset):
                self._on_high_watermark(offset)
            case RoleChanged():
                self._on_role(effect)
            case ControlApplied(record):
                logger.debug("control record", record=repr(record))
            case Joined(cluster_id, replaced):
                logger.info(
                    "joined",
                    cluster_id=cluster_id,
                    node_id=self.node_id,
                    directory_id=self.directory_id,
                    part="voter" if self.core.is_voter else "observer",
                )
                if replaced is not None:
                    address = self._config.address
                    logger.warning(
                        "a voter of this id has another disk; this node takes part as an observer",
                        voter=str(replaced),
                        next=f"if that disk is lost: kctl add-voter {self.node_id}@{address} --replace; "
                        "if that voter still runs: give this node another id",
                    )
                self._joined.set()
                self._changed.notify()
            case NodeRefused(message, newer_generation):
                if newer_generation is not None:
                    core = self.core
                    raise OutlivedError(message, core.generation, newer_generation, core.log.end, core.is_voter)
                raise ConfigError(message)
            case VotersChanged() | Transferred() | ReadConfirmed() | ReadRefused():
                self._inquirer.answer(effect)
            case Anomaly(message):
                logger.warning("unexpected event", node_id=self.node_id, what=message)
            case ResetConnections():
                self._reset_connections()
            case ReadSnapshot() | ReceiveSnapshot() | StoreSnapshotPart() | LoadSnapshot():
                self._snapshots.submit(effect)
            case _:
                assert_never(effect)

    # Messages and the disk

    def _release(self, write_id: int) -> None:
        """Send the messages that waited for write `write_id` or an earlier write, because these are durable now."""
        self._disk.written(write_id)
        self._exchange.release(write_id)

    def _heard(self, reply: FetchReply) -> None:
        self._leader_watermark = (reply.known.epoch, reply.high_watermark)
        self._changed.notify()

    def _linger_ms(self) -> int:
        return self._config.append_linger_ms if self.role is Role.LEADER else 0

    async def handle(self, request: Request) -> Reply:
        """Return the reply to a request of another node.

        Raises:
            UnreachableError: this node is stopping, has too many requests in progress, or did not answer in time.
        """
        if isinstance(request, DescribeQuorum) and request.sender == TOOL:
            return self.describe()
        if self._is_ending:
            raise UnreachableError("this node is stopping")
        return await self._exchange.handle(request)

    # History, for tools

    async def read_committed(self, start: int, max_bytes: int) -> tuple[Batch, ...]:
        """Return committed batches from the batch that holds `start` on: about `max_bytes`, but at least one batch.

        The result is empty if `start` is not below the high watermark, or no longer in the log.
        """
        if not self.log_start <= start < self._high_watermark:
            return ()
        batches = await self._disk.read(start, self._high_watermark, max_bytes)
        return batches if batches and batches[0].base_offset <= start < batches[0].end_offset else ()

    async def state_below(self, offset: int) -> tuple[int, Any] | None:
        """Return (end, state) of the newest intact snapshot that ends at or below `offset`, if one exists."""
        return await self._snapshots.state_below(offset)

    # Committed records

    def _on_high_watermark(self, offset: int) -> None:
        assert offset > self._high_watermark, f"high watermark {self._high_watermark} -> {offset}"
        self._high_watermark = offset
        self.meter.committed(offset)
        self._commit_waiters.complete(offset)
        self._applier.advance(offset)

    def _on_role(self, change: RoleChanged) -> None:
        is_leader = change.role is Role.LEADER
        logger.info(
            "role",
            node_id=self.node_id,
            role=change.role.value,
            epoch=change.epoch,
            leader_id=change.leader_id,
            reason=change.reason,
        )
        self.meter.role_changed()
        self._commit_waiters.fail(LeadershipLostError(f"{change.role.value} in epoch {change.epoch}: {change.reason}"))
        if change.role is not Role.RESIGNED:
            self._exchange.end_farewells()
        self._machine.leadership(change.epoch, change.leader_id, is_leader)
        self._changed.notify()

    # For the state machine's owner

    def append(self, epoch: int, payload: bytes, count: int) -> int:
        """Append a batch of `count` records and return its base offset.  It is not durable and not committed yet.

        Raises:
            NotLeaderError: this node does not lead `epoch`, or no longer leads it.
            CannotAppendNowError: it leads `epoch`, but is paused, hands over, or its disk is too far behind.
        """
        assert not self._applier.applying, "append while a batch is applied"
        assert not self._stepping, "append while the core is stepped"
        assert len(payload) <= APPEND_MAX_BYTES, f"batch of {len(payload)} bytes"
        if self._is_ending:
            raise NotLeaderError("this node is stopping")
        self._step(Propose(epoch, payload, count, self._sources.wall_ms()))
        outcome, self._outcome = self._outcome, None
        self._wake.set()  # the step may have moved the deadline
        match outcome:
            case ProposalAppended(base_offset, end_offset):
                self.meter.appended(end_offset)
                return base_offset
            case ProposalRefused(reason, leads):
                raise CannotAppendNowError(reason) if leads else NotLeaderError(reason)
            case None:
                raise AssertionError("the core has not reported the outcome of a proposal")

    async def committed(self, end_offset: int, epoch: int) -> None:
        """Wait until this node, as the leader of `epoch`, has committed everything below `end_offset`.

        The caller sets the deadline.

        Raises:
            LeadershipLostError: the epoch ended before the records were committed.  They may still be committed later.
        """
        core = self.core
        if self._stopping or core.epoch != epoch or not isinstance(core.role, Leader):
            raise LeadershipLostError(f"not the leader of epoch {epoch}")
        if end_offset > self._high_watermark:
            await self._commit_waiters.wait(end_offset)

    async def applied(self, end_offset: int) -> None:
        """Wait until everything below `end_offset` is applied on this node.  The caller sets the deadline.

        Raises:
            LeadershipLostError: this node stopped first.
        """
        await self._applier.reached(end_offset)

    async def joined(self) -> str:
        """Wait until this node has joined a cluster, and return the cluster's id.  The caller sets the deadline."""
        await self._joined.wait()
        cluster_id = self.cluster_id
        assert cluster_id is not None
        return cluster_id

    async def change_voters(self, change: VoterChange, *, dry_run: bool, timeout_ms: int) -> VoterChangeResult:
        """Change the voters as the leader, and return the outcome; see `Inquirer.change_voters`."""
        return await self._inquirer.change_voters(change, dry_run=dry_run, timeout_ms=timeout_ms)

    async def transfer_leader(self, to: int | None, timeout_ms: int) -> Transferred:
        """Hand leadership over, and return the outcome; see `Inquirer.transfer_leader`."""
        return await self._inquirer.transfer_leader(to, timeout_ms)

    async def confirm_read(self, timeout_ms: int) -> int:
        """Return the end offset that a current read must have applied; see `Inquirer.confirm_read`."""
        return await self._inquirer.confirm_read(timeout_ms)

    def prefer(self, node_ids: Sequence[int]) -> None:
        """Set the preferred leaders, most preferred first, as the PreferredControllers record lists them."""
        self._post(Prefer(tuple(node_ids)))

    def keep_history(self, retain_ms: int | None, retain_bytes: int | None) -> None:
        """Set how much history before the newest snapshot is kept, from the next snapshot on; None: as configured."""
        self._snapshots.keep_history(retain_ms, retain_bytes)

    async def changed(self) -> None:
        """Wait until the role or the applied offset changes, a fetch succeeds, or this node joins its cluster.

        The caller sets the deadline.
        """
        await self._changed.wait()

    async def resign(self, reason: str) -> None:
        """Give up leadership if this node leads.

        Waits until each other voter has answered or could not be reached, at most for an election timeout.
        """
        if self.role is not Role.LEADER or self._stopping:
            return
        self._exchange.begin_farewells()
        self._step(Resign(reason))
        self._wake.set()
        try:
            async with asyncio.timeout(self._config.election_timeout_ms / 1000):
                await self._exchange.farewells_ended()
        except TimeoutError:
            logger.warning("not every voter has learned that this leader resigns", epoch=self.epoch)

    def _reset_connections(self) -> None:
        if self._reset is None or self._reset.done():
            logger.warning("no voter can be reached: connections are dropped, addresses are resolved again")
            self._reset = self._group.create_task(self._transport.reset())

    def is_caught_up(self) -> bool:
        """Return whether this node knows its leader and has applied the last high watermark from this leader.

        A follower that keeps up is behind for a moment at each commit.  It therefore counts as caught up for one more
        fetch timeout.  A leader is caught up when it is not paused and has applied a record of its own epoch.
        """
        core, now = self.core, asyncio.get_running_loop().time()
        if isinstance(core.role, Leader):
            return not core.role.paused and self.applied_offset > core.role.epoch_start
        if core.leader is None or self._leader_watermark is None or self._leader_watermark[0] != core.epoch:
            return False
        if self.applied_offset >= self._leader_watermark[1]:
            self._caught_up_at = now
        return self._caught_up_at is not None and now - self._caught_up_at <= self._config.fetch_timeout_ms / 1000

    @property
    def _is_ending(self) -> bool:
        return self._stopping or self._failure is not None

    @property
    def core(self) -> RaftCore:
        assert self._opened is not None, "the node is not open"
        return self._opened.core

    @property
    def _disk(self) -> LogDisk:
        assert self._opened is not None, "the node is not open"
        return self._opened.disk

    @property
    def _applier(self) -> Applier:
        assert self._opened is not None, "the node is not open"
        return self._opened.applier

    @property
    def cluster_id(self) -> str | None:
        """Return the cluster's id; None until this node has joined one."""
        return self.core.cluster_id if self._opened is not None else None

    @property
    def resumed_at(self) -> float:
        """Return the loop time at which this node's last pause ended; 0.0 if it has not been paused yet."""
        return self._resumed_at

    @property
    def high_watermark(self) -> int:
        """Return the end offset of the records that this node knows to be committed."""
        return self._high_watermark

    @property
    def applied_offset(self) -> int:
        """Return the end offset of the records that this node has applied."""
        return self._applier.offset

    @property
    def failed_requests(self) -> int:
        """Return the number of requests of this node that got no reply, since its start."""
        return self._exchange.failed_requests

    @property
    def requests_in_progress(self) -> int:
        """Return the number of requests to this node that are not answered yet."""
        return self._exchange.requests_in_progress
