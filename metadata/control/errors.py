"""The outcome of a request: an error code, and a message for people."""

from __future__ import annotations

import msgspec

from quorumlog.wire.errors import ApiError


class Outcome(msgspec.Struct, frozen=True):
    """error: NONE for a success.  message: the problem and its cause.  next_step: the next step.  Both may be empty."""

    error: ApiError
    message: str = ""
    next_step: str = ""

    @property
    def ok(self) -> bool:
        return self.error is ApiError.NONE


OK = Outcome(ApiError.NONE)


def no_topic(name: str) -> Outcome:
    """Return the refusal of a request that names a missing topic."""
    return Outcome(ApiError.UNKNOWN_TOPIC_OR_PARTITION, f"no topic is named {name[:60]!a}", "kctl topics list")
