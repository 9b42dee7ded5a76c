"""The plan of a run of a whole cluster: its faults, and the orders of an administrator.

A plan is a value that is drawn from the seed, so any part of its faults can be run again.  Orders are in the same list
as faults, since most defects show when a fault occurs in the middle of an order.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from random import Random

from quorumlog.wire.record_batch import Codec
from simulation.cluster import disaster as cluster_disaster
from simulation.cluster import releases as cluster_releases
from simulation.cluster import voters as cluster_voters
from simulation.kernel.faults import ALL_LINKS, REAL_STORE_SHARE, Fault, with_all_links, with_more, without

FIRST_BROKER = 11

CONTROLLER = 0
"""Stands for the active controller when the fault begins."""
LEADER = -1
"""Stands for the leader of some partition when the fault begins."""
FOLLOWER = -2
"""Stands for a broker that follows some partition then."""

SCRIPTS = ("wipe", "last disk", "deaf", "swap", "usurp", "rot", "backup")
"""Kinds that are drawn apart from the others.  A run has only one of them."""
DEAF_S = 10.0
SWAP_S = 9.0
LAST_S = 9.0
USURP_S = 13.0
DAY_MS = 86_400_000
MANY_PARTITIONS = 12

LINK_FAULTS = ("slow", "loss", "cut", "one way", "isolate", "split", "flap", "reset")
NODE_FAULTS = (
    "kill",
    "power",
    "power all",
    "restart",
    "restart all",
    "pause",
    "skew",
    "jump",
    "zombie",
    "bounce",
    "deaf",
    "swap",
)
DISK_FAULTS = (
    "fsync fails",
    "slow disk",
    "disk hangs",
    "disk full",
    "wipe",
    "last disk",
    "usurp",
    "quorum disk",
    "rot",
    "backup",
)
ORDERS = (
    "create",
    "delete",
    "recreate",
    "add partitions",
    "remove partitions",
    "min isr",
    "prefer",
    "unclean",
    "reassign",
    "replace",
    "cancel",
    "throttle",
    "unregister",
    "transfer",
)
MIXED = (*LINK_FAULTS, *NODE_FAULTS, *DISK_FAULTS, *ORDERS)
"""Kinds of which any run may have some."""
KINDS = (*MIXED, ALL_LINKS, *cluster_releases.KINDS, *cluster_voters.KINDS, cluster_disaster.KIND)


@dataclass(frozen=True, slots=True)
class TopicPlan:
    """A topic that is there from the beginning.

    unclean: leaders may be elected that lack records.  passing: it may be deleted and made anew at any time.
    retention_ms, retention_bytes: what is older, or beyond that size, may be deleted; -1: nothing is.
    """

    name: str
    partitions: int
    factor: int
    min_isr: int
    unclean: bool = False
    passing: bool = False
    codec: Codec = Codec.NONE  # of the batches that are written to it
    retention_ms: int = -1
    retention_bytes: int = -1
    caching: bool = False  # write.caching: what is acknowledged need not be on any disk

    @property
    def keeps_all(self) -> bool:
        """Nothing that was acknowledged may ever be missing under this name, but for what retention deletes."""
        return not self.unclean and not self.passing and not self.caching

    @property
    def configs(self) -> dict[str, str]:
        """What it is created with."""
        chosen = {"min.insync.replicas": str(self.min_isr)}
        if self.unclean:
            chosen["unclean.leader.election.enable"] = "true"
        if self.retention_ms >= 0:
            chosen["retention.ms"] = str(self.retention_ms)
        if self.retention_bytes >= 0:
            chosen["retention.bytes"] = str(self.retention_bytes)
        if self.caching:
            chosen["write.caching"] = "true"
        return chosen


@dataclass(frozen=True, slots=True)
class Upkeep:
    """How brokers keep their logs in a run that is to see it: far more often than in production.

    interval_s: between two rounds of maintenance.  segment_bytes, segment_ms: when a segment is full, and when it is
        too old to grow.  checkpoint_bytes: what is appended to a log between two checkpoints.
    index_bytes: of log for each entry of an index.  strays_ms: how long a stray is kept.
    producers_ms: for how long a producer may be silent before it is forgotten.
    """

    interval_s: float
    segment_bytes: int
    segment_ms: int
    checkpoint_bytes: int
    index_bytes: int
    strays_ms: int
    producers_ms: int


@dataclass(frozen=True, slots=True)
class ClusterPlan:
    """One run.  `chaos_s` is for how long faults begin; then all of them end.  `gap_s`: between two batches."""

    seed: int
    voters: int
    spares: int  # quorum nodes that are no voters at first
    brokers: int
    directories: int  # of each broker
    topics: tuple[TopicPlan, ...]
    chaos_s: float
    gap_s: float
    lag_max_bytes: int  # of a follower in sync; -1: any
    snapshots: bool  # of the metadata, taken every little while, the log kept short behind them
    small_fetches: bool  # followers copy a batch or two at a time
    converts: bool  # quorum messages take the wire format of production
    slow_disks: tuple[
        tuple[int, int], ...
    ]  # nodes whose disks are slow until all faults end, and the longest sync, in ms
    real_files: bool  # data directories are real ones; no disk fails in such a run
    upkeep: Upkeep | None  # None: as in production, so never within a run
    real_store: bool  # quorum disks are SQLite databases on real files; none of them fails
    older_releases: tuple[int, ...]  # nodes that begin with a release which lacks the newest feature level
    faults: tuple[Fault, ...]

    @property
    def broker_ids(self) -> tuple[int, ...]:
        return tuple(range(FIRST_BROKER, FIRST_BROKER + self.brokers))

    @property
    def node_ids(self) -> tuple[int, ...]:
        return (*range(1, self.voters + self.spares + 1), *self.broker_ids)

    @property
    def wipes(self) -> bool:
        """Return whether a broker loses what was on its disk: then one replica must not be enough to acknowledge."""
        return any(fault.kind in ("wipe", "last disk", "rot", "backup") for fault in self.faults)

    @property
    def rebuilds(self) -> bool:
        """The quorum is rebuilt in it, and with its newest metadata a partition may lose records."""
        return any(fault.kind == cluster_disaster.KIND for fault in self.faults)

    @property
    def forgets_producers_s(self) -> float:
        """After how long a silence."""
        return DAY_MS / 1000 if self.upkeep is None else self.upkeep.producers_ms / 1000

    def only(self, numbers: set[int]) -> ClusterPlan:
        """The same run with these faults alone."""
        return replace(self, faults=tuple(fault for fault in self.faults if fault.number in numbers))


def draw(seed: int) -> ClusterPlan:
    """The plan of a seed."""
    random = Random(f"cluster {seed}")
    brokers = random.choice((1, 2, 3, 3, 3, 3, 4, 5))
    wipes = brokers >= 2 and random.random() < 0.2
    plan = ClusterPlan(
        seed=seed,
        voters=random.choice((1, 1, 3, 3, 3)),
        spares=0,
        brokers=brokers,
        directories=random.choice((1, 1, 2)),
        topics=_topics(random, brokers, wipes),
        chaos_s=random.uniform(2.0, 6.0),
        gap_s=random.choice((0.05, 0.1, 0.25)),
        lag_max_bytes=random.choice((-1, -1, -1, 400)),
        snapshots=random.random() < 0.3,
        small_fetches=random.random() < 0.3,
        converts=Random(f"cluster converts {seed}").random() < 0.3,
        slow_disks=(),
        real_files=False,
        upkeep=None,
        real_store=False,
        older_releases=(),
        faults=(),
    )
    count = random.choice((0, 2, 5, 10, 20))
    possible = [kind for kind in MIXED if kind not in SCRIPTS]
    kinds = [kind for kind in possible if random.random() < 0.35] or [random.choice(possible)]
    drawn = [_draw_fault(random, plan, random.choice(kinds)) for _ in range(count)]
    if wipes:
        drawn.append(_draw_fault(random, plan, "wipe"))  # one: more than a minority of the replicas nobody survives
    # These are long, and want no disturbance.
    if brokers >= 3 and random.random() < 0.03:
        drawn, plan = [Fault(0, "deaf", 0.2, DEAF_S, (LEADER,), 0.0)], replace(plan, chaos_s=DEAF_S + 1)
    elif brokers >= 3 and random.random() < 0.04:
        drawn, plan = [Fault(0, "swap", 0.3, 1.0, (LEADER,), 0.0)], replace(plan, chaos_s=SWAP_S)
    elif wipes and random.random() < 0.3:
        drawn, plan = [Fault(0, "last disk", 0.3, 2.5, (LEADER,), 0.0)], replace(plan, chaos_s=LAST_S)
    drawn.sort(key=lambda fault: fault.at_s)
    plan = replace(plan, faults=tuple(replace(fault, number=number) for number, fault in enumerate(drawn)))
    plan = _with_conditions(Random(f"cluster conditions {seed}"), plan)
    plan = _with_upkeep(Random(f"cluster upkeep {seed}"), plan)
    plan = _with_usurper(Random(f"cluster usurp {seed}"), plan)
    plan = _with_real_files(Random(f"cluster files {seed}"), plan)
    faults = with_all_links(Random(f"cluster all links {seed}"), plan.faults, plan.chaos_s)
    older, more = cluster_releases.drawn(Random(f"cluster releases {seed}"), plan)
    plan = replace(plan, older_releases=older, faults=with_more(faults, more))
    spares, changes = cluster_voters.drawn(Random(f"cluster voters {seed}"), plan)
    plan = replace(plan, spares=spares, faults=with_more(plan.faults, changes))
    if Random(f"cluster real store {seed}").random() < REAL_STORE_SHARE:
        plan = replace(plan, real_store=True, faults=without(plan.faults, ("quorum disk",)))
    plan = cluster_disaster.drawn(Random(f"cluster disaster {seed}"), plan, (*SCRIPTS, *cluster_voters.KINDS))
    plan = _with_caching(Random(f"cluster caching {seed}"), plan)
    return _with_bad_disk(Random(f"cluster bad disk {seed}"), plan)


def _with_caching(random: Random, plan: ClusterPlan) -> ClusterPlan:
    """In some runs, some topics have write.caching.  Such a run has more crashes than others."""
    if random.random() >= 0.15 or not _is_plain(plan):
        return plan
    topics = [replace(one, caching=random.random() < 0.7) for one in plan.topics]
    topics[0] = replace(topics[0], caching=True)
    kinds = ("power", "power", "power all", "kill", "bounce", "restart")
    crashes = [_draw_fault(random, plan, random.choice(kinds)) for _ in range(random.choice((1, 2, 4)))]
    return replace(plan, faults=with_more(plan.faults, crashes), topics=tuple(topics))


def _with_bad_disk(random: Random, plan: ClusterPlan) -> ClusterPlan:
    """In some runs, bytes on the disks of one broker change, or those disks become what they were some time ago.

    All topics then need two replicas for an acknowledgement, so that another broker has what is lost.
    """
    chance = random.random()
    if chance >= 0.27 or plan.brokers < 2 or not _is_plain(plan) or any(topic.caching for topic in plan.topics):
        return plan
    broker = random.choice(plan.broker_ids)
    kind, count = ("rot", random.choice((1, 2, 3))) if chance < 0.14 else ("backup", 1)
    drawn = [replace(_draw_fault(random, plan, kind), nodes=(broker,)) for _ in range(count)]
    kept = [one for one in plan.topics if one.factor > 1 and not one.unclean]
    topics = tuple(replace(one, min_isr=2) for one in kept)
    return replace(plan, faults=with_more(plan.faults, drawn), topics=topics)


def _is_plain(plan: ClusterPlan) -> bool:
    """Return whether nothing else was drawn that decides what may be lost, and disks are simulated."""
    return not plan.real_files and not plan.rebuilds and not any(fault.kind in SCRIPTS for fault in plan.faults)


def _with_real_files(random: Random, plan: ClusterPlan) -> ClusterPlan:
    """Now and then; such a run has no faults of disks, and a power failure loses nothing."""
    if random.random() >= 0.08 or plan.wipes:
        return plan
    harmless = (fault for fault in plan.faults if fault.kind not in DISK_FAULTS or fault.kind in ("usurp", "slow disk"))
    faults = tuple(replace(fault, number=number) for number, fault in enumerate(harmless))
    return replace(plan, real_files=True, faults=faults)


def _with_usurper(random: Random, plan: ClusterPlan) -> ClusterPlan:
    """Some runs with a topic that allows unclean elections are about one, with few other faults."""
    if plan.brokers < 2 or not any(topic.unclean for topic in plan.topics) or random.random() >= 0.3:
        return plan
    script = Fault(0, "usurp", 0.5, random.uniform(0.2, 1.5), (), random.random())
    others = [fault for fault in plan.faults if fault.kind not in SCRIPTS][: random.choice((0, 0, 2))]
    faults = tuple(replace(fault, number=number) for number, fault in enumerate((script, *others)))
    return replace(plan, chaos_s=USURP_S, faults=tuple(sorted(faults, key=lambda fault: fault.at_s)))


def _with_conditions(random: Random, plan: ClusterPlan) -> ClusterPlan:
    """What holds for a whole run: compressed batches, many partitions, disks that are slow until all faults end."""
    topics = tuple(replace(one, codec=random.choice((Codec.NONE, Codec.NONE, Codec.GZIP))) for one in plan.topics)
    if random.random() < 0.1 and not any(fault.kind in SCRIPTS for fault in plan.faults):
        topics = (replace(topics[0], partitions=random.randint(5, MANY_PARTITIONS)), *topics[1:])
    slow: tuple[tuple[int, int], ...] = ()
    if random.random() < 0.15:
        longest_ms = random.choice((20, 60, 150))
        slow = tuple((node, longest_ms) for node in plan.node_ids if random.random() < 0.6)
    return replace(plan, topics=topics, slow_disks=slow)


def _with_upkeep(random: Random, plan: ClusterPlan) -> ClusterPlan:
    """Most runs keep their logs, and most of those delete from some topics what is old or too much."""
    if random.random() < 0.3:
        return plan
    upkeep = Upkeep(
        interval_s=random.choice((0.1, 0.3, 0.3, 1.0)),
        segment_bytes=random.choice((200, 400, 1000, 1 << 20)),
        segment_ms=random.choice((150, 150, 500, DAY_MS)),
        checkpoint_bytes=random.choice((1, 300, 2000)),
        index_bytes=random.choice((1, 150, 4096)),
        strays_ms=random.choice((100, 1000, DAY_MS)),
        producers_ms=random.choice((1500, DAY_MS, DAY_MS)),
    )
    topics = tuple(_with_retention(random, topic) if random.random() < 0.7 else topic for topic in plan.topics)
    return replace(plan, upkeep=upkeep, topics=topics)


def _with_retention(random: Random, topic: TopicPlan) -> TopicPlan:
    by = random.choice(("age", "size", "both"))
    return replace(
        topic,
        retention_ms=-1 if by == "size" else random.choice((100, 400, 1000, 3000)),
        retention_bytes=-1 if by == "age" else random.choice((0, 300, 1000)),
    )


def _topics(random: Random, brokers: int, wipes: bool) -> tuple[TopicPlan, ...]:
    factor = min(3, brokers)
    least = min(2, factor)
    if wipes:
        return (TopicPlan("safe", random.choice((1, 2)), factor, least),)
    topics = [TopicPlan("safe", random.choice((1, 1, 2)), factor, random.choice((1, least, least)))]
    if random.random() < 0.3:
        topics.append(TopicPlan("pair", 1, min(2, brokers), 1))
    if random.random() < 0.25:
        topics.append(TopicPlan("loose", 1, factor, random.choice((1, least)), unclean=True))
    if random.random() < 0.4:
        topics.append(TopicPlan("passing", random.choice((1, 2)), random.randint(1, factor), 1, passing=True))
    return tuple(topics)


def _draw_fault(random: Random, plan: ClusterPlan, kind: str) -> Fault:
    ids = plan.node_ids
    at_s = random.uniform(0.2, plan.chaos_s)
    length_s = random.choice((random.uniform(0.02, 0.3), random.uniform(0.3, 2.0), random.uniform(1.5, 4.0)))
    nodes: tuple[int, ...] = (random.choice((CONTROLLER, LEADER, LEADER, FOLLOWER, random.choice(ids))),)
    amount = random.random()
    match kind:
        case "slow":
            nodes, amount = (), random.choice((20, 100, 300))
        case "loss":
            nodes, amount = (), random.choice((0.02, 0.1, 0.3))
        case "cut" | "one way":
            nodes = tuple(random.sample((CONTROLLER, LEADER, FOLLOWER, *ids), 2))
        case "split":
            nodes = tuple(random.sample((CONTROLLER, LEADER, *ids), random.randint(1, max(1, len(ids) // 2))))
        case "flap":
            amount = random.uniform(0.02, 1.0)
        case "power all" | "restart all":
            nodes = random.choice((ids, plan.broker_ids))
        case "skew":
            amount = random.choice((0.5, 0.8, 1.25, 2.0))
        case "jump":
            nodes, amount = (), random.choice((-86_400.0, -30.0, 30.0, 86_400.0))
        case "zombie":
            nodes = (random.choice((LEADER, LEADER, CONTROLLER)),)
        case "bounce":
            nodes, length_s = (LEADER,), random.uniform(0.5, 2.5)
        case "slow disk":
            amount = random.choice((20, 200, 1000))
        case "fsync fails" | "disk hangs" | "disk full" | "wipe":
            nodes = (random.choice((LEADER, FOLLOWER, *plan.broker_ids)),)
        case "unregister":
            nodes = (random.choice(plan.broker_ids),)
    return Fault(0, kind, at_s, length_s, nodes, amount)
