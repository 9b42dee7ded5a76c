"""The transactions of a cluster, for administrators: a client of their coordinators.

The coordinator of a transactional id knows its producer, its state and its partitions.  `transaction_logs` finds the
transactions that are open in the logs of partitions.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from typing import Any, Final, NamedTuple

from quorumlog.client.cluster import Cluster
from quorumlog.client.coordinators import Answers, Coordinator, CoordinatorCalls, Kind, all_of, check, refused, refusing
from quorumlog.client.kafka import KafkaConnection
from quorumlog.client.leader_calls import Partition
from quorumlog.errors import ClusterError, RemoteProtocolError
from quorumlog.runtime.addresses import Address
from quorumlog.runtime.backoff import Backoff
from quorumlog.wire.errors import ApiError, KafkaCode
from quorumlog.wire.kafka.codec import Api, milliseconds
from quorumlog.wire.scope_names import scope_of
from quorumlog.words import about

ONGOING: Final = "Ongoing"
DECIDED: Final = ("PrepareCommit", "PrepareAbort")
"""The states of a transaction that is decided, but lacks a marker in some of its partitions."""
STATES: Final = ("Empty", ONGOING, *DECIDED, "CompleteCommit", "CompleteAbort", "Dead")
_FENCE_TIMEOUT_MS: Final = 60_000
"""The longest transaction timeout in a request that fences a producer.  The request begins no transaction, and a
cluster may refuse a longer timeout."""
_LOOK_MIN_S: Final = 0.05
_LOOK_MAX_S: Final = 1.0
_NEWEST: Final = {Api.LIST_TRANSACTIONS: 1, Api.DESCRIBE_TRANSACTIONS: 0, Api.INIT_PRODUCER_ID: 4, Api.END_TXN: 5}
_FIRST_LIST_WITH_DURATION: Final = 1


class ListedTransaction(NamedTuple):
    """A transactional id in a list.  state: the state of its last transaction, one of STATES."""

    transactional_id: str
    state: str
    producer_id: int
    coordinator: int


class TransactionDescription(NamedTuple):
    """A transactional id and its transaction.

    timeout_ms: the timeout of the producer's transactions.
    started_ms: the start of the open transaction, in ms since 1970; None if no transaction is open.
    partitions: the partitions to which the open transaction writes, ascending.
    """

    transactional_id: str
    state: str
    producer_id: int
    producer_epoch: int
    timeout_ms: int
    started_ms: int | None
    partitions: tuple[Partition, ...]
    coordinator: int

    @property
    def is_open(self) -> bool:
        """Return whether a transaction is open: some of its partitions may lack the marker that ends it."""
        return self.state == ONGOING or self.is_decided

    @property
    def is_decided(self) -> bool:
        """Return whether the transaction is committed or aborted, and only markers are missing."""
        return self.state in DECIDED


class TransactionClient:
    """Asks coordinators; bound to the loop of its `Cluster`, which the caller closes.

    Every call ends within its `timeout_s`.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._calls = CoordinatorCalls(cluster, Kind.TRANSACTIONAL_ID, _NEWEST)

    async def list_transactions(
        self,
        timeout_s: float,
        *,
        states: Collection[str] = (),
        producer_ids: Collection[int] = (),
        longer_than_ms: int | None = None,
    ) -> list[ListedTransaction]:
        """Return the transactional ids of all coordinators, ascending.

        states, producer_ids: empty means all.  longer_than_ms: only transactions that have been open for longer, by the
        clock of their coordinator.

        Raises:
            ClusterError: TIMED_OUT, naming a broker that does not answer, or whose coordinators are still loading;
                UNSUPPORTED_VERSION: a broker does not know the filter by time.
        """
        items, missing = await self.list_answered(
            timeout_s, states=states, producer_ids=producer_ids, longer_than_ms=longer_than_ms
        )
        if missing is not None:
            raise missing
        return items

    async def list_answered(
        self,
        timeout_s: float,
        *,
        states: Collection[str] = (),
        producer_ids: Collection[int] = (),
        longer_than_ms: int | None = None,
    ) -> Answers[ListedTransaction]:
        """Return the result of `list_transactions`, or when the time is up, the ids of the brokers that answered.

        Raises:
            ClusterError: TIMED_OUT: no broker has answered; UNSUPPORTED_VERSION.
        """

        async def of_broker(broker_id: int, address: Address, left_s: float) -> list[ListedTransaction]:
            connection = await self._cluster.connection(address, left_s)
            version = await self._calls.version(connection, Api.LIST_TRANSACTIONS, left_s)
            if longer_than_ms is not None and (version or 0) < _FIRST_LIST_WITH_DURATION:
                text = f"{connection.peer} cannot list transactions by their duration"
                raise ClusterError(ApiError.UNSUPPORTED_VERSION, text)
            values: dict[str, Any] = {
                "state_filters": sorted(states), "producer_id_filters": sorted(producer_ids),
            }  # fmt: skip
            if longer_than_ms is not None:
                values["duration_filter"] = longer_than_ms
            reply = await self._calls.ask(connection, Api.LIST_TRANSACTIONS, values, left_s)
            check(reply.error_code, "the list of its transactions")
            found = [
                ListedTransaction(str(each.transactional_id), each.transaction_state, each.producer_id, broker_id)
                for each in reply.transaction_states
            ]
            for each in found:
                self._calls.remember(each.transactional_id, Coordinator(broker_id, address))
            return found

        items, missing = await self._calls.of_answering_brokers("the list of transactions", timeout_s, of_broker)
        return Answers(sorted(items), missing)

    async def describe(self, transactional_id: str, timeout_s: float) -> TransactionDescription:
        """Return one transactional id.

        Raises:
            ClusterError: TRANSACTIONAL_ID_NOT_FOUND, TIMED_OUT.
        """

        async def attempt(
            coordinator: Coordinator, connection: KafkaConnection, left_s: float
        ) -> TransactionDescription:
            values = {"transactional_ids": [transactional_id]}
            reply = await self._calls.ask(connection, Api.DESCRIBE_TRANSACTIONS, values, left_s)
            with connection.judged():
                if [each.transactional_id for each in reply.transaction_states] != [transactional_id]:
                    raise RemoteProtocolError("the answer is about other transactional ids than the request")
            [found] = reply.transaction_states
            check(found.error_code, self._calls.name_of(transactional_id))
            return _description(found, coordinator.broker_id)

        missing = refusing(KafkaCode.TRANSACTIONAL_ID_NOT_FOUND, self._calls.name_of(transactional_id))
        return await self._calls.call_coordinator(transactional_id, timeout_s, attempt, missing)

    async def describe_answered(
        self, transactional_ids: Collection[str], timeout_s: float
    ) -> Answers[TransactionDescription]:
        """Return descriptions of the transactional ids that exist and whose coordinators answer in time.

        Raises:
            ClusterError: a final refusal of a coordinator.
        """
        loop = asyncio.get_running_loop()
        end_s = loop.time() + timeout_s
        found: list[TransactionDescription] = []
        missing: ClusterError | None = None

        async def one(name: str) -> None:
            nonlocal missing
            try:
                found.append(await self.describe(name, max(end_s - loop.time(), _LOOK_MIN_S)))
            except ClusterError as error:
                if error.retriable:
                    missing = error
                elif error.code != ApiError.TRANSACTIONAL_ID_NOT_FOUND:
                    raise

        await all_of(one(name) for name in dict.fromkeys(transactional_ids))
        return Answers(found, missing)

    async def abort(self, found: TransactionDescription, timeout_s: float) -> None:
        """Abort the transaction of a description, and fence its producer; return once every partition has its marker.

        The request names the producer, so a transaction that another producer began meanwhile is not aborted.  For a
        producer of a scope, the request is EndTxn, like the producer's own abort, because no other producer may use its
        transactional id.  After that, the end of the scope cannot name this producer as a winner.

        Raises:
            ClusterError: PRODUCER_FENCED: another producer has taken the transactional id;
                INVALID_PRODUCER_ID_MAPPING: another producer has taken the id, or the producer's scope has ended;
                TIMED_OUT: the transaction may be aborted, and some partitions may lack its marker.
        """
        name = found.transactional_id
        is_of_scope = scope_of(name) is not None
        deadline = asyncio.get_running_loop().time() + timeout_s
        may_be_done = False

        async def attempt(connection: KafkaConnection, left_s: float) -> None:
            nonlocal may_be_done
            repeats, may_be_done = may_be_done, True
            producer = {"producer_id": found.producer_id, "producer_epoch": found.producer_epoch}
            values: dict[str, Any] = {"transactional_id": name, **producer}
            if is_of_scope:  # from version 5 on, EndTxn raises the epoch, and so fences the producer
                reply = await self._calls.ask(connection, Api.END_TXN, values | {"committed": False}, left_s)
            else:
                values["transaction_timeout"] = min(found.timeout_ms, _FENCE_TIMEOUT_MS)
                reply = await self._calls.ask(connection, Api.INIT_PRODUCER_ID, values, left_s)
            match reply.error_code:
                case KafkaCode.NONE | KafkaCode.CONCURRENT_TRANSACTIONS:
                    return  # the transaction has ended, or the coordinator has decided to abort it
                case KafkaCode.PRODUCER_FENCED | KafkaCode.INVALID_PRODUCER_EPOCH if repeats:
                    return  # fenced by an earlier attempt, whose answer was lost
                case KafkaCode.INVALID_PRODUCER_ID_MAPPING if repeats and is_of_scope:
                    return  # also fenced, and the id was deleted since, because its transaction was complete
                case code:
                    raise refused(code, self._calls.name_of(name))

        await self._calls.call(name, timeout_s, attempt)
        await self._ended(found, deadline)

    async def _ended(self, found: TransactionDescription, deadline: float) -> None:
        """Wait until the transaction is complete."""
        loop = asyncio.get_running_loop()
        backoff = Backoff(_LOOK_MIN_S, _LOOK_MAX_S, self._cluster.random)
        while True:
            try:
                now = await self.describe(found.transactional_id, max(deadline - loop.time(), _LOOK_MIN_S))
            except ClusterError as error:
                if error.code == ApiError.TRANSACTIONAL_ID_NOT_FOUND:
                    return  # the transaction has ended: its id is deleted only after that
                raise
            if not now.is_open or (now.producer_id, now.started_ms) != (found.producer_id, found.started_ms):
                return
            pause_s = backoff.next_s()
            if loop.time() + pause_s >= deadline:
                text = f"{self._calls.name_of(found.transactional_id)} is {now.state}: some partitions lack the marker"
                command = about("kctl transactions describe", found.transactional_id)
                step = f"give each of its partitions a leader: {command}"
                raise ClusterError(ApiError.TIMED_OUT, text, step, retriable=True)
            await asyncio.sleep(pause_s)


def _description(found: Any, coordinator: int) -> TransactionDescription:
    started_ms = milliseconds(found.transaction_start_time)
    return TransactionDescription(
        str(found.transactional_id),
        found.transaction_state,
        int(found.producer_id),
        int(found.producer_epoch),
        milliseconds(found.transaction_timeout),
        started_ms if started_ms >= 0 else None,
        tuple(sorted((str(topic.topic), int(index)) for topic in found.topics for index in topic.partitions)),
        coordinator,
    )
