"""Plays a plan on a cluster: nodes and clients run, faults begin and end, then every promise is checked."""

from __future__ import annotations

from simulation.cluster.aftermath import Aftermath, not_ready
from simulation.cluster.faults import ClusterHavoc
from simulation.cluster.operator import Operator
from simulation.cluster.plan import ClusterPlan
from simulation.cluster.world import READY_S, ClusterResult, ClusterWorld
from simulation.kernel.violation import Violation


def play(plan: ClusterPlan, traced: bool = False) -> ClusterResult:
    """Run one plan.  The result is a function of the plan and the code."""
    return ClusterWorld(plan, traced).play(attack)


async def attack(world: ClusterWorld) -> None:
    """Let the faults of the plan happen, end them, and check what must come then."""
    for node_id in sorted(world.hosts):
        world.bring_up(node_id)
    await world.wait(lambda: not not_ready(world), "all brokers are ready", READY_S, lambda: not_ready(world))
    havoc = ClusterHavoc(world)
    aftermath = Aftermath(world)
    await aftermath.create_topics()
    world.clients.start()
    operator = Operator(world)
    operator.start()
    await havoc.rage()
    await havoc.heal()
    if not havoc.voters.is_majority_left():
        world.watch.seen["majority of the voters lost"] += 1
        return
    await havoc.voters.settle()
    await aftermath.follow()
    if unsettled := havoc.voters.unsettled():
        raise Violation(f"I11: {unsettled}")
