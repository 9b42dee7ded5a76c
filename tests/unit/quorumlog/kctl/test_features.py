"""kctl features, against a table of replies."""

from __future__ import annotations

import json

import pytest

from quorumlog.kctl.main import run
from quorumlog.wire import rpcs
from quorumlog.wire.v1 import controller_pb2 as pb
from tests.unit.quorumlog.kctl.test_commands import OK, FakeClient, client

__all__ = ["client"]


def test_features_describe_shows_levels_and_the_nodes_that_limit_them(
    client: FakeClient, capsys: pytest.CaptureFixture[str]
) -> None:
    feature = pb.DescribedFeature(name="metadata.version", level=1, lowest=1, highest=2, limited_by=[11, 12])
    client.replies[rpcs.DESCRIBE_FEATURES] = pb.DescribeFeaturesReply(result=OK, offset=5, features=[feature])
    assert run(["features", "describe", "-o", "json"]) == 0
    assert json.loads(capsys.readouterr().out) == [
        {
            "name": "metadata.version",
            "level": 1,
            "lowest": 1,
            "highest": 2,
            "limited_by": [11, 12],
            "offset": 5,
            "unconfirmed": False,
        }
    ]
    assert run(["features", "describe"]) == 0
    assert capsys.readouterr().out.splitlines()[1].split() == ["metadata.version", "1", "1", "2", "11,12"]


def test_features_upgrade_reports_the_new_level(client: FakeClient, capsys: pytest.CaptureFixture[str]) -> None:
    client.replies[rpcs.UPGRADE_FEATURE] = pb.UpgradeFeatureReply(result=OK, changed=True, offset=9, level=2)
    assert run(["features", "upgrade", "-o", "json"]) == 0
    assert json.loads(capsys.readouterr().out) == {
        "changed": True, "offset": 9, "name": "metadata.version", "level": 2
    }  # fmt: skip
    assert not client.calls[0][1].HasField("level")
    assert run(["features", "upgrade", "--to", "2", "--dry-run"]) == 0
    asked = client.calls[1][1]
    assert (asked.name, asked.level, asked.header.validate_only) == ("metadata.version", 2, True)
    assert capsys.readouterr().out == "metadata.version would be at level 2\n"
    client.replies[rpcs.UPGRADE_FEATURE] = pb.UpgradeFeatureReply(result=OK, offset=9, level=2)
    assert run(["features", "upgrade"]) == 0
    assert capsys.readouterr().out == "metadata.version is already at level 2\n"
