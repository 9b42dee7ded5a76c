import time

STARTED_S = time.monotonic()
"""When this package began to be imported, which takes long on a busy machine: --timeout counts from here."""
