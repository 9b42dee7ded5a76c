"""The active controller: decides on `pending`, appends, applies immediately, answers after the commit.

Theory of operation.  `pending` is the image of this leader's whole log.  The controller becomes active when it has
applied the LeaderChange record of its own epoch.  Then the image contains everything that earlier leaders committed,
and the log contains nothing else.  From then on this object is the only writer of records, so a decision knows the
offsets that its records will get.  The next decision uses the image with these records, long before they are committed,
so that several round trips to the disk overlap.

Every answer waits until the log is committed up to the end of the `pending` on which it was decided.  Even a refusal or
a no-op may depend on a record that is not committed yet, and would be wrong if that record were lost.  An answer also
waits for proof that this node still led when it received the request.  A leader that does not know that it has been
replaced would decide on an old state.  If records were appended, their commit is the proof: a majority accepted them in
this epoch, so none of these voters had a later epoch.  Otherwise the voters confirm the leadership in one round, which
all waiting requests share.

A heartbeat that changes nothing is answered at once, without a round or a commit.  Its answer says whether the broker
is fenced in the committed image.  A broker normally serves and leads according to the records that it has applied,
whatever the answer is.  A broker whose process was suspended depends on the answer, so it first sends another request,
which waits for the proof (`LifecycleRunner`).

When leadership ends, `pending` is dropped.  A request that appended records is answered with OUTCOME_UNKNOWN, since the
next leader may still commit them.  All other requests had no effect, and are answered with NOT_CONTROLLER.

A decision is synchronous: nothing else runs between reading `pending` and the append, so no lock is needed.  The
effects of a large failure are divided into batches, with a turn of the loop between them; each batch is decided on the
image of that moment.  A broken assertion ends the process: `run` raises it, since gRPC swallows exceptions of handlers.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar
from uuid import UUID

import msgspec
from msgspec.structs import replace

from metadata.codec import encode
from metadata.control import brokers, reassign
from metadata.control.brokers import Heartbeat, HeartbeatAnswer, Registered
from metadata.control.decision import Decision
from metadata.control.errors import Outcome
from metadata.control.topics import forget_topics, gone_names
from metadata.controller.background import NEXT_TURN, Background, BatchTooLargeError, Job
from metadata.controller.balance import LeaderBalance
from metadata.controller.fencing import Fencing, Why
from metadata.controller.ports import Node
from metadata.controller.refusals import Answer, Refusals
from metadata.controller.replay import MetadataReplay, Prepared
from metadata.controller.sessions import Session, Sessions
from metadata.image import ClusterImage
from metadata.records import RECORDS_PER_BATCH_MAX, BrokerChange, Config, Record, RegisterBroker
from quorum.core.types import Batch
from quorum.ports import CannotAppendNowError, LeadershipLostError, NotLeaderError
from quorum.waiters import ChangeSignal
from quorumlog.runtime.logging import get_logger
from quorumlog.wire.errors import ApiError

T = TypeVar("T")
Decide = Callable[[ClusterImage], Decision[T]]
"""(pending) → decision.  It is called once for each batch, until `Decision.more` is false."""

logger = get_logger("controller")

NOT_CONTROLLER = Outcome(
    ApiError.NOT_CONTROLLER, "this node is not the active controller; nothing was changed", "retry, or ask another node"
)
OUTCOME_UNKNOWN = Outcome(
    ApiError.OUTCOME_UNKNOWN,
    "the controller lost leadership or timed out before the change was committed; the change may still take effect",
    "check whether the change took effect before you retry",
)
TIMED_OUT = Outcome(ApiError.REQUEST_TIMED_OUT, "the quorum did not confirm in time; nothing was changed", "retry")


TOO_LARGE = Outcome(
    ApiError.POLICY_VIOLATION,
    "the records of the request have more bytes than one batch may have; nothing was changed",
    "split the request",
)
PARTLY_TOO_LARGE = Outcome(
    ApiError.POLICY_VIOLATION,
    "a batch of the request has more bytes than one batch may have; earlier batches were appended and may take effect",
    "check which part took effect, and split the rest",
)
BATCH_MAX_BYTES = 8 << 20


class ControllerSettings(msgspec.Struct, frozen=True):
    """session_timeout_ms: a broker without heartbeats for this long is fenced.
    heartbeat_interval_ms: the interval of brokers' heartbeats.
    fence_on_refusal: a broker without heartbeats is fenced earlier if its addresses refuse connections.
    forget_after_ms: minimum time for which the leader epochs of a deleted topic are kept; they may be kept an eighth
    longer.  A new controller starts counting again.
    """

    session_timeout_ms: int = 6000
    heartbeat_interval_ms: int = 1000
    fence_on_refusal: bool = True
    forget_after_ms: int = 24 * 60 * 60 * 1000


class _Leadership:
    """The state of one epoch as the active controller; dropped at its end."""

    balance: LeaderBalance
    fencing: Fencing
    refusals: Refusals | None = None
    election: Job
    progress: Job

    def __init__(self, epoch: int, image: ClusterImage) -> None:
        self.epoch = epoch
        self.pending = image
        self.prepared: dict[int, Prepared] = {}
        self.background = Background()
        self.gone_since: dict[str, float] = {}  # deleted topic → loop time when this was first seen


class ActiveController:
    """One per process; active on the node that leads.  `run` belongs in the process's task group."""

    def __init__(
        self,
        node: Node,
        replay: MetadataReplay,
        new_id: Callable[[], UUID],
        settings: ControllerSettings | None = None,
    ) -> None:
        self._node = node
        self._replay = replay
        self._settings = settings or ControllerSettings()
        self._leadership: _Leadership | None = None
        self._won_epoch: int | None = None
        self._leader_change_epoch = -1
        self._changed = ChangeSignal()
        self._failure: asyncio.Future[None] | None = None
        self._early_failure: BaseException | None = None
        self.new_id = new_id
        self.fenced = Counter({why.value: 0 for why in Why})  # brokers that this node fenced, by reason
        self.probes = Counter({answer.value: 0 for answer in Answer})  # connections to brokers, by answer
        replay.attach(self)

    async def run(self) -> None:
        """Run until cancelled.  A broken assertion is raised here."""
        self._failure = asyncio.get_running_loop().create_future()
        if self._early_failure is not None:
            raise self._early_failure
        try:
            await self._failure
        finally:
            self._deactivate("stopped")

    # State

    @property
    def node(self) -> Node:
        """The quorum node of this process."""
        return self._node

    @property
    def active(self) -> bool:
        return self._leadership is not None

    @property
    def epoch(self) -> int | None:
        """The epoch of this leadership; None if this controller is not active."""
        return None if self._leadership is None else self._leadership.epoch

    @property
    def pending(self) -> ClusterImage | None:
        return None if self._leadership is None else self._leadership.pending

    @property
    def applied_image(self) -> ClusterImage:
        """The metadata that this node has applied: committed, but perhaps no longer the latest."""
        return self._replay.image

    def session(self, broker_id: int) -> Session | None:
        """Return the soft state of a broker's heartbeats."""
        return None if self._leadership is None else self._leadership.fencing.sessions.get(broker_id)

    async def changed(self) -> None:
        """Wait until the leader changes, or this controller becomes active or inactive.

        The caller sets the deadline.
        """
        await self._changed.wait()

    # From the replay

    def leadership(self, epoch: int, leader_id: int | None, is_leader: bool) -> None:
        """Note a change of the leader: stop being active, or become active if the log has been applied."""
        if self._leadership is not None and (not is_leader or epoch != self._leadership.epoch):
            self._deactivate(f"epoch {epoch}, leader {leader_id}")
        self._won_epoch = epoch if is_leader else None
        self._activate_if_due()
        self._changed.notify()

    def leader_change_applied(self, epoch: int) -> None:
        """Note that the LeaderChange record of `epoch` was applied.  Become active if this node leads that epoch."""
        self._leader_change_epoch = epoch
        self._activate_if_due()

    def prepared(self, batch: Batch) -> Prepared | None:
        """Return and drop the result that was prepared for a committed batch; None if this controller has none."""
        if self._leadership is None:
            return None
        found = self._leadership.prepared.pop(batch.base_offset, None)
        if found is None or (found.epoch, found.payload) != (batch.epoch, batch.payload):
            return None
        return found

    def _activate_if_due(self) -> None:
        epoch = self._won_epoch
        if epoch is None or epoch != self._leader_change_epoch or self._leadership is not None:
            return
        image = self._replay.image
        self._leadership = _Leadership(epoch, image)
        logger.info("controller active", epoch=epoch, end_offset=image.end_offset, brokers=len(image.brokers))
        self._begin_background(self._leadership)
        self._changed.notify()

    def _begin_background(self, leadership: _Leadership) -> None:
        decide, timeout_s = partial(self._background, leadership), self._settings.session_timeout_ms / 1000
        now = asyncio.get_running_loop().time()
        sessions = Sessions(leadership.pending, timeout_s, now, lambda: self._node.resumed_at)
        leadership.election = leadership.background.job("election of leaders", partial(self._elect_step, leadership))
        leadership.election.wake()
        leadership.progress = leadership.background.job(
            "progress of reassignments", partial(self._progress_step, leadership)
        )
        leadership.fencing = Fencing(leadership.background, sessions, timeout_s, decide, self.fenced)
        if self._settings.fence_on_refusal:
            leadership.refusals = Refusals(
                leadership.background,
                sessions,
                self._settings.heartbeat_interval_ms / 1000,
                self._node.control_address_of,
                leadership.fencing.process_ended,
                self._fail,
                self.probes,
            )
        leadership.background.job("deletion of old leader epochs", partial(self._forget_step, leadership)).wake()
        leadership.balance = LeaderBalance(leadership.background, decide, self.elect_soon)

    def _deactivate(self, why: str) -> None:
        leadership, self._leadership = self._leadership, None
        if leadership is None:
            return
        leadership.background.stop()
        logger.info("controller inactive", epoch=leadership.epoch, why=why, dropped_batches=len(leadership.prepared))
        self._changed.notify()

    # Decide, append, wait

    async def execute(self, decide: Decide[T], timeout_ms: float) -> T | Outcome:
        """Decide, append the resulting records, and return the reply once everything that it depends on is committed.

        Takes at most `timeout_ms`.  A cancellation does not undo the append.  If there is no reply, the result is an
        `Outcome` with the reason: NOT_CONTROLLER, OUTCOME_UNKNOWN, TIMED_OUT, TOO_LARGE or PARTLY_TOO_LARGE.
        """
        leadership = self._leadership
        if leadership is None:
            return NOT_CONTROLLER
        appended = False
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                while True:
                    if self._leadership is not leadership:
                        raise LeadershipLostError
                    decision = self._step(leadership, decide)
                    appended = appended or bool(decision.records)
                    if not decision.more:
                        break
                    await asyncio.sleep(0)  # let heartbeats and elections run between batches
                end_offset = leadership.pending.end_offset
                if not appended:
                    await self._node.confirm_read(int(timeout_ms))
                await self._node.committed(end_offset, leadership.epoch)
                return decision.reply
        except (NotLeaderError, CannotAppendNowError, LeadershipLostError):
            return OUTCOME_UNKNOWN if appended else NOT_CONTROLLER
        except TimeoutError:
            return OUTCOME_UNKNOWN if appended else TIMED_OUT
        except BatchTooLargeError:
            return PARTLY_TOO_LARGE if appended else TOO_LARGE

    def _step(self, leadership: _Leadership, decide: Decide[T]) -> Decision[T]:
        """Make one decision and append its batch.

        Raises:
            NotLeaderError, CannotAppendNowError, BatchTooLargeError: nothing was changed.
        """
        try:
            if self._node.log_end_offset > leadership.pending.end_offset:  # control records have taken offsets
                leadership.pending = leadership.pending.advance(self._node.log_end_offset, leadership.epoch)
            decision = decide(leadership.pending)
            if decision.records:
                self._append(leadership, decision.records)
            return decision
        except (NotLeaderError, CannotAppendNowError, BatchTooLargeError):
            raise
        except Exception as error:
            self._fail(error)
            raise

    def _append(self, leadership: _Leadership, records: tuple[Record, ...]) -> None:
        """Append records, after applying them: records that the image rejects must never be in the log."""
        assert len(records) <= RECORDS_PER_BATCH_MAX, f"a batch of {len(records)} records"
        base_offset = leadership.pending.end_offset
        after = leadership.pending.apply(base_offset, records, leadership.epoch)
        payload = encode(records)
        if len(payload) > BATCH_MAX_BYTES:
            raise BatchTooLargeError
        found = self._node.append(leadership.epoch, payload, len(records))
        assert found == base_offset, f"decided for offset {base_offset}, appended at {found}"
        leadership.prepared[base_offset] = Prepared(base_offset, leadership.epoch, payload, records, after)
        before, leadership.pending = leadership.pending, after
        if after.brokers is not before.brokers:
            leadership.fencing.sessions.follow(records, before, after, asyncio.get_running_loop().time())
        if after.reassigning_count and any(isinstance(record, BrokerChange | Config) for record in records):
            self._progress_soon(leadership)
        if any(isinstance(record, Config) for record in records):
            leadership.election.wake()  # an unclean election may be permitted now
            leadership.balance.follow(before, after)

    def _fail(self, error: BaseException) -> None:
        if self._failure is None:
            self._early_failure = error
        elif not self._failure.done():
            self._failure.set_exception(error)

    async def confirm(self, timeout_ms: float) -> Outcome | None:
        """Return None once it is proven that this node still led at the call, or the reason why there is no proof."""
        try:
            await self._node.confirm_read(int(timeout_ms))
        except NotLeaderError:
            return NOT_CONTROLLER
        except TimeoutError:
            return TIMED_OUT
        return None

    async def committed_image(self, timeout_ms: float) -> ClusterImage | Outcome:
        """Return an image with everything that was answered or decided before this call."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_ms / 1000
        ended = await self.execute(lambda image: Decision(image.end_offset), timeout_ms)
        if isinstance(ended, Outcome):
            return ended
        try:
            async with asyncio.timeout_at(deadline):
                await self._replay.wait_for(ended)
        except TimeoutError:
            return TIMED_OUT
        return self._replay.image

    # Requests of brokers that need soft state

    async def register(
        self, request: RegisterBroker, early_topics: frozenset[UUID], timeout_ms: float
    ) -> Registered | Outcome:
        """Register a broker; it starts fenced.  early_topics: see `brokers.register`."""
        is_first = True

        def decide(image: ClusterImage) -> Decision[Registered]:
            nonlocal is_first
            assert self._leadership is not None, "deciding while not active"
            now = asyncio.get_running_loop().time()
            live = is_first and self._leadership.fencing.sessions.live(request.broker_id, now)
            is_first = False
            decision = brokers.register(image, request, early_topics, session_live=live)
            if decision.records and not decision.more:
                epoch = decision.reply.broker_epoch
                logger.info("broker registered", broker_id=request.broker_id, broker_epoch=epoch)
            return decision

        return await self.execute(decide, timeout_ms)

    async def heartbeat(
        self, request: Heartbeat, received_offset: int, pending_changes: int, timeout_ms: float
    ) -> HeartbeatAnswer | Outcome:
        """Process a heartbeat: update soft state immediately, and write records only if something changes."""
        leadership = self._leadership
        if leadership is None:
            return NOT_CONTROLLER
        broker = leadership.pending.brokers.get(request.broker_id)
        if broker is not None and broker.epoch == request.broker_epoch:
            now = asyncio.get_running_loop().time()
            session = leadership.fencing.sessions.touch(request.broker_id, request.broker_epoch, now)
            session.applied_offset = max(session.applied_offset, request.applied_offset)
            session.received_offset = max(session.received_offset, received_offset)
            session.pending_changes = pending_changes
            leadership.fencing.sessions_changed()
            if leadership.refusals is not None and not broker.fenced and broker.broker_id != self._node.node_id:
                leadership.refusals.heard(broker, session)

        def decide(image: ClusterImage, *, again: bool) -> Decision[HeartbeatAnswer]:
            applied = (
                leadership.fencing.sessions.others_applied(image, request.broker_id) if request.want_shutdown else 0
            )
            return brokers.heartbeat(image, request, others_applied=applied, again=again)

        try:
            first = self._step(leadership, partial(decide, again=False))
        except (NotLeaderError, CannotAppendNowError):
            return NOT_CONTROLLER
        except BatchTooLargeError:
            return TOO_LARGE
        if not first.records and first.reply.outcome.ok and not first.reply.should_shutdown:
            committed = self._replay.image.brokers.get(request.broker_id)
            known = committed is not None and committed.epoch == request.broker_epoch
            return replace(first.reply, fenced=committed.fenced if known and committed is not None else True)
        if first.records:
            logger.info("broker changed by its heartbeat", broker_id=request.broker_id, records=len(first.records))
        answer: HeartbeatAnswer | Outcome = OUTCOME_UNKNOWN
        try:
            answer = await self.execute(partial(decide, again=True), timeout_ms)
        finally:
            if first.records and isinstance(answer, Outcome):
                # The broker may be unfenced, but not yet lead all partitions that it could lead.  Its next heartbeat
                # changes nothing, so it would start no elections.
                self.elect_soon()
        return OUTCOME_UNKNOWN if isinstance(answer, Outcome) and first.records else answer

    # Background (see `metadata.controller.background`)

    def elect_soon(self) -> None:
        """Look for partitions without a leader that can have one."""
        if self._leadership is not None:
            self._leadership.election.wake()

    def _background(self, leadership: _Leadership, decide: Decide[Any]) -> Decision[Any]:
        """Make a decision of the controller's own.

        Raises:
            NotLeaderError: the leadership has ended, even if this has not been reported yet.
            CannotAppendNowError, BatchTooLargeError: nothing was appended.
        """
        if self._leadership is not leadership:
            raise NotLeaderError("this leadership has ended")
        return self._step(leadership, decide)

    def _elect_step(self, leadership: _Leadership) -> float | None:
        decision = self._background(leadership, brokers.elect_leaderless)
        if decision.records:
            logger.info("leaders elected", partitions=len(decision.records))
        if decision.more:
            return NEXT_TURN
        self._progress_soon(leadership)
        return None

    def _progress_soon(self, leadership: _Leadership) -> None:
        """Look for reassignments that an event other than an ISR change has completed, or that an earlier controller
        left complete."""
        if leadership.pending.reassigning_count:
            leadership.progress.wake()

    def _progress_step(self, leadership: _Leadership) -> float | None:
        decision = self._background(leadership, reassign.progress)
        if decision.records:
            logger.info("reassignments completed", partitions=decision.reply)
        return NEXT_TURN if decision.more and leadership.pending.reassigning_count else None

    def _forget_step(self, leadership: _Leadership) -> float:
        """Delete the leader epochs of topics that were deleted long enough ago; run again after a while."""
        now = asyncio.get_running_loop().time()
        forget_after_s = self._settings.forget_after_ms / 1000
        leadership.gone_since = {name: leadership.gone_since.get(name, now) for name in gone_names(leadership.pending)}
        due = [name for name, since in leadership.gone_since.items() if now - since >= forget_after_s]
        if due and self._background(leadership, lambda image: forget_topics(image, due)).more:
            return NEXT_TURN
        return forget_after_s / 8
