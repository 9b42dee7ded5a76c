"""The trace of a run, and its digest, which must be equal for two runs of one seed."""

from __future__ import annotations

import hashlib


class Trace:
    """The events of a run, as lines.  Only the digest and the last `kept` lines are kept."""

    def __init__(self, kept: int = 1000) -> None:
        self.lines: list[str] = []
        self._kept = kept
        self._digest = hashlib.sha256()
        self.count = 0

    def add(self, line: str) -> None:
        """Add a line to the digest and to the lines."""
        self._digest.update(f"{line}\n".encode())
        self.count += 1
        if self._kept:
            self.show(line)

    def show(self, line: str) -> None:
        """Add a line to the lines only, for detail that follows from the rest and is too costly for every run."""
        if self._kept:
            self.lines.append(line)
            if len(self.lines) > 2 * self._kept:
                del self.lines[: -self._kept]

    @property
    def digest(self) -> str:
        return self._digest.hexdigest()
