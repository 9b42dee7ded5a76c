"""All limits of the replicas, and the values that their metrics count."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec


class ReplicaLimits(msgspec.Struct, frozen=True):
    """Every bound of the replicas, in one place."""

    max_wait_ms: int = 30_000
    """The longest time that a fetch is parked."""
    produce_timeout_max_ms: int = 120_000
    """The longest time that an appended produce or a deletion of records waits, even if the client allows more.  Then
    it is answered with REQUEST_TIMED_OUT."""
    parked_fetches: int = 10_000
    """Maximum number of parked fetches.  Further fetches are answered immediately, even without records."""
    parked_produces: int = 100_000
    """Maximum number of produces that wait for a check, a flush or replication; each partition of a request counts.
    Further ones are refused with REQUEST_TIMED_OUT before they are appended; all clients retry then."""
    parked_deletions: int = 1_000
    """Maximum number of deletions of records that wait for replicas.  Further ones are refused with REQUEST_TIMED_OUT,
    and delete nothing."""
    inline_check_bytes: int = 16 << 10
    inline_check_inflated_bytes: int = 256 << 10
    """A produce to one partition is checked on the event loop if its compressed batches have at most
    `inline_check_bytes`, and inflate to at most `inline_check_inflated_bytes`.  This takes well under a millisecond
    with all codecs except gzip.  A larger produce is checked in a thread."""
    record_check_threads: int = 2
    """Maximum number of produces that are checked in threads at the same time.  The others wait."""
    record_check_wait_ms: int = 30_000
    """The longest time that a produce waits for the check of its records, for a coordinator, or for earlier produces.
    Then it is refused with REQUEST_TIMED_OUT."""
    recompressed_waiting_bytes: int = 64 << 20
    """Maximum size of the recompressed batches that wait for earlier produces of their producers, or for coordinators
    of transactions.  A produce that exceeds this limit is refused with REQUEST_TIMED_OUT when its turn comes, and its
    client retries."""
    time_lookups: int = 2
    """Maximum number of look-ups of timestamps that run concurrently, in the event loop's default executor.  The others
    wait."""
    fetch_response_max_bytes: int = 64 << 20
    """Maximum size of the records in one fetch response, even if the request permits more.  If the first batch is
    larger, it is sent nevertheless."""
    sessions: int = 1_000
    """Maximum number of fetch sessions.  `SessionCache` describes which session a new one may replace.  A fetcher that
    may replace none gets no session."""
    session_partitions: int = 250_000
    """Maximum number of partitions that the fetch sessions of consumers list together, about 0.5 KB each.  A consumer
    whose partitions would exceed this limit gets no session; a session that grows beyond the limit is closed."""
    session_idle_ms: int = 120_000
    """A session without a request during this time is closed.  During this time after its opening, a consumer's session
    is never replaced by another consumer's."""
    fetch_partition_bytes: int = 1 << 20
    """Bytes that a fetcher requests for each partition."""
    fetcher_response_bytes: int = 16 << 20
    """Bytes that a fetcher requests for all partitions of one fetch together."""
    fetcher_wait_ms: int = 500
    """The longest time that the leader parks a fetcher's request (long poll)."""
    fetcher_timeout_ms: int = 5_000
    """Time beyond the long poll that a fetcher waits for a reply before it drops the connection."""
    fetcher_backoff_min_ms: int = 50
    fetcher_backoff_max_ms: int = 1_000
    """The bounds of the back-off of a fetcher after a failed request, and of a partition after a refusal."""
    isr_check_divisor: int = 2
    """Number of times that the ISR is checked in each replica.lag.time.max.ms."""
    checkpoint_interval_ms: int = 5_000
    """Interval at which changed watermarks are written to the data directories' facts."""
    maintenance_interval_ms: int = 60_000
    """Interval at which logs are maintained: retention, checkpoints, expiry of producers, deletion of strays."""
    strays_kept_ms: int = 60_000
    """Time after which maintenance deletes a replica that was set aside.  The source of a move is kept at least until
    the metadata names the new directory of the replica."""
    log_checkpoint_bytes: int = 8 << 20
    """Bytes of a log between two checkpoints.  A start after an unclean stop reads about as much of each log."""
    segment_size_max: int = 2**31 - 1
    """The limit of a segment's size; a larger segment.bytes of a topic is reduced to this limit."""
    segment_age_max_ms: int = 2**63 - 1
    """The limit of a segment's age; a larger segment.ms of a topic is reduced to this limit."""
    index_interval_bytes: int = 4096
    """Bytes of a log between two entries of its index."""
    producer_expiration_ms: int = 24 * 60 * 60 * 1000
    """The state of an idempotent producer expires after this time without a batch."""
    producer_id_low_water: int = 1_000
    """The broker requests the next block of producer ids when fewer ids than this are left.  So about this number of
    producers or more can start while no controller is active.  Further ones get COORDINATOR_LOAD_IN_PROGRESS, which
    clients retry."""


@dataclass(slots=True)
class ReplicaCounters:
    """Counts for the metrics."""

    produced_bytes: int = 0
    produced_batches: int = 0
    fetched_bytes: int = 0
    replicated_bytes: int = 0
    reassignment_in_bytes: int = 0
    reassignment_out_bytes: int = 0
    isr_shrinks: int = 0
    isr_expands: int = 0
    truncations: int = 0
