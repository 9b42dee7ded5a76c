"""Clients that delete records (DeleteRecords), while faults occur.

The request goes to the leader, which answers once the log start of every active replica is durable.  `DeletionWatch`
checks the answer in the leader's process, and each replica whenever its log is opened.
"""

from __future__ import annotations

from dataclasses import replace
from random import Random

from quorumlog.client.admin import Admin
from quorumlog.client.cluster import Cluster
from quorumlog.client.messages import TopicPartition
from quorumlog.errors import ClusterError
from simulation.cluster.metadata import Spot
from simulation.cluster.plan import ClusterPlan, TopicPlan
from simulation.cluster.world import ClusterWorld
from simulation.kernel.faults import Action, Fault, with_more

DELETE_RECORDS = "delete records"
SHARE = 0.15
REQUEST_S = 1.0
CONNECT_S = 0.5


def deletable(plan: ClusterPlan) -> list[TopicPlan]:
    """Return the topics whose records clients may delete."""
    return [topic for topic in plan.topics if topic.compaction is None or topic.compaction.deletes]


def drawn(random: Random, plan: ClusterPlan) -> ClusterPlan:
    """Let clients delete records in some runs, unless data on disks is lost or goes back to an earlier state.

    In half of these runs, a reassignment follows, because the log of a new replica begins at the leader's log start.
    """
    uncertain = plan.wipes or plan.rebuilds or any(topic.caching for topic in plan.topics)
    if random.random() >= SHARE or uncertain or not deletable(plan):
        return plan
    times = sorted(random.uniform(0.2, plan.chaos_s - 1.0) for _ in range(random.choice((1, 2, 4))))
    faults = [Fault(0, DELETE_RECORDS, at_s, random.uniform(0.1, 3.0), (), random.random()) for at_s in times]
    if random.random() < 0.5:
        after_s = times[-1] + random.uniform(0.1, 1.0)
        faults.append(Fault(0, "reassign", after_s, 2.0, (), random.random()))
    return replace(plan, faults=with_more(plan.faults, faults))


class RecordDeletions:
    """The `actions` of clients that delete records."""

    def __init__(self, world: ClusterWorld) -> None:
        self._world = world
        self.actions: dict[str, Action] = {DELETE_RECORDS: self._delete}

    async def _delete(self, fault: Fault) -> None:
        """Delete the records below a committed offset.  The offset may be within a batch."""
        world, random = self._world, Random(f"cluster deletion {self._world.plan.seed} {fault.number}")
        topic = random.choice(deletable(world.plan))
        spot = Spot(topic.name, random.randrange(topic.partitions))
        history = world.watch.current(spot)
        if history is None:
            return
        anywhere = random.randint(min(history.start, history.end), history.end)
        offset = random.choice((history.end, anywhere, anywhere))
        if topic.unclean:
            offset = next((base for base in reversed(history.bases) if base <= offset), 0)
        world.watch.deletions.asked(spot, offset)
        world.note(f"DELETE {spot} below {offset}")
        async with Cluster(
            world.bootstrap, request_timeout_s=REQUEST_S, connect_timeout_s=CONNECT_S, random=random
        ) as cluster:
            try:
                found = await Admin(cluster).delete_records({spot: offset}, timeout_s=REQUEST_S + fault.length_s)
            except ClusterError as error:
                world.watch.seen[f"DeleteRecords {error.code}"] += 1
                return
        world.watch.seen["DeleteRecords NONE"] += 1
        low = found[TopicPartition(*spot)]
        world.watch.check(low >= offset, lambda: f"I24: {spot} is deleted below {offset}, the answer is {low}")
