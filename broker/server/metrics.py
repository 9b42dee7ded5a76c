"""The metrics of a broker, read from its state at each scrape."""

from __future__ import annotations

from broker.coordinator.groups import GroupCoordinators
from broker.coordinator.partition import State
from broker.coordinator.shares import ShareGroups
from broker.core.partition import LeaderState
from broker.kafka.listener import KafkaServer
from broker.log.cleaner import LogCleaner
from broker.log.moves import LogMoves
from broker.server.role import BrokerRole
from quorumlog.runtime.metrics import Metrics


def register_broker_metrics(metrics: Metrics, role: BrokerRole, kafka: KafkaServer) -> None:
    """Register the metrics of a broker.  Call it once in each process."""
    _register_metadata(metrics, role)
    _register_partitions(metrics, role)
    _register_traffic(metrics, role)
    _register_connections(metrics, kafka)
    _register_moves(metrics, role.logs.moves)
    _register_compaction(metrics, role.cleaner)
    _register_groups(metrics, role.groups)
    _register_shares(metrics, role.shares)
    metrics.counters("broker_requests", "Kafka requests begun.", "api", lambda: dict(kafka.handlers.requests))


def _register_metadata(metrics: Metrics, role: BrokerRole) -> None:
    gauge, progress = metrics.gauge, role.progress
    gauge("broker_is_serving", "Whether this broker is unfenced and serves.", lambda: role.is_serving)
    gauge("broker_metadata_received_offset", "End of the metadata received.", lambda: progress.received_offset)
    gauge("broker_metadata_applied_offset", "End of the metadata applied.", lambda: progress.applied_offset)
    gauge("broker_metadata_pending", "Partition changes to apply.", lambda: progress.pending_changes)


def _register_partitions(metrics: Metrics, role: BrokerRole) -> None:
    gauge, counter, table, counters = metrics.gauge, metrics.counter, role.table, role.context.counters

    def led() -> list[LeaderState]:
        return [each.leader for each in table if each.leader is not None]

    gauge("broker_partitions_hosted", "Replicas on this broker.", lambda: len(table))
    gauge("broker_partitions_led", "Partitions that this broker leads.", lambda: len(led()))
    gauge(
        "broker_partitions_under_replicated",
        "Partitions that this broker leads and that have replicas out of sync, not counting replicas being added.",
        lambda: sum(leader.lacks_replicas for leader in led()),
    )
    gauge(
        "broker_partitions_reassigning",
        "Partitions that this broker leads and that are being reassigned.",
        lambda: sum(each.leader is not None and each.image.reassigning for each in table),
    )
    gauge(
        "broker_partitions_under_min_isr",
        "Partitions that this broker leads with an ISR below min.insync.replicas.",
        lambda: sum(len(leader.isr) < leader.min_isr for leader in led()),
    )
    gauge(
        "broker_replicas_offline",
        "Replicas that cannot be served.",
        lambda: sum(each.log is None for each in table),
    )
    counter("broker_isr_shrinks", "ISR members removed.", lambda: counters.isr_shrinks)
    counter("broker_isr_expands", "ISR members added.", lambda: counters.isr_expands)
    counter("broker_truncations", "Logs truncated to match a leader.", lambda: counters.truncations)


def _register_traffic(metrics: Metrics, role: BrokerRole) -> None:
    gauge, counter, counters = metrics.gauge, metrics.counter, role.context.counters
    fetches, produces = role.replicas.fetches, role.replicas.produces
    gauge("broker_fetches_parked", "Parked fetches (long polls).", lambda: fetches.parked)
    gauge("broker_fetch_sessions", "Open fetch sessions.", lambda: len(fetches.sessions))
    gauge("broker_fetch_session_partitions", "Partitions in open fetch sessions.", lambda: fetches.sessions.partitions)
    counter(
        "broker_fetch_sessions_evicted",
        "Fetch sessions that were closed because they were idle or another one replaced them.",
        lambda: fetches.sessions.evicted,
    )
    gauge(
        "broker_produces_parked",
        "Writes that wait for a flush or for replication.",
        lambda: role.context.parked_produces,
    )
    gauge(
        "broker_produces_unchecked",
        "Writes that wait until their records are checked or recompressed.",
        lambda: produces.waiting,
    )
    counter(
        "broker_recompressed_bytes",
        "Size, as received, of batches that were recompressed because of compression.type.",
        lambda: produces.recompressed_bytes,
    )
    counter("broker_produced_bytes", "Bytes appended as leader.", lambda: counters.produced_bytes)
    counter(
        "broker_produced_batches", "Appends as leader; one may have several batches.", lambda: counters.produced_batches
    )
    counter("broker_fetched_bytes", "Bytes sent to consumers and followers.", lambda: counters.fetched_bytes)
    counter("broker_replicated_bytes", "Bytes appended as follower.", lambda: counters.replicated_bytes)
    counter(
        "broker_reassignment_in_bytes",
        "Bytes appended as a replica being added.",
        lambda: counters.reassignment_in_bytes,
    )
    counter(
        "broker_reassignment_out_bytes", "Bytes sent to replicas being added.", lambda: counters.reassignment_out_bytes
    )


