from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Reason(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    REASON_UNSPECIFIED: _ClassVar[Reason]
    REASON_BROKER_FENCED: _ClassVar[Reason]
    REASON_BROKER_UNFENCED: _ClassVar[Reason]
    REASON_CONTROLLED_SHUTDOWN: _ClassVar[Reason]
    REASON_NEW_INCARNATION: _ClassVar[Reason]
    REASON_ISR_SHRINK: _ClassVar[Reason]
    REASON_ISR_EXPAND: _ClassVar[Reason]
    REASON_PREFERRED_ELECTION: _ClassVar[Reason]
    REASON_UNCLEAN_ELECTION: _ClassVar[Reason]
    REASON_DIRECTORY_OFFLINE: _ClassVar[Reason]
    REASON_REASSIGNMENT: _ClassVar[Reason]
    REASON_DIRECTORY_ASSIGNED: _ClassVar[Reason]
    REASON_UNREGISTERED: _ClassVar[Reason]
    REASON_QUORUM_REBUILT: _ClassVar[Reason]
    REASON_REASSIGNMENT_COMPLETED: _ClassVar[Reason]
    REASON_REASSIGNMENT_CANCELLED: _ClassVar[Reason]
    REASON_PREFERRED_BALANCE: _ClassVar[Reason]
    REASON_CONFIG_CHANGED: _ClassVar[Reason]
    REASON_REPLICA_LOST: _ClassVar[Reason]
REASON_UNSPECIFIED: Reason
REASON_BROKER_FENCED: Reason
REASON_BROKER_UNFENCED: Reason
REASON_CONTROLLED_SHUTDOWN: Reason
REASON_NEW_INCARNATION: Reason
REASON_ISR_SHRINK: Reason
REASON_ISR_EXPAND: Reason
REASON_PREFERRED_ELECTION: Reason
REASON_UNCLEAN_ELECTION: Reason
REASON_DIRECTORY_OFFLINE: Reason
REASON_REASSIGNMENT: Reason
REASON_DIRECTORY_ASSIGNED: Reason
REASON_UNREGISTERED: Reason
REASON_QUORUM_REBUILT: Reason
REASON_REASSIGNMENT_COMPLETED: Reason
REASON_REASSIGNMENT_CANCELLED: Reason
REASON_PREFERRED_BALANCE: Reason
REASON_CONFIG_CHANGED: Reason
REASON_REPLICA_LOST: Reason

class Endpoint(_message.Message):
    __slots__ = ("name", "host", "port", "security")
    NAME_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    PORT_FIELD_NUMBER: _ClassVar[int]
    SECURITY_FIELD_NUMBER: _ClassVar[int]
    name: str
    host: str
    port: int
    security: str
    def __init__(self, name: _Optional[str] = ..., host: _Optional[str] = ..., port: _Optional[int] = ..., security: _Optional[str] = ...) -> None: ...

class RegisterBroker(_message.Message):
    __slots__ = ("broker_id", "incarnation_id", "endpoints", "rack", "directory_ids", "previous_broker_epoch", "feature_min", "feature_max", "fenced")
    BROKER_ID_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_ID_FIELD_NUMBER: _ClassVar[int]
    ENDPOINTS_FIELD_NUMBER: _ClassVar[int]
    RACK_FIELD_NUMBER: _ClassVar[int]
    DIRECTORY_IDS_FIELD_NUMBER: _ClassVar[int]
    PREVIOUS_BROKER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    FEATURE_MIN_FIELD_NUMBER: _ClassVar[int]
    FEATURE_MAX_FIELD_NUMBER: _ClassVar[int]
    FENCED_FIELD_NUMBER: _ClassVar[int]
    broker_id: int
    incarnation_id: bytes
    endpoints: _containers.RepeatedCompositeFieldContainer[Endpoint]
    rack: str
    directory_ids: _containers.RepeatedScalarFieldContainer[bytes]
    previous_broker_epoch: int
    feature_min: int
    feature_max: int
    fenced: bool
    def __init__(self, broker_id: _Optional[int] = ..., incarnation_id: _Optional[bytes] = ..., endpoints: _Optional[_Iterable[_Union[Endpoint, _Mapping]]] = ..., rack: _Optional[str] = ..., directory_ids: _Optional[_Iterable[bytes]] = ..., previous_broker_epoch: _Optional[int] = ..., feature_min: _Optional[int] = ..., feature_max: _Optional[int] = ..., fenced: bool = ...) -> None: ...

class BrokerChange(_message.Message):
    __slots__ = ("broker_id", "broker_epoch", "fenced", "in_controlled_shutdown", "directories_offline")
    BROKER_ID_FIELD_NUMBER: _ClassVar[int]
    BROKER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    FENCED_FIELD_NUMBER: _ClassVar[int]
    IN_CONTROLLED_SHUTDOWN_FIELD_NUMBER: _ClassVar[int]
    DIRECTORIES_OFFLINE_FIELD_NUMBER: _ClassVar[int]
    broker_id: int
    broker_epoch: int
    fenced: bool
    in_controlled_shutdown: bool
    directories_offline: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, broker_id: _Optional[int] = ..., broker_epoch: _Optional[int] = ..., fenced: bool = ..., in_controlled_shutdown: bool = ..., directories_offline: _Optional[_Iterable[bytes]] = ...) -> None: ...

