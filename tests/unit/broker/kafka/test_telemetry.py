"""Telemetry of clients is off (KIP-714), but a client that asks is answered."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from quorumlog.wire.errors import KafkaCode
from quorumlog.wire.kafka.codec import Api
from tests.unit.broker.kafka.conftest import Served
from tests.unit.broker.kafka.raw import RawClient

ID = UUID(int=7)


async def ask(served: Served, api: Api, values: dict[str, Any]) -> Any:
    async with RawClient(served.port) as client:
        return await client.ask(api, 0, values)


async def test_api_versions_does_not_list_the_telemetry_requests(served: Served) -> None:
    async with RawClient(served.port) as client:
        software = {"client_software_name": "n", "client_software_version": "1"}
        listed = {each.api_key for each in (await client.ask(Api.API_VERSIONS, 4, software)).api_keys}
    assert Api.PRODUCE in listed
    assert not listed & {Api.GET_TELEMETRY_SUBSCRIPTIONS, Api.PUSH_TELEMETRY}


async def test_a_telemetry_subscription_requests_no_metrics(served: Served) -> None:
    first = await ask(served, Api.GET_TELEMETRY_SUBSCRIPTIONS, {"client_instance_id": ID})
    again = await ask(served, Api.GET_TELEMETRY_SUBSCRIPTIONS, {"client_instance_id": ID})
    assert (int(first.error_code), first.client_instance_id, first.requested_metrics) == (0, ID, ())
    assert first.subscription_id == again.subscription_id
    named = [await ask(served, Api.GET_TELEMETRY_SUBSCRIPTIONS, {"client_instance_id": None}) for _ in range(2)]
    assert None not in {each.client_instance_id for each in named}
    assert named[0].client_instance_id != named[1].client_instance_id


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({}, KafkaCode.NONE),
        ({"client_instance_id": None}, KafkaCode.INVALID_REQUEST),
        ({"client_instance_id": UUID(int=8)}, KafkaCode.UNKNOWN_SUBSCRIPTION_ID),
        ({"compression_type": 9}, KafkaCode.UNSUPPORTED_COMPRESSION_TYPE),
        ({"metrics": bytes((1 << 20) + 1)}, KafkaCode.TELEMETRY_TOO_LARGE),
    ],
)
async def test_pushed_metrics_are_accepted_only_in_a_valid_request(
    served: Served, changes: dict[str, Any], code: KafkaCode
) -> None:
    subscription = await ask(served, Api.GET_TELEMETRY_SUBSCRIPTIONS, {"client_instance_id": ID})
    pushed = {"client_instance_id": ID, "subscription_id": subscription.subscription_id, "metrics": b"m", **changes}
    response = await ask(served, Api.PUSH_TELEMETRY, pushed)
    assert int(response.error_code) == code
