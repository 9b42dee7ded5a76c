"""Configs over the Kafka protocol: read from this broker's image, changed by the active controller.

Kafka's types of resource are topics (2), brokers (4) and groups (32).  A broker without a name means the whole cluster.
Kafka's other types, loggers of brokers and client metrics, have no configs here.  As in Kafka, the description of this
broker also contains all values that it uses and that cannot be changed for it alone: its own settings, and the configs
of the cluster.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from broker.kafka.admin import Forwarder, code_of, message_of, whole_failure
from broker.kafka.api import NodeSetting, SettingType
from broker.kafka.new_configs import DEFAULT, SOURCES, STARTED_WITH
from metadata.control.configs import CHANGES_MAX, TABLES, Resource, keys_of, resource_key
from metadata.control.configs import describe_configs as described
from metadata.control.errors import Outcome
from metadata.image import ClusterImage, inherited_key
from metadata.image.topic_configs import ConfigKey, Kind
from metadata.records import ConfigScope
from quorumlog.wire import rpcs
from quorumlog.wire.errors import ApiError, KafkaCode
from quorumlog.wire.v1 import controller_pb2 as pb

_CONFIG_TYPES: Final = {
    Kind.BOOLEAN: 1,
    Kind.CHOICE: 2,
    Kind.VERSION: 2,
    Kind.OFFSET_RESET: 2,
    Kind.TOPIC: 2,
    Kind.TOPIC_PREFIX: 2,
    Kind.INT: 5,
    Kind.RATIO: 6,
    Kind.REPLICAS: 7,
    Kind.POLICIES: 7,
}
_SETTING_TYPES: Final = {
    SettingType.BOOLEAN: 1,
    SettingType.TEXT: 2,
    SettingType.INTEGER: 5,
    SettingType.LIST: 7,
}
_KAFKA_NAMES: Final = {"node.id": "broker.id", "data.dirs": "log.dirs"}
"""Kafka's names of settings, under which tools look for them as well."""
_SET, _DELETE, _APPEND, _SUBTRACT = 0, 1, 2, 3
_LISTS: Final = (Kind.POLICIES, Kind.REPLICAS)
_TOPIC, _BROKER, _BROKER_LOGGER, _CLIENT_METRICS, _GROUP = 2, 4, 8, 16, 32
_LISTED_TYPES: Final = (_TOPIC, _BROKER, _BROKER_LOGGER, _CLIENT_METRICS, _GROUP)
_UNSUPPORTED_VERSION: Final = 35
_TOO_MANY: Final = pb.Result(
    error=ApiError.POLICY_VIOLATION, message=f"one request changes at most {CHANGES_MAX} configs"
)


def _resource(resource: Any) -> Resource:
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


def describe_configs(
    request: Any, image: ClusterImage, node_id: int, settings: Sequence[NodeSetting]
) -> dict[str, Any]:
    """Return the values of a DescribeConfigs response.  settings: of this broker, whose id is `node_id`.

    A question that the request repeats is answered once, because a resource may have a hundred configs.
    """
    synonyms = getattr(request, "include_synonyms", False)
    own = Resource(ConfigScope.BROKER, str(node_id))
    results = []
    questions = {
        (each.resource_type, each.resource_name, each.configuration_keys or ()): each for each in request.resources
    }
    for resource in questions.values():
        result = _described(resource, image, synonyms)
        if _resource(resource) == own and not result["error_code"]:
            wanted = resource.configuration_keys
            others = [*_of_process(settings, synonyms), *_of_cluster(image, synonyms)]
            result["configs"] += [each for each in others if not wanted or each["name"] in wanted]
        results.append(result)
    return {"results": results}


