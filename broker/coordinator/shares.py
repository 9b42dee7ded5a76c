"""Share groups on this broker: implements `broker.kafka.api.Shares`.

As the leader of partitions, the broker serves ShareFetch and ShareAcknowledge.  As the coordinator of groups, it
initializes and deletes the states of their share partitions at the share coordinators.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from functools import partial
from typing import Any, Final

from broker.coordinator.dead_letters import DeadLetters, DeadLetterTopic, Produce
from broker.coordinator.groups import GroupCoordinators
from broker.coordinator.led_share import Fetched, LedShare, ShareConfig
from broker.coordinator.limits import CoordinatorLimits
from broker.coordinator.links import BrokerLinks
from broker.coordinator.log_ends import LogEnds
from broker.coordinator.share_partitions import SharePartitions
from broker.coordinator.share_reminders import ShareReminders
from broker.coordinator.share_sessions import END_SESSION, NEW_SESSION, Place, SessionKey, ShareSession, ShareSessions
from broker.coordinator.share_states import ShareStates
from broker.core.coordinator.consumer.requests import NamedPartitions
from broker.core.coordinator.share.requests import (
    DeleteShareStates,
    ForgetShareStates,
    InitializeShareStates,
    ListShareStates,
    ListShareStatesResponse,
    NoteShareStates,
    ResetShareStates,
)
from broker.core.coordinator.share.states import (
    NO_START,
    DeleteState,
    InitializeState,
    ShareKey,
    StateRequest,
    StateResponse,
    SummarizeState,
)
from broker.core.fetch_session import PartitionKey
from broker.core.share.partition import Acknowledgement, ShareLimits, problem_of
from broker.core.share.requests import (
    ShareAcknowledged,
    ShareAcknowledgePlan,
    ShareFetched,
    ShareFetchPlan,
    SharePlace,
    ShareReply,
)
from broker.replica.table import ReplicaTable
from metadata.image import (
    DEAD_LETTER_COPIES,
    DEAD_LETTER_TOPIC,
    RENEW_ENABLED,
    ClusterImage,
    group_config,
    reset_duration_ms,
)
from metadata.records import Record
from quorumlog.runtime.clock import Sources, now_ms
from quorumlog.wire.errors import KafkaCode
from quorumlog.wire.rpcs import ControllerCall

_NAME_MAX_BYTES: Final = 1_024
_GROUP_BYTES: Final = 100
"""The size in bytes that a coordinator assumes for a request of this broker."""


def share_config(image: ClusterImage, group: str) -> ShareConfig:
    """Return the configs of a share group."""

    def value(key: str) -> int:
        return int(group_config(image, group, f"share.{key}"))

    reset = group_config(image, group, "share.auto.offset.reset")
    dead_letter_topic = group_config(image, group, DEAD_LETTER_TOPIC)
    limits = ShareLimits(
        lock_ms=value("record.lock.duration.ms"),
        delivery_count_max=value("delivery.count.limit"),
        max_in_flight=value("partition.max.record.locks"),
        may_renew=group_config(image, group, RENEW_ENABLED) == "true",
        has_dead_letters=bool(dead_letter_topic),
    )
    return ShareConfig(
        limits,
        max_age_ms=None if reset == "earliest" else reset_duration_ms(reset) or 0,
        read_committed=group_config(image, group, "share.isolation.level") == "read_committed",
        dead_letters=DeadLetterTopic(dead_letter_topic, group_config(image, group, DEAD_LETTER_COPIES) == "true")
        if dead_letter_topic
        else None,
    )


class ShareGroups:
    """The leaders of share partitions, the share coordinators, and the clients of group coordinators, on this broker.

    resolve: returns the address of a broker's inter-broker listener; None while it is not registered.
    produce: appends dead letters to a partition that this broker leads.
    """

    def __init__(
        self,
        table: ReplicaTable,
        groups: GroupCoordinators,
        call: ControllerCall,
        wait_applied: Callable[[int], Awaitable[object]],
        resolve: Callable[[int], tuple[str, int] | None],
        sources: Sources,
        produce: Produce,
        limits: CoordinatorLimits | None = None,
    ) -> None:
        self._limits = limits or CoordinatorLimits()
        self._cluster = table.context.cluster
        self._groups = groups
        self.states = ShareStates(table, call, wait_applied, resolve, sources, self._limits)
        self.letters = DeadLetters(table, call, wait_applied, resolve, produce, sources.wall_ms, self._limits)
        self.partitions = SharePartitions(table, self.states, self.letters, self._limits, sources.wall_ms)
        self._reminders = ShareReminders(
            self.states.shell, self._cluster, resolve, self.write_dead_letters, self._limits
        )
        self._sessions_max = 0
        # `LogEnds` drops a connection after its timeout, and a save may take longer.  So it has its own connections.
        self._log_end_links = BrokerLinks(resolve)
        self._log_ends = LogEnds(table, self._log_end_links, self._limits)
        self.sessions = ShareSessions(self._on_session_end)
        self._asking: set[tuple[str, type[Any]]] = set()
        """The group and the kind of each effect in progress."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._group: asyncio.TaskGroup | None = None
        groups.on_share_effect = self._on_effect

    # -- life

    def start(self, group: asyncio.TaskGroup, image: ClusterImage) -> None:
        """Serve from now on; the tasks belong to `group`.  image: the metadata replayed so far."""
        self._group = group
        self._configure(image)
        self.states.start(group)
        self.letters.start(group)
        self.partitions.start(group)
        self._own(group.create_task(self._reminders.run(), name="share-reminders"))

    async def close(self) -> None:
        """Refuse all calls, and end all tasks.  Idempotent."""
        self._group = None
        self.partitions.close()
        for task in self._tasks:
            task.cancel()
        await self._reminders.close()
        await self._log_end_links.close()
        await self.letters.close()
        await self.states.close()

    def on_batch(self, old: ClusterImage, new: ClusterImage, records: Sequence[Record] | None) -> None:
        """Follow changes of configs and of dead-letter topics; subscribed to `MetadataReplay`."""
        if old.configs is not new.configs or old.group_configs is not new.group_configs:
            self._configure(new)
        if self.letters.failing:
            is_reconfigured = old.configs is not new.configs
            may_succeed = [
                key
                for key, each in self.letters.failing.items()
                if is_reconfigured or old.topic(each.topic) is not new.topic(each.topic)
            ]
            self.partitions.retry_letters(may_succeed)

    def _own(self, task: asyncio.Task[None]) -> None:
        """Keep a task, so that `close` cancels it."""
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _configure(self, image: ClusterImage) -> None:
        # A copy without topics, so that `partitions` keeps no old topics in memory.
        configs = ClusterImage(configs=image.configs, group_configs=image.group_configs)
        self._sessions_max = int(configs.cluster_config("group.share.max.share.sessions"))
        self.partitions.configure(partial(share_config, configs))

    # -- the share coordinator

    async def prepare(self) -> str:
        return await self.states.prepare()

    def partition(self, key: str) -> int:
        return self.states.shell.partition(key)

    def led(self) -> Sequence[int]:
        return self.states.shell.led()

    def call(self, request: StateRequest) -> asyncio.Future[Any]:
        return self.states.call(request)

    # -- the leader of partitions

    def lock_ms(self, group: str) -> int:
        return self.partitions.config_of(group).limits.lock_ms

    async def fetch(self, plan: ShareFetchPlan) -> ShareReply:
        """Apply the acknowledgements, then acquire records.

        Wait for records only if there is nothing to report: no acknowledgement and no error.
        """
        problem = self._problem(plan.group, plan.member_id, plan.acknowledgements, may_renew=plan.is_renewal)
        if problem is not None:
            return ShareReply(KafkaCode.INVALID_REQUEST, problem)
        if plan.session_epoch == NEW_SESSION and plan.acknowledgements:
            return ShareReply(KafkaCode.INVALID_REQUEST, "the first request of a session must not acknowledge records")
        if plan.is_renewal and (plan.max_wait_ms or plan.max_bytes or plan.max_records or plan.min_bytes):
            return ShareReply(KafkaCode.INVALID_REQUEST, "a request that renews locks must not fetch records")
        session = self._begin(plan)
        if isinstance(session, KafkaCode):
            return ShareReply(session)
        if len(plan.places) + len(session.places) > self._limits.share_partitions_max:
            return ShareReply(KafkaCode.INVALID_REQUEST, "the session has too many partitions")
        session.change(plan.places, plan.forgotten)
        acknowledged = await self._acknowledge(session, plan.acknowledgements)
        fetched: tuple[ShareFetched, ...] = ()
        if plan.session_epoch == END_SESSION:
            self.sessions.end(session)
        elif not plan.is_renewal and plan.max_records > 0:
            wait_ms = 0 if acknowledged else min(max(plan.max_wait_ms, 0), self._limits.share_wait_max_ms)
            load_wait_ms = 0 if acknowledged else self._limits.share_load_wait_ms
            fetched = await self._fetch(session, plan, wait_ms, load_wait_ms)
        return ShareReply(KafkaCode.NONE, None, acknowledged, fetched)

    async def acknowledge(self, plan: ShareAcknowledgePlan) -> ShareReply:
        """Apply the acknowledgements, and return once they are durable or refused."""
        problem = self._problem(plan.group, plan.member_id, plan.acknowledgements, may_renew=plan.is_renewal)
        if problem is not None:
            return ShareReply(KafkaCode.INVALID_REQUEST, problem)
        if plan.session_epoch == NEW_SESSION:
            return ShareReply(KafkaCode.INVALID_SHARE_SESSION_EPOCH)
        session = self._begin(plan)
        if isinstance(session, KafkaCode):
            return ShareReply(session)
        acknowledged = await self._acknowledge(session, plan.acknowledgements)
        if plan.session_epoch == END_SESSION:
            self.sessions.end(session)
        return ShareReply(KafkaCode.NONE, None, acknowledged)

    @staticmethod
    def _problem(
        group: str,
        member_id: str,
        acknowledgements: dict[SharePlace, tuple[Acknowledgement, ...]],
        *,
        may_renew: bool,
    ) -> str | None:
        if not group or not member_id:
            return "the group id or the member id is empty"
        if len(group.encode()) > _NAME_MAX_BYTES or len(member_id.encode()) > _NAME_MAX_BYTES:
            return f"the group id or the member id is longer than {_NAME_MAX_BYTES} bytes"
        problems = (problem_of(batches, may_renew=may_renew) for batches in acknowledgements.values())
        return next((each for each in problems if each is not None), None)

    def _begin(self, plan: ShareFetchPlan | ShareAcknowledgePlan) -> ShareSession | KafkaCode:
        key = SessionKey(plan.group, plan.member_id)
        return self.sessions.begin(key, plan.peer, plan.session_epoch, self._sessions_max, now_ms())

    def disconnected(self, peer: str) -> None:
        self.sessions.disconnected(peer)

    def write_dead_letters(self, keys: Sequence[ShareKey]) -> None:
        for key in keys[: self._limits.share_reminders_max]:
            self.partitions.remind(key)

    async def _acknowledge(
        self, session: ShareSession, acknowledgements: dict[SharePlace, tuple[Acknowledgement, ...]]
    ) -> tuple[ShareAcknowledged, ...]:
        """Begin all acknowledgements, then wait until they are durable.

        A share coordinator that does not answer does not delay acknowledgements of loaded share partitions.
        """
        deadline = asyncio.get_running_loop().time() + self._limits.share_load_wait_ms / 1000
        begun: list[tuple[Place, asyncio.Future[KafkaCode] | KafkaCode]] = []
        group = session.key.group
        for place in sorted(acknowledgements, key=lambda each: not self.partitions.is_loaded(ShareKey(group, *each))):
            current = self.sessions.of(session.key)  # a newer session of the member has the same locks
            if current is None:  # the session's end released the locks; a state loaded now would never be dropped
                begun.append((place, KafkaCode.INVALID_RECORD_STATE))
                continue
            session = current
            if place not in session.places:
                session.former[place] = None
            led = await self._loaded(ShareKey(group, *place), deadline)
            if isinstance(led, LedShare):
                begun.append((place, led.acknowledge(session.key.member_id, acknowledgements[place])))
            else:
                begun.append((place, led))
        self._prune(session)
        return tuple(
            [ShareAcknowledged(place, found if isinstance(found, KafkaCode) else await found) for place, found in begun]
        )

    async def _loaded(self, key: ShareKey, deadline: float) -> LedShare | KafkaCode:
        """Return a share partition once it is loaded, or the error; REPLICA_NOT_AVAILABLE after the deadline."""
        if not self.partitions.is_loaded(key) and asyncio.get_running_loop().time() >= deadline:
            return KafkaCode.REPLICA_NOT_AVAILABLE
        try:
            async with asyncio.timeout_at(deadline):
                return await self.partitions.get(key)
        except TimeoutError:
            return KafkaCode.REPLICA_NOT_AVAILABLE

    def _prune(self, session: ShareSession) -> None:
        """Remove from a session the former partitions that this broker does not serve.

        So a session has at most as many former partitions as this broker serves.
        """
        group = session.key.group
        for place in [each for each in session.former if self.partitions.known(ShareKey(group, *each)) is None]:
            del session.former[place]

    async def _fetch(
        self, session: ShareSession, plan: ShareFetchPlan, wait_ms: int, load_wait_ms: int
    ) -> tuple[ShareFetched, ...]:
        """Acquire records.  Wait for them for `wait_ms`, or for at least `load_wait_ms` if no state is loaded yet.

        A session that ends or is replaced meanwhile gets no records: its client may use another connection by now, and
        these records would stay locked until their locks expire.
        """
        loop = asyncio.get_running_loop()
        begun = loop.time()
        deadline = begun + wait_ms / 1000
        event = asyncio.Event()
        places = list(session.places)
        loading: dict[Place, LedShare] = {}
        self.partitions.watch(places, event)
        try:
            while self.sessions.is_current(session):
                event.clear()
                fetched, is_any_loaded = await self._acquire(session, plan, loading)
                is_first_load = bool(loading) and not is_any_loaded
                left_s = max(deadline, begun + load_wait_ms / 1000 if is_first_load else 0) - loop.time()
                if fetched or left_s <= 0 or self.partitions.is_closed:
                    return fetched
                try:
                    async with asyncio.timeout(left_s):
                        await event.wait()
                except TimeoutError:
                    return ()
            return ()
        finally:
            self.partitions.unwatch(places, event)

    async def _acquire(
        self, session: ShareSession, plan: ShareFetchPlan, loading: dict[Place, LedShare]
    ) -> tuple[tuple[ShareFetched, ...], bool]:
        """Acquire the records that are available now, within the limits of the request.

        Return these records, and whether any state is loaded.
        loading: the share partitions whose states are being loaded.  They do not delay the others.
        """
        fetched: list[ShareFetched] = []
        is_any_loaded = False
        records_left, bytes_left = plan.max_records, plan.max_bytes
        group, member_id = session.key
        for place in list(session.places)[: self._limits.share_partitions_max]:
            if not self.sessions.is_current(session):
                return (), is_any_loaded  # a state that is loaded now would never be dropped
            if records_left <= 0 or bytes_left <= 0 or len(fetched) >= self._limits.share_partitions_per_fetch:
                break
            key = ShareKey(group, *place)
            led: LedShare | KafkaCode | None = loading.pop(place, None)
            if led is None:
                if len(loading) >= self._limits.share_loads_per_fetch and not self.partitions.is_loaded(key):
                    continue
                led = self.partitions.begin(key)
            found: Fetched | KafkaCode
            if isinstance(led, KafkaCode):
                found = led
            elif (code := led.loaded) is None:
                loading[place] = led
                continue
            elif code is not KafkaCode.NONE:
                found = code
            else:
                is_any_loaded = True
                size = min(bytes_left, self._limits.share_read_max_bytes)
                found = await led.fetch(
                    member_id,
                    size,
                    records_left,
                    is_exact=plan.is_exact,
                    is_wanted=lambda: self.sessions.is_current(session),
                )
            if isinstance(found, KafkaCode):
                fetched.append(ShareFetched(place, found))
                session.rotate(place)
            elif found.acquired:
                fetched.append(ShareFetched(place, KafkaCode.NONE, found.records, tuple(found.acquired)))
                records_left -= sum(each.end - each.first for each in found.acquired)
                bytes_left -= len(found.records)
                session.rotate(place)
        return tuple(fetched) if self.sessions.is_current(session) else (), is_any_loaded

    def _on_session_end(self, session: ShareSession) -> None:
        """Release the records of a member, and drop share partitions that no other session uses."""
        group, member_id = session.key
        for place in (*session.places, *session.former):
            key = ShareKey(group, *place)
            led = self.partitions.known(key)
            if led is not None:
                led.release(member_id, is_used=self.sessions.uses(group, place))

    # -- the coordinator of groups

    def _on_effect(self, effect: Any) -> None:
        """Perform an effect of the group coordinator.  The records before the effect are committed.

        While an earlier effect of the same kind is in progress for the group, drop the new one: the group orders it
        again.  Effects overlap if a share coordinator does not answer, because requests about thousands of states then
        take longer than the group waits.
        """
        kind = (effect.group, type(effect))
        if self._group is None or kind in self._asking:
            return
        self._asking.add(kind)
        work = self._initialize(effect) if isinstance(effect, InitializeShareStates) else self._delete(effect)
        self._own(self._group.create_task(work, name=f"share-states-{effect.group}"))

    async def _ask_for(
        self, effect: InitializeShareStates | DeleteShareStates, requests: Sequence[StateRequest]
    ) -> list[StateResponse]:
        try:
            return await self.states.ask_all(requests)
        finally:
            self._asking.discard((effect.group, type(effect)))

    async def _initialize(self, effect: InitializeShareStates) -> None:
        """Initialize states, and report the initialized ones to the group.  The group requests the others again."""
        keys = _keys(effect.group, effect.partitions)
        found = await self._ask_for(effect, [InitializeState(key, effect.state_epoch, NO_START) for key in keys])
        # FENCED_STATE_EPOCH shows that a state with a later epoch exists, so this partition is initialized, too.
        good = (KafkaCode.NONE, KafkaCode.FENCED_STATE_EPOCH)
        done = {key for key, response in zip(keys, found, strict=True) if response.error in good}
        initialized = _of(effect.group, effect.partitions, done)
        if initialized:
            self._groups.tell(
                effect.group, lambda machine, now: machine.share_initialized(effect.group, initialized, now)
            )

    async def _delete(self, effect: DeleteShareStates) -> None:
        """Delete states, and report the deleted ones to the group.  The group requests the others again."""
        keys = _keys(effect.group, effect.partitions)
        found = await self._ask_for(effect, [DeleteState(key) for key in keys])
        done = {key for key, response in zip(keys, found, strict=True) if response.error is KafkaCode.NONE}
        if deleted := _of(effect.group, effect.partitions, done):
            self._groups.tell(effect.group, lambda machine, now: machine.share_deleted(effect.group, deleted, now))

    async def clear_group(self, group: str) -> KafkaCode:
        """Delete the states of a share group that will be deleted.  A group of another type is not changed."""
        listed = await self._ask_group(group, ListShareStates(group, must_be_empty=True))
        if listed.error is KafkaCode.GROUP_ID_NOT_FOUND:
            return KafkaCode.NONE
        if listed.error is not KafkaCode.NONE or not listed.partitions:
            return listed.error
        return await self._forget(group, listed.partitions)

    async def _forget(self, group: str, partitions: tuple[NamedPartitions, ...]) -> KafkaCode:
        """Delete states, and report the deletion to the group.  A leader can no longer save such a state."""
        responses = await self.states.ask_all([DeleteState(key) for key in _keys(group, partitions)])
        failed = [each.error for each in responses if each.error is not KafkaCode.NONE]
        if failed:
            return failed[0]
        return (await self._ask_group(group, ForgetShareStates(group, partitions))).error

    async def describe_offsets(
        self, group: str, wanted: Sequence[NamedPartitions] | None
    ) -> tuple[ListShareStatesResponse, list[tuple[NamedPartitions, list[StateResponse]]]]:
        """Return the group's list of states, and the states by topic; no states if the list has an error.

        wanted: the partitions to describe; None: all that have a state.
        If a topic was deleted and another topic has its name now, the states of the deleted topic are left out: clients
        would treat them as states of the new topic.
        """
        listed = await self._ask_group(group, ListShareStates(group))
        if listed.error is not KafkaCode.NONE:
            return listed, []
        ids = self._cluster.newest.topic_ids
        known = [each for each in listed.partitions if ids.get(each.topic, each.topic_id) == each.topic_id]
        topics = known if wanted is None else list(wanted)
        found = iter(await self.states.ask_all([SummarizeState(key) for key in _keys(group, topics)]))
        return listed, [(topic, [next(found) for _ in topic.partitions]) for topic in topics]

    async def log_ends(self, partitions: Iterable[PartitionKey]) -> dict[PartitionKey, int]:
        return await self._log_ends.of(partitions)

    async def alter_offsets(
        self, group: str, offsets: Sequence[tuple[NamedPartitions, Sequence[int]]]
    ) -> tuple[ListShareStatesResponse, list[StateResponse]]:
        """Initialize states again, at the given offsets.  The group must be empty; a missing group is created.

        Return the answer of the group, and one response for each partition, in order.  If the group refuses, there are
        no responses.

        The group notes the share partitions after their states were written.  If the group's coordinator fails before
        that, the states remain, and are added to the group when the next member subscribes to the topics.
        """
        reset = await self._ask_group(group, ResetShareStates(group, tuple(topic for topic, _ in offsets)))
        if reset.error is not KafkaCode.NONE:
            return reset, []
        starts = [start for _, each in offsets for start in each]
        keys = _keys(group, [topic for topic, _ in offsets])
        requests = [InitializeState(key, reset.epoch, start) for key, start in zip(keys, starts, strict=True)]
        found = await self.states.ask_all(requests)
        done = {key for key, response in zip(keys, found, strict=True) if response.error is KafkaCode.NONE}
        partitions = _of(group, [topic for topic, _ in offsets], done)
        if partitions:
            noted = await self._ask_group(group, NoteShareStates(group, partitions))
            if noted.error is not KafkaCode.NONE:
                return noted, []
        return reset, found

    async def delete_offsets(self, group: str, topics: Sequence[str]) -> dict[str, KafkaCode] | ListShareStatesResponse:
        """Delete the states of topics.  The group must be empty.  Return the error of each topic, or of the group."""
        listed = await self._ask_group(group, ListShareStates(group, must_be_empty=True))
        if listed.error is not KafkaCode.NONE:
            return listed
        known: dict[str, list[NamedPartitions]] = {}
        for each in listed.partitions:  # states of a deleted topic with the same name may still exist
            known.setdefault(each.topic, []).append(each)
        results = {}
        for topic in topics:
            if topic in known:
                results[topic] = await self._forget(group, tuple(known[topic]))
            else:
                results[topic] = KafkaCode.UNKNOWN_TOPIC_OR_PARTITION
        return results

    async def _ask_group(
        self, group: str, request: ListShareStates | ForgetShareStates | ResetShareStates | NoteShareStates
    ) -> ListShareStatesResponse:
        found = await self._groups.call(self._groups.partition(group), request, _GROUP_BYTES)
        return ListShareStatesResponse(found) if isinstance(found, KafkaCode) else found


def _of(group: str, topics: Sequence[NamedPartitions], keys: Collection[ShareKey]) -> tuple[NamedPartitions, ...]:
    """Return the partitions of topics that `keys` contains."""
    chosen = [
        NamedPartitions(topic_id, name, tuple(index for index in indexes if ShareKey(group, topic_id, index) in keys))
        for topic_id, name, indexes in topics
    ]
    return tuple(each for each in chosen if each.partitions)


def _keys(group: str, topics: Sequence[NamedPartitions]) -> list[ShareKey]:
    return [ShareKey(group, topic.topic_id, index) for topic in topics for index in topic.partitions]
