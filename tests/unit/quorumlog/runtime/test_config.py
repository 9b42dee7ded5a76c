"""Configuration: precedence, ranges, cross-checks, and all problems in one error."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path

import pytest

from metadata.control.configs import TABLES
from metadata.records import ConfigScope
from quorumlog.errors import ConfigError
from quorumlog.runtime import config as configuration
from quorumlog.runtime.addresses import Address
from quorumlog.runtime.config import BROKER, KEYS, QUORUM_NODE, RECORD_KEYS, KafkaListener, NodeConfig
from quorumlog.runtime.settings import Key, Settings, render_toml


def parse(role: str, *arguments: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser(allow_abbrev=False)
    configuration.add_arguments(parser, role)
    return parser.parse_args(arguments)


def load(role: str, *arguments: str, environ: Mapping[str, str] | None = None) -> NodeConfig:
    return configuration.load(role, parse(role, *arguments), environ or {})


def problems(role: str, *arguments: str, environ: Mapping[str, str] | None = None) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        load(role, *arguments, environ=environ)
    assert caught.value.exit_status == 2
    assert "config" in caught.value.next_step
    return list(caught.value.problems)


VOTER = ("--data-dir", "d", "--node-id", "1", "--initial-voters", "1@127.0.0.1:9093")


def test_a_standalone_broker_needs_no_other_flag() -> None:
    config = load(BROKER, "--standalone", environ={"XDG_DATA_HOME": "/x"})
    assert config.node_id == 1
    assert config.data_dirs == ("/x/quorumlog/standalone",)
    assert config.kafka_listeners == (KafkaListener("default", Address("127.0.0.1", 9092)),)
    assert (config.control_listen, config.http_listen) == (Address("127.0.0.1", 9093), Address("127.0.0.1", 9644))
    assert config.settings["node.id"].source == "default of --standalone"


def test_flag_beats_set_beats_environment_beats_file_beats_default(tmp_path: Path) -> None:
    file = tmp_path / "node.toml"
    file.write_text('[logging]\nlevel = "error"\n')
    environ = {"QUORUMLOG_LOGGING_LEVEL": "warning"}
    base = ("--standalone", "--data-dir", "d")
    steps = [
        ((), {}, "info", "default"),
        (("--config", str(file)), {}, "error", f"file {file}"),
        (("--config", str(file)), environ, "warning", "environment QUORUMLOG_LOGGING_LEVEL"),
        (("--config", str(file), "--set", "logging.level=debug"), environ, "debug", "--set"),
        (("--set", "logging.level=debug", "--log-level", "info"), environ, "info", "--log-level"),
    ]
    for arguments, variables, level, source in steps:
        config = load(BROKER, *base, *arguments, environ=variables)
        assert config.log_level == level
        assert config.settings["logging.level"].source == source


def test_nested_and_dotted_tables_are_equivalent_and_a_duplicate_key_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "node.toml"
    file.write_text(
        'data.dirs = ["a", "b"]\n"node.id" = 4\n[quorum]\ncontrollers = "127.0.0.1:1,localhost:2"\n'
        '[kafka]\nlisten = ["in=127.0.0.1:1", "out=127.0.0.1:2"]\n'
    )
    config = load(BROKER, "--config", str(file))
    assert config.data_dirs == ("a", "b")
    assert config.node_id == 4
    assert [str(address) for address in config.bootstrap] == ["127.0.0.1:1", "localhost:2"]
    assert [listener.name for listener in config.kafka_listeners] == ["in", "out"]
    assert config.inter_broker_listener == "in"
    file.write_text('"node.id" = 4\nnode.id = 5\ndata.dirs = "d"\nquorum.standalone = true\n')
    assert any("node.id is set twice" in line for line in problems(BROKER, "--config", str(file)))


def test_load_reports_all_problems_at_once(tmp_path: Path) -> None:
    file = tmp_path / "node.toml"
    file.write_text('min.insync.replicas = 2\nquorum.fetch.timeout.ms = "soon"\nbroker.rak = "r"\n')
    found = problems(
        BROKER,
        "--config", str(file), "--set", "nonsense", "--node-id", "-1", "--http", "here",
        "--listen", "a:1,b:2", "--controllers", "c:3", "--standalone",
        environ={"QUORUMLOG_LOG_LEVEL": "info", "HOME": "/h"},
    )  # fmt: skip
    text = "\n".join(found)
    for expected in (
        f"file {file}: min.insync.replicas is not a setting of a node, but a config in the metadata log",
        f"file {file}: quorum.fetch.timeout.ms = 'soon' has the wrong type; expected: a whole number 100..60000",
        f"file {file}: unknown key 'broker.rak'; did you mean broker.rack?",
        "environment QUORUMLOG_LOG_LEVEL: unknown setting; did you mean QUORUMLOG_LOGGING_LEVEL?",
        "--set nonsense: not key=value",
        "--node-id: node.id = -1 is out of range 0..2147483647",
        "--http: http.listen: 'here' is not HOST:PORT",
        "kafka.listen names listener default twice",
        "give only one of --standalone",
    ):
        assert expected in text
    assert "--node-id is missing" not in text  # the flag was given, with an invalid value


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("session.timeout.ms", "broker.session.timeout.ms"),
        ("broker.id", "node.id"),  # the name in Kafka
        ("log.dirs", "data.dirs"),
        ("log.retention.hours", "retention.ms"),
        ("log.retention.minutes", "retention.ms"),
        ("log.retention.ms", "retention.ms"),
        ("log.retention.bytes", "retention.bytes"),
        ("log.segment.bytes", "segment.bytes"),
        ("retention.mss", "retention.ms"),  # a config of topics
        ("zookeeper.connect", None),
        ("x", None),
    ],
)
def test_a_key_is_suggested_only_if_a_similar_one_exists(name: str, near: str | None) -> None:
    after = f"; did you mean {near}?" if near else ""
    assert f"--set: unknown key {name!r}{after}" in problems(BROKER, "--standalone", "--set", f"{name}=1")
    variable = "QUORUMLOG_" + name.upper().replace(".", "_")
    after = f"; did you mean QUORUMLOG_{near.upper().replace('.', '_')}?" if near else ""
    found = problems(BROKER, "--standalone", environ={variable: "1", "HOME": "/h"})
    assert f"environment {variable}: unknown setting{after}" in found


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--listen", "0.0.0.0:9093"), "--listen 0.0.0.0:9093 listens on every interface; set the address for others "
                                       "with --advertise HOST:PORT"),
        (("--advertise", "0.0.0.0:9093"), "--advertise 0.0.0.0:9093: a wildcard is not an address to connect to"),
        (("--advertise", "h:0"), "--advertise h:0: port 0 is not a port to connect to"),
        (("--http", "127.0.0.1:9093"), "--http 127.0.0.1:9093 and --listen 127.0.0.1:9093 need the same port"),
        (("--listen", "127.0.0.1:70000"), "the port must be 0..65535"),
        (("--data-dir", "e"), "names 2 directories, quorum-node takes at most 1"),
        (("--data-dir", "d"), "names a directory twice"),
        (("--join", "127.0.0.1:1"), "give only one of --standalone, --initial-voters or --join"),
        (("--advertise", "127.0.0.1:1111"), "--initial-voters has 127.0.0.1:9093 for this node, but it would "
                                            "advertise 127.0.0.1:1111 (--advertise)"),
        (("--set", "broker.session.timeout.ms=1500"), "must be at least twice broker.heartbeat.interval.ms = 1000"),
        (("--set", "kafka.listen=a:1"), "kafka.listen is a setting of broker, not of quorum-node"),
        (("--cluster-id", "no spaces"), "is not a cluster id"),
        (("--log-level", "loud"), "logging.level: 'loud' is unknown; expected: one of debug, info, warning, error"),
        (("--node-id", "1"), "--node-id is given 2 times"),
    ],
)  # fmt: skip
def test_invalid_settings_of_a_voter_are_refused(arguments: tuple[str, ...], said: str) -> None:
    assert said in "\n".join(problems(QUORUM_NODE, *VOTER, *arguments))


@pytest.mark.parametrize("key", [key for key in KEYS if key.maximum is not None], ids=lambda key: key.name)
def test_settings_accept_the_minimum_and_maximum_of_each_range(key: Key) -> None:
    for value in (key.minimum, key.maximum):
        settings = Settings(KEYS, key.roles[0], RECORD_KEYS)
        settings.add_assignments([f"{key.name}={value}"])
        assert (settings.problems, settings.values[key.name].value) == ([], value)


def test_an_invalid_node_id_causes_no_further_problems() -> None:
    """No other id takes its place: node 0 would not be among the voters, and would advertise another address."""
    arguments = ("--data-dir", "d", "--node-id", "x", "--initial-voters", "1@127.0.0.1:1,2@127.0.0.1:2")
    (said,) = problems(QUORUM_NODE, *arguments)
    assert said.startswith("--node-id: node.id: 'x' is not a whole number")


@pytest.mark.parametrize(
    "arguments", [("--data-dir", "d\udcff"), ("--rack", "r\udcff"), ("--set", "broker.rack=\udcff")]
)
def test_a_value_that_is_not_utf8_is_refused(arguments: tuple[str, ...]) -> None:
    """Such a value can be neither printed nor sent."""
    (said,) = problems(BROKER, "--standalone", *arguments, environ={"HOME": "/h"})
    assert said.isprintable()
    assert "\\udcff' is not valid UTF-8" in said


def test_a_user_without_a_home_directory_must_name_the_data_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(path: Path) -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "expanduser", unknown)
    assert problems(BROKER, "--standalone") == [
        "--data-dir is missing: the default directory is unknown: this user has no home directory, and HOME is not "
        "set; name a directory, or set HOME or XDG_DATA_HOME"
    ]
    assert load(BROKER, "--standalone", "--data-dir", "d").data_dirs == ("d",)


@pytest.mark.parametrize("variable", ["HOME", "XDG_DATA_HOME"])
def test_a_home_directory_that_is_not_utf8_is_refused(variable: str) -> None:
    (said,) = problems(BROKER, "--standalone", environ={variable: "/h\udcff"})
    assert said.isprintable()
    assert "\\udcff" in said
    assert said.endswith("is not valid UTF-8; name a directory, or set HOME or XDG_DATA_HOME")


def test_a_cleaner_limit_of_0_bytes_per_second_is_refused() -> None:
    said = problems(BROKER, "--standalone", "--set", "log.cleaner.io.max.bytes.per.second=0")
    assert said == ["log.cleaner.io.max.bytes.per.second = 0 would stop compaction; -1 means no limit"]


@pytest.mark.parametrize(
    ("voters", "said"),
    [
        ("2@127.0.0.1:1,3@127.0.0.1:2", "does not name this node (1)"),
        ("1@127.0.0.1:9093,1@127.0.0.1:2", "names node id 1 twice"),
        ("1@127.0.0.1:9093,2@127.0.0.1:9093", "names address 127.0.0.1:9093 twice"),
        ("1@127.0.0.1:9093,2@far:1", "mixes loopback addresses (1@127.0.0.1:9093) with others"),
        ("1@0.0.0.0:9093", "to connect to"),
        ("1@h:0", "to connect to"),
        ("1@h:1,", "empty item"),
        (",".join(f"{n}@h{n}:1" for n in range(1, 20)), "at most 15"),
    ],
)
def test_voter_lists_that_cannot_form_a_cluster_are_refused(voters: str, said: str) -> None:
    text = "\n".join(problems(QUORUM_NODE, "--data-dir", "d", "--node-id", "1", "--initial-voters", voters))
    assert said in text


def test_a_loopback_address_is_not_advertised_to_other_hosts() -> None:
    base = ("--data-dir", "d", "--node-id", "5")
    assert "is a loopback address" in "\n".join(problems(QUORUM_NODE, *base, "--join", "far:9093"))
    load(QUORUM_NODE, *base, "--join", "127.0.0.1:9093", "--listen", "127.0.0.1:9094")
    load(QUORUM_NODE, *base, "--join", "far:9093", "--listen", "0.0.0.0:9093", "--advertise", "near:9093")


def test_a_broker_needs_controller_addresses_but_a_quorum_node_does_not() -> None:
    base = ("--data-dir", "d", "--node-id", "5")
    assert "give one of --standalone, --controllers" in "\n".join(problems(BROKER, *base))
    assert load(QUORUM_NODE, *base).bootstrap == ()


def test_advertised_addresses_are_matched_with_listeners_by_name() -> None:
    base = ("--data-dir", "d", "--node-id", "5", "--controllers", "127.0.0.1:1")
    config = load(
        BROKER, *base, "--listen", "in=127.0.0.1:1", "--listen", "out=0.0.0.0:2", "--advertise", "out=h:3",
        "--inter-broker", "out",
    )  # fmt: skip
    assert config.kafka_listeners[0].advertise is None
    assert config.kafka_listeners[1].advertise == Address("h", 3)
    assert config.inter_broker_listener == "out"
    said = "\n".join(
        problems(BROKER, *base, "--listen", "in=127.0.0.1:1", "--advertise", "x=h:1", "--inter-broker", "y")
    )
    assert "kafka.advertise x=h:1 is not a listener (in)" in said
    assert "--inter-broker y is not a listener (in)" in said


def test_http_can_be_switched_off() -> None:
    assert load(BROKER, "--standalone", "--data-dir", "d", "--http", "off").http_listen is None


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("node.id = ", "Invalid value"),
        ("\xff", "config file"),
        ("a = 1\na = 2", "config file"),
        ("x" * 2**21, "larger"),
    ],
)
def test_unreadable_config_files_are_reported(tmp_path: Path, text: str, said: str) -> None:
    file = tmp_path / "broken.toml"
    file.write_bytes(text.encode("latin-1"))
    assert said in "\n".join(problems(BROKER, "--config", str(file)))
    assert "No such file" in "\n".join(problems(BROKER, "--config", str(tmp_path / "none.toml")))


def test_variables_that_kubernetes_sets_are_ignored() -> None:
    environ = {
        "QUORUMLOG_SERVICE_HOST": "10.0.0.1",
        "QUORUMLOG_PORT": "tcp://10.0.0.1:9092",
        "QUORUMLOG_PORT_9092_TCP_ADDR": "10.0.0.1",
        "QUORUMLOG_BROKERS_SERVICE_PORT_KAFKA": "9092",
    }
    assert load(BROKER, "--standalone", "--data-dir", "d", environ=environ).node_id == 1


# The table of keys


def test_no_key_is_the_prefix_of_another() -> None:
    names = [key.name for key in KEYS] + sorted(RECORD_KEYS)
    assert len(set(names)) == len(names)
    for name in names:
        assert not [other for other in names if other.startswith(f"{name}.")]


def test_environment_names_are_unique() -> None:
    names = [key.environment for key in KEYS]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("scope", [ConfigScope.TOPIC, ConfigScope.CLUSTER, ConfigScope.BROKER])
def test_every_dynamic_config_is_refused_as_a_node_setting(scope: ConfigScope) -> None:
    assert set(TABLES[scope]) <= RECORD_KEYS
    for key in TABLES[scope]:
        (said,) = problems(BROKER, "--standalone", "--set", f"{key}=1")
        assert "a config in the metadata log (next: kctl configs set" in said


def test_every_key_refused_as_a_dynamic_config_is_one() -> None:
    assert set().union(*TABLES.values()) >= RECORD_KEYS


@pytest.mark.parametrize("role", [QUORUM_NODE, BROKER])
def test_every_flag_has_a_key(role: str) -> None:
    parser = argparse.ArgumentParser(add_help=False)
    configuration.add_arguments(parser, role)
    flags = {flag for action in parser._actions for flag in action.option_strings} - {"--config", "--set"}
    assert flags == {key.flag(role) for key in KEYS if role in key.roles and key.flag(role)}


def test_rendered_settings_load_as_the_same_configuration(tmp_path: Path) -> None:
    arguments = (
        "--data-dir", "a,b", "--node-id", "3", "--controllers", "127.0.0.1:1", "--listen", "x=127.0.0.1:0",
        "--http", "off", "--rack", 'r "1"',
    )  # fmt: skip
    config = load(BROKER, *arguments)
    file = tmp_path / "printed.toml"
    file.write_text("".join(f"{render_toml(key, config.settings[key.name])}\n" for key in KEYS))
    assert load(BROKER, "--config", str(file)) == config
