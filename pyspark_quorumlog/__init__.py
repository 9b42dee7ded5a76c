"""The Spark data source: `spark.read.format("quorumlog")` and `df.write.format("quorumlog")`.

Spark imports every top-level module whose name begins with `pyspark_` and takes its `DefaultSource`: nothing has to be
registered.  An exception, or a slow import, here would hurt every data source of the session, so this module imports
Spark's own and no more; numba, pyarrow and the client are loaded by the task that needs them.
"""

from pyspark_quorumlog.source import DefaultSource

__all__ = ["DefaultSource"]
