"""Mutants of the check and recompression of produced records, of clients that read a bad batch, and of `run`."""

from __future__ import annotations

from tests.mutants import Mutant

PRODUCED = "broker/log/produced.py"
CHECKS = "broker/replica/record_checks.py"
PRODUCES = "broker/replica/produce.py"
LOG = "broker/log/writer.py"
RECORDS = "quorumlog/client/records.py"
KCTL = "quorumlog/kctl/data.py"
RUN = "quorumlog/runtime/run.py"

PRODUCED_TESTS = "tests/unit/broker/log/test_produced.py"
CHECK_TESTS = "tests/unit/broker/replica/test_record_checks.py"
WAITING_TESTS = "tests/unit/broker/replica/test_checked_produces.py"
CODEC_TESTS = "tests/properties/test_records_codec.py"
KCTL_TESTS = "tests/unit/quorumlog/kctl/test_data.py"
COMPRESSION = "quorumlog/wire/compression.py"
COMPRESSION_TESTS = "tests/unit/quorumlog/wire/test_compression.py"
RECOMPRESSION = "broker/log/recompression.py"
RECOMPRESSION_TESTS = "tests/unit/broker/log/test_recompression.py"
CONFIGS = "broker/replica/configs.py"
RUN_TESTS = "tests/unit/quorumlog/runtime/test_run.py"

