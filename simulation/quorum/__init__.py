"""The simulator of the quorum: voters, observers and the active controller, without brokers."""
