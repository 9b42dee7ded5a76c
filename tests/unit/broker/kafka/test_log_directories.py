"""AlterReplicaLogDirs: requests to move replicas to other data directories."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from broker.kafka.api import RequestedMove
from quorumlog.wire.errors import KafkaCode
from quorumlog.wire.kafka.codec import Api
from tests.unit.broker.kafka.conftest import Served
from tests.unit.broker.kafka.fake import DIRECTORY
from tests.unit.broker.kafka.raw import RawClient, batch


async def ask(served: Served, api: Api, version: int, values: dict[str, Any]) -> Any:
    async with RawClient(served.port) as client:
        return await client.ask(api, version, values)


@pytest.mark.parametrize(
    ("path", "index", "code"),
    [
        ("/data/a", 0, KafkaCode.NONE),
        ("/data/a/", 0, KafkaCode.LOG_DIR_NOT_FOUND),
        ("/data/a", 1, KafkaCode.REPLICA_NOT_AVAILABLE),
        ("/data/b", 0, KafkaCode.KAFKA_STORAGE_ERROR),
        ("/data/c", 0, KafkaCode.NONE),
        ("/data", 0, KafkaCode.LOG_DIR_NOT_FOUND),
        ("", 0, KafkaCode.LOG_DIR_NOT_FOUND),
    ],
)
@pytest.mark.parametrize("version", [1, 2])
async def test_a_replica_moves_only_to_a_directory_that_works(
    served: Served, version: int, path: str, index: int, code: KafkaCode
) -> None:
    served.replicas.create("t", 1)
    async with RawClient(served.port) as client:
        await client.produce("t", 0, batch())
    wanted = [{"path": path, "topics": [{"name": "t", "partitions": [index]}]}]
    response = await ask(served, Api.ALTER_REPLICA_LOG_DIRS, version, {"dirs": wanted})
    found = [
        (each.topic_name, one.partition_index, int(one.error_code))
        for each in response.results
        for one in each.partitions
    ]
    assert found == [("t", index, code)]
    ids = {"/data/a": DIRECTORY, "/data/c": UUID(int=902)}
    wanted_moves = [RequestedMove("t", index, ids[path])] if code is KafkaCode.NONE else []
    assert served.replicas.moves == wanted_moves


async def test_the_last_directory_that_a_request_names_for_a_replica_is_used(served: Served) -> None:
    served.replicas.create("t", 2)
    async with RawClient(served.port) as client:
        await client.produce("t", 0, batch())
        await client.produce("t", 1, batch())
    topics = [{"name": "t", "partitions": [0, 1]}]
    dirs = [
        {"path": "/data/a", "topics": topics},
        {"path": "/nowhere", "topics": [{"name": "t", "partitions": [1]}]},
        {"path": "/data/c", "topics": [{"name": "t", "partitions": [0]}]},
    ]
    response = await ask(served, Api.ALTER_REPLICA_LOG_DIRS, 2, {"dirs": dirs})
    (topic,) = response.results
    assert [(each.partition_index, int(each.error_code)) for each in topic.partitions] == [
        (0, 0),
        (1, KafkaCode.LOG_DIR_NOT_FOUND),
    ]
    assert served.replicas.moves == [RequestedMove("t", 0, UUID(int=902))]
