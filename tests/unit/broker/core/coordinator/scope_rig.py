"""A coordinator of transactions with its log, for tests of scopes that read as sentences."""

from __future__ import annotations

from typing import Any

from broker.core.coordinator.machine import Record, Step
from broker.core.coordinator.scope_requests import (
    AbortScope,
    DescribedScope,
    DescribeScopes,
    EndScope,
    EndScopeResponse,
    InitScope,
    InitScopeProducer,
    InitScopeProducerResponse,
    InitScopeResponse,
    ScopeLimits,
    Winner,
)
from broker.core.coordinator.transaction_machine import TransactionMachine
from broker.core.coordinator.transaction_records import Partition
from broker.core.coordinator.transaction_requests import (
    AddPartitions,
    DescribeTransactions,
    EndTransaction,
    ListTransactions,
    MarkersWritten,
    TransactionLimits,
    WriteMarkers,
)
from quorumlog.wire.errors import KafkaCode
from quorumlog.wire.scope_names import transactional_id
from tests.unit.broker.core.coordinator.replays import replay_log

SCOPE, OWNER = "job", "query-1"
T0, T1 = ("t", 0), ("t", 1)
LIMITS = TransactionLimits(
    timeout_max_ms=60_000,
    expiration_ms=1_000_000,
    sweep_interval_ms=10_000,
    scopes=ScopeLimits(scopes_max=3, producers_max=4, expiration_ms=5_000_000, free_ids_max=3),
)
WALL = 1_000_000_000


class ScopeRig:
    """Each operation takes place at `now`; the wall clock runs with it.

    jump: the error of the wall clock, which expiry does not follow.
    """

    def __init__(self, limits: TransactionLimits = LIMITS) -> None:
        self.limits = limits
        self.now = 0
        self.jump = 0
        self.log: list[Record] = []
        self.effects: list[WriteMarkers] = []
        """Decisions whose markers are not written."""
        self.decided: dict[tuple[int, int], bool] = {}
        """Whether a decision committed, by the producer in its markers."""
        self.next_id = 100
        self.machine = self._make()
        self._calls = 0
        self.take(self.machine.loaded(0))

    def _make(self) -> TransactionMachine:
        wall = lambda: WALL + self.now + self.jump  # noqa: E731
        return TransactionMachine(self.limits, self, wall, lambda: WALL + self.now)

    def may_commit(self, topic: str, partition: int) -> bool:
        return True

    def take(self, step: Step) -> list[Any]:
        self.log += step.records
        for effect in step.effects:
            assert self.decided.setdefault(effect.producer, effect.is_commit) is effect.is_commit, effect
        self.effects += step.effects
        return [answer.response for answer in step.answers]

    def ask(self, request: Any) -> Any:
        self._calls += 1
        (answer,) = self.take(self.machine.request(self._calls, request, self.now))
        return answer

    def fail_over(self, log: list[Record] | None = None) -> None:
        """Continue with a machine that has replayed the log."""
        self.machine, self.effects = self._make(), []
        replay_log(self.machine, self.log if log is None else log)
        self.take(self.machine.loaded(self.now))

    def compact(self) -> list[Record]:
        """Return the newest record of each key, in the order of the log."""
        newest = {record.key: at for at, record in enumerate(self.log)}
        return [record for at, record in enumerate(self.log) if newest[record.key] == at]

    # -- requests

    def init(self, run: str = "run-1", owner: str = OWNER, scope: str = SCOPE, *, reset: bool = False) -> Any:
        found: InitScopeResponse = self.ask(InitScope(scope, owner, run, reset))
        return found

    def open(self, run: str = "run-1", scope: str = SCOPE) -> int:
        found = self.init(run, scope=scope)
        assert found.error is KafkaCode.NONE, found
        epoch: int = found.epoch
        return epoch

    def begin(self, epoch: int, attempt: str, timeout_ms: int = 10_000, scope: str = SCOPE) -> Any:
        found: InitScopeProducerResponse = self.ask(InitScopeProducer(scope, epoch, attempt, timeout_ms))
        if found.needs_id:
            self.next_id += 1
            found = self.ask(InitScopeProducer(scope, epoch, attempt, timeout_ms, self.next_id))
        return found

    def staged(self, epoch: int, attempt: str, *partitions: Partition, scope: str = SCOPE) -> Winner:
        """Return a new producer that has written to partitions."""
        found = self.begin(epoch, attempt, scope=scope)
        assert found.error is KafkaCode.NONE, found
        winner = Winner(attempt, found.producer)
        if partitions:
            assert set(self.add(winner, *partitions, scope=scope)) == {KafkaCode.NONE}
        return winner

    def add(self, winner: Winner, *partitions: Partition, verify: bool = False, scope: str = SCOPE) -> list[KafkaCode]:
        name = transactional_id(scope, winner.attempt)
        return list(self.ask(AddPartitions(name, winner.producer, partitions, verify)).errors)

    def end_one(self, winner: Winner, *, commit: bool) -> KafkaCode:
        error: KafkaCode = self.ask(
            EndTransaction(transactional_id(SCOPE, winner.attempt), winner.producer, commit)
        ).error
        return error

    def end(self, epoch: int, sequence: int, *winners: Winner, scope: str = SCOPE) -> EndScopeResponse:
        found: EndScopeResponse = self.ask(EndScope(scope, epoch, sequence, winners))
        return found

    def abort(self, epoch: int, *, close: bool = False) -> KafkaCode:
        error: KafkaCode = self.ask(AbortScope(SCOPE, epoch, close)).error
        return error

    def described(self, scope: str = SCOPE) -> DescribedScope:
        found: DescribedScope = self.ask(DescribeScopes((scope,))).scopes[0]
        return found

    def states(self) -> dict[str, str]:
        return {each.transactional_id: each.state for each in self.ask(ListTransactions()).transactions}

    def state_of(self, winner: Winner) -> str:
        found = self.ask(DescribeTransactions((transactional_id(SCOPE, winner.attempt),))).groups[0]
        return str(found.state) if found.error is KafkaCode.NONE else found.error.name

    # -- events

    def mark(self, *, count: int | None = None) -> None:
        """Report the markers of the decisions, the oldest first."""
        for _ in range(len(self.effects) if count is None else count):
            effect = self.effects.pop(0)
            report = MarkersWritten(effect.transactional_id, effect.producer, effect.partitions)
            self.take(self.machine.markers_written(report, self.now))

    def pass_time(self, ms: int) -> None:
        end = self.now + ms
        while self.machine.deadline_ms is not None and self.machine.deadline_ms <= end:
            self.now = self.machine.deadline_ms
            self.take(self.machine.tick(self.now))
        self.now = end
