"""The active controller's automatic return to the preferred leaders, every `leader.rebalance.interval.ms`.

A round first looks for partitions without a leader that can have one (an unclean election may be permitted by now).
Then it examines all topics, some at a time, so that no turn of the loop is long and no batch is large.  Interval and
`auto.leader.rebalance.enable` are cluster configs.  A change of one of them restarts the wait.  A change of another
config does not, since in a large cluster such changes may be more frequent than the rounds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from metadata.control.balance import balance
from metadata.control.decision import Decision
from metadata.controller.background import NEXT_TURN, Background
from metadata.image import ClusterImage
from quorumlog.runtime.logging import get_logger

LOOK_MAX = 20_000
"""Partitions examined in one turn (about 2 ms)."""

ENABLE = "auto.leader.rebalance.enable"
INTERVAL_MS = "leader.rebalance.interval.ms"

Decide = Callable[[Callable[[ClusterImage], Decision[Any]]], Decision[Any]]
"""Decides on the pending image and appends.  Raises the exceptions that a `background.Job` handles."""

logger = get_logger("controller")


@dataclass(slots=True)
class _Round:
    topic_ids: Sequence[UUID]
    position: int = 0  # of the first topic that is not examined yet
    moved: int = 0


class LeaderBalance:
    """The job that moves leaders back.

    decide: makes one decision of the controller's own.  elect: starts elections for partitions without a leader.
    """

    def __init__(self, background: Background, decide: Decide, elect: Callable[[], None]) -> None:
        self._decide = decide
        self._elect = elect
        self._round: _Round | None = None
        self._job = background.job("leader balance", self._step)
        self._job.wake(self._wait_s())

    def follow(self, before: ClusterImage, after: ClusterImage) -> None:
        """Abandon the round and wait for the new interval, if one of this module's two configs has changed."""
        if any(before.cluster_config(key) != after.cluster_config(key) for key in (ENABLE, INTERVAL_MS)):
            self._round = None
            self._job.reset(_interval_s(after))

    def _look(self, at: Callable[[ClusterImage], Any]) -> Any:
        return self._decide(lambda image: Decision(at(image))).reply

    def _wait_s(self) -> float:
        wait_s: float = self._look(_interval_s)
        return wait_s

    def _step(self) -> float:
        """Start a round, or continue with as many topics as a turn permits."""
        if self._round is None:
            self._elect()
            if self._look(lambda image: image.cluster_config(ENABLE)) != "true":
                return self._wait_s()
            self._round = _Round(self._look(lambda image: sorted(image.topics)))
        this = self._round
        if this.position >= len(this.topic_ids):
            if this.moved:
                logger.info("leadership moved back to preferred replicas", partitions=this.moved)
            self._round = None
            return self._wait_s()
        end = self._look(lambda image: _end_of_turn(image, this.topic_ids, this.position))
        found = self._decide(lambda image: balance(image, this.topic_ids[this.position : end]))
        this.moved += len(found.records)
        if not found.more:
            this.position = end
        return NEXT_TURN


def _interval_s(image: ClusterImage) -> float:
    return int(image.cluster_config(INTERVAL_MS)) / 1000


def _end_of_turn(image: ClusterImage, topic_ids: Sequence[UUID], start: int) -> int:
    looked_at = 0
    for position in range(start, len(topic_ids)):
        topic = image.topics.get(topic_ids[position])
        looked_at += 1 if topic is None else 1 + len(topic.partitions)
        if looked_at >= LOOK_MAX:
            return position + 1
    return len(topic_ids)
