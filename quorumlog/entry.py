"""The installed commands `quorum-node` and `broker`, which first check that our own packages would be imported.

The servers' packages have common names.  A folder or module of the same name that comes first on the module path would
be imported instead, and fail with an error about a missing module.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from typing import NoReturn

import quorumlog
from quorumlog.errors import ConfigError

ROOMS = ("quorum", "metadata", "broker", "quorumlog_server")


def quorum_node() -> None:
    """Run `quorum-node` and end the process with its exit status."""
    _run("quorum-node", "quorumlog_server.quorum_node")


def broker() -> None:
    """Run `broker` and end the process with its exit status."""
    _run("broker", "broker.cli")


def _run(program: str, module: str) -> None:
    end_if_shadowed(program)
    importlib.import_module(module).main()


def end_if_shadowed(program: str) -> None:
    """End the process with an error message if one of our packages would be imported from elsewhere."""
    if (error := shadowed()) is not None:
        _refuse(program, error)


def _refuse(program: str, error: ConfigError) -> NoReturn:
    print(f"{program}: {error.message} (next: {error.next_step})", file=sys.stderr)
    sys.exit(error.exit_status)


def shadowed() -> ConfigError | None:
    """Return the problem of the first of our packages that would be imported from elsewhere, or None."""
    root = os.path.dirname(os.path.dirname(os.path.abspath(quorumlog.__file__)))
    for name in ROOMS:
        found, ours = _place(name), os.path.join(root, name)
        if found is None:
            return ConfigError(f"the package {name} is missing beside {root}", next_step="reinstall quorumlog")
        if os.path.realpath(os.path.dirname(found)) != os.path.realpath(ours):
            other = os.path.dirname(found) if os.path.basename(found).startswith("__init__.") else found
            return ConfigError(
                f"{other} shadows quorumlog's package {name} ({ours}): it comes first on the module path",
                next_step=f"remove {os.path.dirname(other)} from PYTHONPATH, start from another folder, or rename it",
            )
    return None


def _place(name: str) -> str | None:
    """Return the file that `import` would use for this package."""
    spec = importlib.util.find_spec(name)
    return None if spec is None else spec.origin
