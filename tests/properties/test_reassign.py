"""Histories with reassignments: leaders have all committed records, and every reassignment ends or is undone."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from metadata.control.reassign import Wanted, alter_reassignments, original_of, progress, target_of
from metadata.records import NO_LEADER
from quorumlog.wire.errors import ApiError
from tests.properties.test_election import World, shared
from tests.unit.metadata.builders import check_invariants, directory

ALL = [1, 2, 3, 4, 5, 6]


class Moving(World):
    """As `World`, with brokers that have no replica at first.

    origin: the replicas from before the reassignment that is going on; target: where it is to end.
    """

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.cluster.start(*[each for each in ALL if each not in self.brokers])
        self.brokers = ALL
        self.caching = False  # a sole replica may lose unflushed records, which is documented
        self.logs = {each: self.logs.get(each, []) for each in ALL}
        self.disks = dict.fromkeys(ALL, 0)
        self.origin: set[int] = set()
        self.target: tuple[int, ...] = ()
        self.counts: Counter[str] = Counter()

    def has_replica(self, broker_id: int) -> bool:
        return self.now.replica(broker_id) is not None

    def step(self) -> None:
        if self.random.random() < 0.15:
            self.random.choice([self.reassign, self.reassign, self.cancel, self.go_on])()
            self.look()
        else:
            super().step()

    def fetch(self, broker_id: int) -> None:
        if self.has_replica(broker_id):
            super().fetch(broker_id)

    def expand(self, broker_id: int) -> None:
        if self.has_replica(broker_id) and self.lives(broker_id) and not self.is_lost(broker_id):
            super().expand(broker_id)

    def ask(self, *replicas: int, **options: Any) -> ApiError:
        decision = alter_reassignments(self.cluster.image, [Wanted("t", 0, replicas)], **options)
        self.cluster.apply(decision.records)
        return decision.reply.outcome.error

    def reassign(self) -> None:
        before = self.now
        wanted = tuple(self.random.sample(ALL, self.random.randint(1, 4)))
        word = self.ask(*wanted, replace=self.random.random() < 0.5)
        self.counts[f"start {word.name}"] += 1
        if word is not ApiError.NONE or self.now == before:
            assert self.now == before
            return
        self.target = wanted
        if not before.reassigning:
            self.origin = set(before.replica_ids)
        if self.now.reassigning and before.leader != NO_LEADER:
            assert set(before.isr) == set(self.now.isr), "a start makes no isr smaller"
            assert self.now.leader == before.leader
            assert set(original_of(self.now)) == self.origin
            assert target_of(self.now) == wanted

    def cancel(self) -> None:
        before = self.now
        word = self.ask()
        self.counts[f"cancel {word.name}"] += 1
        if word is not ApiError.NONE:
            assert self.now == before
            return
        assert set(self.now.replica_ids) == self.origin
        assert not self.now.reassigning
        assert self.now.leader != NO_LEADER or before.leader == NO_LEADER
        self.target = ()

    def go_on(self) -> None:
        """Look for due steps, as a new controller does."""
        self.cluster.execute(progress)

    def look(self) -> None:
        """As for elections; min.insync.replicas counts as it does for a leader while replicas are being added."""
        now = self.now
        if self.target and not now.reassigning:
            assert now.replica_ids == self.target
            self.counts["completed"] += 1
            self.target = ()
        for broker_id in ALL:
            if not self.has_replica(broker_id):
                self.logs[broker_id] = []
        factor, self.min_isr = self.min_isr, min(self.min_isr, now.settled_count)
        super().look()
        self.min_isr = factor

    def settle(self) -> None:
        """All brokers run again, copy, and join."""
        for broker_id in ALL:
            self.restart(broker_id, previous_broker_epoch=self.cluster.epoch(broker_id))
            self.cluster.beat(broker_id)
            if self.has_replica(broker_id):
                self.report(broker_id, directory(broker_id, self.disks[broker_id]))
            self.look()
        if self.now.leader == NO_LEADER:
            return
        for broker_id in ALL:
            leader = self.now.leader
            if self.has_replica(broker_id) and broker_id != leader:
                assert shared(self.logs[leader], self.committed) == len(self.committed)
                self.logs[broker_id] = list(self.logs[leader])
                self.expand(broker_id)
                self.look()


@pytest.mark.parametrize("first", range(0, 300, 50))
def test_reassignments_lose_no_committed_record_and_end(first: int) -> None:
    counts: Counter[str] = Counter()
    committed = 0
    for seed in range(first, first + 50):
        world = Moving(seed)
        for _ in range(150):
            world.step()
        world.settle()
        check_invariants(world.cluster.image)
        assert not world.now.reassigning or world.now.leader == NO_LEADER, (seed, world.now)
        committed += len(world.committed)
        counts += world.counts
    assert committed > 20
    for what in ("start NONE", "start REASSIGNMENT_IN_PROGRESS", "completed", "cancel NONE"):
        assert counts[what] > 20, counts
    assert counts["cancel ELIGIBLE_LEADERS_NOT_AVAILABLE"], counts
