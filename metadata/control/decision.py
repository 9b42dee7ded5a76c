"""What a decision is: the records to append and the answer to give once they are committed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import msgspec

from metadata.image import ClusterImage
from metadata.records import MAX_RECORDS_PER_BATCH, NO_OFFSET, PartitionChange, Record

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Decision(Generic[T]):
    """Decided on an image; the controller is the only writer, so the first record's offset is that image's end.

    records: one batch, all or nothing; empty when nothing changes.
    more: apply the records, then decide the same request again on the new image; `reply` is not the answer yet.
    """

    reply: T
    records: tuple[Record, ...] = ()
    more: bool = False


def with_end(image: ClusterImage, decision: Decision[T]) -> Decision[tuple[T, int]]:
    """The same, its reply beside the end offset of what it rests on.  `image`: what it was decided on."""
    end_offset = image.end_offset + len(decision.records)
    return Decision((decision.reply, end_offset), decision.records, decision.more)


def batch_with_head(head: Record, changes: Sequence[PartitionChange]) -> tuple[tuple[Record, ...], bool]:
    """One batch of what `head` causes, and whether more of it follows.

    `changes` name the image's end, where `head` goes, as their cause.  When they do not fit, a batch of changes goes
    first, without a cause in the log, and `head` comes in the last batch: if the controller dies in between, its
    successor finds the cause undone (a broker still unfenced, say) and does the rest.
    """
    if len(changes) < MAX_RECORDS_PER_BATCH:
        return (head, *changes), False
    part = [msgspec.structs.replace(change, cause_offset=NO_OFFSET) for change in changes[:MAX_RECORDS_PER_BATCH]]
    return tuple(part), True
