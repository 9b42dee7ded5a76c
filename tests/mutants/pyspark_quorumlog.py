"""Mutants of pyspark_quorumlog: the batches of a stream, and the tasks of a read."""

from __future__ import annotations

from tests.mutants import Mutant

STREAM = "pyspark_quorumlog/stream_plan.py"
DRIVER = "pyspark_quorumlog/stream_reading.py"
PLAN = "pyspark_quorumlog/plan.py"
LOOKUP = "pyspark_quorumlog/lookup.py"
READING = "pyspark_quorumlog/reading.py"
TRANSACTIONS = "pyspark_quorumlog/transactions.py"
UNIT = "tests/unit/pyspark_quorumlog"
TWIN = "tests/properties/test_stream_plan.py"

MUTANTS = (
    Mutant(
        "a repeated batch is written again",
        "pyspark_quorumlog/writing.py",
        "if scope.last_sequence >= attempt.sequence:",
        "if scope.last_sequence > attempt.sequence:",
        ("tests/spark/test_exactly_once.py::test_a_repeated_batch_writes_nothing",),
    ),
    Mutant(
        "the option resets the scope of its own query",
        TRANSACTIONS,
        "        return await scopes.open(*names, timeout_s)\n    except",
        "        return await scopes.open(*names, timeout_s, reset=attempt.may_reset)\n    except",
        (f"{UNIT}/test_transactions.py",),
    ),
    Mutant(
        "attempts of two runs are committed together",
        TRANSACTIONS,
        "    if len(found) > 1:\n",
        "    if False:\n",
        (f"{UNIT}/test_transactions.py",),
    ),
    Mutant(
        "attempts of a batch that another driver committed stay open",
        TRANSACTIONS,
        "    if winners and not ended.changed:",
        "    if False:",
        (f"{UNIT}/test_transactions.py",),
    ),
    Mutant(
        "a batch of an older checkpoint is skipped silently",
        TRANSACTIONS,
        "    if not ended.changed and ended.last_sequence > sequence:",
        "    if False:",
        (f"{UNIT}/test_transactions.py",),
    ),
    Mutant(
        "an attempt that outlives its write opens the scope again",
        TRANSACTIONS,
        "    if attempt.ready is not None:\n",
        "    if False:\n",
        (f"{UNIT}/test_transactions.py",),
    ),
    Mutant(
        "a committed write fails because its scope cannot be deleted",
        TRANSACTIONS,
        "        await scopes.delete(scope, timeout_s)\n    except ClusterError as error:\n",
        "        await scopes.delete(scope, timeout_s)\n    except KeyError as error:\n",
        (f"{UNIT}/test_transactions.py",),
    ),
    Mutant(
        "an aborted transaction of a producer never ends for a reader",
        "quorumlog/client/records.py",
        "            self._open.discard(header.producer_id)\n",
        "",
        ("tests/unit/quorumlog/client/test_aborted.py",),
    ),
    Mutant(
        "a reader shows the first batch of an aborted transaction",
        "quorumlog/client/records.py",
        "self._ahead[-1][1] <= header.last_offset",
        "self._ahead[-1][1] < header.base_offset",
        ("tests/unit/quorumlog/client/test_aborted.py",),
    ),
    Mutant(
        "a position in an undecided transaction counts as lost",
        LOOKUP,
        "if watermarks[one] >= reached[one]",
        "if False",
        ("tests/spark/test_isolation.py::test_a_position_beyond_the_last_stable_offset_is_no_loss",),
    ),
    Mutant(
        "a limit starves a small partition",
        STREAM,
        "max(1, offsets_max * backlog // total)",
        "offsets_max * backlog // total",
        (f"{UNIT}/test_stream_plan.py::test_a_limit_is_shared_in_proportion_and_starves_no_partition",),
    ),
    Mutant(
        "a deleted partition stays in the offsets forever",
        STREAM,
        "                    if one in self._missing:\n",
        "                    if False:\n",
        (f"{UNIT}/test_stream_plan.py::test_a_partition_is_dropped_when_it_is_missing_in_two_consecutive_batches",),
    ),
    Mutant(
        "a partition that is unknown for a while is dropped at once",
        STREAM,
        "                    if one in self._missing:\n",
        "                    if True:\n",
        (f"{UNIT}/test_stream_plan.py::test_a_partition_is_dropped_when_it_is_missing_in_two_consecutive_batches",),
    ),
    Mutant(
        "the first batch of a query has records",
        STREAM,
        "if held == start and (offsets_max is not None or self._holds_single_batch):",
        "if False:",
        (f"{UNIT}/test_stream_reading.py::test_records_that_are_deleted_while_a_first_batch_is_repeated_are_a_loss",),
    ),
    Mutant(
        "a single batch from the latest offsets has records",
        STREAM,
        "(offsets_max is not None or self._holds_single_batch)",
        "offsets_max is not None",
        (f"{UNIT}/test_stream_reading.py::test_a_first_batch_that_is_repeated_after_a_restart_loses_nothing",),
    ),
    Mutant(
        "the batch after a repeated first batch is empty",
        DRIVER,
        "if self._planner.release() or not",
        "if not",
        (f"{UNIT}/test_stream_reading.py::test_the_batch_after_a_first_batch_that_was_repeated_has_records",),
    ),
    Mutant(
        "a repeated first batch reads a topic that was unknown for a while",
        STREAM,
        "return held is not None and self._holds_single_batch",
        "return False",
        (
            f"{UNIT}/test_stream_reading.py"
            "::test_a_first_batch_that_is_repeated_reads_nothing_of_a_topic_that_a_broker_does_not_know_yet",
        ),
    ),
    Mutant(
        "deleted offsets count for the limit of a batch",
        STREAM,
        "or (is_limited and one in unread)",
        "",
        (f"{UNIT}/test_stream_reading.py::test_a_limited_stream_skips_deleted_offsets_at_once",),
    ),
    Mutant(
        "a topic that was created again is read on",
        DRIVER,
        "            found.add(name)\n",
        "            pass\n",
        (
            f"{UNIT}/test_stream_reading.py::test_a_topic_that_was_created_again_ends_a_query",
            f"{UNIT}/test_stream_reading.py::test_a_topic_that_was_created_again_and_outgrew_the_position_is_a_loss",
        ),
    ),
    Mutant(
        "a topic that lost partitions is read again",
        DRIVER,
        "if not (lost_partitions and new.leader_epochs.items() <= old.leader_epochs.items()):",
        "if True:",
        (
            f"{UNIT}/test_stream_reading.py"
            "::test_a_topic_that_lost_a_partition_and_got_another_id_is_read_on_from_its_position",
        ),
    ),
    Mutant(
        "a smaller topic that Apache Kafka created again is read on",
        DRIVER,
        "lost_partitions = loses_partitions and len",
        "lost_partitions = len",
        (
            f"{UNIT}/test_stream_reading.py"
            "::test_a_topic_that_apache_kafka_creates_again_with_fewer_partitions_is_read_from_its_start",
        ),
    ),
    Mutant(
        "a new topic id is forgotten while its batch waits",
        DRIVER,
        "if not again or planned.offsets != start:",
        "if True:",
        (f"{UNIT}/test_stream_reading.py::test_a_waiting_batch_still_notices_a_topic_that_was_created_again",),
    ),
    Mutant(
        "the id of a deleted topic is forgotten before its position",
        DRIVER,
        "self._topics = {**deleted, **found.topics}",
        "self._topics = found.topics",
        (
            f"{UNIT}/test_stream_reading.py"
            "::test_a_topic_that_is_created_again_after_its_deletion_was_noticed_is_read_from_its_start",
        ),
    ),
    Mutant(
        "a batch of a deleted topic is planned with its old end again and again",
        DRIVER,
        "                self._ends = {}  # they contain the deleted partition\n",
        "",
        (f"{UNIT}/test_stream_reading.py::test_a_topic_that_is_deleted_while_a_batch_is_planned_is_a_loss",),
    ),
    Mutant(
        "one look decides that a partition was deleted",
        DRIVER,
        "is_unclear = now < asked_until and any",
        "is_unclear = False and any",
        (f"{UNIT}/test_stream_reading.py::test_a_batch_is_repeated_whole_although_one_broker_does_not_know_its_topic",),
    ),
    Mutant(
        "one late answer decides that a partition was deleted",
        DRIVER,
        "missing_since.get(one, now)",
        "missing_since.get(one, 0.0)",
        (f"{UNIT}/test_stream_reading.py::test_one_late_answer_does_not_prove_that_a_topic_was_deleted",),
    ),
    Mutant(
        "one late answer ends the range of a task",
        LOOKUP,
        "    deadline: float | None = None\n",
        "    deadline: float | None = loop.time() + DELETED_AFTER_S\n",
        (f"{UNIT}/test_reading.py::test_one_late_answer_does_not_prove_that_the_partition_of_a_range_was_deleted",),
    ),
    Mutant(
        "a batch that is repeated omits a topic that left the options",
        DRIVER,
        "existing = {one for one in reached if found.has(one)}",
        "existing = {one for one in reached if one in found.subscribed}",
        (f"{UNIT}/test_stream_reading.py::test_a_batch_is_repeated_whole_although_a_topic_left_the_subscription",),
    ),
    Mutant(
        "a stream asks for the ends of topics that left its options",
        DRIVER,
        "*(existing if reads_all else ())",
        "*existing",
        (
            f"{UNIT}/test_stream_reading.py::test_a_topic_that_left_the_subscription_may_be_offline",
            f"{UNIT}/test_stream_reading.py"
            "::test_a_topic_that_left_the_subscription_and_was_created_again_delays_no_batch",
        ),
    ),
    Mutant(
        "a batch that is repeated omits the ends of a topic that left the options",
        DRIVER,
        "{one: end[one] for one in wanted}, reads_all=True",
        "{one: end[one] for one in wanted}",
        (f"{UNIT}/test_stream_reading.py::test_a_batch_is_repeated_whole_although_a_topic_left_the_subscription",),
    ),
    Mutant(
        "a misspelt setting of Kafka's clients is ignored silently",
        "pyspark_quorumlog/options.py",
        "near = get_close_matches(name, known, 1, _MISSPELT_FROM)\n",
        "continue\n",
        (f"{UNIT}/test_options.py::test_a_write_option_without_effect_is_accepted_with_a_warning",),
    ),
    Mutant(
        "a warning recommends an unrelated option",
        "pyspark_quorumlog/options.py",
        "_MISSPELT_FROM = 0.92",
        "_MISSPELT_FROM = 0.6",
        (f"{UNIT}/test_options.py::test_a_read_option_without_effect_is_accepted_with_a_warning",),
    ),
    Mutant(
        "the name of a scope that a write does not use is accepted silently",
        "pyspark_quorumlog/options.py",
        "    if parsed.atomic is False:\n",
        "    if False:\n",
        (f"{UNIT}/test_options.py::test_a_write_option_without_effect_is_accepted_with_a_warning",),
    ),
    Mutant(
        "the address of a broker with a protocol is refused",
        "pyspark_quorumlog/options.py",
        '_PLAINTEXT.sub("", part)',
        "part",
        (f"{UNIT}/test_options.py::test_names_are_case_insensitive_and_lists_are_split",),
    ),
    Mutant(
        "an invalid address is not found among the options",
        "pyspark_quorumlog/options.py",
        "            parse_target(server)\n",
        "            pass\n",
        (f"{UNIT}/test_options.py::test_the_refusal_of_a_bad_read_option_names_the_option",),
    ),
    Mutant(
        "an older PySpark skips the data sources of all packages",
        "pyspark_quorumlog/__init__.py",
        "except ImportError:",
        "except KeyError:",
        (f"{UNIT}/test_unusable.py",),
    ),
    Mutant(
        "a pattern with sets of Java matches other topics",
        "pyspark_quorumlog/options.py",
        're.search(r"\\[|&&", _ESCAPE',
        're.search(r"&&", _ESCAPE',
        (f"{UNIT}/test_options.py::test_a_pattern_that_java_reads_differently_is_refused",),
    ),
    Mutant(
        "a pattern matches internal topics",
        LOOKUP,
        "not state.is_internal and pattern",
        "pattern",
        (f"{UNIT}/test_stream_reading.py::test_a_pattern_does_not_match_internal_topics",),
    ),
    Mutant(
        "the same broker is asked again",
        LOOKUP,
        "    cluster_of(options).ask_another_broker()\n",
        "",
        (f"{UNIT}/test_stream_reading.py::test_a_topic_that_one_broker_does_not_know_is_not_treated_as_deleted",),
    ),
    Mutant(
        "a task skips its range when the leader does not know the partition",
        READING,
        "if self._runner.run(is_deleted(self._options, (self._task.topic, self._task.partition))):",
        "if True:",
        (f"{UNIT}/test_reading.py::test_a_leader_that_does_not_know_its_partition_yet_delays_a_range",),
    ),
    Mutant(
        "a task skips its range when the committed end is lower for a while",
        READING,
        "if error.offset > error.end and now - beyond_since < patience_s:",
        "if False:",
        (f"{UNIT}/test_reading.py::test_a_leader_whose_high_watermark_lags_for_a_while_delays_a_range",),
    ),
    Mutant(
        "a task waits for the records of a former leader",
        READING,
        "            if now >= look_at:",
        "            if False:",
        (f"{UNIT}/test_reading.py::test_a_range_is_read_from_the_current_leader_although_a_former_one_answers",),
    ),
    Mutant(
        "the place of a malformed record counts from the start of the fetched data",
        "pyspark_quorumlog/arrow.py",
        "error.position - spans[error.span].start",
        "error.position",
        (
            "tests/properties/test_records_codec.py::test_place_of_a_malformed_record_counts_from_the_start_of_its_batch",
        ),
    ),
    Mutant(
        "the text of a topic in one Arrow batch has no limit",
        "pyspark_quorumlog/arrow.py",
        'TOPIC_COLUMN_SIZE_MAX_BYTES // len(topic.encode()) if "topic" in columns else rows',
        "rows",
        (
            "tests/properties/test_records_codec.py::test_rows_are_divided_before_the_text_of_their_topic_exceeds_its_limit",
        ),
    ),
    Mutant(
        "the name of a header becomes text that is not UTF-8",
        "pyspark_quorumlog/arrow.py",
        "            names.validate(full=True)\n",
        "            pass\n",
        ("tests/properties/test_records_codec.py::test_a_header_name_that_is_not_utf_8_becomes_text_that_is",),
    ),
    Mutant(
        "the error about a topic that is not UTF-8 does not name it",
        "pyspark_quorumlog/arrow.py",
        "    except UnicodeDecodeError as error:\n",
        "    except KeyError as error:\n",
        (f"{UNIT}/test_writing.py::test_a_row_whose_topic_is_not_utf_8_is_named",),
    ),
    Mutant(
        "a header without a key is written",
        "pyspark_quorumlog/arrow.py",
        "(found.values.null_count or found.values.field(0).null_count)",
        "found.values.null_count",
        (f"{UNIT}/test_writing.py::test_a_header_without_a_key_is_named_although_another_key_is_not_utf_8",),
    ),
    Mutant(
        "the collection after each task walks the modules",
        "pyspark_quorumlog/worker.py",
        "    keep_loaded()\n",
        "",
        (f"{UNIT}/test_worker.py",),
    ),
    Mutant(
        "a worker keeps its garbage for ever",
        "pyspark_quorumlog/worker.py",
        "    gc.collect()  #",
        "    #",
        (f"{UNIT}/test_worker.py",),
    ),
    Mutant(
        "a write asks one broker for its topic",
        "pyspark_quorumlog/writing.py",
        "            self._cluster.ask_another_broker()\n            await",
        "            await",
        (f"{UNIT}/test_writing.py::test_a_topic_that_one_broker_does_not_know_yet_is_written",),
    ),
    Mutant(
        "a write asks one broker for a new partition",
        "pyspark_quorumlog/writing.py",
        "            self._cluster.ask_another_broker()\n            found",
        "            found",
        (f"{UNIT}/test_writing.py::test_a_partition_that_one_broker_does_not_know_yet_is_written",),
    ),
    Mutant(
        "a row without a key goes to a partition that is offline",
        "pyspark_quorumlog/writing.py",
        "if self._cluster.known_leader(topic, index) is not None",
        "",
        (f"{UNIT}/test_writing.py::test_rows_without_a_key_go_to_partitions_that_have_a_leader",),
    ),
    Mutant(
        "a new partition is read from its end",
        STREAM,
        "first = start.get(one, bounds[one].start)",
        "first = start.get(one, bounds[one].end)",
        (f"{TWIN}::test_each_record_is_read_once_and_in_order",),
    ),
    Mutant(
        "a pinned query reads records that came later",
        STREAM,
        "min(ends[one], self._pinned[one])",
        "ends[one]",
        (f"{UNIT}/test_stream_plan.py::test_a_pinned_query_ends_at_the_pinned_offsets",),
    ),
    Mutant(
        "a stream looks up its first position again",
        DRIVER,
        "if self._initial is None:",
        "if True:",
        (f"{UNIT}/test_stream_reading.py::test_a_new_query_begins_at_the_latest_offsets",),
    ),
    Mutant(
        "lost records are not reported",
        DRIVER,
        "if losses and self._options.fail_on_data_loss:",
        "if False:",
        (f"{UNIT}/test_stream_reading.py::test_records_that_were_deleted_unread_are_a_loss",),
    ),
    Mutant(
        "tasks overlap",
        PLAN,
        "max(0, part - (parts - rest))",
        "max(0, part - (parts - rest) - 1)",
        (f"{UNIT}/test_plan.py::test_tasks_cover_each_offset_once",),
    ),
)
