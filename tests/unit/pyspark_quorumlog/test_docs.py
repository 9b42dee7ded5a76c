"""The option reference of docs/spark.md is the one of the code, and states the defaults that the code uses."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pyspark_quorumlog.options import READ_OPTIONS, WRITE_OPTIONS, Query, parse_read, parse_write
from pyspark_quorumlog.reference import BOOTSTRAP, READING, STREAMS, WRITING, Option, filled, names_of

PAGE = Path(__file__).parents[3] / "docs" / "spark.md"
READ = {"kafka.bootstrap.servers": "h:9092", "subscribe": "t"}


def test_the_page_contains_the_tables_of_the_code() -> None:
    page = PAGE.read_text()
    if "REWRITE" in os.environ:
        PAGE.write_text(page := filled(page))
    assert filled(page) == page, "run this test with REWRITE=1"


@pytest.mark.parametrize("option", [*READING, *STREAMS])
def test_the_documented_default_of_each_read_option_is_the_one_in_the_code(option: Option) -> None:
    for name, default in option.defaults.items():
        assert parse_read(READ | {name: default}, Query.BATCH) == parse_read(READ, Query.BATCH), name


@pytest.mark.parametrize("option", WRITING)
def test_the_documented_default_of_each_write_option_is_the_one_in_the_code(option: Option) -> None:
    target = {"bootstrap.servers": "h:9092", "topic": "t"}
    for name, default in option.defaults.items():
        assert parse_write(target | {name: default}) == parse_write(target), name


def test_every_option_is_listed_once() -> None:
    for known, documented in (
        (READ_OPTIONS, names_of([*READING, *STREAMS])),
        (WRITE_OPTIONS, (*names_of(WRITING), "kafka.transactional.id")),
    ):
        assert sorted(known) == sorted({*BOOTSTRAP, *documented})
        assert len(set(documented)) == len(documented)
