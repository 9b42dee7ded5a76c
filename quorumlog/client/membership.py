"""One member of a consumer group (classic protocol): a pure core, which turns events and the time into effects.

Theory of operation.  A member joins (JoinGroup).  The leader of the new generation assigns the partitions, and each
member gets its part (SyncGroup).  From then on, heartbeats show that the member is alive, and their answers announce
rebalances.

    idle -> joining -> [counting, if leader] -> syncing -> stable -> (revoking ->) joining -> …

With eager assignors, a member gives up all its partitions before it joins.  With cooperative assignors, it keeps them,
and revokes only those that the new assignment lacks.  Then it joins once more, so that these can be assigned (KIP-429).
If any configured assignor is eager, all rebalances are eager, as in Kafka.

`Revoke` is the only effect that waits for the user.  It ends with `Revoked`.  Heartbeats continue meanwhile, so the
coordinator does not remove the member because of slow user code.  If the user takes no records for `poll_interval_s`
(`Stalled`), the member leaves.  A static member only stops its heartbeats.  The member joins again when the user next
asks for records (`Active`).

Partitions are lost, not revoked, if the member is no longer in the group or in its current generation.  Other members
may then own them already, so nothing may be committed and nothing waits for the user.

A reply names the round (attempt to join) or the generation that it answers, so a late reply is ignored.  `deadline` is
the time of the next `Tick`; each `Tick` at or after that time changes it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final

from quorumlog.client.assignors import ASSIGNORS, Style
from quorumlog.client.group_protocol import (
    NO_GENERATION,
    Subscription,
    decode_subscription,
    encode_assignment,
    encode_subscription,
)
from quorumlog.client.messages import TopicPartition
from quorumlog.errors import ClusterError
from quorumlog.wire.errors import ApiError

RETRY_FIRST_S: Final = 0.1
RETRY_MAX_S: Final = 1.0

_COORDINATOR_MOVED: Final = frozenset({ApiError.NOT_COORDINATOR, ApiError.COORDINATOR_NOT_AVAILABLE})
_UNKNOWN: Final = frozenset({"UNKNOWN_MEMBER_ID", "ILLEGAL_GENERATION"})
_REBALANCE: Final = "REBALANCE_IN_PROGRESS"
_MEMBER_ID_REQUIRED: Final = "MEMBER_ID_REQUIRED"

Partitions = frozenset[TopicPartition]


class Phase(Enum):
    IDLE = "idle"
    REVOKING = "revoking"  # before the member joins, or after an assignment that lacks some of its partitions
    WAITING = "waiting"  # a pause before the next attempt to join
    JOINING = "joining"
    COUNTING = "counting"  # the leader looks up the partitions of the members' topics
    SYNCING = "syncing"
    STABLE = "stable"
    STALLED = "stalled"  # out of the group, because the user takes no records
    ENDED = "ended"


# --- events --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Subscribe:
    """The subscribed topics and their numbers of partitions, after each look-up, even if nothing has changed.

    counts: the number of partitions of each topic that exists.  others: the topics of `others_topics` that were also
    looked up.
    """

    topics: frozenset[str]
    counts: Mapping[str, int]
    others: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class JoinedMember:
    member_id: str
    instance_id: str | None
    metadata: bytes


@dataclass(frozen=True, slots=True)
class Joined:
    """The answer to `Join`.  error: None means success."""

    round: int
    error: ClusterError | None = None
    member_id: str = ""
    generation: int = NO_GENERATION
    assignor: str = ""
    is_leader: bool = False
    members: tuple[JoinedMember, ...] = ()


@dataclass(frozen=True, slots=True)
class Counted:
    """The answer to `Count`.  counts: None if the look-up failed with `error`."""

    round: int
    counts: Mapping[str, int] | None
    error: ClusterError | None = None


@dataclass(frozen=True, slots=True)
class Synced:
    """The answer to `Sync`.  assignment: None if the leader sent bytes that are not an assignment."""

    round: int
    error: ClusterError | None = None
    assignment: Partitions | None = frozenset()


@dataclass(frozen=True, slots=True)
class Beaten:
    """The answer to `Heartbeat`."""

    generation: int
    error: ClusterError | None = None


@dataclass(frozen=True, slots=True)
class Refused:
    """A commit of this generation was refused.  The code shows that the member must join the group again."""

    generation: int
    code: str


@dataclass(frozen=True, slots=True)
class Revoked:
    """A `Revoke` without `is_lost` was completed."""

    number: int


@dataclass(frozen=True, slots=True)
class Stalled:
    """The user has taken no records for `poll_interval_s`."""


@dataclass(frozen=True, slots=True)
class Active:
    """The user asks for records again."""


@dataclass(frozen=True, slots=True)
class Tick:
    """`deadline` has passed."""


@dataclass(frozen=True, slots=True)
class End:
    """The consumer is closed, and its partitions are revoked: leave the group."""


Event = Subscribe | Joined | Counted | Synced | Beaten | Refused | Revoked | Stalled | Active | Tick | End


# --- effects -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Join:
    """Send JoinGroup.  protocols: each assignor with the member's metadata for it, the preferred one first."""

    round: int
    member_id: str
    protocols: tuple[tuple[str, bytes], ...]


