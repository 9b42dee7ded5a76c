"""The plan of a run of a whole cluster: its nodes, topics, faults, and the requests of an administrator.

A plan is an immutable value, so a run can be repeated with any part of its faults.  Requests are in the same list as
faults, because most defects appear when a fault occurs while a request is being executed.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from metadata.image.internal_topics import CONSUMER_OFFSETS, SHARE_GROUP_STATE, TRANSACTION_STATE
from quorumlog.wire.record_batch import Codec
from simulation.cluster.compaction import Compaction
from simulation.kernel.faults import Fault

FIRST_BROKER = 11

CONTROLLER = 0
"""As a node of a fault: the active controller when the fault begins."""
LEADER = -1
"""As a node of a fault: the leader of some partition when the fault begins."""
FOLLOWER = -2
"""As a node of a fault: a broker that follows some partition when the fault begins."""

RECOVER = "recover"
"""The kind of the fault that loses a majority of the voters, after which the quorum is rebuilt."""
WRITE_CACHING = "write caching"
"""The kind of the request that switches write.caching of a topic off, if the plan has a topic with it."""
DAY_MS = 86_400_000
GROUP_TOPIC = "shared"
"""The topic whose partitions the members of the consumer group share.  Nothing is written to it."""
MEMBER_TOPIC = "divided"
"""The topic whose partitions the members of the newer group protocol share.  Nothing is written to it."""
LEDGER = "ledger"
"""The topic to which transactional producers write."""
RESULTS = "results"
"""The topic to which the producers of transaction scopes write."""
QUEUE = "queue"
"""The topic whose records the workers of a share group complete."""
LETTERS = "dlq.queue"
"""The dead-letter topic of the share group."""


STATE_TOPICS = (CONSUMER_OFFSETS, TRANSACTION_STATE, SHARE_GROUP_STATE)
"""The topics with the state of coordinators."""
OFFSETS_KEPT = Compaction(keys=0, min_lag_ms=DAY_MS)
"""Does not compact anything within a run."""


@dataclass(frozen=True, slots=True)
class TopicPlan:
    """A topic that exists from the beginning.

    unclean: leaders that lack records may be elected.  passing: it may be deleted and recreated at any time.
    retention_ms, retention_bytes: the age and log size above which records may be deleted; -1: no limit.
    """

    name: str
    partitions: int
    factor: int
    min_isr: int
    unclean: bool = False
    passing: bool = False
    codec: Codec = Codec.NONE  # of its batches, as clients send them
    compression: str = "producer"  # compression.type: the codec of its batches in the log
    retention_ms: int = -1
    retention_bytes: int = -1
    caching: bool = False  # write.caching: acknowledged records may be on no disk yet
    compaction: Compaction | None = None

    @property
    def keeps_all(self) -> bool:
        """Return whether every acknowledged record must exist until retention, compaction or a client deletes it."""
        return not self.unclean and not self.passing and not self.caching

    @property
    def configs(self) -> dict[str, str]:
        """The configs with which the topic is created."""
        chosen = {"min.insync.replicas": str(self.min_isr)}
        if self.unclean:
            chosen["unclean.leader.election.enable"] = "true"
        if self.retention_ms >= 0:
            chosen["retention.ms"] = str(self.retention_ms)
        if self.retention_bytes >= 0:
            chosen["retention.bytes"] = str(self.retention_bytes)
        if self.caching:
            chosen["write.caching"] = "true"
        if self.compression != "producer":
            chosen["compression.type"] = self.compression
        if self.compaction is not None:
            chosen |= self.compaction.configs
        return chosen


@dataclass(frozen=True, slots=True)
class Upkeep:
    """How brokers maintain their logs in a run: much more often than in production, so that the run covers this work.

    interval_s: the time between two rounds of maintenance.  segment_bytes, segment_ms: the size and age at which a new
        segment begins.  checkpoint_bytes: the size of the appends between two checkpoints.
    index_bytes: the bytes of the log between two entries of an index.  strays_ms: how long a stray is kept.
    producers_ms: the time without requests after which a producer expires.
    cleaner_ms: how long the cleaner waits if no log is due.  map_memory: bytes of its map of keys.
    """

    interval_s: float
    segment_bytes: int
    segment_ms: int
    checkpoint_bytes: int
    index_bytes: int
    strays_ms: int
    producers_ms: int
    cleaner_ms: int = 15_000
    map_memory: int = 1 << 20


@dataclass(frozen=True, slots=True)
class Rest:
    """The time from `at_s` until all dead letters are written.  Meanwhile, the workers of the share group do not fetch.

    at_s: seconds after the start of the faults.
    vanishes: the workers stop as killed processes do, without leaving the group.
    refuses: the dead-letter topic admits no letters until the faults have ended.
    """

    at_s: float
    vanishes: bool
    refuses: bool


@dataclass(frozen=True, slots=True)
class ClusterPlan:
    """One run.  chaos_s: the time in which faults begin; then all of them end.  gap_s: the time between two batches."""

    seed: int
    voters: int
    spares: int  # quorum nodes that do not start as voters
    brokers: int
    directories: int  # of each broker
    topics: tuple[TopicPlan, ...]
    chaos_s: float
    gap_s: float
    lag_max_bytes: int  # the greatest lag of a follower in sync; -1: no limit
    snapshots: bool  # take metadata snapshots often, and keep the log short
    small_fetches: bool  # followers copy a batch or two at a time
    converts: bool  # convert quorum messages to the wire format of production
    slow_disks: tuple[tuple[int, int], ...]  # nodes with slow disks until all faults end, and the longest sync in ms
    real_files: bool  # use real data directories; no disk fails in such a run
    upkeep: Upkeep | None  # None: as in production, which is too rare to occur within a run
    real_store: bool  # quorum disks are SQLite databases on real files; none of them fails
    older_releases: tuple[int, ...]  # nodes that start with a release without the newest feature level
    faults: tuple[Fault, ...]
    group_members: int = 0  # of the consumer group; 0: there is none
    group_partitions: int = 0
    offsets: Compaction = OFFSETS_KEPT  # of the topics with the state of coordinators
    transactional: tuple[int, ...] = ()  # by transactional id: how many producers use it
    ledger_partitions: int = 0
    new_members: int = 0  # of the group of the newer protocol (KIP-848)
    new_member_partitions: int = 0
    workers: int = 0  # of the share group (KIP-932); 0: there is no queue
    queue_partitions: int = 0
    drivers: tuple[int, ...] = ()  # by transaction scope: how many drivers use it
    executors: int = 0  # hosts on which producers of scopes run
    results_partitions: int = 0
    letter_partitions: int = 0  # of the share group's dead-letter topic; 0: there is none
    letter_copies: bool = False  # dead letters have copies of their records
    rest: Rest | None = None  # of the workers; None: the workers fetch until the end
    move_piece: int = 0  # bytes that a move between directories copies at a time; 0: replicas do not move
    in_flight: int = 0  # batches of a partition that a pipelining producer has in flight; 0: no such producer
    parked_produces: int = 0  # the limit of brokers for produces that wait for replicas; 0: as in production

    @property
    def broker_ids(self) -> tuple[int, ...]:
        return tuple(range(FIRST_BROKER, FIRST_BROKER + self.brokers))

    @property
    def node_ids(self) -> tuple[int, ...]:
        return (*range(1, self.voters + self.spares + 1), *self.broker_ids)

    @property
    def producer_hosts(self) -> list[str]:
        """The hosts of the producers: one for each topic, and one with acks=1."""
        return [*(f"p{number}" for number in range(len(self.topics))), "p1acks"]

    @property
    def pipeline_hosts(self) -> list[str]:
        """The host of the producers with several batches in flight."""
        return ["i0"] if self.in_flight else []

    @property
    def consumer_hosts(self) -> list[str]:
        return ["r0", "r1"]

    @property
    def client_hosts(self) -> list[str]:
        members = [*self.member_hosts, *self.new_member_hosts]
        others = [*self.transactional_hosts, *self.worker_hosts, *self.queue_hosts, *self.scope_hosts]
        return [*self.producer_hosts, *self.consumer_hosts, *members, *others, *self.pipeline_hosts]

    @property
    def member_hosts(self) -> list[str]:
        """The hosts of the members of the consumer group."""
        return [f"m{number}" for number in range(self.group_members)]

    @property
    def new_member_hosts(self) -> list[str]:
        """The hosts of the members of the newer protocol."""
        return [f"n{number}" for number in range(self.new_members)]

    @property
    def transactional_hosts(self) -> list[str]:
        """The hosts of the transactional producers, and of the readers of committed records."""
        producers = [f"t{place}{twin}" for place, count in enumerate(self.transactional) for twin in "ab"[:count]]
        return [*producers, "c0", "c1"] if producers else []

    @property
    def driver_hosts(self) -> list[str]:
        """The hosts of the drivers of transaction scopes."""
        return [f"d{place}{twin}" for place, count in enumerate(self.drivers) for twin in "ab"[:count]]

    @property
    def executor_hosts(self) -> list[str]:
        """The hosts on which producers of transaction scopes run."""
        return [f"x{number}" for number in range(self.executors)]

    @property
    def scope_reader_hosts(self) -> list[str]:
        """The hosts that read the records of the producers of scopes."""
        return ["e0", "e1"] if self.drivers else []

    @property
    def scope_hosts(self) -> list[str]:
        """The hosts of all clients that concern transaction scopes."""
        return [*self.driver_hosts, *self.executor_hosts, *self.scope_reader_hosts]

    @property
    def worker_hosts(self) -> list[str]:
        """The hosts of the members of the share group."""
        return [f"w{number}" for number in range(self.workers)]

    @property
    def queue_hosts(self) -> list[str]:
        """The host of the producer that writes to the queue."""
        return ["q0"] if self.workers else []

    @property
    def queue(self) -> TopicPlan:
        """The topic of the queue, with the replication factor and min ISR of the first topic."""
        return TopicPlan(QUEUE, self.queue_partitions, self.topics[0].factor, self.topics[0].min_isr)

    @property
    def compacted(self) -> dict[str, Compaction]:
        """The compacted topics, by name."""
        chosen = {topic.name: topic.compaction for topic in self.topics if topic.compaction is not None}
        return {**chosen, **dict.fromkeys(STATE_TOPICS, self.offsets)}

    @property
    def wipes(self) -> bool:
        """Return whether a broker loses data on its disk.  Then each acknowledgement must require two replicas."""
        return any(fault.kind in ("wipe", "last disk", "bit rot", "backup") for fault in self.faults)

    @property
    def rebuilds(self) -> bool:
        """Return whether the quorum is rebuilt, which may lose metadata and thereby records of partitions."""
        return any(fault.kind == RECOVER for fault in self.faults)

    @property
    def forgets_producers_s(self) -> float:
        """The time without requests after which a producer expires."""
        return DAY_MS / 1000 if self.upkeep is None else self.upkeep.producers_ms / 1000

    def only(self, numbers: set[int]) -> ClusterPlan:
        """Return the same run with only these faults."""
        return replace(self, faults=tuple(fault for fault in self.faults if fault.number in numbers))
