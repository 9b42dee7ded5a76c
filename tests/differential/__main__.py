"""Compares the two connectors; see the package."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from tests.termination import end_in_order_on_sigterm

if TYPE_CHECKING:
    from tests.differential.harness import Job, Side

ROOT = Path(__file__).resolve().parents[2]
HOME = ROOT / ".dev" / "differential"
PACKAGES = HOME / "python"
PYSPARK_VERSION = "4.2.0"
"""The newest version of Spark whose Kafka connector is published."""
CONNECTOR = f"org.apache.spark:spark-sql-kafka-0-10_2.13:{PYSPARK_VERSION}"
DIFFERENCES = ROOT / "docs" / "spark-migration.md"
EQUAL, DIFFERS, PROBLEM = "equal", "differing as documented", "PROBLEM"
SHOWN_MAX = 600
"""Maximum number of characters of a value in the report."""


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.differential",
        description="Run the same jobs through Spark's own Kafka connector and ours, and compare the results.",
        epilog="Exit status: 0 if all differences are documented, 1 otherwise.",
    )
    parser.add_argument("--name", default="", help="only jobs with this in their name")
    parser.add_argument("--errors", action="store_true", help="also print the errors of refused jobs")
    arguments = parser.parse_args()
    end_in_order_on_sigterm()
    if not is_prepared():
        print(f"installing pyspark {PYSPARK_VERSION} into {PACKAGES}", flush=True)
        install = [sys.executable, "-m", "pip", "install", "-q", "--target", str(PACKAGES)]
        subprocess.run([*install, f"pyspark=={PYSPARK_VERSION}"], check=True)
    if str(PACKAGES) not in sys.path:
        path = os.pathsep.join((str(PACKAGES), str(ROOT)))
        os.environ |= {"PYTHONPATH": path, "PYSPARK_PYTHON": sys.executable}
        os.environ.setdefault("SPARK_SUBMIT_OPTS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")  # for short jobs
        os.environ.pop("SPARK_HOME", None)  # it would be another version
        os.execv(sys.executable, [sys.executable, "-m", "tests.differential", *sys.argv[1:]])
    return compare(arguments.name, arguments.errors)


def is_prepared() -> bool:
    return (PACKAGES / "pyspark").is_dir()


def compare(name: str, shows_errors: bool) -> int:
    """Run all jobs with `name` in their names, and print a line for each of them and its differences."""
    from pyspark.sql import SparkSession

    from quorumlog.testing import standalone
    from tests.differential.harness import Side
    from tests.differential.jobs import JOBS
    from tests.differential.transactions import TRANSACTION_JOBS

    builder = SparkSession.builder.master("local[2]").appName("differential")
    builder = builder.config("spark.jars.packages", CONNECTOR).config("spark.jars.ivy", str(HOME / "ivy"))
    for setting in ("spark.ui.enabled", "spark.ui.showConsoleProgress"):
        builder = builder.config(setting, "false")
    builder = builder.config("spark.sql.shuffle.partitions", "2").config("spark.sql.session.timeZone", "UTC")
    documented = DIFFERENCES.read_text()
    outcomes = Counter[str]()
    with tempfile.TemporaryDirectory(prefix="differential-") as folder, standalone() as broker:
        spark = builder.config("spark.sql.warehouse.dir", f"{folder}/warehouse").getOrCreate()
        spark.sparkContext.setLogLevel("OFF")
        try:
            for number, job in enumerate((*JOBS, *TRANSACTION_JOBS)):
                if name in job.name:
                    side_of = partial(Side, spark, broker.bootstrap, Path(folder), f"j{number}")
                    outcomes[_compare(side_of, job, documented, shows_errors)] += 1
        finally:
            spark.stop()
    print(", ".join(f"{outcomes[word]} {word}" for word in (EQUAL, DIFFERS, PROBLEM)))
    return 1 if outcomes[PROBLEM] else 0


def _compare(side_of: Callable[[str], Side], job: Job, documented: str, shows_errors: bool) -> str:
    """Run one job on both sides; print and return its outcome."""
    from tests.differential.harness import KAFKA, OURS, differences

    theirs, ours = side_of(KAFKA), side_of(OURS)
    found = differences(*(side.normal(job.run(side)) for side in (theirs, ours)))
    problems = [f"{aspect}: the difference is not documented" for aspect in found if aspect not in job.differs]
    problems += [f"{aspect}: a documented difference does not exist" for aspect in job.differs if aspect not in found]
    problems += [
        f"{phrase!r} is not in {DIFFERENCES.name}" for phrase in job.differs.values() if phrase not in documented
    ]
    word = PROBLEM if problems else DIFFERS if found else EQUAL
    print(f"{word}: {job.name}", flush=True)
    for problem in problems:
        print(f"    {problem}")
    for aspect, values in found.items():
        if aspect not in job.differs:
            for connector, value in zip((KAFKA, OURS), values, strict=True):
                print(f"    {aspect}, {connector}: {json.dumps(value)[:SHOWN_MAX]}")
    if shows_errors or problems:
        for side in (theirs, ours):
            for error in side.errors:
                print(f"    refused, {side.connector}: {error}")
    return word


if __name__ == "__main__":
    sys.exit(main())
