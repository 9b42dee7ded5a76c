"""The controller's decisions as pure functions: (image, request) → records to append and the reply.

Each module decides one kind of request, and `explain` describes past decisions.  The modules share `election` and
`placement`.  No function of this room waits, reads a clock or draws randomness.  A refusal is a value
(`errors.Outcome`), never an exception.
"""
