from quorumlog.wire.v1 import metadata_pb2 as _metadata_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Result(_message.Message):
    __slots__ = ("error", "message", "next", "retriable", "unconfirmed", "generation", "epoch")
    ERROR_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    NEXT_FIELD_NUMBER: _ClassVar[int]
    RETRIABLE_FIELD_NUMBER: _ClassVar[int]
    UNCONFIRMED_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    error: str
    message: str
    next: str
    retriable: bool
    unconfirmed: bool
    generation: int
    epoch: int
    def __init__(self, error: _Optional[str] = ..., message: _Optional[str] = ..., next: _Optional[str] = ..., retriable: bool = ..., unconfirmed: bool = ..., generation: _Optional[int] = ..., epoch: _Optional[int] = ...) -> None: ...

class RequestHeader(_message.Message):
    __slots__ = ("cluster_id", "forwarded", "timeout_ms", "principal", "validate_only", "unconfirmed")
    CLUSTER_ID_FIELD_NUMBER: _ClassVar[int]
    FORWARDED_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    PRINCIPAL_FIELD_NUMBER: _ClassVar[int]
    VALIDATE_ONLY_FIELD_NUMBER: _ClassVar[int]
    UNCONFIRMED_FIELD_NUMBER: _ClassVar[int]
    cluster_id: str
    forwarded: bool
    timeout_ms: int
    principal: str
    validate_only: bool
    unconfirmed: bool
    def __init__(self, cluster_id: _Optional[str] = ..., forwarded: bool = ..., timeout_ms: _Optional[int] = ..., principal: _Optional[str] = ..., validate_only: bool = ..., unconfirmed: bool = ...) -> None: ...

class RegisterBrokerRequest(_message.Message):
    __slots__ = ("header", "registration", "early_topic_ids")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    REGISTRATION_FIELD_NUMBER: _ClassVar[int]
    EARLY_TOPIC_IDS_FIELD_NUMBER: _ClassVar[int]
    header: RequestHeader
    registration: _metadata_pb2.RegisterBroker
    early_topic_ids: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, header: _Optional[_Union[RequestHeader, _Mapping]] = ..., registration: _Optional[_Union[_metadata_pb2.RegisterBroker, _Mapping]] = ..., early_topic_ids: _Optional[_Iterable[bytes]] = ...) -> None: ...

class RegisterBrokerReply(_message.Message):
    __slots__ = ("result", "broker_epoch")
    RESULT_FIELD_NUMBER: _ClassVar[int]
    BROKER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    result: Result
    broker_epoch: int
    def __init__(self, result: _Optional[_Union[Result, _Mapping]] = ..., broker_epoch: _Optional[int] = ...) -> None: ...

class BrokerHeartbeatRequest(_message.Message):
    __slots__ = ("header", "broker_id", "broker_epoch", "applied_offset", "want_fence", "want_shutdown", "directories_offline", "received_offset", "pending_changes")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    BROKER_ID_FIELD_NUMBER: _ClassVar[int]
    BROKER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    APPLIED_OFFSET_FIELD_NUMBER: _ClassVar[int]
    WANT_FENCE_FIELD_NUMBER: _ClassVar[int]
    WANT_SHUTDOWN_FIELD_NUMBER: _ClassVar[int]
    DIRECTORIES_OFFLINE_FIELD_NUMBER: _ClassVar[int]
    RECEIVED_OFFSET_FIELD_NUMBER: _ClassVar[int]
    PENDING_CHANGES_FIELD_NUMBER: _ClassVar[int]
    header: RequestHeader
    broker_id: int
    broker_epoch: int
    applied_offset: int
    want_fence: bool
    want_shutdown: bool
    directories_offline: _containers.RepeatedScalarFieldContainer[bytes]
    received_offset: int
    pending_changes: int
    def __init__(self, header: _Optional[_Union[RequestHeader, _Mapping]] = ..., broker_id: _Optional[int] = ..., broker_epoch: _Optional[int] = ..., applied_offset: _Optional[int] = ..., want_fence: bool = ..., want_shutdown: bool = ..., directories_offline: _Optional[_Iterable[bytes]] = ..., received_offset: _Optional[int] = ..., pending_changes: _Optional[int] = ...) -> None: ...

class BrokerHeartbeatReply(_message.Message):
    __slots__ = ("result", "fenced", "caught_up", "should_shutdown", "leaders_left")
    RESULT_FIELD_NUMBER: _ClassVar[int]
    FENCED_FIELD_NUMBER: _ClassVar[int]
    CAUGHT_UP_FIELD_NUMBER: _ClassVar[int]
    SHOULD_SHUTDOWN_FIELD_NUMBER: _ClassVar[int]
    LEADERS_LEFT_FIELD_NUMBER: _ClassVar[int]
    result: Result
    fenced: bool
    caught_up: bool
    should_shutdown: bool
    leaders_left: int
    def __init__(self, result: _Optional[_Union[Result, _Mapping]] = ..., fenced: bool = ..., caught_up: bool = ..., should_shutdown: bool = ..., leaders_left: _Optional[int] = ...) -> None: ...

class IsrMember(_message.Message):
    __slots__ = ("broker_id", "broker_epoch")
    BROKER_ID_FIELD_NUMBER: _ClassVar[int]
    BROKER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    broker_id: int
    broker_epoch: int
    def __init__(self, broker_id: _Optional[int] = ..., broker_epoch: _Optional[int] = ...) -> None: ...

