"""The client that sent a request to a coordinator."""

from __future__ import annotations

from typing import NamedTuple


class Client(NamedTuple):
    """A client's own name, from the header of its request, and its address as text."""

    client_id: str
    host: str
