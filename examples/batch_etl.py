"""Sums the orders of one day by customer, and writes the sums to another topic and the invalid orders to a third one.

for topic in orders revenue invalid-orders; do kctl topics create $topic; done
printf '{"customer": "ann", "cents": 1250}\\nnonsense\\n' | kctl produce orders
python -m examples.batch_etl --bootstrap localhost:9092 --day $(date -u +%F)
kctl consume revenue --from beginning --exit-at-end
"""

from __future__ import annotations

import argparse
from datetime import UTC, date, datetime, time, timedelta

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

ORDER = "customer STRING, cents BIGINT"


def orders_of(spark: SparkSession, bootstrap: str, day: date) -> DataFrame:
    """Return the orders of this day in UTC: text, customer and cents.

    The orders of a partition begin with the first record of this day, and end before the first record of a later day.
    Customer or cents are NULL if the text is not a valid order.
    """
    first = datetime.combine(day, time(), UTC)
    source = spark.read.format("quorumlog").option("kafka.bootstrap.servers", bootstrap).option("subscribe", "orders")
    source = source.option("startingTimestamp", _ms(first)).option("endingTimestamp", _ms(first + timedelta(days=1)))
    source = source.option("startingOffsetsByTimestampStrategy", "latest")  # a day without orders has no rows
    text = source.option("columns", "value").load().selectExpr("CAST(value AS STRING) AS text")
    return text.withColumn("order", F.from_json("text", ORDER)).select("text", "order.customer", "order.cents")


def results_of(orders: DataFrame, day: date) -> DataFrame:
    """Return the rows to write: a sum for each customer, and the invalid orders as they are."""
    is_valid = F.col("customer").isNotNull() & F.col("cents").isNotNull()
    sums = orders.where(is_valid).groupBy("customer").agg(F.sum("cents").alias("cents"))
    revenue = sums.withColumn("day", F.lit(day.isoformat())).select(
        F.lit("revenue").alias("topic"),
        F.col("customer").alias("key"),
        F.to_json(F.struct("day", "customer", "cents")).alias("value"),
    )
    invalid = orders.where(~is_valid).selectExpr("'invalid-orders' AS topic", "CAST(NULL AS STRING) AS key", "text")
    return revenue.union(invalid)


def run(spark: SparkSession, bootstrap: str, day: date) -> None:
    """Write the results in one transaction, so readers of committed records see all of them or none."""
    results = results_of(orders_of(spark, bootstrap, day), day)
    results.write.format("quorumlog").option("kafka.bootstrap.servers", bootstrap).mode("append").save()


def _ms(moment: datetime) -> int:
    return int(moment.timestamp() * 1000)


def main() -> None:
    parser = argparse.ArgumentParser(description="Sums the orders of one day by customer.")
    parser.add_argument("--bootstrap", default="localhost:9092", metavar="HOST:PORT")
    parser.add_argument("--day", required=True, type=date.fromisoformat, metavar="YYYY-MM-DD", help="in UTC")
    arguments = parser.parse_args()
    run(SparkSession.builder.appName("batch ETL").getOrCreate(), arguments.bootstrap, arguments.day)


if __name__ == "__main__":
    main()
