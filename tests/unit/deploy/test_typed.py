"""A user's project, checked with mypy against an installed quorumlog."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

ROOT = Path(__file__).parents[3]
CACHE = ROOT / ".dev" / "tests" / "mypy"
"""The cache of mypy for our modules that have not changed since the last run."""
REVEALED = {
    "broker.bootstrap": "str",
    "standalone(configs={})": "contextlib._GeneratorContextManager[quorumlog.testing.broker.Broker",
    "DefaultSource.name": "def () -> str",
}
A_USERS_TEST = f"""
from pyspark_quorumlog import DefaultSource
from quorumlog.testing import Broker, standalone

def test_orders(broker: Broker) -> None:
    {"; ".join(f"reveal_type({expression})" for expression in REVEALED)}
"""


def test_a_users_project_sees_our_types(tmp_path: Path) -> None:
    """mypy takes types from an installed package only if the package holds a `py.typed` marker."""
    venv.create(tmp_path / "venv")
    site = next((tmp_path / "venv").glob("lib/python*/site-packages"))
    (site / "installed.pth").write_text(f"{ROOT}\n{sysconfig.get_path('purelib')}\n")
    project = tmp_path / "project"
    project.mkdir()
    (project / "test_orders.py").write_text(A_USERS_TEST)
    command = [sys.executable, "-m", "mypy", "--strict", "--python-executable", str(tmp_path / "venv/bin/python")]
    finished = subprocess.run(
        [*command, "--cache-dir", str(CACHE), "test_orders.py"],
        cwd=project,
        env={name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "MYPYPATH")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert finished.returncode == 0, finished.stdout + finished.stderr
    for revealed in REVEALED.values():
        assert f'Revealed type is "{revealed}' in finished.stdout
