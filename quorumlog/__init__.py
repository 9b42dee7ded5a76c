"""quorumlog: a partitioned, replicated log whose cluster metadata is itself a replicated log."""

import os

__version__ = "0.1.0"

# gRPC's handlers of fork() break the child while calls go on: of those that were to start a program (Spark's Java, say)
# one in four ended before it did.  Nothing here is used on both sides of a fork.  Read when grpc is imported.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
