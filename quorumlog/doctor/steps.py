"""Next steps of findings: nodes to start, and kctl commands that can be run as they are."""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Set as AbstractSet

from quorumlog.doctor.observed import ObservedCluster
from quorumlog.doctor.space import is_low
from quorumlog.words import SHOWN_MAX, Key, listed, quoted

RECOVERY = "docs/recovery.md"
TOPICS_AT_ONCE_MAX = 20
"""Maximum number of topics in one step.  The next run of doctor names further topics."""
PARTITIONS_AT_ONCE_MAX = 20
"""Maximum number of partitions of one topic that one command cancels."""


def start(cluster: ObservedCluster, node_ids: Iterable[int], noun: str = "node", needed: int | None = None) -> str:
    """Return the step that starts or restarts nodes that do not answer.

    If a node reported why it ended, the step begins with the remedy.
    needed: the number of nodes that is enough; None means all.
    """
    ids = list(node_ids)
    return _before_start(cluster, ids) + start_or_restart(
        ((node_id, cluster.hangs(node_id)) for node_id in ids), noun, needed
    )


def start_or_restart(nodes: Iterable[tuple[int, bool]], noun: str = "node", needed: int | None = None) -> str:
    """Return the nodes to start and to restart, as text: `start node 1; restart node 2, which hangs`.

    nodes: (id, whether its process hangs).  needed: see `start`.
    """
    hanging: list[str] = []
    down: list[str] = []
    for node_id, hangs in nodes:
        (hanging if hangs else down).append(f"{noun} {node_id}")
    verb = "hangs" if len(hanging) == 1 else "hang"
    all_needed = needed is None or needed >= len(down) + len(hanging)
    if not all_needed and needed != 1:
        which = f" ({listed(hanging)} {verb})" if hanging else ""
        return f"{'start or restart' if hanging else 'start'} {needed} of: {', '.join(down + hanging)}{which}"
    word = "and" if all_needed else "or"
    steps = [f"start {listed(down, word)}"] if down else []
    if hanging:
        steps.append(f"restart {listed(hanging, word)}, which {verb}")
    return ("; " if all_needed else ", or ").join(steps)


def _before_start(cluster: ObservedCluster, node_ids: Iterable[int]) -> str:
    """Return the remedies that these nodes need before their start, according to their own reports of failures.

    The text ends with `then `.  It is empty if there is no such remedy.
    Reports are not authenticated, so their text is quoted and never becomes doctor's own advice.
    """
    steps = []
    for node_id in node_ids:
        if (end := cluster.end_of(node_id)) is None:
            continue
        full = [quoted(directory.path) for directory in end.directories if is_low(directory)]
        if full:
            steps.append(f"node {node_id} reported little free space in {listed(full)}; free space there")
        elif end.next:
            steps.append(f"node {node_id} reported: {quoted(end.next)}; resolve that")
    return f"{'; '.join(steps)}, then " if steps else ""


def move(topics: Iterable[str], *, drain: int | None = None, factor: int | None = None, replaces: bool = False) -> str:
    """Return the command that assigns replicas of topics to the brokers that are up.

    drain: move only partitions with a replica on this broker, and move this replica to another broker.
    factor: the new replication factor; None keeps the replication factor of each partition.
    replaces: give reassignments in progress another target.  Otherwise the command is refused if one would need it.
    """
    options = "".join(f" --topic {topic}" for topic in topics)
    options += "" if drain is None else f" --drain {drain}"
    options += "" if factor is None else f" --replication-factor {factor}"
    return f"kctl reassign generate{options} | kctl reassign start --plan -{' --replace' if replaces else ''} --wait"


def unclean(partitions: Iterable[Key], leaderless: AbstractSet[Key]) -> tuple[str, ...]:
    """Return the commands that elect any live replica of these partitions: records may be lost.

    leaderless: all partitions without a leader.  Some of these may not be in `partitions`, because they may later get a
    leader with all records.  The commands must not affect them.  So a topic with such a partition needs one command for
    each of its wanted partitions.  For every other topic, one command is enough.
    """
    wanted = set(partitions)
    others = {topic for topic, _ in leaderless - wanted}
    commands = []
    for topic in first_topics(wanted):
        command = f"kctl elect-leaders --unclean --topic {topic}"
        indexes = sorted(index for name, index in wanted if name == topic)
        commands += [f"{command} --partition {index}" for index in indexes] if topic in others else [command]
    return tuple(commands[:TOPICS_AT_ONCE_MAX])


def cancel(partitions: Iterable[Key], moving: AbstractSet[Key]) -> tuple[str, ...]:
    """Return commands that cancel the reassignments of these partitions, up to the limits of one step.

    moving: all partitions that are being reassigned.  Reassignments of partitions not in `partitions` continue.
    """
    wanted = set(partitions)
    others = {topic for topic, _ in moving - wanted}
    topics = first_topics(wanted)
    command = "kctl reassign cancel"
    whole = "".join(f" --topic {topic}" for topic in topics if topic not in others)
    commands = [f"{command}{whole}"] if whole else []
    for topic in others.intersection(topics):
        indexes = sorted(index for name, index in wanted if name == topic)[:PARTITIONS_AT_ONCE_MAX]
        commands.append(f"{command} --topic {topic}" + "".join(f" --partition {index}" for index in indexes))
    return tuple(sorted(commands))


def first_topics(partitions: Iterable[Key]) -> list[str]:
    """Return the topics of partitions, sorted, at most TOPICS_AT_ONCE_MAX."""
    return sorted({topic for topic, _ in partitions})[:TOPICS_AT_ONCE_MAX]


def texts(partitions: Iterable[Key]) -> tuple[str, ...]:
    """Return the names of partitions, sorted: `orders-0`."""
    return tuple(f"{topic}-{index}" for topic, index in sorted(partitions))


def some(topics: list[str]) -> str:
    """Return the first topics as text, and the number of the others."""
    rest = len(topics) - SHOWN_MAX
    return ", ".join(topics[:SHOWN_MAX]) + (f" and {rest} more" if rest > 0 else "")
