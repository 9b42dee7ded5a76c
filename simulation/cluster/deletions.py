"""I24: logs begin where retention permits, and a follower restarts its log only at its leader's log start."""

from __future__ import annotations

from broker.log import LogKey, PartitionLog
from simulation.cluster.evidence import BrokerRun, Evidence
from simulation.cluster.history import History, batches_of
from simulation.cluster.retention import Retention


class DeletionWatch:
    def __init__(self, evidence: Evidence, retention: Retention) -> None:
        self._evidence = evidence
        self._retention = retention

    def opened(self, run: BrokerRun, key: LogKey, start: int) -> None:
        """Check that a log which is opened begins no later than retention permits."""
        history = self._evidence.history(key)
        if history is not None and history.unclean_epoch < 0:
            self.check_start(run, history, start)

    def check_start(self, run: BrokerRun, history: History, start: int) -> None:
        self._evidence.check(
            start <= history.start,
            lambda: f"I24: {run.node_id} has {history} from {start} on, retention has deleted up to {history.start}",
        )

    def deletes(self, run: BrokerRun, key: LogKey, log: PartitionLog, offset: int) -> None:
        """Check that only committed records are deleted, and only if retention permits it.

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
            return
        evidence.check(
            offset <= history.end,
            lambda: f"I24: {run.node_id} deletes {history} up to {offset}, committed is {history.end}",
        )
        problem = self._retention.problem(history.spot.topic, log, offset, run.role._sources.wall_ms())
        evidence.check(problem is None, lambda: f"I24: {run.node_id} deletes {history} up to {offset}: {problem}")
        history.start = offset

    def restarts(self, run: BrokerRun, key: LogKey, log: PartitionLog, offset: int) -> None:
        """Check a follower that deletes its whole log.

        Its leader's log begins above the end of this log, or has nothing in common with it.
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
    """Return whether everything in the log below `offset` is committed."""
    return all(history.has(batch) for batch in batches_of(log, log.start_offset, offset, history.is_keyed))
