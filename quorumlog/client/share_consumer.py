"""An asyncio consumer of share groups: topics as work queues (KIP-932).

Each leader of an assigned partition has a share session on a connection of its own; when that connection is lost, the
broker releases the records of the session at once.  A session has one request at a time.  Acknowledgements that are
made meanwhile share the next request.  Records are fetched only while none is left here, so that no lock is held by a
record that waits in a buffer for longer than necessary.
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
from quorumlog.client.coordinators import CoordinatorCalls, Kind, check
from quorumlog.client.kafka import KafkaConnection
from quorumlog.client.partitions import refusal
from quorumlog.client.record_codec import read_batch
from quorumlog.client.records import Headers, open_batches
from quorumlog.errors import ClusterError
from quorumlog.runtime.addresses import Address
from quorumlog.wire.errors import ApiError, KafkaCode
from quorumlog.wire.kafka.codec import Api, milliseconds

FETCH_WAIT_MS: Final = 500
FETCH_MAX_BYTES: Final = 8 << 20
REQUEST_TIMEOUT_S: Final = 10.0
LEAVE_TIMEOUT_S: Final = 2.0
RETRY_PAUSE_S: Final = 0.2
_JOINING, _LEAVING = 0, -1
NEWEST_VERSIONS: Final = {Api.FIND_COORDINATOR: 4, Api.SHARE_GROUP_HEARTBEAT: 1}
_VERSION: Final = 1
_RENEWING_VERSION: Final = 2
_GAP, _ACCEPT, _RELEASE, _REJECT, _RENEW = range(5)

Place = tuple[UUID, int]


class ShareRecord(NamedTuple):
    """A record that this consumer has locked.  deliveries: how often it has been delivered, this time included."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: Headers
    deliveries: int


class _Ack(NamedTuple):
    place: Place
    offset: int
    kind: int
    done: asyncio.Future[None]


class ShareSession:
    """The share session at one broker.  fetch: the request in progress that looks for records."""

    def __init__(self, address: Address, connection: KafkaConnection) -> None:
        self.address = address
        self.connection = connection
        self.epoch = 0
        self.places: frozenset[Place] = frozenset()
        self.acks: list[_Ack] = []
        self.lock = asyncio.Lock()
        self.fetch: asyncio.Task[None] | None = None


