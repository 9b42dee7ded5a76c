"""Unmodified Kafka clients and command-line tools against a fresh cluster: what works, and what does not.

    python -m tests.clients                     # all programs against 3 voters and 3 brokers of quorumlog
    python -m tests.clients --peer kafka        # the same against Apache Kafka, so that each failure can be attributed
    python -m tests.clients --program kcat --row produce

Each client has a small program below `programs`, in the client's own language.  A program performs one action, which it
gets as JSON in its only argument, and prints what it did and saw as JSON lines; `rows.py` and `groups.py` start the
programs and check these lines, and read and write the same records with another client.  `tools.py` runs the
command-line tools of Apache Kafka and checks their output; its rows may kill brokers and start them again.  Builds and
downloads go to `.dev/clients`.

With `--update` a run stores its rows in `results`, and writes docs/clients.md.  `reasons.py` gives the reason for each
row that does not pass.

The actions of a program, and the events that it prints:

- `produce` writes `count` records (see `records.py`) to partition 0 of `topic`, with `compression`, or `idempotent`:
  `produced` with `offsets`, and with `fields`, those that the client can set.
- `consume` assigns itself partition 0 of `topic` and reads `count` records, from the `beginning`, the `end` or a
  `timestamp`: `positioned`, then `record` for each.
- `member` joins `group` for `topic` by `strategy`, and commits after each poll, until its input ends: `assigned`
  when its partitions change, `record` for each, at last `closed`.
- `admin` creates, describes, alters and deletes (see `rows.ADMIN`): `saw` with `aspect` and `value`.
- `transact` commits, aborts, and sends offsets in a transaction (see `rows._transactions`): `done`.
- `share` joins the share group `group` for `topic`, and to `work` acknowledges each record, or to `hold` none:
  `record` for each, `committed` for each acknowledgement, at last `closed`.
- `hold`, of confluent-kafka only, keeps a transaction with one record open: `open`.

Each program first prints `version`.  `unsupported`, with a `reason`, means that the client has no such feature.
"""
