"""Exactly-once writes: every task attempt is a producer of a transaction scope, and the driver commits the scope.

Theory of operation.  A task attempt writes its rows in a transaction of its own, and reports it to the driver
(`Staged`).  The driver's commit is one record of the scope's coordinator: it commits the attempts that Spark chose,
aborts all other producers of the scope, and stores a sequence number.

- **A stream** has a scope for the whole query: the query id, which its checkpoint holds, or the option
  `transactionScope`.  The sequence is the batch id + 1.  If Spark repeats a batch that was committed, for example after
  a crash, the stored sequence shows that: the tasks write nothing, and the commit changes nothing.  Each run of the
  query has a run of the scope, which fences the producers and the commits of the previous run.
- **A batch write** has a scope of its own.  The driver opens it before the first task and deletes it at the end.  An
  attempt that Spark has given up may still run then, for example until its worker notices.  Without the scope, it
  cannot write any more, so it holds back no reader.

In the driver, the hooks that commit and abort a stream's batch run in a different process from the one that planned the
write.  They know only the reports of the tasks.  A task without rows needs no transaction and reports none.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, Protocol

from pyspark_quorumlog.options import OptionError, WriteOptions
from pyspark_quorumlog.warn import warn
from quorumlog.client.scope_client import OpenScope, ScopeDescription, ScopeEnd, StagedProducer, Winner
from quorumlog.errors import ClusterError
from quorumlog.wire.errors import ApiError, KafkaCode

QUERY_ID = "sql.streaming.queryId"
BATCH_ID = "streaming.sql.batchId"
RUN_ID = "spark.jobGroup.id"
"""Local properties that Spark sets for the tasks of a stream."""
BATCH_SEQUENCE = 1
"""The sequence of a batch write, which has one commit."""
GIVE_UP_TIMEOUT_S = 5.0
"""How long a failed task tries to abort its transaction.  After that, the next commit, run or timeout aborts it."""
LOOK_MIN_S, LOOK_MAX_S = 0.005, 0.2
"""The first and the longest pause, in seconds, between two checks that a commit is complete.  The pause doubles."""
_OPEN = "Open"
_REMEDIES = {
    KafkaCode.POLICY_VIOLATION.name: "write with fewer tasks (coalesce), or set the option atomic to false",
    KafkaCode.INVALID_TRANSACTION_TIMEOUT.name: "set the option kafka.transaction.timeout.ms to less, or raise "
    "transaction.max.timeout.ms of the cluster",
}
"""The next step after a refusal to begin a producer, by its code."""
_ABORTED = frozenset(
    {
        KafkaCode.INVALID_TXN_STATE.name,
        KafkaCode.INVALID_PRODUCER_EPOCH.name,
        KafkaCode.INVALID_PRODUCER_ID_MAPPING.name,
        KafkaCode.PRODUCER_FENCED.name,
    }
)
"""The codes of errors about the transaction of an attempt that was aborted meanwhile."""
_AFTER_ABORT = (
    "unless another run of the query has begun, the transaction of a task took longer than "
    "kafka.transaction.timeout.ms: raise this option, and transaction.max.timeout.ms of the cluster, or set the option "
    "atomic to false"
)


class Scopes(Protocol):
    """The part of `ScopeClient` that is used here."""

    async def open(self, scope: str, owner: str, run: str, timeout_s: float, *, reset: bool = False) -> OpenScope: ...

    async def begin(
        self, scope: OpenScope, attempt: str, timeout_s: float, transaction_timeout_ms: int
    ) -> StagedProducer: ...

    async def end(self, scope: OpenScope, sequence: int, winners: Iterable[Winner], timeout_s: float) -> ScopeEnd: ...

    async def abort(self, scope: OpenScope, timeout_s: float) -> None: ...

    async def delete(self, scope: OpenScope, timeout_s: float) -> None: ...

    async def describe(self, scope: str, timeout_s: float) -> ScopeDescription: ...


class Attempt(NamedTuple):
    """A task attempt, as a producer of a scope.

    scope, owner, run: as for `ScopeClient.open`.
    sequence: the number that the commit of this write stores.
    name: unique among the attempts of the write.
    may_reset: take the scope over from another owner.
    ready: the scope of a batch write, which the driver has opened; None: the attempt opens it.
    """

    scope: str
    owner: str
    run: str
    sequence: int
    name: str
    may_reset: bool = False
    ready: OpenScope | None = None


class Staged(NamedTuple):
    """The transaction of a task attempt, for the driver.

    scope: None if the attempt had no rows, or wrote without a transaction.
    winner: None if the attempt wrote nothing, because its batch is already committed.
    """

    scope: OpenScope | None = None
    winner: Winner | None = None


async def open_batch(scopes: Scopes, name: str, timeout_s: float) -> OpenScope:
    """Open the scope of a batch write.  name: unique to this write."""
    return await scopes.open(name, name, name, timeout_s)


def attempt_of_batch(scope: OpenScope, context: Any) -> Attempt:
    """Return the attempt of a batch write's task.  context: Spark's TaskContext."""
    name = scope.name
    return Attempt(name, name, name, BATCH_SEQUENCE, _name(context), ready=scope)


def attempt_of_stream(options: WriteOptions, context: Any) -> Attempt:
    """Return the attempt of a stream's task.

    Raises:
        OptionError: Spark does not report the query or its batch.
    """
    query_id, batch_id, run_id = (context.getLocalProperty(name) for name in (QUERY_ID, BATCH_ID, RUN_ID))
    if not query_id or not run_id or not (batch_id or "").isdecimal():
        raise OptionError(
            "this Spark does not report the id of the query, its run and its batch to the tasks, so a repeated batch "
            "cannot be recognised; to write without transactions, set the option atomic to false"
        )
    return Attempt(
        options.scope or query_id,
        query_id,
        run_id,
        int(batch_id) + 1,
        _name(context),
        options.reset_scope,
    )


def _name(context: Any) -> str:
    return f"{context.partitionId()}.{context.taskAttemptId()}"


async def opened(scopes: Scopes, attempt: Attempt, timeout_s: float) -> OpenScope:
    """Open the run of an attempt's scope, unless the driver has opened it.

    Every attempt opens its run, because the first attempt may fail before it does so.  Opening the current run again
    changes nothing.  If another run has replaced this one, the coordinator refuses the attempt and fences nothing.

    Raises: ClusterError: PRODUCER_FENCED: another run has replaced this one; DUPLICATE_RESOURCE: another query owns the
        scope; or another error of `ScopeClient.open`.
    """
    if attempt.ready is not None:
        return attempt.ready
    names = attempt.scope, attempt.owner, attempt.run
    try:
        return await scopes.open(*names, timeout_s)
    except ClusterError as error:
        if error.code != KafkaCode.DUPLICATE_RESOURCE.name:
            raise
        if attempt.may_reset:
            return await scopes.open(*names, timeout_s, reset=True)
        error.next_step = (
            "continue with the checkpoint of that query, choose another transactionScope, or set the option "
            "resetTransactionScope to true, after which batches that the other query has written may be written again"
        )
        raise


async def begun(
    scopes: Scopes, scope: OpenScope, attempt: Attempt, timeout_s: float, transaction_timeout_ms: int
) -> StagedProducer:
    """Begin the producer of an attempt.  Raises: ClusterError: see `ScopeClient.begin`."""
    try:
        return await scopes.begin(scope, attempt.name, timeout_s, transaction_timeout_ms)
    except ClusterError as error:
        error.next_step = _REMEDIES.get(error.code, error.next_step)
        raise


async def commit(scopes: Scopes, staged: Sequence[Staged], sequence: int, timeout_s: float) -> None:
    """Make the rows of a stream's batch visible, all together, unless this sequence was committed before.

    Returns once readers of committed records see the rows.  If that takes longer than `timeout_s`, or the coordinator
    refuses to report it, this call returns earlier, because the decision is durable.

    Raises: ClusterError: INVALID_TXN_STATE: an attempt was aborted, and nothing is visible; PRODUCER_FENCED; or another
        error of `ScopeClient.end`.  After TIMED_OUT, the rows may become visible.
    """
    scope = scope_of(staged)
    if scope is None:
        return
    winners = _winners(staged)
    ended = await _end(scopes, scope, sequence, winners, timeout_s)
    if not ended.changed and ended.last_sequence > sequence:  # Spark repeats only the last batch
        warn(
            f"batch {sequence - 1} was not written, because the brokers have batch {ended.last_sequence - 1} of scope "
            f"{scope.name} already: the checkpoint is older than the output, so rows may be missing; to write them, "
            "start the query from this checkpoint again, with a new name in the option transactionScope"
        )
    if winners and not ended.changed:  # another driver has committed this batch, or the answer to our commit was lost
        with contextlib.suppress(ClusterError):  # the commit of the next batch aborts the attempts, too
            await scopes.abort(scope, timeout_s)
    await _complete(scopes, scope.name, timeout_s)


async def commit_batch(scopes: Scopes, scope: OpenScope, staged: Sequence[Staged], timeout_s: float) -> None:
    """Make the rows of a batch write visible, all together, and delete its scope.  Returns and raises as `commit`."""
    if winners := _winners(staged):
        try:
            await _end(scopes, scope, BATCH_SEQUENCE, winners, timeout_s)
        except ClusterError as error:
            if error.code == ApiError.TIMED_OUT:  # a stream repeats its batch; this write is repeated by its user
                error.next_step = "the rows may be visible: look for them before you repeat the write"
            raise
    await _delete(scopes, scope, timeout_s)


def _winners(staged: Sequence[Staged]) -> list[Winner]:
    return [one.winner for one in staged if one.winner is not None]


async def abort(scopes: Scopes, staged: Sequence[Staged], timeout_s: float) -> None:
    """Abort all attempts of a stream's batch, including those that reported nothing.

    If no attempt has reported its scope, nothing is done.

    Raises: ClusterError: as `scope_of` and `ScopeClient.abort`.  But if a later run has already aborted the attempts,
        or their scope was deleted, this call succeeds.
    """
    scope = scope_of(staged)
    if scope is None:
        return
    try:
        await scopes.abort(scope, timeout_s)
    except ClusterError as error:
        if error.code not in (KafkaCode.PRODUCER_FENCED.name, KafkaCode.RESOURCE_NOT_FOUND.name):
            raise


def scope_of(staged: Sequence[Staged]) -> OpenScope | None:
    """Return the run of the scope that the attempts belong to; None if no attempt has a scope.

    Raises: ClusterError: PRODUCER_FENCED: the attempts belong to several runs, so another run began in between.
    """
    found = {(one.scope.name, one.scope.epoch): one.scope for one in staged if one.scope is not None}
    if len(found) > 1:
        text = f"scope {min(found)[0]}: another run began while the tasks were running"
        raise ClusterError(KafkaCode.PRODUCER_FENCED.name, text)
    return next(iter(found.values()), None)


def explain(error: ClusterError) -> None:
    """Set the next step of an error about an attempt whose transaction was aborted."""
    if error.code in _ABORTED:
        error.next_step = _AFTER_ABORT


async def _end(
    scopes: Scopes, scope: OpenScope, sequence: int, winners: Sequence[Winner], timeout_s: float
) -> ScopeEnd:
    try:
        return await scopes.end(scope, sequence, winners, timeout_s)
    except ClusterError as error:
        if error.code != KafkaCode.PRODUCER_FENCED.name:  # its text names the other run
            explain(error)
        raise


async def _delete(scopes: Scopes, scope: OpenScope, timeout_s: float) -> None:
    """Delete the scope of a committed write.  The coordinator deletes it once every partition has its marker.

    A failure is only a warning, because the write is committed: after an error, the user would repeat the write, and
    its rows would exist twice.
    """
    try:
        await scopes.delete(scope, timeout_s)
    except ClusterError as error:
        warn(
            f"the write is committed, but readers of committed records may not see all its rows yet, and scope "
            f"{scope.name} was not deleted: {error.message}"
        )


async def _complete(scopes: Scopes, scope: str, timeout_s: float) -> None:
    """Wait until every partition has its marker.  The write is committed, so a late marker is not an error."""
    with contextlib.suppress(ClusterError, TimeoutError):
        async with asyncio.timeout(timeout_s):
            pause_s = LOOK_MIN_S
            while (await scopes.describe(scope, timeout_s)).state != _OPEN:
                await asyncio.sleep(pause_s)  # no event reports the last marker
                pause_s = min(2 * pause_s, LOOK_MAX_S)
