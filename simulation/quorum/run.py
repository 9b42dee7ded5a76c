"""Plays a plan on a quorum: nodes and clients run, faults begin and end, then the quorum must recover."""

from __future__ import annotations

from simulation.kernel.garbage import collected_afterwards
from simulation.quorum.aftermath import Aftermath
from simulation.quorum.disaster import Disaster
from simulation.quorum.nemesis import Nemesis
from simulation.quorum.plan import Plan
from simulation.quorum.world import QuorumWorld, Result


def play(plan: Plan, traced: bool = False) -> Result:
    """Run one plan.  The result is a function of the plan and the code."""
    with collected_afterwards():
        return QuorumWorld(plan, traced).play(attack)


async def attack(world: QuorumWorld) -> None:
    """Begin and end the faults of the plan, and check that the quorum recovers."""
    for node_id in sorted(world.hosts):
        world.start(node_id)
    stop = world.start_clients()
    nemesis = Nemesis(world)
    await nemesis.inject()
    await nemesis.heal()
    if not world.majority_is_left():
        world.watch.seen["majority lost"] += 1
        stop.set()
        return
    await Aftermath(world).check(stop)
    if world.plan.disaster:
        await Disaster(world).run()
