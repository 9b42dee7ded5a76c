"""Finds the problems of a cluster, their causes, and the next steps.

`examine.examine` asks the nodes (I/O) and returns an `ObservedCluster`.  `diagnosis.diagnose` (pure) turns this into a
`Diagnosis`: findings as values, and the cluster in numbers.  `kctl doctor` prints the diagnosis.
"""
