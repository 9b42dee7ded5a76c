"""One replica on this broker: its log, its role, the produces that wait for it and the fetches that watch it."""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable
from dataclasses import dataclass
from uuid import UUID

from broker.core.errors import Code
from broker.core.fetch_session import LeaderSession, PartitionKey, SessionPartition
from broker.core.partition import ACKS_ALL, FollowerState, LeaderState
from broker.kafka.api import ProduceResult
from broker.log import LogKey, PartitionLog
from metadata.image import PartitionImage

AskedKey = tuple[UUID | str, int]
"""A partition as a fetcher names it: topic id or name, and index."""

Session = LeaderSession[AskedKey]
AskedPartition = SessionPartition[AskedKey]


@dataclass(slots=True)
class ParkedProduce:
    """Appended, and not answered yet."""

    future: asyncio.Future[ProduceResult]
    acks: int
    base_offset: int
    end_offset: int
    timer: asyncio.TimerHandle | None = None


class Replica:
    """All that a broker has of one replica.  At most one of `leader` and `follower` is set; none while it is offline.

    key: names its log for ever; its topic id is the one that the topic was created with.
    topic_id: the one that the topic has now, by which everybody else names the partition.
    log: None when the replica is offline; `offline` then says why.
    sessions: the sessions that list this partition, with the key that they use for it.
    """

    __slots__ = (
        "_answered",
        "_by_commit",
        "_by_flush",
        "_order",
        "awaits_flush",
        "follower",
        "image",
        "key",
        "leader",
        "log",
        "offline",
        "role_epoch",
        "sessions",
        "topic",
        "topic_id",
    )

    def __init__(self, key: LogKey, topic_id: UUID, topic: str, image: PartitionImage) -> None:
        self.key = key
        self.topic_id = topic_id
        self.topic = topic
        self.image = image
        self.log: PartitionLog | None = None
        self.offline = ""
        self.leader: LeaderState | None = None
        self.follower: FollowerState | None = None
        self.role_epoch = -1
        """Leader epoch that the role was last set for."""
        self.sessions: dict[Session, AskedKey] = {}
        self.awaits_flush = False
        """As a follower: the fetcher is to be told once everything is flushed."""
        self._by_commit: list[tuple[int, int, ParkedProduce]] = []
        self._by_flush: list[tuple[int, int, ParkedProduce]] = []
        self._order = 0
        self._answered = 0

    @property
    def partition(self) -> PartitionKey:
        return PartitionKey(self.topic_id, self.key.index)

    def renewed(self, topic_id: UUID, image: PartitionImage) -> Replica:
        """The same replica under the topic's new id, without log and role yet; this one serves no more.

        The roles begin anew, since everything under way (proposals, fetches) names the old id.  Whoever fetches by the
        topic's name goes on watching.
        """
        moved = Replica(self.key, topic_id, self.topic, image)
        moved.offline = self.offline
        moved.sessions = {session: key for session, key in self.sessions.items() if isinstance(key[0], str)}
        self.log, self.offline = None, "its topic has another id now"
        self.leader = self.follower = None
        return moved

    def __repr__(self) -> str:
        role = "leader" if self.leader else "follower" if self.follower else "offline" if self.offline else "idle"
        return f"{self.topic}-{self.key.index} ({role})"

    # -- produces

    def park(self, produce: ParkedProduce) -> None:
        """Keep it until the watermark (acks=all) or the flush (acks=1) passes its end."""
        self._order += 1
        heap = self._by_commit if produce.acks == ACKS_ALL else self._by_flush
        heapq.heappush(heap, (produce.end_offset, self._order, produce))

    def take_decided(self) -> list[tuple[ParkedProduce, Code]]:
        """The parked produces that have their answer, with it, in order; they are parked no more."""
        leader = self.leader
        if leader is None:
            return [(produce, Code.NOT_LEADER_OR_FOLLOWER) for produce in self.take_all()]
        decided: list[tuple[ParkedProduce, Code]] = []
        for heap in (self._by_flush, self._by_commit):
            while heap:
                produce = heap[0][2]
                verdict = leader.verdict(produce.acks, produce.end_offset)
                if verdict is None:
                    break
                heapq.heappop(heap)
                decided.append((produce, verdict))
        return decided

    def forget(self, produce: ParkedProduce) -> None:
        """It was answered otherwise (its time is up)."""
        heap = self._by_commit if produce.acks == ACKS_ALL else self._by_flush
        self._answered += 1
        if 2 * self._answered > len(heap):
            # Only now and then: each is then paid for by as many that were added.
            heap[:] = [entry for entry in heap if not entry[2].future.done()]
            heapq.heapify(heap)
            self._answered = 0

    def take_all(self) -> list[ParkedProduce]:
        """Every parked produce: the role is gone that they waited for."""
        taken = [entry[2] for heap in (self._by_flush, self._by_commit) for entry in heap]
        self._by_flush.clear()
        self._by_commit.clear()
        return taken

    # -- fetches

    def touch(self, wake: Callable[[Session], None], *, consumers: bool, followers: bool) -> None:
        """Tell the sessions that there may be news.

        consumers, followers: for whom it is worth an answer now; a follower hears of a watermark with the next data.
        """
        for session, key in self.sessions.items():
            if session.replica_id >= 0:
                session.touch(key)
                if followers:
                    wake(session)
            elif consumers:
                session.touch(key)
                wake(session)
