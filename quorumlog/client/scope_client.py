"""Requests about transaction scopes to their coordinators, for services, tools and Spark.

In a transaction scope, many producers write as one unit (see docs/scopes.md).  A driver opens a scope (`open`) and ends
it (`end`).  Its workers, in other processes, begin producers under the scope's name and epoch (`begin`), write with
`Producer(servers, staged=...)`, and report their `Winner` to the driver.

Every request can be repeated safely, so a call repeats it until the coordinator answers or the time is up.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Sequence
from typing import Any, Final, NamedTuple, TypeVar

from quorumlog.client.cluster import Cluster
from quorumlog.client.coordinators import CoordinatorCalls, Kind, refused, refusing
from quorumlog.client.kafka import KafkaConnection
from quorumlog.errors import ClusterError, RemoteProtocolError
from quorumlog.runtime.closing import Closing
from quorumlog.wire import scope_names
from quorumlog.wire.errors import ApiError, KafkaCode
from quorumlog.wire.kafka.codec import Api

TIMEOUT_S: Final = 60.0
TRANSACTION_TIMEOUT_MS: Final = 900_000
"""Time after which a producer is aborted unless its scope ends: Kafka's default of `transaction.max.timeout.ms`."""
_INT32_MAX: Final = 2**31 - 1
_INT64_MAX: Final = 2**63 - 1

_NEWEST: Final = {
    Api.INIT_SCOPE: 0,
    Api.INIT_SCOPE_PRODUCER: 0,
    Api.END_SCOPE: 0,
    Api.ABORT_SCOPE: 0,
    Api.DESCRIBE_SCOPES: 0,
    Api.ADD_PARTITIONS_TO_TXN: 3,
    Api.END_TXN: 3,
}

Partition = tuple[str, int]
T = TypeVar("T")


class OpenScope(NamedTuple):
    """A run of a scope.  Picklable: workers need it to begin producers.

    epoch: the epoch of this run.  last_sequence: the sequence of the last end; -1 if there was none.
    """

    name: str
    epoch: int
    last_sequence: int


class Winner(NamedTuple):
    """A producer that the end of the scope may commit.  Picklable: workers send it to the driver."""

    attempt: str
    producer_id: int
    epoch: int


class ScopeEnd(NamedTuple):
    """The outcome of `ScopeClient.end`.

    changed: False if nothing was changed, because the sequence was not greater than the stored one.
    """

    changed: bool
    last_sequence: int


class ProducerOfScope(NamedTuple):
    """A producer of a scope.  The transaction of this producer is not complete.

    started_ms: the start of its transaction, in ms since 1970; None before its first partition.  partitions: the number
        of its partitions.
    """

    winner: Winner
    state: str
    started_ms: int | None
    partitions: int


class ScopeDescription(NamedTuple):
    """A scope.  state: Open, Ending or Closing.  updated_ms: the time of the last change, in ms since 1970."""

    name: str
    owner: str
    run: str
    epoch: int
    state: str
    last_sequence: int
    updated_ms: int
    producers: tuple[ProducerOfScope, ...]


