"""Connections to brokers, one for each, on which coordinators send requests."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, TypeVar

from quorumlog.client.kafka import KafkaConnection
from quorumlog.errors import ClusterError, RemoteProtocolError
from quorumlog.wire.errors import ApiError
from quorumlog.wire.kafka import produce
from quorumlog.wire.kafka.codec import Api
from quorumlog.wire.kafka.produce import ProducedPartition

_PRODUCE_VERSION: Final = 9
_ACKS_ALL: Final = -1

T = TypeVar("T")


class BrokerLinks:
    """One connection to each broker, made when it is first needed.

    resolve: returns host and port of a broker's inter-broker listener; None while it is not registered.
    """

    def __init__(self, resolve: Callable[[int], tuple[str, int] | None]) -> None:
        self._resolve = resolve
        self._is_closed = False
        self._links: dict[int, tuple[tuple[str, int], asyncio.Future[KafkaConnection]]] = {}

    async def ask(self, broker_id: int, api: Api, version: int, values: Mapping[str, Any], timeout_s: float) -> Any:
        """Send a request, and return the response.

        Raises: ClusterError: the broker is not registered or unavailable, or did not answer within `timeout_s`.
        """
        return await self._using(broker_id, timeout_s, lambda each: each.ask(api, version, values, timeout_s))

    async def produce(
        self, broker_id: int, batch: tuple[str, int, bytearray], timeout_ms: int, timeout_s: float
    ) -> ProducedPartition:
        """Make a broker append a batch (topic, index, bytes) with acks=all.

        Return the result of the partition, which may be an error.
        timeout_ms: how long the broker waits for the replicas in sync.
        timeout_s: how long this call waits for the broker.

        Raises: ClusterError: the broker is not registered or unavailable, or did not answer within `timeout_s`.
        """
        body = produce.encode_request(_PRODUCE_VERSION, _ACKS_ALL, timeout_ms, [batch], None)

        async def send(connection: KafkaConnection) -> ProducedPartition:
            reply = await connection.call(Api.PRODUCE, _PRODUCE_VERSION, body, timeout_s)
            with connection.judged():
                results = produce.decode_response(reply, _PRODUCE_VERSION)
                if len(results) != 1:
                    raise RemoteProtocolError("the answer to Produce contains other partitions than the request")
            return results[0]

        return await self._using(broker_id, timeout_s, send)

    async def _using(self, broker_id: int, timeout_s: float, work: Callable[[KafkaConnection], Awaitable[T]]) -> T:
        """Use the connection to a broker, and drop the connection if the work fails.

        If no answer arrives in time, the broker may have lost its end of the connection.  So a caller should wait until
        the timeout.  If the caller ends this call earlier, a lost connection stays in use until a later call times out.
        """
        connection: KafkaConnection | None = None
        try:
            async with asyncio.timeout(timeout_s):  # includes the wait for another call that connects
                connection = await self._connection(broker_id, timeout_s)
                return await work(connection)
        except (ClusterError, TimeoutError) as error:
            if connection is not None:
                await self._drop(broker_id, connection)
            if isinstance(error, ClusterError):
                raise
            message = f"broker {broker_id} did not answer within {timeout_s:g} s"
            raise ClusterError(ApiError.REQUEST_TIMED_OUT, message, retriable=True) from error

    async def close(self) -> None:
        """Close all connections.  A connection that is being established is closed once it exists.  Idempotent."""
        self._is_closed = True
        links, self._links = self._links, {}
        for _, link in links.values():
            await _close(link)

    async def _connection(self, broker_id: int, timeout_s: float) -> KafkaConnection:
        address = self._resolve(broker_id)
        if address is None:
            raise ClusterError(ApiError.BROKER_UNAVAILABLE, f"broker {broker_id} is not registered", retriable=True)
        known = self._links.get(broker_id)
        while known is not None and known[0] == address:
            connection = await asyncio.shield(known[1])
            if connection.is_open:
                return connection
            waited, known = known, self._links.get(broker_id)
            if known is waited:
                break  # no other call has begun to replace the closed connection
        link: asyncio.Future[KafkaConnection] = asyncio.get_running_loop().create_future()
        link.add_done_callback(_retrieve_exception)
        if self._is_closed:
            raise _interrupted(broker_id)
        self._links[broker_id] = address, link
        connection = KafkaConnection(*address, client_id="quorumlog-coordinator")
        try:
            if known is not None:
                await _close(known[1])
            await connection.connect(timeout_s)
        except BaseException as error:
            if self._links.get(broker_id, (None, None))[1] is link:
                del self._links[broker_id]
            failed = error if isinstance(error, ClusterError) else _interrupted(broker_id)
            link.set_exception(failed)
            raise
        link.set_result(connection)
        if self._links.get(broker_id, (None, None))[1] is not link:  # closed meanwhile, or the address has changed
            await connection.close()
        return connection

    async def _drop(self, broker_id: int, connection: KafkaConnection) -> None:
        known = self._links.get(broker_id)
        if known is not None and known[1].done() and known[1].exception() is None and known[1].result() is connection:
            del self._links[broker_id]
        await connection.close()


async def _close(link: asyncio.Future[KafkaConnection]) -> None:
    """Close the connection if it is established.  Otherwise the call that establishes the connection closes it."""
    if link.done() and not link.cancelled() and link.exception() is None:
        await link.result().close()


def _interrupted(broker_id: int) -> ClusterError:
    return ClusterError(
        ApiError.BROKER_UNAVAILABLE, f"connecting to broker {broker_id} was interrupted", retriable=True
    )


def _retrieve_exception(link: asyncio.Future[KafkaConnection]) -> None:
    if not link.cancelled():
        link.exception()  # otherwise asyncio logs an exception that nobody has retrieved
