"""A consumer of records for services: `quorumlog.client.Consumer`.

Theory of operation.  `Fetcher` fetches ahead, `StartingOffsets` decides where to begin, and `GroupMember` shares the
partitions with the other members of the group.  Each is a task of its own; all work on the same positions.  The user
gets whole decoded batches: to return the next record of a batch, only the batch is read.

A record that the user got is in progress until the user asks for the next one.  Partitions are revoked only in between,
that is, while the user waits for records or has asked for none yet, as in Kafka's `poll`.  So the code that processes
a record still owns its partition, unless it took longer than `max_poll_interval_s` or lost its session.

Automatic commits contain only records whose processing has ended.  `commit` without offsets contains the record in
progress, too: call it after the work.
"""

from __future__ import annotations

import asyncio
import inspect
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Any, Final, Literal, Self, get_args

from quorumlog.client.assignors import ASSIGNORS
from quorumlog.client.cluster import Cluster
from quorumlog.client.consumer import EARLIEST, LATEST
from quorumlog.client.consumer_commits import Commits, no_group
from quorumlog.client.fetcher import Fetcher, FetchLimits
from quorumlog.client.group_member import GroupMember, MemberSettings
from quorumlog.client.groups import GroupClient
from quorumlog.client.log_offsets import list_offsets
from quorumlog.client.membership import Phase
from quorumlog.client.messages import TopicPartition
from quorumlog.client.positions import Position
from quorumlog.client.producer_transactions import GroupMetadata
from quorumlog.client.record_batches import RecordBatch
from quorumlog.client.starting_offsets import OffsetReset, StartingOffsets
from quorumlog.errors import ClusterError, ConfigError
from quorumlog.runtime.clock import Sources
from quorumlog.wire._record_scan import Record
from quorumlog.wire.errors import ApiError, KafkaCode
from quorumlog.words import listed

ASSIGNORS_DEFAULT: Final = ("range", "cooperative-sticky")
"""As in Kafka's clients: rebalances are eager, and a group can move to cooperative ones by dropping `range`."""
CALL_TIMEOUT_S: Final = 60.0
CLOSE_TIMEOUT_S: Final = 10.0
YIELD_LOOKS: Final = 64
"""Batches that are taken from the buffers before other tasks of the event loop get a turn."""

IsolationLevel = Literal["read_committed", "read_uncommitted"]
Listener = Callable[[list[TopicPartition]], Awaitable[None] | None]
"""Gets partitions, ascending.  May be a coroutine function."""


