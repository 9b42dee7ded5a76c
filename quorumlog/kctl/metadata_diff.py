"""The differences between two states of the cluster, in words.

A state is the JSON of `kctl metadata at`.  Partitions are compared field by field; a created or deleted topic is one
change.  In the text form, partitions of a topic with the same changes share a line.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

from quorumlog.words import ranges

ADDED, REMOVED, CHANGED = "added", "removed", "changed"
_SIGNS = {ADDED: "+", REMOVED: "-", CHANGED: "~"}
_PARTITION_FIELDS = ("leader", "leader_epoch", "replicas", "isr", "elr", "adding", "removing")
_BROKER_FIELDS = ("state", "broker_epoch", "rack", "endpoints")


class Change(NamedTuple):
    """A change of an object's `field` from `before` to `after`.  what: its kind, such as topic.  name: its name."""

    change: str
    what: str
    name: str
    field: str | None = None
    before: Any = None
    after: Any = None


def diff(old: dict[str, Any], new: dict[str, Any]) -> list[Change]:
    """Return the changes in this order: voters, brokers, topics with their partitions and configs, other objects."""
    return [
        *_keyed("voter", _by(old["voters"], "id"), _by(new["voters"], "id"), ("address",)),
        *_whole("target voters", _ids(old["target_voters"]), _ids(new["target_voters"])),
        *_brokers(_by(old["brokers"], "id"), _by(new["brokers"], "id")),
        *_topics(_by(old["topics"], "name"), _by(new["topics"], "name")),
        *_configs(old["configs"], new["configs"]),
        *_whole("preferred controllers", old["preferred_controllers"], new["preferred_controllers"]),
        *_keyed("feature", _by(old["features"], "name"), _by(new["features"], "name"), ("level",)),
    ]


def _by(items: Iterable[dict[str, Any]], key: str) -> dict[Any, dict[str, Any]]:
    return {item[key]: item for item in items}


def _ids(voters: list[dict[str, Any]] | None) -> list[int] | None:
    return None if voters is None else [voter["id"] for voter in voters]


def _keyed(
    what: str, old: dict[Any, dict[str, Any]], new: dict[Any, dict[str, Any]], fields: Iterable[str]
) -> Iterator[Change]:
    for name in sorted({*old, *new}):
        if name not in old:
            yield Change(ADDED, what, str(name), after={field: new[name][field] for field in fields})
        elif name not in new:
            yield Change(REMOVED, what, str(name), before={field: old[name][field] for field in fields})
        else:
            yield from _fields(what, str(name), old[name], new[name], fields)


def _fields(what: str, name: str, old: dict[str, Any], new: dict[str, Any], fields: Iterable[str]) -> Iterator[Change]:
    for field in fields:
        if old[field] != new[field]:
            yield Change(CHANGED, what, name, field, old[field], new[field])


def _brokers(old: dict[Any, dict[str, Any]], new: dict[Any, dict[str, Any]]) -> Iterator[Change]:
    yield from _keyed("broker", old, new, _BROKER_FIELDS)


def _topics(old: dict[str, dict[str, Any]], new: dict[str, dict[str, Any]]) -> Iterator[Change]:
    for name in sorted({*old, *new}):
        if name not in old:
            yield Change(ADDED, "topic", name, after=_summary(new[name]))
            continue
        if name not in new:
            yield Change(REMOVED, "topic", name, before=_summary(old[name]))
            continue
        before, after = old[name], new[name]
        yield from _fields("topic", name, before, after, ("topic_id",))
        earlier, later = (_by(topic["partitions"], "partition") for topic in (before, after))
        for index in sorted({*earlier, *later}):
            partition = f"{name}-{index}"
            if index not in earlier:
                yield Change(ADDED, "partition", partition, after=_placed(later[index]))
            elif index not in later:
                yield Change(REMOVED, "partition", partition, before=_placed(earlier[index]))
            else:
                yield from _fields("partition", partition, earlier[index], later[index], _PARTITION_FIELDS)
        yield from _values(f"topic {name}", *({c["name"]: c["value"] for c in t["configs"]} for t in (before, after)))


def _summary(topic: dict[str, Any]) -> dict[str, Any]:
    factors = sorted({len(partition["replicas"]) for partition in topic["partitions"]})
    return {
        "topic_id": topic["topic_id"],
        "partitions": len(topic["partitions"]),
        "replication_factor": factors[0] if len(factors) == 1 else factors,
        "configs": topic["configs"],
    }


