"""Changes of the voters while brokers run: voters added, removed and replaced, target sets, voters inside brokers.

An administrator requests the changes.  `voter_sets.py` checks that consecutive sets differ by one voter.  This module
checks that every node ends with the voters of the log.  A run loses at most one disk of a voter, and only if the
remaining voters are a majority.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from random import Random
from uuid import UUID

from quorum.core.types import VoterSet
from quorumlog.wire import rpcs
from quorumlog.wire.v1 import controller_pb2 as pb
from simulation.cluster.nodes import Host
from simulation.cluster.orders import Orders
from simulation.cluster.plan import ClusterPlan
from simulation.cluster.world import ClusterWorld
from simulation.kernel.faults import Action, Fault

SHARE = 0.15
SPARES_MAX = 2
KINDS = ("add voter", "remove voter", "replace voter", "target voters", "cancel target")
_WEIGHED = (*KINDS, "add voter", "add voter", "remove voter", "target voters")
TARGET_MAX = 5
REPLACED_S = 8.0
"""How long an administrator repeats the request to replace a lost disk; this is longer than the faults last."""
OPEN_S = 10.0
"""Maximum wait for starting nodes at the end of a run, before the decision whether a majority of the voters is left."""
CANCELLED_S = 10.0
"""Maximum wait for a target set at the end of a run, before the target is cancelled."""


def drawn(random: Random, plan: ClusterPlan) -> tuple[int, list[Fault]]:
    """Return the number of spare quorum nodes, and the changes; none in most runs."""
    if random.random() >= SHARE or plan.wipes:
        return 0, []
    spares = random.randint(0, SPARES_MAX)
    ids = list(range(1, plan.voters + spares + 1))
    if random.random() < 0.5 or spares == 0:
        ids += plan.broker_ids
    kinds = [random.choice(_WEIGHED) for _ in range(random.choice((1, 3, 6)))]
    return spares, [_fault(random, plan, kind, ids) for kind in kinds]


def _fault(random: Random, plan: ClusterPlan, kind: str, ids: list[int]) -> Fault:
    nodes: tuple[int, ...] = (random.choice(ids),)
    if kind == "target voters":
        nodes = tuple(random.sample(ids, random.randint(1, min(TARGET_MAX, len(ids)))))
    length_s = random.choice((random.uniform(0.2, 1.0), random.uniform(1.0, 4.0)))
    return Fault(0, kind, random.uniform(0.2, plan.chaos_s), length_s, nodes, random.random())


class VoterOrders:
    """The `actions` of changes of the voters, and the completion of these changes."""

    def __init__(self, world: ClusterWorld, orders: Orders) -> None:
        self._world = world
        self._orders = orders
        self._has_lost_one = False
        self.actions: dict[str, Action] = {
            "add voter": self._change,
            "remove voter": self._change,
            "target voters": self._change,
            "cancel target": self._change,
            "replace voter": self._replace,
        }

    def _random(self, fault: Fault) -> Random:
        return Random(f"{self._world.plan.seed} {fault.number}")

    async def _change(self, fault: Fault) -> None:
        await self._ask(self._request(fault), fault.length_s, self._random(fault))

    async def _ask(self, request: pb.ChangeVotersRequest, length_s: float, random: Random) -> None:
        await self._orders.ask(rpcs.CHANGE_VOTERS, request, length_s, random)

    def _request(self, fault: Fault) -> pb.ChangeVotersRequest:
        hosts = [self._world.hosts[node] for node in fault.nodes]
        match fault.kind:
            case "add voter":
                return add_request(hosts[0], replace=False)
            case "remove voter":
                return pb.ChangeVotersRequest(remove=pb.RemoveVoter(node_id=hosts[0].config.node_id))
            case "target voters":
                voters = [pb.VoterAddress(node_id=host.config.node_id, address=_address(host)) for host in hosts]
                return pb.ChangeVotersRequest(set_target=pb.SetTargetVoters(voters=voters))
            case _:
                return pb.ChangeVotersRequest(cancel_target=pb.CancelTargetVoters())

    async def _replace(self, fault: Fault) -> None:
        """Start a voter with an empty disk in place of its lost one, and request its replacement."""
        host = self._may_lose(fault.amount)
        if host is None:
            return
        world, node_id = self._world, host.config.node_id
        self._has_lost_one = True
        world.watch.seen["disk of a voter lost"] += 1
        host.down += 1
        world.bring_down(node_id, power=True)
        host.quorum_disk = world.new_quorum_disk()
        world.at_usual_speed(host)
        if _founds_alone(host):
            others = tuple(one.config.control_listen for one in world.hosts.values() if one is not host)
            host.config = replace(host.config, initial_voters=(), bootstrap=others)
        await asyncio.sleep(min(fault.length_s, 1.0))
        host.down -= 1
        world.bring_up(node_id)
        await self._ask(add_request(host, replace=True), REPLACED_S, self._random(fault))

    def _may_lose(self, amount: float) -> Host | None:
        """Return a quorum node whose disk may be lost: every known voter set keeps a majority of its disks."""
        world = self._world
        planes = [host.plane for host in world.hosts.values() if host.plane is not None]
        sets = [world.watch.metadata.voters.voters, *(plane.node.core.history.current for plane in planes)]
        present = world.present_disks()
        candidates = [
            host
            for host in world.voters
            if all(_is_majority(voters, present - {_disk_of(host)}) for voters in sets if len(voters) > 0)
        ]
        if self._has_lost_one or not candidates:
            return None
        return candidates[int(amount % 1 * len(candidates))]

    # The end of the run

    async def is_majority_left(self) -> bool:
        """Return False if no leader can be elected, because the run has lost the disk of a voter.

        The answer follows from the logs of the nodes, so this method first waits for nodes that are starting.  At the
        end of the faults, all nodes may be starting.
        """
        if not self._has_lost_one:
            return True
        loop = asyncio.get_running_loop()
        end = loop.time() + OPEN_S
        while any(host.plane is None for host in self._world.hosts.values()) and loop.time() < end:  # noqa: ASYNC110
            await asyncio.sleep(0.02)  # of virtual time: a node that has opened its disk reports no event
        return self.has_candidate()

    def has_candidate(self) -> bool:
        """Return False if the loss of a disk, together with a removal, has left no node that can be elected.

        The leader may accept the removal of a voter until it misses the fetches of the voter whose disk was lost.
        Without a majority of the new set, the leader cannot commit that removal, and it votes for no shorter log.  A
        candidate needs the votes of a majority of the set in its own log.  A voter grants its vote if its own log is
        not longer.
        """
        planes = [host.plane for host in self._world.hosts.values() if host.plane is not None]
        cores = [plane.node.core for plane in planes]
        ends = {(core.key.node_id, core.key.directory_id): core.log.last for core in cores}
        return any(
            _is_majority(core.history.current, {disk for disk, end in ends.items() if end <= core.log.last})
            for core in cores
            if core.key in core.history.current or core.history.was_just_removed(core.key, core.high_watermark)
        )

    async def settle(self) -> None:
        """Wait until the target set is reached, or cancel it."""
        world = self._world
        loop = asyncio.get_running_loop()
        end = loop.time() + CANCELLED_S
        while world.watch.metadata.voters.target is not None and loop.time() < end:  # noqa: ASYNC110
            await asyncio.sleep(0.2)  # of virtual time: the watch has no event for a target
        if world.watch.metadata.voters.target is not None:
            world.watch.seen["target cancelled at the end"] += 1
            cancel = pb.ChangeVotersRequest(cancel_target=pb.CancelTargetVoters())
            await self._ask(cancel, CANCELLED_S, world.fresh_random())

    def unsettled(self) -> list[str]:
        """Return the differences between the nodes' voters and the log, and a target that is not reached."""
        watched = self._world.watch.metadata.voters
        found = [] if watched.target is None else [f"the target {watched.target} was neither reached nor cancelled"]
        for host in self._world.hosts.values():
            if host.plane is not None and host.plane.node.core.history.current != watched.voters:
                known = host.plane.node.core.history.current
                found.append(f"{host.name} knows the voters {known}, the log says {watched.voters}")
        return found


def _address(host: Host) -> str:
    return str(host.config.control_listen)


def add_request(host: Host, *, replace: bool) -> pb.ChangeVotersRequest:
    add = pb.AddVoter(node_id=host.config.node_id, address=_address(host), replace=replace)
    return pb.ChangeVotersRequest(add=add)


def _disk_of(host: Host) -> tuple[int, UUID | None]:
    return host.config.node_id, host.quorum_disk.directory_id


def _founds_alone(host: Host) -> bool:
    """Return whether this node would found its own cluster with an empty disk, because it is the only initial voter."""
    return [voter.node_id for voter in host.config.initial_voters] == [host.config.node_id]


def _is_majority(voters: VoterSet, present: set[tuple[int, UUID | None]]) -> bool:
    left = [voter for voter in voters if (voter.key.node_id, voter.key.directory_id) in present]
    return len(left) > len(voters) // 2 or len(voters) == 0
