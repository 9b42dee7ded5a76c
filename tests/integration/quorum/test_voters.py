"""Voters are added, removed and replaced through kctl while a cluster of real processes runs."""

from __future__ import annotations

import shutil
from pathlib import Path

from quorumlog.kctl import processes
from tests.integration.quorum.clusters import kctl, kill, node_of, quorum_is, running, start, voter_ids
from tests.integration.quorum.load import under_load
from tests.integration.quorum.test_orchestrated import says


async def test_a_quorum_grows_and_shrinks_by_kctl(tmp_path: Path) -> None:
    async with running(tmp_path, voters=1, joining=2) as cluster:
        for node_id in (2, 3):
            node = node_of(cluster, node_id)
            await says(node, "follows as an observer: it does not vote")
            await says(node, f"kctl add-voter {node_id}@{node.control}")
            code, planned = await kctl(
                cluster, "add-voter", f"{node_id}@{node_of(cluster, node_id).control}", "--dry-run"
            )
            assert (code, planned["changed"]) == (0, False), planned
            code, added = await kctl(cluster, "add-voter", f"{node_id}@{node_of(cluster, node_id).control}")
            assert (code, added["changed"]) == (0, True), added
            assert node_id in [voter["id"] for voter in added["voters"]]
        code, again = await kctl(cluster, "add-voter", f"3@{node_of(cluster, 3).control}")
        assert (code, again["changed"]) == (0, False), "adding a voter again succeeds with changed: false"
        status = (await kctl(cluster, "quorum", "status"))[1]
        assert [voter["id"] for voter in status["voters"]] == [1, 2, 3]
        code, refused = await kctl(cluster, "add-voter", "2@127.0.0.1:1")
        assert (code, refused["error"]) == (5, "UNREACHABLE"), refused
        code, removed = await kctl(cluster, "remove-voter", str(status["leader_id"]))
        assert (code, removed["changed"]) == (0, True), removed
        await quorum_is(
            cluster, "the removed leader has handed over", lambda it: it.known.leader_id != status["leader_id"]
        )
        code, missing = await kctl(cluster, "remove-voter", "99")
        assert (code, missing["error"]) == (3, "VOTER_NOT_FOUND"), missing


async def test_a_target_is_reached_and_leadership_is_handed_over(tmp_path: Path) -> None:
    async with running(tmp_path, voters=3, joining=1) as cluster:
        target = ",".join(f"{node_id}@{node_of(cluster, node_id).control}" for node_id in (2, 3, 4))
        code, altered = await kctl(cluster, "alter-quorum", "--target", target, "--wait", "--timeout", "60")
        assert (code, altered["changed"]) == (0, True), altered
        described = await quorum_is(cluster, "the target", lambda it: voter_ids(it) == [2, 3, 4])
        to = next(node_id for node_id in (2, 3, 4) if node_id != described.known.leader_id)
        code, handed = await kctl(cluster, "transfer-leader", "--to", str(to))
        assert (code, handed["leader_id"]) == (0, to), handed
        await quorum_is(cluster, f"node {to} leads", lambda it: it.known.leader_id == to)
        code, unknown = await kctl(cluster, "transfer-leader", "--to", "77")
        assert (code, unknown["error"]) == (3, "VOTER_NOT_FOUND"), unknown


async def test_a_lost_disk_is_replaced_by_one_command_while_clients_write(tmp_path: Path) -> None:
    async with running(tmp_path, voters=3) as cluster, under_load(cluster):
        described = await quorum_is(cluster, "a leader", lambda it: True)
        lost = node_of(cluster, next(one for one in (1, 2, 3) if one != described.known.leader_id))
        await kill(lost)
        shutil.rmtree(lost.data_dir)
        await start(cluster)
        code, absent = await kctl(cluster, "add-voter", f"{lost.id}@127.0.0.1:1", "--replace")
        assert (code, absent["error"]) == (5, "UNREACHABLE"), absent
        assert any("--replace" in line for line in processes.last_lines(Path(lost.log), 50)), (
            "the node names the next step"
        )
        code, refused = await kctl(cluster, "add-voter", f"{lost.id}@{lost.control}")
        assert (code, refused["error"]) == (5, "DUPLICATE_VOTER"), refused
        code, replaced = await kctl(cluster, "add-voter", f"{lost.id}@{lost.control}", "--replace")
        assert (code, replaced["changed"]) == (0, True), replaced
        before = {voter.replica.key.directory_id for voter in described.voters}
        after = await quorum_is(cluster, "three voters", lambda it: voter_ids(it) == [1, 2, 3])
        assert len({voter.replica.key.directory_id for voter in after.voters} - before) == 1


async def test_the_preferred_voter_leads(tmp_path: Path) -> None:
    async with running(tmp_path, voters=3) as cluster:
        described = await quorum_is(cluster, "a leader", lambda it: True)
        wanted = next(one for one in (1, 2, 3) if one != described.known.leader_id)
        code, preferred = await kctl(cluster, "preferred-controllers", "set", str(wanted))
        assert (code, preferred["changed"], preferred["preferred"]) == (0, True, [wanted])
        await quorum_is(cluster, f"node {wanted} leads", lambda it: it.known.leader_id == wanted)
        assert (await kctl(cluster, "preferred-controllers", "show"))[1]["preferred"] == [wanted]
        code, refused = await kctl(cluster, "preferred-controllers", "set", "9")
        assert (code, refused["error"]) == (3, "VOTER_NOT_FOUND")
        assert (await kctl(cluster, "preferred-controllers", "clear"))[1]["preferred"] == []
