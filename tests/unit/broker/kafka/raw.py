"""A client that sends single frames, and batches that are built byte by byte."""

from __future__ import annotations

import asyncio
from typing import Any, Self
from uuid import UUID

from quorumlog.wire import record_batch
from quorumlog.wire.kafka import codec
from quorumlog.wire.kafka.codec import Api


def batch(
    values: tuple[bytes, ...] = (b"x",), producer: tuple[int, int, int] = (-1, -1, -1), timestamp: int = 1_000
) -> bytes:
    """An uncompressed batch of records without key or headers; `producer`: id, epoch, base sequence."""
    body = b""
    for delta, value in enumerate(values):
        assert len(value) < 60, "one-byte varints only"
        record = b"\0\0" + bytes((2 * delta,)) + b"\x01" + bytes((2 * len(value),)) + value + b"\0"
        body += bytes((2 * len(record),)) + record
    header = record_batch.BatchHeader(
        0, record_batch.HEADER_SIZE - record_batch.LENGTH_END + len(body), -1, 2, 0, 0, len(values) - 1,
        timestamp, timestamp, *producer, len(values),
    )  # fmt: skip
    out = bytearray(record_batch.HEADER_SIZE) + body
    record_batch.seal(out, header)
    return bytes(out)


def opaque_batch(size: int) -> bytes:
    """Return a batch of `size` bytes whose header claims one record and compression."""
    header = record_batch.BatchHeader(
        0, size - record_batch.LENGTH_END, -1, 2, 0, int(record_batch.Codec.GZIP), 0, 1_000, 1_000, -1, -1, -1, 1
    )
    out = bytearray(size)
    record_batch.seal(out, header)
    return bytes(out)


class RawClient:
    """An async context manager.  `send` does not wait for a response; `receive` reads the next response."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._correlation_id = 0

    async def __aenter__(self) -> Self:
        self.reader, self.writer = await asyncio.open_connection("127.0.0.1", self._port)
        return self

    async def __aexit__(self, *_: object) -> None:
        self.writer.close()

    def send(self, api: int, version: int, values: dict[str, Any]) -> int:
        return self.send_body(api, version, codec.encode(codec.request(api, version, values)))

    def send_body(self, api: int, version: int, body: bytes) -> int:
        self._correlation_id += 1
        self.writer.write(codec.request_prefix(api, version, self._correlation_id, "raw", len(body)) + body)
        return self._correlation_id

    async def receive(self, api: int, version: int) -> tuple[int, Any]:
        """Return the correlation id and the response."""
        async with asyncio.timeout(10):
            size = int.from_bytes(await self.reader.readexactly(4), "big")
            frame = memoryview(await self.reader.readexactly(size))
        correlation_id, position = codec.parse_response_header(api, version, frame)
        return correlation_id, codec.decode(codec.response_schema(api, version), frame, position)

    async def ask(self, api: int, version: int, values: dict[str, Any]) -> Any:
        sent = self.send(api, version, values)
        received, response = await self.receive(api, version)
        assert received == sent
        return response

    def send_produce(
        self, topic: str | UUID, index: int, records: bytes | None, acks: int = -1, version: int = 9
    ) -> int:
        """Send a produce request; from version 13 on, `topic` is the topic's id, before it the topic's name."""
        named = {"name": topic} if isinstance(topic, str) else {"topic_id": topic}
        partition = {"index": index, "records": records}
        values = {"acks": acks, "timeout": 5000, "topic_data": [named | {"partition_data": [partition]}]}
        return self.send(Api.PRODUCE, version, values)

    async def produce(
        self, topic: str | UUID, index: int, records: bytes | None, acks: int = -1, version: int = 9
    ) -> Any:
        """Return the response for the only partition."""
        sent = self.send_produce(topic, index, records, acks, version)
        received, response = await self.receive(Api.PRODUCE, version)
        assert received == sent
        return response.responses[0].partition_responses[0]

    async def closed(self) -> bool:
        """Return True once the broker closes the connection, and False if it sends data first."""
        async with asyncio.timeout(10):
            try:
                return await self.reader.read(1) == b""
            except ConnectionError:
                return True
