"""The active controller's own way back to the preferred leaders: a round every `leader.rebalance.interval.ms`.

A round first looks for partitions without a leader that could have one (an unclean election may be allowed by now),
then goes through all topics, some at a time, so that no turn of the loop is long and no batch is large.  Interval and
`auto.leader.rebalance.enable` are cluster configs: `configs_changed` begins the wait anew.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any
from uuid import UUID

from metadata.control.balance import balance
from metadata.control.decision import Decision
from metadata.image import ClusterImage
from quorumlog.runtime.logging import get_logger

LOOK_MAX = 20_000
"""Partitions that are looked at in one turn (about 2 ms)."""

Step = Callable[[Callable[[ClusterImage, bool], Decision[Any]]], Decision[Any] | None]
"""Decide on the pending image and append; None once the controller is not active any more."""

log = get_logger("controller")


class LeaderBalance:
    """elect: begins the search for leaders of partitions without one."""

    def __init__(self, step: Step, elect: Callable[[], None]) -> None:
        self._step = step
        self._elect = elect
        self._handle: asyncio.Handle | None = None
        self._moved = 0

    def arm(self) -> None:
        """Wait for the interval, then make a round; whatever was going on is given up."""
        self.stop()
        interval = self._look(lambda image: image.cluster_config("leader.rebalance.interval.ms"))
        if interval is not None:
            self._handle = asyncio.get_running_loop().call_later(int(interval) / 1000, self._round)

    configs_changed = arm

    def stop(self) -> None:
        """No round any more."""
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def _look(self, at: Callable[[ClusterImage], Any]) -> Any:
        found = self._step(lambda image, again: Decision(at(image)))
        return None if found is None else found.reply

    def _round(self) -> None:
        self._elect()
        self._moved = 0
        enabled = self._look(lambda image: image.cluster_config("auto.leader.rebalance.enable"))
        if enabled == "true":
            self._go_on(self._look(lambda image: sorted(image.topics)) or (), 0)
        else:
            self.arm()

    def _go_on(self, topic_ids: Sequence[UUID], start: int) -> None:
        """Topics from `start` on, as many as a turn takes."""
        if start >= len(topic_ids):
            if self._moved:
                log.info("leaders are back at their preferred replicas", partitions=self._moved)
            self.arm()
            return
        end = self._look(lambda image: _end_of_turn(image, topic_ids, start))
        found = None if end is None else self._step(lambda image, again: balance(image, topic_ids[start:end]))
        if found is None:
            return
        self._moved += len(found.records)
        loop = asyncio.get_running_loop()
        self._handle = loop.call_soon(self._go_on, topic_ids, start if found.more else end)


def _end_of_turn(image: ClusterImage, topic_ids: Sequence[UUID], start: int) -> int:
    looked_at = 0
    for position in range(start, len(topic_ids)):
        topic = image.topics.get(topic_ids[position])
        looked_at += 1 if topic is None else 1 + len(topic.partitions)
        if looked_at >= LOOK_MAX:
            return position + 1
    return len(topic_ids)
