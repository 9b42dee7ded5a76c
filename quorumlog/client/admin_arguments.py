"""Checks the arguments that users pass to `Admin`, and converts them for requests."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import isfinite
from typing import Any, Final

from quorumlog.client.admin_values import CreatedTopic, NewTopic
from quorumlog.client.consumer import EARLIEST, LATEST
from quorumlog.client.messages import (
    INT16_MAX,
    INT32_MAX,
    TopicPartition,
    as_offset,
    check_partitions,
    check_texts,
    text_problem,
)
from quorumlog.errors import ConfigError

TOPIC: Final = 2
BROKER: Final = 4
GROUP: Final = 32
"""Types of resources with configs."""


def positive(timeout_s: float) -> float:
    """Return `timeout_s`.  Raises: ConfigError: it is not above 0, or not finite."""
    if not (timeout_s > 0 and isfinite(timeout_s)):
        raise ConfigError(f"timeout_s is {timeout_s}, not a number above 0")
    return timeout_s


def distinct(what: str, names: Sequence[str]) -> None:
    """Check a list of names.  Raises: ConfigError: the list is empty, or contains a name twice."""
    twice = sorted({name for name in names if names.count(name) > 1})
    if not names:
        raise ConfigError(f"{what} is empty")
    if twice:
        raise ConfigError(f"{what} has {', '.join(twice)} twice")


def offsets_of(offsets: Mapping[tuple[str, int], object]) -> dict[TopicPartition, int]:
    """Return offsets by partition.

    Raises:
        ConfigError: some topics are not valid text, or some offsets are invalid; the error lists all of these.
    """
    check_partitions(offsets)
    found: dict[TopicPartition, int] = {}
    problems = []
    for key, offset in offsets.items():
        try:
            found[TopicPartition(*key)] = as_offset(offset)
        except (TypeError, ValueError) as error:
            problems.append(f"{TopicPartition(*key)}: {error}")
    if problems:
        raise ConfigError(*problems)
    return found


def end_of(at: str) -> int:
    """Return the special timestamp with which ListOffsets asks for the start or the end of a log.

    Raises:
        ConfigError: `at` is neither "earliest" nor "latest".
    """
    if at not in ("earliest", "latest"):
        raise ConfigError(f"{at!r} is not one of earliest, latest")
    return EARLIEST if at == "earliest" else LATEST


def resource_of(topic: str | None, broker: int | str | None, group: str | None) -> tuple[int, str, int | None, str]:
    """Return the type and the name of a resource, the broker to ask (None: any), and the resource in words.

    Raises:
        ConfigError: not exactly one resource is named, its name is not valid text, or the broker is not an id.
    """
    if [topic, broker, group].count(None) != 2:
        raise ConfigError("name one of topic, broker and group")
    if topic is not None:
        check_texts("topic", [topic])
        return TOPIC, topic, None, f"the configs of topic {topic}"
    if group is not None:
        check_texts("group", [group])
        return GROUP, group, None, f"the configs of group {group}"
    if broker == "all":
        return BROKER, "", None, "the configs of all brokers"
    if not isinstance(broker, int):
        raise ConfigError(f'broker is {broker!r}, not a broker id or "all"')
    return BROKER, str(broker), broker, f"the configs of broker {broker}"


def check_configs(configs: Iterable[tuple[str, str | None]], prefix: str = "") -> None:
    """Check the names and values of configs; None is accepted as a value.  prefix: text before each problem.

    Raises:
        ConfigError: some are not valid text; the error lists all of these.
    """
    problems = []
    for name, value in configs:
        problem = text_problem(f"{prefix}config", name)
        if problem is None and value is not None:
            problem = text_problem(f"{prefix}config {name}", value)
        if problem is not None:
            problems.append(problem)
    if problems:
        raise ConfigError(*problems)


def new_topics(topics: Iterable[NewTopic]) -> dict[str, NewTopic]:
    """Return topics by name.

    Raises:
        ConfigError: no topic is given; a name occurs twice; a name or a config is not valid text; a number is out of
            range; or arguments of a topic exclude each other.
    """
    given = list(topics)
    check_texts("topic", (each.name for each in given))
    distinct("topics", [each.name for each in given])
    for each in given:
        if each.assignment is not None and (each.partitions, each.replication_factor) != (None, None):
            raise ConfigError(f"topic {each.name}: an assignment excludes partitions and replication_factor")
        check_configs((each.configs or {}).items(), f"topic {each.name}: ")
        fits(f"topic {each.name}: partitions", each.partitions, INT32_MAX)
        fits(f"topic {each.name}: replication_factor", each.replication_factor, INT16_MAX)
        for broker in (one for ids in each.assignment or () for one in ids):
            fits(f"topic {each.name}: a broker id", broker, INT32_MAX)
    return {each.name: each for each in given}


def fits(what: str, number: int | None, highest: int) -> None:
    """Check a number for a signed field of a request; None is accepted.

    A broker refuses other invalid numbers, and reports its own limits.

    Raises:
        ConfigError: the field cannot hold the number.
    """
    if number is not None and not -highest <= number <= highest:
        raise ConfigError(f"{what} is {number}, not a number up to {highest}")


def creatable(topic: NewTopic) -> dict[str, Any]:
    """Return the fields of a topic in a CreateTopics request."""
    return {
        "name": topic.name,
        "num_partitions": -1 if topic.partitions is None else topic.partitions,
        "replication_factor": -1 if topic.replication_factor is None else topic.replication_factor,
        "assignments": [
            {"partition_index": index, "broker_ids": ids} for index, ids in enumerate(topic.assignment or ())
        ],
        "configs": [{"name": name, "value": value} for name, value in (topic.configs or {}).items()],
    }


def created(answer: Any) -> CreatedTopic:
    """Return a topic from a CreateTopics response."""
    configs = {each.name: each.value for each in answer.configs or ()}
    return CreatedTopic(
        str(answer.name), answer.topic_id, int(answer.num_partitions), int(answer.replication_factor), configs
    )
