import time

STARTED_S = time.monotonic()
"""The time at which the import of this package began; --timeout counts from it, since imports are slow on a busy
machine."""
