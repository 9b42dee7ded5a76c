"""Known mistakes with transactions, planted one at a time; `mutants.py` has the others."""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

from msgspec.structs import replace

from broker.coordinator.partition import Coordinator
from broker.core.coordinator.group_machine import GroupMachine
from broker.core.coordinator.machine import Record, Step
from broker.core.coordinator.transaction_machine import TransactionMachine
from broker.core.coordinator.transaction_records import TransactionState
from broker.core.producer_state import ACCEPT, ProducerState
from broker.core.transactions import ProducerKey, Transactions
from broker.replica.produce import ProduceService
from quorumlog.wire.errors import KafkaCode
from simulation.kernel.mutation import Mutant, mutant_of

MUTANTS: list[Mutant] = []

_mutant = mutant_of(MUTANTS)


# In the log


@_mutant("the last stable offset ignores open transactions")
def _open_is_stable() -> list[Any]:
    return [patch.object(Transactions, "stable_offset", lambda self, high_watermark: high_watermark)]


@_mutant("a decided transaction is stable before its marker is committed")
def _stable_before_the_marker() -> list[Any]:
    stable_offset = Transactions.stable_offset

    def decided(self: Transactions, high_watermark: int) -> int:
        self._decided.clear()
        return stable_offset(self, high_watermark)

    return [patch.object(Transactions, "stable_offset", decided)]


@_mutant("aborted transactions are missing in the snapshots of producers")
def _aborted_are_forgotten() -> list[Any]:
    encode = Transactions.encode

    def without(self: Transactions) -> bytes:
        kept = Transactions()
        kept.open, kept._decided = self.open, self._decided
        return encode(kept)

    return [patch.object(Transactions, "encode", without)]


@_mutant("a transaction begins without a verification")
def _unverified() -> list[Any]:
    """As before KIP-890: the leader does not ask the coordinator, and does not need its answer.

    A leader refuses a batch if the coordinator has not confirmed its transaction.  So ignoring only the answer would
    change nothing, unless a marker arrived between the answer and the append.
    """
    return [
        patch.object(ProduceService, "_verify", lambda self, produce, replica, transactional_id, support: None),
        patch.object(ProducerState, "is_verified", lambda self, producer_id, producer_epoch, token: True),
    ]


@_mutant("a marker does not end the transaction for its producer's epoch")
def _markers_do_not_fence() -> list[Any]:
    """The log accepts batches with an older epoch, and does not need the coordinator's confirmation."""
    check = ProducerState._check_sequence

    def any_epoch(self: ProducerState, batch: Any, log_start_offset: int) -> Any:
        producer = self.get(batch.producer_id)
        if producer is not None and batch.producer_epoch < producer.epoch:
            return ACCEPT
        return check(self, batch, log_start_offset)

    return [
        patch.object(ProducerState, "_check_sequence", any_epoch),
        patch.object(ProducerState, "is_verified", lambda self, producer_id, producer_epoch, token: True),
    ]


# In the coordinator


@_mutant("markers are written before the decision is committed")
def _markers_early() -> list[Any]:
    on_watermark = Coordinator.on_watermark

    def early(self: Coordinator[Any]) -> None:
        while self._held_effects and self._on_effect is not None:
            self._on_effect(self, self._held_effects.popleft().effect)
        on_watermark(self)

    return [patch.object(Coordinator, "on_watermark", early)]


@_mutant("a new coordinator forgets the markers of decided transactions")
def _markers_are_forgotten() -> list[Any]:
    loaded = TransactionMachine.loaded

    def without_effects(self: TransactionMachine, now_ms: int) -> Step:
        return replace(loaded(self, now_ms), effects=())

    return [patch.object(TransactionMachine, "loaded", without_effects)]


@_mutant("a timeout does not raise the epoch")
def _late_producers_continue() -> list[Any]:
    abort = TransactionMachine._abort

    def same_epoch(self: TransactionMachine, step: Any, name: str, value: Any, *cause: Any) -> None:
        abort(self, step, name, replace(value, producer_epoch=value.producer_epoch - 1), *cause)

    return [patch.object(TransactionMachine, "_abort", same_epoch)]


@_mutant("a timeout is not noticed after a failover")
def _time_outs_are_forgotten() -> list[Any]:
    loaded = TransactionMachine.loaded

    def unwatched(self: TransactionMachine, now_ms: int) -> Step:
        with patch.object(TransactionMachine, "_watch", lambda *_: None):
            return loaded(self, now_ms)

    return [patch.object(TransactionMachine, "loaded", unwatched)]


@_mutant("a fenced producer may end its transaction")
def _fenced_may_end() -> list[Any]:
    def any_epoch(self: TransactionMachine, value: Any, producer: ProducerKey) -> KafkaCode:
        if value is None or value.producer_id != producer.producer_id:
            return KafkaCode.INVALID_PRODUCER_ID_MAPPING
        return KafkaCode.NONE

    return [patch.object(TransactionMachine, "_producer_error", any_epoch)]


@_mutant("a transaction is complete after the first marker")
def _complete_early() -> list[Any]:
    written = TransactionMachine._written

    def first(self: TransactionMachine, step: Any, request: Any) -> None:
        if (pending := self._pending.get(request.transactional_id)) and request.partitions:
            pending.clear()
        written(self, step, request)

    return [patch.object(TransactionMachine, "_written", first)]


@_mutant("a new producer does not wait for the end of the transaction before it")
def _begins_at_once() -> list[Any]:
    init = TransactionMachine._init

    def at_once(self: TransactionMachine, step: Any, request: Any) -> Any:
        value = self._ids.get(request.transactional_id)
        if value is not None and value.state is TransactionState.ONGOING:
            return self._begin(step, request, value.producer_epoch + 1, value.producer_id)
        return init(self, step, request)

    return [patch.object(TransactionMachine, "_init", at_once)]


# Offsets


@_mutant("offsets of a transaction are applied before its marker")
def _offsets_early() -> list[Any]:
    replay = GroupMachine.replay

    def early(self: GroupMachine, record: Record) -> None:
        replay(self, record if record.marker is not None else replace(record, producer=None))

    return [patch.object(GroupMachine, "replay", early)]


@_mutant("offsets of an aborted transaction are applied")
def _aborted_offsets() -> list[Any]:
    replay = GroupMachine.replay

    def as_if_committed(self: GroupMachine, record: Record) -> None:
        if record.marker is not None:
            record = replace(record, marker=replace(record.marker, is_commit=True))
        replay(self, record)

    return [patch.object(GroupMachine, "replay", as_if_committed)]
