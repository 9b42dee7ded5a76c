"""The controller's decisions as pure functions: (image, request) → records to append and the reply.

`brokers`, `topics` and `partitions` decide; they share `election` and `placement`.  Nothing here waits, reads a clock
or draws randomness; a refusal is a value (`errors.Outcome`), never an exception.
"""
