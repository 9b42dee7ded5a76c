"""The garbage collector, where it costs more than it frees.

What servers hold most of, metadata and logs, lives long and forms no cycles, and is freed when nothing refers to it any
more, collector or not.  A full collection walks all of it for nothing, and everything else waits meanwhile.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

from quorumlog.runtime.clock import elapsed_s

PAUSE_MAX_S = 0.02
"""A full collection that took longer is the last one to walk what it left."""


@contextmanager
def short_pauses() -> Iterator[None]:
    """For the life of a server: no long collection happens twice.

    What one that took long has left is in use, and counts as permanent from then on.  If a cycle among it is dropped
    later, that memory is not had back: as little as requests and tasks have under way at one moment, once for each
    growth by some 100,000 objects.  (Measured, a million partitions: pauses of 150 to 200 ms, again and again, without
    this.)
    """
    began = 0.0

    def watch(phase: str, info: dict[str, int]) -> None:
        nonlocal began
        if info["generation"] < 2:
            return
        if phase == "start":
            began = elapsed_s()
        elif elapsed_s() - began > PAUSE_MAX_S:
            gc.freeze()

    gc.callbacks.append(watch)
    try:
        yield
    finally:
        gc.callbacks.remove(watch)


@contextmanager
def made_to_last() -> Iterator[None]:
    """For making very many objects that live long and form no cycles: the collector does not look through them.

    Not meanwhile: each full collection walks all that there is so far (measured for an image of a million partitions in
    100,000 topics: 7.8 s with pauses of 300 ms, without it 3.6 s and 6 ms).  And not afterwards: what is there at the
    end counts as permanent, and is freed only when nothing refers to it any more.  Of two that overlap the first one to
    begin decides.  Nothing happens where the collector is off.
    """
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
        gc.freeze()
    finally:
        gc.enable()
