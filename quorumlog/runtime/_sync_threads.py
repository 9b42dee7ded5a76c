"""Reports that the C extension is missing.  Python imports the extension of the same name instead if it exists."""

raise ImportError(
    "the C extension quorumlog.runtime._sync_threads is missing: quorumlog was copied instead of installed, or "
    "installed for another platform; run `pip install` for it with this Python, on every machine that uses it",
    name=__name__,
)
