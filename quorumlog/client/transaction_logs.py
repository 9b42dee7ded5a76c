"""The transactions that are open in the logs of partitions, and those among them that hang.

A transaction hangs if nothing will end it: it is open in a log, but no coordinator knows it, for example because an
unclean election lost its marker.  A transaction that is open for much longer than its timeout also counts as hanging,
because its coordinator should have aborted it.

Theory of operation.  A leader asks the coordinator before it appends the first record of a transaction (KIP-890), and
the coordinator drops a transaction only after all its markers are committed.  So if a transaction was open in a log
both before and after the coordinator was asked, the coordinator must know it.  Otherwise, nothing will end the
transaction.  This check needs no clock, and never reports a transaction that begins or ends meanwhile.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Final, NamedTuple

from quorumlog.client.cluster import REQUEST_TIMEOUT_S, Cluster
from quorumlog.client.consumer import LATEST
from quorumlog.client.coordinators import refused
from quorumlog.client.kafka import KafkaConnection
from quorumlog.client.leader_calls import Partition, ask_leaders, by_topic
from quorumlog.client.log_offsets import list_offsets
from quorumlog.client.partitions import PartitionCalls, refusal
from quorumlog.client.transaction_admin import TransactionClient, TransactionDescription
from quorumlog.errors import ClusterError
from quorumlog.wire.errors import ApiError, KafkaCode
from quorumlog.wire.kafka.codec import Api

OVERDUE_MS: Final = 60_000
"""A transaction is overdue if it exceeds its timeout by this much.  The coordinator needs a moment for the abort, and
clocks differ."""
_DESCRIBE_PRODUCERS_VERSION: Final = 0
_WRITE_MARKERS_VERSION: Final = 1


class OpenTransaction(NamedTuple):
    """A transaction that is open in the log of a partition.

    start_offset: the offset of its first record.
    coordinator_epoch: the epoch in the producer's last marker in this log; -1 if there is none.
    """

    topic: str
    partition: int
    start_offset: int
    producer_id: int
    producer_epoch: int
    coordinator_epoch: int

    @property
    def key(self) -> Partition:
        return self.topic, self.partition


class StableRange(NamedTuple):
    """The offsets up to which a partition can be read.

    last_stable_offset: for readers of committed records.  high_watermark: for all other readers.
    problem: the reason, in words, why one of the offsets is None; None if both are known.
    """

    last_stable_offset: int | None
    high_watermark: int | None
    problem: str | None = None

    @property
    def lag(self) -> int | None:
        """Return the number of offsets that readers of committed records cannot read because of open transactions."""
        if self.last_stable_offset is None or self.high_watermark is None:
            return None
        return max(self.high_watermark - self.last_stable_offset, 0)


class Hanging(NamedTuple):
    """A transaction that nothing will end.

    known: the coordinator's description of the producer; None if no coordinator knows the producer.
    overdue: the coordinator knows the transaction, which has been open for much longer than its timeout.
    stable: the offsets up to which the partition can be read.
    """

    transaction: OpenTransaction
    known: TransactionDescription | None
    overdue: bool
    stable: StableRange


class OpenInLogs(NamedTuple):
    """The open transactions that limit readers of committed records.

    known: the producers that a coordinator knows, by producer id.
    hanging: the transactions that hang, ordered by partition and offset.
    problems: for each partition that could not be examined completely, the reason.
    missing: the error of a coordinator that did not answer, so that some transactions could not be checked; None if all
        were checked.
    """

    opened: tuple[OpenTransaction, ...]
    known: Mapping[int, TransactionDescription]
    hanging: tuple[Hanging, ...]
    stable: Mapping[Partition, StableRange]
    problems: Mapping[Partition, str]
    missing: ClusterError | None = None


class KnownProducers(NamedTuple):
    """The producers that coordinators know, by producer id.

    missing: an error that names coordinators that did not answer in time, and may know further producers; None if all
        answered.
    """

    by_id: Mapping[int, TransactionDescription]
    missing: ClusterError | None


async def stable_ranges(
    cluster: Cluster, partitions: Iterable[Partition], timeout_s: float
) -> dict[Partition, StableRange]:
    """Return the offsets up to which each partition can be read.

    Raises:
        ClusterError: as `ask_leaders`.
    """
    wanted = dict.fromkeys(partitions, LATEST)
    # Last stable offsets are requested first, so that none is above its high watermark.
    stables = await list_offsets(cluster, wanted, timeout_s, committed_only=True)
    answered = {key: LATEST for key, stable in stables.items() if isinstance(stable, int)}
    ends = await list_offsets(cluster, answered, timeout_s)  # a leader that hangs is awaited only once
    found = {}
    for key in wanted:
        stable = stables[key]
        end = ends.get(key, stable)
        problem = next((each.message for each in (stable, end) if isinstance(each, ClusterError)), None)
        found[key] = StableRange(
            stable if isinstance(stable, int) else None, end if isinstance(end, int) else None, problem
        )
    return found


async def open_transactions(
    cluster: Cluster, partitions: Iterable[Partition], timeout_s: float
) -> dict[Partition, tuple[OpenTransaction, ...] | ClusterError]:
    """Return, for each partition, the transactions that are open in its log, ascending by offset, or an error.

    Raises:
        ClusterError: as `ask_leaders`.
    """

    async def ask(
        leader: KafkaConnection, keys: list[Partition], left_s: float
    ) -> dict[Partition, tuple[OpenTransaction, ...] | ClusterError]:
        topics = [{"name": topic, "partition_indexes": indexes} for topic, indexes in by_topic(keys).items()]
        reply = await cluster.ask(
            leader, Api.DESCRIBE_PRODUCERS, _DESCRIBE_PRODUCERS_VERSION, {"topics": topics}, left_s
        )
        answered = {(topic.name, each.partition_index): each for topic in reply.topics for each in topic.partitions}
        found: dict[Partition, tuple[OpenTransaction, ...] | ClusterError] = {}
        for key in keys:
            answer = answered.get(key)
            code = int(KafkaCode.UNKNOWN_SERVER_ERROR) if answer is None else int(answer.error_code)
            if answer is None or code:
                found[key] = refusal(code, *key, "the request for its producers")
                continue
            opened = [
                OpenTransaction(
                    *key,
                    int(each.current_txn_start_offset),
                    int(each.producer_id),
                    int(each.producer_epoch),
                    int(each.coordinator_epoch),
                )
                for each in answer.active_producers
                if each.current_txn_start_offset >= 0
            ]
            found[key] = tuple(sorted(opened))
        return found

    return await ask_leaders(cluster, partitions, timeout_s, ask)


async def look_at_logs(
    client: TransactionClient, cluster: Cluster, partitions: Collection[Partition], now_ms: int, timeout_s: float
) -> OpenInLogs:
    """Return the open transactions that limit readers of committed records in these partitions, and those that hang.

    Without the answer of its coordinator, a transaction would seem to hang.  So if a coordinator does not answer,
    transactions of producers that no coordinator knows are not checked.  Their partitions are among the problems.

    now_ms: the current time, in ms since 1970.
    timeout_s: the time limit of each step.  A broker that hangs delays two steps.

    Raises:
        ClusterError: as `ask_leaders`, or a final refusal of a coordinator.
    """
    stable = await stable_ranges(cluster, partitions, timeout_s)
    problems = {key: each.problem for key, each in stable.items() if each.problem is not None}
    held = [key for key, each in stable.items() if each.lag]
    opened = await _opened(cluster, held, timeout_s, problems)
    known, missing = await producers_known(client, {each.producer_id for each in opened}, timeout_s)
    unjudged: set[OpenTransaction] = set()
    if missing is not None:
        unjudged = {each for each in opened if each.producer_id not in known}
        for each in unjudged:
            problems[each.key] = f"another coordinator may know producer {each.producer_id}: {missing.message}"
    strangers = {each for each in opened if not is_known(each, known)} - unjudged
    strangers &= set(await _opened(cluster, {each.key for each in strangers}, timeout_s, problems))  # still open
    hanging = []
    for each in opened:
        description = known.get(each.producer_id)
        overdue = description is not None and is_known(each, known) and is_overdue(description, now_ms)
        if overdue or each in strangers:
            hanging.append(Hanging(each, description, overdue, stable[each.key]))
    return OpenInLogs(tuple(opened), known, tuple(hanging), stable, problems, missing if unjudged else None)


async def _opened(
    cluster: Cluster, partitions: Collection[Partition], timeout_s: float, problems: dict[Partition, str]
) -> list[OpenTransaction]:
    """Return the open transactions, by partition and offset; add the partitions that do not answer to `problems`."""
    opened: list[OpenTransaction] = []
    for key, found in sorted((await open_transactions(cluster, partitions, timeout_s)).items()):
        if isinstance(found, ClusterError):
            problems[key] = found.message
        else:
            opened += found
    return opened


async def producers_known(client: TransactionClient, producer_ids: Collection[int], timeout_s: float) -> KnownProducers:
    """Return the coordinators' descriptions of producers, for the producer ids that they know.

    Raises:
        ClusterError: no coordinator answers, or a final refusal of a coordinator.
    """
    if not producer_ids:
        return KnownProducers({}, None)
    listed = await client.list_answered(timeout_s, producer_ids=producer_ids)
    described = await client.describe_answered([each.transactional_id for each in listed.items], timeout_s)
    return KnownProducers({each.producer_id: each for each in described.items}, listed.missing or described.missing)


def is_known(transaction: OpenTransaction, known: Mapping[int, TransactionDescription]) -> bool:
    """Return whether a coordinator knows the transaction, and so will end it in this partition."""
    description = known.get(transaction.producer_id)
    return description is not None and description.is_open and transaction.key in description.partitions


def is_overdue(description: TransactionDescription, now_ms: int) -> bool:
    """Return whether a transaction has been open for much longer than its timeout."""
    if not description.is_open or description.started_ms is None:
        return False
    return now_ms - description.started_ms > description.timeout_ms + OVERDUE_MS


async def abort_in_log(cluster: Cluster, transaction: OpenTransaction, timeout_s: float) -> None:
    """Write the marker that aborts a transaction in one log; return once it is committed.

    The coordinator is not asked.  If it knows the transaction, use `TransactionClient.abort` instead, because the
    coordinator could still commit the transaction in its other partitions.  Repeating the call is harmless.

    Raises:
        ClusterError: TIMED_OUT: the marker may be written; or the leader's refusal.
    """
    key = transaction.key
    values = {
        "markers": [
            {
                "producer_id": transaction.producer_id,
                "producer_epoch": transaction.producer_epoch,
                "transaction_result": False,
                "coordinator_epoch": max(transaction.coordinator_epoch, 0),
                "topics": [{"name": key[0], "partition_indexes": [key[1]]}],
            }
        ]
    }

    async def attempt(connection: KafkaConnection, left_s: float) -> None:
        limit_s = min(left_s, REQUEST_TIMEOUT_S)
        reply = await cluster.ask(connection, Api.WRITE_TXN_MARKERS, _WRITE_MARKERS_VERSION, values, limit_s)
        codes = [
            int(each.error_code)
            for marker in reply.markers
            for topic in marker.topics
            for each in topic.partitions
            if (topic.name, each.partition_index) == key
        ]
        code = codes[0] if len(codes) == 1 else int(KafkaCode.UNKNOWN_SERVER_ERROR)
        if code == KafkaCode.INVALID_PRODUCER_EPOCH:
            text = f"{key[0]}-{key[1]}: producer {transaction.producer_id} now has a later epoch in this partition"
            raise ClusterError(ApiError.INVALID_PRODUCER_EPOCH, text, "kctl transactions find-hanging")
        if code:
            error = refused(code, f"{key[0]}-{key[1]}: the marker of producer {transaction.producer_id}")
            error.refresh_metadata = error.retriable
            raise error

    await PartitionCalls(cluster).call(*key, timeout_s, attempt)