class AlterPartitionItem(_message.Message):
    __slots__ = ("topic_id", "index", "leader_epoch", "partition_epoch", "isr")
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    LEADER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    PARTITION_EPOCH_FIELD_NUMBER: _ClassVar[int]
    ISR_FIELD_NUMBER: _ClassVar[int]
    topic_id: bytes
    index: int
    leader_epoch: int
    partition_epoch: int
    isr: _containers.RepeatedCompositeFieldContainer[IsrMember]
    def __init__(self, topic_id: _Optional[bytes] = ..., index: _Optional[int] = ..., leader_epoch: _Optional[int] = ..., partition_epoch: _Optional[int] = ..., isr: _Optional[_Iterable[_Union[IsrMember, _Mapping]]] = ...) -> None: ...

class AlterPartitionRequest(_message.Message):
    __slots__ = ("header", "broker_id", "broker_epoch", "items")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    BROKER_ID_FIELD_NUMBER: _ClassVar[int]
    BROKER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    ITEMS_FIELD_NUMBER: _ClassVar[int]
    header: RequestHeader
    broker_id: int
    broker_epoch: int
    items: _containers.RepeatedCompositeFieldContainer[AlterPartitionItem]
    def __init__(self, header: _Optional[_Union[RequestHeader, _Mapping]] = ..., broker_id: _Optional[int] = ..., broker_epoch: _Optional[int] = ..., items: _Optional[_Iterable[_Union[AlterPartitionItem, _Mapping]]] = ...) -> None: ...

class AlterPartitionItemReply(_message.Message):
    __slots__ = ("topic_id", "index", "result", "leader", "leader_epoch", "partition_epoch", "isr")
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    RESULT_FIELD_NUMBER: _ClassVar[int]
    LEADER_FIELD_NUMBER: _ClassVar[int]
    LEADER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    PARTITION_EPOCH_FIELD_NUMBER: _ClassVar[int]
    ISR_FIELD_NUMBER: _ClassVar[int]
    topic_id: bytes
    index: int
    result: Result
    leader: int
    leader_epoch: int
    partition_epoch: int
    isr: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, topic_id: _Optional[bytes] = ..., index: _Optional[int] = ..., result: _Optional[_Union[Result, _Mapping]] = ..., leader: _Optional[int] = ..., leader_epoch: _Optional[int] = ..., partition_epoch: _Optional[int] = ..., isr: _Optional[_Iterable[int]] = ...) -> None: ...

class AlterPartitionReply(_message.Message):
    __slots__ = ("result", "items")
    RESULT_FIELD_NUMBER: _ClassVar[int]
    ITEMS_FIELD_NUMBER: _ClassVar[int]
    result: Result
    items: _containers.RepeatedCompositeFieldContainer[AlterPartitionItemReply]
    def __init__(self, result: _Optional[_Union[Result, _Mapping]] = ..., items: _Optional[_Iterable[_Union[AlterPartitionItemReply, _Mapping]]] = ...) -> None: ...

class AssignDirectoriesRequest(_message.Message):
    __slots__ = ("header", "broker_id", "broker_epoch", "items")
    class Item(_message.Message):
        __slots__ = ("topic_id", "index", "directory_id", "moved_from")
        TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
        INDEX_FIELD_NUMBER: _ClassVar[int]
        DIRECTORY_ID_FIELD_NUMBER: _ClassVar[int]
        MOVED_FROM_FIELD_NUMBER: _ClassVar[int]
        topic_id: bytes
        index: int
        directory_id: bytes
        moved_from: bytes
        def __init__(self, topic_id: _Optional[bytes] = ..., index: _Optional[int] = ..., directory_id: _Optional[bytes] = ..., moved_from: _Optional[bytes] = ...) -> None: ...
    HEADER_FIELD_NUMBER: _ClassVar[int]
    BROKER_ID_FIELD_NUMBER: _ClassVar[int]
    BROKER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    ITEMS_FIELD_NUMBER: _ClassVar[int]
    header: RequestHeader
    broker_id: int
    broker_epoch: int
    items: _containers.RepeatedCompositeFieldContainer[AssignDirectoriesRequest.Item]
    def __init__(self, header: _Optional[_Union[RequestHeader, _Mapping]] = ..., broker_id: _Optional[int] = ..., broker_epoch: _Optional[int] = ..., items: _Optional[_Iterable[_Union[AssignDirectoriesRequest.Item, _Mapping]]] = ...) -> None: ...

class AssignDirectoriesReply(_message.Message):
    __slots__ = ("result",)
    RESULT_FIELD_NUMBER: _ClassVar[int]
    result: Result
    def __init__(self, result: _Optional[_Union[Result, _Mapping]] = ...) -> None: ...

class AllocateProducerIdsRequest(_message.Message):
    __slots__ = ("header", "broker_id", "broker_epoch")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    BROKER_ID_FIELD_NUMBER: _ClassVar[int]
    BROKER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    header: RequestHeader
    broker_id: int
    broker_epoch: int
    def __init__(self, header: _Optional[_Union[RequestHeader, _Mapping]] = ..., broker_id: _Optional[int] = ..., broker_epoch: _Optional[int] = ...) -> None: ...

class AllocateProducerIdsReply(_message.Message):
    __slots__ = ("result", "first_producer_id", "count")
    RESULT_FIELD_NUMBER: _ClassVar[int]
    FIRST_PRODUCER_ID_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    result: Result
    first_producer_id: int
    count: int
    def __init__(self, result: _Optional[_Union[Result, _Mapping]] = ..., first_producer_id: _Optional[int] = ..., count: _Optional[int] = ...) -> None: ...

class ConfigEntry(_message.Message):
    __slots__ = ("key", "value")
    KEY_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    key: str
    value: str
    def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...

