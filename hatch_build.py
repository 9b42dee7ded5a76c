"""Compile the C extensions: as a hook of the build, and with `python hatch_build.py` where one is missing or stale.

The extensions use the stable ABI, so one file each serves every supported Python.  They are compiled beside their
packages in the source tree in both cases; an editable install finds them there, and a wheel takes them from there.
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

EXTENSIONS = (Path("quorumlog/wire/_record_scan.abi3.so"), Path("quorumlog/runtime/_sync_threads.abi3.so"))
"""The source of _NAME.abi3.so is native/NAME_module.c beside it, which includes the headers in that folder."""
STABLE_ABI = "0x030B0000"  # Python 3.11, the oldest that is supported


class CompileExtensions(BuildHookInterface[Any]):
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if self.target_name != "wheel":
            return
        for target in EXTENSIONS:
            compile_in(Path(self.root), target)
            build_data["artifacts"].append(f"/{target}")  # git ignores the file, and so would the wheel
        platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
        build_data["pure_python"] = False
        build_data["tag"] = f"cp311-abi3-{platform}"


def is_stale(root: Path, target: Path) -> bool:
    made = root / target
    if not made.exists():
        return True
    made_at = made.stat().st_mtime
    sources = (*(made.parent / "native").iterdir(), root / "hatch_build.py")
    return any(source.stat().st_mtime > made_at for source in sources)


def compile_in(root: Path, target: Path) -> None:
    """Compile one extension into the source tree at `root`.  A parallel build of the same tree does no harm."""
    source = target.parent / "native" / f"{target.name.split('.')[0].lstrip('_')}_module.c"
    compiler = shlex.split(os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc")
    linking = ["-bundle", "-undefined", "dynamic_lookup"] if sys.platform == "darwin" else ["-shared"]
    with tempfile.TemporaryDirectory(dir=root / target.parent, prefix=".build-") as made:
        output = Path(made) / target.name
        command = [
            *(*compiler, "-O2", "-fPIC", "-pthread", "-Wall", "-Wextra", *linking),
            *(f"-DPy_LIMITED_API={STABLE_ABI}", f"-I{sysconfig.get_path('include')}"),
            *(str(root / source), "-o", str(output)),
        ]
        try:
            subprocess.run(command, check=True)
        except (OSError, subprocess.CalledProcessError) as error:
            raise SystemExit(
                f"cannot compile {source}: {error}; install a C compiler and Python's headers, "
                "for example with: apt-get install gcc libc6-dev python3-dev"
            ) from error
        output.replace(root / target)


if __name__ == "__main__":
    here = Path(__file__).resolve().parent
    for extension in EXTENSIONS:
        if is_stale(here, extension):
            compile_in(here, extension)
