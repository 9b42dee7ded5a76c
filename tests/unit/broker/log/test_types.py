"""The names of the folders of logs."""

from __future__ import annotations

from uuid import uuid4

import pytest

from broker.log import LogKey
from broker.log.types import folder_name, parse_folder_name
from tests.unit.broker.log.rig import KEY


@pytest.mark.parametrize("topic", ["a", "a.b_c-d", "x" * 249, "a-1." + "0" * 32 + ".5"])
def test_the_key_of_a_log_can_be_parsed_from_the_name_of_its_folder(topic: str) -> None:
    key = LogKey(uuid4(), 2**31 - 1, 2**63 - 1)
    name = folder_name(key, topic)
    assert len(name) <= 255
    parsed = parse_folder_name(name)
    assert parsed is not None
    assert parsed[0] == key
    assert topic.startswith(parsed[1])


@pytest.mark.parametrize("topic", ["../x", "a/b", "", "ä", "a\nb", ".."])
def test_no_topic_name_makes_a_folder_outside_the_directory(topic: str) -> None:
    try:
        name = folder_name(KEY, topic)
    except AssertionError:
        return
    assert "/" not in name
    assert name not in (".", "..")
