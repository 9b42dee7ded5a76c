"""The metrics of a broker, read from its state at each scrape."""

from __future__ import annotations

from broker.core.partition import LeaderState
from broker.kafka.listener import KafkaServer
from broker.server.role import BrokerRole
from quorumlog.runtime.metrics import Metrics


def register_broker_metrics(metrics: Metrics, role: BrokerRole, kafka: KafkaServer) -> None:
    """Register the metrics of a broker.  Call it once in each process."""
    table, fetches, counters = role.table, role.replicas.fetches, role.context.counters

    def led() -> list[LeaderState]:
        return [each.leader for each in table if each.leader is not None]

    gauge, counter = metrics.gauge, metrics.counter
    gauge("broker_partitions_hosted", "Replicas on this broker.", lambda: len(table))
    gauge("broker_partitions_led", "Partitions that this broker leads.", lambda: len(led()))
    gauge(
        "broker_partitions_under_replicated",
        "Partitions led here whose ISR is smaller than their replicas, not counting those being added.",
        lambda: sum(leader.lacks_replicas for leader in led()),
    )
    gauge(
        "broker_partitions_reassigning",
        "Partitions led here that are being reassigned.",
        lambda: sum(each.leader is not None and each.image.reassigning for each in table),
    )
    gauge(
        "broker_partitions_under_min_isr",
        "Partitions led here whose ISR is below min.insync.replicas.",
        lambda: sum(len(leader.isr) < leader.min_isr for leader in led()),
    )
    gauge(
        "broker_replicas_offline",
        "Replicas that cannot be served.",
        lambda: sum(each.log is None for each in table),
    )
    gauge("broker_is_serving", "Whether this broker is unfenced.", lambda: role.is_serving)
    gauge("broker_metadata_received_offset", "End of the metadata received.", lambda: role.progress.received_offset)
    gauge("broker_metadata_applied_offset", "End of the metadata applied.", lambda: role.progress.applied_offset)
    gauge("broker_metadata_pending", "Partition changes to apply.", lambda: role.progress.pending_changes)
    gauge("broker_fetches_parked", "Parked fetches (long polls).", lambda: fetches.parked)
    gauge("broker_fetch_sessions", "Open fetch sessions.", lambda: fetches.session_count)
    gauge("broker_produces_parked", "Writes that wait for replication.", lambda: role.context.parked_produces)
    gauge("broker_connections", "Client connections.", lambda: kafka.counters.connections)
    counter("broker_connections_refused", "There were too many.", lambda: kafka.counters.connections_refused)
    counter(
        "broker_connections_evicted",
        "Idle connections that were closed because there were too many.",
        lambda: kafka.counters.connections_evicted,
    )
    counter("broker_produced_bytes", "Appended as leader.", lambda: counters.produced_bytes)
    counter("broker_produced_batches", "Requests appended as leader.", lambda: counters.produced_batches)
    counter("broker_fetched_bytes", "Sent to consumers and followers.", lambda: counters.fetched_bytes)
    counter("broker_replicated_bytes", "Appended as follower.", lambda: counters.replicated_bytes)
    counter(
        "broker_reassignment_in_bytes", "Appended as a replica being added.", lambda: counters.reassignment_in_bytes
    )
    counter("broker_reassignment_out_bytes", "Sent to replicas being added.", lambda: counters.reassignment_out_bytes)
    counter("broker_isr_shrinks", "ISR members removed.", lambda: counters.isr_shrinks)
    counter("broker_isr_expands", "ISR members added.", lambda: counters.isr_expands)
    counter("broker_truncations", "Logs truncated to match a leader.", lambda: counters.truncations)
    metrics.counters("broker_requests", "Kafka requests begun.", "api", lambda: dict(kafka.handlers.requests))
