"""Requests of administrators that go to the controller, to one broker, or to any broker, with retries.

Theory of operation.  A Metadata response names the controller, the broker that accepts changes of topics.  Apache Kafka
with ZooKeeper has one controller; quorumlog and KRaft clusters name any broker, which forwards the change.  The
controller is looked up for each attempt, and at another broker after a failure, so a call follows a move of the
controller.

A request may be applied although its answer is lost.  So a change that is sent again may be refused because it has
already been made.  `Changes.unsure` names the parts to which this applies, and the caller interprets the refusal.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from quorumlog.client.admin_values import ClusterDescription, cluster_description, refused
from quorumlog.client.cluster import REQUEST_TIMEOUT_S, Cluster
from quorumlog.client.kafka import KafkaConnection
from quorumlog.errors import ClusterError, RemoteProtocolError
from quorumlog.wire.errors import ApiError, KafkaCode
from quorumlog.wire.kafka.codec import Api

VERSIONS: Final = {
    Api.METADATA: 12,
    Api.CREATE_TOPICS: 7,
    Api.DELETE_TOPICS: 6,
    Api.CREATE_PARTITIONS: 3,
    Api.DELETE_RECORDS: 2,
    Api.DESCRIBE_CONFIGS: 4,
    Api.INCREMENTAL_ALTER_CONFIGS: 1,
}
"""The version of each request: served by quorumlog, and by Apache Kafka from 3.1 on."""
_MISSING: Final = (ApiError.UNKNOWN_TOPIC_OR_PARTITION, ApiError.UNKNOWN_TOPIC_ID)
"""Errors that Kafka treats as retriable, because a broker may be behind.  `final_if_missing` treats them as final, so
that a misspelt name is reported at once.  Use it for answers of the controller, which is never behind, and of a second
broker."""


@dataclass(slots=True)
class Changes:
    """The outcome of a change of several topics, by name.

    unsure: the parts that an earlier attempt of the same call may have changed: it got no answer, or the answer
        REQUEST_TIMED_OUT.
    """

    done: dict[str, Any] = field(default_factory=dict)
    refusals: dict[str, ClusterError] = field(default_factory=dict)
    unsure: set[str] = field(default_factory=set)

    def outcomes(self, names: Iterable[str]) -> dict[str, Any | ClusterError]:
        """Return the answer or error of each name, in the order of `names`."""
        return {name: self.done[name] if name in self.done else self.refusals[name] for name in names}


class BrokerCalls:
    """Asks brokers through a `Cluster`, which the caller closes.  Every call ends within its `timeout_s`."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    async def metadata(self, topics: Collection[str] | None, timeout_s: float) -> Any:
        """Return a new Metadata response.  topics: None means all.  Creates no missing topic.  Raises: ClusterError."""
        return await self._cluster.retrying("metadata", timeout_s, lambda left_s: self._metadata(topics, left_s))

    async def _metadata(self, topics: Collection[str] | None, left_s: float) -> Any:
        named = None if topics is None else [{"topic_id": None, "name": name} for name in sorted(topics)]
        values = {"topics": named, "allow_auto_topic_creation": False}
        return await self._cluster.ask_any_broker(Api.METADATA, VERSIONS[Api.METADATA], values, left_s)

    async def change_topics(
        self,
        api: Api,
        names: Collection[str],
        request: Callable[[list[str]], Mapping[str, Any]],
        answers: Callable[[Any], Iterable[Any]],
        timeout_s: float,
    ) -> Changes:
        """Send a change of topics to the controller, until each part is made or finally refused, or the time is up.

        Errors are part of the result.
        request: returns the values of a request about some of the topics.  answers: returns the answer about each topic
            in a response.
        """
        changes = Changes()
        pending = list(names)

        async def once(left_s: float) -> None:
            controller = await self._controller(left_s)
            limit_s = min(left_s, REQUEST_TIMEOUT_S)
            values = {**request(pending), "timeout": broker_timeout_ms(limit_s)}
            try:
                reply = await self._cluster.ask(controller, api, VERSIONS[api], values, limit_s)
            except ClusterError:
                changes.unsure.update(pending)
                raise
            pending[:] = _note_answers(changes, controller, pending, answers(reply))
            if pending:
                self._cluster.ask_another_broker()
                raise changes.refusals[pending[0]]

        try:
            await self._cluster.retrying(_listed(names), timeout_s, once)
        except ClusterError as error:
            changes.refusals.update(dict.fromkeys(pending, error))
        return changes

    async def _controller(self, left_s: float) -> KafkaConnection:
        found = cluster_description(await self._metadata((), left_s))
        address = next((each.address for each in found.brokers if each.broker_id == found.controller), None)
        if address is None:
            self._cluster.ask_another_broker()
            raise ClusterError(ApiError.NOT_CONTROLLER, "the cluster has no controller now", retriable=True)
        try:
            return await self._cluster.connection(address, left_s)
        except ClusterError:
            self._cluster.ask_another_broker()
            raise

    async def ask(self, api: Api, values: Mapping[str, Any], subject: str, timeout_s: float, broker: int | None) -> Any:
        """Send a request about configs, which is safe to repeat, and return its only result.

        subject: the owner of the configs, for errors.  broker: the broker to ask; None: any broker.
        If a topic is missing, a second broker is asked, because the first one may be behind.

        Raises:
            ClusterError: BROKER_ID_NOT_REGISTERED, or the broker's refusal, or TIMED_OUT.
        """
        was_missing = False

        async def once(left_s: float) -> Any:
            nonlocal was_missing
            if broker is None:
                connection = await self._cluster.any_broker(left_s)
            else:
                connection = await self._broker(broker, left_s)
            reply = await self._cluster.ask(connection, api, VERSIONS[api], dict(values), left_s)
            results = list(reply.results if api == Api.DESCRIBE_CONFIGS else reply.responses)
            with connection.judged():
                if len(results) != 1:
                    raise RemoteProtocolError(f"{len(results)} results instead of one")
            if results[0].error_code:
                self._cluster.ask_another_broker()
                error = refused(results[0].error_code, subject, results[0].error_message)
                if was_missing:
                    final_if_missing(error)
                was_missing = error.code in _MISSING
                raise error
            return results[0]

        return await self._cluster.retrying(subject, timeout_s, once)

    async def _broker(self, broker_id: int, left_s: float) -> KafkaConnection:
        found = cluster_description(await self._metadata((), left_s))
        address = next((each.address for each in found.brokers if each.broker_id == broker_id), None)
        if not found.brokers:  # all brokers are starting or fenced
            raise ClusterError(ApiError.BROKER_NOT_AVAILABLE, "no broker serves yet", retriable=True)
        if address is None:
            raise no_broker(broker_id, found)
        return await self._cluster.connection(address, left_s)


