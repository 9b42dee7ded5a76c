"""Finds out what is wrong with a cluster, why, and what to do next.

`examine.examine` asks the nodes (I/O) and returns an `ObservedCluster`.  `diagnosis.diagnose` concludes from it (pure)
and returns a `Diagnosis`: findings as values, and the cluster in numbers.  `kctl doctor` prints the diagnosis.
"""