class UnregisterBroker(_message.Message):
    __slots__ = ("broker_id", "broker_epoch")
    BROKER_ID_FIELD_NUMBER: _ClassVar[int]
    BROKER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    broker_id: int
    broker_epoch: int
    def __init__(self, broker_id: _Optional[int] = ..., broker_epoch: _Optional[int] = ...) -> None: ...

class Topic(_message.Message):
    __slots__ = ("topic_id", "name")
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    topic_id: bytes
    name: str
    def __init__(self, topic_id: _Optional[bytes] = ..., name: _Optional[str] = ...) -> None: ...

class Replica(_message.Message):
    __slots__ = ("broker_id", "directory_id")
    BROKER_ID_FIELD_NUMBER: _ClassVar[int]
    DIRECTORY_ID_FIELD_NUMBER: _ClassVar[int]
    broker_id: int
    directory_id: bytes
    def __init__(self, broker_id: _Optional[int] = ..., directory_id: _Optional[bytes] = ...) -> None: ...

class Partition(_message.Message):
    __slots__ = ("topic_id", "index", "replicas", "isr", "elr", "adding", "removing", "leader", "leader_epoch", "partition_epoch")
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    REPLICAS_FIELD_NUMBER: _ClassVar[int]
    ISR_FIELD_NUMBER: _ClassVar[int]
    ELR_FIELD_NUMBER: _ClassVar[int]
    ADDING_FIELD_NUMBER: _ClassVar[int]
    REMOVING_FIELD_NUMBER: _ClassVar[int]
    LEADER_FIELD_NUMBER: _ClassVar[int]
    LEADER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    PARTITION_EPOCH_FIELD_NUMBER: _ClassVar[int]
    topic_id: bytes
    index: int
    replicas: _containers.RepeatedCompositeFieldContainer[Replica]
    isr: _containers.RepeatedScalarFieldContainer[int]
    elr: _containers.RepeatedScalarFieldContainer[int]
    adding: _containers.RepeatedScalarFieldContainer[int]
    removing: _containers.RepeatedScalarFieldContainer[int]
    leader: int
    leader_epoch: int
    partition_epoch: int
    def __init__(self, topic_id: _Optional[bytes] = ..., index: _Optional[int] = ..., replicas: _Optional[_Iterable[_Union[Replica, _Mapping]]] = ..., isr: _Optional[_Iterable[int]] = ..., elr: _Optional[_Iterable[int]] = ..., adding: _Optional[_Iterable[int]] = ..., removing: _Optional[_Iterable[int]] = ..., leader: _Optional[int] = ..., leader_epoch: _Optional[int] = ..., partition_epoch: _Optional[int] = ...) -> None: ...

class IntList(_message.Message):
    __slots__ = ("values",)
    VALUES_FIELD_NUMBER: _ClassVar[int]
    values: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, values: _Optional[_Iterable[int]] = ...) -> None: ...

