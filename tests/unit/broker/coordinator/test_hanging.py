"""A leader ends transactions whose markers were lost, after all coordinators have answered."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from itertools import count
from types import SimpleNamespace
from typing import Any, cast

import pytest

from broker.coordinator.hanging import HangingTransactions
from broker.coordinator.limits import CoordinatorLimits
from broker.core.coordinator.group_requests import (
    GroupToFetch,
    OffsetCommit,
    OffsetFetch,
    OffsetToCommit,
    TopicPartitions,
    TxnOffsetCommit,
)
from broker.core.coordinator.transaction_requests import Outcome, TransactionSupport
from broker.core.producer_state import ProducerState
from broker.core.transactions import Marker, ProducerKey
from broker.log.produced import check_produced
from metadata.image.internal_topics import CONSUMER_OFFSETS, TRANSACTION_STATE
from quorumlog.errors import ClusterError
from quorumlog.wire.errors import ApiError, KafkaCode
from quorumlog.wire.kafka.codec import Api
from quorumlog.wire.record_batch import TRANSACTIONAL_FLAG, parse_header
from tests.unit.broker.coordinator.counting import WAIT_S
from tests.unit.broker.coordinator.test_groups import Bench, coordinating
from tests.unit.broker.core.test_transactions import confirmed
from tests.unit.broker.log.batches import make_batch
from tests.unit.broker.replica.rig import Rig

LIMITS = CoordinatorLimits(hanging_age_ms=0)
NO_GROUPS: Any = None


class Place:
    """Broker 1 leads the partition; brokers 2 and 3 coordinate the two partitions of the topic of transactions."""

    def __init__(self, rig: Rig) -> None:
        self.rig = rig
        self.outcomes: dict[int, Outcome | KafkaCode] = {0: Outcome.UNKNOWN, 1: Outcome.UNKNOWN}
        self.silent: set[int] = set()
        self.asked: list[dict[str, Any]] = []
        links: Any = self
        self.hanging = HangingTransactions(rig.role.table, NO_GROUPS, links, lambda: 0, LIMITS)

    async def ask(self, broker_id: int, api: Api, version: int, values: dict[str, Any], timeout_s: float) -> Any:
        assert (api, version) == (Api.FIND_OUTCOME, 0)
        self.asked.append(values)
        if broker_id in self.silent:
            raise ClusterError(ApiError.BROKER_UNAVAILABLE, "no answer", retriable=True)
        await self.meanwhile()
        found = self.outcomes[broker_id - 2]
        code, outcome = (found, 0) if isinstance(found, KafkaCode) else (KafkaCode.NONE, found)
        answer = SimpleNamespace(partition=broker_id - 2, error_code=code, outcome=int(outcome))
        return SimpleNamespace(coordinators=[answer])

    async def meanwhile(self) -> None:
        """Run before each answer; tests replace it."""

    def write(self, sequence: int = 0, producer_id: int = 7) -> None:
        batch = make_batch([b"v"], producer=(producer_id, 3, sequence), attributes=TRANSACTIONAL_FLAG)
        token = confirmed(self.rig.log.producers, producer_id, epoch=parse_header(batch).producer_epoch)
        checked = check_produced(memoryview(batch), self.rig.log.config)
        self.rig.hosted().append(checked, 1, 60_000, verification=token)

    async def look(self) -> None:
        """Look for hanging transactions, and flush the appended markers."""
        looking = asyncio.create_task(self.hanging.look())
        while not looking.done():
            await self.rig.role.logs.flush_all([self.rig.log])
            await asyncio.sleep(0)
        await looking

    @property
    def is_open(self) -> bool:
        return bool(self.rig.log.producers.transactions.open)

    @property
    def aborted(self) -> int:
        return self.rig.log.producers.transactions.aborted_count

    @property
    def epoch(self) -> int:
        producer = self.rig.log.producers.get(7)
        assert producer is not None
        return producer.epoch


@pytest.fixture
async def place(rig: Rig) -> Place:
    await rig.create((1,))
    rig.cluster.create(TRANSACTION_STATE, (2,), (3,))
    await rig.learn()
    place = Place(rig)
    place.write()
    assert place.is_open
    return place


async def test_a_transaction_that_no_coordinator_knows_is_aborted(place: Place) -> None:
    await place.look()
    assert (place.is_open, place.aborted, place.epoch) == (False, 1, 3)
    assert place.asked[0] == {"producer_id": 7, "producer_epoch": 3, "topic": "t", "partition": 0}


async def test_a_transaction_that_its_coordinator_committed_gets_a_commit_marker_with_the_next_epoch(
    place: Place,
) -> None:
    place.outcomes[1] = Outcome.COMMITTED
    await place.look()
    assert (place.is_open, place.aborted, place.epoch) == (False, 0, 4)


async def test_a_transaction_that_its_coordinator_will_end_stays_open(place: Place) -> None:
    place.outcomes[0] = Outcome.OPEN
    await place.look()
    assert place.is_open


@pytest.mark.parametrize("how", ["loading", "unavailable", "unknown outcome"])
async def test_no_transaction_is_ended_before_all_coordinators_have_answered(place: Place, how: str) -> None:
    if how == "unavailable":
        place.silent.add(3)
    elif how == "unknown outcome":  # a value of a later release
        place.outcomes[1] = cast(Outcome, 9)
    else:
        place.outcomes[1] = KafkaCode.COORDINATOR_LOAD_IN_PROGRESS
    await place.look()
    assert place.is_open
    place.silent.clear()
    place.outcomes[1] = Outcome.UNKNOWN
    await place.look()
    assert not place.is_open


async def test_transactions_that_cannot_be_ended_delay_no_others_beyond_the_limit_of_one_search(
    place: Place, rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    links: Any = place
    limits = CoordinatorLimits(hanging_age_ms=0, hanging_checks_max=1)
    place.hanging = HangingTransactions(rig.role.table, NO_GROUPS, links, lambda: 0, limits)
    times = count()
    monkeypatch.setattr("broker.coordinator.hanging.now_ms", lambda: next(times))
    place.write(producer_id=8)
    answer = place.ask

    async def ask(broker_id: int, api: Api, version: int, values: dict[str, Any], timeout_s: float) -> Any:
        if values["producer_id"] == 7:
            raise ClusterError(ApiError.BROKER_UNAVAILABLE, "no answer", retriable=True)
        return await answer(broker_id, api, version, values, timeout_s)

    with monkeypatch.context() as patch:
        patch.setattr(place, "ask", ask)
        await place.look()
        assert rig.log.producers.transactions.open.keys() == {7, 8}
        await place.look()
        assert rig.log.producers.transactions.open.keys() == {7}
    await place.look()
    assert not place.is_open
    await place.look()
    assert not place.hanging._checked_ms


async def test_a_coordinators_answer_is_ignored_if_the_producer_has_written_another_batch_meanwhile(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The batch may belong to the next transaction, of which the coordinator did not know yet."""
    sequences = iter((1, 2))

    async def write() -> None:
        place.write(next(sequences))

    monkeypatch.setattr(place, "meanwhile", write)
    await place.look()
    assert place.is_open


