from quorumlog.wire.v1 import controller_pb2 as _controller_pb2
from quorumlog.wire.v1 import metadata_pb2 as _metadata_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class DescribeNodeRequest(_message.Message):
    __slots__ = ("header",)
    HEADER_FIELD_NUMBER: _ClassVar[int]
    header: _controller_pb2.RequestHeader
    def __init__(self, header: _Optional[_Union[_controller_pb2.RequestHeader, _Mapping]] = ...) -> None: ...

class CheckResult(_message.Message):
    __slots__ = ("name", "ok", "detail")
    NAME_FIELD_NUMBER: _ClassVar[int]
    OK_FIELD_NUMBER: _ClassVar[int]
    DETAIL_FIELD_NUMBER: _ClassVar[int]
    name: str
    ok: bool
    detail: str
    def __init__(self, name: _Optional[str] = ..., ok: bool = ..., detail: _Optional[str] = ...) -> None: ...

class Directory(_message.Message):
    __slots__ = ("path", "free_bytes", "total_bytes", "problem")
    PATH_FIELD_NUMBER: _ClassVar[int]
    FREE_BYTES_FIELD_NUMBER: _ClassVar[int]
    TOTAL_BYTES_FIELD_NUMBER: _ClassVar[int]
    PROBLEM_FIELD_NUMBER: _ClassVar[int]
    path: str
    free_bytes: int
    total_bytes: int
    problem: str
    def __init__(self, path: _Optional[str] = ..., free_bytes: _Optional[int] = ..., total_bytes: _Optional[int] = ..., problem: _Optional[str] = ...) -> None: ...

class NodeEnd(_message.Message):
    __slots__ = ("node_id", "at_ms", "exit_status", "cause", "next", "directories")
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    AT_MS_FIELD_NUMBER: _ClassVar[int]
    EXIT_STATUS_FIELD_NUMBER: _ClassVar[int]
    CAUSE_FIELD_NUMBER: _ClassVar[int]
    NEXT_FIELD_NUMBER: _ClassVar[int]
    DIRECTORIES_FIELD_NUMBER: _ClassVar[int]
    node_id: int
    at_ms: int
    exit_status: int
    cause: str
    next: str
    directories: _containers.RepeatedCompositeFieldContainer[Directory]
    def __init__(self, node_id: _Optional[int] = ..., at_ms: _Optional[int] = ..., exit_status: _Optional[int] = ..., cause: _Optional[str] = ..., next: _Optional[str] = ..., directories: _Optional[_Iterable[_Union[Directory, _Mapping]]] = ...) -> None: ...

