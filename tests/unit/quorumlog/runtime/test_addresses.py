"""Addresses: the accepted forms, and the errors of all others."""

from __future__ import annotations

import contextlib
import errno
import socket

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quorumlog.runtime.addresses import (
    Address,
    InitialVoter,
    NamedAddress,
    cannot_listen,
    listen_refused,
    parse_address,
    parse_list,
    parse_named,
    parse_target,
    parse_voter,
)


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("localhost:9092", "localhost", 9092),
        ("10.0.0.1:0", "10.0.0.1", 0),
        ("[::1]:65535", "::1", 65535),
        ("a-b.example.com.:1", "a-b.example.com.", 1),
        ("quorum_1:9093", "quorum_1", 9093),  # compose service names
    ],
)
def test_addresses_parse_and_print_unchanged(text: str, host: str, port: int) -> None:
    address = parse_address(text)
    assert address == Address(host, port)
    assert str(address) == text


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("localhost", "HOST:PORT"),
        ("::1:9092", "brackets"),
        ("[1.2.3.4]:1", "not an IPv6"),
        ("a b:1", "not a host name"),
        ("-a:1", "not a host name"),
        (":1", "not a host name"),
        ("a:65536", "0..65535"),
        ("a:-1", "0..65535"),
        ("a:\u0661", "0..65535"),  # a digit, but not an ASCII one
        ("a:", "0..65535"),
        ("a\n:1", "not a host name"),
    ],
)
def test_parse_error_explains_a_malformed_address(text: str, said: str) -> None:
    with pytest.raises(ValueError, match=said.replace(".", r"\.")):
        parse_address(text)


@pytest.mark.parametrize("text", ["0.0.0.0:1", "[::]:1", "host:0"])
def test_a_wildcard_address_or_port_0_is_refused_as_a_target(text: str) -> None:
    parse_address(text)
    with pytest.raises(ValueError, match="to connect to"):
        parse_target(text)


def test_named_addresses_and_voters_are_parsed_or_refused() -> None:
    assert parse_named("inside=a:1") == NamedAddress("inside", Address("a", 1))
    assert parse_named("a:1").name == "default"
    assert parse_voter("7@a:1") == InitialVoter(7, Address("a", 1))
    for bad in ("1=a:1", "=a:1", "x y=a:1"):
        with pytest.raises(ValueError, match="name"):
            parse_named(bad)
    for bad in ("a:1", "x@a:1", "-1@a:1", "2147483648@a:1"):
        with pytest.raises(ValueError, match=r"ID@HOST|node id"):
            parse_voter(bad)


def test_lists_accept_commas_and_repetition_but_no_empty_items() -> None:
    assert parse_list(parse_address, ["a:1,b:2", "c:3"]) == (Address("a", 1), Address("b", 2), Address("c", 3))
    for bad in (["a:1,"], [""], [",a:1"]):
        with pytest.raises(ValueError, match="empty item"):
            parse_list(parse_address, bad)


@pytest.mark.parametrize(
    ("one", "other", "collide"),
    [
        ("127.0.0.1:1", "127.0.0.1:1", True),
        ("0.0.0.0:1", "127.0.0.1:1", True),
        ("127.0.0.1:1", "[::]:1", True),
        ("127.0.0.1:1", "127.0.0.2:1", False),
        ("127.0.0.1:1", "127.0.0.1:2", False),
        ("127.0.0.1:0", "127.0.0.1:0", False),  # each gets a port of its own
    ],
)
def test_listeners_collide_if_they_share_an_interface_and_a_port(one: str, other: str, collide: bool) -> None:
    assert parse_address(one).collides_with(parse_address(other)) is collide
    assert parse_address(other).collides_with(parse_address(one)) is collide


@given(st.text(max_size=40))
def test_any_text_is_parsed_or_raises_value_error(text: str) -> None:
    for parse in (parse_address, parse_target, parse_named, parse_voter):
        with contextlib.suppress(ValueError):
            parsed = parse(text)
            assert parse(str(parsed)) == parsed


def test_a_failed_bind_reports_its_reason_once() -> None:
    doubled = OSError(errno.EADDRINUSE, "error while attempting to bind on address ('h', 1): address already in use")
    assert cannot_listen("h:1 (http.listen)", doubled) == "cannot listen on h:1 (http.listen): Address already in use"
    unknown = socket.gaierror(socket.EAI_NONAME, "Name or service not known")
    assert cannot_listen("h:1", unknown) == "cannot listen on h:1: unknown host: Name or service not known"
    assert cannot_listen("h:1", OSError("no address at all")) == "cannot listen on h:1: no address at all"
    refused = listen_refused("a", instead="another one, or off")
    assert refused.next_step == "stop the process that listens there, or give another one, or off"
    refused = listen_refused("a", "b", instead="another one, or off")
    assert refused.problems == ("a", "b")
    assert refused.next_step == "stop the processes that listen there, or give other addresses"
