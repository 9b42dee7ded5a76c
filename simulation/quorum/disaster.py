"""The worst day: a majority of the voters' disks is lost, and the quorum is rebuilt from one that is left.

Theory of operation.  It strikes a cluster that has just been found whole, with writes on its way, and kills every
process at once.  So few voters keep their disks that they are no quorum; observers keep theirs or not.  Then the
operator does what docs/recovery.md says: takes the greatest log that is left, starts its node as the only voter of a
new generation, gives empty disks to who lost theirs, and adds the voters again.  A voter of before that kept its disk
is refused, and only then given an empty one; an observer of before begins anew by itself.

Promises: of what was committed, everything that the chosen disk held is still there; old disks are refused; nothing of
the new generation breaks the promises of every quorum, which a new watch sees to; and clients that begin anew find a
register that behaves.  What only lost disks held is lost, and is counted.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from functools import partial
from random import Random

from metadata.records import ConfigScope
from quorum.core.events import AddVoter
from quorum.core.types import Batch
from quorumlog.runtime.clock import Sources
from quorumlog_server.recover import Found, choose, image_of, plan_rebuild
from simulation.kernel.store import SimulatedStore
from simulation.kernel.violation import Violation
from simulation.quorum.aftermath import SETTLE_S, Aftermath
from simulation.quorum.linearizability import Operation
from simulation.quorum.world import KEYS, Host, QuorumWorld

BURST = 10
REFUSED_S = 30.0
ASK_S = 0.2
ORDER_MS = 5000


class Disaster:
    def __init__(self, world: QuorumWorld) -> None:
        self.world = world
        self.random = Random(f"disaster {world.plan.seed}")

    async def strike(self) -> None:
        """
        Raises:
            Violation: something is not as it must be after a disaster.
        """
        world = self.world
        leader = world.leader()
        assert leader is not None, "the aftermath has seen one"
        assert leader.node is not None, "an active controller has a node"
        voters = [world.hosts[node_id] for node_id in leader.node.voter_ids]
        if len(world.hosts) == 1:
            return  # nothing would be left
        world.note("DISASTER")
        world.watch.seen["disaster"] += 1
        world.burst(leader, BURST)
        await asyncio.sleep(self.random.uniform(0, 0.01))
        for node_id in world.hosts:
            world.kill(node_id)
        kept = self._lose_disks(voters)
        best = await self._rebuild(kept)
        for host in world.hosts.values():
            if host is not best:
                host.config = replace(host.config, initial_voters=(), bootstrap=(best.address,))
        await self._live_again(best, voters, [host for host in kept if host is not best])

    def _lose_disks(self, voters: list[Host]) -> list[Host]:
        """Who keeps its disk: fewer voters than a quorum, and at least one disk in all."""
        world = self.world
        observers = [host for host in world.hosts.values() if host not in voters]
        kept = self.random.sample(voters, self.random.randint(0 if observers else 1, len(voters) // 2))
        kept += [host for host in observers if self.random.random() < 0.5]
        if not any(host.disk.log_end > 0 for host in kept):
            kept = [self.random.choice([host for host in world.hosts.values() if host.disk.log_end > 0])]
        for host in world.hosts.values():
            if host not in kept:
                host.disk = world.new_disk(host.node_id)
        return kept

    async def _rebuild(self, kept: list[Host]) -> Host:
        """As `quorum-node recover` does, offline, on the disks that are left."""
        world, sources = self.world, Sources.seeded(self.random.getrandbits(64), lambda: 0)
        stores = {host.name: SimulatedStore(host.disk) for host in kept}
        found = [
            Found(host.name, stores[host.name], await stores[host.name].open(host.node_id, None))
            for host in kept
            if host.disk.log_end > 0
        ]
        best = choose(found)
        host = next(one for one in kept if one.name == best.where)
        image, stored = await image_of(best, sources)
        plan = plan_rebuild(stored, best.end, image, host.address, sources)
        before, end = list(host.disk.batches), host.disk.log_end
        await best.store.write([plan.write])
        host.disk.directory_id = plan.key.directory_id
        for store in stores.values():
            await store.close()
        self._nothing_else_is_lost(host, before, end)
        disks = [(one.node_id, one.disk) for one in world.hosts.values()]
        world.watch = world.watch.after_a_disaster(disks, host.disk, plan.generation)
        values = image.config(ConfigScope.CLUSTER, "")
        began = ended = world.loop.true_time()
        world.history = [Operation(key, "write", began, ended, value=values.get(key)) for key in KEYS]
        world.unknown = []
        world.note(f"REBUILT from {host.name} at {end}: generation {plan.generation}")
        return host

    def _nothing_else_is_lost(self, host: Host, before: list[Batch], end: int) -> None:
        watch = self.world.watch
        if host.disk.batches[: len(before)] != before:
            raise Violation(f"I8: the rebuilding changes the log of {host.name}")
        held = {batch.base_offset: batch for batch in before}
        for batch in watch.committed.values():
            if batch.end_offset > end:
                watch.seen["batch lost in a disaster"] += 1
            elif batch.base_offset >= host.disk.log_start and held.get(batch.base_offset) != batch:
                raise Violation(f"I8: {host.name}, the best that is left, does not hold {batch}")

    async def _live_again(self, best: Host, voters: list[Host], old: list[Host]) -> None:
        world = self.world
        for node_id in world.hosts:
            world.start(node_id)
        for host in old:
            await world.until(partial(_is_refused, host), f"the old disk of {host.name} is refused", REFUSED_S)
            if host.process is None:
                host.disk = world.new_disk(host.node_id)
                world.start(host.node_id)
        stop = world.start_clients()
        for host in voters:
            if host is not best:
                await self._add(host)
        await Aftermath(world).follow(stop)

    async def _add(self, host: Host) -> None:
        """Ask whoever leads, until it is a voter."""
        world = self.world

        async def asked(leader: Host) -> None:
            if leader.node is not None:
                change = AddVoter(host.node_id, host.address, None)
                await leader.node.change_voters(change, dry_run=False, timeout_ms=ORDER_MS)

        def is_voter() -> bool:
            leader = world.leader()
            return leader is not None and leader.node is not None and host.node_id in leader.node.voter_ids

        end = world.loop.true_time() + SETTLE_S
        while not is_voter():
            leader = world.leader()
            if leader is not None and leader.process is not None:
                await asyncio.wait({leader.process.start(asked(leader))}, timeout=ORDER_MS / 1000)
            await asyncio.sleep(ASK_S)
            if world.loop.true_time() > end:
                raise Violation(f"{host.name} is not a voter of the rebuilt quorum within {SETTLE_S} s")


def _is_refused(host: Host) -> bool:
    return host.outlived