class DescribeNodeReply(_message.Message):
    __slots__ = ("result", "node_id", "role", "epoch", "controller_active", "leading_ms", "applied_offset", "high_watermark", "checks", "fsync_p99_us", "is_broker", "directories_offline", "broker_applied_offset", "pending_changes", "directories", "ends", "wall_ms", "compaction", "dead_letters")
    RESULT_FIELD_NUMBER: _ClassVar[int]
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    CONTROLLER_ACTIVE_FIELD_NUMBER: _ClassVar[int]
    LEADING_MS_FIELD_NUMBER: _ClassVar[int]
    APPLIED_OFFSET_FIELD_NUMBER: _ClassVar[int]
    HIGH_WATERMARK_FIELD_NUMBER: _ClassVar[int]
    CHECKS_FIELD_NUMBER: _ClassVar[int]
    FSYNC_P99_US_FIELD_NUMBER: _ClassVar[int]
    IS_BROKER_FIELD_NUMBER: _ClassVar[int]
    DIRECTORIES_OFFLINE_FIELD_NUMBER: _ClassVar[int]
    BROKER_APPLIED_OFFSET_FIELD_NUMBER: _ClassVar[int]
    PENDING_CHANGES_FIELD_NUMBER: _ClassVar[int]
    DIRECTORIES_FIELD_NUMBER: _ClassVar[int]
    ENDS_FIELD_NUMBER: _ClassVar[int]
    WALL_MS_FIELD_NUMBER: _ClassVar[int]
    COMPACTION_FIELD_NUMBER: _ClassVar[int]
    DEAD_LETTERS_FIELD_NUMBER: _ClassVar[int]
    result: _controller_pb2.Result
    node_id: int
    role: str
    epoch: int
    controller_active: bool
    leading_ms: int
    applied_offset: int
    high_watermark: int
    checks: _containers.RepeatedCompositeFieldContainer[CheckResult]
    fsync_p99_us: int
    is_broker: bool
    directories_offline: _containers.RepeatedScalarFieldContainer[str]
    broker_applied_offset: int
    pending_changes: int
    directories: _containers.RepeatedCompositeFieldContainer[Directory]
    ends: _containers.RepeatedCompositeFieldContainer[NodeEnd]
    wall_ms: int
    compaction: Compaction
    dead_letters: DeadLetters
    def __init__(self, result: _Optional[_Union[_controller_pb2.Result, _Mapping]] = ..., node_id: _Optional[int] = ..., role: _Optional[str] = ..., epoch: _Optional[int] = ..., controller_active: bool = ..., leading_ms: _Optional[int] = ..., applied_offset: _Optional[int] = ..., high_watermark: _Optional[int] = ..., checks: _Optional[_Iterable[_Union[CheckResult, _Mapping]]] = ..., fsync_p99_us: _Optional[int] = ..., is_broker: bool = ..., directories_offline: _Optional[_Iterable[str]] = ..., broker_applied_offset: _Optional[int] = ..., pending_changes: _Optional[int] = ..., directories: _Optional[_Iterable[_Union[Directory, _Mapping]]] = ..., ends: _Optional[_Iterable[_Union[NodeEnd, _Mapping]]] = ..., wall_ms: _Optional[int] = ..., compaction: _Optional[_Union[Compaction, _Mapping]] = ..., dead_letters: _Optional[_Union[DeadLetters, _Mapping]] = ...) -> None: ...

class UncleanableLog(_message.Message):
    __slots__ = ("topic", "index", "cause", "is_final")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    CAUSE_FIELD_NUMBER: _ClassVar[int]
    IS_FINAL_FIELD_NUMBER: _ClassVar[int]
    topic: str
    index: int
    cause: str
    is_final: bool
    def __init__(self, topic: _Optional[str] = ..., index: _Optional[int] = ..., cause: _Optional[str] = ..., is_final: bool = ...) -> None: ...

class Compaction(_message.Message):
    __slots__ = ("uncleanable", "uncleanable_count", "dirty_bytes", "due", "longest_wait_ms")
    UNCLEANABLE_FIELD_NUMBER: _ClassVar[int]
    UNCLEANABLE_COUNT_FIELD_NUMBER: _ClassVar[int]
    DIRTY_BYTES_FIELD_NUMBER: _ClassVar[int]
    DUE_FIELD_NUMBER: _ClassVar[int]
    LONGEST_WAIT_MS_FIELD_NUMBER: _ClassVar[int]
    uncleanable: _containers.RepeatedCompositeFieldContainer[UncleanableLog]
    uncleanable_count: int
    dirty_bytes: int
    due: int
    longest_wait_ms: int
    def __init__(self, uncleanable: _Optional[_Iterable[_Union[UncleanableLog, _Mapping]]] = ..., uncleanable_count: _Optional[int] = ..., dirty_bytes: _Optional[int] = ..., due: _Optional[int] = ..., longest_wait_ms: _Optional[int] = ...) -> None: ...

