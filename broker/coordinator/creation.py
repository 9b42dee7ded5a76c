"""Creates a topic that a broker needs, such as an internal one, when it is first needed.

Any number of callers share one request to the controller.  The controller creates the topic once, even if several
brokers ask at the same time.  After a refusal, callers get the same answer for a while, so that they do not
flood the controller.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping

from broker.coordinator.limits import CoordinatorLimits
from broker.replica.cluster_view import ClusterView
from quorumlog.errors import ClusterError
from quorumlog.runtime.clock import now_ms
from quorumlog.runtime.logging import get_logger
from quorumlog.wire import rpcs
from quorumlog.wire.errors import ApiError
from quorumlog.wire.rpcs import ControllerCall
from quorumlog.wire.v1 import controller_pb2 as pb

DEFAULT = -1
"""Lets the controller choose the number of partitions or replicas."""
NO_CONFIGS: Mapping[str, str] = {}

logger = get_logger("coordinator")


class TopicCreation:
    """Creates one topic with the cluster's default numbers of partitions and replicas.

    wait_applied: returns once this broker has applied the metadata below an offset.
    configs: the configs of the topic that differ from the defaults.
    """

    def __init__(
        self,
        topic: str,
        cluster: ClusterView,
        call: ControllerCall,
        wait_applied: Callable[[int], Awaitable[object]],
        limits: CoordinatorLimits,
        configs: Mapping[str, str] = NO_CONFIGS,
    ) -> None:
        self._topic = topic
        self._configs = configs
        self._cluster = cluster
        self._call = call
        self._wait_applied = wait_applied
        self._limits = limits
        self._group: asyncio.TaskGroup | None = None
        self._running: asyncio.Task[None] | None = None
        self._problem = ""
        self._next_at_ms = 0

    def start(self, group: asyncio.TaskGroup) -> None:
        """Let `ensure` create the topic from now on.  The tasks belong to `group`."""
        self._group = group

    async def close(self) -> None:
        """Stop creating the topic.  Idempotent."""
        self._group = None
        if self._running is not None:
            self._running.cancel()
            await asyncio.wait({self._running})

    @property
    def is_running(self) -> bool:
        """Return whether the controller is being asked."""
        return self._running is not None

    @property
    def _exists(self) -> bool:
        return self._topic in self._cluster.applied.topic_ids

    async def ensure(self) -> str:
        """Wait until this broker knows the topic, for at most `creation_timeout_ms`.

        Return an empty string, or the reason why the broker does not know the topic.
        """
        if self._running is None and not self._exists:
            if self._group is None:
                return "the broker is starting or stopping"
            if now_ms() < self._next_at_ms:
                return self._problem
            self._running = self._group.create_task(self._create(), name=f"create-{self._topic}")
        if self._running is not None:
            await asyncio.wait({self._running})
        return "" if self._exists else self._problem

    async def _create(self) -> None:
        self._problem = f"the controller has not created {self._topic} in time"
        try:
            async with asyncio.timeout(self._limits.creation_timeout_ms / 1000):
                self._problem = await self._ask()
        except TimeoutError:
            pass
        except ClusterError as error:
            self._problem = error.message
        finally:
            self._running = None
        if not self._exists:
            self._next_at_ms = now_ms() + self._limits.creation_pause_ms
            logger.warning("topic not created", topic=self._topic, cause=self._problem)

    async def _ask(self) -> str:
        """Ask the controller, and wait until this broker has applied the result.

        Return an empty string, or the reason why the topic was not created.
        """
        wanted = pb.NewTopic(name=self._topic, partitions=DEFAULT, replication_factor=DEFAULT)
        for key, value in self._configs.items():
            wanted.configs.add(key=key, value=value)
        request = pb.CreateTopicsRequest(topics=[wanted])
        reply = await self._call(rpcs.CREATE_TOPICS, request, self._limits.creation_timeout_ms)
        for topic in reply.topics:
            if topic.result.error == ApiError.NONE:
                await self._wait_applied(topic.offset)
                return ""
            if topic.result.error == ApiError.TOPIC_ALREADY_EXISTS:
                return f"this broker has not applied the creation of {self._topic} yet"
            return "; ".join(text for text in (topic.result.message, topic.result.next) if text)
        return reply.result.message
