"""Descriptions of topics and brokers from one image.  The loop runs other tasks while partitions are described."""

from __future__ import annotations

from collections.abc import Sequence

from metadata.codec import endpoint_to_wire, replicas_to_wire
from metadata.control.errors import OK, Outcome
from metadata.control.explain import replica_state
from metadata.controller.convert import ITEMS_MAX, result
from metadata.controller.sessions import Session
from metadata.image import BrokerImage, ClusterImage, PartitionImage, TopicImage, is_internal
from metadata.records import ConfigScope
from quorumlog.runtime.turns import Turn
from quorumlog.wire.errors import ApiError
from quorumlog.wire.v1 import controller_pb2 as pb
from quorumlog.wire.v1 import metadata_pb2, node_pb2

PARTITIONS_IN_REPLY_MAX = 50_000
_SCOPES = {
    ConfigScope.CLUSTER: metadata_pb2.Config.SCOPE_CLUSTER,
    ConfigScope.BROKER: metadata_pb2.Config.SCOPE_BROKER,
    ConfigScope.GROUP: metadata_pb2.Config.SCOPE_GROUP,
}
_Reply = pb.DescribeTopicsReply | node_pb2.DescribeMetadataReply


async def describe_topics(image: ClusterImage, names: Sequence[str]) -> pb.DescribeTopicsReply:
    """Describe the named topics, or all of them, sorted by name."""
    reply = pb.DescribeTopicsReply(offset=image.end_offset)
    reply.result.CopyFrom(result(await _add_topics(reply, image, names, Turn())))
    return reply


async def describe_metadata(
    image: ClusterImage, cluster_id: str, names: Sequence[str], *, partitions: bool = True
) -> node_pb2.DescribeMetadataReply:
    """Describe the whole cluster of the image, with the named topics or all topics.

    partitions: False returns only names and ids of topics.  The number of topics is then unlimited, if `names` is
    empty.
    """
    reply, turn = node_pb2.DescribeMetadataReply(), Turn()
    add = _add_topics if partitions else _add_names
    outcome = await add(reply, image, names, turn)
    reply.result.CopyFrom(result(outcome))
    if not outcome.ok:
        return reply
    reply.offset = image.end_offset
    reply.brokers.extend(describe_brokers(image, cluster_id, ()).brokers)
    await _add_configs(reply, image, turn)
    reply.preferred_controllers.extend(image.preferred_controllers)
    for name in sorted(image.features):
        reply.features.add(name=name, level=image.features[name])
    return reply


async def _add_names(reply: _Reply, image: ClusterImage, names: Sequence[str], turn: Turn) -> Outcome:
    """Add the names and ids of the topics that exist.  Return a refusal if too many are named."""
    if len(names) > ITEMS_MAX:
        return _too_many(names)
    for name in await turn.sorted(set(names) if names else image.topic_ids, key=str):
        topic_id = image.topic_ids.get(name)
        if topic_id is not None:
            reply.topics.add(name=name, topic_id=topic_id.bytes)
        await turn.passed()
    return OK


async def _add_topics(reply: _Reply, image: ClusterImage, names: Sequence[str], turn: Turn) -> Outcome:
    """Add the description of each topic, or its error.  Return a refusal if the description is too large."""
    if len(names) > ITEMS_MAX:
        return _too_many(names)
    size = 0
    for name in set(names) if names else image.topic_ids:
        topic = image.topic(name)
        size += 0 if topic is None else len(topic.partitions)
        await turn.passed()
    if size > PARTITIONS_IN_REPLY_MAX:
        text = f"{size} partitions; one answer can describe at most {PARTITIONS_IN_REPLY_MAX}"
        return Outcome(ApiError.POLICY_VIOLATION, text, "request single topics by name")
    for name in await turn.sorted(set(names) if names else image.topic_ids, key=str):
        topic = image.topic(name)
        if topic is None:
            text = f"topic {name[:60]!a} does not exist"
            outcome = Outcome(ApiError.UNKNOWN_TOPIC_OR_PARTITION, text, "kctl topics list")
            reply.topics.add(name=name, result=result(outcome))
            await turn.passed()
            continue
        description = reply.topics.add()
        description.MergeFrom(_topic(image, topic))
        for partition in topic.partitions:
            if partition is not None:
                description.partitions.append(_partition(image, partition))
            await turn.passed()
    return OK


