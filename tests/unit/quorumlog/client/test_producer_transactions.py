"""The state of a producer's transaction: the calls that it permits, and its state after failures."""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any, cast

import pytest

from quorumlog.client import producer_topics, record_producer
from quorumlog.client.cluster import Cluster
from quorumlog.client.producer_transactions import GroupMetadata, ProducerTransactions
from quorumlog.client.record_consumer import Consumer
from quorumlog.client.record_producer import Producer
from quorumlog.errors import ClusterError, ConfigError
from quorumlog.wire.errors import ApiError, KafkaCode
from quorumlog.wire.kafka.codec import Api
from quorumlog.wire.record_batch import parse_header
from tests.unit.broker.kafka.wellness import until
from tests.unit.quorumlog.client.fake_cluster import FakeBrokers, fake_brokers

S = 5.0
WAIT_S = 30.0
ADD, END, INIT = Api.ADD_PARTITIONS_TO_TXN, Api.END_TXN, Api.INIT_PRODUCER_ID
ADD_OFFSETS, OFFSETS = Api.ADD_OFFSETS_TO_TXN, Api.TXN_OFFSET_COMMIT


class Coordinator:
    """Answers in place of `CoordinatorCalls`.  codes: the next error code of a request, by its kind."""

    def __init__(self) -> None:
        self.codes: dict[Api, list[KafkaCode]] = {}
        self.asked: list[tuple[Api, Any]] = []
        self.epoch = 0

    async def call(self, key: str, timeout_s: float, attempt: Any) -> Any:
        return await attempt(self, timeout_s)

    async def ask(self, connection: object, api: Api, values: Any, left_s: float) -> Any:
        code = self.codes[api].pop(0) if self.codes.get(api) else KafkaCode.NONE
        self.asked.append((api, values))
        if api == ADD:
            topics = [
                SimpleNamespace(
                    name=topic["name"],
                    results_by_partition=[
                        SimpleNamespace(partition_index=index, partition_error_code=code)
                        for index in topic["partitions"]
                    ],
                )
                for topic in values["v3_and_below_topics"]
            ]
            return SimpleNamespace(results_by_topic_v3_and_below=topics)
        self.epoch += api == INIT
        return SimpleNamespace(error_code=code, producer_id=7, producer_epoch=self.epoch, topics=())

    def judged(self) -> Any:
        return pytest.MonkeyPatch.context()  # any block without an effect

    def kinds(self) -> list[Api]:
        return [api for api, _ in self.asked]


class Setting:
    def __init__(self) -> None:
        self.coordinator = Coordinator()
        self.transactions = ProducerTransactions(cast(Cluster, None), "billing", 60_000)
        calls = cast(Any, self.coordinator)
        self.transactions._calls = calls
        self.transactions._groups = calls


@pytest.fixture
async def each() -> Setting:
    setting = Setting()
    await setting.transactions.start(S)
    return setting


def code_of(refusal: ClusterError | None) -> str | None:
    return None if refusal is None else refusal.code


async def test_records_are_refused_outside_of_a_transaction(each: Setting) -> None:
    assert code_of(each.transactions.refusal) == ApiError.INVALID_TXN_STATE
    each.transactions.begin()
    assert each.transactions.refusal is None
    with pytest.raises(ClusterError, match="a transaction is open"):
        each.transactions.begin()
    await each.transactions.end(S, commit=True)
    assert code_of(each.transactions.refusal) == ApiError.INVALID_TXN_STATE


async def test_a_transaction_without_a_record_ends_without_a_request(each: Setting) -> None:
    each.transactions.begin()
    await each.transactions.end(S, commit=True)
    assert each.coordinator.kinds() == [INIT]


async def test_a_partition_is_added_once_in_each_transaction(each: Setting) -> None:
    for _ in range(2):
        each.transactions.begin()
        for _ in range(2):
            await each.transactions.enlist("orders", 3, S)
        await each.transactions.end(S, commit=True)
    assert each.coordinator.kinds() == [INIT, ADD, END, ADD, END]


