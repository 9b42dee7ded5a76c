"""The voter sets in the log, by offset.

A voter set is in force from the moment it is appended, committed or not, and a truncation restores the previous set
(KIP-853).  So no code assigns the set: it is computed from this history, which grows and is truncated only together
with the log.
"""

from __future__ import annotations

from collections.abc import Iterable
from uuid import UUID

from quorum.core.types import Batch, ControlRecord, LogBase, ReplicaKey, TargetVoters, Voters, VoterSet


class VoterHistory:
    """Each `Voters` and `TargetVoters` record of the log with its offset, ascending."""

    def __init__(self, controls: Iterable[Batch], base: LogBase | None = None) -> None:
        self.founding: Batch | None = None  # the batch at offset 0
        self.current = VoterSet()  # the set in force; each change makes another object
        self._voters: list[tuple[int, Voters]] = []
        self._targets: list[tuple[int, TargetVoters]] = []
        if base is not None:
            self.reset(base)
        for batch in controls:
            self.append(batch)

    def reset(self, base: LogBase) -> None:
        """Drop all records, because the log restarts empty at the base's end.

        The sets in force at that end count as the last record before it.
        """
        offset = base.end.offset - 1
        self.founding = None
        self._voters = [(offset, base.voters)]
        self._targets = [(offset, TargetVoters(base.target))] if base.target is not None else []
        self.current = base.voters.voters

    def trim(self, base: LogBase) -> None:
        """Drop the records below the base's end, where the log now starts.  Keep the sets in force at that offset."""
        kept = base.end.offset
        voters = [entry for entry in self._voters if entry[0] >= kept]
        targets = [entry for entry in self._targets if entry[0] >= kept]
        current = self.current
        self.reset(base)
        self._voters += voters
        self._targets += targets
        self.current = current

    def in_force_below(self, offset: int) -> tuple[Voters, VoterSet | None]:
        """Return the `Voters` record and the target in force at the end offset `offset`.

        offset: above 0, and not below the log's start.
        """
        records = [record for at, record in self._voters if at < offset]
        return records[-1], self.below(offset)[1]

    def append(self, batch: Batch) -> bool:
        """Note a batch that was appended to the log; return whether it changes the voters or their target."""
        match batch.control:
            case Voters() as record:
                self._voters.append((batch.base_offset, record))
                self.current = record.voters
                if batch.base_offset == 0:
                    self.founding = batch
            case TargetVoters() as record:
                self._targets.append((batch.base_offset, record))
            case _:
                return False
        return True

    def truncate(self, to: int) -> list[ControlRecord]:
        """Drop the records at and above offset `to`; return the earlier records that are in force again."""
        restored: list[ControlRecord] = []
        if self._voters and self._voters[-1][0] >= to:
            self._voters = [entry for entry in self._voters if entry[0] < to]
            restored += [entry[1] for entry in self._voters[-1:]]
            self.current = self._voters[-1][1].voters if self._voters else VoterSet()
        if self._targets and self._targets[-1][0] >= to:
            self._targets = [entry for entry in self._targets if entry[0] < to]
            restored.append(self._targets[-1][1] if self._targets else TargetVoters(None))
        if to <= 0:
            self.founding = None
        return restored

    @property
    def record(self) -> Voters | None:
        """The latest `Voters` record; None in a log without the founding batch."""
        return self._voters[-1][1] if self._voters else None

    @property
    def target(self) -> VoterSet | None:
        """The voter set that the leader works towards, if any."""
        return self._targets[-1][1].target if self._targets else None

    def was_just_removed(self, key: ReplicaKey, high_watermark: int) -> bool:
        """Return whether the latest, uncommitted set removes this voter."""
        if len(self._voters) < 2 or self._voters[-1][0] < high_watermark:
            return False
        return key in self._voters[-2][1].voters and key not in self.current

    def rebuilt_at(self, generation: int) -> int | None:
        """Return the offset at which this generation of the quorum began; None if the log starts later."""
        at = next((at for at, (_, record) in enumerate(self._voters) if record.generation >= generation), 0)
        return self._voters[at][0] if at > 0 else None

    @property
    def changed_at(self) -> int:
        """Offset of the last record that changed the voters or their target; -1 if there is none."""
        voters = self._voters[-1][0] if self._voters else -1
        return max(voters, self._targets[-1][0]) if self._targets else voters

    @property
    def target_started_size(self) -> int:
        """The number of voters when the current target was set."""
        offset = self._targets[-1][0] if self._targets else 0
        before = self.below(offset)[0]
        if len(before) == 0 and self._voters:
            before = self._voters[0][1].voters  # set before the log's start: take the set in force there
        return max(len(before), 1)

    def was_voter(self, node_id: int, directory_id: UUID | None) -> bool:
        """Return whether an earlier voter set of this log had such a voter."""
        voters = [record.voters.by_id(node_id) for _, record in self._voters]
        return any(voter is not None and directory_id in (None, voter.key.directory_id) for voter in voters)

    def below(self, offset: int) -> tuple[VoterSet, VoterSet | None]:
        """Return the voter set and target in force at the end offset `offset`."""
        voters = [record.voters for at, record in self._voters if at < offset]
        targets = [record.target for at, record in self._targets if at < offset]
        return (voters[-1] if voters else VoterSet(), targets[-1] if targets else None)
