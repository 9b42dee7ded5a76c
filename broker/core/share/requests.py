"""Requests of members of share groups to the leaders of partitions, and their results."""

from __future__ import annotations

from uuid import UUID

import msgspec

from broker.core.share.partition import Acknowledgement, Acquired
from quorumlog.wire.errors import KafkaCode

SharePlace = tuple[UUID, int]
"""A partition in requests of share groups: topic id and partition index."""


class ShareFetchPlan(msgspec.Struct, frozen=True):
    """A whole ShareFetch request.

    places, forgotten: partitions that join and leave the session.
    is_exact: return no more than `max_records`, even if that divides a batch.
    is_renewal: acknowledgements may renew locks; nothing is fetched.
    peer: the client's address and port, which identify its connection.
    """

    group: str
    member_id: str
    session_epoch: int
    max_wait_ms: int
    min_bytes: int
    max_bytes: int
    max_records: int
    is_exact: bool
    is_renewal: bool
    places: tuple[SharePlace, ...]
    forgotten: tuple[SharePlace, ...]
    acknowledgements: dict[SharePlace, tuple[Acknowledgement, ...]]
    peer: str


class ShareAcknowledgePlan(msgspec.Struct, frozen=True):
    """A whole ShareAcknowledge request.  peer: the client's address and port, which identify its connection."""

    group: str
    member_id: str
    session_epoch: int
    is_renewal: bool
    acknowledgements: dict[SharePlace, tuple[Acknowledgement, ...]]
    peer: str


class ShareAcknowledged(msgspec.Struct, frozen=True):
    """The outcome for one partition.

    error: NONE if the acknowledgements are durable, and renewed locks have their new deadlines.  Otherwise this leader
        ignores the acknowledgements.  If the share coordinator did not answer, a later leader may find them stored.
    """

    place: SharePlace
    error: KafkaCode


class ShareFetched(msgspec.Struct, frozen=True):
    """records: whole batches that contain the acquired records."""

    place: SharePlace
    error: KafkaCode
    records: bytes | memoryview = b""
    acquired: tuple[Acquired, ...] = ()


class ShareReply(msgspec.Struct, frozen=True):
    """error: the error of the whole request.  After an error, nothing was acknowledged and nothing was acquired."""

    error: KafkaCode
    message: str | None = None
    acknowledged: tuple[ShareAcknowledged, ...] = ()
    fetched: tuple[ShareFetched, ...] = ()
