"""Where the replicas of a new topic go.

Greedy and deterministic: each choice takes the least loaded broker, so every controller places alike and no randomness
is needed.  What counts, in this order: a partition's replicas spread over as many racks as there are; a topic's own
leaders and replicas are even over the brokers (its load is its own, whatever else the cluster holds); the same pair of
leader and follower does not come back before the others had their turn; the cluster's leaders and replicas become even;
the lower id.  The first follower is the one that succeeds the leader, so it changes as well: a dead broker's
leaderships spread over many others.

The choice looks at every broker, so a large topic is placed so only for a while, some rows for each broker; then those
rows, which are even by themselves, repeat.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from metadata.image import BrokerImage, ClusterImage

ROWS_PER_BROKER = 12
KEYS_MAX = 500_000
"""About how many loads one topic's placement compares (0.15 s), however many brokers and replicas there are."""


class _Load:
    """One broker's load: what the cluster has given it, and what this topic has."""

    __slots__ = ("broker_id", "leaders", "pairs", "rack", "replicas", "successions", "topic_leaders", "topic_replicas")

    def __init__(self, broker: BrokerImage, leaders: int, replicas: int) -> None:
        self.broker_id = broker.broker_id
        self.rack = broker.rack
        self.leaders = leaders
        self.replicas = replicas
        self.begin_topic()

    def begin_topic(self) -> None:
        self.topic_leaders = 0
        self.topic_replicas = 0
        self.pairs: dict[int, int] = {}  # leader id → partitions of this topic in which this broker follows it
        self.successions: dict[int, int] = {}  # leader id → those in which it is the first follower

    def leader_key(self) -> tuple[int, int, int, int]:
        return self.topic_leaders, self.leaders, self.replicas, self.broker_id

    def follower_key(self, leader_id: int) -> tuple[int, int, int, int]:
        return self.topic_replicas, self.pairs.get(leader_id, 0), self.replicas, self.broker_id

    def successor_key(self, leader_id: int) -> tuple[int, int, int]:
        return self.successions.get(leader_id, 0), sum(self.successions.values()), self.broker_id

    def take(self, leader_id: int, place: int) -> None:
        """A new replica goes here."""
        self.note(leader_id, place)
        self.replicas += 1
        if leader_id == self.broker_id:
            self.leaders += 1

    def note(self, leader_id: int, place: int) -> None:
        """A replica of the topic is here; of the cluster's load it is a part already, or `take` counts it."""
        if place == 1:
            self.successions[leader_id] = self.successions.get(leader_id, 0) + 1
        self.topic_replicas += 1
        if leader_id == self.broker_id:
            self.topic_leaders += 1
        else:
            self.pairs[leader_id] = self.pairs.get(leader_id, 0) + 1


class Placer:
    """Places topics one after the other, each on the load that the earlier ones made."""

    def __init__(self, image: ClusterImage) -> None:
        brokers = [image.brokers[broker_id] for broker_id in sorted(image.brokers)]
        self._loads = [
            _Load(broker, image.leader_count(broker.broker_id), image.replica_count(broker.broker_id))
            for broker in brokers
            if broker.active and image.broker_config(broker.broker_id, "cordoned") == "false"
        ]

    @property
    def broker_count(self) -> int:
        """How many brokers can take replicas: the highest replication factor."""
        return len(self._loads)

    def place(
        self, partitions: int, replication_factor: int, beside: Iterable[Sequence[int]] = ()
    ) -> list[tuple[int, ...]]:
        """Broker ids of each new partition's replicas; the first is the leader to be.

        beside: those of the partitions that the topic has already.
        """
        assert 0 < replication_factor <= len(self._loads), (
            f"{replication_factor} replicas on {len(self._loads)} brokers"
        )
        for load in self._loads:
            load.begin_topic()
        by_id = {load.broker_id: load for load in self._loads}
        for present in beside:
            for position, broker_id in enumerate(present):
                if broker_id in by_id:
                    by_id[broker_id].note(present[0], position)
        count = len(self._loads)
        affordable = KEYS_MAX // (count * count * replication_factor)
        least = count * max(1, min(ROWS_PER_BROKER, affordable))
        rows: list[list[_Load]] = []
        period = 0
        for number in range(partitions):
            if period == 0 and number >= least and (number >= 2 * least or self._is_even()):
                period = number
            rows.append(self._take(rows[number - period]) if period else self._place_partition(replication_factor))
        return [tuple([load.broker_id for load in row]) for row in rows]

    def _is_even(self) -> bool:
        """Every broker has as much of this topic as every other."""
        return len({(load.topic_leaders, load.topic_replicas) for load in self._loads}) == 1

    def _place_partition(self, replication_factor: int) -> list[_Load]:
        leader = min(self._loads, key=_Load.leader_key)
        chosen = [leader]
        while len(chosen) < replication_factor:
            free = [load for load in self._loads if load not in chosen]
            unused = _in_unused_racks(free, chosen)
            chosen.append(min(unused, key=lambda load: load.follower_key(leader.broker_id)))
        chosen[1:] = sorted(chosen[1:], key=lambda load: load.successor_key(leader.broker_id))
        return self._take(chosen)

    def _take(self, row: list[_Load]) -> list[_Load]:
        for place, load in enumerate(row):
            load.take(row[0].broker_id, place)
        return row


def _in_unused_racks(free: Iterable[_Load], chosen: list[_Load]) -> list[_Load]:
    """Those of `free` whose rack has the fewest of `chosen`.  Brokers without a rack count as one rack together."""
    used: dict[str | None, int] = {}
    for load in chosen:
        used[load.rack] = used.get(load.rack, 0) + 1
    free = list(free)
    fewest = min(used.get(load.rack, 0) for load in free)
    return [load for load in free if used.get(load.rack, 0) == fewest]
