"""The plugin is loaded by every run of pytest in an environment with quorumlog."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from quorumlog import testing
from quorumlog.testing import plugin

ROOT = str(Path(__file__).parents[4])
LOAD = """
import sys
sys.modules["fcntl"] = None  # some systems do not have it
import pytest
before = set(sys.modules)
import quorumlog.testing.plugin
print(*sorted(set(sys.modules) - before))
"""


def test_the_plugin_imports_nothing_but_itself_and_works_without_fcntl() -> None:
    environment = {**os.environ, "PYTHONPATH": ROOT, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    loaded = subprocess.run(
        [sys.executable, "-P", "-c", LOAD], env=environment, capture_output=True, text=True, check=False
    )
    assert loaded.returncode == 0, loaded.stderr
    assert loaded.stdout.split() == ["quorumlog", "quorumlog.testing", "quorumlog.testing.plugin"]


def test_the_package_has_its_public_names_and_no_others() -> None:
    assert all(callable(getattr(testing, name)) for name in testing.__all__)
    with pytest.raises(AttributeError, match="has no attribute 'standalon'"):
        _ = cast(Any, testing).standalon


def test_the_name_of_a_topic_is_valid_and_differs_each_time() -> None:
    make = cast(Any, plugin.quorumlog_topic).__wrapped__
    request = SimpleNamespace(node=SimpleNamespace(name="test_orders[größe/1-" + "x" * 300))
    names = {make(request) for _ in range(20)}
    assert len(names) == 20
    for name in names:
        assert re.fullmatch(r"[a-zA-Z0-9._-]{1,249}", name)
