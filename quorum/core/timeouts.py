"""Limits of waiting: back-offs after failures, and the deadlines of elections and fetches.

Every deadline is drawn at random each time that it is set, so that nodes do not act at the same time repeatedly.
"""

from __future__ import annotations

from random import Random

from quorum.core.config import RaftConfig
from quorum.core.state import CoreState


def is_slow(write_ms: int, config: RaftConfig) -> bool:
    """Return whether a disk with this write latency is slow; see `latency.py`."""
    return write_ms * 4 >= config.election_timeout_ms


def backoff_ms(first_ms: int, max_ms: int, failures: int) -> int:
    """Return the pause after consecutive failures: `first_ms`, doubled by each further failure, up to `max_ms`."""
    return min(max_ms, first_ms << min(max(failures - 1, 0), 10))


class Timeouts:
    """Draws the deadlines and pauses of one node."""

    def __init__(self, state: CoreState, random: Random) -> None:
        self._state = state
        self._config = state.config
        self._random = random

    def draw(self, below_ms: int) -> int:
        """Return a number that is uniform over 0..below_ms - 1."""
        return int(self._random.random() * below_ms)

    def retry_ms(self, failures: int) -> int:
        """Return the pause before the next request after `failures` consecutive failures, with a random part."""
        first_ms, max_ms = self._config.retry_backoff_ms, self._config.retry_backoff_max_ms
        return backoff_ms(first_ms, max_ms, failures) + self.draw(first_ms)

    def patience_ms(self, now_ms: int) -> int:
        """Return how long this voter lets voters with faster disks go first, so that each of them can try twice."""
        timeout = self._config.fetch_timeout_ms
        return timeout + timeout // 4 if is_slow(self._state.write_ms(now_ms), self._config) else 0

    def election_deadline(self, now_ms: int) -> int | None:
        """Return when to begin the next election; None for an observer, which never does."""
        if not self._state.may_be_candidate:
            return None
        timeout = self._config.election_timeout_ms
        return now_ms + timeout + self.draw(timeout) + self.patience_ms(now_ms)

    def first_deadline(self, now_ms: int) -> int | None:
        """Return when to begin the first election after a start: a sole voter begins immediately."""
        return now_ms if self._state.is_sole_voter else self.election_deadline(now_ms)

    def candidacy_deadline(self, now_ms: int) -> int:
        """Return when to give up an election that this node begins."""
        timeout, write_ms = self._config.election_timeout_ms, self._state.write_ms(now_ms)
        # In this time, this node's vote and then the votes of others must become durable.
        longer = min(2 * write_ms, 2 * self._config.fetch_timeout_ms) if is_slow(write_ms, self._config) else 0
        return now_ms + timeout + self.draw(timeout) + longer

    def fetch_deadline(self, now_ms: int) -> int:
        """Return when to give up a leader that does not answer."""
        timeout = self._config.fetch_timeout_ms
        idle = 0 if self._state.is_voter else self._config.observer_wait_ms
        return now_ms + idle + timeout + self.draw(timeout // 4)