class NewTopic(_message.Message):
    __slots__ = ("name", "partitions", "replication_factor", "assignment", "configs")
    NAME_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    REPLICATION_FACTOR_FIELD_NUMBER: _ClassVar[int]
    ASSIGNMENT_FIELD_NUMBER: _ClassVar[int]
    CONFIGS_FIELD_NUMBER: _ClassVar[int]
    name: str
    partitions: int
    replication_factor: int
    assignment: _containers.RepeatedCompositeFieldContainer[_metadata_pb2.IntList]
    configs: _containers.RepeatedCompositeFieldContainer[ConfigEntry]
    def __init__(self, name: _Optional[str] = ..., partitions: _Optional[int] = ..., replication_factor: _Optional[int] = ..., assignment: _Optional[_Iterable[_Union[_metadata_pb2.IntList, _Mapping]]] = ..., configs: _Optional[_Iterable[_Union[ConfigEntry, _Mapping]]] = ...) -> None: ...

class CreateTopicsRequest(_message.Message):
    __slots__ = ("header", "topics")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    header: RequestHeader
    topics: _containers.RepeatedCompositeFieldContainer[NewTopic]
    def __init__(self, header: _Optional[_Union[RequestHeader, _Mapping]] = ..., topics: _Optional[_Iterable[_Union[NewTopic, _Mapping]]] = ...) -> None: ...

class CreatedTopic(_message.Message):
    __slots__ = ("name", "result", "topic_id", "partitions", "replication_factor", "identical", "offset")
    NAME_FIELD_NUMBER: _ClassVar[int]
    RESULT_FIELD_NUMBER: _ClassVar[int]
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    REPLICATION_FACTOR_FIELD_NUMBER: _ClassVar[int]
    IDENTICAL_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    name: str
    result: Result
    topic_id: bytes
    partitions: int
    replication_factor: int
    identical: bool
    offset: int
    def __init__(self, name: _Optional[str] = ..., result: _Optional[_Union[Result, _Mapping]] = ..., topic_id: _Optional[bytes] = ..., partitions: _Optional[int] = ..., replication_factor: _Optional[int] = ..., identical: bool = ..., offset: _Optional[int] = ...) -> None: ...

class CreateTopicsReply(_message.Message):
    __slots__ = ("result", "topics")
    RESULT_FIELD_NUMBER: _ClassVar[int]
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    result: Result
    topics: _containers.RepeatedCompositeFieldContainer[CreatedTopic]
    def __init__(self, result: _Optional[_Union[Result, _Mapping]] = ..., topics: _Optional[_Iterable[_Union[CreatedTopic, _Mapping]]] = ...) -> None: ...

class DeleteTopicsRequest(_message.Message):
    __slots__ = ("header", "names", "topic_ids")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    NAMES_FIELD_NUMBER: _ClassVar[int]
    TOPIC_IDS_FIELD_NUMBER: _ClassVar[int]
    header: RequestHeader
    names: _containers.RepeatedScalarFieldContainer[str]
    topic_ids: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, header: _Optional[_Union[RequestHeader, _Mapping]] = ..., names: _Optional[_Iterable[str]] = ..., topic_ids: _Optional[_Iterable[bytes]] = ...) -> None: ...

class DeletedTopic(_message.Message):
    __slots__ = ("name", "topic_id", "result", "offset")
    NAME_FIELD_NUMBER: _ClassVar[int]
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    RESULT_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    name: str
    topic_id: bytes
    result: Result
    offset: int
    def __init__(self, name: _Optional[str] = ..., topic_id: _Optional[bytes] = ..., result: _Optional[_Union[Result, _Mapping]] = ..., offset: _Optional[int] = ...) -> None: ...

class DeleteTopicsReply(_message.Message):
    __slots__ = ("result", "topics")
    RESULT_FIELD_NUMBER: _ClassVar[int]
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    result: Result
    topics: _containers.RepeatedCompositeFieldContainer[DeletedTopic]
    def __init__(self, result: _Optional[_Union[Result, _Mapping]] = ..., topics: _Optional[_Iterable[_Union[DeletedTopic, _Mapping]]] = ...) -> None: ...

class DescribeTopicsRequest(_message.Message):
    __slots__ = ("header", "names")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    NAMES_FIELD_NUMBER: _ClassVar[int]
    header: RequestHeader
    names: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, header: _Optional[_Union[RequestHeader, _Mapping]] = ..., names: _Optional[_Iterable[str]] = ...) -> None: ...

class PartitionDescription(_message.Message):
    __slots__ = ("index", "leader", "leader_epoch", "partition_epoch", "replicas", "isr", "elr", "adding", "removing", "replica_states")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    LEADER_FIELD_NUMBER: _ClassVar[int]
    LEADER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    PARTITION_EPOCH_FIELD_NUMBER: _ClassVar[int]
    REPLICAS_FIELD_NUMBER: _ClassVar[int]
    ISR_FIELD_NUMBER: _ClassVar[int]
    ELR_FIELD_NUMBER: _ClassVar[int]
    ADDING_FIELD_NUMBER: _ClassVar[int]
    REMOVING_FIELD_NUMBER: _ClassVar[int]
    REPLICA_STATES_FIELD_NUMBER: _ClassVar[int]
    index: int
    leader: int
    leader_epoch: int
    partition_epoch: int
    replicas: _containers.RepeatedCompositeFieldContainer[_metadata_pb2.Replica]
    isr: _containers.RepeatedScalarFieldContainer[int]
    elr: _containers.RepeatedScalarFieldContainer[int]
    adding: _containers.RepeatedScalarFieldContainer[int]
    removing: _containers.RepeatedScalarFieldContainer[int]
    replica_states: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, index: _Optional[int] = ..., leader: _Optional[int] = ..., leader_epoch: _Optional[int] = ..., partition_epoch: _Optional[int] = ..., replicas: _Optional[_Iterable[_Union[_metadata_pb2.Replica, _Mapping]]] = ..., isr: _Optional[_Iterable[int]] = ..., elr: _Optional[_Iterable[int]] = ..., adding: _Optional[_Iterable[int]] = ..., removing: _Optional[_Iterable[int]] = ..., replica_states: _Optional[_Iterable[str]] = ...) -> None: ...

