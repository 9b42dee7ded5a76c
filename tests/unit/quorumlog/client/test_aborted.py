"""Batches of aborted transactions are omitted from the result of a fetch."""

from __future__ import annotations

from typing import NamedTuple

from hypothesis import given
from hypothesis import strategies as st

from quorumlog.client.records import NewRecord, build_batch, open_batches, stamp
from quorumlog.wire.control_records import EndTxnMarker, build_marker
from quorumlog.wire.record_batch import patch

ABORT, COMMIT = EndTxnMarker(False, 0), EndTxnMarker(True, 0)


class Log:
    """A partition: batches of two records and markers, with the list of aborted transactions that a broker keeps."""

    def __init__(self) -> None:
        self.batches: list[bytearray] = []
        self.end = 0
        self.aborted: list[tuple[int, int, int]] = []
        """Producer id, first offset, offset of the marker."""
        self.visible: list[int] = []
        """Base offsets of the batches that a reader sees, judged by the whole log."""
        self._open: dict[int, list[int]] = {}

    def write(self, producer_id: int, *, transactional: bool = True) -> None:
        batch = build_batch([NewRecord(None, b"x", 0)] * 2)
        stamp(batch, producer_id, 0, 0, is_transactional=transactional)
        if transactional:
            self._open.setdefault(producer_id, []).append(self.end)
        else:
            self.visible.append(self.end)
        self._append(batch, 2)

    def mark(self, producer_id: int, marker: EndTxnMarker) -> None:
        written = self._open.pop(producer_id, [])
        if marker.is_commit:
            self.visible += written
        elif written:
            self.aborted.append((producer_id, written[0], self.end))
        self._append(build_marker(marker, producer_id, 0, 0), 1)

    def _append(self, batch: bytearray, count: int) -> None:
        patch(batch, self.end, 0)
        self.batches.append(batch)
        self.end += count

    def seen(self, first: int = 0) -> list[int]:
        """Fetch all batches from number `first` on, and return the base offsets of those that are not omitted."""
        data = b"".join(self.batches[first:])
        position = sum(1 if batch[22] & 0x20 else 2 for batch in self.batches[:first])  # the control bit
        listed = [(producer, start) for producer, start, marker in self.aborted if marker >= position]
        return [batch.header.base_offset for batch in open_batches(data, aborted=listed)]


def test_an_aborted_transaction_ends_at_its_marker() -> None:
    log = Log()
    log.write(1)
    log.write(2)
    log.mark(1, ABORT)
    log.write(1)
    log.mark(2, COMMIT)
    log.mark(1, COMMIT)
    assert log.seen() == [2, 5]


def test_batches_outside_transactions_are_returned_although_a_transaction_is_aborted() -> None:
    log = Log()
    log.write(1)
    log.write(1, transactional=False)
    log.mark(1, ABORT)
    assert log.seen() == [2]


class Step(NamedTuple):
    producer_id: int
    kind: str


STEPS = st.lists(
    st.builds(Step, st.integers(1, 3), st.sampled_from(["write", "plain", "abort", "commit"])), max_size=30
)


@given(STEPS, st.integers(0, 30))
def test_a_fetch_from_any_batch_omits_exactly_the_aborted_batches(steps: list[Step], first: int) -> None:
    log = Log()
    for producer_id, kind in steps:
        if kind in ("write", "plain"):
            log.write(producer_id, transactional=kind == "write")
        else:
            log.mark(producer_id, ABORT if kind == "abort" else COMMIT)
    for producer_id in (1, 2, 3):  # up to the last stable offset, every transaction is decided
        log.mark(producer_id, COMMIT)
    first = min(first, len(log.batches))
    position = log.end if first == len(log.batches) else int.from_bytes(log.batches[first][:8], "big")
    assert log.seen(first) == sorted(offset for offset in log.visible if offset >= position)
