"""DescribeShareGroupOffsets: starts and lags, in the protocol."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Sequence
from typing import Any
from uuid import UUID

import pytest

from broker.core.coordinator.consumer.requests import NamedPartitions
from broker.core.coordinator.share.requests import ListShareStatesResponse
from broker.core.coordinator.share.states import ShareState, StateResponse
from broker.core.fetch_session import PartitionKey
from broker.core.share.partition import Delivery, StateBatch
from broker.kafka.coordinated import GROUPS_AT_A_TIME
from broker.kafka.share_groups import NoShares
from quorumlog.wire.errors import KafkaCode
from quorumlog.wire.kafka.codec import Api
from tests.unit.broker.kafka.fake import FakeReplicas, listening
from tests.unit.broker.kafka.raw import RawClient
from tests.unit.broker.kafka.wellness import until

TOPIC_ID = UUID(int=7)
MISSING = "missing"
"""A group that does not exist.  Every other group has a state of each partition of `orders`."""


class Shares(NoShares):
    """ends: the available log ends by partition.  asked: the partition indexes of each look-up."""

    def __init__(self) -> None:
        self.states: list[StateResponse] = []
        self.ends: dict[int, int] = {}
        self.asked: list[list[int]] = []
        self.begun: list[str] = []
        self.stuck = asyncio.Event()  # all calls for groups named "stuck…" wait for it

    async def describe_offsets(
        self, group: str, wanted: Sequence[NamedPartitions] | None
    ) -> tuple[ListShareStatesResponse, list[tuple[NamedPartitions, list[StateResponse]]]]:
        await self._begin(group)
        if group == MISSING:
            return ListShareStatesResponse(KafkaCode.GROUP_ID_NOT_FOUND), []
        topic = NamedPartitions(TOPIC_ID, "orders", tuple(range(len(self.states))))
        return ListShareStatesResponse(KafkaCode.NONE), [(topic, self.states)]

    async def clear_group(self, group: str) -> KafkaCode:
        await self._begin(group)
        return KafkaCode.COORDINATOR_NOT_AVAILABLE if group == "stuck" else KafkaCode.NONE

    async def _begin(self, group: str) -> None:
        self.begun.append(group)
        if group.startswith("stuck"):
            await self.stuck.wait()

    async def log_ends(self, partitions: Iterable[PartitionKey]) -> dict[PartitionKey, int]:
        keys = list(partitions)
        self.asked.append([key.partition_index for key in keys])
        return {key: self.ends[key.partition_index] for key in keys if key.partition_index in self.ends}


class Served:
    def __init__(self, shares: Shares, client: RawClient) -> None:
        self.shares = shares
        self.client = client

    async def describe(self, *groups: str, version: int = 1) -> Any:
        values = {"groups": [{"group_id": group, "topics": None} for group in groups]}
        return (await self.client.ask(Api.DESCRIBE_SHARE_GROUP_OFFSETS, version, values)).groups

    async def lags(self) -> list[int]:
        (group,) = await self.describe("work")
        return [each.lag for each in group.topics[0].partitions]


@pytest.fixture
async def served() -> AsyncIterator[Served]:
    shares, replicas = Shares(), FakeReplicas()
    async with listening(replicas, shares=shares) as server, RawClient(server.endpoints[0].port) as client:
        yield Served(shares, client)


def at(start: int, *done: tuple[int, int]) -> StateResponse:
    """The state of a share partition.  done: ranges of accepted offsets after the start, with exclusive ends."""
    batches = tuple(StateBatch(first, end, Delivery.ACKNOWLEDGED, 1) for first, end in done)
    return StateResponse(KafkaCode.NONE, None, ShareState(0, 1, 3, start, batches))


async def test_the_lag_counts_the_records_that_are_not_yet_acknowledged(served: Served) -> None:
    served.shares.states = [at(5), at(5, (6, 8), (9, 10)), at(5)]
    served.shares.ends = {0: 12, 1: 12, 2: 5}
    assert await served.lags() == [7, 4, 0]


async def test_a_log_end_that_was_read_before_a_truncation_gives_no_negative_lag(served: Served) -> None:
    served.shares.states, served.shares.ends = [at(5)], {0: 3}
    assert await served.lags() == [0]


async def test_a_partition_whose_leader_does_not_answer_has_a_start_offset_but_no_lag(served: Served) -> None:
    served.shares.states, served.shares.ends = [at(5), at(6)], {1: 7}
    (group,) = await served.describe("work")
    (topic,) = group.topics
    assert [(each.start_offset, each.lag, int(each.error_code)) for each in topic.partitions] == [(5, -1, 0), (6, 1, 0)]


async def test_only_partitions_with_a_start_offset_have_a_lag(served: Served) -> None:
    lost = StateResponse(KafkaCode.COORDINATOR_NOT_AVAILABLE, "no leader")
    served.shares.states, served.shares.ends = [at(-1), lost, StateResponse(KafkaCode.NONE), at(0)], {3: 2}
    assert await served.lags() == [-1, -1, -1, 2]
    assert served.shares.asked == [[3]]


async def test_all_groups_of_a_request_share_one_look_up_of_log_ends(served: Served) -> None:
    served.shares.states, served.shares.ends = [at(0)], {0: 2}
    first, missing, second = await served.describe("work", MISSING, "play")
    assert [each.group_id for each in (first, missing, second)] == ["work", MISSING, "play"]
    assert int(missing.error_code) == KafkaCode.GROUP_ID_NOT_FOUND
    assert [each.topics[0].partitions[0].lag for each in (first, second)] == [2, 2]
    assert served.shares.asked == [[0, 0]]


async def test_a_group_that_a_request_repeats_is_refused_once_and_others_are_answered(served: Served) -> None:
    served.shares.states, served.shares.ends = [at(0)], {0: 2}
    repeated, other = await served.describe("work", "play", "work", "work")
    assert (repeated.group_id, int(repeated.error_code), repeated.topics) == ("work", KafkaCode.INVALID_REQUEST, ())
    assert (other.group_id, other.topics[0].partitions[0].lag) == ("play", 2)
    assert served.shares.asked == [[0]]


@pytest.mark.parametrize("api", [Api.DESCRIBE_SHARE_GROUP_OFFSETS, Api.DELETE_GROUPS])
async def test_a_group_whose_coordinator_does_not_answer_does_not_delay_other_groups(served: Served, api: Api) -> None:
    names = ["stuck", "work", "play"]
    groups = [{"group_id": name, "topics": None} for name in names]
    served.client.send(api, 0, {"groups": groups, "groups_names": names})
    await until(lambda: served.shares.begun == names)
    served.shares.stuck.set()
    _, response = await served.client.receive(api, 0)
    answers = response.groups if api is Api.DESCRIBE_SHARE_GROUP_OFFSETS else response.results
    assert [each.group_id for each in answers] == names


async def test_the_number_of_groups_that_are_queried_at_a_time_is_limited(served: Served) -> None:
    names = [f"stuck{number}" for number in range(GROUPS_AT_A_TIME + 1)]
    served.client.send(
        Api.DESCRIBE_SHARE_GROUP_OFFSETS, 0, {"groups": [{"group_id": n, "topics": None} for n in names]}
    )
    await until(lambda: len(served.shares.begun) >= GROUPS_AT_A_TIME)
    for _ in range(10):
        await asyncio.sleep(0)
    assert served.shares.begun == names[:-1]
    served.shares.stuck.set()
    await served.client.receive(Api.DESCRIBE_SHARE_GROUP_OFFSETS, 0)
    assert served.shares.begun == names


async def test_version_0_which_has_no_lag_looks_up_no_log_ends(served: Served) -> None:
    served.shares.states, served.shares.ends = [at(5)], {0: 12}
    (group,) = await served.describe("work", version=0)
    assert group.topics[0].partitions[0].start_offset == 5
    assert served.shares.asked == []