@dataclass(frozen=True, slots=True)
class Count:
    """Look up the number of partitions of these topics."""

    round: int
    topics: frozenset[str]


@dataclass(frozen=True, slots=True)
class Sync:
    """Send SyncGroup.  assignments: each member id with its encoded assignment; empty unless this member leads."""

    round: int
    member_id: str
    generation: int
    assignor: str
    assignments: tuple[tuple[str, bytes], ...] = ()


@dataclass(frozen=True, slots=True)
class Heartbeat:
    member_id: str
    generation: int


@dataclass(frozen=True, slots=True)
class Leave:
    """Leave the group.  Static members do not leave: they keep their partitions until their session ends."""

    member_id: str


@dataclass(frozen=True, slots=True)
class Revoke:
    """Give up partitions.  `Revoked` is the answer, unless `is_lost`.

    is_lost: other members may already own them.  Then nothing is committed, nothing waits for the user, and no answer
        follows.
    """

    partitions: Partitions
    number: int
    is_lost: bool = False


@dataclass(frozen=True, slots=True)
class Assign:
    """Begin with these partitions, in addition to those that were kept."""

    partitions: Partitions


@dataclass(frozen=True, slots=True)
class FindCoordinator:
    """Drop the cached coordinator: the next request looks it up."""


@dataclass(frozen=True, slots=True)
class Fail:
    """The member cannot be in the group.  The user gets the error."""

    error: ClusterError


Effect = Join | Count | Sync | Heartbeat | Leave | Revoke | Assign | FindCoordinator | Fail


# --- the core ------------------------------------------------------------------------------------------------------


