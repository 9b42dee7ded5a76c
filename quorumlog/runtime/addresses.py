"""HOST:PORT, listeners with names, and voters with ids.  Parsing checks the form only, not whether an address works."""

from __future__ import annotations

import ipaddress
import os
import re
import socket
from collections.abc import Callable, Iterable
from itertools import zip_longest
from typing import NamedTuple, Protocol, TypeVar

from quorumlog.errors import ConfigError

PORT_MAX = 65535
NODE_ID_MAX = 2**31 - 1

_HOST_NAME = re.compile(
    r"(?=.{1,253}$)[A-Za-z0-9_]([A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?(\.[A-Za-z0-9_]([A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?)*\.?"
)
_LISTENER_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,31}")
_DIGITS = re.compile(r"[0-9]{1,10}")

_T = TypeVar("_T")


class Address(NamedTuple):
    """An address to listen on or connect to.  Port 0 means any free port, and is only valid for listening."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def is_wildcard(self) -> bool:
        """Return whether the address means every interface, which is valid for listening but not for connecting."""
        try:
            return ipaddress.ip_address(self.host).is_unspecified
        except ValueError:
            return False

    @property
    def is_loopback(self) -> bool:
        """Return whether the address is reachable from this host only."""
        if self.host.rstrip(".").lower() in ("localhost", "localhost.localdomain"):
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False

    def collides_with(self, other: Address) -> bool:
        """Return whether two listeners cannot both be bound: same port, and the same host or a wildcard."""
        same_host = self.host == other.host or self.is_wildcard or other.is_wildcard
        return same_host and self.port == other.port and self.port != 0


class InitialVoter(NamedTuple):
    """A voter of a new cluster."""

    node_id: int
    address: Address

    def __str__(self) -> str:
        return f"{self.node_id}@{self.address}"


class NamedAddress(NamedTuple):
    """A `[NAME=]HOST:PORT` of a Kafka listener."""

    name: str
    address: Address

    def __str__(self) -> str:
        return f"{self.name}={self.address}"


DEFAULT_LISTENER = "default"
"""Name of a Kafka listener without an explicit name."""


def cannot_listen(where: object, error: OSError | str) -> str:
    """Return the problem in one line; asyncio's own text would repeat the address."""
    match error:
        case socket.gaierror():
            why = f"unknown host: {error.strerror}"
        case OSError(errno=int() as number) if number > 0:
            why = os.strerror(number)
        case _:
            why = str(error)
    return f"cannot listen on {where}: {why}"


def listen_problem(address: Address, where: object, *, ipv6_only: bool) -> str | None:
    """Return the reason why a server could not listen on `address` now, as `cannot_listen`; None if it could.

    where: the address as the message shows it.  ipv6_only: whether the server listens on `::` without IPv4.
    This resolves the host's name, which blocks.
    """
    try:
        found = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError as error:
        return cannot_listen(where, error)
    family, kind, protocol, _, target = found[0]
    try:
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, ipv6_only)
            probe.bind(target)  # fails if the port is in use; without listen(), it rejects no clients
    except OSError as error:
        return cannot_listen(where, error)
    return None


def listen_refused(*problems: str, instead: str = "another address") -> ConfigError:
    """Return the error of a server that cannot listen.

    problems: texts from `cannot_listen`.  instead: the alternative that the next step suggests for a single problem.
    """
    if len(problems) > 1:
        return ConfigError(*problems, next_step="stop the processes that listen there, or give other addresses")
    return ConfigError(*problems, next_step=f"stop the process that listens there, or give {instead}")


class Endpoint(Protocol):
    """The address of one listener of a broker."""

    @property
    def host(self) -> str: ...
    @property
    def port(self) -> int: ...


def client_addresses(brokers: Iterable[Iterable[Endpoint]]) -> list[str]:
    """Return all addresses of brokers, given the endpoints of each, in the order in which a client should try them.

    The first listener of every broker precedes the second one of any: a client may reach only one of the networks, and
    a broker answers with addresses of the listener that was asked.
    """
    rounds = zip_longest(*brokers)
    return [str(Address(each.host, each.port)) for found in rounds for each in found if each is not None]


def parse_address(text: str) -> Address:
    """Parse `HOST:PORT`, with an IPv6 host in brackets and a port from 0 to 65535.

    Raises:
        ValueError: with the problem of `text`.
    """
    scheme, slashes, _ = text.strip().partition("://")
    if slashes:
        raise ValueError(f"{text!r}: an address is HOST:PORT, without {scheme}://")
    host, colon, port = text.strip().rpartition(":")
    if not colon:
        raise ValueError(f"{text!r} is not HOST:PORT")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
        if not _is_ipv6(host):
            raise ValueError(f"{text!r}: {host!r} is not an IPv6 address")
    elif ":" in host:
        raise ValueError(f"{text!r}: an IPv6 address needs brackets, [{host}]:{port}")
    elif not _HOST_NAME.fullmatch(host):
        raise ValueError(f"{text!r}: {host!r} is not a host name or address")
    if not _DIGITS.fullmatch(port) or int(port) > PORT_MAX:
        raise ValueError(f"{text!r}: the port must be 0..{PORT_MAX}")
    return Address(host, int(port))


def parse_target(text: str) -> Address:
    """Parse an address to connect to: neither port 0 nor a wildcard.

    Raises:
        ValueError: with the problem of `text`.
    """
    address = parse_address(text)
    if address.port == 0:
        raise ValueError(f"{text!r}: port 0 is not a port to connect to")
    if address.is_wildcard:
        raise ValueError(f"{text!r}: {address.host} is a wildcard for listening, not an address to connect to")
    return address


def parse_named(text: str) -> NamedAddress:
    """Parse `[NAME=]HOST:PORT`.

    Raises:
        ValueError: with the problem of `text`.
    """
    name, equals, rest = text.strip().partition("=")
    if not equals:
        return NamedAddress(DEFAULT_LISTENER, parse_address(text))
    if not _LISTENER_NAME.fullmatch(name):
        raise ValueError(f"{text!r}: a listener's name is 1 to 32 of A-Z a-z 0-9 _ - and starts with a letter")
    return NamedAddress(name, parse_address(rest))


def parse_voter(text: str) -> InitialVoter:
    """Parse `ID@HOST:PORT`.

    Raises:
        ValueError: with the problem of `text`.
    """
    node_id, at, rest = text.strip().partition("@")
    if not at:
        raise ValueError(f"{text!r} is not ID@HOST:PORT")
    if not _DIGITS.fullmatch(node_id) or int(node_id) > NODE_ID_MAX:
        raise ValueError(f"{text!r}: the node id must be 0..{NODE_ID_MAX}")
    return InitialVoter(int(node_id), parse_target(rest))


def parse_list(parse: Callable[[str], _T], texts: Iterable[str]) -> tuple[_T, ...]:
    """Parse items given as several strings, as one with commas, or both.

    Raises:
        ValueError: an item is empty or malformed.
    """
    items = [item for text in texts for item in text.split(",")]
    if any(not item.strip() for item in items):
        raise ValueError("the list has an empty item")
    return tuple(parse(item) for item in items)


def _is_ipv6(text: str) -> bool:
    try:
        return ipaddress.ip_address(text).version == 6
    except ValueError:
        return False
