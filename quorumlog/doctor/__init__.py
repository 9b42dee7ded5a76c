"""Finds the problems of a cluster, their causes, and the next steps.

`examine.examine` asks the nodes (I/O) and returns an `ObservedCluster`.  `diagnosis.diagnose` concludes from it (pure)
and returns a `Diagnosis`: findings as values, and the cluster in numbers.  `kctl doctor` prints the diagnosis.
"""
