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
    """Return the decision with the end offset of its records beside the reply.  image: the one it was decided on."""
    end_offset = image.end_offset + len(decision.records)
    return Decision((decision.reply, end_offset), decision.records, decision.more)


def batch_with_head(head: Record, changes: Sequence[PartitionChange]) -> tuple[tuple[Record, ...], bool]:
    """Return one batch of the consequences of `head`, and whether more follow.

    `changes` have the image's end, where `head` will be, as their cause.  If they do not fit into one batch, batches of
    changes come first, without a cause in the log, and `head` comes in the last batch.  If the controller fails in
    between, its successor finds that `head` is missing (a broker is still unfenced, for example) and does the rest.
    """
    if len(changes) < RECORDS_PER_BATCH_MAX:
        return (head, *changes), False
    part = [msgspec.structs.replace(change, cause_offset=NO_OFFSET) for change in changes[:RECORDS_PER_BATCH_MAX]]
    return tuple(part), True
