"""The immutable image of all metadata at one offset of the metadata log; see `cluster.py` for how it works."""

from metadata.image.bits import indexes
from metadata.image.cluster import ClusterImage
from metadata.image.delta import Delta, delta
from metadata.image.group_configs import (
    DEAD_LETTER_COPIES,
    DEAD_LETTER_CREATION,
    DEAD_LETTER_TOPIC,
    DEAD_LETTERS_ADMITTED,
    GROUP_CONFIGS,
    GROUPS_WITH_CONFIGS_MAX,
    RENEW_ENABLED,
    TIMES,
    dead_letter_problem,
    group_config,
    group_keys,
    inherited_key,
)
from metadata.image.internal_topics import is_internal
from metadata.image.model import BrokerImage, PartitionImage, TopicImage
from metadata.image.topic_configs import (
    BROKER_CONFIGS,
    CLUSTER_CONFIGS,
    KAFKA_RATES,
    TOPIC_CONFIGS,
    ConfigKey,
    reset_duration_ms,
    unknown_key,
)

__all__ = [
    "BROKER_CONFIGS",
    "CLUSTER_CONFIGS",
    "DEAD_LETTERS_ADMITTED",
    "DEAD_LETTER_COPIES",
    "DEAD_LETTER_CREATION",
    "DEAD_LETTER_TOPIC",
    "GROUPS_WITH_CONFIGS_MAX",
    "GROUP_CONFIGS",
    "KAFKA_RATES",
    "RENEW_ENABLED",
    "TIMES",
    "TOPIC_CONFIGS",
    "BrokerImage",
    "ClusterImage",
    "ConfigKey",
    "Delta",
    "PartitionImage",
    "TopicImage",
    "dead_letter_problem",
    "delta",
    "group_config",
    "group_keys",
    "indexes",
    "inherited_key",
    "is_internal",
    "reset_duration_ms",
    "unknown_key",
]
