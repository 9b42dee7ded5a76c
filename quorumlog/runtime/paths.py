"""Default locations of data: the XDG base directories."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from quorumlog.errors import ConfigError


def data_home(environ: Mapping[str, str]) -> Path:
    """Return `$XDG_DATA_HOME/quorumlog`, or `~/.local/share/quorumlog` if the variable is not set.

    A relative value counts as not set, as the XDG specification requires.

    Raises:
        ConfigError: XDG_DATA_HOME is not set and this user has no home directory, or the path is not valid UTF-8.
    """
    base = environ.get("XDG_DATA_HOME", "")
    if not base.startswith("/"):
        try:
            home = Path(environ.get("HOME") or "~").expanduser()
        except RuntimeError as error:  # a container may run as a user that does not exist
            raise ConfigError(
                "the default directory is unknown: this user has no home directory, and HOME is not set",
                next_step="name a directory, or set HOME or XDG_DATA_HOME",
            ) from error
        base = str(home / ".local" / "share")
    try:
        base.encode()
    except UnicodeEncodeError as error:
        raise ConfigError(
            f"the default directory is unusable: {base!r} is not valid UTF-8",
            next_step="name a directory, or set HOME or XDG_DATA_HOME",
        ) from error
    return Path(base) / "quorumlog"


def standalone_dir(environ: Mapping[str, str]) -> Path:
    """Return the data directory of `broker run --standalone`."""
    return data_home(environ) / "standalone"


def dev_dir(environ: Mapping[str, str]) -> Path:
    """Return the directory of `kctl dev up`."""
    return data_home(environ) / "dev"
