"""The exit code of kctl for an error."""

from __future__ import annotations

from quorumlog.errors import ClusterError, ConfigError
from quorumlog.wire.errors import ApiError, ExitCode


def exit_code(error: BaseException) -> int:
    """Return the exit code for an error.

    For a ClusterError, the table of errors (quorumlog/wire/errors.py) decides.  If it has no exit code for the error,
    the error counts as NOT_AUTHORISED if it is about authorisation, as UNAVAILABLE if it is retriable, else as REFUSED.
    """
    match error:
        case ClusterError():
            return _of_refusal(error)
        case ConfigError():
            return ExitCode.USAGE
        case TimeoutError() | ConnectionError():
            return ExitCode.UNAVAILABLE
    return ExitCode.FAILED


def _of_refusal(error: ClusterError) -> ExitCode:
    known = ApiError.named(error.code)
    if known is not None and known.exit_code is not None:
        return known.exit_code
    # Only brokers of Apache Kafka send these errors.
    if error.code.endswith("AUTHORIZATION_FAILED") or error.code.startswith("SASL_"):
        return ExitCode.NOT_AUTHORISED
    return ExitCode.UNAVAILABLE if error.retriable else ExitCode.REFUSED