class TopicDescription(_message.Message):
    __slots__ = ("name", "topic_id", "result", "internal", "configs", "partitions")
    NAME_FIELD_NUMBER: _ClassVar[int]
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    RESULT_FIELD_NUMBER: _ClassVar[int]
    INTERNAL_FIELD_NUMBER: _ClassVar[int]
    CONFIGS_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    name: str
    topic_id: bytes
    result: Result
    internal: bool
    configs: _containers.RepeatedCompositeFieldContainer[ConfigEntry]
    partitions: _containers.RepeatedCompositeFieldContainer[PartitionDescription]
    def __init__(self, name: _Optional[str] = ..., topic_id: _Optional[bytes] = ..., result: _Optional[_Union[Result, _Mapping]] = ..., internal: bool = ..., configs: _Optional[_Iterable[_Union[ConfigEntry, _Mapping]]] = ..., partitions: _Optional[_Iterable[_Union[PartitionDescription, _Mapping]]] = ...) -> None: ...

class DescribeTopicsReply(_message.Message):
    __slots__ = ("result", "offset", "topics")
    RESULT_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    result: Result
    offset: int
    topics: _containers.RepeatedCompositeFieldContainer[TopicDescription]
    def __init__(self, result: _Optional[_Union[Result, _Mapping]] = ..., offset: _Optional[int] = ..., topics: _Optional[_Iterable[_Union[TopicDescription, _Mapping]]] = ...) -> None: ...

class DescribeBrokersRequest(_message.Message):
    __slots__ = ("header",)
    HEADER_FIELD_NUMBER: _ClassVar[int]
    header: RequestHeader
    def __init__(self, header: _Optional[_Union[RequestHeader, _Mapping]] = ...) -> None: ...

class BrokerDescription(_message.Message):
    __slots__ = ("broker_id", "broker_epoch", "state", "rack", "endpoints", "leaders", "replicas", "metadata_offset", "metadata_lag", "pending_changes", "cordoned")
    BROKER_ID_FIELD_NUMBER: _ClassVar[int]
    BROKER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    RACK_FIELD_NUMBER: _ClassVar[int]
    ENDPOINTS_FIELD_NUMBER: _ClassVar[int]
    LEADERS_FIELD_NUMBER: _ClassVar[int]
    REPLICAS_FIELD_NUMBER: _ClassVar[int]
    METADATA_OFFSET_FIELD_NUMBER: _ClassVar[int]
    METADATA_LAG_FIELD_NUMBER: _ClassVar[int]
    PENDING_CHANGES_FIELD_NUMBER: _ClassVar[int]
    CORDONED_FIELD_NUMBER: _ClassVar[int]
    broker_id: int
    broker_epoch: int
    state: str
    rack: str
    endpoints: _containers.RepeatedCompositeFieldContainer[_metadata_pb2.Endpoint]
    leaders: int
    replicas: int
    metadata_offset: int
    metadata_lag: int
    pending_changes: int
    cordoned: bool
    def __init__(self, broker_id: _Optional[int] = ..., broker_epoch: _Optional[int] = ..., state: _Optional[str] = ..., rack: _Optional[str] = ..., endpoints: _Optional[_Iterable[_Union[_metadata_pb2.Endpoint, _Mapping]]] = ..., leaders: _Optional[int] = ..., replicas: _Optional[int] = ..., metadata_offset: _Optional[int] = ..., metadata_lag: _Optional[int] = ..., pending_changes: _Optional[int] = ..., cordoned: bool = ...) -> None: ...

class DescribeBrokersReply(_message.Message):
    __slots__ = ("result", "offset", "cluster_id", "brokers")
    RESULT_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    CLUSTER_ID_FIELD_NUMBER: _ClassVar[int]
    BROKERS_FIELD_NUMBER: _ClassVar[int]
    result: Result
    offset: int
    cluster_id: str
    brokers: _containers.RepeatedCompositeFieldContainer[BrokerDescription]
    def __init__(self, result: _Optional[_Union[Result, _Mapping]] = ..., offset: _Optional[int] = ..., cluster_id: _Optional[str] = ..., brokers: _Optional[_Iterable[_Union[BrokerDescription, _Mapping]]] = ...) -> None: ...

class VoterAddress(_message.Message):
    __slots__ = ("node_id", "address")
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    node_id: int
    address: str
    def __init__(self, node_id: _Optional[int] = ..., address: _Optional[str] = ...) -> None: ...

class AddVoter(_message.Message):
    __slots__ = ("node_id", "address", "replace", "directory_id")
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    REPLACE_FIELD_NUMBER: _ClassVar[int]
    DIRECTORY_ID_FIELD_NUMBER: _ClassVar[int]
    node_id: int
    address: str
    replace: bool
    directory_id: bytes
    def __init__(self, node_id: _Optional[int] = ..., address: _Optional[str] = ..., replace: bool = ..., directory_id: _Optional[bytes] = ...) -> None: ...

class RemoveVoter(_message.Message):
    __slots__ = ("node_id", "directory_id")
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    DIRECTORY_ID_FIELD_NUMBER: _ClassVar[int]
    node_id: int
    directory_id: bytes
    def __init__(self, node_id: _Optional[int] = ..., directory_id: _Optional[bytes] = ...) -> None: ...