class FailingDeadLetters(_message.Message):
    __slots__ = ("group", "topic", "index", "dead_letter_topic", "cause", "since_ms")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    DEAD_LETTER_TOPIC_FIELD_NUMBER: _ClassVar[int]
    CAUSE_FIELD_NUMBER: _ClassVar[int]
    SINCE_MS_FIELD_NUMBER: _ClassVar[int]
    group: str
    topic: str
    index: int
    dead_letter_topic: str
    cause: str
    since_ms: int
    def __init__(self, group: _Optional[str] = ..., topic: _Optional[str] = ..., index: _Optional[int] = ..., dead_letter_topic: _Optional[str] = ..., cause: _Optional[str] = ..., since_ms: _Optional[int] = ...) -> None: ...

class DeadLetters(_message.Message):
    __slots__ = ("failing", "failing_count")
    FAILING_FIELD_NUMBER: _ClassVar[int]
    FAILING_COUNT_FIELD_NUMBER: _ClassVar[int]
    failing: _containers.RepeatedCompositeFieldContainer[FailingDeadLetters]
    failing_count: int
    def __init__(self, failing: _Optional[_Iterable[_Union[FailingDeadLetters, _Mapping]]] = ..., failing_count: _Optional[int] = ...) -> None: ...

class ReadMetadataRequest(_message.Message):
    __slots__ = ("header", "from_offset", "max_bytes", "wait_ms")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    FROM_OFFSET_FIELD_NUMBER: _ClassVar[int]
    MAX_BYTES_FIELD_NUMBER: _ClassVar[int]
    WAIT_MS_FIELD_NUMBER: _ClassVar[int]
    header: _controller_pb2.RequestHeader
    from_offset: int
    max_bytes: int
    wait_ms: int
    def __init__(self, header: _Optional[_Union[_controller_pb2.RequestHeader, _Mapping]] = ..., from_offset: _Optional[int] = ..., max_bytes: _Optional[int] = ..., wait_ms: _Optional[int] = ...) -> None: ...

class MetadataBatch(_message.Message):
    __slots__ = ("base_offset", "count", "epoch", "timestamp_ms", "records", "control")
    BASE_OFFSET_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    TIMESTAMP_MS_FIELD_NUMBER: _ClassVar[int]
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    CONTROL_FIELD_NUMBER: _ClassVar[int]
    base_offset: int
    count: int
    epoch: int
    timestamp_ms: int
    records: _metadata_pb2.Records
    control: str
    def __init__(self, base_offset: _Optional[int] = ..., count: _Optional[int] = ..., epoch: _Optional[int] = ..., timestamp_ms: _Optional[int] = ..., records: _Optional[_Union[_metadata_pb2.Records, _Mapping]] = ..., control: _Optional[str] = ...) -> None: ...

class ReadMetadataReply(_message.Message):
    __slots__ = ("result", "log_start", "high_watermark", "batches", "next_offset")
    RESULT_FIELD_NUMBER: _ClassVar[int]
    LOG_START_FIELD_NUMBER: _ClassVar[int]
    HIGH_WATERMARK_FIELD_NUMBER: _ClassVar[int]
    BATCHES_FIELD_NUMBER: _ClassVar[int]
    NEXT_OFFSET_FIELD_NUMBER: _ClassVar[int]
    result: _controller_pb2.Result
    log_start: int
    high_watermark: int
    batches: _containers.RepeatedCompositeFieldContainer[MetadataBatch]
    next_offset: int
    def __init__(self, result: _Optional[_Union[_controller_pb2.Result, _Mapping]] = ..., log_start: _Optional[int] = ..., high_watermark: _Optional[int] = ..., batches: _Optional[_Iterable[_Union[MetadataBatch, _Mapping]]] = ..., next_offset: _Optional[int] = ...) -> None: ...

class DescribeMetadataRequest(_message.Message):
    __slots__ = ("header", "at_offset", "topics", "without_partitions")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    AT_OFFSET_FIELD_NUMBER: _ClassVar[int]
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    WITHOUT_PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    header: _controller_pb2.RequestHeader
    at_offset: int
    topics: _containers.RepeatedScalarFieldContainer[str]
    without_partitions: bool
    def __init__(self, header: _Optional[_Union[_controller_pb2.RequestHeader, _Mapping]] = ..., at_offset: _Optional[int] = ..., topics: _Optional[_Iterable[str]] = ..., without_partitions: bool = ...) -> None: ...

