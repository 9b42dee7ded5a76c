"""Checks the disks of brokers after a crash (D1), and the errors that report damage (D2).

D1: data that a broker reported as durable exists after a crash, and only replicas whose bytes have changed count as
damaged.  D2: an error that reports damage names the replica's files.

When a broker's process ends, the watch stores the durable end of each of its logs.
"""

from __future__ import annotations

from collections.abc import Mapping
from uuid import UUID

from broker.log import LogKey, PartitionLog
from broker.log.move_facts import found_moves
from simulation.cluster.evidence import BrokerRun, Evidence


class DiskWatch:
    def __init__(self, evidence: Evidence) -> None:
        self._evidence = evidence
        self._durable: dict[int, dict[LogKey, tuple[int, UUID]]] = {}
        """By broker and log: the durable end, and the directory that holds it."""
        self._lost: dict[tuple[int, LogKey], int] = {}
        """Ends of the records that were lost with a disk, by the restoration of a disk from a backup, or by an
        unclean stop with write.caching.  Leaders may count these records until they learn of the loss."""
        self._crashed: set[UUID] = set()
        evidence.metadata.has_crashed = self._crashed.__contains__

    # Stops and lost disks

    def ended(self, run: BrokerRun | None, node_id: int, *, clean: bool, power: bool) -> None:
        """Store the durable ends when a process has ended.

        clean: the process has left the mark of a clean stop.  power: data that was not durable may be lost.
        """
        if run is None:
            return
        evidence = self._evidence
        if not clean:
            if (life := run.role.lifecycle) is not None:
                self._crashed.add(life.identity.incarnation_id)
            # A process that dies before it registers has already removed the mark that the previous one left.
            if (registered := evidence.metadata.image.brokers.get(node_id)) is not None:
                self._crashed.add(registered.incarnation_id)
        if power:  # loses data that earlier processes left in the page cache, even on disks that have failed since
            evidence.unsynced.update(one for one in self._lost if one[0] == node_id and evidence.is_caching(one[1]))
        if not run.recovered:
            return
        self.check_failures(run)
        logs, known = run.context.logs, self._durable.get(node_id, {})
        for key, log in logs.logs.items():
            if evidence.is_caching(key) and not clean:
                self._lost[node_id, key] = max(log.end_offset, self._lost.get((node_id, key), 0))
                if power:
                    evidence.unsynced.add((node_id, key))
        # Keep the logs on directories that this process could not read.  Drop the logs that it opened and then set
        # aside.
        kept = {key: one for key, one in known.items() if one[1] in logs.failed_disks and key not in run.opened}
        found = {key: (self._durable_in(node_id, key, log), log.directory_id) for key, log in logs.logs.items()}
        self._durable[node_id] = {**kept, **found}

    def wiped(self, node_id: int, directory_id: UUID) -> None:
        """Record the loss of a disk with everything on it."""
        kept = self._durable.get(node_id, {})
        for key, (end, where) in list(kept.items()):
            if where == directory_id:
                del kept[key]
                self._lost[node_id, key] = max(end, self._lost.get((node_id, key), 0))

    def restored(self, node_id: int, directory_id: UUID, ends: Mapping[LogKey, int]) -> None:
        """Record that a disk was restored from a backup.  ends: the durable ends at the time of the backup."""
        now = self._durable.get(node_id, {})
        here = {key: end for key, (end, where) in now.items() if where == directory_id}
        for key, end in here.items():
            self._lost[node_id, key] = max(end, self._lost.get((node_id, key), 0))
            self._evidence.stale.add((node_id, key))
        kept = {key: one for key, one in now.items() if one[1] != directory_id}
        self._durable[node_id] = {**kept, **{key: (end, directory_id) for key, end in ends.items() if key not in kept}}

    def forget_above(self, node_id: int, key: LogKey, offset: int) -> None:
        """Drop the durable records from this offset on, because the log was truncated there."""
        known = self._durable.get(node_id, {})
        if key in known and known[key][0] > offset:
            known[key] = (offset, known[key][1])

    # The durable ends

    def durable_ends(self, node_id: int, directory_id: UUID) -> dict[LogKey, int]:
        """Return the durable end of each replica in a directory."""
        run = self._evidence.runs.get(node_id)
        if run is not None and run.recovered:
            logs = [(key, one) for key, one in run.context.logs.logs.items() if one.directory_id == directory_id]
            return {key: self._durable_in(node_id, key, one) for key, one in logs}
        return {key: end for key, (end, where) in self._durable.get(node_id, {}).items() if where == directory_id}

    def durable_end(self, node_id: int, key: LogKey) -> int | None:
        """Return the durable end of the partition on the broker's disks, or None if it is unknown.

        With write.caching, everything that the process has written counts.
        """
        run = self._evidence.runs.get(node_id)
        kept = self._durable.get(node_id, {}).get(key)
        if run is not None and run.recovered:
            log = run.context.logs.get(key)
            if log is None:
                return None
            return log.end_offset if self._evidence.is_caching(key) else self._durable_in(node_id, key, log)
        return None if kept is None or self._evidence.is_caching(key) else kept[0]

    def lost_end(self, node_id: int, key: LogKey) -> int:
        """Return the end of the lost records of this replica (see `_lost`); 0 if there are none."""
        return self._lost.get((node_id, key), 0)

    def _durable_in(self, node_id: int, key: LogKey, log: PartitionLog) -> int:
        """Return the durable end of a log.

        After an unclean start, the broker itself counts fewer records as durable than its disk holds.
        """
        end, directory_id = self._durable.get(node_id, {}).get(key, (0, log.directory_id))
        return max(log.marks.durable_offset, min(end, log.end_offset) if directory_id == log.directory_id else 0)

    # Checks

    def check_failures(self, run: BrokerRun) -> None:
        """D1: only replicas whose bytes have changed count as damaged.  D2: the error names the replica's files."""
        evidence = self._evidence
        for key, error in run.context.logs.failures.items():
            text = f"{run.node_id} treats {key} as damaged: {error}"
            evidence.check((run.node_id, key) in evidence.damaged, lambda text=text: f"D1: {text}")  # type: ignore[misc]
            named = key.topic_id.hex in str(error)
            evidence.check(named, lambda text=text: f"D2: the error names no file: {text}")  # type: ignore[misc]
            evidence.seen["damage found"] += 1

    def check_recovered(self, run: BrokerRun) -> None:
        """D1: durable data exists after the start, and no replica on a sound disk is treated as damaged."""
        evidence, logs = self._evidence, run.context.logs
        self.check_failures(run)
        self._follow_moves(run)
        for key, (end, directory_id) in self._durable.get(run.node_id, {}).items():
            if directory_id in logs.failed_disks or (key in logs.failures and (run.node_id, key) in evidence.damaged):
                continue
            log = logs.get(key) or logs.doubles.get(key, {}).get(directory_id)
            aside = any(
                one.directory_id == directory_id and key.topic_id.hex in one.folder and f".{key.created}" in one.folder
                for one in logs.strays()
            )
            evidence.check(
                end == 0 or (aside if log is None else log.end_offset >= end),
                lambda key=key, end=end, log=log: (  # type: ignore[misc]
                    f"D1: {run.node_id} had {evidence.history(key)} durable up to {end}, and finds"
                    f" {'no log' if log is None else log.end_offset}"
                ),
            )

    def _follow_moves(self, run: BrokerRun) -> None:
        """Note that records are in an offline target if their move was decided before a crash."""
        logs, known = run.context.logs, self._durable.get(run.node_id, {})
        for directory_id, directory in logs._directories.items():
            for move in () if directory_id in logs.failed_disks else found_moves(directory.disk):
                if move.fact.is_decided and move.fact.target in logs.failed_disks and move.key in known:
                    known[move.key] = (known[move.key][0], move.fact.target)
