"""The control plane of every server process, and the program `quorum-node`.

This package knows both Raft (`quorum`) and the metadata, and no broker.
"""