def _placed(partition: dict[str, Any]) -> dict[str, Any]:
    return {field: partition[field] for field in ("leader", "replicas", "isr")}


def _configs(old: list[dict[str, Any]], new: list[dict[str, Any]]) -> Iterator[Change]:
    scopes = {(each["scope"], each["resource"] or "") for each in (*old, *new)}
    for scope, resource in sorted(scopes):
        of = "cluster" if scope == "cluster" else f"{scope} {resource}"
        earlier, later = (
            {
                each["name"]: each["value"]
                for each in side
                if (each["scope"], each["resource"] or "") == (scope, resource)
            }
            for side in (old, new)
        )
        yield from _values(of, earlier, later)


def _values(of: str, old: dict[str, str], new: dict[str, str]) -> Iterator[Change]:
    for key in sorted({*old, *new}):
        if old.get(key) != new.get(key):
            change = ADDED if key not in old else REMOVED if key not in new else CHANGED
            yield Change(change, "config", of, key, old.get(key), new.get(key))


def _whole(what: str, old: Any, new: Any) -> Iterator[Change]:
    if old != new:
        yield Change(CHANGED, what, "", None, old, new)


# In words


def words(changes: Iterable[Change]) -> list[str]:
    """Return a line for each changed object; partitions of one topic with the same changes share a line."""
    things: dict[tuple[str, str], list[Change]] = {}
    for change in changes:
        things.setdefault((change.what, change.name), []).append(change)
    lines: dict[tuple[str, str, str, str], list[int]] = {}
    for (what, name), group in things.items():
        by_sign: dict[str, list[str]] = {}
        for change in group:
            if not _goes_without_saying(change, group):
                by_sign.setdefault(_SIGNS[change.change], []).append(_text(change))
        for sign, said in by_sign.items():
            if what == "partition":
                topic, _, index = name.rpartition("-")
                lines.setdefault((sign, what, topic, "; ".join(said)), []).append(int(index))
            else:
                lines.setdefault((sign, what, name, "; ".join(said)), [])
    return [
        f"{sign} {f'{name}-{ranges(indexes)}' if indexes else ' '.join(filter(None, (what, name)))}: {text}"
        for (sign, what, name, text), indexes in lines.items()
    ]


def _goes_without_saying(change: Change, group: list[Change]) -> bool:
    """Return whether the change is only the leader epoch of a new leader.

    Leader epochs differ between partitions, so partitions with otherwise equal changes could not share a line.
    """
    return change.field == "leader_epoch" and any(other.field == "leader" for other in group)


def _text(change: Change) -> str:
    describe = _DESCRIBED.get(change.what, _shown)
    if change.field is None and change.change == ADDED:
        return f"new, {describe(change.after)}"
    if change.field is None and change.change == REMOVED:
        return f"deleted; it was {describe(change.before)}"
    field = "" if change.field is None else f"{_FIELD_WORDS.get(change.field, change.field)} "
    return f"{field}{_shown(change.before)} -> {_shown(change.after)}"


_FIELD_WORDS = {
    "isr": "in sync",
    "elr": "eligible",
    "leader_epoch": "leader epoch",
    "broker_epoch": "restarted, broker epoch",
    "topic_id": "id",
}


def _topic_words(topic: dict[str, Any]) -> str:
    configs = "".join(f", {config['name']}={config['value']}" for config in topic["configs"])
    count = topic["partitions"]
    factor = _shown(topic["replication_factor"])
    return f"{count} partition{'' if count == 1 else 's'}, replication factor {factor}{configs}"


def _partition_words(partition: dict[str, Any]) -> str:
    return (
        f"leader {_shown(partition['leader'])}, replicas {_shown(partition['replicas'])}, "
        f"in sync {_shown(partition['isr'])}"
    )


def _broker_words(broker: dict[str, Any]) -> str:
    return f"{broker['state']}, {_shown(broker['endpoints'])}"


_DESCRIBED: dict[str, Callable[[Any], str]] = {
    "topic": _topic_words,
    "partition": _partition_words,
    "broker": _broker_words,
    "voter": lambda voter: f"at {voter['address']}",
    "feature": lambda feature: f"level {feature['level']}",
}


def _shown(value: Any) -> str:
    match value:
        case None | []:
            return "none"
        case [dict(), *_]:
            return ", ".join(_shown(each) for each in value)
        case list():
            return ",".join(map(str, value))
        case {"host": host, "port": port, "name": name}:
            return f"{name}={host}:{port}"
    return str(value)
