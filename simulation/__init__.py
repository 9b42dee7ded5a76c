"""The production code in virtual time, on a simulated loop, network, store and disk.

- `kernel`: an asyncio loop whose clock jumps to the next event; a network that carries the quorum's requests and TCP
  streams; stores and disks that separate durable data from data that was only written, and lose the latter in a crash;
  faults, mutants and shrinking.
- `quorum` attacks the quorum alone.
- `cluster` attacks whole clusters of voters and brokers.

All random choices come from one seed, so the seed identifies a failure and replays it in any process.
"""
