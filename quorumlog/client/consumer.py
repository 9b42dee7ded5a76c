"""Fetches records from given partitions, and looks up offsets in their logs.

This module does not assign partitions: the caller gives the partition and the offset.  A fetch is retried at the
current leader until it is answered.  An answer is empty until the high watermark has passed the offset.

A consumer of committed records reads up to the last stable offset: the end of the part in which every transaction is
decided.  A fetch also reports the transactions that were aborted, whose batches the caller must leave out
(`records.open_batches`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from quorumlog.client.kafka import KafkaConnection
from quorumlog.client.partitions import PAUSE_MIN_S, Leaders, PartitionCalls, refusal
from quorumlog.errors import ClusterError, RemoteProtocolError
from quorumlog.wire.errors import ApiError, KafkaCode
from quorumlog.wire.kafka import fetch
from quorumlog.wire.kafka.codec import Api
from quorumlog.words import about

EARLIEST: Final = -2
LATEST: Final = -1

TIMEOUT_S: Final = 120.0
REQUEST_TIMEOUT_S: Final = 30.0
FETCH_SIZE_MAX_BYTES: Final = 8 << 20
FETCH_WAIT_MS: Final = 500
_ASKED_AT_ONCE: Final = 64
_LIST_OFFSETS_VERSION: Final = 7


@dataclass(frozen=True, slots=True)
class Fetched:
    """The answer to a fetch.

    records: complete batches, and perhaps a part of the next one; the first batch may begin below the requested offset.
    last_stable_offset: equal to the high watermark, unless the consumer reads only committed records.
    aborted: (producer id, first offset) of each aborted transaction with records in the answer.
    """

    records: memoryview
    high_watermark: int
    log_start_offset: int
    last_stable_offset: int = -1
    aborted: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class ListedOffset:
    """An offset that was looked up by time.  offset: -1 if all records are older than the requested timestamp."""

    offset: int
    timestamp_ms: int


class OffsetOutOfRangeError(ClusterError):
    """`offset` is below `start`, the log start, or above `end`, the high watermark."""

    def __init__(self, topic: str, index: int, offset: int, start: int, end: int) -> None:
        where = f"the log contains offsets from {start} to {end} (exclusive)"
        text = f"{topic}-{index}: offset {offset} is out of range: {where}"
        super().__init__(ApiError.OFFSET_OUT_OF_RANGE, text, "begin at an offset in this range")
        self.offset = offset
        self.start = start
        self.end = end


class Consumer:
    """Fetches from partitions that the caller names.  It stores nothing between calls, which may run concurrently.

    Args:
        timeout_s: how long a call is retried before it fails.
        request_timeout_s: how long one request may take, in addition to the wait that it requests.
        read_committed: read only records of committed transactions, and records outside of transactions.
    """

    def __init__(
        self,
        cluster: Leaders,
        *,
        timeout_s: float = TIMEOUT_S,
        request_timeout_s: float = REQUEST_TIMEOUT_S,
        read_committed: bool = False,
    ) -> None:
        self._leaders = cluster
        self._calls = PartitionCalls(cluster)
        self._isolation_level = fetch.READ_COMMITTED if read_committed else 0
        self._timeout_s = timeout_s
        self._request_timeout_s = request_timeout_s

    async def fetch(
        self,
        topic: str,
        index: int,
        offset: int,
        *,
        size_max_bytes: int = FETCH_SIZE_MAX_BYTES,
        wait_ms: int = FETCH_WAIT_MS,
    ) -> Fetched:
        """Return batches from `offset` on; none if no record from there on is committed within `wait_ms`.

        Raises:
            OffsetOutOfRangeError: the offset is outside the log.
            ClusterError: TIMED_OUT, or an error that is not retriable.
        """
        body = fetch.encode_request(
            fetch.CLIENT_VERSION,
            [fetch.PartitionToFetch(topic, index, offset, size_max_bytes)],
            max_wait_ms=wait_ms,
            min_bytes=1,
            max_bytes=size_max_bytes,
            isolation_level=self._isolation_level,
        )

        async def attempt(connection: KafkaConnection, left_s: float) -> fetch.FetchedPartition:
            timeout_s = min(left_s, wait_ms / 1000 + self._request_timeout_s)
            reply = await connection.call(Api.FETCH, fetch.CLIENT_VERSION, body, timeout_s)
            with connection.judged():
                decoded = fetch.decode_response(reply, fetch.CLIENT_VERSION)
                if decoded.error_code:
                    raise refusal(decoded.error_code, topic, index, "a fetch")
                if [(one.topic, one.index) for one in decoded.partitions] != [(topic, index)]:
                    raise RemoteProtocolError("the answer to Fetch contains other partitions than the request")
            (fetched,) = decoded.partitions
            if fetched.error_code not in (KafkaCode.NONE, KafkaCode.OFFSET_OUT_OF_RANGE):
                raise refusal(fetched.error_code, topic, index, f"a fetch at offset {offset}")
            if fetched.error_code:
                try:
                    async with asyncio.timeout(left_s):
                        has_moved = await self._leaders.has_moved(topic, index, connection)
                except TimeoutError:  # unknown, so the offset is not reported as out of range
                    has_moved = True
                if has_moved:
                    raise refusal(KafkaCode.NOT_LEADER_OR_FOLLOWER, topic, index, f"a fetch at offset {offset}")
            return fetched

        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._timeout_s

        def left_s() -> float:
            return max(deadline - loop.time(), PAUSE_MIN_S)

        while True:
            fetched = await self._calls.call(topic, index, left_s(), attempt, wait_ms / 1000)
            if fetched.error_code == KafkaCode.NONE:
                return Fetched(
                    fetched.records,
                    fetched.high_watermark,
                    fetched.log_start_offset,
                    fetched.last_stable_offset if self._isolation_level else fetched.high_watermark,
                    fetched.aborted,
                )
            start = (await self._list_offset(topic, index, EARLIEST, left_s(), 0)).offset
            end = (await self._list_offset(topic, index, LATEST, left_s(), 0)).offset
            if not start <= offset <= end:
                raise OffsetOutOfRangeError(topic, index, offset, start, end)
            if loop.time() >= deadline:  # the log has the offset, so this is no OffsetOutOfRangeError
                raise ClusterError(
                    ApiError.TIMED_OUT,
                    f"{topic}-{index}: given up after {round(self._timeout_s, 2):g} s; a leader answered that offset "
                    f"{offset} is out of range, although the log contains offsets from {start} to {end} (exclusive)",
                    about("kctl topics describe", topic),
                    retriable=True,
                )
            await asyncio.sleep(PAUSE_MIN_S)  # the first answer came from a former leader

    async def list_offset(self, topic: str, index: int, timestamp: int) -> ListedOffset:
        """Return the offset of the first record that is not older than `timestamp`.

        timestamp: in ms since 1970; EARLIEST: the log start offset; LATEST: the high watermark, or the last stable
        offset if this consumer reads only committed records.

        Raises:
            ClusterError: TIMED_OUT, or an error that is not retriable.
        """
        return await self._list_offset(topic, index, timestamp, self._timeout_s, self._isolation_level)

    async def _list_offset(
        self, topic: str, index: int, timestamp: int, timeout_s: float, isolation_level: int
    ) -> ListedOffset:
        async def attempt(connection: KafkaConnection, left_s: float) -> ListedOffset:
            partition = {"partition_index": index, "current_leader_epoch": -1, "timestamp": timestamp}
            values = {
                "replica_id": -1,
                "isolation_level": isolation_level,
                "topics": [{"name": topic, "partitions": [partition]}],
            }
            limit_s = min(left_s, self._request_timeout_s)
            reply = await connection.ask(Api.LIST_OFFSETS, _LIST_OFFSETS_VERSION, values, limit_s)
            with connection.judged():
                found = [(one.name, part) for one in reply.topics for part in one.partitions]
                if [(name, part.partition_index) for name, part in found] != [(topic, index)]:
                    raise RemoteProtocolError("the answer to ListOffsets contains other partitions than the request")
            answer = found[0][1]
            if answer.error_code != KafkaCode.NONE:
                raise refusal(int(answer.error_code), topic, index, "the request for its offsets")
            return ListedOffset(answer.offset, answer.timestamp)

        return await self._calls.call(topic, index, timeout_s, attempt)

    async def list_offsets(self, asked: Mapping[tuple[str, int], int]) -> dict[tuple[str, int], ListedOffset]:
        """Return the offsets of many partitions; see `list_offset`.  asked: the timestamps by topic and partition."""
        limit = asyncio.Semaphore(_ASKED_AT_ONCE)
        answers: dict[tuple[str, int], ListedOffset] = {}

        async def ask(topic: str, index: int, timestamp: int) -> None:
            async with limit:
                answers[topic, index] = await self.list_offset(topic, index, timestamp)

        try:
            async with asyncio.TaskGroup() as tasks:
                for (topic, index), timestamp in asked.items():
                    tasks.create_task(ask(topic, index, timestamp))
        except BaseExceptionGroup as failures:  # not `except*`, which raises a group again in Python 3.11.2
            refusals, others = failures.split(ClusterError)
            if refusals is None or others is not None:
                raise
            raise refusals.exceptions[0] from None
        return answers
