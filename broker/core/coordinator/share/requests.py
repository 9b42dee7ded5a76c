"""Requests about share groups, their responses, effects, and limits."""

from __future__ import annotations

from typing import Final, NamedTuple

import msgspec

from broker.core.coordinator.client import Client
from broker.core.coordinator.consumer.partitions import Partitions
from broker.core.coordinator.consumer.requests import NamedPartitions
from quorumlog.wire.errors import KafkaCode

JOINING: Final = 0
LEAVING: Final = -1


class ShareGroupLimits(msgspec.Struct, frozen=True):
    """The limits of share groups.  Times in ms.

    session_timeout_ms: a member without a heartbeat for this long is removed.
    heartbeat_interval_ms: the interval that the coordinator sends to members.
    members_max: `group.share.max.size`; further members get GROUP_MAX_SIZE_REACHED.
    topics_max: names in the subscription of a member; a longer subscription gets INVALID_REQUEST.
    initialization_retry_ms: time before the next attempt to initialize or delete states, after a failure.
    """

    session_timeout_ms: int = 45_000
    heartbeat_interval_ms: int = 5_000
    members_max: int = 200
    topics_max: int = 1_000
    initialization_retry_ms: int = 10_000


class ShareHeartbeat(msgspec.Struct, frozen=True):
    """A member joins, stays, changes its subscription, or leaves.

    epoch: the member's epoch, or JOINING or LEAVING.
    A field that is None is unchanged since the last request.
    """

    group: str
    member_id: str
    epoch: int
    client: Client
    rack_id: str | None = None
    topics: tuple[str, ...] | None = None


class ShareHeartbeatResponse(msgspec.Struct, frozen=True):
    """assignment: None if it has not changed."""

    error: KafkaCode
    message: str | None = None
    member_id: str | None = None
    epoch: int = 0
    heartbeat_interval_ms: int = 0
    assignment: Partitions | None = None


class DescribeShareGroups(msgspec.Struct, frozen=True):
    """Describe share groups.  Other groups get GROUP_ID_NOT_FOUND."""

    groups: tuple[str, ...]


class ShareMemberDescription(NamedTuple):
    member_id: str
    rack_id: str | None
    epoch: int
    client_id: str
    client_host: str
    topics: tuple[str, ...]
    assignment: tuple[NamedPartitions, ...]


class ShareGroupDescription(NamedTuple):
    """members: sorted by member id."""

    group: str
    error: KafkaCode = KafkaCode.NONE
    message: str | None = None
    state: str = ""
    epoch: int = 0
    assignment_epoch: int = 0
    members: tuple[ShareMemberDescription, ...] = ()


class DescribeShareGroupsResponse(msgspec.Struct, frozen=True):
    """groups: one for each group of the request, in that order."""

    groups: tuple[ShareGroupDescription, ...]


class ListShareStates(msgspec.Struct, frozen=True):
    """Return the share partitions of a group that have a state, and the epoch of the group.

    must_be_empty: a group with members gets NON_EMPTY_GROUP.
    """

    group: str
    must_be_empty: bool = False


class ListShareStatesResponse(msgspec.Struct, frozen=True):
    error: KafkaCode
    message: str | None = None
    epoch: int = 0
    partitions: tuple[NamedPartitions, ...] = ()


class ResetShareStates(msgspec.Struct, frozen=True):
    """Begin a new epoch, at which the states will be initialized again.  The response contains the epoch.

    The group must have no members.  A group that does not exist is created, so that its first member finds the start
    offsets.  Without partitions, nothing changes.
    """

    group: str
    partitions: tuple[NamedPartitions, ...]


class NoteShareStates(msgspec.Struct, frozen=True):
    """Note that these share partitions have a state now."""

    group: str
    partitions: tuple[NamedPartitions, ...]


class ForgetShareStates(msgspec.Struct, frozen=True):
    """Note that the states of these topics have been deleted.  A missing group is ignored."""

    group: str
    topics: tuple[NamedPartitions, ...]


class InitializeShareStates(msgspec.Struct, frozen=True):
    """An effect: initialize states at the share coordinators, and report successes by `share_initialized`."""

    group: str
    state_epoch: int
    partitions: tuple[NamedPartitions, ...]


class DeleteShareStates(msgspec.Struct, frozen=True):
    """An effect: delete the states of topics that no longer exist, and report successes by `share_deleted`."""

    group: str
    partitions: tuple[NamedPartitions, ...]


ShareRequest = (
    ShareHeartbeat | DescribeShareGroups | ListShareStates | ResetShareStates | NoteShareStates | ForgetShareStates
)
