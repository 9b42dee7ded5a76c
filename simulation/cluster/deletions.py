"""I24: logs begin where retention or clients permit, and a follower restarts its log only at its leader's log start.

A leader answers DeleteRecords once the new log start is on the disk of every replica whose broker is active according
to the leader's metadata.  After that, none of these replicas begins below the new log start.
"""

from __future__ import annotations

from typing import Any

from broker.log import LogKey, PartitionLog
from broker.replica.deletions import DeletionService
from broker.replica.replica import Replica
from simulation.cluster.evidence import BrokerRun, Evidence
from simulation.cluster.history import History, batches_of
from simulation.cluster.metadata import Spot
from simulation.cluster.retention import Retention


class DeletionWatch:
    def __init__(self, evidence: Evidence, retention: Retention) -> None:
        self._evidence = evidence
        self._retention = retention
        self._asked: dict[Spot, int] = {}
        """The highest offset below which a client has asked to delete the records."""
        self._deleted: dict[tuple[int, LogKey], int] = {}
        """By broker and partition: the log start that was on its disk when a deletion was answered."""
        self._early: dict[tuple[int, LogKey], int] = {}
        """By broker and partition: the start of a log after retention has deleted records that are not committed yet.

        The replica had received its watermark from a leader that an unclean election had deposed without its knowledge.
        """

    # DeleteRecords

    def asked(self, spot: Spot, offset: int) -> None:
        """Permit the deletion of the records below an offset, which a client is about to request."""
        self._asked[spot] = max(offset, self._asked.get(spot, 0))

    def watch(self, run: BrokerRun, deletions: DeletionService) -> None:
        """Check the answers to deletions in a process that is about to run."""
        verdict = deletions._verdict

        def checked(replica: Replica, waiting: Any) -> Any:
            answer = verdict(replica, waiting)
            if answer is not None and answer.error_code == 0:
                self._answered(run, replica, waiting.offset)
            return answer

        deletions._verdict = checked  # type: ignore[method-assign]

    def _answered(self, run: BrokerRun, replica: Replica, offset: int) -> None:
        evidence, key = self._evidence, replica.key
        history = evidence.history(key)
        if history is None or history.unclean_epoch >= 0:
            return
        for broker_id in replica.image.replica_ids:
            if broker_id != run.node_id and not run.context.cluster.may_join(broker_id):
                continue
            self._deleted[broker_id, key] = max(offset, self._deleted.get((broker_id, key), 0))
            other = evidence.runs.get(broker_id)
            log = None if other is None or not other.recovered else other.context.logs.get(key)
            evidence.check(
                log is None or log.durable_start_offset >= offset,
                lambda broker_id=broker_id, log=log: (  # type: ignore[misc]
                    f"I24: {run.node_id} has deleted {history} below {offset}, not on {broker_id}: {log}"
                ),
            )

    # The starts of logs

    def opened(self, run: BrokerRun, key: LogKey, log: PartitionLog) -> None:
        """Check that an opened log begins no later than retention permits, and no earlier than answered deletions."""
        history, start = self._evidence.history(key), log.start_offset
        if history is None or history.unclean_epoch >= 0:
            return
        self.check_start(run, history, start, history.end)
        deleted = self._deleted.get((run.node_id, key), 0)
        self._evidence.check(
            start >= deleted or log.end_offset == 0,  # a replica that was assigned again
            lambda: f"I24: {run.node_id} has {history} from {start} on, its records below {deleted} were deleted",
        )

    def check_start(self, run: BrokerRun, history: History, start: int, end: int) -> None:
        """Check the start of a replica that may lead.  end: the end of the committed records.

        If a replica that was restored from a backup has led, another one may still have the records that the backup
        lacked.  Retention may have deleted the older ones before.
        """
        earlier = max(self._early.get((run.node_id, history.key), 0), history.former_start)
        self._evidence.check(
            start <= history.start or start <= earlier <= end,
            lambda: f"I24: {run.node_id} has {history} from {start} on, retention has deleted up to {history.start}",
        )

    def deletes(self, run: BrokerRun, key: LogKey, log: PartitionLog, offset: int) -> None:
        """Check that only committed records are deleted, and only if retention permits it or a client has requested it.

        After an unclean election, a replica may still have, and delete, records that do not belong to the history.
        """
        evidence = self._evidence
        history = evidence.history(key)
        if history is None or offset <= log.start_offset:
            return
        if evidence.note is not None:
            span = f"{log.start_offset} to {offset}"
            evidence.note(f"{run.node_id} deletes {history} from {span}, committed is {history.end}")
        evidence.seen["records deleted by retention"] += offset - log.start_offset
        if offset <= history.start:
            return
        if history.unclean_epoch >= 0 and not _is_part_of(history, log, offset):
            if history.begun_epoch < history.unclean_epoch:
                history.start_meanwhile = max(history.start_meanwhile, offset)
            elif self._retention.problem(history.spot.topic, log, offset, run.role._sources.wall_ms()) is None:
                self._early[run.node_id, key] = offset
            return
        evidence.check(
            offset <= history.end,
            lambda: f"I24: {run.node_id} deletes {history} up to {offset}, committed is {history.end}",
        )
        if offset <= self._asked.get(history.spot, 0):
            evidence.seen["records deleted by clients"] += offset - history.start
            history.start = offset
            return
        problem = self._retention.problem(history.spot.topic, log, offset, run.role._sources.wall_ms())
        evidence.check(problem is None, lambda: f"I24: {run.node_id} deletes {history} up to {offset}: {problem}")
        history.start = offset

    def restarts(self, run: BrokerRun, key: LogKey, log: PartitionLog, offset: int) -> None:
        """Check a follower that deletes its whole log.

        The leader's log begins above the end of this log, or has nothing in common with it.
        """
        evidence = self._evidence
        history = evidence.history(key)
        if history is None:
            return
        evidence.seen["log restarted"] += 1
        history.rebuilt_at = max(history.rebuilt_at, offset)
        if evidence.note is not None:
            evidence.note(f"{run.node_id} restarts {history} at {offset}, had {log.start_offset} to {log.end_offset}")
        if history.unclean_epoch >= 0:
            return
        evidence.check(
            offset <= history.start,
            lambda: f"I24: {run.node_id} restarts {history} at {offset}, others begin at {history.start}",
        )
        for batch in batches_of(log, max(offset, log.start_offset), log.end_offset, history.is_keyed):
            evidence.check(
                not history.has(batch),
                lambda batch=batch: f"I20: {run.node_id} drops {batch} of {history}, which is committed",  # type: ignore[misc]
            )


def _is_part_of(history: History, log: PartitionLog, offset: int) -> bool:
    """Return whether everything in the log below `offset` is committed.

    False if some of it cannot be read, or if `offset` is within a compacted batch that is not committed as a whole.
    """
    reached = log.start_offset
    for batch in batches_of(log, log.start_offset, log.end_offset, history.is_keyed):
        if batch.base_offset >= offset:
            return True
        if not history.has(batch):
            return False
        reached = batch.end_offset
    return reached >= offset
