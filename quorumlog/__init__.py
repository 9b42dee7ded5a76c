"""quorumlog: a partitioned, replicated log whose cluster metadata is itself a replicated log."""

import os

__version__ = "0.1.0"

# gRPC's handlers of fork() break the child while calls are in progress: one in four children that should have started a
# program (such as Spark's Java) ended before they started it.  Nothing here is used on both sides of a fork. gRPC reads
# this variable when it is imported.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