async def test_adding_a_partition_has_only_the_time_that_an_earlier_request_leaves(each: Setting) -> None:
    each.transactions.begin()
    left = []

    async def slow(key: str, timeout_s: float, attempt: Any) -> None:
        left.append(timeout_s)
        await asyncio.sleep(0.2)
        await attempt(each.coordinator, timeout_s)

    each.coordinator.call = slow  # type: ignore[method-assign]  # a coordinator that answers late
    first = asyncio.ensure_future(each.transactions.enlist("orders", 0, S))
    await asyncio.sleep(0)
    await each.transactions.enlist("orders", 1, S)
    await first
    assert left[1] < S - 0.1


@pytest.mark.parametrize("of_offsets", [False, True])
async def test_adding_a_partition_or_offsets_times_out_while_an_earlier_request_hangs(
    each: Setting, of_offsets: bool
) -> None:
    each.transactions.begin()
    blocked = asyncio.Event()

    async def never(key: str, timeout_s: float, attempt: Any) -> None:
        await blocked.wait()

    async def part(index: int, timeout_s: float) -> None:
        if of_offsets:
            await each.transactions.send_offsets(GroupMetadata("g"), {("orders", index): 5}, timeout_s)
        else:
            await each.transactions.enlist("orders", index, timeout_s)

    each.coordinator.call = never  # type: ignore[method-assign]  # a coordinator that never answers
    first = asyncio.ensure_future(part(0, S))
    await asyncio.sleep(0)
    with pytest.raises(ClusterError, match="earlier requests") as refused:
        async with asyncio.timeout(WAIT_S):
            await part(1, 0.05)
    assert (refused.value.code, refused.value.retriable) == (ApiError.TIMED_OUT, True)
    assert code_of(each.transactions.refusal) == ApiError.TRANSACTION_ABORTABLE
    first.cancel()
    await asyncio.wait({first})


async def test_a_failed_transaction_is_not_committed_but_aborted_with_the_next_epoch(each: Setting) -> None:
    each.transactions.begin()
    await each.transactions.enlist("orders", 0, S)
    each.transactions.failed(ClusterError(ApiError.MESSAGE_TOO_LARGE, "a record is too large"))
    assert code_of(each.transactions.refusal) == ApiError.TRANSACTION_ABORTABLE
    with pytest.raises(ClusterError, match="because: a record is too large") as refused:
        await each.transactions.end(S, commit=True)
    assert refused.value.code == ApiError.TRANSACTION_ABORTABLE
    await each.transactions.abort(S, keeps_epoch=False)
    assert each.coordinator.asked[-1][1]["producer_epoch"] == 1
    assert each.transactions.identity == (7, 2)
    assert each.coordinator.kinds() == [INIT, ADD, END, INIT]
    assert each.coordinator.asked[2][1]["committed"] is False


async def test_a_partition_that_is_refused_fails_the_transaction(each: Setting) -> None:
    each.coordinator.codes[ADD] = [KafkaCode.UNKNOWN_TOPIC_OR_PARTITION]
    each.transactions.begin()
    with pytest.raises(ClusterError):
        await each.transactions.enlist("orders", 0, S)
    assert code_of(each.transactions.refusal) == ApiError.TRANSACTION_ABORTABLE
    each.coordinator.codes[END] = [KafkaCode.INVALID_TXN_STATE]  # the transaction has not begun at the coordinator
    await each.transactions.abort(S, keeps_epoch=False)
    each.transactions.begin()


async def test_no_transaction_begins_before_the_abort_of_a_failed_one_got_a_new_epoch(each: Setting) -> None:
    """Otherwise a batch could have the sequence number of an aborted one, and be dropped as its duplicate."""
    each.transactions.begin()
    await each.transactions.enlist("orders", 0, S)
    each.transactions.failed(ClusterError(ApiError.TIMED_OUT, "a batch got no answer"))
    each.coordinator.codes[INIT] = [KafkaCode.COORDINATOR_LOAD_IN_PROGRESS] * 2
    for _ in range(2):
        with pytest.raises(ClusterError, match="coordinator"):
            await each.transactions.abort(S, keeps_epoch=False)
        assert each.transactions.can_abort
        with pytest.raises(ClusterError, match="the abort of its last transaction is not complete") as refused:
            each.transactions.begin()
        assert refused.value.code == ApiError.TRANSACTION_ABORTABLE
    await each.transactions.abort(S, keeps_epoch=False)
    each.transactions.begin()
    assert each.coordinator.kinds() == [INIT, ADD, END, INIT, INIT, INIT], "the transaction is aborted once"
    assert each.transactions.identity == (7, 4)


