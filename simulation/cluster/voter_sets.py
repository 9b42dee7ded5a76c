"""I11: consecutive voter sets of the committed log differ by at most one voter."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from quorum.core.types import Batch, TargetVoters, Voters, VoterSet


class VotersWatch:
    """The voters and the target set according to the committed log.  `committed` gets each committed batch once."""

    def __init__(self, check: Callable[[bool, Callable[[], str]], None], seen: Counter[str]) -> None:
        self._check = check
        self._seen = seen
        self.generation = 0
        self.voters = VoterSet()
        self.target: VoterSet | None = None

    def committed(self, batch: Batch) -> None:
        match batch.control:
            case Voters(_, generation, voters):
                before = {voter.key for voter in self.voters}
                after = {voter.key for voter in voters}
                is_rebuilt, self.generation = generation > self.generation, generation
                if before and not is_rebuilt:
                    self._seen["voters changed"] += before != after
                    self._check(
                        len(before ^ after) <= 1,
                        lambda: f"I11: the voters change from {self.voters} to {voters} in one step",
                    )
                self.voters = voters
            case TargetVoters(target):
                self.target = target
