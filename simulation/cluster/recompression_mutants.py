"""A known mistake of recompression; `mutants.py` has the others."""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

from broker.log import Refused
from broker.log.produced import Produced
from broker.log.recompression import recompress
from broker.replica import record_checks
from quorumlog.wire.compression import Recompression
from quorumlog.wire.record_batch import NO_PRODUCER_ID, NO_SEQUENCE, TRANSACTIONAL_FLAG, parse_header, seal
from simulation.kernel.mutation import Mutant, mutant_of

MUTANTS: list[Mutant] = []

_mutant = mutant_of(MUTANTS)


@_mutant("a recompressed batch loses its producer")
def _loses_producers() -> list[Any]:
    def anonymous(
        produced: Produced, target: Recompression, inflated_max: int, message_size_max: int
    ) -> Produced | Refused:
        outcome = recompress(produced, target, inflated_max, message_size_max)
        if isinstance(outcome, Refused) or not outcome.headers[0].has_producer_id:
            return outcome
        [header] = outcome.headers
        data = bytearray(outcome.data)
        flags = header.attributes & ~TRANSACTIONAL_FLAG
        nobody = {"producer_id": NO_PRODUCER_ID, "producer_epoch": -1, "base_sequence": NO_SEQUENCE}
        seal(data, header._replace(attributes=flags, **nobody))
        return outcome._replace(data=data, headers=[parse_header(data)])

    return [patch.object(record_checks, "recompress", anonymous)]
