"""Mutants of metadata/controller and of the client that calls it."""

from __future__ import annotations

from tests.mutants import Mutant

ACTIVE = "metadata/controller/active.py"
CONFIGS = "metadata/controller/configs.py"
DESCRIBE = "metadata/controller/describe.py"
SERVICE = "metadata/controller/service.py"
BACKGROUND = "metadata/controller/background.py"
BALANCE = "metadata/controller/balance.py"
FENCING = "metadata/controller/fencing.py"
REFUSALS = "metadata/controller/refusals.py"
SESSIONS = "metadata/controller/sessions.py"
NODE = "quorum/node.py"
TURNS = "quorumlog/runtime/turns.py"
CLIENT = "quorumlog/client/controller.py"
ACTIVE_TESTS = "tests/unit/metadata/controller/test_controller.py"
ADMIN_TESTS = "tests/unit/metadata/controller/test_admin_service.py"
NODE_SERVICE_TESTS = "tests/unit/metadata/controller/test_node_service.py"
BALANCE_TESTS = "tests/unit/metadata/control/test_balance.py"
BACKGROUND_TESTS = "tests/unit/metadata/controller/test_background.py"
REFUSAL_TESTS = "tests/unit/metadata/controller/test_refusals.py"
VOTER_TESTS = "tests/unit/metadata/controller/test_service_voters.py"
CLIENT_TESTS = "tests/unit/quorumlog/client/test_controller_client.py"

