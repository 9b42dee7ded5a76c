"""The settings of a `Consumer`, checked as a whole."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Final, Literal, get_args

from quorumlog.client.assignors import ASSIGNORS
from quorumlog.client.fetcher import FetchLimits
from quorumlog.client.messages import INT32_MAX, TopicPartition, client_id_problem, text_problem, timeout_problem
from quorumlog.client.starting_offsets import OffsetReset
from quorumlog.errors import ConfigError

ASSIGNORS_DEFAULT: Final = ("range", "cooperative-sticky")
"""As in Kafka's clients: rebalances are eager, and a group can switch to cooperative rebalances by dropping `range`."""
CALL_TIMEOUT_S: Final = 60.0
CLOSE_TIMEOUT_S: Final = 10.0

IsolationLevel = Literal["read_committed", "read_uncommitted"]
Listener = Callable[[list[TopicPartition]], Awaitable[None] | None]
"""A listener of the user.  It gets partitions, ascending, and may be a coroutine function."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerSettings:
    """The arguments of `Consumer`, whose docstring describes them.

    Raises:
        ConfigError: arguments are invalid; the error lists all of these.
    """

    client_id: str
    topics: frozenset[str] | None
    pattern: str | None
    group: str | None
    group_instance_id: str | None
    assignors: tuple[str, ...]
    auto_offset_reset: OffsetReset
    isolation_level: IsolationLevel
    auto_commit: bool
    auto_commit_interval_s: float
    session_timeout_s: float
    heartbeat_interval_s: float
    max_poll_interval_s: float
    on_assigned: Listener | None
    on_revoked: Listener | None
    on_lost: Listener | None
    fetch: FetchLimits
    failure_timeout_s: float
    metadata_age_s: float

    def __post_init__(self) -> None:
        problems = [
            *self._problems_of_names(),
            *self._problems_of_choices(),
            *self._problems_of_times(),
            *self._problems_of_fetches(),
        ]
        if problems:
            raise ConfigError(*problems)

    @property
    def is_subscribed(self) -> bool:
        """Return whether the consumer names topics; if not, it gets its partitions by `assign`."""
        return self.topics is not None or self.pattern is not None

    @property
    def committed_only(self) -> bool:
        return self.isolation_level == "read_committed"

    @property
    def commit_interval_s(self) -> float | None:
        """Return the time between two automatic commits; None without them."""
        return self.auto_commit_interval_s if self.auto_commit and self.group is not None else None

    def _problems_of_names(self) -> Iterable[str]:
        if problem := client_id_problem(self.client_id):
            yield problem
        names = [("topic", name) for name in sorted(self.topics or (), key=str)]
        for what, name in (*names, ("group", self.group), ("group_instance_id", self.group_instance_id)):
            if name is not None and (problem := text_problem(what, name)):
                yield problem
        if self.topics is not None and self.pattern is not None:
            yield "topics and pattern exclude each other"
        if self.topics is not None and not self.topics:
            yield "topics is empty"
        if not _is_pattern(self.pattern):
            yield f"pattern is not a regular expression: {self.pattern!r}"
        if self.group == "":
            yield "group is empty"
        if self.group_instance_id is not None and self.group is None:
            yield "group_instance_id needs a group"

    def _problems_of_choices(self) -> Iterable[str]:
        if not self.assignors or not set(self.assignors) <= ASSIGNORS.keys():
            yield f"assignors is {list(self.assignors)}, not some of {', '.join(ASSIGNORS)}"
        for name, choices in (("auto_offset_reset", OffsetReset), ("isolation_level", IsolationLevel)):
            value = getattr(self, name)
            if value not in get_args(choices):
                yield f"{name} is {value!r}, not one of {', '.join(get_args(choices))}"

    def _problems_of_times(self) -> Iterable[str]:
        if self.auto_commit_interval_s <= 0:
            yield f"auto_commit_interval_s is {self.auto_commit_interval_s}, not above 0"
        if not 0 < self.heartbeat_interval_s < self.session_timeout_s:
            yield f"heartbeat_interval_s is {self.heartbeat_interval_s}, not above 0 and below session_timeout_s"
        for name in ("session_timeout_s", "max_poll_interval_s"):
            if problem := timeout_problem(name, getattr(self, name)):
                yield problem
        for name in ("failure_timeout_s", "metadata_age_s"):
            if (value := getattr(self, name)) <= 0:
                yield f"{name} is {value}, not above 0"

    def _problems_of_fetches(self) -> Iterable[str]:
        limits = self.fetch
        for name, lowest in (("wait_ms", 0), ("size_min", 0), ("size_max", 1), ("partition_size_max", 1)):
            if not lowest <= (value := getattr(limits, name)) <= INT32_MAX:  # an int32 in the request
                yield f"fetch.{name} is {value}, not {lowest} to {INT32_MAX}"
        if limits.buffer_size_max < 1:
            yield f"fetch.buffer_size_max is {limits.buffer_size_max}, below 1"
        if problem := timeout_problem("fetch.request_timeout_s", limits.request_timeout_s):
            yield problem


def _is_pattern(pattern: str | None) -> bool:
    try:
        re.compile(pattern or "")
    except re.error:
        return False
    return True
