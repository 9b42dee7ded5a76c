"""The Kafka protocol on the wire: the part that the broker's listener and our clients share.

- `buffer`: bounds-checked reading of untrusted bytes, and the varints of the flexible versions;
- `codec`: frame and message headers, and the generated schemas of `kio` behind plain mappings, loaded on first use;
- `decoding`: a reader of messages in these schemas, for untrusted bytes;
- `produce`, `fetch`: the two hot messages, written by hand so that large batches are not copied;
- `private` and its parts: requests of quorumlog's own;
- `framing`: an asyncio protocol that splits a byte stream into frames of bounded size.

All input is untrusted.  Malformed input raises `RemoteProtocolError` and no other error.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def _without(name: str) -> Iterator[None]:
    """Make `import name` fail in the body, unless the module has been imported already."""
    hidden = sys.modules.setdefault(name, None) is None  # type: ignore[arg-type]
    try:
        yield
    finally:
        if hidden:
            del sys.modules[name]


# kio registers strategies for its types with hypothesis if that is installed.  This takes 0.4 s in each process of a
# user's tests, and nobody needs it.
with _without("hypothesis"):
    import kio.static.primitive  # noqa: F401
