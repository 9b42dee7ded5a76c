"""The Spark data source: `spark.read.format("quorumlog")` and `df.write.format("quorumlog")`.

Spark imports every top-level module whose name begins with `pyspark_` and registers its `DefaultSource`.  An exception
or a slow import in this module would affect every data source of the session.  So it imports only Spark's own modules,
and small modules that need only the standard library.  Functions that need pyarrow or the client import them.
"""

try:
    from pyspark_quorumlog.source import DefaultSource
except ImportError:  # PySpark is older than 4.2
    from pyspark_quorumlog.unusable import UnusableSource as DefaultSource  # type: ignore[assignment]  # its stand-in

__all__ = ["DefaultSource"]
