"""Compile the C extension: as a hook of the build, and with `python hatch_build.py` where it is missing or stale.

The extension uses the stable ABI, so one file serves every supported Python.  It is compiled beside its package in the
source tree in both cases; an editable install finds it there, and a wheel takes it from there.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

PACKAGE = Path("quorumlog/wire")
NATIVE = PACKAGE / "native"
SOURCE = NATIVE / "record_scan_module.c"  # includes the headers beside it
TARGET = PACKAGE / "_record_scan.abi3.so"
STABLE_ABI = "0x030B0000"  # Python 3.11, the oldest that is supported


class CompileRecordScan(BuildHookInterface[Any]):
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if self.target_name != "wheel":
            return
        root = Path(self.root)
        compile_in(root)
        platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
        build_data["pure_python"] = False
        build_data["tag"] = f"cp311-abi3-{platform}"
        build_data["artifacts"].append(f"/{TARGET}")  # git ignores the file, and so would the wheel


def is_stale(root: Path) -> bool:
    target = root / TARGET
    if not target.exists():
        return True
    made_at = target.stat().st_mtime
    sources = (*(root / NATIVE).iterdir(), root / "hatch_build.py")
    return any(source.stat().st_mtime > made_at for source in sources)


def compile_in(root: Path) -> None:
    """Compile into the source tree at `root`.  A parallel build of the same tree does no harm."""
    compiler = shlex.split(os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc")
    linking = ["-bundle", "-undefined", "dynamic_lookup"] if sys.platform == "darwin" else ["-shared"]
    folder = (root / TARGET).parent
    with tempfile.TemporaryDirectory(dir=folder, prefix=".build-") as made:
        output = Path(made) / TARGET.name
        command = [
            *(*compiler, "-O2", "-fPIC", "-Wall", "-Wextra", *linking),
            *(f"-DPy_LIMITED_API={STABLE_ABI}", f"-I{sysconfig.get_path('include')}"),
            *(str(root / SOURCE), "-o", str(output)),
        ]
        try:
            subprocess.run(command, check=True)
        except (OSError, subprocess.CalledProcessError) as error:
            raise SystemExit(
                f"cannot compile {SOURCE}: {error}; install a C compiler and Python's headers, "
                "for example with: apt-get install gcc libc6-dev python3-dev"
            ) from error
        output.replace(root / TARGET)


if __name__ == "__main__":
    here = Path(__file__).resolve().parent
    if is_stale(here):
        compile_in(here)
