"""The transaction of a batch, as the header and the marker of the batch give it."""

from __future__ import annotations

from typing import Any, NamedTuple

from quorumlog.wire.control_records import parse_marker
from quorumlog.wire.record_batch import BatchHeader


class Transactional(NamedTuple):
    """producer: id and epoch.  commits: the decision, if the batch is a marker; None if it has records."""

    producer: tuple[int, int]
    commits: bool | None = None


def transaction_of(data: Any, position: int, header: BatchHeader) -> Transactional | None:
    """Return the transaction of the batch at `position`; None if it belongs to none."""
    if not header.is_transactional:
        return None
    marker = parse_marker(data, header, position) if header.is_control else None
    return Transactional((header.producer_id, header.producer_epoch), None if marker is None else marker.is_commit)
