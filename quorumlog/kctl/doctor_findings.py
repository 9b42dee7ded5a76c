"""What is wrong with a cluster, from what `doctor_look` has seen of it: each finding with its cause and the next step.

Pure: a look in, findings out.  One cause is one finding where that can be told: a broker that is down is named with
what it costs, not once for each of its partitions.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from quorumlog.client.probe import HANGS
from quorumlog.kctl.words import Key, listed

CRITICAL, PROBLEM, ADVICE = "critical", "problem", "advice"
SEVERITIES = (CRITICAL, PROBLEM, ADVICE)


class Finding(NamedTuple):
    """severity: critical (something does not work), problem (it works, with less to spare), advice (by design).

    finding: a word for scripts.  nodes, partitions: whom it is about.  commands: those in `next` that mend it, in
    order, each a whole shell command; empty where no command does (a process to start, a disk to replace).
    """

    severity: str
    finding: str
    what: str
    cause: str
    next: str
    nodes: tuple[int, ...] = ()
    partitions: tuple[str, ...] = ()
    commands: tuple[str, ...] = ()


def wake(silent: Iterable[tuple[int, str | None]], noun: str = "node", needed: int | None = None) -> str:
    """What to do about nodes that do not answer, by why they do not: start node 1; restart node 2, which hangs.

    needed: how many of them are enough (default: all must come back).
    """
    hanging: list[str] = []
    down: list[str] = []
    for node_id, silence in silent:
        (hanging if silence is not None and silence.endswith(HANGS) else down).append(f"{noun} {node_id}")
    verb = "hangs" if len(hanging) == 1 else "hang"
    all_needed = needed is None or needed >= len(down) + len(hanging)
    if not all_needed and needed != 1:
        told = f" ({listed(hanging)} {verb})" if hanging else ""
        return f"{'start or restart' if hanging else 'start'} {needed} of: {', '.join(down + hanging)}{told}"
    word = "and" if all_needed else "or"
    steps = [f"start {listed(down, word)}"] if down else []
    if hanging:
        steps.append(f"restart {listed(hanging, word)}, which {verb}")
    return ("; " if all_needed else ", or ").join(steps)


TOPICS_AT_ONCE_MAX = 20
"""Topics that one step names; doctor, asked again, names the next ones."""


def move(topics: Iterable[str], *, drain: int | None = None, factor: int | None = None) -> str:
    """The command that places topics anew on the brokers that are up.

    drain: only partitions with a replica on this broker, which loses it.  factor: None keeps that of each partition.
    """
    options = "".join(f" --topic {topic}" for topic in topics)
    options += "" if drain is None else f" --drain {drain}"
    options += "" if factor is None else f" --replication-factor {factor}"
    return f"kctl reassign generate{options} | kctl reassign start --plan - --wait"


def first_topics(partitions: Iterable[Key]) -> list[str]:
    """The topics of the partitions, in order, as many as one step names."""
    return sorted({topic for topic, _ in partitions})[:TOPICS_AT_ONCE_MAX]


def unclean(partitions: Iterable[Key]) -> tuple[str, ...]:
    """The commands that elect any live replica, for each topic: records may be lost."""
    return tuple(f"kctl elect-leaders --unclean --topic {topic}" for topic in first_topics(partitions))


def texts(partitions: Iterable[Key]) -> tuple[str, ...]:
    return tuple(f"{topic}-{index}" for topic, index in sorted(partitions))
