"""The plan of a run of the quorum: its conditions and faults, drawn in advance from the seed.

A plan is an immutable value with an explicit list of faults.  A run may use a part of that list.  In this way a failing
seed is shrunk, and a shrunk seed is replayed (`--seed N --faults 3,7`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from random import Random

from simulation.kernel.faults import ALL_LINKS, REAL_STORE_SHARE, Fault, with_all_links, without_kinds

FIRST_OBSERVER = 11

LINK_FAULTS = ("slow", "loss", "duplicate", "late", "cut", "one way", "isolate", "split", "no replies", "flap")
NODE_FAULTS = ("kill", "kill all", "restart", "pause", "pause all", "skew", "burst", "zombie", "move")
DISK_FAULTS = ("torn write", "fsync fails", "slow disk", "disk hangs", "disk full", "wipe")
ORDERS = (
    "transfer",
    "handovers",
    "prefer",
    "add voter",
    "remove voter",
    "replace voter",
    "target",
    "cancel target",
    "grow and shrink",
)
"""Requests of operators while faults occur."""
STORE_FAULTS = ("fsync fails", "disk full")
"""Faults that are not possible with quorum disks on real files."""
SLOW_DISKS_SHARE = 0.2
"""Fraction of the runs in which some disks are slow during the entire run."""
KINDS_SHARES = (0.08, 0.2, 0.4)
"""Fractions of all kinds that one run may use.

