"""Executes the faults of a cluster's plan on a `ClusterWorld`.  `orders.py` has the administrator's requests."""

from __future__ import annotations

import asyncio
from random import Random

from simulation.cluster.bad_disks import BadDisks
from simulation.cluster.disaster import Disaster
from simulation.cluster.late_batches import LateBatches
from simulation.cluster.metadata import Spot
from simulation.cluster.moves import DirectoryMoves
from simulation.cluster.nodes import Host
from simulation.cluster.orders import Orders
from simulation.cluster.plan import CONTROLLER, FIRST_BROKER, FOLLOWER, LEADER
from simulation.cluster.record_deletions import RecordDeletions
from simulation.cluster.releases import Releases
from simulation.cluster.voters import VoterOrders
from simulation.cluster.world import ClusterWorld
from simulation.kernel.faults import ALL_LINKS, Fault, FaultInjector

ALL_JUMP = 0.5
"""The share of the jumps that concern all hosts."""
ORDERLY_S = 3.0
BOUNCE_S = 0.02
OUT_OF_SYNC_S = 2.3
"""The time until a follower that does not fetch has left the ISR."""
FENCED_S = 2.2
"""The time until the session of a broker that is down has ended."""
DEPOSED_S = 1.9
CATCH_UP_S = 0.3
RETURNS = 20
"""Maximum number of checks whether the deposed leader is in the ISR again."""
QUIET_S = 1.2
OVERTAKES = 80
"""Maximum number of checks whether the new leader has written more than the previous one."""
OVERTAKE_LOOK_S = 0.05
UNANSWERED_S = 6.0
"""Longer than a proposal waits for its answer."""


SWAP_WAIT_S = 3.0
"""Maximum wait for a swap."""
SWAP_LOOK_S = 0.0007


