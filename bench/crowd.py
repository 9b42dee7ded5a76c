"""Many client connections that one process holds, most of which are idle.

Each connection has been answered an ApiVersions and a Metadata request.  Then the connections take turns: each second,
a few of them ask for the metadata of a topic or fetch one of its partitions, which is empty.  A fetch does not wait for
records.  All requests are encoded once, and a reply with known bytes is not decoded again, so the process itself takes
little processor time.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import count, cycle, islice
from typing import Any, Final, NamedTuple

from bench.clusters import Cluster
from bench.confluent import DEADLINE_S
from bench.helpers import Helper, Link, helper
from quorumlog.client.kafka import KafkaConnection
from quorumlog.runtime.addresses import parse_address
from quorumlog.runtime.descriptors import descriptor_limit, raise_descriptor_limit
from quorumlog.wire.errors import KafkaCode
from quorumlog.wire.kafka import codec
from quorumlog.wire.kafka.codec import Api

REQUESTS_S: Final = 100
CONNECTING: Final = 32
"""Number of connections that are opened at the same time."""
SPARE_FILES: Final = 100
"""Files that the process opens for other purposes."""
KNOWN_REPLIES_MAX: Final = 1_000
"""Further replies are decoded each time."""
PASSING: Final = {
    KafkaCode.NONE,
    KafkaCode.LEADER_NOT_AVAILABLE,
    KafkaCode.NOT_LEADER_OR_FOLLOWER,
    KafkaCode.REPLICA_NOT_AVAILABLE,
}
"""The codes of replies that count as answers: a leadership may move at any time."""
VERSIONS: Final = {Api.API_VERSIONS: 3, Api.METADATA: 9, Api.FETCH: 12}


class Held(NamedTuple):
    """opened_s: the time until all connections were open and answered.

    requests: the number of answered requests afterwards.  processor_share: of this process meanwhile, 1 for a core.
    """

    opened_s: float
    requests: int
    processor_share: float


@contextmanager
def crowd(cluster: Cluster, topic: str, connections: int) -> Iterator[Helper]:
    """Hold connections, distributed evenly over the brokers, until the helper's `go`.  Its answer is a `Held`."""
    with helper(_hold_in_process, cluster.bootstrap, topic, connections) as process:
        process.wait_ready(DEADLINE_S)
        yield process


def _hold_in_process(link: Link, bootstrap: str, topic: str, connections: int) -> None:
    raise_descriptor_limit()
    limit = descriptor_limit()
    assert limit >= connections + SPARE_FILES, f"{limit} open files are too few for {connections} connections (ulimit)"
    asyncio.run(_hold(link, bootstrap.split(","), topic, connections))


async def _hold(link: Link, addresses: Sequence[str], topic: str, number: int) -> None:
    where = [parse_address(address) for address in addresses]
    made = [KafkaConnection(each.host, each.port, client_id="crowd") for each in islice(cycle(where), number)]
    requests = Requests(topic)
    try:
        began = time.monotonic()
        left = iter(made)

        async def open_in_turn() -> None:
            for connection in left:
                await connection.connect(DEADLINE_S)
                await requests.greet(connection)

        async with asyncio.TaskGroup() as tasks:
            for _ in range(CONNECTING):
                tasks.create_task(open_in_turn())
        opened_s = time.monotonic() - began
        link.ready.set()
        used, began, answered = time.process_time(), time.monotonic(), 0
        for answered in count():
            if link.go.is_set():
                break
            connection = made[answered % number]
            await requests.ask(connection, is_fetch=answered // number % 2 == 0)
            await asyncio.sleep(max(0.0, began + (answered + 1) / REQUESTS_S - time.monotonic()))
        share = (time.process_time() - used) / (time.monotonic() - began)
        closed = sum(not each.is_open for each in made)
        assert closed == 0, f"{closed} of {number} connections were closed"
        link.answers.put(Held(opened_s, answered, share))
    finally:
        await asyncio.gather(*(each.close() for each in made))


class Requests:
    """The requests of all connections, encoded, and the replies that are known to be without errors."""

    def __init__(self, topic: str) -> None:
        self._topic = topic
        self._hello = _encoded(
            Api.API_VERSIONS, {"client_software_name": "quorumlog-bench", "client_software_version": "1"}
        )
        self._metadata = _encoded(Api.METADATA, {"topics": [{"name": topic}], "allow_auto_topic_creation": False})
        self._fetches: dict[int, bytes] = {}
        """By port of a broker: the fetch of a partition that it leads."""
        self._known: set[tuple[Api, bytes]] = set()

    async def greet(self, connection: KafkaConnection) -> None:
        """Send the requests with which a client begins."""
        await self._call(connection, Api.API_VERSIONS, self._hello)
        await self._call(connection, Api.METADATA, self._metadata)

    async def ask(self, connection: KafkaConnection, *, is_fetch: bool) -> None:
        """Fetch an empty partition, or ask for metadata; only metadata if the broker leads no partition."""
        if is_fetch and (fetch := self._fetches.get(connection.port)) is not None:
            await self._call(connection, Api.FETCH, fetch)
        else:
            await self._call(connection, Api.METADATA, self._metadata)

    def _note_leaders(self, metadata: Any) -> None:
        ports = {each.node_id: each.port for each in metadata.brokers}
        for partition in metadata.topics[0].partitions:
            if (port := ports.get(partition.leader_id)) is not None:
                self._fetches[port] = self._fetch(partition.partition_index)

    def _fetch(self, partition: int) -> bytes:
        fetched = {"partition": partition, "fetch_offset": 0, "partition_max_bytes": 1 << 20}
        values = {
            "replica_id": -1,
            "min_bytes": 1,
            "topics": [{"topic": self._topic, "partitions": [fetched]}],
            "session_epoch": -1,  # no fetch session
        }
        return _encoded(Api.FETCH, values)

    async def _call(self, connection: KafkaConnection, api: Api, body: bytes) -> None:
        """Send a request, and decode its reply unless an equal one is known."""
        raw = bytes(await connection.call(api, VERSIONS[api], (body,), DEADLINE_S))
        if (api, raw) in self._known:
            return
        reply = codec.decode(codec.response_schema(api, VERSIONS[api]), memoryview(raw), 0)
        if codes := set(_codes(api, reply)) - PASSING:
            raise RuntimeError(f"{connection.peer} refused {api.name} of {self._topic}: {sorted(codes)}")
        if len(self._known) < KNOWN_REPLIES_MAX:
            self._known.add((api, raw))
        if api is Api.METADATA:
            self._note_leaders(reply)


def _encoded(api: Api, values: Mapping[str, Any]) -> bytes:
    return bytes(codec.encode(codec.request(api, VERSIONS[api], values)))


def _codes(api: Api, reply: Any) -> Iterator[int]:
    """Yield the error codes of a reply."""
    match api:
        case Api.METADATA:
            for topic in reply.topics:
                yield int(topic.error_code)
                yield from (int(partition.error_code) for partition in topic.partitions)
        case Api.FETCH:
            yield int(reply.error_code)
            yield from (int(each.error_code) for topic in reply.responses for each in topic.partitions)
        case _:
            yield int(reply.error_code)
