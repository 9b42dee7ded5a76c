"""The errors of the control plane, of brokers and of `kctl`, in one table.

This module imports only the standard library, so that pure rooms can name the same errors as adapters.
"""

from __future__ import annotations

from enum import IntEnum, StrEnum
from typing import NamedTuple


class ExitCode(IntEnum):
    """Exit codes of `kctl`."""

    DONE = 0
    FAILED = 1
    USAGE = 2
    NOT_FOUND = 3
    UNAVAILABLE = 4
    REFUSED = 5
    NOT_AUTHORISED = 6
    INTERRUPTED = 130


class KafkaCode(IntEnum):
    """The error numbers of the Kafka protocol that brokers send in answers."""

    UNKNOWN_SERVER_ERROR = -1
    NONE = 0
    OFFSET_OUT_OF_RANGE = 1
    CORRUPT_MESSAGE = 2
    UNKNOWN_TOPIC_OR_PARTITION = 3
    LEADER_NOT_AVAILABLE = 5
    NOT_LEADER_OR_FOLLOWER = 6
    REQUEST_TIMED_OUT = 7
    BROKER_NOT_AVAILABLE = 8
    REPLICA_NOT_AVAILABLE = 9
    MESSAGE_TOO_LARGE = 10
    OFFSET_METADATA_TOO_LARGE = 12
    COORDINATOR_LOAD_IN_PROGRESS = 14
    COORDINATOR_NOT_AVAILABLE = 15
    NOT_COORDINATOR = 16
    INVALID_TOPIC_EXCEPTION = 17
    RECORD_LIST_TOO_LARGE = 18
    NOT_ENOUGH_REPLICAS = 19
    NOT_ENOUGH_REPLICAS_AFTER_APPEND = 20
    INVALID_REQUIRED_ACKS = 21
    ILLEGAL_GENERATION = 22
    INCONSISTENT_GROUP_PROTOCOL = 23
    INVALID_GROUP_ID = 24
    UNKNOWN_MEMBER_ID = 25
    INVALID_SESSION_TIMEOUT = 26
    REBALANCE_IN_PROGRESS = 27
    INVALID_COMMIT_OFFSET_SIZE = 28
    GROUP_AUTHORIZATION_FAILED = 30
    CLUSTER_AUTHORIZATION_FAILED = 31
    INVALID_TIMESTAMP = 32
    UNSUPPORTED_SASL_MECHANISM = 33
    UNSUPPORTED_VERSION = 35
    TOPIC_ALREADY_EXISTS = 36
    INVALID_PARTITIONS = 37
    INVALID_REPLICATION_FACTOR = 38
    INVALID_REPLICA_ASSIGNMENT = 39
    INVALID_CONFIG = 40
    NOT_CONTROLLER = 41
    INVALID_REQUEST = 42
    UNSUPPORTED_FOR_MESSAGE_FORMAT = 43
    POLICY_VIOLATION = 44
    OUT_OF_ORDER_SEQUENCE_NUMBER = 45
    DUPLICATE_SEQUENCE_NUMBER = 46
    INVALID_PRODUCER_EPOCH = 47
    INVALID_TXN_STATE = 48
    INVALID_PRODUCER_ID_MAPPING = 49
    INVALID_TRANSACTION_TIMEOUT = 50
    CONCURRENT_TRANSACTIONS = 51
    TRANSACTION_COORDINATOR_FENCED = 52
    TRANSACTIONAL_ID_AUTHORIZATION_FAILED = 53
    SECURITY_DISABLED = 54
    OPERATION_NOT_ATTEMPTED = 55
    KAFKA_STORAGE_ERROR = 56
    LOG_DIR_NOT_FOUND = 57
    UNKNOWN_PRODUCER_ID = 59
    REASSIGNMENT_IN_PROGRESS = 60
    DELEGATION_TOKEN_REQUEST_NOT_ALLOWED = 64
    NON_EMPTY_GROUP = 68
    GROUP_ID_NOT_FOUND = 69
    FETCH_SESSION_ID_NOT_FOUND = 70
    INVALID_FETCH_SESSION_EPOCH = 71
    FENCED_LEADER_EPOCH = 74
    UNKNOWN_LEADER_EPOCH = 75
    UNSUPPORTED_COMPRESSION_TYPE = 76
    STALE_BROKER_EPOCH = 77
    OFFSET_NOT_AVAILABLE = 78
    MEMBER_ID_REQUIRED = 79
    PREFERRED_LEADER_NOT_AVAILABLE = 80
    GROUP_MAX_SIZE_REACHED = 81
    FENCED_INSTANCE_ID = 82
    ELIGIBLE_LEADERS_NOT_AVAILABLE = 83
    ELECTION_NOT_NEEDED = 84
    NO_REASSIGNMENT_IN_PROGRESS = 85
    GROUP_SUBSCRIBED_TO_TOPIC = 86
    INVALID_RECORD = 87
    UNSTABLE_OFFSET_COMMIT = 88
    PRODUCER_FENCED = 90
    RESOURCE_NOT_FOUND = 91
    DUPLICATE_RESOURCE = 92
    UNACCEPTABLE_CREDENTIAL = 93
    INVALID_UPDATE_VERSION = 95
    UNKNOWN_TOPIC_ID = 100
    DUPLICATE_BROKER_REGISTRATION = 101
    BROKER_ID_NOT_REGISTERED = 102
    INCONSISTENT_CLUSTER_ID = 104
    TRANSACTIONAL_ID_NOT_FOUND = 105
    FETCH_SESSION_TOPIC_ID_ERROR = 106
    INELIGIBLE_REPLICA = 107
    FENCED_MEMBER_EPOCH = 110
    UNRELEASED_INSTANCE_ID = 111
    UNSUPPORTED_ASSIGNOR = 112
    STALE_MEMBER_EPOCH = 113
    UNKNOWN_SUBSCRIPTION_ID = 117
    TELEMETRY_TOO_LARGE = 118
    INVALID_REGISTRATION = 119
    TRANSACTION_ABORTABLE = 120
    INVALID_RECORD_STATE = 121
    SHARE_SESSION_NOT_FOUND = 122
    INVALID_SHARE_SESSION_EPOCH = 123
    FENCED_STATE_EPOCH = 124
    DUPLICATE_VOTER = 126
    VOTER_NOT_FOUND = 127
    INVALID_REGULAR_EXPRESSION = 128
    SHARE_SESSION_LIMIT_REACHED = 133


