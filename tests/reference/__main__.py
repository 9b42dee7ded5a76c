"""Writes docs/reference.md; see the package."""

from __future__ import annotations

from tests.reference.page import PAGE, page

if __name__ == "__main__":
    PAGE.write_text(page())
