"""A consumer of records for services: `quorumlog.client.Consumer`.

Theory of operation.  `Fetcher` fetches ahead, `StartingOffsets` decides where to begin, and `GroupMember` shares the
partitions with the other members of the group.  Each is a task of its own.  `Reading` has the positions, which all
three use, and `ConsumerGroup` adds and removes partitions for the membership.  Batches are decoded as a whole, so the
next record of a batch is returned without any other work.

A record that the user got is in progress until the user asks for the next one.  Partitions are revoked only when no
record is in progress: while the user waits for records or has asked for none yet, as in Kafka's `poll`.  So the code
that processes a record still owns its partition, unless it took longer than `max_poll_interval_s` or the session ended.

Automatic commits cover only records whose processing has ended.  `commit` without offsets also covers the record in
progress, so call it after the processing.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Final, Self

from quorumlog.client.cluster import Cluster
from quorumlog.client.consumer import EARLIEST, LATEST
from quorumlog.client.consumer_commits import Commits, no_group
from quorumlog.client.consumer_group import ConsumerGroup
from quorumlog.client.consumer_reading import Reading
from quorumlog.client.consumer_settings import (
    ASSIGNORS_DEFAULT,
    CALL_TIMEOUT_S,
    CLOSE_TIMEOUT_S,
    ConsumerSettings,
    IsolationLevel,
    Listener,
)
from quorumlog.client.consumer_topics import AllPartitions, SubscribedLogs, Subscription
from quorumlog.client.fetcher import FetchLimits
from quorumlog.client.group_member import GroupMember
from quorumlog.client.groups import GroupClient
from quorumlog.client.membership import Phase
from quorumlog.client.messages import TopicPartition, as_offset, as_timestamp_ms, check_partitions
from quorumlog.client.positions import Position
from quorumlog.client.producer_transactions import GroupMetadata
from quorumlog.client.record_batches import RecordBatch
from quorumlog.client.starting_offsets import OffsetReset
from quorumlog.client.tasks import BackgroundTasks
from quorumlog.errors import ClusterError
from quorumlog.runtime.clock import Sources
from quorumlog.wire._record_scan import Record
from quorumlog.wire.errors import ApiError, KafkaCode
from quorumlog.words import listed

YIELD_LOOKS: Final = 64
"""After this many batches, other tasks of the event loop get a turn, even if more records are buffered."""


class Consumer:
    """Read records: `async with Consumer("host:9092", topics=["t"], group="g") as c: async for record in c: …`.

    With a group, its members share the partitions of the topics, and reading continues at committed offsets.  Without a
    group, the consumer reads all partitions of `topics`, or those that are given to `assign`.  If a partition of
    `topics` is deleted and created again, `auto_offset_reset` decides where its reading begins.  Use it from one event
    loop, and read from one task.

    Args:
        bootstrap: `HOST:PORT`, several with commas or as a list; or a `Cluster`, which stays open.
        topics: names of topics.  pattern: instead of names, a regular expression that must match the whole name.
        group: id of the consumer group.
        group_instance_id: makes this a static member: after a restart within the session timeout, it keeps its
            partitions.
        assignors: some of "range", "roundrobin", "sticky", "cooperative-sticky"; the preferred one first.  Rebalances
            are cooperative only if all of these assignors are.
        auto_offset_reset: where to begin if no offset is committed, or if the offset is out of range: "earliest",
            "latest", or "none" (raise an error).
        isolation_level: "read_committed": read up to the last stable offset, which is before the first open
            transaction, and omit the records of aborted transactions.  "read_uncommitted": read all records.
        auto_commit: commit the processed records every `auto_commit_interval_s`, at a rebalance, and at the end.
        session_timeout_s: the coordinator expels a member without heartbeats for this long.
        heartbeat_interval_s: time between two heartbeats.
        max_poll_interval_s: if the user requests no records for this long, the member leaves the group.  A rebalance
            waits this long for the member.
        on_assigned, on_revoked, on_lost: called with the partitions.  `on_revoked` may still commit.  When `on_lost` is
            called, other members may already own the partitions.
        fetch: limits of fetches and buffers.
        failure_timeout_s: waiting for records raises an error if a partition or the group cannot be reached for
            this long.  The next call continues to wait.
        metadata_age_s: the interval at which new topics, partitions and leaders are looked for.
        sources: the source of randomness, for tests.

    Raises:
        ConfigError: arguments are invalid; the error lists all of these.
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
        settings = self._settings = ConsumerSettings(
            client_id=client_id,
            topics=None if topics is None else frozenset([topics] if isinstance(topics, str) else topics),
            pattern=pattern,
            group=group,
            group_instance_id=group_instance_id,
            assignors=tuple(assignors),
            auto_offset_reset=auto_offset_reset,
            isolation_level=isolation_level,
            auto_commit=auto_commit,
            auto_commit_interval_s=auto_commit_interval_s,
            session_timeout_s=session_timeout_s,
            heartbeat_interval_s=heartbeat_interval_s,
            max_poll_interval_s=max_poll_interval_s,
            on_assigned=on_assigned,
            on_revoked=on_revoked,
            on_lost=on_lost,
            fetch=fetch or FetchLimits(),
            failure_timeout_s=failure_timeout_s,
            metadata_age_s=metadata_age_s,
        )
        self._owns_cluster = not isinstance(bootstrap, Cluster)
        if not isinstance(bootstrap, Cluster):
            random = None if sources is None else sources.random
            bootstrap = Cluster(bootstrap, client_id=client_id, create_topics=topics is not None, random=random)
        self._cluster = bootstrap
        self._closed: ClusterError | None = ClusterError(
            ApiError.CLIENT_CLOSED, "the consumer was not started", "use `async with`, or await start()"
        )
        self._tasks = BackgroundTasks(self._broken)
        self._subscription = Subscription(bootstrap, settings.topics, pattern)
        positions: dict[TopicPartition, Position] = {}
        groups = GroupClient(bootstrap)
        commits = None
        if group is not None:
            commits = Commits(groups, group, positions, committed_only=settings.committed_only)
        self._reading = Reading(bootstrap, positions, settings, None if commits is None else commits.to_begin_at)
        self._in_progress = self._reading.in_progress
        logs = SubscribedLogs(bootstrap, self._subscription, self._reading)
        self._all_partitions = AllPartitions(logs, self._reading)
        self._group: ConsumerGroup | None = None
        if commits is not None:
            self._group = ConsumerGroup(bootstrap, groups, settings, logs, commits, self._reading, self._tasks.begin)

    @property
    def _member(self) -> GroupMember | None:
        return None if self._group is None else self._group.member

    # --- life ---

    async def start(self) -> None:
        """Connect, and begin to join the group or to fetch; `async with` calls this.  Does not wait for an assignment.

        Raises:
            ClusterError: no broker answers within `failure_timeout_s`.  A missing topic is not an error, but causes a
                warning in the log of `quorumlog.client`: it is read once it exists.
        """
        reads_all = self._group is None and self._settings.is_subscribed
        if reads_all:
            await self._all_partitions.look(self._settings.failure_timeout_s)
        else:
            await self._cluster.retrying("a broker", self._settings.failure_timeout_s, self._cluster.any_broker)
        self._closed = None
        self._tasks.begin(self._reading.fetcher.run())
        self._tasks.begin(self._reading.starting.run())
        if reads_all:
            self._tasks.begin(self._watch_partitions())
        elif not self._settings.is_subscribed:
            self._tasks.begin(self._watch_leaders())
        if self._group is not None:
            self._group.start()

    async def close(self, *, commit: bool = True) -> None:
        """Commit if `auto_commit` is on, leave the group, and close all connections.  Takes at most about 15 s.

        A cancelled call closes all connections as well.
        commit: treat the records in progress as processed.  False, for use after an error: these records are not
            committed.
        """
        was_open, self._closed = self._closed is None, ClusterError(ApiError.CLIENT_CLOSED, "the consumer was closed")
        try:
            if was_open:
                if commit:
                    self._in_progress.finish()
                async with asyncio.timeout(CLOSE_TIMEOUT_S):
                    await self._give_up()
        except TimeoutError:
            pass
        finally:
            self._reading.wake()
            try:  # a cancelled call does the rest as well
                await self._tasks.stop()
            finally:
                try:
                    if self._member is not None:
                        await self._member.close()
                finally:
                    if self._owns_cluster:
                        await self._cluster.close()

    async def _give_up(self) -> None:
        partitions = frozenset(self._reading.positions)
        if self._group is not None:
            await self._group.give_up(partitions)
        else:
            self._reading.remove(partitions)

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

    def _broken(self, bug: BaseException) -> None:
        self._closed = ClusterError(ApiError.FAILED, f"the consumer failed: {bug!r}")
        self._closed.__cause__ = bug
        self._reading.wake()

    # --- records ---

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Record:
        """Return the next record; waits until there is one.

        Raises:
            ClusterError: a partition or the group cannot be reached for `failure_timeout_s` (retriable); the position
                is out of range and `auto_offset_reset` is "none"; a batch is damaged; a listener failed; the group
                refuses the member; the consumer has neither topics nor assigned partitions; or it is closed.
        """
        now = self._in_progress
        at = now.at
        if at >= len(now.batch):
            await self._look(None)
            at = 0
        record = now.batch[at]
        now.at = at + 1
        now.open_offset = record[2]
        now.current.next_offset = record[2] + 1  # type: ignore[union-attr]  # set with the batch
        return record

    async def get(self, timeout_s: float = CALL_TIMEOUT_S) -> Record | None:
        """Return the next record, or None if no record arrives within `timeout_s`.  Raises: as `async for`.

        A cancelled call loses no record.
        """
        if self._in_progress.is_used_up and not await self._look(timeout_s):
            return None
        return await self.__anext__()

    async def get_many(self, max_records: int | None = None, timeout_s: float = CALL_TIMEOUT_S) -> RecordBatch | None:
        """Return the next records of one partition; None if there are none within `timeout_s`.

        All these records are in progress until the next call.  max_records: at least 1; None: all of the next batch.
        Raises: as `async for`.
        """
        if self._in_progress.is_used_up and not await self._look(timeout_s):
            return None
        position = self._in_progress.current
        assert position is not None
        return RecordBatch(position.partition, self._in_progress.next_records(max_records), position.high_watermark)

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
        reading, now = self._reading, self._in_progress
        now.finish()
        now.looks += 1
        now.is_looking = True
        try:
            if reading.must_yield or now.looks % YIELD_LOOKS == 0:  # let fetches and heartbeats run
                reading.must_yield = False
                await asyncio.sleep(0)
            async with asyncio.timeout(timeout_s):
                while True:
                    reading.expect()
                    if self._take():
                        return True
                    if self._member is not None:
                        self._member.active()
                    await reading.changed()
        except TimeoutError:
            return False
        finally:
            now.is_looking = False

    def _take(self) -> bool:
        """Take the next batch of any partition; return whether there is one.  Raises: as `async for`."""
        if self._closed is not None:
            raise self._closed.again()
        if not self._settings.is_subscribed and not self._reading.positions:
            message = "the consumer has no topics and no partitions to read"
            raise ClusterError(
                ApiError.INVALID_REQUEST, message, "pass topics or pattern to Consumer, or call assign() first"
            )
        if self._group is not None and not self._group.may_read():
            return False
        if self._reading.take():
            return True
        self._reading.raise_failures(self._member, self._settings.failure_timeout_s)
        return False

    # --- partitions ---

    def assignment(self) -> frozenset[TopicPartition]:
        """Return the partitions that this consumer reads now."""
        return frozenset(self._reading.positions)

    def assign(self, partitions: Iterable[tuple[str, int]]) -> None:
        """Read exactly these partitions, without sharing them.  With a group, begin at its committed offsets.

        Raises:
            ClusterError: INVALID_REQUEST if the consumer subscribes to topics.
            ConfigError: the name of a topic is not valid text; nothing was changed.
        """
        if self._settings.is_subscribed:
            message = "a consumer either subscribes to topics or gets its partitions by assign"
            raise ClusterError(ApiError.INVALID_REQUEST, message, "use another consumer without topics and pattern")
        wanted = {TopicPartition(*each) for each in partitions}
        check_partitions(wanted)
        if self._group is not None:
            self._group.reassigned(wanted)
        self._reading.remove(self._reading.positions.keys() - wanted)
        self._reading.add(wanted)

    async def _watch_partitions(self) -> None:
        while True:
            await asyncio.sleep(self._settings.metadata_age_s)
            with suppress(ClusterError):  # fetches report the error
                await self._all_partitions.look()

    async def _watch_leaders(self) -> None:
        """Look up the leaders of assigned partitions at intervals.

        A former leader that is cut off from the other brokers still answers, but gets no new records.
        """
        while True:
            await asyncio.sleep(self._settings.metadata_age_s)
            if topics := {partition.topic for partition in self._reading.positions}:
                with suppress(ClusterError):  # fetches report it
                    await self._cluster.topic_states(topics, CALL_TIMEOUT_S)
                self._reading.fetcher.wake()

    def pause(self, *partitions: tuple[str, int]) -> None:
        """Hand out no more records of these partitions until `resume`.

        Their buffered records are kept, unless these fill the buffer while other partitions could be fetched.  But if
        only a part of a partition's batch was handed out, all further records of this partition are fetched again.

        Raises: ClusterError: INVALID_REQUEST: a partition is not assigned.
        """
        self._reading.pause(partitions)

    def resume(self, *partitions: tuple[str, int]) -> None:
        """Hand out records of these partitions again.

        Raises: ClusterError: INVALID_REQUEST: a partition is not assigned.
        """
        self._reading.resume(partitions)

    def paused(self) -> frozenset[TopicPartition]:
        """Return the assigned partitions that are paused."""
        return frozenset(key for key, position in self._reading.positions.items() if position.is_paused)

    # --- positions ---

    def seek(self, partition: tuple[str, int], offset: int) -> None:
        """Continue at `offset`.  If it is out of range, `auto_offset_reset` decides at the next fetch.

        Raises:
            ClusterError: INVALID_REQUEST: the partition is not assigned.
            TypeError, ValueError: the offset is not an int, or is below 0.
        """
        self._reading.seek(partition, offset)

    async def seek_to_beginning(self, *partitions: tuple[str, int], timeout_s: float = CALL_TIMEOUT_S) -> None:
        """Continue at the first record.  partitions: by default all assigned ones.  Raises: ClusterError."""
        await self._seek_to(partitions, EARLIEST, timeout_s)

    async def seek_to_end(self, *partitions: tuple[str, int], timeout_s: float = CALL_TIMEOUT_S) -> None:
        """Continue after the last record.  partitions: by default all assigned ones.  Raises: ClusterError."""
        await self._seek_to(partitions, LATEST, timeout_s)

    async def seek_to_time(
        self, timestamp_ms: int, *partitions: tuple[str, int], timeout_s: float = CALL_TIMEOUT_S
    ) -> None:
        """Continue at the first record that is not older than a time; if all are older, after the last record.

        timestamp_ms: since 1970.  partitions: by default all assigned ones.

        Raises: ClusterError; TypeError, ValueError: the time is invalid.
        """
        await self._seek_to(partitions, as_timestamp_ms(timestamp_ms), timeout_s)

    async def _seek_to(self, partitions: Sequence[tuple[str, int]], timestamp: int, timeout_s: float) -> None:
        named = [self._reading.position(each).partition for each in partitions] or list(self._reading.positions)
        found = await self._reading.offsets_at(named, timestamp, timeout_s)
        older = [partition for partition, offset in found.items() if offset < 0]
        if older:
            found.update(await self._reading.offsets_at(older, LATEST, timeout_s))
        for partition, offset in found.items():
            self.seek(partition, offset)

    def position(self, partition: tuple[str, int]) -> int | None:
        """Return the offset of the next record that the user gets; None until it is known.

        Raises: ClusterError: INVALID_REQUEST: the partition is not assigned.
        """
        return self._reading.position(partition).next_offset

    async def beginning_offsets(
        self, partitions: Iterable[tuple[str, int]], timeout_s: float = CALL_TIMEOUT_S
    ) -> dict[TopicPartition, int]:
        """Return the log start offset of each partition.  Raises: ClusterError."""
        return await self._reading.offsets_at(partitions, EARLIEST, timeout_s)

    async def end_offsets(
        self, partitions: Iterable[tuple[str, int]], timeout_s: float = CALL_TIMEOUT_S
    ) -> dict[TopicPartition, int]:
        """Return the end of the records that this consumer can read, by partition.  Raises: ClusterError.

        The end is the high watermark, or the last stable offset with `read_committed`.
        """
        return await self._reading.offsets_at(partitions, LATEST, timeout_s)

    async def offsets_for_time(
        self, timestamp_ms: int, partitions: Iterable[tuple[str, int]], timeout_s: float = CALL_TIMEOUT_S
    ) -> dict[TopicPartition, int]:
        """Return the offset of the first record that is not older than a time, by partition; -1 if all are older.

        timestamp_ms: since 1970.

        Raises: ClusterError; TypeError, ValueError: the time is invalid.
        """
        return await self._reading.offsets_at(partitions, as_timestamp_ms(timestamp_ms), timeout_s)

    async def lag(self, timeout_s: float = CALL_TIMEOUT_S) -> dict[TopicPartition, int]:
        """Return the number of offsets from the position to the end, for each assigned partition.

        Partitions without a position yet are left out.  Raises: ClusterError.
        """
        return await self._reading.lag(timeout_s)

    # --- commits ---

    async def commit(
        self, offsets: Mapping[tuple[str, int], int] | None = None, timeout_s: float = CALL_TIMEOUT_S
    ) -> dict[TopicPartition, int]:
        """Commit offsets, and return them once they are durable.

        offsets: the offset of the next record to read, by partition.  None: the positions, after all records handed out
            so far.

        Raises:
            ClusterError: UNKNOWN_MEMBER_ID, ILLEGAL_GENERATION: the member is out of the group, and other members may
                read the partitions; REBALANCE_IN_PROGRESS: retry after the rebalance; TIMED_OUT: any of the offsets may
                be committed (this also applies after a cancellation); INVALID_REQUEST: there is no group.
        """
        if offsets is None:
            wanted = self.offsets_to_commit()
        else:
            check_partitions(offsets)
            wanted = {TopicPartition(*partition): as_offset(offset) for partition, offset in offsets.items()}
        if self._group is None:
            raise no_group("cannot commit")
        if not wanted:
            return {}
        await self._group.commits.commit(wanted, timeout_s)
        return wanted

    def group_metadata(self) -> GroupMetadata:
        """Return the membership of this consumer, for `Producer.send_offsets`.

        Raises:
            ClusterError: INVALID_REQUEST: the consumer has no group, or commits automatically.
        """
        if self._group is None or self._settings.commit_interval_s is not None:
            why = "has no group" if self._group is None else "commits automatically"
            text = f"the consumer {why}, so its offsets cannot be part of a transaction"
            raise ClusterError(ApiError.INVALID_REQUEST, text, "pass group=… and auto_commit=False to Consumer")
        return self._group.commits.metadata()

    def offsets_to_commit(self) -> dict[TopicPartition, int]:
        """Return the offset after all records handed out so far, by partition; committed offsets are left out."""
        return self._reading.uncommitted(includes_open=True)

    def offsets_to_send(self) -> tuple[GroupMetadata, dict[TopicPartition, int]]:
        """Return `group_metadata` and `offsets_to_commit`, for a transaction that covers all records handed out so far.

        Raises:
            ClusterError: INVALID_REQUEST (see `group_metadata`); ILLEGAL_GENERATION, only once: the group has taken
                partitions of these records, and their next owner reads the records again.
        """
        membership = self.group_metadata()
        taken = self._reading.unsent.send()
        if taken:
            text = f"{listed(map(str, taken))} were taken from the consumer before their offsets were sent"
            step = "abort the transaction, and seek to the committed offsets of the assigned partitions"
            raise ClusterError(KafkaCode.ILLEGAL_GENERATION.name, text, step)
        offsets = self.offsets_to_commit()
        if self._group is not None:
            self._group.commits.may_have_changed(offsets)
        return membership, offsets

    async def committed(
        self, partitions: Iterable[tuple[str, int]] | None = None, timeout_s: float = CALL_TIMEOUT_S
    ) -> dict[TopicPartition, int]:
        """Return the committed offsets of the group.  partitions: None means the assigned ones.

        With `read_committed`, wait while a transaction that contains offsets of these partitions is open.

        Raises:
            ClusterError: TIMED_OUT: no answer arrived, or such a transaction stayed open, perhaps the caller's own;
                INVALID_REQUEST: there is no group.
        """
        if self._group is None:
            raise no_group("has no committed offsets")
        wanted = list(self._reading.positions if partitions is None else partitions)
        check_partitions(wanted)
        return await self._group.commits.committed(wanted, timeout_s)

    @property
    def is_stable(self) -> bool:
        """Return whether no rebalance is in progress; True without a group."""
        return self._member is None or self._member.core.phase is Phase.STABLE
