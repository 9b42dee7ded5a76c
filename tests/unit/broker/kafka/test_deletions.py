"""DeleteRecords requests."""

from __future__ import annotations

from typing import Any

import pytest

from quorumlog.wire.kafka.codec import Api
from tests.unit.broker.kafka.conftest import Served
from tests.unit.broker.kafka.raw import RawClient, batch


@pytest.mark.parametrize("version", [0, 1, 2])
async def test_delete_records_returns_a_result_for_each_partition(served: Served, version: int) -> None:
    served.replicas.create("t", 2)
    served.replicas.create("u", 1, leader=2)

    def partition(index: int, offset: int) -> dict[str, Any]:
        return {"partition_index": index, "offset": offset}

    async with RawClient(served.port) as client:
        await client.produce("t", 0, batch((b"a", b"b", b"c")))
        topics = [
            {"name": "t", "partitions": [partition(0, 2), partition(1, 1), partition(9, 0)]},
            {"name": "u", "partitions": [partition(0, 0)]},
            {"name": "nobody", "partitions": [partition(0, -1)]},
            {"name": "empty", "partitions": []},
        ]
        response = await client.ask(Api.DELETE_RECORDS, version, {"topics": topics, "timeout": 700})
    assert [
        (topic.name, each.partition_index, int(each.error_code), each.low_watermark)
        for topic in response.topics
        for each in topic.partitions
    ] == [("t", 0, 0, 2), ("t", 1, 1, -1), ("t", 9, 3, -1), ("u", 0, 6, -1), ("nobody", 0, 3, -1)]
    assert [topic.name for topic in response.topics] == ["t", "u", "nobody", "empty"]
    assert served.replicas.deletion_timeouts[0] == 700


async def test_a_topic_that_delete_records_names_twice_appears_once_in_the_response(served: Served) -> None:
    served.replicas.create("t", 1)
    topic = {"name": "t", "partitions": [{"partition_index": 0, "offset": 0}]}
    async with RawClient(served.port) as client:
        response = await client.ask(Api.DELETE_RECORDS, 2, {"topics": [topic, topic], "timeout": 700})
    assert [(topic.name, len(topic.partitions)) for topic in response.topics] == [("t", 2)]
