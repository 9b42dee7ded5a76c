"""The immutable image of all metadata at one offset of the metadata log; see `cluster.py` for how it works."""

from metadata.image.bits import indexes, mask_of
from metadata.image.cluster import ClusterImage
from metadata.image.delta import Delta, delta
from metadata.image.model import BrokerImage, PartitionImage, TopicImage
from metadata.image.topic_configs import TOPIC_CONFIGS, TopicConfig

__all__ = [
    "TOPIC_CONFIGS",
    "BrokerImage",
    "ClusterImage",
    "Delta",
    "PartitionImage",
    "TopicConfig",
    "TopicImage",
    "delta",
    "indexes",
    "mask_of",
]
