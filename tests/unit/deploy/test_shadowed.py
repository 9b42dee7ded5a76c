"""Installed commands in a folder where a user's package has the name of one of ours."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from quorumlog.entry import ROOMS

ROOT = Path(__file__).resolve().parents[3]
SCRIPTS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]


def run(program: str, *arguments: str, path: Path) -> subprocess.CompletedProcess[str]:
    """Run the installed script, with `path` before everything else on the module path."""
    module, _, function = SCRIPTS[program].partition(":")
    script = f"import sys; from {module} import {function}; sys.exit({function}())"
    return subprocess.run(
        [sys.executable, "-P", "-c", script, *arguments],
        env={**os.environ, "PYTHONPATH": f"{path}{os.pathsep}{ROOT}"},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("form", ["folder", "module"])
@pytest.mark.parametrize("name", ROOMS)
@pytest.mark.parametrize("program", ["quorum-node", "broker"])
def test_a_server_reports_a_package_that_shadows_one_of_ours(
    tmp_path: Path, program: str, name: str, form: str
) -> None:
    theirs = tmp_path / name if form == "folder" else tmp_path / f"{name}.py"
    if form == "folder":
        theirs.mkdir()
        (theirs / "__init__.py").touch()
    else:
        theirs.touch()
    finished = run(program, "run", "--standalone", "--data-dir", str(tmp_path / "data"), path=tmp_path)
    assert finished.returncode == 2
    assert finished.stderr == (
        f"{program}: {theirs} shadows quorumlog's package {name} ({ROOT / name}): it comes first on the module "
        f"path (next: remove {tmp_path} from PYTHONPATH, start from another folder, or rename it)\n"
    )
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize("program", ["quorum-node", "broker"])
def test_folders_without_an_init_file_shadow_no_package(tmp_path: Path, program: str) -> None:
    for name in ROOMS:
        (tmp_path / name).mkdir()
        (tmp_path / name / "notes.txt").touch()
    finished = run(program, "--version", path=tmp_path)
    assert (finished.returncode, finished.stdout.split(",")[0]) == (0, program)


@pytest.mark.parametrize("module", ["quorumlog_server.quorum_node", "broker.cli"])
def test_a_server_run_as_a_module_reports_a_shadowing_package(tmp_path: Path, module: str) -> None:
    (tmp_path / "metadata.py").touch()
    finished = subprocess.run(
        [sys.executable, "-m", module, "run", "--standalone"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert finished.returncode == 2
    assert f"{tmp_path / 'metadata.py'} shadows quorumlog's package metadata" in finished.stderr


def test_kctl_runs_our_packages_despite_shadowing_modules(tmp_path: Path) -> None:
    for name in ROOMS:
        (tmp_path / f"{name}.py").write_text("raise SystemExit('the wrong one')")
    finished = run("kctl", "metadata", "dump", str(tmp_path / "nothing"), path=tmp_path)
    assert "wrong one" not in finished.stderr
    assert finished.stderr.startswith("kctl: ")
    assert str(tmp_path / "nothing") in finished.stderr
    assert run("kctl", "--version", path=tmp_path).returncode == 0
