"""The configuration of one process: `quorum-node` or `broker`.

`load` reads it once, at the edge, into a frozen `NodeConfig`; every value has its source.  All problems of syntax,
range and consistency are reported in one `ConfigError`.  Configs of the cluster, of topics, brokers and groups are
records in the metadata log, so that all nodes know the same values.  `load` refuses them by name.

Imports are few on purpose: this module runs before the server's own imports, and start-up time matters.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from quorumlog.errors import ConfigError
from quorumlog.runtime import paths
from quorumlog.runtime.addresses import (
    DEFAULT_LISTENER,
    NODE_ID_MAX,
    Address,
    InitialVoter,
    NamedAddress,
    parse_address,
    parse_list,
    parse_named,
    parse_target,
    parse_voter,
)
from quorumlog.runtime.settings import (
    BOOLEAN,
    INTEGER,
    TEXT,
    Key,
    Setting,
    Settings,
    choice,
    list_kind,
    render,
    text_kind,
)

QUORUM_NODE = "quorum-node"
BROKER = "broker"
BOTH = (QUORUM_NODE, BROKER)

STANDALONE_NODE_ID = 1
MISSING_ID, REFUSED_ID = -1, -2  # placeholders, used only while all problems of a configuration are collected
DEFAULT_CONTROL = Address("127.0.0.1", 9093)
DEFAULT_KAFKA = Address("127.0.0.1", 9092)
DEFAULT_HTTP = Address("127.0.0.1", 9644)

DATA_DIRS_MAX = 64
LISTENERS_MAX = 16
INITIAL_VOTERS_MAX = 15
PROBE_ADDRESSES_MAX = 64

RECORD_KEYS = frozenset(
    {
        "auto.create.topics.enable",
        "auto.leader.rebalance.enable",
        "cleanup.policy",
        "compression.gzip.level",
        "compression.lz4.level",
        "compression.type",
        "compression.validation.enable",
        "compression.zstd.level",
        "cordoned",
        "default.replication.factor",
        "delete.retention.ms",
        "errors.deadletterqueue.auto.create.topics.enable",
        "errors.deadletterqueue.group.enable",
        "errors.deadletterqueue.topic.name.prefix",
        "file.delete.delay.ms",
        "flush.messages",
        "flush.ms",
        "follower.replication.throttled.rate",
        "follower.replication.throttled.replicas",
        "group.consumer.assignment.interval.ms",
        "group.consumer.assignors",
        "group.consumer.heartbeat.interval.ms",
        "group.consumer.max.assignment.interval.ms",
        "group.consumer.max.heartbeat.interval.ms",
        "group.consumer.max.session.timeout.ms",
        "group.consumer.max.size",
        "group.consumer.migration.policy",
        "group.consumer.min.assignment.interval.ms",
        "group.consumer.min.heartbeat.interval.ms",
        "group.consumer.min.session.timeout.ms",
        "group.consumer.session.timeout.ms",
        "group.initial.rebalance.delay.ms",
        "group.max.session.timeout.ms",
        "group.max.size",
        "group.min.session.timeout.ms",
        "group.share.delivery.count.limit",
        "group.share.heartbeat.interval.ms",
        "group.share.max.delivery.count.limit",
        "group.share.max.heartbeat.interval.ms",
        "group.share.max.partition.max.record.locks",
        "group.share.max.record.lock.duration.ms",
        "group.share.max.session.timeout.ms",
        "group.share.max.share.sessions",
        "group.share.max.size",
        "group.share.min.delivery.count.limit",
        "group.share.min.heartbeat.interval.ms",
        "group.share.min.partition.max.record.locks",
        "group.share.min.record.lock.duration.ms",
        "group.share.min.session.timeout.ms",
        "group.share.partition.max.record.locks",
        "group.share.record.lock.duration.ms",
        "group.share.session.timeout.ms",
        "index.interval.bytes",
        "leader.rebalance.interval.ms",
        "leader.replication.throttled.rate",
        "leader.replication.throttled.replicas",
        "local.retention.bytes",
        "local.retention.ms",
        "max.compaction.lag.ms",
        "max.message.bytes",
        "message.downconversion.enable",
        "message.format.version",
        "message.timestamp.after.max.ms",
        "message.timestamp.before.max.ms",
        "message.timestamp.difference.max.ms",
        "message.timestamp.type",
        "metadata.retention.bytes",
        "metadata.retention.ms",
        "min.cleanable.dirty.ratio",
        "min.compaction.lag.ms",
        "min.insync.replicas",
        "num.partitions",
        "offset.metadata.max.bytes",
        "offsets.retention.check.interval.ms",
        "offsets.retention.minutes",
        "offsets.topic.num.partitions",
        "preallocate",
        "reassignment.throttle.bytes.per.second",
        "remote.storage.enable",
        "replica.alter.log.dirs.io.max.bytes.per.second",
        "replica.selector",
        "retention.bytes",
        "retention.ms",
        "segment.bytes",
        "segment.index.bytes",
        "segment.jitter.ms",
        "segment.ms",
        "share.auto.offset.reset",
        "share.coordinator.state.topic.num.partitions",
        "share.isolation.level",
        "transaction.max.timeout.ms",
        "transaction.state.log.num.partitions",
        "transactional.id.expiration.ms",
        "unclean.leader.election.enable",
        "write.caching",
    }
)
"""Configs of the cluster, of topics, of brokers and of groups, which are records in the metadata log.