class _Row(NamedTuple):
    kafka: KafkaCode
    retriable: bool
    exit_code: ExitCode | None
    sentence: str
    next_step: str


def _row(
    name: str,
    sentence: str,
    *,
    kafka: KafkaCode | None = None,
    retriable: bool = False,
    exit_code: ExitCode | None = None,
    next_step: str = "",
) -> tuple[str, _Row]:
    if kafka is None:
        kafka = KafkaCode.__members__.get(name, KafkaCode.UNKNOWN_SERVER_ERROR)
    return name, _Row(kafka, retriable, exit_code, sentence, next_step)


def kafka_code(number: int) -> KafkaCode:
    """Return the error with this number; UNKNOWN_SERVER_ERROR for a number that `KafkaCode` lacks."""
    try:
        return KafkaCode(number)
    except ValueError:
        return KafkaCode.UNKNOWN_SERVER_ERROR


class ApiError(StrEnum):
    """An error by its name, as in messages, logs and JSON.

    Names are Kafka's where Kafka has the error.

    kafka: the number in answers to Kafka clients.  An error that Kafka does not have gets the number of a similar
        error, or of UNKNOWN_SERVER_ERROR (-1).
    retriable: whether the same request may succeed later, or at another node.  Results of the control plane contain
        this value.  Brokers answer with numbers, and Kafka defines which numbers are retriable.
    exit_code: the exit code of `kctl`.  None: UNAVAILABLE if the error that occurred is retriable, else REFUSED.
    sentence: the description of the error, as one sentence.
    next_step: the next step, if the error does not imply it; may be empty.
    """

    kafka: KafkaCode
    retriable: bool
    exit_code: ExitCode | None
    sentence: str
    next_step: str

    def __new__(cls, name: str, row: _Row) -> ApiError:
        error = str.__new__(cls, name)
        error._value_ = name
        error.kafka, error.retriable, error.exit_code, error.sentence, error.next_step = row
        return error

    @staticmethod
    def named(name: str) -> ApiError | None:
        """Return the error with this name; None for a name that only a newer node or another broker knows."""
        return ApiError.__members__.get(name)

    # Outcome of a request, and the node or cluster that it was sent to
    NONE = _row("NONE", "The request succeeded.", exit_code=ExitCode.DONE)
    NOT_CONTROLLER = _row(
        "NOT_CONTROLLER",
        "The node is not the active controller and does not know which node is; nothing was changed.",
        retriable=True,
    )
    OUTCOME_UNKNOWN = _row(
        "OUTCOME_UNKNOWN",
        "No answer arrived, and the change may have been made.",
        retriable=True,
        exit_code=ExitCode.UNAVAILABLE,
        kafka=KafkaCode.REQUEST_TIMED_OUT,
    )
    REQUEST_TIMED_OUT = _row("REQUEST_TIMED_OUT", "The request did not finish within its time limit.", retriable=True)
    OVERLOADED = _row(
        "OVERLOADED",
        "Too many requests are in progress on the node.",
        retriable=True,
        kafka=KafkaCode.REQUEST_TIMED_OUT,
    )
    INCONSISTENT_CLUSTER_ID = _row("INCONSISTENT_CLUSTER_ID", "The request is for another cluster.")
    INVALID_REQUEST = _row(
        "INVALID_REQUEST", "The request is malformed or contradicts itself.", exit_code=ExitCode.USAGE
    )
    POLICY_VIOLATION = _row("POLICY_VIOLATION", "The request exceeds a limit of the cluster.")
    UNSUPPORTED_VERSION = _row(
        "UNSUPPORTED_VERSION", "The node, or the feature level of the cluster, does not know this request."
    )
    STORAGE_ERROR = _row("STORAGE_ERROR", "A disk of the node failed.")
    UNKNOWN_SERVER_ERROR = _row(
        "UNKNOWN_SERVER_ERROR", "The node failed in a way that has no error of its own.", exit_code=ExitCode.FAILED
    )
    CLUSTER_AUTHORIZATION_FAILED = _row(
        "CLUSTER_AUTHORIZATION_FAILED", "The client may not do this in the cluster.", exit_code=ExitCode.NOT_AUTHORISED
    )

    # Brokers
    INVALID_REGISTRATION = _row("INVALID_REGISTRATION", "The registration of the broker is malformed.")
    DUPLICATE_BROKER_REGISTRATION = _row(
        "DUPLICATE_BROKER_REGISTRATION",
        "A broker with this id is registered with other directories and still in session.",
        retriable=True,
    )
    BROKER_ID_NOT_REGISTERED = _row(
        "BROKER_ID_NOT_REGISTERED", "No broker with this id is registered.", exit_code=ExitCode.NOT_FOUND
    )
    BROKER_NOT_AVAILABLE = _row("BROKER_NOT_AVAILABLE", "The broker is registered, but fenced or shutting down.")
    LOG_DIR_NOT_FOUND = _row(
        "LOG_DIR_NOT_FOUND", "The broker has no such data directory.", exit_code=ExitCode.NOT_FOUND
    )
    BROKER_IN_USE = _row("BROKER_IN_USE", "The broker is unfenced or has replicas.", kafka=KafkaCode.POLICY_VIOLATION)
    STALE_BROKER_EPOCH = _row("STALE_BROKER_EPOCH", "The broker has registered again, so its old epoch is not valid.")

    # Topics and partitions
    INVALID_TOPIC_EXCEPTION = _row(
        "INVALID_TOPIC_EXCEPTION",
        "The topic name is not valid.",
        exit_code=ExitCode.USAGE,
        next_step="use 1 to 249 letters, digits, dots, dashes and underscores",
    )
    INVALID_TOPIC = _row("INVALID_TOPIC", "A record names no topic.")
    TOPIC_ALREADY_EXISTS = _row(
        "TOPIC_ALREADY_EXISTS",
        "A topic with this name exists.",
        next_step="kctl topics describe shows the topic that exists; use another name, or delete it first",
    )
    UNKNOWN_TOPIC_OR_PARTITION = _row(
        "UNKNOWN_TOPIC_OR_PARTITION",
        "The topic or partition does not exist.",
        exit_code=ExitCode.NOT_FOUND,
        next_step="kctl topics list",
    )
    UNKNOWN_TOPIC_ID = _row("UNKNOWN_TOPIC_ID", "No topic has this id.", exit_code=ExitCode.NOT_FOUND)
    INVALID_PARTITIONS = _row("INVALID_PARTITIONS", "The number of partitions is not valid.", exit_code=ExitCode.USAGE)
    INVALID_REPLICATION_FACTOR = _row(
        "INVALID_REPLICATION_FACTOR", "The replication factor is not valid, or there are too few brokers for it."
    )
    INVALID_REPLICA_ASSIGNMENT = _row(
        "INVALID_REPLICA_ASSIGNMENT", "The assignment of replicas to brokers is not valid.", exit_code=ExitCode.USAGE
    )
    INVALID_CONFIG = _row(
        "INVALID_CONFIG",
        "A config is unknown or its value is not valid.",
        exit_code=ExitCode.USAGE,
        next_step="kctl configs get --topic T, --broker ID, --group G or --cluster shows keys and allowed values",
    )
    CONFIG_NOT_FOUND = _row("CONFIG_NOT_FOUND", "There is no config with this name.", exit_code=ExitCode.NOT_FOUND)
    FENCED_LEADER_EPOCH = _row("FENCED_LEADER_EPOCH", "The leader epoch of the request is older than the partition's.")
    INVALID_UPDATE_VERSION = _row("INVALID_UPDATE_VERSION", "The partition has changed since the request was made.")
    INELIGIBLE_REPLICA = _row("INELIGIBLE_REPLICA", "A replica of the proposed ISR may not be in it.")
    REASSIGNMENT_IN_PROGRESS = _row("REASSIGNMENT_IN_PROGRESS", "The partition is being reassigned.")
    NO_REASSIGNMENT_IN_PROGRESS = _row("NO_REASSIGNMENT_IN_PROGRESS", "The partition is not being reassigned.")
    OPERATION_NOT_ATTEMPTED = _row(
        "OPERATION_NOT_ATTEMPTED", "The change was not made because another part of the request was refused."
    )
    ELECTION_NOT_NEEDED = _row("ELECTION_NOT_NEEDED", "The partition already has the requested leader.")
    PREFERRED_LEADER_NOT_AVAILABLE = _row(
        "PREFERRED_LEADER_NOT_AVAILABLE", "The preferred leader is fenced or not in the ISR.", retriable=True
    )
    ELIGIBLE_LEADERS_NOT_AVAILABLE = _row(
        "ELIGIBLE_LEADERS_NOT_AVAILABLE", "No replica may become the leader.", retriable=True
    )

    # Voters
    PAUSED = _row(
        "PAUSED",
        "The leader of the quorum is paused because no majority of the voters fetches from it.",
        retriable=True,
    )
    CHANGE_PENDING = _row("CHANGE_PENDING", "Another change of the voters is in progress.", retriable=True)
    NOT_COMMITTED_YET = _row(
        "NOT_COMMITTED_YET", "The leader has not committed a record of its epoch yet.", retriable=True
    )
    TARGET_IN_PROGRESS = _row("TARGET_IN_PROGRESS", "The voters are moving to a target.")
    DUPLICATE_VOTER = _row("DUPLICATE_VOTER", "A voter with this id exists.")
    VOTER_NOT_FOUND = _row("VOTER_NOT_FOUND", "No voter has this id.", exit_code=ExitCode.NOT_FOUND)
    LAST_VOTER = _row("LAST_VOTER", "The last voter cannot be removed.")
    NOT_CAUGHT_UP = _row("NOT_CAUGHT_UP", "The node has not caught up with the leader.")
    UNREACHABLE = _row("UNREACHABLE", "The node does not answer at this address.")
    WRONG_NODE = _row("WRONG_NODE", "Another node answers at this address.")
    WRONG_CLUSTER = _row("WRONG_CLUSTER", "A node of another cluster answers at this address.")
    NO_MAJORITY = _row("NO_MAJORITY", "The change would leave no majority of live voters.")
    TARGET_CHANGED = _row("TARGET_CHANGED", "The target was replaced or cancelled before it was reached.")

    # Records and offsets
    OFFSET_OUT_OF_RANGE = _row(
        "OFFSET_OUT_OF_RANGE",
        "The offset is before the start or after the end of the log.",
        exit_code=ExitCode.NOT_FOUND,
    )
    CORRUPT_MESSAGE = _row(
        "CORRUPT_MESSAGE",
        "A record batch is damaged.",
        exit_code=ExitCode.FAILED,
        next_step="send the record again; if that fails as well: kctl doctor",
    )
    INVALID_RECORD = _row(
        "INVALID_RECORD", "A record is not valid.", next_step="correct the record; the records before it were written"
    )
    INVALID_TIMESTAMP = _row("INVALID_TIMESTAMP", "A timestamp is out of range.")
    MESSAGE_TOO_LARGE = _row(
        "MESSAGE_TOO_LARGE",
        "A record batch is larger than the topic allows.",
        next_step="split the record, or raise max.message.bytes of the topic: kctl configs set",
    )
    RECORD_LIST_TOO_LARGE = _row(
        "RECORD_LIST_TOO_LARGE",
        "A record batch is larger than a segment.",
        next_step="split the record, or raise max.message.bytes of the topic: kctl configs set",
    )
    UNSUPPORTED_COMPRESSION_TYPE = _row("UNSUPPORTED_COMPRESSION_TYPE", "The compression type is unknown.")
    UNSUPPORTED_FOR_MESSAGE_FORMAT = _row("UNSUPPORTED_FOR_MESSAGE_FORMAT", "The message format is not supported.")
    INVALID_REQUIRED_ACKS = _row("INVALID_REQUIRED_ACKS", "The value of acks is not -1, 0 or 1.")
    NOT_ENOUGH_REPLICAS = _row(
        "NOT_ENOUGH_REPLICAS", "The ISR is smaller than min.insync.replicas; nothing was written.", retriable=True
    )
    NOT_ENOUGH_REPLICAS_AFTER_APPEND = _row(
        "NOT_ENOUGH_REPLICAS_AFTER_APPEND",
        "The ISR became smaller than min.insync.replicas after the write.",
        retriable=True,
    )
    NOT_LEADER_OR_FOLLOWER = _row(
        "NOT_LEADER_OR_FOLLOWER", "The broker has no replica of the partition, or does not lead it.", retriable=True
    )
    LEADER_NOT_AVAILABLE = _row("LEADER_NOT_AVAILABLE", "The partition has no leader.", retriable=True)
    UNKNOWN_LEADER_EPOCH = _row(
        "UNKNOWN_LEADER_EPOCH", "The leader epoch of the request is newer than the broker's.", retriable=True
    )
    OFFSET_NOT_AVAILABLE = _row(
        "OFFSET_NOT_AVAILABLE",
        "The new leader does not know the high watermark yet, or the follower does not have the record yet.",
        retriable=True,
    )
    KAFKA_STORAGE_ERROR = _row("KAFKA_STORAGE_ERROR", "The data directory of the replica is offline.", retriable=True)
    FETCH_SESSION_ID_NOT_FOUND = _row(
        "FETCH_SESSION_ID_NOT_FOUND", "The broker has no fetch session with this id.", retriable=True
    )
    INVALID_FETCH_SESSION_EPOCH = _row(
        "INVALID_FETCH_SESSION_EPOCH", "The epoch of the fetch session is not the next one.", retriable=True
    )
    FETCH_SESSION_TOPIC_ID_ERROR = _row(
        "FETCH_SESSION_TOPIC_ID_ERROR",
        "The fetch session names topics by id and the request by name, or the reverse.",
        retriable=True,
    )

    # Producers
    COORDINATOR_LOAD_IN_PROGRESS = _row(
        "COORDINATOR_LOAD_IN_PROGRESS",
        "The coordinator is still loading, or the broker has no producer ids yet.",
        retriable=True,
    )
    COORDINATOR_NOT_AVAILABLE = _row("COORDINATOR_NOT_AVAILABLE", "No coordinator is available.", retriable=True)
    DUPLICATE_SEQUENCE_NUMBER = _row(
        "DUPLICATE_SEQUENCE_NUMBER", "The broker already has this batch, but no longer knows its offset."
    )
    OUT_OF_ORDER_SEQUENCE_NUMBER = _row("OUT_OF_ORDER_SEQUENCE_NUMBER", "A batch before this one is missing.")
    UNKNOWN_PRODUCER_ID = _row("UNKNOWN_PRODUCER_ID", "The broker no longer has the state of the producer.")
    INVALID_PRODUCER_EPOCH = _row("INVALID_PRODUCER_EPOCH", "A newer producer with this id exists.")
    INVALID_TXN_STATE = _row(
        "INVALID_TXN_STATE",
        "No transaction of the producer is open in this partition, or the batch is not part of the open one.",
    )
    PRODUCER_CLOSED = _row("PRODUCER_CLOSED", "The producer was closed.")

    # Transactions
    TRANSACTIONAL_ID_NOT_FOUND = _row(
        "TRANSACTIONAL_ID_NOT_FOUND",
        "The coordinator does not know the transactional id.",
        exit_code=ExitCode.NOT_FOUND,
        next_step="kctl transactions list",
    )
    TRANSACTION_NOT_FOUND = _row(
        "TRANSACTION_NOT_FOUND", "No transaction is open in the partition at this offset.", exit_code=ExitCode.NOT_FOUND
    )
    CONCURRENT_TRANSACTIONS = _row(
        "CONCURRENT_TRANSACTIONS", "The last transaction of the transactional id is still being ended.", retriable=True
    )
    TRANSACTION_ABORTABLE = _row(
        "TRANSACTION_ABORTABLE",
        "A part of the transaction failed, so it can only be aborted.",
        next_step="abort the transaction, then repeat all of its work",
    )
    PRODUCER_FENCED = _row("PRODUCER_FENCED", "A newer producer uses the transactional id.")
    INVALID_PRODUCER_ID_MAPPING = _row(
        "INVALID_PRODUCER_ID_MAPPING", "The transactional id belongs to another producer id, or has expired."
    )
    INVALID_TRANSACTION_TIMEOUT = _row(
        "INVALID_TRANSACTION_TIMEOUT",
        "The timeout of the transaction is longer than transaction.max.timeout.ms, or not above 0.",
    )

    # Groups
    GROUP_ID_NOT_FOUND = _row(
        "GROUP_ID_NOT_FOUND", "The group does not exist.", exit_code=ExitCode.NOT_FOUND, next_step="kctl groups list"
    )
    GROUP_SUBSCRIBED_TO_TOPIC = _row(
        "GROUP_SUBSCRIBED_TO_TOPIC",
        "A member of the group is subscribed to the topic.",
        next_step="stop the members that are subscribed to the topic, then retry",
    )
    INVALID_GROUP_ID = _row("INVALID_GROUP_ID", "The name of the group is not valid.", exit_code=ExitCode.USAGE)
    NON_EMPTY_GROUP = _row("NON_EMPTY_GROUP", "The group has members.", next_step="stop its members, then retry")
    UNSUPPORTED_GROUP_TYPE = _row("UNSUPPORTED_GROUP_TYPE", "The command does not apply to groups of this type.")
    OFFSET_NOT_COMMITTED = _row("OFFSET_NOT_COMMITTED", "The group has not committed an offset of the partition.")
    NOT_COORDINATOR = _row(
        "NOT_COORDINATOR", "The broker does not coordinate the group or transactional id.", retriable=True
    )

    # Connections
    UNAVAILABLE = _row("UNAVAILABLE", "The node does not answer.", retriable=True)
    TIMED_OUT = _row(
        "TIMED_OUT", "No answer arrived, or a condition was not met, within the time limit.", retriable=True
    )
    NOT_A_NODE = _row("NOT_A_NODE", "The address is not the control address of a node.", exit_code=ExitCode.USAGE)
    BROKER_UNAVAILABLE = _row("BROKER_UNAVAILABLE", "The broker does not answer.", retriable=True)
    CLIENT_CLOSED = _row("CLIENT_CLOSED", "The client was closed.")

    # Commands
    FAILED = _row("FAILED", "The command failed.", exit_code=ExitCode.FAILED)
    BUSY = _row("BUSY", "Another process is changing the development cluster.", retriable=True)
    CLUSTER_EXISTS = _row("CLUSTER_EXISTS", "The directory holds another development cluster.")
    CONFIRMATION_NEEDED = _row(
        "CONFIRMATION_NEEDED", "The command deletes records or aborts a transaction, and was not confirmed."
    )
    CORRUPT_STORE = _row("CORRUPT_STORE", "A file of the node is damaged.", exit_code=ExitCode.FAILED)
    STORE_REFUSED = _row(
        "STORE_REFUSED", "The data directory is in use, belongs to another node or has a newer format."
    )
    IO_ERROR = _row(
        "IO_ERROR",
        "A file or a stream cannot be read or written.",
        exit_code=ExitCode.FAILED,
        next_step="check the file or disk named in the message",
    )
    INVALID_LINE = _row("INVALID_LINE", "A line of the input is malformed.", exit_code=ExitCode.USAGE)
    INVALID_PLAN = _row("INVALID_PLAN", "The reassignment plan is malformed.", exit_code=ExitCode.USAGE)
    NOT_METADATA = _row("NOT_METADATA", "The path holds no metadata.", exit_code=ExitCode.USAGE)
    NO_CLUSTER = _row("NO_CLUSTER", "The directory holds no development cluster.", exit_code=ExitCode.NOT_FOUND)
    NO_SUCH_FILE = _row(
        "NO_SUCH_FILE",
        "The file does not exist.",
        exit_code=ExitCode.NOT_FOUND,
        next_step="give the data directory of a node, or a .snapshot file",
    )
    VERIFICATION_FAILED = _row("VERIFICATION_FAILED", "The partitions differ from the plan.", exit_code=ExitCode.FAILED)
