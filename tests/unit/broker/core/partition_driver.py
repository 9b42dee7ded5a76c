"""Builders for tests of the leader and the follower of one partition."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from broker.core.epochs import EpochCache
from broker.core.partition import (
    Assignment,
    Contact,
    LeaderReply,
    LeaderState,
    Limits,
)


@dataclass
class FakeCluster:
    """Broker epochs are 100 + id unless set; a fenced broker may not join."""

    epochs: dict[int, int] = field(default_factory=dict)
    fenced: set[int] = field(default_factory=set)

    def broker_epoch(self, broker_id: int) -> int:
        return self.epochs.get(broker_id, 100 + broker_id)

    def may_join(self, broker_id: int) -> bool:
        return broker_id not in self.fenced


class Leader:
    """Leader 1 of replicas (1, 2, 3) with a log of `log_end` flushed records."""

    def __init__(
        self,
        isr: tuple[int, ...] = (1, 2, 3),
        log_end: int = 0,
        watermark: int = 0,
        min_isr: int = 2,
        log_start: int = 0,
    ) -> None:
        self.now_ms = 1_000
        self.cluster = FakeCluster()
        self.state = LeaderState(
            1,
            Assignment((1, 2, 3), isr, 1, leader_epoch=5, partition_epoch=7),
            log_end=log_end,
            flushed_end=log_end,
            high_watermark=watermark,
            cluster=self.cluster,
            limits=Limits(lag_max_ms=10_000, min_isr=min_isr, retry_ms=500, overdue_ms=5_000),
            now_ms=self.now_ms,
            log_start=log_start,
        )
        self.contacts = {2: Contact(self.now_ms), 3: Contact(self.now_ms)}

    @property
    def hw(self) -> int:
        return self.state.high_watermark

    def write(self, end: int, flush: bool = True) -> None:
        self.state.on_appended(end)
        if flush:
            self.state.on_flushed(end)

    def fetch(self, broker_id: int, end: int, broker_epoch: int | None = None) -> bool:
        contact = self.contacts[broker_id]
        contact.last_fetch_ms = self.now_ms
        epoch = self.cluster.broker_epoch(broker_id) if broker_epoch is None else broker_epoch
        return self.state.on_fetch(broker_id, epoch, end, self.now_ms, contact)

    def hear(self, broker_id: int) -> None:
        """Receive an incremental fetch that does not name this partition."""
        self.contacts[broker_id].last_fetch_ms = self.now_ms

    def log_shows(self, isr: tuple[int, ...], partition_epoch: int) -> bool:
        return self.state.on_assignment(Assignment((1, 2, 3), isr, 1, 5, partition_epoch), self.now_ms)

    def members(self) -> tuple[int, ...] | None:
        proposal = self.state.propose(self.now_ms)
        return None if proposal is None else proposal.members


def history(*epochs: tuple[int, int], end: int) -> EpochCache:
    """Return the history of a log whose epochs start at the given offsets."""
    return EpochCache(epochs, end)


def reply(**changes: Any) -> LeaderReply:
    fields: dict[str, Any] = {
        "code": 0,
        "high_watermark": 20,
        "log_start": 0,
        "diverging": None,
        "first_offset": -1,
    }
    return LeaderReply(**{**fields, **changes})
