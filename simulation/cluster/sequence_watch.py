"""I47: the batches of idempotent producers with several batches in flight, as leaders commit and refuse them.

The committed records of such a producer have no gap: each batch comes directly after the previous one, even if it was
sent before the previous one was answered.  The checks I20 and I22 cover every producer: no record comes twice or late.

No answer reports a loss while an earlier batch must still be sent again.  `OUT_OF_ORDER_SEQUENCE_NUMBER` means that
the leader lacks records that it had acknowledged.  After this error, librdkafka begins a new producer epoch, and sends
under that epoch all batches whose answers it does not know.  The log then cannot recognise those that it already has.
"""

from __future__ import annotations

from collections.abc import Sequence

from simulation.cluster.evidence import Evidence
from simulation.cluster.history import Committed, History, Mark
from simulation.cluster.metadata import Spot


class SequenceWatch:
    """The checks of one run.  Each writer has one partition, and its records are numbered from 0 in their order."""

    def __init__(self, evidence: Evidence) -> None:
        self._evidence = evidence
        self._following: dict[int, int] = {}
        """By writer: the number of its next record."""
        evidence.on_committed.append(self._on_committed)

    def begins(self, writer: int) -> None:
        """Check the records of this writer from now on.  Its topic must keep all records."""
        self._following[writer] = 0

    def refused(self, spot: Spot, marks: tuple[Mark, ...], error: str, earlier: Sequence[str]) -> None:
        """Check an answer that reports a loss.  earlier: the errors of the earlier batches that were refused."""
        history = self._evidence.current(spot)
        self._evidence.check(
            history is not None and history.unclean_epoch >= 0,
            lambda: f"I47: {marks} of {spot} are answered with {error}, batches before were answered with {earlier}",
        )

    def _on_committed(self, history: History, batch: Committed) -> None:
        for mark in batch.marks:
            if mark is None or mark.writer not in self._following:
                continue
            following = self._following[mark.writer]
            self._evidence.check(
                mark.number <= following or history.unclean_epoch >= 0,
                lambda mark=mark, following=following: (  # type: ignore[misc]
                    f"I47: {mark} of {history} becomes committed without {Mark(mark.writer, following)}"
                ),
            )
            self._following[mark.writer] = mark.number + 1
