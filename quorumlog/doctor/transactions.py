"""Findings about transactions that hang, that lack markers, or that hold back readers for a long time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from quorumlog.doctor.findings import ADVICE, CRITICAL, PROBLEM, Finding
from quorumlog.doctor.observed import NO_LEADER, ObservedCluster
from quorumlog.doctor.steps import texts
from quorumlog.doctor.transaction_steps import abort_step, why_hanging
from quorumlog.wire.scope_names import attempt_of, scope_of
from quorumlog.words import SHOWN_MAX, about, counted, listed, named, quoted

if TYPE_CHECKING:
    from quorumlog.client.transaction_admin import TransactionDescription
    from quorumlog.client.transaction_logs import Hanging, OpenInLogs
    from quorumlog.doctor.transactions_observed import ObservedTransactions

STATE_TOPIC = "__transaction_state"
LONG_MS = 300_000
"""A transaction that has been open for longer than this is reported.  Most clients limit their transactions to 60 s."""
ABORTED_AT_ONCE_MAX = 20
"""Maximum number of transactions that one step aborts.  The next run of doctor names further transactions."""


def transaction_findings(cluster: ObservedCluster) -> Iterator[Finding]:
    """Yield at most one finding of each kind."""
    yield from _coordinators(cluster)
    seen = cluster.transactions
    if seen is None:
        return
    if seen.problem:
        yield Finding(
            PROBLEM,
            "TRANSACTIONS_UNKNOWN",
            what="some coordinators of transactions do not answer",
            cause=seen.problem,
            next="wait for the broker that the message names, then retry: kctl transactions list; if it lasts, the log "
            "of that broker says which partition of __transaction_state cannot be loaded (`coordinator not loaded`)",
        )
    if seen.found is not None:
        yield from _hanging(seen.found)
        yield from _undelivered(seen.found)
        yield from _long(seen, seen.found)


def _coordinators(cluster: ObservedCluster) -> Iterator[Finding]:
    metadata = cluster.metadata
    topic = None if metadata is None else next((each for each in metadata.topics if each.name == STATE_TOPIC), None)
    if topic is None:
        return
    offline = [(STATE_TOPIC, each.index) for each in topic.partitions if each.leader == NO_LEADER]
    if offline:
        yield Finding(
            CRITICAL,
            "NO_TRANSACTION_COORDINATOR",
            what=f"transactions in {counted(len(offline), 'partition')} of {STATE_TOPIC} have no coordinator: their "
            "producers can neither begin nor end transactions, and open ones hold back readers",
            cause=f"no leader: {named(offline)}",
            next="give these partitions a leader, as the finding OFFLINE describes",
            partitions=texts(offline),
        )


def _is_undelivered(each: Hanging) -> bool:
    """Return whether the coordinator has decided the transaction, and only its markers are missing."""
    return each.overdue and each.known is not None and each.known.is_decided


def _hanging(found: OpenInLogs) -> Iterator[Finding]:
    hanging = [each for each in found.hanging if not _is_undelivered(each)]
    if not hanging:
        return
    count = len({(each.transaction.producer_id, each.transaction.producer_epoch) for each in hanging})
    partitions = sorted({each.transaction.key for each in hanging})
    shown = [
        f"{each.transaction.topic}-{each.transaction.partition} at offset {each.transaction.start_offset}: "
        f"{why_hanging(each)}"
        for each in hanging[:SHOWN_MAX]
    ]
    commands = tuple(dict.fromkeys(abort_step(each) for each in hanging))[:ABORTED_AT_ONCE_MAX]
    yield Finding(
        CRITICAL,
        "HANGING_TRANSACTION",
        what=f"{counted(count, 'transaction')} that nothing will end "
        f"{'holds' if count == 1 else 'hold'} back all readers of committed records in {named(partitions)}",
        cause="; ".join(shown) + _rest(len(hanging)),
        next=f"abort these transactions: {'; '.join(commands)}",
        partitions=texts(partitions),
        commands=commands,
    )


def _undelivered(found: OpenInLogs) -> Iterator[Finding]:
    late = [each for each in found.hanging if _is_undelivered(each)]
    if not late:
        return
    partitions = sorted({each.transaction.key for each in late})
    count = len({each.transaction.producer_id for each in late})
    brokers = tuple(sorted({each.known.coordinator for each in late if each.known is not None}))
    yield Finding(
        PROBLEM,
        "MARKERS_MISSING",
        what=f"{counted(count, 'transaction')} that "
        f"{'is decided still lacks' if count == 1 else 'are decided still lack'} "
        f"markers in {named(partitions)}",
        cause="; ".join(why_hanging(each) for each in late[:SHOWN_MAX]) + _rest(len(late)),
        next=f"{abort_step(late[0])}; then look at the log of {listed(f'broker {each}' for each in brokers)}, which "
        "writes the markers, and at its connections to the leaders of these partitions",
        nodes=brokers,
        partitions=texts(partitions),
    )


def _long(seen: ObservedTransactions, found: OpenInLogs) -> Iterator[Finding]:
    reported = {each.transaction.producer_id for each in found.hanging}
    long: dict[str, tuple[TransactionDescription, int]] = {}
    held: dict[str, int] = {}
    for each in found.opened:
        known = found.known.get(each.producer_id)
        if known is None or known.started_ms is None or each.producer_id in reported:
            continue
        age_ms = seen.now_ms - known.started_ms
        if age_ms > LONG_MS:
            long[known.transactional_id] = known, age_ms
            lag = max((found.stable[each.key].high_watermark or 0) - each.start_offset, 0)
            held[known.transactional_id] = max(held.get(known.transactional_id, 0), lag)
    if not long:
        return
    oldest = sorted(long, key=lambda name: (-long[name][1], name))
    shown = [
        f"{_name(name)} for {long[name][1] // 60_000} of at most {long[name][0].timeout_ms // 60_000} minutes; "
        f"{counted(held[name], 'offset')} held back"
        for name in oldest[:SHOWN_MAX]
    ]
    scope = scope_of(oldest[0])
    advice = f"{about('kctl transactions describe', oldest[0])}; "
    if scope is None:
        advice += (
            "its producer should commit more often, or have a shorter transaction.timeout.ms; if it no longer runs: "
            f"{about('kctl transactions abort', oldest[0], options=' --yes')}"
        )
    else:
        minutes = long[oldest[0]][0].timeout_ms // 60_000
        advice += (
            f"the driver of scope {quoted(scope)} ends it; if the driver no longer runs, start the job again, which "
            f"aborts the open transactions of its last run, or wait {minutes} minutes until the coordinator aborts them"
        )
    yield Finding(
        ADVICE,
        "LONG_TRANSACTION",
        what=f"{counted(len(long), 'transaction')} {'has' if len(long) == 1 else 'have'} been open for more than "
        f"{LONG_MS // 60_000} minutes and {'holds' if len(long) == 1 else 'hold'} back readers of committed records",
        cause="; ".join(shown) + _rest(len(oldest)),
        next=advice,
    )


def _name(transactional_id: str) -> str:
    scope = scope_of(transactional_id)
    if scope is None:
        return quoted(transactional_id)
    return f"{quoted(attempt_of(transactional_id))} of scope {quoted(scope)}"


def _rest(count: int) -> str:
    return f" and {count - SHOWN_MAX} more" if count > SHOWN_MAX else ""
