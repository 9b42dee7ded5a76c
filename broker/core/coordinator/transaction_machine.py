"""The coordinator of the transactions of one partition of `__transaction_state`.

Theory of operation
-------------------
A transactional id has one producer (id and epoch) and at most one transaction.

    Empty → Ongoing               a partition is added
    Ongoing → PrepareCommit       EndTxn
    Ongoing → PrepareAbort        EndTxn, the timeout, or a new producer
    PrepareX → CompleteX          every partition has its marker
    CompleteX → Ongoing, Empty    the next transaction; a new producer

A client of a newer version may also abort when no partition was added (Empty or CompleteX → PrepareAbort).

**The decision** is the record of PrepareCommit or PrepareAbort.  Once it is committed, the shell writes the markers
(`WriteMarkers`), and repeats that until every partition has its marker or no longer exists.  A coordinator that loads a
decided transaction orders its markers again; a marker may be written twice.  So no transaction can remain open because
a leader or coordinator failed.

**Fencing.**  A new producer of an id gets the next epoch.  A timeout and a new producer also raise the epoch of the
transaction that they abort, and the markers carry the new epoch.  So batches of the old producer are refused from the
marker on.  A client never gets an epoch above `EPOCH_MAX`.  After that epoch, the id gets another producer id.

**Versions.**  Each request names the transaction version of its client.  So the rules of a request do not depend on the
version that the cluster recommends, and clients of both versions may alternate.  From `EPOCH_RISES` on (KIP-890), each
end raises the epoch: the markers carry the new epoch, and the client continues with it.  So a batch that arrives after
its transaction has ended is refused everywhere.  A client that lost the answer repeats its request with the former
epoch; `_is_repeated` recognises that.  If the epoch is exhausted, the client continues with another producer id
(`TransactionValue.next_id`).

**Scopes** (`scopes.py`) decide the transactions of many producers by one record.  These producers have transactional
ids as well, so this module handles their partitions, markers and timeouts.  Only requests about the scope initialize
these producers and commit their transactions.

**Replay is the only writer** of the stored state: a request makes a record, which is applied as it is appended.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from heapq import heappop, heappush
from typing import TYPE_CHECKING, Final, assert_never

from msgspec.structs import replace

from broker.core.coordinator.fields import BadRecord
from broker.core.coordinator.machine import Record, Step, replay_each
from broker.core.coordinator.scope_requests import (
    AbortScope,
    DescribeScopes,
    EndScope,
    InitScope,
    InitScopeProducer,
)
from broker.core.coordinator.scopes import Scopes
from broker.core.coordinator.transaction_outcomes import outcome_among
from broker.core.coordinator.transaction_records import (
    EPOCH_MAX,
    EPOCH_RISES,
    NO_ID,
    NO_TIME,
    Partition,
    TransactionState,
    TransactionValue,
    read_transaction,
    read_transaction_key,
)
from broker.core.coordinator.transaction_requests import (
    AddPartitions,
    AddPartitionsResponse,
    DescribedTransaction,
    DescribeTransactions,
    DescribeTransactionsResponse,
    EndTransaction,
    EndTransactionResponse,
    FindOutcome,
    FindOutcomeResponse,
    InitProducer,
    InitProducerResponse,
    KnownPartitions,
    ListedTransaction,
    ListTransactions,
    ListTransactionsResponse,
    MarkersWritten,
    TransactionLimits,
    TransactionRequest,
    WriteMarkers,
)
from broker.core.coordinator.transaction_step import TransactionStep
from broker.core.transactions import NO_PRODUCER, ProducerKey
from quorumlog.wire.errors import KafkaCode
from quorumlog.wire.scope_names import is_reserved

if TYPE_CHECKING:
    from quorumlog.wire._record_scan import Record as LoggedRecord

_State = TransactionState


class TransactionMachine:
    """The transactional ids of one partition; a `machine.Machine`.

    topics: answers from the image.  wall_ms: ms since the epoch, for times in records.
    cautious_ms: ms since the epoch, for the expiry of ids and scopes.  It follows a jump of the wall clock only after a
        day.  So a clock that is wrong by years deletes nothing before people can notice it.  None: `wall_ms`.
    """

    def __init__(
        self,
        limits: TransactionLimits,
        topics: KnownPartitions,
        wall_ms: Callable[[], int],
        cautious_ms: Callable[[], int] | None = None,
    ) -> None:
        self._limits = limits
        self._topics: Final = topics
        self._wall_ms: Final = wall_ms
        self._cautious_ms: Final = cautious_ms or wall_ms
        self._ids: Final[dict[str, TransactionValue]] = {}
        self._pending: Final[dict[str, set[Partition]]] = {}
        """For each decided transaction, the partitions whose marker is not confirmed; soft state."""
        self._order_markers: Final = partial(_order_markers, self._pending)
        self._scopes: Final = Scopes(self._ids, self._order_markers, limits)
        self._heap: list[tuple[int, str]] = []
        """Times at which open transactions are checked.  An entry is valid if `_watched` has its time for the id."""
        self._watched: Final[dict[str, int]] = {}
        self._continued: Final[dict[str, ProducerKey]] = {}
        """For each id, the producer that the last InitProducer continued; soft state.  The entry identifies a repeated
        request.  A new producer of the id removes it, because the earlier producer must not get the same epoch."""
        self._sweep_ms: int | None = None
        self._sweep: list[str] = []
        """Ids that the sweep in progress has not examined yet."""
        self._next_tick_ms = 0

    # -- the log

    def replay(self, record: Record) -> None:
        """Apply one record.

        Raises:
            BadRecord: the record is damaged, and nothing was changed.
        """
        if record.marker is not None:
            raise BadRecord("a marker is not permitted in the topic of transactions")
        name = read_transaction_key(record.key)
        if name is None:
            self._scopes.replay(record)
            return
        if record.value is None:
            self._ids.pop(name, None)
        else:
            self._ids[name] = read_transaction(record.value)
        self._scopes.id_changed(name)

    def replay_batch(self, records: list[LoggedRecord], producer: ProducerKey | None) -> None:
        """Apply the records of one batch; see `Machine.replay_batch`."""
        replay_each(self.replay, records, producer)

    def loaded(self, now_ms: int) -> Step:
        """Start to serve: order the markers of decided transactions, and watch the timeouts of open ones."""
        assert self._sweep_ms is None, "loaded twice"
        step = self._new_step(now_ms)
        self._sweep_ms = now_ms + self._limits.sweep_interval_ms
        self._scopes.drop_deleted(step)
        for name, value in self._ids.items():
            if value.state.is_preparing:
                self._order_markers(step, name, value)
            elif value.state is _State.ONGOING:
                self._watch(step, name, value)
        self._scopes.loaded(step)
        return step.build()

    # -- requests

    def request(self, call: int, request: TransactionRequest, now_ms: int) -> Step:
        """Apply a request."""
        assert self._sweep_ms is not None, "not loaded"
        step = self._new_step(now_ms)
        match request:
            case InitProducer() if is_reserved(request.transactional_id):
                step.answer(call, InitProducerResponse(KafkaCode.INVALID_REQUEST))
            case EndTransaction() if request.is_commit and is_reserved(request.transactional_id):
                step.answer(call, EndTransactionResponse(KafkaCode.INVALID_TXN_STATE))
            case InitScope() | InitScopeProducer() | EndScope() | AbortScope() | DescribeScopes():
                step.answer(call, self._scopes.request(step, request))
            case InitProducer():
                step.answer(call, self._init(step, request))
            case AddPartitions():
                step.answer(call, AddPartitionsResponse(self._add(step, request)))
            case EndTransaction():
                step.answer(call, self._end(step, request))
            case DescribeTransactions():
                found = tuple(self._describe(name) for name in request.transactional_ids)
                step.answer(call, DescribeTransactionsResponse(found))
            case ListTransactions():
                step.answer(call, ListTransactionsResponse(tuple(self._list(step, request))))
            case FindOutcome():
                step.answer(call, FindOutcomeResponse(outcome_among(self._ids.values(), request)))
            case _:
                assert_never(request)
        return step.build()

    def _init(self, step: TransactionStep, request: InitProducer) -> InitProducerResponse:
        name = request.transactional_id
        if not 0 < len(name.encode()) <= self._limits.name_max_bytes:
            return InitProducerResponse(KafkaCode.INVALID_REQUEST)
        if not 0 < request.timeout_ms <= self._limits.timeout_max_ms:
            return InitProducerResponse(KafkaCode.INVALID_TRANSACTION_TIMEOUT)
        value = self._ids.get(name)
        if value is None:
            if len(self._ids) >= self._limits.ids_max:
                return InitProducerResponse(KafkaCode.POLICY_VIOLATION)
            return self._begin(step, request, 0)
        if value.state.is_preparing:
            return InitProducerResponse(KafkaCode.CONCURRENT_TRANSACTIONS)
        if request.producer not in (NO_PRODUCER, value.producer):
            return self._repeated(value, request)
        if value.state is _State.ONGOING:
            self._abort(step, name, value, "a new producer", 0)
            return InitProducerResponse(KafkaCode.CONCURRENT_TRANSACTIONS)
        if value.producer_epoch >= EPOCH_MAX:
            return self._begin(step, request, 0)
        return self._begin(step, request, value.producer_epoch + 1, value.producer_id)

    def _repeated(self, value: TransactionValue, request: InitProducer) -> InitProducerResponse:
        """Answer a client that names another producer than the current one.

        Either the answer to its previous request was lost, or the client is fenced.
        """
        is_retry = (
            request.producer == self._continued.get(request.transactional_id)
            and value.state is _State.EMPTY
            and value.timeout_ms == request.timeout_ms
        )
        if is_retry:
            return InitProducerResponse(KafkaCode.NONE, value.producer)
        return InitProducerResponse(KafkaCode.PRODUCER_FENCED)

    def _begin(
        self, step: TransactionStep, request: InitProducer, epoch: int, producer_id: int | None = None
    ) -> InitProducerResponse:
        if producer_id is None:
            if request.fresh_id is None:
                return InitProducerResponse(KafkaCode.NONE, needs_id=True)
            producer_id = request.fresh_id
        value = TransactionValue(producer_id, epoch, request.timeout_ms, _State.EMPTY, (), step.wall_ms)
        step.append(request.transactional_id, value)
        self._continued.pop(request.transactional_id, None)
        if request.producer != NO_PRODUCER:
            self._continued[request.transactional_id] = request.producer
        return InitProducerResponse(KafkaCode.NONE, value.producer)

    def _producer_error(self, value: TransactionValue | None, producer: ProducerKey) -> KafkaCode:
        if value is not None and value.next_id != NO_ID and producer == ProducerKey(value.next_id, 0):
            return KafkaCode.CONCURRENT_TRANSACTIONS  # the client knows its next id before the markers are written
        if value is None or value.producer_id != producer.producer_id:
            return KafkaCode.INVALID_PRODUCER_ID_MAPPING
        if value.producer_epoch > EPOCH_MAX:
            return KafkaCode.PRODUCER_FENCED  # no client has this epoch, and a record cannot store the next one
        return KafkaCode.NONE if value.producer_epoch == producer.epoch else KafkaCode.PRODUCER_FENCED

    def _add(self, step: TransactionStep, request: AddPartitions) -> tuple[KafkaCode, ...]:
        name, wanted = request.transactional_id, request.partitions
        value = self._ids.get(name)
        error = self._producer_error(value, request.producer)
        if error is KafkaCode.NONE and value is not None and value.state.is_preparing:
            error = KafkaCode.CONCURRENT_TRANSACTIONS
        if error is not KafkaCode.NONE or value is None:
            return (error,) * len(wanted)
        present = set(value.partitions) if value.state is _State.ONGOING else set()
        if request.verify_only:
            return tuple(KafkaCode.NONE if each in present else KafkaCode.TRANSACTION_ABORTABLE for each in wanted)
        unknown = {each for each in wanted if not self._topics.may_commit(*each)}
        if unknown:
            refusals = (KafkaCode.UNKNOWN_TOPIC_OR_PARTITION, KafkaCode.OPERATION_NOT_ATTEMPTED)
            return tuple(refusals[each not in unknown] for each in wanted)
        together = present | set(wanted)
        if len(together) > self._limits.partitions_max:
            return (KafkaCode.INVALID_REQUEST,) * len(wanted)
        if together > present:
            is_new = value.state is not _State.ONGOING
            changed = replace(
                value,
                state=_State.ONGOING,
                partitions=tuple(sorted(together)),
                updated_ms=step.wall_ms,
                started_ms=step.wall_ms if is_new else value.started_ms,
                client_version=request.client_version,
                previous_id=NO_ID,
            )
            step.append(name, changed)
            if is_new:
                self._watch(step, name, changed)
        return (KafkaCode.NONE,) * len(wanted)

    def _end(self, step: TransactionStep, request: EndTransaction) -> EndTransactionResponse:
        name, value = request.transactional_id, self._ids.get(request.transactional_id)
        rises = request.client_version >= EPOCH_RISES
        is_retry = rises and value is not None and _is_repeated(value, request.producer)
        error = KafkaCode.NONE if is_retry else self._producer_error(value, request.producer)
        if error is not KafkaCode.NONE or value is None:
            return EndTransactionResponse(error)
        decided = _State.PREPARE_COMMIT if request.is_commit else _State.PREPARE_ABORT
        completed = _State.COMPLETE_COMMIT if request.is_commit else _State.COMPLETE_ABORT
        if value.state is decided:
            return EndTransactionResponse(KafkaCode.CONCURRENT_TRANSACTIONS)
        if value.state is completed and (is_retry or not rises):
            return EndTransactionResponse(KafkaCode.NONE, value.producer)  # the answer to the first request was lost
        is_open = value.state is _State.ONGOING
        # A client may abort before the coordinator knows a partition: a batch may still be in transit to its leader.
        if not is_open and (not rises or is_retry or request.is_commit or value.state.is_preparing):
            return EndTransactionResponse(KafkaCode.INVALID_TXN_STATE)
        epoch, next_id = value.producer_epoch, NO_ID
        if rises and epoch >= EPOCH_MAX:
            if request.fresh_id is None:
                return EndTransactionResponse(KafkaCode.NONE, needs_id=True)
            next_id = request.fresh_id
        changed = replace(
            value,
            producer_epoch=epoch + 1 if rises else epoch,
            state=decided,
            updated_ms=step.wall_ms,
            started_ms=value.started_ms if is_open else step.wall_ms,
            client_version=request.client_version,
            next_id=next_id,
            previous_id=NO_ID,
        )
        self._decide(step, name, changed)
        return EndTransactionResponse(KafkaCode.NONE, changed.producer if next_id == NO_ID else ProducerKey(next_id, 0))

    def _abort(
        self, step: TransactionStep, name: str, value: TransactionValue, cause: str, client_version: int
    ) -> None:
        """Abort an open transaction, and fence its producer.

        client_version: if it is below `EPOCH_RISES`, the producer cannot continue by sending an abort itself.
        """
        step.note(f"transaction of {name} aborted by {cause}, producer {value.producer_id}")
        epoch = value.producer_epoch + 1
        if epoch > EPOCH_MAX + 1:  # an earlier release accepted an epoch that only markers may have
            epoch, client_version = EPOCH_MAX + 1, 0
        fenced = replace(
            value,
            producer_epoch=epoch,
            state=_State.PREPARE_ABORT,
            updated_ms=step.wall_ms,
            client_version=client_version,
        )
        self._decide(step, name, fenced)

    def _decide(self, step: TransactionStep, name: str, decided: TransactionValue) -> None:
        step.append(name, decided)
        self._order_markers(step, name, decided)

    def _written(self, step: TransactionStep, request: MarkersWritten) -> None:
        """Complete a transaction once every partition has its marker.  Ignore a report about another transaction."""
        name = request.transactional_id
        value = self._ids.get(name)
        if value is None or not value.state.is_preparing:
            return
        if request.producer != value.producer:
            return
        pending = self._pending[name]
        pending.difference_update(request.partitions)
        if pending:
            return
        del self._pending[name]
        if self._scopes.completed(step, name):
            return
        is_commit = value.state is _State.PREPARE_COMMIT
        completed = _State.COMPLETE_COMMIT if is_commit else _State.COMPLETE_ABORT
        changed = replace(value, state=completed, partitions=(), updated_ms=step.wall_ms, next_id=NO_ID)
        if value.next_id != NO_ID:
            changed = replace(changed, producer_id=value.next_id, producer_epoch=0, previous_id=value.producer_id)
        step.append(name, changed)

    def _describe(self, name: str) -> DescribedTransaction:
        value = self._ids.get(name)
        if value is None:
            return DescribedTransaction(name, KafkaCode.TRANSACTIONAL_ID_NOT_FOUND)
        has_transaction = value.state is _State.ONGOING or value.state.is_preparing
        started_ms = value.started_ms if has_transaction else NO_TIME
        return DescribedTransaction(
            name, KafkaCode.NONE, value.state.label, value.timeout_ms, started_ms, value.producer, value.partitions
        )

    def _list(self, step: TransactionStep, request: ListTransactions) -> Iterator[ListedTransaction]:
        for name, value in self._ids.items():
            if request.states and value.state.label not in request.states:
                continue
            if request.producer_ids and value.producer_id not in request.producer_ids:
                continue
            if request.longer_than_ms >= 0:
                is_open = value.state is _State.ONGOING or value.state.is_preparing
                if not is_open or step.wall_ms - value.started_ms <= request.longer_than_ms:
                    continue
            yield ListedTransaction(name, value.producer_id, value.state.label)

    # -- events

    def awaits_markers(self, name: str, producer: ProducerKey) -> bool:
        """Return whether a transaction of this producer is decided, and not every partition has its marker yet."""
        value = self._ids.get(name)
        return value is not None and value.state.is_preparing and value.producer == producer

    def markers_written(self, report: MarkersWritten, now_ms: int) -> Step:
        """Apply a report that partitions of a decided transaction have their markers."""
        step = self._new_step(now_ms)
        self._written(step, report)
        return step.build()

    def forget(self, call: int, now_ms: int) -> Step:
        """Do nothing: every call is answered within its own step."""
        return Step()

    def close(self) -> None:
        """End; see `Machine.close`.  No part of the state refers to this object."""

    def configure(self, limits: TransactionLimits, now_ms: int) -> Step:
        """Apply changed limits.  Transactions that were accepted under the old limits stay."""
        self._limits = self._scopes.limits = limits
        if self._sweep_ms is not None:
            self._sweep_ms = min(self._sweep_ms, now_ms + limits.sweep_interval_ms)
        return Step()

    def states(self) -> Iterator[str]:
        """Yield the state of each transactional id."""
        return (value.state.label for value in self._ids.values())

    # -- time

    def tick(self, now_ms: int) -> Step:
        """Abort the transactions whose time is up, and delete expired ids, as many as fit into a batch."""
        assert self._sweep_ms is not None, "not loaded"
        step = self._new_step(now_ms)
        limits = self._limits
        while self._heap and self._heap[0][0] <= now_ms and step.size_bytes < limits.batch_max_bytes:
            at_ms, name = heappop(self._heap)
            if self._watched.get(name) != at_ms:
                continue
            del self._watched[name]
            value = self._ids.get(name)
            if value is None or value.state is not _State.ONGOING:
                continue
            if step.wall_ms - value.started_ms < value.timeout_ms:
                self._watch(step, name, value)  # a later transaction, or the wall clock was set back
            else:
                self._abort(step, name, value, f"its timeout of {value.timeout_ms} ms", value.client_version)
        if self._sweep_ms <= now_ms:
            self._sweep_ms = now_ms + limits.sweep_interval_ms
            self._sweep = list(self._ids)
            self._scopes.begin_sweep()
        if self._sweep or self._scopes.is_sweeping:
            cautious_ms = self._cautious_ms()
            while self._sweep and step.size_bytes < limits.batch_max_bytes:
                self._expire(step, self._sweep.pop(), cautious_ms)
            self._scopes.sweep(step, cautious_ms)
        self._next_tick_ms = now_ms + 1
        return step.build()

    def _expire(self, step: TransactionStep, name: str, cautious_ms: int) -> None:
        value = self._ids.get(name)
        if value is None or value.state is _State.ONGOING or value.state.is_preparing:
            return
        if cautious_ms - value.updated_ms > self._limits.expiration_ms:
            step.append(name, None)
            self._continued.pop(name, None)

    @property
    def deadline_ms(self) -> int | None:
        """Return the time of the next tick; None until the machine is loaded."""
        if self._sweep_ms is None:
            return None
        is_sweeping = self._sweep or self._scopes.is_sweeping
        due_ms = self._next_tick_ms if is_sweeping else self._sweep_ms
        if self._heap:
            due_ms = min(due_ms, self._heap[0][0])
        return max(due_ms, self._next_tick_ms)

    def _watch(self, step: TransactionStep, name: str, value: TransactionValue) -> None:
        """Schedule a check of an open transaction for the time at which it may exceed its timeout."""
        left_ms = value.started_ms + value.timeout_ms - step.wall_ms
        due_ms = step.now_ms + max(1, min(left_ms, value.timeout_ms))
        # Otherwise the heap has an earlier entry, whose tick examines this id again.
        if self._watched.get(name, due_ms + 1) > due_ms:
            self._watched[name] = due_ms
            heappush(self._heap, (due_ms, name))

    def _new_step(self, now_ms: int) -> TransactionStep:
        return TransactionStep(now_ms, self._wall_ms(), self.replay)


def _is_repeated(value: TransactionValue, producer: ProducerKey) -> bool:
    """Return whether an EndTransaction with this producer repeats the request that made the current state (KIP-890).

    This is also true if a timeout has aborted the transaction, so that the producer can continue.
    """
    if value.client_version < EPOCH_RISES or value.state in (_State.EMPTY, _State.ONGOING):
        return False
    if value.previous_id != NO_ID:  # the client continued with another producer id
        return producer == ProducerKey(value.previous_id, EPOCH_MAX) and value.producer_epoch == 0
    if value.producer_epoch > EPOCH_MAX and not value.state.is_preparing:
        return False  # aborted by its timeout, and no client may continue with this epoch
    return producer == ProducerKey(value.producer_id, value.producer_epoch - 1)


def _order_markers(
    pending: dict[str, set[Partition]], step: TransactionStep, name: str, value: TransactionValue
) -> None:
    """Order the effect that writes the markers of a decided transaction.

    This is a function, because a method of the machine in `Scopes` would form a reference cycle (see `Machine.close`).
    """
    pending[name] = set(value.partitions)
    is_commit = value.state is _State.PREPARE_COMMIT
    step.order(WriteMarkers(name, value.producer, is_commit, value.partitions, value.client_version))
