"""A decision: the records to append, and the reply after they are committed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Generic, TypeVar

import msgspec

from metadata.image import ClusterImage
from metadata.records import NO_OFFSET, RECORDS_PER_BATCH_MAX, PartitionChange, Record

T = TypeVar("T")


class Decision(msgspec.Struct, Generic[T], frozen=True):
    """The result of a decision on an image.  The controller is the only writer, so the first record's offset is that
    image's end.

    records: one batch, all or nothing; empty if nothing changes.
    more: apply the records, then decide the same request again on the new image; `reply` is not final yet.
    """

    reply: T
    records: tuple[Record, ...] = ()
    more: bool = False


def with_end(image: ClusterImage, decision: Decision[T]) -> Decision[tuple[T, int]]:
    """Return the decision with (reply, end offset of its records) as the reply.  image: the basis of the decision."""
    end_offset = image.end_offset + len(decision.records)
    return Decision((decision.reply, end_offset), decision.records, decision.more)


def batch_with_head(head: Record, changes: Sequence[PartitionChange]) -> tuple[tuple[Record, ...], bool]:
    """Return one batch with `head` and its consequences, and whether another batch must follow.

    The cause of each change is the image's end, the offset that `head` gets.  If the changes do not fit into one batch,
    the first batches contain only changes, without a cause in the log, and the last batch contains `head`.  If the
    controller fails in between, its successor finds that `head` is missing (for example, a broker is still unfenced),
    and decides the rest.
    """
    if len(changes) < RECORDS_PER_BATCH_MAX:
        return (head, *changes), False
    part = [msgspec.structs.replace(change, cause_offset=NO_OFFSET) for change in changes[:RECORDS_PER_BATCH_MAX]]
    return tuple(part), True
