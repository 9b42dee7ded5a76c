"""Share groups (KIP-932): the state of share partitions, and the members of groups."""