class UpdateVoter(_message.Message):
    __slots__ = ("node_id", "directory_id", "address")
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    DIRECTORY_ID_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    node_id: int
    directory_id: bytes
    address: str
    def __init__(self, node_id: _Optional[int] = ..., directory_id: _Optional[bytes] = ..., address: _Optional[str] = ...) -> None: ...

class SetTargetVoters(_message.Message):
    __slots__ = ("voters",)
    VOTERS_FIELD_NUMBER: _ClassVar[int]
    voters: _containers.RepeatedCompositeFieldContainer[VoterAddress]
    def __init__(self, voters: _Optional[_Iterable[_Union[VoterAddress, _Mapping]]] = ...) -> None: ...

class CancelTargetVoters(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ChangeVotersRequest(_message.Message):
    __slots__ = ("header", "add", "remove", "set_target", "cancel_target", "update")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    ADD_FIELD_NUMBER: _ClassVar[int]
    REMOVE_FIELD_NUMBER: _ClassVar[int]
    SET_TARGET_FIELD_NUMBER: _ClassVar[int]
    CANCEL_TARGET_FIELD_NUMBER: _ClassVar[int]
    UPDATE_FIELD_NUMBER: _ClassVar[int]
    header: RequestHeader
    add: AddVoter
    remove: RemoveVoter
    set_target: SetTargetVoters
    cancel_target: CancelTargetVoters
    update: UpdateVoter
    def __init__(self, header: _Optional[_Union[RequestHeader, _Mapping]] = ..., add: _Optional[_Union[AddVoter, _Mapping]] = ..., remove: _Optional[_Union[RemoveVoter, _Mapping]] = ..., set_target: _Optional[_Union[SetTargetVoters, _Mapping]] = ..., cancel_target: _Optional[_Union[CancelTargetVoters, _Mapping]] = ..., update: _Optional[_Union[UpdateVoter, _Mapping]] = ...) -> None: ...

class ChangeVotersReply(_message.Message):
    __slots__ = ("result", "changed", "offset", "voters", "target")
    RESULT_FIELD_NUMBER: _ClassVar[int]
    CHANGED_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    VOTERS_FIELD_NUMBER: _ClassVar[int]
    TARGET_FIELD_NUMBER: _ClassVar[int]
    result: Result
    changed: bool
    offset: int
    voters: _containers.RepeatedCompositeFieldContainer[VoterAddress]
    target: _containers.RepeatedCompositeFieldContainer[VoterAddress]
    def __init__(self, result: _Optional[_Union[Result, _Mapping]] = ..., changed: bool = ..., offset: _Optional[int] = ..., voters: _Optional[_Iterable[_Union[VoterAddress, _Mapping]]] = ..., target: _Optional[_Iterable[_Union[VoterAddress, _Mapping]]] = ...) -> None: ...

class TransferLeaderRequest(_message.Message):
    __slots__ = ("header", "to")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    TO_FIELD_NUMBER: _ClassVar[int]
    header: RequestHeader
    to: int
    def __init__(self, header: _Optional[_Union[RequestHeader, _Mapping]] = ..., to: _Optional[int] = ...) -> None: ...

class TransferLeaderReply(_message.Message):
    __slots__ = ("result",)
    RESULT_FIELD_NUMBER: _ClassVar[int]
    result: Result
    def __init__(self, result: _Optional[_Union[Result, _Mapping]] = ...) -> None: ...

class SetPreferredControllersRequest(_message.Message):
    __slots__ = ("header", "node_ids", "auto")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    NODE_IDS_FIELD_NUMBER: _ClassVar[int]
    AUTO_FIELD_NUMBER: _ClassVar[int]
    header: RequestHeader
    node_ids: _containers.RepeatedScalarFieldContainer[int]
    auto: bool
    def __init__(self, header: _Optional[_Union[RequestHeader, _Mapping]] = ..., node_ids: _Optional[_Iterable[int]] = ..., auto: bool = ...) -> None: ...

class SetPreferredControllersReply(_message.Message):
    __slots__ = ("result", "changed", "offset", "node_ids")
    RESULT_FIELD_NUMBER: _ClassVar[int]
    CHANGED_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    NODE_IDS_FIELD_NUMBER: _ClassVar[int]
    result: Result
    changed: bool
    offset: int
    node_ids: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, result: _Optional[_Union[Result, _Mapping]] = ..., changed: bool = ..., offset: _Optional[int] = ..., node_ids: _Optional[_Iterable[int]] = ...) -> None: ...

class DescribePreferredControllersRequest(_message.Message):
    __slots__ = ("header",)
    HEADER_FIELD_NUMBER: _ClassVar[int]
    header: RequestHeader
    def __init__(self, header: _Optional[_Union[RequestHeader, _Mapping]] = ...) -> None: ...

class DescribePreferredControllersReply(_message.Message):
    __slots__ = ("result", "offset", "node_ids")
    RESULT_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    NODE_IDS_FIELD_NUMBER: _ClassVar[int]
    result: Result
    offset: int
    node_ids: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, result: _Optional[_Union[Result, _Mapping]] = ..., offset: _Optional[int] = ..., node_ids: _Optional[_Iterable[int]] = ...) -> None: ...

class DescribeFeaturesRequest(_message.Message):
    __slots__ = ("header",)
    HEADER_FIELD_NUMBER: _ClassVar[int]
    header: RequestHeader
    def __init__(self, header: _Optional[_Union[RequestHeader, _Mapping]] = ...) -> None: ...

