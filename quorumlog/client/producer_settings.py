"""The settings of a `Producer`, checked as a whole."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final, Literal

from quorumlog.client.delivery import ACKS_ALL, ACKS_LEADER, ACKS_NONE
from quorumlog.client.messages import client_id_problem, text_problem, timeout_problem
from quorumlog.errors import ConfigError
from quorumlog.wire.compression import CODEC_NAMES

Acks = Literal["all", "leader", "none"]
Compression = Literal["none", "gzip", "snappy", "lz4", "zstd"]
Partitioner = Callable[[bytes | None, int], int]
"""Returns the partition for a key and a number of partitions."""

BATCH_SIZE_MAX_BYTES: Final = 512 << 10
BUFFER_SIZE_MAX_BYTES: Final = 32 << 20
MAX_BLOCK_S: Final = 60.0
TRANSACTION_TIMEOUT_S: Final = 60.0
ACKS: Final = {"all": ACKS_ALL, "leader": ACKS_LEADER, "none": ACKS_NONE}


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerSettings:
    """The arguments of `Producer`, whose docstring describes them.

    is_staged: the producer has the argument `staged`.

    Raises:
        ConfigError: arguments are invalid; the error lists all of these.
    """

    client_id: str
    acks: Acks
    linger_ms: float
    compression: Compression
    partitioner: Partitioner | None
    batch_size_max_bytes: int
    buffer_size_max_bytes: int
    delivery_timeout_s: float
    request_timeout_s: float
    max_block_s: float
    transactional_id: str | None
    transaction_timeout_s: float
    is_staged: bool = False

    def __post_init__(self) -> None:
        problems = list(self._problems())
        if problems:
            raise ConfigError(*problems)

    @property
    def is_idempotent(self) -> bool:
        return self.acks != "none"

    def _problems(self) -> Iterable[str]:
        if problem := client_id_problem(self.client_id):
            yield problem
        if self.acks not in ACKS:
            yield f"acks is {self.acks!r}, not one of {', '.join(ACKS)}"
        if self.compression not in CODEC_NAMES:
            yield f"compression is {self.compression!r}, not one of {', '.join(CODEC_NAMES)}"
        if self.linger_ms < 0:
            yield f"linger_ms is {self.linger_ms}, below 0"
        for name in ("batch_size_max_bytes", "buffer_size_max_bytes"):
            if (size := getattr(self, name)) < 1:
                yield f"{name} is {size}, below 1"
        if self.delivery_timeout_s * 1000 <= self.linger_ms:
            yield f"delivery_timeout_s is {self.delivery_timeout_s}, not above linger_ms"
        if problem := timeout_problem("request_timeout_s", self.request_timeout_s):
            yield problem
        if self.max_block_s <= 0:
            yield f"max_block_s is {self.max_block_s}, not above 0"
        if self.transactional_id == "":
            yield "transactional_id is empty"
        if self.transactional_id is not None and (problem := text_problem("transactional_id", self.transactional_id)):
            yield problem
        if self.transactional_id is not None and self.acks != "all":
            yield f"transactional_id requires acks='all', not {self.acks!r}"
        if self.is_staged and self.transactional_id is not None:
            yield "a producer of a scope has no transactional_id"
        if self.is_staged and self.acks != "all":
            yield f"a producer of a scope requires acks='all', not {self.acks!r}"
        if problem := timeout_problem("transaction_timeout_s", self.transaction_timeout_s):
            yield problem
