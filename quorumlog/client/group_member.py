"""The shell of `Membership`: sends the requests of one group member, and calls its consumer.

One task owns the core.  Each request is sent by a task of its own, which passes the answer to the core as an event.
JoinGroup and SyncGroup wait at the coordinator for other members, so they have a connection of their own.  Heartbeats
and commits use the connections of the `Cluster`.  The consumer revokes and assigns partitions in the order of the
core's effects.  Lost partitions do not wait for their turn: the consumer stops reading them at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, Protocol, assert_never

from quorumlog.client import membership as core
from quorumlog.client.cluster import CONNECT_TIMEOUT_S, Cluster
from quorumlog.client.group_protocol import CONSUMER, assigned_partitions
from quorumlog.client.groups import GroupClient
from quorumlog.client.kafka import KafkaConnection, error_word
from quorumlog.client.membership import Event, Membership, Phase
from quorumlog.client.messages import TopicPartition
from quorumlog.client.tasks import BackgroundTasks
from quorumlog.errors import ClusterError
from quorumlog.runtime.backoff import Backoff
from quorumlog.wire.errors import ApiError
from quorumlog.wire.kafka.codec import Api

REQUEST_TIMEOUT_S: Final = 5.0
LEAVE_TIMEOUT_S: Final = 2.0
TOPICS_PAUSE_MIN_S: Final = 0.5
"""The first pause after a failed look-up of topics.  It is short because a look-up usually fails only after its whole
time limit."""
COUNT_TIMEOUT_S: Final = 30.0
JOIN_MARGIN_S: Final = 5.0
"""The time limit for an answer to JoinGroup or SyncGroup exceeds the rebalance timeout by this much."""
HELD_AFTER_S: Final = 5.0
"""A coordinator that takes this long to answer JoinGroup or SyncGroup waits for other members."""


@dataclass(frozen=True, slots=True)
class MemberSettings:
    """The settings of a member.

    assignors: names, the preferred one first.
    poll_interval_s: the member leaves if the user takes no records for this long.  It is also the rebalance timeout: a
        rebalance waits this long for the member.
    """

    group: str
    assignors: tuple[str, ...]
    instance_id: str | None
    session_timeout_s: float
    heartbeat_interval_s: float
    poll_interval_s: float
    metadata_age_s: float


class Owner(Protocol):
    """The part of a consumer that its membership uses."""

    async def revoke(self, partitions: frozenset[TopicPartition]) -> None:
        """Commit and give up partitions, once the user has finished their records."""

    def lose(self, partitions: frozenset[TopicPartition]) -> None:
        """Give up partitions that may already belong to other members."""

    async def assigned(self, partitions: frozenset[TopicPartition]) -> None:
        """Begin to read these partitions, in addition to those that were kept."""

    def out_of_group(self, error: ClusterError) -> None:
        """Report that the member cannot be in the group."""

    def progress(self) -> object | None:
        """Return a value that changes whenever the user gets records; None while the user waits for records."""


class GroupMember:
    """One member of a group: runs `Membership`, and its requests.

    topics: returns the subscribed topics, and the number of partitions of each that exists.
    """

    def __init__(
        self,
        cluster: Cluster,
        groups: GroupClient,
        owner: Owner,
        settings: MemberSettings,
        topics: Callable[[], Awaitable[tuple[frozenset[str], dict[str, int]]]],
    ) -> None:
        self.core = Membership(
            settings.assignors,
            heartbeat_s=settings.heartbeat_interval_s,
            session_s=settings.session_timeout_s,
            instance_id=settings.instance_id,
        )
        self._cluster = cluster
        self._groups = groups
        self._owner = owner
        self._settings = settings
        self._topics = topics
        self._events: asyncio.Queue[Event] = asyncio.Queue()
        self._handovers: asyncio.Queue[core.Revoke | core.Assign] = asyncio.Queue()
        self._line: KafkaConnection | None = None
        self._tasks = BackgroundTasks(self._broken)
        self.failing_since: float | None = None
        """Loop time of the first failure after a success, or of the last error that the consumer raised about it; None
        without a failure.  Every answer to a heartbeat is a success, and so is a JoinGroup or SyncGroup that has waited
        for `HELD_AFTER_S`."""
        self.failure: ClusterError | None = None

    # --- for the consumer ---

    @property
    def instance_id(self) -> str | None:
        return self._settings.instance_id

    def active(self) -> None:
        """Note that the user asks for records."""
        if self.core.phase is Phase.STALLED:
            self._events.put_nowait(core.Active())

    def commit_refused(self, generation: int, code: str) -> None:
        """Note that a commit was refused because of the membership."""
        self._events.put_nowait(core.Refused(generation, code))

    async def run(self) -> None:
        """Run the membership until this call is cancelled.  Then call `close`."""
        for work in (self._watch_topics(), self._watch_user(), self._hand_over()):
            self._tasks.begin(work)
        while True:
            event: Event = core.Tick()
            with suppress(TimeoutError):
                async with asyncio.timeout_at(self.core.deadline):
                    event = await self._events.get()
            self._apply(event)

    async def close(self) -> None:
        """Leave the group, within `LEAVE_TIMEOUT_S`, and close the connection.  `run` must have ended."""
        try:
            await self._tasks.stop()
            for effect in self.core.step(core.End(), asyncio.get_running_loop().time()):
                if isinstance(effect, core.Leave):
                    # If this fails, the coordinator expels the member when its session ends.
                    with suppress(ClusterError, TimeoutError):
                        async with asyncio.timeout(LEAVE_TIMEOUT_S):  # for all steps; each step has this limit too
                            await self._leave(effect)
        finally:
            if self._line is not None:
                await self._line.close()

    # --- effects ---

    def _broken(self, bug: BaseException) -> None:
        error = ClusterError(ApiError.FAILED, f"group {self._settings.group}: the member failed: {bug!r}")
        error.__cause__ = bug
        self._owner.out_of_group(error)

    def _apply(self, event: Event) -> None:
        for effect in self.core.step(event, asyncio.get_running_loop().time()):
            match effect:
                case core.Join():
                    self._tasks.begin(self._join(effect))
                case core.Count():
                    self._tasks.begin(self._count(effect))
                case core.Sync():
                    self._tasks.begin(self._sync(effect))
                case core.Heartbeat():
                    self._tasks.begin(self._beat(effect))
                case core.Leave():
                    self._tasks.begin(self._leave_quietly(effect))
                case core.Revoke(partitions, _, is_lost):
                    if is_lost:
                        self._owner.lose(partitions)
                    else:
                        self._handovers.put_nowait(effect)
                case core.Assign():
                    self._handovers.put_nowait(effect)
                case core.FindCoordinator():
                    self._groups.calls.forget(self._settings.group)
                case core.Fail(error):
                    self._owner.out_of_group(error)
                case _:
                    assert_never(effect)

    async def _hand_over(self) -> None:
        while True:
            effect = await self._handovers.get()
            if isinstance(effect, core.Revoke):
                await self._owner.revoke(effect.partitions)
                self._events.put_nowait(core.Revoked(effect.number))
            else:
                await self._owner.assigned(effect.partitions & self.core.owned)

    # --- requests ---

    def _noted(self, error: ClusterError | None, began_at: float | None = None) -> ClusterError | None:
        """Note the outcome of a request.  began_at: the loop time since which it has failed; None means now."""
        if error is None:
            self.failing_since = self.failure = None
        else:
            self.failure = error
            if self.failing_since is None:
                self.failing_since = asyncio.get_running_loop().time() if began_at is None else began_at
        return error

    def _refusal(self, code: int, what: str) -> ClusterError | None:
        if not code:
            return None
        name, retriable = error_word(code)
        known = ApiError.named(name)
        sentence = "" if known is None else f": {known.sentence}"
        return ClusterError(
            name, f"group {self._settings.group}: {what} was answered with {name}{sentence}", retriable=retriable
        )

    async def _waiting_call(self, api: Api, values: dict[str, Any], answer_s: float) -> tuple[int, Any]:
        """Send a request whose answer waits for other members, on the connection for such requests."""
        group = self._settings.group
        coordinator = await self._groups.calls.known_or_found(group, REQUEST_TIMEOUT_S)
        address = coordinator.address
        line = self._line
        if line is None or not line.is_open or line.has_timed_out or (line.host, line.port) != tuple(address):
            if line is not None:
                await line.close()
            line = self._line = KafkaConnection(address.host, address.port, client_id=self._cluster.client_id)
            await line.connect(CONNECT_TIMEOUT_S)
        asked = asyncio.ensure_future(self._ask_waiting(line, api, values, answer_s))
        try:
            return await self._groups.calls.answer_of(group, coordinator, asked)
        except ClusterError:
            await line.close()  # the request is abandoned, and must not delay the next one
            raise

    async def _ask_waiting(
        self, line: KafkaConnection, api: Api, values: dict[str, Any], answer_s: float
    ) -> tuple[int, Any]:
        await self._groups.calls.version(line, api, REQUEST_TIMEOUT_S)  # on a new connection, fails if the broker hangs
        # A coordinator that holds the request waits for other members, so an earlier failure has ended.
        held = asyncio.get_running_loop().call_later(HELD_AFTER_S, self._noted, None)
        try:
            return await self._groups.calls.ask_slowly(line, api, values, REQUEST_TIMEOUT_S, answer_s)
        finally:
            held.cancel()

    async def _quick_call(self, api: Api, values: dict[str, Any], timeout_s: float) -> Any:
        coordinator = await self._groups.calls.known_or_found(self._settings.group, timeout_s)
        connection = await self._cluster.connection(coordinator.address, timeout_s)
        return await self._groups.calls.ask(connection, api, values, timeout_s)  # drops a connection without answers

    async def _join(self, effect: core.Join) -> None:
        settings = self._settings
        values = {
            "group_id": settings.group,
            "session_timeout": round(settings.session_timeout_s * 1000),
            "rebalance_timeout": round(settings.poll_interval_s * 1000),
            "member_id": effect.member_id,
            "group_instance_id": settings.instance_id,
            "protocol_type": CONSUMER,
            "protocols": [{"name": name, "metadata": metadata} for name, metadata in effect.protocols],
        }
        try:
            _, reply = await self._waiting_call(Api.JOIN_GROUP, values, settings.poll_interval_s + JOIN_MARGIN_S)
        except ClusterError as error:
            self._noted(error)
            self._events.put_nowait(core.Joined(effect.round, error))
            return
        refusal = self._refusal(reply.error_code, "JoinGroup")
        if refusal is None or refusal.code != "MEMBER_ID_REQUIRED":
            self._noted(refusal)
        members = tuple(
            core.JoinedMember(each.member_id, getattr(each, "group_instance_id", None), bytes(each.metadata))
            for each in reply.members
        )
        is_leader = reply.leader == reply.member_id
        self._events.put_nowait(
            core.Joined(
                effect.round,
                refusal,
                reply.member_id,
                reply.generation_id,
                reply.protocol_name or "",
                is_leader,
                members,
            )
        )

    async def _count(self, effect: core.Count) -> None:
        try:
            counts = await self._cluster.partition_counts(effect.topics, COUNT_TIMEOUT_S) if effect.topics else {}
        except ClusterError as error:
            self._events.put_nowait(core.Counted(effect.round, None, self._noted(error)))
        else:
            self._events.put_nowait(core.Counted(effect.round, counts))

    async def _sync(self, effect: core.Sync) -> None:
        values = {
            "group_id": self._settings.group,
            "generation_id": effect.generation,
            "member_id": effect.member_id,
            "group_instance_id": self._settings.instance_id,
            "protocol_type": CONSUMER,
            "protocol_name": effect.assignor,
            "assignments": [{"member_id": member, "assignment": data} for member, data in effect.assignments],
        }
        try:
            answer_s = self._settings.poll_interval_s + JOIN_MARGIN_S
            _, reply = await self._waiting_call(Api.SYNC_GROUP, values, answer_s)
        except ClusterError as error:
            self._noted(error)
            self._events.put_nowait(core.Synced(effect.round, error))
            return
        refusal = self._noted(self._refusal(reply.error_code, "SyncGroup"))
        found = () if refusal is not None else assigned_partitions(bytes(reply.assignment))
        assignment = (
            None
            if found is None
            else frozenset(TopicPartition(topic, index) for topic, indexes in found for index in indexes)
        )
        self._events.put_nowait(core.Synced(effect.round, refusal, assignment))

    async def _beat(self, effect: core.Heartbeat) -> None:
        values = {
            "group_id": self._settings.group,
            "generation_id": effect.generation,
            "member_id": effect.member_id,
            "group_instance_id": self._settings.instance_id,
        }
        timeout_s = max(self._settings.heartbeat_interval_s, self._settings.session_timeout_s / 3)
        try:
            reply = await self._quick_call(Api.HEARTBEAT, values, min(timeout_s, REQUEST_TIMEOUT_S))
        except ClusterError as error:
            self._events.put_nowait(core.Beaten(effect.generation, self._noted(error)))
            return
        refusal = self._refusal(reply.error_code, "a heartbeat")
        self._noted(None)
        self._events.put_nowait(core.Beaten(effect.generation, refusal))

    async def _leave(self, effect: core.Leave) -> None:
        member = {"member_id": effect.member_id, "group_instance_id": None}
        values = {"group_id": self._settings.group, "member_id": effect.member_id, "members": [member]}
        await self._quick_call(Api.LEAVE_GROUP, values, LEAVE_TIMEOUT_S)

    async def _leave_quietly(self, effect: core.Leave) -> None:
        with suppress(ClusterError):
            await self._leave(effect)

    # --- changes without a call ---

    async def _watch_topics(self) -> None:
        """Report the topics of the subscription at intervals.  After a failure, retry sooner, with growing pauses.

        The leader of the group also reports the topics of the other members.
        """
        failure: ClusterError | None = None  # the last one, if only look-ups have failed since the last success
        longest_s = self._settings.metadata_age_s
        pauses = Backoff(min(TOPICS_PAUSE_MIN_S, longest_s), longest_s, self._cluster.random)
        while True:
            began_at = asyncio.get_running_loop().time()
            try:
                topics, counts = await self._topics()
            except ClusterError as error:
                is_alone = self.failure is None or self.failure is failure
                self._noted(error, began_at)
                failure = error if is_alone else None
                await asyncio.sleep(pauses.next_s())
                continue
            pauses.reset()
            if failure is not None and self.failure is failure:  # otherwise the group may still fail
                self._noted(None)
            others = await self._others_counts(topics)
            self._events.put_nowait(core.Subscribe(topics, {**others, **counts}, frozenset(others)))
            await asyncio.sleep(self._settings.metadata_age_s)

    async def _others_counts(self, topics: frozenset[str]) -> dict[str, int]:
        """Return the partition counts of other members' topics, 0 for missing topics; empty after a failure."""
        others = self.core.others_topics() - topics
        if not others:
            return {}
        try:
            return {**dict.fromkeys(others, 0), **await self._cluster.partition_counts(others, COUNT_TIMEOUT_S)}
        except ClusterError:  # the next look-up asks again
            return {}

    async def _watch_user(self) -> None:
        loop = asyncio.get_running_loop()
        seen, since = self._owner.progress(), loop.time()
        while True:
            await asyncio.sleep(min(self._settings.poll_interval_s / 10, 5.0))
            now = self._owner.progress()
            if now is None or now != seen:
                seen, since = now, loop.time()
            elif loop.time() - since >= self._settings.poll_interval_s:
                self._events.put_nowait(core.Stalled())
