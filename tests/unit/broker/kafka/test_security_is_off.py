"""Requests about security and quotas, which a broker answers although it has neither."""

from __future__ import annotations

from typing import Any

import pytest

from quorumlog.wire.errors import KafkaCode
from quorumlog.wire.kafka.codec import Api
from tests.unit.broker.kafka.conftest import Served
from tests.unit.broker.kafka.raw import RawClient


async def ask(served: Served, api: Api, version: int, values: dict[str, Any]) -> Any:
    async with RawClient(served.port) as client:
        return await client.ask(api, version, values)


# -- Access control lists


@pytest.mark.parametrize("version", [1, 2, 3])
async def test_each_request_about_acls_is_refused_with_security_disabled(served: Served, version: int) -> None:
    described = await ask(served, Api.DESCRIBE_ACLS, version, {"resource_type_filter": 1, "operation": 1})
    assert (int(described.error_code), described.resources) == (KafkaCode.SECURITY_DISABLED, ())
    created = await ask(served, Api.CREATE_ACLS, version, {"creations": [{"resource_name": "a"}] * 2})
    assert [int(each.error_code) for each in created.results] == [KafkaCode.SECURITY_DISABLED] * 2
    deleted = await ask(served, Api.DELETE_ACLS, version, {"filters": [{}, {}, {}]})
    assert [int(each.error_code) for each in deleted.filter_results] == [KafkaCode.SECURITY_DISABLED] * 3


@pytest.mark.parametrize(
    "api",
    [
        Api.CREATE_DELEGATION_TOKEN,
        Api.RENEW_DELEGATION_TOKEN,
        Api.EXPIRE_DELEGATION_TOKEN,
        Api.DESCRIBE_DELEGATION_TOKEN,
    ],
)
async def test_requests_for_delegation_tokens_are_refused(served: Served, api: Api) -> None:
    response = await ask(served, api, 2, {})
    assert int(response.error_code) == KafkaCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED


# -- SCRAM credentials


async def test_no_user_has_scram_credentials(served: Served) -> None:
    everyone = await ask(served, Api.DESCRIBE_USER_SCRAM_CREDENTIALS, 0, {"users": None})
    assert (int(everyone.error_code), everyone.results) == (0, ())
    names = [{"name": name} for name in ("a", "b", "b")]
    some = await ask(served, Api.DESCRIBE_USER_SCRAM_CREDENTIALS, 0, {"users": names})
    found = {each.user: int(each.error_code) for each in some.results}
    assert found == {"a": KafkaCode.RESOURCE_NOT_FOUND, "b": KafkaCode.DUPLICATE_RESOURCE}


async def test_changes_of_scram_credentials_are_refused(served: Served) -> None:
    values = {
        "deletions": [
            {"name": "gone", "mechanism": 1},
            {"name": "odd", "mechanism": 9},
            {"name": "both", "mechanism": 1},
        ],
        "upsertions": [
            {"name": "new", "mechanism": 2, "iterations": 8192},
            {"name": "", "mechanism": 1},
            {"name": "both", "mechanism": 2},
        ],
    }
    response = await ask(served, Api.ALTER_USER_SCRAM_CREDENTIALS, 0, values)
    assert {each.user: int(each.error_code) for each in response.results} == {
        "gone": KafkaCode.RESOURCE_NOT_FOUND,
        "odd": KafkaCode.UNSUPPORTED_SASL_MECHANISM,
        "both": KafkaCode.DUPLICATE_RESOURCE,
        "new": KafkaCode.SECURITY_DISABLED,
        "": KafkaCode.UNACCEPTABLE_CREDENTIAL,
    }
    assert all(each.error_message for each in response.results)


# -- Quotas


def component(kind: str, match_type: int = 2, match: str | None = None) -> dict[str, Any]:
    return {"entity_type": kind, "match_type": match_type, "match": match}


async def test_no_entity_has_quotas(served: Served) -> None:
    for components in ([], [component("user"), component("client-id", 0, "me")], [component("ip", 1)]):
        response = await ask(served, Api.DESCRIBE_CLIENT_QUOTAS, 1, {"components": components})
        assert (int(response.error_code), response.entries) == (0, ())


@pytest.mark.parametrize(
    ("components", "code"),
    [
        ([component("")], KafkaCode.INVALID_REQUEST),
        ([component("planet")], KafkaCode.UNSUPPORTED_VERSION),
        ([component("user"), component("user")], KafkaCode.INVALID_REQUEST),
        ([component("user", 3)], KafkaCode.INVALID_REQUEST),
        ([component("user", 0)], KafkaCode.INVALID_REQUEST),
        ([component("user", 1, "me")], KafkaCode.INVALID_REQUEST),
        ([component("ip"), component("user")], KafkaCode.INVALID_REQUEST),
    ],
)
async def test_an_invalid_filter_of_quotas_is_refused(
    served: Served, components: list[dict[str, Any]], code: KafkaCode
) -> None:
    response = await ask(served, Api.DESCRIBE_CLIENT_QUOTAS, 0, {"components": components})
    assert (int(response.error_code), response.entries) == (code, None)
    assert response.error_message


@pytest.mark.parametrize("version", [0, 1])
async def test_a_refused_filter_with_a_long_name_is_answered(served: Served, version: int) -> None:
    components = [{"entity_type": "user", "match_type": 1, "match": "\u00e9" * 16_000}]
    values = {"components": components, "strict": False}
    response = await ask(served, Api.DESCRIBE_CLIENT_QUOTAS, version, values)
    assert int(response.error_code) == KafkaCode.INVALID_REQUEST
    assert len(response.error_message) < 1_000


async def test_setting_a_quota_is_refused_and_removing_a_missing_quota_succeeds(served: Served) -> None:
    user = [{"entity_type": "user", "entity_name": "me"}]
    rate = {"key": "producer_byte_rate", "value": 1.0}
    entries = [
        {"entity": user, "ops": [{**rate, "remove": False}]},
        {"entity": user, "ops": [{**rate, "remove": True}]},
        {"entity": [], "ops": []},
        {"entity": user * 2, "ops": []},
        {"entity": [{"entity_type": "planet", "entity_name": None}], "ops": []},
    ]
    response = await ask(served, Api.ALTER_CLIENT_QUOTAS, 1, {"entries": entries})
    assert [int(each.error_code) for each in response.entries] == [
        KafkaCode.POLICY_VIOLATION,
        0,
        KafkaCode.INVALID_REQUEST,
        KafkaCode.INVALID_REQUEST,
        KafkaCode.INVALID_REQUEST,
    ]
    assert [each.entity_name for each in response.entries[0].entity] == ["me"]