async def test_a_leader_asks_only_about_transactions_that_have_been_open_for_long(place: Place, rig: Rig) -> None:
    links: Any = place
    place.hanging = HangingTransactions(rig.role.table, NO_GROUPS, links, lambda: 0, CoordinatorLimits())
    await place.look()
    assert (place.asked, place.is_open) == ([], True)


async def test_a_follower_asks_no_coordinator(place: Place, rig: Rig) -> None:
    await rig.change(leader=2)
    await place.hanging.look()
    assert place.asked == []


# -- offsets


@pytest.fixture
async def coordinated(rig: Rig) -> AsyncIterator[tuple[Place, Bench]]:
    """Broker 1 also coordinates the group, which has offsets in an open transaction."""
    async with coordinating(rig) as bench:
        await bench.create(CONSUMER_OFFSETS)
        await bench.create("t")
        rig.cluster.create(TRANSACTION_STATE, (2,), (3,))
        await rig.learn()
        await bench.serving()
        place = Place(rig)
        links: Any = place
        place.hanging = HangingTransactions(rig.role.table, bench.groups, links, lambda: 0, LIMITS)
        await commit(bench, 5)
        assert await stable_offset(bench) is KafkaCode.UNSTABLE_OFFSET_COMMIT
        yield place, bench


async def commit(bench: Bench, offset: int) -> None:
    async def verify(*_: Any) -> KafkaCode:
        return KafkaCode.NONE

    request = TxnOffsetCommit(OffsetCommit("g", "", None, -1, (OffsetToCommit("t", 0, offset),)), ProducerKey(7, 0))
    response = await bench.groups.commit_in_transaction("x", request, verify, TransactionSupport.ADDS, 10)
    assert [each.error for each in response.results] == [KafkaCode.NONE]


