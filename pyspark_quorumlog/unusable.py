"""The data source in an environment that cannot import it, such as one with PySpark 4.0 or 4.1.

Spark registers the sources of all packages in one look-up.  If a package raises an exception then, Spark skips all of
them, and only logs a warning.  So this source is registered, and each use of it raises the error.
"""

from __future__ import annotations

from typing import NoReturn

import pyspark
from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType


class UnusableSource(DataSource):
    """Raises the error of the import at each use."""

    @classmethod
    def name(cls) -> str:
        return "quorumlog"

    def schema(self) -> NoReturn:
        _fail()

    def reader(self, schema: StructType) -> NoReturn:
        _fail()

    def writer(self, schema: StructType, overwrite: bool) -> NoReturn:
        _fail()

    def streamReader(self, schema: StructType) -> NoReturn:
        _fail()

    def streamWriter(self, schema: StructType, overwrite: bool) -> NoReturn:
        _fail()


def _fail() -> NoReturn:
    try:
        import pyspark_quorumlog.source  # noqa: F401
    except ImportError as error:
        raise ImportError(
            f"quorumlog cannot be used with PySpark {pyspark.__version__}: {error}; install PySpark 4.2 or newer: "
            "pip install '.[spark]' in a clone of quorumlog"
        ) from error
    raise AssertionError("the source can be imported, so this one is not used")
