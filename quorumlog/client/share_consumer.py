"""An asyncio consumer of share groups: topics as work queues (KIP-932).

The consumer has a share session with each leader of an assigned partition.  Each session has a connection of its own.
When this connection is lost, the broker releases the records of the session at once.  A session has one request in
flight.  Acknowledgements that are made meanwhile share the next request.  The consumer begins fetches only when its
buffer is empty, so that records in the buffer are not locked for longer than necessary.

Requests run in tasks of their own, not in the user's calls.  If a cancellation by the user ended a request, client and
broker would have different epochs of the session, and the broker would end the session.  A leader that cannot be found
or reached does not delay the records of other leaders.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Any, Final, NamedTuple, Self
from uuid import UUID, uuid4

from quorumlog.client.cluster import CONNECT_TIMEOUT_S, Cluster
from quorumlog.client.consumer_topics import first_states
from quorumlog.client.coordinators import CoordinatorCalls, Kind, check
from quorumlog.client.kafka import KafkaConnection
from quorumlog.client.messages import INT32_MAX, text_problem
from quorumlog.client.partitions import refusal
from quorumlog.client.record_codec import read_batch
from quorumlog.client.records import Headers, OpenBatch, UnreadableBatchError, open_batches
from quorumlog.client.tasks import BackgroundTasks
from quorumlog.errors import ClusterError, ConfigError
from quorumlog.runtime.addresses import Address
from quorumlog.wire.errors import ApiError, KafkaCode
from quorumlog.wire.kafka.codec import Api, milliseconds

FETCH_WAIT_MS: Final = 500
FETCH_MAX_BYTES: Final = 8 << 20
REQUEST_TIMEOUT_S: Final = 10.0
LEAVE_TIMEOUT_S: Final = 2.0
RETRY_PAUSE_S: Final = 0.2
LEADERS_AGE_S: Final = 30.0
"""The interval at which leaders are looked up: a former leader that is cut off from the other brokers still answers."""
_JOINING, _LEAVING = 0, -1
_FIRST_EPOCH, _LAST_EPOCH = 1, INT32_MAX
"""The epochs of a session after its first request, which has epoch 0.  The last one is followed by the first one."""
_VERSION: Final = 1
_RENEWING_VERSION: Final = 2
NEWEST_VERSIONS: Final = {
    Api.FIND_COORDINATOR: 4,
    Api.SHARE_GROUP_HEARTBEAT: 1,
    Api.SHARE_ACKNOWLEDGE: _RENEWING_VERSION,
}
_GAP, _ACCEPT, _RELEASE, _REJECT, _RENEW = range(5)

Place = tuple[UUID, int]


class ShareRecord(NamedTuple):
    """A record that this consumer has locked.

    timestamp_ms: since 1970.  deliveries: the number of deliveries of the record, including this one.
    """

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: Headers
    deliveries: int


class _Ack(NamedTuple):
    """An acknowledgement.  key: the key of the record's lock; None for an offset without a record."""

    place: Place
    offset: int
    kind: int
    done: asyncio.Future[None]
    key: tuple[str, int, int] | None = None


class RecordLock(NamedTuple):
    """The lock on a record.  until_s: the loop time, in seconds, by which the lock has certainly ended."""

    place: Place
    until_s: float


class ShareSession:
    """The share session at one broker.

    places: the share partitions of the session.
    locks: the locked records, by topic, partition and offset.  Their partitions may since have been assigned to other
    members, or have other leaders.  The broker limits the number of locks in a partition.
    acks: the acknowledgements for the next request.
    is_fetching: a task fetches records.  is_flushing: a task sends acknowledgements.
    """

    def __init__(self, address: Address, connection: KafkaConnection) -> None:
        self.address = address
        self.connection = connection
        self.is_connected = False
        self.epoch = 0
        self.places: frozenset[Place] = frozenset()
        self.locks: dict[tuple[str, int, int], RecordLock] = {}
        self.acks: list[_Ack] = []
        self.lock = asyncio.Lock()
        self.is_fetching = False
        self.is_flushing = False

    def forget_expired_locks(self, now_s: float) -> None:
        self.locks = {key: lock for key, lock in self.locks.items() if lock.until_s > now_s}


