"""Workers of a share group that stop fetching, so that dead letters must be written without any member.

A leader loads the state of a share group when the first member fetches.  If the leader changes afterwards, and nobody
fetches, only the share coordinator knows which letters are missing, and must remind the new leader.

In half of these runs the dead-letter topic refuses letters until the faults have ended.  All letters of the run are
then missing, and the leaders that were to write them may have changed.

L15: While no worker fetches, each record whose rejection was acknowledged gets its dead letter, and so does each record
that waits for its letter according to a stored state.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from random import Random

from metadata.image import DEAD_LETTERS_ADMITTED
from quorumlog.wire.v1 import controller_pb2 as pb
from quorumlog.wire.v1 import metadata_pb2
from simulation.cluster.plan import LETTERS, QUEUE, ClusterPlan, Rest
from simulation.cluster.workers import Workers

SHARE = 0.6
"""Fraction of the runs with dead letters."""


def drawn(random: Random, plan: ClusterPlan) -> ClusterPlan:
    """Add a rest of the workers to some runs with dead letters.  The rest begins while faults still begin."""
    if not plan.letter_partitions or random.random() >= SHARE:
        return plan
    at_s = random.uniform(0.2, 0.9) * plan.chaos_s
    return replace(plan, rest=Rest(at_s, vanishes=random.random() < 0.5, refuses=random.random() < 0.5))


def admission(*, admits: bool) -> pb.AlterConfigsRequest:
    """Return the request that lets the dead-letter topic admit letters, or refuse them."""
    changes = pb.ConfigChanges(resource={"scope": metadata_pb2.Config.SCOPE_TOPIC, "name": LETTERS})
    changes.changes.add(key=DEAD_LETTERS_ADMITTED, value="true" if admits else "false")
    return pb.AlterConfigsRequest(resources=[changes])


def missing_letters(workers: Workers) -> list[str]:
    """Return the records that lack a dead letter; nothing if records were lost."""
    return [] if workers.has_lost() else [*_unwritten(workers), *_waiting(workers)]


def _unwritten(workers: Workers) -> Iterator[str]:
    for index, offset in sorted(workers.watch.completed):
        if workers.watch.lacks_letter((index, offset)):
            yield f"{QUEUE}-{index} at {offset}: rejected"


def _waiting(workers: Workers) -> Iterator[str]:
    """Yield the stored states in which records wait for their letters."""
    for host in workers.world.brokers:
        for led in () if host.broker is None else host.broker.role.shares.states.shell:
            for key in () if led.machine is None else led.machine.archiving:
                yield f"{QUEUE}-{key.partition}: waits at the share coordinator {host.name}"
