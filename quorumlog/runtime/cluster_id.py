"""Making cluster ids: a random uuid as 22 characters of URL-safe base64, like every uuid that a person sees."""

from __future__ import annotations

import base64

from quorumlog.runtime.clock import Sources


def new_cluster_id(sources: Sources) -> str:
    """A fresh id.  Never begins with `-`, which a command line would take for an option."""
    while True:
        text = base64.urlsafe_b64encode(sources.uuid4().bytes).rstrip(b"=").decode()
        if not text.startswith("-"):
            return text
