"""Growing pauses between the retries of a request."""

from __future__ import annotations

from random import Random


class Backoff:
    """The pauses of one series of retries, in seconds: each is twice as long as the previous pause, up to `max_s`.

    random: draws each pause between half of its length and its full length, so that clients that fail at the same
    moment do not retry together.  None: every pause has its full length.
    """

    def __init__(self, first_s: float, max_s: float, random: Random | None = None) -> None:
        self._first_s = min(first_s, max_s)
        self._max_s = max_s
        self._random = random
        self._next_s = self._first_s

    def next_s(self) -> float:
        """Return the length of the next pause."""
        length_s = self._next_s
        self._next_s = min(2 * length_s, self._max_s)
        return length_s if self._random is None else self._random.uniform(length_s / 2, length_s)

    def reset(self) -> None:
        """Begin again with the first pause, after a success."""
        self._next_s = self._first_s
