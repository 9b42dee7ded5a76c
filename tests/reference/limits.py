"""The fixed limits: the fields of the `Limits` classes with their docstrings, and constants of the metadata.

A docstring stands below its field, or the docstring of the class has a line `field: …` for each field or group of
fields.  A field without a docstring belongs to the text of its neighbour: the one before, if that names it, else the
one after.
"""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Final, NamedTuple

import msgspec

from broker.coordinator.limits import CoordinatorLimits
from broker.core.coordinator.consumer.requests import ConsumerLimits
from broker.core.coordinator.group_requests import GroupLimits
from broker.core.coordinator.scope_requests import ScopeLimits
from broker.core.coordinator.share.requests import ShareGroupLimits
from broker.core.coordinator.share.states import ShareStateLimits
from broker.core.coordinator.transaction_requests import TransactionLimits
from broker.core.share.partition import ShareLimits
from broker.kafka.limits import KafkaLimits
from broker.log.cleaner import CleanerLimits
from broker.replica.limits import ReplicaLimits
from metadata.control import configs, partitions_count, preferred, reassign, topics
from metadata.controller import convert, voters
from metadata.image import group_configs
from metadata.records import RECORDS_PER_BATCH_MAX
from quorum.core.changes import VOTERS_MAX
from quorumlog.runtime import config
from quorumlog.wire.errors import ApiError
from tests.reference.markdown import readable, sentence, table

SECTIONS: Final[Mapping[str, Mapping[str, type[msgspec.Struct]]]] = {
    "listener": {"connections": KafkaLimits},
    "replicas": {"replicas": ReplicaLimits},
    "compaction": {"logs": CleanerLimits},
    "coordinators": {"coordinators": CoordinatorLimits},
    "groups": {
        "all groups": GroupLimits,
        "members of the newer protocol": ConsumerLimits,
        "share groups": ShareGroupLimits,
    },
    "share states": {"share partitions": ShareStateLimits},
    "transactions": {"transactional ids": TransactionLimits, "scopes": ScopeLimits},
}
"""The classes of each table, by the things that they limit."""

CONFIGURED: Final[Mapping[type[msgspec.Struct], Mapping[str, str]]] = {
    CleanerLimits: {
        "interval_ms": "log.cleaner.backoff.ms",
        "map_memory": "log.cleaner.dedupe.buffer.size",
    },
    GroupLimits: {
        "session_timeout_min_ms": "group.min.session.timeout.ms",
        "session_timeout_max_ms": "group.max.session.timeout.ms",
        "members_max": "group.max.size",
        "initial_rebalance_delay_ms": "group.initial.rebalance.delay.ms",
        "offset_metadata_max_bytes": "offset.metadata.max.bytes",
        "offsets_retention_ms": "offsets.retention.minutes",
        "expiry_interval_ms": "offsets.retention.check.interval.ms",
    },
    ConsumerLimits: {
        "session_timeout_ms": "group.consumer.session.timeout.ms",
        "heartbeat_interval_ms": "group.consumer.heartbeat.interval.ms",
        "assignment_interval_ms": "group.consumer.assignment.interval.ms",
        "members_max": "group.consumer.max.size",
        "assignors": "group.consumer.assignors",
        "may_upgrade": "group.consumer.migration.policy",
        "may_downgrade": "group.consumer.migration.policy",
    },
    ShareGroupLimits: {
        "session_timeout_ms": "group.share.session.timeout.ms",
        "heartbeat_interval_ms": "group.share.heartbeat.interval.ms",
        "members_max": "group.share.max.size",
    },
    TransactionLimits: {
        "timeout_max_ms": "transaction.max.timeout.ms",
        "expiration_ms": "transactional.id.expiration.ms",
    },
    ShareLimits: {
        "lock_ms": "group.share.record.lock.duration.ms",
        "delivery_count_max": "group.share.delivery.count.limit",
        "max_in_flight": "group.share.partition.max.record.locks",
    },
}
"""Fields that a config or a setting determines.  The tables of configs and settings have them."""

_ENTRY: Final = re.compile(r"(?:^|\n)((?:\w+)(?:, \w+)*): (.*?)(?=\n\S|\Z)", re.DOTALL)


class Row(NamedTuple):
    """One row: fields that one text explains."""

    fields: tuple[str, ...]
    text: str


def limits(section: str) -> str:
    """Return the table of a section; if it has several classes, a column tells them apart."""
    classes = SECTIONS[section]
    rows = [_cells(row, subject, each()) for subject, each in classes.items() for row in rows_of(each)]
    if len(classes) > 1:
        return table(("limit", "of", "value", "meaning"), rows)
    return table(("limit", "value", "meaning"), [(name, value, text) for name, _, value, text in rows])


def _cells(row: Row, subject: str, values: msgspec.Struct) -> tuple[str, str, str, str]:
    names = ", ".join(f"`{name}`" for name in row.fields)
    return names, subject, ", ".join(readable(name, getattr(values, name)) for name in row.fields), row.text


@cache
def rows_of(limits_class: type[msgspec.Struct]) -> tuple[Row, ...]:
    """Return the fixed limits of a class in the order of its fields."""
    texts = _texts(limits_class)
    rows: list[Row] = []
    waiting: list[str] = []
    for name in fixed_fields(limits_class):
        if name in texts:
            rows.append(Row((*waiting, name), texts[name]))
            waiting = []
        elif not waiting and rows and f"`{name}`" in rows[-1].text:
            rows[-1] = rows[-1]._replace(fields=(*rows[-1].fields, name))
        else:
            waiting.append(name)
    assert not waiting, f"{limits_class.__name__} does not explain {', '.join(waiting)}"
    return tuple(_merged(rows))


