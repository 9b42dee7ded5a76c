"""Brokers of a cluster whose controller is one of them, as of Apache Kafka with ZooKeeper: only it changes topics."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from quorumlog.wire.errors import KafkaCode
from quorumlog.wire.kafka import codec
from quorumlog.wire.kafka.codec import Api

Request = tuple[int, Api]
"""The broker that received the request, and its API."""


class FakeKafka:
    """The cluster.

    controller: the broker that changes topics.  believed: the controller that a broker's metadata names instead.
    lost: this many changes of topics are made, but their connection breaks before the answer.
    hangs: brokers that answer nothing but Metadata.  refusal: the error of every change while it is set.
    leaders: the leaders of partitions that broker 1 does not lead.  deleted: the partitions whose records were deleted.
    topics: the number of partitions by name.  behind: those that the metadata of a broker has instead.
    """

    def __init__(self) -> None:
        self.controller = 1
        self.believed: dict[int, int] = {}
        self.lost = 0
        self.hangs: set[int] = set()
        self.refusal: KafkaCode | None = None
        self.leaders: dict[tuple[str, int], int] = {}
        self.deleted: list[tuple[str, int]] = []
        self.topics: dict[str, int] = {}
        self.behind: dict[int, dict[str, int]] = {}
        self.asked: list[Request] = []
        self.ports: dict[int, int] = {}
        self.open: set[asyncio.StreamWriter] = set()

    @property
    def bootstrap(self) -> str:
        return ",".join(f"127.0.0.1:{port}" for port in self.ports.values())

    def changed_by(self, api: Api) -> list[int]:
        """Return the brokers that were asked for a change, in order."""
        return [node_id for node_id, each in self.asked if each == api]

    async def serve(self, node_id: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.open.add(writer)
        try:
            while True:
                size = int.from_bytes(await reader.readexactly(4))
                frame = memoryview(await reader.readexactly(size))
                header = codec.parse_request_header(frame)
                api = Api(header.api_key)
                self.asked.append((node_id, api))
                if node_id in self.hangs and api != Api.METADATA:
                    continue
                values = self._answer(node_id, api, codec.decode_request(header, frame))
                if self.lost and api != Api.METADATA:
                    self.lost -= 1
                    return
                body = codec.encode_response_body(api, header.api_version, values)
                flexible = codec.response_header_is_flexible(api, header.api_version)
                writer.write(codec.response_prefix(header.correlation_id, len(body), flexible) + body)
        except asyncio.IncompleteReadError:
            pass
        finally:
            self.open.discard(writer)
            writer.close()

    def _answer(self, node_id: int, api: Api, request: Any) -> dict[str, Any]:
        match api:
            case Api.METADATA:
                return self._metadata(node_id, request)
            case Api.CREATE_TOPICS:
                return {"topics": [self._create(node_id, each) for each in request.topics]}
            case Api.DELETE_TOPICS:
                return {"responses": [self._delete(node_id, each.name) for each in request.topics]}
            case Api.CREATE_PARTITIONS:
                return {"results": [self._grow(node_id, each) for each in request.topics]}
            case Api.DELETE_RECORDS:
                return {"topics": [self._delete_records(each) for each in request.topics]}
        assert api == Api.INCREMENTAL_ALTER_CONFIGS, api
        code = self.refusal or KafkaCode.NONE
        return {
            "responses": [
                {"error_code": code, "resource_type": each.resource_type, "resource_name": each.resource_name}
                for each in request.resources
            ]
        }

    def _metadata(self, node_id: int, request: Any) -> dict[str, Any]:
        topics = self.behind.get(node_id, self.topics)
        names = sorted(topics) if request.topics is None else [each.name for each in request.topics]
        missing = KafkaCode.UNKNOWN_TOPIC_OR_PARTITION
        return {
            "brokers": [
                {"node_id": each, "host": "127.0.0.1", "port": port, "rack": None} for each, port in self.ports.items()
            ],
            "cluster_id": "fake",
            "controller_id": self.believed.get(node_id, self.controller),
            "topics": [
                {
                    "error_code": KafkaCode.NONE if name in topics else missing,
                    "name": name,
                    "topic_id": None,
                    "is_internal": False,
                    "partitions": [
                        {"partition_index": index, "leader_id": self.leaders.get((name, index), 1), "leader_epoch": 0,
                         "replica_nodes": [1], "isr_nodes": [1], "offline_replicas": []}
                        for index in range(topics.get(name, 0))
                    ],
                }
                for name in names
            ],
        }  # fmt: skip

    def _create(self, node_id: int, topic: Any) -> dict[str, Any]:
        code = self._refusal(node_id)
        if not code and topic.name in self.topics:
            code = KafkaCode.TOPIC_ALREADY_EXISTS
        if not code:
            self.topics[topic.name] = max(topic.num_partitions, 1)
        return {"name": topic.name, "error_code": code, "num_partitions": 1, "replication_factor": 1}

    def _delete(self, node_id: int, name: str) -> dict[str, Any]:
        code = self._refusal(node_id)
        if not code and self.topics.pop(name, None) is None:
            code = KafkaCode.UNKNOWN_TOPIC_OR_PARTITION
        return {"name": name, "topic_id": None, "error_code": code}

    def _delete_records(self, topic: Any) -> dict[str, Any]:
        self.deleted += [(topic.name, each.partition_index) for each in topic.partitions]
        return {
            "name": topic.name,
            "partitions": [
                {"partition_index": each.partition_index, "low_watermark": each.offset, "error_code": KafkaCode.NONE}
                for each in topic.partitions
            ],
        }

    def _grow(self, node_id: int, topic: Any) -> dict[str, Any]:
        code = self._refusal(node_id)
        if not code and topic.count <= self.topics[topic.name]:
            code = KafkaCode.INVALID_PARTITIONS
        if not code:
            self.topics[topic.name] = topic.count
        return {"name": topic.name, "error_code": code}

    def _refusal(self, node_id: int) -> KafkaCode:
        return KafkaCode.NOT_CONTROLLER if node_id != self.controller else self.refusal or KafkaCode.NONE


@asynccontextmanager
async def fake_kafka(count: int = 2) -> AsyncIterator[FakeKafka]:
    """Run brokers 1 to `count`."""
    kafka = FakeKafka()
    servers = []
    for node_id in range(1, count + 1):

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, node_id: int = node_id) -> None:
            await kafka.serve(node_id, reader, writer)

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        servers.append(server)
        kafka.ports[node_id] = server.sockets[0].getsockname()[1]
    try:
        yield kafka
    finally:
        for server in servers:
            server.close()
        for writer in list(kafka.open):
            writer.close()
