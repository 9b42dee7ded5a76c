"""Example command lines for the help of each group; a test checks that they parse."""

from __future__ import annotations

EXAMPLES: dict[str, tuple[str, ...]] = {
    "kctl": (
        "kctl dev up",
        "kctl --controllers node-1:9093,node-2:9093 quorum status",
        "kctl topics create orders --partitions 6 --replication-factor 3",
        "kctl produce orders lines.txt",
        "kctl consume orders --from beginning --exit-at-end",
        "kctl doctor",
    ),
    "kctl brokers": (
        "kctl brokers list",
        "kctl brokers describe 11",
        "kctl brokers moves --broker 11",
        "kctl brokers unregister 11 --dry-run",
        "kctl brokers purge-strays --broker 11 --dry-run",
    ),
    "kctl cluster": (
        "kctl cluster health",
        "kctl cluster health --exit-when-healthy --timeout 60",
        "kctl cluster health --watch -o json",
    ),
    "kctl configs": (
        "kctl configs get --topic orders",
        "kctl configs get retention.ms --cluster",
        "kctl configs set retention.ms=86400000 --topic orders",
        "kctl configs set cordoned=true --broker 11",
        "kctl configs set share.auto.offset.reset=earliest --group mailers",
        "kctl configs unset retention.ms --topic orders",
    ),
    "kctl dev": (
        "kctl dev up --voters 3 --brokers 3",
        "kctl dev status",
        "kctl dev down",
    ),
    "kctl features": (
        "kctl features describe",
        "kctl features upgrade --dry-run",
        "kctl features upgrade --wait",
    ),
    "kctl groups": (
        "kctl groups list --state stable",
        "kctl groups describe billing",
        "kctl groups lag billing --follow",
        "kctl groups explain billing",
        "kctl groups reset-offsets billing --topic orders:0,1 --to-earliest --dry-run",
        "kctl groups reset-offsets billing --all-topics --by-duration 1h30m",
        "kctl groups lag billing -o json > offsets.json",
        "kctl groups delete-offsets billing orders",
        "kctl groups delete billing --yes",
    ),
    "kctl metadata": (
        "kctl metadata tail --from beginning --exit-at-end",
        "kctl metadata at 120",
        "kctl metadata diff 100 120",
        "kctl metadata dump /var/lib/quorumlog/1",
    ),
    "kctl preferred-controllers": (
        "kctl preferred-controllers show",
        "kctl preferred-controllers set 3,1",
        "kctl preferred-controllers set --auto",
        "kctl preferred-controllers clear",
    ),
    "kctl quorum": (
        "kctl quorum status",
        "kctl quorum replication -o json",
    ),
    "kctl reassign": (
        "kctl reassign generate --topic orders --brokers 11,12,13 > plan.json",
        "kctl reassign start --plan plan.json --throttle 50M --wait",
        "kctl reassign status",
        "kctl reassign verify --plan plan.json",
        "kctl reassign cancel --topic orders",
    ),
    "kctl topics": (
        "kctl topics create orders --partitions 6 --replication-factor 3",
        "kctl topics create events --config retention.ms=86400000",
        "kctl topics describe orders",
        "kctl topics add-partitions orders --to 12 --wait",
        "kctl topics delete orders --yes",
    ),
    "kctl transactions": (
        "kctl transactions list --state ongoing --longer-than 5m",
        "kctl transactions list --pattern 'billing-.*'",
        "kctl transactions describe billing-1",
        "kctl transactions find-hanging --topic orders",
        "kctl transactions abort billing-1 --dry-run",
        "kctl transactions abort --topic orders --partition 0 --start-offset 42 --yes",
    ),
}
"""Examples by the path of the group."""
