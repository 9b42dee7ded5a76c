"""Virtual time, and everything that the simulators of quorum and cluster share."""
