"""The consumer of share groups, with brokers that answer from tables: cancellation, failures, moves, damage."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from datetime import timedelta
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from broker.coordinator.share_sessions import NEW_SESSION, SessionKey, ShareSessions
from broker.coordinator.share_sessions import ShareSession as BrokerSession
from quorumlog.client import share_consumer
from quorumlog.client.cluster import TopicState
from quorumlog.client.records import NewRecord, build_batch
from quorumlog.client.share_consumer import ShareConsumer
from quorumlog.errors import ClusterError, ConfigError
from quorumlog.runtime.addresses import Address
from quorumlog.wire.errors import ApiError, KafkaCode
from quorumlog.wire.kafka.codec import Api
from tests.unit.broker.kafka.wellness import until

ID = UUID(int=7)
ONE, TWO = Address("one", 1), Address("two", 1)
GAP, ACCEPT, RELEASE, REJECT, RENEW = range(5)
WAIT_S = 10.0


class Broker:
    """A broker.  answers: the partitions of the next answers to ShareFetch; without one, it waits.

    answering: whether acknowledgements get their answers.  acknowledged: offset and type, by partition.
    closing: whether connections can be closed.  released: offsets whose locks the broker has released.
    newest: the newest version of ShareAcknowledge that it knows.
    """

    def __init__(self) -> None:
        self.answers: deque[list[Any]] = deque()
        self.news = asyncio.Event()
        self.answering = asyncio.Event()
        self.answering.set()
        self.closing = asyncio.Event()
        self.closing.set()
        self.requests = 0
        self.acknowledged: list[tuple[int, int, int]] = []
        self.released: set[int] = set()
        self.is_down = False
        self.newest = 2

    def deliver(self, index: int, data: bytes, first: int, last: int, code: int = 0) -> None:
        acquired = [] if code else [SimpleNamespace(first_offset=first, last_offset=last, delivery_count=1)]
        answer = SimpleNamespace(partition_index=index, error_code=code, records=data, acquired_records=acquired)
        self.answers.append([SimpleNamespace(topic_id=ID, partitions=[answer])])
        self.news.set()

    async def ask(self, api: Api, values: dict[str, Any]) -> Any:
        if api == Api.API_VERSIONS:
            known = SimpleNamespace(api_key=Api.SHARE_ACKNOWLEDGE, min_version=1, max_version=self.newest)
            return SimpleNamespace(error_code=0, api_keys=[known])
        self.requests += 1
        if api == Api.SHARE_FETCH:
            while not self.answers:
                self.news.clear()
                await self.news.wait()
            return self.reply(self.answers.popleft())
        await self.answering.wait()
        partitions = []
        for topic in values["topics"]:
            for each in topic["partitions"]:
                found = [
                    (each["partition_index"], offset, batch["acknowledge_types"][0])
                    for batch in each["acknowledgement_batches"]
                    for offset in range(batch["first_offset"], batch["last_offset"] + 1)
                ]
                code = KafkaCode.NONE
                if any(offset in self.released for _, offset, _ in found):  # all of the partition, or none
                    code = KafkaCode.INVALID_RECORD_STATE
                else:
                    self.acknowledged += found
                partitions.append(SimpleNamespace(partition_index=each["partition_index"], error_code=code))
        return self.reply([SimpleNamespace(topic_id=ID, partitions=partitions)])

    def reply(self, responses: list[Any]) -> Any:
        return SimpleNamespace(error_code=0, acquisition_lock_timeout=timedelta(seconds=30), responses=responses)


class Connection:
    def __init__(self, brokers: dict[Address, Broker], host: str, port: int) -> None:
        self.broker = brokers[Address(host, port)]
        self.peer = f"{host}:{port}"
        self.is_closed = False

    async def connect(self, timeout_s: float) -> None:
        if self.broker.is_down:
            raise ClusterError(ApiError.BROKER_UNAVAILABLE, "it is down", retriable=True)

    async def ask(self, api: Api, version: int, values: dict[str, Any], timeout_s: float) -> Any:
        return await self.broker.ask(api, values)

    def begin_close(self) -> None:
        self.is_closed = True

    async def close(self) -> None:
        self.begin_close()
        await self.broker.closing.wait()


class Cluster:
    """Replaces the cluster of the client.  leaders: by partition; a partition without one has no leader.

    refused: the partitions whose leaders may not be looked up.
    """

    client_id = "test"

    def __init__(self, *leaders: Address | None) -> None:
        self.leaders = dict(enumerate(leaders))
        self.known: set[int] = set()
        self.refused: set[int] = set()
        self.topics: dict[str, UUID] = {"t": ID}
        self.look_ups = 0

    async def __aenter__(self) -> None: ...

    def known_leader(self, topic: str, index: int) -> Address | None:
        return self.leaders[index] if index in self.known else None

    async def find_leader(self, topic: str, index: int, timeout_s: float) -> Address:
        if index in self.refused:
            raise ClusterError("TOPIC_AUTHORIZATION_FAILED", "refused")
        found = self.leaders[index]
        if found is None:
            raise ClusterError(ApiError.LEADER_NOT_AVAILABLE, "no leader", retriable=True)
        self.known.add(index)
        return found

    def forget_leader(self, topic: str, index: int) -> None:
        self.known.discard(index)

    def ask_another_broker(self) -> None: ...

    async def topic_states(self, topics: list[str], timeout_s: float) -> dict[str, TopicState]:
        self.look_ups += 1
        return {name: TopicState(self.topics[name], False, {}) for name in topics if name in self.topics}

    async def close(self) -> None: ...


class Setting:
    def __init__(self, monkeypatch: pytest.MonkeyPatch, *leaders: Address | None) -> None:
        self.brokers = {ONE: Broker(), TWO: Broker()}
        self.cluster = Cluster(*leaders)
        self.consumer = ShareConsumer("127.0.0.1:1", "g", topics=["t"])
        self.consumer._cluster = self.cluster  # type: ignore[assignment]
        self.consumer._assigned = frozenset((ID, index) for index in range(len(leaders)))
        self.consumer._names = {ID: "t"}
        made = lambda host, port, client_id: Connection(self.brokers, host, port)  # noqa: E731
        monkeypatch.setattr(share_consumer, "KafkaConnection", made)
        monkeypatch.setattr(share_consumer, "RETRY_PAUSE_S", 0.01)

    async def close(self) -> None:
        await self.consumer.__aexit__(None, None, None)


@pytest.fixture
async def make(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Callable[..., Setting]]:
    made: list[Setting] = []

    def one(*leaders: Address | None) -> Setting:
        made.append(Setting(monkeypatch, *leaders))
        return made[-1]

    before = asyncio.all_tasks()
    yield one
    for each in made:
        await each.close()
    assert not asyncio.all_tasks() - before - {asyncio.current_task()}


def data(*values: int, base: int = 0) -> bytes:
    batch = build_batch([NewRecord(None, b"%d" % value, 1000) for value in values])
    batch[:8] = base.to_bytes(8)
    return bytes(batch)


async def take(setting: Setting, count: int) -> list[Any]:
    found = [await setting.consumer.get(WAIT_S) for _ in range(count)]
    assert None not in found
    return found


def expire_locks(setting: Setting) -> None:
    for session in setting.consumer._sessions.values():
        session.locks = {key: lock._replace(until_s=0.0) for key, lock in session.locks.items()}


async def test_a_share_consumer_warns_of_a_topic_that_does_not_exist(
    make: Callable[..., Setting], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    setting = make(ONE)
    monkeypatch.setattr(setting.consumer, "_topics", ["nope", "t"])
    monkeypatch.setattr(setting.consumer, "_heartbeat", lambda epoch, timeout_s: asyncio.sleep(0))
    async with setting.consumer:
        await until(lambda: bool(caplog.records))
    (warning,) = caplog.messages
    assert warning.startswith("topic nope does not exist; the consumer waits until it is created")


async def beat_until_looked_up(setting: Setting, monkeypatch: pytest.MonkeyPatch, look_ups: int) -> list[int]:
    """Send heartbeats every 10 ms until the leaders were looked up this many times.

    Return the number of look-ups before each heartbeat.
    """
    beats: list[int] = []

    async def heartbeat(epoch: int, timeout_s: float) -> None:
        beats.append(setting.cluster.look_ups)

    monkeypatch.setattr(setting.consumer, "_heartbeat", heartbeat)
    setting.consumer._interval_s = 0.01
    beating = asyncio.ensure_future(setting.consumer._beat())
    await until(lambda: setting.cluster.look_ups >= look_ups)
    beating.cancel()
    await asyncio.wait({beating})
    return beats


async def test_leaders_are_looked_up_again_although_the_known_leaders_answer(
    make: Callable[..., Setting], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A former leader that is disconnected from the other brokers has no new records, and reports no error."""
    monkeypatch.setattr(share_consumer, "LEADERS_AGE_S", 0.02)
    await beat_until_looked_up(make(ONE), monkeypatch, 3)


