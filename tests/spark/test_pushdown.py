"""Why this source does not push filters down: Spark applies the pushed filters of one query to other queries.

This test uses a source of its own.  If it fails, Spark was corrected, and push-down can be added from that version on.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, EqualTo, Filter, InputPartition
from pyspark.sql.types import StructType

pytestmark = pytest.mark.quiet  # Spark alone keeps two cores busy
SETTING = "spark.sql.python.filterPushdown.enabled"


class PushingReader(DataSourceReader):
    """Has the numbers 0, 1 and 2, and evaluates equality itself."""

    only: int | None = None

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        for one in filters:
            if isinstance(one, EqualTo):
                self.only = one.value
            else:
                yield one

    def partitions(self) -> list[InputPartition]:
        return [InputPartition(self.only)]

    def read(self, partition: InputPartition) -> Iterator[tuple[int]]:
        return iter([(number,) for number in range(3) if partition.value in (None, number)])


class PushingSource(DataSource):
    @classmethod
    def name(cls) -> str:
        return "pushing"

    def schema(self) -> str:
        return "number int"

    def reader(self, schema: StructType) -> DataSourceReader:
        return PushingReader()


def test_spark_applies_pushed_filters_to_other_queries_of_the_frame(spark: SparkSession) -> None:
    spark.dataSource.register(PushingSource)
    spark.conf.set(SETTING, "true")
    try:
        frame = spark.read.format("pushing").load()
        one, two = frame.where("number = 1"), frame.where("number = 2")
        assert [row.number for row in one.union(two).collect()] == [2, 2], "Spark returns 1 and 2: it was corrected"
        assert frame.count() == 1, "Spark returns all numbers: it was corrected"
    finally:
        spark.conf.unset(SETTING)
