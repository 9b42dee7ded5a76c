"""Produces that were appended and wait for their acknowledgement."""

from __future__ import annotations

import asyncio
import heapq
from dataclasses import dataclass

from broker.core.partition import ACKS_ALL, LeaderState
from broker.kafka.api import ProduceResult
from quorumlog.wire.errors import KafkaCode


@dataclass(slots=True)
class ParkedProduce:
    """A produce to one partition that waits for its acknowledgement.

    base_offset, end_offset: the offsets of its records.
    append_time_ms: the timestamp that the leader gave to its records; -1 if they kept their own.
    timer: ends the wait; None once the time is up.
    """

    future: asyncio.Future[ProduceResult]
    acks: int
    base_offset: int
    end_offset: int
    append_time_ms: int
    timer: asyncio.TimerHandle | None = None


class ParkedProduces:
    """The parked produces of one replica.

    A produce with acks=all waits until the watermark reaches its end.  A produce with acks=1 waits until it is flushed.
    Each kind has a heap, ordered by end offset.
    """

    __slots__ = ("_by_commit", "_by_flush", "_order", "_timed_out")

    def __init__(self) -> None:
        self._by_commit: list[tuple[int, int, ParkedProduce]] = []
        self._by_flush: list[tuple[int, int, ParkedProduce]] = []
        self._order = 0
        self._timed_out = 0
        """Number of produces in the heaps whose time is up.  They no longer count as parked."""

    def add(self, produce: ParkedProduce) -> None:
        self._order += 1
        heap = self._by_commit if produce.acks == ACKS_ALL else self._by_flush
        heapq.heappush(heap, (produce.end_offset, self._order, produce))

    def take_decided(self, leader: LeaderState) -> list[tuple[ParkedProduce, KafkaCode]]:
        """Remove and return the produces that are decided by now, in order, each with its answer."""
        decided: list[tuple[ParkedProduce, KafkaCode]] = []
        for heap in (self._by_flush, self._by_commit):
            while heap:
                produce = heap[0][2]
                verdict = leader.verdict(produce.acks, produce.end_offset)
                if verdict is None:
                    break
                heapq.heappop(heap)
                if produce.timer is None:
                    self._timed_out -= 1
                else:
                    decided.append((produce, verdict))
        return decided

    def take_all(self) -> list[ParkedProduce]:
        """Remove every produce, because the leadership has ended or the broker stops; return those still parked."""
        heaps = (self._by_flush, self._by_commit)
        taken = [produce for heap in heaps for _, _, produce in heap if produce.timer is not None]
        for heap in heaps:
            heap.clear()
        self._timed_out = 0
        return taken

    def forget(self, produce: ParkedProduce) -> None:
        """Drop a produce whose time is up."""
        assert produce.timer is None, produce
        self._timed_out += 1
        if 2 * self._timed_out > len(self._by_flush) + len(self._by_commit):
            # Timed-out produces are removed only when they are the majority, so the cost for each one is constant.
            for heap in (self._by_flush, self._by_commit):
                heap[:] = [entry for entry in heap if entry[2].timer is not None]
                heapq.heapify(heap)
            self._timed_out = 0