A few names are broker configs of Kafka that do not exist in quorumlog.
"""

_CLUSTER_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")


def _parse_cluster_id(text: str) -> str:
    if not _CLUSTER_ID.fullmatch(text.strip()):
        raise ValueError(f"{text!r} is not a cluster id")
    return text.strip()


def _parse_http(text: str) -> Address | None:
    return None if text.strip() == "off" else parse_address(text)


def _parse_dir(text: str) -> str:
    if not text.strip() or "\0" in text:
        raise ValueError("the name of a directory is empty")
    return text.strip()


ADDRESS = text_kind("HOST:PORT", parse_address)
HTTP_ADDRESS = text_kind("HOST:PORT or off", _parse_http, "HOST:PORT|off")
TARGETS = list_kind("HOST:PORT,…", lambda texts: parse_list(parse_target, texts))
NAMED = list_kind("[NAME=]HOST:PORT,…", lambda texts: parse_list(parse_named, texts))
VOTERS = list_kind("ID@HOST:PORT,…", lambda texts: parse_list(parse_voter, texts))
DIRS = list_kind("DIR[,DIR…]", lambda texts: parse_list(_parse_dir, texts))
CLUSTER_ID = text_kind("1 to 64 of A-Z a-z 0-9 _ - (quorum-node new-id creates one)", _parse_cluster_id, "ID")


def _both(flag: str) -> tuple[tuple[str, str], ...]:
    return ((QUORUM_NODE, flag), (BROKER, flag))


KEYS: tuple[Key, ...] = (
    Key("data.dirs", DIRS, (), "directories of this node's data; quorum-node takes one", BOTH, _both("--data-dir")),
    Key("node.id", INTEGER, None, "id of this node, unique in the cluster", BOTH, _both("--node-id"), 0, NODE_ID_MAX),
    Key(
        "cluster.id",
        CLUSTER_ID,
        None,
        "join only the cluster with this id; a new cluster gets this id",
        BOTH,
        _both("--cluster-id"),
    ),
    Key("quorum.standalone", BOOLEAN, False, "a cluster of this one process", BOTH, _both("--standalone")),
    Key("quorum.initial.voters", VOTERS, (), "the first voters of a new cluster", BOTH, _both("--initial-voters")),
    Key("quorum.join", TARGETS, (), "join the cluster through these control addresses", BOTH, _both("--join")),
    Key("quorum.controllers", TARGETS, (), "control addresses of any nodes", (BROKER,), ((BROKER, "--controllers"),)),
    Key(
        "control.listen",
        ADDRESS,
        DEFAULT_CONTROL,
        "gRPC, for other nodes and for kctl",
        BOTH,
        ((QUORUM_NODE, "--listen"), (BROKER, "--control-listen")),
    ),
    Key(
        "control.advertise",
        ADDRESS,
        None,
        "the control address for other nodes",
        BOTH,
        ((QUORUM_NODE, "--advertise"), (BROKER, "--control-advertise")),
    ),
    Key(
        "kafka.listen",
        NAMED,
        (NamedAddress(DEFAULT_LISTENER, DEFAULT_KAFKA),),
        "Kafka protocol, for clients and other brokers",
        (BROKER,),
        ((BROKER, "--listen"),),
    ),
    Key(
        "kafka.advertise",
        NAMED,
        (),
        "the addresses that clients of each listener get",
        (BROKER,),
        ((BROKER, "--advertise"),),
    ),
    Key("kafka.inter.broker", TEXT, None, "the listener for other brokers", (BROKER,), ((BROKER, "--inter-broker"),)),
    Key("broker.rack", TEXT, None, "this broker's rack, for placement and reads", (BROKER,), ((BROKER, "--rack"),)),
    Key(
        "http.listen",
        HTTP_ADDRESS,
        DEFAULT_HTTP,
        "/metrics /livez /readyz",
        BOTH,
        _both("--http"),
    ),
    Key(
        "logging.format",
        choice("text", "json"),
        "text",
        "format of the log on standard error",
        BOTH,
        _both("--log-format"),
    ),
    Key(
        "logging.level",
        choice("debug", "info", "warning", "error"),
        "info",
        "the lowest level that is logged",
        BOTH,
        _both("--log-level"),
    ),
    Key(
        "logging.loop.held.ms",
        INTEGER,
        0,
        "log what holds the event loop for at least this long, with its stack; 0: do not watch the loop",
        BOTH,
        (),
        0,
        60_000,
    ),
    Key("quorum.election.timeout.ms", INTEGER, 1000, "a candidate waits this long for votes", BOTH, (), 50, 60_000),
    Key(
        "quorum.fetch.timeout.ms",
        INTEGER,
        2000,
        "a follower starts an election if its leader has not answered for this long",
        BOTH,
        (),
        100,
        60_000,
    ),
    Key("quorum.append.linger.ms", INTEGER, 0, "a batch waits this long for more records", BOTH, (), 0, 1000),
    Key("quorum.auto.join", BOOLEAN, False, "become a voter when caught up, unless removed before", BOTH, ()),
    Key("quorum.leave.on.shutdown", BOOLEAN, False, "before a voter stops, it leaves the voters", BOTH, ()),
    Key(
        "quorum.preference.wait.ms",
        INTEGER,
        30_000,
        "wait before leadership returns to a preferred node that led briefly or was not elected; doubles each time",
        BOTH,
        (),
        100,
        600_000,
    ),
    Key(
        "metadata.snapshot.log.bytes",
        INTEGER,
        20 << 20,
        "take a snapshot after this much metadata log",
        BOTH,
        (),
        1000,
        1 << 40,
    ),
    Key(
        "metadata.snapshot.interval.ms",
        INTEGER,
        3_600_000,
        "take a snapshot after this long, if records were added",
        BOTH,
        (),
        1000,
        7 * 86_400_000,
    ),
    Key("broker.heartbeat.interval.ms", INTEGER, 1000, "interval of a broker's heartbeats", BOTH, (), 50, 60_000),
    Key(
        "broker.session.timeout.ms",
        INTEGER,
        6000,
        "a broker without heartbeats for this long is fenced",
        BOTH,
        (),
        200,
        600_000,
    ),
    Key(
        "broker.fence.on.refusal",
        BOOLEAN,
        True,
        "fence a broker before its session ends if its addresses accepted connections before and now refuse them",
        BOTH,
        (),
    ),
    Key(
        "replica.lag.max.bytes",
        INTEGER,
        -1,
        "a replica that lags by more leaves the ISR immediately; -1: no limit",
        (BROKER,),
        (),
        -1,
        2**63 - 1,
    ),
    Key(
        "replica.lag.time.max.ms",
        INTEGER,
        10_000,
        "a replica that lags for this long leaves the ISR",
        (BROKER,),
        (),
        100,
        3_600_000,
    ),
    Key(
        "log.dir.stall.timeout.ms",
        INTEGER,
        60_000,
        "a data directory that hangs for this long goes offline; if it has the metadata log, the broker ends",
        (BROKER,),
        (),
        1000,
        3_600_000,
    ),
    Key(
        "log.cleaner.backoff.ms",
        INTEGER,
        15_000,
        "how long the log cleaner waits if no log is due for compaction",
        (BROKER,),
        (),
        100,
        3_600_000,
    ),
    Key(
        "log.cleaner.dedupe.buffer.size",
        INTEGER,
        128 << 20,
        "bytes of memory for the keys of one compaction; more keys take several passes",
        (BROKER,),
        (),
        1 << 20,
        4 << 30,
    ),
    Key(
        "log.cleaner.io.max.bytes.per.second",
        INTEGER,
        64 << 20,
        "bytes that compaction reads and writes each second; -1: no limit",
        (BROKER,),
        (),
        -1,
        1 << 40,
    ),
    Key("shutdown.timeout.ms", INTEGER, 30_000, "time limit of a graceful stop", BOTH, (), 100, 600_000),
)


@dataclass(frozen=True, slots=True)
class KafkaListener:
    """One Kafka listener.  advertise: None for the address that was bound."""

    name: str
    listen: Address
    advertise: Address | None = None


@dataclass(frozen=True, slots=True)
class NodeConfig:
    """The configuration of one process.  It may differ from node to node; durations are in milliseconds.

    bootstrap: control addresses of the cluster (`--join` or `--controllers`); empty for a process that founds a
        cluster.
    control_advertise: None for the address that was bound (never a wildcard).
    Without standalone, initial_voters and bootstrap, a quorum node must have been formatted and know its cluster.
    settings: every key with its value and source, in the order of `KEYS`.
    """

    role: str
    node_id: int
    data_dirs: tuple[str, ...]
    cluster_id: str | None = None
    standalone: bool = False
    initial_voters: tuple[InitialVoter, ...] = ()
    bootstrap: tuple[Address, ...] = ()
    control_listen: Address = DEFAULT_CONTROL
    control_advertise: Address | None = None
    kafka_listeners: tuple[KafkaListener, ...] = ()
    inter_broker_listener: str = DEFAULT_LISTENER
    rack: str | None = None
    http_listen: Address | None = None
    log_format: str = "text"
    log_level: str = "info"
    log_loop_held_ms: int = 0
    quorum_election_timeout_ms: int = 1000
    quorum_fetch_timeout_ms: int = 2000
    quorum_append_linger_ms: int = 0
    metadata_snapshot_log_bytes: int = 20 << 20
    metadata_snapshot_interval_ms: int = 3_600_000
    quorum_auto_join: bool = False
    quorum_leave_on_shutdown: bool = False
    quorum_preference_wait_ms: int = 30_000
    broker_heartbeat_interval_ms: int = 1000
    broker_session_timeout_ms: int = 6000
    broker_fence_on_refusal: bool = True
    replica_lag_max_bytes: int = -1
    replica_lag_time_max_ms: int = 10_000
    log_dir_stall_timeout_ms: int = 60_000
    log_cleaner_backoff_ms: int = 15_000
    log_cleaner_memory: int = 128 << 20
    log_cleaner_bytes_per_second: int = 64 << 20
    shutdown_timeout_ms: int = 30_000
    settings: Mapping[str, Setting] = field(default_factory=dict, compare=False, repr=False)

    def __post_init__(self) -> None:
        if problems := list(_cross_checks(self)):
            raise ConfigError(*problems, next_step=f"correct the above; `{self.role} config` prints every setting")


def _cross_checks(config: NodeConfig) -> Iterator[str]:
    yield from _check_identity(config)
    yield from _check_founding(config)
    yield from _check_listeners(config)
    if config.broker_session_timeout_ms < 2 * config.broker_heartbeat_interval_ms:
        yield (
            f"broker.session.timeout.ms = {config.broker_session_timeout_ms} must be at least twice "
            f"broker.heartbeat.interval.ms = {config.broker_heartbeat_interval_ms}"
        )
    if config.log_cleaner_bytes_per_second == 0:
        yield "log.cleaner.io.max.bytes.per.second = 0 would stop compaction; -1 means no limit"


def _check_identity(config: NodeConfig) -> Iterator[str]:
    if config.node_id == MISSING_ID:
        yield "--node-id is missing"
    if not config.data_dirs:
        yield "--data-dir is missing"
    if len(set(config.data_dirs)) != len(config.data_dirs):
        yield f"--data-dir names a directory twice: {','.join(config.data_dirs)}"
    limit = 1 if config.role == QUORUM_NODE else DATA_DIRS_MAX
    if len(config.data_dirs) > limit:
        yield f"--data-dir names {len(config.data_dirs)} directories, {config.role} takes at most {limit}"


def _check_founding(config: NodeConfig) -> Iterator[str]:
    """Check that the node finds or founds its cluster in one way.  A quorum node may also know its cluster already."""
    ways = [bool(config.standalone), bool(config.initial_voters), bool(config.bootstrap)]
    others = "--initial-voters or --join" if config.role == QUORUM_NODE else "--controllers, --initial-voters or --join"
    if sum(ways) > 1:
        yield f"give only one of --standalone, {others}"
    if sum(ways) == 0 and config.role == BROKER:  # a voter knows its cluster from its disk
        yield f"give one of --standalone, {others}"
    if len(config.bootstrap) > PROBE_ADDRESSES_MAX:
        yield f"{len(config.bootstrap)} addresses to join through; at most {PROBE_ADDRESSES_MAX} are permitted"
    voters = config.initial_voters
    if not voters:
        return
    if len(voters) > INITIAL_VOTERS_MAX:
        yield f"--initial-voters names {len(voters)} voters; at most {INITIAL_VOTERS_MAX} may found a cluster"
    ids = [voter.node_id for voter in voters]
    for node_id in sorted({node_id for node_id in ids if ids.count(node_id) > 1}):
        yield f"--initial-voters names node id {node_id} twice"
    addresses = [voter.address for voter in voters]
    for address in sorted({address for address in addresses if addresses.count(address) > 1}):
        yield f"--initial-voters names address {address} twice"
    loopbacks = [voter for voter in voters if voter.address.is_loopback]
    if loopbacks and len(loopbacks) != len(voters):
        names = ", ".join(map(str, loopbacks))
        yield f"--initial-voters mixes loopback addresses ({names}) with others: other hosts cannot reach them"
    own = [voter.address for voter in voters if voter.node_id == config.node_id]
    if not own and config.node_id >= 0:
        instead = "" if config.role == QUORUM_NODE else "; a broker that is not a voter takes --controllers"
        yield f"--initial-voters does not name this node ({config.node_id}): {','.join(map(str, voters))}{instead}"
    advertised = config.control_advertise or config.control_listen
    if own and not advertised.is_wildcard and advertised != own[0]:
        flag = _flag(config, "control.advertise")
        yield f"--initial-voters has {own[0]} for this node, but it would advertise {advertised} ({flag})"


def _check_listeners(config: NodeConfig) -> Iterator[str]:
    listeners = [("control.listen", config.control_listen)]
    listeners += [("kafka.listen", listener.listen) for listener in config.kafka_listeners]
    if config.http_listen is not None:
        listeners.append(("http.listen", config.http_listen))
    for position, (key, address) in enumerate(listeners):
        for other_key, other in listeners[:position]:
            if address.collides_with(other):
                yield f"{_flag(config, key)} {address} and {_flag(config, other_key)} {other} need the same port"
    advertised: list[tuple[str, str, Address, Address | None]] = [
        ("control.advertise", "control.listen", config.control_listen, config.control_advertise)
    ]
    for listener in config.kafka_listeners:
        advertised.append(("kafka.advertise", "kafka.listen", listener.listen, listener.advertise))
    for key, listen_key, listen, advertise in advertised:
        if advertise is None and listen.is_wildcard:
            yield (
                f"{_flag(config, listen_key)} {listen} listens on every interface; "
                f"set the address for others with {_flag(config, key)} HOST:PORT"
            )
        if advertise is not None and advertise.is_wildcard:
            yield f"{_flag(config, key)} {advertise}: a wildcard is not an address to connect to"
        if advertise is not None and advertise.port == 0:
            yield f"{_flag(config, key)} {advertise}: port 0 is not a port to connect to"
    control = config.control_advertise or config.control_listen
    remote = [address for address in config.bootstrap if not address.is_loopback]
    if control.is_loopback and remote:
        yield (
            f"{_flag(config, 'control.advertise')} {control} is a loopback address, "
            f"but the cluster is on other hosts ({remote[0]}), which cannot reach this node"
        )
    if config.role == BROKER:
        names = [listener.name for listener in config.kafka_listeners]
        if not names:
            yield "kafka.listen is empty: a broker needs a listener"
        elif config.inter_broker_listener not in names:
            yield f"--inter-broker {config.inter_broker_listener} is not a listener ({', '.join(names)})"


def _flag(config: NodeConfig, key: str) -> str:
    flag = next(entry for entry in KEYS if entry.name == key).flag(config.role)
    return flag or key


def add_arguments(parser: argparse.ArgumentParser, role: str) -> None:
    """Add the flags of `role` to an argparse parser.  `load` parses their texts later and reports all problems."""
    for key in KEYS:
        if (flag := key.flag(role)) is None:
            continue
        default = "" if key.default in (None, ()) else f" (default {render(key.default)})"
        help_text = f"{key.help}{default}; key {key.name}".replace("%", "%%")
        if key.kind is BOOLEAN:
            parser.add_argument(flag, dest=key.name, action="store_const", const=["true"], default=None, help=help_text)
        else:
            parser.add_argument(flag, dest=key.name, action="append", metavar=key.kind.shown, help=help_text)
    parser.add_argument("--config", metavar="FILE.toml", help="read settings from a TOML file")
    parser.add_argument(
        "--set", dest="assignments", action="append", default=[], metavar="key=value", help="set any key"
    )


def load(role: str, arguments: argparse.Namespace, environ: Mapping[str, str]) -> NodeConfig:
    """Return the configuration from parsed arguments (see `add_arguments`), environment, file and defaults.

    Raises:
        ConfigError: all problems together, each with its source.
    """
    settings, config = gather(role, arguments, environ)
    settings.check()
    assert config is not None
    return config


def gather(role: str, arguments: argparse.Namespace, environ: Mapping[str, str]) -> tuple[Settings, NodeConfig | None]:
    """Load as `load` does, but return problems as `settings.problems` instead of raising them.

    The settings contain every value that is readable.  If there are problems, the config is None.
    """
    settings = Settings(KEYS, role, RECORD_KEYS)
    if arguments.config is not None:
        settings.add_file(arguments.config)
    settings.add_environment(environ)
    settings.add_assignments(arguments.assignments)
    for key in KEYS:
        flag = key.flag(role)
        if flag is not None and (texts := getattr(arguments, key.name)) is not None:
            settings.add_flag(key, flag, texts)
    _fill_standalone(settings, role, environ)
    listeners = _listeners(settings, role)
    try:
        config = _build(role, settings, listeners)
    except ConfigError as error:
        settings.problems.extend(error.problems)
        return settings, None
    return settings, None if settings.problems else config


def _fill_standalone(settings: Settings, role: str, environ: Mapping[str, str]) -> None:
    """Set the defaults of a standalone broker, which needs no other flag."""
    values = settings.values
    if role != BROKER or not values["quorum.standalone"].value:
        return
    if not values["data.dirs"].value:
        try:
            values["data.dirs"] = Setting((str(paths.standalone_dir(environ)),), "default of --standalone")
        except ConfigError as error:
            settings.refused.add("data.dirs")
            settings.problems.append(f"--data-dir is missing: {error.message}; {error.next_step}")
    if values["node.id"].value is None:
        values["node.id"] = Setting(STANDALONE_NODE_ID, "default of --standalone")


def _listeners(settings: Settings, role: str) -> tuple[KafkaListener, ...]:
    """Pair each `kafka.listen` with the `kafka.advertise` of the same name."""
    if role != BROKER:
        return ()
    listen: tuple[NamedAddress, ...] = settings.values["kafka.listen"].value
    advertise: tuple[NamedAddress, ...] = settings.values["kafka.advertise"].value
    for key, entries in (("kafka.listen", listen), ("kafka.advertise", advertise)):
        names = [entry.name for entry in entries]
        for name in sorted({name for name in names if names.count(name) > 1}):
            settings.problems.append(f"{key} names listener {name} twice; use different names, NAME=HOST:PORT")
    if len(listen) > LISTENERS_MAX:
        settings.problems.append(f"kafka.listen has {len(listen)} listeners; at most {LISTENERS_MAX} are permitted")
    known = {entry.name for entry in listen}
    for entry in advertise:
        if entry.name not in known:
            settings.problems.append(
                f"kafka.advertise {entry} is not a listener ({', '.join(sorted(known)) or 'none exists'})"
            )
    advertised = dict(advertise)
    return tuple(KafkaListener(entry.name, entry.address, advertised.get(entry.name)) for entry in listen)


def _build(role: str, settings: Settings, listeners: tuple[KafkaListener, ...]) -> NodeConfig:
    values: dict[str, Any] = {name: setting.value for name, setting in settings.values.items()}
    inter_broker = values.get("kafka.inter.broker") or (listeners[0].name if listeners else DEFAULT_LISTENER)
    data_dirs = values["data.dirs"]
    if values["node.id"] is None and "node.id" in settings.refused:  # already reported, so not also "missing"
        values["node.id"] = REFUSED_ID
    if not data_dirs and "data.dirs" in settings.refused:
        data_dirs = (".",)
    if values.get("quorum.controllers") and values["quorum.join"]:
        settings.problems.append("give only one of --controllers and --join")
    return NodeConfig(
        role=role,
        node_id=MISSING_ID if values["node.id"] is None else values["node.id"],
        data_dirs=data_dirs,
        cluster_id=values["cluster.id"],
        standalone=values["quorum.standalone"],
        initial_voters=values["quorum.initial.voters"],
        bootstrap=values["quorum.join"] or values.get("quorum.controllers", ()),
        control_listen=values["control.listen"],
        control_advertise=values["control.advertise"],
        kafka_listeners=listeners,
        inter_broker_listener=inter_broker,
        rack=values.get("broker.rack"),
        http_listen=values["http.listen"],
        log_format=values["logging.format"],
        log_level=values["logging.level"],
        log_loop_held_ms=values["logging.loop.held.ms"],
        quorum_election_timeout_ms=values["quorum.election.timeout.ms"],
        quorum_fetch_timeout_ms=values["quorum.fetch.timeout.ms"],
        quorum_append_linger_ms=values["quorum.append.linger.ms"],
        metadata_snapshot_log_bytes=values["metadata.snapshot.log.bytes"],
        metadata_snapshot_interval_ms=values["metadata.snapshot.interval.ms"],
        quorum_auto_join=values["quorum.auto.join"],
        quorum_leave_on_shutdown=values["quorum.leave.on.shutdown"],
        quorum_preference_wait_ms=values["quorum.preference.wait.ms"],
        broker_heartbeat_interval_ms=values["broker.heartbeat.interval.ms"],
        broker_session_timeout_ms=values["broker.session.timeout.ms"],
        broker_fence_on_refusal=values["broker.fence.on.refusal"],
        replica_lag_max_bytes=values.get("replica.lag.max.bytes", -1),
        replica_lag_time_max_ms=values.get("replica.lag.time.max.ms", 10_000),
        log_dir_stall_timeout_ms=values.get("log.dir.stall.timeout.ms", 60_000),
        log_cleaner_backoff_ms=values.get("log.cleaner.backoff.ms", 15_000),
        log_cleaner_memory=values.get("log.cleaner.dedupe.buffer.size", 128 << 20),
        log_cleaner_bytes_per_second=values.get("log.cleaner.io.max.bytes.per.second", 64 << 20),
        shutdown_timeout_ms=values["shutdown.timeout.ms"],
        settings=dict(settings.values),
    )