class ReplicaList(_message.Message):
    __slots__ = ("values",)
    VALUES_FIELD_NUMBER: _ClassVar[int]
    values: _containers.RepeatedCompositeFieldContainer[Replica]
    def __init__(self, values: _Optional[_Iterable[_Union[Replica, _Mapping]]] = ...) -> None: ...

class PartitionChange(_message.Message):
    __slots__ = ("topic_id", "index", "isr", "elr", "replicas", "adding", "removing", "leader", "reason", "cause_offset", "previous_offset", "leader_epoch")
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    ISR_FIELD_NUMBER: _ClassVar[int]
    ELR_FIELD_NUMBER: _ClassVar[int]
    REPLICAS_FIELD_NUMBER: _ClassVar[int]
    ADDING_FIELD_NUMBER: _ClassVar[int]
    REMOVING_FIELD_NUMBER: _ClassVar[int]
    LEADER_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    CAUSE_OFFSET_FIELD_NUMBER: _ClassVar[int]
    PREVIOUS_OFFSET_FIELD_NUMBER: _ClassVar[int]
    LEADER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    topic_id: bytes
    index: int
    isr: IntList
    elr: IntList
    replicas: ReplicaList
    adding: IntList
    removing: IntList
    leader: int
    reason: Reason
    cause_offset: int
    previous_offset: int
    leader_epoch: int
    def __init__(self, topic_id: _Optional[bytes] = ..., index: _Optional[int] = ..., isr: _Optional[_Union[IntList, _Mapping]] = ..., elr: _Optional[_Union[IntList, _Mapping]] = ..., replicas: _Optional[_Union[ReplicaList, _Mapping]] = ..., adding: _Optional[_Union[IntList, _Mapping]] = ..., removing: _Optional[_Union[IntList, _Mapping]] = ..., leader: _Optional[int] = ..., reason: _Optional[_Union[Reason, str]] = ..., cause_offset: _Optional[int] = ..., previous_offset: _Optional[int] = ..., leader_epoch: _Optional[int] = ...) -> None: ...

class RemovePartition(_message.Message):
    __slots__ = ("topic_id", "index")
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    topic_id: bytes
    index: int
    def __init__(self, topic_id: _Optional[bytes] = ..., index: _Optional[int] = ...) -> None: ...

class RemoveTopic(_message.Message):
    __slots__ = ("topic_id",)
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    topic_id: bytes
    def __init__(self, topic_id: _Optional[bytes] = ...) -> None: ...

class RenewTopic(_message.Message):
    __slots__ = ("topic_id", "new_topic_id")
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    NEW_TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    topic_id: bytes
    new_topic_id: bytes
    def __init__(self, topic_id: _Optional[bytes] = ..., new_topic_id: _Optional[bytes] = ...) -> None: ...

