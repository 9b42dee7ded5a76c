"""Replays records into a machine in batches, as the shell does when it loads a log."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Any

from broker.core.coordinator.machine import Machine, Record
from quorumlog.client.record_codec import build_batch, read_batch
from quorumlog.client.records import OFFSET_MAX, open_batches
from quorumlog.wire._record_scan import Record as LoggedRecord

BATCH_RECORDS_MAX = 7


def logged(records: Sequence[tuple[bytes | None, bytes | None]], base_offset: int = 0) -> list[LoggedRecord]:
    """Return keys and values as the records of one batch of a log."""
    batch = build_batch([(0, key, value, ()) for key, value in records])
    batch[:8] = base_offset.to_bytes(8, "big")
    [opened] = open_batches(batch)
    return read_batch(opened, "__consumer_offsets", 0, 0, OFFSET_MAX)


def replay_log(machine: Machine[Any, Any], log: Iterable[Record]) -> None:
    """Replay markers, and the other records in batches of at most BATCH_RECORDS_MAX."""
    for (producer, marker), group in groupby(log, lambda each: (each.producer, each.marker)):
        records = list(group)
        if marker is not None:
            for each in records:
                machine.replay(each)
            continue
        for first in range(0, len(records), BATCH_RECORDS_MAX):
            some = records[first : first + BATCH_RECORDS_MAX]
            machine.replay_batch(logged([(each.key, each.value) for each in some]), producer)
