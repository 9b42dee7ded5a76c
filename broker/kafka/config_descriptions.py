"""DescribeConfigs: the configs of topics, brokers, groups and the cluster, read from this broker's image.

As in Kafka, the description of this broker also contains all values that it uses and that cannot be changed for it
alone: its own settings, and the configs of the cluster.

A tool may ask for all topics of a cluster, which together have hundreds of thousands of configs.  So each distinct
config is encoded once, by hand, and other tasks run between the resources.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

from broker.kafka.api import NodeSetting, SettingType
from broker.kafka.configs import resource_of
from broker.kafka.new_configs import DEFAULT, SOURCES, STARTED_WITH
from metadata.control.configs import TABLES, Resource, describe_config, keys_of, resource_key
from metadata.control.errors import Outcome
from metadata.image import ClusterImage, ConfigKey, inherited_key
from metadata.image.topic_configs import Kind
from metadata.records import ConfigScope
from quorumlog.runtime.turns import Turn
from quorumlog.wire.errors import KafkaCode
from quorumlog.wire.kafka.buffer import count, nullable_string, string

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
"""Kafka's names of settings.  Tools look for the settings under these names as well."""
_FIRST_WITH_DOCUMENTATION: Final = 3
_FIRST_FLEXIBLE: Final = 4
_NO_THROTTLE: Final = bytes(4)
_INT8: Final = struct.Struct(">b")
_INT16: Final = struct.Struct(">h")
_FLAGS: Final = struct.Struct(">?b?")
"""read_only, config_source, is_sensitive"""


class _Value(NamedTuple):
    """A value that a config has at one of its sources.  name: the name of the config at that source."""

    name: str
    value: str
    source: int


class _Row(NamedTuple):
    """A config in the form of a response.  value, source: the value in force, and its source."""

    name: str
    value: str | None
    read_only: bool
    source: int
    synonyms: Sequence[_Value]
    type: int
    documentation: str


async def describe_configs(
    request: Any, version: int, image: ClusterImage, node_id: int, settings: Sequence[NodeSetting]
) -> bytearray:
    """Return the encoded DescribeConfigs response.  settings: the settings of this broker, whose id is `node_id`.

    An entry that the request repeats is answered once, because a resource may have a hundred configs.
    """
    questions = {
        (each.resource_type, each.resource_name, each.configuration_keys or ()): each for each in request.resources
    }
    writer = _Writer(request, version, image, node_id, settings)
    out = bytearray(_NO_THROTTLE + count(len(questions), writer.flexible))
    turn = Turn()
    for resource in questions.values():
        writer.write(out, resource)
        await turn.passed()
    return out + writer.end