class ScopeClient(Closing):
    """Open transaction scopes, begin their producers, and end them: `async with ScopeClient("host:9092") as scopes:`.

    Use it from one event loop; calls may run concurrently.  It connects at the first call.

    Args:
        bootstrap: `HOST:PORT`, several with commas or as a list; or a `Cluster`, which stays open.

    Every call ends within its `timeout_s`.  Every call may raise `ClusterError`: TIMED_OUT; UNSUPPORTED_VERSION: the
    brokers are not those of quorumlog; or an error that its docstring names.
    """

    def __init__(self, bootstrap: str | Sequence[str] | Cluster, *, client_id: str = "quorumlog-scopes") -> None:
        self._owns_cluster = not isinstance(bootstrap, Cluster)
        self._cluster = bootstrap if isinstance(bootstrap, Cluster) else Cluster(bootstrap, client_id=client_id)
        self._calls = CoordinatorCalls(self._cluster, Kind.TRANSACTIONAL_ID, _NEWEST)

    async def close(self) -> None:
        """Close the connections; calls in progress fail.  Idempotent."""
        if self._owns_cluster:
            await self._cluster.close()

    async def is_served(self, timeout_s: float = TIMEOUT_S) -> bool:
        """Return whether the brokers support scopes; False for brokers of Apache Kafka, for example."""

        async def ask(left_s: float) -> bool:
            connection = await self._cluster.any_broker(left_s)
            return await self._calls.version(connection, Api.INIT_SCOPE, left_s) is not None

        return await self._calls.retrying("the requests that the brokers serve", timeout_s, ask)

    async def open(
        self, scope: str, owner: str, run: str, timeout_s: float = TIMEOUT_S, *, reset: bool = False
    ) -> OpenScope:
        """Begin a run of a scope.  An earlier run is fenced, and its producers are aborted.

        owner: the owner of the scope.  The first run of a scope sets its owner; runs of other owners are refused.
        run: the name of this run, different from the names of earlier runs.  A repeated call with the same name changes
            nothing.
        reset: take the scope over from any owner, and delete its sequence.

        Raises: ClusterError: DUPLICATE_RESOURCE: the scope has another owner; PRODUCER_FENCED: another run has replaced
        this one; INVALID_REQUEST; POLICY_VIOLATION.
        """
        for what, text in (("owner", owner), ("run", run)):
            _refuse(scope, scope_names.label_problem(what, text))
        values = {"scope": scope, "owner": owner, "run": run, "reset": reset}
        reply = await self._ask(scope, Api.INIT_SCOPE, values, timeout_s)
        return OpenScope(scope, reply.scope_epoch, reply.last_sequence)

    async def begin(
        self,
        scope: OpenScope,
        attempt: str,
        timeout_s: float = TIMEOUT_S,
        transaction_timeout_ms: int = TRANSACTION_TIMEOUT_MS,
    ) -> StagedProducer:
        """Begin a producer of the scope.  An earlier producer with the same attempt name is fenced and aborted.

        attempt: the name of the producer within the scope.
        transaction_timeout_ms: if the scope has not ended this long after the producer's first partition was added, the
            producer is aborted.

        Raises: ClusterError: PRODUCER_FENCED: a later run has begun; RESOURCE_NOT_FOUND: the scope was deleted;
        INVALID_TRANSACTION_TIMEOUT; INVALID_REQUEST; POLICY_VIOLATION.
        """
        _refuse(scope.name, scope_names.attempt_problem(attempt))
        if not 0 < transaction_timeout_ms <= _INT32_MAX:  # the field of the request is an int32
            text = f"the timeout is {transaction_timeout_ms} ms, not 1 to {_INT32_MAX}"
            _refuse(scope.name, text, KafkaCode.INVALID_TRANSACTION_TIMEOUT.name)
        values = {
            "scope": scope.name,
            "scope_epoch": scope.epoch,
            "attempt": attempt,
            "transaction_timeout": transaction_timeout_ms,
        }
        reply = await self._ask(scope.name, Api.INIT_SCOPE_PRODUCER, values, timeout_s)
        winner = Winner(attempt, reply.producer_id, reply.producer_epoch)
        return StagedProducer(self._calls, scope.name, reply.transactional_id, winner)

    async def end(
        self, scope: OpenScope, sequence: int, winners: Iterable[Winner], timeout_s: float = TIMEOUT_S
    ) -> ScopeEnd:
        """Commit the winners, abort all other producers of the scope, and store the sequence, in one decision.

        Nothing changes if the sequence is not greater than the stored one.  Readers of committed records see the
        records of the winners soon after this returns.

        Raises: ClusterError: INVALID_TXN_STATE: a winner was aborted or replaced, and nothing was changed;
        PRODUCER_FENCED; RESOURCE_NOT_FOUND; INVALID_REQUEST; POLICY_VIOLATION.  After TIMED_OUT, the end may have
        happened: repeat the call.
        """
        if not 0 <= sequence <= _INT64_MAX:
            _refuse(scope.name, f"the sequence is {sequence}, not 0 to {_INT64_MAX}")
        winners = list(winners)
        for each in winners:
            _refuse(scope.name, scope_names.attempt_problem(each.attempt))
        named = [
            {"attempt": each.attempt, "producer_id": each.producer_id, "producer_epoch": each.epoch} for each in winners
        ]
        values = {"scope": scope.name, "scope_epoch": scope.epoch, "sequence": sequence, "winners": named}
        reply = await self._ask(scope.name, Api.END_SCOPE, values, timeout_s)
        return ScopeEnd(reply.changed, reply.last_sequence)

    async def abort(self, scope: OpenScope, timeout_s: float = TIMEOUT_S) -> None:
        """Abort all producers of the scope, and keep its sequence.

        Raises: ClusterError: PRODUCER_FENCED; RESOURCE_NOT_FOUND.
        """
        await self._abort(scope, timeout_s, close=False)

    async def delete(self, scope: OpenScope, timeout_s: float = TIMEOUT_S) -> None:
        """Abort all producers of the scope, and delete it with its owner and sequence.  A missing scope is accepted.

        Raises: ClusterError: PRODUCER_FENCED.
        """
        try:
            await self._abort(scope, timeout_s, close=True)
        except ClusterError as error:
            if error.code != KafkaCode.RESOURCE_NOT_FOUND.name:
                raise

    async def _abort(self, scope: OpenScope, timeout_s: float, *, close: bool) -> None:
        values = {"scope": scope.name, "scope_epoch": scope.epoch, "close": close}
        await self._ask(scope.name, Api.ABORT_SCOPE, values, timeout_s)

    async def describe(self, scope: str, timeout_s: float = TIMEOUT_S) -> ScopeDescription:
        """Return the state of a scope.  Raises: ClusterError: RESOURCE_NOT_FOUND."""

        async def attempt(connection: KafkaConnection, left_s: float) -> ScopeDescription:
            reply = await self._calls.ask(connection, Api.DESCRIBE_SCOPES, {"scopes": [scope]}, left_s)
            with connection.judged():
                if [each.scope for each in reply.scopes] != [scope]:
                    raise RemoteProtocolError("the answer is about other scopes than the request")
            found = reply.scopes[0]
            _check(found, f"scope {scope}")
            return _described(found)

        missing = refusing(KafkaCode.RESOURCE_NOT_FOUND, f"scope {scope}")
        return await self._call(scope, timeout_s, attempt, missing)

    async def _ask(self, scope: str, api: Api, values: dict[str, Any], timeout_s: float) -> Any:
        async def attempt(connection: KafkaConnection, left_s: float) -> Any:
            reply = await self._calls.ask(connection, api, values, left_s)
            _check(reply, f"scope {scope}")
            return reply

        return await self._call(scope, timeout_s, attempt)

    async def _call(
        self,
        scope: str,
        timeout_s: float,
        attempt: Callable[[KafkaConnection, float], Coroutine[Any, Any, T]],
        without_topic: Callable[[], T] | None = None,
    ) -> T:
        # An invalid name has no coordinator that could refuse it, so it is refused before the look-up.
        _refuse(scope, scope_names.label_problem("name of the scope", scope, scope_names.SCOPE_MAX_BYTES))
        return await self._calls.call(scope_names.coordinator_key(scope), timeout_s, attempt, without_topic)


