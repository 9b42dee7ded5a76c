"""quorumlog: a partitioned, replicated log whose cluster metadata is itself a replicated log."""

import os

__version__ = "0.1.0"

# If calls are in progress, gRPC's handlers of fork() break the child: one in four children ended before it had started
# its program (such as Spark's Java).  quorumlog needs no such handlers, since it never uses a channel or server in both
# processes.  gRPC reads this variable when it is imported.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