MUTANTS = (
    Mutant(
        "a server notifies the watchdog of another process",
        RUN,
        "microseconds.isdigit() and wanted else",
        "microseconds.isdigit() else",
        (f"{RUN_TESTS}::test_the_watchdog_of_another_process_gets_no_notification",),
    ),
    Mutant(
        "a marker without its last bytes is an error",
        "quorumlog/wire/control_records.py",
        "    except (IndexError, struct.error):",
        "    except struct.error:",
        (
            "tests/unit/quorumlog/wire/test_control_records.py::"
            "test_parsing_arbitrary_control_records_as_markers_raises_no_error",
        ),
    ),
    Mutant(
        "a batch of several control records is a marker",
        "quorumlog/wire/control_records.py",
        "if not header.is_control or header.record_count != 1:",
        "if not header.is_control:",
        (
            "tests/unit/quorumlog/wire/test_control_records.py::"
            "test_parsing_arbitrary_control_records_as_markers_raises_no_error",
        ),
    ),
    Mutant(
        "a recompressed batch loses its transactional flag",
        RECOMPRESSION,
        "header.attributes & ~CODEC_MASK | target.codec",
        "int(target.codec)",
        (f"{RECOMPRESSION_TESTS}::test_recompression_changes_only_codec_length_and_checksum_of_a_batch",),
    ),
    Mutant(
        "a recompressed batch keeps the checksum of the received one",
        RECOMPRESSION,
        "seal(data, changed, position)",
        "data[position : position + HEADER_SIZE] = source[opened.position : opened.position + HEADER_SIZE]",
        (f"{RECOMPRESSION_TESTS}::test_recompression_changes_only_codec_length_and_checksum_of_a_batch",),
    ),
    Mutant(
        "a batch may exceed max.message.bytes after recompression",
        RECOMPRESSION,
        "if size > size_max:",
        "if False:",
        (f"{RECOMPRESSION_TESTS}::test_a_batch_that_is_too_large_in_the_new_codec_is_refused",),
    ),
    Mutant(
        "a batch may become so large that no follower can receive it",
        RECOMPRESSION,
        "size_max = min(message_size_max, BATCH_SIZE_MAX)",
        "size_max = message_size_max",
        (f"{RECOMPRESSION_TESTS}::test_a_batch_that_followers_could_not_receive_is_refused",),
    ),
    Mutant(
        "a batch that has the codec of its topic is compressed again",
        RECOMPRESSION,
        "if header.codec is target.codec:",
        "if False:",
        (f"{RECOMPRESSION_TESTS}::test_a_batch_that_already_has_the_codec_is_unchanged",),
    ),
    Mutant(
        "only the first batch of a produce determines whether it is recompressed",
        RECOMPRESSION,
        "for header in produced.headers)",
        "for header in produced.headers[:1])",
        (f"{RECOMPRESSION_TESTS}::test_a_batch_that_already_has_the_codec_is_unchanged",),
    ),
    Mutant(
        "the level of the topic is not used",
        RECOMPRESSION,
        "compress(target.codec, opened.body, target.level)",
        "compress(target.codec, opened.body)",
        (f"{RECOMPRESSION_TESTS}::test_a_higher_compression_level_makes_a_smaller_batch",),
    ),
    Mutant(
        "compression.type has no effect",
        CONFIGS,
        "recompression=_recompression(value),",
        "recompression=None,",
        (f"{WAITING_TESTS}::test_the_configs_of_a_topic_determine_the_codec_and_its_level",),
    ),
    Mutant(
        "any number of recompressed bytes wait for earlier produces",
        CHECKS,
        "if self.recompressed_bytes > self._limits.recompressed_waiting_bytes and produce.recompressed_size:",
        "if False:",
        (f"{CHECK_TESTS}::test_the_bytes_of_recompressed_batches_that_wait_are_limited",),
    ),
    Mutant(
        "recompressed bytes that were appended still count",
        CHECKS,
        "            self._waiting.pop(produce, None)\n            self._release(produce)\n",
        "            self._waiting.pop(produce, None)\n",
        (f"{CHECK_TESTS}::test_a_batch_of_another_codec_is_recompressed_in_a_thread",),
    ),
    Mutant(
        "the blocks of an lz4 frame depend on each other",
        COMPRESSION,
        "level=level, block_linked=False",
        "level=level",
        (f"{COMPRESSION_TESTS}::test_lz4_blocks_are_independent_because_java_clients_read_no_others",),
    ),
    Mutant(
        "records without compression are appended unchecked",
        PRODUCED,
        "                return refused(framing)\n            max_timestamps.append",
        "                continue\n            max_timestamps.append",
        (f"{PRODUCED_TESTS}::test_bad_records_without_compression_are_refused",),
    ),
    Mutant(
        "each batch of a produce may inflate to the bound of all",
        PRODUCED,
        "size_max -= len(body)",
        "size_max -= 0",
        (f"{PRODUCED_TESTS}::test_batches_of_one_produce_share_the_limit_of_the_inflated_size",),
    ),
    Mutant(
        "a small produce may inflate to any size",
        PRODUCED,
        "return min(largest, max(INFLATED_FLOOR,",
        "return max(largest, max(INFLATED_FLOOR,",
        (f"{PRODUCED_TESTS}::test_the_inflated_size_of_a_produce_is_limited",),
    ),
    Mutant(
        "a wrong max timestamp is stored as it came",
        PRODUCED,
        "            max_timestamps.append(framing.max_timestamp)\n",
        "            max_timestamps.append(header.max_timestamp)\n",
        (f"{PRODUCED_TESTS}::test_a_wrong_max_timestamp_is_corrected_together_with_the_checksum",),
    ),
    Mutant(
        "a corrected header keeps the checksum of the wrong one",
        LOG,
        "            seal(data, header, position)\n",
        "            patch(data, offset, leader_epoch, position)\n",
        (f"{PRODUCED_TESTS}::test_a_wrong_max_timestamp_is_corrected_together_with_the_checksum",),
    ),
    Mutant(
        "a produce overtakes an earlier one whose records are being checked",
        CHECKS,
        "            if queue is None and produce.verifying is None:\n                return True\n",
        "            return True\n",
        (f"{CHECK_TESTS}::test_large_batch_is_checked_in_a_thread_and_later_batches_wait_behind_it",),
    ),
    Mutant(
        "checked produces are appended in the order in which their checks end",
        CHECKS,
        "((queue[0].is_checked and queue[0].verifying is None) or queue[0].future.done()):",
        "any(one.is_checked or one.future.done() for one in queue):",
        (f"{CHECK_TESTS}::test_checks_that_end_out_of_order_are_appended_in_order",),
    ),
    Mutant(
        "a produce is appended after it was answered with a timeout",
        CHECKS,
        "            if not produce.future.done():\n                self._hand_over(produce)\n",
        "            self._hand_over(produce)\n",
        (f"{CHECK_TESTS}::test_produce_after_its_timeout_is_refused_and_not_appended",),
    ),
    Mutant(
        "the check of a produce that was answered with a timeout keeps its batches",
        CHECKS,
        "            self._waiting.pop(produce, None)\n",
        "",
        (f"{CHECK_TESTS}::test_check_of_an_answered_produce_does_not_keep_its_batches_in_memory",),
    ),
    Mutant(
        "checks of records wait for the threads that flush the disks",
        CHECKS,
        "run_in_executor(self._threads,",
        "run_in_executor(None,",
        (f"{CHECK_TESTS}::test_disk_that_blocks_all_threads_of_the_loop_does_not_delay_a_check",),
    ),
    Mutant(
        "a produce whose append fails after its check is never answered",
        CHECKS,
        "produce.future.set_result(ProduceResult(int(KafkaCode.UNKNOWN_SERVER_ERROR),",
        "print(ProduceResult(int(KafkaCode.UNKNOWN_SERVER_ERROR),",
        (f"{CHECK_TESTS}::test_append_that_fails_after_a_check_is_answered_and_reported",),
    ),
    Mutant(
        "a broken invariant after the check of a produce is not reported",
        CHECKS,
        "            asyncio.get_running_loop().call_exception_handler(context)\n",
        "",
        (f"{CHECK_TESTS}::test_append_that_fails_after_a_check_is_answered_and_reported",),
    ),
    Mutant(
        "a broken invariant in a callback is only logged",
        RUN,
        "isinstance(error, AssertionError) and not task.done()",
        "False",
        (f"{RUN_TESTS}::test_a_broken_invariant_in_a_callback_ends_the_process",),
    ),
    Mutant(
        "any number of checks run concurrently",
        CHECKS,
        "while self._waiting and self._running < self._limits.record_check_threads:",
        "while self._waiting:",
        (f"{CHECK_TESTS}::test_checks_that_end_out_of_order_are_appended_in_order",),
    ),
    Mutant(
        "a small compressed batch is appended without a check of its records",
        CHECKS,
        "                produce.batches = checked\n                return None\n",
        "                return None\n",
        (f"{CHECK_TESTS}::test_small_batch_with_bad_records_is_refused_at_once",),
    ),
    Mutant(
        "any number of produces wait for the check of their records",
        PRODUCES,
        "return self._checks.produces + (self._context.parked_produces if acks else 0)",
        "return self._context.parked_produces if acks else 0",
        (f"{WAITING_TESTS}::test_produces_that_wait_for_a_check_count_against_the_limit_of_parked_produces",),
    ),
    Mutant(
        "a broker that closes leaves produces that wait for a check unanswered",
        PRODUCES,
        "        self._checks.refuse_all(KafkaCode.NOT_LEADER_OR_FOLLOWER)\n",
        "",
        (f"{WAITING_TESTS}::test_closing_answers_produces_that_wait_for_a_check",),
    ),
    Mutant(
        "a client skips records whose offset delta is beyond their batch",
        RECORDS,
        "if not previous < delta <= header.last_offset_delta:",
        "if not previous < delta:",
        (f"{CODEC_TESTS}::test_batch_that_contradicts_its_header_is_reported_by_both_decoders",),
    ),
    Mutant(
        "kctl consume drops the records before an unreadable batch",
        KCTL,
        "            await pieces.put((index, records))\n            await pieces.put(error.of",
        "            await pieces.put((index, []))\n            await pieces.put(error.of",
        (f"{KCTL_TESTS}::test_records_before_an_unreadable_batch_are_returned_before_its_error",),
    ),
)