def _too_many(names: Sequence[str]) -> Outcome:
    text = f"{len(names)} topics; one request can name at most {ITEMS_MAX}"
    return Outcome(ApiError.POLICY_VIOLATION, text, "request fewer topics at a time")


async def _add_configs(reply: node_pb2.DescribeMetadataReply, image: ClusterImage, turn: Turn) -> None:
    """Add the configs of the cluster, of brokers and of groups.  Those of topics are in the descriptions of topics."""
    shown = []
    for (scope, name), values in image.all_configs():
        if scope in _SCOPES:
            shown.append((scope.value, name, _SCOPES[scope], values))
        await turn.passed()
    for _, name, wire_scope, values in await turn.sorted(shown, key=lambda item: item[:2]):
        for key in sorted(values):
            reply.configs.add(scope=wire_scope, resource=name, key=key, value=values[key])
        await turn.passed()


def _topic(image: ClusterImage, topic: TopicImage) -> pb.TopicDescription:
    """Describe a topic without its partitions."""
    configs = image.config(ConfigScope.TOPIC, topic.topic_id.hex)
    return pb.TopicDescription(
        name=topic.name,
        topic_id=topic.topic_id.bytes,
        result=result(OK),
        internal=is_internal(topic.name),
        configs=[pb.ConfigEntry(key=key, value=configs[key]) for key in sorted(configs)],
    )


def _partition(image: ClusterImage, partition: PartitionImage) -> pb.PartitionDescription:
    return pb.PartitionDescription(
        index=partition.index,
        leader=partition.leader,
        leader_epoch=partition.leader_epoch,
        partition_epoch=partition.partition_epoch,
        replicas=replicas_to_wire(partition.replicas),
        isr=partition.isr,
        elr=partition.elr,
        adding=partition.adding,
        removing=partition.removing,
        replica_states=[replica_state(image, partition, replica) for replica in partition.replicas],
    )


def describe_brokers(
    image: ClusterImage, cluster_id: str, sessions: Sequence[tuple[int, Session | None]]
) -> pb.DescribeBrokersReply:
    """Describe all brokers.  sessions: (broker id, its session with this controller), for some or all brokers."""
    heard = dict(sessions)
    return pb.DescribeBrokersReply(
        result=result(OK),
        offset=image.end_offset,
        cluster_id=cluster_id,
        brokers=[_broker(image, image.brokers[each], heard.get(each)) for each in sorted(image.brokers)],
    )


def _broker(image: ClusterImage, broker: BrokerImage, session: Session | None) -> pb.BrokerDescription:
    known = session is not None and session.broker_epoch == broker.epoch
    applied = session.applied_offset if known and session is not None else -1
    state = "fenced" if broker.fenced else "controlled_shutdown" if broker.in_controlled_shutdown else "unfenced"
    return pb.BrokerDescription(
        broker_id=broker.broker_id,
        broker_epoch=broker.epoch,
        state=state,
        rack=broker.rack,
        endpoints=[endpoint_to_wire(endpoint) for endpoint in broker.endpoints],
        leaders=image.leader_count(broker.broker_id),
        replicas=image.replica_count(broker.broker_id),
        metadata_offset=applied,
        metadata_lag=max(0, image.end_offset - applied) if applied >= 0 else -1,
        pending_changes=session.pending_changes if known and session is not None else 0,
        cordoned=image.broker_config(broker.broker_id, "cordoned") == "true",
    )
