"""The production code in virtual time, on a simulated loop, network, store and disk.

- `kernel`: an asyncio loop whose clock jumps to the next event; a network that carries the quorum's requests and TCP
  streams; stores and disks that keep what is durable apart from what was only written, and lose the latter in a crash;
  faults, mutants and shrinking.
- `quorum` attacks the quorum alone.
- `cluster` attacks whole clusters of voters and brokers.

Everything random comes from one seed, so a failure is a seed, and a seed replays in any process.
"""
