"""The group of a consumer: its membership, the user's listeners, and automatic commits."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Coroutine, Set
from contextlib import suppress
from functools import partial
from typing import Any

from quorumlog.client.cluster import Cluster
from quorumlog.client.consumer_commits import Commits
from quorumlog.client.consumer_reading import Reading
from quorumlog.client.consumer_settings import CALL_TIMEOUT_S, CLOSE_TIMEOUT_S, ConsumerSettings
from quorumlog.client.consumer_topics import SubscribedLogs
from quorumlog.client.group_member import GroupMember, MemberSettings
from quorumlog.client.groups import GroupClient
from quorumlog.client.messages import TopicPartition
from quorumlog.errors import ClusterError
from quorumlog.wire.errors import ApiError


class ConsumerGroup:
    """The group of one consumer.  Implements `group_member.Owner` for the membership.

    member: None if the consumer only uses the group's offsets, for partitions that were passed to `assign`.
    begin: starts a task that ends with the consumer.
    """

    def __init__(
        self,
        cluster: Cluster,
        groups: GroupClient,
        settings: ConsumerSettings,
        logs: SubscribedLogs,
        commits: Commits,
        reading: Reading,
        begin: Callable[[Coroutine[Any, Any, None]], None],
    ) -> None:
        self.commits = commits
        self._reading = reading
        self._begin = begin
        self._commit_interval_s = settings.commit_interval_s
        self._poll_interval_s = settings.max_poll_interval_s
        self._listeners = {
            "assigned": settings.on_assigned,
            "revoked": settings.on_revoked,
            "lost": settings.on_lost,
        }
        self._given_up: dict[TopicPartition, int] = {}
        """Offsets of partitions that the user has removed from the assignment, for the next automatic commit."""
        self._revoking = 0
        self._calling = asyncio.Lock()
        """Held while a listener runs: `on_lost` may take long, and no other listener may run at the same time."""
        self._error: ClusterError | None = None
        """The reason why the member cannot be in the group."""
        self._listener_error: ClusterError | None = None
        self.member: GroupMember | None = None
        if settings.is_subscribed:
            topics_s = min(CALL_TIMEOUT_S, settings.failure_timeout_s)  # else the user learns of a failure too late
            topics = partial(logs.found, topics_s)
            self.member = GroupMember(cluster, groups, self, _member_settings(settings), topics)
            commits.member = self.member

    def start(self) -> None:
        """Begin to join, and to commit automatically."""
        if self.member is not None:
            self._begin(self.member.run())
        if self._commit_interval_s is not None:
            self._begin(self._commit_repeatedly(self._commit_interval_s))

    def may_read(self) -> bool:
        """Return whether the user may get records now.

        Raises:
            ClusterError: the member cannot be in the group; or a listener failed, whose error is raised once.
        """
        if self._error is not None:
            raise self._error.again()
        if self._listener_error is not None:
            error, self._listener_error = self._listener_error, None
            raise error
        return not self._revoking

    async def give_up(self, partitions: frozenset[TopicPartition]) -> None:
        """Give up partitions: commit if commits are automatic, call the listener, and stop reading them."""
        if self._commit_interval_s is not None:
            await self._commit_processed(partitions, CLOSE_TIMEOUT_S)  # else the next owner reads the records again
        if self.member is not None and partitions:
            await self._call("revoked", partitions, owned_only=True)
        self._reading.remove(partitions)

    async def _commit_repeatedly(self, interval_s: float) -> None:
        while True:
            await asyncio.sleep(interval_s)
            # After a failure, the next commit includes these offsets; a member that is out of the group rejoins.
            await self._commit_processed(None, interval_s)

    def reassigned(self, assigned: Set[TopicPartition]) -> None:
        """Keep uncommitted offsets for the next automatic commit, before a new assignment by the user takes effect.

        assigned: the new assignment.
        """
        if self._commit_interval_s is not None:
            self._given_up |= self._reading.uncommitted()
            for partition in assigned:  # the partition keeps its position, or begins at a committed offset
                self._given_up.pop(partition, None)

    async def _commit_processed(self, partitions: frozenset[TopicPartition] | None, timeout_s: float) -> None:
        """Try to commit the offsets of records whose processing has ended.  partitions: None means all."""
        given_up = dict(self._given_up)
        wanted = {**given_up, **self._reading.uncommitted(partitions)}
        if wanted:
            with suppress(ClusterError):
                await self.commits.answered(wanted, timeout_s)
                # A refusal of one partition, such as a deleted one, is final.  To commit the others again at each
                # interval could move offsets back that others have committed meanwhile.
                self._given_up = {key: to for key, to in self._given_up.items() if given_up.get(key) != to}

    # --- for the membership ---

    async def revoke(self, partitions: frozenset[TopicPartition]) -> None:
        self._revoking += 1
        try:
            # The rest of the batch is dropped even if its partition stays, so that the user asks for records sooner.
            self._reading.in_progress.refetch()
            with suppress(TimeoutError):
                async with asyncio.timeout(self._poll_interval_s):
                    await self._reading.in_progress.finished()
                    await self.give_up(partitions & self._reading.positions.keys())
            self._reading.unsent.taken_away(partitions)
            self._reading.remove(partitions)
        finally:
            self._revoking -= 1
            self._reading.wake()

    def lose(self, partitions: frozenset[TopicPartition]) -> None:
        mine = partitions & self._reading.positions.keys()
        self._reading.unsent.taken_away(mine)
        self._reading.remove(mine)
        if mine:
            self._begin(self._call("lost" if self._listeners["lost"] is not None else "revoked", mine))

    async def assigned(self, partitions: frozenset[TopicPartition]) -> None:
        added = self._reading.add(partitions, held=True)
        # A partition that was lost and assigned again before this call is handed over twice, and is new only once.
        new = frozenset(position.partition for position in added)
        now = asyncio.get_running_loop().time()
        for position in added:  # the group's offset and the topic's state are looked up independently
            position.reset_at = now
        try:
            await self._call("assigned", new)
        finally:
            self._reading.look_up(added)

    def out_of_group(self, error: ClusterError) -> None:
        self._error = error
        self._reading.wake()

    def progress(self) -> object | None:
        return self._reading.in_progress.mark()

    async def _call(self, kind: str, partitions: frozenset[TopicPartition], *, owned_only: bool = False) -> None:
        """Call the user's listener when no other listener runs.  The next request for records raises its error.

        owned_only: pass only the partitions that have not been given up meanwhile; call nothing if none is left.
        """
        listener = self._listeners[kind]
        if listener is None:
            return
        task = asyncio.current_task()
        assert task is not None
        cancels = task.cancelling()
        try:
            async with self._calling, asyncio.timeout(self._poll_interval_s):
                named = partitions & self._reading.positions.keys() if owned_only else partitions
                if owned_only and not named:
                    return
                result = listener(sorted(named))
                if inspect.isawaitable(result):
                    await result
        except (Exception, asyncio.CancelledError) as error:
            if isinstance(error, asyncio.CancelledError) and task.cancelling() > cancels:
                raise
            # A listener that waits for a task which it has cancelled also raises CancelledError.
            message = f"on_{kind} failed: {error!r}"
            self._listener_error = ClusterError(ApiError.FAILED, message)
            self._listener_error.__cause__ = error
            self._reading.wake()


def _member_settings(settings: ConsumerSettings) -> MemberSettings:
    assert settings.group is not None
    return MemberSettings(
        group=settings.group,
        assignors=settings.assignors,
        instance_id=settings.group_instance_id,
        session_timeout_s=settings.session_timeout_s,
        heartbeat_interval_s=settings.heartbeat_interval_s,
        poll_interval_s=settings.max_poll_interval_s,
        metadata_age_s=settings.metadata_age_s,
    )
