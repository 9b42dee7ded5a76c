"""The coordinator of one partition of an internal topic, for one leadership of this broker.

Theory of operation
-------------------
**One task owns the machine.**  Requests and cancelled calls queue up.  A turn of the task applies the queued operations
and a tick that is due, and appends the records of their steps together.  So many clients share an append and its
replication (group commit).  A turn does not wait between its first step and its append.  So a step is never appended
under a later leadership than its own; the replica compares the leader epoch as well.

**Answers** wait until the high watermark reaches the log end after their turn.  This includes the answers to reads, so
no client sees a state that a failover could revert.  They wait in the order of the log; `on_watermark` sends them
when they are due.

**Loading.**  The machine replays the whole log of the partition, including records that are not committed yet: only
this leader can append after them, and no leader truncates its own log.  It serves once the high watermark has reached
the end of that replay, and an append is possible: enough replicas are in sync, and the last truncation is durable.  At
that point, it has everything that an earlier leader acknowledged.

**Dropping.**  The machine applies each step as soon as it computes the step.  If the append fails, the log lacks the
records of the step.  So the machine is dropped and loaded anew, and all waiting calls are refused.  To avoid this while
too few replicas are in sync, calls that may append are refused before they reach the machine, and ticks are postponed.

**The end.**  A coordinator ends with the leadership: waiting calls get NOT_COORDINATOR.  An election under a later
epoch creates a new object.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from enum import StrEnum
from itertools import groupby
from typing import Any, Final, Generic, NamedTuple, TypeVar

from broker.coordinator.limits import CoordinatorCounters, CoordinatorLimits
from broker.core.coordinator.fields import BadRecord
from broker.core.coordinator.machine import Answer, Machine, Record, Step
from broker.core.partition import ACKS_ALL, LeaderState
from broker.core.transactions import Marker, ProducerKey
from broker.log import Appended, PartitionLog, Refused
from broker.log.produced import Produced
from broker.log.producers import read_marker
from broker.replica.replica import Replica
from quorumlog.client.record_codec import read_batch
from quorumlog.client.records import (
    OFFSET_MAX,
    NewRecord,
    UnreadableBatchError,
    build_batch,
    end_offset,
    open_batches,
    stamp,
)
from quorumlog.errors import CorruptStoreError
from quorumlog.runtime.clock import WallClock, now_ms
from quorumlog.runtime.disk import DiskError
from quorumlog.runtime.logging import get_logger
from quorumlog.runtime.turns import Turn
from quorumlog.wire.errors import KafkaCode
from quorumlog.wire.record_batch import TRANSACTIONAL_FLAG, BatchHeader, Buffer, iter_headers, parse_header, seal

logger = get_logger("coordinator")

M = TypeVar("M", bound=Machine[Any, Any])

Operation = Callable[[M, int], Step]
"""Applies an operation to the machine; the second argument is the time in ms."""

OnEffect = Callable[["Coordinator[M]", Any], None]

_RECORDS_AT_ONCE_MAX: Final = 250
"""Records that a load replays before it may yield to other tasks.  A batch may have thousands of records, and the
replay of a record may take about 100 us."""

TICK_SLACK_MS: Final = 1
"""The delay of a tick after its deadline.  It is needed because the loop's timers and `now_ms` round differently."""


class State(StrEnum):
    LOADING = "loading"
    SERVING = "serving"
    FAILED = "failed"
    ENDED = "ended"


class _Call(NamedTuple):
    """A call that waits.  size: bytes of its request."""

    future: asyncio.Future[Any]
    size: int


class _Queued(NamedTuple):
    """An operation that waits for its turn.  call: the number of its call; None without a call.

    needs_log: the operation compares the log with the machine, so the log must have the records of earlier operations.
    """

    call: int | None
    operation: Operation[Any]
    is_read: bool
    needs_log: bool = False


class _HeldAnswer(NamedTuple):
    """An answer that waits for the watermark.  since_ms: when it was made."""

    end_offset: int
    since_ms: int
    answer: Answer


class _HeldEffect(NamedTuple):
    """An effect that waits for the watermark."""

    end_offset: int
    effect: Any