class DescribedFeature(_message.Message):
    __slots__ = ("name", "level", "lowest", "highest", "limited_by")
    NAME_FIELD_NUMBER: _ClassVar[int]
    LEVEL_FIELD_NUMBER: _ClassVar[int]
    LOWEST_FIELD_NUMBER: _ClassVar[int]
    HIGHEST_FIELD_NUMBER: _ClassVar[int]
    LIMITED_BY_FIELD_NUMBER: _ClassVar[int]
    name: str
    level: int
    lowest: int
    highest: int
    limited_by: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, name: _Optional[str] = ..., level: _Optional[int] = ..., lowest: _Optional[int] = ..., highest: _Optional[int] = ..., limited_by: _Optional[_Iterable[int]] = ...) -> None: ...

class DescribeFeaturesReply(_message.Message):
    __slots__ = ("result", "offset", "features")
    RESULT_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    FEATURES_FIELD_NUMBER: _ClassVar[int]
    result: Result
    offset: int
    features: _containers.RepeatedCompositeFieldContainer[DescribedFeature]
    def __init__(self, result: _Optional[_Union[Result, _Mapping]] = ..., offset: _Optional[int] = ..., features: _Optional[_Iterable[_Union[DescribedFeature, _Mapping]]] = ...) -> None: ...

class UpgradeFeatureRequest(_message.Message):
    __slots__ = ("header", "name", "level")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    LEVEL_FIELD_NUMBER: _ClassVar[int]
    header: RequestHeader
    name: str
    level: int
    def __init__(self, header: _Optional[_Union[RequestHeader, _Mapping]] = ..., name: _Optional[str] = ..., level: _Optional[int] = ...) -> None: ...

class UpgradeFeatureReply(_message.Message):
    __slots__ = ("result", "changed", "offset", "level")
    RESULT_FIELD_NUMBER: _ClassVar[int]
    CHANGED_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    LEVEL_FIELD_NUMBER: _ClassVar[int]
    result: Result
    changed: bool
    offset: int
    level: int
    def __init__(self, result: _Optional[_Union[Result, _Mapping]] = ..., changed: bool = ..., offset: _Optional[int] = ..., level: _Optional[int] = ...) -> None: ...

class TopicPartition(_message.Message):
    __slots__ = ("topic", "index")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    topic: str
    index: int
    def __init__(self, topic: _Optional[str] = ..., index: _Optional[int] = ...) -> None: ...

