"""An operator who follows the documentation when a replica cannot recover automatically.

If all members of an ISR with write.caching have stopped uncleanly, the partition has no leader.  The operator then
requests an unclean election.  After all faults have ended, the operator replaces each damaged replica: a reassignment
moves it to another broker, and a second one moves it back.
"""

from __future__ import annotations

import asyncio

from metadata.image import PartitionImage
from metadata.records import LOST
from quorumlog.wire import rpcs
from quorumlog.wire.v1 import controller_pb2 as pb
from simulation.cluster.metadata import Spot
from simulation.cluster.orders import Orders
from simulation.cluster.world import ClusterWorld

LOOK_S = 0.4
ORDER_S = 2.0


class Operator:
    """The operator of one run."""

    def __init__(self, world: ClusterWorld) -> None:
        self._world = world
        self._orders = Orders(world)
        self._before: dict[Spot, tuple[int, ...]] = {}
        """The replicas of a partition before its damaged replica was removed."""

    def start(self) -> None:
        """Repair the cluster until the run ends, if its plan can cause damage."""
        plan = self._world.plan
        if any(topic.caching for topic in plan.topics) or any(fault.kind == "bit rot" for fault in plan.faults):
            self._world.start_client("operator", self._run())

    async def _run(self) -> None:
        random = self._world.fresh_random()
        while True:
            await asyncio.sleep(LOOK_S)
            if lost := self._leaderless():
                policy = pb.ElectLeadersRequest.POLICY_UNCLEAN
                request = pb.ElectLeadersRequest(policy=policy, partitions=lost)
                # The request may arrive late, after another replica has been elected.
                self._world.watch.metadata.asked_uncleanly |= {Spot(one.topic, one.index) for one in lost}
                await self._orders.ask(rpcs.ELECT_LEADERS, request, ORDER_S, random)
            moves = self._moves() if self._world.healed else {}
            if moves:
                reassign = pb.AlterReassignmentsRequest(replace=True)
                for spot, replicas in moves.items():
                    reassign.partitions.add(topic=spot.topic, index=spot.index, replicas=replicas)
                await self._orders.ask(rpcs.ALTER_REASSIGNMENTS, reassign, ORDER_S, random)

    def _partitions(self) -> list[tuple[Spot, PartitionImage]]:
        topics = self._world.watch.metadata.image.topics.values()
        return [(Spot(one.name, each.index), each) for one in topics for each in one.partitions if each is not None]

    def _leaderless(self) -> list[pb.TopicPartition]:
        """Return the leaderless partitions with write.caching without a replica known to hold all committed records."""
        caching = self._world.watch.metadata.caching
        return [
            pb.TopicPartition(topic=spot.topic, index=spot.index)
            for spot, partition in self._partitions()
            if spot.topic in caching and partition.leader < 0 and not partition.isr and not partition.elr
        ]

    def _moves(self) -> dict[Spot, list[int]]:
        """Return the next reassignment for each damaged replica: away from its broker, or back to it."""
        moves: dict[Spot, list[int]] = {}
        for spot, partition in self._partitions():
            replicas = tuple(each for each in partition.replica_ids if each not in partition.removing)
            damaged = [one.broker_id for one in partition.replicas if one.directory_id == LOST]
            if damaged:
                if set(damaged) <= set(partition.removing):
                    continue
                self._before.setdefault(spot, replicas)
                others = [each for each in self._world.plan.broker_ids if each not in replicas]
                sound = [each for each in replicas if each not in damaged]
                moves[spot] = sound + others[: len(damaged)]
            elif spot in self._before and not partition.reassigning:
                before = self._before[spot]
                if set(before) == set(replicas):
                    del self._before[spot]
                else:
                    moves[spot] = list(before)
        return moves
