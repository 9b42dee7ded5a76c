"""Executes the faults of a plan on a `QuorumWorld`; see `kernel/faults.py`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from functools import partial
from itertools import cycle
from typing import Any

from metadata.control.preferred import set_preferred
from quorum.core.events import AddVoter, CancelTarget, RemoveVoter, SetTarget, VoterChange, VoterChangeError
from quorum.core.types import Role
from quorum.node import QuorumNode
from simulation.kernel.faults import ALL_LINKS, Fault, FaultInjector
from simulation.kernel.loop import Process
from simulation.quorum.plan import LEADER
from simulation.quorum.world import CLIENTS, Host, QuorumWorld

BURST = 5
NODES_ONLY = 0.95
ORDER_MS = 3000
ORDER_GAP_S = 0.1
SHORT_REIGN_S = 0.3
SNAPSHOTS_TORN = 0.4
CANDIDATE_REMOVED = 0.75


class Nemesis(FaultInjector):
    """The faults of one run.  Call `inject`, then `heal`."""

    def __init__(self, world: QuorumWorld) -> None:
        super().__init__(world)
        self.world = world
        self.actions = {
            "slow": self.degrade_links,
            "loss": self.degrade_links,
            "duplicate": self.degrade_links,
            "late": self.degrade_links,
            "cut": self._cut,
            "one way": self._cut,
            "isolate": self._isolate,
            "split": self._split,
            "no replies": self._no_replies,
            "flap": self._flap,
            ALL_LINKS: self._all_links,
            "kill": self._kill,
            "kill all": self._kill,
            "restart": self._restart,
            "pause": self._pause,
            "pause all": self._pause,
            "skew": self._skew,
            "burst": self._burst,
            "zombie": self._zombie,
            "move": self._move,
            "torn write": self._torn_write,
            "fsync fails": self._fsync_fails,
            "slow disk": self._slow_disk,
            "disk hangs": self._disk_hangs,
            "disk full": self._disk_full,
            "wipe": self._wipe,
            "transfer": self._transfer,
            "add voter": self._change,
            "remove voter": self._remove,
            "replace voter": self._change,
            "target": self._change,
            "cancel target": self._change,
            "handovers": self._handovers,
            "prefer": self._prefer,
            "grow and shrink": self._grow_and_shrink,
        }

    async def heal(self) -> None:
        """End all faults; every node runs and every link is whole when this returns."""
        await super().heal()
        world = self.world
        world.note("HEALED")
        for node_id in sorted(world.hosts):
            world.start(node_id)

    def _host(self, fault: Fault) -> Host:
        """Return the host that a fault of one node affects."""
        world = self.world
        if fault.nodes[0] != LEADER:
            return world.hosts[fault.nodes[0]]
        return world.leader() or world.hosts[1]

    # Links

    def _others(self, name: str) -> list[str]:
        names = [host.name for host in self.world.hosts.values()] + [f"c{one}" for one in range(1, CLIENTS + 1)]
        return [one for one in names if one != name]

    async def _cut(self, fault: Fault) -> None:
        if len(fault.nodes) < 2:
            return
        first, second = (f"n{node}" for node in fault.nodes)
        links = [(first, second)] if fault.kind == "one way" else [(first, second), (second, first)]
        await self.cut_links(fault.length_s, links)

    def _links_of(self, name: str, amount: float) -> list[tuple[str, str]]:
        """Return all links of a host, or all in one direction, with or without the links to clients."""
        others = [one for one in self._others(name) if amount < 0.7 or one[0] != "c"]
        into = [(other, name) for other in others]
        out = [(name, other) for other in others]
        return into if amount % 0.7 < 0.1 else out if amount % 0.7 < 0.2 else into + out

    async def _isolate(self, fault: Fault) -> None:
        """Disconnect a node from all others, often while it has writes in progress."""
        host = self._host(fault)
        cut = self.cut_links(fault.length_s, self._links_of(host.name, fault.amount))
        if fault.amount * 100 % 2 < 1:
            self.world.burst(host, BURST)
        await cut

    async def _split(self, fault: Fault) -> None:
        """Split the hosts in two.  Clients 2 and 3 are on the side of the named nodes."""
        leader = self.world.leader() or self.world.hosts[1]
        side = {*(f"n{node or leader.node_id}" for node in fault.nodes), "c2", "c3"}
        names = ["c1", *self._others("c1")]
        links = [(a, b) for a in names for b in names if (a in side) != (b in side)]
        await self.cut_links(fault.length_s, links)

    async def _no_replies(self, fault: Fault) -> None:
        network, name = self.world.network, self._host(fault).name
        for other in self._others(name):
            network.cut_replies(name, other)
        await self.wait(fault.length_s)
        for other in self._others(name):
            network.heal_replies(name, other)

    async def _flap(self, fault: Fault) -> None:
        await self.flapping(fault, self._links_of(self._host(fault).name, fault.amount))

    async def _all_links(self, fault: Fault) -> None:
        nodes = [host.name for host in self.world.hosts.values()]
        await self.all_links(fault, nodes, [f"c{one}" for one in range(1, CLIENTS + 1)])

    # Nodes

    async def _kill(self, fault: Fault) -> None:
        hosts = [self._host(fault)] if len(fault.nodes) == 1 else [self.world.hosts[node] for node in fault.nodes]
        for host in hosts:
            host.down += 1
            self.world.kill(host.node_id)
        await self.wait(fault.length_s)
        for host in hosts:
            host.down -= 1
            self.world.start(host.node_id)

    async def _restart(self, fault: Fault) -> None:
        """Stop the process as SIGTERM does.  A process that does not end in time is killed."""
        host = self._host(fault)
        process = host.process
        host.stop.set()
        await self.wait(max(1.5, fault.length_s))
        if host.process is process:
            self.world.kill(host.node_id)
        self.world.start(host.node_id)

    async def _pause(self, fault: Fault) -> None:
        """Stop and continue processes, as SIGSTOP and SIGCONT do.  All timers that expired meanwhile are then due."""
        hosts = [self._host(fault)] if len(fault.nodes) == 1 else [self.world.hosts[node] for node in fault.nodes]
        stopped = [host.process for host in hosts if host.process is not None and not host.process.paused]
        for process in stopped:
            process.pause()
        await self.wait(fault.length_s)
        for process in stopped:
            process.resume()

    async def _skew(self, fault: Fault) -> None:
        process = self._host(fault).process
        if process is not None:
            process.set_clock_rate(fault.amount)
            await self.wait(fault.length_s)
            process.set_clock_rate(1.0)

    async def _zombie(self, fault: Fault) -> None:
        """Disconnect a node with a slow clock from other nodes but not from clients, so that another node leads."""
        host = self._host(fault)
        process = host.process
        if process is None:
            return
        process.set_clock_rate(fault.amount)
        await self.cut_links(fault.length_s, self._links_of(host.name, NODES_ONLY))
        process.set_clock_rate(1.0)

    async def _burst(self, fault: Fault) -> None:
        self.world.burst(self._host(fault), int(fault.amount))

    async def _move(self, fault: Fault) -> None:
        """Restart the node at another address, and update the configurations of the others.

        This is skipped while the cluster is being founded, because no node could find it then.  It is also skipped
        while the new address of another node is not known everywhere, because two voters that do not know each
        other's address cannot elect a leader.
        """
        world, host = self.world, self._host(fault)
        running = [one for one in world.hosts.values() if one.process is not None]
        if not all(one.node is not None and one.node.core.met for one in running) or not world.may_move(host):
            return
        host.down += 1
        self.world.kill(host.node_id)
        world.move(host)
        await self.wait(min(fault.length_s, 1.0))
        host.down -= 1
        world.start(host.node_id)

    # Disks

    async def _torn_write(self, fault: Fault) -> None:
        """Lose power in the middle of a transaction, or of a snapshot that is taken or received."""
        host = self._host(fault)
        disk, writes = host.disk, asyncio.Event()
        if self.world.plan.snapshots and fault.amount < SNAPSHOTS_TORN:
            disk.on_part = writes.set
        else:
            disk.on_write = writes.set
        try:
            async with asyncio.timeout(fault.length_s):
                await writes.wait()
        except TimeoutError:
            pass
        else:
            self.world.kill(host.node_id)
            await self.wait(fault.amount)
        disk.on_write = disk.on_part = None
        self.world.start(host.node_id)

    async def _fsync_fails(self, fault: Fault) -> None:
        """Make the next write fail, which ends the process, and restart it later."""
        host = self._host(fault)
        host.disk.fails = True
        await self.wait(fault.length_s)
        host.disk.fails = False
        self.world.start(host.node_id)

    async def _slow_disk(self, fault: Fault) -> None:
        disk = self._host(fault).disk
        disk.fsync_ms = (0.2, fault.amount)
        await self.wait(fault.length_s)
        disk.fsync_ms = (0.2, 2.0)

    async def _disk_hangs(self, fault: Fault) -> None:
        disk = self._host(fault).disk
        disk.hangs = True
        await self.wait(fault.length_s)
        disk.hangs = False

    async def _disk_full(self, fault: Fault) -> None:
        """Fill the disk, so that the next write ends the process.  Restart it once while the disk is still full."""
        host = self._host(fault)
        host.disk.full = True
        await self.wait(fault.length_s / 2)
        self.world.start(host.node_id)
        await self.wait(fault.length_s / 2)
        host.disk.full = False
        self.world.start(host.node_id)

    async def _wipe(self, fault: Fault) -> None:
        """Replace the disk by an empty one, unless a voter set would lose its majority.

        The node restarts as newborn.
        """
        host = self._host(fault)
        if not self._can_lose(host):
            self.world.watch.seen["disk not wiped: a majority would be lost"] += 1
            return
        host.down += 1
        self.world.kill(host.node_id)
        host.disk = self.world.new_disk(host.node_id)
        await self.wait(fault.length_s)
        host.down -= 1
        self.world.start(host.node_id)

    def _can_lose(self, lost: Host) -> bool:
        """Return whether a majority of each voter set on any disk remains without this disk.

        The plan limits the number of wiped disks by the number of founders, but a voter set may have become smaller.
        """
        left = self.world.present_disks() - {(lost.node_id, lost.disk.directory_id)}
        for host in self.world.hosts.values():
            voters = host.disk.state.voters
            present = sum((voter.key.node_id, voter.key.directory_id) in left for voter in voters)
            if voters and present < voters.majority:
                return False
        return True

    # Requests of operators, to each node that believes that it leads.

    async def _order(self, length_s: float, give: Callable[[QuorumNode], Coroutine[Any, Any, Any]]) -> None:
        """Send a request to each leader, also directly after its election, and repeat it until it succeeds."""
        world, outcomes = self.world, list[str]()
        end = asyncio.get_running_loop().time() + length_s

        async def ordered(node: QuorumNode) -> None:
            outcome = await give(node)
            world.note(f"ORDER {outcome}")
            world.watch.seen[f"order {outcome.error.value}"] += 1
            outcomes.append(outcome.error.value)

        done = VoterChangeError.NONE.value
        while not self._stop.is_set() and done not in outcomes and asyncio.get_running_loop().time() < end:
            leaders = [host for host in world.hosts.values() if host.node is not None and host.node.role is Role.LEADER]
            for host in leaders:
                if host.process is not None and host.node is not None:
                    host.process.start(ordered(host.node))
            await self.wait(ORDER_GAP_S)

    async def _transfer(self, fault: Fault) -> None:
        to = fault.nodes[0] if fault.nodes[0] != LEADER else None
        await self._order(fault.length_s, lambda node: node.transfer_leader(to, ORDER_MS))

    async def _handovers(self, fault: Fault) -> None:
        """Hand leadership over repeatedly.

        Another node is disconnected during every pair of handovers, so it may learn of a leadership only at its end.
        """
        loop, network = asyncio.get_running_loop(), self.world.network
        end = loop.time() + fault.length_s
        for name in cycle([host.name for host in self.world.hosts.values()]):
            links = self._links_of(name, NODES_ONLY)
            for link in links:
                network.cut(*link)
            for _ in range(2):
                await self._order(SHORT_REIGN_S, lambda node: node.transfer_leader(None, ORDER_MS))
            for link in links:
                network.heal(*link)
            await self.wait(fault.amount * SHORT_REIGN_S)
            if loop.time() >= end or self._stop.is_set():
                break

    async def _change(self, fault: Fault) -> None:
        change = self._voter_change(fault)
        dry_run = fault.amount < 0.1
        await self._order(fault.length_s, lambda node: node.change_voters(change, dry_run=dry_run, timeout_ms=ORDER_MS))

    async def _remove(self, fault: Fault) -> None:
        leader = self.world.leader()
        if fault.amount < CANDIDATE_REMOVED or leader is None or leader.process is None or leader.process.paused:
            await self._change(fault)
        else:
            await self._remove_candidate(fault, leader.process)

    async def _remove_candidate(self, fault: Fault, leader: Process) -> None:
        """Remove a candidate from the voters before any node learns its epoch.

        The leader is paused until another voter is a candidate.  That candidate is then disconnected and removed.  In
        this way a node that is not a voter has a later epoch than the leader.
        """
        world, found = self.world, list[Host]()
        is_candidate = asyncio.Event()

        def cut_off(host: Host) -> None:
            if not found:
                found.append(host)
                for link in self._links_of(host.name, NODES_ONLY):
                    world.network.cut(*link)
                is_candidate.set()

        world.on_candidate = cut_off
        leader.pause()
        try:
            async with asyncio.timeout(4 * world.watch.fetch_timeout_ms / 1000):
                await is_candidate.wait()
        except TimeoutError:
            pass
        world.on_candidate = None
        leader.resume()
        for host in found:
            change = RemoveVoter(host.node_id)
            given = partial(QuorumNode.change_voters, change=change, dry_run=False, timeout_ms=ORDER_MS)
            await self._order(max(ORDER_MS / 1000, fault.length_s), given)
            for link in self._links_of(host.name, NODES_ONLY):
                world.network.heal(*link)

    async def _grow_and_shrink(self, fault: Fault) -> None:
        """Change to one voter, three, five, and back.  Each step begins even if the previous one has not completed."""
        sizes = [size for size in (1, 3, 5, 3, 1) if size <= len(fault.nodes)]
        for size in sizes if fault.amount < 0.5 else sizes[1:-1]:
            change = self._target(fault.nodes[:size])
            given = partial(QuorumNode.change_voters, change=change, dry_run=False, timeout_ms=ORDER_MS)
            await self._order(fault.length_s / len(sizes), given)

    def _target(self, nodes: tuple[int, ...]) -> SetTarget:
        hosts = [self.world.hosts[node] for node in nodes]
        return SetTarget(tuple((host.node_id, host.address) for host in hosts))

    async def _prefer(self, fault: Fault) -> None:
        """Set the preferred controllers.  Only current voters can be preferred."""
        host = self.world.leader()
        if host is None or host.process is None:
            return
        host.process.start(self._set_preferred(host, fault.nodes))
        await self.wait(fault.length_s)

    async def _set_preferred(self, host: Host, nodes: tuple[int, ...]) -> None:
        node, controller = host.node, host.controller
        assert node is not None
        assert controller is not None
        voters = node.voter_ids
        wanted = tuple(one for one in nodes if one in voters)
        answer = await controller.execute(
            lambda image: set_preferred(image, wanted, voters, validate_only=False), ORDER_MS
        )
        self.world.note(f"PREFER {wanted} {answer}")

    def _voter_change(self, fault: Fault) -> VoterChange:
        host = self._host(fault)
        match fault.kind:
            case "remove voter":
                return RemoveVoter(host.node_id)
            case "target":
                return self._target(fault.nodes)
            case "cancel target":
                return CancelTarget()
            case _:
                return AddVoter(host.node_id, host.address, None, fault.kind == "replace voter")
