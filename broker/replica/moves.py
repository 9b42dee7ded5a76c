"""Moves of replicas between the data directories of this broker, as AlterReplicaLogDirs requests them."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from broker.kafka.api import HostedLog, RequestedMove
from broker.log import LogKey
from broker.replica.replica import Replica
from broker.replica.table import ReplicaTable
from quorumlog.runtime.disk import DiskError
from quorumlog.wire.errors import KafkaCode

PREFERENCES_MAX = 10_000
"""Maximum number of directories chosen for replicas that do not exist yet.  Further choices replace the oldest."""


class ReplicaMoves:
    """Requests moves from `broker.log`, and remembers the directories chosen for replicas that do not exist yet.

    As in Kafka, a choice is kept in memory only.  It applies if the metadata does not name a directory of this broker.
    """

    def __init__(self, table: ReplicaTable) -> None:
        self._table = table
        self._logs = table.context.logs
        self._preferred: dict[tuple[str, int], UUID] = {}

    async def request(self, moves: Sequence[RequestedMove]) -> list[KafkaCode]:
        """Move replicas to working directories of this broker; return the outcome of each request.

        The requests are durable on return.  A request for the current directory ends an earlier move.
        """
        codes = []
        targets: dict[LogKey, UUID] = {}
        for move in moves:
            replica = self._table.find(move.topic, move.index)
            code = KafkaCode.NONE
            if replica is None:
                self._prefer(move)
                _, exists = self._table.absent(move.topic, move.index)
                code = KafkaCode.REPLICA_NOT_AVAILABLE if exists else KafkaCode.UNKNOWN_TOPIC_OR_PARTITION
            elif replica.log is None:
                code = KafkaCode.KAFKA_STORAGE_ERROR
            else:
                targets[replica.key] = move.directory_id
            codes.append(code)
        if targets:
            try:
                await self._logs.moves.request(targets)
            except DiskError:
                return [
                    KafkaCode.KAFKA_STORAGE_ERROR if self._has_failed(move) else code
                    for move, code in zip(moves, codes, strict=True)
                ]
        return codes

    def _has_failed(self, move: RequestedMove) -> bool:
        """Return whether the directory of a replica has failed meanwhile."""
        replica = self._table.find(move.topic, move.index)
        return replica is not None and replica.log is None

    def _prefer(self, move: RequestedMove) -> None:
        self._preferred.pop((move.topic, move.index), None)
        self._preferred[move.topic, move.index] = move.directory_id
        if len(self._preferred) > PREFERENCES_MAX:
            del self._preferred[next(iter(self._preferred))]

    def take_preferred(self, replica: Replica) -> UUID | None:
        """Return the directory that was chosen for this replica before it existed, and forget the choice."""
        return self._preferred.pop((replica.topic, replica.key.index), None)

    def futures(self) -> list[HostedLog]:
        """Return the copies of the replicas that are moving or waiting to move."""
        found = []
        logs = self._logs
        by_key = {future.key: future for future in logs.moves.futures()}
        if not by_key:
            return []
        for replica in self._table:
            if (future := by_key.get(replica.key)) is not None and (log := replica.log) is not None:
                lag = log.end_offset - future.end_offset
                found.append(
                    HostedLog(future.directory_id, replica.topic, replica.key.index, future.size, lag, is_future=True)
                )
        return found