class DescribeMetadataReply(_message.Message):
    __slots__ = ("result", "offset", "history_begins", "timestamp_ms", "topics", "brokers", "configs", "preferred_controllers", "features", "voters", "target_voters")
    RESULT_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    HISTORY_BEGINS_FIELD_NUMBER: _ClassVar[int]
    TIMESTAMP_MS_FIELD_NUMBER: _ClassVar[int]
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    BROKERS_FIELD_NUMBER: _ClassVar[int]
    CONFIGS_FIELD_NUMBER: _ClassVar[int]
    PREFERRED_CONTROLLERS_FIELD_NUMBER: _ClassVar[int]
    FEATURES_FIELD_NUMBER: _ClassVar[int]
    VOTERS_FIELD_NUMBER: _ClassVar[int]
    TARGET_VOTERS_FIELD_NUMBER: _ClassVar[int]
    result: _controller_pb2.Result
    offset: int
    history_begins: int
    timestamp_ms: int
    topics: _containers.RepeatedCompositeFieldContainer[_controller_pb2.TopicDescription]
    brokers: _containers.RepeatedCompositeFieldContainer[_controller_pb2.BrokerDescription]
    configs: _containers.RepeatedCompositeFieldContainer[_metadata_pb2.Config]
    preferred_controllers: _containers.RepeatedScalarFieldContainer[int]
    features: _containers.RepeatedCompositeFieldContainer[_metadata_pb2.Feature]
    voters: _containers.RepeatedCompositeFieldContainer[_controller_pb2.VoterAddress]
    target_voters: _containers.RepeatedCompositeFieldContainer[_controller_pb2.VoterAddress]
    def __init__(self, result: _Optional[_Union[_controller_pb2.Result, _Mapping]] = ..., offset: _Optional[int] = ..., history_begins: _Optional[int] = ..., timestamp_ms: _Optional[int] = ..., topics: _Optional[_Iterable[_Union[_controller_pb2.TopicDescription, _Mapping]]] = ..., brokers: _Optional[_Iterable[_Union[_controller_pb2.BrokerDescription, _Mapping]]] = ..., configs: _Optional[_Iterable[_Union[_metadata_pb2.Config, _Mapping]]] = ..., preferred_controllers: _Optional[_Iterable[int]] = ..., features: _Optional[_Iterable[_Union[_metadata_pb2.Feature, _Mapping]]] = ..., voters: _Optional[_Iterable[_Union[_controller_pb2.VoterAddress, _Mapping]]] = ..., target_voters: _Optional[_Iterable[_Union[_controller_pb2.VoterAddress, _Mapping]]] = ...) -> None: ...

class ExplainPartitionRequest(_message.Message):
    __slots__ = ("header", "partition", "max_changes")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    MAX_CHANGES_FIELD_NUMBER: _ClassVar[int]
    header: _controller_pb2.RequestHeader
    partition: _controller_pb2.TopicPartition
    max_changes: int
    def __init__(self, header: _Optional[_Union[_controller_pb2.RequestHeader, _Mapping]] = ..., partition: _Optional[_Union[_controller_pb2.TopicPartition, _Mapping]] = ..., max_changes: _Optional[int] = ...) -> None: ...

class ExplainedChange(_message.Message):
    __slots__ = ("offset", "timestamp_ms", "epoch", "reason", "cause_offset", "text")
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    TIMESTAMP_MS_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    CAUSE_OFFSET_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    offset: int
    timestamp_ms: int
    epoch: int
    reason: str
    cause_offset: int
    text: str
    def __init__(self, offset: _Optional[int] = ..., timestamp_ms: _Optional[int] = ..., epoch: _Optional[int] = ..., reason: _Optional[str] = ..., cause_offset: _Optional[int] = ..., text: _Optional[str] = ...) -> None: ...

