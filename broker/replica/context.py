"""The state that all replicas of a broker share: the cluster, the logs, limits, counters and events."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from broker.core.events import Event
from broker.core.fetch_session import PartitionKey
from broker.core.refused_batches import RefusedBatches
from broker.log import LogManager
from broker.replica.cluster_view import ClusterView
from broker.replica.limits import ReplicaCounters, ReplicaLimits

if TYPE_CHECKING:
    from broker.replica.replica import Replica


class ReplicaEvents:
    """The events of the replicas of a broker.  Subscribe before the broker registers.

    elected: (partition, leader epoch): this broker leads the partition from now on.  A leader that is elected again
        under a later epoch is reported again, without `resigned` in between, because its log was not truncated.
    resigned: (partition, leader epoch of the last `elected`): this broker no longer leads the partition, for any cause.
        A broker that stops reports nothing.
    role_changed: the replica leads, follows, or does neither, under another leader epoch or log than before.
    assignment_changed: a follower's replica set or ISR may have changed, under the same leader epoch.
    flushed: a follower that waited for a flush has flushed its whole log.
    start_moved: the log start of a leader or follower has moved and is not durable yet.
    low_watermark_moved: a leader's durable log start, a follower's log start, or the set of followers has changed.
    watermark_moved: the watermark of a leader or follower has moved.  Reported before the produces that it completes
        are answered.
    isr_candidate: a leader whose ISR may have to change.
    broker_left: the id of a broker that was fenced or unregistered.
    brokers_changed: any broker's registration changed.
    """

    def __init__(self) -> None:
        self.elected: Event[[PartitionKey, int]] = Event()
        self.resigned: Event[[PartitionKey, int]] = Event()
        self.role_changed: Event[[Replica]] = Event()
        self.assignment_changed: Event[[Replica]] = Event()
        self.flushed: Event[[Replica]] = Event()
        self.start_moved: Event[[Replica]] = Event()
        self.low_watermark_moved: Event[[Replica]] = Event()
        self.watermark_moved: Event[[Replica]] = Event()
        self.isr_candidate: Event[[Replica]] = Event()
        self.broker_left: Event[[int]] = Event()
        self.brokers_changed: Event[[]] = Event()


@dataclass(slots=True)
class ReplicaContext:
    """The state that all replicas of a broker share.

    is_awake: whether this process may rely on its knowledge of its leaderships (see `StallDetector`).
    refused_batches: the recently refused batches, which clients may send again.
    parked_produces: number of parked produces of all replicas.
    reads_from_followers: consumers are referred to the nearest replica (`replica.selector`).
    is_closed: the broker is stopping and no longer serves requests.
    """

    broker_id: int
    logs: LogManager
    cluster: ClusterView
    limits: ReplicaLimits
    is_awake: Callable[[], bool]
    wall_ms: Callable[[], int]
    counters: ReplicaCounters = field(default_factory=ReplicaCounters)
    events: ReplicaEvents = field(default_factory=ReplicaEvents)
    refused_batches: RefusedBatches = field(default_factory=RefusedBatches)
    parked_produces: int = 0
    is_closed: bool = False
    reads_from_followers: bool = False

    def is_serving(self) -> bool:
        """Return whether this process may serve its replicas at all.

        It may if its registration is in force and unfenced, and if no stall has lasted so long that another broker may
        have become leader.
        """
        return self.cluster.is_unfenced() and not self.is_closed and self.is_awake()
