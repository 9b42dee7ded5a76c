"""Default locations of data: the XDG base directories."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path


def data_home(environ: Mapping[str, str]) -> Path:
    """Return `$XDG_DATA_HOME/quorumlog`; relative values are ignored, as the XDG specification requires."""
    base = environ.get("XDG_DATA_HOME", "")
    if not base.startswith("/"):
        base = str(Path(environ.get("HOME") or "~").expanduser() / ".local" / "share")
    return Path(base) / "quorumlog"


def standalone_dir(environ: Mapping[str, str]) -> Path:
    """Return the data directory of `broker run --standalone`."""
    return data_home(environ) / "standalone"


def dev_dir(environ: Mapping[str, str]) -> Path:
    """Return the directory of `kctl dev up`."""
    return data_home(environ) / "dev"