def no_broker(broker_id: int, found: ClusterDescription) -> ClusterError:
    ids = ", ".join(str(each.broker_id) for each in found.brokers)
    message = f"broker {broker_id} does not exist or does not run; the brokers are {ids}"
    return ClusterError(ApiError.BROKER_ID_NOT_REGISTERED, message)


def _note_answers(changes: Changes, broker: KafkaConnection, asked: list[str], answers: Iterable[Any]) -> list[str]:
    """Store the answers in `changes`, and return the topics that must be requested again."""
    by_name = {answer.name: answer for answer in answers}
    again = []
    with broker.judged():
        if by_name.keys() != set(asked):
            raise RemoteProtocolError("the answer is about other topics than the request")
    for name in asked:
        answer = by_name[name]
        if not answer.error_code:
            changes.done[name] = answer
            changes.refusals.pop(name, None)
            continue
        error = final_if_missing(refused(answer.error_code, f"topic {name}", answer.error_message))
        changes.refusals[name] = error
        if answer.error_code == KafkaCode.REQUEST_TIMED_OUT:
            changes.unsure.add(name)
        if error.retriable:
            again.append(name)
    return again


def final_if_missing(error: ClusterError) -> ClusterError:
    """Return the error; mark it as not retriable if it reports a missing topic."""
    error.retriable = error.retriable and error.code not in _MISSING
    return error


def _listed(names: Collection[str]) -> str:
    few = ", ".join(list(names)[:3])
    return f"topic {few}" if len(names) == 1 else f"topics {few}{', …' if len(names) > 3 else ''}"


def broker_timeout_ms(limit_s: float) -> int:
    """Return the timeout to send to a broker: 90% of `limit_s`, so that the broker's own error arrives in time."""
    return max(1, int(limit_s * 900))
