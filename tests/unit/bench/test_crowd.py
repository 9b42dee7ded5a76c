"""The requests of many connections, and the check of their replies."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, cast

import pytest

from bench.crowd import VERSIONS, Requests
from quorumlog.client.kafka import KafkaConnection
from quorumlog.wire.kafka import codec
from quorumlog.wire.kafka.codec import Api

TOPIC = "crowd"
LEADER, OTHER = 9001, 9002


class _Broker:
    """Replies to each request with the reply for its api, and notes the requests."""

    def __init__(self, port: int, replies: Mapping[Api, bytes]) -> None:
        self.port = port
        self.peer = f"127.0.0.1:{port}"
        self.requests: list[tuple[Api, bytes]] = []
        self._replies = replies

    async def call(self, api: Api, version: int, body: Sequence[bytes], timeout_s: float) -> memoryview:
        assert version == VERSIONS[api]
        self.requests.append((api, b"".join(body)))
        return memoryview(self._replies[api])


def _replies(*, topic: int = 0, fetch: int = 0, leader: int = 1) -> dict[Api, bytes]:
    """Return a reply of each kind with these error codes."""
    partition = {"error_code": 0, "partition_index": 4, "leader_id": leader}
    brokers = [{"node_id": node, "host": "127.0.0.1", "port": port} for node, port in ((1, LEADER), (2, OTHER))]
    fetched = {"partition_index": 4, "error_code": fetch, "high_watermark": 0, "records": b""}
    values: dict[Api, dict[str, Any]] = {
        Api.API_VERSIONS: {"error_code": 0, "api_keys": []},
        Api.METADATA: {
            "brokers": brokers,
            "cluster_id": "c",
            "topics": [{"error_code": topic, "name": TOPIC, "partitions": [partition]}],
        },
        Api.FETCH: {"error_code": 0, "responses": [{"topic": TOPIC, "partitions": [fetched]}]},
    }
    return {
        api: bytes(codec.encode(codec.make(codec.response_schema(api, VERSIONS[api]), each)))
        for api, each in values.items()
    }


def _run(requests: Requests, broker: _Broker, *fetches: bool) -> None:
    async def run() -> None:
        connection = cast(KafkaConnection, broker)
        await requests.greet(connection)
        for is_fetch in fetches:
            await requests.ask(connection, is_fetch=is_fetch)

    asyncio.run(run())


def test_a_connection_begins_with_the_requests_of_a_client_and_then_fetches_what_its_broker_leads() -> None:
    broker = _Broker(LEADER, _replies())
    _run(Requests(TOPIC), broker, True, False)
    assert [api for api, _ in broker.requests] == [Api.API_VERSIONS, Api.METADATA, Api.FETCH, Api.METADATA]
    fetch = codec.decode(codec.request_schema(Api.FETCH, VERSIONS[Api.FETCH]), memoryview(broker.requests[2][1]), 0)
    assert [(each.topic, [one.partition for one in each.partitions]) for each in fetch.topics] == [(TOPIC, [4])]
    assert fetch.max_wait.total_seconds() == 0


def test_a_broker_that_leads_no_partition_is_only_asked_for_metadata() -> None:
    broker = _Broker(OTHER, _replies())
    _run(Requests(TOPIC), broker, True)
    assert [api for api, _ in broker.requests] == [Api.API_VERSIONS, Api.METADATA, Api.METADATA]


@pytest.mark.parametrize(
    ("replies", "message"),
    [(_replies(topic=3), r"refused METADATA of crowd: \[3\]"), (_replies(fetch=1), r"refused FETCH of crowd: \[1\]")],
)
def test_a_refused_request_fails_the_measurement(replies: dict[Api, bytes], message: str) -> None:
    with pytest.raises(RuntimeError, match=message):
        _run(Requests(TOPIC), _Broker(LEADER, replies), True)


def test_a_moved_leadership_is_an_answer_and_a_partition_without_a_leader_is_not_fetched() -> None:
    _run(Requests(TOPIC), _Broker(LEADER, _replies(fetch=6)), True)
    broker = _Broker(LEADER, _replies(leader=-1))
    _run(Requests(TOPIC), broker, True)
    assert broker.requests[-1][0] is Api.METADATA


def test_a_reply_is_decoded_only_once(monkeypatch: pytest.MonkeyPatch) -> None:
    decoded: list[Any] = []
    decode = codec.decode

    def counted(schema: Any, frame: memoryview, position: int) -> Any:
        decoded.append(schema)
        return decode(schema, frame, position)

    monkeypatch.setattr(codec, "decode", counted)
    _run(Requests(TOPIC), _Broker(LEADER, _replies()), True, False, True, False, True)
    assert len(decoded) == 3, "ApiVersions, Metadata and Fetch"