def slow_ends(each: Setting, monkeypatch: pytest.MonkeyPatch) -> tuple[asyncio.Event, asyncio.Event]:
    """Hold requests that end a transaction.  Return two events: a request is held; requests may continue."""
    ending, going_on, ask = asyncio.Event(), asyncio.Event(), each.coordinator.ask

    async def slowly(connection: object, api: Api, values: Any, left_s: float) -> Any:
        if api == END:
            ending.set()
            await going_on.wait()
        return await ask(connection, api, values, left_s)

    monkeypatch.setattr(each.coordinator, "ask", slowly)
    return ending, going_on


async def test_two_calls_do_not_abort_at_the_same_time(each: Setting, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second call would send EndTxn with the epoch that the first call has replaced, and fence the producer."""
    producer = Producer("127.0.0.1:1", transactional_id="billing")
    producer._transactions = producer._transaction = each.transactions
    ending, going_on = slow_ends(each, monkeypatch)
    async with producer:
        each.coordinator.asked.clear()
        producer.begin_transaction()
        await each.transactions.enlist("orders", 0, S)
        each.transactions.failed(ClusterError(ApiError.TIMED_OUT, "a batch got no answer"))
        aborting = asyncio.create_task(producer.abort_transaction())
        await ending.wait()
        for other in (producer.abort_transaction(), producer.transaction().__aenter__()):
            with pytest.raises(ClusterError, match="the abort of its last transaction is not complete"):
                await asyncio.wait_for(other, WAIT_S)
        going_on.set()
        await aborting
        producer.begin_transaction()
        await producer.abort_transaction()
    assert each.coordinator.kinds() == [ADD, END, INIT]


async def test_the_next_transaction_block_completes_the_abort_of_the_previous_block(each: Setting) -> None:
    producer = Producer("127.0.0.1:1", transactional_id="billing")
    producer._transactions = producer._transaction = each.transactions
    each.coordinator.asked.clear()
    async with producer:
        with pytest.raises(RuntimeError, match="mine"):  # noqa: PT012
            async with producer.transaction():
                await each.transactions.enlist("orders", 0, S)
                each.transactions.failed(ClusterError(ApiError.TIMED_OUT, "a batch got no answer"))
                each.coordinator.codes[INIT] = [KafkaCode.COORDINATOR_LOAD_IN_PROGRESS]
                raise RuntimeError("mine")
        async with producer.transaction():
            await each.transactions.enlist("orders", 0, S)
    assert each.coordinator.kinds() == [INIT, ADD, END, INIT, INIT, ADD, END]


class SlowOffsets:
    """Lets a coordinator answer offsets only once `going_on` is set.  sent: the request has arrived."""

    def __init__(self, coordinator: Coordinator, monkeypatch: pytest.MonkeyPatch) -> None:
        self.sent, self.going_on = asyncio.Event(), asyncio.Event()
        self._ask = coordinator.ask
        monkeypatch.setattr(coordinator, "ask", self.ask)

    async def ask(self, connection: object, api: Api, values: Any, left_s: float) -> Any:
        if api == OFFSETS:
            self.sent.set()
            await self.going_on.wait()
        return await self._ask(connection, api, values, left_s)


@asynccontextmanager
async def sending_offsets(
    each: Setting, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[tuple[Producer, asyncio.Task[None], SlowOffsets]]:
    """Yield a producer whose transaction waits for the answer to the offsets that a task sends."""
    producer = Producer("127.0.0.1:1", transactional_id="billing")
    producer._transactions = producer._transaction = each.transactions
    slow = SlowOffsets(each.coordinator, monkeypatch)
    async with producer:
        producer.begin_transaction()
        sending = asyncio.create_task(each.transactions.send_offsets(GroupMetadata("g"), {("orders", 0): 5}, S))
        await slow.sent.wait()
        yield producer, sending, slow


async def test_offsets_whose_request_was_cancelled_do_not_join_the_next_transaction(
    each: Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The offsets may arrive after the abort.  With the old epoch, the next marker would commit them."""
    async with sending_offsets(each, monkeypatch) as (producer, sending, _):
        sending.cancel()
        await asyncio.wait([sending])
        with pytest.raises(ClusterError, match="was cancelled") as refused:
            await producer.commit_transaction()
        assert refused.value.code == ApiError.TRANSACTION_ABORTABLE
        epoch = each.transactions.identity
        await producer.abort_transaction()
        assert each.transactions.identity > epoch
        producer.begin_transaction()


@pytest.mark.parametrize("commit", [True, False])
async def test_the_end_of_a_transaction_waits_for_offsets_that_another_task_sends(
    each: Setting, monkeypatch: pytest.MonkeyPatch, commit: bool
) -> None:
    async with sending_offsets(each, monkeypatch) as (producer, sending, slow):
        ending = asyncio.create_task(producer.commit_transaction() if commit else producer.abort_transaction())
        for _ in range(10):
            await asyncio.sleep(0)  # until the end of the transaction waits
        with pytest.raises(ClusterError, match=r"in progress|not complete"):
            await each.transactions.send_offsets(GroupMetadata("g"), {("orders", 1): 6}, S)
        slow.going_on.set()
        await asyncio.gather(sending, ending)
    kinds = each.coordinator.kinds()
    assert kinds[-3:] == ([ADD_OFFSETS, OFFSETS, END] if commit else [OFFSETS, END, INIT])


@pytest.mark.parametrize(
    "code", [KafkaCode.PRODUCER_FENCED, KafkaCode.INVALID_PRODUCER_EPOCH, KafkaCode.INVALID_PRODUCER_ID_MAPPING]
)
async def test_a_fenced_producer_can_neither_commit_nor_abort_nor_begin_again(each: Setting, code: KafkaCode) -> None:
    each.coordinator.codes[END] = [code]
    each.transactions.begin()
    await each.transactions.enlist("orders", 0, S)
    for commit in (True, True, False):
        with pytest.raises(ClusterError) as refused:
            await each.transactions.end(S, commit=commit)
        assert refused.value.code == ApiError.PRODUCER_FENCED
    assert not each.transactions.can_abort
    with pytest.raises(ClusterError, match="another producer uses it"):
        each.transactions.begin()


async def test_the_traceback_of_the_error_of_a_fenced_producer_does_not_grow(each: Setting) -> None:
    each.coordinator.codes[END] = [KafkaCode.PRODUCER_FENCED]
    each.transactions.begin()
    await each.transactions.enlist("orders", 0, S)
    frames = []
    for _ in range(3):
        with pytest.raises(ClusterError, match="another producer uses it") as refused:
            await each.transactions.end(S, commit=True)
        frames.append(len(list(traceback.walk_tb(refused.value.__traceback__))))
    assert frames[1] == frames[2]


async def test_a_commit_without_an_answer_may_only_be_repeated(each: Setting) -> None:
    each.coordinator.codes[END] = [KafkaCode.NOT_COORDINATOR]
    each.transactions.begin()
    await each.transactions.enlist("orders", 0, S)
    with pytest.raises(ClusterError) as unknown:
        await each.transactions.end(S, commit=True)
    assert unknown.value.retriable
    assert not each.transactions.can_abort
    with pytest.raises(ClusterError, match="got no answer"):
        await each.transactions.end(S, commit=False)
    await each.transactions.end(S, commit=True)
    each.transactions.begin()


@asynccontextmanager
async def in_transaction() -> AsyncIterator[tuple[Producer, FakeBrokers, Coordinator]]:
    """Yield a producer whose transaction is open, at a broker that answers no batch until a test permits it."""
    coordinator = Coordinator()
    async with fake_brokers(1) as brokers:
        await brokers.create("t", [1])
        producer = Producer(brokers.bootstrap, transactional_id="billing")
        assert producer._transactions is not None
        calls = cast(Any, coordinator)
        producer._transactions._calls = producer._transactions._groups = calls
        async with producer:
            brokers.replicas[1].acknowledge.clear()
            producer.begin_transaction()
            yield producer, brokers, coordinator


async def test_no_record_is_added_while_the_transaction_commits() -> None:
    """The record could arrive after the marker, and would then belong to no transaction that ends."""
    async with in_transaction() as (producer, brokers, _):
        first = await producer.send("t", b"first")
        committing = asyncio.ensure_future(producer.commit_transaction())
        await brokers.replicas[1].appended.wait()
        with pytest.raises(ClusterError, match="the commit of its transaction is in progress") as refused:
            await producer.send("t", b"late")
        assert refused.value.code == ApiError.INVALID_TXN_STATE
        with pytest.raises(ClusterError, match="the commit of its transaction is in progress"):
            await producer.commit_transaction()
        brokers.replicas[1].acknowledge_all()
        await committing
        assert first.done()
        producer.begin_transaction()


async def test_two_calls_do_not_send_the_commit_at_the_same_time(
    each: Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second call could commit the next transaction, which may begin once the first call has its answer."""
    producer = Producer("127.0.0.1:1", transactional_id="billing")
    producer._transactions = producer._transaction = each.transactions
    ending, going_on = slow_ends(each, monkeypatch)
    async with producer:
        each.coordinator.asked.clear()
        producer.begin_transaction()
        await each.transactions.enlist("orders", 0, S)
        committing = asyncio.create_task(producer.commit_transaction())
        await ending.wait()
        with pytest.raises(ClusterError, match="the commit of its transaction is in progress") as refused:
            await asyncio.wait_for(producer.commit_transaction(), WAIT_S)
        assert refused.value.code == ApiError.INVALID_TXN_STATE
        committing.cancel()
        await asyncio.wait([committing])
        going_on.set()
        await producer.commit_transaction()
        producer.begin_transaction()
        await producer.abort_transaction()
    assert each.coordinator.kinds() == [ADD, END]


async def test_a_commit_that_is_cancelled_before_it_is_sent_leaves_the_transaction_open() -> None:
    async with in_transaction() as (producer, brokers, coordinator):
        await producer.send("t", b"first")
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await producer.commit_transaction()
        await producer.send("t", b"second")
        brokers.replicas[1].acknowledge_all()
        await producer.commit_transaction()
        assert [each.value for each in await brokers.records("t", 0)] == [b"first", b"second"]
    assert coordinator.kinds().count(END) == 1


@pytest.mark.parametrize("failed", [False, True])
async def test_records_are_not_treated_as_duplicates_after_the_topic_id_changed(failed: bool) -> None:
    async with in_transaction() as (producer, brokers, _):
        brokers.replicas[1].acknowledge_all()
        await producer.send_and_wait("t", b"0")
        topic = producer._topics.known["t"]
        await brokers.renew("t")
        producer._topics._stale.set()
        await until(lambda: producer._topics.known.get("t") is not topic)
        assert producer._transactions is not None
        if failed:
            producer._transactions.failed(ClusterError(ApiError.TIMED_OUT, "a batch got no answer"))
            await producer.abort_transaction()
            producer.begin_transaction()
        assert (await producer.send_and_wait("t", b"1")).offset == 1
        header = parse_header(brokers.replicas[1].produced[-1][3])
        assert (header.producer_id, header.producer_epoch) == producer._transactions.identity
        await producer.commit_transaction()
        assert [each.value for each in await brokers.records("t", 0)] == [b"0", b"1"]


@pytest.mark.parametrize(
    ("offsets", "error"),
    [({("\ud800", 0): 5}, ConfigError), ({("t", 0): -1}, ValueError), ({("t", 0): 5.5}, TypeError)],
)
async def test_invalid_offsets_are_refused_and_change_nothing(offsets: Any, error: type[Exception]) -> None:
    async with in_transaction() as (producer, _, coordinator):
        coordinator.asked.clear()
        asked: list[None] = []
        consumer = cast(Consumer, SimpleNamespace(offsets_to_send=lambda: asked.append(None)))
        with pytest.raises(error):
            await producer.send_offsets(consumer, offsets)
        assert producer._transactions is not None
        assert producer._transactions.refusal is None, "the transaction is still open"
        assert not asked, "the consumer still knows that it must send its offsets"
        assert coordinator.asked == []


async def drop_topics(producer: Producer, brokers: FakeBrokers, *names: str, end: str = "commit_transaction") -> None:
    """Write to each topic in a transaction of its own, and delete the topic after the transaction."""
    brokers.replicas[1].acknowledge_all()
    for name in names:
        await brokers.create(name, [1])
        await producer.send_and_wait(name, b"x")
        await getattr(producer, end)()
        await brokers.delete(name)
        producer._topics._stale.set()
        await until(lambda name=name: name not in producer._topics.known)  # type: ignore[misc]
        await until(lambda: bool(producer._topics._ended_topics()))
        producer.begin_transaction()


@pytest.mark.parametrize("end", ["commit_transaction", "abort_transaction"])
async def test_a_series_of_transactions_keeps_a_limited_number_of_deleted_topics(
    end: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(producer_topics, "FORMER_TOPICS_MAX", 2)
    async with in_transaction() as (producer, brokers, coordinator):
        brokers.replicas[1].acknowledge_all()
        assert (await producer.send_and_wait("t", b"0")).offset == 0
        await producer.commit_transaction()
        topic = producer._topics.known["t"]
        await brokers.renew("t")
        producer._topics._stale.set()
        await until(lambda: producer._topics.known.get("t") is not topic)
        producer.begin_transaction()
        for number in range(3):
            await drop_topics(producer, brokers, *(f"{letter}{number}" for letter in "uvw"), end=end)
            assert len(producer._topics._former) <= 3
        assert coordinator.kinds().count(INIT) > 1
        assert producer._transactions is not None
        assert (await producer.send_and_wait("t", b"1")).offset == 1, "it is no duplicate of the first record"
        header = parse_header(brokers.replicas[1].produced[-1][3])
        assert (header.producer_id, header.producer_epoch) == producer._transactions.identity
        assert header.producer_epoch == coordinator.epoch
        await producer.commit_transaction()


async def test_the_next_transaction_waits_for_an_epoch_that_got_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """The coordinator may have raised the epoch, and would then treat a producer with the former one as fenced."""
    monkeypatch.setattr(producer_topics, "FORMER_TOPICS_MAX", 0)
    async with in_transaction() as (producer, brokers, coordinator):
        await drop_topics(producer, brokers, "u")
        await producer.send_and_wait("t", b"0")
        coordinator.codes[INIT] = [KafkaCode.COORDINATOR_NOT_AVAILABLE] * 2
        await producer.commit_transaction()
        with pytest.raises(ClusterError, match="was committed, but the next epoch of its producer got no answer"):
            producer.begin_transaction()
        with pytest.raises(ClusterError):
            async with producer.transaction():
                pytest.fail("the transaction has no epoch yet")
        ends = coordinator.kinds().count(END)
        async with producer.transaction():
            await producer.send_and_wait("t", b"1")
        assert coordinator.kinds().count(END) == ends + 1, "there was nothing to abort"
        assert [each.value for each in await brokers.records("t", 0)] == [b"0", b"1"]


async def test_a_commit_that_is_cancelled_after_its_decision_is_repeated_without_a_request(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(producer_topics, "FORMER_TOPICS_MAX", 0)
    async with in_transaction() as (producer, brokers, coordinator):
        await drop_topics(producer, brokers, "u")
        await producer.send_and_wait("t", b"0")
        transactions = producer._transactions
        assert transactions is not None
        renewing, start = asyncio.Event(), transactions.start

        async def hang(timeout_s: float) -> None:
            renewing.set()
            await asyncio.Event().wait()

        monkeypatch.setattr(transactions, "start", hang)
        committing = asyncio.create_task(producer.commit_transaction())
        await renewing.wait()
        committing.cancel()
        await asyncio.wait([committing])
        monkeypatch.setattr(transactions, "start", start)
        await producer.commit_transaction()
        assert coordinator.kinds().count(END) == 2
        producer.begin_transaction()


async def test_only_one_call_aborts_a_transaction_whose_batches_are_being_sent() -> None:
    """Otherwise the second call could abort the next transaction, which may begin while that call still waits."""
    async with in_transaction() as (producer, brokers, coordinator):
        await producer.send("t", b"first")
        await brokers.replicas[1].appended.wait()
        aborting = asyncio.create_task(producer.abort_transaction())
        await asyncio.sleep(0)
        with pytest.raises(ClusterError) as refused:
            await asyncio.wait_for(producer.abort_transaction(), WAIT_S)
        assert refused.value.code == ApiError.TRANSACTION_ABORTABLE
        brokers.replicas[1].acknowledge_all()
        await aborting
        producer.begin_transaction()
        await producer.abort_transaction()
    assert coordinator.kinds().count(END) == 1


async def test_the_next_transaction_block_completes_an_abort_that_was_cancelled() -> None:
    async with in_transaction() as (producer, brokers, coordinator):
        await producer.send("t", b"first")
        await brokers.replicas[1].appended.wait()
        aborting = asyncio.create_task(producer.abort_transaction())
        await asyncio.sleep(0)  # until the abort waits for the batch
        aborting.cancel()
        await asyncio.wait([aborting])
        brokers.replicas[1].acknowledge_all()
        async with producer.transaction():
            await producer.send("t", b"second")
    assert coordinator.kinds() == [INIT, ADD, END, INIT, ADD, END]


@pytest.mark.parametrize("flush", [True, False])
async def test_close_aborts_an_open_transaction(flush: bool) -> None:
    """Readers of committed records would wait for its timeout otherwise."""
    async with in_transaction() as (producer, brokers, coordinator):
        await producer.send("t", b"first")
        await brokers.replicas[1].appended.wait()
        closing = asyncio.ensure_future(producer.close(flush=flush))
        await asyncio.sleep(0)
        brokers.replicas[1].acknowledge_all()
        await closing
        assert coordinator.kinds() == ([INIT, ADD, END] if flush else [INIT, ADD, END, INIT])
        assert [values["committed"] for api, values in coordinator.asked if api == END] == [False]


async def test_close_aborts_a_transaction_whose_delivery_failed_and_reports_the_failure() -> None:
    async with in_transaction() as (producer, brokers, coordinator):
        brokers.replicas[1].acknowledge_all()
        await producer.send("t", b"x" * 2_000_000)
        with pytest.raises(ClusterError, match="MESSAGE_TOO_LARGE"):
            await producer.close()
        assert coordinator.kinds() == [INIT, ADD, END, INIT]


async def test_close_aborts_no_transaction_whose_commit_was_sent() -> None:
    async with in_transaction() as (producer, brokers, coordinator):
        brokers.replicas[1].acknowledge_all()
        await producer.send("t", b"first")
        coordinator.codes[END] = [KafkaCode.NOT_COORDINATOR]
        with pytest.raises(ClusterError):
            await producer.commit_transaction()
        await producer.close()
        assert coordinator.kinds() == [INIT, ADD, END]


async def test_an_abort_by_close_has_a_time_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record_producer, "ABORT_AT_CLOSE_S", 0.05)
    async with in_transaction() as (producer, brokers, coordinator):
        await producer.send("t", b"first")
        await brokers.replicas[1].appended.wait()
        async with asyncio.timeout(WAIT_S):
            await producer.close(flush=False)
        assert coordinator.kinds() == [INIT, ADD]
