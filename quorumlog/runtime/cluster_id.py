"""Creates cluster ids: random uuids as 22 characters of URL-safe base64, the form in which kctl shows all uuids."""

from __future__ import annotations

import base64

from quorumlog.runtime.clock import Sources


def new_cluster_id(sources: Sources) -> str:
    """Return a new id.  It never begins with `-`, which a command line would treat as an option."""
    while True:
        text = base64.urlsafe_b64encode(sources.uuid4().bytes).rstrip(b"=").decode()
        if not text.startswith("-"):
            return text