class Coordinator(Generic[M]):
    """One partition's coordinator.  Create it when the replica is elected, run `run`, and call `end` on resignation."""

    def __init__(
        self,
        replica: Replica,
        leader: LeaderState,
        make_machine: Callable[[], M],
        limits: CoordinatorLimits,
        counters: CoordinatorCounters,
        wall_ms: WallClock,
        on_effect: OnEffect[M] | None = None,
    ) -> None:
        """leader: the role of `replica` for which this coordinator works.

        on_effect: called with each effect of the machine once the records before it are committed.
        """
        self._on_effect = on_effect
        self.state = State.LOADING
        self.machine: M | None = None
        self.task: asyncio.Task[None] | None = None
        self._replica = replica
        self._leader = leader
        self._make_machine = make_machine
        self._limits = limits
        self._counters = counters
        self._wall_ms = wall_ms
        self._is_fresh = False
        """The machine has replayed the log, and `loaded` was not called yet."""
        self._inbox: deque[_Queued] = deque()
        self._calls: dict[int, _Call] = {}
        self._next_call = 0
        self._held_answers: deque[_HeldAnswer] = deque()
        self._held_effects: deque[_HeldEffect] = deque()
        self._end_offset = 0
        self._uncommitted: deque[tuple[int, int]] = deque()
        self._uncommitted_bytes = 0
        self._news = asyncio.Event()
        self._tick_timer: asyncio.TimerHandle | None = None
        self._tick_at_ms: int | None = None
        self._commit_timer: asyncio.TimerHandle | None = None

    @property
    def leader_epoch(self) -> int:
        return self._leader.leader_epoch

    def __repr__(self) -> str:
        return f"{self._replica.topic}-{self._replica.key.index} (epoch {self.leader_epoch})"

    @property
    def log(self) -> PartitionLog | None:
        """The log of the partition; None while the replica is offline."""
        return self._replica.log

    # -- calls

    def call(
        self, operation: Callable[[M, int, int], Step], size: int, *, is_read: bool, needs_log: bool = False
    ) -> asyncio.Future[Any]:
        """Begin a call.  The future gets the machine's response, or the `KafkaCode` of a refusal; it never raises.

        A caller that no longer needs the response cancels the future.

        operation: applies the request to the machine, given the number of the call and the time in ms.
        size: bytes of the request.
        is_read: the request makes no records, so it needs no replicas in sync.
        needs_log: the operation is applied once the records of all earlier operations are appended.
        """
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        refusal = self._refusal(size, is_read)
        if refusal is not None:
            self._counters.refused += 1
            future.set_result(refusal)
            return future
        number = self._next_call
        self._next_call += 1
        self._calls[number] = _Call(future, size)
        self._counters.waiting += 1
        self._counters.waiting_bytes += size
        future.add_done_callback(lambda done: self._hang_up(number) if done.cancelled() else None)
        self._queue(_Queued(number, lambda machine, now: operation(machine, number, now), is_read, needs_log))
        return future

    def tell(self, operation: Operation[M]) -> bool:
        """Queue an operation that no call waits for.  While the machine is loading, it is applied after the load.

        Return False if the queue is full, or if the coordinator has failed or ended.
        """
        if self.state in (State.LOADING, State.SERVING):
            if len(self._inbox) < self._limits.queue_max:
                self._queue(_Queued(None, operation, is_read=False))
                return True
            logger.warning("operation not applied", partition=repr(self), queued=len(self._inbox))
        return False

    def _refusal(self, size: int, is_read: bool) -> KafkaCode | None:
        limits, counters = self._limits, self._counters
        if self.state is State.ENDED or isinstance(self._replica.leading(self.leader_epoch), KafkaCode):
            return KafkaCode.NOT_COORDINATOR
        if self.state is State.LOADING:
            return KafkaCode.COORDINATOR_LOAD_IN_PROGRESS
        if self.state is State.FAILED or counters.waiting >= limits.calls_max:
            return KafkaCode.COORDINATOR_NOT_AVAILABLE
        if counters.waiting and counters.waiting_bytes + size > limits.call_bytes_max:
            return KafkaCode.COORDINATOR_NOT_AVAILABLE
        if not is_read and self._uncommitted_bytes > limits.uncommitted_bytes_max:
            return KafkaCode.COORDINATOR_NOT_AVAILABLE
        return None

    def _may_append(self) -> bool:
        """Return whether enough replicas are in sync, and the last truncation as a follower is durable."""
        partition_log = self._replica.log
        is_ready = partition_log is not None and not partition_log.durability.is_truncating
        return is_ready and self._leader.admits(ACKS_ALL) is KafkaCode.NONE

    def _queue(self, queued: _Queued) -> None:
        self._inbox.append(queued)
        self._news.set()

    def _hang_up(self, number: int) -> None:
        if self._take(number) is not None and self.state is State.SERVING:
            self._queue(_Queued(None, lambda machine, now: machine.forget(number, now), is_read=True))

    def _still_waits(self, number: int) -> bool:
        call = self._calls.get(number)
        return call is not None and not call.future.cancelled()  # the callback of a cancelled future runs later

    def _take(self, number: int) -> _Call | None:
        """Remove a waiting call from the calls and the counters, and return it; None if it no longer waits."""
        call = self._calls.pop(number, None)
        if call is not None:
            self._counters.waiting -= 1
            self._counters.waiting_bytes -= call.size
        return call

    def _answer(self, number: int, result: Any) -> None:
        call = self._take(number)
        if call is not None and not call.future.done():
            call.future.set_result(result)

    # -- life

    async def run(self) -> None:
        """Load, and serve until the leadership ends.  Load anew after a failed append."""
        try:
            while self.state is not State.ENDED:
                self.machine = await self._load()
                self.state = State.SERVING
                self._is_fresh = True
                self._news.set()
                await self._serve(self.machine)
        except (BadRecord, UnreadableBatchError) as error:
            self.state = State.FAILED
            self._drop(KafkaCode.COORDINATOR_NOT_AVAILABLE)  # calls wait if it failed after the first load
            logger.error("coordinator not loaded", partition=repr(self), cause=str(error))
        except (DiskError, CorruptStoreError) as error:
            self.take_offline(error)

    def take_offline(self, error: Exception) -> None:
        """Take the replica offline, because its log failed with `error`.  This also ends the coordinator."""
        self._replica.take_offline(error)

    def end(self) -> None:
        """End with the leadership: refuse all calls, and stop the task."""
        self.state = State.ENDED
        self._drop(KafkaCode.NOT_COORDINATOR)
        self._inbox.clear()
        if self.task is not None:
            self.task.cancel()
            # The traceback of the cancelled task refers to this object and to the machine.  With a reference to
            # the task, they would form a cycle, which servers may never collect (`Machine.close`).
            self.task = None

    async def _load(self) -> M:
        """Return a machine that has replayed the log, once everything in it is committed.

        Raises: BadRecord, UnreadableBatchError, CorruptStoreError, DiskError.
        """
        began_ms, count = now_ms(), 0
        partition_log = self._replica.log
        assert partition_log is not None, self
        machine = self._make_machine()
        offset, end = partition_log.start_offset, partition_log.end_offset
        turn = Turn()
        while offset < end:
            data = await self._replica.read(offset, self._limits.load_bytes, end)
            for position, header in iter_headers(data):
                count += await self._replay(machine, data[position : position + header.size], header, offset, turn)
            next_offset = end_offset(data)
            if next_offset is None:
                raise CorruptStoreError(f"{self!r}: no batch at offset {offset}, although the log ends at {end}")
            offset = next_offset
        self._end_offset = end
        while self._leader.high_watermark < end or not self._may_append():
            await self._woken()
        took_ms = now_ms() - began_ms
        self._counters.loads += 1
        self._counters.load_ms += took_ms
        log = logger.info if count else logger.debug  # most partitions of a new cluster are empty
        log("coordinator loaded", partition=repr(self), records=count, end_offset=end, ms=took_ms)
        return machine

    async def _replay(self, machine: M, batch: Buffer, header: BatchHeader, first_offset: int, turn: Turn) -> int:
        """Replay a marker, or the records of a batch from `first_offset` on; return the number of records.

        Raises: BadRecord, UnreadableBatchError.
        """
        producer = ProducerKey(header.producer_id, header.producer_epoch)
        if header.is_control:
            marker = read_marker(batch, header)
            if marker is None:
                return 0
            try:
                machine.replay(Record(b"", None, marker=marker))
            except BadRecord as error:
                raise BadRecord(f"the record at offset {header.base_offset}: {error}") from error
            return 1
        [opened] = open_batches(batch)
        records = read_batch(opened, self._replica.topic, self._replica.key.index, first_offset, OFFSET_MAX)
        for first in range(0, len(records), _RECORDS_AT_ONCE_MAX):
            some = records[first : first + _RECORDS_AT_ONCE_MAX]
            machine.replay_batch(some, producer if header.is_transactional else None)
            await turn.passed()
        return len(records)

    async def _woken(self) -> None:
        """Wait until `_news` is set, for at most `retry_ms`."""
        try:
            async with asyncio.timeout(self._limits.retry_ms / 1000):
                await self._news.wait()
        except TimeoutError:
            pass
        self._news.clear()

    async def _serve(self, machine: M) -> None:
        """Apply operations as they arrive, until the machine is dropped."""
        while self.machine is machine:
            await self._news.wait()
            self._news.clear()
            if self._apply_queued(machine):
                self._news.set()
                await asyncio.sleep(0)  # let other tasks run before the operations that are left

    # -- a turn

    def _apply_queued(self, machine: M) -> bool:
        """Apply the queued operations, append their records together, and send the answers that are due.

        Return whether another turn can begin immediately.  Operations that append may wait until replicas are in sync.
        """
        if isinstance(self._replica.leading(self.leader_epoch), KafkaCode):
            # This process must not serve now, or its leadership is about to end.
            self._refuse_queued(KafkaCode.NOT_COORDINATOR, also_reads=True)
            self._postpone_tick(machine)
            return False
        now = now_ms()
        may_append = self._may_append()
        if not may_append:
            # Before the step of `loaded`, the machine cannot answer reads either.
            self._refuse_queued(KafkaCode.COORDINATOR_NOT_AVAILABLE, also_reads=self._is_fresh)
            if self._is_fresh:
                self._postpone_tick(machine)
                return False
        records: list[Record] = []
        answers: list[Answer] = []
        effects: list[Any] = []
        size = 0
        later: list[_Queued] = []
        if self._is_fresh:
            self._is_fresh = False
            size += self._take_step(machine.loaded(now), records, answers, effects)
        while self._inbox and size < self._limits.append_bytes and not _ends_transaction(records):
            if records and self._inbox[0].needs_log:
                break
            queued = self._inbox.popleft()
            if not (may_append or queued.is_read):
                later.append(queued)
            elif queued.call is None or self._still_waits(queued.call):
                size += self._take_step(queued.operation(machine, now), records, answers, effects)
        due = machine.deadline_ms is not None and machine.deadline_ms <= now
        if due and may_append:
            size += self._take_step(machine.tick(now), records, answers, effects)
        if records and not self._append(records, size):
            return False
        self._held_answers.extend(_HeldAnswer(self._end_offset, now, answer) for answer in answers)
        self._held_effects.extend(_HeldEffect(self._end_offset, effect) for effect in effects)
        self.on_watermark()
        if may_append:
            self._arm_tick(machine)
            return bool(self._inbox)
        more = bool(self._inbox)
        self._inbox.extendleft(reversed(later))
        self._postpone_tick(machine)
        return more

    def _take_step(self, step: Step, records: list[Record], answers: list[Answer], effects: list[Any]) -> int:
        """Add the results of a step to the results of the turn, and return the bytes of its records."""
        for note in step.notes:
            logger.info("state changed", change=note, partition=repr(self))
        records += step.records
        answers += step.answers
        effects += step.effects
        return sum(len(each.key) + len(each.value or b"") for each in step.records)

    def _append(self, records: list[Record], size: int) -> bool:
        """Append the records.  Consecutive records of one transaction, or of no transaction, become one batch.

        Return False if an append failed.  The machine has then been dropped.
        """
        appended: Appended | Refused
        for (producer, marker), group in groupby(records, lambda each: (each.producer, each.marker)):
            appended = self._append_batch(list(group), producer, marker)
            if isinstance(appended, Refused):
                break
        if isinstance(appended, Refused):
            if self.state is State.SERVING:
                logger.warning("coordinator dropped", partition=repr(self), code=appended.code, cause=appended.reason)
                self._reload()
            return False
        self._counters.appends += 1
        self._end_offset = appended.end_offset
        self._uncommitted.append((appended.end_offset, size))
        self._uncommitted_bytes += size
        return True

    def _append_batch(
        self, records: list[Record], producer: ProducerKey | None, marker: Marker | None
    ) -> Appended | Refused:
        """Append a marker, or append records as one batch; they belong to one transaction or to none."""
        wall_ms = self._wall_ms()
        if marker is not None:
            return self._replica.append_marker_as_coordinator(marker, wall_ms, self.leader_epoch)
        batch = build_batch([NewRecord(each.key, each.value, wall_ms) for each in records])
        if producer is not None:
            stamp(batch, *producer, 0)
            header = parse_header(batch)
            seal(batch, header._replace(attributes=header.attributes | TRANSACTIONAL_FLAG))
        produced = Produced(batch, [parse_header(batch)], [wall_ms])
        return self._replica.append_as_coordinator(produced, self.leader_epoch)

    def _refuse_queued(self, code: KafkaCode, *, also_reads: bool) -> None:
        """Refuse the calls that wait for their turn.  Other operations stay in the queue."""
        kept = [each for each in self._inbox if each.call is None or (each.is_read and not also_reads)]
        refused = [each.call for each in self._inbox if each.call is not None and (also_reads or not each.is_read)]
        self._inbox = deque(kept)
        self._counters.refused += len(refused)
        for number in refused:
            self._answer(number, code)

    # -- the watermark

    def on_watermark(self) -> None:
        """Send each answer and perform each effect for which all preceding records are committed."""
        watermark = self._leader.high_watermark
        while self._uncommitted and self._uncommitted[0][0] <= watermark:
            self._uncommitted_bytes -= self._uncommitted.popleft()[1]
        while self._held_answers and self._held_answers[0].end_offset <= watermark:
            answer = self._held_answers.popleft().answer
            self._answer(answer.call, answer.response)
        while self._held_effects and self._held_effects[0].end_offset <= watermark:
            effect = self._held_effects.popleft().effect
            if self._on_effect is not None:
                self._on_effect(self, effect)
        if self.state is State.LOADING:
            self._news.set()
        elif self._held_answers and self._commit_timer is None:
            due_s = (self._held_answers[0].since_ms + self._limits.commit_timeout_ms + TICK_SLACK_MS) / 1000
            self._commit_timer = asyncio.get_running_loop().call_at(due_s, self._on_commit_timeout)

    def _on_commit_timeout(self) -> None:
        """Refuse the calls whose answers have waited for too long.  Their records may be committed later."""
        self._commit_timer = None
        oldest_ms = now_ms() - self._limits.commit_timeout_ms
        while self._held_answers and self._held_answers[0].since_ms <= oldest_ms:
            self._answer(self._held_answers.popleft().answer.call, KafkaCode.COORDINATOR_NOT_AVAILABLE)
        self.on_watermark()

    # -- ticks

    def _arm_tick(self, machine: M) -> None:
        """Schedule a turn at the machine's deadline."""
        self._set_tick(None if machine.deadline_ms is None else machine.deadline_ms + TICK_SLACK_MS)

    def _postpone_tick(self, machine: M) -> None:
        """Try the tick again after `retry_ms`.

        A machine whose tick is overdue by more than `commit_timeout_ms` is dropped, because calls wait for that tick.
        """
        now = now_ms()
        if machine.deadline_ms is not None and now - machine.deadline_ms > self._limits.commit_timeout_ms:
            logger.warning("coordinator dropped", partition=repr(self), cause="its tick could not append for too long")
            self._reload()
        else:
            self._set_tick(now + self._limits.retry_ms)

    def _set_tick(self, at_ms: int | None) -> None:
        if at_ms == self._tick_at_ms:
            return
        if self._tick_timer is not None:
            self._tick_timer.cancel()
        self._tick_at_ms, self._tick_timer = at_ms, None
        if at_ms is not None:
            self._tick_timer = asyncio.get_running_loop().call_at(at_ms / 1000, self._on_tick_timer)

    def _on_tick_timer(self) -> None:
        self._tick_timer = self._tick_at_ms = None
        self._news.set()

    # -- dropping

    def _reload(self) -> None:
        self.state = State.LOADING
        self._counters.drops += 1
        self._drop(KafkaCode.NOT_COORDINATOR)

    def _drop(self, code: KafkaCode) -> None:
        """Drop the machine with all its uncommitted state, and refuse all calls."""
        if self.machine is not None:
            self.machine.close()
        self.machine = None
        self._inbox = deque(each for each in self._inbox if each.call is None and not each.is_read)
        self._held_answers.clear()
        self._held_effects.clear()
        self._uncommitted.clear()
        self._uncommitted_bytes = 0
        self._set_tick(None)
        if self._commit_timer is not None:
            self._commit_timer.cancel()
            self._commit_timer = None
        for number in list(self._calls):
            self._answer(number, code)


def _ends_transaction(records: list[Record]) -> bool:
    """Return whether the last record is a marker.  No operation may be applied after a marker in the same turn.

    Operations compare producers with the log, and the log learns about the marker only when it is appended.  A record
    of the same producer after the marker would begin a transaction that nobody ends.
    """
    return bool(records) and records[-1].marker is not None
