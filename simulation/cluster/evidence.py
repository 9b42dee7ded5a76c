"""The state that the checks of one run share: counters, metadata, histories of partitions, and running brokers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from broker.core.partition import FollowerState, LeaderState
from broker.log import LogKey, PartitionLog
from broker.replica.context import ReplicaContext
from broker.server.role import BrokerRole
from metadata.image import PartitionImage
from simulation.cluster.compaction import KeyedRecords
from simulation.cluster.history import Committed, History
from simulation.cluster.metadata import MetadataWatch, Spot
from simulation.kernel.violation import Violation


@dataclass(eq=False)
class Copy:
    """A replica in one process.

    compared: the end of the part of its log that was compared with the history.  watermark: the watermark of its role.
    noted: the end of the part that `CompactionWatch` has noted, because a deposed leader had committed it.
    """

    log: PartitionLog
    compared: int = 0
    role: LeaderState | FollowerState | None = None
    watermark: int = 0
    noted: int = 0


@dataclass(eq=False)
class BrokerRun:
    """One process of a broker, from its start to its end."""

    node_id: int
    role: BrokerRole
    copies: dict[LogKey, Copy] = field(default_factory=dict)
    recovered: bool = False
    opened: frozenset[LogKey] = frozenset()
    """The logs that the process found when it started."""

    @property
    def context(self) -> ReplicaContext:
        return self.role.context


class Evidence:
    """The shared state.  The checks read all of it."""

    def __init__(self, unclean: frozenset[str], compacted: Mapping[str, Callable[[], KeyedRecords]]) -> None:
        """compacted: by name of a compacted topic, the function that makes the records of a new partition."""
        self.checks = 0
        self.seen: Counter[str] = Counter()
        self.closed = False
        """Whether the run has ended, so that violations no longer count."""
        self.note: Callable[[str], None] | None = None
        self.on_violation: Callable[[str], None] = lambda _: None
        self.on_committed: list[Callable[[History, Committed], None]] = []
        """Called with each batch that becomes committed."""
        self.on_leader_watermark: list[Callable[[History, PartitionLog, int], None]] = []
        """Called with the history, log and leader epoch of a leader whose watermark has moved."""
        self.metadata = MetadataWatch(self.check, unclean, self.seen)
        self._compacted = compacted
        self.histories: dict[LogKey, History] = {}
        self.runs: dict[int, BrokerRun] = {}
        """The running process of each broker."""
        self.damaged: set[tuple[int, LogKey]] = set()
        """Replicas, by broker, in which bytes have changed on the disk.  `BadDisks` adds them."""
        self.unsynced: set[tuple[int, LogKey]] = set()
        """Replicas with write.caching that lost power and have not joined the ISR since.  `DiskWatch` adds them.  Once
        a leader begins after an unclean election, all replicas of its partition are removed."""
        self.stale: set[tuple[int, LogKey]] = set()
        """Replicas that were restored from a backup, or that discarded their log because such a replica led.  A replica
        is removed when it is in sync again."""

    def check(self, holds: bool, message: Callable[[], str]) -> None:
        """Raise Violation with the message unless the condition holds."""
        self.checks += 1
        if not holds and not self.closed:
            text = message()
            self.on_violation(text)
            raise Violation(text)

    def history(self, key: LogKey) -> History | None:
        """Return the history of a partition; None if no node has applied its creation yet."""
        found = self.histories.get(key)
        if found is None and (spot := self.metadata.names.get(key)) is not None:
            records = self._compacted.get(spot.topic)
            found = self.histories[key] = History(key, spot, None if records is None else records())
        return found

    def current(self, spot: Spot) -> History | None:
        """Return the history of the partition that has this name now, or None."""
        topic = self.metadata.image.topic(spot.topic)
        partition = None if topic is None else topic.partition(spot.index)
        if topic is None or partition is None:
            return None
        return self.history(LogKey(topic.origin, spot.index, partition.created))

    def partition(self, history: History) -> PartitionImage | None:
        """Return the newest committed state of a partition; None if the partition no longer exists."""
        topic = self.metadata.image.topic(history.spot.topic)
        found = None if topic is None else topic.partition(history.spot.index)
        return found if self.current(history.spot) is history else None

    def named(self, spot: Spot) -> list[History]:
        """Return the histories of all partitions that have ever had this name."""
        keys = self.metadata.identities.get(spot, [])
        return [history for key in keys if (history := self.history(key)) is not None]

    def is_caching(self, key: LogKey) -> bool:
        """Return whether the topic of a partition has `write.caching`."""
        spot = self.metadata.names.get(key)
        return spot is not None and spot.topic in self.metadata.caching

    def is_registered(self, broker_id: int) -> bool:
        """Return whether the current registration of the broker belongs to its running process."""
        run, broker = self.runs.get(broker_id), self.metadata.image.brokers.get(broker_id)
        life = None if run is None else run.role.lifecycle
        return life is not None and broker is not None and broker.incarnation_id == life.identity.incarnation_id
