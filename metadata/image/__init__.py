"""The cluster as an immutable value (design §3).  See `ClusterImage`."""
