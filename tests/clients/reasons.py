"""Why a row fails or is not served: the reasons that docs/clients.md gives."""

from __future__ import annotations

from typing import Final

ANY: Final = "*"
REASONS: Final[dict[tuple[str, str], str]] = {}
"""By program and row; the program `ANY` stands for all that have no reason of their own."""


def reason_of(program: str, row: str) -> str | None:
    return REASONS.get((program, row)) or REASONS.get((ANY, row))
