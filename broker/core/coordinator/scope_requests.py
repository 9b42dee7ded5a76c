"""Requests about transaction scopes, their responses, and their limits.

The `message` of a response describes a refusal for people: the problem, the cause and the next step.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import msgspec

from broker.core.transactions import NO_PRODUCER, ProducerKey
from quorumlog.wire.errors import KafkaCode

NO_EPOCH: Final = -1


class ScopeLimits(msgspec.Struct, frozen=True):
    """The limits of the scopes of one coordinator.

    scopes_max: scopes of one coordinator; further scopes get POLICY_VIOLATION.
    producers_max: producers of one scope that are not complete; further producers get POLICY_VIOLATION.  The winners of
        an end are among them, so their names fit into one record.
    expiration_ms: a scope that has ended is deleted when it has not been used for this long.  Afterwards, a scope of
        the same name would accept an old sequence as new, so the time is long.  A scope that never ended expires like
        a transactional id.
    free_ids_max: producer ids of complete producers that are kept for later producers; further ids are dropped.
    replaced_runs_max: former runs that the coordinator remembers, so that none of them replaces a later run.  A run is
        former once another run has replaced it, or its scope was deleted.  Beyond this number, the oldest is dropped.
    """

    scopes_max: int = 100_000
    producers_max: int = 10_000
    expiration_ms: int = 365 * 86_400_000
    free_ids_max: int = 10_000
    replaced_runs_max: int = 20_000


class InitScope(msgspec.Struct, frozen=True):
    """Begin a run of a scope: fence earlier runs, and abort their producers.

    A repeated request of the current run changes nothing.  A run that another run has replaced gets PRODUCER_FENCED.
    reset: take the scope over from any owner, and delete its sequence.
    """

    scope: str
    owner: str
    run: str
    reset: bool = False


class InitScopeResponse(msgspec.Struct, frozen=True):
    """owner: the current owner; also set if the request of another owner was refused."""

    error: KafkaCode
    message: str = ""
    epoch: int = NO_EPOCH
    sequence: int = -1
    owner: str = ""


class InitScopeProducer(msgspec.Struct, frozen=True):
    """Begin as a producer of a scope.  A producer with the same attempt is fenced.

    fresh_id: an unused producer id; None if the caller has none yet.
    """

    scope: str
    epoch: int
    attempt: str
    timeout_ms: int
    fresh_id: int | None = None


class InitScopeProducerResponse(msgspec.Struct, frozen=True):
    """needs_id: nothing was done; repeat the request with a fresh id."""

    error: KafkaCode
    message: str = ""
    transactional_id: str = ""
    producer: ProducerKey = NO_PRODUCER
    needs_id: bool = False


class Winner(NamedTuple):
    """A producer to commit."""

    attempt: str
    producer: ProducerKey


class EndScope(msgspec.Struct, frozen=True):
    """Commit the winners, and abort all other producers of the scope.

    sequence: the number of this end.  If it is not greater than the sequence of the last end, nothing changes.
    """

    scope: str
    epoch: int
    sequence: int
    winners: tuple[Winner, ...]


class EndScopeResponse(msgspec.Struct, frozen=True):
    """changed: this request made the decision.  sequence: the sequence of the last end; -1 if there was none."""

    error: KafkaCode
    message: str = ""
    changed: bool = False
    sequence: int = -1


class AbortScope(msgspec.Struct, frozen=True):
    """Abort all producers of a scope.  close: delete the scope afterwards."""

    scope: str
    epoch: int
    close: bool = False


class AbortScopeResponse(msgspec.Struct, frozen=True):
    error: KafkaCode
    message: str = ""


class DescribeScopes(msgspec.Struct, frozen=True):
    scopes: tuple[str, ...]


class DescribedProducer(NamedTuple):
    """started_ms: ms since the epoch; -1 before the first partition."""

    attempt: str
    producer: ProducerKey
    state: str
    started_ms: int
    partitions: int


class DescribedScope(msgspec.Struct, frozen=True):
    scope: str
    error: KafkaCode
    message: str = ""
    owner: str = ""
    run: str = ""
    epoch: int = NO_EPOCH
    state: str = ""
    sequence: int = -1
    updated_ms: int = -1
    producers: tuple[DescribedProducer, ...] = ()


class DescribeScopesResponse(msgspec.Struct, frozen=True):
    scopes: tuple[DescribedScope, ...]


ScopeRequest = InitScope | InitScopeProducer | EndScope | AbortScope | DescribeScopes
ScopeResponse = (
    InitScopeResponse | InitScopeProducerResponse | EndScopeResponse | AbortScopeResponse | DescribeScopesResponse
)
