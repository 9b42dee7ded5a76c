"""The configs of a topic that was just created, for CreateTopics responses."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from metadata.control.topics import configs_of_new
from metadata.image import TOPIC_CONFIGS, ClusterImage
from metadata.records import ConfigScope

DEFAULT: Final = 5
SOURCES: Final = {"topic": 1, "broker": 2, "cluster": 3, "default": DEFAULT, "group": 8}
"""Kafka's numbers for the sources of a value."""
STARTED_WITH: Final = 4
"""The source of a value that the process was started with."""


def created_configs(image: ClusterImage, name: str, given: Mapping[str, str], factor: int) -> list[dict[str, Any]]:
    """Return the configs of a topic that was just created with the configs `given`, for a CreateTopics response."""
    own = configs_of_new(image, name, given, factor)
    cluster = image.config(ConfigScope.CLUSTER, "")
    found = []
    for config in TOPIC_CONFIGS.values():
        value, source = config.default, "default"
        if config.key in own:
            value, source = own[config.key], "topic"
        elif config.key in cluster:
            value, source = cluster[config.key], "cluster"
        found.append({"name": config.key, "value": value, "config_source": SOURCES[source]})
    return found
