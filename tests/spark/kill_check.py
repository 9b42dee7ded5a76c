"""Compares the input of a kill run with its outputs.  Pure, so that its own tests need no cluster.

A row is a record of the input topic, identified by its partition and offset.  An output may have a row more than once
only if it is written at least once, and Spark repeated a batch that contains the row.  Both outputs of the kill run are
written exactly once: the topic by transactions, and the Parquet files because Spark's file sink recognises a repeated
batch.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

Row = tuple[int, int]
"""Partition and offset in the input topic."""
SHOWN_MAX = 5


@dataclass(frozen=True, slots=True)
class Repeated:
    """A batch that Spark had planned and not committed when its query started again.  first, end: by partition."""

    batch: int
    first: Mapping[int, int]
    end: Mapping[int, int]

    def has(self, row: Row) -> bool:
        partition, offset = row
        return self.first.get(partition, 0) <= offset < self.end.get(partition, 0)


def unfinished(checkpoint: Path) -> Repeated | None:
    """Return the batch that the query will repeat if it starts now; None if it has finished every planned batch."""
    planned, committed = _numbers(checkpoint / "offsets"), _numbers(checkpoint / "commits")
    if not planned or max(planned) in committed:
        return None
    batch = max(planned)
    return Repeated(batch, _offsets(checkpoint, batch - 1) if batch - 1 in planned else {}, _offsets(checkpoint, batch))


def _numbers(folder: Path) -> set[int]:
    return {int(file.name) for file in folder.glob("[0-9]*") if file.name.isdecimal()}


def _offsets(checkpoint: Path, batch: int) -> dict[int, int]:
    text = (checkpoint / "offsets" / str(batch)).read_text().splitlines()[2]
    return {int(partition): offset for topic in json.loads(text).values() for partition, offset in topic.items()}


def problems(
    written: Collection[str],
    source: Mapping[Row, str],
    outputs: Mapping[str, Sequence[tuple[Row, str]]],
    repeated: Mapping[str, Sequence[Repeated]],
) -> list[str]:
    """Return a sentence for each kind of problem; none if no row is lost and duplicates are only where documented.

    Args:
        written: the values whose writes the brokers acknowledged.
        source: the contents of the input topic.
        outputs: the rows of each output, with their values.
        repeated: for each output that may have duplicates, the batches that were repeated.
    """
    found = []
    contents = Counter(source.values())
    if missing := [value for value in written if not contents[value]]:
        found.append(f"the input lost {len(missing)} acknowledged records, like {missing[:SHOWN_MAX]}")
    if twice := [value for value, count in contents.items() if count > 1]:
        found.append(f"the input has {len(twice)} records more than once, like {twice[:SHOWN_MAX]}")
    for name, rows in outputs.items():
        counts = Counter(row for row, _ in rows)
        if lost := sorted(source.keys() - counts.keys()):
            found.append(f"{name} lost {len(lost)} rows, like {lost[:SHOWN_MAX]}")
        if changed := [row for row, value in rows if source.get(row) != value]:
            found.append(f"{name} has {len(changed)} rows that differ from the input, like {changed[:SHOWN_MAX]}")
        extra = sorted(
            row
            for row, count in counts.items()
            if count > 1 and count > 1 + sum(batch.has(row) for batch in repeated.get(name, ()))
        )
        if extra:
            found.append(f"{name} has {len(extra)} rows more often than documented, like {extra[:SHOWN_MAX]}")
    return found


def duplicates(rows: Sequence[tuple[Row, str]]) -> int:
    """Return the number of copies of rows: for each row, those after the first."""
    return len(rows) - len({row for row, _ in rows})
