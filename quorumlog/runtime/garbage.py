"""Settings of the garbage collector for processes in which it costs more than it frees.

Servers mostly hold metadata and logs, which live long, form no cycles, and are freed by reference counting alone.  A
full collection walks all of it without finding garbage, and everything else waits meanwhile.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

from quorumlog.runtime.clock import elapsed_s

PAUSE_MAX_S = 0.02
"""After a full collection that took longer than this, later collections skip the objects that survived it."""


@contextmanager
def short_pauses() -> Iterator[None]:
    """Prevent repeated long collections, for the life of a server.

    Objects that survive a long collection count as permanent from then on.  If a cycle among them is dropped later, its
    memory is not freed.  The loss is small: the next long collection comes only after the process has grown by about
    100,000 objects.  It keeps at most the cycles among the requests and tasks of that moment.  (Without this, a million
    partitions caused repeated pauses of 150 to 200 ms.)
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


def keep_loaded() -> None:
    """Treat all existing objects, mostly modules, as permanent.  Call it once everything is loaded.

    Otherwise the first full collection walks them while requests wait (60 to 230 ms in a broker).
    """
    gc.freeze()


@contextmanager
def made_to_last() -> Iterator[None]:
    """Disable the collector while very many long-lived objects without cycles are created.

    During the block, each full collection would walk all objects so far.  (For an image of a million partitions in
    100,000 topics: 7.8 s and pauses of 300 ms with the collector, 3.6 s and 6 ms without.)  Afterwards, the objects
    count as permanent and are freed by reference counting alone.  If the collector is already off, for example in
    another such block, the block changes nothing.
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
