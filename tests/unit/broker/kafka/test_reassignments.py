"""AlterPartitionReassignments and ListPartitionReassignments: each partition has its own result."""

from __future__ import annotations

from typing import Any

from quorumlog.wire.kafka.codec import Api
from quorumlog.wire.v1 import controller_pb2 as pb
from tests.unit.broker.kafka.conftest import Served
from tests.unit.broker.kafka.raw import RawClient

Asked = dict[str, list[tuple[int, list[int] | None]]]


async def alter(client: RawClient, asked: Asked, version: int = 1, **options: Any) -> tuple[int, dict[Any, int]]:
    """Return the error code of the response, and of each partition."""
    topics = [
        {"name": name, "partitions": [{"partition_index": index, "replicas": row} for index, row in rows]}
        for name, rows in asked.items()
    ]
    response = await client.ask(
        Api.ALTER_PARTITION_REASSIGNMENTS, version, {"topics": topics, "timeout": 5000, **options}
    )
    codes = {
        (topic.name, each.partition_index): int(each.error_code)
        for topic in response.responses
        for each in topic.partitions
    }
    return int(response.error_code), codes


async def ongoing(client: RawClient, topics: dict[str, list[int]] | None) -> dict[tuple[str, int], Any]:
    named = None if topics is None else [{"name": name, "partition_indexes": each} for name, each in topics.items()]
    response = await client.ask(Api.LIST_PARTITION_REASSIGNMENTS, 0, {"topics": named, "timeout": 5000})
    assert int(response.error_code) == 0
    return {
        (topic.name, each.partition_index): (each.replicas, each.adding_replicas, each.removing_replicas)
        for topic in response.topics
        for each in topic.partitions
    }


async def test_a_reassignment_is_started_listed_replaced_and_cancelled(served: Served) -> None:
    served.replicas.register(node_id=2)
    served.replicas.register(node_id=3)
    served.replicas.create("t", 2)
    async with RawClient(served.port) as client:
        assert await alter(client, {"t": [(0, [2])]}, version=0) == (0, {("t", 0): 0})
        moving = {("t", 0): ((2, 1), (2,), (1,))}
        assert await ongoing(client, None) == await ongoing(client, {"t": [0, 1], "u": [0]}) == moving
        assert await ongoing(client, {}) == await ongoing(client, {"t": [1]}) == {}
        assert await alter(client, {"t": [(0, [3])]}) == (0, {("t", 0): 0})
        assert await ongoing(client, None) == {("t", 0): ((3, 1), (3,), (1,))}
        assert await alter(client, {"t": [(0, None), (1, None)]}) == (0, {("t", 0): 0, ("t", 1): 85})
        assert await ongoing(client, None) == {}


async def test_a_refused_reassignment_does_not_block_other_partitions(served: Served) -> None:
    served.replicas.register(node_id=2)
    served.replicas.register(node_id=3, fenced=True)
    served.replicas.create("t", 6)
    asked: Asked = {
        "t": [(0, [2]), (1, [9]), (2, []), (3, [2, 2]), (4, [3]), (5, [2]), (5, [1]), (7, [1]), (-1, [1])],
        "nobody": [(0, [1])],
    }
    async with RawClient(served.port) as client:
        code, codes = await alter(client, asked)
        assert code == 0
        assert codes == {
            ("t", 0): 0, ("t", 1): 39, ("t", 2): 39, ("t", 3): 39, ("t", 4): 39, ("t", 5): 42, ("t", 7): 3,
            ("t", -1): 3, ("nobody", 0): 3,
        }  # fmt: skip
        assert list(await ongoing(client, None)) == [("t", 0)]
        assert await alter(client, {}) == (0, {})
        assert await alter(client, {"t": [(1, [1, 2])]}, allow_replication_factor_change=False) == (0, {("t", 1): 38})


async def test_reassignments_without_a_controller_are_refused(served: Served) -> None:
    served.replicas.create("t", 1)
    served.controller.failure = pb.Result(error="NOT_CONTROLLER", message="ask again")
    async with RawClient(served.port) as client:
        assert await alter(client, {"t": [(0, [1])]}) == (41, {("t", 0): 41})
        response = await client.ask(Api.LIST_PARTITION_REASSIGNMENTS, 0, {"topics": None, "timeout": 5000})
        assert int(response.error_code) == 41
