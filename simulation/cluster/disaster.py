"""A majority of the voters is lost permanently while brokers run, and the quorum is rebuilt from a remaining disk.

Theory of operation.  All voters lose power at the same time, and fewer than a majority of their disks remain.  The
operator follows docs/recovery.md: rebuild the quorum from the best remaining directory of a voter or broker, start the
lost voters with empty disks, set the directory of a refused voter aside, and add the voters again.  Running brokers
follow automatically.

The watch knows which losses are permitted.  The metadata may lose all committed batches from the first one that the
chosen disk lacks.  A partition may lose records in one case: a lost metadata change had removed a replica from ISR and
ELR, and the rebuilt metadata still names the replica there.  Such a replica may be elected, as in an unclean election.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from random import Random

from quorum.core.types import Batch
from quorumlog.runtime.clock import Sources
from quorumlog.wire import rpcs
from quorumlog_server.recover import Found, choose, image_of, plan_rebuild
from simulation.cluster.nodes import Host
from simulation.cluster.orders import Orders
from simulation.cluster.plan import RECOVER, ClusterPlan
from simulation.cluster.voters import add_request
from simulation.cluster.world import ClusterWorld
from simulation.kernel.faults import Action, Fault

SHARE = 0.1
LASTS_S = 8.0
"""From the loss of the voters to the end of the faults."""
REFUSED_S = 30.0
ADD_S = 20.0
LAGS_SHARE = 0.7
LAG_S = (0.2, 3.0)
LATENT_S = 0.3
"""Every message of the voters arrives within this time, unless its receiver is stopped."""


def drawn(random: Random, plan: ClusterPlan, excluded: Sequence[str]) -> ClusterPlan:
    """Add a disaster to some runs.  Such a run keeps few other faults, and none of the `excluded` kinds."""
    if random.random() >= SHARE or plan.wipes or plan.real_store or plan.older_releases or plan.spares:
        return plan
    others = [fault for fault in plan.faults if fault.kind not in excluded][: random.choice((0, 2, 5))]
    loss = Fault(0, RECOVER, random.uniform(0.8, 3.0), random.uniform(LATENT_S, 2.0), (), random.random())
    faults = sorted((*others, loss), key=lambda fault: fault.at_s)
    numbered = tuple(replace(fault, number=number) for number, fault in enumerate(faults))
    return replace(plan, chaos_s=max(plan.chaos_s, loss.at_s + LASTS_S), faults=numbered)


class Disaster:
    """The `actions` of a disaster.  A run has at most one."""

    def __init__(self, world: ClusterWorld, orders: Orders) -> None:
        self._world = world
        self._orders = orders
        self._random = Random(f"cluster disaster {world.plan.seed}")
        self.actions: dict[str, Action] = {RECOVER: self._strike}

    async def _strike(self, fault: Fault) -> None:
        world, random = self._world, self._random
        voters = world.voters
        informed = [host for host in world.hosts.values() if self._knows_the_topics(host)]
        count = (len(voters) - 1) // 2 if random.random() < 0.8 else 0
        kept = [host for host in random.sample(voters, count) if host in informed]
        candidates = [host for host in world.brokers if host in informed]
        searched = [] if kept and fault.amount < 0.7 else random.sample(candidates, random.randint(0, len(candidates)))
        left = [*kept, *searched] or candidates
        searched = [host for host in left if host not in kept]
        if not left:
            return
        await self._cut_off(left)
        for host in voters:
            host.down += 1
            world.bring_down(host.config.node_id, power=True)
        world.note(f"DISASTER {', '.join(host.name for host in kept) or 'no voter'} kept")
        for host in voters:
            if host not in kept:
                host.quorum_disk = world.new_quorum_disk()
                world.at_usual_speed(host)
        await asyncio.sleep(fault.length_s)
        for host in searched:
            host.down += 1
            world.bring_down(host.config.node_id)
        best = await self._rebuild(left)
        for host in searched:
            host.down -= 1
            world.bring_up(host.config.node_id)
        await self._start_again(best, voters, kept)

    async def _cut_off(self, left: list[Host]) -> None:
        """In most runs, disconnect these hosts first, so that they miss the last batches that the voters commit."""
        if self._random.random() < LAGS_SHARE:
            world = self._world
            names = {host.name for host in left}
            others = [host.name for host in world.hosts.values() if host.name not in names]
            links = [link for name in names for other in others for link in ((name, other), (other, name))]
            for link in sorted(links):
                world.network.cut(*link)
            await asyncio.sleep(self._random.uniform(*LAG_S))
            for link in sorted(links):
                world.network.heal(*link)

    def _knows_the_topics(self, host: Host) -> bool:
        image = None if host.plane is None else host.plane.replay.image
        lasting = [topic.name for topic in self._world.plan.topics if not topic.passing]
        return image is not None and all(image.topic(name) is not None for name in lasting)

    async def _rebuild(self, left: list[Host]) -> Host:
        """Rebuild the quorum offline, as `quorum-node recover` does, and return the new voter."""
        world, sources = self._world, Sources.seeded(self._random.getrandbits(64), self._world.wall_ms)
        found = []
        for host in left:
            store = host.quorum_disk.store()
            found.append(Found(host.name, store, await store.open(host.config.node_id, None)))
        best = choose(found)
        host = next(one for one in left if one.name == best.where)
        image, stored = await image_of(best, sources)
        plan = plan_rebuild(stored, best.end, image, str(host.config.control_listen), sources)
        disk = host.quorum_disk
        before, start = tuple(disk.batches), disk.log_start
        await best.store.write([plan.write])
        disk.directory_id = plan.key.directory_id
        for one in found:
            await one.store.close()
        world.watch.check(
            tuple(disk.batches[: len(before)]) == before, lambda: f"I8: the recovery changes the log of {host.name}"
        )
        self._record_losses(before, start)
        world.note(f"REBUILT from {host.name} at {best.end}: generation {plan.generation}")
        world.watch.seen[f"rebuilt from a {'broker' if host.disks else 'voter'}"] += 1
        return host

    def _record_losses(self, survivor: tuple[Batch, ...], start: int) -> None:
        world = self._world
        lost_from = world.watch.rebuilt(survivor, start)
        world.generation += 1
        world.promised_offset = min(world.promised_offset, lost_from)
        world.promised_topics &= world.watch.metadata.topic_ids

    async def _start_again(self, best: Host, voters: list[Host], kept: list[Host]) -> None:
        world = self._world
        joins = (best.config.control_listen,)
        for host in voters:
            host.down -= 1
            if host not in kept:
                host.config = replace(host.config, initial_voters=(), bootstrap=joins)
            world.bring_up(host.config.node_id)
        for host in kept:
            if host is best:
                continue
            name = host.name
            refused = f"the old disk of {name} is refused"
            await world.wait(lambda name=name: name in world.refused, refused, REFUSED_S, lambda: "")  # type: ignore[misc]
            host.quorum_disk = world.new_quorum_disk()
            world.at_usual_speed(host)
            host.config = replace(host.config, initial_voters=(), bootstrap=joins)
            world.bring_up(host.config.node_id)
        for host in voters:
            if host is not best:
                await self._orders.ask(rpcs.CHANGE_VOTERS, add_request(host, replace=False), ADD_S, self._random)
