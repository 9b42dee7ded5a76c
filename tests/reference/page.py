"""The text of docs/reference.md: sections with their introductions and tables."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from tests.reference import configs
from tests.reference.apis import requests
from tests.reference.errors import errors, further_codes
from tests.reference.limits import limits, numbers
from tests.reference.metrics import broker_metrics, metrics, node_metrics
from tests.reference.settings import settings

PAGE: Final = Path(__file__).resolve().parents[2] / "docs" / "reference.md"

_INTRODUCTION: Final = """\
# Reference

This page lists all settings, configs, metrics, errors and Kafka requests, and the limits that clients and operators may
reach. The other pages explain their use.
The command `python -m tests.reference` makes this page from the code, and a test compares it with the code.

| section | contents |
|---|---|
| [Settings of a node](#settings-of-a-node) | keys, flags and environment variables of `quorum-node` and `broker` |
| [Configs of topics](#configs-of-topics) | what `kctl configs --topic` shows and changes while the cluster runs |
| [Configs of the cluster](#configs-of-the-cluster) | what `kctl configs --cluster` shows and changes |
| [Configs of brokers](#configs-of-brokers), [of groups](#configs-of-groups) | the same with `--broker` and `--group` |
| [Metrics](#metrics) | the contents of `/metrics` |
| [Errors](#errors) | names, numbers of Kafka, exit codes of `kctl` |
| [Limits](#limits) | fixed limits, and what happens when they are reached |
| [Kafka requests](#kafka-requests) | the requests and versions that a broker serves |
"""

_SETTINGS: Final = """\
## Settings of a node

Each process reads its settings once, at its start. They may differ from node to node. A setting has up to five
sources: a flag, `--set KEY=VALUE`, an environment variable, a TOML file (`--config FILE`), and its default. A source
replaces the sources after it in this list. Keys without a flag are set by `--set`, a variable or a file. `quorum-node
config` and `broker config` print each setting with its source.

- A list in a flag or a variable has commas between its items. In a file, it may also be an array of strings.
- A flag for `true` or `false` has no value: it means `true`.
- `broker run --standalone` needs no other setting: its data directory is then `~/.local/share/quorumlog/standalone`,
  and its id is 1.
- Without `control.advertise` or `kafka.advertise`, a node advertises the address on which it listens. A node that
  listens on all interfaces, such as 0.0.0.0, does not start without them.
- Without `kafka.inter.broker`, brokers use the first listener of `kafka.listen` among themselves.
- `broker.session.timeout.ms` must be at least twice `broker.heartbeat.interval.ms`.
- `log.cleaner.io.max.bytes.per.second` may not be 0.
"""

_TOPICS: Final = """\
## Configs of topics

Configs are records in the metadata. A change applies while the cluster runs. `kctl configs set KEY=VALUE --topic TOPIC`
sets a config of one topic. With `--cluster` instead of `--topic`, the value applies to all topics without a value of
their own. `kctl configs get` shows values, sources and permitted values.
"""

_IGNORED: Final = """\
### Configs that are accepted without effect

Scripts for Kafka may set these configs. They are stored and shown, and have no effect.
"""

_CLUSTER: Final = """\
## Configs of the cluster

`kctl configs set KEY=VALUE --cluster` sets these configs. They have one value for the whole cluster. The configs of
topics can be set in the same way, as defaults.
"""

_BROKERS: Final = """\
## Configs of brokers

`kctl configs set KEY=VALUE --broker ID` sets these configs of one broker. They are not settings of its process.
"""

_GROUPS: Final = """\
## Configs of groups

`kctl configs set KEY=VALUE --group GROUP` sets these configs of one [consumer or share
group](groups.md#configs-of-single-groups). They need level 2 of `metadata.version`. A group without a value of its own
has the value of the cluster's config in the fourth column. The ranges in this table are those of a cluster with default
configs. `group.consumer.min.…`, `group.consumer.max.…`, `group.share.min.…` and `group.share.max.…` of the cluster
change them.
"""

_METRICS: Final = """\
## Metrics

Each process serves these metrics for Prometheus at `/metrics` of its `http.listen` address ([Metrics and
probes](operations.md#metrics-and-probes)). A counter starts at 0 when its process starts. A histogram has the series
`…_bucket`, `…_sum` and `…_count`. A metric without a value at a moment, such as the leader while there is none, is
missing from the answer.

### Metrics of every node
"""

_BROKER_METRICS: Final = """\
### Further metrics of a broker
"""

_ERRORS: Final = """\
## Errors

Messages of `kctl`, answers of the [control plane](protocol.md#errors), log lines and JSON name these errors.

- **number**: the number that Kafka clients receive. For an error that Kafka does not have, this is the number of the
  error in brackets; "none" stands for -1 (UNKNOWN_SERVER_ERROR).
- **retriable**: the same request may succeed later, or at another node. This applies to answers of the control plane.
  Kafka's clients decide by the number, as Kafka defines it.
- **exit code** of `kctl`: with "4 or 5", it is 4 if the error that occurred is retriable, and otherwise 5.
"""

_FURTHER_CODES: Final = """\
### Further errors of brokers

Answers of brokers may also contain these errors, with the meanings that they have in Kafka. Only brokers of Apache
Kafka send GROUP_AUTHORIZATION_FAILED and TRANSACTIONAL_ID_AUTHORIZATION_FAILED.
"""

_LIMITS: Final = """\
## Limits

These limits are fixed. Limits that a setting or a config determines are in the tables above. The names are those of the
fields in the code. A text may also name a class of the code whose docstring explains more.

### Names and numbers
"""

_LISTENER: Final = """\
### Kafka listeners

A client notices most of these limits only by a closed connection. The metrics
`quorumlog_broker_connections_refused_total` and `quorumlog_broker_connections_evicted_total` count connections that
were closed because there were too many.
"""

_REPLICAS: Final = """\
### Fetches, produces and replicas

A *fetcher* is the part of a broker that copies records from leaders. Fetches are *parked* while they wait for new
records, and produces while they wait for a flush or for replication.
"""

_COMPACTION: Final = """\
### Compaction
"""

_COORDINATORS: Final = """\
### Coordinators

These limits apply to the coordinators of groups, transactions and share groups in one broker. A *call* is a request
that a coordinator answers. A *letter* is a [dead letter](shares.md#dead-letter-topics) of a share group.
"""

_OF_GROUPS: Final = """\
### Groups

One coordinator is responsible for all groups in one partition of `__consumer_offsets`. `groups_max` and `offsets_max`
limit all its groups together.
"""

_SHARE_STATES: Final = """\
### Share coordinators

One share coordinator is responsible for all share partitions in one partition of `__share_group_state`.
"""

_TRANSACTIONS: Final = """\
### Transactions and scopes

One coordinator is responsible for all transactional ids and scopes in one partition of `__transaction_state`.
"""

_REQUESTS: Final = """\
## Kafka requests

A broker serves these requests of the Kafka protocol. It closes a connection that sends another request or version,
except for ApiVersions, which answers any version. `kafka-broker-api-versions` shows the same list for a running broker.
"""


def page() -> str:
    return "\n".join(
        (
            _INTRODUCTION,
            _SETTINGS,
            settings(),
            _TOPICS,
            configs.effective("topics"),
            _IGNORED,
            configs.without_effect(),
            _CLUSTER,
            configs.effective("cluster"),
            _BROKERS,
            configs.effective("brokers"),
            _GROUPS,
            configs.of_groups(),
            _METRICS,
            metrics(node_metrics()),
            _BROKER_METRICS,
            metrics(broker_metrics()),
            _ERRORS,
            errors(),
            _FURTHER_CODES,
            further_codes(),
            _LIMITS,
            numbers(),
            _LISTENER,
            limits("listener"),
            _REPLICAS,
            limits("replicas"),
            _COMPACTION,
            limits("compaction"),
            _COORDINATORS,
            limits("coordinators"),
            _OF_GROUPS,
            limits("groups"),
            _SHARE_STATES,
            limits("share states"),
            _TRANSACTIONS,
            limits("transactions"),
            _REQUESTS,
            requests(),
        )
    )