class ElectLeadersRequest(_message.Message):
    __slots__ = ("header", "policy", "partitions")
    class Policy(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        POLICY_UNSPECIFIED: _ClassVar[ElectLeadersRequest.Policy]
        POLICY_PREFERRED: _ClassVar[ElectLeadersRequest.Policy]
        POLICY_UNCLEAN: _ClassVar[ElectLeadersRequest.Policy]
    POLICY_UNSPECIFIED: ElectLeadersRequest.Policy
    POLICY_PREFERRED: ElectLeadersRequest.Policy
    POLICY_UNCLEAN: ElectLeadersRequest.Policy
    HEADER_FIELD_NUMBER: _ClassVar[int]
    POLICY_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    header: RequestHeader
    policy: ElectLeadersRequest.Policy
    partitions: _containers.RepeatedCompositeFieldContainer[TopicPartition]
    def __init__(self, header: _Optional[_Union[RequestHeader, _Mapping]] = ..., policy: _Optional[_Union[ElectLeadersRequest.Policy, str]] = ..., partitions: _Optional[_Iterable[_Union[TopicPartition, _Mapping]]] = ...) -> None: ...

class ElectedLeader(_message.Message):
    __slots__ = ("topic", "index", "result", "leader", "leader_epoch", "unclean")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    RESULT_FIELD_NUMBER: _ClassVar[int]
    LEADER_FIELD_NUMBER: _ClassVar[int]
    LEADER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    UNCLEAN_FIELD_NUMBER: _ClassVar[int]
    topic: str
    index: int
    result: Result
    leader: int
    leader_epoch: int
    unclean: bool
    def __init__(self, topic: _Optional[str] = ..., index: _Optional[int] = ..., result: _Optional[_Union[Result, _Mapping]] = ..., leader: _Optional[int] = ..., leader_epoch: _Optional[int] = ..., unclean: bool = ...) -> None: ...

class ElectLeadersReply(_message.Message):
    __slots__ = ("result", "changed", "offset", "partitions")
    RESULT_FIELD_NUMBER: _ClassVar[int]
    CHANGED_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    result: Result
    changed: bool
    offset: int
    partitions: _containers.RepeatedCompositeFieldContainer[ElectedLeader]
    def __init__(self, result: _Optional[_Union[Result, _Mapping]] = ..., changed: bool = ..., offset: _Optional[int] = ..., partitions: _Optional[_Iterable[_Union[ElectedLeader, _Mapping]]] = ...) -> None: ...

class NewPartitions(_message.Message):
    __slots__ = ("topic", "count", "assignment")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    ASSIGNMENT_FIELD_NUMBER: _ClassVar[int]
    topic: str
    count: int
    assignment: _containers.RepeatedCompositeFieldContainer[_metadata_pb2.IntList]
    def __init__(self, topic: _Optional[str] = ..., count: _Optional[int] = ..., assignment: _Optional[_Iterable[_Union[_metadata_pb2.IntList, _Mapping]]] = ...) -> None: ...

class AddPartitionsRequest(_message.Message):
    __slots__ = ("header", "topics")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    header: RequestHeader
    topics: _containers.RepeatedCompositeFieldContainer[NewPartitions]
    def __init__(self, header: _Optional[_Union[RequestHeader, _Mapping]] = ..., topics: _Optional[_Iterable[_Union[NewPartitions, _Mapping]]] = ...) -> None: ...

class ChangedTopic(_message.Message):
    __slots__ = ("topic", "result", "topic_id", "partitions", "changed")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    RESULT_FIELD_NUMBER: _ClassVar[int]
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    CHANGED_FIELD_NUMBER: _ClassVar[int]
    topic: str
    result: Result
    topic_id: bytes
    partitions: int
    changed: bool
    def __init__(self, topic: _Optional[str] = ..., result: _Optional[_Union[Result, _Mapping]] = ..., topic_id: _Optional[bytes] = ..., partitions: _Optional[int] = ..., changed: bool = ...) -> None: ...

class AddPartitionsReply(_message.Message):
    __slots__ = ("result", "offset", "topics")
    RESULT_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    result: Result
    offset: int
    topics: _containers.RepeatedCompositeFieldContainer[ChangedTopic]
    def __init__(self, result: _Optional[_Union[Result, _Mapping]] = ..., offset: _Optional[int] = ..., topics: _Optional[_Iterable[_Union[ChangedTopic, _Mapping]]] = ...) -> None: ...

class RemovePartitionsRequest(_message.Message):
    __slots__ = ("header", "topic", "count")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    header: RequestHeader
    topic: str
    count: int
    def __init__(self, header: _Optional[_Union[RequestHeader, _Mapping]] = ..., topic: _Optional[str] = ..., count: _Optional[int] = ...) -> None: ...

class RemovePartitionsReply(_message.Message):
    __slots__ = ("result", "offset", "topic")
    RESULT_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    result: Result
    offset: int
    topic: ChangedTopic
    def __init__(self, result: _Optional[_Union[Result, _Mapping]] = ..., offset: _Optional[int] = ..., topic: _Optional[_Union[ChangedTopic, _Mapping]] = ...) -> None: ...

class ConfigResource(_message.Message):
    __slots__ = ("scope", "name")
    SCOPE_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    scope: _metadata_pb2.Config.Scope
    name: str
    def __init__(self, scope: _Optional[_Union[_metadata_pb2.Config.Scope, str]] = ..., name: _Optional[str] = ...) -> None: ...

class ConfigChange(_message.Message):
    __slots__ = ("key", "value")
    KEY_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    key: str
    value: str
    def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...

class ConfigChanges(_message.Message):
    __slots__ = ("resource", "changes", "replace_all")
    RESOURCE_FIELD_NUMBER: _ClassVar[int]
    CHANGES_FIELD_NUMBER: _ClassVar[int]
    REPLACE_ALL_FIELD_NUMBER: _ClassVar[int]
    resource: ConfigResource
    changes: _containers.RepeatedCompositeFieldContainer[ConfigChange]
    replace_all: bool
    def __init__(self, resource: _Optional[_Union[ConfigResource, _Mapping]] = ..., changes: _Optional[_Iterable[_Union[ConfigChange, _Mapping]]] = ..., replace_all: bool = ...) -> None: ...

class AlterConfigsRequest(_message.Message):
    __slots__ = ("header", "resources")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    RESOURCES_FIELD_NUMBER: _ClassVar[int]
    header: RequestHeader
    resources: _containers.RepeatedCompositeFieldContainer[ConfigChanges]
    def __init__(self, header: _Optional[_Union[RequestHeader, _Mapping]] = ..., resources: _Optional[_Iterable[_Union[ConfigChanges, _Mapping]]] = ...) -> None: ...

class AlteredConfigs(_message.Message):
    __slots__ = ("resource", "result", "changed")
    RESOURCE_FIELD_NUMBER: _ClassVar[int]
    RESULT_FIELD_NUMBER: _ClassVar[int]
    CHANGED_FIELD_NUMBER: _ClassVar[int]
    resource: ConfigResource
    result: Result
    changed: bool
    def __init__(self, resource: _Optional[_Union[ConfigResource, _Mapping]] = ..., result: _Optional[_Union[Result, _Mapping]] = ..., changed: bool = ...) -> None: ...

class AlterConfigsReply(_message.Message):
    __slots__ = ("result", "offset", "resources")
    RESULT_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    RESOURCES_FIELD_NUMBER: _ClassVar[int]
    result: Result
    offset: int
    resources: _containers.RepeatedCompositeFieldContainer[AlteredConfigs]
    def __init__(self, result: _Optional[_Union[Result, _Mapping]] = ..., offset: _Optional[int] = ..., resources: _Optional[_Iterable[_Union[AlteredConfigs, _Mapping]]] = ...) -> None: ...

class DescribeConfigsRequest(_message.Message):
    __slots__ = ("header", "resources")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    RESOURCES_FIELD_NUMBER: _ClassVar[int]
    header: RequestHeader
    resources: _containers.RepeatedCompositeFieldContainer[ConfigResource]
    def __init__(self, header: _Optional[_Union[RequestHeader, _Mapping]] = ..., resources: _Optional[_Iterable[_Union[ConfigResource, _Mapping]]] = ...) -> None: ...

class DescribedConfig(_message.Message):
    __slots__ = ("key", "value", "source", "allowed")
    KEY_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    ALLOWED_FIELD_NUMBER: _ClassVar[int]
    key: str
    value: str
    source: str
    allowed: str
    def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ..., source: _Optional[str] = ..., allowed: _Optional[str] = ...) -> None: ...

class DescribedConfigs(_message.Message):
    __slots__ = ("resource", "result", "configs")
    RESOURCE_FIELD_NUMBER: _ClassVar[int]
    RESULT_FIELD_NUMBER: _ClassVar[int]
    CONFIGS_FIELD_NUMBER: _ClassVar[int]
    resource: ConfigResource
    result: Result
    configs: _containers.RepeatedCompositeFieldContainer[DescribedConfig]
    def __init__(self, resource: _Optional[_Union[ConfigResource, _Mapping]] = ..., result: _Optional[_Union[Result, _Mapping]] = ..., configs: _Optional[_Iterable[_Union[DescribedConfig, _Mapping]]] = ...) -> None: ...

