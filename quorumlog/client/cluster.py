"""A cluster as seen through the Kafka protocol: the leader of each partition, and open connections to brokers.

Theory of operation.  The cache has the leaders of all partitions of every requested topic, and the brokers' addresses.
One Metadata request at a time refreshes it.  A caller that needs a refresh joins the request in progress if that began
after the need arose, so a thousand partitions that lose their leader together send one request.  Any broker can answer
the request: the known brokers are tried, then the bootstrap addresses.  The address that answered last is tried first.
After ROTATE_S, the next broker is tried first.  Addresses that failed are tried last.

An answer may come from a broker that lags.  As long as the topic id is the same, the leader with the higher leader
epoch is used, and no partition is dropped.  If the topic id differs, the topic with the higher leader epochs is used.
In Apache Kafka, a topic that is created again begins with epoch 0, so the last answer is used, as in Kafka's clients.
If an answer names no leader, or again the leader that failed, the next request goes to another broker, because a broker
that is disconnected from the controller answers with old metadata.  If the bootstrap addresses belong to different
clusters, calls fail.

Calls fail with `ClusterError`; a `retriable` one may be retried after a pause.  Every call with a `timeout_s` ends
within it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from types import TracebackType
from typing import Any, Final, TypeVar
from uuid import UUID

from quorumlog.client.kafka import CHECK_ADDRESSES, KafkaConnection, error_word
from quorumlog.client.messages import check_texts, client_id_problem
from quorumlog.errors import ClusterError, ConfigError
from quorumlog.runtime.addresses import Address, parse_list, parse_target
from quorumlog.runtime.backoff import Backoff
from quorumlog.runtime.clock import Sources
from quorumlog.runtime.closing import Closing
from quorumlog.wire.errors import ApiError, KafkaCode
from quorumlog.wire.kafka.codec import Api

CONNECT_TIMEOUT_S: Final = 5.0
REQUEST_TIMEOUT_S: Final = 10.0
HURRY_S = 3.0
"""Time limit for an answer that any other broker could also give, because this broker may hang."""
ROTATE_S = 30.0
"""After this time, the next broker is asked for metadata, even if no request has failed: a leader that is disconnected
from the controller and from other brokers still answers, and names itself."""
PAUSE_MIN_S: Final = 0.05
PAUSE_MAX_S: Final = 1.0
CHECK_BROKERS: Final = "check the bootstrap servers, and that brokers run"
EPOCHS_GO_ON_S: Final = 24 * 3600.0
TOPICS_MAX: Final = 10_000
"""Maximum number of topics in the cache; above it, topics that were not just requested are dropped."""
OWN_REQUESTS_FROM: Final = 10_000
"""Only brokers of quorumlog list requests with this API key or a higher one."""
_METADATA_VERSION: Final = 12
_API_VERSIONS_VERSION: Final = 3
_INIT_PRODUCER_ID_VERSION: Final = 4
_NO_LEADER: Final = -1

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _Leader:
    broker_id: int
    epoch: int


@dataclass(frozen=True, slots=True)
class TopicState:
    """A topic as the brokers report it.

    topic_id: None if the broker reports none.
    leader_epochs: the leader epoch of each partition, by its index.
    """

    topic_id: UUID | None
    is_internal: bool
    leader_epochs: Mapping[int, int]


@dataclass(slots=True)
class _Topic:
    """A cached topic.

    refreshed: the number of the last refresh whose answer contained the topic.
    answered_at: the loop time of the answer that set this state.
    """

    topic_id: UUID | None
    is_internal: bool
    leaders: dict[int, _Leader]
    refreshed: int
    answered_at: float

    def state(self) -> TopicState:
        epochs = {index: leader.epoch for index, leader in self.leaders.items()}
        return TopicState(self.topic_id, self.is_internal, epochs)

    def is_ahead_of(self, other: _Topic) -> bool:
        """Return whether this state is newer than `other`, if both are from brokers of quorumlog.

        A topic that is created again within a day continues the leader epochs of its name, under a new id.  So a lower
        epoch comes from a broker that lags.
        """
        return other.answered_at - self.answered_at < EPOCHS_GO_ON_S and any(
            index in self.leaders and self.leaders[index].epoch > leader.epoch
            for index, leader in other.leaders.items()
        )


@dataclass(slots=True)
class _Refresh:
    """One Metadata request; `topics` None requests all."""

    number: int
    topics: frozenset[str] | None
    task: asyncio.Task[None]


@dataclass(slots=True)
class _View:
    cluster_id: str | None = None
    controller_id: int = -1
    brokers: dict[int, Address] = field(default_factory=dict)
    """The brokers of the last answer that named brokers."""
    names_brokers: bool = False
    """Whether the last answer named brokers."""
    topics: dict[str, _Topic] = field(default_factory=dict)
    missing: dict[str, tuple[int, ClusterError]] = field(default_factory=dict)
    """Topics that the last answer about them refused, with the number of that refresh and the error."""


class Cluster(Closing):
    """A client for one cluster, bound to the loop of its first use; `close()` it, or use it as a context manager.

    Args:
        bootstrap: `HOST:PORT`, several with commas or as a list.
        client_id: our name in the brokers' logs.
        create_topics: ask the brokers to create requested topics that do not exist; they refuse if their
        `auto.create.topics.enable` is off.
        random: draws the pauses between retries; None: the system's random device.

    Raises:
        ConfigError: `client_id` is not valid text.  Calls raise it for the name of a topic, before they send a request.
        ClusterError: `bootstrap` is malformed.
    """

    def __init__(
        self,
        bootstrap: str | Sequence[str],
        *,
        client_id: str = "quorumlog",
        connect_timeout_s: float = CONNECT_TIMEOUT_S,
        request_timeout_s: float = REQUEST_TIMEOUT_S,
        create_topics: bool = False,
        random: Random | None = None,
    ) -> None:
        if problem := client_id_problem(client_id):
            raise ConfigError(problem)
        texts = [bootstrap] if isinstance(bootstrap, str) else list(bootstrap)
        try:
            self._bootstrap = parse_list(parse_target, texts)
        except ValueError as cause:
            raise ClusterError(ApiError.INVALID_REQUEST, f"bootstrap servers: {cause}") from cause
        if not self._bootstrap:
            raise ClusterError(ApiError.INVALID_REQUEST, "bootstrap servers: none given")
        self.random = random or Sources.real().random
        self._client_id = client_id
        self._create_topics = create_topics
        self._connect_timeout_s = connect_timeout_s
        self._request_timeout_s = request_timeout_s
        self._view = _View()
        self._connections: dict[Address, KafkaConnection] = {}
        self._connecting: dict[Address, asyncio.Task[KafkaConnection]] = {}
        self._closing_tasks: set[asyncio.Task[None]] = set()
        self._refresh: _Refresh | None = None
        self._refreshes = 0
        self._lost: dict[tuple[str, int], int] = {}
        """Partitions whose leader failed, with the number of the last refresh that had begun by then."""
        self._last_good: Address | None = None
        self._rotate_at: float | None = None
        self._failures = 0
        self._failed: dict[Address, int] = {}
        """Addresses that failed or may have old metadata, with the number of the failure.  The last to fail is tried
        last."""
        self._failures_rotated = 0
        """The number of failures at the last rotation."""
        self._is_of_quorumlog: bool | None = None
        """Whether the brokers are those of quorumlog; None until it is needed."""
        self._closed = False

    # --- for other clients ---

    @property
    def client_id(self) -> str:
        """Our name in the brokers' logs."""
        return self._client_id

    @property
    def cluster_id(self) -> str | None:
        """The cluster id; None until a broker has answered."""
        return self._view.cluster_id

    async def leader(self, topic: str, index: int, timeout_s: float) -> KafkaConnection:
        """Return an open connection to the partition's leader.  Tries once.  Raises: ClusterError."""
        async with self._deadline(f"the leader of {topic}-{index}", timeout_s):
            address = await self._find_leader(topic, index)
            try:
                return await self._connection(address)
            except ClusterError:
                self._lost[topic, index] = self._refreshes
                raise

    def known_leader(self, topic: str, index: int) -> Address | None:
        """Return the address of the partition's leader; None if it is not known, or failed after the last refresh.

        Sends nothing.
        """
        known = self._view.topics.get(topic)
        if known is None or index not in known.leaders or known.refreshed <= self._lost.get((topic, index), -1):
            return None
        return self._view.brokers.get(known.leaders[index].broker_id)

    async def find_leader(self, topic: str, index: int, timeout_s: float) -> Address:
        """Return the address of the partition's leader.  Tries once.  Raises: ClusterError."""
        async with self._deadline(f"the leader of {topic}-{index}", timeout_s):
            return await self._find_leader(topic, index)

    async def _find_leader(self, topic: str, index: int) -> Address:
        newer_than = self._lost.get((topic, index), -1)
        known = self._view.topics.get(topic)
        if known is None or known.refreshed <= newer_than or index not in known.leaders:
            lost = self._leader(topic, index)
            await self._refreshed(frozenset((topic,)), newer_than)
            if self._leader(topic, index) in (None, lost):
                self._doubt_answer(lost)
        self._lost.pop((topic, index), None)
        return self._leader_address(topic, index)

    def _doubt_answer(self, lost: _Leader | None) -> None:
        """Send the next request to a different broker.  lost: the failed leader, which is asked last."""
        self.ask_another_broker()
        address = None if lost is None else self._view.brokers.get(lost.broker_id)
        if address is not None:
            self._ask_last(address)

    async def leader_lost(self, topic: str, index: int, connection: KafkaConnection) -> None:
        """Note that the connection failed, or that its broker is not the leader.  The next call looks the leader up."""
        self.forget_leader(topic, index)
        self._drop_if_bad(connection)

    def forget_leader(self, topic: str, index: int) -> None:
        """Look up the leader of the partition again at the next call."""
        self._lost[topic, index] = self._refreshes

    def doubt_leader(self, topic: str, index: int) -> None:
        """Send metadata requests to the known leader of a partition last, because it may be a former leader."""
        address = self.known_leader(topic, index)
        if address is not None:
            self._ask_last(address)

    async def has_moved(self, topic: str, index: int, connection: KafkaConnection) -> bool:
        """Ask other brokers now; return whether they name a leader other than the broker of this connection.

        False if no other broker answers.
        """
        hangs = Address(connection.host, connection.port)
        self._ask_last(hangs)
        try:
            await self._refreshed(frozenset((topic,)), self._refreshes)
            return self._leader_address(topic, index) != hangs
        except ClusterError:
            return False

    async def any_broker(self, timeout_s: float) -> KafkaConnection:
        """Return an open connection to any broker.  Tries each known broker once.  Raises: ClusterError."""
        async with self._deadline("any broker", timeout_s):
            return (await self._first_that_answers(self._connection_to))[1]

    async def brokers(self, timeout_s: float) -> dict[int, Address]:
        """Return the address of each broker in a new Metadata response, by id.  Tries each known broker once.

        A broker that is starting names none.  The brokers of an earlier response are not returned then: if all of them
        are starting, they have nothing to list.

        Raises: ClusterError, retriable: no broker answers; or the response names none, and the next call asks another.
        """
        async with self._deadline("the brokers", timeout_s):
            await self._refreshed(frozenset(), self._refreshes)
        if not self._view.names_brokers:  # a caller that asks every broker would get a result that looks complete
            self.ask_another_broker()
            raise ClusterError(ApiError.BROKER_NOT_AVAILABLE, "no broker serves yet", CHECK_BROKERS, retriable=True)
        return dict(self._view.brokers)

    async def connection(self, address: Address, timeout_s: float) -> KafkaConnection:
        """Return an open connection to one broker.  Tries once.  Raises: ClusterError."""
        async with self._deadline(f"broker {address}", timeout_s):
            return await self._connection(address)

    async def ask(
        self, connection: KafkaConnection, api: Api, version: int, values: dict[str, Any], timeout_s: float
    ) -> Any:
        """Ask as `KafkaConnection.ask` does.  After a failure, drop the connection, and ask its broker last."""
        return await self._ask(connection, api, version, values, timeout_s)

    async def ask_any_broker(self, api: Api, version: int, values: dict[str, Any], timeout_s: float) -> Any:
        """Return one broker's answer to a request that every broker can answer.  Raises: ClusterError.

        If the broker hangs, the call fails after HURRY_S, and the next call asks another broker.
        """
        connection = await self.any_broker(timeout_s)
        return await self._ask(connection, api, version, values, min(timeout_s, HURRY_S))

    async def is_of_quorumlog(self, timeout_s: float) -> bool:
        """Return whether the brokers are those of quorumlog.  Raises: ClusterError.  The first answer is kept."""

        async def ask(left_s: float) -> bool:
            if self._is_of_quorumlog is None:
                connection = await self.any_broker(left_s)
                self._is_of_quorumlog = await self._serves_own_requests(connection, min(left_s, HURRY_S))
            return self._is_of_quorumlog

        return await self.retrying("the requests that the brokers serve", timeout_s, ask)

    async def new_producer_id(self, timeout_s: float) -> tuple[int, int]:
        """Return a new (producer id, epoch), with retries until the time is up."""

        async def ask(left_s: float) -> tuple[int, int]:
            connection = await self.any_broker(left_s)
            values = {"transactional_id": None, "transaction_timeout": 0, "producer_id": -1, "producer_epoch": -1}
            limit_s = min(left_s, HURRY_S)
            reply = await self._ask(connection, Api.INIT_PRODUCER_ID, _INIT_PRODUCER_ID_VERSION, values, limit_s)
            if reply.error_code:  # this broker has no reserved ids left, but another broker may have some
                self._ask_last(Address(connection.host, connection.port))
                raise _refused(reply.error_code, "a producer id")
            return reply.producer_id, reply.producer_epoch

        return await self.retrying("a producer id", timeout_s, ask)

    async def partition_counts(self, topics: Iterable[str] | None, timeout_s: float) -> dict[str, int]:
        """Return the number of partitions of each topic, by name.  See `topic_states`."""
        states = await self.topic_states(topics, timeout_s)
        return {name: len(state.leader_epochs) for name, state in states.items()}

    async def topic_states(self, topics: Iterable[str] | None, timeout_s: float) -> dict[str, TopicState]:
        """Return the state of each topic, by name; topics that do not exist are omitted.  topics: None means all.

        Sends a new request to one broker, with retries until the time is up.  The broker's metadata may be behind, and
        lack a new topic or partition.  For a second answer, call `ask_another_broker` before the next call.

        Raises: ClusterError: an error of a topic, other than UNKNOWN_TOPIC_OR_PARTITION; or TIMED_OUT.
        """
        wanted = None if topics is None else frozenset(topics)

        async def ask(left_s: float) -> dict[str, TopicState]:
            await self._look_up(wanted, left_s)
            view = self._view
            for name in wanted or ():
                if name in view.missing and view.missing[name][1].code not in (ApiError.UNKNOWN_TOPIC_OR_PARTITION,):
                    raise view.missing[name][1]
            names = sorted(view.topics) if wanted is None else sorted(wanted & view.topics.keys())
            return {name: view.topics[name].state() for name in names}

        return await self.retrying("topics", timeout_s, ask)

    async def look_up(self, topics: Iterable[str], timeout_s: float) -> None:
        """Look up the leaders of topics with one request, so that calls of `leader` find them in the cache.

        Retries until a broker answers.  An error of a topic is raised by `leader`, so that it does not hide the others.

        Raises: ClusterError: TIMED_OUT: no broker answers; or an error that is not retriable.
        """
        wanted = frozenset(topics)
        await self.retrying("topics", timeout_s, lambda left_s: self._look_up(wanted, left_s))

    async def _look_up(self, topics: frozenset[str] | None, timeout_s: float) -> None:
        async with self._deadline("topics", timeout_s):
            await self._refreshed(topics, self._refreshes)

    def ask_another_broker(self) -> None:
        """Send the next metadata request to a different broker, if there is another."""
        if self._last_good is not None:
            self._ask_last(self._last_good)

    async def retrying(self, what: str, timeout_s: float, ask: Callable[[float], Awaitable[T]]) -> T:
        """Call `ask(seconds left)` until it succeeds, with growing pauses after retriable ClusterErrors.

        Raises: ClusterError: an error of `ask` that is not retriable, or TIMED_OUT with the last error as its cause.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        backoff = Backoff(PAUSE_MIN_S, PAUSE_MAX_S, self.random)
        while True:
            try:
                return await ask(max(deadline - loop.time(), PAUSE_MIN_S))
            except ClusterError as error:
                if not error.retriable:
                    raise
                pause_s = backoff.next_s()
                if loop.time() + pause_s >= deadline:
                    message = f"{what}: given up after {round(timeout_s, 2):g} s; the last answer was: {error.message}"
                    raise ClusterError(ApiError.TIMED_OUT, message, error.next_step, retriable=True) from error
            await asyncio.sleep(pause_s)

    # --- metadata ---

    async def _refreshed(self, topics: frozenset[str] | None, newer_than: int) -> None:
        """Return after a refresh that covers `topics` and has a number above `newer_than`."""
        check_texts("topic", topics or ())  # an invalid name would fail the shared request
        while True:
            running = self._refresh
            if running is not None:
                await asyncio.wait({running.task})
                covers = running.topics is None or (topics is not None and topics <= running.topics)
                if covers and running.number > newer_than:
                    return _outcome(running.task)
                if self._refresh is running:
                    self._refresh = None
            else:
                self._begin_refresh(None if topics is None else topics | self._remembered())

    def _begin_refresh(self, topics: frozenset[str] | None) -> None:
        if self._closed:
            raise _closed()
        self._refreshes += 1
        task = asyncio.ensure_future(self._ask_metadata(self._refreshes, topics))
        self._refresh = refresh = _Refresh(self._refreshes, topics, task)
        task.add_done_callback(lambda done: self._refresh_done(refresh))

    def _refresh_done(self, refresh: _Refresh) -> None:
        if self._refresh is refresh:
            self._refresh = None
        if not refresh.task.cancelled():
            refresh.task.exception()  # mark as retrieved: the waiting calls raise it

    def _remembered(self) -> frozenset[str]:
        if len(self._view.topics) > TOPICS_MAX:
            self._view.topics.clear()
            self._view.missing.clear()
        return frozenset(self._view.topics)

    async def _ask_metadata(self, number: int, topics: frozenset[str] | None) -> None:
        named = None if topics is None else [{"topic_id": None, "name": name} for name in sorted(topics)]
        values = {"topics": named, "allow_auto_topic_creation": self._create_topics}

        async def ask(address: Address) -> Any:
            connection = await self._connection_to(address)
            reply = await self._ask(connection, Api.METADATA, _METADATA_VERSION, values, self._hurry_s)
            if self._is_of_quorumlog is None and any(map(self._has_another_id, reply.topics)):
                self._is_of_quorumlog = await self._serves_own_requests(connection, self._hurry_s)
            return reply

        self._rotate(asyncio.get_running_loop().time())
        address, reply = await self._first_that_answers(ask)
        self._learn(number, address, reply, is_all=topics is None)

    def _rotate(self, now: float) -> None:
        """Prefer the next broker, once in ROTATE_S.  Brokers that have not failed come before those that have.

        A broker that failed since the last rotation is not preferred: a caller may just have put it last on purpose.
        """
        if self._rotate_at is not None and now < self._rotate_at:
            return
        brokers = list(self._view.brokers.values())
        place = brokers.index(self._last_good) if self._last_good in brokers else -1
        others = [
            each
            for each in (*brokers[place + 1 :], *brokers)
            if each != self._last_good and self._failed.get(each, 0) <= self._failures_rotated
        ]
        others.sort(key=lambda each: self._failed.get(each, 0))  # stable: those that have not failed keep their order
        if self._rotate_at is not None and others:
            self._last_good = others[0]
            self._failed.pop(others[0], None)
        self._failures_rotated = self._failures
        self._rotate_at = now + ROTATE_S

    async def _serves_own_requests(self, connection: KafkaConnection, timeout_s: float) -> bool:
        """Return whether the broker is one of quorumlog.  Raises: ClusterError."""
        values = {"client_software_name": "quorumlog", "client_software_version": "1"}
        reply = await self._ask(connection, Api.API_VERSIONS, _API_VERSIONS_VERSION, values, timeout_s)
        return any(each.api_key >= OWN_REQUESTS_FROM for each in reply.api_keys)

    def _has_another_id(self, topic: Any) -> bool:
        """Return whether a topic in an answer has another id than the known one."""
        known = self._view.topics.get(topic.name)
        return known is not None and not topic.error_code and known.topic_id != topic.topic_id

    def _learn(self, number: int, address: Address, reply: Any, is_all: bool) -> None:
        view = self._view
        if view.cluster_id is not None and reply.cluster_id != view.cluster_id:
            message = f"{address} belongs to cluster {reply.cluster_id}, not to {view.cluster_id}"
            raise ClusterError(ApiError.INCONSISTENT_CLUSTER_ID, message, "check the bootstrap servers")
        view.cluster_id = reply.cluster_id
        view.controller_id = reply.controller_id
        view.names_brokers = bool(reply.brokers)
        if reply.brokers:  # empty from a broker that is starting
            view.brokers = {broker.node_id: Address(broker.host, broker.port) for broker in reply.brokers}
        for topic in reply.topics:
            if topic.name is None:
                continue
            if topic.error_code:
                view.topics.pop(topic.name, None)
                view.missing[topic.name] = (number, _refused(topic.error_code, f"topic {topic.name}"))
                continue
            view.missing.pop(topic.name, None)
            told = _Topic(
                topic.topic_id,
                topic.is_internal,
                {each.partition_index: _Leader(each.leader_id, each.leader_epoch) for each in topic.partitions},
                number,
                asyncio.get_running_loop().time(),
            )
            before = view.topics.get(topic.name)
            if before is None:
                view.topics[topic.name] = told
            elif before.topic_id == told.topic_id:
                for index, old in before.leaders.items():
                    new = told.leaders.get(index)
                    if new is None or new.epoch < old.epoch:  # a topic that loses partitions gets another id
                        told.leaders[index] = old
                view.topics[topic.name] = told
            elif self._is_of_quorumlog and before.is_ahead_of(told):
                before.refreshed = number
            else:
                view.topics[topic.name] = told
        if len(view.missing) > TOPICS_MAX:
            view.missing = {name: told for name, told in view.missing.items() if told[0] == number}
        if is_all:
            view.topics = {name: topic for name, topic in view.topics.items() if topic.refreshed == number}

    def _leader(self, topic: str, index: int) -> _Leader | None:
        """Return the leader of a partition according to the last answer; None if the answer names none."""
        known = self._view.topics.get(topic)
        leader = None if known is None else known.leaders.get(index)
        return None if leader is None or leader.broker_id == _NO_LEADER else leader

    def _leader_address(self, topic: str, index: int) -> Address:
        view = self._view
        known = view.topics.get(topic)
        if known is None:
            if topic in view.missing:
                raise view.missing[topic][1]
            raise _refused(KafkaCode.UNKNOWN_TOPIC_OR_PARTITION, f"topic {topic}")
        leader = known.leaders.get(index)
        if leader is None:
            what = f"{topic}-{index} (the topic has {len(known.leaders)} partitions)"
            raise _refused(KafkaCode.UNKNOWN_TOPIC_OR_PARTITION, what)
        address = view.brokers.get(leader.broker_id)
        if leader.broker_id == _NO_LEADER or address is None:
            self._lost[topic, index] = self._refreshes
            raise _refused(KafkaCode.LEADER_NOT_AVAILABLE, f"{topic}-{index}")
        return address

    # --- connections ---

    async def _first_that_answers(self, ask: Callable[[Address], Awaitable[T]]) -> tuple[Address, T]:
        """Ask the brokers one after the other until one answers; return its address and answer.

        Raises: ClusterError: a final error of `ask`, or BROKER_UNAVAILABLE (retriable).
        """
        addresses = list(dict.fromkeys((*self._view.brokers.values(), *self._bootstrap)))
        addresses.sort(key=lambda address: (self._failed.get(address, -1), address != self._last_good))
        failures: list[ClusterError] = []
        for address in addresses:
            try:
                answer = await ask(address)
            except ClusterError as error:
                if not error.retriable:
                    raise
                failures.append(error)
                self._ask_last(address)
                continue
            self._last_good = address
            self._failed.pop(address, None)
            return address, answer
        raise ClusterError(
            ApiError.BROKER_UNAVAILABLE,
            f"no broker answers: {'; '.join(each.message for each in failures)}",
            CHECK_ADDRESSES if all(each.next_step == CHECK_ADDRESSES for each in failures) else CHECK_BROKERS,
            retriable=True,
            refresh_metadata=True,
        )

    @property
    def _hurry_s(self) -> float:
        """Return the time limit of one broker's answer.  It is shorter if another broker could answer instead."""
        others = {*self._view.brokers.values(), *self._bootstrap}
        return min(HURRY_S, self._request_timeout_s) if len(others) > 1 else self._request_timeout_s

    def _ask_last(self, address: Address) -> None:
        self._failures += 1
        self._failed[address] = self._failures

    async def _connection_to(self, address: Address) -> KafkaConnection:
        return await self._connection(address)

    async def _connection(self, address: Address) -> KafkaConnection:
        """Return the open connection to a broker, or join the attempt in progress."""
        if self._closed:
            raise _closed()
        found = self._connections.get(address)
        if found is not None and found.is_open:
            return found
        attempt = self._connecting.get(address)
        if attempt is None:
            attempt = asyncio.ensure_future(self._connect(address))
            self._connecting[address] = attempt
            attempt.add_done_callback(lambda done: self._connected(address, done))
        await asyncio.wait({attempt})
        return _outcome(attempt)

    async def _connect(self, address: Address) -> KafkaConnection:
        connection = KafkaConnection(address.host, address.port, client_id=self._client_id)
        await connection.connect(self._connect_timeout_s)
        return connection

    def _connected(self, address: Address, attempt: asyncio.Task[KafkaConnection]) -> None:
        self._connecting.pop(address, None)
        if not attempt.cancelled() and attempt.exception() is None:
            self._connections[address] = attempt.result()

    async def _ask(
        self, connection: KafkaConnection, api: Api, version: int, values: dict[str, Any], timeout_s: float
    ) -> Any:
        try:
            return await connection.ask(api, version, values, min(timeout_s, self._request_timeout_s))
        except ClusterError:
            self._drop_if_bad(connection)
            self._ask_last(Address(connection.host, connection.port))
            raise

    def _drop_if_bad(self, connection: KafkaConnection) -> None:
        """Drop a connection that has failed, or on which a request has timed out."""
        if connection.is_open and not connection.has_timed_out:
            return
        for address, kept in list(self._connections.items()):
            if kept is connection:
                del self._connections[address]
                task = asyncio.ensure_future(connection.close())
                self._closing_tasks.add(task)
                task.add_done_callback(self._closing_tasks.discard)

    def _deadline(self, what: str, timeout_s: float) -> _Deadline:
        return _Deadline(what, timeout_s)

    # --- end ---

    async def close(self) -> None:
        """Close all connections and fail all waiting calls.  Idempotent."""
        self._closed = True
        tasks = [*self._connecting.values(), *([self._refresh.task] if self._refresh is not None else [])]
        for task in tasks:
            task.cancel()
        self._begin_close()  # before a cancellation can end this call
        if tasks:
            await asyncio.wait(tasks)
        self._begin_close()  # again, for connections that a task opened while it ended
        connections = list(self._connections.values())
        self._connections.clear()
        for connection in connections:
            await connection.close()
        if self._closing_tasks:
            await asyncio.wait(set(self._closing_tasks))

    def _begin_close(self) -> None:
        for connection in self._connections.values():
            connection.begin_close()


class _Deadline:
    """A block that ends by its deadline, if necessary with a retriable ClusterError."""

    def __init__(self, what: str, timeout_s: float) -> None:
        self._what = what
        self._timeout_s = timeout_s
        self._timeout = asyncio.timeout(timeout_s)

    async def __aenter__(self) -> None:
        await self._timeout.__aenter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await self._timeout.__aexit__(kind, error, trace)
        except TimeoutError as cause:
            message = f"{self._what}: no answer within {self._timeout_s:g} s"
            raise ClusterError(ApiError.REQUEST_TIMED_OUT, message, retriable=True, refresh_metadata=True) from cause


def _closed() -> ClusterError:
    return ClusterError(ApiError.CLIENT_CLOSED, "the client was closed")


def _outcome(task: asyncio.Task[T]) -> T:
    """Return the result of a finished task; only `close` cancels tasks."""
    if task.cancelled():
        raise _closed()
    return task.result()


def _refused(code: int, what: str) -> ClusterError:
    name, retriable = error_word(code)
    known = None if retriable else ApiError.named(name)
    next_step = "" if known is None else known.next_step
    return ClusterError(name, f"{what}: {name}", next_step, retriable=retriable, refresh_metadata=retriable)
