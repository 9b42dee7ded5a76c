"""Observations of transactions: those that hold back readers of committed records, and those that hang."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from quorumlog.client.cluster import Cluster
from quorumlog.client.transaction_admin import TransactionClient
from quorumlog.client.transaction_logs import OpenInLogs, look_at_logs
from quorumlog.errors import ClusterError
from quorumlog.words import Key

LOOK_S = 3.0
"""Time limit of each request.  A leader that has not answered by then is left out; a coordinator is reported."""
PARTITIONS_MAX = 20_000
"""Maximum number of partitions that are examined, in the order of their names.  The others are not examined."""


@dataclass(slots=True)
class ObservedTransactions:
    """The transactions of a cluster.

    problem: the reason why all or some transactions are unknown; empty if all are known.
    now_ms: the time of the observation, in ms since 1970.
    """

    problem: str = ""
    found: OpenInLogs | None = None
    now_ms: int = 0


async def look_at_transactions(
    addresses: Iterable[str], partitions: Collection[Key], now_ms: int, timeout_s: float
) -> ObservedTransactions:
    """Ask leaders and coordinators.

    addresses: the addresses of brokers for Kafka clients.  partitions: the partitions that have a leader.
    now_ms: the time in ms since 1970.
    """
    seen = ObservedTransactions(now_ms=now_ms)
    async with Cluster(list(addresses), client_id="kctl-doctor") as cluster:
        wanted = sorted(partitions)[:PARTITIONS_MAX]
        try:
            seen.found = await look_at_logs(TransactionClient(cluster), cluster, wanted, now_ms, min(LOOK_S, timeout_s))
            seen.problem = "" if seen.found.missing is None else seen.found.missing.message
        except ClusterError as error:
            seen.problem = error.message
    return seen