def fixed_fields(limits_class: type[msgspec.Struct]) -> list[str]:
    """Return the fields that no config and no setting determines, without the limits of other classes."""
    configured = CONFIGURED.get(limits_class, {})
    defaults = limits_class()
    return [
        name
        for name in limits_class.__struct_fields__
        if name not in configured and not isinstance(getattr(defaults, name), msgspec.Struct)
    ]


def _merged(rows: Sequence[Row]) -> list[Row]:
    """Return the rows; consecutive fields with the same text share one."""
    merged: list[Row] = []
    for row in rows:
        if merged and merged[-1].text == row.text:
            merged[-1] = merged[-1]._replace(fields=(*merged[-1].fields, *row.fields))
        else:
            merged.append(row)
    return merged


def _texts(limits_class: type[msgspec.Struct]) -> dict[str, str]:
    """Return the docstring of each field that has one."""
    found: dict[str, str] = {}
    for names, text in _ENTRY.findall(inspect.cleandoc(limits_class.__doc__ or "")):
        found |= {name: sentence(text[:1].upper() + text[1:]) for name in names.split(", ")}
    (definition,) = ast.parse(textwrap.dedent(inspect.getsource(limits_class))).body
    assert isinstance(definition, ast.ClassDef)
    for field, after in zip(definition.body, definition.body[1:], strict=False):
        match field, after:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                found[name] = sentence(text)
    return found


def numbers() -> str:
    """Return the limits of names and numbers that the controller and the nodes check."""
    rows: list[tuple[str, int, str]] = [
        (
            "characters of a topic's name",
            topics.NAME_LENGTH_MAX,
            "a-z, A-Z, 0-9, `.`, `_` and `-`, but neither `.` nor `..`; names that begin with `__` are reserved. "
            f"Another name is refused with {ApiError.INVALID_TOPIC_EXCEPTION}.",
        ),
        (
            "partitions of a topic",
            partitions_count.PARTITIONS_MAX,
            f"More are refused with {ApiError.INVALID_PARTITIONS}.",
        ),
        (
            "records of one request that creates topics or partitions",
            RECORDS_PER_BATCH_MAX,
            "A new topic takes one record, and so does each of its partitions and configs (`min.insync.replicas` is "
            f"always one of them). A request that needs more is refused with {ApiError.POLICY_VIOLATION} and changes "
            f"nothing; if a single new topic has more partitions than this, with {ApiError.INVALID_PARTITIONS}. Create "
            "large topics with fewer partitions, and add the others in further requests.",
        ),
        (
            "new replicas in one request",
            topics.REPLICAS_PER_REQUEST_MAX,
            f"A request for more is refused with {ApiError.POLICY_VIOLATION} and changes nothing.",
        ),
        (
            "partitions in one request that moves replicas",
            reassign.CHANGES_MAX,
            f"A request for more is refused with {ApiError.POLICY_VIOLATION} and changes nothing. `kctl reassign` "
            "divides a larger plan among several requests.",
        ),
        (
            "new leaders in one request that elects leaders of named partitions",
            RECORDS_PER_BATCH_MAX,
            f"A request for more is refused with {ApiError.POLICY_VIOLATION} and changes nothing. `kctl elect-leaders` "
            "divides the partitions of a larger topic among several requests.",
        ),
        (
            "partitions that one request removes from a topic",
            RECORDS_PER_BATCH_MAX - 1,
            f"A request for more is refused with {ApiError.POLICY_VIOLATION}. The error proposes a number with which "
            "to begin.",
        ),
        (
            "changes of configs in one request",
            configs.CHANGES_MAX,
            f"A request for more is refused with {ApiError.POLICY_VIOLATION}.",
        ),
        (
            "groups with configs of their own",
            group_configs.GROUPS_WITH_CONFIGS_MAX,
            f"The configs of a further group are refused with {ApiError.POLICY_VIOLATION}.",
        ),
        (
            "bytes of a group id in a request about configs",
            configs.GROUP_ID_MAX_BYTES,
            f"A longer one is refused with {ApiError.INVALID_REQUEST}.",
        ),
        (
            "items of one kind (topics, partitions, configs) in one request to the controller",
            convert.ITEMS_MAX,
            f"A request with more is refused with {ApiError.INVALID_REQUEST}.",
        ),
        ("voters", VOTERS_MAX, "A further voter is refused. Nodes with `quorum.auto.join` stay observers."),
        (
            "voters that found a cluster (`--initial-voters`)",
            config.INITIAL_VOTERS_MAX,
            "With more, no node starts.",
        ),
        ("voters of a target (`kctl alter-quorum`)", voters.TARGET_VOTERS_MAX, "A longer target is refused."),
        ("preferred controllers", preferred.PREFERRED_MAX, f"More are refused with {ApiError.INVALID_REQUEST}."),
        (
            "data directories of a broker",
            config.DATA_DIRS_MAX,
            "With more, the broker does not start. A node of `quorum-node` has one.",
        ),
        ("Kafka listeners of a broker", config.LISTENERS_MAX, "With more, the broker does not start."),
        (
            "control addresses in `--join` or `--controllers`",
            config.PROBE_ADDRESSES_MAX,
            "With more, the node does not start.",
        ),
    ]
    return table(("number of", "at most", "meaning"), [(what, f"{value:,}", text) for what, value, text in rows])