A run with few kinds finds mistakes that appear only where two particular kinds interact.
"""
LEADER = 0
"""In `Fault.nodes`: the node that leads when the fault begins."""
KINDS = (*LINK_FAULTS, ALL_LINKS, *NODE_FAULTS, *DISK_FAULTS, *ORDERS)


@dataclass(frozen=True, slots=True)
class Plan:
    """One run.  chaos_s: the time in which faults begin; then all of them end."""

    seed: int
    voters: int
    observers: int
    chaos_s: float
    op_gap_s: float
    quick: bool  # timeouts reduced to a third, so that there are more elections
    small_fetches: bool  # replies hold a few batches, and old batches are read from the disk
    watermark_wait_ms: int  # how long a leader delays a new high watermark
    auto_join: bool  # observers join the voters automatically, and voters leave when they stop
    disaster: bool  # at the end a majority of the voters' disks is lost, and the quorum is rebuilt
    snapshots: bool  # take snapshots often, and keep the log short
    slow_disks: tuple[int, ...]  # nodes whose disks are slow during the entire run
    slow_p99: float  # the 99th percentile of their writes, in fetch timeouts
    slow_p50: float  # their median, in the same unit
    real_store: bool  # quorum disks are SQLite databases on real files, compared with the model; none of them fails
    faults: tuple[Fault, ...]

    @property
    def node_ids(self) -> tuple[int, ...]:
        return (*range(1, self.voters + 1), *range(FIRST_OBSERVER, FIRST_OBSERVER + self.observers))

    def only(self, numbers: set[int]) -> Plan:
        """Return the same run with only these faults."""
        return replace(self, faults=tuple(fault for fault in self.faults if fault.number in numbers))


def draw(seed: int) -> Plan:
    """Return the plan of a seed."""
    random = Random(f"plan {seed}")
    voters = random.choice((1, 2, 3, 3, 3, 3, 4, 5))
    plan = Plan(
        seed=seed,
        voters=voters,
        observers=random.choice((0, 0, 1, 2, 3, 4)),
        chaos_s=random.uniform(3, 9),
        op_gap_s=random.choice((0.04, 0.1, 0.3)),
        quick=random.random() < 0.7,
        small_fetches=random.random() < 0.3,
        snapshots=random.random() < 0.5,
        watermark_wait_ms=0,
        auto_join=random.random() < 0.15,
        disaster=random.random() < 0.15,
        slow_disks=(),
        slow_p99=0.0,
        slow_p50=0.0,
        real_store=False,
        faults=(),
    )
    count = random.choice((0, 3, 8, 15, 30))
    possible = (*LINK_FAULTS, *NODE_FAULTS, *DISK_FAULTS, *ORDERS)
    share = random.choice(KINDS_SHARES)
    kinds = [kind for kind in possible if random.random() < share] or [random.choice(possible)]
    drawn = [_draw_fault(random, plan, random.choice(kinds)) for _ in range(count)]
    drawn.sort(key=lambda fault: fault.at_s)
    wipes = (voters - 1) // 2
    faults: list[Fault] = []
    for fault in drawn:
        if fault.kind == "wipe":
            wipes -= 1
            if wipes < 0:
                continue  # the quorum does not promise to survive the loss of more disks than a minority
        faults.append(replace(fault, number=len(faults)))
    plan = replace(plan, faults=tuple(faults), watermark_wait_ms=random.choice((0, 5, 5, 100)))
    if random.random() < SLOW_DISKS_SHARE:
        plan = _draw_slow_disks(random, plan)
    plan = replace(plan, faults=with_all_links(Random(f"all links {seed}"), plan.faults, plan.chaos_s))
    if plan.disaster or Random(f"real store {seed}").random() >= REAL_STORE_SHARE:
        return plan
    return replace(plan, real_store=True, faults=without_kinds(plan.faults, STORE_FAULTS))


def _draw_slow_disks(random: Random, plan: Plan) -> Plan:
    """Return the plan with slow disks at one voter, at some nodes, or at all nodes.

    Fetches are not small, and snapshots do not shorten the log.  Otherwise a node with a slow disk could never catch
    up.
    """
    ids = plan.node_ids
    chosen = random.choice(((random.randint(1, plan.voters),), random.sample(ids, random.randint(1, len(ids))), ids))
    p99 = random.choice((0.25, 1.0, 1.5))
    slow = replace(plan, slow_disks=tuple(sorted(chosen)), slow_p99=p99, slow_p50=p99 / random.choice((4, 20)))
    return replace(slow, small_fetches=False, snapshots=False)


def _draw_fault(random: Random, plan: Plan, kind: str) -> Fault:
    ids = plan.node_ids
    at_s = random.uniform(0.05 if random.random() < 0.2 else 1.0, plan.chaos_s)
    length_s = random.choice((random.uniform(0.01, 0.3), random.uniform(0.3, 3.0), random.uniform(2.0, 6.0)))
    nodes: tuple[int, ...] = (LEADER if random.random() < 0.4 else random.choice(ids),)
    amount = random.random()
    match kind:
        case "slow":
            nodes, amount = (), random.choice((20, 100, 400))
        case "loss" | "duplicate" | "late":
            nodes, amount = (), random.choice((0.02, 0.1, 0.3))
        case "cut" | "one way":
            nodes = tuple(random.sample(ids, min(2, len(ids))))
        case "split":
            nodes = tuple(random.sample((LEADER, *ids), random.randint(1, max(1, len(ids) // 2))))
        case "flap":
            amount = random.uniform(0.02, 1.0)
        case "kill all" | "pause all":
            nodes = ids
        case "burst":
            nodes, amount = (LEADER,), random.randint(3, 30)
        case "zombie":
            nodes, amount, length_s = (LEADER,), random.choice((0.1, 0.3, 0.5)), random.uniform(1, 6)
        case "skew":
            amount = random.choice((0.5, 0.8, 1.25, 2.0))
        case "slow disk":
            amount = random.choice((20, 200, 1500))
        case "wipe":
            nodes = (random.randint(1, plan.voters),)
        case "target" | "prefer":
            nodes = tuple(sorted(random.sample(ids, random.randint(1, min(5, len(ids))))))
        case "handovers":
            length_s = random.uniform(1, 4)
        case "grow and shrink":
            nodes, length_s = tuple(random.sample(ids, min(5, len(ids)))), random.uniform(3, 8)
    return Fault(0, kind, at_s, length_s, nodes, amount)
