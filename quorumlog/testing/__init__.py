"""A real broker for tests, in under a second: the function `standalone`, or the fixtures of `plugin`.

Every run of pytest imports this package, since installing quorumlog registers the plugin.  So the package imports
almost nothing until a test uses it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from quorumlog.testing.broker import Broker, standalone

__all__ = ["Broker", "standalone"]

STOP_TIMEOUT_S = 30.0
"""Time for the broker to stop after SIGTERM; then the guard kills it.  The constant is not defined in `guard.py`: that
module runs with `python -m`, and Python warns if the package has imported such a module before."""

if not TYPE_CHECKING:  # otherwise every name would be valid for a type checker

    def __getattr__(name: str) -> object:
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from quorumlog.testing import broker

        return getattr(broker, name)
