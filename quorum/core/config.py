"""The settings of a node of the quorum."""

from __future__ import annotations

import msgspec


class RaftConfig(msgspec.Struct, frozen=True):
    """The settings of a core.  The caller checks them, except for the voter list: `RaftCore` refuses a wrong list
    (`NodeRefused`).

    address: control address (HOST:PORT) that this node advertises.
    bootstrap: control addresses of any nodes of the cluster, through which this node finds the quorum.
    initial_voters: (id, control address) of each founding voter, this node among them; empty for an observer.
    standalone: found a cluster of which this node is the only voter.
    cluster_id: the cluster that this node must belong to; None: this node accepts the first cluster that it reaches.
    new_cluster_id: the id of the cluster if this node founds it and no id is given.
    wall_offset_ms: wall clock minus the `now_ms` given to the core; for the timestamps of control batches only.
    """

    node_id: int
    address: str
    bootstrap: tuple[str, ...] = ()
    initial_voters: tuple[tuple[int, str], ...] = ()
    standalone: bool = False
    cluster_id: str | None = None
    new_cluster_id: str | None = None
    election_timeout_ms: int = 1000
    fetch_timeout_ms: int = 2000
    append_linger_ms: int = 0  # how long the shell collects a leader's batches for one write
    request_timeout_ms: int = 1000
    retry_backoff_ms: int = 50  # first pause after a failed request; doubles
    retry_backoff_max_ms: int = 500
    download_backoff_ms: int = 500  # pause before a snapshot that arrived damaged is downloaded again; doubles
    download_backoff_max_ms: int = 30_000
    voter_wait_ms: int = 500  # how long a leader may hold the fetch of a voter that has every record
    watermark_wait_ms: int = 5  # the delay of a new high watermark for a voter that has every record
    observer_wait_ms: int = 5_000  # like voter_wait_ms, for an observer; limits how late a broker notices a hung leader
    fetch_max_bytes: int = 1 << 20  # bytes of batches in one fetch reply, or of a snapshot in one part
    recent_max_bytes: int = 4 << 20  # bytes of durable batches kept for fetches near the end; trimmed at twice as many
    unwritten_max_bytes: int = 64 << 20  # bytes of batches that are not durable; further proposals are refused
    parked_fetches_max: int = 4096  # fetches held by a leader; further fetches of observers are answered immediately
    observers_max: int = 4096  # replicas known to a leader; the observer with the oldest fetch is dropped first
    step_timeout_ms: int = 30_000  # time limit of a step towards a target, which is then tried again
    step_backoff_ms: int = 1_000  # pause after a step that was refused; doubles
    step_backoff_max_ms: int = 30_000
    steady_ms: int = 60_000  # a node that led for a shorter time is not preferred for a while
    preference_wait_ms: int = 30_000  # how long such a node is not preferred; doubles
    preference_wait_max_ms: int = 600_000
    reset_interval_ms: int = 5_000  # minimum time between two resets of all connections by a paused leader
    reads_max: int = 4096  # reads that wait for confirmation by a leader; further reads are refused
    wall_offset_ms: int = 0

    @property
    def founders(self) -> tuple[tuple[int, str], ...]:
        """Return the voters of a new cluster, by ascending id; empty for a node that joins a cluster."""
        if self.standalone:
            return ((self.node_id, self.address),)
        return tuple(sorted(self.initial_voters))
