"""Pure: the delivery of a partition's records to the members of a share group (KIP-932)."""
