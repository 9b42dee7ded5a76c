"""The immutable image of all metadata at one offset of the metadata log; see `cluster.py` for how it works."""

from metadata.image.bits import indexes
from metadata.image.cluster import ClusterImage
from metadata.image.delta import Delta, delta
from metadata.image.internal_topics import is_internal
from metadata.image.model import BrokerImage, PartitionImage, TopicImage
from metadata.image.topic_configs import (
    BROKER_CONFIGS,
    CLUSTER_CONFIGS,
    KAFKA_RATES,
    TOPIC_CONFIGS,
    ConfigKey,
    unknown_key,
)

__all__ = [
    "BROKER_CONFIGS",
    "CLUSTER_CONFIGS",
    "KAFKA_RATES",
    "TOPIC_CONFIGS",
    "BrokerImage",
    "ClusterImage",
    "ConfigKey",
    "Delta",
    "PartitionImage",
    "TopicImage",
    "delta",
    "indexes",
    "is_internal",
    "unknown_key",
]
