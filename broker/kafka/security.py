"""Requests about security and quotas, answered as a Kafka broker answers them while security is off.

quorumlog has no authorizer, no SASL and no quotas.  Therefore descriptions are empty, and removals find nothing.
Changes are refused, because they would have no effect.
"""

from __future__ import annotations

from collections import Counter
from typing import Any, Final

from quorumlog.wire.errors import KafkaCode

_NO_AUTHORIZER: Final = {
    "error_code": KafkaCode.SECURITY_DISABLED,
    "error_message": "no authorizer exists, so every client may do everything",
}
_NO_SASL: Final = "clients are not authenticated, so no credentials are stored"
_NO_QUOTAS: Final = "quotas for clients are not supported"
_MECHANISMS: Final = (1, 2)
"""SCRAM-SHA-256, SCRAM-SHA-512."""
_ENTITY_TYPES: Final = ("user", "client-id", "ip")
_MATCH_TYPES: Final = (0, 1, 2)
"""Exact, the default entity, any."""
_EXACT: Final = 0


# --- access control lists ---


def describe_acls(request: Any) -> dict[str, Any]:
    return {**_NO_AUTHORIZER, "resources": ()}


def create_acls(request: Any) -> dict[str, Any]:
    return {"results": [_NO_AUTHORIZER for _ in request.creations]}


def delete_acls(request: Any) -> dict[str, Any]:
    return {"filter_results": [{**_NO_AUTHORIZER, "matching_acls": ()} for _ in request.filters]}


# --- SCRAM credentials ---


def describe_scram(request: Any) -> dict[str, Any]:
    """Return the values of a DescribeUserScramCredentials response: no user has credentials."""
    counts = Counter(user.name for user in request.users or ())
    results = []
    for name, count in counts.items():
        code, text = KafkaCode.RESOURCE_NOT_FOUND, f"the user {name[:60]!a} has no credentials"
        if count > 1:
            code, text = KafkaCode.DUPLICATE_RESOURCE, f"the request names the user {name[:60]!a} {count} times"
        results.append({"user": name, "error_code": code, "error_message": text})
    return {"error_code": 0, "results": results}


def alter_scram(request: Any) -> dict[str, Any]:
    """Return the values of an AlterUserScramCredentials response: one result for each user."""
    changes = [*request.deletions, *request.upsertions]
    counts = Counter(change.name for change in changes)
    results: dict[str, dict[str, Any]] = {}
    for change in changes:
        code, text = _scram_refusal(change, counts[change.name])
        results.setdefault(change.name, {"user": change.name, "error_code": code, "error_message": text})
    return {"results": list(results.values())}


def _scram_refusal(change: Any, count: int) -> tuple[KafkaCode, str]:
    if not change.name:
        return KafkaCode.UNACCEPTABLE_CREDENTIAL, "the name of a user is empty"
    if change.mechanism not in _MECHANISMS:
        return KafkaCode.UNSUPPORTED_SASL_MECHANISM, f"mechanism {change.mechanism} does not exist"
    if count > 1:
        return KafkaCode.DUPLICATE_RESOURCE, f"the request changes the user {count} times"
    if hasattr(change, "iterations"):
        return KafkaCode.SECURITY_DISABLED, _NO_SASL
    return KafkaCode.RESOURCE_NOT_FOUND, "the user has no credentials"


# --- quotas ---


def describe_quotas(request: Any) -> dict[str, Any]:
    """Return the values of a DescribeClientQuotas response: no entity has quotas."""
    refusal = _filter_refusal(request.components)
    if refusal is not None:
        return {"error_code": refusal[0], "error_message": refusal[1], "entries": None}
    return {"error_code": 0, "entries": ()}


def _filter_refusal(components: Any) -> tuple[KafkaCode, str] | None:
    types = Counter(each.entity_type for each in components)
    for each in components:
        kind = each.entity_type
        if not kind:
            return KafkaCode.INVALID_REQUEST, "the type of an entity is empty"
        if kind not in _ENTITY_TYPES:
            return KafkaCode.UNSUPPORTED_VERSION, f"entities of the type {kind[:60]!a} do not exist"
        if types[kind] > 1:
            return KafkaCode.INVALID_REQUEST, f"the filter names the type {kind} {types[kind]} times"
        if each.match_type not in _MATCH_TYPES:
            return KafkaCode.INVALID_REQUEST, f"match type {each.match_type} does not exist"
        if (each.match is not None) != (each.match_type == _EXACT):
            name = (each.match or "")[:60]
            return KafkaCode.INVALID_REQUEST, f"match type {each.match_type} does not permit the name {name!a}"
    if "ip" in types and len(types) > 1:
        return KafkaCode.INVALID_REQUEST, "the type ip cannot be combined with others"
    return None


def alter_quotas(request: Any) -> dict[str, Any]:
    """Return the values of an AlterClientQuotas response.  The removal of a quota that does not exist succeeds."""
    entries = []
    for entry in request.entries:
        code, text = _quota_refusal(entry) or (KafkaCode.NONE, None)
        entity = [{"entity_type": each.entity_type, "entity_name": each.entity_name} for each in entry.entity]
        entries.append({"error_code": code, "error_message": text, "entity": entity})
    return {"entries": entries}


def _quota_refusal(entry: Any) -> tuple[KafkaCode, str] | None:
    types = Counter(each.entity_type for each in entry.entity)
    if not types:
        return KafkaCode.INVALID_REQUEST, "the quota names no entity"
    for kind, count in types.items():
        if kind not in _ENTITY_TYPES:
            return KafkaCode.INVALID_REQUEST, f"entities of the type {kind[:60]!a} do not exist"
        if count > 1:
            return KafkaCode.INVALID_REQUEST, f"the entity names the type {kind} {count} times"
    if not all(each.remove for each in entry.ops):
        return KafkaCode.POLICY_VIOLATION, _NO_QUOTAS
    return None


# --- delegation tokens ---


def refuse_token(request: Any) -> dict[str, Any]:
    """Return the values of a response about delegation tokens, which are possible only with authentication."""
    return {"error_code": KafkaCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED}