class ExplainPartitionReply(_message.Message):
    __slots__ = ("result", "offset", "now", "chain", "history_begins", "complete")
    RESULT_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    NOW_FIELD_NUMBER: _ClassVar[int]
    CHAIN_FIELD_NUMBER: _ClassVar[int]
    HISTORY_BEGINS_FIELD_NUMBER: _ClassVar[int]
    COMPLETE_FIELD_NUMBER: _ClassVar[int]
    result: _controller_pb2.Result
    offset: int
    now: str
    chain: _containers.RepeatedCompositeFieldContainer[ExplainedChange]
    history_begins: int
    complete: bool
    def __init__(self, result: _Optional[_Union[_controller_pb2.Result, _Mapping]] = ..., offset: _Optional[int] = ..., now: _Optional[str] = ..., chain: _Optional[_Iterable[_Union[ExplainedChange, _Mapping]]] = ..., history_begins: _Optional[int] = ..., complete: bool = ...) -> None: ...

class ListAppliedBatchesRequest(_message.Message):
    __slots__ = ("header", "from_offset")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    FROM_OFFSET_FIELD_NUMBER: _ClassVar[int]
    header: _controller_pb2.RequestHeader
    from_offset: int
    def __init__(self, header: _Optional[_Union[_controller_pb2.RequestHeader, _Mapping]] = ..., from_offset: _Optional[int] = ...) -> None: ...

class AppliedBatch(_message.Message):
    __slots__ = ("end_offset", "received_ms", "completed_ms")
    END_OFFSET_FIELD_NUMBER: _ClassVar[int]
    RECEIVED_MS_FIELD_NUMBER: _ClassVar[int]
    COMPLETED_MS_FIELD_NUMBER: _ClassVar[int]
    end_offset: int
    received_ms: int
    completed_ms: int
    def __init__(self, end_offset: _Optional[int] = ..., received_ms: _Optional[int] = ..., completed_ms: _Optional[int] = ...) -> None: ...

class ListAppliedBatchesReply(_message.Message):
    __slots__ = ("result", "is_broker", "kept_from", "batches")
    RESULT_FIELD_NUMBER: _ClassVar[int]
    IS_BROKER_FIELD_NUMBER: _ClassVar[int]
    KEPT_FROM_FIELD_NUMBER: _ClassVar[int]
    BATCHES_FIELD_NUMBER: _ClassVar[int]
    result: _controller_pb2.Result
    is_broker: bool
    kept_from: int
    batches: _containers.RepeatedCompositeFieldContainer[AppliedBatch]
    def __init__(self, result: _Optional[_Union[_controller_pb2.Result, _Mapping]] = ..., is_broker: bool = ..., kept_from: _Optional[int] = ..., batches: _Optional[_Iterable[_Union[AppliedBatch, _Mapping]]] = ...) -> None: ...

class DescribeReplicasRequest(_message.Message):
    __slots__ = ("header", "topics")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    header: _controller_pb2.RequestHeader
    topics: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, header: _Optional[_Union[_controller_pb2.RequestHeader, _Mapping]] = ..., topics: _Optional[_Iterable[str]] = ...) -> None: ...

