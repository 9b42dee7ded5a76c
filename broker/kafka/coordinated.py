"""Decoded requests to coordinators: the objects that their handlers need, and the division of one request into several.

A request that names several groups is split by the partitions that hold their state, and the answers are merged in the
order of the request.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, Final, Generic, TypeVar
from uuid import UUID

from broker.core.coordinator.client import Client
from broker.core.coordinator.group_requests import GroupRequest
from broker.kafka.api import Groups, Replicas, Shares, Transactions
from broker.kafka.connection import Caller, Pending, Reply
from quorumlog.runtime.turns import Turn
from quorumlog.wire.errors import KafkaCode
from quorumlog.wire.kafka import codec

Values = dict[str, Any]
K = TypeVar("K")
V = TypeVar("V")

GROUPS_AT_A_TIME: Final = 20
"""Maximum number of groups of one request for which share coordinators are asked at a time.  Further groups wait."""


class DecodedRequest:
    """A decoded request, and the objects that its handler needs.  size: bytes of its frame."""

    def __init__(
        self,
        groups: Groups,
        transactions: Transactions,
        shares: Shares,
        replicas: Replicas,
        caller: Caller,
        frame: memoryview,
    ) -> None:
        self.groups = groups
        self.transactions = transactions
        self.shares = shares
        self.replicas = replicas
        self.caller = caller
        self.request = codec.decode_request(caller.header, frame)
        self.size = len(frame)

    @property
    def version(self) -> int:
        return self.caller.header.api_version

    @property
    def client(self) -> Client:
        """Return the client's name and address.  The address has a slash before it, as Kafka reports it."""
        return Client(self.caller.header.client_id or "", "/" + self.caller.peer.rpartition(":")[0])

    def field(self, name: str, default: Any = None) -> Any:
        """Return a field that some versions lack."""
        return getattr(self.request, name, default)

    def reply(self, values: Values) -> Reply:
        return (codec.encode_response_body(self.caller.header.api_key, self.version, values),)

    def one(self, request: GroupRequest, group: str, values_of: Callable[[Any], Values]) -> Pending:
        """Send a request about one group; values_of: makes the response from a result or a refusal."""
        future = self.groups.call(self.groups.partition(group), request, self.size)
        return Pending((future,), lambda: self.reply(values_of(result(future))), is_owned=True)

    def topic_id(self, name: str) -> UUID | None:
        return self.replicas.image.topic_ids.get(name)

    def topic_name(self, topic_id: UUID | None) -> str | None:
        topic = None if topic_id is None else self.replicas.image.topics.get(topic_id)
        return None if topic is None else topic.name


def not_coordinator() -> asyncio.Future[Any]:
    """Return a call's future with NOT_COORDINATOR, for a listener without coordinators."""
    refused: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    refused.set_result(KafkaCode.NOT_COORDINATOR)
    return refused


def result(future: asyncio.Future[Any]) -> Any:
    """Return the response, or the code of a refusal.  The future is cancelled when the server closes."""
    return KafkaCode.NOT_COORDINATOR if future.cancelled() else future.result()


class Split(Generic[K]):
    """A request about several groups, as one request for each partition that holds some of them."""

    def __init__(
        self,
        asked: DecodedRequest,
        items: Sequence[K],
        group_of: Callable[[K], str],
        request_of: Callable[[tuple[K, ...]], GroupRequest],
    ) -> None:
        self._items = items
        self._by_partition: dict[int, list[int]] = {}
        for position, item in enumerate(items):
            self._by_partition.setdefault(asked.groups.partition(group_of(item)), []).append(position)
        size = asked.size // max(1, len(self._by_partition))
        self.futures = [
            asked.groups.call(partition, request_of(tuple([items[each] for each in positions])), size)
            for partition, positions in self._by_partition.items()
        ]

    def answers(self, refused: Callable[[K, KafkaCode], Any]) -> list[Any]:
        """Return the answer to each item, in their order.  refused: makes the answer to an item that was refused."""
        answers: list[Any] = [None] * len(self._items)
        for future, positions in zip(self.futures, self._by_partition.values(), strict=True):
            response = result(future)
            if isinstance(response, KafkaCode):
                found: Iterable[Any] = [refused(self._items[each], response) for each in positions]
            else:
                found = response.groups
            for position, answer in zip(positions, found, strict=True):
                answers[position] = answer
        return answers


async def side_by_side(work: Callable[[K], Awaitable[V]], items: Sequence[K]) -> list[V]:
    """Return the results of `work` for all items, in their order.  Some items are processed concurrently.

    A group whose share coordinator does not answer takes seconds, and must not delay the other groups of the request.
    """
    results: dict[int, V] = {}
    left = iter(enumerate(items))

    async def worker() -> None:  # a task for each of up to 100,000 items would take 1.5 KB each
        turn = Turn()
        for position, item in left:
            results[position] = await work(item)
            await turn.passed()

    await asyncio.gather(*(worker() for _ in items[:GROUPS_AT_A_TIME]))
    return [results[position] for position in range(len(items))]
