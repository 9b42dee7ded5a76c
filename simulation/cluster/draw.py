"""Draws the plan of a seed."""

from __future__ import annotations

from dataclasses import replace
from random import Random

from quorumlog.wire.record_batch import Codec
from simulation.cluster import disaster, late_batches, moves, record_deletions, releases, rests, voters
from simulation.cluster.compaction import Compaction
from simulation.cluster.plan import (
    CONTROLLER,
    DAY_MS,
    FOLLOWER,
    LEADER,
    RECOVER,
    WRITE_CACHING,
    ClusterPlan,
    TopicPlan,
    Upkeep,
)
from simulation.kernel.faults import ALL_LINKS, REAL_STORE_SHARE, Fault, with_all_links, with_more, without_kinds

SEQUENCES = ("wipe", "last disk", "lost acceptance", "leader returns", "unclean takeover", "bit rot", "backup")
"""Kinds that are drawn separately from the others.  A run has faults of at most one of these kinds."""
LOST_ACCEPTANCE_S = 10.0
LEADER_RETURNS_S = 9.0
LAST_S = 9.0
TAKEOVER_S = 13.0
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
    "lost acceptance",
    "leader returns",
)
DISK_FAULTS = (
    "fsync fails",
    "slow disk",
    "disk hangs",
    "disk full",
    "wipe",
    "last disk",
    "unclean takeover",
    "quorum disk",
    "bit rot",
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
"""Faults and requests that do not depend on another part of the plan, and all SEQUENCES."""
IN_SWAP = "crash in a swap"
KINDS = (
    *MIXED,
    IN_SWAP,
    WRITE_CACHING,
    ALL_LINKS,
    record_deletions.DELETE_RECORDS,
    late_batches.LATE_BATCH,
    *moves.KINDS,
    *releases.KINDS,
    *voters.KINDS,
    RECOVER,
)


def draw(seed: int) -> ClusterPlan:
    """Return the plan of a seed."""
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
    possible = [kind for kind in MIXED if kind not in SEQUENCES]
    kinds = [kind for kind in possible if random.random() < 0.35] or [random.choice(possible)]
    drawn = [_draw_fault(random, plan, random.choice(kinds)) for _ in range(count)]
    if wipes:
        drawn.append(_draw_fault(random, plan, "wipe"))  # only one, since a topic does not survive the loss of more
    # The following faults are long, and other faults would interfere with them.
    if brokers >= 3 and random.random() < 0.03:
        drawn, plan = (
            [Fault(0, "lost acceptance", 0.2, LOST_ACCEPTANCE_S, (LEADER,), 0.0)],
            replace(plan, chaos_s=LOST_ACCEPTANCE_S + 1),
        )
    elif brokers >= 3 and random.random() < 0.04:
        drawn, plan = [Fault(0, "leader returns", 0.3, 1.0, (LEADER,), 0.0)], replace(plan, chaos_s=LEADER_RETURNS_S)
    elif wipes and random.random() < 0.3:
        drawn, plan = [Fault(0, "last disk", 0.3, 2.5, (LEADER,), 0.0)], replace(plan, chaos_s=LAST_S)
    drawn.sort(key=lambda fault: fault.at_s)
    plan = replace(plan, faults=tuple(replace(fault, number=number) for number, fault in enumerate(drawn)))
    plan = _with_conditions(Random(f"cluster conditions {seed}"), plan)
    plan = _with_upkeep(Random(f"cluster upkeep {seed}"), plan)
    plan = _with_takeover(Random(f"cluster usurp {seed}"), plan)
    plan = _with_real_files(Random(f"cluster files {seed}"), plan)
    faults = with_all_links(Random(f"cluster all links {seed}"), plan.faults, plan.chaos_s)
    older, more = releases.drawn(Random(f"cluster releases {seed}"), plan)
    plan = replace(plan, older_releases=older, faults=with_more(faults, more))
    spares, changes = voters.drawn(Random(f"cluster voters {seed}"), plan)
    plan = replace(plan, spares=spares, faults=with_more(plan.faults, changes))
    if Random(f"cluster real store {seed}").random() < REAL_STORE_SHARE:
        plan = replace(plan, real_store=True, faults=without_kinds(plan.faults, ("quorum disk",)))
    plan = disaster.drawn(Random(f"cluster disaster {seed}"), plan, (*SEQUENCES, *voters.KINDS))
    plan = _with_caching(Random(f"cluster caching {seed}"), plan)
    plan = _with_bad_disk(Random(f"cluster bad disk {seed}"), plan)
    plan = _with_group(Random(f"cluster group {seed}"), plan)
    plan = _with_compaction(Random(f"cluster compaction {seed}"), plan)
    plan = _with_transactions(Random(f"cluster transactions {seed}"), plan)
    plan = _with_new_members(Random(f"cluster members {seed}"), plan)
    plan = _with_queue(Random(f"cluster queue {seed}"), plan)
    plan = _with_scopes(Random(f"cluster scopes {seed}"), plan)
    plan = _with_letters(Random(f"cluster letters {seed}"), plan)
    plan = rests.drawn(Random(f"cluster rest {seed}"), plan)
    plan = _with_recompression(Random(f"cluster recompression {seed}"), plan)
    plan = record_deletions.drawn(Random(f"cluster record deletions {seed}"), plan)
    plan = moves.drawn(Random(f"cluster places {seed}"), plan)
    plan = _with_pipelines(Random(f"cluster pipelines {seed}"), plan)
    return late_batches.drawn(Random(f"cluster late batches {seed}"), plan)


def _with_compaction(random: Random, plan: ClusterPlan) -> ClusterPlan:
    """In some runs with upkeep, compact some topics.  In most of these runs, compact the offsets of groups as well.

    In many of these runs, brokers also crash in the middle of a swap, when a compacted segment replaces others.
    """
    if plan.upkeep is None or random.random() >= 0.5:
        return plan
    chosen = random.randrange(len(plan.topics))
    topics = tuple(
        replace(topic, compaction=_compaction(random)) if number == chosen or random.random() < 0.5 else topic
        for number, topic in enumerate(plan.topics)
    )
    upkeep = replace(
        plan.upkeep,
        segment_bytes=random.choice((200, 400, 1000)),
        segment_ms=random.choice((150, 150, 500, DAY_MS)),
        cleaner_ms=random.choice((20, 100, 400)),
        map_memory=random.choice((700, 1 << 20)),
    )
    offsets = _compaction(random) if random.random() < 0.7 else plan.offsets
    count = 0 if plan.real_files else random.choice((0, 1, 1, 2, 4))
    crashes = [_draw_fault(random, plan, IN_SWAP) for _ in range(count)]
    is_script = any(fault.kind in SEQUENCES for fault in plan.faults)
    faults = plan.faults if is_script else with_more(plan.faults, crashes)
    return replace(plan, topics=topics, upkeep=upkeep, offsets=replace(offsets, deletes=False), faults=faults)


def _compaction(random: Random) -> Compaction:
    return Compaction(
        keys=random.choice((1, 3, 6, 20)),
        deletes=random.random() < 0.25,
        delete_retention_ms=random.choice((0, 300, 1000, DAY_MS)),
        min_lag_ms=random.choice((0, 0, 0, 400)),
        max_lag_ms=random.choice((None, None, 500)),
        dirty_percent=random.choice((0, 10, 50)),
    )


def _has_clients(random: Random, plan: ClusterPlan, share: float) -> bool:
    """Draw whether a run has clients of one more kind.

    share: the probability, in a run whose first topic keeps all records and whose quorum is not rebuilt.  In other runs
    there are no such clients, because their topics are only as safe as the first topic.
    """
    return random.random() < share and not plan.rebuilds and plan.topics[0].keeps_all


def _with_group(random: Random, plan: ClusterPlan) -> ClusterPlan:
    """In some runs, add a consumer group.  Its coordinator's topic has the factor and min ISR of the first topic."""
    if not _has_clients(random, plan, 0.35):
        return plan
    return replace(plan, group_members=random.choice((1, 2, 2, 3)), group_partitions=random.choice((1, 2, 4)))


def _with_transactions(random: Random, plan: ClusterPlan) -> ClusterPlan:
    """In some runs, add transactional producers.  Their topics have the factor and min ISR of the first topic."""
    if not _has_clients(random, plan, 0.25):
        return plan
    ids = tuple([random.choice((1, 2)) for _ in range(random.choice((1, 2, 2)))])
    return replace(plan, transactional=ids, ledger_partitions=random.choice((2, 3)))


def _with_new_members(random: Random, plan: ClusterPlan) -> ClusterPlan:
    """In some runs, add a group of the newer protocol.  Its topics have the factor and min ISR of the first topic."""
    if not _has_clients(random, plan, 0.2):
        return plan
    return replace(plan, new_members=random.choice((1, 2, 2, 3)), new_member_partitions=random.choice((1, 2, 4)))


def _with_queue(random: Random, plan: ClusterPlan) -> ClusterPlan:
    """In some runs, add a queue and its share group.  Their topics have the factor and min ISR of the first topic."""
    if not _has_clients(random, plan, 0.2):
        return plan
    return replace(plan, workers=random.choice((1, 2, 2, 3)), queue_partitions=random.choice((1, 2, 3)))


def _with_scopes(random: Random, plan: ClusterPlan) -> ClusterPlan:
    """In some runs, add transaction scopes.  Their topics have the factor and min ISR of the first topic."""
    if not _has_clients(random, plan, 0.25):
        return plan
    drivers = tuple([random.choice((1, 2, 2)) for _ in range(random.choice((1, 1, 2)))])
    executors, partitions = random.choice((1, 2, 3)), random.choice((2, 3))
    return replace(plan, drivers=drivers, executors=executors, results_partitions=partitions)


def _with_letters(random: Random, plan: ClusterPlan) -> ClusterPlan:
    """In half of the runs with a queue, give its share group a dead-letter topic.

    The configs of groups need the newest feature level, which older releases do not have.
    """
    if not plan.workers or plan.older_releases or random.random() < 0.5:
        return plan
    return replace(plan, letter_partitions=random.choice((1, 2)), letter_copies=random.random() < 0.5)


def _with_recompression(random: Random, plan: ClusterPlan) -> ClusterPlan:
    """In some runs, leaders recompress the batches of some topics."""
    if random.random() >= 0.1:
        return plan
    codecs = ("producer", "uncompressed", "gzip", "snappy", "lz4", "zstd")
    return replace(plan, topics=tuple([replace(one, compression=random.choice(codecs)) for one in plan.topics]))


def _with_pipelines(random: Random, plan: ClusterPlan) -> ClusterPlan:
    """In half of the runs, add producers with several batches in flight.

    In some of these runs, brokers refuse a batch while a few other batches wait for replicas.
    """
    if random.random() < 0.5:
        return plan
    return replace(plan, in_flight=random.choice((1, 2, 3, 5, 5, 5)), parked_produces=random.choice((0, 0, 2, 4)))


def _with_caching(random: Random, plan: ClusterPlan) -> ClusterPlan:
    """In some runs, some topics have write.caching, which may be switched off.  Such a run has more crashes."""
    if random.random() >= 0.15 or not _is_plain(plan):
        return plan
    topics = [replace(one, caching=random.random() < 0.7) for one in plan.topics]
    topics[0] = replace(topics[0], caching=True)
    kinds = ("power", "power", "power all", "kill", "bounce", "restart")
    more = [_draw_fault(random, plan, random.choice(kinds)) for _ in range(random.choice((1, 2, 4)))]
    if random.random() < 0.5:
        more += [_draw_fault(random, plan, WRITE_CACHING) for _ in range(random.choice((1, 2, 4)))]
    return replace(plan, faults=with_more(plan.faults, more), topics=tuple(topics))


def _with_bad_disk(random: Random, plan: ClusterPlan) -> ClusterPlan:
    """In some runs, bytes on the disks of one broker change, or these disks are restored from a backup.

    All topics then need two replicas for an acknowledgement, so that another broker has the lost records.
    """
    chance = random.random()
    if chance >= 0.27 or plan.brokers < 2 or not _is_plain(plan) or any(topic.caching for topic in plan.topics):
        return plan
    broker = random.choice(plan.broker_ids)
    kind, count = ("bit rot", random.choice((1, 2, 3))) if chance < 0.14 else ("backup", 1)
    drawn = [replace(_draw_fault(random, plan, kind), nodes=(broker,)) for _ in range(count)]
    kept = [one for one in plan.topics if one.factor > 1 and not one.unclean]
    topics = tuple(replace(one, min_isr=2) for one in kept)
    return replace(plan, faults=with_more(plan.faults, drawn), topics=topics)


def _is_plain(plan: ClusterPlan) -> bool:
    """Return whether disks are simulated and no other fault affects which records may be lost."""
    return not plan.real_files and not plan.rebuilds and not any(fault.kind in SEQUENCES for fault in plan.faults)


def _with_real_files(random: Random, plan: ClusterPlan) -> ClusterPlan:
    """Use real files in some runs.  Disks do not fail in such a run, and a power failure loses no data."""
    if random.random() >= 0.08 or plan.wipes:
        return plan
    harmless = (
        fault
        for fault in plan.faults
        if fault.kind not in DISK_FAULTS or fault.kind in ("unclean takeover", "slow disk")
    )
    faults = tuple(replace(fault, number=number) for number, fault in enumerate(harmless))
    return replace(plan, real_files=True, faults=faults)


def _with_takeover(random: Random, plan: ClusterPlan) -> ClusterPlan:
    """Add an unclean election to some runs with a topic that allows it, and keep few other faults."""
    if plan.brokers < 2 or not any(topic.unclean for topic in plan.topics) or random.random() >= 0.3:
        return plan
    script = Fault(0, "unclean takeover", 0.5, random.uniform(0.2, 1.5), (), random.random())
    others = [fault for fault in plan.faults if fault.kind not in SEQUENCES][: random.choice((0, 0, 2))]
    faults = tuple(replace(fault, number=number) for number, fault in enumerate((script, *others)))
    return replace(plan, chaos_s=TAKEOVER_S, faults=tuple(sorted(faults, key=lambda fault: fault.at_s)))


def _with_conditions(random: Random, plan: ClusterPlan) -> ClusterPlan:
    """Draw conditions of a whole run: compressed batches, many partitions, disks that are slow until all faults end."""
    topics = tuple(replace(one, codec=random.choice((Codec.NONE, Codec.NONE, Codec.GZIP))) for one in plan.topics)
    if random.random() < 0.1 and not any(fault.kind in SEQUENCES for fault in plan.faults):
        topics = (replace(topics[0], partitions=random.randint(5, MANY_PARTITIONS)), *topics[1:])
    slow: tuple[tuple[int, int], ...] = ()
    if random.random() < 0.15:
        longest_ms = random.choice((20, 60, 150))
        slow = tuple((node, longest_ms) for node in plan.node_ids if random.random() < 0.6)
    return replace(plan, topics=topics, slow_disks=slow)


def _with_upkeep(random: Random, plan: ClusterPlan) -> ClusterPlan:
    """In most runs, maintain the logs often.  Most of these runs have topics with retention by age or size."""
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
