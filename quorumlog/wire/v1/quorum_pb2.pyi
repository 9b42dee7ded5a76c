from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class QuorumError(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    QUORUM_ERROR_UNSPECIFIED: _ClassVar[QuorumError]
    QUORUM_ERROR_NONE: _ClassVar[QuorumError]
    QUORUM_ERROR_INCONSISTENT_CLUSTER_ID: _ClassVar[QuorumError]
    QUORUM_ERROR_OLD_GENERATION: _ClassVar[QuorumError]
    QUORUM_ERROR_INVALID_VOTER_KEY: _ClassVar[QuorumError]
    QUORUM_ERROR_INVALID_REQUEST: _ClassVar[QuorumError]
    QUORUM_ERROR_FENCED_LEADER_EPOCH: _ClassVar[QuorumError]
    QUORUM_ERROR_UNKNOWN_LEADER_EPOCH: _ClassVar[QuorumError]
    QUORUM_ERROR_NOT_LEADER: _ClassVar[QuorumError]
    QUORUM_ERROR_NOT_VOTER: _ClassVar[QuorumError]
    QUORUM_ERROR_NEWBORN: _ClassVar[QuorumError]
    QUORUM_ERROR_SHUTTING_DOWN: _ClassVar[QuorumError]
    QUORUM_ERROR_SNAPSHOT_NOT_FOUND: _ClassVar[QuorumError]
    QUORUM_ERROR_POSITION_OUT_OF_RANGE: _ClassVar[QuorumError]
QUORUM_ERROR_UNSPECIFIED: QuorumError
QUORUM_ERROR_NONE: QuorumError
QUORUM_ERROR_INCONSISTENT_CLUSTER_ID: QuorumError
QUORUM_ERROR_OLD_GENERATION: QuorumError
QUORUM_ERROR_INVALID_VOTER_KEY: QuorumError
QUORUM_ERROR_INVALID_REQUEST: QuorumError
QUORUM_ERROR_FENCED_LEADER_EPOCH: QuorumError
QUORUM_ERROR_UNKNOWN_LEADER_EPOCH: QuorumError
QUORUM_ERROR_NOT_LEADER: QuorumError
QUORUM_ERROR_NOT_VOTER: QuorumError
QUORUM_ERROR_NEWBORN: QuorumError
QUORUM_ERROR_SHUTTING_DOWN: QuorumError
QUORUM_ERROR_SNAPSHOT_NOT_FOUND: QuorumError
QUORUM_ERROR_POSITION_OUT_OF_RANGE: QuorumError

class ReplicaKey(_message.Message):
    __slots__ = ("node_id", "directory_id")
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    DIRECTORY_ID_FIELD_NUMBER: _ClassVar[int]
    node_id: int
    directory_id: bytes
    def __init__(self, node_id: _Optional[int] = ..., directory_id: _Optional[bytes] = ...) -> None: ...

class Voter(_message.Message):
    __slots__ = ("key", "address")
    KEY_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    key: ReplicaKey
    address: str
    def __init__(self, key: _Optional[_Union[ReplicaKey, _Mapping]] = ..., address: _Optional[str] = ...) -> None: ...

class VoterSet(_message.Message):
    __slots__ = ("voters",)
    VOTERS_FIELD_NUMBER: _ClassVar[int]
    voters: _containers.RepeatedCompositeFieldContainer[Voter]
    def __init__(self, voters: _Optional[_Iterable[_Union[Voter, _Mapping]]] = ...) -> None: ...

class LogEnd(_message.Message):
    __slots__ = ("epoch", "offset")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    offset: int
    def __init__(self, epoch: _Optional[int] = ..., offset: _Optional[int] = ...) -> None: ...

class Sender(_message.Message):
    __slots__ = ("cluster_id", "generation", "key")
    CLUSTER_ID_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    cluster_id: str
    generation: int
    key: ReplicaKey
    def __init__(self, cluster_id: _Optional[str] = ..., generation: _Optional[int] = ..., key: _Optional[_Union[ReplicaKey, _Mapping]] = ...) -> None: ...

class Knowledge(_message.Message):
    __slots__ = ("cluster_id", "generation", "epoch", "leader_id", "leader_address")
    CLUSTER_ID_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    LEADER_ID_FIELD_NUMBER: _ClassVar[int]
    LEADER_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    cluster_id: str
    generation: int
    epoch: int
    leader_id: int
    leader_address: str
    def __init__(self, cluster_id: _Optional[str] = ..., generation: _Optional[int] = ..., epoch: _Optional[int] = ..., leader_id: _Optional[int] = ..., leader_address: _Optional[str] = ...) -> None: ...

class LeaderChange(_message.Message):
    __slots__ = ("leader", "voters", "granting_voters")
    LEADER_FIELD_NUMBER: _ClassVar[int]
    VOTERS_FIELD_NUMBER: _ClassVar[int]
    GRANTING_VOTERS_FIELD_NUMBER: _ClassVar[int]
    leader: ReplicaKey
    voters: _containers.RepeatedCompositeFieldContainer[ReplicaKey]
    granting_voters: _containers.RepeatedCompositeFieldContainer[ReplicaKey]
    def __init__(self, leader: _Optional[_Union[ReplicaKey, _Mapping]] = ..., voters: _Optional[_Iterable[_Union[ReplicaKey, _Mapping]]] = ..., granting_voters: _Optional[_Iterable[_Union[ReplicaKey, _Mapping]]] = ...) -> None: ...

class Voters(_message.Message):
    __slots__ = ("cluster_id", "generation", "voters")
    CLUSTER_ID_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    VOTERS_FIELD_NUMBER: _ClassVar[int]
    cluster_id: str
    generation: int
    voters: VoterSet
    def __init__(self, cluster_id: _Optional[str] = ..., generation: _Optional[int] = ..., voters: _Optional[_Union[VoterSet, _Mapping]] = ...) -> None: ...

class TargetVoters(_message.Message):
    __slots__ = ("target",)
    TARGET_FIELD_NUMBER: _ClassVar[int]
    target: VoterSet
    def __init__(self, target: _Optional[_Union[VoterSet, _Mapping]] = ...) -> None: ...

class ControlRecord(_message.Message):
    __slots__ = ("leader_change", "voters", "target_voters")
    LEADER_CHANGE_FIELD_NUMBER: _ClassVar[int]
    VOTERS_FIELD_NUMBER: _ClassVar[int]
    TARGET_VOTERS_FIELD_NUMBER: _ClassVar[int]
    leader_change: LeaderChange
    voters: Voters
    target_voters: TargetVoters
    def __init__(self, leader_change: _Optional[_Union[LeaderChange, _Mapping]] = ..., voters: _Optional[_Union[Voters, _Mapping]] = ..., target_voters: _Optional[_Union[TargetVoters, _Mapping]] = ...) -> None: ...

class Batch(_message.Message):
    __slots__ = ("base_offset", "epoch", "count", "timestamp_ms", "payload", "control", "crc")
    BASE_OFFSET_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    TIMESTAMP_MS_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    CONTROL_FIELD_NUMBER: _ClassVar[int]
    CRC_FIELD_NUMBER: _ClassVar[int]
    base_offset: int
    epoch: int
    count: int
    timestamp_ms: int
    payload: bytes
    control: ControlRecord
    crc: int
    def __init__(self, base_offset: _Optional[int] = ..., epoch: _Optional[int] = ..., count: _Optional[int] = ..., timestamp_ms: _Optional[int] = ..., payload: _Optional[bytes] = ..., control: _Optional[_Union[ControlRecord, _Mapping]] = ..., crc: _Optional[int] = ...) -> None: ...

class QuorumStateMessage(_message.Message):
    __slots__ = ("version", "cluster_id", "generation", "leader_id", "leader_epoch", "voted", "applied_offset", "current_voters", "target_voters")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    CLUSTER_ID_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    LEADER_ID_FIELD_NUMBER: _ClassVar[int]
    LEADER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    VOTED_FIELD_NUMBER: _ClassVar[int]
    APPLIED_OFFSET_FIELD_NUMBER: _ClassVar[int]
    CURRENT_VOTERS_FIELD_NUMBER: _ClassVar[int]
    TARGET_VOTERS_FIELD_NUMBER: _ClassVar[int]
    version: int
    cluster_id: str
    generation: int
    leader_id: int
    leader_epoch: int
    voted: ReplicaKey
    applied_offset: int
    current_voters: VoterSet
    target_voters: VoterSet
    def __init__(self, version: _Optional[int] = ..., cluster_id: _Optional[str] = ..., generation: _Optional[int] = ..., leader_id: _Optional[int] = ..., leader_epoch: _Optional[int] = ..., voted: _Optional[_Union[ReplicaKey, _Mapping]] = ..., applied_offset: _Optional[int] = ..., current_voters: _Optional[_Union[VoterSet, _Mapping]] = ..., target_voters: _Optional[_Union[VoterSet, _Mapping]] = ...) -> None: ...

class VoteRequest(_message.Message):
    __slots__ = ("correlation_id", "sender", "target", "epoch", "log_end", "pre_vote", "address")
    CORRELATION_ID_FIELD_NUMBER: _ClassVar[int]
    SENDER_FIELD_NUMBER: _ClassVar[int]
    TARGET_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    LOG_END_FIELD_NUMBER: _ClassVar[int]
    PRE_VOTE_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    correlation_id: int
    sender: Sender
    target: ReplicaKey
    epoch: int
    log_end: LogEnd
    pre_vote: bool
    address: str
    def __init__(self, correlation_id: _Optional[int] = ..., sender: _Optional[_Union[Sender, _Mapping]] = ..., target: _Optional[_Union[ReplicaKey, _Mapping]] = ..., epoch: _Optional[int] = ..., log_end: _Optional[_Union[LogEnd, _Mapping]] = ..., pre_vote: bool = ..., address: _Optional[str] = ...) -> None: ...

class VoteReply(_message.Message):
    __slots__ = ("correlation_id", "error", "known", "granted")
    CORRELATION_ID_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    KNOWN_FIELD_NUMBER: _ClassVar[int]
    GRANTED_FIELD_NUMBER: _ClassVar[int]
    correlation_id: int
    error: QuorumError
    known: Knowledge
    granted: bool
    def __init__(self, correlation_id: _Optional[int] = ..., error: _Optional[_Union[QuorumError, str]] = ..., known: _Optional[_Union[Knowledge, _Mapping]] = ..., granted: bool = ...) -> None: ...

class BeginQuorumEpochRequest(_message.Message):
    __slots__ = ("correlation_id", "sender", "target", "epoch", "leader_address")
    CORRELATION_ID_FIELD_NUMBER: _ClassVar[int]
    SENDER_FIELD_NUMBER: _ClassVar[int]
    TARGET_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    LEADER_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    correlation_id: int
    sender: Sender
    target: ReplicaKey
    epoch: int
    leader_address: str
    def __init__(self, correlation_id: _Optional[int] = ..., sender: _Optional[_Union[Sender, _Mapping]] = ..., target: _Optional[_Union[ReplicaKey, _Mapping]] = ..., epoch: _Optional[int] = ..., leader_address: _Optional[str] = ...) -> None: ...

class BeginQuorumEpochReply(_message.Message):
    __slots__ = ("correlation_id", "error", "known")
    CORRELATION_ID_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    KNOWN_FIELD_NUMBER: _ClassVar[int]
    correlation_id: int
    error: QuorumError
    known: Knowledge
    def __init__(self, correlation_id: _Optional[int] = ..., error: _Optional[_Union[QuorumError, str]] = ..., known: _Optional[_Union[Knowledge, _Mapping]] = ...) -> None: ...

class EndQuorumEpochRequest(_message.Message):
    __slots__ = ("correlation_id", "sender", "target", "epoch", "successors", "reason")
    CORRELATION_ID_FIELD_NUMBER: _ClassVar[int]
    SENDER_FIELD_NUMBER: _ClassVar[int]
    TARGET_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    SUCCESSORS_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    correlation_id: int
    sender: Sender
    target: ReplicaKey
    epoch: int
    successors: _containers.RepeatedCompositeFieldContainer[ReplicaKey]
    reason: str
    def __init__(self, correlation_id: _Optional[int] = ..., sender: _Optional[_Union[Sender, _Mapping]] = ..., target: _Optional[_Union[ReplicaKey, _Mapping]] = ..., epoch: _Optional[int] = ..., successors: _Optional[_Iterable[_Union[ReplicaKey, _Mapping]]] = ..., reason: _Optional[str] = ...) -> None: ...

class EndQuorumEpochReply(_message.Message):
    __slots__ = ("correlation_id", "error", "known")
    CORRELATION_ID_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    KNOWN_FIELD_NUMBER: _ClassVar[int]
    correlation_id: int
    error: QuorumError
    known: Knowledge
    def __init__(self, correlation_id: _Optional[int] = ..., error: _Optional[_Union[QuorumError, str]] = ..., known: _Optional[_Union[Knowledge, _Mapping]] = ...) -> None: ...

class FetchRequest(_message.Message):
    __slots__ = ("correlation_id", "sender", "target_id", "epoch", "offset", "last_fetched_epoch", "high_watermark", "round", "max_wait_ms", "max_bytes", "address", "write_ms")
    CORRELATION_ID_FIELD_NUMBER: _ClassVar[int]
    SENDER_FIELD_NUMBER: _ClassVar[int]
    TARGET_ID_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    LAST_FETCHED_EPOCH_FIELD_NUMBER: _ClassVar[int]
    HIGH_WATERMARK_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    MAX_WAIT_MS_FIELD_NUMBER: _ClassVar[int]
    MAX_BYTES_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    WRITE_MS_FIELD_NUMBER: _ClassVar[int]
    correlation_id: int
    sender: Sender
    target_id: int
    epoch: int
    offset: int
    last_fetched_epoch: int
    high_watermark: int
    round: int
    max_wait_ms: int
    max_bytes: int
    address: str
    write_ms: int
    def __init__(self, correlation_id: _Optional[int] = ..., sender: _Optional[_Union[Sender, _Mapping]] = ..., target_id: _Optional[int] = ..., epoch: _Optional[int] = ..., offset: _Optional[int] = ..., last_fetched_epoch: _Optional[int] = ..., high_watermark: _Optional[int] = ..., round: _Optional[int] = ..., max_wait_ms: _Optional[int] = ..., max_bytes: _Optional[int] = ..., address: _Optional[str] = ..., write_ms: _Optional[int] = ...) -> None: ...

class FetchReply(_message.Message):
    __slots__ = ("correlation_id", "error", "known", "high_watermark", "log_start_offset", "round", "diverging", "snapshot", "batches")
    CORRELATION_ID_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    KNOWN_FIELD_NUMBER: _ClassVar[int]
    HIGH_WATERMARK_FIELD_NUMBER: _ClassVar[int]
    LOG_START_OFFSET_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    DIVERGING_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOT_FIELD_NUMBER: _ClassVar[int]
    BATCHES_FIELD_NUMBER: _ClassVar[int]
    correlation_id: int
    error: QuorumError
    known: Knowledge
    high_watermark: int
    log_start_offset: int
    round: int
    diverging: LogEnd
    snapshot: LogEnd
    batches: _containers.RepeatedCompositeFieldContainer[Batch]
    def __init__(self, correlation_id: _Optional[int] = ..., error: _Optional[_Union[QuorumError, str]] = ..., known: _Optional[_Union[Knowledge, _Mapping]] = ..., high_watermark: _Optional[int] = ..., log_start_offset: _Optional[int] = ..., round: _Optional[int] = ..., diverging: _Optional[_Union[LogEnd, _Mapping]] = ..., snapshot: _Optional[_Union[LogEnd, _Mapping]] = ..., batches: _Optional[_Iterable[_Union[Batch, _Mapping]]] = ...) -> None: ...

class FetchSnapshotRequest(_message.Message):
    __slots__ = ("correlation_id", "sender", "target_id", "epoch", "snapshot", "position", "max_bytes", "round")
    CORRELATION_ID_FIELD_NUMBER: _ClassVar[int]
    SENDER_FIELD_NUMBER: _ClassVar[int]
    TARGET_ID_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOT_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    MAX_BYTES_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    correlation_id: int
    sender: Sender
    target_id: int
    epoch: int
    snapshot: LogEnd
    position: int
    max_bytes: int
    round: int
    def __init__(self, correlation_id: _Optional[int] = ..., sender: _Optional[_Union[Sender, _Mapping]] = ..., target_id: _Optional[int] = ..., epoch: _Optional[int] = ..., snapshot: _Optional[_Union[LogEnd, _Mapping]] = ..., position: _Optional[int] = ..., max_bytes: _Optional[int] = ..., round: _Optional[int] = ...) -> None: ...

class FetchSnapshotReply(_message.Message):
    __slots__ = ("correlation_id", "error", "known", "snapshot", "size", "position", "data", "round")
    CORRELATION_ID_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    KNOWN_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOT_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    correlation_id: int
    error: QuorumError
    known: Knowledge
    snapshot: LogEnd
    size: int
    position: int
    data: bytes
    round: int
    def __init__(self, correlation_id: _Optional[int] = ..., error: _Optional[_Union[QuorumError, str]] = ..., known: _Optional[_Union[Knowledge, _Mapping]] = ..., snapshot: _Optional[_Union[LogEnd, _Mapping]] = ..., size: _Optional[int] = ..., position: _Optional[int] = ..., data: _Optional[bytes] = ..., round: _Optional[int] = ...) -> None: ...

class InitialVoter(_message.Message):
    __slots__ = ("node_id", "address")
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    node_id: int
    address: str
    def __init__(self, node_id: _Optional[int] = ..., address: _Optional[str] = ...) -> None: ...

class IntroduceRequest(_message.Message):
    __slots__ = ("correlation_id", "sender", "initial_voters")
    CORRELATION_ID_FIELD_NUMBER: _ClassVar[int]
    SENDER_FIELD_NUMBER: _ClassVar[int]
    INITIAL_VOTERS_FIELD_NUMBER: _ClassVar[int]
    correlation_id: int
    sender: Sender
    initial_voters: _containers.RepeatedCompositeFieldContainer[InitialVoter]
    def __init__(self, correlation_id: _Optional[int] = ..., sender: _Optional[_Union[Sender, _Mapping]] = ..., initial_voters: _Optional[_Iterable[_Union[InitialVoter, _Mapping]]] = ...) -> None: ...

class IntroduceReply(_message.Message):
    __slots__ = ("correlation_id", "error", "known", "key", "newborn", "initial_voters", "founding", "voters")
    CORRELATION_ID_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    KNOWN_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    NEWBORN_FIELD_NUMBER: _ClassVar[int]
    INITIAL_VOTERS_FIELD_NUMBER: _ClassVar[int]
    FOUNDING_FIELD_NUMBER: _ClassVar[int]
    VOTERS_FIELD_NUMBER: _ClassVar[int]
    correlation_id: int
    error: QuorumError
    known: Knowledge
    key: ReplicaKey
    newborn: bool
    initial_voters: _containers.RepeatedCompositeFieldContainer[InitialVoter]
    founding: Batch
    voters: VoterSet
    def __init__(self, correlation_id: _Optional[int] = ..., error: _Optional[_Union[QuorumError, str]] = ..., known: _Optional[_Union[Knowledge, _Mapping]] = ..., key: _Optional[_Union[ReplicaKey, _Mapping]] = ..., newborn: bool = ..., initial_voters: _Optional[_Iterable[_Union[InitialVoter, _Mapping]]] = ..., founding: _Optional[_Union[Batch, _Mapping]] = ..., voters: _Optional[_Union[VoterSet, _Mapping]] = ...) -> None: ...

class ReplicaStatus(_message.Message):
    __slots__ = ("replica", "log_end_offset", "lag", "last_fetch_ms", "last_caught_up_ms")
    REPLICA_FIELD_NUMBER: _ClassVar[int]
    LOG_END_OFFSET_FIELD_NUMBER: _ClassVar[int]
    LAG_FIELD_NUMBER: _ClassVar[int]
    LAST_FETCH_MS_FIELD_NUMBER: _ClassVar[int]
    LAST_CAUGHT_UP_MS_FIELD_NUMBER: _ClassVar[int]
    replica: Voter
    log_end_offset: int
    lag: int
    last_fetch_ms: int
    last_caught_up_ms: int
    def __init__(self, replica: _Optional[_Union[Voter, _Mapping]] = ..., log_end_offset: _Optional[int] = ..., lag: _Optional[int] = ..., last_fetch_ms: _Optional[int] = ..., last_caught_up_ms: _Optional[int] = ...) -> None: ...

class DescribeQuorumRequest(_message.Message):
    __slots__ = ("correlation_id", "sender", "address", "epoch")
    CORRELATION_ID_FIELD_NUMBER: _ClassVar[int]
    SENDER_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    correlation_id: int
    sender: Sender
    address: str
    epoch: int
    def __init__(self, correlation_id: _Optional[int] = ..., sender: _Optional[_Union[Sender, _Mapping]] = ..., address: _Optional[str] = ..., epoch: _Optional[int] = ...) -> None: ...

class LeadershipEnd(_message.Message):
    __slots__ = ("leader_id", "epoch", "reason", "age_ms")
    LEADER_ID_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    AGE_MS_FIELD_NUMBER: _ClassVar[int]
    leader_id: int
    epoch: int
    reason: str
    age_ms: int
    def __init__(self, leader_id: _Optional[int] = ..., epoch: _Optional[int] = ..., reason: _Optional[str] = ..., age_ms: _Optional[int] = ...) -> None: ...

class DescribeQuorumReply(_message.Message):
    __slots__ = ("correlation_id", "error", "known", "answered_by", "high_watermark", "log_end_offset", "paused", "voters", "observers", "target_voters", "last_leader_change_reason", "last_leader_change_ms", "target_step", "target_problem", "last_leadership_end", "preferred_problem")
    CORRELATION_ID_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    KNOWN_FIELD_NUMBER: _ClassVar[int]
    ANSWERED_BY_FIELD_NUMBER: _ClassVar[int]
    HIGH_WATERMARK_FIELD_NUMBER: _ClassVar[int]
    LOG_END_OFFSET_FIELD_NUMBER: _ClassVar[int]
    PAUSED_FIELD_NUMBER: _ClassVar[int]
    VOTERS_FIELD_NUMBER: _ClassVar[int]
    OBSERVERS_FIELD_NUMBER: _ClassVar[int]
    TARGET_VOTERS_FIELD_NUMBER: _ClassVar[int]
    LAST_LEADER_CHANGE_REASON_FIELD_NUMBER: _ClassVar[int]
    LAST_LEADER_CHANGE_MS_FIELD_NUMBER: _ClassVar[int]
    TARGET_STEP_FIELD_NUMBER: _ClassVar[int]
    TARGET_PROBLEM_FIELD_NUMBER: _ClassVar[int]
    LAST_LEADERSHIP_END_FIELD_NUMBER: _ClassVar[int]
    PREFERRED_PROBLEM_FIELD_NUMBER: _ClassVar[int]
    correlation_id: int
    error: QuorumError
    known: Knowledge
    answered_by: ReplicaKey
    high_watermark: int
    log_end_offset: int
    paused: bool
    voters: _containers.RepeatedCompositeFieldContainer[ReplicaStatus]
    observers: _containers.RepeatedCompositeFieldContainer[ReplicaStatus]
    target_voters: VoterSet
    last_leader_change_reason: str
    last_leader_change_ms: int
    target_step: str
    target_problem: str
    last_leadership_end: LeadershipEnd
    preferred_problem: str
    def __init__(self, correlation_id: _Optional[int] = ..., error: _Optional[_Union[QuorumError, str]] = ..., known: _Optional[_Union[Knowledge, _Mapping]] = ..., answered_by: _Optional[_Union[ReplicaKey, _Mapping]] = ..., high_watermark: _Optional[int] = ..., log_end_offset: _Optional[int] = ..., paused: bool = ..., voters: _Optional[_Iterable[_Union[ReplicaStatus, _Mapping]]] = ..., observers: _Optional[_Iterable[_Union[ReplicaStatus, _Mapping]]] = ..., target_voters: _Optional[_Union[VoterSet, _Mapping]] = ..., last_leader_change_reason: _Optional[str] = ..., last_leader_change_ms: _Optional[int] = ..., target_step: _Optional[str] = ..., target_problem: _Optional[str] = ..., last_leadership_end: _Optional[_Union[LeadershipEnd, _Mapping]] = ..., preferred_problem: _Optional[str] = ...) -> None: ...
