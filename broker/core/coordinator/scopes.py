"""The transaction scopes of one partition of `__transaction_state`: many producers, decided by one record.

Theory of operation
-------------------
A scope's producers are ordinary producers with reserved transactional ids (`quorumlog.wire.scope_names`).  So their
partitions are added, verified and given markers as in any transaction.  The scope alone determines the partition of its
producers' ids.  So the scope and all its producers have one coordinator, and one log.

**The decision** is the record of the scope that begins its end (`ScopeState.ENDING`).  It names the winners.  It
decides all producers that the scope has at that offset of the log: the winners are committed, and the others aborted.
The producers get no records of their own for the decision.  The markers follow, as after every decision.

**Completion.**  A producer that has all its markers is deleted.  Once all are deleted, a record opens the scope again.
So if the last record of a scope in a log is an ENDING record, the log also has the last record of each producer that
the end has decided and not deleted.  Compaction keeps these records.  A coordinator that loads such a log continues the
end.  Producers that begin meanwhile have later records, so the decision does not apply to them.

**Fencing.**  Each run of a scope has a higher epoch, and each request of a run after InitScope names that epoch.  A new
run aborts all earlier producers by an ENDING record without winners.  An epoch is at least the wall clock in ms, and
higher than every epoch that the log shows.  So epochs also rise after a scope was deleted.

**A run never replaces a later run of its scope.**  InitScope names no epoch, so a duplicate that arrives late, for
example from a connection that was cut for minutes, would look like the next run.  It would fence the current run, and
with `reset` delete the sequence, so completed work would be repeated.  `_replaced` has the last runs that were replaced
according to the log.  Compaction removes their records, but not from the newest segment.  Usually that segment covers
far more time than a connection can delay a request, so a coordinator that loads the log knows all these runs.

**Epochs of producers.**  The decision raises the epoch of each producer by one, and its markers have that epoch.  A
producer id may be used again with the epoch after that (`_free`), so that logs have to remember few producers.  Markers
that arrive late cannot end the transaction of the next user.

**Producers that were deleted.**  A replica that was down for longer than `delete.retention.ms` lacks tombstones that
were compacted meanwhile.  So its log may show a producer that was deleted, with an old epoch, although later producers
had the same id.  A coordinator therefore uses an id again only if it began the earlier producer itself (`_begun`,
`_free`).  No other coordinator uses this id, so no two producers get the same id and epoch.  If several producers in a
log have the same id, only the one with the highest epoch still exists.  `drop_deleted` deletes the others, so that no
two transactions have the same id.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final, NamedTuple, assert_never

from msgspec.structs import replace

from broker.core.coordinator.machine import Record
from broker.core.coordinator.scope_records import NO_SEQUENCE, ScopeState, ScopeValue, read_scope, read_scope_key
from broker.core.coordinator.scope_requests import (
    AbortScope,
    AbortScopeResponse,
    DescribedProducer,
    DescribedScope,
    DescribeScopes,
    DescribeScopesResponse,
    EndScope,
    EndScopeResponse,
    InitScope,
    InitScopeProducer,
    InitScopeProducerResponse,
    InitScopeResponse,
    ScopeRequest,
    ScopeResponse,
)
from broker.core.coordinator.transaction_records import TransactionState, TransactionValue
from broker.core.coordinator.transaction_requests import TransactionLimits
from broker.core.coordinator.transaction_step import TransactionStep
from broker.core.transactions import ProducerKey
from quorumlog.wire.errors import KafkaCode
from quorumlog.wire.scope_names import (
    SCOPE_MAX_BYTES,
    attempt_of,
    attempt_problem,
    label_problem,
    scope_of,
    transactional_id,
)

_State = TransactionState
Refusal = tuple[KafkaCode, str]

EPOCH_MAX: Final = 32_766
"""The last epoch that a producer of a scope gets.  The decision about it raises the epoch once more."""
_ENDS: Final = "its previous end is not complete; ask again"
_GONE: Final = "there is no such scope, or it was deleted; open it first"


class _Run(NamedTuple):
    """A run of a scope.  Different owners may use the same run name."""

    scope: str
    owner: str
    run: str


class Scopes:
    """The scopes, and which transactional ids belong to them.

    ids: all transactional ids of the partition; changed only by `TransactionMachine.replay` and `Scopes.replay`.
    order_markers: orders the effect that writes the markers of a decided transactional id.
    """

    def __init__(
        self,
        ids: dict[str, TransactionValue],
        order_markers: Callable[[TransactionStep, str, TransactionValue], None],
        limits: TransactionLimits,
    ) -> None:
        self.limits = limits
        self._ids = ids
        self._order_markers = order_markers
        self._scopes: Final[dict[str, ScopeValue]] = {}
        self._members: Final[dict[str, dict[str, None]]] = {}
        """The transactional ids of each scope."""
        self._ending: Final[dict[str, set[str]]] = {}
        """For each scope that is ending, the decided transactional ids that are not complete yet."""
        self._begun: Final[set[str]] = set()
        """The transactional ids whose producer this coordinator has begun; soft state."""
        self._free: Final[deque[ProducerKey]] = deque()
        """The ids of complete producers that this coordinator had begun, each with its next epoch; soft state."""
        self._sweep: list[str] = []
        self._epoch_max = 0
        self._replaced: Final[dict[_Run, None]] = {}

    def __len__(self) -> int:
        return len(self._scopes)

    # -- the log

    def replay(self, record: Record) -> None:
        """Apply the record of a scope.  A record of another type is skipped.

        Raises:
            BadRecord: the record is damaged, and nothing was changed.
        """
        name = read_scope_key(record.key)
        if name is None:
            return
        known = self._scopes.get(name)
        value = None if record.value is None else read_scope(record.value)
        self._note_run(name, known, value)
        if value is None:
            self._scopes.pop(name, None)
            self._ending.pop(name, None)
            return
        self._scopes[name] = value
        if value.state is ScopeState.OPEN:
            self._ending.pop(name, None)
        else:
            self._decide(name, value)

    def _note_run(self, name: str, known: ScopeValue | None, value: ScopeValue | None) -> None:
        """Note the run that a record replaces, if any."""
        before = None if known is None else _Run(name, known.owner, known.run)
        after = None if value is None else _Run(name, value.owner, value.run)
        if value is not None:
            self._epoch_max = max(self._epoch_max, value.epoch)
        if before is not None and before != after:
            self._replaced[before] = None
            if len(self._replaced) > self.limits.scopes.replaced_runs_max:
                del self._replaced[next(iter(self._replaced))]
        if after is not None:
            self._replaced.pop(after, None)

    def _next_epoch(self, step: TransactionStep) -> int:
        return max(self._epoch_max + 1, step.wall_ms)

    def _decide(self, name: str, value: ScopeValue) -> None:
        winners = {transactional_id(name, attempt) for attempt in value.winners}
        members = self._members.get(name, {})
        self._ending[name] = set(members)
        for member in members:
            found = self._ids[member]
            if not found.state.is_preparing:
                self._ids[member] = replace(
                    found,
                    producer_epoch=found.producer_epoch + 1,
                    state=_State.PREPARE_COMMIT if member in winners else _State.PREPARE_ABORT,
                    updated_ms=value.updated_ms,
                )

    def id_changed(self, name: str) -> None:
        """Note that a transactional id was stored or deleted."""
        scope = scope_of(name)
        if scope is None:
            return
        if name in self._ids:
            self._members.setdefault(scope, {})[name] = None
            return
        self._begun.discard(name)
        if scope in self._ending:
            self._ending[scope].discard(name)
        members = self._members.get(scope, {})
        members.pop(name, None)
        if not members:
            self._members.pop(scope, None)

    def drop_deleted(self, step: TransactionStep) -> None:
        """Delete each producer whose id a later producer uses.  It was complete, and only its tombstone is missing."""
        producers = {name: self._ids[name] for members in self._members.values() for name in members}
        newest: dict[int, int] = {}
        for one in producers.values():
            newest[one.producer_id] = max(one.producer_epoch, newest.get(one.producer_id, 0))
        for name, one in producers.items():
            if one.producer_epoch < newest[one.producer_id]:
                step.append(name, None)

    def loaded(self, step: TransactionStep) -> None:
        """Finish the ends whose producers are all complete.  The machine orders the markers of other producers."""
        for name in [name for name, left in self._ending.items() if not left]:
            self._finish(step, name)

    # -- requests

    def request(self, step: TransactionStep, request: ScopeRequest) -> ScopeResponse:
        """Apply a request."""
        match request:
            case InitScope():
                return self._init(step, request)
            case InitScopeProducer():
                return self._begin(step, request)
            case EndScope():
                return self._end(step, request)
            case AbortScope():
                return self._abort(step, request)
            case DescribeScopes():
                return DescribeScopesResponse(tuple([self._describe(name) for name in request.scopes]))
            case _:
                assert_never(request)

    def _init(self, step: TransactionStep, request: InitScope) -> InitScopeResponse:
        name, known = request.scope, self._scopes.get(request.scope)
        for what, text in (("name of the scope", name), ("owner", request.owner), ("run", request.run)):
            if problem := label_problem(what, text, SCOPE_MAX_BYTES):
                return InitScopeResponse(KafkaCode.INVALID_REQUEST, problem)
        if known is None:
            if len(self._scopes) >= self.limits.scopes.scopes_max:
                limit = self.limits.scopes.scopes_max
                return InitScopeResponse(KafkaCode.POLICY_VIOLATION, f"the coordinator has {limit} scopes already")
            epoch = self._next_epoch(step)
            made = ScopeValue(request.owner, request.run, epoch, NO_SEQUENCE, ScopeState.OPEN, (), step.wall_ms)
            step.append_scope(name, made)
            return self._opened(name)
        if known.owner != request.owner and not request.reset:
            text = f"it belongs to {known.owner}; use another scope, or reset it if {known.owner} is no longer needed"
            return InitScopeResponse(KafkaCode.DUPLICATE_RESOURCE, text, known.epoch, known.sequence, known.owner)
        if known.state is ScopeState.CLOSING:
            return InitScopeResponse(KafkaCode.CONCURRENT_TRANSACTIONS, _ENDS)
        if (known.owner, known.run) == (request.owner, request.run):
            return self._opened(name)
        if _Run(name, request.owner, request.run) in self._replaced:
            text = f"run {known.run} has replaced run {request.run}; this run must end"
            return InitScopeResponse(KafkaCode.PRODUCER_FENCED, text, known.epoch, known.sequence, known.owner)
        if known.state is ScopeState.ENDING:
            return InitScopeResponse(KafkaCode.CONCURRENT_TRANSACTIONS, _ENDS)
        step.note(f"run {request.run} of scope {name} replaces run {known.run}")
        changed = replace(
            known,
            owner=request.owner,
            run=request.run,
            epoch=self._next_epoch(step),
            sequence=NO_SEQUENCE if request.reset else known.sequence,
        )
        self._change(step, name, changed, ())
        return self._opened(name)

    def _opened(self, name: str) -> InitScopeResponse:
        value = self._scopes[name]
        return InitScopeResponse(KafkaCode.NONE, "", value.epoch, value.sequence, value.owner)

    def _refusal(self, known: ScopeValue | None, epoch: int) -> Refusal | None:
        """Return why a driver or producer with this epoch of the scope is refused; None if it is not refused."""
        if known is None or known.state is ScopeState.CLOSING:
            return KafkaCode.RESOURCE_NOT_FOUND, _GONE
        if epoch < known.epoch:
            return KafkaCode.PRODUCER_FENCED, f"run {known.run} has begun; this run must end"
        if epoch > known.epoch:
            return KafkaCode.INVALID_PRODUCER_EPOCH, f"its epoch is {known.epoch}, not {epoch}"
        return None

    def _begin(self, step: TransactionStep, request: InitScopeProducer) -> InitScopeProducerResponse:
        limits, name = self.limits, transactional_id(request.scope, request.attempt)
        if problem := attempt_problem(request.attempt):
            return InitScopeProducerResponse(KafkaCode.INVALID_REQUEST, problem)
        if not 0 < request.timeout_ms <= limits.timeout_max_ms:
            text = f"the timeout is {request.timeout_ms} ms, not 1 to {limits.timeout_max_ms}"
            return InitScopeProducerResponse(KafkaCode.INVALID_TRANSACTION_TIMEOUT, text)
        if (refusal := self._refusal(self._scopes.get(request.scope), request.epoch)) is not None:
            return InitScopeProducerResponse(*refusal)
        known = self._ids.get(name)
        if known is None:
            if len(self._members.get(request.scope, ())) >= limits.scopes.producers_max:
                text = f"the scope has {limits.scopes.producers_max} producers already; end or abort it"
                return InitScopeProducerResponse(KafkaCode.POLICY_VIOLATION, text)
            if len(self._ids) >= limits.ids_max:
                text = f"the coordinator has {limits.ids_max} transactional ids already"
                return InitScopeProducerResponse(KafkaCode.POLICY_VIOLATION, text)
        elif known.state.is_preparing:
            text = f"the previous producer {request.attempt} is not complete; ask again"
            return InitScopeProducerResponse(KafkaCode.CONCURRENT_TRANSACTIONS, text)
        elif known.state is _State.ONGOING:
            self._abort_one(step, name, known)
            text = f"the previous producer {request.attempt} is being aborted; ask again"
            return InitScopeProducerResponse(KafkaCode.CONCURRENT_TRANSACTIONS, text)
        producer = self._next_producer(known if name in self._begun else None, request.fresh_id)
        if producer is None:
            return InitScopeProducerResponse(KafkaCode.NONE, needs_id=True)
        self._begun.add(name)
        step.append(name, TransactionValue(*producer, request.timeout_ms, _State.EMPTY, (), step.wall_ms))
        return InitScopeProducerResponse(KafkaCode.NONE, "", name, producer)

    def _next_producer(self, continued: TransactionValue | None, fresh_id: int | None) -> ProducerKey | None:
        if continued is not None and continued.producer_epoch < EPOCH_MAX:
            return ProducerKey(continued.producer_id, continued.producer_epoch + 1)
        if self._free:
            return self._free.popleft()
        return None if fresh_id is None else ProducerKey(fresh_id, 0)

    def _abort_one(self, step: TransactionStep, name: str, value: TransactionValue) -> None:
        step.note(f"transaction of {name} aborted by a new producer, producer {value.producer_id}")
        epoch = value.producer_epoch + 1
        decided = replace(value, producer_epoch=epoch, state=_State.PREPARE_ABORT, updated_ms=step.wall_ms)
        step.append(name, decided)
        self._order_markers(step, name, decided)

    def _end(self, step: TransactionStep, request: EndScope) -> EndScopeResponse:
        name, known = request.scope, self._scopes.get(request.scope)
        if request.sequence < 0:
            return EndScopeResponse(KafkaCode.INVALID_REQUEST, f"sequence {request.sequence} is negative")
        attempts = [winner.attempt for winner in request.winners]
        if len(set(attempts)) < len(attempts):
            return EndScopeResponse(KafkaCode.INVALID_REQUEST, "a winner is named twice")
        if (refusal := self._refusal(known, request.epoch)) is not None:
            return EndScopeResponse(*refusal)
        assert known is not None
        if request.sequence <= known.sequence:
            return EndScopeResponse(KafkaCode.NONE, "", False, known.sequence)
        if known.state is not ScopeState.OPEN:
            return EndScopeResponse(KafkaCode.CONCURRENT_TRANSACTIONS, _ENDS)
        members = self._members.get(name, {})
        for attempt, producer in request.winners:
            member = transactional_id(name, attempt)
            found = self._ids[member] if member in members else None  # a name with slashes may belong to another scope
            if found is None or found.producer != producer or found.state.is_preparing:
                text = f"winner {attempt} was aborted or replaced; abort this sequence, and write it again"
                return EndScopeResponse(KafkaCode.INVALID_TXN_STATE, text, False, known.sequence)
        changed = replace(known, sequence=request.sequence)
        self._change(step, name, changed, tuple(attempts))
        return EndScopeResponse(KafkaCode.NONE, "", True, request.sequence)

    def _abort(self, step: TransactionStep, request: AbortScope) -> AbortScopeResponse:
        name, known = request.scope, self._scopes.get(request.scope)
        if known is not None and known.state is ScopeState.CLOSING and request.close and known.epoch == request.epoch:
            return AbortScopeResponse(KafkaCode.NONE)  # the answer to the first request was lost
        if (refusal := self._refusal(known, request.epoch)) is not None:
            return AbortScopeResponse(*refusal)
        assert known is not None
        if known.state is ScopeState.ENDING:
            return AbortScopeResponse(KafkaCode.CONCURRENT_TRANSACTIONS, _ENDS)
        if name in self._members:
            self._change(step, name, known, (), ScopeState.CLOSING if request.close else ScopeState.ENDING)
        elif request.close:
            step.append_scope(name, None)
        return AbortScopeResponse(KafkaCode.NONE)

    def _change(
        self,
        step: TransactionStep,
        name: str,
        changed: ScopeValue,
        winners: tuple[str, ...],
        state: ScopeState = ScopeState.ENDING,
    ) -> None:
        """Append the changed scope, which decides all its producers, and order their markers."""
        members = [member for member in self._members.get(name, {}) if not self._ids[member].state.is_preparing]
        if name not in self._members:
            step.append_scope(name, replace(changed, updated_ms=step.wall_ms))
            return
        step.append_scope(name, replace(changed, state=state, winners=winners, updated_ms=step.wall_ms))
        for member in members:
            self._order_markers(step, member, self._ids[member])

    def _describe(self, name: str) -> DescribedScope:
        value = self._scopes.get(name)
        if value is None:
            return DescribedScope(name, KafkaCode.RESOURCE_NOT_FOUND, _GONE)
        producers = []
        for member in self._members.get(name, {}):
            found = self._ids[member]
            producers.append(
                DescribedProducer(
                    attempt_of(member), found.producer, found.state.label, found.started_ms, len(found.partitions)
                )
            )
        return DescribedScope(
            name,
            KafkaCode.NONE,
            "",
            value.owner,
            value.run,
            value.epoch,
            value.state.label,
            value.sequence,
            value.updated_ms,
            tuple(producers),
        )

    # -- events

    def completed(self, step: TransactionStep, name: str) -> bool:
        """Delete a producer that has all its markers; return False if the id belongs to no scope."""
        scope = scope_of(name)
        if scope is None:
            return False
        value, is_ours = self._ids[name], name in self._begun
        step.append(name, None)
        if is_ours and value.producer_epoch < EPOCH_MAX and len(self._free) < self.limits.scopes.free_ids_max:
            self._free.append(ProducerKey(value.producer_id, value.producer_epoch + 1))
        if scope in self._ending and not self._ending[scope]:
            self._finish(step, scope)
        return True

    def _finish(self, step: TransactionStep, name: str) -> None:
        value = self._scopes[name]
        if value.state is ScopeState.CLOSING:
            step.append_scope(name, None)
        else:
            step.append_scope(name, replace(value, state=ScopeState.OPEN, winners=(), updated_ms=step.wall_ms))

    # -- time

    def begin_sweep(self) -> None:
        """Begin to search all scopes for expired ones.  `sweep` continues the search."""
        self._sweep = list(self._scopes)

    @property
    def is_sweeping(self) -> bool:
        return bool(self._sweep)

    def sweep(self, step: TransactionStep, cautious_ms: int) -> None:
        """Delete expired scopes, as many as fit into the step.  cautious_ms: see `TransactionMachine`."""
        limits = self.limits
        while self._sweep and step.size_bytes < limits.batch_max_bytes:
            name = self._sweep.pop()
            value = self._scopes.get(name)
            if value is None or value.state is not ScopeState.OPEN or name in self._members:
                continue
            kept_ms = limits.expiration_ms if value.sequence == NO_SEQUENCE else limits.scopes.expiration_ms
            if cautious_ms - value.updated_ms > kept_ms:
                step.append_scope(name, None)