def _register_connections(metrics: Metrics, kafka: KafkaServer) -> None:
    gauge, counter, counters = metrics.gauge, metrics.counter, kafka.counters
    gauge("broker_connections", "Client connections.", lambda: counters.connections)
    counter(
        "broker_connections_refused",
        "Client connections refused because there were too many.",
        lambda: counters.connections_refused,
    )
    counter(
        "broker_connections_evicted",
        "Idle connections that were closed because there were too many.",
        lambda: counters.connections_evicted,
    )


def _register_moves(metrics: Metrics, moves: LogMoves) -> None:
    gauge, counter = metrics.gauge, metrics.counter
    gauge(
        "broker_moves_running",
        "Replicas that are moving, or waiting to move, to another directory of this broker.",
        lambda: len(moves.targets),
    )
    gauge("broker_moves_left_bytes", "Bytes that moves between directories still have to copy.", moves.left_bytes)
    counter("broker_moves_copied_bytes", "Bytes copied to other directories.", lambda: moves.copied_bytes)
    counter("broker_moves_finished", "Replicas that were moved to another directory.", lambda: moves.finished)
    counter(
        "broker_moves_failed",
        "Moves that ended because of a lack of space, a failed directory or a damaged log.",
        lambda: moves.failed,
    )


def _register_compaction(metrics: Metrics, cleaner: LogCleaner) -> None:
    gauge, counter = metrics.gauge, metrics.counter
    gauge(
        "broker_compaction_dirty_bytes",
        "Bytes of sealed segments that are not compacted yet.",
        cleaner.dirty_bytes,
    )
    gauge(
        "broker_compaction_dirty_ratio_max",
        "Largest ratio of not yet compacted bytes in a log.",
        lambda: max((each.dirty.ratio for each in cleaner.dirty.values()), default=0),
    )
    gauge(
        "broker_compaction_logs_due",
        "Logs that wait for compaction.",
        cleaner.due,
    )
    gauge(
        "broker_compaction_logs_uncleanable",
        "Logs that cannot be compacted for now.",
        lambda: len(cleaner.uncleanable),
    )
    gauge(
        "broker_compaction_last_seconds",
        "Seconds since the last compaction of a log.",
        cleaner.seconds_since_last,
    )
    counter("broker_compaction_read_bytes", "Size of logs before their compaction.", lambda: cleaner.cleaned_bytes)
    counter("broker_compaction_removed_bytes", "Bytes removed by compaction.", lambda: cleaner.removed_bytes)
    counter("broker_compaction_failures", "Compactions that failed.", lambda: cleaner.failed_jobs)


def _register_shares(metrics: Metrics, shares: ShareGroups) -> None:
    metrics.gauge("share_partitions", "Share partitions that this broker serves.", lambda: len(shares.partitions))
    metrics.gauge(
        "share_dead_letters_failing",
        "Share partitions whose dead letters cannot be written for now.",
        lambda: len(shares.letters.failing),
    )
    metrics.counter("share_dead_letters", "Dead letters written.", lambda: shares.letters.written)


def _register_groups(metrics: Metrics, groups: GroupCoordinators) -> None:
    gauge, counter = metrics.gauge, metrics.counter
    shell, coordinators = groups.shell, groups.shell.counters
    gauge("group_coordinators", "Group coordinators on this broker, one per partition.", lambda: len(shell.led()))
    gauge(
        "group_coordinators_loading",
        "Group coordinators that are replaying their log, one per partition.",
        lambda: shell.count(State.LOADING),
    )
    gauge(
        "group_coordinators_failed",
        "Group coordinators that cannot read their log, one per partition.",
        lambda: shell.count(State.FAILED),
    )
    gauge("group_calls_waiting", "Group requests that wait for an answer.", lambda: coordinators.waiting)
    counter("group_calls_refused", "Group requests that a coordinator refused.", lambda: coordinators.refused)
    counter("group_loads", "Logs that group coordinators have replayed.", lambda: coordinators.loads)
    counter(
        "group_load_seconds", "Time that group coordinators took to replay logs.", lambda: coordinators.load_ms / 1000
    )
    counter("group_drops", "Group coordinators that were loaded again after a failure.", lambda: coordinators.drops)
    counter("group_appends", "Batches that group coordinators appended.", lambda: coordinators.appends)
    counter("group_commits", "Offset commits that reached a group coordinator.", lambda: groups.commits)
    metrics.gauges("groups", "Groups that this broker coordinates.", "state", groups.count_by_state)
