"""The loss of a majority of the voters' disks, and the recovery of the quorum from a remaining disk.

Theory of operation.  The disaster happens in a cluster that has passed all checks, while writes are in progress.  All
processes are killed at the same time.  Fewer than a majority of the voters keep their disks; observers may keep theirs.
Then the operator follows docs/recovery.md: take the greatest remaining log, start its node as the only voter
of a new generation, give empty disks to the nodes that lost theirs, and add the voters again.  A voter of the previous
generation that kept its disk is refused, and then gets an empty disk.  An observer of the previous generation restarts
automatically.

Checks: every committed record on the chosen disk still exists; old disks are refused; a new watch checks all invariants
for the new generation; and the history of clients that start again is linearizable.  Records that were only on lost
disks are counted as lost.
"""

from __future__ import annotations

import asyncio
from functools import partial
from random import Random

from msgspec.structs import replace

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
    """The disaster and the recovery of one run.  Call `run` once, after all checks have passed."""

    def __init__(self, world: QuorumWorld) -> None:
        self.world = world
        self.random = Random(f"disaster {world.plan.seed}")

    async def run(self) -> None:
        """Lose the disks, recover the quorum, and check it.

        Raises:
            Violation: an invariant does not hold, or the quorum does not recover.
        """
        world = self.world
        leader = world.leader()
        assert leader is not None, "the checks before have found a leader"
        assert leader.node is not None, "an active controller has a node"
        voters = [world.hosts[node_id] for node_id in leader.node.voter_ids]
        if len(world.hosts) == 1:
            return  # no disk would be left
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
        await self._restart(best, voters, [host for host in kept if host is not best])

    def _lose_disks(self, voters: list[Host]) -> list[Host]:
        """Return the hosts that keep their disks: less than a majority of the voters, and at least one host."""
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
        """Rebuild the quorum offline from the remaining disks, as `quorum-node recover` does."""
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
        self._check_losses(host, before, end)
        disks = [(one.node_id, one.disk) for one in world.hosts.values()]
        world.watch = world.watch.after_a_disaster(disks, host.disk, plan.generation)
        values = image.config(ConfigScope.CLUSTER, "")
        began = ended = world.loop.true_time()
        world.history = [Operation(key, "write", began, ended, value=values.get(key)) for key in KEYS]
        world.unknown = []
        world.note(f"REBUILT from {host.name} at {end}: generation {plan.generation}")
        return host

    def _check_losses(self, host: Host, before: list[Batch], end: int) -> None:
        watch = self.world.watch
        if host.disk.batches[: len(before)] != before:
            raise Violation(f"I8: the recovery changes the log of {host.name}")
        held = {batch.base_offset: batch for batch in before}
        for batch in watch.committed.values():
            if batch.end_offset > end:
                watch.seen["batch lost in a disaster"] += 1
            elif batch.base_offset >= host.disk.log_start and held.get(batch.base_offset) != batch:
                raise Violation(f"I8: {host.name}, the best remaining disk, lacks {batch}")

    async def _restart(self, best: Host, voters: list[Host], old: list[Host]) -> None:
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
        await Aftermath(world).check(stop)

    async def _add(self, host: Host) -> None:
        """Ask the current leader to add the node, until it is a voter."""
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
                raise Violation(f"{host.name} did not become a voter of the rebuilt quorum within {SETTLE_S} s")


def _is_refused(host: Host) -> bool:
    return host.outlived
