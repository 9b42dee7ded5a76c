"""Findings about the quorum and the nodes as such: who leads, who votes, who answers, whose disk is slow."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator
from typing import Any

from quorumlog.kctl.doctor_findings import ADVICE, CRITICAL, PROBLEM, Finding, wake
from quorumlog.kctl.doctor_look import Look, NodeLook, committed
from quorumlog.kctl.doctor_space import before_start
from quorumlog.kctl.words import counted, listed

SILENT_MS = 2_000
"""A voter that has not fetched for so long counts as absent (`quorum.fetch.timeout.ms`)."""
LAGGING_MS = 5_000
SERVING_MAX_MS = 10_000
CLOCK_DIFFERENCE_MS = 5_000
SLOW_FSYNC_US = 100_000
RECOVERY = "docs/recovery.md"
OTHER_DISK = "it answers with another disk than the voter's"


def quorum_findings(look: Look) -> Iterator[Finding]:
    """Of a cluster of which at least one node answers."""
    yield from _strangers(look)
    if look.leader is None:
        yield _no_leader(look)
    else:
        yield from _leader(look, look.leader)
        yield from _voters(look, look.leader.quorum)
    yield from _voter_count(look)
    yield from _target(look.quorum)
    yield from _clocks(look)
    yield from _disks(look)
    yield from _behind(look)
    yield from _not_ready(look)


def unreachable(look: Look) -> Finding:
    """Nobody answers."""
    causes = [f"{node.address}: {node.silence}" for node in look.nodes]
    return Finding(
        CRITICAL, "UNREACHABLE", f"no node answers at {listed(look.given)}", "; ".join(causes),
        "start a node there (quorum-node run, broker run; a cluster of `kctl dev`: kctl dev up), or name the control "
        "address of one that runs: --controllers HOST:PORT (the control port, 9093 by default, is not the clients')",
    )  # fmt: skip


def metadata_unreadable(look: Look) -> Iterator[Finding]:
    """No node tells what topics and brokers there are; in no cluster yet there are none."""
    if look.voters:
        yield Finding(
            PROBLEM, "METADATA_UNREADABLE", "no node tells what brokers and topics there are",
            look.metadata_problem or "none of those that answer has any",
            "look at the logs of these nodes; kctl quorum status",
        )  # fmt: skip


def _strangers(look: Look) -> Iterator[Finding]:
    clusters: dict[str, list[int]] = {}
    for node in look.nodes:
        if node.quorum is not None and node.quorum.known.HasField("cluster_id"):
            clusters.setdefault(node.quorum.known.cluster_id, []).append(node.node_id or 0)
    if len(clusters) > 1:
        told = "; ".join(f"{cluster}: {listed(sorted(nodes))}" for cluster, nodes in sorted(clusters.items()))
        yield Finding(
            PROBLEM, "DIFFERENT_CLUSTERS", "the nodes that answer are of different clusters", told,
            "name the addresses of one cluster only: --controllers",
        )  # fmt: skip
    for node_id, addresses in sorted(look.doubles.items()):
        yield Finding(
            PROBLEM, "SAME_ID", f"{len(addresses)} nodes say that they are node {node_id}: at {listed(addresses)}",
            "they have different disks: one was started with an id that is taken, or an old one has come back",
            "stop the one that should not be there, or start it with another --node-id and an empty data directory; "
            "kctl brokers list and kctl quorum status show which of them the cluster takes for it",
            (node_id,),
        )  # fmt: skip
    generations = {node.quorum.known.generation for node in look.nodes if node.quorum is not None}
    if len(generations) > 1:
        newest = max(generations)
        old = [n for n in look.nodes if n.quorum is not None and n.quorum.known.generation < newest]
        yield Finding(
            PROBLEM, "OLD_GENERATION", f"node {listed(n.node_id for n in old)} is of an older generation than {newest}",
            "the quorum was rebuilt (quorum-node recover), and these have not followed", RECOVERY, _ids(old),
        )  # fmt: skip
    unknown = [node for node in look.nodes if node.node_id is None and not node.answers]
    if unknown and look.voters and not _is_address_missing(look):
        given = listed(node.address for node in unknown)
        yield Finding(
            ADVICE, "UNKNOWN_ADDRESS", f"given, but of no node that the others know: {given}",
            "; ".join(f"{node.address}: {node.silence}" for node in unknown),
            "leave it out of --controllers (KCTL_CONTROLLERS)",
        )  # fmt: skip


def _is_address_missing(look: Look) -> bool:
    """Whether nobody knows the control address of some broker: it hangs, and the leader is a new one."""
    return look.metadata is not None and any(look.node(broker.broker_id) is None for broker in look.metadata.brokers)


def _no_leader(look: Look) -> Finding:
    voters = look.voters
    if not voters:
        return _not_founded(look)
    if look.followed is not None:
        return Finding(
            PROBLEM, "LEADER_UNREACHABLE",
            f"the leader, node {look.followed}, does not answer here, though a majority of the voters follows it",
            _silence(look, look.followed), "make its control address reachable from this machine, or go to another one",
            (look.followed,),
        )  # fmt: skip
    needed = len(voters) // 2 + 1
    replaced = look.replaced_voters
    silent = [v for v in voters if (node := look.node(v)) is None or not node.answers or v in replaced]
    consequence = "nothing can be changed and no leader is replaced; brokers serve with the leaders that they have"
    if (missing := needed - (len(voters) - len(silent))) > 0:
        return Finding(
            CRITICAL, "NO_QUORUM", f"there is no quorum: {consequence}",
            f"{len(silent)} of {counted(len(voters), 'voter')} {'cannot vote' if replaced else 'do not answer'}, "
            f"{needed} must be up: " + "; ".join(_silence(look, voter) for voter in silent),
            _with_their_disks(silent, missing) if replaced
            else f"{missing} more must be up: {_wake(look, silent, missing)}; if their disks are gone for good: "
            f"{RECOVERY}",
            tuple(silent),
        )  # fmt: skip
    views = [_view(node) for node in look.nodes if node.node_id in voters and node.answers]
    return Finding(
        CRITICAL, "NO_LEADER",
        f"no voter leads, though {len(voters) - len(silent)} of {len(voters)} answer: {consequence}",
        "; ".join([*views, *(_silence(look, voter) for voter in silent)]),
        "look whether the voters reach each other at these addresses, and at their logs: "
        + ", ".join(f"{voter.replica.key.node_id}@{voter.replica.address}" for voter in look.quorum.voters),
        tuple(voters),
    )  # fmt: skip


def _not_founded(look: Look) -> Finding:
    waiting = [f"node {node.node_id}: {_failing(node) or 'waits'}" for node in look.nodes if node.answers]
    return Finding(
        CRITICAL, "NO_CLUSTER", "the nodes that answer are in no cluster yet", "; ".join(waiting),
        "start every node of --initial-voters, each with the same list; or give --join the addresses of a cluster",
        _ids([node for node in look.nodes if node.answers]),
    )  # fmt: skip


def _view(node: NodeLook) -> str:
    known = node.quorum.known
    leader = f"takes {known.leader_id} for the leader" if known.HasField("leader_id") else "knows no leader"
    return f"node {node.node_id} {leader} in epoch {known.epoch}"


def _silence(look: Look, node_id: int) -> str:
    node = look.node(node_id)
    if node is None:
        return f"node {node_id}: its address is not known"
    if node.answers and node_id in look.replaced_voters:
        return f"node {node_id} at {node.address}: {OTHER_DISK}"
    return f"node {node_id} at {node.address}: {look.silence_of(node_id)}"


def _with_their_disks(absent: list[int], missing: int) -> str:
    """What to do where voters are missing and some of them have come back with another disk."""
    disk = "the disk that it had" if missing == 1 else "the disks that they had"
    who = listed((f"node {voter}" for voter in absent), "and" if missing >= len(absent) else "or")
    return f"{missing} more must be up with {disk}: {who}; if they are gone for good: {RECOVERY}"


def _wake(look: Look, node_ids: Iterable[int], needed: int | None = None) -> str:
    node_ids = list(node_ids)
    silent = ((node_id, look.silence_of(node_id)) for node_id in node_ids)
    return before_start(look, node_ids) + wake(silent, needed=needed)


# The leader


def _leader(look: Look, leader: NodeLook) -> Iterator[Finding]:
    if leader.quorum.paused:
        yield _paused(look, leader)
        return
    described = leader.described
    is_active = described is None or described.controller_active or not described.HasField("leading_ms")
    if is_active and look.controller_problem:
        yield Finding(
            CRITICAL, "CONTROLLER_SILENT", f"node {leader.node_id} leads, but answers no request of an administrator",
            look.controller_problem, f"look at the log and the load of node {leader.node_id}", (leader.node_id or 0,),
        )  # fmt: skip
    if not is_active and described.leading_ms > SERVING_MAX_MS:
        behind = described.high_watermark - described.applied_offset
        cause = (
            f"it has yet to apply {counted(behind, 'record')} that {'is' if behind == 1 else 'are'} committed"
            if behind > 0
            else "the first record of its epoch is not committed: a majority of the voters does not acknowledge it"
        )
        command = _transfer(look, leader)
        steps = "kctl quorum replication shows who lags"
        if command:
            steps += f"; let another one try: {command}; if that hangs, restart the node"
        yield Finding(
            CRITICAL, "NOT_SERVING",
            f"node {leader.node_id} was elected {described.leading_ms // 1000} s ago, but does not serve as controller",
            cause, steps, (leader.node_id or 0,), (), (command,) if command else (),
        )  # fmt: skip


def _paused(look: Look, leader: NodeLook) -> Finding:
    voters = _voter_ids(leader.quorum)
    silent = [s for s in leader.quorum.voters if _is_silent(s) and s.replica.key.node_id != leader.node_id]
    replaced = look.replaced_voters
    causes = []
    for status in silent:
        voter = status.replica.key.node_id
        node = look.node(voter)
        reached = node is not None and node.answers
        heard = _heard(status)
        where = (
            (OTHER_DISK if voter in replaced else "it answers here")
            if node is not None and reached
            else f"at {status.replica.address}: {look.silence_of(voter)}"
        )
        causes.append(f"node {voter} {heard}; {where}")
    down = [
        (voter, silence) for s in silent if (silence := look.silence_of(voter := s.replica.key.node_id)) is not None
    ]
    missing = len(voters) // 2 + 1 - (len(voters) - len(silent))
    step = (
        _with_their_disks([s.replica.key.node_id for s in silent], missing)
        if replaced
        else f"{wake(down, needed=missing)}; if their disks are gone for good: {RECOVERY}"
        if down
        else "look at the network between the voters, and whether another one leads by now: kctl quorum status, with "
        "the address of each voter alone in --controllers"
    )
    return Finding(
        CRITICAL, "PAUSED",
        f"the leader, node {leader.node_id}, is paused: {len(voters) // 2 + 1} of {counted(len(voters), 'voter')} must "
        "be up and fetch from it; nothing can be changed until they do, and no leader is replaced",
        "; ".join(causes) or "no majority of the voters fetches from it", step, (leader.node_id or 0,),
    )  # fmt: skip


# The voters


def _voters(look: Look, quorum: Any) -> Iterator[Finding]:
    if quorum.paused:
        return  # said already
    leader_id = quorum.known.leader_id
    total = len(quorum.voters)
    replaced = look.replaced_voters
    absent = [
        status for status in quorum.voters
        if (voter := status.replica.key.node_id) != leader_id and (_is_silent(status) or voter in replaced)
    ]  # fmt: skip
    spare = total - len(absent) - (total // 2 + 1)
    for status in quorum.voters:
        voter = status.replica.key.node_id
        if voter == leader_id:
            continue
        node = look.node(voter)
        answers = node is not None and node.answers
        if status in absent:
            left = "no further voter may fail" if spare <= 0 else f"{counted(spare, 'more')} may fail"
            what = f"voter {voter} is missing: {left}"
            if voter in replaced and node is not None:
                command = f"kctl add-voter {voter}@{node.address} --replace"
                yield Finding(
                    PROBLEM, "VOTER_NEW_DISK", what,
                    f"{OTHER_DISK}, so it is an observer; the voter {_heard(status)}",
                    f"start the node with its old disk; if that is lost for good: {command}",
                    (voter,), (), (command,),
                )  # fmt: skip
            elif answers:
                yield Finding(
                    PROBLEM, "VOTER_CUT_OFF", what,
                    f"it answers here, but {_heard(status)}; {_view(node) if node else ''}",
                    f"look at the log of node {voter}, and at the network between it and node {leader_id}", (voter,),
                )  # fmt: skip
            else:
                command = f"kctl add-voter {voter}@{status.replica.address} --replace"
                yield Finding(
                    PROBLEM, "VOTER_DOWN", what, f"{_silence(look, voter)}; it {_heard(status)}",
                    f"{_wake(look, [voter])}; if its disk is gone: start it with an empty one, then: {command}",
                    (voter,), (), (command,),
                )  # fmt: skip
        elif not answers:
            yield Finding(
                PROBLEM, "VOTER_UNREACHABLE", f"voter {voter} does not answer here, but fetches from the leader",
                f"{_silence(look, voter)}; so it has just stopped, or this machine cannot reach it",
                "look again in a few seconds: kctl doctor", (voter,),
            )  # fmt: skip
        elif status.lag > 0 and status.HasField("last_caught_up_ms") and status.last_caught_up_ms > LAGGING_MS:
            yield Finding(
                PROBLEM, "VOTER_LAGGING", f"voter {voter} lags by {counted(status.lag, 'record')}",
                f"it was caught up {status.last_caught_up_ms // 1000} s ago, and fetches; {_fsync(node)}",
                f"look at the disk and the load of node {voter}: iostat -x 1; kctl quorum replication", (voter,),
            )  # fmt: skip


def _is_silent(status: Any) -> bool:
    return not status.HasField("last_fetch_ms") or status.last_fetch_ms > SILENT_MS


def _heard(status: Any) -> str:
    if not status.HasField("last_fetch_ms"):
        return "has not fetched from the leader in its epoch"
    return f"last fetched {status.last_fetch_ms / 1000:.1f} s ago"


def _ms(duration_us: int) -> str:
    """Three digits are enough."""
    return f"{float(f'{duration_us / 1000:.3g}'):g} ms"


def _fsync(node: NodeLook | None) -> str:
    if node is None or node.described is None or not node.described.HasField("fsync_p99_us"):
        return "how fast its disk is, is not known"
    return f"it takes {_ms(node.described.fsync_p99_us)} to make a write durable (p99)"


def _voter_count(look: Look) -> Iterator[Finding]:
    quorum = look.quorum
    voters = _voter_ids(quorum)
    known = {status.replica.key.node_id: status.replica.address for status in (*quorum.voters, *quorum.observers)}
    others = [
        node_id for node_id in sorted(known)
        if node_id not in voters and (node := look.node(node_id)) is not None and node.answers
    ]  # fmt: skip
    if len(voters) == 1:
        command, step = "", _another_node(look, "two more nodes")
        if len(others) >= 2:
            wanted = ",".join(f"{node_id}@{known[node_id]}" for node_id in (*voters, *others[:2]))
            command = f"kctl alter-quorum --target {wanted} --wait"
            step = f"for production use, have three: {command}"
        yield Finding(
            ADVICE, "ONE_VOTER", "there is one voter: its disk is the cluster's metadata",
            "if it fails, no metadata can be changed; if its disk is lost, so is the metadata", step, tuple(voters), (),
            (command,) if command else (),
        )  # fmt: skip
    elif voters and len(voters) % 2 == 0:
        up = len(voters) // 2 + 1
        leader_id = quorum.known.leader_id if quorum.known.HasField("leader_id") else None
        spare = [voter for voter in voters if voter != leader_id]
        command = f"kctl add-voter {others[0]}@{known[others[0]]} --wait" if others else ""
        if not others and len(voters) > 2:
            command = f"kctl remove-voter {min(spare, key=lambda each: (look.silence_of(each) is None, -each))}"
        yield Finding(
            ADVICE, "EVEN_VOTERS", f"there are {len(voters)} voters: no better than {len(voters) - 1}",
            f"{up} must be up, {len(voters) - up or 'none'} may fail",
            f"{'take one out' if command.startswith('kctl remove') else 'add one'}: {command}" if command
            else _another_node(look, "another node"),
            tuple(voters), (), (command,) if command else (),
        )  # fmt: skip


def _another_node(look: Look, what: str) -> str:
    addresses = ",".join(node.address for node in look.nodes if node.answers)
    return (
        f"start {what}, each on a machine of its own (quorum-node run --join {addresses}, with an id, a data directory "
        "and an address of its own); doctor then gives the command that makes voters of them"
    )


def _target(quorum: Any) -> Iterator[Finding]:
    if not quorum.HasField("target_voters"):
        return
    wanted = sorted(voter.key.node_id for voter in quorum.target_voters.voters)
    what = f"the voters are to be {listed(wanted)}, and are {listed(_voter_ids(quorum))}"
    step = quorum.target_step or "it has not begun"
    if quorum.target_problem:
        yield Finding(
            PROBLEM, "TARGET_NOT_REACHED", what, f"{step}: {quorum.target_problem}",
            "do what that asks for, and it goes on by itself; or give it up: kctl alter-quorum --cancel", tuple(wanted),
            (), ("kctl alter-quorum --cancel",),
        )  # fmt: skip
    else:
        yield Finding(ADVICE, "TARGET_IN_PROGRESS", what, step, "kctl quorum status shows how far it is", tuple(wanted))


def _transfer(look: Look, leader: NodeLook) -> str:
    """The command that lets another voter lead: one that answers, with the fastest disk; empty if there is none."""
    others = [
        (node.described.fsync_p99_us, node.node_id)
        for node in look.nodes
        if node.described is not None and node is not leader
        and node.node_id in look.voters and node.node_id not in look.replaced_voters
    ]  # fmt: skip
    return f"kctl transfer-leader --to {min(others)[1]}" if others else ""


# The nodes


def _clocks(look: Look) -> Iterator[Finding]:
    """Wall clocks that differ: the records' times, and what retention makes of them, depend on which node writes."""
    clocks = [(node.clock_ahead_ms, node.node_id) for node in look.nodes if node.clock_ahead_ms is not None]
    if len(clocks) < 2:
        return
    middle = statistics.median_low(ahead for ahead, _ in clocks)
    wrong = [(ahead - middle, node_id) for ahead, node_id in clocks if abs(ahead - middle) > CLOCK_DIFFERENCE_MS]
    if wrong:
        told = [f"node {node_id} is {_duration(abs(by))} {'ahead' if by > 0 else 'behind'}" for by, node_id in wrong]
        yield Finding(
            PROBLEM, "CLOCKS", f"the clocks of {len(clocks)} nodes differ", "; ".join(told),
            f"set the clock of {listed(f'node {node_id}' for _, node_id in wrong)}, and keep it so with NTP (chrony); "
            "timestamps, searches by time and retention follow the clock of each leader",
            tuple(sorted(node_id or 0 for _, node_id in wrong)),
        )  # fmt: skip