class Consumer:
    """Read records: `async with Consumer("host:9092", topics=["t"], group="g") as c: async for record in c: …`.

    With a group, its members share the partitions of the topics, and reading continues at committed offsets.  Without
    one, the consumer reads all partitions of `topics`, or those that are given to `assign`.  Use it from one event
    loop, and read from one task.

    Args:
        bootstrap: `HOST:PORT`, several with commas or as a list; or a `Cluster`, which stays open.
        topics: names.  pattern: a regular expression that must match the whole name instead.
        group: id of the consumer group.
        group_instance_id: makes this a static member: a restart within the session keeps the partitions.
        assignors: of "range", "roundrobin", "sticky", "cooperative-sticky"; the preferred one first.  Rebalances are
            cooperative only if all of them are.
        auto_offset_reset: where to begin without a committed offset, and if the offset is out of range: "earliest",
            "latest", or "none", an error.
        isolation_level: "read_committed": without the records of aborted transactions, and only up to the first open
            one, the last stable offset.  "read_uncommitted": all records.
        auto_commit: commit the processed records every `auto_commit_interval_s`, at a rebalance, and at the end.
        session_timeout_s: the coordinator expels a member without heartbeats for this long.
        heartbeat_interval_s: time between two heartbeats.
        max_poll_interval_s: if the user requests no records for this long, the member leaves the group.  A rebalance
            waits this long for the member.
        on_assigned, on_revoked, on_lost: called with the partitions.  `on_revoked` may still commit; after `on_lost`
            others may own them already.
        fetch: limits of fetches and buffers.
        failure_timeout_s: waiting for records raises an error if a partition or the group cannot be reached for
            this long.  The next call continues to wait.
        metadata_age_s: how often new topics and partitions are looked for.

    Raises:
        ConfigError: an argument is out of range; lists all of them.
        ClusterError: `bootstrap` is malformed.
    """

    def __init__(
        self,
        bootstrap: str | Sequence[str] | Cluster,
        *,
        topics: Iterable[str] | None = None,
        pattern: str | None = None,
        group: str | None = None,
        group_instance_id: str | None = None,
        assignors: Sequence[str] = ASSIGNORS_DEFAULT,
        auto_offset_reset: OffsetReset = "latest",
        isolation_level: IsolationLevel = "read_committed",
        auto_commit: bool = True,
        auto_commit_interval_s: float = 5.0,
        session_timeout_s: float = 45.0,
        heartbeat_interval_s: float = 3.0,
        max_poll_interval_s: float = 300.0,
        on_assigned: Listener | None = None,
        on_revoked: Listener | None = None,
        on_lost: Listener | None = None,
        fetch: FetchLimits | None = None,
        failure_timeout_s: float = CALL_TIMEOUT_S,
        metadata_age_s: float = 30.0,
        client_id: str = "quorumlog-consumer",
        sources: Sources | None = None,
    ) -> None:
        names = None if topics is None else frozenset([topics] if isinstance(topics, str) else topics)
        problems = [
            text
            for text, is_bad in (
                ("topics and pattern exclude each other", names is not None and pattern is not None),
                ("topics is empty", names is not None and not names),
                (f"pattern is not a regular expression: {pattern!r}", not _is_pattern(pattern)),
                ("group is empty", group == ""),
                ("group_instance_id needs a group", group_instance_id is not None and group is None),
                (
                    f"assignors is {list(assignors)}, not some of {', '.join(ASSIGNORS)}",
                    not assignors or not set(assignors) <= ASSIGNORS.keys(),
                ),
                (
                    f"auto_offset_reset is {auto_offset_reset!r}, not one of earliest, latest, none",
                    auto_offset_reset not in ("earliest", "latest", "none"),
                ),
                (
                    f"isolation_level is {isolation_level!r}, not one of {', '.join(get_args(IsolationLevel))}",
                    isolation_level not in get_args(IsolationLevel),
                ),
                (f"auto_commit_interval_s is {auto_commit_interval_s}, not above 0", auto_commit_interval_s <= 0),
                (
                    f"heartbeat_interval_s is {heartbeat_interval_s}, not above 0 and below session_timeout_s",
                    not 0 < heartbeat_interval_s < session_timeout_s,
                ),
                (f"max_poll_interval_s is {max_poll_interval_s}, not above 0", max_poll_interval_s <= 0),
                (f"failure_timeout_s is {failure_timeout_s}, not above 0", failure_timeout_s <= 0),
                (f"metadata_age_s is {metadata_age_s}, not above 0", metadata_age_s <= 0),
            )
            if is_bad
        ]
        if problems:
            raise ConfigError(*problems)
        self._owns_cluster = not isinstance(bootstrap, Cluster)
        random = None if sources is None else sources.random
        self._cluster = (
            bootstrap
            if isinstance(bootstrap, Cluster)
            else Cluster(bootstrap, client_id=client_id, create_topics=names is not None, random=random)
        )
        self._group = group
        self._names = names
        self._pattern = None if pattern is None else re.compile(pattern)
        self._auto_commit_interval_s = auto_commit_interval_s if auto_commit and group is not None else None
        self._poll_interval_s = max_poll_interval_s
        self._failure_timeout_s = failure_timeout_s
        self._metadata_age_s = metadata_age_s
        self._listeners = {"assigned": on_assigned, "revoked": on_revoked, "lost": on_lost}
        self._positions: dict[TopicPartition, Position] = {}
        self._committed_only = isolation_level == "read_committed"
        self._fetcher = Fetcher(
            self._cluster,
            self._positions,
            fetch or FetchLimits(),
            self._changed,
            committed_only=self._committed_only,
        )
        groups = GroupClient(self._cluster)
        self._commits = (
            None if group is None else Commits(groups, group, self._positions, committed_only=self._committed_only)
        )
        self._starting = StartingOffsets(
            self._cluster,
            self._positions,
            auto_offset_reset,
            None if self._commits is None else self._commits.to_begin_at,
            self._positions_changed,
            committed_only=self._committed_only,
        )
        self._member: GroupMember | None = None
        if group is not None and (names is not None or pattern is not None):
            settings = MemberSettings(
                group,
                tuple(assignors),
                group_instance_id,
                session_timeout_s,
                heartbeat_interval_s,
                max_poll_interval_s,
                metadata_age_s,
            )
            self._member = GroupMember(self._cluster, groups, self, settings, self._wanted_topics)
            assert self._commits is not None
            self._commits.member = self._member
        self._batch: list[Record] = []
        self._at = 0
        """The index, in the batch, of the next record that the user gets."""
        self._current: Position | None = None
        """The partition of the records that are in progress, and of the batch."""
        self._open_offset: int | None = None
        """The first offset in progress; None if nothing is in progress."""
        self._unsent: set[TopicPartition] = set()
        """The partitions of which records were handed out since the last `offsets_to_send`."""
        self._taken: set[TopicPartition] = set()
        """Those of them that the group has taken from us."""
        self._looks = 0
        self._is_looking = False
        self._must_yield = False
        self._idle = asyncio.Event()
        """Set while nothing is in progress."""
        self._idle.set()
        self._revoking = 0
        self._ready = asyncio.Event()
        """Set when there may be records, or an error."""
        self._turn = 0
        self._error: ClusterError | None = None
        """Why the member cannot be in the group."""
        self._listener_error: ClusterError | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._member_task: asyncio.Task[None] | None = None
        self._closed: ClusterError | None = ClusterError(
            ApiError.CLIENT_CLOSED, "the consumer was not started", "use `async with`, or await start()"
        )

    # --- life ---

    async def start(self) -> None:
        """Connect, and begin to join or to fetch; `async with` does it.  Does not wait for an assignment.

        Raises:
            ClusterError: no broker answers within `failure_timeout_s`; without a group, also if a topic is missing.
        """
        if self._group is None and (self._names is not None or self._pattern is not None):
            self._assign_all(await self._wanted_topics(self._failure_timeout_s))
        else:
            await self._cluster.retrying("a broker", self._failure_timeout_s, self._cluster.any_broker)
        self._closed = None
        self._begin(self._fetcher.run())
        self._begin(self._starting.run())
        if self._member is not None:
            self._member_task = self._begin(self._member.run())
        elif self._group is None and (self._names is not None or self._pattern is not None):
            self._begin(self._watch_partitions())
        if self._auto_commit_interval_s is not None:
            self._begin(self._commit_repeatedly(self._auto_commit_interval_s))

    async def close(self, *, commit: bool = True) -> None:
        """Commit if `auto_commit` is on, leave the group, and close all connections.  Takes at most about 15 s.

        commit: False: commit only records whose processing has ended, as after an error.
        """
        was_open, self._closed = self._closed is None, ClusterError(ApiError.CLIENT_CLOSED, "the consumer was closed")
        try:
            if was_open:
                if commit:
                    self._finish_batch()
                async with asyncio.timeout(CLOSE_TIMEOUT_S):
                    await self._give_up(frozenset(self._positions))
        except TimeoutError:
            pass
        finally:
            self._ready.set()
            tasks = list(self._tasks)
            for task in tasks:
                task.cancel()
            if tasks:
                await asyncio.wait(tasks)
            if self._member is not None:
                await self._member.close()
            if self._owns_cluster:
                await self._cluster.close()

    async def __aenter__(self) -> Self:
        try:
            await self.start()
        except BaseException:
            await self.close()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close(commit=error is None)

    def _begin(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (bug := task.exception()) is not None:
            self._closed = ClusterError(ApiError.FAILED, f"the consumer failed: {bug!r}")
            self._closed.__cause__ = bug
            self._ready.set()

    # --- records ---

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Record:
        """Return the next record; waits until there is one.

        Raises:
            ClusterError: a partition or the group cannot be reached for `failure_timeout_s` (retriable); the position
                is out of range and `auto_offset_reset` is none; a batch is damaged; the group refuses the member.
        """
        at = self._at
        if at >= len(self._batch):
            await self._look(None)
            at = 0
        record = self._batch[at]
        self._at = at + 1
        self._open_offset = record[2]
        self._current.next_offset = record[2] + 1  # type: ignore[union-attr]  # set with the batch
        return record

    async def get(self, timeout_s: float = CALL_TIMEOUT_S) -> Record | None:
        """Return the next record, None if there is none within `timeout_s`.  Raises: as `async for`.

        A call that is cancelled has taken no record.
        """
        if self._at >= len(self._batch) and not await self._look(timeout_s):
            return None
        return await self.__anext__()

    async def get_many(self, max_records: int | None = None, timeout_s: float = CALL_TIMEOUT_S) -> RecordBatch | None:
        """Return the next records of one partition, None if there are none within `timeout_s`.

        All of them are in progress until the next call.  Raises: as `async for`.
        """
        if self._at >= len(self._batch) and not await self._look(timeout_s):
            return None
        position = self._current
        assert position is not None
        end = len(self._batch) if max_records is None else min(self._at + max(max_records, 1), len(self._batch))
        records = self._batch[self._at : end] if self._at or end < len(self._batch) else self._batch
        self._at = end
        self._open_offset = records[0].offset
        position.next_offset = records[-1].offset + 1
        return RecordBatch(position.partition, records, position.high_watermark)

    async def batches(self) -> AsyncIterator[RecordBatch]:
        """Yield all records as batches of one partition each: `async for batch in consumer.batches()`.

        Raises: as `async for`.
        """
        while True:
            batch = await self.get_many(timeout_s=CALL_TIMEOUT_S)
            if batch is not None:
                yield batch

    async def _look(self, timeout_s: float | None) -> bool:
        """Wait for a batch; return whether there is one."""
        self._finish_batch()
        self._looks += 1
        self._is_looking = True
        try:
            if self._must_yield or self._looks % YIELD_LOOKS == 0:  # let fetches and heartbeats run
                self._must_yield = False
                await asyncio.sleep(0)
            async with asyncio.timeout(timeout_s):
                while True:
                    self._ready.clear()
                    if self._take():
                        self._idle.clear()
                        return True
                    if self._member is not None:
                        self._member.active()
                    await self._wait()
        except TimeoutError:
            return False
        finally:
            self._is_looking = False

    async def _wait(self) -> None:
        """Wait until something changed, or an error may be due."""
        with suppress(TimeoutError):
            async with asyncio.timeout(1.0):
                await self._ready.wait()

    def _finish_batch(self) -> None:
        """Note that the user has finished the records in progress."""
        self._batch, self._at = [], 0
        self._current = None
        self._open_offset = None
        self._idle.set()

    def _drop_batch(self, partitions: frozenset[TopicPartition] | set[TopicPartition]) -> None:
        """Hand out no more records of these partitions; records in progress stay in progress."""
        if self._current is not None and self._current.partition in partitions:
            self._batch, self._at = [], 0

    def _take(self) -> bool:
        """Take the next batch of some partition.  Raises: ClusterError."""
        if self._closed is not None:
            raise self._closed
        if self._error is not None:
            raise self._error
        if self._listener_error is not None:
            error, self._listener_error = self._listener_error, None
            raise error
        if self._revoking:
            return False
        positions = list(self._positions.values())
        for number in range(len(positions)):  # each in its turn
            position = positions[(self._turn + number) % len(positions)]
            if position.is_paused:
                continue
            if position.error is not None:
                found, position.error = position.error, None
                self._starting.wake()
                raise found
            if not position.chunks:
                continue
            before = position.buffered_bytes
            records = position.take()
            if position.buffered_bytes < before:
                self._must_yield = True
                self._fetcher.wake()
            if records:
                self._turn += number + 1
                self._batch, self._at, self._current = records, 0, position
                self._unsent.add(position.partition)
                return True
        self._raise_failures()
        return False

    def _raise_failures(self) -> None:
        """Raise an error if a partition or the group has failed for `failure_timeout_s`.  Raises: ClusterError."""
        now = asyncio.get_running_loop().time()
        for each in (*self._positions.values(), self._member):
            since = None if each is None else each.failing_since
            if each is not None and since is not None and now - since >= self._failure_timeout_s:
                each.failing_since = now
                failure = each.failure
                assert failure is not None
                message = f"no success for {self._failure_timeout_s:g} s; the last answer was: {failure.message}"
                raise ClusterError(ApiError.TIMED_OUT, message, failure.next_step, retriable=True) from failure

    def _changed(self) -> None:
        self._ready.set()
        self._starting.wake()

    def _positions_changed(self) -> None:
        self._ready.set()
        self._fetcher.wake()

    # --- partitions ---

    def assignment(self) -> frozenset[TopicPartition]:
        """Return the partitions that this consumer reads now."""
        return frozenset(self._positions)

    def assign(self, partitions: Iterable[tuple[str, int]]) -> None:
        """Read exactly these partitions, without sharing them.  With a group, its committed offsets are used.

        Raises: ClusterError: INVALID_REQUEST if the consumer subscribes to topics.
        """
        if self._names is not None or self._pattern is not None:
            message = "a consumer either subscribes to topics or gets its partitions by assign"
            raise ClusterError(ApiError.INVALID_REQUEST, message, "use another consumer without topics and pattern")
        wanted = {TopicPartition(*each) for each in partitions}
        self._remove(set(self._positions) - wanted)
        self._add(wanted)

    def _add(self, partitions: Iterable[TopicPartition], held: bool = False) -> list[Position]:
        added = []
        for partition in sorted(set(partitions) - self._positions.keys()):
            position = self._positions[partition] = Position(partition)
            position.is_held = held
            added.append(position)
        self._starting.wake()
        return added

    def _remove(self, partitions: Iterable[TopicPartition]) -> None:
        gone = set(partitions)
        self._drop_batch(gone)
        if self._current is not None and self._current.partition in gone:
            self._open_offset = None
        for partition in gone:
            self._positions.pop(partition, None)
        self._fetcher.wake()

    def _assign_all(self, found: tuple[frozenset[str], Mapping[str, int]]) -> None:
        _, counts = found
        self._add(TopicPartition(topic, index) for topic, count in counts.items() for index in range(count))

    async def _watch_partitions(self) -> None:
        while True:
            await asyncio.sleep(self._metadata_age_s)
            with suppress(ClusterError):  # fetches report it
                self._assign_all(await self._wanted_topics())

    async def _wanted_topics(self, timeout_s: float = CALL_TIMEOUT_S) -> tuple[frozenset[str], dict[str, int]]:
        """Return the topics of the subscription, and the number of partitions of those that exist."""
        if self._names is not None:
            return self._names, await self._cluster.partition_counts(self._names, timeout_s)
        assert self._pattern is not None
        states = await self._cluster.topic_states(None, timeout_s)
        counts = {
            name: len(state.leader_epochs)
            for name, state in states.items()
            if not state.is_internal and self._pattern.fullmatch(name)
        }
        return frozenset(counts), counts

    def pause(self, *partitions: tuple[str, int]) -> None:
        """Hand out no more records of these partitions until `resume`; their buffered records are kept."""
        named = {TopicPartition(*each) for each in partitions}
        if self._current is not None and self._current.partition in named:
            self._refetch(self._current)
        for partition in named:
            self._position(partition).is_paused = True

    def resume(self, *partitions: tuple[str, int]) -> None:
        for partition in partitions:
            self._position(partition).is_paused = False
        self._fetcher.wake()
        self._ready.set()

    def paused(self) -> frozenset[TopicPartition]:
        return frozenset(key for key, position in self._positions.items() if position.is_paused)

    def _position(self, partition: tuple[str, int]) -> Position:
        found = self._positions.get(TopicPartition(*partition))
        if found is None:
            message = f"{TopicPartition(*partition)} is not assigned to this consumer"
            raise ClusterError(ApiError.INVALID_REQUEST, message, "see assignment()")
        return found

    def _refetch(self, position: Position) -> None:
        """Drop the rest of the current batch, so that it is fetched again later."""
        rest = position is self._current and self._at < len(self._batch)
        self._drop_batch({position.partition})
        if rest:
            position.move(position.next_offset)

    # --- positions ---

    def seek(self, partition: tuple[str, int], offset: int) -> None:
        """Continue at `offset`.  If it is out of range, `auto_offset_reset` decides at the next fetch."""
        if offset < 0:
            raise ValueError(f"offset is {offset}, below 0")
        position = self._position(partition)
        self._drop_batch({position.partition})
        if position is self._current:
            self._open_offset = None
        self._unsent.discard(position.partition)
        position.is_held = False
        position.move(offset)
        self._fetcher.wake()

    async def seek_to_beginning(self, *partitions: tuple[str, int], timeout_s: float = CALL_TIMEOUT_S) -> None:
        """Continue at the first record; of all assigned partitions if none is named.  Raises: ClusterError."""
        await self._seek_to(partitions, EARLIEST, timeout_s)

    async def seek_to_end(self, *partitions: tuple[str, int], timeout_s: float = CALL_TIMEOUT_S) -> None:
        """Continue after the last record.  Raises: ClusterError."""
        await self._seek_to(partitions, LATEST, timeout_s)

    async def seek_to_time(
        self, timestamp_ms: int, *partitions: tuple[str, int], timeout_s: float = CALL_TIMEOUT_S
    ) -> None:
        """Continue at the first record that is not older, or else after the last one.  Raises: ClusterError."""
        await self._seek_to(partitions, timestamp_ms, timeout_s)

    async def _seek_to(self, partitions: Sequence[tuple[str, int]], timestamp: int, timeout_s: float) -> None:
        named = [self._position(each).partition for each in partitions] or list(self._positions)
        found = await self._list(named, timestamp, timeout_s)
        older = [partition for partition, offset in found.items() if offset < 0]
        if older:
            found.update(await self._list(older, LATEST, timeout_s))
        for partition, offset in found.items():
            self.seek(partition, offset)

    def position(self, partition: tuple[str, int]) -> int | None:
        """Return the offset of the next record that the user gets; None until it is known."""
        return self._position(partition).next_offset

    async def beginning_offsets(
        self, partitions: Iterable[tuple[str, int]], timeout_s: float = CALL_TIMEOUT_S
    ) -> dict[TopicPartition, int]:
        """Return the first offset of each partition.  Raises: ClusterError."""
        return await self._list(partitions, EARLIEST, timeout_s)

    async def end_offsets(
        self, partitions: Iterable[tuple[str, int]], timeout_s: float = CALL_TIMEOUT_S
    ) -> dict[TopicPartition, int]:
        """Return the end of the records that this consumer can read, by partition.  Raises: ClusterError.

        That is the high watermark, or with `read_committed` the last stable offset.
        """
        return await self._list(partitions, LATEST, timeout_s)

    async def offsets_for_time(
        self, timestamp_ms: int, partitions: Iterable[tuple[str, int]], timeout_s: float = CALL_TIMEOUT_S
    ) -> dict[TopicPartition, int]:
        """Return the first offset whose record is not older; -1 if all are older.  Raises: ClusterError."""
        return await self._list(partitions, timestamp_ms, timeout_s)

    async def lag(self, timeout_s: float = CALL_TIMEOUT_S) -> dict[TopicPartition, int]:
        """Return how many offsets each assigned partition's position is behind its end.

        Partitions without a position yet are left out.  Raises: ClusterError.
        """
        ends = await self._list(self._positions, LATEST, timeout_s)
        return {
            partition: max(end - position.next_offset, 0)
            for partition, end in ends.items()
            if (position := self._positions.get(partition)) is not None and position.next_offset is not None
        }

    async def _list(
        self, partitions: Iterable[tuple[str, int]], timestamp: int, timeout_s: float
    ) -> dict[TopicPartition, int]:
        wanted = {(topic, index): timestamp for topic, index in partitions}
        found = await list_offsets(self._cluster, wanted, timeout_s, committed_only=self._committed_only)
        offsets = {}
        for partition, outcome in found.items():
            if isinstance(outcome, ClusterError):
                raise outcome
            offsets[TopicPartition(*partition)] = outcome
        return offsets

    # --- commits ---

    async def commit(
        self, offsets: Mapping[tuple[str, int], int] | None = None, timeout_s: float = CALL_TIMEOUT_S
    ) -> dict[TopicPartition, int]:
        """Commit offsets, and return them once they are durable.

        offsets: the offset of the next record to read, by partition.  None: the positions, after all records handed out
            so far.

        Raises:
            ClusterError: UNKNOWN_MEMBER_ID, ILLEGAL_GENERATION: the member is out of the group, and others may read
                the partitions; REBALANCE_IN_PROGRESS: retry after the rebalance; TIMED_OUT: any of them may be
                committed; INVALID_REQUEST: there is no group.  After a cancel, any of them may be committed.
        """
        if offsets is None:
            offsets = self._uncommitted(includes_open=True)
        wanted = {TopicPartition(*partition): offset for partition, offset in offsets.items()}
        if self._commits is None:
            raise no_group("cannot commit")
        if any(offset < 0 for offset in wanted.values()):
            raise ValueError("an offset to commit is below 0")
        if not wanted:
            return {}
        await self._commits.commit(wanted, timeout_s)
        return wanted

    def group_metadata(self) -> GroupMetadata:
        """Return the membership of this consumer, for `Producer.send_offsets`.

        Raises:
            ClusterError: INVALID_REQUEST: it has no group, or commits on its own.
        """
        if self._commits is None or self._auto_commit_interval_s is not None:
            why = "has no group" if self._commits is None else "commits on its own"
            text = f"the consumer {why}, so its offsets cannot be part of a transaction"
            raise ClusterError(ApiError.INVALID_REQUEST, text, "pass group=… and auto_commit=False to Consumer")
        return self._commits.metadata()

    def offsets_to_commit(self) -> dict[TopicPartition, int]:
        """Return the offsets after everything handed out so far, by assigned partition."""
        return {TopicPartition(*key): each for key, each in self._uncommitted(includes_open=True).items()}

    def offsets_to_send(self) -> tuple[GroupMetadata, dict[TopicPartition, int]]:
        """Return `group_metadata` and `offsets_to_commit` for a transaction that has all records handed out so far.

        Raises:
            ClusterError: INVALID_REQUEST, as `group_metadata`; ILLEGAL_GENERATION, once: the group has taken partitions
                of such records, so that their next owner reads the records again.
        """
        membership = self.group_metadata()
        taken = sorted(self._taken)
        self._unsent.clear()
        self._taken.clear()
        if taken:
            text = f"{listed(map(str, taken))} were taken from the consumer before the offsets of its records were sent"
            step = "abort the transaction, and seek to the committed offsets of the assigned partitions"
            raise ClusterError(KafkaCode.ILLEGAL_GENERATION.name, text, step)
        return membership, self.offsets_to_commit()

    async def committed(
        self, partitions: Iterable[tuple[str, int]] | None = None, timeout_s: float = CALL_TIMEOUT_S
    ) -> dict[TopicPartition, int]:
        """Return the committed offsets of the group; of the assigned partitions if None.

        With `read_committed`, wait while a transaction that contains offsets of these partitions is open.

        Raises:
            ClusterError: TIMED_OUT, also if such a transaction stays open, as one of the caller's own does.
        """
        if self._commits is None:
            raise no_group("has no committed offsets")
        return await self._commits.committed(list(self._positions) if partitions is None else partitions, timeout_s)

    def _uncommitted(
        self, partitions: Iterable[TopicPartition] | None = None, *, includes_open: bool = False
    ) -> dict[tuple[str, int], int]:
        """Return the offsets to commit.  includes_open: include those of records in progress."""
        found: dict[tuple[str, int], int] = {}
        for partition in list(self._positions) if partitions is None else partitions:
            position = self._positions.get(partition)
            if position is None or position.next_offset is None:
                continue
            offset = position.next_offset
            if position is self._current and self._open_offset is not None and not includes_open:
                offset = self._open_offset
            if offset != position.committed:
                found[partition] = offset
        return found

    async def _commit_repeatedly(self, interval_s: float) -> None:
        while True:
            await asyncio.sleep(interval_s)
            with suppress(ClusterError):  # the next commit contains it; a member that is out of the group rejoins
                await self.commit(self._uncommitted(), interval_s)

    # --- the group ---

    async def _give_up(self, partitions: frozenset[TopicPartition]) -> None:
        if self._auto_commit_interval_s is not None:
            with suppress(ClusterError):  # the next owner reads some records again
                await self.commit(self._uncommitted(partitions), CLOSE_TIMEOUT_S)
        if self._member is not None and partitions:
            await self._call("revoked", partitions)
        self._remove(partitions)

    async def revoke(self, partitions: frozenset[TopicPartition]) -> None:
        """For the membership: see `group_member.Owner`."""
        self._revoking += 1
        try:
            if self._current is not None:  # even if it stays assigned: the user then asks for records sooner
                self._refetch(self._current)
            with suppress(TimeoutError):
                async with asyncio.timeout(self._poll_interval_s):
                    await self._idle.wait()
                    await self._give_up(partitions & self._positions.keys())
            self._taken |= partitions & self._unsent
            self._remove(partitions)
        finally:
            self._revoking -= 1
            self._ready.set()

    def lose(self, partitions: frozenset[TopicPartition]) -> None:
        """For the membership."""
        mine = partitions & self._positions.keys()
        self._taken |= mine & self._unsent
        self._remove(mine)
        if mine:
            self._begin(self._call("lost" if self._listeners["lost"] is not None else "revoked", mine))

    async def assigned(self, partitions: frozenset[TopicPartition]) -> None:
        """For the membership."""
        added = self._add(partitions, held=True)
        try:
            await self._call("assigned", partitions)
        finally:
            for position in added:
                position.is_held = False
            self._starting.wake()
            self._fetcher.wake()

    def out_of_group(self, error: ClusterError) -> None:
        """For the membership."""
        self._error = error
        self._ready.set()

    def progress(self) -> object | None:
        """For the membership."""
        return None if self._is_looking else (self._looks, self._open_offset)

    async def _call(self, kind: str, partitions: frozenset[TopicPartition]) -> None:
        """Call the user's listener.  Its error is raised when the user next asks for records."""
        listener = self._listeners[kind]
        if listener is None:
            return
        try:
            async with asyncio.timeout(self._poll_interval_s):
                result = listener(sorted(partitions))
                if inspect.isawaitable(result):
                    await result
        except Exception as error:
            message = f"on_{kind} failed: {error!r}"
            self._listener_error = ClusterError(ApiError.FAILED, message)
            self._listener_error.__cause__ = error
            self._ready.set()

    @property
    def is_stable(self) -> bool:
        """Return whether no rebalance is in progress; True without a group."""
        return self._member is None or self._member.core.phase is Phase.STABLE


def _is_pattern(pattern: str | None) -> bool:
    try:
        re.compile(pattern or "")
    except re.error:
        return False
    return True
