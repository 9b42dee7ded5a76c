"""The Spark data source: `spark.read.format("quorumlog")` and `df.write.format("quorumlog")`.

Spark imports every top-level module whose name begins with `pyspark_` and registers its `DefaultSource`.  An exception
or a slow import here would affect every data source of the session, so this module imports only Spark's own modules.
Calls that need pyarrow and the client import them.
"""

from pyspark_quorumlog.source import DefaultSource

__all__ = ["DefaultSource"]
