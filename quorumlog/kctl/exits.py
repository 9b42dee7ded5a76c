"""Exit codes of kctl: the contract with scripts."""

from __future__ import annotations

from quorumlog.errors import ClusterError, ConfigError, QuorumlogError, RemoteProtocolError

DONE = 0
FAILED = 1
USAGE = 2
NOT_FOUND = 3
UNAVAILABLE = 4
REFUSED = 5
NOT_AUTHORISED = 6
INTERRUPTED = 130

_BY_CODE = {
    "UNKNOWN_TOPIC_OR_PARTITION": NOT_FOUND,
    "UNKNOWN_TOPIC_ID": NOT_FOUND,
    "BROKER_ID_NOT_REGISTERED": NOT_FOUND,
    "VOTER_NOT_FOUND": NOT_FOUND,
    "CONFIG_NOT_FOUND": NOT_FOUND,
    "NO_CLUSTER": NOT_FOUND,
    "NO_SUCH_FILE": NOT_FOUND,
    "OFFSET_OUT_OF_RANGE": NOT_FOUND,
    "INVALID_TOPIC_EXCEPTION": USAGE,
    "INVALID_PARTITIONS": USAGE,
    "INVALID_REPLICA_ASSIGNMENT": USAGE,
    "INVALID_CONFIG": USAGE,
    "INVALID_PLAN": USAGE,
    "NOT_METADATA": USAGE,
    "NOT_A_NODE": USAGE,
    "INVALID_LINE": USAGE,
    "VERIFICATION_FAILED": FAILED,
    "INVALID_REQUEST": USAGE,
    "OUTCOME_UNKNOWN": UNAVAILABLE,
    "UNKNOWN_SERVER_ERROR": FAILED,
    "CORRUPT_MESSAGE": FAILED,
    "CORRUPT_STORE": FAILED,
    "IO_ERROR": FAILED,
}


def exit_code(error: BaseException) -> int:
    """Return the exit code for an error: by its code if that is a known refusal, else by whether it is retriable."""
    match error:
        case ClusterError():
            if error.code.endswith("AUTHORIZATION_FAILED") or error.code.startswith("SASL_"):
                return NOT_AUTHORISED
            return _BY_CODE.get(error.code, UNAVAILABLE if error.retriable else REFUSED)
        case ConfigError():
            return USAGE
        case TimeoutError() | ConnectionError():
            return UNAVAILABLE
        case RemoteProtocolError() | QuorumlogError():
            return FAILED
    return FAILED
