"""Raft with pull-based fetch as a pure state machine: start at `core.py`."""

from quorum.core.config import RaftConfig
from quorum.core.core import RaftCore

__all__ = ["RaftConfig", "RaftCore"]
