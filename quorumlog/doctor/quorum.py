"""Findings about the quorum: the leader, the voters, and the nodes that claim to belong to it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from quorumlog.doctor.findings import ADVICE, CRITICAL, PROBLEM, Finding
from quorumlog.doctor.nodes import fsync_text, transfer_command
from quorumlog.doctor.observed import ObservedCluster, ObservedNode, ids_of
from quorumlog.doctor.steps import RECOVERY, start, start_or_restart
from quorumlog.words import counted, listed

if TYPE_CHECKING:
    from quorumlog.wire.v1.quorum_pb2 import DescribeQuorumReply, ReplicaStatus

SILENT_MS = 2_000
"""A voter that has not fetched for this long counts as absent (`quorum.fetch.timeout.ms`)."""
LAGGING_MS = 5_000
SERVING_MAX_MS = 10_000
"""How long a new leader may take until it serves as the controller."""
OTHER_DISK = "it answers with another disk than the voter's"
LOOK_AGAIN = "look again in a few seconds: kctl doctor"


def unreachable(cluster: ObservedCluster) -> Finding:
    """Return the finding about a cluster without any node that answers."""
    return Finding(
        CRITICAL,
        "UNREACHABLE",
        what=f"no node answers at {listed(cluster.addresses)}",
        cause="; ".join(f"{node.address}: {node.silence}" for node in cluster.nodes),
        next="start a node there (quorum-node run, broker run; for a cluster of `kctl dev`: kctl dev up), or give the "
        "control address of a running node: --controllers HOST:PORT, or KCTL_CONTROLLERS (the control port, 9093 by "
        "default, not the port of Kafka clients)",
    )


def quorum_findings(cluster: ObservedCluster) -> Iterator[Finding]:
    """Yield the findings about a quorum in which at least one node answers."""
    quorum, leader = cluster.quorum, cluster.leader
    assert quorum is not None, "a node answers"
    yield from _strangers(cluster)
    if leader is None or leader.quorum is None:
        yield _no_leader(cluster, quorum)
    elif leader.quorum.paused:
        yield _paused(cluster, leader, leader.quorum)
    else:
        yield from _leader(cluster, leader)
        yield from _voters(cluster, leader.quorum)
    if quorum.HasField("target_voters"):
        yield _target(cluster, quorum)
    else:  # commands for another number of voters would replace the target, or be refused
        yield from _voter_count(cluster, quorum)


# Nodes that do not belong together


def _strangers(cluster: ObservedCluster) -> Iterator[Finding]:
    described = [(node, node.quorum.known) for node in cluster.nodes if node.quorum is not None]
    clusters: dict[str, list[int]] = {}
    for node, known in described:
        if known.HasField("cluster_id"):
            clusters.setdefault(known.cluster_id, []).append(node.node_id or 0)
    if len(clusters) > 1:
        yield Finding(
            PROBLEM,
            "DIFFERENT_CLUSTERS",
            what="the nodes that answer belong to different clusters",
            cause="; ".join(f"{cluster_id}: {listed(sorted(ids))}" for cluster_id, ids in sorted(clusters.items())),
            next="give the addresses of one cluster only: --controllers",
        )
    for node_id, addresses in sorted(cluster.doubles.items()):
        yield Finding(
            PROBLEM,
            "SAME_ID",
            what=f"{len(addresses)} nodes claim to be node {node_id}: at {listed(addresses)}",
            cause="their disks differ: a node was started with an id in use, or an old node was started again",
            next="stop the wrong node, or start it with another --node-id and an empty data directory; kctl brokers "
            "list and kctl quorum status show which node the cluster uses",
            nodes=(node_id,),
        )
    own = [(node, known) for node, known in described if not cluster.is_foreign(node)]
    newest = max(known.generation for _, known in own)
    old = [node for node, known in own if known.generation < newest]
    if old:
        yield Finding(
            PROBLEM,
            "OLD_GENERATION",
            what=f"node {listed(node.node_id for node in old)} is of an older generation than {newest}",
            cause="the quorum was rebuilt (quorum-node recover), and this node has not rejoined it",
            next=RECOVERY,
            nodes=ids_of(old),
        )
    unknown = [node for node in cluster.nodes if node.node_id is None and not node.answers]
    if unknown and cluster.voters and not _is_address_missing(cluster):
        yield Finding(
            ADVICE,
            "UNKNOWN_ADDRESS",
            what=f"addresses in --controllers that belong to no known node: {listed(node.address for node in unknown)}",
            cause="; ".join(f"{node.address}: {node.silence}" for node in unknown),
            next="remove it from --controllers (KCTL_CONTROLLERS)",
        )


def _is_address_missing(cluster: ObservedCluster) -> bool:
    """Return whether the control address of a broker is not known, so that an unknown address may be the broker's.

    A new leader does not know the address of a broker that hangs.
    """
    metadata = cluster.metadata
    return metadata is not None and any(cluster.node(broker.broker_id) is None for broker in metadata.brokers)


# No leader


def _no_leader(cluster: ObservedCluster, quorum: DescribeQuorumReply) -> Finding:
    voters = cluster.voters
    if not voters:
        return _not_founded(cluster)
    if cluster.followed is not None:
        return Finding(
            PROBLEM,
            "LEADER_UNREACHABLE",
            what=f"the leader, node {cluster.followed}, does not answer this machine; a majority of voters follows it",
            cause=_silence(cluster, cluster.followed),
            next="make its control address reachable from this machine, or use another machine",
            nodes=(cluster.followed,),
        )
    replaced = cluster.replaced_voters
    absent = [voter for voter in voters if not cluster.answers(voter) or voter in replaced]
    present = len(voters) - len(absent)
    needed = len(voters) // 2 + 1
    consequence = "no metadata can be changed, and a leader that fails is not replaced; partitions with a leader work"
    if (missing := needed - present) > 0:
        return Finding(
            CRITICAL,
            "NO_QUORUM",
            what=f"there is no quorum: {consequence}",
            cause=f"{len(absent)} of {counted(len(voters), 'voter')} {'cannot vote' if replaced else 'do not answer'}, "
            f"{needed} must be up: " + "; ".join(_silence(cluster, voter) for voter in absent),
            next=_with_their_disks(absent, missing)
            if replaced
            else f"{missing} more must be up: {start(cluster, absent, needed=missing)}; if their disks are lost "
            f"permanently: {RECOVERY}",
            nodes=tuple(absent),
        )
    views = [_view(node) for node in cluster.own_nodes if node.node_id in voters and node.answers]
    addresses = (f"{voter.replica.key.node_id}@{voter.replica.address}" for voter in quorum.voters)
    return Finding(
        CRITICAL,
        "NO_LEADER",
        what=f"no voter leads, although {present} of {len(voters)} answer: {consequence}",
        cause="; ".join([*views, *(_silence(cluster, voter) for voter in absent)]),
        next=f"check that the voters reach each other at these addresses, and read their logs: {', '.join(addresses)}",
        nodes=tuple(voters),
    )


def _not_founded(cluster: ObservedCluster) -> Finding:
    answering = [node for node in cluster.nodes if node.answers]
    return Finding(
        CRITICAL,
        "NO_CLUSTER",
        what="the nodes that answer belong to no cluster yet",
        cause="; ".join(f"node {node.node_id}: {node.failing_checks() or 'waits'}" for node in answering),
        next="start every node of --initial-voters, each with the same list; or give --join the addresses of a cluster",
        nodes=ids_of(answering),
    )


def _view(node: ObservedNode) -> str:
    leader = "knows no leader" if node.leader_id is None else f"follows node {node.leader_id}"
    return f"node {node.node_id} {leader} in epoch {node.epoch}"


def _silence(cluster: ObservedCluster, node_id: int) -> str:
    node = cluster.node(node_id)
    if node is None:
        return f"node {node_id}: its address is not known"
    if node.answers and node_id in cluster.replaced_voters:
        return f"node {node_id} at {node.address}: {OTHER_DISK}"
    return f"node {node_id} at {node.address}: {cluster.silence_of(node_id)}"


def _with_their_disks(absent: list[int], missing: int) -> str:
    """Return the step for missing voters, some of which were started with another disk."""
    disk = "its old disk" if missing == 1 else "their old disks"
    who = listed((f"node {voter}" for voter in absent), "and" if missing >= len(absent) else "or")
    return f"{missing} more must be up with {disk}: {who}; if the disks are lost permanently: {RECOVERY}"


# The leader


def _leader(cluster: ObservedCluster, leader: ObservedNode) -> Iterator[Finding]:
    described = leader.described
    is_active = described is None or described.controller_active or not described.HasField("leading_ms")
    if is_active and cluster.controller_problem:
        yield Finding(
            CRITICAL,
            "CONTROLLER_SILENT",
            what=f"node {leader.node_id} leads, but does not answer administrative requests",
            cause=cluster.controller_problem,
            next=f"look at the log and the load of node {leader.node_id}",
            nodes=(leader.node_id or 0,),
        )
    if described is not None and not is_active and described.leading_ms > SERVING_MAX_MS:
        behind = described.high_watermark - described.applied_offset
        if behind > 0:
            cause = f"it has not applied {counted(behind, 'committed record')} yet"
        else:
            cause = "the first record of its epoch is not committed: no majority of the voters acknowledges it"
            cause += "".join(f"; {each}" for each in _lags(cluster, leader))
        command = transfer_command(cluster, leader)
        yield Finding(
            CRITICAL,
            "NOT_SERVING",
            what=f"node {leader.node_id} was elected {described.leading_ms // 1000} s ago, but does not serve as the "
            "controller",
            cause=cause,
            next=_until_it_serves(cluster, leader, command, is_committed=behind > 0),
            nodes=(leader.node_id or 0,),
            commands=(command,) if command else (),
        )


def _followers(cluster: ObservedCluster, leader: ObservedNode) -> list[ReplicaStatus]:
    voters = [] if leader.quorum is None else leader.quorum.voters
    return [each for each in voters if each.replica.key.node_id != leader.node_id]


def _lags(cluster: ObservedCluster, leader: ObservedNode) -> Iterator[str]:
    """Yield the lag of each voter that fetches from the leader and is behind, as text."""
    for each in _followers(cluster, leader):
        if each.lag > 0 and not _is_silent(each):
            yield f"voter {each.replica.key.node_id} lags by {counted(each.lag, 'record')}"


def _until_it_serves(cluster: ObservedCluster, leader: ObservedNode, command: str, *, is_committed: bool) -> str:
    """Return the step for a leader that does not serve.

    command: the command that hands leadership over; empty if no other voter has the leader's whole log.
    is_committed: whether the leader must still apply committed records; if not, its epoch has no committed record yet.
    """
    node_id = leader.node_id
    if command:
        return f"let another voter lead: {command}; then look at the disk, the load and the log of node {node_id}"
    if is_committed:
        return f"look at the disk, the load and the log of node {node_id}; if it applies no further records, restart it"
    step = "wait until a majority of the voters has caught up: kctl quorum replication shows how far they are"
    absent = [each.replica.key.node_id for each in _followers(cluster, leader) if _is_silent(each)]
    down = [voter for voter in absent if cluster.silence_of(voter) is not None]
    return f"{step}; or {start(cluster, down, needed=1)}" if down else step


def _paused(cluster: ObservedCluster, leader: ObservedNode, quorum: DescribeQuorumReply) -> Finding:
    total = len(quorum.voters)
    needed = total // 2 + 1
    silent = [each for each in quorum.voters if _is_silent(each) and each.replica.key.node_id != leader.node_id]
    ids = [each.replica.key.node_id for each in silent]
    missing = max(needed - (total - len(silent)), 1)  # with a short quorum.fetch.timeout.ms, it pauses before SILENT_MS
    down = [voter for voter in ids if cluster.silence_of(voter) is not None]
    if cluster.replaced_voters:
        step = _with_their_disks(ids, missing)
    elif down:
        step = start_or_restart(((voter, cluster.hangs(voter)) for voter in down), needed=missing)
        step += f"; if their disks are lost permanently: {RECOVERY}"
    else:
        step = (
            "look at the network between the voters, and check whether another voter leads now: kctl quorum status, "
            "with the address of one voter at a time in --controllers"
        )
    return Finding(
        CRITICAL,
        "PAUSED",
        what=f"the leader, node {leader.node_id}, is paused: {needed} of {counted(total, 'voter')} must be up and "
        "fetch from it; until then no metadata can be changed, and a leader that fails is not replaced",
        cause="; ".join(_absence(cluster, each) for each in silent) or "no majority of the voters fetches from it",
        next=step,
        nodes=(leader.node_id or 0,),
    )


def _absence(cluster: ObservedCluster, status: ReplicaStatus) -> str:
    """Return the time of a voter's last fetch from the leader, and the voter's answer to this tool, as text."""
    voter = status.replica.key.node_id
    if not cluster.answers(voter):
        here = f"at {status.replica.address}: {cluster.silence_of(voter)}"
    else:
        here = OTHER_DISK if voter in cluster.replaced_voters else "it answers this machine"
    return f"node {voter} {_last_fetch(status)}; {here}"


# The voters


def _voters(cluster: ObservedCluster, quorum: DescribeQuorumReply) -> Iterator[Finding]:
    followers = [each for each in quorum.voters if each.replica.key.node_id != quorum.known.leader_id]
    absent = [each for each in followers if _is_silent(each) or each.replica.key.node_id in cluster.replaced_voters]
    spare = len(quorum.voters) - len(absent) - (len(quorum.voters) // 2 + 1)
    margin = "no further voter may fail" if spare <= 0 else f"{counted(spare, 'more')} may fail"
    for status in followers:
        voter = status.replica.key.node_id
        if status in absent:
            yield _missing_voter(cluster, quorum, status, f"voter {voter} is missing: {margin}")
        elif not cluster.answers(voter):
            yield Finding(
                PROBLEM,
                "VOTER_UNREACHABLE",
                what=f"voter {voter} does not answer this machine, but fetches from the leader",
                cause=f"{_silence(cluster, voter)}; so it has just stopped, or this machine cannot reach it",
                next=LOOK_AGAIN,
                nodes=(voter,),
            )
        elif status.lag > 0 and status.HasField("last_caught_up_ms") and status.last_caught_up_ms > LAGGING_MS:
            yield Finding(
                PROBLEM,
                "VOTER_LAGGING",
                what=f"voter {voter} lags by {counted(status.lag, 'record')}",
                cause=f"it was last caught up {status.last_caught_up_ms // 1000} s ago, and fetches; "
                f"{fsync_text(cluster.node(voter))}",
                next=f"look at the disk and the load of node {voter}: iostat -x 1; kctl quorum replication",
                nodes=(voter,),
            )


def _missing_voter(cluster: ObservedCluster, quorum: DescribeQuorumReply, status: ReplicaStatus, what: str) -> Finding:
    voter = status.replica.key.node_id
    node = cluster.node(voter)
    if node is not None and voter in cluster.replaced_voters:
        command = f"kctl add-voter {voter}@{node.address} --replace"
        return Finding(
            PROBLEM,
            "VOTER_NEW_DISK",
            what=what,
            cause=f"{OTHER_DISK}, so it is an observer; the voter {_last_fetch(status)}",
            next=f"start the node with its old disk; if that is lost permanently: {command}",
            nodes=(voter,),
            commands=(command,),
        )
    if node is not None and node.answers:
        return Finding(
            PROBLEM,
            "VOTER_CUT_OFF",
            what=what,
            cause=f"it answers this machine, but {_last_fetch(status)}; {_view(node)}",
            next=f"look at the log of node {voter}, and at the network between it and node {quorum.known.leader_id}",
            nodes=(voter,),
        )
    command = f"kctl add-voter {voter}@{status.replica.address} --replace"
    return Finding(
        PROBLEM,
        "VOTER_DOWN",
        what=what,
        cause=f"{_silence(cluster, voter)}; it {_last_fetch(status)}",
        next=f"{start(cluster, [voter])}; if its disk is lost: start it with an empty one, then: {command}",
        nodes=(voter,),
        commands=(command,),
    )


def _is_silent(status: ReplicaStatus) -> bool:
    return not status.HasField("last_fetch_ms") or status.last_fetch_ms > SILENT_MS


def _last_fetch(status: ReplicaStatus) -> str:
    if not status.HasField("last_fetch_ms"):
        return "has not fetched from the leader in its epoch"
    return f"last fetched {status.last_fetch_ms / 1000:.1f} s ago"


# How many voters there are


def _voter_count(cluster: ObservedCluster, quorum: DescribeQuorumReply) -> Iterator[Finding]:
    voters = cluster.voters
    if len(voters) == 1:
        yield _one_voter(cluster, quorum)
    elif voters and len(voters) % 2 == 0:
        yield _even_voters(cluster, quorum)


def _one_voter(cluster: ObservedCluster, quorum: DescribeQuorumReply) -> Finding:
    candidates = _candidates(cluster, quorum)
    command, step = "", _another_node(cluster, "two more nodes")
    if len(candidates) >= 2:
        addresses = _addresses(quorum)
        target = ",".join(f"{node_id}@{addresses[node_id]}" for node_id in (*cluster.voters, *candidates[:2]))
        command = f"kctl alter-quorum --target {target} --wait"
        step = f"for production, use three voters: {command}"
    return Finding(
        ADVICE,
        "ONE_VOTER",
        what="there is one voter: the cluster's metadata depends on its disk",
        cause="if the voter fails, no metadata can be changed; if its disk is lost, the metadata is lost too",
        next=step,
        nodes=tuple(cluster.voters),
        commands=(command,) if command else (),
    )


def _even_voters(cluster: ObservedCluster, quorum: DescribeQuorumReply) -> Finding:
    voters, candidates = cluster.voters, _candidates(cluster, quorum)
    needed = len(voters) // 2 + 1
    if candidates:
        command = f"kctl add-voter {candidates[0]}@{_addresses(quorum)[candidates[0]]} --wait"
        step = f"add one: {command}"
    elif len(voters) > 2:
        leader_id = quorum.known.leader_id if quorum.known.HasField("leader_id") else None
        silent = {status.replica.key.node_id for status in quorum.voters if _is_silent(status)}

        def order(voter: int) -> tuple[bool, bool, bool, int]:
            """Put voters that do not vote first: down, with another disk, or cut off from the leader."""
            return cluster.answers(voter), voter not in cluster.replaced_voters, voter not in silent, -voter

        command = f"kctl remove-voter {min((each for each in voters if each != leader_id), key=order)}"
        step = f"remove one: {command}"
    else:
        command, step = "", _another_node(cluster, "another node")
    return Finding(
        ADVICE,
        "EVEN_VOTERS",
        what=f"{len(voters)} voters tolerate no more failures than {len(voters) - 1}",
        cause=f"{needed} must be up, {len(voters) - needed or 'none'} may fail",
        next=step,
        nodes=tuple(voters),
        commands=(command,) if command else (),
    )


def _addresses(quorum: DescribeQuorumReply) -> dict[int, str]:
    return {status.replica.key.node_id: status.replica.address for status in (*quorum.voters, *quorum.observers)}


def _candidates(cluster: ObservedCluster, quorum: DescribeQuorumReply) -> list[int]:
    """Return the observers that answer and could become voters, sorted."""
    return [each for each in sorted(_addresses(quorum)) if each not in cluster.voters and cluster.answers(each)]


def _another_node(cluster: ObservedCluster, what: str) -> str:
    addresses = ",".join(node.address for node in cluster.own_nodes if node.answers)
    return (
        f"start {what}, each on a machine of its own (quorum-node run --join {addresses}, with its own id, data "
        "directory and address); doctor then gives the command that makes them voters"
    )


def _target(cluster: ObservedCluster, quorum: DescribeQuorumReply) -> Finding:
    target = sorted(voter.key.node_id for voter in quorum.target_voters.voters)
    what = f"the target voters are {listed(target)}; the current voters are {listed(cluster.voters)}"
    step = quorum.target_step or "it has not begun"
    if not quorum.target_problem:
        progress = "kctl quorum status shows the progress"
        return Finding(ADVICE, "TARGET_IN_PROGRESS", what=what, cause=step, next=progress, nodes=tuple(target))
    command = "kctl alter-quorum --cancel"
    return Finding(
        PROBLEM,
        "TARGET_NOT_REACHED",
        what=what,
        cause=f"{step}: {quorum.target_problem}",
        next=f"resolve that, and the change continues automatically; or cancel it: {command}",
        nodes=tuple(target),
        commands=(command,),
    )
