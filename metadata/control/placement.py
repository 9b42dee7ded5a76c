"""Placement of the replicas of new partitions.

Each choice takes the best broker by fixed criteria, so every controller makes the same choice without randomness.  The
criteria, in this order:

- a partition's replicas use as many racks as possible;
- a topic's own leaders and replicas are spread evenly over the brokers, independent of other topics;
- a pair of leader and follower is repeated only after all other pairs;
- the cluster's leaders and replicas are spread evenly;
- the lower id.

The first follower succeeds the leader, so it varies as well: the leaderships of a failed broker are spread over many
others.

A row is the list of brokers that get the replicas of one partition.  Each choice in a row compares all brokers, so a
large topic would take long.  Therefore only a limited number of rows is computed for each broker.  The other partitions
repeat these rows, which use all brokers evenly if possible.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from metadata.image import BrokerImage, ClusterImage

ROWS_PER_BROKER = 12
KEYS_MAX = 500_000
"""Maximum number of loads that the placement of one topic compares, approximately; this takes 0.15 s."""


class _Load:
    """The load of one broker, in the cluster and in this topic."""

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
        self.pairs: dict[int, int] = {}  # leader id → this topic's partitions in which this broker follows
        self.successions: dict[int, int] = {}  # leader id → this topic's partitions with this broker as first follower

    def leader_key(self) -> tuple[int, int, int, int]:
        return self.topic_leaders, self.leaders, self.replicas, self.broker_id

    def follower_key(self, leader_id: int) -> tuple[int, int, int, int]:
        return self.topic_replicas, self.pairs.get(leader_id, 0), self.replicas, self.broker_id

    def successor_key(self, leader_id: int) -> tuple[int, int, int]:
        return self.successions.get(leader_id, 0), sum(self.successions.values()), self.broker_id

    def take(self, leader_id: int, place: int) -> None:
        """Count a new replica on this broker."""
        self.note(leader_id, place)
        self.replicas += 1
        if leader_id == self.broker_id:
            self.leaders += 1

    def note(self, leader_id: int, place: int) -> None:
        """Count a replica of the topic on this broker, but only in the load of the topic."""
        if place == 1:
            self.successions[leader_id] = self.successions.get(leader_id, 0) + 1
        self.topic_replicas += 1
        if leader_id == self.broker_id:
            self.topic_leaders += 1
        else:
            self.pairs[leader_id] = self.pairs.get(leader_id, 0) + 1


class Placer:
    """Places topics one after the other; each placement takes the earlier ones into account."""

    def __init__(self, image: ClusterImage) -> None:
        brokers = [image.brokers[broker_id] for broker_id in sorted(image.brokers)]
        self._loads = [
            _Load(broker, image.leader_count(broker.broker_id), image.replica_count(broker.broker_id))
            for broker in brokers
            if broker.active and image.broker_config(broker.broker_id, "cordoned") == "false"
        ]

    @property
    def broker_count(self) -> int:
        """Return the number of brokers that accept replicas, which limits the replication factor."""
        return len(self._loads)

    def place(
        self, partitions: int, replication_factor: int, beside: Iterable[Sequence[int]] = ()
    ) -> list[tuple[int, ...]]:
        """Return the broker ids of each new partition's replicas; the first one is the leader.

        beside: the replicas of the topic's existing partitions.
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
        """Return whether every broker has equally many leaders and replicas of this topic."""
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
    """Return the free brokers on the racks with the fewest chosen brokers.  Brokers without a rack share one rack."""
    used: dict[str | None, int] = {}
    for load in chosen:
        used[load.rack] = used.get(load.rack, 0) + 1
    free = list(free)
    fewest = min(used.get(load.rack, 0) for load in free)
    return [load for load in free if used.get(load.rack, 0) == fewest]
