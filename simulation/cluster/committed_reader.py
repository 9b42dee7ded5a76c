"""A client that reads committed records; `ledger.py` checks the records."""

from __future__ import annotations

from random import Random

from quorumlog.client.cluster import Cluster
from quorumlog.client.consumer import LATEST
from quorumlog.client.kafka import KafkaConnection
from quorumlog.client.partitions import PartitionCalls, refusal
from quorumlog.wire.control_records import parse_marker
from quorumlog.wire.kafka import fetch
from quorumlog.wire.kafka.codec import Api
from quorumlog.wire.record_batch import HEADER_SIZE, iter_headers
from simulation.cluster.history import Mark, marks_in
from simulation.cluster.ledger import Ledger
from simulation.cluster.metadata import Spot

REQUEST_S = 1.0
FETCH_BYTES = 1 << 20
FETCH_WAIT_MS = 200
_LIST_OFFSETS_VERSION = 7


class CommittedReader:
    """Reads partitions of the ledger's topic.  All methods raise ClusterError.

    name: the name of the client.  All answers to one client are compared with each other.
    """

    def __init__(self, cluster: Cluster, ledger: Ledger, name: str) -> None:
        self._calls = PartitionCalls(cluster)
        self._ledger = ledger
        self._name = name
        self._places: dict[Spot, int] = {}

    async def read_some(self, spot: Spot, random: Random) -> None:
        """List the end of a partition, or fetch once, either from the beginning or from the end of the last fetch."""
        kind = random.random()
        if kind < 0.25:
            await self.list_end(spot)
        else:
            self._places[spot] = await self.read(spot, 0 if kind < 0.4 else self._places.get(spot, 0))

    async def read_all(self, spot: Spot) -> None:
        """Read a partition from its beginning to its end."""
        end = await self.list_end(spot)
        offset = 0
        while offset < end:
            before, offset = offset, await self.read(spot, offset)
            self._ledger.check(
                offset > before,
                lambda offset=offset: f"I33: {spot} returns no records at {offset} of {end}",  # type: ignore[misc]
            )

    async def list_end(self, spot: Spot) -> int:
        """Return the end of the committed records."""
        partition = {"partition_index": spot.index, "current_leader_epoch": -1, "timestamp": LATEST}
        values = {
            "replica_id": -1,
            "isolation_level": fetch.READ_COMMITTED,
            "topics": [{"name": spot.topic, "partitions": [partition]}],
        }

        async def attempt(connection: KafkaConnection, left_s: float) -> int:
            reply = await connection.ask(Api.LIST_OFFSETS, _LIST_OFFSETS_VERSION, values, min(left_s, REQUEST_S))
            answer = reply.topics[0].partitions[0]
            if answer.error_code:
                raise refusal(int(answer.error_code), spot.topic, spot.index, "the request for its end")
            return int(answer.offset)

        end = await self._calls.call(spot.topic, spot.index, 2.0, attempt)
        self._ledger.listed(self._name, spot, end)
        return end

    async def read(self, spot: Spot, offset: int) -> int:
        """Fetch once from `offset`, check the records, and return the offset of the next fetch."""
        body = fetch.encode_request(
            fetch.CLIENT_VERSION,
            [fetch.PartitionToFetch(spot.topic, spot.index, offset, FETCH_BYTES)],
            max_wait_ms=FETCH_WAIT_MS,
            min_bytes=1,
            max_bytes=FETCH_BYTES,
            isolation_level=fetch.READ_COMMITTED,
        )

        async def attempt(connection: KafkaConnection, left_s: float) -> fetch.FetchedPartition:
            timeout_s = min(left_s, FETCH_WAIT_MS / 1000 + REQUEST_S)
            reply = await connection.call(Api.FETCH, fetch.CLIENT_VERSION, body, timeout_s)
            decoded = fetch.decode_response(reply, fetch.CLIENT_VERSION)
            (found,) = decoded.partitions
            if found.error_code:
                raise refusal(found.error_code, spot.topic, spot.index, f"a fetch at offset {offset}")
            return found

        found = await self._calls.call(spot.topic, spot.index, 2.0, attempt, FETCH_WAIT_MS / 1000)
        records, end = committed_in(bytes(found.records), found.aborted, offset)
        self._ledger.read(self._name, spot, offset, end, records)
        return end


def committed_in(data: bytes, aborted: tuple[tuple[int, int], ...], start: int) -> tuple[list[tuple[int, Mark]], int]:
    """Return the records that a reader of committed records gets from `start` on, and the offset after the last batch.

    aborted: producer ids and first offsets of aborted transactions, as the broker lists them.
    """
    waiting = sorted(aborted, key=lambda each: each[1])
    skipped: set[int] = set()
    records = []
    end = start
    for position, header in iter_headers(data):
        end = max(start, header.end_offset)
        while waiting and waiting[0][1] < header.end_offset:
            skipped.add(waiting.pop(0)[0])
        if header.is_control:
            marker = parse_marker(data, header, position)
            if marker is not None and not marker.is_commit:
                skipped.discard(header.producer_id)
        elif header.producer_id not in skipped:
            marks = marks_in(data[position + HEADER_SIZE : position + header.size])
            placed = enumerate(marks, header.base_offset)
            records += [(offset, mark) for offset, mark in placed if offset >= start]
    return records, end