class ClusterFaults(FaultInjector):
    """The faults of one run.  Call `inject`, then `heal`."""

    def __init__(self, world: ClusterWorld, releases: Releases) -> None:
        super().__init__(world)
        self.world = world
        orders = Orders(world)
        self.voters = VoterOrders(world, orders)
        self.actions = {
            "slow": self.degrade_links,
            "loss": self.degrade_links,
            "cut": self._cut,
            "one way": self._cut,
            "isolate": self._isolate,
            "split": self._split,
            "flap": self._flap,
            "reset": self._reset,
            ALL_LINKS: self._all_links,
            "kill": self._kill,
            "power": self._power,
            "power all": self._power,
            "restart": self._restart,
            "restart all": self._restart,
            "pause": self._pause,
            "skew": self._skew,
            "jump": self._jump,
            "zombie": self._zombie,
            "bounce": self._bounce,
            "crash in a swap": self._crash_in_a_swap,
            "lost acceptance": self._lost_acceptance,
            "leader returns": self._leader_returns,
            "fsync fails": self._fsync_fails,
            "slow disk": self._slow_disk,
            "disk hangs": self._disk_hangs,
            "disk full": self._disk_full,
            "wipe": self._wipe,
            "last disk": self._last_disk,
            "unclean takeover": self._unclean_takeover,
            "quorum disk": self._quorum_disk,
            **orders.actions,
            **RecordDeletions(world).actions,
            **releases.actions(orders),
            **self.voters.actions,
            **Disaster(world, orders).actions,
            **BadDisks(world, self).actions,
            **DirectoryMoves(world, self).actions,
            **LateBatches(world, self).actions,
        }

    async def heal(self) -> None:
        """End all faults, and start all nodes.

        A disk that failed in a running process remains unavailable to that process.
        """
        await super().heal()
        world = self.world
        world.wall_offset_s = 0.0
        world.healed = True
        for node_id in world.hosts:
            world.hosts[node_id].wall_offset_s = 0.0
            world.at_usual_speed(world.hosts[node_id])
            world.bring_up(node_id)
        world.note("HEALED")

    # The affected nodes

    def _hosts(self, fault: Fault) -> list[Host]:
        return [self._host(node, fault.amount) for node in fault.nodes]

    def _host(self, node: int, amount: float) -> Host:
        world = self.world
        amount %= 1
        if node == CONTROLLER:
            return world.active() or world.voters[int(amount * len(world.voters))]
        if node in (LEADER, FOLLOWER):
            return world.hosts[world.holder(node == LEADER, amount)]
        return world.hosts[node]

    def _broker(self, fault: Fault) -> Host:
        host = self._hosts(fault)[0]
        return host if host.disks else self.world.brokers[int(fault.amount % 1 * len(self.world.brokers))]

    # Links

    async def _cut(self, fault: Fault) -> None:
        first, second = (host.name for host in self._hosts(fault))
        if first == second:
            return
        links = [(first, second)] if fault.kind == "one way" else [(first, second), (second, first)]
        await self.cut_links(fault.length_s, links)

    def _links_of(self, name: str, amount: float) -> list[tuple[str, str]]:
        """Return all links of a host, or all in one direction, with or without its links to clients."""
        others = [one for one in self.world.host_names if one != name]
        if amount >= 0.6:
            others = [one for one in others if one not in self.world.plan.client_hosts]
        into = [(other, name) for other in others]
        out = [(name, other) for other in others]
        return into if amount % 0.6 < 0.1 else out if amount % 0.6 < 0.2 else into + out

    async def _isolate(self, fault: Fault) -> None:
        await self.cut_links(fault.length_s, self._links_of(self._hosts(fault)[0].name, fault.amount))

    async def _flap(self, fault: Fault) -> None:
        await self.flapping(fault, self._links_of(self._hosts(fault)[0].name, fault.amount))

    async def _split(self, fault: Fault) -> None:
        """Split the hosts in two groups.  Half of the clients are in the group of the named nodes."""
        side = {host.name for host in self._hosts(fault)}.union(self.world.plan.client_hosts[::2])
        names = self.world.host_names
        await self.cut_links(fault.length_s, [(a, b) for a in names for b in names if (a in side) != (b in side)])

    async def _all_links(self, fault: Fault) -> None:
        nodes = [host.name for host in self.world.hosts.values()]
        await self.all_links(fault, nodes, self.world.plan.client_hosts)

    async def _reset(self, fault: Fault) -> None:
        """Break every connection of the host; new connections can be opened immediately."""
        self.world.network.reset_host(self._hosts(fault)[0].name)

    # Nodes

    async def _down(self, fault: Fault, hosts: list[Host], *, power: bool) -> None:
        for host in hosts:
            host.down += 1
            self.world.bring_down(host.config.node_id, power=power)
        await self.wait(fault.length_s)
        for host in hosts:
            host.down -= 1
            self.world.bring_up(host.config.node_id)

    async def _kill(self, fault: Fault) -> None:
        """Kill processes as SIGKILL does: written data remains in the page cache."""
        await self._down(fault, self._hosts(fault), power=False)

    async def _power(self, fault: Fault) -> None:
        """Lose power: data that was not durable is lost or torn."""
        await self._down(fault, self._hosts(fault), power=True)

    async def _restart(self, fault: Fault) -> None:
        """Stop processes as SIGTERM does: brokers hand over first.  A process that does not end in time is killed."""
        hosts = self._hosts(fault)
        stopped = [host.process for host in hosts]
        for host in hosts:
            host.stop.set()
        await self.wait(ORDERLY_S)
        for host, process in zip(hosts, stopped, strict=True):
            if host.process is process and process is not None:
                self.world.bring_down(host.config.node_id)
        await self.wait(fault.length_s)
        for host in hosts:
            self.world.bring_up(host.config.node_id)

    async def _pause(self, fault: Fault) -> None:
        """Stop and continue a process, as SIGSTOP and SIGCONT do."""
        process = self._hosts(fault)[0].process
        if process is None or process.paused:
            return
        process.pause()
        await self.wait(fault.length_s)
        process.resume()

    async def _skew(self, fault: Fault) -> None:
        process = self._hosts(fault)[0].process
        if process is not None:
            process.set_clock_rate(fault.amount)
            await self.wait(fault.length_s)
            process.set_clock_rate(1.0)

    async def _jump(self, fault: Fault) -> None:
        """Make the wall clocks of all hosts, or of one broker, jump and later jump back."""
        world, random = self.world, Random(f"jump {self.world.plan.seed} {fault.number}")
        if random.random() < ALL_JUMP:
            world.wall_offset_s += fault.amount
            await self.wait(fault.length_s)
            world.wall_offset_s -= fault.amount
            return
        host = random.choice(world.brokers)
        world.watch.seen["wall clock of one broker jumped"] += 1
        host.wall_offset_s += fault.amount
        await self.wait(fault.length_s)
        host.wall_offset_s -= fault.amount

    async def _zombie(self, fault: Fault) -> None:
        """Disconnect a node from other nodes but not from clients, so that it still leads when others are elected."""
        name = self._hosts(fault)[0].name
        others = [host.name for host in self.world.hosts.values() if host.name != name]
        await self.cut_links(fault.length_s, [link for one in others for link in ((one, name), (name, one))])

    async def _crash_in_a_swap(self, fault: Fault) -> None:
        """Kill a broker, or cut its power, some time after it has begun to replace segments by a compacted one."""
        loop = asyncio.get_running_loop()
        end = loop.time() + SWAP_WAIT_S
        while loop.time() < end and not self._stop.is_set():
            swapping = [host for host in self.world.brokers if _is_swapping(host)]
            if swapping:
                await asyncio.sleep(fault.amount % 0.1 / 10)
                host = swapping[int(fault.amount * 100) % len(swapping)]
                self.world.watch.seen["crash in a swap"] += _is_swapping(host)
                await self._down(fault, [host], power=fault.amount < 0.7)
                return
            await asyncio.sleep(SWAP_LOOK_S)

    async def _bounce(self, fault: Fault) -> None:
        """Kill and immediately restart the leader of a partition, then its successor, and so on."""
        loop = asyncio.get_running_loop()
        end, power = loop.time() + fault.length_s, fault.amount < 0.5
        while loop.time() < end and not self._stop.is_set():
            node_id = self._host(LEADER, fault.amount).config.node_id
            self.world.bring_down(node_id, power=power)
            await self.wait(BOUNCE_S)
            self.world.bring_up(node_id)
            await self.wait(fault.amount)

    async def _leader_returns(self, fault: Fault) -> None:
        """Depose a leader and elect it again before its producer has reached any other broker.

        The producer continues to write.  The leader must not treat records that it has truncated meanwhile as written.
        """
        world = self.world
        partition = world.partition_at(fault.amount)
        if partition is None or len(partition.replicas) < 3 or partition.leader < 0:
            return
        name = world.hosts[partition.leader].name
        others = [host.name for host in world.hosts.values() if host.name != name]
        away = [(client, other) for client in world.plan.client_hosts for other in others if other[0] == "b"]
        for link in away:
            world.network.cut(*link)
        await self.cut_links(DEPOSED_S, [link for one in others for link in ((one, name), (name, one))])
        now = world.partition_at(fault.amount)
        for _ in range(RETURNS):
            await self.wait(CATCH_UP_S)
            now = world.partition_at(fault.amount)
            if now is None or partition.leader in now.isr:
                break
        if now is not None and now.leader not in (-1, partition.leader):
            await self._down(fault, [world.hosts[now.leader]], power=True)
        for link in away:
            world.network.heal(*link)

    async def _lost_acceptance(self, fault: Fault) -> None:
        """Let a leader propose to add a follower to the ISR, and lose the controller's acceptance.

        The follower then falls behind again and is the only remaining replica.  The follower must have every record
        that the leader has acknowledged meanwhile.
        """
        world = self.world
        partition = world.partition_at(fault.amount)
        if partition is None or len(partition.replicas) < 3 or partition.leader < 0:
            return
        leader = world.hosts[partition.leader].name
        others = [world.hosts[each].name for each in partition.replica_ids if each != partition.leader]
        last = others[-1]
        between = [(last, leader), (leader, last)]
        await self.cut_links(OUT_OF_SYNC_S, between)
        unheard = [(voter.name, leader) for voter in world.voters]
        for link in unheard:
            world.network.cut(*link)
        await self.wait(CATCH_UP_S)
        await self.cut_links(UNANSWERED_S, between)
        left = [host for host in world.brokers if host.name in (leader, *others[:-1])]
        await self._down(fault, left, power=True)
        for link in unheard:
            world.network.heal(*link)

    # Disks

    async def _fsync_fails(self, fault: Fault) -> None:
        host = self._broker(fault)
        disk = host.disks[int(fault.amount * len(host.disks))]
        disk.fails = True
        await self.wait(fault.length_s)
        disk.fails = False
        self._mend(host, fault)

    def _mend(self, host: Host, fault: Fault) -> None:
        """Restart a broker whose disk has failed, now or at the end of the run.  The disk then works again."""
        node_id = host.config.node_id
        if host.process is not None and any(disk.is_broken for disk in host.disks) and fault.amount < 0.5:
            self.world.bring_down(node_id)
        self.world.bring_up(node_id)

    async def _slow_disk(self, fault: Fault) -> None:
        for host in self._hosts(fault):
            host.quorum_disk.fsync_ms = (0.2, fault.amount)
            for disk in host.disks:
                disk.sync_ms = (0.2, fault.amount)
            await self.wait(fault.length_s)
            self.world.at_usual_speed(host)

    async def _disk_hangs(self, fault: Fault) -> None:
        host = self._broker(fault)
        disk = host.disks[int(fault.amount * len(host.disks))]
        disk.hangs = True
        await self.wait(fault.length_s)
        disk.hangs = False

    async def _disk_full(self, fault: Fault) -> None:
        host = self._broker(fault)
        disk = host.disks[int(fault.amount * len(host.disks))]
        disk.full = True
        await self.wait(fault.length_s)
        disk.full = False
        self._mend(host, fault)

    async def _wipe(self, fault: Fault) -> None:
        """Replace one disk of a broker, or all of them, by empty ones, and restart the broker."""
        host = self._broker(fault)
        node_id = host.config.node_id
        if node_id < FIRST_BROKER:
            return
        host.down += 1
        self.world.bring_down(node_id, power=True)
        self.world.wipe(host, all_of_them=fault.amount < 0.5)
        await self.wait(fault.length_s)
        host.down -= 1
        self.world.bring_up(node_id)

    async def _last_disk(self, fault: Fault) -> None:
        """Stop all replicas but one, and restart that one with an empty disk before the others start."""
        world = self.world
        partition = world.partition_at(fault.amount)
        if partition is None or partition.leader < 0:
            return
        leader = world.hosts[partition.leader]
        others = [world.hosts[each] for each in partition.replica_ids if each != partition.leader]
        for host in others:
            host.down += 1
            world.bring_down(host.config.node_id, power=True)
            await self.wait(FENCED_S)
        world.bring_down(partition.leader, power=True)
        world.wipe(leader, all_of_them=True)
        world.bring_up(partition.leader)
        await self.wait(fault.length_s)
        for host in others:
            host.down -= 1
            world.bring_up(host.config.node_id)

    async def _unclean_takeover(self, fault: Fault) -> None:
        """Elect a replica uncleanly after the leader has written alone, and then let that leader return.

        The new leader writes other records in place of the lost ones, perhaps more of them.  The old leader returns,
        the new one stops, and the old one takes over.  The old leader must then have every record that was acknowledged
        since the unclean election.
        """
        world = self.world
        spots = [Spot(one.name, index) for one in world.plan.topics if one.unclean for index in range(one.partitions)]
        image = world.watch.metadata.image
        topic, index = spots[int(fault.amount * len(spots))]
        partition = image.topics[image.topic_ids[topic]].partition(index)
        if partition is None or partition.leader < 0 or len(partition.replica_ids) < 2:
            return
        leader = partition.leader
        others = [world.hosts[each] for each in partition.replica_ids if each != leader]
        for host in others:
            host.down += 1
            world.bring_down(host.config.node_id, power=fault.amount < 0.5)
        await self.wait(FENCED_S + fault.length_s)
        name = world.hosts[leader].name
        unheard = [(client, name) for client in world.plan.client_hosts]
        await self.cut_links(QUIET_S, unheard)  # retention may empty the leader's log
        history = world.watch.current(Spot(topic, index))
        end = 0 if history is None else history.end
        world.hosts[leader].down += 1
        world.bring_down(leader, power=fault.amount < 0.5)
        await self.wait(FENCED_S)
        for host in others:
            host.down -= 1
            world.bring_up(host.config.node_id)
        for _ in range(OVERTAKES):
            await self.wait(OVERTAKE_LOOK_S)
            if history is not None and history.begun_epoch >= history.unclean_epoch >= 0 and history.end > end:
                break
        world.hosts[leader].down -= 1
        world.bring_up(leader)
        await self.wait(FENCED_S)
        await self._down(fault, others, power=fault.amount < 0.5)

    async def _quorum_disk(self, fault: Fault) -> None:
        """Make the disk of the metadata log fail or hang, and restart the process if the failure ended it."""
        host = self._hosts(fault)[0]
        disk = host.quorum_disk
        if fault.amount < 0.5:
            disk.fails = True
        else:
            disk.hangs = True
        await self.wait(fault.length_s)
        disk.fails = disk.hangs = False
        self.world.bring_up(host.config.node_id)


def _is_swapping(host: Host) -> bool:
    swap = None if host.broker is None else host.broker.role.cleaner._swap
    return swap is not None and not swap.done()
