"""docs/reference.md is the page that the code makes, and its texts belong to configs and limits that exist."""

from __future__ import annotations

import msgspec
import pytest

from metadata.image.topic_configs import CLUSTER_CONFIGS
from quorumlog.runtime.config import KEYS
from tests.reference.configs import MEANINGS, TABLES
from tests.reference.limits import CONFIGURED, SECTIONS, fixed_fields, rows_of
from tests.reference.markdown import duration, size, with_meaning
from tests.reference.metrics import broker_metrics, node_metrics
from tests.reference.page import PAGE, page

LIMITS = [each for classes in SECTIONS.values() for each in classes.values()]
MINUTE_MS = 60_000


def test_the_reference_matches_the_code() -> None:
    assert PAGE.read_text() == page(), "run `python -m tests.reference`, then read the difference"


@pytest.mark.parametrize("name", TABLES)
def test_each_config_with_an_effect_is_explained_once(name: str) -> None:
    assert set(MEANINGS[name]) == {key for key, config in TABLES[name].items() if not config.no_effect}


@pytest.mark.parametrize("limits", LIMITS)
def test_each_fixed_limit_is_listed_once(limits: type[msgspec.Struct]) -> None:
    assert [name for row in rows_of(limits) for name in row.fields] == fixed_fields(limits)


def test_a_limit_that_is_left_out_has_the_default_of_its_config() -> None:
    settings = {key.name: key.default for key in KEYS}
    for limits, configs in CONFIGURED.items():
        for field, config in configs.items():
            value = getattr(limits(), field)
            if config in settings:
                assert value == settings[config], field
            elif isinstance(value, bool):
                assert CLUSTER_CONFIGS[config].default == "bidirectional", field
            elif isinstance(value, tuple):
                assert ",".join(value) == CLUSTER_CONFIGS[config].default, field
            else:
                unit = MINUTE_MS if config.endswith(".minutes") else 1
                assert value == int(CLUSTER_CONFIGS[config].default) * unit, field


def test_metrics_have_different_names() -> None:
    names = [each.name for each in (*node_metrics(), *broker_metrics())]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize(
    ("name", "text", "shown"),
    [
        ("retention.ms", "604800000", "`604800000` (7 days)"),
        ("a.ms", "90000", "`90000` (90 s)"),
        ("a.ms", "20", "`20`"),
        ("max.message.bytes", "1048588", "`1048588`"),
        ("segment.bytes", "1073741824", "`1073741824` (1 GiB)"),
        ("flush.messages", str(2**63 - 1), f"`{2**63 - 1}` (no limit)"),
        ("retention.bytes", "-1", "`-1`"),
    ],
)
def test_a_default_is_shown_as_written_and_in_a_larger_unit(name: str, text: str, shown: str) -> None:
    assert with_meaning(name, text) == shown


def test_durations_and_sizes_have_their_largest_unit() -> None:
    assert [duration(ms) for ms in (0, 500, 1500, 60_000, 86_400_000)] == ["0 ms", "500 ms", "1.5 s", "1 min", "1 day"]
    assert [size(count) for count in (1024, 4096, 64 << 20)] == ["1,024 bytes", "4 KiB", "64 MiB"]
