"""Fetches descriptions of topics, with as many requests as their size requires.

A node limits the number of partitions in one answer, and refuses larger requests with POLICY_VIOLATION.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from quorumlog.errors import ClusterError
from quorumlog.wire.errors import ApiError

NAMES_S = 2.0
"""Time limit of the request for the names of all topics, which only adds a suggestion to an error."""
NAMES_MAX = 10_000
"""Nothing is suggested if there are more topics, because the comparison would take too long."""

if TYPE_CHECKING:
    from quorumlog.client.reads import Caller
    from quorumlog.kctl.reads import Reads


async def describe_topics(caller: Caller, names: Iterable[str], left_s: Callable[[], float]) -> list[Any]:
    """Return the descriptions of these topics, ascending by name.

    A topic that does not exist is described by an error, see `pb.TopicDescription.result`.

    names: at least one.  left_s: returns the time limit of the next request, in seconds.

    Raises:
        ClusterError: refused, or no node answers.
    """
    from quorumlog.client.reads import in_parts

    wanted = sorted(set(names))
    assert wanted, "no topic is named, which would mean all of them"
    return await in_parts(wanted, len(wanted), lambda part: _described(caller, part, left_s))


async def describe_all_topics(reads: Reads, left_s: Callable[[], float]) -> list[Any]:
    """Return the descriptions of all topics.

    left_s: returns the time limit of the next request, in seconds.  If several requests are necessary, a topic that is
    created meanwhile may be missing.

    Raises:
        ClusterError: refused, or no node answers.
    """
    from quorumlog.client.reads import TOPICS_AT_ONCE, in_parts

    try:
        return await _described(reads, (), left_s)
    except ClusterError as error:
        if error.code != ApiError.POLICY_VIOLATION:
            raise
    names = await reads.topic_names(left_s())
    found = await in_parts(names, TOPICS_AT_ONCE, lambda part: _described(reads, part, left_s))
    return [topic for topic in found if topic.result.error in (ApiError.NONE, "")]  # others were deleted meanwhile


async def with_nearest(reads: Reads, error: ClusterError, name: str) -> ClusterError:
    """Return the error about a topic that does not exist, with the most similar name of a topic if there is one."""
    import difflib

    if error.code != ApiError.UNKNOWN_TOPIC_OR_PARTITION:
        return error
    try:
        names = await reads.topic_names(min(reads.left_s / 2, NAMES_S))
    except ClusterError:
        return error
    if name in names or len(names) > NAMES_MAX:
        return error
    near = difflib.get_close_matches(name, names, 1)
    message = f"{error.message}; did you mean {near[0]}?" if near else error.message
    return ClusterError(error.code, message, error.next_step, retriable=error.retriable)


async def _described(caller: Caller, names: Sequence[str], left_s: Callable[[], float]) -> list[Any]:
    from quorumlog.wire import rpcs
    from quorumlog.wire.v1 import controller_pb2 as pb

    reply = await caller.call(rpcs.DESCRIBE_TOPICS, pb.DescribeTopicsRequest(names=names), left_s())
    return list(reply.topics)