class DescribeConfigsReply(_message.Message):
    __slots__ = ("result", "offset", "resources")
    RESULT_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    RESOURCES_FIELD_NUMBER: _ClassVar[int]
    result: Result
    offset: int
    resources: _containers.RepeatedCompositeFieldContainer[DescribedConfigs]
    def __init__(self, result: _Optional[_Union[Result, _Mapping]] = ..., offset: _Optional[int] = ..., resources: _Optional[_Iterable[_Union[DescribedConfigs, _Mapping]]] = ...) -> None: ...

class UnregisterBrokerRequest(_message.Message):
    __slots__ = ("header", "broker_id")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    BROKER_ID_FIELD_NUMBER: _ClassVar[int]
    header: RequestHeader
    broker_id: int
    def __init__(self, header: _Optional[_Union[RequestHeader, _Mapping]] = ..., broker_id: _Optional[int] = ...) -> None: ...

class UnregisterBrokerReply(_message.Message):
    __slots__ = ("result", "changed", "offset")
    RESULT_FIELD_NUMBER: _ClassVar[int]
    CHANGED_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    result: Result
    changed: bool
    offset: int
    def __init__(self, result: _Optional[_Union[Result, _Mapping]] = ..., changed: bool = ..., offset: _Optional[int] = ...) -> None: ...

class Reassignment(_message.Message):
    __slots__ = ("topic", "index", "replicas")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    REPLICAS_FIELD_NUMBER: _ClassVar[int]
    topic: str
    index: int
    replicas: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, topic: _Optional[str] = ..., index: _Optional[int] = ..., replicas: _Optional[_Iterable[int]] = ...) -> None: ...

class AlterReassignmentsRequest(_message.Message):
    __slots__ = ("header", "partitions", "replace", "throttle", "keep_replication_factor")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    REPLACE_FIELD_NUMBER: _ClassVar[int]
    THROTTLE_FIELD_NUMBER: _ClassVar[int]
    KEEP_REPLICATION_FACTOR_FIELD_NUMBER: _ClassVar[int]
    header: RequestHeader
    partitions: _containers.RepeatedCompositeFieldContainer[Reassignment]
    replace: bool
    throttle: int
    keep_replication_factor: bool
    def __init__(self, header: _Optional[_Union[RequestHeader, _Mapping]] = ..., partitions: _Optional[_Iterable[_Union[Reassignment, _Mapping]]] = ..., replace: bool = ..., throttle: _Optional[int] = ..., keep_replication_factor: bool = ...) -> None: ...

class AlteredReassignment(_message.Message):
    __slots__ = ("topic", "index", "result", "changed")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    RESULT_FIELD_NUMBER: _ClassVar[int]
    CHANGED_FIELD_NUMBER: _ClassVar[int]
    topic: str
    index: int
    result: Result
    changed: bool
    def __init__(self, topic: _Optional[str] = ..., index: _Optional[int] = ..., result: _Optional[_Union[Result, _Mapping]] = ..., changed: bool = ...) -> None: ...

class AlterReassignmentsReply(_message.Message):
    __slots__ = ("result", "changed", "offset", "partitions")
    RESULT_FIELD_NUMBER: _ClassVar[int]
    CHANGED_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    result: Result
    changed: bool
    offset: int
    partitions: _containers.RepeatedCompositeFieldContainer[AlteredReassignment]
    def __init__(self, result: _Optional[_Union[Result, _Mapping]] = ..., changed: bool = ..., offset: _Optional[int] = ..., partitions: _Optional[_Iterable[_Union[AlteredReassignment, _Mapping]]] = ...) -> None: ...

class ListReassignmentsRequest(_message.Message):
    __slots__ = ("header", "partitions")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    header: RequestHeader
    partitions: _containers.RepeatedCompositeFieldContainer[TopicPartition]
    def __init__(self, header: _Optional[_Union[RequestHeader, _Mapping]] = ..., partitions: _Optional[_Iterable[_Union[TopicPartition, _Mapping]]] = ...) -> None: ...

class OngoingReassignment(_message.Message):
    __slots__ = ("topic", "index", "replicas", "adding", "removing", "isr", "leader")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    REPLICAS_FIELD_NUMBER: _ClassVar[int]
    ADDING_FIELD_NUMBER: _ClassVar[int]
    REMOVING_FIELD_NUMBER: _ClassVar[int]
    ISR_FIELD_NUMBER: _ClassVar[int]
    LEADER_FIELD_NUMBER: _ClassVar[int]
    topic: str
    index: int
    replicas: _containers.RepeatedScalarFieldContainer[int]
    adding: _containers.RepeatedScalarFieldContainer[int]
    removing: _containers.RepeatedScalarFieldContainer[int]
    isr: _containers.RepeatedScalarFieldContainer[int]
    leader: int
    def __init__(self, topic: _Optional[str] = ..., index: _Optional[int] = ..., replicas: _Optional[_Iterable[int]] = ..., adding: _Optional[_Iterable[int]] = ..., removing: _Optional[_Iterable[int]] = ..., isr: _Optional[_Iterable[int]] = ..., leader: _Optional[int] = ...) -> None: ...

class ListReassignmentsReply(_message.Message):
    __slots__ = ("result", "offset", "throttle", "partitions")
    RESULT_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    THROTTLE_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    result: Result
    offset: int
    throttle: int
    partitions: _containers.RepeatedCompositeFieldContainer[OngoingReassignment]
    def __init__(self, result: _Optional[_Union[Result, _Mapping]] = ..., offset: _Optional[int] = ..., throttle: _Optional[int] = ..., partitions: _Optional[_Iterable[_Union[OngoingReassignment, _Mapping]]] = ...) -> None: ...
