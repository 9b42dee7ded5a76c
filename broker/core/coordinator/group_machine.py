"""The coordinator of the groups of one partition of `__consumer_offsets`.

Theory of operation
-------------------
**State.**  A partition holds records of groups and of committed offsets.  `replay` applies a record, and is the only
writer of stored state.  A record that a request makes is applied at once, before the shell appends it to the log.  So
later requests see records that are not committed yet.  Clients do not, because each answer waits until all records
before it are committed.  If an append fails, the shell drops this object.

**Soft state** is in no record: sessions, calls that wait, and rebalances in progress.  `loaded` initializes it: each
stored member gets a fresh session, and a group that was Stable continues without a rebalance.

**Groups and offsets** are separate.  A group of simple consumers has offsets and no `Group`.  A `Group` is dropped at
the end of an operation if it has no members, no pending member ids, and no record.

**Time.**  Each group with a deadline has one valid entry in a heap, at a time that is not later than its next deadline.
A heartbeat postpones a deadline and does not change the entry.  The tick at the old time finds nothing due, and queues
the group for the new deadline.  So a heartbeat costs no search.

**Two kinds of groups** are in the same map: `Group` uses the classic protocol, and `ConsumerGroup` the newer one
(KIP-848).  Records of the newer protocol contain all state of a group except deadlines, so replay alone builds the
group.  A group may change its kind in one step: tombstones for all its records, then records of the other kind.
Offsets and deletions are the same for both kinds.  Share groups (KIP-932) are in a map of their own (`ShareService`):
they have no committed offsets, and no other protocol.  A name belongs to one kind at a time.  Compaction may remove the
tombstones of the previous kind from the log.  So a record of one kind replaces the replayed state of a group of another
kind with the same name (see also `ConsumerGroup`).  A record of a type that this version does not know is counted and
otherwise ignored.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from heapq import heapify, heappop, heappush
from random import Random
from typing import TYPE_CHECKING, Final, assert_never

from broker.core.coordinator import descriptions, membership, offset_requests, rebalance
from broker.core.coordinator.consumer import descriptions as consumer_descriptions
from broker.core.coordinator.consumer import records as consumer_records
from broker.core.coordinator.consumer.group import ConsumerGroup
from broker.core.coordinator.consumer.records import ConsumerKey
from broker.core.coordinator.consumer.requests import (
    ConsumerHeartbeat,
    ConsumerHeartbeatResponse,
    DescribeConsumerGroups,
    DescribeConsumerGroupsResponse,
    NamedPartitions,
)
from broker.core.coordinator.consumer.service import ConsumerService
from broker.core.coordinator.explanations import Times, explain
from broker.core.coordinator.group import Group
from broker.core.coordinator.group_requests import (
    DeleteGroups,
    DescribeGroups,
    DescribeGroupsResponse,
    EndOffsetTransaction,
    ExplainGroups,
    ExplainGroupsResponse,
    FetchedGroup,
    GroupConfigs,
    GroupDescription,
    GroupExplanation,
    GroupLimits,
    GroupRequest,
    GroupState,
    GroupToFetch,
    Heartbeat,
    HeartbeatResponse,
    JoinGroup,
    JoinGroupResponse,
    LeaveGroup,
    LeaveGroupResponse,
    LeftMember,
    ListGroups,
    ListGroupsResponse,
    NoGroupConfigs,
    OffsetCommit,
    OffsetDelete,
    OffsetDeleteResponse,
    OffsetFetch,
    OffsetFetchResponse,
    Rebalance,
    RebalanceReason,
    SyncGroup,
    SyncGroupResponse,
    Topics,
    TxnOffsetCommit,
)
from broker.core.coordinator.group_step import GroupStep
from broker.core.coordinator.machine import Record, Step, replay_each
from broker.core.coordinator.offsets import Offsets
from broker.core.coordinator.records import GroupKey, read_group, read_key, split_offset_key
from broker.core.coordinator.share.groups import read_key as read_share_key
from broker.core.coordinator.share.requests import (
    DescribeShareGroups,
    DescribeShareGroupsResponse,
    ForgetShareStates,
    ListShareStates,
    ListShareStatesResponse,
    NoteShareStates,
    ResetShareStates,
    ShareHeartbeat,
    ShareRequest,
)
from broker.core.coordinator.share.service import ShareService
from broker.core.coordinator.sweep import Sweeper
from broker.core.coordinator.transactional_offsets import PendingOffsets
from broker.core.transactions import ProducerKey
from quorumlog.wire.errors import KafkaCode

if TYPE_CHECKING:
    from quorumlog.wire._record_scan import Record as LoggedRecord

MATCHING_GROUPS_PER_TICK_MAX = 4
"""Groups whose regular expressions are compared with all topics in one tick.  The others follow with the next ticks, so
that other requests are answered meanwhile.  10,000 topics take about 10 ms for each expression."""

_ENTRIES_PER_GROUP_MAX = 4
"""Entries of the heap per group.  Above this number, the entries that are no longer valid are removed."""


NO_CONFIGS: Final = NoGroupConfigs()


class GroupMachine:
    """The groups and committed offsets of one partition; a `machine.Machine`.

    topics, configs: answer from the image.  random: makes member ids.  wall_ms: ms since the epoch, for times that
        records store.  cautious_ms: ms since the epoch, for expiry (`sweep`); None: `wall_ms`.
    """

    def __init__(
        self,
        limits: GroupLimits,
        topics: Topics,
        random: Random,
        wall_ms: Callable[[], int],
        configs: GroupConfigs = NO_CONFIGS,
        cautious_ms: Callable[[], int] | None = None,
    ) -> None:
        self.unknown_records = 0
        self._limits = limits
        self._topics: Final = topics
        self._configs: Final = configs
        self._random: Final = random
        self._wall_ms: Final = wall_ms
        self._groups: Final[dict[str, Group | ConsumerGroup]] = {}
        self._offsets: Final = Offsets()
        self._consumers: Final = ConsumerService(self._groups, topics, random)
        self._shares: Final = ShareService(topics)
        self._pending_offsets: Final = PendingOffsets()
        self._sweeper: Final = Sweeper(
            self._groups, self._offsets, self._pending_offsets, topics, cautious_ms or wall_ms
        )
        self._parked: Final[dict[int, tuple[str, str]]] = {}
        self._heap: list[tuple[int, str]] = []
        self._expiry_ms: int | None = None
        self._loaded_wall_ms = 0
        self._next_tick_ms = 0

    # -- the log

    def replay(self, record: Record) -> None:
        """Apply one record.

        Raises:
            BadRecord: the record is damaged, and nothing was changed.
        """
        marker = record.marker
        if marker is not None:
            self._pending_offsets.end(marker.producer.producer_id, self._offsets, is_commit=marker.is_commit)
            return
        offset = split_offset_key(record.key)
        if offset is not None and record.producer is not None:
            self._pending_offsets.add(record.producer.producer_id, *offset, record.value)
            return
        if offset is not None:
            self._offsets.apply(*offset, record.value)
            self._pending_offsets.supersede(*offset)
            return
        key = read_key(record.key) or consumer_records.read_key(record.key)
        share_key = None if key is not None else read_share_key(record.key)
        if share_key is not None:
            self._shares.replay(share_key, record.value)
            if record.value is not None:
                self._groups.pop(share_key.group, None)
        elif isinstance(key, ConsumerKey | GroupKey):
            if isinstance(key, ConsumerKey):
                self._replay_consumer(key, record.value)
            else:
                self._replay_classic(key, record.value)
            if record.value is not None:
                self._shares.groups.pop(key.group, None)
        else:
            self.unknown_records += 1

    def replay_batch(self, records: list[LoggedRecord], producer: ProducerKey | None) -> None:
        """Apply the records of one batch; see `Machine.replay_batch`."""
        if producer is not None:
            replay_each(self.replay, records, producer)
            return
        self._offsets.apply_batch(records, lambda record: replay_each(self.replay, (record,)))
        if self._pending_offsets.count:  # a batch outside transactions does not change which offsets are pending
            for record in records:
                assert record.key is not None, record.offset
                if (offset := split_offset_key(record.key)) is not None:
                    self._pending_offsets.supersede(*offset)

    def _replay_classic(self, key: GroupKey, value: bytes | None) -> None:
        group = self._groups.get(key.group)
        if value is not None:
            read_group(value)
            if not isinstance(group, Group):
                group = self._groups[key.group] = Group(key.group)
            group.stored = value
        elif isinstance(group, Group):
            group.stored = None

    def _replay_consumer(self, key: ConsumerKey, value: bytes | None) -> None:
        group = self._groups.get(key.group)
        if not isinstance(group, ConsumerGroup):
            if value is None:
                return
            group = ConsumerGroup(key.group)
            group.apply(key, value)
            if not group.is_vacant:
                self._groups[key.group] = group
            return
        group.apply(key, value)
        if group.is_vacant:
            del self._groups[key.group]

    def loaded(self, now_ms: int) -> Step:
        """Start to serve."""
        assert self._expiry_ms is None, "loaded twice"
        step = self._new_step(now_ms)
        self._expiry_ms = now_ms + self._limits.expiry_interval_ms
        self._loaded_wall_ms = step.wall_ms
        for group in list(self._groups.values()):
            if isinstance(group, ConsumerGroup):
                session_ms = step.consumer_limits(group.name).session_timeout_ms
                for key in group.load(now_ms, step.wall_ms, session_ms):
                    if not step.is_full:  # the next load finds the others again
                        step.append(consumer_records.write_key(key), None)
            elif group.stored is not None:
                group.load(now_ms)
                if len(group.members) > self._limits.members_max:
                    cause = "the group is larger than group.max.size"
                    rebalance.prepare(step, group, cause, None, RebalanceReason.GROUP_TOO_LARGE)
            self._settle(group)
        self._shares.loaded(step)
        self._sweeper.delete_missing()
        return step.build()

    # -- requests

    def request(self, call: int, request: GroupRequest, now_ms: int) -> Step:
        """Apply a request.  The answer to it may come in a later step."""
        assert self._expiry_ms is not None, "not loaded"
        step = self._new_step(now_ms)
        match request:
            case DescribeGroups():
                groups = tuple(self._describe(name, request.report_missing) for name in request.groups)
                step.answer(call, DescribeGroupsResponse(groups))
            case ListGroups():
                listed = descriptions.listed(request, self._groups, self._offsets.groups(), self._shares.groups)
                step.answer(call, ListGroupsResponse(listed))
            case OffsetFetch():
                fetched = tuple(self._fetch(each, request.require_stable) for each in request.groups)
                step.answer(call, OffsetFetchResponse(fetched))
            case ExplainGroups():
                explained = tuple(self._explain(name, step.wall_ms) for name in request.groups)
                step.answer(call, ExplainGroupsResponse(explained))
            case DeleteGroups():
                errors = {name: self._delete_error(step, name) for name in request.groups}
                self._sweeper.delete_groups(step, call, request, errors)
                self._sweeper.run(step)
            case OffsetCommit():
                self._commit(step, call, request)
            case TxnOffsetCommit():
                self._commit(step, call, request.commit, request.producer)
            case EndOffsetTransaction():
                places = self._pending_offsets.of_producer(request.marker.producer.producer_id)
                step.append(b"", None, marker=request.marker)
                step.answer(call, None)
                self._sweeper.transaction_ended(places)
            case OffsetDelete():
                self._delete_offsets(step, call, request)
            case JoinGroup() | SyncGroup() | Heartbeat() | LeaveGroup():
                self._member_request(step, call, request)
            case ConsumerHeartbeat():
                self._consumer_heartbeat(step, call, request)
            case DescribeConsumerGroups():
                step.answer(call, self._describe_consumers(request))
            case (
                ShareHeartbeat()
                | DescribeShareGroups()
                | ListShareStates()
                | ResetShareStates()
                | NoteShareStates()
                | ForgetShareStates()
            ):
                self._share_request(step, call, request)
            case _:
                assert_never(request)
        return step.build()

    def _name_error(self, name: str, may_be_empty: bool = False) -> KafkaCode:
        if len(name.encode()) > self._limits.name_max_bytes or not (name or may_be_empty):
            return KafkaCode.INVALID_GROUP_ID
        return KafkaCode.NONE

    def _exists(self, name: str) -> bool:
        return name in self._groups or self._offsets.has_group(name) or self._pending_offsets.has_group(name)

    def _share_request(self, step: GroupStep, call: int, request: ShareRequest) -> None:
        match request:
            case ShareHeartbeat():
                self._shares.heartbeat(step, call, request, is_taken=self._exists(request.group))
            case DescribeShareGroups():
                groups = tuple(map(self._shares.describe, request.groups))
                step.answer(call, DescribeShareGroupsResponse(groups))
            case ListShareStates():
                step.answer(call, self._shares.list_states(request))
            case ResetShareStates():
                error = self._name_error(request.group)
                if error is KafkaCode.NONE:
                    step.answer(call, self._shares.reset(step, request, is_taken=self._exists(request.group)))
                else:
                    step.answer(call, ListShareStatesResponse(error))
            case NoteShareStates():
                step.answer(call, self._shares.note(step, request))
            case ForgetShareStates():
                step.answer(call, self._shares.forget(step, request))
            case _:
                assert_never(request)

    def _consumer_heartbeat(self, step: GroupStep, call: int, request: ConsumerHeartbeat) -> None:
        if request.group in self._shares.groups:
            message = f"group {request.group!r} is a share group"
            step.answer(call, ConsumerHeartbeatResponse(KafkaCode.GROUP_ID_NOT_FOUND, message))
            return
        group = self._consumers.heartbeat(step, call, request) or self._groups.get(request.group)
        if group is not None:
            self._settle(group)

    def _describe_consumers(self, request: DescribeConsumerGroups) -> DescribeConsumerGroupsResponse:
        return DescribeConsumerGroupsResponse(
            tuple(
                consumer_descriptions.describe(name, self._groups.get(name), self._limits, self._topics)
                for name in request.groups
            )
        )

    def _member_request(
        self, step: GroupStep, call: int, request: JoinGroup | SyncGroup | Heartbeat | LeaveGroup
    ) -> None:
        group = self._groups.get(request.group)
        error = self._name_error(request.group)
        if error is KafkaCode.NONE and request.group in self._shares.groups:
            is_join = isinstance(request, JoinGroup)
            error = KafkaCode.INCONSISTENT_GROUP_PROTOCOL if is_join else KafkaCode.UNKNOWN_MEMBER_ID
        elif error is KafkaCode.NONE and isinstance(request, JoinGroup):
            error = membership.refuse_join(request, self._limits)
            if error is KafkaCode.NONE and group is None:
                if request.member_id:
                    error = KafkaCode.UNKNOWN_MEMBER_ID
                elif len(self._groups) >= self._limits.groups_max:
                    error = KafkaCode.POLICY_VIOLATION
                else:
                    group = self._groups[request.group] = Group(request.group)
            elif error is KafkaCode.NONE and isinstance(group, ConsumerGroup) and not (group.members or group.is_dead):
                if request.member_id:
                    error = KafkaCode.UNKNOWN_MEMBER_ID
                else:
                    group = self._consumers.make_classic(step, group)
        elif error is KafkaCode.NONE and group is None:
            error = KafkaCode.UNKNOWN_MEMBER_ID
        if error is not KafkaCode.NONE or group is None:
            step.answer(call, _refusal(request, error))
            return
        if isinstance(group, ConsumerGroup):
            if group.is_dead:
                step.answer(call, _refusal(request, KafkaCode.COORDINATOR_NOT_AVAILABLE))
            else:
                self._settle(self._consumers.classic(step, group, call, request))
            return
        match request:
            case JoinGroup():
                membership.join(step, group, call, request, self._random)
            case SyncGroup():
                membership.sync(step, group, call, request)
            case Heartbeat():
                membership.heartbeat(step, group, call, request)
            case LeaveGroup():
                membership.leave(step, group, call, request)
        self._settle(group)

    def _commit(self, step: GroupStep, call: int, request: OffsetCommit, producer: ProducerKey | None = None) -> None:
        group = self._groups.get(request.group)
        error = self._name_error(request.group, may_be_empty=True)
        if error is KafkaCode.NONE and request.group in self._shares.groups:
            error = KafkaCode.GROUP_ID_NOT_FOUND  # a share group has no committed offsets
        if error is KafkaCode.NONE:
            is_anonymous = request.generation < 0 and not request.member_id and request.instance_id is None
            is_dead = group is not None and group.state is GroupState.DEAD
            if producer is None or not is_anonymous or is_dead:  # older producers do not name their members
                exists, is_transactional = self._exists(request.group), producer is not None
                error = offset_requests.commit_error(group, request, exists, is_transactional=is_transactional)
        is_full = self._pending_offsets.count + len(request.offsets) > self._limits.offsets_max
        if error is KafkaCode.NONE and producer is not None and is_full:
            error = KafkaCode.POLICY_VIOLATION
        if error is KafkaCode.NONE and any(self._sweeper.is_deleting_topic(each.topic) for each in request.offsets):
            error = KafkaCode.COORDINATOR_LOAD_IN_PROGRESS
        if error is not KafkaCode.NONE:
            step.answer(call, offset_requests.commit_response(request, [error] * len(request.offsets)))
            return
        offset_requests.commit(step, call, request, self._offsets, self._topics, producer)
        if isinstance(group, Group) and request.member_id in group.members:
            group.renew(group.members[request.member_id], step.now_ms)
            self._settle(group)

    def _delete_offsets(self, step: GroupStep, call: int, request: OffsetDelete) -> None:
        error = self._name_error(request.group)
        if error is KafkaCode.NONE and not self._exists(request.group):
            error = KafkaCode.GROUP_ID_NOT_FOUND
        if error is not KafkaCode.NONE:
            step.answer(call, OffsetDeleteResponse(error))
            return
        group = self._groups.get(request.group)
        offset_requests.delete(step, group, call, request, self._offsets, self._topics)

    def _delete_error(self, step: GroupStep, name: str) -> KafkaCode:
        """Return why a group cannot be deleted, or NONE.

        If a share group can be deleted, delete it at once: it has no offsets.
        """
        if name in self._shares.groups:
            error = self._shares.delete_error(name)
            if error is KafkaCode.NONE:
                self._shares.delete(step, name)
            return error
        group = self._groups.get(name)
        if not self._exists(name) or (group is not None and group.state is GroupState.DEAD):
            return KafkaCode.GROUP_ID_NOT_FOUND
        if group is not None and group.state is not GroupState.EMPTY:
            return KafkaCode.NON_EMPTY_GROUP
        if self._pending_offsets.has_group(name):
            return KafkaCode.NON_EMPTY_GROUP  # the end of the transaction would restore offsets
        return KafkaCode.NONE

    def _describe(self, name: str, report_missing: bool) -> GroupDescription:
        return descriptions.describe(name, self._groups.get(name), self._offsets.has_group(name), report_missing)

    def _fetch(self, request: GroupToFetch, require_stable: bool) -> FetchedGroup:
        unstable = self._pending_offsets.places(request.group) if require_stable else frozenset()
        return offset_requests.fetch(self._groups.get(request.group), request, self._offsets, self._topics, unstable)

    def explain(self, group: str) -> tuple[Rebalance, ...]:
        """Return the last rebalances of a group, the oldest first.  A change of the coordinator loses them."""
        known = self._groups.get(group)
        return () if known is None else known.history.rebalances()

    def _explain(self, name: str, wall_ms: int) -> GroupExplanation:
        error = self._name_error(name)
        if error is not KafkaCode.NONE:
            return GroupExplanation(name, error)
        times = Times(self._loaded_wall_ms, wall_ms)
        return explain(name, self._groups.get(name), self._offsets.last_commit_ms(name), times)

    def states(self) -> Iterator[GroupState]:
        """Yield the state of each group; a group that has only offsets is Empty."""
        for group in self._groups.values():
            yield group.state
        for name in self._offsets.groups():
            if name not in self._groups:
                yield GroupState.EMPTY
        for share in self._shares.groups.values():
            yield share.state

    # -- events

    def forget(self, call: int, now_ms: int) -> Step:
        """Drop a call whose client disconnected."""
        step = self._new_step(now_ms)
        self._sweeper.forget(call)
        parked = self._parked.pop(call, None)
        if parked is not None:
            name, member_id = parked
            group = self._groups[name]
            assert isinstance(group, Group), name
            rebalance.hang_up(step, group, group.members[member_id])
            self._settle(group)
        return step.build()

    def topics_deleted(self, topics: Collection[str], now_ms: int) -> Step:
        """Delete the offsets of deleted topics, in this step and at the next ticks."""
        step = self._new_step(now_ms)
        self._sweeper.delete_topics(topics)
        if self._expiry_ms is not None:
            self._sweeper.run(step)
        return step.build()

    def partitions_removed(self, now_ms: int) -> Step:
        """Delete the offsets of partitions that no longer exist, at the next ticks."""
        self._sweeper.delete_missing()
        return Step()

    def topics_changed(self, topics: Collection[str] | None, now_ms: int) -> Step:
        """Let the groups that are subscribed to these topics follow their changes, at the next tick.  None: all topics.

        A topic may be new, may have other partitions, or may be deleted.
        """
        for group in self._groups.values():
            if isinstance(group, ConsumerGroup) and group.concerns(topics):
                group.outdate(now_ms)
                self._settle(group)
        self._shares.topics_changed(topics)
        return Step()

    def share_initialized(self, group: str, partitions: Sequence[NamedPartitions], now_ms: int) -> Step:
        """Note that share partitions have a state now."""
        step = self._new_step(now_ms)
        self._shares.initialized(step, group, partitions)
        return step.build()

    def share_deleted(self, group: str, partitions: Sequence[NamedPartitions], now_ms: int) -> Step:
        """Note that the states of share partitions whose topics no longer exist are deleted."""
        step = self._new_step(now_ms)
        self._shares.deleted(step, group, partitions)
        return step.build()

    def close(self) -> None:
        """End; see `Machine.close`."""
        self._sweeper.close()

    def configure(self, limits: GroupLimits, now_ms: int) -> Step:
        """Apply changed limits.  State that was accepted under the old limits stays."""
        self._limits = limits
        if self._expiry_ms is not None:
            self._expiry_ms = min(self._expiry_ms, now_ms + limits.expiry_interval_ms)
        return Step()

    # -- time

    def tick(self, now_ms: int) -> Step:
        """Perform the work that is due, as much as fits into a batch."""
        assert self._expiry_ms is not None, "not loaded"
        step = self._new_step(now_ms)
        matched = 0
        for group in self._due(now_ms):
            is_matching = isinstance(group, ConsumerGroup) and group.is_outdated and bool(group.regexes)
            matched += is_matching
            if not step.is_full and not (is_matching and matched > MATCHING_GROUPS_PER_TICK_MAX):
                if isinstance(group, ConsumerGroup):
                    group = self._consumers.on_time(step, group)
                else:
                    rebalance.on_time(step, group)
                group.wake_ms = group.next_deadline()
            self._settle(group)
        self._shares.tick(step)
        if self._expiry_ms <= now_ms:
            self._expiry_ms = now_ms + self._limits.expiry_interval_ms
            self._sweeper.expire()
        self._sweeper.run(step)
        self._next_tick_ms = now_ms + 1
        return step.build()

    @property
    def deadline_ms(self) -> int | None:
        """Return the time of the next tick; None until the machine is loaded."""
        if self._expiry_ms is None:
            return None
        due_ms = self._expiry_ms
        if self._shares.wake_ms is not None:
            due_ms = min(due_ms, self._shares.wake_ms)
        if self._heap:
            due_ms = min(due_ms, self._heap[0][0])
        if self._sweeper.is_busy:
            due_ms = self._next_tick_ms
        return max(due_ms, self._next_tick_ms)

    def _due(self, now_ms: int) -> list[Group | ConsumerGroup]:
        """Remove from the heap the groups that may have something to do, and return them."""
        due = []
        while self._heap and self._heap[0][0] <= now_ms:
            at_ms, name = heappop(self._heap)
            group = self._groups.get(name)
            if group is not None and group.queued_ms == at_ms:
                group.queued_ms = None
                due.append(group)
        return due

    def _settle(self, group: Group | ConsumerGroup) -> None:
        """Queue a group for its next deadline after an operation, or drop it if it has no state left."""
        if self._groups.get(group.name) is not group:
            return  # it has become a group of the other kind
        if group.is_vacant:
            del self._groups[group.name]
        elif group.wake_ms is not None and (group.queued_ms is None or group.wake_ms < group.queued_ms):
            group.queued_ms = group.wake_ms
            heappush(self._heap, (group.wake_ms, group.name))
            if len(self._heap) > _ENTRIES_PER_GROUP_MAX * (len(self._groups) + 16):
                queued = self._groups.values()
                self._heap = [(each.queued_ms, each.name) for each in queued if each.queued_ms is not None]
                heapify(self._heap)

    def _new_step(self, now_ms: int) -> GroupStep:
        return GroupStep(now_ms, self._wall_ms(), self.replay, self._limits, self._configs, self._parked)

    def check(self) -> None:
        """Assert the invariants.  This visits each member, so only tests call it."""
        waiting = {}
        self._shares.check()
        assert not self._shares.groups.keys() & self._groups.keys(), "a name of two groups"
        for name, group in self._groups.items():
            assert group.name == name, group.name
            assert not group.is_vacant, name
            group.check()
            assert group.wake_ms is None or (group.queued_ms is not None and group.queued_ms <= group.wake_ms), name
            if isinstance(group, ConsumerGroup):
                continue
            for member in group.members.values():
                call = member.sync_call if member.join_call is None else member.join_call
                if call is not None:
                    waiting[call] = (name, member.member_id)
        assert waiting == self._parked, "calls that wait"


_Refusal = JoinGroupResponse | SyncGroupResponse | HeartbeatResponse | LeaveGroupResponse


def _refusal(request: JoinGroup | SyncGroup | Heartbeat | LeaveGroup, error: KafkaCode) -> _Refusal:
    """Return the response to a member's request that is refused before it reaches a group."""
    match request:
        case JoinGroup():
            return JoinGroupResponse(error, request.member_id)
        case SyncGroup():
            return SyncGroupResponse(error)
        case Heartbeat():
            return HeartbeatResponse(error)
        case LeaveGroup():
            if error is not KafkaCode.UNKNOWN_MEMBER_ID:
                return LeaveGroupResponse(error)
            left = (LeftMember(each.member_id, each.instance_id, error) for each in request.members)
            return LeaveGroupResponse(KafkaCode.NONE, tuple(left))