class Membership:
    """The core of a member.

    assignors: names, the preferred one first.
    instance_id: the name of a static member; None for a dynamic one.
    """

    def __init__(
        self,
        assignors: tuple[str, ...],
        *,
        heartbeat_s: float,
        session_s: float,
        instance_id: str | None = None,
    ) -> None:
        self.member_id = ""
        self.generation = NO_GENERATION
        self.assignor = ""
        self.is_leader = False
        self.owned: Partitions = frozenset()
        self.phase = Phase.IDLE
        self.deadline: float | None = None
        self._assignors = assignors
        self._is_cooperative = all(ASSIGNORS[name].style is Style.COOPERATIVE for name in assignors)
        self._heartbeat_s = heartbeat_s
        self._session_s = session_s
        self._instance_id = instance_id
        self._topics: frozenset[str] = frozenset()
        self._counts: dict[str, int] = {}
        self._others: frozenset[str] = frozenset()
        """Topics of other members.  Their numbers of partitions are in `_counts`."""
        self._joined_topics: frozenset[str] = frozenset()
        """The subscription in the last `Join`."""
        self._assigned_with: tuple[frozenset[str], dict[str, int]] | None = None
        """The inputs of the current assignment; if they change, a rebalance is needed."""
        self._round = 0
        self._members: dict[str, JoinedMember] = {}
        self._after_revoke: Partitions | None = None
        """The new assignment, which takes effect after `Revoked`; None: the member joins after `Revoked`."""
        self._owned_generation = NO_GENERATION
        self._last: Partitions = frozenset()
        """The last assignment, even if its partitions were given up."""
        self._retry_s = RETRY_FIRST_S
        self._is_heartbeat_pending = False
        self._heartbeat_at = 0.0
        """The loop time from which the time to the next heartbeat counts."""
        self._revocations = 0

    def step(self, event: Event, now: float) -> list[Effect]:
        """Apply one event; return the effects for the shell, in order.  now: the loop time, in seconds."""
        effects: list[Effect] = []
        if self.phase is Phase.ENDED:
            return effects
        match event:
            case Subscribe():
                self._on_subscribe(event, now, effects)
            case Joined() if self.phase is Phase.JOINING and event.round == self._round:
                self._on_joined(event, now, effects)
            case Counted() if self.phase is Phase.COUNTING and event.round == self._round:
                self._on_counted(event, now, effects)
            case Synced() if self.phase is Phase.SYNCING and event.round == self._round:
                self._on_synced(event, now, effects)
            case Beaten() if event.generation == self.generation:
                self._on_beaten(event, now, effects)
            case Refused() if event.generation == self.generation and self._is_member():
                self._on_refusal(event.code, now, effects)
            case Revoked() if self.phase is Phase.REVOKING and event.number == self._revocations:
                self._on_revoked(now, effects)
            case Stalled() if self.phase not in (Phase.IDLE, Phase.STALLED):
                self._on_stalled(effects)
            case Active() if self.phase is Phase.STALLED:
                self._join(now, effects)
            case Tick():
                self._on_tick(now, effects)
            case End():
                self._end(effects)
        self._set_deadline()
        return effects

    def others_topics(self) -> frozenset[str]:
        """Return the topics of the other members that this member must watch, because it leads the group."""
        if not self.is_leader or self._assigned_with is None:
            return frozenset()
        return frozenset(topic for each in self._subscriptions() for topic in each.topics) - self._topics

    def continues(self, member_id: str, generation: int) -> bool:
        """Return whether this member has taken part in a rebalance after this generation, or does so now."""
        if self.member_id != member_id:
            return False
        joins = self.phase in (Phase.WAITING, Phase.JOINING, Phase.COUNTING, Phase.SYNCING)
        return self.generation > generation or (joins and self.generation == generation)

    def _is_member(self) -> bool:
        """Return whether the member sends heartbeats: its generation is valid, and it is not joining."""
        return self.phase in (Phase.STABLE, Phase.REVOKING) and self.generation != NO_GENERATION

    def _set_deadline(self) -> None:
        if self._is_member():
            self.deadline = self._heartbeat_at + (self._session_s if self._is_heartbeat_pending else self._heartbeat_s)
        elif self.phase is not Phase.WAITING:
            self.deadline = None

    # --- joining ---

    def _on_subscribe(self, event: Subscribe, now: float, effects: list[Effect]) -> None:
        self._topics, self._counts, self._others = event.topics, dict(event.counts), event.others
        if self.phase is Phase.IDLE:
            if self._topics:
                self._join(now, effects)
        elif self.phase is Phase.STABLE and self._needs_rebalance():
            self._rejoin(now, effects)

    def _needs_rebalance(self) -> bool:
        """Return whether the subscription changed, or this member leads and the partitions changed.

        Only the leader watches the partitions of the group's topics, including topics to which it does not subscribe.
        All other members would only request the same rebalance.
        """
        if self._assigned_with is None:
            return False
        topics, counts = self._assigned_with
        if topics != self._topics:
            return True
        return self.is_leader and any(
            self._counts.get(topic, 0) != counts.get(topic, 0)
            for topic in topics | self._topics | (self._others & self.others_topics())
        )

    def _rejoin(self, now: float, effects: list[Effect]) -> None:
        """Join, after giving up all partitions if rebalances are eager."""
        if not self._is_cooperative and self.owned:
            self.phase = Phase.REVOKING
            self._after_revoke = None
            self._revoke(self.owned, effects)
        else:
            self._join(now, effects)

    def _join(self, now: float, effects: list[Effect]) -> None:
        self._round += 1
        self.phase = Phase.JOINING
        self._is_heartbeat_pending = False
        self._joined_topics = self._topics
        subscription = Subscription(self._topics, self.owned, self._owned_generation)
        protocols = tuple((name, encode_subscription(subscription, name, self._last)) for name in self._assignors)
        effects.append(Join(self._round, self.member_id, protocols))

    def _wait(self, now: float) -> None:
        self.phase = Phase.WAITING
        self.deadline = now + self._retry_s
        self._retry_s = min(2 * self._retry_s, RETRY_MAX_S)

    def _on_joined(self, event: Joined, now: float, effects: list[Effect]) -> None:
        if event.error is not None:
            if event.error.code == _MEMBER_ID_REQUIRED:
                self.member_id = event.member_id
                self._join(now, effects)
            else:
                self._failed_to_join(event.error, now, effects)
            return
        self.member_id, self.generation = event.member_id, event.generation
        self.assignor, self.is_leader = event.assignor, event.is_leader
        self._assigned_with = (self._joined_topics, self._counts)
        if not event.is_leader:
            self.phase = Phase.SYNCING
            effects.append(Sync(self._round, self.member_id, self.generation, self.assignor))
            return
        self._members = {member.member_id: member for member in event.members}
        self.phase = Phase.COUNTING
        effects.append(Count(self._round, frozenset(topic for each in self._subscriptions() for topic in each.topics)))

    def _subscriptions(self) -> list[Subscription]:
        return list(self._subscribers().values())

    def _subscribers(self) -> dict[str, Subscription]:
        """Return each member's subscription.  A malformed one counts as empty."""
        found = {}
        for member_id, member in self._members.items():
            subscription = decode_subscription(member.metadata, self.assignor)
            found[member_id] = Subscription(frozenset()) if subscription is None else subscription
        return found

    def _on_counted(self, event: Counted, now: float, effects: list[Effect]) -> None:
        if event.counts is None:
            assert event.error is not None
            return self._failed_to_join(event.error, now, effects)
        assignor = ASSIGNORS.get(self.assignor)
        if assignor is None:
            message = f"the group chose the assignor {self.assignor!r}, which this member did not offer"
            return self._fail(ClusterError("INCONSISTENT_GROUP_PROTOCOL", message), effects)
        instances = {
            member_id: member.instance_id
            for member_id, member in self._members.items()
            if member.instance_id is not None
        }
        assigned = assignor.assign(self._subscribers(), event.counts, instances)
        self._assigned_with = (self._joined_topics, dict(event.counts))
        subscribed = frozenset(topic for each in self._subscriptions() for topic in each.topics)
        unchanged = {topic: count for topic, count in self._counts.items() if topic not in subscribed}
        self._counts = {**unchanged, **event.counts}  # newer than the counts of `Subscribe`
        self.phase = Phase.SYNCING
        assignments = tuple((member, encode_assignment(partitions)) for member, partitions in sorted(assigned.items()))
        effects.append(Sync(self._round, self.member_id, self.generation, self.assignor, assignments))
        return None

    def _failed_to_join(self, error: ClusterError, now: float, effects: list[Effect]) -> None:
        """Decide the next step after a refusal of JoinGroup or SyncGroup, or a failure of `Count`."""
        code = error.code
        if code in _UNKNOWN:
            self._forget(code, effects)
            self._wait(now)
        elif code in _COORDINATOR_MOVED or (error.retriable and code != ApiError.COORDINATOR_LOAD_IN_PROGRESS):
            effects.append(FindCoordinator())
            self._wait(now)
        elif error.retriable or code == _REBALANCE:
            self._wait(now)
        else:
            self._fail(error, effects)

    def _revoke(self, partitions: Partitions, effects: list[Effect], is_lost: bool = False) -> None:
        self._revocations += 1
        effects.append(Revoke(partitions, self._revocations, is_lost))

    # --- an assignment ---

    def _on_synced(self, event: Synced, now: float, effects: list[Effect]) -> None:
        if event.error is not None:
            return self._failed_to_join(event.error, now, effects)
        if event.assignment is None:
            message = "the leader of the group sent an assignment that cannot be read"
            return self._fail(ClusterError("INCONSISTENT_GROUP_PROTOCOL", message), effects)
        self._retry_s = RETRY_FIRST_S
        self._heartbeat_at = now
        self._owned_generation = self.generation
        self._last = event.assignment
        gone = self.owned - event.assignment
        if gone:
            self.phase = Phase.REVOKING
            self._after_revoke = event.assignment
            self._revoke(gone, effects)
            return None
        self._settle(event.assignment, effects)
        if self._needs_rebalance():
            self._rejoin(now, effects)
        return None

    def _settle(self, assignment: Partitions, effects: list[Effect]) -> None:
        added = assignment - self.owned
        self.owned = assignment
        self.phase = Phase.STABLE
        effects.append(Assign(added))

    def _on_revoked(self, now: float, effects: list[Effect]) -> None:
        assignment, self._after_revoke = self._after_revoke, None
        if assignment is None:
            self.owned = frozenset()
            self._join(now, effects)
            return
        self._settle(assignment, effects)
        self._rejoin(now, effects)  # so that the revoked partitions can be assigned

    # --- heartbeats ---

    def _on_tick(self, now: float, effects: list[Effect]) -> None:
        if self.phase is Phase.WAITING and self.deadline is not None and now >= self.deadline:
            self._join(now, effects)
        elif self._is_member() and self.deadline is not None and now >= self.deadline:
            if self._is_heartbeat_pending:  # no answer for a whole session: the coordinator may have failed
                effects.append(FindCoordinator())
            self._heartbeat_at = now
            self._is_heartbeat_pending = True
            effects.append(Heartbeat(self.member_id, self.generation))

    def _on_beaten(self, event: Beaten, now: float, effects: list[Effect]) -> None:
        self._is_heartbeat_pending = False
        if not self._is_member() or event.error is None:
            return
        if event.error.retriable and event.error.code != _REBALANCE:
            if event.error.code != ApiError.COORDINATOR_LOAD_IN_PROGRESS:
                effects.append(FindCoordinator())
            self._heartbeat_at = now - self._heartbeat_s + min(RETRY_FIRST_S, self._heartbeat_s)
        else:
            self._on_refusal(event.error.code, now, effects, event.error)

    def _on_refusal(self, code: str, now: float, effects: list[Effect], error: ClusterError | None = None) -> None:
        """Decide the next step after a refusal of a heartbeat or a commit."""
        if code == _REBALANCE:
            if self.phase is Phase.STABLE:
                self._rejoin(now, effects)
        elif code in _UNKNOWN:
            self._forget(code, effects)
            self._join(now, effects)
        else:
            self._fail(error or ClusterError(code, f"the group refused this member: {code}"), effects)

    def _forget(self, code: str, effects: list[Effect]) -> None:
        """Lose all partitions: the coordinator does not know this member, or has a later generation."""
        self.generation = NO_GENERATION
        self._owned_generation = NO_GENERATION
        if code == "UNKNOWN_MEMBER_ID":
            self.member_id = ""
        self._lose(effects)

    def _lose(self, effects: list[Effect]) -> None:
        self._after_revoke = None
        if self.owned:
            self._revoke(self.owned, effects, is_lost=True)
            self.owned = frozenset()

    # --- ends ---

    def _on_stalled(self, effects: list[Effect]) -> None:
        self._leave(effects)
        self._forget("UNKNOWN_MEMBER_ID", effects)
        self.phase = Phase.STALLED

    def _leave(self, effects: list[Effect]) -> None:
        if self._instance_id is None and self.member_id:
            effects.append(Leave(self.member_id))

    def _fail(self, error: ClusterError, effects: list[Effect]) -> None:
        self._lose(effects)
        self.phase = Phase.ENDED
        effects.append(Fail(error))

    def _end(self, effects: list[Effect]) -> None:
        self._leave(effects)
        self.owned = frozenset()
        self.phase = Phase.ENDED
