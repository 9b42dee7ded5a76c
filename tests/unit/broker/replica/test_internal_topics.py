"""Internal topics on a broker: no client appends to them, and retention deletes nothing from them."""

from __future__ import annotations

from broker.replica.configs import log_config
from broker.replica.limits import ReplicaLimits
from metadata.image.internal_topics import CONSUMER_OFFSETS
from metadata.records import Config, ConfigScope
from quorumlog.wire.errors import KafkaCode
from tests.unit.broker.log.batches import make_batch
from tests.unit.broker.replica.rig import TOPIC, Rig


async def test_a_client_cannot_append_to_an_internal_topic(rig: Rig) -> None:
    rig.cluster.create(CONSUMER_OFFSETS, (1,))
    await rig.learn()
    answer = rig.replicas.start_produce(CONSUMER_OFFSETS, 0, memoryview(make_batch((b"x",))), -1, 1000)
    assert answer.result().error_code == KafkaCode.INVALID_TOPIC_EXCEPTION
    hosted = rig.role.table.find(CONSUMER_OFFSETS, 0)
    assert hosted is not None
    assert hosted.log is not None
    assert hosted.log.end_offset == 0


async def test_retention_deletes_nothing_from_an_internal_topic(rig: Rig) -> None:
    for name in (TOPIC, CONSUMER_OFFSETS):
        rig.cluster.create(name, (1,))
    rig.cluster.apply(
        [
            Config(ConfigScope.CLUSTER, "", "retention.ms", "1000"),
            Config(ConfigScope.CLUSTER, "", "retention.bytes", "1000"),
        ]
    )
    image = rig.cluster.image
    retained = [log_config(image, image.topic_ids[name], ReplicaLimits()) for name in (TOPIC, CONSUMER_OFFSETS)]
    assert [(each.retention_ms, each.retention_size) for each in retained] == [(1000, 1000), (-1, -1)]