def _duration(milliseconds: int) -> str:
    seconds = milliseconds // 1000
    for unit, size in (("days", 86_400), ("hours", 3_600), ("minutes", 60)):
        if seconds >= 2 * size:
            return f"{seconds // size} {unit}"
    return f"{seconds} s"


def _disks(look: Look) -> Iterator[Finding]:
    for node in look.nodes:
        described = node.described
        if described is None or not described.HasField("fsync_p99_us") or described.fsync_p99_us < SLOW_FSYNC_US:
            continue
        costs = "changes of the cluster may wait for it" if node.leads else "what waits for it is late"
        step = f"look at the disk of node {node.node_id} and who else uses it: iostat -x 1"
        if node.leads and (command := _transfer(look, node)):
            step += f"; meanwhile: {command}"
        yield Finding(
            PROBLEM, "SLOW_DISK",
            f"the disk of node {node.node_id} is slow: {_fsync(node)}",
            f"measured over the writes of its metadata log in the last minutes; {costs}", step,
            (node.node_id or 0,),
        )  # fmt: skip


def _behind(look: Look) -> Iterator[Finding]:
    end = committed(look)
    for node in look.nodes:
        if node.later is None or node.later.applied_offset >= end:
            continue
        left, before = end - node.later.applied_offset, end - node.described.applied_offset
        moves = f"it applied {before - left} of {before} meanwhile" if left < before else "it did not move meanwhile"
        kind = "broker" if node.described.is_broker else "node"
        elsewhere = _elsewhere(look, node)
        cause = elsewhere or _failing(node) or _fsync(node)
        step = f"look at the load and the log of node {node.node_id}"
        yield Finding(
            PROBLEM, "LAGGING",
            f"{kind} {node.node_id} is behind: it lacks {counted(left, 'record')} of the metadata",
            f"it has applied {node.later.applied_offset} of {end}; {moves}; {cause}",
            f"look again in a few seconds: kctl doctor; then {step}" if elsewhere
            else f"{step}; kctl brokers list shows what it is yet to carry out",
            (node.node_id or 0,),
        )  # fmt: skip