class StagedProducer:
    """A producer of a scope: the transaction to which the records of a `Producer` belong."""

    def __init__(self, calls: CoordinatorCalls, scope: str, transactional_id: str, winner: Winner) -> None:
        self.transactional_id = transactional_id
        self._winner = winner
        self._failure: ClusterError | None = None
        self._calls = calls
        self._key = scope_names.coordinator_key(scope)
        self._added: set[Partition] = set()
        self._wanted: dict[Partition, None] = {}
        self._lock = asyncio.Lock()

    @property
    def identity(self) -> tuple[int, int]:
        """Return producer id and epoch."""
        return self._winner.producer_id, self._winner.epoch

    @property
    def winner(self) -> Winner:
        """Return the identity of this producer, which `ScopeClient.end` needs to commit it.

        Raises: ClusterError: TRANSACTION_ABORTABLE: a record was not delivered, so this producer must not win.
        """
        if self._failure is not None:
            raise self._failure.again()
        return self._winner

    @property
    def refusal(self) -> ClusterError | None:
        """Return the error of an earlier record, after which no record may be added; None if records may be added."""
        return None if self._failure is None else self._failure.again()

    @property
    def send_refusal(self) -> ClusterError | None:
        """Return the reason why no record may be sent; the same as `refusal`."""
        return None if self._failure is None else self._failure.again()

    def failed(self, error: ClusterError) -> None:
        """Note that a record was not delivered, so that this producer must not win."""
        if self._failure is None:
            text = f"producer {self.transactional_id} cannot win any more, because: {error.message}"
            self._failure = ClusterError(
                ApiError.TRANSACTION_ABORTABLE, text, "abort it, then repeat its work with another attempt"
            )
            self._failure.__cause__ = error

    @property
    def is_empty(self) -> bool:
        """Return whether no record can have been written."""
        return not self._added

    async def enlist(self, topic: str, index: int, timeout_s: float) -> None:
        """Add the partition to the transaction.  Calls that wait at the same time share a request.

        Raises: ClusterError: the producer was fenced or aborted, or the partition was refused; or TIMED_OUT.
        """
        partition = topic, index
        if partition in self._added:
            return
        self._wanted[partition] = None
        try:
            async with asyncio.timeout(timeout_s), self._lock:
                if partition not in self._added:
                    wanted = sorted({partition, *self._wanted})
                    self._wanted.clear()
                    await self._add(wanted, timeout_s)
                    self._added.update(wanted)
        except TimeoutError as cause:
            text = f"{topic}-{index} was not added to the transaction of {self.transactional_id} in {timeout_s:g} s"
            raise ClusterError(ApiError.TIMED_OUT, text, retriable=True) from cause

    async def abort(self, timeout_s: float) -> None:
        """Abort only this producer, so that readers do not have to wait for the end of the scope.

        Raises: ClusterError: the producer was already fenced or aborted; or TIMED_OUT.
        """
        if self.is_empty:
            return
        producer_id, epoch = self.identity
        values = {
            "transactional_id": self.transactional_id,
            "producer_id": producer_id,
            "producer_epoch": epoch,
            "committed": False,
        }

        async def attempt(connection: KafkaConnection, left_s: float) -> None:
            reply = await self._calls.ask(connection, Api.END_TXN, values, left_s)
            _check(reply, f"the abort of {self.transactional_id}")

        await self._calls.call(self._key, timeout_s, attempt)

    async def _add(self, partitions: Sequence[Partition], timeout_s: float) -> None:
        by_topic: dict[str, list[int]] = {}
        for topic, index in partitions:
            by_topic.setdefault(topic, []).append(index)
        values = {
            "v3_and_below_transactional_id": self.transactional_id,
            "v3_and_below_producer_id": self._winner.producer_id,
            "v3_and_below_producer_epoch": self._winner.epoch,
            "v3_and_below_topics": [{"name": name, "partitions": indexes} for name, indexes in by_topic.items()],
        }

        async def attempt(connection: KafkaConnection, left_s: float) -> None:
            reply = await self._calls.ask(connection, Api.ADD_PARTITIONS_TO_TXN, values, left_s)
            codes = {
                (topic.name, each.partition_index): int(each.partition_error_code)
                for topic in reply.results_by_topic_v3_and_below
                for each in topic.results_by_partition
            }
            with connection.judged():
                if codes.keys() != set(partitions):
                    raise RemoteProtocolError("the answer is about other partitions than the request")
            # If one partition is refused, the answer for the others is OPERATION_NOT_ATTEMPTED.
            codes = {key: code for key, code in codes.items() if code != KafkaCode.OPERATION_NOT_ATTEMPTED}
            for (topic, index), code in sorted(codes.items()):
                if code:
                    raise refused(code, f"{topic}-{index} in the transaction of {self.transactional_id}")

        await self._calls.call(self._key, timeout_s, attempt)


def _refuse(scope: str, problem: str, code: str = ApiError.INVALID_REQUEST) -> None:
    """Raise a ClusterError if an argument has a problem, because some invalid values do not fit into a request.

    problem: in words; empty if there is none.
    """
    if problem:
        raise ClusterError(code, f"scope {scope!r}: {problem}")


def _check(reply: Any, what: str) -> None:
    if reply.error_code:
        message = getattr(reply, "error_message", None)
        raise refused(reply.error_code, what, f": {message}" if message else "")


def _described(found: Any) -> ScopeDescription:
    producers = [
        ProducerOfScope(
            Winner(each.attempt, each.producer_id, each.producer_epoch),
            each.producer_state,
            each.started if each.started >= 0 else None,
            each.partitions,
        )
        for each in found.producers
    ]
    return ScopeDescription(
        found.scope,
        found.owner,
        found.run,
        found.scope_epoch,
        found.scope_state,
        found.last_sequence,
        found.updated,
        tuple(producers),
    )
