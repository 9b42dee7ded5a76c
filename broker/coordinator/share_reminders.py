"""Reminds leaders of dead letters that nobody writes.  The share coordinator of each state sends the reminders.

`broker.core.coordinator.share.reminders` decides which leaders to remind.  The cost of a search grows with the number
of states with missing letters on this broker.  Most clusters have no such states.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

from broker.coordinator.limits import CoordinatorLimits
from broker.coordinator.links import BrokerLinks
from broker.coordinator.shell import CoordinatorShell
from broker.core.coordinator.share.reminders import NO_LEADER, LetterReminders
from broker.core.coordinator.share.state_machine import ShareStateMachine
from broker.core.coordinator.share.states import ShareKey
from broker.replica.cluster_view import ClusterView
from quorumlog.errors import ClusterError
from quorumlog.runtime.logging import get_logger
from quorumlog.wire.kafka.codec import Api

logger = get_logger("share")

_VERSION: Final = 0


class ShareReminders:
    """Looks for missing dead letters every `share_reminder_interval_ms`.

    resolve: returns the address of a broker's inter-broker listener.
    remind: used instead of a request if the leader is this broker.
    """

    def __init__(
        self,
        shell: CoordinatorShell[ShareStateMachine],
        cluster: ClusterView,
        resolve: Callable[[int], tuple[str, int] | None],
        remind: Callable[[Sequence[ShareKey]], None],
        limits: CoordinatorLimits,
    ) -> None:
        self._shell = shell
        self._cluster = cluster
        self._remind = remind
        self._limits = limits
        self._core = LetterReminders(limits.share_reminders_max)
        # No other requests use these connections: a broker of an older release closes one when a reminder arrives.
        self._links = BrokerLinks(resolve)

    async def run(self) -> None:
        """Search every `share_reminder_interval_ms`, until the task is cancelled."""
        while True:
            await asyncio.sleep(self._limits.share_reminder_interval_ms / 1000)
            await self.look()

    async def close(self) -> None:
        """Close all connections.  Idempotent."""
        await self._links.close()

    async def look(self) -> None:
        """Search once, and send the reminders that are due.

        If a leader does not answer, a later search sends its reminder again.
        """
        machines = [each.machine for each in self._shell if each.machine is not None]
        archiving = {key: state for machine in machines for key, state in machine.archiving.items()}
        due = self._core.look(archiving, self._leader_of)
        self._remind(due.pop(self._cluster.broker_id, []))
        await asyncio.gather(*[self._send(leader, keys) for leader, keys in sorted(due.items())])

    def _leader_of(self, key: ShareKey) -> int:
        topic = self._cluster.newest.topics.get(key.topic_id)
        partition = None if topic is None else topic.partition(key.partition)
        return NO_LEADER if partition is None else partition.leader

    async def _send(self, leader: int, keys: Sequence[ShareKey]) -> None:
        named = [{"group_id": each.group, "topic_id": each.topic_id, "partition": each.partition} for each in keys]
        timeout_s = self._limits.share_state_timeout_ms / 1000
        try:
            await self._links.ask(leader, Api.WRITE_DEAD_LETTERS, _VERSION, {"share_partitions": named}, timeout_s)
        except ClusterError as error:
            logger.debug("reminder of dead letters not delivered", broker=leader, keys=len(keys), cause=str(error))
