"""Ends transactions that are open in a partition although their coordinator has ended them, or does not know them.

An unclean election may lose the marker of a transaction.  The transaction then stays open in the partition and blocks
readers of committed records.  Its coordinator does not write the marker again, because the marker was committed once.
The leader of the partition therefore checks the transactions that have been open for a long time.  It asks the
coordinators of all partitions of `__transaction_state`, because a log contains no transactional ids.

**Valid answers.**  Every coordinator must answer from committed state.  A batch is appended only after its partition
was added to the transaction.  So if the transaction is open at no coordinator, it has already ended.  The answers are
ignored if the producer has appended another batch meanwhile, because that batch may belong to its next transaction.

**The outcome** comes from the coordinator.  The coordinator knows it only for the last transaction of a producer, and
only under transaction version 2, in which the end of each transaction raises the epoch.  Any other transaction is
aborted: readers must not see records that may have been aborted.

A partition of `__consumer_offsets` gets the marker through its group coordinator, which then applies or drops the
offsets of the transaction.
"""

from __future__ import annotations

import asyncio
from typing import Final, NamedTuple

from broker.coordinator.groups import GroupCoordinators
from broker.coordinator.limits import CoordinatorLimits
from broker.coordinator.links import BrokerLinks
from broker.core.coordinator.transaction_requests import Outcome
from broker.core.fetch_session import PartitionKey
from broker.core.partition import LeaderState
from broker.core.producer_state import ProducerState
from broker.core.transactions import Marker, ProducerKey
from broker.replica.replica import Replica
from broker.replica.table import ReplicaTable
from metadata.image import is_internal
from metadata.image.internal_topics import CONSUMER_OFFSETS, TRANSACTION_STATE
from quorumlog.errors import ClusterError, CorruptStoreError
from quorumlog.runtime.clock import WallClock, now_ms
from quorumlog.runtime.disk import DiskError
from quorumlog.runtime.logging import get_logger
from quorumlog.wire.errors import KafkaCode
from quorumlog.wire.kafka.codec import Api

_VERSION: Final = 0
_OUTCOMES: Final = frozenset(int(each) for each in Outcome)

logger = get_logger("coordinator")


class _Open(NamedTuple):
    """An open transaction in the log of a partition that this broker leads."""

    partition: PartitionKey
    leader_epoch: int
    producer_id: int
    first_offset: int


class _Suspect(NamedTuple):
    """An open transaction with the state of its producer.  end_offset: the end of the producer's last batch."""

    replica: Replica
    leader: LeaderState
    open: _Open
    epoch: int
    coordinator_epoch: int
    end_offset: int

    def is_still_open(self, producers: ProducerState) -> bool:
        """Return whether the transaction is open and its producer has appended nothing since it became a suspect."""
        producer = producers.get(self.open.producer_id)
        if producer is None or producers.transactions.open.get(self.open.producer_id) != self.open.first_offset:
            return False
        return (producer.epoch, producer.end_offset) == (self.epoch, self.end_offset)


