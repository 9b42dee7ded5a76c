"""The installed commands `quorum-node` and `broker`: they first check that our own packages would be imported.

The servers are in packages of common names.  A folder or module of the same name that comes first on the module
path would be imported instead, and end in an error about a module that it does not have.
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
    """End the process, with a line on standard error, when a room would be imported from somewhere else."""
    if (error := shadowed()) is not None:
        _refuse(program, error)


def _refuse(program: str, error: ConfigError) -> NoReturn:
    print(f"{program}: {error.message} (next: {error.next_step})", file=sys.stderr)
    sys.exit(error.exit_status)


def shadowed() -> ConfigError | None:
    """What is wrong with the first of our packages that would be imported from another place than this one."""
    root = os.path.dirname(os.path.dirname(os.path.abspath(quorumlog.__file__)))
    for name in ROOMS:
        found, ours = _place(name), os.path.join(root, name)
        if found is None:
            return ConfigError(f"the package {name} is missing beside {root}", next_step="install quorumlog again")
        if os.path.realpath(os.path.dirname(found)) != os.path.realpath(ours):
            other = os.path.dirname(found) if os.path.basename(found).startswith("__init__.") else found
            return ConfigError(
                f"{other} shadows quorumlog's package {name} ({ours}): it comes first on the module path",
                next_step=f"take {os.path.dirname(other)} out of PYTHONPATH, start from another folder, or rename it",
            )
    return None


def _place(name: str) -> str | None:
    """The file that `import` would take for this package."""
    spec = importlib.util.find_spec(name)
    return None if spec is None else spec.origin
