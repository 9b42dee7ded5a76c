"""Mutants of quorum/core."""

from __future__ import annotations

from tests.mutants import Mutant

CHANGE_GATE = "quorum/core/change_gate.py"
CONTACTS = "quorum/core/contacts.py"
ADDRESSES = "quorum/core/addresses.py"
CORE = "quorum/core/core.py"
DOWNLOADS = "quorum/core/downloads.py"
ELECTION = "quorum/core/election.py"
FOLLOWING = "quorum/core/following.py"
HANDOVER = "quorum/core/handover.py"
LEADER_HISTORY = "quorum/core/leader_history.py"
LATENCY = "quorum/core/latency.py"
MEMBERSHIP = "quorum/core/membership.py"
READS = "quorum/core/reads.py"
REPLICATION = "quorum/core/replication.py"
SEARCH = "quorum/core/search.py"
SNAPSHOTS = "quorum/core/snapshots.py"
STATE = "quorum/core/state.py"
TIMEOUTS = "quorum/core/timeouts.py"
TRANSITIONS = "quorum/core/transitions.py"

ALL = ("tests/unit/quorum/core", "tests/scenarios")

MUTANTS = (
    Mutant(
        "the first epoch of a quorum leaves the node before it is durable",
        SEARCH,
        "state.epoch if state.epoch_to_report is None else state.epoch_to_report",
        "state.epoch_to_report or state.epoch",
        (
            "tests/unit/quorum/core/test_leading.py"
            "::test_the_first_epoch_of_a_quorum_does_not_leave_the_node_before_it_is_durable",
        ),
    ),
    Mutant(
        "the problem of a new address stays when the address is not needed any more",
        MEMBERSHIP,
        "if change is None:  # a voter whose",
        "if change is None and False:  # a voter whose",
        (
            "tests/unit/quorum/core/test_leading.py"
            "::test_the_problem_of_a_voters_new_address_ends_when_the_voter_advertises_its_known_address_again",
        ),
    ),
    Mutant(
        "a pre-vote is granted after a single failed fetch",
        ELECTION,
        "granted = follower.leader_ended or not follower.heard",
        "granted = follower.leader_ended or not follower.heard or follower.fetch.failures > 0",
        ("tests/unit/quorum/core/test_following.py::test_failed_fetches_alone_are_no_reason_to_grant_a_pre_vote",),
    ),
    Mutant(
        "a prospective voter grants a pre-vote to one that is behind in (log end, id)",
        ELECTION,
        "is_ahead = (request.log_end, candidate) > (state.log.last, state.key)",
        "is_ahead = request.log_end >= state.log.last",
        ALL,
    ),
    Mutant(
        "a voter whose pre-vote timed out still refuses lower ids",
        ELECTION,
        "granted = is_ahead or prospective.repeated",
        "granted = is_ahead",
        ALL,
    ),
    Mutant(
        "a voter that an uncommitted record removes gets no vote",
        ELECTION,
        " and not ahead and not removed:",
        " and not ahead:",
        ALL,
    ),
    Mutant(
        "a vote is given to a log that is behind",
        ELECTION,
        "if state.election.leader_id is not None or request.log_end < state.log.last:",
        "if state.election.leader_id is not None:",
        ALL,
    ),
    Mutant(
        "a vote is given in an epoch that has a leader",
        ELECTION,
        "if state.election.leader_id is not None or request.log_end < state.log.last:",
        "if request.log_end < state.log.last:",
        ("tests/unit/quorum/core/test_following.py::test_a_follower_grants_no_vote_in_the_epoch_of_its_leader",),
    ),
    Mutant(
        "a candidate counts its own vote before it is durable",
        ELECTION,
        "if own and state.durable_write >= candidacy.vote_write:",
        "if own:",
        ALL,
    ),
    Mutant(
        "a voter whose disk hangs becomes a candidate",
        ELECTION,
        "if silent_ms >= self._state.config.fetch_timeout_ms:",
        "if False:",
        ALL,
    ),
    Mutant(
        "a candidate gives up the epoch in which a slow disk writes a vote for it",
        ELECTION,
        "case Candidate() if self._may_still_win(candidacy, now_ms):",
        "case Candidate() if False:",
        ALL,
    ),
    Mutant(
        "a candidate that was refused stays in its epoch",
        ELECTION,
        "return not refused and self._disk_silent_ms(now_ms)",
        "return self._disk_silent_ms(now_ms)",
        ALL,
    ),
    Mutant(
        "a candidate whose disk hangs stays a candidate",
        ELECTION,
        "return not refused and self._disk_silent_ms(now_ms) < self._state.config.fetch_timeout_ms",
        "return not refused",
        ALL,
    ),
    Mutant(
        "a candidate that waits for votes searches for no leader",
        SEARCH,
        " | Resigned() | Candidate(overdue=True):",
        " | Resigned():",
        ALL,
    ),
    Mutant(
        "a farewell of a leader that has resigned is forgotten",
        ELECTION,
        "if self._leaders.has_resigned(epoch):",
        "if False:",
        ALL,
    ),
    Mutant(
        "an unlisted voter becomes a candidate immediately after a farewell",
        ELECTION,
        "is_first = successors[:1] == (state.key,)",
        "is_first = state.key not in successors[1:]",
        ALL,
    ),
    Mutant(
        "the second successor becomes a candidate immediately after a farewell",
        ELECTION,
        "delay = min(longest, shortest << (place - 1))",
        "delay = 0",
        ALL,
    ),
    Mutant(
        "an idle leader may hold a fetch for longer than the fetch timeout",
        FOLLOWING,
        "return min(self._state.config.voter_wait_ms, self._state.config.fetch_timeout_ms // 3)",
        "return self._state.config.voter_wait_ms",
        (
            "tests/unit/quorum/core/test_following.py::test_a_follower_of_an_idle_leader_gets_replies_within_the_fetch_timeout",
        ),
    ),
    Mutant(
        "all successors in a large quorum become candidates at once",
        ELECTION,
        "shortest = longest >> min(last, DELAYS_MAX)",
        "shortest = longest >> last",
        ("tests/unit/quorum/core/test_following.py::test_successors_become_candidates_in_turn",),
    ),
    Mutant(
        "a paused leader becomes a candidate above the epoch of a node that is ahead",
        ELECTION,
        "if waited and not leader.paused and leader.handover is None",
        "if waited and leader.handover is None",
        (
            "tests/unit/quorum/core/test_contacts.py::test_a_leader_that_learns_of_a_later_epoch_starts_an_election_only_if_it_is_not_paused",
        ),
    ),
    Mutant(
        "a leader below a later epoch becomes a candidate immediately",
        ELECTION,
        "waited = now_ms - leader.outrun_ms >= state.config.fetch_timeout_ms",
        "waited = True",
        ALL,
    ),
    Mutant(
        "a slow voter is a successor like any other",
        ELECTION,
        "(voter != first, voter in slow, -ends[voter], voter)",
        "(voter != first, -ends[voter], voter)",
        ALL,
    ),
    Mutant(
        "a voter with a slow disk waits forever",
        ELECTION,
        "if follower.patient or follower.leader_ended or not self._timeouts.patience_ms(now_ms):",
        "if follower.leader_ended or not self._timeouts.patience_ms(now_ms):",
        ALL,
    ),
    Mutant(
        "a voter that waits for faster ones refuses their pre-votes",
        ELECTION,
        "follower.patient, follower.heard = True, False",
        "follower.patient = True",
        ALL,
    ),
    Mutant(
        "a follower with contact with its leader again is still patient",
        FOLLOWING,
        "follower.heard, follower.patient = True, False",
        "follower.heard = True",
        (
            "tests/unit/quorum/core/test_latency.py::test_a_follower_with_a_slow_disk_defers_to_other_candidates_again_after_it_regained_contact",
        ),
    ),
    Mutant(
        "a download does not count as contact with the leader",
        DOWNLOADS,
        "follower.heard, follower.patient = True, False",
        "follower.patient = False",
        ("tests/unit/quorum/core/test_latency.py::test_a_part_of_a_snapshot_counts_as_contact_with_the_leader",),
    ),
    Mutant(
        "a request that waited while the leader was stalled counts as contact",
        CONTACTS,
        "is_current = request.round >= leader.trusted_round",
        "is_current = True",
        ALL,
    ),
    Mutant(
        "a waiting FetchSnapshot counts as contact after the leader was stalled",
        SNAPSHOTS,
        "            self._contacts.hear(leader, progress, request, now_ms)\n",
        "            self._contacts.hear(leader, progress, request, now_ms)\n"
        "            progress.last_fetch_ms = now_ms\n",
        ALL,
    ),
    Mutant(
        "a download that continues after a hold-up is not contact",
        DOWNLOADS,
        "follower.round = max(follower.round, reply.round)",
        "pass",
        ALL,
    ),
    Mutant(
        "a change of the voters believes an answer that waited",
        MEMBERSHIP,
        "                work.probes.clear()\n",
        "",
        ALL,
    ),
    Mutant(
        "a voter that fetched before a change of the voters was requested confirms it",
        CHANGE_GATE,
        "if contacts.round_of(leader, key) >= work.confirmation.round}",
        "if True}",
        ALL,
    ),
    Mutant(
        "a change of the voters that waited for another one does not ask the voters again",
        MEMBERSHIP,
        "work.restart()  # another change was appended",
        "pass  # another change was appended",
        ALL,
    ),
    Mutant(
        "a fetch that waited measures a newcomer",
        REPLICATION,
        "        if is_current:\n            self._note_lag",
        "        if True:\n            self._note_lag",
        (
            "tests/unit/quorum/core/test_contacts.py::test_after_a_stall_only_fetches_of_the_new_round_count_as_progress_of_a_new_voter",
        ),
    ),
    Mutant(
        "an observer does not learn the round after a hold-up",
        REPLICATION,
        "if request.round < leader.trusted_round:",
        "if False:",
        ALL,
    ),
    Mutant(
        "another disk at a voter's address leaves the voter alive",
        CONTACTS,
        "leader.displaced[voter.key] = now_ms",
        "pass",
        ALL,
    ),
    Mutant(
        "a leader's announcement is repeated to a voter that fetches",
        CONTACTS,
        "announcement.due_ms = now_ms + self._state.config.fetch_timeout_ms // 2",
        "pass",
        ALL,
    ),
    Mutant(
        "a leader whose disk hangs leads forever where all disks are slow",
        CONTACTS,
        "min(4 * min(others), most)",
        "4 * min(others)",
        ALL,
    ),
    Mutant(
        "a silent voter counts as one with a fast disk",
        CONTACTS,
        "for key in state.other_voters if self.is_live(leader, key, now_ms)]",
        "for key in state.other_voters if key in leader.replicas]",
        ALL,
    ),
    Mutant(
        "a process that was stalled has a slow disk",
        LATENCY,
        "took_ms = now_ms - max(submitted_ms, self._steady_since_ms)",
        "took_ms = now_ms - submitted_ms",
        ALL,
    ),
    Mutant(
        "a process that was stalled blames its disk",
        CORE,
        "            state.latency.held_up(now_ms)\n",
        "",
        (
            "tests/unit/quorum/core/test_latency.py::test_a_fetch_after_a_stall_of_the_process_does_not_report_a_slow_disk",
        ),
    ),
    Mutant(
        "a disk is slow forever",
        LATENCY,
        "return self._peak_ms >> (now_ms - self._peak_at_ms) // HALVING_MS",
        "return self._peak_ms",
        ALL,
    ),
    Mutant(
        "a slow candidate does not extend its own election",
        TIMEOUTS,
        "longer = min(2 * write_ms, 2 * self._config.fetch_timeout_ms) if is_slow(write_ms, self._config) else 0",
        "longer = 0",
        (
            "tests/unit/quorum/core/test_latency.py::test_an_election_timeout_includes_the_time_of_the_candidates_writes",
        ),
    ),
    Mutant(
        "a candidacy with a hung disk has no end",
        TIMEOUTS,
        "longer = min(2 * write_ms, 2 * self._config.fetch_timeout_ms)",
        "longer = 100 * write_ms",
        (
            "tests/unit/quorum/core/test_latency.py::test_an_election_timeout_includes_the_time_of_the_candidates_writes",
        ),
    ),
    Mutant(
        "a voter without a leader and with a slow disk does not wait",
        TIMEOUTS,
        "return now_ms + timeout + self.draw(timeout) + self.patience_ms(now_ms)",
        "return now_ms + timeout + self.draw(timeout)",
        (
            "tests/unit/quorum/core/test_latency.py::test_a_voter_with_a_slow_disk_and_without_a_leader_becomes_a_candidate_later",
        ),
    ),
    Mutant(
        "leadership is handed to a preferred voter with a slow disk",
        HANDOVER,
        "        if self._has_slow_disk(leader, voter.key):\n",
        "        if False:\n",
        ALL,
    ),
    Mutant(
        "the next leader does not know that a handover failed",
        ELECTION,
        "            self._leaders.note_successors(request.epoch, request.successors)\n",
        "",
        ALL,
    ),
    Mutant(
        "the leader that handed over does not know that it failed",
        ELECTION,
        "            self._leaders.note_successors(state.epoch, successors)\n",
        "",
        ALL,
    ),
    Mutant(
        "leadership is transferred to a slow disk while a fast one is available",
        HANDOVER,
        "key=lambda key: (key not in slow, leader.replicas[key].end, -key.node_id)",
        "key=lambda key: (leader.replicas[key].end, -key.node_id)",
        ALL,
    ),
    Mutant(
        "a new leader commits records of older epochs by counting",
        REPLICATION,
        "if offset > leader.epoch_start:",
        "if offset >= leader.epoch_start:",
        ALL,
    ),
    Mutant(
        "a leader counts records that its disk has not confirmed",
        REPLICATION,
        "                state.log.durable_end\n                if voter.key == state.key",
        "                state.log.end\n                if voter.key == state.key",
        ALL,
    ),
    Mutant(
        "a fetch leaves before everything is durable",
        FOLLOWING,
        "if follower.leader_ended or not follower.fetch.is_due(now_ms) or not state.all_durable:",
        "if follower.leader_ended or not follower.fetch.is_due(now_ms):",
        ALL,
    ),
    Mutant(
        "a read shares a round that a reply has carried",
        CONTACTS,
        "if leader.round <= leader.reported_round:",
        "if leader.round < leader.reported_round:",
        ALL,
    ),
    Mutant(
        "a handover does not wait for the successor's log",
        HANDOVER,
        "if leader.replicas[to].end >= state.log.end:",
        "if leader.replicas[to].end >= state.high_watermark:",
        ALL,
    ),
    Mutant(
        "leadership is handed to a preferred voter before the own epoch has committed",
        HANDOVER,
        "if wanted is not None and state.high_watermark > leader.epoch_start and not leader.paused:",
        "if wanted is not None and not leader.paused:",
        (
            "tests/unit/quorum/core/test_contacts.py::test_a_leader_hands_over_to_a_preferred_voter_only_after_a_commit_in_its_own_epoch",
        ),
    ),
    Mutant(
        "a preferred voter that lost leadership early is preferred immediately",
        LEADER_HISTORY,
        "if now_ms - self._known_since_ms < self._state.config.steady_ms:",
        "if False:",
        ALL,
    ),
    Mutant(
        "a follower that is refused forgets which leader it lost",
        ELECTION,
        "self._transitions.become_follower(self._state.epoch, leader_id, address, now_ms, reason)",
        "self._transitions.become_unattached(self._state.epoch, now_ms, reason)",
        ALL,
    ),
    Mutant(
        "a restarted leader leads its epoch on",
        CORE,
        "if leader_id == state.key.node_id and state.is_voter:",
        "if False:",
        ALL,
    ),
    Mutant(
        "an epoch is sent before it is durable",
        STATE,
        "if self._new_epoch is None or self._new_epoch.write_id <= self.durable_write:",
        "if True:",
        ALL,
    ),
    Mutant(
        "an illegal transition goes unnoticed",
        TRANSITIONS,
        "assert step in _LEGAL",
        "assert step is not None",
        ("tests/unit/quorum/core/test_transitions.py",),
    ),
    Mutant(
        "a leader that was suspended acts before it notices that it is paused",
        CORE,
        "self._contacts.update_pause(leader, now_ms)  # this event may end a long suspension of the process",
        "pass",
        ("tests/unit/quorum/core/test_leading.py",),
    ),
    Mutant(
        "an address that another node reports replaces the voter's own",
        ADDRESSES,
        "if (known is None or not known.is_own) and",
        "if",
        (
            "tests/unit/quorum/core/test_addresses.py::test_the_address_that_a_voter_reports_itself_overrides_one_that_another_node_reports",
        ),
    ),
    Mutant(
        "an address in the log hides a newer one",
        ADDRESSES,
        "in_log is not None and in_log.address != voter.address",
        "in_log is not None",
        (
            "tests/unit/quorum/core/test_addresses.py::test_a_report_of_the_address_in_the_log_does_not_replace_a_reported_address",
        ),
    ),
    Mutant(
        "a node with a leader reports an address that is not in the log",
        "quorum/core/status.py",
        "if known is None or isinstance(self._state.role, Leader | Follower):",
        "if known is None:",
        (
            "tests/unit/quorum/core/test_addresses.py::test_a_node_reports_new_addresses_of_voters_only_while_it_has_no_leader",
        ),
    ),
)
