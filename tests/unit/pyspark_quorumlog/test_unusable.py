"""Spark's look-up of data sources with a PySpark that is too old for this one."""

from __future__ import annotations

import subprocess
import sys

import pyspark

USES = ("schema()", "reader(None)", "streamReader(None)", "writer(None, False)", "streamWriter(None, False)")
OLDER_PYSPARK = f"""
import pickle
from pyspark.sql import datasource
del datasource.DataSourceStreamArrowWriter  # PySpark 4.0 does not have it
import pyspark_quorumlog
found = pickle.loads(pickle.dumps(pyspark_quorumlog.DefaultSource))
assert issubclass(found, datasource.DataSource)
print(found.name())
for use in {USES}:
    try:
        eval("found({{}})." + use)
    except ImportError as error:
        print(error)
"""


def test_an_older_pyspark_finds_the_source_and_shows_the_version_that_it_needs() -> None:
    """If the import failed, Spark would skip the data sources of all packages."""
    done = subprocess.run([sys.executable, "-c", OLDER_PYSPARK], stdout=subprocess.PIPE, text=True, check=True)
    name, *errors = done.stdout.splitlines()
    assert name == "quorumlog"
    assert len(errors) == len(USES)
    for error in errors:
        assert error.startswith(f"quorumlog cannot be used with PySpark {pyspark.__version__}: cannot import name")
        assert error.endswith("; install PySpark 4.2 or newer: pip install '.[spark]' in a clone of quorumlog")
