"""Disks whose contents differ from the data that was written: changed bytes, and restored backups.

**Bit rot** changes a byte of a segment, an index, a producer snapshot, or a log's checkpoint, which is a fact of the
disk.  In segments, it changes only batches below the last saved watermark.  After a crash, damage above that watermark
looks like an incomplete append, which is a documented limit.  In the segments of a running broker, it changes only
bytes that this process has neither written nor read, because the others are in memory.  It affects only one broker of a
run, and every acknowledgement needs two replicas, so no record may be missing.

**A backup** is a snapshot of a broker's data directories.  It is restored while the broker is down, under the same
directory ids.
"""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import NamedTuple

from broker.log import LogKey, PartitionLog
from broker.log.segment import Segment
from broker.log.state import watermark_fact
from broker.log.types import LOGS, parse_folder_name
from quorumlog.wire.record_batch import BatchHeader, iter_headers
from simulation.cluster.nodes import Host
from simulation.cluster.world import ClusterWorld
from simulation.kernel.disk import SimulatedDisk, SimulatedFile
from simulation.kernel.faults import Action, Fault, FaultInjector

CHECKPOINT = "checkpoint"
KINDS = ("log", "log", "log", "index", "producers", CHECKPOINT)
"""Suffixes of files, and checkpoints.  Segments are chosen most often."""
IN_HEADER = 0.2
"""Probability that the byte is in the part of a batch that the checksum does not cover."""
CHECKSUM_FROM = 21
ORDERLY_S = 3.0


class Place(NamedTuple):
    """Bytes that may change, from `first` to `end` in a file or in the value of a fact.

    where: the file, or the key of the fact.
    """

    disk: SimulatedDisk
    key: LogKey
    where: SimulatedFile | str
    first: int
    end: int


class BadDisks:
    """The `actions` of faults that change the contents of disks."""

    def __init__(self, world: ClusterWorld, injector: FaultInjector) -> None:
        self._world = world
        self._injector = injector
        self.actions: dict[str, Action] = {"bit rot": self._rot, "backup": self._backup}

    async def _rot(self, fault: Fault) -> None:
        """Change a byte while the broker runs, or stop the broker and change a byte while it is down."""
        world, node_id = self._world, fault.nodes[0]
        host, random = world.hosts[node_id], Random(f"rot {world.plan.seed} {fault.number}")
        if random.random() < 0.4 and host.process is not None and self._strike(host, random):
            return
        await self._stop(host, random)
        await self._injector.wait(fault.length_s / 2)
        self._strike(host, random)
        await self._injector.wait(fault.length_s / 2)
        self._start(host)

    async def _backup(self, fault: Fault) -> None:
        """Restore the first directory, or all directories, to their contents at the beginning of the fault."""
        world, node_id = self._world, fault.nodes[0]
        host, random = world.hosts[node_id], Random(f"backup {world.plan.seed} {fault.number}")
        chosen = host.disks if random.random() < 0.5 else host.disks[:1]
        kept = [(disk, disk.image(), world.watch.disks.durable_ends(node_id, disk.directory_id)) for disk in chosen]
        await self._injector.wait(random.uniform(0.3, 3.0))
        await self._stop(host, random)
        for disk, image, ends in kept:
            world.watch.disks.restored(node_id, disk.directory_id, ends)
            disk.restore(image)
        world.note(f"{host.name} has {len(kept)} disks from a backup")
        await self._injector.wait(fault.length_s)
        self._start(host)

    async def _stop(self, host: Host, random: Random) -> None:
        """End the broker's process in an orderly way, by a kill, or by a power failure, and keep it down."""
        node_id = host.config.node_id
        way = random.choice(("orderly", "kill", "power"))
        if way == "orderly" and host.process is not None:
            host.stop.set()
            await self._injector.wait(ORDERLY_S)
        host.down += 1
        self._world.bring_down(node_id, power=way == "power")

    def _start(self, host: Host) -> None:
        host.down -= 1
        self._world.bring_up(host.config.node_id)

    # Bit rot

    def _strike(self, host: Host, random: Random) -> bool:
        """Change a byte somewhere.  Return False if no byte may change."""
        places: dict[str, list[Place]] = {}
        for kind, place in self._places(host, random.random() < IN_HEADER):
            places.setdefault(kind, []).append(place)
        if not places:
            return False
        kind = random.choice([one for one in KINDS if one in places])
        place = random.choice(places[kind])
        position, mask = random.randrange(place.first, place.end), random.randrange(1, 256)
        if isinstance(place.where, str):
            place.disk.rot_fact(place.where, position, mask)
        else:
            place.where.rot(position, mask)
        watch = self._world.watch
        watch.seen[f"rot in a {kind}"] += 1
        if kind in ("log", CHECKPOINT):
            watch.evidence.damaged.add((host.config.node_id, place.key))
        where = place.where if isinstance(place.where, str) else place.where.path
        state = "down" if host.process is None else "running"
        self._world.note(f"ROT {host.name} ({state}) {where} at {position}, bits {mask:02x}")
        return True

    def _places(self, host: Host, in_header: bool) -> Iterator[tuple[str, Place]]:
        for disk in host.disks:
            for file in disk.files_in(LOGS):
                _, folder, name = file.path.split("/")
                identity = parse_folder_name(folder)
                kind = name.rpartition(".")[2]
                if identity is None or not file.size:
                    continue
                key = identity[0]
                if kind != "log":
                    yield kind, Place(disk, key, file, 0, file.size)
                    continue
                for position, header in self._protected_batches(host, disk, key, file):
                    middle, end = position + CHECKSUM_FROM, position + header.size
                    yield kind, Place(disk, key, file, *((position, middle) if in_header else (middle, end)))
            for fact, value in disk.facts.load("log/").items():
                if (identity := parse_folder_name(fact.removeprefix("log/"))) is not None:
                    yield CHECKPOINT, Place(disk, identity[0], fact, 0, len(value))

    def _protected_batches(
        self, host: Host, disk: SimulatedDisk, key: LogKey, file: SimulatedFile
    ) -> Iterator[tuple[int, BatchHeader]]:
        """Yield the batches in which the product promises to find damage."""
        watermark = disk.facts.load(watermark_fact(key)).get(watermark_fact(key), b"0")
        log = None if host.broker is None else host.broker.role.logs.get(key)
        segment = None if log is None else _segment(log, file.path)
        if host.process is not None and segment is None:
            return
        for position, header in iter_headers(bytes(file.flushed)):
            if header.end_offset > int(watermark) or bytes(file.content[: len(file.flushed)]) != file.flushed:
                return
            if segment is None or not _is_known(segment, position, position + header.size):
                yield position, header


def _segment(log: PartitionLog, path: str) -> Segment | None:
    return next((one for one in log.segments if one.path == path), None)


def _is_known(segment: Segment, start: int, end: int) -> bool:
    """Return whether the process has written these bytes, or has read and checked some of them."""
    low, high = segment._checked
    return end > segment._appended_from or (start < high and low < end)
