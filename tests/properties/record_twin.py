"""A second implementation of the framing check of `native/record_scan.h`: slow and obvious."""

from __future__ import annotations

from quorumlog.wire.record_framing import Problem

Verdict = tuple[int, int, int, int, int]


class Found(Exception):
    def __init__(self, problem: Problem) -> None:
        self.problem = problem


class SlowScan:
    def __init__(
        self, body: bytes, count: int, base_timestamp: int, oldest_timestamp: int, newest_timestamp: int
    ) -> None:
        self.body = body
        self.count = count
        self.base_timestamp = base_timestamp
        self.oldest_timestamp = oldest_timestamp
        self.newest_timestamp = newest_timestamp
        self.position = 0
        self.record = 0
        self.max_timestamp = -1
        self.first_null_key = -1

    def verdict(self) -> Verdict:
        problem = Problem.NONE
        try:
            for _ in range(self.count):
                self.check_record()
                self.record += 1
            require(self.position == len(self.body), Problem.BATCH_REST)
        except Found as found:
            problem = found.problem
        return int(problem), self.record, self.position, self.max_timestamp, self.first_null_key

    def check_record(self) -> None:
        require(self.position < len(self.body), Problem.BATCH_SHORT)
        length = self.number(32, len(self.body))
        end = self.position + length
        require(length >= 6 and end <= len(self.body), Problem.RECORD_LENGTH)
        self.position += 1  # attributes
        timestamp = self.base_timestamp + self.number(64, end)
        require(-1 <= timestamp < 2**63, Problem.TIMESTAMP_RANGE)
        require(timestamp <= self.newest_timestamp, Problem.TIMESTAMP_AHEAD)
        require(timestamp == -1 or timestamp >= self.oldest_timestamp, Problem.TIMESTAMP_BEHIND)
        self.max_timestamp = max(self.max_timestamp, timestamp)
        require(self.number(32, end) == self.record, Problem.OFFSET_DELTA)
        if self.skip_bytes(end, -1, Problem.KEY_LENGTH) == -1 and self.first_null_key == -1:
            self.first_null_key = self.record
        self.skip_bytes(end, -1, Problem.VALUE_LENGTH)
        headers = self.number(32, end)
        require(headers >= 0 and 2 * headers <= end - self.position, Problem.HEADER_COUNT)
        for _ in range(headers):
            self.skip_bytes(end, 0, Problem.HEADER_KEY)
            self.skip_bytes(end, -1, Problem.HEADER_VALUE)
        require(self.position == end, Problem.RECORD_REST)

    def skip_bytes(self, end: int, shortest: int, problem: Problem) -> int:
        length = self.number(32, end)
        require(shortest <= length <= end - self.position, problem)
        self.position += max(length, 0)
        return length

    def number(self, bits: int, end: int) -> int:
        """A zigzag varint of `bits`; the position stays before one that is refused."""
        raw = 0
        for index in range(self.position, self.position + (bits + 6) // 7):
            require(index < end, Problem.NUMBER_CUT_OFF)
            raw |= (self.body[index] & 0x7F) << 7 * (index - self.position)
            require(raw < 2**bits, Problem.NUMBER_TOO_LARGE)
            if self.body[index] < 0x80:
                self.position = index + 1
                return raw // 2 if raw % 2 == 0 else -(raw + 1) // 2
        raise Found(Problem.NUMBER_TOO_LARGE)


def require(good: bool, problem: Problem) -> None:
    if not good:
        raise Found(problem)


def slow_scan(body: bytes, count: int, base_timestamp: int, oldest_timestamp: int, newest_timestamp: int) -> Verdict:
    return SlowScan(body, count, base_timestamp, oldest_timestamp, newest_timestamp).verdict()
