"""Requests to the coordinators of groups or of transactions, which are looked up by a name and may move.

Theory of operation.  The coordinator of a name is the leader of the partition that holds the name's state, so it moves
like any leader.  A call looks it up with FindCoordinator, which any broker answers, and caches it.  If the coordinator
fails, has moved, or refuses with a retriable error, the call looks it up again and retries, with growing pauses, until
the deadline.  So a request may be sent more than once, and the caller must make sure that this is safe.

A coordinator that hangs keeps its connections open.  So when an answer is late, other brokers are asked at intervals
whether another broker is the coordinator now.  If so, the call goes there.

FindCoordinator creates the topic that holds the state if it does not exist.  A call that only reads must not change the
cluster, so it first asks whether the topic exists.

Each request has the newest version that both the broker (according to ApiVersions) and the caller know.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from enum import IntEnum
from typing import Any, Final, Generic, NamedTuple, NoReturn, TypeVar
from weakref import WeakKeyDictionary

from quorumlog.client.cluster import HURRY_S, PAUSE_MIN_S, Cluster
from quorumlog.client.kafka import KafkaConnection, error_word
from quorumlog.errors import ClusterError
from quorumlog.runtime.addresses import Address
from quorumlog.wire.errors import ApiError, KafkaCode
from quorumlog.wire.kafka import codec
from quorumlog.wire.kafka.codec import Api

LOOK_AFTER_S: Final = 1.0
"""If an answer takes this long, other brokers are asked for the coordinator, and again at this interval."""
AT_ONCE_MAX: Final = 64
"""Maximum number of requests of one call that are in flight; others wait."""
FAILURES_SHOWN_MAX: Final = 3
"""Number of brokers whose failures a message shows; the others are only counted."""
COORDINATORS_MAX: Final = 100_000
"""Maximum number of cached coordinators.  At this number, the cache is emptied, and all are looked up again."""

_API_VERSIONS_VERSION: Final = 3
_FIND_COORDINATOR_VERSION: Final = 4
_METADATA_VERSION: Final = 12
_TOPIC_LOOKS: Final = 2
"""Number of brokers that must not know a topic before it counts as missing: the metadata of one may be behind."""

T = TypeVar("T")


class Kind(IntEnum):
    """The kind of a coordinator: its number in FindCoordinator.  noun: the word before a key in messages."""

    GROUP = 0
    TRANSACTIONAL_ID = 1

    @property
    def noun(self) -> str:
        return self.name.lower().replace("_", " ")

    @property
    def topic(self) -> str:
        """Return the name of the topic that holds the state."""
        return "__consumer_offsets" if self is Kind.GROUP else "__transaction_state"


class Coordinator(NamedTuple):
    """The broker that coordinates a group or a transactional id."""

    broker_id: int
    address: Address


class Answers(NamedTuple, Generic[T]):
    """The combined lists of the brokers that answered.

    missing: an error that names brokers whose lists are missing; None if all have answered.
    """

    items: list[T]
    missing: ClusterError | None


class CoordinatorCalls:
    """Asks the coordinators of one kind; bound to the loop of its `Cluster`, which the caller closes.

    newest: for each request, the newest version to send.
    """

    def __init__(self, cluster: Cluster, kind: Kind, newest: Mapping[Api, int]) -> None:
        self.kind = kind
        self._cluster = cluster
        self._newest = newest
        self._coordinators: dict[str, Coordinator] = {}
        self._versions: WeakKeyDictionary[KafkaConnection, dict[int, tuple[int, int]]] = WeakKeyDictionary()
        self._has_topic = False

    def name_of(self, key: str) -> str:
        """Return a group or transactional id for messages."""
        return f"{self.kind.noun} {key}"

    # -- looking up

    async def find(self, key: str, timeout_s: float) -> Coordinator:
        """Return the coordinator that a broker names now, with retries until a broker names one.

        If the topic that holds the state does not exist, the broker creates it first.

        Raises:
            ClusterError: TIMED_OUT, or an error that is not retriable.
        """
        return await self.retrying(
            f"the coordinator of {self.name_of(key)}", timeout_s, lambda left_s: self._find(key, left_s)
        )

    async def known_or_found(self, key: str, timeout_s: float) -> Coordinator:
        """Return the cached coordinator, or look it up once.  Raises: ClusterError."""
        return self._coordinators.get(key) or await self._find(key, timeout_s)

    def remember(self, key: str, coordinator: Coordinator) -> None:
        """Cache a coordinator, so that the next call asks this broker first."""
        if len(self._coordinators) >= COORDINATORS_MAX:
            self._coordinators.clear()
        self._coordinators[key] = coordinator

    def forget(self, key: str) -> None:
        """Look the coordinator up again at the next call, at another broker."""
        self._coordinators.pop(key, None)
        self._cluster.ask_another_broker()

    async def _find(self, key: str, left_s: float) -> Coordinator:
        name = self.name_of(key)
        values = {"key_type": int(self.kind), "coordinator_keys": [key]}
        try:
            reply = await self._cluster.ask_any_broker(Api.FIND_COORDINATOR, _FIND_COORDINATOR_VERSION, values, left_s)
            found = next((each for each in reply.coordinators if each.key == key), None)
            if found is None:
                raise refused(KafkaCode.COORDINATOR_NOT_AVAILABLE, f"{name}: no broker")
            if found.error_code:
                reason = f": {found.error_message}" if found.error_message else ""
                raise refused(found.error_code, f"the coordinator of {name}", reason)
        except ClusterError:
            self._cluster.ask_another_broker()
            raise
        coordinator = Coordinator(found.node_id, Address(found.host, found.port))
        self.remember(key, coordinator)
        return coordinator

    async def _topic_exists(self, left: Callable[[], float]) -> bool:
        """Return whether the topic that holds the state exists, without creating it."""
        values = {"topics": [{"topic_id": None, "name": self.kind.topic}], "allow_auto_topic_creation": False}
        for look in range(_TOPIC_LOOKS):
            if self._has_topic:
                break
            if look > 0:
                await self._cluster.brokers(left())  # otherwise no other broker may be known
                self._cluster.ask_another_broker()
            reply = await self._cluster.ask_any_broker(Api.METADATA, _METADATA_VERSION, values, left())
            if not reply.brokers:
                self._cluster.ask_another_broker()
                text = f"the broker that was asked for topic {self.kind.topic} is starting"
                raise ClusterError(ApiError.BROKER_UNAVAILABLE, text, retriable=True)
            self._has_topic = all(each.error_code != KafkaCode.UNKNOWN_TOPIC_OR_PARTITION for each in reply.topics)
        return self._has_topic

    # -- asking

    async def call(
        self,
        key: str,
        timeout_s: float,
        attempt: Callable[[KafkaConnection, float], Coroutine[Any, Any, T]],
        without_topic: Callable[[], T] | None = None,
    ) -> T:
        """Return the result of `attempt(connection, seconds left)` at the coordinator, with retries.

        without_topic: gives the result if the topic that holds the state does not exist.  None: the broker that looks
            the coordinator up creates the topic.

        Raises:
            ClusterError: an error of `attempt` that is not retriable; TIMED_OUT, with the last refusal in its message.
        """
        return await self.call_coordinator(
            key, timeout_s, lambda _, connection, left_s: attempt(connection, left_s), without_topic
        )

    async def call_coordinator(
        self,
        key: str,
        timeout_s: float,
        attempt: Callable[[Coordinator, KafkaConnection, float], Coroutine[Any, Any, T]],
        without_topic: Callable[[], T] | None = None,
    ) -> T:
        """Return the result of `attempt(coordinator, connection, seconds left)`, as `call` does."""

        async def once(left_s: float) -> T:
            left = _left(left_s)
            if without_topic is not None and key not in self._coordinators and not await self._topic_exists(left):
                return without_topic()
            coordinator = await self.known_or_found(key, left())
            try:
                connection = await self._cluster.connection(coordinator.address, left())
                self.remember(key, coordinator)
                asked = asyncio.ensure_future(attempt(coordinator, connection, left()))
                return await self.answer_of(key, coordinator, asked)
            except ClusterError as error:
                if error.retriable:
                    self.forget(key)
                raise

        return await self.retrying(self.name_of(key), timeout_s, once)

    async def retrying(self, what: str, timeout_s: float, ask: Callable[[float], Awaitable[T]]) -> T:
        """Retry as `Cluster.retrying` does.  If the last attempt had too little time, report the previous refusal."""
        refusal: ClusterError | None = None

        async def once(left_s: float) -> T:
            nonlocal refusal
            try:
                return await ask(left_s)
            except ClusterError as error:
                if error.code == ApiError.REQUEST_TIMED_OUT and left_s < HURRY_S and refusal is not None:
                    raise refusal from error
                refusal = error
                raise

        return await self._cluster.retrying(what, timeout_s, once)

    async def answer_of(self, key: str, coordinator: Coordinator, asked: asyncio.Future[T]) -> T:
        """Return the answer, or raise a retriable ClusterError if another broker has become the coordinator.

        `asked` is cancelled in the latter case, and if this call is cancelled.
        """
        look: asyncio.Future[bool] | None = None
        try:
            await asyncio.wait({asked}, timeout=LOOK_AFTER_S)
            while not asked.done():
                look = asyncio.ensure_future(self._has_moved(key, coordinator))
                await asyncio.wait((asked, look), return_when=asyncio.FIRST_COMPLETED)
                if asked.done():
                    break
                if look.result():
                    text = (
                        f"broker {coordinator.broker_id} does not answer, and no longer coordinates {self.name_of(key)}"
                    )
                    raise ClusterError(ApiError.NOT_COORDINATOR, text, retriable=True)
                await asyncio.wait({asked}, timeout=LOOK_AFTER_S)
            return asked.result()
        finally:
            asked.cancel()
            if look is not None:
                look.cancel()

    async def _has_moved(self, key: str, coordinator: Coordinator) -> bool:
        self._cluster.ask_another_broker()
        try:
            return await self._find(key, HURRY_S) != coordinator
        except ClusterError:
            return False

    async def ask(self, connection: KafkaConnection, api: Api, values: dict[str, Any], left_s: float) -> Any:
        """Send a request, once, in the newest version that both sides know.  Drop the connection after a failure.

        Raises:
            ClusterError: as `KafkaConnection.send`; UNSUPPORTED_VERSION if there is no such version.
        """
        left = _left(left_s)
        version = await self._needed_version(connection, api, left())
        return await self._cluster.ask(connection, api, version, values, left())

    async def ask_slowly(
        self, connection: KafkaConnection, api: Api, values: dict[str, Any], timeout_s: float, answer_s: float
    ) -> tuple[int, Any]:
        """Ask as `ask` does, but return the version and the answer.  Keep the connection if no answer arrives.

        answer_s: how long the answer may take.  timeout_s: time limit for looking up the version before the request.
        """
        version = await self._needed_version(connection, api, timeout_s)
        return version, await connection.ask(api, version, values, answer_s)

    async def version(self, connection: KafkaConnection, api: Api, left_s: float) -> int | None:
        """Return the newest version of a request that both sides know; None if they share none."""
        offered = self._versions.get(connection)
        if offered is None:
            values = {"client_software_name": "quorumlog", "client_software_version": "1"}
            reply = await self._cluster.ask(connection, Api.API_VERSIONS, _API_VERSIONS_VERSION, values, left_s)
            check(reply.error_code, f"{connection.peer}: the versions of its requests")
            offered = {each.api_key: (each.min_version, each.max_version) for each in reply.api_keys}
            self._versions[connection] = offered
        low, high = offered.get(api, (0, -1))
        version = min(high, self._newest[api])
        return version if version >= low else None

    async def _needed_version(self, connection: KafkaConnection, api: Api, left_s: float) -> int:
        version = await self.version(connection, api, left_s)
        if version is None:
            raise ClusterError(ApiError.UNSUPPORTED_VERSION, f"{connection.peer} does not serve {codec.api_name(api)}")
        return version

    # -- asking every broker

    async def of_answering_brokers(
        self, what: str, timeout_s: float, ask: Callable[[int, Address, float], Coroutine[Any, Any, list[T]]]
    ) -> Answers[T]:
        """Return the combined lists of all brokers.  When the time is up, some may be missing (`Answers.missing`).

        ask: `ask(broker id, address, seconds left)` returns the list of one broker.

        Raises:
            ClusterError: TIMED_OUT: no broker has answered; or an error that is not retriable.
        """
        parts: list[list[T]] = []
        lacking: BaseException | None = None
        """The failures of the attempt that gave `parts`."""

        async def of_one(broker_id: int, address: Address, left_s: float) -> list[T]:
            try:
                return await ask(broker_id, address, min(left_s, HURRY_S))
            except ClusterError as error:
                text = f"broker {broker_id}: {error.message}"
                raise ClusterError(error.code, text, error.next_step, retriable=error.retriable) from error

        async def once(left_s: float) -> None:
            nonlocal parts, lacking
            brokers = await self._cluster.brokers(left_s)
            asked = (of_one(broker_id, address, left_s) for broker_id, address in sorted(brokers.items()))
            answered, failures = await _ended(asked)
            failure = _together(failures) if failures else None
            if len(answered) >= len(parts):
                parts, lacking = answered, failure  # the last attempt may have had too little time
            if failure is not None:
                raise failure

        missing = None
        try:
            await self.retrying(what, timeout_s, once)
        except ClusterError as error:
            if not error.retriable or not parts:
                raise
            assert isinstance(lacking, ClusterError), lacking
            message = f"{what}: given up after {round(timeout_s, 2):g} s; missing in this list: {lacking.message}"
            missing = ClusterError(error.code, message, lacking.next_step, retriable=True)
        return Answers([each for part in parts for each in part], missing)


def _left(timeout_s: float) -> Callable[[], float]:
    """Return a function that returns the seconds left, so that all steps of a call share its time limit."""
    now = asyncio.get_running_loop().time
    deadline = now() + timeout_s
    return lambda: max(deadline - now(), PAUSE_MIN_S)


async def all_of(work: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """Await all calls, at most AT_ONCE_MAX at a time; then raise the first error, a final one if there is any."""
    results, failures = await _ended(work)
    if failures:
        raise failures[0]
    return results


async def _ended(work: Iterable[Coroutine[Any, Any, T]]) -> tuple[list[T], list[BaseException]]:
    """Await all calls, at most AT_ONCE_MAX at a time; return the results and the failures, final failures first."""
    slots = asyncio.Semaphore(AT_ONCE_MAX)

    async def one(each: Coroutine[Any, Any, T]) -> T:
        async with slots:
            return await each

    results = await asyncio.gather(*map(one, work), return_exceptions=True)
    failures = [each for each in results if isinstance(each, BaseException)]
    # A final refusal, or a bug in this code, is more useful than the error of a broker that may answer later.
    failures.sort(key=_is_retriable)
    return [each for each in results if not isinstance(each, BaseException)], failures


def _is_retriable(error: BaseException) -> bool:
    return isinstance(error, ClusterError) and error.retriable


def _together(failures: Sequence[BaseException]) -> BaseException:
    """Return the first failure.  If it is retriable, its message includes the messages of the others."""
    first = failures[0]
    if len(failures) == 1 or not isinstance(first, ClusterError) or not first.retriable:
        return first
    shown = [str(each) for each in failures[:FAILURES_SHOWN_MAX]]
    if len(failures) > len(shown):
        shown.append(f"and {len(failures) - len(shown)} more brokers")
    return ClusterError(first.code, "; ".join(shown), first.next_step, retriable=True)


def check(code: int, what: str) -> None:
    """Raise a ClusterError, unless `code` is 0.  what: the subject of the request, for the message."""
    if code:
        raise refused(code, what)


def refusing(code: int, what: str) -> Callable[[], NoReturn]:
    """Return a function that raises the error of `refused`."""

    def refuse() -> NoReturn:
        raise refused(code, what)

    return refuse


def refused(code: int, what: str, reason: str = "") -> ClusterError:
    """Return a coordinator's refusal as an error.  reason: text to append to the message."""
    name, retriable = error_word(code)
    known = ApiError.named(name)
    text = (
        f"{what}: {name}" if known is None else f"{what}: {known.sentence[:1].lower()}{known.sentence[1:].rstrip('.')}"
    )
    return ClusterError(name, f"{text}{reason}", retriable=retriable)
