"""AlterConfigs and IncrementalAlterConfigs, which are forwarded to the active controller, and ListConfigResources.

The types of resources with configs are topics (2), brokers (4) and groups (32).  A broker without a name means the
whole cluster.  Kafka's other types, broker loggers and client metrics, have no configs in quorumlog.
"""

from __future__ import annotations

from typing import Any, Final

from broker.kafka.admin import Forwarder, code_of, message_of, whole_failure
from metadata.control.configs import CHANGES_MAX, TABLES, Resource
from metadata.control.configs import describe_configs as described
from metadata.control.errors import Outcome
from metadata.image import ClusterImage
from metadata.image.topic_configs import ConfigKey, Kind
from metadata.records import ConfigScope
from quorumlog.wire import rpcs
from quorumlog.wire.errors import ApiError, KafkaCode
from quorumlog.wire.v1 import controller_pb2 as pb

_SET, _DELETE, _APPEND, _SUBTRACT = 0, 1, 2, 3
_LISTS: Final = (Kind.POLICIES, Kind.REPLICAS)
_TOPIC, _BROKER, _BROKER_LOGGER, _CLIENT_METRICS, _GROUP = 2, 4, 8, 16, 32
_LISTED_TYPES: Final = (_TOPIC, _BROKER, _BROKER_LOGGER, _CLIENT_METRICS, _GROUP)
_UNSUPPORTED_VERSION: Final = 35
_TOO_MANY: Final = pb.Result(
    error=ApiError.POLICY_VIOLATION, message=f"one request changes at most {CHANGES_MAX} configs"
)


def resource_of(resource: Any) -> Resource:
    """Return the resource that a request names; its scope is None if its type has no configs."""
    match resource.resource_type:
        case 2:
            return Resource(ConfigScope.TOPIC, resource.resource_name)
        case 4 if resource.resource_name:
            return Resource(ConfigScope.BROKER, resource.resource_name)
        case 4:
            return Resource(ConfigScope.CLUSTER, "")
        case 32:
            return Resource(ConfigScope.GROUP, resource.resource_name)
    return Resource(None, resource.resource_name)


def list_config_resources(request: Any, image: ClusterImage) -> dict[str, Any]:
    """Return the values of a ListConfigResources response.

    Version 0 asks only for client metrics, which do not exist.  From version 1 on, no type means all types.  Only
    groups with configs of their own are listed.
    """
    types = getattr(request, "resource_types", (_CLIENT_METRICS,)) or (_TOPIC, _BROKER, _GROUP)
    unknown = [each for each in types if each not in _LISTED_TYPES]
    if unknown:
        return {"error_code": _UNSUPPORTED_VERSION, "config_resources": ()}
    found = []
    if _TOPIC in types:
        found += [{"resource_name": name, "resource_type": _TOPIC} for name in sorted(image.topic_ids)]
    if _BROKER in types:
        found += [{"resource_name": str(each), "resource_type": _BROKER} for each in sorted(image.brokers)]
    if _GROUP in types:
        found += [{"resource_name": each, "resource_type": _GROUP} for each in sorted(image.group_configs)]
    return {"error_code": 0, "config_resources": found}


async def alter_configs(
    forwarder: Forwarder, request: Any, image: ClusterImage, timeout_ms: int, *, incremental: bool
) -> dict[str, Any]:
    """Forward an (Incremental)AlterConfigs request; return the values of its response.

    image: the metadata in which the current values of lists are looked up.
    incremental: False for AlterConfigs, which resets every config that it does not name.
    """
    deadline = forwarder.deadline(timeout_ms)
    message = pb.AlterConfigsRequest()
    message.header.validate_only = request.validate_only
    refusals: dict[int, pb.Result] = {}
    # The controller would refuse this as well, but the look-ups of lists before that would take seconds.
    too_many = sum(len(resource.configs) for resource in request.resources) > CHANGES_MAX
    for position, resource in enumerate(request.resources):
        changes = _TOO_MANY if too_many else _changes(resource, image, incremental)
        if isinstance(changes, pb.Result):
            refusals[position] = changes
        else:
            message.resources.append(changes)
    results: list[pb.Result] = []
    if message.resources:
        reply = await forwarder.forward(rpcs.ALTER_CONFIGS, message, deadline)
        failure = whole_failure(reply)
        if failure is not None:
            results = [failure] * len(message.resources)
        else:
            results = [each.result for each in reply.resources]
            if not request.validate_only:
                await forwarder.wait_for([reply.offset], deadline)
    answers = iter(results)
    responses = []
    for position, resource in enumerate(request.resources):
        result = refusals.get(position) or next(answers)
        code = _code(result.error, resource.resource_type)
        responses.append(
            {
                "error_code": code,
                "error_message": message_of(result) if code else None,
                "resource_type": resource.resource_type,
                "resource_name": resource.resource_name,
            }
        )
    return {"responses": responses}


def _code(error: str, resource_type: int) -> int:
    """Return the code of a result.  Kafka answers INVALID_REQUEST if a config of brokers is not valid."""
    if resource_type == _BROKER and error == ApiError.INVALID_CONFIG:
        return KafkaCode.INVALID_REQUEST
    return code_of(error)


def _changes(resource: Any, image: ClusterImage, incremental: bool) -> pb.ConfigChanges | pb.Result:
    asked = resource_of(resource)
    if asked.scope is None:
        return pb.Result(
            error=ApiError.INVALID_REQUEST, message="only topics (2), brokers (4) and groups (32) have configs"
        )
    changes = pb.ConfigChanges(replace_all=not incremental)
    changes.resource.scope = asked.scope.value  # type: ignore[assignment]
    changes.resource.name = asked.name
    for config in resource.configs:
        operation = getattr(config, "config_operation", _SET)
        known = TABLES[asked.scope].get(config.name)
        if operation == _DELETE:
            if known is not None:  # an unknown config is not set, so its removal has succeeded already
                changes.changes.add(key=config.name)
            continue
        if config.value is None:
            return pb.Result(error=ApiError.INVALID_CONFIG, message=f"{config.name[:60]!a} has no value")
        value = config.value
        if operation in (_APPEND, _SUBTRACT) and known is not None and known.kind in _LISTS:
            value = _changed_list(_present(image, asked, known), value, append=operation == _APPEND)
        elif operation != _SET:
            return pb.Result(error=ApiError.INVALID_CONFIG, message=f"{config.name[:60]!a} is not a list")
        changes.changes.add(key=config.name, value=value)
    return changes


def _present(image: ClusterImage, asked: Resource, config: ConfigKey) -> str:
    """Return the value in force.  For a missing resource, return the default; the controller refuses the resource."""
    found = described(image, asked)
    if isinstance(found, Outcome):
        return config.default
    return next(each.value for each in found if each.key == config.key)


def _changed_list(present: str, change: str, *, append: bool) -> str:
    items = [each for each in present.split(",") if each]
    changed = [each.strip() for each in change.split(",") if each.strip()]
    if append:
        items += [each for each in dict.fromkeys(changed) if each not in items]
    else:
        items = [each for each in items if each not in changed]
    return ",".join(items)