def _of_process(settings: Sequence[NodeSetting], synonyms: bool) -> list[dict[str, Any]]:
    rows = []
    for setting in settings:
        values = [(setting.value, STARTED_WITH)] if setting.is_set else []
        values.append((setting.default, DEFAULT))
        names = [setting.name, *([_KAFKA_NAMES[setting.name]] if setting.name in _KAFKA_NAMES else [])]
        rows += [
            _fixed_row(name, values, _SETTING_TYPES[setting.type], setting.documentation, synonyms) for name in names
        ]
    return rows


def _of_cluster(image: ClusterImage, synonyms: bool) -> list[dict[str, Any]]:
    cluster = image.config(ConfigScope.CLUSTER, "")
    rows = []
    for config in TABLES[ConfigScope.CLUSTER].values():
        values = [(cluster[config.key], SOURCES["cluster"])] if config.key in cluster else []
        values.append((config.default, DEFAULT))
        documentation = f"must be {config.allowed}; set for the cluster"
        rows.append(_fixed_row(config.key, values, _CONFIG_TYPES[config.kind], documentation, synonyms))
    return rows


def _fixed_row(
    name: str, values: Sequence[tuple[str | None, int]], config_type: int, documentation: str, synonyms: bool
) -> dict[str, Any]:
    """Return a config that cannot be changed for one broker.  values: with their sources; the first is in force."""
    value, source = values[0]
    known = [{"name": name, "value": each, "source": of} for each, of in values if each is not None]
    return {
        "name": name,
        "value": value,
        "read_only": True,
        "config_source": source,
        "is_default": source == DEFAULT,
        "synonyms": known if synonyms else [],
        "config_type": config_type,
        "documentation": documentation,
    }


def _described(resource: Any, image: ClusterImage, synonyms: bool) -> dict[str, Any]:
    common = {"resource_type": resource.resource_type, "resource_name": resource.resource_name}
    asked = _resource(resource)
    found = described(image, asked)
    if isinstance(found, Outcome):
        return {**common, "error_code": found.error.kafka, "error_message": found.message}
    key = resource_key(image, asked)
    assert not isinstance(key, Outcome), f"{asked} was found"
    scope, name = key
    table = keys_of(image, scope)
    wanted = resource.configuration_keys
    configs = [
        {
            "name": each.key,
            "value": each.value,
            "config_source": SOURCES[each.source],
            "is_default": SOURCES[each.source] == DEFAULT,
            "synonyms": _synonyms(image, scope, name, table[each.key]) if synonyms else [],
            "config_type": _CONFIG_TYPES[table[each.key].kind],
            "documentation": f"must be {each.allowed}",
        }
        for each in found
        if not wanted or each.key in wanted
    ]
    return {**common, "error_code": 0, "configs": configs}


def _synonyms(image: ClusterImage, scope: ConfigScope, name: str, config: ConfigKey) -> list[dict[str, Any]]:
    """Return every value that a config has, as records and by default; the first one is in force."""
    cluster_key = inherited_key(config.key) if scope is ConfigScope.GROUP else config.key
    values = [(scope, config.key, image.config(scope, name).get(config.key))]
    if scope in (ConfigScope.TOPIC, ConfigScope.GROUP) and cluster_key is not None:
        values.append((ConfigScope.CLUSTER, cluster_key, image.config(ConfigScope.CLUSTER, "").get(cluster_key)))
    found = [(key, value, SOURCES[each.name.lower()]) for each, key, value in values if value is not None]
    origin = config if cluster_key is None else TABLES[ConfigScope.CLUSTER].get(cluster_key, config)
    found.append((cluster_key or config.key, origin.default, DEFAULT))
    return [{"name": key, "value": value, "source": source} for key, value, source in found]


def list_config_resources(request: Any, image: ClusterImage) -> dict[str, Any]:
    """Return the values of a ListConfigResources response.

    Version 0 asks for client metrics alone, of which there are none.  From version 1 on, no type means all types.
    Groups are those with configs of their own.
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
    asked = _resource(resource)
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
    """Return the value in force; the default for a resource that does not exist, which the controller refuses."""
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
