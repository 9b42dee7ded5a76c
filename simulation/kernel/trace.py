"""What happened in a run, and its digest: two runs of one seed must agree on it."""

from __future__ import annotations

import hashlib


class Trace:
    """What happened, line by line; only the digest and the last `kept` lines are held."""

    def __init__(self, kept: int = 1000) -> None:
        self.lines: list[str] = []
        self._kept = kept
        self._digest = hashlib.sha256()
        self.count = 0

    def add(self, line: str) -> None:
        """Into the digest, and among the lines."""
        self._digest.update(line.encode() + b"\n")
        self.count += 1
        self.show(line)

    def show(self, line: str) -> None:
        """Among the lines only: detail that follows from the rest, and costs too much to be made in every run."""
        if self._kept:
            self.lines.append(line)
            if len(self.lines) > 2 * self._kept:
                del self.lines[: -self._kept]

    @property
    def digest(self) -> str:
        return self._digest.hexdigest()