class _Writer:
    def __init__(
        self, request: Any, version: int, image: ClusterImage, node_id: int, settings: Sequence[NodeSetting]
    ) -> None:
        self.flexible = version >= _FIRST_FLEXIBLE
        self.end = b"\0" if self.flexible else b""
        self._synonyms: bool = request.include_synonyms
        self._is_documented = version >= _FIRST_WITH_DOCUMENTATION
        self._documentation: bool = self._is_documented and request.include_documentation
        self._image = image
        self._this_broker = Resource(ConfigScope.BROKER, str(node_id))
        self._settings = settings
        self._tables = {scope: keys_of(image, scope) for scope in TABLES}
        self._encoded: dict[tuple[ConfigScope, str, str | None], bytes] = {}
        """Encoded configs, by scope, key and the value that is set for the resource itself.  Within one image, an
        encoded config depends on nothing else."""

    def write(self, out: bytearray, resource: Any) -> None:
        """Write the description of one resource, or the refusal."""
        asked = resource_of(resource)
        found = resource_key(self._image, asked)
        if isinstance(found, Outcome):
            out += _INT16.pack(found.error.kafka) + nullable_string(found.message, self.flexible)
            rows = []
        else:
            out += _INT16.pack(KafkaCode.NONE) + nullable_string(None, self.flexible)
            rows = self._rows(*found, resource.configuration_keys)
            if asked == self._this_broker:
                rows += self._of_this_broker(resource.configuration_keys)
        out += _INT8.pack(resource.resource_type) + string(resource.resource_name, self.flexible)
        out += count(len(rows), self.flexible)
        out += b"".join(rows)
        out += self.end

    def _rows(self, scope: ConfigScope, name: str, wanted: Sequence[str]) -> list[bytes]:
        table = self._tables[scope]
        own = self._image.config(scope, name)
        rows = []
        for key in table if not wanted else [key for key in table if key in wanted]:
            value = own.get(key)
            row = self._encoded.get((scope, key, value))
            if row is None:
                row = self._encoded[scope, key, value] = self._encode(self._row(scope, value, table[key]))
            rows.append(row)
        return rows

    def _of_this_broker(self, wanted: Sequence[str]) -> list[bytes]:
        rows = [*_of_process(self._settings), *_of_cluster(self._image)]
        return [self._encode(each) for each in rows if not wanted or each.name in wanted]

    def _row(self, scope: ConfigScope, own: str | None, config: ConfigKey) -> _Row:
        """own: the value that is set for the resource itself, or None."""
        found = describe_config(self._image, scope, own, config)
        return _Row(
            found.key,
            found.value,
            False,
            SOURCES[found.source],
            _synonyms(self._image, scope, own, config),
            _CONFIG_TYPES[config.kind],
            f"must be {found.allowed}",
        )

    def _encode(self, row: _Row) -> bytes:
        flexible, end = self.flexible, self.end
        synonyms = row.synonyms if self._synonyms else ()
        out = bytearray()
        out += string(row.name, flexible) + nullable_string(row.value, flexible)
        out += _FLAGS.pack(row.read_only, row.source, False)
        out += count(len(synonyms), flexible)
        for each in synonyms:
            out += string(each.name, flexible) + nullable_string(each.value, flexible) + _INT8.pack(each.source) + end
        if self._is_documented:
            out += _INT8.pack(row.type)
            out += nullable_string(row.documentation if self._documentation else None, flexible)
        return bytes(out + end)


def _synonyms(image: ClusterImage, scope: ConfigScope, own: str | None, config: ConfigKey) -> list[_Value]:
    """Return all values of a config: the recorded ones, then the default.  The first one is in force."""
    cluster_key = inherited_key(config.key) if scope is ConfigScope.GROUP else config.key
    found = [] if own is None else [_Value(config.key, own, SOURCES[scope.name.lower()])]
    if scope in (ConfigScope.TOPIC, ConfigScope.GROUP) and cluster_key is not None:
        value = image.config(ConfigScope.CLUSTER, "").get(cluster_key)
        if value is not None:
            found.append(_Value(cluster_key, value, SOURCES["cluster"]))
    origin = config if cluster_key is None else TABLES[ConfigScope.CLUSTER].get(cluster_key, config)
    return [*found, _Value(cluster_key or config.key, origin.default, DEFAULT)]


def _of_process(settings: Sequence[NodeSetting]) -> Iterator[_Row]:
    for setting in settings:
        values = [(setting.value, STARTED_WITH)] if setting.is_set else []
        values.append((setting.default, DEFAULT))
        names = [setting.name, *([_KAFKA_NAMES[setting.name]] if setting.name in _KAFKA_NAMES else [])]
        for name in names:
            yield _fixed_row(name, values, _SETTING_TYPES[setting.type], setting.documentation)


def _of_cluster(image: ClusterImage) -> Iterator[_Row]:
    cluster = image.config(ConfigScope.CLUSTER, "")
    for config in TABLES[ConfigScope.CLUSTER].values():
        values: list[tuple[str | None, int]] = []
        if config.key in cluster:
            values.append((cluster[config.key], SOURCES["cluster"]))
        values.append((config.default, DEFAULT))
        documentation = f"must be {config.allowed}; set for the cluster"
        yield _fixed_row(config.key, values, _CONFIG_TYPES[config.kind], documentation)


def _fixed_row(name: str, values: Sequence[tuple[str | None, int]], config_type: int, documentation: str) -> _Row:
    """Return a config that cannot be changed for one broker.  values: (value, source); the first is in force."""
    value, source = values[0]
    synonyms = [_Value(name, each, of) for each, of in values if each is not None]
    return _Row(name, value, True, source, synonyms, config_type, documentation)
