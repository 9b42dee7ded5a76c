"""Mutants of quorum/transport and of the requests in progress."""

from __future__ import annotations

from tests.mutants import Mutant

EXCHANGE = "quorum/exchange.py"
STREAM = "quorum/transport/fetch_stream.py"
TRANSPORT = "quorum/transport/grpc.py"

CONTRACT_TESTS = "tests/contract/test_transport.py"
EXCHANGE_TESTS = "tests/unit/quorum/test_exchange.py"
TRANSPORT_TESTS = "tests/unit/quorum/transport/test_grpc_transport.py"

MUTANTS = (
    Mutant(
        "forwarded requests of clients displace fetches and heartbeats",
        TRANSPORT,
        "kind = Sender.NODE if rpc.service is Service.QUORUM else rpc.sender",
        "kind = Sender.CLIENT",
        (f"{TRANSPORT_TESTS}::test_requests_of_clients_never_block_requests_of_brokers_or_the_quorum",),
    ),
    Mutant(
        "a call ends before its own deadline, without a named outcome",
        TRANSPORT,
        "min(remaining, DEADLINE_MAX_S)",
        "min(remaining, HANDLING_MAX_S)",
        (f"{TRANSPORT_TESTS}::test_a_call_may_take_as_long_as_its_own_deadline",),
    ),
    Mutant(
        "two fetches use a stream at the same time",
        STREAM,
        "return not self._in_use and asyncio",
        "return asyncio",
        (f"{CONTRACT_TESTS}::test_each_of_many_fetches_gets_its_own_reply",),
    ),
    Mutant(
        "a node of an older release is asked for a stream with each fetch",
        STREAM,
        "self._unknown_until = asyncio.get_running_loop().time() + UNKNOWN_S",
        "self._unknown_until = asyncio.get_running_loop().time()",
        (f"{TRANSPORT_TESTS}::test_a_node_of_an_older_release_gets_each_fetch_as_a_separate_call",),
    ),
    Mutant(
        "a stream that has ended is used again",
        STREAM,
        "if call is None or call.done():",
        "if call is None:",
        (f"{TRANSPORT_TESTS}::test_a_stream_that_is_idle_is_ended_and_opened_again",),
    ),
    Mutant(
        "a stream ends although it is in use",
        TRANSPORT,
        "                        limit.reschedule(ends_at)\n",
        "",
        (f"{TRANSPORT_TESTS}::test_a_stream_in_use_outlives_the_limit_for_idle_ones",),
    ),
    Mutant(
        "streams end only with the grace of a stop",
        TRANSPORT,
        "                stream.cancel()\n",
        "                pass\n",
        (f"{TRANSPORT_TESTS}::test_a_node_that_stops_ends_its_streams_at_once",),
    ),
    Mutant(
        "a request that begins while the timer runs never fails",
        EXCHANGE,
        "            self._watch(next(reversed(self._requests)))\n",
        "            pass\n",
        (f"{EXCHANGE_TESTS}::test_each_request_without_an_answer_fails_after_its_own_timeout",),
    ),
    Mutant(
        "a request fails together with the oldest one",
        EXCHANGE,
        "if call <= self._expiring and not future.done():",
        "if not future.done():",
        (f"{EXCHANGE_TESTS}::test_each_request_without_an_answer_fails_after_its_own_timeout",),
    ),
    Mutant(
        "a node that stops cancels the replies that it is writing",
        TRANSPORT,
        "                    self._streams.discard(task)\n                    await",
        "                    await",
        (
            "tests/unit/quorum/transport/test_grpc_transport.py"
            "::test_a_node_that_stops_does_not_cancel_a_reply_that_is_being_written",
        ),
    ),
    Mutant(
        "a reset keeps the connections, and names are not resolved again",
        TRANSPORT,
        "channels, self._channels = self._channels, OrderedDict()",
        "channels = OrderedDict[str, _Channel]()",
        ("tests/integration/quorum/test_known_failures.py::test_k39_after_a_reset_a_name_is_resolved_again_at_once",),
    ),
)