def _elsewhere(look: Look, node: NodeLook) -> str:
    """It waits for the answer of a leader that hangs, or for one to be told of: some seconds after each failover."""
    if look.leader is None or node.quorum is None or _leads_for(node) == look.leader.node_id:
        return ""
    leader = _leads_for(node)
    return "it has not heard of the leader yet" + (f": it takes {leader} for it" if leader is not None else "")


def _leads_for(node: NodeLook) -> int | None:
    return node.quorum.known.leader_id if node.quorum.known.HasField("leader_id") else None


def _not_ready(look: Look) -> Iterator[Finding]:
    """What a node itself takes for a reason not to be ready, unless all of them lack the leader."""
    if look.leader is None or look.leader.quorum.paused:
        return
    for node in look.nodes:
        failing = _failing(node, besides=("broker", "metadata"))
        if failing:
            yield Finding(
                PROBLEM, "NOT_READY", f"node {node.node_id} is not ready", failing,
                f"look at the log of node {node.node_id}", (node.node_id or 0,),
            )  # fmt: skip


def _failing(node: NodeLook, besides: tuple[str, ...] = ()) -> str:
    if node.described is None:
        return ""
    checks = node.described.checks
    return "; ".join(f"{check.name}: {check.detail}" for check in checks if not check.ok and check.name not in besides)


def _voter_ids(quorum: Any) -> list[int]:
    return sorted(voter.replica.key.node_id for voter in quorum.voters)


def _ids(nodes: list[NodeLook]) -> tuple[int, ...]:
    return tuple(sorted(node.node_id for node in nodes if node.node_id is not None))
