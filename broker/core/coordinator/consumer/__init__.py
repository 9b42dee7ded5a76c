"""Consumer groups of the newer protocol (KIP-848), in which the coordinator assigns the partitions."""
