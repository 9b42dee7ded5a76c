"""The data of DescribeNode and `kctl brokers` about a broker: its replicas, strays and applied metadata."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from heapq import nsmallest
from uuid import UUID

from broker.coordinator.dead_letters import Failing
from broker.core.coordinator.share.states import ShareKey
from broker.log.cleaner import LogCleaner
from broker.log.strays import STRAYS
from broker.log.types import parse_folder_name
from broker.replica.progress import AppliedBatches, Progress
from broker.replica.replica import Replica
from broker.replica.table import ReplicaTable
from quorumlog.runtime.disk import DiskError
from quorumlog.runtime.turns import Turn
from quorumlog.wire.v1 import node_pb2 as pb

UNCLEANABLE_SHOWN_MAX = 20
"""The reply to DescribeNode names at most this number of logs that cannot be compacted; `uncleanable_count` counts all
of them."""
FAILING_LETTERS_SHOWN_MAX = 20
"""The reply to DescribeNode names at most this number of share partitions whose dead letters cannot be written;
`failing_count` counts all of them."""


class NodeView:
    """The `metadata.controller.node_service.BrokerView` of this broker.  paths: its directories, by directory id."""

    def __init__(
        self,
        table: ReplicaTable,
        paths: Mapping[UUID, str],
        applied: AppliedBatches,
        progress: Progress,
        cleaner: LogCleaner,
        failing: Mapping[ShareKey, Failing],
    ) -> None:
        """failing: the share partitions whose dead letters cannot be written; the owner changes it."""
        self._table = table
        self._failing = failing
        self._cleaner = cleaner
        self._logs = table.context.logs
        self._names = paths
        self._applied = applied
        self._progress = progress

    def progress(self) -> tuple[int, int]:
        return self._progress.applied_offset, self._progress.pending_changes

    async def describe_replicas(self, topics: Sequence[str]) -> list[pb.ReplicaDescription]:
        wanted = set(topics)
        replicas = [each for each in self._table if not wanted or each.topic in wanted]
        turn = Turn()
        described = []
        for each in sorted(replicas, key=lambda each: (each.topic, each.key.index)):
            await turn.passed()
            described.append(self._describe(each))
        return described

    def _describe(self, replica: Replica) -> pb.ReplicaDescription:
        message = pb.ReplicaDescription(
            topic=replica.topic,
            topic_id=replica.topic_id.bytes,
            index=replica.key.index,
            leader_epoch=replica.role_epoch,
        )
        log = replica.log
        if log is None:
            message.state, message.problem = "offline", replica.offline
            return message
        message.state = "leader" if replica.leader else "follower" if replica.follower else "idle"
        message.start_offset, message.end_offset = log.start_offset, log.end_offset
        message.flushed_offset, message.high_watermark = log.flushed_offset, log.high_watermark
        message.bytes = log.size
        message.directory = self._names.get(log.directory_id, "")
        return message

    def applied_batches(self, from_offset: int) -> tuple[int, list[pb.AppliedBatch]]:
        return self._applied.kept_from, self._applied.since(from_offset)

    def strays(self) -> list[pb.Stray]:
        found = []
        for stray in self._logs.strays():
            identity = parse_folder_name(stray.folder)
            found.append(
                pb.Stray(
                    topic=identity[1] if identity is not None else stray.folder,
                    index=identity[0].index if identity is not None else -1,
                    path=os.path.join(self._names.get(stray.directory_id, ""), STRAYS, stray.name),
                    set_aside_ms=stray.set_aside_ms,
                    kept=stray.is_kept,
                )
            )
        return found

    async def purge_strays(self) -> str:
        try:
            await self._logs.purge_strays()
        except DiskError as error:
            return str(error)
        return ""

    def compaction(self) -> pb.Compaction:
        cleaner = self._cleaner
        message = pb.Compaction(
            uncleanable_count=len(cleaner.uncleanable),
            dirty_bytes=cleaner.dirty_bytes(),
            due=cleaner.due(),
            longest_wait_ms=cleaner.longest_wait_ms(),
        )
        for key, why in sorted(cleaner.uncleanable.items(), key=lambda item: (not item[1].is_final, item[0])):
            if len(message.uncleanable) < UNCLEANABLE_SHOWN_MAX and (log := self._logs.get(key)) is not None:
                message.uncleanable.add(topic=log.topic, index=key.index, cause=why.cause, is_final=why.is_final)
        return message

    def dead_letters(self) -> pb.DeadLetters:
        message = pb.DeadLetters(failing_count=len(self._failing))
        context = self._table.context
        for key, each in nsmallest(
            FAILING_LETTERS_SHOWN_MAX, self._failing.items(), key=lambda item: (item[1].since_ms, item[0])
        ):
            topic = context.cluster.newest.topics.get(key.topic_id)
            message.failing.add(
                group=key.group,
                topic=str(key.topic_id) if topic is None else topic.name,
                index=key.partition,
                dead_letter_topic=each.topic,
                cause=each.cause,
                since_ms=each.since_ms,
            )
        return message

    def failed_directories(self) -> dict[str, str]:
        failed = self._logs.failed_disks
        return {self._names.get(each, str(each)): str(error) for each, error in failed.items()}
