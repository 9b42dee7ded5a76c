"""Virtual time: the production code on a loop, network, store and disk that are made of nothing.

`loop.py` is an asyncio event loop whose clock jumps to the next thing that happens; `network.py` carries the quorum's
requests and the brokers' TCP streams; `store.py` and `disk.py` keep what was made durable apart from what was only
written, and lose the latter in a crash; `world.py` starts, kills and restarts whole nodes.  Everything random comes
from one seed, so a failure is a seed, and a seed replays in any process.
"""
