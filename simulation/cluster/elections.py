"""I19, I20: the elections of partition leaders, and the records that an unclean election may lose."""

from __future__ import annotations

from broker.log import LogKey
from metadata.image import PartitionImage
from simulation.cluster.answers import AnswerWatch
from simulation.cluster.disks import DiskWatch
from simulation.cluster.evidence import Copy, Evidence
from simulation.cluster.history import History, batches_of
from simulation.cluster.metadata import Election, Spot, can_lead


class ElectionWatch:
    """Checks each election of a partition leader, and removes the records that an unclean one may lose."""

    def __init__(self, evidence: Evidence, disks: DiskWatch, answers: AnswerWatch) -> None:
        self._evidence = evidence
        self._disks = disks
        self._answers = answers
        self.led_from_backup: set[LogKey] = set()
        """Partitions that a replica restored from a backup has led."""
        self._begun_ends: dict[LogKey, int] = {}  # the committed ends with which leaders began after unclean elections
        metadata = evidence.metadata
        metadata.on_unclean = self.unclean
        metadata.on_epoch = self._epoch_begins
        metadata.on_elected = self._elected
        metadata.on_joined = self._joined

    def unclean(self, election: Election) -> None:
        """Accept that the new leader of this partition may lack committed records."""
        history = self._evidence.history(election.key)
        assert history is not None, election
        history.unclean_epoch = election.leader_epoch

    def start_history_over(self, history: History, copy: Copy, leader_epoch: int) -> None:
        """Replace the end of the history by the log of the first leader since an unclean election.

        Do nothing if there was no such election, or if this was done already for an earlier leader.  The first leader
        may lead in a later epoch than that of the election, if its broker restarted before it learned of the election.
        """
        if leader_epoch < history.unclean_epoch or history.begun_epoch >= history.unclean_epoch:
            return
        evidence = self._evidence
        history.begun_epoch = history.unclean_epoch
        evidence.unsynced = {one for one in evidence.unsynced if one[1] != history.key}
        log = copy.log
        offset = log.start_offset
        for batch in batches_of(log, offset, log.end_offset, history.is_keyed):
            if not history.has(batch):
                break
            offset = batch.end_offset
        lost = history.start_over(offset, log.start_offset, log.end_offset)
        evidence.seen["records lost in unclean elections"] += lost
        self._answers.forget(history.spot)
        for run in evidence.runs.values():
            for other in run.copies.values():
                if other.log.key == history.key:
                    other.compared = min(other.compared, history.end)
        self.note_begun(history)

    def note_begun(self, history: History) -> None:
        """Note the end of the history with which a leader begins after an unclean election."""
        self._begun_ends[history.key] = history.end

    def may_begin_above(self, history: History) -> bool:
        """Return whether a leader may begin with a watermark above the end of the history.

        A deposed leader that did not know of an unclean election may have continued, and sent its watermark to
        replicas.  Each of these replicas may lead later, until a leader since the election has committed more records.
        Or the previous leader's disk was restored from a backup, and this leader still has the records that the backup
        lacked.
        """
        return history.key in self.led_from_backup or self._begun_ends.get(history.key) == history.end

    # Events of the metadata

    def _epoch_begins(self, election: Election) -> None:
        evidence = self._evidence
        history = evidence.history(election.key)
        assert history is not None, election
        history.ends[election.leader_epoch] = history.end
        partition = self._partition(history.spot)
        if partition is not None and (only_settled(partition), election.key) in evidence.unsynced:
            # With write.caching, the only replica leads with the records that survived a power failure (see D1).
            evidence.seen["only replica led after a power failure"] += 1
            self.unclean(election)

    def _partition(self, spot: Spot) -> PartitionImage | None:
        topic = self._evidence.metadata.image.topic(spot.topic)
        return None if topic is None else topic.partition(spot.index)

    def _elected(self, election: Election, old: PartitionImage, new: PartitionImage) -> None:
        """I20: check that a replica restored from a backup leads only if no other member of the ISR can.

        The cluster cannot know that this replica lacks records that it acknowledged earlier.
        """
        evidence = self._evidence
        where = (new.leader, election.key)
        if where not in evidence.stale or not evidence.is_registered(new.leader):
            return  # the broker was elected before its new process registered, and never leads in that epoch
        others = [each for each in old.isr if each != new.leader and can_lead(evidence.metadata.image, old, each)]
        evidence.check(
            not others,
            lambda: f"I20: {new.leader} leads with its backup, but {others} of the isr can lead: {old} to {new}",
        )
        evidence.seen["leader from a restored backup"] += 1
        self.led_from_backup.add(election.key)
        self.unclean(election)

    def _joined(self, key: LogKey, broker_ids: frozenset[int]) -> None:
        """I19: a broker that joins the ISR has all committed records."""
        evidence = self._evidence
        history = evidence.history(key)
        committed = 0 if history is None or history.unclean_epoch >= 0 else history.end
        for broker_id in sorted(broker_ids):
            end = self._disks.durable_end(broker_id, key) if evidence.is_registered(broker_id) else None
            evidence.check(
                end is None or end >= committed,
                lambda broker_id=broker_id, end=end: (  # type: ignore[misc]
                    f"I19: {broker_id} joins the isr of {history} with {end} records, {committed} are committed"
                ),
            )
            evidence.stale.discard((broker_id, key))
            evidence.unsynced.discard((broker_id, key))


def only_settled(partition: PartitionImage) -> int | None:
    """Return the only replica that no reassignment is adding, or None if there are several.

    This replica was already the only one when its broker registered after the power failure, even if a reassignment has
    added others since.
    """
    settled = [broker_id for broker_id in partition.replica_ids if broker_id not in partition.adding]
    return settled[0] if len(settled) == 1 else None
