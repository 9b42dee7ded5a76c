"""How a request ended: the words of the contract, and whether the same request may succeed if it is sent again.

Every reply carries a word, a sentence that says what and why, and perhaps one that says what to do.  Words are Kafka's
where Kafka has one.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Word(Enum):
    """`retriable`: the state that caused the refusal passes by itself, or another node will answer differently."""

    NONE = ("NONE", False)
    # Which node, which cluster, what became of it
    NOT_CONTROLLER = ("NOT_CONTROLLER", True)
    OUTCOME_UNKNOWN = ("OUTCOME_UNKNOWN", True)
    REQUEST_TIMED_OUT = ("REQUEST_TIMED_OUT", True)
    OVERLOADED = ("OVERLOADED", True)
    INCONSISTENT_CLUSTER_ID = ("INCONSISTENT_CLUSTER_ID", False)
    INVALID_REQUEST = ("INVALID_REQUEST", False)
    POLICY_VIOLATION = ("POLICY_VIOLATION", False)
    OFFSET_OUT_OF_RANGE = ("OFFSET_OUT_OF_RANGE", False)
    UNSUPPORTED_VERSION = ("UNSUPPORTED_VERSION", False)
    STORAGE_ERROR = ("STORAGE_ERROR", False)
    # Brokers
    INVALID_REGISTRATION = ("INVALID_REGISTRATION", False)
    DUPLICATE_BROKER_REGISTRATION = ("DUPLICATE_BROKER_REGISTRATION", True)
    BROKER_ID_NOT_REGISTERED = ("BROKER_ID_NOT_REGISTERED", False)
    STALE_BROKER_EPOCH = ("STALE_BROKER_EPOCH", False)
    BROKER_IN_USE = ("BROKER_IN_USE", False)
    # Topics and partitions
    INVALID_TOPIC_EXCEPTION = ("INVALID_TOPIC_EXCEPTION", False)
    TOPIC_ALREADY_EXISTS = ("TOPIC_ALREADY_EXISTS", False)
    INVALID_PARTITIONS = ("INVALID_PARTITIONS", False)
    INVALID_REPLICATION_FACTOR = ("INVALID_REPLICATION_FACTOR", False)
    INVALID_REPLICA_ASSIGNMENT = ("INVALID_REPLICA_ASSIGNMENT", False)
    INVALID_CONFIG = ("INVALID_CONFIG", False)
    UNKNOWN_TOPIC_OR_PARTITION = ("UNKNOWN_TOPIC_OR_PARTITION", False)
    UNKNOWN_TOPIC_ID = ("UNKNOWN_TOPIC_ID", False)
    FENCED_LEADER_EPOCH = ("FENCED_LEADER_EPOCH", False)
    INVALID_UPDATE_VERSION = ("INVALID_UPDATE_VERSION", False)
    INELIGIBLE_REPLICA = ("INELIGIBLE_REPLICA", False)
    REASSIGNMENT_IN_PROGRESS = ("REASSIGNMENT_IN_PROGRESS", False)
    NO_REASSIGNMENT_IN_PROGRESS = ("NO_REASSIGNMENT_IN_PROGRESS", False)
    OPERATION_NOT_ATTEMPTED = ("OPERATION_NOT_ATTEMPTED", False)
    ELECTION_NOT_NEEDED = ("ELECTION_NOT_NEEDED", False)
    PREFERRED_LEADER_NOT_AVAILABLE = ("PREFERRED_LEADER_NOT_AVAILABLE", True)
    ELIGIBLE_LEADERS_NOT_AVAILABLE = ("ELIGIBLE_LEADERS_NOT_AVAILABLE", True)

    # Voters: the quorum's own words
    PAUSED = ("PAUSED", True)
    CHANGE_PENDING = ("CHANGE_PENDING", True)
    NOT_COMMITTED_YET = ("NOT_COMMITTED_YET", True)
    TARGET_IN_PROGRESS = ("TARGET_IN_PROGRESS", False)
    DUPLICATE_VOTER = ("DUPLICATE_VOTER", False)
    VOTER_NOT_FOUND = ("VOTER_NOT_FOUND", False)
    LAST_VOTER = ("LAST_VOTER", False)
    NOT_CAUGHT_UP = ("NOT_CAUGHT_UP", False)
    UNREACHABLE = ("UNREACHABLE", False)
    WRONG_NODE = ("WRONG_NODE", False)
    WRONG_CLUSTER = ("WRONG_CLUSTER", False)
    NO_MAJORITY = ("NO_MAJORITY", False)

    def __init__(self, code: str, retriable: bool) -> None:
        self.code = code
        self.retriable = retriable


@dataclass(frozen=True, slots=True)
class Outcome:
    """`message`: what and why; `next_step`: what to do, may be empty."""

    word: Word
    message: str = ""
    next_step: str = ""

    @property
    def ok(self) -> bool:
        return self.word is Word.NONE


OK = Outcome(Word.NONE)


def no_topic(name: str) -> Outcome:
    return Outcome(Word.UNKNOWN_TOPIC_OR_PARTITION, f"no topic is named {name[:60]!a}", "kctl topics list")
