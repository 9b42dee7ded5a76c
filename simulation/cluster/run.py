"""Plays a plan on a cluster: nodes and clients run, faults begin and end, then all invariants are checked."""

from __future__ import annotations

from functools import partial

from simulation.cluster.aftermath import Aftermath, not_ready
from simulation.cluster.clients import Clients
from simulation.cluster.faults import ClusterFaults
from simulation.cluster.moves import in_pieces
from simulation.cluster.operator import Operator
from simulation.cluster.plan import ClusterPlan
from simulation.cluster.releases import Releases
from simulation.cluster.world import READY_S, ClusterResult, ClusterWorld
from simulation.kernel.garbage import collected_afterwards
from simulation.kernel.violation import Violation


def play(plan: ClusterPlan, traced: bool = False) -> ClusterResult:
    """Run one plan.  The result is a function of the plan and the code."""
    with collected_afterwards():
        return play_in(ClusterWorld(plan, traced))


def play_in(world: ClusterWorld) -> ClusterResult:
    """Run the plan of a new world."""
    releases = Releases(world, world.plan.older_releases)
    with releases.in_force(), in_pieces(world.plan):
        return world.play(partial(attack, releases=releases))


async def attack(world: ClusterWorld, releases: Releases) -> None:
    """Begin and end the faults of the plan, and check that the cluster recovers."""
    for node_id in sorted(world.hosts):
        world.bring_up(node_id)
    await world.wait(lambda: not not_ready(world), "all brokers are ready", READY_S, lambda: not_ready(world))
    injector = ClusterFaults(world, releases)
    clients = Clients(world)
    aftermath = Aftermath(world, clients, releases)
    await aftermath.create_topics()
    clients.start()
    operator = Operator(world)
    operator.start()
    await injector.inject()
    await injector.heal()
    if not await injector.voters.is_majority_left():
        world.watch.seen["majority of the voters lost"] += 1
        return
    await injector.voters.settle()
    await aftermath.check()
    if unsettled := injector.voters.unsettled():
        raise Violation(f"I11: {unsettled}")
