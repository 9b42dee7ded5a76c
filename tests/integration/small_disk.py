"""A small file system of its own, for tests that fill a disk."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

SIZE_MIB = 12


def mount(*arguments: str) -> bool:
    """Return whether mount(8) succeeded."""
    return subprocess.run(["mount", *arguments], capture_output=True, check=False).returncode == 0


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of `SIZE_MIB`, unmounted even if a process still uses it."""
    folder = tmp_path / "small"
    folder.mkdir()
    if os.geteuid() != 0 or not mount("-t", "tmpfs", "-o", f"size={SIZE_MIB}m", "tmpfs", str(folder)):
        pytest.skip("only root may mount the small file system that this test fills")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)
