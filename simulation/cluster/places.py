"""D3 and L14: each replica is in one directory of its broker, even if the broker crashes during a move.

After each start, a replica is in the directory in which the previous process had it.  If that process ended while a
move was being decided, or the source of the move failed at that moment, the replica is in either of the two
directories.  Only a directory that was offline may hold a second copy, good or damaged, because its replicas may have
been created anew elsewhere.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from uuid import UUID

from broker.log import LogKey
from broker.log.move_facts import FUTURE, FUTURES, MOVING
from simulation.cluster.evidence import BrokerRun, Evidence
from simulation.kernel.disk import SimulatedDisk


class PlaceWatch:
    def __init__(self, evidence: Evidence) -> None:
        self._evidence = evidence
        self._places: dict[int, dict[LogKey, frozenset[UUID]]] = {}
        """By broker and replica: the directories that may hold the replica at the next start."""
        self._failed: defaultdict[int, set[UUID]] = defaultdict(set)
        """By broker: the directories that have ever failed in one of its processes."""
        self._unknown: defaultdict[int, dict[LogKey, UUID]] = defaultdict(dict)
        """By broker and replica: the target of a move whose source failed while the move was decided."""

    def watch(self, run: BrokerRun) -> None:
        """Follow the moves of a process that is about to run."""
        events = run.context.logs.events
        events.log_moved.subscribe(lambda key: self._on_moved(run, key))
        events.directory_failed.subscribe(lambda directory_id, _: self._on_failed(run, directory_id))

    def _on_failed(self, run: BrokerRun, directory_id: UUID) -> None:
        self._failed[run.node_id].add(directory_id)
        move = run.context.logs.moves._move
        if move is not None and move.may_be_decided and move.source.id == directory_id:
            self._unknown[run.node_id][move.log.key] = move.target.id

    def _on_moved(self, run: BrokerRun, key: LogKey) -> None:
        """D3: a moved log is only in its target, unless the source has failed."""
        logs, log = run.context.logs, run.context.logs.logs[key]
        self._evidence.seen["replica moved"] += 1
        others = [
            directory_id
            for directory_id, directory in logs._directories.items()
            if directory_id != log.directory_id and directory.failure is None and directory.disk.exists(log.folder)
        ]
        self._evidence.check(not others, lambda: f"D3: {run.node_id} has moved {key}, which is still in {others}")

    def ended(self, run: BrokerRun | None) -> None:
        """Store the directories of the replicas when a process has ended."""
        if run is None or not run.recovered:
            return
        logs, unknown = run.context.logs, self._unknown.pop(run.node_id, {})
        move = logs.moves._move
        before, places = self._places.get(run.node_id, {}), {}
        for key in {*before, *logs.logs}:
            found = before.get(key, frozenset())
            offline = found & logs.failed_disks.keys()
            if key in logs.logs or not offline:  # else the process did not learn which directory has the replica
                found = offline
            if key in unknown:
                found |= {unknown[key]}
            if (log := logs.get(key)) is not None:
                directory = logs._directories[log.directory_id]
                if directory.failure is None and not directory.disk.exists(log.folder):
                    continue  # without records, a replica is nowhere: the next start may find an older copy of it
                found |= {log.directory_id}
                if move is not None and move.log is log and move.may_be_decided:
                    found |= {move.source.id, move.target.id}
                    self._evidence.seen["process ended while a move was decided"] += 1
            if found:
                places[key] = found
        self._places[run.node_id] = places

    def check_recovered(self, run: BrokerRun) -> None:
        """D3: each replica is where the previous process had it, and in no other directory."""
        logs, evidence = run.context.logs, self._evidence
        for key, places in self._places.get(run.node_id, {}).items():
            if places & logs.failed_disks.keys() or (log := logs.get(key)) is None:
                continue
            evidence.check(
                log.directory_id in places,
                lambda key=key, places=places, log=log: (  # type: ignore[misc]
                    f"D3: {run.node_id} had {evidence.history(key)} in {places}, and finds it in {log.directory_id}"
                ),
            )
        failed = self._failed[run.node_id]
        for key, good in logs.doubles.items():
            copies = {*good, *(directory.id for directory, _ in logs._failed_folders.get(key, ()))}
            evidence.check(
                bool(failed & copies),
                lambda key=key, copies=copies: f"D3: {run.node_id} has {key} in {copies}",  # type: ignore[misc]
            )


def unsettled(run: BrokerRun, disks: Sequence[SimulatedDisk]) -> list[str]:
    """L14: return the remains of moves, and the replicas that are in several directories, on a broker's disks."""
    logs = run.context.logs
    found = [f"{key} still moves to {target}" for key, target in logs.moves.targets.items()]
    for disk in disks:
        found += [f"{disk.directory_id} has {FUTURES}/{name}" for name in disk.list(FUTURES)]
        facts = (*disk.facts.load(MOVING), *disk.facts.load(FUTURE))
        found += [f"{disk.directory_id} has the fact {name}" for name in facts]
    for key, log in logs.logs.items():
        folders = [disk.directory_id for disk in disks if disk.exists(log.folder)]
        if folders not in ([], [log.directory_id]):
            found.append(f"{key} is in {log.directory_id}, its folders are in {folders}")
    return found
