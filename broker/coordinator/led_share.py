"""One share partition at the leader of its partition: loading, reads, saves, locks, and dead letters.

One `LedShare` belongs to one leadership.  It reads the state from the share coordinator, which then fences earlier
leaders.  It serves fetches and acknowledgements, and saves changes, one save at a time.  It ends when the leadership
ends, when the share coordinator refuses a save, or when no session uses it.  Its successor reads the state anew.

A separate task writes dead letters, while any are missing.  Missing letters keep a share partition loaded, even if no
session uses it.  While no session uses a share partition, an administrator may reset or delete its state.  So the next
session reads the state anew.  The write of a letter is repeated only while the state exists.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

import msgspec

from broker.coordinator.dead_letters import DeadLetters, DeadLetterTopic
from broker.coordinator.share_states import UNAVAILABLE, ShareStates
from broker.core.coordinator.share.states import NO_START, ReadState, ShareKey, SummarizeState, WriteState
from broker.core.partition import LeaderState
from broker.core.share.partition import (
    NOTHING_TO_SAVE,
    Acknowledgement,
    Acquired,
    ShareLimits,
    SharePartition,
)
from broker.core.transactions import AbortedTransaction
from broker.replica.replica import Replica
from quorumlog.errors import CorruptStoreError
from quorumlog.runtime.backoff import Backoff
from quorumlog.runtime.clock import now_ms
from quorumlog.runtime.disk import DiskError
from quorumlog.runtime.logging import get_logger
from quorumlog.wire.errors import KafkaCode
from quorumlog.wire.record_batch import BatchHeader, iter_headers

logger = get_logger("share")

_TIMER_SLACK_MS: Final = 1
_SILENT_FAILURES: Final = 3
"""Number of failures after which dead letters count as failing.  The first attempts may fail as leaders change."""
_OF_LOADS: Final = frozenset({KafkaCode.NOT_LEADER_OR_FOLLOWER, KafkaCode.KAFKA_STORAGE_ERROR})


class ShareConfig(msgspec.Struct, frozen=True):
    """The configs of one share group.

    max_age_ms: the maximum age, by timestamp, of the first record that a new group gets.  0: the group begins at the
        high watermark; None: at the log start.
    read_committed: members get no records of aborted or open transactions.
    dead_letters: None if the group has no dead-letter topic.  `limits.has_dead_letters` must agree.
    """

    limits: ShareLimits = msgspec.field(default_factory=ShareLimits)
    max_age_ms: int | None = 0
    read_committed: bool = False
    dead_letters: DeadLetterTopic | None = None

    def __post_init__(self) -> None:
        assert self.limits.has_dead_letters == (self.dead_letters is not None), self


class Fetched(NamedTuple):
    """Records that a member has acquired, with the batches that contain them."""

    acquired: list[Acquired]
    records: bytes | memoryview


class LedShare:
    """One share partition under one leadership of this broker."""

    def __init__(
        self,
        key: ShareKey,
        replica: Replica,
        leader: LeaderState,
        states: ShareStates,
        letters: DeadLetters,
        group: asyncio.TaskGroup,
        config: ShareConfig,
        time_lookups: asyncio.Semaphore,
        wall_ms: Callable[[], int],
        on_available: Callable[[], None],
        on_idle: Callable[[], None],
    ) -> None:
        """group: the owner of the tasks.

        time_lookups: bounds the look-ups by timestamp of all share partitions together.
        on_available: called when records may have become available, and at the end of the load.
        on_idle: called when no session uses this share partition, and either everything is saved and no dead letter is
            missing, or the share partition has ended.
        """
        self.key = key
        self.leader = leader
        self.config = config
        self.has_ended = False
        self.core: SharePartition | None = None
        self._replica = replica
        self._states = states
        self._letters = letters
        self._time_lookups = time_lookups
        self._wall_ms = wall_ms
        self._group = group
        self._on_available = on_available
        self._on_idle = on_idle
        self._is_used = False
        """A session uses this share partition.  If not, it was loaded for its dead letters, or its sessions ended."""
        self._state_epoch = 0
        self._read_lock = asyncio.Lock()
        self._waiting: dict[int, asyncio.Future[KafkaCode]] = {}
        self._saving: asyncio.Task[None] | None = None
        self._letter_task: asyncio.Task[None] | None = None
        self._retry = asyncio.Event()
        """Set when dead letters that could not be written may be tried again before the pause ends."""
        self._timer: asyncio.TimerHandle | None = None
        self._loading: asyncio.Task[KafkaCode] = group.create_task(self._load(), name=f"share-load-{key.text}")
        self._loading.add_done_callback(lambda _: self._on_load_end())

    def configure(self, config: ShareConfig) -> None:
        """Apply changed configs.  If the configs of dead letters have changed, try again to write letters."""
        if config.dead_letters != self.config.dead_letters:
            self.retry_letters()
        self.config = config
        if self.core is not None:
            self.core.limits = config.limits

    def end(self) -> None:
        """Refuse the acknowledgements that wait, and serve nothing from now on."""
        self.has_ended = True
        self._loading.cancel()
        if self._saving is not None:
            self._saving.cancel()
        if self._letter_task is not None:
            self._letter_task.cancel()
        if self._timer is not None:
            self._timer.cancel()
        for future in self._waiting.values():
            if not future.done():
                future.set_result(KafkaCode.NOT_LEADER_OR_FOLLOWER)
        self._waiting.clear()

    # -- loading

    @property
    def loaded(self) -> KafkaCode | None:
        """NONE if the state is loaded; None while the load is in progress; otherwise the error for a request."""
        if self.core is not None:
            return KafkaCode.NOT_LEADER_OR_FOLLOWER if self.has_ended else KafkaCode.NONE
        if not self._loading.done():
            return None
        return KafkaCode.NOT_LEADER_OR_FOLLOWER if self._loading.cancelled() else self._loading.result()

    async def ready(self) -> KafkaCode:
        """Wait until the state is loaded.  Return NONE, or the error of the load."""
        while (code := self.loaded) is None:
            await asyncio.wait({self._loading})
        return code

    def _on_load_end(self) -> None:
        self._on_available()
        self._report_idle()

    async def _load(self) -> KafkaCode:
        epoch = self.leader.leader_epoch
        found = await self._states.ask(ReadState(self.key, epoch))
        if found.state is None:
            logger.warning("share partition not loaded", key=self.key.text, code=found.error, cause=found.message)
            return self._fail_load(found.error)
        start, state = found.state.start_offset, found.state
        if start == NO_START:
            # The choice is durable before a record is delivered: the next leader must not choose a later start.
            chosen = await self._find_start()
            if isinstance(chosen, KafkaCode):
                return self._fail_load(chosen)
            start = chosen
            saved = await self._states.ask(WriteState(self.key, state.state_epoch, epoch, start, ()))
            if saved.error is not KafkaCode.NONE:
                return self._fail_load(saved.error)
        self._state_epoch = state.state_epoch
        self.core = SharePartition(self.config.limits, start, state.batches)
        logger.debug("share partition loaded", key=self.key.text, epoch=epoch, start=start)
        self._watch_letters(self.core)
        return KafkaCode.NONE

    async def _find_start(self) -> int | KafkaCode:
        """Return where a new group begins: at the first committed record that is not older than `max_age_ms`.

        If every record is older, the group begins at the high watermark.
        """
        log, max_age_ms = self._replica.log, self.config.max_age_ms
        if log is None or self._replica.leader is not self.leader:
            return KafkaCode.NOT_LEADER_OR_FOLLOWER
        if max_age_ms is None:
            return log.start_offset
        end = self.leader.high_watermark
        if max_age_ms == 0:
            return end
        try:
            async with self._time_lookups:
                found = await log.offset_for_timestamp(max(self._wall_ms() - max_age_ms, 0), end)
        except (DiskError, CorruptStoreError) as error:
            self._replica.take_offline(error)
            return KafkaCode.KAFKA_STORAGE_ERROR
        return end if found is None else max(found.offset, log.start_offset)

    def _fail_load(self, code: KafkaCode) -> KafkaCode:
        """End after a failed load, so that the next request loads the state again; return the error for the client.

        A Java client fails at an error that it does not expect in a fetch, such as INVALID_REQUEST for a missing state.
        """
        self.has_ended = True
        code = _for_client(code)
        return code if code in _OF_LOADS else KafkaCode.REPLICA_NOT_AVAILABLE

    # -- fetches

    async def fetch(
        self,
        member: str,
        max_bytes: int,
        max_records: int,
        *,
        is_exact: bool,
        is_wanted: Callable[[], bool] = lambda: True,
    ) -> Fetched | KafkaCode:
        """Acquire records that are available now for a member.  There may be none.

        max_bytes: maximum number of bytes to read from the log; the first batch may be larger.
        max_records, is_exact: see `SharePartition.acquire`.
        is_wanted: returns whether the records are still needed.  If not, none are acquired.
        """
        async with self._read_lock:
            log, core = self._replica.log, self.core
            if log is None or core is None or self._replica.leader is not self.leader or self.has_ended:
                return KafkaCode.NOT_LEADER_OR_FOLLOWER
            core.follow_log_start(log.start_offset)
            offset = core.next_fetch_offset
            try:
                committed = self.config.read_committed
                end = log.last_stable_offset if committed else self.leader.high_watermark
                if offset >= end or not core.may_acquire:
                    return Fetched([], b"")
                records = await self._replica.read(offset, max_bytes, end)
                aborted = log.aborted_in(records, offset) if committed else []
            except (DiskError, CorruptStoreError) as error:
                self._replica.take_offline(error)
                return KafkaCode.KAFKA_STORAGE_ERROR
            if self._replica.leader is not self.leader or self.has_ended:
                return KafkaCode.NOT_LEADER_OR_FOLLOWER  # this broker resigned during the read
            if not is_wanted():
                return Fetched([], b"")
            headers = list(iter_headers(records))
            ranges = []
            for _, header in headers:
                if _has_nothing_for_members(header, aborted):
                    core.hide(header.base_offset, header.end_offset)
                else:
                    ranges.append((header.base_offset, header.end_offset))
            acquired = core.acquire(member, ranges, max_records, now_ms(), is_exact=is_exact)
        self._after_change()
        return Fetched(acquired, _cut(records, headers, acquired))

    # -- acknowledgements

    def acknowledge(self, member: str, batches: Sequence[Acknowledgement]) -> asyncio.Future[KafkaCode]:
        """Begin to acknowledge records.  The state must be loaded.

        The future gets NONE once the acknowledgement is durable, or the error; it never raises.
        """
        assert self.core is not None, self.key
        found = self.core.acknowledge(member, batches, now_ms())
        future: asyncio.Future[KafkaCode] = asyncio.get_running_loop().create_future()
        if isinstance(found, KafkaCode) or found == NOTHING_TO_SAVE:
            future.set_result(found if isinstance(found, KafkaCode) else KafkaCode.NONE)
        else:
            # The calls in one save share its outcome, but each call has its own future, which its caller may cancel.
            shared = self._waiting.setdefault(found, asyncio.get_running_loop().create_future())
            shared.add_done_callback(lambda done: None if future.done() else future.set_result(done.result()))
        self._after_change()
        return future

    def release(self, member: str, *, is_used: bool) -> None:
        """Release the records of a member whose session has ended.  is_used: another session uses this object."""
        self._is_used = is_used
        if self.core is not None and not self.has_ended:
            if self.core.release(member):
                self._on_available()
            self._after_change()
        if self.core is not None or self.has_ended:  # during a load, `_on_load_end` reports it
            self._report_idle()

    def use(self) -> None:
        """Note that a session uses this share partition."""
        self._is_used = True

    @property
    def lingers(self) -> bool:
        """Return whether no session uses this share partition, but dead letters are missing."""
        return not self._is_used and self._letter_task is not None

    def _report_idle(self) -> None:
        is_working = self._saving is not None or self._letter_task is not None
        if not self._is_used and (self.has_ended or not is_working):
            self._on_idle()

    # -- saves and locks

    def _after_change(self) -> None:
        """Begin a save if there are changes, and set the timer to the next expiry of a lock."""
        assert self.core is not None, self.key
        if self.has_ended:
            return
        if self.core.has_changes and self._saving is None:
            self._saving = self._group.create_task(self._save(self.core), name=f"share-save-{self.key.text}")
        self._watch_locks(self.core)
        self._watch_letters(self.core)

    def _watch_locks(self, core: SharePartition) -> None:
        if self._timer is not None:
            self._timer.cancel()
        deadline_ms = core.deadline_ms
        self._timer = None
        if deadline_ms is not None:
            at_ms = max(deadline_ms, now_ms()) + _TIMER_SLACK_MS
            self._timer = asyncio.get_running_loop().call_at(at_ms / 1000, self._on_deadline)

    def _on_deadline(self) -> None:
        assert self.core is not None, self.key
        if self.core.expire(now_ms()):
            self._on_available()
        self._after_change()

    async def _save(self, core: SharePartition) -> None:
        """Write the changes, one save after the other, until no change is left."""
        try:
            while (save := core.begin_save()) is not None:
                request = WriteState(
                    self.key, self._state_epoch, self.leader.leader_epoch, save.start_offset, save.batches
                )
                found = await self._states.ask(request)
                code = found.error
                core.saved(save.id, is_durable=code is KafkaCode.NONE)
                self._watch_locks(core)
                waiting = self._waiting.pop(save.id, None)
                if waiting is not None:
                    waiting.set_result(_for_client(code))
                if code is KafkaCode.NONE:
                    self._on_available()
                    continue
                logger.warning("share state not saved", key=self.key.text, code=code, cause=found.message)
                if code not in UNAVAILABLE:
                    self._saving = None
                    self.end()  # another leader owns the state, or the state was initialized again
                    self._report_idle()
                    return
        finally:
            self._saving = None
        self._after_change()
        self._report_idle()

    # -- dead letters

    def retry_letters(self) -> None:
        """Try again now to write dead letters, because the cause of the failure may have been removed."""
        self._retry.set()

    def _watch_letters(self, core: SharePartition) -> None:
        if self._letter_task is None and not self.has_ended and core.has_letters:
            self._letter_task = self._group.create_task(
                self._write_letters(core), name=f"share-letters-{self.key.text}"
            )

    async def _write_letters(self, core: SharePartition) -> None:
        """Write dead letters until none is missing."""
        limits = self._letters.limits
        backoff = Backoff(limits.share_letter_retry_min_ms / 1000, limits.share_letter_retry_max_ms / 1000)
        failures = 0
        try:
            while core.has_letters:
                topic, problem = self.config.dead_letters, await self._try_letters(core)
                if topic is None or not problem:
                    failures = 0
                    backoff.reset()
                    self._letters.settled(self.key, are_written=True)
                    continue
                failures += 1
                if failures >= _SILENT_FAILURES:
                    self._letters.failed(self.key, topic.name, problem)
                try:
                    async with asyncio.timeout(backoff.next_s()):
                        await self._retry.wait()
                except TimeoutError:
                    pass
                if await self._is_state_lost():
                    self._letter_task = None
                    self.end()
                    self._report_idle()
                    return
        finally:
            self._letter_task = None
            self._letters.settled(self.key, are_written=False)
        self._report_idle()

    async def _try_letters(self, core: SharePartition) -> str:
        """Try to write each dead letter once; return why some were not written, or an empty text.

        A letter that is too large does not delay the others.  If the group no longer has a dead-letter topic, its
        records need no letters.
        """
        problem, first = "", 0
        self._retry.clear()
        while (letters := self.config.dead_letters) is not None:
            attempt = await self._letters.write(self.key, self._replica, self.leader, core, letters, first)
            for done in attempt.done:
                core.buried(*done)
            self._after_change()
            problem = attempt.problem or problem
            if attempt.next_offset is None:
                return problem
            first = attempt.next_offset
        core.buried(core.start_offset, core.end_offset)
        self._after_change()
        return ""

    async def _is_state_lost(self) -> bool:
        """Return whether the state certainly no longer belongs to this leader: it was deleted, reset, or taken over."""
        found = await self._states.ask(SummarizeState(self.key, self.leader.leader_epoch))
        if found.error is not KafkaCode.NONE:
            return False  # unknown
        state = found.state
        if state is None or state.start_offset == NO_START:
            return True
        return state.state_epoch != self._state_epoch or state.leader_epoch > self.leader.leader_epoch


def _for_client(code: KafkaCode) -> KafkaCode:
    """Return the error that a client gets for an error of the share coordinator."""
    is_fenced = code in (KafkaCode.FENCED_LEADER_EPOCH, KafkaCode.FENCED_STATE_EPOCH)
    return KafkaCode.NOT_LEADER_OR_FOLLOWER if is_fenced else code


def _has_nothing_for_members(header: BatchHeader, aborted: Sequence[AbortedTransaction]) -> bool:
    """Return whether a batch has no records, or only control records or records of an aborted transaction."""
    if header.is_control or header.record_count == 0:
        return True
    return header.is_transactional and any(
        each.producer_id == header.producer_id and each.first_offset <= header.base_offset <= each.last_offset
        for each in aborted
    )


def _cut(
    records: bytes | memoryview, headers: Sequence[tuple[int, BatchHeader]], acquired: Sequence[Acquired]
) -> memoryview:
    """Return the batches from the first to the last batch with acquired records."""
    view = memoryview(records)
    if not acquired:
        return view[:0]
    first, end = acquired[0].first, acquired[-1].end
    kept = [each for each in headers if each[1].end_offset > first and each[1].base_offset < end]
    return view[kept[0][0] : kept[-1][0] + kept[-1][1].size]