class ReplicaDescription(_message.Message):
    __slots__ = ("topic", "topic_id", "index", "state", "problem", "start_offset", "end_offset", "flushed_offset", "high_watermark", "bytes", "directory", "leader_epoch")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    PROBLEM_FIELD_NUMBER: _ClassVar[int]
    START_OFFSET_FIELD_NUMBER: _ClassVar[int]
    END_OFFSET_FIELD_NUMBER: _ClassVar[int]
    FLUSHED_OFFSET_FIELD_NUMBER: _ClassVar[int]
    HIGH_WATERMARK_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    DIRECTORY_FIELD_NUMBER: _ClassVar[int]
    LEADER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    topic: str
    topic_id: bytes
    index: int
    state: str
    problem: str
    start_offset: int
    end_offset: int
    flushed_offset: int
    high_watermark: int
    bytes: int
    directory: str
    leader_epoch: int
    def __init__(self, topic: _Optional[str] = ..., topic_id: _Optional[bytes] = ..., index: _Optional[int] = ..., state: _Optional[str] = ..., problem: _Optional[str] = ..., start_offset: _Optional[int] = ..., end_offset: _Optional[int] = ..., flushed_offset: _Optional[int] = ..., high_watermark: _Optional[int] = ..., bytes: _Optional[int] = ..., directory: _Optional[str] = ..., leader_epoch: _Optional[int] = ...) -> None: ...

class DescribeReplicasReply(_message.Message):
    __slots__ = ("result", "is_broker", "replicas")
    RESULT_FIELD_NUMBER: _ClassVar[int]
    IS_BROKER_FIELD_NUMBER: _ClassVar[int]
    REPLICAS_FIELD_NUMBER: _ClassVar[int]
    result: _controller_pb2.Result
    is_broker: bool
    replicas: _containers.RepeatedCompositeFieldContainer[ReplicaDescription]
    def __init__(self, result: _Optional[_Union[_controller_pb2.Result, _Mapping]] = ..., is_broker: bool = ..., replicas: _Optional[_Iterable[_Union[ReplicaDescription, _Mapping]]] = ...) -> None: ...

class PurgeStraysRequest(_message.Message):
    __slots__ = ("header", "dry_run")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    DRY_RUN_FIELD_NUMBER: _ClassVar[int]
    header: _controller_pb2.RequestHeader
    dry_run: bool
    def __init__(self, header: _Optional[_Union[_controller_pb2.RequestHeader, _Mapping]] = ..., dry_run: bool = ...) -> None: ...

class Stray(_message.Message):
    __slots__ = ("topic", "index", "path", "set_aside_ms", "kept")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    SET_ASIDE_MS_FIELD_NUMBER: _ClassVar[int]
    KEPT_FIELD_NUMBER: _ClassVar[int]
    topic: str
    index: int
    path: str
    set_aside_ms: int
    kept: bool
    def __init__(self, topic: _Optional[str] = ..., index: _Optional[int] = ..., path: _Optional[str] = ..., set_aside_ms: _Optional[int] = ..., kept: bool = ...) -> None: ...

class PurgeStraysReply(_message.Message):
    __slots__ = ("result", "is_broker", "strays")
    RESULT_FIELD_NUMBER: _ClassVar[int]
    IS_BROKER_FIELD_NUMBER: _ClassVar[int]
    STRAYS_FIELD_NUMBER: _ClassVar[int]
    result: _controller_pb2.Result
    is_broker: bool
    strays: _containers.RepeatedCompositeFieldContainer[Stray]
    def __init__(self, result: _Optional[_Union[_controller_pb2.Result, _Mapping]] = ..., is_broker: bool = ..., strays: _Optional[_Iterable[_Union[Stray, _Mapping]]] = ...) -> None: ...

class ReportEndRequest(_message.Message):
    __slots__ = ("header", "node_id", "end")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    header: _controller_pb2.RequestHeader
    node_id: int
    end: NodeEnd
    def __init__(self, header: _Optional[_Union[_controller_pb2.RequestHeader, _Mapping]] = ..., node_id: _Optional[int] = ..., end: _Optional[_Union[NodeEnd, _Mapping]] = ...) -> None: ...

class ReportEndReply(_message.Message):
    __slots__ = ("result",)
    RESULT_FIELD_NUMBER: _ClassVar[int]
    result: _controller_pb2.Result
    def __init__(self, result: _Optional[_Union[_controller_pb2.Result, _Mapping]] = ...) -> None: ...