async def stable_offset(bench: Bench) -> int | KafkaCode:
    """Return the offset that a consumer of committed records gets, or its error."""
    request = OffsetFetch((GroupToFetch("g", (TopicPartitions("t", (0,)),)),), require_stable=True)
    (found,) = (await bench.ask(request)).groups[0].offsets
    return KafkaCode(found.error) if found.error else int(found.offset)


@pytest.mark.parametrize(("outcome", "offset"), [(Outcome.UNKNOWN, -1), (Outcome.COMMITTED, 5)])
async def test_a_group_coordinator_ends_a_hanging_transaction_and_its_pending_offsets(
    coordinated: tuple[Place, Bench], outcome: Outcome, offset: int
) -> None:
    place, bench = coordinated
    place.outcomes[1] = outcome
    await place.hanging.look()
    assert place.asked[0] == {"producer_id": 7, "producer_epoch": 0, "topic": CONSUMER_OFFSETS, "partition": 0}
    assert await stable_offset(bench) == offset


async def test_a_transaction_is_not_ended_if_it_commits_offsets_in_the_same_turn(
    coordinated: tuple[Place, Bench],
) -> None:
    _, bench = coordinated
    producers = bench.groups.shell.producers(0)
    assert producers is not None
    before = producers.get(7)
    assert before is not None
    seen = before.end_offset

    def is_unchanged(producers: ProducerState) -> bool:
        now = producers.get(7)
        return now is not None and now.end_offset == seen

    marker = Marker(ProducerKey(7, 0), False, 0)
    committing = asyncio.create_task(commit(bench, 6))
    ending = asyncio.create_task(bench.groups.write_marker(0, marker, only_if=is_unchanged))
    async with asyncio.timeout(WAIT_S):
        await committing
        assert await ending is KafkaCode.INVALID_TXN_STATE
    assert 7 in producers.transactions.open


@pytest.mark.parametrize("raises_epoch", [False, True])
async def test_a_marker_voids_a_confirmation_unless_the_decision_has_raised_the_epoch(
    coordinated: tuple[Place, Bench], raises_epoch: bool
) -> None:
    """raises_epoch: the decision has raised the epoch, so offsets of the new epoch belong to the next transaction."""
    _, bench = coordinated
    producers = bench.groups.shell.producers(0)
    assert producers is not None
    async with asyncio.timeout(WAIT_S):
        await bench.groups.write_marker(0, Marker(ProducerKey(7, 0), False, 0))
        token = confirmed(producers, 7, epoch=1)
        await bench.groups.write_marker(0, Marker(ProducerKey(7, 1), False, 0, raises_epoch))
    assert producers.is_verified(7, 1, token) is raises_epoch
