"""Creates missing topics that clients name in Metadata requests, if `auto.create.topics.enable` permits it.

Theory of operation.  The reply to a Metadata request does not wait: a missing topic is UNKNOWN_TOPIC_OR_PARTITION, and
clients ask again until the topic exists.  `AutoTopics.want` notes missing names.  One task takes as many noted names as
fit into a request, and asks the controller to create these topics.  The other names wait for the next request.  So a
thousand clients that ask for the same topic at the same time cause one creation.  If several brokers request the same
topic, the controller creates it once.  It refuses the other requests with TOPIC_ALREADY_EXISTS, which these brokers
treat as success.

A topic that the controller creates for this broker stays under way until the broker has applied the creation, or until
`auto_topics_timeout_ms` has passed.  So a client that asks meanwhile starts no second creation.  After a refusal, the
name stays under way for a pause, because clients repeat their requests every 100 ms.  The name of a topic that already
exists stays under way for the same pause, because this broker may not have applied its creation yet.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from itertools import islice

from broker.kafka.admin import Forwarder, is_ok, message_of, whole_failure
from broker.kafka.limits import KafkaLimits
from metadata.control.topics import name_problem
from metadata.image import ClusterImage, is_internal
from metadata.records import RECORDS_PER_BATCH_MAX
from quorumlog.runtime.logging import LineBudget, get_logger
from quorumlog.wire import rpcs
from quorumlog.wire.errors import ApiError
from quorumlog.wire.v1 import controller_pb2 as pb

logger = get_logger("kafka")

AUTO_CREATE = "auto.create.topics.enable"
PARTITIONS = "num.partitions"
_DEFAULT = -1
_RECORDS_MAX = RECORDS_PER_BATCH_MAX // 2
"""Maximum number of records of one creation: half of the controller's limit, because topics also have configs."""


class AutoTopics:
    """The automatic creations of one broker.  `close` ends them."""

    def __init__(self, forwarder: Forwarder, limits: KafkaLimits) -> None:
        self._forwarder = forwarder
        self._limits = limits
        self._wanted: dict[str, None] = {}
        """Names that are under way, and not requested yet."""
        self._under_way: set[str] = set()
        """All names that `want` does not take again; includes `_wanted`."""
        self._per_request = 1
        self._task: asyncio.Task[None] | None = None
        self._pauses: set[asyncio.TimerHandle] = set()
        self._lines: LineBudget | None = None
        self._closed = False

    @property
    def under_way(self) -> int:
        """Number of names that are being created, or were refused less than `auto_topics_pause_ms` ago."""
        return len(self._under_way)

    def want(self, names: Iterable[str], image: ClusterImage) -> None:
        """Begin to create the missing topics among these names, as far as the config and the limits permit."""
        if self._closed or image.cluster_config(AUTO_CREATE) != "true":
            return
        partitions = int(image.cluster_config(PARTITIONS))
        self._per_request = max(1, min(self._limits.auto_topics_per_request_max, _RECORDS_MAX // (1 + partitions)))
        asked = 0
        for name in names:
            if name in image.topic_ids or name_problem(name) is not None or is_internal(name):
                continue
            asked += 1
            if asked > self._limits.auto_topics_per_request_max or len(self._under_way) >= self._limits.auto_topics_max:
                break
            if name not in self._under_way:
                self._under_way.add(name)
                self._wanted[name] = None
        if self._wanted and self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._create_wanted(), name="kafka-auto-topics")
            self._task.add_done_callback(_report)

    async def close(self) -> None:
        """End the creations.  Creations that the controller has received may still take effect."""
        self._closed = True  # connections still serve requests while the task ends
        for pause in self._pauses:
            pause.cancel()
        self._pauses.clear()
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})

    async def _create_wanted(self) -> None:
        try:
            while self._wanted:
                names = list(islice(self._wanted, self._per_request))
                for name in names:
                    del self._wanted[name]
                await self._create(names)
        finally:
            self._task = None

    async def _create(self, names: list[str]) -> None:
        deadline = self._forwarder.deadline(self._limits.auto_topics_timeout_ms)
        message = pb.CreateTopicsRequest()
        for name in names:
            message.topics.add(name=name, partitions=_DEFAULT, replication_factor=_DEFAULT)
        reply = await self._forwarder.forward(rpcs.CREATE_TOPICS, message, deadline)
        failure = whole_failure(reply)
        results = {topic.name: topic.result for topic in reply.topics} if failure is None else {}
        created = [topic for topic in reply.topics if is_ok(topic.result)]
        for topic in created:
            logger.info("topic created for a client", topic=topic.name, partitions=topic.partitions)
        await self._forwarder.wait_for([topic.offset for topic in created], deadline)
        for name in names:
            result = failure or results.get(name) or pb.Result(error=ApiError.UNKNOWN_SERVER_ERROR)
            if is_ok(result):
                self._under_way.discard(name)
                continue
            if result.error != ApiError.TOPIC_ALREADY_EXISTS:
                self._report_refusal(name, result)
            self._pause(name)

    def _report_refusal(self, name: str, result: pb.Result) -> None:
        if self._lines is None:
            self._lines = LineBudget(logger, asyncio.get_running_loop().time)
        self._lines.warning("topic not created for a client", topic=name, error=result.error, reason=message_of(result))

    def _pause(self, name: str) -> None:
        """Keep a name under way for `auto_topics_pause_ms`."""

        def again() -> None:
            self._pauses.discard(pause)
            self._under_way.discard(name)

        pause = asyncio.get_running_loop().call_later(self._limits.auto_topics_pause_ms / 1000, again)
        self._pauses.add(pause)


def _report(task: asyncio.Task[None]) -> None:
    """Report a bug in a creation to the loop's handler, which ends the process if an invariant is broken."""
    if not task.cancelled() and (error := task.exception()) is not None:
        context = {"message": "automatic creation of topics failed", "exception": error}
        task.get_loop().call_exception_handler(context)