class Config(_message.Message):
    __slots__ = ("scope", "resource", "key", "value")
    class Scope(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        SCOPE_UNSPECIFIED: _ClassVar[Config.Scope]
        SCOPE_CLUSTER: _ClassVar[Config.Scope]
        SCOPE_TOPIC: _ClassVar[Config.Scope]
        SCOPE_BROKER: _ClassVar[Config.Scope]
        SCOPE_GROUP: _ClassVar[Config.Scope]
    SCOPE_UNSPECIFIED: Config.Scope
    SCOPE_CLUSTER: Config.Scope
    SCOPE_TOPIC: Config.Scope
    SCOPE_BROKER: Config.Scope
    SCOPE_GROUP: Config.Scope
    SCOPE_FIELD_NUMBER: _ClassVar[int]
    RESOURCE_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    scope: Config.Scope
    resource: str
    key: str
    value: str
    def __init__(self, scope: _Optional[_Union[Config.Scope, str]] = ..., resource: _Optional[str] = ..., key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...

class ProducerIds(_message.Message):
    __slots__ = ("broker_id", "broker_epoch", "next_producer_id")
    BROKER_ID_FIELD_NUMBER: _ClassVar[int]
    BROKER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    NEXT_PRODUCER_ID_FIELD_NUMBER: _ClassVar[int]
    broker_id: int
    broker_epoch: int
    next_producer_id: int
    def __init__(self, broker_id: _Optional[int] = ..., broker_epoch: _Optional[int] = ..., next_producer_id: _Optional[int] = ...) -> None: ...

class PreferredControllers(_message.Message):
    __slots__ = ("node_ids",)
    NODE_IDS_FIELD_NUMBER: _ClassVar[int]
    node_ids: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, node_ids: _Optional[_Iterable[int]] = ...) -> None: ...

class Feature(_message.Message):
    __slots__ = ("name", "level")
    NAME_FIELD_NUMBER: _ClassVar[int]
    LEVEL_FIELD_NUMBER: _ClassVar[int]
    name: str
    level: int
    def __init__(self, name: _Optional[str] = ..., level: _Optional[int] = ...) -> None: ...

class NoOp(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ForgetTopics(_message.Message):
    __slots__ = ("names",)
    NAMES_FIELD_NUMBER: _ClassVar[int]
    names: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, names: _Optional[_Iterable[str]] = ...) -> None: ...

class Record(_message.Message):
    __slots__ = ("register_broker", "broker_change", "unregister_broker", "topic", "partition", "partition_change", "remove_partition", "remove_topic", "config", "producer_ids", "preferred_controllers", "feature", "no_op", "forget_topics", "renew_topic")
    REGISTER_BROKER_FIELD_NUMBER: _ClassVar[int]
    BROKER_CHANGE_FIELD_NUMBER: _ClassVar[int]
    UNREGISTER_BROKER_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    PARTITION_CHANGE_FIELD_NUMBER: _ClassVar[int]
    REMOVE_PARTITION_FIELD_NUMBER: _ClassVar[int]
    REMOVE_TOPIC_FIELD_NUMBER: _ClassVar[int]
    CONFIG_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_IDS_FIELD_NUMBER: _ClassVar[int]
    PREFERRED_CONTROLLERS_FIELD_NUMBER: _ClassVar[int]
    FEATURE_FIELD_NUMBER: _ClassVar[int]
    NO_OP_FIELD_NUMBER: _ClassVar[int]
    FORGET_TOPICS_FIELD_NUMBER: _ClassVar[int]
    RENEW_TOPIC_FIELD_NUMBER: _ClassVar[int]
    register_broker: RegisterBroker
    broker_change: BrokerChange
    unregister_broker: UnregisterBroker
    topic: Topic
    partition: Partition
    partition_change: PartitionChange
    remove_partition: RemovePartition
    remove_topic: RemoveTopic
    config: Config
    producer_ids: ProducerIds
    preferred_controllers: PreferredControllers
    feature: Feature
    no_op: NoOp
    forget_topics: ForgetTopics
    renew_topic: RenewTopic
    def __init__(self, register_broker: _Optional[_Union[RegisterBroker, _Mapping]] = ..., broker_change: _Optional[_Union[BrokerChange, _Mapping]] = ..., unregister_broker: _Optional[_Union[UnregisterBroker, _Mapping]] = ..., topic: _Optional[_Union[Topic, _Mapping]] = ..., partition: _Optional[_Union[Partition, _Mapping]] = ..., partition_change: _Optional[_Union[PartitionChange, _Mapping]] = ..., remove_partition: _Optional[_Union[RemovePartition, _Mapping]] = ..., remove_topic: _Optional[_Union[RemoveTopic, _Mapping]] = ..., config: _Optional[_Union[Config, _Mapping]] = ..., producer_ids: _Optional[_Union[ProducerIds, _Mapping]] = ..., preferred_controllers: _Optional[_Union[PreferredControllers, _Mapping]] = ..., feature: _Optional[_Union[Feature, _Mapping]] = ..., no_op: _Optional[_Union[NoOp, _Mapping]] = ..., forget_topics: _Optional[_Union[ForgetTopics, _Mapping]] = ..., renew_topic: _Optional[_Union[RenewTopic, _Mapping]] = ...) -> None: ...

class Records(_message.Message):
    __slots__ = ("version", "records")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    version: int
    records: _containers.RepeatedCompositeFieldContainer[Record]
    def __init__(self, version: _Optional[int] = ..., records: _Optional[_Iterable[_Union[Record, _Mapping]]] = ...) -> None: ...
