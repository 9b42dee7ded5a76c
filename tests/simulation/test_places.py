"""The places in which a replica may be at the next start of its broker, as the judge remembers them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from broker.log import LogKey
from simulation.cluster.evidence import Evidence
from simulation.cluster.places import PlaceWatch
from simulation.kernel.violation import Violation

KEY = LogKey(UUID(int=1), 0, 5)
A, B, C = (UUID(int=number) for number in (10, 11, 12))


def ends(watch: PlaceWatch, *, seen_in: UUID | None, failed: set[UUID], has_records: bool = True) -> frozenset[UUID]:
    """End a process that saw the replica in a directory, or did not see it; return where the replica may be now."""
    logs = {} if seen_in is None else {KEY: SimpleNamespace(directory_id=seen_in, folder="logs/t-0")}
    disk = SimpleNamespace(exists=lambda folder: has_records)
    manager = SimpleNamespace(
        logs=logs,
        get=logs.get,
        failed_disks=dict.fromkeys(failed),
        moves=SimpleNamespace(_move=None),
        _directories={each: SimpleNamespace(failure=each if each in failed else None, disk=disk) for each in (A, B, C)},
    )
    run: Any = SimpleNamespace(recovered=True, node_id=1, context=SimpleNamespace(logs=manager))
    watch.ended(run)
    return watch._places[1].get(KEY, frozenset())


def watching(*places: UUID) -> PlaceWatch:
    watch = PlaceWatch(Evidence(frozenset(), {}))
    watch._places[1] = {KEY: frozenset(places)}
    return watch


def test_a_replica_that_was_not_seen_may_be_in_either_directory_while_one_is_offline() -> None:
    assert ends(watching(A, B), seen_in=None, failed={A}) == {A, B}


def test_a_replica_that_was_seen_may_have_another_copy_only_in_a_directory_that_is_offline() -> None:
    assert ends(watching(A, B), seen_in=C, failed={A}) == {A, C}
    assert ends(watching(A, B), seen_in=B, failed=set()) == {B}


def test_a_replica_that_was_not_seen_in_any_working_directory_has_no_place() -> None:
    assert ends(watching(A, B), seen_in=None, failed=set()) == frozenset()


def test_a_replica_without_records_has_no_place() -> None:
    assert ends(watching(), seen_in=A, failed=set(), has_records=False) == frozenset()
    assert ends(watching(A), seen_in=A, failed={A}, has_records=False) == {A}


def finds(watch: PlaceWatch, *, good: set[UUID], damaged: set[UUID]) -> None:
    """Start a process that finds two copies of the replica."""
    manager = SimpleNamespace(
        doubles={KEY: dict.fromkeys(good)},
        _failed_folders={KEY: [(SimpleNamespace(id=directory_id), "folder") for directory_id in damaged]},
        failed_disks={},
        get={}.get,
    )
    run: Any = SimpleNamespace(node_id=1, context=SimpleNamespace(logs=manager))
    watch.check_recovered(run)


@pytest.mark.parametrize(("good", "damaged"), [({A, B}, set()), ({B}, {A})])
def test_two_copies_are_permitted_only_after_one_of_their_directories_was_offline(
    good: set[UUID], damaged: set[UUID]
) -> None:
    watch = watching()
    watch._failed[1].add(A)
    finds(watch, good=good, damaged=damaged)

    watch = watching()
    watch._failed[1].add(C)
    with pytest.raises(Violation, match=r"^D3: 1 has "):
        finds(watch, good=good, damaged=damaged)
