"""The invariants of brokers and their logs, checked in all processes of a cluster.

Theory of operation.  The watch keeps one *history* for each partition: the batches below the highest watermark that any
leader has ever had.  The history grows when a leader's watermark moves, and otherwise never changes.  `replicas.py`
compares every replica's log with its history.  `answers.py` compares every answer to a client: an acknowledged record
must be in the history, and so must a record at the moment when a consumer sees it.  Since the history never changes,
each comparison remains valid.

An unclean election is the exception, for the topics that permit it (`elections.py`).  The history then ends where the
new leader's log differs from it, and changes by leaders of earlier epochs are no longer checked.

`disks.py` stores the durable ends of the logs on each broker's disks, so that a restarted broker can be checked.
`deletions.py` checks retention.  These parts share one `Evidence`, and `ClusterWatch` connects them to the processes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any
from uuid import UUID

from broker.log import LogKey
from broker.server.process import BrokerProcess
from metadata.image import ClusterImage
from quorum.core.types import Batch
from quorumlog.wire.rpcs import AnyRpc
from quorumlog_server import recover
from quorumlog_server.control_plane import ControlPlane
from simulation.cluster.answers import AnswerWatch
from simulation.cluster.compaction import KeyedRecords
from simulation.cluster.deletions import DeletionWatch
from simulation.cluster.disks import DiskWatch
from simulation.cluster.elections import ElectionWatch
from simulation.cluster.evidence import BrokerRun, Evidence
from simulation.cluster.metadata import Follower, MetadataWatch, Proposed
from simulation.cluster.places import PlaceWatch
from simulation.cluster.replicas import ReplicaWatch
from simulation.cluster.retention import Retention


class ClusterWatch:
    """All invariants of one run of a cluster."""

    def __init__(
        self,
        unclean: frozenset[str],
        clock: Callable[[], float],
        forgets_s: float,
        retention: Retention,
        compacted: Mapping[str, Callable[[], KeyedRecords]],
    ) -> None:
        """clock: true time.  forgets_s: the shortest time for which a producer without requests is remembered.

        compacted: by name of a compacted topic, the function that makes the records of a new partition.
        """
        self.evidence = evidence = Evidence(unclean, compacted)
        self.disks = DiskWatch(evidence)
        self._places = PlaceWatch(evidence)
        self.answers = AnswerWatch(evidence)
        elections = ElectionWatch(evidence, self.disks, self.answers)
        self.deletions = DeletionWatch(evidence, retention)
        self._replicas = ReplicaWatch(evidence, self.disks, self.deletions, elections, clock, forgets_s)
        self._generations = [evidence.metadata]
        evidence.metadata.on_change = lambda line: None if evidence.note is None else evidence.note(line)
        self.check = evidence.check
        self.seen = evidence.seen
        self.history = evidence.history
        self.current = evidence.current
        self.named = evidence.named
        self.read_damaged = self._replicas.read_damaged
        self.read_compacted = self._replicas.read_compacted

    @property
    def metadata(self) -> MetadataWatch:
        """The watch of the current generation of the quorum."""
        return self.evidence.metadata

    # A quorum that is rebuilt

    def rebuilt(self, survivor: Sequence[Batch], start: int) -> int:
        """Start a new generation of the quorum from this log, which begins at `start`.

        Return the offset from which on committed metadata is lost.  Processes of the previous generation still apply
        the records that were committed in it.
        """
        old = self.metadata
        offset = old.first_lacking(survivor, start)
        kept, *later = old.images_from(offset)
        self.seen["metadata batches lost with the voters"] += len(later)
        for image in later:
            self._accept_losses(kept, image)
        old.on_image = lambda image: self._accept_losses(kept, image)
        self.evidence.metadata = old.rebuilt(offset)
        self._generations.append(self.metadata)
        return offset

    def _accept_losses(self, kept: ClusterImage, lost: ClusterImage) -> None:
        """Find the partitions that may lose records.

        Such a partition has a replica that may be elected according to the remaining metadata, but not according to the
        lost metadata.
        """
        for topic in kept.topics.values():
            after = lost.topics.get(topic.topic_id)
            for partition in topic.partitions:
                assert partition is not None
                now = None if after is None else after.partition(partition.index)
                sound = set() if now is None else {*now.isr, *now.elr}
                history = self.history(LogKey(topic.origin, partition.index, partition.created))
                if history is not None and not {*partition.isr, *partition.elr} <= sound:
                    self.seen["partition may lose records with the voters"] += history.unclean_epoch < 0
                    history.unclean_epoch = max(history.unclean_epoch, partition.leader_epoch + recover.EPOCH_JUMP)

    # Processes

    def opening(
        self, node_id: int, plane: ControlPlane, broker: BrokerProcess | None, generation: int | None = None
    ) -> None:
        """Attach the checks to a process that is about to run.

        generation: the generation of its quorum's log; None if the log is empty.
        """
        replay = plane.replay
        metadata = self.metadata if generation is None else self._generations[generation]
        follower = Follower(node_id, lambda: plane.node.high_watermark)
        apply, load = replay.apply, replay.load_snapshot

        def applied(batch: Any) -> None:
            apply(batch)
            metadata.applied(follower, batch, replay.image)

        def loaded(image: ClusterImage) -> None:
            load(image)
            metadata.loaded(follower, image)

        replay.apply = applied  # type: ignore[method-assign]
        replay.load_snapshot = loaded  # type: ignore[method-assign]
        if broker is not None:
            self._watch_broker(node_id, broker)

    def _watch_broker(self, node_id: int, broker: BrokerProcess) -> None:
        context = broker.role.context
        run = self.evidence.runs[node_id] = BrokerRun(node_id, broker.role)
        open_logs = context.logs.open
        keeper = broker.role.isr
        call = keeper._call

        async def asked(rpc: AnyRpc, request: Any, timeout_ms: int) -> Any:
            for item in request.items:
                isr = frozenset((member.broker_id, member.broker_epoch) for member in item.isr)
                topic_id, epochs = UUID(bytes=item.topic_id), (item.leader_epoch, item.partition_epoch)
                self.metadata.proposals.add(Proposed(topic_id, item.index, *epochs, isr))
            return await call(rpc, request, timeout_ms)

        async def opened() -> None:
            await open_logs()
            self.disks.check_recovered(run)
            self._places.check_recovered(run)
            run.recovered = True
            run.opened = frozenset(context.logs.logs)
            self._replicas.recovered(run)

        keeper._call = asked
        self._replicas.watch(run)
        self._places.watch(run)
        self.deletions.watch(run, broker.role.replicas.deletions)
        context.logs.open = opened  # type: ignore[method-assign]

    def ended(self, node_id: int, *, clean: bool = False, power: bool = False) -> None:
        """Record the end of a process.

        clean: the process has left the mark of a clean stop.  power: data that was not durable may be lost.
        """
        run = self.evidence.runs.pop(node_id, None)
        self.disks.ended(run, node_id, clean=clean, power=power)
        self._places.ended(run)