class HangingTransactions:
    """Finds and ends the hanging transactions in the partitions that this broker leads."""

    def __init__(
        self,
        table: ReplicaTable,
        groups: GroupCoordinators,
        links: BrokerLinks,
        wall_ms: WallClock,
        limits: CoordinatorLimits,
    ) -> None:
        self._table = table
        self._groups = groups
        self._cluster = table.context.cluster
        self._links = links
        self._wall_ms = wall_ms
        self._limits = limits
        self._since_ms: dict[_Open, int] = {}
        """The time at which each open transaction was first seen, or last confirmed by its coordinator."""
        self._checked_ms: dict[_Open, int] = {}
        """The time of the last check of each open transaction that was checked."""

    async def run(self) -> None:
        """Check the open transactions every `hanging_interval_ms`, until the task is cancelled."""
        while True:
            await asyncio.sleep(self._limits.hanging_interval_ms / 1000)
            await self.look()

    async def look(self) -> None:
        """Check once: ask about the transactions that have been open for a long time, and end those that hang."""
        suspects = self._suspects(now_ms())
        for each in suspects[: self._limits.hanging_checks_max]:
            self._checked_ms[each.open] = now_ms()
            outcome = await self._ask(each)
            if outcome is Outcome.OPEN:
                self._since_ms[each.open] = now_ms()
            elif outcome is not None:
                await self._end(each, is_commit=outcome is Outcome.COMMITTED)

    def _suspects(self, now: int) -> list[_Suspect]:
        """Return the open transactions that are due for a check, those first that wait longest since their last check.

        A transaction is due `hanging_age_ms` after this leader first saw it, or its coordinator last confirmed it.
        One that could not be ended stays due, but comes after the others.
        """
        since: dict[_Open, int] = {}
        found: list[_Suspect] = []
        for replica in list(self._table):
            leader = replica.serving()
            if leader is None or replica.log is None:
                continue
            if is_internal(replica.topic) and replica.topic != CONSUMER_OFFSETS:  # no transaction may write to it
                continue
            try:
                producers = replica.log.producers
            except (DiskError, CorruptStoreError) as error:
                replica.take_offline(error)
                continue
            for producer_id, first_offset in producers.transactions.open.items():
                producer = producers.get(producer_id)
                key = _Open(replica.partition, leader.leader_epoch, producer_id, first_offset)
                since[key] = self._since_ms.get(key, now)
                if producer is not None and now - since[key] >= self._limits.hanging_age_ms:
                    state = producer.epoch, producer.coordinator_epoch, producer.end_offset
                    found.append(_Suspect(replica, leader, key, *state))
        self._since_ms = since
        self._checked_ms = {key: at_ms for key, at_ms in self._checked_ms.items() if key in since}
        return sorted(found, key=lambda each: self._checked_ms.get(each.open, since[each.open]))

    async def _ask(self, suspect: _Suspect) -> Outcome | None:
        """Return the outcome of a transaction; None if any coordinator did not answer."""
        topic = self._cluster.newest.topic(TRANSACTION_STATE)
        if topic is None:
            return None
        leaders = {-1 if each is None else each.leader for each in topic.partitions}
        if -1 in leaders:
            return None
        values = {
            "producer_id": suspect.open.producer_id,
            "producer_epoch": suspect.epoch,
            "topic": suspect.replica.topic,
            "partition": suspect.replica.key.index,
        }
        timeout_s = self._limits.verification_timeout_ms / 1000
        asking = [self._links.ask(leader, Api.FIND_OUTCOME, _VERSION, values, timeout_s) for leader in sorted(leaders)]
        outcomes: dict[int, Outcome] = {}
        for reply in await asyncio.gather(*asking, return_exceptions=True):
            if isinstance(reply, ClusterError):
                return None
            if isinstance(reply, BaseException):
                raise reply
            for each in reply.coordinators:
                if int(each.error_code) == KafkaCode.NONE and each.outcome in _OUTCOMES:
                    outcomes[each.partition] = Outcome(each.outcome)
        if set(range(len(topic.partitions))) - outcomes.keys():
            return None
        found = set(outcomes.values())
        return next((each for each in (Outcome.OPEN, Outcome.COMMITTED) if each in found), Outcome.ABORTED)

    async def _end(self, suspect: _Suspect, *, is_commit: bool) -> None:
        """Append the missing marker, unless the leadership, the transaction or the producer's last batch changed."""
        replica, log = suspect.replica, suspect.replica.log
        if log is None or replica.leader is not suspect.leader:
            return
        producer = ProducerKey(suspect.open.producer_id, suspect.epoch + 1 if is_commit else suspect.epoch)
        marker = Marker(producer, is_commit, max(0, suspect.coordinator_epoch), raises_epoch=is_commit)
        if replica.topic == CONSUMER_OFFSETS:
            code = await self._groups.write_marker(replica.key.index, marker, only_if=suspect.is_still_open)
        elif suspect.is_still_open(log.producers):
            timeout_ms = self._limits.marker_timeout_ms
            ended = replica.append_marker(marker, self._wall_ms(), timeout_ms)
            code = KafkaCode((await ended).error_code)
        else:
            return
        logger.warning(
            "hanging transaction ended" if code is KafkaCode.NONE else "hanging transaction not ended",
            topic=replica.topic,
            partition=replica.key.index,
            producer=suspect.open.producer_id,
            committed=is_commit,
            code=int(code),
        )
