"""Mutants of broker/kafka."""

from __future__ import annotations

from tests.mutants import Mutant

CONNECTION = "broker/kafka/connection.py"

AUTO_TOPICS = "broker/kafka/auto_topics.py"

AUTO_TOPICS_TESTS = "tests/unit/broker/kafka/test_auto_topics.py"
DESCRIPTION_TESTS = "tests/unit/broker/kafka/test_descriptions.py"
BOUNDS_TESTS = "tests/unit/broker/kafka/test_listener_bounds.py"
CHANGES_TESTS = "tests/unit/broker/kafka/test_cluster_changes.py"
GROUP_TESTS = "tests/unit/broker/kafka/test_groups.py"
METADATA_TESTS = "tests/unit/broker/kafka/test_metadata.py"
LISTENER_TESTS = "tests/unit/broker/kafka/test_listener.py"

MUTANTS = (
    Mutant(
        "a group that a request repeats is described each time",
        "broker/kafka/groups.py",
        "names = tuple(dict.fromkeys(asked.request.groups))",
        "names = asked.request.groups",
        (f"{GROUP_TESTS}::test_a_group_that_describe_groups_names_repeatedly_is_described_once",),
    ),
    Mutant(
        "a topic that a request repeats is described each time",
        "broker/kafka/metadata.py",
        "return tuple(dict.fromkeys((None, topic.name) for topic in request.topics))",
        "return tuple((None, topic.name) for topic in request.topics)",
        (f"{METADATA_TESTS}::test_a_topic_that_a_request_repeats_is_described_once",),
    ),
    Mutant(
        "a topic that a request repeats by id is described each time",
        "broker/kafka/metadata.py",
        "return tuple(dict.fromkeys(names))",
        "return tuple(names)",
        (f"{METADATA_TESTS}::test_a_topic_that_a_request_repeats_is_described_once",),
    ),
    Mutant(
        "the lists of a request with too many changes are looked up",
        "broker/kafka/configs.py",
        "_TOO_MANY if too_many else _changes(resource, image, incremental)",
        "_changes(resource, image, incremental)",
        (
            "tests/unit/broker/kafka/test_admin.py::test_a_request_with_more_config_changes_than_the_limit_is_refused_before_any_lookup",
        ),
    ),
    Mutant(
        "a topic is deleted by its id although the request names another topic",
        "broker/kafka/admin.py",
        "if (topic.name is None) == (topic.topic_id is None):",
        "if topic.name is None and topic.topic_id is None:",
        (
            "tests/unit/broker/kafka/test_every_request_is_answered.py::test_delete_topics_refuses_a_topic_with_both_a_name_and_an_id_or_with_neither",
        ),
    ),
    Mutant(
        "the offsets of a group that a request repeats are read",
        "broker/kafka/group_offsets.py",
        "for name in named if named[name] == 1}",
        "for name in named}",
        (f"{GROUP_TESTS}::test_a_group_that_an_offset_fetch_repeats_is_refused_once_and_others_are_answered",),
    ),
    Mutant(
        "a coordinator keeps the calls of a lost connection",
        "broker/kafka/coordinated.py",
        "return Pending((future,), lambda: self.reply(values_of(result(future))), is_owned=True)",
        "return Pending((future,), lambda: self.reply(values_of(result(future))))",
        (f"{GROUP_TESTS}::test_a_lost_connection_cancels_its_calls",),
    ),
    Mutant(
        "a list of groups is incomplete while a partition loads",
        "broker/kafka/groups.py",
        "if isinstance(each, KafkaCode) and each is not KafkaCode.NOT_COORDINATOR]",
        "if each is KafkaCode.COORDINATOR_NOT_AVAILABLE]",
        (f"{GROUP_TESTS}::test_list_groups_is_refused_while_a_coordinator_loads_and_skips_a_coordinator_that_moved",),
    ),
    Mutant(
        "an old client gets no error if its member was unknown when it left",
        "broker/kafka/groups.py",
        "if asked.version < _FIRST_LEAVE_WITH_MEMBERS and error is KafkaCode.NONE:",
        "if asked.version < _FIRST_LEAVE_WITH_MEMBERS and error is not KafkaCode.NONE:",
        (f"{GROUP_TESTS}::test_leave_group_is_forwarded_and_answered_in_each_version",),
    ),
    Mutant(
        "answers about several groups are in the order of their partitions",
        "broker/kafka/coordinated.py",
        "                answers[position] = answer\n        return answers",
        "                answers[answers.index(None)] = answer\n        return answers",
        (f"{GROUP_TESTS}::test_describe_groups_is_forwarded_and_answered_in_each_version",),
    ),
    Mutant(
        "later requests are answered after one that failed",
        CONNECTION,
        "                freed += self._drop_line()\n",
        "                pass\n",
        (f"{BOUNDS_TESTS}::test_no_reply_is_sent_after_a_request_that_failed",),
    ),
    Mutant(
        "each of a thousand clients causes a creation",
        AUTO_TOPICS,
        "            if name not in self._under_way:\n",
        "            if True:\n",
        (f"{AUTO_TOPICS_TESTS}::test_a_thousand_requests_for_a_missing_topic_cause_one_creation",),
    ),
    Mutant(
        "internal topics are created automatically",
        AUTO_TOPICS,
        " or is_internal(name):\n",
        ":\n",
        (f"{AUTO_TOPICS_TESTS}::test_topics_with_invalid_or_reserved_names_are_not_created",),
    ),
    Mutant(
        "a refused topic is requested again without a pause",
        AUTO_TOPICS,
        "            self._pause(name)\n",
        "            self._under_way.discard(name)\n",
        (f"{AUTO_TOPICS_TESTS}::test_a_refused_creation_is_retried_after_a_pause",),
    ),
    Mutant(
        "a topic that exists is requested again until its creation is applied",
        AUTO_TOPICS,
        "            if is_ok(result):\n",
        "            if is_ok(result) or result.error == ApiError.TOPIC_ALREADY_EXISTS:\n",
        (f"{AUTO_TOPICS_TESTS}::test_a_topic_that_exists_is_not_requested_again_before_its_creation_is_applied",),
    ),
    Mutant(
        "a topic that another broker has created is logged as a refusal",
        AUTO_TOPICS,
        "            if result.error != ApiError.TOPIC_ALREADY_EXISTS:\n",
        "            if True:\n",
        (f"{AUTO_TOPICS_TESTS}::test_a_topic_that_exists_is_not_requested_again_before_its_creation_is_applied",),
    ),
    Mutant(
        "a page of topics skips the first partition of the next page",
        "broker/kafka/topic_partitions.py",
        '"partition_index": left[room].index}',
        '"partition_index": left[room].index + 1}',
        (f"{DESCRIPTION_TESTS}::test_successive_pages_of_topics_contain_every_partition_exactly_once",),
    ),
    Mutant(
        "ApiVersions advertises only the versions of Produce that are served, and old clients do not compress",
        "broker/kafka/handlers.py",
        "_ADVERTISED_LOW: Final = {Api.PRODUCE: 0}",
        "_ADVERTISED_LOW: Final[dict[Api, int]] = {}",
        (f"{LISTENER_TESTS}::test_produce_is_advertised_from_version_0_so_that_older_librdkafka_compresses",),
    ),
    Mutant(
        "a large frame must arrive while the broker does not read it",
        CONNECTION,
        "            if self._reading:\n                allowed",
        "            if True:\n                allowed",
        (f"{BOUNDS_TESTS}::test_a_frame_gets_the_full_time_again_once_the_broker_resumes_reading",),
    ),
    Mutant(
        "a small frame must arrive while the broker does not read it",
        CONNECTION,
        "or self._line or not self._reading:",
        "or self._line:",
        (f"{BOUNDS_TESTS}::test_a_slowly_reading_client_gets_time_to_send_the_rest_of_its_request",),
    ),
    Mutant(
        "a client that reads steadily is closed because further replies were added meanwhile",
        CONNECTION,
        "sent = self._written_bytes - unsent",
        "sent = -unsent",
        (f"{BOUNDS_TESTS}::test_a_steadily_reading_client_stays_connected_although_some_replies_are_always_unsent",),
    ),
    Mutant(
        "old producers receive an error of a loading coordinator that is fatal for them",
        "broker/kafka/transactions.py",
        "COORDINATOR_LOAD_IN_PROGRESS and version < _FIRST_COMMIT_WITH_LOADING",
        "COORDINATOR_LOAD_IN_PROGRESS and version < 0",
        (
            "tests/unit/broker/kafka/test_transactions.py"
            "::test_old_txn_offset_commits_report_a_loading_coordinator_as_not_available",
        ),
    ),
    Mutant(
        "replies to share consumers take as much memory as the clients allow",
        "broker/kafka/share_groups.py",
        "max_bytes=min(request.max_bytes, room())",
        "max_bytes=request.max_bytes",
        (
            "tests/unit/broker/kafka/test_share_groups.py"
            "::test_replies_to_share_consumers_have_the_same_memory_limit_as_replies_to_other_consumers",
        ),
    ),
    Mutant(
        "clients that are never idle keep followers out",
        "broker/kafka/listener.py",
        "limit += self.limits.inter_broker_connections_max",
        "limit += 0",
        (f"{BOUNDS_TESTS}::test_brokers_are_admitted_beyond_the_limit_of_clients_only_on_a_separate_listener",),
    ),
    Mutant(
        "each id of a DescribeTransactions counts as many waiting bytes as the whole request",
        "broker/kafka/transactions.py",
        "DescribeTransactions((name,)), size)",
        "DescribeTransactions((name,)), asked.size)",
        (
            "tests/unit/broker/kafka/test_transactions.py::test_the_sizes_of_the_calls_of_a_request_add_up_to_the_size_of_the_request",
        ),
    ),
    Mutant(
        "fetches that arrive together all get the room of the first one",
        "broker/kafka/data.py",
        "caller.hold(sum(map(len, parts)))",
        "caller.hold(0)",
        (f"{BOUNDS_TESTS}::test_replies_that_are_built_at_the_same_time_share_the_memory_limit",),
    ),
    Mutant(
        "share fetches that arrive together all get the room of the first one",
        "broker/kafka/share_groups.py",
        "asked.caller.hold(sum(map(len, parts or ())))",
        "asked.caller.hold(0)",
        (
            "tests/unit/broker/kafka/test_share_groups.py"
            "::test_replies_to_share_consumers_that_are_built_at_the_same_time_share_the_memory_limit",
        ),
    ),
    Mutant(
        "old Java clients receive levels at which they fail",
        "broker/kafka/features.py",
        "if levels[0] > 0 or version >= _FIRST_WITH_LEVEL_0",
        "if levels[0] >= 0",
        (f"{DESCRIPTION_TESTS}::test_api_versions_reports_features",),
    ),
    Mutant(
        "ApiVersions reports the features of an earlier time",
        "broker/kafka/handlers.py",
        "            self._api_versions.clear()\n",
        "            pass\n",
        (f"{DESCRIPTION_TESTS}::test_api_versions_reports_features",),
    ),
    Mutant(
        "the answer of a former leader describes the quorum",
        "quorumlog_server/quorum_view.py",
        "return reply if is_leaders else None",
        "return reply",
        ("tests/unit/broker/server/test_kafka_node.py::test_the_quorum_is_not_described_without_a_reachable_leader",),
    ),
    Mutant(
        "a place that a client's version does not have is answered",
        "broker/kafka/list_offsets.py",
        "version < _FIRST_WITH.get(timestamp, version + 1)",
        "version < _FIRST_WITH.get(timestamp, 0)",
        (f"{DESCRIPTION_TESTS}::test_list_offsets_answers_each_special_timestamp_from_the_version_that_introduced_it",),
    ),
    Mutant(
        "a voter is removed regardless of its disk",
        "broker/kafka/voters.py",
        "change = pb.RemoveVoter(node_id=request.voter_id, directory_id=request.voter_directory_id.bytes)",
        "change = pb.RemoveVoter(node_id=request.voter_id)",
        (f"{CHANGES_TESTS}::test_remove_raft_voter_forwards_the_directory_id",),
    ),
    Mutant(
        "a feature is raised although another one is refused",
        "broker/kafka/features.py",
        'if all(is_ok(each) for each in results) and not getattr(request, "validate_only", False):',
        'if not getattr(request, "validate_only", False):',
        (f"{CHANGES_TESTS}::test_no_feature_is_changed_if_one_update_of_the_request_is_refused",),
    ),
    Mutant(
        "a quota is accepted without effect",
        "broker/kafka/security.py",
        "if not all(each.remove for each in entry.ops):",
        "if False:",
        (
            "tests/unit/broker/kafka/test_security_is_off.py::test_setting_a_quota_is_refused_and_removing_a_missing_quota_succeeds",
        ),
    ),
    Mutant(
        "a replica may move to a directory that has failed",
        "broker/kafka/logs.py",
        "return KafkaCode.KAFKA_STORAGE_ERROR if wanted.is_failed else KafkaCode.NONE",
        "return KafkaCode.NONE",
        ("tests/unit/broker/kafka/test_log_directories.py::test_a_replica_moves_only_to_a_directory_that_works",),
    ),
    Mutant(
        "a broker describes its own settings as those of another one",
        "broker/kafka/config_descriptions.py",
        "            if asked == self._this_broker:\n",
        "            if True:\n",
        (
            "tests/unit/broker/kafka/test_admin.py::test_the_description_of_another_broker_has_only_configs_from_the_metadata",
        ),
    ),
    Mutant(
        "a topic is described with the values of another one",
        "broker/kafka/config_descriptions.py",
        "            value = own.get(key)\n",
        "            value = None\n",
        ("tests/unit/broker/kafka/test_config_descriptions.py::test_each_resource_is_described_with_its_own_values",),
    ),
    Mutant(
        "a request for the configs of many topics holds up everything else",
        "broker/kafka/config_descriptions.py",
        "        await turn.passed()\n",
        "",
        (
            "tests/unit/broker/kafka/test_config_descriptions.py::test_other_tasks_run_while_many_resources_are_described",
        ),
    ),
    Mutant(
        "the removal of an unknown config is refused",
        "broker/kafka/configs.py",
        "            if known is not None:  # an unknown config is not set, so its removal has succeeded already\n",
        "            if True:\n",
        ("tests/unit/broker/kafka/test_admin.py::test_the_removal_of_a_config_that_is_not_set_succeeds",),
    ),
    Mutant(
        "records that a share group has accepted out of order count as its lag",
        "broker/kafka/share_offsets.py",
        "ends[key] - state.start_offset - state.done_count)",
        "ends[key] - state.start_offset)",
        (
            "tests/unit/broker/kafka/test_share_offsets.py::test_the_lag_counts_the_records_that_are_not_yet_acknowledged",
        ),
    ),
    Mutant(
        "one leader that does not answer fails the description of a share group",
        "broker/kafka/share_offsets.py",
        " and state.start_offset >= 0 and key in ends:",
        " and state.start_offset >= 0:",
        (
            "tests/unit/broker/kafka/test_share_offsets.py"
            "::test_a_partition_whose_leader_does_not_answer_has_a_start_offset_but_no_lag",
        ),
    ),
    Mutant(
        "a share partition that nobody has read has a lag",
        "broker/kafka/share_offsets.py",
        "    return response.state is not None and response.state.start_offset >= 0",
        "    return response.state is not None",
        ("tests/unit/broker/kafka/test_share_offsets.py::test_only_partitions_with_a_start_offset_have_a_lag",),
    ),
)
