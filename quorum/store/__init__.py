"""The durable half of a quorum node: one SQLite database in a directory of its own."""

from quorum.store.sqlite import SqliteQuorumStore

__all__ = ["SqliteQuorumStore"]
