"""The controller's decisions as pure functions: (image, request) → records to append and the answer to give.

`brokers`, `topics` and `partitions` decide; `election` and `placement` are what they share.  Nothing here waits, reads
a clock or draws randomness; a refusal is a value (`errors.Outcome`), never an exception.
"""