class ShareConsumer:
    """A member of a share group; use it as a context manager.

    Records that are neither accepted nor rejected when the block ends are released for other members.

    Args:
        bootstrap: `HOST:PORT`, several with commas or as a list.
        group: the name of the share group.
        topics: the topics from which it gets records.
        max_records: records of one request, approximately: a batch of a producer is not divided.
    """

    def __init__(
        self, bootstrap: str | Sequence[str], group: str, *, topics: Iterable[str], max_records: int = 100
    ) -> None:
        self._cluster = Cluster(bootstrap)
        self._calls = CoordinatorCalls(self._cluster, Kind.GROUP, NEWEST_VERSIONS)
        self._group = group
        self._topics = sorted(set(topics))
        self._max_records = max_records
        self._member_id = str(uuid4())
        self._epoch = _JOINING
        self._interval_s = 1.0
        self._assigned: frozenset[Place] = frozenset()
        self._names: dict[UUID, str] = {}
        self._sessions: dict[Address, ShareSession] = {}
        self._records: deque[ShareRecord] = deque()
        self._news = asyncio.Event()
        self._heart: asyncio.Task[None] | None = None
        self._failure: ClusterError | None = None

    async def __aenter__(self) -> Self:
        await self._cluster.__aenter__()
        self._heart = asyncio.create_task(self._beat(), name=f"share-heartbeat-{self._group}")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        tasks = [each.fetch for each in self._sessions.values() if each.fetch is not None]
        tasks += [] if self._heart is None else [self._heart]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        for session in list(self._sessions.values()):
            await self._drop(session)  # the broker releases its records
        with suppress(ClusterError):
            if self._epoch > _JOINING:
                await self._heartbeat(_LEAVING, LEAVE_TIMEOUT_S)
        await self._cluster.close()

    # --- records ---

    async def __aiter__(self) -> AsyncIterator[ShareRecord]:
        while True:
            record = await self.get()
            assert record is not None
            yield record

    async def get(self, timeout_s: float | None = None) -> ShareRecord | None:
        """Return the next record, or None if there is none in time.  None as the timeout waits without limit.

        Raises:
            ClusterError: the group refuses this consumer.
        """
        try:
            async with asyncio.timeout(timeout_s):
                while not self._records:
                    if self._failure is not None:
                        raise self._failure
                    self._news.clear()
                    await self._look()
                    if not self._records and self._failure is None:
                        await self._news.wait()
        except TimeoutError:
            return None
        return self._records.popleft()

    async def accept(self, record: ShareRecord) -> None:
        """Complete a record: it is not delivered again.  This is durable when the call returns.

        Raises:
            ClusterError: it is not known whether that succeeded, or INVALID_RECORD_STATE: the lock has expired.
        """
        await self._acknowledge(record, _ACCEPT)

    async def release(self, record: ShareRecord) -> None:
        """Make a record available again, for another delivery.  Raises: as `accept`."""
        await self._acknowledge(record, _RELEASE)

    async def reject(self, record: ShareRecord) -> None:
        """Reject a record: no member gets it again.  Raises: as `accept`."""
        await self._acknowledge(record, _REJECT)

    async def renew(self, record: ShareRecord) -> None:
        """Renew the lock of a record, whose processing takes long.  Raises: as `accept`."""
        await self._acknowledge(record, _RENEW)

    # --- membership ---

    async def _beat(self) -> None:
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
            # A member without partitions sends its next heartbeat early: share partitions may be initialized by then.
            await asyncio.sleep(self._interval_s if self._assigned else min(self._interval_s, RETRY_PAUSE_S))

    async def _heartbeat(self, epoch: int, timeout_s: float) -> None:
        async def attempt(connection: KafkaConnection, left_s: float) -> Any:
            values = {
                "group_id": self._group,
                "member_id": self._member_id,
                "member_epoch": epoch,
                "subscribed_topic_names": self._topics if epoch == _JOINING else None,
            }
            reply = await self._calls.ask(connection, Api.SHARE_GROUP_HEARTBEAT, values, left_s)
            check(reply.error_code, f"group {self._group}")
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
            states = await self._cluster.topic_states(self._topics, timeout_s)
            self._names = {state.topic_id: name for name, state in states.items() if state.topic_id is not None}
            self._news.set()

    # --- sessions ---

    async def _look(self) -> None:
        """Begin a fetch at every leader of an assigned partition."""
        by_leader: dict[Address, set[Place]] = {}
        try:
            for topic_id, index in sorted(self._assigned):
                if topic_id in self._names:
                    address = await self._cluster.find_leader(self._names[topic_id], index, REQUEST_TIMEOUT_S)
                    by_leader.setdefault(address, set()).add((topic_id, index))
            for unused in [each for address, each in self._sessions.items() if address not in by_leader]:
                if unused.fetch is None:
                    await self._drop(unused)
            for address, places in by_leader.items():
                session = self._sessions.get(address)
                if session is None:
                    connection = KafkaConnection(*address, client_id=self._cluster.client_id)
                    try:
                        await connection.connect(CONNECT_TIMEOUT_S)
                    except ClusterError:
                        self._forget_leaders(places)
                        raise
                    session = self._sessions[address] = ShareSession(address, connection)
                if session.fetch is None:
                    session.fetch = asyncio.create_task(self._fetch(session, frozenset(places)))
        except ClusterError as error:
            if not error.retriable:
                raise
            await asyncio.sleep(RETRY_PAUSE_S)
            self._news.set()

    def _forget_leaders(self, places: Iterable[Place]) -> None:
        """Look these partitions up again: the broker that led them does not answer, or no longer leads them."""
        for topic_id, index in places:
            self._cluster.forget_leader(self._names[topic_id], index)

    async def _fetch(self, session: ShareSession, places: frozenset[Place]) -> None:
        try:
            reply = await self._ask(session, Api.SHARE_FETCH, self._fetch_values(session, places))
            session.places = places
            for topic in reply.responses:
                for each in topic.partitions:
                    self._take(session, (topic.topic_id, each.partition_index), each)
        except ClusterError:
            self._forget_leaders(places)
            await self._drop(session)
            await asyncio.sleep(RETRY_PAUSE_S)
        finally:
            session.fetch = None
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

    def _take(self, session: ShareSession, place: Place, result: Any) -> None:
        """Keep the acquired records.  Offsets that have none are acknowledged as gaps."""
        name = self._names[place[0]]
        if result.error_code:
            self._cluster.forget_leader(name, place[1])
            return
        batches = list(open_batches(memoryview(result.records or b"")))
        for acquired in result.acquired_records:
            missing = set(range(acquired.first_offset, acquired.last_offset + 1))
            for batch in batches:
                if batch.header.is_control:
                    continue
                for each in read_batch(batch, name, place[1], acquired.first_offset, acquired.last_offset + 1):
                    missing.discard(each.offset)
                    self._records.append(
                        ShareRecord(
                            name,
                            place[1],
                            each.offset,
                            each.timestamp_ms,
                            each.key,
                            each.value,
                            each.headers,
                            acquired.delivery_count,
                        )
                    )
            loop = asyncio.get_running_loop()
            session.acks += [_Ack(place, offset, _GAP, loop.create_future()) for offset in sorted(missing)]

    # --- acknowledgements ---

    async def _acknowledge(self, record: ShareRecord, kind: int) -> None:
        place = next(((topic_id, record.partition) for topic_id, name in self._names.items() if name == record.topic))
        session = next((each for each in self._sessions.values() if place in each.places), None)
        if session is None:
            message = f"the lock on {record.topic}-{record.partition} offset {record.offset} is lost"
            raise ClusterError(ApiError.INVALID_REQUEST, message)
        ack = _Ack(place, record.offset, kind, asyncio.get_running_loop().create_future())
        session.acks.append(ack)
        if not ack.done.done():
            await self._flush(session)
        await ack.done

    async def _flush(self, session: ShareSession) -> None:
        """Send the acknowledgements that wait, with those that were made while the session was busy."""
        async with session.lock:
            acks, session.acks = session.acks, []
            if not acks:
                return
            try:
                values = {"topics": _topics(acks), "is_renew_ack": any(each.kind == _RENEW for each in acks)}
                reply = await self._ask_locked(session, Api.SHARE_ACKNOWLEDGE, values)
                codes = {
                    (topic.topic_id, each.partition_index): KafkaCode(int(each.error_code))
                    for topic in reply.responses
                    for each in topic.partitions
                }
                for ack in acks:
                    code = codes.get(ack.place, KafkaCode.UNKNOWN_SERVER_ERROR)
                    if code is KafkaCode.NONE:
                        _settle(ack, None)
                    else:
                        _settle(ack, refusal(code, self._names.get(ack.place[0], "?"), ack.place[1], "the record"))
            except ClusterError as error:
                for ack in acks:
                    _settle(ack, error)
                await self._drop(session)

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
        session.epoch += 1
        return reply

    async def _drop(self, session: ShareSession) -> None:
        """Close a session: its locks are lost."""
        if self._sessions.get(session.address) is session:
            del self._sessions[session.address]
        names = {(self._names.get(topic_id), index) for topic_id, index in session.places}
        kept = [each for each in self._records if (each.topic, each.partition) not in names]
        self._records.clear()
        self._records.extend(kept)
        lost = ClusterError(ApiError.INVALID_REQUEST, "the share session has ended, and its locks are lost")
        for ack in session.acks:
            _settle(ack, lost)
        session.acks = []
        await session.connection.close()


def _settle(ack: _Ack, error: ClusterError | None) -> None:
    if ack.done.done():
        return
    if error is None:
        ack.done.set_result(None)
    else:
        ack.done.set_exception(error)
        if ack.kind == _GAP:
            ack.done.exception()  # nobody waits for it


def _topics(acks: Sequence[_Ack]) -> list[dict[str, Any]]:
    """Return acknowledgements as the topics of a request, in runs of one type."""
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