class ShareConsumer:
    """A member of a share group; use it as a context manager.

    Records that are neither accepted nor rejected when the block ends are released for other members.  Several tasks of
    one event loop may use the consumer at the same time.

    Args:
        bootstrap: `HOST:PORT`, several with commas or as a list.
        group: the name of the share group.
        topics: the topics from which the consumer gets records.
        max_records: the approximate maximum number of records in one answer, at least 1.  A producer's batch is not
            divided, so an answer may have more records.

    Raises:
        ConfigError: arguments are empty, not valid text or out of range; the error lists all of these.
        ClusterError: `bootstrap` is malformed.
    """

    def __init__(
        self, bootstrap: str | Sequence[str], group: str, *, topics: Iterable[str], max_records: int = 100
    ) -> None:
        names = [topics] if isinstance(topics, str) else list(topics)
        problems = [f"{what} is empty" for what, value in (("group", group), ("topics", names)) if not value]
        named = [("group", group or ""), *(("topic", name) for name in names)]
        problems += [problem for what, text in named if (problem := text_problem(what, text)) is not None]
        if not 1 <= max_records <= INT32_MAX:
            problems.append(f"max_records is {max_records}, not 1 to {INT32_MAX}")
        if problems:
            raise ConfigError(*problems)
        self._cluster = Cluster(bootstrap)
        self._calls = CoordinatorCalls(self._cluster, Kind.GROUP, NEWEST_VERSIONS)
        self._group = group
        self._topics = sorted(set(names))
        self._max_records = max_records
        self._member_id = str(uuid4())
        self._epoch = _JOINING
        self._has_lost_answer = False
        """Whether a heartbeat got no answer.  The answer may have had a new assignment, which Apache Kafka sends again
        only to a member that joins, so the next heartbeat joins."""
        self._interval_s = 1.0
        self._assigned: frozenset[Place] = frozenset()
        self._names: dict[UUID, str] = {}
        """Topic names by id, including deleted topics, because their records may be locked."""
        self._sessions: dict[Address, ShareSession] = {}
        self._records: deque[tuple[ShareSession, ShareRecord]] = deque()
        """The fetched records, each with the session that has locked it."""
        self._news = asyncio.Event()
        self._heart: asyncio.Task[None] | None = None
        self._tasks = BackgroundTasks(self._broken)
        self._is_looking_up = False
        self._failure: ClusterError | None = None
        """Raised by every call of `get` that finds no record in the buffer."""
        self._trouble: ClusterError | None = None
        """Raised once: a batch could not be read, or this client may not read a partition or look up its leader."""

    async def __aenter__(self) -> Self:
        await self._cluster.__aenter__()
        self._heart = asyncio.create_task(self._beat(), name=f"share-heartbeat-{self._group}")
        self._heart.add_done_callback(self._heart_ended)
        self._tasks.begin(self._warn_of_missing_topics())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._failure = ClusterError(ApiError.CLIENT_CLOSED, "the consumer was closed")
        self._news.set()
        tasks = self._tasks.cancel()
        if self._heart is not None:
            self._heart.cancel()
            tasks.append(self._heart)
        sessions = list(self._sessions.values())
        for session in sessions:  # all sessions, before a cancellation can end this call
            self._end(session)  # the broker releases its records
        try:
            if tasks:
                await asyncio.wait(tasks)
            for session in sessions:
                await session.connection.close()
            with suppress(ClusterError, TimeoutError):
                if self._epoch > _JOINING:
                    async with asyncio.timeout(LEAVE_TIMEOUT_S):
                        await self._heartbeat(_LEAVING, LEAVE_TIMEOUT_S)
        finally:
            await self._cluster.close()

    def _heart_ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (bug := task.exception()) is not None:
            self._broken(bug)

    def _broken(self, bug: BaseException) -> None:
        self._failure = ClusterError(ApiError.FAILED, f"the consumer failed: {bug!r}")
        self._failure.__cause__ = bug
        self._news.set()

    # --- records ---

    async def __aiter__(self) -> AsyncIterator[ShareRecord]:
        while True:
            record = await self.get()
            assert record is not None
            yield record

    async def get(self, timeout_s: float | None = None) -> ShareRecord | None:
        """Return the next record; None if none arrives within `timeout_s` seconds.  Without a timeout, wait forever.

        Raises:
            ClusterError: by every call, once the buffered records are returned: the error with which the group refused
                this consumer; or CLIENT_CLOSED: the consumer was closed.  By one call: CORRUPT_MESSAGE: records that
                cannot be read were rejected; or an error of one partition, such as TOPIC_AUTHORIZATION_FAILED: this
                client may not read the partition, or not look up its leader.
        """
        try:
            async with asyncio.timeout(timeout_s):
                while (record := self._next()) is None:
                    if self._failure is not None:
                        raise self._failure.again()
                    if self._trouble is not None:
                        trouble, self._trouble = self._trouble, None
                        raise trouble
                    self._news.clear()
                    self._look()
                    await self._news.wait()
        except TimeoutError:
            return None
        return record

    def _next(self) -> ShareRecord | None:
        """Take the next record.  Skip records whose locks have expired, because other members may have them now."""
        now_s = asyncio.get_running_loop().time()
        while self._records:
            session, record = self._records.popleft()
            lock = session.locks.get((record.topic, record.partition, record.offset))
            if lock is not None and lock.until_s > now_s:
                return record
        return None

    async def accept(self, record: ShareRecord) -> None:
        """Complete a record, so that it is not delivered again.  The acknowledgement is durable on return.

        Raises:
            ClusterError: INVALID_RECORD_STATE: the lock has expired or was lost with its session, or the record is
                already acknowledged.  Any other error: the outcome is unknown, and the record may be delivered again.
        """
        await self._acknowledge(record, _ACCEPT)

    async def release(self, record: ShareRecord) -> None:
        """Make a record available again, for another delivery.  Raises: as `accept`."""
        await self._acknowledge(record, _RELEASE)

    async def reject(self, record: ShareRecord) -> None:
        """Reject a record, so that no member gets it again.  Raises: as `accept`."""
        await self._acknowledge(record, _REJECT)

    async def renew(self, record: ShareRecord) -> None:
        """Renew the lock on a record whose processing takes long.

        Raises:
            ClusterError: as `accept`; or UNSUPPORTED_VERSION: the broker cannot renew locks (Apache Kafka before 4.2).
                The lock and its end are unchanged.
        """
        await self._acknowledge(record, _RENEW)

    # --- membership ---

    async def _beat(self) -> None:
        loop = asyncio.get_running_loop()
        look_at = loop.time() + LEADERS_AGE_S
        while True:
            try:
                await self._heartbeat(self._epoch, REQUEST_TIMEOUT_S)
            except ClusterError as error:
                if error.code in ("UNKNOWN_MEMBER_ID", "FENCED_MEMBER_EPOCH"):
                    self._epoch, self._assigned = _JOINING, frozenset()
                elif not error.retriable:
                    self._failure = error
                    self._news.set()
                    return
            if loop.time() >= look_at:
                look_at = loop.time() + LEADERS_AGE_S
                with suppress(ClusterError):  # fetches report it
                    await self._learn_names(REQUEST_TIMEOUT_S)
            # Without partitions, the next heartbeat is early, because share partitions may be initialized by then.
            is_settled = self._assigned and not self._nameless()
            await asyncio.sleep(self._interval_s if is_settled else min(self._interval_s, RETRY_PAUSE_S))

    async def _heartbeat(self, epoch: int, timeout_s: float) -> None:
        async def attempt(connection: KafkaConnection, left_s: float) -> Any:
            sent = _JOINING if self._has_lost_answer and epoch != _LEAVING else epoch
            values = {
                "group_id": self._group,
                "member_id": self._member_id,
                "member_epoch": sent,
                "subscribed_topic_names": self._topics if sent == _JOINING else None,
            }
            self._has_lost_answer = True  # until it arrives
            reply = await self._calls.ask(connection, Api.SHARE_GROUP_HEARTBEAT, values, left_s)
            check(reply.error_code, f"group {self._group}")
            self._has_lost_answer = False
            return reply

        reply = await self._calls.call(self._group, timeout_s, attempt)
        if epoch == _LEAVING:
            return
        self._epoch = reply.member_epoch
        self._interval_s = milliseconds(reply.heartbeat_interval) / 1000
        if reply.assignment is not None:
            self._assigned = frozenset(
                (topic.topic_id, index) for topic in reply.assignment.topic_partitions for index in topic.partitions
            )
            self._news.set()
        if self._nameless():
            await self._learn_names(timeout_s)

    async def _warn_of_missing_topics(self) -> None:
        with suppress(ClusterError):  # heartbeats report it
            await first_states(self._cluster, self._topics, REQUEST_TIMEOUT_S)

    def _nameless(self) -> bool:
        """Return whether the name of an assigned topic is still unknown."""
        return any(topic_id not in self._names for topic_id, _ in self._assigned)

    async def _learn_names(self, timeout_s: float) -> None:
        """Look up the ids of the subscribed topics.

        A broker may not know a new topic yet.  The next heartbeat then asks another broker.
        """
        states = await self._cluster.topic_states(self._topics, timeout_s)
        self._names.update({state.topic_id: name for name, state in states.items() if state.topic_id is not None})
        if self._nameless():
            self._cluster.ask_another_broker()
        self._news.set()

    # --- sessions ---

    def _look(self) -> None:
        """Begin a fetch at every known leader of an assigned partition, and look up the leaders that are not known."""
        by_leader: dict[Address, set[Place]] = {}
        unknown: list[tuple[str, int]] = []
        for topic_id, index in sorted(self._assigned):
            name = self._names.get(topic_id)
            if name is None:
                continue
            address = self._cluster.known_leader(name, index)
            if address is None:
                unknown.append((name, index))
            else:
                by_leader.setdefault(address, set()).add((topic_id, index))
        if unknown and not self._is_looking_up:
            self._is_looking_up = True
            self._tasks.begin(self._find_leaders(unknown))
        for address, places in by_leader.items():
            session = self._sessions.get(address)
            if session is None:
                connection = KafkaConnection(*address, client_id=self._cluster.client_id)
                session = self._sessions[address] = ShareSession(address, connection)
            if not session.is_fetching:
                session.is_fetching = True
                self._tasks.begin(self._fetch(session, frozenset(places)))
        if not unknown:  # else a session that seems unused may belong to a leader that is being looked up
            for unused in [each for address, each in self._sessions.items() if address not in by_leader]:
                self._end_if_idle(unused)

    def _end_if_idle(self, session: ShareSession) -> None:
        """End a session that is no longer used, once its records are acknowledged or their locks have expired."""
        session.forget_expired_locks(asyncio.get_running_loop().time())
        if session.acks:
            self._begin_flush(session)
        elif not (session.is_fetching or session.is_flushing or session.locks):
            self._end(session)
            self._tasks.begin(session.connection.close())

    async def _find_leaders(self, partitions: Sequence[tuple[str, int]]) -> None:
        """Look up the leaders of partitions, with one Metadata request for all."""
        try:
            errors = [each for each in await asyncio.gather(*map(self._find_leader, partitions)) if each is not None]
            self._trouble = next((each for each in errors if not each.retriable), self._trouble)
            if errors:
                self._news.set()  # so that the leaders that were found are used before the pause ends
                await asyncio.sleep(RETRY_PAUSE_S)
        finally:
            self._is_looking_up = False
            self._news.set()

    async def _find_leader(self, partition: tuple[str, int]) -> ClusterError | None:
        try:
            await self._cluster.find_leader(*partition, REQUEST_TIMEOUT_S)
        except ClusterError as error:
            return error
        return None

    def _forget_leaders(self, places: Iterable[Place]) -> None:
        """Look up the leaders of these partitions again, because the known leader failed, or no longer leads."""
        for topic_id, index in places:
            self._cluster.forget_leader(self._names[topic_id], index)

    async def _fetch(self, session: ShareSession, places: frozenset[Place]) -> None:
        try:
            if not session.is_connected:
                await session.connection.connect(CONNECT_TIMEOUT_S)
                session.is_connected = True
            reply = await self._ask(session, Api.SHARE_FETCH, self._fetch_values(session, places))
            session.places = places
            now_s = asyncio.get_running_loop().time()
            session.forget_expired_locks(now_s)
            until_s = now_s + milliseconds(reply.acquisition_lock_timeout) / 1000
            answers = [(topic.topic_id, each) for topic in reply.responses for each in topic.partitions]
            for topic_id, answer in answers:
                self._take(session, RecordLock((topic_id, answer.partition_index), until_s), answer)
            # If the user gets no records of this session, no call of the user sends these acknowledgements.
            if session.acks and all(owner is not session for owner, _ in self._records):
                self._begin_flush(session)
            if not self._records and any(answer.error_code for _, answer in answers):
                await asyncio.sleep(RETRY_PAUSE_S)
        except ClusterError:
            self._forget_leaders(places)
            await self._drop(session)
            await asyncio.sleep(RETRY_PAUSE_S)
        finally:
            session.is_fetching = False
            self._news.set()

    def _fetch_values(self, session: ShareSession, places: frozenset[Place]) -> dict[str, Any]:
        return {
            "max_wait": FETCH_WAIT_MS,
            "min_bytes": 1,
            "max_bytes": FETCH_MAX_BYTES,
            "max_records": self._max_records,
            "batch_size": self._max_records,
            "topics": [
                {"topic_id": topic_id, "partitions": [{"partition_index": index, "acknowledgement_batches": []}]}
                for topic_id, index in sorted(places - session.places)
            ],
            "forgotten_topics_data": [
                {"topic_id": topic_id, "partitions": [index]} for topic_id, index in sorted(session.places - places)
            ],
        }

    def _take(self, session: ShareSession, lock: RecordLock, result: Any) -> None:
        """Keep the acquired records.  Acknowledge acquired offsets without a record; see `_kind_without_record`."""
        place = lock.place
        name = self._names[place[0]]
        if result.error_code:
            self._cluster.forget_leader(name, place[1])
            error = refusal(result.error_code, name, place[1], "a fetch")
            if error.code == "TOPIC_AUTHORIZATION_FAILED":  # a retry does not help
                self._trouble = error
            return
        batches, damage = _readable(memoryview(result.records or b""))
        for acquired in result.acquired_records:
            missing = set(range(acquired.first_offset, acquired.last_offset + 1))
            for batch in batches:
                try:
                    records = read_batch(batch, name, place[1], acquired.first_offset, acquired.last_offset + 1)
                except UnreadableBatchError as error:
                    damage = error
                    break
                for each in records:
                    missing.discard(each.offset)
                    session.locks[name, place[1], each.offset] = lock
                    record = ShareRecord(
                        name,
                        place[1],
                        each.offset,
                        each.timestamp_ms,
                        each.key,
                        each.value,
                        each.headers,
                        acquired.delivery_count,
                    )
                    self._records.append((session, record))
            loop = asyncio.get_running_loop()
            session.acks += [
                _Ack(place, offset, _kind_without_record(offset, damage), loop.create_future())
                for offset in sorted(missing)
            ]
        if damage is not None:
            self._trouble = damage.of(name, place[1], "its records were rejected; continue with the next records")

    # --- acknowledgements ---

    async def _acknowledge(self, record: ShareRecord, kind: int) -> None:
        key = (record.topic, record.partition, record.offset)
        session = self._holder(key)
        if kind == _RENEW:
            # A broker closes the connection after a version that it does not know, and releases all locks.
            connection = session.connection
            version = await self._calls.version(connection, Api.SHARE_ACKNOWLEDGE, REQUEST_TIMEOUT_S)
            if version != _RENEWING_VERSION:
                text = f"{connection.peer} does not know requests that renew the lock on a record"
                step = "raise group.share.record.lock.duration.ms, or upgrade the brokers"
                raise ClusterError(ApiError.UNSUPPORTED_VERSION, text, step)
            session = self._holder(key)
        ack = _Ack(session.locks[key].place, record.offset, kind, asyncio.get_running_loop().create_future(), key)
        session.acks.append(ack)
        self._begin_flush(session)
        await ack.done

    def _holder(self, key: tuple[str, int, int]) -> ShareSession:
        """Return the session that has locked a record.  Raises: ClusterError: INVALID_RECORD_STATE."""
        sessions = [each for each in self._sessions.values() if key in each.locks]
        if not sessions:
            raise _not_locked(*key)
        # After a change of leaders, a record may be locked in two sessions: the new leader has delivered it again.
        return max(sessions, key=lambda each: each.locks[key].until_s)

    def _begin_flush(self, session: ShareSession) -> None:
        if not session.is_flushing:
            session.is_flushing = True
            self._tasks.begin(self._flush(session))

    async def _flush(self, session: ShareSession) -> None:
        """Send the acknowledgements that wait, and those that are made meanwhile."""
        try:
            while session.acks:
                async with session.lock:
                    if acks := self._valid(session):
                        await self._send(session, acks)
        finally:
            session.is_flushing = False

    def _valid(self, session: ShareSession) -> list[_Ack]:
        """Take the acknowledgements that wait, and refuse the invalid ones.

        An acknowledgement is invalid if its record is not locked, or if an earlier acknowledgement of another kind
        settles the record.  A request can have only one acknowledgement for each record.
        """
        now_s = asyncio.get_running_loop().time()
        settled: dict[tuple[str, int, int], int] = {}
        valid = []
        acks, session.acks = session.acks, []
        for ack in acks:
            if ack.key is not None:
                lock = session.locks.get(ack.key)
                if lock is None or lock.until_s <= now_s or settled.get(ack.key, ack.kind) != ack.kind:
                    _settle(ack, _not_locked(*ack.key))
                    continue
                if ack.kind != _RENEW:
                    settled[ack.key] = ack.kind
            valid.append(ack)
        return valid

    async def _send(self, session: ShareSession, acks: list[_Ack]) -> None:
        """Send acknowledgements in one request.  On return, each of them has an outcome.

        The broker applies the acknowledgements of a partition together or not at all.  If the lock on one record is
        lost, the broker refuses all of them.  Then they are sent again in two halves, until only that record is
        refused.
        """
        offsets: dict[Place, set[int]] = {}
        for ack in acks:
            offsets.setdefault(ack.place, set()).add(ack.offset)
        divided: dict[Place, list[_Ack]] = {}
        try:
            is_renewing = any(each.kind == _RENEW for each in acks)
            values = {"topics": _topics(acks), "is_renew_ack": is_renewing}
            reply = await self._ask_locked(session, Api.SHARE_ACKNOWLEDGE, values)
            lock_s = milliseconds(reply.acquisition_lock_timeout) / 1000 if is_renewing else 0.0
            until_s = asyncio.get_running_loop().time() + lock_s
            codes = {
                (topic.topic_id, each.partition_index): int(each.error_code)
                for topic in reply.responses
                for each in topic.partitions
            }
            for ack in acks:
                code = codes.get(ack.place, int(KafkaCode.UNKNOWN_SERVER_ERROR))
                if code == KafkaCode.INVALID_RECORD_STATE and len(offsets[ack.place]) > 1:
                    divided.setdefault(ack.place, []).append(ack)
                    continue
                name = self._names[ack.place[0]]
                if not code:
                    key = (name, ack.place[1], ack.offset)
                    if ack.kind == _RENEW:
                        session.locks[key] = RecordLock(ack.place, until_s)
                    else:
                        session.locks.pop(key, None)
                _settle(ack, refusal(code, name, ack.place[1], "the record") if code else None)
            for place, refused in divided.items():
                middle = sorted(offsets[place])[len(offsets[place]) // 2]
                await self._send(session, [ack for ack in refused if ack.offset < middle])
                await self._send(session, [ack for ack in refused if ack.offset >= middle])
        except ClusterError as error:
            for ack in acks:
                _settle(ack, error)
            await self._drop(session)
        finally:
            for ack in acks:
                _settle(ack, _lost())

    # --- requests ---

    async def _ask(self, session: ShareSession, api: Api, values: dict[str, Any]) -> Any:
        async with session.lock:
            return await self._ask_locked(session, api, values)

    async def _ask_locked(self, session: ShareSession, api: Api, values: dict[str, Any]) -> Any:
        common = {
            "group_id": self._group,
            "member_id": self._member_id,
            "share_session_epoch": session.epoch,
        }
        version = _RENEWING_VERSION if values.get("is_renew_ack") else _VERSION
        reply = await session.connection.ask(api, version, {**common, **values}, REQUEST_TIMEOUT_S)
        check(reply.error_code, f"the share session of {self._group}")
        session.epoch = _FIRST_EPOCH if session.epoch == _LAST_EPOCH else session.epoch + 1
        return reply

    async def _drop(self, session: ShareSession) -> None:
        self._end(session)
        await session.connection.close()

    def _end(self, session: ShareSession) -> None:
        """End a session, and begin to close its connection, so that the broker releases its locks."""
        if self._sessions.get(session.address) is session:
            del self._sessions[session.address]
        kept = [each for each in self._records if each[0] is not session]
        self._records.clear()
        self._records.extend(kept)
        acks, session.acks = session.acks, []
        for ack in acks:
            _settle(ack, _lost())
        session.connection.begin_close()


def _not_locked(topic: str, partition: int, offset: int) -> ClusterError:
    text = f"the lock on {topic}-{partition} offset {offset} is lost"
    return ClusterError(KafkaCode.INVALID_RECORD_STATE.name, text)


def _lost() -> ClusterError:
    return ClusterError(ApiError.INVALID_REQUEST, "the share session has ended, and its locks are lost")


def _readable(data: memoryview) -> tuple[list[OpenBatch], UnreadableBatchError | None]:
    """Return the batches before the first damaged batch, and the error of that batch."""
    batches: list[OpenBatch] = []
    try:
        for batch in open_batches(data):
            batches.append(batch)  # batches before the damage are kept
    except UnreadableBatchError as error:
        return batches, error
    return batches, None


def _kind_without_record(offset: int, damage: UnreadableBatchError | None) -> int:
    """Return the kind of acknowledgement for an offset without a record.

    The offset is a gap if no batch is damaged, or if it is before the damaged batch.  Offsets of the damaged batch are
    rejected.  Later offsets are released, because the next fetch may read them.
    """
    if damage is None or (damage.base_offset is not None and offset < damage.base_offset):
        return _GAP
    return _REJECT if damage.end_offset is None or offset < damage.end_offset else _RELEASE


def _settle(ack: _Ack, error: ClusterError | None) -> None:
    if ack.done.done():
        return
    if error is None:
        ack.done.set_result(None)
    else:
        ack.done.set_exception(error)
        ack.done.exception()  # perhaps nobody waits for it


def _topics(acks: Sequence[_Ack]) -> list[dict[str, Any]]:
    """Return acknowledgements as the topics of a request.  Adjacent offsets of one kind form one run."""
    found: list[dict[str, Any]] = []
    for place in sorted({each.place for each in acks}):
        batches: list[dict[str, Any]] = []
        for offset, kind in sorted({each.offset: each.kind for each in acks if each.place == place}.items()):
            last = batches[-1] if batches else None
            if last is not None and last["last_offset"] == offset - 1 and last["acknowledge_types"] == [kind]:
                last["last_offset"] = offset
            else:
                batches.append({"first_offset": offset, "last_offset": offset, "acknowledge_types": [kind]})
        partition = {"partition_index": place[1], "acknowledgement_batches": batches}
        found.append({"topic_id": place[0], "partitions": [partition]})
    return found