async def test_leaders_are_not_looked_up_with_each_heartbeat(
    make: Callable[..., Setting], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(share_consumer, "LEADERS_AGE_S", 0.5)
    beats = await beat_until_looked_up(make(ONE), monkeypatch, 2)
    assert beats.count(1) > 5, "heartbeats between the first look-up and the second"


async def test_a_cancelled_acceptance_does_not_stop_other_acceptances(make: Callable[..., Setting]) -> None:
    setting = make(ONE)
    broker = setting.brokers[ONE]
    broker.deliver(0, data(0, 1, 2), 0, 2)
    records = await take(setting, 3)
    broker.answering.clear()
    first = asyncio.ensure_future(setting.consumer.accept(records[0]))
    await until(lambda: broker.requests == 2)
    second, third = (asyncio.ensure_future(setting.consumer.accept(each)) for each in records[1:])
    await asyncio.sleep(0)
    first.cancel()
    await asyncio.wait({first})
    second.cancel()
    await asyncio.wait({second})
    broker.answering.set()
    async with asyncio.timeout(WAIT_S):
        await third
    assert broker.acknowledged == [(0, offset, ACCEPT) for offset in range(3)]
    (session,) = setting.consumer._sessions.values()
    assert session.epoch == 3, "the session counts each request, as the broker does"


async def test_the_epoch_of_a_session_wraps_after_the_highest_value(make: Callable[..., Setting]) -> None:
    setting = make(ONE)
    setting.brokers[ONE].deliver(0, data(0, 1), 0, 1)
    records = await take(setting, 2)
    (session,) = setting.consumer._sessions.values()
    broker = ShareSessions(lambda ended: None)
    key = SessionKey("g", "m")
    known = broker.begin(key, "peer", NEW_SESSION, 1, 0)
    assert isinstance(known, BrokerSession)
    known.next_epoch = session.epoch = 2**31 - 1
    for record in records:
        assert broker.begin(key, "peer", session.epoch, 1, 0) is known
        await setting.consumer.accept(record)
    assert session.epoch == known.next_epoch == 2


async def waiting_behind_another(setting: Setting, *calls: Callable[[], Any]) -> list[BaseException | None]:
    """Make calls while a request waits for its answer, so that they share the next request; return their outcomes."""
    (first,) = await take(setting, 1)
    broker = setting.brokers[ONE]
    broker.answering.clear()
    waiting = [asyncio.ensure_future(setting.consumer.accept(first))]
    await until(lambda: broker.requests == 2)
    for call in calls:
        waiting.append(asyncio.ensure_future(call()))
        await asyncio.sleep(0)  # in this order
    broker.answering.set()
    _, *outcomes = await asyncio.gather(*waiting, return_exceptions=True)
    return outcomes


async def test_an_acceptance_is_not_replaced_by_a_later_call_for_the_record(make: Callable[..., Setting]) -> None:
    """For example, another task may renew the locks of all records that are being processed."""
    setting = make(ONE)
    setting.brokers[ONE].deliver(0, data(0, 1, 2), 0, 2)
    consumer = setting.consumer
    one, two = await take(setting, 2)
    outcomes = await waiting_behind_another(
        setting,
        lambda: consumer.renew(one),
        lambda: consumer.accept(one),
        lambda: consumer.accept(two),
        lambda: consumer.renew(two),
        lambda: consumer.release(two),
        lambda: consumer.accept(two),
    )
    assert [getattr(each, "code", None) for each in outcomes] == [
        None, None, None, "INVALID_RECORD_STATE", "INVALID_RECORD_STATE", None,
    ]  # fmt: skip
    assert sorted(setting.brokers[ONE].acknowledged) == [(0, offset, ACCEPT) for offset in range(3)]


async def test_an_acceptance_with_a_released_lock_does_not_fail_other_acceptances(make: Callable[..., Setting]) -> None:
    setting = make(ONE)
    broker = setting.brokers[ONE]
    broker.deliver(0, data(0, 1, 2), 0, 2)
    consumer = setting.consumer
    late, valid = await take(setting, 2)
    broker.released = {late.offset}
    outcomes = await waiting_behind_another(setting, lambda: consumer.accept(late), lambda: consumer.accept(valid))
    assert [getattr(each, "code", None) for each in outcomes] == ["INVALID_RECORD_STATE", None]
    assert sorted(broker.acknowledged) == [(0, valid.offset, ACCEPT), (0, 2, ACCEPT)]


async def test_waiting_acceptances_fail_when_the_consumer_is_closed(make: Callable[..., Setting]) -> None:
    setting = make(ONE)
    broker = setting.brokers[ONE]
    broker.deliver(0, data(0, 1), 0, 1)
    records = await take(setting, 2)
    broker.answering.clear()
    waiting = [asyncio.ensure_future(setting.consumer.accept(each)) for each in records]
    await until(lambda: broker.requests == 2)
    await setting.close()
    async with asyncio.timeout(WAIT_S):
        for each in waiting:
            with pytest.raises(ClusterError, match="its locks are lost"):
                await each


async def test_a_partition_without_a_leader_does_not_delay_other_partitions(make: Callable[..., Setting]) -> None:
    setting = make(None, TWO)
    setting.brokers[TWO].deliver(1, data(0), 0, 0)
    (record,) = await take(setting, 1)
    assert record.partition == 1


async def test_a_leader_that_is_down_does_not_delay_other_leaders(make: Callable[..., Setting]) -> None:
    setting = make(ONE, TWO)
    setting.brokers[ONE].is_down = True
    setting.brokers[TWO].deliver(1, data(0), 0, 0)
    (record,) = await take(setting, 1)
    assert record.partition == 1


async def test_concurrent_calls_share_the_session_of_a_leader(make: Callable[..., Setting]) -> None:
    setting = make(ONE)
    setting.brokers[ONE].deliver(0, data(0, 1), 0, 1)
    found = await asyncio.gather(*(setting.consumer.get(WAIT_S) for _ in range(2)))
    assert sorted(each.offset for each in found if each is not None) == [0, 1]
    assert setting.brokers[ONE].requests == 1


async def test_a_topic_that_a_broker_does_not_know_yet_is_looked_up_again(make: Callable[..., Setting]) -> None:
    setting = make(ONE)
    setting.brokers[ONE].deliver(0, data(0), 0, 0)
    consumer = setting.consumer
    consumer._names = {}
    consumer._epoch = 1
    del setting.cluster.topics["t"]

    async def call(key: str, timeout_s: float, attempt: Any, without_topic: Any = None) -> Any:
        return SimpleNamespace(member_epoch=1, heartbeat_interval=timedelta(seconds=5), assignment=None)

    consumer._calls.call = call  # type: ignore[method-assign]
    async with consumer:
        await until(lambda: setting.cluster.look_ups >= 2)
        setting.cluster.topics["t"] = ID
        (record,) = await take(setting, 1)
        assert record.topic == "t"


async def test_a_record_can_be_accepted_after_its_partition_was_assigned_to_another_member(
    make: Callable[..., Setting],
) -> None:
    setting = make(ONE, ONE)
    broker = setting.brokers[ONE]
    broker.deliver(0, data(0), 0, 0)
    (record,) = await take(setting, 1)
    setting.consumer._assigned = frozenset({(ID, 1)})
    broker.deliver(1, data(0), 0, 0)
    await take(setting, 1)
    await setting.consumer.accept(record)
    assert broker.acknowledged == [(0, 0, ACCEPT)]


async def test_accepting_a_record_of_an_unknown_topic_reports_a_lost_lock(make: Callable[..., Setting]) -> None:
    setting = make(ONE)
    setting.brokers[ONE].deliver(0, data(0), 0, 0)
    (record,) = await take(setting, 1)
    with pytest.raises(ClusterError, match="the lock on other-0 offset 0 is lost"):
        await setting.consumer.accept(record._replace(topic="other"))


async def test_a_damaged_batch_is_rejected_and_reported(make: Callable[..., Setting]) -> None:
    setting = make(ONE)
    broker = setting.brokers[ONE]
    damaged = bytearray(data(2, 3, base=2))
    damaged[-1] ^= 1
    broker.deliver(0, data(0, 1) + bytes(damaged) + data(4, base=4), 0, 4)
    first, last = await take(setting, 2)
    assert [first.offset, last.offset] == [0, 1]
    with pytest.raises(ClusterError, match="the batch of offsets 2 to 3 cannot be read") as failure:
        await setting.consumer.get(WAIT_S)
    assert failure.value.code == "CORRUPT_MESSAGE"
    await setting.consumer.accept(last)
    assert broker.acknowledged == [(0, 1, ACCEPT), (0, 2, REJECT), (0, 3, REJECT), (0, 4, RELEASE)]


async def test_offsets_without_records_are_automatically_acknowledged_as_gaps(make: Callable[..., Setting]) -> None:
    setting = make(ONE)
    setting.brokers[ONE].deliver(0, b"", 5, 6)
    reading = asyncio.ensure_future(setting.consumer.get())
    await until(lambda: setting.brokers[ONE].acknowledged == [(0, 5, GAP), (0, 6, GAP)])
    reading.cancel()
    await asyncio.wait({reading})


async def test_gaps_are_acknowledged_although_records_of_another_leader_are_buffered(
    make: Callable[..., Setting],
) -> None:
    setting = make(ONE, TWO)
    setting.brokers[TWO].deliver(1, data(0, 1), 0, 1)
    await take(setting, 1)
    setting.brokers[ONE].deliver(0, b"", 5, 6)
    await until(lambda: setting.brokers[ONE].acknowledged == [(0, 5, GAP), (0, 6, GAP)])


async def test_a_record_is_accepted_at_the_new_leader_that_delivered_it(make: Callable[..., Setting]) -> None:
    """The former leader has delivered the same record before."""
    setting = make(ONE, ONE)
    setting.brokers[ONE].deliver(0, data(0), 0, 0)
    await take(setting, 1)
    setting.cluster.leaders[0] = TWO
    setting.brokers[TWO].deliver(0, data(0), 0, 0)
    (record,) = await take(setting, 1)
    async with asyncio.timeout(WAIT_S):
        await setting.consumer.accept(record)
    assert (setting.brokers[ONE].acknowledged, setting.brokers[TWO].acknowledged) == ([], [(0, 0, ACCEPT)])


async def test_a_session_without_partitions_stays_until_its_records_are_acknowledged(
    make: Callable[..., Setting],
) -> None:
    setting = make(ONE)
    broker = setting.brokers[ONE]
    broker.deliver(0, data(0, 1), 0, 1)
    records = await take(setting, 2)
    setting.consumer._assigned = frozenset()
    broker.answering.clear()
    accepting = asyncio.ensure_future(setting.consumer.accept(records[0]))
    await until(lambda: broker.requests == 2)
    assert await setting.consumer.get(0) is None
    broker.answering.set()
    async with asyncio.timeout(WAIT_S):
        await accepting
    assert await setting.consumer.get(0) is None
    await setting.consumer.accept(records[1])
    assert broker.acknowledged == [(0, 0, ACCEPT), (0, 1, ACCEPT)]
    (session,) = setting.consumer._sessions.values()
    assert await setting.consumer.get(0) is None
    assert not setting.consumer._sessions
    assert session.connection.is_closed  # type: ignore[attr-defined]


async def test_a_session_without_partitions_ends_when_its_locks_expire(make: Callable[..., Setting]) -> None:
    setting = make(ONE)
    broker = setting.brokers[ONE]
    broker.deliver(0, data(0), 0, 1)
    (record,) = await take(setting, 1)
    expire_locks(setting)
    setting.consumer._assigned = frozenset()
    assert await setting.consumer.get(0) is None
    await until(lambda: broker.acknowledged == [(0, 1, GAP)])
    assert await setting.consumer.get(0) is None
    assert not setting.consumer._sessions
    with pytest.raises(ClusterError, match="the lock on t-0 offset 0 is lost") as failure:
        await setting.consumer.accept(record)
    assert failure.value.code == "INVALID_RECORD_STATE"


async def test_a_record_whose_lock_expired_in_the_buffer_is_not_returned(make: Callable[..., Setting]) -> None:
    setting = make(ONE)
    broker = setting.brokers[ONE]
    broker.deliver(0, data(0, 1), 0, 1)
    await take(setting, 1)
    expire_locks(setting)
    broker.deliver(0, data(0, 1), 1, 1)  # the broker has released the record, and delivers it again
    (record,) = await take(setting, 1)
    assert record.offset == 1
    await setting.consumer.accept(record)
    assert await setting.consumer.get(0.05) is None


async def test_a_broker_that_cannot_renew_locks_is_not_asked_to(make: Callable[..., Setting]) -> None:
    """Apache Kafka 4.1 would close the connection, and release all locks of the session."""
    setting = make(ONE)
    broker = setting.brokers[ONE]
    broker.newest = 1
    broker.deliver(0, data(0), 0, 0)
    (record,) = await take(setting, 1)
    with pytest.raises(ClusterError, match="one:1 does not know requests that renew the lock") as refused:
        await setting.consumer.renew(record)
    assert refused.value.code == ApiError.UNSUPPORTED_VERSION
    await setting.consumer.accept(record)
    assert broker.acknowledged == [(0, 0, ACCEPT)]


async def test_a_session_without_partitions_keeps_a_lock_that_is_renewed(make: Callable[..., Setting]) -> None:
    setting = make(ONE)
    broker = setting.brokers[ONE]
    broker.deliver(0, data(0), 0, 0)
    (record,) = await take(setting, 1)
    (session,) = setting.consumer._sessions.values()
    expires_s = session.locks["t", 0, 0].until_s
    await setting.consumer.renew(record)
    assert session.locks["t", 0, 0].until_s > expires_s
    setting.consumer._assigned = frozenset()
    assert await setting.consumer.get(0) is None
    await setting.consumer.accept(record)
    assert broker.acknowledged == [(0, 0, RENEW), (0, 0, ACCEPT)]


async def test_an_assignment_whose_answer_was_lost_is_requested_again(make: Callable[..., Setting]) -> None:
    """A coordinator sends an assignment to a member that joins, and once after each change."""
    consumer = make().consumer
    sent: list[tuple[int, list[str] | None]] = []
    one = SimpleNamespace(topic_partitions=[SimpleNamespace(topic_id=ID, partitions=[0])])

    async def ask(connection: Any, api: Api, values: dict[str, Any], left_s: float) -> Any:
        sent.append((values["member_epoch"], values["subscribed_topic_names"]))
        if len(sent) == 2:
            raise ClusterError(ApiError.REQUEST_TIMED_OUT, "no answer", retriable=True)
        assignment = one if len(sent) > 2 and values["member_epoch"] == 0 else None
        return SimpleNamespace(
            error_code=0, member_epoch=4, heartbeat_interval=timedelta(seconds=5), assignment=assignment
        )

    async def call(key: str, timeout_s: float, attempt: Any, without_topic: Any = None) -> Any:
        return await attempt(None, timeout_s)

    consumer._calls.ask = ask  # type: ignore[method-assign]
    consumer._calls.call = call  # type: ignore[method-assign]
    await consumer._heartbeat(0, WAIT_S)
    with pytest.raises(ClusterError):
        await consumer._heartbeat(4, WAIT_S)
    await consumer._heartbeat(4, WAIT_S)
    await consumer._heartbeat(4, WAIT_S)
    assert sent == [(0, ["t"]), (4, None), (0, ["t"]), (4, None)]
    assert consumer._assigned == {(ID, 0)}


async def test_an_internal_error_of_the_membership_is_reported(make: Callable[..., Setting]) -> None:
    consumer = make().consumer

    async def broken(epoch: int, timeout_s: float) -> None:
        raise RuntimeError("a bug")

    consumer._heartbeat = broken  # type: ignore[method-assign]
    async with consumer:
        with pytest.raises(ClusterError, match="the consumer failed: RuntimeError") as failure:
            await consumer.get(WAIT_S)
        assert failure.value.code == "FAILED"


def test_a_single_topic_may_be_given_as_a_string() -> None:
    assert ShareConsumer("h:1", "g", topics="orders")._topics == ["orders"], "the text is a single topic"


def test_names_that_a_request_cannot_contain_are_wrong_arguments() -> None:
    with pytest.raises(ConfigError) as failure:
        ShareConsumer("h:1", "a\ud800", topics=["t", "b\ud800"])
    assert failure.value.problems == ("group is not valid text: 'a\\ud800'", "topic is not valid text: 'b\\ud800'")


@pytest.mark.parametrize("max_records", [0, 2**31])
def test_all_wrong_arguments_are_reported_together(max_records: int) -> None:
    with pytest.raises(ConfigError) as failure:
        ShareConsumer("h:1", "", topics=[], max_records=max_records)
    assert [problem.split(" is ")[0] for problem in failure.value.problems] == ["group", "topics", "max_records"]


async def test_get_fails_when_the_consumer_is_closed(make: Callable[..., Setting]) -> None:
    setting = make(ONE)
    reading = asyncio.ensure_future(setting.consumer.get())
    await until(lambda: setting.brokers[ONE].requests == 1)
    await setting.close()
    async with asyncio.timeout(WAIT_S):
        with pytest.raises(ClusterError, match="the consumer was closed") as failure:
            await reading
    assert failure.value.code == "CLIENT_CLOSED"
    assert setting.brokers[ONE].requests == 1


async def test_a_closed_consumer_returns_no_buffered_records(make: Callable[..., Setting]) -> None:
    setting = make(ONE)
    setting.brokers[ONE].deliver(0, data(0, 1), 0, 1)
    (record,) = await take(setting, 1)
    closing = asyncio.ensure_future(setting.close())
    setting.brokers[ONE].closing.clear()
    await asyncio.sleep(0)
    with pytest.raises(ClusterError, match="the consumer was closed"):
        await setting.consumer.get(WAIT_S)
    with pytest.raises(ClusterError, match="the lock on t-0 offset 0 is lost"):
        await setting.consumer.accept(record)
    setting.brokers[ONE].closing.set()
    await closing


async def test_a_close_that_is_cancelled_ends_all_sessions(make: Callable[..., Setting]) -> None:
    setting = make(ONE, TWO)
    setting.brokers[ONE].deliver(0, data(0, 1), 0, 1)
    records = await take(setting, 2)
    await until(lambda: setting.brokers[TWO].requests == 1)
    sessions = list(setting.consumer._sessions.values())
    setting.brokers[ONE].answering.clear()
    waiting = [asyncio.ensure_future(setting.consumer.accept(records[0]))]
    await until(lambda: setting.brokers[ONE].requests == 2)
    waiting.append(asyncio.ensure_future(setting.consumer.accept(records[1])))
    await asyncio.sleep(0)
    closing = asyncio.ensure_future(setting.close())
    await asyncio.sleep(0)
    closing.cancel()
    await asyncio.wait({closing})
    assert closing.cancelled()
    assert [each.connection.is_closed for each in sessions] == [True, True]  # type: ignore[attr-defined]
    async with asyncio.timeout(WAIT_S):
        for each in waiting:
            with pytest.raises(ClusterError, match="its locks are lost"):
                await each


async def test_a_refused_look_up_of_a_leader_is_reported_once(make: Callable[..., Setting]) -> None:
    setting = make(ONE, TWO)
    setting.cluster.refused = {0}
    with pytest.raises(ClusterError) as failure:
        await setting.consumer.get(WAIT_S)
    assert failure.value.code == "TOPIC_AUTHORIZATION_FAILED"
    setting.cluster.refused = set()
    setting.brokers[ONE].deliver(0, data(0), 0, 0)
    (record,) = await take(setting, 1)
    assert record.partition == 0


async def test_a_permanent_refusal_of_a_leader_is_reported(make: Callable[..., Setting]) -> None:
    setting = make(ONE)
    setting.brokers[ONE].deliver(0, b"", 0, 0, code=29)
    with pytest.raises(ClusterError, match="t-0") as failure:
        await setting.consumer.get(WAIT_S)
    assert failure.value.code == "TOPIC_AUTHORIZATION_FAILED"
    setting.brokers[ONE].deliver(0, data(0), 0, 0)
    await take(setting, 1)


async def test_a_broker_that_is_not_the_leader_yet_is_asked_again(make: Callable[..., Setting]) -> None:
    setting = make(ONE)
    broker = setting.brokers[ONE]
    broker.deliver(0, b"", 0, 0, int(KafkaCode.NOT_LEADER_OR_FOLLOWER))
    broker.deliver(0, data(0), 0, 0)
    (record,) = await take(setting, 1)
    assert record.offset == 0