MUTANTS = (
    Mutant(
        "a leader that cannot become active does not hand over",
        SERVICE,
        "voters.transfer_leader, needs_controller=False)",
        "voters.transfer_leader)",
        (f"{VOTER_TESTS}::test_a_leader_that_is_not_active_hands_over",),
    ),
    Mutant(
        "a request waits for its turn beyond its deadline",
        SERVICE,
        "async with asyncio.timeout_at(deadline):\n                        await self._turn()",
        "async with asyncio.timeout_at(None):\n                        await self._turn()",
        (
            "tests/unit/metadata/controller/test_service_load.py"
            "::test_a_request_that_queues_behind_slow_ones_is_answered_before_its_timeout",
        ),
    ),
    Mutant(
        "a day's deleted topics are forgotten in batches hours apart, more slowly than others are deleted",
        ACTIVE,
        "lambda image: forget_topics(image, due)).more:",
        "lambda image: forget_topics(image, due)) is None:",
        (f"{BACKGROUND_TESTS}::test_all_names_of_deleted_topics_that_are_due_are_removed_together",),
    ),
    Mutant(
        "a codec whose library is missing is accepted for a new topic",
        "metadata/controller/topics.py",
        "            unavailable=unavailable,\n",
        "",
        (f"{ADMIN_TESTS}::test_a_codec_whose_library_is_missing_is_refused_with_the_reason",),
    ),
    Mutant(
        "a codec whose library is missing is accepted for a topic that exists",
        CONFIGS,
        "validate_only=request.header.validate_only, unavailable=unavailable",
        "validate_only=request.header.validate_only",
        (f"{ADMIN_TESTS}::test_a_codec_whose_library_is_missing_is_refused_with_the_reason",),
    ),
    Mutant(
        "partitions stay without a leader if the heartbeat that elects them is interrupted",
        ACTIVE,
        "if first.records and isinstance(answer, Outcome):",
        "if not first.records and isinstance(answer, Outcome):",
        (f"{BACKGROUND_TESTS}::test_partitions_get_leaders_although_the_heartbeat_that_elects_them_is_interrupted",),
    ),
    Mutant(
        "descriptions of many configs stop the controller",
        CONFIGS,
        "        await turn.passed()\n",
        "",
        (f"{ADMIN_TESTS}::test_other_tasks_run_while_the_configs_of_many_resources_are_described",),
    ),
    Mutant(
        "a heartbeat whose batch has too many bytes fails",
        ACTIVE,
        "        except BatchTooLargeError:\n            return TOO_LARGE\n        if not first",
        "        if not first",
        (f"{ACTIVE_TESTS}::test_a_heartbeat_whose_batch_has_too_many_bytes_is_refused",),
    ),
    Mutant(
        "names of topics are sorted in one turn of the loop",
        DESCRIBE,
        "    for name in await turn.sorted(set(names) if names else image.topic_ids, key=str):\n        topic_id =",
        "    for name in sorted(set(names) if names else image.topic_ids):\n        topic_id =",
        (f"{NODE_SERVICE_TESTS}::test_other_tasks_run_while_the_names_of_many_topics_are_described",),
    ),
    Mutant(
        "names of topics are described in one turn of the loop",
        DESCRIBE,
        "topic_id=topic_id.bytes)\n        await turn.passed()\n",
        "topic_id=topic_id.bytes)\n",
        (f"{NODE_SERVICE_TESTS}::test_other_tasks_run_while_the_names_of_many_topics_are_described",),
    ),
    Mutant(
        "partitions are counted in one turn of the loop",
        DESCRIBE,
        "len(topic.partitions)\n        await turn.passed()\n",
        "len(topic.partitions)\n",
        (f"{NODE_SERVICE_TESTS}::test_other_tasks_run_while_a_description_is_refused_as_too_large",),
    ),
    Mutant(
        "configs of groups are described in one turn of the loop",
        DESCRIBE,
        "value=values[key])\n        await turn.passed()\n",
        "value=values[key])\n",
        (f"{NODE_SERVICE_TESTS}::test_other_tasks_run_while_the_configs_of_many_groups_are_described",),
    ),
    Mutant(
        "sorted runs of items are merged in one turn of the loop",
        TURNS,
        "            merged.append(item)\n            await self.passed()\n",
        "            merged.append(item)\n",
        (f"{NODE_SERVICE_TESTS}::test_other_tasks_run_while_the_names_of_many_topics_are_described",),
    ),
    Mutant(
        "the size of described configs is unlimited",
        CONFIGS,
        "if size > REPLY_MAX_BYTES:",
        "if size < 0:",
        (f"{ADMIN_TESTS}::test_configs_that_do_not_fit_into_one_answer_are_refused",),
    ),
    Mutant(
        "a background step that was refused for now does not run again",
        BACKGROUND,
        "after_s = RETRY_S",
        "after_s = None",
        (f"{BACKGROUND_TESTS}::test_leader_balance_continues_after_a_refused_append",),
    ),
    Mutant(
        "every change of a config delays the balance of leaders",
        BALANCE,
        "if any(before.cluster_config(key) != after.cluster_config(key) for key in (ENABLE, INTERVAL_MS)):",
        "if after is not before:",
        (f"{BALANCE_TESTS}::test_changes_of_other_configs_do_not_delay_leader_balancing",),
    ),
    Mutant(
        "no election follows a config that permits unclean ones",
        ACTIVE,
        "            leadership.election.wake()  # an unclean election may be permitted now\n",
        "",
        (f"{ADMIN_TESTS}::test_an_unclean_election_is_made_once_the_config_allows_it",),
    ),
    Mutant(
        "a change waits at a node that knows no leader although another one does",
        CLIENT,
        "(look.is_leaderless and attempts.put_off(address))",
        "False",
        (f"{CLIENT_TESTS}::test_a_change_is_not_sent_to_a_node_without_a_leader_if_another_node_has_one",),
    ),
    Mutant(
        "a refused registration ends the session before it",
        ACTIVE,
        "            if decision.records and not decision.more:\n                epoch",
        "            if decision.records and not decision.more:\n"
        "                self._leadership.fencing.sessions.drop(request.broker_id)\n                epoch",
        (f"{BACKGROUND_TESTS}::test_a_refused_registration_keeps_the_session_of_the_earlier_incarnation",),
    ),
    Mutant(
        "a request that appends no record is answered without proof of the leadership",
        ACTIVE,
        "if not appended:\n                    await self._node.confirm_read(int(timeout_ms))",
        "if appended:\n                    await self._node.confirm_read(int(timeout_ms))",
        (f"{ACTIVE_TESTS}::test_an_unconfirmed_leader_serves_no_requests",),
    ),
    Mutant(
        "a controller that was stalled fences all brokers",
        FENCING,
        "self.sessions.renew(now)",
        "pass",
        (f"{ACTIVE_TESTS}::test_a_pause_of_the_controller_fences_no_broker",),
    ),
    Mutant(
        "sessions end during a pause of the leadership",
        SESSIONS,
        "return max(session.last_contact, self._resumed_at()) + self._timeout",
        "return session.last_contact + self._timeout",
        (
            f"{BACKGROUND_TESTS}::test_every_broker_gets_a_full_session_after_a_pause_of_the_controller",
            "tests/simulation/test_outage.py::test_no_broker_is_fenced_after_an_outage",
        ),
    ),
    Mutant(
        "a leader does not remember the end of its pause",
        NODE,
        "        self._resumed_at = asyncio.get_running_loop().time()",
        "        pass",
        ("tests/simulation/test_outage.py::test_no_broker_is_fenced_after_an_outage",),
    ),
    Mutant(
        "a fencing that takes several batches stops when a heartbeat comes between",
        FENCING,
        "self._under_way = (broker_id, why) if decision.more else None",
        "self._under_way = None",
        (f"{BACKGROUND_TESTS}::test_a_started_fencing_is_finished_despite_a_heartbeat_between_its_batches",),
    ),
    Mutant(
        "a heartbeat after the evidence does not count",
        FENCING,
        "if self.sessions.get(broker_id) is session and session.last_contact == heard_at:",
        "if self.sessions.get(broker_id) is session:",
        (f"{REFUSAL_TESTS}::test_a_heartbeat_after_the_refused_connections_prevents_the_fencing",),
    ),
    Mutant(
        "a heartbeat during the last round is overlooked",
        REFUSALS,
        "if is_silent():  # a heartbeat may have come during the last round",
        "if True:",
        (f"{REFUSAL_TESTS}::test_a_heartbeat_during_the_last_round_ends_the_examination",),
    ),
    Mutant(
        "evidence counts from the time at which it is reported",
        FENCING,
        "self._gone[broker_id] = (session, heard_at)",
        "self._gone[broker_id] = (session, session.last_contact)",
        (f"{REFUSAL_TESTS}::test_refused_connections_before_the_last_heartbeat_fence_no_broker",),
    ),
    Mutant(
        "a timeout is treated as a refusal",
        REFUSALS,
        "if answer is not Answer.REFUSED:",
        "if answer is Answer.ACCEPTED:",
        (f"{REFUSAL_TESTS}::test_a_broker_with_an_address_that_hangs_is_not_fenced_early",),
    ),
    Mutant(
        "refusals with something else between them add up",
        REFUSALS,
        "                refused = 0\n",
        "",
        (f"{REFUSAL_TESTS}::test_the_count_of_refused_rounds_restarts_after_any_other_result",),
    ),
    Mutant(
        "an address counts that has never accepted",
        REFUSALS,
        "found = [await self._accepting(where) for where in wanted]",
        "found = [await self._accepting(where) or where for where in wanted]",
        (REFUSAL_TESTS,),
    ),
    Mutant(
        "one address that refuses is enough",
        REFUSALS,
        "if len(wanted) > 1 and found[0] is not None and any(found[1:]):",
        "if any(found):",
        (REFUSAL_TESTS,),
    ),
    Mutant(
        "examinations continue after the leadership",
        REFUSALS,
        "background.on_stop(self._stop)",
        "pass",
        (f"{REFUSAL_TESTS}::test_no_broker_is_examined_after_the_leadership_has_ended",),
    ),
    Mutant(
        "a client sends a change to a node that hangs",
        CLIENT,
        "                return _Look(silence=reason)\n",
        "",
        (f"{CLIENT_TESTS}::test_no_change_is_sent_to_a_node_that_hangs",),
    ),
    Mutant(
        "a client asks a node that hangs although another answers",
        CLIENT,
        "        self._avoided.clear()",
        "        pass",
        (f"{CLIENT_TESTS}::test_an_avoided_node_is_not_asked_while_another_node_answers",),
    ),
    Mutant(
        "the topics that had write.caching do not reach the controller's decision",
        "metadata/controller/brokers.py",
        "early_topics = convert.early_topics(request)",
        "early_topics = frozenset()",
        ("tests/simulation/test_write_caching.py",),
    ),
    Mutant(
        "a damaged id of a topic that had write.caching is accepted",
        "metadata/controller/convert.py",
        'codec.uuid_from(each, "topic id") for each in request.early_topic_ids',
        "UUID(bytes=each.ljust(16)) for each in request.early_topic_ids",
        ("tests/unit/metadata/controller/test_service.py::test_malformed_requests_are_refused_with_an_error_code",),
    ),
)
