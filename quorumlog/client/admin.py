"""A client for administrators and services that set up their topics: `quorumlog.client.Admin`.

Theory of operation.  `BrokerCalls` finds the broker for each request about topics and configs, `PartitionLooks` finds
the leader of a partition, and `GroupClient` finds the coordinator of a group.  If the leader or coordinator moves, they
retry at the new broker.  This module gives each call one deadline, checks its arguments, and turns refusals into errors
with a next step.

A call about several objects tries all of them.  If some are refused, it raises `RefusalsError`, which contains these
refusals and the results of all others.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import datetime
from typing import Any, Final, Literal

from quorumlog.client.admin_arguments import (
    check_configs,
    creatable,
    created,
    distinct,
    end_of,
    fits,
    new_topics,
    offsets_of,
    positive,
    resource_of,
)
from quorumlog.client.admin_partitions import PartitionLooks, Partitions, named_partitions
from quorumlog.client.admin_values import (
    ClusterDescription,
    ConfigValue,
    CreatedTopic,
    NewTopic,
    OffsetMove,
    TopicDescription,
    advised,
    as_time_ms,
    changed_perhaps,
    cluster_description,
    config_value,
    done_or_raise,
)
from quorumlog.client.broker_calls import BrokerCalls
from quorumlog.client.cluster import Cluster
from quorumlog.client.consumer import EARLIEST, LATEST
from quorumlog.client.group_descriptions import CommittedOffset, GroupDescription, ListedGroup
from quorumlog.client.groups import GroupClient
from quorumlog.client.messages import INT32_MAX, TopicPartition, check_partitions, check_texts
from quorumlog.client.share_groups import ShareOffset
from quorumlog.errors import ClusterError, ConfigError
from quorumlog.runtime.clock import Sources
from quorumlog.runtime.closing import Closing
from quorumlog.wire.errors import ApiError, KafkaCode
from quorumlog.wire.kafka.codec import Api

TIMEOUT_S: Final = 60.0
_RESERVE_S: Final = 0.2
"""Difference between the time limits of a call and of its requests, but at most a tenth of the call's limit.  So the
precise error of a request comes before the general error of the call."""
_SET, _DELETE = 0, 1
_TO_THE_END: Final = -1

End = Literal["earliest", "latest"]


class Admin(Closing):
    """Manage topics, configs, records and groups: `async with Admin("host:9092") as admin: await admin.topics()`.

    Use it from one event loop; calls may run concurrently.  It connects at the first call.

    Args:
        bootstrap: `HOST:PORT`, several with commas or as a list; or a `Cluster`, which stays open.
        timeout_s: the time limit of a call without a `timeout_s` of its own.

    Every call raises:
        ClusterError: the call was refused, or TIMED_OUT: if it changes something, this may have been done.  `code` has
            Kafka's name of the error.  A call about several objects raises the subclass RefusalsError.
        ConfigError: an argument is invalid; nothing was sent.
    """

    def __init__(
        self,
        bootstrap: str | Sequence[str] | Cluster,
        *,
        timeout_s: float = TIMEOUT_S,
        client_id: str = "quorumlog-admin",
        sources: Sources | None = None,
    ) -> None:
        self._timeout_s = positive(timeout_s)
        self._owns_cluster = not isinstance(bootstrap, Cluster)
        random = None if sources is None else sources.random
        self._cluster = (
            bootstrap if isinstance(bootstrap, Cluster) else Cluster(bootstrap, client_id=client_id, random=random)
        )
        self._brokers = BrokerCalls(self._cluster)
        self._partitions = PartitionLooks(self._cluster, self._brokers)
        self._groups = GroupClient(self._cluster)

    async def close(self) -> None:
        """Close the connections; calls in progress fail.  Idempotent."""
        if self._owns_cluster:
            await self._cluster.close()

    # -- cluster and topics

    async def cluster(self, *, timeout_s: float | None = None) -> ClusterDescription:
        """Return the id, the controller and the running brokers."""
        async with self._call("the cluster", timeout_s) as left_s:
            return cluster_description(await self._brokers.metadata((), left_s()))

    async def topics(self, *, internal: bool = False, timeout_s: float | None = None) -> list[str]:
        """Return the names of all topics, ascending.  internal: include the brokers' internal topics."""
        async with self._call("the topics", timeout_s) as left_s:
            reply = await self._brokers.metadata(None, left_s())
        return sorted(str(each.name) for each in reply.topics if internal or not each.is_internal)

    async def describe_topic(self, name: str, *, timeout_s: float | None = None) -> TopicDescription:
        """Return a topic with the leader, replicas and ISR of each partition."""
        check_texts("topic", [name])
        async with self._call(f"topic {name}", timeout_s) as left_s:
            return (await self._partitions.described({name}, left_s))[name]

    async def create_topic(
        self,
        name: str,
        partitions: int | None = None,
        replication_factor: int | None = None,
        configs: Mapping[str, str] | None = None,
        *,
        validate_only: bool = False,
        timeout_s: float | None = None,
    ) -> CreatedTopic:
        """Create one topic; see `create_topics`."""
        topic = NewTopic(name, partitions, replication_factor, configs)
        return (await self.create_topics([topic], validate_only=validate_only, timeout_s=timeout_s))[name]

    async def create_topics(
        self, topics: Iterable[NewTopic], *, validate_only: bool = False, timeout_s: float | None = None
    ) -> dict[str, CreatedTopic]:
        """Create topics, each independently of the others; return them by name.  validate_only: only check them.

        If an answer was lost, TOPIC_ALREADY_EXISTS may mean that this call itself has created the topic.  The message
        says so.
        """
        new = new_topics(topics)

        def request(names: list[str]) -> dict[str, Any]:
            return {"topics": [creatable(new[name]) for name in names], "validate_only": validate_only}

        async with self._call("the creation of topics", timeout_s, changes=not validate_only) as left_s:
            changes = await self._brokers.change_topics(
                Api.CREATE_TOPICS, list(new), request, lambda reply: reply.topics, left_s()
            )
            for name, error in changes.refusals.items():
                if error.code == ApiError.TOPIC_ALREADY_EXISTS and name in changes.unsure:
                    message = f"{error.message}; an attempt of this call got no answer, and may have created it"
                    changes.refusals[name] = ClusterError(error.code, message)
            changes.done = {name: created(answer) for name, answer in changes.done.items()}
            return done_or_raise(changes.outcomes(new))

    async def delete_topic(self, name: str, *, timeout_s: float | None = None) -> None:
        """Delete a topic with its records."""
        check_texts("topic", [name])
        async with self._call(f"topic {name}", timeout_s, changes=True) as left_s:
            changes = await self._brokers.change_topics(
                Api.DELETE_TOPICS,
                [name],
                lambda names: {"topics": [{"name": each, "topic_id": None} for each in names]},
                lambda reply: reply.responses,
                left_s(),
            )
            error = changes.refusals.get(name)
            if error is not None and not (error.code == ApiError.UNKNOWN_TOPIC_OR_PARTITION and name in changes.unsure):
                raise error

    async def add_partitions(
        self, name: str, total: int, *, validate_only: bool = False, timeout_s: float | None = None
    ) -> None:
        """Add partitions to a topic until it has `total`.  Records stay in place; keys may map to other partitions."""
        check_texts("topic", [name])
        fits("total", total, INT32_MAX)
        async with self._call(f"topic {name}", timeout_s, changes=not validate_only) as left_s:
            changes = await self._brokers.change_topics(
                Api.CREATE_PARTITIONS,
                [name],
                lambda names: {
                    "topics": [{"name": each, "count": total, "assignments": None} for each in names],
                    "validate_only": validate_only,
                },
                lambda reply: reply.results,
                left_s(),
            )
            error = changes.refusals.get(name)
            if error is None:
                return
            if error.code != ApiError.INVALID_PARTITIONS or name not in changes.unsure:
                raise error
            for _ in range(2):  # the first broker may be behind
                if len((await self._partitions.described({name}, left_s))[name].partitions) == total:
                    return
                self._cluster.ask_another_broker()
            raise error

    # -- configs

    async def get_configs(
        self,
        *,
        topic: str | None = None,
        broker: int | Literal["all"] | None = None,
        group: str | None = None,
        timeout_s: float | None = None,
    ) -> dict[str, ConfigValue]:
        """Return the effective configs of one resource, by name.

        Name one of topic, group and broker.  broker="all": the configs that apply to all brokers.
        """
        kind, name, at, what = resource_of(topic, broker, group)
        resource = {"resource_type": kind, "resource_name": name, "configuration_keys": None}
        values = {"resources": [resource], "include_documentation": True}
        async with self._call(what, timeout_s) as left_s:
            result = await self._brokers.ask(Api.DESCRIBE_CONFIGS, values, what, left_s(), at)
        return {each.name: config_value(each) for each in sorted(result.configs, key=lambda each: str(each.name))}

    async def set_configs(
        self,
        configs: Mapping[str, str],
        *,
        topic: str | None = None,
        broker: int | Literal["all"] | None = None,
        group: str | None = None,
        validate_only: bool = False,
        timeout_s: float | None = None,
    ) -> None:
        """Set configs of a topic, a group, a broker, or all brokers.  Other configs keep their values.

        If one config is refused, none is changed.
        """
        changes = [(name, _SET, value) for name, value in configs.items()]
        await self._alter(changes, resource_of(topic, broker, group), validate_only, timeout_s)

    async def unset_configs(
        self,
        names: Iterable[str],
        *,
        topic: str | None = None,
        broker: int | Literal["all"] | None = None,
        group: str | None = None,
        validate_only: bool = False,
        timeout_s: float | None = None,
    ) -> None:
        """Reset configs to the values that they inherit.  A config that is not set is not an error.

        If one config is refused, none is changed.
        """
        given = [names] if isinstance(names, str) else list(names)
        changes = [(name, _DELETE, None) for name in given]
        await self._alter(changes, resource_of(topic, broker, group), validate_only, timeout_s)

    async def _alter(
        self,
        changes: Sequence[tuple[str, int, str | None]],
        resource: tuple[int, str, int | None, str],
        validate_only: bool,
        timeout_s: float | None,
    ) -> None:
        kind, name, at, what = resource
        check_configs((key, value) for key, _, value in changes)
        distinct("configs", [key for key, _, _ in changes])
        configs = [{"name": key, "config_operation": operation, "value": value} for key, operation, value in changes]
        changed = {"resource_type": kind, "resource_name": name, "configs": configs}
        values = {"resources": [changed], "validate_only": validate_only}
        async with self._call(what, timeout_s, changes=not validate_only) as left_s:
            await self._brokers.ask(Api.INCREMENTAL_ALTER_CONFIGS, values, what, left_s(), at)

    # -- records and offsets

    async def delete_records(
        self, before: Mapping[tuple[str, int], int | Literal["latest"]], *, timeout_s: float | None = None
    ) -> dict[TopicPartition, int]:
        """Delete the records of each partition before an offset, and return the new log start offsets.

        before: the offset by partition; "latest": delete all committed records.
        """
        check_partitions(before)
        ends = {TopicPartition(*key): _TO_THE_END for key, to in before.items() if to == "latest"}
        wanted = {**offsets_of({key: to for key, to in before.items() if to != "latest"}), **ends}
        async with self._call("the deletion of records", timeout_s, changes=True) as left_s:
            await self._partitions.resolved(wanted, left_s)
            return await self._partitions.delete_before(wanted, left_s)

    async def offsets(
        self, partitions: Partitions, at: End = "latest", *, timeout_s: float | None = None
    ) -> dict[TopicPartition, int]:
        """Return the log start offsets ("earliest"), or the high watermarks ("latest")."""
        place = end_of(at)
        async with self._call("offsets", timeout_s) as left_s:
            return await self._partitions.listed(
                dict.fromkeys(await self._partitions.resolved(partitions, left_s), place), left_s
            )

    async def offsets_at(
        self, partitions: Partitions, time: datetime | int, *, timeout_s: float | None = None
    ) -> dict[TopicPartition, int | None]:
        """Return the offset of the first record that is not older than a time, by partition; None if all are older.

        time: a datetime with a time zone, or ms since 1970.
        """
        time_ms = as_time_ms(time)
        async with self._call("offsets", timeout_s) as left_s:
            keys = await self._partitions.resolved(partitions, left_s)
            found = await self._partitions.listed(dict.fromkeys(keys, time_ms), left_s)
        return {key: None if offset < 0 else offset for key, offset in found.items()}

    # -- groups

    async def list_groups(self, states: Collection[str] = (), *, timeout_s: float | None = None) -> list[ListedGroup]:
        """Return the groups of all brokers, ascending by name.

        states: only groups in one of these states, such as "Stable" or "Empty"; empty means all.
        """
        wanted = [states] if isinstance(states, str) else states
        check_texts("state", wanted)
        async with self._call("the groups", timeout_s) as left_s:
            return await self._groups.list_groups(left_s(), wanted)

    async def describe_group(self, group: str, *, timeout_s: float | None = None) -> GroupDescription:
        """Return the state, the coordinator and the members of a group."""
        check_texts("group", [group])
        async with self._call(f"group {group}", timeout_s) as left_s:
            return await self._groups.describe(group, left_s())

    async def group_offsets(
        self, group: str, *, timeout_s: float | None = None
    ) -> dict[TopicPartition, CommittedOffset]:
        """Return the committed offsets of a group, ascending; empty for a group that does not exist."""
        check_texts("group", [group])
        async with self._call(f"group {group}", timeout_s) as left_s:
            found = await self._groups.committed(group, left_s())
        return {TopicPartition(*key): offset for key, offset in found.items()}

    async def set_group_offsets(
        self, group: str, offsets: Mapping[tuple[str, int], int], *, timeout_s: float | None = None
    ) -> None:
        """Commit offsets for a group without members; it is created if it does not exist.

        An offset outside its log would make consumers start elsewhere, so it is refused, and nothing is committed.
        """
        wanted = offsets_of(offsets)
        check_texts("group", [group])
        async with self._call(f"group {group}", timeout_s, changes=True) as left_s:
            await self._refuse_outside(wanted, left_s)
            await self._commit(group, wanted, left_s)

    async def _refuse_outside(self, wanted: Mapping[TopicPartition, int], left_s: Callable[[], float]) -> None:
        """Refuse offsets outside their logs.  Raises: ClusterError: OFFSET_OUT_OF_RANGE."""
        keys = await self._partitions.resolved(wanted, left_s)
        starts = await self._partitions.listed(dict.fromkeys(keys, EARLIEST), left_s)
        ends = await self._partitions.listed(dict.fromkeys(keys, LATEST), left_s)
        outside = [
            f"{key}: {wanted[key]} is not in {starts[key]} to {ends[key]}"
            for key in keys
            if not starts[key] <= wanted[key] <= ends[key]
        ]
        if outside:
            raise ClusterError(ApiError.OFFSET_OUT_OF_RANGE, f"nothing was changed: {'; '.join(outside)}")

    async def reset_group_offsets(
        self,
        group: str,
        to: End | datetime | int,
        *,
        partitions: Partitions | None = None,
        dry_run: bool = False,
        timeout_s: float | None = None,
    ) -> dict[TopicPartition, OffsetMove]:
        """Move the committed offsets of a group without members to the start, the end, or a time.

        to: "earliest", "latest", a datetime with a time zone, or ms since 1970.  If all records of a partition are
        older than the time, its offset moves to the end.
        partitions: None means all with a committed offset.
        dry_run: return the moves, and commit nothing.
        """
        place = end_of(to) if isinstance(to, str) else as_time_ms(to)
        named = None if partitions is None else named_partitions(partitions)
        check_texts("group", [group])
        async with self._call(f"group {group}", timeout_s, changes=not dry_run) as left_s:
            committed = await self._groups.committed(group, left_s())
            if named is None and not committed:
                raise ClusterError(ApiError.OFFSET_NOT_COMMITTED, f"group {group} has no committed offsets to reset")
            keys = await self._partitions.resolved(committed if named is None else named, left_s)
            after = await self._partitions.listed(dict.fromkeys(keys, place), left_s)
            if older := [key for key, offset in after.items() if offset < 0]:
                after |= await self._partitions.listed(dict.fromkeys(older, LATEST), left_s)
            if not dry_run:
                await self._commit(group, after, left_s)
        before = {key: committed[key].offset if key in committed else None for key in keys}
        return {key: OffsetMove(before[key], after[key]) for key in keys}

    async def _commit(self, group: str, offsets: Mapping[TopicPartition, int], left_s: Callable[[], float]) -> None:
        commits = {(key.topic, key.partition): CommittedOffset(offset) for key, offset in offsets.items()}
        refusals = await self._groups.commit(group, commits, left_s())
        for error in refusals.values():
            if error.code == KafkaCode.UNKNOWN_MEMBER_ID.name:  # the same for all partitions
                raise ClusterError(error.code, f"group {group} has members, and only they may commit its offsets")
        _raise_refusals(refusals, offsets)

    async def delete_group(self, group: str, *, timeout_s: float | None = None) -> None:
        """Delete a group that has no members, and its offsets."""
        check_texts("group", [group])
        async with self._call(f"group {group}", timeout_s, changes=True) as left_s:
            await self._groups.delete(group, left_s())

    async def delete_group_offsets(
        self, group: str, partitions: Iterable[tuple[str, int]], *, timeout_s: float | None = None
    ) -> None:
        """Delete committed offsets.  No member of the group may subscribe to the topics of these partitions."""
        keys = [TopicPartition(*key) for key in partitions]
        if not keys:
            raise ConfigError("partitions is empty")
        check_partitions(keys)
        check_texts("group", [group])
        async with self._call(f"group {group}", timeout_s, changes=True) as left_s:
            _raise_refusals(await self._groups.delete_offsets(group, keys, left_s()), keys)

    # -- share groups

    async def share_group_offsets(
        self, group: str, *, timeout_s: float | None = None
    ) -> dict[TopicPartition, ShareOffset]:
        """Return the start offset and the lag of each share partition of a share group, ascending."""
        check_texts("group", [group])
        async with self._call(f"group {group}", timeout_s) as left_s:
            found = await self._groups.shares.describe(group, left_s())
        return {TopicPartition(*key): offset for key, offset in found.items()}

    async def set_share_group_offsets(
        self, group: str, offsets: Mapping[tuple[str, int], int], *, timeout_s: float | None = None
    ) -> None:
        """Set the start offsets of a share group without members; it is created if it does not exist.

        The group reads all records from these offsets on again, including those that it has accepted.  If an offset is
        outside its log, nothing is changed.
        """
        wanted = offsets_of(offsets)
        check_texts("group", [group])
        async with self._call(f"group {group}", timeout_s, changes=True) as left_s:
            await self._refuse_outside(wanted, left_s)
            starts = {(key.topic, key.partition): offset for key, offset in wanted.items()}
            _raise_refusals(await self._groups.shares.alter(group, starts, left_s()), wanted)

    async def delete_share_group_offsets(
        self, group: str, topics: Iterable[str], *, timeout_s: float | None = None
    ) -> None:
        """Delete the offsets of topics in a share group without members.  Its next member begins as in a new group."""
        names = [topics] if isinstance(topics, str) else list(topics)
        check_texts("topic", names)
        distinct("topics", names)
        check_texts("group", [group])
        async with self._call(f"group {group}", timeout_s, changes=True) as left_s:
            refusals = await self._groups.shares.delete(group, names, left_s())
            done_or_raise({name: refusals.get(name) for name in names})

    # -- time limit and errors of every call

    @asynccontextmanager
    async def _call(
        self, what: str, timeout_s: float | None, *, changes: bool = False
    ) -> AsyncIterator[Callable[[], float]]:
        """Limit the time of a call, and add a next step to its errors.

        Yields a function that returns the seconds left.  what: the subject of the call, for the error.  changes: the
        call may change something, even if it gets no answer.
        """
        limit_s = self._timeout_s if timeout_s is None else positive(timeout_s)
        loop = asyncio.get_running_loop()
        deadline = loop.time() + limit_s - min(_RESERVE_S, limit_s / 10)
        try:
            async with asyncio.timeout(limit_s):
                yield lambda: max(deadline - loop.time(), 0.001)
        except TimeoutError as cause:
            message = f"{what}: no answer within {limit_s:g} s"
            error = advised(ClusterError(ApiError.TIMED_OUT, message, retriable=True))
            raise (changed_perhaps(error) if changes else error) from cause
        except ClusterError as error:
            advised(error)
            if changes:
                changed_perhaps(error)
            raise


def _raise_refusals(refusals: Mapping[tuple[str, int], ClusterError], asked: Iterable[TopicPartition]) -> None:
    done_or_raise({key: refusals.get(key) for key in asked})
