"""All limits of the coordinators of a broker, and the values that their metrics count."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec


class CoordinatorLimits(msgspec.Struct, frozen=True):
    """Every bound of the coordinators, in one place."""

    calls_max: int = 20_000
    """Maximum number of waiting calls in all partitions of one internal topic.  Further calls are refused with
    COORDINATOR_NOT_AVAILABLE, which clients retry."""
    call_bytes_max: int = 64 << 20
    """Maximum size of the requests of waiting calls, in all partitions of one internal topic.  Above this limit, calls
    get COORDINATOR_NOT_AVAILABLE."""
    uncommitted_bytes_max: int = 16 << 20
    """Maximum size of one partition's records that are appended but not committed.  Above this limit, calls that may
    append get COORDINATOR_NOT_AVAILABLE, so that the log does not grow without bound while followers are slow."""
    queue_max: int = 20_000
    """While this many operations of one partition wait for their turn, further operations without a call are dropped
    with a warning.  Operations of calls are limited by `calls_max`."""
    append_bytes: int = 1 << 20
    """Bytes of records after which an append takes no further operation.  Operations that still wait follow in the next
    append."""
    load_bytes: int = 1 << 20
    """Maximum size of the data that one read loads from the log.  A larger batch is read whole."""
    commit_timeout_ms: int = 5_000
    """Maximum time that an answer waits for the commit of the records before it.  Then COORDINATOR_NOT_AVAILABLE is
    sent.  A machine whose tick cannot append for this long, because too few replicas are in sync, is dropped and loaded
    anew."""
    retry_ms: int = 500
    """Time between two checks that enough replicas are in sync, while a tick or a load waits for them."""
    creation_timeout_ms: int = 5_000
    """Maximum time that a call, such as FindCoordinator, waits for the creation of a missing topic."""
    creation_pause_ms: int = 1_000
    """Time before the creation of a topic is tried again after a failure.  Callers get the same refusal until then."""

    marker_timeout_ms: int = 5_000
    """Maximum time that a marker waits for its commit.  Then the marker is sent again."""
    marker_retry_min_ms: int = 20
    """Time before markers that were not written are sent again.  It doubles up to `marker_retry_max_ms`."""
    marker_retry_max_ms: int = 1_000
    verification_timeout_ms: int = 3_000
    """Maximum time that a leader waits for a coordinator on another broker.  Then it refuses the first batch of the
    transaction."""
    addition_wait_ms: int = 2_000
    """Maximum time that a leader repeats its request while the coordinator still ends the producer's previous
    transaction.  Then the producer gets NOT_ENOUGH_REPLICAS, and retries."""
    addition_retry_min_ms: int = 4
    """Time before a leader asks again.  It doubles up to `addition_retry_max_ms`."""
    addition_retry_max_ms: int = 100
    hanging_interval_ms: int = 10_000
    """Time between two searches for transactions that may hang; see `broker.coordinator.hanging`."""
    hanging_age_ms: int = 60_000
    """Age of an open transaction at which its leader asks about it, counted since the leader first saw it.  If a
    coordinator reports the transaction as open, the leader asks again after the same time."""
    hanging_checks_max: int = 50
    """Maximum number of transactions that one search checks.  Later searches check the others, even if the checked ones
    could not be ended."""

    share_state_timeout_ms: int = 5_000
    """Maximum time that a leader waits for an answer of the share coordinator.  Then the leader repeats the request,
    and waits for one more second.  If the request was a save, the leader then refuses the acknowledgements in it.  If
    the request was a load, share fetches report that the state cannot be read."""
    share_state_retry_ms: int = 50
    """Time before a request to the share coordinator is repeated, while no broker has this role."""
    share_log_end_timeout_ms: int = 1_500
    """Maximum time that the description of a share group's offsets waits for the leaders of its partitions.  Then the
    lag of partitions whose leaders have not answered is unknown.  This limit is shorter than the 3 s that `kctl doctor`
    waits for the whole answer."""
    share_wait_max_ms: int = 60_000
    """The longest time that a ShareFetch waits for records, even if the client asks for more."""
    share_load_wait_ms: int = 10_000
    """Maximum time that a ShareFetch waits while all its states are being loaded, even if the client asks for a shorter
    wait.  The acknowledgements of a request wait equally long for such states, and then get REPLICA_NOT_AVAILABLE."""
    share_loads_per_fetch: int = 50
    """Maximum number of states that one ShareFetch loads at the same time.  The others follow."""
    share_read_max_bytes: int = 1 << 20
    """Maximum number of bytes that one ShareFetch reads from one partition."""
    share_time_lookups: int = 2
    """Maximum number of look-ups by timestamp that run at the same time.  They find the start of new share groups that
    begin at records of a certain age.  Further look-ups wait."""
    share_partitions_max: int = 10_000
    """Maximum number of partitions of one share session.  A request that would exceed it gets INVALID_REQUEST."""
    share_partitions_per_fetch: int = 100
    """Maximum number of partitions from which one ShareFetch returns records.  The next ShareFetch begins with the
    other partitions."""

    share_letter_bytes: int = 1 << 20
    """Bytes of one read of records that get dead letters.  One batch of letters has about this size; a larger letter is
    written alone."""
    share_letter_writes: int = 16
    """Maximum number of dead-letter writes that run at the same time.  Other share partitions wait for their turn."""
    share_letter_reads: int = 2
    """Maximum number of dead-letter writes that decode records at the same time.  Each may use as much memory as a
    decompressed batch."""
    share_letter_timeout_ms: int = 3_000
    """Maximum time that a write of dead letters waits for the replicas in sync.  Then the write is repeated."""
    share_letter_answer_ms: int = 10_000
    """Maximum time that a broker waits for the answer to a write of dead letters.  This is longer than the timeout of
    the write, because earlier writes on the connection may delay the answer."""
    share_letter_retry_min_ms: int = 100
    """Time before dead letters are tried again after a failure.  It doubles up to `share_letter_retry_max_ms`."""
    share_letter_retry_max_ms: int = 10_000
    share_reminder_interval_ms: int = 5_000
    """Time between two searches of a share coordinator for dead letters that no leader writes.  A search reminds a
    leader if the state has not changed since the previous search."""
    share_reminders_max: int = 100
    """Maximum number of share partitions that one search names to one leader.  The leader then loads their states.
    Other share partitions wait for the next search."""
    share_letter_creations_max: int = 100
    """Maximum number of dead-letter topics that a broker tries to create at the same time.  Letters for other missing
    topics wait."""


@dataclass(slots=True)
class CoordinatorCounters:
    """Counts for the metrics.  waiting: calls that wait now; waiting_bytes: the bytes of their requests."""

    waiting: int = 0
    waiting_bytes: int = 0
    refused: int = 0
    loads: int = 0
    load_ms: int = 0
    drops: int = 0
    appends: int = 0
