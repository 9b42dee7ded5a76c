"""One member of a classic group."""

from __future__ import annotations

from dataclasses import dataclass

from broker.core.coordinator.client import Client
from broker.core.coordinator.group_requests import JoinGroup, MemberName, MemberProtocol
from broker.core.coordinator.records import MemberValue

_RECORD_FIELDS_BYTES = 24
"""Bytes of the length fields and timeouts of a member in the record of its group."""


@dataclass(slots=True, eq=False)
class Member:
    """A member, and the call that it waits for, if any.

    protocols: in the member's order of preference.  A loaded member has only the protocol that its group uses.
    assignment: the assignment in the last generation that became stable.
    join_call, sync_call: the JoinGroup or SyncGroup that waits for an answer; at most one of them.
    expires_ms: the end of its session, or the deadline of a new member's JoinGroup that waits
        (`rebalance.NEW_MEMBER_JOIN_TIMEOUT_MS`).  None while any other call waits: then the group has a deadline.
    knows_id: the client knows its member id.  Otherwise the client cannot rejoin as this member.
    """

    member_id: str
    instance_id: str | None
    client: Client
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocols: tuple[MemberProtocol, ...]
    assignment: bytes = b""
    join_call: int | None = None
    sync_call: int | None = None
    expires_ms: int | None = None
    knows_id: bool = True

    @property
    def name(self) -> str:
        """Return the member's name for people: its id, and the instance id of a static member."""
        return repr(self.member_id) if self.instance_id is None else f"{self.member_id!r} ({self.instance_id!r})"

    @property
    def names(self) -> MemberName:
        """Return all names of the member."""
        return MemberName(self.member_id, self.instance_id, self.client)

    @property
    def protocol_names(self) -> tuple[str, ...]:
        """Return the name of each protocol once."""
        return tuple(dict.fromkeys(protocol.name for protocol in self.protocols))

    @property
    def record_bytes(self) -> int:
        """Return an upper bound of the member's size in the record of its group, without its assignment."""
        names = (self.member_id, self.instance_id or "", self.client.client_id, self.client.host)
        metadata = max((len(protocol.metadata) for protocol in self.protocols), default=0)
        return _RECORD_FIELDS_BYTES + sum(len(name.encode()) for name in names) + metadata

    def metadata(self, protocol: str | None) -> bytes:
        """Return the metadata for a protocol; empty if the member does not support it."""
        return next((each.metadata for each in self.protocols if each.name == protocol), b"")

    def value(self, protocol: str | None) -> MemberValue:
        """Return the member as the record of its group stores it."""
        return MemberValue(
            self.member_id,
            self.instance_id,
            self.client.client_id,
            self.client.host,
            self.rebalance_timeout_ms,
            self.session_timeout_ms,
            self.metadata(protocol),
            self.assignment,
        )


def joining_member(member_id: str, request: JoinGroup) -> Member:
    """Return the member that a request describes.  A client that sends no member id does not know its id yet."""
    return Member(
        member_id,
        request.instance_id,
        request.client,
        request.session_timeout_ms,
        request.rebalance_timeout_ms,
        request.protocols,
        knows_id=bool(request.member_id),
    )


def loaded_member(value: MemberValue, protocol: str | None) -> Member:
    """Return a member that was stored while its group used `protocol`."""
    return Member(
        value.member_id,
        value.instance_id,
        Client(value.client_id, value.client_host),
        value.session_timeout_ms,
        value.rebalance_timeout_ms,
        (MemberProtocol(protocol or "", value.subscription),),
        value.assignment,
    )
