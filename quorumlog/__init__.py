"""quorumlog: a partitioned, replicated log whose cluster metadata is itself a replicated log."""

__version__ = "0.1.0"
